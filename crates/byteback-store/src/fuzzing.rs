//! What the fuzz targets call (`fuzz/`): the readers of the catalog's blobs and of segments, which are private. Compiled for tests, which
//! call them with the seeds, and with the feature `fuzzing`.
//!
//! Each takes any bytes. It asserts that what was read is written as the same thing again, and panics if it is not.

use crate::codec::{
    StagedDelta, StagedRecord, Writer, decode_rare_attributes, decode_tags, encode_rare_attributes, encode_tags,
};
use crate::error::StoreError;
use crate::layer::{Page, PageBuilder};
use crate::model::{
    Attributes, ContentBase, ContentChange, EntryChange, FileId, Manifest, NodeChange, NodeKind, SnapshotLabel, Totals,
};
use crate::segments::FrameRef;
use crate::segments::format::{check_frame, check_segment_header, put_frame, segment_header};

/// Any blob: the first byte says which, the others are the blob without its checksum, which is made.
pub fn blob(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else {
        return;
    };
    let sealed = Writer { bytes: bytes.to_vec() }.finish_with_crc();
    // As it is, too: mostly refused for its checksum.
    for blob in [&sealed[..], bytes] {
        match which % 5 {
            0 => same(blob, StagedRecord::decode, StagedRecord::encode),
            1 => page(blob),
            2 => same(blob, decode_attributes, encode_rare_attributes),
            3 => same(blob, decode_tags, |tags| encode_tags(tags)),
            _ => frame(blob),
        }
    }
}

/// What is read once is the same after writing and reading it.
fn same<T: PartialEq + std::fmt::Debug>(
    blob: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, StoreError>,
    encode: impl Fn(&T) -> Vec<u8>,
) {
    let Ok(value) = decode(blob) else { return };
    assert_eq!(decode(&encode(&value)).ok(), Some(value), "another value comes back");
}

/// A page. Written again, neighbours that continue each other are one; after that nothing changes any more.
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

/// As one page; `None` if that would be none, or several.
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

/// A frame in a segment, beside what the catalog says of it; and a segment's header.
fn frame(bytes: &[u8]) {
    if let Some((header, _)) = bytes.split_first_chunk::<20>() {
        let number = 7;
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
        segment: 1,
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

/// Blobs of every kind, as [`blob`] takes them.
#[must_use]
pub fn blob_seeds() -> Vec<Vec<u8>> {
    let id = FileId(42);
    let rare = Attributes {
        target: Some(b"to".to_vec()),
        xattrs: vec![(b"user.a".to_vec(), b"1".to_vec())],
        user: Some(b"me".to_vec()),
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
            root: id,
            created_ns: -1,
            host: b"h".to_vec(),
            path: b"/p".to_vec(),
            snapshot: Some(SnapshotLabel {
                time_ns: 4,
                host: Vec::new(),
                path: b"/".to_vec(),
                tags: vec!["t".to_owned()],
            }),
        }),
        StagedRecord::Node(NodeChange {
            id,
            attributes: rare.clone(),
            content: Some(ContentChange {
                base: ContentBase::Previous,
                deltas: 1,
            }),
        }),
        StagedRecord::Entry(EntryChange {
            parent: id,
            name: b"n".to_vec(),
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
            segments: vec![3],
        }),
        StagedRecord::End(Totals {
            nodes: 1,
            entries: 1,
            deltas: 1,
            proofs: 1,
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
    seeds.push(with(4, &segment_header(7)));
    seeds
}

/// Whether a seed is a whole blob of its kind.
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
        _ => seed.len() > 20,
    }
}

#[cfg(test)]
mod tests;
