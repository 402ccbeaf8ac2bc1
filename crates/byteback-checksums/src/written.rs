//! Checksums of what was *written*: a CRC-32C of each block of 4 KiB, kept up to date by the gate
//! of a mounted tree, so that bytes that changed although nobody wrote them are noticed (DeltaCFS,
//! section III-E).
//!
//! [`crate::kept`] sums what it reads, so it takes what a disk made of a file for the file. Here
//! the bytes come from the program that wrote them. A block is *known* or *unknown*; an unknown
//! block is never reported until its sum has been learned from a read ([`WrittenSums::learn`]).
//!
//! **Use.** Each change of a file's content is performed within [`WrittenSums::change`], one at a
//! time for each file. Readers call [`WrittenSums::read`] and look at the mismatch that it returns.
//! Changes of attributes and names are between [`WrittenSums::look`] and [`WrittenSums::touched`].
//! [`WrittenSums::commit`] runs every few seconds, and at the end.
//!
//! **After a crash.** Sums are in memory until they are committed: all that is known of a file in
//! one transaction, with its *stamp* (inode, length and times), taken while nothing changed the
//! file, and late enough that a later change has other times. The record counts if the file still
//! has that stamp when it is next used; otherwise all its blocks are unknown. So after a crash of
//! the process, each sum is that of what was written, or unknown. After a crash of the machine,
//! data and times may be from different moments: a file that was open for change then, and whose
//! times are no newer than the record's while its bytes differ, is in a state that it never was in:
//! [`Reason::Crash`]. Files with newer times are recognized, and their sums forgotten. So a sync of
//! a file's data must make its times durable as well ([`WrittenSums::must_sync_times`]).
//!
//! **No false alarm.** A block that does not match its sum is read again while no change is under
//! way. Before raising the alarm ([`WrittenSums::flag`]), the caller checks whether something
//! changed the file without passing the gate; such files are forgotten. If the file was changed
//! between the two calls, its blocks are read once more. An unchanged sum does not prove that
//! nobody wrote the block, because a repair writes the same bytes.
//!
//! **Locks**: the table of files, one file, the flags; each only inside those before it. A file's
//! lock is held while its content changes.
//!
//! Memory: a KiB for each MiB of content that was changed since the last commit, up to
//! [`CHUNKS_MAX`]; beyond it files are forgotten.

mod backing;
mod blocks;
mod commit;
mod damaged;
mod rows;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::durable::DurableDir;
use byteback_host::tree::Identity;
use parking_lot::{Mutex, MutexGuard};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use crate::backend::{self, number};
use crate::error::{self, ChecksumError, db, other_version};
use crate::kept::Boot;
pub use crate::source::Stamp;
pub use backing::Backing;
use backing::{aligned_block, read_full};
pub use blocks::BLOCK_LEN;
use blocks::{Chunk, EVERY_CHUNK, FileSums, blocks_within, sum_of};
use rows::{Record, Seen};

/// Chunks of 1 MiB of content, at a KiB each, that are in memory at most.
pub const CHUNKS_MAX: usize = 1 << 16;

const VERSION: u64 = 1;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
/// File -> record.
const FILES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("files");
/// (file, chunk) -> sums.
const SUMS: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("sums");
/// File -> the damage found in it.
const FLAGGED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("flagged");

const META_VERSION: &str = "version";
const META_TREE: &str = "tree";
const META_POSITION: &str = "position";

/// A change of a file's content.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Bytes are written at an offset.
    Written {
        /// The first byte of the file that is written.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// This range becomes zeros.
    Zeroed(ByteRange),
    /// The file gets this length, in bytes.
    Truncated(u64),
    /// The range is overwritten with unknown bytes.
    Overwritten(ByteRange),
    /// Bytes move to other places.
    Moved,
    /// Damaged blocks are restored to what was written, by [`WrittenSums::sum_of`]: sums stay as
    /// they are.
    Healed(ByteRange),
    /// The present content of the blocks of this range counts from now on, whatever wrote it.
    Accepted(ByteRange),
}

/// The reason why a file is flagged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Bytes changed although nobody wrote them.
    Changed,
    /// A crash of the machine left bytes that do not belong to the file's length and times.
    Crash,
}

