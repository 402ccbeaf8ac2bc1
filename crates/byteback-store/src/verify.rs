//! Re-reads and checks everything that one moment of a folder needs.
//!
//! The tree is walked from its root; every piece of each file is resolved, and every frame is read
//! from its segment, checked and decoded, once however many files and versions refer to it.
//! Checksums that are kept of a file's bytes are compared with them (`sums`): for that, frames that
//! were read for another file are read again, and a frame that the file needs in several places is
//! held until the last of them ([`Held`]). A damaged file is reported with the lost ranges, its
//! frames are noted (`damage`), and the walk continues.
//!
//! Memory: the directories on the way, one number per file that was seen (a file with several names
//! is checked once), two numbers for each of [`FRAMES_MAX`] frames, and [`HELD_LEN_MAX`]. Beyond
//! that, frames of [`SHORT_LEN_MAX`], of which defragmented files have very many, are remembered
//! only while their neighbours are checked: their pieces lie side by side, and one that is
//! elsewhere is read again.

use crate::content::FrameCache;
use crate::damage::{is_of_frame, push_range};
use crate::defragment::SHORT_LEN_MAX;
use crate::error::StoreError;
use crate::numbers::{LayerNumber, NodeNumber, SegmentNumber};
use crate::paths::path_of;
use crate::read::root_at;
use crate::resolve::{Resolver, layer_rows};
use crate::segments::FrameRef;
use crate::store::{Store, existing_seq, folder_row};
use crate::sums::audit::Audit;
use byteback_delta::Source;
use byteback_extents::ByteRange;
use byteback_model::{FileId, NodeKind, Seq};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;

/// Entries that one query fetches.
const ENTRIES_AT_ONCE: u32 = 1000;

/// Pieces between two reports of progress, at which the caller may stop.
const PIECES_PER_PROGRESS: u64 = 4096;

/// Most ranges that are reported of one damaged file.
const RANGES_TOLD_MAX: usize = 1000;

/// Frames up to which short ones are remembered like others.
const FRAMES_MAX: usize = 1 << 20;

/// Short frames that are remembered beyond that.
const SHORT_FRAMES_MAX: usize = 16;

/// Decoded frames that are held for later places of the same file, in bytes.
const HELD_LEN_MAX: usize = 128 << 20;

/// The totals checked so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyTotals {
    /// Files.
    pub files: u64,
    /// Frames read.
    pub frames: u64,
    /// Stored bytes read.
    pub bytes: u64,
    /// Files that cannot be read in full.
    pub damaged_files: u64,
    /// Files whose kept checksums disagreed with their bytes. These checksums were thrown away and
    /// will be made again; the bytes are whole. Yet there is a fault: a defect, the catalog's disk,
    /// or memory.
    pub wrong_sums: u64,
}

/// An event during a verification.
#[derive(Debug)]
pub enum VerifyEvent {
    /// The totals so far.
    Progress(VerifyTotals),
    /// A file that cannot be read in full.
    Damage {
        /// The file.
        id: FileId,
        /// A path of the file.
        path: Option<Vec<u8>>,
        /// The first error.
        error: StoreError,
        /// The first lost ranges, ascending. Empty if the file's contents are unknown altogether.
        ranges: Vec<ByteRange>,
        /// Lost bytes in all.
        lost_bytes: u64,
    },
}

