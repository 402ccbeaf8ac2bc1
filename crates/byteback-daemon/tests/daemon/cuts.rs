//! Named cuts, read through the mount as any program does.
//!
//! The harness: random operations of every kind while cuts are open. Each cut is looked at as a
//! whole when it is opened and again at random moments later: it must show the tree as it was
//! before, to the last attribute, each time.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use byteback_control::{ErrorKind, TreeService};
use byteback_model::ByteString;
use byteback_mount::CacheMode;
use byteback_mount::cuts::CUTS_MAX;
use rustix::fs::{CWD, Mode, RenameFlags};
use rustix::io::Errno;

use crate::fixture::Fixture;
use crate::operations::{Random, Seen, Side, generate, look, seed};

fn cut_path(fixture: &Fixture, name: &str) -> PathBuf {
    fixture.tree().join(".byteback/cut").join(name)
}

/// Compares what a cut shows with the tree as it was.
fn assert_same(
    mode: CacheMode,
    was: &BTreeMap<PathBuf, Seen>,
    cut: &BTreeMap<PathBuf, Seen>,
    context: &dyn Fn() -> String,
) {
    assert_eq!(
        was.keys().collect::<Vec<_>>(),
        cut.keys().collect::<Vec<_>>(),
        "names\n{}",
        context()
    );
    let (mut there, mut back) = (BTreeMap::new(), BTreeMap::new());
    for (path, was) in was {
        let seen = &cut[path];
        let plain = |seen: &Seen| {
            (
                seen.mode,
                seen.owner,
                seen.nlink,
                seen.size,
                // With a write-back cache the kernel keeps the time to itself until it writes the
                // inode.
                (mode == CacheMode::Exact).then_some(seen.mtime_ns),
                seen.xattrs.clone(),
            )
        };
        if plain(was) != plain(seen) || was.content != seen.content {
            let first = was
                .content
                .iter()
                .zip(&seen.content)
                .position(|(one, other)| one != other);
            panic!(
                "{path:?}: content differs first at {first:?}\nwas {:?}\nis  {:?}\n{}",
                plain(was),
                plain(seen),
                context()
            );
        }
        assert_eq!(*there.entry(was.ino).or_insert(seen.ino), seen.ino, "{path:?}: links");
        assert_eq!(*back.entry(seen.ino).or_insert(was.ino), was.ino, "{path:?}: links");
        assert_ne!(
            was.ino, seen.ino,
            "{path:?}: it must not be taken for the file that lives"
        );
    }
}

