//! Reads a piece of a batch stream from anything that yields bytes, however slowly.
//!
//! [`BatchReader::next_record`] returns one record after the other. A delta is not held in memory:
//! after [`Record::Delta`] the caller reads its stream through [`BatchReader::delta`] and then
//! calls [`BatchReader::finish_delta`], which proves that all of it was read and arrived intact.
//! Bytes read from a delta before that are not yet proven.
//!
//! Memory: one JSON record, at most `JSON_LEN_MAX` bytes, which grows only as bytes arrive; for a
//! small packed piece all of it, at most `UNPACKED_LEN_MAX` bytes; for a long one its window.

use super::{
    BatchError, DirectoryTimeRecord, JSON_LEN_MAX, MAGIC, ProofRecord, TAG_DELTA, TAG_DIRECTORY_TIME, TAG_END,
    TAG_ENTRY, TAG_FOLLOWING_MANIFEST, TAG_MANIFEST, TAG_NODE, TAG_PROOF, VERSION, VERSION_PACKED, VERSION_STREAMED,
    packed,
};
use byteback_model::{FileId, Manifest, NameChange, NodeRecord, Totals};
use std::io::{self, Cursor, Read};

/// A record of a batch stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Record {
    /// The manifest.
    Manifest(Box<Manifest>),
    /// A node.
    Node(Box<NodeRecord>),
    /// An entry.
    Entry(NameChange<FileId>),
    /// A delta of `file`; the caller must read its stream of `len` bytes next.
    Delta {
        /// The file.
        file: FileId,
        /// Length of the delta stream in bytes.
        len: u64,
    },
    /// The digest that a file's contents must have.
    Proof(ProofRecord),
    /// The new time of a directory.
    DirectoryTime(DirectoryTimeRecord),
    /// The end of the batch.
    End(Totals),
}

/// The source of the records.
#[derive(Debug)]
enum Source<R> {
    Input(R),
    /// A small packed piece, read and unpacked completely.
    Unpacked(Cursor<Vec<u8>>),
    /// A long packed piece.
    Unpacking(Box<packed::Unpacking<R>>),
    /// The input is about to be unpacked, or could not be.
    Gone,
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Input(input) => input.read(buffer),
            Self::Unpacked(records) => records.read(buffer),
            Self::Unpacking(records) => records.read(buffer),
            Self::Gone => Ok(0),
        }
    }
}

/// Reads records from `R`.
#[derive(Debug)]
pub struct BatchReader<R> {
    input: Source<R>,
    started: bool,
    ended: bool,
    failed: bool,
    record: u64,
    /// Inside a delta record: bytes still to read, and the checksum so far.
    delta_left: Option<u64>,
    crc: u32,
}

impl<R: Read> BatchReader<R> {
    /// A reader at the start of a piece.
    pub fn new(input: R) -> Self {
        Self {
            input: Source::Input(input),
            started: false,
            ended: false,
            failed: false,
            record: 0,
            delta_left: None,
            crc: 0,
        }
    }

    /// The next record, or `None` at the end of the piece. An unread delta must be finished first;
    /// if it was not, its rest counts as trailing bytes.
    ///
    /// # Errors
    /// The stream is malformed, cut short or fails. The reader is then of no further use.
    pub fn next_record(&mut self) -> Result<Option<Record>, BatchError> {
        if self.failed {
            return Ok(None);
        }
        let result = self.read_record();
        self.failed = result.is_err();
        result
    }

