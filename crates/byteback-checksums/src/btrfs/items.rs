//! Parsers for the results of btrfs's tree search: bytes in, values out. Outside input is not
//! trusted: every length is checked, and impossible input yields [`Malformed`], never a panic or
//! endless work.
//!
//! The layouts are those of Linux's `include/uapi/linux/btrfs.h` and `btrfs_tree.h`. The headers
//! around items are in the machine's byte order; the items, which have this form on the disk, are
//! little-endian.

use super::Unknown;
use crate::source::Kind;

/// An impossible answer; the text names the defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

type Result<T> = std::result::Result<T, Malformed>;

/// Bytes of the answer of `BTRFS_IOC_FS_INFO`.
pub(crate) const FS_INFO_LEN: usize = 1024;

/// `BTRFS_FS_INFO_FLAG_CSUM_INFO` and `BTRFS_FS_INFO_FLAG_GENERATION`: asked for, and set in the
/// answer by kernels that know them.
pub(crate) const FS_INFO_WANTED: u64 = 0b11;

/// The offset of the flags in it.
pub(crate) const FS_INFO_FLAGS_AT: usize = 48;

/// The properties of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FsInfo {
    /// Bytes of a tree's node.
    pub(crate) node_len: u32,
    /// Bytes of a block of data, which one checksum covers.
    pub(crate) sector_len: u32,
    pub(crate) kind: Kind,
    /// The number of the current transaction.
    pub(crate) generation: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<[u8; 4]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u64_at(bytes: &[u8], at: usize) -> Option<[u8; 8]> {
    bytes.get(at..)?.first_chunk().copied()
}

impl FsInfo {
    /// Returns `None` if the kernel is too old to report the kind of checksums, or the kind is
    /// unknown to this program.
    pub(crate) fn parse(bytes: &[u8; FS_INFO_LEN]) -> Result<Option<Self>> {
        let number = |at| u32_at(bytes, at).map_or(0, u32::from_ne_bytes);
        let long = |at| u64_at(bytes, at).map_or(0, u64::from_ne_bytes);
        if long(FS_INFO_FLAGS_AT) & FS_INFO_WANTED != FS_INFO_WANTED {
            return Ok(None);
        }
        let [a, b, c, d] = number(44).to_ne_bytes();
        let (csum_type, csum_len) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
        let kind = match csum_type {
            0 => Kind::Crc32c,
            1 => Kind::Xxh64,
            2 => Kind::Sha256,
            3 => Kind::Blake2b256,
            _ => return Ok(None),
        };
        let info = Self {
            node_len: number(32),
            sector_len: number(36),
            kind,
            generation: long(56),
        };
        let is_block = |len: u32| len.is_power_of_two() && (512..=1 << 20).contains(&len);
        if usize::from(csum_len) != kind.len_bytes() {
            return Err(Malformed("wrong length of a checksum"));
        }
        if !is_block(info.node_len) || !is_block(info.sector_len) {
            return Err(Malformed("wrong length of a node or sector"));
        }
        Ok(Some(info))
    }
}

/// A single item of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    pub(crate) objectid: u64,
    pub(crate) item_type: u32,
    /// The third part of the key.
    pub(crate) offset: u64,
    pub(crate) body: &'a [u8],
}

/// Bytes of the header before each item.
pub(crate) const ITEM_HEADER_LEN: usize = 32;

/// The items of an answer that holds `count` of them in `bytes`.
#[derive(Clone, Debug)]
pub(crate) struct Items<'a> {
    bytes: &'a [u8],
    count: u32,
}

impl<'a> Items<'a> {
    pub(crate) fn new(bytes: &'a [u8], count: u32) -> Self {
        Self { bytes, count }
    }

    fn take(&mut self) -> Option<Item<'a>> {
        let (header, rest) = self.bytes.split_at_checked(ITEM_HEADER_LEN)?;
        let len = usize::try_from(u32_at(header, 28).map(u32::from_ne_bytes)?).ok()?;
        let (body, rest) = rest.split_at_checked(len)?;
        self.bytes = rest;
        // The first eight bytes are the transaction that last wrote the leaf.
        Some(Item {
            objectid: u64_at(header, 8).map(u64::from_ne_bytes)?,
            offset: u64_at(header, 16).map(u64::from_ne_bytes)?,
            item_type: u32_at(header, 24).map(u32::from_ne_bytes)?,
            body,
        })
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Item<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.count = self.count.checked_sub(1)?;
        let item = self.take();
        if item.is_none() {
            self.count = 0;
        }
        Some(item.ok_or(Malformed("an item that exceeds the answer")))
    }
}

