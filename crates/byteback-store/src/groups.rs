//! Comparison of a client's sums of groups of leaves with those of a stored content. The answer
//! says which groups are equal and has the signature of the rest (`byteback_delta::groups`).
//!
//! The stored content's leaves are kept ones, or made ([`crate::sums`]), as for a signature. One
//! pass over them finds the groups that differ. Their leaves are held meanwhile, because the answer
//! begins with the equal groups; if there are too many ([`HELD_LEAVES_MAX`]), they are fetched once
//! more while the answer is written.
//!
//! *The cost of a hostile list* is at most twice that of a signature: one pass over the contents,
//! and another over what differs. Memory is the list, of at most [`GROUPS_MAX`] sums, and the held
//! leaves. Nothing is looked up.
//!
//! The result is no promise: a client that uses copies sends a proof (`prove`), which is compared
//! with the same leaves.

use crate::error::StoreError;
use crate::search::{IsWanted, end, refused};
use crate::signature::HashedContent;
use crate::store::Store;
use crate::sums::chunk::LeafSum;
use crate::sums::reader::{LeafReader, Leaves};
use crate::sums::{CHUNK_LEN, Purpose};
use byteback_delta::groups::{EqualGroups, ListedGroups};
use byteback_delta::leaves::{
    GROUP_LEN_BYTES, GroupSum, LeafBlock, LeafBlocks, LeafDigest, LeafKind, group_sum, leaf_count,
};
use byteback_delta::signature::{SignatureParams, SignatureWriter};
use byteback_extents::ByteRange;
use byteback_model::{FileId, Seq};
use std::io::{self, Read, Write};

pub use byteback_delta::groups::GROUPS_MAX;

/// Longest stream of a list of groups, in bytes.
pub const STREAM_LEN_MAX: u64 = 4096 + GROUPS_MAX * 33;

/// Most leaves of differing groups that are held: those of 512 MiB, about 5 MB.
const HELD_LEAVES_MAX: usize = if cfg!(test) { 1000 } else { 1 << 17 };

// A row of kept sums covers one group.
const _: () = assert!(CHUNK_LEN == GROUP_LEN_BYTES);

/// The sums of a new content's groups.
#[derive(Debug)]
pub struct SoughtGroups(ListedGroups);

impl SoughtGroups {
    /// Reads the stream of a list, which ends with its sums.
    ///
    /// # Errors
    /// [`StoreError::InvalidSearch`].
    pub fn read(mut stream: impl Read) -> Result<Self, StoreError> {
        let list = ListedGroups::read(&mut stream, GROUPS_MAX).map_err(refused)?;
        end(stream)?;
        Ok(Self(list))
    }
}

/// The equal groups, and the data for the signature of the rest.
pub struct FoundGroups {
    store: Store,
    content: HashedContent,
    kind: LeafKind,
    equal: EqualGroups,
    params: SignatureParams,
    /// Length of the differing rest of the stored content, in bytes.
    left_len: u64,
    /// Leaves of the rest; `None`: there were too many to hold.
    held: Option<Vec<HeldLeaves>>,
}

/// Consecutive leaves.
enum HeldLeaves {
    /// Leaves of this number of bytes of zeros.
    Zeros(u64),
    Sums(Vec<LeafSum>),
}

impl std::fmt::Debug for FoundGroups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FoundGroups")
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Compares a list of groups with a file's contents at a moment; `None` when the result is no
    /// longer wanted.
    ///
    /// # Errors
    /// The folder, the moment or the file does not exist; the contents are longer than the store
    /// hashes; the store fails.
    pub fn find_groups(
        &self,
        folder: &str,
        file: FileId,
        at: Option<Seq>,
        sought: &SoughtGroups,
        is_wanted: IsWanted<'_>,
    ) -> Result<Option<FoundGroups>, StoreError> {
        let list = &sought.0;
        let (content, kind) = (self.hashed_content(folder, file, at)?, list.kind());
        let mut leaves = self.leaves_of(&content, kind)?;
        let mut comparison = Comparison {
            list,
            base_len: content.len,
            equal: EqualGroups::new(list, content.len),
            group: 0,
            zero_group: None,
            held: Some(Vec::new()),
            held_leaves: 0,
        };
        while let Some(next) = leaves.next()? {
            if !is_wanted() {
                return Ok(None);
            }
            match next {
                Leaves::Zeros(len) => comparison.add_zeros(len),
                Leaves::Sums(sums) => comparison.add(sums),
            }
        }
        // Kept before anything is answered: the client that gets the answer comes back with a
        // proof.
        if let Some(keeper) = leaves.finish() {
            keeper.finish();
        }
        let Comparison { equal, held, .. } = comparison;
        Ok(Some(FoundGroups {
            store: self.clone(),
            kind,
            params: equal.params(self.draw_seed()?),
            left_len: equal.gathering().left_len_bytes(content.len),
            content,
            equal,
            held,
        }))
    }
}

/// The comparison, group by group.
struct Comparison<'a> {
    list: &'a ListedGroups,
    base_len: u64,
    equal: EqualGroups,
    /// Index of the next group.
    group: u64,
    /// Sum of a whole group of zeros, once there was one.
    zero_group: Option<GroupSum>,
    /// Leaves of differing groups; `None` once there are too many.
    held: Option<Vec<HeldLeaves>>,
    held_leaves: usize,
}

