//! Writes rows of kept sums, and removes old ones when there are too many.
//!
//! Rows are written in short transactions of [`ROWS_PER_TRANSACTION`], so that commits of batches
//! never wait long. A crash leaves the rows that were written: each is valid by itself. Rows that
//! cannot be written (the disk is full, this file alone reaches the limit) are dropped; the request
//! for a signature does not fail for that.

use super::CHUNK_LEN;
use super::chunk::{ChunkKey, KeptChunk, LeafSum, Sources};
use crate::error::StoreError;
use crate::numbers::{ChunkNumber, FolderNumber, NodeNumber};
use crate::store::Store;
use byteback_delta::leaves::LeafKind;
use byteback_model::FileId;

/// Rows that are written at once: about 600 KB.
const ROWS_PER_TRANSACTION: usize = 64;

/// Rows that are removed at once to make room.
const EVICTED_PER_TRANSACTION: u32 = 1024;

/// Most rows of contents that are not committed yet: about 10 MB. Further rows are dropped.
pub(crate) const WAITING_ROWS_MAX: usize = 1024;

/// Shortest time between two notes of the use of a file's sums.
const USE_NOTED_EVERY_NS: i64 = 60 * 1_000_000_000;

/// The number in the keys of rows whose file has none yet; no node has it.
const NO_NUMBER: NodeNumber = NodeNumber(0);

/// The file that rows are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowsOf {
    Node(NodeNumber),
    /// A file that gets its number when its batch is committed.
    NewFile(FileId),
}

/// Rows of one file that wait to be written.
#[derive(Debug)]
pub(crate) struct KeptRows {
    /// [`NO_NUMBER`] for a new file.
    node: NodeNumber,
    new_file: Option<FileId>,
    kind: LeafKind,
    rows: Vec<(ChunkNumber, Vec<u8>)>,
    /// Length of the contents in bytes.
    len: u64,
}

/// Takes the rows of one file.
#[derive(Debug)]
pub(crate) struct Keeper {
    store: Store,
    kept: KeptRows,
    /// Most rows that wait for a commit; `None`: rows are written as they come.
    waiting_max: Option<usize>,
    /// Whether no more rows are taken.
    has_stopped: bool,
}

impl Keeper {
    /// A keeper that writes rows as they come. The contents, of `len` bytes, are committed.
    pub(crate) fn of_committed(store: &Store, node: NodeNumber, kind: LeafKind, len: u64) -> Self {
        Self::new(store, RowsOf::Node(node), kind, len, None)
    }

    /// A keeper that holds back at most `rows_max` rows: the contents are not committed yet.
    pub(crate) fn of_uncommitted(store: &Store, of: RowsOf, kind: LeafKind, len: u64, rows_max: usize) -> Self {
        Self::new(store, of, kind, len, Some(rows_max))
    }

    fn new(store: &Store, of: RowsOf, kind: LeafKind, len: u64, waiting_max: Option<usize>) -> Self {
        let (node, new_file) = match of {
            RowsOf::Node(node) => (node, None),
            RowsOf::NewFile(file) => (NO_NUMBER, Some(file)),
        };
        Self {
            store: store.clone(),
            kept: KeptRows {
                node,
                new_file,
                kind,
                rows: Vec::new(),
                len,
            },
            waiting_max,
            has_stopped: store.parts.limits.sums_len_max == 0,
        }
    }

    /// Whether the rows are those of this node.
    pub(crate) fn is_of(&self, node: Option<NodeNumber>) -> bool {
        self.kept.new_file.is_none() && node == Some(self.kept.node)
    }

    /// Takes the sums of a chunk.
    pub(crate) fn put(&mut self, chunk: ChunkNumber, sources: &Sources, sums: &[LeafSum]) {
        if self.has_stopped || self.waiting_max.is_some_and(|max| self.kept.rows.len() >= max) {
            return;
        }
        let row = KeptChunk::encode(sources, sums, self.kept.key(chunk));
        self.kept.rows.push((chunk, row));
        if self.waiting_max.is_none() && self.kept.rows.len() >= ROWS_PER_TRANSACTION {
            self.has_stopped = !matches!(self.kept.write(&self.store), Ok(true));
        }
    }

