//! The durable state of the log: records, names, layers, marks and the coverage ledger, in one redb database.
//!
//! redb (a copy-on-write B-tree) gives transactions that are all there or not at all after a crash, and snapshots that
//! stay as they are while later transactions commit; it does all its I/O through [`Backend`], hence through
//! `byteback-host`, so that the simulated disk can crash it at every sync. What the tables mean is ours:
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | name | number: format, tree, epoch, next node, intent generation, tracking, last seen root device |
//! | `nodes` | node | [`NodeRecord`] |
//! | `keys` | device, inode, birth | node |
//! | `names` | directory, name | node |
//! | `places` | node, directory, name | - |
//! | `layers` | epoch, node | [`crate::layer::Layer`] |
//! | `name_layers` | epoch, directory, name | node, or 0 where the name is gone |
//! | `marks` | consumer | [`crate::marks::ConsumerState`] |
//! | `ledger` | number | [`crate::ledger::Entry`] |
//!
//! Invariants: `names` and `places` say the same; every node but the root has a place; a layer or name layer of an
//! epoch that every mark has saved is gone; `keys` holds exactly the keys of `nodes`.

mod backend;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use byteback_host::durable::{DurableDir, OpenMode};
use parking_lot::RwLock;
use redb::{ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use crate::error::{LogError, Result};
use crate::ids::{Epoch, NodeId};
use crate::pending::{Pending, PendingNode, Place};
use crate::record::{DiskKey, NodeRecord};

pub(crate) const FILE_NAME: &str = "log.redb";
const FORMAT: u64 = 1;
/// Bytes of pages kept in memory: enough for the upper levels of a tree of some million files.
const CACHE_BYTES: usize = 16 << 20;

pub(crate) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
pub(crate) const NODES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("nodes");
pub(crate) const KEYS: TableDefinition<'_, (u64, u64, i64), u64> = TableDefinition::new("keys");
pub(crate) const NAMES: TableDefinition<'_, (u64, &[u8]), u64> = TableDefinition::new("names");
pub(crate) const PLACES: TableDefinition<'_, (u64, u64, &[u8]), ()> = TableDefinition::new("places");
pub(crate) const LAYERS: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("layers");
pub(crate) const NAME_LAYERS: TableDefinition<'_, (u64, u64, &[u8]), u64> = TableDefinition::new("name_layers");
pub(crate) const MARKS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("marks");
pub(crate) const LEDGER: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("ledger");

/// Names of the numbers in `meta`.
pub(crate) mod meta {
    pub(crate) const FORMAT: &str = "format";
    pub(crate) const TREE: &str = "tree";
    pub(crate) const EPOCH: &str = "epoch";
    pub(crate) const NEXT_NODE: &str = "next_node";
    pub(crate) const GENERATION: &str = "intent_generation";
    /// 1 from the start of tracking to its clean end.
    pub(crate) const TRACKING: &str = "tracking";
}

/// The database, reopened by itself after an I/O error made redb refuse to go on.
#[derive(Debug)]
pub(crate) struct Database {
    dir: Arc<dyn DurableDir>,
    open: RwLock<Option<redb::Database>>,
}

/// What a new database is told about itself.
pub(crate) struct Birth {
    pub(crate) tree: u64,
}

impl Database {
    pub(crate) fn open(dir: Arc<dyn DurableDir>, birth: impl FnOnce() -> Result<Birth>) -> Result<Self> {
        let this = Self { open: RwLock::new(Some(open_redb(dir.as_ref())?)), dir };
        let format = match this.snapshot() {
            Ok(snapshot) => snapshot.meta(meta::FORMAT)?,
            Err(error) => return Err(error),
        };
        match format {
            Some(FORMAT) => Ok(this),
            Some(found) => Err(LogError::Version { found, known: FORMAT }),
            None => {
                let birth = birth()?;
                this.write(|txn| {
                    let mut table = txn.open_table(META)?;
                    table.insert(meta::FORMAT, FORMAT)?;
                    table.insert(meta::TREE, birth.tree)?;
                    table.insert(meta::EPOCH, Epoch::FIRST.0)?;
                    table.insert(meta::NEXT_NODE, NodeId::ROOT.0)?;
                    table.insert(meta::GENERATION, 0)?;
                    table.insert(meta::TRACKING, 0)?;
                    drop(table);
                    txn.open_table(NODES)?;
                    txn.open_table(KEYS)?;
                    txn.open_table(NAMES)?;
                    txn.open_table(PLACES)?;
                    txn.open_table(LAYERS)?;
                    txn.open_table(NAME_LAYERS)?;
                    txn.open_table(MARKS)?;
                    txn.open_table(LEDGER)?;
                    Ok(())
                })?;
                this.dir.sync().map_err(|source| LogError::File { file: FILE_NAME, source })?;
                Ok(this)
            }
        }
    }

    /// The state as of the last commit, for as long as the snapshot is kept.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        self.with(|database| {
            let txn = database.begin_read()?;
            Ok(Snapshot { txn: Arc::new(txn) })
        })
    }

    /// One transaction, durable on return.
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
                // After a failed read or write redb refuses everything; only opening it anew repairs it.
                *self.open.write() = None;
                return outcome;
            }
        }
        let mut open = self.open.write();
        if open.is_none() {
            *open = Some(open_redb(self.dir.as_ref())?);
        }
        open.as_ref().map_or_else(|| Err(LogError::Failed("the database is closed".to_owned())), body)
    }
}

