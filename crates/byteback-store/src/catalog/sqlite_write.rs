//! The writing half of the SQLite catalog: one statement per method, or a few that belong together.

use super::sqlite::Transaction;
use super::sqlite_numbers::{sql, unsigned};
use super::{
    AttributeRow, BatchKey, BatchRow, CatalogWrite, EntryRow, FolderRow, FragmentationRow, LayerRow, OPEN, schema,
};
use crate::codec::{encode_rare_attributes, encode_tags, len_u64, number_of_kind};
use crate::error::StoreError;
use crate::numbers::{
    ChunkNumber, FolderNumber, LayerNumber, LayerRowNumber, NodeNumber, SegmentNumber, StagedPartRowNumber,
};
use byteback_delta::leaves::LeafKind;
use byteback_model::{FileId, Seq, SnapshotLabel};
use rusqlite::{Params, params};
use std::sync::atomic::Ordering;

impl Transaction<'_> {
    /// Runs a statement; returns the number of rows it changed.
    pub(super) fn run(&self, what: &'static str, statement: &str, params: impl Params) -> Result<u64, StoreError> {
        let failed = |e| StoreError::catalog(what, e);
        let changed = self
            .connection()?
            .prepare_cached(statement)
            .map_err(failed)?
            .execute(params)
            .map_err(failed)?;
        let changed = u64::try_from(changed).unwrap_or(u64::MAX);
        self.catalog.rows_written.fetch_add(changed, Ordering::Relaxed);
        Ok(changed)
    }

    /// Inserts a row; returns its number.
    pub(super) fn insert(&self, what: &'static str, statement: &str, params: impl Params) -> Result<i64, StoreError> {
        self.run(what, statement, params)?;
        Ok(self.connection()?.last_insert_rowid())
    }

    /// Runs a statement that must change exactly one row.
    pub(super) fn run_one(&self, what: &'static str, statement: &str, params: impl Params) -> Result<(), StoreError> {
        match self.run(what, statement, params)? {
            1 => Ok(()),
            _ => Err(StoreError::CatalogDamaged(format!("cannot {what}: the row is missing"))),
        }
    }

    fn count_page(&self, page: &[u8]) {
        let written = &self.catalog.page_bytes_written;
        written.fetch_add(len_u64(page), Ordering::Relaxed);
    }

    /// Adds the pages and segments of a layer that are not in its own row.
    fn insert_pages(
        &self,
        layer: LayerRowNumber,
        pages: &[(u64, Vec<u8>)],
        segments: &[SegmentNumber],
    ) -> Result<(), StoreError> {
        for (start, page) in pages {
            let statement = "INSERT INTO layer_page (layer, start, extents) VALUES (?1, ?2, ?3)";
            self.run("add a page", statement, (layer, sql(*start), page.as_slice()))?;
            self.count_page(page);
        }
        for segment in segments {
            let statement = "INSERT INTO layer_segment (layer, segment) VALUES (?1, ?2)";
            self.run("refer to a segment", statement, (layer, segment))?;
        }
        Ok(())
    }

    /// Removes a file's chunks of kept sums from a number on. The kind is a code as it is stored,
    /// perhaps one that this program does not know.
    fn delete_sum_chunks(&self, node: NodeNumber, kind: u8, from_chunk: ChunkNumber) -> Result<(), StoreError> {
        if from_chunk == ChunkNumber::FIRST {
            let statement = "DELETE FROM sums WHERE node = ?1 AND kind = ?2";
            return self.run("remove kept checksums", statement, (node, kind)).map(|_| ());
        }
        let key = (node, kind, from_chunk);
        let statement = "UPDATE sums SET len_bytes = len_bytes - (SELECT coalesce(sum(length(sums)), 0) FROM sum_chunk \
                         WHERE node = ?1 AND kind = ?2 AND chunk >= ?3) WHERE node = ?1 AND kind = ?2";
        self.run("count kept checksums", statement, key)?;
        let statement = "DELETE FROM sum_chunk WHERE node = ?1 AND kind = ?2 AND chunk >= ?3";
        self.run("remove kept checksums", statement, key).map(|_| ())
    }
}

/// A page of extents, with the offset of its first one.
type StartedPage = (u64, Vec<u8>);

