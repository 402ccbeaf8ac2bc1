//! The effect of a restore on its target, whatever is there and whatever happens meanwhile.

use byteback_backup::{BackupError, Event, NotRestoredKind, RestoreOptions, RestoreReport, Silent, SnapshotSpec};
use byteback_extents::ByteRange;
use byteback_host::random::{SplitMix64, noise};
use byteback_host::tree::{self, SetTime};
use byteback_model::{NodeId, NodeKind};
use byteback_testkit::clients::impatient;
use byteback_testkit::listener::RecordingMonitor;
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_tree::{Picture, assert_restored};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const OVER: RestoreOptions = RestoreOptions {
    overwrite: true,
    delete: false,
    verify: false,
    salvage: false,
    flags: false,
    jobs: 4,
};

/// A tree with some of everything, saved.
fn saved_rig(seed: u64) -> Rig {
    let rig = Rig::new(seed);
    rig.change(&mut SplitMix64::new(seed), 120);
    {
        let mut state = rig.tree.lock();
        let dir = state.create(NodeId::ROOT, b"dir", NodeKind::Directory);
        let file = state.create(dir, b"file", NodeKind::File);
        state.write(file, 0, b"from the snapshot");
        let plain = state.create(NodeId::ROOT, b"plain", NodeKind::File);
        state.write(plain, 0, b"plain");
        let other = state.create(NodeId::ROOT, b"was a dir", NodeKind::File);
        state.write(other, 0, b"a file");
    }
    rig.backup().unwrap();
    rig
}

fn target(rig: &Rig) -> PathBuf {
    let target = rig.temp.path().join("target");
    fs::create_dir_all(&target).unwrap();
    target
}

fn latest(rig: &Rig, target: &Path, options: &RestoreOptions) -> Result<RestoreReport, BackupError> {
    rig.restore(SnapshotSpec::default(), target, options, &Silent)
}

/// All names below `dir`.
pub(crate) fn names_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.symlink_metadata().unwrap().is_dir() {
            found.extend(names_below(&path));
        }
        found.push(path);
    }
    found
}

pub(crate) fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().unwrap().as_bytes();
    name.starts_with(b".byteback-restore-")
}

/// Asserts that every file under its own name has all its bytes.
pub(crate) fn assert_names_promise_contents(picture: &Picture, dir: &Path) -> usize {
    let mut files = 0;
    let paths = picture
        .nodes
        .iter()
        .filter(|(_, node)| node.attributes.kind == NodeKind::File);
    for (id, node) in paths {
        for ((parent, name), _) in picture.names.iter().filter(|(_, child)| *child == id) {
            let mut path = dir.join(OsStr::from_bytes(&picture.path_of(*parent).unwrap()));
            path.push(OsStr::from_bytes(name));
            let Ok(found) = path.symlink_metadata() else { continue };
            assert_eq!(found.len(), node.content.len(), "{}", path.display());
            for range in node.content.data() {
                let mut wanted = vec![0; range.len_bytes() as usize];
                let mut there = wanted.clone();
                node.content.read(range.start(), &mut wanted);
                let file = fs::File::open(&path).unwrap();
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut there, range.start()).unwrap();
                assert!(there == wanted, "{}", path.display());
            }
            files += 1;
        }
    }
    files
}

#[test]
fn a_directory_that_is_not_empty_is_refused_and_left_alone() {
    let rig = saved_rig(40);
    let target = target(&rig);
    fs::write(target.join("mine"), "mine").unwrap();
    let error = latest(&rig, &target, &RestoreOptions::default()).unwrap_err();
    assert!(matches!(error, BackupError::TargetNotEmpty { .. }), "{error:?}");
    assert_eq!(names_below(&target), [target.join("mine")]);
    // A missing one is made, with the directories above it.
    let deep = rig.temp.path().join("a/b/c");
    latest(&rig, &deep, &RestoreOptions::default()).unwrap();
    assert_restored(&rig.tree.picture(), &deep);
    // A file is no directory.
    let error = latest(&rig, &target.join("mine"), &OVER).unwrap_err();
    assert!(matches!(error, BackupError::Local { .. }), "{error:?}");
}

