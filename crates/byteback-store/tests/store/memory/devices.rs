//! The twin's devices and invitations.

use super::{Transaction, refuse, require};
use byteback_model::DeviceId;
use byteback_store::StoreError;
use byteback_store::catalog::{DeviceRead, DeviceRow, DeviceWrite, InvitationRow};

/// Most invitations that are listed, as in SQLite's query.
const LISTED_MAX: usize = 10_000;

fn is_open(row: &InvitationRow, now_ns: i64) -> bool {
    row.device.is_none() && row.withdrawn_ns.is_none() && row.expires_ns > now_ns
}

impl DeviceRead for Transaction<'_> {
    fn device_by_token(&self, hash: &[u8; 32]) -> Result<Option<DeviceRow>, StoreError> {
        let rows = self.rows()?;
        Ok(rows.devices.values().find(|row| row.token_hash == *hash).cloned())
    }

    fn device(&self, id: DeviceId) -> Result<Option<DeviceRow>, StoreError> {
        Ok(self.rows()?.devices.get(&id).cloned())
    }

    fn devices(&self) -> Result<Vec<DeviceRow>, StoreError> {
        Ok(self.rows()?.devices.values().cloned().collect())
    }

    fn device_folders(&self, device: DeviceId) -> Result<Vec<(String, bool)>, StoreError> {
        let rows = self.rows()?;
        let given = rows.device_folders.iter().filter(|((of, _), _)| *of == device);
        Ok(given.map(|((_, folder), writes)| (folder.clone(), *writes)).collect())
    }

    fn device_folder(&self, device: DeviceId, folder: &str) -> Result<Option<bool>, StoreError> {
        Ok(self.rows()?.device_folders.get(&(device, folder.to_owned())).copied())
    }

    fn invitation_by_token(&self, hash: &[u8; 32]) -> Result<Option<InvitationRow>, StoreError> {
        let rows = self.rows()?;
        Ok(rows.invitations.values().find(|row| row.hash == *hash).cloned())
    }

    fn open_invitations(&self, now_ns: i64) -> Result<Vec<InvitationRow>, StoreError> {
        let rows = self.rows()?;
        let open = rows.invitations.values().filter(|row| is_open(row, now_ns));
        Ok(open.take(LISTED_MAX).cloned().collect())
    }
}

impl DeviceWrite for Transaction<'_> {
    fn insert_device(
        &self,
        name: &str,
        token_hash: &[u8; 32],
        manages: bool,
        created_ns: i64,
    ) -> Result<DeviceId, StoreError> {
        self.change(|rows| {
            let is_new = rows.devices.values().all(|row| row.token_hash != *token_hash);
            require(is_new, "two devices have one token")?;
            let id = rows.devices.keys().next_back().map_or(1, |last| last + 1);
            let row = DeviceRow {
                id,
                name: name.to_owned(),
                token_hash: *token_hash,
                created_ns,
                manages,
                seen_ns: Some(created_ns),
                revoked_ns: None,
            };
            rows.devices.insert(id, row);
            Ok(id)
        })
    }

    fn update_device(&self, row: &DeviceRow) -> Result<(), StoreError> {
        self.change(|rows| match rows.devices.get_mut(&row.id) {
            Some(known) if (known.token_hash, known.created_ns) == (row.token_hash, row.created_ns) => {
                *known = row.clone();
                Ok(())
            }
            _ => refuse("the device is missing, or its token or time of joining changed"),
        })
    }

    fn give_folder(&self, device: DeviceId, folder: &str, writes: bool) -> Result<(), StoreError> {
        self.change(|rows| {
            require(rows.devices.contains_key(&device), "the device is missing")?;
            let key = (device, folder.to_owned());
            *rows.device_folders.entry(key).or_default() |= writes;
            Ok(())
        })
    }

    fn insert_invitation(&self, row: &InvitationRow) -> Result<u64, StoreError> {
        self.change(|rows| {
            let is_new = rows.invitations.values().all(|known| known.hash != row.hash);
            require(is_new, "two invitations have one token")?;
            rows.last_invitation += 1;
            let id = rows.last_invitation;
            let row = InvitationRow {
                id,
                device: None,
                withdrawn_ns: None,
                ..row.clone()
            };
            rows.invitations.insert(id, row);
            Ok(id)
        })
    }

    fn use_invitation(&self, invitation: u64, device: DeviceId) -> Result<(), StoreError> {
        self.change(|rows| {
            require(rows.devices.contains_key(&device), "the device is missing")?;
            match rows.invitations.get_mut(&invitation) {
                Some(row) if row.device.is_none() => {
                    row.device = Some(device);
                    Ok(())
                }
                _ => refuse("the invitation is missing or used"),
            }
        })
    }

    fn withdraw_invitation(&self, invitation: u64, now_ns: i64) -> Result<bool, StoreError> {
        self.change(|rows| {
            let row = rows.invitations.get_mut(&invitation).filter(|row| row.device.is_none());
            Ok(row.map(|row| row.withdrawn_ns.get_or_insert(now_ns)).is_some())
        })
    }

    fn forget_invitations(&self, expired_before_ns: i64) -> Result<(), StoreError> {
        self.change(|rows| {
            rows.invitations.retain(|_, row| row.expires_ns >= expired_before_ns);
            Ok(())
        })
    }
}
