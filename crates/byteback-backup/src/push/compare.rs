//! The local tree beside the server's: differences go into the batch as they are found.
//!
//! Directories are taken one after the other; of each, the names of both ends are merged in byte
//! order, so the same two trees make the same batch. A directory that cannot be listed here is left
//! at the server as it is, even with removing on: its entries are unknown.
//!
//! Directories that are equal, by one digest each, are not listed (`equal`).
//!
//! New names and changed contents wait until the directories that both ends have were compared
//! (`late`), because they may be at the server under other names (`known`, `elsewhere`).

mod contents;
mod elsewhere;
mod equal;
mod known;
mod late;

use super::Job;
use super::destination::{Place, made_directory};
use super::names::ComparedNames;
use super::report::PushReport;
use super::resume::Record;
use crate::backup::{ContentSender, DeltaChoice, PartStream, UnsavedFile};
use crate::error::{BackupError, Result};
use crate::local_node::LocalNode;
use crate::monitor::{Change, Event, check_cancelled};
use crate::restore::{is_partial_name, mark_ancestors};
use crate::tree_reader::{TreeReader, join_path};
use byteback_api::Digest;
use byteback_api::messages::EntryInfo;
use byteback_host::tree::{self, Descent};
use byteback_model::{Attributes, ByteString, FileId, NameChange, NodeInfo, NodeKind, NodeRecord};
use equal::EqualDirectories;
use known::{Elsewhere, LOOSE_MAX, Later, Loose, Removal};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::iter::Peekable;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Most names that wait for the second round.
const LATER_MAX: usize = 100_000;

/// A directory to compare.
struct Directory {
    /// Below the source.
    path: Vec<u8>,
    id: FileId,
    /// Whether the server has it.
    is_there: bool,
    /// Whether the server has it under another path: it is a guess which one it is.
    is_moved: bool,
}

/// A name in a directory being compared.
struct Name<'d> {
    dir: &'d OwnedFd,
    parent: FileId,
    name: OsString,
    /// Below the source.
    path: Vec<u8>,
    /// Whether its directory was moved.
    is_moved: bool,
}

pub(super) struct Comparison<'a, 'scope, 'env> {
    job: &'a Job<'a>,
    record: &'a Record,
    /// The folder's root.
    root: Option<FileId>,
    /// `None`: nothing is sent, only counted.
    stream: Option<PartStream<'scope, 'env>>,
    contents: ContentSender<'a>,
    report: &'a mut PushReport,
    /// Path of the source at the server, for new identities.
    at_server: Vec<u8>,
    /// The file system of the source.
    device: u64,
    /// Nodes of the server whose identity is taken by a local inode.
    taken: HashSet<FileId>,
    elsewhere: Elsewhere,
    equal: EqualDirectories,
    /// Local inodes with several names, and their files at the server; `None`: they could not be
    /// sent.
    linked: HashMap<(u64, u64), Option<FileId>>,
    /// The source and its directory at the server, if it is a directory that the server has.
    compared_dirs: Option<(OwnedFd, FileId)>,
    /// The compared names of files that have several, once they are needed.
    compared_names: Option<ComparedNames>,
    /// Contents that went without a proof, while parts of an earlier run are used.
    unproven: Vec<(FileId, Digest)>,
    /// The amount of work, as far as is known.
    totals: (u64, u64),
}

impl<'a, 'scope, 'env> Comparison<'a, 'scope, 'env> {
    pub(super) fn new(
        job: &'a Job<'a>,
        record: &'a Record,
        stream: Option<PartStream<'scope, 'env>>,
        proof_refused: bool,
        report: &'a mut PushReport,
    ) -> Self {
        let base = (job.server, job.folder, record.begun().base_seq);
        Self {
            job,
            record,
            root: None,
            stream,
            contents: ContentSender::new(
                base,
                (job.options.device, job.options.delta, job.options.processor_share),
                proof_refused,
                job.monitor,
            ),
            report,
            at_server: Vec::new(),
            device: 0,
            taken: HashSet::new(),
            elsewhere: Elsewhere {
                is_sought: !proof_refused && job.options.delta != DeltaChoice::Full,
                is_gathering: false,
                ..Elsewhere::default()
            },
            equal: EqualDirectories::default(),
            linked: HashMap::new(),
            compared_dirs: None,
            compared_names: None,
            unproven: Vec::new(),
            totals: (0, 0),
        }
    }

