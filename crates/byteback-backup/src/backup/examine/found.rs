//! The findings of a finder about a file, as delta records.
//!
//! *Many literals.* A delta record holds at most `LITERAL_BYTES_MAX` of literals, or half a part,
//! and copies of a second record would refer to the result of the first, in which old bytes are
//! overwritten. So literals that do not fit are first appended behind the old content, delta by
//! delta; a last delta without literals then takes all pieces from there and from the old content.
//! The intermediate contents exist only inside the batch. Memory: the literals of one record, or a
//! MiB, and the list of extents, of which there are at most
//! [`SearchLimits::extents_max`](super::super::limits::SearchLimits::extents_max).
//!
//! *A second look.* Before literals leave, or are appended, they are looked for once more: whole
//! blocks anywhere, if the finder searched only a part of the server's version ([`elsewhere`]);
//! in what programs overwrote, if that is at hand ([`compared`]); all in short blocks of the rest
//! of the server's version ([`second_look`]), as a finder leaves whole blocks; and in blocks at any
//! offset of it ([`anywhere`]).

mod anywhere;
mod compared;
mod elsewhere;
mod second_look;

use super::super::content::{FileDeltas, FileStats, LITERAL_BYTES_MAX, len_u64, unusable};
use super::super::part_stream::PartStream;
use super::overwritten::Overwritten;
use super::{Examined, Place, Stop};
use crate::decisions::Fallback;
use anywhere::Anywhere;
use byteback_api::Digest;
use byteback_api::batch::ProofRecord;
use byteback_delta::Source;
use byteback_delta::find::{ExtentSink, FoundExtents};
use byteback_delta::leaves::LeafKind;
use byteback_delta::{DeltaWriter, WriteError, WriterOptions};
use byteback_extents::ByteRange;
use byteback_model::{Attributes, ContentBase, FileId};

/// The source of an extent's bytes.
#[derive(Clone, Copy)]
enum Found {
    /// The server's version, from this offset on.
    Copy(u64),
    /// The literals, from this offset among them on.
    Literal(u64),
    Zero,
}

/// Proof of a content that is put together at the server.
pub(super) struct Proof {
    digest: Digest,
    /// The kind of the digest's leaves; `None`: the digest is of the bytes.
    sums: Option<LeafKind>,
    /// The ranges that the digest is of; empty: all.
    ranges: Vec<ByteRange>,
}

impl Proof {
    /// The digest of all bytes.
    pub(super) fn bytes(digest: Digest) -> Self {
        Self {
            digest,
            sums: None,
            ranges: Vec::new(),
        }
    }

    /// The digest of all leaves of this kind.
    pub(super) fn leaves(digest: Digest, kind: LeafKind) -> Self {
        Self {
            digest,
            sums: Some(kind),
            ranges: Vec::new(),
        }
    }

    /// The digest of the bytes of these ranges.
    pub(super) fn ranges(digest: Digest, ranges: Vec<ByteRange>) -> Self {
        Self {
            digest,
            sums: None,
            ranges,
        }
    }
}

/// Makes delta records of the findings.
pub(super) struct FoundFile<'a, 'scope, 'env> {
    place: Place<'a>,
    id: FileId,
    /// The file at the server that the copies are of.
    at_server: FileId,
    base: ContentBase,
    attributes: &'a Attributes,
    stream: &'a mut PartStream<'scope, 'env>,
    base_len: u64,
    extents_max: usize,
    /// Ascending. Bytes in gaps are those of the server's version at the same offset.
    extents: Vec<(ByteRange, Found)>,
    /// Literals that are not appended yet.
    literals: Vec<u8>,
    /// Most of them.
    gathered_len_max: usize,
    /// Most literals of one delta.
    delta_len_max: usize,
    /// Number of literal bytes that deltas append to the old content.
    appended: u64,
    deltas: FileDeltas,
    /// Literals before this one were looked for a second time, or must not be.
    looked_upto: u64,
    /// Extents that second looks added: they take no room from those of the finder, which may have
    /// seen bytes that are not held still any more.
    added: usize,
    /// Whether whole blocks may lie where the finder did not search.
    may_lie_elsewhere: bool,
    anywhere: Anywhere,
    /// Whether nearly all that is unused of the server's version was compared.
    is_compared: bool,
    /// The bytes that were overwritten, if literals are still to be compared with them.
    overwritten: Option<&'a Overwritten>,
    found_again_bytes: u64,
}

