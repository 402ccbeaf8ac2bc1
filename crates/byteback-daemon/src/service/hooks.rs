//! Services of the process above, which knows servers: the state of continuous sync, its repairs,
//! and its line. A process that offers none of them serves the tree alone.

use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

use byteback_control::{RepairReport, RepairRequest, Result, SyncStatus, no_line, not_synced};

use super::Service;

/// Reports the state of continuous sync.
pub type SyncReporter = Box<dyn Fn() -> SyncStatus + Send + Sync>;

/// Reads the wanted pace of sync again, and whether to sync at all.
pub type SyncWishesReader = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// Mends damage, as requested.
pub type Repair = Box<dyn Fn(&RepairRequest) -> Result<RepairReport> + Send + Sync>;

/// Takes connections of other processes that want to make calls of the server on this process's
/// line, and returns at once.
pub type LineCarrier = Box<dyn Fn(UnixStream) -> Result<()> + Send + Sync>;

/// The services that were offered so far.
#[derive(Default)]
pub(super) struct Hooks {
    sync: OnceLock<SyncReporter>,
    sync_wishes: OnceLock<SyncWishesReader>,
    repair: OnceLock<Repair>,
    line: OnceLock<LineCarrier>,
}

impl Hooks {
    pub(super) fn sync_status(&self) -> Option<SyncStatus> {
        self.sync.get().map(|tell| tell())
    }

    pub(super) fn sync_wishes_changed(&self) -> Result<bool> {
        match self.sync_wishes.get() {
            Some(hear) => hear().map(|()| true),
            None => Ok(false),
        }
    }

    pub(super) fn repair(&self, request: &RepairRequest) -> Result<RepairReport> {
        match self.repair.get() {
            Some(repair) => repair(request),
            None => Err(not_synced()),
        }
    }

    pub(super) fn carry_line(&self, connection: UnixStream) -> Result<()> {
        match self.line.get() {
            Some(carry) => carry(connection),
            None => Err(no_line()),
        }
    }
}

impl Service {
    /// Calls `tell` from now on when the state of the tree is requested. Only the first `tell` is
    /// ever used.
    pub fn set_sync_reporter(&self, tell: SyncReporter) {
        let _ = self.hooks.sync.set(tell);
    }

    /// Calls `hear` from now on when the wanted pace of sync was changed. Only the first `hear` is
    /// ever used.
    pub fn set_sync_wishes_reader(&self, hear: SyncWishesReader) {
        let _ = self.hooks.sync_wishes.set(hear);
    }

    /// Calls `repair` from now on when damage is to be mended. Only the first `repair` is ever
    /// used.
    pub fn repair_with(&self, repair: Repair) {
        let _ = self.hooks.repair.set(repair);
    }

    /// Hands connections of those who want a line to `carry` from now on. Only the first `carry` is
    /// ever used.
    pub fn carry_lines_with(&self, carry: LineCarrier) {
        let _ = self.hooks.line.set(carry);
    }
}
