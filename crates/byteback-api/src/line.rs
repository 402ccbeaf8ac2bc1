//! A *line*: one connection that stands and carries calls, one after another.
//!
//! A request of HTTP and its answer cost some 400 bytes of headers, which is more than a small
//! change. On a line, a call is one message and its answer one or more; all messages of a direction
//! are compressed in one context ([`context`]), so that what every call repeats is sent once. The
//! messages are those of a WebSocket ([RFC 6455]), which proxies let pass. docs/formats/line.md
//! describes every byte.
//!
//! - [`Line`]: one end of a line, over any stream of bytes.
//! - [`LineCall`], [`LineAnswer`]: the messages.
//! - [`piece`]: the form that pieces of batches have on a line.
//! - [`Memory`]: a stream for an end whose bytes come and go by another way.
//!
//! Invariants: while an answer is on its way, no other call is made, so that nothing has to say
//! which call an answer belongs to, and a slow reader holds up nobody else. A line that failed once
//! is of no use any more: its contexts differ.
//!
//! Bad input gives a typed error. Memory: a message of at most [`MESSAGE_LEN_MAX`] bytes, packed
//! and unpacked, and two contexts of together some 130 KiB, by measurement.
//!
//! Out of scope: opening a line, and the meaning of calls.
//!
//! [RFC 6455]: https://www.rfc-editor.org/rfc/rfc6455

pub mod context;
mod memory;
mod message;
pub mod piece;

use self::context::{Packer, Unpacker};
pub use self::memory::Memory;
pub use self::message::{AnswerHead, HEADERS_MAX, LineAnswer, LineCall};
use std::io::{self, Read, Write};
use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Message, WebSocket};

/// The name of the protocol, with its version, in the header `Sec-WebSocket-Protocol`.
pub const PROTOCOL: &str = "byteback.line.1";

/// Longest message, in bytes, before it is packed.
pub const MESSAGE_LEN_MAX: usize = 512 * 1024;

/// Longest body of a call, in bytes: the rest of a message is left to its head.
pub const CALL_BODY_LEN_MAX: usize = 256 * 1024;

/// Usual length of a piece of an answer's body, in bytes.
pub const PIECE_LEN: usize = 64 * 1024;

/// A packed message is hardly longer than a plain one.
const PACKED_LEN_MAX: usize = MESSAGE_LEN_MAX + MESSAGE_LEN_MAX / 128 + 1024;

/// Messages are short.
const BUFFER_LEN: usize = 4096;

/// A line does not work any more.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The connection failed.
    #[error("the connection failed")]
    Io(#[source] io::Error),
    /// The other end has closed the line.
    #[error("the other end closed the line")]
    Closed,
    /// The other end broke the rules.
    #[error("the other end broke the rules of a line: {0}")]
    Broken(String),
}

impl From<LineError> for io::Error {
    fn from(error: LineError) -> Self {
        match error {
            LineError::Io(error) => error,
            LineError::Closed => Self::from(io::ErrorKind::UnexpectedEof),
            LineError::Broken(_) => Self::other(error),
        }
    }
}

/// An end of a line.
pub struct Line<S> {
    socket: WebSocket<S>,
    packer: Packer,
    unpacker: Unpacker,
    has_failed: bool,
}

impl<S> std::fmt::Debug for Line<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

/// The limits of a WebSocket that carries a line.
#[must_use]
pub fn limits() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(BUFFER_LEN)
        // Each message is flushed anyway.
        .write_buffer_size(BUFFER_LEN)
        .max_write_buffer_size(2 * PACKED_LEN_MAX)
        .max_message_size(Some(PACKED_LEN_MAX))
        .max_frame_size(Some(PACKED_LEN_MAX))
}

impl<S: Read + Write> Line<S> {
    /// The end of a line over a WebSocket, with [`limits`], on which nothing was sent yet.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(socket: WebSocket<S>) -> io::Result<Self> {
        Ok(Self {
            socket,
            packer: Packer::new()?,
            unpacker: Unpacker::new()?,
            has_failed: false,
        })
    }

    /// The server's end of a line, over a stream on which the handshake is over.
    ///
    /// # Errors
    /// Out of memory.
    pub fn of_server(stream: S) -> io::Result<Self> {
        Self::new(WebSocket::from_raw_socket(stream, Role::Server, Some(limits())))
    }

    /// The stream below.
    pub fn stream(&mut self) -> &mut S {
        self.socket.get_mut()
    }

    /// Sends a message, all of it.
    ///
    /// # Errors
    /// [`LineError`]; the line is of no use any more.
    pub fn send(&mut self, message: &[u8]) -> Result<(), LineError> {
        self.unless_failed(|line| {
            let packed = line.packer.pack(message).map_err(LineError::Io)?;
            line.socket.send(Message::binary(packed)).map_err(of_socket)
        })
    }

    /// The library is not to be asked again after a failure, and the contexts differ.
    fn unless_failed<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T, LineError>) -> Result<T, LineError> {
        if self.has_failed {
            return Err(LineError::Closed);
        }
        let done = act(self);
        self.has_failed = done.is_err();
        done
    }

    /// Receives a message; `None`: a stream that does not block has to get more bytes first.
    ///
    /// # Errors
    /// [`LineError`]; the line is of no use any more.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>, LineError> {
        self.unless_failed(Self::receive_one)
    }

    fn receive_one(&mut self) -> Result<Option<Vec<u8>>, LineError> {
        loop {
            match self.socket.read() {
                Ok(Message::Binary(packed)) => return self.unpacker.unpack(&packed).map(Some),
                // Pings are answered by the library with the next read.
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
                Ok(Message::Close(_)) => return Err(LineError::Closed),
                Ok(Message::Text(_)) => return Err(LineError::Broken("a message is text".to_owned())),
                Err(tungstenite::Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(of_socket(error)),
            }
        }
    }

    /// Asks the other end for a sign of life and waits for it.
    ///
    /// # Errors
    /// [`LineError`]; the line is of no use any more.
    pub fn ping(&mut self) -> Result<(), LineError> {
        self.unless_failed(Self::ping_once)
    }

    fn ping_once(&mut self) -> Result<(), LineError> {
        self.socket.send(Message::Ping(Vec::new().into())).map_err(of_socket)?;
        loop {
            match self.socket.read().map_err(of_socket)? {
                Message::Pong(_) => return Ok(()),
                Message::Ping(_) | Message::Frame(_) => {}
                Message::Close(_) => return Err(LineError::Closed),
                Message::Binary(_) | Message::Text(_) => {
                    return Err(LineError::Broken("an answer came without a call".to_owned()));
                }
            }
        }
    }
}

fn of_socket(error: tungstenite::Error) -> LineError {
    use tungstenite::error::ProtocolError;
    match error {
        tungstenite::Error::Io(error) => LineError::Io(error),
        tungstenite::Error::ConnectionClosed
        | tungstenite::Error::AlreadyClosed
        | tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => LineError::Closed,
        error => LineError::Broken(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