impl Store {
    /// Checks a moment of a folder. `tell` may stop it; then the totals cover only what was
    /// checked.
    ///
    /// # Errors
    /// The folder or the moment does not exist, or the tree itself cannot be read.
    pub fn verify(
        &self,
        folder: &str,
        at: Option<Seq>,
        mut tell: impl FnMut(VerifyEvent) -> ControlFlow<()>,
    ) -> Result<VerifyTotals, StoreError> {
        let (at, root) = {
            let catalog = self.catalog().read()?;
            let folder = folder_row(&*catalog, folder)?;
            let at = existing_seq(&folder, at)?;
            let root = root_at(&*catalog, &folder, at)?;
            (at, root)
        };
        let mut totals = VerifyTotals::default();
        let mut frames = Frames::new(self)?;
        let mut seen = HashSet::new();
        // Directories still to be listed, each with the name after which to continue.
        let mut directories: Vec<(NodeNumber, Option<Vec<u8>>)> = vec![(root, None)];
        while let Some((directory, after)) = directories.pop() {
            let entries = self
                .catalog()
                .read()?
                .entries(directory, at, after.as_deref(), ENTRIES_AT_ONCE)?;
            if let Some(last) = entries.last() {
                directories.push((directory, Some(last.name.clone())));
            }
            for entry in entries {
                let row = self.catalog().read()?.attributes(entry.child, at)?;
                let Some(row) = row else {
                    return Err(StoreError::CatalogDamaged(format!(
                        "node {} has no attributes",
                        entry.child
                    )));
                };
                match row.attributes.kind {
                    NodeKind::Directory => directories.push((entry.child, None)),
                    NodeKind::File if seen.insert(entry.child) => {
                        let result = self.verify_file(entry.child, &row, &mut frames, &mut totals, &mut tell);
                        totals.files += 1;
                        let lost = match result {
                            Ok((ControlFlow::Break(()), _)) => return Ok(totals),
                            Ok((ControlFlow::Continue(()), lost)) => lost,
                            Err(error) => Some(Lost {
                                error,
                                ranges: Vec::new(),
                                bytes: 0,
                            }),
                        };
                        if let Some(lost) = lost {
                            totals.damaged_files += 1;
                            // Damage that is not noted is found again.
                            let _ = self.note_frames(&std::mem::take(&mut frames.to_note));
                            let catalog = self.catalog().read()?;
                            let id = catalog.file_id(entry.child)?;
                            let path = path_of(&*catalog, root, entry.child, at)?;
                            drop(catalog);
                            let damage = VerifyEvent::Damage {
                                id,
                                path,
                                error: lost.error,
                                ranges: lost.ranges,
                                lost_bytes: lost.bytes,
                            };
                            if tell(damage).is_break() {
                                return Ok(totals);
                            }
                        }
                        if tell(VerifyEvent::Progress(totals)).is_break() {
                            return Ok(totals);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(totals)
    }

    fn verify_file(
        &self,
        node: NodeNumber,
        row: &crate::catalog::AttributeRow,
        frames: &mut Frames<'_>,
        totals: &mut VerifyTotals,
        tell: &mut impl FnMut(VerifyEvent) -> ControlFlow<()>,
    ) -> Result<(ControlFlow<()>, Option<Lost>), StoreError> {
        let rows = layer_rows(&*self.catalog().read()?, node, row.layer, LayerNumber::NONE)?;
        let length = rows.first().map_or(0, |row| row.new_len);
        if length != row.attributes.size {
            let message = format!(
                "the contents have {length} bytes, but the attributes say {}",
                row.attributes.size
            );
            return Err(StoreError::CatalogDamaged(message));
        }
        let mut audit = Audit::begin(self, node)?;
        let mut held = Held::default();
        if audit.is_some() {
            let mut resolver = Resolver::to_bottom(rows.clone(), ByteRange::new(0, length));
            while let Some((_, source)) = resolver.next_piece(&*self.catalog().read()?)? {
                if let Source::Literal(literal) = source {
                    held.expect(literal.frame);
                }
            }
        }
        let mut resolver = Resolver::to_bottom(rows, ByteRange::new(0, length));
        let mut lost: Option<Lost> = None;
        let mut pieces = 0u64;
        loop {
            let catalog = self.catalog().read()?;
            let piece = resolver.next_piece(&*catalog)?;
            drop(catalog);
            let Some((range, source)) = piece else {
                if let Some(audit) = audit
                    && !audit.finish()?
                {
                    totals.wrong_sums += 1;
                }
                return Ok((ControlFlow::Continue(()), lost));
            };
            let result = match (source, &mut audit) {
                (Source::Literal(literal), None) => frames.check(&literal.frame, totals),
                (Source::Literal(literal), Some(audit)) => match held.take(frames, &literal.frame, totals) {
                    Ok(raw) => {
                        let start = usize::try_from(literal.skip).unwrap_or(usize::MAX);
                        let len = usize::try_from(range.len_bytes()).unwrap_or(usize::MAX);
                        audit.feed(range, source, raw.get(start..start.saturating_add(len)))?;
                        held.give_back(literal.frame, raw);
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
                (_, Some(audit)) => audit.feed(range, source, None).map(|()| Ok(()))?,
                (_, None) => Ok(()),
            };
            match result {
                Ok(()) => {}
                Err(error) if is_of_frame(&error) => {
                    // Sums of a file that cannot be read cannot be compared.
                    audit = None;
                    held = Held::default();
                    let lost = lost.get_or_insert_with(|| Lost {
                        error,
                        ranges: Vec::new(),
                        bytes: 0,
                    });
                    lost.bytes = lost.bytes.saturating_add(range.len_bytes());
                    if lost.ranges.len() < RANGES_TOLD_MAX
                        || lost.ranges.last().is_some_and(|last| last.end() == range.start())
                    {
                        push_range(&mut lost.ranges, range);
                    }
                }
                Err(error) => return Err(error),
            }
            pieces += 1;
            if pieces.is_multiple_of(PIECES_PER_PROGRESS) && tell(VerifyEvent::Progress(*totals)).is_break() {
                return Ok((ControlFlow::Break(()), lost));
            }
        }
    }
}

/// The losses of a file.
struct Lost {
    /// The first error.
    error: StoreError,
    ranges: Vec<ByteRange>,
    bytes: u64,
}

fn is_short(frame: &FrameRef) -> bool {
    u64::from(frame.raw_len) <= SHORT_LEN_MAX
}

/// Frames that were checked.
struct Frames<'a> {
    store: &'a Store,
    cache: FrameCache,
    /// The other fields of each reference, by segment and offset: of two references to one place
    /// that differ, at least one is wrong.
    checked: HashMap<(SegmentNumber, u64), (u32, u32, u8)>,
    /// The short frames that were checked last.
    short: VecDeque<FrameRef>,
    damaged: HashMap<FrameRef, String>,
    /// Damaged frames that are not noted in the catalog yet.
    to_note: BTreeSet<FrameRef>,
}

impl<'a> Frames<'a> {
    fn new(store: &'a Store) -> Result<Self, StoreError> {
        Ok(Self {
            store,
            cache: FrameCache::new()?,
            checked: HashMap::new(),
            short: VecDeque::new(),
            damaged: HashMap::new(),
            to_note: BTreeSet::new(),
        })
    }

    /// Reads a frame unless it was read before.
    fn check(&mut self, frame: &FrameRef, totals: &mut VerifyTotals) -> Result<(), StoreError> {
        let place = (frame.segment, frame.offset);
        let known = self.checked.get(&place);
        if known == Some(&(frame.stored_len, frame.raw_len, frame.codec)) || self.short.contains(frame) {
            return Ok(());
        }
        self.read(frame, totals).map(|_| ())
    }

    /// Reads a frame.
    fn read(&mut self, frame: &FrameRef, totals: &mut VerifyTotals) -> Result<Vec<u8>, StoreError> {
        if let Some(what) = self.damaged.get(frame) {
            return Err(StoreError::Damaged {
                segment: frame.segment,
                offset: frame.offset,
                what: what.clone(),
            });
        }
        totals.frames += 1;
        totals.bytes = totals.bytes.saturating_add(u64::from(frame.stored_len));
        match self.cache.decode_uncached(&*self.store.parts.segments, frame) {
            Ok(raw) if is_short(frame) && self.checked.len() >= FRAMES_MAX => {
                self.short.truncate(SHORT_FRAMES_MAX - 1);
                self.short.push_front(*frame);
                Ok(raw)
            }
            Ok(raw) => {
                let place = (frame.segment, frame.offset);
                self.checked
                    .insert(place, (frame.stored_len, frame.raw_len, frame.codec));
                Ok(raw)
            }
            Err(error) => {
                if is_of_frame(&error) {
                    let what = match &error {
                        StoreError::Damaged { what, .. } => what.clone(),
                        error => error.to_string(),
                    };
                    self.damaged.insert(*frame, what);
                    self.to_note.insert(*frame);
                }
                Err(error)
            }
        }
    }
}

/// Decoded frames of one file, each until its last place in the file.
#[derive(Default)]
struct Held {
    /// Places in the file that are still to come.
    uses: HashMap<FrameRef, u32>,
    frames: HashMap<FrameRef, Vec<u8>>,
    len: usize,
    /// The short frames that were used last.
    short: VecDeque<(FrameRef, Vec<u8>)>,
}

impl Held {
    /// Counts a place of the file that needs this frame.
    fn expect(&mut self, frame: FrameRef) {
        if let Some(uses) = self.uses.get_mut(&frame) {
            *uses += 1;
        } else if !is_short(&frame) || self.uses.len() < FRAMES_MAX {
            self.uses.insert(frame, 1);
        }
    }

    fn take(
        &mut self,
        frames: &mut Frames<'_>,
        frame: &FrameRef,
        totals: &mut VerifyTotals,
    ) -> Result<Vec<u8>, StoreError> {
        let short = self.short.iter().position(|(known, _)| known == frame);
        if let Some((_, raw)) = short.and_then(|index| self.short.remove(index)) {
            return Ok(raw);
        }
        match self.frames.remove(frame) {
            Some(raw) => {
                self.len = self.len.saturating_sub(raw.len());
                Ok(raw)
            }
            None => frames.read(frame, totals),
        }
    }

    fn give_back(&mut self, frame: FrameRef, raw: Vec<u8>) {
        if is_short(&frame) && !self.uses.contains_key(&frame) {
            self.short.truncate(SHORT_FRAMES_MAX - 1);
            self.short.push_front((frame, raw));
            return;
        }
        let left = self.uses.entry(frame).or_default();
        *left = left.saturating_sub(1);
        // Without room for it, it is read again.
        if *left > 0 && self.len.saturating_add(raw.len()) <= HELD_LEN_MAX {
            self.len += raw.len();
            self.frames.insert(frame, raw);
        }
    }
}
