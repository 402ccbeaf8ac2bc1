//! The pending log on its way into the tables, in the order of their keys: each pack and page is
//! written once, however many of its rows change.

use std::os::unix::ffi::OsStrExt;

use byteback_model::NodeId;
use redb::{ReadableTable, ReadableTableMetadata, WriteTransaction};

use super::rows::{KeyRow, NameRow, NodeRow, PlaceRow};
use super::{FILE_MARKS, KEYS, Layers, MARKS, META, NAME_LAYERS, NAMES, NODES, PLACES, meta};
use crate::error::{LogError, Result};
use crate::keeper::KeeperHandle;
use crate::packed::{PackedTable, Row};
use crate::pending::{Pending, PendingNode};
use crate::record::{DiskKey, Fence, NodeRecord};

/// Writes the pending log. Layers are merged with those of the same epoch (SolFS section 3.2.1,
/// persistence). May be repeated, even with more laid over it: the result is the same as of one
/// run.
pub(crate) fn apply(txn: &WriteTransaction, pending: &Pending, kept: Option<&KeeperHandle>) -> Result<()> {
    let nodes = sorted(pending);
    let absent = apply_nodes(txn, &nodes)?;
    let present = nodes.iter().filter(|(node, _)| absent.binary_search(node).is_err());
    apply_layers(txn, pending, present, kept)?;
    let before = apply_names(txn, pending)?;
    apply_name_layers(txn, pending, &before)
}

/// As [`apply`], for the findings of the first scan of a tree. Layers tell what happened since a
/// mark; while nobody has one, they would take room for nobody. A mark that is set later is that of
/// a later epoch.
pub(crate) fn apply_first_scan(txn: &WriteTransaction, pending: &Pending, kept: Option<&KeeperHandle>) -> Result<()> {
    if !txn.open_table(MARKS)?.is_empty()? || !txn.open_table(FILE_MARKS)?.is_empty()? {
        return apply(txn, pending, kept);
    }
    apply_nodes(txn, &sorted(pending))?;
    apply_names(txn, pending)?;
    Ok(())
}

/// Adds to a count of rows.
fn count(txn: &WriteTransaction, name: &'static str, added: i64) -> Result<()> {
    let mut numbers = txn.open_table(META)?;
    let before = numbers.get(name)?.map(|number| number.value());
    let before = before.ok_or(LogError::Damaged { what: name })?;
    numbers.insert(name, before.saturating_add_signed(added))?;
    Ok(())
}

fn sorted(pending: &Pending) -> Vec<(NodeId, &PendingNode)> {
    let mut nodes: Vec<_> = pending.nodes.iter().map(|(node, change)| (*node, change)).collect();
    nodes.sort_unstable_by_key(|(node, _)| *node);
    nodes
}

/// Writes the records. Returns the nodes that had none and got none, ascending: a change that was
/// logged after its node was gone.
fn apply_nodes(txn: &WriteTransaction, changes: &[(NodeId, &PendingNode)]) -> Result<Vec<NodeId>> {
    let mut nodes = PackedTable::<NodeRow>::open(txn, NODES)?;
    let (mut lost_keys, mut new_keys) = (Vec::new(), Vec::new());
    let mut absent = Vec::new();
    for &(node, change) in changes {
        match change {
            PendingNode::Gone => match nodes.remove(&node.0)? {
                Some(before) => lost_keys.push((before.record.key, node)),
                None => absent.push(node),
            },
            PendingNode::Changed {
                record: Some(record), ..
            } => {
                let row = NodeRow { node, record: *record };
                let before = nodes.insert(row)?.map(|before| before.record.key);
                lost_keys.extend(before.filter(|before| *before != record.key).map(|key| (key, node)));
                new_keys.push((record.key, node));
            }
            PendingNode::Changed { record: None, .. } => {
                let before = nodes.get(&node.0)?.map(|row| row.record);
                if before.is_none() {
                    absent.push(node);
                }
                if let Some(before) = before.filter(|before| before.fence.is_some()) {
                    let record = NodeRecord { fence: None, ..before };
                    nodes.insert(NodeRow { node, record })?;
                }
            }
        }
    }
    count(txn, meta::NODES, nodes.close()?)?;

    let in_order = |(key, node): &(DiskKey, NodeId)| (key.tuple(), *node);
    lost_keys.sort_unstable_by_key(in_order);
    new_keys.sort_unstable_by_key(in_order);
    let mut keys = PackedTable::<KeyRow>::open(txn, KEYS)?;
    for (key, node) in lost_keys {
        // A reused inode number may belong to another node by now.
        if keys.get(&key.tuple())?.is_some_and(|row| row.node == node) {
            keys.remove(&key.tuple())?;
        }
    }
    for (key, node) in new_keys {
        keys.insert(KeyRow { key, node })?;
    }
    keys.close()?;
    Ok(absent)
}

