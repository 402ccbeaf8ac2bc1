//! Encoding and decoding of the blobs that the catalog holds: varints, strings, attributes, staged
//! records.
//!
//! Everything read here was written by this program, but disks lie, so every read is checked and a
//! failure says that the catalog is damaged. Blobs that are kept for long end in a CRC-32C; SQLite
//! itself has none.

use crate::error::StoreError;
use crate::model::{Proof, ProofOf};
use crate::numbers::SegmentNumber;
use byteback_delta::DIGEST_LEN;
use byteback_delta::leaves::LeafKind;
use byteback_extents::ByteRange;
use byteback_model::{
    Attributes, ByteString, ContentBase, ContentChange, FileId, Manifest, NameChange, NodeKind, NodeRecord,
    SnapshotLabel, Totals, Xattr,
};

/// Appends to a blob.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn varint(&mut self, mut value: u64) {
        loop {
            let low = (value & 0x7f) as u8;
            value >>= 7;
            if value == 0 {
                self.bytes.push(low);
                return;
            }
            self.bytes.push(low | 0x80);
        }
    }

    /// Zigzag, so that small negative numbers stay short.
    pub(crate) fn signed(&mut self, value: i64) {
        self.varint((value << 1 ^ value >> 63).cast_unsigned());
    }

    /// The same bytes as [`Writer::signed`] where 64 bits are enough.
    fn wide(&mut self, value: i128) {
        let mut zigzag = (value << 1 ^ value >> 127).cast_unsigned();
        loop {
            let low = (zigzag & 0x7f) as u8;
            zigzag >>= 7;
            if zigzag == 0 {
                return self.u8(low);
            }
            self.u8(low | 0x80);
        }
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) {
        self.varint(len_u64(value));
        self.bytes.extend_from_slice(value);
    }

    fn option(&mut self, value: Option<&[u8]>) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            self.bytes(value);
        }
    }

    pub(crate) fn id(&mut self, id: FileId) {
        self.bytes.extend_from_slice(&id.0.to_be_bytes());
    }

    /// Ends a blob with its checksum.
    pub(crate) fn finish_with_crc(mut self) -> Vec<u8> {
        let crc = crc32c::crc32c(&self.bytes);
        self.bytes.extend_from_slice(&crc.to_le_bytes());
        self.bytes
    }
}

/// Reads a blob.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    /// A reader of a blob that ends in its checksum.
    pub(crate) fn with_crc(bytes: &'a [u8], what: &'static str) -> Result<Self, StoreError> {
        let reader = Self { rest: bytes, what };
        let Some((body, crc)) = bytes.split_last_chunk::<4>() else {
            return Err(reader.damaged());
        };
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(reader.damaged());
        }
        Ok(Self { rest: body, what })
    }

    pub(crate) fn damaged(&self) -> StoreError {
        StoreError::CatalogDamaged(format!("cannot decode {}", self.what))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn u8(&mut self) -> Result<u8, StoreError> {
        let (first, rest) = self.rest.split_first().ok_or_else(|| self.damaged())?;
        self.rest = rest;
        Ok(*first)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, StoreError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.damaged())
    }

    pub(crate) fn u32(&mut self) -> Result<u32, StoreError> {
        let value = self.varint()?;
        u32::try_from(value).map_err(|_| self.damaged())
    }

    pub(crate) fn signed(&mut self) -> Result<i64, StoreError> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ -((value & 1).cast_signed()))
    }

    fn wide(&mut self) -> Result<i128, StoreError> {
        let mut zigzag = 0u128;
        for shift in (0..128).step_by(7) {
            let byte = self.u8()?;
            let bits = u128::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            zigzag |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok((zigzag >> 1).cast_signed() ^ -((zigzag & 1).cast_signed()));
            }
        }
        Err(self.damaged())
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], StoreError> {
        let len = self.varint()?;
        let len = usize::try_from(len).map_err(|_| self.damaged())?;
        let (value, rest) = self.rest.split_at_checked(len).ok_or_else(|| self.damaged())?;
        self.rest = rest;
        Ok(value)
    }

    /// `N` bytes without a length before them.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], StoreError> {
        let (value, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.damaged())?;
        self.rest = rest;
        Ok(value)
    }

    fn option(&mut self) -> Result<Option<ByteString>, StoreError> {
        Ok(if self.u8()? == 0 {
            None
        } else {
            Some(self.bytes()?.into())
        })
    }

    pub(crate) fn id(&mut self) -> Result<FileId, StoreError> {
        let (id, rest) = self.rest.split_first_chunk::<16>().ok_or_else(|| self.damaged())?;
        self.rest = rest;
        Ok(FileId(u128::from_be_bytes(*id)))
    }
}

