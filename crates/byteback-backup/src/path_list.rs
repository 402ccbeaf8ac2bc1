//! The changes of a tree as paths, for programs that know files by their names alone (rsync, tar,
//! restic, Borg).
//!
//! Our own backups know nodes, so that a directory that was renamed costs one name, and a file with
//! two names is one file. A program that knows only paths must be told more:
//!
//! - a node that changed is *present* under each of its names: a program with two copies of a file
//!   must renew both;
//! - below a directory that got a new name, everything is present: its paths are new;
//! - a name that stands for nothing any more is *gone*, and so is one that now stands for another
//!   directory, as the entries of the old one would otherwise stay. Where a directory may have lain
//!   that was not empty, so is a name that now stands for a file. All gone paths are removed first,
//!   whole directories at a time; then the present ones are copied over what is there.
//!
//! **Removing is dangerous**: the name of a directory may have been a symlink at the mark, and may
//! still be one in the copy. Removing a path below it would follow the symlink to wherever it
//! leads. So gone paths come in order of their bytes, each path after all that lead to it: the
//! symlink is removed before anything below its name is.
//!
//! A copy that is updated this way holds the tree as it is at the cut. The copy may be of any
//! moment between the mark and its 'done', as programs copy after 'begin': a directory that the
//! mark does not know can lie in the copy under a name that it has left since.
//!
//! Where the log knows no mark, everything is present and nothing gone: surplus paths in a copy
//! cannot be known.
//!
//! Memory follows the change: the numbers of the reported nodes, and the gone paths.

use byteback_model::{ByteString, NameChange, NodeId, NodeKind};
use std::collections::{HashMap, HashSet};

use byteback_control::{ChangesCursor, CutInfo, ErrorKind, NodeNames, ServiceError, TreeService};

use crate::error::Result;
use crate::monitor::{Monitor, check_cancelled};
use crate::tree_reader::join_path;

/// Nodes whose names are asked for at a time.
const BATCH: usize = 1000;
/// Directories whose paths are cached; names of one directory mostly come together.
const PATHS_MAX: usize = 10_000;

/// A path below the root of a tree; the root itself is the empty path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// The node at this path is new there, or changed.
    Present {
        /// The path.
        path: ByteString,
        /// The kind of node there.
        kind: NodeKind,
    },
    /// The node at this path is gone. Another one may be there now.
    Gone {
        /// The path.
        path: ByteString,
    },
}

/// Hands the changes up to an open cut to `each`, each path once: present paths in no particular
/// order, and after them the gone ones, each path before all that lie below it.
///
/// # Errors
/// If the tree cannot be asked, or `each` fails.
pub fn changed_paths(
    tree: &dyn TreeService,
    cut: &CutInfo,
    monitor: &dyn Monitor,
    each: impl FnMut(PathChange) -> Result<()>,
) -> Result<()> {
    let mut lister = Lister {
        tree,
        cut,
        monitor,
        each,
        reported: HashSet::new(),
        gone: Vec::new(),
        replacing: Vec::new(),
        has_lost_directories: false,
        walked: HashSet::new(),
        kinds: HashMap::new(),
        paths: HashMap::new(),
    };
    let mut cursor = ChangesCursor::default();
    loop {
        let page = tree.changes(cut.cut, &cursor)?;
        if cut.since.is_some() {
            let nodes: Vec<NodeId> = page.nodes.iter().map(|change| change.node).collect();
            lister.tell_nodes(&nodes)?;
            lister.tell_names(&page.names)?;
        } else {
            // Every existing name is listed by itself; only kinds are missing, and most nodes are
            // files.
            let others = page.nodes.iter().filter(|change| change.kind != NodeKind::File);
            lister.kinds.extend(others.map(|change| (change.node, change.kind)));
            lister.tell_everything(&page.names)?;
        }
        match page.next {
            None if cut.since.is_none() => {
                return lister.present(ByteString::from(""), NodeKind::Directory);
            }
            None => return lister.tell_gone(),
            Some(next) if next == cursor => {
                let message = "the folder's list of changes does not end; restart its daemon";
                return Err(ServiceError::new(ErrorKind::Protocol, message).into());
            }
            Some(next) => cursor = next,
        }
    }
}

struct Lister<'a, F> {
    tree: &'a dyn TreeService,
    cut: &'a CutInfo,
    monitor: &'a dyn Monitor,
    each: F,
    /// Nodes reported under all their names.
    reported: HashSet<NodeId>,
    /// Gone paths, until all are known.
    gone: Vec<ByteString>,
    /// Names that now stand for something other than a directory.
    replacing: Vec<ByteString>,
    /// A directory with entries may have left its place. The log does not say which.
    has_lost_directories: bool,
    /// Directories below which everything was reported.
    walked: HashSet<NodeId>,
    /// Kinds of nodes that are not files, where everything is reported.
    kinds: HashMap<NodeId, NodeKind>,
    paths: HashMap<NodeId, Option<ByteString>>,
}

