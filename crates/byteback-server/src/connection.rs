//! Connections: how many, how slow they may be, and how many bytes pass.
//!
//! A connection must bring the head of its next request within the head timeout (from its opening or from the end of
//! the request before), and must take bytes that are written to it within the idle timeout. While a request is at
//! work, silence from the client is what one expects; bodies have their own timeout in `body`.
//!
//! Above the connection limit, new ones wait in the kernel's queue.

use crate::metrics::Metrics;
use crate::tls::{Identity, Wire};
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// Accepts connections.
pub(crate) struct CountingListener {
    pub(crate) inner: TcpListener,
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) head_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    /// The certificate; none: plain HTTP.
    pub(crate) identity: Option<Identity>,
}

/// Who is at the other end, and whether its connection is at work.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    pub(crate) activity: Arc<Activity>,
}

/// Requests that began and that ended on a connection.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    begun: AtomicU64,
    ended: AtomicU64,
    /// TLS is wanted, and the client speaks without.
    lacks_tls: AtomicBool,
}

/// A request at work; ends when dropped.
#[derive(Debug)]
pub(crate) struct AtWork(Arc<Activity>);

impl Activity {
    /// The client speaks plain HTTP where TLS is wanted.
    pub(crate) fn is_without_tls(&self) {
        self.lacks_tls.store(true, Ordering::Relaxed);
    }

    pub(crate) fn lacks_tls(&self) -> bool {
        self.lacks_tls.load(Ordering::Relaxed)
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
            // The semaphore is never closed; if it were, connections would go unlimited, not unserved.
            let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
            match self.inner.accept().await {
                Ok((stream, _)) => {
                    // Small answers must not wait for a full packet.
                    let _ = stream.set_nodelay(true);
                    self.metrics.connection_opened();
                    let activity = Arc::new(Activity::default());
                    let peer = Peer {
                        activity: Arc::clone(&activity),
                    };
                    let stream = CountingStream {
                        inner: stream,
                        metrics: Arc::clone(&self.metrics),
                        activity,
                        head_timeout: self.head_timeout,
                        idle_timeout: self.idle_timeout,
                        head_deadline: None,
                        write_deadline: None,
                        _permit: permit,
                    };
                    return (Wire::new(stream, self.identity.as_ref()), peer);
                }
                // Out of descriptors, or a connection that died in the queue: wait a little and go on.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer::default())
    }
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
    idle_timeout: Duration,
    /// Until when the next head must be there, for the given number of ended requests.
    head_deadline: Option<(u64, Pin<Box<Sleep>>)>,
    write_deadline: Option<Pin<Box<Sleep>>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Drop for CountingStream {
    fn drop(&mut self) {
        self.metrics.connection_closed();
    }
}

impl CountingStream {
    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// The first byte that the client sends, which stays to be read; none if it sends nothing and closes.
    pub(crate) fn poll_first_byte(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<u8>>> {
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        match self.inner.poll_peek(cx, &mut buffer) {
            Poll::Ready(peeked) => Poll::Ready(peeked.map(|_| buffer.filled().first().copied())),
            Poll::Pending => self
                .wait_for_head(cx)
                .map(|result| result.and(Err(io::ErrorKind::TimedOut.into()))),
        }
    }

    /// Pending, or the error of a head that did not come in time.
    fn wait_for_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = self.activity.ended.load(Ordering::Relaxed);
        if self.activity.begun.load(Ordering::Relaxed) != ended {
            self.head_deadline = None;
            return Poll::Pending;
        }
        if self.head_deadline.as_ref().is_none_or(|(of, _)| *of != ended) {
            self.head_deadline = Some((ended, Box::pin(tokio::time::sleep(self.head_timeout))));
        }
        match &mut self.head_deadline {
            Some((_, sleep)) => sleep.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
            None => Poll::Pending,
        }
    }

    /// What a write answers, or the error of a client that takes no bytes.
    fn wait_for_room<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.write_deadline = None;
            return result;
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
        let before = buffer.filled().len();
        match Pin::new(&mut self.inner).poll_read(cx, buffer) {
            Poll::Ready(result) => {
                self.metrics.received(buffer.filled().len().saturating_sub(before));
                Poll::Ready(result)
            }
            Poll::Pending => self.wait_for_head(cx),
        }
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