/// Lets the kernel forget what it has read of the files below, so that it asks again.
fn forget_content(root: &Path) {
    for (path, seen) in look(root) {
        if seen.mode & 0o170_000 == 0o100_000 {
            let file = fs::File::open(root.join(path)).unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
    }
}

struct OpenedCut {
    name: String,
    was: BTreeMap<PathBuf, Seen>,
    first_inodes: Vec<u64>,
}

fn inodes(seen: &BTreeMap<PathBuf, Seen>) -> Vec<u64> {
    seen.values().map(|seen| seen.ino).collect()
}

fn run(mode: CacheMode, seed: u64, duration: Duration) {
    // SAFETY: CLONE_FS separates only root, working directory and umask.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }.unwrap();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let mut random = Random::new(seed);
    let mut fixture = Fixture::new(mode);
    fixture.mount();
    let mut side = Side::new(fixture.tree());
    let mut cuts: Vec<OpenedCut> = Vec::new();
    let mut history: Vec<String> = Vec::new();
    let (mut operations, mut looks, mut opened) = (0_u64, 0_u64, 0_u64);
    let started = Instant::now();
    while started.elapsed() < duration {
        match random.below(50) {
            0 if cuts.len() < 4 => {
                // Names come back, so that nothing stale may show.
                let name = (0..4)
                    .map(|number| format!("cut{number}"))
                    .find(|name| cuts.iter().all(|cut| cut.name != *name))
                    .unwrap();
                let was = look(&fixture.tree());
                fs::create_dir(cut_path(&fixture, &name)).unwrap();
                history.push(format!("cut {name}"));
                opened += 1;
                cuts.push(OpenedCut {
                    name,
                    was,
                    first_inodes: Vec::new(),
                });
            }
            1 if !cuts.is_empty() => {
                let cut = cuts.swap_remove(usize::try_from(random.below(cuts.len() as u64)).unwrap());
                fs::remove_dir(cut_path(&fixture, &cut.name)).unwrap();
                history.push(format!("end {}", cut.name));
            }
            2..=4 if !cuts.is_empty() => {
                let at = usize::try_from(random.below(cuts.len() as u64)).unwrap();
                let seen = look(&cut_path(&fixture, &cuts[at].name));
                let recent = history[history.len().saturating_sub(60)..].join("\n");
                let name = cuts[at].name.clone();
                let context = || format!("seed {seed}, {mode:?}, {name} after {operations}; the last:\n{recent}");
                assert_same(mode, &cuts[at].was, &seen, &context);
                if cuts[at].first_inodes.is_empty() {
                    cuts[at].first_inodes = inodes(&seen);
                }
                assert_eq!(cuts[at].first_inodes, inodes(&seen), "inode numbers\n{}", context());
                if random.below(2) == 0 {
                    forget_content(&cut_path(&fixture, &name));
                }
                looks += 1;
            }
            _ => {
                let op = generate(&mut random);
                history.push(format!("{op:?}"));
                let _ = side.apply(&op);
                operations += 1;
            }
        }
    }
    println!("{mode:?}: {operations} operations, {opened} cuts, {looks} looks");
    assert!(looks > 5, "a run without looks proves nothing");
    side.close_all();
}

fn in_a_thread(mode: CacheMode) {
    let seed = seed();
    std::thread::spawn(move || run(mode, seed, Duration::from_secs(8)))
        .join()
        .unwrap();
}

#[test]
fn a_cut_stays_what_it_was_under_random_operations_exact() {
    in_a_thread(CacheMode::Exact);
}

#[test]
fn a_cut_stays_what_it_was_under_random_operations_fast() {
    in_a_thread(CacheMode::Fast);
}

#[track_caller]
fn assert_errno<T>(done: io::Result<T>, errno: i32) {
    let error = done.err().expect("it was allowed");
    assert_eq!(error.raw_os_error(), Some(errno), "{error}");
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn the_folder_is_hidden_and_cuts_are_made_and_ended_in_it() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    // The tree's own entry of this name is shadowed, not lost.
    fs::create_dir_all(fixture.tree().join(".byteback/own")).unwrap();
    fixture.mount();
    let tree = fixture.tree();
    fs::write(tree.join("file"), "old").unwrap();
    assert_eq!(names(&tree), ["file"]);
    assert_eq!(names(&tree.join(".byteback")), ["cut"]);
    assert_eq!(names(&tree.join(".byteback/cut")), [""; 0]);
    assert_errno(fs::symlink_metadata(cut_path(&fixture, "one")), libc::ENOENT);

    fs::create_dir(cut_path(&fixture, "one")).unwrap();
    assert_eq!(names(&tree.join(".byteback/cut")), ["one"]);
    assert_errno(fs::create_dir(cut_path(&fixture, "one")), libc::EEXIST);
    fs::write(tree.join("file"), "new").unwrap();
    fs::write(tree.join("later"), "new").unwrap();
    assert_eq!(names(&cut_path(&fixture, "one")), [".byteback", "file"]);
    assert_eq!(names(&cut_path(&fixture, "one/.byteback")), ["own"]);
    assert_eq!(fs::read(cut_path(&fixture, "one/file")).unwrap(), b"old");

    let mut open = fs::File::open(cut_path(&fixture, "one/file")).unwrap();
    let first = fs::metadata(cut_path(&fixture, "one/file")).unwrap().ino();
    fs::remove_dir(cut_path(&fixture, "one")).unwrap();
    assert_errno(fs::remove_dir(cut_path(&fixture, "one")), libc::ENOENT);
    assert_errno(fs::symlink_metadata(cut_path(&fixture, "one/file")), libc::ENOENT);
    fs::write(tree.join("file"), "newer").unwrap();
    fs::create_dir(cut_path(&fixture, "one")).unwrap();
    assert_eq!(fs::read(cut_path(&fixture, "one/file")).unwrap(), b"newer");
    assert_ne!(fs::metadata(cut_path(&fixture, "one/file")).unwrap().ino(), first);
    // The files that were open in the first one still show that.
    rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut old = String::new();
    open.read_to_string(&mut old).unwrap();
    assert_eq!(old, "old");
    let list = fixture.client().list_cuts().unwrap();
    assert_eq!(list.iter().map(|cut| cut.is_ended).collect::<Vec<_>>(), [false, true]);
    drop(open);
    drop(list);
    fixture.umount();
    assert_eq!(names(&tree), [".byteback", "file", "later"]);
}

#[test]
fn cut_directories_can_be_neither_changed_nor_moved() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    let tree = fixture.tree();
    fs::write(tree.join("file"), "old").unwrap();
    fs::create_dir(tree.join("dir")).unwrap();
    fs::create_dir(cut_path(&fixture, "one")).unwrap();
    let cut = cut_path(&fixture, "one");
    let hidden = tree.join(".byteback");

    for path in [cut.join("file"), cut.join("dir")] {
        assert_errno(
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)),
            libc::EROFS,
        );
        assert_errno(std::os::unix::fs::chown(&path, Some(1), None), libc::EROFS);
        let set = rustix::fs::setxattr(&path, "user.x", b"y", rustix::fs::XattrFlags::empty());
        assert_eq!(set, Err(Errno::ROFS));
    }
    assert_errno(fs::OpenOptions::new().write(true).open(cut.join("file")), libc::EROFS);
    assert_errno(
        fs::OpenOptions::new().append(true).read(true).open(cut.join("file")),
        libc::EROFS,
    );
    for dir in [&cut, &hidden] {
        assert_errno(fs::File::create(dir.join("new")), libc::EROFS);
        assert_errno(fs::create_dir(dir.join("new")), libc::EROFS);
        assert_errno(symlink("x", dir.join("new")), libc::EROFS);
        assert_errno(fs::rename(tree.join("file"), dir.join("new")), libc::EXDEV);
        assert_errno(fs::hard_link(tree.join("file"), dir.join("new")), libc::EXDEV);
    }
    assert_errno(fs::File::create(hidden.join("cut/new")), libc::EROFS);
    assert_errno(fs::remove_file(cut.join("file")), libc::EROFS);
    assert_errno(fs::remove_dir(cut.join("dir")), libc::EROFS);
    assert_errno(fs::remove_dir(hidden.join("cut")), libc::EROFS);
    assert_errno(fs::remove_dir(&hidden), libc::EROFS);
    assert_errno(fs::rename(cut.join("file"), tree.join("new")), libc::EXDEV);
    assert_errno(fs::hard_link(cut.join("file"), tree.join("new")), libc::EXDEV);
    assert_errno(fs::rename(cut.join("file"), cut.join("new")), libc::EROFS);
    assert_errno(fs::rename(&hidden, tree.join("new")), libc::EXDEV);
    assert_errno(fs::rename(&cut, hidden.join("cut/two")), libc::EROFS);
    let exchanged = rustix::fs::renameat_with(CWD, &hidden, CWD, tree.join("dir"), RenameFlags::EXCHANGE);
    assert_eq!(exchanged, Err(Errno::XDEV));
    assert_errno(fs::create_dir(&hidden), libc::EEXIST);
    assert_eq!(names(&tree), ["dir", "file"]);
    // It can be copied, also by the call that copies inside one file system.
    fs::copy(cut.join("file"), tree.join("copy")).unwrap();
    assert_eq!(fs::read(tree.join("copy")).unwrap(), b"old");
}

