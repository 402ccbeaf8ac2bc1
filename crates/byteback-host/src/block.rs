//! Block devices: a fixed number of blocks of 4 KiB that are read, written and made durable.
//!
//! The trait promises what a careful file system may rely on, and no more:
//!
//! - what was written is durable after a later [`BlockDevice::flush`] returned `Ok`;
//! - until then a crash keeps, loses, tears (at 512-byte sectors) and reorders writes as it likes;
//! - blocks that were discarded hold anything until they are written again.
//!
//! After a failed flush nothing is known about what was written since the last good one, and
//! flushing again does not help: whoever goes on writes it anew.
//!
//! [`RealBlockDevice`] is a file or a device of the machine, [`SimBlockDevice`] the adversary,
//! [`CountedDevice`] counts what passes, [`QueuedDevice`] lets writers go on. What this does not
//! do: caching, atomicity of a block, partial blocks.

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

/// A block that is given away.
pub type OwnedBlock = Box<[u8; BLOCK_LEN_BYTES]>;

/// See the module. Addresses are numbers of blocks, from 0. Buffers hold a whole number of blocks;
/// others, and what does not lie on the device, are refused with `InvalidInput`.
pub trait BlockDevice: Send + Sync + Debug {
    /// How many blocks there are.
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

    /// Writes what lies in several places, one behind the other, from the block `first` on: as
    /// [`BlockDevice::write_blocks`] of all of it.
    ///
    /// # Errors
    /// As there.
    fn write_blocks_vectored(&self, first: u64, blocks: &[&[u8]]) -> io::Result<()> {
        match blocks {
            [blocks] => self.write_blocks(first, blocks),
            _ => self.write_blocks(first, &blocks.concat()),
        }
    }

    /// As [`BlockDevice::write_blocks_vectored`], of blocks that the caller has no more use for:
    /// they may be written later, but before anything else is done with these blocks or a flush
    /// returns. What fails then fails each later write and flush. Answers blocks that nobody needs,
    /// whatever is in them.
    ///
    /// # Errors
    /// As there; the blocks are lost then.
    fn write_owned_blocks(&self, first: u64, blocks: Vec<OwnedBlock>) -> io::Result<Vec<OwnedBlock>> {
        let slices: Vec<&[u8]> = blocks.iter().map(|block| &block[..]).collect();
        self.write_blocks_vectored(first, &slices)?;
        Ok(blocks)
    }

    /// Makes everything durable that was written before.
    ///
    /// # Errors
    /// The system's error; see the module.
    fn flush(&self) -> io::Result<()>;

    /// Says that nobody needs what these blocks hold. A device that has no use for it does nothing.
    ///
    /// # Errors
    /// The system's error, but for not supporting it.
    fn discard(&self, first: u64, count: u64) -> io::Result<()>;
}

/// Refuses what is no whole number of blocks of the device; answers that number.
fn check_place(len_blocks: u64, first: u64, len_bytes: usize) -> io::Result<u64> {
    let count = (len_bytes / BLOCK_LEN_BYTES) as u64;
    let is_whole = len_bytes.is_multiple_of(BLOCK_LEN_BYTES);
    let is_there = first.checked_add(count).is_some_and(|end| end <= len_blocks);
    if is_whole && is_there {
        return Ok(count);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{len_bytes} bytes at block {first} are no blocks of a device of {len_blocks}"),
    ))
}

#[cfg(test)]
mod tests;
