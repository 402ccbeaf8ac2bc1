//! What the tree knows of a file's content at the cut without reading it, and what follows from that.
//!
//! The tree's process tells the checksums of all leaves, from whoever has them, and reads what nobody has
//! ([`byteback_control::TreeService::leaf_sums`]). In one ascending pass they become the checksums of the signature's blocks, and the digest that
//! proves the whole. If the telling begins anew, so does all that was made of it. Trees that tell no checksums (files without a log) are read here.
//!
//! Memory: a weak and a strong checksum per block of the signature; 4 bytes per leaf where chunks are to be summed from them; the longer holes.

use std::cell::{Cell, RefCell};
use std::io;

use super::super::content::{Failure, len_u64};
use super::reading::{Hold, read_ranges};
use super::{Examined, Place, Stop, disorder};
use crate::monitor::check_cancelled;
use byteback_api::Digest;
use byteback_control::{
    ErrorKind, LEAF_CRC_LEN, LEAF_LEN_BYTES, LeafKind as ToldKind, LeafOffer, LeafPiece, LeafRequest, LeafSource,
    LeavesTold, Piece, ServiceError,
};
use byteback_delta::Base;
use byteback_delta::crc::{BlockLayout, CrcKind, CrcList, LastBlock};
use byteback_delta::leaves::{LeafDigest, LeafKind, TreeSums};
use byteback_delta::signature::SignatureParams;
use byteback_extents::ByteRange;
use byteback_oplog::NodeId;

/// Shorter holes are zeros like others.
const HOLE_LEN_MIN: u64 = 32 * 1024;

/// More holes are not remembered.
const HOLES_MAX: usize = 1 << 16;

/// CRCs of leaves are remembered of files up to this length: 16 MiB of them.
const CRCS_LEN_MAX: u64 = 16 << 30;

/// What is known of a content.
pub(super) struct KnownContent {
    /// As the signature sums.
    pub(super) sums: TreeSums,
    /// Of all leaves.
    pub(super) digest: Digest,
    /// Long holes, ascending.
    pub(super) holes: Vec<ByteRange>,
    /// Of its leaves.
    pub(super) crcs: Option<CrcList>,
    pub(super) told: LeavesTold,
}

/// The kind of leaves, as deltas call it.
fn kind_of(kind: ToldKind) -> LeafKind {
    match kind {
        ToldKind::Sha256 => LeafKind::Sha256,
        ToldKind::Blake2b256 => LeafKind::Blake2b256,
        ToldKind::Blake3 => LeafKind::Blake3,
    }
}

/// What the tree says of a failure: of the file, or of everything.
fn failed(error: ServiceError) -> Stop {
    Stop::Failure(match error.kind {
        ErrorKind::Node => Failure::File(error),
        _ => Failure::All(error.into()),
    })
}

/// What the tree has; a tree that cannot tell is read.
pub(super) fn offer(place: Place<'_>, file: &Examined<'_>) -> Result<Offer, Stop> {
    match place.job.tree.leaf_offer(place.cut, file.node) {
        Ok(offer) => Ok(Offer { offer, is_told: true }),
        Err(error) if error.kind == ErrorKind::Protocol => Ok(Offer {
            offer: LeafOffer {
                kind: ToldKind::Blake3,
                source: LeafSource::Read,
                has_crcs: true,
            },
            is_told: false,
        }),
        Err(error) => Err(failed(error)),
    }
}

/// What is offered, and whether the tree tells it.
#[derive(Clone, Copy)]
pub(super) struct Offer {
    offer: LeafOffer,
    is_told: bool,
}

impl Offer {
    /// Of which kind leaves will be.
    pub(super) fn kind(self) -> LeafKind {
        kind_of(self.offer.kind)
    }
}

