//! Damage x place: lost bytes are named, others are read, verification lists the damage, and
//! backups go on.

use crate::lab::{Batch, Lab};
use byteback_host::durable::{DurableDir, OpenMode};
use byteback_host::random::noise;
use byteback_model::FileId;
use byteback_store::StoreError;
use byteback_store::numbers::SegmentNumber;
use byteback_store::verify::VerifyEvent;
use std::ops::ControlFlow;

fn damaged_files(lab: &Lab) -> Vec<FileId> {
    let mut found = Vec::new();
    let totals = lab
        .store
        .verify("f", None, |event| {
            if let VerifyEvent::Damage { id, path, error, .. } = event {
                assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
                assert_eq!(path, Some(format!("file{}", id.0).into_bytes()));
                found.push(id);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((totals.files, totals.damaged_files), (3, found.len() as u64));
    found
}

#[test]
fn every_kind_of_damage_is_told_apart_from_what_is_whole() {
    // Each file gets a segment of its own: a frame is longer than a segment may be.
    let files: Vec<Vec<u8>> = (2..5).map(|id| noise(id, 9000)).collect();
    for damage in [
        "flip in frame",
        "flip in frame head",
        "truncate",
        "truncate to nothing",
        "remove",
        "other frame",
    ] {
        let lab = Lab::new(1000);
        lab.first(&[(2, &files[0]), (3, &files[1]), (4, &files[2])]);
        let names = lab.disk.list().unwrap();
        assert_eq!(names.len(), 3);
        assert!(damaged_files(&lab).is_empty());
        let disk = lab.disk.clone();
        let lab = lab.reopen(disk);
        let file = lab.disk.open(&names[1], OpenMode::Existing).unwrap();
        let flip = |at: u64| {
            let mut byte = [0];
            file.read_exact_at(at, &mut byte).unwrap();
            file.write_all_at(at, &[byte[0] ^ 8]).unwrap();
        };
        match damage {
            "flip in frame" => flip(5000),
            "flip in frame head" => flip(25),
            "truncate" => file.set_len(5000).unwrap(),
            "truncate to nothing" => file.set_len(0).unwrap(),
            "remove" => lab.disk.remove(&names[1]).unwrap(),
            _ => {
                // An intact frame, but another one.
                let other = lab.disk.open(&names[0], OpenMode::Existing).unwrap();
                let mut bytes = vec![0; 4000];
                other.read_exact_at(20, &mut bytes).unwrap();
                file.write_all_at(20, &bytes).unwrap();
            }
        }
        match lab.read(3, 1) {
            Err(StoreError::Damaged {
                segment: SegmentNumber(2),
                offset: 0 | 20,
                ..
            }) => {}
            other => panic!("{damage}: {other:?}"),
        }
        assert_eq!(damaged_files(&lab), [FileId(3)], "{damage}");
        assert_eq!(
            (lab.read(2, 1).unwrap(), lab.read(4, 1).unwrap()),
            (files[0].clone(), files[2].clone())
        );
        // The next backup completes; new bytes of the damaged file are readable where they are its
        // own.
        lab.send(2, Some(1), &Batch::default().patch(3, 9000, &[(0, &files[2])]))
            .unwrap();
        assert_eq!(lab.read(3, 2).unwrap(), files[2], "{damage}");
        assert!(
            damaged_files(&lab).is_empty(),
            "{damage}: the present needs nothing damaged"
        );
    }
}

/// Flips a bit at an offset of a segment.
fn flip(lab: &Lab, segment: usize, at: u64) {
    let names = lab.disk.list().unwrap();
    let file = lab.disk.open(&names[segment], OpenMode::Existing).unwrap();
    let mut byte = [0];
    file.read_exact_at(at, &mut byte).unwrap();
    file.write_all_at(at, &[byte[0] ^ 8]).unwrap();
}

fn lost_ranges(lab: &Lab) -> Vec<(FileId, Vec<(u64, u64)>)> {
    let mut lost = Vec::new();
    lab.store
        .verify("f", None, |event| {
            if let VerifyEvent::Damage {
                id, ranges, lost_bytes, ..
            } = event
            {
                assert_eq!(ranges.iter().map(|range| range.len_bytes()).sum::<u64>(), lost_bytes);
                lost.push((id, ranges.iter().map(|range| (range.start(), range.end())).collect()));
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    lost
}

#[test]
fn damaged_ranges_are_told_and_everything_else_is_read() {
    let lab = Lab::new(1 << 20);
    let bytes = noise(1, 600_000);
    lab.first(&[(2, &bytes), (3, &bytes[..1000])]);
    assert!(lost_ranges(&lab).is_empty());
    assert!(!lab.store.knows_damage().unwrap());
    // Frames have 256 KiB: this is the second of three.
    flip(&lab, 0, 20 + 24 + 262_144 + 24 + 5000);
    let expected = vec![(262_144, 524_288)];
    let page = lab.store.damage("f", FileId(2), None, 0, 100).unwrap();
    let reported: Vec<(u64, u64)> = page.ranges.iter().map(|range| (range.start(), range.end())).collect();
    assert_eq!(
        (page.size, reported, page.next_offset),
        (600_000, expected.clone(), None)
    );
    assert!(lab.store.knows_damage().unwrap(), "looking has noted it");
    assert!(
        lab.store
            .damage("f", FileId(3), None, 0, 100)
            .unwrap()
            .ranges
            .is_empty()
    );
    assert_eq!(lost_ranges(&lab), [(FileId(2), expected)]);
    let range = |start, end| byteback_store::ByteRange::new(start, end);
    for (start, end) in [(0, 262_144), (524_288, 600_000)] {
        let read = lab.read_range(2, 1, range(start, end)).unwrap();
        assert!(read == bytes[start as usize..end as usize]);
    }
}

#[test]
fn a_frame_is_healed_by_its_own_bytes_only_and_in_all_versions() {
    // Compressed and not.
    let text: Vec<u8> = b"to be or not to be, ".iter().copied().cycle().take(9000).collect();
    for (bytes, is_compressed) in [(noise(1, 9000), false), (text, true)] {
        let lab = Lab::new(1 << 20);
        lab.first(&[(2, &bytes)]);
        lab.send(2, Some(1), &Batch::default().patch(2, 9000, &[(100, b"changed")]))
            .unwrap();
        lab.send(
            3,
            Some(2),
            &Batch::default().following(3, b"copy", 2, 9000, &[(7000, b"more")]),
        )
        .unwrap();
        flip(&lab, 0, 60);
        assert!(lab.read(2, 1).is_err() && lab.read(2, 2).is_err() && lab.read(3, 3).is_err());
        assert_eq!(lost_ranges(&lab).len(), 2);
        let known = lab.store.known_damage("f", 100).unwrap();
        assert_eq!(known.len(), 2, "each file shows the frame");
        assert!(known.iter().all(|frame| frame.raw_len == 9000));
        let mut pieces: Vec<usize> = known.iter().map(|frame| frame.pieces.len()).collect();
        pieces.sort_unstable();
        assert_eq!(pieces, [2, 3], "the copy has one more change");
        let place = (known[0].segment, known[0].offset);
        let heal = |raw: &[u8]| lab.store.heal("f", FileId(2), None, place, raw).unwrap();
        let mut other = bytes.clone();
        other[8999] ^= 1;
        assert!(
            !heal(&other) && !heal(&bytes[..8999]) && !heal(b""),
            "compressed: {is_compressed}"
        );
        assert!(lab.read(2, 1).is_err());
        assert!(heal(&bytes), "compressed: {is_compressed}");
        assert!(lab.read(2, 1).unwrap() == bytes);
        assert!(lab.read(3, 3).unwrap()[6999..] == [&bytes[6999..7000], b"more", &bytes[7004..]].concat());
        assert!(lost_ranges(&lab).is_empty() && !lab.store.knows_damage().unwrap());
        // A file cannot reach a frame that it does not refer to.
        let stranger = lab.store.heal("f", FileId(2), None, (place.0, place.1 + 1), &bytes);
        assert!(matches!(stranger, Err(StoreError::InvalidParameter(_))));
    }
}

#[test]
fn damage_that_is_gone_is_forgotten_when_it_is_looked_at() {
    let lab = Lab::new(1 << 20);
    lab.first(&[(2, &noise(1, 9000))]);
    flip(&lab, 0, 60);
    assert_eq!(lost_ranges(&lab).len(), 1);
    flip(&lab, 0, 60);
    assert!(lab.store.knows_damage().unwrap());
    assert!(lab.store.known_damage("f", 100).unwrap().is_empty());
    assert!(!lab.store.knows_damage().unwrap());
}

#[test]
fn verification_reads_each_frame_once() {
    let lab = Lab::new(1 << 20);
    let bytes = noise(1, 3_000_000);
    lab.first(&[(2, &bytes)]);
    // Each frame of the changes lies all over the file; two files share everything.
    let mut base = 1;
    for round in 0..12u64 {
        let places: Vec<(u64, Vec<u8>)> = (0..40)
            .map(|index| (index * 70_000 + round * 5000, noise(round * 100 + index, 4096)))
            .collect();
        let places: Vec<(u64, &[u8])> = places.iter().map(|(at, bytes)| (*at, bytes.as_slice())).collect();
        lab.send(base + 1, Some(base), &Batch::default().patch(2, 3_000_000, &places))
            .unwrap();
        base += 1;
    }
    lab.send(
        base + 1,
        Some(base),
        &Batch::default().following(3, b"copy", 2, 3_000_000, &[]),
    )
    .unwrap();
    let counted = |lab: &Lab| {
        lab.frames.take();
        let totals = lab.store.verify("f", None, |_| ControlFlow::Continue(())).unwrap();
        let reads = lab.frames.take();
        let bytes: u64 = reads.keys().map(|frame| u64::from(frame.stored_len)).sum();
        (totals, reads, bytes)
    };
    let (totals, reads, bytes) = counted(&lab);
    assert!(reads.len() > 12 && reads.values().all(|times| *times == 1), "{reads:?}");
    assert_eq!((totals.frames, totals.bytes), (reads.len() as u64, bytes));
}
