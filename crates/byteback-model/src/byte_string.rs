//! `ByteString`: bytes that are usually text.
//!
//! File names, symlink targets and xattr values are bytes without an encoding, while JSON strings
//! are Unicode. A `ByteString` is written as a plain JSON string when it is valid UTF-8 and as
//! `{"base64": "..."}` (standard alphabet, padded) when it is not. Both forms are read, so every
//! byte string has one canonical and one always-possible form.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;

/// Bytes without an encoding that are usually valid UTF-8.
///
/// ```
/// use byteback_model::ByteString;
///
/// let text = ByteString::from(b"notes.txt".as_slice());
/// assert_eq!(serde_json::to_string(&text)?, r#""notes.txt""#);
/// let latin = ByteString::from(b"caf\xe9".as_slice());
/// assert_eq!(serde_json::to_string(&latin)?, r#"{"base64":"Y2Fm6Q=="}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteString(pub Vec<u8>);

impl ByteString {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, by value.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl Deref for ByteString {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Compares and hashes like its bytes, as `Borrow` demands.
impl Borrow<[u8]> for ByteString {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for ByteString {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&[u8]> for ByteString {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl<const N: usize> From<&[u8; N]> for ByteString {
    fn from(bytes: &[u8; N]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<&str> for ByteString {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<String> for ByteString {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

/// For people: invalid UTF-8 and control characters are escaped.
impl fmt::Display for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    write!(f, "{c}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Serialize for ByteString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = std::str::from_utf8(&self.0) {
            return serializer.serialize_str(text);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("base64", &STANDARD.encode(&self.0))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for ByteString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ByteStringVisitor)
    }
}

struct ByteStringVisitor;

impl<'de> Visitor<'de> for ByteStringVisitor {
    type Value = ByteString;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, or an object with one member \"base64\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ByteString, E> {
        Ok(ByteString::from(text))
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<ByteString, E> {
        Ok(ByteString::from(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ByteString, A::Error> {
        let Some((key, value)) = map.next_entry::<String, String>()? else {
            return Err(A::Error::missing_field("base64"));
        };
        if key != "base64" {
            return Err(A::Error::unknown_field(&key, &["base64"]));
        }
        let bytes = STANDARD
            .decode(value.as_bytes())
            .map_err(|e| A::Error::custom(format_args!("invalid base64: {e}")))?;
        if let Some(extra) = map.next_key::<String>()? {
            return Err(A::Error::unknown_field(&extra, &["base64"]));
        }
        Ok(ByteString(bytes))
    }
}

#[cfg(test)]
mod tests;
