//! The tree's knowledge of a file's content at the cut without reading it, and the sums made from
//! it.
//!
//! The tree's process reports the checksums of all leaves, from any store that has them, and reads
//! the rest ([`byteback_control::TreeService::leaf_sums`]). In one ascending pass they become the
//! sums of groups, and the digest that proves the whole. When the server has compared the groups,
//! the leaves of differing groups become the checksums of its signature's blocks: leaves of shorter
//! files are kept meanwhile, those of longer ones reported once more, and have to be the same.
//! Where the tree would have to read for that, it reports once only, when the server's signature is
//! there. If a report starts over, so does everything made from it. Files of trees that report no
//! checksums (files without a log) are read here.
//!
//! Memory: at most 36 MiB of leaves, or a weak and a strong checksum per block of the signature; 32
//! bytes per MiB; 4 bytes per leaf where chunks are to be summed from them; the longer holes.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;

use super::super::content::{Failure, len_u64};
use super::reading::{Hold, read_ranges};
use super::{Examined, Place, Stop, disorder};
use crate::monitor::check_cancelled;
use byteback_api::Digest;
use byteback_control::{
    ErrorKind, LEAF_LEN_BYTES, LeafKind as WireLeafKind, LeafOffer, LeafPiece, LeafRequest, LeafSource, LeavesSummary,
    Piece, ServiceError,
};
use byteback_delta::Base;
use byteback_delta::crc::{BlockLayout, CrcKind, CrcList, LastBlock};
use byteback_delta::groups::{GroupAnswer, GroupList};
use byteback_delta::leaves::{Leaf, LeafDigest, LeafKind, TreeSums};
use byteback_extents::ByteRange;
use byteback_model::NodeId;

/// Shorter holes are treated as zeros: they are not whole leaves.
const HOLE_LEN_MIN: u64 = LEAF_LEN_BYTES;

/// Most holes that are remembered.
const HOLES_MAX: usize = 1 << 16;

/// Longest file whose CRCs of leaves are kept: 16 MiB of them.
const CRCS_LEN_MAX: u64 = 16 << 30;

/// The sums of a content.
pub(super) struct KnownContent {
    /// The blocks that the server's answer leaves, summed like its signature; once there is an
    /// answer.
    pub(super) sums: Option<TreeSums>,
    /// The digest of all leaves.
    pub(super) digest: Digest,
    /// The same by groups.
    pub(super) groups: GroupList,
    /// Long holes, ascending.
    pub(super) holes: Vec<ByteRange>,
    /// CRCs of its leaves.
    pub(super) crcs: Option<CrcList>,
    pub(super) reported: LeavesSummary,
    kept: Option<KeptLeaves>,
}

impl KnownContent {
    /// Adds the sums of the blocks that the server's answer leaves.
    pub(super) fn beside(
        mut self,
        place: Place<'_>,
        file: &Examined<'_>,
        offered: Offer,
        answer: &GroupAnswer,
    ) -> Result<Self, Stop> {
        let Some(kept) = self.kept.take() else {
            let again = know(place, file, offered, false, Some(answer))?;
            if again.digest != self.digest {
                return Err(disorder("its leaves differ on the second reading"));
            }
            self.sums = again.sums;
            self.reported.read_bytes += again.reported.read_bytes;
            return Ok(self);
        };
        let mut left = LeftSums::new(answer)?;
        kept.tell(&mut left);
        self.sums = Some(left.sums);
        Ok(self)
    }
}

/// Leaves as they were reported.
struct KeptLeaves {
    entry_len: usize,
    entries: Vec<u8>,
    /// Ascending, with their offsets.
    pieces: Vec<(u64, KeptPiece)>,
}

enum KeptPiece {
    /// Entries, by their place in `entries`.
    Sums(Range<usize>),
    Zeros(ByteRange),
}

impl KeptLeaves {
    /// Adds the next piece.
    fn add(&mut self, start: u64, piece: LeafPiece<'_>) {
        match piece {
            LeafPiece::Zeros(range) => self.pieces.push((start, KeptPiece::Zeros(range))),
            LeafPiece::Sums { entries, .. } => {
                let from = self.entries.len();
                self.entries.extend_from_slice(entries);
                let to = self.entries.len();
                match self.pieces.last_mut() {
                    Some((_, KeptPiece::Sums(before))) => before.end = to,
                    _ => self.pieces.push((start, KeptPiece::Sums(from..to))),
                }
            }
        }
    }
}

