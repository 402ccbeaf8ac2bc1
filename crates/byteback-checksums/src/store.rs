//! The checksums of each file's content on a server: one strong checksum for each block of
//! [`BLOCK_LEN`] bytes.
//!
//! Words: a *batch* is the data that one backup sends, identified by a number that is never used
//! twice. The *settled* checksums are those of the contents after one batch. A backup collects the
//! checksums of the data that it sends as *pending* ones, under its own batch.
//!
//! Invariant: no checksum is ever used for contents that the server does not have. A wrong one
//! would keep a change from being sent.
//!
//! Order of durable steps, and what a crash after each leaves:
//!
//! 1. [`Session::prepare`]: the pending checksums become durable together with the number of their
//!    batch, before the server is asked to apply that batch. (Crash: the settled checksums are
//!    untouched. The next session is given the batch that the server's contents stand on. If that
//!    is the pending one, it is settled first; if it is the settled one, the pending checksums are
//!    dropped; otherwise all are dropped.)
//! 2. The server applies the batch; the consumer's mark moves. (Crash: as 1, now with the other
//!    answer.)
//! 3. [`ChecksumStore::settle`]: pending ones replace settled ones, in one transaction. (Crash: it
//!    happens at the next session.)
//!
//! So nothing depends on other backups telling the store of themselves: one made without the store,
//! by another program or from another copy of this machine, has another batch number, and
//! everything is forgotten.
//!
//! *Checksums* are 16 bytes of BLAKE3, keyed with a random number of the store, so that no
//! collisions can be constructed. The last block of a file may be shorter, and is hashed as it is.
//! A block without a checksum is unknown, which is always safe.
//!
//! *Damage*: the file is checked as a whole when it is opened, and each value carries a CRC with
//! its key. Damaged values are unknown; a file that cannot be opened is created anew, empty.
//! docs/formats/checksums.md describes every byte.
//!
//! Memory: one chunk of checksums, and redb's cache.

use byteback_host::durable::DurableDir;
use byteback_host::random::Randomness;
use redb::{Database, ReadableTable, TableDefinition, WriteTransaction};

use crate::backend::{self, number};
use crate::error::{ChecksumError, Result, db, other_version};

/// Bytes of a block.
pub const BLOCK_LEN: u64 = 4096;

/// Blocks whose checksums lie in one value.
const CHUNK_BLOCKS: u64 = 256;

/// The version of the format that this program writes, and the only one that it reads.
const VERSION: u64 = 1;

/// A checksum of a block.
pub type Sum = [u8; 16];

/// Index of a block in its chunk, and its checksum.
const ENTRY_LEN: usize = 1 + size_of::<Sum>();

/// Settings, by the names below.
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
/// (file, chunk) -> entries and their CRC.
const SETTLED: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("settled");
/// The changes of the pending batch; a value without entries removes the chunk.
const PENDING: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("pending");
/// File -> the first chunk whose settled checksums no longer count.
const PENDING_CUT: TableDefinition<'_, u64, u64> = TableDefinition::new("pending_cut");

const META_VERSION: &str = "version";
const META_KEY: &str = "key";
const META_SETTLED_BATCH: &str = "settled_batch";
const META_PENDING_BATCH: &str = "pending_batch";

/// The checksums of one tree's files as one server has them.
///
/// ```
/// use byteback_checksums::ChecksumStore;
/// use byteback_host::random::RealRandomness;
/// use byteback_host::sim::SimDisk;
///
/// let store = ChecksumStore::open(&SimDisk::new(0), "blocks.redb", &RealRandomness)?;
/// let (file, block) = (5, [7; 4096]);
///
/// // The first backup: nothing is known, so the block is sent.
/// let mut session = store.begin(None)?;
/// let sum = session.sum(&block);
/// assert!(!session.exchange(file, 0, sum)?);
/// session.end_file(file, 4096, false)?;
/// session.prepare(1)?;
///
/// // The server has applied batch 1; the next backup stands on it and finds the block there.
/// let mut session = store.begin(Some(1))?;
/// assert!(session.exchange(file, 0, sum)?);
/// # Ok::<(), byteback_checksums::ChecksumError>(())
/// ```
#[derive(Debug)]
pub struct ChecksumStore {
    database: Database,
    key: [u8; 32],
}

impl ChecksumStore {
    /// Opens the file `name` of `dir`, or creates it. A damaged file is created anew. The caller
    /// ensures that it is open nowhere else.
    ///
    /// # Errors
    /// The system's error, or [`ChecksumError::Version`] for a file of another version.
    pub fn open(dir: &dyn DurableDir, name: &str, randomness: &dyn Randomness) -> Result<Self> {
        backend::open(dir, name, |database| Self::begin_with(database, randomness))
    }

