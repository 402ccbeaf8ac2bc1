//! Random lives of files that are changed by all means, rot, and are read, over a database that crashes; against a model that keeps what was
//! written as bytes, and for each block whether it must be known.

use std::cell::RefCell;

use byteback_host::random::SplitMix64;
use byteback_host::sim::{CrashPhase, SimDisk};

use super::*;

const NAME: &str = "written.redb";
const BLOCK: usize = BLOCK_LEN as usize;
/// Files are not longer: three chunks.
const BLOCKS_MAX: usize = 3 * 256;

/// A file, with what it holds and what was written to it.
#[derive(Clone)]
struct Life {
    content: Vec<u8>,
    written: Vec<u8>,
    known: Vec<bool>,
    /// Bytes that rotted were part of what was changed in part: whether that is noticed is open.
    is_open: Vec<bool>,
    stamp: Stamp,
    reads_fail: bool,
}

struct Shared(RefCell<Life>);

impl Backing for &Shared {
    fn stamp(&self) -> io::Result<Stamp> {
        Ok(self.0.borrow().stamp)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let life = self.0.borrow();
        if life.reads_fail {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let from = life.content.len().min(offset as usize);
        // Short now and then.
        let count = buffer.len().min(life.content.len() - from);
        let count = if count > 5000 { count - 777 } else { count };
        buffer[..count].copy_from_slice(&life.content[from..from + count]);
        Ok(count)
    }
}

fn block_of(bytes: &[u8], block: usize) -> Vec<u8> {
    let from = bytes.len().min(block * BLOCK);
    let mut part = bytes[from..bytes.len().min(from + BLOCK)].to_vec();
    part.resize(BLOCK, 0);
    part
}

impl Shared {
    fn new(ino: u64, content: Vec<u8>) -> Self {
        let identity = Identity {
            dev: 1,
            ino,
            birth_ns: Some(5),
        };
        let mut life = Life {
            written: content.clone(),
            known: vec![true; BLOCKS_MAX],
            is_open: vec![false; BLOCKS_MAX],
            stamp: stamp_of(identity, content.len() as u64, 0, 0),
            reads_fail: false,
            content,
        };
        life.forget();
        Self(RefCell::new(life))
    }

    fn read(&self, sums: &WrittenSums, file: u64, first: usize, count: usize) -> (Read, Vec<u8>, Option<Mismatch>) {
        let mut buffer = vec![0; count * BLOCK];
        let (read, mismatch) = sums.read(file, &self, (first * BLOCK) as u64, &mut buffer).unwrap();
        (read, buffer, mismatch)
    }
}

impl Life {
    fn forget(&mut self) {
        let blocks = self.content.len().div_ceil(BLOCK);
        self.known = (0..BLOCKS_MAX).map(|block| block >= blocks).collect();
        self.is_open.fill(false);
        // What is there is what is there.
        self.written = self.content.clone();
    }

    fn changed(&mut self) {
        self.stamp.len_bytes = self.content.len() as u64;
        self.stamp.ctime_ns += 1;
        self.stamp.mtime_ns += 1;
    }

    /// These bytes become `data`.
    fn put(&mut self, at: usize, data: &[u8], is_known: bool) {
        let end = at + data.len();
        for block in at / BLOCK..end.div_ceil(BLOCK) {
            let (start, behind) = (block * BLOCK, (block + 1) * BLOCK);
            let is_whole = at <= start && behind <= end;
            if is_whole || !is_known {
                self.known[block] = is_known;
                self.is_open[block] = false;
            } else if block_of(&self.content, block) != block_of(&self.written, block) {
                self.is_open[block] = true;
            }
        }
        for bytes in [&mut self.content, &mut self.written] {
            bytes.resize(bytes.len().max(end), 0);
            bytes[at..end].copy_from_slice(data);
        }
        self.changed();
    }

    fn truncate(&mut self, len: usize) {
        if !len.is_multiple_of(BLOCK) && block_of(&self.content, len / BLOCK) != block_of(&self.written, len / BLOCK) {
            self.is_open[len / BLOCK] = true;
        }
        for block in len.div_ceil(BLOCK)..BLOCKS_MAX {
            self.known[block] = true;
            self.is_open[block] = false;
        }
        self.content.resize(len, 0);
        self.written.resize(len, 0);
        self.changed();
    }

