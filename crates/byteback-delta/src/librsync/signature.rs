//! Signatures in librsync's format, which the stock `rdiff signature` writes and `rdiff delta`
//! reads.
//!
//! The format (librsync's `librsync.h`, `mksum.c` and `readsums.c` are its only description): a
//! magic number for the kinds, the blocks' length, the strong checksums' length, and then each
//! block's weak and strong checksum. All numbers have four bytes, big-endian.
//!
//! | magic | weak | strong | |
//! |---|---|---|---|
//! | `72 73 01 36` | rollsum | MD4 | versions before 1.0 |
//! | `72 73 01 37` | rollsum | BLAKE2b | |
//! | `72 73 01 46` | Rabin-Karp | MD4 | since 2.2 |
//! | `72 73 01 47` | Rabin-Karp | BLAKE2b | since 2.2; the choice of [`librsync_params`] |
//!
//! The format lacks the content's length, so the last block may have any
//! ([`Signature::is_len_known`]); the number of blocks, so only the end of the stream ends them;
//! and a checksum of its own, so damage shows only in the results. Neither strong checksum has a
//! key. Where the other end is ours, our own signature is better.

use std::io::{self, ErrorKind, Read, Write};

use crate::room::make_room;
use crate::signature::{BLOCK_LEN_MAX, Signature, SignatureError, SignatureParams};
use crate::strong::{STRONG_LEN_MAX, StrongHasher, StrongKind};
use crate::weak::WeakKind;

/// The shortest strong checksum accepted: the least that librsync recommends for any content.
/// Shorter ones would give false matches.
pub const LIBRSYNC_STRONG_LEN_MIN: u8 = 5;

/// The shortest block that librsync chooses.
const BLOCK_LEN_CHOSEN_MIN: u64 = 256;

/// Magic, length of blocks, length of strong checksums.
const HEADER_LEN: usize = 12;

/// The kinds, by the number added to 0x7273_0100 in the magic.
const KINDS: [(u8, WeakKind, StrongKind); 4] = [
    (0x36, WeakKind::LibrsyncRollsum, StrongKind::Md4),
    (0x37, WeakKind::LibrsyncRollsum, StrongKind::Blake2b256),
    (0x46, WeakKind::LibrsyncRabinKarp, StrongKind::Md4),
    (0x47, WeakKind::LibrsyncRabinKarp, StrongKind::Blake2b256),
];

/// The parameters that librsync chooses for a content of `len_bytes`: Rabin-Karp and full-length
/// BLAKE2b checksums of blocks whose length is the square root.
#[must_use]
pub fn librsync_params(len_bytes: u64) -> SignatureParams {
    let by_root = len_bytes.isqrt() & !127;
    SignatureParams {
        // At most 16 MiB.
        block_len_bytes: by_root.clamp(BLOCK_LEN_CHOSEN_MIN, u64::from(BLOCK_LEN_MAX)) as u32,
        weak: WeakKind::LibrsyncRabinKarp,
        strong: StrongKind::Blake2b256,
        // 32 fits.
        strong_len_bytes: StrongKind::Blake2b256.len_bytes() as u8,
        seed: 0,
    }
}

