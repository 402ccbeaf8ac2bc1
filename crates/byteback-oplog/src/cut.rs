//! Cuts: one moment of the whole tree, and what changed up to it.
//!
//! [`Log::cut`] ends the epoch while no operation is under way; everything logged before belongs to
//! the picture, everything after does not. The names of that moment come for free: they are what
//! the database holds after the cut was committed, and a snapshot of it never changes. The changes
//! are read from the same snapshot: see `changes.rs`.
//!
//! The epoch ends only if something was logged in it (SolFS section 3.2.2: no version is added when
//! nothing was written).

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use byteback_extents::ExtentSet;
use parking_lot::MutexGuard;

use crate::changes::{ChangeList, Extent, NodeChange, content_of, node_change};
use crate::damage::DamageWatch;
use crate::database::{self, Snapshot, meta};
use crate::error::Result;
use crate::file_marks::{borders_of_all, change_state, marks_of};
use crate::held::Hold;
use crate::ids::Epoch;
use crate::keeper::{KeeperHandle, KeptReader, layer_of_row};
use crate::layer::{Layer, WholeReason};
use crate::log::{Checkpointing, Log, locate};
use crate::marks::PendingCut;
use crate::record::NodeRecord;
use byteback_model::{NodeId, NodeKind};

/// The names and changes of one tree at one moment. Holds a snapshot of the database: drop it when
/// done. After an I/O error of the log's disk every call fails; a new cut is needed then.
#[derive(Clone)]
pub struct Cut {
    pub(crate) snapshot: Snapshot,
    mark: Epoch,
    /// The first epoch that does not belong to the picture.
    pub(crate) end: Epoch,
    /// The borders at the time of the cut that the snapshot does not know.
    held: Vec<Epoch>,
    /// Keeps the border of a cut that no consumer owns.
    _hold: Option<Arc<Hold>>,
    pub(crate) damage: Arc<DamageWatch>,
    /// The keeper of layers that are not in the database.
    pub(crate) kept: Option<KeptReader>,
    /// The epochs that have layers, filled at the first request.
    epochs: Arc<OnceLock<Vec<u64>>>,
}

impl Log {
    /// Ends the epoch and returns the moment between it and the next, held for `consumer` until it
    /// calls [`Log::advance`] or [`Log::abandon`]; an older pending cut of the same consumer is
    /// given up. `at_the_cut` runs in that moment, while no operation is under way: it must neither
    /// wait for anything nor call the log.
    ///
    /// # Errors
    /// A disk that cannot be written: nothing is lost then, but `at_the_cut` may have run.
    /// [`crate::LogError::TooManyConsumers`]: `at_the_cut` has not run.
    pub fn cut(&self, consumer: &str, at_the_cut: impl FnOnce()) -> Result<Cut> {
        let heard_at_ns = self.clock.now_ns();
        let one = self.checkpointing.lock();
        let room = self.make_room(consumer, u64::from(self.options.consumers_max))?;
        self.cut_with(one, at_the_cut, |txn, epoch| {
            room.take(txn)?;
            change_state(txn, consumer, |state| {
                state.pending = Some(PendingCut { epoch, batch: 0 });
                state.heard_at_ns = heard_at_ns;
            })
        })
    }

    /// Ends the epoch as [`Log::cut`] does, but for no consumer: the layers needed to ask for
    /// changes since this moment are held as long as the cut or a clone of it lives, and no longer
    /// than this process. Several such cuts may be open at once.
    ///
    /// # Errors
    /// As [`Log::cut`].
    pub fn cut_held(&self, at_the_cut: impl FnOnce()) -> Result<Cut> {
        self.cut_with(self.checkpointing.lock(), at_the_cut, |_, _| Ok(()))
    }