impl KeptLeaves {
    fn tell(&self, left: &mut LeftSums) {
        for (start, piece) in &self.pieces {
            match piece {
                KeptPiece::Sums(at) => {
                    let entries = self.entries.get(at.clone()).unwrap_or_default();
                    left.add_sums(*start, entries, self.entry_len);
                }
                KeptPiece::Zeros(range) => left.add_zeros(*range),
            }
        }
    }
}

/// The sums of the blocks that an answer leaves of the new content, made from all of its leaves.
struct LeftSums {
    sums: TreeSums,
    /// Equal ranges that were not passed yet, the first one last.
    equal: Vec<ByteRange>,
}

impl LeftSums {
    fn new(answer: &GroupAnswer) -> Result<Self, Stop> {
        let sums = TreeSums::new(answer.signature().params(), answer.left_len_bytes());
        let mut equal = answer.gathering().equal().to_vec();
        equal.reverse();
        Ok(Self {
            sums: sums.ok_or_else(|| disorder("its signature cannot be derived from leaves"))?,
            equal,
        })
    }

    /// Whether the leaf at `at` is left, and up to where that holds.
    fn is_left(&mut self, at: u64) -> (bool, u64) {
        while self.equal.pop_if(|equal| equal.end() <= at).is_some() {}
        match self.equal.last() {
            Some(equal) if equal.start() <= at => (false, equal.end()),
            Some(equal) => (true, equal.start()),
            None => (true, u64::MAX),
        }
    }

    fn add_sums(&mut self, start: u64, mut entries: &[u8], entry_len: usize) {
        let mut at = start;
        while !entries.is_empty() {
            let (is_left, end) = self.is_left(at);
            let leaves = usize::try_from((end - at).div_ceil(LEAF_LEN_BYTES)).unwrap_or(usize::MAX);
            let here = leaves.saturating_mul(entry_len).min(entries.len());
            let (now, later) = entries.split_at(here);
            if is_left {
                for entry in now.chunks_exact(entry_len) {
                    let (crc, leaf) = crc_and_leaf(entry);
                    self.sums.push(crc, leaf);
                }
            }
            at = end;
            entries = later;
        }
    }

    fn add_zeros(&mut self, range: ByteRange) {
        let mut at = range.start();
        while at < range.end() {
            let (is_left, end) = self.is_left(at);
            let end = end.min(range.end());
            if is_left {
                self.sums.push_zeros((end - at).div_ceil(LEAF_LEN_BYTES));
            }
            at = end;
        }
    }
}

/// The CRC and the leaf of one entry.
fn crc_and_leaf(entry: &[u8]) -> (Option<u32>, Option<&Leaf>) {
    let Some((crc, leaf)) = entry.split_last_chunk() else {
        return (None, None);
    };
    (crc.first_chunk().map(|crc| u32::from_le_bytes(*crc)), Some(leaf))
}

/// The kind of leaves in the terms of deltas.
fn kind_of(kind: WireLeafKind) -> LeafKind {
    match kind {
        WireLeafKind::Sha256 => LeafKind::Sha256,
        WireLeafKind::Blake2b256 => LeafKind::Blake2b256,
        WireLeafKind::Blake3 => LeafKind::Blake3,
    }
}

/// Sorts a failure of the tree: of the file, or of everything.
fn failed(error: ServiceError) -> Stop {
    Stop::Failure(match error.kind {
        ErrorKind::Node => Failure::File(error),
        _ => Failure::All(error.into()),
    })
}

/// The checksums that the tree offers; files of a tree that offers none are read.
pub(super) fn offer(place: Place<'_>, file: &Examined<'_>) -> Result<Offer, Stop> {
    let kept_len_max_bytes = place.job.options.limits.leaves_kept_len_max_bytes;
    match place.job.tree.leaf_offer(place.cut, file.node) {
        Ok(offer) => Ok(Offer {
            offer,
            is_reported: true,
            kept_len_max_bytes,
        }),
        Err(error) if error.kind == ErrorKind::Protocol => Ok(Offer {
            offer: LeafOffer {
                kind: WireLeafKind::Blake3,
                source: LeafSource::Read,
                has_crcs: true,
            },
            is_reported: false,
            kept_len_max_bytes,
        }),
        Err(error) => Err(failed(error)),
    }
}

