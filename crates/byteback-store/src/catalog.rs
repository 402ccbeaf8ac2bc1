//! The catalog: everything the store knows except the literal bytes, behind transactions.
//!
//! Two traits: [`CatalogRead`] answers from one consistent state, [`CatalogWrite`] adds changes
//! that become visible and durable together with [`CatalogWrite::commit`], or not at all when it is
//! dropped. They deal in rows; the meaning, validity and order of rows are decided in `apply` and
//! `read`, once for every engine. There is one writer at a time; readers never wait for it.
//!
//! Terms
//! - *node number*: the catalog's own short number for a (folder, [`FileId`]).
//! - *attribute row*: a node's attributes from a sequence number on, until the next row of the
//!   node.
//! - *entry row*: (parent, name) -> child in `[from_seq, to_seq)`; a current entry ends at
//!   [`OPEN`].
//! - *layer number*: counts the content changes of one node from 1; 0 means that there never were
//!   contents. A layer row spans the layers `first..=last`: one delta when they are equal, several
//!   merged ones otherwise.
//!
//! History is append-only: past attribute, entry and layer rows never change, except that an entry
//! is closed once. So several short read transactions see the same past as one long one.

mod devices;
mod schema;
mod sqlite;
mod sqlite_devices;
mod sqlite_read;
mod sqlite_write;

use crate::error::StoreError;
use crate::model::Folder;
use byteback_model::{Attributes, FileId, Seq, Snapshot, SnapshotLabel};
use std::fmt::Debug;

pub use devices::{DeviceRead, DeviceRow, DeviceWrite, InvitationRow};
pub use sqlite::SqliteCatalog;

/// End of a current entry.
pub const OPEN: Seq = i64::MAX.cast_unsigned();

/// A folder's own numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in `Folder`")]
pub struct FolderRow {
    pub id: i64,
    pub name: String,
    pub seq: Seq,
    /// Node number of the root.
    pub root: Option<i64>,
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
    pub device: u64,
    pub counter: u64,
    pub base_seq: Option<Seq>,
    /// Node number of the root from this batch on.
    pub root: i64,
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
    /// Layer number of the node's contents; 0 for none.
    pub layer: u64,
    /// Sequence number at which that layer was applied; 0 for none.
    pub content_seq: Seq,
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRow {
    /// Node number of the directory.
    pub parent: i64,
    /// Name.
    pub name: Vec<u8>,
    /// Node number of the named node.
    pub child: i64,
    /// First sequence number at which it exists.
    pub from_seq: Seq,
    /// First sequence number at which it no longer exists.
    pub to_seq: Seq,
}

/// A layer, or several merged into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerRow {
    /// Its own number; pages refer to it.
    pub id: i64,
    /// First layer that it covers.
    pub first: u64,
    /// Last layer that it covers.
    pub last: u64,
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
    pub shared: Option<i64>,
}

impl LayerRow {
    /// The row number under which its pages and segments are found.
    #[must_use]
    pub fn pages(&self) -> i64 {
        self.shared.unwrap_or(self.id)
    }
}

/// A staged part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedPartRow {
    /// Row number.
    pub id: i64,
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
    /// Number of the leaves' kind.
    pub kind: u8,
    /// Time of their last use, ns since the Unix epoch.
    pub used_ns: i64,
    /// Bytes of its rows.
    pub len_bytes: u64,
    /// The highest chunk number of its rows.
    pub last_chunk: Option<u64>,
}

