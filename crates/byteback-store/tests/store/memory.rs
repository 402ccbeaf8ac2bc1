//! The strict in-memory twin of the catalog.
//!
//! Promises: the answers of `SqliteCatalog`; transactions that are undone when they are dropped;
//! and a power that it shares with a [`SimDisk`]. A cut keeps what was committed and nothing else,
//! and may come right before or right after any commit.
//!
//! Strict: the twin checks every reference and every unique key, and refuses what SQLite accepts
//! but the traits or their documentation forbid: a change in a transaction that already failed, a
//! second writer in one thread, a change of the past, numbers of 2^63 and more, a row of another
//! folder. A refusal is [`StoreError::CatalogDamaged`] and begins with "refused".
//!
//! Out of scope: speed (each write transaction copies all rows), and full disks.

mod devices;
mod read;
mod write;

use byteback_host::sim::{CrashPhase, PowerCut, SimDisk};
use byteback_model::{DeviceId, FileId, Seq, Snapshot};
use byteback_store::StoreError;
use byteback_store::catalog::{
    AttributeRow, BatchKey, BatchRow, Catalog, CatalogRead, CatalogWrite, DeviceRow, FolderRow, FragmentationRow,
    InvitationRow, LayerRow, StagedPartRow,
};
use byteback_store::numbers::{
    ChunkNumber, FolderNumber, LayerRowNumber, NodeNumber, SegmentNumber, StagedPartRowNumber,
};
use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

/// A catalog in memory. It loses its power with its disk.
#[derive(Debug)]
pub(crate) struct MemoryCatalog {
    power: SimDisk,
    committed: Mutex<Arc<Tables>>,
    writer: Mutex<()>,
    writing: Mutex<Option<ThreadId>>,
    commits: Mutex<Commits>,
}

/// Commits so far, and the one at which the power is cut.
#[derive(Debug, Default)]
struct Commits {
    done: u64,
    cut: Option<(u64, CrashPhase)>,
}

/// Parent, name and begin of an entry.
type EntryKey = (NodeNumber, Vec<u8>, Seq);

/// All rows.
#[derive(Clone, Debug, Default)]
struct Tables {
    folders: BTreeMap<FolderNumber, Folder>,
    nodes: BTreeMap<NodeNumber, (FolderNumber, FileId)>,
    node_numbers: BTreeMap<(FolderNumber, FileId), NodeNumber>,
    attributes: BTreeMap<(NodeNumber, Seq), (FolderNumber, AttributeRow)>,
    /// Folder, child and end.
    entries: BTreeMap<EntryKey, (FolderNumber, NodeNumber, Seq)>,
    batches: BTreeMap<(FolderNumber, Seq), BatchRow>,
    snapshots: BTreeMap<(FolderNumber, u64), Snapshot>,
    segments: BTreeSet<SegmentNumber>,
    layers: BTreeMap<LayerRowNumber, (NodeNumber, LayerRow)>,
    pages: BTreeMap<(LayerRowNumber, u64), Vec<u8>>,
    layer_segments: BTreeSet<(LayerRowNumber, SegmentNumber)>,
    parts: BTreeMap<StagedPartRowNumber, Part>,
    last_part: i64,
    /// Time of the last use, by node and code of the kind.
    sums: BTreeMap<(NodeNumber, u8), i64>,
    sum_chunks: BTreeMap<(NodeNumber, u8, ChunkNumber), Vec<u8>>,
    damage: BTreeSet<(SegmentNumber, u64)>,
    fragmentation: BTreeMap<NodeNumber, FragmentationRow>,
    devices: BTreeMap<DeviceId, DeviceRow>,
    device_folders: BTreeMap<(DeviceId, String), bool>,
    invitations: BTreeMap<u64, InvitationRow>,
    last_invitation: u64,
}

#[derive(Clone, Debug)]
struct Folder {
    row: FolderRow,
    last_snapshot: u64,
}

#[derive(Clone, Debug)]
struct Part {
    key: BatchKey,
    row: StagedPartRow,
    records: Vec<Vec<u8>>,
    segments: BTreeSet<SegmentNumber>,
}

impl MemoryCatalog {
    /// An empty catalog on the machine of this disk.
    pub(crate) fn new(power: SimDisk) -> Self {
        Self::with_rows(power, Arc::default())
    }