    /// The stream of the delta record just returned; reads nothing beyond it.
    pub fn delta(&mut self) -> DeltaStream<'_, R> {
        DeltaStream { reader: self }
    }

    /// Ends a delta record.
    ///
    /// # Errors
    /// Bytes of it were not read, its checksum is wrong, or the stream fails.
    pub fn finish_delta(&mut self) -> Result<(), BatchError> {
        let Some(left) = self.delta_left.take() else {
            return Ok(());
        };
        if left > 0 {
            self.failed = true;
            return Err(BatchError::TrailingDelta {
                record: self.record,
                len: left,
            });
        }
        let result = self.check_crc();
        self.failed = result.is_err();
        result
    }

    fn read_record(&mut self) -> Result<Option<Record>, BatchError> {
        if self.delta_left.is_some() {
            self.finish_delta()?;
        }
        if !self.started {
            self.read_header()?;
        }
        let Some(tag) = self.read_tag()? else { return Ok(None) };
        let record = self.record;
        if self.ended {
            return Err(BatchError::AfterEnd { record });
        }
        let len = self.read_len()?;
        let value = match tag {
            TAG_MANIFEST | TAG_FOLLOWING_MANIFEST => Record::Manifest(self.manifest(tag, len)?),
            TAG_NODE => Record::Node(self.json(len)?),
            TAG_ENTRY => Record::Entry(self.json(len)?),
            TAG_DELTA => {
                let stream_len = len.checked_sub(16).ok_or(BatchError::BadLength { record, len })?;
                let mut id = [0u8; 16];
                self.exact(&mut id)?;
                self.delta_left = Some(stream_len);
                Record::Delta {
                    file: FileId::from_bytes(id),
                    len: stream_len,
                }
            }
            TAG_PROOF => Record::Proof(self.json(len)?),
            TAG_DIRECTORY_TIME => Record::DirectoryTime(self.json(len)?),
            TAG_END => {
                let totals = self.json(len)?;
                self.ended = true;
                Record::End(totals)
            }
            _ => return Err(BatchError::UnknownTag { record, tag }),
        };
        Ok(Some(value))
    }

    fn read_header(&mut self) -> Result<(), BatchError> {
        let mut header = [0u8; 8];
        self.exact(&mut header)?;
        let [magic @ .., version] = header;
        if magic != MAGIC {
            return Err(BatchError::NotABatch);
        }
        match version {
            VERSION => {}
            VERSION_PACKED => self.input = Source::Unpacked(Cursor::new(packed::unpacked(&mut self.input)?)),
            VERSION_STREAMED => {
                if let Source::Input(input) = std::mem::replace(&mut self.input, Source::Gone) {
                    self.input = Source::Unpacking(Box::new(packed::Unpacking::new(input)?));
                }
            }
            _ => return Err(BatchError::Version(version)),
        }
        self.started = true;
        Ok(())
    }

    /// The tag, or `None` at a clean end.
    fn read_tag(&mut self) -> Result<Option<u8>, BatchError> {
        let mut tag = [0u8; 1];
        loop {
            match self.input.read(&mut tag) {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(of_io(e)),
            }
        }
        self.crc = crc32c::crc32c(&tag);
        let [tag] = tag;
        Ok(Some(tag))
    }

    fn read_len(&mut self) -> Result<u64, BatchError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let mut byte = [0u8; 1];
            self.exact(&mut byte)?;
            let [byte] = byte;
            let bits = u64::from(byte & 0x7f);
            let shifted = bits << shift;
            // The tenth byte has room for one bit, and a last byte of zero is a longer form than
            // needed.
            if shifted >> shift != bits || (shift > 0 && byte == 0) {
                break;
            }
            value |= shifted;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(BatchError::BadVarint { record: self.record })
    }

    /// Reads a manifest. Its tag says whether it follows a batch.
    fn manifest(&mut self, tag: u8, len: u64) -> Result<Box<Manifest>, BatchError> {
        let record = self.record;
        let manifest: Box<Manifest> = self.json(len)?;
        match manifest.follows.is_some() == (tag == TAG_FOLLOWING_MANIFEST) {
            true => Ok(manifest),
            false => Err(BatchError::FollowsTag { record }),
        }
    }

    fn json<T: serde::de::DeserializeOwned>(&mut self, len: u64) -> Result<T, BatchError> {
        let record = self.record;
        if len > JSON_LEN_MAX {
            return Err(BatchError::BadLength { record, len });
        }
        let mut payload = Vec::new();
        // `take` instead of a buffer of `len` bytes: memory grows with the bytes received, not with
        // the claimed length.
        let got = (&mut self.input).take(len).read_to_end(&mut payload).map_err(of_io)?;
        if u64::try_from(got).ok() != Some(len) {
            return Err(BatchError::Truncated { record });
        }
        self.crc = crc32c::crc32c_append(self.crc, &payload);
        self.check_crc()?;
        serde_json::from_slice(&payload).map_err(|source| BatchError::Json { record, source })
    }

    fn check_crc(&mut self) -> Result<(), BatchError> {
        let expected = self.crc;
        let mut stored = [0u8; 4];
        self.exact(&mut stored)?;
        if u32::from_le_bytes(stored) != expected {
            return Err(BatchError::Checksum { record: self.record });
        }
        self.record = self.record.saturating_add(1);
        Ok(())
    }

    fn exact(&mut self, buffer: &mut [u8]) -> Result<(), BatchError> {
        match self.input.read_exact(buffer) {
            Ok(()) => {
                self.crc = crc32c::crc32c_append(self.crc, buffer);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(BatchError::Truncated { record: self.record }),
            Err(e) => Err(of_io(e)),
        }
    }
}

/// An error of the input, or of the piece that it is unpacked to.
fn of_io(error: io::Error) -> BatchError {
    match error.downcast::<BatchError>() {
        Ok(error) => error,
        Err(error) => error.into(),
    }
}

/// The delta stream inside one record.
#[derive(Debug)]
pub struct DeltaStream<'a, R> {
    reader: &'a mut BatchReader<R>,
}

impl<R: Read> Read for DeltaStream<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.reader.delta_left.unwrap_or(0);
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = buffer.get_mut(..want).unwrap_or_default();
        if buffer.is_empty() {
            return Ok(0);
        }
        let got = self.reader.input.read(buffer)?;
        if got == 0 {
            // The record announced more bytes: this end is a truncation, not the end of the delta.
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                BatchError::Truncated {
                    record: self.reader.record,
                },
            ));
        }
        let read = buffer.get(..got).unwrap_or_default();
        self.reader.crc = crc32c::crc32c_append(self.reader.crc, read);
        let got_bytes = u64::try_from(got).unwrap_or(u64::MAX);
        self.reader.delta_left = Some(left.saturating_sub(got_bytes));
        Ok(got)
    }
}
