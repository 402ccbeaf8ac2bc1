//! A line to the server: a connection that stands and carries calls ([`byteback_api::line`]).
//!
//! A client that [keeps a line](ServerClient::keep_line) makes its short calls on it; calls for
//! much, and those that come while the line is at work, are requests of their own. Nothing else
//! knows of it: a call on a line has the answer that its request would have, and fails as that
//! would.
//!
//! A line is opened when a call needs it. If that fails, the call becomes a request, and the next
//! attempt waits: for a little while after a failed connection, longer where something on the way,
//! or an older server, refuses lines. A line that was silent for long may have been forgotten by a
//! router on the way, so it is asked for a sign of life before it is trusted with a call.
//!
//! A client may instead use the line of another process of this machine, through a
//! [relay](super::relay): then that is the way to open one.

use super::network::{BroughtTransport, Network};
use super::progress::PROGRESS_LEN_MIN;
use super::relay;
use super::{Ask, Body, ServerClient, WireBytes};
use crate::error::ServerError;
use byteback_api::line::{
    CALL_BODY_LEN_MAX, HEADERS_MAX, Line, LineAnswer, LineCall, LineError, PROTOCOL, limits, piece,
};
use byteback_api::routes::Route;
use byteback_host::clock::Clock;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tungstenite::client::IntoClientRequest as _;
use tungstenite::handshake::HandshakeError;
use tungstenite::handshake::client::ClientHandshake;
use ureq::http::{self, HeaderValue, Uri, header};
use ureq::unversioned::resolver::Resolver;
use ureq::unversioned::transport::time;
use ureq::unversioned::transport::{ConnectionDetails, Connector, NextTimeout, Transport, TransportAdapter};

/// After this silence a line has to give a sign of life.
const TRUSTED_FOR: Duration = Duration::from_secs(30);

/// Longest wait for it: another line is soon open.
const SIGN_OF_LIFE_WITHIN: Duration = Duration::from_secs(2);

/// Time until the next attempt after a connection failed.
const AGAIN_AFTER_FAILURE: Duration = Duration::from_secs(10);

/// Time until the next attempt after lines were refused.
const AGAIN_AFTER_REFUSAL: Duration = Duration::from_secs(600);

/// Makes connections as the agent makes them for requests.
trait Connects: Send + Sync {
    fn connect(&self, details: &ConnectionDetails<'_>) -> Result<Box<dyn Transport>, ureq::Error>;
}

impl<C: Connector> Connects for C {
    fn connect(&self, details: &ConnectionDetails<'_>) -> Result<Box<dyn Transport>, ureq::Error> {
        let transport = Connector::connect(self, details, None)?;
        Ok(transport.ok_or(ureq::Error::ConnectionFailed)?.boxed())
    }
}

/// The lines of a client: one for calls, and those on which it listens.
pub(super) struct Lines {
    connector: Box<dyn Connects>,
    resolver: Box<dyn Resolver>,
    /// Connections to a process that carries calls on its own line.
    relay: Option<Arc<dyn Network>>,
    state: Arc<Mutex<State>>,
}

/// The state of the line for calls.
#[derive(Default)]
struct State {
    is_wanted: bool,
    /// The line, while it waits for a call.
    free: Option<OpenLine>,
    is_at_work: bool,
    /// No line is opened before this moment of the monotonic clock.
    not_before_ns: u64,
    /// Number of tokens shown so far: lines of an earlier one are closed.
    token: u64,
}

/// A line that is open.
struct OpenLine {
    line: Line<Patient>,
    opened: Moment,
    /// The moment of the last answer; `None`: there was none.
    heard: Option<Moment>,
    /// The bytes that a relay has told of so far; `None`: it leads to the server itself.
    relayed: Option<WireBytes>,
}

impl OpenLine {
    fn new(line: Line<Patient>, opened: Moment, is_relayed: bool) -> Self {
        Self {
            line,
            opened,
            heard: None,
            relayed: is_relayed.then(WireBytes::default),
        }
    }
}

/// A moment by both clocks: while a machine sleeps, only the wall clock goes on.
#[derive(Clone, Copy)]
struct Moment {
    monotonic_ns: u64,
    wall_ns: i64,
}

impl Moment {
    fn now(clock: &dyn Clock) -> Self {
        Self {
            monotonic_ns: clock.monotonic_ns(),
            wall_ns: clock.now_ns(),
        }
    }

