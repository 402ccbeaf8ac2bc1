//! Commits what is known: each file's sums and stamp, and all flags, in one transaction.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use byteback_extents::{ByteRange, ExtentSet};
use redb::{ReadableTable, WriteTransaction};

use super::rows::{self, Record, Seen};
use super::{Cell, FILES, FLAGGED, Flagged, META, META_POSITION, SUMS, Stamp, WrittenSums};
use crate::error::{self, ChecksumError, db};

/// The flags and the scan position that are to be written.
struct Told {
    flagged: BTreeMap<u64, Flagged>,
    position: Option<(u64, u64)>,
}

/// The part of a commit that belongs to one file.
struct Part {
    file: u64,
    cell: Cell,
    version: u64,
    void: ExtentSet,
    /// Chunks and their rows; `None` removes the row.
    rows: Vec<(u64, Option<Vec<u8>>)>,
    record: Vec<u8>,
    is_stamped: bool,
}

impl WrittenSums {
    /// Makes what is known durable. `look` returns a file's stamp, found by its names and not
    /// through this object; `None` if it cannot be found, or if the file was changed so recently
    /// that its times prove nothing: it is asked again next time. `look` may wait for changes that
    /// are under way.
    ///
    /// # Errors
    /// The disk or the database fails. Nothing in memory is lost then.
    pub fn commit(&self, look: &dyn Fn(u64) -> Option<Stamp>) -> std::result::Result<(), ChecksumError> {
        let _one = self.committing.lock();
        let mut cells: Vec<(u64, Cell)> = self
            .files
            .lock()
            .iter()
            .map(|(file, cell)| (*file, Arc::clone(cell)))
            .collect();
        // In the order of the tables, where neighbours share pages.
        cells.sort_unstable_by_key(|(file, _)| *file);
        let mut parts = Vec::new();
        for (file, cell) in cells {
            parts.extend(self.part(file, cell, look));
        }
        let (gone, flags) = {
            let mut flags = self.flags.lock();
            let is_dirty = std::mem::take(&mut flags.is_dirty);
            let reported = is_dirty.then(|| Told {
                flagged: flags.by_file.clone(),
                position: flags.position,
            });
            (std::mem::take(&mut flags.gone), reported)
        };
        let committed = match parts.is_empty() && gone.is_empty() && flags.is_none() {
            true => Ok(()),
            false => self.write(&parts, &gone, flags.as_ref()),
        };
        if committed.is_err() {
            let mut now = self.flags.lock();
            now.is_dirty |= flags.is_some();
            now.gone.extend(gone);
        }
        for part in parts {
            part.done(committed.is_ok());
        }
        self.tidy();
        committed
    }

    /// The part to be written for a file, if anything changed.
    fn part(&self, file: u64, cell: Cell, look: &dyn Fn(u64) -> Option<Stamp>) -> Option<Part> {
        let before = {
            let known = cell.lock();
            (!known.is_settled && known.is_loaded).then_some(known.sums.version)?
        };
        let seen = look(file).map(|stamp| Seen::of(&stamp, self.boot));
        let mut known = cell.lock();
        let sums = &mut known.sums;
        let stamp = seen.filter(|_| sums.version == before);
        let dirty: Vec<u64> = sums
            .chunks
            .iter()
            .filter(|(_, chunk)| chunk.is_dirty)
            .map(|(at, _)| *at)
            .collect();
        let mut rows = Vec::new();
        for at in dirty {
            let chunk = sums.complete(at, &|chunk| self.row(file, chunk));
            let (is_zero, is_unknown) = (chunk.is_zero(), chunk.is_unknown());
            let row = (!is_zero && !is_unknown).then(|| rows::encode_chunk(file, at, chunk));
            if let Some(place) = ByteRange::from_offset_len(at, 1) {
                match is_zero {
                    true => sums.zeros.insert(place),
                    false => sums.zeros.remove(place),
                }
            }
            rows.push((at, row));
        }
        sums.leaving = std::mem::take(&mut sums.void);
        let zeros = sums.zeros.clone();
        let record = Record { stamp, zeros };
        Some(Part {
            file,
            version: sums.version,
            void: sums.leaving.clone(),
            rows,
            record: record.encode(file),
            is_stamped: stamp.is_some(),
            cell: Arc::clone(&cell),
        })
    }

