//! What is wanted of the wire, durably: `throttle.json` (docs/format-identities.md).
//!
//! It is written as a whole, beside the old one and renamed, so that a crash leaves one or the other. One that cannot be understood is never taken for none:
//! who wanted a pause would not get it.

use std::io;

use byteback_host::durable::{DurableDir, OpenMode};
use serde::{Deserialize, Serialize};

use super::{PartOfDay, RateLimits, Wish};

const NAME: &str = "throttle.json";
const NEW_NAME: &str = "throttle.json.new";
const VERSION: u32 = 1;

/// More is none of ours.
const LEN_MAX: u64 = 64 * 1024;

/// What is wanted of the wire cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum NotedError {
    /// The file system.
    #[error("cannot {what} 'throttle.json', which says how fast this folder may be kept in sync: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// It cannot be understood.
    #[error(
        "'throttle.json', which says how fast this folder may be kept in sync and whether that is paused, cannot be used ({0}): remove it, and say again what you want"
    )]
    Damaged(String),
}

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    paused_since_ns: Option<i64>,
    limits: RateLimits,
    /// CRC-32C of the same without this, as JSON without white space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<String>,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> NotedError {
    move |source| NotedError::Io { what, source }
}

impl Wish {
    /// What was noted in `dir`; the default if nothing was.
    ///
    /// # Errors
    /// It cannot be read or understood.
    pub fn read(dir: &dyn DurableDir) -> Result<Self, NotedError> {
        let file = match dir.open(NAME, OpenMode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            opened => opened.map_err(failed("open"))?,
        };
        let len = file.len().map_err(failed("read"))?;
        if len > LEN_MAX {
            return Err(NotedError::Damaged(format!("it has {len} bytes")));
        }
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        file.read_exact_at(0, &mut bytes).map_err(failed("read"))?;
        Self::from_bytes(&bytes)
    }

    /// Notes it durably.
    ///
    /// # Errors
    /// It cannot be written; what was noted before is still there.
    pub fn write(&self, dir: &dyn DurableDir) -> Result<(), NotedError> {
        let bytes = self.to_bytes()?;
        let write = || {
            let file = dir.open(NEW_NAME, OpenMode::CreateIfMissing)?;
            file.set_len(0)?;
            file.write_all_at(0, &bytes)?;
            file.sync_data()?;
            dir.rename(NEW_NAME, NAME)?;
            dir.sync()
        };
        write().map_err(failed("write"))
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, NotedError> {
        let mut file = File {
            version: VERSION,
            paused_since_ns: self.paused_since_ns,
            limits: self.limits.clone(),
            crc32c: None,
        };
        let json = |file: &File| serde_json::to_vec(file).map_err(|error| NotedError::Damaged(error.to_string()));
        file.crc32c = Some(format!("{:08x}", crc32c::crc32c(&json(&file)?)));
        json(&file)
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, NotedError> {
        #[derive(Deserialize)]
        struct AnyVersion {
            version: u32,
        }
        let unusable = |error: serde_json::Error| NotedError::Damaged(error.to_string());
        let AnyVersion { version } = serde_json::from_slice(bytes).map_err(unusable)?;
        if version != VERSION {
            let message = format!("it has version {version}, this program knows {VERSION}");
            return Err(NotedError::Damaged(message));
        }
        let file: File = serde_json::from_slice(bytes).map_err(unusable)?;
        let wish = Self {
            paused_since_ns: file.paused_since_ns,
            limits: file.limits,
        };
        // The checksum is of what is understood: a flipped bit that changes nothing harms nobody.
        if wish.to_bytes()? != bytes {
            return Err(NotedError::Damaged("its checksum is wrong".to_owned()));
        }
        let mut parts = wish.limits.0.iter().filter_map(|limit| limit.during);
        match parts.all(|part| PartOfDay::new(part.from_minute, part.to_minute).is_some()) {
            true => Ok(wish),
            false => Err(NotedError::Damaged(
                "it names a part of the day that is none".to_owned(),
            )),
        }
    }
}
