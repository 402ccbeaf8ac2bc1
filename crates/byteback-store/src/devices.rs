//! Access control: devices, the folders that they were given, and invitations.
//!
//! Terms
//! - *device*: a machine (or a user on one) that joined. Its number is the client id of its
//!   versions and is never used twice.
//! - *managing device*: may use every folder, invite, rename and revoke. The first device of a
//!   store is one.
//! - *invitation*: a join token, for one folder or to manage. It works once: the device that used
//!   it may use it again when the answer was lost ([`Roster::join`]). Used, expired and withdrawn
//!   invitations are distinguished until [`REMEMBERED_NS`] after their end.
//! - *revoked*: the device's token is void from the moment that [`Roster::revoke`] returns: no
//!   request is accepted, and no batch already on its way is applied (`apply` checks in its
//!   transaction). The device's history stays.
//!
//! A [`Roster`] works on the catalog of an opened store ([`Store::roster`]) or beside a serving
//! process ([`RosterFile`]): the engine serializes the writers. Each call is one transaction.

use crate::catalog::{Catalog, DeviceRow, InvitationRow, SqliteCatalog};
use crate::error::StoreError;
use crate::store::Store;
use crate::token::{self, DEVICE_PREFIX, JOIN_PREFIX};
use byteback_host::clock::{Clock, RealClock};
use byteback_host::random::{Randomness, RealRandomness};
use byteback_model::DeviceId;
use std::path::Path;
use subtle::ConstantTimeEq as _;

/// Longest device name in bytes.
const DEVICE_NAME_LEN_MAX: usize = 255;

/// Time after its end for which an invitation is distinguished from an unknown one.
pub const REMEMBERED_NS: i64 = 90 * 24 * 3600 * 1_000_000_000;

/// Longest time by which the noted last request of a device may lag: each note is a write to the
/// disk.
pub const SEEN_WITHIN_NS: i64 = 5 * 60 * 1_000_000_000;

/// A folder that a device was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its name.
    pub folder: String,
    /// Whether the device may change it.
    pub writes: bool,
}

/// A device as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub id: DeviceId,
    /// Its name.
    pub name: String,
    /// Time at which it joined.
    pub created_ns: i64,
    /// Time of its last request, at most [`SEEN_WITHIN_NS`] too early.
    pub seen_ns: Option<i64>,
    /// Time since which its token is void.
    pub revoked_ns: Option<i64>,
    /// Whether it may use all folders and manage devices.
    pub manages: bool,
    /// The folders that it was given, by name.
    pub folders: Vec<Grant>,
}

/// The terms of an invitation to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewInvitation {
    /// The folder that it gives; `None`: all folders, and to manage devices.
    pub folder: Option<String>,
    /// Whether the device may change the folder.
    pub writes: bool,
    /// Name for the device; empty: the device names itself.
    pub name: String,
    /// Time for which it can be used.
    pub valid_ns: i64,
}

impl NewInvitation {
    /// An invitation to all folders, and to manage devices.
    #[must_use]
    pub fn to_manage(valid_ns: i64) -> Self {
        Self {
            folder: None,
            writes: true,
            name: String::new(),
            valid_ns,
        }
    }
}

/// An invitation that was made.
#[derive(Clone, PartialEq, Eq)]
pub struct Invited {
    /// Its number.
    pub id: u64,
    /// The join token, which is kept nowhere else.
    pub token: String,
    /// Time of its expiry.
    pub expires_ns: i64,
    /// Whether the folder was created for it.
    pub folder_is_new: bool,
}

impl std::fmt::Debug for Invited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Invited").field("id", &self.id).finish_non_exhaustive()
    }
}

/// An unused invitation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// Its number.
    pub id: u64,
    /// The folder that it gives; `None`: all folders, and to manage devices.
    pub folder: Option<String>,
    /// Whether the device may change the folder.
    pub writes: bool,
    /// Name for the device; empty: the device names itself.
    pub name: String,
    /// Time of its creation.
    pub created_ns: i64,
    /// Time of its expiry.
    pub expires_ns: i64,
}

/// Result of joining.
#[derive(Clone, PartialEq, Eq)]
pub struct Joined {
    /// Number of the device.
    pub device: DeviceId,
    /// Token of the device.
    pub token: String,
    /// Name of the device.
    pub name: String,
    /// The folder that it was given; `None`: all.
    pub folder: Option<String>,
    /// Whether it may change the folder.
    pub writes: bool,
}

