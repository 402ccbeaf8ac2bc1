//! Applies a batch: the one place that decides what a batch may do to a folder.
//!
//! All of it happens in one catalog transaction, record by record in their order, so memory holds
//! node numbers but no records. Rules about the batch as a whole are checked at the end, before the
//! commit: every mentioned node exists, parents are directories, directories form a tree, each file
//! got the deltas that were announced and has the size that its attributes give. Any error drops
//! the transaction: nothing happened.
//!
//! Order: (1) literals of the last piece are synced; (2) proofs are compared (`prove`), outside of
//! the transaction, as that reads whole contents; (3) the transaction refers to them, applies,
//! removes the staged parts, and commits; (4) checksums that were made for proofs are kept
//! (`sums`). A crash before the commit leaves the staged parts as they were, one after it at most
//! loses checksums.
//!
//! Contents that follow those of another file ([`ContentBase::Of`]) *share* its layers: its few
//! rows are copied under new numbers and point at the same pages (`LayerRow::shared`). So a copy of
//! a file costs a few rows, whatever its length. From then on it is a file like any other: its
//! deltas lie over those rows, and merging gives it rows of its own.
//!
//! Conflicts: a name or node whose newest change is later than the batch's `base_seq` was changed
//! by another device first ([`basis`]), or would be lost by a change that the batch makes elsewhere
//! ([`loss`]). Then nothing is applied and the first [`CONFLICTS_MAX`] places are reported.

mod basis;
mod directory_time;
mod loss;
mod staged;
mod tree;

use crate::catalog::{AttributeRow, BatchKey, BatchRow, CatalogWrite, EntryRow, FolderRow, LayerRow, OPEN};
use crate::codec::{StagedDelta, StagedRecord, usize_u64};
use crate::compact::compact;
use crate::defragment::{inherit_credit, note_layer, note_shared};
use crate::error::StoreError;
use crate::model::Conflict;
use crate::numbers::{LayerNumber, LayerRowNumber, NodeNumber};
use crate::resolve::layer_rows;
use crate::sheets::records_of;
use crate::stage::PartWriter;
use crate::store::{Store, folder_row};
use byteback_model::{
    BatchApplied, ContentBase, DeviceId, FileId, Manifest, NameChange, NodeKind, NodeRecord, Seq, Totals,
};
use std::collections::{HashMap, HashSet};

use loss::{Loss, Touched};
use staged::{MISSING_MAX, check_parts};

pub(crate) use basis::{Basis, conflict, file_with_contents};
pub(crate) use staged::staged_part_ids;

/// Most places that one conflict reports.
const CONFLICTS_MAX: usize = 8;

/// State of a batch: applied, or its staged parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchStatus {
    /// The result, once the batch is applied.
    pub applied: Option<BatchApplied>,
    /// Part numbers of its staged parts.
    pub staged_parts: Vec<u32>,
    /// The SHA-256 of each staged part, in the same order.
    pub digests: Vec<Option<[u8; 32]>>,
}

fn applied(row: &BatchRow, repeated: bool) -> BatchApplied {
    BatchApplied {
        seq: row.seq,
        snapshot_id: row.snapshot_id,
        repeated,
        stored_bytes: row.stored_bytes,
    }
}

impl Store {
    /// The state of the batch (device, counter) of a folder.
    ///
    /// # Errors
    /// There is no such folder; the catalog fails.
    pub fn batch_status(&self, folder: &str, device: DeviceId, counter: u64) -> Result<BatchStatus, StoreError> {
        let catalog = self.catalog().read()?;
        let folder = folder_row(&*catalog, folder)?;
        let key = BatchKey {
            folder: folder.id,
            device,
            counter,
        };
        let parts = catalog.staged_parts(key)?;
        Ok(BatchStatus {
            applied: catalog.batch_by_key(key)?.map(|row| applied(&row, true)),
            digests: parts.iter().map(|part| part.digest).collect(),
            staged_parts: parts.into_iter().map(|part| part.part).collect(),
        })
    }

