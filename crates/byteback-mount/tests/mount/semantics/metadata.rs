//! Times, attributes, extended attributes, inode flags, space.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::process::Command;

use byteback_mount::CacheMode;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags, utimensat};
use rustix::fs::{getxattr, lgetxattr, listxattr, lsetxattr, removexattr, setxattr};
use rustix::io::Errno;

use crate::harness::Fixture;

fn set_times(path: &Path, atime: (i64, i64), mtime: (i64, i64)) {
    let spec = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: spec(atime),
        last_modification: spec(mtime),
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

#[test]
fn times_are_kept_to_the_nanosecond_also_before_1970() {
    let fixture = Fixture::new();
    fs::write(fixture.at("f"), b"").unwrap();
    symlink("f", fixture.at("l")).unwrap();
    fs::create_dir(fixture.at("d")).unwrap();
    for name in ["f", "l", "d"] {
        for (atime, mtime) in [
            ((1, 2), (3, 999_999_999)),
            ((-1, 800_000_000), (-86_400, 1)),
            ((4_000_000_000, 5), (0, 0)),
        ] {
            set_times(&fixture.at(name), atime, mtime);
            for path in [fixture.at(name), fixture.below(name)] {
                let seen = fs::symlink_metadata(path).unwrap();
                assert_eq!((seen.atime(), seen.atime_nsec()), atime, "{name}");
                assert_eq!((seen.mtime(), seen.mtime_nsec()), mtime, "{name}");
            }
        }
    }
}

#[test]
fn times_can_be_now_or_left() {
    let fixture = Fixture::new();
    fs::write(fixture.at("f"), b"").unwrap();
    set_times(&fixture.at("f"), (10, 0), (20, 0));
    set_times(&fixture.at("f"), (0, UTIME_OMIT), (0, UTIME_NOW));
    let seen = fs::metadata(fixture.at("f")).unwrap();
    assert_eq!(seen.atime(), 10);
    assert!(seen.mtime() > 1_000_000_000);
}

#[test]
fn a_write_moves_the_modification_time() {
    for mode in [byteback_mount::CacheMode::Exact, byteback_mount::CacheMode::Fast] {
        let fixture = Fixture::with_mode(mode);
        fs::write(fixture.at("f"), b"1").unwrap();
        set_times(&fixture.at("f"), (10, 0), (20, 0));
        assert_eq!(fs::metadata(fixture.at("f")).unwrap().mtime(), 20);
        fs::write(fixture.at("f"), b"2").unwrap();
        assert!(fs::metadata(fixture.at("f")).unwrap().mtime() > 1_000_000_000);
        assert!(fs::metadata(fixture.below("f")).unwrap().mtime() > 1_000_000_000);
    }
}

#[test]
fn extended_attributes_of_all_classes() {
    let fixture = Fixture::new();
    fs::write(fixture.at("f"), b"").unwrap();
    fs::create_dir(fixture.at("d")).unwrap();
    symlink("f", fixture.at("l")).unwrap();
    for name in ["f", "d", "l"] {
        let path = fixture.at(name);
        let classes: &[&str] = if name == "l" {
            &["trusted.a"]
        } else {
            &["user.a", "trusted.a", "security.a"]
        };
        for attribute in classes {
            let mut buffer = [0; 64];
            assert_eq!(lgetxattr(&path, *attribute, &mut buffer), Err(Errno::NODATA));
            lsetxattr(&path, *attribute, b"value", XattrFlags::CREATE).unwrap();
            assert_eq!(
                lsetxattr(&path, *attribute, b"v", XattrFlags::CREATE),
                Err(Errno::EXIST)
            );
            assert_eq!(lgetxattr(&path, *attribute, &mut buffer), Ok(5));
            assert_eq!(lgetxattr(fixture.below(name), *attribute, &mut buffer), Ok(5));
            assert_eq!(&buffer[..5], b"value");
            assert_eq!(lgetxattr(&path, *attribute, &mut buffer[..3]), Err(Errno::RANGE));
        }
    }
    let mut list = [0; 256];
    let length = listxattr(fixture.at("f"), &mut list).unwrap();
    assert!(list[..length].split(|byte| *byte == 0).any(|name| name == b"user.a"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Of this thread alone.
            rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65534)).unwrap();
            for path in [fixture.at("f"), fixture.below("f")] {
                let mut list = [0; 256];
                let length = listxattr(&path, &mut list).unwrap();
                let mut names: Vec<&[u8]> = list[..length].split(|byte| *byte == 0).collect();
                names.sort_unstable();
                assert_eq!(names, [&b""[..], b"security.a", b"user.a"], "{}", path.display());
            }
        });
    });
    removexattr(fixture.at("f"), "user.a").unwrap();
    assert_eq!(removexattr(fixture.at("f"), "user.a"), Err(Errno::NODATA));
    assert_eq!(
        setxattr(fixture.at("f"), "user.a", b"", XattrFlags::REPLACE),
        Err(Errno::NODATA)
    );
    // An empty value is a value.
    setxattr(fixture.at("f"), "user.empty", b"", XattrFlags::empty()).unwrap();
    assert_eq!(getxattr(fixture.at("f"), "user.empty", &mut list), Ok(0));
}

#[test]
fn inode_flags_pass_and_unknown_ioctls_are_refused_cleanly() {
    let fixture = Fixture::new();
    fs::write(fixture.at("f"), b"").unwrap();
    fs::create_dir(fixture.at("d")).unwrap();
    for name in ["f", "d"] {
        let (here, below) = (
            File::open(fixture.at(name)).unwrap(),
            File::open(fixture.below(name)).unwrap(),
        );
        let flags = rustix::fs::ioctl_getflags(&below).unwrap();
        assert_eq!(rustix::fs::ioctl_getflags(&here).unwrap(), flags);
        let noatime = flags | rustix::fs::IFlags::NOATIME;
        rustix::fs::ioctl_setflags(&here, noatime).unwrap();
        assert_eq!(rustix::fs::ioctl_getflags(&below).unwrap(), noatime);
        // SAFETY: the number stands for a request with an int of data, which is passed.
        let refused = unsafe {
            let mut word = 0i32;
            libc::ioctl(here.as_raw_fd(), 0x8004_7a01, &mut word)
        };
        assert_eq!(refused, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOTTY));
    }
}

