//! Takes in a piece of a batch: literals go into segments as they arrive, the rest into records.
//!
//! A [`PartWriter`] is fed record by record. It is then either staged ([`Store::stage`]), which
//! makes it durable until it expires, or committed as the last piece ([`Store::commit`]). Dropped
//! without either, it leaves at most unreferenced bytes in a segment.
//!
//! Memory: the records of one piece without literals, in encoded form, at most about three times
//! the piece's bytes without literals; one delta block at a time.
//!
//! Checked here: the shape of each record by itself. `apply` checks whether records fit together
//! and to the folder.

use crate::catalog::BatchKey;
use crate::codec::{StagedDelta, StagedRecord};
use crate::error::StoreError;
use crate::layer::{Literal, PageBuilder};
use crate::model::Proof;
use crate::numbers::SegmentNumber;
use crate::segments::{FRAME_HEADER_LEN, SegmentWriter};
use crate::sheets::Sheets;
use crate::store::{Store, StoreLimits, folder_row};
use byteback_delta::{Block, DeltaReader};
use byteback_model::{Attributes, DeviceId, FileId, Manifest, NameChange, NodeKind, NodeRecord, Totals, Xattr};
use std::collections::BTreeSet;
use std::io::Read;

/// An incoming piece of a batch.
#[derive(Debug)]
pub struct PartWriter {
    pub(crate) key: BatchKey,
    pub(crate) folder: String,
    pub(crate) records: Sheets,
    /// Segments to which the catalog will refer.
    pub(crate) own_segments: BTreeSet<SegmentNumber>,
    pub(crate) segments: Box<dyn SegmentWriter>,
    /// Number of proofs in the whole batch, according to its end.
    pub(crate) proofs: u64,
    /// SHA-256 of the bytes in which the piece arrived.
    pub(crate) digest: Option<[u8; 32]>,
    /// SHA-256 that the digests of the staged parts before it must have together.
    pub(crate) parts_digest: Option<[u8; 32]>,
    /// Whether the catalog refers, or may refer, to its frames.
    pub(crate) is_kept: bool,
    limits: StoreLimits,
}

impl Store {
    /// Begins to take in a piece of the batch (device, counter) of a folder.
    ///
    /// # Errors
    /// There is no such folder; the catalog fails.
    pub fn begin_part(&self, folder: &str, device: DeviceId, counter: u64) -> Result<PartWriter, StoreError> {
        let row = folder_row(&*self.catalog().read()?, folder)?;
        Ok(PartWriter {
            key: BatchKey {
                folder: row.id,
                device,
                counter,
            },
            folder: folder.to_owned(),
            records: Sheets::default(),
            own_segments: BTreeSet::new(),
            segments: self.parts.segments.writer(),
            proofs: 0,
            digest: None,
            parts_digest: None,
            is_kept: false,
            limits: self.parts.limits,
        })
    }

    /// Stages a piece as part `number` (from 1) of its batch, in place of an earlier one of that
    /// number. Returns the time at which it expires unless another part of the batch follows, in ns
    /// since the Unix epoch. Durable when it returns.
    ///
    /// # Errors
    /// The number is out of range; the disk is full; the catalog or a segment fails.
    pub fn stage(&self, mut part: PartWriter, number: u32) -> Result<i64, StoreError> {
        if number == 0 || number > self.parts.limits.parts_max {
            let message = format!(
                "part numbers must be from 1 to {}, not {number}",
                self.parts.limits.parts_max
            );
            return Err(StoreError::TooLarge(message));
        }
        part.segments.sync()?;
        let now = self.parts.clock.now_ns();
        let catalog = self.catalog().write()?;
        for segment in &part.own_segments {
            catalog.add_segment(*segment)?;
        }
        let segments: Vec<SegmentNumber> = part.own_segments.iter().copied().collect();
        // A part of a batch that is already applied waits for nothing.
        if catalog.batch_by_key(part.key)?.is_none() {
            let noted = (now, part.digest.as_ref());
            catalog.replace_staged_part(part.key, number, noted, part.records.as_slice(), &segments)?;
            part.is_kept = true;
        }
        catalog.commit()?;
        Ok(now.saturating_add(self.parts.limits.staged_expiry_ns))
    }
}

