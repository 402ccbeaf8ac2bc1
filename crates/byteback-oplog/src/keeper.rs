//! Layers that lie beside the files themselves: in a volume of ours, as versioned inodes (SolFS
//! sections 3.2.2 and 4.2).
//!
//! A log keeps the layers of files in its database, or has a [`LayerKeeper`] do it. The database
//! then says of a layer that it is *elsewhere*; all else (records, names, marks, layers without
//! ranges) stays in the database. So who reads changes, cuts and merges sees no difference.
//!
//! **What the keeper promises** takes the place of the intents. Whenever anything that was done to
//! a file becomes durable, the keeper first asks [`WaitingLayers`] what is logged of it and not in
//! the database yet, and makes that durable with it, or before it. After a crash a file and its
//! layers are of the same moment, and [`LayerKeeper::found`] says so of each file; of a file that
//! does not look as its layers say, nothing is claimed.
//!
//! **Order.** (1) Layers are put, (2) [`LayerKeeper::sync`] makes them and all files durable, (3)
//! the database commits. So the database is never ahead of the files, a layer that it says is
//! elsewhere is there, and what a consumer has seen at a cut is not taken back by a crash. A layer
//! that is there and that the database does not know was put by what did not commit: the next start
//! takes it over, and reports at most too much.
//!
//! **Removed last.** A layer that the database has given up goes when nobody reads a cut any more:
//! its snapshot may still say that it is elsewhere.

use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::{ReadableTable, WriteTransaction};

use crate::database::{self, LAYERS, NODES};
use crate::error::{LogError, Result};
use crate::ids::{Epoch, TreeId};
use crate::layer::{Bounds, Layer, Unit, WholeReason};
use crate::log::State;
use crate::record::Fence;
use byteback_model::NodeId;

/// A layer in the form in which it is kept.
#[derive(Clone, Debug)]
pub struct KeptLayer {
    /// All that it says, sealed.
    pub bytes: Vec<u8>,
    /// In what its ranges are counted (the paper's granularity, in `ino_flag`).
    pub unit: Unit,
    /// How many marks and pending cuts begin with it (the paper's `ver_link`); `None` if that is
    /// not known here.
    pub links: Option<u32>,
}

/// What a keeper found when it was asked first.
#[derive(Clone, Copy, Debug)]
pub struct FoundLayer {
    /// The node.
    pub node: NodeId,
    /// The epoch.
    pub epoch: Epoch,
    /// What the file looks like now, if that is as the layer says: then all that was done to it is
    /// logged.
    pub explained: Option<Fence>,
}

/// What is logged of a file and not in the database yet.
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
    /// Whether it only says that something changed, and nothing of the content.
    #[must_use]
    pub fn is_of_attributes(&self) -> bool {
        self.layer.ranges.is_empty() && self.layer.whole.is_none()
    }

    /// This laid over what is kept of the same epoch already.
    #[must_use]
    pub fn over(&self, kept: Option<&[u8]>) -> KeptLayer {
        let mut sum = kept.map_or_else(Layer::default, layer_of);
        sum.lay(&self.layer);
        sum.keep_within(self.bounds);
        KeptLayer {
            bytes: sum.encode(),
            unit: sum.unit,
            links: None,
        }
    }
}

/// What was kept; all of the file, if that is damaged.
fn layer_of(bytes: &[u8]) -> Layer {
    Layer::decode(bytes).unwrap_or_else(|_| lost())
}

fn lost() -> Layer {
    let mut layer = Layer::default();
    layer.mark_whole(WholeReason::LogLost);
    layer
}

/// Tells what waits to be kept. May be asked at any time, also from within a change of a file: it
/// waits for no disk and no other change.
pub trait WaitingLayers: Send + Sync {
    /// Of all files, the eldest epoch first.
    fn all(&self) -> Vec<WaitingLayer>;

    /// Of the file with this inode.
    fn of(&self, inode: u64) -> Vec<WaitingLayer>;

    /// Of how many files there is something of the content.
    fn count(&self) -> usize;
}

/// See the module.
pub trait LayerKeeper: Send + Sync + fmt::Debug {
    /// What is there of the log `tree`; what is of another log is removed.
    ///
    /// # Errors
    /// The error of the keeper's disk.
    fn found(&self, tree: TreeId) -> io::Result<Vec<FoundLayer>>;

