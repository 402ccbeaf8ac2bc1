//! A relay: a process that has a line to the server carries the calls of other processes on it.
//!
//! A command makes a few short calls and ends; a connection of its own costs it more bytes, time
//! and work at both ends than they do. So it connects to the daemon of the folder, which stays. The
//! command opens a line to the daemon as it would open one to the server, token and all, so that a
//! process without the daemon's token is refused; its calls are then repeated on the daemon's line,
//! one after another, and the answers handed back, message by message.
//!
//! Only one command at a time is served: calls of a line come one after another, and those of
//! another command would wait. A command that is not served after a moment connects by itself.
//!
//! Bytes on the wire are the daemon's. It tells the command of them in a header of each answer,
//! with the cost of opening the line; of a last answer in several messages, those behind the first
//! are not told.
//!
//! Out of scope: how a command reaches the daemon, and who may.

use super::line::NotCarried;
use super::{ServerClient, WireBytes};
use byteback_api::line::{AnswerHead, LineAnswer, LineError, PROTOCOL, limits};
use byteback_api::routes::Route;
use std::io::{self, Read, Write};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use tungstenite::handshake::server::{ErrorResponse, Request, Response};
use ureq::http::{HeaderValue, StatusCode, Uri, header};

/// The header with the bytes that the calls of a relayed line cost so far: sent and received, in
/// decimal, with a comma between.
const WIRE_BYTES: &str = "byteback-wire-bytes";

/// A command waits this long for the end of the one before, which the relay may not have noticed
/// yet.
const END_NOTICED_WITHIN: Duration = Duration::from_millis(100);

/// The line of a process, for the calls of others.
#[derive(Debug)]
pub struct LineRelay {
    client: ServerClient,
    is_at_work: Mutex<bool>,
    ended: Condvar,
}

/// The right to be served, until this is dropped.
struct Serving<'a>(&'a LineRelay);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        *self.0.is_at_work.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.ended.notify_one();
    }
}

impl LineRelay {
    /// Lends the line of a client, which is used for nothing else.
    #[must_use]
    pub fn new(client: ServerClient) -> Self {
        client.keep_line();
        Self {
            client,
            is_at_work: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    fn begin(&self) -> Option<Serving<'_>> {
        let is_at_work = self.is_at_work.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut is_at_work, waited) = self
            .ended
            .wait_timeout_while(is_at_work, END_NOTICED_WITHIN, |is_at_work| *is_at_work)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        *is_at_work = true;
        Some(Serving(self))
    }

    /// Serves a process until it ends the connection. `opened` is called once it has shown the
    /// token; until then it may be anybody, who should not be waited for long.
    ///
    /// # Errors
    /// If the connection fails, does not open a line, or the line to the server breaks in the
    /// middle of an answer: the connection is to be closed then.
    pub fn serve(&self, connection: impl Read + Write, opened: impl FnOnce()) -> io::Result<()> {
        let mut serving = None;
        let mut before = WireBytes::default();
        #[allow(clippy::result_large_err, reason = "the library's type")]
        let judge = |request: &Request, mut response: Response| {
            let judged = self.judge(request).and_then(|()| {
                serving = Some(self.begin().ok_or(StatusCode::CONFLICT)?);
                before = self.client.wire_bytes();
                match self.client.prepare_line() {
                    true => Ok(()),
                    false => Err(StatusCode::SERVICE_UNAVAILABLE),
                }
            });
            let protocol = HeaderValue::from_static(PROTOCOL);
            response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
            judged.map(|()| response).map_err(refusal)
        };
        let socket = tungstenite::accept_hdr_with_config(connection, judge, Some(limits()))
            .map_err(|error| io::Error::other(error.to_string()))?;
        opened();
        let mut line = byteback_api::line::Line::new(socket)?;
        loop {
            let call = match line.receive() {
                Ok(Some(call)) => call,
                Ok(None) => return Err(io::ErrorKind::TimedOut.into()),
                Err(LineError::Closed) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let carried = self.client.carry(&call, &mut |answer| {
                let wire = self.client.wire_bytes().since(before);
                line.send(&with_wire_bytes(answer, wire))
            });
            match carried {
                Ok(()) => {}
                Err(NotCarried::NoLine) => return Err(io::ErrorKind::NotConnected.into()),
                Err(NotCarried::Broken(error)) => return Err(error.into()),
            }
        }
    }

    /// Admits a request for a line to this server that shows the same token.
    fn judge(&self, request: &Request) -> Result<(), StatusCode> {
        let headers = request.headers();
        let own: Option<Uri> = self.client.base_url.parse().ok();
        let authority = own.as_ref().and_then(|own| own.authority()).map(|own| own.as_str());
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let target = format!(
            "{}{}",
            own.as_ref().map_or("", |own| own.path().trim_end_matches('/')),
            self.client.ask(Route::Line, &[], &[]).target
        );
        let shown = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        if host != authority || request.uri().path() != target {
            return Err(StatusCode::MISDIRECTED_REQUEST);
        }
        if shown != Some(self.client.authorization().as_bytes()) {
            return Err(StatusCode::UNAUTHORIZED);
        }
        if headers.get(header::SEC_WEBSOCKET_PROTOCOL) != Some(&HeaderValue::from_static(PROTOCOL)) {
            return Err(StatusCode::BAD_REQUEST);
        }
        Ok(())
    }
}

fn refusal(status: StatusCode) -> ErrorResponse {
    let mut refusal = ErrorResponse::new(None);
    *refusal.status_mut() = status;
    refusal
}

/// The message of an answer, with the bytes on the wire in its head, if it has one.
fn with_wire_bytes(answer: LineAnswer<'_>, wire: WireBytes) -> Vec<u8> {
    let told = format!("{},{}", wire.sent, wire.received);
    let head = answer.head.map(|mut head| {
        if let Some(slot) = head.headers.iter_mut().find(|header| header.is_none()) {
            *slot = Some((WIRE_BYTES, &told));
        }
        head
    });
    LineAnswer { head, ..answer }.encode()
}

/// The bytes on the wire that a relay tells of in the head of an answer.
pub(super) fn wire_bytes(head: &AnswerHead<'_>) -> Option<WireBytes> {
    let told = head.headers.iter().map_while(|header| *header);
    let (_, told) = told.filter(|(name, _)| *name == WIRE_BYTES).last()?;
    let (sent, received) = told.split_once(',')?;
    Some(WireBytes {
        sent: sent.parse().ok()?,
        received: received.parse().ok()?,
    })
}
