//! Tokens: the secrets by which devices identify themselves.
//!
//! A token is a readable prefix and random bytes in base64url: `bbj_...` (16 bytes) joins once,
//! `bbd_...` (32 bytes) is a device's for good. Only SHA-256 hashes are stored. A hash needs no
//! salt and no slow function, because 128 random bits or more cannot be guessed; comparisons take
//! the same time wherever hashes differ.
//!
//! A device draws its token itself and keeps it before it joins ([`new_device_token`]): when the
//! answer is lost, it joins again with the same code and the same token, and is the same device.

use crate::error::StoreError;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use byteback_host::random::Randomness;
use sha2::{Digest as _, Sha256};

/// Prefix of join tokens.
pub const JOIN_PREFIX: &str = "bbj_";

/// Random bytes of a join token: enough not to be guessed in the days of its validity.
pub const JOIN_SECRET_LEN: usize = 16;

/// Prefix of device tokens.
pub const DEVICE_PREFIX: &str = "bbd_";

/// Random bytes of a device token.
const DEVICE_SECRET_LEN: usize = 32;

pub(crate) fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn draw<const N: usize>(randomness: &dyn Randomness, prefix: &str) -> Result<String, StoreError> {
    let mut secret = [0u8; N];
    randomness
        .fill(&mut secret)
        .map_err(|e| StoreError::io("draw random bytes", e))?;
    Ok(format!("{prefix}{}", URL_SAFE_NO_PAD.encode(secret)))
}

pub(crate) fn draw_join_token(randomness: &dyn Randomness) -> Result<String, StoreError> {
    draw::<JOIN_SECRET_LEN>(randomness, JOIN_PREFIX)
}

pub(crate) fn draw_device_token(randomness: &dyn Randomness) -> Result<String, StoreError> {
    draw::<DEVICE_SECRET_LEN>(randomness, DEVICE_PREFIX)
}

/// Draws a token for this device.
///
/// # Errors
/// There is no randomness.
pub fn new_device_token() -> Result<String, StoreError> {
    draw_device_token(&byteback_host::random::RealRandomness)
}

/// Whether a text has the form of a device token. The quality of its random bits is the device's
/// own affair.
pub(crate) fn is_device_token(text: &str) -> bool {
    let secret = text
        .strip_prefix(DEVICE_PREFIX)
        .and_then(|secret| URL_SAFE_NO_PAD.decode(secret).ok());
    secret.is_some_and(|secret| secret.len() == DEVICE_SECRET_LEN)
}

#[cfg(test)]
mod tests;
