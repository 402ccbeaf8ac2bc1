//! Start and stop, and what a start finds.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use byteback_control::TreeService;
use byteback_daemon::{Daemon, DaemonOptions, StateFolder, TrackedTree};
use byteback_mount::{CacheMode, MountOptions, Unmount, mount_table};
use byteback_oplog::LedgerEvent;

use crate::fixture::{Fixture, until};
use crate::operations::look;
use crate::saved::{OpenBackup, Saved};

fn content(saved: &Saved, path: &str) -> Vec<u8> {
    saved.tree()[std::path::Path::new(path)].1.clone()
}

#[test]
fn a_folder_that_was_never_mounted_is_saved_by_the_same_way() {
    let fixture = Fixture::new(CacheMode::Exact);
    let tree = fixture.tree();
    fs::create_dir(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/one"), vec![1; 5000]).unwrap();
    fs::hard_link(tree.join("sub/one"), tree.join("two")).unwrap();
    fs::write(tree.join("three"), b"").unwrap();
    // Times of this moment prove nothing; such files would be saved twice.
    std::thread::sleep(std::time::Duration::from_millis(60));
    let mut saved = Saved::default();
    let service = fixture.unmounted();
    OpenBackup::cut(&service, "backup").save(&service, &mut saved);
    drop(service);
    assert_eq!(content(&saved, "two"), vec![1; 5000]);
    assert_eq!(saved.whole_files, 2);

    fs::File::options()
        .write(true)
        .open(tree.join("two"))
        .unwrap()
        .write_all_at(&[9; 10], 100)
        .unwrap();
    fs::rename(tree.join("three"), tree.join("sub/four")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(60));
    let service = fixture.unmounted();
    OpenBackup::cut(&service, "backup").save(&service, &mut saved);
    drop(service);
    assert_eq!(content(&saved, "sub/one")[100..110], [9; 10]);
    let names: Vec<String> = saved.tree().keys().map(|path| path.display().to_string()).collect();
    assert_eq!(names, ["", "sub", "sub/four", "sub/one", "two"]);

    let service = fixture.unmounted();
    OpenBackup::cut(&service, "backup").save(&service, &mut saved);
    assert_eq!(
        (saved.whole_files, saved.requested_bytes),
        (0, 0),
        "nothing was changed, so nothing is read"
    );
}

#[test]
fn backup_reads_only_what_changed_in_place() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fs::write(fixture.tree().join("image"), vec![7; 8 << 20]).unwrap();
    fixture.mount();
    let mut saved = Saved::default();
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    let file = fs::File::options()
        .write(true)
        .open(fixture.tree().join("image"))
        .unwrap();
    for piece in 0..64_u64 {
        file.write_all_at(&[3; 1000], piece * 100_000 + 7).unwrap();
    }
    drop(file);
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    assert_eq!(saved.requested_bytes, 64_000);
    assert_eq!(
        content(&saved, "image"),
        fs::read(fixture.tree().join("image")).unwrap()
    );
    fs::rename(fixture.tree().join("image"), fixture.tree().join("renamed")).unwrap();
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    assert_eq!(saved.requested_bytes, 0, "a rename costs nothing");
}

/// Of pages that the kernel passes on, only the bytes that are new count.
#[test]
fn collected_writes_and_stores_are_narrowed_to_what_they_change() {
    for mode in [CacheMode::Exact, CacheMode::Fast] {
        let mut fixture = Fixture::new(mode);
        fs::write(fixture.tree().join("image"), vec![7; 8 << 20]).unwrap();
        fixture.mount();
        let mut saved = Saved::default();
        OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(fixture.tree().join("image"))
            .unwrap();
        for piece in 0..64_u64 {
            file.write_all_at(&[3; 10], piece * 100_000 + 7).unwrap();
        }
        // SAFETY: a fresh mapping of a file that nobody shortens.
        let map = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                8 << 20,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &file,
                0,
            )
        }
        .unwrap()
        .cast::<u8>();
        for piece in 0..64 {
            // SAFETY: within the mapping.
            unsafe { map.add(piece * 100_000 + 50_000).write_volatile(4) };
        }
        OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
        assert_eq!(saved.requested_bytes, 64 * 11, "{mode:?}");
        let now = fs::read(fixture.tree().join("image")).unwrap();
        assert_eq!((now[7], now[50_000]), (3, 4));
        assert!(content(&saved, "image") == now, "{mode:?}");
        // SAFETY: mapped above.
        unsafe { rustix::mm::munmap(map.cast(), 8 << 20) }.unwrap();
    }
}

#[test]
fn changes_while_not_mounted_are_found_and_noted() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fs::write(fixture.tree().join("kept"), vec![1; 100]).unwrap();
    fs::write(fixture.tree().join("changed"), vec![1; 100]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(60));
    fixture.mount();
    let mut saved = Saved::default();
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    fixture.umount();
    // Same size, and the time of change put back: only the change time of the inode tells.
    let before = fs::metadata(fixture.tree().join("changed")).unwrap();
    fs::write(fixture.tree().join("changed"), vec![2; 100]).unwrap();
    let file = fs::File::options()
        .write(true)
        .open(fixture.tree().join("changed"))
        .unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    assert_eq!(
        fs::metadata(fixture.tree().join("changed")).unwrap().mtime_nsec(),
        before.mtime_nsec()
    );
    drop(file);
    fixture.mount();
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    assert_eq!(saved.whole_files, 1);
    assert_eq!(content(&saved, "changed"), vec![2; 100]);
    let ledger = fixture.client().status().unwrap().ledger;
    let found = ledger
        .iter()
        .any(|entry| matches!(entry.event, LedgerEvent::UntrackedChanges { files: 1, .. }));
    assert!(found, "{ledger:?}");
    assert!(
        !ledger
            .iter()
            .any(|entry| matches!(entry.event, LedgerEvent::Interrupted { .. })),
        "{ledger:?}"
    );
}

