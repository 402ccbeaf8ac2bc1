//! Digests of directories with everything below them, by which a client and a server find out which
//! parts of two trees are equal without listing them.
//!
//! *The digest* covers names, attributes and, through these, lengths and times of everything below
//! a directory; not contents, not identities, not names of owners, and not the directory's own
//! attributes, which belong to the directory above. It is made in two steps, so that no end has to
//! hold a deep tree's directories open: [`DirectoryEntries`] digests the entries of one directory,
//! [`combine`] adds those of the directories in it.
//!
//! *A directory has no digest* if a comparison by names and attributes would miss something: if it
//! could not be read as a whole, or has a node other than a directory with several names; nor has
//! any directory above it.
//!
//! [`DirectoryDigests`] is what travels: for each directory that has a digest, a key made of its
//! path, and the first half of the digest. docs/formats/directory-digests.md describes every byte.
//! Bad input gives a typed error, and memory follows the bytes that came.

use byteback_model::{Attributes, NodeKind};
use std::collections::HashMap;

/// The first bytes of every list.
pub const MAGIC: [u8; 8] = *b"\x89BBDIR\r\n";

/// The version of the format and of the digests in it.
pub const VERSION: u16 = 1;

/// Magic, version, two zeros, number of directories.
const HEAD_LEN: usize = 8 + 2 + 2 + 4;

const CRC_LEN: usize = 4;
const KEY_LEN: usize = 8;
const DIGEST_LEN: usize = 16;

/// Most directories in a list.
pub const DIRECTORIES_MAX: u32 = 1 << 18;

/// Longest list, in bytes.
pub const LIST_LEN_MAX: u64 = HEAD_LEN as u64 + DIRECTORIES_MAX as u64 * (KEY_LEN + DIGEST_LEN) as u64 + CRC_LEN as u64;

const ENTRIES_CONTEXT: &str = "byteback 2026-11 digest of a directory's entries";
const DIRECTORY_CONTEXT: &str = "byteback 2026-11 digest of a directory and what is below";
const KEY_CONTEXT: &str = "byteback 2026-11 key of a directory's path";

/// Digests the entries of one directory, in byte order of their names.
#[derive(Debug)]
pub struct DirectoryEntries {
    hasher: blake3::Hasher,
    is_known: bool,
}

impl Default for DirectoryEntries {
    fn default() -> Self {
        Self {
            hasher: blake3::Hasher::new_derive_key(ENTRIES_CONTEXT),
            is_known: true,
        }
    }
}

impl DirectoryEntries {
    /// Adds the next entry.
    pub fn push(&mut self, name: &[u8], attributes: &Attributes) {
        let Attributes {
            kind,
            mode,
            uid,
            gid,
            size,
            mtime_ns,
            rdev,
            inode_flags,
            target,
            xattrs,
            user: _,
            group: _,
        } = attributes;
        self.bytes(name);
        self.hasher.update(&[code_of(*kind)]);
        for number in [mode, uid, gid, inode_flags] {
            self.hasher.update(&number.to_le_bytes());
        }
        for number in [size, rdev] {
            self.hasher.update(&number.to_le_bytes());
        }
        self.hasher.update(&mtime_ns.to_le_bytes());
        self.hasher.update(&[u8::from(target.is_some())]);
        if let Some(target) = target {
            self.bytes(target.as_bytes());
        }
        self.hasher.update(&(xattrs.len() as u64).to_le_bytes());
        for xattr in xattrs {
            self.bytes(xattr.name.as_bytes());
            self.bytes(xattr.value.as_bytes());
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.hasher.update(&(bytes.len() as u64).to_le_bytes());
        self.hasher.update(bytes);
    }

    /// Notes that something in this directory cannot be compared by its entries.
    pub fn give_up(&mut self) {
        self.is_known = false;
    }

    /// The digest; `None` if it was given up.
    #[must_use]
    pub fn finish(&self) -> Option<[u8; 32]> {
        self.is_known.then(|| *self.hasher.finalize().as_bytes())
    }
}

fn code_of(kind: NodeKind) -> u8 {
    match kind {
        NodeKind::File => 1,
        NodeKind::Directory => 2,
        NodeKind::Symlink => 3,
        NodeKind::Fifo => 4,
        NodeKind::Socket => 5,
        NodeKind::CharDevice => 6,
        NodeKind::BlockDevice => 7,
    }
}

/// A directory of a tree that is being digested.
#[derive(Clone, Copy, Debug)]
pub struct DigestedDirectory {
    /// Index of the directory above, which comes before; `None` for the top.
    pub above: Option<usize>,
    /// Digest of its entries.
    pub entries: Option<[u8; 32]>,
}

/// The digests of directories with everything below them. Each directory comes behind the one above
/// it, and directories in one directory are in byte order of their names.
#[must_use]
pub fn combine(directories: &[DigestedDirectory]) -> Vec<Option<[u8; 32]>> {
    let mut below: Vec<Vec<usize>> = vec![Vec::new(); directories.len()];
    for (index, directory) in directories.iter().enumerate() {
        if let Some(list) = directory.above.and_then(|above| below.get_mut(above)) {
            list.push(index);
        }
    }
    let mut combined: Vec<Option<[u8; 32]>> = vec![None; directories.len()];
    for (index, directory) in directories.iter().enumerate().rev() {
        let mut hasher = blake3::Hasher::new_derive_key(DIRECTORY_CONTEXT);
        // Directories in it come behind it, hence are combined before.
        let children = below.get(index).into_iter().flatten();
        let children = children.map(|child| combined.get(*child).copied().flatten());
        let mut is_known = true;
        for digest in std::iter::once(directory.entries).chain(children) {
            match digest {
                Some(digest) => {
                    hasher.update(&digest);
                }
                None => is_known = false,
            }
        }
        if is_known && let Some(place) = combined.get_mut(index) {
            *place = Some(*hasher.finalize().as_bytes());
        }
    }
    combined
}

/// Stands for the path of a directory below the top, which has an empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathKey([u8; KEY_LEN]);

impl PathKey {
    /// The key of a path.
    #[must_use]
    pub fn of(path: &[u8]) -> Self {
        let key = blake3::derive_key(KEY_CONTEXT, path);
        Self(key.first_chunk().copied().unwrap_or_default())
    }
}

/// The digests of directories, by their paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryDigests {
    digests: HashMap<[u8; KEY_LEN], [u8; DIGEST_LEN]>,
}