impl<'a, 'scope, 'env> FoundFile<'a, 'scope, 'env> {
    /// For a file whose version at the server has `base_len` bytes, as the server says.
    pub(super) fn new(
        place: Place<'a>,
        file: &Examined<'a>,
        base_len: u64,
        stream: &'a mut PartStream<'scope, 'env>,
    ) -> Self {
        let delta_len_max = LITERAL_BYTES_MAX.min(len_u64(stream.part_len_bytes() / 2)).max(1);
        // At most 8 MiB.
        let delta_len_max = usize::try_from(delta_len_max).unwrap_or(usize::MAX);
        let has_second_look = second_look::is_wanted(place.job);
        Self {
            place,
            id: file.id,
            at_server: file.at_server,
            base: file.base(),
            attributes: file.attributes,
            stream,
            base_len,
            extents_max: place.job.options.limits.extents_max,
            extents: Vec::new(),
            literals: Vec::new(),
            gathered_len_max: match has_second_look {
                true => delta_len_max.max(place.job.options.limits.looked_for_len_min_bytes),
                false => delta_len_max,
            },
            delta_len_max,
            appended: 0,
            deltas: FileDeltas::default(),
            looked_upto: 0,
            added: 0,
            may_lie_elsewhere: false,
            anywhere: Anywhere::default(),
            is_compared: false,
            overwritten: file.overwritten,
            found_again_bytes: 0,
        }
    }

    /// Without a second look: the proof does not cover all that was read.
    pub(super) fn without_second_look(self) -> Self {
        Self {
            looked_upto: u64::MAX,
            gathered_len_max: self.delta_len_max,
            ..self
        }
    }

    /// For a finder that searched only a part of the server's version, or for long blocks.
    pub(super) fn with_blocks_elsewhere(self) -> Self {
        Self {
            may_lie_elsewhere: true,
            anywhere: Anywhere::Unasked,
            ..self
        }
    }

    /// For a finder that searched only a part of the server's version, though blocks at multiples
    /// of their length anywhere.
    pub(super) fn with_blocks_anywhere(self) -> Self {
        Self {
            anywhere: Anywhere::Unasked,
            ..self
        }
    }

    /// For a finder that compared everything with the overwritten bytes, as far as it had them.
    /// `had_nearly_all`: hardly any are left for a second look.
    pub(super) fn without_comparison(self, had_nearly_all: bool) -> Self {
        Self {
            overwritten: None,
            is_compared: had_nearly_all,
            ..self
        }
    }

    /// Looks for the literals that were not looked for yet, in all ways that are worth it.
    /// `is_whole`: the finder has passed the whole content.
    fn look_again(&mut self, is_whole: bool) {
        if second_look::is_wanted(self.place.job) {
            self.look_elsewhere();
            let can_compare = self.comparable().is_some();
            if can_compare {
                // Blocks first: short matches would take them apart.
                self.look_anywhere();
                self.compare();
            }
            if !self.is_compared
                && let Some(first) = self.look_closer(is_whole)
            {
                let mut looks = self.place.job.second_looks.get();
                looks.end(first);
                self.place.job.second_looks.set(looks);
            }
            if !can_compare && self.look_anywhere() {
                // The rest of a copied file lies beside its blocks.
                self.look_closer(is_whole);
            }
            // Once is enough.
            self.looked_upto = self.looked_upto.max(self.literals_end());
        }
    }

