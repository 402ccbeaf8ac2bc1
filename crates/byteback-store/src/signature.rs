//! The signature of a stored content: the checksums by which a client finds it in a content of its own.
//!
//! Made from the resolved layers, piece by piece; holes cost a constant per block. Nothing is kept.

use crate::content::ContentReader;
use crate::error::StoreError;
use crate::model::{FileId, Seq};
use crate::store::Store;
use byteback_delta::signature::{SignatureParams, SignatureWriter};
use std::io::{self, Write};

pub use byteback_delta::signature::{BLOCK_LEN_MAX, STRONG_LEN_MIN, SignatureRequest};

/// The longest strong checksum, in bytes.
pub const STRONG_LEN_MAX: u8 = byteback_delta::strong::STRONG_LEN_MAX as u8;

/// A content whose signature is to be made.
#[derive(Debug)]
pub struct SignatureReader {
    content: ContentReader,
    params: SignatureParams,
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
        let content = self.content(folder, file, at, None)?;
        let len = content.size();
        let len_max = self.parts.limits.hashed_len_max;
        if len > len_max {
            return Err(StoreError::InvalidParameter(format!(
                "node {file} has {len} bytes, and signatures are made of at most {len_max}"
            )));
        }
        let seed = self.parts.randomness.next_u64();
        let seed = seed.map_err(|e| StoreError::io("draw a random number", e))?;
        let params = request.params(len, seed);
        Ok(SignatureReader { content, params })
    }
}

impl SignatureReader {
    /// Length of the stream that [`Self::write`] will write.
    #[must_use]
    pub fn stream_len_bytes(&self) -> u64 {
        self.params.stream_len_bytes(self.content.size())
    }

    /// Writes the signature.
    ///
    /// # Errors
    /// `Ok(Err)` when `out` fails; `Err` when the store does.
    pub fn write(mut self, out: impl Write) -> Result<Result<(), io::Error>, StoreError> {
        let mut writer = match SignatureWriter::new(out, self.params, self.content.size()) {
            Ok(writer) => writer,
            Err(e) => return Ok(Err(e)),
        };
        while let Some((range, bytes)) = self.content.next_part()? {
            let written = match bytes {
                Some(bytes) => writer.push(bytes),
                None => writer.push_zeros(range.len_bytes()),
            };
            if let Err(e) = written {
                return Ok(Err(e));
            }
        }
        Ok(writer.finish().map(drop))
    }
}