pub(crate) fn len_u64(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

pub(crate) fn usize_u64(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// The stored number of a kind of node, here and in the catalog.
pub(crate) fn number_of_kind(kind: NodeKind) -> u8 {
    match kind {
        NodeKind::File => 1,
        NodeKind::Directory => 2,
        NodeKind::Symlink => 3,
        NodeKind::Fifo => 4,
        NodeKind::Socket => 5,
        NodeKind::CharDevice => 6,
        NodeKind::BlockDevice => 7,
    }
}

/// The kind of node that a stored number stands for.
pub(crate) fn kind_of_number(number: u8) -> Option<NodeKind> {
    Some(match number {
        1 => NodeKind::File,
        2 => NodeKind::Directory,
        3 => NodeKind::Symlink,
        4 => NodeKind::Fifo,
        5 => NodeKind::Socket,
        6 => NodeKind::CharDevice,
        7 => NodeKind::BlockDevice,
        _ => return None,
    })
}

/// The rarer attributes in one blob: target, xattrs, names of owner and group, inode flags. Empty
/// when there are none.
pub(crate) fn encode_rare_attributes(attributes: &Attributes) -> Vec<u8> {
    if attributes.target.is_none()
        && attributes.xattrs.is_empty()
        && attributes.user.is_none()
        && attributes.group.is_none()
        && attributes.inode_flags == 0
    {
        return Vec::new();
    }
    let mut out = Writer::default();
    rare_attributes(&mut out, attributes);
    if attributes.inode_flags != 0 {
        out.varint(attributes.inode_flags.into());
    }
    out.finish_with_crc()
}

fn rare_attributes(out: &mut Writer, attributes: &Attributes) {
    out.option(attributes.target.as_deref());
    out.option(attributes.user.as_deref());
    out.option(attributes.group.as_deref());
    out.varint(u64::try_from(attributes.xattrs.len()).unwrap_or(u64::MAX));
    for xattr in &attributes.xattrs {
        out.bytes(&xattr.name);
        out.bytes(&xattr.value);
    }
}

/// Fills in what [`encode_rare_attributes`] wrote.
pub(crate) fn decode_rare_attributes(blob: &[u8], attributes: &mut Attributes) -> Result<(), StoreError> {
    if blob.is_empty() {
        return Ok(());
    }
    let mut reader = Reader::with_crc(blob, "a node's attributes")?;
    read_rare(&mut reader, attributes)?;
    if !reader.is_empty() {
        attributes.inode_flags = reader.u32()?;
    }
    Ok(())
}

fn read_rare(reader: &mut Reader<'_>, attributes: &mut Attributes) -> Result<(), StoreError> {
    attributes.target = reader.option()?;
    attributes.user = reader.option()?;
    attributes.group = reader.option()?;
    let xattrs = reader.varint()?;
    for _ in 0..xattrs {
        attributes.xattrs.push(Xattr {
            name: reader.bytes()?.into(),
            value: reader.bytes()?.into(),
        });
    }
    Ok(())
}

/// A record of a batch as it is stored in a staged part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StagedRecord {
    Manifest(Manifest),
    Node(NodeRecord),
    Entry(NameChange<FileId>),
    Delta(StagedDelta),
    /// The digest that the contents of a file must have.
    Proof(FileId, Proof),
    /// The time of a directory in which names came or went, ns.
    DirectoryTime(FileId, i128),
    End(Totals),
}

/// A delta whose literals are already in segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StagedDelta {
    pub(crate) file: u128,
    pub(crate) base_len: u64,
    pub(crate) new_len: u64,
    pub(crate) extents: u64,
    pub(crate) copies: bool,
    /// Every byte before this offset has an extent.
    pub(crate) covered_to: u64,
    pub(crate) stored_bytes: u64,
    /// (first offset, encoded page); see `layer`.
    pub(crate) pages: Vec<(u64, Vec<u8>)>,
    /// Segments that the pages refer to.
    pub(crate) segments: Vec<SegmentNumber>,
}

