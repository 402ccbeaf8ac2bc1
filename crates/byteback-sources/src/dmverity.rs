//! The hash tree of a block device that the kernel verifies (dm-verity), and the files on it
//! (SkySync, Table 1: block devices).
//!
//! ## When a checksum counts
//!
//! The file's file system is on a device whose only target is `verity`: the kernel returns no block
//! of it that does not have its hash, and the device cannot be written to. The device's table has
//! the root hash, the salt, the function, and the place of the hashes; it is read before and after.
//! Nodes of the tree are read from the hash device past the kernel, and count only if they follow
//! from that root ([`crate::merkle`]). The file system reports which blocks are the file's
//! (FIEMAP).
//!
//! That is why an image and its hashes side by side are not enough, although their superblock has
//! the rest: without reading the image, nothing proves that it was not written to since. Nor is a
//! table enough that lets damaged blocks pass (`ignore_corruption`) or checks each block only once
//! (`check_at_most_once`).
//!
//! ## Which blocks
//!
//! Whole blocks of a file in extents that are stored on the device unencoded. A last block that is
//! not full is read, because its hash includes the bytes behind the file's end. Only ext4 is
//! trusted: the addresses of a file system that spans several devices (btrfs) are not those of one
//! of them.

pub(crate) mod answers;
mod kernel;

use std::os::fd::{AsFd, BorrowedFd};

use byteback_extents::ByteRange;
use byteback_host::tree::Stat;

use self::answers::{Extent, Place, Table, target};
use self::kernel::{Kernel, RealKernel};
use crate::merkle::{Leaves, ReadNodes, Tree};
use byteback_checksums::source::{
    Description, Extraction, FileChecksums, Layout, Result, Run, Source, SourceError, Stamp, Unknown, read_file_at,
    regular_file,
};

/// The description of the dm-verity source.
pub const DESCRIPTION: Description = Description {
    name: "dm-verity",
    coverage: "whole blocks of files on ext4 on a device that the kernel verifies",
    cost: "a list of the file's extents, and reading and checking the hashes of its blocks: 1/128 of the file with SHA-256",
    permissions: "root (CAP_SYS_ADMIN): the device's table and the hash device",
};

/// Limit of the checksums in one run, in blocks.
const RUN_BLOCKS: u64 = 1 << 13;

/// Limit of the list of extents, which then takes 100 MB of memory.
const EXTENTS_MAX: usize = 1 << 21;

/// The number of attempts for a file that changes meanwhile: only an exchanged device does that.
const ATTEMPTS: u32 = 3;

/// A file on a device that the kernel verifies, as a source.
pub struct DmVeritySource<'a> {
    file: BorrowedFd<'a>,
}

impl<'a> DmVeritySource<'a> {
    /// The source for `file`, which is open for reading.
    ///
    /// # Errors
    /// [`SourceError::NotHere`] if it is not on such a device, or not on ext4;
    /// [`SourceError::NeedsRoot`].
    pub fn new(file: &'a impl AsFd) -> Result<Self> {
        let file = file.as_fd();
        Sealed::of(&RealKernel::new(file))?;
        Ok(Self { file })
    }
}

impl Source for DmVeritySource<'_> {
    fn description(&self) -> Description {
        DESCRIPTION
    }

    fn collect(&self) -> Result<FileChecksums> {
        FileChecksums::collect(ATTEMPTS, || Passage::begin(RealKernel::new(self.file)))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        read_file_at(self.file, offset, buffer)
    }

    fn is_unchanged(&self, stamp: &Stamp) -> Result<bool> {
        Ok(Sealed::of(&RealKernel::new(self.file))?.stamp() == *stamp)
    }
}

/// The facts about the file and its device beside the hashes.
#[derive(Debug)]
struct Sealed {
    stat: Stat,
    table: Table,
    extents: Vec<Extent>,
}

impl Sealed {
    fn of(kernel: &impl Kernel) -> Result<Self> {
        let stat = regular_file(kernel.stat())?;
        let status = kernel.status()?;
        let target = target(&status).map_err(SourceError::Malformed)?;
        let (text, len_bytes) = target.ok_or(SourceError::NotHere("the file's device is not a dm-verity device"))?;
        let table = Table::parse(text, len_bytes)?;
        if kernel.block_len_bytes()? < u64::from(table.block_len) {
            return Err(SourceError::NotHere(
                "the file system's blocks are shorter than the hashed blocks",
            ));
        }
        let mut extents: Vec<Extent> = Vec::new();
        loop {
            let from = extents.last().map_or(0, Extent::end);
            let (bytes, count) = kernel.extents(from)?;
            let more = Extent::parse_all(&bytes, count).map_err(SourceError::Malformed)?;
            for extent in more {
                if extents.last().map_or(0, Extent::end) > extent.start {
                    return Err(SourceError::Malformed("extents of a file that overlap"));
                }
                extents.push(extent);
            }
            // No extents, or the last one reaches the end.
            if count == 0
                || extents
                    .last()
                    .is_some_and(|extent| extent.is_last || extent.end() >= stat.size)
            {
                break;
            }
            if extents.len() > EXTENTS_MAX {
                return Err(SourceError::NotHere("the file has too many extents"));
            }
        }
        Ok(Self { stat, table, extents })
    }

