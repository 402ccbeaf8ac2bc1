//! The contract of durable files on the machine's file system, and the lock of a directory.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{DirInUse, DirLock, DurableDir, OpenMode, RealDir, TreeDir, conformance};
use crate::tree::Inode;

#[test]
fn the_real_directory_keeps_the_contract() {
    let temp = tempfile::tempdir().unwrap();
    conformance::contract(&RealDir::open(temp.path()).unwrap());
}

#[test]
fn the_real_directory_agrees_with_the_model() {
    for seed in 0..4 {
        let temp = tempfile::tempdir().unwrap();
        conformance::random_operations(&RealDir::open(temp.path()).unwrap(), seed, 400);
    }
}

fn tree_dir(path: &std::path::Path) -> TreeDir {
    let fd = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    TreeDir::new(Inode::from(fd), path.display().to_string())
}

#[test]
fn tree_directory_keeps_the_contract_and_agrees_with_the_model() {
    let temp = tempfile::tempdir().unwrap();
    conformance::contract(&tree_dir(temp.path()));
    for seed in 0..4 {
        let temp = tempfile::tempdir().unwrap();
        conformance::random_operations(&tree_dir(temp.path()), seed, 400);
    }
}

#[test]
fn a_directory_is_created_with_its_parents_and_is_private() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("a/b/c");
    assert_eq!(RealDir::open(&path).unwrap_err().kind(), ErrorKind::NotFound);
    let dir = RealDir::create(&path).unwrap();
    RealDir::create(&path).unwrap();
    dir.open("f", OpenMode::CreateNew).unwrap();
    dir.subdir("d").unwrap();
    let mode = |p: &str| std::fs::metadata(path.join(p)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("."), mode("f"), mode("d")), (0o700, 0o600, 0o700));
    std::fs::write(temp.path().join("file"), "").unwrap();
    assert_eq!(
        RealDir::create(temp.path().join("file")).unwrap_err().kind(),
        ErrorKind::NotADirectory
    );
    assert_eq!(
        RealDir::create(temp.path().join("file/x")).unwrap_err().kind(),
        ErrorKind::NotADirectory
    );
}

#[test]
fn the_directory_stays_the_same_one_when_it_is_renamed() {
    let temp = tempfile::tempdir().unwrap();
    let dir = RealDir::create(temp.path().join("old")).unwrap();
    std::fs::rename(temp.path().join("old"), temp.path().join("new")).unwrap();
    dir.open("f", OpenMode::CreateNew).unwrap();
    assert!(temp.path().join("new/f").exists());
}

#[test]
fn real_dir_refuses_symlinks_and_leaves_out_foreign_names() {
    use std::os::unix::ffi::OsStrExt;
    let temp = tempfile::tempdir().unwrap();
    let dir = RealDir::open(temp.path()).unwrap();
    std::fs::write(temp.path().join("victim"), "x").unwrap();
    std::os::unix::fs::symlink("victim", temp.path().join("log")).unwrap();
    std::os::unix::fs::symlink(".", temp.path().join("dir")).unwrap();
    assert!(dir.open("log", OpenMode::CreateIfMissing).is_err());
    assert!(dir.subdir("dir").is_err());
    std::fs::write(temp.path().join(std::ffi::OsStr::from_bytes(b"\xff")), "").unwrap();
    assert_eq!(dir.list().unwrap(), ["dir", "log", "victim"]);
}

#[test]
fn allocated_space_is_written_and_not_a_hole() {
    use std::os::unix::fs::MetadataExt;
    let temp = tempfile::tempdir().unwrap();
    let dir = RealDir::open(temp.path()).unwrap();
    let file = dir.open("f", OpenMode::CreateNew).unwrap();
    file.allocate(3 << 20).unwrap();
    file.sync_data().unwrap();
    assert!(std::fs::metadata(temp.path().join("f")).unwrap().blocks() * 512 >= 3 << 20);
}

