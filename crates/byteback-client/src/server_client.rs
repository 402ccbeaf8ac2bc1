//! The server as the engine sees it: one method per call of the API, typed errors, retries, and a
//! count of the bytes on the socket.
//!
//! Retries: every request that may be sent twice without harm (all of them but invitations) is
//! repeated with growing pauses when the connection fails or the server is busy, a bounded number
//! of times, and never after a refusal. A commit is idempotent by (device, counter), so it may be
//! repeated too; see [`ServerClient::commit`] for an outcome that stays unknown.
//!
//! The server is never trusted: sizes of answers are limited, JSON is parsed into the types of the
//! API, and the callers check the claims in the answers (names, order, cycles). The token appears
//! in no error.
//!
//! The client neither follows redirects (the token would go with them) nor reads proxies from the
//! environment.

mod addresses;
mod calls;
mod counting;
mod damage;
mod devices;
mod events;
mod finding;
mod line;
mod link;
mod many;
mod network;
mod pacing;
mod pinned;
mod progress;
mod relay;
mod together;
mod unix;

use crate::Result;
use crate::error::{ServerError, ServerErrorKind};
use crate::throttle::Throttle;
use addresses::{Addresses, Turn};
use byteback_api::problem::MEDIA_PROBLEM;
use byteback_api::routes::Route;
use byteback_api::{Fingerprint, Problem};
use byteback_host::clock::{Clock, RealClock};
use counting::{CountingConnector, WireCounter};
use line::Lines;
use link::LinkMeter;
use network::NetworkConnector;

use pacing::Pacer;
use pinned::PinnedConnector;
use progress::{AnswerBody, Patience};
use serde::de::DeserializeOwned;
use std::io::Read;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use together::TogetherConnector;
use ureq::http;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};
use ureq::unversioned::transport::{Connector, RustlsConnector};

pub use calls::of_hex;
pub use calls::{ContentReader, TreePlace, VerifyStream};
pub use counting::WireBytes;
pub use devices::join;
pub use events::{Listening, ServerNews};
pub use many::ContentsStream;
pub use network::{Connection, Network};
pub use relay::LineRelay;
pub use unix::UnixConnection;

/// Longest JSON answer that is read. A page holds at most 1000 entries by default; each may carry
/// xattrs.
const JSON_LEN_MAX: u64 = 64 * 1024 * 1024;

/// How to reach a server.
#[derive(Clone)]
pub struct ClientOptions {
    /// Certificates (PEM, one or more), one of which must have signed the server's; without them,
    /// Mozilla's list counts.
    pub ca_pem: Option<Vec<u8>>,
    /// The one certificate that the server must show, whatever its signature.
    pub certificate: Option<Fingerprint>,
    /// Other addresses of the server, `HOST:PORT`: tried in turn when its own address cannot be
    /// connected to.
    pub other_addresses: Vec<String>,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Longest silence of the server in the middle of an exchange.
    pub idle_timeout: Duration,
    /// Longest wait for the answer to a commit, which may have to sync a lot of data.
    pub commit_timeout: Duration,
    /// Most attempts to send a request.
    pub attempts_max: u32,
    /// Most attempts to transfer a piece: the bytes transferred before are worth waiting for a
    /// server that restarts.
    pub transfer_attempts_max: u32,
    /// The pause after the first failure; it doubles each time, up to 32 times.
    pub first_pause: Duration,
    /// Most bytes per second on the socket, both directions together.
    pub bytes_per_second_max: Option<u64>,
    /// A limit that may change, and a pause; replaces `bytes_per_second_max`.
    pub throttle: Option<Arc<Throttle>>,
    /// Source of connections instead of the machine's network, in a simulation.
    pub network: Option<Arc<dyn Network>>,
    /// Connections to a process of this machine that has a [`LineRelay`] to the same server: short
    /// calls are carried on its line. Where it takes none, they are requests.
    pub relay: Option<Arc<dyn Network>>,
    /// Measures the pauses.
    pub clock: Arc<dyn Clock>,
    /// Whether to stop: then nothing is waited for, and nothing tried again.
    pub is_cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// Longest time until a pause ends after a request to stop.
const CANCEL_WITHIN: Duration = Duration::from_millis(100);

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            ca_pem: None,
            certificate: None,
            other_addresses: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            commit_timeout: Duration::from_secs(600),
            attempts_max: 5,
            // With the pauses below: a minute.
            transfer_attempts_max: 13,
            first_pause: Duration::from_millis(250),
            bytes_per_second_max: None,
            throttle: None,
            network: None,
            relay: None,
            clock: Arc::new(RealClock),
            is_cancelled: Arc::new(|| false),
        }
    }
}