impl<F: FnMut(PathChange) -> Result<()>> Lister<'_, F> {
    fn present(&mut self, path: ByteString, kind: NodeKind) -> Result<()> {
        check_cancelled(self.monitor)?;
        (self.each)(PathChange::Present { path, kind })
    }

    /// The path of a name, if its directory exists at the cut.
    fn path(&mut self, directory: NodeId, name: &ByteString) -> Result<Option<ByteString>> {
        if !self.paths.contains_key(&directory) {
            if self.paths.len() >= PATHS_MAX {
                self.paths.clear();
            }
            let path = self.tree.path(self.cut.cut, directory)?;
            self.paths.insert(directory, path);
        }
        let directory = self.paths.get(&directory).and_then(Option::as_ref);
        Ok(directory.map(|path| ByteString::from(join_path(path.as_bytes(), name.as_bytes()))))
    }

    /// Reports nodes under all their names, unless they were reported before. Returns their kinds.
    fn tell_nodes(&mut self, nodes: &[NodeId]) -> Result<HashMap<NodeId, NodeKind>> {
        let mut kinds = HashMap::new();
        for nodes in nodes.chunks(BATCH) {
            let names = self.tree.names(self.cut.cut, nodes)?;
            for (node, NodeNames { kind, names, .. }) in nodes.iter().zip(names) {
                let Some(kind) = kind else { continue };
                kinds.insert(*node, kind);
                if !self.reported.insert(*node) {
                    continue;
                }
                if *node == NodeId::ROOT {
                    self.present(ByteString::from(""), kind)?;
                }
                for (directory, name) in names {
                    if let Some(path) = self.path(directory, &name)? {
                        self.present(path, kind)?;
                    }
                }
            }
        }
        Ok(kinds)
    }

    fn tell_names(&mut self, names: &[NameChange<NodeId>]) -> Result<()> {
        let children: Vec<NodeId> = names.iter().filter_map(|change| change.child).collect();
        let kinds = self.tell_nodes(&children)?;
        for change in names {
            let kind = change.child.and_then(|child| kinds.get(&child).copied());
            let Some(path) = self.path(change.parent, &change.name)? else {
                // The name lay in a directory that is gone.
                self.has_lost_directories = true;
                continue;
            };
            match (change.child, kind) {
                (Some(child), Some(NodeKind::Directory)) => {
                    self.has_lost_directories = true;
                    self.gone.push(path);
                    self.tell_below(child)?;
                }
                (Some(_), Some(_)) => self.replacing.push(path),
                _ => self.gone.push(path),
            }
        }
        Ok(())
    }

    fn tell_gone(&mut self) -> Result<()> {
        let mut gone = std::mem::take(&mut self.gone);
        if self.has_lost_directories {
            gone.append(&mut self.replacing);
        }
        // A path sorts before all that begin with it.
        gone.sort_unstable();
        for path in gone {
            check_cancelled(self.monitor)?;
            (self.each)(PathChange::Gone { path })?;
        }
        Ok(())
    }

    /// Reports everything below a directory. A reported directory does not imply that its entries
    /// were reported.
    fn tell_below(&mut self, directory: NodeId) -> Result<()> {
        let mut to_do = vec![directory];
        while let Some(directory) = to_do.pop() {
            if !self.walked.insert(directory) {
                continue;
            }
            let mut after = None;
            loop {
                let entries = self.tree.entries(self.cut.cut, directory, after.as_ref())?;
                let Some(last) = entries.last() else { break };
                after = Some(last.name.clone());
                let nodes: Vec<NodeId> = entries.iter().map(|entry| entry.node).collect();
                self.tell_nodes(&nodes)?;
                let directories = entries.iter().filter(|entry| entry.kind == NodeKind::Directory);
                to_do.extend(directories.map(|entry| entry.node));
            }
        }
        Ok(())
    }

    fn tell_everything(&mut self, names: &[NameChange<NodeId>]) -> Result<()> {
        for change in names {
            let Some(child) = change.child else { continue };
            let kind = self.kinds.get(&child).copied().unwrap_or(NodeKind::File);
            if let Some(path) = self.path(change.parent, &change.name)? {
                self.present(path, kind)?;
            }
        }
        Ok(())
    }
}
