//! The durable state of the log: records, names, layers, marks and the coverage ledger, in one redb
//! database.
//!
//! redb (a copy-on-write B-tree) gives transactions that are atomic across a crash, and snapshots
//! that never change while later transactions commit; it does all its I/O through [`Backend`],
//! hence through `byteback-host`, so that the simulated disk can crash it at every sync. The
//! meaning of the tables is ours:
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | name | number: format, layers beside, tree, epoch, last node, intent generation, tracking, counts |
//! | `nodes` | node | [`NodeRecord`], packed |
//! | `keys` | device, inode, birth | node, packed |
//! | `names` | directory, name | node, packed |
//! | `places` | node, directory, name | -, packed |
//! | `layers` | epoch, node | [`crate::layer::Layer`], or that it is kept elsewhere ([`crate::keeper`]) |
//! | `name_layers` | epoch, directory, name | node at the epoch's end, node before; 0: none |
//! | `marks` | consumer | [`crate::marks::ConsumerState`] |
//! | `file_marks` | node, consumer | [`crate::marks::FileMark`] |
//! | `ledger` | number | [`crate::ledger::LedgerEntry`] |
//!
//! Invariants: `names` and `places` agree; a layer or name layer of an epoch that every mark has
//! saved is gone; a key of `keys` is that of its node; **a record has a fence only while nothing
//! was logged about its node since**, so that a change which a power loss takes back after it was
//! backed up is noticed as well. Nodes without a place (the rest of hard links that lead out of the
//! tree) are kept, but never reported, until a scan buries them.
//!
//! The four tables that have a row for each file are packed ([`crate::packed`], [`rows`]).
//!
//! **Birth.** A new database is made in full under another name and then renamed: a file with the
//! final name is complete.
//!
//! **I/O errors.** redb refuses everything after one; the next call reopens the file. Whether the
//! failed transaction is in it is then unknown, so a caller that repeats one must cope with both.
//! Older snapshots fail from then on.

mod apply;
mod backend;
mod layers;
pub(crate) mod rows;

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

pub(crate) use apply::{apply, apply_first_scan, set_fences};
use backend::{Backend, Unconfirmed};
use byteback_host::durable::{DurableDir, OpenMode};
pub(crate) use layers::{Layers, epochs_with_layers, epochs_with_name_layers};
use parking_lot::RwLock;
use redb::{ReadTransaction, ReadableDatabase, TableDefinition, WriteTransaction};
use rows::{KeyRow, NameRow, NodeRow, PlaceRow};

use crate::error::{LogError, Result};
use crate::ids::Epoch;
use crate::ledger::LedgerEntry;
use crate::packed::{Definition, PackCache};
use crate::pending::Place;
use crate::record::{DiskKey, NodeRecord};
use byteback_model::NodeId;

pub(crate) const FILE_NAME: &str = "log.redb";
const UNBORN_FILE_NAME: &str = "log.redb.new";
const FORMAT: u64 = 1;
/// Bytes of pages kept in memory: enough for the upper levels of a tree of some million files.
pub(crate) const CACHE_BYTES: usize = 16 << 20;

pub(crate) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
pub(crate) const NODES: Definition<NodeRow> = TableDefinition::new("nodes");
pub(crate) const KEYS: Definition<KeyRow> = TableDefinition::new("keys");
pub(crate) const NAMES: Definition<NameRow> = TableDefinition::new("names");
pub(crate) const PLACES: Definition<PlaceRow> = TableDefinition::new("places");
pub(crate) const LAYERS: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("layers");
pub(crate) const NAME_LAYERS: TableDefinition<'_, (u64, u64, &[u8]), (u64, u64)> = TableDefinition::new("name_layers");
pub(crate) const MARKS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("marks");
pub(crate) const FILE_MARKS: TableDefinition<'_, (u64, &str), &[u8]> = TableDefinition::new("file_marks");
pub(crate) const LEDGER: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("ledger");