/// The data behind a stretch of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// Nothing: it reads as zeros.
    Zeros,
    /// Data stored as it is, from this logical address on.
    Data { address: u64 },
    /// Data without checksums of the content.
    Unknown(Unknown),
}

/// A file extent item: a stretch of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    /// The length in whole sectors, even where the file ends before.
    pub(crate) len_bytes: u64,
    pub(crate) body: Body,
}

const TYPE_INLINE: u8 = 0;
const TYPE_DATA: u8 = 1;
const TYPE_PREALLOCATED: u8 = 2;

/// Bytes of an item that is not inline.
const EXTENT_LEN: usize = 53;

/// Limit of an extent of data; btrfs's own limit is 128 MiB.
pub(crate) const DATA_LEN_MAX: u64 = 1 << 30;

impl Extent {
    /// Parses a file extent item whose key has this offset.
    pub(crate) fn parse(start: u64, body: &[u8], sector_len: u32) -> Result<Self> {
        let whole = |value: u64| value.is_multiple_of(u64::from(sector_len));
        let long = |at| {
            u64_at(body, at)
                .map(u64::from_le_bytes)
                .ok_or(Malformed("a file extent that is too short"))
        };
        let byte = |at: usize| {
            body.get(at)
                .copied()
                .ok_or(Malformed("a file extent that is too short"))
        };
        let content_len = long(8)?;
        let (compression, encryption, kind) = (byte(16)?, byte(17)?, byte(20)?);
        let is_encoded = encryption != 0 || u16_at(body, 18) != Some(0);
        if kind == TYPE_INLINE {
            if start != 0 || content_len == 0 || content_len > 1 << 20 {
                return Err(Malformed("an impossible inline extent"));
            }
            return Ok(Self {
                start,
                len_bytes: content_len.next_multiple_of(u64::from(sector_len)),
                body: Body::Unknown(Unknown::Inline),
            });
        }
        if body.len() != EXTENT_LEN {
            return Err(Malformed("wrong length of a file extent"));
        }
        let (disk, disk_len, offset, len_bytes) = (long(21)?, long(29)?, long(37)?, long(45)?);
        if !whole(start) || !whole(len_bytes) || len_bytes == 0 || start.checked_add(len_bytes).is_none() {
            return Err(Malformed("a file extent that is not a whole number of sectors"));
        }
        let body = match kind {
            TYPE_DATA if disk == 0 => Body::Zeros,
            TYPE_PREALLOCATED => Body::Zeros,
            TYPE_DATA if is_encoded => Body::Unknown(Unknown::Encoded),
            TYPE_DATA if compression != 0 => Body::Unknown(Unknown::Compressed),
            TYPE_DATA => {
                let address = disk.checked_add(offset).filter(|address| whole(*address));
                // An extent that is not encoded lies wholly within its extent on the disk.
                let is_within = offset.checked_add(len_bytes).is_some_and(|end| end <= disk_len);
                let address = address.filter(|address| is_within && address.checked_add(len_bytes).is_some());
                match address {
                    Some(address) if len_bytes <= DATA_LEN_MAX => Body::Data { address },
                    _ => return Err(Malformed("a file extent with an impossible place on the disk")),
                }
            }
            _ => return Err(Malformed("unknown type of a file extent")),
        };
        Ok(Self { start, len_bytes, body })
    }

    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.len_bytes)
    }
}

/// A checksum item: the checksums of some neighbouring sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CsumItem<'a> {
    /// The logical address of the first sector.
    pub(crate) address: u64,
    /// The address behind the last one.
    pub(crate) end: u64,
    pub(crate) sums: &'a [u8],
}

impl<'a> CsumItem<'a> {
    pub(crate) fn parse(address: u64, body: &'a [u8], sector_len: u32, sum_len: usize) -> Result<Self> {
        let sectors = (body.len() / sum_len) as u64;
        let len = sectors.checked_mul(u64::from(sector_len));
        let end = len.and_then(|len| address.checked_add(len));
        match end {
            Some(end)
                if body.len().is_multiple_of(sum_len)
                    && sectors > 0
                    && address.is_multiple_of(u64::from(sector_len)) =>
            {
                Ok(Self {
                    address,
                    end,
                    sums: body,
                })
            }
            _ => Err(Malformed("a checksum item that is not a whole number of checksums")),
        }
    }
}

#[cfg(test)]
mod tests;
