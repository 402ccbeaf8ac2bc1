//! Bytes, holes, special opens.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::time::Duration;

use byteback_mount::CacheMode;

use rustix::fs::{FallocateFlags, SeekFrom as At, fallocate, seek};
use rustix::io::Errno;

use crate::harness::{Fixture, set_mode};

fn both_modes(test: impl Fn(&Fixture)) {
    test(&Fixture::with_mode(CacheMode::Exact));
    test(&Fixture::with_mode(CacheMode::Fast));
}

#[test]
fn what_is_written_is_read_here_and_below() {
    let fixture = Fixture::new();
    fs::write(fixture.at("a"), b"hello").unwrap();
    assert_eq!(fs::read(fixture.at("a")).unwrap(), b"hello");
    assert_eq!(fs::read(fixture.below("a")).unwrap(), b"hello");
}

#[test]
fn a_write_is_in_the_backing_file_before_it_returns() {
    let fixture = Fixture::new();
    let file = File::create(fixture.at("a")).unwrap();
    for n in 0..200u64 {
        file.write_all_at(&n.to_le_bytes(), n * 8).unwrap();
        assert_eq!(fs::read(fixture.below("a")).unwrap().len() as u64, n * 8 + 8);
    }
}

#[test]
fn appends_of_two_openers_do_not_overwrite() {
    both_modes(|fixture| {
        let open = || {
            OpenOptions::new()
                .append(true)
                .create(true)
                .open(fixture.at("log"))
                .unwrap()
        };
        let (mut a, mut b) = (open(), open());
        for _ in 0..100 {
            a.write_all(b"aaaaa").unwrap();
            b.write_all(b"bbbbbbb").unwrap();
        }
        assert_eq!(fs::read(fixture.at("log")).unwrap(), b"aaaaabbbbbbb".repeat(100));
    });
}

#[test]
fn write_only_opens_of_unaligned_pieces_work_in_both_modes() {
    both_modes(|fixture| {
        fs::write(fixture.at("a"), vec![7u8; 10_000]).unwrap();
        set_mode(&fixture.at("a"), 0o200);
        let file = OpenOptions::new().write(true).open(fixture.at("a")).unwrap();
        file.write_all_at(b"xyz", 4095).unwrap();
        drop(file);
        let mut expected = vec![7u8; 10_000];
        expected[4095..4098].copy_from_slice(b"xyz");
        assert_eq!(fs::read(fixture.at("a")).unwrap(), expected);
        assert_eq!(fs::read(fixture.below("a")).unwrap(), expected);
    });
}

#[test]
fn a_write_only_descriptor_cannot_be_read() {
    let fixture = Fixture::new();
    fs::write(fixture.at("a"), b"secret").unwrap();
    let mut file = OpenOptions::new().write(true).open(fixture.at("a")).unwrap();
    assert_eq!(file.read(&mut [0; 4]).unwrap_err().raw_os_error(), Some(libc::EBADF));
}

#[test]
fn files_beyond_four_gibibytes() {
    both_modes(|fixture| {
        let file = File::create(fixture.at("big")).unwrap();
        let far = (5 << 30) + 123;
        file.write_all_at(b"far", far).unwrap();
        drop(file);
        let mut file = File::open(fixture.at("big")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), far + 3);
        file.seek(SeekFrom::Start(far)).unwrap();
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"far");
        assert!(file.metadata().unwrap().blocks() < 1000, "the hole takes no space");
    });
}

#[test]
fn holes_are_found() {
    let fixture = Fixture::new();
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(fixture.at("s"))
        .unwrap();
    file.write_all_at(&[1; 4096], 1 << 20).unwrap();
    file.set_len(2 << 20).unwrap();
    assert_eq!(seek(&file, At::Data(0)).unwrap(), 1 << 20);
    assert_eq!(seek(&file, At::Hole(1 << 20)).unwrap(), (1 << 20) + 4096);
    assert_eq!(seek(&file, At::Data((1 << 20) + 4096)).unwrap_err(), Errno::NXIO);
}

#[test]
fn fallocate_in_the_modes_that_the_kernel_forwards() {
    let fixture = Fixture::new();
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(fixture.at("f"))
        .unwrap();
    file.write_all_at(&[9; 65536], 0).unwrap();
    fallocate(&file, FallocateFlags::empty(), 65536, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 65536 + 4096);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 1 << 20, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 65536 + 4096);
    fallocate(
        &file,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        100,
        10_000,
    )
    .unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE, 20_000, 5).unwrap();
    let mut expected = vec![9u8; 65536];
    expected[100..10_100].fill(0);
    expected[20_000..20_005].fill(0);
    expected.resize(65536 + 4096, 0);
    assert_eq!(fs::read(fixture.at("f")).unwrap(), expected);
    assert_eq!(fs::read(fixture.below("f")).unwrap(), expected);
    for refused in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(fallocate(&file, refused, 0, 4096).unwrap_err(), Errno::OPNOTSUPP);
    }
}

