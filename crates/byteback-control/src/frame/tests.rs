//! Frames, byte by byte: written ones, ones that are read back, and bytes that are no frame.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;

fn written(write: impl FnOnce(&mut Vec<u8>) -> Result<(), ServiceError>) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes).unwrap();
    bytes
}

fn read_one(bytes: &[u8], len_max: u32, check: impl FnOnce(Result<Option<Frame<'_>>, ServiceError>)) {
    let mut buffer = Vec::new();
    check(read(&mut Cursor::new(bytes), &mut buffer, len_max));
}

fn refused(bytes: &[u8], len_max: u32) -> ServiceError {
    let mut buffer = Vec::new();
    let error = read(&mut Cursor::new(bytes), &mut buffer, len_max).unwrap_err();
    assert!(
        buffer.capacity() <= bytes.len() + 1024,
        "{} bytes were reserved for a frame of {}",
        buffer.capacity(),
        bytes.len()
    );
    error
}

#[test]
fn golden_bytes_of_version_1() {
    assert_eq!(written(write_hello), b"\x12\0\0\0\0byteback-control\x01");
    assert_eq!(written(|out| write_json(out, &"hi", 100)), b"\x05\0\0\0\x01\"hi\"");
    assert_eq!(
        written(|out| write_data(out, 0x0102, b"abc")),
        b"\x0c\0\0\0\x02\x02\x01\0\0\0\0\0\0abc"
    );
    assert_eq!(
        written(|out| write_hole(out, 1, 0x0200)),
        b"\x11\0\0\0\x03\x01\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0"
    );
    assert_eq!(written(write_stop), b"\x01\0\0\0\x04");
}

#[test]
fn a_hello_is_taken_and_nothing_else_is() {
    let ours = written(write_hello);
    assert_eq!(read_hello(&mut Cursor::new(&ours)), Ok(()));

    let refused = |bytes: &[u8]| read_hello(&mut Cursor::new(bytes)).unwrap_err();
    let ended = refused(b"");
    assert_eq!(ended.kind, ErrorKind::Gone);
    assert!(ended.message.contains("another user"), "{ended}");
    for cut_short in 1..ours.len() {
        assert_eq!(refused(&ours[..cut_short]).kind, ErrorKind::Gone, "{cut_short}");
    }

    let other_version = refused(b"\x12\0\0\0\0byteback-control\x02");
    assert_eq!(other_version.kind, ErrorKind::Protocol);
    assert!(other_version.message.contains("version 2") && other_version.message.contains("restart"));
    for bytes in [
        &b"\x12\0\0\0\0byteback-kontrol\x01"[..],
        b"\x11\0\0\0\0byteback-control",
        b"\x13\0\0\0\0byteback-control\x01\x02",
        b"\x01\0\0\0\0",
        // A message before the hello, and another protocol.
        b"\x05\0\0\0\x01\"hi\"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff\0",
        b"\0\0\0\0\0",
    ] {
        assert_eq!(refused(bytes).kind, ErrorKind::Protocol, "{bytes:?}");
    }
}

#[test]
fn frame_beyond_the_length_limit_is_refused_without_reserving() {
    for claimed in [65, 1 << 20, u32::MAX] {
        let mut bytes = claimed.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"\x01{}");
        let error = refused(&bytes, 64);
        assert_eq!(error.kind, ErrorKind::Protocol);
        assert!(error.message.contains(&claimed.to_string()), "{error}");
    }
    // A permitted but false length costs only the bytes that really came.
    let mut bytes = ANSWER_LEN_MAX.to_le_bytes().to_vec();
    bytes.extend_from_slice(b"\x01{}");
    assert_eq!(refused(&bytes, ANSWER_LEN_MAX).kind, ErrorKind::Gone);
    // A frame without even a kind is refused without waiting for one.
    assert_eq!(refused(b"\0\0\0\0", 64).kind, ErrorKind::Protocol);
}

