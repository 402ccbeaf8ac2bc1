//! Answers of the twin about everything but devices.

use super::{Tables, Transaction};
use byteback_delta::leaves::LeafKind;
use byteback_model::{FileId, Seq, Snapshot};
use byteback_store::StoreError;
use byteback_store::catalog::{
    AttributeRow, BatchCondition, BatchKey, BatchRow, CatalogRead, EntryRow, FolderRow, FragmentationRow, LayerRow,
    OPEN, StagedPartRow, SumsRow,
};
use byteback_store::numbers::{
    ChunkNumber, FolderNumber, LayerNumber, LayerRowNumber, NodeNumber, SegmentNumber, StagedPartRowNumber,
};
use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::RangeInclusive;

impl Tables {
    pub(super) fn all_entries(&self) -> impl DoubleEndedIterator<Item = (FolderNumber, EntryRow)> {
        let rows = self.entries.iter();
        rows.map(|((parent, name, from_seq), (folder, child, to_seq))| {
            let row = EntryRow {
                parent: *parent,
                name: name.clone(),
                child: *child,
                from_seq: *from_seq,
                to_seq: *to_seq,
            };
            (*folder, row)
        })
    }

    /// Rows of one name, oldest first.
    pub(super) fn rows_of_name(&self, parent: NodeNumber, name: &[u8]) -> Vec<EntryRow> {
        let range = (parent, name.to_vec(), 0)..=(parent, name.to_vec(), Seq::MAX);
        let rows = self.entries.range(range);
        rows.map(|((parent, name, from_seq), (_, child, to_seq))| EntryRow {
            parent: *parent,
            name: name.clone(),
            child: *child,
            from_seq: *from_seq,
            to_seq: *to_seq,
        })
        .collect()
    }

    pub(super) fn is_referenced(&self, segment: SegmentNumber) -> bool {
        self.layer_segments.iter().any(|(_, known)| *known == segment)
            || self.parts.values().any(|part| part.segments.contains(&segment))
    }

    fn chunks_len(&self, node: NodeNumber, kind: u8) -> u64 {
        let range = (node, kind, ChunkNumber(0))..=(node, kind, ChunkNumber(u64::MAX));
        self.sum_chunks.range(range).map(|(_, sums)| sums.len() as u64).sum()
    }
}

fn first<T>(rows: impl Iterator<Item = T>, limit: u32) -> Vec<T> {
    rows.take(limit as usize).collect()
}