    /// The time since `earlier`, by the clock that went further.
    fn since(self, earlier: Self) -> Duration {
        let by_wall = u64::try_from(self.wall_ns.saturating_sub(earlier.wall_ns)).unwrap_or(0);
        Duration::from_nanos(self.monotonic_ns.saturating_sub(earlier.monotonic_ns).max(by_wall))
    }
}

/// Leave to use the line for calls. Given back with the line, once its answer has come whole: what
/// is still on its way would be taken for the next answer, so without one the line is closed.
struct Leave {
    state: Arc<Mutex<State>>,
    token: u64,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Leave {
    fn give_back(self, line: OpenLine) {
        let mut state = locked(&self.state);
        if state.token == self.token {
            state.free = Some(line);
        }
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        locked(&self.state).is_at_work = false;
    }
}

/// The reason for which a call was not carried to its end.
pub(super) enum NotCarried {
    /// The line is at work, or none can be opened.
    NoLine,
    /// The line broke.
    Broken(LineError),
}

/// The reason for which a line could not be opened.
enum NotOpened {
    /// There is no connection to the server, for requests neither.
    Unreachable(ureq::Error),
    Failed,
    Refused,
}

impl Lines {
    pub(super) fn new(connector: impl Connector, resolver: impl Resolver, relay: Option<Arc<dyn Network>>) -> Self {
        Self {
            connector: Box::new(connector),
            resolver: Box::new(resolver),
            relay,
            state: Arc::default(),
        }
    }

    /// Begins anew, with another token.
    pub(super) fn begin_anew(&self) {
        let mut state = locked(&self.state);
        (state.free, state.not_before_ns) = (None, 0);
        state.token = state.token.wrapping_add(1);
    }
}

impl ServerClient {
    /// Keeps a line from now on: a connection that stands, on which short calls cost few bytes. It
    /// is opened when it is needed; where lines are refused, requests go on to be made.
    pub fn keep_line(&self) {
        locked(&self.lines.state).is_wanted = true;
    }

    /// Whether a short call would go on a line that is open now.
    pub(super) fn has_line(&self) -> bool {
        locked(&self.lines.state).free.is_some()
    }

    /// The answer to a call that is made on the line for calls; `None`: it has to be a request.
    pub(super) fn call_on_line(&self, ask: &Ask<'_>) -> Result<Option<http::Response<ureq::Body>>, ServerError> {
        let fits = !matches!(
            ask.route,
            Route::Line | Route::Events | Route::Contents | Route::Bundle | Route::Verify | Route::PartPut
        );
        if !fits || ask.body.bytes().len() > CALL_BODY_LEN_MAX {
            return Ok(None);
        }
        let line = self.line_for_a_call();
        let line = line.map_err(|error| ServerError::of_transport(&ask.name(), error))?;
        let Some((line, leave)) = line else {
            return Ok(None);
        };
        self.call_on(line, Some(leave), ask).map(Some)
    }

