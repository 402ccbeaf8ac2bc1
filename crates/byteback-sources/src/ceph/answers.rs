//! Parsers for the output of `ceph-objectstore-tool`: the list of a placement group, and an object
//! with its blobs. Text in, values out, nothing believed.
//!
//! `--op list` has a line for each object, which names it to the other operations:
//!
//! ```text
//! ["1.0",{"oid":"name","snapid":-2,..,"max":0,"pool":1,"namespace":"","max":0}]
//! ```
//!
//! `dump` is one object of JSON, from Luminous on with the same names where we look:
//!
//! ```text
//! {"id": {"oid": .., "snapid": -2, "pool": 1, "namespace": ""},
//!  "info": {"size": 9050000, "version": "8'10", "flags": ["dirty"], "manifest": {"type": 0}},
//!  "onode": {"size": 9050000, "extents": [
//!    {"logical_offset": 0, "length": 65536, "blob_offset": 0,
//!     "blob": {"logical_length": 65536, "compressed_length": 0, "flags": 4, "csum_type": 4, "csum_chunk_order": 12, "csum_data": [644888107, ..]}}, ..]}}
//! ```
//!
//! Some names are there twice (`max`), none of those that count: that would be refused.
//!
//! Extents ascend and do not lie over each other. An extent shows `length` bytes of its blob from
//! `blob_offset` on. Its checksums are of the whole blob, which may be longer, and begin at the
//! blob's first byte, whichever part of it shows.

use byteback_extents::ByteRange;
use serde::Deserialize;

use super::{OBJECT_LEN_MAX, Place};
use byteback_checksums::source::{Kind, Known, Layout, Result, SourceError, Stretches, Tail, Unknown};

/// `snapid` of the object as it is now.
const HEAD: i64 = -2;

/// The flags of a blob that are known: it may be written to (old releases), is compressed, has
/// checksums, has parts that were never written to, is shared with clones.
const FLAGS: u64 = MUTABLE | COMPRESSED | SUMMED | HAS_UNUSED | SHARED;
const MUTABLE: u64 = 1;
const COMPRESSED: u64 = 2;
const SUMMED: u64 = 4;
const HAS_UNUSED: u64 = 8;
const SHARED: u64 = 16;

/// `csum_type` of no checksums, and of CRC-32C; others are XXH32, XXH64 with another seed, and
/// CRC-32C of which only 16 or 8 bits are kept.
const CSUM_NONE: u64 = 1;
const CSUM_CRC32C: u64 = 4;

/// The length of blocks if there are none.
const CHUNK_ORDER: u32 = 12;

#[derive(Deserialize)]
struct Id {
    oid: String,
    snapid: i64,
    namespace: String,
}

impl Id {
    fn is(&self, place: &Place) -> bool {
        let snap = place.snap.map_or(HEAD, i64::from);
        self.oid == place.object && self.snapid == snap && self.namespace == place.namespace
    }
}

/// Whether a line of the list is about the object at `place`. Lines that cannot be parsed are about
/// others.
pub(crate) fn listed(line: &[u8], place: &Place) -> bool {
    let reported = serde_json::from_slice::<(String, Id)>(line);
    reported.is_ok_and(|(pg, id)| pg == place.pg && id.is(place))
}

#[derive(Deserialize)]
struct Dump {
    id: Id,
    info: Info,
    onode: Option<Onode>,
}

#[derive(Deserialize)]
struct Info {
    size: u64,
    #[serde(default)]
    flags: Vec<String>,
    manifest: Option<Manifest>,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(rename = "type")]
    kind: u64,
}

#[derive(Deserialize)]
struct Onode {
    size: u64,
    extents: Vec<Extent>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Extent {
    logical_offset: u64,
    length: u64,
    blob_offset: u64,
    blob: Blob,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Blob {
    logical_length: u64,
    compressed_length: u64,
    flags: u64,
    csum_type: u64,
    csum_chunk_order: u64,
    csum_data: Vec<u64>,
}

impl Blob {
    /// The reason why the checksums say nothing about the bytes; otherwise the number of bytes that
    /// each covers, as a power of two.
    fn chunk_order(&self) -> std::result::Result<u32, Unknown> {
        if self.flags & !FLAGS != 0 {
            return Err(Unknown::Encoded);
        }
        if self.flags & COMPRESSED != 0 || self.compressed_length != 0 {
            return Err(Unknown::Compressed);
        }
        if self.flags & SUMMED == 0 || self.csum_type == CSUM_NONE {
            return Err(Unknown::NotSummed);
        }
        match u32::try_from(self.csum_chunk_order) {
            Ok(order) if self.csum_type == CSUM_CRC32C && order < u32::BITS => Ok(order),
            _ => Err(Unknown::OtherFunction),
        }
    }
}

/// The knowledge about a piece of an object, which may begin and end anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// The CRC-32C in the form of [`Kind::Crc32c`].
    Sum(u32),
    Unknown(Unknown),
}

/// An object as reported by the tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) len_bytes: u64,
    /// The digest of the whole output.
    pub(crate) digest: [u8; 32],
    /// The number of bytes that most of its checksums cover, as a power of two.
    chunk_order: u32,
    /// The pieces that are not zeros; ascending.
    pieces: Vec<(ByteRange, Piece)>,
}