/// The offer, and whether the tree reports leaves at all.
#[derive(Clone, Copy)]
pub(super) struct Offer {
    offer: LeafOffer,
    is_reported: bool,
    kept_len_max_bytes: u64,
}

impl Offer {
    /// Whether a content of this length can be summed before the server is asked, without reading
    /// it twice.
    pub(super) fn can_tell_twice(self, len: u64) -> bool {
        len <= self.kept_len_max_bytes || self.offer.source != LeafSource::Read
    }

    /// Whether checksums exist, so that nothing has to be read for them.
    pub(super) fn has_sums(self) -> bool {
        self.offer.source != LeafSource::Read
    }

    /// The kind of leaves on offer.
    pub(super) fn kind(self) -> LeafKind {
        kind_of(self.offer.kind)
    }
}

/// Asks for all that is known. `with_list`: CRCs of leaves are wanted by themselves, if they are
/// available. `answer`: the answer whose left blocks are to be summed.
pub(super) fn know(
    place: Place<'_>,
    file: &Examined<'_>,
    offered: Offer,
    with_list: bool,
    answer: Option<&GroupAnswer>,
) -> Result<KnownContent, Stop> {
    let job = place.job;
    let offer = offered.offer;
    let request = LeafRequest {
        kind: offer.kind,
        with_crcs: offer.has_crcs,
    };
    let is_kept = answer.is_none() && file.attributes.size <= offered.kept_len_max_bytes;
    let begin = || Making::begin(file.attributes.size, request, with_list, is_kept, answer);
    let mut making = begin()?;
    if !offered.is_reported {
        let read_bytes = read(place, file, &mut making)?;
        let source = LeafSource::Read;
        return making.end(LeavesSummary { source, read_bytes });
    }
    let mut own_error = None;
    let reported = job.tree.leaf_sums(place.cut, file.node, request, &mut |piece| {
        let taken = check_cancelled(job.monitor).map_err(Stop::from).and_then(|()| {
            let start = match piece {
                LeafPiece::Sums { offset, .. } => offset,
                LeafPiece::Zeros(range) => range.start(),
            };
            if start == 0 && making.position > 0 {
                making = begin()?;
            }
            making.add(start, piece)
        });
        taken.map_err(|error| {
            own_error = Some(error);
            ServiceError::new(ErrorKind::Protocol, "the file is given up")
        })
    });
    if let Some(error) = own_error {
        return Err(error);
    }
    making.end(reported.map_err(failed)?)
}

/// Sums the file's bytes; returns how many were read.
fn read(place: Place<'_>, file: &Examined<'_>, making: &mut Making) -> Result<u64, Stop> {
    let kind = kind_of(making.request.kind);
    let mut read_bytes = 0;
    // The incomplete leaf.
    let mut leaf = Vec::new();
    let all = ByteRange::new(0, file.attributes.size).into_iter();
    read_ranges(place, file.node, Hold::Still, all, &mut |piece| {
        let mut bytes = match piece {
            Piece::Data { bytes, .. } => bytes,
            Piece::Hole(range) => {
                // Whole leaves of the hole by their number; the bytes beside them as zeros.
                let before = (LEAF_LEN_BYTES - len_u64(leaf.len())) % LEAF_LEN_BYTES;
                let mut left = range.len_bytes();
                let zeros = |len: u64, leaf: &mut Vec<u8>| leaf.resize(leaf.len() + len as usize, 0);
                let first = left.min(before);
                zeros(first, &mut leaf);
                left -= first;
                if len_u64(leaf.len()) == LEAF_LEN_BYTES {
                    making.add_bytes(kind, &leaf)?;
                    leaf.clear();
                }
                let whole = left - left % LEAF_LEN_BYTES;
                if leaf.is_empty()
                    && let Some(range) = ByteRange::from_offset_len(making.position, whole)
                {
                    making.add(range.start(), LeafPiece::Zeros(range))?;
                    left -= whole;
                }
                zeros(left, &mut leaf);
                return Ok(());
            }
        };
        read_bytes += len_u64(bytes.len());
        while !bytes.is_empty() {
            let room = (LEAF_LEN_BYTES as usize).saturating_sub(leaf.len());
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            leaf.extend_from_slice(now);
            bytes = later;
            if len_u64(leaf.len()) == LEAF_LEN_BYTES {
                making.add_bytes(kind, &leaf)?;
                leaf.clear();
            }
        }
        Ok(())
    })?;
    if !leaf.is_empty() {
        making.add_bytes(kind, &leaf)?;
    }
    Ok(read_bytes)
}

