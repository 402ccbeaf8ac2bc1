//! The signature of a stored content: the checksums by which a client finds it in a content of its own.
//!
//! Made from the resolved layers, piece by piece; holes cost a constant per block. What follows from kept sums (CRC-32C and a tree kind)
//! is made from these ([`crate::sums`]), so that only what changed since they were kept is read; the rest of what the client can
//! ask for is made by reading all. Sums are kept of a file's newest contents only; a signature of older ones takes what is still the
//! same, and leaves what is kept as it is.

use crate::content::ContentReader;
use crate::error::StoreError;
use crate::model::{FileId, Seq};
use crate::read::file_at;
use crate::resolve::{Resolver, layer_rows};
use crate::store::{Store, existing_seq, folder_row};
use crate::sums::keep::Keeper;
use crate::sums::reader::{LeafReader, Leaves};
use crate::sums::{KEPT_LEN_MIN, Purpose};
use byteback_delta::leaves::{LeafBlock, LeafBlocks, leaf_count};
use byteback_delta::signature::{SignatureParams, SignatureWriter};
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;
use byteback_extents::ByteRange;
use std::io::{self, Write};

pub use byteback_delta::signature::{BLOCK_LEN_MAX, STRONG_LEN_MIN, SignatureRequest};

/// The longest strong checksum, in bytes.
pub const STRONG_LEN_MAX: u8 = byteback_delta::strong::STRONG_LEN_MAX as u8;

/// A content whose signature is to be made.
pub struct SignatureReader {
    store: Store,
    contents: Contents,
    params: SignatureParams,
    len: u64,
}

/// What it is made from.
enum Contents {
    Bytes(Box<ContentReader>),
    Leaves(Box<(LeafReader, LeafBlocks)>),
}

impl std::fmt::Debug for SignatureReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignatureReader")
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Begins the signature of a file's contents at a moment, as `request` wants it. It is keyed by a random number.
    ///
    /// # Errors
    /// The folder, the moment or the file does not exist; the contents are longer than the store hashes; the catalog fails.
    pub fn signature(
        &self,
        folder: &str,
        file: FileId,
        at: Option<Seq>,
        request: &SignatureRequest,
    ) -> Result<SignatureReader, StoreError> {
        let catalog = self.catalog().read()?;
        let folder = folder_row(&*catalog, folder)?;
        let at = existing_seq(&folder, at)?;
        let (node, row) = file_at(&*catalog, &folder, file, at)?;
        let len = row.attributes.size;
        let len_max = self.parts.limits.hashed_len_max;
        if len > len_max {
            return Err(StoreError::InvalidParameter(format!(
                "node {file} has {len} bytes, and signatures are made of at most {len_max}"
            )));
        }
        let resolver = Resolver::to_bottom(layer_rows(&*catalog, node, row.layer, 0)?, ByteRange::new(0, len));
        let newest = catalog.attributes(node, folder.seq)?;
        let is_newest = newest.is_some_and(|newest| newest.layer == row.layer);
        drop(catalog);
        let seed = self.parts.randomness.next_u64();
        let seed = seed.map_err(|e| StoreError::io("draw a random number", e))?;
        let params = request.params(len, seed);
        let blocks = LeafBlocks::new(&params, len);
        let contents = match (params.weak, params.strong, blocks) {
            (WeakKind::Crc32c, StrongKind::Tree(kind), Some(blocks)) => {
                let is_kept = is_newest && len >= KEPT_LEN_MIN;
                let keeper = is_kept.then(|| Keeper::of_committed(self, node, kind, len));
                let reader = LeafReader::new(self, kind, Some(node), (resolver, len), keeper, Purpose::Signature)?;
                Contents::Leaves(Box::new((reader, blocks)))
            }
            _ => Contents::Bytes(Box::new(ContentReader::of_resolver(self, resolver, len)?)),
        };
        Ok(SignatureReader {
            store: self.clone(),
            contents,
            params,
            len,
        })
    }
}

impl SignatureReader {
    /// Length of the stream that [`Self::write`] will write.
    #[must_use]
    pub fn stream_len_bytes(&self) -> u64 {
        self.params.stream_len_bytes(self.len)
    }

    /// Writes the signature.
    ///
    /// # Errors
    /// `Ok(Err)` when `out` fails; `Err` when the store does.
    pub fn write(self, out: impl Write) -> Result<Result<(), io::Error>, StoreError> {
        let mut writer = match SignatureWriter::new(out, self.params, self.len) {
            Ok(writer) => writer,
            Err(e) => return Ok(Err(e)),
        };
        match self.contents {
            Contents::Bytes(mut content) => {
                while let Some((range, bytes)) = content.next_part()? {
                    let len = range.len_bytes();
                    let written = match bytes {
                        Some(bytes) => {
                            self.store.sums_work.add(Purpose::Signature, len, 0);
                            writer.push(bytes)
                        }
                        None => {
                            self.store.sums_work.add(Purpose::Signature, 0, len);
                            writer.push_zeros(len)
                        }
                    };
                    if let Err(e) = written {
                        return Ok(Err(e));
                    }
                }
                Ok(writer.finish().map(drop))
            }
            Contents::Leaves(both) => {
                let (mut leaves, mut blocks) = *both;
                while let Some(next) = leaves.next()? {
                    let mut add = |block: LeafBlock| match (block.weak, block.strong) {
                        (Some(weak), Some(strong)) => writer.push_sums(weak, &strong),
                        _ => Err(io::Error::other("a leaf is missing")),
                    };
                    let written = match next {
                        Leaves::Zeros(len) => blocks.push_zeros(leaf_count(len), add),
                        Leaves::Sums(sums) => sums.iter().try_for_each(|sum| {
                            let whole = blocks.push(Some(sum.crc), Some(&sum.leaf));
                            whole.map_or(Ok(()), &mut add)
                        }),
                    };
                    if let Err(e) = written {
                        return Ok(Err(e));
                    }
                }
                // Before the last group is told: whoever has it comes back with a proof.
                if let Some(keeper) = leaves.finish() {
                    keeper.finish();
                }
                Ok(writer.finish().map(drop))
            }
        }
    }
}