#[test]
fn restore_overwrites_equal_names_and_follows_no_symlink() {
    let rig = saved_rig(41);
    let target = target(&rig);
    let outside = rig.temp.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "outside").unwrap();
    symlink(&outside, target.join("dir")).unwrap();
    symlink(outside.join("file"), target.join("plain")).unwrap();
    fs::create_dir_all(target.join("was a dir/with/more")).unwrap();
    fs::write(target.join("was a dir/with/file"), "x").unwrap();
    fs::write(target.join("mine"), "mine").unwrap();
    let leftover = target.join(format!(".byteback-restore-{:032x}", 77));
    fs::write(&leftover, "half").unwrap();
    let report = latest(&rig, &target, &OVER).unwrap();
    assert!(report.is_complete(), "{:?}", report.not_restored);
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"outside");
    assert_eq!(names_below(&outside), [outside.join("file")]);
    assert_eq!(fs::read(target.join("mine")).unwrap(), b"mine");
    assert!(!leftover.exists());
    fs::remove_file(target.join("mine")).unwrap();
    let root = &rig.tree.picture().nodes[&NodeId::ROOT];
    let dir = fs::File::open(&target).unwrap();
    tree::set_times(&dir, SetTime::Keep, SetTime::To(root.attributes.mtime_ns)).unwrap();
    assert_restored(&rig.tree.picture(), &target);
}

#[test]
fn restore_deletes_extra_files_and_nothing_behind_symlinks() {
    let rig = saved_rig(42);
    let target = target(&rig);
    let outside = rig.temp.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "outside").unwrap();
    fs::create_dir_all(target.join("dir/extra/deep")).unwrap();
    symlink(&outside, target.join("dir/extra/link")).unwrap();
    fs::write(target.join("extra"), "x").unwrap();
    fs::write(target.join(format!("dir/.byteback-restore-{:032x}", 1)), "half").unwrap();
    let options = RestoreOptions { delete: true, ..OVER };
    let report = latest(&rig, &target, &options).unwrap();
    assert!(report.is_complete(), "{:?}", report.not_restored);
    assert_eq!(report.removed, 2);
    assert_restored(&rig.tree.picture(), &target);
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"outside");
}

#[test]
fn restore_keeps_existing_content_unless_asked_to_compare() {
    let rig = saved_rig(43);
    let target = target(&rig);
    let first = latest(&rig, &target, &OVER).unwrap();
    let second = latest(&rig, &target, &OVER).unwrap();
    assert!(
        second.files_kept > 2 && second.files_kept + second.files == first.files,
        "{second:?}"
    );
    assert!(second.written_bytes < first.written_bytes);
    assert_restored(&rig.tree.picture(), &target);
    // Another byte, under the same length and time.
    let path = target.join("plain");
    let time = fs::metadata(&path).unwrap().mtime() * 1_000_000_000 + fs::metadata(&path).unwrap().mtime_nsec();
    fs::write(&path, "PLAIN").unwrap();
    tree::set_times(fs::File::open(&path).unwrap(), SetTime::Keep, SetTime::To(time.into())).unwrap();
    latest(&rig, &target, &OVER).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"PLAIN", "taken as restored");
    latest(&rig, &target, &RestoreOptions { verify: true, ..OVER }).unwrap();
    assert_restored(&rig.tree.picture(), &target);
    // Another time under the same bytes.
    tree::set_times(fs::File::open(&path).unwrap(), SetTime::Keep, SetTime::To(5)).unwrap();
    latest(&rig, &target, &OVER).unwrap();
    assert_restored(&rig.tree.picture(), &target);
}

