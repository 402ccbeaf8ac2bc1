//! The hash trees of files that are sealed by fs-verity, on ext4, F2FS and btrfs (SkySync, Table 1:
//! file systems, by user-space tools).
//!
//! ## When a checksum counts
//!
//! A sealed file cannot be changed any more: opening it for writing is refused for ever, and
//! replacing it makes another file, which is not the one that is open here. The kernel returns its
//! bytes only after checking them against the tree, up to the hash of the descriptor, which it
//! keeps in memory and reports ([`Kernel::measure`]). So the descriptor counts if it has that hash,
//! the root is in the descriptor, and every node is checked against the one above it. The tree
//! itself is read without the kernel's check, so damage or forgery on the disk is noticed here. The
//! returned checksums are those of the file's content, or reading the file fails.
//!
//! Only file systems known to enforce this are trusted; the server of a FUSE file system may answer
//! an ioctl as it likes.
//!
//! ## Where they come from
//!
//! `FS_IOC_READ_VERITY_METADATA` (Linux 5.12), open to every reader of the file. btrfs does not
//! have it; there the items are found by the tree search (keys 36 and 37), by root.
//!
//! ## What it does not do
//!
//! It does not seal files. Signatures of the descriptor are ignored: they prove the signer, not the
//! content.

pub(crate) mod descriptor;
mod kernel;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use byteback_host::tree::Stat;

use self::descriptor::{DESCRIPTOR_LEN, Descriptor};
use self::kernel::{Kernel, RealKernel};
use crate::merkle::{Leaves, Shape};
pub use crate::merkle::{ReadNodes, Tree, compare};
use byteback_checksums::source::{
    Description, Extraction, FileChecksums, Layout, Result, Run, Source, SourceError, Stamp, read_file_at, regular_file,
};

/// The description of the fs-verity source.
pub const DESCRIPTION: Description = Description {
    name: "fs-verity",
    coverage: "every block of a file that is sealed",
    cost: "reading and checking the file's hash tree: 1/128 of the file with SHA-256, 1/64 with SHA-512",
    permissions: "read access to the file; on btrfs root (CAP_SYS_ADMIN)",
};

/// A sealed file, as a source.
pub struct VeritySource<'a> {
    file: BorrowedFd<'a>,
}

impl<'a> VeritySource<'a> {
    /// The source for `file`, which is open for reading.
    ///
    /// # Errors
    /// [`SourceError::NotHere`] if it is not sealed, or not a regular file on ext4, F2FS or btrfs;
    /// [`SourceError::NeedsRoot`] on btrfs.
    pub fn new(file: &'a impl AsFd) -> Result<Self> {
        let file = file.as_fd();
        Seal::of(&mut RealKernel::new(file)?)?;
        Ok(Self { file })
    }
}

impl Source for VeritySource<'_> {
    fn description(&self) -> Description {
        DESCRIPTION
    }

    fn collect(&self) -> Result<FileChecksums> {
        FileChecksums::collect(1, || Passage::begin(RealKernel::new(self.file)?))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        read_file_at(self.file, offset, buffer)
    }

    fn is_unchanged(&self, stamp: &Stamp) -> Result<bool> {
        Ok(Seal::of(&mut RealKernel::new(self.file)?)?.stamp() == *stamp)
    }
}

/// Nodes read through the kernel.
#[derive(Debug)]
pub struct KernelNodes<'file>(RealKernel<'file>);

/// The hash tree of a sealed file, to be compared with another one.
///
/// # Errors
/// As [`VeritySource::new`].
pub fn tree<'file>(file: &'file impl AsFd) -> Result<Tree<KernelNodes<'file>>> {
    let mut kernel = RealKernel::new(file.as_fd())?;
    let seal = Seal::of(&mut kernel)?;
    Ok(Tree::new(KernelNodes(kernel), seal.shape, seal.root))
}

impl ReadNodes for KernelNodes<'_> {
    fn read_nodes(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        read_nodes(&mut self.0, offset, buffer)
    }
}