    fn begin_with(database: Database, randomness: &dyn Randomness) -> Result<Self> {
        let failed = |what| move |source| ChecksumError::Io { what, source };
        let txn = database.begin_write().map_err(db)?;
        let key = {
            let mut meta = txn.open_table(META).map_err(db)?;
            let version = number(&meta, META_VERSION)?;
            let key = meta.get(META_KEY).map_err(db)?.map(|value| value.value().to_vec());
            match (version, key.and_then(|key| <[u8; 32]>::try_from(key).ok())) {
                (Some(VERSION), Some(key)) => key,
                (Some(found), _) if found != VERSION => return Err(other_version(found, VERSION)),
                _ => {
                    let mut key = [0; 32];
                    randomness.fill(&mut key).map_err(failed("generate a key for"))?;
                    meta.insert(META_VERSION, &VERSION.to_le_bytes()[..]).map_err(db)?;
                    meta.insert(META_KEY, &key[..]).map_err(db)?;
                    key
                }
            }
        };
        for table in [SETTLED, PENDING] {
            txn.open_table(table).map_err(db)?;
        }
        txn.open_table(PENDING_CUT).map_err(db)?;
        txn.commit().map_err(db)?;
        Ok(Self { database, key })
    }

    /// Begins a backup on top of the server's contents after the batch `basis`; `None` if that
    /// batch is not known, or nothing counts. Settles or drops pending checksums of earlier
    /// backups.
    ///
    /// # Errors
    /// The database fails.
    pub fn begin(&self, basis: Option<u64>) -> Result<Session> {
        self.settle(basis)?;
        let txn = self.database.begin_write().map_err(db)?;
        Ok(Session {
            txn,
            key: self.key,
            chunk: None,
        })
    }

    /// The server's contents are those after the batch `basis`: pending checksums of that batch
    /// count from now on, and those of other batches no longer do.
    ///
    /// # Errors
    /// The database fails. Nothing is lost: the next session does it.
    pub fn settle(&self, basis: Option<u64>) -> Result<()> {
        let txn = self.database.begin_write().map_err(db)?;
        let (settled, pending) = {
            let meta = txn.open_table(META).map_err(db)?;
            (number(&meta, META_SETTLED_BATCH)?, number(&meta, META_PENDING_BATCH)?)
        };
        if basis.is_some() && basis == pending {
            replace(&txn)?;
        } else if basis.is_none() || basis != settled {
            txn.delete_table(SETTLED).map_err(db)?;
            txn.open_table(SETTLED).map_err(db)?;
        }
        txn.delete_table(PENDING).map_err(db)?;
        txn.open_table(PENDING).map_err(db)?;
        txn.delete_table(PENDING_CUT).map_err(db)?;
        txn.open_table(PENDING_CUT).map_err(db)?;
        {
            let mut meta = txn.open_table(META).map_err(db)?;
            meta.remove(META_PENDING_BATCH).map_err(db)?;
            match basis {
                Some(basis) => meta.insert(META_SETTLED_BATCH, &basis.to_le_bytes()[..]).map_err(db)?,
                None => meta.remove(META_SETTLED_BATCH).map_err(db)?,
            };
        }
        txn.commit().map_err(db)
    }
}

/// Applies the pending checksums to the settled ones.
fn replace(txn: &WriteTransaction) -> Result<()> {
    let mut settled = txn.open_table(SETTLED).map_err(db)?;
    let pending = txn.open_table(PENDING).map_err(db)?;
    let cuts = txn.open_table(PENDING_CUT).map_err(db)?;
    for cut in cuts.iter().map_err(db)? {
        let (file, first) = cut.map_err(db)?;
        let (file, first) = (file.value(), first.value());
        settled
            .retain_in((file, first)..=(file, u64::MAX), |_, _| false)
            .map_err(db)?;
    }
    for chunk in pending.iter().map_err(db)? {
        let (key, value) = chunk.map_err(db)?;
        match value.value() {
            [] => drop(settled.remove(key.value()).map_err(db)?),
            value => drop(settled.insert(key.value(), value).map_err(db)?),
        }
    }
    Ok(())
}

/// Checksums of some blocks of a chunk, ascending by their index in it.
pub(crate) type Entries = Vec<(u8, Sum)>;

pub(crate) fn encode(key: (u64, u64), entries: &Entries) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_LEN + 4);
    for (index, sum) in entries {
        bytes.push(*index);
        bytes.extend_from_slice(sum);
    }
    bytes.extend_from_slice(&crc(key, &bytes).to_le_bytes());
    bytes
}

