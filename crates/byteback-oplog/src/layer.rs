//! The changes of one node within one epoch: the persisted form of the mlog tree (SolFS section
//! 3.2.1).
//!
//! A [`Layer`] holds the byte ranges that were touched, or says that the whole content must be
//! taken as changed and why. A layer without ranges still says something: attributes changed.
//! Laying a newer layer over an older one is the union; this is how epochs that no mark separates
//! become one (SolFS Fig. 8) and how `changes(since)` adds up.
//!
//! *Unit*: a layer whose ranges became too many may have been turned into pages (the paper's
//! granularity, kept in its `ino_flag`). The ranges themselves are bytes in either case, so that
//! layers of different units can be laid over each other.
//!
//! Form: version byte; reason byte (0: ranges count), with its highest bit set where the unit is
//! pages; then, if there are ranges, the binary logarithm of the largest power of two that divides
//! all their bounds, and for each range the gap since the previous end, with one bit that says
//! whether the previous length repeats, followed by the length if not, all in units of that power;
//! sealed. See [`crate::mlog`] for the savings.

use std::num::NonZeroU64;

use byteback_extents::{ByteRange, ExtentSet};
use serde::{Deserialize, Serialize};

use crate::codec::{Malformed, Reader, put_flagged, put_varint, seal};

const VERSION: u8 = 1;
/// In the place of the reason, in a row that only says that the layer is kept elsewhere
/// ([`crate::keeper`]).
const ELSEWHERE: u8 = 0x7f;
/// In the reason byte: the unit is pages.
const PAGES: u8 = 0x80;
/// Bytes in a page as a unit, independent of the machine's page size.
pub(crate) const PAGE_BYTES: NonZeroU64 = NonZeroU64::new(4096).unwrap();

/// The unit of a layer's ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// Bytes.
    #[default]
    Byte,
    /// Pages of 4 KiB: ranges that are added are aligned outwards.
    Page,
}

/// The units in which ranges are kept (SolFS section 3.2.1, dynamic granularity alignment).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// Bytes. Past [`crate::LogOptions::extents_per_file_max`] the closest ranges of a file are
    /// joined first, past [`crate::LogOptions::extents_memory_bytes`] those of all files, so that
    /// the fewest unwritten bytes are reported.
    #[default]
    Byte,
    /// Pages of 4 KiB: every range is aligned outwards. Past the limit as [`Granularity::Byte`].
    Page,
    /// The paper's: bytes up to the limit, then all ranges of the file become pages. Past the limit
    /// in pages as [`Granularity::Byte`].
    Adaptive,
}

/// The limits of a file's ranges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) extents_max: usize,
    pub(crate) granularity: Granularity,
}

/// Why the whole content of a file is reported instead of ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WholeReason {
    /// The file did not exist at the mark.
    Created,
    /// The consumer has no mark yet, or one that this log does not know.
    NoMark,
    /// Size, times, owner or mode differ from the record although no change passed the gate.
    Untracked,
    /// The daemon or the machine stopped while the file was open for change.
    Interrupted,
    /// A consumer could not save the file last time.
    Unsaved,
    /// The consumer was dropped, by order or because it was silent for too long.
    Dropped,
    /// The log was damaged or taken away, and a new one began.
    LogLost,
}

impl WholeReason {
    /// The number that stands for the reason in files; it never changes.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Created => 1,
            Self::NoMark => 2,
            Self::Untracked => 3,
            Self::Interrupted => 4,
            Self::Unsaved => 5,
            Self::Dropped => 6,
            Self::LogLost => 7,
        }
    }

    /// The reason that a number stands for.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Created),
            2 => Some(Self::NoMark),
            3 => Some(Self::Untracked),
            4 => Some(Self::Interrupted),
            5 => Some(Self::Unsaved),
            6 => Some(Self::Dropped),
            7 => Some(Self::LogLost),
            _ => None,
        }
    }
}

/// The changes of one node in one epoch.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    /// Byte ranges that may differ from what they were when the epoch began. Meaningless beside
    /// `whole`.
    pub ranges: ExtentSet,
    /// Why everything may differ, if so.
    pub whole: Option<WholeReason>,
    /// The unit of ranges that are added from now on.
    pub unit: Unit,
}

impl Layer {
    /// Adds the changes of `newer` on top of this layer.
    pub fn overlay(&mut self, newer: &Self) {
        self.whole = self.whole.or(newer.whole);
        self.unit = self.unit.max(newer.unit);
        if self.whole.is_some() {
            self.ranges = ExtentSet::new();
            return;
        }
        self.ranges.union_with(&newer.ranges);
    }

