//! Tokens: who may talk to the server.
//!
//! A token is a readable prefix and 32 random bytes in base64url: `bbj_...` joins once and then is gone, `bbd_...` is a
//! device's for good. Only SHA-256 hashes are stored. A hash needs no salt and no slow function, because 256 random bits
//! cannot be guessed; comparisons take the same time wherever hashes differ.

use crate::catalog::{Catalog as _, SqliteCatalog};
use crate::error::StoreError;
use crate::store::Store;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use byteback_host::clock::{Clock as _, RealClock};
use byteback_host::random::{Randomness, RealRandomness};
use sha2::{Digest as _, Sha256};
use std::path::Path;
use subtle::ConstantTimeEq as _;

/// Prefix of join tokens.
pub const JOIN_PREFIX: &str = "bbj_";

/// Prefix of device tokens.
pub const DEVICE_PREFIX: &str = "bbd_";

/// Longest device name in bytes.
const DEVICE_NAME_LEN_MAX: usize = 255;

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn draw(randomness: &dyn Randomness, prefix: &str) -> Result<String, StoreError> {
    let mut secret = [0u8; 32];
    randomness
        .fill(&mut secret)
        .map_err(|e| StoreError::io("draw random bytes", e))?;
    Ok(format!("{prefix}{}", URL_SAFE_NO_PAD.encode(secret)))
}

/// Makes a join token for the store in the directory `path`, valid for `valid_ns`, also while another process serves that
/// store: only the catalog is opened, and its engine puts the two writers in order.
///
/// # Errors
/// There is no store; there is no randomness; the catalog fails.
pub fn invite(path: impl AsRef<Path>, valid_ns: i64) -> Result<String, StoreError> {
    let catalog = path.as_ref().join("catalog.sqlite");
    // Opening it would create it.
    std::fs::metadata(&catalog).map_err(|e| StoreError::io("find the catalog of the store", e))?;
    let catalog = SqliteCatalog::open(catalog)?;
    let token = draw(&RealRandomness, JOIN_PREFIX)?;
    let now = RealClock.now_ns();
    let transaction = catalog.write()?;
    transaction.insert_join_token(&hash(&token), now, now.saturating_add(valid_ns))?;
    transaction.commit()?;
    Ok(token)
}

impl Store {
    /// Makes a join token that is valid for `valid_ns`.
    ///
    /// # Errors
    /// There is no randomness; the catalog fails.
    pub fn create_join_token(&self, valid_ns: i64) -> Result<String, StoreError> {
        let token = self.new_token(JOIN_PREFIX)?;
        let now = self.parts.clock.now_ns();
        let catalog = self.catalog().write()?;
        catalog.insert_join_token(&hash(&token), now, now.saturating_add(valid_ns))?;
        catalog.commit()?;
        Ok(token)
    }

    /// Whether any device has joined or may join: a server that has none makes its first join token.
    ///
    /// # Errors
    /// The catalog fails.
    pub fn has_credentials(&self) -> Result<bool, StoreError> {
        self.catalog().read()?.has_credentials()
    }

    /// Uses up a join token and adds a device; answers its number and token.
    ///
    /// # Errors
    /// The join token is unknown, used or expired; the name is too long; the catalog fails.
    pub fn join(&self, join_token: &str, name: &str) -> Result<(u64, String), StoreError> {
        if name.len() > DEVICE_NAME_LEN_MAX || name.chars().any(char::is_control) {
            let message = format!("a device's name has at most {DEVICE_NAME_LEN_MAX} bytes and no control characters");
            return Err(StoreError::InvalidParameter(message));
        }
        let token = self.new_token(DEVICE_PREFIX)?;
        let now = self.parts.clock.now_ns();
        let catalog = self.catalog().write()?;
        if !join_token.starts_with(JOIN_PREFIX) || !catalog.take_join_token(&hash(join_token), now)? {
            return Err(StoreError::JoinTokenInvalid);
        }
        let device = catalog.insert_device(name, &hash(&token), now)?;
        catalog.commit()?;
        Ok((device, token))
    }

    /// The device that a token belongs to.
    ///
    /// # Errors
    /// The catalog fails.
    pub fn authenticate(&self, token: &str) -> Result<Option<u64>, StoreError> {
        if !token.starts_with(DEVICE_PREFIX) {
            return Ok(None);
        }
        let hash = hash(token);
        let found = self.catalog().read()?.device_by_token(&hash)?;
        Ok(found
            .filter(|(_, stored)| bool::from(stored.ct_eq(&hash)))
            .map(|(device, _)| device))
    }

    fn new_token(&self, prefix: &str) -> Result<String, StoreError> {
        draw(&*self.parts.randomness, prefix)
    }
}

#[cfg(test)]
mod tests;
