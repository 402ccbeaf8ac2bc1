//! Comparing the tree with the record, before anything is tracked or cut. It may be repeated to
//! find what happened since: a node that the last time left open, and that has not changed since,
//! is not reported again.
//!
//! After a clean stop it finds the changes made while the tree was not tracked; after an unclean
//! one also the names that were not yet in the database; on first contact it finds everything. A
//! folder that is not mounted is backed up by this alone. The cost is one stat per node; contents
//! are never read.
//!
//! A file is taken as unchanged only if its fence holds in every field; see [`crate::record`].
//! Nodes are recognised by identity, so a renamed file or directory keeps its number. Directories
//! that cannot be read keep their recorded entries and are reported. Files on another device than
//! the root are not part of the tree.
//!
//! The new files of a large tree are made durable all at once, early in the scan, so that files
//! found afterwards are clean from the beginning: a million files that stay open until a checkpoint
//! has synced and looked at each again take 100 bytes each.
//!
//! In the end every node that no name leads to is buried, with all below it. A node whose last name
//! is in a directory that cannot be read is not among them.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;

use byteback_host::tree::Stat;
use byteback_model::{NodeId, NodeKind};

use crate::database::{self, Snapshot};
use crate::error::{LogError, Result};
use crate::layer::WholeReason;
use crate::ledger::{LedgerEntry, LedgerEvent};
use crate::log::{Intent, Log, OpenNode, append_to_ledger};
use crate::record::{Fence, NodeRecord};

/// A tree that can be walked.
pub trait TreeView {
    /// An open directory.
    type Dir;

    /// The root.
    ///
    /// # Errors
    /// The system's error.
    fn root(&self) -> io::Result<(Self::Dir, Stat)>;

    /// Whether an inode keeps its birth time for life. Where it does not (overlayfs gives a new one
    /// with the first change), it says nothing about who a node is.
    fn keeps_births(&self) -> bool {
        true
    }

    /// Makes the content of all files durable, as it is at some moment after this was called.
    /// `None` where that is not possible. Otherwise the time before it began (nanoseconds since
    /// 1970): of a file that was last changed earlier than that, and whose times prove it
    /// ([`Fence::proves_at`]), all is durable.
    fn sync(&self) -> Option<i64> {
        None
    }

    /// The directory `name` in `dir`.
    ///
    /// # Errors
    /// The system's error.
    fn enter(&self, dir: &Self::Dir, name: &OsStr) -> io::Result<Self::Dir>;

    /// All entries, in any order; one that vanishes meanwhile is left out. One that cannot be
    /// looked at for another reason is an error of the whole directory: what is left out counts as
    /// removed.
    ///
    /// # Errors
    /// The system's error.
    fn entries(&self, dir: &Self::Dir) -> io::Result<Vec<(OsString, Stat)>>;

    /// The stat of the entry `name` in `dir`; `None` if there is none.
    ///
    /// # Errors
    /// The system's error.
    fn look(&self, dir: &Self::Dir, name: &OsStr) -> io::Result<Option<Stat>> {
        let entries = self.entries(dir)?;
        Ok(entries
            .into_iter()
            .find_map(|(other, stat)| (other == name).then_some(stat)))
    }
}

/// The findings of a scan.
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

/// Why a directory was not compared.
enum Stop {
    Unreadable(io::Error),
    Log(LogError),
}

impl From<LogError> for Stop {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}

struct Scan<'a, V: TreeView> {
    log: &'a Log,
    view: &'a V,
    report: ScanReport,
    /// Nodes with several names that were compared already.
    seen: HashSet<NodeId>,
    /// The database as of the last flush; what was found since is in memory.
    snapshot: Snapshot,
    fences: Vec<(NodeId, Option<Fence>)>,
    unflushed: u64,
    /// New files that are open until a checkpoint closes them.
    opened: u64,
    /// Since when content is durable, if it was made so.
    synced_ns: Option<i64>,
    device: u64,
}

impl Log {
    /// Compares the tree with the record and logs every difference. `progress` is told the number
    /// of nodes seen.
    ///
    /// # Errors
    /// If the root cannot be read, or the log cannot be written.
    pub fn scan<V: TreeView>(&self, view: &V, progress: &mut dyn FnMut(u64)) -> Result<ScanReport> {
        self.damage.watch(self.try_scan(view, progress))
    }

