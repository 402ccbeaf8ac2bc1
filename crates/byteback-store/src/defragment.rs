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
//! Terms: the *waste* of contents is the stored bytes that reading them takes beyond their length.
//! The *credit* of a file is the stored bytes of the literals that ever came for it, less the bytes
//! that were written again. Bytes are written again only against credit: so all that is written for
//! a file is at most twice what came for it, whatever its history.
//!
//! Each new layer raises a bound of the waste by its own stored bytes ([`note_layer`]), which costs
//! a row and no reading. A file whose bound passes [`WASTE_MAX_PERCENT`] of its length becomes
//! *due*: its frames are counted, the deadest are chosen until the waste is at most
//! [`WASTE_LEFT_PERCENT`], and their live pieces are written again. The next count follows only
//! after the difference of the two was written, so that counting costs O(1) for each byte that
//! came.
//!
//! Order of durable steps: (1) new frames are appended and synced; (2) one catalog transaction
//! refers to them and pays. A crash before (2) leaves unreferenced bytes, as that of an upload does.
//! Batches that are applied in between change nothing that (2) says: it describes a version, and
//! versions do not change. If newer versions are not read by way of that one, the work is dropped,
//! and paid for all the same.
//!
//! Memory: a count for each of [`FRAMES_MAX`] frames, a place for each of [`PIECES_MAX`] pieces, one
//! frame. Files with more keep what is beyond. Not here: bytes of older versions, and the room of
//! frames that no version needs.

use crate::catalog::{CatalogWrite, FragmentationRow, LayerRow, OPEN};
use crate::codec::{len_u64, usize_u64};
use crate::compact::push_composed;
use crate::content::FrameCache;
use crate::damage::is_of_frame;
use crate::error::StoreError;
use crate::layer::{Literal, PageBuilder};
use crate::numbers::{LayerNumber, LayerRowNumber, NodeNumber, SegmentNumber};
use crate::resolve::{Piece, Resolver, layer_rows};
use crate::segments::{FRAME_HEADER_LEN, FrameRef, SegmentWriter};
use crate::store::{Store, folder_row};
use byteback_delta::{Codec, FrameEncoder, Source};
use byteback_extents::{ByteRange, ExtentValue};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Length of the places of a file whose live bytes get a frame of their own, in bytes: the page of
/// most databases and file systems, so that a frame dies whole with the next write of its page.
pub(crate) const SHORT_LEN_MAX: u64 = 4096;

/// Waste from which on a file is examined, in percent of its length.
const WASTE_MAX_PERCENT: i64 = 15;

/// Waste that is left, in percent of the file's length.
const WASTE_LEFT_PERCENT: i64 = 10;

/// Waste that nobody notices, in bytes.
const WASTE_FREE: i64 = 16 * 1024;

/// Stored bytes from which on a file's first contents are noted. Of shorter files there are many,
/// most of which are never written again.
const NOTED_FROM_LEN: u64 = 64 * 1024;

/// Most frames that are counted one by one.
const FRAMES_MAX: usize = 1 << 20;

/// Most pieces that are written again at once.
const PIECES_MAX: usize = 1 << 19;

/// Most pieces of contents that are examined: copies of copies can make any number, and the new row
/// is made in memory.
const EXAMINED_MAX: u64 = 1 << 23;

/// Pieces between two questions whether to go on; also those of one read transaction.
const PIECES_AT_ONCE: u64 = 1024;

/// Totals of a call of [`Store::defragment`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defragmented {
    /// Files whose frames were counted.
    pub examined_files: u64,
    /// Files that are read from new frames now.
    pub files: u64,
    /// Stored bytes that were read for that.
    pub read_bytes: u64,
    /// Stored bytes that were written again.
    pub written_bytes: u64,
}

/// Notes that `layer` was laid over contents of `len_before_bytes`, with `stored_bytes` of literals.
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
    let mut row = known.unwrap_or_default();
    let stored = signed(stored_bytes);
    row.waste_bytes = match layer.resets {
        true => stored.saturating_sub(signed(layer.new_len)),
        false => {
            let grown = signed(layer.new_len).saturating_sub(signed(len_before_bytes));
            row.waste_bytes.saturating_add(stored).saturating_sub(grown)
        }
    };
    row.credit_bytes = row.credit_bytes.saturating_add(stored_bytes);
    row.is_due = is_worn(row.waste_bytes, layer.new_len);
    catalog.put_fragmentation(node, &row)
}

