//! The contents of many files at once, beside those of single readers.

use crate::lab::{Batch, Lab};
use byteback_delta::bundle::ShortContent;
use byteback_delta::contents::{CONTENT_LEN_MAX, ContentsReader};
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{ContentBase, FileId};
use byteback_store::StoreError;

fn contents_of(lab: &Lab, at: u64, ids: &[u128]) -> Vec<Option<ShortContent>> {
    let files = ids.iter().copied().map(FileId).collect();
    let mut stream = Vec::new();
    let reader = lab.store.many_contents("f", at, files).unwrap();
    reader.write(&mut stream).unwrap().unwrap();
    let mut reader = ContentsReader::new(&stream[..], ids.len() as u32).unwrap();
    ids.iter()
        .map(|id| reader.next_of(FileId(*id).to_bytes()).unwrap())
        .collect()
}

#[test]
fn many_contents_equal_those_of_single_readers() {
    let mut random = SplitMix64::new(5);
    let lab = Lab::new(50_000);
    let mut lens: Vec<u64> = (0..400).map(|number| number * number % 7001).collect();
    lens.push(CONTENT_LEN_MAX);
    let files: Vec<(u128, Vec<u8>)> = (2..)
        .zip(&lens)
        .map(|(id, len)| (id, noise(id as u64, *len as usize)))
        .collect();
    let first: Vec<(u128, &[u8])> = files.iter().map(|(id, bytes)| (*id, &bytes[..])).collect();
    lab.first(&first);
    for counter in 2..8 {
        let mut batch = Batch::default();
        for (id, bytes) in &files {
            let len = bytes.len() as u64;
            if len < 10 || random.below(3) > 0 {
                continue;
            }
            let (at, zeros) = (random.below(len - 5), vec![0; 5]);
            batch = match random.below(3) {
                0 => batch.patch(*id, len, &[(at, &zeros)]),
                _ => batch.patch(*id, len, &[(at, b"fives")]),
            };
        }
        lab.send(counter, Some(counter - 1), &batch).unwrap();
    }
    let ids: Vec<u128> = files.iter().map(|(id, _)| *id).rev().chain([1, 9999, 3]).collect();
    for at in 1..8 {
        for (id, content) in ids.iter().zip(contents_of(&lab, at, &ids)) {
            match lab.read(*id, at) {
                Ok(bytes) => assert!(content.unwrap().to_bytes() == bytes, "{id} at {at}"),
                Err(_) => assert!(content.is_none() && matches!(id, 1 | 9999), "{id} at {at}"),
            }
        }
    }
    let moment = |at| lab.store.many_contents("f", at, Vec::new()).map(drop);
    assert!(matches!(moment(0), Err(StoreError::InvalidParameter(_))));
    assert!(matches!(moment(8), Err(StoreError::InvalidParameter(_))));
    let missing = lab.store.many_contents("g", 1, Vec::new());
    assert!(matches!(missing, Err(StoreError::FolderNotFound(_))));
}

#[test]
fn many_contents_are_read_in_the_order_of_the_disk() {
    const WINDOW: usize = 256;
    let lab = Lab::new(20_000);
    let files: Vec<(u128, Vec<u8>)> = (2..602).map(|id| (id, noise(id as u64, 500))).collect();
    let first: Vec<(u128, &[u8])> = files.iter().map(|(id, bytes)| (*id, &bytes[..])).collect();
    lab.first(&first);
    let mut ids: Vec<u128> = files.iter().map(|(id, _)| *id).collect();
    let mut random = SplitMix64::new(9);
    for last in (1..ids.len()).rev() {
        ids.swap(last, random.below(last as u64 + 1) as usize);
    }
    lab.frames.take();
    let contents = contents_of(&lab, 1, &ids);
    assert!(contents.iter().all(Option::is_some));
    let read = lab.frames.take_in_order();
    assert_eq!(read.len(), 600, "each frame once");
    for window in read.chunks(WINDOW) {
        assert!(window.is_sorted(), "{window:?}");
    }
}

#[test]
fn many_contents_leave_scattered_files_out() {
    let lab = Lab::new(1 << 20);
    let bytes = noise(1, 9000);
    lab.first(&[(2, &bytes), (3, &bytes), (4, &noise(2, CONTENT_LEN_MAX as usize + 1))]);
    let scattered = |pieces: u64| (0..pieces).map(|piece| (3 * piece, &b"x"[..])).collect::<Vec<_>>();
    let batch = Batch::default()
        .patch(2, 9000, &scattered(1500))
        .patch(3, 9000, &scattered(300));
    lab.send(2, Some(1), &batch).unwrap();
    let contents = contents_of(&lab, 2, &[2, 3, 4]);
    assert!(contents[0].is_none() && contents[2].is_none());
    assert!(contents[1].as_ref().unwrap().to_bytes() == lab.read(3, 2).unwrap());
    // A file with another one's contents, and one without any.
    let batch = Batch::default()
        .following(5, b"follows", 3, 9000, &[])
        .file(6, 0, 0, ContentBase::Empty)
        .entry(crate::lab::ROOT, b"empty", Some(6));
    lab.send(3, Some(2), &batch).unwrap();
    let contents = contents_of(&lab, 3, &[5, 6]);
    assert!(contents[0].as_ref().unwrap().to_bytes() == lab.read(3, 2).unwrap());
    assert_eq!(contents[1], Some(ShortContent::zeros(0)));
}
