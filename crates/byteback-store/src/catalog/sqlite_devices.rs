//! Devices and invitations in the SQLite catalog.

use super::devices::{DeviceRead, DeviceRow, DeviceWrite, InvitationRow};
use super::sqlite::Transaction;
use super::sqlite_numbers::{sql, unsigned};
use crate::error::StoreError;
use byteback_model::DeviceId;
use rusqlite::Row;

const DEVICE: &str = "SELECT id, name, token_hash, created_ns, manages, seen_ns, revoked_ns FROM device";

const INVITATION: &str =
    "SELECT id, hash, created_ns, expires_ns, folder, writes, name, device, withdrawn_ns FROM invitation";

fn device_row(row: &Row<'_>) -> rusqlite::Result<DeviceRow> {
    Ok(DeviceRow {
        id: unsigned(row, 0)?,
        name: row.get(1)?,
        token_hash: row.get(2)?,
        created_ns: row.get(3)?,
        manages: row.get(4)?,
        seen_ns: row.get(5)?,
        revoked_ns: row.get(6)?,
    })
}

fn invitation_row(row: &Row<'_>) -> rusqlite::Result<InvitationRow> {
    Ok(InvitationRow {
        id: unsigned(row, 0)?,
        hash: row.get(1)?,
        created_ns: row.get(2)?,
        expires_ns: row.get(3)?,
        folder: row.get(4)?,
        writes: row.get(5)?,
        name: row.get(6)?,
        device: row.get::<_, Option<i64>>(7)?.map(i64::cast_unsigned),
        withdrawn_ns: row.get(8)?,
    })
}

impl DeviceRead for Transaction<'_> {
    fn device_by_token(&self, hash: &[u8; 32]) -> Result<Option<DeviceRow>, StoreError> {
        let query = format!("{DEVICE} WHERE token_hash = ?1");
        self.one("find a device", &query, [hash], device_row)
    }

    fn device(&self, id: DeviceId) -> Result<Option<DeviceRow>, StoreError> {
        let query = format!("{DEVICE} WHERE id = ?1");
        self.one("read a device", &query, [sql(id)], device_row)
    }

    fn devices(&self) -> Result<Vec<DeviceRow>, StoreError> {
        self.all("list devices", &format!("{DEVICE} ORDER BY id"), [], device_row)
    }

    fn device_folders(&self, device: DeviceId) -> Result<Vec<(String, bool)>, StoreError> {
        let query = "SELECT folder, writes FROM device_folder WHERE device = ?1 ORDER BY folder";
        self.all("list a device's folders", query, [sql(device)], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
    }

    fn device_folder(&self, device: DeviceId, folder: &str) -> Result<Option<bool>, StoreError> {
        let query = "SELECT writes FROM device_folder WHERE device = ?1 AND folder = ?2";
        self.one("find a device's folder", query, (sql(device), folder), |row| row.get(0))
    }

    fn invitation_by_token(&self, hash: &[u8; 32]) -> Result<Option<InvitationRow>, StoreError> {
        let query = format!("{INVITATION} WHERE hash = ?1");
        self.one("find an invitation", &query, [hash], invitation_row)
    }

    fn open_invitations(&self, now_ns: i64) -> Result<Vec<InvitationRow>, StoreError> {
        let query = format!(
            "{INVITATION} WHERE device IS NULL AND withdrawn_ns IS NULL AND expires_ns > ?1 ORDER BY id LIMIT 10000"
        );
        self.all("list invitations", &query, [now_ns], invitation_row)
    }
}

impl DeviceWrite for Transaction<'_> {
    fn insert_device(
        &self,
        name: &str,
        token_hash: &[u8; 32],
        manages: bool,
        created_ns: i64,
    ) -> Result<u64, StoreError> {
        let statement =
            "INSERT INTO device (name, token_hash, created_ns, manages, seen_ns) VALUES (?1, ?2, ?3, ?4, ?3)";
        let params = (name, token_hash, created_ns, manages);
        Ok(self.insert("add a device", statement, params)?.cast_unsigned())
    }

    fn update_device(&self, row: &DeviceRow) -> Result<(), StoreError> {
        let statement = "UPDATE device SET name = ?2, manages = ?3, seen_ns = ?4, revoked_ns = ?5 WHERE id = ?1";
        let params = (sql(row.id), row.name.as_str(), row.manages, row.seen_ns, row.revoked_ns);
        self.run_one("update a device", statement, params)
    }

    fn give_folder(&self, device: DeviceId, folder: &str, writes: bool) -> Result<(), StoreError> {
        let statement = "INSERT INTO device_folder (device, folder, writes) VALUES (?1, ?2, ?3) \
                         ON CONFLICT (device, folder) DO UPDATE SET writes = max(writes, excluded.writes)";
        self.run("give a device a folder", statement, (sql(device), folder, writes))
            .map(|_| ())
    }

    fn insert_invitation(&self, row: &InvitationRow) -> Result<u64, StoreError> {
        let statement = "INSERT INTO invitation (hash, created_ns, expires_ns, folder, writes, name) \
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let params = (
            row.hash,
            row.created_ns,
            row.expires_ns,
            row.folder.as_deref(),
            row.writes,
            row.name.as_str(),
        );
        Ok(self.insert("add an invitation", statement, params)?.cast_unsigned())
    }

    fn use_invitation(&self, invitation: u64, device: DeviceId) -> Result<(), StoreError> {
        let statement = "UPDATE invitation SET device = ?2 WHERE id = ?1 AND device IS NULL";
        self.run_one("use an invitation", statement, (sql(invitation), sql(device)))
    }

    fn withdraw_invitation(&self, invitation: u64, now_ns: i64) -> Result<bool, StoreError> {
        let statement =
            "UPDATE invitation SET withdrawn_ns = coalesce(withdrawn_ns, ?2) WHERE id = ?1 AND device IS NULL";
        Ok(self.run("withdraw an invitation", statement, (sql(invitation), now_ns))? > 0)
    }

    fn forget_invitations(&self, expired_before_ns: i64) -> Result<(), StoreError> {
        let statement = "DELETE FROM invitation WHERE expires_ns < ?1";
        self.run("forget old invitations", statement, [expired_before_ns])
            .map(|_| ())
    }
}
