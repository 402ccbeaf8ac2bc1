//! Encoding of the head: docs/formats/patches.md. All of it is treated as hostile: a head that is
//! not whole is rejected.

use super::{PATCHES_MAX, SECTOR_LEN};

/// Format name and version.
const MAGIC: [u8; 8] = *b"BBPATCH\x01";

/// Magic, label, number of patches; and at the end a CRC.
const AROUND_LEN: usize = 8 + 8 + 4 + 4;

const PATCH_LEN: usize = 8 * 7 + 4 * 4;

/// The longest head, in bytes.
pub(super) const LEN_MAX: usize = AROUND_LEN + PATCH_LEN * PATCHES_MAX;

/// A file of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchInfo {
    /// The file, by the caller's number.
    pub node: u64,
    /// Length of the file before, in bytes.
    pub base_len_bytes: u64,
    /// Length of the file afterwards, in bytes.
    pub new_len_bytes: u64,
    /// Start of the delta, in bytes.
    pub(super) stream_at: u64,
    /// End of the delta; behind it, if the file grows, the new content of the sector in which it
    /// ended.
    pub(super) stream_end: u64,
    /// CRC-32C of the delta and of that sector.
    pub(super) stream_crc: u32,
    /// Number of its first checksum.
    pub(super) sums_from: u64,
    /// Number after its last checksum.
    pub(super) sums_to: u64,
    /// CRC-32C of the checksums.
    pub(super) sums_crc: u32,
    /// CRC-32C of the sector in which the file is to end, before it is cut off there; 0 if it is
    /// not cut off.
    pub(super) uncut_crc: u32,
    /// CRC-32C of that sector if the file is only cut off.
    pub(super) cut_crc: u32,
}

impl PatchInfo {
    pub(super) fn is_growing(&self) -> bool {
        self.new_len_bytes > self.base_len_bytes
    }

    /// Whether an interrupted application can have left the file with this length, or before or
    /// after it: a file grows piece by piece and is cut off at once.
    pub(super) fn can_have_len(&self, len_bytes: u64) -> bool {
        match self.is_growing() {
            true => (self.base_len_bytes..=self.new_len_bytes).contains(&len_bytes),
            false => [self.base_len_bytes, self.new_len_bytes].contains(&len_bytes),
        }
    }

    pub(super) fn is_cut_in(&self, sector: u64) -> bool {
        self.new_len_bytes < self.base_len_bytes && self.new_len_bytes / SECTOR_LEN == sector
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) label: u64,
    pub(super) patches: Vec<PatchInfo>,
}

impl Head {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(AROUND_LEN + PATCH_LEN * self.patches.len());
        bytes.extend(MAGIC);
        bytes.extend(self.label.to_le_bytes());
        // At most PATCHES_MAX.
        bytes.extend(u32::try_from(self.patches.len()).unwrap_or(u32::MAX).to_le_bytes());
        for patch in &self.patches {
            for number in [
                patch.node,
                patch.base_len_bytes,
                patch.new_len_bytes,
                patch.stream_at,
                patch.stream_end,
                patch.sums_from,
                patch.sums_to,
            ] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(patch.stream_crc.to_le_bytes());
            bytes.extend(patch.sums_crc.to_le_bytes());
            bytes.extend(patch.uncut_crc.to_le_bytes());
            bytes.extend(patch.cut_crc.to_le_bytes());
        }
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let body = body.strip_prefix(&MAGIC)?;
        let (label, body) = body.split_first_chunk::<8>()?;
        let (count, body) = body.split_first_chunk::<4>()?;
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        let (patches, rest) = body.as_chunks::<PATCH_LEN>();
        if count > PATCHES_MAX || patches.len() != count || !rest.is_empty() {
            return None;
        }
        Some(Self {
            label: u64::from_le_bytes(*label),
            patches: patches.iter().map(patch).collect::<Option<_>>()?,
        })
    }
}

fn patch(bytes: &[u8; PATCH_LEN]) -> Option<PatchInfo> {
    let (numbers, _) = bytes.as_chunks::<8>();
    let mut numbers = numbers.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let mut number = || numbers.next();
    let (node, base_len_bytes, new_len_bytes) = (number()?, number()?, number()?);
    let (stream_at, stream_end, sums_from, sums_to) = (number()?, number()?, number()?, number()?);
    // The last chunks: two CRCs each.
    let (kept, cut) = (number()?, number()?);
    let halves = |crcs: u64| {
        Some((
            u32::try_from(crcs & u64::from(u32::MAX)).ok()?,
            u32::try_from(crcs >> 32).ok()?,
        ))
    };
    let ((stream_crc, sums_crc), (uncut_crc, cut_crc)) = (halves(kept)?, halves(cut)?);
    let patch = PatchInfo {
        node,
        base_len_bytes,
        new_len_bytes,
        stream_at,
        stream_end,
        stream_crc,
        sums_from,
        sums_to,
        sums_crc,
        uncut_crc,
        cut_crc,
    };
    (stream_at <= stream_end && sums_from <= sums_to).then_some(patch)
}
