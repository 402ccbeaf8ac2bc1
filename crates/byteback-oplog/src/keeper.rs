//! Layers that are stored beside the files themselves: in a volume of ours, as versioned inodes
//! (SolFS sections 3.2.2 and 4.2).
//!
//! A log keeps the layers of files in its database, or has a [`LayerKeeper`] do it. The database
//! then says of a layer that it is *elsewhere*; all else (records, names, marks, layers without
//! ranges) stays in the database. So the readers of changes, cuts and merges see no difference.
//!
//! **The keeper's promise** takes the place of the intents. Before any change to a file becomes
//! durable, the keeper asks [`WaitingLayers`] for the layers of that file that are logged but not
//! in the database yet, and makes them durable with it, or before it. After a crash a file and its
//! layers are of the same moment, and [`LayerKeeper::found`] says so of each file; it claims
//! nothing of a file that does not look as its layers say.
//!
//! **Order.** (1) Layers are put, (2) [`LayerKeeper::sync`] makes them and all files durable, (3)
//! the database commits. So the database is never ahead of the files, a layer that it says is
//! elsewhere is there, and a crash never takes back what a consumer has seen at a cut. A layer that
//! is there but unknown to the database was put by a transaction that did not commit: the next
//! start takes it over, and reports at most too much.
//!
//! **Removed last.** A layer that the database has given up is removed when no reader of a cut is
//! left: a reader's snapshot may still say that it is elsewhere.

use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::{ReadableTable, WriteTransaction};

use crate::database::rows::NodeRow;
use crate::database::{self, LAYERS, NODES};
use crate::error::{LogError, Result};
use crate::ids::{Epoch, TreeId};
use crate::layer::{Bounds, Layer, Unit, WholeReason};
use crate::log::State;
use crate::packed::PackedTable;
use crate::record::Fence;
use byteback_model::NodeId;

/// A layer in its stored form.
#[derive(Clone, Debug)]
pub struct KeptLayer {
    /// The whole encoded layer, sealed.
    pub bytes: Vec<u8>,
    /// The unit of its ranges (the paper's granularity, in `ino_flag`).
    pub unit: Unit,
    /// How many marks and pending cuts begin with it (the paper's `ver_link`); `None` if unknown
    /// here.
    pub links: Option<u32>,
}

/// A layer that a keeper found when the log was opened.
#[derive(Clone, Copy, Debug)]
pub struct FoundLayer {
    /// The node.
    pub node: NodeId,
    /// The epoch.
    pub epoch: Epoch,
    /// The file's present state, if it matches the layer: then all changes to it are logged.
    pub explained: Option<Fence>,
}

/// The changes of a file that are logged but not in the database yet.
#[derive(Clone, Debug)]
pub struct WaitingLayer {
    /// The node.
    pub node: NodeId,
    /// Its inode.
    pub inode: u64,
    /// The epoch.
    pub epoch: Epoch,
    layer: Layer,
    bounds: Bounds,
}

impl WaitingLayer {
    /// Whether it says only that something changed, and nothing of the content.
    #[must_use]
    pub fn is_of_attributes(&self) -> bool {
        self.layer.ranges.is_empty() && self.layer.whole.is_none()
    }

    /// This layer laid over the kept one of the same epoch.
    #[must_use]
    pub fn over(&self, kept: Option<&[u8]>) -> KeptLayer {
        let mut sum = kept.map_or_else(Layer::default, layer_of);
        sum.overlay(&self.layer);
        sum.keep_within(self.bounds);
        KeptLayer {
            bytes: sum.encode(),
            unit: sum.unit,
            links: None,
        }
    }
}

/// The kept layer; the whole file, if it is damaged.
fn layer_of(bytes: &[u8]) -> Layer {
    Layer::decode(bytes).unwrap_or_else(|_| lost())
}

fn lost() -> Layer {
    let mut layer = Layer::default();
    layer.mark_whole(WholeReason::LogLost);
    layer
}

/// Reports the layers that wait to be kept. May be called at any time, also from within a change of
/// a file: it waits for no disk and no other change.
pub trait WaitingLayers: Send + Sync {
    /// The layers of all files, oldest epoch first.
    fn all(&self) -> Vec<WaitingLayer>;

