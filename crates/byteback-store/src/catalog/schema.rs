//! The SQLite schema, version 1. `PRAGMA user_version` holds the version; a catalog of another one
//! is refused.
//!
//! `application_id` marks the file as ours. Tables without a rowid are clustered by their primary
//! key, which is the order in which they are read; layer pages are blobs and therefore live in a
//! rowid table.
//!
//! - `layer.pages` is the row whose pages and segment references a layer shares. Both belong to one
//!   row of `layer` alone, which the engine refuses to remove while others share it, whatever
//!   becomes of its node.
//! - A short page that is a layer's only one is in `layer.page`, its offset in `layer.start`; a
//!   segment that is its only one in `layer.segment`. Short files, most of all files, have no rows
//!   of `layer_page` and `layer_segment`.
//! - `folder.last_snapshot` is the highest number that a snapshot of the folder was ever given, so
//!   that no number is given twice.
//! - A modification time is `attribute.mtime_high` times 2^64 more than `attribute.mtime_ns`.
//! - `entry_by_to` has only names that are gone. An index repeats the name, and most names stay.
//! - `attribute_by_size` has only files that are worth comparing with a new one of their length.
//! - `fragmentation` is a bound of `crate::defragment`; a file without a row has none yet.
//! - `sums`, `sum_chunk` (`crate::sums`) and `damage` (`crate::damage`) hold only what can be made
//!   again; a staged part without a row of `staged_digest` is sent again.

pub(super) const VERSION: i64 = 1;

/// "BYBC".
pub(super) const APPLICATION_ID: i64 = 0x4259_4243;

/// Longest page that is in the row of its layer, in bytes.
pub(super) const INLINE_PAGE_LEN_MAX: usize = 256;

/// A time, from its two columns.
pub(super) fn wide(low: i64, high: i64) -> i128 {
    (i128::from(high) << 64) + i128::from(low)
}

/// The two columns of a time. A time beyond their range is clamped.
pub(super) fn halves(ns: i128) -> (i64, i64) {
    let low = ns as i64;
    let high = ns.saturating_sub(low.into()) >> 64;
    (low, high as i64)
}