/// Asks for all that is known. `params`: of a signature that follows from leaves of the offer's kind. `with_list`: CRCs of leaves are wanted by
/// themselves, if they can be had.
pub(super) fn know(
    place: Place<'_>,
    file: &Examined<'_>,
    params: &SignatureParams,
    offered: Offer,
    with_list: bool,
) -> Result<KnownContent, Stop> {
    let job = place.job;
    let offer = offered.offer;
    let request = LeafRequest {
        kind: offer.kind,
        with_crcs: offer.has_crcs,
    };
    let begin = || Making::begin(params, file.attributes.size, request, with_list);
    let mut making = begin()?;
    if !offered.is_told {
        let read_bytes = read(place, file, &mut making)?;
        let source = LeafSource::Read;
        return making.end(LeavesTold { source, read_bytes });
    }
    let mut own_error = None;
    let told = job.tree.leaf_sums(place.cut, file.node, request, &mut |piece| {
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
    making.end(told.map_err(failed)?)
}

/// Sums what is read; answers how much that was.
fn read(place: Place<'_>, file: &Examined<'_>, making: &mut Making) -> Result<u64, Stop> {
    let kind = kind_of(making.request.kind);
    let mut read_bytes = 0;
    // The leaf that is not whole yet.
    let mut leaf = Vec::new();
    let all = ByteRange::new(0, file.attributes.size).into_iter();
    read_ranges(place, file.node, Hold::Still, all, &mut |piece| {
        let mut bytes = match piece {
            Piece::Data { bytes, .. } => bytes,
            Piece::Hole(range) => {
                // Whole leaves of it by their number; what is beside them as bytes.
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
                    making.add_zeros(range)?;
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

/// What is being made of leaves that come.
struct Making {
    request: LeafRequest,
    len: u64,
    /// Up to where they came.
    position: u64,
    sums: TreeSums,
    digest: LeafDigest,
    holes: Vec<ByteRange>,
    crcs: Option<CrcList>,
}

impl Making {
    fn begin(params: &SignatureParams, len: u64, request: LeafRequest, with_list: bool) -> Result<Self, Stop> {
        let sums = TreeSums::new(params, len);
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
            sums: sums.ok_or_else(|| disorder("its signature does not follow from leaves"))?,
            digest: LeafDigest::new(kind_of(request.kind), len),
            holes: Vec::new(),
            crcs: has_list.then(|| CrcList::new(layout)),
        })
    }

    fn add(&mut self, start: u64, piece: LeafPiece<'_>) -> Result<(), Stop> {
        if start != self.position {
            let expected = self.position;
            return Err(disorder(&format!("leaves at {start}, expected at {expected}")));
        }
        match piece {
            LeafPiece::Sums { entries, .. } => {
                let mut entries = entries.chunks_exact(self.request.entry_len());
                entries.try_for_each(|entry| self.add_leaf(entry))
            }
            LeafPiece::Zeros(range) => self.add_zeros(range),
        }
    }

    fn add_leaf(&mut self, entry: &[u8]) -> Result<(), Stop> {
        let (crc, leaf) = match self.request.with_crcs {
            true => entry.split_at(LEAF_CRC_LEN),
            false => entry.split_at(0),
        };
        let crc = crc.first_chunk().map(|crc| u32::from_le_bytes(*crc));
        let leaf = leaf.first_chunk().filter(|_| self.position < self.len);
        let leaf = leaf.ok_or_else(|| disorder("leaves beyond its end"))?;
        self.sums.push(crc, Some(leaf));
        self.digest.push_leaf(leaf);
        if let Some(crcs) = &mut self.crcs {
            crcs.push(crc.map(u64::from));
        }
        self.position = self.len.min(self.position + LEAF_LEN_BYTES);
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
        self.add_leaf(&entry)
    }

    fn add_zeros(&mut self, range: ByteRange) -> Result<(), Stop> {
        let ends = range.end() == self.len || range.end() < self.len && range.end().is_multiple_of(LEAF_LEN_BYTES);
        if !ends {
            return Err(disorder(&format!("zeros up to {}", range.end())));
        }
        self.sums.push_zeros(range.len_bytes().div_ceil(LEAF_LEN_BYTES));
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

    fn end(mut self, told: LeavesTold) -> Result<KnownContent, Stop> {
        let position = self.position;
        let digest = self.digest.finish().filter(|_| position == self.len);
        let digest = digest.ok_or_else(|| disorder(&format!("an end of its leaves at {position}")))?;
        self.holes.retain(|hole| hole.len_bytes() >= HOLE_LEN_MIN);
        Ok(KnownContent {
            sums: self.sums,
            digest: Digest(digest),
            holes: self.holes,
            crcs: self.crcs,
            told,
        })
    }
}

/// The content of a file at the cut, of which any part can be read, also again.
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

    /// Why reading failed, if that was it.
    pub(super) fn stop(&self) -> Option<Stop> {
        self.stop.borrow_mut().take()
    }

    /// Bytes that were read so far, those read again each time.
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
                let target = target.ok_or_else(|| disorder(&format!("{len} at {at}")))?;
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
