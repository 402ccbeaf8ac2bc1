//! The changes in one file, requested by a program that has it open.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use byteback_ioctl::abi::{
    CLOSE_SAVED, CONSUMER_BYTES, DELTA_CLOSE, DELTA_GETDIFF, DELTA_OPEN, DELTA_READ, DeltaClose, DeltaGetdiff,
    DeltaOpen, DeltaRead, Layout, NO_MORE, RANGES_MAX, READ_BYTES_MAX, REASON_CREATED, REASON_NO_MARK, VERSION,
};
use byteback_ioctl::{DeltaError, DeltaFile, Range, State};
use byteback_mount::CacheMode;

use crate::fixture::Fixture;
use crate::operations::{Random, seed};
use crate::other_mount::{Disk, OtherMount};

fn mounted(mode: CacheMode, files: &[(&str, usize)]) -> Fixture {
    let mut fixture = Fixture::new(mode);
    for (name, len) in files {
        fs::write(fixture.tree().join(name), vec![b'.'; *len]).unwrap();
    }
    fixture.mount();
    fixture
}

fn ranges(delta: &DeltaFile<'_>) -> Vec<(u64, u64)> {
    let ranges: Vec<Range> = delta.ranges().map(Result::unwrap).collect();
    assert_eq!(ranges.len() as u64, delta.info().range_count);
    assert_eq!(
        ranges.iter().map(|range| range.len_bytes).sum::<u64>(),
        delta.info().changed_bytes
    );
    ranges.iter().map(|range| (range.offset, range.len_bytes)).collect()
}

fn content(delta: &DeltaFile<'_>) -> Vec<u8> {
    // One byte more than there is: the end must be seen.
    let mut bytes = vec![0xEE; usize::try_from(delta.info().size_bytes).unwrap() + 1];
    let got = delta.read_at(0, &mut bytes).unwrap();
    assert_eq!(got + 1, bytes.len());
    bytes.truncate(got);
    bytes
}

#[test]
fn delta_tells_a_descriptor_holder_what_changed_since_its_mark() {
    let fixture = mounted(CacheMode::Exact, &[("file", 100_000)]);
    let path = fixture.tree().join("file");
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();

    let first = DeltaFile::open(&file, "one", None).unwrap();
    assert_eq!(first.info().state, State::Whole { reason: REASON_NO_MARK });
    assert_eq!(ranges(&first), [(0, 100_000)]);
    assert_eq!(first.info().since, None);
    let version = first.info().version;
    first.commit().unwrap();

    file.write_all_at(b"changed", 5000).unwrap();
    let second = DeltaFile::open(&file, "one", None).unwrap();
    assert_eq!(second.info().state, State::Ranges);
    assert_eq!(second.info().since, Some(version));
    assert_eq!(ranges(&second), [(5000, 7)]);
    // Not saved: the mark stays.
    second.close().unwrap();
    assert_eq!(ranges(&DeltaFile::open(&file, "one", None).unwrap()), [(5000, 7)]);

    // Another consumer has its own mark, and a consumer that keeps account by itself needs none.
    let other = DeltaFile::open(&file, "two", None).unwrap();
    assert_eq!(other.info().state, State::Whole { reason: REASON_NO_MARK });
    drop(other);
    let asked = DeltaFile::open(&file, "one", Some(u64::MAX)).unwrap();
    assert_eq!(
        asked.info().state,
        State::Whole { reason: REASON_NO_MARK },
        "no such version yet"
    );
    drop(asked);

    DeltaFile::open(&file, "one", None).unwrap().commit().unwrap();
    let nothing = DeltaFile::open(&file, "one", None).unwrap();
    assert_eq!((ranges(&nothing).len(), nothing.info().state), (0, State::Ranges));
    nothing.commit().unwrap();

    // Identity follows the file, also when it is renamed; one that takes its name is another.
    fs::rename(&path, fixture.tree().join("renamed")).unwrap();
    fs::write(&path, "new").unwrap();
    assert_eq!(ranges(&DeltaFile::open(&file, "one", None).unwrap()), [(0, 0); 0]);
    let new = File::open(&path).unwrap();
    let state = DeltaFile::open(&new, "one", None).unwrap().info().state;
    assert!(
        matches!(
            state,
            State::Whole {
                reason: REASON_CREATED | REASON_NO_MARK
            }
        ),
        "{state:?}"
    );
}