/// The identity of a batch: its folder, device and counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchKey {
    /// Number of the folder.
    pub folder: i64,
    /// The device.
    pub device: u64,
    /// The device's counter.
    pub counter: u64,
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
    fn node_number(&self, folder: i64, file: FileId) -> Result<Option<i64>, StoreError>;
    /// The identity of a node number.
    fn file_id(&self, node: i64) -> Result<FileId, StoreError>;
    /// The newest attribute row at or before `at`.
    fn attributes(&self, node: i64, at: Seq) -> Result<Option<AttributeRow>, StoreError>;
    /// The entry of this name at `at`.
    fn entry(&self, parent: i64, name: &[u8], at: Seq) -> Result<Option<EntryRow>, StoreError>;
    /// The newest row of this name, open or closed.
    fn newest_entry(&self, parent: i64, name: &[u8]) -> Result<Option<EntryRow>, StoreError>;
    /// The newest row of this name that began at or before `at`; it may have ended by then.
    fn newest_entry_at(&self, parent: i64, name: &[u8], at: Seq) -> Result<Option<EntryRow>, StoreError>;
    /// Entries of a directory at `at` with names after `after`, by name.
    fn entries(&self, parent: i64, at: Seq, after: Option<&[u8]>, limit: u32) -> Result<Vec<EntryRow>, StoreError>;
    /// Entries that name `child` at `at`.
    fn parents(&self, child: i64, at: Seq, limit: u32) -> Result<Vec<EntryRow>, StoreError>;
    /// The open entry of a node if it has one, otherwise the one that was closed last.
    fn newest_name(&self, child: i64) -> Result<Option<EntryRow>, StoreError>;
    /// A batch by folder, device and counter.
    fn batch_by_key(&self, key: BatchKey) -> Result<Option<BatchRow>, StoreError>;
    /// A batch by its sequence number.
    fn batch_by_seq(&self, folder: i64, seq: Seq) -> Result<Option<BatchRow>, StoreError>;
    /// The first batches after a sequence number, in order.
    fn batches_after(&self, folder: i64, after: Seq, limit: u32) -> Result<Vec<BatchRow>, StoreError>;
    /// The newest batch, by sequence number up to `at`, whose root is not this node.
    fn newest_of_other_root(&self, folder: i64, at: Seq, root: i64) -> Result<Option<Seq>, StoreError>;
    /// The newest batch that was made at this time (ns since the Unix epoch) or earlier.
    fn newest_batch_until(&self, folder: i64, time_ns: i64) -> Result<Option<BatchRow>, StoreError>;
    /// Whether a device has a batch after a sequence number. Scans the folder's batches since then.
    fn has_batch_after(&self, folder: i64, device: u64, after: Seq) -> Result<bool, StoreError>;
    /// Snapshots with numbers above `after`.
    fn snapshots(&self, folder: i64, after: u64, limit: u32) -> Result<Vec<Snapshot>, StoreError>;
    /// The row that ends with layer `last`, begins at `first_min` or later, and covers the most
    /// layers.
    fn longest_layer(&self, node: i64, last: u64, first_min: u64) -> Result<Option<LayerRow>, StoreError>;
    /// The page of a layer ([`LayerRow::pages`]) that begins at or nearest before `offset`, and the
    /// offset at which the next page begins.
    fn page(&self, layer: i64, offset: u64) -> Result<(Option<Vec<u8>>, Option<u64>), StoreError>;
    /// Names that changed in `(from, to]`, by (parent, name), after the given one.
    fn changed_names(
        &self,
        folder: i64,
        from: Seq,
        to: Seq,
        after: Option<(i64, &[u8])>,
        limit: u32,
    ) -> Result<Vec<(i64, Vec<u8>)>, StoreError>;
    /// Nodes with attribute rows in `(from, to]`, by number, after the given one.
    fn changed_nodes(&self, folder: i64, from: Seq, to: Seq, after: i64, limit: u32) -> Result<Vec<i64>, StoreError>;
    /// Staged parts of a batch, by part.
    fn staged_parts(&self, key: BatchKey) -> Result<Vec<StagedPartRow>, StoreError>;
    /// The record number `ordinal` of a staged part.
    fn staged_record(&self, part: i64, ordinal: u32) -> Result<Option<Vec<u8>>, StoreError>;
    /// Highest segment number ever referred to; 0 for none.
    fn segment_id_max(&self) -> Result<u64, StoreError>;
    /// The length in bytes up to which the catalog refers to a segment; `None` for an unknown
    /// segment.
    fn segment_len(&self, segment: u64) -> Result<Option<u64>, StoreError>;
    /// Whether any layer or staged part refers to a segment.
    fn is_segment_referenced(&self, segment: u64) -> Result<bool, StoreError>;
    /// Segments that the catalog knows, by number.
    fn known_segments(&self) -> Result<Vec<u64>, StoreError>;
    /// The row of kept sums with this chunk number.
    fn sum_chunk(&self, node: i64, kind: u8, chunk: u64) -> Result<Option<Vec<u8>>, StoreError>;
    /// The kept sums of a file, by kind.
    fn sums(&self, node: i64) -> Result<Vec<SumsRow>, StoreError>;
    /// Bytes of all rows of kept sums.
    fn sums_len(&self) -> Result<u64, StoreError>;
    /// Frames that were noted as damaged, as segment and offset.
    fn noted_damage(&self, limit: u32) -> Result<Vec<(u64, u64)>, StoreError>;
    /// Nodes of a folder that have a layer which refers to a segment, by number.
    fn nodes_of_segment(&self, folder: i64, segment: u64, limit: u32) -> Result<Vec<i64>, StoreError>;
}

