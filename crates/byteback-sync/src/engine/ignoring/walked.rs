//! Results of a walk of the tree at a cut: the rules in its files, and the names that they hide.
//! The walk changes nothing and asks only the tree.

use byteback_model::{ByteString, NameChange, NodeId, NodeKind, Place};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use byteback_control::{
    ChangesCursor, CutId, CutRequest, DirEntry, ErrorKind, Outcome, Piece, Result, ServiceError, TreeService,
};

use super::NODES_AT_ONCE;
use crate::ignore_rules::{CACHE_TAG_LEN, CACHE_TAG_NAME, IgnoreRules, RULES_NAME, is_cache_tag};
use crate::ignored::{Sources, joined};
use crate::receive::is_source_name;

/// A longer file with rules is not read.
const RULES_LEN_MAX_BYTES: u64 = 1 << 20;

/// Reads a page of a directory, behind a name.
pub(super) type Page<'p> = &'p dyn Fn(NodeId, Option<&ByteString>) -> Result<Vec<DirEntry>>;

/// Rules in the files of a tree.
#[derive(Default)]
pub(super) struct StatedRules {
    pub(super) said: Sources,
    pub(super) rules: IgnoreRules,
    /// The files that state rules, and those that might, in directories that are not ignored.
    pub(super) files: HashSet<NodeId>,
}

/// A name in the tree.
pub(super) struct Named<'n> {
    pub(super) place: &'n Place<NodeId>,
    /// From the root.
    pub(super) path: &'n [u8],
    pub(super) node: NodeId,
    pub(super) is_directory: bool,
}

/// Hidden names and nodes of a tree.
#[derive(Default)]
pub(super) struct Hidden {
    /// Nodes with hidden names, and the number of these.
    pub(super) nodes: HashMap<NodeId, usize>,
    /// Hidden names in directories that are not hidden.
    pub(super) tops: Vec<NameChange<NodeId>>,
    /// Withheld nodes with a name that is not hidden, and the directory of that.
    pub(super) seen: HashMap<NodeId, NodeId>,
    /// Withheld directories in which something is neither hidden nor withheld.
    pub(super) shown_in: HashSet<NodeId>,
    /// Withheld directories in which something is hidden.
    pub(super) holding: HashSet<NodeId>,
    /// Files with several names.
    pub(super) linked: BTreeSet<NodeId>,
    /// Directories that are not hidden, with their paths.
    pub(super) directories: Vec<(NodeId, Vec<u8>)>,
}

/// All entries of a directory.
fn entries_of(page: Page<'_>, directory: NodeId) -> Result<Vec<DirEntry>> {
    let mut entries: Vec<DirEntry> = Vec::new();
    loop {
        let more = page(directory, entries.last().map(|entry| &entry.name))?;
        if more.is_empty() {
            return Ok(entries);
        }
        entries.extend(more);
    }
}

/// Reads files of a tree as they are now.
struct Reading<'t> {
    tree: &'t dyn TreeService,
    cut: Option<CutId>,
}

impl Reading<'_> {
    /// The beginning of a file. `None`: the file is gone, or longer than `len_max_bytes` although
    /// it is to be read whole.
    fn read(&mut self, node: NodeId, len_max_bytes: u64, is_whole: bool) -> Result<Option<Vec<u8>>> {
        let cut = match self.cut {
            Some(cut) => cut,
            None => {
                let cut = self.tree.cut(&CutRequest {
                    anonymous: true,
                    ..CutRequest::of("")
                })?;
                self.cut = Some(cut.cut);
                cut.cut
            }
        };
        let is_there = self.tree.names(cut, &[node])?;
        if is_there.iter().all(|reported| reported.names.is_empty()) {
            return Ok(None);
        }
        let unanswered = || ServiceError::new(ErrorKind::Protocol, "the tree did not answer");
        let attributes = self.tree.attributes(cut, &[node])?.pop().ok_or_else(unanswered)??;
        if is_whole && attributes.size > len_max_bytes {
            return Ok(None);
        }
        let len = attributes.size.min(len_max_bytes);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        if bytes.is_empty() {
            return Ok(Some(bytes));
        }
        self.tree.peek(cut, node, &[(0, len)], &mut |piece| {
            if let Piece::Data { offset, bytes: data } = piece {
                let at = usize::try_from(offset).unwrap_or(usize::MAX);
                let to = bytes.get_mut(at..).unwrap_or_default().iter_mut();
                to.zip(data).for_each(|(to, from)| *to = *from);
            }
            Ok(())
        })?;
        Ok(Some(bytes))
    }
}

impl StatedRules {
    /// Reads the rules in the files of a tree. File contents are as of now, not of a cut: later
    /// changes are heard of with the next group.
    pub(super) fn by(page: Page<'_>, tree: &dyn TreeService) -> Result<Self> {
        let mut reading = Reading { tree, cut: None };
        let read = Self::walk(page, &mut reading);
        if let Some(cut) = reading.cut {
            tree.finish(cut, &Outcome::Abandoned)?;
        }
        read
    }