    /// Blocks that must be found, and those that may be.
    fn rotten(&self) -> (Vec<u64>, Vec<u64>) {
        let (mut must, mut may) = (Vec::new(), Vec::new());
        for block in 0..self.content.len().div_ceil(BLOCK) {
            if self.known[block] && self.is_open[block] {
                may.push(block as u64);
            } else if self.known[block] && block_of(&self.content, block) != block_of(&self.written, block) {
                must.push(block as u64);
            }
        }
        (must, may)
    }

    /// Where something may be changed: mostly near to the borders of blocks and chunks.
    fn place(&self, random: &mut SplitMix64) -> usize {
        let near = |random: &mut SplitMix64, at: usize| (at + random.below(40) as usize).saturating_sub(20);
        let at = match random.below(5) {
            0 => near(random, self.content.len()),
            1 => near(random, 256 * BLOCK),
            2 => near(random, 512 * BLOCK),
            3 => near(random, random.clone().below(8) as usize * BLOCK),
            _ => random.below(self.content.len() as u64 + 10 * BLOCK_LEN) as usize,
        };
        at.min(BLOCKS_MAX * BLOCK)
    }
}

fn open(disk: &SimDisk, boot: u8, interrupted: &[u64]) -> std::result::Result<WrittenSums, ChecksumError> {
    let interrupted = interrupted.iter().copied().collect();
    WrittenSums::open(disk, NAME, 99, [boot; 16], interrupted)
}

fn one_change(sums: &WrittenSums, file: u64, shared: &Shared, random: &mut SplitMix64) {
    let (at, end) = {
        let life = shared.0.borrow();
        let (one, other) = (life.place(random), life.place(random));
        let end = match random.below(3) {
            0 => one.max(other),
            1 => (one + random.below(9) as usize).min(BLOCKS_MAX * BLOCK),
            _ => (one + random.below(20_000) as usize).min(BLOCKS_MAX * BLOCK),
        };
        (one.min(end), end)
    };
    let range = ByteRange::new(at as u64, end as u64);
    let ok = |(): &()| true;
    let kind = random.below(12);
    let done: Result<(), ()> = match (kind, range) {
        (0 | 1, _) => {
            let truncate = || {
                shared.0.borrow_mut().truncate(at);
                Ok(())
            };
            sums.change(file, &shared, Change::Truncated(at as u64), truncate, ok)
        }
        (2, Some(range)) => {
            let end = end.min(shared.0.borrow().content.len().max(at));
            let zero = || {
                shared.0.borrow_mut().put(at, &vec![0; end - at], true);
                // The whole range was announced.
                Ok(())
            };
            match ByteRange::new(at as u64, end as u64) {
                Some(range) => sums.change(file, &shared, Change::Zeroed(range), zero, ok),
                None => sums.change(file, &shared, Change::Zeroed(range), || Ok(()), ok),
            }
        }
        (3, Some(range)) => {
            let data = random.bytes(end - at);
            let copy = || {
                shared.0.borrow_mut().put(at, &data, false);
                Ok(())
            };
            sums.change(file, &shared, Change::Overwritten(range), copy, ok)
        }
        (4, _) if random.below(8) == 0 => {
            let shift = || {
                let mut life = shared.0.borrow_mut();
                let by = at % life.content.len().max(1);
                life.content.rotate_left(by);
                life.changed();
                life.forget();
                Ok(())
            };
            sums.change(file, &shared, Change::Moved, shift, ok)
        }
        (5, Some(_)) => {
            // As far as the disk had room, or not at all.
            let data = random.bytes(end - at);
            let written = random.below(data.len() as u64) as usize;
            let short = || {
                let mut life = shared.0.borrow_mut();
                if written > 0 {
                    life.put(at, &data[..written], false);
                }
                for block in at / BLOCK..end.div_ceil(BLOCK) {
                    life.known[block] = false;
                    life.is_open[block] = false;
                }
                if written.is_multiple_of(2) {
                    Ok(written)
                } else {
                    Err(())
                }
            };
            let change = Change::Written {
                offset: at as u64,
                data: &data,
            };
            let done = sums.change(file, &shared, change, short, |written| *written == data.len());
            let _ = done;
            Ok(())
        }
        (_, Some(_)) => {
            let data = random.bytes(end - at);
            let write = || {
                shared.0.borrow_mut().put(at, &data, true);
                Ok(())
            };
            let change = Change::Written {
                offset: at as u64,
                data: &data,
            };
            let is_blind = random.below(20) == 0;
            shared.0.borrow_mut().reads_fail = is_blind;
            let done = sums.change(file, &shared, change, write, ok);
            let mut life = shared.0.borrow_mut();
            life.reads_fail = false;
            if is_blind {
                // What could not be read is not known any more.
                for (block, is_partial) in [(at / BLOCK, at % BLOCK != 0), ((end - 1) / BLOCK, end % BLOCK != 0)] {
                    if is_partial || (block == at / BLOCK && end < (block + 1) * BLOCK) {
                        life.known[block] = false;
                        life.is_open[block] = false;
                    }
                }
            }
            done
        }
        (_, None) => Ok(()),
    };
    done.unwrap();
}

/// Tells what was read before whatever happened since: only what is wrong now is noted, and only what is there now is learned.
fn judge_late(
    sums: &WrittenSums,
    file: u64,
    shared: &Shared,
    (read, bytes, mismatch): (Read, Vec<u8>, Option<Mismatch>),
    note: &str,
) {
    let Some(mismatch) = mismatch else {
        sums.learn(file, &read, &bytes);
        let mut life = shared.0.borrow_mut();
        for block in 0..life.content.len().div_ceil(BLOCK) {
            drop(life);
            let is_known = shared.read(sums, file, block, 1).0.unknown_blocks == 0;
            life = shared.0.borrow_mut();
            if is_known && !life.known[block] {
                // It was learned: then it is what is there.
                let (from, to) = (block * BLOCK, life.content.len().min((block + 1) * BLOCK));
                let now = life.content[from..to].to_vec();
                life.written[from..to].copy_from_slice(&now);
                life.known[block] = true;
                life.is_open[block] = false;
            }
        }
        return;
    };
    let noted = sums.flag(file, &shared, &mismatch, 78).unwrap();
    let noted = noted.iter().flat_map(|noted| &noted.blocks);
    let (must, may) = shared.0.borrow().rotten();
    for (block, _) in noted.clone() {
        assert!(
            must.contains(block) || may.contains(block),
            "{note}: block {block} was put right since"
        );
    }
    let noted: Vec<u64> = noted.map(|(block, _)| *block).collect();
    let lost = mismatch
        .blocks
        .iter()
        .find(|(block, _)| must.contains(block) && !noted.contains(block));
    assert_eq!(lost, None, "{note}: it is still wrong");
}

/// Reads all of a file: exactly what rotted is told, and as much is known as must be.
fn check(sums: &WrittenSums, file: u64, shared: &Shared, note: &str) -> bool {
    let blocks = shared.0.borrow().content.len().div_ceil(BLOCK);
    let (read, _, mismatch) = shared.read(sums, file, 0, blocks);
    let life = shared.0.borrow();
    assert_eq!(read.len_bytes, life.content.len(), "{note}");
    let known = life.known[..blocks].iter().filter(|known| !**known).count() as u64;
    assert_eq!(read.unknown_blocks, known, "{note}: blocks that are unknown");
    let (must, may) = life.rotten();
    let told: Vec<u64> = mismatch
        .iter()
        .flat_map(|mismatch| &mismatch.blocks)
        .map(|(block, _)| *block)
        .collect();
    assert!(
        must.iter().all(|block| told.contains(block)),
        "{note}: {must:?} of {told:?}"
    );
    let rest: Vec<_> = told
        .iter()
        .filter(|block| !must.contains(block) && !may.contains(block))
        .collect();
    assert!(rest.is_empty(), "{note}: false alarm {rest:?}");
    if let Some(mismatch) = mismatch {
        let noted = sums.flag(file, &shared, &mismatch, 77).unwrap();
        assert_eq!(noted.as_ref(), Some(&mismatch), "{note}");
        let flagged = sums.flagged_of(file).unwrap();
        assert!(told.iter().all(|block| flagged.blocks.contains(*block)), "{note}");
    }
    !must.is_empty()
}

#[test]
fn what_rots_is_found_and_nothing_else_in_random_lives_with_crashes() {
    let first = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let (mut found, mut kept, mut lost) = (0, 0, 0);
    for seed in first..first + 60 {
        println!("BYTEBACK_SEED={seed}");
        let mut random = SplitMix64::new(seed);
        let mut disk = SimDisk::new(seed);
        let mut boot = 1;
        let files: Vec<_> = (0..3)
            .map(|file| {
                let len = if file == 0 { 0 } else { random.below(600_000) as usize };
                Shared::new(file, random.bytes(len))
            })
            .collect();
        for life in 0..6 {
            let sums = open(&disk, boot, &[]).unwrap();
            let syncs = disk.counters().syncs;
            if random.coin() {
                let phases = [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After];
                disk.crash_at_sync(syncs + 1 + random.below(6), phases[random.below(3) as usize]);
            }
            // What was read a while ago by somebody who has not judged it yet.
            let mut held: Vec<(u64, Read, Vec<u8>, Option<Mismatch>)> = Vec::new();
            // What the file looked like at the last commit that succeeded.
            let mut committed: Vec<Option<Life>> = vec![None; files.len()];
            for _ in 0..random.below(60) {
                if disk.is_cut() {
                    // Nothing can be looked up any more: everything is unknown.
                    break;
                }
                let file = random.below(files.len() as u64);
                let shared = &files[file as usize];
                let note = format!("seed {seed}, life {life}, file {file}");
                match random.below(12) {
                    10 => {
                        let blocks = shared.0.borrow().content.len() / BLOCK + 1;
                        let first = random.below(blocks as u64) as usize;
                        let (read, bytes, mismatch) = shared.read(&sums, file, first, 1 + random.below(20) as usize);
                        held.push((file, read, bytes, mismatch));
                    }
                    11 => {
                        if let Some((file, read, bytes, mismatch)) = held.pop() {
                            judge_late(&sums, file, &files[file as usize], (read, bytes, mismatch), &note);
                        }
                    }
                    0 | 1 => {
                        let looks: Vec<_> = files.iter().map(|_| random.below(4) > 0).collect();
                        let look = |file: u64| looks[file as usize].then(|| files[file as usize].0.borrow().stamp);
                        if sums.commit(&look).is_ok() {
                            for (number, file) in files.iter().enumerate() {
                                committed[number] = looks[number].then(|| file.0.borrow().clone());
                            }
                        }
                    }
                    2 => {
                        let mut life = shared.0.borrow_mut();
                        if !life.content.is_empty() {
                            let at = life.place(&mut random).min(life.content.len() - 1);
                            life.content[at] ^= 1 << random.below(8);
                        }
                    }
                    3 => found += u64::from(check(&sums, file, shared, &note)),
                    4 => {
                        let count = 1 + random.below(20) as usize;
                        let blocks = shared.0.borrow().content.len() / BLOCK + 1;
                        let first = random.below(blocks as u64) as usize;
                        let (read, buffer, _) = shared.read(&sums, file, first, count);
                        let unknown = read.unknown_blocks;
                        assert_eq!(sums.learn(file, &read, &buffer), unknown, "{note}");
                        let mut life = shared.0.borrow_mut();
                        for block in first..(first + count).min(life.content.len().div_ceil(BLOCK)) {
                            if !life.known[block] {
                                let (from, to) = (block * BLOCK, life.content.len().min((block + 1) * BLOCK));
                                let now = life.content[from..to].to_vec();
                                life.written[from..to].copy_from_slice(&now);
                                life.known[block] = true;
                                life.is_open[block] = false;
                            }
                        }
                    }
                    5 if random.below(4) == 0 => {
                        sums.look(file, || Ok(shared.0.borrow().stamp));
                        shared.0.borrow_mut().stamp.ctime_ns += 1;
                        sums.touched(file);
                    }
                    _ => one_change(&sums, file, shared, &mut random),
                }
            }
            for (file, shared) in (0..).zip(&files).filter(|_| !disk.is_cut()) {
                found += u64::from(check(
                    &sums,
                    file,
                    shared,
                    &format!("seed {seed}, life {life}, file {file}, end"),
                ));
            }
            drop(sums);
            disk = disk.recover(random.next_u64());
            let sums = open(&disk, boot, &[]).unwrap();
            for (number, shared) in files.iter().enumerate() {
                let note = format!("seed {seed}, after life {life}, file {number}");
                let is_same = committed[number]
                    .as_ref()
                    .is_some_and(|old| old.stamp == shared.0.borrow().stamp);
                if is_same {
                    // Nothing changed it since: all is known as it was then; what was learned since may be.
                    kept += 1;
                    let blocks = shared.0.borrow().content.len().div_ceil(BLOCK);
                    for block in 0..blocks {
                        let (read, ..) = shared.read(&sums, number as u64, block, 1);
                        let mut life = shared.0.borrow_mut();
                        let was_known = committed[number].as_ref().unwrap().known[block];
                        assert!(
                            !was_known || read.unknown_blocks == 0,
                            "{note}: block {block} was known"
                        );
                        if was_known && !life.known[block] {
                            // A write that failed and did nothing.
                            let old = committed[number].as_ref().unwrap();
                            let bytes = block_of(&old.written, block);
                            let (from, to) = (block * BLOCK, life.content.len().min((block + 1) * BLOCK));
                            life.written[from..to].copy_from_slice(&bytes[..to - from]);
                            life.known[block] = true;
                            life.is_open[block] = old.is_open[block];
                        }
                        assert!(life.known[block] || read.unknown_blocks == 1, "{note}: block {block}");
                        if read.unknown_blocks == 1 {
                            life.known[block] = false;
                            life.is_open[block] = false;
                        }
                    }
                } else {
                    lost += 1;
                    // Either all of a commit that was not acknowledged, or nothing.
                    let (read, ..) = shared.read(&sums, number as u64, 0, BLOCKS_MAX);
                    let blocks = shared.0.borrow().content.len().div_ceil(BLOCK) as u64;
                    let mut life = shared.0.borrow_mut();
                    if read.unknown_blocks == blocks && blocks > 0 {
                        life.forget();
                    } else {
                        drop(life);
                        for block in 0..blocks as usize {
                            let (read, ..) = shared.read(&sums, number as u64, block, 1);
                            let mut life = shared.0.borrow_mut();
                            assert!(life.known[block] || read.unknown_blocks == 1, "{note}: block {block}");
                            life.known[block] &= read.unknown_blocks == 0;
                        }
                    }
                }
                check(&sums, number as u64, shared, &note);
            }
            boot += u8::from(random.below(3) == 0);
        }
    }
    assert!(found > 100 && kept > 50 && lost > 50, "{found} {kept} {lost}");
}

/// A file of four blocks, of which all is known and durable.
fn settled(disk: &SimDisk) -> Shared {
    let sums = open(disk, 1, &[]).unwrap();
    let shared = Shared::new(3, Vec::new());
    let data = SplitMix64::new(4).bytes(4 * BLOCK);
    let write = || {
        shared.0.borrow_mut().put(0, &data, true);
        Ok::<_, ()>(data.len())
    };
    let change = Change::Written { offset: 0, data: &data };
    sums.change(3, &&shared, change, write, |_| true).unwrap();
    sums.commit(&|_| Some(shared.0.borrow().stamp)).unwrap();
    shared
}

#[test]
fn what_a_crash_of_the_machine_leaves_is_told_from_what_was_written_after() {
    struct Case {
        times_move_ns: i64,
        boot: u8,
        is_interrupted: bool,
        expected: Option<Reason>,
    }
    let case = |times_move_ns, boot, is_interrupted, expected| Case {
        times_move_ns,
        boot,
        is_interrupted,
        expected,
    };
    let cases = [
        // Data changed and metadata did not.
        case(0, 2, true, Some(Reason::Crash)),
        // The crash took back what had been written.
        case(-5, 2, true, Some(Reason::Crash)),
        // Written after the last commit.
        case(5, 2, true, None),
        case(5, 1, true, None),
        // Somebody put an elder file in its place.
        case(-5, 2, false, None),
        case(-5, 1, true, None),
        // It was at rest.
        case(0, 2, false, Some(Reason::Changed)),
        case(0, 1, false, Some(Reason::Changed)),
    ];
    for (number, case) in cases.iter().enumerate() {
        let disk = SimDisk::new(1);
        let shared = settled(&disk);
        let disk = disk.crash(number as u64);
        shared.0.borrow_mut().content[5000] ^= 1;
        shared.0.borrow_mut().stamp.ctime_ns += case.times_move_ns;
        let interrupted: &[u64] = if case.is_interrupted { &[3] } else { &[] };
        for _ in 0..2 {
            let sums = open(&disk, case.boot, interrupted).unwrap();
            let (_, _, mismatch) = shared.read(&sums, 3, 0, 4);
            assert_eq!(mismatch.is_some(), case.expected.is_some(), "case {number}");
            if let Some(mismatch) = mismatch {
                assert!(sums.flag(3, &&shared, &mismatch, 5).unwrap().is_some());
            }
            assert_eq!(
                sums.flagged_of(3).map(|flagged| flagged.reason),
                case.expected,
                "case {number}"
            );
            sums.commit(&|_| Some(shared.0.borrow().stamp)).unwrap();
        }
        // At the next start it is still known to be wrong, and it is not when it was written anew.
        let sums = open(&disk, case.boot, &[]).unwrap();
        assert_eq!(
            sums.flagged_of(3).map(|flagged| flagged.reason),
            case.expected,
            "case {number}"
        );
        let data = vec![7; BLOCK];
        let write = || {
            shared.0.borrow_mut().put(BLOCK, &data, true);
            Ok::<_, ()>(())
        };
        let change = Change::Written {
            offset: BLOCK_LEN,
            data: &data,
        };
        sums.change(3, &&shared, change, write, |_| true).unwrap();
        assert_eq!(sums.flagged_of(3), None);
    }
}

#[test]
fn a_hundred_sparse_gibibytes_cost_little() {
    let disk = SimDisk::new(1);
    let sums = open(&disk, 1, &[]).unwrap();
    let shared = Shared::new(3, Vec::new());
    let len_bytes = 100 << 30;
    let grow = || {
        shared.0.borrow_mut().stamp.len_bytes = len_bytes;
        Ok::<_, ()>(())
    };
    let written_before = disk.counters().bytes_written;
    sums.change(3, &&shared, Change::Truncated(len_bytes), grow, |()| true)
        .unwrap();
    for at in (0..100).map(|at| at << 30) {
        let data = [9; BLOCK];
        let change = Change::Written {
            offset: at,
            data: &data,
        };
        sums.change(3, &&shared, change, || Ok::<_, ()>(()), |()| true).unwrap();
    }
    let hole = ByteRange::new(50 << 30, 90 << 30).unwrap();
    sums.change(3, &&shared, Change::Zeroed(hole), || Ok::<_, ()>(()), |()| true)
        .unwrap();
    sums.commit(&|_| Some(shared.0.borrow().stamp)).unwrap();
    let cost = disk.counters().bytes_written - written_before;
    assert!(cost < 300_000, "{cost} bytes");
    drop(sums);
    let sums = open(&disk, 1, &[]).unwrap();
    // A hole that is none any more is noticed; here every block reads as what the backing says: nothing.
    let cell = sums.cell(3);
    let mut known = cell.lock();
    sums.load(3, &mut known, || Ok(shared.0.borrow().stamp));
    let rows = |chunk| sums.row(3, chunk);
    let blocks_per_gib = (1_u64 << 30) / BLOCK_LEN;
    for gib in 0..100 {
        let expected = if (50..90).contains(&gib) {
            [0; BLOCK]
        } else {
            [9; BLOCK]
        };
        assert_eq!(
            known.sums.get(gib * blocks_per_gib, &rows),
            Some(sum_of(&expected)),
            "GiB {gib}"
        );
        assert_eq!(
            known.sums.get(gib * blocks_per_gib + 77_777, &rows),
            Some(blocks::zero_sum())
        );
    }
}

/// Whoever puts a block right writes the same bytes, and so the sum is the same again.
#[test]
fn a_block_that_is_written_anew_before_it_is_judged_is_not_flagged() {
    for is_let_go_of in [false, true] {
        let disk = SimDisk::new(1);
        let shared = settled(&disk);
        let sums = open(&disk, 1, &[]).unwrap();
        let rot = |at: usize| shared.0.borrow_mut().content[at] ^= 1;
        let put_right = |at: usize| {
            let data = shared.0.borrow().written[at..at + BLOCK].to_vec();
            let write = || {
                shared.0.borrow_mut().put(at, &data, true);
                Ok::<_, ()>(())
            };
            let offset = at as u64;
            let change = Change::Written { offset, data: &data };
            sums.change(3, &&shared, change, write, |()| true).unwrap();
            if is_let_go_of {
                sums.commit(&|_| Some(shared.0.borrow().stamp)).unwrap();
                assert!(sums.files.lock().is_empty());
            }
        };
        rot(BLOCK + 5);
        rot(3 * BLOCK);
        let (_, _, mismatch) = shared.read(&sums, 3, 0, 4);
        let mismatch = mismatch.unwrap();
        assert_eq!(mismatch.blocks.len(), 2);
        put_right(BLOCK);
        let noted = sums.flag(3, &&shared, &mismatch, 5).unwrap().unwrap();
        assert_eq!(noted.ranges(), [ByteRange::new(3 * BLOCK_LEN, 4 * BLOCK_LEN).unwrap()]);
        assert_eq!(sums.flagged_of(3).unwrap().ranges(), noted.ranges());
        put_right(3 * BLOCK);
        assert_eq!(sums.flagged_of(3), None);
        // And by nobody who comes later still.
        assert_eq!(sums.flag(3, &&shared, &mismatch, 5).unwrap(), None);
        assert_eq!(sums.flag(3, &&shared, &noted, 5).unwrap(), None);
        assert_eq!(sums.flagged_of(3), None);
    }
}

/// What was read of a block that nobody knows is nothing that counts once the file was let go of and looked up again.
#[test]
fn nothing_is_learned_of_what_was_read_before_the_file_changed() {
    let disk = SimDisk::new(1);
    let shared = settled(&disk);
    let sums = open(&disk, 1, &[]).unwrap();
    let write = |at: usize, data: &[u8], is_known: bool| {
        let write = || {
            shared.0.borrow_mut().put(at, data, is_known);
            Ok::<_, ()>(())
        };
        let offset = at as u64;
        let range = ByteRange::new(offset, offset + data.len() as u64).unwrap();
        let change = match is_known {
            true => Change::Written { offset, data },
            false => Change::Overwritten(range),
        };
        sums.change(3, &&shared, change, write, |()| true).unwrap();
        sums.commit(&|_| Some(shared.0.borrow().stamp)).unwrap();
        assert!(sums.files.lock().is_empty());
    };
    write(BLOCK, &[7; BLOCK], false);
    let (read, bytes, _) = shared.read(&sums, 3, 0, 4);
    assert_eq!(read.unknown_blocks, 1);
    // A part of it: it stays unknown.
    write(BLOCK + 9, &[8; 10], true);
    shared.read(&sums, 3, 0, 1);
    assert_eq!(sums.learn(3, &read, &bytes), 0);
    assert_eq!(shared.read(&sums, 3, 0, 4).2, None);
}

#[test]
fn another_tree_another_file_and_a_damaged_database_say_nothing() {
    let disk = SimDisk::new(1);
    let shared = settled(&disk);
    // Another inode has its number.
    shared.0.borrow_mut().stamp.identity.ino = 17;
    let sums = open(&disk, 1, &[]).unwrap();
    assert_eq!(shared.read(&sums, 3, 0, 4).0.unknown_blocks, 4);
    drop(sums);
    shared.0.borrow_mut().stamp.identity.ino = 3;
    let sums = open(&disk, 1, &[]).unwrap();
    assert_eq!(shared.read(&sums, 3, 0, 4).0.unknown_blocks, 0);
    drop(sums);
    let sums = WrittenSums::open(&disk, NAME, 100, [1; 16], HashSet::new()).unwrap();
    assert_eq!(shared.read(&sums, 3, 0, 4).0.unknown_blocks, 4);
    drop(sums);
    let disk = SimDisk::new(2);
    let shared = settled(&disk);
    let file = disk.open(NAME, byteback_host::durable::OpenMode::Existing).unwrap();
    file.write_all_at(0, &[0xff; 300]).unwrap();
    drop(file);
    let sums = open(&disk, 1, &[]).unwrap();
    assert_eq!(shared.read(&sums, 3, 0, 4).0.unknown_blocks, 4);
}
