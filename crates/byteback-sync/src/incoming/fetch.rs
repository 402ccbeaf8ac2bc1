//! Fetches others' changes: the names and nodes that changed between the cursor and the head, and
//! the new contents, as deltas over what is here.
//!
//! **One head.** All requests are about one fixed moment, the head that is to be reached. The
//! answers fit together even if other batches are sent meanwhile, however often a connection
//! breaks.
//!
//! **Batches that this device sent itself** are not landed again. Its batches since the cursor
//! stand on the cursor and on each other, and the server refuses one that touches what others
//! changed since. So in the order of their batches, each name and each node was changed after the
//! cursor first by this device, if at all, and then by others, never the other way round. Each name
//! and each node here, unsent changes apart, is thus in the state that it had at the server after
//! this device's newest batch that changed it, or at the cursor if there is none; and others'
//! changes to it lead from there to the head. These are requested from the server (`others=1`):
//! each item is compared with its own moment, which is given for a node (`since`), as deltas begin
//! there. A name made here and removed by another is reported as removed, though neither the cursor
//! nor the head has it; a name that only this device changed is not reported. Only the times of
//! directories may be moved by others first and by this device after that, as names come and go:
//! the later one counts, so this device has it already, or receives it. All this holds as long as
//! nothing else sends under this device into this folder. Where it does not hold, as sync starts
//! over, all is fetched ([`Incoming::takes_own`]).
//!
//! **Contents** come as delta streams without copies ([`ContentDelta`]): the ranges written between
//! `since` and the head, one by one, as they are read; zeros where the server has a hole. Ranges
//! near to each other are fetched as one, as a request costs as much as their distance. Laid over a
//! file that holds the content of the head already, wholly or in part, such a delta gives the same
//! result. Short new files come many at once ([`Incoming::short_contents`]).
//!
//! Memory: the names and nodes that others changed, which the plan is made of; of a content one
//! page of ranges and one block.
//!
//! Out of scope: deciding what is to be done with the changes.

use byteback_model::{Attributes, FileId, Place, Seq};
use std::collections::{HashMap, VecDeque};
use std::io::{self, BufReader, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use byteback_api::FolderName;
use byteback_api::messages::{BUNDLE_LEN_MAX, BUNDLED_LEN_MAX, BUNDLED_MAX, ChangedRange, DiffItem};
use byteback_delta::bundle::ShortContent;
use byteback_delta::{Block, DeltaReader, DeltaWriter, FrameDecoder, Source, WriteError, WriterOptions};
use byteback_extents::ByteRange;
use sha2::{Digest, Sha256};

use super::plan::{ContentFrom, HeadNode, NameChange, Need, NodeChange, Others};
use byteback_backup::{BackupError, Result};
use byteback_backup::{Event, Monitor, check_cancelled};
use byteback_client::{ContentReader, ServerClient, TreePlace};
use byteback_client::{ServerError, ServerErrorKind};

/// Fewest files to bundle: a single one comes by itself as quickly.
const BUNDLED_MIN: usize = 2;

/// Ranges that are nearer to each other are fetched as one.
const JOINED_GAP_MIN: u64 = 32 * 1024;

/// Fetcher of others' changes in a range of batches.
#[derive(Clone, Copy)]
pub struct Incoming<'a> {
    /// The server.
    pub server: &'a ServerClient,
    /// The folder at the server.
    pub folder: &'a FolderName,
    /// Others' changes up to here are in the folder here.
    pub cursor: Seq,
    /// The moment that the folder here is to reach.
    pub head: Seq,
    /// Whether to fetch this device's own batches, too: the tree here does not have them, or it is
    /// not known which of them it has.
    pub takes_own: bool,
    /// May stop the fetch, and counts bytes.
    pub monitor: &'a dyn Monitor,
}

impl std::fmt::Debug for Incoming<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming")
            .field("folder", &self.folder)
            .field("cursor", &self.cursor)
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

