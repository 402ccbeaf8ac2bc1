//! The one gate that every request passes.
//!
//! In this order: the connection is marked as at work; if the route requires it, the token is
//! checked, and whether its device was given what the route's access asks for (`admission`); the
//! call runs, until its device is revoked; the answer is counted. A route cannot forget any of it,
//! because routes have no handlers of their own: the table says which call belongs to an address,
//! and one `match` says which function answers it. The pages of the guide pass the same gate,
//! without a token.

use crate::admission::admit;
use crate::body::{BodyLimits, WorkingBody, drain};
use crate::call::{Call, Shared, json, text};
use crate::connection::{Activity, Peer};
use crate::presence::ActiveRequest;
use crate::problem::{Answer, of_store, parameter, refuse, respond};
use crate::{damage, devices, directories, events, guide, line, listing, reading, search, signature, upload};
use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::Response;
use byteback_api::messages::Health;
use byteback_api::problem::Code;
use byteback_api::query::Query;
use byteback_api::routes::Route;
use byteback_store::StoreError;
use std::sync::Arc;

/// Most bytes of a rejected request's body that are read and dropped: enough for the sender to read
/// the answer, too little to be worth an attack.
const DRAIN_LEN_MAX: u64 = 256 * 1024;

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
            guide::answer(shared.config.guide.as_ref(), &parts).await
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
        extensions: parts.extensions,
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
        Route::Line => line::line(call).await,
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
        Route::Excerpt => signature::excerpt(call).await,
        Route::ExcerptBytes => reading::excerpt_bytes(call).await,
        Route::Groups => search::groups(call).await,
        Route::Matches => search::matches(call).await,
        Route::Chunks => search::chunks(call).await,
        Route::Alike => reading::alike(call).await,
        Route::Digests => reading::digests(call).await,
        Route::Bundle => reading::bundle(call).await,
        Route::Contents => reading::contents(call).await,
        Route::Damage => damage::damage(call).await,
        Route::Heal => damage::heal(call).await,
        Route::KnownDamage => damage::known_damage(call).await,
        Route::DirectoryDigests => directories::directory_digests(call).await,
        Route::Totals => listing::totals(call).await,
        Route::Verify => reading::verify(call).await,
    }
}