    /// Number of all literal bytes so far.
    fn literals_end(&self) -> u64 {
        self.appended + len_u64(self.literals.len())
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
            // Literals that were looked for and those that were not are different extents.
            let is_border = matches!(found, Found::Literal(next) if next == self.looked_upto);
            if continues && last.end() == range.start() {
                if !is_border {
                    *last = last.hull(range);
                    return Ok(());
                }
                self.added += 1;
            }
        }
        if self.extents.len() >= self.extents_max.saturating_add(self.added) {
            return Err(Stop::Fallback(Fallback::TooScattered));
        }
        self.extents.push((range, found));
        Ok(())
    }

    /// Adds deltas that append the gathered literals to the old content and to earlier ones.
    fn append(&mut self) -> Result<(), Stop> {
        let literals = std::mem::take(&mut self.literals);
        for some in literals.chunks(self.delta_len_max) {
            self.append_some(some)?;
        }
        Ok(())
    }

    fn append_some(&mut self, literals: &[u8]) -> Result<(), Stop> {
        let id = self.id;
        let old_len = self.base_len + self.appended;
        let new_len = old_len + len_u64(literals.len());
        let effort = self.stream.effort();
        let write = || -> Result<_, WriteError> {
            let options = WriterOptions::default();
            let mut writer = DeltaWriter::with_effort(Vec::new(), old_len, new_len, options, effort)?;
            writer.literal_bytes(old_len, literals)?;
            writer.finish()
        };
        let (bytes, stats) = write().map_err(|error| unusable(id, error))?;
        self.appended += len_u64(literals.len());
        self.deltas.push(self.stream, id, bytes, stats.literal_bytes)?;
        Ok(())
    }

    /// Adds the last delta and the file's record, and the proof, if needed: for copies, and for
    /// bytes that were not read together with the digest. Holes here become holes there, even where
    /// the server has zeros: to checksums both are the same.
    pub(super) fn finish(mut self, proof: Proof, needs_proof: bool, holes: &[ByteRange]) -> Result<FileStats, Stop> {
        self.look_again(true);
        if self.appended > 0 || self.literals.len() > self.delta_len_max {
            self.append()?;
        }
        let needs_proof = needs_proof || self.found_again_bytes > 0;
        let id = self.id;
        let (bytes, literal_bytes) = self.last_delta(holes).map_err(|error| unusable(id, error))?;
        self.deltas.push(self.stream, id, bytes, literal_bytes)?;
        let literal_bytes = self.deltas.finish(self.stream, id, self.attributes, self.base)?;
        if needs_proof {
            let Proof { digest, sums, ranges } = proof;
            let ranges = ranges.iter().map(|range| (range.start(), range.len_bytes()));
            self.stream.proof(&ProofRecord {
                id,
                digest,
                sums,
                ranges: ranges.collect(),
            })?;
        }
        Ok(FileStats {
            literal_bytes,
            is_proven: needs_proof,
            found_again_bytes: self.found_again_bytes,
        })
    }

    /// The delta that puts the content together.
    fn last_delta(&mut self, holes: &[ByteRange]) -> Result<(Vec<u8>, u64), WriteError> {
        let options = WriterOptions {
            copies: true,
            ..WriterOptions::default()
        };
        let old_len = self.base_len + self.appended;
        let (new_len, effort) = (self.attributes.size, self.stream.effort());
        let mut writer = DeltaWriter::with_effort(Vec::new(), old_len, new_len, options, effort)?;
        for (range, found) in parted(&self.extents, holes) {
            match found {
                Found::Copy(from) if from == range.start() => {}
                Found::Copy(from) => writer.copy(range, from)?,
                Found::Literal(before) if self.appended > 0 => writer.copy(range, self.base_len + before)?,
                Found::Literal(before) => {
                    let rest = usize::try_from(before)
                        .ok()
                        .and_then(|before| self.literals.get(before..));
                    writer.literal(range, rest.unwrap_or_default())?;
                }
                Found::Zero => writer.zero(range)?,
            }
        }
        let (bytes, stats) = writer.finish()?;
        Ok((bytes, stats.literal_bytes))
    }
}

