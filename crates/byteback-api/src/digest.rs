//! The digest of a whole content as text: 64 lower-case hexadecimal digits.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

/// Length of a digest in bytes.
pub const DIGEST_LEN: usize = 32;

/// A digest as made by `byteback_delta::ContentDigest`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; DIGEST_LEN]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl Digest {
    /// Parses the text form; `None` if it is malformed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        let mut digest = [0; DIGEST_LEN];
        if digits.len() != 2 * digest.len() {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(digits.as_chunks::<2>().0) {
            let digit = |digit: u8| match digit {
                b'0'..=b'9' => Some(digit - b'0'),
                b'a'..=b'f' => Some(digit - b'a' + 10),
                _ => None,
            };
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(digest))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("a digest is 64 lower-case hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_64_lower_case_digits_are_a_digest() {
        let digest = Digest([0xa7; 32]);
        let text = digest.to_string();
        assert_eq!(text, "a7".repeat(32));
        assert_eq!(Digest::parse(&text), Some(digest));
        for wrong in [
            &text[1..],
            &text.to_uppercase(),
            &"g".repeat(64),
            &"\u{e4}".repeat(32),
            "",
        ] {
            assert_eq!(Digest::parse(wrong), None);
        }
    }
}