/// Names of the numbers in `meta`.
pub(crate) mod meta {
    pub(crate) const FORMAT: &str = "format";
    /// 1 if layers are kept beside the files ([`crate::keeper`]) and there are no intents, else 0;
    /// set at birth.
    pub(crate) const LAYERS_BESIDE: &str = "layers_beside";
    pub(crate) const TREE: &str = "tree";
    pub(crate) const EPOCH: &str = "epoch";
    /// The newest node number ever given away.
    pub(crate) const LAST_NODE: &str = "last_node";
    pub(crate) const GENERATION: &str = "intent_generation";
    /// 1 from the start of tracking to its clean end.
    pub(crate) const TRACKING: &str = "tracking";
    /// Layers that report a whole file because its changes were not seen; shown to people only,
    /// nothing depends on it.
    pub(crate) const UNKNOWN_LAYERS: &str = "unknown_layers";
    /// The number of rows of `nodes`.
    pub(crate) const NODES: &str = "nodes";
    /// The number of rows of `names`.
    pub(crate) const NAMES: &str = "names";
    /// Present, as 1, only in a log that replaced a lost one.
    pub(crate) const FOLLOWS_A_LOSS: &str = "follows_a_loss";
}

/// The database, reopened automatically after an I/O error made redb refuse to go on.
#[derive(Debug)]
pub(crate) struct Database {
    dir: Arc<dyn DurableDir>,
    open: RwLock<Option<redb::Database>>,
    packs: Arc<PackCaches>,
    unconfirmed: Unconfirmed,
}

/// The initial values of a new database.
pub(crate) struct Birth {
    pub(crate) tree: u64,
    /// The loss of the previous log, if there was one.
    pub(crate) loss: Option<LedgerEntry>,
}

impl Database {
    /// Opens the database, or makes it. `has_layers_beside`: the log has a keeper of layers.
    pub(crate) fn open(
        dir: Arc<dyn DurableDir>,
        has_layers_beside: bool,
        birth: impl FnOnce() -> Result<Birth>,
    ) -> Result<Self> {
        let failed = |source| LogError::File {
            file: FILE_NAME,
            source,
        };
        let names = dir.list().map_err(failed)?;
        let unconfirmed = Unconfirmed::default();
        let redb = if names.iter().any(|name| name == FILE_NAME) {
            open_redb(dir.as_ref(), FILE_NAME, OpenMode::Existing, &unconfirmed)?
        } else {
            if names.iter().any(|name| name == UNBORN_FILE_NAME) {
                dir.remove(UNBORN_FILE_NAME).map_err(failed)?;
            }
            let redb = open_redb(dir.as_ref(), UNBORN_FILE_NAME, OpenMode::CreateNew, &unconfirmed)?;
            let birth = birth()?;
            fill_newborn(&redb, has_layers_beside, &birth)?;
            if birth.loss.is_some() {
                crate::damage::unmark(dir.as_ref())?;
            }
            // The file was synced by the commit; its first durable name is the final one.
            dir.rename(UNBORN_FILE_NAME, FILE_NAME).map_err(failed)?;
            dir.sync().map_err(failed)?;
            redb
        };
        let this = Self {
            dir,
            open: RwLock::new(Some(redb)),
            packs: Arc::default(),
            unconfirmed,
        };
        let snapshot = this.snapshot()?;
        let found = snapshot.number(meta::FORMAT)?;
        if found != FORMAT {
            return Err(LogError::Version { found, known: FORMAT });
        }
        match (snapshot.number(meta::LAYERS_BESIDE)? != 0, has_layers_beside) {
            (true, false) => Err(LogError::LayersBeside),
            (false, true) => Err(LogError::LayersInDatabase),
            _ => Ok(this),
        }
    }

    /// The length of the file, in bytes.
    pub(crate) fn len_bytes(&self) -> Result<u64> {
        let failed = |source| LogError::File {
            file: FILE_NAME,
            source,
        };
        let file = self.dir.open(FILE_NAME, OpenMode::Existing).map_err(failed)?;
        file.len().map_err(failed)
    }

    /// The state as of the last commit, for as long as the snapshot is kept.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        let begin = |database: &redb::Database| {
            Ok(Snapshot {
                txn: Arc::new(database.begin_read()?),
                packs: Arc::clone(&self.packs),
            })
        };
        // An error of an earlier transaction is not the fault of this one.
        self.with(begin)
            .or_else(|error| if is_io(&error) { self.with(begin) } else { Err(error) })
    }

    /// Runs `body` in one transaction, durable on return.
    pub(crate) fn write<T>(&self, body: impl FnOnce(&WriteTransaction) -> Result<T>) -> Result<T> {
        self.with(|database| {
            let txn = database.begin_write()?;
            let value = body(&txn)?;
            txn.commit()?;
            Ok(value)
        })
    }

    fn with<T>(&self, body: impl FnOnce(&redb::Database) -> Result<T>) -> Result<T> {
        {
            let open = self.open.read();
            if let Some(database) = open.as_ref() {
                let outcome = body(database);
                if !outcome.as_ref().err().is_some_and(is_io) {
                    return outcome;
                }
                drop(open);
                // After a failed read or write redb refuses everything; only opening it anew
                // repairs it.
                *self.open.write() = None;
                return outcome;
            }
        }
        let mut open = self.open.write();
        if open.is_none() {
            *open = Some(open_redb(
                self.dir.as_ref(),
                FILE_NAME,
                OpenMode::Existing,
                &self.unconfirmed,
            )?);
        }
        open.as_ref()
            .map_or_else(|| Err(LogError::Failed("the database is closed".to_owned())), body)
    }
}

