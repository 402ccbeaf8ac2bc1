//! Cuts: one moment of the whole tree, and what changed up to it.
//!
//! [`Log::cut`] ends the epoch while no operation is under way; everything logged before belongs to the picture, everything
//! after does not. The names as they are in that moment come for free: they are what the database holds after the cut
//! was committed, and a snapshot of it stays as it is.
//!
//! The epoch ends only if something was logged in it (SolFS section 3.2.2: no version is added when nothing was written).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use byteback_extents::ExtentSet;
use redb::ReadableTable;

use crate::database::{self, Snapshot};
use crate::error::Result;
use crate::ids::{Epoch, NodeId, NodeKind};
use crate::layer::{Layer, WholeReason};
use crate::log::{Log, locate};
use crate::marks::{ConsumerState, PendingCut};
use crate::pending::Place;

/// The names and changes of one tree at one moment. Holds a snapshot of the database: drop it when done. After an I/O error
/// of the log's disk it answers with errors; a new cut is needed then.
#[derive(Clone)]
pub struct Cut {
    snapshot: Snapshot,
    mark: Epoch,
    /// The first epoch that does not belong to the picture.
    end: Epoch,
}

/// How much of a node's content may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing; only its attributes may have.
    Unchanged,
    /// These ranges. They may lie beyond the file's end.
    Ranges(ExtentSet),
    /// All of it.
    Whole(WholeReason),
}

/// What happened to one node since a mark.
#[derive(Clone, Debug)]
pub struct NodeChange {
    /// The node. It still exists at the cut.
    pub node: NodeId,
    /// What it is.
    pub kind: NodeKind,
    /// Its content; always [`Content::Unchanged`] for whatever is not a file.
    pub content: Content,
    /// The consumer has never seen this node.
    pub is_new: bool,
}

/// What happened to one name since a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameChange {
    /// The directory.
    pub parent: NodeId,
    /// The name in it.
    pub name: OsString,
    /// What it stands for at the cut; `None`: nothing.
    pub child: Option<NodeId>,
}

/// Everything that happened since a mark, in order of node and of name.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// The mark is unknown: this is all that there is now, and what is not in it may have been removed.
    pub is_everything: bool,
    /// Nodes whose attributes or content may have changed.
    pub nodes: Vec<NodeChange>,
    /// Names that were added, removed, or stand for another node.
    pub names: Vec<NameChange>,
}

impl Log {
    /// Ends the epoch and returns the moment between it and the next, held for `consumer` until it calls
    /// [`Log::advance`] or [`Log::abandon`]; an elder pending cut of the same consumer is given up. `at_the_cut` runs in that
    /// moment, while no operation is under way: it must not wait for anything, nor call the log.
    ///
    /// # Errors
    /// A disk that cannot be written. Nothing is lost then, and `at_the_cut` may have run.
    pub fn cut(&self, consumer: &str, at_the_cut: impl FnOnce()) -> Result<Cut> {
        let _one = self.checkpointing.lock();
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
        self.commit_pending(pending, |txn| {
            let mut marks = txn.open_table(database::MARKS)?;
            let mut state = marks
                .get(consumer)?
                .map(|value| ConsumerState::decode(value.value()))
                .transpose()?;
            let state = state.get_or_insert_default();
            state.pending = Some(PendingCut { epoch, batch: 0 });
            marks.insert(consumer, state.encode().as_slice())?;
            Ok(())
        })?;
        Ok(Cut {
            snapshot: self.database.snapshot()?,
            mark: epoch,
            end: epoch,
        })
    }

    /// The tree as it is now, without ending the epoch or holding anything for anybody.
    ///
    /// # Errors
    /// A disk that cannot be written: what is in memory is written to the database first.
    pub fn look(&self) -> Result<Cut> {
        // Held until the snapshot is taken, so that no cut comes between it and the epoch.
        let _one = self.checkpointing.lock();
        self.flush()?;
        let epoch = self.epoch();
        Ok(Cut {
            snapshot: self.database.snapshot()?,
            mark: epoch,
            end: epoch.next(),
        })
    }
}