/// Reads a signature of librsync up to the end of the stream. `content_len_bytes` is the length of
/// the content if it is known by other means; then the last block's length is known, too.
///
/// # Errors
/// If the stream fails, is not a signature or ends within a block, has more than `blocks_max`
/// blocks or another number than the length requires, or its blocks are longer than
/// [`BLOCK_LEN_MAX`] or its strong checksums shorter than [`LIBRSYNC_STRONG_LEN_MIN`].
pub fn read_librsync_signature(
    mut stream: impl Read,
    content_len_bytes: Option<u64>,
    blocks_max: u64,
) -> Result<Signature, SignatureError> {
    let mut header = [0; HEADER_LEN];
    match read_up_to(&mut stream, &mut header)? {
        HEADER_LEN => {}
        0..4 => return Err(SignatureError::NotASignature),
        _ if header[..3] != [0x72, 0x73, 0x01] => return Err(SignatureError::NotASignature),
        _ => return Err(SignatureError::Truncated { blocks: 0 }),
    }
    let kinds = KINDS.iter().find(|(code, ..)| header[..4] == magic(*code));
    let &(_, weak, strong) = kinds.ok_or(SignatureError::NotASignature)?;
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (block_len_bytes, strong_len) = (number(4), number(8));
    if block_len_bytes == 0 || block_len_bytes > BLOCK_LEN_MAX {
        return Err(SignatureError::Impossible("its block length is not supported"));
    }
    let strong_len_bytes = u8::try_from(strong_len).unwrap_or(u8::MAX);
    if strong_len_bytes < LIBRSYNC_STRONG_LEN_MIN || usize::from(strong_len_bytes) > strong.len_bytes() {
        return Err(SignatureError::Impossible(
            "its strong checksums are too short to rely on, or too long for their kind",
        ));
    }
    let params = SignatureParams {
        block_len_bytes,
        weak,
        strong,
        strong_len_bytes,
        seed: 0,
    };
    let blocks_expected = content_len_bytes.map(|len_bytes| params.blocks(len_bytes));
    if let Some(blocks) = blocks_expected.filter(|&blocks| blocks > blocks_max) {
        return Err(SignatureError::TooManyBlocks { blocks, blocks_max });
    }
    let mut sums = Vec::new();
    let (mut weak_sums, mut strong_sums) = (Vec::new(), Vec::new());
    let sums_len = 4 + usize::from(strong_len_bytes);
    // A batch of blocks at a time; memory follows the bytes that arrive.
    sums.resize(1024 * sums_len, 0);
    loop {
        let filled = read_up_to(&mut stream, &mut sums)?;
        let blocks = weak_sums.len() as u64 + (filled / sums_len) as u64;
        if blocks > blocks_max {
            return Err(SignatureError::TooManyBlocks { blocks, blocks_max });
        }
        // At most 1024 blocks.
        let (came, expected) = (filled / sums_len, blocks_expected.unwrap_or(u64::MAX));
        make_room(&mut weak_sums, came, expected);
        let strong_len = usize::from(strong_len_bytes);
        make_room(
            &mut strong_sums,
            came * strong_len,
            expected.saturating_mul(strong_len as u64),
        );
        for block in sums[..filled].chunks_exact(sums_len) {
            let (weak, strong) = block.split_at(4);
            weak_sums.push(weak.try_into().map_or(0, u32::from_be_bytes));
            strong_sums.extend_from_slice(strong);
        }
        if !filled.is_multiple_of(sums_len) {
            return Err(SignatureError::Truncated { blocks });
        }
        if filled < sums.len() {
            break;
        }
    }
    // For streams whose number of blocks was not known in advance.
    weak_sums.shrink_to_fit();
    strong_sums.shrink_to_fit();
    let blocks = weak_sums.len() as u64;
    if blocks_expected.is_some_and(|expected| expected != blocks) {
        return Err(SignatureError::Impossible(
            "its number of blocks does not fit the content: it belongs to another one, or is truncated",
        ));
    }
    Ok(Signature::from_checksums(
        params,
        content_len_bytes.ok_or(blocks * u64::from(block_len_bytes)),
        weak_sums,
        strong_sums,
    ))
}

/// Fills the buffer up to the end of the stream; returns the number of bytes read.
fn read_up_to(stream: &mut impl Read, buffer: &mut [u8]) -> Result<usize, SignatureError> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(SignatureError::Io(error)),
        }
    }
    Ok(filled)
}

fn magic(code: u8) -> [u8; 4] {
    [0x72, 0x73, 0x01, code]
}

/// Writes a signature for `rdiff delta` from a content that arrives piece by piece. Give `out` a
/// buffer: blocks are written one by one.
///
/// Memory: one block.
pub struct LibrsyncSignatureWriter<W> {
    out: W,
    params: SignatureParams,
    hasher: StrongHasher,
    /// The bytes of an incomplete block.
    block: Vec<u8>,
    /// The checksums of a block of zeros, once one was needed.
    zero_block: Option<(u32, [u8; STRONG_LEN_MAX])>,
}

