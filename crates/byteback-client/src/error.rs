//! Failures at the other end of the network, sorted by what a person or a program can do about
//! them.
//!
//! A [`ServerError`] says what was asked, what was answered and what to do next; its
//! [`ServerErrorKind`] decides about retries and, in the binary, about the exit code.

use byteback_api::Fingerprint;
use byteback_api::Problem;
use byteback_api::problem::Code;
use std::io;

/// A server showed another certificate than the one by which it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it shows another certificate (SHA-256 {shown}) than the one that this machine knows ({expected})")]
pub struct CertificateChanged {
    /// The expected certificate.
    pub expected: Fingerprint,
    /// The certificate that the server showed.
    pub shown: Fingerprint,
}

/// An answer that comes too slowly.
#[derive(Debug, thiserror::Error)]
#[error("only {bytes} bytes of the answer came in {waited_s} s")]
pub(crate) struct TooSlow {
    pub(crate) bytes: u64,
    pub(crate) waited_s: u64,
}

/// The kind of a failure at the server or on the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerErrorKind {
    /// The folder, snapshot, path or version does not exist there.
    NotFound,
    /// The server does not accept the token.
    WrongToken,
    /// The device lacks the right that the request needs.
    Forbidden,
    /// Another client changed the same files first.
    Conflict,
    /// The batch names a predecessor that is not the device's newest batch there.
    OutOfOrder,
    /// The content that a batch makes of a file does not match its proof; nothing was applied.
    ContentMismatch,
    /// Staged parts have expired or were lost: the batch has to be sent anew.
    PartsMissing,
    /// The server's disk is full.
    Full,
    /// A body or batch exceeds a limit of the server.
    TooLarge,
    /// No connection, a connection that broke, or a server that does not answer in time.
    Unreachable,
    /// The server is stopping or overloaded.
    Busy,
    /// Stored bytes are damaged.
    Damaged,
    /// The server refuses the request: the two ends do not agree.
    Refused,
    /// The server failed inside.
    Internal,
    /// This program does not understand the answer, or the answer breaks the rules of the API.
    Protocol,
    /// The certificate or the TLS settings do not fit.
    Tls,
}

impl ServerErrorKind {
    /// Whether the same request may succeed a little later.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Unreachable | Self::Busy)
    }

    fn of(code: Code, status: u16) -> Self {
        match code {
            Code::Unauthorized
            | Code::DeviceRevoked
            | Code::JoinTokenInvalid
            | Code::JoinTokenUsed
            | Code::JoinTokenExpired
            | Code::JoinTokenWithdrawn => Self::WrongToken,
            Code::Forbidden => Self::Forbidden,
            Code::RouteNotFound | Code::MethodNotAllowed => Self::Protocol,
            Code::DeviceNotFound
            | Code::InvitationNotFound
            | Code::FolderNotFound
            | Code::SnapshotNotFound
            | Code::NodeNotFound => Self::NotFound,
            Code::TlsRequired => Self::Tls,
            Code::InvalidParameter | Code::InvalidBody | Code::InvalidBatch | Code::RangeNotSatisfiable => {
                Self::Refused
            }
            Code::Conflict => Self::Conflict,
            Code::OutOfOrder => Self::OutOfOrder,
            Code::ContentMismatch => Self::ContentMismatch,
            Code::PartsMissing => Self::PartsMissing,
            Code::BodyTooLarge | Code::BatchTooLarge => Self::TooLarge,
            Code::RequestTimeout => Self::Unreachable,
            Code::Unavailable => Self::Busy,
            Code::StorageFull => Self::Full,
            Code::StorageDamaged => Self::Damaged,
            Code::Internal => Self::Internal,
            Code::Unknown => Self::of_status(status),
        }
    }

    fn of_status(status: u16) -> Self {
        match status {
            401 | 403 => Self::WrongToken,
            404 | 410 => Self::NotFound,
            408 => Self::Unreachable,
            409 => Self::Conflict,
            413 => Self::TooLarge,
            502..=504 => Self::Busy,
            507 => Self::Full,
            500..=599 => Self::Internal,
            _ => Self::Refused,
        }
    }
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
#[error("{request}: {message}")]
pub struct ServerError {
    /// The kind of failure.
    pub kind: ServerErrorKind,
    /// The request: method and address without the query.
    pub request: String,
    /// The failure in words.
    pub message: String,
    /// The next step for the user.
    pub next: String,
    /// The server's problem document, if it sent one.
    pub problem: Option<Box<Problem>>,
    /// The error below.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ServerError {
    /// The server that was asked, `https://HOST:PORT`.
    #[must_use]
    pub fn server(&self) -> &str {
        let url = self
            .request
            .rsplit_once(' ')
            .map_or(self.request.as_str(), |(_, url)| url);
        let host_at = url.find("://").map_or(0, |at| at + 3);
        let host_end = url.get(host_at..).and_then(|rest| rest.find('/'));
        host_end.and_then(|end| url.get(..host_at + end)).unwrap_or(url)
    }

    /// Whether the server says that it has no such call: it is older.
    #[must_use]
    pub fn is_unknown_call(&self) -> bool {
        let code = self.problem.as_ref().map(|problem| problem.code);
        matches!(code, Some(Code::RouteNotFound | Code::MethodNotAllowed))
    }

