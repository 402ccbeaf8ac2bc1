//! Creating, moving and removing names of all kinds.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, mkdirat, mknodat, openat, renameat_with};
use rustix::io::Errno;

use crate::harness::Fixture;

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
    renameat_with(CWD, from, CWD, to, flags)
}

#[test]
fn inode_numbers_are_those_of_the_backing_directory() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.at("d")).unwrap();
    fs::write(fixture.at("d/f"), b"").unwrap();
    symlink("x", fixture.at("d/l")).unwrap();
    for name in ["", "d", "d/f", "d/l"] {
        let (here, below) = (
            fs::symlink_metadata(fixture.at(name)).unwrap(),
            fs::symlink_metadata(fixture.below(name)).unwrap(),
        );
        assert_eq!(here.ino(), below.ino(), "{name:?}");
    }
    let listed: Vec<u64> = fs::read_dir(fixture.tree())
        .unwrap()
        .map(|entry| std::os::unix::fs::DirEntryExt::ino(&entry.unwrap()))
        .collect();
    assert_eq!(listed, [fs::metadata(fixture.below("d")).unwrap().ino()]);
}

#[test]
fn hard_links_are_one_file() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.at("d")).unwrap();
    fs::write(fixture.at("a"), b"one").unwrap();
    fs::hard_link(fixture.at("a"), fixture.at("d/b")).unwrap();
    let (a, b) = (
        fs::metadata(fixture.at("a")).unwrap(),
        fs::metadata(fixture.at("d/b")).unwrap(),
    );
    assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
    fs::write(fixture.at("d/b"), b"two").unwrap();
    assert_eq!(fs::read(fixture.at("a")).unwrap(), b"two");
    fs::remove_file(fixture.at("a")).unwrap();
    assert_eq!(fs::metadata(fixture.at("d/b")).unwrap().nlink(), 1);
    assert_eq!(fs::read(fixture.at("d/b")).unwrap(), b"two");
    // Of a symlink, the link itself.
    symlink("nowhere", fixture.at("s")).unwrap();
    fs::hard_link(fixture.at("s"), fixture.at("t")).unwrap();
    assert_eq!(fs::read_link(fixture.at("t")).unwrap(), Path::new("nowhere"));
}

#[test]
fn a_file_stays_reachable_by_any_of_many_links() {
    let fixture = Fixture::new();
    fs::write(fixture.at("n0"), b"x").unwrap();
    for n in 1..200 {
        fs::hard_link(fixture.at("n0"), fixture.at(&format!("n{n}"))).unwrap();
    }
    for n in (1..200).rev() {
        fs::remove_file(fixture.at(&format!("n{n}"))).unwrap();
        let first = fs::metadata(fixture.at("n0")).unwrap();
        assert_eq!(first.nlink(), n);
    }
    assert_eq!(fs::read(fixture.at("n0")).unwrap(), b"x");
}

#[test]
fn renaming_replaces_atomically_and_what_was_open_stays() {
    let fixture = Fixture::new();
    fs::write(fixture.at("old"), b"old").unwrap();
    let mut open = File::open(fixture.at("old")).unwrap();
    fs::write(fixture.at("new"), b"new").unwrap();
    fs::rename(fixture.at("new"), fixture.at("old")).unwrap();
    assert_eq!(fs::read(fixture.at("old")).unwrap(), b"new");
    assert!(!fixture.at("new").exists());
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), open.metadata().unwrap().nlink()), ("old", 0));
}

#[test]
fn renaming_with_flags() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.at("dir")).unwrap();
    fs::write(fixture.at("dir/inside"), b"i").unwrap();
    fs::write(fixture.at("file"), b"f").unwrap();
    assert_eq!(
        rename(&fixture.at("file"), &fixture.at("dir"), RenameFlags::NOREPLACE),
        Err(Errno::EXIST)
    );
    rename(&fixture.at("file"), &fixture.at("dir"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(fixture.at("dir")).unwrap(), b"f");
    assert_eq!(fs::read(fixture.at("file/inside")).unwrap(), b"i");
    rename(&fixture.at("dir"), &fixture.at("moved"), RenameFlags::WHITEOUT).unwrap();
    assert!(
        fs::symlink_metadata(fixture.at("dir"))
            .unwrap()
            .file_type()
            .is_char_device()
    );
    assert_eq!(fs::read(fixture.at("moved")).unwrap(), b"f");
}

