//! How much of the record is still in the tree, found out before a scan notes anything.
//!
//! A scan takes missing nodes as removed. If most of a tree is missing, it is more likely the wrong
//! tree (a disk that is not mounted, a folder that was put back) than one that a user emptied, so a
//! caller that would act on removals asks here first. Nothing is written.
//!
//! 1. *Sample*: up to [`SAMPLED_MAX`] nodes, spread evenly over the numbers that were given, are
//!    looked for by their recorded paths. In nearly all cases most of them are there, and the
//!    answer costs a few thousand calls however large the tree is.
//! 2. *Count*, if too many of the sample are missing: the recorded tree is compared with the real
//!    one, name by name; then the real one is walked to find what was only moved. That costs as
//!    much as a scan.
//!
//! A node counts as there if its name is there, whatever the name stands for now, or if its inode
//! is anywhere in the tree. A node that cannot be looked at, or is hidden below another file
//! system, counts as there: nothing is known of it.
//!
//! Memory: the identities of the missing nodes.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::ops::ControlFlow;

use byteback_host::tree::Stat;
use byteback_model::{NodeId, NodeKind};

use crate::database::Snapshot;
use crate::error::{LogError, Result};
use crate::log::{Log, locate};
use crate::record::DiskKey;
use crate::scan::TreeView;

/// Nodes that are looked for at first.
const SAMPLED_MAX: u64 = 512;

/// Files, links and special files of a record, and how many of them are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// Nodes in the record, without directories.
    pub known: u64,
    /// Recorded nodes that are not in the tree any more.
    pub gone: u64,
}

impl Presence {
    /// Whether more than `percent` of what is known is gone.
    #[must_use]
    pub fn lacks_more_than(self, percent: u8) -> bool {
        u128::from(self.gone) * 100 > u128::from(self.known) * u128::from(percent)
    }
}

impl Log {
    /// The missing part of the record, if it is more than `percent` of it; else `None`.
    ///
    /// # Errors
    /// If the root or the log cannot be read.
    pub fn missing<V: TreeView>(&self, view: &V, percent: u8) -> Result<Option<Presence>> {
        self.damage.watch(self.try_missing(view, percent))
    }

    fn try_missing<V: TreeView>(&self, view: &V, percent: u8) -> Result<Option<Presence>> {
        let (_, stat) = view.root().map_err(unreadable_root)?;
        self.set_root(stat.dev, view.keeps_births());
        let snapshot = self.database.snapshot()?;
        // A sample is not exact: half of what is asked about is reason enough to count.
        if !self.sample(view, &snapshot, stat.dev)?.lacks_more_than(percent / 2) {
            return Ok(None);
        }
        let counted = self.count(view, &snapshot, stat.dev)?;
        Ok(Some(counted).filter(|counted| counted.lacks_more_than(percent)))
    }

    fn sample<V: TreeView>(&self, view: &V, snapshot: &Snapshot, device: u64) -> Result<Presence> {
        let last = self.state.lock().last_node.0;
        let step = last.div_ceil(SAMPLED_MAX).max(1);
        let mut sampled = Presence::default();
        let mut from = NodeId::ROOT.0.saturating_add(1);
        while from <= last {
            let mut found = None;
            snapshot.for_each_node_from(from, |node, record, has_place| {
                if record.kind == NodeKind::Directory || !has_place {
                    return ControlFlow::Continue(());
                }
                found = Some(node);
                ControlFlow::Break(())
            })?;
            let Some(node) = found else { break };
            sampled.known += 1;
            let Some(path) = locate(node, |node| snapshot.places_of(node))? else {
                break;
            };
            sampled.gone += u64::from(!is_there(view, &path, device)?);
            from = node.0.saturating_add(step);
        }
        Ok(sampled)
    }

    fn count<V: TreeView>(&self, view: &V, snapshot: &Snapshot, device: u64) -> Result<Presence> {
        let mut presence = Presence::default();
        snapshot.for_each_node(|_, record, has_place| {
            presence.known += u64::from(has_place && record.kind != NodeKind::Directory);
        })?;
        let mut left = HashSet::new();
        let mut levels = vec![(Vec::new(), NodeId::ROOT)];
        while let Some((path, node)) = levels.pop() {
            // A directory that cannot be read counts as present.
            let Ok(entries) = open(view, &path).and_then(|dir| view.entries(&dir)) else {
                continue;
            };
            let entries: HashMap<OsString, Stat> = entries.into_iter().collect();
            for (name, child) in snapshot.entries(node)? {
                let is_directory = kind_of(snapshot, child)? == Some(NodeKind::Directory);
                match entries.get(&name) {
                    None => take(snapshot, child, &mut left)?,
                    Some(stat) if stat.dev != device || !is_directory => {}
                    Some(stat) if stat.kind != NodeKind::Directory => take(snapshot, child, &mut left)?,
                    Some(_) => levels.push((below(&path, name), child)),
                }
            }
        }
        let mut paths = vec![Vec::new()];
        while let Some(path) = paths.pop().filter(|_| !left.is_empty()) {
            let entries = open(view, &path).and_then(|dir| view.entries(&dir));
            for (name, stat) in entries.unwrap_or_default() {
                if stat.dev != device {
                    continue;
                }
                if stat.kind == NodeKind::Directory {
                    paths.push(below(&path, name));
                } else {
                    left.remove(&self.key(&stat.identity()));
                }
            }
        }
        presence.gone = left.len() as u64;
        Ok(presence)
    }
}

/// A directory by its names from the root, so that few are open at a time.
fn open<V: TreeView>(view: &V, path: &[OsString]) -> io::Result<V::Dir> {
    let (root, _) = view.root()?;
    path.iter().try_fold(root, |dir, name| view.enter(&dir, name))
}

fn below(path: &[OsString], name: OsString) -> Vec<OsString> {
    path.iter().cloned().chain([name]).collect()
}

fn kind_of(snapshot: &Snapshot, node: NodeId) -> Result<Option<NodeKind>> {
    Ok(snapshot.record(node)?.map(|record| record.kind))
}

/// Adds the key of a node that is missing, or those of all nodes recorded below it.
fn take(snapshot: &Snapshot, node: NodeId, left: &mut HashSet<DiskKey>) -> Result<()> {
    let mut nodes = vec![node];
    while let Some(node) = nodes.pop() {
        match snapshot.record(node)? {
            Some(record) if record.kind == NodeKind::Directory => {
                nodes.extend(snapshot.entries(node)?.into_iter().map(|(_, child)| child));
            }
            Some(record) => {
                left.insert(record.key);
            }
            None => {}
        }
    }
    Ok(())
}

fn unreadable_root(source: io::Error) -> LogError {
    LogError::Tree {
        path: ".".to_owned(),
        source,
    }
}

/// Whether something lies at a path, or nothing is known of that.
fn is_there<V: TreeView>(view: &V, path: &[OsString], device: u64) -> Result<bool> {
    let (mut dir, _) = view.root().map_err(unreadable_root)?;
    let mut names = path.iter().peekable();
    while let Some(name) = names.next() {
        match view.look(&dir, name) {
            Ok(None) => return Ok(false),
            Ok(Some(stat)) if stat.dev != device => return Ok(true),
            Ok(Some(stat)) if names.peek().is_some() && stat.kind != NodeKind::Directory => return Ok(false),
            Ok(Some(_)) => {}
            Err(_) => return Ok(true),
        }
        if names.peek().is_none() {
            break;
        }
        match view.enter(&dir, name) {
            Ok(below) => dir = below,
            Err(error) => return Ok(error.kind() != io::ErrorKind::NotFound),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