impl Incoming<'_> {
    /// Fetches others' changes.
    ///
    /// # Errors
    /// If the server cannot be asked, contradicts itself, or is older than this question.
    pub fn others(&self) -> Result<Others> {
        let mut others = Others {
            head: self.head,
            ..Others::default()
        };
        let mut cursor: Option<String> = None;
        loop {
            check_cancelled(self.monitor)?;
            let (from, to, next) = (self.cursor, self.head, cursor.as_deref());
            let page = match self.takes_own {
                true => self.server.diff_page(self.folder, from, to, next)?,
                false => self.server.others_page(self.folder, from, to, next)?,
            };
            // Changes that came and went meanwhile are not listed, so a page may be empty.
            let is_stuck = page.next_cursor == cursor;
            if (page.from, page.to) != (self.cursor, self.head) || (page.next_cursor.is_some() && is_stuck) {
                return Err(BackupError::hostile(
                    "the list of differences is between other moments or does not advance",
                ));
            }
            for change in page.changes {
                take(&mut others, change)?;
            }
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return Ok(others),
            }
        }
    }

    /// Asks for the nodes that a plan needs beyond that.
    ///
    /// # Errors
    /// If the server cannot be asked, or contradicts itself.
    pub fn ask(&self, others: &mut Others, needs: &[Need]) -> Result<()> {
        for need in needs {
            check_cancelled(self.monitor)?;
            let reported = match self.server.node_with_places(self.folder, need.id, self.head) {
                Ok(node) => Some(node),
                Err(error) if error.kind == ServerErrorKind::NotFound => None,
                Err(error) => return Err(error.into()),
            };
            let reported = match reported {
                None => None,
                Some(node) => Some(HeadNode {
                    places: node
                        .places
                        .ok_or_else(|| BackupError::hostile("the names of a node were requested, but not sent"))?,
                    entries: match need.entries && node.attributes.kind == byteback_model::NodeKind::Directory {
                        true => Some(listing(self.server, self.folder, self.head, need.id, self.monitor)?),
                        false => None,
                    },
                    attributes: node.attributes,
                }),
            };
            others.reported.insert(need.id, reported);
        }
        Ok(())
    }

    /// The content of a file at the head, as a delta for a file here of `base_len_bytes` with the
    /// content that `from` says.
    ///
    /// # Errors
    /// If the server cannot be asked, or contradicts itself.
    pub fn content(
        &self,
        others: &Others,
        id: FileId,
        from: ContentFrom,
        base_len_bytes: u64,
    ) -> Result<ContentDelta<'_>> {
        let changed = others.nodes.get(&id).map(|change| change.after.size);
        let reported = || {
            others
                .reported
                .get(&id)
                .and_then(Option::as_ref)
                .map(|reported| reported.attributes.size)
        };
        let mut len_bytes = changed.or_else(reported);
        let mut ranges = Ranges {
            id,
            since: None,
            waiting: VecDeque::new(),
            cursor: None,
            is_last: true,
            listed_to: 0,
        };
        match from {
            ContentFrom::Nothing => {
                let all = match len_bytes {
                    Some(len_bytes) => len_bytes,
                    None => self.server.node(self.folder, id, self.head)?.attributes.size,
                };
                len_bytes = Some(all);
                ranges.waiting.extend(ByteRange::new(0, all));
            }
            ContentFrom::Since(since) => {
                ranges.since = Some(since);
                let size = ranges.fetch(self)?;
                if len_bytes.is_some_and(|len_bytes| len_bytes != size) {
                    return Err(BackupError::hostile(format!("file {id} has two lengths at one moment")));
                }
                len_bytes = Some(size);
            }
        }
        let len_bytes = len_bytes.unwrap_or_default();
        let out = Out::default();
        let writer = DeltaWriter::new(out.clone(), base_len_bytes, len_bytes, WriterOptions::default());
        Ok(ContentDelta {
            incoming: *self,
            id,
            at: self.head,
            len_bytes,
            ranges,
            current: None,
            stream: None,
            writer: Some(writer.map_err(|error| BackupError::delta(format!("file {id}"), error))?),
            out,
            failure: None,
        })
    }

    /// The contents at the head of the short ones among these files, many with one request, as far
    /// as the server sends them.
    ///
    /// # Errors
    /// If the server cannot be asked, or contradicts itself.
    pub fn short_contents(
        &self,
        others: &Others,
        ids: impl Iterator<Item = FileId>,
    ) -> Result<HashMap<FileId, ShortContent>> {
        let len_of = |id: &FileId| others.nodes.get(id).map(|change| change.after.size);
        let short = ids.filter_map(|id| Some((id, len_of(&id).filter(|len| *len <= BUNDLED_LEN_MAX)?)));
        let mut contents = HashMap::new();
        let mut short = short.peekable();
        while short.peek().is_some() {
            let (mut asked, mut requested_bytes) = (Vec::new(), 0);
            let fits = |len: u64, count: usize| len <= BUNDLE_LEN_MAX && count < BUNDLED_MAX;
            while let Some((id, len)) = short.next_if(|(_, len)| fits(requested_bytes + len, asked.len())) {
                asked.push((id, len));
                requested_bytes += len;
            }
            if asked.len() < BUNDLED_MIN {
                continue;
            }
            check_cancelled(self.monitor)?;
            let ids: Vec<FileId> = asked.iter().map(|(id, _)| *id).collect();
            let reported = self.server.short_contents(self.folder, self.head, &ids)?;
            for ((id, len), content) in asked.into_iter().zip(reported) {
                let Some(content) = content else { continue };
                if content.len_bytes() != len {
                    return Err(BackupError::hostile(format!("file {id} has two lengths at one moment")));
                }
                self.monitor.event(Event::BytesRead(len));
                contents.insert(id, content);
            }
        }
        Ok(contents)
    }

    /// The bytes in a range of a file of `len_bytes` at the head.
    ///
    /// # Errors
    /// If the server cannot be asked, or contradicts itself.
    pub fn bytes(&self, id: FileId, range: ByteRange, len_bytes: u64) -> Result<Vec<u8>> {
        let out = Out::default();
        let writer = DeltaWriter::new(out.clone(), 0, len_bytes, WriterOptions::default());
        let delta = ContentDelta {
            incoming: *self,
            id,
            at: self.head,
            len_bytes,
            ranges: Ranges {
                id,
                since: None,
                waiting: VecDeque::from([range]),
                cursor: None,
                is_last: true,
                listed_to: 0,
            },
            current: None,
            stream: None,
            writer: Some(writer.map_err(|error| BackupError::delta(format!("file {id}"), error))?),
            out,
            failure: None,
        };
        let mut bytes = vec![0; usize::try_from(range.len_bytes()).unwrap_or(usize::MAX)];
        delta.each(&mut |at, found| {
            let from = at
                .checked_sub(range.start())
                .and_then(|from| usize::try_from(from).ok());
            let place = from.and_then(|from| bytes.get_mut(from..from.checked_add(found.len())?));
            if let Some(place) = place {
                place.copy_from_slice(found);
            }
        })?;
        Ok(bytes)
    }

    /// Whether a file that had the same length at `since` has the same content at the head: it may
    /// only have been sent once more, after a crash of its sender. Fetches the ranges written
    /// since, as of both moments.
    ///
    /// # Errors
    /// If the server cannot be asked, or contradicts itself.
    pub fn is_as_at(&self, others: &Others, id: FileId, since: Seq) -> Result<bool> {
        let sum = |at| {
            let mut delta = self.content(others, id, ContentFrom::Since(since), 0)?;
            delta.at = at;
            delta.sum()
        };
        Ok(sum(since)? == sum(self.head)?)
    }
}

