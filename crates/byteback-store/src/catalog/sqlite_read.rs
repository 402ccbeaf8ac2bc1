//! The reading half of the SQLite catalog: one query per method.

use super::sqlite::Transaction;
use super::sqlite_numbers::{sql, unsigned};
use super::{
    AttributeRow, BatchCondition, BatchKey, BatchRow, CatalogRead, EntryRow, FolderRow, FragmentationRow, LayerRow,
    OPEN, StagedPartRow, SumsRow, schema,
};
use crate::codec::{decode_rare_attributes, decode_tags, kind_of_number, len_u64};
use crate::error::StoreError;
use crate::numbers::{
    ChunkNumber, FolderNumber, LayerNumber, LayerRowNumber, NodeNumber, SegmentNumber, StagedPartRowNumber,
};
use byteback_delta::leaves::LeafKind;
use byteback_model::{Attributes, FileId, NodeKind, Seq, Snapshot, SnapshotLabel};
use rusqlite::{OptionalExtension, Params, Row};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

impl Transaction<'_> {
    pub(super) fn one<T>(
        &self,
        what: &'static str,
        query: &str,
        params: impl Params,
        map: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, StoreError> {
        let failed = |e| StoreError::catalog(what, e);
        let mut statement = self.connection()?.prepare_cached(query).map_err(failed)?;
        statement.query_row(params, map).optional().map_err(failed)
    }

    pub(super) fn all<T>(
        &self,
        what: &'static str,
        query: &str,
        params: impl Params,
        map: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let failed = |e| StoreError::catalog(what, e);
        let mut statement = self.connection()?.prepare_cached(query).map_err(failed)?;
        let rows = statement.query_map(params, map).map_err(failed)?;
        rows.collect::<rusqlite::Result<Vec<T>>>().map_err(failed)
    }
}

fn folder_row(row: &Row<'_>) -> rusqlite::Result<FolderRow> {
    Ok(FolderRow {
        id: row.get(0)?,
        name: row.get(1)?,
        seq: unsigned(row, 2)?,
        root: row.get(3)?,
        entries: unsigned(row, 4)?,
        snapshots: unsigned(row, 5)?,
        stored_bytes: unsigned(row, 6)?,
        created_ns: row.get(7)?,
    })
}

const FOLDER: &str = "SELECT id, name, seq, root, entries, snapshots, stored_bytes, created_ns FROM folder";

fn batch_row(row: &Row<'_>) -> rusqlite::Result<BatchRow> {
    let base_seq: Option<i64> = row.get(3)?;
    let snapshot: Option<i64> = row.get(8)?;
    Ok(BatchRow {
        seq: unsigned(row, 0)?,
        device: unsigned(row, 1)?,
        counter: row.get::<_, i64>(2)?.cast_unsigned(),
        base_seq: base_seq.map(i64::cast_unsigned),
        root: row.get(4)?,
        created_ns: row.get(5)?,
        host: row.get(6)?,
        path: row.get(7)?,
        snapshot_id: snapshot.map(i64::cast_unsigned),
        stored_bytes: unsigned(row, 9)?,
    })
}

const BATCH: &str =
    "SELECT seq, device, counter, base_seq, root, created_ns, host, path, snapshot, stored_bytes FROM batch";

fn entry_row(row: &Row<'_>) -> rusqlite::Result<EntryRow> {
    Ok(EntryRow {
        parent: row.get(0)?,
        name: row.get(1)?,
        child: row.get(2)?,
        from_seq: unsigned(row, 3)?,
        to_seq: unsigned(row, 4)?,
    })
}

const ENTRY: &str = "SELECT parent, name, child, from_seq, to_seq FROM entry";

