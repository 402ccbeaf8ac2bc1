//! Which file of the server a file follows when everything has to be sent: the one that lies, or
//! lay, at the same path; or, for large files, a similar one that lies elsewhere ([`moved`]).
//!
//! The log that knew the server's state is gone, or is another one: all identities are new to the
//! server. But mostly the folder's files are still what they were, at the same places. So a file is
//! looked for in the server's file *at its path*, if there is one; any of its names will do.
//! Nothing rests on it being the right one: whatever is taken from it is proven as a whole like
//! everything that is found by checksums ([`super::examine`]), and a wrong guess costs one look.
//!
//! *Short files* are not looked for in each other: those that have the length of the file at their
//! path are compared with it as a whole, by digests, many of which the server returns at once
//! ([`Followed::prepare_short`]). Equal files are not sent.
//!
//! *Cost.* Of long files, only files that the planner would look for are asked about. The first
//! ones of a directory are asked for by their paths; where there are more, the directory's first
//! page at the server is fetched and kept, which answers for all names up to its last. So a tree
//! costs about a request for each directory, a vast directory one for each of its large files.
//! Memory: [`DIRS_KEPT`] pages.
//!
//! *Failing.* If the tree or the server fails once, neither is asked again: files that were not
//! found are sent as they are.

mod moved;

use super::Job;
use crate::decisions::Cause;
use crate::monitor::{Event, Monitor};
use crate::tree_reader::join_path;
use byteback_api::messages::{DIGESTS_MAX, TreePage};
use byteback_client::TreePlace;
use byteback_client::{ServerError, ServerErrorKind};
use byteback_control::CutId;
use byteback_delta::DIGEST_LEN;
use byteback_model::{Attributes, ByteString, FileId, NodeId, NodeInfo, NodeKind, Seq};
use moved::LargeFiles;
use std::collections::{HashMap, VecDeque};

/// Directories of the server that are remembered.
const DIRS_KEPT: usize = 32;

/// Paths of local directories that are remembered.
const PARENTS_KEPT: usize = 4096;

/// Files of a directory that are asked for by their paths before its page is fetched.
const ASKED_SINGLY: u32 = 2;

/// Names of one directory that are remembered for its short files.
const NAMES_KEPT: usize = 100_000;

/// A file with more names than this is looked for under the first ones.
const NAMES_MAX: usize = 4;

/// Longer paths are not asked about: they would not fit into a request.
const PATH_LEN_MAX: usize = 4096;

/// Finds files of the server by the paths of files of a cut.
pub(super) struct Followed<'a> {
    job: &'a Job<'a>,
    cut: CutId,
    /// The moment of the server's tree.
    at: Seq,
    /// Names of the files that come next, with their directories.
    names: HashMap<NodeId, Vec<(NodeId, ByteString)>>,
    /// Paths of directories of the cut.
    parents: HashMap<NodeId, Option<ByteString>>,
    /// Directories of the server, the newest last.
    dirs: VecDeque<Dir>,
    /// The server's large files, once a file was not found at its path.
    large: Option<LargeFiles>,
    /// Short files that come next: the server's files at their paths.
    short: HashMap<NodeId, ShortFile>,
    has_stopped: bool,
}

/// A short file of the server that one here may be equal to.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortFile {
    pub(super) id: FileId,
    pub(super) digest: [u8; DIGEST_LEN],
    /// Why it is worth a look.
    pub(super) cause: Cause,
}

/// A file of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FollowedFile {
    pub(super) id: FileId,
    /// Why it is worth a look.
    pub(super) cause: Cause,
}

/// A directory of the server.
struct Dir {
    path: Vec<u8>,
    /// Number of its files that were asked for by their paths.
    asked: u32,
    page: Option<Names>,
}

/// The first pages of a directory: its files that have contents, with their lengths.
#[derive(Default)]
struct Names {
    files: HashMap<Vec<u8>, (FileId, u64)>,
    /// Names behind this one are unknown; `None`: there are none.
    known_upto: Option<Vec<u8>>,
    /// Where the next page begins.
    next: Option<String>,
}

impl Names {
    fn knows(&self, name: &[u8]) -> bool {
        self.known_upto.as_deref().is_none_or(|upto| name <= upto)
    }
}

impl<'a> Followed<'a> {
    /// For files of `cut` in the server's folder at the moment `at`.
    pub(super) fn new(job: &'a Job<'a>, cut: CutId, at: Seq) -> Self {
        Self {
            job,
            cut,
            at,
            names: HashMap::new(),
            parents: HashMap::new(),
            dirs: VecDeque::new(),
            large: None,
            short: HashMap::new(),
            has_stopped: false,
        }
    }