/// Entries of a directory at the server: name, identity and attributes each.
pub(crate) type Listed = Vec<(Vec<u8>, FileId, Attributes)>;

/// Fetches the entries of a directory at a moment.
pub(crate) fn listing(
    server: &ServerClient,
    folder: &FolderName,
    at: Seq,
    directory: FileId,
    monitor: &dyn Monitor,
) -> Result<Listed> {
    let mut entries = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        check_cancelled(monitor)?;
        let page = server.tree_page(folder, at, TreePlace::Node(directory), cursor.as_deref())?;
        if page.next_cursor.is_some() && (page.entries.is_empty() || page.next_cursor == cursor) {
            return Err(BackupError::hostile("the list of a directory does not advance"));
        }
        let reported = page.entries.into_iter();
        entries.extend(reported.map(|entry| (entry.name.0, entry.node.id, entry.node.attributes)));
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => return Ok(entries),
        }
    }
}

fn take(others: &mut Others, change: DiffItem) -> Result<()> {
    let no_change = NameChange {
        before: None,
        after: None,
    };
    match change {
        DiffItem::EntryRemoved {
            parent, name, child, ..
        } => {
            let place = Place { parent, name };
            others.names.entry(place).or_insert(no_change).before = Some(child);
        }
        DiffItem::EntryAdded {
            parent,
            name,
            child,
            path,
        } => {
            // An entry that the root does not reach is in no tree.
            if path.is_none() {
                others.unreachable.insert(parent);
            }
            let place = Place { parent, name };
            others.names.entry(place).or_insert(no_change).after = path.map(|_| child);
        }
        DiffItem::NodeChanged {
            id,
            since,
            before,
            after,
            content_changed,
            ..
        } => {
            let since = since.ok_or_else(|| BackupError::hostile("what a node was compared with is missing"))?;
            let change = NodeChange {
                since,
                before: before.map(|before| *before),
                after: *after,
                is_content_changed: content_changed,
            };
            others.nodes.insert(id, change);
        }
    }
    Ok(())
}

