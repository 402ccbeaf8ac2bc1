//! Parsers for the device mapper's status of a device and the file system's list of a file's
//! extents: bytes in, values out, nothing trusted.
//!
//! The layouts are those of Linux's `include/uapi/linux/dm-ioctl.h` and `fiemap.h`, in the
//! machine's byte order, and the table's of `Documentation/admin-guide/device-mapper/verity.rst`.

use crate::merkle::Shape;
use byteback_checksums::source::{Kind, Layout, SourceError, Tail, Unknown};

/// Bytes of `struct dm_ioctl`, before the answer.
pub(crate) const STATUS_HEADER_LEN: usize = 312;

/// `DM_BUFFER_FULL_FLAG`: the answer is incomplete.
const FLAG_FULL: u32 = 1 << 8;

/// Bytes of `struct dm_target_spec`.
const TARGET_LEN: usize = 40;

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The parameters of a device's only target and its length in bytes, from the answer of
/// `DM_TABLE_STATUS`; `None` if there are several targets, or it is of another kind.
///
/// # Errors
/// The defect, in words.
pub(crate) fn target(bytes: &[u8]) -> Result<Option<(&str, u64)>, &'static str> {
    const SHORT: &str = "a device table that is too short";
    let (start, count, flags) = (u32_at(bytes, 16), u32_at(bytes, 20), u32_at(bytes, 28));
    let (Some(start), Some(count), Some(flags)) = (start, count, flags) else {
        return Err(SHORT);
    };
    if flags & FLAG_FULL != 0 {
        return Err("a device table that is too long");
    }
    if count != 1 {
        return Ok(None);
    }
    let start = usize::try_from(start).map_err(|_| SHORT)?;
    let target = bytes.get(start..).and_then(|rest| rest.split_at_checked(TARGET_LEN));
    let (target, parameters) = target.ok_or(SHORT)?;
    let until_zero = |bytes: &[u8]| bytes.iter().position(|byte| *byte == 0);
    let name = target.get(24..).unwrap_or_default();
    let name = name.get(..until_zero(name).unwrap_or(name.len())).unwrap_or_default();
    if name != b"verity" || u64_at(target, 0) != Some(0) {
        return Ok(None);
    }
    let text = until_zero(parameters)
        .and_then(|len| parameters.get(..len))
        .ok_or(SHORT)?;
    let text = std::str::from_utf8(text).map_err(|_| "a device table that is not text")?;
    let len_bytes = u64_at(target, 8).and_then(|sectors| sectors.checked_mul(512));
    Ok(Some((text, len_bytes.ok_or("an impossible length of a device")?)))
}

/// A device of dm-verity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// The whole text.
    pub(crate) text: String,
    kind: Kind,
    salt: Vec<u8>,
    /// The length of a block of data.
    pub(crate) block_len: u32,
    node_len: u32,
    blocks: u64,
    /// `MAJOR:MINOR`.
    pub(crate) hash_device: String,
    /// The offset of the tree on the hash device, in bytes.
    pub(crate) hash_start: u64,
    pub(crate) root: Vec<u8>,
}

/// Options that do not change the content read: bad blocks are repaired or refused, and zeros are
/// recognized by their hash.
const HARMLESS: [&str; 4] = [
    "restart_on_corruption",
    "panic_on_corruption",
    "ignore_zero_blocks",
    "try_verify_in_tasklet",
];
const HARMLESS_WITH_VALUE: [&str; 5] = [
    "use_fec_from_device",
    "fec_roots",
    "fec_blocks",
    "fec_start",
    "root_hash_sig_key_desc",
];

