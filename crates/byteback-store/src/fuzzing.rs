//! Entry points of the fuzz targets (`fuzz/`): the readers of the catalog's blobs and of segments,
//! which are private. Compiled for tests, which call them with the seeds, and with the feature
//! `fuzzing`.
//!
//! Each takes any bytes. It panics unless a decoded value survives encoding and decoding.

use crate::codec::{
    StagedDelta, StagedRecord, Writer, decode_rare_attributes, decode_tags, encode_rare_attributes, encode_tags,
};
use crate::error::StoreError;
use crate::layer::{Literal, Page, PageBuilder};
use crate::numbers::{ChunkNumber, NodeNumber, SegmentNumber};
use crate::segments::FrameRef;
use crate::segments::format::{check_frame, check_segment_header, put_frame, segment_header};
use crate::sums::CHUNK_LEN;
use crate::sums::chunk::{ChunkKey, KeptChunk, LeafSum, SOURCES_MAX, Sources, crc_of};
use byteback_delta::Source;
use byteback_delta::leaves::LeafKind;
use byteback_extents::ByteRange;
use byteback_model::{
    Attributes, ContentBase, ContentChange, FileId, Manifest, NameChange, NodeKind, NodeRecord, SnapshotLabel, Totals,
    Xattr,
};

/// Key of the row of kept sums.
const ROW: ChunkKey = ChunkKey {
    node: NodeNumber(7),
    kind: LeafKind::Blake3,
    chunk: ChunkNumber(3),
};

/// Any blob: the first byte selects its kind, the others are the blob without its checksum, which
/// is added.
pub fn blob(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else {
        return;
    };
    let sealed = Writer { bytes: bytes.to_vec() }.finish_with_crc();
    // Also without the added checksum: mostly refused.
    for blob in [&sealed[..], bytes] {
        match which % 6 {
            0 => same(blob, StagedRecord::decode, StagedRecord::encode),
            1 => page(blob),
            2 => same(blob, decode_attributes, encode_rare_attributes),
            3 => same(blob, decode_tags, |tags| encode_tags(tags)),
            4 => frame(blob),
            _ => row(bytes),
        }
    }
}

/// Asserts that a decoded value is the same after encoding and decoding it.
fn same<T: PartialEq + std::fmt::Debug>(
    blob: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, StoreError>,
    encode: impl Fn(&T) -> Vec<u8>,
) {
    let Ok(value) = decode(blob) else { return };
    assert_eq!(decode(&encode(&value)).ok(), Some(value), "another value comes back");
}

/// A page. Encoding it joins neighbours that continue each other; after that nothing changes any
/// more.
fn page(blob: &[u8]) {
    let Ok(page) = Page::decode(blob) else { return };
    let ascend = page
        .extents
        .windows(2)
        .all(|two| two[0].range.end() <= two[1].range.start());
    assert!(ascend, "a page's extents do not ascend");
    let written = encode_page(&page);
    let again = written.as_ref().and_then(|blob| Page::decode(blob).ok());
    assert_eq!(again.as_ref().and_then(encode_page), written, "another page comes back");
}

/// A row of kept sums. Its page may be encoded in another way; then it must still be the same row.
fn row(bytes: &[u8]) {
    let sealed = [bytes, &crc_of(ROW, bytes).to_le_bytes()].concat();
    for blob in [&sealed[..], bytes] {
        let Ok(kept) = KeptChunk::decode(blob, ROW) else {
            continue;
        };
        assert!(kept.sources.len_bytes() <= CHUNK_LEN && kept.sums.len() <= 256);
        let mut merged = Sources::default();
        for extent in kept.sources.extents() {
            merged.push(extent.range, extent.source);
        }
        let written = KeptChunk::encode(&merged, &kept.sums, ROW);
        let again = KeptChunk::decode(&written, ROW);
        if merged.extents().len() <= SOURCES_MAX {
            let expected = KeptChunk {
                sources: merged,
                sums: kept.sums.clone(),
            };
            assert_eq!(again.ok().as_ref(), Some(&expected), "another row comes back");
            let leaves = kept.unchanged(&expected.sources).iter().filter(|leaf| **leaf).count();
            assert_eq!(leaves, expected.sums.len(), "a row is not what it is of");
        }
    }
}

/// The page in encoded form; `None` if that takes no page, or several.
fn encode_page(page: &Page) -> Option<Vec<u8>> {
    let mut builder = PageBuilder::default();
    for extent in &page.extents {
        builder.push(extent.range, extent.source);
    }
    builder.finish();
    let (_, blob) = builder.pages.pop()?;
    builder.pages.is_empty().then_some(blob)
}

fn no_attributes() -> Attributes {
    Attributes {
        kind: NodeKind::File,
        mode: 0,
        uid: 0,
        gid: 0,
        size: 0,
        mtime_ns: 0,
        rdev: 0,
        inode_flags: 0,
        target: None,
        xattrs: Vec::new(),
        user: None,
        group: None,
    }
}

fn decode_attributes(blob: &[u8]) -> Result<Attributes, StoreError> {
    let mut attributes = no_attributes();
    decode_rare_attributes(blob, &mut attributes)?;
    Ok(attributes)
}

