//! A server for clients in the same process: connections are pipes in memory instead of sockets,
//! and the threads are the caller's.
//!
//! For simulations, which run the real server on a runtime and a clock of their own, and pass it
//! the requests as their network delivers them. Everything behind the socket is the same as over
//! TCP: routes, authentication, limits, bodies.

use crate::config::ServerConfig;
use crate::connection::Peer;
use crate::metrics::Metrics;
use crate::server::{ServerError, serve};
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use byteback_store::Store;
use std::future::{Future, pending};
use std::io;
use std::sync::Arc;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::{mpsc, oneshot};

/// Most bytes on their way in one direction; further ones wait.
const PIPE_LEN_BYTES: usize = 64 * 1024;

/// Opens connections to a server in the same process.
#[derive(Clone, Debug)]
pub struct InProcess {
    connections: mpsc::UnboundedSender<DuplexStream>,
}

impl InProcess {
    /// A server that serves `store` while the future is polled, on a tokio runtime with time; it
    /// ends only if it fails. Dropping the future, or its runtime, ends the server as a crash does:
    /// nothing that was acknowledged is lost. The address and the identity in `config` are ignored.
    pub fn serve(
        config: ServerConfig,
        store: Store,
    ) -> (Self, impl Future<Output = Result<(), ServerError>> + Send + 'static) {
        let (connections, arriving) = mpsc::unbounded_channel();
        let serving = async move {
            // The server is never asked to stop.
            let (_stop, stopped) = oneshot::channel();
            serve(config, store, Pipes { arriving }, Arc::new(Metrics::new()), stopped).await
        };
        (Self { connections }, serving)
    }

    /// A new connection, on which requests are written and answers are read. It is closed at once
    /// if the server has ended.
    #[must_use]
    pub fn connect(&self) -> DuplexStream {
        let (ours, theirs) = duplex(PIPE_LEN_BYTES);
        // A connection that the server does not take is dropped, which closes it.
        let _ = self.connections.send(theirs);
        ours
    }
}

struct Pipes {
    arriving: mpsc::UnboundedReceiver<DuplexStream>,
}

impl Listener for Pipes {
    type Io = DuplexStream;
    type Addr = Peer;

    async fn accept(&mut self) -> (DuplexStream, Peer) {
        match self.arriving.recv().await {
            Some(stream) => (stream, Peer::default()),
            // All clients are gone: there will be no more connections.
            None => pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer::default())
    }
}

impl Connected<IncomingStream<'_, Pipes>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Pipes>) -> Self {
        stream.remote_addr().clone()
    }
}
