//! The leaves of one content, in order: kept ones where its bytes are the same, the others made
//! from the bytes.
//!
//! One chunk at a time, the places of its bytes are resolved, the row is looked up in the same
//! short transaction, and differing leaves are read. Memory: one chunk (at most [`SOURCES_MAX`]
//! places of bytes), the decoded frames that a reader keeps (`content`), the rows that wait to be
//! written. A chunk in more pieces than that is summed while it is resolved, and not kept.

use super::chunk::{ChunkKey, KeptChunk, LeafSet, LeafSum, SOURCES_MAX, Sources};
use super::keep::Keeper;
use super::leaves::LeafHasher;
use super::{CHUNK_LEN, KEPT_LEN_MIN, Purpose};
use crate::catalog::CatalogRead;
use crate::content::FrameCache;
use crate::error::StoreError;
use crate::numbers::{ChunkNumber, NodeNumber};
use crate::resolve::{Piece, Resolver};
use crate::store::Store;
use byteback_delta::Source;
use byteback_delta::leaves::{GROUP_LEAVES, LEAF_LEN_BYTES, LeafKind, leaf_count, leaf_len_bytes};
use byteback_extents::{ByteRange, ExtentValue};

/// The next part of a content's leaves.
#[derive(Debug)]
pub(crate) enum Leaves<'a> {
    /// Bytes of zeros: whole chunks, or up to the content's end.
    Zeros(u64),
    /// Consecutive leaves.
    Sums(&'a [LeafSum]),
}

/// Reads the leaves of one content; see the module's header.
pub(crate) struct LeafReader {
    store: Store,
    kind: LeafKind,
    /// Node whose rows are used; `None` for contents that are too short or have no node yet.
    node: Option<NodeNumber>,
    resolver: Resolver,
    len: u64,
    /// Where the next chunk begins.
    at: u64,
    /// Rest of a piece, which belongs to the next chunk.
    rest: Option<Piece>,
    frames: FrameCache,
    hasher: LeafHasher,
    sources: Sources,
    sums: Vec<LeafSum>,
    keeper: Option<Keeper>,
    purpose: Purpose,
}

impl LeafReader {
    /// A reader of a content of `len` bytes that `resolver` resolves. `node`: whose rows are used;
    /// `keeper`: takes new rows.
    pub(crate) fn new(
        store: &Store,
        kind: LeafKind,
        node: Option<NodeNumber>,
        (resolver, len): (Resolver, u64),
        keeper: Option<Keeper>,
        purpose: Purpose,
    ) -> Result<Self, StoreError> {
        let is_kept = len >= KEPT_LEN_MIN;
        Ok(Self {
            store: store.clone(),
            kind,
            node: node.filter(|_| is_kept),
            resolver,
            len,
            at: 0,
            rest: None,
            frames: FrameCache::new()?,
            hasher: LeafHasher::new(kind),
            sources: Sources::default(),
            sums: Vec::new(),
            keeper: keeper.filter(|_| is_kept),
            purpose,
        })
    }

    /// The leaves of a range of such a content. The range begins with a chunk and ends with one or
    /// with the content. New leaves are not kept.
    pub(crate) fn of_range(
        store: &Store,
        kind: LeafKind,
        node: Option<NodeNumber>,
        (resolver, len): (Resolver, u64),
        range: ByteRange,
        purpose: Purpose,
    ) -> Result<Self, StoreError> {
        let whole = Self::new(store, kind, node, (resolver, len), None, purpose)?;
        Ok(Self {
            at: range.start(),
            len: range.end().min(len),
            ..whole
        })
    }

