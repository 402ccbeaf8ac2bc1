//! A lowest rate of answers.
//!
//! A server, or something on the way, that sends a byte now and then is never silent and would hold
//! a command for ever. So of an answer's body that has begun, [`PROGRESS_LEN_MIN`] bytes or its end
//! have to come within the patience of the request, counting only the time that was waited for
//! them. Until it begins, only silence is limited: a server may have to work. (The head has to be
//! whole within the same time.)
//!
//! Out of scope: answers that report events ([`super::events`]) or progress, which come as they
//! come.

use crate::error::TooSlow;
use byteback_host::clock::Clock;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;
use ureq::http;

/// Least bytes within the time limit: with the default of a minute, 136 bytes per second, which is
/// less than a telephone line has, and less than a server allows its clients.
pub(super) const PROGRESS_LEN_MIN: u64 = 8 * 1024;

/// The time limit of an answer, attached to the response.
#[derive(Clone)]
pub(super) struct Patience {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) timeout: Duration,
}

/// The body of an answer.
pub(crate) struct AnswerBody {
    inner: ureq::BodyReader<'static>,
    patience: Option<Patience>,
    progress: Progress,
}

impl AnswerBody {
    /// The body of a response, with its time limit, if it has one.
    pub(super) fn of(response: http::Response<ureq::Body>) -> Self {
        let patience = response.extensions().get::<Patience>().cloned();
        Self {
            inner: response.into_body().into_reader(),
            patience,
            progress: Progress::default(),
        }
    }
}

impl Read for AnswerBody {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(Patience { clock, timeout }) = &self.patience else {
            return self.inner.read(buffer);
        };
        let started_ns = clock.monotonic_ns();
        let came = self.inner.read(buffer)?;
        let waited = Duration::from_nanos(clock.monotonic_ns().saturating_sub(started_ns));
        if came > 0 {
            let bytes = u64::try_from(came).unwrap_or(u64::MAX);
            self.progress.came(bytes, waited, *timeout)?;
        }
        Ok(came)
    }
}

/// The progress of an answer.
#[derive(Debug, Default)]
struct Progress {
    /// Whether some of it has come.
    has_started: bool,
    /// Bytes since there were last enough.
    bytes: u64,
    waited: Duration,
}

impl Progress {
    /// Notes that `bytes` came after a wait of `waited`.
    fn came(&mut self, bytes: u64, waited: Duration, patience: Duration) -> io::Result<()> {
        if !self.has_started {
            self.has_started = bytes > 0;
            self.bytes = bytes;
            return Ok(());
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.waited = self.waited.saturating_add(waited);
        if self.bytes >= PROGRESS_LEN_MIN {
            (self.bytes, self.waited) = (0, Duration::ZERO);
        }
        if self.waited <= patience {
            return Ok(());
        }
        let (bytes, waited_s) = (self.bytes, self.waited.as_secs());
        Err(io::Error::new(io::ErrorKind::TimedOut, TooSlow { bytes, waited_s }))
    }
}

#[cfg(test)]
mod tests;