impl std::fmt::Debug for Joined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Joined")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// The access of a device to a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FolderAccess {
    /// None: for the device, the folder does not exist.
    Nothing,
    /// The device may read the folder.
    Reads,
    /// The device may change the folder.
    Writes,
}

/// A device that showed its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Number of the device.
    pub device: DeviceId,
    /// Whether it may manage devices.
    pub manages: bool,
    /// Its access to the folder that was asked for.
    pub folder: FolderAccess,
    /// Whether its use should be noted now ([`Roster::note_seen`]).
    pub is_to_be_noted: bool,
}

/// The devices of a store; see the module's header.
#[derive(Clone, Copy)]
pub struct Roster<'a> {
    catalog: &'a dyn Catalog,
    clock: &'a dyn Clock,
    randomness: &'a dyn Randomness,
}

impl std::fmt::Debug for Roster<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Roster").finish_non_exhaustive()
    }
}

/// The catalog of a store that another process may be serving.
#[derive(Debug)]
pub struct RosterFile(SqliteCatalog);

impl RosterFile {
    /// Opens the catalog of the store in the directory `path`.
    ///
    /// # Errors
    /// There is no store; its catalog is of a newer program; the engine fails.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let catalog = path.as_ref().join("catalog.sqlite");
        // Opening a missing catalog would create it.
        std::fs::metadata(&catalog).map_err(|e| StoreError::io("find the catalog of the store", e))?;
        Ok(Self(SqliteCatalog::open(catalog)?))
    }

    /// The devices of the store.
    #[must_use]
    pub fn roster(&self) -> Roster<'_> {
        Roster {
            catalog: &self.0,
            clock: &RealClock,
            randomness: &RealRandomness,
        }
    }
}

impl Store {
    /// The devices of the store.
    #[must_use]
    pub fn roster(&self) -> Roster<'_> {
        Roster {
            catalog: self.catalog(),
            clock: &*self.parts.clock,
            randomness: &*self.parts.randomness,
        }
    }

    /// Creates a join token to use all folders and manage devices, valid for `valid_ns`.
    ///
    /// # Errors
    /// There is no randomness; the catalog fails.
    pub fn create_join_token(&self, valid_ns: i64) -> Result<String, StoreError> {
        Ok(self.roster().invite(&NewInvitation::to_manage(valid_ns))?.token)
    }
}