    fn try_scan<V: TreeView>(&self, view: &V, progress: &mut dyn FnMut(u64)) -> Result<ScanReport> {
        let (root, stat) = view.root().map_err(|source| LogError::Tree {
            path: ".".to_owned(),
            source,
        })?;
        self.set_root(stat.dev, view.keeps_births());
        let mut scan = Scan {
            log: self,
            view,
            report: ScanReport::default(),
            seen: HashSet::new(),
            snapshot: self.database.snapshot()?,
            fences: Vec::new(),
            unflushed: 0,
            opened: 0,
            synced_ns: None,
            device: stat.dev,
        };
        scan.root(&stat)?;
        scan.walk(root, progress)?;
        scan.flush()?;
        scan.bury_the_nameless()?;
        scan.flush()?;
        let report = scan.report;
        if !report.is_first && (report.changed_files > 0 || report.changed_names > 0) {
            let event = LedgerEvent::UntrackedChanges {
                files: report.changed_files,
                names: report.changed_names,
            };
            let entry = LedgerEntry {
                at_ns: self.clock.now_ns(),
                event,
            };
            self.database.write(|txn| append_to_ledger(txn, &entry))?;
        }
        Ok(report)
    }
}

impl<V: TreeView> Scan<'_, V> {
    fn root(&mut self, stat: &Stat) -> Result<()> {
        let key = self.log.key(&stat.identity());
        match self.record(NodeId::ROOT)? {
            Some(record) if record.key == key => self.compare(NodeId::ROOT, &record, stat),
            known => {
                self.report.is_first = known.is_none();
                let mut state = self.log.state.lock();
                let born = known.map_or(state.epoch, |record| record.born);
                let fence = self.fence_that_proves(stat);
                state.born(
                    NodeId::ROOT,
                    NodeRecord {
                        kind: NodeKind::Directory,
                        key,
                        born,
                        fence,
                    },
                );
                state.epoch_used = true;
            }
        }
        self.report.nodes = 1;
        Ok(())
    }

    fn walk(&mut self, root: V::Dir, progress: &mut dyn FnMut(u64)) -> Result<()> {
        // Depth first; each level holds the subdirectories still to visit, and its open directory
        // while there are any: a chain of directories, however deep, takes two descriptors.
        struct Level<D> {
            dir: Option<D>,
            name: OsString,
            left: Vec<(OsString, NodeId)>,
        }
        let left = self.directory(&root, NodeId::ROOT).map_err(|error| match error {
            Stop::Unreadable(source) => LogError::Tree {
                path: ".".to_owned(),
                source,
            },
            Stop::Log(error) => error,
        })?;
        let mut levels = vec![Level {
            dir: Some(root),
            name: OsString::new(),
            left,
        }];
        while let Some(level) = levels.last_mut() {
            let next = level.left.pop();
            let (Some((name, node)), Some(above)) = (next, &level.dir) else {
                levels.pop();
                continue;
            };
            let entered = self.view.enter(above, &name).map_err(Stop::Unreadable);
            if level.left.is_empty() {
                level.dir = None;
            }
            match entered.and_then(|dir| Ok((self.directory(&dir, node)?, dir))) {
                Ok((left, dir)) => {
                    let dir = Some(dir).filter(|_| !left.is_empty());
                    levels.push(Level { dir, name, left });
                }
                // Or removed since its parent was listed: as good as never seen, but the next scan
                // must say so.
                Err(Stop::Unreadable(source)) => {
                    let mut path: Vec<OsString> = levels.iter().skip(1).map(|level| level.name.clone()).collect();
                    path.push(name);
                    self.report.unreadable.push((path, source));
                }
                Err(Stop::Log(error)) => return Err(error),
            }
            progress(self.report.nodes);
            if self.unflushed >= self.log.options.scan_portion_entries {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Compares one directory's entries and returns its subdirectories.
    fn directory(&mut self, dir: &V::Dir, node: NodeId) -> Result<Vec<(OsString, NodeId)>, Stop> {
        let entries = self.view.entries(dir).map_err(Stop::Unreadable)?;
        let mut recorded: BTreeMap<OsString, NodeId> = self.recorded_entries(node)?.into_iter().collect();
        let mut subdirectories = Vec::new();
        for (name, stat) in entries {
            if stat.dev != self.device {
                // The recorded entry lies hidden below the present mount.
                recorded.remove(&name);
                continue;
            }
            let child = self.node(&stat)?;
            self.report.nodes += 1;
            self.unflushed += 1;
            let is_directory = stat.kind == NodeKind::Directory;
            if recorded.remove(&name) != Some(child) {
                if is_directory {
                    // It has only this name now, also where its old one is in a directory that
                    // cannot be read.
                    for (parent, name) in self.log.places_of(child)? {
                        self.set_name(parent, &name, None);
                    }
                }
                self.set_name(node, &name, Some(child));
            }
            if is_directory {
                subdirectories.push((name, child));
            }
        }
        for name in recorded.into_keys() {
            self.set_name(node, &name, None);
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
        let kind = stat.kind;
        let key = self.log.key(&identity);
        if let Some(node) = self.log.node_of_key(key, || Ok(self.snapshot.clone()))?
            && let Some(record) = self.record(node)?
            // Without birth times a reused inode number looks like the old node until the kinds
            // differ.
            && record.kind == kind
        {
            let first_sight = stat.nlink == 1 || kind == NodeKind::Directory || self.seen.insert(node);
            if first_sight {
                self.compare(node, &record, stat);
            }
            return Ok(node);
        }
        let mut state = self.log.state.lock();
        let epoch = state.epoch;
        state.last_node = NodeId(state.last_node.0 + 1);
        let node = state.last_node;
        let is_file = kind == NodeKind::File;
        let fence = if is_file {
            let synced_ns = self.synced_ns.unwrap_or(i64::MIN);
            Some(Fence::of(stat)).filter(|fence| fence.proves_at(synced_ns))
        } else {
            self.fence_that_proves(stat)
        };
        state.born(
            node,
            NodeRecord {
                kind,
                key,
                born: epoch,
                fence,
            },
        );
        state.epoch_used = true;
        if is_file {
            self.report.changed_files += 1;
        }
        if is_file && fence.is_none() {
            self.opened += 1;
            state.open.insert(
                node,
                OpenNode {
                    intent: Intent::NotNeeded,
                    inode: stat.ino,
                    born: epoch,
                    changed_at_ns: 0,
                    explained_ns: stat.ctime_ns,
                },
            );
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
        let known = state.open.get(&node).map(|open| open.explained_ns);
        if known.is_some_and(|explained_ns| stat.ctime_ns <= explained_ns) {
            return;
        }
        state.epoch_used = true;
        if record.kind != NodeKind::File {
            state.current.touch(node);
            self.fences.push((node, self.fence_that_proves(stat)));
            return;
        }
        let reason = if record.fence.is_some() || known.is_some() {
            WholeReason::Untracked
        } else {
            WholeReason::Interrupted
        };
        state.current.mark_whole(node, reason);
        // The layer that was just logged takes the fence away when it is flushed.
        state.open.insert(
            node,
            OpenNode {
                intent: Intent::NotNeeded,
                inode: stat.ino,
                born: record.born,
                changed_at_ns: 0,
                explained_ns: stat.ctime_ns,
            },
        );
        self.report.changed_files += 1;
    }

    /// The fence of a node that is not a file, unless a later change within the same tick of the
    /// kernel's clock would not show.
    fn fence_that_proves(&self, stat: &Stat) -> Option<Fence> {
        Some(Fence::of(stat)).filter(|fence| fence.proves_at(self.log.clock.now_ns()))
    }

    fn record(&self, node: NodeId) -> Result<Option<NodeRecord>> {
        let pending = self.log.state.lock().pending_record(node);
        pending.map_or_else(|| self.snapshot.record(node), Ok)
    }

    /// The entries that the record has for a directory. Names that were found since the last flush
    /// may be missing, but not those that were taken away: it is asked about a directory's own
    /// entries before any of them is touched.
    fn recorded_entries(&self, directory: NodeId) -> Result<Vec<(OsString, NodeId)>> {
        let entries = self.snapshot.entries(directory)?;
        let state = self.log.state.lock();
        let is_there =
            |(name, _): &(OsString, NodeId)| state.current.names.get(&(directory, name.clone())) != Some(&None);
        Ok(entries.into_iter().filter(is_there).collect())
    }

    /// Forgets the nodes that no name leads to, and whatever was below them.
    fn bury_the_nameless(&mut self) -> Result<()> {
        let mut left = Vec::new();
        self.snapshot.for_each_node(|node, record, has_place| {
            if !has_place {
                left.push((node, record.kind));
            }
        })?;
        while let Some((node, kind)) = left.pop() {
            if kind == NodeKind::Directory {
                for (name, child) in self.snapshot.entries(node)? {
                    self.set_name(node, &name, None);
                    if self.log.places_of(child)?.is_empty()
                        && let Some(record) = self.record(child)?
                    {
                        left.push((child, record.kind));
                    }
                }
            }
            let mut state = self.log.state.lock();
            state.gone(node);
            drop(state);
            self.unflushed += 1;
            if self.unflushed >= self.log.options.scan_portion_entries {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let _one = self.log.checkpointing.lock();
        let fences = std::mem::take(&mut self.fences);
        let pending = self.log.take_pending();
        let is_asked_by_nobody = self.report.is_first && self.log.held.epochs().is_empty();
        let apply = if is_asked_by_nobody {
            database::apply_first_scan
        } else {
            database::apply
        };
        self.log
            .commit_with(apply, pending, |txn| database::set_fences(txn, fences))?;
        self.snapshot = self.log.database.snapshot()?;
        self.unflushed = 0;
        // First contact with a large tree: from here on its files are clean as soon as they are
        // seen, and none is open for nothing.
        if self.synced_ns.is_none() && self.opened >= self.log.options.scan_portion_entries / 2 {
            self.synced_ns = self.view.sync();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