    /// The line for calls, opened if need be; `None`: it is at work, or cannot be opened now. An
    /// error: neither can a request be made.
    fn line_for_a_call(&self) -> Result<Option<(OpenLine, Leave)>, ureq::Error> {
        let (leave, kept) = {
            let mut state = locked(&self.lines.state);
            let may_open = self.clock().monotonic_ns() >= state.not_before_ns;
            if !state.is_wanted || state.is_at_work || (state.free.is_none() && !may_open) {
                return Ok(None);
            }
            state.is_at_work = true;
            let leave = Leave {
                state: Arc::clone(&self.lines.state),
                token: state.token,
            };
            (leave, state.free.take())
        };
        let line = match kept.and_then(|line| self.trusted(line)) {
            Some(line) => Some(line),
            None => self.open_line_if_allowed()?,
        };
        Ok(line.map(|line| (line, leave)))
    }

    /// Opens the line for calls, unless it is open; whether it is there for the next call.
    pub(super) fn prepare_line(&self) -> bool {
        match self.line_for_a_call() {
            Ok(Some((line, leave))) => {
                leave.give_back(line);
                true
            }
            Ok(None) | Err(_) => false,
        }
    }

    /// Carries a call in the form of a message on the line for calls, and hands on each message of
    /// its answer; the rest of an answer that is refused is not waited for.
    pub(super) fn carry(
        &self,
        call: &[u8],
        hand_on: &mut dyn FnMut(LineAnswer<'_>) -> Result<(), LineError>,
    ) -> Result<(), NotCarried> {
        let line = self.line_for_a_call().ok().flatten();
        let (mut open, leave) = line.ok_or(NotCarried::NoLine)?;
        // The caller knows what the call is, and goes when it has waited enough.
        let patience = self.options.commit_timeout.max(self.options.idle_timeout);
        open.line.stream().wait_at_most(patience);
        open.line.send(call).map_err(NotCarried::Broken)?;
        let mut is_first = true;
        loop {
            let message = receive(&mut open.line).map_err(NotCarried::Broken)?;
            let answer = LineAnswer::decode(&message, is_first).map_err(NotCarried::Broken)?;
            if answer.is_last {
                open.heard = Some(Moment::now(self.clock()));
                leave.give_back(open);
                return hand_on(answer).map_err(NotCarried::Broken);
            }
            hand_on(answer).map_err(NotCarried::Broken)?;
            is_first = false;
            open.line.stream().wait_at_most(patience);
        }
    }

    /// The answer to a call that is made on a line of its own; `None`: it has to be a request.
    pub(super) fn call_on_own_line(&self, ask: &Ask<'_>) -> Result<Option<http::Response<ureq::Body>>, ServerError> {
        let is_wanted = locked(&self.lines.state).is_wanted;
        let line = match is_wanted {
            true => self.open_line_if_allowed(),
            false => Ok(None),
        };
        match line.map_err(|error| ServerError::of_transport(&ask.name(), error))? {
            Some(line) => self.call_on(line, None, ask).map(Some),
            None => Ok(None),
        }
    }

    /// A line that was kept, if it still works as far as is known.
    fn trusted(&self, mut kept: OpenLine) -> Option<OpenLine> {
        let stream = kept.line.stream();
        if !stream.adapter.get_mut().is_open() {
            return None;
        }
        let now = Moment::now(self.clock());
        if now.since(kept.heard.unwrap_or(kept.opened)) < TRUSTED_FOR {
            return Some(kept);
        }
        stream.wait_at_most(self.options.connect_timeout.min(SIGN_OF_LIFE_WITHIN));
        kept.line.ping().ok()?;
        Some(kept)
    }

    fn open_line_if_allowed(&self) -> Result<Option<OpenLine>, ureq::Error> {
        let now_ns = self.clock().monotonic_ns();
        if now_ns < locked(&self.lines.state).not_before_ns {
            return Ok(None);
        }
        match self.open_line() {
            Ok(line) => return Ok(Some(line)),
            Err(NotOpened::Unreachable(error)) => {
                self.pause_lines(AGAIN_AFTER_FAILURE);
                return Err(error);
            }
            Err(NotOpened::Failed) => self.pause_lines(AGAIN_AFTER_FAILURE),
            Err(NotOpened::Refused) => self.pause_lines(AGAIN_AFTER_REFUSAL),
        }
        Ok(None)
    }

    fn pause_lines(&self, pause: Duration) {
        let pause_ns = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = self.clock().monotonic_ns();
        locked(&self.lines.state).not_before_ns = now_ns.saturating_add(pause_ns);
    }

    fn open_line(&self) -> Result<OpenLine, NotOpened> {
        if let Some(relay) = &self.lines.relay
            && let Ok(stream) = self.connect_to(&**relay)
        {
            match self.open_line_on(stream, true) {
                // It carries none for this client now.
                Err(NotOpened::Refused) => {}
                opened => return opened,
            }
        }
        let stream = self.connect().map_err(NotOpened::Unreachable)?;
        self.open_line_on(stream, false)
    }

    /// Opens a line on a connection, whichever way it leads to the server.
    fn open_line_on(&self, mut stream: Patient, is_relayed: bool) -> Result<OpenLine, NotOpened> {
        let ask = self.ask(Route::Line, &[], &[]);
        let address = format!("{}{}", self.base_url, ask.target);
        let uri: Uri = address.parse().map_err(|_| NotOpened::Refused)?;
        let mut parts = uri.clone().into_parts();
        let scheme = match uri.scheme_str() {
            Some("https") => "wss",
            _ => "ws",
        };
        parts.scheme = scheme.parse().ok();
        let mut request = Uri::from_parts(parts)
            .map_err(|_| NotOpened::Refused)?
            .into_client_request()
            .map_err(|_| NotOpened::Refused)?;
        let headers = request.headers_mut();
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(super::USER_AGENT));
        if let Ok(token) = HeaderValue::from_str(&self.authorization()) {
            headers.insert(header::AUTHORIZATION, token);
        }
        stream.wait_at_most(self.options.connect_timeout);
        let handshake = ClientHandshake::start(stream, request, Some(limits())).map_err(|_| NotOpened::Refused)?;
        let (socket, _) = handshake.handshake().map_err(|error| match error {
            // Silence is a refusal, too: of a proxy that does not know what to do.
            HandshakeError::Failure(tungstenite::Error::Io(error)) => match ureq::Error::from(error) {
                ureq::Error::Timeout(_) => NotOpened::Refused,
                _ => NotOpened::Failed,
            },
            // A proxy whose server is starting.
            HandshakeError::Failure(tungstenite::Error::Http(answer))
                if matches!(answer.status().as_u16(), 502..=504) =>
            {
                NotOpened::Failed
            }
            HandshakeError::Failure(_) | HandshakeError::Interrupted(_) => NotOpened::Refused,
        })?;
        let line = Line::new(socket).map_err(|_| NotOpened::Failed)?;
        Ok(OpenLine::new(line, Moment::now(self.clock()), is_relayed))
    }