/// The ranges of a content that are to be fetched.
struct Ranges {
    id: FileId,
    /// Fetch what was written since then; `None`: all ranges are there already.
    since: Option<Seq>,
    waiting: VecDeque<ByteRange>,
    cursor: Option<String>,
    is_last: bool,
    /// End of the ranges listed so far.
    listed_to: u64,
}

impl Ranges {
    /// Fetches a page; returns the length of the content at the head.
    fn fetch(&mut self, incoming: &Incoming<'_>) -> Result<u64> {
        check_cancelled(incoming.monitor)?;
        let since = self.since.unwrap_or_default();
        let page =
            incoming
                .server
                .changes_page(incoming.folder, self.id, since, incoming.head, self.cursor.as_deref())?;
        if page.next_cursor.is_some() && page.next_cursor == self.cursor {
            return Err(BackupError::hostile("the list of changed ranges does not advance"));
        }
        for ChangedRange { offset, len } in page.ranges {
            let range = ByteRange::from_offset_len(offset, len);
            let range = range.filter(|range| range.start() >= self.listed_to && range.end() <= page.size_to);
            let range =
                range.ok_or_else(|| BackupError::hostile("changed ranges are out of order or outside the file"))?;
            self.listed_to = range.end();
            match self.waiting.back_mut() {
                Some(last) if range.start() - last.end() < JOINED_GAP_MIN => *last = last.hull(range),
                _ => self.waiting.push_back(range),
            }
        }
        self.cursor = page.next_cursor;
        self.is_last = self.cursor.is_none();
        Ok(page.size_to)
    }

    fn next(&mut self, incoming: &Incoming<'_>) -> Result<Option<ByteRange>> {
        // The last range may go on with the next page.
        while !self.is_last && self.waiting.len() < 2 {
            self.fetch(incoming)?;
        }
        Ok(self.waiting.pop_front())
    }
}

/// Buffer that holds what a writer writes until it is read.
#[derive(Clone, Default)]
struct Out(Arc<Mutex<VecDeque<u8>>>);

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A range that is being fetched.
struct Stream {
    delta: DeltaReader<ContentReader>,
    decoder: FrameDecoder,
    block: Block,
    raw: Vec<u8>,
}

