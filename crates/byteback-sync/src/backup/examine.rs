//! Selective hashing (SolFS, section 4.3): a file that would have to be sent whole is looked for in what the server has of it.
//!
//! The log knows what was written. For some files all it knows is "all of it, perhaps": the machine stopped while they were open, they
//! changed while nobody watched, or a program wrote them anew from the first byte to the last. If the server has a version of such
//! a file, its signature is fetched, the content at the cut is rolled over it, and only what the server lacks is sent, with copies for
//! the rest. So an insertion into a file that was written anew costs about the insertion.
//!
//! *Not examined* is what the planner leaves out ([`super::plan`]): small files above all, and everything when the server has no such call, or
//! when it once refused a proof in this backup.
//!
//! *Proof.* The checksums are somebody else's word. Every file that takes copies is sent with the digest of its whole content at the
//! cut, and the server compares before the batch counts. If they differ, nothing was applied, and everything is sent once more without
//! looking for anything.
//!
//! *Many literals.* A delta record holds at most `LITERAL_BYTES_MAX` of literals, and copies of a second record would refer to the result of
//! the first, in which old bytes are overwritten. So literals that do not fit are first appended behind the old content, delta by delta;
//! a last delta without literals then takes all pieces from there and from the old content. The intermediate contents exist only inside
//! the batch. Memory: the literals of one record, and the list of extents, of which there are at most [`EXTENTS_MAX`].

use super::content::{Failure, FileDeltas, FileStats, LITERAL_BYTES_MAX, len_u64, unusable};
use super::part_stream::PartStream;
use super::trim::{BlockSums, Gathering};
use crate::decisions::DeltaMethod;
use crate::error::Result;
use crate::monitor::{Event, Monitor, check_cancelled};
use byteback_api::batch::{ContentBase, ProofRecord};
use byteback_api::{Attributes, Digest, FileId};
use byteback_control::{CutId, ErrorKind, Piece, ServiceError, TreeService};
use byteback_delta::find::{BlockIndex, ExtentSink, FindStats, FixedFinder, RollingFinder};
use byteback_delta::{ContentDigest, DeltaWriter, WriteError, WriterOptions};
use byteback_extents::ByteRange;
use byteback_oplog::NodeId;

/// Most extents of one file that are kept; beyond, it is sent whole.
const EXTENTS_MAX: usize = 1 << 18;

/// Which finder looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finder {
    Rolling,
    Fixed,
}

impl Finder {
    /// The one of a method, if it has one.
    pub(super) fn of(method: DeltaMethod) -> Option<Self> {
        match method {
            DeltaMethod::Rsync => Some(Self::Rolling),
            DeltaMethod::Hash => Some(Self::Fixed),
            DeltaMethod::Log | DeltaMethod::Sums | DeltaMethod::Full => None,
        }
    }
}

/// A file that is to be sent as what the server lacks of it.
pub(super) struct Examined<'a> {
    pub(super) node: NodeId,
    pub(super) id: FileId,
    pub(super) attributes: &'a Attributes,
    /// What the server has.
    pub(super) base: &'a BlockIndex,
    pub(super) finder: Finder,
}

/// How examining one file ended.
pub(super) enum Examination {
    /// It is in the batch.
    Sent(FileStats, FindStats),
    /// It cannot be read; the batch is as if it had not been tried.
    Unreadable(ServiceError),
    /// It consists of too many pieces; likewise. Send it whole.
    TooScattered,
}

