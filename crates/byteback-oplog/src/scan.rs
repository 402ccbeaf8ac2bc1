//! Comparing the tree with the record, once, before anything is tracked or cut.
//!
//! After a clean stop it finds what was changed while nobody looked; after an unclean one also the names that were not yet in
//! the database; on first contact it finds everything. A folder that is not mounted is backed up by this alone. The cost is
//! one stat per node; contents are never read.
//!
//! A file is taken as unchanged only if its fence holds in every field; see [`crate::record`]. Nodes are recognised by
//! identity, so a renamed file or directory stays what it was. Directories that cannot be read keep what the record says and
//! are reported. What lies on another device than the root is not part of the tree.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;

use byteback_host::tree::Stat;

use crate::database;
use crate::error::{LogError, Result};
use crate::ids::{NodeId, NodeKind};
use crate::layer::WholeReason;
use crate::ledger::{LedgerEntry, LedgerEvent};
use crate::log::{Intent, Log, OpenNode, append_to_ledger};
use crate::record::{Fence, NodeRecord, node_kind};

/// A tree that can be walked.
pub trait TreeView {
    /// An open directory.
    type Dir;

    /// The root.
    ///
    /// # Errors
    /// What the system answered.
    fn root(&self) -> io::Result<(Self::Dir, Stat)>;

    /// The directory `name` in `dir`.
    ///
    /// # Errors
    /// What the system answered.
    fn enter(&self, dir: &Self::Dir, name: &OsStr) -> io::Result<Self::Dir>;

    /// All entries, in any order; one that vanishes meanwhile is left out.
    ///
    /// # Errors
    /// What the system answered.
    fn entries(&self, dir: &Self::Dir) -> io::Result<Vec<(OsString, Stat)>>;
}

/// What a scan found.
#[derive(Debug, Default)]
pub struct ScanReport {
    /// Nodes seen.
    pub nodes: u64,
    /// Files whose content must be taken as changed, new ones included.
    pub changed_files: u64,
    /// Names added, removed or given to another node.
    pub changed_names: u64,
    /// The record was empty: everything is new.
    pub is_first: bool,
    /// Directories that could not be read, by path below the root.
    pub unreadable: Vec<(Vec<OsString>, io::Error)>,
}

/// After so many entries what was found goes to the database, so that memory does not grow with the tree.
const FLUSH_AFTER_ENTRIES: u64 = 20_000;

struct Scan<'a, V: TreeView> {
    log: &'a Log,
    view: &'a V,
    report: ScanReport,
    /// Nodes with several names that were compared already.
    seen: HashSet<NodeId>,
    /// Nodes that lost a name, and may have no other.
    orphans: HashSet<NodeId>,
    fences: Vec<(NodeId, Option<Fence>)>,
    unflushed: u64,
    device: u64,
}

impl Log {
    /// Compares the tree with the record and logs every difference. `progress` is told the number of nodes seen.
    ///
    /// # Errors
    /// If the root cannot be read, or the log cannot be written.
    pub fn scan<V: TreeView>(&self, view: &V, progress: &mut dyn FnMut(u64)) -> Result<ScanReport> {
        let (root, stat) =
            view.root().map_err(|source| LogError::Tree { path: ".".to_owned(), source })?;
        self.set_root_device(stat.dev);
        let mut scan = Scan {
            log: self,
            view,
            report: ScanReport::default(),
            seen: HashSet::new(),
            orphans: HashSet::new(),
            fences: Vec::new(),
            unflushed: 0,
            device: stat.dev,
        };
        scan.root(&stat)?;
        scan.walk(root, progress)?;
        scan.bury_orphans()?;
        scan.flush()?;
        let report = scan.report;
        if !report.is_first && (report.changed_files > 0 || report.changed_names > 0) {
            let event = LedgerEvent::UntrackedChanges { files: report.changed_files, names: report.changed_names };
            let entry = LedgerEntry { at_ns: self.clock.now_ns(), event };
            self.database.write(|txn| append_to_ledger(txn, entry))?;
        }
        Ok(report)
    }
}