fn signed(len_bytes: u64) -> i64 {
    i64::try_from(len_bytes).unwrap_or(i64::MAX)
}

fn percent(of_bytes: u64, percent: i64) -> i64 {
    (signed(of_bytes) / 100).saturating_mul(percent)
}

fn is_worn(waste_bytes: i64, len_bytes: u64) -> bool {
    waste_bytes > percent(len_bytes, WASTE_MAX_PERCENT).saturating_add(WASTE_FREE)
}

/// Stored bytes that reading a frame takes.
fn cost(frame: &FrameRef) -> u64 {
    FRAME_HEADER_LEN.saturating_add(u64::from(frame.stored_len))
}

impl Store {
    /// Defragments files that are due, as long as `is_wanted`. To be called after batches were
    /// applied; one call at a time is enough, and more do no harm.
    ///
    /// # Errors
    /// The catalog or the segments fail, or the disk is full; what is left is done next time.
    pub fn defragment(&self, is_wanted: &dyn Fn() -> bool) -> Result<Defragmented, StoreError> {
        let mut totals = Defragmented::default();
        let mut after = NodeNumber::START;
        while is_wanted() {
            let next = self.catalog().read()?.next_fragmented(after)?;
            let Some((node, folder)) = next else { break };
            after = node;
            self.defragment_file(&folder, node, is_wanted, &mut totals)?;
        }
        Ok(totals)
    }

    fn defragment_file(
        &self,
        folder: &str,
        node: NodeNumber,
        is_wanted: &dyn Fn() -> bool,
        totals: &mut Defragmented,
    ) -> Result<(), StoreError> {
        let Some(contents) = self.newest_contents(node)? else {
            // Nobody reads it as it is now. Its next layer tells whether it becomes due again.
            return self.settle(node, None, |row| row.is_due = false);
        };
        let mut count = FrameCount::default();
        match self.walk(&contents, is_wanted, |piece| count.add(piece))? {
            Walked::All => {}
            Walked::Part => return Ok(()),
            Walked::TooMany => return self.settle(node, Some(&contents), |row| row.is_due = false),
        }
        totals.examined_files += 1;
        let chosen = count.choose(contents.len_bytes, contents.noted.credit_bytes);
        if chosen.frames.is_empty() {
            let left_bytes = count.waste_bytes(contents.len_bytes);
            return self.settle(node, Some(&contents), |row| contents.counted(row, left_bytes));
        }
        let Some(mut moving) = self.move_pieces(&contents, &chosen.frames, is_wanted, totals)? else {
            return Ok(());
        };
        let Some((pages, segments)) = self.compose(&contents, &moving.moved, is_wanted)? else {
            return Ok(());
        };
        moving.writer.sync()?;

        let written_bytes = moving.written_bytes;
        let catalog = self.catalog().write()?;
        let mut row = catalog.fragmentation(node)?.unwrap_or_default();
        row.credit_bytes = row.credit_bytes.saturating_sub(written_bytes);
        let newest = catalog
            .attributes(node, OPEN)?
            .map_or(LayerNumber::NONE, |row| row.layer);
        let rows = layer_rows(&*catalog, node, newest, LayerNumber::NONE)?;
        let is_passed = rows.iter().any(|row| row.last == contents.layer);
        if is_passed {
            for segment in moving.writer.segments() {
                catalog.add_segment(segment)?;
            }
            contents.put_row(&*catalog, node, &pages, &segments)?;
            let left_bytes = count.waste_bytes(contents.len_bytes).saturating_sub(moving.saved_bytes);
            contents.counted(&mut row, left_bytes);
            row.is_due |= chosen.is_cut_short;
            totals.files += 1;
            moving.is_kept = true;
        }
        catalog.put_fragmentation(node, &row)?;
        let mut counted = folder_row(&*catalog, folder)?;
        counted.stored_bytes = counted.stored_bytes.saturating_add(written_bytes);
        catalog.update_folder(&counted)?;
        catalog.commit()?;
        totals.written_bytes = totals.written_bytes.saturating_add(written_bytes);
        Ok(())
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
    ) -> Result<(), StoreError> {
        let catalog = self.catalog().write()?;
        let newest = catalog
            .attributes(node, OPEN)?
            .map_or(LayerNumber::NONE, |row| row.layer);
        if contents.is_some_and(|contents| contents.layer != newest) {
            return Ok(());
        }
        let mut row = catalog.fragmentation(node)?.unwrap_or_default();
        change(&mut row);
        catalog.put_fragmentation(node, &row)?;
        catalog.commit()
    }

