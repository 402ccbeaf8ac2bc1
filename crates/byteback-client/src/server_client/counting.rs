//! Counts the bytes of every connection below TLS, where they are on the wire.
//!
//! The HTTP library lets transports be chained: the counter stands between the socket and TLS, so
//! headers, bodies and TLS records are in the sum, and TCP's own headers are not. A limit on their
//! rate is enforced here, too.

use super::pacing::Pacer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};

/// Bytes that went over the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct WireBytes {
    /// To the server.
    pub sent: u64,
    /// From the server.
    pub received: u64,
}

impl WireBytes {
    /// The bytes since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(earlier.sent),
            received: self.received.saturating_sub(earlier.received),
        }
    }

    /// Both directions.
    #[must_use]
    pub fn total(self) -> u64 {
        self.sent.saturating_add(self.received)
    }
}

#[derive(Debug, Default)]
pub(super) struct WireCounter {
    sent: AtomicU64,
    received: AtomicU64,
}

impl WireCounter {
    pub(super) fn read(&self) -> WireBytes {
        WireBytes {
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
        }
    }

    /// Counts bytes that went over another process's socket.
    pub(super) fn add(&self, bytes: WireBytes) {
        self.sent.fetch_add(bytes.sent, Ordering::Relaxed);
        self.received.fetch_add(bytes.received, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct CountingConnector {
    counter: Arc<WireCounter>,
    pacer: Option<Arc<Pacer>>,
}

impl CountingConnector {
    pub(super) fn new(counter: Arc<WireCounter>, pacer: Option<Arc<Pacer>>) -> Self {
        Self { counter, pacer }
    }
}

impl<In: Transport> Connector<In> for CountingConnector {
    type Out = CountingTransport<In>;

    fn connect(&self, _: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Self::Out>, ureq::Error> {
        Ok(chained.map(|inner| CountingTransport {
            inner,
            counter: Arc::clone(&self.counter),
            pacer: self.pacer.clone(),
        }))
    }
}

#[derive(Debug)]
pub(super) struct CountingTransport<T> {
    inner: T,
    counter: Arc<WireCounter>,
    pacer: Option<Arc<Pacer>>,
}

impl<T> CountingTransport<T> {
    fn wait_for_the_end_of_a_pause(&self) {
        if let Some(pacer) = &self.pacer {
            pacer.wait_for_the_end_of_a_pause();
        }
    }

    fn pace(&self, amount: usize) {
        if let Some(pacer) = &self.pacer {
            pacer.moved(amount);
        }
    }
}

impl<T: Transport> Transport for CountingTransport<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.wait_for_the_end_of_a_pause();
        self.inner.transmit_output(amount, timeout)?;
        let amount_u64 = u64::try_from(amount).unwrap_or(u64::MAX);
        self.counter.sent.fetch_add(amount_u64, Ordering::Relaxed);
        self.pace(amount);
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.wait_for_the_end_of_a_pause();
        let before = self.inner.buffers().input().len();
        let more = self.inner.await_input(timeout)?;
        let after = self.inner.buffers().input().len();
        let amount = after.saturating_sub(before);
        let amount_u64 = u64::try_from(amount).unwrap_or(u64::MAX);
        self.counter.received.fetch_add(amount_u64, Ordering::Relaxed);
        self.pace(amount);
        Ok(more)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }
}
