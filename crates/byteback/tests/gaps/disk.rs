//! A small disk of its own for a test: a file system in an image file, or in memory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use byteback_testkit::tools::run;

/// A file system that is mounted as long as this lives.
pub(crate) struct Disk {
    point: PathBuf,
    image: Option<tempfile::NamedTempFile>,
}

impl Disk {
    /// A file system of `mib` MiB in an image file, mounted at `point`, which is created. `maker`
    /// is `mkfs.TYPE` with its arguments.
    pub(crate) fn image(point: &Path, mib: u64, maker: &[&str]) -> Self {
        let image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        image.as_file().set_len(mib << 20).unwrap();
        let path = image.path().to_str().unwrap().to_owned();
        run(maker[0], &[&maker[1..], &[&path]].concat());
        std::fs::create_dir(point).unwrap();
        let disk = Self {
            point: point.to_owned(),
            image: Some(image),
        };
        disk.mount();
        disk
    }

    /// A file system of `kib` KiB in memory at `point`, which is created.
    pub(crate) fn memory(point: &Path, kib: u64) -> Self {
        std::fs::create_dir(point).unwrap();
        run(
            "mount",
            &[
                "-t",
                "tmpfs",
                "-o",
                &format!("size={kib}k"),
                "tmpfs",
                point.to_str().unwrap(),
            ],
        );
        Self {
            point: point.to_owned(),
            image: None,
        }
    }

    fn mount(&self) {
        let image = self.image.as_ref().unwrap().path().to_str().unwrap();
        run("mount", &["-o", "loop", image, self.point.to_str().unwrap()]);
    }

    /// Passes the image to `act` while it is not mounted.
    pub(crate) fn while_not_mounted(&self, act: impl FnOnce(&Path)) {
        // A program that another test starts has this one's descriptors until it is loaded.
        let began = Instant::now();
        while !Command::new("umount").arg(&self.point).status().unwrap().success() {
            assert!(began.elapsed() < Duration::from_secs(20), "the disk is still in use");
            std::thread::sleep(Duration::from_millis(20));
        }
        act(self.image.as_ref().unwrap().path());
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(&self.point)
            .stderr(Stdio::null())
            .status();
    }
}
