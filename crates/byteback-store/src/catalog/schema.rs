//! The SQLite schema, version 5. `PRAGMA user_version` holds the version. A newer version is
//! refused; an older one is upgraded when the file is opened, in one transaction.
//!
//! Version 2 adds layers that *share* the pages of another one ([`SINCE_2`]), which a program of
//! version 1 would read as empty. A new catalog is created as version 1 and upgraded, so that there
//! is one schema, however old a file is.
//!
//! Version 3 adds access rights of devices ([`SINCE_3`]). A program of version 2 would give every
//! device every folder, and forget which invitations were used. Devices that joined before may do
//! everything, as they could.
//!
//! Version 4 numbers the snapshots of each folder separately ([`SINCE_4`]). Earlier snapshots keep
//! their numbers.
//!
//! Version 5 keeps times that exceed 64 bits ([`SINCE_5`]). A program of version 4 would misread
//! them.
//!
//! `application_id` marks the file as ours. Tables without a rowid are clustered by their primary
//! key, which is the order in which they are read; layer pages are blobs and therefore live in a
//! rowid table.
//!
//! [`CACHE`] came later without a new version: its tables hold only what can be made again, they
//! are created where they are missing, and a program that does not know them neither reads nor
//! disturbs them.

pub(super) const VERSION: i64 = 5;

/// "BYBC".
pub(super) const APPLICATION_ID: i64 = 0x4259_4243;

/// From version 1 to 2: the row whose pages and segment references a layer shares. Both belong to
/// one row of `layer` alone, which the engine refuses to remove while others share it, whatever
/// becomes of its node.
pub(super) const SINCE_2: &str = "
ALTER TABLE layer ADD COLUMN pages INTEGER REFERENCES layer(id);
CREATE INDEX layer_by_pages ON layer (pages) WHERE pages IS NOT NULL;
";

/// From version 2 to 3.
pub(super) const SINCE_3: &str = "
ALTER TABLE device ADD COLUMN manages INTEGER NOT NULL DEFAULT 1;
ALTER TABLE device ADD COLUMN seen_ns INTEGER;
ALTER TABLE device ADD COLUMN revoked_ns INTEGER;
CREATE TABLE device_folder (
  device INTEGER NOT NULL REFERENCES device(id), folder TEXT NOT NULL, writes INTEGER NOT NULL, PRIMARY KEY (device, folder)
) STRICT, WITHOUT ROWID;
CREATE TABLE invitation (
  id INTEGER PRIMARY KEY AUTOINCREMENT, hash BLOB NOT NULL UNIQUE, created_ns INTEGER NOT NULL, expires_ns INTEGER NOT NULL,
  folder TEXT, writes INTEGER NOT NULL, name TEXT NOT NULL, device INTEGER REFERENCES device(id), withdrawn_ns INTEGER
) STRICT;
INSERT INTO invitation (hash, created_ns, expires_ns, writes, name) SELECT hash, created_ns, expires_ns, 1, '' FROM join_token;
DROP TABLE join_token;
";

/// From version 3 to 4. `last_snapshot` is the highest number ever given in the folder, so that no
/// number is given twice.
pub(super) const SINCE_4: &str = "
ALTER TABLE folder ADD COLUMN last_snapshot INTEGER NOT NULL DEFAULT 0;
ALTER TABLE snapshot RENAME TO snapshot_of_all_folders;
CREATE TABLE snapshot (
  folder INTEGER NOT NULL REFERENCES folder(id), id INTEGER NOT NULL, seq INTEGER NOT NULL,
  time_ns INTEGER NOT NULL, host BLOB NOT NULL, path BLOB NOT NULL, tags BLOB NOT NULL, PRIMARY KEY (folder, id)
) STRICT, WITHOUT ROWID;
INSERT INTO snapshot (folder, id, seq, time_ns, host, path, tags)
  SELECT folder, id, seq, time_ns, host, path, tags FROM snapshot_of_all_folders;
UPDATE folder SET last_snapshot = (SELECT coalesce(max(id), 0) FROM snapshot WHERE snapshot.folder = folder.id);
DROP TABLE snapshot_of_all_folders;
";

/// From version 4 to 5. A modification time is `mtime_high` times 2^64 more than `mtime_ns`.
pub(super) const SINCE_5: &str = "
ALTER TABLE attribute ADD COLUMN mtime_high INTEGER NOT NULL DEFAULT 0;
";

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

