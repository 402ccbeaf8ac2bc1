//! Small files of JSON in which a folder in sync remembers what its log does not
//! (docs/format-identities.md): its position, conflicts, names that are left out, limits on network
//! use.
//!
//! Each is written as a whole, beside the old one and renamed, so that a crash leaves one or the
//! other. It carries a version, and a checksum over what is understood: a flipped bit that changes
//! nothing does no harm, and a file that cannot be understood is never taken for a missing one.
//!
//! Out of scope: saying what a failure means for people, which the owner of the file does; large
//! contents, as all of a file is in memory.

use std::io;

use byteback_host::durable::{DurableDir, OpenMode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The name, version and limit of a kind of file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonFile {
    pub(crate) name: &'static str,
    /// Name under which it is written first.
    pub(crate) new_name: &'static str,
    pub(crate) version: u32,
    /// A longer file is not ours.
    pub(crate) len_max_bytes: u64,
}

/// A file that cannot be read or written.
#[derive(Debug)]
pub(crate) enum JsonFileError {
    /// The file system failed: the operation, and its error.
    Io(&'static str, io::Error),
    /// The content cannot be understood.
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

impl JsonFile {
    /// Reads the file; `None` if there is none.
    pub(crate) fn read<B: Serialize + DeserializeOwned>(
        &self,
        dir: &dyn DurableDir,
    ) -> Result<Option<B>, JsonFileError> {
        let failed = |what| move |error| JsonFileError::Io(what, error);
        let file = match dir.open(self.name, OpenMode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed("open"))?,
        };
        let len_bytes = file.len().map_err(failed("read"))?;
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        if len_bytes > self.len_max_bytes || len == usize::MAX {
            return Err(JsonFileError::Damaged(format!("it has {len_bytes} bytes")));
        }
        let mut bytes = vec![0; len];
        file.read_exact_at(0, &mut bytes).map_err(failed("read"))?;
        self.body_of(&bytes).map(Some)
    }

    /// Writes the file durably; if that fails, the old content is still there.
    pub(crate) fn write<B: Serialize>(&self, dir: &dyn DurableDir, body: &B) -> Result<(), JsonFileError> {
        let bytes = self.bytes_of(body)?;
        let write = || {
            let file = dir.open(self.new_name, OpenMode::CreateIfMissing)?;
            file.set_len(0)?;
            file.write_all_at(0, &bytes)?;
            file.sync_data()?;
            dir.rename(self.new_name, self.name)?;
            dir.sync()
        };
        write().map_err(|error| JsonFileError::Io("write", error))
    }

    pub(crate) fn bytes_of<B: Serialize>(&self, body: &B) -> Result<Vec<u8>, JsonFileError> {
        let mut framed = Framed {
            version: self.version,
            body,
            crc32c: None,
        };
        let json = |of: &Framed<'_, B>| serde_json::to_vec(of).map_err(unusable);
        framed.crc32c = Some(format!("{:08x}", crc32c::crc32c(&json(&framed)?)));
        json(&framed)
    }

    pub(crate) fn body_of<B: Serialize + DeserializeOwned>(&self, bytes: &[u8]) -> Result<B, JsonFileError> {
        #[derive(Deserialize)]
        struct AnyVersion {
            version: u32,
        }
        let AnyVersion { version } = serde_json::from_slice(bytes).map_err(unusable)?;
        if version != self.version {
            let message = format!("it has version {version}, this program knows {}", self.version);
            return Err(JsonFileError::Damaged(message));
        }
        let body = serde_json::from_slice(bytes).map_err(unusable)?;
        match self.bytes_of(&body)? == bytes {
            true => Ok(body),
            false => Err(JsonFileError::Damaged("its checksum is wrong".to_owned())),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn unusable(error: serde_json::Error) -> JsonFileError {
    JsonFileError::Damaged(error.to_string())
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
#[cfg(test)]
mod tests;