    fn with_rows(power: SimDisk, rows: Arc<Tables>) -> Self {
        Self {
            power,
            committed: Mutex::new(rows),
            writer: Mutex::default(),
            writing: Mutex::default(),
            commits: Mutex::default(),
        }
    }

    /// The catalog after a restart of the machine, whose disk is now `power`.
    pub(crate) fn restart(&self, power: SimDisk) -> Self {
        Self::with_rows(power, self.committed.lock().unwrap().clone())
    }

    /// Successful and cut commits since the catalog was made or restarted.
    pub(crate) fn commits(&self) -> u64 {
        self.commits.lock().unwrap().done
    }

    /// Cuts the power at the `nth` commit, counted like [`Self::commits`]. A commit has no middle:
    /// that phase is the one before.
    pub(crate) fn crash_at_commit(&self, nth: u64, phase: CrashPhase) {
        self.commits.lock().unwrap().cut = Some((nth, phase));
    }

    fn check_power(&self) -> Result<(), StoreError> {
        match self.power.is_cut() {
            false => Ok(()),
            true => Err(StoreError::Io {
                what: "use the catalog",
                source: io::Error::other(PowerCut),
            }),
        }
    }
}

impl Catalog for MemoryCatalog {
    fn read(&self) -> Result<Box<dyn CatalogRead + '_>, StoreError> {
        self.check_power()?;
        Ok(Box::new(self.transaction(None)))
    }

    fn write(&self) -> Result<Box<dyn CatalogWrite + '_>, StoreError> {
        self.check_power()?;
        let this_thread = std::thread::current().id();
        if *self.writing.lock().unwrap() == Some(this_thread) {
            return refuse("this thread waits for its own write transaction");
        }
        // A panic in a transaction commits nothing.
        let guard = self.writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *self.writing.lock().unwrap() = Some(this_thread);
        Ok(Box::new(self.transaction(Some(guard))))
    }
}

impl MemoryCatalog {
    fn transaction<'a>(&'a self, writer: Option<MutexGuard<'a, ()>>) -> Transaction<'a> {
        Transaction {
            catalog: self,
            rows: RefCell::new(self.committed.lock().unwrap().clone()),
            writer,
            has_failed: Cell::new(false),
        }
    }
}

/// A transaction of either kind.
struct Transaction<'a> {
    catalog: &'a MemoryCatalog,
    rows: RefCell<Arc<Tables>>,
    writer: Option<MutexGuard<'a, ()>>,
    has_failed: Cell<bool>,
}

impl Transaction<'_> {
    /// The rows that the transaction sees.
    fn rows(&self) -> Result<Ref<'_, Arc<Tables>>, StoreError> {
        self.catalog.check_power()?;
        if self.has_failed.get() {
            return refuse("the transaction already failed");
        }
        Ok(self.rows.borrow())
    }

    /// Changes rows. After an error the transaction can only be dropped.
    fn change<T>(&self, change: impl FnOnce(&mut Tables) -> Result<T, StoreError>) -> Result<T, StoreError> {
        drop(self.rows()?);
        if self.writer.is_none() {
            return refuse("a read transaction changes nothing");
        }
        let result = change(Arc::make_mut(&mut self.rows.borrow_mut()));
        self.has_failed.set(result.is_err());
        result
    }

    fn finish(&self) -> Result<(), StoreError> {
        let rows = self.rows()?.clone();
        let cut = {
            let mut commits = self.catalog.commits.lock().unwrap();
            commits.done += 1;
            commits.cut.filter(|(nth, _)| *nth == commits.done)
        };
        if cut.is_none_or(|(_, phase)| phase == CrashPhase::After) {
            *self.catalog.committed.lock().unwrap() = rows;
        }
        if cut.is_some() {
            self.catalog.power.cut_power();
        }
        self.catalog.check_power()
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.writer.is_some() {
            *self.catalog.writing.lock().unwrap() = None;
        }
    }
}

fn refuse<T>(what: &str) -> Result<T, StoreError> {
    Err(StoreError::CatalogDamaged(format!("refused: {what}")))
}

/// Refuses the change unless `holds`.
fn require(holds: bool, what: &str) -> Result<(), StoreError> {
    if holds { Ok(()) } else { refuse(what) }
}