impl StagedRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Self::Manifest(manifest) => {
                out.u8(match (manifest.replaces, manifest.follows) {
                    (None, None) => 1,
                    (Some(_), None) => 8,
                    (None, Some(_)) => 9,
                    // A contradiction, stored as it is so that `apply` refuses it.
                    (Some(_), Some(_)) => 10,
                });
                out.varint(manifest.device);
                out.varint(manifest.counter);
                out.u8(u8::from(manifest.base_seq.is_some()));
                out.varint(manifest.base_seq.unwrap_or(0));
                for number in [manifest.replaces, manifest.follows].into_iter().flatten() {
                    out.varint(number);
                }
                out.id(manifest.root);
                out.signed(manifest.created_ns);
                out.bytes(&manifest.host);
                out.bytes(&manifest.path);
                out.u8(u8::from(manifest.snapshot.is_some()));
                if let Some(label) = &manifest.snapshot {
                    out.signed(label.time_ns);
                    out.bytes(&label.host);
                    out.bytes(&label.path);
                    out.bytes(&encode_tags(&label.tags));
                }
            }
            Self::Node(node) => {
                let a = &node.attributes;
                out.u8(if a.inode_flags == 0 { 2 } else { 12 });
                out.id(node.id);
                out.u8(number_of_kind(a.kind));
                out.varint(u64::from(a.mode));
                out.varint(u64::from(a.uid));
                out.varint(u64::from(a.gid));
                out.varint(a.size);
                out.wide(a.mtime_ns);
                out.varint(a.rdev);
                rare_attributes(&mut out, a);
                if a.inode_flags != 0 {
                    out.varint(a.inode_flags.into());
                }
                match node.content {
                    None => out.u8(0),
                    Some(change) => {
                        out.u8(match change.base {
                            ContentBase::Previous => 1,
                            ContentBase::Empty => 2,
                            ContentBase::Of(_) => 3,
                            ContentBase::At { .. } => 4,
                        });
                        out.varint(u64::from(change.deltas));
                        match change.base {
                            ContentBase::Previous | ContentBase::Empty => {}
                            ContentBase::Of(file) => out.id(file),
                            ContentBase::At { file, seq } => {
                                out.id(file);
                                out.varint(seq);
                            }
                        }
                    }
                }
            }
            Self::Entry(entry) => {
                out.u8(3);
                out.id(entry.parent);
                out.bytes(&entry.name);
                out.u8(u8::from(entry.child.is_some()));
                if let Some(child) = entry.child {
                    out.id(child);
                }
            }
            Self::Delta(delta) => {
                out.u8(4);
                out.id(FileId(delta.file));
                out.varint(delta.base_len);
                out.varint(delta.new_len);
                out.varint(delta.extents);
                out.u8(u8::from(delta.copies));
                out.varint(delta.covered_to);
                out.varint(delta.stored_bytes);
                out.varint(u64::try_from(delta.segments.len()).unwrap_or(u64::MAX));
                for segment in &delta.segments {
                    out.varint(segment.0);
                }
                out.varint(u64::try_from(delta.pages.len()).unwrap_or(u64::MAX));
                for (start, page) in &delta.pages {
                    out.varint(*start);
                    out.bytes(page);
                }
            }
            Self::End(totals) => {
                out.u8(5);
                out.varint(totals.nodes);
                out.varint(totals.entries);
                out.varint(totals.deltas);
                // Omitted when both are zero, as in records older than these totals.
                if totals.proofs > 0 || totals.directory_times > 0 {
                    out.varint(totals.proofs);
                }
                if totals.directory_times > 0 {
                    out.varint(totals.directory_times);
                }
            }
            Self::DirectoryTime(directory, mtime_ns) => {
                out.u8(11);
                out.id(*directory);
                out.wide(*mtime_ns);
            }
            Self::Proof(file, proof) => {
                out.u8(match proof.of {
                    ProofOf::Bytes => 6,
                    ProofOf::Leaves(_) => 7,
                    ProofOf::Ranges(_) => 13,
                });
                out.id(*file);
                out.bytes(&proof.digest);
                match &proof.of {
                    ProofOf::Bytes => {}
                    ProofOf::Leaves(kind) => out.u8(kind.code()),
                    ProofOf::Ranges(ranges) => {
                        for range in ranges {
                            out.varint(range.start());
                            out.varint(range.len_bytes());
                        }
                    }
                }
            }
        }
        out.finish_with_crc()
    }

    pub(crate) fn decode(blob: &[u8]) -> Result<Self, StoreError> {
        let mut r = Reader::with_crc(blob, "a staged record")?;
        let record = match r.u8()? {
            tag @ (1 | 8 | 9 | 10) => Self::Manifest(decode_manifest(&mut r, tag)?),
            tag @ (2 | 12) => Self::Node(decode_node(&mut r, tag == 12)?),
            3 => Self::Entry(NameChange {
                parent: r.id()?,
                name: r.bytes()?.into(),
                child: if r.u8()? == 0 { None } else { Some(r.id()?) },
            }),
            4 => Self::Delta(decode_delta(&mut r)?),
            5 => Self::End(Totals {
                nodes: r.varint()?,
                entries: r.varint()?,
                deltas: r.varint()?,
                proofs: if r.is_empty() { 0 } else { r.varint()? },
                directory_times: if r.is_empty() { 0 } else { r.varint()? },
            }),
            11 => Self::DirectoryTime(r.id()?, r.wide()?),
            tag @ (6 | 7 | 13) => Self::Proof(r.id()?, decode_proof(&mut r, tag)?),
            _ => return Err(r.damaged()),
        };
        if !r.is_empty() {
            return Err(r.damaged());
        }
        Ok(record)
    }
}