impl std::fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientOptions")
            .field("connect_timeout", &self.connect_timeout)
            .field("idle_timeout", &self.idle_timeout)
            .field("attempts_max", &self.attempts_max)
            .field("transfer_attempts_max", &self.transfer_attempts_max)
            .finish_non_exhaustive()
    }
}

/// The name of this client.
const USER_AGENT: &str = concat!("byteback/", env!("CARGO_PKG_VERSION"));

/// A Byteback server, reached with one device's token.
pub struct ServerClient {
    agent: ureq::Agent,
    lines: Lines,
    base_url: String,
    /// The value of the `Authorization` header; empty: no header.
    authorization: RwLock<String>,
    counter: Arc<WireCounter>,
    link: LinkMeter,
    turn: Turn,
    throttle: Option<Arc<Throttle>>,
    options: ClientOptions,
    /// Whether the server is too old for packed pieces.
    refuses_packed: AtomicBool,
    /// Whether it is too old for packed parts.
    refuses_packed_parts: AtomicBool,
    /// Whether the server is too old for streams of contents.
    lacks_contents: AtomicBool,
}

impl std::fmt::Debug for ServerClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerClient")
            .field("base_url", &self.base_url)
            .finish_non_exhaustive()
    }
}

/// The body of a request.
enum Body<'a> {
    Nothing,
    Bytes {
        media: &'a str,
        bytes: &'a [u8],
    },
    /// The last piece of a batch, whose head is as short as can be.
    BatchPiece(&'a [u8]),
}

impl Body<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Nothing => &[],
            Self::Bytes { bytes, .. } | Self::BatchPiece(bytes) => bytes,
        }
    }
}

/// A request, ready to be sent as often as needed.
struct Ask<'a> {
    /// Address of the server, for messages.
    base_url: &'a str,
    route: Route,
    method: http::Method,
    /// Path and query, encoded.
    target: String,
    /// The path without the query, for messages.
    path_len: usize,
    body: Body<'a>,
    headers: Vec<(&'static str, String)>,
    timeout: Duration,
}

impl Ask<'_> {
    fn name(&self) -> String {
        format!(
            "{} {}{}",
            self.method,
            self.base_url,
            self.target.get(..self.path_len).unwrap_or_default()
        )
    }
}