fn is_io(error: &LogError) -> bool {
    use redb::Error::{DatabaseClosed, Io, PreviousIo};
    matches!(error, LogError::Database(inner) if matches!(**inner, Io(_) | PreviousIo | DatabaseClosed))
}

fn fill_newborn(database: &redb::Database, has_layers_beside: bool, birth: &Birth) -> Result<()> {
    let txn = database.begin_write()?;
    {
        let mut table = txn.open_table(META)?;
        table.insert(meta::FORMAT, FORMAT)?;
        table.insert(meta::LAYERS_BESIDE, u64::from(has_layers_beside))?;
        table.insert(meta::TREE, birth.tree)?;
        table.insert(meta::EPOCH, Epoch::FIRST.0)?;
        table.insert(meta::LAST_NODE, NodeId::ROOT.0)?;
        table.insert(meta::GENERATION, 0)?;
        table.insert(meta::TRACKING, 0)?;
        for count in [meta::UNKNOWN_LAYERS, meta::NODES, meta::NAMES] {
            table.insert(count, 0)?;
        }
        txn.open_table(NODES)?;
        txn.open_table(KEYS)?;
        txn.open_table(NAMES)?;
        txn.open_table(PLACES)?;
        txn.open_table(LAYERS)?;
        txn.open_table(NAME_LAYERS)?;
        txn.open_table(MARKS)?;
        txn.open_table(FILE_MARKS)?;
        let mut ledger = txn.open_table(LEDGER)?;
        if let Some(loss) = &birth.loss {
            table.insert(meta::FOLLOWS_A_LOSS, 1)?;
            ledger.insert(0, loss.encode().as_slice())?;
        }
    }
    txn.commit()?;
    Ok(())
}

fn open_redb(dir: &dyn DurableDir, name: &str, mode: OpenMode, unconfirmed: &Unconfirmed) -> Result<redb::Database> {
    let failed = |source| LogError::File {
        file: FILE_NAME,
        source,
    };
    let file = dir.open(name, mode).map_err(failed)?;
    let backend = Backend::open(file, Arc::clone(unconfirmed)).map_err(failed)?;
    let mut builder = redb::Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    // Without this, redb checks only what an unclean stop left: a flipped bit elsewhere would be
    // trusted (the records are sealed, but not their keys), or make redb panic. The check reads the
    // whole file, which is less work than the stat of every node that follows.
    builder.set_check_integrity_on_open(true);
    Ok(builder.create_with_backend(backend)?)
}

/// A snapshot of the database.
#[derive(Clone)]
pub(crate) struct Snapshot {
    txn: Arc<ReadTransaction>,
    packs: Arc<PackCaches>,
}

/// The packs that were read lately, by table.
#[derive(Debug, Default)]
pub(crate) struct PackCaches {
    nodes: PackCache<NodeRow>,
    keys: PackCache<KeyRow>,
    pub(crate) names: PackCache<NameRow>,
    places: PackCache<PlaceRow>,
}

impl Snapshot {
    pub(crate) fn number(&self, name: &'static str) -> Result<u64> {
        let table = self.txn.open_table(META)?;
        let number = table.get(name)?.map(|value| value.value());
        number.ok_or(LogError::Damaged { what: name })
    }

    pub(crate) fn number_if_any(&self, name: &str) -> Result<Option<u64>> {
        let table = self.txn.open_table(META)?;
        Ok(table.get(name)?.map(|value| value.value()))
    }

    pub(crate) fn record(&self, node: NodeId) -> Result<Option<NodeRecord>> {
        let row = self.packs.nodes.get(&self.txn.open_table(NODES)?, &node.0)?;
        Ok(row.map(|row| row.record))
    }

