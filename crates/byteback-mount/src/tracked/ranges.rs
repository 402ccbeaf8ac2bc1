//! The ranges of one change: mostly a single one, which takes no memory of its own.

use std::ops::Deref;

use byteback_extents::ByteRange;

/// Ascending, none within another.
#[derive(Debug)]
pub(super) enum Ranges {
    /// At most one range.
    Single(Option<ByteRange>),
    Several(Vec<ByteRange>),
}

impl Deref for Ranges {
    type Target = [ByteRange];

    fn deref(&self) -> &[ByteRange] {
        match self {
            Self::Single(range) => range.as_slice(),
            Self::Several(ranges) => ranges,
        }
    }
}

impl From<Option<ByteRange>> for Ranges {
    fn from(range: Option<ByteRange>) -> Self {
        Self::Single(range)
    }
}

impl From<Vec<ByteRange>> for Ranges {
    fn from(ranges: Vec<ByteRange>) -> Self {
        Self::Several(ranges)
    }
}