/// Damaged entries decode to none.
pub(crate) fn decode(key: (u64, u64), bytes: &[u8]) -> Entries {
    let Some((body, stored)) = bytes.split_last_chunk::<4>() else {
        return Entries::new();
    };
    if body.len() % ENTRY_LEN != 0 || u32::from_le_bytes(*stored) != crc(key, body) {
        return Entries::new();
    }
    let entries = body.as_chunks::<ENTRY_LEN>().0.iter().map(|entry| {
        let mut sum = Sum::default();
        sum.copy_from_slice(&entry[1..]);
        (entry[0], sum)
    });
    entries.collect()
}

pub(crate) fn crc((file, chunk): (u64, u64), body: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&file.to_le_bytes()), &chunk.to_le_bytes());
    crc32c::crc32c_append(crc, body)
}

/// The chunk being worked on.
struct Chunk {
    key: (u64, u64),
    /// Its checksums on the server now.
    settled: Entries,
    /// Its checksums after the batch; blocks ascend.
    pending: Entries,
    is_changed: bool,
}

/// One backup's use of the store: it reads settled checksums and collects pending ones. A session
/// dropped without [`Self::prepare`] leaves nothing behind.
///
/// Files are processed one at a time, each once, its blocks ascending. A file ends with
/// [`Self::end_file`], or with [`Self::give_up_file`] if it is not sent after all.
pub struct Session {
    txn: WriteTransaction,
    key: [u8; 32],
    chunk: Option<Chunk>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    /// The checksum of a block's bytes.
    #[must_use]
    pub fn sum(&self, block: &[u8]) -> Sum {
        let mut sum = Sum::default();
        sum.copy_from_slice(&blake3::keyed_hash(&self.key, block).as_bytes()[..size_of::<Sum>()]);
        sum
    }

    /// The number of blocks of a file that are known.
    ///
    /// # Errors
    /// The database fails.
    pub fn known_blocks(&self, file: u64) -> Result<u64> {
        let settled = self.txn.open_table(SETTLED).map_err(db)?;
        let mut known = 0;
        for chunk in settled.range((file, 0)..=(file, u64::MAX)).map_err(db)? {
            let (_, value) = chunk.map_err(db)?;
            known += (value.value().len() / ENTRY_LEN) as u64;
        }
        Ok(known)
    }

    /// Forgets all that is known of a file: it is sent whole, over nothing.
    ///
    /// # Errors
    /// The database fails.
    pub fn forget_file(&mut self, file: u64) -> Result<()> {
        self.cut(file, 0)
    }

    /// Whether the server has this block with this checksum. The server will have it after the
    /// batch.
    ///
    /// # Errors
    /// The database fails.
    pub fn exchange(&mut self, file: u64, block: u64, sum: Sum) -> Result<bool> {
        let chunk = self.chunk_of(file, block)?;
        // Less than CHUNK_BLOCKS.
        let index = (block % CHUNK_BLOCKS) as u8;
        let find = |entries: &Entries| entries.binary_search_by_key(&index, |(index, _)| *index);
        let is_equal = find(&chunk.settled).is_ok_and(|at| chunk.settled[at].1 == sum);
        match find(&chunk.pending) {
            Ok(at) if chunk.pending[at].1 == sum => return Ok(is_equal),
            Ok(at) => chunk.pending[at].1 = sum,
            Err(at) => chunk.pending.insert(at, (index, sum)),
        }
        chunk.is_changed = true;
        Ok(is_equal)
    }

    /// Forgets the blocks from `first` up to, not including, `end`, as of the batch.
    ///
    /// # Errors
    /// The database fails.
    pub fn forget_blocks(&mut self, file: u64, first: u64, end: u64) -> Result<()> {
        if first >= end {
            return Ok(());
        }
        // Only chunks with known blocks.
        let (first_chunk, last_chunk) = (first / CHUNK_BLOCKS, (end - 1) / CHUNK_BLOCKS);
        let mut chunks = Vec::new();
        {
            let settled = self.txn.open_table(SETTLED).map_err(db)?;
            for chunk in settled.range((file, first_chunk)..=(file, last_chunk)).map_err(db)? {
                chunks.push(chunk.map_err(db)?.0.value().1);
            }
        }
        for number in chunks {
            let chunk = self.chunk_of(file, number * CHUNK_BLOCKS)?;
            let before = chunk.pending.len();
            chunk
                .pending
                .retain(|(index, _)| !(first..end).contains(&(number * CHUNK_BLOCKS + u64::from(*index))));
            chunk.is_changed |= chunk.pending.len() != before;
        }
        Ok(())
    }

