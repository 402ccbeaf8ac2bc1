//! TLS: the server's certificate, and connections that use it.
//!
//! A server makes its certificate itself ([`Identity::make`]) and is known by its SHA-256, so
//! names, dates and signatures do not matter: it is valid from 1975 to 4096, and a small device
//! whose clock starts in 1970 need not ask for the time first. The names in it are for other
//! programs (`curl --cacert`). A certificate that an authority signed is used in the same way.
//!
//! The handshake is part of the connection's first read, so that a slow client holds up only
//! itself, and the head timeout covers it. A client that speaks plain HTTP to a TLS port is
//! recognised by its first byte and gets an answer in plain HTTP that says so.
//!
//! Out of scope: keeping files. The program that starts a server does that.

use crate::connection::CountingStream;
use byteback_api::Fingerprint;
use sha2::{Digest as _, Sha256};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::rustls::ServerConfig as TlsConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// The first byte of a TLS connection: a handshake record.
const HANDSHAKE: u8 = 0x16;

/// Errors of making or using a certificate.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// There is no certificate, or no key.
    #[error("it contains no {0} in PEM format")]
    Missing(&'static str),
    /// A part of it is broken.
    #[error("it cannot be read: {0}")]
    Pem(String),
    /// Certificate and key do not belong together, or are of an unknown kind.
    #[error("cannot use the certificate and key: {0}")]
    Unusable(#[source] tokio_rustls::rustls::Error),
    /// No certificate could be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[source] rcgen::Error),
}

/// A certificate with its key, ready to serve.
#[derive(Clone)]
pub struct Identity {
    config: Arc<TlsConfig>,
    fingerprint: Fingerprint,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// A new key with a certificate for these names and IP addresses, both in PEM format in one
    /// text, which is a secret.
    ///
    /// # Errors
    /// A name cannot be in a certificate; there is no randomness.
    pub fn make(names: &[String]) -> Result<String, IdentityError> {
        let key = rcgen::KeyPair::generate().map_err(IdentityError::Make)?;
        let mut params = rcgen::CertificateParams::new(names).map_err(IdentityError::Make)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "Byteback server");
        let certificate = params.self_signed(&key).map_err(IdentityError::Make)?;
        Ok(format!("{}{}", key.serialize_pem(), certificate.pem()))
    }

    /// Reads the certificate (the server's own first, then those between it and the root) and its
    /// key, in PEM format in one text.
    ///
    /// # Errors
    /// A part is missing, broken or of an unknown kind, or they do not belong together.
    pub fn from_pem(pem: &[u8]) -> Result<Self, IdentityError> {
        let broken = |error: tokio_rustls::rustls::pki_types::pem::Error| IdentityError::Pem(error.to_string());
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .map_err(broken)?;
        let first = certificates.first().ok_or(IdentityError::Missing("certificate"))?;
        let fingerprint = Fingerprint(Sha256::digest(first).into());
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
            tokio_rustls::rustls::pki_types::pem::Error::NoItemsFound => IdentityError::Missing("key"),
            error => broken(error),
        })?;
        let mut config = TlsConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(IdentityError::Unusable)?
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .map_err(IdentityError::Unusable)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            config: Arc::new(config),
            fingerprint,
        })
    }

    /// The SHA-256 of the certificate.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

/// A connection, with TLS or without.
pub(crate) struct Wire(State);

enum State {
    Plain(CountingStream),
    /// TLS is wanted, and nothing has arrived yet.
    Silent(CountingStream, TlsAcceptor),
    Greeting(Box<Accept<CountingStream>>),
    Secured(Box<TlsStream<CountingStream>>),
    /// The handshake failed.
    Failed,
}

impl Wire {
    pub(crate) fn new(stream: CountingStream, identity: Option<&Identity>) -> Self {
        Self(match identity {
            None => State::Plain(stream),
            Some(identity) => State::Silent(stream, TlsAcceptor::from(Arc::clone(&identity.config))),
        })
    }

    /// Ready when requests can be read and answers can be written.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.0 {
                State::Plain(_) | State::Secured(_) => return Poll::Ready(Ok(())),
                State::Silent(stream, _) => {
                    let first = ready!(stream.poll_first_byte(cx))?;
                    let State::Silent(stream, acceptor) = std::mem::replace(&mut self.0, State::Failed) else {
                        continue;
                    };
                    self.0 = match first {
                        Some(HANDSHAKE) | None => State::Greeting(Box::new(acceptor.accept(stream))),
                        Some(_) => {
                            stream.activity().is_without_tls();
                            State::Plain(stream)
                        }
                    };
                }
                State::Greeting(accept) => {
                    let accepted = ready!(Pin::new(accept.as_mut()).poll(cx));
                    self.0 = State::Failed;
                    self.0 = State::Secured(Box::new(accepted?));
                }
                State::Failed => return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
            }
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?;
        match &mut self.0 {
            State::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            State::Secured(stream) => Pin::new(stream.as_mut()).poll_read(cx, buffer),
            _ => Poll::Pending,
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?;
        match &mut self.0 {
            State::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            State::Secured(stream) => Pin::new(stream.as_mut()).poll_write(cx, bytes),
            _ => Poll::Pending,
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?;
        match &mut self.0 {
            State::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bytes),
            State::Secured(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, bytes),
            _ => Poll::Pending,
        }
    }

    fn is_write_vectored(&self) -> bool {
        // Both kinds of open connections can.
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            State::Plain(stream) => Pin::new(stream).poll_flush(cx),
            State::Secured(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
            // Nothing was written yet.
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            State::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            State::Secured(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
            // The socket closes when this is dropped.
            _ => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests;