/// A program that is being started has all descriptors until it execs.
#[test]
fn lock_given_up_is_free_although_a_child_has_its_descriptor() {
    let temp = tempfile::tempdir().unwrap();
    let dir = RealDir::open(temp.path()).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                assert!(Command::new("true").status().unwrap().success());
            }
        });
        let taken = (0..20_000).map(|_| dir.lock().map(drop)).find(Result::is_err);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(taken.is_none(), "{taken:?}");
    });
}

#[test]
fn lock_excludes_this_process_and_others_and_names_its_holder() {
    let temp = tempfile::tempdir().unwrap();
    let (first, second) = (RealDir::open(temp.path()).unwrap(), RealDir::open(temp.path()).unwrap());
    let lock = first.lock().unwrap();
    let error = second.lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let in_use = error.get_ref().unwrap().downcast_ref::<DirInUse>().unwrap();
    assert_eq!(in_use.holder_pid, Some(std::process::id()));
    assert!(
        error.to_string().contains(&format!("process {}", std::process::id())),
        "{error}"
    );
    let other_process = |expect| {
        let status = Command::new("flock")
            .arg("-n")
            .arg(temp.path().join("lock"))
            .arg("true")
            .status();
        // The tool belongs to util-linux, which is essential on Debian.
        assert_eq!(status.unwrap().success(), expect);
    };
    other_process(false);
    drop(lock);
    other_process(true);
    std::fs::write(temp.path().join("lock"), "99999999999 and more text").unwrap();
    let lock = second.lock().unwrap();
    assert_eq!(
        std::fs::read_to_string(temp.path().join("lock")).unwrap(),
        format!("{}\n", std::process::id())
    );
    std::fs::write(temp.path().join("lock"), "garbage").unwrap();
    assert!(first.lock().unwrap_err().to_string().contains("another process"));
    drop(lock);
}

#[test]
fn a_killed_holder_leaves_no_lock_behind() {
    let temp = tempfile::tempdir().unwrap();
    let dir = RealDir::open(temp.path()).unwrap();
    drop(dir.lock().unwrap());
    // -F: the tool becomes the program, so that one process alone holds the lock.
    let mut holder = Command::new("flock")
        .arg("-F")
        .arg(temp.path().join("lock"))
        .args(["sleep", "60"])
        .spawn()
        .unwrap();
    let held = (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        dir.lock().is_err()
    });
    assert!(held, "the other process never took the lock");
    holder.kill().unwrap();
    holder.wait().unwrap();
    dir.lock().unwrap();
}

#[test]
fn a_holder_that_is_ending_is_waited_for() {
    let temp = tempfile::tempdir().unwrap();
    let dir = RealDir::open(temp.path()).unwrap();
    let held = dir.lock().unwrap();
    // Killed and not yet reaped: the state in which the first thread of a process waits for its
    // others.
    let mut dead = Command::new("true").spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&dead);
    rustix::process::waitid(
        rustix::process::WaitId::Pid(pid),
        rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
    )
    .unwrap();
    std::fs::write(temp.path().join("lock"), format!("{}\n", dead.id())).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| dir.lock().map(drop));
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!waiting.is_finished(), "it did not wait");
        drop(held);
        waiting.join().unwrap().unwrap();
    });
    dead.wait().unwrap();
}

#[test]
fn an_owner_that_announced_its_end_is_waited_for() {
    let temp = tempfile::tempdir().unwrap();
    let dir = RealDir::open(temp.path()).unwrap();
    let held = dir.lock().unwrap();
    assert_eq!(DirLock::ending_owner(temp.path()), None);
    held.announce_end().unwrap();
    assert_eq!(DirLock::ending_owner(temp.path()), Some(std::process::id()));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| dir.lock());
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!waiting.is_finished(), "it did not wait");
        drop(held);
        // The next owner is there to stay.
        let next = waiting.join().unwrap().unwrap();
        assert_eq!(DirLock::ending_owner(temp.path()), None);
        dir.lock().unwrap_err();
        next.announce_end().unwrap();
    });
    // The announcement outlives the owner, and means nothing then.
    assert_eq!(DirLock::ending_owner(temp.path()), None);
    dir.lock().unwrap();
}
