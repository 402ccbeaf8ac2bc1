//! Changes of the twin, each with everything that it must respect.

use super::{EntryKey, Folder, Part, Tables, Transaction, refuse, require};
use byteback_delta::leaves::LeafKind;
use byteback_model::{FileId, Seq, Snapshot, SnapshotLabel};
use byteback_store::StoreError;
use byteback_store::catalog::{
    AttributeRow, BatchKey, BatchRow, CatalogWrite, EntryRow, FolderRow, FragmentationRow, LayerRow, OPEN,
    StagedPartRow,
};
use byteback_store::numbers::{
    ChunkNumber, FolderNumber, LayerNumber, LayerRowNumber, NodeNumber, SegmentNumber, StagedPartRowNumber,
};
use std::collections::BTreeSet;

/// Refuses numbers that a signed number of 64 bits cannot hold.
fn require_small(numbers: &[u64]) -> Result<(), StoreError> {
    let is_small = numbers.iter().all(|number| i64::try_from(*number).is_ok());
    require(is_small, "a number is 2^63 or more")
}

impl Tables {
    fn folder_seq(&self, folder: FolderNumber) -> Result<Seq, StoreError> {
        match self.folders.get(&folder) {
            Some(folder) => Ok(folder.row.seq),
            None => refuse("the folder is missing"),
        }
    }

    /// Refuses a row that would change what the folder's newest sequence number or an older one
    /// shows.
    fn require_future(&self, folder: FolderNumber, seq: Seq) -> Result<(), StoreError> {
        require_small(&[seq])?;
        require(seq > self.folder_seq(folder)?, "the past does not change")?;
        require(seq != OPEN, "no batch has the number of open ends")
    }

    fn require_node(&self, folder: FolderNumber, node: NodeNumber) -> Result<(), StoreError> {
        let is_here = self.nodes.get(&node).is_some_and(|(of, _)| *of == folder);
        require(is_here, "the node is missing or in another folder")
    }

    /// The newest layer of a node.
    fn newest_layer(&self, node: NodeNumber) -> LayerNumber {
        let of_node = self.layers.values().filter(|(of, _)| *of == node);
        of_node.map(|(_, row)| row.last).max().unwrap_or(LayerNumber::NONE)
    }

    fn require_segments(&self, segments: &[SegmentNumber]) -> Result<(), StoreError> {
        let distinct: BTreeSet<_> = segments.iter().collect();
        require(distinct.len() == segments.len(), "a segment is named twice")?;
        let are_known = segments.iter().all(|segment| self.segments.contains(segment));
        require(are_known, "a segment is referred to before it is added")
    }

    fn close(&mut self, key: EntryKey, to_seq: Seq) -> Result<(), StoreError> {
        require(key.2 < to_seq, "an entry ends after it begins")?;
        match self.entries.get_mut(&key) {
            Some((_, _, end)) => *end = to_seq,
            None => return refuse("the entry is missing"),
        }
        Ok(())
    }

    fn delete_chunks(&mut self, node: NodeNumber, kind: u8, from: ChunkNumber) {
        self.sum_chunks
            .retain(|(of, code, chunk), _| *of != node || *code != kind || *chunk < from);
        if from == ChunkNumber::FIRST {
            self.sums.remove(&(node, kind));
        }
    }

    fn require_pages(&self, pages: &[(u64, Vec<u8>)]) -> Result<(), StoreError> {
        let starts: Vec<u64> = pages.iter().map(|(start, _)| *start).collect();
        require_small(&starts)?;
        require(starts.is_sorted_by(|a, b| a < b), "pages are in order")
    }