/// Why a file is given up.
enum Stop {
    Failure(Failure),
    TooScattered,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Reads a whole file at the cut and adds what the server lacks of it to the batch.
pub(super) fn send_examined(
    tree: &dyn TreeService,
    cut: CutId,
    file: &Examined<'_>,
    stream: &mut PartStream<'_, '_>,
    sums: &mut BlockSums<'_>,
    monitor: &dyn Monitor,
) -> Result<Examination> {
    // A full part leaves while the file is being read, and whoever reads cannot ask the tree for something else.
    stream.note_once()?;
    let ended = match read_and_send(tree, cut, file, stream, sums, monitor) {
        Ok((stats, found)) => return Ok(Examination::Sent(stats, found)),
        Err(Stop::Failure(Failure::All(error))) => return Err(error),
        Err(Stop::Failure(Failure::File(error))) => Examination::Unreadable(error),
        Err(Stop::TooScattered) => Examination::TooScattered,
    };
    sums.give_up(file.node);
    stream.take_back()?;
    Ok(ended)
}

fn read_and_send(
    tree: &dyn TreeService,
    cut: CutId,
    file: &Examined<'_>,
    stream: &mut PartStream<'_, '_>,
    sums: &mut BlockSums<'_>,
    monitor: &dyn Monitor,
) -> Result<(FileStats, FindStats), Stop> {
    let len = file.attributes.size;
    let mut digest = ContentDigest::new(len);
    let mut gathering = Gathering::of_file(sums, file.node, len);
    let sink = FoundFile::new(file, stream);
    let mut finder = match file.finder {
        Finder::Rolling => Looking::Rolling(RollingFinder::new(file.base, sink)),
        Finder::Fixed => Looking::Fixed(FixedFinder::new(file.base, sink)),
    };
    // An error of our own has to pass through the service; it waits here meanwhile.
    let mut own_error = None;
    let read = tree.read(cut, file.node, &[(0, len)], &mut |piece| {
        let taken = check_cancelled(monitor).map_err(|error| Stop::Failure(Failure::All(error)));
        let taken = taken.and_then(|()| {
            let (offset, piece_len) = match piece {
                Piece::Hole(range) => (range.start(), range.len_bytes()),
                Piece::Data { offset, bytes } => (offset, len_u64(bytes.len())),
            };
            let expected = finder.position();
            if offset != expected || piece_len == 0 || piece_len > len - expected {
                return Err(disorder(format!("{piece_len} at {offset}, expected at {expected}")));
            }
            gathering.piece(piece, sums)?;
            match piece {
                Piece::Hole(_) => {
                    digest.push_zeros(piece_len);
                    finder.push_hole(piece_len)
                }
                Piece::Data { bytes, .. } => {
                    monitor.event(Event::BytesRead(piece_len));
                    digest.push(bytes);
                    finder.push(bytes)
                }
            }
        });
        taken.map_err(|error| {
            own_error = Some(error);
            ServiceError::new(ErrorKind::Protocol, "the file is given up")
        })
    });
    if let Some(error) = own_error {
        return Err(error);
    }
    if let Err(error) = read {
        return Err(Stop::Failure(match error.kind {
            ErrorKind::Node => Failure::File(error),
            _ => Failure::All(error.into()),
        }));
    }
    let Some(digest) = digest.finish() else {
        let position = finder.position();
        return Err(disorder(format!("an end at {position}, expected at {len}")));
    };
    let (found_file, found) = finder.finish()?;
    let stats = found_file.finish(Digest(digest), found.copied_bytes > 0)?;
    gathering.end(sums);
    Ok((stats, found))
}

/// A finder at work.
enum Looking<'i, S> {
    Rolling(RollingFinder<'i, S>),
    Fixed(FixedFinder<'i, S>),
}

impl<S: ExtentSink> Looking<'_, S> {
    fn position(&self) -> u64 {
        match self {
            Self::Rolling(finder) => finder.position(),
            Self::Fixed(finder) => finder.position(),
        }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), S::Error> {
        match self {
            Self::Rolling(finder) => finder.push(bytes),
            Self::Fixed(finder) => finder.push(bytes),
        }
    }

    fn push_hole(&mut self, len_bytes: u64) -> Result<(), S::Error> {
        match self {
            Self::Rolling(finder) => finder.push_hole(len_bytes),
            Self::Fixed(finder) => finder.push_hole(len_bytes),
        }
    }

    fn finish(self) -> Result<(S, FindStats), S::Error> {
        match self {
            Self::Rolling(finder) => finder.finish(),
            Self::Fixed(finder) => finder.finish(),
        }
    }
}

fn disorder(what: String) -> Stop {
    let error = ServiceError::new(ErrorKind::Node, format!("its bytes came in disorder: {what}"));
    Stop::Failure(Failure::File(error))
}

/// Where an extent's bytes come from.
#[derive(Clone, Copy)]
enum Found {
    /// From the server's version, from this offset on.
    Copy(u64),
    /// From the literals, after so many others.
    Literal(u64),
    Zero,
}

/// Takes what is found and makes delta records of it.
struct FoundFile<'a, 'scope, 'env> {
    id: FileId,
    attributes: &'a Attributes,
    stream: &'a mut PartStream<'scope, 'env>,
    base_len: u64,
    /// Ascending, without gaps.
    extents: Vec<(ByteRange, Found)>,
    /// Literals that were not appended yet.
    literals: Vec<u8>,
    literals_len_max: usize,
    /// Literals that deltas append to the old content.
    appended: u64,
    deltas: FileDeltas,
}