    /// A connection to a relay.
    fn connect_to(&self, relay: &dyn Network) -> io::Result<Patient> {
        let transport = BroughtTransport::new(relay.connect()?, self.agent.config());
        Ok(self.patient(transport.boxed()))
    }

    /// A connection to the server, as the agent makes it for a request.
    fn connect(&self) -> Result<Patient, ureq::Error> {
        let uri: Uri = self.base_url.parse().map_err(ureq::http::Error::from)?;
        let config = self.agent.config();
        let timeout = within(self.options.connect_timeout);
        let now = standing_clock();
        let details = ConnectionDetails {
            uri: &uri,
            addrs: self.lines.resolver.resolve(&uri, config, timeout)?,
            config,
            request_level: false,
            resolver: &*self.lines.resolver,
            now: now(),
            timeout,
            current_time: Arc::clone(&now),
            // There is no proxy.
            run_connector: Arc::new(|_| Err(ureq::Error::ConnectionFailed)),
            register_shutdown: Arc::new(|_| Ok(())),
        };
        Ok(self.patient(self.lines.connector.connect(&details)?))
    }

    fn patient(&self, connection: Box<dyn Transport>) -> Patient {
        let adapter = TransportAdapter::new(connection, standing_clock());
        Patient::new(adapter, Arc::clone(&self.options.clock))
    }

