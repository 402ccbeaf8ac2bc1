//! Which file of the server a large file follows if it is not at the same path there: it was moved,
//! or renamed, since the log that would know is gone.
//!
//! A file with the same length and the same modification time to the nanosecond is taken for the
//! same file; else one with the same name, if it is the only one of this name whose path leads to
//! nothing here any more. A wrong guess costs one look, as ever: matches are proven.
//!
//! *Cost.* Only when a file of [`SearchLimits::moved_len_min_bytes`] and more is not found at its
//! path, the server's tree is listed, once: at most [`SearchLimits::listing_pages_max`] requests,
//! and [`SearchLimits::listing_files_max`] of its large files are remembered. Of a larger tree, the
//! first part in breadth-first order is known.

use super::super::limits::SearchLimits;
use crate::tree_reader::join_path;
use byteback_api::messages::TreePage;
use byteback_client::ServerError;
use byteback_client::TreePlace;
use byteback_model::{Attributes, FileId, NodeKind};
use std::collections::{HashMap, HashSet, VecDeque};

/// Most files that are remembered of one name.
const OF_A_NAME_MAX: usize = 8;

/// The large files of a tree of the server.
#[derive(Debug, Default)]
pub(super) struct LargeFiles {
    /// Length and modification time, and the first file with these.
    by_stamp: HashMap<(u64, i128), FileId>,
    /// Paths and files of each name.
    by_name: HashMap<Vec<u8>, Vec<(Vec<u8>, FileId)>>,
}

/// Asks for a page of a directory, with the cursor of the page before.
pub(super) type AskPage<'a> = &'a dyn Fn(TreePlace<'_>, Option<&str>) -> Result<Option<TreePage>, ServerError>;

impl LargeFiles {
    /// Lists the tree.
    pub(super) fn list(limits: &SearchLimits, ask: AskPage<'_>) -> Result<Self, ServerError> {
        let mut files = Self::default();
        let mut visited = HashSet::new();
        let (mut pages, mut kept) = (0, 0);
        // The root is asked for by its path.
        let mut to_do: VecDeque<(Option<FileId>, Vec<u8>)> = VecDeque::from([(None, Vec::new())]);
        while let Some((dir, path)) = to_do.pop_front() {
            let mut cursor: Option<String> = None;
            loop {
                if pages == limits.listing_pages_max || kept == limits.listing_files_max {
                    return Ok(files);
                }
                pages += 1;
                let place = dir.map_or(TreePlace::Path(b""), TreePlace::Node);
                let Some(page) = ask(place, cursor.as_deref())? else {
                    break;
                };
                for entry in page.entries {
                    let (name, node) = (entry.name.as_bytes(), entry.node);
                    let attributes = &node.attributes;
                    match attributes.kind {
                        NodeKind::Directory if visited.insert(node.id) && to_do.len() < limits.listing_pages_max => {
                            to_do.push_back((Some(node.id), join_path(&path, name)));
                        }
                        NodeKind::File
                            if attributes.size >= limits.moved_len_min_bytes / 2 && kept < limits.listing_files_max =>
                        {
                            kept += 1;
                            let stamp = (attributes.size, attributes.mtime_ns);
                            files.by_stamp.entry(stamp).or_insert(node.id);
                            let of_name = files.by_name.entry(name.to_vec()).or_default();
                            if of_name.len() < OF_A_NAME_MAX {
                                of_name.push((join_path(&path, name), node.id));
                            }
                        }
                        _ => {}
                    }
                }
                match page.next_cursor {
                    Some(next) if Some(&next) != cursor.as_ref() => cursor = Some(next),
                    _ => break,
                }
            }
        }
        Ok(files)
    }

    /// The file that one with these attributes and this name follows; `is_here` says whether there
    /// is a node at a path here.
    pub(super) fn find(&self, attributes: &Attributes, name: &[u8], is_here: impl Fn(&[u8]) -> bool) -> Option<FileId> {
        if let Some(file) = self.by_stamp.get(&(attributes.size, attributes.mtime_ns)) {
            return Some(*file);
        }
        let mut gone = self.by_name.get(name)?.iter().filter(|(path, _)| !is_here(path));
        let (_, file) = gone.next()?;
        gone.next().is_none().then_some(*file)
    }
}