    /// Prepares for these files, which come next.
    pub(super) fn prepare(&mut self, files: &[NodeId]) {
        self.names.clear();
        if self.has_stopped || files.is_empty() {
            return;
        }
        let Ok(reported) = self.job.tree.names(self.cut, files) else {
            self.has_stopped = true;
            return;
        };
        self.names = files
            .iter()
            .copied()
            .zip(reported.into_iter().map(|reported| reported.names))
            .collect();
    }

    /// Prepares for these short files, each with its length, which come next: asks for the server's
    /// files at their paths, and for the digests of those.
    pub(super) fn prepare_short(&mut self, files: &[(NodeId, u64)]) {
        self.short.clear();
        let nodes: Vec<NodeId> = files.iter().map(|(node, _)| *node).collect();
        if self.has_stopped || nodes.is_empty() {
            return;
        }
        let Ok(reported) = self.job.tree.names(self.cut, &nodes) else {
            self.has_stopped = true;
            return;
        };
        let mut found = Vec::new();
        for ((node, size), names) in files.iter().zip(reported) {
            for (parent, name) in names.names.iter().take(NAMES_MAX) {
                if self.has_stopped {
                    return;
                }
                let Some(dir) = self.path_of(*parent) else { continue };
                match self.short_at_server(dir.as_bytes(), name.as_bytes()) {
                    Ok(Some((id, there))) if there == *size => {
                        found.push((*node, id));
                        break;
                    }
                    Ok(_) => {}
                    Err(error) => self.stop_asking(&error),
                }
            }
        }
        for some in found.chunks(DIGESTS_MAX) {
            let ids: Vec<FileId> = some.iter().map(|(_, id)| *id).collect();
            match self.job.server.digests(self.job.folder, self.at, &ids) {
                Ok(digests) => {
                    let known = some.iter().zip(digests);
                    let known = known.filter_map(|((node, id), digest)| {
                        let (id, digest) = (*id, digest?);
                        let cause = Cause::SamePath;
                        Some((*node, ShortFile { id, digest, cause }))
                    });
                    self.short.extend(known);
                }
                Err(error) => return self.stop_asking(&error),
            }
        }
    }

    /// The server's file for a short file that was prepared.
    pub(super) fn short(&mut self, node: NodeId) -> Option<ShortFile> {
        self.short.remove(&node)
    }

    /// A short file of the server and its length. Directories are read page by page: where one
    /// short file is, there are more.
    fn short_at_server(&mut self, dir: &[u8], name: &[u8]) -> Result<Option<(FileId, u64)>, ServerError> {
        let index = self.dirs.iter().position(|known| known.path == dir);
        let mut known = match index.and_then(|index| self.dirs.remove(index)) {
            Some(known) => known,
            None => Dir {
                path: dir.to_vec(),
                asked: 0,
                page: None,
            },
        };
        let read = self.read_upto(&mut known, name);
        let found = known.page.as_ref().and_then(|page| page.files.get(name).copied());
        if self.dirs.len() >= DIRS_KEPT {
            self.dirs.pop_front();
        }
        self.dirs.push_back(known);
        read.map(|()| found)
    }

    /// Reads on in a directory of the server until a name is known, or a limit is reached.
    fn read_upto(&self, dir: &mut Dir, name: &[u8]) -> Result<(), ServerError> {
        let page = match &mut dir.page {
            Some(page) => page,
            none => none.insert(self.first_page(&dir.path)?),
        };
        while !page.knows(name) && page.files.len() < NAMES_KEPT {
            let Some(cursor) = page.next.take() else { return Ok(()) };
            let Some(next) = self.page_of(TreePlace::Path(&dir.path), Some(&cursor))? else {
                return Ok(());
            };
            let next = Names::of(next);
            // Pages ascend; pages that do not would never end.
            if next.known_upto.is_some() && next.known_upto <= page.known_upto {
                return Ok(());
            }
            page.files.extend(next.files);
            (page.known_upto, page.next) = (next.known_upto, next.next);
        }
        Ok(())
    }

    fn first_page(&self, path: &[u8]) -> Result<Names, ServerError> {
        let page = self.page(path)?;
        let page = page.filter(|page| page.node.attributes.kind == NodeKind::Directory);
        Ok(page.map(Names::of).unwrap_or_default())
    }

    /// The server's file at the path of this one, which was prepared; or a similar one.
    pub(super) fn find(&mut self, node: NodeId, attributes: &Attributes) -> Option<FollowedFile> {
        let names = self.names.remove(&node)?;
        if let Some(id) = self.find_at_paths(&names) {
            let cause = Cause::SamePath;
            return Some(FollowedFile { id, cause });
        }
        let (_, name) = names.first()?;
        if self.has_stopped || attributes.size < self.job.options.limits.moved_len_min_bytes {
            return None;
        }
        if self.large.is_none() {
            let listed = LargeFiles::list(&self.job.options.limits, &|place, cursor| self.page_of(place, cursor));
            let listed = listed.map_err(|error| self.stop_asking(&error)).ok();
            self.large = Some(listed.unwrap_or_default());
        }
        let (tree, cut) = (self.job.tree, self.cut);
        let is_here = |path: &[u8]| !matches!(tree.find(cut, &ByteString::from(path)), Ok(None));
        let id = self.large.as_ref()?.find(attributes, name.as_bytes(), is_here)?;
        let cause = Cause::Moved;
        Some(FollowedFile { id, cause })
    }

