//! A file's changed ranges as delta records.
//!
//! Changed ranges that are sent as they are go through [`send_file`]; contents that may be
//! elsewhere in the server's version go through `examine` first.
//!
//! A version of a file may be carried by several delta records, each over the result of the one
//! before, so that none needs more than `LITERAL_BYTES_MAX` of literals in memory. The node's
//! record stands before them and holds their number. That number is unknown before the file was
//! read: holes carry no bytes. Hence the deltas are held back until they fill a part; mostly the
//! file ends before. If it does not, the part that the record belongs in waits for the end of the
//! file, and the deltas go on in the parts after it.
//!
//! *Lengths.* The client does not know how long the file was at the server (that would need a
//! record per file that survives crashes on both sides). It need not: a delta over the previous
//! contents says `base_len = new_len`, which means that the base is first cut off or filled up with
//! zeros to that length. This is what `DeltaMap` means by bytes past a base's end, and the log
//! guarantees that all bytes past the old length were reported as changed.

use super::part_stream::PartStream;
use super::trim::{BlockSums, Trimmer};
use crate::error::{BackupError, Result};
use crate::monitor::{Event, Monitor, check_cancelled};
use byteback_control::{CutId, ErrorKind, Piece, ServiceError, TreeService};
use byteback_delta::{DeltaWriter, WriteError, WriterOptions};
use byteback_extents::{ByteRange, ExtentSet};
use byteback_model::{Attributes, ContentBase, ContentChange, FileId, NodeId, NodeRecord};

/// Most literal bytes of one delta record; with smaller parts, half a part.
pub const LITERAL_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Most ranges of one request to the tree.
const RANGES_PER_READ_MAX: usize = 4096;

/// A file and its ranges to send.
pub(crate) struct FileChange {
    pub(crate) node: NodeId,
    pub(crate) id: FileId,
    pub(crate) attributes: Attributes,
    pub(crate) base: ContentBase,
    /// Ascending, apart from each other, below the file's length.
    pub(crate) ranges: Vec<ByteRange>,
}

/// The cost of sending it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileStats {
    pub(crate) literal_bytes: u64,
    /// Whether the batch has a proof of the file.
    pub(crate) is_proven: bool,
    /// Bytes that the server has although the first search did not find them.
    pub(crate) found_again_bytes: u64,
}

/// How sending one file ended.
pub(crate) enum FileOutcome {
    Sent(FileStats),
    /// The file cannot be read; the batch is as if it had not been tried.
    Unreadable(ServiceError),
}

impl FileChange {
    /// The whole file, over nothing.
    pub(crate) fn whole(node: NodeId, id: FileId, attributes: Attributes) -> Self {
        let ranges = ByteRange::new(0, attributes.size).into_iter().collect();
        Self {
            node,
            id,
            attributes,
            base: ContentBase::Empty,
            ranges,
        }
    }

    /// The file with these ranges, over the previous contents.
    pub(crate) fn of_ranges(node: NodeId, id: FileId, attributes: Attributes, ranges: &ExtentSet) -> Self {
        let mut set = ranges.clone();
        set.truncate(attributes.size);
        Self {
            node,
            id,
            attributes,
            base: ContentBase::Previous,
            ranges: set.iter().collect(),
        }
    }
}

/// Reads the changed ranges and adds the file's records to the batch. With the file comes its whole
/// content, if that is at hand.
pub(crate) fn send_file(
    tree: &dyn TreeService,
    cut: CutId,
    (file, content): (FileChange, Option<&[u8]>),
    stream: &mut PartStream<'_, '_>,
    sums: &mut BlockSums<'_>,
    monitor: &dyn Monitor,
) -> Result<FileOutcome> {
    // A full part leaves while the file is being read, and the reader cannot ask the tree for
    // anything else meanwhile.
    stream.note_once()?;
    let node = file.node;
    let outcome = read_and_send(tree, cut, (file, content), stream, sums, monitor)?;
    if let FileOutcome::Unreadable(_) = outcome {
        sums.give_up(node);
        stream.take_back()?;
    }
    Ok(outcome)
}