    /// Calls `each` with the pieces of contents, ascending.
    fn walk(
        &self,
        contents: &Contents,
        is_wanted: &dyn Fn() -> bool,
        mut each: impl FnMut(Piece),
    ) -> Result<Walked, StoreError> {
        let mut resolver = Resolver::to_bottom(contents.rows.clone(), ByteRange::new(0, contents.len_bytes));
        for _ in 0..EXAMINED_MAX / PIECES_AT_ONCE {
            if !is_wanted() {
                return Ok(Walked::Part);
            }
            let catalog = self.catalog().read()?;
            for _ in 0..PIECES_AT_ONCE {
                match resolver.next_piece(&*catalog)? {
                    Some(piece) => each(piece),
                    None => return Ok(Walked::All),
                }
            }
        }
        Ok(Walked::TooMany)
    }

    /// Writes the live pieces of these frames into new ones, frame by frame: each is read once,
    /// wherever in the file its pieces are. `None`: it is not wanted any more.
    fn move_pieces(
        &self,
        contents: &Contents,
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
        let mut moving = Moving {
            writer: self.parts.segments.writer(),
            encoder: FrameEncoder::new().map_err(|e| StoreError::io("set up the compressor", e))?,
            stored: Vec::new(),
            moved: Vec::new(),
            written_bytes: 0,
            saved_bytes: 0,
            is_kept: false,
        };
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
                Ok(raw) => moving.frame(frame, &raw, of_frame)?,
                // It stays where it is, and so can be healed.
                Err(error) if is_of_frame(&error) => damaged.extend([*frame]),
                Err(error) => return Err(error),
            }
        }
        // Damage that is not noted is found again.
        let _ = self.note_frames(&damaged);
        moving.moved.sort_unstable_by_key(|(range, _)| range.start());
        Ok(Some(moving))
    }

    /// The pages of contents whose pieces were moved, and the segments that these refer to.
    fn compose(
        &self,
        contents: &Contents,
        moved: &[(ByteRange, Literal)],
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<(PageBuilder, Vec<SegmentNumber>)>, StoreError> {
        let mut pages = PageBuilder::default();
        let mut segments = BTreeSet::new();
        let mut put = |range, source: Source<Literal>| {
            if let Source::Literal(literal) = source {
                segments.insert(literal.frame.segment);
            }
            push_composed(&mut pages, contents.bottom.base_len, range, source);
        };
        let mut moved = moved.iter().peekable();
        let mut is_in_step = true;
        let walked = self.walk(contents, is_wanted, |(range, source)| {
            let mut at = range.start();
            while let Some((part, literal)) = moved.next_if(|(part, _)| part.start() == at && at < range.end()) {
                put(*part, Source::Literal(*literal));
                at = part.end();
            }
            match at {
                _ if at == range.start() => put(range, source),
                _ => is_in_step &= at == range.end(),
            }
        })?;
        if walked != Walked::All {
            return Ok(None);
        }
        if !is_in_step || moved.next().is_some() {
            return Err(StoreError::CatalogDamaged(
                "contents changed while they were written together".to_owned(),
            ));
        }
        pages.finish();
        Ok(Some((pages, segments.into_iter().collect())))
    }
}

