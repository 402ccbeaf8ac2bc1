//! Sums of groups of leaves, which two ends compare before the checksums of blocks: a MiB that is
//! equal is neither sent nor compared any further.
//!
//! The end that has the new content sends its [`GroupList`]: [`LISTED_SUM_LEN`] bytes for each
//! group of [`GROUP_LEAVES`](crate::leaves::GROUP_LEAVES) leaves. The end that has the base reads
//! them as [`ListedGroups`], and answers ([`GroupAnswer`]) with the groups that are equal in place
//! and the signature of the rest of its content. An unmodified content of 100 MB costs 1.5 KB on
//! the wire and a hash over its leaves at each end.
//!
//! *The rest* ([`Gathering`]): the unequal groups, joined, form a content of their own, which has
//! an ordinary signature ([`crate::signature`]). Both ends leave out the same groups, so a byte
//! that lies in place in the contents also lies in place in their rests: a delta between the rests
//! gives one between the contents ([`crate::find::find_gathered`]).
//!
//! *Not found*: bytes of the new content that the base has only in groups which are equal in place.
//!
//! Equal sums are no proof: they are half as long as a proof has to be, and may belong to another
//! content than the intended one, as with every signature. An end that uses copies sends the digest
//! of the whole ([`crate::leaves::LeafDigest`]), which is made of the same sums at full length.
//!
//! Both streams come from an untrusted peer: bad input gives a typed error, and memory follows the
//! bytes that arrive. docs/formats/groups.md describes every byte.

mod answer;
mod gathering;

use std::io::{self, ErrorKind, Read, Write};

use crate::leaves::{GROUP_LEN_BYTES, GroupSum, LeafKind};
use crate::room::make_room;
use crate::signature::SignatureError;
use crate::wire::FILE_LEN_MAX;

pub use answer::{EqualGroups, GroupAnswer};
pub use gathering::Gathering;

/// The first bytes of every list of groups.
pub const LIST_MAGIC: [u8; 8] = *b"\x89BBGRP\r\n";

/// The first bytes of every answer to a list of groups.
pub const ANSWER_MAGIC: [u8; 8] = *b"\x89BBGRA\r\n";

/// The version of both formats that this crate writes and reads.
pub const VERSION: u16 = 1;

/// The most groups in a list: those of a TiB.
pub const GROUPS_MAX: u64 = 1 << 20;

/// The bytes of a sum that are listed, its first ones.
pub const LISTED_SUM_LEN: usize = 16;

/// The listed part of a sum.
type ListedSum = [u8; LISTED_SUM_LEN];

/// The number of sums between two checksums of the list.
const PART_GROUPS: u64 = 1024;

/// Magic, version, kind, a zero, length of the content, CRC.
const HEADER_LEN: usize = 8 + 2 + 1 + 1 + 8 + 4;

