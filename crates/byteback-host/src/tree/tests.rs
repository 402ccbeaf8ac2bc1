//! Access to a real directory tree: odd names, long paths, holes, attributes, and everything that
//! must be refused.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, unlinkat};
use rustix::io::Errno;

use byteback_model::NodeKind;

use super::*;

fn temp() -> (tempfile::TempDir, File) {
    let dir = tempfile::tempdir().unwrap();
    let fd = File::open(dir.path()).unwrap();
    (dir, fd)
}

fn create(dir: impl AsFd, name: &OsStr, bytes: &[u8]) -> File {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file = File::from(open_at(dir, name, flags, Mode::from_raw_mode(0o640)).unwrap());
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn os(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn stat_agrees_with_the_standard_library_and_tells_birth_time() {
    use std::os::unix::fs::MetadataExt;
    let (dir, fd) = temp();
    create(&fd, os("f"), b"12345");
    std::fs::hard_link(dir.path().join("f"), dir.path().join("g")).unwrap();
    set_times(
        open_path_at(&fd, os("f")).unwrap(),
        SetTime::To(-1_500_000_001),
        SetTime::To(1_700_000_000_123_456_789),
    )
    .unwrap();
    let ours = stat_at(&fd, os("f")).unwrap();
    let theirs = std::fs::metadata(dir.path().join("f")).unwrap();
    assert_eq!((ours.kind, ours.mode), (NodeKind::File, 0o640));
    assert_eq!((ours.dev, ours.ino, ours.nlink), (theirs.dev(), theirs.ino(), 2));
    assert_eq!(
        (ours.size, ours.blocks, u64::from(ours.block_size)),
        (5, theirs.blocks(), theirs.blksize())
    );
    assert_eq!((ours.uid, ours.gid, ours.rdev), (theirs.uid(), theirs.gid(), 0));
    assert_eq!(ours.mtime_ns, 1_700_000_000_123_456_789);
    assert_eq!(ours.mtime_stamp_ns(), 1_700_000_000_123_456_789);
    assert_eq!(
        ours.atime_ns, -1_500_000_001,
        "a time before 1970 counts its nanoseconds forward"
    );
    assert_eq!(ours.ctime_ns, theirs.ctime() * 1_000_000_000 + theirs.ctime_nsec());
    assert_eq!(
        stat_fd(File::open(dir.path().join("g")).unwrap()).unwrap().identity(),
        ours.identity()
    );
    if let Ok(created) = theirs.created() {
        let since_epoch = created.duration_since(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(ours.btime_ns, i64::try_from(since_epoch.as_nanos()).ok());
    }
    let null = stat_at(File::open("/dev").unwrap(), os("null")).unwrap();
    assert_eq!(
        (null.kind, null.rdev),
        (NodeKind::CharDevice, rustix::fs::makedev(1, 3))
    );
}

#[test]
fn a_reused_inode_number_is_another_identity() {
    let (dir, fd) = temp();
    let mut seen = BTreeSet::new();
    let mut numbers = BTreeSet::new();
    for _ in 0..50 {
        create(&fd, os("f"), b"");
        let stat = stat_at(&fd, os("f")).unwrap();
        if stat.btime_ns.is_none() {
            return;
        }
        numbers.insert(stat.ino);
        seen.insert(stat.identity());
        std::fs::remove_file(dir.path().join("f")).unwrap();
        // The kernel's coarse clock ticks every 1-10 ms; two births within one tick cannot be told
        // apart.
        std::thread::sleep(std::time::Duration::from_millis(11));
    }
    assert_eq!(seen.len(), 50, "of {} inode numbers", numbers.len());
}

#[test]
fn names_that_are_not_single_components_are_refused() {
    let (_dir, fd) = temp();
    for name in ["", ".", "..", "a/b", "/", "/etc", "a/", "a\0b"] {
        let name = os(name);
        let refused = [
            open_at(&fd, name, OFlags::RDONLY, Mode::empty()).unwrap_err(),
            open_dir_at(&fd, name).unwrap_err(),
            open_path_at(&fd, name).unwrap_err(),
            stat_at(&fd, name).unwrap_err(),
        ];
        assert!(
            refused.iter().all(|error| error.kind() == ErrorKind::InvalidInput),
            "{name:?}: {refused:?}"
        );
    }
}

#[test]
fn symlinks_lead_nowhere() {
    let (dir, fd) = temp();
    std::fs::create_dir(dir.path().join("real")).unwrap();
    create(open_dir_at(&fd, os("real")).unwrap(), os("f"), b"x");
    symlink("real", dir.path().join("link")).unwrap();
    symlink("real/f", dir.path().join("file-link")).unwrap();
    assert_eq!(
        open_dir_at(&fd, os("link")).unwrap_err().kind(),
        ErrorKind::NotADirectory
    );
    let flags = OFlags::RDONLY;
    assert_eq!(
        open_at(&fd, os("file-link"), flags, Mode::empty())
            .unwrap_err()
            .raw_os_error(),
        Some(libc::ELOOP)
    );
    assert_eq!(
        open_beneath(&fd, Path::new("link/f")).unwrap_err().kind(),
        ErrorKind::NotADirectory
    );
    assert_eq!(
        open_beneath(&fd, Path::new("link/")).unwrap_err().kind(),
        ErrorKind::NotADirectory
    );
    let named = open_beneath(&fd, Path::new("link")).unwrap();
    assert_eq!(stat_fd(&named).unwrap().kind, NodeKind::Symlink);
    assert_eq!(read_link_fd(&named).unwrap(), "real");
    assert_eq!(
        reopen(&named, OFlags::RDONLY).unwrap_err().raw_os_error(),
        Some(libc::ELOOP)
    );
}

#[test]
fn open_beneath_stays_beneath() {
    let (dir, fd) = temp();
    std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
    create(open_beneath(&fd, Path::new("a/b")).unwrap(), os("f"), b"x");
    for path in ["..", "a/../..", "a/../a", "/", "/etc/passwd"] {
        assert_eq!(
            open_beneath(&fd, Path::new(path)).unwrap_err().kind(),
            ErrorKind::InvalidInput,
            "{path}"
        );
    }
    let root = stat_fd(&fd).unwrap().identity();
    for path in ["", ".", "./."] {
        assert_eq!(
            stat_fd(open_beneath(&fd, Path::new(path)).unwrap()).unwrap().identity(),
            root,
            "{path}"
        );
    }
    assert_eq!(
        stat_fd(open_beneath(&fd, Path::new("./a//b/./f")).unwrap())
            .unwrap()
            .size,
        1
    );
    assert_eq!(
        open_beneath(&fd, Path::new("a/b/f/g")).unwrap_err().kind(),
        ErrorKind::NotADirectory
    );
    assert_eq!(
        open_beneath(&fd, Path::new("a/b/f/")).unwrap_err().kind(),
        ErrorKind::NotADirectory
    );
    assert_eq!(
        open_beneath(&fd, Path::new("a/c")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

#[test]
fn path_beyond_kernel_length_is_walked_and_survives_renames() {
    let (dir, fd) = temp();
    let long = "d".repeat(255);
    let mut at: OwnedFd = fd.try_clone().unwrap().into();
    let mut path = PathBuf::new();
    for _ in 0..40 {
        mkdirat(&at, &long, Mode::RWXU).unwrap();
        at = open_dir_at(&at, os(&long)).unwrap();
        path.push(&long);
    }
    create(&at, os("leaf"), b"deep");
    path.push("leaf");
    assert!(path.as_os_str().len() > 10_000);
    assert_eq!(
        File::open(dir.path().join(&path)).unwrap_err().raw_os_error(),
        Some(libc::ENAMETOOLONG)
    );
    let leaf = open_beneath(&fd, &path).unwrap();
    let file = File::from(reopen(&leaf, OFlags::RDONLY).unwrap());
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"deep");

    std::fs::rename(dir.path().join(&long), dir.path().join("moved")).unwrap();
    assert_eq!(stat_at(&at, os("leaf")).unwrap().size, 4);
    assert_eq!(
        read_dir(&at, 0)
            .unwrap()
            .map(|entry| entry.unwrap().name)
            .collect::<Vec<_>>(),
        ["leaf"]
    );
    set_xattr(&leaf, os("user.deep"), b"yes", SetXattr::Any).unwrap();
    assert_eq!(get_xattr(&file, os("user.deep")).unwrap().unwrap(), b"yes");

    // The standard remove_dir_all walks by descriptors too, but keeps one per level open: 40 are
    // fine.
    drop(dir);
}

#[test]
fn any_bytes_make_a_name() {
    let (_dir, fd) = temp();
    let mut names: BTreeSet<OsString> = (1..=255u8)
        .filter(|byte| !matches!(byte, b'/' | b'.'))
        .map(|byte| OsString::from_vec(vec![byte]))
        .collect();
    names.insert(OsString::from_vec(vec![0xff; 255]));
    names.insert("...".into());
    names.insert("new\nline".into());
    for name in &names {
        create(&fd, name, name.as_bytes());
    }
    let listed: BTreeSet<_> = read_dir(&fd, 0).unwrap().map(|entry| entry.unwrap().name).collect();
    assert_eq!(listed, names);
    for name in &names {
        assert_eq!(stat_at(&fd, name).unwrap().size, name.len() as u64);
        unlinkat(&fd, name, AtFlags::empty()).unwrap();
    }
    symlink(OsStr::from_bytes(b"\xfe/\xff"), _dir.path().join("l")).unwrap();
    let link = open_path_at(&fd, os("l")).unwrap();
    assert_eq!(read_link_fd(&link).unwrap().as_bytes(), b"\xfe/\xff");
}

#[test]
fn listing_resumes_after_any_entry_while_names_come_and_go() {
    let (dir, fd) = temp();
    let name = |i: usize| format!("{i:04}-{}", "n".repeat(60));
    // About 90 bytes each: several buffers full.
    let stable: BTreeSet<OsString> = (0..1500).map(|i| name(i).into()).collect();
    for name in &stable {
        create(&fd, name, b"");
    }
    let mut seen = Vec::new();
    let mut cookie = 0;
    let mut round = 0;
    loop {
        // A fresh descriptor each time, and 7 entries of it; in between one name comes and the last
        // one goes.
        let page: Vec<Entry> = read_dir(&fd, cookie).unwrap().take(7).map(Result::unwrap).collect();
        let Some(last) = page.last() else { break };
        cookie = last.cookie;
        assert!(
            page.iter()
                .all(|entry| entry.kind_hint.is_none_or(|kind| kind == NodeKind::File))
        );
        seen.extend(page.into_iter().map(|entry| entry.name));
        create(&fd, os(&format!("extra-{round}")), b"");
        if round > 0 {
            std::fs::remove_file(dir.path().join(format!("extra-{}", round - 1))).unwrap();
        }
        round += 1;
        assert!(round < 5000, "the listing does not end");
    }
    let mut counted: Vec<_> = seen.iter().filter(|name| stable.contains(*name)).collect();
    counted.sort_unstable();
    assert!(
        counted.iter().copied().eq(&stable),
        "{} of {} names",
        counted.len(),
        stable.len()
    );
}

#[test]
fn listing_keeps_the_callers_position_and_tells_dots_if_asked() {
    let (_dir, fd) = temp();
    create(&fd, os("f"), b"");
    let path_only = open_dot(&fd).unwrap();
    assert_eq!(
        read_dir(&path_only, 0).unwrap().count(),
        1,
        "an O_PATH descriptor will do"
    );
    assert_eq!(read_dir(&fd, 0).unwrap().count(), 1);
    let with_dots: BTreeSet<_> = read_dir(&fd, 0)
        .unwrap()
        .with_dots()
        .map(|entry| entry.unwrap().name)
        .collect();
    assert_eq!(with_dots, [".", "..", "f"].map(OsString::from).into());
    assert_eq!(rustix::fs::tell(&fd).unwrap(), 0);
    let file = open_at(&fd, os("f"), OFlags::RDONLY, Mode::empty()).unwrap();
    assert_eq!(read_dir(&file, 0).unwrap_err().kind(), ErrorKind::NotADirectory);
}

#[test]
fn attributes_of_files_and_path_descriptors() {
    let (_dir, fd) = temp();
    let file = create(&fd, os("f"), b"");
    let path_only = open_path_at(&fd, os("f")).unwrap();
    let big = vec![7; 3000];
    set_xattr(&file, os("user.big"), &big, SetXattr::Create).unwrap();
    set_xattr(&path_only, os("user.empty"), b"", SetXattr::Any).unwrap();
    for fd in [path_only.as_fd(), file.as_fd()] {
        let names: BTreeSet<_> = list_xattrs(fd)
            .unwrap()
            .into_iter()
            .filter(|n| n.as_bytes().starts_with(b"user."))
            .collect();
        assert_eq!(names, ["user.big", "user.empty"].map(OsString::from).into());
        assert_eq!(get_xattr(fd, os("user.big")).unwrap().unwrap(), big);
        assert_eq!(
            get_xattr(fd, os("user.empty")).unwrap().unwrap(),
            b"",
            "an empty value is not a missing one"
        );
        assert_eq!(get_xattr(fd, os("user.none")).unwrap(), None);
        let again = set_xattr(fd, os("user.big"), b"", SetXattr::Create).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
        let none = set_xattr(fd, os("user.none"), b"", SetXattr::Replace).unwrap_err();
        assert_eq!(none.raw_os_error(), Some(libc::ENODATA));
    }
    remove_xattr(&path_only, os("user.big")).unwrap();
    assert_eq!(
        remove_xattr(&file, os("user.big")).unwrap_err().raw_os_error(),
        Some(libc::ENODATA)
    );
    // More names than the first try holds.
    let many: Vec<OsString> = (0..40).map(|i| format!("user.{i:030}").into()).collect();
    for name in &many {
        set_xattr(&file, name, b"v", SetXattr::Any).unwrap();
    }
    let listed = list_xattrs(&path_only).unwrap();
    assert!(many.iter().all(|name| listed.contains(name)));
}

#[test]
fn attributes_of_a_symlink_are_its_own() {
    let (dir, fd) = temp();
    let target = create(&fd, os("target"), b"");
    set_xattr(&target, os("user.a"), b"target", SetXattr::Any).unwrap();
    symlink("target", dir.path().join("link")).unwrap();
    let link = open_path_at(&fd, os("link")).unwrap();
    assert!(
        list_xattrs(&link).unwrap().is_empty(),
        "the target's attributes must not show"
    );
    // Linux refuses user attributes on symlinks: with EPERM when set, with "no such" or EPERM when
    // asked for.
    assert_eq!(
        set_xattr(&link, os("user.a"), b"link", SetXattr::Any)
            .unwrap_err()
            .kind(),
        ErrorKind::PermissionDenied
    );
    assert!(!matches!(get_xattr(&link, os("user.a")), Ok(Some(_))));
    assert_eq!(get_xattr(&target, os("user.a")).unwrap().unwrap(), b"target");
    if is_root() {
        set_xattr(&link, os("trusted.a"), b"link", SetXattr::Any).unwrap();
        assert_eq!(get_xattr(&link, os("trusted.a")).unwrap().unwrap(), b"link");
        assert_eq!(list_xattrs(&link).unwrap(), ["trusted.a"]);
        assert_eq!(get_xattr(&target, os("trusted.a")).unwrap(), None);
        remove_xattr(&link, os("trusted.a")).unwrap();
    }
}

#[test]
fn write_at_work_is_awaited_although_its_times_are_of_its_start() {
    const LEN: usize = 64 << 20;
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    let aligned = |value: u8| {
        let bytes = vec![value; LEN + 4096];
        let skip = bytes.as_ptr().align_offset(4096);
        (bytes, skip)
    };
    for (value, flags) in [(1, OFlags::empty()), (2, OFlags::DIRECT)] {
        file.as_file().write_all_at(&vec![0; LEN], 0).unwrap();
        file.as_file().sync_all().unwrap();
        let Ok(writer) = rustix::fs::open(file.path(), OFlags::WRONLY | flags, Mode::empty()) else {
            println!("skipped: no direct writes here");
            continue;
        };
        std::thread::sleep(std::time::Duration::from_millis(50));
        let before = stat_fd(file.as_file()).unwrap().ctime_ns;
        let at_work = std::thread::spawn(move || {
            let (bytes, skip) = aligned(value);
            assert_eq!(File::from(writer).write_at(&bytes[skip..][..LEN], 0).unwrap(), LEN);
        });
        let path = rustix::fs::open(file.path(), OFlags::PATH, Mode::empty()).unwrap();
        while stat_fd(file.as_file()).unwrap().ctime_ns == before {
            std::thread::yield_now();
        }
        wait_for_writers(path);
        let mut last = [0];
        file.as_file().read_exact_at(&mut last, LEN as u64 - 1).unwrap();
        assert_eq!(last[0], value, "the write had begun");
        at_work.join().unwrap();
    }
}

#[test]
fn a_mount_number_does_not_come_again() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let dir = tempfile::tempdir().unwrap();
    let mounted = || {
        mount("none", dir.path(), "tmpfs", MountFlags::empty(), None)?;
        let reported = stat_fd(File::open(dir.path()).unwrap()).unwrap().mount_id;
        unmount(dir.path(), UnmountFlags::empty())?;
        Ok::<_, Errno>(reported)
    };
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    if (numbers.next(), numbers.next()) < (Some(6), Some(8)) {
        println!("skipped: Linux {release} uses them again");
        return;
    }
    match (mounted(), mounted()) {
        (Ok(first), Ok(second)) => assert!(first.is_some() && first != second, "{first:?} {second:?}"),
        (first, second) => println!("skipped: cannot mount here: {first:?} {second:?}"),
    }
}

#[test]
fn owner_mode_and_times_of_a_symlink_and_of_a_path_descriptor() {
    let (dir, fd) = temp();
    let target = create(&fd, os("target"), b"");
    symlink("target", dir.path().join("link")).unwrap();
    let link = open_path_at(&fd, os("link")).unwrap();
    let before = stat_fd(&target).unwrap();
    set_times(&link, SetTime::To(1), SetTime::To(1_000_000_002)).unwrap();
    set_times(&link, SetTime::Keep, SetTime::To(3)).unwrap();
    let stat = stat_fd(&link).unwrap();
    assert_eq!((stat.atime_ns, stat.mtime_ns), (1, 3));
    assert_eq!(
        set_mode(&link, 0o600).unwrap_err().raw_os_error(),
        Some(libc::EOPNOTSUPP)
    );
    if is_root() {
        set_owner(&link, Some(1234), None).unwrap();
        set_owner(&link, None, Some(4321)).unwrap();
        let stat = stat_at(&fd, os("link")).unwrap();
        assert_eq!((stat.uid, stat.gid), (1234, 4321));
    }
    assert_eq!(stat_fd(&target).unwrap(), before, "the target must not notice");
    let path_only = open_path_at(&fd, os("target")).unwrap();
    set_mode(&path_only, 0o4751).unwrap();
    assert_eq!(stat_fd(&target).unwrap().mode, 0o4751);
    assert!(
        set_owner(&path_only, Some(u32::MAX), None).is_err(),
        "-1 would mean: keep"
    );
    assert_eq!(target.metadata().unwrap().permissions().mode() & 0o7777, 0o4751);
}

#[test]
fn an_unlinked_file_is_still_reached_through_its_descriptor() {
    let (dir, fd) = temp();
    create(&fd, os("f"), b"still here");
    let path_only = open_path_at(&fd, os("f")).unwrap();
    std::fs::remove_file(dir.path().join("f")).unwrap();
    let mut bytes = [0; 10];
    File::from(reopen(&path_only, OFlags::RDONLY).unwrap())
        .read_exact_at(&mut bytes, 0)
        .unwrap();
    assert_eq!(&bytes, b"still here");
    assert_eq!(stat_fd(&path_only).unwrap().nlink, 0);
}

#[test]
fn data_ranges_agree_with_what_was_written() {
    const BLOCK: u64 = 64 * 1024;
    let (_dir, fd) = temp();
    let file = create(&fd, os("f"), b"");
    file.set_len(100 * BLOCK).unwrap();
    let written = [3, 4, 5, 40, 41, 98];
    for block in written {
        file.write_all_at(&vec![1; BLOCK as usize], block * BLOCK).unwrap();
    }
    let ranges = |from, to| data_ranges(&file, from, to).map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(
        ranges(0, u64::MAX),
        [3 * BLOCK..6 * BLOCK, 40 * BLOCK..42 * BLOCK, 98 * BLOCK..99 * BLOCK]
    );
    assert_eq!(
        ranges(4 * BLOCK + 7, 41 * BLOCK + 1),
        [4 * BLOCK + 7..6 * BLOCK, 40 * BLOCK..41 * BLOCK + 1]
    );
    assert_eq!(ranges(6 * BLOCK, 40 * BLOCK), [], "only a hole");
    assert_eq!(
        ranges(99 * BLOCK, 200 * BLOCK),
        [],
        "a hole and what lies behind the end"
    );
    assert_eq!(ranges(5, 5), []);
    let mut within = data_ranges(&file, 4 * BLOCK, 4 * BLOCK + 10);
    assert_eq!(within.next().unwrap().unwrap(), 4 * BLOCK..4 * BLOCK + 10);
    assert_eq!(
        within.data_end(),
        6 * BLOCK,
        "the data goes on beyond what was asked for"
    );
    assert_eq!(
        (seek_data(&file, 0).unwrap(), seek_hole(&file, 0).unwrap()),
        (Some(3 * BLOCK), Some(0))
    );
    assert_eq!(
        (
            seek_data(&file, 99 * BLOCK).unwrap(),
            seek_hole(&file, 100 * BLOCK).unwrap()
        ),
        (None, None)
    );

    punch_hole(&file, 4 * BLOCK, BLOCK).unwrap();
    assert_eq!(ranges(0, 39 * BLOCK), [3 * BLOCK..4 * BLOCK, 5 * BLOCK..6 * BLOCK]);
    assert_eq!(file.metadata().unwrap().len(), 100 * BLOCK);
    assert_eq!(punch_hole(&file, 0, 0).unwrap_err().kind(), ErrorKind::InvalidInput);
    fallocate(&file, FallocateFlags::empty(), 0, 101 * BLOCK).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 101 * BLOCK);
}

#[test]
fn copies_arrive_within_and_across_file_systems() {
    let (_dir, fd) = temp();
    let bytes: Vec<u8> = (0..1_000_003u32).map(|i| (i % 251) as u8).collect();
    let from = create(&fd, os("from"), &bytes);
    let mut targets = vec![create(&fd, os("to"), b"")];
    if let Ok(other) = tempfile::tempfile_in("/dev/shm") {
        targets.push(other);
    }
    for to in targets {
        assert_eq!(copy_range(&from, 5, &to, 9, 700_000).unwrap(), 700_000);
        let mut copied = vec![0; 700_000];
        to.read_exact_at(&mut copied, 9).unwrap();
        assert!(copied == bytes[5..700_005]);
        assert_eq!(
            copy_range(&from, 1_000_000, &to, 0, 10).unwrap(),
            3,
            "fewer at the end of the file"
        );
        assert_eq!(copy_range(&from, 2_000_000, &to, 0, 10).unwrap(), 0);
    }
    // A file that claims no length and still has bytes, as procfs does.
    let to = create(&fd, os("proc"), b"");
    let status = File::open("/proc/self/status").unwrap();
    assert!(copy_range(&status, 0, &to, 0, 1 << 20).unwrap() > 100);
}

#[test]
fn a_directory_that_may_be_read_but_not_searched_is_listed() {
    if is_root() {
        return; // Permissions do not bind root.
    }
    let (dir, fd) = temp();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    std::fs::write(dir.path().join("d/f"), "").unwrap();
    let path_only = open_path_at(&fd, os("d")).unwrap();
    set_mode(&path_only, 0o400).unwrap();
    assert_eq!(
        read_dir(&path_only, 0)
            .unwrap()
            .map(|entry| entry.unwrap().name)
            .collect::<Vec<_>>(),
        ["f"]
    );
    assert_eq!(
        stat_fd(open_beneath(&path_only, Path::new("")).unwrap()).unwrap().mode,
        0o400
    );
    set_mode(&path_only, 0o200).unwrap();
    assert_eq!(read_dir(&path_only, 0).unwrap_err().kind(), ErrorKind::PermissionDenied);
    set_mode(&path_only, 0o700).unwrap();
}

/// The number of open descriptors of the process.
fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_descent_opens_what_open_beneath_opens_in_random_orders() {
    use crate::random::SplitMix64;
    let (dir, fd) = temp();
    let mut random = SplitMix64::new(9);
    // Names that begin alike, and paths that end within others.
    let names = ["a", "ab", "abc", "b", "a b"];
    let mut paths = vec![Vec::new()];
    for _ in 0..150 {
        let mut path: Vec<u8> = paths[random.below(paths.len() as u64) as usize].clone();
        for _ in 0..random.below(40) {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(names[random.below(5) as usize].as_bytes());
        }
        std::fs::create_dir_all(dir.path().join(OsStr::from_bytes(&path))).unwrap();
        paths.push(path);
    }
    std::fs::write(dir.path().join("file"), b"").unwrap();
    symlink("a", dir.path().join("link")).unwrap();
    let mut descent = Descent::new(&fd).unwrap();
    for _ in 0..3000 {
        let path = &paths[random.below(paths.len() as u64) as usize];
        match random.below(10) {
            0 => {
                let missing = [path, &b"/missing/deeper"[..]].concat();
                let missing = missing.strip_prefix(b"/").unwrap_or(&missing);
                assert_eq!(descent.open(missing).unwrap_err().kind(), ErrorKind::NotFound);
            }
            1 => {
                for wrong in ["file", "link", "link/a", "..", "a/../b", "a//a", "/a"] {
                    let error = descent.open(wrong.as_bytes()).unwrap_err().kind();
                    assert!(
                        matches!(error, ErrorKind::NotADirectory | ErrorKind::InvalidInput),
                        "{wrong}: {error}"
                    );
                }
            }
            _ => {
                let opened = descent.open(path).unwrap();
                let beneath = open_beneath(&fd, Path::new(OsStr::from_bytes(path))).unwrap();
                let identity = |fd: &OwnedFd| stat_fd(fd).unwrap().identity();
                assert_eq!(
                    identity(&opened),
                    identity(&beneath),
                    "{}",
                    String::from_utf8_lossy(path)
                );
            }
        }
    }
}

#[test]
fn descent_and_return_over_4000_levels_keep_few_descriptors() {
    let (dir, fd) = temp();
    const LEVELS: usize = 4000;
    let before = open_descriptors();
    let mut descent = Descent::new(&fd).unwrap();
    let mut path = Vec::new();
    let mut at = descent.open(b"").unwrap();
    let mut most = 0;
    for level in 0..LEVELS {
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.push(b'd');
        at = descent.open(&path).unwrap();
        if level % 100 == 0 {
            most = most.max(open_descriptors().saturating_sub(before));
        }
    }
    drop(at);
    // Other tests open files at the same time.
    assert!(most < 400, "{most}");
    for _ in 0..LEVELS {
        path.truncate(path.len().saturating_sub(2));
        let above = descent.open(&path).unwrap();
        unlinkat(&above, "d", AtFlags::REMOVEDIR).unwrap();
        if path.is_empty() {
            break;
        }
    }
    assert_eq!(read_dir(&fd, 0).unwrap().count(), 0);
    drop(dir);
}
