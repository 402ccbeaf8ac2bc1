//! Checksums that we summed ourselves, kept so that a file that did not change need not be read by
//! the next comparison. This is the source for file systems that keep or report no checksums.
//!
//! Words: a *record* belongs to one file, identified by device and inode. It has a number that is
//! never reused, under which the checksums are stored. A *boot* is the time between two starts of
//! the machine, identified by a random number that the caller passes.
//!
//! Invariant: returned checksums are of the file's present content. A record counts only while
//! device, inode, birth, mount, length, modification and change time are unchanged, and only within
//! the boot in which it was made:
//!
//! - *Before* the file is looked at, running writes are waited for: a write moves the times when it
//!   begins, and may take long (a gigabyte in one call, a slow disk). Before the file is read, it
//!   is synced, so that each later store into a mapped page takes a page fault, which moves the
//!   times. Its last change must be more than [`QUIET`] ago by then, so that a later one has
//!   another time (git's rule for its index, with room for file systems whose times have a
//!   resolution of two seconds, for slow faults, and for asynchronous direct writes, which cannot
//!   be waited for). After it was read, nothing may have moved.
//! - *Within the boot*, because after a crash data can be new while all times are old (measured on
//!   ext4, XFS and F2FS).
//! - File systems on which a store into a mapped page moves no time (tmpfs), or which other
//!   machines or programs can change (NFS, FUSE), are refused.
//!
//! One transaction creates a record, removes the file's previous one, and removes the oldest ones
//! until the limit holds: a crash leaves the state before or after it. Damage: the database is
//! checked as a whole when it is opened, and is created anew if it is broken. Each value has a CRC
//! with its key; damaged values are unknown. docs/formats/checksums.md describes every byte.
//!
//! Memory: one chunk (1 MiB) of content, its checksums, and redb's cache.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use byteback_extents::ByteRange;
use byteback_host::clock::Clock;
use byteback_host::durable::DurableDir;
use byteback_host::tree::{Stat, stat_fd, wait_for_writers};
use redb::{Database, ReadOnlyTable, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use crate::backend::{self, number};
use crate::error::{self, ChecksumError, db, other_version};
use crate::source::{Extraction, Kind, Layout, Result, Run, SourceError, Stamp, Tail, Unknown, regular_file};

/// Bytes of a block.
const BLOCK_LEN: usize = 4096;

/// Blocks whose checksums lie in one value.
const CHUNK_BLOCKS: u64 = 256;

/// The time for which a file must not have changed before its checksums are kept.
pub const QUIET: Duration = Duration::from_secs(3);

const VERSION: u64 = 1;
/// CRC-32C and BLAKE3.
const CRC_LEN: usize = 4;
const STRONG_LEN: usize = 32;
const ENTRY_LEN: usize = CRC_LEN + STRONG_LEN;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
/// (device, inode) -> record.
const FILES: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("files");
/// Number of a record -> device, inode, and the number of its blocks.
const ORDER: TableDefinition<'_, u64, (u64, u64, u64)> = TableDefinition::new("order");
/// (number of a record, chunk) -> entries and their CRC.
const SUMS: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("sums");

const META_VERSION: &str = "version";
const META_NEXT: &str = "next";
const META_BLOCKS: &str = "blocks";

/// The random identifier of a boot; different after each start of the machine.
pub type Boot = [u8; 16];

/// See the module.
#[derive(Debug)]
pub struct KeptChecksums {
    database: Database,
    boot: Boot,
    blocks_max: u64,
}

/// The operations on an open file that keeping checksums needs.
trait Content {
    fn stat(&self) -> io::Result<Stat>;
    fn sync(&self) -> io::Result<()>;
    /// Returns once the running writes have ended.
    fn wait_for_writers(&self);
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Whether every change of the file moves its times.
    fn times_track_changes(&self) -> io::Result<bool>;
}

impl<F: AsFd> Content for F {
    fn stat(&self) -> io::Result<Stat> {
        stat_fd(self)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(self)?)
    }

    fn wait_for_writers(&self) {
        wait_for_writers(self);
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match rustix::io::pread(self, &mut *buffer, offset) {
                Err(rustix::io::Errno::INTR) => {}
                done => return Ok(done?),
            }
        }
    }

    fn times_track_changes(&self) -> io::Result<bool> {
        // The width of the field differs between machines.
        #[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
        let magic = rustix::fs::fstatfs(self)?.f_type as i64 & 0xffff_ffff;
        // ext2 to ext4, XFS, btrfs, F2FS, bcachefs.
        Ok([0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0xca45_1a4e].contains(&magic))
    }
}