    pub(super) fn into_stream(self) -> Option<PartStream<'scope, 'env>> {
        self.stream
    }

    /// Compares the source with its place.
    pub(super) fn run(&mut self, local: &LocalNode, place: &Place) -> Result<()> {
        self.device = local.stat.dev;
        self.root = Some(place.root);
        self.at_server.clone_from(&place.path);
        for (id, above) in &place.missing {
            let attributes = made_directory(self.record.begun().created_ns);
            self.node(*id, attributes)?;
            if let Some((parent, name)) = above {
                self.entry(*parent, name.clone(), Some(*id))?;
            }
            self.report.dirs_new += 1;
        }
        let Some((name, there)) = &place.file else {
            return self.tree(local, place);
        };
        let source = self.job.source;
        let cannot = |error| BackupError::local("open", source.display().to_string(), error);
        // Symlinks on the way to it are followed, and so is the file itself if it is one.
        let file = std::fs::canonicalize(source).map_err(cannot)?;
        let above = file.parent().unwrap_or(Path::new("/"));
        let own_name = file.file_name().unwrap_or_default().to_owned();
        let dir = OwnedFd::from(std::fs::File::open(above).map_err(cannot)?);
        let place_of = Name {
            dir: &dir,
            parent: place.dir,
            name: own_name,
            path: name.as_bytes().to_vec(),
            is_moved: false,
        };
        let there = there.clone().map(|node| EntryInfo {
            name: name.clone(),
            node,
        });
        self.name(&place_of, name, there.as_ref()).map(drop)
    }

    /// Compares a whole tree.
    fn tree(&mut self, local: &LocalNode, place: &Place) -> Result<()> {
        let source = self.job.source;
        let cannot = |error| BackupError::local("read", source.display().to_string(), error);
        let attributes = local.attributes().map_err(cannot)?;
        self.count_total(0);
        match &place.dir_node {
            None => {
                self.node(place.dir, attributes)?;
                if let Some((parent, name)) = &place.above {
                    self.entry(*parent, name.clone(), Some(place.dir))?;
                }
                self.report.dirs_new += 1;
                self.tell(b"", Change::New);
            }
            Some(node) => self.existing(place.dir, b"", attributes, &node.attributes)?,
        }
        let root = local.fd().try_clone().map_err(cannot)?;
        if place.dir_node.is_some() {
            self.compared_dirs = Some((root.try_clone().map_err(cannot)?, place.dir));
        }
        // A source that cannot be listed is an error; any other directory only counts as a failure.
        tree::read_dir(&root, 0).map_err(cannot)?;
        if place.dir_node.is_some() {
            self.find_equal(&root, place.dir)?;
        }
        let mut reader = self.reader();
        let mut way = Descent::new(&root).map_err(cannot)?;
        let whole = Directory {
            path: Vec::new(),
            id: place.dir,
            is_there: place.dir_node.is_some(),
            is_moved: false,
        };
        self.taken.insert(place.dir);
        self.elsewhere.is_sought &= whole.is_there;
        self.elsewhere.is_gathering = self.elsewhere.is_sought;
        self.walk(&mut way, vec![whole], &mut reader)?;
        self.late(&mut way, &mut reader)
    }

    /// Compares directories with everything below them, except for what waits.
    fn walk(&mut self, way: &mut Descent, mut to_do: Vec<Directory>, reader: &mut TreeReader<'_>) -> Result<()> {
        while let Some(directory) = to_do.pop() {
            if self.skips(&directory) {
                continue;
            }
            let mut below = self.directory(way, &directory, reader)?;
            // The first one comes next.
            below.reverse();
            to_do.extend(below);
        }
        Ok(())
    }