impl ServerClient {
    /// A client of the server at `base_url` (`http://` or `https://`, host, optional port and
    /// path). Does not connect.
    ///
    /// # Errors
    /// [`ServerErrorKind::Refused`] for an invalid address; [`ServerErrorKind::Tls`] for
    /// certificates that cannot be read.
    pub fn new(base_url: &str, token: &str, options: ClientOptions) -> Result<Self, ServerError> {
        let base_url = base_url.trim_end_matches('/').to_owned();
        let refused = |message: &str, next: &str| ServerError {
            kind: ServerErrorKind::Refused,
            request: base_url.clone(),
            message: message.to_owned(),
            next: next.to_owned(),
            problem: None,
            source: None,
        };
        let uri: http::Uri = base_url
            .parse()
            .map_err(|_| refused("this is not an address", "Write it as https://HOST:PORT."))?;
        if uri.host().is_none() || !matches!(uri.scheme_str(), Some("http" | "https")) || uri.query().is_some() {
            return Err(refused(
                "this is not the address of a server",
                "Write it as https://HOST:PORT or http://HOST:PORT.",
            ));
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(refused(
                "the token contains invalid characters",
                "Copy the token again, without spaces or line breaks.",
            ));
        }
        let mut tls = TlsConfig::builder();
        if let Some(pem) = &options.ca_pem {
            tls = tls.root_certs(RootCerts::from(certificates(&base_url, pem)?));
        }
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            // Requests that name the client do so themselves: a request with a configuration of its
            // own would get no connection of the pool.
            .user_agent("")
            .accept_encoding("")
            // The same as the usual "*/*", which is 13 bytes longer.
            .accept("")
            .timeout_connect(Some(options.connect_timeout))
            .tls_config(tls.build())
            .max_response_header_size(64 * 1024)
            .build();
        let turn = Turn::default();
        let counter = Arc::new(WireCounter::default());
        let throttle = options.throttle.clone().or_else(|| {
            let rate = options.bytes_per_second_max?;
            Some(Arc::new(Throttle::fixed(rate.max(1))))
        });
        let pacer = throttle.clone().map(|throttle| {
            Arc::new(Pacer::new(
                throttle,
                Arc::clone(&options.clock),
                Arc::clone(&options.is_cancelled),
            ))
        });
        let connector = || {
            ().chain(NetworkConnector::new(options.network.clone()))
                .chain(CountingConnector::new(Arc::clone(&counter), pacer.clone()))
                .chain(PinnedConnector::new(options.certificate))
                .chain(RustlsConnector::default())
        };
        let addresses = || Addresses::new(&options.other_addresses, turn.clone());
        Ok(Self {
            agent: ureq::Agent::with_parts(config, connector().chain(TogetherConnector), addresses()),
            lines: Lines::new(connector(), addresses(), options.relay.clone()),
            base_url,
            authorization: RwLock::new(format!("Bearer {token}")),
            counter,
            link: LinkMeter::default(),
            turn,
            throttle,
            options,
            refuses_packed: AtomicBool::new(false),
            refuses_packed_parts: AtomicBool::new(false),
            lacks_contents: AtomicBool::new(false),
        })
    }

    /// Uses this token for all requests from now on.
    pub fn show_token(&self, token: &str) {
        *self.authorization.write().unwrap_or_else(PoisonError::into_inner) = format!("Bearer {token}");
        self.lines.begin_anew();
    }