    fn call_on(
        &self,
        mut open: OpenLine,
        leave: Option<Leave>,
        ask: &Ask<'_>,
    ) -> Result<http::Response<ureq::Body>, ServerError> {
        let name = ask.name();
        let failed = |error: LineError| match error {
            LineError::Broken(why) => ServerError::protocol(&name, why),
            error => ServerError::of_transport(&name, io::Error::from(error).into()),
        };
        let media = match ask.body {
            Body::Bytes { media, .. } => Some((header::CONTENT_TYPE.as_str(), media)),
            Body::Nothing | Body::BatchPiece(_) => None,
        };
        let given = ask.headers.iter().map(|(name, value)| (*name, value.as_str()));
        let mut headers = [None; HEADERS_MAX];
        for (slot, header) in headers.iter_mut().zip(given.chain(media)) {
            *slot = Some(header);
        }
        let unsummed = match ask.body {
            Body::BatchPiece(bytes) => piece::unsummed(bytes),
            Body::Bytes { .. } | Body::Nothing => None,
        };
        let call = LineCall {
            method: ask.route.method(),
            target: &ask.target,
            headers,
            body: unsummed.as_deref().unwrap_or_else(|| ask.body.bytes()),
            is_unsummed: unsummed.is_some(),
        };
        let is_proven = open.heard.is_some();
        let failed = |error: LineError| {
            // Something on the way lets a line be opened and nothing pass: requests may.
            if !is_proven {
                self.pause_lines(match is_cut(&error) {
                    true => AGAIN_AFTER_FAILURE,
                    false => AGAIN_AFTER_REFUSAL,
                });
            }
            failed(error)
        };
        open.line.stream().wait_at_most(ask.timeout);
        open.line.send(&call.encode()).map_err(failed)?;
        let message = receive(&mut open.line).map_err(failed)?;
        let answer = LineAnswer::decode(&message, true).map_err(failed)?;
        let head = answer
            .head
            .ok_or_else(|| ServerError::protocol(&name, "an answer has no head".to_owned()))?;
        if let Some(before) = &mut open.relayed
            && let Some(relayed) = relay::wire_bytes(&head)
        {
            self.counter.add(relayed.since(*before));
            *before = relayed;
        }
        let mut response = http::Response::builder().status(head.status);
        for (name, value) in head.headers.iter().map_while(|header| *header) {
            response = response.header(name, value);
        }
        let piece = answer.piece.to_vec();
        open.heard = Some(Moment::now(self.clock()));
        let mut body = LineBody {
            line: Some((open, leave)),
            piece,
            taken: 0,
            timeout: ask.timeout,
            clock: Arc::clone(&self.options.clock),
        };
        if answer.is_last {
            body.ended();
        }
        response
            .body(ureq::Body::builder().reader(body))
            .map_err(|error| ServerError::protocol(&name, error.to_string()))
    }
}

/// A clock that stands still: each wait has the whole limit, and [`Patient`] limits their sum.
fn standing_clock() -> Arc<dyn Fn() -> time::Instant + Send + Sync> {
    Arc::new(|| time::Instant::AlreadyHappened)
}

fn within(time_limit: Duration) -> NextTimeout {
    NextTimeout {
        after: time::Duration::Exact(time_limit),
        ..NextTimeout::default()
    }
}

/// Whether the connection ended: it was not silent, and nothing wrong came.
fn is_cut(error: &LineError) -> bool {
    let is_silence = |error: &io::Error| {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        error.kind() == io::ErrorKind::TimedOut || matches!(inner, Some(ureq::Error::Timeout(_)))
    };
    match error {
        LineError::Io(error) => !is_silence(error),
        LineError::Closed => true,
        LineError::Broken(_) => false,
    }
}

fn receive(line: &mut Line<Patient>) -> Result<Vec<u8>, LineError> {
    // The stream blocks.
    line.receive()?
        .ok_or_else(|| LineError::Io(io::ErrorKind::TimedOut.into()))
}

/// A connection whose waits are limited together, and not each for itself: a server that sends a
/// byte now and then, or signs of life, would hold a call for ever.
struct Patient {
    adapter: TransportAdapter,
    clock: Arc<dyn Clock>,
    time_limit: Duration,
    /// When the wait that began last is over, on the monotonic clock.
    until_ns: u64,
    /// Bytes that came since then.
    came: u64,
}

impl Patient {
    fn new(adapter: TransportAdapter, clock: Arc<dyn Clock>) -> Self {
        Self {
            adapter,
            clock,
            time_limit: Duration::ZERO,
            until_ns: u64::MAX,
            came: 0,
        }
    }

