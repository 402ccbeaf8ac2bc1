//! Cost follows the change: proved by counted bytes and rows, never by time.

use byteback_host::random::noise;

use crate::lab::{Batch, Lab, ROOT, patch};
use byteback_delta::{DeltaWriter, WriterOptions};
use byteback_extents::ByteRange;
use byteback_host::random::SplitMix64;
use byteback_model::{ContentBase, FileId, NodeKind};
use byteback_store::catalog::Catalog;
use byteback_store::numbers::LayerNumber;

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

/// A 4 GiB file whose first layer is fragmented: 100,000 extents.
pub(crate) fn fragmented(lab: &Lab) {
    let bytes = noise(1, 64);
    let places: Vec<(u64, &[u8])> = (0..100_000).map(|n| (n * 40_000, &bytes[..])).collect();
    let batch = Batch::default()
        .node(ROOT, NodeKind::Directory, 0, None)
        .file(2, 4 * GIB, 1, ContentBase::Empty)
        .entry(ROOT, b"image", Some(2))
        .delta(2, patch(0, 4 * GIB, &places));
    lab.send(1, None, &batch).unwrap();
}

/// The number of rows from which a version is read.
pub(crate) fn depth(lab: &Lab, id: u128) -> u64 {
    let catalog = lab.catalog.read().unwrap();
    let folder = catalog.folder("f").unwrap().unwrap();
    let node = catalog.node_number(folder.id, FileId(id)).unwrap().unwrap();
    let mut last = catalog.attributes(node, folder.seq).unwrap().unwrap().layer;
    let mut rows = 0;
    while last > LayerNumber::NONE {
        let row = catalog.longest_layer(node, last, LayerNumber::FIRST).unwrap().unwrap();
        rows += 1;
        if row.resets {
            break;
        }
        last = row.first.previous();
    }
    rows
}

#[test]
fn a_mebibyte_onto_four_gibibytes_costs_a_mebibyte() {
    let lab = Lab::new(64 * MIB);
    fragmented(&lab);
    let base_pages = lab.catalog.work().page_bytes_written;
    assert!(base_pages > 400_000, "the first layer is large: {base_pages}");
    let mut rng = SplitMix64::new(3);
    let mut page_bytes = 0;
    let rounds = 64;
    for round in 0..rounds {
        let bytes = noise(round, 1024);
        // 1024 pieces of 1 KiB, ascending.
        let places: Vec<(u64, &[u8])> = (0..1024)
            .map(|n| (n * 4 * MIB + rng.below(3 * MIB), &bytes[..]))
            .collect();
        let (disk, work) = (lab.disk.counters(), lab.catalog.work());
        lab.send(round + 2, Some(round + 1), &Batch::default().patch(2, 4 * GIB, &places))
            .unwrap();
        let (disk_after, work_after) = (lab.disk.counters(), lab.catalog.work());
        assert_eq!(disk_after.bytes_read, disk.bytes_read, "applying reads no literal");
        let written = disk_after.bytes_written - disk.bytes_written;
        assert!(
            written < MIB + MIB / 100,
            "round {round}: {written} bytes of segment written"
        );
        page_bytes += work_after.page_bytes_written - work.page_bytes_written;
        page_bytes += work_after.page_bytes_read - work.page_bytes_read;
        let rows = work_after.rows_written - work.rows_written;
        assert!(rows < 64, "round {round}: {rows} rows written");
    }
    // A delta of 1024 extents is about 10 kB; it is read and written once per tier as it rises.
    let average = page_bytes / rounds;
    assert!(average < 100_000, "{average} bytes of extents per MiB, amortised");

    let (disk, work) = (lab.disk.counters(), lab.catalog.work());
    let range = ByteRange::from_offset_len(GIB + 17, 4096).unwrap();
    assert_eq!(lab.read_range(2, rounds + 1, Some(range)).unwrap().len(), 4096);
    let read = lab.disk.counters().bytes_read - disk.bytes_read;
    assert!(read < 2 * MIB, "{read} bytes of segments for 4 KiB");
    let pages = lab.catalog.work().page_bytes_read - work.page_bytes_read;
    assert!(pages < 1_500_000, "{pages} bytes of extents for 4 KiB");
}

