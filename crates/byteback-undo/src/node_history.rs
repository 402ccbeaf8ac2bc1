//! The history of one file: its moments, oldest first, and its barrier.

use std::collections::VecDeque;

use byteback_extents::{ByteRange, ExtentMap, ExtentSet, ExtentValue};

use crate::error::NotKept;
use crate::journal::Placed;
use crate::record::{ContentHow, Rights};

/// Where old bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Old {
    /// Nowhere: they were zeros.
    Zeros,
    /// In a segment: the record's place, where the piece begins in its data, and how long all its
    /// data is.
    At { segment: u64, record_at: u64, within: u64 },
}

impl Old {
    /// The bytes of a record of old bytes.
    pub(crate) fn of_record(is_zeros: bool, placed: Placed) -> Self {
        if is_zeros {
            Self::Zeros
        } else {
            Self::At {
                segment: placed.segment,
                record_at: placed.at,
                within: 0,
            }
        }
    }
}

impl ExtentValue for Old {
    fn advance(&self, by_bytes: u64) -> Self {
        match *self {
            Self::Zeros => Self::Zeros,
            Self::At {
                segment,
                record_at,
                within,
            } => Self::At {
                segment,
                record_at,
                within: within.saturating_add(by_bytes),
            },
        }
    }

    fn continues(&self, len_bytes: u64, next: &Self) -> bool {
        self.advance(len_bytes) == *next
    }
}

/// A moment: the file just before changes that began within one quantum.
#[derive(Debug)]
pub(crate) struct StoredMoment {
    /// Counts the moments of a file.
    pub(crate) number: u64,
    pub(crate) start_ns: i64,
    /// Changes that begin before this joined it, or could have.
    pub(crate) end_ns: i64,
    pub(crate) size: u64,
    pub(crate) how: ContentHow,
    /// Of a removal: the file's rights.
    pub(crate) rights: Option<Rights>,
    /// The oldest segment with a record of it.
    pub(crate) segment: u64,
    pub(crate) old: ExtentMap<Old>,
    /// No more changes join it.
    pub(crate) is_closed: bool,
}

/// A moment as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// When the changes began, in nanoseconds since 1970: asking for this time brings back what was
    /// before them.
    pub at_ns: i64,
    /// The file's length before the moment.
    pub size_before_bytes: u64,
    /// The kind of the first change.
    pub how: ContentHow,
    /// Bytes of the old content that were kept because they were overwritten or cut off.
    pub kept_bytes: u64,
    /// Number of ranges of those bytes.
    pub kept_ranges: u64,
    /// Why it cannot be brought back, if so.
    pub not_kept: Option<NotKept>,
}

#[derive(Debug, Default)]
pub(crate) struct NodeHistory {
    pub(crate) moments: VecDeque<StoredMoment>,
    pub(crate) next_number: u64,
    pub(crate) barrier: Option<(i64, NotKept)>,
    pub(crate) born_ns: Option<i64>,
}

impl NodeHistory {
    /// Whether nothing is known that is not known of every file.
    pub(crate) fn is_empty(&self) -> bool {
        self.moments.is_empty() && self.barrier.is_none() && self.born_ns.is_none()
    }

    /// The moment that a change at `now_ns` joins; `None` if it begins a new one.
    pub(crate) fn current(&mut self, now_ns: i64) -> Option<&mut StoredMoment> {
        let last = self.moments.back_mut()?;
        (!last.is_closed && now_ns < last.end_ns).then_some(last)
    }

    pub(crate) fn begin(&mut self, times: (i64, i64), size: u64, how: ContentHow, segment: u64) {
        let (start_ns, end_ns) = times;
        // Changes that belong to the previous moment came before this.
        self.close_at(start_ns);
        self.moments.push_back(StoredMoment {
            number: self.next_number,
            start_ns,
            end_ns,
            size,
            how,
            rights: None,
            segment,
            old: ExtentMap::new(),
            is_closed: false,
        });
        self.next_number += 1;
    }

