//! Bodies between the async edge and blocking threads, through channels of a few chunks.
//!
//! In: `pump` moves a request's body into an [`IncomingBytes`], which a blocking thread reads. It
//! enforces the length limit and the time between two chunks. When the reader stops early (an
//! error), the pump continues to read and drop what the client still sends, within the limit, so
//! that the client can read the answer instead of a reset connection. Out: an [`OutgoingBytes`] is
//! a `Write` for a blocking thread; its other end is the response's body. Writing fails when the
//! client goes away, and also when it takes a paced body, for which other clients wait, too slowly.

use crate::connection::AtWork;
use crate::presence::ActiveRequest;
use crate::problem::refuse;
use axum::body::{Body, Bytes, HttpBody};
use byteback_api::problem::{Code, Problem};
use http_body::{Frame, SizeHint};
use std::future::Future;
use std::io::{self, Read, Write};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::Thread;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Chunks in flight.
const CHUNKS: usize = 4;

/// Longest chunk that is sent, in bytes.
pub(crate) const CHUNK_LEN: usize = 128 * 1024;

/// Limits of one incoming body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    pub(crate) len_max: u64,
    pub(crate) idle_timeout: Duration,
    /// Average rate at which it has to arrive once `idle_timeout` is over, for bodies that keep
    /// others waiting.
    pub(crate) bytes_per_s_min: Option<u32>,
}

impl BodyLimits {
    /// Time in which the first `len` bytes must arrive.
    fn time_for(&self, len: u64) -> Duration {
        let at_least = |rate: u32| self.idle_timeout + Duration::from_secs(len) / rate.max(1);
        self.bytes_per_s_min.map_or(Duration::MAX, at_least)
    }

    /// Refuses a body whose announced length is too long.
    fn check_announced(&self, body: &Body) -> Result<(), Box<Problem>> {
        match body.size_hint().lower() > self.len_max {
            true => Err(self.too_large()),
            false => Ok(()),
        }
    }

    /// Refuses a body of which `total` bytes have arrived since it began, if it is too long or too
    /// slow.
    fn check(&self, total: u64, started: Instant) -> Result<(), Box<Problem>> {
        if total > self.len_max {
            return Err(self.too_large());
        }
        if started.elapsed() > self.time_for(total) {
            return Err(refuse(
                Code::RequestTimeout,
                format!("only {total} bytes arrived in {} s", started.elapsed().as_secs()),
            ));
        }
        Ok(())
    }

    fn too_large(&self) -> Box<Problem> {
        refuse(Code::BodyTooLarge, format!("the limit is {} bytes", self.len_max))
    }
}

/// The blocking end of a request's body.
pub(crate) struct IncomingBytes {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
    ended: bool,
}

/// The two ends of an incoming request's body.
pub(crate) fn incoming() -> (mpsc::Sender<io::Result<Bytes>>, IncomingBytes) {
    let (sender, receiver) = mpsc::channel(CHUNKS);
    (
        sender,
        IncomingBytes {
            receiver,
            current: Bytes::new(),
            ended: false,
        },
    )
}

impl Read for IncomingBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.ended {
            match self.receiver.blocking_recv() {
                // An empty chunk is the body's true end. A channel that just closes means a
                // truncated body.
                Some(Ok(chunk)) if chunk.is_empty() => self.ended = true,
                Some(Ok(chunk)) => self.current = chunk,
                Some(Err(e)) => {
                    self.ended = true;
                    return Err(e);
                }
                None => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
        let len = buffer.len().min(self.current.len());
        let chunk = self.current.split_to(len);
        if let Some(target) = buffer.get_mut(..len) {
            target.copy_from_slice(&chunk);
        }
        Ok(len)
    }
}

