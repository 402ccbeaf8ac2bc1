//! The local tree beside the server's: differences go into the batch as they are found.
//!
//! Directories are taken one after the other; of each, the names of both ends are merged in byte
//! order, so the same two trees make the same batch. A directory that cannot be listed here is left
//! at the server as it is, even with removing on: its entries are unknown.

use super::Job;
use super::destination::{Place, made_directory};
use super::names::ComparedNames;
use super::report::PushReport;
use super::resume::Record;
use crate::backup::{ContentSender, PartStream, UnsavedFile};
use crate::error::{BackupError, Result};
use crate::local_node::{LocalContent, LocalNode};
use crate::monitor::{Change, Event, check_cancelled};
use crate::restore::{is_partial_name, mark_ancestors};
use crate::same_content::is_same_content;
use crate::tree_reader::{TreeReader, join_path};
use byteback_api::Digest;
use byteback_api::batch::ProofRecord;
use byteback_api::messages::EntryInfo;
use byteback_host::tree::{self, Descent};
use byteback_model::{Attributes, ByteString, FileId, NameChange, NodeInfo, NodeKind, NodeRecord};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::iter::Peekable;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Attempts to read a file that changes meanwhile.
const TRIES: usize = 2;

/// A directory to compare.
struct Directory {
    /// Below the source.
    path: Vec<u8>,
    id: FileId,
    /// Whether the server has it.
    is_there: bool,
}

/// A name in a directory being compared.
struct Name<'d> {
    dir: &'d OwnedFd,
    parent: FileId,
    name: OsString,
    /// Below the source.
    path: Vec<u8>,
}

