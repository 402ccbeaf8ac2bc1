//! Ranges of contents that cannot be read, and their repair from a client that still has the bytes.
//!
//! Damaged frames are *noted* in the catalog, by segment and offset, whether [`Store::verify`] or a
//! reader of contents finds them. So a backup can ask what is damaged without another pass over all
//! contents ([`Store::known_damage`]).
//!
//! *Healing* ([`Store::heal`]) writes the stored bytes of one frame back to their place, and so
//! heals every version of every file that refers to it. The offered bytes are not trusted: they are
//! encoded in the frame's form (raw, or compressed by each effort that a sender may have used), and
//! the result must have the length and the checksum in the frame's header. A damaged header proves
//! nothing, so such a frame stays damaged; so does one that was compressed by another version of
//! zstd. Its file is whole again from the next version that a sender gives it.
//!
//! A crash during healing leaves a frame that disagrees with its checksum, as before.

use crate::catalog::CatalogRead;
use crate::content::FrameCache;
use crate::error::StoreError;
use crate::numbers::{LayerNumber, NodeNumber, SegmentNumber};
use crate::read::file_at;
use crate::resolve::{Resolver, layer_rows};
use crate::segments::FrameRef;
use crate::store::{Store, existing_seq, folder_row};
use byteback_delta::{Codec, Effort, FrameEncoder, Source};
use byteback_extents::ByteRange;
use byteback_model::{FileId, NodeKind, Seq};
use std::collections::{BTreeMap, BTreeSet};

/// Most stored bytes that are read for one page of damage.
const PAGE_READ_LEN: u64 = 256 << 20;

/// Most frames that are noted; a disk with more is beyond healing frame by frame.
const NOTED_MAX: u32 = 100_000;

/// Most files that are searched for the damaged frames of one segment.
const NODES_MAX: u32 = 100_000;

/// A page of ranges that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagePage {
    /// Length of the contents in bytes.
    pub size: u64,
    /// Ascending, not touching each other.
    pub ranges: Vec<ByteRange>,
    /// Offset at which the next page begins.
    pub next_offset: Option<u64>,
}

/// The place in a file of some decoded bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePiece {
    /// Decoded bytes of the frame before the piece.
    pub skip: u64,
    /// Range of the piece in the file.
    pub range: ByteRange,
}

/// A damaged frame, as seen from one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedFrame {
    /// The file.
    pub file: FileId,
    /// The moment.
    pub at: Seq,
    /// Number of the segment.
    pub segment: SegmentNumber,
    /// Offset in the segment.
    pub offset: u64,
    /// Decoded bytes of the frame.
    pub raw_len: u64,
    /// The file's pieces of the frame, by `skip`.
    pub pieces: Vec<FramePiece>,
}

/// Whether an error means that a frame cannot be read, and not that the program, the catalog or its
/// resources failed.
pub(crate) fn is_of_frame(error: &StoreError) -> bool {
    match error {
        StoreError::Damaged { .. } => true,
        // A sector that the disk cannot read.
        StoreError::Segment { source, .. } => source.raw_os_error() == Some(5),
        _ => false,
    }
}

/// Appends a range behind the others, joined with the last one if they touch.
pub(crate) fn push_range(ranges: &mut Vec<ByteRange>, range: ByteRange) {
    match ranges.last_mut() {
        Some(last) if last.end() == range.start() => *last = last.hull(range),
        _ => ranges.push(range),
    }
}

