//! The answer to a list: the chunks that were found in a base, and their proof.
//!
//! Chunks that are adjacent in both contents form a *segment* with one strong checksum. That is
//! faster to compute (hashing 128 KiB at once takes half the time of hashing chunks) and shorter
//! than the paper's checksum for each chunk. A segment ends when it has [`SEGMENT_LEN`] bytes: that
//! much the client has to hold, and that much is lost if a weak checksum was wrong.
//!
//! Where the new content is proven as a whole in any case, strong checksums of segments only spare
//! the fall-back when that proof fails. Such a client may ask for *unproven* segments
//! ([`MatchParams::for_whole_proof`]): runs whose weak checksums have 128 bits together, for which
//! nothing is read a second time at either end. Other segments are proven as usual.
//!
//! A proven segment proves itself: the client hashes its own bytes, with the answer's seed, and
//! takes a copy only if the checksums are equal. A hostile answer can only claim wrongly that the
//! base has these bytes; a client that uses copies detects this by [`crate::ContentDigest`].

use std::io::{self, Read, Write};

use byteback_extents::ByteRange;

use super::ChunkList;
use super::wire::{ChunkStreamError, GroupReader, GroupWriter, VERSION, array, read_header};
use crate::crc::CrcKind;
use crate::strong::{STRONG_LEN_MAX, StrongHasher, StrongKind};
use crate::varint;
use crate::wire::FILE_LEN_MAX;

/// A segment ends with the chunk that brings it to this many bytes.
pub const SEGMENT_LEN: u64 = 128 * 1024;

/// The first bytes of every answer.
const MAGIC: [u8; 8] = *b"\x89BBCHA\r\n";

/// Magic, version, strong kind, strong length, flags, a zero, seed, chunks, base length, segments,
/// CRC.
const HEADER_LEN: usize = 8 + 2 + 4 + 4 * 8 + 4;

/// Header flag: unproven segments may occur.
const FLAG_UNPROVEN: u8 = 1;

/// The fewest bytes of weak checksums with which a run is taken unproven: as many as a strong
/// checksum has.
const UNPROVEN_WEAK_LEN: usize = 16;

/// The shortest strong checksum, in bytes.
const STRONG_LEN_MIN: u8 = 8;

/// The length of strong checksums in bytes: each is compared once, so this is far more than random
/// collisions require.
const STRONG_LEN_DEFAULT: u8 = 16;

/// Chunks skipped, chunks, change of the shift, strong checksum.
const ENTRY_LEN_MAX: usize = 3 * varint::LEN_MAX + STRONG_LEN_MAX;

const WHAT: &str = "chunk answer";

/// The parameters by which segments are proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchParams {
    strong: StrongKind,
    strong_len: u8,
    seed: u64,
    has_unproven: bool,
}

impl MatchParams {
    /// Proof of every segment, keyed by `seed`, which must be drawn at random after the list is
    /// known.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            strong: StrongKind::Blake3,
            strong_len: STRONG_LEN_DEFAULT,
            seed,
            has_unproven: false,
        }
    }

    /// As [`Self::new`], for a client that proves the new content as a whole
    /// ([`crate::ContentDigest`]) and falls back to another way if that fails, as it does after a
    /// forged CRC, or a content that changed after it was listed: long runs are taken by their weak
    /// checksums.
    #[must_use]
    pub const fn for_whole_proof(seed: u64) -> Self {
        Self {
            has_unproven: true,
            ..Self::new(seed)
        }
    }

    /// Whether a run of `chunks` chunks is taken without a strong checksum.
    pub(crate) fn is_taken_unproven(&self, chunks: usize, kind: CrcKind) -> bool {
        self.has_unproven && chunks.saturating_mul(kind.len_bytes()) >= UNPROVEN_WEAK_LEN
    }

    pub(crate) fn hasher(&self) -> StrongHasher {
        StrongHasher::new(self.strong, self.seed)
    }
}

/// A run of chunks that are adjacent in the list and in the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The number of the first chunk.
    pub first_chunk: usize,
    /// The number of chunks, at least one.
    pub chunks: usize,
    /// The offset of their bytes in the base.
    pub base_offset: u64,
    /// Their strong checksum; the bytes beyond the answer's checksum length are zero. `None` if
    /// they are unproven.
    pub(crate) strong: Option<[u8; STRONG_LEN_MAX]>,
}

impl Segment {
    /// Whether the segment has a strong checksum.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.strong.is_some()
    }
}

/// The chunks of a list that were found in a base, as segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchAnswer {
    params: MatchParams,
    chunks: usize,
    base_len_bytes: u64,
    segments: Vec<Segment>,
}