/// Parses the output about the object at `place`.
///
/// # Errors
/// [`SourceError::Missing`] and [`SourceError::NotHere`] if it is not an object with bytes of its
/// own; [`SourceError::Malformed`] for impossible output.
pub(crate) fn parse(said: &[u8], place: &Place) -> Result<Object> {
    const MALFORMED: SourceError = SourceError::Malformed("not a description of a Ceph object");
    let dump: Dump = serde_json::from_slice(said).map_err(|_| MALFORMED)?;
    if !dump.id.is(place) {
        return Err(SourceError::Malformed("a different object than requested"));
    }
    let Some(onode) = dump.onode else {
        return Err(SourceError::NotHere("the OSD's store is not BlueStore"));
    };
    if dump.info.flags.iter().any(|flag| flag == "whiteout") {
        return Err(SourceError::Missing(
            "the object was removed; only its snapshots remain",
        ));
    }
    if dump.info.manifest.is_some_and(|manifest| manifest.kind != 0) {
        return Err(SourceError::NotHere(
            "the object's bytes are in other objects that it refers to",
        ));
    }
    if onode.size != dump.info.size {
        return Err(SourceError::Malformed("an object with two lengths"));
    }
    if onode.size > OBJECT_LEN_MAX {
        return Err(SourceError::Malformed("an object that is too long"));
    }
    let (chunk_order, pieces) = pieces(&onode).map_err(SourceError::Malformed)?;
    Ok(Object {
        len_bytes: onode.size,
        digest: *blake3::hash(said).as_bytes(),
        chunk_order,
        pieces,
    })
}

type Pieces = Vec<(ByteRange, Piece)>;

fn pieces(onode: &Onode) -> std::result::Result<(u32, Pieces), &'static str> {
    let mut pieces = Vec::new();
    // The number of summed bytes for each order.
    let mut summed_bytes = [0_u64; u32::BITS as usize];
    let mut at = 0;
    for extent in &onode.extents {
        let blob = &extent.blob;
        let end = extent.logical_offset.checked_add(extent.length);
        let end = end
            .filter(|end| *end > extent.logical_offset)
            .ok_or("an empty extent")?;
        if extent.logical_offset < at {
            return Err("extents that overlap or are not in order");
        }
        at = end;
        let blob_end = extent.blob_offset.checked_add(extent.length);
        let blob_end = blob_end.filter(|end| *end <= blob.logical_length);
        let blob_end = blob_end.ok_or("an extent that exceeds its blob")?;
        // Bytes behind the end do not belong to the object.
        let Some(range) = ByteRange::new(extent.logical_offset, end.min(onode.size)) else {
            continue;
        };
        let order = match blob.chunk_order() {
            Ok(order) => order,
            Err(why) => {
                pieces.push((range, Piece::Unknown(why)));
                continue;
            }
        };
        let chunk_len = 1_u64 << order;
        let len_bytes = chunk_len.checked_mul(blob.csum_data.len() as u64);
        if len_bytes != Some(blob.logical_length) {
            return Err("a blob whose checksums do not match its chunks");
        }
        // The chunks of which the extent shows a part.
        for number in extent.blob_offset >> order..=(blob_end - 1) >> order {
            let chunk = ByteRange::new(number << order, (number + 1) << order).ok_or("an empty chunk")?;
            let start = chunk.start().max(extent.blob_offset);
            let end = chunk.end().min(blob_end);
            let in_object = |offset: u64| offset - extent.blob_offset + extent.logical_offset;
            let Some(shown) = ByteRange::new(in_object(start), in_object(end).min(onode.size)) else {
                continue;
            };
            let is_whole = shown.len_bytes() == chunk_len;
            let piece = match usize::try_from(number)
                .ok()
                .and_then(|number| blob.csum_data.get(number))
            {
                Some(sum) if is_whole => Piece::Sum(!u32::try_from(*sum).map_err(|_| "a checksum that is too long")?),
                _ if shown.end() == onode.size => Piece::Unknown(Unknown::Tail),
                _ => Piece::Unknown(Unknown::NotSummed),
            };
            if is_whole && let Some(summed) = summed_bytes.get_mut(order as usize) {
                *summed += chunk_len;
            }
            pieces.push((shown, piece));
        }
    }
    // Of equal ones the shortest.
    let most = (0..u32::BITS).zip(summed_bytes).rev().max_by_key(|(_, bytes)| *bytes);
    let order = most
        .filter(|(_, bytes)| *bytes > 0)
        .map_or(CHUNK_ORDER, |(order, _)| order);
    Ok((order, pieces))
}