    fn cut_with(
        &self,
        _one: MutexGuard<'_, Checkpointing>,
        at_the_cut: impl FnOnce(),
        also: impl FnOnce(&redb::WriteTransaction, Epoch) -> Result<()>,
    ) -> Result<Cut> {
        let (pending, epoch) = {
            let _no_operation = self.gate.write();
            at_the_cut();
            let mut state = self.state.lock();
            if state.epoch_used {
                state.epoch = state.epoch.next();
                state.epoch_used = false;
            }
            (state.take_pending(), state.epoch)
        };
        self.commit_pending(pending, |txn| also(txn, epoch))?;
        let hold = self.held.hold(epoch);
        Ok(Cut {
            snapshot: self.database.snapshot()?,
            mark: epoch,
            end: epoch,
            held: self.held.epochs(),
            _hold: Some(Arc::new(hold)),
            damage: Arc::clone(&self.damage),
            kept: self.kept.as_ref().map(KeeperHandle::reader),
            epochs: Arc::default(),
        })
    }

    /// The tree as it is now, without ending the epoch or holding anything.
    ///
    /// # Errors
    /// A disk that cannot be written: the pending log is written to the database first.
    pub fn look(&self) -> Result<Cut> {
        // Held until the snapshot is taken, so that no cut comes between it and the epoch.
        let _one = self.checkpointing.lock();
        self.flush()?;
        let epoch = self.epoch();
        Ok(Cut {
            snapshot: self.database.snapshot()?,
            mark: epoch,
            end: epoch.next(),
            held: self.held.epochs(),
            _hold: None,
            damage: Arc::clone(&self.damage),
            kept: self.kept.as_ref().map(KeeperHandle::reader),
            epochs: Arc::default(),
        })
    }
}

