//! `FolderName`: the name of a folder in URLs, configuration and messages.
//!
//! 1 to 64 characters of `A-Z a-z 0-9 . _ -`, not beginning with a dot or a dash: it needs no
//! escaping in a URL, a shell or a file name on any system.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A valid folder name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FolderName(String);

/// The error for a text that is not a valid folder name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a folder name has 1 to 64 letters, digits, dots, dashes or underscores, and does not begin with '.' or '-'")]
pub struct ParseFolderNameError;

impl FolderName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FolderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for FolderName {
    type Err = ParseFolderNameError;

    fn from_str(text: &str) -> Result<Self, ParseFolderNameError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if (1..=64).contains(&text.len()) && text.bytes().all(allowed) && !text.starts_with(['.', '-']) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseFolderNameError)
        }
    }
}

impl Serialize for FolderName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for FolderName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;
