//! A network that replaces the machine's: makes connections, and decides what becomes of their
//! bytes.
//!
//! In a simulation it stands in place of TCP, below the counter and TLS; everything above is the
//! same, so that the real client is simulated. Connections to a [relay](super::relay) are made by
//! one, too.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use ureq::config::Config;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, TcpConnector, Transport,
};

/// Opens connections.
pub trait Network: Debug + Send + Sync {
    /// A connection to the server, whatever its address.
    ///
    /// # Errors
    /// As TCP's.
    fn connect(&self) -> io::Result<Box<dyn Connection>>;
}

/// A stream of bytes in both directions. Dropping it closes it.
pub trait Connection: Debug + Send + Sync {
    /// Sends all of `bytes`, within `patience`.
    ///
    /// # Errors
    /// As TCP's; [`io::ErrorKind::TimedOut`] when patience ends.
    fn send(&mut self, bytes: &[u8], patience: Duration) -> io::Result<()>;

    /// Waits for bytes, at most for `patience`; returns how many came, 0 when the other end has
    /// closed.
    ///
    /// # Errors
    /// As TCP's; [`io::ErrorKind::TimedOut`] when patience ends.
    fn receive(&mut self, buffer: &mut [u8], patience: Duration) -> io::Result<usize>;

    /// Whether the connection may carry another request.
    fn is_open(&mut self) -> bool;
}

/// Connects through a given network, or through the machine's.
#[derive(Debug)]
pub(super) struct NetworkConnector {
    network: Option<Arc<dyn Network>>,
    machine: TcpConnector,
}

impl NetworkConnector {
    pub(super) fn new(network: Option<Arc<dyn Network>>) -> Self {
        Self {
            network,
            machine: TcpConnector::default(),
        }
    }
}

impl Connector<()> for NetworkConnector {
    type Out = Either<BroughtTransport, <TcpConnector as Connector>::Out>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<()>) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(network) = &self.network else {
            return Ok(self.machine.connect(details, chained)?.map(Either::B));
        };
        let transport = BroughtTransport::new(network.connect()?, details.config);
        Ok(Some(Either::A(transport)))
    }
}

/// A connection of a given network.
#[derive(Debug)]
pub(super) struct BroughtTransport {
    connection: Box<dyn Connection>,
    buffers: LazyBuffers,
}

impl BroughtTransport {
    pub(super) fn new(connection: Box<dyn Connection>, config: &Config) -> Self {
        Self {
            connection,
            buffers: LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size()),
        }
    }
}

/// The library's error for a wait that was too long.
fn named(error: io::Error, timeout: NextTimeout) -> ureq::Error {
    match error.kind() {
        io::ErrorKind::TimedOut => ureq::Error::Timeout(timeout.reason),
        _ => ureq::Error::Io(error),
    }
}

impl Transport for BroughtTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let timeout = timeout.for_write();
        let output = self.buffers.output();
        let sent = self
            .connection
            .send(output.get(..amount).unwrap_or_default(), *timeout.after);
        sent.map_err(|error| named(error, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let timeout = timeout.for_read();
        let came = self.connection.receive(self.buffers.input_append_buf(), *timeout.after);
        let amount = came.map_err(|error| named(error, timeout))?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.connection.is_open()
    }
}