#[test]
fn space_is_that_of_the_backing_file_system() {
    let fixture = Fixture::new();
    let (here, below) = (
        rustix::fs::statvfs(fixture.tree()).unwrap(),
        rustix::fs::statvfs(fixture.below("")).unwrap(),
    );
    assert_eq!(
        (here.f_blocks, here.f_files, here.f_bsize, here.f_namemax),
        (below.f_blocks, below.f_files, below.f_bsize, below.f_namemax)
    );
}

#[test]
fn syncing_files_and_directories() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.at("d")).unwrap();
    let file = File::create(fixture.at("d/f")).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    File::open(fixture.at("d")).unwrap().sync_all().unwrap();
}

/// xfstests generic/277.
#[test]
fn chattr_moves_the_change_time_at_once() {
    let fixture = Fixture::new();
    fs::write(fixture.at("f"), b"x").unwrap();
    fs::create_dir(fixture.at("d")).unwrap();
    for name in ["f", "d"] {
        for flag in ["+A", "-A"] {
            let seen = |path: &Path| {
                let now = fs::metadata(path).unwrap();
                (now.ctime(), now.ctime_nsec())
            };
            let before = seen(&fixture.at(name));
            // Until the clock of the file system has ticked.
            while seen(&fixture.below(name)) == before {
                let done = Command::new("chattr").arg(flag).arg(fixture.at(name)).status().unwrap();
                assert!(done.success());
            }
            assert_eq!(seen(&fixture.at(name)), seen(&fixture.below(name)), "{flag} {name}");
        }
    }
}

/// In mode `fast` the kernel keeps the times: what it shows is what the file below has, and stays
/// so.
#[test]
fn modification_times_below_are_those_that_are_shown() {
    for mode in [CacheMode::Exact, CacheMode::Fast] {
        let mut fixture = Fixture::with_mode(mode);
        let mut shown = Vec::new();
        for number in 0..40 {
            let name = format!("f{number}");
            let mut file = File::create(fixture.at(&name)).unwrap();
            for _ in 0..20 {
                file.write_all(&[b'x'; 3000]).unwrap();
            }
            match number % 4 {
                1 => file.sync_data().unwrap(),
                2 => rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap(),
                3 => file.set_len(100).unwrap(),
                _ => {}
            }
            drop(file);
            shown.push((name.clone(), mtime(&fixture.at(&name))));
        }
        for (name, shown) in &shown {
            assert_eq!(mtime(&fixture.below(name)), *shown, "{mode:?}, {name} below");
            assert_eq!(mtime(&fixture.at(name)), *shown, "{mode:?}, {name}");
        }
        fixture.end();
        for (name, shown) in &shown {
            assert_eq!(mtime(&fixture.below(name)), *shown, "{mode:?}, {name} after the mount");
        }
    }
}

fn mtime(path: &Path) -> (i64, i64) {
    let now = fs::metadata(path).unwrap();
    (now.mtime(), now.mtime_nsec())
}

#[test]
fn append_only_files_are_appended_to_and_nothing_else() {
    for mode in [CacheMode::Exact, CacheMode::Fast] {
        let fixture = Fixture::with_mode(mode);
        let path = fixture.at("log");
        fs::write(&path, vec![b'.'; 5000]).unwrap();
        let chattr = |flag| {
            let done = Command::new("chattr").arg(flag).arg(&path).status().unwrap();
            assert!(done.success());
        };
        chattr("+a");
        let mut expected = vec![b'.'; 5000];
        let mut files: Vec<File> = (0..2)
            .map(|_| File::options().append(true).read(true).open(&path).unwrap())
            .collect();
        files.push(File::options().append(true).open(&path).unwrap());
        for round in 0..100u8 {
            for file in &mut files {
                let piece = vec![round; usize::from(round) * 97 + 1];
                file.write_all(&piece).unwrap();
                expected.extend(piece);
            }
        }
        assert_eq!(fs::read(&path).unwrap(), expected, "{mode:?}");
        assert_eq!(fs::read(fixture.below("log")).unwrap(), expected, "{mode:?}");
        assert_eq!(fs::metadata(&path).unwrap().len(), expected.len() as u64);
        let refused = |done: std::io::Result<()>| assert_eq!(done.unwrap_err().raw_os_error(), Some(libc::EPERM));
        refused(File::options().write(true).open(&path).map(drop));
        refused(
            File::options()
                .append(true)
                .custom_flags(libc::O_TRUNC)
                .open(&path)
                .map(drop),
        );
        refused(files[0].set_len(10));
        refused(fs::remove_file(&path));
        drop(files);
        // Somebody has it open from before.
        chattr("-a");
        let before = File::options().read(true).write(true).open(&path).unwrap();
        chattr("+a");
        let mut after = File::options().append(true).open(&path).unwrap();
        before.write_all_at(b"begins", 0).unwrap();
        after.write_all(b"ends").unwrap();
        expected[..6].copy_from_slice(b"begins");
        expected.extend(b"ends");
        drop((before, after));
        assert_eq!(fs::read(&path).unwrap(), expected, "{mode:?}");
        assert_eq!(fs::read(fixture.below("log")).unwrap(), expected, "{mode:?}");
        chattr("-a");
    }
}