/// A list of groups, or the answer to one, cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum GroupsError {
    /// The stream failed.
    #[error("cannot read the group sums")]
    Io(#[source] io::Error),
    /// The stream ends too early.
    #[error("the group sums are truncated; request them again")]
    Truncated,
    /// The first bytes are another format's.
    #[error("not a list of group sums")]
    NotGroups,
    /// A version that this program cannot read.
    #[error("version {0} of the group sums is not supported, only version {VERSION}; update the older side")]
    Version(u16),
    /// Leaves of a kind that this program does not know, or that was not asked for.
    #[error("the group sums are of leaves of kind {0}, which is unknown or was not requested")]
    Kind(u8),
    /// Bytes changed on the way.
    #[error("the group sums are damaged at group {group}; request them again")]
    Checksum {
        /// The first group of the damaged part; also 0 for a damaged header.
        group: u64,
    },
    /// There are more groups than the reader accepts.
    #[error("there are sums of {groups} groups, more than the limit of {groups_max}")]
    TooMany {
        /// The announced number.
        groups: u64,
        /// The limit.
        groups_max: u64,
    },
    /// The bytes are intact, but they break a rule of the format.
    #[error("the group sums are invalid: {0}")]
    Impossible(&'static str),
    /// The signature of the rest cannot be read.
    #[error("cannot use the signature of the unequal groups")]
    Signature(#[source] SignatureError),
}

/// The number of groups of a content of `content_len_bytes`.
#[must_use]
pub const fn group_count(content_len_bytes: u64) -> u64 {
    content_len_bytes.div_ceil(GROUP_LEN_BYTES)
}

/// The sums of a content's groups, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupList {
    kind: LeafKind,
    content_len_bytes: u64,
    sums: Vec<GroupSum>,
}

impl GroupList {
    /// An empty list for a content of `content_len_bytes`.
    #[must_use]
    pub fn new(kind: LeafKind, content_len_bytes: u64) -> Self {
        Self {
            kind,
            content_len_bytes,
            sums: Vec::new(),
        }
    }

    /// Adds the sum of the next group; sums beyond the content's end are ignored.
    pub fn push(&mut self, sum: &GroupSum) {
        let groups = group_count(self.content_len_bytes);
        if (self.sums.len() as u64) < groups {
            make_room(&mut self.sums, 1, groups);
            self.sums.push(*sum);
        }
    }

    /// The kind of the leaves.
    #[must_use]
    pub fn kind(&self) -> LeafKind {
        self.kind
    }

    /// The length of the content.
    #[must_use]
    pub fn content_len_bytes(&self) -> u64 {
        self.content_len_bytes
    }

    /// The sums so far.
    #[must_use]
    pub fn sums(&self) -> &[GroupSum] {
        &self.sums
    }

    /// The list as its reader has it.
    #[must_use]
    pub fn listed(&self) -> ListedGroups {
        ListedGroups {
            kind: self.kind,
            content_len_bytes: self.content_len_bytes,
            sums: self.sums.iter().map(listed).collect(),
        }
    }

    /// The length of the stream.
    #[must_use]
    pub fn stream_len_bytes(&self) -> u64 {
        let groups = group_count(self.content_len_bytes);
        HEADER_LEN as u64 + groups * LISTED_SUM_LEN as u64 + groups.div_ceil(PART_GROUPS) * 4
    }

    /// Writes the list.
    ///
    /// # Errors
    /// As [`ListedGroups::write`].
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        self.listed().write(out)
    }
}

fn listed(sum: &GroupSum) -> ListedSum {
    array(sum, 0)
}

/// A list of groups that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGroups {
    kind: LeafKind,
    content_len_bytes: u64,
    sums: Vec<ListedSum>,
}

impl ListedGroups {
    /// The kind of the leaves.
    #[must_use]
    pub fn kind(&self) -> LeafKind {
        self.kind
    }

    /// The length of the content.
    #[must_use]
    pub fn content_len_bytes(&self) -> u64 {
        self.content_len_bytes
    }

    /// Whether the list's group with this number has this sum, and the same length as in a content
    /// of `base_len_bytes`: the two groups are then taken to be equal in place.
    #[must_use]
    pub fn is_equal(&self, group: u64, sum: &GroupSum, base_len_bytes: u64) -> bool {
        let end = |len: u64| len.min((group + 1).saturating_mul(GROUP_LEN_BYTES));
        let index = usize::try_from(group).unwrap_or(usize::MAX);
        end(self.content_len_bytes) == end(base_len_bytes) && self.sums.get(index) == Some(&listed(sum))
    }