    /// Applies a batch: its staged parts 1 to `staged_parts`, then `last`. If the batch was applied
    /// before, returns the first result and ignores everything else.
    ///
    /// # Errors
    /// A conflict; missing parts; the batch contradicts itself or the folder; a limit; the disk is
    /// full; the machine fails. Nothing was applied then.
    pub fn commit(&self, mut last: PartWriter, staged_parts: u32) -> Result<BatchApplied, StoreError> {
        last.segments.sync()?;
        let proven = match last.proofs {
            0 => None,
            _ => self.prove(&last, staged_parts)?,
        };
        let catalog = self.catalog().write()?;
        if let Some(row) = catalog.batch_by_key(last.key)? {
            return Ok(applied(&row, true));
        }
        // Checked inside the transaction: revoking a device promises that nothing more comes of it.
        if catalog
            .device(last.key.device)?
            .is_some_and(|device| device.revoked_ns.is_some())
        {
            return Err(StoreError::DeviceRevoked(last.key.device));
        }
        let parts = staged_part_ids(&*catalog, last.key, staged_parts)?;
        if let Some(wanted) = last.parts_digest {
            check_parts(&*catalog, last.key, staged_parts, wanted)?;
        }
        if let Some(proven) = &proven
            && proven.parts != parts
        {
            // Another request replaced a staged part meanwhile; the proofs may not hold for the new
            // one.
            let missing = (1..).zip(proven.parts.iter().zip(&parts));
            let missing = missing.filter(|(_, (before, now))| before != now);
            return Err(StoreError::PartsMissing {
                missing: missing.map(|(part, _)| part).take(MISSING_MAX).collect(),
            });
        }
        let folder = folder_row(&*catalog, &last.folder)?;
        for segment in &last.own_segments {
            catalog.add_segment(*segment)?;
        }
        let mut apply = Apply::new(&*catalog, folder, self.parts.limits.records_max);
        for id in parts {
            let mut ordinal = 0;
            while let Some(sheet) = catalog.staged_sheet(id, ordinal)? {
                records_of(&sheet).try_for_each(|record| apply.record(record?))?;
                ordinal += 1;
            }
        }
        for sheet in last.records.as_slice() {
            records_of(sheet).try_for_each(|record| apply.record(record?))?;
        }
        let folder = apply.folder.id;
        let row = apply.finish()?;
        catalog.delete_staged_parts(last.key)?;
        last.is_kept = true;
        catalog.commit()?;
        for rows in proven.into_iter().flat_map(|proven| proven.kept) {
            // Sums that could not be kept are computed again; the batch is applied.
            let _ = rows.write_committed(self, folder);
        }
        Ok(applied(&row, false))
    }
}

struct Apply<'a> {
    catalog: &'a dyn CatalogWrite,
    folder: FolderRow,
    seq: Seq,
    records_max: u64,
    records: u64,
    manifest: Option<Manifest>,
    basis: Basis,
    ended: Option<Totals>,
    totals: Totals,
    numbers: HashMap<FileId, NodeNumber>,
    /// Kinds of the nodes that the batch describes.
    kinds: HashMap<NodeNumber, NodeKind>,
    /// Nodes that were mentioned but are neither in the folder nor described yet.
    undescribed: HashMap<NodeNumber, FileId>,
    /// Files that still wait for deltas.
    pending: HashMap<NodeNumber, Pending>,
    /// Files that took over contents, each with the one that had them.
    followers: Vec<(NodeNumber, NodeNumber)>,
    parents: HashSet<NodeNumber>,
    linked: HashSet<NodeNumber>,
    touched: Touched,
    conflicts: Vec<Conflict>,
    stored_bytes: u64,
}

/// The contents that the first delta of a file applies to.
#[derive(Clone, Copy, Debug, Default)]
struct Start {
    /// The file's newest layer. It holds these contents unless `is_nothing`.
    layer: LayerNumber,
    /// Length of the contents in bytes.
    len: u64,
    /// Whether the contents are empty, whatever lies below.
    is_nothing: bool,
}