#[test]
fn frozen_file_survives_writes_renames_and_removal() {
    let fixture = mounted(CacheMode::Exact, &[("file", 300_000)]);
    let path = fixture.tree().join("file");
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let old = fs::read(&path).unwrap();
    let delta = DeltaFile::open(&file, "one", None).unwrap();
    let shown = fixture.tree().join(".byteback/delta").join(delta.number().to_string());
    file.write_all_at(&[1; 5000], 70_000).unwrap();
    assert_eq!(content(&delta), old);
    file.set_len(10).unwrap();
    assert_eq!(content(&delta), old);
    fs::rename(&path, fixture.tree().join("renamed")).unwrap();
    assert_eq!(content(&delta), old);
    fs::remove_file(fixture.tree().join("renamed")).unwrap();
    file.write_all_at(&[2; 400_000], 0).unwrap();
    assert_eq!(content(&delta), old);

    let metadata = fs::metadata(&shown).unwrap();
    assert_eq!(
        (metadata.len(), metadata.mode() & 0o7777, metadata.nlink()),
        (300_000, 0o400, 1)
    );
    assert_eq!(fs::read(&shown).unwrap(), old);
    assert_eq!(fs::read_dir(shown.parent().unwrap()).unwrap().count(), 0);
    let mut middle = [0; 100];
    assert_eq!(delta.read_at(299_950, &mut middle).unwrap(), 50);
    assert_eq!(delta.read_at(300_000, &mut middle).unwrap(), 0);
    assert_eq!(delta.read_at(u64::MAX, &mut middle).unwrap(), 0);
    drop(delta);
    assert!(fs::read(&shown).is_err(), "it goes with its context");
    // A removed file has no marks any more.
    let gone = DeltaFile::open(&file, "one", None).unwrap_err();
    assert!(matches!(gone, DeltaError::Unknown), "{gone}");
}

#[test]
fn many_ranges_come_in_pages_that_can_be_resumed_anywhere() {
    let fixture = mounted(CacheMode::Exact, &[("file", 400_000)]);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(fixture.tree().join("file"))
        .unwrap();
    DeltaFile::open(&file, "one", None).unwrap().commit().unwrap();
    let count = 3 * RANGES_MAX as u64 + 7;
    for number in 0..count {
        file.write_all_at(b"x", number * 100 + 3).unwrap();
    }
    let delta = DeltaFile::open(&file, "one", None).unwrap();
    let all = ranges(&delta);
    assert_eq!(all.len() as u64, count);
    assert!(
        all.iter()
            .zip(0..)
            .all(|(range, number)| *range == (number * 100 + 3, 1))
    );
    for from in [0, 3, 4, 250_003, 250_004, count * 100, u64::MAX] {
        let resumed: Vec<u64> = delta.ranges_from(from).map(|range| range.unwrap().offset).collect();
        let expected: Vec<u64> = all.iter().map(|(at, _)| *at).filter(|at| *at >= from).collect();
        assert_eq!(resumed, expected, "from {from}");
    }
}

/// A copy that is only ever passed the changes stays equal to what was frozen.
fn copies_follow(mode: CacheMode, seed: u64) {
    let mut random = Random::new(seed);
    let fixture = mounted(mode, &[("file", 200_000)]);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(fixture.tree().join("file"))
        .unwrap();
    let mut copies: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    let started = Instant::now();
    let (mut saved, mut whole) = (0_u32, 0_u32);
    while started.elapsed() < Duration::from_secs(4) {
        let at = random.below(250_000);
        let len = usize::try_from(random.below(9000)).unwrap();
        match random.below(12) {
            0 => file.set_len(at).unwrap(),
            1 => {
                let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, mode, at, len as u64 + 1).unwrap();
            }
            2..=3 => {
                let consumer = random.pick(&["one", "two", "three"]);
                // Not by another open file: closing it would make the kernel write what it has
                // collected.
                let mut now = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
                file.read_exact_at(&mut now, 0).unwrap();
                let delta = DeltaFile::open(&file, consumer, None).unwrap();
                // Later than what was frozen.
                file.write_all_at(&vec![b'!'; len], at).unwrap();
                whole += u32::from(delta.info().state != State::Ranges);
                let copy = copies.entry(consumer).or_default();
                copy.resize(now.len(), 0);
                for range in delta.ranges() {
                    let range = range.unwrap();
                    let (from, to) = (
                        usize::try_from(range.offset).unwrap(),
                        usize::try_from(range.end()).unwrap(),
                    );
                    assert_eq!(delta.read_at(range.offset, &mut copy[from..to]).unwrap(), to - from);
                }
                let first = copy.iter().zip(&now).position(|(copy, now)| copy != now);
                assert_eq!(first, None, "seed {seed}, {mode:?}: first difference");
                assert_eq!(content(&delta), now);
                if random.below(4) == 0 {
                    // As if the copy had not arrived: changes that are reported again may be laid
                    // over it.
                    delta.close().unwrap();
                } else {
                    delta.commit().unwrap();
                    saved += 1;
                }
            }
            _ => {
                let byte = u8::try_from(random.below(256)).unwrap();
                file.write_all_at(&vec![byte; len], at).unwrap();
            }
        }
    }
    println!("{mode:?}: {saved} saved, {whole} of them whole");
    assert!(saved > 10 && whole < saved, "{saved} {whole}");
}