fn read_and_send(
    tree: &dyn TreeService,
    cut: CutId,
    (file, content): (FileChange, Option<&[u8]>),
    stream: &mut PartStream<'_, '_>,
    sums: &mut BlockSums<'_>,
    monitor: &dyn Monitor,
) -> Result<FileOutcome> {
    let (node, len) = (file.node, file.attributes.size);
    let is_kept = sums.keeps(len);
    if file.base == ContentBase::Empty || !is_kept {
        sums.forget(node);
    }
    let mut trimmer = is_kept.then(|| Trimmer::new(sums, node, &file.ranges, len));
    let ranges = match &trimmer {
        Some(trimmer) => trimmer.widened().to_vec(),
        None => file.ranges.clone(),
    };
    let mut sink = DeltaSink::new(file, stream, monitor);
    for some in ranges.chunks(RANGES_PER_READ_MAX) {
        let asked: Vec<(u64, u64)> = some.iter().map(|range| (range.start(), range.len_bytes())).collect();
        // An error of our own has to pass through the service; it waits here meanwhile.
        let mut own_error = None;
        let mut take = |piece: Piece<'_>| {
            let taken = match &mut trimmer {
                Some(trimmer) => trimmer.piece(piece, &mut sink),
                None => sink.piece(piece),
            };
            taken.map_err(|error| {
                let reported = ServiceError::new(ErrorKind::Protocol, error.to_string());
                own_error = Some(error);
                reported
            })
        };
        let read = match content {
            Some(bytes) if asked == [(0, len_u64(bytes.len()))] => take(Piece::Data { offset: 0, bytes }),
            _ => tree.read(cut, node, &asked, &mut take),
        };
        if let Some(error) = own_error {
            return match error {
                Failure::File(error) => Ok(FileOutcome::Unreadable(error)),
                Failure::All(error) => Err(error),
            };
        }
        match read {
            Ok(()) => {}
            Err(error) if error.kind == ErrorKind::Node => return Ok(FileOutcome::Unreadable(error)),
            Err(error) => return Err(error.into()),
        }
        if let Some(last) = some.last() {
            let position = trimmer.as_ref().map_or(sink.position, Trimmer::position);
            if position != last.end() {
                return Ok(FileOutcome::Unreadable(ended_early(position, last.end())));
            }
        }
    }
    let has_last = trimmer.is_some_and(|trimmer| trimmer.has_last());
    match sink.finish() {
        Ok(stats) => {
            if is_kept {
                sums.end(node, len, has_last);
            }
            Ok(FileOutcome::Sent(stats))
        }
        Err(Failure::File(error)) => Ok(FileOutcome::Unreadable(error)),
        Err(Failure::All(error)) => Err(error),
    }
}

/// Whether an error ends one file or the whole backup.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// This file cannot be read; the others go on.
    #[error("{0}")]
    File(ServiceError),
    /// Nothing goes on.
    #[error("{0}")]
    All(BackupError),
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        Self::All(error)
    }
}

/// Makes deltas of the pieces of a file.
pub(super) struct DeltaSink<'a, 'scope, 'env> {
    file: FileChange,
    stream: &'a mut PartStream<'scope, 'env>,
    monitor: &'a dyn Monitor,
    /// The range being covered, and up to where.
    range: usize,
    position: u64,
    literal_bytes_max: u64,
    writer: Option<DeltaWriter<Vec<u8>>>,
    /// Literal bytes in `writer`.
    literal_bytes: u64,
    deltas: FileDeltas,
}