#[test]
fn holes_links_and_special_files_are_those_of_the_cut() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    let tree = fixture.tree();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.set_len(4 << 20).unwrap();
    sparse.write_all_at(&[1; 4096], 1 << 20).unwrap();
    fs::write(tree.join("linked"), "x").unwrap();
    fs::write(tree.join("moved"), "x").unwrap();
    fs::hard_link(tree.join("linked"), tree.join("second")).unwrap();
    symlink("target\u{fc}", tree.join("symlink")).unwrap();
    rustix::fs::mknodat(CWD, tree.join("fifo"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    let before = look(&tree);
    let change_times = |root: &Path| {
        let times = before.keys().map(|path| {
            let metadata = fs::symlink_metadata(root.join(path)).unwrap();
            (path.clone(), metadata.ctime(), metadata.ctime_nsec())
        });
        times.collect::<Vec<_>>()
    };
    let changed_at = change_times(&tree);
    fs::create_dir(cut_path(&fixture, "one")).unwrap();
    let cut = cut_path(&fixture, "one");

    fs::rename(tree.join("moved"), tree.join("away")).unwrap();
    // From memory that is there already: the kernel splits a write where it has to fetch some.
    sparse.write_all_at(&vec![2; 1 << 20], 0).unwrap();
    rustix::fs::fallocate(
        &sparse,
        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
        1 << 20,
        4096,
    )
    .unwrap();
    fs::hard_link(tree.join("linked"), tree.join("third")).unwrap();
    fs::remove_file(tree.join("second")).unwrap();
    fs::remove_file(tree.join("symlink")).unwrap();
    fs::remove_file(tree.join("fifo")).unwrap();

    assert_same(CacheMode::Exact, &before, &look(&cut), &String::new);
    assert_eq!(change_times(&cut), changed_at);
    let seen = fs::File::open(cut.join("sparse")).unwrap();
    let ranges: Vec<(u64, u64)> = byteback_host::tree::data_ranges(&seen, 0, 4 << 20)
        .map(|range| range.map(|range| (range.start, range.end)).unwrap())
        .collect();
    assert_eq!(ranges, [(1 << 20, (1 << 20) + 4096)]);
    assert_eq!(fs::metadata(cut.join("linked")).unwrap().nlink(), 2);
}

#[test]
fn cut_of_a_large_directory_lists_all_and_leaves_no_memory() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fs::create_dir(fixture.tree().join("large")).unwrap();
    for number in 0..5000 {
        fs::write(fixture.tree().join(format!("large/{number}")), "").unwrap();
    }
    fixture.mount();
    fs::create_dir(cut_path(&fixture, "one")).unwrap();
    fs::remove_dir_all(fixture.tree().join("large")).unwrap();
    assert_eq!(names(&cut_path(&fixture, "one/large")).len(), 5000);
}

