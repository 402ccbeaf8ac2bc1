//! Writes together what the newest contents of files still need of frames that are mostly dead.
//!
//! A frame is read and decoded as a whole. Where a file is overwritten here and there again and
//! again, its newest contents lie in the frames of all its versions, a little of them in each, and
//! reading them costs several times their length (`docs/benchmarks.md`). *Defragmenting* a file
//! writes the pieces that are alive in its deadest frames into new frames of at most
//! [`SHORT_LEN_MAX`], each of which holds bytes of one place of the file, so that they die together
//! when that place is written again. The file's newest layer then gets one more row, from which it
//! is read in place of the others. All older versions stay as they were, and nothing is removed.
//!
//! Terms: reading contents *costs* the stored bytes of all frames that they refer to. They *need*
//! of each frame as large a part as is alive; the rest is *waste*. The *credit* of a file is the
//! stored bytes of the literals that came for it and have not paid for bytes that were written
//! again. Everything that defragmenting writes, frames and pages of extents, is paid for: so all
//! that is written for a file is at most twice what came for it, whatever its history. A file that
//! takes over the contents of one that goes takes over its credit.
//!
//! Each new layer raises a bound of the waste by its own stored bytes ([`note_layer`]), which costs
//! a row and no reading. A file whose bound passes [`WASTE_MAX_PERCENT`] of what it needs becomes
//! *due*: its frames are counted, the deadest are chosen until the waste is at most
//! [`WASTE_LEFT_PERCENT`], and their live pieces are written again. The next count follows only
//! after the difference of the two was written, whether or not this one helped.
//!
//! Order of durable steps: (1) new frames are appended and synced; (2) one catalog transaction
//! refers to them and pays. A crash before (2) leaves unreferenced bytes, as that of an upload
//! does. Batches may be applied in between: the new row is made for the newest version of then,
//! whose pieces in moved frames are found by their places in these frames.
//!
//! Memory: a count for each frame and a place for each piece that is moved, of contents of at most
//! `StoreLimits::defragmented_pieces_max` pieces (others are left alone), the pages of their row,
//! and one frame. Not here: bytes of older versions, and the room of frames that no version needs.

mod count;
mod moving;

use crate::catalog::{CatalogWrite, FragmentationRow, LayerRow, OPEN};
use crate::codec::len_u64;
use crate::compact::push_composed;
use crate::content::FrameCache;
use crate::damage::is_of_frame;
use crate::error::StoreError;
use crate::layer::{Literal, PageBuilder};
use crate::numbers::{LayerNumber, LayerRowNumber, NodeNumber, SegmentNumber};
use crate::resolve::{Piece, Resolver, layer_rows};
use crate::segments::{FRAME_HEADER_LEN, FrameRef};
use crate::store::{Store, folder_row};
use byteback_delta::Source;
use byteback_extents::{ByteRange, ExtentValue};
use std::collections::{BTreeSet, HashSet};

use count::FrameCount;
use moving::{Moved, Moving, place_of};

/// Length of the places of a file whose live bytes get a frame of their own, in bytes: the page of
/// most databases and file systems, so that a frame dies whole with the next write of its page.
pub(crate) const SHORT_LEN_MAX: u64 = 4096;

/// Waste from which on a file is due, in percent of what it needs.
const WASTE_MAX_PERCENT: u64 = 15;

/// Waste that is left, in percent of what the file needs.
const WASTE_LEFT_PERCENT: u64 = 10;

/// Waste that nobody notices, in bytes.
const WASTE_FREE: u64 = 16 * 1024;

/// Stored bytes from which on a file's first contents are noted. Of shorter files there are many,
/// most of which are never written again.
const NOTED_FROM_LEN: u64 = 64 * 1024;

/// Pieces between two questions whether to go on; also those of one read transaction.
const PIECES_AT_ONCE: u64 = 1024;

/// Versions for which the new row is made, one after the other, because newer ones came meanwhile.
const ATTEMPTS_MAX: u32 = 8;

/// Totals of a call of [`Store::defragment`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defragmented {
    /// Times that the frames of a file were counted.
    pub counts: u64,
    /// Times that a file got a row of new frames.
    pub rows: u64,
    /// Stored bytes that were read for that.
    pub read_bytes: u64,
    /// Stored bytes of the frames that were written for that.
    pub written_bytes: u64,
    /// Bytes of the rows' pages.
    pub page_bytes: u64,
}