/// How far a walk through contents came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walked {
    All,
    /// It is not wanted any more.
    Part,
    TooMany,
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
    /// Notes that these contents have `left_bytes` of waste.
    fn counted(&self, row: &mut FragmentationRow, left_bytes: i64) {
        // Without the credit to do more, the file would be counted again with each layer.
        let left_bytes = left_bytes.min(percent(self.len_bytes, WASTE_LEFT_PERCENT));
        let came_since = row.waste_bytes.saturating_sub(self.noted.waste_bytes);
        row.waste_bytes = left_bytes.saturating_add(came_since);
        row.is_due = is_worn(row.waste_bytes, self.len_bytes);
    }

    /// Gives these contents one row of these pages.
    fn put_row(
        &self,
        catalog: &dyn CatalogWrite,
        node: NodeNumber,
        pages: &PageBuilder,
        segments: &[SegmentNumber],
    ) -> Result<(), StoreError> {
        let (first, last) = (self.bottom.first, self.layer);
        let longest = catalog.longest_layer(node, last, first)?;
        if let Some(row) = longest.filter(|row| row.first == first) {
            return catalog.replace_pages(row.id, pages.extents_total, &pages.pages, segments);
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
        catalog.insert_layer(node, &row, &pages.pages, segments).map(|_| ())
    }
}

/// Pieces of one frame that contents need.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    bytes: u64,
    /// New frames that they take, at most.
    frames: u64,
}

impl Live {
    /// Stored bytes that they take in new frames, at most.
    fn cost(self) -> u64 {
        self.bytes.saturating_add(self.frames.saturating_mul(FRAME_HEADER_LEN))
    }
}

/// The frames that contents need.
#[derive(Debug, Default)]
struct FrameCount {
    frames: HashMap<FrameRef, Live>,
    /// Stored bytes of all of them.
    cost_bytes: u64,
    previous: Option<FrameRef>,
}

/// Frames whose pieces are to be written again.
struct Chosen {
    frames: HashSet<FrameRef>,
    /// There are more.
    is_cut_short: bool,
}

impl FrameCount {
    fn add(&mut self, (range, source): Piece) {
        let Source::Literal(literal) = source else { return };
        let frame = literal.frame;
        let is_full = self.frames.len() >= FRAMES_MAX;
        match self.frames.get_mut(&frame) {
            Some(live) => {
                live.bytes = live.bytes.saturating_add(range.len_bytes());
                live.frames = live.frames.saturating_add(parts(range));
            }
            None if !is_full => {
                let live = Live {
                    bytes: range.len_bytes(),
                    frames: parts(range),
                };
                self.frames.insert(frame, live);
                self.cost_bytes = self.cost_bytes.saturating_add(cost(&frame));
            }
            // It stays. Counted twice, at worst, if its pieces are apart.
            None if self.previous != Some(frame) => self.cost_bytes = self.cost_bytes.saturating_add(cost(&frame)),
            None => {}
        }
        self.previous = Some(frame);
    }

    fn waste_bytes(&self, len_bytes: u64) -> i64 {
        signed(self.cost_bytes).saturating_sub(signed(len_bytes))
    }

    /// The deadest frames: as many as it takes to come down to the waste that may stay, and as the
    /// credit pays for.
    fn choose(&self, len_bytes: u64, credit_bytes: u64) -> Chosen {
        let mut chosen = Chosen {
            frames: HashSet::new(),
            is_cut_short: false,
        };
        let mut waste = self.waste_bytes(len_bytes);
        if !is_worn(waste, len_bytes) {
            return chosen;
        }
        let mut frames: Vec<(&FrameRef, Live)> = self.frames.iter().map(|(frame, live)| (frame, *live)).collect();
        frames.retain(|(frame, live)| live.cost() < cost(frame));
        // Live bytes in a thousand stored ones; a frame has at most 256 KiB.
        frames.sort_unstable_by_key(|(frame, live)| (live.bytes.saturating_mul(1000) / cost(frame), **frame));
        let mut credit = credit_bytes;
        let mut room = usize_u64(PIECES_MAX);
        for (frame, live) in frames {
            if waste <= percent(len_bytes, WASTE_LEFT_PERCENT) {
                break;
            }
            let Some(left) = credit.checked_sub(live.cost()) else {
                break;
            };
            let Some(room_left) = room.checked_sub(live.frames) else {
                chosen.is_cut_short = true;
                break;
            };
            (credit, room) = (left, room_left);
            waste = waste.saturating_sub(signed(cost(frame).saturating_sub(live.cost())));
            chosen.frames.insert(*frame);
        }
        chosen
    }
}