/// The sums being made from leaves as they come.
struct Making {
    request: LeafRequest,
    len: u64,
    /// The end of the leaves so far.
    position: u64,
    sums: Option<LeftSums>,
    digest: LeafDigest,
    holes: Vec<ByteRange>,
    crcs: Option<CrcList>,
    kept: Option<KeptLeaves>,
}

impl Making {
    fn begin(
        len: u64,
        request: LeafRequest,
        with_list: bool,
        is_kept: bool,
        answer: Option<&GroupAnswer>,
    ) -> Result<Self, Stop> {
        let layout = BlockLayout {
            kind: CrcKind::Crc32c,
            // 4096.
            block_len_bytes: LEAF_LEN_BYTES as u32,
            content_len_bytes: len,
            last: LastBlock::AsItIs,
        };
        let has_list = with_list && request.with_crcs && len <= CRCS_LEN_MAX;
        Ok(Self {
            request,
            len,
            position: 0,
            sums: answer.map(LeftSums::new).transpose()?,
            digest: LeafDigest::with_groups(kind_of(request.kind), len),
            holes: Vec::new(),
            crcs: has_list.then(|| CrcList::new(layout)),
            kept: is_kept.then(|| KeptLeaves {
                entry_len: request.entry_len(),
                entries: Vec::new(),
                pieces: Vec::new(),
            }),
        })
    }

    fn add(&mut self, start: u64, piece: LeafPiece<'_>) -> Result<(), Stop> {
        if start != self.position {
            let expected = self.position;
            return Err(disorder(&format!("leaves at {start}, expected at {expected}")));
        }
        match piece {
            LeafPiece::Sums { entries, .. } => self.add_sums(entries)?,
            LeafPiece::Zeros(range) => self.add_zeros(range)?,
        }
        if let Some(kept) = &mut self.kept {
            kept.add(start, piece);
        }
        Ok(())
    }

    fn add_sums(&mut self, entries: &[u8]) -> Result<(), Stop> {
        let entry_len = self.request.entry_len();
        let (start, leaves) = (self.position, len_u64(entries.len() / entry_len));
        if leaves > (self.len - start).div_ceil(LEAF_LEN_BYTES) || !entries.len().is_multiple_of(entry_len) {
            return Err(disorder("leaves beyond its end"));
        }
        if let Some(sums) = &mut self.sums {
            sums.add_sums(start, entries, entry_len);
        }
        match self.request.with_crcs {
            false => self.digest.push_leaves(entries.as_chunks().0),
            true => {
                for entry in entries.chunks_exact(entry_len) {
                    let (crc, leaf) = crc_and_leaf(entry);
                    if let Some(leaf) = leaf {
                        self.digest.push_leaf(leaf);
                    }
                    if let Some(crcs) = &mut self.crcs {
                        crcs.push(crc.map(u64::from));
                    }
                }
            }
        }
        self.position = self.len.min(start + leaves * LEAF_LEN_BYTES);
        Ok(())
    }

    /// Adds the next leaf by its bytes.
    fn add_bytes(&mut self, kind: LeafKind, leaf: &[u8]) -> Result<(), Stop> {
        let mut entry = Vec::new();
        if self.request.with_crcs {
            // A CRC of 32 bits.
            entry.extend_from_slice(&(CrcKind::Crc32c.of(leaf) as u32).to_le_bytes());
        }
        entry.extend_from_slice(&kind.leaf(leaf));
        let offset = self.position;
        let entries = &entry;
        self.add(offset, LeafPiece::Sums { offset, entries })
    }