/// Gives back the frames of a discarded piece, as far as nothing was written behind them.
impl Drop for PartWriter {
    fn drop(&mut self) {
        if !self.is_kept {
            self.segments.discard();
        }
    }
}

impl PartWriter {
    /// Sets the SHA-256 of the bytes in which the piece arrived, for clients that ask which parts
    /// are staged.
    pub fn set_digest(&mut self, digest: [u8; 32]) {
        self.digest = Some(digest);
    }

    /// Makes the commit that this piece ends apply nothing unless the SHA-256s of the staged parts,
    /// one after the other, have this SHA-256.
    pub fn expect_parts(&mut self, digest: [u8; 32]) {
        self.parts_digest = Some(digest);
    }

    fn push(&mut self, record: &StagedRecord) -> Result<(), StoreError> {
        if self.records.records() >= self.limits.records_max {
            let message = format!("a batch has at most {} records", self.limits.records_max);
            return Err(StoreError::TooLarge(message));
        }
        self.records.push(record);
        Ok(())
    }

    /// Takes in the manifest.
    ///
    /// # Errors
    /// The manifest is of another batch.
    pub fn manifest(&mut self, manifest: Manifest) -> Result<(), StoreError> {
        if manifest.device != self.key.device || manifest.counter != self.key.counter {
            let message = format!(
                "the manifest is of batch {} of device {}, but batch {} of device {} was announced",
                manifest.counter, manifest.device, self.key.counter, self.key.device
            );
            return Err(StoreError::InvalidBatch(message));
        }
        self.push(&StagedRecord::Manifest(manifest))
    }

    /// Takes in a node.
    ///
    /// # Errors
    /// Its attributes contradict each other or exceed a limit.
    pub fn node(&mut self, node: NodeRecord) -> Result<(), StoreError> {
        check_attributes(node.id, &node.attributes, &self.limits)?;
        if node.content.is_some() && node.attributes.kind != NodeKind::File {
            return Err(StoreError::InvalidBatch(format!(
                "node {} is not a file and cannot have contents",
                node.id
            )));
        }
        self.push(&StagedRecord::Node(node))
    }

    /// Takes in an entry.
    ///
    /// # Errors
    /// The name is not allowed.
    pub fn entry(&mut self, entry: NameChange<FileId>) -> Result<(), StoreError> {
        check_name(&entry.name)?;
        self.push(&StagedRecord::Entry(entry))
    }

    /// Takes in the time of a directory in which names came or went.
    ///
    /// # Errors
    /// There are too many records.
    pub fn directory_time(&mut self, directory: FileId, mtime_ns: i128) -> Result<(), StoreError> {
        self.push(&StagedRecord::DirectoryTime(directory, mtime_ns))
    }

    /// Takes in the proof of a file to which the batch gives new contents.
    ///
    /// # Errors
    /// There are too many records.
    pub fn proof(&mut self, file: FileId, proof: impl Into<Proof>) -> Result<(), StoreError> {
        self.push(&StagedRecord::Proof(file, proof.into()))
    }

    /// Takes in the totals.
    ///
    /// # Errors
    /// There are too many records.
    pub fn end(&mut self, totals: Totals) -> Result<(), StoreError> {
        self.proofs = totals.proofs;
        self.push(&StagedRecord::End(totals))
    }