/// A file with damaged blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flagged {
    /// The reason.
    pub reason: Reason,
    /// When it was found, in nanoseconds since 1970.
    pub found_at_ns: i64,
    /// The blocks that are not what was written, by their numbers.
    pub blocks: ExtentSet,
}

impl Flagged {
    /// The bytes that are not what was written.
    #[must_use]
    pub fn ranges(&self) -> Vec<ByteRange> {
        bytes_of(&self.blocks)
    }
}

/// Blocks that are not what was written, found while nothing changed the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Block numbers, each with the sum that the block should have.
    blocks: Vec<(u64, u32)>,
    /// The file's stamp at that time.
    pub stamp: Option<Stamp>,
    reason: Reason,
    /// The version of the file's sums that the mismatch was found against.
    version: u64,
}

impl Mismatch {
    /// The reason why they differ.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The bytes that are not what was written.
    #[must_use]
    pub fn ranges(&self) -> Vec<ByteRange> {
        let blocks = self.blocks.iter();
        let blocks: ExtentSet = blocks
            .filter_map(|(block, _)| ByteRange::from_offset_len(*block, 1))
            .collect();
        bytes_of(&blocks)
    }
}

fn bytes_of(blocks: &ExtentSet) -> Vec<ByteRange> {
    let bytes = |block: u64| block.saturating_mul(BLOCK_LEN);
    let ranges = blocks.iter();
    ranges
        .filter_map(|range| ByteRange::new(bytes(range.start()), bytes(range.end())))
        .collect()
}

/// The result of reading whole blocks of a file.
#[derive(Debug, Default)]
pub struct Read {
    /// The number of bytes read; fewer than were asked for only at the end of the file.
    pub len_bytes: usize,
    /// The number of the first block read.
    first_block: u64,
    /// The number of blocks read that have no known sum.
    pub unknown_blocks: u64,
    version: u64,
}

/// A file in memory.
#[derive(Debug, Default)]
struct File {
    sums: FileSums,
    /// The record in the database was looked up.
    is_loaded: bool,
    /// The record and the rows agree with memory, and the stamp is current.
    is_settled: bool,
    /// Times newer than those of the stamp are durable.
    times_are_durable: bool,
    /// A mismatch, if there is one, comes from a crash of the machine.
    is_after_crash: bool,
}

type Cell = Arc<Mutex<File>>;

/// See the module.
#[derive(Debug)]
pub struct WrittenSums {
    database: Database,
    boot: Boot,
    files: Mutex<HashMap<u64, Cell>>,
    /// Chunks in memory, as of the last look at each file.
    chunks: AtomicUsize,
    /// The last version given to any file. None is given twice, so that a file that was dropped
    /// from memory and looked up again has another one.
    last_version: AtomicU64,
    flags: Mutex<Flags>,
    flagged_count: AtomicUsize,
    /// Files that were open for change when the process or the machine ended unexpectedly.
    interrupted: Mutex<HashSet<u64>>,
    committing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Flags {
    by_file: BTreeMap<u64, Flagged>,
    is_dirty: bool,
    position: Option<(u64, u64)>,
    /// Removed files, whose rows the next commit deletes.
    gone: HashSet<u64>,
}

impl WrittenSums {
    /// Opens the file `name` of `dir`, or creates it. A damaged file is created anew, and so is one
    /// of another `tree`, because files are numbered by the tree's log. `boot` must differ after
    /// each start of the machine. `interrupted` are the files that were open for change when the
    /// last process ended unexpectedly. The caller ensures that it is open nowhere else.
    ///
    /// # Errors
    /// The system's error, or [`ChecksumError::Version`] for a file of another version.
    pub fn open(
        dir: &dyn DurableDir,
        name: &str,
        tree: u64,
        boot: Boot,
        interrupted: HashSet<u64>,
    ) -> std::result::Result<Self, ChecksumError> {
        backend::open(dir, name, |database| {
            Self::begin_with(database, tree, boot, interrupted.clone())
        })
    }