/// A new content as the stream of a delta without copies, fetched as it is read. A broken
/// connection is made anew and continues where it broke, as long as it makes progress.
pub struct ContentDelta<'a> {
    incoming: Incoming<'a>,
    id: FileId,
    /// The moment whose bytes these are.
    at: Seq,
    len_bytes: u64,
    ranges: Ranges,
    /// The rest of the range that is being fetched.
    current: Option<ByteRange>,
    stream: Option<Stream>,
    writer: Option<DeltaWriter<Out>>,
    out: Out,
    failure: Option<BackupError>,
}

impl std::fmt::Debug for ContentDelta<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContentDelta")
            .field("id", &self.id)
            .field("len_bytes", &self.len_bytes)
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}

/// Reason why a stream stopped.
enum Stopped {
    /// The stream may go on when it is asked for again.
    Broken(String),
    For(BackupError),
}

impl From<BackupError> for Stopped {
    fn from(error: BackupError) -> Self {
        Self::For(error)
    }
}

impl ContentDelta<'_> {
    /// Length of the new content, in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The error that reading failed with, if it did: the reader only sees that it failed.
    pub fn take_failure(&mut self) -> Option<BackupError> {
        self.failure.take()
    }

    /// Checksum of all bytes in it, independent of the pieces they came in.
    fn sum(self) -> Result<[u8; 32]> {
        let mut sum = Sha256::new();
        self.each(&mut |_, bytes| sum.update(bytes))?;
        Ok(sum.finalize().into())
    }

    /// Passes on all bytes in it, with their offsets, in order.
    fn each(mut self, take: &mut dyn FnMut(u64, &[u8])) -> Result<()> {
        let taken = self.each_of(take);
        match (self.take_failure(), taken) {
            (Some(failure), _) => Err(failure),
            (None, Err(error)) => Err(BackupError::local(
                "read",
                format!("the new content of file {}", self.id),
                error,
            )),
            (None, Ok(())) => Ok(()),
        }
    }

    fn each_of(&mut self, take: &mut dyn FnMut(u64, &[u8])) -> io::Result<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut delta = DeltaReader::new(BufReader::new(self)).map_err(io::Error::other)?;
        let mut decoder = FrameDecoder::new()?;
        let (mut block, mut raw) = (Block::default(), Vec::new());
        while delta.read_block(&mut block).map_err(io::Error::other)? {
            let decoded = block.frame.decode(&mut decoder, &mut raw);
            decoded.map_err(io::Error::other)?;
            for extent in &block.extents {
                let mut at = extent.range.start();
                let mut len = usize::try_from(extent.range.len_bytes()).unwrap_or(usize::MAX);
                if let Source::Literal(slice) = extent.source {
                    let from = usize::try_from(slice.skip_bytes).unwrap_or(usize::MAX);
                    take(at, raw.get(from..from.saturating_add(len)).unwrap_or_default());
                    continue;
                }
                while len > 0 {
                    let zeros = ZEROS.get(..len.min(ZEROS.len())).unwrap_or_default();
                    take(at, zeros);
                    len -= zeros.len();
                    at = at.saturating_add(zeros.len() as u64);
                }
            }
        }
        Ok(())
    }

    fn of_writer(&self, error: WriteError) -> BackupError {
        BackupError::delta(format!("file {}", self.id), error)
    }

    /// Makes one step, so that there is more to be read, or the end is reached.
    fn advance(&mut self) -> Result<()> {
        if self.current.is_none() {
            self.current = self.ranges.next(&self.incoming)?;
        }
        if self.current.is_none() {
            if let Some(writer) = self.writer.take() {
                writer.finish().map_err(|error| self.of_writer(error))?;
            }
            return Ok(());
        }
        let mut pauses = self.incoming.server.stream_pauses();
        loop {
            check_cancelled(self.incoming.monitor)?;
            match self.fetch_some() {
                Ok(()) => return Ok(()),
                Err(Stopped::For(error)) => return Err(error),
                Err(Stopped::Broken(_)) if pauses.rest() => self.stream = None,
                Err(Stopped::Broken(why)) => {
                    let source = io::Error::other(why);
                    let subject = format!("the new content of file {}", self.id);
                    return Err(BackupError::local("fetch", subject, source));
                }
            }
        }
    }

    /// Takes one block.
    fn fetch_some(&mut self) -> std::result::Result<(), Stopped> {
        let Some(range) = self.current else { return Ok(()) };
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let opened = self.open(range)?;
                self.stream.insert(opened)
            }
        };
        let more = stream.delta.read_block(&mut stream.block);
        let more = more.map_err(|error| Stopped::Broken(error.to_string()))?;
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let id = self.id;
        let of_writer = |error| BackupError::delta(format!("file {id}"), error);
        let mut at = range.start();
        if more {
            let decoded = stream.block.frame.decode(&mut stream.decoder, &mut stream.raw);
            decoded.map_err(|error| Stopped::Broken(error.to_string()))?;
            for extent in &stream.block.extents {
                let (start, end) = (extent.range.start(), extent.range.end());
                if start < at || end > range.end() {
                    return Err(BackupError::hostile("the content of a range lies outside it").into());
                }
                if let Some(hole) = ByteRange::new(at, start) {
                    writer.zero(hole).map_err(of_writer)?;
                }
                match extent.source {
                    Source::Literal(slice) => {
                        let from = usize::try_from(slice.skip_bytes).unwrap_or(usize::MAX);
                        let len = usize::try_from(extent.range.len_bytes()).unwrap_or(usize::MAX);
                        let bytes = stream.raw.get(from..from.saturating_add(len));
                        let bytes = bytes.ok_or_else(|| BackupError::hostile("a block has too few bytes"))?;
                        writer.literal_bytes(start, bytes).map_err(of_writer)?;
                        self.incoming.monitor.event(Event::BytesRead(extent.range.len_bytes()));
                    }
                    Source::Zero => writer.zero(extent.range).map_err(of_writer)?,
                    Source::Copy { .. } => return Err(BackupError::hostile("content without a base has copies").into()),
                }
                at = end;
            }
            self.current = ByteRange::new(at, range.end());
            if self.current.is_some() {
                return Ok(());
            }
        } else if let Some(hole) = ByteRange::new(at, range.end()) {
            writer.zero(hole).map_err(of_writer)?;
        }
        // The trailer does not matter: each block was checked by itself.
        self.current = None;
        if let Some(stream) = self.stream.take() {
            stream.delta.into_inner().finish();
        }
        Ok(())
    }

    fn open(&self, range: ByteRange) -> std::result::Result<Stream, Stopped> {
        let Incoming { server, folder, .. } = self.incoming;
        let go_on = |_: &ServerError| !self.incoming.monitor.is_cancelled();
        let to = (range.end() < self.len_bytes).then_some(range.end());
        let content = server
            .content_range(folder, self.id, self.at, range.start(), to, &go_on)
            .map_err(BackupError::from)?;
        let delta = DeltaReader::new(content).map_err(|error| Stopped::Broken(error.to_string()))?;
        let header = *delta.header();
        if header.base_len_bytes != 0 || header.has_copies || header.new_len_bytes != self.len_bytes {
            let id = self.id;
            return Err(
                BackupError::hostile(format!("the content of file {id} does not have the announced length")).into(),
            );
        }
        Ok(Stream {
            delta,
            decoder: FrameDecoder::new()
                .map_err(|error| BackupError::local("decompress", "what the server sends", error))?,
            block: Block::default(),
            raw: Vec::new(),
        })
    }
}

impl Read for ContentDelta<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            {
                let mut out = self.out.0.lock().unwrap_or_else(PoisonError::into_inner);
                if !out.is_empty() || buffer.is_empty() {
                    return out.read(buffer);
                }
            }
            if self.failure.is_some() {
                return Err(io::Error::other("the content could not be fetched"));
            }
            if self.writer.is_none() {
                return Ok(0);
            }
            if let Err(error) = self.advance() {
                let reported = io::Error::other(error.to_string());
                self.failure = Some(error);
                return Err(reported);
            }
        }
    }
}