fn apply_layers<'p>(
    txn: &WriteTransaction,
    pending: &Pending,
    changes: impl Iterator<Item = &'p (NodeId, &'p PendingNode)>,
    kept: Option<&KeeperHandle>,
) -> Result<()> {
    let mut layers = Layers::open(txn, kept)?;
    let mut epochs = None;
    let mut gone = Vec::new();
    for &(node, change) in changes {
        match change {
            PendingNode::Gone => {
                // Its changes will never be reported: a mark that does not move must not keep them.
                let epochs = match &epochs {
                    Some(epochs) => epochs,
                    None => epochs.insert(layers.epochs(0)?),
                };
                for epoch in epochs {
                    layers.remove(*epoch, node)?;
                }
                gone.push(node);
            }
            PendingNode::Changed { layer, .. } => match layers.get(pending.epoch.0, node)? {
                None => layers.put(pending.epoch.0, node, layer)?,
                Some(mut sum) => {
                    sum.overlay(layer);
                    sum.keep_within(pending.bounds);
                    layers.put(pending.epoch.0, node, &sum)?;
                }
            },
        }
    }
    layers.close(txn)?;
    crate::file_marks::forget_nodes(txn, &gone)
}

/// Writes the names. Returns the node for which each of them stood before, in their order.
fn apply_names(txn: &WriteTransaction, pending: &Pending) -> Result<Vec<Option<NodeId>>> {
    let mut names = PackedTable::<NameRow>::open(txn, NAMES)?;
    let (mut lost, mut new) = (Vec::new(), Vec::new());
    let mut all_before = Vec::with_capacity(pending.names.len());
    for ((parent, name), child) in &pending.names {
        let (parent, bytes) = (*parent, name.as_bytes());
        let place = |node| PlaceRow {
            node,
            parent,
            name: bytes.to_vec(),
        };
        let before = match *child {
            Some(child) => names.insert(NameRow {
                parent,
                name: bytes.to_vec(),
                child,
            })?,
            None => names.remove(&(parent.0, bytes))?,
        };
        let before = before.map(|row| row.child);
        lost.extend(before.filter(|before| Some(*before) != *child).map(place));
        new.extend(child.map(place));
        all_before.push(before);
    }
    count(txn, meta::NAMES, names.close()?)?;

    let in_order = |here: &PlaceRow, there: &PlaceRow| here.cmp_key(&there.key());
    lost.sort_unstable_by(in_order);
    new.sort_unstable_by(in_order);
    let mut places = PackedTable::<PlaceRow>::open(txn, PLACES)?;
    for row in lost {
        places.remove(&row.key())?;
    }
    for row in new {
        places.insert(row)?;
    }
    places.close()?;
    Ok(all_before)
}

fn apply_name_layers(txn: &WriteTransaction, pending: &Pending, all_before: &[Option<NodeId>]) -> Result<()> {
    let mut name_layers = txn.open_table(NAME_LAYERS)?;
    for (((parent, name), child), before) in pending.names.iter().zip(all_before) {
        let key = (pending.epoch.0, parent.0, name.as_bytes());
        // The epoch's first change of a name knows the node for which it stood before.
        let was = name_layers.get(key)?.map(|row| row.value().1);
        // A name that came and went between two checkpoints leaves nothing behind.
        if child.is_some() || before.is_some() || was.is_some() {
            let was = was.or(before.map(|before| before.0)).unwrap_or(0);
            name_layers.insert(key, (child.map_or(0, |child| child.0), was))?;
        }
    }
    Ok(())
}

/// Changes the fence of nodes that still exist.
pub(crate) fn set_fences(
    txn: &WriteTransaction,
    fences: impl IntoIterator<Item = (NodeId, Option<Fence>)>,
) -> Result<()> {
    let mut fences: Vec<_> = fences.into_iter().collect();
    // Of several fences of a node, the last one counts.
    fences.sort_by_key(|(node, _)| *node);
    let mut nodes = PackedTable::<NodeRow>::open(txn, NODES)?;
    for (node, fence) in fences {
        let record = nodes.get(&node.0)?.map(|row| row.record);
        if let Some(record) = record.filter(|record| record.fence != fence) {
            let record = NodeRecord { fence, ..record };
            nodes.insert(NodeRow { node, record })?;
        }
    }
    nodes.close()?;
    Ok(())
}
