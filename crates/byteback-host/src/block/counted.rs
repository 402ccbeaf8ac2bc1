//! A device that counts its calls and bytes.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{BLOCK_LEN_BYTES, BlockDevice, OwnedBlock};

/// Calls and bytes since the device was wrapped, including failed calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounters {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Calls that wrote.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes discarded.
    pub discarded_bytes: u64,
}

/// A device that counts its calls and bytes.
#[derive(Debug)]
pub struct CountedDevice<D> {
    inner: D,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    discarded_bytes: AtomicU64,
}

impl<D> CountedDevice<D> {
    /// Wraps `inner`, with all counters at zero.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            discarded_bytes: AtomicU64::new(0),
        }
    }

    /// The counters so far.
    #[must_use]
    pub fn counters(&self) -> BlockCounters {
        BlockCounters {
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            flushes: self.flushes.load(Ordering::Relaxed),
            discarded_bytes: self.discarded_bytes.load(Ordering::Relaxed),
        }
    }
}

impl<D: BlockDevice> BlockDevice for CountedDevice<D> {
    fn len_blocks(&self) -> u64 {
        self.inner.len_blocks()
    }

    fn read_blocks(&self, first: u64, blocks: &mut [u8]) -> io::Result<()> {
        self.read_bytes.fetch_add(blocks.len() as u64, Ordering::Relaxed);
        self.inner.read_blocks(first, blocks)
    }

    fn write_blocks(&self, first: u64, blocks: &[u8]) -> io::Result<()> {
        self.written_bytes.fetch_add(blocks.len() as u64, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.inner.write_blocks(first, blocks)
    }

    fn write_blocks_vectored(&self, first: u64, blocks: &[&[u8]]) -> io::Result<()> {
        let len_bytes: usize = blocks.iter().map(|blocks| blocks.len()).sum();
        self.written_bytes.fetch_add(len_bytes as u64, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.inner.write_blocks_vectored(first, blocks)
    }

    fn write_owned_blocks(&self, first: u64, blocks: Vec<OwnedBlock>) -> io::Result<Vec<OwnedBlock>> {
        let len_bytes = blocks.len() as u64 * BLOCK_LEN_BYTES as u64;
        self.written_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.inner.write_owned_blocks(first, blocks)
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.inner.flush()
    }

    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        let len_bytes = count.saturating_mul(BLOCK_LEN_BYTES as u64);
        self.discarded_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        self.inner.discard(first, count)
    }
}
