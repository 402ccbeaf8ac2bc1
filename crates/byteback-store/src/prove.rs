//! Proofs: whether a batch gives a file the contents that its sender has, checked before it is
//! applied.
//!
//! A client that finds copies by a signature trusts checksums of a content that it cannot see. If
//! these were wrong (a defect, a chance in 2^24, bytes that changed), its delta would assemble
//! bytes other than its own, and nobody would ever notice. So the client adds the digest of its
//! contents. Here the new contents are read as they would be after the batch and compared: the
//! stored layers of the base with the staged deltas on top, through the same resolver that later
//! serves them.
//!
//! A proof by sums is compared leaf by leaf. Leaves whose bytes lie where they lay when their sums
//! were kept are not read ([`crate::sums`] says why they can be trusted), so that the comparison
//! costs what the batch changes. New sums are kept once the batch is committed.
//!
//! Contents that follow those of another file ([`ContentBase::Of`]) are compared in the same way,
//! with the kept sums of that file, and so are their own sums kept: a program that saves by a new
//! file does so again.
//!
//! A proof by the bytes reads whole contents, or the ranges that it is of. All this happens before
//! the transaction that applies the batch. The contents seen here are those that are applied: the
//! base is the one at the batch's `base_seq`, which never changes, and a newer one is a conflict;
//! staged parts are identified by their row numbers, which are never used twice.
//!
//! Memory: the pages of the files that are being assembled, and the decoded frames that a reader
//! keeps (`content`).

use crate::apply::{Basis, Pending, conflict, file_with_contents, staged_part_ids};
use crate::catalog::FolderRow;
use crate::codec::{StagedDelta, StagedRecord};
use crate::content::ContentReader;
use crate::error::StoreError;
use crate::model::{Proof, ProofOf};
use crate::numbers::{ChunkNumber, LayerNumber, NodeNumber, StagedPartRowNumber};
use crate::resolve::{Resolver, Run, layer_rows};
use crate::sheets::records_of;
use crate::stage::PartWriter;
use crate::store::{Store, folder_row};
use crate::sums::Purpose;
use crate::sums::keep::{Keeper, KeptRows, RowsOf, WAITING_ROWS_MAX};
use crate::sums::reader::{LeafReader, Leaves};
use byteback_delta::leaves::{LeafDigest, LeafKind};
use byteback_delta::{ContentDigest, DIGEST_LEN};
use byteback_extents::ByteRange;
use byteback_model::{ContentBase, FileId, NodeRecord};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// Most files that one mismatch reports.
const MISMATCHES_MAX: usize = 8;

/// Result of comparing the proofs of a batch.
pub(crate) struct Proven {
    /// Row numbers of the staged parts that were read.
    pub(crate) parts: Vec<StagedPartRowNumber>,
    /// New sums, to be written once the batch is committed.
    pub(crate) kept: Vec<KeptRows>,
}

/// A file that has a proof.
struct Claim {
    proof: Proof,
    /// Whether the contents were compared.
    is_done: bool,
    content: Option<Assembly>,
}

/// Contents that are being assembled.
struct Assembly {
    pending: Pending,
    /// Node number, if the file existed before.
    node: Option<NodeNumber>,
    /// The node whose kept sums cover most of these contents: the file whose contents they follow.
    summed: Option<NodeNumber>,
    /// Layers of the batch, newest last.
    staged: Vec<Run>,
    stored: Vec<Run>,
}