#[test]
fn ranges_are_copied_inside_the_mount_and_from_outside() {
    let fixture = Fixture::new();
    let content: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    fs::write(fixture.at("a"), &content).unwrap();
    let (from, to) = (
        File::open(fixture.at("a")).unwrap(),
        File::create(fixture.at("b")).unwrap(),
    );
    let (mut read_at, mut write_at) = (1001, 77);
    let copied = rustix::fs::copy_file_range(&from, Some(&mut read_at), &to, Some(&mut write_at), 300_000).unwrap();
    assert_eq!(copied, 300_000);
    let mut expected = vec![0; 77];
    expected.extend_from_slice(&content[1001..301_001]);
    assert_eq!(fs::read(fixture.below("b")).unwrap(), expected);
    // Another file system: the standard library falls back as cp does.
    fs::copy("/proc/version", fixture.at("c")).unwrap();
    assert_eq!(fs::read(fixture.at("c")).unwrap(), fs::read("/proc/version").unwrap());
}

#[test]
fn opening_with_truncation_empties() {
    both_modes(|fixture| {
        fs::write(fixture.at("a"), vec![1; 10_000]).unwrap();
        let file = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(fixture.at("a"))
            .unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert_eq!(fs::metadata(fixture.below("a")).unwrap().len(), 0);
        file.write_all_at(b"new", 0).unwrap();
        drop(file);
        assert_eq!(fs::read(fixture.at("a")).unwrap(), b"new");
    });
}

#[test]
fn truncation_by_path_and_by_descriptor() {
    both_modes(|fixture| {
        fs::write(fixture.at("a"), vec![5; 10_000]).unwrap();
        let file = OpenOptions::new().write(true).open(fixture.at("a")).unwrap();
        file.set_len(4097).unwrap();
        assert_eq!(fs::read(fixture.at("a")).unwrap(), vec![5; 4097]);
        drop(file);
        let path = std::ffi::CString::new(fixture.at("a").to_str().unwrap()).unwrap();
        // SAFETY: a constant path.
        assert_eq!(unsafe { libc::truncate(path.as_ptr(), 9000) }, 0);
        let mut expected = vec![5; 4097];
        expected.resize(9000, 0);
        assert_eq!(fs::read(fixture.at("a")).unwrap(), expected);
        let read_only = File::open(fixture.at("a")).unwrap();
        assert_eq!(read_only.set_len(1).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    });
}

#[test]
fn an_unlinked_open_file_lives_on() {
    both_modes(|fixture| {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(fixture.at("gone"))
            .unwrap();
        file.write_all_at(b"before", 0).unwrap();
        fs::remove_file(fixture.at("gone")).unwrap();
        file.write_all_at(b"after!", 6).unwrap();
        file.set_len(9).unwrap();
        rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o640)).unwrap();
        rustix::fs::fsetxattr(&file, "user.x", b"1", rustix::fs::XattrFlags::empty()).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(
            (metadata.nlink(), metadata.len(), metadata.mode() & 0o777),
            (0, 9, 0o640)
        );
        let mut read = [0; 9];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"beforeaft");
        // A second descriptor of the nameless file, through the magic link.
        let again = byteback_host::tree::reopen(&file, rustix::fs::OFlags::RDONLY).unwrap();
        assert_eq!(rustix::io::pread(&again, &mut read, 0).unwrap(), 9);
        file.sync_all().unwrap();
        // The name can be used for another file meanwhile.
        fs::write(fixture.at("gone"), b"other").unwrap();
        assert_ne!(fs::metadata(fixture.at("gone")).unwrap().ino(), metadata.ino());
        assert_eq!(file.metadata().unwrap().len(), 9);
    });
}

#[test]
fn direct_and_synchronous_opens() {
    let fixture = Fixture::new();
    let direct = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(fixture.at("d"))
        .unwrap();
    let buffer = vec![3u8; 8192 + 4096];
    let aligned = buffer.as_ptr().align_offset(4096);
    direct.write_all_at(&buffer[aligned..aligned + 8192], 4096).unwrap();
    assert_eq!(fs::read(fixture.at("d")).unwrap().len(), 12288);
    let sync = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_SYNC)
        .open(fixture.at("d"))
        .unwrap();
    sync.write_all_at(b"durable", 1).unwrap();
    sync.sync_data().unwrap();
    assert_eq!(&fs::read(fixture.below("d")).unwrap()[1..8], b"durable");
}

#[test]
fn exclusive_creation() {
    let fixture = Fixture::new();
    fs::write(fixture.at("a"), b"").unwrap();
    let again = File::options().write(true).create_new(true).open(fixture.at("a"));
    assert_eq!(again.unwrap_err().raw_os_error(), Some(libc::EEXIST));
}

