//! Admission: which device a request comes from, and whether its route is open to that device.
//!
//! Every request asks anew, because a token may be withdrawn at any time.

use crate::call::{Shared, blocking};
use crate::connection::Activity;
use crate::problem::refuse;
use axum::http::{HeaderMap, header};
use byteback_api::problem::{Code, Problem};
use byteback_api::routes::{Access, Route};
use byteback_store::devices::{FolderAccess, Pass};
use std::sync::Arc;

/// Authenticates the requesting device if the route needs one; refuses a device without access.
pub(crate) async fn admit(
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

/// The device whose token the headers show, with its access to `folder`.
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