    /// Compares the names of a directory; returns the directories in it.
    fn directory(
        &mut self,
        way: &mut Descent,
        directory: &Directory,
        reader: &mut TreeReader<'_>,
    ) -> Result<Vec<Directory>> {
        check_cancelled(self.job.monitor)?;
        let listed = way.open(&directory.path).and_then(|dir| Ok((names_in(&dir)?, dir)));
        let (names, dir) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                self.failed(&directory.path, &error.to_string());
                return Ok(Vec::new());
            }
        };
        let mut at_server = Vec::new();
        if let Some(listed) = self.elsewhere.listed.remove(&directory.id) {
            at_server = listed;
        } else if directory.is_there {
            reader.entries(directory.id, &directory.path, |entry| {
                at_server.push(entry);
                Ok(())
            })?;
        }
        if self.elsewhere.is_gathering {
            at_server.iter().for_each(|entry| self.elsewhere.known.add(&entry.node));
        }
        if directory.is_moved {
            // Names that it has still belong to it.
            for entry in &at_server {
                let name = OsStr::from_bytes(entry.name.as_bytes());
                if names.binary_search_by(|known| known.as_os_str().cmp(name)).is_ok() {
                    self.elsewhere.loose.take(entry.node.id);
                }
            }
        }
        self.prepare_directory(&dir, (&names, directory.is_moved), &at_server)?;
        let mut at_server = at_server.into_iter().peekable();
        let mut below = Vec::new();
        for name in names {
            check_cancelled(self.job.monitor)?;
            let there = self.others_before(name.as_bytes(), directory, &mut at_server)?;
            let shown = ByteString::from(name.as_bytes());
            let place = Name {
                dir: &dir,
                parent: directory.id,
                path: join_path(&directory.path, name.as_bytes()),
                name,
                is_moved: directory.is_moved,
            };
            below.extend(self.name(&place, &shown, there.as_ref())?);
        }
        for entry in at_server {
            self.other(directory, entry)?;
        }
        Ok(below)
    }

    /// Deals with the server's names before `name`; returns its entry of that name.
    fn others_before(
        &mut self,
        name: &[u8],
        directory: &Directory,
        at_server: &mut Peekable<impl Iterator<Item = EntryInfo>>,
    ) -> Result<Option<EntryInfo>> {
        while let Some(entry) = at_server.next_if(|entry| entry.name.as_bytes() <= name) {
            match entry.name.as_bytes().cmp(name) {
                Ordering::Equal => return Ok(Some(entry)),
                _ => self.other(directory, entry)?,
            }
        }
        Ok(None)
    }

    /// Deals with a name that only the server has.
    fn other(&mut self, directory: &Directory, entry: EntryInfo) -> Result<()> {
        let path = join_path(&directory.path, entry.name.as_bytes());
        if !self.job.options.delete {
            let is_directory = entry.node.attributes.kind == NodeKind::Directory;
            if self.elsewhere.is_gathering && !self.job.options.exclude.is_excluded(&path, is_directory) {
                self.elsewhere.only_there(&entry, &path);
            }
            return Ok(());
        }
        // For all directories at once: asked one by one, a deep tree would be listed as often as it
        // is deep.
        let holding = self.holding_excluded(&entry, &path)?;
        let mut to_do = vec![(directory.id, path, entry)];
        while let Some((dir, path, entry)) = to_do.pop() {
            let is_directory = entry.node.attributes.kind == NodeKind::Directory;
            if self.job.options.exclude.is_excluded(&path, is_directory) {
                continue;
            }
            if holding.contains(&path) {
                self.reader().entries(entry.node.id, &path, |below| {
                    if self.elsewhere.is_gathering {
                        self.elsewhere.known.add(&below.node);
                    }
                    to_do.push((entry.node.id, join_path(&path, below.name.as_bytes()), below));
                    Ok(())
                })?;
                continue;
            }
            self.gone(dir, path, entry)?;
        }
        Ok(())
    }

    /// Removes a name at the server, or notes it for the end: its node may have another name here.
    fn gone(&mut self, parent: FileId, path: Vec<u8>, entry: EntryInfo) -> Result<()> {
        let elsewhere = &mut self.elsewhere;
        if !elsewhere.is_sought || elsewhere.removals.len() >= LOOSE_MAX {
            elsewhere.loose.take(entry.node.id);
            elsewhere.removals.remove(&(parent, entry.name.clone()));
            self.entry(parent, entry.name, None)?;
            self.report.removed += 1;
            self.tell(&path, Change::Removed);
            return Ok(());
        }
        let key = (parent, entry.name.clone());
        if elsewhere.removals.contains_key(&key) {
            return Ok(());
        }
        if elsewhere.is_gathering {
            elsewhere.only_there(&entry, &path);
        }
        let is_moved = self.taken.contains(&entry.node.id);
        elsewhere.removals.insert(
            key,
            Removal {
                path: path.clone(),
                is_moved,
            },
        );
        if !is_moved {
            elsewhere.loose.add(Loose {
                parent,
                name: entry.name,
                path,
                node: entry.node,
            });
        }
        Ok(())
    }

    /// The directories at the server from `entry` on, itself included, that hold an excluded node:
    /// these stay.
    fn holding_excluded(&self, entry: &EntryInfo, path: &[u8]) -> Result<HashSet<Vec<u8>>> {
        let exclude = &self.job.options.exclude;
        let mut holding = HashSet::new();
        if exclude.is_empty() || entry.node.attributes.kind != NodeKind::Directory {
            return Ok(holding);
        }
        let mut reader = self.reader();
        let mut to_do = vec![(entry.node.id, path.to_vec())];
        while let Some((dir, dir_path)) = to_do.pop() {
            reader.entries(dir, &dir_path, |below| {
                let below_path = join_path(&dir_path, below.name.as_bytes());
                let is_directory = below.node.attributes.kind == NodeKind::Directory;
                if exclude.is_excluded(&below_path, is_directory) {
                    mark_ancestors(&mut holding, &dir_path, path.len());
                } else if is_directory {
                    to_do.push((below.node.id, below_path));
                }
                check_cancelled(self.job.monitor)
            })?;
        }
        Ok(holding)
    }

    /// Reads the server's directories.
    fn reader(&self) -> TreeReader<'a> {
        let reader = TreeReader::new(self.job.server, self.job.folder, self.record.begun().base_seq);
        reader.with_root(self.root)
    }

    /// Compares a name here with the server's; returns a directory that is to be looked into.
    fn name(
        &mut self,
        place: &Name<'_>,
        name_there: &ByteString,
        there: Option<&EntryInfo>,
    ) -> Result<Option<Directory>> {
        let options = self.job.options;
        let opened = LocalNode::open(place.dir, &place.name).and_then(|node| Ok((node.attributes()?, node)));
        let (attributes, node) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // Whether it is excluded may depend on its kind.
                if !options.exclude.is_excluded(&place.path, false) {
                    self.failed(&place.path, &error.to_string());
                }
                return Ok(None);
            }
        };
        let is_directory = node.kind() == NodeKind::Directory;
        if self.is_left_alone(&place.path, &node) {
            return Ok(None);
        }
        let same_kind = there.filter(|entry| entry.node.attributes.kind == node.kind());
        if let Some(entry) = there
            && same_kind.is_none()
            && entry.node.attributes.kind == NodeKind::Directory
        {
            let why = match options.delete {
                false => Some("the server has a directory of this name; --delete replaces it"),
                true if options.exclude.is_excluded(&place.path, true)
                    || !self.holding_excluded(entry, &place.path)?.is_empty() =>
                {
                    Some("the server has a directory of this name that is excluded or holds excluded files")
                }
                true => None,
            };
            if let Some(why) = why {
                self.failed(&place.path, why);
                return Ok(None);
            }
        }
        if self.waits(place, there, &node) {
            return Ok(None);
        }
        if is_directory {
            return self
                .a_directory(place, name_there, same_kind, (node, attributes))
                .map(Some);
        }
        let inode = (node.stat.dev, node.stat.ino);
        let has_names = node.stat.nlink > 1;
        if has_names && let Some(linked) = self.linked.get(&inode) {
            match *linked {
                Some(id) => self.further_name(place, name_there, id, there)?,
                None => self.failed(&place.path, "it is a hard link to a file that could not be sent"),
            }
            return Ok(None);
        }
        // An identity that another local inode has taken already belongs to that one.
        let mut same = same_kind.filter(|entry| self.taken.insert(entry.node.id));
        let mut node = node;
        if let Some(entry) = same
            && self.changes_other_names(&mut node, &attributes, &entry.node, place.is_moved)?
        {
            self.taken.remove(&entry.node.id);
            same = None;
        }
        let id = same.map_or_else(|| self.new_id(&place.path), |entry| entry.node.id);
        let sent = self.file(place, node, id, same.map(|entry| &entry.node))?;
        if has_names {
            self.linked.insert(inode, sent);
        }
        if let Some(id) = sent.filter(|_| same.is_none()) {
            self.entry(place.parent, name_there.clone(), Some(id))?;
        }
        Ok(None)
    }

    /// Whether a node is neither sent nor removed: an excluded one, or one of another file system.
    fn is_left_alone(&self, path: &[u8], node: &LocalNode) -> bool {
        let options = self.job.options;
        let is_directory = node.kind() == NodeKind::Directory;
        let is_elsewhere = options.one_file_system && is_directory && node.stat.dev != self.device;
        is_elsewhere || options.exclude.is_excluded(path, is_directory)
    }

    /// Whether a name waits for the second round: the server has its node under no name that was
    /// met here, or its content not under this one.
    fn waits(&mut self, place: &Name<'_>, there: Option<&EntryInfo>, node: &LocalNode) -> bool {
        let elsewhere = &mut self.elsewhere;
        if !elsewhere.is_gathering || elsewhere.later.len() >= LATER_MAX {
            return false;
        }
        let stat = &node.stat;
        let is_known = there.is_some_and(|entry| {
            let there = &entry.node.attributes;
            there.kind == stat.kind
                && (stat.kind != NodeKind::File || (there.size, there.mtime_ns) == (stat.size, stat.mtime_ns))
        });
        let may_be_elsewhere = match stat.kind {
            NodeKind::File => stat.size > 0,
            kind => kind == NodeKind::Directory,
        };
        if is_known || !may_be_elsewhere {
            return false;
        }
        elsewhere.later.push(Later {
            parent: place.parent,
            path: place.path.clone(),
            is_directory: stat.kind == NodeKind::Directory,
            size: stat.size,
            mtime_ns: stat.mtime_ns,
            there: there.cloned().map(Box::new),
        });
        true
    }

    /// Sends a directory itself.
    fn a_directory(
        &mut self,
        place: &Name<'_>,
        name_there: &ByteString,
        same_kind: Option<&EntryInfo>,
        (node, attributes): (LocalNode, Attributes),
    ) -> Result<Directory> {
        self.count_total(0);
        let directory = |id: FileId, is_there: bool, is_moved: bool| Directory {
            path: place.path.clone(),
            id,
            is_there,
            is_moved,
        };
        // Another directory here may have its identity, if its parent was moved.
        if let Some(entry) = same_kind.filter(|entry| self.taken.insert(entry.node.id)) {
            self.existing(entry.node.id, &place.path, attributes, &entry.node.attributes)?;
            return Ok(directory(entry.node.id, true, place.is_moved));
        }
        if let Some(loose) = self.claim_directory(name_there, &node, &attributes) {
            let id = loose.node.id;
            if !is_same_as_told(&attributes, &loose.node.attributes) {
                self.node(id, attributes)?;
            }
            self.entry(place.parent, name_there.clone(), Some(id))?;
            self.report.dirs_moved += 1;
            self.tell(&place.path, Change::Moved);
            return Ok(directory(id, true, true));
        }
        let id = self.new_id(&place.path);
        self.node(id, attributes)?;
        self.entry(place.parent, name_there.clone(), Some(id))?;
        self.report.dirs_new += 1;
        self.tell(&place.path, Change::New);
        Ok(directory(id, false, false))
    }

    /// Whether making a file of the server equal to this one would change names that are not
    /// compared.
    fn changes_other_names(
        &mut self,
        node: &mut LocalNode,
        here: &Attributes,
        there: &NodeInfo,
        is_moved: bool,
    ) -> Result<bool> {
        if there.names.is_none() {
            return Ok(false);
        }
        if is_same_as_told(here, &there.attributes) {
            let is_other = here.kind == NodeKind::File && (self.job.options.checksum || is_moved);
            // An unreadable file is not sent either.
            if !is_other || !self.is_other_content(node, there, is_moved)?.unwrap_or(false) {
                return Ok(false);
            }
        }
        if self.compared_names.is_none() {
            let names = match &self.compared_dirs {
                Some((local, dir)) => ComparedNames::below(self.job, &mut self.reader(), *dir, local)?,
                None => ComparedNames::default(),
            };
            self.compared_names = Some(names);
        }
        let names = self.compared_names.as_ref();
        Ok(names.is_some_and(|names| names.leave_out_some_of(there, 1)))
    }

    /// Sends a further name of a file that is at the server, or in the batch.
    fn further_name(
        &mut self,
        place: &Name<'_>,
        name_there: &ByteString,
        id: FileId,
        there: Option<&EntryInfo>,
    ) -> Result<()> {
        if there.is_some_and(|entry| entry.node.id == id) {
            self.report.unchanged += 1;
            return Ok(());
        }
        self.entry(place.parent, name_there.clone(), Some(id))?;
        self.report.others_new += 1;
        self.tell(&place.path, Change::New);
        Ok(())
    }

    /// Sends the attributes of a node with the same content as at the server, if they differ.
    fn existing(&mut self, id: FileId, path: &[u8], here: Attributes, there: &Attributes) -> Result<()> {
        if is_same_as_told(&here, there) {
            self.report.unchanged += 1;
            self.job.monitor.event(Event::FileDone { path: None });
            return Ok(());
        }
        self.node(id, here)?;
        self.report.attributes_changed += 1;
        self.tell(path, Change::Attributes);
        Ok(())
    }

    fn new_id(&self, path: &[u8]) -> FileId {
        self.record.begun().node_id(&join_path(&self.at_server, path))
    }

    fn node(&mut self, id: FileId, attributes: Attributes) -> Result<()> {
        let record = NodeRecord {
            id,
            attributes,
            content: None,
        };
        self.stream.as_mut().map_or(Ok(()), |stream| stream.node(&record))
    }

    fn entry(&mut self, parent: FileId, name: ByteString, child: Option<FileId>) -> Result<()> {
        if child.is_some() && !self.elsewhere.removals.is_empty() {
            // Each name is sent once.
            self.elsewhere.removals.remove(&(parent, name.clone()));
        }
        let record = NameChange { parent, name, child };
        self.stream.as_mut().map_or(Ok(()), |stream| stream.entry(&record))
    }

    fn count_total(&mut self, bytes: u64) {
        self.totals.0 += 1;
        self.totals.1 += bytes;
        let (files, bytes) = self.totals;
        self.job.monitor.event(Event::Totals { files, bytes });
    }

    fn tell(&self, path: &[u8], change: Change) {
        let path = match path {
            b"" => ByteString::from("."),
            path => ByteString::from(path),
        };
        self.job.monitor.event(Event::Changed { path: &path, change });
        self.job.monitor.event(Event::FileDone { path: None });
    }

    fn failed(&mut self, path: &[u8], reason: &str) {
        let file = UnsavedFile {
            path: ByteString::from(path),
            reason: reason.to_owned(),
        };
        self.job.monitor.event(Event::FileFailed {
            path: &file.path,
            reason: &file.reason,
        });
        self.report.unsaved.push(file);
    }
}

/// The names in a directory that are compared, in byte order.
fn names_in(dir: &OwnedFd) -> io::Result<Vec<OsString>> {
    let names: io::Result<Vec<OsString>> = tree::read_dir(dir, 0)?
        .map(|entry| entry.map(|entry| entry.name))
        .collect();
    let mut names = names?;
    // Leftovers of an interrupted pull are not the user's.
    names.retain(|name| !is_partial_name(name.as_bytes()));
    names.sort_unstable();
    Ok(names)
}

/// Whether attributes equal the server's. Names of owners are sent by some clients and count for
/// nothing here.
fn is_same_as_told(here: &Attributes, there: &Attributes) -> bool {
    let there = Attributes {
        user: None,
        group: None,
        ..there.clone()
    };
    *here == there
}