impl MatchAnswer {
    /// An empty answer to a list of `chunks` chunks.
    pub(crate) fn new(params: MatchParams, chunks: usize, base_len_bytes: u64) -> Self {
        Self {
            params,
            chunks,
            base_len_bytes,
            segments: Vec::new(),
        }
    }

    /// Adds a segment after all others, with its strong checksum at full length.
    pub(crate) fn push(&mut self, mut segment: Segment) {
        if let Some(strong) = &mut segment.strong {
            strong[self.strong_len()..].fill(0);
        }
        self.segments.push(segment);
    }

    /// The parameters by which segments are proven.
    #[must_use]
    pub fn params(&self) -> MatchParams {
        self.params
    }

    /// The length of the base.
    #[must_use]
    pub fn base_len_bytes(&self) -> u64 {
        self.base_len_bytes
    }

    /// The segments, in the order of the list.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The ranges of the listed new content outside unproven segments, ascending: the finder needs
    /// the bytes of these only ([`crate::find::ChunkFinder::pass_unproven`]).
    pub fn needed<'a>(&'a self, list: &'a ChunkList) -> impl Iterator<Item = ByteRange> + 'a {
        let unproven = || {
            let segments = self.segments.iter().filter(|segment| !segment.is_proven());
            segments.filter_map(|segment| range_of(list, segment.first_chunk, segment.chunks))
        };
        let starts = std::iter::once(0).chain(unproven().map(ByteRange::end));
        let ends = unproven()
            .map(ByteRange::start)
            .chain(std::iter::once(list.content_len_bytes()));
        starts.zip(ends).filter_map(|(start, end)| ByteRange::new(start, end))
    }

    /// Whether `strong` is the segment's strong checksum.
    pub(crate) fn is_strong_of(&self, segment: &Segment, strong: &[u8; STRONG_LEN_MAX]) -> bool {
        let len = self.strong_len();
        segment.strong.is_some_and(|known| known[..len] == strong[..len])
    }

    fn strong_len(&self) -> usize {
        usize::from(self.params.strong_len).min(STRONG_LEN_MAX)
    }

    /// Writes the answer as bytes.
    ///
    /// # Errors
    /// The error of `out`; `InvalidInput` if `list` is not the one that was answered.
    pub fn write_to(&self, list: &ChunkList, mut out: impl Write) -> io::Result<()> {
        let mut header = Vec::with_capacity(HEADER_LEN);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        let flags = if self.params.has_unproven { FLAG_UNPROVEN } else { 0 };
        header.extend_from_slice(&[self.params.strong.code(), self.params.strong_len, flags, 0]);
        for number in [
            self.params.seed,
            self.chunks as u64,
            self.base_len_bytes,
            self.segments.len() as u64,
        ] {
            header.extend_from_slice(&number.to_le_bytes());
        }
        let mut groups = GroupWriter::begin(&mut out, header)?;
        let mut context = Context::default();
        for segment in &self.segments {
            let start = list.get(segment.first_chunk).map(|chunk| chunk.range.start());
            let (Some(start), true) = (start, segment.first_chunk >= context.next_chunk) else {
                let message = "the answer does not belong to this list";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            };
            let entry = groups.entry()?;
            varint::put(entry, (segment.first_chunk - context.next_chunk) as u64);
            varint::put(
                entry,
                (segment.chunks as u64 - 1) << 1 | u64::from(segment.strong.is_none()),
            );
            let shift = segment.base_offset.wrapping_sub(start).cast_signed();
            varint::put(entry, varint::zigzag(shift.wrapping_sub(context.shift)));
            if let Some(strong) = segment.strong {
                entry.extend_from_slice(&strong[..self.strong_len()]);
            }
            context = Context {
                next_chunk: segment.first_chunk + segment.chunks,
                shift,
            };
        }
        groups.finish()?;
        out.flush()
    }