    fn write(&self, parts: &[Part], gone: &HashSet<u64>, reported: Option<&Told>) -> error::Result<()> {
        let txn = self.database.begin_write().map_err(db)?;
        {
            let mut files = txn.open_table(FILES).map_err(db)?;
            let mut sums = txn.open_table(SUMS).map_err(db)?;
            for part in parts {
                for void in part.void.iter() {
                    let range = (part.file, void.start())..(part.file, void.end());
                    // A removal writes the pages of the range anew, also where it has no row.
                    let has_rows = sums.range(range.clone()).map_err(db)?.next().is_some();
                    if has_rows {
                        sums.retain_in(range, |_, _| false).map_err(db)?;
                    }
                }
                for (at, row) in &part.rows {
                    match row {
                        Some(row) => drop(sums.insert((part.file, *at), row.as_slice()).map_err(db)?),
                        None => drop(sums.remove((part.file, *at)).map_err(db)?),
                    }
                }
                files.insert(part.file, part.record.as_slice()).map_err(db)?;
            }
            for file in gone {
                files.remove(*file).map_err(db)?;
                sums.retain_in((*file, 0)..=(*file, u64::MAX), |_, _| false)
                    .map_err(db)?;
            }
        }
        if let Some(reported) = reported {
            write_flags(&txn, &reported.flagged, reported.position)?;
        }
        txn.commit().map_err(db)
    }

    /// Drops files from memory that are settled.
    fn tidy(&self) {
        let mut chunks = 0;
        self.files.lock().retain(|_, cell| {
            // Another holder raises the count, and a new one needs the table's lock, held here.
            if Arc::strong_count(cell) > 1 {
                return true;
            }
            let known = cell.lock();
            chunks += known.sums.chunks.len();
            let is_needed = !known.is_settled;
            if !is_needed {
                chunks -= known.sums.chunks.len();
            }
            is_needed
        });
        self.chunks.store(chunks, Ordering::Relaxed);
    }
}

fn write_flags(
    txn: &WriteTransaction,
    flagged: &BTreeMap<u64, Flagged>,
    position: Option<(u64, u64)>,
) -> error::Result<()> {
    let mut table = txn.open_table(FLAGGED).map_err(db)?;
    table.retain(|file, _| flagged.contains_key(&file)).map_err(db)?;
    for (file, flagged) in flagged {
        let row = rows::encode_flagged(*file, flagged);
        table.insert(*file, row.as_slice()).map_err(db)?;
    }
    if let Some((file, offset)) = position {
        let both = (u128::from(file) << 64 | u128::from(offset)).to_le_bytes();
        let mut meta = txn.open_table(META).map_err(db)?;
        meta.insert(META_POSITION, &both[..]).map_err(db)?;
    }
    Ok(())
}

impl Part {
    /// Updates the file's state after the transaction was committed or failed.
    fn done(self, is_committed: bool) {
        let mut known = self.cell.lock();
        let sums = &mut known.sums;
        let leaving = std::mem::take(&mut sums.leaving);
        if !is_committed {
            sums.void.union_with(&leaving);
            return;
        }
        for (at, _) in &self.rows {
            if let Some(chunk) = sums.chunks.get_mut(at)
                && chunk.version <= self.version
            {
                chunk.is_dirty = false;
            }
        }
        if sums.version == self.version {
            known.is_settled = self.is_stamped;
            if self.is_stamped {
                known.times_are_durable = false;
            }
        }
        // Chunks that are in the database need not stay in memory.
        known.sums.chunks.retain(|_, chunk| chunk.is_dirty);
    }
}
