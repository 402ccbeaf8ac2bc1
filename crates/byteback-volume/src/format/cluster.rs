//! Clusters: blocks of the main area in which several pages of a file lie compressed.
//!
//! ```text
//! cluster = ino (4) count (2) length of the frame (2) page (4)* frame
//! ```
//! Pages are numbers of pages of the file, ascending. The frame is a zstd frame (RFC 8878) of the
//! contents of all these pages, concatenated, without its first four bytes, which are constant. It
//! states neither their length, which is known, nor a checksum, as the block is sealed.
//!
//! The slot of each of these pages has the address of the cluster. Pages in a cluster to which no
//! slot leads any more do not count.
//!
//! Out of scope: choosing pages; telling whether a block is a cluster, which its summary says.

use std::cell::RefCell;

use super::{Block, Nid, SEALED_LEN_BYTES, page_checksum, put, put_u16, put_u32, u16_at, u32_at, zeros};
use byteback_host::block::BLOCK_LEN_BYTES;

/// Slot in summaries of clusters, which name the inode.
pub const CLUSTER_SLOT: u16 = u16::MAX - 2;

/// Most pages in a cluster: all are decompressed to read one of them.
pub const CLUSTER_PAGES_MAX: usize = 16;

const HEAD_LEN_BYTES: usize = 8;

/// The magic number of zstd frames.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// zstd's cheapest positive level.
const LEVEL: i32 = 1;

/// Checksum in summaries of clusters: the inverse of the block's CRC-32C. A reader that takes a
/// cluster for a page thus rejects it.
#[must_use]
pub fn cluster_checksum(block: &Block) -> u32 {
    !page_checksum(&block[..])
}

/// Head of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The file.
    pub ino: Nid,
    /// Pages of the file, ascending.
    pub pages: Vec<u32>,
    frame: std::ops::Range<usize>,
}

/// A workspace for zstd: creating one takes longer than a cluster does.
struct Codec {
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: zstd::bulk::Decompressor<'static>,
    /// A frame with its magic number.
    frame: Vec<u8>,
}

thread_local! {
    static CODEC: RefCell<Option<Codec>> = const { RefCell::new(None) };
}

impl Codec {
    fn new() -> Option<Self> {
        let mut compressor = zstd::bulk::Compressor::new(LEVEL).ok()?;
        compressor.include_contentsize(false).ok()?;
        Some(Self {
            compressor,
            decompressor: zstd::bulk::Decompressor::new().ok()?,
            frame: Vec::with_capacity(BLOCK_LEN_BYTES),
        })
    }
}

/// `None` if there is no memory for a codec, or the result of `work`.
fn with_codec<T>(work: impl FnOnce(&mut Codec) -> Option<T>) -> Option<T> {
    CODEC.with_borrow_mut(|codec| {
        if codec.is_none() {
            *codec = Codec::new();
        }
        work(codec.as_mut()?)
    })
}

impl Cluster {
    /// A block with these pages, ascending, whose contents are `bytes`, concatenated; `None` if
    /// they do not fit into one. It is not sealed.
    #[must_use]
    pub fn block(ino: Nid, pages: &[u32], bytes: &[u8]) -> Option<Box<Block>> {
        let is_possible = (1..=CLUSTER_PAGES_MAX).contains(&pages.len())
            && pages.is_sorted_by(|one, next| one < next)
            && bytes.len() == pages.len() * BLOCK_LEN_BYTES;
        if !is_possible {
            return None;
        }
        let frame_at = HEAD_LEN_BYTES + 4 * pages.len();
        let mut block = zeros();
        with_codec(|codec| {
            // Exactly this room: zstd stops when it is used up.
            let room = SEALED_LEN_BYTES - frame_at + MAGIC.len();
            codec.frame.clear();
            codec.frame.resize(room, 0);
            let len = codec.compressor.compress_to_buffer(bytes, &mut codec.frame[..]).ok()?;
            let frame = codec.frame.get(MAGIC.len()..len)?;
            put(&mut *block, frame_at, frame);
            put_u16(&mut *block, 6, u16::try_from(frame.len()).ok()?);
            Some(())
        })?;
        put_u32(&mut *block, 0, ino.0);
        put_u16(&mut *block, 4, u16::try_from(pages.len()).ok()?);
        for (index, page) in pages.iter().enumerate() {
            put_u32(&mut *block, HEAD_LEN_BYTES + 4 * index, *page);
        }
        Some(block)
    }

    /// Reads the head from a block; `None` if it is impossible.
    #[must_use]
    pub fn read(block: &Block) -> Option<Self> {
        let count = usize::from(u16_at(block, 4));
        let frame_at = HEAD_LEN_BYTES + 4 * count;
        let frame = frame_at..frame_at + usize::from(u16_at(block, 6));
        if !(1..=CLUSTER_PAGES_MAX).contains(&count) || frame.end > SEALED_LEN_BYTES {
            return None;
        }
        let pages: Vec<u32> = (0..count)
            .map(|index| u32_at(block, HEAD_LEN_BYTES + 4 * index))
            .collect();
        let is_ascending = pages.is_sorted_by(|one, next| one < next);
        is_ascending.then_some(Self {
            ino: Nid(u32_at(block, 0)),
            pages,
            frame,
        })
    }

    /// The contents of all pages, concatenated; `None` if the frame is damaged, or has another
    /// length. `block` is the one that this was read from.
    #[must_use]
    pub fn contents(&self, block: &Block) -> Option<Vec<u8>> {
        let len_bytes = self.pages.len() * BLOCK_LEN_BYTES;
        let frame = block.get(self.frame.clone())?;
        with_codec(|codec| {
            codec.frame.clear();
            codec.frame.extend(MAGIC);
            codec.frame.extend(frame);
            let mut bytes = vec![0; len_bytes];
            let len = codec
                .decompressor
                .decompress_to_buffer(&codec.frame, &mut bytes[..])
                .ok()?;
            (len == len_bytes).then_some(bytes)
        })
    }

    /// Position of a page of the file in the cluster.
    #[must_use]
    pub fn place_of(&self, page: u64) -> Option<usize> {
        let page = u32::try_from(page).ok()?;
        self.pages.binary_search(&page).ok()
    }
}