#[test]
fn an_abandoned_cut_is_covered_by_the_next() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    let mut saved = Saved::default();
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    fs::write(fixture.tree().join("first"), vec![1; 1000]).unwrap();
    let client = fixture.client();
    OpenBackup::cut(&client, "backup").abandon(&client);
    fs::write(fixture.tree().join("second"), vec![2; 1000]).unwrap();
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    let seen: Vec<_> = look(&fixture.tree()).into_keys().collect();
    assert_eq!(saved.tree().into_keys().collect::<Vec<_>>(), seen);
    assert_eq!(content(&saved, "first"), vec![1; 1000]);
}

#[test]
fn the_old_bytes_of_what_was_not_read_yet_are_kept() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    let at = |name: &str| fixture.tree().join(name);
    fs::write(at("overwritten"), vec![1; 300_000]).unwrap();
    fs::write(at("cut off"), vec![2; 300_000]).unwrap();
    fs::write(at("removed, large"), vec![3; 300_000]).unwrap();
    fs::write(at("removed, small"), vec![4; 3000]).unwrap();
    fs::write(at("replaced"), vec![5; 3000]).unwrap();
    let seen = look(&fixture.tree());
    let client = fixture.client();
    let begun = OpenBackup::cut(&client, "backup");
    fs::File::options()
        .write(true)
        .open(at("overwritten"))
        .unwrap()
        .write_all_at(&[9; 100_000], 50_000)
        .unwrap();
    fs::File::options()
        .write(true)
        .open(at("cut off"))
        .unwrap()
        .set_len(10)
        .unwrap();
    fs::remove_file(at("removed, large")).unwrap();
    fs::remove_file(at("removed, small")).unwrap();
    fs::write(at("new"), b"new").unwrap();
    fs::rename(at("new"), at("replaced")).unwrap();
    let mut saved = Saved::default();
    begun.save(&client, &mut saved);
    let tree = saved.tree();
    assert_eq!(tree.keys().collect::<Vec<_>>(), seen.keys().collect::<Vec<_>>());
    for (path, seen) in seen {
        assert!(tree[&path].1 == seen.content, "{path:?}");
    }
}

#[test]
fn backup_has_changes_between_the_scan_and_the_mount() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fs::write(fixture.tree().join("replaced"), vec![1; 1000]).unwrap();
    fs::write(fixture.tree().join("written"), vec![1; 1000]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(60));
    let mut saved = Saved::default();
    let service = fixture.unmounted();
    OpenBackup::cut(&service, "backup").save(&service, &mut saved);
    drop(service);
    let tree = fixture.tree();
    fixture.mount_after(|| {
        fs::write(tree.join("new"), vec![2; 1000]).unwrap();
        fs::write(tree.join("temporary"), vec![2; 1000]).unwrap();
        fs::rename(tree.join("temporary"), tree.join("replaced")).unwrap();
        fs::write(tree.join("written"), vec![2; 1000]).unwrap();
    });
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    let saved = saved.tree();
    let names: Vec<String> = saved.keys().map(|path| path.display().to_string()).collect();
    assert_eq!(names, ["", "new", "replaced", "written"]);
    for name in ["new", "replaced", "written"] {
        assert!(saved[Path::new(name)].1 == vec![2; 1000], "{name}");
    }
}

/// Two folders, one within the other, start at once, as services do at boot. The files of the inner
/// one change past the outer one's gate: the outer one must not claim to know them.
#[test]
fn folder_does_not_start_over_one_mounted_inside_meanwhile() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let (outer, inner) = (dir.path().join("outer"), dir.path().join("outer/inner"));
    fs::create_dir_all(&inner).unwrap();
    fs::write(inner.join("file"), "before").unwrap();
    let open = |directory: &Path, state: &str| {
        let folder = StateFolder::of(directory, &dir.path().join(state)).unwrap();
        TrackedTree::open(folder, &mut |_| {}).unwrap()
    };
    let start = |tree, directory: &Path| Daemon::start(tree, &DaemonOptions::new(MountOptions::new(directory)));
    let is_mounted = |directory: &Path| mount_table::at(directory).is_some();
    // A program that another test starts holds all of our files open until it is executed.
    let end = |daemon: Daemon| {
        until("the mount is idle", || daemon.mount().unmount(Unmount::IfIdle).is_ok());
        daemon.run().unwrap();
    };
    let opened = open(&outer, "of outer");
    let within = start(open(&inner, "of inner"), &inner).unwrap();
    let refused = start(opened, &outer).err().expect("the outer folder started");
    let reported = std::error::Error::source(&refused)
        .map_or_else(|| refused.to_string(), |source| format!("{refused}: {source}"));
    let wanted = format!("{}, a folder of its own", inner.display());
    assert!(reported.contains(&wanted), "{reported}");
    assert!(!is_mounted(&outer));
    assert_eq!(fs::read_to_string(inner.join("file")).unwrap(), "before");
    // Once more: it is seen before anything is opened, and left out.
    let around = start(open(&outer, "of outer"), &outer).unwrap();
    assert!(is_mounted(&outer));
    for daemon in [around, within] {
        end(daemon);
    }
    let daemon = start(open(&outer, "of outer"), &outer).unwrap();
    fs::write(inner.join("file"), "after").unwrap();
    end(daemon);
}
