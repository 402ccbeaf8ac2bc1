//! Tables of the database whose rows lie together in packs.
//!
//! A row told as its difference from the row before takes some ten bytes. Stored by itself in a
//! B-tree, with offsets and in pages that are half empty, it takes ten times as much, and the log
//! has four rows for each file. A *pack* is a run of neighbouring rows in one value of redb's. A
//! page is the longest that it gets: to write one row has always meant to write a page.
//!
//! Invariants: rows ascend strictly within a pack; the key of a pack is at most that of its first
//! row, and greater than those of all rows of the pack before; no pack is empty. A pack ends in a
//! checksum, as all records do.
//!
//! [`PackedTable`] keeps one pack open, so that changes in the order of keys read and write each
//! pack once. Nobody has to change rows in that order, but in any other each one costs a pack.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::{Key, Range, ReadableTable, Table, TableDefinition, Value, WriteTransaction};

use crate::codec::{Malformed, Reader, seal};
use crate::error::{LogError, Result};

const VERSION: u8 = 1;

/// The longest pack, in bytes: with a key of 255 bytes for a name, and what redb notes of it, it
/// fills a page of 4,096 bytes.
const PACK_BYTES_MAX: usize = 3_800;
/// A pack from which rows were taken is joined with its neighbour below this length.
const PACK_BYTES_MIN: usize = PACK_BYTES_MAX / 4;
/// The most rows of the open pack: it grows with what is added, and is split when it is written.
const OPEN_ROWS_MAX: usize = 8_192;
/// The packs that a cache holds: some 30 KB each once they are decoded.
const CACHED_PACKS: usize = 16;
/// The bytes by which the first row of a pack is longer than one that follows another, about.
const FIRST_ROW_BYTES: usize = 64;
/// The length of a pack's checksum, in bytes.
const CHECK_BYTES: usize = 4;

/// A row of a packed table.
pub(crate) trait Row: Sized {
    /// The key in the types of redb; its order is that of the rows.
    type Key: Key + 'static;

    /// The name of a row in messages of damage.
    const WHAT: &'static str;

    /// The key.
    fn key(&self) -> RowKey<'_, Self>;