impl<W: Write> LibrsyncSignatureWriter<W> {
    /// Begins a signature by writing its header; see [`librsync_params`].
    ///
    /// # Errors
    /// `InvalidInput` for parameters that librsync's format cannot express; otherwise the error of
    /// `out`.
    pub fn new(mut out: W, params: SignatureParams) -> io::Result<Self> {
        let kinds = KINDS
            .iter()
            .find(|(_, weak, strong)| (*weak, *strong) == (params.weak, params.strong));
        let strong_len = usize::from(params.strong_len_bytes);
        let has_lengths = (1..=BLOCK_LEN_MAX).contains(&params.block_len_bytes)
            && (usize::from(LIBRSYNC_STRONG_LEN_MIN)..=params.strong.len_bytes()).contains(&strong_len);
        let Some((code, ..)) = kinds.filter(|_| has_lengths) else {
            let message = "librsync has no signatures with checksums of these kinds and lengths";
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        };
        out.write_all(&magic(*code))?;
        out.write_all(&params.block_len_bytes.to_be_bytes())?;
        out.write_all(&u32::from(params.strong_len_bytes).to_be_bytes())?;
        Ok(Self {
            out,
            params,
            hasher: StrongHasher::for_blocks(params.strong, params.seed, params.block_len_bytes as usize),
            block: Vec::new(),
            zero_block: None,
        })
    }

    /// Adds the next bytes of the content.
    ///
    /// # Errors
    /// The error of the destination.
    pub fn push(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let block_len = self.block_len();
        while !bytes.is_empty() {
            if self.block.is_empty() && bytes.len() >= block_len {
                let (block, rest) = bytes.split_at(block_len);
                self.add_block(self.sums(block))?;
                bytes = rest;
                continue;
            }
            let (now, later) = bytes.split_at((block_len - self.block.len()).min(bytes.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            self.end_full_block()?;
        }
        Ok(())
    }

    /// Adds `len_bytes` zeros.
    ///
    /// # Errors
    /// The error of the destination.
    pub fn push_zeros(&mut self, mut len_bytes: u64) -> io::Result<()> {
        let block_len = self.block_len();
        while len_bytes > 0 {
            if self.block.is_empty() && len_bytes >= block_len as u64 {
                let sums = self.zero_block.unwrap_or_else(|| self.sums(&vec![0; block_len]));
                self.zero_block = Some(sums);
                self.add_block(sums)?;
                len_bytes -= block_len as u64;
                continue;
            }
            let filled = self.block.len();
            let now = (block_len - filled).min(usize::try_from(len_bytes).unwrap_or(usize::MAX));
            self.block.resize(filled + now, 0);
            len_bytes -= now as u64;
            self.end_full_block()?;
        }
        Ok(())
    }

    /// Writes the last block, if it is shorter, and flushes.
    ///
    /// # Errors
    /// The error of the destination.
    pub fn finish(mut self) -> io::Result<W> {
        if !self.block.is_empty() {
            self.add_block(self.sums(&self.block))?;
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn block_len(&self) -> usize {
        self.params.block_len_bytes as usize
    }

    fn sums(&self, block: &[u8]) -> (u32, [u8; STRONG_LEN_MAX]) {
        (self.params.weak.of(block), self.hasher.of(block))
    }

    fn end_full_block(&mut self) -> io::Result<()> {
        if self.block.len() < self.block_len() {
            return Ok(());
        }
        let sums = self.sums(&self.block);
        self.block.clear();
        self.add_block(sums)
    }

    fn add_block(&mut self, (weak, strong): (u32, [u8; STRONG_LEN_MAX])) -> io::Result<()> {
        self.out.write_all(&weak.to_be_bytes())?;
        self.out.write_all(&strong[..usize::from(self.params.strong_len_bytes)])
    }
}

#[cfg(test)]
mod tests;
