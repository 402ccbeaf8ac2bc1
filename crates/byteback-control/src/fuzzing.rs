//! Entry points of the fuzz targets (`fuzz/`): the readers of both ends of the socket, which are
//! private. Compiled for tests, which call them with the seeds, and with the feature `fuzzing`.

use byteback_model::{ByteString, NodeId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frame::{
    ANSWER_LEN_MAX, Frame, REQUEST_LEN_MAX, parse, read, read_hello, write_data, write_hello, write_hole, write_json,
    write_stop,
};
use crate::messages::{Answer, Request};
use crate::service::CutId;

/// Reads the socket's bytes, hello and frames, as either end does. Messages that are understood are
/// written back as the same.
pub fn socket(data: &[u8]) {
    let mut input = data;
    if read_hello(&mut input).is_ok() {
        let mut hello = Vec::new();
        assert!(write_hello(&mut hello).is_ok());
        assert!(data.starts_with(&hello), "another hello is understood");
    }
    for (len_max, rest) in [(REQUEST_LEN_MAX, input), (ANSWER_LEN_MAX, data)] {
        let (mut rest, mut buffer) = (rest, Vec::new());
        loop {
            let before = rest;
            let Ok(Some(frame)) = read(&mut rest, &mut buffer, len_max) else {
                break;
            };
            let mut again = Vec::new();
            let written = match frame {
                Frame::Json(json) => {
                    message::<Request>(json);
                    message::<Answer>(json);
                    Ok(())
                }
                // Pieces that are longer than ours come back as several frames.
                Frame::Data { bytes, .. } if bytes.is_empty() || bytes.len() > 1 << 16 => Ok(()),
                Frame::Data { offset, bytes } => write_data(&mut again, offset, bytes),
                Frame::Hole { start, end } => write_hole(&mut again, start, end),
                Frame::Stop => write_stop(&mut again),
            };
            assert!(written.is_ok(), "what was read cannot be written");
            assert!(before.starts_with(&again), "another frame comes back");
        }
    }
}

fn message<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(json: &[u8]) {
    let Ok(value) = parse::<T>(json) else { return };
    let mut frame = Vec::new();
    assert!(write_json(&mut frame, &value, ANSWER_LEN_MAX).is_ok());
    assert_eq!(parse::<T>(&frame[5..]).ok(), Some(value), "another message comes back");
}

/// Everything that both ends send.
#[must_use]
pub fn socket_seeds() -> Vec<Vec<u8>> {
    let (mut client, mut server) = (Vec::new(), Vec::new());
    let requests = [
        Request::Status,
        Request::Read {
            cut: CutId(1),
            node: NodeId(2),
            ranges: vec![(0, 4096)],
        },
        Request::Find {
            cut: CutId(1),
            path: ByteString::from("a/b"),
        },
        Request::ReadPast {
            path: ByteString(vec![0xff]),
            at_ns: -1,
        },
    ];
    let _ = write_hello(&mut client);
    for request in &requests {
        let _ = write_json(&mut client, request, REQUEST_LEN_MAX);
    }
    let _ = write_stop(&mut client);
    let _ = write_hello(&mut server);
    for answer in [Answer::Done, Answer::Found(Some(NodeId(2))), Answer::Path(None)] {
        let _ = write_json(&mut server, &answer, ANSWER_LEN_MAX);
    }
    let _ = write_data(&mut server, 7, b"bytes");
    let _ = write_hole(&mut server, 12, 4096);
    vec![client, server]
}

#[cfg(test)]
mod tests;
