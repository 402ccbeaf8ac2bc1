//! Making a signature stream from a content that arrives piece by piece.

use std::io::{self, Write};

use super::{SignatureError, SignatureParams, check_lengths, wire};
use crate::strong::{STRONG_LEN_MAX, StrongHasher};

/// Writes the signature of a content as a stream. Holes cost a constant per block: the checksums of
/// a block of zeros are computed once.
///
/// Memory: one block and one group of checksums.
pub struct SignatureWriter<W> {
    out: W,
    params: SignatureParams,
    hasher: StrongHasher,
    header_crc: u32,
    content_len_bytes: u64,
    /// The number of bytes so far.
    len_bytes: u64,
    /// The bytes of an incomplete block.
    block: Vec<u8>,
    /// The checksums of an incomplete group.
    group: Vec<u8>,
    /// The number of blocks before the group.
    first_block: u64,
    /// The checksums of a block of zeros, once one was needed.
    zero_block: Option<(u32, [u8; STRONG_LEN_MAX])>,
}

impl<W: Write> SignatureWriter<W> {
    /// Begins the signature of a content of `content_len_bytes` by writing its header.
    ///
    /// # Errors
    /// `InvalidInput` for impossible parameters; otherwise the error of `out`.
    pub fn new(mut out: W, params: SignatureParams, content_len_bytes: u64) -> io::Result<Self> {
        check_lengths(&params, content_len_bytes)
            .map_err(|error: SignatureError| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let (header, header_crc) = wire::header(&params, content_len_bytes);
        out.write_all(&header)?;
        Ok(Self {
            out,
            params,
            hasher: StrongHasher::for_blocks(params.strong, params.seed, params.block_len_bytes as usize),
            header_crc,
            content_len_bytes,
            len_bytes: 0,
            block: Vec::new(),
            group: Vec::new(),
            first_block: 0,
            zero_block: None,
        })
    }

    /// Adds the next bytes of the content.
    ///
    /// # Errors
    /// `InvalidInput` if more come than were announced; otherwise the error of the destination.
    pub fn push(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.count(bytes.len() as u64)?;
        let block_len = self.block_len();
        while !bytes.is_empty() {
            if self.block.is_empty() && bytes.len() >= block_len {
                let (block, rest) = bytes.split_at(block_len);
                self.add_block(self.params.weak.of(block), self.hasher.of(block))?;
                bytes = rest;
                continue;
            }
            let (now, later) = bytes.split_at((block_len - self.block.len()).min(bytes.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == block_len {
                self.end_block()?;
            }
        }
        Ok(())
    }

    /// Adds `len_bytes` zeros.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_zeros(&mut self, mut len_bytes: u64) -> io::Result<()> {
        self.count(len_bytes)?;
        let block_len = self.block_len();
        while len_bytes > 0 {
            if self.block.is_empty() && len_bytes >= block_len as u64 {
                let (weak, strong) = *self.zero_block.get_or_insert_with(|| {
                    let zeros = vec![0; block_len];
                    (self.params.weak.of(&zeros), self.hasher.of(&zeros))
                });
                self.add_block(weak, strong)?;
                len_bytes -= block_len as u64;
                continue;
            }
            let filled = self.block.len();
            let now = (block_len - filled).min(usize::try_from(len_bytes).unwrap_or(usize::MAX));
            self.block.resize(filled + now, 0);
            len_bytes -= now as u64;
            if self.block.len() == block_len {
                self.end_block()?;
            }
        }
        Ok(())
    }

    /// Adds the next block by its checksums, as kept by storage: its bytes are not needed. The
    /// checksums must be of the parameters' kinds; `strong` is cut to the parameters' length.
    ///
    /// # Errors
    /// `InvalidInput` if bytes of a block are pending, `strong` is too short or no block is left;
    /// otherwise the error of the destination.
    pub fn push_sums(&mut self, weak: u32, strong: &[u8]) -> io::Result<()> {
        let strong_len = usize::from(self.params.strong_len_bytes).min(STRONG_LEN_MAX);
        let left = self.content_len_bytes - self.len_bytes;
        if !self.block.is_empty() || strong.len() < strong_len || left == 0 {
            let message = "checksums of a block at an impossible place";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut whole = [0; STRONG_LEN_MAX];
        whole[..strong_len].copy_from_slice(&strong[..strong_len]);
        self.len_bytes += left.min(self.block_len() as u64);
        self.add_block(weak, whole)
    }

    /// Writes the pending block and group, and flushes.
    ///
    /// # Errors
    /// `InvalidInput` if fewer bytes came than were announced; otherwise the error of the
    /// destination.
    pub fn finish(mut self) -> io::Result<W> {
        if self.len_bytes != self.content_len_bytes {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "only {} of {} announced bytes were supplied",
                    self.len_bytes, self.content_len_bytes
                ),
            ));
        }
        if !self.block.is_empty() {
            self.end_block()?;
        }
        if !self.group.is_empty() {
            self.end_group()?;
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn block_len(&self) -> usize {
        self.params.block_len_bytes as usize
    }

    fn count(&mut self, len_bytes: u64) -> io::Result<()> {
        self.len_bytes = self.len_bytes.saturating_add(len_bytes);
        if self.len_bytes > self.content_len_bytes {
            let message = format!("more bytes were supplied than the {} announced", self.content_len_bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(())
    }

    fn end_block(&mut self) -> io::Result<()> {
        let (weak, strong) = (
            self.params.weak.of_block(&self.block, self.block_len()),
            self.hasher.of(&self.block),
        );
        self.block.clear();
        self.add_block(weak, strong)
    }

    fn add_block(&mut self, weak: u32, strong: [u8; STRONG_LEN_MAX]) -> io::Result<()> {
        self.group.extend_from_slice(&weak.to_le_bytes());
        let strong_len = usize::from(self.params.strong_len_bytes).min(STRONG_LEN_MAX);
        self.group.extend_from_slice(&strong[..strong_len]);
        if self.group.len() == wire::GROUP_BLOCKS as usize * (4 + strong_len) {
            self.end_group()?;
        }
        Ok(())
    }

    fn end_group(&mut self) -> io::Result<()> {
        let crc = wire::group_crc(self.header_crc, self.first_block, &self.group);
        self.out.write_all(&self.group)?;
        self.out.write_all(&crc.to_le_bytes())?;
        self.first_block += wire::GROUP_BLOCKS;
        self.group.clear();
        Ok(())
    }
}
