//! Frames on the socket: a length (u32, little-endian, without itself), a kind byte, the payload.
//!
//! | kind | payload |
//! |---|---|
//! | 0 hello | [`MAGIC`] and [`VERSION`]; each side's first frame, and no other |
//! | 1 message | JSON: a request, or the answer that ends the answering of one |
//! | 2 data | an offset (u64) and the bytes there, or the checksums of the leaves from there on |
//! | 3 hole | start and end (u64) of bytes that read as zeros |
//! | 4 stop | nothing: the client wants no more pieces of what it is being sent; ignored where nothing is being sent |
//!
//! Received bytes are untrusted: a length beyond the reader's limit is refused before anything is
//! reserved, memory grows with the bytes that really came, and everything that does not fit is an
//! error of kind [`ErrorKind::Protocol`]. A connection that ends or fails between or inside frames
//! is [`ErrorKind::Gone`].

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::service::{ErrorKind, ServiceError};

/// The longest frame that a server takes. The longest requests name nodes, some ten bytes each.
pub(crate) const REQUEST_LEN_MAX: u32 = 64 << 20;
/// The longest frame that a client takes. The longest answers are pages of changes: one file whose
/// changes lie scattered fills one, at about 30 bytes a range.
pub(crate) const ANSWER_LEN_MAX: u32 = 1 << 30;
/// Bytes of content in one data frame; longer pieces are sent as several.
pub(crate) const DATA_LEN_MAX: usize = 1 << 20;

const MAGIC: &[u8] = b"byteback-control";
/// The version that both ends must speak. [`crate::messages`] says which changes of a message are a
/// new one.
const VERSION: u8 = 1;

const KIND_HELLO: u8 = 0;
const KIND_JSON: u8 = 1;
const KIND_DATA: u8 = 2;
const KIND_HOLE: u8 = 3;
const KIND_STOP: u8 = 4;

/// A frame that was read; its payload is in the caller's buffer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Json(&'a [u8]),
    Data { offset: u64, bytes: &'a [u8] },
    Hole { start: u64, end: u64 },
    Stop,
}

pub(crate) fn protocol(message: impl Into<String>) -> ServiceError {
    ServiceError::new(ErrorKind::Protocol, message)
}

fn gone(error: &io::Error) -> ServiceError {
    let message = match error.kind() {
        // The two names that systems have for the end of a read timeout.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "the folder's daemon does not answer; is it stopped, or waiting for its disk?".to_owned()
        }
        _ => format!("lost the connection to the folder's daemon ({error}); is it still running?"),
    };
    ServiceError::new(ErrorKind::Gone, message)
}

fn ended_inside() -> ServiceError {
    ServiceError::new(
        ErrorKind::Gone,
        "the connection to the folder's daemon ended in the middle of a message; is it still running?",
    )
}

/// Writes a frame. A frame that is too long is refused before any byte of it is written, so the
/// connection stays usable.
fn write(out: &mut impl Write, kind: u8, parts: &[&[u8]], len_max: u32) -> Result<(), ServiceError> {
    let len: usize = 1 + parts.iter().map(|part| part.len()).sum::<usize>();
    let short_enough = u32::try_from(len).ok().filter(|len| *len <= len_max);
    let len = short_enough.ok_or_else(|| {
        protocol(format!(
            "a message of {len} bytes is too long for the control socket, which accepts at most {len_max}"
        ))
    })?;
    let mut head = [0; 5];
    head[..4].copy_from_slice(&len.to_le_bytes());
    head[4] = kind;
    out.write_all(&head).map_err(|error| gone(&error))?;
    parts
        .iter()
        .try_for_each(|part| out.write_all(part))
        .map_err(|error| gone(&error))
}

pub(crate) fn flush(out: &mut impl Write) -> Result<(), ServiceError> {
    out.flush().map_err(|error| gone(&error))
}

pub(crate) fn write_hello(out: &mut impl Write) -> Result<(), ServiceError> {
    write(out, KIND_HELLO, &[MAGIC, &[VERSION]], REQUEST_LEN_MAX)?;
    flush(out)
}

