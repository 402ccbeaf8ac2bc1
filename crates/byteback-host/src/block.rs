//! Block devices: a fixed number of blocks of 4 KiB that are read, written and made durable.
//!
//! The trait promises what a careful file system may rely on, and no more:
//!
//! - a write is durable after a later [`BlockDevice::flush`] has returned `Ok`;
//! - until then a crash keeps, loses, tears (at 512-byte sectors) and reorders writes as it likes;
//! - discarded blocks hold arbitrary bytes until they are written again.
//!
//! After a failed flush nothing is known about the writes since the last good one, and flushing
//! again does not help: the caller must write them anew.
//!
//! [`RealBlockDevice`] is a file or a device of the machine, [`SimBlockDevice`] the adversary,
//! [`CountedDevice`] counts calls and bytes, [`QueuedDevice`] writes in the background. Out of
//! scope: caching, atomicity of a block, partial blocks.

mod counted;
mod queued;
mod real;
mod sim;

use std::fmt::Debug;
use std::io;

pub use counted::{BlockCounters, CountedDevice};
pub use queued::QueuedDevice;
pub use real::{Access, DeviceInUse, RealBlockDevice};
pub use sim::SimBlockDevice;

/// The length of a block, in bytes.
pub const BLOCK_LEN_BYTES: usize = 4096;

/// A block whose ownership is passed on.
pub type OwnedBlock = Box<[u8; BLOCK_LEN_BYTES]>;

/// See the module. Addresses are block numbers, from 0. Buffers hold a whole number of blocks;
/// other lengths, and ranges beyond the device, are refused with `InvalidInput`.
pub trait BlockDevice: Send + Sync + Debug {
    /// The number of blocks.
    fn len_blocks(&self) -> u64;

    /// Fills `blocks` from the block `first` on.
    ///
    /// # Errors
    /// The system's error; `blocks` is then partly overwritten.
    fn read_blocks(&self, first: u64, blocks: &mut [u8]) -> io::Result<()>;

    /// Writes `blocks` from the block `first` on.
    ///
    /// # Errors
    /// The system's error; any part of it may have been written.
    fn write_blocks(&self, first: u64, blocks: &[u8]) -> io::Result<()>;

    /// Writes several buffers, one after the other, from the block `first` on, as
    /// [`BlockDevice::write_blocks`] would their concatenation.
    ///
    /// # Errors
    /// As there.
    fn write_blocks_vectored(&self, first: u64, blocks: &[&[u8]]) -> io::Result<()> {
        match blocks {
            [blocks] => self.write_blocks(first, blocks),
            _ => self.write_blocks(first, &blocks.concat()),
        }
    }

    /// As [`BlockDevice::write_blocks_vectored`], but takes the blocks, which may be written later:
    /// at the latest before any other access to these addresses and before a flush returns. A
    /// failure of a delayed write fails every later write and flush. Returns unused blocks with
    /// arbitrary contents for reuse.
    ///
    /// # Errors
    /// As there; the blocks are then lost.
    fn write_owned_blocks(&self, first: u64, blocks: Vec<OwnedBlock>) -> io::Result<Vec<OwnedBlock>> {
        let slices: Vec<&[u8]> = blocks.iter().map(|block| &block[..]).collect();
        self.write_blocks_vectored(first, &slices)?;
        Ok(blocks)
    }

    /// Makes all previous writes durable.
    ///
    /// # Errors
    /// The system's error; see the module.
    fn flush(&self) -> io::Result<()>;

    /// Declares the contents of these blocks unneeded. A device without support does nothing.
    ///
    /// # Errors
    /// The system's error, except that of missing support.
    fn discard(&self, first: u64, count: u64) -> io::Result<()>;
}

/// Refuses buffers that are not a whole number of blocks of the device; returns that number.
fn check_place(len_blocks: u64, first: u64, len_bytes: usize) -> io::Result<u64> {
    let count = (len_bytes / BLOCK_LEN_BYTES) as u64;
    let is_whole = len_bytes.is_multiple_of(BLOCK_LEN_BYTES);
    let is_there = first.checked_add(count).is_some_and(|end| end <= len_blocks);
    if is_whole && is_there {
        return Ok(count);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{len_bytes} bytes at block {first} are not whole blocks within a device of {len_blocks} blocks"),
    ))
}

#[cfg(test)]
mod tests;
