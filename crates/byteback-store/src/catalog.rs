//! The catalog: everything the store knows except the literal bytes, behind transactions.
//!
//! Two traits: [`CatalogRead`] answers from one consistent state, [`CatalogWrite`] adds changes
//! that become visible and durable together with [`CatalogWrite::commit`], or not at all when it is
//! dropped. They deal in rows; the meaning, validity and order of rows are decided in `apply` and
//! `read`, once for every engine. There is one writer at a time; readers never wait for it.
//!
//! Terms
//! - *node number* ([`NodeNumber`]): the catalog's own short number for a (folder, [`FileId`]).
//! - *attribute row*: a node's attributes from a sequence number on, until the next row of the
//!   node.
//! - *entry row*: (parent, name) -> child in `[from_seq, to_seq)`; a current entry ends at
//!   [`OPEN`].
//! - *layer number* ([`LayerNumber`]): counts the content changes of one node from 1; 0 means that
//!   there never were contents. A layer row spans the layers `first..=last`: one delta when they
//!   are equal, several merged ones otherwise.
//!
//! The numbers of [`crate::numbers`] become SQLite's in `sqlite_numbers`, and nowhere else.
//!
//! History is append-only: past attribute, entry and layer rows never change, except that an entry
//! is closed once, and that a layer may get other pages that say the same. So several short read
//! transactions see the same past as one long one.
//!
//! An implementation promises
//! - *Isolation.* A read transaction sees the commits up to one moment, at the latest that of its
//!   first answer, and nothing later. A write transaction sees its own changes. Write transactions
//!   of a process run one after the other, as if under one lock that is taken at their begin: none
//!   is refused because of another one, and a thread has at most one. Readers wait for nobody.
//!   (PostgreSQL: repeatable read, and an advisory lock for writers.)
//! - *Atomicity.* All changes of a transaction become visible together with
//!   [`CatalogWrite::commit`], which returns after they are durable; a power cut during a commit
//!   keeps all of them or none. A transaction that is dropped leaves nothing behind, except that
//!   the row numbers that it assigned may be skipped.
//! - *Errors.* A change that fails changes nothing, and its transaction can only be dropped. A
//!   missing row is `None`, `false` or an empty list where the answer allows it, and an error
//!   otherwise. References to missing rows, a second row of one key, and the removal of a row that
//!   another refers to are errors at the call, not at the commit.
//! - *Order.* Names are compared byte by byte, numbers as numbers. Lists have the order that their
//!   method states; where it states none (`parents`, `layer_segments`, one of several open entries
//!   in `newest_name`), any.
//!
//! A caller promises
//! - to add rows of a folder in order: attribute, entry and batch rows, and the ends of entries,
//!   get sequence numbers above [`FolderRow::seq`], which grows last;
//! - that entries of one name do not overlap, and that a row names nodes of its own folder;
//! - that a row for one layer is the node's next, and a row for several covers existing ones;
//! - that a shared row has its own pages, and that a segment is added before it is referred to;
//! - that unsigned numbers are below 2^63, apart from counters of batches.
//!
//! `tests/store/memory.rs` is a twin in memory that refuses everything else;
//! `memory_catalog_answers_like_sqlite_in_random_lives` compares both.

mod devices;
mod schema;
mod sqlite;
mod sqlite_devices;
mod sqlite_numbers;
mod sqlite_read;
mod sqlite_write;

use crate::error::StoreError;
use crate::model::Folder;
use crate::numbers::{
    ChunkNumber, FolderNumber, LayerNumber, LayerRowNumber, NodeNumber, SegmentNumber, StagedPartRowNumber,
};
use byteback_delta::leaves::LeafKind;
use byteback_model::{Attributes, DeviceId, FileId, Seq, Snapshot, SnapshotLabel};
use std::fmt::Debug;
use std::ops::RangeInclusive;

pub use devices::{DeviceRead, DeviceRow, DeviceWrite, InvitationRow};
pub use sqlite::{CatalogWork, SqliteCatalog};

/// End of a current entry.
pub const OPEN: Seq = i64::MAX.cast_unsigned();