    fn check_layer(
        &self,
        node: NodeNumber,
        row: &LayerRow,
        pages: &[(u64, Vec<u8>)],
        segments: &[SegmentNumber],
    ) -> Result<(), StoreError> {
        require(self.nodes.contains_key(&node), "the node is missing")?;
        require_small(&[row.first.0, row.last.0, row.base_len, row.new_len, row.extents])?;
        let newest = self.newest_layer(node);
        require(
            LayerNumber::FIRST <= row.first && row.first <= row.last,
            "a row covers layers from 1 in order",
        )?;
        match row.first == row.last {
            true => require(row.last == newest.next(), "a single layer is the next one")?,
            false => require(row.last <= newest, "a merged row covers existing layers")?,
        }
        let mut of_node = self.layers.values().filter(|(of, _)| *of == node);
        let is_new = of_node.all(|(_, known)| (known.first, known.last) != (row.first, row.last));
        require(is_new, "two rows cover the same layers")?;
        self.require_pages(pages)?;
        self.require_segments(segments)?;
        if let Some(shared) = row.shared {
            require(
                pages.is_empty() && segments.is_empty(),
                "a row that shares pages has none of its own",
            )?;
            let owns_pages = self.layers.get(&shared).is_some_and(|(_, row)| row.shared.is_none());
            require(owns_pages, "the shared row is missing or shares as well")?;
        }
        Ok(())
    }
}