/// The record of a file; all of it must match for the checksums to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    number: u64,
    stamp: Stamp,
    mount: Option<u64>,
    boot: Boot,
}

/// Bytes of a record.
const RECORD_LEN: usize = 8 + 9 + 9 + 8 + 8 + 8 + 16 + 4;

impl Record {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.number.to_le_bytes().to_vec();
        let birth = self.stamp.identity.birth_ns;
        bytes.push(u8::from(birth.is_some()));
        bytes.extend(birth.unwrap_or(0).to_le_bytes());
        bytes.push(u8::from(self.mount.is_some()));
        bytes.extend(self.mount.unwrap_or(0).to_le_bytes());
        bytes.extend(self.stamp.len_bytes.to_le_bytes());
        bytes.extend(self.stamp.mtime_ns.to_le_bytes());
        bytes.extend(self.stamp.ctime_ns.to_le_bytes());
        bytes.extend(self.boot);
        let key = (self.stamp.identity.dev, self.stamp.identity.ino);
        bytes.extend(crc(key, &bytes).to_le_bytes());
        bytes
    }

    /// The record's number, if `bytes` is an intact record under this key.
    fn number_of(key: (u64, u64), bytes: &[u8]) -> Option<u64> {
        let (body, stored) = bytes.split_last_chunk::<4>()?;
        let is_whole = bytes.len() == RECORD_LEN && u32::from_le_bytes(*stored) == crc(key, body);
        body.first_chunk()
            .filter(|_| is_whole)
            .map(|number| u64::from_le_bytes(*number))
    }
}

fn crc((first, second): (u64, u64), body: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&first.to_le_bytes()), &second.to_le_bytes());
    crc32c::crc32c_append(crc, body)
}

fn failed(error: ChecksumError) -> SourceError {
    SourceError::Io {
        what: "use the kept checksums",
        source: io::Error::other(error),
    }
}

impl KeptChecksums {
    /// Opens the file `name` of `dir`, or creates it; a damaged one is created anew. At most
    /// `blocks_max` blocks of 4 KiB are kept, which take about 40 bytes each. `boot` must differ
    /// after each start of the machine. The caller ensures that it is open nowhere else.
    ///
    /// # Errors
    /// The system's error, or [`ChecksumError::Version`] for a file of another version.
    pub fn open(dir: &dyn DurableDir, name: &str, boot: Boot, blocks_max: u64) -> error::Result<Self> {
        backend::open(dir, name, |database| Self::begin_with(database, boot, blocks_max))
    }

    fn begin_with(database: Database, boot: Boot, blocks_max: u64) -> error::Result<Self> {
        let txn = database.begin_write().map_err(db)?;
        {
            let mut meta = txn.open_table(META).map_err(db)?;
            match number(&meta, META_VERSION)? {
                Some(VERSION) => {}
                Some(found) => return Err(other_version(found, VERSION)),
                None => drop(meta.insert(META_VERSION, &VERSION.to_le_bytes()[..]).map_err(db)?),
            }
        }
        txn.open_table(FILES).map_err(db)?;
        txn.open_table(ORDER).map_err(db)?;
        txn.open_table(SUMS).map_err(db)?;
        txn.commit().map_err(db)?;
        Ok(Self {
            database,
            boot,
            blocks_max,
        })
    }

    /// Reads `file`, which is open for reading, and keeps the checksums of its blocks.
    ///
    /// # Errors
    /// [`SourceError::Busy`] if it changed within the last [`QUIET`];
    /// [`SourceError::ChangedMeanwhile`]; [`SourceError::NotHere`] if it is not a regular file,
    /// lies on a file system whose times prove nothing, or has more blocks than may be kept.
    /// Checksums kept of it before stay, but no longer count.
    pub fn keep(&self, file: &impl AsFd, clock: &dyn Clock) -> Result<()> {
        self.keep_content(file, clock)
    }

