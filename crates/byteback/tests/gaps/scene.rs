//! A folder with a server that has a backup of it, and checks of the next backup.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use byteback_host::random::noise;
use byteback_testkit::local_tree::{differences, seen};
use byteback_testkit::waiting::settle;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use serde_json::Value;

use crate::rig::{Mode, Rig};

/// A server, and a folder bound to it.
pub(crate) fn bound(mut rig: Rig) -> Rig {
    let url = rig.start_server("127.0.0.1:0");
    rig.init(&rig.tree(), &url, "folder");
    rig
}

/// A bound folder with files and directories, on the disk of the rig.
pub(crate) fn scene() -> Rig {
    let rig = bound(Rig::new(Mode::Exact));
    fill(&rig.tree());
    settle();
    rig
}

/// Two directories alike in names, sizes and times, with other contents, and a few other entries.
pub(crate) fn fill(tree: &Path) {
    for (number, directory) in ["one", "two"].into_iter().enumerate() {
        fs::create_dir(tree.join(directory)).unwrap();
        for file in 0..4_u64 {
            let path = tree.join(directory).join(format!("file{file}"));
            fs::write(&path, noise(number as u64 * 10 + file, 20_000)).unwrap();
            set_time(&path, 1_600_000_000 + i64::try_from(file).unwrap(), 7);
        }
        set_time(&tree.join(directory), 1_600_000_000, 7);
    }
    fs::write(tree.join("large"), noise(99, 300_000)).unwrap();
    fs::hard_link(tree.join("large"), tree.join("linked")).unwrap();
    std::os::unix::fs::symlink("large", tree.join("pointer")).unwrap();
}

pub(crate) fn write_at(path: &Path, at: u64, bytes: &[u8]) {
    fs::File::options()
        .write(true)
        .open(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .write_all_at(bytes, at)
        .unwrap();
}

/// Sets the modification time.
pub(crate) fn set_time(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Changes bytes of a file in place, and puts its time back.
pub(crate) fn change_unseen(path: &Path, at: u64, bytes: &[u8]) {
    let before = fs::metadata(path).unwrap();
    write_at(path, at, bytes);
    set_time(path, before.mtime(), before.mtime_nsec());
    assert_eq!(fs::metadata(path).unwrap().size(), before.size());
}

/// Backs up the tree and checks that it restores to the tree. Returns the backup's summary.
#[track_caller]
pub(crate) fn save(rig: &Rig, when: &str) -> Value {
    let ran = rig.backup(None);
    let said = format!("{}{}", ran.stderr, ran.stdout);
    let summary = ran.succeeds(when);
    let restored = rig.restore(summary["snapshot_id"].as_u64().unwrap(), None);
    let found = differences(&seen(&rig.tree()), &seen(restored.path()), true);
    assert!(found.is_empty(), "{when}:\n{}\n{said}", found.join("\n"));
    summary
}

/// As [`save`]; in addition the next backup must find nothing to do.
#[track_caller]
pub(crate) fn save_for_good(rig: &Rig, when: &str) -> Value {
    let summary = save(rig, when);
    if !rig.has_daemon() {
        settle();
        save(rig, when);
    }
    rig.assert_nothing_changed(&format!("{when}: the backup after it"));
    summary
}