/// Number of parts in which [`cut`] returns a piece, at most.
fn parts(range: ByteRange) -> u64 {
    (range.len_bytes() / SHORT_LEN_MAX).saturating_add(2)
}

/// The places of a file in which a piece lies, each with the piece's bytes in it. A short piece is
/// not cut: it was written at once, and will be again.
fn cut(range: ByteRange) -> impl Iterator<Item = ByteRange> {
    let is_short = range.len_bytes() <= SHORT_LEN_MAX;
    let mut at = range.start();
    std::iter::from_fn(move || {
        let place_end = (at / SHORT_LEN_MAX).saturating_add(1).saturating_mul(SHORT_LEN_MAX);
        let end = if is_short {
            range.end()
        } else {
            place_end.min(range.end())
        };
        let part = ByteRange::new(at, end)?;
        at = end;
        Some(part)
    })
}

/// Frames in the making.
struct Moving {
    writer: Box<dyn SegmentWriter>,
    encoder: FrameEncoder,
    stored: Vec<u8>,
    /// Ranges of the file and their new places.
    moved: Vec<(ByteRange, Literal)>,
    written_bytes: u64,
    /// Stored bytes that reading the contents takes less than before.
    saved_bytes: i64,
    /// Whether the catalog refers, or may refer, to the frames.
    is_kept: bool,
}

impl Drop for Moving {
    fn drop(&mut self) {
        if !self.is_kept {
            self.writer.discard();
        }
    }
}

impl Moving {
    /// Writes the pieces of one frame again.
    fn frame(&mut self, frame: &FrameRef, raw: &[u8], pieces: &[(Literal, ByteRange)]) -> Result<(), StoreError> {
        let before = self.written_bytes;
        let mut together: Vec<u8> = Vec::new();
        let mut waiting: Vec<(ByteRange, u32)> = Vec::new();
        for (literal, range) in pieces {
            for part in cut(*range) {
                let Literal { skip, .. } = literal.advance(part.start() - range.start());
                let start = usize::try_from(skip).unwrap_or(usize::MAX);
                let len = usize::try_from(part.len_bytes()).unwrap_or(usize::MAX);
                let bytes = raw
                    .get(start..start.saturating_add(len))
                    .ok_or_else(|| StoreError::CatalogDamaged("an extent reaches past its frame".to_owned()))?;
                let is_near = waiting.first().is_some_and(|(first, _)| {
                    first.start() / SHORT_LEN_MAX == part.start() / SHORT_LEN_MAX
                        && len_u64(&together).saturating_add(part.len_bytes()) <= SHORT_LEN_MAX
                });
                if !is_near {
                    self.flush(&mut together, &mut waiting)?;
                }
                waiting.push((part, u32::try_from(together.len()).unwrap_or(u32::MAX)));
                together.extend_from_slice(bytes);
            }
        }
        self.flush(&mut together, &mut waiting)?;
        let written = self.written_bytes.saturating_sub(before);
        let saved = signed(cost(frame)).saturating_sub(signed(written));
        self.saved_bytes = self.saved_bytes.saturating_add(saved);
        Ok(())
    }

    fn flush(&mut self, raw: &mut Vec<u8>, waiting: &mut Vec<(ByteRange, u32)>) -> Result<(), StoreError> {
        if raw.is_empty() {
            return Ok(());
        }
        let codec = self.encoder.encode(raw, &mut self.stored);
        let stored: &[u8] = if codec == Codec::Raw { raw } else { &self.stored };
        let raw_len = u32::try_from(raw.len()).unwrap_or(u32::MAX);
        let frame = self.writer.append(codec, raw_len, stored)?;
        self.written_bytes = self.written_bytes.saturating_add(cost(&frame));
        raw.clear();
        for (range, skip) in waiting.drain(..) {
            self.moved.push((range, Literal { frame, skip }));
        }
        Ok(())
    }
}