    fn keep_content(&self, file: &impl Content, clock: &dyn Clock) -> Result<()> {
        let ask = || regular_file(file.stat());
        ask()?;
        file.wait_for_writers();
        let before = ask()?;
        if !file
            .times_track_changes()
            .map_err(SourceError::io("query the type of the file system"))?
        {
            return Err(SourceError::NotHere(
                "file times on this file system do not show every change",
            ));
        }
        let blocks = before.size.div_ceil(BLOCK_LEN as u64);
        if blocks > self.blocks_max {
            return Err(SourceError::NotHere("the file has more blocks than may be kept"));
        }
        let quiet_ns = i64::try_from(QUIET.as_nanos()).unwrap_or(i64::MAX);
        if clock.now_ns().saturating_sub(before.ctime_ns) <= quiet_ns {
            return Err(SourceError::Busy);
        }
        file.sync().map_err(SourceError::io("flush the file"))?;
        let txn = self.database.begin_write().map_err(|error| failed(db(error)))?;
        let number = self.make_room(&txn, &before, blocks).map_err(failed)?;
        let mut buffer = vec![0; BLOCK_LEN * CHUNK_BLOCKS as usize];
        for chunk in 0..blocks.div_ceil(CHUNK_BLOCKS) {
            let start = chunk * buffer.len() as u64;
            let len = usize::try_from(before.size - start)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            let bytes = buffer.get_mut(..len).unwrap_or_default();
            let mut filled = 0;
            while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                match file
                    .read_at(rest, start + filled as u64)
                    .map_err(SourceError::io("read the file"))?
                {
                    0 => return Err(SourceError::ChangedMeanwhile),
                    read => filled += read,
                }
            }
            let mut value = Vec::with_capacity(CHUNK_BLOCKS as usize * ENTRY_LEN + 4);
            for block in bytes.chunks(BLOCK_LEN) {
                value.extend(crc32c::crc32c(block).to_le_bytes());
                value.extend(blake3::hash(block).as_bytes());
            }
            value.extend(crc((number, chunk), &value).to_le_bytes());
            let mut sums = txn.open_table(SUMS).map_err(|error| failed(db(error)))?;
            sums.insert((number, chunk), value.as_slice())
                .map_err(|error| failed(db(error)))?;
        }
        if Stamp::of(&before) != Stamp::of(&ask()?) {
            return Err(SourceError::ChangedMeanwhile);
        }
        txn.commit().map_err(|error| failed(db(error)))
    }

    fn record(&self, stat: &Stat, number: u64) -> Record {
        Record {
            number,
            stamp: Stamp::of(stat),
            mount: stat.mount_id,
            boot: self.boot,
        }
    }

    /// Creates the record of a file in place of its previous one, removing as many of the oldest
    /// records as its blocks need. Returns the new number.
    fn make_room(&self, txn: &WriteTransaction, stat: &Stat, blocks: u64) -> error::Result<u64> {
        let mut meta = txn.open_table(META).map_err(db)?;
        let mut files = txn.open_table(FILES).map_err(db)?;
        let mut order = txn.open_table(ORDER).map_err(db)?;
        let mut sums = txn.open_table(SUMS).map_err(db)?;
        let next = number(&meta, META_NEXT)?.unwrap_or(0);
        let mut kept = number(&meta, META_BLOCKS)?.unwrap_or(0);
        let key = (stat.dev, stat.ino);
        let former = files
            .get(key)
            .map_err(db)?
            .and_then(|record| Record::number_of(key, record.value()));
        let mut going = former;
        loop {
            if let Some(gone) = going {
                let place = order.remove(gone).map_err(db)?.map(|place| place.value());
                sums.retain_in((gone, 0)..=(gone, u64::MAX), |_, _| false).map_err(db)?;
                if let Some((dev, ino, blocks)) = place {
                    files.remove((dev, ino)).map_err(db)?;
                    kept = kept.saturating_sub(blocks);
                }
            }
            if kept + blocks <= self.blocks_max {
                break;
            }
            going = order.first().map_err(db)?.map(|(number, _)| number.value());
            if going.is_none() {
                break;
            }
        }
        let record = self.record(stat, next);
        files.insert(key, record.encode().as_slice()).map_err(db)?;
        order.insert(next, (key.0, key.1, blocks)).map_err(db)?;
        meta.insert(META_NEXT, &(next + 1).to_le_bytes()[..]).map_err(db)?;
        meta.insert(META_BLOCKS, &(kept + blocks).to_le_bytes()[..])
            .map_err(db)?;
        Ok(next)
    }

    /// Begins an extraction of the checksums kept of the open `file`, of this kind:
    /// [`Kind::Crc32c`] or [`Kind::Blake3`].
    ///
    /// # Errors
    /// [`SourceError::NotHere`] if nothing is kept of the file in its present state, or nothing of
    /// this kind.
    pub fn begin<'file, F: AsFd>(&self, file: &'file F, kind: Kind) -> Result<KeptExtraction<'file, F>> {
        Ok(KeptExtraction(self.begin_content(file, kind)?))
    }

    fn begin_content<'file, F: Content>(&self, file: &'file F, kind: Kind) -> Result<Passage<'file, F>> {
        let sum_at = match kind {
            Kind::Crc32c => 0,
            Kind::Blake3 => CRC_LEN,
            _ => return Err(SourceError::NotHere("no checksums of this kind are kept")),
        };
        let stat = file.stat().map_err(SourceError::io("read the file's times"))?;
        let key = (stat.dev, stat.ino);
        let txn = self.database.begin_read().map_err(|error| failed(db(error)))?;
        let files = txn.open_table(FILES).map_err(|error| failed(db(error)))?;
        let record = files.get(key).map_err(|error| failed(db(error)))?;
        let record = record.ok_or(SourceError::NotHere("no checksums of the file are kept"))?;
        let number = Record::number_of(key, record.value())
            .ok_or(SourceError::NotHere("the record of the file's checksums is damaged"))?;
        if self.record(&stat, number).encode() != record.value() {
            return Err(SourceError::NotHere("the file changed since its checksums were kept"));
        }
        Ok(Passage {
            file,
            stat,
            number,
            layout: Layout {
                kind,
                salt: Vec::new(),
                block_len: BLOCK_LEN as u32,
                tail: Tail::AsIs,
            },
            sum_at,
            table: txn.open_table(SUMS).map_err(|error| failed(db(error)))?,
            chunk: 0,
            sums: Vec::new(),
            crcs: Vec::new(),
        })
    }
}

