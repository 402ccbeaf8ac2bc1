//! A file of records that grows by small steps: memory that outlives a crash and is too large to
//! be replaced as a whole for each change.
//!
//! **Form**, all numbers little-endian:
//!
//! | part | bytes |
//! |---|---|
//! | head | magic (7), version (1), generation u64, length of the owner's head u32, that head, CRC-32C of all this |
//! | each record | length of the payload u32, the head's CRC-32C, number of bytes of the file that were synced when the record was written u64, payload, CRC-32C of all this |
//!
//! **Order of the durable steps.** A log is born whole, under another name, and renamed
//! ([`replace`]). [`RecordLog::append`] writes behind the end, [`RecordLog::sync`] makes it
//! durable. A crash leaves all synced records and any part of the others.
//!
//! **The torn tail.** The log ends at the first record that is not whole. The bytes behind it were
//! never synced and never come to count: a log that is opened with a torn tail takes no record
//! before it was written anew ([`RecordLog::rewrite`]). Nor do bytes of a former file count, which
//! a file system may show behind the end after a crash: each file has another generation, hence
//! another CRC in its head, and each record carries that.
//!
//! **Failures.** After a write or a sync that failed, nothing is known of the bytes behind the
//! synced ones. Before any further record the file is cut off there, which needs no room on a full
//! disk. After a rewrite that failed the next step is another rewrite, which is up to the owner
//! ([`RecordLog::needs_rewrite`]).
//!
//! **Damage.** A damaged head is an error and never taken for a missing file. A record that is not
//! whole is damaged, and no torn tail, if a whole one behind it was written when its bytes had been
//! synced: [`RecordLogContents::is_damaged`]. [`RecordLogFormat::salvage`] finds what is whole.
//!
//! Out of scope: the meaning of records; two owners of one file.

use std::io;
use std::sync::Arc;

use super::{DurableDir, DurableFile, read_whole, replace};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;

/// Magic, version, generation, length of the owner's head.
const FIXED_HEAD_LEN: usize = 7 + 1 + 8 + 4;
/// Length of the payload, tag and synced length of a record.
const RECORD_HEAD_LEN: usize = 4 + 4 + 8;
const CRC_LEN: usize = 4;
/// Length of a record without its payload.
const FRAME_LEN: usize = RECORD_HEAD_LEN + CRC_LEN;

/// Longest file that is read, in bytes.
const LEN_MAX_BYTES: u64 = 1 << 32;

/// The name and the form of a log.
#[derive(Clone, Copy, Debug)]
pub struct RecordLogFormat {
    /// Name of the file. A new one is written under this name with `.new` behind it.
    pub name: &'static str,
    /// The first bytes of the file.
    pub magic: [u8; 7],
    /// Version of the owner's records; any other is refused.
    pub version: u8,
    /// Longest head of the owner, and longest payload of a record, in bytes.
    pub len_max_bytes: u32,
    /// The log is to be written anew once it has this length and twice the one that it had after it
    /// was last written anew.
    pub rewrite_from_bytes: u64,
}

/// A log cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordLogError {
    /// The file system refused.
    #[error("cannot {what} {name}: {source}")]
    Io {
        /// The verb of the attempt.
        what: &'static str,
        /// The file.
        name: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The head of the file cannot be understood.
    #[error("{name} is damaged: {reason}")]
    Damaged {
        /// The file.
        name: &'static str,
        /// The first thing that is wrong with it.
        reason: &'static str,
    },
    /// Another version of this program wrote the file.
    #[error("{name} has version {found}, but this program knows only version {known}; use the program that wrote it")]
    Version {
        /// The file.
        name: &'static str,
        /// Its version.
        found: u8,
        /// The version this program knows.
        known: u8,
    },
}

impl RecordLogError {
    /// The system's error, for owners that have their own words for the attempt.
    #[must_use]
    pub fn into_io(self) -> io::Error {
        match self {
            Self::Io { source, .. } => source,
            other => io::Error::new(io::ErrorKind::InvalidData, other),
        }
    }
}

