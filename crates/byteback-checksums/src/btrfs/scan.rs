//! Finds the checksums of many extents with few searches.
//!
//! One search of the checksum tree per extent costs nearly as much as reading and summing the data
//! (measured: 37,005 extents, 4 s). So the extents are sorted by their place on the disk, those
//! with small gaps between them are grouped, and each such stretch of the disk is scanned once.

use super::items::{CsumItem, Items};
use super::kernel::{Kernel, Query};
use super::{Filesystem, Result, malformed, search_failed};
use crate::source::SourceError;

/// Extents whose distance on the disk is no longer are searched together. The checksums of the gaps
/// are read in vain: 4 KiB per 4 MiB with CRC-32C, 32 KiB with SHA-256.
const GAP_MAX: u64 = 4 << 20;

const CSUM_TREE: u64 = 7;
const CSUM_OBJECTID: u64 = (-10_i64).cast_unsigned();
const CSUM_ITEM: u32 = 128;

/// Sectors whose checksums are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wanted {
    /// The logical address of the first one.
    pub(super) address: u64,
    /// The address behind the last one.
    pub(super) end: u64,
    /// The index of its checksum in the result.
    pub(super) first: usize,
}

/// The checksums found so far.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) sums: Vec<u8>,
    /// Whether each checksum was found.
    pub(super) is_present: Vec<bool>,
}

impl Found {
    /// Makes room for `count` checksums, all of them missing.
    pub(super) fn reset(&mut self, count: usize, sum_len: usize) {
        self.sums.clear();
        self.sums.resize(count * sum_len, 0);
        self.is_present.clear();
        self.is_present.resize(count, false);
    }
}

/// Searches for all `wanted` checksums and stores those that exist in `found`. Returns the number
/// of searches.
pub(super) fn scan(
    kernel: &mut impl Kernel,
    filesystem: &Filesystem,
    wanted: &mut [Wanted],
    found: &mut Found,
) -> Result<u64> {
    wanted.sort_unstable();
    let mut searches = 0;
    let mut rest = &*wanted;
    while let Some(first) = rest.first() {
        let mut end = first.end;
        let is_far = |next: &Wanted| {
            let is_far = next.address > end.saturating_add(GAP_MAX);
            end = end.max(next.end);
            is_far
        };
        let len = rest.iter().position(is_far).unwrap_or(rest.len());
        let (near, far) = rest.split_at(len);
        searches += scan_stretch(kernel, filesystem, near, found)?;
        rest = far;
    }
    Ok(searches)
}

/// Scans the stretch of the disk that contains the sorted `wanted`.
fn scan_stretch(
    kernel: &mut impl Kernel,
    filesystem: &Filesystem,
    wanted: &[Wanted],
    found: &mut Found,
) -> Result<u64> {
    let start = wanted.first().map_or(0, |first| first.address);
    let end = wanted.iter().map(|wanted| wanted.end).max().unwrap_or(start);
    let sector_len = u64::from(filesystem.sector_len);
    let mut missing: u64 = wanted
        .iter()
        .map(|wanted| (wanted.end - wanted.address) / sector_len)
        .sum();
    // The item with the first sector's checksum may begin this far before it.
    let mut from = start.saturating_sub(filesystem.item_reach());
    // The wanted sectors that the next item may cover.
    let (mut near, mut next) = (Vec::new(), wanted.iter().copied().peekable());
    let mut searches = 0;
    while missing > 0 && from < end {
        let query = Query {
            tree: CSUM_TREE,
            objectid: CSUM_OBJECTID,
            item_type: CSUM_ITEM,
            offset_min: from,
            offset_max: end - 1,
        };
        let (count, bytes) = kernel.search(&query).map_err(search_failed)?;
        searches += 1;
        if count == 0 {
            break;
        }
        for item in Items::new(bytes, count) {
            let item = item.map_err(malformed)?;
            if item.objectid != CSUM_OBJECTID || item.item_type != CSUM_ITEM || item.offset < from || item.offset >= end
            {
                return Err(SourceError::Malformed("a checksum item that was not requested"));
            }
            from = item.offset + 1;
            let item = CsumItem::parse(item.offset, item.body, filesystem.sector_len, filesystem.sum_len())
                .map_err(malformed)?;
            while let Some(wanted) = next.next_if(|wanted| wanted.address < item.end) {
                near.push(wanted);
            }
            near.retain(|wanted: &Wanted| {
                missing -= take(wanted, &item, filesystem, found);
                wanted.end > item.end
            });
        }
    }
    Ok(searches)
}

/// Copies the part of `wanted` that `item` has. Returns the number of checksums that were missing
/// before.
fn take(wanted: &Wanted, item: &CsumItem<'_>, filesystem: &Filesystem, found: &mut Found) -> u64 {
    let (sector_len, sum_len) = (u64::from(filesystem.sector_len), filesystem.sum_len());
    let (start, end) = (wanted.address.max(item.address), wanted.end.min(item.end));
    if start >= end {
        return 0;
    }
    let sectors = |bytes: u64| usize::try_from(bytes / sector_len).unwrap_or(usize::MAX);
    let (count, from) = (sectors(end - start), sectors(start - item.address));
    let to = wanted.first.saturating_add(sectors(start - wanted.address));
    let source = item.sums.get(from * sum_len..(from + count) * sum_len);
    let target = found.sums.get_mut(to * sum_len..(to + count) * sum_len);
    let (Some(source), Some(target)) = (source, target) else {
        return 0;
    };
    target.copy_from_slice(source);
    let mut new = 0;
    for is_present in found.is_present.iter_mut().skip(to).take(count) {
        new += u64::from(!*is_present);
        *is_present = true;
    }
    new
}