#[test]
fn renaming_two_names_of_one_file_does_nothing() {
    let fixture = Fixture::new();
    fs::write(fixture.at("a"), b"x").unwrap();
    fs::hard_link(fixture.at("a"), fixture.at("b")).unwrap();
    fs::rename(fixture.at("a"), fixture.at("b")).unwrap();
    assert!(fixture.at("a").exists() && fixture.at("b").exists());
    assert_eq!(fs::metadata(fixture.at("a")).unwrap().nlink(), 2);
}

#[test]
fn refused_renames_and_removals() {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.at("d/e")).unwrap();
    fs::write(fixture.at("f"), b"").unwrap();
    let none = RenameFlags::empty();
    assert_eq!(rename(&fixture.at("d"), &fixture.at("d/e/x"), none), Err(Errno::INVAL));
    assert_eq!(rename(&fixture.at("f"), &fixture.at("d"), none), Err(Errno::ISDIR));
    assert_eq!(rename(&fixture.at("d"), &fixture.at("f"), none), Err(Errno::NOTDIR));
    fs::create_dir(fixture.at("g")).unwrap();
    assert_eq!(rename(&fixture.at("g"), &fixture.at("d"), none), Err(Errno::NOTEMPTY));
    assert_eq!(
        fs::remove_dir(fixture.at("d")).unwrap_err().raw_os_error(),
        Some(libc::ENOTEMPTY)
    );
    assert_eq!(
        fs::remove_file(fixture.at("d")).unwrap_err().raw_os_error(),
        Some(libc::EISDIR)
    );
    assert_eq!(
        fs::remove_dir(fixture.at("f")).unwrap_err().raw_os_error(),
        Some(libc::ENOTDIR)
    );
    assert_eq!(
        fs::remove_file(fixture.at("none")).unwrap_err().raw_os_error(),
        Some(libc::ENOENT)
    );
}

#[test]
fn a_removed_working_directory_answers() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.at("d")).unwrap();
    let dir = File::open(fixture.at("d")).unwrap();
    fs::remove_dir(fixture.at("d")).unwrap();
    assert_eq!(
        fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir)))
            .unwrap()
            .nlink(),
        0
    );
    assert_eq!(
        openat(&dir, "x", OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o600)).unwrap_err(),
        Errno::NOENT
    );
}

#[test]
fn names_of_any_bytes_up_to_255() {
    let fixture = Fixture::new();
    let odd = OsStr::from_bytes(b"\xff\xfe \n\\,*");
    fs::write(fixture.tree().join(odd), b"odd").unwrap();
    assert_eq!(fs::read(fixture.below("").join(odd)).unwrap(), b"odd");
    let long = "n".repeat(255);
    fs::write(fixture.at(&long), b"long").unwrap();
    assert_eq!(fs::read(fixture.at(&long)).unwrap(), b"long");
    let names: Vec<_> = fs::read_dir(fixture.tree())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(names.contains(&odd.to_owned()) && names.contains(&long.clone().into()));
    assert_eq!(
        fs::write(fixture.at(&(long + "n")), b"").unwrap_err().raw_os_error(),
        Some(libc::ENAMETOOLONG)
    );
}