impl Table {
    /// Parses the table of a device of `len_bytes` bytes.
    pub(crate) fn parse(text: &str, len_bytes: u64) -> Result<Self, SourceError> {
        const MALFORMED: SourceError = SourceError::Malformed("a malformed dm-verity table");
        let fields: Vec<_> = text.split_ascii_whitespace().collect();
        let [
            version,
            _,
            hash_device,
            block_len,
            node_len,
            blocks,
            start,
            function,
            root,
            salt,
            options @ ..,
        ] = &fields[..]
        else {
            return Err(MALFORMED);
        };
        if *version != "1" {
            return Err(SourceError::NotHere(
                "the device's hash tree does not have dm-verity's format 1, the only supported one",
            ));
        }
        let kind = match *function {
            "sha256" | "sha256-generic" => Kind::Sha256,
            "sha512" | "sha512-generic" => Kind::Sha512,
            "sha1" => Kind::Sha1,
            _ => return Err(SourceError::NotHere("the device's hash function is not supported")),
        };
        let length = |text: &str| {
            let len = text.parse::<u32>().ok();
            len.filter(|len| len.is_power_of_two() && (512..=1 << 20).contains(len))
                .ok_or(MALFORMED)
        };
        let node_len = length(node_len)?;
        let start = start
            .parse::<u64>()
            .ok()
            .and_then(|start| start.checked_mul(u64::from(node_len)));
        let salt = match *salt {
            "-" => Vec::new(),
            salt => from_hex(salt).ok_or(MALFORMED)?,
        };
        if hash_device
            .split_once(':')
            .is_none_or(|(major, minor)| major.parse::<u32>().is_err() || minor.parse::<u32>().is_err())
        {
            return Err(MALFORMED);
        }
        let table = Self {
            text: text.to_owned(),
            kind,
            salt,
            block_len: length(block_len)?,
            node_len,
            blocks: blocks.parse().map_err(|_| MALFORMED)?,
            hash_device: (*hash_device).to_owned(),
            hash_start: start.ok_or(MALFORMED)?,
            root: from_hex(root)
                .filter(|root| root.len() == kind.len_bytes())
                .ok_or(MALFORMED)?,
        };
        // A tree of another height has the same root: the hash of a node there would be a leaf
        // here.
        if table.blocks.checked_mul(u64::from(table.block_len)) != Some(len_bytes) {
            return Err(SourceError::NotHere("the device and the hashed data differ in length"));
        }
        // The number of options, and the options.
        let mut options = options.iter().skip(1);
        while let Some(option) = options.next() {
            if HARMLESS_WITH_VALUE.contains(option) {
                options.next();
            } else if !HARMLESS.contains(option) {
                return Err(SourceError::NotHere(
                    "the device has an unknown option, or one that allows damaged blocks to be read",
                ));
            }
        }
        Ok(table)
    }

    /// The shape of the tree; `None` if there is no such tree.
    pub(crate) fn shape(&self) -> Option<Shape> {
        let layout = Layout {
            kind: self.kind,
            salt: self.salt.clone(),
            block_len: self.block_len,
            tail: Tail::ZeroPadded,
        };
        let content_len = self.blocks.checked_mul(u64::from(self.block_len))?;
        Shape::new(
            layout,
            content_len,
            self.node_len,
            self.kind.len_bytes().next_power_of_two(),
        )
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    rest.is_empty().then_some(())?;
    pairs
        .iter()
        .map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?))
        .collect()
}

/// The place of a stretch of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The data is stored as it is, at this byte of the device.
    Data { address: u64 },
    /// No place; the stretch reads as zeros.
    Zeros,
    /// The data is not stored as it is.
    Unknown(Unknown),
}

/// A stretch of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) len_bytes: u64,
    pub(crate) place: Place,
    /// No extent follows.
    pub(crate) is_last: bool,
}

/// Bytes of `struct fiemap_extent`.
pub(crate) const EXTENT_LEN: usize = 56;

const LAST: u32 = 1;
/// Unknown, delayed, encoded, encrypted.
const ENCODED: u32 = 0x2 | 0x4 | 0x8 | 0x80;
/// Not aligned, inline, tail.
const INLINE: u32 = 0x100 | 0x200 | 0x400;
const UNWRITTEN: u32 = 0x800;
/// Merged and shared extents are stored as they are.
const PLAIN: u32 = LAST | UNWRITTEN | 0x1000 | 0x2000;

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.len_bytes)
    }

    /// The first `count` extents of an answer.
    ///
    /// # Errors
    /// The defect, in words.
    pub(crate) fn parse_all(bytes: &[u8], count: usize) -> Result<Vec<Self>, &'static str> {
        let all = count.checked_mul(EXTENT_LEN).and_then(|len| bytes.get(..len));
        let all = all.ok_or("a list of extents that is too short")?;
        all.chunks_exact(EXTENT_LEN).map(Self::parse).collect()
    }

    fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let long = |at| u64_at(bytes, at).unwrap_or_default();
        let (start, address, len_bytes) = (long(0), long(8), long(16));
        let flags = u32_at(bytes, 40).unwrap_or(u32::MAX);
        let is_within = |start: u64| start.checked_add(len_bytes).is_some();
        if len_bytes == 0 || !is_within(start) || !is_within(address) {
            return Err("an impossible extent");
        }
        let place = match flags {
            flags if flags & INLINE != 0 => Place::Unknown(Unknown::Inline),
            flags if flags & (ENCODED | !PLAIN) != 0 => Place::Unknown(Unknown::Encoded),
            flags if flags & UNWRITTEN != 0 => Place::Zeros,
            _ => Place::Data { address },
        };
        Ok(Self {
            start,
            len_bytes,
            place,
            is_last: flags & LAST != 0,
        })
    }
}