impl Store {
    /// Compares the new contents of each file that has a proof; `None` if the batch is already
    /// applied, and nothing was compared.
    ///
    /// # Errors
    /// `ContentMismatch`; missing parts; a proof of a file that gets no contents, or of one that is
    /// too long; the store fails.
    pub(crate) fn prove(&self, last: &PartWriter, staged_parts: u32) -> Result<Option<Proven>, StoreError> {
        let (parts, folder) = {
            let catalog = self.catalog().read()?;
            if catalog.batch_by_key(last.key)?.is_some() {
                return Ok(None);
            }
            let parts = staged_part_ids(&*catalog, last.key, staged_parts)?;
            (parts, folder_row(&*catalog, &last.folder)?)
        };
        let mut claims = HashMap::new();
        self.for_each_record(last, &parts, |record| {
            if let StagedRecord::Proof(file, proof) = record {
                let claim = Claim {
                    proof,
                    is_done: false,
                    content: None,
                };
                if claims.insert(file, claim).is_some() {
                    return Err(StoreError::InvalidBatch(format!("file {file} has two proofs")));
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let mut basis = (Basis::default(), false);
        let mut wrong = Vec::new();
        let mut kept = Vec::new();
        self.for_each_record(last, &parts, |record| {
            let file = match &record {
                StagedRecord::Manifest(manifest) => {
                    let stands_on = Basis::of(&*self.catalog().read()?, folder.id, manifest)?;
                    basis = (stands_on, manifest.base_seq.is_none());
                    return Ok(ControlFlow::Continue(()));
                }
                StagedRecord::Node(node) => node.id,
                StagedRecord::Delta(delta) => FileId(delta.file),
                _ => return Ok(ControlFlow::Continue(())),
            };
            let Some(claim) = claims.get_mut(&file) else {
                return Ok(ControlFlow::Continue(()));
            };
            let fits = match record {
                StagedRecord::Node(node) => {
                    claim.content = self.assembly(&folder, &basis, &node)?;
                    true
                }
                StagedRecord::Delta(delta) => claim.add(delta)?,
                _ => true,
            };
            if !fits {
                wrong.push(file);
                return Ok(ControlFlow::Break(()));
            }
            if let Some(content) = claim.content.take_if(|content| content.pending.deltas_left == 0) {
                claim.is_done = true;
                let summed = content.summed;
                let digest = match &claim.proof.of {
                    ProofOf::Leaves(kind) => self.digest_of_leaves(content, *kind, &mut kept)?,
                    ProofOf::Bytes => {
                        let len = content.pending.len;
                        self.digest(content, ByteRange::new(0, len).as_slice())?
                    }
                    ProofOf::Ranges(ranges) => self.digest(content, ranges)?,
                };
                if digest != Some(claim.proof.digest) {
                    if let (&ProofOf::Leaves(kind), Some(node)) = (&claim.proof.of, summed) {
                        // A wrong sum may have been the reason: the next proof is compared with the
                        // bytes.
                        forget(self, node, kind)?;
                    }
                    wrong.push(file);
                }
            }
            match wrong.len() < MISMATCHES_MAX {
                true => Ok(ControlFlow::Continue(())),
                false => Ok(ControlFlow::Break(())),
            }
        })?;
        if !wrong.is_empty() {
            return Err(StoreError::ContentMismatch { files: wrong });
        }
        if let Some((file, _)) = claims.iter().find(|(_, claim)| !claim.is_done) {
            let message = format!("file {file} has a proof, but its contents are incomplete");
            return Err(StoreError::InvalidBatch(message));
        }
        Ok(Some(Proven { parts, kept }))
    }

    fn for_each_record(
        &self,
        last: &PartWriter,
        parts: &[StagedPartRowNumber],
        mut each: impl FnMut(StagedRecord) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<(), StoreError> {
        for part in parts {
            let mut ordinal = 0;
            loop {
                // A short transaction for each: `each` may take long.
                let sheet = self.catalog().read()?.staged_sheet(*part, ordinal)?;
                let Some(sheet) = sheet else { break };
                for record in records_of(&sheet) {
                    if each(record?)?.is_break() {
                        return Ok(());
                    }
                }
                ordinal += 1;
            }
        }
        for record in last.records.as_slice().iter().flat_map(|sheet| records_of(sheet)) {
            if each(record?)?.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The contents that a node's deltas will be laid over: those at the moment that the batch
    /// follows, or replaces.
    fn assembly(
        &self,
        folder: &FolderRow,
        (basis, is_first_contact): &(Basis, bool),
        node: &NodeRecord,
    ) -> Result<Option<Assembly>, StoreError> {
        let Some(change) = node.content else { return Ok(None) };
        let mut pending = Pending {
            file: node.id,
            deltas_left: change.deltas,
            layer: LayerNumber::NONE,
            len: 0,
            resets: true,
            size: node.attributes.size,
        };
        let mut stored = Vec::new();
        let catalog = self.catalog().read()?;
        let number = catalog.node_number(folder.id, node.id)?;
        let base = match (change.base, basis.seq, number) {
            (ContentBase::Of(file), _, _) => Some(file_with_contents(&*catalog, folder.id, file, basis.seq)?),
            (ContentBase::At { file, seq }, _, _) => Some(file_with_contents(&*catalog, folder.id, file, Some(seq))?),
            (ContentBase::Previous, Some(seq), Some(node)) if !is_first_contact => {
                catalog.attributes(node, seq)?.map(|row| (node, row))
            }
            // At first contact, as in `apply`, the folder's former contents do not count.
            _ => None,
        };
        if let (Some((node, row)), ContentBase::Previous | ContentBase::Of(_)) = (&base, change.base)
            && basis.is_overtaken(&*catalog, folder.id, row)?
        {
            let conflicts = vec![conflict(&*catalog, folder, *node, row.content_seq)?];
            return Err(StoreError::Conflict { conflicts });
        }
        let summed = base.as_ref().map(|(node, _)| *node).or(number);
        if let Some((node, row)) = base {
            pending.resets = row.layer == LayerNumber::NONE;
            pending.layer = row.layer;
            pending.len = row.attributes.size;
            let rows = layer_rows(&*catalog, node, row.layer, LayerNumber::NONE)?;
            stored = rows.into_iter().map(Run::stored).collect();
        }
        Ok(Some(Assembly {
            pending,
            node: number,
            summed,
            staged: Vec::new(),
            stored,
        }))
    }

    /// The digest of the bytes of these ranges; `None` if the contents end before.
    fn digest(&self, content: Assembly, ranges: &[ByteRange]) -> Result<Option<[u8; DIGEST_LEN]>, StoreError> {
        let len = content.pending.len;
        if ranges.last().is_some_and(|last| last.end() > len) {
            return Ok(None);
        }
        // Apart from each other, so that the sum is at most the last one's end.
        let digested_len = ranges.iter().map(|range| range.len_bytes()).sum();
        self.check_proven_len(content.pending.file, digested_len)?;
        let resolver = Resolver::through(content.runs(), ranges);
        let mut reader = ContentReader::of_resolver(self, resolver, len)?;
        let mut digest = ContentDigest::new(digested_len);
        while let Some((range, bytes)) = reader.next_part()? {
            match bytes {
                Some(bytes) => {
                    digest.push(bytes);
                    self.sums_work.add(Purpose::Proof, range.len_bytes(), 0);
                }
                None => {
                    digest.push_zeros(range.len_bytes());
                    self.sums_work.add(Purpose::Proof, 0, range.len_bytes());
                }
            }
        }
        Ok(digest.finish())
    }

    fn check_proven_len(&self, file: FileId, len: u64) -> Result<(), StoreError> {
        let len_max = self.parts.limits.hashed_len_max;
        if len > len_max {
            return Err(StoreError::TooLarge(format!(
                "file {file} has {len} bytes, but at most {len_max} can be compared with a proof"
            )));
        }
        Ok(())
    }

    fn digest_of_leaves(
        &self,
        content: Assembly,
        kind: LeafKind,
        kept: &mut Vec<KeptRows>,
    ) -> Result<Option<[u8; DIGEST_LEN]>, StoreError> {
        let of = content.node.map_or(RowsOf::NewFile(content.pending.file), RowsOf::Node);
        let summed = content.summed;
        let (resolver, len) = self.resolver(content)?;
        let waiting: usize = kept.iter().map(KeptRows::len).sum();
        let rows_max = WAITING_ROWS_MAX.saturating_sub(waiting);
        let keeper = Keeper::of_uncommitted(self, of, kind, len, rows_max);
        let mut leaves = LeafReader::new(self, kind, summed, (resolver, len), Some(keeper), Purpose::Proof)?;
        let mut digest = LeafDigest::new(kind, len);
        while let Some(next) = leaves.next()? {
            match next {
                Leaves::Zeros(len) => digest.push_zeros(len),
                Leaves::Sums(sums) => sums.iter().for_each(|sum| digest.push_leaf(&sum.leaf)),
            }
        }
        kept.extend(leaves.finish().and_then(Keeper::finish));
        Ok(digest.finish())
    }

    /// The resolver of the assembled contents, and their length in bytes.
    fn resolver(&self, content: Assembly) -> Result<(Resolver, u64), StoreError> {
        let len = content.pending.len;
        self.check_proven_len(content.pending.file, len)?;
        Ok((
            Resolver::through(content.runs(), ByteRange::new(0, len).as_slice()),
            len,
        ))
    }
}

impl Assembly {
    /// All layers, newest first.
    fn runs(self) -> Vec<Run> {
        self.staged.into_iter().rev().chain(self.stored).collect()
    }
}

/// Removes the kept sums of a file.
fn forget(store: &Store, node: NodeNumber, kind: LeafKind) -> Result<(), StoreError> {
    let catalog = store.catalog().write()?;
    catalog.delete_sums(node, kind, ChunkNumber::FIRST)?;
    catalog.commit()
}

impl Claim {
    /// Lays a delta over the contents so far; false if it is over contents of another length,
    /// because the sender was given a wrong one.
    fn add(&mut self, delta: StagedDelta) -> Result<bool, StoreError> {
        // Refused by `apply` anyway: a delta before its node, or one too many.
        let Some(content) = &mut self.content else {
            let file = FileId(delta.file);
            let message = format!("a delta of file {file} was not announced by its node record");
            return Err(StoreError::InvalidBatch(message));
        };
        if delta.copies && delta.base_len != content.pending.len {
            self.content = None;
            return Ok(false);
        }
        let row = content.pending.next_layer(&delta)?;
        if row.resets {
            content.stored.clear();
            content.staged.clear();
        }
        content.staged.push(Run::staged(row, delta.pages));
        Ok(true)
    }
}
