//! The numbers by which the store tells folders, nodes, layers, segments and chunks apart: one type
//! for each, so that a folder's number cannot be passed for a node's.
//!
//! The numbers are the store's own. Clients know files by [`byteback_model::FileId`], devices by
//! [`byteback_model::DeviceId`] and moments by [`byteback_model::Seq`]. Only the SQL module
//! (`catalog::sqlite_numbers`) converts a number from or to what SQLite holds.

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($number:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $number);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

numbers! {
    /// Row number of a folder, from 1.
    FolderNumber(i64);
    /// Row number of a node, from 1: the catalog's short name for a folder and a file's identity.
    NodeNumber(i64);
    /// Position of a layer in the history of one node's contents, from 1; 0 stands for none.
    LayerNumber(u64);
    /// Row number of a layer, from 1 across all nodes; pages and segment references belong to it.
    LayerRowNumber(i64);
    /// Row number of a staged part, from 1 across all batches. A part that is staged again has
    /// another one.
    StagedPartRowNumber(i64);
    /// Number of a segment, from 1, as in its file's name; 0 stands for none.
    SegmentNumber(u64);
    /// Position of a chunk of kept sums in a file: its first byte is at this number of MiB.
    ChunkNumber(u64);
}

impl NodeNumber {
    /// The position before the first node.
    pub const START: Self = Self(0);

    /// The position behind the last node.
    pub const END: Self = Self(i64::MAX);
}

impl LayerNumber {
    /// No contents.
    pub const NONE: Self = Self(0);

    /// The first layer of a node.
    pub const FIRST: Self = Self(1);

    /// The layer above.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The layer below; none below the first.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl Default for LayerNumber {
    fn default() -> Self {
        Self::NONE
    }
}

impl LayerRowNumber {
    /// The number of a row that the catalog does not have yet.
    pub const UNASSIGNED: Self = Self(0);
}

impl SegmentNumber {
    /// No segment.
    pub const NONE: Self = Self(0);

    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl ChunkNumber {
    /// The first chunk of a file.
    pub const FIRST: Self = Self(0);

    /// The chunk behind this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}