/// A file that waits for announced deltas.
pub(crate) struct Pending {
    pub(crate) file: FileId,
    pub(crate) deltas_left: u32,
    /// The file's newest layer so far.
    pub(crate) layer: LayerNumber,
    /// Length of the contents so far, in bytes.
    pub(crate) len: u64,
    /// Whether the next delta applies to nothing, not to the layer before.
    pub(crate) resets: bool,
    /// Length that the attributes announce, in bytes.
    pub(crate) size: u64,
}

impl<'a> Apply<'a> {
    fn new(catalog: &'a dyn CatalogWrite, folder: FolderRow, records_max: u64) -> Self {
        Self {
            catalog,
            seq: folder.seq.saturating_add(1),
            folder,
            records_max,
            records: 0,
            manifest: None,
            basis: Basis::default(),
            ended: None,
            totals: Totals::default(),
            numbers: HashMap::new(),
            kinds: HashMap::new(),
            undescribed: HashMap::new(),
            pending: HashMap::new(),
            followers: Vec::new(),
            parents: HashSet::new(),
            linked: HashSet::new(),
            touched: Touched::default(),
            conflicts: Vec::new(),
            stored_bytes: 0,
        }
    }

    fn record(&mut self, record: StagedRecord) -> Result<(), StoreError> {
        self.count_records(1)?;
        if self.ended.is_some() {
            return invalid("a record follows the end of the batch");
        }
        match record {
            StagedRecord::Manifest(manifest) => self.manifest(manifest),
            _ if self.manifest.is_none() => invalid("the first record of a batch must be its manifest"),
            StagedRecord::Node(node) => {
                self.totals.nodes += 1;
                self.node(&node)
            }
            StagedRecord::Entry(entry) => {
                self.totals.entries += 1;
                self.entry(entry)
            }
            StagedRecord::Delta(delta) => {
                self.totals.deltas += 1;
                self.delta(&delta)
            }
            // Proofs were compared before the transaction.
            StagedRecord::Proof(..) => {
                self.totals.proofs += 1;
                Ok(())
            }
            StagedRecord::DirectoryTime(directory, mtime_ns) => {
                self.totals.directory_times += 1;
                self.directory_time(directory, mtime_ns)
            }
            StagedRecord::End(totals) => {
                self.ended = Some(totals);
                Ok(())
            }
        }
    }

    fn count_records(&mut self, number: u64) -> Result<(), StoreError> {
        self.records = self.records.saturating_add(number);
        match self.records <= self.records_max {
            true => Ok(()),
            false => Err(StoreError::TooLarge(format!(
                "a batch has at most {} records",
                self.records_max
            ))),
        }
    }

    fn manifest(&mut self, manifest: Manifest) -> Result<(), StoreError> {
        if self.manifest.is_some() {
            return invalid("a batch has only one manifest");
        }
        self.basis = Basis::of(self.catalog, self.folder.id, &manifest)?;
        match manifest.base_seq {
            Some(base_seq) if base_seq > self.folder.seq => {
                return invalid(&format!(
                    "base_seq {base_seq} is after the folder's newest, {}",
                    self.folder.seq
                ));
            }
            Some(_) => {
                if let Some(root) = self.folder.root
                    && self.catalog.file_id(root)? != manifest.root
                {
                    return invalid("the root is not the folder's; only a first contact may replace it");
                }
            }
            None => {
                if let Some(replaces) = manifest.replaces {
                    self.check_replaced(replaces)?;
                }
                self.catalog.close_all_entries(self.folder.id, self.seq)?;
                self.folder.entries = 0;
            }
        }
        self.manifest = Some(manifest);
        Ok(())
    }