    fn begin_with(database: Database, tree: u64, boot: Boot, interrupted: HashSet<u64>) -> error::Result<Self> {
        let txn = database.begin_write().map_err(db)?;
        let mut flags = Flags::default();
        {
            let mut meta = txn.open_table(META).map_err(db)?;
            match number(&meta, META_VERSION)? {
                Some(VERSION) => {}
                Some(found) => return Err(other_version(found, VERSION)),
                None => drop(meta.insert(META_VERSION, &VERSION.to_le_bytes()[..]).map_err(db)?),
            }
            let mut files = txn.open_table(FILES).map_err(db)?;
            let mut sums = txn.open_table(SUMS).map_err(db)?;
            let mut flagged = txn.open_table(FLAGGED).map_err(db)?;
            if number(&meta, META_TREE)? != Some(tree) {
                files.retain(|_, _| false).map_err(db)?;
                sums.retain(|_, _| false).map_err(db)?;
                flagged.retain(|_, _| false).map_err(db)?;
                meta.insert(META_TREE, &tree.to_le_bytes()[..]).map_err(db)?;
                meta.remove(META_POSITION).map_err(db)?;
            }
            for row in flagged.iter().map_err(db)? {
                let (file, row) = row.map_err(db)?;
                let known = rows::decode_flagged(file.value(), row.value());
                flags.by_file.extend(known.map(|known| (file.value(), known)));
            }
            let position = meta.get(META_POSITION).map_err(db)?;
            let position = position.and_then(|bytes| <[u8; 16]>::try_from(bytes.value()).ok());
            flags.position = position.map(|bytes| {
                let both = u128::from_le_bytes(bytes);
                ((both >> 64) as u64, both as u64)
            });
        }
        txn.commit().map_err(db)?;
        Ok(Self {
            database,
            boot,
            files: Mutex::default(),
            chunks: AtomicUsize::new(0),
            last_version: AtomicU64::new(0),
            flagged_count: AtomicUsize::new(flags.by_file.len()),
            flags: Mutex::new(flags),
            interrupted: Mutex::new(interrupted),
            committing: Mutex::default(),
        })
    }

    fn cell(&self, file: u64) -> Cell {
        Arc::clone(self.files.lock().entry(file).or_default())
    }

