//! Bytes on a line, at both ends: messages, calls, answers, pieces of batches.
#![no_main]

use byteback_api::batch::{BatchReader, BatchWriter};
use byteback_api::line::context::{Packer, Unpacker};
use byteback_api::line::{HEADERS_MAX, Line, LineAnswer, LineCall, MESSAGE_LEN_MAX, Memory, piece};
use byteback_api::routes::Method;

byteback_fuzz::target!(check, seeds);

fn check(data: &[u8]) {
    if let Ok(call) = LineCall::decode(data) {
        let encoded = call.encode();
        assert_eq!(LineCall::decode(&encoded).ok(), Some(call), "another call comes back");
    }
    for is_first in [true, false] {
        if let Ok(answer) = LineAnswer::decode(data, is_first) {
            let encoded = answer.encode();
            assert_eq!(LineAnswer::decode(&encoded, is_first).ok(), Some(answer));
        }
    }
    if let Ok(whole) = piece::summed(data) {
        let mut records = BatchReader::new(whole.as_slice());
        while let Ok(Some(_)) = records.next_record() {}
    }
    if let Some(unsummed) = piece::unsummed(data) {
        assert_eq!(piece::summed(&unsummed).ok().as_deref(), Some(data));
    }
    if let Ok(mut unpacker) = Unpacker::new() {
        for message in data.chunks(100) {
            match unpacker.unpack(message) {
                Ok(message) => assert!(message.len() <= MESSAGE_LEN_MAX),
                Err(_) => break,
            }
        }
    }
    if let Ok(mut end) = Line::of_server(Memory::default()) {
        // A line that failed is of no use any more, and its ends do not use it.
        'parts: for part in data.chunks(77) {
            end.stream().feed(part);
            loop {
                match end.receive() {
                    Ok(Some(message)) => assert!(message.len() <= MESSAGE_LEN_MAX),
                    Ok(None) => break,
                    Err(_) => break 'parts,
                }
            }
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut headers = [None; HEADERS_MAX];
    headers[0] = Some(("range", "bytes=0-9"));
    let call = LineCall {
        method: Method::Post,
        target: "/v1/folders/f/batches/1",
        headers,
        body: b"body",
        is_unsummed: true,
    };
    let answer = LineAnswer {
        head: Some(byteback_api::line::AnswerHead { status: 200, headers }),
        piece: b"{}",
        is_last: true,
    };
    let batch = BatchWriter::new(Vec::new()).and_then(BatchWriter::end).expect("memory");
    let mut packer = Packer::new().expect("memory");
    vec![
        call.encode(),
        answer.encode(),
        piece::unsummed(&batch).expect("a piece"),
        batch,
        packer.pack(&call.encode()).expect("memory"),
    ]
}