impl CatalogRead for Transaction<'_> {
    fn folders(&self) -> Result<Vec<FolderRow>, StoreError> {
        let rows = self.rows()?;
        let mut folders: Vec<FolderRow> = rows.folders.values().map(|folder| folder.row.clone()).collect();
        folders.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(folders)
    }

    fn folder(&self, name: &str) -> Result<Option<FolderRow>, StoreError> {
        let folders = self.folders()?;
        Ok(folders.into_iter().find(|folder| folder.name == name))
    }

    fn node_number(&self, folder: FolderNumber, file: FileId) -> Result<Option<NodeNumber>, StoreError> {
        Ok(self.rows()?.node_numbers.get(&(folder, file)).copied())
    }

    fn file_id(&self, node: NodeNumber) -> Result<FileId, StoreError> {
        let file = self.rows()?.nodes.get(&node).map(|(_, file)| *file);
        file.ok_or_else(|| StoreError::CatalogDamaged(format!("node {node} is missing")))
    }

    fn attributes(&self, node: NodeNumber, at: Seq) -> Result<Option<AttributeRow>, StoreError> {
        let rows = self.rows()?;
        let newest = rows.attributes.range((node, 0)..=(node, at)).next_back();
        Ok(newest.map(|(_, (_, row))| row.clone()))
    }

    fn newest_entry_at(&self, parent: NodeNumber, name: &[u8], at: Seq) -> Result<Option<EntryRow>, StoreError> {
        let rows = self.rows()?.rows_of_name(parent, name);
        Ok(rows.into_iter().rfind(|row| row.from_seq <= at))
    }

    fn entries(
        &self,
        parent: NodeNumber,
        at: Seq,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<Vec<EntryRow>, StoreError> {
        let rows = self.rows()?;
        let all = rows.all_entries().map(|(_, row)| row);
        let found = all
            .filter(|row| row.parent == parent && after.is_none_or(|after| row.name.as_slice() > after))
            .filter(|row| row.from_seq <= at && at < row.to_seq);
        Ok(first(found, limit))
    }

    fn parents(&self, child: NodeNumber, at: Seq, limit: u32) -> Result<Vec<EntryRow>, StoreError> {
        let rows = self.rows()?;
        let all = rows.all_entries().map(|(_, row)| row);
        Ok(first(
            all.filter(|row| row.child == child && row.from_seq <= at && at < row.to_seq),
            limit,
        ))
    }

    fn newest_name(&self, child: NodeNumber) -> Result<Option<EntryRow>, StoreError> {
        let rows = self.rows()?;
        let all = rows.all_entries().map(|(_, row)| row);
        Ok(all.filter(|row| row.child == child).max_by_key(|row| row.to_seq))
    }

    fn batch_by_key(&self, key: BatchKey) -> Result<Option<BatchRow>, StoreError> {
        let rows = self.rows()?;
        let found = rows
            .batches
            .iter()
            .find(|((folder, _), row)| *folder == key.folder && row.device == key.device && row.counter == key.counter);
        Ok(found.map(|(_, row)| row.clone()))
    }

    fn newest_batch(
        &self,
        folder: FolderNumber,
        seqs: RangeInclusive<Seq>,
        condition: BatchCondition,
    ) -> Result<Option<BatchRow>, StoreError> {
        let rows = self.rows()?;
        if seqs.is_empty() {
            return Ok(None);
        }
        let mut within = rows.batches.range((folder, *seqs.start())..=(folder, *seqs.end()));
        let newest = within.rfind(|(_, row)| match condition {
            BatchCondition::Any => true,
            BatchCondition::OtherRoot(root) => row.root != root,
            BatchCondition::MadeUntil(time_ns) => row.created_ns <= time_ns,
            BatchCondition::OfDevice(device) => row.device == device,
        });
        Ok(newest.map(|(_, row)| row.clone()))
    }

    fn batches_after(&self, folder: FolderNumber, after: Seq, limit: u32) -> Result<Vec<BatchRow>, StoreError> {
        let rows = self.rows()?;
        let newer = rows
            .batches
            .range((Excluded((folder, after)), Unbounded))
            .take_while(|((of, _), _)| *of == folder);
        Ok(first(newer.map(|(_, row)| row.clone()), limit))
    }

    fn snapshots(&self, folder: FolderNumber, after: u64, limit: u32) -> Result<Vec<Snapshot>, StoreError> {
        let rows = self.rows()?;
        let newer = rows
            .snapshots
            .range((Excluded((folder, after)), Unbounded))
            .take_while(|((of, _), _)| *of == folder);
        Ok(first(newer.map(|(_, row)| row.clone()), limit))
    }

    fn longest_layer(
        &self,
        node: NodeNumber,
        last: LayerNumber,
        first_min: LayerNumber,
    ) -> Result<Option<LayerRow>, StoreError> {
        let rows = self.rows()?;
        let all = rows.layers.values().filter(|(of, _)| *of == node).map(|(_, row)| *row);
        Ok(all
            .filter(|row| row.last == last && row.first >= first_min)
            .min_by_key(|row| row.first))
    }

    fn page(&self, layer: LayerRowNumber, offset: u64) -> Result<(Option<Vec<u8>>, Option<u64>), StoreError> {
        let rows = self.rows()?;
        let before = rows.pages.range((layer, 0)..=(layer, offset)).next_back();
        let next = rows
            .pages
            .range((Excluded((layer, offset)), Unbounded))
            .next()
            .filter(|((of, _), _)| *of == layer);
        Ok((before.map(|(_, page)| page.clone()), next.map(|((_, start), _)| *start)))
    }

    fn changed_names(
        &self,
        folder: FolderNumber,
        from: Seq,
        to: Seq,
        after: Option<(NodeNumber, &[u8])>,
        limit: u32,
    ) -> Result<Vec<(NodeNumber, Vec<u8>)>, StoreError> {
        let rows = self.rows()?;
        let is_within = |seq: Seq| from < seq && seq <= to && seq != OPEN;
        let changed = rows
            .all_entries()
            .filter(|(of, row)| *of == folder && (is_within(row.from_seq) || is_within(row.to_seq)))
            .filter(|(_, row)| after.is_none_or(|after| (row.parent, row.name.as_slice()) > after));
        let names: BTreeSet<_> = changed.map(|(_, row)| (row.parent, row.name)).collect();
        Ok(first(names.into_iter(), limit))
    }

    fn changed_nodes(
        &self,
        folder: FolderNumber,
        from: Seq,
        to: Seq,
        after: NodeNumber,
        limit: u32,
    ) -> Result<Vec<NodeNumber>, StoreError> {
        let rows = self.rows()?;
        let changed = rows
            .attributes
            .iter()
            .filter(|((node, seq), (of, _))| *of == folder && from < *seq && *seq <= to && *node > after);
        let nodes: BTreeSet<_> = changed.map(|((node, _), _)| *node).collect();
        Ok(first(nodes.into_iter(), limit))
    }

    fn staged_parts(&self, key: BatchKey) -> Result<Vec<StagedPartRow>, StoreError> {
        let rows = self.rows()?;
        let mut parts: Vec<_> = rows
            .parts
            .values()
            .filter(|part| part.key == key)
            .map(|part| part.row)
            .collect();
        parts.sort_by_key(|row| row.part);
        Ok(parts)
    }

    fn staged_sheet(&self, part: StagedPartRowNumber, ordinal: u32) -> Result<Option<Vec<u8>>, StoreError> {
        let rows = self.rows()?;
        Ok(rows
            .parts
            .get(&part)
            .and_then(|part| part.records.get(ordinal as usize).cloned()))
    }

    fn segment_id_max(&self) -> Result<SegmentNumber, StoreError> {
        let rows = self.rows()?;
        Ok(rows.segments.last().copied().unwrap_or(SegmentNumber::NONE))
    }

    fn sum_chunk(&self, node: NodeNumber, kind: LeafKind, chunk: ChunkNumber) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.rows()?.sum_chunks.get(&(node, kind.code(), chunk)).cloned())
    }

    fn sums(&self, node: NodeNumber) -> Result<Vec<SumsRow>, StoreError> {
        let rows = self.rows()?;
        let of_node = rows.sums.range((node, 0)..=(node, u8::MAX));
        let known = of_node.filter_map(|((_, code), used_ns)| {
            let chunks = (node, *code, ChunkNumber(0))..=(node, *code, ChunkNumber(u64::MAX));
            Some(SumsRow {
                kind: LeafKind::from_code(*code)?,
                used_ns: *used_ns,
                len_bytes: rows.chunks_len(node, *code),
                last_chunk: rows
                    .sum_chunks
                    .range(chunks)
                    .next_back()
                    .map(|((_, _, chunk), _)| *chunk),
            })
        });
        Ok(known.collect())
    }

    fn sums_len(&self) -> Result<u64, StoreError> {
        Ok(self.rows()?.sum_chunks.values().map(|sums| sums.len() as u64).sum())
    }

    fn noted_damage(&self, limit: u32) -> Result<Vec<(SegmentNumber, u64)>, StoreError> {
        Ok(first(self.rows()?.damage.iter().copied(), limit))
    }

    fn fragmentation(&self, node: NodeNumber) -> Result<Option<FragmentationRow>, StoreError> {
        Ok(self.rows()?.fragmentation.get(&node).copied())
    }

    fn next_fragmented(&self, after: NodeNumber) -> Result<Option<(NodeNumber, String)>, StoreError> {
        let rows = self.rows()?;
        let mut due = rows
            .fragmentation
            .iter()
            .filter(|(node, row)| **node > after && row.is_due);
        let Some((node, _)) = due.next() else { return Ok(None) };
        let folder = rows.nodes.get(node).and_then(|(folder, _)| rows.folders.get(folder));
        Ok(folder.map(|folder| (*node, folder.row.name.clone())))
    }

    fn node_of_length(
        &self,
        folder: FolderNumber,
        len_bytes: u64,
        before: NodeNumber,
    ) -> Result<Option<NodeNumber>, StoreError> {
        let rows = self.rows()?;
        let is_in_folder = |node: &NodeNumber| rows.nodes.get(node).is_some_and(|(of, _)| *of == folder);
        let had_length = rows.attributes.iter().filter(|(_, (_, row))| {
            let len = row.attributes.size;
            len == len_bytes && len >= byteback_store::ALIKE_LEN_MIN
        });
        let nodes = had_length.map(|((node, _), _)| *node);
        Ok(nodes.filter(|node| *node < before && is_in_folder(node)).max())
    }

    fn nodes_of_segment(
        &self,
        folder: FolderNumber,
        segment: SegmentNumber,
        limit: u32,
    ) -> Result<Vec<NodeNumber>, StoreError> {
        let rows = self.rows()?;
        let layers = rows
            .layers
            .iter()
            .filter(|(_, (_, row))| rows.layer_segments.contains(&(row.pages(), segment)));
        let nodes: BTreeSet<_> = layers
            .map(|(_, (node, _))| *node)
            .filter(|node| rows.nodes.get(node).is_some_and(|(of, _)| *of == folder))
            .collect();
        Ok(first(nodes.into_iter(), limit))
    }
}