/// The tables of version 1.
pub(super) const CREATE: &str = "
CREATE TABLE device (
  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, token_hash BLOB NOT NULL UNIQUE, created_ns INTEGER NOT NULL
) STRICT;
CREATE TABLE join_token (
  hash BLOB PRIMARY KEY, created_ns INTEGER NOT NULL, expires_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE folder (
  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL, root INTEGER REFERENCES node(id),
  entries INTEGER NOT NULL, snapshots INTEGER NOT NULL, stored_bytes INTEGER NOT NULL, created_ns INTEGER NOT NULL
) STRICT;
CREATE TABLE node (
  id INTEGER PRIMARY KEY AUTOINCREMENT, folder INTEGER NOT NULL REFERENCES folder(id), file BLOB NOT NULL,
  UNIQUE (folder, file)
) STRICT;
CREATE TABLE attribute (
  node INTEGER NOT NULL REFERENCES node(id), seq INTEGER NOT NULL, folder INTEGER NOT NULL, kind INTEGER NOT NULL,
  mode INTEGER NOT NULL, uid INTEGER NOT NULL, gid INTEGER NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
  rdev INTEGER NOT NULL, layer INTEGER NOT NULL, content_seq INTEGER NOT NULL, rare BLOB NOT NULL,
  PRIMARY KEY (node, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX attribute_by_seq ON attribute (folder, seq);
CREATE TABLE entry (
  parent INTEGER NOT NULL REFERENCES node(id), name BLOB NOT NULL, from_seq INTEGER NOT NULL, to_seq INTEGER NOT NULL,
  folder INTEGER NOT NULL, child INTEGER NOT NULL REFERENCES node(id),
  PRIMARY KEY (parent, name, from_seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX entry_by_child ON entry (child, to_seq);
CREATE INDEX entry_by_from ON entry (folder, from_seq);
CREATE INDEX entry_by_to ON entry (folder, to_seq);
CREATE TABLE batch (
  folder INTEGER NOT NULL REFERENCES folder(id), seq INTEGER NOT NULL, device INTEGER NOT NULL REFERENCES device(id),
  counter INTEGER NOT NULL, base_seq INTEGER, root INTEGER NOT NULL REFERENCES node(id), created_ns INTEGER NOT NULL,
  host BLOB NOT NULL, path BLOB NOT NULL, snapshot INTEGER, stored_bytes INTEGER NOT NULL,
  PRIMARY KEY (folder, seq), UNIQUE (folder, device, counter)
) STRICT, WITHOUT ROWID;
CREATE TABLE snapshot (
  id INTEGER PRIMARY KEY AUTOINCREMENT, folder INTEGER NOT NULL REFERENCES folder(id), seq INTEGER NOT NULL,
  time_ns INTEGER NOT NULL, host BLOB NOT NULL, path BLOB NOT NULL, tags BLOB NOT NULL
) STRICT;
CREATE INDEX snapshot_by_folder ON snapshot (folder, id);
CREATE TABLE segment (id INTEGER PRIMARY KEY, len_bytes INTEGER NOT NULL) STRICT;
CREATE TABLE layer (
  id INTEGER PRIMARY KEY AUTOINCREMENT, node INTEGER NOT NULL REFERENCES node(id), last INTEGER NOT NULL,
  first INTEGER NOT NULL, base_len INTEGER NOT NULL, new_len INTEGER NOT NULL, extents INTEGER NOT NULL,
  resets INTEGER NOT NULL, barrier INTEGER NOT NULL, UNIQUE (node, last, first)
) STRICT;
CREATE TABLE layer_page (
  layer INTEGER NOT NULL REFERENCES layer(id), start INTEGER NOT NULL, extents BLOB NOT NULL, PRIMARY KEY (layer, start)
) STRICT;
CREATE TABLE layer_segment (
  layer INTEGER NOT NULL REFERENCES layer(id), segment INTEGER NOT NULL REFERENCES segment(id),
  PRIMARY KEY (layer, segment)
) STRICT, WITHOUT ROWID;
CREATE INDEX layer_segment_by_segment ON layer_segment (segment);
CREATE TABLE staged_part (
  id INTEGER PRIMARY KEY AUTOINCREMENT, folder INTEGER NOT NULL REFERENCES folder(id),
  device INTEGER NOT NULL REFERENCES device(id), counter INTEGER NOT NULL, part INTEGER NOT NULL,
  created_ns INTEGER NOT NULL, UNIQUE (folder, device, counter, part)
) STRICT;
CREATE INDEX staged_part_by_age ON staged_part (created_ns);
CREATE TABLE staged_record (
  part INTEGER NOT NULL REFERENCES staged_part(id) ON DELETE CASCADE, ordinal INTEGER NOT NULL, record BLOB NOT NULL,
  PRIMARY KEY (part, ordinal)
) STRICT;
CREATE TABLE staged_segment (
  part INTEGER NOT NULL REFERENCES staged_part(id) ON DELETE CASCADE,
  segment INTEGER NOT NULL REFERENCES segment(id), PRIMARY KEY (part, segment)
) STRICT, WITHOUT ROWID;
CREATE INDEX staged_segment_by_segment ON staged_segment (segment);
";

/// Kept sums (`crate::sums`), frames found damaged (`crate::damage`), and digests of staged parts,
/// without which parts are sent again.
pub(super) const CACHE: &str = "
CREATE TABLE IF NOT EXISTS sums (
  node INTEGER NOT NULL REFERENCES node(id), kind INTEGER NOT NULL, used_ns INTEGER NOT NULL, len_bytes INTEGER NOT NULL,
  PRIMARY KEY (node, kind)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sums_by_use ON sums (used_ns);
CREATE TABLE IF NOT EXISTS sum_chunk (
  node INTEGER NOT NULL, kind INTEGER NOT NULL, chunk INTEGER NOT NULL, sums BLOB NOT NULL,
  PRIMARY KEY (node, kind, chunk), FOREIGN KEY (node, kind) REFERENCES sums(node, kind) ON DELETE CASCADE
) STRICT;
CREATE TABLE IF NOT EXISTS staged_digest (
  part INTEGER PRIMARY KEY REFERENCES staged_part(id) ON DELETE CASCADE, digest BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS damage (
  segment INTEGER NOT NULL, place INTEGER NOT NULL, PRIMARY KEY (segment, place)
) STRICT, WITHOUT ROWID;
";

#[cfg(test)]
mod tests;
