//! The request for the contents of many small files: their identities at one moment, in the order
//! in which the answer returns them.
//!
//! Binary, as the identities of a directory's files would be twice as long in JSON.
//! docs/formats/contents.md describes every byte of request and answer.
//!
//! Bad input gives a typed error; the number of files is compared with its limit before memory is
//! reserved. Out of scope: whether the files exist.

use byteback_delta::contents::CONTENTS_MAX;
use byteback_model::{FileId, Seq};

/// The first bytes of every request.
pub const MAGIC: [u8; 8] = *b"\x89BBCRQ\r\n";

/// The version of the format that this crate writes and reads.
pub const VERSION: u16 = 1;

/// Magic, version, moment, number of files.
const HEAD_LEN: usize = 8 + 2 + 8 + 4;

const CRC_LEN: usize = 4;

const ID_LEN: usize = 16;

/// Longest request, in bytes.
pub const REQUEST_LEN_MAX: u64 = (HEAD_LEN + ID_LEN * CONTENTS_MAX as usize + CRC_LEN) as u64;

/// A request for contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentsRequest {
    /// The moment.
    pub at: Seq,
    /// Files, at most [`CONTENTS_MAX`].
    pub files: Vec<FileId>,
}

/// A request for contents cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentsRequestError {
    /// The first bytes are another format's.
    #[error("this is not a request for contents")]
    NotRequest,
    /// A version that this program cannot read.
    #[error("version {0} of the request for contents is not supported, only version {VERSION}; update the older side")]
    Version(u16),
    /// More files than an answer can have.
    #[error("the request names {0} files, more than {CONTENTS_MAX}")]
    TooMany(u32),
    /// The request has another length than its number of files needs.
    #[error("the request does not have the length of its {0} files")]
    Length(u32),
    /// Bytes changed on the way.
    #[error("the request for contents is damaged; send it again")]
    Checksum,
}

impl ContentsRequest {
    /// The bytes of the request.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let count = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(HEAD_LEN + ID_LEN * self.files.len() + CRC_LEN);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.at.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
        for file in &self.files {
            bytes.extend_from_slice(&file.to_bytes());
        }
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// If the bytes are no request of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, ContentsRequestError> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(ContentsRequestError::NotRequest)?;
        let (version, rest) = rest.split_first_chunk().ok_or(ContentsRequestError::NotRequest)?;
        let version = u16::from_le_bytes(*version);
        if version != VERSION {
            return Err(ContentsRequestError::Version(version));
        }
        let (at, rest) = rest.split_first_chunk().ok_or(ContentsRequestError::NotRequest)?;
        let (count, rest) = rest.split_first_chunk().ok_or(ContentsRequestError::NotRequest)?;
        let count = u32::from_le_bytes(*count);
        if count > CONTENTS_MAX {
            return Err(ContentsRequestError::TooMany(count));
        }
        if rest.len() != ID_LEN * count as usize + CRC_LEN {
            return Err(ContentsRequestError::Length(count));
        }
        let (fields, crc) = bytes.split_at(bytes.len() - CRC_LEN);
        if crc != crc32c::crc32c(fields).to_le_bytes() {
            return Err(ContentsRequestError::Checksum);
        }
        let (ids, _) = rest.as_chunks::<ID_LEN>();
        Ok(Self {
            at: Seq::from_le_bytes(*at),
            files: ids
                .iter()
                .map(|id| FileId::from_bytes(*id))
                .take(count as usize)
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests;