/// A folder's own numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in `Folder`")]
pub struct FolderRow {
    pub id: FolderNumber,
    pub name: String,
    pub seq: Seq,
    /// The root.
    pub root: Option<NodeNumber>,
    pub entries: u64,
    pub snapshots: u64,
    pub stored_bytes: u64,
    pub created_ns: i64,
}

impl FolderRow {
    pub(crate) fn into_folder(self, root: Option<FileId>) -> Folder {
        Folder {
            name: self.name,
            seq: self.seq,
            root,
            entries: self.entries,
            snapshots: self.snapshots,
            stored_bytes: self.stored_bytes,
            created_ns: self.created_ns,
        }
    }
}

/// An applied batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in `Manifest` and `Applied`")]
pub struct BatchRow {
    pub seq: Seq,
    pub device: DeviceId,
    pub counter: u64,
    pub base_seq: Option<Seq>,
    /// The root from this batch on.
    pub root: NodeNumber,
    pub created_ns: i64,
    pub host: Vec<u8>,
    pub path: Vec<u8>,
    pub snapshot_id: Option<u64>,
    pub stored_bytes: u64,
}

/// A node's attributes from `seq` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeRow {
    /// Sequence number from which the row holds.
    pub seq: Seq,
    /// The attributes.
    pub attributes: Attributes,
    /// The layer that holds the node's contents, or [`LayerNumber::NONE`].
    pub layer: LayerNumber,
    /// Sequence number at which that layer was applied; 0 for none.
    pub content_seq: Seq,
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRow {
    /// The directory.
    pub parent: NodeNumber,
    /// Name.
    pub name: Vec<u8>,
    /// The named node.
    pub child: NodeNumber,
    /// First sequence number at which it exists.
    pub from_seq: Seq,
    /// First sequence number at which it no longer exists.
    pub to_seq: Seq,
}

/// A layer, or several merged into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerRow {
    /// Its own number; pages refer to it.
    pub id: LayerRowNumber,
    /// First layer that it covers.
    pub first: LayerNumber,
    /// Last layer that it covers.
    pub last: LayerNumber,
    /// Length of the contents before `first`, in bytes.
    pub base_len: u64,
    /// Length of the contents after `last`, in bytes.
    pub new_len: u64,
    /// Extents in its pages.
    pub extents: u64,
    /// Takes nothing from its base: the layers before it are not needed to read it.
    pub resets: bool,
    /// Must not be merged with older layers; see `compact`.
    pub barrier: bool,
    /// The row whose pages and segment references it shares; `None`: it has its own.
    pub shared: Option<LayerRowNumber>,
}

impl LayerRow {
    /// The row number under which its pages and segments are found.
    #[must_use]
    pub fn pages(&self) -> LayerRowNumber {
        self.shared.unwrap_or(self.id)
    }
}

/// A staged part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedPartRow {
    /// Row number.
    pub id: StagedPartRowNumber,
    /// Part number in the batch.
    pub part: u32,
    /// Time of staging, ns since the Unix epoch.
    pub created_ns: i64,
    /// SHA-256 of the bytes as they arrived, if it was noted.
    pub digest: Option<[u8; 32]>,
}

/// The kept sums of one kind for one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumsRow {
    /// Kind of the leaves.
    pub kind: LeafKind,
    /// Time of their last use, ns since the Unix epoch.
    pub used_ns: i64,
    /// Bytes of its rows.
    pub len_bytes: u64,
    /// The last chunk of its rows.
    pub last_chunk: Option<ChunkNumber>,
}

/// How scattered over frames a file's newest contents are; see `defragment`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentationRow {
    /// Stored bytes that these contents needed when they were counted or began.
    pub needed_bytes: u64,
    /// Stored bytes beyond these that reading the contents takes, at most.
    pub waste_bytes: u64,
    /// Stored bytes of the file's literals that have not paid for bytes written again.
    pub credit_bytes: u64,
    /// Whether the file waits for its frames to be counted.
    pub is_due: bool,
}

/// The identity of a batch: its folder, device and counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchKey {
    /// The folder.
    pub folder: FolderNumber,
    /// The device.
    pub device: DeviceId,
    /// The device's counter.
    pub counter: u64,
}

/// A condition on a batch that is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchCondition {
    /// Any batch.
    Any,
    /// The folder's root has been another node since this batch.
    OtherRoot(NodeNumber),
    /// Made at this time (ns since the Unix epoch) or earlier, by its machine's clock.
    MadeUntil(i64),
    /// Sent by this device.
    OfDevice(DeviceId),
}

