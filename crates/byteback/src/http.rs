//! The network access of remote checksum sources: HTTP and plain TCP connections.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use byteback_sources::http::{Answer, Http, Method, Request};
use byteback_sources::tcp::{Connect, Stream};
use ureq::tls::{PemItem, RootCerts, TlsConfig};

/// Timeout of a connection, and of the first byte of an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Timeout of the body of an answer, which has a few MiB, and of a whole conversation.
const PATIENCE_FOR_ALL: Duration = Duration::from_secs(300);

/// Requests over the machine's network.
pub(crate) struct Network {
    agent: ureq::Agent,
}

impl Network {
    /// Trusts the issuers in `ca_pem` (PEM), if given, instead of the public ones.
    pub(crate) fn new(ca_pem: Option<&[u8]>) -> Self {
        let mut tls = TlsConfig::builder();
        if let Some(pem) = ca_pem {
            let certificates = ureq::tls::parse_pem(pem).filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            });
            tls = tls.root_certs(RootCerts::from(certificates.collect::<Vec<_>>()));
        }
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .accept_encoding("")
            .timeout_connect(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE))
            .timeout_recv_body(Some(PATIENCE_FOR_ALL))
            .tls_config(tls.build())
            .max_response_header_size(64 * 1024)
            .build();
        Self {
            agent: ureq::Agent::new_with_config(config),
        }
    }
}

impl Http for Network {
    fn ask(&self, request: &Request) -> io::Result<Answer> {
        check_port(&request.url)?;
        let mut asked = match request.method {
            Method::Head => self.agent.head(&request.url),
            Method::Get => self.agent.get(&request.url),
        };
        for (name, value) in &request.headers {
            asked = asked.header(*name, value);
        }
        let mut response = asked.call().map_err(into_io)?;
        let headers = response.headers().iter().filter_map(|(name, value)| {
            let value = value.to_str().ok()?;
            Some((name.as_str().to_owned(), value.to_owned()))
        });
        let mut answer = Answer {
            status: response.status().as_u16(),
            headers: headers.collect(),
            body: Vec::new(),
        };
        let mut body = response
            .body_mut()
            .as_reader()
            .take(request.body_len_max.saturating_add(1));
        if request.method == Method::Get {
            body.read_to_end(&mut answer.body)?;
        }
        match answer.body.len() as u64 > request.body_len_max {
            true => Err(io::Error::new(io::ErrorKind::InvalidData, "the response is too long")),
            false => Ok(answer),
        }
    }
}

/// Refuses an invalid port: it would be taken for the default port, where another server may
/// answer.
fn check_port(url: &str) -> io::Result<()> {
    let authority = url.split('/').nth(2).unwrap_or_default();
    // Colons within an IPv6 address are in brackets.
    let behind = authority.rsplit(']').next().unwrap_or_default();
    match behind.split_once(':').map(|(_, port)| port) {
        Some(port) if !port.parse().is_ok_and(|number: u16| number > 0) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("'{port}' is not a valid port"),
        )),
        _ => Ok(()),
    }
}

fn into_io(error: ureq::Error) -> io::Error {
    match error {
        ureq::Error::Io(error) => error,
        error => io::Error::other(error),
    }
}

impl Connect for Network {
    fn connect(&self, address: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        let until = Instant::now() + PATIENCE_FOR_ALL;
        Ok(Box::new(Limited { stream, until }))
    }
}

/// A connection with a deadline that holds whatever the other side does.
struct Limited {
    stream: TcpStream,
    until: Instant,
}

impl Limited {
    /// Timeout of the next call.
    fn rest(&self) -> io::Result<Option<Duration>> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            rest => Ok(Some(rest.min(PATIENCE))),
        }
    }
}

/// A socket reports a timeout as `WouldBlock`.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.rest()?)?;
        self.stream.read(buffer).map_err(timed_out)
    }
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.rest()?)?;
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