    fn next_version(&self) -> u64 {
        self.last_version.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A row that cannot be read counts as missing.
    fn row(&self, file: u64, chunk: u64) -> Option<Chunk> {
        let txn = self.database.begin_read().ok()?;
        let table = txn.open_table(SUMS).ok()?;
        match table.get((file, chunk)) {
            Ok(row) => row.map(|row| rows::decode_chunk(file, chunk, row.value())),
            Err(_) => None,
        }
    }

    fn record(&self, file: u64) -> Option<Record> {
        let txn = self.database.begin_read().ok()?;
        let table = txn.open_table(FILES).ok()?;
        let record = table.get(file).ok()??;
        Record::decode(file, record.value())
    }

    /// Loads what is known of a file, unless that was done. Nothing may change the file meanwhile,
    /// nor may anything have changed it without passing here since it was last settled.
    fn load(&self, file: u64, known: &mut File, look: impl FnOnce() -> io::Result<Stamp>) {
        if known.is_loaded {
            return;
        }
        known.is_loaded = true;
        known.times_are_durable = false;
        known.sums.version = self.next_version();
        let now = look().ok();
        let record = self.record(file);
        let seen = record.as_ref().and_then(|record| record.stamp);
        if let (Some(now), Some(seen), Some(record)) = (&now, &seen, &record) {
            let looks = Seen::of(now, self.boot);
            let was_cut_off = seen.boot != self.boot && self.interrupted.lock().contains(&file);
            // The crash took back what had been written, or a part of it.
            let went_back = was_cut_off && seen.is_of(&now.identity) && looks.ctime_ns < seen.ctime_ns;
            if seen.is_like(&looks) || went_back {
                known.sums.zeros = record.zeros.clone();
                known.is_after_crash = was_cut_off;
                // The present stamp counts from now on.
                known.is_settled = !went_back;
                return;
            }
        }
        known.sums.forget(now.map(|now| now.len_bytes));
        known.is_after_crash = false;
        // Without a record there is nothing to remove, and nothing to keep yet.
        known.is_settled = record.is_none();
        self.unflag(file, None);
    }

    /// Loads what is known of a file whose attributes or names are about to change.
    pub fn look(&self, file: u64, look: impl FnOnce() -> io::Result<Stamp>) {
        let cell = self.cell(file);
        let mut known = cell.lock();
        self.load(file, &mut known, look);
    }

    /// Attributes or names of a file changed, and with them its times.
    pub fn touched(&self, file: u64) {
        let Some(cell) = self.files.lock().get(&file).cloned() else {
            return;
        };
        let mut known = cell.lock();
        known.sums.version = self.next_version();
        known.is_settled = false;
        known.times_are_durable = false;
    }

    /// A file has no name any more.
    pub fn removed(&self, file: u64) {
        self.files.lock().remove(&file);
        let mut flags = self.flags.lock();
        flags.gone.insert(file);
        if flags.by_file.remove(&file).is_some() {
            flags.is_dirty = true;
        }
        self.flagged_count.store(flags.by_file.len(), Ordering::Relaxed);
    }

    /// The file was changed without passing the gate, or its present content is to count: nothing
    /// is known of it any more.
    pub fn forget(&self, file: u64) {
        let cell = self.cell(file);
        let mut known = cell.lock();
        known.sums.version = self.next_version();
        known.sums.forget(None);
        known.is_loaded = true;
        known.is_settled = false;
        known.is_after_crash = false;
        drop(known);
        self.unflag(file, None);
    }

    /// Performs a change of a file's content. `is_whole` reports whether the change was performed
    /// completely. The file must not be changed in any other way. For blocks that change in part,
    /// their old bytes are read, as the change itself would have to do.
    ///
    /// # Errors
    /// Those of `perform`; the range that would have been changed is unknown then.
    pub fn change<T, E>(
        &self,
        file: u64,
        backing: &impl Backing,
        change: Change<'_>,
        perform: impl FnOnce() -> Result<T, E>,
        is_whole: impl FnOnce(&T) -> bool,
    ) -> Result<T, E> {
        let cell = self.cell(file);
        let mut known = cell.lock();
        self.load(file, &mut known, || backing.stamp());
        let known = &mut *known;
        known.is_settled = false;
        known.sums.version = self.next_version();
        let chunks_before = known.sums.chunks.len();
        let rows = |chunk| self.row(file, chunk);
        let old = &mut |offset, buffer: &mut [u8]| read_full(backing, offset, buffer).ok();
        // The bytes that change, and their new content.
        let (range, data) = match change {
            Change::Written { offset, data } => {
                let end = offset.saturating_add(data.len() as u64);
                (ByteRange::new(offset, end), Some(data))
            }
            Change::Zeroed(range) => (Some(range), None),
            Change::Overwritten(range) | Change::Healed(range) | Change::Accepted(range) => (Some(range), None),
            // The rest of the block in which the file now ends; blocks behind it do not count.
            Change::Truncated(len_bytes) => (ByteRange::new(len_bytes, len_bytes.next_multiple_of(BLOCK_LEN)), None),
            Change::Moved => (None, None),
        };
        let mut edges = match (range, change) {
            (Some(range), Change::Written { .. } | Change::Zeroed(_) | Change::Truncated(_)) => {
                known.sums.edges(range, data, &rows, old)
            }
            _ => Vec::new(),
        };
        if edges.iter().any(|(_, sum)| sum.is_none()) {
            // Damaged blocks stay damaged, although their correct sums are not known any more.
            let damaged = self.flagged_of(file).map(|flagged| flagged.blocks).unwrap_or_default();
            edges.retain(|(block, sum)| sum.is_some() || !damaged.contains(*block));
        }
        let done = perform();
        let is_done = match &done {
            Ok(done) => is_whole(done),
            Err(_) => false,
        };
        match (range, change) {
            (_, Change::Moved) => {
                // Everything has to be learned anew.
                let len_bytes = backing.stamp().ok().map(|now| now.len_bytes);
                known.sums.forget(len_bytes);
                self.unflag(file, None);
            }
            (_, Change::Truncated(len_bytes)) if !is_done => {
                self.unknown_but_damaged(file, &mut known.sums, (len_bytes / BLOCK_LEN, u64::MAX));
            }
            (_, Change::Truncated(len_bytes)) => {
                known.sums.put_edges(edges);
                let first = len_bytes.div_ceil(BLOCK_LEN);
                known.sums.zero(first, u64::MAX);
                self.unflag(file, Some((first, u64::MAX)));
            }
            (None, _) => {}
            // After a failure the next read shows whether the blocks are still damaged.
            (Some(range), Change::Healed(_)) if is_done => self.unflag(file, Some(blocks_of(range))),
            (Some(_), Change::Healed(_)) => {}
            (Some(range), Change::Accepted(_)) if is_done => self.accept(file, &mut known.sums, backing, range),
            (Some(_), Change::Accepted(_)) => {}
            (Some(range), Change::Overwritten(_)) => self.overwritten(file, &mut known.sums, range, is_done),
            (Some(range), _) if !is_done => self.overwritten(file, &mut known.sums, range, false),
            (Some(range), _) => {
                known.sums.put_edges(edges);
                let (first, end) = blocks_within(range);
                match data {
                    Some(data) => written(&mut known.sums, range, data),
                    None => known.sums.zero(first, end),
                }
                self.unflag(file, Some((first, end)));
            }
        }
        let chunks = known.sums.chunks.len();
        if chunks > chunks_before {
            let more = chunks - chunks_before;
            if self.chunks.fetch_add(more, Ordering::Relaxed).saturating_add(more) > CHUNKS_MAX {
                let len_bytes = backing.stamp().ok().map(|now| now.len_bytes);
                let damaged = self.flagged_of(file).map(|flagged| flagged.blocks).unwrap_or_default();
                let blocks = damaged.iter().flat_map(|range| range.start()..range.end());
                let sums: Vec<_> = blocks.map(|block| (block, known.sums.get(block, &rows))).collect();
                known.sums.forget(len_bytes);
                sums.into_iter().for_each(|(block, sum)| known.sums.set(block, sum));
                let fewer = |now: usize| Some(now.saturating_sub(chunks));
                let _ = self.chunks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
            }
        }
        done
    }

    /// Whether a sync of the file's data must make its times durable as well: once after each
    /// commit.
    #[must_use]
    pub fn must_sync_times(&self, file: u64) -> bool {
        let Some(cell) = self.files.lock().get(&file).cloned() else {
            return false;
        };
        let mut known = cell.lock();
        let must = known.is_loaded && !known.is_settled && !known.times_are_durable;
        known.times_are_durable |= must;
        must
    }

    /// Reads whole blocks of a file from `offset`, a multiple of [`BLOCK_LEN`], into `buffer`, and
    /// compares them with their sums. Bytes of `buffer` beyond the last whole block are not used.
    /// Blocks that differ are read once more while nothing changes the file.
    ///
    /// # Errors
    /// The system's error. Bytes that are not what was written are not an error: they are returned
    /// as a [`Mismatch`].
    pub fn read(
        &self,
        file: u64,
        backing: &impl Backing,
        offset: u64,
        buffer: &mut [u8],
    ) -> io::Result<(Read, Option<Mismatch>)> {
        let first = offset / BLOCK_LEN;
        let blocks = (buffer.len() / BLOCK_LEN as usize) as u64;
        let whole = buffer.len() - buffer.len() % BLOCK_LEN as usize;
        let buffer = buffer.get_mut(..whole).unwrap_or_default();
        let cell = self.cell(file);
        let (expected, version) = {
            let mut known = cell.lock();
            self.load(file, &mut known, || backing.stamp());
            let rows = |chunk| self.row(file, chunk);
            let sums: Vec<_> = (first..first.saturating_add(blocks))
                .map(|block| known.sums.get(block, &rows))
                .collect();
            (sums, known.sums.version)
        };
        let len_bytes = read_full(backing, offset, buffer)?;
        let mut read = Read {
            len_bytes,
            first_block: first,
            unknown_blocks: 0,
            version,
        };
        let mut differing = Vec::new();
        let found = buffer.get(..len_bytes).unwrap_or_default().chunks(BLOCK_LEN as usize);
        for ((block, bytes), sum) in (first..).zip(found).zip(&expected) {
            match sum {
                None => read.unknown_blocks += 1,
                Some(sum) if *sum == sum_of(bytes) => {}
                Some(_) => differing.push(block),
            }
        }
        if differing.is_empty() {
            self.agreed(file, first, &expected);
            return Ok((read, None));
        }
        let mut known = cell.lock();
        let known = &mut *known;
        let rows = |chunk| self.row(file, chunk);
        let mut still = Vec::new();
        for block in differing {
            let at = usize::try_from((block - first) * BLOCK_LEN).unwrap_or(usize::MAX);
            let end = buffer.len().min(at.saturating_add(BLOCK_LEN as usize));
            let bytes = buffer.get_mut(at..end).unwrap_or_default();
            let count = read_full(backing, block * BLOCK_LEN, bytes)?;
            // Longer or shorter than before; the rest is not read again.
            read.len_bytes = match count == bytes.len() {
                true => read.len_bytes.max(at + count),
                false => at + count,
            };
            let is_of = sum_of(bytes.get(..count).unwrap_or_default());
            still.extend(
                known
                    .sums
                    .get(block, &rows)
                    .filter(|sum| *sum != is_of)
                    .map(|sum| (block, sum)),
            );
        }
        let mismatch = (!still.is_empty()).then(|| Mismatch {
            blocks: still,
            stamp: backing.stamp().ok(),
            reason: match known.is_after_crash {
                true => Reason::Crash,
                false => Reason::Changed,
            },
            version: known.sums.version,
        });
        Ok((read, mismatch))
    }

    /// Learns the sums of those blocks in `read` that had none, if nothing changed the file since
    /// the read. Returns the number of blocks learned.
    pub fn learn(&self, file: u64, read: &Read, bytes: &[u8]) -> u64 {
        let cell = self.cell(file);
        let mut known = cell.lock();
        if !known.is_loaded || known.sums.version != read.version {
            return 0;
        }
        let known = &mut *known;
        let rows = |chunk| self.row(file, chunk);
        let bytes = bytes.get(..read.len_bytes).unwrap_or_default();
        let mut learned = 0;
        for (block, bytes) in (read.first_block..).zip(bytes.chunks(BLOCK_LEN as usize)) {
            if known.sums.get(block, &rows).is_none() {
                if learned == 0 {
                    known.sums.version = self.next_version();
                    known.is_settled = false;
                }
                learned += 1;
                known.sums.set(block, Some(sum_of(bytes)));
            }
        }
        learned
    }

    /// Flags a file that is not what was written, as far as that still holds: if the file was
    /// changed since the mismatch was found, its blocks are read once more. The caller has made
    /// sure that nothing changed the file without passing the gate. Returns what was flagged, if
    /// anything.
    ///
    /// # Errors
    /// The system's error. Nothing is flagged then.
    pub fn flag(
        &self,
        file: u64,
        backing: &impl Backing,
        mismatch: &Mismatch,
        now_ns: i64,
    ) -> io::Result<Option<Mismatch>> {
        let cell = self.cell(file);
        let mut known = cell.lock();
        self.load(file, &mut known, || backing.stamp());
        let mut still = mismatch.clone();
        if known.sums.version != mismatch.version {
            let known = &mut *known;
            let rows = |chunk| self.row(file, chunk);
            let mut room = Vec::new();
            still.blocks.clear();
            for (block, _) in &mismatch.blocks {
                let bytes = aligned_block(&mut room);
                let count = read_full(backing, block.saturating_mul(BLOCK_LEN), bytes)?;
                let is_of = sum_of(bytes.get(..count).unwrap_or_default());
                // Drop the block if its sum was forgotten or if it matches now.
                let sum = known.sums.get(*block, &rows).filter(|sum| *sum != is_of);
                still.blocks.extend(sum.map(|sum| (*block, sum)));
            }
            still.stamp = backing.stamp().ok();
            still.version = known.sums.version;
        }
        let blocks = still.blocks.iter().map(|(block, _)| *block);
        let is_noted = self.note(file, blocks, still.reason, now_ns);
        Ok(is_noted.then_some(still))
    }

    /// Requires the file's lock.
    fn note(&self, file: u64, blocks: impl Iterator<Item = u64>, reason: Reason, now_ns: i64) -> bool {
        let blocks: ExtentSet = blocks
            .filter_map(|block| ByteRange::from_offset_len(block, 1))
            .collect();
        if blocks.is_empty() {
            return false;
        }
        let mut flags = self.flags.lock();
        let flagged = flags.by_file.entry(file).or_insert_with(|| Flagged {
            reason,
            found_at_ns: now_ns,
            blocks: ExtentSet::new(),
        });
        flagged.blocks.union_with(&blocks);
        flags.is_dirty = true;
        self.flagged_count.store(flags.by_file.len(), Ordering::Relaxed);
        true
    }

    /// All flagged files, by their numbers.
    #[must_use]
    pub fn flagged(&self) -> BTreeMap<u64, Flagged> {
        self.flags.lock().by_file.clone()
    }

    /// The damage found in a file.
    #[must_use]
    pub fn flagged_of(&self, file: u64) -> Option<Flagged> {
        match self.flagged_count.load(Ordering::Relaxed) {
            0 => None,
            _ => self.flags.lock().by_file.get(&file).cloned(),
        }
    }

    /// Marks blocks, or the whole file if `None`, as undamaged.
    fn unflag(&self, file: u64, blocks: Option<(u64, u64)>) {
        if self.flagged_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut flags = self.flags.lock();
        let Some(flagged) = flags.by_file.get_mut(&file) else {
            return;
        };
        let blocks = match blocks {
            Some((first, end)) => ByteRange::new(first, end),
            None => Some(EVERY_CHUNK),
        };
        let Some(blocks) = blocks.filter(|blocks| flagged.blocks.intersects(*blocks)) else {
            return;
        };
        flagged.blocks.remove(blocks);
        if flagged.blocks.is_empty() {
            flags.by_file.remove(&file);
        }
        flags.is_dirty = true;
        self.flagged_count.store(flags.by_file.len(), Ordering::Relaxed);
    }

    /// Blocks from `first` on matched these sums, so damage below was repaired. Where no sum is
    /// known, nothing is known about damage.
    fn agreed(&self, file: u64, first: u64, sums: &[Option<u32>]) {
        if self.flagged_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        for (block, _) in (first..).zip(sums).filter(|(_, sum)| sum.is_some()) {
            self.unflag(file, Some((block, block.saturating_add(1))));
        }
    }

    /// The caller's position in its scan of all files, as last set: a file and an offset.
    #[must_use]
    pub fn position(&self) -> Option<(u64, u64)> {
        self.flags.lock().position
    }

    /// Stores the position of a scan; it is durable after the next commit.
    pub fn set_position(&self, position: (u64, u64)) {
        let mut flags = self.flags.lock();
        flags.is_dirty |= flags.position != Some(position);
        flags.position = Some(position);
    }

    /// Numbers of all files with a record, for callers that check which of them still exist.
    ///
    /// # Errors
    /// The database fails.
    pub fn kept_files(&self) -> std::result::Result<Vec<u64>, ChecksumError> {
        let txn = self.database.begin_read().map_err(db)?;
        let files = txn.open_table(FILES).map_err(db)?;
        let mut kept = Vec::new();
        for row in files.iter().map_err(db)? {
            kept.push(row.map_err(db)?.0.value());
        }
        Ok(kept)
    }

    /// The number of known blocks of a file; for display.
    pub fn known_blocks(&self, file: u64, backing: &impl Backing) -> u64 {
        let cell = self.cell(file);
        let mut known: MutexGuard<'_, File> = cell.lock();
        self.load(file, &mut known, || backing.stamp());
        let len_bytes = backing.stamp().map_or(0, |now| now.len_bytes);
        let rows = |chunk| self.row(file, chunk);
        let blocks = 0..len_bytes.div_ceil(BLOCK_LEN);
        blocks.filter(|block| known.sums.get(*block, &rows).is_some()).count() as u64
    }
}

/// The blocks that overlap a range of bytes, from the first to behind the last.
fn blocks_of(range: ByteRange) -> (u64, u64) {
    (range.start() / BLOCK_LEN, range.end().div_ceil(BLOCK_LEN))
}

/// The sum of a block that begins with `bytes` and continues with zeros.
#[must_use]
pub fn block_sum(bytes: &[u8]) -> u32 {
    sum_of(bytes)
}

/// Records the sums of the whole blocks that were written.
fn written(sums: &mut FileSums, range: ByteRange, data: &[u8]) {
    let (first, end) = blocks_within(range);
    let skipped = usize::try_from((first * BLOCK_LEN).saturating_sub(range.start())).unwrap_or(usize::MAX);
    let whole = data.get(skipped..).unwrap_or_default().chunks_exact(BLOCK_LEN as usize);
    for (block, bytes) in (first..end).zip(whole) {
        sums.set(block, Some(crc32c::crc32c(bytes)));
    }
}

/// The stamp of a file that another part of the program looked at.
#[must_use]
pub fn stamp_of(identity: Identity, len_bytes: u64, mtime_ns: i64, ctime_ns: i64) -> Stamp {
    Stamp {
        identity,
        len_bytes,
        mtime_ns,
        ctime_ns,
        witness: [0; 32],
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use rows::fuzzing::{read_rows, row_seeds};

#[cfg(test)]
mod tests;