    /// Refuses a batch that replaces a moment other than the folder's newest: it would silently
    /// undo the batches in between.
    fn check_replaced(&self, replaces: Seq) -> Result<(), StoreError> {
        let newest = self.folder.seq;
        if replaces > newest {
            return invalid(&format!(
                "the batch replaces {replaces}, which is after the folder's newest, {newest}"
            ));
        }
        let Some(root) = self.folder.root.filter(|_| replaces < newest) else {
            return Ok(());
        };
        let conflict = Conflict {
            id: self.catalog.file_id(root)?,
            path: Some(Vec::new()),
            seq: newest,
        };
        Err(StoreError::Conflict {
            conflicts: vec![conflict],
        })
    }

    fn base_seq(&self) -> Option<Seq> {
        self.manifest.as_ref().and_then(|manifest| manifest.base_seq)
    }

    fn is_first_contact(&self) -> bool {
        self.base_seq().is_none()
    }

    /// The node number of a file, assigned now if it is new.
    fn number(&mut self, file: FileId) -> Result<NodeNumber, StoreError> {
        if let Some(number) = self.numbers.get(&file) {
            return Ok(*number);
        }
        let number = match self.catalog.node_number(self.folder.id, file)? {
            Some(number) => number,
            None => {
                let number = self.catalog.insert_node(self.folder.id, file)?;
                self.undescribed.insert(number, file);
                number
            }
        };
        self.numbers.insert(file, number);
        Ok(number)
    }

    /// Whether the folder, or the batch so far, has this file.
    fn is_mentioned(&self, file: FileId) -> Result<bool, StoreError> {
        Ok(self.numbers.contains_key(&file) || self.catalog.node_number(self.folder.id, file)?.is_some())
    }

    fn check_conflict(&mut self, node: NodeNumber, changed: Seq) -> Result<(), StoreError> {
        if self.base_seq().is_none_or(|base_seq| changed <= base_seq) || self.conflicts.len() >= CONFLICTS_MAX {
            return Ok(());
        }
        if self.basis.is_own(self.catalog, self.folder.id, changed)? {
            return Ok(());
        }
        let id = self.catalog.file_id(node)?;
        if self.conflicts.iter().any(|conflict| conflict.id == id) {
            return Ok(());
        }
        self.conflicts
            .push(conflict(self.catalog, &self.folder, node, changed)?);
        Ok(())
    }

    fn node(&mut self, change: &NodeRecord) -> Result<(), StoreError> {
        let id = change.id;
        let node = self.number(id)?;
        if self.kinds.insert(node, change.attributes.kind).is_some() {
            return invalid(&format!("node {id} is described twice"));
        }
        // A node that the batch itself mentioned first has no attributes yet.
        let previous = match self.undescribed.remove(&node) {
            Some(_) => None,
            None => self.catalog.attributes(node, self.folder.seq)?,
        };
        let kind = change.attributes.kind;
        let size = change.attributes.size;
        let mut row = AttributeRow {
            seq: self.seq,
            attributes: change.attributes.clone(),
            layer: LayerNumber::NONE,
            content_seq: 0,
        };
        let mut start = Start::default();
        if let Some(previous) = &previous {
            let is_directory = kind == NodeKind::Directory && previous.attributes.kind == kind;
            let changed = match is_directory {
                true => self.changed_by_others(node, previous)?,
                false => Some(previous.seq),
            };
            if let Some(changed) = changed {
                self.check_conflict(node, changed)?;
            }
            if previous.attributes.kind != kind && !self.is_first_contact() {
                return invalid(&format!(
                    "node {id} cannot become another kind of node; a new node needs a new id"
                ));
            }
            row.layer = previous.layer;
            row.content_seq = previous.content_seq;
            start.layer = previous.layer;
            start.len = previous.attributes.size;
        }
        if previous.is_some() && change.content.is_some() {
            self.touched.written.insert(node);
        }
        let base = change.content.map(|content| content.base);
        let deltas = change.content.map_or(0, |content| content.deltas);
        if base == Some(ContentBase::Previous) && deltas == 0 {
            return invalid(&format!("file {id} announces new contents without a delta"));
        }
        match base {
            Some(ContentBase::Of(of)) => {
                let (other, contents) = self.contents_of(of, self.basis.seq)?;
                let newest = self.catalog.attributes(other, self.folder.seq)?;
                self.check_conflict(other, newest.map_or(0, |newest| newest.content_seq))?;
                start = self.shared(other, &contents, node, start.layer)?;
            }
            Some(ContentBase::At { file, seq }) => {
                let (other, contents) = self.contents_of(file, Some(seq))?;
                start = self.shared(other, &contents, node, start.layer)?;
            }
            Some(ContentBase::Empty) => start.is_nothing = true,
            // At first contact the folder's former contents do not count.
            _ => start.is_nothing = self.is_first_contact() && start.layer > LayerNumber::NONE,
        }
        if deltas == 0 && start.is_nothing {
            if size != 0 {
                return invalid(&format!(
                    "file {id} would be empty, but its attributes say {size} bytes"
                ));
            }
            row.layer = start.layer.next();
            row.content_seq = self.seq;
            self.catalog
                .insert_layer(node, &layer_row(row.layer, 0, 0, 0, true), &[], &[])?;
        } else if deltas == 0 {
            if size != start.len {
                return invalid(&format!(
                    "file {id} has {} bytes, but its attributes say {size}, and no contents were sent",
                    start.len
                ));
            }
            if row.layer != start.layer {
                (row.layer, row.content_seq) = (start.layer, self.seq);
            }
        }
        self.catalog.insert_attributes(self.folder.id, node, &row)?;
        if deltas > 0 {
            let pending = Pending {
                file: id,
                deltas_left: deltas,
                layer: start.layer,
                len: if start.is_nothing { 0 } else { start.len },
                resets: start.is_nothing,
                size,
            };
            self.pending.insert(node, pending);
        }
        Ok(())
    }

