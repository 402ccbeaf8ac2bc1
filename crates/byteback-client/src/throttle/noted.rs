//! The user's setting for the wire, durably: `throttle.json` (docs/formats/identities.md).
//!
//! A file that cannot be understood is never taken for a missing one: a wanted pause would be lost.

use std::io;

use byteback_host::durable::DurableDir;
use serde::{Deserialize, Serialize};

use byteback_host::durable::{VersionedJson, VersionedJsonError};

use super::{PartOfDay, RateLimits, Wish};

pub(super) const FILE: VersionedJson = VersionedJson {
    name: "throttle.json",
    version: 1,
    len_max_bytes: 64 * 1024,
};

/// The setting cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum NotedError {
    /// The file system failed.
    #[error("cannot {what} 'throttle.json', which holds this folder's rate limits: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be understood.
    #[error(
        "'throttle.json', which holds this folder's rate limits and whether sync is paused, cannot be used ({0}): \
         remove it, then set the limits or pause again"
    )]
    Damaged(String),
}

#[derive(Serialize, Deserialize)]
pub(super) struct Body {
    paused_since_ns: Option<i64>,
    limits: RateLimits,
}

impl From<VersionedJsonError> for NotedError {
    fn from(error: VersionedJsonError) -> Self {
        match error {
            VersionedJsonError::Io(what, source) => Self::Io { what, source },
            VersionedJsonError::Damaged(why) => Self::Damaged(why),
        }
    }
}

impl Wish {
    /// The setting in `dir`; the default if nothing was set.
    ///
    /// # Errors
    /// The file cannot be read or understood.
    pub fn read(dir: &dyn DurableDir) -> Result<Self, NotedError> {
        let Some(body) = FILE.read::<Body>(dir)? else {
            return Ok(Self::default());
        };
        Self::of(body)
    }

    pub(super) fn of(body: Body) -> Result<Self, NotedError> {
        let mut parts = body.limits.0.iter().filter_map(|limit| limit.during);
        if !parts.all(|part| PartOfDay::new(part.from_minute, part.to_minute).is_some()) {
            let message = "it contains an invalid part of the day".to_owned();
            return Err(NotedError::Damaged(message));
        }
        Ok(Self {
            paused_since_ns: body.paused_since_ns,
            limits: body.limits,
        })
    }

    pub(super) fn body(&self) -> Body {
        Body {
            paused_since_ns: self.paused_since_ns,
            limits: self.limits.clone(),
        }
    }

    /// Writes the setting durably.
    ///
    /// # Errors
    /// The file cannot be written; the old setting is still there.
    pub fn write(&self, dir: &dyn DurableDir) -> Result<(), NotedError> {
        Ok(FILE.write(dir, &self.body())?)
    }
}
