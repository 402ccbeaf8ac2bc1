//! Frames on the socket: a length (u32, little-endian, without itself), a kind byte, the payload.
//!
//! JSON frames carry requests and answers, data frames an offset (u64) and raw bytes, hole frames two u64. Each side begins
//! with a hello frame: magic and version. A length beyond [`FRAME_LEN_MAX`] is refused before anything is allocated.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::service::{ErrorKind, ServiceError};

pub(crate) const FRAME_LEN_MAX: u32 = 64 << 20;
const HELLO: &[u8] = b"byteback-control\x01";

const KIND_HELLO: u8 = 0;
const KIND_JSON: u8 = 1;
const KIND_DATA: u8 = 2;
const KIND_HOLE: u8 = 3;

/// A frame that was read; `payload` is in the caller's buffer.
#[derive(Debug)]
pub(crate) enum Frame<'a> {
    Json(&'a [u8]),
    Data { offset: u64, bytes: &'a [u8] },
    Hole { start: u64, end: u64 },
}

pub(crate) fn protocol(message: impl Into<String>) -> ServiceError {
    ServiceError::new(ErrorKind::Protocol, message)
}

fn gone(error: &io::Error) -> ServiceError {
    ServiceError::new(
        ErrorKind::Gone,
        format!("lost the connection to the tree's daemon ({error}); is it still running?"),
    )
}

fn write(out: &mut impl Write, kind: u8, parts: &[&[u8]]) -> Result<(), ServiceError> {
    let len: usize = 1 + parts.iter().map(|part| part.len()).sum::<usize>();
    let len = u32::try_from(len).ok().filter(|len| *len <= FRAME_LEN_MAX);
    let len = len.ok_or_else(|| protocol("a message is too long for the control socket"))?;
    let mut head = [0; 5];
    head[..4].copy_from_slice(&len.to_le_bytes());
    head[4] = kind;
    out.write_all(&head).map_err(|error| gone(&error))?;
    parts
        .iter()
        .try_for_each(|part| out.write_all(part))
        .map_err(|error| gone(&error))
}

pub(crate) fn write_hello(out: &mut impl Write) -> Result<(), ServiceError> {
    write(out, KIND_HELLO, &[HELLO])
}

pub(crate) fn read_hello(input: &mut impl Read) -> Result<(), ServiceError> {
    let mut buffer = Vec::new();
    match read_raw(input, &mut buffer)? {
        Some(KIND_HELLO) if buffer == HELLO => Ok(()),
        _ => Err(protocol(
            "the other end of the control socket speaks another version; restart the daemon",
        )),
    }
}

pub(crate) fn write_json(out: &mut impl Write, value: &impl Serialize) -> Result<(), ServiceError> {
    let bytes = serde_json::to_vec(value).map_err(|error| protocol(error.to_string()))?;
    write(out, KIND_JSON, &[&bytes])
}

pub(crate) fn write_data(out: &mut impl Write, offset: u64, bytes: &[u8]) -> Result<(), ServiceError> {
    write(out, KIND_DATA, &[&offset.to_le_bytes(), bytes])
}

pub(crate) fn write_hole(out: &mut impl Write, start: u64, end: u64) -> Result<(), ServiceError> {
    write(out, KIND_HOLE, &[&start.to_le_bytes(), &end.to_le_bytes()])
}

/// Reads one frame into `buffer`; `None` when the other end closed the connection between two frames.
fn read_raw(input: &mut impl Read, buffer: &mut Vec<u8>) -> Result<Option<u8>, ServiceError> {
    let mut len = [0; 4];
    let mut got = 0;
    while got < len.len() {
        match input.read(&mut len[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(protocol("the control connection ended inside a frame")),
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(gone(&error)),
        }
    }
    let len = u32::from_le_bytes(len);
    if len == 0 || len > FRAME_LEN_MAX {
        return Err(protocol(format!("a control frame claims {len} bytes")));
    }
    let mut kind = [0];
    input.read_exact(&mut kind).map_err(|error| gone(&error))?;
    buffer.clear();
    // Grows with what really arrives, not with what was claimed.
    let payload = u64::from(len - 1);
    input.take(payload).read_to_end(buffer).map_err(|error| gone(&error))?;
    if buffer.len() as u64 != payload {
        return Err(protocol("the control connection ended inside a frame"));
    }
    Ok(Some(kind[0]))
}

pub(crate) fn read<'a>(input: &mut impl Read, buffer: &'a mut Vec<u8>) -> Result<Option<Frame<'a>>, ServiceError> {
    let Some(kind) = read_raw(input, buffer)? else {
        return Ok(None);
    };
    let number = |bytes: &[u8]| -> Option<u64> { Some(u64::from_le_bytes(bytes.try_into().ok()?)) };
    let frame = match kind {
        KIND_JSON => Some(Frame::Json(buffer)),
        KIND_DATA => buffer.split_at_checked(8).and_then(|(offset, bytes)| {
            Some(Frame::Data {
                offset: number(offset)?,
                bytes,
            })
        }),
        KIND_HOLE => buffer.split_at_checked(8).and_then(|(start, end)| {
            Some(Frame::Hole {
                start: number(start)?,
                end: number(end)?,
            })
        }),
        _ => None,
    };
    frame
        .map(Some)
        .ok_or_else(|| protocol(format!("a control frame of kind {kind} cannot be understood")))
}

pub(crate) fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, ServiceError> {
    serde_json::from_slice(json).map_err(|error| protocol(format!("a control message cannot be understood: {error}")))
}