fn is_io(error: &LogError) -> bool {
    matches!(error, LogError::Database(inner) if matches!(**inner, redb::Error::Io(_) | redb::Error::PreviousIo))
}

fn open_redb(dir: &dyn DurableDir) -> Result<redb::Database> {
    let file =
        dir.open(FILE_NAME, OpenMode::CreateIfMissing).map_err(|source| LogError::File { file: FILE_NAME, source })?;
    let mut builder = redb::Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    Ok(builder.create_with_backend(backend::Backend::new(file))?)
}

/// A snapshot of the database.
#[derive(Clone)]
pub(crate) struct Snapshot {
    txn: Arc<ReadTransaction>,
}

impl Snapshot {
    pub(crate) fn meta(&self, name: &str) -> Result<Option<u64>> {
        let table = match self.txn.open_table(META) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(table.get(name)?.map(|value| value.value()))
    }

    pub(crate) fn number(&self, name: &'static str) -> Result<u64> {
        self.meta(name)?.ok_or(LogError::Damaged { what: name })
    }

    pub(crate) fn record(&self, node: NodeId) -> Result<Option<NodeRecord>> {
        let table = self.txn.open_table(NODES)?;
        table.get(node.0)?.map(|value| decode_record(value.value())).transpose()
    }

    pub(crate) fn node_of(&self, key: DiskKey) -> Result<Option<NodeId>> {
        let table = self.txn.open_table(KEYS)?;
        Ok(table.get(key.tuple())?.map(|value| NodeId(value.value())))
    }

    pub(crate) fn child(&self, parent: NodeId, name: &OsStr) -> Result<Option<NodeId>> {
        let table = self.txn.open_table(NAMES)?;
        Ok(table.get((parent.0, name.as_bytes()))?.map(|value| NodeId(value.value())))
    }

    /// The entries of a directory in byte order of their names.
    pub(crate) fn entries(&self, parent: NodeId) -> Result<Vec<(OsString, NodeId)>> {
        let table = self.txn.open_table(NAMES)?;
        let mut entries = Vec::new();
        for entry in table.range((parent.0, &[][..])..(parent.0 + 1, &[][..]))? {
            let (key, child) = entry?;
            entries.push((OsString::from_vec(key.value().1.to_vec()), NodeId(child.value())));
        }
        Ok(entries)
    }