    /// A sentence for people: the server is away, and why.
    #[must_use]
    pub fn away_in_words(&self) -> String {
        match self.kind {
            ServerErrorKind::Busy => format!(
                "the server at {} is not taking requests now ({})",
                self.server(),
                self.message
            ),
            _ => format!("the server at {} cannot be reached ({})", self.server(), self.message),
        }
    }

    /// The answer to `request` breaks the rules of the API, as `message` says.
    pub fn protocol(request: &str, message: impl Into<String>) -> Self {
        Self {
            kind: ServerErrorKind::Protocol,
            request: request.to_owned(),
            message: message.into(),
            next: "Check that the address belongs to a Byteback server, and that client and server have the same \
                   version."
                .to_owned(),
            problem: None,
            source: None,
        }
    }

    pub(crate) fn of_problem(request: &str, status: u16, problem: Problem) -> Self {
        Self {
            kind: ServerErrorKind::of(problem.code, status),
            request: request.to_owned(),
            message: problem.to_string(),
            next: problem.next.clone(),
            problem: Some(Box::new(problem)),
            source: None,
        }
    }

    /// Whether a different server answered at the address; it was sent nothing.
    pub(crate) fn is_of_another_server(&self) -> bool {
        let error: Option<&ureq::Error> = self.source.as_ref().and_then(|source| source.downcast_ref());
        match error {
            Some(ureq::Error::Other(other)) => other.is::<CertificateChanged>(),
            Some(error) => speaks_no_tls(error),
            None => false,
        }
    }

    /// Whether an established connection broke.
    pub(crate) fn is_broken_off(&self) -> bool {
        let error = self.source.as_ref().and_then(|source| source.downcast_ref());
        matches!(error, Some(ureq::Error::Io(io)) if !matches!(
            io.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::TimedOut
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
        ))
    }

    /// An error status without a problem document: something other than a Byteback server may have
    /// answered.
    pub(crate) fn of_status(request: &str, status: u16) -> Self {
        Self {
            kind: ServerErrorKind::of_status(status),
            request: request.to_owned(),
            message: format!("the answer was HTTP status {status} without an explanation"),
            next: "Check that the address belongs to a Byteback server and that no proxy is in between.".to_owned(),
            problem: None,
            source: None,
        }
    }

    pub(crate) fn of_transport(request: &str, error: ureq::Error) -> Self {
        let (kind, next) = match &error {
            ureq::Error::Other(other) if other.is::<CertificateChanged>() => (
                ServerErrorKind::Tls,
                "If the server was set up from scratch, join it again with a new code (byteback invite). If not, the \
                 connection may be intercepted; nothing was sent.",
            ),
            _ if speaks_no_tls(&error) => (
                ServerErrorKind::Tls,
                "If the server was started with --plain, write http:// instead of https://.",
            ),
            ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_) | ureq::Error::TlsRequired => (
                ServerErrorKind::Tls,
                "Check the server's certificate, or name the certificate that signed it in the configuration.",
            ),
            ureq::Error::Io(io) if is_tls(io) => (
                ServerErrorKind::Tls,
                "Check the server's certificate, or name the certificate that signed it in the configuration.",
            ),
            ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::RequireHttpsOnly(_) => (
                ServerErrorKind::Refused,
                "Check the server's address in the configuration.",
            ),
            ureq::Error::Protocol(_) | ureq::Error::LargeResponseHeader(..) => (
                ServerErrorKind::Protocol,
                "Check that the address belongs to a Byteback server.",
            ),
            ureq::Error::Io(io) if io.get_ref().is_some_and(|inner| inner.is::<TooSlow>()) => (
                ServerErrorKind::Unreachable,
                "The connection or the server is too slow. Check the network and the server's load, then try again: \
                 the transfer resumes where it can.",
            ),
            _ => (
                ServerErrorKind::Unreachable,
                "Check that the server is running and that the network reaches it, then try again.",
            ),
        };
        Self {
            kind,
            request: request.to_owned(),
            message: match &error {
                // Without the name of the layer that reported it.
                ureq::Error::Other(other) => other.to_string(),
                error if speaks_no_tls(error) => "the other end does not speak TLS".to_owned(),
                ureq::Error::Io(io) => in_words(io),
                ureq::Error::Timeout(ureq::Timeout::Resolve) => "looking up its name timed out".to_owned(),
                ureq::Error::Timeout(ureq::Timeout::SendBody) => "sending the request timed out".to_owned(),
                ureq::Error::Timeout(_) => "it does not answer".to_owned(),
                error => error.to_string(),
            },
            next: next.to_owned(),
            problem: None,
            source: Some(Box::new(error)),
        }
    }
}

/// An I/O error without the system's number, as the rest of a sentence.
fn in_words(error: &io::Error) -> String {
    let text = error.to_string();
    let text = match text.rsplit_once(" (os error ") {
        Some((text, number)) if number.ends_with(')') => text,
        _ => &text,
    };
    let mut letters = text.chars();
    match letters.next() {
        // An abbreviation stays as it is.
        Some(first) if !letters.clone().next().is_some_and(char::is_uppercase) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}

/// Whether the peer does not speak TLS.
fn speaks_no_tls(error: &ureq::Error) -> bool {
    let inner = match error {
        ureq::Error::Rustls(inner) => Some(inner),
        ureq::Error::Io(io) => io.get_ref().and_then(|inner| inner.downcast_ref()),
        _ => None,
    };
    matches!(inner, Some(rustls::Error::InvalidMessage(_)))
}

/// Whether an I/O error wraps one of TLS: a wrong certificate does not become right by trying
/// again.
fn is_tls(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}