    /// The layers of the file with this inode.
    fn of(&self, inode: u64) -> Vec<WaitingLayer>;

    /// The number of files with a change of content.
    fn count(&self) -> usize;
}

/// Storage of layers beside the files; see the module.
pub trait LayerKeeper: Send + Sync + fmt::Debug {
    /// The layers of the log `tree`; those of any other log are removed.
    ///
    /// # Errors
    /// The error of the keeper's disk.
    fn found(&self, tree: TreeId) -> io::Result<Vec<FoundLayer>>;

    /// Sets the source to ask before anything becomes durable, from now on.
    fn begin(&self, waiting: Arc<dyn WaitingLayers>);

    /// A layer; `None` if it is not there.
    ///
    /// # Errors
    /// The error of the keeper's disk.
    fn get(&self, node: NodeId, epoch: Epoch) -> io::Result<Option<Vec<u8>>>;

    /// Stores a layer, replacing any other of this node and epoch.
    ///
    /// # Errors
    /// The error of the keeper's disk; no room.
    fn put(&self, node: NodeId, epoch: Epoch, layer: &KeptLayer) -> io::Result<()>;

    /// Removes a layer, if it is there.
    ///
    /// # Errors
    /// The error of the keeper's disk.
    fn remove(&self, node: NodeId, epoch: Epoch) -> io::Result<()>;

    /// Makes all layers durable, and all files as they are now.
    ///
    /// # Errors
    /// The error of the keeper's disk.
    fn sync(&self) -> io::Result<()>;
}

/// A keeper, as the log uses it.
#[derive(Debug)]
pub(crate) struct KeeperHandle {
    keeper: Arc<dyn LayerKeeper>,
    /// Layers that the database has given up, or was about to.
    doomed: Mutex<Vec<(NodeId, Epoch)>>,
    /// Cloned for every reader of a snapshot.
    readers: Arc<()>,
}

/// A reader of a snapshot, which may need layers that the database has given up since.
#[derive(Clone, Debug)]
pub(crate) struct KeptReader {
    kept: Arc<KeeperHandle>,
    _reader: Arc<()>,
}

fn failed(source: io::Error) -> LogError {
    LogError::File {
        file: "the layers in the volume",
        source,
    }
}

impl KeeperHandle {
    pub(crate) fn new(keeper: Arc<dyn LayerKeeper>) -> Arc<Self> {
        Arc::new(Self {
            keeper,
            doomed: Mutex::default(),
            readers: Arc::default(),
        })
    }

    pub(crate) fn begin(&self, state: &Arc<Mutex<State>>) {
        self.keeper.begin(Arc::new(WaitingOf(Arc::clone(state))));
    }

    pub(crate) fn reader(self: &Arc<Self>) -> KeptReader {
        KeptReader {
            kept: Arc::clone(self),
            _reader: Arc::clone(&self.readers),
        }
    }

    /// A layer that the database says is here; the whole file, if it is missing or damaged.
    pub(crate) fn layer(&self, node: NodeId, epoch: Epoch) -> Result<Layer> {
        let bytes = self.keeper.get(node, epoch).map_err(failed)?;
        Ok(bytes.map_or_else(lost, |bytes| layer_of(&bytes)))
    }

    pub(crate) fn put(&self, node: NodeId, epoch: Epoch, layer: &Layer, links: u32) -> Result<()> {
        let kept = KeptLayer {
            bytes: layer.encode(),
            unit: layer.unit,
            links: Some(links),
        };
        self.keeper.put(node, epoch, &kept).map_err(failed)
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.keeper.sync().map_err(failed)
    }

    pub(crate) fn doom(&self, node: NodeId, epoch: Epoch) {
        self.doomed.lock().push((node, epoch));
    }