pub(super) struct Comparison<'a, 'scope, 'env> {
    job: &'a Job<'a>,
    record: &'a Record,
    /// `None`: nothing is sent, only counted.
    stream: Option<PartStream<'scope, 'env>>,
    contents: ContentSender<'a>,
    report: &'a mut PushReport,
    /// Path of the source at the server, for new identities.
    at_server: Vec<u8>,
    /// The file system of the source.
    device: u64,
    /// Files of the server whose identity is taken by a local inode.
    taken: HashSet<FileId>,
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
        let mut reader = self.reader();
        let mut way = Descent::new(&root).map_err(cannot)?;
        let mut to_do = vec![Directory {
            path: Vec::new(),
            id: place.dir,
            is_there: place.dir_node.is_some(),
        }];
        while let Some(directory) = to_do.pop() {
            let mut below = self.directory(&mut way, &directory, &mut reader)?;
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
        let listed = way.open(&directory.path).and_then(|dir| {
            let names: io::Result<Vec<OsString>> = tree::read_dir(&dir, 0)?
                .map(|entry| entry.map(|entry| entry.name))
                .collect();
            Ok((dir, names?))
        });
        let (dir, mut names) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                self.failed(&directory.path, &error.to_string());
                return Ok(Vec::new());
            }
        };
        // Leftovers of an interrupted pull are not the user's.
        names.retain(|name| !is_partial_name(name.as_bytes()));
        names.sort_unstable();
        let mut at_server = Vec::new();
        if directory.is_there {
            reader.entries(directory.id, &directory.path, |entry| {
                at_server.push(entry);
                Ok(())
            })?;
        }
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
        if !self.job.options.delete {
            return Ok(());
        }
        let path = join_path(&directory.path, entry.name.as_bytes());
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
                    to_do.push((entry.node.id, join_path(&path, below.name.as_bytes()), below));
                    Ok(())
                })?;
                continue;
            }
            self.entry(dir, entry.name, None)?;
            self.report.removed += 1;
            self.tell(&path, Change::Removed);
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
        TreeReader::new(self.job.server, self.job.folder, self.record.begun().base_seq)
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
        if options.exclude.is_excluded(&place.path, is_directory) {
            return Ok(None);
        }
        if options.one_file_system && is_directory && node.stat.dev != self.device {
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
        if is_directory {
            let id = match same_kind {
                Some(entry) => {
                    self.existing(entry.node.id, &place.path, attributes, &entry.node.attributes)?;
                    entry.node.id
                }
                None => {
                    let id = self.new_id(&place.path);
                    self.node(id, attributes)?;
                    self.entry(place.parent, name_there.clone(), Some(id))?;
                    self.report.dirs_new += 1;
                    self.tell(&place.path, Change::New);
                    id
                }
            };
            self.count_total(0);
            return Ok(Some(Directory {
                path: place.path.clone(),
                id,
                is_there: same_kind.is_some(),
            }));
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
            && self.changes_other_names(&mut node, &attributes, &entry.node)?
        {
            self.taken.remove(&entry.node.id);
            same = None;
        }
        let id = same.map_or_else(|| self.new_id(&place.path), |entry| entry.node.id);
        let is_sent = self.file(place, node, id, same.map(|entry| &entry.node))?;
        if has_names {
            self.linked.insert(inode, is_sent.then_some(id));
        }
        if is_sent && same.is_none() {
            self.entry(place.parent, name_there.clone(), Some(id))?;
        }
        Ok(None)
    }

    /// Whether making a file of the server equal to this one would change names that are not
    /// compared.
    fn changes_other_names(&mut self, node: &mut LocalNode, here: &Attributes, there: &NodeInfo) -> Result<bool> {
        if there.names.is_none() {
            return Ok(false);
        }
        if is_same_as_told(here, &there.attributes) {
            let is_other = here.kind == NodeKind::File && self.job.options.checksum;
            // An unreadable file is not sent either.
            if !is_other || !self.is_other_content(node, there)?.unwrap_or(false) {
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

    /// Sends a node other than a directory; returns whether the server has it now, or will.
    fn file(&mut self, place: &Name<'_>, mut node: LocalNode, id: FileId, there: Option<&NodeInfo>) -> Result<bool> {
        let kind = node.kind();
        let mut reason = String::new();
        for attempt in 0..TRIES {
            if attempt > 0 {
                match LocalNode::open(place.dir, &place.name) {
                    Ok(again) if again.kind() == kind => node = again,
                    _ => break,
                }
            }
            match self.try_file(place, &mut node, id, there, attempt)? {
                Ok(()) => return Ok(true),
                Err(why) => reason = why,
            }
        }
        self.failed(&place.path, &reason);
        Ok(false)
    }

    /// The inner error is of this file, and the batch is then as if it had not been tried.
    fn try_file(
        &mut self,
        place: &Name<'_>,
        node: &mut LocalNode,
        id: FileId,
        there: Option<&NodeInfo>,
        attempt: usize,
    ) -> Result<Result<(), String>> {
        let attributes = match node.attributes() {
            Ok(attributes) => attributes,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let is_other_content = match (attributes.kind, there) {
            (NodeKind::File, None) => attributes.size > 0,
            (NodeKind::File, Some(there)) => match self.is_other_content(node, there)? {
                Ok(is_other) => is_other,
                Err(why) => return Ok(Err(why)),
            },
            _ => false,
        };
        if is_other_content {
            if let Err(why) = self.content(node, id, there, attempt)? {
                return Ok(Err(why));
            }
        } else {
            self.count_total(0);
        }
        let change = match (there, is_other_content) {
            (Some(there), false) => {
                // As of the moment when its content was compared.
                self.existing(id, &place.path, attributes, &there.attributes)?;
                return Ok(Ok(()));
            }
            (Some(_), true) => {
                self.report.files_changed += 1;
                Change::Content
            }
            (None, _) => {
                match attributes.kind {
                    NodeKind::File => self.report.files_new += 1,
                    _ => self.report.others_new += 1,
                }
                if !is_other_content {
                    self.node(id, attributes)?;
                }
                Change::New
            }
        };
        self.tell(&place.path, change);
        Ok(Ok(()))
    }

    /// Whether the content differs from the server's, as far as the options ask to look. The inner
    /// error is of this file.
    fn is_other_content(&mut self, node: &mut LocalNode, there: &NodeInfo) -> Result<Result<bool, String>> {
        let size = node.stat.size;
        if size != there.attributes.size {
            return Ok(Ok(true));
        }
        if !self.job.options.checksum || size == 0 {
            return Ok(Ok(node.stat.mtime_ns != there.attributes.mtime_ns));
        }
        let opened = node.settle(self.job.server.clock()).and_then(|()| node.content());
        let content = match opened {
            Ok(content) if node.stat.size == size => content,
            Ok(_) => return Ok(Ok(true)),
            Err(error) => return Ok(Err(error.to_string())),
        };
        let base = (self.job.server, self.job.folder, self.record.begun().base_seq);
        let same = is_same_content(
            base,
            there.id,
            |ranges, sink| content.read(ranges, sink),
            size,
            self.job.monitor,
        )?;
        self.report.read_bytes += content.read_bytes();
        self.report.hashed_bytes += size;
        Ok(same.map(|is_same| !is_same).map_err(|error| error.message))
    }

    /// Sends a node with its content; the inner error is of this file, and the batch is then as if
    /// it had not been tried.
    fn content(
        &mut self,
        node: &mut LocalNode,
        id: FileId,
        there: Option<&NodeInfo>,
        attempt: usize,
    ) -> Result<Result<(), String>> {
        if self.stream.is_none() {
            self.report.changed_bytes += node.stat.size;
            self.count_total(node.stat.size);
            return Ok(Ok(()));
        }
        let settled = node.settle(self.job.server.clock());
        let opened = settled.and_then(|()| Ok((node.attributes()?, node.content()?)));
        let (attributes, content) = match opened {
            Ok(opened) => opened,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let content = match self.record.is_resumed() {
            true => content.with_digest(),
            false => content,
        };
        let content = match attempt {
            0 => content,
            _ => content.only_read(),
        };
        self.count_total(attributes.size);
        let server_has = there.is_some_and(|there| there.attributes.size > 0);
        let Some(stream) = &mut self.stream else {
            return Ok(Ok(()));
        };
        let sent = self.contents.send(&content, id, &attributes, server_has, stream)?;
        self.report.read_bytes += content.read_bytes();
        let sent = match sent {
            Ok(sent) => sent,
            Err(error) => return Ok(Err(error.message)),
        };
        self.note_unproven(&content, id, sent.is_proven);
        self.report.changed_bytes += attributes.size;
        self.report.literal_bytes += sent.literal_bytes;
        self.report.hashed_bytes += sent.hashed_bytes;
        self.report.found_bytes += sent.found_bytes;
        Ok(Ok(()))
    }

    fn note_unproven(&mut self, content: &LocalContent, id: FileId, is_proven: bool) {
        if let Some(digest) = content.digest().filter(|_| !is_proven) {
            self.unproven.push((id, Digest(digest)));
        }
    }

    /// Proves contents that may have gone with parts which an earlier run sent. Behind everything
    /// else, so that those parts stay as they are.
    pub(super) fn prove_resumed(&mut self) -> Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        for (id, digest) in std::mem::take(&mut self.unproven) {
            stream.proof(&ProofRecord {
                id,
                digest,
                sums: None,
                ranges: Vec::new(),
            })?;
        }
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
