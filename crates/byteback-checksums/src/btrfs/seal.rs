//! The place where btrfs stores fs-verity's data: items beside those of the file's extents, in the
//! subvolume's tree. Its ioctl for them is not implemented (Linux 6.1), so they are read by the
//! tree search.

use std::io;
use std::os::fd::BorrowedFd;

use byteback_host::tree::stat_fd;

use super::items::Items;
use super::kernel::{Kernel, Query, RealKernel};

/// btrfs's own record is at offset 0, the descriptor from offset 1 on.
const DESCRIPTOR_ITEM: u32 = 36;
/// The tree, at the offset of its bytes.
const TREE_ITEM: u32 = 37;

/// Limit of an item's length (2048 bytes, except at the end of a page).
const ITEM_LEN_MAX: u64 = 1 << 16;

/// The items of one open file.
#[derive(Debug)]
pub struct SealItems<'file> {
    file: BorrowedFd<'file>,
    kernel: RealKernel<'file>,
}

impl<'file> SealItems<'file> {
    /// Reads nothing yet.
    #[must_use]
    pub fn new(file: BorrowedFd<'file>) -> Self {
        Self {
            file,
            kernel: RealKernel::new(file),
        }
    }

    /// Reads as many bytes of the descriptor as there are and fit.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn descriptor(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let ino = stat_fd(self.file)?.ino;
        gather(&mut self.kernel, ino, DESCRIPTOR_ITEM, 1, buffer)
    }

    /// Reads as many bytes of the hash tree from `offset` on as there are and fit, or some of them.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn tree(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let ino = stat_fd(self.file)?.ino;
        gather(&mut self.kernel, ino, TREE_ITEM, offset, buffer)
    }
}

/// Copies the content of the items of one type from `at` on, up to the first gap.
fn gather(kernel: &mut impl Kernel, ino: u64, item_type: u32, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let end = at.saturating_add(buffer.len() as u64);
    // The item that contains `at` may begin before it.
    let query = Query {
        tree: 0,
        objectid: ino,
        item_type,
        offset_min: match item_type {
            DESCRIPTOR_ITEM => at,
            _ => at.saturating_sub(ITEM_LEN_MAX),
        },
        offset_max: end.saturating_sub(1),
    };
    let (count, bytes) = kernel.search(&query)?;
    let mut taken = 0;
    for item in Items::new(bytes, count) {
        let item = item.map_err(|_| io::ErrorKind::InvalidData)?;
        let position = at + taken as u64;
        if (item.objectid, item.item_type) != (ino, item_type) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let Some(skip) = position.checked_sub(item.offset) else {
            // There is a gap.
            break;
        };
        let body = usize::try_from(skip).ok().and_then(|skip| item.body.get(skip..));
        let (Some(body), Some(room)) = (body, buffer.get_mut(taken..)) else {
            continue;
        };
        let len = body.len().min(room.len());
        if let (Some(to), Some(from)) = (room.get_mut(..len), body.get(..len)) {
            to.copy_from_slice(from);
        }
        taken += len;
    }
    Ok(taken)
}
