//! The signature of a stored content: the checksums by which a client finds it in its own content.
//!
//! A signature is made from the resolved layers, piece by piece; holes cost a constant per block.
//! The kinds that follow from kept sums (CRC-32C and a tree kind) are made from these
//! ([`crate::sums`]), so that only changes since they were kept are read; the other kinds that a
//! client can ask for read everything. Sums are kept of a file's newest contents only; a signature
//! of older ones uses the sums that still hold, and changes none.
//!
//! The signature of an excerpt reads its ranges alone, in blocks that may be short; so do its
//! bytes.

use crate::content::ContentReader;
use crate::error::StoreError;
use crate::groups::LeafSignature;
use crate::numbers::{LayerNumber, NodeNumber};
use crate::read::file_at;
use crate::resolve::{Resolver, Run, layer_rows};
use crate::store::{Store, existing_seq, folder_row};
use crate::sums::keep::Keeper;
use crate::sums::reader::{LeafReader, Leaves};
use crate::sums::{KEPT_LEN_MIN, Purpose};
use byteback_delta::leaves::{LeafBlocks, LeafKind};
use byteback_delta::signature::{SignatureParams, SignatureWriter};
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;
use byteback_extents::ByteRange;
use byteback_model::{FileId, Seq};
use std::io::{self, Write};

pub use byteback_delta::excerpt::{ENCODED_LEN_MAX, Excerpt, ExcerptAnswer};
pub use byteback_delta::signature::{BLOCK_LEN_MAX, STRONG_LEN_MIN, SignatureRequest};

/// The longest excerpt of a content, in bytes: each of its ranges may cost reading a whole frame.
pub const EXCERPT_LEN_MAX: u64 = 64 << 20;

/// The longest excerpt whose bytes are read, in bytes: a client holds them in memory.
pub const EXCERPT_BYTES_LEN_MAX: u64 = 16 << 20;

/// The longest strong checksum, in bytes.
pub const STRONG_LEN_MAX: u8 = byteback_delta::strong::STRONG_LEN_MAX as u8;

/// Makes the signature of a content.
pub struct SignatureReader {
    store: Store,
    contents: Contents,
    params: SignatureParams,
    len: u64,
}

/// The source of a signature.
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

/// The contents of a file at a moment.
pub(crate) struct HashedContent {
    pub(crate) node: NodeNumber,
    pub(crate) layer: LayerNumber,
    pub(crate) len: u64,
    is_newest: bool,
}

impl Store {
    /// Begins the signature of a file's contents at a moment, as `request` wants it. A random
    /// number keys it.
    ///
    /// # Errors
    /// The folder, the moment or the file does not exist; the contents are longer than the store
    /// hashes; the catalog fails.
    pub fn signature(
        &self,
        folder: &str,
        file: FileId,
        at: Option<Seq>,
        request: &SignatureRequest,
    ) -> Result<SignatureReader, StoreError> {
        let content = self.content_at(folder, file, at)?;
        let whole = ByteRange::new(0, content.len);
        let part = match request.part {
            Some(part) => whole.and_then(|whole| whole.intersect(part)),
            None => whole,
        };
        let len = part.map_or(0, ByteRange::len_bytes);
        self.check_hashed_len(file, len)?;
        let params = request.params(len, self.draw_seed()?);
        let blocks = LeafBlocks::new(&params, len).filter(|_| part == whole);
        let contents = match (params.weak, params.strong, blocks) {
            (WeakKind::Crc32c, StrongKind::Tree(kind), Some(blocks)) => {
                Contents::Leaves(Box::new((self.leaves_of(&content, kind)?, blocks)))
            }
            _ => {
                let resolver = self.resolver_of(&content, part)?;
                Contents::Bytes(Box::new(ContentReader::of_resolver(self, resolver, content.len)?))
            }
        };
        Ok(SignatureReader {
            store: self.clone(),
            contents,
            params,
            len,
        })
    }

    /// Begins the signature of an excerpt of a file's contents at a moment, in blocks of this
    /// length. Returns the length of the contents, too; what lies behind it is left out.
    ///
    /// # Errors
    /// The folder, the moment or the file does not exist; the excerpt is too long; the catalog
    /// fails.
    pub fn excerpt(
        &self,
        folder: &str,
        file: FileId,
        at: Option<Seq>,
        excerpt: &Excerpt,
        block_len_bytes: u32,
    ) -> Result<(u64, SignatureReader), StoreError> {
        let content = self.content_at(folder, file, at)?;
        let excerpt = excerpt.within(content.len);
        let len = excerpt.len_bytes();
        let contents = self.excerpt_of(&content, &excerpt, EXCERPT_LEN_MAX)?;
        let reader = SignatureReader {
            store: self.clone(),
            contents: Contents::Bytes(Box::new(contents)),
            params: SignatureParams::for_excerpt(block_len_bytes, self.draw_seed()?),
            len,
        };
        Ok((content.len, reader))
    }