    fn contents_of(&self, file: FileId, at: Option<Seq>) -> Result<(NodeNumber, AttributeRow), StoreError> {
        file_with_contents(
            self.catalog,
            self.folder.id,
            file,
            at.filter(|at| *at <= self.folder.seq),
        )
    }

    /// Gives the node whose newest layer is `layer` the `contents` that `other` has or had.
    fn shared(
        &mut self,
        other: NodeNumber,
        contents: &AttributeRow,
        node: NodeNumber,
        layer: LayerNumber,
    ) -> Result<Start, StoreError> {
        let mut start = Start {
            layer,
            len: contents.attributes.size,
            is_nothing: contents.layer == LayerNumber::NONE,
        };
        if start.is_nothing || (other == node && contents.layer == layer) {
            // In the second case these are the node's own contents.
            return Ok(start);
        }
        let rows = layer_rows(self.catalog, other, contents.layer, LayerNumber::NONE)?;
        if rows.last().is_none_or(|lowest| !lowest.resets) {
            return Err(StoreError::CatalogDamaged(format!(
                "the layers of node {other} have no base"
            )));
        }
        // Each row is as much work as a record.
        self.count_records(usize_u64(rows.len()))?;
        for shared in rows.iter().rev() {
            start.layer = start.layer.next();
            let row = LayerRow {
                id: LayerRowNumber::UNASSIGNED,
                first: start.layer,
                last: start.layer,
                shared: Some(shared.pages()),
                ..*shared
            };
            self.catalog.insert_layer(node, &row, &[], &[])?;
        }
        note_shared(self.catalog, node, other, start.len)?;
        self.followers.push((node, other));
        Ok(start)
    }

    fn delta(&mut self, delta: &StagedDelta) -> Result<(), StoreError> {
        let file = FileId(delta.file);
        let node = self.number(file)?;
        let Some(pending) = self.pending.get_mut(&node) else {
            return invalid(&format!("a delta of file {file} was not announced by its node record"));
        };
        let len_before = pending.len;
        let row = pending.next_layer(delta)?;
        self.stored_bytes = self.stored_bytes.saturating_add(delta.stored_bytes);
        self.catalog.insert_layer(node, &row, &delta.pages, &delta.segments)?;
        note_layer(self.catalog, node, len_before, &row, delta.stored_bytes)?;
        // Over a reset there is nothing to merge with.
        if !row.resets {
            compact(self.catalog, node, row.last)?;
        }
        if pending.deltas_left == 0 {
            if pending.len != pending.size {
                return invalid(&format!(
                    "the deltas of file {file} result in {} bytes, but its attributes say {}",
                    pending.len, pending.size
                ));
            }
            self.catalog.set_content(node, self.seq, row.last)?;
            self.pending.remove(&node);
        }
        Ok(())
    }

