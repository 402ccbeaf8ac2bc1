//! The mount table of this process, read without accessing the mounts: one of them may hang.

use crate::waiting::eventually;
use std::fs;
use std::path::{Path, PathBuf};

/// Ends the test on a machine that cannot mount.
pub fn assert_fuse() {
    assert!(
        Path::new("/dev/fuse").exists(),
        "/dev/fuse is missing: these tests need a machine with FUSE"
    );
}

/// All mount points, in the order of mounting.
pub fn mounts() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(PathBuf::from).collect()
}

/// Whether something is mounted at `path`.
pub fn is_mounted(path: &Path) -> bool {
    mounts().iter().any(|point| point == path)
}

/// Unmounts as `umount` does, bypassing our command. A file that was closed a moment ago may still
/// be on its way through the kernel.
#[track_caller]
pub fn unmount(path: &Path) {
    eventually("it is not busy", || {
        rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()).ok()
    });
}