impl CatalogRead for Transaction<'_> {
    fn folders(&self) -> Result<Vec<FolderRow>, StoreError> {
        self.all("list the folders", &format!("{FOLDER} ORDER BY name"), [], folder_row)
    }

    fn folder(&self, name: &str) -> Result<Option<FolderRow>, StoreError> {
        self.one(
            "find a folder",
            &format!("{FOLDER} WHERE name = ?1"),
            [name],
            folder_row,
        )
    }

    fn node_number(&self, folder: FolderNumber, file: FileId) -> Result<Option<NodeNumber>, StoreError> {
        let query = "SELECT id FROM node WHERE folder = ?1 AND file = ?2";
        self.one("find a node", query, (folder, file.0.to_be_bytes()), |row| row.get(0))
    }

    fn file_id(&self, node: NodeNumber) -> Result<FileId, StoreError> {
        let bytes: Option<[u8; 16]> = self.one(
            "find a node's identity",
            "SELECT file FROM node WHERE id = ?1",
            [node],
            |row| row.get(0),
        )?;
        let bytes = bytes.ok_or_else(|| StoreError::CatalogDamaged(format!("node {node} is missing")))?;
        Ok(FileId(u128::from_be_bytes(bytes)))
    }

    fn attributes(&self, node: NodeNumber, at: Seq) -> Result<Option<AttributeRow>, StoreError> {
        let query = "SELECT seq, kind, mode, uid, gid, size, mtime_ns, rdev, layer, content_seq, rare, mtime_high \
                     FROM attribute WHERE node = ?1 AND seq <= ?2 ORDER BY seq DESC LIMIT 1";
        let found = self.one("read attributes", query, (node, sql(at)), |row| {
            let attributes = Attributes {
                kind: NodeKind::File,
                mode: row.get(2)?,
                uid: row.get(3)?,
                gid: row.get(4)?,
                size: unsigned(row, 5)?,
                mtime_ns: schema::wide(row.get(6)?, row.get(11)?),
                rdev: row.get::<_, i64>(7)?.cast_unsigned(),
                inode_flags: 0,
                target: None,
                xattrs: Vec::new(),
                user: None,
                group: None,
            };
            let kind: u8 = row.get(1)?;
            let rare: Vec<u8> = row.get(10)?;
            let row = AttributeRow {
                seq: unsigned(row, 0)?,
                attributes,
                layer: row.get(8)?,
                content_seq: unsigned(row, 9)?,
            };
            Ok((row, kind, rare))
        })?;
        let Some((mut row, kind, rare)) = found else {
            return Ok(None);
        };
        row.attributes.kind = kind_of_number(kind)
            .ok_or_else(|| StoreError::CatalogDamaged(format!("node {node} has unknown kind {kind}")))?;
        decode_rare_attributes(&rare, &mut row.attributes)?;
        Ok(Some(row))
    }

    fn newest_entry_at(&self, parent: NodeNumber, name: &[u8], at: Seq) -> Result<Option<EntryRow>, StoreError> {
        let query =
            format!("{ENTRY} WHERE parent = ?1 AND name = ?2 AND from_seq <= ?3 ORDER BY from_seq DESC LIMIT 1");
        self.one("find an entry", &query, (parent, name, sql(at)), entry_row)
    }

    fn entries(
        &self,
        parent: NodeNumber,
        at: Seq,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<Vec<EntryRow>, StoreError> {
        // No name is empty, so every name is after the empty one.
        let after = after.unwrap_or_default();
        let query = format!(
            "{ENTRY} WHERE parent = ?1 AND name > ?2 AND from_seq <= ?3 AND to_seq > ?3 ORDER BY name LIMIT ?4"
        );
        self.all("list a directory", &query, (parent, after, sql(at), limit), entry_row)
    }

    fn parents(&self, child: NodeNumber, at: Seq, limit: u32) -> Result<Vec<EntryRow>, StoreError> {
        let query = format!("{ENTRY} WHERE child = ?1 AND to_seq > ?2 AND from_seq <= ?2 LIMIT ?3");
        self.all("find the names of a node", &query, (child, sql(at), limit), entry_row)
    }

    fn newest_name(&self, child: NodeNumber) -> Result<Option<EntryRow>, StoreError> {
        let query = format!("{ENTRY} WHERE child = ?1 ORDER BY to_seq DESC LIMIT 1");
        self.one("find the newest name of a node", &query, (child,), entry_row)
    }

    fn batch_by_key(&self, key: BatchKey) -> Result<Option<BatchRow>, StoreError> {
        let query = format!("{BATCH} WHERE folder = ?1 AND device = ?2 AND counter = ?3");
        self.one(
            "find a batch",
            &query,
            (key.folder, sql(key.device), key.counter.cast_signed()),
            batch_row,
        )
    }

    fn newest_batch(
        &self,
        folder: FolderNumber,
        seqs: RangeInclusive<Seq>,
        condition: BatchCondition,
    ) -> Result<Option<BatchRow>, StoreError> {
        // The sign before a column keeps the planner from an index that is not in order.
        let (meets, value) = match condition {
            BatchCondition::Any => ("?4", 1),
            BatchCondition::OtherRoot(root) => ("root <> ?4", root.0),
            BatchCondition::MadeUntil(time_ns) => ("created_ns <= ?4", time_ns),
            BatchCondition::OfDevice(device) => ("+device = ?4", sql(device)),
        };
        let query =
            format!("{BATCH} WHERE folder = ?1 AND seq >= ?2 AND seq <= ?3 AND {meets} ORDER BY seq DESC LIMIT 1");
        let params = (folder, sql(*seqs.start()), sql(*seqs.end()), value);
        self.one("find a batch", &query, params, batch_row)
    }

    fn batches_after(&self, folder: FolderNumber, after: Seq, limit: u32) -> Result<Vec<BatchRow>, StoreError> {
        self.all(
            "list batches",
            &format!("{BATCH} WHERE folder = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3"),
            (folder, sql(after), limit),
            batch_row,
        )
    }

    fn snapshots(&self, folder: FolderNumber, after: u64, limit: u32) -> Result<Vec<Snapshot>, StoreError> {
        let query = "SELECT id, seq, time_ns, host, path, tags FROM snapshot WHERE folder = ?1 AND id > ?2 \
                     ORDER BY id LIMIT ?3";
        let rows = self.all("list snapshots", query, (folder, sql(after), limit), |row| {
            let label = SnapshotLabel {
                time_ns: row.get(2)?,
                host: row.get::<_, Vec<u8>>(3)?.into(),
                path: row.get::<_, Vec<u8>>(4)?.into(),
                tags: Vec::new(),
            };
            let snapshot = Snapshot {
                id: unsigned(row, 0)?,
                seq: unsigned(row, 1)?,
                label,
            };
            Ok((snapshot, row.get::<_, Vec<u8>>(5)?))
        })?;
        let decoded = rows.into_iter().map(|(mut snapshot, tags)| {
            snapshot.label.tags = decode_tags(&tags)?;
            Ok(snapshot)
        });
        decoded.collect()
    }

    fn longest_layer(
        &self,
        node: NodeNumber,
        last: LayerNumber,
        first_min: LayerNumber,
    ) -> Result<Option<LayerRow>, StoreError> {
        let query = "SELECT id, first, last, base_len, new_len, extents, resets, barrier, pages FROM layer \
                     WHERE node = ?1 AND last = ?2 AND first >= ?3 ORDER BY first LIMIT 1";
        self.one("find a layer", query, (node, last, first_min), |row| {
            Ok(LayerRow {
                id: row.get(0)?,
                first: row.get(1)?,
                last: row.get(2)?,
                base_len: unsigned(row, 3)?,
                new_len: unsigned(row, 4)?,
                extents: unsigned(row, 5)?,
                resets: row.get(6)?,
                barrier: row.get(7)?,
                shared: row.get(8)?,
            })
        })
    }

    fn page(&self, layer: LayerRowNumber, offset: u64) -> Result<(Option<Vec<u8>>, Option<u64>), StoreError> {
        let count = |page: Option<&[u8]>| {
            let read = page.map_or(0, len_u64);
            self.catalog.page_bytes_read.fetch_add(read, Ordering::Relaxed);
        };
        let query = "SELECT start, page FROM layer WHERE id = ?1 AND page IS NOT NULL";
        let only = self.one("read a page", query, [layer], |row| {
            Ok((unsigned(row, 0)?, row.get(1)?))
        })?;
        if let Some((start, page)) = only {
            return match start <= offset {
                true => {
                    let page: Vec<u8> = page;
                    count(Some(&page));
                    Ok((Some(page), None))
                }
                false => Ok((None, Some(start))),
            };
        }
        let query = "SELECT extents FROM layer_page WHERE layer = ?1 AND start <= ?2 ORDER BY start DESC LIMIT 1";
        let page: Option<Vec<u8>> = self.one("read a page", query, (layer, sql(offset)), |row| row.get(0))?;
        count(page.as_deref());
        let query = "SELECT start FROM layer_page WHERE layer = ?1 AND start > ?2 ORDER BY start LIMIT 1";
        let next = self.one("find a page", query, (layer, sql(offset)), |row| unsigned(row, 0))?;
        Ok((page, next))
    }

    fn changed_names(
        &self,
        folder: FolderNumber,
        from: Seq,
        to: Seq,
        after: Option<(NodeNumber, &[u8])>,
        limit: u32,
    ) -> Result<Vec<(NodeNumber, Vec<u8>)>, StoreError> {
        let (parent, name) = after.unwrap_or((NodeNumber::START, &[]));
        let params = (folder, sql(from), sql(to), parent, name, limit);
        self.all("list changed names", CHANGED_NAMES, params, |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
    }

    fn changed_nodes(
        &self,
        folder: FolderNumber,
        from: Seq,
        to: Seq,
        after: NodeNumber,
        limit: u32,
    ) -> Result<Vec<NodeNumber>, StoreError> {
        let query = "SELECT DISTINCT node FROM attribute WHERE folder = ?1 AND seq > ?2 AND seq <= ?3 AND node > ?4 \
                     ORDER BY node LIMIT ?5";
        self.all(
            "list changed nodes",
            query,
            (folder, sql(from), sql(to), after, limit),
            |row| row.get(0),
        )
    }

    fn staged_parts(&self, key: BatchKey) -> Result<Vec<StagedPartRow>, StoreError> {
        let query = "SELECT s.id, s.part, s.created_ns, d.digest FROM staged_part AS s LEFT JOIN staged_digest AS d \
                     ON d.part = s.id WHERE s.folder = ?1 AND s.device = ?2 AND s.counter = ?3 ORDER BY s.part";
        let params = (key.folder, sql(key.device), key.counter.cast_signed());
        self.all("list staged parts", query, params, |row| {
            Ok(StagedPartRow {
                id: row.get(0)?,
                part: row.get(1)?,
                created_ns: row.get(2)?,
                digest: row.get(3)?,
            })
        })
    }

    fn staged_sheet(&self, part: StagedPartRowNumber, ordinal: u32) -> Result<Option<Vec<u8>>, StoreError> {
        let query = "SELECT records FROM staged_sheet WHERE part = ?1 AND ordinal = ?2";
        self.one("read staged records", query, (part, ordinal), |row| row.get(0))
    }

    fn segment_id_max(&self) -> Result<SegmentNumber, StoreError> {
        let max = self.one("find the last segment", "SELECT max(id) FROM segment", [], |row| {
            row.get::<_, Option<SegmentNumber>>(0)
        })?;
        Ok(max.flatten().unwrap_or(SegmentNumber::NONE))
    }

    fn sum_chunk(&self, node: NodeNumber, kind: LeafKind, chunk: ChunkNumber) -> Result<Option<Vec<u8>>, StoreError> {
        let query = "SELECT sums FROM sum_chunk WHERE node = ?1 AND kind = ?2 AND chunk = ?3";
        self.one("read kept checksums", query, (node, kind.code(), chunk), |row| {
            row.get(0)
        })
    }

    fn sums(&self, node: NodeNumber) -> Result<Vec<SumsRow>, StoreError> {
        let query = "SELECT kind, used_ns, len_bytes, (SELECT max(chunk) FROM sum_chunk AS c WHERE c.node = s.node \
                     AND c.kind = s.kind) FROM sums AS s WHERE node = ?1 ORDER BY kind";
        let rows = self.all("list kept checksums", query, [node], |row| {
            let Some(kind) = LeafKind::from_code(row.get(0)?) else {
                return Ok(None);
            };
            Ok(Some(SumsRow {
                kind,
                used_ns: row.get(1)?,
                len_bytes: unsigned(row, 2)?,
                last_chunk: row.get(3)?,
            }))
        })?;
        Ok(rows.into_iter().flatten().collect())
    }

    fn sums_len(&self) -> Result<u64, StoreError> {
        let query = "SELECT coalesce(sum(len_bytes), 0) FROM sums";
        let len = self.one("measure kept checksums", query, [], |row| unsigned(row, 0))?;
        Ok(len.unwrap_or(0))
    }

    fn noted_damage(&self, limit: u32) -> Result<Vec<(SegmentNumber, u64)>, StoreError> {
        let query = "SELECT segment, place FROM damage ORDER BY segment, place LIMIT ?1";
        self.all("list damage", query, [limit], |row| {
            Ok((row.get(0)?, unsigned(row, 1)?))
        })
    }

    fn fragmentation(&self, node: NodeNumber) -> Result<Option<FragmentationRow>, StoreError> {
        let query = "SELECT needed_bytes, waste_bytes, credit_bytes, is_due FROM fragmentation WHERE node = ?1";
        self.one("find a file's fragmentation", query, [node], |row| {
            Ok(FragmentationRow {
                needed_bytes: unsigned(row, 0)?,
                waste_bytes: unsigned(row, 1)?,
                credit_bytes: unsigned(row, 2)?,
                is_due: row.get(3)?,
            })
        })
    }

    fn next_fragmented(&self, after: NodeNumber) -> Result<Option<(NodeNumber, String)>, StoreError> {
        self.one("find a fragmented file", NEXT_FRAGMENTED, [after], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
    }

    fn node_of_length(
        &self,
        folder: FolderNumber,
        len_bytes: u64,
        before: NodeNumber,
    ) -> Result<Option<NodeNumber>, StoreError> {
        let Ok(len_bytes) = i64::try_from(len_bytes) else {
            return Ok(None);
        };
        let params = (folder, len_bytes, before);
        let found = self.one("find a file of some length", NODE_OF_LENGTH, params, |row| row.get(0))?;
        Ok(found.flatten())
    }

    fn nodes_of_segment(
        &self,
        folder: FolderNumber,
        segment: SegmentNumber,
        limit: u32,
    ) -> Result<Vec<NodeNumber>, StoreError> {
        let params = (folder, segment, limit);
        self.all("list files of a segment", NODES_OF_SEGMENT, params, |row| row.get(0))
    }
}

/// A layer that shares the pages of a referring layer refers to the segment as well. CROSS keeps
/// SQLite from beginning with all nodes of the folder.
pub(super) const NODES_OF_SEGMENT: &str = "\
    WITH referring AS (SELECT layer AS id FROM layer_segment WHERE segment = ?2 \
      UNION ALL SELECT id FROM layer WHERE segment = ?2) \
    SELECT layer.node FROM referring CROSS JOIN layer ON layer.id = referring.id \
      CROSS JOIN node ON node.id = layer.node WHERE node.folder = ?1 \
    UNION SELECT layer.node FROM referring CROSS JOIN layer ON layer.pages = referring.id \
      CROSS JOIN node ON node.id = layer.node WHERE node.folder = ?1 \
    ORDER BY 1 LIMIT ?3";

/// An open entry's end is beyond every moment, and not in the index of ends.
pub(super) const CHANGED_NAMES: &str = "\
    SELECT parent, name FROM entry WHERE folder = ?1 AND from_seq > ?2 AND from_seq <= ?3 \
      AND (parent, name) > (?4, ?5) \
    UNION SELECT parent, name FROM entry WHERE folder = ?1 AND to_seq > ?2 AND to_seq <= ?3 \
      AND to_seq < 9223372036854775807 AND (parent, name) > (?4, ?5) \
    ORDER BY 1, 2 LIMIT ?6";

/// The bound is that of the index, which has no shorter files.
pub(super) const NODE_OF_LENGTH: &str = "\
    SELECT max(node) FROM attribute WHERE folder = ?1 AND size = ?2 AND size >= 65536 AND node < ?3";

const _: () = assert!(crate::ALIKE_LEN_MIN == 65536);

/// Asked after each batch: it must not look at files that are not due.
pub(super) const NEXT_FRAGMENTED: &str = "\
    SELECT f.node, folder.name FROM fragmentation AS f INDEXED BY fragmentation_due \
      CROSS JOIN node ON node.id = f.node CROSS JOIN folder ON folder.id = node.folder \
    WHERE f.is_due AND f.node > ?1 ORDER BY f.node LIMIT 1";

/// The end of an open entry fits SQLite's numbers exactly.
const _: () = assert!(OPEN == i64::MAX.cast_unsigned());