impl FoundFile<'_, '_, '_> {
    /// The literals that were not looked for yet, with their numbers among the extents and their
    /// bytes.
    fn unlooked(&self) -> impl Iterator<Item = (usize, ByteRange, &[u8])> {
        let extents = self.extents.iter().enumerate();
        extents.filter_map(|(number, &(range, found))| match found {
            Found::Literal(before) if before >= self.looked_upto => {
                Some((number, range, self.gathered(before, range.len_bytes())))
            }
            _ => None,
        })
    }

    /// The bytes of literals that are not appended.
    fn gathered(&self, before: u64, len_bytes: u64) -> &[u8] {
        let start = usize::try_from(before.saturating_sub(self.appended)).unwrap_or(usize::MAX);
        let end = start.saturating_add(usize::try_from(len_bytes).unwrap_or(usize::MAX));
        self.literals.get(start..end).unwrap_or_default()
    }

    /// Divides literals: `find` gets the number of each among the extents, its range and its bytes,
    /// and returns the extents that it consists of, if any of them was found. A literal whose parts
    /// would be too many stays as it is. Returns the bytes that were found.
    fn divide(&mut self, mut find: impl FnMut(usize, ByteRange, &[u8]) -> Option<FoundExtents>) -> u64 {
        let mut divided = Divided {
            appended: self.appended,
            extents: Vec::with_capacity(self.extents.len()),
            literals: Vec::with_capacity(self.literals.len()),
            added: 0,
        };
        let mut found_bytes = 0;
        for (number, &(range, found)) in self.extents.iter().enumerate() {
            let Found::Literal(before) = found else {
                divided.extents.push((range, found));
                continue;
            };
            if before < self.appended {
                // Its bytes that are not appended keep their place.
                let rest = (before + range.len_bytes()).saturating_sub(self.appended);
                divided.literals.extend_from_slice(self.gathered(self.appended, rest));
                divided.extents.push((range, found));
                continue;
            }
            let bytes = self.gathered(before, range.len_bytes());
            let room = self.extents_max.saturating_sub(self.added + divided.added);
            let parts = match before >= self.looked_upto {
                true => find(number, range, bytes).filter(|parts| parts.extents.len() <= room),
                false => None,
            };
            let Some(parts) = parts else {
                divided.literal(range, bytes);
                continue;
            };
            divided.added += parts.extents.len().saturating_sub(1);
            for (range, source) in &parts.extents {
                match source {
                    Source::Literal(bytes) => divided.literal(*range, bytes),
                    Source::Copy { base_offset } => {
                        found_bytes += range.len_bytes();
                        divided.extents.push((*range, Found::Copy(*base_offset)));
                    }
                    Source::Zero => divided.extents.push((*range, Found::Zero)),
                }
            }
        }
        self.added += divided.added;
        self.extents = divided.extents;
        self.literals = divided.literals;
        self.found_again_bytes += found_bytes;
        found_bytes
    }
}

/// The extents after literals were divided, and the literals that are left and not appended yet.
struct Divided {
    appended: u64,
    extents: Vec<(ByteRange, Found)>,
    literals: Vec<u8>,
    /// Extents that were added.
    added: usize,
}

impl Divided {
    fn literal(&mut self, range: ByteRange, bytes: &[u8]) {
        let before = self.appended + len_u64(self.literals.len());
        self.extents.push((range, Found::Literal(before)));
        self.literals.extend_from_slice(bytes);
    }
}

/// The extents with holes laid over them; both ascend.
fn parted(extents: &[(ByteRange, Found)], holes: &[ByteRange]) -> Vec<(ByteRange, Found)> {
    let mut parted = Vec::with_capacity(extents.len());
    let mut holes = holes.iter().copied().peekable();
    for &(extent, found) in extents {
        let mut left = Some(extent);
        while let Some(range) = left {
            while holes.next_if(|hole| hole.end() <= range.start()).is_some() {}
            let hole = holes.peek().and_then(|hole| hole.intersect(range));
            let (now, of_now, later) = match hole {
                Some(hole) if hole.start() == range.start() => (Some(hole), Found::Zero, range.split_at(hole.end()).1),
                Some(hole) => {
                    let (now, later) = range.split_at(hole.start());
                    (now, found.after(range.start() - extent.start()), later)
                }
                None => (Some(range), found.after(range.start() - extent.start()), None),
            };
            parted.extend(now.map(|now| (now, of_now)));
            left = later;
        }
    }
    parted
}

impl Found {
    /// The source of the bytes this far behind the first one.
    fn after(self, bytes: u64) -> Self {
        match self {
            Self::Copy(from) => Self::Copy(from + bytes),
            Self::Literal(before) => Self::Literal(before + bytes),
            Self::Zero => Self::Zero,
        }
    }
}

impl ExtentSink for FoundFile<'_, '_, '_> {
    type Error = Stop;

    fn literal(&mut self, offset: u64, mut bytes: &[u8]) -> Result<(), Stop> {
        let mut at = offset;
        while !bytes.is_empty() {
            // Only when more come: literals that just fit need no delta of their own.
            if self.literals.len() == self.gathered_len_max {
                self.look_again(false);
                // Little room is not worth a look the next time.
                if self.literals.len() > self.gathered_len_max / 2 {
                    self.append()?;
                }
            }
            let room = self.gathered_len_max - self.literals.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            let before = self.literals_end();
            if let Some(range) = ByteRange::from_offset_len(at, len_u64(now.len())) {
                self.push(range, Found::Literal(before))?;
            }
            self.literals.extend_from_slice(now);
            at = at.saturating_add(len_u64(now.len()));
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
