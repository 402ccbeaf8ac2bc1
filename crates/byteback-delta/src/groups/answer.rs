//! The answer to a list of groups: the groups that are equal in place, and the signature of the
//! rest of the base.

use std::io::{self, Read, Write};

use byteback_extents::ByteRange;

use super::{
    ANSWER_MAGIC, Gathering, GroupsError, ListedGroups, VERSION, array, check_header, fill, group_count, part_crc,
};
use crate::leaves::{GROUP_LEN_BYTES, LeafKind};
use crate::signature::{Signature, SignatureParams};
use crate::strong::StrongKind;
use crate::weak::WeakKind;
use crate::wire::FILE_LEN_MAX;

/// Magic, version, kind, a zero, lengths of the new content and of the base, CRC.
const HEADER_LEN: usize = 8 + 2 + 1 + 1 + 8 + 8 + 4;

/// The groups of two contents that are equal in place: the head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EqualGroups {
    kind: LeafKind,
    new_len_bytes: u64,
    base_len_bytes: u64,
    /// A bit for each group that both contents have, the lowest bit first.
    bits: Vec<u8>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct GroupAnswer {
    new_len_bytes: u64,
    base_len_bytes: u64,
    gathering: Gathering,
    signature: Signature,
}

impl EqualGroups {
    /// No equal groups yet, for the list and a base of `base_len_bytes`.
    #[must_use]
    pub fn new(list: &ListedGroups, base_len_bytes: u64) -> Self {
        Self::none(list.kind(), list.content_len_bytes(), base_len_bytes)
    }

    fn none(kind: LeafKind, new_len_bytes: u64, base_len_bytes: u64) -> Self {
        let groups = group_count(new_len_bytes.min(base_len_bytes));
        Self {
            kind,
            new_len_bytes,
            base_len_bytes,
            // One byte for every 8 MiB of the shorter content, whose length the reader bounds.
            bits: vec![0; groups.div_ceil(8) as usize],
        }
    }

    /// Marks this group as equal; a group that only one content has is ignored.
    pub fn set(&mut self, group: u64) {
        if group >= self.groups() {
            return;
        }
        let byte = usize::try_from(group / 8).unwrap_or(usize::MAX);
        if let Some(byte) = self.bits.get_mut(byte) {
            *byte |= 1 << (group % 8);
        }
    }

    /// Whether this group is equal.
    #[must_use]
    pub fn contains(&self, group: u64) -> bool {
        let byte = usize::try_from(group / 8).ok().and_then(|byte| self.bits.get(byte));
        byte.is_some_and(|byte| byte & (1 << (group % 8)) != 0)
    }

    /// The rest of both contents.
    #[must_use]
    pub fn gathering(&self) -> Gathering {
        let equal = (0..self.groups()).filter(|&group| self.contains(group));
        Gathering::without(equal.filter_map(|group| self.range(group)))
    }

    /// The parameters of the signature of the rest of the base: blocks of a leaf, unless much is
    /// left.
    #[must_use]
    pub fn params(&self, seed: u64) -> SignatureParams {
        let gathering = self.gathering();
        let left = |len| gathering.left_len_bytes(len);
        SignatureParams::for_groups(self.kind, left(self.base_len_bytes), left(self.new_len_bytes), seed)
    }

    /// The length of the head's stream.
    #[must_use]
    pub fn stream_len_bytes(&self) -> u64 {
        (HEADER_LEN + self.bits.len() + 4) as u64
    }

