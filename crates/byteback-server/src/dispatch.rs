//! The one gate that every request passes.
//!
//! In this order: the connection is marked as at work; if the route requires it, the token is
//! checked, and whether its device was given what the route's [`Access`] asks for; the call runs,
//! until its device is revoked; the answer is counted. A route cannot forget any of it, because
//! routes have no handlers of their own: the table says which call belongs to an address, and one
//! `match` says which function answers it. The pages of the guide pass the same gate, without a
//! token.

use crate::body::{BodyLimits, WorkingBody, collect, drain};
use crate::connection::{Activity, Peer};
use crate::events::Listeners;
use crate::metrics::Metrics;
use crate::presence::{ActiveRequest, Presence};
use crate::problem::{of_store, parameter, refuse, respond};
use crate::server::ServerConfig;
use crate::{damage, devices, events, guide, listing, reading, search, signature, upload};
use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::{HeaderMap, HeaderValue, Response, header};
use byteback_api::FolderName;
use byteback_api::messages::Health;
use byteback_api::problem::{Code, Problem};
use byteback_api::query::Query;
use byteback_api::routes::{Access, Route};
use byteback_model::{DeviceId, FileId};
use byteback_store::devices::{FolderAccess, Pass};
use byteback_store::{Store, StoreError};
use serde::Serialize;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Longest body of a call that takes JSON, in bytes.
const JSON_LEN_MAX: u64 = 64 * 1024;

/// Most bytes of a rejected request's body that are read and dropped: enough for the sender to read
/// the answer, too little to be worth an attack.
const DRAIN_LEN_MAX: u64 = 256 * 1024;

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
    /// The clients' subscriptions to the events of folders.
    pub(crate) listeners: Listeners,
    /// Whether the server is about to stop.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Searches whose list is too long to arrive before they are at work.
    pub(crate) long_searches: Arc<Semaphore>,
    /// Search lists that are arriving and not at work yet.
    pub(crate) lists: Arc<Semaphore>,
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
    pub(crate) body: Body,
}

pub(crate) type Answer = Result<Response<Body>, Box<Problem>>;

/// The thing that the address of a request names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// A call of the API.
    Call(Route),
    /// A page of the guide, for which no token is needed.
    Guide,
    /// Nothing; the code says why.
    Nothing(Code),
}

/// Answers a request.
pub(crate) async fn dispatch(shared: Arc<Shared>, target: Target, request: Request) -> Response<Body> {
    let peer = request.extensions().get::<axum::extract::ConnectInfo<Peer>>();
    let activity = peer.map(|info| Arc::clone(&info.0.activity)).unwrap_or_default();
    let (lacks_tls, at_work) = (activity.lacks_tls(), Some(activity.begin()));
    let route = match target {
        Target::Call(route) => Some(route),
        Target::Guide | Target::Nothing(_) => None,
    };
    let mut stay = None;
    let answer = match target {
        _ if lacks_tls => {
            drain(request.into_body(), drain_limits(&shared)).await;
            Err(refuse(Code::TlsRequired, "the request came over plain HTTP"))
        }
        Target::Call(route) => answer(Arc::clone(&shared), route, request, &activity, &mut stay).await,
        Target::Guide => {
            let (parts, body) = request.into_parts();
            drain(body, drain_limits(&shared)).await;
            guide::answer(&shared, &parts).await
        }
        Target::Nothing(code) => {
            let detail = format!("{} {}", request.method(), request.uri().path());
            drain(request.into_body(), drain_limits(&shared)).await;
            Err(refuse(code, detail))
        }
    };
    let response = answer.unwrap_or_else(|problem| {
        if problem.status >= 500 && problem.code != Code::Unavailable {
            shared
                .config
                .report(&format!("{}: {}", route.map_or("?", Route::path), problem));
        }
        respond(&problem)
    });
    shared.metrics.answered(route, response.status().as_u16());
    response.map(|inner| Body::new(WorkingBody::new(inner, stay, at_work)))
}

fn drain_limits(shared: &Shared) -> BodyLimits {
    BodyLimits {
        len_max: DRAIN_LEN_MAX,
        idle_timeout: shared.config.idle_timeout,
        bytes_per_s_min: None,
    }
}

async fn answer(
    shared: Arc<Shared>,
    route: Route,
    request: Request,
    activity: &Activity,
    stay: &mut Option<ActiveRequest>,
) -> Answer {
    let (mut parts, body) = request.into_parts();
    let params = RawPathParams::from_request_parts(&mut parts, &()).await;
    let params = params.map_err(|e| parameter(format!("cannot decode the address: {e}")));
    let params: Result<Vec<(String, String)>, _> = params.map(|params| {
        params
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    });
    let pass = match admit(
        &shared,
        route,
        &parts.headers,
        params.as_deref().unwrap_or_default(),
        activity,
    )
    .await
    {
        Ok(pass) => pass,
        Err(problem) => {
            drain(body, drain_limits(&shared)).await;
            return Err(problem);
        }
    };
    let params = params?;
    let query = Query::parse(parts.uri.query()).map_err(|e| parameter(e.to_string()))?;
    let call = Call {
        shared: Arc::clone(&shared),
        device: pass.map_or(0, |pass| pass.device),
        manages: pass.is_some_and(|pass| pass.manages),
        params,
        query,
        headers: parts.headers,
        body,
    };
    let Some(pass) = pass else {
        return run(route, call).await;
    };
    let revoked = stay.insert(shared.presence.enter(pass.device)).revoked();
    tokio::select! {
        answer = run(route, call) => answer,
        () = revoked => {
            // The refusal itself is not cut off.
            *stay = None;
            Err(of_store(&StoreError::DeviceRevoked(pass.device)))
        }
    }
}