    /// Warns, and asks nothing more.
    fn stop_asking(&mut self, error: &ServerError) {
        self.has_stopped = true;
        self.job.monitor.event(Event::Warning(&format!(
            "the server cannot report what it has ({}); sending everything that remains",
            error.message
        )));
    }

    fn find_at_paths(&mut self, names: &[(NodeId, ByteString)]) -> Option<FileId> {
        for (parent, name) in names.iter().take(NAMES_MAX) {
            if self.has_stopped {
                return None;
            }
            let Some(dir) = self.path_of(*parent) else { continue };
            if dir.as_bytes().len() + name.as_bytes().len() >= PATH_LEN_MAX {
                continue;
            }
            match self.at_server(dir.as_bytes(), name.as_bytes()) {
                Ok(Some(file)) => return Some(file),
                Ok(None) => {}
                Err(error) => self.stop_asking(&error),
            }
        }
        None
    }

    fn path_of(&mut self, dir: NodeId) -> Option<ByteString> {
        if let Some(path) = self.parents.get(&dir) {
            return path.clone();
        }
        if self.parents.len() >= PARENTS_KEPT {
            self.parents.clear();
        }
        let Ok(path) = self.job.tree.path(self.cut, dir) else {
            self.has_stopped = true;
            return None;
        };
        self.parents.insert(dir, path.clone());
        path
    }

    fn at_server(&mut self, dir: &[u8], name: &[u8]) -> Result<Option<FileId>, ServerError> {
        let index = self.dirs.iter().position(|known| known.path == dir);
        let mut known = match index.and_then(|index| self.dirs.remove(index)) {
            Some(known) => known,
            None => Dir {
                path: dir.to_vec(),
                asked: 0,
                page: None,
            },
        };
        let found = self.in_dir(&mut known, name);
        if self.dirs.len() >= DIRS_KEPT {
            self.dirs.pop_front();
        }
        self.dirs.push_back(known);
        found
    }

    fn in_dir(&self, dir: &mut Dir, name: &[u8]) -> Result<Option<FileId>, ServerError> {
        if dir.page.is_none() && dir.asked >= ASKED_SINGLY {
            dir.page = Some(self.first_page(&dir.path)?);
        }
        match &dir.page {
            Some(page) if page.knows(name) => Ok(page.files.get(name).map(|(id, _)| *id)),
            _ => {
                dir.asked = dir.asked.saturating_add(1);
                let page = self.page(&join_path(&dir.path, name))?;
                Ok(page.and_then(|page| file_with_contents(&page.node)))
            }
        }
    }

    /// The node at a path; `None` if the path leads to no node.
    fn page(&self, path: &[u8]) -> Result<Option<TreePage>, ServerError> {
        self.page_of(TreePlace::Path(path), None)
    }

    fn page_of(&self, place: TreePlace<'_>, cursor: Option<&str>) -> Result<Option<TreePage>, ServerError> {
        let page = self.job.server.tree_page(self.job.folder, self.at, place, cursor);
        match page {
            Ok(page) if page.at == self.at => Ok(Some(page)),
            Ok(page) => {
                let message = format!("sequence number {} was requested, {} came", self.at, page.at);
                Err(ServerError::protocol("GET tree", message))
            }
            // A path that the server does not accept does not exist there.
            Err(error) if matches!(error.kind, ServerErrorKind::NotFound | ServerErrorKind::Refused) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Names {
    fn of(page: TreePage) -> Self {
        let known_upto = match page.next_cursor {
            Some(_) => page.entries.last().map(|entry| entry.name.as_bytes().to_vec()),
            None => None,
        };
        let file = |entry: &byteback_api::messages::EntryInfo| {
            Some((file_with_contents(&entry.node)?, entry.node.attributes.size))
        };
        let files = page
            .entries
            .iter()
            .filter_map(|entry| Some((entry.name.as_bytes().to_vec(), file(entry)?)));
        Self {
            files: files.collect(),
            known_upto,
            next: page.next_cursor.clone(),
        }
    }
}

fn file_with_contents(node: &NodeInfo) -> Option<FileId> {
    let attributes = &node.attributes;
    (attributes.kind == NodeKind::File && attributes.size > 0).then_some(node.id)
}