    /// Takes in a delta of `file`: reads a delta stream to its end and puts its frames into
    /// segments.
    ///
    /// # Errors
    /// The stream is malformed or cut short; the disk is full; a segment fails.
    pub fn delta(&mut self, file: FileId, stream: impl Read) -> Result<(), StoreError> {
        let invalid = |source| StoreError::InvalidDelta { file, source };
        let mut reader = DeltaReader::new(stream).map_err(invalid)?;
        let header = *reader.header();
        let mut pages = PageBuilder::default();
        let mut segments = BTreeSet::new();
        let mut stored_bytes = 0u64;
        let mut block = Block::default();
        while reader.read_block(&mut block).map_err(invalid)? {
            let mut frame = None;
            if block.frame.raw_len > 0 {
                let at = self
                    .segments
                    .append(block.frame.codec, block.frame.raw_len, &block.frame.stored)?;
                let record_len = FRAME_HEADER_LEN.saturating_add(u64::from(at.stored_len));
                stored_bytes = stored_bytes.saturating_add(record_len);
                self.own_segments.insert(at.segment);
                segments.insert(at.segment);
                frame = Some(at);
            }
            for extent in &block.extents {
                let source = match (extent.source, frame) {
                    (byteback_delta::Source::Literal(slice), Some(frame)) => byteback_delta::Source::Literal(Literal {
                        frame,
                        skip: slice.skip_bytes,
                    }),
                    // The reader returns no literal without literal bytes.
                    (byteback_delta::Source::Literal(_), None) => continue,
                    (byteback_delta::Source::Copy { base_offset }, _) => byteback_delta::Source::Copy { base_offset },
                    (byteback_delta::Source::Zero, _) => byteback_delta::Source::Zero,
                };
                pages.push(extent.range, source);
            }
        }
        pages.finish();
        self.push(&StagedRecord::Delta(StagedDelta {
            file: file.0,
            base_len: header.base_len_bytes,
            new_len: header.new_len_bytes,
            extents: pages.extents_total,
            copies: pages.copies,
            covered_to: pages.covered_to,
            stored_bytes,
            pages: pages.pages,
            segments: segments.into_iter().collect(),
        }))
    }
}

fn check_name(name: &[u8]) -> Result<(), StoreError> {
    let wrong = if name.is_empty() {
        "is empty"
    } else if name == b"." || name == b".." {
        "is reserved"
    } else if name.len() > 255 {
        "is longer than 255 bytes"
    } else if name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        "contains a slash or a NUL"
    } else {
        return Ok(());
    };
    let shown: String = String::from_utf8_lossy(name).chars().take(300).collect();
    Err(StoreError::InvalidBatch(format!("the name {shown:?} {wrong}")))
}

fn check_attributes(id: FileId, attributes: &Attributes, limits: &StoreLimits) -> Result<(), StoreError> {
    let invalid = |what: &str| Err(StoreError::InvalidBatch(format!("node {id}: {what}")));
    if attributes.mode > 0o7777 {
        return invalid("the mode has more than permission bits");
    }
    if attributes.size > byteback_delta::FILE_LEN_MAX {
        return invalid("the size is larger than any file's");
    }
    if attributes.kind != NodeKind::File && attributes.size != 0 {
        return invalid("only files have a size");
    }
    if !matches!(attributes.kind, NodeKind::File | NodeKind::Directory) && attributes.inode_flags != 0 {
        return invalid("only files and directories have flags that forbid changes");
    }
    match (&attributes.target, attributes.kind) {
        (Some(target), NodeKind::Symlink) => {
            if target.is_empty() || target.len() > 4095 || target.contains(&0) {
                return invalid("a symlink's target has 1 to 4095 bytes and no NUL");
            }
        }
        (None, NodeKind::Symlink) => return invalid("a symlink needs a target"),
        (Some(_), _) => return invalid("only symlinks have a target"),
        (None, _) => {}
    }
    for name in [&attributes.user, &attributes.group].into_iter().flatten() {
        if name.len() > 255 || name.contains(&0) {
            return invalid("a user's or group's name has at most 255 bytes and no NUL");
        }
    }
    let mut total = 0usize;
    let mut previous: Option<&[u8]> = None;
    for Xattr { name, value } in &attributes.xattrs {
        if name.is_empty() || name.len() > 255 || name.contains(&0) {
            return invalid("an xattr's name has 1 to 255 bytes and no NUL");
        }
        if previous.is_some_and(|previous| previous >= name.as_bytes()) {
            return invalid("xattrs must be sorted by name, each name once");
        }
        previous = Some(name);
        if value.len() > limits.xattr_value_len_max {
            return invalid(&format!("an xattr is longer than {} bytes", limits.xattr_value_len_max));
        }
        total = total.saturating_add(name.len()).saturating_add(value.len());
    }
    if total > limits.xattrs_len_max {
        return invalid(&format!("its xattrs take more than {} bytes", limits.xattrs_len_max));
    }
    Ok(())
}
