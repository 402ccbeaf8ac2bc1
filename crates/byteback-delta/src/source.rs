//! The origin of the bytes of an extent.

use byteback_extents::ExtentValue;

/// The origin of the bytes of an extent of the new content. `L` locates literal bytes: in a frame
/// of a stream, in a local file, or in a segment of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source<L> {
    /// Bytes carried by the delta itself.
    Literal(L),
    /// Bytes of the base.
    Copy {
        /// The offset in the base of the extent's first byte.
        base_offset: u64,
    },
    /// All zero and not stored: a restored file has a hole here.
    Zero,
}

#[cfg(test)]
impl<L> Source<L> {
    /// The same source with another way to name literals, such as a place in a segment for a place
    /// in a frame.
    pub(crate) fn map_literal<M>(self, literal_to: impl FnOnce(L) -> M) -> Source<M> {
        match self {
            Self::Literal(literal) => Source::Literal(literal_to(literal)),
            Self::Copy { base_offset } => Source::Copy { base_offset },
            Self::Zero => Source::Zero,
        }
    }
}

impl<L: ExtentValue> ExtentValue for Source<L> {
    fn advance(&self, by_bytes: u64) -> Self {
        match self {
            Self::Literal(literal) => Self::Literal(literal.advance(by_bytes)),
            // Saturating: an offset that large is past the end of any base, where all bytes are
            // zero.
            Self::Copy { base_offset } => Self::Copy {
                base_offset: base_offset.saturating_add(by_bytes),
            },
            Self::Zero => Self::Zero,
        }
    }

    fn continues(&self, len_bytes: u64, next: &Self) -> bool {
        match (self, next) {
            (Self::Literal(literal), Self::Literal(next)) => literal.continues(len_bytes, next),
            (Self::Copy { base_offset }, Self::Copy { base_offset: next }) => {
                base_offset.checked_add(len_bytes) == Some(*next)
            }
            (Self::Zero, Self::Zero) => true,
            _ => false,
        }
    }
}