    /// Reads a whole answer to `list`, and nothing beyond it. Memory: less than for the list.
    ///
    /// # Errors
    /// If the stream fails, is not an answer, is damaged or cut short, or does not fit the list.
    pub fn read(mut stream: impl Read, list: &ChunkList) -> Result<Self, ChunkStreamError> {
        let (header, header_crc) = read_header::<HEADER_LEN>(&mut stream, WHAT, MAGIC)?;
        // Other kinds are not accepted: most of them have no key.
        let strong = StrongKind::from_code(header[10])
            .filter(|&kind| kind == StrongKind::Blake3)
            .ok_or(ChunkStreamError::Kind {
                what: WHAT,
                code: header[10],
            })?;
        let strong_len = header[11];
        if !(STRONG_LEN_MIN..=STRONG_LEN_MAX as u8).contains(&strong_len) {
            return Err(impossible("its strong checksums have an impossible length"));
        }
        let [seed, chunks, base_len_bytes, segments] =
            [14, 22, 30, 38].map(|at| u64::from_le_bytes(array(&header, at)));
        if header[12] & !FLAG_UNPROVEN != 0 || header[13] != 0 {
            return Err(impossible("reserved bits of its header are used"));
        }
        if chunks != list.len() as u64 {
            return Err(impossible("it answers another list"));
        }
        if base_len_bytes > FILE_LEN_MAX {
            return Err(impossible("its base is too long for a file"));
        }
        if segments > chunks {
            return Err(impossible("it has more segments than the list has chunks"));
        }
        let params = MatchParams {
            strong,
            strong_len,
            seed,
            has_unproven: header[12] & FLAG_UNPROVEN != 0,
        };
        let mut answer = Self::new(params, list.len(), base_len_bytes);
        let mut context = Context::default();
        let mut groups = GroupReader::new(stream, WHAT, header_crc, segments);
        while let Some((count, mut bytes)) = groups.next(ENTRY_LEN_MAX)? {
            for _ in 0..count {
                let segment = context.take(list, &mut bytes, &answer)?;
                answer.segments.push(segment);
            }
            if !bytes.is_empty() {
                return Err(impossible("a group has bytes after its segments"));
            }
        }
        Ok(answer)
    }
}

fn impossible(problem: &'static str) -> ChunkStreamError {
    ChunkStreamError::Impossible { what: WHAT, problem }
}

/// The bytes of a segment in the new content; `None` if its chunks are not in the list or do not
/// follow each other.
pub(crate) fn range_of(list: &ChunkList, first_chunk: usize, chunks: usize) -> Option<ByteRange> {
    let first = list.get(first_chunk)?.range;
    let last = list.get(first_chunk.checked_add(chunks)?.checked_sub(1)?)?.range;
    ByteRange::new(first.start(), last.end())
}

/// The state that an entry refers back to.
#[derive(Default)]
struct Context {
    /// The chunk after the last segment.
    next_chunk: usize,
    /// The difference between base offset and offset of the last segment.
    shift: i64,
}

impl Context {
    fn take(&mut self, list: &ChunkList, bytes: &mut &[u8], answer: &MatchAnswer) -> Result<Segment, ChunkStreamError> {
        let mut number = || varint::take(bytes).ok_or(impossible("a number of a segment is malformed"));
        let (passed, more, change) = (number()?, number()?, number()?);
        let (more, is_unproven) = (more >> 1, more & 1 != 0);
        let outside = || impossible("a segment has chunks that are not in the list");
        let first_chunk = usize::try_from(passed)
            .ok()
            .and_then(|passed| self.next_chunk.checked_add(passed))
            .ok_or_else(outside)?;
        let chunks = usize::try_from(more)
            .ok()
            .and_then(|more| more.checked_add(1))
            .filter(|&chunks| first_chunk.checked_add(chunks).is_some_and(|end| end <= list.len()))
            .ok_or_else(outside)?;
        if is_unproven && !answer.params.is_taken_unproven(chunks, list.kind()) {
            return Err(impossible("a segment is not proven"));
        }
        // Work is bounded: no chunk is in two segments.
        let mut ends = (first_chunk..first_chunk + chunks)
            .filter_map(|index| list.get(index))
            .map(|chunk| chunk.range);
        let mut range = ends.next().ok_or_else(outside)?;
        for chunk in ends {
            if chunk.start() != range.end() || (range.len_bytes() >= SEGMENT_LEN && !is_unproven) {
                return Err(impossible("the chunks of a segment are not contiguous or too many"));
            }
            range = range.hull(chunk);
        }
        let shift = self.shift.wrapping_add(varint::unzigzag(change));
        let base_offset = range
            .start()
            .checked_add_signed(shift)
            .filter(|offset| {
                offset
                    .checked_add(range.len_bytes())
                    .is_some_and(|end| end <= answer.base_len_bytes)
            })
            .ok_or(impossible("a segment extends past the base's end"))?;
        let strong = match is_unproven {
            true => None,
            false => {
                let (cut, rest) = bytes
                    .split_at_checked(answer.strong_len())
                    .ok_or(impossible("a group ends inside a checksum"))?;
                *bytes = rest;
                let mut strong = [0; STRONG_LEN_MAX];
                strong[..cut.len()].copy_from_slice(cut);
                Some(strong)
            }
        };
        *self = Self {
            next_chunk: first_chunk + chunks,
            shift,
        };
        Ok(Segment {
            first_chunk,
            chunks,
            base_offset,
            strong,
        })
    }
}

#[cfg(test)]
mod tests;
