//! A file whose blocks are compared, as it can be asked: what it looks like, and what it holds.
//! Real files are; a reader past the page cache and the files of tests bring their own.

use std::io;

use byteback_host::tree::Inode;

use super::{BLOCK_LEN, Stamp};

/// A file as it can be asked.
pub trait Backing {
    /// What it looks like.
    ///
    /// # Errors
    /// The system's error.
    fn stamp(&self) -> io::Result<Stamp>;

    /// Reads at `offset`: how many bytes; 0 only at the end.
    ///
    /// # Errors
    /// The system's error.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}

impl Backing for Inode {
    fn stamp(&self) -> io::Result<Stamp> {
        Ok(Stamp::of(&self.stat()?))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        Self::read_at(self, offset, buffer)
    }
}

/// Reads until `buffer` is full or the file ends.
pub(super) fn read_full(backing: &impl Backing, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled: usize = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match backing.read_at(offset.saturating_add(filled as u64), rest)? {
            0 => break,
            count => filled = filled.saturating_add(count),
        }
    }
    Ok(filled)
}

/// Room for a block, beginning where reads past the page cache may begin.
pub(super) fn aligned_block(room: &mut Vec<u8>) -> &mut [u8] {
    let len = BLOCK_LEN as usize;
    room.resize(2 * len, 0);
    let skipped = room.as_ptr().align_offset(len).min(len);
    room.get_mut(skipped..skipped.saturating_add(len)).unwrap_or_default()
}