#[test]
fn restore_returns_saved_names_of_interrupted_restores() {
    let rig = saved_rig(44);
    {
        let mut state = rig.tree.lock();
        for number in 0..20u128 {
            let name = format!(".byteback-restore-{:032x}", (0xabcd_u128 << 64) | number);
            let file = state.create(NodeId::ROOT, name.as_bytes(), NodeKind::File);
            state.write(file, 0, name.as_bytes());
        }
    }
    rig.backup().unwrap();
    let target = target(&rig);
    for _ in 0..2 {
        latest(&rig, &target, &OVER).unwrap();
        assert_restored(&rig.tree.picture(), &target);
    }
}

#[test]
fn restore_interrupted_leaves_no_half_file_and_goes_on() {
    let mut rig = Rig::with(45, impatient());
    rig.options.part_len_bytes = 1 << 20;
    {
        let mut state = rig.tree.lock();
        for number in 0..40u64 {
            let dir = match number % 10 {
                0 => state.create(NodeId::ROOT, &[b'd', number as u8 + b'0'], NodeKind::Directory),
                _ => NodeId::ROOT,
            };
            let file = state.create(dir, format!("f{number}").as_bytes(), NodeKind::File);
            state.write(file, 0, &noise(number, 40_000));
            state.link(file, NodeId::ROOT, format!("link{number}").as_bytes());
        }
    }
    rig.backup().unwrap();
    let picture = rig.tree.picture();
    let (mut between, mut whole) = (0, 0);
    for step in 0..8 {
        let target = rig.temp.path().join(format!("target{step}"));
        let stopped = if step % 2 == 0 {
            // By the user, at some byte.
            let read = AtomicU64::new(0);
            let reported = RecordingMonitor::new(|event, is_cancelled| {
                if let Event::BytesRead(bytes) = event
                    && read.fetch_add(*bytes, Ordering::SeqCst) > step * 180_000
                {
                    is_cancelled.store(true, Ordering::SeqCst);
                }
            });
            rig.restore(SnapshotSpec::default(), &target, &OVER, &reported)
        } else {
            // By a server that is gone.
            rig.cutter.cut_after(step as i64 * 180_000, true);
            rig.restore(SnapshotSpec::default(), &target, &OVER, &Silent)
        };
        rig.cutter.heal();
        stopped.unwrap_err();
        let left: Vec<_> = names_below(&target)
            .into_iter()
            .filter(|path| is_temporary(path))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        let files = assert_names_promise_contents(&picture, &target);
        between += usize::from(files > 0 && files < 80);
        let report = latest(&rig, &target, &OVER).unwrap();
        whole += report.files_kept;
        assert!(report.is_complete());
        assert_restored(&picture, &target);
    }
    assert!(
        between > 3 && whole > 10,
        "{between} were stopped between, {whole} were kept"
    );
}