#[test]
fn a_long_history_is_read_from_few_rows_and_a_reset_ends_it() {
    let lab = Lab::new(64 * MIB);
    let len = 100_000;
    let mut expected = noise(5, len);
    lab.first(&[(2, &expected)]);
    let mut rng = SplitMix64::new(8);
    let mut deepest = 0;
    for round in 0..600u64 {
        let at = rng.below(len as u64 - 4);
        let bytes = noise(round + 100, 4);
        expected[at as usize..at as usize + 4].copy_from_slice(&bytes);
        lab.send(
            round + 2,
            Some(round + 1),
            &Batch::default().patch(2, len as u64, &[(at, &bytes)]),
        )
        .unwrap();
        deepest = deepest.max(depth(&lab, 2));
    }
    // 601 extents: tiers 0 to 3.
    assert!((2..=7 * 4).contains(&deepest), "{deepest} rows");
    assert!(lab.read(2, 601).unwrap() == expected);
    lab.send(
        602,
        Some(601),
        &Batch::default().patch(2, len as u64, &[(0, &expected)]),
    )
    .unwrap();
    assert_eq!(depth(&lab, 2), 1, "a version that keeps nothing needs no older one");
}

#[test]
fn copies_of_copies_cannot_make_a_merge_explode() {
    let lab = Lab::new(64 * MIB);
    let bytes = noise(1, 4);
    let places: Vec<(u64, &[u8])> = (0..500).map(|n| (n * 8, &bytes[..])).collect();
    let mut len = 4000u64;
    let batch = Batch::default()
        .node(ROOT, NodeKind::Directory, 0, None)
        .file(2, len, 1, ContentBase::Empty)
        .entry(ROOT, b"bomb", Some(2))
        .delta(2, patch(0, len, &places));
    lab.send(1, None, &batch).unwrap();
    let mut work = lab.catalog.work().page_bytes_written;
    for round in 0..12u64 {
        // 600 copies of the whole contents, cut to a possible length.
        let copied = len.min(1 << 40);
        let new_len = copied * 600;
        let options = WriterOptions {
            copies: true,
            compress: false,
        };
        let mut writer = DeltaWriter::new(Vec::new(), len, new_len, options).unwrap();
        for n in 1..600 {
            writer
                .copy(ByteRange::from_offset_len(n * copied, copied).unwrap(), 0)
                .unwrap();
        }
        let batch = Batch::default()
            .file(2, new_len, 1, ContentBase::Previous)
            .delta(2, writer.finish().unwrap().0);
        lab.send(round + 2, Some(round + 1), &batch).unwrap();
        let now = lab.catalog.work().page_bytes_written;
        assert!(now - work < 4_000_000, "round {round}: {} bytes of extents", now - work);
        (work, len) = (now, new_len);
    }
    let range = ByteRange::from_offset_len(4000 * 599, 4).unwrap();
    assert_eq!(lab.read_range(2, 13, Some(range)).unwrap(), bytes);
}

/// Each version changed the content here and there, so that the next bytes lie in another version's
/// frame almost every time.
#[test]
fn content_of_many_interleaved_versions_reads_each_frame_once() {
    const VERSIONS: u64 = 16;
    let lab = Lab::new(64 * MIB);
    let len = 8 * MIB;
    let mut expected = noise(1, len as usize);
    lab.first(&[(2, &expected)]);
    let mut stored = len;
    for version in 0..VERSIONS {
        let bytes = noise(version + 2, (len / 32) as usize);
        let places: Vec<(u64, &[u8])> = (0..)
            .map(|n| n * 32_768 + version * 2048)
            .zip(bytes.chunks(1024))
            .collect();
        for (at, bytes) in &places {
            expected[*at as usize..][..bytes.len()].copy_from_slice(bytes);
            stored += bytes.len() as u64;
        }
        lab.send(version + 2, Some(version + 1), &Batch::default().patch(2, len, &places))
            .unwrap();
    }
    let before = lab.disk.counters().bytes_read;
    assert!(lab.read(2, VERSIONS + 1).unwrap() == expected);
    let read = lab.disk.counters().bytes_read - before;
    assert!(
        read < stored + stored / 10,
        "{read} bytes read of {stored} that are stored"
    );
}