/// Notes that `layer` was laid over contents of `len_before_bytes`, with `stored_bytes` of
/// literals.
pub(crate) fn note_layer(
    catalog: &dyn CatalogWrite,
    node: NodeNumber,
    len_before_bytes: u64,
    layer: &LayerRow,
    stored_bytes: u64,
) -> Result<(), StoreError> {
    let known = match layer.last {
        LayerNumber::FIRST => None,
        _ => catalog.fragmentation(node)?,
    };
    if known.is_none() && layer.resets && stored_bytes < NOTED_FROM_LEN {
        return Ok(());
    }
    let mut row = known.unwrap_or(FragmentationRow {
        needed_bytes: len_before_bytes,
        ..FragmentationRow::default()
    });
    if layer.resets {
        (row.needed_bytes, row.waste_bytes) = (stored_bytes, 0);
    } else {
        row.waste_bytes = row.waste_bytes.saturating_add(stored_bytes);
    }
    row.credit_bytes = row.credit_bytes.saturating_add(stored_bytes);
    row.is_due = is_worn(&row);
    catalog.put_fragmentation(node, &row)
}

/// Notes that `node` got the contents of `other`, of `len_bytes`.
pub(crate) fn note_shared(
    catalog: &dyn CatalogWrite,
    node: NodeNumber,
    other: NodeNumber,
    len_bytes: u64,
) -> Result<(), StoreError> {
    let (own, others) = (catalog.fragmentation(node)?, catalog.fragmentation(other)?);
    if own.is_none() && others.is_none() {
        return Ok(());
    }
    let others = others.unwrap_or(FragmentationRow {
        needed_bytes: len_bytes,
        ..FragmentationRow::default()
    });
    let row = FragmentationRow {
        credit_bytes: own.unwrap_or_default().credit_bytes,
        ..others
    };
    catalog.put_fragmentation(node, &row)
}

/// Gives `node` the credit of `other`, which is gone.
pub(crate) fn inherit_credit(
    catalog: &dyn CatalogWrite,
    node: NodeNumber,
    other: NodeNumber,
) -> Result<(), StoreError> {
    let Some(mut others) = catalog.fragmentation(other)? else {
        return Ok(());
    };
    let Some(mut own) = catalog.fragmentation(node)? else {
        return Ok(());
    };
    own.credit_bytes = own
        .credit_bytes
        .saturating_add(std::mem::take(&mut others.credit_bytes));
    catalog.put_fragmentation(other, &others)?;
    catalog.put_fragmentation(node, &own)
}

fn percent(of_bytes: u64, percent: u64) -> u64 {
    (of_bytes / 100).saturating_mul(percent)
}

fn is_worn(row: &FragmentationRow) -> bool {
    row.waste_bytes > percent(row.needed_bytes, WASTE_MAX_PERCENT).saturating_add(WASTE_FREE)
}

/// Stored bytes that reading a frame takes.
fn cost(frame: &FrameRef) -> u64 {
    FRAME_HEADER_LEN.saturating_add(u64::from(frame.stored_len))
}