    /// Removes the layers that the database has given up, unless there are readers. The caller
    /// prevents new cuts.
    pub(crate) fn sweep(&self, database: &database::Database) -> Result<()> {
        if self.doomed.lock().is_empty() || Arc::strong_count(&self.readers) > 1 {
            return Ok(());
        }
        let doomed = std::mem::take(&mut *self.doomed.lock());
        let snapshot = database.snapshot()?;
        let table = snapshot.transaction().open_table(LAYERS)?;
        for (node, epoch) in doomed {
            // A layer given up by a transaction that failed is still in use.
            let is_used = table.get((epoch.0, node.0))?;
            if !is_used.is_some_and(|row| Layer::is_elsewhere(row.value())) {
                self.keeper.remove(node, epoch).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// The layers that exist when a log is opened.
    pub(crate) fn found(&self, tree: TreeId) -> Result<Vec<FoundLayer>> {
        self.keeper.found(tree).map_err(failed)
    }

    /// Adds all layers found here to the database. `interrupted_ns`: set after an unclean stop,
    /// when clean files may lack a fence; the present time, nanoseconds since 1970.
    pub(crate) fn take_over(
        &self,
        txn: &WriteTransaction,
        found: &[FoundLayer],
        interrupted_ns: Option<i64>,
    ) -> Result<()> {
        let mut layers = txn.open_table(LAYERS)?;
        let mut fences = Vec::new();
        {
            let mut nodes = PackedTable::<NodeRow>::open(txn, NODES)?;
            for layer in found {
                let key = (layer.epoch.0, layer.node.0);
                if nodes.get(&layer.node.0)?.is_none() {
                    self.doom(layer.node, layer.epoch);
                    continue;
                }
                let row = layers
                    .get(key)?
                    .map(|row| database::decode_row(row.value()))
                    .transpose()?;
                // A layer that says "whole" says more.
                let is_news = match row {
                    Some(Some(layer)) => layer.whole.is_none(),
                    Some(None) => false,
                    None => true,
                };
                if is_news {
                    layers.insert(key, Layer::elsewhere().as_slice())?;
                }
                // The newest layer comes last, and decides for the file.
                let explained = layer.explained.zip(interrupted_ns);
                if let Some((fence, _)) = explained.filter(|(fence, now_ns)| fence.proves_at(*now_ns)) {
                    fences.push((layer.node, Some(fence)));
                }
            }
        }
        drop(layers);
        database::set_fences(txn, fences)
    }
}

impl KeptReader {
    pub(crate) fn kept(&self) -> &KeeperHandle {
        &self.kept
    }
}

/// The layer of a row; `kept` has it, if the row says so.
pub(crate) fn layer_of_row(kept: Option<&KeeperHandle>, node: NodeId, epoch: Epoch, row: &[u8]) -> Result<Layer> {
    match (database::decode_row(row)?, kept) {
        (Some(layer), _) => Ok(layer),
        (None, Some(kept)) => kept.layer(node, epoch),
        (None, None) => Err(LogError::Damaged { what: "layer" }),
    }
}

/// The newest epoch that the database or a layer knows.
pub(crate) fn last_epoch(known: Epoch, found: &[FoundLayer]) -> Epoch {
    found.iter().map(|layer| layer.epoch).fold(known, Epoch::max)
}

struct WaitingOf(Arc<Mutex<State>>);

impl WaitingLayers for WaitingOf {
    fn all(&self) -> Vec<WaitingLayer> {
        let state = self.0.lock();
        // `layers` begins with the newest.
        let mut waiting: Vec<WaitingLayer> = Vec::new();
        for pending in state.layers() {
            waiting.extend(pending.inodes().filter_map(|inode| waiting_of(pending, inode)));
        }
        waiting.reverse();
        waiting
    }

    fn of(&self, inode: u64) -> Vec<WaitingLayer> {
        let state = self.0.lock();
        let mut waiting: Vec<WaitingLayer> = state
            .layers()
            .filter_map(|pending| waiting_of(pending, inode))
            .collect();
        waiting.reverse();
        waiting
    }

    fn count(&self) -> usize {
        self.0.lock().layers().map(|pending| pending.written_inodes()).sum()
    }
}

fn waiting_of(pending: &crate::pending::Pending, inode: u64) -> Option<WaitingLayer> {
    let (node, layer) = pending.layer_of_inode(inode)?;
    Some(WaitingLayer {
        node,
        inode,
        epoch: pending.epoch,
        layer: layer.clone(),
        bounds: pending.bounds,
    })
}

#[cfg(test)]
pub(crate) mod tests;
