//! TLS with a server that is known by its certificate alone.
//!
//! The SHA-256 of the certificate came with the code by which this machine joined, so no authority
//! has to vouch for it: names and dates in it do not matter (a small device may have no clock at
//! its start), and a signature on a forged certificate lets nobody stand in between. The handshake
//! proves that the server has the key, as always. Another certificate is refused before anything
//! was sent, with both fingerprints.
//!
//! It stands in the chain of transports before the library's own TLS, which finds the connection
//! secured already and leaves it alone. Without a fingerprint it is the other way round.

use crate::error::CertificateChanged;
use byteback_api::Fingerprint;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use sha2::{Digest as _, Sha256};
use std::io::{Read, Write};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

/// Secures connections to a server with a known certificate.
pub(super) struct PinnedConnector {
    expected: Option<Fingerprint>,
    provider: Arc<CryptoProvider>,
}

impl std::fmt::Debug for PinnedConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedConnector")
            .field("expected", &self.expected)
            .finish_non_exhaustive()
    }
}

impl PinnedConnector {
    pub(super) fn new(expected: Option<Fingerprint>) -> Self {
        Self {
            expected,
            provider: Arc::new(ring::default_provider()),
        }
    }
}

impl<In: Transport> Connector<In> for PinnedConnector {
    type Out = Either<In, PinnedTransport>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Self::Out>, ureq::Error> {
        let (transport, expected) = match (chained, self.expected) {
            (Some(transport), Some(expected)) if details.needs_tls() => (transport, expected),
            (chained, _) => return Ok(chained.map(Either::A)),
        };
        let verifier = Arc::new(Verifier {
            expected,
            provider: Arc::clone(&self.provider),
            shown: Mutex::new(None),
        });
        let config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<dyn ServerCertVerifier>)
            .with_no_client_auth();
        let name = server_name(details.uri.host().unwrap_or_default());
        let connection = ClientConnection::new(Arc::new(config), name)?;
        let mut socket = TransportAdapter::new(transport.boxed(), Arc::clone(&details.current_time));
        socket.set_timeout(details.timeout);
        let mut stream = StreamOwned::new(connection, socket);
        if let Err(error) = stream.conn.complete_io(&mut stream.sock) {
            let shown = *verifier.shown.lock().unwrap_or_else(PoisonError::into_inner);
            return Err(match shown {
                Some(shown) if shown != expected => {
                    ureq::Error::Other(Box::new(CertificateChanged { expected, shown }))
                }
                _ => error.into(),
            });
        }
        Ok(Some(Either::B(PinnedTransport {
            buffers: LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size()),
            stream,
        })))
    }
}

/// The server name in the request. It is not compared with the certificate, so any valid name will
/// do for a host that cannot be one.
fn server_name(host: &str) -> ServerName<'static> {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let unknown = || ServerName::IpAddress(IpAddr::from([0, 0, 0, 0]).into());
    ServerName::try_from(bare.to_owned()).unwrap_or_else(|_| unknown())
}

/// A secured connection.
pub(super) struct PinnedTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl std::fmt::Debug for PinnedTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedTransport").finish_non_exhaustive()
    }
}

impl Transport for PinnedTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.sock.set_timeout(timeout);
        let output = self.buffers.output();
        self.stream.write_all(output.get(..amount).unwrap_or_default())?;
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.sock.set_timeout(timeout);
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

/// Accepts one certificate and no other.
#[derive(Debug)]
struct Verifier {
    expected: Fingerprint,
    provider: Arc<CryptoProvider>,
    shown: Mutex<Option<Fingerprint>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let shown = Fingerprint(Sha256::digest(end_entity).into());
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown);
        match shown == self.expected {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_host_can_be_asked() {
        for host in ["box.example.org", "10.0.0.1", "[::1]", "with_underscore", "", "-"] {
            let _ = server_name(host);
        }
        assert_eq!(server_name("[::1]"), ServerName::try_from("::1".to_owned()).unwrap());
    }
}
