//! Files that a new one may equal: those of its length that begin as it does.
//!
//! A file that was copied, moved in from outside, or extracted again is new to the folder, while
//! its content is not. The lengths of long files are hardly ever equal by chance; where they are by
//! design (segments of a log, pre-allocated databases), their first bytes differ.
//!
//! Out of scope: whether contents are equal, which the client finds out by their digests.

use crate::content::unless_per_file;
use crate::error::StoreError;
use crate::numbers::NodeNumber;
use crate::store::{Store, existing_seq, folder_row};
use byteback_delta::ContentDigest;
use byteback_extents::ByteRange;
use byteback_model::{FileId, NodeKind, Seq};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Shortest files that are looked for, in bytes: the catalog has an index of the lengths of these.
pub const ALIKE_LEN_MIN: u64 = 64 * 1024;

/// Bytes at the beginning of a content that are compared first: for each file that is looked at,
/// the frame that has them is read.
pub const HEAD_LEN: u64 = 4096;

/// Most files that are looked at for one length, those first that the folder got last.
const LOOKED_AT_MAX: usize = 32;

/// Most beginnings that are read for one question. Contents behind them are as if there were no
/// equal ones.
const HEADS_MAX: usize = 2048;

/// The first bytes of the digest of the first [`HEAD_LEN`] bytes of a content.
pub type HeadDigest = [u8; 8];

/// A new content, as far as it is known to whoever looks for an equal one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoughtContent {
    /// Length in bytes.
    pub len_bytes: u64,
    /// Its beginning.
    pub head: HeadDigest,
}

impl Store {
    /// For each of these contents the files that have its length and its beginning at a moment, at
    /// most `files_max`, those first that the folder got last. They may be gone from the tree:
    /// their contents are there. Of lengths below [`ALIKE_LEN_MIN`] there are none.
    ///
    /// # Errors
    /// The folder or the moment does not exist; the catalog fails.
    pub fn alike(
        &self,
        folder: &str,
        at: Seq,
        sought: &[SoughtContent],
        files_max: usize,
    ) -> Result<Vec<Vec<FileId>>, StoreError> {
        let mut known: HashMap<u64, Vec<(FileId, HeadDigest)>> = HashMap::new();
        let mut heads_left = HEADS_MAX;
        let mut all = Vec::with_capacity(sought.len());
        for sought in sought {
            let of_length = match known.entry(sought.len_bytes) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let mut heads = Vec::new();
                    for file in self.files_of_length(folder, at, sought.len_bytes)? {
                        if heads_left == 0 {
                            break;
                        }
                        heads_left -= 1;
                        let head = unless_per_file(self.head(folder, at, file).map(Some))?;
                        heads.extend(head.map(|head| (file, head)));
                    }
                    unknown.insert(heads)
                }
            };
            let alike = of_length.iter().filter(|(_, head)| *head == sought.head);
            all.push(alike.map(|(file, _)| *file).take(files_max).collect());
        }
        Ok(all)
    }

    fn files_of_length(&self, folder: &str, at: Seq, len_bytes: u64) -> Result<Vec<FileId>, StoreError> {
        let catalog = self.catalog().read()?;
        let folder = folder_row(&*catalog, folder)?;
        let at = existing_seq(&folder, Some(at))?;
        let (mut files, mut before) = (Vec::new(), NodeNumber::END);
        for _ in 0..LOOKED_AT_MAX {
            let found = match len_bytes < ALIKE_LEN_MIN {
                true => None,
                false => catalog.node_of_length(folder.id, len_bytes, before)?,
            };
            let Some(node) = found else { break };
            before = node;
            let row = catalog.attributes(node, at)?.map(|row| row.attributes);
            if row.is_some_and(|row| row.kind == NodeKind::File && row.size == len_bytes) {
                files.push(catalog.file_id(node)?);
            }
        }
        Ok(files)
    }

    fn head(&self, folder: &str, at: Seq, file: FileId) -> Result<HeadDigest, StoreError> {
        let mut reader = self.content(folder, file, Some(at), ByteRange::new(0, HEAD_LEN))?;
        let mut head = Vec::new();
        let mut chunk = Vec::new();
        loop {
            reader.next_chunk(&mut chunk, HEAD_LEN as usize)?;
            if chunk.is_empty() {
                return Ok(head_digest(&head));
            }
            head.extend_from_slice(&chunk);
        }
    }
}

/// The digest of the beginning of a content.
#[must_use]
pub fn head_digest(head: &[u8]) -> HeadDigest {
    let mut digest = ContentDigest::new(head.len() as u64);
    digest.push(head);
    let whole = digest.finish().unwrap_or_default();
    let [a, b, c, d, e, f, g, h, ..] = whole;
    [a, b, c, d, e, f, g, h]
}