#[test]
fn cuts_are_limited_and_can_be_made_and_ended_by_the_socket() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fs::write(fixture.tree().join("file"), "old").unwrap();
    fixture.mount();
    let client = fixture.client();
    let named = |name: &str| ByteString::from(name.as_bytes());
    let cut = client.open_cut(&named("a\u{e9}b")).unwrap();
    let path: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(cut.path.as_bytes());
    fs::write(fixture.tree().join("file"), "new").unwrap();
    assert_eq!(fs::read(Path::new(path).join("file")).unwrap(), b"old");
    let exists = client.open_cut(&named("a\u{e9}b")).unwrap_err();
    assert_eq!(exists.kind, ErrorKind::Refused, "{exists}");
    for bad in ["", ".", "..", "a/b", "a\0b"] {
        let error = client.open_cut(&named(bad)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Refused, "{bad:?}: {error}");
    }
    assert_eq!(client.list_cuts().unwrap().len(), 1);
    let listed = fixture.tree().join(".byteback/cut");
    assert_eq!(names(&listed), ["a\u{e9}b"]);
    assert!(client.list_cuts().unwrap()[0].kept_bytes >= 3);
    client.close_cut(&named("a\u{e9}b")).unwrap();
    assert_eq!(
        client.close_cut(&named("a\u{e9}b")).unwrap_err().kind,
        ErrorKind::Refused
    );
    // The name goes with the cut, although the kernel saw it.
    assert_eq!(names(&listed), [""; 0]);
    assert_errno(fs::read(Path::new(path).join("file")), libc::ENOENT);

    for number in 0..CUTS_MAX {
        fs::create_dir(cut_path(&fixture, &number.to_string())).unwrap();
    }
    assert_errno(fs::create_dir(cut_path(&fixture, "more")), libc::EMFILE);
    fs::remove_dir(cut_path(&fixture, "0")).unwrap();
    fs::create_dir(cut_path(&fixture, "more")).unwrap();
}