    /// Writes the head of an answer; the signature of the rest of the base must follow.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        let mut header = [0; HEADER_LEN];
        header[..8].copy_from_slice(&ANSWER_MAGIC);
        header[8..10].copy_from_slice(&VERSION.to_le_bytes());
        header[10] = self.kind.code();
        header[12..20].copy_from_slice(&self.new_len_bytes.to_le_bytes());
        header[20..28].copy_from_slice(&self.base_len_bytes.to_le_bytes());
        let crc = crc32c::crc32c(&header[..28]);
        header[28..].copy_from_slice(&crc.to_le_bytes());
        out.write_all(&header)?;
        out.write_all(&self.bits)?;
        out.write_all(&part_crc(crc, 0, &self.bits).to_le_bytes())
    }

    /// Reads the head of the answer to a list of this kind about a content of `new_len_bytes`.
    fn read(stream: &mut impl Read, kind: LeafKind, new_len_bytes: u64) -> Result<Self, GroupsError> {
        let mut header = [0; HEADER_LEN];
        fill(stream, &mut header)?;
        let crc = u32::from_le_bytes(array(&header, 28));
        let found = check_header(&header[..28], ANSWER_MAGIC, crc)?;
        if found != kind {
            return Err(GroupsError::Kind(found.code()));
        }
        if u64::from_le_bytes(array(&header, 12)) != new_len_bytes {
            return Err(GroupsError::Impossible("they belong to a content of another length"));
        }
        let base_len_bytes = u64::from_le_bytes(array(&header, 20));
        if base_len_bytes > FILE_LEN_MAX {
            return Err(GroupsError::Impossible("their base is too long for a file"));
        }
        let mut equal = Self::none(kind, new_len_bytes, base_len_bytes);
        fill(stream, &mut equal.bits)?;
        let mut bits_crc = [0; 4];
        fill(stream, &mut bits_crc)?;
        if u32::from_le_bytes(bits_crc) != part_crc(crc, 0, &equal.bits) {
            return Err(GroupsError::Checksum { group: 0 });
        }
        let groups = equal.groups();
        let behind = groups..(equal.bits.len() as u64).saturating_mul(8);
        if behind.into_iter().any(|group| equal.contains(group)) {
            return Err(GroupsError::Impossible("a group past the end is marked as equal"));
        }
        // Where one content ends inside a group of the other, these two groups differ in length.
        if groups.checked_sub(1).is_some_and(|last| equal.contains(last)) && !equal.is_last_alike() {
            return Err(GroupsError::Impossible(
                "groups of different lengths are marked as equal",
            ));
        }
        Ok(equal)
    }

    fn groups(&self) -> u64 {
        group_count(self.new_len_bytes.min(self.base_len_bytes))
    }

    /// Whether the last group that both contents have is as long in both.
    fn is_last_alike(&self) -> bool {
        let shorter = self.new_len_bytes.min(self.base_len_bytes);
        self.new_len_bytes == self.base_len_bytes || shorter.is_multiple_of(GROUP_LEN_BYTES)
    }

    fn range(&self, group: u64) -> Option<ByteRange> {
        let start = group.checked_mul(GROUP_LEN_BYTES)?;
        let end = start.saturating_add(GROUP_LEN_BYTES);
        ByteRange::new(start, end.min(self.new_len_bytes).min(self.base_len_bytes))
    }
}

impl GroupAnswer {
    /// The answer made of a signature of the whole base, for a client that sent no group sums:
    /// nothing is known to be equal.
    #[must_use]
    pub fn of_all(signature: Signature, new_len_bytes: u64) -> Self {
        Self {
            new_len_bytes,
            base_len_bytes: signature.content_len_bytes(),
            gathering: Gathering::without([]),
            signature,
        }
    }

    /// Reads the answer to the list of a content of `new_len_bytes` in leaves of this kind, and
    /// nothing beyond it.
    ///
    /// # Errors
    /// If the stream fails, is not an answer, is damaged, cut short, about another content, or has
    /// more than `blocks_max` blocks.
    pub fn read(
        mut stream: impl Read,
        kind: LeafKind,
        new_len_bytes: u64,
        blocks_max: u64,
    ) -> Result<Self, GroupsError> {
        let equal = EqualGroups::read(&mut stream, kind, new_len_bytes)?;
        let gathering = equal.gathering();
        let signature = Signature::read(stream, blocks_max).map_err(GroupsError::Signature)?;
        let params = signature.params();
        if signature.content_len_bytes() != gathering.left_len_bytes(equal.base_len_bytes) {
            return Err(GroupsError::Impossible(
                "the signature is not that of the unequal groups",
            ));
        }
        if (params.weak, params.strong) != (WeakKind::Crc32c, StrongKind::Tree(kind)) {
            return Err(GroupsError::Impossible("the signature is not of the requested leaves"));
        }
        // Each block lies in one group and begins with a leaf.
        if !GROUP_LEN_BYTES.is_multiple_of(u64::from(params.block_len_bytes)) {
            return Err(GroupsError::Impossible("the signature's blocks do not fit into groups"));
        }
        Ok(Self {
            new_len_bytes,
            base_len_bytes: equal.base_len_bytes,
            gathering,
            signature,
        })
    }

    /// The length of the new content.
    #[must_use]
    pub fn new_len_bytes(&self) -> u64 {
        self.new_len_bytes
    }

    /// The length of the base.
    #[must_use]
    pub fn base_len_bytes(&self) -> u64 {
        self.base_len_bytes
    }

    /// The rest of both contents; the ranges taken out are equal in place.
    #[must_use]
    pub fn gathering(&self) -> &Gathering {
        &self.gathering
    }

    /// The length of the rest of the new content.
    #[must_use]
    pub fn left_len_bytes(&self) -> u64 {
        self.gathering.left_len_bytes(self.new_len_bytes)
    }

    /// The signature of the rest of the base.
    #[must_use]
    pub fn signature(&self) -> &Signature {
        &self.signature
    }
}