    /// Begins to read an excerpt of a file's contents at a moment; what lies behind their end is
    /// left out. The length of such an excerpt is bounded by [`EXCERPT_BYTES_LEN_MAX`].
    ///
    /// # Errors
    /// The folder, the moment or the file does not exist; the excerpt is too long; the catalog
    /// fails.
    pub fn excerpt_bytes(
        &self,
        folder: &str,
        file: FileId,
        at: Option<Seq>,
        excerpt: &Excerpt,
    ) -> Result<ContentReader, StoreError> {
        let content = self.content_at(folder, file, at)?;
        self.excerpt_of(&content, &excerpt.within(content.len), EXCERPT_BYTES_LEN_MAX)
    }

    fn excerpt_of(
        &self,
        content: &HashedContent,
        excerpt: &Excerpt,
        len_max: u64,
    ) -> Result<ContentReader, StoreError> {
        let len = excerpt.len_bytes();
        if len > len_max {
            return Err(StoreError::InvalidParameter(format!(
                "the excerpt has {len} bytes, but may have at most {len_max}"
            )));
        }
        let rows = layer_rows(&*self.catalog().read()?, content.node, content.layer, LayerNumber::NONE)?;
        let runs = rows.into_iter().map(Run::stored).collect();
        ContentReader::of_resolver(self, Resolver::through(runs, excerpt.ranges()), content.len)
    }

    /// A random number that keys the checksums of one signature.
    pub(crate) fn draw_seed(&self) -> Result<u64, StoreError> {
        let seed = self.parts.randomness.next_u64();
        seed.map_err(|e| StoreError::io("draw a random number", e))
    }

    /// A file's contents at a moment, if they are short enough to be hashed.
    pub(crate) fn hashed_content(
        &self,
        folder: &str,
        file: FileId,
        at: Option<Seq>,
    ) -> Result<HashedContent, StoreError> {
        let content = self.content_at(folder, file, at)?;
        self.check_hashed_len(file, content.len)?;
        Ok(content)
    }

    fn check_hashed_len(&self, file: FileId, len: u64) -> Result<(), StoreError> {
        let len_max = self.parts.limits.hashed_len_max;
        if len > len_max {
            return Err(StoreError::InvalidParameter(format!(
                "node {file} has {len} bytes, but signatures cover at most {len_max}"
            )));
        }
        Ok(())
    }

    fn content_at(&self, folder: &str, file: FileId, at: Option<Seq>) -> Result<HashedContent, StoreError> {
        let catalog = self.catalog().read()?;
        let folder = folder_row(&*catalog, folder)?;
        let at = existing_seq(&folder, at)?;
        let (node, row) = file_at(&*catalog, &folder, file, at)?;
        let len = row.attributes.size;
        let newest = catalog.attributes(node, folder.seq)?;
        Ok(HashedContent {
            node,
            layer: row.layer,
            len,
            is_newest: newest.is_some_and(|newest| newest.layer == row.layer),
        })
    }

    /// The resolver of a range of the contents.
    pub(crate) fn resolver_of(
        &self,
        content: &HashedContent,
        range: Option<ByteRange>,
    ) -> Result<Resolver, StoreError> {
        let rows = layer_rows(&*self.catalog().read()?, content.node, content.layer, LayerNumber::NONE)?;
        Ok(Resolver::to_bottom(rows, range))
    }

    /// All leaves of the contents; new ones are kept if the contents are the newest.
    pub(crate) fn leaves_of(&self, content: &HashedContent, kind: LeafKind) -> Result<LeafReader, StoreError> {
        let (node, len) = (content.node, content.len);
        let resolver = self.resolver_of(content, ByteRange::new(0, len))?;
        let is_kept = content.is_newest && len >= KEPT_LEN_MIN;
        let keeper = is_kept.then(|| Keeper::of_committed(self, node, kind, len));
        LeafReader::new(self, kind, Some(node), (resolver, len), keeper, Purpose::Signature)
    }
}

impl SignatureReader {
    /// Length of the stream that [`Self::write`] will write, in bytes.
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
                let (mut leaves, blocks) = *both;
                let mut signature = LeafSignature { writer, blocks };
                while let Some(next) = leaves.next()? {
                    let written = match next {
                        Leaves::Zeros(len) => signature.add_zeros(len),
                        Leaves::Sums(sums) => signature.add(sums),
                    };
                    if let Err(e) = written {
                        return Ok(Err(e));
                    }
                }
                // Kept before the last group is sent: the client that gets it comes back with a
                // proof.
                if let Some(keeper) = leaves.finish() {
                    keeper.finish();
                }
                Ok(signature.writer.finish().map(drop))
            }
        }
    }
}