    fn walk(page: Page<'_>, reading: &mut Reading<'_>) -> Result<Self> {
        let mut found = Self::default();
        let mut directories = vec![(NodeId::ROOT, Vec::new())];
        while let Some((directory, path)) = directories.pop() {
            let entries = entries_of(page, directory)?;
            for entry in &entries {
                if entry.kind == NodeKind::File && is_source_name(&entry.name) {
                    found.files.insert(entry.node);
                    found.source(&path, entry, reading)?;
                }
            }
            if !path.is_empty() && found.rules.is_ignored_itself(&path, true) {
                // The directory turned out to be a cache: of its files only the tag counts.
                if let Some(text) = found.said.texts.remove(&path) {
                    drop(text);
                    found.rules.set_file(&path, None);
                }
                continue;
            }
            for entry in entries.into_iter().filter(|entry| entry.kind == NodeKind::Directory) {
                let path = joined(&path, entry.name.as_bytes());
                if !found.rules.is_ignored(&path, true) {
                    directories.push((entry.node, path));
                }
            }
        }
        Ok(found)
    }

    /// Takes in a file with rules, or the tag of a cache.
    fn source(&mut self, directory: &[u8], entry: &DirEntry, reading: &mut Reading<'_>) -> Result<()> {
        if entry.name.as_bytes() == RULES_NAME {
            let text = reading.read(entry.node, RULES_LEN_MAX_BYTES, true)?;
            self.rules.set_file(directory, text.as_deref());
            self.said.texts.extend(text.map(|text| (directory.to_vec(), text)));
        } else if entry.name.as_bytes() == CACHE_TAG_NAME && !directory.is_empty() {
            let begin = reading.read(entry.node, CACHE_TAG_LEN as u64, false)?;
            if begin.is_some_and(|begin| is_cache_tag(&begin)) {
                self.rules.set_cache(directory, true);
                self.said.caches.insert(directory.to_vec());
            }
        }
        Ok(())
    }
}

impl Hidden {
    /// Walks a tree. Everything in a hidden directory is hidden.
    pub(super) fn look(
        page: Page<'_>,
        hides: &dyn Fn(&Named<'_>) -> bool,
        is_withheld: &dyn Fn(NodeId) -> bool,
    ) -> Result<Self> {
        let mut found = Self::default();
        let mut files: HashSet<NodeId> = HashSet::new();
        let mut directories = vec![(NodeId::ROOT, Vec::new(), false)];
        while let Some((directory, above, is_inside)) = directories.pop() {
            for entry in entries_of(page, directory)? {
                let path = joined(&above, entry.name.as_bytes());
                let is_directory = entry.kind == NodeKind::Directory;
                let place = Place {
                    parent: directory,
                    name: entry.name,
                };
                let named = Named {
                    place: &place,
                    path: &path,
                    node: entry.node,
                    is_directory,
                };
                let is_hidden = is_inside || hides(&named);
                if !is_directory && !files.insert(entry.node) {
                    found.linked.insert(entry.node);
                }
                if is_hidden {
                    let hidden = found.nodes.entry(entry.node).or_default();
                    *hidden = hidden.saturating_add(1);
                    if is_withheld(directory) {
                        found.holding.insert(directory);
                    }
                    if !is_inside {
                        found.tops.push(NameChange {
                            parent: directory,
                            name: place.name,
                            child: Some(entry.node),
                        });
                    }
                } else if is_withheld(entry.node) {
                    found.seen.insert(entry.node, directory);
                } else if is_withheld(directory) {
                    found.shown_in.insert(directory);
                }
                if is_directory {
                    directories.push((entry.node, path, is_hidden));
                }
            }
            if !is_inside {
                found.directories.push((directory, above));
            }
        }
        Ok(found)
    }
}

/// The log's report of a cut, as far as it concerns ignored files.
#[derive(Default)]
pub(super) struct CutReport {
    /// Whether a file that states rules was changed.
    pub(super) has_sources: bool,
    /// Whether a directory has another name; the log does not say if the server knew it.
    pub(super) has_moved: bool,
    /// Nodes that are new since the mark.
    pub(super) new: HashSet<NodeId>,
    /// Names that changed.
    pub(super) names: BTreeMap<Place<NodeId>, Option<NodeId>>,
}

impl CutReport {
    pub(super) fn at(
        tree: &dyn TreeService,
        cut: CutId,
        sources: &HashSet<NodeId>,
        also: &[NameChange<NodeId>],
    ) -> Result<Self> {
        let mut reported = Self::default();
        let mut cursor = ChangesCursor::default();
        reported.names(tree, cut, also.to_vec())?;
        loop {
            let page = tree.changes(cut, &cursor)?;
            reported.has_sources |= page.nodes.iter().any(|change| sources.contains(&change.node));
            let new = page.nodes.iter().filter(|change| change.is_new);
            reported.new.extend(new.map(|change| change.node));
            reported.names(tree, cut, page.names)?;
            match page.next {
                Some(next) if next != cursor => cursor = next,
                _ => return Ok(reported),
            }
        }
    }

    fn names(&mut self, tree: &dyn TreeService, cut: CutId, names: Vec<NameChange<NodeId>>) -> Result<()> {
        let mut moved = Vec::new();
        for name in names {
            self.has_sources |= is_source_name(&name.name);
            moved.extend(name.child);
            let place = Place {
                parent: name.parent,
                name: name.name,
            };
            self.names.insert(place, name.child);
        }
        for moved in moved.chunks(NODES_AT_ONCE) {
            if self.has_moved {
                break;
            }
            let names = tree.names(cut, moved)?;
            self.has_moved = names.iter().any(|names| names.kind == Some(NodeKind::Directory));
        }
        Ok(())
    }
}