/// The tables.
pub(super) const CREATE: &str = "
CREATE TABLE device (
  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, token_hash BLOB NOT NULL UNIQUE, created_ns INTEGER NOT NULL,
  manages INTEGER NOT NULL, seen_ns INTEGER, revoked_ns INTEGER
) STRICT;
CREATE TABLE device_folder (
  device INTEGER NOT NULL REFERENCES device(id), folder TEXT NOT NULL, writes INTEGER NOT NULL, PRIMARY KEY (device, folder)
) STRICT, WITHOUT ROWID;
CREATE TABLE invitation (
  id INTEGER PRIMARY KEY AUTOINCREMENT, hash BLOB NOT NULL UNIQUE, created_ns INTEGER NOT NULL, expires_ns INTEGER NOT NULL,
  folder TEXT, writes INTEGER NOT NULL, name TEXT NOT NULL, device INTEGER REFERENCES device(id), withdrawn_ns INTEGER
) STRICT;
CREATE TABLE folder (
  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL, root INTEGER REFERENCES node(id),
  entries INTEGER NOT NULL, snapshots INTEGER NOT NULL, stored_bytes INTEGER NOT NULL, created_ns INTEGER NOT NULL,
  last_snapshot INTEGER NOT NULL
) STRICT;
CREATE TABLE node (
  id INTEGER PRIMARY KEY AUTOINCREMENT, folder INTEGER NOT NULL REFERENCES folder(id), file BLOB NOT NULL,
  UNIQUE (folder, file)
) STRICT;
CREATE TABLE attribute (
  node INTEGER NOT NULL REFERENCES node(id), seq INTEGER NOT NULL, folder INTEGER NOT NULL, kind INTEGER NOT NULL,
  mode INTEGER NOT NULL, uid INTEGER NOT NULL, gid INTEGER NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
  mtime_high INTEGER NOT NULL, rdev INTEGER NOT NULL, layer INTEGER NOT NULL, content_seq INTEGER NOT NULL, rare BLOB NOT NULL,
  PRIMARY KEY (node, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX attribute_by_seq ON attribute (folder, seq);
CREATE INDEX attribute_by_size ON attribute (folder, size) WHERE size >= 65536;
CREATE TABLE entry (
  parent INTEGER NOT NULL REFERENCES node(id), name BLOB NOT NULL, from_seq INTEGER NOT NULL, to_seq INTEGER NOT NULL,
  folder INTEGER NOT NULL, child INTEGER NOT NULL REFERENCES node(id),
  PRIMARY KEY (parent, name, from_seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX entry_by_child ON entry (child, to_seq);
CREATE INDEX entry_by_from ON entry (folder, from_seq);
CREATE INDEX entry_by_to ON entry (folder, to_seq) WHERE to_seq < 9223372036854775807;
CREATE TABLE batch (
  folder INTEGER NOT NULL REFERENCES folder(id), seq INTEGER NOT NULL, device INTEGER NOT NULL REFERENCES device(id),
  counter INTEGER NOT NULL, base_seq INTEGER, root INTEGER NOT NULL REFERENCES node(id), created_ns INTEGER NOT NULL,
  host BLOB NOT NULL, path BLOB NOT NULL, snapshot INTEGER, stored_bytes INTEGER NOT NULL,
  PRIMARY KEY (folder, seq), UNIQUE (folder, device, counter)
) STRICT, WITHOUT ROWID;
CREATE TABLE snapshot (
  folder INTEGER NOT NULL REFERENCES folder(id), id INTEGER NOT NULL, seq INTEGER NOT NULL,
  time_ns INTEGER NOT NULL, host BLOB NOT NULL, path BLOB NOT NULL, tags BLOB NOT NULL, PRIMARY KEY (folder, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE segment (id INTEGER PRIMARY KEY) STRICT;
CREATE TABLE layer (
  id INTEGER PRIMARY KEY AUTOINCREMENT, node INTEGER NOT NULL REFERENCES node(id), last INTEGER NOT NULL,
  first INTEGER NOT NULL, base_len INTEGER NOT NULL, new_len INTEGER NOT NULL, extents INTEGER NOT NULL,
  resets INTEGER NOT NULL, barrier INTEGER NOT NULL, pages INTEGER REFERENCES layer(id), segment INTEGER REFERENCES segment(id),
  start INTEGER, page BLOB, UNIQUE (node, last, first)
) STRICT;
CREATE INDEX layer_by_segment ON layer (segment) WHERE segment IS NOT NULL;
CREATE INDEX layer_by_pages ON layer (pages) WHERE pages IS NOT NULL;
CREATE TABLE layer_page (
  layer INTEGER NOT NULL REFERENCES layer(id), start INTEGER NOT NULL, extents BLOB NOT NULL, PRIMARY KEY (layer, start)
) STRICT;
CREATE TABLE layer_segment (
  layer INTEGER NOT NULL REFERENCES layer(id), segment INTEGER NOT NULL REFERENCES segment(id),
  PRIMARY KEY (layer, segment)
) STRICT, WITHOUT ROWID;
CREATE INDEX layer_segment_by_segment ON layer_segment (segment);
CREATE TABLE fragmentation (
  node INTEGER PRIMARY KEY REFERENCES node(id), needed_bytes INTEGER NOT NULL, waste_bytes INTEGER NOT NULL,
  credit_bytes INTEGER NOT NULL, is_due INTEGER NOT NULL
) STRICT;
CREATE INDEX fragmentation_due ON fragmentation (node) WHERE is_due;
CREATE TABLE staged_part (
  id INTEGER PRIMARY KEY AUTOINCREMENT, folder INTEGER NOT NULL REFERENCES folder(id),
  device INTEGER NOT NULL REFERENCES device(id), counter INTEGER NOT NULL, part INTEGER NOT NULL,
  created_ns INTEGER NOT NULL, UNIQUE (folder, device, counter, part)
) STRICT;
CREATE INDEX staged_part_by_age ON staged_part (created_ns);
CREATE TABLE staged_sheet (
  part INTEGER NOT NULL REFERENCES staged_part(id) ON DELETE CASCADE, ordinal INTEGER NOT NULL, records BLOB NOT NULL,
  PRIMARY KEY (part, ordinal)
) STRICT;
CREATE TABLE staged_segment (
  part INTEGER NOT NULL REFERENCES staged_part(id) ON DELETE CASCADE,
  segment INTEGER NOT NULL REFERENCES segment(id), PRIMARY KEY (part, segment)
) STRICT, WITHOUT ROWID;
CREATE INDEX staged_segment_by_segment ON staged_segment (segment);
CREATE TABLE sums (
  node INTEGER NOT NULL REFERENCES node(id), kind INTEGER NOT NULL, used_ns INTEGER NOT NULL, len_bytes INTEGER NOT NULL,
  PRIMARY KEY (node, kind)
) STRICT, WITHOUT ROWID;
CREATE INDEX sums_by_use ON sums (used_ns);
CREATE TABLE sum_chunk (
  node INTEGER NOT NULL, kind INTEGER NOT NULL, chunk INTEGER NOT NULL, sums BLOB NOT NULL,
  PRIMARY KEY (node, kind, chunk), FOREIGN KEY (node, kind) REFERENCES sums(node, kind) ON DELETE CASCADE
) STRICT;
CREATE TABLE staged_digest (
  part INTEGER PRIMARY KEY REFERENCES staged_part(id) ON DELETE CASCADE, digest BLOB NOT NULL
) STRICT;
CREATE TABLE damage (
  segment INTEGER NOT NULL, place INTEGER NOT NULL, PRIMARY KEY (segment, place)
) STRICT, WITHOUT ROWID;
";

#[cfg(test)]
mod tests;
