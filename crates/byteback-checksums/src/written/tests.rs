//! Random lives of files that are changed in every way, rot, and are read, over a database that
//! crashes, checked against a model. The model keeps what was written as bytes, and for each block
//! whether it must be known.
//!
//! The model is exact. A sum stands for bytes. When a part of a block changes, its sum follows the
//! difference to the content that was *there* (a CRC is linear), so rotten bytes of that part stay
//! as wrong as they were, at any place. After a crash, the database holds one state from a list of
//! [`Durable`]: a commit that reported an error may have become durable as a whole, or not at all.

use std::cell::RefCell;

use byteback_host::random::SplitMix64;
use byteback_host::sim::{CrashPhase, SimDisk};

use super::*;

const NAME: &str = "written.redb";
const BLOCK: usize = BLOCK_LEN as usize;
/// Limit of a file's length: three chunks.
const BLOCKS_MAX: usize = 3 * 256;

/// The knowledge about a file's blocks.
#[derive(Clone, PartialEq)]
struct Sums {
    /// The bytes that the sums stand for, in whole blocks, as many as the file has.
    written: Vec<u8>,
    known: Vec<bool>,
}

/// A state that a file's record in the database may have: the stamp and the sums at that time;
/// `None` for a record that does not count.
type Durable = Option<(Stamp, Sums)>;

/// A file with its content and what was written to it.
#[derive(Clone)]
struct Life {
    content: Vec<u8>,
    sums: Sums,
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
        let life = Life {
            sums: Sums::unknown(&content),
            stamp: stamp_of(identity, content.len() as u64, 0, 0),
            reads_fail: false,
            content,
        };
        Self(RefCell::new(life))
    }

    /// Learns the blocks that were read and unknown, and returns their number.
    fn learn(&self, read: &Read, bytes: &[u8]) -> u64 {
        let mut life = self.0.borrow_mut();
        let mut learned = 0;
        for (block, bytes) in (read.first_block as usize..).zip(bytes[..read.len_bytes].chunks(BLOCK)) {
            if !life.sums.known[block] {
                life.sums.learn(block, bytes);
                learned += 1;
            }
        }
        learned
    }

    fn read(&self, sums: &WrittenSums, file: u64, first: usize, count: usize) -> (Read, Vec<u8>, Option<Mismatch>) {
        let mut buffer = vec![0; count * BLOCK];
        let (read, mismatch) = sums.read(file, &self, (first * BLOCK) as u64, &mut buffer).unwrap();
        (read, buffer, mismatch)
    }
}

impl Sums {
    /// The sums of a file with known length and unknown content.
    fn unknown(content: &[u8]) -> Self {
        let blocks = content.len().div_ceil(BLOCK);
        let mut written = content.to_vec();
        written.resize(blocks * BLOCK, 0);
        Self {
            written,
            known: (0..BLOCKS_MAX).map(|block| block >= blocks).collect(),
        }
    }

    /// Sets the sum of a block to that of these bytes.
    fn learn(&mut self, block: usize, bytes: &[u8]) {
        self.written[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(&block_of(bytes, 0));
        self.known[block] = true;
    }

    /// Restores the previous sum of a block.
    fn stay(&mut self, block: usize, before: &Self) {
        self.known[block] = before.known[block];
        let (start, behind) = (block * BLOCK, (block + 1) * BLOCK);
        if let (Some(into), Some(of)) = (self.written.get_mut(start..behind), before.written.get(start..behind)) {
            into.copy_from_slice(of);
        }
    }

    /// The sum of each block that a file can have.
    fn all(&self) -> Vec<Option<u32>> {
        let sum = |block: usize| match self.written.get(block * BLOCK..(block + 1) * BLOCK) {
            Some(bytes) => sum_of(bytes),
            None => blocks::zero_sum(),
        };
        (0..BLOCKS_MAX)
            .map(|block| self.known[block].then(|| sum(block)))
            .collect()
    }

    /// Known blocks whose content does not match their sums.
    fn rotten(&self, content: &[u8]) -> Vec<u64> {
        let blocks = 0..content.len().div_ceil(BLOCK);
        let is_rotten =
            |block: &usize| self.known[*block] && block_of(content, *block) != block_of(&self.written, *block);
        blocks.filter(is_rotten).map(|block| block as u64).collect()
    }
}

impl Life {
    fn forget(&mut self) {
        self.sums = Sums::unknown(&self.content);
    }

    fn changed(&mut self) {
        self.stamp.len_bytes = self.content.len() as u64;
        self.stamp.ctime_ns += 1;
        self.stamp.mtime_ns += 1;
    }