    /// The next leaves; `None` at the end.
    ///
    /// # Errors
    /// A frame is damaged; the catalog or a segment fails. Damaged or unwritable rows are no
    /// errors.
    pub(crate) fn next(&mut self) -> Result<Option<Leaves<'_>>, StoreError> {
        let store = self.store.clone();
        if self.at >= self.len {
            return Ok(None);
        }
        let catalog = store.catalog().read()?;
        if let Some(zeros) = self.take_zeros(&*catalog)? {
            store.sums_work.add(self.purpose, 0, zeros);
            return Ok(Some(Leaves::Zeros(zeros)));
        }
        let chunk = ByteRange::new(self.at, self.len.min(self.at.saturating_add(CHUNK_LEN)));
        let Some(chunk) = chunk else { return Ok(None) };
        self.sources.clear();
        self.sums.clear();
        let gathered = self.gather(&*catalog, chunk, 0)?;
        if gathered < chunk.len_bytes() {
            drop(catalog);
            self.sum_while_resolving(chunk, gathered)?;
            self.at = chunk.end();
            return Ok(Some(Leaves::Sums(&self.sums)));
        }
        let key = self.node.map(|node| ChunkKey {
            node,
            kind: self.kind,
            chunk: ChunkNumber(chunk.start() / CHUNK_LEN),
        });
        let blob = match key {
            Some(key) => catalog.sum_chunk(key.node, key.kind, key.chunk)?,
            None => None,
        };
        drop(catalog);
        let kept = key.zip(blob).and_then(|(key, blob)| KeptChunk::decode(&blob, key).ok());
        let known = kept.as_ref().map(|kept| kept.unchanged(&self.sources));
        let known = known.unwrap_or([false; GROUP_LEAVES as usize]);
        let kept_sums = kept.as_ref().map_or(&[][..], |kept| &kept.sums);
        let is_new = self.sum_unknown(&known, kept_sums)?;
        // A row of another length than the chunk has now is replaced, too.
        let is_new = is_new || kept.is_some_and(|kept| kept.sources.len_bytes() != chunk.len_bytes());
        if let Some(keeper) = &mut self.keeper
            && (is_new || !keeper.is_of(self.node))
            && !self.sources.is_zeros()
        {
            keeper.put(ChunkNumber(chunk.start() / CHUNK_LEN), &self.sources, &self.sums);
        }
        self.at = chunk.end();
        Ok(Some(Leaves::Sums(&self.sums)))
    }

    /// The keeper of the new rows, if all leaves were read.
    pub(crate) fn finish(self) -> Option<Keeper> {
        self.keeper.filter(|_| self.at >= self.len)
    }

    /// Zeros that begin here and fill whole chunks, or reach the end.
    fn take_zeros(&mut self, catalog: &dyn CatalogRead) -> Result<Option<u64>, StoreError> {
        let Some((range, source)) = self.take_piece(catalog)? else {
            return Err(ended_early());
        };
        let end = match range.end() >= self.len {
            true => range.end(),
            false => range.end() - range.end() % CHUNK_LEN,
        };
        if source != Source::Zero || end <= range.start() || end - range.start() < CHUNK_LEN && end < self.len {
            self.rest = Some((range, source));
            return Ok(None);
        }
        self.rest = ByteRange::new(end, range.end()).map(|rest| (rest, source));
        self.at = end;
        Ok(Some(end - range.start()))
    }

    /// Gathers the places of the chunk's bytes from `from` on, as many as fit. Returns the offset
    /// that it reached, relative to the chunk.
    fn gather(&mut self, catalog: &dyn CatalogRead, chunk: ByteRange, from: u64) -> Result<u64, StoreError> {
        let mut upto = from;
        while upto < chunk.len_bytes() && self.sources.extents().len() < SOURCES_MAX {
            let Some((range, source)) = self.take_piece(catalog)? else {
                return Err(ended_early());
            };
            let (now, later) = range.split_at(chunk.end());
            self.rest = later.map(|later| (later, source.advance(later.start() - range.start())));
            let inside = now.and_then(|now| ByteRange::from_offset_len(upto, now.len_bytes()));
            let inside = inside.ok_or_else(ended_early)?;
            self.sources.push(inside, source);
            upto = inside.end();
        }
        Ok(upto)
    }

    /// Sums a chunk in too many places, of which the first `gathered` bytes are gathered.
    fn sum_while_resolving(&mut self, chunk: ByteRange, gathered: u64) -> Result<(), StoreError> {
        let store = self.store.clone();
        let (mut from, mut upto) = (0, gathered);
        loop {
            if let Some(range) = ByteRange::new(from, upto) {
                self.feed(range)?;
            }
            if upto >= chunk.len_bytes() {
                break;
            }
            self.sources.clear();
            from = upto;
            upto = self.gather(&*store.catalog().read()?, chunk, from)?;
        }
        self.sums.extend(self.hasher.take());
        Ok(())
    }

    /// Fills `sums`: known leaves from the row, the others from the bytes. Returns whether any of
    /// the others is not just zeros.
    fn sum_unknown(&mut self, known: &LeafSet, kept: &[LeafSum]) -> Result<bool, StoreError> {
        let len = self.sources.len_bytes();
        // At most 256 leaves.
        let leaves = leaf_count(len) as usize;
        let mut is_new = false;
        while self.sums.len() < leaves {
            let first = self.sums.len();
            let is_known = |leaf: usize| known.get(leaf).copied().unwrap_or(false) && leaf < kept.len();
            let run = (first..leaves)
                .take_while(|&leaf| is_known(leaf) == is_known(first))
                .count();
            if is_known(first) {
                self.sums
                    .extend_from_slice(kept.get(first..first + run).unwrap_or_default());
                let from = first as u64 * u64::from(LEAF_LEN_BYTES);
                let unread = len.min((first + run) as u64 * u64::from(LEAF_LEN_BYTES)) - from;
                self.store.sums_work.add(self.purpose, 0, unread);
                continue;
            }
            let leaf_len = u64::from(LEAF_LEN_BYTES);
            let end = ((first + run) as u64 * leaf_len).min(len);
            if let Some(range) = ByteRange::new(first as u64 * leaf_len, end) {
                is_new |= self.sources.within(range).any(|extent| extent.source != Source::Zero);
                self.feed(range)?;
            }
            self.sums.extend(self.hasher.take());
            if self.sums.len() != first + run {
                return Err(ended_early());
            }
        }
        debug_assert!(leaf_len_bytes(len, leaves as u64) == 0, "all leaves have sums");
        Ok(is_new)
    }

    /// Puts the bytes of a range of the gathered chunk into the hasher.
    fn feed(&mut self, range: ByteRange) -> Result<(), StoreError> {
        for extent in self.sources.within(range) {
            match extent.source {
                Source::Zero => {
                    self.hasher.push_zeros(extent.range.len_bytes());
                    self.store.sums_work.add(self.purpose, 0, extent.range.len_bytes());
                }
                Source::Literal(literal) => {
                    let len = usize::try_from(extent.range.len_bytes()).unwrap_or(usize::MAX);
                    let bytes = self.frames.bytes(&*self.store.parts.segments, &literal, len)?;
                    self.hasher.push(bytes);
                    self.store.sums_work.add(self.purpose, extent.range.len_bytes(), 0);
                }
                Source::Copy { .. } => return Err(ended_early()),
            }
        }
        Ok(())
    }

    fn take_piece(&mut self, catalog: &dyn CatalogRead) -> Result<Option<Piece>, StoreError> {
        match self.rest.take() {
            Some(piece) => Ok(Some(piece)),
            None => self.resolver.next_piece(catalog),
        }
    }
}

fn ended_early() -> StoreError {
    StoreError::CatalogDamaged("the layers of a file end before its contents do".to_owned())
}