#[test]
fn frames_that_say_something_impossible_are_refused() {
    for bytes in [
        // Data without a whole offset, and data that ends beyond all offsets.
        &b"\x08\0\0\0\x02\0\0\0\0\0\0\0"[..],
        b"\x0b\0\0\0\x02\xff\xff\xff\xff\xff\xff\xff\xffab",
        // Holes: short, long, empty, backwards.
        b"\x10\0\0\0\x03\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0",
        b"\x12\0\0\0\x03\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0",
        b"\x11\0\0\0\x03\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0",
        b"\x11\0\0\0\x03\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0",
        // A stop that says more, a hello that comes late, kinds that do not exist.
        b"\x02\0\0\0\x04\0",
        b"\x12\0\0\0\0byteback-control\x04",
        b"\x01\0\0\0\x05",
        b"\x01\0\0\0\xff",
    ] {
        assert_eq!(refused(bytes, 1000).kind, ErrorKind::Protocol, "{bytes:?}");
    }
}

#[test]
fn a_message_that_is_too_long_is_not_begun() {
    let mut out = Vec::new();
    let error = write_json(&mut out, &"x".repeat(100), 100).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Protocol);
    assert!(error.message.contains("103 bytes"), "{error}");
    assert!(out.is_empty());
}

#[test]
fn long_pieces_cross_as_several_frames() {
    let content: Vec<u8> = (0..2 * DATA_LEN_MAX + 17).map(|at| (at % 251) as u8).collect();
    let bytes = written(|out| write_data(out, 1000, &content));
    let (mut input, mut buffer, mut got) = (Cursor::new(&bytes), Vec::new(), Vec::new());
    let mut frames = 0;
    while let Some(frame) = read(&mut input, &mut buffer, ANSWER_LEN_MAX).unwrap() {
        let Frame::Data { offset, bytes } = frame else {
            panic!("{frame:?}")
        };
        assert_eq!(offset, 1000 + got.len() as u64);
        got.extend_from_slice(bytes);
        frames += 1;
    }
    assert_eq!((frames, got == content), (3, true));
}

#[test]
fn messages_that_are_not_the_expected_json_are_refused() {
    use crate::messages::{Answer, Request};
    for json in [
        &b""[..],
        b"{",
        b"\"unknown\"",
        b"\"cut\"",
        b"{\"cut\":{}}",
        b"{\"cut\":{\"cut\":{\"consumer\":7}}}",
        b"{\"changes\":{\"cut\":-1,\"cursor\":{\"nodes\":0,\"names\":0}}}",
        b"{\"status\":null,\"unmount\":null}",
        b"\"status\" \"status\"",
        b"\xff\xfe",
    ] {
        assert_eq!(
            parse::<Request>(json).unwrap_err().kind,
            ErrorKind::Protocol,
            "{json:?}"
        );
        assert_eq!(parse::<Answer>(json).unwrap_err().kind, ErrorKind::Protocol, "{json:?}");
    }
    // Nesting cannot exhaust the stack.
    let deep = "[".repeat(1 << 20);
    assert_eq!(parse::<Request>(deep.as_bytes()).unwrap_err().kind, ErrorKind::Protocol);
    let deep = format!("{{\"read\":{{\"cut\":1,\"node\":1,\"ranges\":{deep}");
    assert_eq!(parse::<Request>(deep.as_bytes()).unwrap_err().kind, ErrorKind::Protocol);
}

/// A reader that gives its bytes in pieces of the given sizes, interrupted before each.
struct InPieces<'a> {
    left: &'a [u8],
    sizes: Vec<usize>,
    turn: usize,
}

impl Read for InPieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.turn += 1;
        if self.turn.is_multiple_of(2) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let size = self.sizes.get(self.turn / 2 % self.sizes.len()).copied().unwrap_or(1);
        let len = size.max(1).min(out.len()).min(self.left.len());
        out[..len].copy_from_slice(&self.left[..len]);
        self.left = &self.left[len..];
        Ok(len)
    }
}

#[derive(Clone, Debug)]
enum Sent {
    Json(String),
    Data(u64, Vec<u8>),
    Hole(u64, u64),
    Stop,
}