/// The next non-empty chunk of a body.
async fn next_chunk(body: &mut Body, idle_timeout: Duration) -> Result<Option<Bytes>, Box<Problem>> {
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
        match tokio::time::timeout(idle_timeout, frame).await {
            Err(_) => {
                let detail = format!("no byte arrived for {} s", idle_timeout.as_secs());
                return Err(refuse(Code::RequestTimeout, detail));
            }
            Ok(None) => return Ok(None),
            Ok(Some(Err(e))) => return Err(refuse(Code::InvalidBody, format!("the body broke off: {e}"))),
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data()
                    && !data.is_empty()
                {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// The beginning of a body, kept in memory while no other resource is taken for it.
#[derive(Debug)]
pub(crate) struct BodyStart {
    pub(crate) bytes: Vec<u8>,
    /// Whether this is the whole body.
    pub(crate) is_whole: bool,
    started: Instant,
}

impl BodyStart {
    /// The beginning of an untouched body.
    fn nothing() -> Self {
        Self {
            bytes: Vec::new(),
            is_whole: false,
            started: Instant::now(),
        }
    }
}

/// Takes in a body up to its end, or until more than `len_max` bytes have arrived.
pub(crate) async fn take_start(body: &mut Body, len_max: usize, limits: BodyLimits) -> Result<BodyStart, Box<Problem>> {
    limits.check_announced(body)?;
    let mut start = BodyStart::nothing();
    while start.bytes.len() <= len_max {
        let Some(chunk) = next_chunk(body, limits.idle_timeout).await? else {
            start.is_whole = true;
            return Ok(start);
        };
        // Copied: short chunks may keep long buffers alive.
        start.bytes.extend_from_slice(&chunk);
        limits.check(u64::try_from(start.bytes.len()).unwrap_or(u64::MAX), start.started)?;
    }
    Ok(start)
}

/// Moves a body to its reader. An error is the reason for which the body as such is refused,
/// whatever the reader's result.
pub(crate) async fn pump(
    body: Body,
    sender: mpsc::Sender<io::Result<Bytes>>,
    limits: BodyLimits,
) -> Result<(), Box<Problem>> {
    pump_from(BodyStart::nothing(), body, sender, limits).await
}

/// Like [`pump`], for a body whose beginning was taken in.
pub(crate) async fn pump_from(
    start: BodyStart,
    mut body: Body,
    sender: mpsc::Sender<io::Result<Bytes>>,
    limits: BodyLimits,
) -> Result<(), Box<Problem>> {
    let result = pump_chunks(start, &mut body, &sender, limits).await;
    let last = match &result {
        Ok(()) => Ok(Bytes::new()),
        Err(problem) => Err(io::Error::other(problem.clone())),
    };
    // The reader may have stopped already.
    let _ = sender.send(last).await;
    result
}

async fn pump_chunks(
    start: BodyStart,
    body: &mut Body,
    sender: &mpsc::Sender<io::Result<Bytes>>,
    limits: BodyLimits,
) -> Result<(), Box<Problem>> {
    limits.check_announced(body)?;
    let BodyStart {
        bytes,
        is_whole,
        started,
    } = start;
    let mut total = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    // Only the last chunk is empty.
    if total > 0 {
        let _ = sender.send(Ok(Bytes::from(bytes))).await;
    }
    if is_whole {
        return Ok(());
    }
    while let Some(chunk) = next_chunk(body, limits.idle_timeout).await? {
        total = total.saturating_add(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
        limits.check(total, started)?;
        // A reader that has stopped gets no more, but the client may finish sending.
        let _ = sender.send(Ok(chunk)).await;
    }
    Ok(())
}

/// A whole small body.
pub(crate) async fn collect(mut body: Body, limits: BodyLimits) -> Result<Vec<u8>, Box<Problem>> {
    let mut bytes = Vec::new();
    while let Some(chunk) = next_chunk(&mut body, limits.idle_timeout).await? {
        bytes.extend_from_slice(&chunk);
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limits.len_max {
            return Err(refuse(
                Code::BodyTooLarge,
                format!("the limit is {} bytes", limits.len_max),
            ));
        }
    }
    Ok(bytes)
}

/// Reads and drops the rest of an unwanted body, up to `len_max` bytes.
pub(crate) async fn drain(mut body: Body, limits: BodyLimits) {
    let mut total = 0u64;
    while let Ok(Some(chunk)) = next_chunk(&mut body, limits.idle_timeout).await {
        total = total.saturating_add(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
        if total > limits.len_max {
            return;
        }
    }
}

/// The pace at which the client has to take a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Longest total wait for the client before anything was sent.
    pub(crate) idle_timeout: Duration,
    /// Bytes whose sending extends that wait by a second.
    pub(crate) bytes_per_s_min: u32,
}

/// The blocking end of a response's body.
pub(crate) struct OutgoingBytes {
    sender: mpsc::Sender<io::Result<Bytes>>,
    pending: Vec<u8>,
    pace: Option<Pace>,
    /// Bytes that the other end received, and the total wait for it.
    sent: u64,
    waited: Duration,
    is_broken: Arc<AtomicBool>,
}

impl OutgoingBytes {
    /// Sends the pending bytes.
    pub(crate) fn send(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let chunk = Bytes::from(std::mem::take(&mut self.pending));
        let len = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        let sent = match self.pace {
            None => self.sender.blocking_send(Ok(chunk)),
            Some(pace) => {
                let allowed = pace.idle_timeout + Duration::from_secs(self.sent) / pace.bytes_per_s_min.max(1);
                let started = std::time::Instant::now();
                let left = allowed.saturating_sub(self.waited);
                let sent = wait_at_most(left, self.sender.send(Ok(chunk)));
                self.waited += started.elapsed();
                sent.ok_or(io::ErrorKind::TimedOut)?
            }
        };
        self.sent = self.sent.saturating_add(len);
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Breaks the body off, so that the client cannot take it for complete. Does not block.
    pub(crate) fn fail(&mut self) {
        self.pending.clear();
        self.is_broken.store(true, Ordering::Release);
    }
}

/// Waits for a future, for at most `time`; `None` if it takes longer. For threads that may block.
fn wait_at_most<F: Future>(time: Duration, future: F) -> Option<F::Output> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    let started = std::time::Instant::now();
    loop {
        if let Poll::Ready(answer) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(answer);
        }
        let left = time.checked_sub(started.elapsed()).filter(|left| !left.is_zero())?;
        std::thread::park_timeout(left);
    }
}

impl Write for OutgoingBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= CHUNK_LEN {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

/// The two ends of a response's body; `len` is its length in bytes, if that is known.
pub(crate) fn outgoing(len: Option<u64>) -> (OutgoingBytes, Body) {
    outgoing_with(len, None)
}

/// Like [`outgoing`], for a body that occupies one of a few places until it is taken.
pub(crate) fn outgoing_paced(len: Option<u64>, pace: Pace) -> (OutgoingBytes, Body) {
    outgoing_with(len, Some(pace))
}

fn outgoing_with(len: Option<u64>, pace: Option<Pace>) -> (OutgoingBytes, Body) {
    let (sender, receiver) = mpsc::channel(CHUNKS);
    let is_broken = Arc::new(AtomicBool::new(false));
    let out = OutgoingBytes {
        sender,
        pending: Vec::new(),
        pace,
        sent: 0,
        waited: Duration::ZERO,
        is_broken: Arc::clone(&is_broken),
    };
    let body = ChannelBody {
        receiver,
        len,
        is_broken,
        breaks_with: None,
    };
    (out, Body::new(body))
}

/// The two ends of a response's body that a task fills.
pub(crate) fn async_outgoing() -> (mpsc::Sender<io::Result<Bytes>>, Body) {
    let (sender, receiver) = mpsc::channel(CHUNKS);
    let body = ChannelBody {
        receiver,
        len: None,
        is_broken: Arc::default(),
        breaks_with: None,
    };
    (sender, Body::new(body))
}

struct ChannelBody {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    len: Option<u64>,
    /// Whether the end of the channel is a failure.
    is_broken: Arc<AtomicBool>,
    /// Error that the next poll returns.
    breaks_with: Option<io::Error>,
}

impl HttpBody for ChannelBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(error) = self.breaks_with.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let error = match ready!(self.receiver.poll_recv(cx)) {
            Some(Ok(chunk)) => return Poll::Ready(Some(Ok(Frame::data(chunk)))),
            None if !self.is_broken.load(Ordering::Acquire) => return Poll::Ready(None),
            None => io::ErrorKind::BrokenPipe.into(),
            Some(Err(error)) => error,
        };
        // On an error, the connection drops everything not written yet, even the head. A pending
        // body makes it write first: so the client sees an answer that breaks off, not a connection
        // that ends without one.
        self.breaks_with = Some(error);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn size_hint(&self) -> SizeHint {
        self.len.map(SizeHint::with_exact).unwrap_or_default()
    }
}

/// A response's body that keeps its connection marked as at work until it is sent, and breaks off
/// when its device is revoked.
pub(crate) struct WorkingBody {
    inner: Body,
    revoked: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    // Dropped after the future, whose receiver counts as a stay, too.
    _stay: Option<ActiveRequest>,
    _at_work: Option<AtWork>,
}

impl WorkingBody {
    pub(crate) fn new(inner: Body, stay: Option<ActiveRequest>, at_work: Option<AtWork>) -> Self {
        Self {
            inner,
            revoked: stay.as_ref().map(|stay| Box::pin(stay.revoked()) as _),
            _stay: stay,
            _at_work: at_work,
        }
    }
}

impl HttpBody for WorkingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(revoked) = &mut self.revoked
            && revoked.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Some(Err(axum::Error::new(io::Error::from(
                io::ErrorKind::PermissionDenied,
            )))));
        }
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests;