    pub(crate) fn places_of(&self, node: NodeId) -> Result<Vec<Place>> {
        let table = self.txn.open_table(PLACES)?;
        let mut places = Vec::new();
        for entry in table.range((node.0, 0, &[][..])..(node.0 + 1, 0, &[][..]))? {
            let (key, ()) = (entry?.0, ());
            let (_, parent, name) = key.value();
            places.push((NodeId(parent), OsString::from_vec(name.to_vec())));
        }
        Ok(places)
    }

    pub(crate) fn transaction(&self) -> &ReadTransaction {
        &self.txn
    }

    /// Number of nodes.
    pub(crate) fn node_count(&self) -> Result<u64> {
        use redb::ReadableTableMetadata;
        Ok(self.txn.open_table(NODES)?.len()?)
    }
}

pub(crate) fn decode_record(bytes: &[u8]) -> Result<NodeRecord> {
    NodeRecord::decode(bytes).map_err(|_| LogError::Damaged { what: "node record" })
}

pub(crate) fn set_number(txn: &WriteTransaction, name: &str, value: u64) -> Result<()> {
    txn.open_table(META)?.insert(name, value)?;
    Ok(())
}

/// Writes what is pending. Layers are merged with what the same epoch already has (SolFS §3.2.1, persistence).
pub(crate) fn apply(txn: &WriteTransaction, pending: &Pending) -> Result<()> {
    let mut nodes = txn.open_table(NODES)?;
    let mut keys = txn.open_table(KEYS)?;
    let mut layers = txn.open_table(LAYERS)?;
    for (node, change) in &pending.nodes {
        match change {
            PendingNode::Gone => {
                let removed = nodes.remove(node.0)?.map(|value| decode_record(value.value())).transpose()?;
                if let Some(record) = removed {
                    let key = record.key.tuple();
                    if keys.get(key)?.is_some_and(|holder| holder.value() == node.0) {
                        keys.remove(key)?;
                    }
                }
                layers.remove((pending.epoch.0, node.0))?;
            }
            PendingNode::Changed { record, layer } => {
                if let Some(record) = record {
                    nodes.insert(node.0, record.encode().as_slice())?;
                    keys.insert(record.key.tuple(), node.0)?;
                }
                let place = (pending.epoch.0, node.0);
                let merged = match layers.get(place)? {
                    None => layer.encode(),
                    Some(elder) => {
                        let mut sum = decode_layer(elder.value())?;
                        sum.lay(layer);
                        sum.encode()
                    }
                };
                layers.insert(place, merged.as_slice())?;
            }
        }
    }
    let mut names = txn.open_table(NAMES)?;
    let mut places = txn.open_table(PLACES)?;
    let mut name_layers = txn.open_table(NAME_LAYERS)?;
    for ((parent, name), child) in &pending.names {
        let name = name.as_bytes();
        let before = match child {
            Some(child) => names.insert((parent.0, name), child.0)?.map(|value| value.value()),
            None => names.remove((parent.0, name))?.map(|value| value.value()),
        };
        if let Some(before) = before {
            places.remove((before, parent.0, name))?;
        }
        if let Some(child) = child {
            places.insert((child.0, parent.0, name), ())?;
        }
        name_layers.insert((pending.epoch.0, parent.0, name), child.map_or(0, |child| child.0))?;
    }
    Ok(())
}

pub(crate) fn decode_layer(bytes: &[u8]) -> Result<crate::layer::Layer> {
    crate::layer::Layer::decode(bytes).map_err(|_| LogError::Damaged { what: "layer" })
}

/// Changes the fence of nodes that still exist.
pub(crate) fn set_fences(
    txn: &WriteTransaction,
    fences: impl IntoIterator<Item = (NodeId, Option<crate::record::Fence>)>,
) -> Result<()> {
    let mut nodes = txn.open_table(NODES)?;
    for (node, fence) in fences {
        let Some(mut record) = nodes.get(node.0)?.map(|value| decode_record(value.value())).transpose()? else {
            continue;
        };
        record.fence = fence;
        nodes.insert(node.0, record.encode().as_slice())?;
    }
    Ok(())
}