    /// Ends a file of `len_bytes` after the batch. `has_last` says that its last block, if shorter
    /// than the others, was exchanged in this session. Checksums of blocks that do not lie wholly
    /// below this length are forgotten.
    ///
    /// # Errors
    /// The database fails.
    pub fn end_file(&mut self, file: u64, len_bytes: u64, has_last: bool) -> Result<()> {
        let whole = len_bytes / BLOCK_LEN;
        let first_gone = if has_last { len_bytes.div_ceil(BLOCK_LEN) } else { whole };
        let chunk = self.chunk_of(file, first_gone)?;
        let before = chunk.pending.len();
        chunk
            .pending
            .retain(|(index, _)| u64::from(*index) < first_gone % CHUNK_BLOCKS);
        chunk.is_changed |= chunk.pending.len() != before;
        self.flush()?;
        let next = first_gone / CHUNK_BLOCKS + 1;
        let cut = self.cut_of(file)?;
        self.cut(file, cut.map_or(next, |cut| cut.min(next)))
    }

    /// The file is not sent after all: the server keeps its content, and the checksums stay valid.
    ///
    /// # Errors
    /// The database fails.
    pub fn give_up_file(&mut self, file: u64) -> Result<()> {
        self.chunk = None;
        let mut pending = self.txn.open_table(PENDING).map_err(db)?;
        pending
            .retain_in((file, 0)..=(file, u64::MAX), |_, _| false)
            .map_err(db)?;
        let mut cuts = self.txn.open_table(PENDING_CUT).map_err(db)?;
        cuts.remove(file).map_err(db)?;
        Ok(())
    }

    /// Makes the pending checksums durable as those of `batch`, which is about to be applied.
    ///
    /// # Errors
    /// The database fails. Then the batch, once applied, has no checksums, and everything is
    /// forgotten.
    pub fn prepare(mut self, batch: u64) -> Result<()> {
        self.flush()?;
        {
            let mut meta = self.txn.open_table(META).map_err(db)?;
            meta.insert(META_PENDING_BATCH, &batch.to_le_bytes()[..]).map_err(db)?;
        }
        self.txn.commit().map_err(db)
    }

    fn cut_of(&self, file: u64) -> Result<Option<u64>> {
        let cuts = self.txn.open_table(PENDING_CUT).map_err(db)?;
        Ok(cuts.get(file).map_err(db)?.map(|cut| cut.value()))
    }

    fn cut(&mut self, file: u64, first_chunk: u64) -> Result<()> {
        let mut cuts = self.txn.open_table(PENDING_CUT).map_err(db)?;
        cuts.insert(file, first_chunk).map_err(db)?;
        Ok(())
    }

    /// Makes the chunk of a block the one being worked on.
    fn chunk_of(&mut self, file: u64, block: u64) -> Result<&mut Chunk> {
        let key = (file, block / CHUNK_BLOCKS);
        if self.chunk.as_ref().is_none_or(|chunk| chunk.key != key) {
            self.flush()?;
            let cut = self.cut_of(file)?;
            let settled = match cut {
                Some(cut) if cut <= key.1 => Entries::new(),
                _ => {
                    let settled = self.txn.open_table(SETTLED).map_err(db)?;
                    let value = settled.get(key).map_err(db)?;
                    value.map_or_else(Entries::new, |value| decode(key, value.value()))
                }
            };
            let pending = {
                let pending = self.txn.open_table(PENDING).map_err(db)?;
                let value = pending.get(key).map_err(db)?;
                value.map(|value| match value.value() {
                    [] => Entries::new(),
                    value => decode(key, value),
                })
            };
            self.chunk = Some(Chunk {
                key,
                pending: pending.unwrap_or_else(|| settled.clone()),
                settled,
                is_changed: false,
            });
        }
        let missing = || db(redb::StorageError::Corrupted("no chunk is at work".to_owned()));
        self.chunk.as_mut().ok_or_else(missing)
    }

    /// Writes the chunk being worked on.
    fn flush(&mut self) -> Result<()> {
        let Some(chunk) = self.chunk.take().filter(|chunk| chunk.is_changed) else {
            return Ok(());
        };
        let mut pending = self.txn.open_table(PENDING).map_err(db)?;
        let value = match chunk.pending.is_empty() {
            true => Vec::new(),
            false => encode(chunk.key, &chunk.pending),
        };
        pending.insert(chunk.key, value.as_slice()).map_err(db)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