#[test]
fn cancelling_stops_a_large_file_and_the_wait_for_a_server() {
    let mut rig = Rig::new(51);
    rig.options.part_len_bytes = 1 << 20;
    {
        let mut state = rig.tree.lock();
        let file = state.create(NodeId::ROOT, b"large", NodeKind::File);
        state.write(file, 0, &noise(1, 6_000_000));
    }
    rig.backup().unwrap();
    let target = target(&rig);
    for server_dies in [false, true] {
        let read = AtomicU64::new(0);
        let reported = RecordingMonitor::new(|event, is_cancelled| {
            if let Event::BytesRead(bytes) = event
                && read.fetch_add(*bytes, Ordering::SeqCst) + bytes > 1_000_000
            {
                if server_dies {
                    rig.cutter.cut_after(0, true);
                }
                is_cancelled.store(true, Ordering::SeqCst);
            }
        });
        let error = rig
            .restore(SnapshotSpec::default(), &target, &OVER, &reported)
            .unwrap_err();
        assert!(matches!(error, BackupError::Cancelled), "{error:?}");
        assert!(read.load(Ordering::SeqCst) < 2_000_000);
        assert!(names_below(&target).is_empty());
        rig.cutter.heal();
    }
    // A backup that waits for a server.
    let file = rig.tree.lock().create(NodeId::ROOT, b"more", NodeKind::File);
    rig.tree.lock().write(file, 0, &noise(2, 6_000_000));
    let reported = RecordingMonitor::new(|event, is_cancelled| match event {
        Event::BytesSent(_) => rig.cutter.cut_after(0, true),
        Event::Warning(_) => is_cancelled.store(true, Ordering::SeqCst),
        _ => {}
    });
    let error = rig.backup_with_monitor(&reported).unwrap_err();
    assert!(matches!(error, BackupError::Cancelled), "{error:?}");
    rig.cutter.heal();
    rig.backup().unwrap();
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn restore_resumes_a_large_file_where_its_connection_broke() {
    let mut rig = Rig::new(46);
    rig.options.part_len_bytes = 1 << 20;
    let len = 12_000_000;
    {
        let mut state = rig.tree.lock();
        let file = state.create(NodeId::ROOT, b"large", NodeKind::File);
        state.write(file, 0, &noise(1, len));
        state.punch(file, ByteRange::new(1_000_001, 1_300_000).unwrap());
        state.truncate(file, 6_000_000_000);
    }
    rig.backup().unwrap();
    let target = target(&rig);
    let (breaks, received) = (AtomicU64::new(0), AtomicU64::new(0));
    let rig = &rig;
    let reported = RecordingMonitor::new(|event, _| {
        if let Event::BytesRead(bytes) = event {
            let before = received.fetch_add(*bytes, Ordering::SeqCst);
            // Every two megabytes.
            if before / 2_000_000 != (before + bytes) / 2_000_000 {
                breaks.fetch_add(1, Ordering::SeqCst);
                rig.cutter.cut_after(1000, false);
            }
        }
    });
    let report = rig.restore(SnapshotSpec::default(), &target, &OVER, &reported).unwrap();
    assert!(report.is_complete(), "{:?}", report.not_restored);
    assert!(breaks.load(Ordering::SeqCst) >= 5);
    // Bytes on their way when it broke come twice, the file does not.
    assert!(report.wire.received < 2 * len as u64, "{:?}", report.wire);
    assert_restored(&rig.tree.picture(), &target);
}

#[test]
fn damage_at_the_server_costs_only_its_files_and_is_verified() {
    let mut rig = Rig::new(47);
    rig.options.part_len_bytes = 1 << 20;
    {
        let mut state = rig.tree.lock();
        for number in 0..30u64 {
            let file = state.create(NodeId::ROOT, format!("f{number:02}").as_bytes(), NodeKind::File);
            state.write(file, 0, &noise(number, 300_000));
        }
    }
    rig.backup().unwrap();
    rig.change_data(|data| {
        let segment = fs::read_dir(data.join("segments"))
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        let mut bytes = fs::read(&segment).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&segment, bytes).unwrap();
    });
    let target = target(&rig);
    let reported = RecordingMonitor::new(|_, _| {});
    let report = rig.restore(SnapshotSpec::default(), &target, &OVER, &reported).unwrap();
    assert_eq!((report.files, report.not_restored.len()), (29, 1));
    let missing = report.not_restored[0].clone();
    assert_eq!((missing.kind, missing.count), (NotRestoredKind::File, 1));
    assert_eq!(reported.failures.lock().unwrap().len(), 1);
    assert_eq!(assert_names_promise_contents(&rig.tree.picture(), &target), 29);
    let options = byteback_backup::VerifyOptions {
        here: None,
        deep: Some(&target),
    };
    let verified =
        byteback_backup::verify(&rig.client, &rig.folder, SnapshotSpec::default(), &options, &Silent).unwrap();
    assert_eq!(verified.damaged_files, 1);
    assert_eq!(verified.damaged[0].path, Some(missing.first_path.clone()));
    // The comparison of the others goes on past the damage.
    let kinds: Vec<_> = verified.differences.iter().map(|difference| &difference.kind).collect();
    assert_eq!(kinds, [&byteback_backup::DifferenceKind::Missing]);
    assert!(verified.compared_bytes > 8_000_000);
}