/// A single pass over the checksums kept of a file; see [`KeptChecksums::begin`].
pub struct KeptExtraction<'file, F>(Passage<'file, F>);

impl<F> KeptExtraction<'_, F> {
    /// The CRC-32Cs (little-endian) of the blocks of the last run, if it has checksums, whatever
    /// their kind.
    #[must_use]
    pub fn crcs(&self) -> &[u8] {
        &self.0.crcs
    }
}

impl<F> std::fmt::Debug for KeptExtraction<'_, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptExtraction").finish_non_exhaustive()
    }
}

impl<F: AsFd> Extraction for KeptExtraction<'_, F> {
    fn layout(&self) -> &Layout {
        self.0.layout()
    }

    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        self.0.next_run()
    }

    fn finish(self) -> Result<Stamp> {
        self.0.finish()
    }
}

struct Passage<'file, F> {
    file: &'file F,
    stat: Stat,
    number: u64,
    layout: Layout,
    /// The offset of the checksum within an entry.
    sum_at: usize,
    table: ReadOnlyTable<(u64, u64), &'static [u8]>,
    chunk: u64,
    sums: Vec<u8>,
    crcs: Vec<u8>,
}

impl<F: Content> Extraction for Passage<'_, F> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn len_bytes(&self) -> u64 {
        self.stat.size
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        let chunk_len = CHUNK_BLOCKS * BLOCK_LEN as u64;
        let start = self.chunk * chunk_len;
        let Some(range) = ByteRange::new(start, self.stat.size.min(start + chunk_len)) else {
            return Ok(None);
        };
        let key = (self.number, self.chunk);
        self.chunk += 1;
        self.sums.clear();
        self.crcs.clear();
        let value = self.table.get(key).map_err(|error| failed(db(error)))?;
        let value = value.as_ref().and_then(|value| value.value().split_last_chunk::<4>());
        let whole = value.filter(|(body, stored)| {
            body.len() as u64 == self.layout.block_count(range) * ENTRY_LEN as u64
                && u32::from_le_bytes(**stored) == crc(key, body)
        });
        let Some((body, _)) = whole else {
            let why = Unknown::NotSummed;
            return Ok(Some(Run::Unknown { range, why }));
        };
        let sum_len = self.layout.kind.len_bytes();
        for entry in body.as_chunks::<ENTRY_LEN>().0 {
            self.sums.extend(entry.iter().skip(self.sum_at).take(sum_len));
            self.crcs.extend(entry.iter().take(CRC_LEN));
        }
        let sums = &self.sums;
        Ok(Some(Run::Sums { range, sums }))
    }

    fn finish(self) -> Result<Stamp> {
        let now = self.file.stat().map_err(SourceError::io("read the file's times"))?;
        match Stamp::of(&now) == Stamp::of(&self.stat) && now.mount_id == self.stat.mount_id {
            true => Ok(Stamp::of(&now)),
            false => Err(SourceError::ChangedMeanwhile),
        }
    }
}

#[cfg(test)]
mod tests;
