//! The listener: takes in connections, counted and with their timeouts, in TLS if there is a
//! certificate.
//!
//! Every connection is accepted at once; `door` decides which of them may stay.

use crate::connection::{Activity, CountingStream, Peer, Timeouts};
use crate::door::Door;
use crate::metrics::Metrics;
use crate::tls::{Identity, Wire};
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

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
                    let activity = Arc::new(Activity::of(self.door.enter(address.ip())));
                    let peer = Peer {
                        activity: Arc::clone(&activity),
                    };
                    let timeouts = Timeouts {
                        head: self.head_timeout,
                        keep: self.keep_timeout,
                        idle: self.idle_timeout,
                    };
                    let stream = CountingStream::new(stream, Arc::clone(&self.metrics), activity, timeouts);
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
