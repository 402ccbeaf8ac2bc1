//! Lines: connections that stand and carry calls, one after another ([`byteback_api::line`]).
//!
//! A line begins as a request, which is upgraded to a WebSocket. Each call on it then passes the
//! same gate as a request of its own: routes, admission, limits and counts do not know where a call
//! came from. The token is the one that the line was opened with.
//!
//! A line ends when the client goes or its device is revoked, after
//! [`ServerConfig::line_timeout`] without a call, and when the server stops, after the answer to
//! the call at work. A client that goes before its answer has come ends the call, as with a
//! request.
//!
//! Lines take places of members ([`crate::door`]) for long. One device has at most
//! [`LINES_PER_DEVICE_MAX`], so that it cannot take all of them while it does nothing.
//!
//! [`ServerConfig::line_timeout`]: crate::ServerConfig::line_timeout

use crate::call::{Call, Shared};
use crate::connection::Peer;
use crate::problem::{Answer, parameter, refuse};
use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use byteback_api::MEDIA_EVENTS;
use byteback_api::line::{
    AnswerHead, HEADERS_MAX, Line, LineAnswer, LineCall, LineError, Memory, PIECE_LEN, PROTOCOL, piece,
};
use byteback_api::problem::Code;
use byteback_model::DeviceId;
use http_body_util::BodyExt as _;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tower_service::Service as _;

/// Time for which a piece of an answer waits for more, so that a short answer is one message.
const HOLD: Duration = Duration::from_millis(5);

/// Most lines of a device: one for calls and one for each folder that it listens to.
pub(crate) const LINES_PER_DEVICE_MAX: usize = 32;

/// The numbers of open lines, by device; none is 0.
#[derive(Debug, Default)]
pub(crate) struct OpenLines(Mutex<HashMap<DeviceId, usize>>);

/// The place of an open line.
struct LinePlace {
    shared: Arc<Shared>,
    device: DeviceId,
}

impl LinePlace {
    fn take(shared: &Arc<Shared>, device: DeviceId) -> Option<Self> {
        let mut open = shared.open_lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(device).or_default();
        if *count >= LINES_PER_DEVICE_MAX {
            return None;
        }
        *count += 1;
        drop(open);
        Some(Self {
            shared: Arc::clone(shared),
            device,
        })
    }
}

impl Drop for LinePlace {
    fn drop(&mut self) {
        let mut open = self.shared.open_lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.device) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.device);
            }
        }
    }
}

/// The calls that a line can carry, as an extension of the request that opens it.
#[derive(Clone)]
pub(crate) struct Calls(pub(crate) Router);