#[test]
fn cut_without_room_is_lost_and_refuses_no_writer() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    // A state folder with less room than a cut must leave free.
    let small = fixture.folder();
    let root = small.path().parent().unwrap().parent().unwrap().to_owned();
    fs::create_dir_all(&root).unwrap();
    let data = c"size=64m";
    rustix::mount::mount("tmpfs", &root, "tmpfs", rustix::mount::MountFlags::empty(), data).unwrap();
    let _mounted = Mounted(root);
    fs::write(fixture.tree().join("file"), vec![1; 100_000]).unwrap();
    fs::write(fixture.tree().join("other"), "other").unwrap();
    fixture.mount();
    fs::create_dir(cut_path(&fixture, "one")).unwrap();
    assert_eq!(fs::read(cut_path(&fixture, "one/other")).unwrap(), b"other");
    fs::write(fixture.tree().join("file"), vec![2; 100_000]).unwrap();
    assert_errno(fs::read(cut_path(&fixture, "one/file")), libc::EIO);
    let list = fixture.client().list_cuts().unwrap();
    assert!(list[0].lost.as_ref().unwrap().contains("full"), "{list:?}");
    fs::remove_dir(cut_path(&fixture, "one")).unwrap();
    assert!(fixture.client().list_cuts().unwrap().is_empty());
    fixture.umount();
}

#[test]
fn a_cut_is_not_read_when_nothing_protects_it_any_more() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    fs::write(fixture.tree().join("file"), vec![1; 300_000]).unwrap();
    fs::create_dir(cut_path(&fixture, "one")).unwrap();
    let held = fs::File::open(cut_path(&fixture, "one/file")).unwrap();
    let live = fs::File::open(fixture.tree().join("file")).unwrap();
    let delta = byteback_ioctl::DeltaFile::open(&live, "one", None).unwrap();
    let frozen = fs::File::open(fixture.tree().join(format!(".byteback/delta/{}", delta.number()))).unwrap();
    let mut byte = [0];
    assert_eq!(held.read_at(&mut byte, 299_999).unwrap(), 1);
    assert_eq!(frozen.read_at(&mut byte, 299_999).unwrap(), 1);
    fixture.detach();
    fs::write(fixture.tree().join("file"), vec![2; 300_000]).unwrap();
    for file in [&held, &frozen] {
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_errno(file.read_at(&mut byte, 0), libc::EIO);
    }
    assert!(delta.read_at(0, &mut byte).is_err());
    assert!(delta.commit().is_err());
    assert!(byteback_ioctl::DeltaFile::open(&live, "one", None).is_err());
    drop((held, frozen, live));
}

#[test]
fn mark_does_not_pass_a_file_read_after_the_mount_was_removed() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    fs::write(fixture.tree().join("file"), vec![1; 300_000]).unwrap();
    let live = fs::File::open(fixture.tree().join("file")).unwrap();
    let delta = byteback_ioctl::DeltaFile::open(&live, "one", None).unwrap();
    rustix::mount::unmount(fixture.tree(), rustix::mount::UnmountFlags::DETACH).unwrap();
    fs::write(fixture.tree().join("file"), vec![2; 300_000]).unwrap();
    assert!(delta.commit().is_err(), "the mark moved");
    drop(live);
}