impl Cut {
    /// The first epoch after the cut: the mark of a consumer that has saved it. After [`Log::look`], which ends no epoch,
    /// the current one: whoever takes it as a mark is told of this epoch's changes once more.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.mark
    }

    /// What changed from `since` up to the cut; everything if `since` is `None` or an epoch that is not in the past of
    /// this log. Exact for the marks of consumers and for this cut's own epoch; since layers that no mark separates are merged
    /// or gone, any other epoch is answered as of the next elder mark, or with everything if there is none.
    ///
    /// # Errors
    /// If the database cannot be read or is damaged.
    pub fn changes(&self, since: Option<Epoch>) -> Result<Changes> {
        match since {
            Some(since) if since <= self.end => match self.border_at_or_before(since)? {
                Some(from) => self.changes_since(from, since),
                None => self.everything(),
            },
            _ => self.everything(),
        }
    }

    /// The youngest epoch up to `since` at which layers were kept apart.
    fn border_at_or_before(&self, since: Epoch) -> Result<Option<Epoch>> {
        if since >= self.mark {
            // The current epoch was never merged with an elder one.
            return Ok(Some(self.mark));
        }
        let mut borders = Vec::new();
        for entry in self.snapshot.transaction().open_table(database::MARKS)?.iter()? {
            borders.extend(ConsumerState::decode(entry?.1.value())?.borders());
        }
        Ok(borders.into_iter().filter(|border| *border <= since).max())
    }

    /// The changes of the epochs from `from` on; new are nodes born at or after `since`.
    fn changes_since(&self, from: Epoch, since: Epoch) -> Result<Changes> {
        let txn = self.snapshot.transaction();
        let mut layers: BTreeMap<NodeId, Layer> = BTreeMap::new();
        for entry in txn.open_table(database::LAYERS)?.range((from.0, 0)..(self.end.0, 0))? {
            let (place, layer) = entry?;
            let layer = database::decode_layer(layer.value())?;
            layers.entry(NodeId(place.value().1)).or_default().lay(&layer);
        }
        let mut nodes = Vec::with_capacity(layers.len());
        for (node, layer) in layers {
            // Gone meanwhile: its name says so.
            let Some(record) = self.snapshot.record(node)? else {
                continue;
            };
            if node != NodeId::ROOT && !self.snapshot.has_place(node)? {
                continue;
            }
            let is_new = record.born >= since;
            let content = match layer.whole {
                _ if record.kind != NodeKind::File => Content::Unchanged,
                _ if is_new => Content::Whole(WholeReason::Created),
                Some(reason) => Content::Whole(reason),
                None if layer.ranges.is_empty() => Content::Unchanged,
                None => Content::Ranges(layer.ranges),
            };
            nodes.push(NodeChange {
                node,
                kind: record.kind,
                content,
                is_new,
            });
        }
        let mut names: BTreeMap<Place, Option<NodeId>> = BTreeMap::new();
        let table = txn.open_table(database::NAME_LAYERS)?;
        for entry in table.range((from.0, 0, &[][..])..(self.end.0, 0, &[][..]))? {
            let (key, child) = entry?;
            let (_, parent, name) = key.value();
            // Younger epochs come later and win.
            let child = (child.value() != 0).then_some(NodeId(child.value()));
            names.insert((NodeId(parent), OsString::from_vec(name.to_vec())), child);
        }
        let names = names
            .into_iter()
            .map(|((parent, name), child)| NameChange { parent, name, child })
            .collect();
        Ok(Changes {
            is_everything: false,
            nodes,
            names,
        })
    }

    fn everything(&self) -> Result<Changes> {
        let txn = self.snapshot.transaction();
        let mut changes = Changes {
            is_everything: true,
            ..Changes::default()
        };
        self.snapshot.for_each_node(|node, record, has_place| {
            let content = match record.kind {
                NodeKind::File => Content::Whole(WholeReason::NoMark),
                _ => Content::Unchanged,
            };
            if has_place {
                changes.nodes.push(NodeChange {
                    node,
                    kind: record.kind,
                    content,
                    is_new: true,
                });
            }
        })?;
        for entry in txn.open_table(database::NAMES)?.iter()? {
            let (key, child) = entry?;
            let (parent, name) = key.value();
            changes.names.push(NameChange {
                parent: NodeId(parent),
                name: OsString::from_vec(name.to_vec()),
                child: Some(NodeId(child.value())),
            });
        }
        Ok(changes)
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

    /// What `name` in `directory` stands for at the cut.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn child(&self, directory: NodeId, name: &OsStr) -> Result<Option<NodeId>> {
        self.snapshot.child(directory, name)
    }

    /// What `node` is; `None` if it does not exist at the cut.
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

    /// How many nodes the tree has at the cut.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn node_count(&self) -> Result<u64> {
        self.snapshot.node_count()
    }
}
