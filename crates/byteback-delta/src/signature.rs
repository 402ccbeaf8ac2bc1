//! A signature: one end's description of a content that it has, by which the other end can find
//! that content's blocks in a content of its own.
//!
//! A content is cut into blocks of equal length (the last one may be shorter); the signature holds
//! a weak and a strong checksum of each (rsync's idea). Kinds and lengths travel in its header, so
//! that later kinds need no new format. docs/formats/signature.md describes every byte; `wire`
//! holds the layout.
//!
//! - [`SignatureParams`]: how to cut and sum. [`SignatureParams::for_content`] chooses as rsync
//!   does; [`SignatureRequest`] holds the wishes of one end, from which the other end chooses.
//! - [`SignatureWriter`]: makes the stream from a content that arrives piece by piece; memory: one
//!   block and one group of checksums.
//! - [`Signature`]: a whole signature in memory, read with a limit on the number of blocks
//!   ([`Signature::read`]).
//!
//! A signature comes from an untrusted sender: bad input gives a typed error, and no length in it
//! reserves memory before the bytes arrive. None of this shows whether the checksums are those of
//! the intended content. An end that finds copies by a signature proves the result
//! ([`crate::ContentDigest`]).

mod request;
mod wire;
mod write;

use std::io::{self, Read};

use crate::leaves::{GROUP_LEN_BYTES, LEAF_LEN_BYTES, LeafKind};
use crate::room::make_room;
use crate::strong::{STRONG_LEN_MAX, StrongHasher, StrongKind};
use crate::weak::WeakKind;
use crate::wire::FILE_LEN_MAX;

pub use request::{NoCommonKind, SignatureRequest};
pub use wire::{MAGIC, VERSION};
pub use write::SignatureWriter;

/// The smallest block that is chosen, in bytes; rsync's minimum.
pub const BLOCK_LEN_MIN: u32 = 700;

/// The largest block chosen by rsync's rule, which is rsync's own maximum.
const BLOCK_LEN_RSYNC_MAX: u64 = 128 * 1024;

/// The largest possible block, in bytes.
pub const BLOCK_LEN_MAX: u32 = 16 * 1024 * 1024;

/// The shortest strong checksum, in bytes.
pub const STRONG_LEN_MIN: u8 = 6;

/// The target for the largest number of blocks; beyond it, blocks grow past rsync's maximum
/// instead. A client keeps at most some 50 bytes per block; see [`crate::find`].
pub const BLOCKS_MAX: u64 = 1 << 20;

/// The fewest bytes left of a new content for each block of the signature: the signature then costs
/// at most a quarter of these bytes.
const NEW_BYTES_PER_BLOCK: u64 = 64;

/// Bits of a strong checksum beyond those that the number of comparisons requires: one content in
/// 2^24 gets a false match. The digest of the whole then does not agree, and the content is sent
/// without copies.
const STRONG_SPARE_BITS: u32 = 24;

/// How a content is cut and summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureParams {
    /// The length of a block, in bytes.
    pub block_len_bytes: u32,
    /// The kind of the weak checksums.
    pub weak: WeakKind,
    /// The kind of the strong checksums.
    pub strong: StrongKind,
    /// The length to which the strong checksums are cut, in bytes.
    pub strong_len_bytes: u8,
    /// The seed of the strong checksums' key; must be drawn at random, see [`crate::strong`].
    pub seed: u64,
}