impl Store {
    /// Defragments files that are due, as long as `is_wanted`. To be called after batches were
    /// applied. A call during another one does nothing: both would pay with the same credit.
    ///
    /// # Errors
    /// The catalog or the segments fail, or the disk is full. Other files are done all the same,
    /// unless the disk is full; what is left is done next time.
    pub fn defragment(&self, is_wanted: &dyn Fn() -> bool) -> Result<Defragmented, StoreError> {
        let mut totals = Defragmented::default();
        let Ok(_alone) = self.defragmenting.try_lock() else {
            return Ok(totals);
        };
        let mut first_error = None;
        let mut after = NodeNumber::START;
        while is_wanted() {
            let next = self.catalog().read()?.next_fragmented(after)?;
            let Some((node, folder)) = next else { break };
            match self.defragment_file(&folder, node, is_wanted, &mut totals) {
                Ok(Outcome::MoreToDo) => {}
                Ok(Outcome::Done) => after = node,
                Err(error @ StoreError::Full { .. }) => return Err(error),
                Err(error) => {
                    after = node;
                    if matches!(error, StoreError::CatalogDamaged(_)) {
                        // It would fail again with each batch, of whatever file.
                        self.settle(node, None, |row| row.is_due = false)?;
                    }
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(totals), Err)
    }

    fn defragment_file(
        &self,
        folder: &str,
        node: NodeNumber,
        is_wanted: &dyn Fn() -> bool,
        totals: &mut Defragmented,
    ) -> Result<Outcome, StoreError> {
        let Some(mut contents) = self.newest_contents(node)? else {
            // Nobody reads it as it is now. Its next layer tells whether it becomes due again.
            return self.settle(node, None, |row| row.is_due = false);
        };
        let noted = contents.noted;
        let mut count = FrameCount::default();
        match self.walk(&contents, is_wanted, |piece| count.add(piece))? {
            Walked::All => {}
            Walked::Part => return Ok(Outcome::Done),
            Walked::TooMany => {
                return self.settle(node, Some(&contents), |row| {
                    counted(row, &noted, noted.needed_bytes, left_over(&noted));
                });
            }
        }
        totals.counts += 1;
        let chosen = count.choose(&noted, self.parts.limits.defragmented_pieces_max);
        let moving = match chosen.frames.is_empty() {
            true => None,
            false => self.move_pieces(&contents, &count, &chosen.frames, is_wanted, totals)?,
        };
        let Some(mut moving) = moving.filter(|moving| !moving.moved.is_empty()) else {
            if !is_wanted() {
                return Ok(Outcome::Done);
            }
            let found = count.row();
            return self.settle(node, Some(&contents), |row| {
                counted(row, &noted, found.needed_bytes, left_over(&found));
            });
        };
        moving.writer.sync()?;
        for _ in 0..ATTEMPTS_MAX {
            let composed = self.compose(&contents, &moving.moved, is_wanted)?;
            let Some(composed) = composed.filter(|composed| composed.moved_pieces > 0) else {
                break;
            };
            let catalog = self.catalog().write()?;
            let newest = catalog.attributes(node, OPEN)?;
            let newest = newest.map_or(LayerNumber::NONE, |row| row.layer);
            let rows = layer_rows(&*catalog, node, newest, LayerNumber::NONE)?;
            if rows.iter().all(|row| row.last != contents.layer) {
                drop(catalog);
                match self.newest_contents(node)? {
                    Some(newer) => contents = newer,
                    None => break,
                }
                continue;
            }
            for segment in moving.writer.segments() {
                catalog.add_segment(segment)?;
            }
            contents.put_row(&*catalog, node, &composed)?;
            let page_bytes = composed.pages_len();
            let mut row = catalog.fragmentation(node)?.unwrap_or_default();
            let paid = moving.written_bytes.saturating_add(page_bytes);
            // The credit may have gone to a file that took over these contents meanwhile.
            let Some(credit_left) = row.credit_bytes.checked_sub(paid) else {
                break;
            };
            row.credit_bytes = credit_left;
            let found = moving.row_after(&count);
            let waste_bytes = match chosen.is_cut_short {
                true => found.waste_bytes,
                false => left_over(&found),
            };
            counted(&mut row, &noted, found.needed_bytes, waste_bytes);
            catalog.put_fragmentation(node, &row)?;
            let mut stored = folder_row(&*catalog, folder)?;
            stored.stored_bytes = stored.stored_bytes.saturating_add(moving.written_bytes);
            catalog.update_folder(&stored)?;
            moving.is_kept = true;
            catalog.commit()?;
            totals.rows += 1;
            totals.written_bytes = totals.written_bytes.saturating_add(moving.written_bytes);
            totals.page_bytes = totals.page_bytes.saturating_add(page_bytes);
            return Ok(match chosen.is_cut_short && row.is_due {
                true => Outcome::MoreToDo,
                false => Outcome::Done,
            });
        }
        // The file has other contents now, or changes all the time. The frames are paid for.
        let written_bytes = moving.written_bytes;
        self.settle(node, None, |row| {
            row.credit_bytes = row.credit_bytes.saturating_sub(written_bytes);
        })
    }

    /// The newest contents of a file that is in the tree.
    fn newest_contents(&self, node: NodeNumber) -> Result<Option<Contents>, StoreError> {
        let catalog = self.catalog().read()?;
        let Some(row) = catalog.attributes(node, OPEN)? else {
            return Ok(None);
        };
        let is_there = !catalog.parents(node, OPEN.saturating_sub(1), 1)?.is_empty();
        if !is_there || row.layer == LayerNumber::NONE {
            return Ok(None);
        }
        let rows = layer_rows(&*catalog, node, row.layer, LayerNumber::NONE)?;
        let bottom = rows.last().filter(|bottom| bottom.resets).copied();
        let bottom =
            bottom.ok_or_else(|| StoreError::CatalogDamaged(format!("the layers of node {node} have no base")))?;
        Ok(Some(Contents {
            layer: row.layer,
            len_bytes: row.attributes.size,
            rows,
            bottom,
            noted: catalog.fragmentation(node)?.unwrap_or_default(),
        }))
    }

    /// Changes a file's row in a transaction of its own, unless the file has newer contents than
    /// those.
    fn settle(
        &self,
        node: NodeNumber,
        contents: Option<&Contents>,
        change: impl FnOnce(&mut FragmentationRow),
    ) -> Result<Outcome, StoreError> {
        let catalog = self.catalog().write()?;
        let newest = catalog.attributes(node, OPEN)?;
        let newest = newest.map_or(LayerNumber::NONE, |row| row.layer);
        if contents.is_some_and(|contents| contents.layer != newest) {
            return Ok(Outcome::Done);
        }
        let mut row = catalog.fragmentation(node)?.unwrap_or_default();
        change(&mut row);
        catalog.put_fragmentation(node, &row)?;
        catalog.commit()?;
        Ok(Outcome::Done)
    }

    /// Calls `each` with the pieces of contents, ascending.
    fn walk(
        &self,
        contents: &Contents,
        is_wanted: &dyn Fn() -> bool,
        mut each: impl FnMut(Piece),
    ) -> Result<Walked, StoreError> {
        let mut resolver = Resolver::to_bottom(contents.rows.clone(), ByteRange::new(0, contents.len_bytes));
        let mut left = self.parts.limits.defragmented_pieces_max;
        while left > 0 {
            if !is_wanted() {
                return Ok(Walked::Part);
            }
            let catalog = self.catalog().read()?;
            for _ in 0..PIECES_AT_ONCE.min(left) {
                match resolver.next_piece(&*catalog)? {
                    Some(piece) => each(piece),
                    None => return Ok(Walked::All),
                }
            }
            left = left.saturating_sub(PIECES_AT_ONCE);
        }
        Ok(Walked::TooMany)
    }

    /// Writes the live pieces of these frames into new ones, frame by frame: each is read once,
    /// wherever in the file its pieces are. `None`: it is not wanted any more.
    fn move_pieces(
        &self,
        contents: &Contents,
        count: &FrameCount,
        frames: &HashSet<FrameRef>,
        is_wanted: &dyn Fn() -> bool,
        totals: &mut Defragmented,
    ) -> Result<Option<Moving>, StoreError> {
        let mut pieces: Vec<(Literal, ByteRange)> = Vec::new();
        let walked = self.walk(contents, is_wanted, |(range, source)| {
            if let Source::Literal(literal) = source
                && frames.contains(&literal.frame)
            {
                pieces.push((literal, range));
            }
        })?;
        if walked != Walked::All {
            return Ok(None);
        }
        pieces.sort_unstable_by_key(|(literal, range)| (literal.frame, literal.skip, range.start()));
        let mut moving = Moving::new(&*self.parts.segments)?;
        let mut decoder = FrameCache::new()?;
        let mut damaged = BTreeSet::new();
        for of_frame in pieces.chunk_by(|(one, _), (next, _)| one.frame == next.frame) {
            let Some((Literal { frame, .. }, _)) = of_frame.first() else {
                continue;
            };
            if !is_wanted() {
                return Ok(None);
            }
            totals.read_bytes = totals.read_bytes.saturating_add(cost(frame));
            match decoder.decode_uncached(&*self.parts.segments, frame) {
                Ok(raw) => moving.frame(frame, count.live(frame), &raw, of_frame)?,
                // It stays where it is, and so can be healed.
                Err(error) if is_of_frame(&error) => damaged.extend([*frame]),
                Err(error) => return Err(error),
            }
        }
        // Damage that is not noted is found again.
        let _ = self.note_frames(&damaged);
        moving.moved.sort_unstable_by_key(|moved| (moved.frame, moved.skip));
        Ok(Some(moving))
    }

    /// The pages of contents, with the moved bytes at their new places.
    fn compose(
        &self,
        contents: &Contents,
        moved: &[Moved],
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Composed>, StoreError> {
        let mut composed = Composed::default();
        let base_len = contents.bottom.base_len;
        let walked = self.walk(contents, is_wanted, |(range, source)| {
            let Source::Literal(literal) = source else {
                return composed.put(base_len, range, source);
            };
            let mut at = range.start();
            while at < range.end() {
                let here = literal.advance(at - range.start());
                let (to, len_bytes) = place_of(moved, here, range.end() - at);
                composed.moved_pieces += u64::from(to.is_some());
                let Some(part) = ByteRange::from_offset_len(at, len_bytes) else {
                    break;
                };
                composed.put(base_len, part, Source::Literal(to.unwrap_or(here)));
                at = part.end();
            }
        })?;
        if walked != Walked::All {
            return Ok(None);
        }
        composed.pages.finish();
        Ok(Some(composed))
    }
}

/// Whether a file is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// There were more pieces to move than one row takes.
    MoreToDo,
}

/// How far a walk through contents came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walked {
    All,
    /// The caller wants no more.
    Part,
    TooMany,
}

/// Notes what was counted, beside what came since `noted`.
fn counted(row: &mut FragmentationRow, noted: &FragmentationRow, needed_bytes: u64, waste_bytes: u64) {
    let came_since = row.waste_bytes.saturating_sub(noted.waste_bytes);
    row.needed_bytes = needed_bytes;
    row.waste_bytes = waste_bytes.saturating_add(came_since);
    row.is_due = is_worn(row);
}

/// The waste to note of a file with which nothing more can be done now: it is counted again after
/// more came, and not with each layer.
fn left_over(row: &FragmentationRow) -> u64 {
    row.waste_bytes.min(percent(row.needed_bytes, WASTE_LEFT_PERCENT))
}

/// The contents of a file at its newest layer.
struct Contents {
    layer: LayerNumber,
    len_bytes: u64,
    /// The rows from which they are read, newest first.
    rows: Vec<LayerRow>,
    /// The last of the rows, which takes nothing from older ones.
    bottom: LayerRow,
    /// The file's fragmentation, as it was noted then.
    noted: FragmentationRow,
}

impl Contents {
    /// Gives these contents one row of these pages.
    fn put_row(&self, catalog: &dyn CatalogWrite, node: NodeNumber, composed: &Composed) -> Result<(), StoreError> {
        let segments: Vec<SegmentNumber> = composed.segments.iter().copied().collect();
        let pages = &composed.pages;
        let (first, last) = (self.bottom.first, self.layer);
        let longest = catalog.longest_layer(node, last, first)?;
        if let Some(row) = longest.filter(|row| row.first == first) {
            return catalog.replace_pages(row.id, pages.extents_total, &pages.pages, &segments);
        }
        let row = LayerRow {
            id: LayerRowNumber::UNASSIGNED,
            first,
            last,
            base_len: self.bottom.base_len,
            new_len: self.len_bytes,
            extents: pages.extents_total,
            resets: true,
            barrier: false,
            shared: None,
        };
        catalog.insert_layer(node, &row, &pages.pages, &segments).map(|_| ())
    }
}

/// The pages of a row in the making.
#[derive(Default)]
struct Composed {
    pages: PageBuilder,
    segments: BTreeSet<SegmentNumber>,
    moved_pieces: u64,
}

impl Composed {
    fn put(&mut self, base_len_bytes: u64, range: ByteRange, source: Source<Literal>) {
        if let Source::Literal(literal) = source {
            self.segments.insert(literal.frame.segment);
        }
        push_composed(&mut self.pages, base_len_bytes, range, source);
    }

    fn pages_len(&self) -> u64 {
        self.pages.pages.iter().map(|(_, page)| len_u64(page)).sum()
    }
}