    /// From now on `waiting` is asked before anything becomes durable.
    fn begin(&self, waiting: Arc<dyn WaitingLayers>);

    /// A layer; `None` if it is not there.
    ///
    /// # Errors
    /// The error of the keeper's disk.
    fn get(&self, node: NodeId, epoch: Epoch) -> io::Result<Option<Vec<u8>>>;

    /// Puts a layer in the place of what is there of this node and epoch.
    ///
    /// # Errors
    /// The error of the keeper's disk; no room.
    fn put(&self, node: NodeId, epoch: Epoch, layer: &KeptLayer) -> io::Result<()>;

    /// Takes a layer away, if it is there.
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
pub(crate) struct Kept {
    keeper: Arc<dyn LayerKeeper>,
    /// What the database has given up, or was about to.
    doomed: Mutex<Vec<(NodeId, Epoch)>>,
    /// Everybody who reads a snapshot has a clone.
    readers: Arc<()>,
}

/// Somebody who may read what the database has given up since.
#[derive(Clone, Debug)]
pub(crate) struct KeptReader {
    kept: Arc<Kept>,
    _reader: Arc<()>,
}

fn failed(source: io::Error) -> LogError {
    LogError::File {
        file: "the layers in the volume",
        source,
    }
}

impl Kept {
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

    /// A layer that the database says is here.
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

    /// Removes what the database has given up, unless somebody reads. The caller keeps others from
    /// making cuts.
    pub(crate) fn sweep(&self, database: &database::Database) -> Result<()> {
        if self.doomed.lock().is_empty() || Arc::strong_count(&self.readers) > 1 {
            return Ok(());
        }
        let doomed = std::mem::take(&mut *self.doomed.lock());
        let snapshot = database.snapshot()?;
        let table = snapshot.transaction().open_table(LAYERS)?;
        for (node, epoch) in doomed {
            // What was given up by a transaction that failed is still there.
            let is_used = table.get((epoch.0, node.0))?;
            if !is_used.is_some_and(|row| Layer::is_elsewhere(row.value())) {
                self.keeper.remove(node, epoch).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// What is there when a log begins.
    pub(crate) fn found(&self, tree: TreeId) -> Result<Vec<FoundLayer>> {
        self.keeper.found(tree).map_err(failed)
    }

    /// Lets the database know of all that is here. `interrupted_ns`: it may say of files that they
    /// are not clean that are; it is now so many nanoseconds since 1970.
    pub(crate) fn take_over(
        &self,
        txn: &WriteTransaction,
        found: &[FoundLayer],
        interrupted_ns: Option<i64>,
    ) -> Result<()> {
        let mut layers = txn.open_table(LAYERS)?;
        let mut fences = Vec::new();
        {
            let nodes = txn.open_table(NODES)?;
            for layer in found {
                let key = (layer.epoch.0, layer.node.0);
                if nodes.get(layer.node.0)?.is_none() {
                    self.doom(layer.node, layer.epoch);
                    continue;
                }
                let row = layers
                    .get(key)?
                    .map(|row| database::decode_row(row.value()))
                    .transpose()?;
                // One that says "whole" says more.
                let is_news = match row {
                    Some(Some(layer)) => layer.whole.is_none(),
                    Some(None) => false,
                    None => true,
                };
                if is_news {
                    layers.insert(key, Layer::elsewhere().as_slice())?;
                }
                // The youngest layer comes last, and speaks for the file.
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
    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }
}

/// The layer of a row; `kept` has it, if the row says so.
pub(crate) fn layer_of_row(kept: Option<&Kept>, node: NodeId, epoch: Epoch, row: &[u8]) -> Result<Layer> {
    match (database::decode_row(row)?, kept) {
        (Some(layer), _) => Ok(layer),
        (None, Some(kept)) => kept.layer(node, epoch),
        (None, None) => Err(LogError::Damaged { what: "layer" }),
    }
}

/// The last epoch that the database knows, or a layer.
pub(crate) fn last_epoch(known: Epoch, found: &[FoundLayer]) -> Epoch {
    found.iter().map(|layer| layer.epoch).fold(known, Epoch::max)
}

struct WaitingOf(Arc<Mutex<State>>);

impl WaitingLayers for WaitingOf {
    fn all(&self) -> Vec<WaitingLayer> {
        let state = self.0.lock();
        // `layers` begins with the youngest.
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
