//! Other file systems that tests mount.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Another file system that is mounted while a test runs.
pub(crate) struct OtherMount(PathBuf);

impl OtherMount {
    pub(crate) fn new(arguments: &[&str], point: &Path) -> Self {
        let status = Command::new("mount").args(arguments).arg(point).status().unwrap();
        assert!(
            status.success(),
            "mount {arguments:?}: these tests need root and file systems to mount"
        );
        Self(point.to_owned())
    }
}

impl Drop for OtherMount {
    fn drop(&mut self) {
        // Twice: after a failed test, ours may still lie over it.
        for _ in 0..2 {
            let _ = Command::new("umount")
                .arg("-l")
                .arg(&self.0)
                .stderr(Stdio::null())
                .status();
        }
    }
}

/// A small file system of its own, which goes with this.
pub(crate) struct Disk {
    // In this order: first unmounted, then removed.
    _mount: OtherMount,
    dir: tempfile::TempDir,
}

impl Disk {
    /// A file system of a `kind` that `mkfs` and `mount` know, or `tmpfs`; `None` if this machine
    /// has no `mkfs` for it.
    pub(crate) fn new(kind: &str) -> Option<Self> {
        Self::of_len_bytes(kind, 512 << 20)
    }

    /// The same with another length, which `tmpfs` does not have.
    pub(crate) fn of_len_bytes(kind: &str, len_bytes: u64) -> Option<Self> {
        Self::made(kind, len_bytes, &[])
    }

    /// An ext4 whose times are whole seconds: its inodes have no room for more.
    pub(crate) fn of_seconds() -> Option<Self> {
        Self::made("ext4", 512 << 20, &["-I", "128"])
    }

    fn made(kind: &str, len_bytes: u64, options: &[&str]) -> Option<Self> {
        let dir = tempfile::Builder::new()
            .prefix("byteback-disk-")
            .tempdir_in("/var/tmp")
            .unwrap();
        let point = dir.path().join("disk");
        std::fs::create_dir(&point).unwrap();
        let mount = if kind == "tmpfs" {
            OtherMount::new(&["-t", "tmpfs", "none"], &point)
        } else {
            let image = dir.path().join("image");
            std::fs::File::create(&image).unwrap().set_len(len_bytes).unwrap();
            let made = Command::new(format!("/usr/sbin/mkfs.{kind}"))
                .arg("-q")
                .args(options)
                .arg(&image)
                .stdout(Stdio::null())
                .status();
            match made {
                Ok(status) => assert!(status.success(), "mkfs.{kind}"),
                Err(error) => {
                    println!("skipped: no mkfs.{kind} here ({error})");
                    return None;
                }
            }
            OtherMount::new(&["-o", "loop", image.to_str().unwrap()], &point)
        };
        Some(Self { _mount: mount, dir })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }
}