/// Readers never pause: some read while the mount goes, and while the plain file is written.
#[test]
fn cut_shows_no_newer_bytes_after_the_mount_was_taken_away() {
    const LEN_BYTES: usize = 8 << 20;
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    let path = fixture.tree().join("file");
    fs::write(&path, vec![1; LEN_BYTES]).unwrap();
    fs::create_dir(cut_path(&fixture, "one")).unwrap();
    let held = fs::File::open(cut_path(&fixture, "one/file")).unwrap();
    let live = fs::File::open(&path).unwrap();
    let delta = byteback_ioctl::DeltaFile::open(&live, "one", None).unwrap();
    let frozen = fs::File::open(fixture.tree().join(format!(".byteback/delta/{}", delta.number()))).unwrap();
    let is_written = AtomicBool::new(false);
    // Each reads until it is refused, which must be after the mount went.
    let read = |name: &'static str, read: &dyn Fn(&mut [u8], u64) -> io::Result<usize>| {
        let mut buffer = vec![0; 4096];
        let (mut at, mut after) = (0, 0);
        loop {
            after += u32::from(is_written.load(Ordering::SeqCst));
            assert!(after < 5, "{name} is read on after the mount went");
            at = (at + 40_961) % (LEN_BYTES as u64 - 4096);
            match read(&mut buffer, at) {
                Ok(_) => assert!(buffer.iter().all(|byte| *byte == 1), "{name}: newer bytes at {at}"),
                Err(error) => break assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}"),
            }
        }
    };
    // Not from what the kernel remembers.
    let uncached = |file: &fs::File, buffer: &mut [u8], at| {
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random).unwrap();
        file.read_at(buffer, at)
    };
    std::thread::scope(|scope| {
        // Also if an assertion fails: the scope waits for the readers.
        scopeguard::defer! { is_written.store(true, Ordering::SeqCst) }
        scope.spawn(|| read("the cut's file", &|buffer, at| uncached(&held, buffer, at)));
        scope.spawn(|| read("the frozen file", &|buffer, at| uncached(&frozen, buffer, at)));
        scope.spawn(|| {
            read("the ioctl", &|buffer, at| match delta.read_at(at, buffer) {
                Err(byteback_ioctl::DeltaError::System { source, .. }) => Err(source),
                read => read.map_err(io::Error::other),
            })
        });
        std::thread::sleep(Duration::from_millis(100));
        let took = std::process::Command::new("umount")
            .arg("-l")
            .arg(fixture.tree())
            .status();
        assert!(took.unwrap().success());
        let plain = fs::File::options().write(true).open(&path).unwrap();
        plain.write_all_at(&vec![2; LEN_BYTES], 0).unwrap();
    });
    assert_errno(held.metadata().map(drop).and_then(|()| frozen.metadata()), libc::EIO);
    drop(delta);
    drop((held, frozen, live));
}

#[test]
fn cut_frees_its_copies_when_the_mount_is_gone_and_nobody_reads() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    let path = fixture.tree().join("file");
    fs::write(&path, vec![1; 300_000]).unwrap();
    let client = fixture.client();
    client.open_cut(&ByteString::from("one")).unwrap();
    let live = fs::File::options().write(true).open(&path).unwrap();
    live.write_all_at(&[2; 300_000], 0).unwrap();
    assert_eq!(client.list_cuts().unwrap()[0].kept_bytes, 300_000);
    rustix::mount::unmount(fixture.tree(), rustix::mount::UnmountFlags::DETACH).unwrap();
    let began = Instant::now();
    loop {
        let cuts = client.list_cuts().unwrap();
        if cuts[0].lost.is_some() && cuts[0].kept_bytes == 0 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "nobody noticed: {cuts:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(live);
}

/// A mount that is taken away however the test ends, before the directory that it lies in.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}
