//! Files that a new one may equal: those of its length.
//!
//! A file that was copied, moved in from outside, or extracted again is new to the folder, while
//! its content is not. Its length is all that a client can say of it in a few bytes; the lengths of
//! long files are hardly ever equal by chance.
//!
//! Out of scope: whether contents are equal, which the client finds out by their digests.

use crate::error::StoreError;
use crate::numbers::NodeNumber;
use crate::store::{Store, existing_seq, folder_row};
use byteback_model::{FileId, NodeKind, Seq};

/// Shortest files that are looked for, in bytes: the catalog has an index of the lengths of these.
pub const ALIKE_LEN_MIN: u64 = 64 * 1024;

/// Most files that are looked at for one length. Files of a length that many have (segments of a
/// log, pre-allocated databases) are hardly ever equal.
const LOOKED_AT_MAX: usize = 32;

impl Store {
    /// For each of these lengths in bytes the files that have it at a moment, at most `files_max`,
    /// those first that the folder got last. They may be gone from the tree: their contents are
    /// there. Of lengths below [`ALIKE_LEN_MIN`] there are none.
    ///
    /// # Errors
    /// The folder or the moment does not exist; the catalog fails.
    pub fn alike(
        &self,
        folder: &str,
        at: Seq,
        lens_bytes: &[u64],
        files_max: usize,
    ) -> Result<Vec<Vec<FileId>>, StoreError> {
        let catalog = self.catalog().read()?;
        let folder = folder_row(&*catalog, folder)?;
        let at = existing_seq(&folder, Some(at))?;
        let mut all = Vec::with_capacity(lens_bytes.len());
        for len_bytes in lens_bytes {
            let mut files = Vec::new();
            let mut before = NodeNumber::END;
            for _ in 0..LOOKED_AT_MAX {
                if *len_bytes < ALIKE_LEN_MIN || files.len() == files_max {
                    break;
                }
                let Some(node) = catalog.node_of_length(folder.id, *len_bytes, before)? else {
                    break;
                };
                before = node;
                let row = catalog.attributes(node, at)?.map(|row| row.attributes);
                if row.is_some_and(|row| row.kind == NodeKind::File && row.size == *len_bytes) {
                    files.push(catalog.file_id(node)?);
                }
            }
            all.push(files);
        }
        Ok(all)
    }
}