#[test]
fn a_full_disk_names_the_file_and_what_to_do() {
    let mut rig = Rig::new(48);
    rig.options.part_len_bytes = 1 << 20;
    {
        let mut state = rig.tree.lock();
        for number in 0..8u64 {
            let file = state.create(NodeId::ROOT, format!("f{number}").as_bytes(), NodeKind::File);
            state.write(file, 0, &noise(number, 300_000));
        }
    }
    rig.backup().unwrap();
    let target = target(&rig);
    let mount = |options: &str| {
        let mut command = std::process::Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&target);
        command.output().is_ok_and(|output| output.status.success())
    };
    assert!(mount("size=1m"), "this test needs root and a tmpfs");
    let full = latest(&rig, &target, &OVER);
    let left: Vec<_> = names_below(&target)
        .into_iter()
        .filter(|path| is_temporary(path))
        .collect();
    let files = assert_names_promise_contents(&rig.tree.picture(), &target);
    assert!(mount("remount,size=16m"));
    let again = latest(&rig, &target, &OVER);
    let picture = rig.tree.picture();
    let restored = std::panic::catch_unwind(|| assert_restored(&picture, &target));
    assert!(
        std::process::Command::new("umount")
            .arg(&target)
            .status()
            .unwrap()
            .success(),
        "unmount {} by hand",
        target.display()
    );
    let error = full.unwrap_err();
    assert!(
        matches!(&error, BackupError::Local { operation: "write", .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("target/f"), "{error}");
    assert!(error.next_step().unwrap().contains("Free space"));
    assert!(left.is_empty(), "{left:?}");
    assert!(files <= 3);
    assert_eq!(again.unwrap().files_kept, files as u64);
    restored.unwrap();
}

/// Runs `work` as a user without privilege: the thread and its children change their user, the
/// process does not.
fn unprivileged<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (uid, gid) = (rustix::fs::Uid::from_raw(1234), rustix::fs::Gid::from_raw(1234));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            work()
        });
        Some(thread.join().unwrap())
    })
}