/// The knowledge about the beginning of a block.
#[derive(Clone, Copy)]
enum Block {
    /// The number of zeros.
    Zeros(u64),
    Sum(u32),
    Unknown(Unknown),
}

/// An object's pieces as blocks of one length.
pub(crate) fn stretches(object: &Object) -> Stretches {
    let block_len = 1 << object.chunk_order;
    let mut blocks = Blocks {
        stretches: Stretches::new(Layout {
            kind: Kind::Crc32c,
            salt: Vec::new(),
            block_len,
            tail: Tail::ZeroPadded,
        }),
        block_len: u64::from(block_len),
        len_bytes: object.len_bytes,
        at: 0,
        present: Block::Zeros(0),
    };
    for (range, piece) in &object.pieces {
        blocks.zeros_up_to(range.start());
        match piece {
            Piece::Sum(sum) => blocks.sum(*sum, range.end()),
            Piece::Unknown(why) => blocks.up_to(range.end(), Known::Unknown(*why)),
        }
    }
    blocks.zeros_up_to(object.len_bytes);
    blocks.stretches
}

/// Makes blocks of pieces, one after the other.
struct Blocks {
    stretches: Stretches,
    block_len: u64,
    len_bytes: u64,
    /// The end of the pieces processed so far; `present` is the knowledge about the block up to
    /// there.
    at: u64,
    present: Block,
}

impl Blocks {
    /// The end of the block that contains the next byte.
    fn end_of_block(&self) -> u64 {
        (self.at / self.block_len + 1)
            .saturating_mul(self.block_len)
            .min(self.len_bytes)
    }

    fn zeros_up_to(&mut self, end: u64) {
        self.up_to(end, Known::Zeros);
    }

    /// Adds a piece with the same knowledge about each byte; whole blocks within it at once.
    fn up_to(&mut self, end: u64, known: Known) {
        while self.at < end {
            let is_at_start = self.at.is_multiple_of(self.block_len);
            let whole_end = match end == self.len_bytes {
                true => end,
                false => end / self.block_len * self.block_len,
            };
            if is_at_start && whole_end > self.at {
                self.stretches.push(self.at, whole_end, known);
                self.at = whole_end;
                continue;
            }
            let next = end.min(self.end_of_block());
            let len_bytes = next - self.at;
            self.present = match (self.present, known) {
                (Block::Unknown(why), _) | (_, Known::Unknown(why)) => Block::Unknown(why),
                (Block::Zeros(before), _) => Block::Zeros(before + len_bytes),
                (Block::Sum(sum), _) => Block::Sum(followed(sum, zeros(len_bytes), len_bytes)),
            };
            self.advance(next);
        }
    }

    /// Adds a summed chunk.
    fn sum(&mut self, sum: u32, end: u64) {
        if end > self.end_of_block() {
            // The chunk's parts in each block have no checksums of their own.
            return self.up_to(end, Known::Unknown(Unknown::NotSummed));
        }
        let len_bytes = end - self.at;
        self.present = match self.present {
            Block::Unknown(why) => Block::Unknown(why),
            Block::Zeros(0) => Block::Sum(sum),
            Block::Zeros(before) => Block::Sum(followed(zeros(before), sum, len_bytes)),
            Block::Sum(before) => Block::Sum(followed(before, sum, len_bytes)),
        };
        self.advance(end);
    }

    /// Advances to `next`, which lies in this block or at its end.
    fn advance(&mut self, next: u64) {
        let start = self.at / self.block_len * self.block_len;
        let end = self.end_of_block();
        self.at = next;
        if next < end {
            return;
        }
        match std::mem::replace(&mut self.present, Block::Zeros(0)) {
            Block::Zeros(_) => self.stretches.push(start, end, Known::Zeros),
            Block::Unknown(why) => self.stretches.push(start, end, Known::Unknown(why)),
            Block::Sum(sum) => {
                let missing = self.block_len - (end - start);
                let sum = followed(sum, zeros(missing), missing);
                self.stretches.push_sums(start, end, &sum.to_le_bytes());
            }
        }
    }
}

/// The CRC-32C of `len_bytes` zeros.
fn zeros(len_bytes: u64) -> u32 {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut crc = 0;
    let mut left = len_bytes;
    while left > 0 {
        let now = left.min(ZEROS.len() as u64);
        crc = crc32c::crc32c_append(crc, ZEROS.get(..now as usize).unwrap_or_default());
        left -= now;
    }
    crc
}

/// The CRC-32C of bytes with `before`, and then `len_bytes` with `sum`.
fn followed(before: u32, sum: u32, len_bytes: u64) -> u32 {
    let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
    crc_fast::checksum_combine(algorithm, before.into(), sum.into(), len_bytes) as u32
}