impl Roster<'_> {
    /// Whether any device has joined or may join. A store without any makes its first invitation.
    ///
    /// # Errors
    /// The catalog fails.
    pub fn has_credentials(&self) -> Result<bool, StoreError> {
        let catalog = self.catalog.read()?;
        let has_joined = catalog.devices()?.iter().any(|row| row.revoked_ns.is_none());
        Ok(has_joined || !catalog.open_invitations(self.clock.now_ns())?.is_empty())
    }

    /// Creates an invitation. A folder that does not exist is created if the device is to change
    /// it. The caller has checked the folder's name.
    ///
    /// # Errors
    /// A device that may only read is invited to a folder that does not exist; the name is not
    /// allowed; there is no randomness; the catalog fails.
    pub fn invite(&self, new: &NewInvitation) -> Result<Invited, StoreError> {
        check_name(&new.name)?;
        let token = token::draw_join_token(self.randomness)?;
        let now_ns = self.clock.now_ns();
        let catalog = self.catalog.write()?;
        catalog.forget_invitations(now_ns.saturating_sub(REMEMBERED_NS))?;
        let mut folder_is_new = false;
        if let Some(folder) = &new.folder
            && catalog.folder(folder)?.is_none()
        {
            if !new.writes {
                return Err(StoreError::FolderNotFound(folder.clone()));
            }
            catalog.insert_folder(folder, now_ns)?;
            folder_is_new = true;
        }
        let expires_ns = now_ns.saturating_add(new.valid_ns);
        let id = catalog.insert_invitation(&InvitationRow {
            id: 0,
            hash: token::hash(&token),
            created_ns: now_ns,
            expires_ns,
            folder: new.folder.clone(),
            writes: new.writes,
            name: new.name.clone(),
            device: None,
            withdrawn_ns: None,
        })?;
        catalog.commit()?;
        Ok(Invited {
            id,
            token,
            expires_ns,
            folder_is_new,
        })
    }

    /// Uses an invitation. `device_token` is the token that the device drew for itself, or has from
    /// an earlier invitation (then it gets this folder in addition); without one, the device is
    /// given one. A device that repeats the call with the same two tokens gets the same result.
    ///
    /// # Errors
    /// The join token is unknown, used by another device, expired or withdrawn; the device was
    /// revoked; the name or the device's token are not allowed; the catalog fails.
    pub fn join(&self, join_token: &str, name: &str, device_token: Option<&str>) -> Result<Joined, StoreError> {
        check_name(name)?;
        let own = match device_token {
            Some(own) if token::is_device_token(own) => own.to_owned(),
            Some(_) => {
                let message = "the device's own token does not have the form of a device token".to_owned();
                return Err(StoreError::InvalidParameter(message));
            }
            None => token::draw_device_token(self.randomness)?,
        };
        if !join_token.starts_with(JOIN_PREFIX) {
            return Err(StoreError::JoinTokenUnknown);
        }
        let now_ns = self.clock.now_ns();
        let catalog = self.catalog.write()?;
        let found = catalog.invitation_by_token(&token::hash(join_token))?;
        let invitation = found.ok_or(StoreError::JoinTokenUnknown)?;
        let known = catalog.device_by_token(&token::hash(&own))?;
        if let Some(revoked) = known.as_ref().filter(|device| device.revoked_ns.is_some()) {
            return Err(StoreError::DeviceRevoked(revoked.id));
        }
        let joined = |device: DeviceId, name: &str| Joined {
            device,
            token: own.clone(),
            name: name.to_owned(),
            folder: invitation.folder.clone(),
            writes: invitation.writes,
        };
        match (invitation.device, &known) {
            // The device repeats its call because the answer was lost.
            (Some(user), Some(known)) if user == known.id => return Ok(joined(known.id, &known.name)),
            (Some(_), _) => return Err(StoreError::JoinTokenUsed),
            _ if invitation.withdrawn_ns.is_some() => return Err(StoreError::JoinTokenWithdrawn),
            _ if invitation.expires_ns <= now_ns => return Err(StoreError::JoinTokenExpired),
            _ => {}
        }
        let name = match (&known, invitation.name.as_str()) {
            (Some(known), _) => known.name.clone(),
            (None, "") => name.to_owned(),
            (None, given) => given.to_owned(),
        };
        let manages = invitation.folder.is_none();
        let device = match &known {
            Some(known) => known.id,
            None => catalog.insert_device(&name, &token::hash(&own), manages, now_ns)?,
        };
        match &invitation.folder {
            None => {
                if let Some(known) = known.filter(|known| !known.manages) {
                    catalog.update_device(&DeviceRow { manages: true, ..known })?;
                }
            }
            Some(folder) => catalog.give_folder(device, folder, invitation.writes)?,
        }
        catalog.use_invitation(invitation.id, device)?;
        catalog.commit()?;
        Ok(joined(device, &name))
    }

    /// The device that a token belongs to, and its access to `folder`.
    ///
    /// # Errors
    /// The device was revoked; the catalog fails.
    pub fn authenticate(&self, token: &str, folder: Option<&str>) -> Result<Option<Pass>, StoreError> {
        if !token.starts_with(DEVICE_PREFIX) {
            return Ok(None);
        }
        let hash = token::hash(token);
        let catalog = self.catalog.read()?;
        let found = catalog.device_by_token(&hash)?;
        let Some(row) = found.filter(|row| bool::from(row.token_hash.ct_eq(&hash))) else {
            return Ok(None);
        };
        if row.revoked_ns.is_some() {
            return Err(StoreError::DeviceRevoked(row.id));
        }
        let folder = match folder {
            Some(_) if row.manages => FolderAccess::Writes,
            Some(folder) => match catalog.device_folder(row.id, folder)? {
                Some(true) => FolderAccess::Writes,
                Some(false) => FolderAccess::Reads,
                None => FolderAccess::Nothing,
            },
            None => FolderAccess::Nothing,
        };
        let now_ns = self.clock.now_ns();
        Ok(Some(Pass {
            device: row.id,
            manages: row.manages,
            folder,
            // The absolute difference also covers a clock that was set back.
            is_to_be_noted: row
                .seen_ns
                .is_none_or(|seen_ns| now_ns.abs_diff(seen_ns) > SEEN_WITHIN_NS.unsigned_abs()),
        }))
    }

    /// Those of the given devices that are revoked.
    ///
    /// # Errors
    /// The catalog fails.
    pub fn revoked_among(&self, devices: &[DeviceId]) -> Result<Vec<DeviceId>, StoreError> {
        let catalog = self.catalog.read()?;
        let mut revoked = Vec::new();
        for &id in devices {
            if catalog.device(id)?.is_some_and(|row| row.revoked_ns.is_some()) {
                revoked.push(id);
            }
        }
        Ok(revoked)
    }

    /// The folders that a device was given, by name.
    ///
    /// # Errors
    /// The catalog fails.
    pub fn folders_of(&self, device: DeviceId) -> Result<Vec<String>, StoreError> {
        let folders = self.catalog.read()?.device_folders(device)?;
        Ok(folders.into_iter().map(|(folder, _)| folder).collect())
    }

    /// Notes a request of a device at the present time.
    ///
    /// # Errors
    /// The catalog fails.
    pub fn note_seen(&self, device: DeviceId) -> Result<(), StoreError> {
        let now_ns = self.clock.now_ns();
        let catalog = self.catalog.write()?;
        let Some(row) = catalog.device(device)? else {
            return Ok(());
        };
        catalog.update_device(&DeviceRow {
            seen_ns: Some(now_ns),
            ..row
        })?;
        catalog.commit()
    }

    /// All devices by number, including revoked ones.
    ///
    /// # Errors
    /// The catalog fails.
    pub fn devices(&self) -> Result<Vec<Device>, StoreError> {
        let catalog = self.catalog.read()?;
        let rows = catalog.devices()?;
        rows.into_iter()
            .map(|row| Ok(device(catalog.device_folders(row.id)?, row)))
            .collect()
    }

    /// A device.
    ///
    /// # Errors
    /// There is no device of this number; the catalog fails.
    pub fn device(&self, id: DeviceId) -> Result<Device, StoreError> {
        let catalog = self.catalog.read()?;
        let row = catalog.device(id)?.ok_or(StoreError::DeviceNotFound(id))?;
        Ok(device(catalog.device_folders(id)?, row))
    }

    /// The unused and still valid invitations, by number.
    ///
    /// # Errors
    /// The catalog fails.
    pub fn invitations(&self) -> Result<Vec<Invitation>, StoreError> {
        let rows = self.catalog.read()?.open_invitations(self.clock.now_ns())?;
        let invitation = |row: InvitationRow| Invitation {
            id: row.id,
            folder: row.folder,
            writes: row.writes,
            name: row.name,
            created_ns: row.created_ns,
            expires_ns: row.expires_ns,
        };
        Ok(rows.into_iter().map(invitation).collect())
    }

    /// Renames a device.
    ///
    /// # Errors
    /// There is no such device; the name is not allowed; the catalog fails.
    pub fn rename(&self, id: DeviceId, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        if name.trim().is_empty() {
            return Err(StoreError::InvalidParameter(
                "a device's name must not be empty".to_owned(),
            ));
        }
        let catalog = self.catalog.write()?;
        let row = catalog.device(id)?.ok_or(StoreError::DeviceNotFound(id))?;
        catalog.update_device(&DeviceRow {
            name: name.to_owned(),
            ..row
        })?;
        catalog.commit()
    }

    /// Revokes a device's token at once. Revoking again changes nothing.
    ///
    /// # Errors
    /// There is no such device; the catalog fails.
    pub fn revoke(&self, id: DeviceId) -> Result<(), StoreError> {
        let catalog = self.catalog.write()?;
        let row = catalog.device(id)?.ok_or(StoreError::DeviceNotFound(id))?;
        if row.revoked_ns.is_none() {
            let revoked_ns = Some(self.clock.now_ns());
            catalog.update_device(&DeviceRow { revoked_ns, ..row })?;
        }
        catalog.commit()
    }

    /// Withdraws an unused invitation.
    ///
    /// # Errors
    /// There is no such invitation; the catalog fails.
    pub fn withdraw(&self, id: u64) -> Result<(), StoreError> {
        let catalog = self.catalog.write()?;
        match catalog.withdraw_invitation(id, self.clock.now_ns())? {
            true => catalog.commit(),
            false => Err(StoreError::InvitationNotFound(id)),
        }
    }
}

fn device(folders: Vec<(String, bool)>, row: DeviceRow) -> Device {
    let grant = |(folder, writes)| Grant { folder, writes };
    Device {
        id: row.id,
        name: row.name,
        created_ns: row.created_ns,
        seen_ns: row.seen_ns,
        revoked_ns: row.revoked_ns,
        manages: row.manages,
        folders: folders.into_iter().map(grant).collect(),
    }
}

fn check_name(name: &str) -> Result<(), StoreError> {
    if name.len() > DEVICE_NAME_LEN_MAX || name.chars().any(char::is_control) {
        let message = format!("a device's name has at most {DEVICE_NAME_LEN_MAX} bytes and no control characters");
        return Err(StoreError::InvalidParameter(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
