//! What happened to one node within one epoch: the persisted form of the mlog tree (SolFS section 3.2.1).
//!
//! A [`Layer`] holds the byte ranges that were touched, or says that the whole content must be taken as changed and
//! why. A layer without ranges still says something: attributes changed. Laying a younger layer over an elder one is
//! the union; it is how epochs that no mark separates become one (SolFS Fig. 8) and how `changes(since)` adds up.
//!
//! Form: version byte, reason byte (0: ranges count), number of ranges, then for each the gap since the last range's
//! end and its length, all varints; sealed. Neighbouring ranges are merged before, so gaps after the first are never 0.

use byteback_extents::{ByteRange, ExtentSet};
use serde::{Deserialize, Serialize};

use crate::codec::{Malformed, Reader, put_varint, seal};

const VERSION: u8 = 1;

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
    /// A consumer could not save it last time.
    Unsaved,
    /// The consumer was dropped, by order or because nobody heard of it for too long.
    Dropped,
    /// The log was damaged or taken away, and a new one began.
    LogLost,
}

impl WholeReason {
    fn code(self) -> u8 {
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

    fn from_code(code: u8) -> Result<Self, Malformed> {
        match code {
            1 => Ok(Self::Created),
            2 => Ok(Self::NoMark),
            3 => Ok(Self::Untracked),
            4 => Ok(Self::Interrupted),
            5 => Ok(Self::Unsaved),
            6 => Ok(Self::Dropped),
            7 => Ok(Self::LogLost),
            _ => Err(Malformed),
        }
    }
}

/// The changes of one node in one epoch.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    /// Byte ranges that may differ from what they were when the epoch began. Meaningless beside `whole`.
    pub ranges: ExtentSet,
    /// Everything may differ, for this reason.
    pub whole: Option<WholeReason>,
}

impl Layer {
    /// Adds what `younger` says on top of this layer.
    pub fn lay(&mut self, younger: &Self) {
        self.whole = self.whole.or(younger.whole);
        if self.whole.is_some() {
            self.ranges = ExtentSet::new();
            return;
        }
        for range in younger.ranges.iter() {
            self.ranges.insert(range);
        }
    }

    /// Whether the whole content is reported because nobody saw what changed.
    pub(crate) fn is_unknown(&self) -> bool {
        self.whole.is_some_and(|reason| reason != WholeReason::Created)
    }

    /// The same of an encoded layer, without a look at anything else.
    pub(crate) fn says_unknown(bytes: &[u8]) -> bool {
        bytes
            .get(1)
            .is_some_and(|code| *code != 0 && *code != WholeReason::Created.code())
    }

    /// Takes the whole content as changed.
    pub fn mark_whole(&mut self, reason: WholeReason) {
        self.whole.get_or_insert(reason);
        self.ranges = ExtentSet::new();
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.whole.map_or(0, WholeReason::code)];
        put_varint(&mut out, self.ranges.len() as u64);
        let mut at = 0;
        for range in self.ranges.iter() {
            put_varint(&mut out, range.start() - at);
            put_varint(&mut out, range.len_bytes());
            at = range.end();
        }
        seal(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::sealed(bytes)?;
        if reader.byte()? != VERSION {
            return Err(Malformed);
        }
        let whole = match reader.byte()? {
            0 => None,
            code => Some(WholeReason::from_code(code)?),
        };
        let mut ranges = ExtentSet::new();
        let mut at = 0_u64;
        for index in 0..reader.varint()? {
            let gap = reader.varint()?;
            let len = reader.varint()?;
            if len == 0 || (gap == 0 && index > 0) {
                return Err(Malformed);
            }
            let start = at.checked_add(gap).ok_or(Malformed)?;
            let end = start.checked_add(len).ok_or(Malformed)?;
            ranges.insert(ByteRange::new(start, end).ok_or(Malformed)?);
            at = end;
        }
        reader.end()?;
        Ok(Self { ranges, whole })
    }
}

#[cfg(test)]
mod tests;