/// A transactional catalog.
pub trait Catalog: Send + Sync + Debug {
    /// Begins a read transaction on one consistent state.
    ///
    /// # Errors
    /// The engine failed.
    fn read(&self) -> Result<Box<dyn CatalogRead + '_>, StoreError>;

    /// Begins a write transaction; waits for the writer before.
    ///
    /// # Errors
    /// The engine failed.
    fn write(&self) -> Result<Box<dyn CatalogWrite + '_>, StoreError>;
}

/// Answers from one consistent state. All errors are the engine's, or say that rows contradict each
/// other.
#[expect(clippy::missing_errors_doc, reason = "said once for all above")]
pub trait CatalogRead: DeviceRead {
    /// All folders by name.
    fn folders(&self) -> Result<Vec<FolderRow>, StoreError>;
    /// A folder by name.
    fn folder(&self, name: &str) -> Result<Option<FolderRow>, StoreError>;
    /// The node number of a file.
    fn node_number(&self, folder: FolderNumber, file: FileId) -> Result<Option<NodeNumber>, StoreError>;
    /// The identity of a node number.
    fn file_id(&self, node: NodeNumber) -> Result<FileId, StoreError>;
    /// The newest attribute row at or before `at`.
    fn attributes(&self, node: NodeNumber, at: Seq) -> Result<Option<AttributeRow>, StoreError>;
    /// The entry of this name at `at`.
    fn entry(&self, parent: NodeNumber, name: &[u8], at: Seq) -> Result<Option<EntryRow>, StoreError> {
        // Rows of one name do not overlap, so the newest that begins in time is the only candidate.
        let newest = self.newest_entry_at(parent, name, at)?;
        Ok(newest.filter(|row| at < row.to_seq))
    }
    /// The newest row of this name that began at or before `at`; it may have ended by then. Until
    /// [`OPEN`] it is the newest of all.
    fn newest_entry_at(&self, parent: NodeNumber, name: &[u8], at: Seq) -> Result<Option<EntryRow>, StoreError>;
    /// Entries of a directory at `at` with names after `after`, by name.
    fn entries(
        &self,
        parent: NodeNumber,
        at: Seq,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<Vec<EntryRow>, StoreError>;
    /// Entries that name `child` at `at`.
    fn parents(&self, child: NodeNumber, at: Seq, limit: u32) -> Result<Vec<EntryRow>, StoreError>;
    /// The open entry of a node if it has one, otherwise the one that was closed last.
    fn newest_name(&self, child: NodeNumber) -> Result<Option<EntryRow>, StoreError>;
    /// A batch by folder, device and counter.
    fn batch_by_key(&self, key: BatchKey) -> Result<Option<BatchRow>, StoreError>;
    /// The newest batch that has its sequence number in `seqs` and meets the condition. Looks at
    /// one batch after the other, from the newest.
    fn newest_batch(
        &self,
        folder: FolderNumber,
        seqs: RangeInclusive<Seq>,
        condition: BatchCondition,
    ) -> Result<Option<BatchRow>, StoreError>;
    /// A batch by its sequence number.
    fn batch_by_seq(&self, folder: FolderNumber, seq: Seq) -> Result<Option<BatchRow>, StoreError> {
        self.newest_batch(folder, seq..=seq, BatchCondition::Any)
    }
    /// The first batches after a sequence number, in order.
    fn batches_after(&self, folder: FolderNumber, after: Seq, limit: u32) -> Result<Vec<BatchRow>, StoreError>;
    /// Snapshots with numbers above `after`.
    fn snapshots(&self, folder: FolderNumber, after: u64, limit: u32) -> Result<Vec<Snapshot>, StoreError>;
    /// The row that ends with layer `last`, begins at `first_min` or later, and covers the most
    /// layers.
    fn longest_layer(
        &self,
        node: NodeNumber,
        last: LayerNumber,
        first_min: LayerNumber,
    ) -> Result<Option<LayerRow>, StoreError>;
    /// The page of a layer ([`LayerRow::pages`]) that begins at or nearest before `offset`, and the
    /// offset at which the next page begins.
    fn page(&self, layer: LayerRowNumber, offset: u64) -> Result<(Option<Vec<u8>>, Option<u64>), StoreError>;
    /// Names that changed in `(from, to]`, by (parent, name), after the given one.
    fn changed_names(
        &self,
        folder: FolderNumber,
        from: Seq,
        to: Seq,
        after: Option<(NodeNumber, &[u8])>,
        limit: u32,
    ) -> Result<Vec<(NodeNumber, Vec<u8>)>, StoreError>;
    /// Nodes with attribute rows in `(from, to]`, by number, after the given one.
    fn changed_nodes(
        &self,
        folder: FolderNumber,
        from: Seq,
        to: Seq,
        after: NodeNumber,
        limit: u32,
    ) -> Result<Vec<NodeNumber>, StoreError>;
    /// Staged parts of a batch, by part.
    fn staged_parts(&self, key: BatchKey) -> Result<Vec<StagedPartRow>, StoreError>;
    /// The sheet of records number `ordinal` of a staged part.
    fn staged_sheet(&self, part: StagedPartRowNumber, ordinal: u32) -> Result<Option<Vec<u8>>, StoreError>;
    /// Highest segment number ever referred to.
    fn segment_id_max(&self) -> Result<SegmentNumber, StoreError>;
    /// The row of kept sums with this chunk number.
    fn sum_chunk(&self, node: NodeNumber, kind: LeafKind, chunk: ChunkNumber) -> Result<Option<Vec<u8>>, StoreError>;
    /// The kept sums of a file, by kind; those of kinds that this program does not know are left
    /// out.
    fn sums(&self, node: NodeNumber) -> Result<Vec<SumsRow>, StoreError>;
    /// Bytes of all rows of kept sums.
    fn sums_len(&self) -> Result<u64, StoreError>;
    /// Frames that were noted as damaged, as segment and offset.
    fn noted_damage(&self, limit: u32) -> Result<Vec<(SegmentNumber, u64)>, StoreError>;
    /// A file's fragmentation, if it was noted.
    fn fragmentation(&self, node: NodeNumber) -> Result<Option<FragmentationRow>, StoreError>;
    /// The file with the lowest number after `after` whose fragmentation is due, and its folder's
    /// name.
    fn next_fragmented(&self, after: NodeNumber) -> Result<Option<(NodeNumber, String)>, StoreError>;
    /// The node with the highest number below `before` that has or once had this length, which is
    /// at least [`ALIKE_LEN_MIN`].
    fn node_of_length(
        &self,
        folder: FolderNumber,
        len_bytes: u64,
        before: NodeNumber,
    ) -> Result<Option<NodeNumber>, StoreError>;
    /// Nodes of a folder that have a layer which refers to a segment, by number.
    fn nodes_of_segment(
        &self,
        folder: FolderNumber,
        segment: SegmentNumber,
        limit: u32,
    ) -> Result<Vec<NodeNumber>, StoreError>;
}

/// Changes that are committed together.
#[expect(clippy::missing_errors_doc, reason = "said once for all above")]
pub trait CatalogWrite: CatalogRead + DeviceWrite {
    /// Makes everything visible and durable.
    fn commit(self: Box<Self>) -> Result<(), StoreError>;
    /// Creates a folder, which has nothing yet; returns its row.
    fn insert_folder(&self, name: &str, created_ns: i64) -> Result<FolderRow, StoreError>;
    /// Replaces a folder's numbers.
    fn update_folder(&self, folder: &FolderRow) -> Result<(), StoreError>;
    /// Gives a file a node number.
    fn insert_node(&self, folder: FolderNumber, file: FileId) -> Result<NodeNumber, StoreError>;
    /// Adds an attribute row.
    fn insert_attributes(&self, folder: FolderNumber, node: NodeNumber, row: &AttributeRow) -> Result<(), StoreError>;
    /// Sets which layer the attribute row (node, seq) shows.
    fn set_content(&self, node: NodeNumber, seq: Seq, layer: LayerNumber) -> Result<(), StoreError>;
    /// Opens an entry.
    fn insert_entry(&self, folder: FolderNumber, row: &EntryRow) -> Result<(), StoreError>;
    /// Closes an open entry.
    fn close_entry(&self, parent: NodeNumber, name: &[u8], to_seq: Seq) -> Result<(), StoreError>;
    /// Closes all open entries of a folder; returns their number.
    fn close_all_entries(&self, folder: FolderNumber, to_seq: Seq) -> Result<u64, StoreError>;
    /// Adds a batch.
    fn insert_batch(&self, folder: FolderNumber, row: &BatchRow) -> Result<(), StoreError>;
    /// Adds a snapshot; returns its number.
    fn insert_snapshot(&self, folder: FolderNumber, seq: Seq, label: &SnapshotLabel) -> Result<u64, StoreError>;
    /// Removes a snapshot; returns whether it existed.
    fn delete_snapshot(&self, folder: FolderNumber, id: u64) -> Result<bool, StoreError>;
    /// Adds a layer (its `id` is ignored) and returns its row number. It comes with its pages and
    /// the segments that they refer to, or with neither if it shares those of another row. A row
    /// whose pages are shared cannot be removed.
    fn insert_layer(
        &self,
        node: NodeNumber,
        row: &LayerRow,
        pages: &[(u64, Vec<u8>)],
        segments: &[SegmentNumber],
    ) -> Result<LayerRowNumber, StoreError>;
    /// Gives a layer that takes nothing from its base other pages of the same contents, and the
    /// segments that they refer to. Layers that share its pages share the new ones; a layer that
    /// shared those of another has its own from now on.
    fn replace_pages(
        &self,
        layer: LayerRowNumber,
        extents: u64,
        pages: &[(u64, Vec<u8>)],
        segments: &[SegmentNumber],
    ) -> Result<(), StoreError>;
    /// Notes a file's fragmentation.
    fn put_fragmentation(&self, node: NodeNumber, row: &FragmentationRow) -> Result<(), StoreError>;
    /// Marks a layer as not to be merged with older ones.
    fn set_barrier(&self, layer: LayerRowNumber) -> Result<(), StoreError>;
    /// The segments that the pages of a layer ([`LayerRow::pages`]) refer to.
    fn layer_segments(&self, layer: LayerRowNumber) -> Result<Vec<SegmentNumber>, StoreError>;
    /// Remembers a segment, so that it may be referred to.
    fn add_segment(&self, segment: SegmentNumber) -> Result<(), StoreError>;
    /// Forgets a segment and its noted damage, unless a layer or a staged part refers to it;
    /// returns whether nothing does. The highest number stays known, so that it is never used
    /// twice.
    fn forget_segment(&self, segment: SegmentNumber) -> Result<bool, StoreError>;
    /// Replaces a staged part.
    fn replace_staged_part(
        &self,
        key: BatchKey,
        part: u32,
        noted: (i64, Option<&[u8; 32]>),
        sheets: &[Vec<u8>],
        segments: &[SegmentNumber],
    ) -> Result<(), StoreError>;
    /// Removes all staged parts of a batch.
    fn delete_staged_parts(&self, key: BatchKey) -> Result<(), StoreError>;
    /// Removes the parts of batches whose newest part was staged before this time; returns their
    /// number.
    fn delete_expired_parts(&self, before_ns: i64) -> Result<u64, StoreError>;
    /// Notes that a frame is damaged, unless `noted_max` frames are noted already.
    fn note_damage(&self, segment: SegmentNumber, offset: u64, noted_max: u32) -> Result<(), StoreError>;
    /// Removes the note that a frame is damaged.
    fn forget_damage(&self, segment: SegmentNumber, offset: u64) -> Result<(), StoreError>;
    /// Keeps sums: adds or replaces rows and notes their use. There may be no rows.
    fn put_sums(
        &self,
        node: NodeNumber,
        kind: LeafKind,
        used_ns: i64,
        rows: &[(ChunkNumber, Vec<u8>)],
    ) -> Result<(), StoreError>;
    /// Removes a file's chunks of kept sums from a number on.
    fn delete_sums(&self, node: NodeNumber, kind: LeafKind, from_chunk: ChunkNumber) -> Result<(), StoreError>;
    /// Removes at most `rows_max` chunks of the least recently used sums other than those of the
    /// given file and kind; returns their size in bytes.
    fn evict_sums(&self, except: (NodeNumber, LeafKind), rows_max: u32) -> Result<u64, StoreError>;
}