/// The finished deltas of one file on their way into the batch.
#[derive(Default)]
pub struct FileDeltas {
    /// Finished deltas that wait for their number to be known.
    held_back: Vec<Vec<u8>>,
    held_back_bytes: usize,
    /// Too large for one part: deltas go out as they are made, and the node's record comes at the
    /// end.
    is_released: bool,
    number: u32,
    /// Literal bytes of all of them.
    literal_bytes: u64,
}

impl<'a, 'scope, 'env> DeltaSink<'a, 'scope, 'env> {
    fn new(file: FileChange, stream: &'a mut PartStream<'scope, 'env>, monitor: &'a dyn Monitor) -> Self {
        let position = file.ranges.first().map_or(0, |range| range.start());
        let literal_bytes_max = LITERAL_BYTES_MAX.min(len_u64(stream.part_len_bytes() / 2)).max(1);
        Self {
            file,
            stream,
            monitor,
            range: 0,
            position,
            literal_bytes_max,
            writer: None,
            literal_bytes: 0,
            deltas: FileDeltas::default(),
        }
    }

    pub(super) fn piece(&mut self, piece: Piece<'_>) -> Result<(), Failure> {
        match piece {
            Piece::Hole(range) => {
                self.advance(range.start(), range.len_bytes())?;
                // Over nothing, gaps in a delta are zero anyway.
                if self.file.base != ContentBase::Empty {
                    let subject = self.file.id;
                    self.writer()?.zero(range).map_err(|error| unusable(subject, error))?;
                }
            }
            Piece::Data { offset, bytes } => {
                self.report_read(len_u64(bytes.len()))?;
                self.data(offset, bytes)?;
            }
        }
        Ok(())
    }

    /// Reports bytes as read, whatever becomes of them.
    pub(super) fn report_read(&self, len_bytes: u64) -> Result<(), Failure> {
        check_cancelled(self.monitor)?;
        self.monitor.event(Event::BytesRead(len_bytes));
        Ok(())
    }

    /// Skips a part of a range that the server has already.
    pub(super) fn skip(&mut self, part: ByteRange) -> Result<(), Failure> {
        self.advance(part.start(), part.len_bytes())
    }

    /// Takes the next bytes.
    pub(super) fn data(&mut self, mut offset: u64, mut bytes: &[u8]) -> Result<(), Failure> {
        self.advance(offset, len_u64(bytes.len()))?;
        while !bytes.is_empty() {
            let room = usize::try_from(self.literal_bytes_max - self.literal_bytes).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            let subject = self.file.id;
            self.writer()?
                .literal_bytes(offset, now)
                .map_err(|error| unusable(subject, error))?;
            self.literal_bytes += len_u64(now.len());
            offset += len_u64(now.len());
            bytes = later;
            if self.literal_bytes == self.literal_bytes_max {
                self.end_delta()?;
            }
        }
        Ok(())
    }

    /// Checks that the piece is the next one in order.
    fn advance(&mut self, offset: u64, len_bytes: u64) -> Result<(), Failure> {
        let mut range = self.file.ranges.get(self.range).copied();
        if range.is_some_and(|range| range.end() == self.position) {
            self.range += 1;
            range = self.file.ranges.get(self.range).copied();
            self.position = range.map_or(self.position, |range| range.start());
        }
        let end = offset.checked_add(len_bytes);
        match (range, end) {
            (Some(range), Some(end)) if offset == self.position && end <= range.end() && len_bytes > 0 => {
                self.position = end;
                Ok(())
            }
            _ => Err(Failure::File(ServiceError::new(
                ErrorKind::Node,
                format!(
                    "its bytes arrived out of order: {len_bytes} at {offset}, expected at {}",
                    self.position
                ),
            ))),
        }
    }