    /// Compares the row's key with `key`.
    fn cmp_key(&self, key: &RowKey<'_, Self>) -> Ordering;

    /// Appends the row, as its difference from the row `before` it in its pack.
    fn put(&self, before: Option<&Self>, out: &mut Vec<u8>);

    /// Reads a row that follows `before`.
    fn take(reader: &mut Reader<'_>, before: Option<&Self>) -> Result<Self, Malformed>;
}

/// The key of a row.
pub(crate) type RowKey<'k, R> = <<R as Row>::Key as Value>::SelfType<'k>;

/// The name and type of a packed table.
pub(crate) type Definition<R> = TableDefinition<'static, <R as Row>::Key, &'static [u8]>;

/// The pack of all `rows`, however long it gets.
pub(crate) fn encode<R: Row>(rows: &[R]) -> Vec<u8> {
    let mut out = vec![VERSION];
    let mut before = None;
    for row in rows {
        row.put(before, &mut out);
        before = Some(row);
    }
    seal(out)
}

/// All rows of a pack.
pub(crate) fn decode<R: Row>(pack: &[u8]) -> Result<Vec<R>, Malformed> {
    let mut reader = begin(pack)?;
    let mut rows: Vec<R> = Vec::new();
    while !reader.is_empty() {
        let row = next(&mut reader, rows.last())?;
        rows.push(row);
    }
    Ok(rows)
}

fn begin(pack: &[u8]) -> Result<Reader<'_>, Malformed> {
    let mut reader = Reader::sealed(pack)?;
    match reader.byte()? {
        VERSION => Ok(reader),
        _ => Err(Malformed),
    }
}

fn next<R: Row>(reader: &mut Reader<'_>, before: Option<&R>) -> Result<R, Malformed> {
    let row = R::take(reader, before)?;
    let ascends = before.is_none_or(|before| before.cmp_key(&row.key()) == Ordering::Less);
    if ascends { Ok(row) } else { Err(Malformed) }
}

fn damaged<R: Row>(_: Malformed) -> LogError {
    LogError::Damaged { what: R::WHAT }
}

fn bytes_of<R: Row>(key: &RowKey<'_, R>) -> Vec<u8> {
    R::Key::as_bytes(key).as_ref().to_vec()
}

/// The key of the pack that has, or would have, the row of `key`; `None` if that is before all
/// packs.
fn pack_of<R: Row>(table: &impl ReadableTable<R::Key, &'static [u8]>, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let last = table.range(..=R::Key::from_bytes(key))?.next_back().transpose()?;
    Ok(last.map(|(key, _)| bytes_of::<R>(&key.value())))
}

/// Packs that were read lately, decoded. A pack is recognised by all its bytes, so what a later
/// transaction changes is not found here, and nothing has to be forgotten.
#[derive(Debug)]
pub(crate) struct PackCache<R> {
    /// The one that was used last comes first.
    packs: Mutex<VecDeque<Arc<DecodedPack<R>>>>,
}

#[derive(Debug)]
struct DecodedPack<R> {
    bytes: Vec<u8>,
    rows: Vec<R>,
}

impl<R> Default for PackCache<R> {
    fn default() -> Self {
        Self {
            packs: Mutex::default(),
        }
    }
}

impl<R: Row + Clone> PackCache<R> {
    fn decoded(&self, pack: &[u8]) -> Result<Arc<DecodedPack<R>>> {
        let mut packs = self.packs.lock();
        // The checksum first: other packs differ there.
        let is_it = |cached: &Arc<DecodedPack<R>>| {
            cached.bytes.last_chunk::<CHECK_BYTES>() == pack.last_chunk() && cached.bytes == pack
        };
        let known = packs.iter().position(is_it).and_then(|at| packs.remove(at));
        let found = match known {
            Some(found) => found,
            None => Arc::new(DecodedPack {
                bytes: pack.to_vec(),
                rows: decode(pack).map_err(damaged::<R>)?,
            }),
        };
        packs.truncate(CACHED_PACKS - 1);
        packs.push_front(Arc::clone(&found));
        Ok(found)
    }

    /// The row of `key` in `table`.
    pub(crate) fn get(
        &self,
        table: &impl ReadableTable<R::Key, &'static [u8]>,
        key: &RowKey<'_, R>,
    ) -> Result<Option<R>> {
        let bytes = bytes_of::<R>(key);
        let Some((_, pack)) = table.range(..=R::Key::from_bytes(&bytes))?.next_back().transpose()? else {
            return Ok(None);
        };
        let rows = &self.decoded(pack.value())?.rows;
        let found = rows.binary_search_by(|row| row.cmp_key(key)).ok();
        Ok(found.and_then(|at| rows.get(at)).cloned())
    }

    /// The rows of `table` from `from` on, in order.
    pub(crate) fn rows_from<'t>(
        &self,
        table: &'t impl ReadableTable<R::Key, &'static [u8]>,
        from: &RowKey<'_, R>,
    ) -> Result<Rows<'t, R>> {
        let bytes = bytes_of::<R>(from);
        let first = pack_of::<R>(table, &bytes)?;
        let mut packs = table.range(R::Key::from_bytes(first.as_ref().unwrap_or(&bytes))..)?;
        let mut first = None;
        if let Some((_, pack)) = packs.next().transpose()? {
            let pack = self.decoded(pack.value())?;
            let start = pack.rows.partition_point(|row| row.cmp_key(from) == Ordering::Less);
            first = Some((pack, start));
        }
        Ok(Rows {
            first,
            packs,
            rows: Vec::new().into_iter(),
        })
    }
}

/// The rows of a table from a key on: [`PackCache::rows_from`].
pub(crate) struct Rows<'t, R: Row> {
    /// The rest of the first pack, from a row on. Most readers ask for no more than that.
    first: Option<(Arc<DecodedPack<R>>, usize)>,
    packs: Range<'t, R::Key, &'static [u8]>,
    rows: std::vec::IntoIter<R>,
}