impl<V: TreeView> Scan<'_, V> {
    fn root(&mut self, stat: &Stat) -> Result<()> {
        let key = self.log.key(&stat.identity());
        match self.log.record(NodeId::ROOT)? {
            Some(record) if record.key == key => self.compare(NodeId::ROOT, &record, stat),
            known => {
                self.report.is_first = known.is_none();
                let mut state = self.log.state.lock();
                let born = known.map_or(state.epoch, |record| record.born);
                let fence = Some(Fence::of(stat));
                state.current.born(NodeId::ROOT, NodeRecord { kind: NodeKind::Directory, key, born, fence });
                state.epoch_used = true;
            }
        }
        self.report.nodes = 1;
        Ok(())
    }

    fn walk(&mut self, root: V::Dir, progress: &mut dyn FnMut(u64)) -> Result<()> {
        // Depth first; each level holds its open directory and the subdirectories still to visit.
        struct Level<D> {
            dir: D,
            name: OsString,
            left: Vec<(OsString, NodeId)>,
        }
        let left = self.directory(&root, NodeId::ROOT, &[])?;
        let mut levels = vec![Level { dir: root, name: OsString::new(), left }];
        while let Some(level) = levels.last_mut() {
            let Some((name, node)) = level.left.pop() else {
                levels.pop();
                continue;
            };
            let entered = self.view.enter(&level.dir, &name);
            let mut path: Vec<OsString> = levels.iter().skip(1).map(|level| level.name.clone()).collect();
            path.push(name.clone());
            match entered {
                Ok(dir) => {
                    let left = self.directory(&dir, node, &path)?;
                    levels.push(Level { dir, name, left });
                }
                // Removed since its parent was listed: as good as never seen, but the next scan must say so.
                Err(source) => self.report.unreadable.push((path, source)),
            }
            progress(self.report.nodes);
            if self.unflushed >= FLUSH_AFTER_ENTRIES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Compares one directory's entries and returns its subdirectories.
    fn directory(&mut self, dir: &V::Dir, node: NodeId, path: &[OsString]) -> Result<Vec<(OsString, NodeId)>> {
        let entries = match self.view.entries(dir) {
            Ok(entries) => entries,
            Err(source) => {
                self.report.unreadable.push((path.to_vec(), source));
                return Ok(Vec::new());
            }
        };
        let mut recorded: BTreeMap<OsString, NodeId> = self.log.snapshot()?.entries(node)?.into_iter().collect();
        let mut subdirectories = Vec::new();
        for (name, stat) in entries {
            if stat.dev != self.device {
                continue;
            }
            let child = self.node(&stat)?;
            self.report.nodes += 1;
            self.unflushed += 1;
            if recorded.remove(&name) != Some(child) {
                self.set_name(node, &name, Some(child));
            }
            if stat.kind == byteback_host::tree::FileKind::Dir {
                subdirectories.push((name, child));
            }
        }
        for (name, child) in recorded {
            self.set_name(node, &name, None);
            self.orphans.insert(child);
        }
        Ok(subdirectories)
    }

    fn set_name(&mut self, parent: NodeId, name: &OsStr, child: Option<NodeId>) {
        let mut state = self.log.state.lock();
        state.current.set_name(parent, name, child);
        state.current.touch(parent);
        state.epoch_used = true;
        drop(state);
        self.report.changed_names += 1;
    }

    /// The node that `stat` describes: a known one, compared with its fence, or a new one.
    fn node(&mut self, stat: &Stat) -> Result<NodeId> {
        let identity = stat.identity();
        let kind = node_kind(stat);
        if let Some(node) = self.log.node_of(&identity)?
            && let Some(record) = self.log.record(node)?
        {
            if record.kind == kind {
                let first_sight = stat.nlink == 1 || kind == NodeKind::Directory || self.seen.insert(node);
                if first_sight {
                    self.compare(node, &record, stat);
                }
                return Ok(node);
            }
            // Without birth times a reused inode number looks like the old node until the kinds differ.
            self.orphans.insert(node);
        }
        let key = self.log.key(&identity);
        let mut state = self.log.state.lock();
        let epoch = state.epoch;
        state.next_node = NodeId(state.next_node.0 + 1);
        let node = state.next_node;
        let is_file = kind == NodeKind::File;
        let fence = (!is_file).then(|| Fence::of(stat));
        state.current.born(node, NodeRecord { kind, key, born: epoch, fence });
        state.epoch_used = true;
        if is_file {
            self.report.changed_files += 1;
            state.open.insert(node, OpenNode { intent: Intent::NotNeeded, born: epoch, changed_at_ns: 0 });
        }
        if stat.nlink > 1 {
            self.seen.insert(node);
        }
        Ok(node)
    }

    fn compare(&mut self, node: NodeId, record: &NodeRecord, stat: &Stat) {
        let now = Fence::of(stat);
        if record.fence == Some(now) {
            return;
        }
        let mut state = self.log.state.lock();
        state.epoch_used = true;
        if record.kind != NodeKind::File {
            state.current.touch(node);
            self.fences.push((node, Some(now)));
            return;
        }
        let reason = if record.fence.is_some() { WholeReason::Untracked } else { WholeReason::Interrupted };
        state.current.mark_whole(node, reason);
        state.open.insert(node, OpenNode { intent: Intent::NotNeeded, born: record.born, changed_at_ns: 0 });
        self.fences.push((node, None));
        self.report.changed_files += 1;
    }

    /// Forgets the nodes that no name leads to any more, and whatever was below them.
    fn bury_orphans(&mut self) -> Result<()> {
        self.flush()?;
        let mut left: Vec<NodeId> = self.orphans.drain().collect();
        while let Some(node) = left.pop() {
            if !self.log.places_of(node)?.is_empty() {
                continue;
            }
            let Some(record) = self.log.record(node)? else { continue };
            if record.kind == NodeKind::Directory {
                for (name, child) in self.log.snapshot()?.entries(node)? {
                    self.log.state.lock().current.set_name(node, &name, None);
                    self.report.changed_names += 1;
                    left.push(child);
                }
            }
            let mut state = self.log.state.lock();
            state.open.remove(&node);
            state.current.gone(node, None, true);
            state.epoch_used = true;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.log.flush()?;
        let fences = std::mem::take(&mut self.fences);
        if !fences.is_empty() {
            self.log.database.write(|txn| database::set_fences(txn, fences))?;
        }
        self.unflushed = 0;
        Ok(())
    }
}