#[test]
fn copies_that_are_told_only_changes_stay_equal_exact() {
    copies_follow(CacheMode::Exact, seed());
}

#[test]
fn copies_that_are_told_only_changes_stay_equal_fast() {
    copies_follow(CacheMode::Fast, seed());
}

fn raw<T: Layout>(file: &File, number: u32, argument: &T) -> io::Result<T> {
    let mut bytes = argument.encode();
    // SAFETY: the buffer has the size that is in the number, or more.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(number), bytes.as_mut_ptr()) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(T::decode(&bytes).unwrap())
}

fn open_request(name: &[u8]) -> DeltaOpen {
    let mut consumer = [0; CONSUMER_BYTES];
    consumer[..name.len()].copy_from_slice(name);
    DeltaOpen {
        size: u32::try_from(DeltaOpen::SIZE).unwrap(),
        version: VERSION,
        since: 0,
        flags: 0,
        reserved0: 0,
        consumer,
        context: 0,
        tree: 0,
        node: 0,
        version_since: 0,
        version_now: 0,
        size_bytes: 0,
        range_count: 0,
        changed_bytes: 0,
        state: 0,
        reason: 0,
        reserved: [0; 4],
    }
}

fn getdiff_request(context: u64, position: u64) -> DeltaGetdiff {
    DeltaGetdiff {
        size: u32::try_from(DeltaGetdiff::SIZE).unwrap(),
        version: VERSION,
        context,
        position,
        next: 7,
        count: u32::MAX,
        reserved: 0,
        ranges: [[u64::MAX; 2]; RANGES_MAX],
    }
}

fn read_request(context: u64, offset: u64, len_bytes: u32) -> DeltaRead {
    DeltaRead {
        size: u32::try_from(DeltaRead::SIZE).unwrap(),
        version: VERSION,
        context,
        offset,
        len_bytes,
        reserved: 0,
        data: [0xEE; READ_BYTES_MAX],
    }
}

fn close_request(context: u64, flags: u32) -> DeltaClose {
    DeltaClose {
        size: u32::try_from(DeltaClose::SIZE).unwrap(),
        version: VERSION,
        context,
        flags,
        reserved: 0,
    }
}

#[track_caller]
fn assert_errno<T>(done: io::Result<T>, errno: i32) {
    let error = done.err().expect("it was allowed");
    assert_eq!(error.raw_os_error(), Some(errno), "{error}");
}