/// Runs the one function that answers each route.
async fn run(route: Route, call: Call) -> Answer {
    match route {
        Route::Health => {
            call.query.finish().map_err(|e| parameter(e.to_string()))?;
            json(&Health {
                status: "ok".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            })
        }
        Route::Metrics => {
            let metrics = call.shared.metrics.to_text(call.shared.store.sums_cost());
            Ok(text("text/plain; version=0.0.4", metrics))
        }
        Route::OpenApi => Ok(text("application/json", byteback_api::openapi::DOCUMENT.to_owned())),
        Route::Join => devices::join(call).await,
        Route::Devices => devices::devices(call).await,
        Route::DeviceRename => devices::rename(call).await,
        Route::DeviceRevoke => devices::revoke(call).await,
        Route::Invite => devices::invite(call).await,
        Route::InvitationWithdraw => devices::withdraw(call).await,
        Route::Folders => listing::folders(call).await,
        Route::FolderCreate => listing::folder_create(call).await,
        Route::Folder => listing::folder(call).await,
        Route::PartPut => upload::part_put(call).await,
        Route::BatchCommit => upload::batch_commit(call).await,
        Route::BatchAbandon => upload::batch_abandon(call).await,
        Route::BatchStatus => listing::batch_status(call).await,
        Route::Snapshots => listing::snapshots(call).await,
        Route::SnapshotCreate => listing::snapshot_create(call).await,
        Route::SnapshotDelete => listing::snapshot_delete(call).await,
        Route::Tree => listing::tree(call).await,
        Route::Node => listing::node(call).await,
        Route::Extents => listing::extents(call).await,
        Route::Changes => listing::changes(call).await,
        Route::Diff => listing::diff(call).await,
        Route::Versions => listing::versions(call).await,
        Route::Moment => listing::moment(call).await,
        Route::Events => events::events(call).await,
        Route::Content => reading::content(call).await,
        Route::Signature => signature::signature(call).await,
        Route::Groups => search::groups(call).await,
        Route::Matches => search::matches(call).await,
        Route::Chunks => search::chunks(call).await,
        Route::Digests => reading::digests(call).await,
        Route::Bundle => reading::bundle(call).await,
        Route::Damage => damage::damage(call).await,
        Route::Heal => damage::heal(call).await,
        Route::KnownDamage => damage::known_damage(call).await,
        Route::Totals => listing::totals(call).await,
        Route::Verify => reading::verify(call).await,
    }
}

/// Authenticates the requesting device if the route needs one; refuses a device without access.
async fn admit(
    shared: &Arc<Shared>,
    route: Route,
    headers: &HeaderMap,
    params: &[(String, String)],
    activity: &Activity,
) -> Result<Option<Pass>, Box<Problem>> {
    let access = route.access();
    if access == Access::Open {
        return Ok(None);
    }
    let folder = params.iter().find(|(name, _)| name == "folder").map(|(_, value)| value);
    let pass = authenticate(shared, headers, folder.cloned())
        .await
        .inspect_err(|problem| {
            if problem.code == Code::Unauthorized {
                activity.has_shown_no_token();
            }
        })?;
    if !activity.has_shown_token() {
        return Err(refuse(Code::Unavailable, "devices have too many connections open"));
    }
    if pass.is_to_be_noted && shared.presence.is_to_be_noted(pass.device) {
        let store = shared.store.clone();
        // Runs in the background; its failure does no harm.
        tokio::task::spawn_blocking(move || store.roster().note_seen(pass.device));
    }
    let folder = folder.map_or("", String::as_str);
    let refused = |detail: String| Err(refuse(Code::Forbidden, detail));
    match access {
        Access::Open | Access::Member => Ok(Some(pass)),
        Access::Manages if pass.manages => Ok(Some(pass)),
        Access::Manages => refused("this device may not manage devices".to_owned()),
        Access::Reads | Access::Writes if pass.folder == FolderAccess::Nothing => {
            // The device must not learn whether the folder exists.
            refused(format!("this device has no access to a folder '{folder}'"))
        }
        Access::Writes if pass.folder < FolderAccess::Writes => {
            refused(format!("this device may only read the folder '{folder}'"))
        }
        Access::Reads | Access::Writes => Ok(Some(pass)),
    }
}

pub(crate) async fn authenticate(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    folder: Option<String>,
) -> Result<Pass, Box<Problem>> {
    let refused = |detail: &str| refuse(Code::Unauthorized, detail);
    let header = headers
        .get(header::AUTHORIZATION)
        .ok_or_else(|| refused("the Authorization header is missing"))?;
    let token = header
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim().to_owned())
        .ok_or_else(|| refused("the Authorization header is not 'Bearer TOKEN'"))?;
    let store = shared.store.clone();
    let pass = blocking(move || store.roster().authenticate(&token, folder.as_deref())).await?;
    pass.ok_or_else(|| refused("the token is unknown"))
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

fn text(media: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}