/// A layer's only segment, which is in its row; the others are in rows of their own.
fn only_segment(segments: &[SegmentNumber]) -> (Option<SegmentNumber>, &[SegmentNumber]) {
    match segments {
        [only] => (Some(*only), &[]),
        segments => (None, segments),
    }
}

/// A layer's only page, if it is short: then it is in its row; the others are in rows of their own.
fn only_page(pages: &[StartedPage]) -> (Option<&StartedPage>, &[StartedPage]) {
    match pages {
        [only] if only.1.len() <= schema::INLINE_PAGE_LEN_MAX => (Some(only), &[]),
        pages => (None, pages),
    }
}

impl CatalogWrite for Transaction<'_> {
    fn commit(self: Box<Self>) -> Result<(), StoreError> {
        (*self).finish("COMMIT")
    }

    fn insert_folder(&self, name: &str, created_ns: i64) -> Result<FolderRow, StoreError> {
        let statement = "INSERT INTO folder (name, seq, root, entries, snapshots, stored_bytes, created_ns, \
                         last_snapshot) VALUES (?1, 0, NULL, 0, 0, 0, ?2, 0)";
        let id = self.insert("create a folder", statement, (name, created_ns))?;
        Ok(FolderRow {
            id: FolderNumber(id),
            name: name.to_owned(),
            seq: 0,
            root: None,
            entries: 0,
            snapshots: 0,
            stored_bytes: 0,
            created_ns,
        })
    }

    fn update_folder(&self, folder: &FolderRow) -> Result<(), StoreError> {
        let statement =
            "UPDATE folder SET seq = ?2, root = ?3, entries = ?4, snapshots = ?5, stored_bytes = ?6 WHERE id = ?1";
        let params = params![
            folder.id,
            sql(folder.seq),
            folder.root,
            sql(folder.entries),
            sql(folder.snapshots),
            sql(folder.stored_bytes)
        ];
        self.run_one("update a folder", statement, params)
    }

    fn insert_node(&self, folder: FolderNumber, file: FileId) -> Result<NodeNumber, StoreError> {
        let statement = "INSERT INTO node (folder, file) VALUES (?1, ?2)";
        self.insert("add a node", statement, (folder, file.0.to_be_bytes()))
            .map(NodeNumber)
    }

    fn insert_attributes(&self, folder: FolderNumber, node: NodeNumber, row: &AttributeRow) -> Result<(), StoreError> {
        let statement = "INSERT INTO attribute (node, seq, folder, kind, mode, uid, gid, size, mtime_ns, rdev, layer, \
                         content_seq, rare, mtime_high) \
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";
        let a = &row.attributes;
        let (mtime_ns, mtime_high) = schema::halves(a.mtime_ns);
        let params = params![
            node,
            sql(row.seq),
            folder,
            number_of_kind(a.kind),
            a.mode,
            a.uid,
            a.gid,
            sql(a.size),
            mtime_ns,
            a.rdev.cast_signed(),
            row.layer,
            sql(row.content_seq),
            encode_rare_attributes(a),
            mtime_high
        ];
        self.run("add attributes", statement, params).map(|_| ())
    }

    fn set_content(&self, node: NodeNumber, seq: Seq, layer: LayerNumber) -> Result<(), StoreError> {
        let statement = "UPDATE attribute SET layer = ?3, content_seq = ?2 WHERE node = ?1 AND seq = ?2";
        self.run_one("set a node's contents", statement, (node, sql(seq), layer))
    }

    fn insert_entry(&self, folder: FolderNumber, row: &EntryRow) -> Result<(), StoreError> {
        let statement = "INSERT INTO entry (parent, name, from_seq, to_seq, folder, child) \
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let params = (
            row.parent,
            row.name.as_slice(),
            sql(row.from_seq),
            sql(row.to_seq),
            folder,
            row.child,
        );
        self.run("add an entry", statement, params).map(|_| ())
    }

    fn close_entry(&self, parent: NodeNumber, name: &[u8], to_seq: Seq) -> Result<(), StoreError> {
        let statement = "UPDATE entry SET to_seq = ?3 WHERE parent = ?1 AND name = ?2 AND to_seq = ?4";
        self.run_one("close an entry", statement, (parent, name, sql(to_seq), sql(OPEN)))
    }

    fn close_all_entries(&self, folder: FolderNumber, to_seq: Seq) -> Result<u64, StoreError> {
        let statement = "UPDATE entry SET to_seq = ?2 WHERE folder = ?1 AND to_seq = ?3";
        self.run("close a folder's entries", statement, (folder, sql(to_seq), sql(OPEN)))
    }

    fn insert_batch(&self, folder: FolderNumber, row: &BatchRow) -> Result<(), StoreError> {
        let statement = "INSERT INTO batch (folder, seq, device, counter, base_seq, root, created_ns, host, path, \
                         snapshot, stored_bytes) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
        let params = params![
            folder,
            sql(row.seq),
            sql(row.device),
            row.counter.cast_signed(),
            row.base_seq.map(sql),
            row.root,
            row.created_ns,
            row.host,
            row.path,
            row.snapshot_id.map(sql),
            sql(row.stored_bytes)
        ];
        self.run("add a batch", statement, params).map(|_| ())
    }

    fn insert_snapshot(&self, folder: FolderNumber, seq: Seq, label: &SnapshotLabel) -> Result<u64, StoreError> {
        let number = "UPDATE folder SET last_snapshot = last_snapshot + 1 WHERE id = ?1 RETURNING last_snapshot";
        let id = self
            .one("number a snapshot", number, [folder], |row| unsigned(row, 0))?
            .ok_or_else(|| StoreError::CatalogDamaged("no folder to number a snapshot in".to_owned()))?;
        let statement =
            "INSERT INTO snapshot (folder, id, seq, time_ns, host, path, tags) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let params = params![
            folder,
            sql(id),
            sql(seq),
            label.time_ns,
            label.host.as_bytes(),
            label.path.as_bytes(),
            encode_tags(&label.tags)
        ];
        self.run("add a snapshot", statement, params)?;
        Ok(id)
    }

    fn delete_snapshot(&self, folder: FolderNumber, id: u64) -> Result<bool, StoreError> {
        let statement = "DELETE FROM snapshot WHERE folder = ?1 AND id = ?2";
        Ok(self.run("forget a snapshot", statement, (folder, sql(id)))? > 0)
    }

    fn insert_layer(
        &self,
        node: NodeNumber,
        row: &LayerRow,
        pages: &[(u64, Vec<u8>)],
        segments: &[SegmentNumber],
    ) -> Result<LayerRowNumber, StoreError> {
        let statement = "INSERT INTO layer (node, last, first, base_len, new_len, extents, resets, barrier, pages, \
                         segment, start, page) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
        let (only_segment, segments) = only_segment(segments);
        let (only_page, pages) = only_page(pages);
        let params = params![
            node,
            row.last,
            row.first,
            sql(row.base_len),
            sql(row.new_len),
            sql(row.extents),
            row.resets,
            row.barrier,
            row.shared,
            only_segment,
            only_page.map(|(start, _)| sql(*start)),
            only_page.map(|(_, page)| page.as_slice())
        ];
        let layer = self.insert("add a layer", statement, params).map(LayerRowNumber)?;
        if let Some((_, page)) = only_page {
            self.count_page(page);
        }
        self.insert_pages(layer, pages, segments)?;
        Ok(layer)
    }

    fn replace_pages(
        &self,
        layer: LayerRowNumber,
        extents: u64,
        pages: &[(u64, Vec<u8>)],
        segments: &[SegmentNumber],
    ) -> Result<(), StoreError> {
        self.run("replace pages", "DELETE FROM layer_page WHERE layer = ?1", [layer])?;
        self.run("replace pages", "DELETE FROM layer_segment WHERE layer = ?1", [layer])?;
        let (only_segment, segments) = only_segment(segments);
        let (only_page, pages) = only_page(pages);
        let statement = "UPDATE layer SET extents = ?2, pages = NULL, segment = ?3, start = ?4, page = ?5 \
                         WHERE id = ?1 AND resets";
        let params = params![
            layer,
            sql(extents),
            only_segment,
            only_page.map(|(start, _)| sql(*start)),
            only_page.map(|(_, page)| page.as_slice())
        ];
        self.run_one("replace pages", statement, params)?;
        if let Some((_, page)) = only_page {
            self.count_page(page);
        }
        self.insert_pages(layer, pages, segments)
    }

    fn put_fragmentation(&self, node: NodeNumber, row: &FragmentationRow) -> Result<(), StoreError> {
        let statement = "INSERT INTO fragmentation (node, needed_bytes, waste_bytes, credit_bytes, is_due) \
                         VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (node) DO UPDATE SET \
                         needed_bytes = excluded.needed_bytes, waste_bytes = excluded.waste_bytes, \
                         credit_bytes = excluded.credit_bytes, is_due = excluded.is_due";
        let params = (
            node,
            sql(row.needed_bytes),
            sql(row.waste_bytes),
            sql(row.credit_bytes),
            row.is_due,
        );
        self.run("note a file's fragmentation", statement, params).map(|_| ())
    }

    fn set_barrier(&self, layer: LayerRowNumber) -> Result<(), StoreError> {
        self.run_one("mark a layer", "UPDATE layer SET barrier = 1 WHERE id = ?1", [layer])
    }

    fn layer_segments(&self, layer: LayerRowNumber) -> Result<Vec<SegmentNumber>, StoreError> {
        let query = "SELECT segment FROM layer_segment WHERE layer = ?1 \
                     UNION ALL SELECT segment FROM layer WHERE id = ?1 AND segment IS NOT NULL";
        self.all("list a layer's segments", query, [layer], |row| row.get(0))
    }

    fn add_segment(&self, segment: SegmentNumber) -> Result<(), StoreError> {
        let statement = "INSERT OR IGNORE INTO segment (id) VALUES (?1)";
        self.run("note a segment", statement, [segment]).map(|_| ())
    }

    fn forget_segment(&self, segment: SegmentNumber) -> Result<bool, StoreError> {
        let query = "SELECT EXISTS (SELECT 1 FROM layer_segment WHERE segment = ?1) \
                     OR EXISTS (SELECT 1 FROM layer WHERE segment = ?1) \
                     OR EXISTS (SELECT 1 FROM staged_segment WHERE segment = ?1)";
        let is_referenced = self.one("search for references", query, [segment], |row| row.get(0))?;
        if is_referenced.unwrap_or(true) {
            return Ok(false);
        }
        let statement = "DELETE FROM segment WHERE id = ?1 AND id < (SELECT max(id) FROM segment)";
        self.run("forget a segment", statement, [segment])?;
        let statement = "DELETE FROM damage WHERE segment = ?1";
        self.run("forget damage", statement, [segment])?;
        Ok(true)
    }

    fn replace_staged_part(
        &self,
        key: BatchKey,
        part: u32,
        (created_ns, digest): (i64, Option<&[u8; 32]>),
        sheets: &[Vec<u8>],
        segments: &[SegmentNumber],
    ) -> Result<(), StoreError> {
        let whose = (key.folder, sql(key.device), key.counter.cast_signed(), part);
        let statement = "DELETE FROM staged_part WHERE folder = ?1 AND device = ?2 AND counter = ?3 AND part = ?4";
        self.run("replace a staged part", statement, whose)?;
        let statement =
            "INSERT INTO staged_part (folder, device, counter, part, created_ns) VALUES (?1, ?2, ?3, ?4, ?5)";
        let params = (whose.0, whose.1, whose.2, part, created_ns);
        let id = self
            .insert("stage a part", statement, params)
            .map(StagedPartRowNumber)?;
        if let Some(digest) = digest {
            let statement = "INSERT INTO staged_digest (part, digest) VALUES (?1, ?2)";
            self.run("stage a part", statement, (id, digest.as_slice()))?;
        }
        for (ordinal, sheet) in (0u32..).zip(sheets) {
            let statement = "INSERT INTO staged_sheet (part, ordinal, records) VALUES (?1, ?2, ?3)";
            self.run("stage records", statement, (id, ordinal, sheet.as_slice()))?;
        }
        for segment in segments {
            let statement = "INSERT INTO staged_segment (part, segment) VALUES (?1, ?2)";
            self.run("refer to a segment", statement, (id, segment))?;
        }
        Ok(())
    }

    fn delete_staged_parts(&self, key: BatchKey) -> Result<(), StoreError> {
        let statement = "DELETE FROM staged_part WHERE folder = ?1 AND device = ?2 AND counter = ?3";
        let params = (key.folder, sql(key.device), key.counter.cast_signed());
        self.run("remove staged parts", statement, params).map(|_| ())
    }

    fn delete_expired_parts(&self, before_ns: i64) -> Result<u64, StoreError> {
        self.run(
            "remove expired parts",
            "DELETE FROM staged_part WHERE (folder, device, counter) IN (SELECT folder, device, counter \
             FROM staged_part GROUP BY folder, device, counter HAVING max(created_ns) < ?1)",
            [before_ns],
        )
    }

    fn note_damage(&self, segment: SegmentNumber, offset: u64, noted_max: u32) -> Result<(), StoreError> {
        let statement = "INSERT OR IGNORE INTO damage (segment, place) SELECT ?1, ?2 \
                         WHERE (SELECT count(*) FROM damage) < ?3";
        let params = (segment, sql(offset), noted_max);
        self.run("note damage", statement, params).map(|_| ())
    }

    fn forget_damage(&self, segment: SegmentNumber, offset: u64) -> Result<(), StoreError> {
        let statement = "DELETE FROM damage WHERE segment = ?1 AND place = ?2";
        self.run("forget damage", statement, (segment, sql(offset))).map(|_| ())
    }

    fn put_sums(
        &self,
        node: NodeNumber,
        kind: LeafKind,
        used_ns: i64,
        rows: &[(ChunkNumber, Vec<u8>)],
    ) -> Result<(), StoreError> {
        let statement = "INSERT INTO sums (node, kind, used_ns, len_bytes) VALUES (?1, ?2, ?3, 0) \
                         ON CONFLICT (node, kind) DO UPDATE SET used_ns = max(used_ns, excluded.used_ns)";
        self.run("keep checksums", statement, (node, kind.code(), used_ns))?;
        let mut grown = 0_i64;
        for (chunk, sums) in rows {
            let key = (node, kind.code(), *chunk);
            let query = "SELECT length(sums) FROM sum_chunk WHERE node = ?1 AND kind = ?2 AND chunk = ?3";
            let before: Option<i64> = self.one("find kept checksums", query, key, |row| row.get(0))?;
            let statement = "INSERT INTO sum_chunk (node, kind, chunk, sums) VALUES (?1, ?2, ?3, ?4) \
                             ON CONFLICT (node, kind, chunk) DO UPDATE SET sums = excluded.sums";
            self.run("keep checksums", statement, (key.0, key.1, key.2, sums.as_slice()))?;
            grown += sql(len_u64(sums)) - before.unwrap_or(0);
        }
        let statement = "UPDATE sums SET len_bytes = len_bytes + ?3 WHERE node = ?1 AND kind = ?2";
        self.run_one("count kept checksums", statement, (node, kind.code(), grown))
    }

    fn delete_sums(&self, node: NodeNumber, kind: LeafKind, from_chunk: ChunkNumber) -> Result<(), StoreError> {
        self.delete_sum_chunks(node, kind.code(), from_chunk)
    }

    fn evict_sums(&self, except: (NodeNumber, LeafKind), rows_max: u32) -> Result<u64, StoreError> {
        let query = "SELECT node, kind, len_bytes FROM sums WHERE (node, kind) <> (?1, ?2) ORDER BY used_ns LIMIT 1";
        let except = (except.0, except.1.code());
        let oldest: Option<(NodeNumber, u8, i64)> = self.one("find old checksums", query, except, |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
        let Some((node, kind, len_bytes)) = oldest else {
            return Ok(0);
        };
        let query = "SELECT chunk FROM sum_chunk WHERE node = ?1 AND kind = ?2 ORDER BY chunk DESC LIMIT 1 OFFSET ?3";
        let from = self.one("find old checksums", query, (node, kind, rows_max), |row| {
            row.get::<_, ChunkNumber>(0)
        })?;
        // That row is the last one that stays.
        self.delete_sum_chunks(node, kind, from.map_or(ChunkNumber::FIRST, ChunkNumber::next))?;
        let query = "SELECT len_bytes FROM sums WHERE node = ?1 AND kind = ?2";
        let left: Option<i64> = self.one("measure kept checksums", query, (node, kind), |row| row.get(0))?;
        // Even empty rows count as one byte, so that their removal is not taken for the end of all
        // rows.
        Ok((len_bytes - left.unwrap_or(0)).cast_unsigned().max(1))
    }
}