impl<'a, 'scope, 'env> FoundFile<'a, 'scope, 'env> {
    fn new(file: &Examined<'a>, stream: &'a mut PartStream<'scope, 'env>) -> Self {
        let literals_len_max = LITERAL_BYTES_MAX.min(len_u64(stream.part_len_bytes() / 2)).max(1);
        Self {
            id: file.id,
            attributes: file.attributes,
            stream,
            base_len: file.base.signature().content_len_bytes(),
            extents: Vec::new(),
            literals: Vec::new(),
            // At most 8 MiB.
            literals_len_max: usize::try_from(literals_len_max).unwrap_or(usize::MAX),
            appended: 0,
            deltas: FileDeltas::default(),
        }
    }

    fn push(&mut self, range: ByteRange, found: Found) -> Result<(), Stop> {
        if let Some((last, of_last)) = self.extents.last_mut() {
            let continues = match (*of_last, found) {
                (Found::Copy(from), Found::Copy(next)) | (Found::Literal(from), Found::Literal(next)) => {
                    from + last.len_bytes() == next
                }
                (Found::Zero, Found::Zero) => true,
                _ => false,
            };
            if continues && last.end() == range.start() {
                *last = last.hull(range);
                return Ok(());
            }
        }
        if self.extents.len() == EXTENTS_MAX {
            return Err(Stop::TooScattered);
        }
        self.extents.push((range, found));
        Ok(())
    }

    /// A delta that appends the gathered literals to the old content and what was appended before.
    fn append(&mut self) -> Result<(), Stop> {
        if self.literals.is_empty() {
            return Ok(());
        }
        let id = self.id;
        let old_len = self.base_len + self.appended;
        let new_len = old_len + len_u64(self.literals.len());
        let write = || -> Result<_, WriteError> {
            let mut writer = DeltaWriter::new(Vec::new(), old_len, new_len, WriterOptions::default())?;
            writer.literal_bytes(old_len, &self.literals)?;
            writer.finish()
        };
        let (bytes, stats) = write().map_err(|error| unusable(id, error))?;
        self.appended += len_u64(self.literals.len());
        self.literals.clear();
        self.deltas.push(self.stream, id, bytes, stats.literal_bytes)?;
        Ok(())
    }

    /// Adds the last delta, the file's record, and what proves them.
    fn finish(mut self, digest: Digest, has_copies: bool) -> Result<FileStats, Stop> {
        if self.appended > 0 {
            self.append()?;
        }
        let id = self.id;
        let (bytes, literal_bytes) = self.last_delta().map_err(|error| unusable(id, error))?;
        self.deltas.push(self.stream, id, bytes, literal_bytes)?;
        let stats = self
            .deltas
            .finish(self.stream, id, self.attributes, ContentBase::Previous)?;
        if has_copies {
            let proved = self.stream.proof(&ProofRecord { id, digest, sums: None });
            proved.map_err(|error| Stop::Failure(Failure::All(error)))?;
        }
        Ok(stats)
    }

    /// The delta that puts the content together.
    fn last_delta(&self) -> Result<(Vec<u8>, u64), WriteError> {
        let options = WriterOptions {
            copies: true,
            ..WriterOptions::default()
        };
        let old_len = self.base_len + self.appended;
        let mut writer = DeltaWriter::new(Vec::new(), old_len, self.attributes.size, options)?;
        for (range, found) in &self.extents {
            match *found {
                Found::Copy(from) if from == range.start() => {}
                Found::Copy(from) => writer.copy(*range, from)?,
                Found::Literal(before) if self.appended > 0 => writer.copy(*range, self.base_len + before)?,
                Found::Literal(before) => {
                    let rest = usize::try_from(before)
                        .ok()
                        .and_then(|before| self.literals.get(before..));
                    writer.literal(*range, rest.unwrap_or_default())?;
                }
                Found::Zero => writer.zero(*range)?,
            }
        }
        let (bytes, stats) = writer.finish()?;
        Ok((bytes, stats.literal_bytes))
    }
}

impl ExtentSink for FoundFile<'_, '_, '_> {
    type Error = Stop;

    fn literal(&mut self, offset: u64, mut bytes: &[u8]) -> Result<(), Stop> {
        let before = self.appended + len_u64(self.literals.len());
        if let Some(range) = ByteRange::from_offset_len(offset, len_u64(bytes.len())) {
            self.push(range, Found::Literal(before))?;
        }
        while !bytes.is_empty() {
            // Only when more come: what just fits needs no delta of its own.
            if self.literals.len() == self.literals_len_max {
                self.append()?;
            }
            let room = self.literals_len_max - self.literals.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.literals.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn copy(&mut self, range: ByteRange, base_offset: u64) -> Result<(), Stop> {
        self.push(range, Found::Copy(base_offset))
    }

    fn zero(&mut self, range: ByteRange) -> Result<(), Stop> {
        self.push(range, Found::Zero)
    }
}