#[test]
fn paths_longer_than_path_max() {
    let fixture = Fixture::new();
    let name = "d".repeat(200);
    let mut dir = openat(CWD, fixture.tree(), OFlags::PATH, Mode::empty()).unwrap();
    for _ in 0..60 {
        mkdirat(&dir, name.as_str(), Mode::from_raw_mode(0o755)).unwrap();
        dir = openat(&dir, name.as_str(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let file = openat(&dir, "deep", OFlags::CREATE | OFlags::RDWR, Mode::from_raw_mode(0o644)).unwrap();
    rustix::io::write(&file, b"12 kB down").unwrap();
    assert_eq!(
        rustix::fs::statat(&dir, "deep", rustix::fs::AtFlags::empty())
            .unwrap()
            .st_size,
        10
    );
    drop((file, dir));
    fs::remove_dir_all(fixture.at(&name)).unwrap();
}

#[test]
fn fifos_sockets_and_device_nodes() {
    let fixture = Fixture::new();
    mknodat(CWD, fixture.at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let path = fixture.at("fifo");
    let writer = std::thread::spawn(move || fs::write(path, b"through").unwrap());
    assert_eq!(fs::read(fixture.at("fifo")).unwrap(), b"through");
    writer.join().unwrap();

    let listener = UnixListener::bind(fixture.at("socket")).unwrap();
    let mut client = UnixStream::connect(fixture.at("socket")).unwrap();
    client.write_all(b"hi").unwrap();
    drop(client);
    let mut text = String::new();
    listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hi");

    let zero = rustix::fs::makedev(1, 5);
    mknodat(
        CWD,
        fixture.at("zero"),
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        zero,
    )
    .unwrap();
    assert_eq!(fs::metadata(fixture.at("zero")).unwrap().rdev(), zero);
    if fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .lines()
        .any(|line| line.contains(" /var/tmp ") && line.contains("nodev"))
    {
        return;
    }
    let mut bytes = [1; 4];
    File::open(fixture.at("zero")).unwrap().read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
}

#[test]
fn symlinks_keep_their_bytes() {
    let fixture = Fixture::new();
    let target = OsStr::from_bytes(b"../\xff odd");
    symlink(target, fixture.at("s")).unwrap();
    assert_eq!(fs::read_link(fixture.at("s")).unwrap(), target);
    let long = "x/".repeat(2000);
    symlink(&long, fixture.at("long")).unwrap();
    assert_eq!(fs::read_link(fixture.at("long")).unwrap(), Path::new(&long).to_owned());
}

/// Directories move all the time while others work deep below them: nobody may see a spurious
/// error.
#[test]
fn renaming_directories_does_not_disturb_who_works_below() {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.at("a/b/c")).unwrap();
    let deep = openat(CWD, fixture.at("a/b/c"), OFlags::PATH, Mode::empty()).unwrap();
    fs::write(fixture.at("a/b/c/f"), b"f").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            scopeguard::defer! { stop.store(true, Ordering::Relaxed) }
            let (here, there) = (fixture.at("a/b"), fixture.at("b"));
            for n in 0..1500 {
                let (from, to) = if n % 2 == 0 { (&here, &there) } else { (&there, &here) };
                fs::rename(from, to).unwrap();
            }
        });
        let mut n = 0;
        while !stop.load(Ordering::Relaxed) {
            n += 1;
            let name = format!("n{}", n % 50);
            let file = openat(
                &deep,
                name.as_str(),
                OFlags::CREATE | OFlags::WRONLY,
                Mode::from_raw_mode(0o644),
            )
            .unwrap();
            rustix::io::write(&file, b"x").unwrap();
            rustix::fs::fchmod(&file, Mode::from_raw_mode(0o600)).unwrap();
            rustix::fs::unlinkat(&deep, name.as_str(), rustix::fs::AtFlags::empty()).unwrap();
        }
        assert!(n > 10);
    });
}

/// A descriptor that only names a file is served by the file's name, so a rename in between must
/// never show.
#[test]
fn a_named_file_answers_while_it_is_renamed() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.at("d")).unwrap();
    fs::write(fixture.at("a"), b"named").unwrap();
    let named = openat(CWD, fixture.at("a"), OFlags::PATH, Mode::empty()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            scopeguard::defer! { stop.store(true, Ordering::Relaxed) }
            let (here, there) = (fixture.at("a"), fixture.at("d/b"));
            for n in 0..3000 {
                let (from, to) = if n % 2 == 0 { (&here, &there) } else { (&there, &here) };
                fs::rename(from, to).unwrap();
            }
        });
        while !stop.load(Ordering::Relaxed) {
            // Not answered by the kernel: each rename makes it forget the attributes.
            let stat = rustix::fs::fstat(&named);
            if stat.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(stat.unwrap().st_size, 5);
        }
    });
}

/// A file that is removed leaves its inode number to the next one at once, while the removal is
/// still being reported: the new bearer stays reachable, and reads nothing of the old one.
#[test]
fn numbers_that_are_given_again_at_once_stay_apart() {
    const ROUNDS: u8 = 250;
    let fixture = Fixture::new();
    let files = |thread: u8| {
        let dir = fixture.at(&format!("files{thread}"));
        fs::create_dir(&dir).unwrap();
        for round in 0..ROUNDS {
            let path = dir.join(format!("f{}", round % 7));
            let content = vec![thread ^ round; 1 + usize::from(round) * 19];
            fs::write(&path, &content).unwrap();
            assert_eq!(fs::read(&path).unwrap(), content);
            fs::remove_file(&path).unwrap();
        }
    };
    let directories = |thread: u8| {
        let dir = fixture.at(&format!("directories{thread}"));
        fs::create_dir(&dir).unwrap();
        for round in 0..ROUNDS {
            let outer = dir.join(format!("d{}", round % 7));
            let inner = outer.join("inner");
            fs::create_dir(&outer).unwrap();
            fs::create_dir(&inner).unwrap();
            assert!(fs::metadata(&inner).unwrap().is_dir());
            fs::remove_dir(&inner).unwrap();
            fs::remove_dir(&outer).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || files(thread));
            scope.spawn(move || directories(thread));
        }
    });
}
