//! Starting and stopping the server.
//!
//! A server owns a thread with a runtime; its starter keeps a [`ServerHandle`]. Stopping: the
//! listener closes, idle connections close, requests at work finish or are cut off after
//! [`ServerConfig::shutdown_timeout`]. Requests that are cut off were not acknowledged.
//!
//! In the background, the store is kept in order ([`upkeep`]).

use crate::call::Shared;
use crate::config::ServerConfig;
use crate::connection::Peer;
use crate::dispatch::{Target, dispatch};
use crate::door::{Door, DoorLimits};
use crate::guide::GUIDE_PATH;
use crate::line::{Calls, OpenLines};
use crate::listener::CountingListener;
use crate::metrics::Metrics;
use crate::presence;
use crate::subscriptions::Subscriptions;
use crate::upkeep;
use axum::Router;
use axum::extract::Request;
use axum::extract::connect_info::Connected;
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::serve::{IncomingStream, Listener};
use byteback_api::problem::Code;
use byteback_api::routes::{Method, Route};
use byteback_store::Store;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, oneshot, watch};

/// Errors of starting and stopping a server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; is another server running there?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Threads cannot be started.
    #[error("cannot start the server's threads: {0}")]
    Threads(#[source] io::Error),
    /// The connection loop failed.
    #[error("the server stopped serving: {0}")]
    Serve(#[source] io::Error),
    /// The server's thread panicked.
    #[error("the server's thread panicked; nothing acknowledged is lost, start the server again")]
    Panicked,
}

/// The server; see [`Server::start`].
#[derive(Debug)]
pub struct Server;

/// A running server. Dropping the handle stops the server and waits for it.
#[derive(Debug)]
pub struct ServerHandle {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Server {
    /// Binds the address and serves `store`. The server accepts connections when this returns.
    ///
    /// # Errors
    /// The address is taken or not ours; threads cannot be started.
    pub fn start(config: ServerConfig, store: Store) -> Result<ServerHandle, ServerError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            // Streams may hold their threads for long; the rest is for short calls.
            .max_blocking_threads(
                config
                    .streams_max
                    .saturating_add(config.signatures_max)
                    .saturating_add(config.searches_max)
                    .saturating_add(64),
            )
            .thread_name("byteback-serve")
            .enable_all()
            .build()
            .map_err(ServerError::Threads)?;
        let listen = |source| ServerError::Listen {
            address: config.listen,
            source,
        };
        let listener = runtime.block_on(TcpListener::bind(config.listen)).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let metrics = Arc::new(Metrics::new());
        let (stop, stopped) = oneshot::channel();
        let serving_metrics = Arc::clone(&metrics);
        let thread = std::thread::Builder::new()
            .name("byteback-serve".to_owned())
            .spawn(move || {
                let shutdown_timeout = config.shutdown_timeout;
                let limits = DoorLimits {
                    members_max: config.connections_max.saturating_sub(config.strangers_max).max(1),
                    strangers_max: config.strangers_max,
                    strangers_per_address_max: config.strangers_per_address_max,
                };
                let listener = CountingListener {
                    inner: listener,
                    door: Door::new(limits, Arc::clone(&serving_metrics)),
                    metrics: Arc::clone(&serving_metrics),
                    head_timeout: config.head_timeout,
                    keep_timeout: config.keep_timeout,
                    idle_timeout: config.idle_timeout,
                    identity: config.identity.clone(),
                };
                let result = runtime.block_on(serve(config, store, listener, serving_metrics, stopped));
                // Blocking calls that still run get the same time to end; then the end of the
                // process ends them.
                runtime.shutdown_timeout(shutdown_timeout);
                result
            })
            .map_err(ServerError::Threads)?;
        Ok(ServerHandle {
            address,
            metrics,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl ServerHandle {
    /// The address that the server listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes read from all connections so far.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.metrics.received_bytes()
    }

    /// Bytes written to all connections so far.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.metrics.sent_bytes()
    }

    /// Connections that were made so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.metrics.connections()
    }

    /// Stops accepting, lets requests at work finish, and waits for the end.
    ///
    /// # Errors
    /// The server failed before.
    pub fn shutdown(mut self) -> Result<(), ServerError> {
        self.stop_and_wait()
    }

    /// Waits until the server ends by itself, which it only does when it fails.
    ///
    /// # Errors
    /// The failure that ended the server.
    pub fn wait(mut self) -> Result<(), ServerError> {
        let result = self.thread.take().map_or(Ok(Ok(())), JoinHandle::join);
        result.unwrap_or(Err(ServerError::Panicked))
    }

    fn stop_and_wait(&mut self) -> Result<(), ServerError> {
        if let Some(stop) = self.stop.take() {
            // A server that ended by itself no longer receives this.
            let _ = stop.send(());
        }
        let result = self.thread.take().map_or(Ok(Ok(())), JoinHandle::join);
        result.unwrap_or(Err(ServerError::Panicked))
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        // A caller that wants the result calls `shutdown`.
        let _ = self.stop_and_wait();
    }
}

/// Serves the connections of `listener` until `stopped` is sent.
pub(crate) async fn serve<L: Listener>(
    config: ServerConfig,
    store: Store,
    listener: L,
    metrics: Arc<Metrics>,
    stopped: oneshot::Receiver<()>,
) -> Result<(), ServerError>
where
    L::Addr: fmt::Debug,
    Peer: for<'a> Connected<IncomingStream<'a, L>>,
{
    let shutdown_timeout = config.shutdown_timeout;
    let streams = Arc::new(Semaphore::new(config.streams_max));
    let signatures = Arc::new(Semaphore::new(config.signatures_max));
    let searches = Arc::new(Semaphore::new(config.searches_max));
    let events = Arc::new(Semaphore::new(config.events_max));
    // Half of the members' places.
    let members_max = config.connections_max.saturating_sub(config.strangers_max);
    let lines_max = u32::try_from(members_max / 2).unwrap_or(u32::MAX).max(1);
    let lines = Arc::new(Semaphore::new(lines_max as usize));
    let (tell_stopping, heard_stopping) = watch::channel(false);
    let long_searches = Arc::new(Semaphore::new(config.searches_max.div_ceil(2)));
    let lists = Arc::new(Semaphore::new(crate::search::LISTS_MAX));
    let shared = Arc::new(Shared {
        store,
        presence: Arc::default(),
        config,
        metrics,
        streams,
        signatures,
        searches,
        events,
        lines: Arc::clone(&lines),
        open_lines: OpenLines::default(),
        subscriptions: Subscriptions::default(),
        stopping: heard_stopping,
        long_searches,
        lists,
        batch_applied: Notify::new(),
    });
    let collector = tokio::spawn(upkeep::collect(Arc::clone(&shared)));
    let defragmenter = tokio::spawn(upkeep::defragment(Arc::clone(&shared)));
    let watcher = tokio::spawn(presence::watch(Arc::clone(&shared.presence), shared.store.clone()));
    let (stopping, mut deadline) = oneshot::channel();
    let service = router(shared).into_make_service_with_connect_info::<Peer>();
    let serving = axum::serve(listener, service).with_graceful_shutdown(async move {
        // A dropped handle means the same.
        let _ = stopped.await;
        tell_stopping.send_replace(true);
        let _ = stopping.send(());
    });
    let cut_off = async move {
        // The sender lives as long as the server.
        let _ = (&mut deadline).await;
        tokio::time::sleep(shutdown_timeout).await;
    };
    let result = tokio::select! {
        result = async {
            serving.await?;
            // Lines are no connections of the library any more; they end by themselves, too.
            let _ = lines.acquire_many(lines_max).await;
            Ok(())
        } => result.map_err(ServerError::Serve),
        () = cut_off => Ok(()),
    };
    collector.abort();
    defragmenter.abort();
    watcher.abort();
    result
}

/// The calls that stand for themselves, built from the one table.
fn calls(shared: &Arc<Shared>) -> Router {
    let mut router = Router::new();
    let mut paths: Vec<&str> = Route::ALL
        .iter()
        .filter(|route| **route != Route::Line)
        .map(|route| route.path())
        .collect();
    paths.sort_unstable();
    paths.dedup();
    for path in paths {
        let mut methods: MethodRouter = MethodRouter::new();
        for &route in Route::ALL.iter().filter(|route| route.path() == path) {
            let shared = Arc::clone(shared);
            let filter = match route.method() {
                Method::Get => MethodFilter::GET,
                Method::Put => MethodFilter::PUT,
                Method::Post => MethodFilter::POST,
                Method::Delete => MethodFilter::DELETE,
            };
            let handler = move |request: Request| dispatch(Arc::clone(&shared), Target::Call(route), request);
            methods = methods.merge(on(filter, handler));
        }
        router = router.route(path, methods);
    }
    with_refusals(router, shared)
}

/// The router: calls, lines that carry calls, and the guide.
fn router(shared: Arc<Shared>) -> Router {
    let (of_calls, of_lines) = (calls(&shared), Arc::clone(&shared));
    let carried = Calls(of_calls.clone());
    let open_line = move |mut request: Request| {
        request.extensions_mut().insert(carried.clone());
        dispatch(Arc::clone(&of_lines), Target::Call(Route::Line), request)
    };
    let mut router = of_calls.route(Route::Line.path(), on(MethodFilter::GET, open_line));
    for path in [GUIDE_PATH.trim_end_matches('/'), GUIDE_PATH, "/guide/{*page}"] {
        let shared = Arc::clone(&shared);
        let handler = move |request: Request| dispatch(Arc::clone(&shared), Target::Guide, request);
        // HEAD comes with it.
        router = router.route(path, on(MethodFilter::GET, handler));
    }
    with_refusals(router, &shared)
}

/// Answers requests for which there is no call.
fn with_refusals(router: Router, shared: &Arc<Shared>) -> Router {
    let refuse = |code: Code| {
        let shared = Arc::clone(shared);
        move |request: Request| dispatch(Arc::clone(&shared), Target::Nothing(code), request)
    };
    router
        .fallback(refuse(Code::RouteNotFound))
        .method_not_allowed_fallback(refuse(Code::MethodNotAllowed))
}