impl Comparison<'_> {
    /// Adds the leaves of a group.
    fn add(&mut self, sums: &[LeafSum]) {
        let sum = group_sum(sums.iter().map(|sum| &sum.leaf));
        if self.is_equal(&sum) {
            return;
        }
        self.held_leaves += sums.len();
        if self.held_leaves > HELD_LEAVES_MAX {
            self.held = None;
        }
        if let Some(held) = &mut self.held {
            held.push(HeldLeaves::Sums(sums.to_vec()));
        }
    }

    /// Adds groups of zeros.
    fn add_zeros(&mut self, mut len: u64) {
        while len > 0 {
            let now = len.min(GROUP_LEN_BYTES);
            let sum = match now {
                GROUP_LEN_BYTES => *self
                    .zero_group
                    .get_or_insert_with(|| zero_group(self.list.kind(), GROUP_LEN_BYTES)),
                _ => zero_group(self.list.kind(), now),
            };
            if !self.is_equal(&sum)
                && let Some(held) = &mut self.held
            {
                match held.last_mut() {
                    // All groups but the content's last are whole.
                    Some(HeldLeaves::Zeros(before)) => *before += now,
                    _ => held.push(HeldLeaves::Zeros(now)),
                }
            }
            len -= now;
        }
    }

    /// Whether the next group is equal; notes it.
    fn is_equal(&mut self, sum: &GroupSum) -> bool {
        let is_equal = self.list.is_equal(self.group, sum, self.base_len);
        if is_equal {
            self.equal.set(self.group);
        }
        self.group += 1;
        is_equal
    }
}

fn zero_group(kind: LeafKind, len: u64) -> GroupSum {
    let mut digest = LeafDigest::with_groups(kind, len);
    digest.push_zeros(len);
    let groups = digest.finish_with_groups();
    // One group was added.
    groups
        .and_then(|(_, list)| list.sums().first().copied())
        .unwrap_or_default()
}

impl FoundGroups {
    /// Length of the stream that [`Self::write`] will write, in bytes.
    #[must_use]
    pub fn stream_len_bytes(&self) -> u64 {
        self.equal.stream_len_bytes() + self.params.stream_len_bytes(self.left_len)
    }

    /// Writes the answer.
    ///
    /// # Errors
    /// `Ok(Err)` when `out` fails; `Err` when the store does.
    pub fn write(self, mut out: impl Write) -> Result<io::Result<()>, StoreError> {
        let begun = self.equal.write(&mut out);
        let writer = begun.and_then(|()| SignatureWriter::new(out, self.params, self.left_len));
        let blocks = LeafBlocks::new(&self.params, self.left_len);
        let (writer, blocks) = match (writer, blocks) {
            (Ok(writer), Some(blocks)) => (writer, blocks),
            (Err(error), _) => return Ok(Err(error)),
            (_, None) => return Ok(Err(io::Error::other("its blocks do not consist of leaves"))),
        };
        let mut signature = LeafSignature { writer, blocks };
        if let Some(held) = &self.held {
            for leaves in held {
                let written = match leaves {
                    HeldLeaves::Zeros(len) => signature.add_zeros(*len),
                    HeldLeaves::Sums(sums) => signature.add(sums),
                };
                if let Err(error) = written {
                    return Ok(Err(error));
                }
            }
            return Ok(signature.writer.finish().map(drop));
        }
        let gathering = self.equal.gathering();
        let left = ByteRange::new(0, self.left_len);
        for range in left.into_iter().flat_map(|left| gathering.in_content(left)) {
            let resolver = self.store.resolver_of(&self.content, Some(range))?;
            let (node, len) = (Some(self.content.node), self.content.len);
            let reader = LeafReader::of_range(&self.store, self.kind, node, (resolver, len), range, Purpose::Signature);
            let mut leaves = reader?;
            while let Some(next) = leaves.next()? {
                let written = match next {
                    Leaves::Zeros(len) => signature.add_zeros(len),
                    Leaves::Sums(sums) => signature.add(sums),
                };
                if let Err(error) = written {
                    return Ok(Err(error));
                }
            }
        }
        Ok(signature.writer.finish().map(drop))
    }
}

/// A signature made from leaves.
pub(crate) struct LeafSignature<W> {
    pub(crate) writer: SignatureWriter<W>,
    pub(crate) blocks: LeafBlocks,
}

impl<W: Write> LeafSignature<W> {
    /// Adds the next leaves.
    pub(crate) fn add(&mut self, sums: &[LeafSum]) -> io::Result<()> {
        for sum in sums {
            if let Some(block) = self.blocks.push(Some(sum.crc), Some(&sum.leaf)) {
                push(&mut self.writer, block)?;
            }
        }
        Ok(())
    }

    /// Adds zeros of this length in bytes, which end with a leaf.
    pub(crate) fn add_zeros(&mut self, len: u64) -> io::Result<()> {
        let writer = &mut self.writer;
        self.blocks.push_zeros(leaf_count(len), |block| push(writer, block))
    }
}

fn push<W: Write>(writer: &mut SignatureWriter<W>, block: LeafBlock) -> io::Result<()> {
    match (block.weak, block.strong) {
        (Some(weak), Some(strong)) => writer.push_sums(weak, &strong),
        _ => Err(io::Error::other("a leaf is missing")),
    }
}

#[cfg(test)]
mod tests;