    /// Applies the difference between the content from `at` on and `data` to the bytes that the
    /// sums stand for. Missing content counts as zeros.
    fn follow(&mut self, at: usize, data: &[u8]) {
        for (index, new) in (at..).zip(data) {
            let old = self.content.get(index).copied().unwrap_or(0);
            self.sums.written[index] ^= old ^ new;
        }
    }

    /// Replaces the bytes from `at` on by `data`.
    fn put(&mut self, at: usize, data: &[u8], is_known: bool) {
        let end = at + data.len();
        let blocks = self.content.len().max(end).div_ceil(BLOCK);
        self.sums.written.resize(blocks * BLOCK, 0);
        self.follow(at, data);
        for block in at / BLOCK..end.div_ceil(BLOCK) {
            let (start, behind) = (block * BLOCK, (block + 1) * BLOCK);
            if !is_known {
                self.sums.known[block] = false;
            } else if at <= start && behind <= end {
                self.sums.learn(block, &data[start - at..behind - at]);
            }
        }
        self.content.resize(self.content.len().max(end), 0);
        self.content[at..end].copy_from_slice(data);
        self.changed();
    }

    fn truncate(&mut self, len: usize) {
        let blocks = len.div_ceil(BLOCK);
        self.sums.written.resize(blocks * BLOCK, 0);
        // The rest of the block in which the file now ends becomes zeros.
        self.follow(len, &vec![0; blocks * BLOCK - len]);
        self.sums.known[blocks..].fill(true);
        self.content.resize(len, 0);
        self.changed();
    }

    fn rotten(&self) -> Vec<u64> {
        self.sums.rotten(&self.content)
    }