#[test]
fn without_privilege_owners_are_told_and_all_else_comes_back() {
    let rig = Rig::new(49);
    let (own, foreign) = {
        let mut state = rig.tree.lock();
        let own = state.create(NodeId::ROOT, b"read only", NodeKind::File);
        state.write(own, 0, b"own");
        state.set_xattr(own, "user.note", b"kept");
        state.set_mode(own, 0o444);
        state.set_owner(own, 1234, 1234);
        let dir = state.create(NodeId::ROOT, b"dir", NodeKind::Directory);
        let inside = state.create(dir, b"inside", NodeKind::File);
        state.write(inside, 0, b"inside");
        state.set_owner(inside, 1234, 1234);
        state.set_xattr(dir, "user.note", b"dir");
        state.set_mode(dir, 0o555);
        state.set_owner(dir, 1234, 1234);
        let foreign = state.create(NodeId::ROOT, b"foreign", NodeKind::File);
        state.write(foreign, 0, b"foreign");
        state.set_mode(foreign, 0o4755);
        state.set_owner(foreign, 0, 0);
        state.set_owner(NodeId::ROOT, 1234, 1234);
        (own, foreign)
    };
    rig.backup().unwrap();
    let target = target(&rig);
    fs::set_permissions(rig.temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&target, Some(1234), Some(1234)).unwrap();
    let run = || unprivileged(|| latest(&rig, &target, &OVER).unwrap());
    let Some(report) = run() else { return };
    let reported: Vec<_> = report
        .not_restored
        .iter()
        .map(|reported| (reported.kind, reported.count))
        .collect();
    assert_eq!(
        reported,
        [(NotRestoredKind::Owner, 1), (NotRestoredKind::SetId, 1)],
        "{report:?}"
    );
    let mut expected = rig.tree.picture();
    let attributes = &mut expected.nodes.get_mut(&foreign).unwrap().attributes;
    (attributes.uid, attributes.gid, attributes.mode) = (1234, 1234, 0o755);
    assert_restored(&expected, &target);
    // Once more, over what is there: read-only files and directories get their attributes, too.
    for path in ["read only", "dir"] {
        let fd = rustix::fs::open(target.join(path), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        tree::remove_xattr(&fd, OsStr::new("user.note")).unwrap();
    }
    let report = run().unwrap();
    assert_eq!(report.files_kept, 3, "{report:?}");
    // Entries of a directory that may not be written stay as they are; all attributes are right
    // again.
    let found = tree::get_xattr(
        fs::File::open(target.join("read only")).unwrap(),
        OsStr::new("user.note"),
    );
    assert_eq!(found.unwrap().as_deref(), Some(&b"kept"[..]));
    assert_restored(&expected, &target);
    assert_eq!(expected.nodes[&own].attributes.mode, 0o444);
}

#[test]
fn without_privilege_closed_directories_take_what_changed() {
    const USER: u32 = 1234;
    let rig = Rig::new(52);
    let closed = {
        let mut state = rig.tree.lock();
        let outer = state.create(NodeId::ROOT, b"outer", NodeKind::Directory);
        let inner = state.create(outer, b"inner", NodeKind::Directory);
        for dir in [outer, inner] {
            for name in ["changes", "goes", "stays"] {
                let file = state.create(dir, name.as_bytes(), NodeKind::File);
                state.write(file, 0, b"from the first run");
                state.set_owner(file, USER, USER);
            }
            state.set_mode(dir, 0o555);
            state.set_owner(dir, USER, USER);
        }
        state.set_owner(NodeId::ROOT, USER, USER);
        [outer, inner]
    };
    rig.backup().unwrap();
    let target = target(&rig);
    fs::set_permissions(rig.temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&target, Some(USER), Some(USER)).unwrap();
    let options = RestoreOptions { delete: true, ..OVER };
    let run = || unprivileged(|| latest(&rig, &target, &options).unwrap());
    let Some(report) = run() else { return };
    assert!(report.is_complete(), "{:?}", report.not_restored);
    assert_restored(&rig.tree.picture(), &target);
    {
        let mut state = rig.tree.lock();
        for dir in closed {
            let changes = state.now.names[&(dir, b"changes".to_vec())];
            state.write(changes, 0, b"from the second run, and longer");
            let comes = state.create(dir, b"comes", NodeKind::File);
            state.write(comes, 0, b"new");
            state.set_owner(comes, USER, USER);
            state.unlink(dir, b"goes");
        }
    }
    rig.backup().unwrap();
    let report = run().unwrap();
    assert!(report.is_complete(), "{:?}", report.not_restored);
    assert_eq!(
        (report.files, report.files_kept, report.removed),
        (4, 2, 2),
        "{report:?}"
    );
    // With the modes of the directories.
    assert_restored(&rig.tree.picture(), &target);
}

#[test]
fn restore_takes_one_file_directory_or_link_by_its_path() {
    let rig = saved_rig(50);
    let target = rig.temp.path().join("t");
    let one = |path: &[u8], target: &Path| {
        let options = RestoreOptions::default();
        byteback_backup::restore(
            &rig.client,
            &rig.folder,
            SnapshotSpec::default(),
            path,
            target,
            &options,
            &Silent,
        )
    };
    let report = one(b"/dir/file", &target.join("1")).unwrap();
    assert_eq!(report.files, 1);
    assert_eq!(fs::read(target.join("1/file")).unwrap(), b"from the snapshot");
    one(b"dir/", &target.join("2")).unwrap();
    assert_eq!(fs::read(target.join("2/file")).unwrap(), b"from the snapshot");
    let missing = one(b"dir/none", &target.join("3")).unwrap_err();
    assert_eq!(missing.server_kind(), Some(byteback_client::ServerErrorKind::NotFound));
    assert!(!target.join("3").exists(), "nothing is made for what is not there");
    let none = rig
        .restore(SnapshotSpec::Id(999), &target.join("4"), &OVER, &Silent)
        .unwrap_err();
    assert!(matches!(none, BackupError::NoSuchSnapshot { .. }), "{none:?}");
    let names: Vec<Vec<u8>> = fs::read_dir(&target)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_vec())
        .collect();
    assert_eq!(names.len(), 2);
}
