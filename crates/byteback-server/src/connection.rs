//! Connections: their timeouts, and the count of their bytes.
//!
//! A connection must bring the head of its next request within the head timeout (from its opening,
//! TLS included, or from the end of the previous request; longer once it has shown a valid token),
//! and must take bytes that are written to it within the idle timeout. While a request is at work,
//! silence from the client is expected; bodies have their own timeout in `body`.

use crate::door::Guest;
use crate::metrics::Metrics;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// The other end of a connection, and whether the connection is at work.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    pub(crate) activity: Arc<Activity>,
}

/// Counts of the requests that began and that ended on a connection.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    begun: AtomicU64,
    ended: AtomicU64,
    /// Whether the client speaks plain HTTP where TLS is wanted.
    lacks_tls: AtomicBool,
    /// The connection's place; `None` for connections that are not limited.
    guest: Option<Guest>,
}

/// A request at work; ends when dropped.
#[derive(Debug)]
pub(crate) struct AtWork(Arc<Activity>);

impl Activity {
    /// The activity of a connection that has a place.
    pub(crate) fn of(guest: Guest) -> Self {
        Self {
            guest: Some(guest),
            ..Self::default()
        }
    }

    /// Notes that the client speaks plain HTTP where TLS is wanted.
    pub(crate) fn is_without_tls(&self) {
        self.lacks_tls.store(true, Ordering::Relaxed);
    }

    pub(crate) fn lacks_tls(&self) -> bool {
        self.lacks_tls.load(Ordering::Relaxed)
    }

    /// Notes that the client has shown a valid token. False: too many connections have.
    pub(crate) fn has_shown_token(&self) -> bool {
        self.guest.as_ref().is_none_or(Guest::becomes_member)
    }

    /// Notes that the client has shown no valid token where one is wanted.
    pub(crate) fn has_shown_no_token(&self) {
        if let Some(guest) = &self.guest {
            guest.becomes_stranger();
        }
    }

    pub(crate) fn begin(self: &Arc<Self>) -> AtWork {
        self.begun.fetch_add(1, Ordering::Relaxed);
        AtWork(Arc::clone(self))
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// For the head of a request.
    pub(crate) head: Duration,
    /// Replaces `head` once the connection has shown a valid token.
    pub(crate) keep: Duration,
    /// For taking bytes.
    pub(crate) idle: Duration,
}

/// A connection that counts its bytes and enforces the timeouts.
pub(crate) struct CountingStream {
    inner: TcpStream,
    metrics: Arc<Metrics>,
    activity: Arc<Activity>,
    timeouts: Timeouts,
    /// Number of ended requests, and the deadline for the head of the next one.
    head_deadline: Option<(u64, Pin<Box<Sleep>>)>,
    write_deadline: Option<Pin<Box<Sleep>>>,
}

impl Drop for CountingStream {
    fn drop(&mut self) {
        // Requests may hold the guest a little longer than the descriptor.
        if let Some(guest) = &self.activity.guest {
            guest.leave();
        }
        self.metrics.connection_closed();
    }
}

impl CountingStream {
    pub(crate) fn new(inner: TcpStream, metrics: Arc<Metrics>, activity: Arc<Activity>, timeouts: Timeouts) -> Self {
        Self {
            inner,
            metrics,
            activity,
            timeouts,
            head_deadline: None,
            write_deadline: None,
        }
    }

    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// The first byte that the client sends, left in place to be read; `None` if the client closes
    /// without sending.
    pub(crate) fn poll_first_byte(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<u8>>> {
        if let Poll::Ready(result) = self.wait_for_head(cx) {
            return Poll::Ready(result.map(|()| None));
        }
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        let peeked = ready!(self.inner.poll_peek(cx, &mut buffer));
        Poll::Ready(peeked.map(|_| buffer.filled().first().copied()))
    }

    /// Returns `Pending`, or the error of a connection that has to go or whose head is late. To be
    /// called before each read, not only when nothing can be read: bytes that come one by one gain
    /// no time.
    fn wait_for_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let guest = self.activity.guest.as_ref();
        if guest.is_some_and(|guest| guest.exit().is_shown_to_reader(cx.waker())) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let ended = self.activity.ended.load(Ordering::Relaxed);
        if self.activity.begun.load(Ordering::Relaxed) != ended {
            self.head_deadline = None;
            return Poll::Pending;
        }
        if self.head_deadline.as_ref().is_none_or(|(of, _)| *of != ended) {
            let timeout = match guest {
                Some(guest) if guest.is_member() => self.timeouts.keep,
                _ => self.timeouts.head,
            };
            self.head_deadline = Some((ended, Box::pin(tokio::time::sleep(timeout))));
        }
        match &mut self.head_deadline {
            Some((_, sleep)) => sleep.as_mut().poll(cx).map(|()| {
                self.metrics.head_was_late();
                Err(io::ErrorKind::TimedOut.into())
            }),
            None => Poll::Pending,
        }
    }

    /// Passes on a write's result, or returns the error of a client that takes no bytes.
    fn wait_for_room<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.write_deadline = None;
            return result;
        }
        let guest = self.activity.guest.as_ref();
        if guest.is_some_and(|guest| guest.exit().is_shown_to_writer(cx.waker())) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let idle_timeout = self.timeouts.idle;
        let sleep = self
            .write_deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(idle_timeout)));
        sleep.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for CountingStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(result) = self.wait_for_head(cx) {
            return Poll::Ready(result);
        }
        let before = buffer.filled().len();
        let result = ready!(Pin::new(&mut self.inner).poll_read(cx, buffer));
        self.metrics.received(buffer.filled().len().saturating_sub(before));
        Poll::Ready(result)
    }
}

impl AsyncWrite for CountingStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, bytes);
        if let Poll::Ready(Ok(sent)) = &result {
            self.metrics.sent(*sent);
        }
        self.wait_for_room(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, bytes);
        if let Poll::Ready(Ok(sent)) = &result {
            self.metrics.sent(*sent);
        }
        self.wait_for_room(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