impl CatalogWrite for Transaction<'_> {
    fn commit(self: Box<Self>) -> Result<(), StoreError> {
        self.finish()
    }

    fn insert_folder(&self, name: &str, created_ns: i64) -> Result<FolderRow, StoreError> {
        self.change(|rows| {
            let is_new = rows.folders.values().all(|folder| folder.row.name != name);
            require(is_new, "two folders have one name")?;
            let id = FolderNumber(rows.folders.keys().next_back().map_or(1, |last| last.0 + 1));
            let row = FolderRow {
                id,
                name: name.to_owned(),
                seq: 0,
                root: None,
                entries: 0,
                snapshots: 0,
                stored_bytes: 0,
                created_ns,
            };
            let folder = Folder {
                row: row.clone(),
                last_snapshot: 0,
            };
            rows.folders.insert(id, folder);
            Ok(row)
        })
    }

    fn update_folder(&self, folder: &FolderRow) -> Result<(), StoreError> {
        self.change(|rows| {
            if let Some(root) = folder.root {
                rows.require_node(folder.id, root)?;
            }
            require_small(&[folder.seq, folder.entries, folder.snapshots, folder.stored_bytes])?;
            require(
                folder.seq >= rows.folder_seq(folder.id)?,
                "sequence numbers do not go back",
            )?;
            match rows.folders.get_mut(&folder.id) {
                Some(known) if (&known.row.name, known.row.created_ns) == (&folder.name, folder.created_ns) => {
                    known.row = folder.clone();
                    Ok(())
                }
                _ => refuse("a folder's name and time of creation stay"),
            }
        })
    }

    fn insert_node(&self, folder: FolderNumber, file: FileId) -> Result<NodeNumber, StoreError> {
        self.change(|rows| {
            rows.folder_seq(folder)?;
            require(
                !rows.node_numbers.contains_key(&(folder, file)),
                "two nodes have one identity",
            )?;
            let node = NodeNumber(rows.nodes.keys().next_back().map_or(1, |last| last.0 + 1));
            rows.nodes.insert(node, (folder, file));
            rows.node_numbers.insert((folder, file), node);
            Ok(node)
        })
    }

    fn insert_attributes(&self, folder: FolderNumber, node: NodeNumber, row: &AttributeRow) -> Result<(), StoreError> {
        self.change(|rows| {
            rows.require_node(folder, node)?;
            rows.require_future(folder, row.seq)?;
            require_small(&[row.attributes.size])?;
            require(
                row.layer <= rows.newest_layer(node),
                "attributes show an existing layer",
            )?;
            require(
                (row.layer == LayerNumber::NONE) == (row.content_seq == 0),
                "a layer has a sequence number",
            )?;
            require(
                row.content_seq <= row.seq,
                "contents are not newer than their attributes",
            )?;
            let is_last = rows
                .attributes
                .range((node, row.seq)..=(node, Seq::MAX))
                .next()
                .is_none();
            require(is_last, "attributes are added in order")?;
            rows.attributes.insert((node, row.seq), (folder, row.clone()));
            Ok(())
        })
    }

    fn set_content(&self, node: NodeNumber, seq: Seq, layer: LayerNumber) -> Result<(), StoreError> {
        self.change(|rows| {
            let folder = rows.attributes.get(&(node, seq)).map(|(folder, _)| *folder);
            let Some(folder) = folder else {
                return refuse("the attributes are missing");
            };
            rows.require_future(folder, seq)?;
            let exists = LayerNumber::FIRST <= layer && layer <= rows.newest_layer(node);
            require(exists, "attributes show an existing layer")?;
            if let Some((_, row)) = rows.attributes.get_mut(&(node, seq)) {
                (row.layer, row.content_seq) = (layer, seq);
            }
            Ok(())
        })
    }

    fn insert_entry(&self, folder: FolderNumber, row: &EntryRow) -> Result<(), StoreError> {
        self.change(|rows| {
            rows.require_node(folder, row.parent)?;
            rows.require_node(folder, row.child)?;
            rows.require_future(folder, row.from_seq)?;
            require(row.to_seq == OPEN, "a new entry is open")?;
            require(!row.name.is_empty(), "no name is empty")?;
            let newest = rows.rows_of_name(row.parent, &row.name).pop();
            require(
                newest.is_none_or(|newest| newest.to_seq <= row.from_seq),
                "entries of one name do not overlap",
            )?;
            let key = (row.parent, row.name.clone(), row.from_seq);
            rows.entries.insert(key, (folder, row.child, row.to_seq));
            Ok(())
        })
    }

    fn close_entry(&self, parent: NodeNumber, name: &[u8], to_seq: Seq) -> Result<(), StoreError> {
        self.change(|rows| {
            let newest = rows.rows_of_name(parent, name).pop();
            let Some(open) = newest.filter(|row| row.to_seq == OPEN) else {
                return refuse("the open entry is missing");
            };
            let Some((folder, _)) = rows.nodes.get(&parent).copied() else {
                return refuse("the node is missing");
            };
            rows.require_future(folder, to_seq)?;
            rows.close((parent, open.name, open.from_seq), to_seq)
        })
    }

    fn close_all_entries(&self, folder: FolderNumber, to_seq: Seq) -> Result<u64, StoreError> {
        self.change(|rows| {
            rows.require_future(folder, to_seq)?;
            let open: Vec<EntryRow> = rows
                .all_entries()
                .filter(|(of, row)| *of == folder && row.to_seq == OPEN)
                .map(|(_, row)| row)
                .collect();
            let closed = open.len() as u64;
            for row in open {
                rows.close((row.parent, row.name, row.from_seq), to_seq)?;
            }
            Ok(closed)
        })
    }

    fn insert_batch(&self, folder: FolderNumber, row: &BatchRow) -> Result<(), StoreError> {
        self.change(|rows| {
            rows.require_future(folder, row.seq)?;
            rows.require_node(folder, row.root)?;
            require_small(&[
                row.stored_bytes,
                row.base_seq.unwrap_or(0),
                row.snapshot_id.unwrap_or(0),
            ])?;
            require(rows.devices.contains_key(&row.device), "the device is missing")?;
            let is_last = rows
                .batches
                .range((folder, row.seq)..=(folder, Seq::MAX))
                .next()
                .is_none();
            require(is_last, "batches are added in order")?;
            let mut of_folder = rows.batches.range((folder, 0)..=(folder, Seq::MAX));
            let is_new = of_folder.all(|(_, known)| (known.device, known.counter) != (row.device, row.counter));
            require(is_new, "two batches have one counter")?;
            rows.batches.insert((folder, row.seq), row.clone());
            Ok(())
        })
    }

    fn insert_snapshot(&self, folder: FolderNumber, seq: Seq, label: &SnapshotLabel) -> Result<u64, StoreError> {
        self.change(|rows| {
            require_small(&[seq])?;
            let Some(known) = rows.folders.get_mut(&folder) else {
                return refuse("the folder is missing");
            };
            known.last_snapshot += 1;
            let id = known.last_snapshot;
            let label = label.clone();
            rows.snapshots.insert((folder, id), Snapshot { id, seq, label });
            Ok(id)
        })
    }

    fn delete_snapshot(&self, folder: FolderNumber, id: u64) -> Result<bool, StoreError> {
        self.change(|rows| Ok(rows.snapshots.remove(&(folder, id)).is_some()))
    }

    fn insert_layer(
        &self,
        node: NodeNumber,
        row: &LayerRow,
        pages: &[(u64, Vec<u8>)],
        segments: &[SegmentNumber],
    ) -> Result<LayerRowNumber, StoreError> {
        self.change(|rows| {
            rows.check_layer(node, row, pages, segments)?;
            let id = LayerRowNumber(rows.layers.keys().next_back().map_or(1, |last| last.0 + 1));
            rows.layers.insert(id, (node, LayerRow { id, ..*row }));
            for (start, page) in pages {
                rows.pages.insert((id, *start), page.clone());
            }
            rows.layer_segments
                .extend(segments.iter().map(|segment| (id, *segment)));
            Ok(id)
        })
    }

    fn replace_pages(
        &self,
        layer: LayerRowNumber,
        extents: u64,
        pages: &[(u64, Vec<u8>)],
        segments: &[SegmentNumber],
    ) -> Result<(), StoreError> {
        self.change(|rows| {
            rows.require_pages(pages)?;
            rows.require_segments(segments)?;
            require_small(&[extents])?;
            match rows.layers.get_mut(&layer) {
                Some((_, row)) if row.resets => (row.extents, row.shared) = (extents, None),
                _ => return refuse("the layer is missing or takes something from its base"),
            }
            rows.pages.retain(|(of, _), _| *of != layer);
            rows.layer_segments.retain(|(of, _)| *of != layer);
            for (start, page) in pages {
                rows.pages.insert((layer, *start), page.clone());
            }
            rows.layer_segments
                .extend(segments.iter().map(|segment| (layer, *segment)));
            Ok(())
        })
    }

    fn put_fragmentation(&self, node: NodeNumber, row: &FragmentationRow) -> Result<(), StoreError> {
        self.change(|rows| {
            require(rows.nodes.contains_key(&node), "the node is missing")?;
            require_small(&[row.needed_bytes, row.waste_bytes, row.credit_bytes])?;
            rows.fragmentation.insert(node, *row);
            Ok(())
        })
    }

    fn set_barrier(&self, layer: LayerRowNumber) -> Result<(), StoreError> {
        self.change(|rows| match rows.layers.get_mut(&layer) {
            Some((_, row)) => {
                row.barrier = true;
                Ok(())
            }
            None => refuse("the layer is missing"),
        })
    }

    fn layer_segments(&self, layer: LayerRowNumber) -> Result<Vec<SegmentNumber>, StoreError> {
        let rows = self.rows()?;
        let of_layer = rows.layer_segments.iter().filter(|(of, _)| *of == layer);
        Ok(of_layer.map(|(_, segment)| *segment).collect())
    }

    fn add_segment(&self, segment: SegmentNumber) -> Result<(), StoreError> {
        self.change(|rows| {
            require_small(&[segment.0])?;
            require(segment != SegmentNumber::NONE, "segments have numbers from 1")?;
            rows.segments.insert(segment);
            Ok(())
        })
    }

    fn forget_segment(&self, segment: SegmentNumber) -> Result<bool, StoreError> {
        self.change(|rows| {
            if rows.is_referenced(segment) {
                return Ok(false);
            }
            if rows.segments.last() != Some(&segment) {
                rows.segments.remove(&segment);
            }
            rows.damage.retain(|(of, _)| *of != segment);
            Ok(true)
        })
    }

    fn replace_staged_part(
        &self,
        key: BatchKey,
        part: u32,
        (created_ns, digest): (i64, Option<&[u8; 32]>),
        records: &[Vec<u8>],
        segments: &[SegmentNumber],
    ) -> Result<(), StoreError> {
        self.change(|rows| {
            rows.folder_seq(key.folder)?;
            require(rows.devices.contains_key(&key.device), "the device is missing")?;
            rows.require_segments(segments)?;
            rows.parts.retain(|_, known| known.key != key || known.row.part != part);
            rows.last_part += 1;
            let id = StagedPartRowNumber(rows.last_part);
            let row = StagedPartRow {
                id,
                part,
                created_ns,
                digest: digest.copied(),
            };
            let part = Part {
                key,
                row,
                records: records.to_vec(),
                segments: segments.iter().copied().collect(),
            };
            rows.parts.insert(id, part);
            Ok(())
        })
    }

    fn delete_staged_parts(&self, key: BatchKey) -> Result<(), StoreError> {
        self.change(|rows| {
            rows.parts.retain(|_, part| part.key != key);
            Ok(())
        })
    }

    fn delete_expired_parts(&self, before_ns: i64) -> Result<u64, StoreError> {
        self.change(|rows| {
            let before = rows.parts.len();
            let waiting = rows.parts.values().filter(|part| part.row.created_ns >= before_ns);
            let waiting: Vec<BatchKey> = waiting.map(|part| part.key).collect();
            rows.parts.retain(|_, part| waiting.contains(&part.key));
            Ok((before - rows.parts.len()) as u64)
        })
    }

    fn note_damage(&self, segment: SegmentNumber, offset: u64, noted_max: u32) -> Result<(), StoreError> {
        self.change(|rows| {
            require_small(&[segment.0, offset])?;
            if rows.damage.len() < noted_max as usize {
                rows.damage.insert((segment, offset));
            }
            Ok(())
        })
    }

    fn forget_damage(&self, segment: SegmentNumber, offset: u64) -> Result<(), StoreError> {
        self.change(|rows| {
            rows.damage.remove(&(segment, offset));
            Ok(())
        })
    }

    fn put_sums(
        &self,
        node: NodeNumber,
        kind: LeafKind,
        used_ns: i64,
        added: &[(ChunkNumber, Vec<u8>)],
    ) -> Result<(), StoreError> {
        self.change(|rows| {
            require(rows.nodes.contains_key(&node), "the node is missing")?;
            let used = rows.sums.entry((node, kind.code())).or_insert(used_ns);
            *used = used_ns.max(*used);
            for (chunk, sums) in added {
                require_small(&[chunk.0])?;
                rows.sum_chunks.insert((node, kind.code(), *chunk), sums.clone());
            }
            Ok(())
        })
    }

    fn delete_sums(&self, node: NodeNumber, kind: LeafKind, from_chunk: ChunkNumber) -> Result<(), StoreError> {
        self.change(|rows| {
            rows.delete_chunks(node, kind.code(), from_chunk);
            Ok(())
        })
    }

    fn evict_sums(&self, except: (NodeNumber, LeafKind), rows_max: u32) -> Result<u64, StoreError> {
        self.change(|rows| {
            let except = (except.0, except.1.code());
            let others = rows.sums.iter().filter(|(key, _)| **key != except);
            let Some((node, kind)) = others.min_by_key(|(_, used_ns)| **used_ns).map(|(key, _)| *key) else {
                return Ok(0);
            };
            let chunks = (node, kind, ChunkNumber(0))..=(node, kind, ChunkNumber(u64::MAX));
            let chunks: Vec<_> = rows.sum_chunks.range(chunks).collect();
            let kept = chunks.len().saturating_sub(rows_max as usize);
            let len_bytes: usize = chunks.iter().skip(kept).map(|(_, sums)| sums.len()).sum();
            let last_kept = kept.checked_sub(1).and_then(|last| chunks.get(last));
            let from = last_kept.map_or(ChunkNumber::FIRST, |((_, _, chunk), _)| chunk.next());
            rows.delete_chunks(node, kind, from);
            Ok((len_bytes as u64).max(1))
        })
    }
}
