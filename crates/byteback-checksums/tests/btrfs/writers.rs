//! Files that are written while their checksums are read.
//!
//! A writer performs numbered operations, each of which puts its number at the start of a block.
//! The result must then be the state between two of them: after those that had ended when the
//! extraction began, and before those that began after it ended.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use byteback_checksums::source::{FileChecksums, Run, SourceError};
use byteback_host::clock::RealClock;
use byteback_host::random::SplitMix64;
use rustix::mm::{MapFlags, ProtFlags};

use crate::disk::{Disk, run, text};
use crate::files::{check, collect, noise};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 2000;

/// A block with a number, aligned as the kernel requires for direct writes.
#[repr(align(4096))]
pub(crate) struct Aligned(pub(crate) [u8; BLOCK as usize]);

impl Aligned {
    pub(crate) fn new(number: u64) -> Self {
        let mut block = [0xab; BLOCK as usize];
        block[..8].copy_from_slice(&number.to_le_bytes());
        Self(block)
    }
}

/// A file in memory, for stores.
pub(crate) struct Mapped {
    start: *mut std::ffi::c_void,
    len: usize,
}

// SAFETY: it is memory that belongs to nobody else; all stores to it are whole words.
unsafe impl Send for Mapped {}

impl Mapped {
    pub(crate) fn new(file: &File, len: u64) -> Self {
        let len = len as usize;
        // SAFETY: a new mapping, whose place the kernel chooses.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        Self {
            start: start.unwrap(),
            len,
        }
    }

    pub(crate) fn store(&self, at: u64, value: u64) {
        assert!(at.is_multiple_of(8) && at as usize + 8 <= self.len);
        // SAFETY: within the mapping, aligned.
        unsafe {
            self.start
                .cast::<u64>()
                .add(at as usize / 8)
                .write_volatile(value.to_le())
        };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference into it.
        let _ = unsafe { rustix::mm::munmap(self.start, self.len) };
    }
}

/// The writer's account: the block of each operation; operation 0 made the file.
#[derive(Default)]
struct Account {
    blocks: Mutex<Vec<u64>>,
    begun: AtomicU64,
    ended: AtomicU64,
    is_over: AtomicBool,
}

/// Ends the writer, also when a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn make(path: &Path) -> File {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .unwrap();
    file.write_all_at(&Aligned::new(0).0.repeat(BLOCKS as usize), 0)
        .unwrap();
    file
}

/// Writes in bursts, in every possible way, and rests `rest_ms` at most between them.
fn write(path: &Path, seed: u64, rest_ms: u64, account: &Account) {
    let mut random = SplitMix64::new(seed);
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let direct = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap();
    let mapped = Mapped::new(&file, BLOCKS * BLOCK);
    let mut number = 0;
    while !account.is_over.load(Ordering::SeqCst) {
        for _ in 0..1 + random.below(12) {
            number += 1;
            let block = random.below(BLOCKS);
            account.blocks.lock().unwrap().push(block);
            account.begun.store(number, Ordering::SeqCst);
            match random.below(5) {
                0 => direct.write_all_at(&Aligned::new(number).0, block * BLOCK).unwrap(),
                1 | 2 => mapped.store(block * BLOCK, number),
                _ => file.write_all_at(&Aligned::new(number).0, block * BLOCK).unwrap(),
            }
            account.ended.store(number, Ordering::SeqCst);
        }
        if rest_ms == 0 {
            continue;
        }
        match random.below(6) {
            0 => file.sync_data().unwrap(),
            1 => run("btrfs", &["filesystem", "sync", text(path)]),
            _ => {}
        }
        // Mostly a little longer than the rest that an extraction waits for.
        let rest_us = [
            random.below(rest_ms * 1000 + 1),
            rest_ms.min(21) * 1000 + random.below(rest_ms * 50 + 1),
        ];
        std::thread::sleep(Duration::from_micros(rest_us[random.below(2) as usize]));
    }
}

/// Whether `reported` is the state at one moment between the operations `ended_before` and
/// `begun_after`.
fn check_moment(reported: &FileChecksums, account: &Account, ended_before: u64, begun_after: u64) {
    let blocks = account.blocks.lock().unwrap().clone();
    let mut numbers = HashMap::new();
    for number in 0..=begun_after {
        let mut sum = Vec::new();
        reported.layout().append_sum(&Aligned::new(number).0, &mut sum);
        numbers.insert(sum, number);
    }
    let (mut from, mut to) = (ended_before, begun_after);
    let mut covered = 0;
    for run in reported.runs() {
        let Run::Sums { range, sums } = run else {
            panic!("everything has a checksum: {run:?}");
        };
        for (index, sum) in sums.chunks(reported.layout().kind.len_bytes()).enumerate() {
            let block = range.start() / BLOCK + index as u64;
            let number = *numbers.get(sum).expect("a checksum of no state that ever was");
            // The next operation on this block was not over yet.
            let later = blocks
                .iter()
                .enumerate()
                .skip(number as usize)
                .find(|(_, other)| **other == block);
            let next = later.map_or(u64::MAX, |(at, _)| at as u64 + 1);
            assert!(
                next > ended_before,
                "block {block} is told as it was before operation {next}, and {ended_before} were over"
            );
            from = from.max(number);
            to = to.min(next);
            covered += 1;
        }
    }
    assert_eq!(covered, BLOCKS);
    assert!(from <= to, "no moment: after operation {from}, before {to}");
}

