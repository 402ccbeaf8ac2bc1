//! Sends the head of a request together with the beginning of its body.
//!
//! The library hands on the one, then the other. Each would be a TLS record, a packet and a system
//! call of its own, and the server would wake for each. A head is kept until something follows, or
//! until the answer is waited for: it needs no answer of its own.

use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};

/// Longer pieces are no heads, and are handed on at once.
const HEAD_LEN_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct TogetherConnector;

impl<In: Transport> Connector<In> for TogetherConnector {
    type Out = TogetherTransport<In>;

    fn connect(&self, _: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Self::Out>, ureq::Error> {
        Ok(chained.map(|inner| TogetherTransport {
            inner,
            head: Vec::new(),
        }))
    }
}

#[derive(Debug)]
pub(super) struct TogetherTransport<T> {
    inner: T,
    /// Bytes that were handed over and not yet handed on.
    head: Vec<u8>,
}

impl<T: Transport> TogetherTransport<T> {
    /// Hands on the kept bytes, and `amount` bytes of the output behind them.
    fn hand_on(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let kept = std::mem::take(&mut self.head);
        let output = self.inner.buffers().output();
        let both = kept.len().saturating_add(amount);
        if both <= output.len() {
            output.copy_within(..amount, kept.len());
            put(output, &kept);
            return self.inner.transmit_output(both, timeout);
        }
        // The library fills its buffer with a long body: then it matters little that there is no
        // room beside it.
        let body = output.get(..amount).unwrap_or_default().to_vec();
        put(output, &kept);
        self.inner.transmit_output(kept.len(), timeout)?;
        put(self.inner.buffers().output(), &body);
        self.inner.transmit_output(body.len(), timeout)
    }
}

/// Writes `bytes` at the beginning of `output`, which has room for them: they were taken from it.
fn put(output: &mut [u8], bytes: &[u8]) {
    if let Some(place) = output.get_mut(..bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

impl<T: Transport> Transport for TogetherTransport<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        if !self.head.is_empty() {
            return self.hand_on(amount, timeout);
        }
        if amount > HEAD_LEN_MAX {
            return self.inner.transmit_output(amount, timeout);
        }
        let output = self.inner.buffers().output();
        self.head.extend_from_slice(output.get(..amount).unwrap_or_default());
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        if !self.head.is_empty() {
            self.hand_on(0, timeout)?;
        }
        self.inner.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}