/// A frame in a segment, with the reference that the catalog would have; and a segment's header.
fn frame(bytes: &[u8]) {
    if let Some((header, _)) = bytes.split_first_chunk::<20>() {
        let number = SegmentNumber(7);
        if check_segment_header(header, number).is_ok() && header.starts_with(b"BYBSEGM\x01") {
            let crc_agrees = crc32c::crc32c(&header[..16]).to_le_bytes() == header[16..];
            assert!(
                !crc_agrees || segment_header(number) == header,
                "another segment's header is taken for this one's"
            );
        }
    }
    let Some((&[codec, raw @ .., stored], record)) = bytes.split_first_chunk::<6>() else {
        return;
    };
    let frame = FrameRef {
        segment: SegmentNumber(1),
        offset: 20,
        stored_len: u32::from(stored),
        raw_len: u32::from_le_bytes(raw),
        codec,
    };
    if check_frame(record, &frame).is_ok() {
        let mut again = Vec::new();
        put_frame(codec, frame.raw_len, frame.stored_len, &record[24..], &mut again);
        assert_eq!(again, record, "another frame comes back");
    }
}

/// Blobs of every kind, in the form that [`blob`] takes.
#[must_use]
pub fn blob_seeds() -> Vec<Vec<u8>> {
    let id = FileId(42);
    let rare = Attributes {
        target: Some(b"to".to_vec().into()),
        xattrs: vec![Xattr::new(b"user.a", b"1".to_vec())],
        user: Some(b"me".to_vec().into()),
        inode_flags: 16,
        ..no_attributes()
    };
    let page = [
        &[1, 1, 3, 20, 5, 200, 1, 1][..], // version; one frame: segment, offset, lengths, codec
        &[3, 0, 16, 0, 2, 8, 21, 8, 0, 14], // literal, copy, zeros
    ]
    .concat();
    let records = [
        StagedRecord::Manifest(Manifest {
            device: 1,
            counter: 2,
            base_seq: Some(3),
            replaces: None,
            follows: None,
            root: id,
            created_ns: -1,
            host: b"h".to_vec().into(),
            path: b"/p".to_vec().into(),
            snapshot: Some(SnapshotLabel {
                time_ns: 4,
                host: Vec::new().into(),
                path: b"/".to_vec().into(),
                tags: vec!["t".to_owned()],
            }),
        }),
        StagedRecord::Node(NodeRecord {
            id,
            attributes: rare.clone(),
            content: Some(ContentChange {
                base: ContentBase::Previous,
                deltas: 1,
            }),
        }),
        StagedRecord::Manifest(Manifest {
            device: 1,
            counter: 2,
            base_seq: None,
            replaces: Some(3),
            follows: None,
            root: id,
            created_ns: 0,
            host: Vec::new().into(),
            path: Vec::new().into(),
            snapshot: None,
        }),
        StagedRecord::Node(NodeRecord {
            id,
            attributes: rare.clone(),
            content: Some(ContentChange {
                base: ContentBase::Of(FileId(7)),
                deltas: 0,
            }),
        }),
        StagedRecord::Entry(NameChange {
            parent: id,
            name: b"n".to_vec().into(),
            child: Some(FileId(7)),
        }),
        StagedRecord::Delta(StagedDelta {
            file: 7,
            base_len: 4096,
            new_len: 8192,
            extents: 3,
            copies: true,
            covered_to: 10,
            stored_bytes: 5,
            pages: vec![(0, page.clone())],
            segments: vec![SegmentNumber(3)],
        }),
        StagedRecord::End(Totals {
            nodes: 1,
            entries: 1,
            deltas: 1,
            proofs: 1,
            directory_times: 0,
        }),
    ];
    let with = |which: u8, blob: &[u8]| [&[which], blob].concat();
    let unsealed = |blob: Vec<u8>| blob[..blob.len() - 4].to_vec();
    let mut seeds: Vec<Vec<u8>> = records
        .iter()
        .map(|record| with(0, &unsealed(record.encode())))
        .collect();
    seeds.push(with(1, &page));
    seeds.push(with(2, &unsealed(encode_rare_attributes(&rare))));
    seeds.push(with(3, &encode_tags(&["a".to_owned(), "b".to_owned()])));
    let mut frame = vec![4, 1, 5, 0, 0, 0, 5];
    put_frame(1, 5, 5, b"bytes", &mut frame);
    seeds.push(frame);
    seeds.push(with(4, &segment_header(SegmentNumber(7))));
    let mut sources = Sources::default();
    for (start, end, source) in [(0, 5000, Source::Zero), (5000, 5010, literal())] {
        if let Some(range) = ByteRange::new(start, end) {
            sources.push(range, source);
        }
    }
    let sum = LeafSum { crc: 1, leaf: [2; 32] };
    seeds.push(with(5, &unsealed(KeptChunk::encode(&sources, &[sum, sum], ROW))));
    seeds
}

fn literal() -> Source<Literal> {
    let frame = FrameRef {
        segment: SegmentNumber(3),
        offset: 20,
        stored_len: 5,
        raw_len: 200,
        codec: 1,
    };
    Source::Literal(Literal { frame, skip: 7 })
}

/// Whether a seed is a complete blob of its kind.
#[cfg(test)]
fn is_read(seed: &[u8]) -> bool {
    let sealed = Writer {
        bytes: seed[1..].to_vec(),
    }
    .finish_with_crc();
    match seed[0] {
        0 => StagedRecord::decode(&sealed).is_ok(),
        1 => Page::decode(&sealed).is_ok_and(|page| page.extents.len() == 3),
        2 => decode_attributes(&sealed).is_ok_and(|read| !read.xattrs.is_empty()),
        3 => decode_tags(&seed[1..]).is_ok_and(|tags| tags.len() == 2),
        4 => seed.len() > 20,
        _ => {
            let sealed = [&seed[1..], &crc_of(ROW, &seed[1..]).to_le_bytes()].concat();
            KeptChunk::decode(&sealed, ROW).is_ok()
        }
    }
}

#[cfg(test)]
mod tests;