/// Reads checksums for `seconds` while a writer is at work, and `disturb` is called now and then.
fn stress(disk: &Disk, seconds: u64, rest_ms: u64, disturb: impl Fn(&Path, &mut SplitMix64) + Sync) -> (u64, u64, u64) {
    let path = disk.path().join("file");
    let file = make(&path);
    let account = Account::default();
    let (mut reported, mut untouched, mut refused) = (0, 0, 0);
    std::thread::scope(|scope| {
        let over = Over(&account.is_over);
        scope.spawn(|| write(&path, 1, rest_ms, &account));
        scope.spawn(|| {
            let mut random = SplitMix64::new(2);
            while !account.is_over.load(Ordering::SeqCst) {
                disturb(&path, &mut random);
            }
        });
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(seconds) {
            let before = account.ended.load(Ordering::SeqCst);
            let one = FileChecksums::collect(1, || byteback_checksums::btrfs::begin(&file, &RealClock));
            let after = account.begun.load(Ordering::SeqCst);
            match one {
                Ok(one) => {
                    check_moment(&one, &account, before, after);
                    reported += 1;
                    untouched += u64::from(before == after);
                }
                Err(SourceError::Busy | SourceError::ChangedMeanwhile) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        drop(over);
    });
    println!(
        "told {reported}, {untouched} of them untouched, refused {refused}, {} operations",
        account.begun.into_inner()
    );
    (reported, untouched, refused)
}

#[test]
fn btrfs_tells_one_present_moment_while_a_program_writes() {
    let Some(disk) = Disk::new("sha256", 512, "") else {
        return;
    };
    let (reported, _, refused) = stress(&disk, 8, 120, |_, _| std::thread::sleep(Duration::from_millis(50)));
    assert!(reported > 3 && refused > 0, "{reported} {refused}");
}

#[test]
fn btrfs_tells_one_present_moment_while_extents_move() {
    let Some(disk) = Disk::new("sha256", 1024, "") else {
        return;
    };
    let (reported, _, refused) = stress(&disk, 8, 200, |path, random| match random.below(4) {
        0 => run("btrfs", &["balance", "start", "-d", text(path.parent().unwrap())]),
        1 => run("btrfs", &["filesystem", "defragment", "-f", text(path)]),
        2 => {
            let point = path.parent().unwrap();
            run(
                "btrfs",
                &["subvolume", "snapshot", text(point), text(&point.join("snapshot"))],
            );
            run("btrfs", &["subvolume", "delete", text(&point.join("snapshot"))]);
        }
        _ => std::thread::sleep(Duration::from_millis(random.below(400))),
    });
    assert!(reported > 3 && refused > 0, "{reported} {refused}");
}

#[test]
fn a_file_that_is_written_all_the_time_is_busy() {
    let Some(disk) = Disk::new("sha256", 256, "") else {
        return;
    };
    let path = disk.path().join("file");
    let file = make(&path);
    let account = Account::default();
    std::thread::scope(|scope| {
        let over = Over(&account.is_over);
        scope.spawn(|| write(&path, 3, 0, &account));
        while account.ended.load(Ordering::SeqCst) < 5 {
            std::thread::yield_now();
        }
        // Unless the writer does not get the processor for a while: then the result must be right.
        let mut was_busy = false;
        for _ in 0..20 {
            let (start, before) = (Instant::now(), account.ended.load(Ordering::SeqCst));
            let one = collect(&file);
            let after = account.begun.load(Ordering::SeqCst);
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
            match one {
                Ok(one) => check_moment(&one, &account, before, after),
                Err(SourceError::Busy) => was_busy = true,
                Err(error) => panic!("{error}"),
            }
            if was_busy {
                break;
            }
        }
        drop(over);
        assert!(was_busy);
    });
    // When the writer has ended, the extraction succeeds.
    check(&collect(&file).unwrap(), &std::fs::read(&path).unwrap());
}

#[test]
fn a_file_whose_extents_move_is_told_all_the_same() {
    let Some(disk) = Disk::new("xxhash", 1024, "") else {
        return;
    };
    let path = disk.path().join("file");
    let content = noise(1, 9800 * 4096);
    std::fs::write(&path, &content).unwrap();
    let file = File::open(&path).unwrap();
    let is_over = AtomicBool::new(false);
    let mut reported = 0;
    std::thread::scope(|scope| {
        let balance = scope.spawn(|| {
            let _over = Over(&is_over);
            for _ in 0..3 {
                run("btrfs", &["balance", "start", "-d", text(&disk.path())]);
            }
        });
        while !is_over.load(Ordering::SeqCst) {
            if let Ok(one) = collect(&file) {
                assert_eq!(check(&one, &content).sums, content.len() as u64);
                reported += 1;
            }
        }
        balance.join().unwrap();
    });
    println!("told {reported} times");
    check(&collect(&file).unwrap(), &content);
}