#[test]
fn hostile_arguments_get_clean_errors() {
    let fixture = mounted(CacheMode::Exact, &[("file", 5000), ("other", 5000)]);
    let file = File::open(fixture.tree().join("file")).unwrap();
    let other = File::open(fixture.tree().join("other")).unwrap();
    let good = open_request(b"one");
    let bad_arguments = [
        DeltaOpen { size: 0, ..good },
        DeltaOpen { size: u32::MAX, ..good },
        DeltaOpen { flags: 1, ..good },
        DeltaOpen { reserved0: 1, ..good },
        DeltaOpen {
            reserved: [0, 0, 0, 1],
            ..good
        },
        open_request(b""),
        open_request(b"a\nb"),
        open_request(b"a\xffb"),
        DeltaOpen {
            consumer: [b'x'; CONSUMER_BYTES],
            ..good
        },
    ];
    for bad in bad_arguments {
        assert_errno(raw(&file, DELTA_OPEN, &bad), libc::EINVAL);
    }
    assert_errno(
        raw(&file, DELTA_OPEN, &DeltaOpen { version: 2, ..good }),
        libc::EPROTONOSUPPORT,
    );
    // Another size is another call.
    assert_errno(raw(&file, DELTA_OPEN - (8 << 16), &good), libc::ENOTTY);
    assert_errno(raw(&file, (DELTA_OPEN & !0xff) | 9, &good), libc::ENOTTY);
    let written = OpenOptions::new()
        .write(true)
        .open(fixture.tree().join("file"))
        .unwrap();
    assert_errno(raw(&written, DELTA_OPEN, &good), libc::EBADF);
    let directory = File::open(fixture.tree()).unwrap();
    assert_errno(raw(&directory, DELTA_OPEN, &good), libc::ENOTTY);

    let opened = raw(&file, DELTA_OPEN, &good).unwrap();
    let context = opened.context;
    for number in [0, context + 1, u64::MAX] {
        assert_errno(raw(&file, DELTA_GETDIFF, &getdiff_request(number, 0)), libc::ENOENT);
        assert_errno(raw(&file, DELTA_READ, &read_request(number, 0, 1)), libc::ENOENT);
        assert_errno(
            raw(&file, DELTA_CLOSE, &close_request(number, CLOSE_SAVED)),
            libc::ENOENT,
        );
    }
    // A freeze through one open file does not belong to another one, even of the same file.
    let again = File::open(fixture.tree().join("file")).unwrap();
    for stranger in [&other, &again] {
        assert_errno(raw(stranger, DELTA_GETDIFF, &getdiff_request(context, 0)), libc::ENOENT);
        assert_errno(raw(stranger, DELTA_READ, &read_request(context, 0, 1)), libc::ENOENT);
        assert_errno(raw(stranger, DELTA_CLOSE, &close_request(context, 0)), libc::ENOENT);
    }
    let bad = DeltaGetdiff {
        reserved: 1,
        ..getdiff_request(context, 0)
    };
    assert_errno(raw(&file, DELTA_GETDIFF, &bad), libc::EINVAL);
    assert_errno(raw(&file, DELTA_CLOSE, &close_request(context, 2)), libc::EINVAL);
    let end = raw(&file, DELTA_GETDIFF, &getdiff_request(context, u64::MAX)).unwrap();
    assert_eq!((end.count, end.next), (0, NO_MORE));
    assert!(
        end.ranges.iter().all(|range| *range == [0; 2]),
        "nothing of ours is handed back"
    );
    let read = raw(&file, DELTA_READ, &read_request(context, 4990, u32::MAX)).unwrap();
    assert_eq!(read.len_bytes, 10);
    assert!(read.data[10..].iter().all(|byte| *byte == 0));
    raw(&file, DELTA_CLOSE, &close_request(context, CLOSE_SAVED)).unwrap();
    assert_errno(raw(&file, DELTA_CLOSE, &close_request(context, 0)), libc::ENOENT);

    // Bounded for each open file, and all of them end with it.
    let many = File::open(fixture.tree().join("file")).unwrap();
    let mut opened = 0;
    let refused = loop {
        match raw(&many, DELTA_OPEN, &good) {
            Ok(_) => opened += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((opened, refused.raw_os_error()), (16, Some(libc::EMFILE)));
    for _ in 0..8 {
        // More than a user may have at once, if they did not end.
        let file = File::open(fixture.tree().join("file")).unwrap();
        for _ in 0..16 {
            raw(&file, DELTA_OPEN, &good).unwrap();
        }
        drop(file);
        // The kernel reports the end a moment later.
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn users_have_consumers_and_frozen_files_of_their_own() {
    let fixture = mounted(CacheMode::Exact, &[("file", 5000)]);
    let path = fixture.tree().join("file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    DeltaFile::open(&file, "one", None).unwrap().commit().unwrap();
    file.write_all_at(b"x", 100).unwrap();

    let shown = fixture.tree().join(".byteback/delta");
    let roots = DeltaFile::open(&file, "one", None).unwrap();
    let roots_path = shown.join(roots.number().to_string());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Of this thread alone.
            rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65534)).unwrap();
            let file = File::open(&path).unwrap();
            let theirs = DeltaFile::open(&file, "one", None).unwrap();
            assert_eq!(theirs.info().state, State::Whole { reason: REASON_NO_MARK });
            let own = fs::read(shown.join(theirs.number().to_string())).unwrap();
            assert_eq!(own.len(), 5000);
            assert_eq!(fs::read(&roots_path).unwrap_err().raw_os_error(), Some(libc::EACCES));
            theirs.commit().unwrap();
        });
    });
    drop(roots);
    // The mark of the same name that another user has was moved, ours was not.
    assert_eq!(ranges(&DeltaFile::open(&file, "one", None).unwrap()), [(100, 1)]);
}