/// Changes that are committed together.
#[expect(clippy::missing_errors_doc, reason = "said once for all above")]
pub trait CatalogWrite: CatalogRead + DeviceWrite {
    /// Makes everything visible and durable.
    fn commit(self: Box<Self>) -> Result<(), StoreError>;
    /// Creates a folder.
    fn insert_folder(&self, name: &str, created_ns: i64) -> Result<(), StoreError>;
    /// Replaces a folder's numbers.
    fn update_folder(&self, folder: &FolderRow) -> Result<(), StoreError>;
    /// Gives a file a node number.
    fn insert_node(&self, folder: i64, file: FileId) -> Result<i64, StoreError>;
    /// Adds an attribute row.
    fn insert_attributes(&self, folder: i64, node: i64, row: &AttributeRow) -> Result<(), StoreError>;
    /// Sets which layer the attribute row (node, seq) shows.
    fn set_content(&self, node: i64, seq: Seq, layer: u64) -> Result<(), StoreError>;
    /// Opens an entry.
    fn insert_entry(&self, folder: i64, row: &EntryRow) -> Result<(), StoreError>;
    /// Closes an open entry.
    fn close_entry(&self, parent: i64, name: &[u8], to_seq: Seq) -> Result<(), StoreError>;
    /// Closes all open entries of a folder; returns their number.
    fn close_all_entries(&self, folder: i64, to_seq: Seq) -> Result<u64, StoreError>;
    /// Adds a batch.
    fn insert_batch(&self, folder: i64, row: &BatchRow) -> Result<(), StoreError>;
    /// Adds a snapshot; returns its number.
    fn insert_snapshot(&self, folder: i64, seq: Seq, label: &SnapshotLabel) -> Result<u64, StoreError>;
    /// Removes a snapshot; returns whether it existed.
    fn delete_snapshot(&self, folder: i64, id: u64) -> Result<bool, StoreError>;
    /// Adds a layer (its `id` is ignored) and returns its row number. It comes with its pages and
    /// the segments that they refer to, or with neither if it shares those of another row. A row
    /// whose pages are shared cannot be removed.
    fn insert_layer(
        &self,
        node: i64,
        row: &LayerRow,
        pages: &[(u64, Vec<u8>)],
        segments: &[u64],
    ) -> Result<i64, StoreError>;
    /// Marks a layer as not to be merged with older ones.
    fn set_barrier(&self, layer: i64) -> Result<(), StoreError>;
    /// The segments that the pages of a layer ([`LayerRow::pages`]) refer to.
    fn layer_segments(&self, layer: i64) -> Result<Vec<u64>, StoreError>;
    /// Remembers that a segment is referred to up to `len_bytes`.
    fn touch_segment(&self, segment: u64, len_bytes: u64) -> Result<(), StoreError>;
    /// Forgets a segment that nothing refers to. The highest number stays known, so that it is
    /// never used twice.
    fn forget_segment(&self, segment: u64) -> Result<(), StoreError>;
    /// Replaces a staged part.
    fn replace_staged_part(
        &self,
        key: BatchKey,
        part: u32,
        noted: (i64, Option<&[u8; 32]>),
        records: &[Vec<u8>],
        segments: &[u64],
    ) -> Result<(), StoreError>;
    /// Removes all staged parts of a batch.
    fn delete_staged_parts(&self, key: BatchKey) -> Result<(), StoreError>;
    /// Removes the parts of batches whose newest part was staged before this time; returns their
    /// number.
    fn delete_expired_parts(&self, before_ns: i64) -> Result<u64, StoreError>;
    /// Notes that a frame is damaged, unless `noted_max` frames are noted already.
    fn note_damage(&self, segment: u64, offset: u64, noted_max: u32) -> Result<(), StoreError>;
    /// Removes the note that a frame is damaged.
    fn forget_damage(&self, segment: u64, offset: u64) -> Result<(), StoreError>;
    /// Keeps sums: adds or replaces rows and notes their use. There may be no rows.
    fn put_sums(&self, node: i64, kind: u8, used_ns: i64, rows: &[(u64, Vec<u8>)]) -> Result<(), StoreError>;
    /// Removes a file's chunks of kept sums from a number on.
    fn delete_sums(&self, node: i64, kind: u8, from_chunk: u64) -> Result<(), StoreError>;
    /// Removes at most `rows_max` chunks of the least recently used sums other than those of the
    /// given file and kind; returns their size in bytes.
    fn evict_sums(&self, except: (i64, u8), rows_max: u32) -> Result<u64, StoreError>;
}
