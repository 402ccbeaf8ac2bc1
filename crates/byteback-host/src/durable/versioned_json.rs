//! Small records that are each a file of JSON, replaced as a whole.
//!
//! The new bytes are written beside the old file and renamed over it, so that a crash leaves the
//! old record or the new one. A file carries a version, and a checksum over everything that is
//! understood. A file that cannot be understood is an error and never taken for a missing one:
//! fields that this program does not know would be lost by the next write.
//!
//! Out of scope: explaining a damaged file to people, which is the owner's task; large records, as
//! all of a record is in memory.

use super::{DurableDir, OpenMode, replace};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;

/// The name and format of such a file.
#[derive(Clone, Copy, Debug)]
pub struct VersionedJson {
    /// Name of the file. A new version is written under this name with `.new` behind it.
    pub name: &'static str,
    /// Version of the format; any other is refused.
    pub version: u32,
    /// Longest file that is read, in bytes.
    pub len_max_bytes: u64,
}

/// A record cannot be read or written.
#[derive(Debug)]
pub enum VersionedJsonError {
    /// The file system: the verb of the attempt, and the system's answer.
    Io(&'static str, io::Error),
    /// The file cannot be understood, for this reason.
    Damaged(String),
}

#[derive(Serialize)]
struct Framed<'a, B> {
    version: u32,
    #[serde(flatten)]
    body: &'a B,
    /// CRC-32C of the JSON without this field and without white space.
    #[serde(skip_serializing_if = "Option::is_none")]
    crc32c: Option<String>,
}

impl VersionedJson {
    /// The record in `dir`; `None` if there is no such file.
    ///
    /// # Errors
    /// [`VersionedJsonError::Io`], and [`VersionedJsonError::Damaged`] for a file that is longer
    /// than allowed, has another version, a wrong checksum or fields that are not understood.
    pub fn read<B: Serialize + DeserializeOwned>(&self, dir: &dyn DurableDir) -> Result<Option<B>, VersionedJsonError> {
        let failed = |what| move |error| VersionedJsonError::Io(what, error);
        let file = match dir.open(self.name, OpenMode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed("open"))?,
        };
        let len_bytes = file.len().map_err(failed("read"))?;
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        if len_bytes > self.len_max_bytes || len == usize::MAX {
            return Err(VersionedJsonError::Damaged(format!(
                "it is too long ({len_bytes} bytes)"
            )));
        }
        let mut bytes = vec![0; len];
        file.read_exact_at(0, &mut bytes).map_err(failed("read"))?;
        self.body_of(&bytes).map(Some)
    }

    /// Replaces the record durably: the bytes are synced, then the name, then the directory. After
    /// a failure the previous record is still there.
    ///
    /// # Errors
    /// [`VersionedJsonError::Io`].
    pub fn write<B: Serialize>(&self, dir: &dyn DurableDir, body: &B) -> Result<(), VersionedJsonError> {
        let bytes = self.bytes_of(body)?;
        replace(dir, self.name, &bytes)
            .map(|_| ())
            .map_err(|error| VersionedJsonError::Io("write", error))
    }

    /// The bytes of a file that holds `body`.
    ///
    /// # Errors
    /// [`VersionedJsonError::Damaged`] if `body` has no form in JSON.
    pub fn bytes_of<B: Serialize>(&self, body: &B) -> Result<Vec<u8>, VersionedJsonError> {
        let mut framed = Framed {
            version: self.version,
            body,
            crc32c: None,
        };
        let json = |of: &Framed<'_, B>| serde_json::to_vec(of).map_err(unusable);
        framed.crc32c = Some(format!("{:08x}", crc32c::crc32c(&json(&framed)?)));
        json(&framed)
    }

    /// The record that these bytes of a file hold.
    ///
    /// # Errors
    /// [`VersionedJsonError::Damaged`], as [`read`](Self::read) says.
    pub fn body_of<B: Serialize + DeserializeOwned>(&self, bytes: &[u8]) -> Result<B, VersionedJsonError> {
        #[derive(Deserialize)]
        struct AnyVersion {
            version: u32,
        }
        let AnyVersion { version } = serde_json::from_slice(bytes).map_err(unusable)?;
        if version != self.version {
            let message = format!(
                "it has version {version}, but this program knows only version {}",
                self.version
            );
            return Err(VersionedJsonError::Damaged(message));
        }
        let body = serde_json::from_slice(bytes).map_err(unusable)?;
        match self.bytes_of(&body)? == bytes {
            true => Ok(body),
            false => Err(VersionedJsonError::Damaged("its checksum is wrong".to_owned())),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn unusable(error: serde_json::Error) -> VersionedJsonError {
    VersionedJsonError::Damaged(error.to_string())
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
#[cfg(test)]
mod tests;