fn decode_manifest(r: &mut Reader<'_>, tag: u8) -> Result<Manifest, StoreError> {
    let device = r.varint()?;
    let counter = r.varint()?;
    let based = r.u8()? != 0;
    let base_seq = r.varint()?;
    Ok(Manifest {
        device,
        counter,
        base_seq: based.then_some(base_seq),
        replaces: match tag {
            8 | 10 => Some(r.varint()?),
            _ => None,
        },
        follows: match tag {
            9 | 10 => Some(r.varint()?),
            _ => None,
        },
        root: r.id()?,
        created_ns: r.signed()?,
        host: r.bytes()?.into(),
        path: r.bytes()?.into(),
        snapshot: if r.u8()? == 0 {
            None
        } else {
            Some(SnapshotLabel {
                time_ns: r.signed()?,
                host: r.bytes()?.into(),
                path: r.bytes()?.into(),
                tags: decode_tags(r.bytes()?)?,
            })
        },
    })
}

fn decode_node(r: &mut Reader<'_>, has_flags: bool) -> Result<NodeRecord, StoreError> {
    let id = r.id()?;
    let kind = r.u8()?;
    let mut attributes = Attributes {
        kind: kind_of_number(kind).ok_or_else(|| r.damaged())?,
        mode: r.u32()?,
        uid: r.u32()?,
        gid: r.u32()?,
        size: r.varint()?,
        mtime_ns: r.wide()?,
        rdev: r.varint()?,
        inode_flags: 0,
        target: None,
        xattrs: Vec::new(),
        user: None,
        group: None,
    };
    read_rare(r, &mut attributes)?;
    if has_flags {
        attributes.inode_flags = r.u32()?;
    }
    let content = match r.u8()? {
        0 => None,
        1 => Some(ContentChange {
            base: ContentBase::Previous,
            deltas: r.u32()?,
        }),
        2 => Some(ContentChange {
            base: ContentBase::Empty,
            deltas: r.u32()?,
        }),
        3 => {
            let deltas = r.u32()?;
            let base = ContentBase::Of(r.id()?);
            Some(ContentChange { deltas, base })
        }
        4 => {
            let deltas = r.u32()?;
            let (file, seq) = (r.id()?, r.varint()?);
            let base = ContentBase::At { file, seq };
            Some(ContentChange { deltas, base })
        }
        _ => return Err(r.damaged()),
    };
    Ok(NodeRecord {
        id,
        attributes,
        content,
    })
}

fn decode_proof(r: &mut Reader<'_>, tag: u8) -> Result<Proof, StoreError> {
    let digest: [u8; DIGEST_LEN] = r.bytes()?.try_into().map_err(|_| r.damaged())?;
    let of = match tag {
        6 => ProofOf::Bytes,
        7 => ProofOf::Leaves(LeafKind::from_code(r.u8()?).ok_or_else(|| r.damaged())?),
        _ => {
            let mut ranges = Vec::new();
            while !r.is_empty() {
                let range = ByteRange::from_offset_len(r.varint()?, r.varint()?);
                ranges.push(range.ok_or_else(|| r.damaged())?);
            }
            let is_apart = ranges
                .windows(2)
                .all(|pair| matches!(pair, [one, next] if one.end() < next.start()));
            if !is_apart {
                return Err(r.damaged());
            }
            ProofOf::Ranges(ranges)
        }
    };
    Ok(Proof { digest, of })
}

fn decode_delta(r: &mut Reader<'_>) -> Result<StagedDelta, StoreError> {
    let mut delta = StagedDelta {
        file: r.id()?.0,
        base_len: r.varint()?,
        new_len: r.varint()?,
        extents: r.varint()?,
        copies: r.u8()? != 0,
        covered_to: r.varint()?,
        stored_bytes: r.varint()?,
        ..StagedDelta::default()
    };
    for _ in 0..r.varint()? {
        delta.segments.push(SegmentNumber(r.varint()?));
    }
    for _ in 0..r.varint()? {
        let start = r.varint()?;
        delta.pages.push((start, r.bytes()?.to_vec()));
    }
    Ok(delta)
}

/// A list of tags as one blob.
pub(crate) fn encode_tags(tags: &[String]) -> Vec<u8> {
    let mut out = Writer::default();
    for tag in tags {
        out.bytes(tag.as_bytes());
    }
    out.bytes
}

/// The tags in a blob.
pub(crate) fn decode_tags(blob: &[u8]) -> Result<Vec<String>, StoreError> {
    let mut reader = Reader::new(blob, "a list of tags");
    let mut tags = Vec::new();
    while !reader.is_empty() {
        let tag = reader.bytes()?.to_vec();
        tags.push(String::from_utf8(tag).map_err(|_| reader.damaged())?);
    }
    Ok(tags)
}

#[cfg(test)]
mod tests;
