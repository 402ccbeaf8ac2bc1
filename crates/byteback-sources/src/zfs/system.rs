//! The calls into the kernel and the programs of ZFS, behind a trait so that the logic is tested
//! with answers that no real system gives.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use byteback_host::tree::{Stat, stat_fd};

use super::answers::dataset;
use crate::programs::Programs;
use byteback_checksums::source::{Result, SourceError};

/// The requests about one open file.
pub(super) trait System {
    fn stat(&self) -> io::Result<Stat>;

    /// The dataset that the file is in.
    fn dataset(&self) -> Result<String>;

    /// Waits until all data written to the file before is on the pool's devices, where `zdb` sees
    /// it.
    fn settle(&self, dataset: &str) -> Result<()>;

    /// Passes each line of `zdb`'s output about an object to `each`.
    fn describe(&self, dataset: &str, object: u64, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;
}

/// The real kernel and programs.
#[derive(Debug)]
pub(super) struct RealSystem<'a> {
    file: BorrowedFd<'a>,
    programs: &'a Programs,
}

/// A property that is never set.
const PROPERTY: &str = "byteback:nothing";

impl<'a> RealSystem<'a> {
    pub(super) fn new(file: BorrowedFd<'a>, programs: &'a Programs) -> Self {
        Self { file, programs }
    }

    /// Checks that this process has the permission.
    pub(super) fn is_allowed(&self) -> Result<()> {
        match rustix::process::geteuid().is_root() {
            true => Ok(()),
            false => Err(SourceError::Denied(
                "zdb reads checksums from the pool's devices, which only root may do; run as root, or read the file \
                 instead",
            )),
        }
    }

    fn quietly(&self, name: &'static str, arguments: &[&str]) -> Result<()> {
        let arguments: Vec<_> = arguments.iter().map(OsStr::new).collect();
        self.programs.run(name, &arguments, &[], |_| Ok(()))
    }
}

impl System for RealSystem<'_> {
    fn stat(&self) -> io::Result<Stat> {
        stat_fd(self.file)
    }

    fn dataset(&self) -> Result<String> {
        const WHAT: &str = "find where the file's file system is mounted";
        // statx reports another mount number, which is never reused but appears in no list.
        let about = format!("/proc/self/fdinfo/{}", self.file.as_raw_fd());
        let about = std::fs::read_to_string(about).map_err(SourceError::io(WHAT))?;
        let number = about.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        let number = number.and_then(|number| number.trim().parse().ok());
        let number = number.ok_or(SourceError::Malformed("an open file without a mount"))?;
        let mounts = std::fs::read("/proc/self/mountinfo").map_err(SourceError::io(WHAT))?;
        // Names of other mounts may not be text.
        let found = dataset(&String::from_utf8_lossy(&mounts), number).map_err(SourceError::Malformed)?;
        found.ok_or(SourceError::NotHere("the file is not on ZFS"))
    }

    fn settle(&self, dataset: &str) -> Result<()> {
        rustix::fs::fsync(self.file).map_err(|errno| SourceError::io("sync the file")(errno.into()))?;
        let pool = dataset.split(['/', '@']).next().unwrap_or(dataset);
        match self.quietly("zpool", &["sync", pool]) {
            Err(SourceError::Program { said, .. }) if said.contains("unrecognized command") => {
                let filesystem = dataset.split('@').next().unwrap_or(dataset);
                self.quietly("zfs", &["inherit", PROPERTY, filesystem])
            }
            done => done,
        }
    }

    fn describe(&self, dataset: &str, object: u64, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let number = object.to_string();
        // A name without a slash stands for the whole pool, where these numbers are other objects.
        let is_topmost = !dataset.contains(['/', '@']);
        let named = format!("{dataset}{}", if is_topmost { "/" } else { "" });
        let arguments = ["-ddddd", "-bbbbbb", &named, &number].map(OsStr::new);
        match self.programs.run("zdb", &arguments, &[], each) {
            Err(SourceError::Program { said, .. }) if is_topmost && said.contains("can't open") => {
                Err(SourceError::NotHere(
                    "the file is in the pool's topmost file system, which this release of zdb cannot describe; move it \
                     into one below it (zfs create), or read it instead",
                ))
            }
            done => done,
        }
    }
}
