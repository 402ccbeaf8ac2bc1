//! Rows about access: devices, the folders they were given, and invitations to join.
//!
//! Tokens are stored only as their SHA-256. A folder is given by its name, so that a device may be
//! invited to one that does not exist yet; folders are never renamed or removed.

use crate::error::StoreError;
use byteback_model::DeviceId;

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRow {
    /// Its number, never used twice.
    pub id: DeviceId,
    /// Its name.
    pub name: String,
    /// SHA-256 of its token.
    pub token_hash: [u8; 32],
    /// Time at which it joined.
    pub created_ns: i64,
    /// Whether it may use all folders, invite others, and rename and revoke devices.
    pub manages: bool,
    /// Time of its last request, exact to some minutes.
    pub seen_ns: Option<i64>,
    /// Time since which its token is void.
    pub revoked_ns: Option<i64>,
}

/// An invitation to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvitationRow {
    /// Its number, never used twice.
    pub id: u64,
    /// SHA-256 of its join token.
    pub hash: [u8; 32],
    /// Time of its creation.
    pub created_ns: i64,
    /// Time of its expiry.
    pub expires_ns: i64,
    /// The folder that it gives; `None`: the device may use all folders and manage others.
    pub folder: Option<String>,
    /// Whether the device may change the folder.
    pub writes: bool,
    /// Name for the device; empty: the device names itself.
    pub name: String,
    /// The device that used it.
    pub device: Option<DeviceId>,
    /// Time since which it is withdrawn.
    pub withdrawn_ns: Option<i64>,
}

/// Answers about devices. All errors are the engine's.
#[expect(clippy::missing_errors_doc, reason = "said once for all above")]
pub trait DeviceRead {
    /// The device whose token has this hash.
    fn device_by_token(&self, hash: &[u8; 32]) -> Result<Option<DeviceRow>, StoreError>;
    /// The device of this number.
    fn device(&self, id: DeviceId) -> Result<Option<DeviceRow>, StoreError>;
    /// All devices by number.
    fn devices(&self) -> Result<Vec<DeviceRow>, StoreError>;
    /// The folders that a device was given, by name, each with whether it may change it.
    fn device_folders(&self, device: DeviceId) -> Result<Vec<(String, bool)>, StoreError>;
    /// Whether a device may change a folder; `None` if it was not given it.
    fn device_folder(&self, device: DeviceId, folder: &str) -> Result<Option<bool>, StoreError>;
    /// The invitation whose join token has this hash.
    fn invitation_by_token(&self, hash: &[u8; 32]) -> Result<Option<InvitationRow>, StoreError>;
    /// The invitations that are valid at `now_ns`, by number.
    fn open_invitations(&self, now_ns: i64) -> Result<Vec<InvitationRow>, StoreError>;
}

/// Changes of devices. All errors are the engine's.
#[expect(clippy::missing_errors_doc, reason = "said once for all above")]
pub trait DeviceWrite: DeviceRead {
    /// Adds a device; returns its number.
    fn insert_device(
        &self,
        name: &str,
        token_hash: &[u8; 32],
        manages: bool,
        created_ns: i64,
    ) -> Result<DeviceId, StoreError>;
    /// Replaces a device's row, by its number. The token's hash and the time of joining stay.
    fn update_device(&self, row: &DeviceRow) -> Result<(), StoreError>;
    /// Gives a device a folder, or more rights to it.
    fn give_folder(&self, device: DeviceId, folder: &str, writes: bool) -> Result<(), StoreError>;
    /// Adds an invitation (its `id`, `device` and `withdrawn_ns` are ignored); returns its number.
    fn insert_invitation(&self, row: &InvitationRow) -> Result<u64, StoreError>;
    /// Notes the device that used an invitation.
    fn use_invitation(&self, invitation: u64, device: DeviceId) -> Result<(), StoreError>;
    /// Withdraws an unused invitation; returns whether there was one.
    fn withdraw_invitation(&self, invitation: u64, now_ns: i64) -> Result<bool, StoreError>;
    /// Removes invitations that expired before this time.
    fn forget_invitations(&self, expired_before_ns: i64) -> Result<(), StoreError>;
}