    /// Adds a range that was touched, and keeps within bounds.
    pub(crate) fn touched(&mut self, range: ByteRange, bounds: Bounds) {
        if self.whole.is_some() {
            return;
        }
        if bounds.granularity == Granularity::Page {
            self.unit = Unit::Page;
        }
        self.ranges.insert(match self.unit {
            Unit::Byte => range,
            Unit::Page => range.align_out(PAGE_BYTES),
        });
        self.keep_within(bounds);
    }

    /// Brings the number of ranges within the bound, adding as few bytes as the granularity allows.
    ///
    /// Past the bound the closest neighbours are joined until a sixteenth is free again: joining
    /// looks at all ranges, and that cost is spread over the ranges that come until the next time.
    /// The loss of precision is that of a bound that much lower.
    pub(crate) fn keep_within(&mut self, bounds: Bounds) {
        if self.ranges.len() <= bounds.extents_max {
            return;
        }
        if bounds.granularity != Granularity::Byte {
            self.unit = Unit::Page;
            self.ranges = self.ranges.aligned_out(PAGE_BYTES);
        }
        if self.ranges.len() > bounds.extents_max {
            self.ranges.join_closest(bounds.extents_max - bounds.extents_max / 16);
        }
    }

    /// Whether the whole content is reported because its changes were not seen.
    pub(crate) fn is_unknown(&self) -> bool {
        self.whole.is_some_and(|reason| reason != WholeReason::Created)
    }

    /// As [`Layer::is_unknown`] for an encoded layer, looking only at its reason byte.
    pub(crate) fn is_encoded_unknown(bytes: &[u8]) -> bool {
        let reason = bytes.get(1).and_then(|code| WholeReason::from_code(code & !PAGES));
        reason.is_some_and(|reason| reason != WholeReason::Created)
    }

    /// Takes the whole content as changed.
    pub fn mark_whole(&mut self, reason: WholeReason) {
        self.whole.get_or_insert(reason);
        self.ranges = ExtentSet::new();
    }

    /// The row that stands for a layer kept elsewhere.
    pub(crate) fn elsewhere() -> Vec<u8> {
        seal(vec![VERSION, ELSEWHERE])
    }

    /// Whether a row stands for a layer kept elsewhere.
    pub(crate) fn is_elsewhere(row: &[u8]) -> bool {
        row == Self::elsewhere()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let unit = match self.unit {
            Unit::Byte => 0,
            Unit::Page => PAGES,
        };
        let mut out = vec![VERSION, self.whole.map_or(0, WholeReason::code) | unit];
        if self.whole.is_none() {
            encode_ranges(&self.ranges, &mut out);
        }
        seal(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::sealed(bytes)?;
        if reader.byte()? != VERSION {
            return Err(Malformed);
        }
        let code = reader.byte()?;
        let unit = match code & PAGES {
            0 => Unit::Byte,
            _ => Unit::Page,
        };
        let whole = match code & !PAGES {
            0 => None,
            code => Some(WholeReason::from_code(code).ok_or(Malformed)?),
        };
        let ranges = match whole {
            None => decode_ranges(&mut reader)?,
            Some(_) => ExtentSet::new(),
        };
        reader.end()?;
        Ok(Self { ranges, whole, unit })
    }
}

/// Appends the ranges; nothing if there are none.
pub(crate) fn encode_ranges(ranges: &ExtentSet, out: &mut Vec<u8>) {
    let bounds = ranges.iter().fold(0, |bits, range| bits | range.start() | range.end());
    if bounds == 0 {
        return;
    }
    let shift = bounds.trailing_zeros();
    // Below 64, as `bounds` is not 0.
    out.push(shift as u8);
    let (mut at, mut last_len) = (0, 0);
    for range in ranges.iter() {
        let len = range.len_bytes() >> shift;
        put_flagged(out, len == last_len, (range.start() - at) >> shift);
        if len != last_len {
            put_varint(out, len);
        }
        (at, last_len) = (range.end(), len);
    }
}

fn decode_ranges(reader: &mut Reader<'_>) -> Result<ExtentSet, Malformed> {
    let mut ranges = ExtentSet::new();
    if reader.is_empty() {
        return Ok(ranges);
    }
    let unit = 1_u64.checked_shl(u32::from(reader.byte()?)).ok_or(Malformed)?;
    let (mut at, mut last_len) = (0_u64, 0);
    while !reader.is_empty() || ranges.is_empty() {
        let (is_same, gap) = reader.flagged()?;
        let len = if is_same { last_len } else { reader.varint()? };
        if len == 0 || (gap == 0 && !ranges.is_empty()) {
            return Err(Malformed);
        }
        let bytes = |units: u64| units.checked_mul(unit).ok_or(Malformed);
        let start = at.checked_add(bytes(gap)?).ok_or(Malformed)?;
        let end = start.checked_add(bytes(len)?).ok_or(Malformed)?;
        ranges.insert(ByteRange::new(start, end).ok_or(Malformed)?);
        (at, last_len) = (end, len);
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests;