#[test]
fn name_made_below_is_found_although_remembered_as_absent() {
    let fixture = Fixture::new();
    assert!(!fixture.at("late").exists());
    fs::write(fixture.below("late"), b"from below").unwrap();
    // Creating finds it, and the kernel looks again.
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(fixture.at("late"))
        .unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "from below");
}

#[test]
fn programs_run_and_cannot_be_written_meanwhile() {
    let fixture = Fixture::new();
    // By another process: a descriptor of ours could be inherited by what another test starts just
    // then, and would make the program busy.
    crate::harness::run_as(0, "0", &fixture.tree(), "cp /bin/sleep sleep");
    let mut child = std::process::Command::new(fixture.at("sleep"))
        .arg("5")
        .spawn()
        .unwrap();
    let busy = OpenOptions::new().write(true).open(fixture.at("sleep"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(busy.unwrap_err().raw_os_error(), Some(libc::ETXTBSY));
}

/// `open(O_RDONLY | O_TRUNC)` is refused only after the file was opened; it must not be empty by
/// then.
#[test]
fn a_running_program_is_not_emptied_by_opening_it() {
    both_modes(|fixture| {
        crate::harness::run_as(0, "0", &fixture.tree(), "cp /bin/sleep sleep");
        let whole = fs::metadata("/bin/sleep").unwrap().len();
        let path = std::ffi::CString::new(fixture.at("sleep").to_str().unwrap()).unwrap();
        let empty = || {
            // SAFETY: a path that lives during the call.
            let opened = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_TRUNC | libc::O_CLOEXEC) };
            if opened < 0 {
                return Err(std::io::Error::last_os_error());
            }
            // SAFETY: a descriptor of our own.
            unsafe { libc::close(opened) };
            Ok(())
        };
        let mut child = std::process::Command::new(fixture.at("sleep"))
            .arg("60")
            .spawn()
            .unwrap();
        let busy = empty();
        let len_bytes = fs::metadata(fixture.below("sleep")).unwrap().len();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(busy.unwrap_err().raw_os_error(), Some(libc::ETXTBSY));
        assert_eq!(len_bytes, whole);
        // Nobody runs it any more.
        empty().unwrap();
        assert_eq!(fs::metadata(fixture.below("sleep")).unwrap().len(), 0);
    });
}

#[test]
fn locks_hold_between_openers() {
    let fixture = Fixture::new();
    fs::write(fixture.at("l"), b"x").unwrap();
    let open = || File::options().read(true).write(true).open(fixture.at("l")).unwrap();
    let (a, b) = (open(), open());
    a.lock().unwrap();
    assert!(matches!(b.try_lock(), Err(fs::TryLockError::WouldBlock)));
    a.unlock().unwrap();
    b.try_lock().unwrap();
    // Record locks of the open file description.
    let lock = |file: &File, kind: i32| {
        // SAFETY: all-zero is a valid flock, and the call reads only the struct.
        unsafe {
            let mut flock: libc::flock = std::mem::zeroed();
            flock.l_type = i16::try_from(kind).unwrap();
            flock.l_len = 10;
            libc::fcntl(
                std::os::fd::AsRawFd::as_raw_fd(&file.as_fd()),
                libc::F_OFD_SETLK,
                &flock,
            )
        }
    };
    assert_eq!(lock(&a, libc::F_WRLCK), 0);
    assert_eq!(lock(&b, libc::F_WRLCK), -1);
    drop(a);
    assert_eq!(lock(&b, libc::F_WRLCK), 0);
}

#[test]
fn a_full_disk_writes_what_fits_and_says_so() {
    let fixture = Fixture::prepared(CacheMode::Exact, |tree| {
        rustix::mount::mount(
            "none",
            tree,
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            Some(c"size=1m"),
        )
        .unwrap();
    });
    let file = File::create(fixture.at("full")).unwrap();
    let error = (0..)
        .find_map(|n| file.write_all_at(&[n as u8; 100_000], n * 100_000).err())
        .unwrap();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    let below = fs::read(fixture.below("full")).unwrap();
    assert_eq!(below, fs::read(fixture.at("full")).unwrap());
    assert!(below.len() > 900_000);
    fs::remove_file(fixture.at("full")).unwrap();
    drop(file);
    // The kernel tells the mount of a last close after the program has been told that it is done.
    let fits = (0..500).any(|_| match fs::write(fixture.at("fits"), vec![1; 500_000]) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
            std::thread::sleep(Duration::from_millis(20));
            false
        }
    });
    assert!(fits, "what was removed still takes its room");
}

#[test]
fn unnamed_temporary_files_are_refused_and_programs_fall_back() {
    let fixture = Fixture::new();
    let refused = File::options()
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(fixture.tree());
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
    // The crate does what others do: a name, at once removed.
    let mut file = tempfile::tempfile_in(fixture.tree()).unwrap();
    file.write_all(b"x").unwrap();
}