/// The contents of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordLogContents {
    /// The owner's head.
    pub head: Vec<u8>,
    /// The payloads of the records up to the end or the first that is not whole, in order.
    pub records: Vec<Vec<u8>>,
    /// Number of bytes behind them: a torn tail, or damage.
    pub tail_len_bytes: u64,
    /// Whether whole records lie in the tail: damage, or an append that spans sectors and was torn.
    pub has_records_in_tail: bool,
    /// Whether records that were synced are lost for certain: no crash leaves that. Of the records
    /// of the last sync it cannot be told.
    pub is_damaged: bool,
}

/// The part of the file that is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// The bytes behind the synced ones.
    End,
    /// Whether it is the old file or the new one, or what its tail is.
    File,
}

/// An open log: see the module.
#[derive(Debug)]
pub struct RecordLog {
    format: RecordLogFormat,
    dir: Arc<dyn DurableDir>,
    file: Arc<dyn DurableFile>,
    generation: u64,
    /// The head's CRC, which each record carries.
    tag: [u8; 4],
    len_bytes: u64,
    synced_len_bytes: u64,
    /// The length from which on it is to be written anew.
    rewrite_from_bytes: u64,
    doubt: Option<Doubt>,
}

impl RecordLogFormat {
    fn failed(&self, what: &'static str) -> impl FnOnce(io::Error) -> RecordLogError {
        let name = self.name;
        move |source| RecordLogError::Io { what, name, source }
    }

    /// Reads the log in `dir` and leaves it as it is; `None` if no such file exists.
    ///
    /// # Errors
    /// [`RecordLogError`]: of a damaged log [`RecordLogFormat::salvage`] finds the records.
    pub fn read(&self, dir: &dyn DurableDir) -> Result<Option<RecordLogContents>, RecordLogError> {
        let bytes = read_whole(dir, self.name, LEN_MAX_BYTES).map_err(self.failed("read"))?;
        bytes.map(|bytes| self.contents_of(&bytes)).transpose()
    }

