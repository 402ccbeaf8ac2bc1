//! Joining a server, and the calls by which a device manages others.

use super::calls::{json_body, to_json};
use super::{Ask, ClientOptions, ServerClient, persist, read_json};
use crate::Result;
use crate::error::ServerError;
use byteback_api::messages::{
    DeviceInfo, DeviceList, InviteRequest, InviteResponse, JoinRequest, JoinResponse, RenameDevice,
};
use byteback_api::routes::Route;
use byteback_model::DeviceId;

/// Exchanges a one-time join token for a device's own token.
///
/// With a token that the device drew for itself ([`JoinRequest::device_token`]), the request is
/// repeated like others: the server knows the device if its answer was lost. Without one it is sent
/// only once: a token stays used even if the answer got lost.
///
/// # Errors
/// [`ServerErrorKind::WrongToken`](crate::ServerErrorKind::WrongToken) when the token is unknown,
/// used, expired or withdrawn, or the device was revoked.
pub fn join(base_url: &str, request: &JoinRequest, options: ClientOptions) -> Result<JoinResponse, ServerError> {
    let client = ServerClient::new(base_url, "", options)?;
    client.show_nothing();
    let bytes = to_json(request)?;
    let mut ask = client.ask(Route::Join, &[], &[]);
    ask.body = json_body(&bytes);
    let once = || read_json(&ask.name(), client.send_once(&ask)?);
    match request.device_token {
        Some(_) => persist(client.pauses(), &|_| true, once),
        None => once(),
    }
}

impl ServerClient {
    /// All devices, and the invitations that wait to be used.
    ///
    /// # Errors
    /// [`ServerErrorKind::Forbidden`](crate::ServerErrorKind::Forbidden) if the device does not
    /// manage others; as every call.
    pub fn devices(&self) -> Result<DeviceList, ServerError> {
        self.json(&self.ask(Route::Devices, &[], &[]))
    }

    /// Renames a device.
    ///
    /// # Errors
    /// As [`ServerClient::devices`]; there is no such device.
    pub fn rename_device(&self, device: DeviceId, name: &str) -> Result<DeviceInfo, ServerError> {
        let name = name.to_owned();
        let bytes = to_json(&RenameDevice { name })?;
        let mut ask = self.ask(Route::DeviceRename, &[&device.to_string()], &[]);
        ask.body = json_body(&bytes);
        self.json(&ask)
    }

    /// Revokes a device's token.
    ///
    /// # Errors
    /// As [`ServerClient::devices`]; there is no such device.
    pub fn revoke_device(&self, device: DeviceId) -> Result<(), ServerError> {
        self.done(&self.ask(Route::DeviceRevoke, &[&device.to_string()], &[]))
    }

    /// Makes a join token. Sent only once, so that there are not two of them.
    ///
    /// # Errors
    /// As [`ServerClient::devices`]; there is no such folder, and a device that may only read is
    /// invited.
    pub fn invite(&self, request: &InviteRequest) -> Result<InviteResponse, ServerError> {
        let bytes = to_json(request)?;
        let mut ask = self.ask(Route::Invite, &[], &[]);
        ask.body = json_body(&bytes);
        self.send_for_json(&ask)
    }

    /// Withdraws an unused invitation.
    ///
    /// # Errors
    /// As [`ServerClient::devices`]; there is no such invitation.
    pub fn withdraw_invitation(&self, invitation: u64) -> Result<(), ServerError> {
        self.done(&self.ask(Route::InvitationWithdraw, &[&invitation.to_string()], &[]))
    }

    /// A request whose answer has no body.
    fn done(&self, ask: &Ask<'_>) -> Result<(), ServerError> {
        self.send(ask).map(|_| ())
    }
}
