//! Connections: their timeouts, and the count of their bytes.
//!
//! A connection must bring the head of its next request within the head timeout (from its opening,
//! TLS included, or from the end of the previous request; longer once it has shown a valid token),
//! and must take bytes that are written to it within the idle timeout. While a request is at work,
//! silence from the client is expected; bodies have their own timeout in `body`.
//!
//! Every connection is accepted at once; `door` decides which of them may stay.

use crate::door::{Door, Guest};
use crate::metrics::Metrics;
use crate::tls::{Identity, Wire};
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Sleep;

/// Accepts connections.
pub(crate) struct CountingListener {
    pub(crate) inner: TcpListener,
    pub(crate) door: Arc<Door>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) head_timeout: Duration,
    /// Replaces the head timeout on connections that have shown a valid token.
    pub(crate) keep_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    /// The certificate; `None`: plain HTTP.
    pub(crate) identity: Option<Identity>,
}

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

impl Listener for CountingListener {
    type Io = Wire;
    type Addr = Peer;

    async fn accept(&mut self) -> (Wire, Peer) {
        loop {
            match self.inner.accept().await {
                Ok((stream, address)) => {
                    // Small answers must not wait for a full packet.
                    let _ = stream.set_nodelay(true);
                    self.metrics.connection_opened();
                    let activity = Arc::new(Activity {
                        guest: Some(self.door.enter(address.ip())),
                        ..Activity::default()
                    });
                    let peer = Peer {
                        activity: Arc::clone(&activity),
                    };
                    let stream = CountingStream {
                        inner: stream,
                        metrics: Arc::clone(&self.metrics),
                        activity,
                        head_timeout: self.head_timeout,
                        keep_timeout: self.keep_timeout,
                        idle_timeout: self.idle_timeout,
                        head_deadline: None,
                        write_deadline: None,
                    };
                    return (Wire::new(stream, self.identity.as_ref()), peer);
                }
                // A connection that died in the queue costs the others no time.
                Err(error) if is_of_the_connection(&error) => {}
                // Out of descriptors, most likely.
                Err(_) => {
                    self.door.make_room();
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer::default())
    }
}

fn is_of_the_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

impl Connected<IncomingStream<'_, CountingListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, CountingListener>) -> Self {
        stream.remote_addr().clone()
    }
}

/// A connection that counts its bytes and enforces the timeouts.
pub(crate) struct CountingStream {
    inner: TcpStream,
    metrics: Arc<Metrics>,
    activity: Arc<Activity>,
    head_timeout: Duration,
    keep_timeout: Duration,
    idle_timeout: Duration,
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
                Some(guest) if guest.is_member() => self.keep_timeout,
                _ => self.head_timeout,
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
        let idle_timeout = self.idle_timeout;
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