/// A signature cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    /// The stream failed.
    #[error("cannot read the signature")]
    Io(#[source] io::Error),
    /// The stream ends too early.
    #[error("the signature is truncated after {blocks} blocks")]
    Truncated {
        /// The number of blocks in complete groups.
        blocks: u64,
    },
    /// The first bytes are another format's.
    #[error("not a signature")]
    NotASignature,
    /// A version that this program cannot read.
    #[error("signature version {0} is not supported, only version {VERSION}; update the older side")]
    Version(u16),
    /// A kind of checksum that this program does not know.
    #[error("the {which} checksums of the signature are of the unknown kind {code}; update the older side")]
    Kind {
        /// `weak` or `strong`.
        which: &'static str,
        /// The number of the kind.
        code: u8,
    },
    /// A rule of the format is broken.
    #[error("the signature is invalid: {0}")]
    Impossible(&'static str),
    /// The signature has more blocks than the reader accepts.
    #[error("the signature has {blocks} blocks, more than the limit of {blocks_max}; request larger blocks")]
    TooManyBlocks {
        /// The announced number.
        blocks: u64,
        /// The limit.
        blocks_max: u64,
    },
    /// Bytes changed on the way.
    #[error("the signature is damaged at block {block}")]
    Checksum {
        /// The first block of the damaged group; also 0 for a damaged header.
        block: u64,
    },
}

impl SignatureParams {
    /// The parameters for a content of `len_bytes`: blocks as long as the square root of the
    /// length, as rsync chooses them, and strong checksums just long enough. `seed` must be drawn
    /// at random.
    #[must_use]
    pub fn for_content(len_bytes: u64, seed: u64) -> Self {
        let by_rsync = (len_bytes.isqrt() & !7).clamp(u64::from(BLOCK_LEN_MIN), BLOCK_LEN_RSYNC_MAX);
        let block_len = match len_bytes.div_ceil(by_rsync) {
            blocks if blocks > BLOCKS_MAX => len_bytes.div_ceil(BLOCKS_MAX).next_multiple_of(4096),
            _ => by_rsync,
        };
        Self::with_block_len(
            len_bytes,
            // Contents beyond 16 TiB get more than `BLOCKS_MAX` blocks.
            block_len.min(u64::from(BLOCK_LEN_MAX)) as u32,
            seed,
        )
    }

    /// As [`Self::for_content`] with another block length, clamped to the possible range.
    #[must_use]
    pub fn with_block_len(len_bytes: u64, block_len_bytes: u32, seed: u64) -> Self {
        let block_len_bytes = block_len_bytes.clamp(1, BLOCK_LEN_MAX);
        let blocks = len_bytes.div_ceil(u64::from(block_len_bytes));
        // As many comparisons as there are offsets in a new content of the same length, times
        // blocks.
        let bits = bits_of(len_bytes) + bits_of(blocks) + STRONG_SPARE_BITS;
        // At most 64 + 64 + 24 bits.
        let strong_len_bytes = (bits.div_ceil(8) as u8).max(STRONG_LEN_MIN);
        Self {
            block_len_bytes,
            weak: WeakKind::Rsync,
            strong: StrongKind::Blake3,
            strong_len_bytes,
            seed,
        }
    }

    /// The parameters for an excerpt in blocks of this length ([`crate::excerpt`]): the shortest
    /// strong checksums. Excerpts are short, and a weak checksum has to agree first: of an excerpt
    /// and literals of 64 MiB each, less than one comparison in 2^26 is wrong, and costs bytes.
    #[must_use]
    pub fn for_excerpt(block_len_bytes: u32, seed: u64) -> Self {
        Self {
            strong_len_bytes: STRONG_LEN_MIN,
            ..Self::with_block_len(0, block_len_bytes, seed)
        }
    }

    /// The parameters for the rest of a base and of a new content that group sums leave over, with
    /// these lengths ([`crate::groups`]). Blocks are one leaf long, so that a change in place costs
    /// no more than that. They are longer where much is left of the base (a fourth of rsync's
    /// choice), or where little is left of the new content beside it, as after a truncation. Block
    /// lengths divide a group.
    #[must_use]
    pub fn for_groups(kind: LeafKind, base_len_bytes: u64, new_len_bytes: u64, seed: u64) -> Self {
        let leaf_len = u64::from(LEAF_LEN_BYTES);
        let wanted = (base_len_bytes.isqrt() / 4).min(BLOCK_LEN_RSYNC_MAX);
        let blocks_max = (new_len_bytes / NEW_BYTES_PER_BLOCK).clamp(1, BLOCKS_MAX);
        let wanted = wanted.max(base_len_bytes.div_ceil(blocks_max)).max(leaf_len);
        let block_len = wanted.min(GROUP_LEN_BYTES).next_power_of_two();
        Self {
            weak: WeakKind::Crc32c,
            strong: StrongKind::Tree(kind),
            // At most a MiB. The number of comparisons follows from the longer content.
            ..Self::with_block_len(base_len_bytes.max(new_len_bytes), block_len as u32, seed)
        }
    }

    /// The number of blocks of a content of `len_bytes`.
    #[must_use]
    pub fn blocks(&self, len_bytes: u64) -> u64 {
        len_bytes.div_ceil(u64::from(self.block_len_bytes.max(1)))
    }

    /// The length of the stream for a content of `len_bytes`.
    #[must_use]
    pub fn stream_len_bytes(&self, len_bytes: u64) -> u64 {
        let blocks = self.blocks(len_bytes);
        let per_block = 4 + u64::from(self.strong_len_bytes);
        wire::HEADER_LEN as u64
            + blocks.saturating_mul(per_block)
            + blocks.div_ceil(wire::GROUP_BLOCKS).saturating_mul(4)
    }
}

fn bits_of(value: u64) -> u32 {
    u64::BITS - value.leading_zeros()
}

/// A whole signature in memory.
#[derive(Clone, Debug)]
pub struct Signature {
    params: SignatureParams,
    content_len_bytes: u64,
    /// False if the content's length is unknown; `content_len_bytes` then counts the last block as
    /// whole.
    is_len_known: bool,
    hasher: StrongHasher,
    weak: Vec<u32>,
    /// The strong checksums, one after the other, each `strong_len_bytes` long.
    strong: Vec<u8>,
}

impl Signature {
    /// The signature of a content in memory.
    #[must_use]
    pub fn of(content: &[u8], params: SignatureParams) -> Self {
        let block_len = params.block_len_bytes.clamp(1, BLOCK_LEN_MAX) as usize;
        let hasher = StrongHasher::for_blocks(params.strong, params.seed, block_len);
        let mut signature = Self {
            params,
            content_len_bytes: content.len() as u64,
            is_len_known: true,
            hasher,
            weak: Vec::new(),
            strong: Vec::new(),
        };
        signature.params.block_len_bytes = block_len as u32;
        signature.make_room(
            content.len().div_ceil(block_len),
            signature.params.blocks(content.len() as u64),
        );
        for block in content.chunks(block_len) {
            let strong = signature.hasher.of(block);
            signature.weak.push(params.weak.of_block(block, block_len));
            signature.strong.extend_from_slice(&strong[..signature.strong_len()]);
        }
        signature
    }

    /// A signature of checksums that came in another format. `content_len_bytes` is the content's
    /// length or, as an error, its upper bound.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn from_checksums(
        params: SignatureParams,
        content_len_bytes: Result<u64, u64>,
        weak: Vec<u32>,
        strong: Vec<u8>,
    ) -> Self {
        Self {
            params,
            content_len_bytes: content_len_bytes.unwrap_or_else(|most| most),
            is_len_known: content_len_bytes.is_ok(),
            hasher: StrongHasher::for_blocks(params.strong, params.seed, params.block_len_bytes as usize),
            weak,
            strong,
        }
    }

    /// Reads a whole signature, and nothing beyond it. Memory follows the bytes that arrive.
    ///
    /// # Errors
    /// If the stream fails, is not a signature, is damaged or cut short, or has more than
    /// `blocks_max` blocks.
    pub fn read(mut stream: impl Read, blocks_max: u64) -> Result<Self, SignatureError> {
        let (params, content_len_bytes, header_crc) = wire::read_header(&mut stream)?;
        let blocks = params.blocks(content_len_bytes);
        if blocks > blocks_max {
            return Err(SignatureError::TooManyBlocks { blocks, blocks_max });
        }
        let mut signature = Self {
            params,
            content_len_bytes,
            is_len_known: true,
            hasher: StrongHasher::for_blocks(params.strong, params.seed, params.block_len_bytes as usize),
            weak: Vec::new(),
            strong: Vec::new(),
        };
        let mut group = Vec::new();
        let mut first = 0;
        while first < blocks {
            let count = (blocks - first).min(wire::GROUP_BLOCKS);
            wire::read_group(&mut stream, &params, header_crc, first, count, &mut group)?;
            // At most a group.
            signature.make_room(count as usize, blocks);
            for block in group.chunks_exact(4 + signature.strong_len()) {
                let (weak, strong) = block.split_at(4);
                signature.weak.push(weak.try_into().map_or(0, u32::from_le_bytes));
                signature.strong.extend_from_slice(strong);
            }
            first += count;
        }
        Ok(signature)
    }

    /// How the content was cut and summed.
    #[must_use]
    pub fn params(&self) -> &SignatureParams {
        &self.params
    }

    /// The length of the content; see [`Self::is_len_known`].
    #[must_use]
    pub fn content_len_bytes(&self) -> u64 {
        self.content_len_bytes
    }

    /// Whether the content's length is known. Otherwise [`Self::content_len_bytes`] is an upper
    /// bound: the last block may be shorter. Our own signatures record the length, files of
    /// librsync do not.
    #[must_use]
    pub fn is_len_known(&self) -> bool {
        self.is_len_known
    }

    /// The number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.weak.len()
    }

    /// The weak checksums, block after block.
    #[must_use]
    pub fn weak(&self) -> &[u32] {
        &self.weak
    }

    /// The strong checksum of a block; `None` if there is no such block.
    #[must_use]
    pub fn strong(&self, block: usize) -> Option<&[u8]> {
        let len = self.strong_len();
        let start = block.checked_mul(len)?;
        self.strong.get(start..start.checked_add(len)?)
    }

    /// The hasher of the strong checksums, which the caller cuts to the signature's length.
    #[must_use]
    pub fn hasher(&self) -> &StrongHasher {
        &self.hasher
    }

    /// Makes room for `more` blocks in a signature that is announced to have `blocks`.
    fn make_room(&mut self, more: usize, blocks: u64) {
        let strong_len = self.strong_len();
        make_room(&mut self.weak, more, blocks);
        make_room(
            &mut self.strong,
            more * strong_len,
            blocks.saturating_mul(strong_len as u64),
        );
    }

    /// The length of a strong checksum, in bytes.
    pub(crate) fn strong_len(&self) -> usize {
        usize::from(self.params.strong_len_bytes).min(STRONG_LEN_MAX)
    }
}

const _: () = assert!(GROUP_LEN_BYTES.is_power_of_two());

fn check_lengths(params: &SignatureParams, content_len_bytes: u64) -> Result<(), SignatureError> {
    let wrong = if params.block_len_bytes == 0 || params.block_len_bytes > BLOCK_LEN_MAX {
        "its block length is impossible"
    } else if params.strong_len_bytes < STRONG_LEN_MIN || usize::from(params.strong_len_bytes) > STRONG_LEN_MAX {
        "its strong checksums have an impossible length"
    } else if WeakKind::from_code(params.weak.code()).is_none() || StrongKind::from_code(params.strong.code()).is_none()
    {
        "its checksums are of kinds that only librsync uses"
    } else if matches!(params.strong, StrongKind::Tree(_)) && !params.block_len_bytes.is_multiple_of(LEAF_LEN_BYTES) {
        "its blocks do not consist of whole leaves"
    } else if content_len_bytes > FILE_LEN_MAX {
        "its content is too long for a file"
    } else {
        return Ok(());
    };
    Err(SignatureError::Impossible(wrong))
}

#[cfg(test)]
mod tests;