    /// Ends after the last leaf: writes the remaining rows and notes that the sums were used, or
    /// returns the rows that wait.
    pub(crate) fn finish(mut self) -> Option<KeptRows> {
        if self.waiting_max.is_some() {
            return Some(self.kept).filter(|kept| !kept.rows.is_empty());
        }
        if !self.has_stopped {
            // Rows that are not kept are made again.
            let _ = self.kept.end(&self.store);
        }
        None
    }
}

impl KeptRows {
    /// Number of waiting rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    fn key(&self, chunk: ChunkNumber) -> ChunkKey {
        ChunkKey {
            node: self.node,
            kind: self.kind,
            chunk,
        }
    }

    /// Writes the rows that waited for the contents to be committed.
    ///
    /// # Errors
    /// The catalog fails. Nothing depends on the rows.
    pub(crate) fn write_committed(mut self, store: &Store, folder: FolderNumber) -> Result<(), StoreError> {
        if let Some(file) = self.new_file {
            match store.catalog().read()?.node_number(folder, file)? {
                Some(node) => self.number(node)?,
                // The batch brought its contents, and no node for them.
                None => return Ok(()),
            }
        }
        while !self.rows.is_empty() {
            let later = self.rows.split_off(self.rows.len().min(ROWS_PER_TRANSACTION));
            if !self.write(store)? {
                return Ok(());
            }
            self.rows = later;
        }
        self.end(store)
    }

    /// Gives the rows the number that their file has got.
    fn number(&mut self, node: NodeNumber) -> Result<(), StoreError> {
        for (chunk, row) in &mut self.rows {
            let key = ChunkKey {
                node: self.node,
                kind: self.kind,
                chunk: *chunk,
            };
            let kept = KeptChunk::decode(row, key)?;
            *row = KeptChunk::encode(&kept.sources, &kept.sums, ChunkKey { node, ..key });
        }
        (self.node, self.new_file) = (node, None);
        Ok(())
    }

    /// Writes the gathered rows; false if there is no room for them.
    fn write(&mut self, store: &Store) -> Result<bool, StoreError> {
        let rows = std::mem::take(&mut self.rows);
        let (node, kind) = (self.node, self.kind);
        loop {
            let catalog = store.catalog().write()?;
            catalog.put_sums(node, kind, store.parts.clock.now_ns(), &rows)?;
            if catalog.sums_len()? <= store.parts.limits.sums_len_max {
                catalog.commit()?;
                return Ok(true);
            }
            // Rolled back; tried again once there is room.
            drop(catalog);
            let catalog = store.catalog().write()?;
            if catalog.evict_sums((node, kind), EVICTED_PER_TRANSACTION)? == 0 {
                return Ok(false);
            }
            catalog.commit()?;
        }
    }

    /// Writes the remaining rows, removes rows beyond the contents' end, and notes the use.
    fn end(&mut self, store: &Store) -> Result<(), StoreError> {
        if !self.rows.is_empty() && !self.write(store)? {
            return Ok(());
        }
        let (node, kind) = (self.node, self.kind);
        let rows = store.catalog().read()?.sums(node)?;
        let Some(row) = rows.into_iter().find(|row| row.kind == kind) else {
            return Ok(());
        };
        let now = store.parts.clock.now_ns();
        let chunks = ChunkNumber(self.len.div_ceil(CHUNK_LEN));
        let has_more = row.last_chunk.is_some_and(|last| last >= chunks);
        if has_more || now.saturating_sub(row.used_ns) >= USE_NOTED_EVERY_NS {
            let catalog = store.catalog().write()?;
            if has_more {
                catalog.delete_sums(node, kind, chunks)?;
            }
            // Sums that were thrown away meanwhile must not come back.
            if chunks > ChunkNumber::FIRST && catalog.sums(node)?.iter().any(|row| row.kind == kind) {
                catalog.put_sums(node, kind, now, &[])?;
            }
            catalog.commit()?;
        }
        Ok(())
    }
}