impl Store {
    /// Unreadable ranges of a file's contents at a moment, from `offset` on. Reads the contents and
    /// notes the damage.
    ///
    /// # Errors
    /// The folder, the moment or the file does not exist; the catalog fails.
    pub fn damage(
        &self,
        folder: &str,
        file: FileId,
        at: Option<Seq>,
        offset: u64,
        limit: u32,
    ) -> Result<DamagePage, StoreError> {
        let (rows, size) = {
            let catalog = self.catalog().read()?;
            let folder = folder_row(&*catalog, folder)?;
            let at = existing_seq(&folder, at)?;
            let (node, row) = file_at(&*catalog, &folder, file, at)?;
            (
                layer_rows(&*catalog, node, row.layer, LayerNumber::NONE)?,
                row.attributes.size,
            )
        };
        let mut resolver = Resolver::to_bottom(rows, ByteRange::new(offset, size));
        let mut frames = FrameCache::new()?;
        let mut bad = BTreeSet::new();
        let mut page = DamagePage {
            size,
            ranges: Vec::new(),
            next_offset: None,
        };
        let mut read_len = 0;
        let mut last_frame = None;
        loop {
            let piece = resolver.next_piece(&*self.catalog().read()?)?;
            let Some((range, source)) = piece else { break };
            let is_full = page.ranges.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
            if is_full || read_len > PAGE_READ_LEN {
                page.next_offset = Some(range.start());
                break;
            }
            let Source::Literal(literal) = source else { continue };
            if !bad.contains(&literal.frame) {
                if last_frame.replace(literal.frame) != Some(literal.frame) {
                    read_len += u64::from(literal.frame.stored_len);
                }
                let len = usize::try_from(range.len_bytes()).unwrap_or(usize::MAX);
                match frames.bytes(&*self.parts.segments, &literal, len) {
                    Ok(_) => continue,
                    Err(error) if is_of_frame(&error) => bad.insert(literal.frame),
                    Err(error) => return Err(error),
                };
            }
            push_range(&mut page.ranges, range);
        }
        self.note_frames(&bad)?;
        Ok(page)
    }

    /// Notes the frame that an error reports as damaged, if it does.
    ///
    /// # Errors
    /// The catalog fails.
    pub fn note_damage(&self, error: &StoreError) -> Result<(), StoreError> {
        match error {
            StoreError::Damaged { segment, offset, .. } => self.note(&[(*segment, *offset)]),
            _ => Ok(()),
        }
    }

    pub(crate) fn note_frames(&self, frames: &BTreeSet<FrameRef>) -> Result<(), StoreError> {
        let places: Vec<(SegmentNumber, u64)> = frames.iter().map(|frame| (frame.segment, frame.offset)).collect();
        self.note(&places)
    }

    fn note(&self, places: &[(SegmentNumber, u64)]) -> Result<(), StoreError> {
        if places.is_empty() {
            return Ok(());
        }
        let catalog = self.catalog().write()?;
        for (segment, offset) in places {
            catalog.note_damage(*segment, *offset, NOTED_MAX)?;
        }
        catalog.commit()
    }

    /// Whether any frame is noted as damaged.
    ///
    /// # Errors
    /// The catalog fails.
    pub fn knows_damage(&self) -> Result<bool, StoreError> {
        Ok(!self.catalog().read()?.noted_damage(1)?.is_empty())
    }

    /// Noted frames, as the files of a folder refer to them now; at most `limit`. Each is read
    /// again, and the note of a readable one is removed.
    ///
    /// # Errors
    /// There is no such folder; the catalog fails.
    pub fn known_damage(&self, folder: &str, limit: u32) -> Result<Vec<DamagedFrame>, StoreError> {
        let (folder, noted, nodes) = {
            let catalog = self.catalog().read()?;
            let folder = folder_row(&*catalog, folder)?;
            let noted: BTreeSet<(SegmentNumber, u64)> = catalog.noted_damage(NOTED_MAX)?.into_iter().collect();
            let segments: BTreeSet<SegmentNumber> = noted.iter().map(|(segment, _)| *segment).collect();
            let mut nodes = BTreeSet::new();
            for segment in segments {
                nodes.extend(catalog.nodes_of_segment(folder.id, segment, NODES_MAX)?);
            }
            (folder, noted, nodes)
        };
        let mut found = Vec::new();
        let mut frames = FrameCache::new()?;
        let mut is_bad = BTreeMap::new();
        for node in nodes {
            if found.len() >= usize::try_from(limit).unwrap_or(usize::MAX) {
                break;
            }
            let catalog = self.catalog().read()?;
            let Some(row) = catalog.attributes(node, folder.seq)? else {
                continue;
            };
            let is_there = row.attributes.kind == NodeKind::File && !catalog.parents(node, folder.seq, 1)?.is_empty();
            if !is_there || row.layer == LayerNumber::NONE {
                continue;
            }
            let shown = shown_frames(&*catalog, node, row.layer, row.attributes.size, &noted)?;
            let file = catalog.file_id(node)?;
            drop(catalog);
            for (frame, pieces) in shown {
                let bad = match is_bad.get(&frame) {
                    Some(bad) => *bad,
                    None => {
                        let bad = match frames.decode_uncached(&*self.parts.segments, &frame) {
                            Ok(_) => false,
                            Err(error) if is_of_frame(&error) => true,
                            Err(error) => return Err(error),
                        };
                        is_bad.insert(frame, bad);
                        bad
                    }
                };
                if bad {
                    found.push(DamagedFrame {
                        file,
                        at: folder.seq,
                        segment: frame.segment,
                        offset: frame.offset,
                        raw_len: u64::from(frame.raw_len),
                        pieces,
                    });
                }
            }
        }
        let whole: Vec<FrameRef> = is_bad
            .into_iter()
            .filter(|(_, bad)| !bad)
            .map(|(frame, _)| frame)
            .collect();
        self.forget_damage(&whole)?;
        Ok(found)
    }