    /// From now on, and again after each [`PROGRESS_LEN_MIN`] bytes, waits for `time_limit` at
    /// most.
    fn wait_at_most(&mut self, time_limit: Duration) {
        self.time_limit = time_limit;
        let limit_ns = u64::try_from(time_limit.as_nanos()).unwrap_or(u64::MAX);
        self.until_ns = self.clock.monotonic_ns().saturating_add(limit_ns);
        self.came = 0;
        self.adapter.set_timeout(within(time_limit));
    }
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left_ns = self.until_ns.saturating_sub(self.clock.monotonic_ns());
        if left_ns == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.adapter.set_timeout(within(Duration::from_nanos(left_ns)));
        let came = self.adapter.read(buffer)?;
        self.came = self.came.saturating_add(u64::try_from(came).unwrap_or(u64::MAX));
        if self.came >= PROGRESS_LEN_MIN {
            self.wait_at_most(self.time_limit);
        }
        Ok(came)
    }
}

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.adapter.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.adapter.flush()
    }
}

/// A reader that knows the length of what it reads may go before the end was told. It is on its way
/// then, and worth waiting for a moment: another line costs more.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The body of an answer on a line.
struct LineBody {
    /// The line, until the answer has ended.
    line: Option<(OpenLine, Option<Leave>)>,
    /// The newest piece, and how much of it was taken.
    piece: Vec<u8>,
    taken: usize,
    timeout: Duration,
    clock: Arc<dyn Clock>,
}

impl LineBody {
    /// Nothing is to come any more: the line is free.
    fn ended(&mut self) {
        if let Some((mut open, Some(leave))) = self.line.take() {
            open.heard = Some(Moment::now(&*self.clock));
            leave.give_back(open);
        }
    }
}

impl Drop for LineBody {
    fn drop(&mut self) {
        let is_read = self.taken >= self.piece.len();
        if let Some((open, Some(_))) = &mut self.line
            && is_read
        {
            open.line.stream().wait_at_most(END_TIMEOUT);
            let message = receive(&mut open.line).unwrap_or_default();
            let answer = LineAnswer::decode(&message, false);
            if answer.is_ok_and(|answer| answer.is_last && answer.piece.is_empty()) {
                self.ended();
            }
        }
    }
}

impl Read for LineBody {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut rest = self.piece.get(self.taken..).unwrap_or_default();
            if !rest.is_empty() {
                let read = rest.read(buffer)?;
                self.taken = self.taken.saturating_add(read);
                return Ok(read);
            }
            let Some((open, _)) = &mut self.line else {
                return Ok(0);
            };
            open.line.stream().wait_at_most(self.timeout);
            let message = receive(&mut open.line)?;
            let answer = LineAnswer::decode(&message, false)?;
            (self.piece, self.taken) = (answer.piece.to_vec(), 0);
            if answer.is_last {
                self.ended();
            }
        }
    }
}