    /// Opens the log in `dir`; `None` if no such file exists. Its bytes are made durable, as a
    /// process that ended may have left them without a sync; nothing is written.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn open(&self, dir: &Arc<dyn DurableDir>) -> Result<Option<(RecordLog, RecordLogContents)>, RecordLogError> {
        let Some(bytes) = read_whole(&**dir, self.name, LEN_MAX_BYTES).map_err(self.failed("read"))? else {
            return Ok(None);
        };
        let parsed = self.parse(&bytes)?;
        let file = dir
            .open(self.name, super::OpenMode::Existing)
            .map_err(self.failed("open"))?;
        // Records name the length that was durable before them: were this one not, a power cut
        // would pass for damage.
        file.sync_data().map_err(self.failed("sync"))?;
        let len_bytes = (bytes.len() as u64).saturating_sub(parsed.contents.tail_len_bytes);
        let log = RecordLog {
            format: *self,
            dir: Arc::clone(dir),
            file,
            generation: parsed.generation,
            tag: parsed.tag,
            len_bytes,
            synced_len_bytes: len_bytes,
            rewrite_from_bytes: self.rewrite_from(len_bytes),
            doubt: (parsed.contents.tail_len_bytes > 0).then_some(Doubt::File),
        };
        Ok(Some((log, parsed.contents)))
    }

    /// Writes a new log into `dir`, in place of one that may be there.
    ///
    /// # Errors
    /// [`RecordLogError::Io`].
    pub fn create<R: AsRef<[u8]>>(
        &self,
        dir: &Arc<dyn DurableDir>,
        head: &[u8],
        records: impl IntoIterator<Item = R>,
    ) -> Result<RecordLog, RecordLogError> {
        // Another generation than the file that is there, whatever became of that.
        let there = read_whole(&**dir, self.name, LEN_MAX_BYTES).map_err(self.failed("read"))?;
        let generation = there.and_then(|bytes| generation_of(&bytes)).unwrap_or_default();
        self.write(dir, generation.wrapping_add(1), head, records)
    }

    fn write<R: AsRef<[u8]>>(
        &self,
        dir: &Arc<dyn DurableDir>,
        generation: u64,
        head: &[u8],
        records: impl IntoIterator<Item = R>,
    ) -> Result<RecordLog, RecordLogError> {
        let (bytes, tag) = self.bytes_with(generation, head, records)?;
        let file = replace(&**dir, self.name, &bytes).map_err(self.failed("write"))?;
        let len_bytes = bytes.len() as u64;
        Ok(RecordLog {
            format: *self,
            dir: Arc::clone(dir),
            file,
            generation,
            tag,
            len_bytes,
            synced_len_bytes: len_bytes,
            rewrite_from_bytes: self.rewrite_from(len_bytes),
            doubt: None,
        })
    }

    /// The bytes of a log of the first generation.
    ///
    /// # Errors
    /// [`RecordLogError::Io`] if the head or a record is too long.
    pub fn bytes_of<R: AsRef<[u8]>>(
        &self,
        head: &[u8],
        records: impl IntoIterator<Item = R>,
    ) -> Result<Vec<u8>, RecordLogError> {
        Ok(self.bytes_with(1, head, records)?.0)
    }

    /// The contents that the bytes of a file hold.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn contents_of(&self, bytes: &[u8]) -> Result<RecordLogContents, RecordLogError> {
        Ok(self.parse(bytes)?.contents)
    }

    fn bytes_with<R: AsRef<[u8]>>(
        &self,
        generation: u64,
        head: &[u8],
        records: impl IntoIterator<Item = R>,
    ) -> Result<(Vec<u8>, [u8; 4]), RecordLogError> {
        let (mut bytes, tag) = self.head_bytes(generation, head)?;
        let records: Vec<R> = records.into_iter().collect();
        // A new file is synced before it has its name.
        let lens = records
            .iter()
            .map(|record| FRAME_LEN.saturating_add(record.as_ref().len()));
        let len_bytes = lens.fold(bytes.len(), usize::saturating_add) as u64;
        for record in &records {
            self.put(&mut bytes, (tag, len_bytes), record.as_ref())?;
        }
        Ok((bytes, tag))
    }

    fn rewrite_from(&self, len_bytes: u64) -> u64 {
        self.rewrite_from_bytes.max(len_bytes.saturating_mul(2))
    }

    fn checked_len(&self, bytes: &[u8]) -> Result<[u8; 4], RecordLogError> {
        let len = u32::try_from(bytes.len()).ok().filter(|len| *len <= self.len_max_bytes);
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "a record is too long");
        Ok(len.ok_or_else(too_long).map_err(self.failed("write"))?.to_le_bytes())
    }

    fn head_bytes(&self, generation: u64, head: &[u8]) -> Result<(Vec<u8>, [u8; 4]), RecordLogError> {
        let mut bytes = self.magic.to_vec();
        bytes.push(self.version);
        bytes.extend(generation.to_le_bytes());
        bytes.extend(self.checked_len(head)?);
        bytes.extend(head);
        let tag = crc32c::crc32c(&bytes).to_le_bytes();
        bytes.extend(tag);
        Ok((bytes, tag))
    }

    fn put(
        &self,
        bytes: &mut Vec<u8>,
        (tag, synced_len_bytes): ([u8; 4], u64),
        payload: &[u8],
    ) -> Result<(), RecordLogError> {
        let begin = bytes.len();
        bytes.extend(self.checked_len(payload)?);
        bytes.extend(tag);
        bytes.extend(synced_len_bytes.to_le_bytes());
        bytes.extend(payload);
        let check = crc32c::crc32c(bytes.get(begin..).unwrap_or_default());
        bytes.extend(check.to_le_bytes());
        Ok(())
    }

    /// The payload of the record that `bytes` begin with, and what follows it.
    fn record<'a>(&self, bytes: &'a [u8], tag: Option<[u8; 4]>) -> Option<(&'a [u8], &'a [u8])> {
        let len = u32::from_le_bytes(*bytes.first_chunk::<4>()?);
        if len > self.len_max_bytes || tag.is_some_and(|tag| bytes.get(4..8) != Some(&tag[..])) {
            return None;
        }
        let sealed_len = RECORD_HEAD_LEN.checked_add(usize::try_from(len).ok()?)?;
        let (sealed, behind) = bytes.split_at_checked(sealed_len)?;
        let (check, rest) = behind.split_first_chunk::<CRC_LEN>()?;
        let is_whole = crc32c::crc32c(sealed) == u32::from_le_bytes(*check);
        is_whole.then_some((sealed.get(RECORD_HEAD_LEN..)?, rest))
    }

    fn parse(&self, bytes: &[u8]) -> Result<Parsed, RecordLogError> {
        let damaged = |reason| RecordLogError::Damaged {
            name: self.name,
            reason,
        };
        let too_short = || damaged("it is too short");
        let (fixed, rest) = bytes.split_first_chunk::<FIXED_HEAD_LEN>().ok_or_else(too_short)?;
        let [magic @ .., _, _, _, _, _, _, _, _, _, _, _, _, _] = fixed;
        if magic != &self.magic {
            return Err(damaged("it is another kind of file"));
        }
        let len = fixed.last_chunk::<4>().map_or(u32::MAX, |len| u32::from_le_bytes(*len));
        let len = usize::try_from(len).ok().filter(|_| len <= self.len_max_bytes);
        let (head, rest) = len.and_then(|len| rest.split_at_checked(len)).ok_or_else(too_short)?;
        let (tag, records) = rest.split_first_chunk::<CRC_LEN>().ok_or_else(too_short)?;
        let sealed_len = bytes.len().saturating_sub(rest.len());
        if crc32c::crc32c(bytes.get(..sealed_len).unwrap_or_default()) != u32::from_le_bytes(*tag) {
            return Err(damaged("its head is corrupt"));
        }
        // A head that is whole says so if another version wrote it.
        let version = fixed.get(7).copied().unwrap_or_default();
        if version != self.version {
            return Err(RecordLogError::Version {
                name: self.name,
                found: version,
                known: self.version,
            });
        }
        let mut contents = RecordLogContents {
            head: head.to_vec(),
            ..RecordLogContents::default()
        };
        let mut rest = records;
        while let Some((payload, behind)) = self.record(rest, Some(*tag)) {
            contents.records.push(payload.to_vec());
            rest = behind;
        }
        contents.tail_len_bytes = rest.len() as u64;
        let end_bytes = bytes.len().saturating_sub(rest.len()) as u64;
        contents.has_records_in_tail = self.next_record(rest, Some(*tag)).is_some();
        contents.is_damaged = self.was_synced_beyond(end_bytes, rest, *tag);
        Ok(Parsed {
            contents,
            generation: generation_of(bytes).unwrap_or_default(),
            tag: *tag,
        })
    }

    /// Whether a whole record in `tail`, which lies behind `end_bytes` bytes of the file, was
    /// written when more than these had been synced.
    fn was_synced_beyond(&self, end_bytes: u64, tail: &[u8], tag: [u8; 4]) -> bool {
        let mut rest = tail;
        while let Some((payload, behind)) = self.next_record(rest, Some(tag)) {
            let sealed_len = RECORD_HEAD_LEN.saturating_add(payload.len());
            let begin = rest
                .len()
                .saturating_sub(behind.len() + CRC_LEN)
                .saturating_sub(sealed_len);
            let synced = rest.get(begin..).and_then(|record| record.get(8..)?.first_chunk::<8>());
            if synced.is_some_and(|synced| u64::from_le_bytes(*synced) > end_bytes) {
                return true;
            }
            rest = behind;
        }
        false
    }

    /// The first whole record anywhere in `bytes`, and what follows it.
    fn next_record<'a>(&self, bytes: &'a [u8], tag: Option<[u8; 4]>) -> Option<(&'a [u8], &'a [u8])> {
        let mut rest = bytes;
        while rest.len() >= FRAME_LEN {
            let found = self.record(rest, tag);
            if found.is_some() {
                return found;
            }
            rest = rest.get(1..)?;
        }
        None
    }

    /// The payloads of all whole records in the file, wherever they lie and whatever became of its
    /// head; none if there is no file. Records of former files may be among them.
    ///
    /// # Errors
    /// [`RecordLogError::Io`].
    pub fn salvage(&self, dir: &dyn DurableDir) -> Result<Vec<Vec<u8>>, RecordLogError> {
        let bytes = read_whole(dir, self.name, LEN_MAX_BYTES).map_err(self.failed("read"))?;
        Ok(self.salvage_bytes(&bytes.unwrap_or_default()))
    }

    fn salvage_bytes(&self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let mut rest = bytes;
        while let Some((payload, behind)) = self.next_record(rest, None) {
            found.push(payload.to_vec());
            rest = behind;
        }
        found
    }
}