    fn entry(&mut self, change: NameChange<FileId>) -> Result<(), StoreError> {
        // A device that watches its tree also sends removals in directories that came and went
        // between two batches. The folder never had them, so there is nothing to remove.
        if change.child.is_none() && !self.is_mentioned(change.parent)? {
            return Ok(());
        }
        let parent = self.number(change.parent)?;
        self.parents.insert(parent);
        let newest = self.catalog.newest_entry_at(parent, &change.name, OPEN)?;
        if let Some(newest) = &newest {
            let closed_now = newest.to_seq == self.seq && !self.is_first_contact();
            if newest.from_seq == self.seq || closed_now {
                let name = String::from_utf8_lossy(&change.name).into_owned();
                return invalid(&format!(
                    "the entry {name:?} of directory {} occurs twice",
                    change.parent
                ));
            }
            let changed = if newest.to_seq == OPEN {
                newest.from_seq
            } else {
                newest.to_seq
            };
            self.check_conflict(newest.child, changed)?;
        }
        let current = newest.filter(|row| row.to_seq == OPEN);
        let child = change.child.map(|child| self.number(child)).transpose()?;
        if let Some(child) = child {
            self.linked.insert(child);
        }
        if current.as_ref().map(|row| row.child) == child {
            // Also the removal of an absent name: the result is what the sender wants.
            return Ok(());
        }
        if let Some(current) = &current {
            self.touched.unlinked.insert(current.child);
            self.catalog.close_entry(parent, &change.name, self.seq)?;
            self.folder.entries = self.folder.entries.saturating_sub(1);
        }
        if let Some(child) = child {
            self.touched.filled.insert(parent);
            let row = EntryRow {
                parent,
                name: change.name.into_bytes(),
                child,
                from_seq: self.seq,
                to_seq: OPEN,
            };
            self.catalog.insert_entry(self.folder.id, &row)?;
            self.folder.entries = self.folder.entries.saturating_add(1);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<BatchRow, StoreError> {
        let Some(manifest) = self.manifest.take() else {
            return invalid("the batch is empty");
        };
        if !self.conflicts.is_empty() {
            return Err(StoreError::Conflict {
                conflicts: self.conflicts,
            });
        }
        match self.ended {
            None => return invalid("the batch has no end: its last piece is missing or cut short"),
            Some(totals) if totals != self.totals => {
                let message = format!("the batch ends with the totals {totals:?}, but has {:?}", self.totals);
                return Err(StoreError::InvalidBatch(message));
            }
            Some(_) => {}
        }
        if let Some(pending) = self.pending.values().next() {
            return invalid(&format!(
                "{} deltas of file {} are missing",
                pending.deltas_left, pending.file
            ));
        }
        let root = self.number(manifest.root)?;
        if let Some(file) = self.undescribed.values().next() {
            return invalid(&format!(
                "node {file} is referenced, but neither described nor in the folder"
            ));
        }
        if self.kind_of(root)? != NodeKind::Directory {
            return invalid("the root is not a directory");
        }
        if !self.catalog.parents(root, self.seq, 1)?.is_empty() {
            return invalid("the root cannot be an entry of a directory");
        }
        for parent in &self.parents {
            if self.kind_of(*parent)? != NodeKind::Directory {
                return invalid(&format!(
                    "node {} is not a directory and cannot have entries",
                    self.catalog.file_id(*parent)?
                ));
            }
        }
        self.check_tree(manifest.base_seq)?;
        self.check_loss(root, manifest.base_seq)?;
        for (node, other) in &self.followers {
            if self.catalog.parents(*other, self.seq, 1)?.is_empty() {
                inherit_credit(self.catalog, *node, *other)?;
            }
        }
        let mut row = BatchRow {
            seq: self.seq,
            device: manifest.device,
            counter: manifest.counter,
            base_seq: manifest.base_seq,
            root,
            created_ns: manifest.created_ns,
            host: manifest.host.into_bytes(),
            path: manifest.path.into_bytes(),
            snapshot_id: None,
            stored_bytes: self.stored_bytes,
        };
        if let Some(label) = &manifest.snapshot {
            row.snapshot_id = Some(self.catalog.insert_snapshot(self.folder.id, self.seq, label)?);
            self.folder.snapshots = self.folder.snapshots.saturating_add(1);
        }
        self.catalog.insert_batch(self.folder.id, &row)?;
        self.folder.seq = self.seq;
        self.folder.root = Some(root);
        self.folder.stored_bytes = self.folder.stored_bytes.saturating_add(self.stored_bytes);
        self.catalog.update_folder(&self.folder)?;
        Ok(row)
    }

    fn kind_of(&self, node: NodeNumber) -> Result<NodeKind, StoreError> {
        if let Some(kind) = self.kinds.get(&node) {
            return Ok(*kind);
        }
        let row = self.catalog.attributes(node, self.seq)?;
        let row = row.ok_or_else(|| StoreError::CatalogDamaged(format!("node {node} has no attributes")))?;
        Ok(row.attributes.kind)
    }

    fn check_loss(&self, root: NodeNumber, base_seq: Option<Seq>) -> Result<(), StoreError> {
        let Some(base_seq) = base_seq else { return Ok(()) };
        let mut loss = Loss {
            catalog: self.catalog,
            folder: self.folder.id,
            root,
            seq: self.seq,
            base_seq,
            basis: self.basis,
            placed: HashMap::new(),
        };
        let mut conflicts: Vec<Conflict> = Vec::new();
        loss.find(&self.touched, &mut |node, changed| {
            let found = conflict(self.catalog, &self.folder, node, changed)?;
            if conflicts.iter().all(|known| known.id != found.id) {
                conflicts.push(found);
            }
            Ok(conflicts.len() < CONFLICTS_MAX)
        })?;
        if conflicts.is_empty() {
            return Ok(());
        }
        Err(StoreError::Conflict { conflicts })
    }
}

impl Pending {
    /// The layer that a delta adds to the contents so far.
    pub(crate) fn next_layer(&mut self, delta: &StagedDelta) -> Result<LayerRow, StoreError> {
        // The sender need not know how long the file was: the base is first cut or zero-filled to
        // the length that the delta gives. Copies name bytes of the base, so a sender of copies has
        // to know its length.
        if delta.base_len != self.len && delta.copies {
            return invalid(&format!(
                "a delta with copies of file {} starts from {} bytes, but the file has {} at that point",
                self.file, delta.base_len, self.len
            ));
        }
        let base_len = delta.base_len.min(self.len);
        self.layer = self.layer.next();
        self.len = delta.new_len;
        self.deltas_left = self.deltas_left.saturating_sub(1);
        let covers_all = !delta.copies && delta.covered_to >= base_len.min(delta.new_len);
        let resets = self.resets || covers_all;
        self.resets = false;
        Ok(layer_row(self.layer, base_len, delta.new_len, delta.extents, resets))
    }
}

fn layer_row(layer: LayerNumber, base_len: u64, new_len: u64, extents: u64, resets: bool) -> LayerRow {
    // A layer over nothing needs nothing from below.
    let resets = resets || base_len == 0;
    LayerRow {
        id: LayerRowNumber::UNASSIGNED,
        first: layer,
        last: layer,
        base_len,
        new_len,
        extents,
        resets,
        barrier: false,
        shared: None,
    }
}

fn invalid<T>(what: &str) -> Result<T, StoreError> {
    Err(StoreError::InvalidBatch(what.to_owned()))
}