    /// Lets the next change begin a new moment; what the last one covers was before `now_ns`. So
    /// when the file gets a name: what it held before that was never to be seen under it.
    pub(crate) fn close_at(&mut self, now_ns: i64) {
        if let Some(last) = self.moments.back_mut() {
            last.is_closed = true;
            last.end_ns = last.end_ns.min(now_ns);
        }
    }

    /// The name with which the file was removed is gone by `now_ns`: up to then that name stands
    /// for what was kept when the removal began, however long the system took.
    pub(crate) fn extend_removal_to(&mut self, now_ns: i64) {
        let removed = self.moments.back_mut().filter(|last| last.how == ContentHow::Removed);
        if let Some(last) = removed {
            last.end_ns = last.end_ns.max(now_ns.saturating_add(1));
        }
    }

    /// With its last moment the file was removed, and had these rights.
    pub(crate) fn had_rights(&mut self, rights: Rights) {
        if let Some(last) = self.moments.back_mut() {
            last.rights = Some(rights);
        }
    }

    /// Whether the file came into being less than a quantum ago: a temporary file, a journal of a
    /// database.
    pub(crate) fn lived_shortly(&self, now_ns: i64, quantum_ns: i64) -> bool {
        self.born_ns
            .is_some_and(|born_ns| now_ns.saturating_sub(born_ns) <= quantum_ns)
    }

    /// Lets the next change begin a new moment.
    pub(crate) fn close(&mut self) {
        if let Some(last) = self.moments.back_mut() {
            last.is_closed = true;
        }
    }

    /// Nothing is known any more of what was before.
    pub(crate) fn forget(&mut self, now_ns: i64, why: NotKept) {
        self.moments.clear();
        // A reader as of before a moment that was to come must notice.
        self.next_number += 1;
        self.raise_barrier(now_ns, why);
    }

    /// Nothing is known any more, and times of before mean nothing; who is reading notices.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            next_number: self.next_number + 1,
            ..Self::default()
        };
    }

    fn raise_barrier(&mut self, at_ns: i64, why: NotKept) {
        if self.barrier.is_none_or(|(other_ns, _)| at_ns > other_ns) {
            self.barrier = Some((at_ns, why));
        }
    }

    /// Drops the moments with records in segments below `first`, which were removed for the reason
    /// `why`.
    pub(crate) fn drop_below(&mut self, first: u64, why: NotKept) {
        while let Some(moment) = self.moments.front().filter(|moment| moment.segment < first) {
            let end_ns = moment.end_ns;
            self.moments.pop_front();
            self.raise_barrier(end_ns, why);
        }
    }

    /// The number of the oldest moment of which something is not older than `at_ns`.
    pub(crate) fn border(&self, at_ns: i64) -> u64 {
        let newer = |moment: &&StoredMoment| moment.end_ns > at_ns;
        self.moments
            .iter()
            .find(newer)
            .map_or(self.next_number, |moment| moment.number)
    }

    pub(crate) fn from(&self, number: u64) -> impl Iterator<Item = &StoredMoment> {
        self.moments.iter().filter(move |moment| moment.number >= number)
    }

    /// `range` as of just before the moment `number`: `None` is what the file has now.
    pub(crate) fn tiles(&self, number: u64, range: ByteRange) -> Vec<(ByteRange, Option<Old>)> {
        let mut laid: ExtentMap<Old> = ExtentMap::new();
        let mut open = ExtentSet::new();
        open.insert(range);
        // The oldest moment that holds a byte has its old value.
        for moment in self.from(number) {
            if open.is_empty() {
                break;
            }
            let gaps: Vec<ByteRange> = open.iter().collect();
            for gap in gaps {
                for (piece, old) in moment.old.pieces(gap) {
                    laid.insert(piece, old);
                    open.remove(piece);
                }
            }
        }
        laid.tiles(range).collect()
    }
}