    /// A place for a change: mostly near to the borders of blocks and chunks.
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

/// Performs a random change. Returns whether there was one.
fn one_change(sums: &WrittenSums, file: u64, shared: &Shared, random: &mut SplitMix64) -> bool {
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
    sums.look(file, || Ok(shared.0.borrow().stamp));
    let damaged = sums.flagged_of(file).map(|flagged| flagged.blocks).unwrap_or_default();
    let before = (damaged.iter().next().is_some()).then(|| shared.0.borrow().sums.clone());
    // Blocks known to be damaged stay so, with the sums that prove it, when unknown bytes replace
    // only parts of them.
    let stay_damaged = |life: &mut Life, is_whole_gone: bool| {
        for block in at / BLOCK..end.div_ceil(BLOCK) {
            let is_whole = at <= block * BLOCK && (block + 1) * BLOCK <= end;
            if let Some(before) = &before
                && damaged.contains(block as u64)
                && !(is_whole && is_whole_gone)
            {
                life.sums.stay(block, before);
            }
        }
    };
    let done: Result<(), ()> = match (kind, range) {
        (0 | 1, _) => {
            // Now and then it fails, and was or was not performed.
            let (is_failing, is_done) = (random.below(8) == 0, random.coin() && before.is_none());
            let truncate = || {
                let mut life = shared.0.borrow_mut();
                if is_done || !is_failing {
                    life.truncate(at);
                }
                if is_failing {
                    life.sums.known[at / BLOCK..].fill(false);
                    for block in at / BLOCK..BLOCKS_MAX {
                        if let Some(before) = before.as_ref().filter(|_| damaged.contains(block as u64)) {
                            life.sums.stay(block, before);
                        }
                    }
                    return Err(());
                }
                Ok(())
            };
            let done = sums.change(file, &shared, Change::Truncated(at as u64), truncate, ok);
            assert_eq!(done.is_err(), is_failing);
            Ok(())
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
                None => {
                    // A hole behind the end of the file changes nothing in the file, but makes
                    // forgotten blocks there known as zeros.
                    let (first, behind) = blocks_within(range);
                    shared.0.borrow_mut().sums.known[first as usize..behind as usize].fill(true);
                    sums.change(file, &shared, Change::Zeroed(range), || Ok(()), ok)
                }
            }
        }
        (3, Some(range)) => {
            let data = random.bytes(end - at);
            let copy = || {
                let mut life = shared.0.borrow_mut();
                life.put(at, &data, false);
                stay_damaged(&mut life, true);
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
        (6, _) if let Some(block) = damaged.iter().next().map(|range| range.start()) => {
            // Healed, accepted, or neither, because the disk failed.
            let (is_healed, mut is_failing) = (random.coin(), random.below(4) == 0);
            let start = block as usize * BLOCK;
            let behind = shared.0.borrow().content.len().min(start + BLOCK);
            if is_healed {
                // Healing is impossible if there is no sum, or if the bytes with this sum were cut
                // off since.
                let sums = &shared.0.borrow().sums;
                let rest = sums.written.get(behind..start + BLOCK).unwrap_or_default();
                is_failing |= !sums.known[block as usize] || rest.iter().any(|byte| *byte != 0);
            }
            let Some(range) = ByteRange::new(start as u64, behind as u64) else {
                return false;
            };
            let perform = || {
                let mut life = shared.0.borrow_mut();
                let life = &mut *life;
                life.changed();
                if is_failing {
                    return Err(());
                }
                if is_healed {
                    life.content[start..behind].copy_from_slice(&life.sums.written[start..behind]);
                } else {
                    life.sums.learn(block as usize, &life.content[start..behind]);
                }
                Ok(())
            };
            let change = match is_healed {
                true => Change::Healed(range),
                false => Change::Accepted(range),
            };
            let done = sums.change(file, &shared, change, perform, ok);
            assert_eq!(done.is_err(), is_failing);
            let is_damaged = sums
                .flagged_of(file)
                .is_some_and(|flagged| flagged.blocks.contains(block));
            assert_eq!(is_damaged, is_failing);
            Ok(())
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
                life.sums.known[at / BLOCK..end.div_ceil(BLOCK)].fill(false);
                stay_damaged(&mut life, false);
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
                // Blocks that could not be read become unknown.
                for (block, is_partial) in [(at / BLOCK, at % BLOCK != 0), ((end - 1) / BLOCK, end % BLOCK != 0)] {
                    if is_partial || (block == at / BLOCK && end < (block + 1) * BLOCK) {
                        life.sums.known[block] = false;
                        if damaged.contains(block as u64) {
                            before.iter().for_each(|before| life.sums.stay(block, before));
                        }
                    }
                }
            }
            done
        }
        (_, None) => return false,
    };
    done.unwrap();
    true
}

/// The result of a read, and the file's stamp at that time.
type Held = (Read, Vec<u8>, Option<Mismatch>, Stamp);

/// Judges an old read, whatever happened since: only present damage is flagged, and only present
/// content is learned.
fn judge_late(sums: &WrittenSums, file: u64, shared: &Shared, (read, bytes, mismatch, stamp): Held, note: &str) {
    let Some(mismatch) = mismatch else {
        let learned = sums.learn(file, &read, &bytes);
        if learned > 0 {
            assert_eq!(stamp, shared.0.borrow().stamp, "{note}: it was changed since");
            // The blocks as they were read: rot since then is noticed.
            assert_eq!(shared.learn(&read, &bytes), learned, "{note}");
        }
        return;
    };
    let noted = sums.flag(file, &shared, &mismatch, 78).unwrap();
    let noted = noted.iter().flat_map(|noted| &noted.blocks);
    let rotten = shared.0.borrow().rotten();
    for (block, _) in noted.clone() {
        assert!(rotten.contains(block), "{note}: block {block} was put right since");
    }
    let noted: Vec<u64> = noted.map(|(block, _)| *block).collect();
    let lost = mismatch
        .blocks
        .iter()
        .find(|(block, _)| rotten.contains(block) && !noted.contains(block));
    assert_eq!(lost, None, "{note}: it is still wrong");
}

/// Reads all of a file: exactly the rotten blocks are reported, and as many blocks are known as
/// must be.
fn check(sums: &WrittenSums, file: u64, shared: &Shared, note: &str) -> bool {
    let blocks = shared.0.borrow().content.len().div_ceil(BLOCK);
    let (read, _, mismatch) = shared.read(sums, file, 0, blocks);
    let life = shared.0.borrow();
    assert_eq!(read.len_bytes, life.content.len(), "{note}");
    let unknown = life.sums.known[..blocks].iter().filter(|known| !**known).count() as u64;
    assert_eq!(read.unknown_blocks, unknown, "{note}: blocks that are unknown");
    let rotten = life.rotten();
    let reported: Vec<u64> = mismatch
        .iter()
        .flat_map(|mismatch| &mismatch.blocks)
        .map(|(block, _)| *block)
        .collect();
    assert_eq!(reported, rotten, "{note}: what is told and what rotted");
    if let Some(mismatch) = mismatch {
        let noted = sums.flag(file, &shared, &mismatch, 77).unwrap();
        assert_eq!(noted.as_ref(), Some(&mismatch), "{note}");
        let flagged = sums.flagged_of(file).unwrap();
        assert!(reported.iter().all(|block| flagged.blocks.contains(*block)), "{note}");
    }
    !rotten.is_empty()
}

/// Checks a file's sums after a crash: they are those of a record that the database may hold, if
/// the file still has its stamp; otherwise unknown.
fn recovered(sums: &WrittenSums, file: u64, shared: &Shared, durable: &mut Vec<Durable>, note: &str) {
    let mut life = shared.0.borrow_mut();
    let found: Vec<_> = {
        let cell = sums.cell(file);
        let mut known = cell.lock();
        sums.load(file, &mut known, || Ok(life.stamp));
        let rows = |chunk| sums.row(file, chunk);
        // Behind the end of the file as well: it may become longer.
        let blocks = 0..BLOCKS_MAX as u64;
        blocks.map(|block| known.sums.get(block, &rows)).collect()
    };
    let says = |durable: &Durable| match durable {
        Some((stamp, sums)) if *stamp == life.stamp => sums.clone(),
        _ => Sums::unknown(&life.content),
    };
    durable.retain(|durable| says(durable).all() == found);
    assert!(
        !durable.is_empty(),
        "{note}: nothing that was to be committed says this"
    );
    life.sums = says(&durable[0]);
}

#[test]
fn written_sums_find_rot_and_nothing_else_in_random_crashes() {
    let first = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let (mut found, mut kept, mut lost) = (0, 0, 0);
    for seed in first..first + 150 {
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
        // The states of each file that the database may hold.
        let mut durable: Vec<Vec<Durable>> = vec![vec![None]; files.len()];
        for life in 0..6 {
            let sums = open(&disk, boot, &[]).unwrap();
            let syncs = disk.counters().syncs;
            if random.coin() {
                let phases = [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After];
                disk.crash_at_sync(syncs + 1 + random.below(6), phases[random.below(3) as usize]);
            }
            // Earlier reads that were not judged yet.
            let mut held: Vec<(u64, Held)> = Vec::new();
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
                        held.push((file, (read, bytes, mismatch, shared.0.borrow().stamp)));
                    }
                    11 => {
                        if let Some((file, held)) = held.pop() {
                            judge_late(&sums, file, &files[file as usize], held, &note);
                        }
                    }
                    0 | 1 => {
                        let looks: Vec<_> = files.iter().map(|_| random.below(4) > 0).collect();
                        // Some files change right after their stamp was taken.
                        let meanwhile = RefCell::new(SplitMix64::new(random.next_u64()));
                        let changed = RefCell::new(vec![false; files.len()]);
                        let look = |file: u64| {
                            let shared = &files[file as usize];
                            let stamp = looks[file as usize].then(|| shared.0.borrow().stamp);
                            if meanwhile.borrow_mut().below(8) == 0 {
                                let is_changed = one_change(&sums, file, shared, &mut meanwhile.borrow_mut());
                                changed.borrow_mut()[file as usize] = is_changed;
                            }
                            stamp
                        };
                        let is_done = sums.commit(&look).is_ok();
                        for (number, file) in files.iter().enumerate() {
                            let life = file.0.borrow();
                            let is_stamped = looks[number] && !changed.borrow()[number];
                            let now = is_stamped.then(|| (life.stamp, life.sums.clone()));
                            // A failed commit may be durable as a whole; and without a stamp,
                            // settled files are left alone.
                            if is_done && now.is_some() {
                                durable[number].clear();
                            }
                            durable[number].push(now);
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
                        assert_eq!(shared.learn(&read, &buffer), unknown, "{note}");
                    }
                    5 if random.below(4) == 0 => {
                        sums.look(file, || Ok(shared.0.borrow().stamp));
                        shared.0.borrow_mut().stamp.ctime_ns += 1;
                        sums.touched(file);
                    }
                    _ => drop(one_change(&sums, file, shared, &mut random)),
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
                let is_same = |durable: &Durable| {
                    let stamp = durable.as_ref().map(|(stamp, _)| *stamp);
                    stamp == Some(shared.0.borrow().stamp)
                };
                match durable[number].iter().all(is_same) {
                    true => kept += 1,
                    false => lost += 1,
                }
                recovered(&sums, number as u64, shared, &mut durable[number], &note);
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
fn written_sums_tell_crash_damage_from_later_writes() {
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
        // An older file took its place.
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
        // At the next start the damage is still known, unless the block was rewritten.
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
    // A hole that was filled is noticed; here the backing has no content, so every block reads as
    // such.
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

/// A repair writes the same bytes, so the sum is the same again.
#[test]
fn block_rewritten_before_it_is_judged_is_not_flagged() {
    for is_let_go_of in [false, true] {
        let disk = SimDisk::new(1);
        let shared = settled(&disk);
        let sums = open(&disk, 1, &[]).unwrap();
        let rot = |at: usize| shared.0.borrow_mut().content[at] ^= 1;
        let put_right = |at: usize| {
            let data = shared.0.borrow().sums.written[at..at + BLOCK].to_vec();
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
        // And not by a later call either.
        assert_eq!(sums.flag(3, &&shared, &mismatch, 5).unwrap(), None);
        assert_eq!(sums.flag(3, &&shared, &noted, 5).unwrap(), None);
        assert_eq!(sums.flagged_of(3), None);
    }
}

/// An old read of an unknown block teaches nothing after the file was dropped from memory and
/// looked up again.
#[test]
fn written_sums_learn_nothing_from_reads_before_a_change() {
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
fn written_sums_ignore_foreign_trees_files_and_damage() {
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
