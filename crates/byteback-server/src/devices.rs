//! Joining, and the management of devices.

use crate::call::{Call, blocking, json};
use crate::problem::{Answer, refuse};
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use byteback_api::FolderName;
use byteback_api::messages::{
    DeviceInfo, DeviceList, GrantInfo, InvitationInfo, InviteRequest, InviteResponse, JoinRequest, JoinResponse,
    RenameDevice,
};
use byteback_api::problem::{Code, Problem};
use byteback_model::DeviceId;
use byteback_store::devices::{Device, Invitation, NewInvitation};

/// A device in the API's form.
#[must_use]
pub fn device_info(device: Device) -> DeviceInfo {
    let grant = |grant: byteback_store::devices::Grant| GrantInfo {
        folder: grant.folder,
        read_only: !grant.writes,
    };
    DeviceInfo {
        id: device.id,
        name: device.name,
        created_ns: device.created_ns,
        seen_ns: device.seen_ns,
        revoked_ns: device.revoked_ns,
        manages: device.manages,
        folders: device.folders.into_iter().map(grant).collect(),
    }
}

/// An invitation in the API's form.
#[must_use]
pub fn invitation_info(invitation: Invitation) -> InvitationInfo {
    InvitationInfo {
        id: invitation.id,
        folder: invitation.folder,
        read_only: !invitation.writes,
        name: invitation.name,
        created_ns: invitation.created_ns,
        expires_ns: invitation.expires_ns,
    }
}

/// Marks an answer that carries a secret as not to be stored.
fn unstored(mut response: Response<Body>) -> Response<Body> {
    *response.status_mut() = StatusCode::CREATED;
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn nothing() -> Answer {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

/// A folder's name as it is stored. It was checked when the invitation was made.
fn folder_name(name: &str) -> Result<FolderName, Box<Problem>> {
    let damaged = |e| {
        let detail = format!("the stored folder name {name:?} is not valid: {e}");
        refuse(Code::StorageDamaged, detail)
    };
    name.parse().map_err(damaged)
}

pub(crate) async fn join(mut call: Call) -> Answer {
    call.finish_query()?;
    let request: JoinRequest = call.take_json().await?;
    let store = call.shared.store.clone();
    let joined = blocking(move || {
        let own = request.device_token.as_deref();
        store.roster().join(&request.join_token, &request.name, own)
    })
    .await?;
    let response = json(&JoinResponse {
        device_id: joined.device,
        token: joined.token,
        name: joined.name,
        folder: joined.folder.as_deref().map(folder_name).transpose()?,
        read_only: !joined.writes,
    })?;
    Ok(unstored(response))
}

pub(crate) async fn devices(mut call: Call) -> Answer {
    call.finish_query()?;
    let store = call.shared.store.clone();
    let (devices, invitations) =
        blocking(move || Ok((store.roster().devices()?, store.roster().invitations()?))).await?;
    json(&DeviceList {
        devices: devices.into_iter().map(device_info).collect(),
        invitations: invitations.into_iter().map(invitation_info).collect(),
        asking: call.device,
    })
}

pub(crate) async fn rename(mut call: Call) -> Answer {
    call.finish_query()?;
    let id: DeviceId = call.param("device")?;
    let request: RenameDevice = call.take_json().await?;
    let store = call.shared.store.clone();
    let renamed = blocking(move || {
        store.roster().rename(id, &request.name)?;
        store.roster().device(id)
    })
    .await?;
    json(&device_info(renamed))
}

pub(crate) async fn revoke(mut call: Call) -> Answer {
    call.finish_query()?;
    let id: DeviceId = call.param("device")?;
    let store = call.shared.store.clone();
    blocking(move || store.roster().revoke(id)).await?;
    // A device that revokes itself must still receive the success.
    if id != call.device {
        call.shared.presence.turn_out(id);
    }
    nothing()
}

pub(crate) async fn invite(mut call: Call) -> Answer {
    call.finish_query()?;
    let request: InviteRequest = call.take_json().await?;
    let store = call.shared.store.clone();
    let new = NewInvitation {
        folder: request.folder.map(|folder| folder.as_str().to_owned()),
        writes: !request.read_only,
        name: request.name,
        valid_ns: i64::try_from(request.valid_ns).unwrap_or(i64::MAX),
    };
    let invited = blocking(move || store.roster().invite(&new)).await?;
    let response = json(&InviteResponse {
        id: invited.id,
        join_token: invited.token,
        expires_ns: invited.expires_ns,
        folder_is_new: invited.folder_is_new,
    })?;
    Ok(unstored(response))
}

pub(crate) async fn withdraw(mut call: Call) -> Answer {
    call.finish_query()?;
    let id: u64 = call.param("invitation")?;
    let store = call.shared.store.clone();
    blocking(move || store.roster().withdraw(id)).await?;
    nothing()
}
