//! The SHA-256 of a certificate, which identifies a server without a certificate authority.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// SHA-256 of a certificate in DER, as shown by `openssl x509 -fingerprint -sha256`. Its text form
/// is 64 hexadecimal digits; colons between them are accepted but not written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint(pub [u8; 32]);

/// The error for a text that is not a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is 64 hexadecimal digits")]
pub struct ParseFingerprintError;

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    fn from_str(text: &str) -> Result<Self, ParseFingerprintError> {
        let mut digits = text.chars().filter(|char| *char != ':').map(|char| char.to_digit(16));
        let mut digit = || digits.next().flatten().ok_or(ParseFingerprintError);
        let mut bytes = [0u8; 32];
        for byte in &mut bytes {
            *byte = u8::try_from(digit()? << 4 | digit()?).map_err(|_| ParseFingerprintError)?;
        }
        match digits.next() {
            None => Ok(Self(bytes)),
            Some(_) => Err(ParseFingerprintError),
        }
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = ParseFingerprintError;

    fn try_from(text: String) -> Result<Self, ParseFingerprintError> {
        text.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_is_read_as_written_with_colons_or_without() {
        let fingerprint = Fingerprint(std::array::from_fn(|at| u8::try_from(at * 7).unwrap()));
        let text = fingerprint.to_string();
        assert!(text.starts_with("00070e15") && text.len() == 64);
        let colons: Vec<&str> = (0..64).step_by(2).map(|at| &text[at..at + 2]).collect();
        for text in [text.clone(), text.to_uppercase(), colons.join(":")] {
            assert_eq!(text.parse(), Ok(fingerprint));
        }
        for wrong in ["", &text[1..], &format!("{text}0"), &text.replace('7', "g")] {
            assert_eq!(wrong.parse::<Fingerprint>(), Err(ParseFingerprintError), "{wrong}");
        }
    }
}