pub(crate) fn read_hello(input: &mut impl Read) -> Result<(), ServiceError> {
    // A peer that speaks another protocol is not waited for.
    let len_max = 1 + 64;
    let mut buffer = Vec::new();
    match read_raw(input, &mut buffer, len_max)? {
        None => Err(ServiceError::new(
            ErrorKind::Gone,
            "the folder's daemon closed the connection at once: it is stopping, has too many connections, or belongs \
             to another user",
        )),
        Some(KIND_HELLO) => match buffer.strip_prefix(MAGIC) {
            Some([VERSION]) => Ok(()),
            Some(other) => Err(protocol(format!(
                "the other end of the control socket speaks version {}, and this program version {VERSION}; restart \
                 the daemon with this program: byteback umount, then byteback mount",
                other.first().map_or_else(|| "?".to_owned(), u8::to_string)
            ))),
            None => Err(protocol("the other end of the control socket is not Byteback")),
        },
        Some(_) => Err(protocol("the other end of the control socket did not send a hello")),
    }
}

pub(crate) fn write_json(out: &mut impl Write, value: &impl Serialize, len_max: u32) -> Result<(), ServiceError> {
    let bytes = serde_json::to_vec(value).map_err(|error| protocol(error.to_string()))?;
    write(out, KIND_JSON, &[&bytes], len_max)
}

/// Writes a piece of content, in as many frames as it takes.
pub(crate) fn write_data(out: &mut impl Write, offset: u64, bytes: &[u8]) -> Result<(), ServiceError> {
    let mut at = offset;
    for some in bytes.chunks(DATA_LEN_MAX) {
        write(out, KIND_DATA, &[&at.to_le_bytes(), some], ANSWER_LEN_MAX)?;
        at = at.saturating_add(some.len() as u64);
    }
    Ok(())
}

pub(crate) fn write_hole(out: &mut impl Write, start: u64, end: u64) -> Result<(), ServiceError> {
    write(
        out,
        KIND_HOLE,
        &[&start.to_le_bytes(), &end.to_le_bytes()],
        ANSWER_LEN_MAX,
    )
}

pub(crate) fn write_stop(out: &mut impl Write) -> Result<(), ServiceError> {
    write(out, KIND_STOP, &[], REQUEST_LEN_MAX)?;
    flush(out)
}

/// Reads one frame's payload into `buffer` and answers its kind; `None` when the other end closed
/// the connection between two frames.
fn read_raw(input: &mut impl Read, buffer: &mut Vec<u8>, len_max: u32) -> Result<Option<u8>, ServiceError> {
    let mut head = [0; 5];
    let mut got = 0;
    while got < head.len() {
        match input.read(&mut head[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(ended_inside()),
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(gone(&error)),
        }
        // The length is judged as soon as it is there: a frame of length 0 has no kind to wait for.
        if got >= 4 {
            check_len(&head, len_max)?;
        }
    }
    let payload = u64::from(check_len(&head, len_max)? - 1);
    buffer.clear();
    // Grows with what really arrives, not with what was claimed.
    input.take(payload).read_to_end(buffer).map_err(|error| gone(&error))?;
    if buffer.len() as u64 != payload {
        return Err(ended_inside());
    }
    Ok(Some(head[4]))
}

fn check_len(head: &[u8; 5], len_max: u32) -> Result<u32, ServiceError> {
    let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    if len == 0 || len > len_max {
        return Err(protocol(format!(
            "a control frame claims {len} bytes, and only 1 to {len_max} are possible"
        )));
    }
    Ok(len)
}

/// Reads one frame; `None` when the other end closed the connection between two frames.
pub(crate) fn read<'a>(
    input: &mut impl Read,
    buffer: &'a mut Vec<u8>,
    len_max: u32,
) -> Result<Option<Frame<'a>>, ServiceError> {
    let Some(kind) = read_raw(input, buffer, len_max)? else {
        return Ok(None);
    };
    let bad = || protocol(format!("malformed control frame of kind {kind}"));
    let frame = match kind {
        KIND_JSON => Frame::Json(buffer),
        KIND_DATA => {
            let (offset, bytes) = split_number(buffer).ok_or_else(bad)?;
            // Refused here, so that no caller must handle a piece that ends beyond all offsets.
            offset.checked_add(bytes.len() as u64).ok_or_else(bad)?;
            Frame::Data { offset, bytes }
        }
        KIND_HOLE => {
            let (start, rest) = split_number(buffer).ok_or_else(bad)?;
            let (end, rest) = split_number(rest).ok_or_else(bad)?;
            if start >= end || !rest.is_empty() {
                return Err(bad());
            }
            Frame::Hole { start, end }
        }
        KIND_STOP if buffer.is_empty() => Frame::Stop,
        _ => return Err(bad()),
    };
    Ok(Some(frame))
}

fn split_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*number), rest))
}

pub(crate) fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, ServiceError> {
    serde_json::from_slice(json).map_err(|error| protocol(format!("malformed control message: {error}")))
}

#[cfg(test)]
mod tests;