fn read_nodes(kernel: &mut impl Kernel, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let mut len = 0;
    while let Some(rest) = buffer.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match kernel.tree(offset.saturating_add(len as u64), rest).map_err(refusal)? {
            0 => {
                return Err(SourceError::Malformed(
                    "a hash tree that is too short for the file's length",
                ));
            }
            more => len += more,
        }
    }
    Ok(())
}

/// The error that the kernel's refusal stands for.
fn refusal(error: io::Error) -> SourceError {
    match error.raw_os_error() {
        Some(libc::ENODATA) => SourceError::NotHere("the file is not sealed by fs-verity"),
        Some(libc::EOPNOTSUPP | libc::ENOTTY) => {
            SourceError::NotHere("the kernel or the file system has no fs-verity, or does not report its hashes")
        }
        Some(libc::EPERM) => SourceError::NeedsRoot,
        _ => SourceError::io("read the file's hash tree")(error),
    }
}

/// The facts about a sealed file beside its hashes.
#[derive(Debug)]
struct Seal {
    stat: Stat,
    shape: Shape,
    root: Vec<u8>,
    /// The hash of the descriptor, as reported by the kernel.
    digest: Vec<u8>,
}

impl Seal {
    fn of(kernel: &mut impl Kernel) -> Result<Self> {
        let stat = regular_file(kernel.stat())?;
        let measured = kernel.measure().map_err(refusal)?;
        let mut bytes = [0; DESCRIPTOR_LEN];
        kernel.descriptor(&mut bytes).map_err(refusal)?;
        let descriptor = Descriptor::parse(&bytes).map_err(SourceError::Malformed)?;
        if descriptor.content_len != stat.size {
            return Err(SourceError::Malformed("a sealed length that differs from the file's"));
        }
        if !descriptor.is_measured(&bytes, measured.algorithm, &measured.digest) {
            return Err(SourceError::Malformed(
                "a descriptor of the hash tree that is not the one the kernel uses",
            ));
        }
        let shape = descriptor
            .shape()
            .ok_or(SourceError::Malformed("an impossible shape of the hash tree"))?;
        Ok(Self {
            stat,
            shape,
            root: descriptor.root,
            digest: measured.digest,
        })
    }

    /// The times of a sealed file can be set freely, so they are left out.
    fn stamp(&self) -> Stamp {
        let mut witness = blake3::Hasher::new();
        witness.update(self.shape.layout().kind.name().as_bytes());
        witness.update(&self.digest);
        Stamp {
            identity: self.stat.identity(),
            len_bytes: self.stat.size,
            mtime_ns: 0,
            ctime_ns: 0,
            witness: *witness.finalize().as_bytes(),
        }
    }
}

/// A single pass over a sealed file's hashes.
struct Passage<K> {
    stamp: Stamp,
    leaves: Leaves<Nodes<K>>,
}

struct Nodes<K>(K);

impl<K: Kernel> ReadNodes for Nodes<K> {
    fn read_nodes(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        read_nodes(&mut self.0, offset, buffer)
    }
}

impl<K: Kernel> Passage<K> {
    fn begin(mut kernel: K) -> Result<Self> {
        let seal = Seal::of(&mut kernel)?;
        Ok(Self {
            stamp: seal.stamp(),
            leaves: Leaves::new(Tree::new(Nodes(kernel), seal.shape, seal.root)),
        })
    }
}

impl<K: Kernel> Extraction for Passage<K> {
    fn layout(&self) -> &Layout {
        self.leaves.tree().shape().layout()
    }

    fn len_bytes(&self) -> u64 {
        self.stamp.len_bytes
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        let next = self.leaves.next()?;
        Ok(next.map(|(range, sums)| Run::Sums { range, sums }))
    }

    fn finish(self) -> Result<Stamp> {
        let mut kernel = self.leaves.into_tree().into_reader().0;
        self.stamp.if_it_is(&Seal::of(&mut kernel)?.stamp())
    }
}

#[cfg(test)]
mod tests;
