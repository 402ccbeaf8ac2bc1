//! The answer to a list of groups: which of them are equal in place, and the signature of what is
//! left of the base.

use std::io::{self, Read, Write};

use byteback_extents::ByteRange;

use super::{
    ANSWER_MAGIC, Gathering, GroupList, GroupsError, VERSION, array, check_header, fill, group_count, part_crc,
};
use crate::leaves::{GROUP_LEN_BYTES, LeafKind};
use crate::signature::{Signature, SignatureParams};
use crate::strong::StrongKind;
use crate::weak::WeakKind;
use crate::wire::FILE_LEN_MAX;

/// Magic, version, kind, a zero, lengths of the new content and of the base, CRC.
const HEADER_LEN: usize = 8 + 2 + 1 + 1 + 8 + 8 + 4;

/// Which groups of two contents are equal in place: the head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EqualGroups {
    kind: LeafKind,
    new_len_bytes: u64,
    base_len_bytes: u64,
    /// One bit for each group that both contents have, the first one lowest.
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
    /// None of the groups of the list, yet, beside a base of so many bytes.
    #[must_use]
    pub fn new(list: &GroupList, base_len_bytes: u64) -> Self {
        Self::none(list.kind(), list.content_len_bytes(), base_len_bytes)
    }

    fn none(kind: LeafKind, new_len_bytes: u64, base_len_bytes: u64) -> Self {
        let groups = group_count(new_len_bytes.min(base_len_bytes));
        Self {
            kind,
            new_len_bytes,
            base_len_bytes,
            // One for every 8 MiB of the shorter content, of which the reader said how long it is.
            bits: vec![0; groups.div_ceil(8) as usize],
        }
    }

    /// Notes that this group is equal; one that not both contents have is passed over.
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

    /// What is left of both contents.
    #[must_use]
    pub fn gathering(&self) -> Gathering {
        let equal = (0..self.groups()).filter(|&group| self.contains(group));
        Gathering::without(equal.filter_map(|group| self.range(group)))
    }

    /// The parameters of the signature of what is left of the base: blocks of a leaf, unless much
    /// is left.
    #[must_use]
    pub fn params(&self, seed: u64) -> SignatureParams {
        let gathering = self.gathering();
        let left = |len| gathering.left_len_bytes(len);
        SignatureParams::for_groups(self.kind, left(self.base_len_bytes), left(self.new_len_bytes), seed)
    }

    /// The length of its stream.
    #[must_use]
    pub fn stream_len_bytes(&self) -> u64 {
        (HEADER_LEN + self.bits.len() + 4) as u64
    }

    /// Writes the head of an answer; the signature of what is left of the base is to follow.
    ///
    /// # Errors
    /// What `out` says.
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

    /// Reads the head of the answer to a list about so many bytes of this kind.
    fn read(stream: &mut impl Read, kind: LeafKind, new_len_bytes: u64) -> Result<Self, GroupsError> {
        let mut header = [0; HEADER_LEN];
        fill(stream, &mut header)?;
        let crc = u32::from_le_bytes(array(&header, 28));
        let found = check_header(&header[..28], ANSWER_MAGIC, crc)?;
        if found != kind {
            return Err(GroupsError::Kind(found.code()));
        }
        if u64::from_le_bytes(array(&header, 12)) != new_len_bytes {
            return Err(GroupsError::Impossible("they are about a content of another length"));
        }
        let base_len_bytes = u64::from_le_bytes(array(&header, 20));
        if base_len_bytes > FILE_LEN_MAX {
            return Err(GroupsError::Impossible("their base is longer than any file"));
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
            return Err(GroupsError::Impossible("a group is equal that is not there"));
        }
        // Where one content ends inside of a group of the other, these are of different lengths.
        if groups.checked_sub(1).is_some_and(|last| equal.contains(last)) && !equal.is_last_alike() {
            return Err(GroupsError::Impossible("groups of different lengths are equal"));
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
    /// What a signature of the whole base says, for who did not ask by groups: nothing is known to
    /// be equal.
    #[must_use]
    pub fn of_all(signature: Signature, new_len_bytes: u64) -> Self {
        Self {
            new_len_bytes,
            base_len_bytes: signature.content_len_bytes(),
            gathering: Gathering::without([]),
            signature,
        }
    }

    /// Reads the answer to the list of a content of so many bytes in leaves of this kind, and
    /// nothing beyond it.
    ///
    /// # Errors
    /// If the stream fails, is none, is damaged, cut short, about something else, or has more than
    /// `blocks_max` blocks.
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
            return Err(GroupsError::Impossible("the signature is not of what is left"));
        }
        if (params.weak, params.strong) != (WeakKind::Crc32c, StrongKind::Tree(kind)) {
            return Err(GroupsError::Impossible(
                "the signature is not of leaves as they were asked for",
            ));
        }
        // A block is in one group, and begins with a leaf.
        if !GROUP_LEN_BYTES.is_multiple_of(u64::from(params.block_len_bytes)) {
            return Err(GroupsError::Impossible("the signature's blocks do not make groups"));
        }
        Ok(Self {
            new_len_bytes,
            base_len_bytes: equal.base_len_bytes,
            gathering,
            signature,
        })
    }

    /// Length of the new content.
    #[must_use]
    pub fn new_len_bytes(&self) -> u64 {
        self.new_len_bytes
    }

    /// Length of the base.
    #[must_use]
    pub fn base_len_bytes(&self) -> u64 {
        self.base_len_bytes
    }

    /// What is left of both contents; equal in place is what was taken out.
    #[must_use]
    pub fn gathering(&self) -> &Gathering {
        &self.gathering
    }

    /// How much is left of the new content.
    #[must_use]
    pub fn left_len_bytes(&self) -> u64 {
        self.gathering.left_len_bytes(self.new_len_bytes)
    }

    /// The signature of what is left of the base.
    #[must_use]
    pub fn signature(&self) -> &Signature {
        &self.signature
    }
}
