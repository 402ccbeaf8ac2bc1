//! A btrfs in an image file, mounted as long as it lives.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time for which others may keep a mount busy.
const PATIENCE: Duration = Duration::from_secs(20);

/// See the module.
pub(crate) struct Disk {
    dir: tempfile::TempDir,
}

/// Runs a program; its failure fails the test.
pub(crate) fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program)
        .arg_path()
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; scripts/install-dependencies installs it"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

trait Administration {
    fn arg_path(&mut self) -> &mut Self;
}

impl Administration for Command {
    /// Administration programs are not in every search path.
    fn arg_path(&mut self) -> &mut Self {
        let path = std::env::var("PATH").unwrap_or_default();
        self.env("PATH", format!("{path}:/usr/sbin:/sbin"))
    }
}

fn is_unmounted(path: &Path) -> bool {
    let status = Command::new("umount")
        .arg_path()
        .arg(path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.unwrap().success()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

impl Disk {
    /// A file system of `mib` MiB with these checksums, mounted with `options`. `None`, with a
    /// message, if this machine's kernel has no btrfs; anything else that is missing is a failure.
    pub(crate) fn new(checksum: &str, mib: u64, options: &str) -> Option<Self> {
        let _ = Command::new("modprobe")
            .arg_path()
            .arg("btrfs")
            .stderr(Stdio::null())
            .status();
        let known = std::fs::read_to_string("/proc/filesystems").unwrap();
        if !known.lines().any(|line| line.trim() == "btrfs") {
            println!("skipped: the kernel of this machine has no btrfs");
            return None;
        }
        let dir = tempfile::Builder::new()
            .prefix("byteback-btrfs-")
            .tempdir_in("/var/tmp")
            .unwrap();
        let disk = Self { dir };
        let image = disk.dir.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
        run("mkfs.btrfs", &["-q", "--csum", checksum, text(&image)]);
        std::fs::create_dir(disk.path()).unwrap();
        disk.mount(options);
        Some(disk)
    }

    /// The mount point.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    pub(crate) fn mount(&self, options: &str) {
        let options = match options {
            "" => "loop".to_owned(),
            options => format!("loop,{options}"),
        };
        run(
            "mount",
            &["-o", &options, text(&self.dir.path().join("image")), text(&self.path())],
        );
    }

    pub(crate) fn unmount(&self) {
        // A program that another test starts has this one's descriptors until it is loaded.
        let began = Instant::now();
        let path = self.path();
        while !is_unmounted(&path) {
            assert!(began.elapsed() < PATIENCE, "{} is still in use", path.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.path())
            .stderr(Stdio::null())
            .status();
    }
}
