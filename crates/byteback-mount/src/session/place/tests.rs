//! On real mounts of a file system that is not ours: the place is not told what it is that is
//! mounted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_move, unmount};

use super::super::mounting::mount_id;
use super::*;

/// A directory with mounts in it, taken away however the test ends.
struct Mounts(tempfile::TempDir);

impl Mounts {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // By itself, so that what is mounted in it goes nowhere else and can be moved.
        mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), None).unwrap();
        rustix::mount::mount_change(dir.path(), rustix::mount::MountPropagationFlags::PRIVATE).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn mount(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        mount("tmpfs", &path, "tmpfs", MountFlags::empty(), None).unwrap();
        path
    }

    fn place(&self, name: &str) -> (PathBuf, Place) {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let covered = openat(CWD, self.path(name), flags, Mode::empty()).unwrap();
        let point = self.mount(name);
        let mounted = Mounted {
            point: point.clone(),
            id: mount_id(&point).unwrap(),
        };
        (point, Place::new(mounted, covered).unwrap())
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

#[test]
fn a_mount_that_is_taken_away_lazily_is_gone_for_good() {
    let mounts = Mounts::new();
    let (point, place) = mounts.place("a b");
    assert!(place.is_attached().unwrap());
    let open = std::fs::File::create(point.join("open")).unwrap();
    mounts.mount("other");
    assert!(place.is_attached().unwrap());
    unmount(&point, UnmountFlags::DETACH).unwrap();
    assert!(!place.is_attached().unwrap());
    // Perhaps with the same number.
    drop(open);
    mounts.mount("a b");
    assert!(!place.is_attached().unwrap());
}

#[test]
fn mount_is_gone_if_moved_away_but_not_if_its_parent_is_renamed() {
    let mounts = Mounts::new();
    let (_, place) = mounts.place("parent/point");
    std::fs::rename(mounts.0.path().join("parent"), mounts.0.path().join("renamed")).unwrap();
    mounts.mount("other");
    assert!(place.is_attached().unwrap(), "after a rename above it");
    mounts.mount("renamed/point");
    assert!(place.is_attached().unwrap(), "below another mount");
    unmount(mounts.path("renamed/point"), UnmountFlags::empty()).unwrap();
    mount_move(mounts.path("renamed/point"), mounts.path("elsewhere")).unwrap();
    assert!(!place.is_attached().unwrap(), "after a move");
}

/// Each asks at once after it was done, from several threads: one takes the kernel's answer away
/// from the others.
#[test]
fn nobody_is_told_that_a_mount_is_there_after_it_was_taken_away() {
    for _ in 0..50 {
        let mounts = Mounts::new();
        let (point, place) = mounts.place("point");
        let taken = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    loop {
                        let was_taken = taken.load(Ordering::SeqCst) == 1;
                        let is_attached = place.is_attached().unwrap();
                        assert!(!(was_taken && is_attached), "told that it is there");
                        if was_taken {
                            break;
                        }
                    }
                });
            }
            unmount(&point, UnmountFlags::DETACH).unwrap();
            taken.store(1, Ordering::SeqCst);
        });
    }
}

#[test]
fn the_watch_sleeps_notices_and_ends() {
    let looks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&looks);
    let started = Instant::now();
    let watch = Watch::start(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        true
    })
    .unwrap();
    let mounts = Mounts::new();
    // Other tests mount too; what counts is that many changes are few looks.
    for number in 0..200 {
        mounts.mount(&number.to_string());
    }
    while looks.load(Ordering::SeqCst) < 2 {
        assert!(started.elapsed() < Duration::from_secs(30), "it does not notice");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(watch);
    let most = 2 + started.elapsed().as_millis() / PAUSE.as_millis();
    let after = looks.load(Ordering::SeqCst);
    assert!(u128::from(after) <= most, "{after} looks, at most {most} were due");
    // Dropping the watch waited for its end: it holds nothing of its closure any more.
    assert_eq!(Arc::strong_count(&looks), 1);
}

#[test]
fn the_watch_ends_when_there_is_nothing_more_to_look_for() {
    let held = Arc::new(());
    let theirs = Arc::clone(&held);
    let watch = Watch::start(move || {
        let _ = &theirs;
        false
    })
    .unwrap();
    let started = Instant::now();
    while Arc::strong_count(&held) > 1 {
        assert!(started.elapsed() < Duration::from_secs(30), "it goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(watch);
}