    fn stamp(&self) -> Stamp {
        let mut witness = blake3::Hasher::new();
        witness.update(self.table.text.as_bytes());
        for extent in &self.extents {
            let (address, what) = match extent.place {
                Place::Data { address } => (address, 0_u64),
                Place::Zeros => (0, 1),
                Place::Unknown(why) => (0, 2 + why as u64),
            };
            for number in [extent.start, extent.len_bytes, address, what] {
                witness.update(&number.to_le_bytes());
            }
        }
        Stamp {
            witness: *witness.finalize().as_bytes(),
            ..Stamp::of(&self.stat)
        }
    }

    /// The runs of the file, ascending, whole blocks but for the end, each with the place of its
    /// first block on the device.
    fn runs(&self) -> Result<Vec<(ByteRange, Known)>> {
        let block_len = u64::from(self.table.block_len);
        let (mut runs, mut at) = (Vec::new(), 0);
        let mut up_to = |end: u64, known: Known| {
            if let Some(range) = ByteRange::new(at, end) {
                runs.push((range, known));
                at = end;
            }
        };
        for extent in &self.extents {
            let is_whole = |offset: u64| offset.is_multiple_of(block_len);
            let is_known = !matches!(extent.place, Place::Unknown(_));
            if !is_whole(extent.start) || (is_known && !is_whole(extent.len_bytes)) {
                return Err(SourceError::Malformed("an extent that is not a whole number of blocks"));
            }
            // An extent in the metadata may be of any length, and is rounded up to a block here.
            let end = extent
                .end()
                .div_ceil(block_len)
                .saturating_mul(block_len)
                .min(self.stat.size);
            up_to(extent.start.min(self.stat.size), Known::Zeros);
            match extent.place {
                Place::Zeros => up_to(end, Known::Zeros),
                Place::Unknown(why) => up_to(end, Known::Unknown(why)),
                Place::Data { address } if !is_whole(address) => {
                    return Err(SourceError::Malformed(
                        "an extent that does not begin at a block of the device",
                    ));
                }
                Place::Data { address } => {
                    let (mut start, whole) = (extent.start, end - end % block_len);
                    while start < whole {
                        let next = whole.min(start.saturating_add(RUN_BLOCKS * block_len));
                        let first = (address + (start - extent.start)) / block_len;
                        up_to(next, Known::Blocks { first });
                        start = next;
                    }
                    up_to(end, Known::Unknown(Unknown::Tail));
                }
            }
        }
        up_to(self.stat.size, Known::Zeros);
        Ok(runs)
    }
}

/// The knowledge about a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// The number of its first block on the device.
    Blocks {
        first: u64,
    },
    Zeros,
    Unknown(Unknown),
}

/// Nodes on the hash device.
struct Nodes<K> {
    kernel: K,
    /// The first byte of the tree.
    start: u64,
}

impl<K: Kernel> ReadNodes for Nodes<K> {
    fn read_nodes(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.kernel.read_hashes(self.start.saturating_add(offset), buffer)
    }
}

/// A single pass over the hashes of a file's blocks.
struct Passage<K> {
    sealed: Sealed,
    runs: std::vec::IntoIter<(ByteRange, Known)>,
    leaves: Leaves<Nodes<K>>,
    sums: Vec<u8>,
}

impl<K: Kernel> Passage<K> {
    fn begin(mut kernel: K) -> Result<Self> {
        let sealed = Sealed::of(&kernel)?;
        let shape = sealed
            .table
            .shape()
            .ok_or(SourceError::Malformed("an impossible shape of the hash tree"))?;
        kernel.open_hashes(&sealed.table.hash_device)?;
        let nodes = Nodes {
            kernel,
            start: sealed.table.hash_start,
        };
        Ok(Self {
            runs: sealed.runs()?.into_iter(),
            leaves: Leaves::new(Tree::new(nodes, shape, sealed.table.root.clone())),
            sums: Vec::new(),
            sealed,
        })
    }
}

impl<K: Kernel> Extraction for Passage<K> {
    fn layout(&self) -> &Layout {
        self.leaves.tree().shape().layout()
    }

    fn len_bytes(&self) -> u64 {
        self.sealed.stat.size
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        Ok(match self.runs.next() {
            None => None,
            Some((range, Known::Zeros)) => Some(Run::Zeros { range }),
            Some((range, Known::Unknown(why))) => Some(Run::Unknown { range, why }),
            Some((range, Known::Blocks { first })) => {
                self.sums.clear();
                let blocks = self.leaves.tree().shape().layout().block_count(range);
                self.leaves.append(first, blocks, &mut self.sums)?;
                Some(Run::Sums {
                    range,
                    sums: &self.sums,
                })
            }
        })
    }

    fn finish(self) -> Result<Stamp> {
        let now = Sealed::of(&self.leaves.into_tree().into_reader().kernel)?;
        self.sealed.stamp().if_it_is(&now.stamp())
    }
}

#[cfg(test)]
mod tests;