impl<R: Row + Clone> Rows<'_, R> {
    fn read(&mut self) -> Result<Option<R>> {
        if let Some((pack, at)) = &mut self.first {
            if let Some(row) = pack.rows.get(*at) {
                *at += 1;
                return Ok(Some(row.clone()));
            }
            self.first = None;
        }
        loop {
            if let Some(row) = self.rows.next() {
                return Ok(Some(row));
            }
            let Some((_, pack)) = self.packs.next().transpose()? else {
                return Ok(None);
            };
            self.rows = decode(pack.value()).map_err(damaged::<R>)?.into_iter();
        }
    }
}

impl<R: Row + Clone> Iterator for Rows<'_, R> {
    type Item = Result<R>;

    fn next(&mut self) -> Option<Result<R>> {
        self.read().transpose()
    }
}

/// A packed table, open for changes. [`PackedTable::close`] must be called at the end: without it,
/// the transaction lacks what was changed last.
pub(crate) struct PackedTable<'t, R: Row> {
    table: Table<'t, R::Key, &'static [u8]>,
    open: Option<OpenPack<R>>,
    /// The number of rows added, less those removed.
    added: i64,
}

/// A pack in memory.
struct OpenPack<R> {
    /// Its key in the table; `None` if it is not there yet.
    key: Option<Vec<u8>>,
    /// Whether the table has no pack before it: then it takes all rows before it as well.
    is_first: bool,
    /// The key of the pack behind it.
    behind: Option<Vec<u8>>,
    rows: Vec<R>,
    is_changed: bool,
    /// All rows that were added followed those that were there: more will follow them, and packs
    /// before the last are to be full.
    is_appended: bool,
    has_lost_rows: bool,
}

impl<'t, R: Row> PackedTable<'t, R> {
    pub(crate) fn open(txn: &'t WriteTransaction, definition: Definition<R>) -> Result<Self> {
        Ok(Self {
            table: txn.open_table(definition)?,
            open: None,
            added: 0,
        })
    }

    /// The row of `key`.
    pub(crate) fn get(&mut self, key: &RowKey<'_, R>) -> Result<Option<&R>> {
        let pack = self.seek(key)?;
        Ok(pack.find(key).ok().and_then(|at| pack.rows.get(at)))
    }

    /// Adds `row`; returns the one that it replaces.
    pub(crate) fn insert(&mut self, row: R) -> Result<Option<R>> {
        let pack = self.seek(&row.key())?;
        pack.is_changed = true;
        let place = pack.find(&row.key());
        let replaced = match place {
            Ok(at) => pack.rows.get_mut(at).map(|there| std::mem::replace(there, row)),
            Err(at) => {
                pack.is_appended &= at == pack.rows.len();
                pack.rows.insert(at, row);
                None
            }
        };
        let is_long = pack.rows.len() >= OPEN_ROWS_MAX;
        self.added += i64::from(replaced.is_none());
        if is_long {
            self.write_open()?;
        }
        Ok(replaced)
    }

    /// Removes the row of `key`, and returns it.
    pub(crate) fn remove(&mut self, key: &RowKey<'_, R>) -> Result<Option<R>> {
        let pack = self.seek(key)?;
        let Ok(at) = pack.find(key) else { return Ok(None) };
        pack.is_changed = true;
        pack.has_lost_rows = true;
        let removed = pack.rows.remove(at);
        self.added -= 1;
        Ok(Some(removed))
    }

    /// Writes what was changed last. Returns the number of rows added, less those removed.
    pub(crate) fn close(mut self) -> Result<i64> {
        self.write_open()?;
        Ok(self.added)
    }

    /// Opens the pack that has, or is to have, the row of `key`.
    fn seek(&mut self, key: &RowKey<'_, R>) -> Result<&mut OpenPack<R>> {
        let key = bytes_of::<R>(key);
        let is_open = self.open.as_ref().is_some_and(|pack| pack.has(&key));
        if !is_open {
            self.write_open()?;
            self.open = None;
        }
        let pack = match self.open.take() {
            Some(pack) => pack,
            None => self.read_pack(&key)?,
        };
        Ok(self.open.insert(pack))
    }

