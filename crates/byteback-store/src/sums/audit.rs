//! Compares kept sums with their bytes, while a verification reads these anyway.
//!
//! Only leaves that would be used count: those whose bytes lie where the row says. A row that does
//! not decode is wrong, too. If any row is wrong, all sums of that kind of the file are thrown
//! away, and the file is reported: a disk or a memory that corrupts data concerns the operator.

use super::CHUNK_LEN;
use super::chunk::{ChunkKey, KeptChunk, LeafSum, SOURCES_MAX, Sources};
use super::leaves::LeafHasher;
use crate::error::StoreError;
use crate::layer::Literal;
use crate::numbers::{ChunkNumber, NodeNumber};
use crate::store::Store;
use byteback_delta::Source;
use byteback_delta::leaves::{GROUP_LEAVES, LeafKind};
use byteback_extents::{ByteRange, ExtentValue};

/// The contents of one file, fed from the first byte to the last.
pub(crate) struct Audit {
    store: Store,
    node: NodeNumber,
    /// Kinds of sums that are kept.
    kinds: Vec<(LeafKind, LeafHasher)>,
    /// Places of the current chunk's bytes so far; a chunk in too many places has no row.
    sources: Sources,
    chunk_start: u64,
    /// Bytes of the current chunk so far.
    in_chunk: u64,
    wrong: Vec<LeafKind>,
}

impl Audit {
    /// Begins an audit; `None` if no sums of the file are kept.
    pub(crate) fn begin(store: &Store, node: NodeNumber) -> Result<Option<Self>, StoreError> {
        let rows = store.catalog().read()?.sums(node)?;
        let kinds: Vec<LeafKind> = rows.iter().map(|row| row.kind).collect();
        Ok((!kinds.is_empty()).then(|| Self {
            store: store.clone(),
            node,
            kinds: kinds.into_iter().map(|kind| (kind, LeafHasher::new(kind))).collect(),
            sources: Sources::default(),
            chunk_start: 0,
            in_chunk: 0,
            wrong: Vec::new(),
        }))
    }

    /// Takes the next piece; `bytes` is `None` for zeros.
    pub(crate) fn feed(
        &mut self,
        range: ByteRange,
        source: Source<Literal>,
        bytes: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        let mut left = Some(range);
        while let Some(piece) = left {
            let (now, later) = piece.split_at(self.chunk_start.saturating_add(CHUNK_LEN));
            left = later;
            if let Some(now) = now {
                let skip = now.start() - range.start();
                for (_, hasher) in &mut self.kinds {
                    match bytes {
                        Some(bytes) => {
                            // Within a frame, which is short.
                            let (from, len) = (skip as usize, now.len_bytes() as usize);
                            hasher.push(bytes.get(from..from.saturating_add(len)).unwrap_or_default());
                        }
                        None => hasher.push_zeros(now.len_bytes()),
                    }
                }
                if self.sources.extents().len() <= SOURCES_MAX
                    && let Some(inside) = ByteRange::from_offset_len(self.in_chunk, now.len_bytes())
                {
                    self.sources.push(inside, source.advance(skip));
                }
                self.in_chunk += now.len_bytes();
            }
            if later.is_some() {
                self.end_chunk()?;
            }
        }
        Ok(())
    }

    /// Ends the content; returns whether all sums agreed.
    ///
    /// # Errors
    /// The catalog fails.
    pub(crate) fn finish(mut self) -> Result<bool, StoreError> {
        self.end_chunk()?;
        if self.wrong.is_empty() {
            return Ok(true);
        }
        let catalog = self.store.catalog().write()?;
        for kind in &self.wrong {
            catalog.delete_sums(self.node, *kind, ChunkNumber::FIRST)?;
        }
        catalog.commit()?;
        Ok(false)
    }

    fn end_chunk(&mut self) -> Result<(), StoreError> {
        let chunk = ChunkNumber(self.chunk_start / CHUNK_LEN);
        let is_reported = self.sources.len_bytes() == self.in_chunk;
        let catalog = self.store.catalog().read()?;
        for (kind, hasher) in &mut self.kinds {
            let made: Vec<LeafSum> = hasher.take().collect();
            let Some(blob) = catalog.sum_chunk(self.node, *kind, chunk)? else {
                continue;
            };
            let key = ChunkKey {
                node: self.node,
                kind: *kind,
                chunk,
            };
            let holds = KeptChunk::decode(&blob, key).is_ok_and(|kept| {
                let used = match is_reported {
                    true => kept.unchanged(&self.sources),
                    false => [false; GROUP_LEAVES as usize],
                };
                let pairs = kept.sums.iter().zip(&made).zip(used);
                pairs.into_iter().all(|((kept, made), used)| !used || kept == made)
            });
            if !holds && !self.wrong.contains(kind) {
                self.wrong.push(*kind);
            }
        }
        drop(catalog);
        self.sources.clear();
        self.chunk_start = self.chunk_start.saturating_add(CHUNK_LEN);
        self.in_chunk = 0;
        Ok(())
    }
}