    fn add_zeros(&mut self, range: ByteRange) -> Result<(), Stop> {
        let ends = range.end() == self.len || range.end() < self.len && range.end().is_multiple_of(LEAF_LEN_BYTES);
        if !ends {
            return Err(disorder(&format!("zeros up to {}", range.end())));
        }
        if let Some(sums) = &mut self.sums {
            sums.add_zeros(range);
        }
        self.digest.push_zeros(range.len_bytes());
        if let Some(crcs) = &mut self.crcs {
            let (whole, rest) = (range.len_bytes() / LEAF_LEN_BYTES, range.len_bytes() % LEAF_LEN_BYTES);
            let of_leaf = CrcKind::Crc32c.of_zeros(LEAF_LEN_BYTES);
            (0..whole).for_each(|_| crcs.push(Some(of_leaf)));
            if rest > 0 {
                crcs.push(Some(CrcKind::Crc32c.of_zeros(rest)));
            }
        }
        let is_full = self.holes.len() == HOLES_MAX;
        match self.holes.last_mut() {
            Some(last) if last.end() == range.start() => *last = last.hull(range),
            _ if is_full => {}
            _ => self.holes.push(range),
        }
        self.position = range.end();
        Ok(())
    }

    fn end(mut self, reported: LeavesSummary) -> Result<KnownContent, Stop> {
        let position = self.position;
        let digest = self.digest.finish_with_groups().filter(|_| position == self.len);
        let (digest, groups) = digest.ok_or_else(|| disorder(&format!("its leaves end at {position}")))?;
        self.holes.retain(|hole| hole.len_bytes() >= HOLE_LEN_MIN);
        Ok(KnownContent {
            sums: self.sums.map(|left| left.sums),
            digest: Digest(digest),
            groups,
            holes: self.holes,
            crcs: self.crcs,
            reported,
            kept: self.kept,
        })
    }
}

/// The content of a file at the cut, any part of which can be read, also again.
pub(super) struct CutContent<'a> {
    place: Place<'a>,
    node: NodeId,
    len: u64,
    holes: &'a [ByteRange],
    /// Why it cannot be read any more.
    stop: RefCell<Option<Stop>>,
    read_bytes: Cell<u64>,
}

impl<'a> CutContent<'a> {
    pub(super) fn new(place: Place<'a>, file: &Examined<'_>, holes: &'a [ByteRange]) -> Self {
        Self {
            place,
            node: file.node,
            len: file.attributes.size,
            holes,
            stop: RefCell::default(),
            read_bytes: Cell::default(),
        }
    }

    /// The reason why reading failed, if it did.
    pub(super) fn stop(&self) -> Option<Stop> {
        self.stop.borrow_mut().take()
    }

    /// Bytes read so far; those read again count again.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes.get()
    }
}

impl Base for CutContent<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let Some(range) = ByteRange::from_offset_len(offset, len_u64(buffer.len())) else {
            return Ok(());
        };
        let mut read_bytes = 0;
        let read = read_ranges(
            self.place,
            self.node,
            Hold::Still,
            std::iter::once(range),
            &mut |piece| {
                let (at, len) = match piece {
                    Piece::Hole(hole) => (hole.start(), hole.len_bytes()),
                    Piece::Data { offset, bytes } => (offset, len_u64(bytes.len())),
                };
                let start = usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX);
                let end = start.saturating_add(usize::try_from(len).unwrap_or(usize::MAX));
                let target = buffer.get_mut(start..end);
                let target = target.ok_or_else(|| disorder(&format!("{len} bytes at {at}")))?;
                match piece {
                    Piece::Hole(_) => target.fill(0),
                    Piece::Data { bytes, .. } => {
                        read_bytes += len;
                        target.copy_from_slice(bytes);
                    }
                }
                Ok(())
            },
        );
        self.read_bytes.set(self.read_bytes.get() + read_bytes);
        read.map_err(|stop| {
            self.stop.replace(Some(stop));
            io::Error::other("the file is given up")
        })
    }

    fn next_data(&self, range: ByteRange) -> io::Result<Option<ByteRange>> {
        let mut start = range.start();
        let first = self.holes.partition_point(|hole| hole.end() <= start);
        for hole in self.holes.iter().skip(first) {
            if hole.start() > start {
                return Ok(ByteRange::new(start, hole.start().min(range.end())));
            }
            start = hole.end();
        }
        Ok(ByteRange::new(start, range.end()))
    }
}

#[cfg(test)]
mod tests;