    fn read_pack(&self, key: &[u8]) -> Result<OpenPack<R>> {
        let before = pack_of::<R>(&self.table, key)?;
        let is_first = before.is_none();
        let key = match before {
            Some(key) => Some(key),
            None => self.table.first()?.map(|(key, _)| bytes_of::<R>(&key.value())),
        };
        let mut pack = OpenPack {
            key,
            is_first,
            behind: None,
            rows: Vec::new(),
            is_changed: false,
            is_appended: true,
            has_lost_rows: false,
        };
        if let Some(key) = &pack.key {
            let mut packs = self.table.range(R::Key::from_bytes(key)..)?;
            if let Some(found) = packs.next().transpose()? {
                pack.rows = decode(found.1.value()).map_err(damaged::<R>)?;
            }
            let behind = packs.next().transpose()?;
            pack.behind = behind.map(|(key, _)| bytes_of::<R>(&key.value()));
        }
        Ok(pack)
    }

    /// Writes the open pack, as several if it became too long. It is not open afterwards.
    fn write_open(&mut self) -> Result<()> {
        let Some(mut pack) = self.open.take().filter(|pack| pack.is_changed) else {
            return Ok(());
        };
        let mut packs = packs_of(&pack.rows, pack.is_appended);
        if pack.has_lost_rows
            && let [(_, only)] = packs.as_slice()
            && only.len() < PACK_BYTES_MIN
            && let Some(behind) = pack.behind.take()
        {
            let taken = self.table.remove(R::Key::from_bytes(&behind))?;
            if let Some(taken) = taken {
                pack.rows.extend(decode::<R>(taken.value()).map_err(damaged::<R>)?);
            }
            packs = packs_of(&pack.rows, false);
        }
        if let Some(key) = &pack.key
            && (pack.is_first || packs.is_empty())
        {
            self.table.remove(R::Key::from_bytes(key))?;
        }
        for (nth, (first, bytes)) in packs.iter().enumerate() {
            let kept = pack.key.as_ref().filter(|_| nth == 0 && !pack.is_first);
            match (kept, pack.rows.get(*first)) {
                (Some(key), _) => self.table.insert(R::Key::from_bytes(key), bytes.as_slice())?,
                (None, Some(row)) => self.table.insert(row.key(), bytes.as_slice())?,
                (None, None) => None,
            };
        }
        Ok(())
    }
}

impl<R: Row> OpenPack<R> {
    /// Where the row of `key` is, or would be.
    fn find(&self, key: &RowKey<'_, R>) -> std::result::Result<usize, usize> {
        self.rows.binary_search_by(|row| row.cmp_key(key))
    }

    /// Whether the row of `key` belongs to this pack.
    fn has(&self, key: &[u8]) -> bool {
        let is_behind_start = self.is_first
            || self
                .key
                .as_ref()
                .is_none_or(|own| R::Key::compare(own, key) != Ordering::Greater);
        let is_before_end = self
            .behind
            .as_ref()
            .is_none_or(|behind| R::Key::compare(key, behind) == Ordering::Less);
        is_behind_start && is_before_end
    }
}

/// Divides `rows` into packs: each with the number of its first row. `is_appended`: all but the
/// last are full; otherwise all have about the same length.
fn packs_of<R: Row>(rows: &[R], is_appended: bool) -> Vec<(usize, Vec<u8>)> {
    let whole = encode(rows);
    if rows.is_empty() || whole.len() <= PACK_BYTES_MAX {
        return rows.first().map(|_| (0, whole)).into_iter().collect();
    }
    let even = whole.len() / whole.len().div_ceil(PACK_BYTES_MAX) + FIRST_ROW_BYTES;
    let len_max = if is_appended {
        PACK_BYTES_MAX
    } else {
        even.min(PACK_BYTES_MAX)
    } - CHECK_BYTES;
    let mut packs = Vec::new();
    let (mut first, mut pack) = (0, vec![VERSION]);
    for (at, row) in rows.iter().enumerate() {
        let len = pack.len();
        row.put(rows.get(first..at).and_then(<[R]>::last), &mut pack);
        if pack.len() > len_max && at > first {
            pack.truncate(len);
            packs.push((first, seal(std::mem::replace(&mut pack, vec![VERSION]))));
            first = at;
            row.put(None, &mut pack);
        }
    }
    packs.push((first, seal(pack)));
    packs
}

#[cfg(test)]
mod tests;
