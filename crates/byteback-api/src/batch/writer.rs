//! Writes a piece of a batch stream.
//!
//! The caller cuts the batch: when [`BatchWriter::written_bytes`] nears its limit, it takes the
//! totals and the output with [`BatchWriter::into_parts`] and goes on with [`BatchWriter::resume`]
//! on the next piece. Nothing is buffered here except one JSON record.

use super::{
    BatchError, DirectoryTimeRecord, JSON_LEN_MAX, MAGIC, ProofRecord, TAG_DELTA, TAG_DIRECTORY_TIME, TAG_END,
    TAG_ENTRY, TAG_FOLLOWING_MANIFEST, TAG_MANIFEST, TAG_NODE, TAG_PROOF, VERSION,
};
use byteback_model::{FileId, Manifest, NameChange, NodeRecord, Totals};
use serde::Serialize;
use std::io::{Read, Write};

/// Writes records to `W`.
#[derive(Debug)]
pub struct BatchWriter<W> {
    out: W,
    totals: Totals,
    written_bytes: u64,
    records: u64,
}

impl<W: Write> BatchWriter<W> {
    /// Begins the first piece of a batch.
    ///
    /// # Errors
    /// The output fails.
    pub fn new(out: W) -> Result<Self, BatchError> {
        Self::resume(out, Totals::default())
    }

    /// Begins a further piece; `totals` are those of the pieces before it.
    ///
    /// # Errors
    /// The output fails.
    pub fn resume(mut out: W, totals: Totals) -> Result<Self, BatchError> {
        out.write_all(&MAGIC)?;
        out.write_all(&[VERSION])?;
        Ok(Self {
            out,
            totals,
            written_bytes: 8,
            records: 0,
        })
    }

    /// Writes the manifest, the first record of the first piece.
    ///
    /// # Errors
    /// The output fails, or the record is too long.
    pub fn manifest(&mut self, manifest: &Manifest) -> Result<(), BatchError> {
        let tag = match manifest.follows {
            None => TAG_MANIFEST,
            Some(_) => TAG_FOLLOWING_MANIFEST,
        };
        self.json(tag, manifest)
    }

    /// Writes a node.
    ///
    /// # Errors
    /// The output fails, or the record is too long.
    pub fn node(&mut self, node: &NodeRecord) -> Result<(), BatchError> {
        self.json(TAG_NODE, node)?;
        self.totals.nodes += 1;
        Ok(())
    }

    /// Writes an entry.
    ///
    /// # Errors
    /// The output fails, or the record is too long.
    pub fn entry(&mut self, entry: &NameChange<FileId>) -> Result<(), BatchError> {
        self.json(TAG_ENTRY, entry)?;
        self.totals.entries += 1;
        Ok(())
    }

    /// Writes the digest that a file's contents must have.
    ///
    /// # Errors
    /// The output fails.
    pub fn proof(&mut self, proof: &ProofRecord) -> Result<(), BatchError> {
        self.json(TAG_PROOF, proof)?;
        self.totals.proofs += 1;
        Ok(())
    }

    /// Writes the time of a directory.
    ///
    /// # Errors
    /// The output fails.
    pub fn directory_time(&mut self, time: &DirectoryTimeRecord) -> Result<(), BatchError> {
        self.json(TAG_DIRECTORY_TIME, time)?;
        self.totals.directory_times += 1;
        Ok(())
    }

    /// Writes a delta of `file` that is in memory: a complete delta stream.
    ///
    /// # Errors
    /// The output fails.
    pub fn delta(&mut self, file: FileId, stream: &[u8]) -> Result<(), BatchError> {
        let len = u64::try_from(stream.len()).unwrap_or(u64::MAX);
        self.delta_from(file, len, stream)
    }

    /// Writes a delta of `file` whose stream of `len` bytes is read from `stream`.
    ///
    /// # Errors
    /// The output or the input fails, or the input does not have exactly `len` bytes. The piece is
    /// then unusable.
    pub fn delta_from(&mut self, file: FileId, len: u64, mut stream: impl Read) -> Result<(), BatchError> {
        let wrong_length = || BatchError::DeltaLength { announced: len };
        let payload_len = len.checked_add(16).ok_or_else(wrong_length)?;
        let mut crc = self.head(TAG_DELTA, payload_len)?;
        let id = file.to_bytes();
        self.out.write_all(&id)?;
        crc = crc32c::crc32c_append(crc, &id);
        let mut left = len;
        let mut buffer = [0u8; 32 * 1024];
        while left > 0 {
            let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let chunk = buffer.get_mut(..want).unwrap_or_default();
            let got = stream.read(chunk)?;
            if got == 0 {
                return Err(wrong_length());
            }
            let chunk = chunk.get(..got).unwrap_or_default();
            crc = crc32c::crc32c_append(crc, chunk);
            self.out.write_all(chunk)?;
            left = left.saturating_sub(u64::try_from(got).unwrap_or(u64::MAX));
        }
        if stream.read(&mut [0u8; 1])? != 0 {
            return Err(wrong_length());
        }
        self.tail(crc, payload_len)?;
        self.totals.deltas += 1;
        Ok(())
    }

    /// Ends the batch: writes the totals and returns the output.
    ///
    /// # Errors
    /// The output fails.
    pub fn end(mut self) -> Result<W, BatchError> {
        let totals = self.totals;
        self.json(TAG_END, &totals)?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Ends a piece but not the batch: returns the output and the totals so far.
    ///
    /// # Errors
    /// The output fails.
    pub fn into_parts(mut self) -> Result<(W, Totals), BatchError> {
        self.out.flush()?;
        Ok((self.out, self.totals))
    }

    /// Length of this piece so far, in bytes.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Records in this piece so far.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    fn json<T: Serialize>(&mut self, tag: u8, value: &T) -> Result<(), BatchError> {
        let record = self.records;
        let payload = serde_json::to_vec(value).map_err(|source| BatchError::Json { record, source })?;
        let len = u64::try_from(payload.len()).unwrap_or(u64::MAX);
        if len > JSON_LEN_MAX {
            return Err(BatchError::BadLength { record, len });
        }
        let crc = self.head(tag, len)?;
        self.out.write_all(&payload)?;
        self.tail(crc32c::crc32c_append(crc, &payload), len)
    }

    /// Writes tag and length; returns the checksum so far.
    fn head(&mut self, tag: u8, payload_len: u64) -> Result<u32, BatchError> {
        let mut head = vec![tag];
        let mut rest = payload_len;
        loop {
            // The mask leaves 7 bits.
            let low = (rest & 0x7f) as u8;
            rest >>= 7;
            if rest == 0 {
                head.push(low);
                break;
            }
            head.push(low | 0x80);
        }
        self.out.write_all(&head)?;
        self.written_bytes += u64::try_from(head.len()).unwrap_or(0);
        Ok(crc32c::crc32c(&head))
    }

    fn tail(&mut self, crc: u32, payload_len: u64) -> Result<(), BatchError> {
        self.out.write_all(&crc.to_le_bytes())?;
        self.written_bytes = self.written_bytes.saturating_add(payload_len).saturating_add(4);
        self.records += 1;
        Ok(())
    }
}
