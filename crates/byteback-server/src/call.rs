//! The common ground of the functions that answer calls: the request's parts, the shared state,
//! and permits to work for long.
//!
//! A call holds only what `dispatch` let through. Work of the store runs on blocking threads
//! ([`blocking`]); the number of those that are busy for long is bounded by permits.

use crate::body::{BodyLimits, collect};
use crate::config::ServerConfig;
use crate::line::OpenLines;
use crate::metrics::Metrics;
use crate::presence::Presence;
use crate::problem::{Answer, of_store, parameter, refuse};
use crate::subscriptions::Subscriptions;
use axum::body::Body;
use axum::http::{Extensions, HeaderMap, HeaderValue, Response, header};
use byteback_api::FolderName;
use byteback_api::problem::{Code, Problem};
use byteback_api::query::Query;
use byteback_model::{DeviceId, FileId};
use byteback_store::{Store, StoreError};
use serde::Serialize;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

/// Longest body of a call that takes JSON, in bytes.
const JSON_LEN_MAX: u64 = 64 * 1024;

/// State shared by all calls.
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) config: ServerConfig,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) presence: Arc<Presence>,
    /// Long calls that hold a blocking thread while they wait for the client.
    pub(crate) streams: Arc<Semaphore>,
    /// Calls that read and hash a whole content for a short request.
    pub(crate) signatures: Arc<Semaphore>,
    /// Calls that keep a search list in memory.
    pub(crate) searches: Arc<Semaphore>,
    /// Clients that listen for events.
    pub(crate) events: Arc<Semaphore>,
    /// Lines that are open.
    pub(crate) lines: Arc<Semaphore>,
    pub(crate) open_lines: OpenLines,
    /// The clients' subscriptions to the events of folders.
    pub(crate) subscriptions: Subscriptions,
    /// Whether the server is about to stop.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Searches whose list is too long to arrive before they are at work.
    pub(crate) long_searches: Arc<Semaphore>,
    /// Search lists that are arriving and not at work yet.
    pub(crate) lists: Arc<Semaphore>,
    /// A batch was applied, which may have scattered contents over more frames.
    pub(crate) batch_applied: Notify,
}

/// A request with everything that its call needs.
pub(crate) struct Call {
    pub(crate) shared: Arc<Shared>,
    pub(crate) device: DeviceId,
    /// Whether the device may use all folders and manage others.
    pub(crate) manages: bool,
    pub(crate) params: Vec<(String, String)>,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    /// The connection that the request came on.
    pub(crate) extensions: Extensions,
    pub(crate) body: Body,
}

impl Call {
    /// A parameter of the path.
    pub(crate) fn param<T>(&self, name: &str) -> Result<T, Box<Problem>>
    where
        T: FromStr,
        T::Err: Display,
    {
        let text = self
            .params
            .iter()
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value);
        text.parse()
            .map_err(|e: T::Err| parameter(format!("'{name}' in the address: {e}")))
    }

    pub(crate) fn folder(&self) -> Result<String, Box<Problem>> {
        Ok(self.param::<FolderName>("folder")?.as_str().to_owned())
    }

    pub(crate) fn node(&self) -> Result<byteback_model::FileId, Box<Problem>> {
        self.param::<FileId>("node")
    }

    /// A parameter of the query.
    pub(crate) fn query<T>(&mut self, name: &str) -> Result<Option<T>, Box<Problem>>
    where
        T: FromStr,
        T::Err: Display,
    {
        self.query.take(name).map_err(|e| parameter(e.to_string()))
    }

    /// Refuses parameters that the call does not have.
    pub(crate) fn finish_query(&mut self) -> Result<(), Box<Problem>> {
        std::mem::take(&mut self.query)
            .finish()
            .map_err(|e| parameter(e.to_string()))
    }

    /// Takes the body as JSON; the call continues without it.
    pub(crate) async fn take_json<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, Box<Problem>> {
        let limits = BodyLimits {
            len_max: JSON_LEN_MAX,
            idle_timeout: self.shared.config.idle_timeout,
            bytes_per_s_min: None,
        };
        let bytes = collect(std::mem::take(&mut self.body), limits).await?;
        serde_json::from_slice(&bytes)
            .map_err(|e| refuse(Code::InvalidBody, format!("the body is not the expected JSON: {e}")))
    }
}

/// Runs a call of the store on a blocking thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Box<Problem>> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|e| of_store(&e)),
        Err(_) => Err(refuse(Code::Internal, "the call panicked or was cancelled")),
    }
}

/// A permit to hold a blocking thread for as long as a client sends or receives.
pub(crate) async fn stream_permit(shared: &Shared) -> Result<OwnedSemaphorePermit, Box<Problem>> {
    permit(shared, &shared.streams, "transfers").await
}

/// A permit to keep a processor busy with a whole content.
pub(crate) async fn signature_permit(shared: &Shared) -> Result<OwnedSemaphorePermit, Box<Problem>> {
    permit(shared, &shared.signatures, "signatures").await
}

/// A permit to keep a search list in memory.
pub(crate) async fn search_permit(shared: &Shared) -> Result<OwnedSemaphorePermit, Box<Problem>> {
    permit(shared, &shared.searches, "searches").await
}

/// A permit for a search whose list arrives while it is at work.
pub(crate) async fn long_search_permit(shared: &Shared) -> Result<OwnedSemaphorePermit, Box<Problem>> {
    permit(shared, &shared.long_searches, "searches for long lists").await
}

/// A permit to send a list.
pub(crate) async fn list_permit(shared: &Shared) -> Result<OwnedSemaphorePermit, Box<Problem>> {
    permit(shared, &shared.lists, "searches").await
}

async fn permit(shared: &Shared, of: &Arc<Semaphore>, what: &str) -> Result<OwnedSemaphorePermit, Box<Problem>> {
    let wait = Arc::clone(of).acquire_owned();
    match tokio::time::timeout(shared.config.idle_timeout, wait).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(refuse(Code::Unavailable, format!("too many {what} are running"))),
    }
}

pub(crate) fn json<T: Serialize>(value: &T) -> Answer {
    match serde_json::to_string(value) {
        Ok(body) => Ok(text("application/json", body)),
        Err(e) => Err(refuse(Code::Internal, format!("cannot serialize the answer: {e}"))),
    }
}

pub(crate) fn text(media: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}