fn sent() -> impl Strategy<Value = Sent> {
    prop_oneof![
        ".{0,40}".prop_map(Sent::Json),
        (0..u64::MAX - 300, prop::collection::vec(any::<u8>(), 1..300)).prop_map(|(at, bytes)| Sent::Data(at, bytes)),
        (any::<u64>(), any::<u64>())
            .prop_filter("a hole has a length", |(one, other)| one != other)
            .prop_map(|(one, other)| Sent::Hole(one.min(other), one.max(other))),
        Just(Sent::Stop),
    ]
}

proptest! {
    #[test]
    fn frame_reads_back_in_whatever_pieces_it_arrives(
        frames in prop::collection::vec(sent(), 0..12),
        sizes in prop::collection::vec(1_usize..40, 1..8),
    ) {
        let mut bytes = Vec::new();
        for frame in &frames {
            match frame {
                Sent::Json(text) => write_json(&mut bytes, text, REQUEST_LEN_MAX).unwrap(),
                Sent::Data(offset, content) => write_data(&mut bytes, *offset, content).unwrap(),
                Sent::Hole(start, end) => write_hole(&mut bytes, *start, *end).unwrap(),
                Sent::Stop => write_stop(&mut bytes).unwrap(),
            }
        }
        let mut input = InPieces { left: &bytes, sizes, turn: 0 };
        let mut buffer = Vec::new();
        for frame in &frames {
            let got = read(&mut input, &mut buffer, ANSWER_LEN_MAX).unwrap().unwrap();
            match (frame, got) {
                (Sent::Json(text), Frame::Json(json)) => prop_assert_eq!(text, &parse::<String>(json).unwrap()),
                (Sent::Data(at, content), Frame::Data { offset, bytes }) => {
                    prop_assert_eq!((*at, &content[..]), (offset, bytes));
                }
                (Sent::Hole(from, to), Frame::Hole { start, end }) => prop_assert_eq!((*from, *to), (start, end)),
                (Sent::Stop, Frame::Stop) => {}
                (sent, got) => prop_assert!(false, "{:?} became {:?}", sent, got),
            }
        }
        prop_assert_eq!(read(&mut input, &mut buffer, ANSWER_LEN_MAX), Ok(None));
    }

    #[test]
    fn frame_stream_cut_anywhere_ends_with_an_error_or_at_a_border(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..4),
        keep in 0_usize..200,
    ) {
        let mut bytes = Vec::new();
        let mut borders = vec![0];
        for frame in &frames {
            write_json(&mut bytes, frame, REQUEST_LEN_MAX).unwrap();
            borders.push(bytes.len());
        }
        let keep = keep.min(bytes.len());
        let (mut input, mut buffer) = (Cursor::new(&bytes[..keep]), Vec::new());
        let mut whole = 0;
        let end = loop {
            match read(&mut input, &mut buffer, REQUEST_LEN_MAX) {
                Ok(Some(_)) => whole += 1,
                Ok(None) => break None,
                Err(error) => break Some(error.kind),
            }
        };
        prop_assert_eq!(whole, borders.iter().filter(|border| **border <= keep).count() - 1);
        prop_assert_eq!(end, (!borders.contains(&keep)).then_some(ErrorKind::Gone));
    }

    #[test]
    fn garbage_is_an_error_and_costs_no_more_than_its_length(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (mut input, mut buffer) = (Cursor::new(&bytes), Vec::new());
        while let Ok(Some(frame)) = read(&mut input, &mut buffer, ANSWER_LEN_MAX) {
            if let Frame::Json(json) = frame {
                let _ = parse::<crate::messages::Request>(json);
                let _ = parse::<crate::messages::Answer>(json);
            }
        }
        prop_assert!(buffer.capacity() <= bytes.len() + 1024);
        let _ = read_hello(&mut Cursor::new(&bytes));
    }
}

#[test]
fn an_empty_reader_is_the_end() {
    read_one(b"", 100, |got| assert_eq!(got, Ok(None)));
}
