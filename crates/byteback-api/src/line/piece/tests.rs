use super::*;
use crate::batch::BatchWriter;
use crate::line::{CALL_BODY_LEN_MAX, HEADERS_MAX, LineCall, MESSAGE_LEN_MAX};
use crate::routes::Method;
use byteback_model::{FileId, NameChange};
use proptest::prelude::*;

fn piece(names: &[Vec<u8>], delta: &[u8]) -> Vec<u8> {
    let mut writer = BatchWriter::new(Vec::new()).unwrap();
    for name in names {
        let entry = NameChange {
            parent: FileId(1),
            name: name.clone().into(),
            child: Some(FileId(2)),
        };
        writer.entry(&entry).unwrap();
    }
    if !delta.is_empty() {
        writer.delta(FileId(2), delta).unwrap();
    }
    writer.end().unwrap()
}

proptest! {
    #[test]
    fn piece_of_a_batch_comes_back_with_its_checksums(
        names in prop::collection::vec(prop::collection::vec(1_u8.., 1..200), 0..20),
        delta in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let piece = piece(&names, &delta);
        let short = unsummed(&piece).unwrap();
        let records = names.len() + usize::from(!delta.is_empty()) + 1;
        prop_assert_eq!(short.len() + CRC_LEN * records, piece.len() + CRC_LEN);
        prop_assert_eq!(summed(&short).unwrap(), piece);
    }

    #[test]
    fn bytes_that_are_no_piece_are_sent_as_they_are(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(unsummed(&bytes), None);
        let _ = summed(&bytes);
    }
}

#[test]
fn every_flipped_bit_and_truncation_of_a_piece_is_noticed() {
    let piece = piece(&[b"a name".to_vec(), b"another".to_vec()], b"delta");
    for bit in 0..piece.len() * 8 {
        let mut damaged = piece.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(unsummed(&damaged), None, "{bit}");
    }
    let short = unsummed(&piece).unwrap();
    for bit in 0..short.len() * 8 {
        let mut damaged = short.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(summed(&damaged).is_err(), "{bit}");
    }
    for len in 0..short.len() {
        assert!(summed(&short[..len]).is_err(), "{len}");
    }
}

#[test]
fn longest_records_of_a_piece_are_put_back_within_the_limits() {
    // Checksums of the shortest records make a piece longer by two thirds at most.
    let header = piece(&[], b"")[..HEADER_LEN].to_vec();
    let mut records = [&[7, 0][..]]
        .concat()
        .repeat((CALL_BODY_LEN_MAX - HEADER_LEN - CRC_LEN) / 2);
    records.splice(0..0, header);
    let mut with_sums = records[..HEADER_LEN].to_vec();
    for record in records[HEADER_LEN..].chunks(2) {
        with_sums.extend_from_slice(record);
        with_sums.extend_from_slice(&crc32c::crc32c(record).to_le_bytes());
    }
    let crc = crc32c::crc32c(&records);
    records.extend_from_slice(&crc.to_le_bytes());
    assert_eq!(summed(&records).unwrap(), with_sums);
    // Lengths that no piece has.
    for len in [
        &[0xff; 10][..],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        &[0x80; 10],
    ] {
        let mut bytes = records[..HEADER_LEN].to_vec();
        bytes.push(7);
        bytes.extend_from_slice(len);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        assert!(summed(&bytes).is_err() && unsummed(&bytes).is_none());
    }
    let call = LineCall {
        method: Method::Post,
        target: "/v1/folders/f/batches/1",
        headers: [None; HEADERS_MAX],
        body: &records[..CALL_BODY_LEN_MAX],
        is_unsummed: true,
    };
    assert!(call.encode().len() < MESSAGE_LEN_MAX);
}