#[test]
fn a_commit_that_is_refused_ends_the_frozen_file() {
    let fixture = mounted(CacheMode::Exact, &[("file", 1000)]);
    let file = File::open(fixture.tree().join("file")).unwrap();
    for number in 0..64 {
        let delta = DeltaFile::open(&file, &format!("consumer {number}"), None).unwrap();
        delta.commit().unwrap();
    }
    // More than may be frozen at the same time.
    for _ in 0..40 {
        let delta = DeltaFile::open(&file, "one too many", None).unwrap();
        let refused = delta.commit().unwrap_err();
        let DeltaError::System { source, .. } = refused else {
            panic!("{refused}");
        };
        assert_eq!(source.raw_os_error(), Some(libc::EDQUOT));
    }
}

/// Runs `what` as a user who is neither root nor the owner of the mount.
fn as_a_guest(uid: u32, what: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let guest = scope.spawn(move || {
            // Of this thread alone.
            rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(uid)).unwrap();
            what();
        });
        guest.join().unwrap();
    });
}

#[test]
fn guests_leave_frozen_files_to_the_owner_of_the_mount() {
    let fixture = mounted(CacheMode::Exact, &[("file", 5000)]);
    let path = fixture.tree().join("file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let files: Vec<File> = (0..80).map(|_| File::open(&path).unwrap()).collect();
    let mut frozen = Vec::new();
    let frozen_by_guests = std::sync::Mutex::new(Vec::new());
    for uid in 60_000..60_006 {
        as_a_guest(uid, || {
            for file in &files {
                match DeltaFile::open(file, "one", None) {
                    Ok(delta) => frozen_by_guests.lock().unwrap().push((uid, delta)),
                    Err(_) => break,
                }
            }
        });
    }
    let of_guests = frozen_by_guests.into_inner().unwrap();
    let of = |uid| of_guests.iter().filter(|(guest, _)| *guest == uid).count();
    assert_eq!([60_000, 60_003, 60_004, 60_005].map(of), [24, 24, 0, 0]);
    for file in &files[..32] {
        frozen.push(DeltaFile::open(file, "one", None).unwrap());
    }
    assert!(DeltaFile::open(&files[32], "one", None).is_err());
}

#[test]
fn deltas_kept_for_a_guest_leave_a_quarter_of_the_disk() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    let state = fixture.folder().path().parent().unwrap().parent().unwrap().to_owned();
    fs::create_dir_all(&state).unwrap();
    let disk = Disk::of_len_bytes("ext4", 2 << 30).expect("mkfs.ext4; scripts/install-dependencies installs e2fsprogs");
    let _bound = OtherMount::new(&["--bind", disk.path().to_str().unwrap()], &state);
    let path = fixture.tree().join("file");
    fs::write(&path, vec![1; 300_000]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fixture.mount();
    // More than a cut must leave free, and less than a guest must.
    let filler = File::create(disk.path().join("filler")).unwrap();
    let space = rustix::fs::statvfs(disk.path()).unwrap();
    let free_bytes = space.f_bavail * space.f_frsize;
    rustix::fs::fallocate(
        &filler,
        rustix::fs::FallocateFlags::empty(),
        0,
        free_bytes - (400 << 20),
    )
    .unwrap();
    let (live, theirs) = (File::open(&path).unwrap(), File::open(&path).unwrap());
    let own = DeltaFile::open(&live, "one", None).unwrap();
    let of_a_guest = std::sync::Mutex::new(None);
    as_a_guest(60_000, || {
        *of_a_guest.lock().unwrap() = Some(DeltaFile::open(&theirs, "one", None).unwrap());
    });
    let of_a_guest = of_a_guest.into_inner().unwrap().unwrap();
    fs::write(&path, vec![2; 300_000]).unwrap();
    let mut byte = [0];
    own.read_at(299_999, &mut byte).unwrap();
    assert_eq!(byte, [1]);
    let DeltaError::System { source, .. } = of_a_guest.read_at(299_999, &mut byte).unwrap_err() else {
        panic!("another error was expected");
    };
    assert_eq!(source.raw_os_error(), Some(libc::EIO));
    drop((own, of_a_guest));
    drop((live, theirs, filler));
    fixture.umount();
}