/// Headers of an answer that say nothing on a line.
const LEFT_OUT: [header::HeaderName; 5] = [
    header::DATE,
    header::CONTENT_LENGTH,
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Opens a line.
pub(crate) async fn line(mut call: Call) -> Answer {
    call.finish_query()?;
    let protocols = call.headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let mut protocols = protocols
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    if !protocols.any(|protocol| protocol.trim() == PROTOCOL) {
        return Err(parameter(format!("the protocol of a line is {PROTOCOL}")));
    }
    let mut request = Request::new(());
    *request.headers_mut() = call.headers.clone();
    let mut response = tungstenite::handshake::server::create_response(&request)
        .map_err(|error| parameter(format!("cannot open a line: {error}")))?
        .map(|()| Body::empty());
    let not_here = || refuse(Code::Internal, "the connection cannot become a line");
    let upgrade = call.extensions.remove::<OnUpgrade>().ok_or_else(not_here)?;
    let Calls(router) = call.extensions.remove::<Calls>().ok_or_else(not_here)?;
    let peer = call.extensions.remove::<ConnectInfo<Peer>>().ok_or_else(not_here)?;
    let permit = Arc::clone(&call.shared.lines)
        .try_acquire_owned()
        .map_err(|_| refuse(Code::Unavailable, "too many lines are open"))?;
    let place = LinePlace::take(&call.shared, call.device)
        .ok_or_else(|| refuse(Code::Unavailable, "this device has too many lines open"))?;
    let stay = call.shared.presence.enter(call.device);
    response
        .headers_mut()
        .insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    // No head of a request follows on this connection.
    let at_work = peer.0.activity.begin();
    let mut shown = HeaderMap::new();
    if let Some(token) = call.headers.get(header::AUTHORIZATION) {
        shown.insert(header::AUTHORIZATION, token.clone());
    }
    tokio::spawn(async move {
        if let Ok(upgraded) = upgrade.await
            && let Ok(line) = Line::of_server(Memory::default())
        {
            let end = LineEnd {
                shared: call.shared,
                router,
                peer,
                shown,
                wire: TokioIo::new(upgraded),
                line,
                next: None,
                outgoing: Vec::new(),
            };
            tokio::select! {
                () = end.serve() => {}
                () = stay.revoked() => {}
            }
        }
        drop((at_work, permit, place));
    });
    Ok(response)
}

/// The server's end of one line.
struct LineEnd {
    shared: Arc<Shared>,
    router: Router,
    peer: ConnectInfo<Peer>,
    /// Headers that every call has.
    shown: HeaderMap,
    wire: TokioIo<Upgraded>,
    line: Line<Memory>,
    /// A call that came before the answer to the one at work had ended.
    next: Option<Vec<u8>>,
    /// Bytes that are to go to the client.
    outgoing: Vec<u8>,
}

impl LineEnd {
    async fn serve(mut self) {
        let mut stopping = self.shared.stopping.clone();
        let timeout = self.shared.config.line_timeout;
        loop {
            let message = tokio::select! {
                biased;
                message = self.receive() => message,
                _ = stopping.wait_for(|is_stopping| *is_stopping) => break,
                () = tokio::time::sleep(timeout) => break,
            };
            let Ok(message) = message else { break };
            match self.answer(&message).await {
                Ok(status) if status != StatusCode::UNAUTHORIZED => {}
                _ => break,
            }
        }
        // The client may be gone.
        let _ = self.wire.shutdown().await;
    }

    async fn receive(&mut self) -> Result<Vec<u8>, LineError> {
        loop {
            let next = self.next.take();
            if let Some(message) = next.map_or_else(|| self.line.receive(), |next| Ok(Some(next)))? {
                return Ok(message);
            }
            self.flush().await?;
            self.hear().await?;
        }
    }

    /// Waits for bytes of the client.
    async fn hear(&mut self) -> Result<(), LineError> {
        let mut buffer = [0; 4096];
        let read = self.wire.read(&mut buffer).await.map_err(LineError::Io)?;
        match buffer.get(..read) {
            Some([]) | None => Err(LineError::Closed),
            Some(bytes) => {
                self.line.stream().feed(bytes);
                Ok(())
            }
        }
    }

    /// Ends when the client goes, or makes more than one call before the answer to this one. Signs
    /// of life are answered. May be dropped at any moment.
    async fn gone(&mut self) -> LineError {
        loop {
            match self.line.receive() {
                Ok(Some(message)) if self.next.is_none() => self.next = Some(message),
                Ok(Some(_)) => return LineError::Broken("calls came before an answer".to_owned()),
                Ok(None) => {
                    if let Err(error) = self.flush().await {
                        return error;
                    }
                    if let Err(error) = self.hear().await {
                        return error;
                    }
                }
                Err(error) => return error,
            }
        }
    }

    /// Sends what is to go to the client. May be dropped at any moment: the rest is kept.
    async fn flush(&mut self) -> Result<(), LineError> {
        self.outgoing.append(&mut self.line.stream().take_outgoing());
        while !self.outgoing.is_empty() {
            let sent = self.wire.write(&self.outgoing).await.map_err(LineError::Io)?;
            if sent == 0 {
                return Err(LineError::Closed);
            }
            self.outgoing.drain(..sent);
        }
        self.wire.flush().await.map_err(LineError::Io)
    }

    /// Sends a piece of an answer, the first one with the head.
    async fn send_piece(
        &mut self,
        head: &mut Option<AnswerHead<'_>>,
        piece: &[u8],
        is_last: bool,
    ) -> Result<(), LineError> {
        let answer = LineAnswer {
            head: head.take(),
            piece,
            is_last,
        };
        self.line.send(&answer.encode())?;
        self.flush().await
    }

    /// Answers the call in a message; returns the status.
    async fn answer(&mut self, message: &[u8]) -> Result<StatusCode, LineError> {
        let request = self.request(message)?;
        let mut router = self.router.clone();
        let response = tokio::select! {
            response = router.call(request) => response,
            error = self.gone() => return Err(error),
        };
        let response = response.unwrap_or_else(|never| match never {});
        let status = response.status();
        self.send_answer(response).await?;
        Ok(status)
    }

    fn request(&self, message: &[u8]) -> Result<Request, LineError> {
        let call = LineCall::decode(message)?;
        let unfit = |error: axum::http::Error| LineError::Broken(error.to_string());
        let mut request = Request::builder().method(call.method.as_str()).uri(call.target);
        for (name, value) in call.headers.iter().map_while(|header| *header) {
            request = request.header(name, value);
        }
        let body = match call.is_unsummed {
            true => piece::summed(call.body)?,
            false => call.body.to_vec(),
        };
        let mut request = request.body(Body::from(body)).map_err(unfit)?;
        request.headers_mut().extend(self.shown.clone());
        request.extensions_mut().insert(self.peer.clone());
        Ok(request)
    }

    async fn send_answer(&mut self, response: Response<Body>) -> Result<(), LineError> {
        let (parts, mut body) = response.into_parts();
        let media = parts.headers.get(header::CONTENT_TYPE);
        let is_of_events = media.is_some_and(|media| media.as_bytes().starts_with(MEDIA_EVENTS.as_bytes()));
        let hold = if is_of_events { Duration::ZERO } else { HOLD };
        let mut head = Some(AnswerHead {
            status: parts.status.as_u16(),
            headers: told(&parts.headers),
        });
        let mut piece = Vec::new();
        loop {
            let frame = tokio::select! {
                biased;
                frame = body.frame() => Some(frame),
                () = tokio::time::sleep(hold), if head.is_some() || !piece.is_empty() => None,
                error = self.gone() => return Err(error),
            };
            let is_last = matches!(frame, Some(None));
            match frame {
                Some(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else { continue };
                    piece.extend_from_slice(&data);
                }
                // A body that breaks off must not look as if it had ended.
                Some(Some(Err(error))) => return Err(LineError::Io(std::io::Error::other(error))),
                Some(None) | None => {
                    self.send_piece(&mut head, &std::mem::take(&mut piece), is_last).await?;
                }
            }
            if is_last {
                return Ok(());
            }
            while piece.len() >= PIECE_LEN {
                let rest = piece.split_off(PIECE_LEN);
                self.send_piece(&mut head, &piece, false).await?;
                piece = rest;
            }
        }
    }
}

/// The headers of an answer that a line carries.
fn told(headers: &HeaderMap) -> [Option<(&str, &str)>; HEADERS_MAX] {
    let mut told = [None; HEADERS_MAX];
    let kept = headers.iter().filter(|(name, _)| !LEFT_OUT.contains(name));
    let kept = kept.filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    for (slot, header) in told.iter_mut().zip(kept) {
        *slot = Some(header);
    }
    told
}