    pub(crate) fn node_of(&self, key: DiskKey) -> Result<Option<NodeId>> {
        let row = self.packs.keys.get(&self.txn.open_table(KEYS)?, &key.tuple())?;
        Ok(row.map(|row| row.node))
    }

    pub(crate) fn nodes_of_inode(&self, inode: u64) -> Result<Vec<NodeId>> {
        let table = self.txn.open_table(KEYS)?;
        let mut found = Vec::new();
        for row in self.packs.keys.rows_from(&table, &(0, inode, i64::MIN))? {
            let row = row?;
            if (row.key.device, row.key.inode) != (0, inode) {
                break;
            }
            found.push(row.node);
        }
        Ok(found)
    }

    pub(crate) fn child(&self, parent: NodeId, name: &OsStr) -> Result<Option<NodeId>> {
        let row = self
            .packs
            .names
            .get(&self.txn.open_table(NAMES)?, &(parent.0, name.as_bytes()))?;
        Ok(row.map(|row| row.child))
    }

    /// The entries of a directory in byte order of their names.
    pub(crate) fn entries(&self, parent: NodeId) -> Result<Vec<(OsString, NodeId)>> {
        let table = self.txn.open_table(NAMES)?;
        let mut entries = Vec::new();
        for row in self.packs.names.rows_from(&table, &(parent.0, &[][..]))? {
            let row = row?;
            if row.parent != parent {
                break;
            }
            entries.push((OsString::from_vec(row.name), row.child));
        }
        Ok(entries)
    }

    pub(crate) fn places_of(&self, node: NodeId) -> Result<Vec<Place>> {
        let table = self.txn.open_table(PLACES)?;
        let mut places = Vec::new();
        for row in self.packs.places.rows_from(&table, &(node.0, 0, &[][..]))? {
            let row = row?;
            if row.node != node {
                break;
            }
            places.push((row.parent, OsString::from_vec(row.name)));
        }
        Ok(places)
    }

    pub(crate) fn has_place(&self, node: NodeId) -> Result<bool> {
        let table = self.txn.open_table(PLACES)?;
        let first = self.packs.places.rows_from(&table, &(node.0, 0, &[][..]))?.next();
        Ok(first.transpose()?.is_some_and(|row| row.node == node))
    }

    /// Calls `act` for each node with its record and whether it has a place, in order of their
    /// numbers.
    pub(crate) fn for_each_node(&self, mut act: impl FnMut(NodeId, NodeRecord, bool)) -> Result<()> {
        self.for_each_node_from(0, |node, record, has_place| {
            act(node, record, has_place);
            ControlFlow::Continue(())
        })
    }

    /// As [`Snapshot::for_each_node`] from the node `first` on, until `act` breaks.
    pub(crate) fn for_each_node_from(
        &self,
        first: u64,
        mut act: impl FnMut(NodeId, NodeRecord, bool) -> ControlFlow<()>,
    ) -> Result<()> {
        let (nodes, places) = (self.txn.open_table(NODES)?, self.txn.open_table(PLACES)?);
        let mut places = self.packs.places.rows_from(&places, &(first, 0, &[][..]))?;
        let mut placed = NodeId(0);
        for row in self.packs.nodes.rows_from(&nodes, &first)? {
            let NodeRow { node, record } = row?;
            while placed < node {
                placed = places.next().transpose()?.map_or(NodeId(u64::MAX), |row| row.node);
            }
            let has_place = placed == node || node == NodeId::ROOT;
            if act(node, record, has_place).is_break() {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn transaction(&self) -> &ReadTransaction {
        &self.txn
    }

    pub(crate) fn packs(&self) -> &PackCaches {
        &self.packs
    }

    /// Number of nodes.
    pub(crate) fn node_count(&self) -> Result<u64> {
        self.number(meta::NODES)
    }
}

pub(crate) fn set_number(txn: &WriteTransaction, name: &str, value: u64) -> Result<()> {
    txn.open_table(META)?.insert(name, value)?;
    Ok(())
}

/// The layer of a row of `layers`; `None` if it is kept elsewhere.
pub(crate) fn decode_row(bytes: &[u8]) -> Result<Option<crate::layer::Layer>> {
    match crate::layer::Layer::is_elsewhere(bytes) {
        true => Ok(None),
        false => decode_layer(bytes).map(Some),
    }
}

pub(crate) fn decode_layer(bytes: &[u8]) -> Result<crate::layer::Layer> {
    crate::layer::Layer::decode(bytes).map_err(|_| LogError::Damaged { what: "layer" })
}