impl Cut {
    /// The first epoch after the cut: the mark of a consumer that has saved it. After
    /// [`Log::look`], which ends no epoch, the current one: a consumer that takes it as its mark
    /// gets this epoch's changes once more.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.mark
    }

    /// The changes from `since` up to the cut; everything if `since` is `None` or an epoch that is
    /// not in the past of this log. Exact for the marks of consumers, for held cuts and for this
    /// cut's own epoch. Any other epoch is answered as of the next older border, since layers that
    /// no mark separates are merged or gone; without such a border the answer is everything. Marks
    /// of files do not count here: see [`Cut::change_of`].
    ///
    /// # Errors
    /// If the database cannot be read or is damaged.
    pub fn changes(&self, since: Option<Epoch>) -> Result<ChangeList> {
        let border = self.damage.watch(self.border_up_to(since, None))?;
        let extent = match border {
            Some((from, since)) => Extent::Since { from, since },
            None => Extent::Everything(WholeReason::NoMark),
        };
        Ok(ChangeList::new(self.clone(), extent))
    }

    /// Everything that exists at the cut, each file whole for `reason`.
    #[must_use]
    pub fn everything(&self, reason: WholeReason) -> ChangeList {
        ChangeList::new(self.clone(), Extent::Everything(reason))
    }

    /// The changes of one node from `since` up to the cut; `None` if it does not exist then. As
    /// exact as [`Cut::changes`], and exact for the marks of this file too. The whole content if
    /// `since` is `None`, was never an epoch of this log, or is older than everything that is kept
    /// ([`WholeReason::NoMark`]).
    ///
    /// # Errors
    /// If the database cannot be read or is damaged.
    pub fn change_of(&self, node: NodeId, since: Option<Epoch>) -> Result<Option<NodeChange>> {
        self.damage.watch(self.read_change_of(node, since))
    }

    fn read_change_of(&self, node: NodeId, since: Option<Epoch>) -> Result<Option<NodeChange>> {
        let Some(record) = self.visible_record(node)? else {
            return Ok(None);
        };
        let Some((from, since)) = self.border_up_to(since, Some(node))? else {
            let content = content_of(&record, Some(WholeReason::NoMark), ExtentSet::new());
            return Ok(Some(NodeChange {
                node,
                kind: record.kind,
                content,
                is_new: true,
            }));
        };
        let epochs = self.epochs_with_layers()?;
        let range =
            epochs.partition_point(|epoch| *epoch < from.0)..epochs.partition_point(|epoch| *epoch < self.end.0);
        let table = self.snapshot.transaction().open_table(database::LAYERS)?;
        let mut sum: Option<Layer> = None;
        for epoch in epochs.get(range).unwrap_or_default() {
            if let Some(layer) = table.get((*epoch, node.0))? {
                let layer = layer_of_row(self.kept(), node, Epoch(*epoch), layer.value())?;
                match &mut sum {
                    Some(sum) => sum.overlay(&layer),
                    None => sum = Some(layer),
                }
            }
        }
        Ok(Some(node_change(node, &record, sum.unwrap_or_default(), since)))
    }

    pub(crate) fn kept(&self) -> Option<&KeeperHandle> {
        self.kept.as_ref().map(KeptReader::kept)
    }

    /// The newest border up to `since`, for all nodes or for one, together with `since`. `None`:
    /// nothing is known of that time.
    fn border_up_to(&self, since: Option<Epoch>, node: Option<NodeId>) -> Result<Option<(Epoch, Epoch)>> {
        let Some(since) = since.filter(|since| *since <= self.end) else {
            return Ok(None);
        };
        if since >= self.mark {
            // The current epoch was never merged with an older one.
            return Ok(Some((self.mark, since)));
        }
        let txn = self.snapshot.transaction();
        let mut borders = borders_of_all(&txn.open_table(database::MARKS)?)?;
        borders.extend(&self.held);
        if let Some(node) = node {
            borders.extend(marks_of(&txn.open_table(database::FILE_MARKS)?, node)?);
        }
        let from = borders.into_iter().filter(|border| *border <= since).max();
        Ok(from.map(|from| (from, since)))
    }

    pub(crate) fn epochs_with_layers(&self) -> Result<&[u64]> {
        if let Some(epochs) = self.epochs.get() {
            return Ok(epochs);
        }
        let table = self.snapshot.transaction().open_table(database::LAYERS)?;
        let epochs = database::epochs_with_layers(&table, 0)?;
        Ok(self.epochs.get_or_init(|| epochs))
    }

    /// The record of a node that is to be reported.
    pub(crate) fn visible_record(&self, node: NodeId) -> Result<Option<NodeRecord>> {
        let is_visible = node == NodeId::ROOT || self.snapshot.has_place(node)?;
        if is_visible {
            self.snapshot.record(node)
        } else {
            Ok(None)
        }
    }

    /// The names that lead from the root to `node` at the cut; `None` if it does not exist then.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn locate(&self, node: NodeId) -> Result<Option<Vec<OsString>>> {
        if self.snapshot.record(node)?.is_none() {
            return Ok(None);
        }
        locate(node, |node| self.snapshot.places_of(node))
    }

    /// The entries of a directory at the cut, in byte order of their names.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn entries(&self, directory: NodeId) -> Result<Vec<(OsString, NodeId)>> {
        self.snapshot.entries(directory)
    }

    /// The node named `name` in `directory` at the cut.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn child(&self, directory: NodeId, name: &OsStr) -> Result<Option<NodeId>> {
        self.snapshot.child(directory, name)
    }

    /// The kind of `node`; `None` if it does not exist at the cut.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn kind(&self, node: NodeId) -> Result<Option<NodeKind>> {
        Ok(self.snapshot.record(node)?.map(|record| record.kind))
    }

    /// All names of `node` at the cut, each with its directory; none of the root.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn places_of(&self, node: NodeId) -> Result<Vec<(NodeId, OsString)>> {
        self.snapshot.places_of(node)
    }

    /// Nodes with a greater number than this came into being after the cut.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn last_node(&self) -> Result<NodeId> {
        self.snapshot.number(meta::LAST_NODE).map(NodeId)
    }

    /// The regular files with a name at the cut from the number `first` on, ascending, at most
    /// `count` of them. The numbers have gaps, some of them large.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn files_from(&self, first: NodeId, count: usize) -> Result<Vec<NodeId>> {
        let mut files = Vec::new();
        self.snapshot.for_each_node_from(first.0, |node, record, has_place| {
            if files.len() >= count {
                return ControlFlow::Break(());
            }
            if record.kind == NodeKind::File && has_place {
                files.push(node);
            }
            ControlFlow::Continue(())
        })?;
        Ok(files)
    }

    /// How many nodes the tree has at the cut.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn node_count(&self) -> Result<u64> {
        self.snapshot.node_count()
    }
}
