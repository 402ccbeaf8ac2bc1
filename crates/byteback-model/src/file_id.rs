//! `FileId`: the identity of a node, chosen by the client that created it.
//!
//! An identity survives renames and is never used for two different files of one folder. In JSON,
//! in URLs and on screens it is 32 lower-case hexadecimal digits.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A 128-bit identity of a file, directory or other node.
///
/// ```
/// use byteback_model::FileId;
///
/// let id: FileId = "000000000000000000000000000000ff".parse()?;
/// assert_eq!(id, FileId(255));
/// assert_eq!(FileId::from_bytes(id.to_bytes()), id);
/// assert_eq!(id.to_string(), "000000000000000000000000000000ff");
/// # Ok::<(), byteback_model::file_id::ParseFileIdError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u128);

impl FileId {
    /// The 16 bytes, most significant first, so that byte order equals number order.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The identity encoded by [`FileId::to_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The error for a text that is not 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a file id is 32 hexadecimal digits")]
pub struct ParseFileIdError;

impl FromStr for FileId {
    type Err = ParseFileIdError;

    fn from_str(text: &str) -> Result<Self, ParseFileIdError> {
        // `from_str_radix` also takes a sign, hence the check of each digit.
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(ParseFileIdError);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| ParseFileIdError)
    }
}

impl Serialize for FileId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FileId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;
