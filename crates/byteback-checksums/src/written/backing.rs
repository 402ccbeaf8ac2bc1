//! Access to a file whose blocks are compared: its stamp and its bytes. Implemented by [`Inode`],
//! by a reader that bypasses the page cache, and by the files of tests.

use std::io;

use byteback_host::tree::Inode;

use super::{BLOCK_LEN, Stamp};

/// A file whose stamp and bytes can be read.
pub trait Backing {
    /// The file's identity, length and times.
    ///
    /// # Errors
    /// The system's error.
    fn stamp(&self) -> io::Result<Stamp>;

    /// Reads at `offset` and returns the number of bytes; 0 only at the end.
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

/// A buffer for one block, aligned for reads that bypass the page cache.
pub(super) fn aligned_block(room: &mut Vec<u8>) -> &mut [u8] {
    let len = BLOCK_LEN as usize;
    room.resize(2 * len, 0);
    let skipped = room.as_ptr().align_offset(len).min(len);
    room.get_mut(skipped..skipped.saturating_add(len)).unwrap_or_default()
}