    /// Writes a damaged frame that a file refers to at a moment back to its place, if `raw` are its
    /// decoded bytes; returns whether the frame can be read now. See the module's header.
    ///
    /// # Errors
    /// The folder, the moment or the file does not exist, or the file does not refer to the frame;
    /// the catalog or the segment fails.
    pub fn heal(
        &self,
        folder: &str,
        file: FileId,
        at: Option<Seq>,
        (segment, offset): (SegmentNumber, u64),
        raw: &[u8],
    ) -> Result<bool, StoreError> {
        let frame = {
            let catalog = self.catalog().read()?;
            let folder = folder_row(&*catalog, folder)?;
            let at = existing_seq(&folder, at)?;
            let (node, row) = file_at(&*catalog, &folder, file, at)?;
            let noted = BTreeSet::from([(segment, offset)]);
            let shown = shown_frames(&*catalog, node, row.layer, row.attributes.size, &noted)?;
            shown.into_keys().next()
        };
        let frame = frame.ok_or_else(|| {
            let message = format!("file {file} refers to no frame at offset {offset} of segment {segment}");
            StoreError::InvalidParameter(message)
        })?;
        let segments = &*self.parts.segments;
        let mut frames = FrameCache::new()?;
        if frames.decode_uncached(segments, &frame).is_err() {
            let is_written = crate::codec::len_u64(raw) == u64::from(frame.raw_len) && self.rewrite(&frame, raw)?;
            if !is_written || frames.decode_uncached(segments, &frame).is_err() {
                return Ok(false);
            }
        }
        self.forget_damage(&[frame])?;
        Ok(true)
    }

    /// Writes a frame's stored bytes, if one of the encodings of `raw` yields them.
    fn rewrite(&self, frame: &FrameRef, raw: &[u8]) -> Result<bool, StoreError> {
        let segments = &*self.parts.segments;
        if frame.codec == Codec::Raw.code() {
            return segments.rewrite(frame, raw);
        }
        let mut stored = Vec::new();
        for effort in Effort::ALL {
            let mut encoder =
                FrameEncoder::with_effort(effort).map_err(|e| StoreError::io("set up the compressor", e))?;
            let codec = encoder.encode(raw, &mut stored);
            if codec.code() == frame.codec && segments.rewrite(frame, &stored)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn forget_damage(&self, frames: &[FrameRef]) -> Result<(), StoreError> {
        if frames.is_empty() {
            return Ok(());
        }
        let catalog = self.catalog().write()?;
        for frame in frames {
            catalog.forget_damage(frame.segment, frame.offset)?;
        }
        catalog.commit()
    }
}

/// The noted frames that contents refer to, each with its pieces, by their places in the frame. A
/// note at offset 0 covers all frames of its segment.
fn shown_frames(
    catalog: &dyn CatalogRead,
    node: NodeNumber,
    layer: LayerNumber,
    size: u64,
    noted: &BTreeSet<(SegmentNumber, u64)>,
) -> Result<BTreeMap<FrameRef, Vec<FramePiece>>, StoreError> {
    let rows = layer_rows(catalog, node, layer, LayerNumber::NONE)?;
    let mut resolver = Resolver::to_bottom(rows, ByteRange::new(0, size));
    let mut shown: BTreeMap<FrameRef, Vec<FramePiece>> = BTreeMap::new();
    while let Some((range, source)) = resolver.next_piece(catalog)? {
        let Source::Literal(literal) = source else { continue };
        let frame = literal.frame;
        if noted.contains(&(frame.segment, frame.offset)) || noted.contains(&(frame.segment, 0)) {
            let skip = u64::from(literal.skip);
            shown.entry(frame).or_default().push(FramePiece { skip, range });
        }
    }
    for pieces in shown.values_mut() {
        pieces.sort_unstable_by_key(|piece| piece.skip);
    }
    Ok(shown)
}