    /// The writer of the current delta.
    fn writer(&mut self) -> Result<&mut DeltaWriter<Vec<u8>>, Failure> {
        if self.writer.is_none() {
            let new_len = self.file.attributes.size;
            let base_len = match self.file.base {
                ContentBase::Empty if self.deltas.is_empty() => 0,
                _ => new_len,
            };
            let options = WriterOptions::default();
            let writer = DeltaWriter::with_effort(Vec::new(), base_len, new_len, options, self.stream.effort())
                .map_err(|error| unusable(self.file.id, error))?;
            self.writer = Some(writer);
        }
        self.writer
            .as_mut()
            .ok_or_else(|| unusable(self.file.id, WriteError::Incomplete))
    }

    /// Ends the current delta.
    fn end_delta(&mut self) -> Result<(), Failure> {
        let Some(writer) = self.writer.take() else {
            return Ok(());
        };
        let (bytes, stats) = writer.finish().map_err(|error| unusable(self.file.id, error))?;
        self.literal_bytes = 0;
        self.deltas.push(self.stream, self.file.id, bytes, stats.literal_bytes)
    }

    fn finish(mut self) -> Result<FileStats, Failure> {
        self.end_delta()?;
        // A change of length alone, and a file with nothing but holes, are deltas too.
        if self.deltas.is_empty() && (self.file.base != ContentBase::Empty || self.file.attributes.size > 0) {
            self.writer()?;
            self.end_delta()?;
        }
        let file = &self.file;
        let literal_bytes = self.deltas.finish(self.stream, file.id, &file.attributes, file.base)?;
        Ok(FileStats {
            literal_bytes,
            ..FileStats::default()
        })
    }
}

impl FileDeltas {
    /// Whether no delta was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.number == 0
    }

    /// Adds a delta of `file`: a whole stream.
    ///
    /// # Errors
    /// The parts cannot be sent, or the file has more deltas than a batch can carry.
    pub fn push(
        &mut self,
        stream: &mut PartStream<'_, '_>,
        file: FileId,
        bytes: Vec<u8>,
        literal_bytes: u64,
    ) -> Result<(), Failure> {
        self.number = self.number.checked_add(1).ok_or_else(|| {
            Failure::File(ServiceError::new(
                ErrorKind::Node,
                "it has more data than one batch can carry",
            ))
        })?;
        self.literal_bytes += literal_bytes;
        if self.is_released {
            stream.delta(file, &bytes)?;
            return Ok(());
        }
        self.held_back_bytes += bytes.len();
        self.held_back.push(bytes);
        if self.held_back_bytes >= stream.part_len_bytes() {
            stream.set_aside()?;
            self.is_released = true;
            self.release(stream, file)?;
        }
        Ok(())
    }

    /// Writes the deltas that were held back.
    fn release(&mut self, stream: &mut PartStream<'_, '_>, file: FileId) -> Result<(), Failure> {
        for bytes in std::mem::take(&mut self.held_back) {
            stream.delta(file, &bytes)?;
        }
        self.held_back_bytes = 0;
        Ok(())
    }

    /// Ends the file: its record says how many deltas there are. Returns the literal bytes of all
    /// of them.
    ///
    /// # Errors
    /// The parts cannot be sent.
    pub fn finish(
        mut self,
        stream: &mut PartStream<'_, '_>,
        file: FileId,
        attributes: &Attributes,
        base: ContentBase,
    ) -> Result<u64, Failure> {
        let record = NodeRecord {
            id: file,
            attributes: attributes.clone(),
            content: Some(ContentChange {
                deltas: self.number,
                base,
            }),
        };
        if self.is_released {
            stream.put_down(&record)?;
        } else {
            stream.node(&record)?;
            self.release(stream, file)?;
        }
        Ok(self.literal_bytes)
    }
}

fn ended_early(position: u64, end: u64) -> ServiceError {
    ServiceError::new(
        ErrorKind::Node,
        format!("its bytes ended at {position}, expected up to {end}"),
    )
}

/// A delta of `subject` that cannot be written.
#[must_use]
pub fn unusable(subject: FileId, error: WriteError) -> Failure {
    Failure::All(BackupError::delta(subject, error))
}

pub(super) fn len_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