/// A list of digests cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryDigestsError {
    /// The first bytes are another format's.
    #[error("this is not a list of directory digests")]
    NotDigests,
    /// A version that this program cannot read.
    #[error("version {0} of directory digests is not supported, only version {VERSION}; update the older side")]
    Version(u16),
    /// The list has another length than its number of directories needs.
    #[error("the list does not have the length of its {0} directories")]
    Length(u32),
    /// Bytes changed on the way.
    #[error("the list of directory digests is damaged; request it again")]
    Checksum,
}

impl DirectoryDigests {
    /// Adds a directory.
    pub fn insert(&mut self, path: PathKey, digest: &[u8; 32]) {
        self.digests.insert(path.0, half_of(digest));
    }

    /// Whether the directory at this path has this digest.
    #[must_use]
    pub fn agree(&self, path: PathKey, digest: &[u8; 32]) -> bool {
        self.digests.get(&path.0) == Some(&half_of(digest))
    }

    /// The number of directories.
    #[must_use]
    pub fn len(&self) -> usize {
        self.digests.len()
    }

    /// Whether no directory has a digest.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    /// The bytes of the list.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut entries: Vec<_> = self.digests.iter().collect();
        entries.sort_unstable();
        entries.truncate(DIRECTORIES_MAX as usize);
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0, 0]);
        // At most 2^18.
        bytes.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        for (key, digest) in entries {
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(digest);
        }
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a list.
    ///
    /// # Errors
    /// If the bytes are no list of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DirectoryDigestsError> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(DirectoryDigestsError::NotDigests)?;
        let (version, rest) = rest.split_first_chunk().ok_or(DirectoryDigestsError::NotDigests)?;
        let version = u16::from_le_bytes(*version);
        if version != VERSION {
            return Err(DirectoryDigestsError::Version(version));
        }
        let rest = rest.strip_prefix(&[0, 0]).ok_or(DirectoryDigestsError::NotDigests)?;
        let (count, rest) = rest.split_first_chunk().ok_or(DirectoryDigestsError::NotDigests)?;
        let count = u32::from_le_bytes(*count);
        let (entries, crc) = rest
            .split_last_chunk::<CRC_LEN>()
            .ok_or(DirectoryDigestsError::Length(count))?;
        if entries.len() as u64 != u64::from(count) * (KEY_LEN + DIGEST_LEN) as u64 {
            return Err(DirectoryDigestsError::Length(count));
        }
        let checked = bytes.get(..bytes.len() - CRC_LEN).unwrap_or_default();
        if *crc != crc32c::crc32c(checked).to_le_bytes() {
            return Err(DirectoryDigestsError::Checksum);
        }
        let (entries, _) = entries.as_chunks::<{ KEY_LEN + DIGEST_LEN }>();
        let split = |entry: &[u8; KEY_LEN + DIGEST_LEN]| {
            let (key, digest) = entry.split_first_chunk()?;
            Some((*key, *digest.first_chunk()?))
        };
        Ok(Self {
            digests: entries.iter().filter_map(split).collect(),
        })
    }
}

fn half_of(digest: &[u8; 32]) -> [u8; DIGEST_LEN] {
    digest.first_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests;
