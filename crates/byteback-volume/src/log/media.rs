//! The device with its areas: sealed blocks are read and written here, and nowhere else.

use std::sync::Arc;

use byteback_host::block::{BLOCK_LEN_BYTES, BlockDevice};

use crate::error::{Result, VolumeError};
use crate::format::{Address, Areas, Block, Kind, SUMMARIES_PER_BLOCK, Summary, VolumeId, zeros};
use crate::statistics::{Written, WrittenCounters};

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Media {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) id: VolumeId,
    pub(crate) areas: Areas,
    /// Counters of written blocks.
    pub(crate) written: Arc<WrittenCounters>,
}

impl Media {
    /// Reads any block.
    pub(crate) fn read(&self, address: Address) -> Result<Box<Block>> {
        let mut block = zeros();
        match self.device.read_blocks(u64::from(address.0), &mut block[..]) {
            Ok(()) => Ok(block),
            Err(source) => Err(VolumeError::Unreadable { address, source }),
        }
    }

    /// Reads a block that must be sealed as this kind.
    pub(crate) fn read_sealed(&self, address: Address, kind: Kind) -> Result<Box<Block>> {
        let block = self.read(address)?;
        match self.id.is_sealed(&block, kind, address) {
            true => Ok(block),
            false => Err(VolumeError::Damaged {
                address,
                what: kind.name(),
            }),
        }
    }

    /// Writes adjacent blocks.
    pub(crate) fn write(&self, first: Address, blocks: &[u8], what: Written) -> Result<()> {
        self.written.add(what, (blocks.len() / BLOCK_LEN_BYTES) as u64);
        Ok(self.device.write_blocks(u64::from(first.0), blocks)?)
    }

    /// Writes buffers from several places to adjacent blocks.
    pub(crate) fn write_vectored(&self, first: Address, blocks: &[&[u8]], what: Written) -> Result<()> {
        let len_bytes: usize = blocks.iter().map(|blocks| blocks.len()).sum();
        self.written.add(what, (len_bytes / BLOCK_LEN_BYTES) as u64);
        Ok(self.device.write_blocks_vectored(u64::from(first.0), blocks)?)
    }

    /// The same of blocks that are given away; answers memory that is not needed.
    pub(crate) fn write_owned(
        &self,
        first: Address,
        blocks: Vec<Box<Block>>,
        what: Written,
    ) -> Result<Vec<Box<Block>>> {
        self.written.add(what, blocks.len() as u64);
        Ok(self.device.write_owned_blocks(u64::from(first.0), blocks)?)
    }

    /// Seals a block and writes it.
    pub(crate) fn write_sealed(&self, address: Address, kind: Kind, block: &mut Block) -> Result<()> {
        self.id.seal(block, kind, address);
        let what = match kind {
            Kind::Node => Written::Node,
            _ => Written::Tables,
        };
        self.write(address, &block[..], what)
    }

    /// Reads the summaries of a segment.
    pub(crate) fn read_summaries(&self, segment: u32) -> Result<Arc<[Summary]>> {
        let first = self.areas.summary_of(segment).0;
        let mut summaries = Vec::new();
        for (number, start) in (0..self.areas.summary_blocks()).zip((0..).step_by(SUMMARIES_PER_BLOCK as usize)) {
            let block = self.read_sealed(Address(first + number), Kind::Summary)?;
            let end = self.areas.segment_blocks.min(start + SUMMARIES_PER_BLOCK);
            summaries.extend((start..end).map(|index| Summary::read(&block, index)));
        }
        Ok(summaries.into())
    }

    /// Writes the summaries of a segment, from a block on.
    pub(crate) fn write_summaries(&self, first: Address, summaries: &[Summary]) -> Result<u32> {
        let mut blocks = Vec::new();
        let mut address = first;
        for some in summaries.chunks(SUMMARIES_PER_BLOCK as usize) {
            let mut block = zeros();
            for (index, summary) in (0..).zip(some) {
                summary.write(&mut block, index);
            }
            self.id.seal(&mut block, Kind::Summary, address);
            blocks.extend_from_slice(&block[..]);
            address.0 += 1;
        }
        self.write(first, &blocks, Written::Tables)?;
        Ok(u32::try_from(blocks.len() / BLOCK_LEN_BYTES).unwrap_or(0))
    }
}