    /// The value of the header that shows the token; empty: there is to be none.
    fn authorization(&self) -> String {
        self.authorization
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn show_nothing(&self) {
        self.authorization
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// The address that the client was made with, without a slash at the end.
    #[must_use]
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Bytes on the socket since the client was made, including headers and TLS records.
    #[must_use]
    pub fn wire_bytes(&self) -> WireBytes {
        self.counter.read()
    }

    /// Bytes per second that the server took so far, if enough was sent to tell.
    pub fn link_bytes_per_s(&self) -> Option<u64> {
        self.link.bytes_per_s()
    }

    /// Time from a request to its answer, in nanoseconds, if one was answered.
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.link.round_trip_ns()
    }

    /// The limit in bytes per second now; none during a pause, as the limit after it is unknown.
    pub fn bytes_per_second_max(&self) -> Option<u64> {
        let rate = self.throttle.as_ref()?.bytes_per_second_max();
        rate.filter(|rate| *rate > 0)
    }

    /// The clock by which pauses are measured ([`ClientOptions::clock`]).
    pub fn clock(&self) -> &dyn Clock {
        self.options.clock.as_ref()
    }

    fn ask<'a>(&'a self, route: Route, parameters: &[&str], query: &[(&str, String)]) -> Ask<'a> {
        let mut target = String::new();
        let mut parameters = parameters.iter();
        for segment in route.path().split('/').skip(1) {
            target.push('/');
            if segment.starts_with('{') {
                target.push_str(&byteback_api::query::encode(
                    parameters.next().copied().unwrap_or_default().as_bytes(),
                ));
            } else {
                target.push_str(segment);
            }
        }
        let path_len = target.len();
        for (index, (name, value)) in query.iter().enumerate() {
            target.push(if index == 0 { '?' } else { '&' });
            target.push_str(name);
            target.push('=');
            target.push_str(value);
        }
        let method = match route.method() {
            byteback_api::routes::Method::Get => http::Method::GET,
            byteback_api::routes::Method::Put => http::Method::PUT,
            byteback_api::routes::Method::Post => http::Method::POST,
            byteback_api::routes::Method::Delete => http::Method::DELETE,
        };
        Ask {
            base_url: &self.base_url,
            route,
            method,
            target,
            path_len,
            body: Body::Nothing,
            headers: Vec::new(),
            timeout: self.options.idle_timeout,
        }
    }

    /// Sends a request until it is answered, or attempts run out; a refusal is an error.
    fn send(&self, ask: &Ask<'_>) -> Result<http::Response<ureq::Body>, ServerError> {
        persist(self.pauses(), &|_| true, || self.send_once(ask))
    }

    fn send_once(&self, ask: &Ask<'_>) -> Result<http::Response<ureq::Body>, ServerError> {
        let mut others = self.options.other_addresses.len();
        loop {
            match self.send_to_one(ask) {
                Err(error) if others > 0 && error.is_of_another_server() => {
                    others -= 1;
                    self.turn.pass_on();
                }
                done => return done,
            }
        }
    }

    fn send_to_one(&self, ask: &Ask<'_>) -> Result<http::Response<ureq::Body>, ServerError> {
        match self.call_on_line(ask)? {
            Some(response) => self.judge(ask, response),
            None => self.request(ask),
        }
    }

    /// Makes a request of its own.
    fn request(&self, ask: &Ask<'_>) -> Result<http::Response<ureq::Body>, ServerError> {
        let name = ask.name();
        let uri = format!("{}{}", self.base_url, ask.target);
        let mut request = http::Request::builder().method(ask.method.clone()).uri(uri);
        let authorization = self.authorization();
        if !authorization.is_empty() {
            request = request.header(http::header::AUTHORIZATION, authorization);
        }
        for (header, value) in &ask.headers {
            request = request.header(*header, value);
        }
        if !matches!(ask.body, Body::BatchPiece(_)) {
            request = request.header(http::header::USER_AGENT, USER_AGENT);
        }
        if let Body::Bytes { media, .. } = ask.body {
            request = request.header(http::header::CONTENT_TYPE, media);
        }
        let failed = |error: ureq::Error| ServerError::of_transport(&name, error);
        let response = if matches!(ask.body, Body::Nothing) && ask.method == http::Method::GET {
            let request = request.body(()).map_err(|error| failed(error.into()))?;
            self.agent.run(self.limit_silence(request, ask))
        } else {
            let request = request.body(ask.body.bytes()).map_err(|error| failed(error.into()))?;
            self.agent.run(self.limit_silence(request, ask))
        };
        self.judge(ask, response.map_err(failed)?)
    }

    /// The answer, with its time limit, if it is no refusal.
    fn judge(
        &self,
        ask: &Ask<'_>,
        mut response: http::Response<ureq::Body>,
    ) -> Result<http::Response<ureq::Body>, ServerError> {
        response.extensions_mut().insert(Patience {
            clock: Arc::clone(&self.options.clock),
            timeout: ask.timeout,
        });
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refusal(&ask.name(), response))
    }

    fn limit_silence<S: ureq::AsSendBody>(&self, request: http::Request<S>, ask: &Ask<'_>) -> http::Request<S> {
        let timeout = Some(ask.timeout);
        self.agent
            .configure_request(request)
            .timeout_per_read(timeout)
            .timeout_per_write(timeout)
            .timeout_recv_response(timeout)
            .build()
    }

    /// Sends a request and reads its answer; the body may break off like the head: both are
    /// repeated as one.
    fn json<T: DeserializeOwned>(&self, ask: &Ask<'_>) -> Result<T, ServerError> {
        persist(self.pauses(), &|_| true, || self.send_for_json(ask))
    }

    fn send_for_json<T: DeserializeOwned>(&self, ask: &Ask<'_>) -> Result<T, ServerError> {
        let started_ns = self.clock().monotonic_ns();
        let response = self.send_once(ask)?;
        if matches!(ask.body, Body::Nothing) {
            self.link
                .answered(self.clock().monotonic_ns().saturating_sub(started_ns));
        }
        read_json(&ask.name(), response)
    }

    fn pauses(&self) -> Pauses<'_> {
        self.pauses_of(self.options.attempts_max)
    }

    /// For a stream that breaks while the server answers: stored bytes may also be damaged there,
    /// which waiting does not mend.
    pub fn stream_pauses(&self) -> Pauses<'_> {
        self.pauses()
    }

    /// For a piece of a transfer.
    pub fn transfer_pauses(&self) -> Pauses<'_> {
        self.pauses_of(self.options.transfer_attempts_max)
    }

    fn pauses_of(&self, attempts_max: u32) -> Pauses<'_> {
        Pauses {
            left: attempts_max.saturating_sub(1),
            pause: self.options.first_pause,
            longest: self.options.first_pause.saturating_mul(32),
            clock: self.options.clock.as_ref(),
            is_cancelled: self.options.is_cancelled.as_ref(),
        }
    }
}