    /// Writes the list.
    ///
    /// # Errors
    /// `InvalidInput` if sums are missing, or there are more than [`GROUPS_MAX`]; otherwise the
    /// error of `out`.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        let groups = group_count(self.content_len_bytes);
        if self.sums.len() as u64 != groups || groups > GROUPS_MAX {
            let message = format!("there are sums of {} groups, but {groups} groups", self.sums.len());
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        }
        let mut header = [0; HEADER_LEN];
        header[..8].copy_from_slice(&LIST_MAGIC);
        header[8..10].copy_from_slice(&VERSION.to_le_bytes());
        header[10] = self.kind.code();
        header[12..20].copy_from_slice(&self.content_len_bytes.to_le_bytes());
        let header_crc = crc32c::crc32c(&header[..20]);
        header[20..].copy_from_slice(&header_crc.to_le_bytes());
        out.write_all(&header)?;
        for (part, sums) in (0..).zip(self.sums.chunks(PART_GROUPS as usize)) {
            let bytes = sums.as_flattened();
            out.write_all(bytes)?;
            let crc = part_crc(header_crc, part * PART_GROUPS, bytes);
            out.write_all(&crc.to_le_bytes())?;
        }
        out.flush()
    }

    /// Reads a list of at most `groups_max` groups, and nothing beyond it. Memory follows the bytes
    /// that arrive.
    ///
    /// # Errors
    /// If the stream fails, is not a list, is damaged or cut short, or has more groups.
    pub fn read(mut stream: impl Read, groups_max: u64) -> Result<Self, GroupsError> {
        let mut header = [0; HEADER_LEN];
        fill(&mut stream, &mut header)?;
        let header_crc = u32::from_le_bytes(array(&header, 20));
        let kind = check_header(&header[..20], LIST_MAGIC, header_crc)?;
        let content_len_bytes = u64::from_le_bytes(array(&header, 12));
        if content_len_bytes > FILE_LEN_MAX {
            return Err(GroupsError::Impossible("their content is too long for a file"));
        }
        let groups = group_count(content_len_bytes);
        if groups > groups_max {
            return Err(GroupsError::TooMany { groups, groups_max });
        }
        let mut list = Self {
            kind,
            content_len_bytes,
            sums: Vec::new(),
        };
        let mut part = vec![[0; LISTED_SUM_LEN]; groups.min(PART_GROUPS) as usize];
        let mut first = 0;
        while first < groups {
            // At most a part.
            let sums = &mut part[..(groups - first).min(PART_GROUPS) as usize];
            fill(&mut stream, sums.as_flattened_mut())?;
            let mut crc = [0; 4];
            fill(&mut stream, &mut crc)?;
            if u32::from_le_bytes(crc) != part_crc(header_crc, first, sums.as_flattened()) {
                return Err(GroupsError::Checksum { group: first });
            }
            make_room(&mut list.sums, sums.len(), groups);
            list.sums.extend_from_slice(sums);
            first += sums.len() as u64;
        }
        Ok(list)
    }
}

/// Checks the common beginning of both headers (magic, version, kind, a zero); returns the kind.
fn check_header(header: &[u8], magic: [u8; 8], crc: u32) -> Result<LeafKind, GroupsError> {
    if !header.starts_with(&magic) {
        return Err(GroupsError::NotGroups);
    }
    let version = header.get(8..10).and_then(|bytes| bytes.try_into().ok());
    let version = version.map_or(0, u16::from_le_bytes);
    if version != VERSION {
        return Err(GroupsError::Version(version));
    }
    if crc != crc32c::crc32c(header) {
        return Err(GroupsError::Checksum { group: 0 });
    }
    match header.get(10..12) {
        Some(&[kind, 0]) => LeafKind::from_code(kind).ok_or(GroupsError::Kind(kind)),
        _ => Err(GroupsError::Impossible("a reserved byte of their header is used")),
    }
}

fn part_crc(header_crc: u32, first_group: u64, bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&header_crc.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &first_group.to_le_bytes()), bytes)
}

fn fill(stream: &mut impl Read, bytes: &mut [u8]) -> Result<(), GroupsError> {
    stream.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => GroupsError::Truncated,
        _ => GroupsError::Io(error),
    })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests;