struct Parsed {
    contents: RecordLogContents,
    generation: u64,
    tag: [u8; 4],
}

/// The generation of a log, whether its head is whole or not.
fn generation_of(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(8..)?.first_chunk::<8>()?))
}

impl RecordLog {
    /// Whether the next step must be a [`rewrite`](Self::rewrite): the tail is torn, the last
    /// rewrite failed, or the log has become long.
    #[must_use]
    pub fn needs_rewrite(&self) -> bool {
        self.doubt == Some(Doubt::File) || self.len_bytes >= self.rewrite_from_bytes
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Appends records; durable with [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`RecordLogError::Io`]: none of the records counts, nor any that was not synced.
    pub fn append<R: AsRef<[u8]>>(&mut self, records: impl IntoIterator<Item = R>) -> Result<(), RecordLogError> {
        let mut bytes = Vec::new();
        for record in records {
            self.format
                .put(&mut bytes, (self.tag, self.synced_len_bytes), record.as_ref())?;
        }
        self.end_doubt()?;
        self.doubt = Some(Doubt::End);
        self.file
            .write_all_at(self.len_bytes, &bytes)
            .map_err(self.format.failed("write"))?;
        self.doubt = None;
        self.len_bytes = self.len_bytes.saturating_add(bytes.len() as u64);
        Ok(())
    }

    /// Makes all appended records durable.
    ///
    /// # Errors
    /// [`RecordLogError::Io`]: none of the records since the last sync counts.
    pub fn sync(&mut self) -> Result<(), RecordLogError> {
        self.end_doubt()?;
        if self.synced_len_bytes == self.len_bytes {
            return Ok(());
        }
        self.doubt = Some(Doubt::End);
        self.file.sync_data().map_err(self.format.failed("sync"))?;
        self.doubt = None;
        self.synced_len_bytes = self.len_bytes;
        Ok(())
    }

    /// Cuts off what a failed step may have left.
    fn end_doubt(&mut self) -> Result<(), RecordLogError> {
        match self.doubt {
            None => Ok(()),
            Some(Doubt::End) => {
                self.file
                    .set_len(self.synced_len_bytes)
                    .map_err(self.format.failed("truncate"))?;
                self.file.sync_data().map_err(self.format.failed("sync"))?;
                self.len_bytes = self.synced_len_bytes;
                self.doubt = None;
                Ok(())
            }
            Some(Doubt::File) => {
                let error = io::Error::new(io::ErrorKind::InvalidInput, "it has to be written anew first");
                Err(self.format.failed("append to")(error))
            }
        }
    }

    /// Writes the log anew with these records in place of all others, durably.
    ///
    /// # Errors
    /// [`RecordLogError::Io`]: the old log is still whole, and the next step is another rewrite.
    pub fn rewrite<R: AsRef<[u8]>>(
        &mut self,
        head: &[u8],
        records: impl IntoIterator<Item = R>,
    ) -> Result<(), RecordLogError> {
        self.doubt = Some(Doubt::File);
        *self = self
            .format
            .write(&self.dir, self.generation.wrapping_add(1), head, records)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