/// Called with each transient failure; returns whether to go on trying.
pub type GoOn<'a> = &'a dyn Fn(&ServerError) -> bool;

/// Tries again while the failure is transient and attempts are left.
fn persist<T>(
    mut pauses: Pauses<'_>,
    go_on: GoOn<'_>,
    mut attempt: impl FnMut() -> Result<T, ServerError>,
) -> Result<T, ServerError> {
    loop {
        match attempt() {
            Err(error) if error.kind.is_transient() && go_on(&error) && pauses.rest() => {}
            done => return done,
        }
    }
}

/// The pauses between the attempts of one request.
pub struct Pauses<'a> {
    left: u32,
    pause: Duration,
    longest: Duration,
    clock: &'a dyn Clock,
    is_cancelled: &'a (dyn Fn() -> bool + Send + Sync),
}

impl Pauses<'_> {
    /// Waits before the next attempt; false when there is to be none.
    pub fn rest(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let mut rest = self.pause;
        while !rest.is_zero() {
            if (self.is_cancelled)() {
                return false;
            }
            let nap = rest.min(CANCEL_WITHIN);
            self.clock.sleep(nap);
            rest = rest.saturating_sub(nap);
        }
        self.pause = self.pause.saturating_mul(2).min(self.longest);
        true
    }
}

/// The error that an answer stands for.
fn refusal(name: &str, response: http::Response<ureq::Body>) -> ServerError {
    let status = response.status().as_u16();
    let is_problem = response
        .headers()
        .get(http::header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with(MEDIA_PROBLEM));
    if !is_problem {
        return ServerError::of_status(name, status);
    }
    match read_limited(name, response, 1 << 20).map(|bytes| serde_json::from_slice::<Problem>(&bytes)) {
        Ok(Ok(problem)) => ServerError::of_problem(name, status, problem),
        _ => ServerError::of_status(name, status),
    }
}

fn read_limited(name: &str, response: http::Response<ureq::Body>, limit: u64) -> Result<Vec<u8>, ServerError> {
    let mut bytes = Vec::new();
    AnswerBody::of(response)
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| ServerError::of_transport(name, error.into()))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit {
        return Err(ServerError::protocol(
            name,
            format!("the answer is longer than {limit} bytes"),
        ));
    }
    Ok(bytes)
}

fn read_json<T: DeserializeOwned>(name: &str, response: http::Response<ureq::Body>) -> Result<T, ServerError> {
    let bytes = read_limited(name, response, JSON_LEN_MAX)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| ServerError::protocol(name, format!("cannot decode the answer: {error}")))
}

fn certificates(base_url: &str, pem: &[u8]) -> Result<Vec<Certificate<'static>>, ServerError> {
    let failed = |message: String| ServerError {
        kind: ServerErrorKind::Tls,
        request: base_url.to_owned(),
        message,
        next: "Give a file with one or more certificates in PEM format.".to_owned(),
        problem: None,
        source: None,
    };
    let mut certificates = Vec::new();
    for item in ureq::tls::parse_pem(pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => certificates.push(certificate),
            Ok(_) => {}
            Err(error) => return Err(failed(format!("cannot read the certificates: {error}"))),
        }
    }
    if certificates.is_empty() {
        return Err(failed("the given text contains no certificate".to_owned()));
    }
    Ok(certificates)
}
