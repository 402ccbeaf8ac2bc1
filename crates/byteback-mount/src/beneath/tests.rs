//! Directories with something mounted over parts of them.

use std::ffi::OsStr;
use std::fs;

use rustix::fs::AtFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount};

use super::*;

/// A directory on a small disk, and what else is mounted; all is taken away at the end.
struct Disks {
    dir: tempfile::TempDir,
    mounted: Vec<PathBuf>,
}

impl Disks {
    fn new() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests mount, so they need root"
        );
        Self {
            dir: tempfile::tempdir().unwrap(),
            mounted: Vec::new(),
        }
    }

    fn disk(&mut self, point: &Path) {
        mount("none", point, "tmpfs", MountFlags::empty(), None).unwrap();
        self.mounted.push(point.to_owned());
    }

    fn bind(&mut self, shown: &Path, point: &Path) {
        mount_bind(shown, point).unwrap();
        self.mounted.push(point.to_owned());
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for point in self.mounted.iter().rev() {
            let _ = unmount(point, UnmountFlags::DETACH);
        }
    }
}

fn names_in(root: &Inode, name: &str) -> Vec<String> {
    let dir = root.open_dir_at(OsStr::new(name)).unwrap();
    let names = dir.read_dir(0).unwrap();
    let mut names: Vec<String> = names.map(|entry| entry.unwrap().name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_a_disk_or_a_bind_mount_hides_is_reached() {
    let mut disks = Disks::new();
    let (tree, other) = (disks.dir.path().join("tree"), disks.dir.path().join("other"));
    for name in ["disk", "bound", "free"] {
        fs::create_dir_all(tree.join(name)).unwrap();
        fs::write(tree.join(name).join("own"), name).unwrap();
    }
    fs::create_dir(&other).unwrap();
    disks.disk(&tree.join("disk"));
    disks.bind(&other, &tree.join("bound"));
    for name in ["disk", "bound"] {
        fs::write(tree.join(name).join("foreign"), name).unwrap();
    }
    let root = open_root(&tree).unwrap();
    assert_eq!(hidden_in(&tree), Vec::<PathBuf>::new());
    assert_eq!(root.inode.stat().unwrap().identity(), {
        let file = fs::File::open(&tree).unwrap();
        Inode::from(file).stat().unwrap().identity()
    });
    for name in ["disk", "bound", "free"] {
        assert_eq!(names_in(&root.inode, name), ["own"], "{name}");
    }
    // Where a disk is mounted nothing is taken away or moved, by this way neither.
    for name in ["disk", "bound"] {
        let dir = root.inode.open_dir_at(OsStr::new(name)).unwrap();
        dir.unlink_at(OsStr::new("own"), AtFlags::empty()).unwrap();
        let removed = root.inode.unlink_at(OsStr::new(name), AtFlags::REMOVEDIR);
        assert_eq!(removed.unwrap_err().raw_os_error(), Some(Errno::BUSY.raw_os_error()));
        assert_eq!(fs::read_to_string(tree.join(name).join("foreign")).unwrap(), name);
    }
}

/// While a tree is looked through, a disk may come over a part of it, as at boot.
#[test]
fn a_disk_that_comes_later_hides_nothing() {
    let mut disks = Disks::new();
    let tree = disks.dir.path().join("tree");
    fs::create_dir_all(tree.join("later")).unwrap();
    let root = open_root(&tree).unwrap();
    disks.disk(&tree.join("later"));
    fs::write(tree.join("later/foreign"), "").unwrap();
    assert_eq!(names_in(&root.inode, "later"), Vec::<String>::new());
}

/// Before a disk is pulled out, the system is asked, which must not say yes too soon.
#[test]
fn the_disk_of_a_tree_cannot_be_unmounted_while_that_is_open() {
    let mut disks = Disks::new();
    let below = disks.dir.path().to_owned();
    disks.disk(&below);
    fs::create_dir(below.join("tree")).unwrap();
    let root = open_root(&below.join("tree")).unwrap();
    assert_eq!(unmount(&below, UnmountFlags::empty()), Err(Errno::BUSY));
    drop(root);
    unmount(&below, UnmountFlags::empty()).unwrap();
}

#[test]
fn what_is_mounted_later_does_not_come_into_the_bare_tree() {
    let mut disks = Disks::new();
    let below = disks.dir.path().to_owned();
    disks.disk(&below);
    mount_change(&below, MountPropagationFlags::SHARED).unwrap();
    let tree = below.join("tree");
    for name in ["disk", "later"] {
        fs::create_dir_all(tree.join(name)).unwrap();
        fs::write(tree.join(name).join("own"), "").unwrap();
    }
    disks.disk(&tree.join("disk"));
    let root = open_root(&tree).unwrap();
    disks.disk(&tree.join("later"));
    assert_eq!(fs::read_dir(tree.join("later")).unwrap().count(), 0);
    assert_eq!(names_in(&root.inode, "later"), ["own"]);
    assert_eq!(names_in(&root.inode, "disk"), ["own"]);
}
