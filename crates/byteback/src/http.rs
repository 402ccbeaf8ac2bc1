//! HTTP for sources of checksums that are reached by it.

use std::io::{self, Read};
use std::time::Duration;

use byteback_checksums::http::{Answer, Http, Method, Request};
use ureq::tls::{PemItem, RootCerts, TlsConfig};

/// How long a connection, and the first byte of an answer, may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks over the machine's network.
pub(crate) struct Network {
    agent: ureq::Agent,
}

impl Network {
    /// With the certificates (PEM) that may sign servers', instead of the public ones.
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
            true => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the answer is longer than it may be",
            )),
            false => Ok(answer),
        }
    }
}

fn into_io(error: ureq::Error) -> io::Error {
    match error {
        ureq::Error::Io(error) => error,
        error => io::Error::other(error),
    }
}
