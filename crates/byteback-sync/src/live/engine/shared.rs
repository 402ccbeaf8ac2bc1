//! What other threads see of an engine, and how they end it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use byteback_api::Seq;
use byteback_control::{LiveTree, SyncStatus};

use super::{EngineError, EngineParts, told};
use crate::monitor::{Event, Monitor};

/// Says that everything shall end; clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct StopSign(Arc<AtomicBool>);

impl StopSign {
    /// Everything shall end.
    pub fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether everything shall end.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// What the engine's thread tells.
pub(super) struct Shared {
    stop: StopSign,
    sent_bytes: AtomicU64,
    told: Mutex<SyncStatus>,
}

impl Shared {
    pub(super) fn new(parts: &EngineParts) -> Self {
        let told = SyncStatus {
            server: parts.server.base_url().to_owned(),
            folder: parts.folder.to_string(),
            since_ns: parts.server.clock().now_ns(),
            ..SyncStatus::default()
        };
        Self {
            stop: parts.stop.clone(),
            sent_bytes: AtomicU64::new(0),
            told: Mutex::new(told),
        }
    }

    fn told(&self) -> MutexGuard<'_, SyncStatus> {
        // Each change is whole by itself.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_connected(told: &mut SyncStatus, is_connected: bool, now_ns: i64) {
        if told.is_connected != is_connected {
            told.is_connected = is_connected;
            told.since_ns = now_ns;
        }
    }

    /// The server answered.
    pub(super) fn connected(&self, now_ns: i64) {
        let mut told = self.told();
        Self::set_connected(&mut told, true, now_ns);
        told.error = None;
        told.needs_attention = false;
    }

    /// Something failed.
    pub(super) fn failed(&self, error: &EngineError, now_ns: i64) {
        let mut status = self.told();
        if error.is_away() {
            Self::set_connected(&mut status, false, now_ns);
        }
        status.error = Some(told(error));
        status.needs_attention = !error.is_passing();
    }

    pub(super) fn applied(&self, now_ns: i64) {
        let mut told = self.told();
        told.sent_groups = told.sent_groups.saturating_add(1);
        told.sent_at_ns = Some(now_ns);
    }

    pub(super) fn stands(&self, cursor: Seq) {
        self.told().cursor = cursor;
    }

    pub(super) fn unsaved(&self, files: u64) {
        self.told().unsaved_files = files;
    }

    pub(super) fn ended(&self) {
        let mut told = self.told();
        told.has_ended = true;
        told.is_connected = false;
    }
}

impl Monitor for Shared {
    fn event(&self, event: Event<'_>) {
        if let Event::BytesSent(bytes) = event {
            self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.stop.is_raised()
    }
}

/// An engine, to other threads.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    live: Arc<dyn LiveTree>,
}

impl fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineHandle").finish_non_exhaustive()
    }
}

impl EngineHandle {
    pub(super) fn new(shared: &Arc<Shared>, parts: &EngineParts) -> Self {
        Self {
            shared: Arc::clone(shared),
            live: Arc::clone(&parts.live),
        }
    }

    /// Lets the engine end soon.
    pub fn stop(&self) {
        self.shared.stop.raise();
        self.live.wake();
    }

    /// How it stands.
    #[must_use]
    pub fn status(&self) -> SyncStatus {
        let live = self.live.status();
        SyncStatus {
            sent_bytes: self.shared.sent_bytes.load(Ordering::Relaxed),
            waiting_nodes: live.waiting_nodes,
            waiting_bytes: live.waiting_bytes,
            groups_in_flight: live.groups_in_flight,
            is_folded: live.is_folded,
            ..self.shared.told().clone()
        }
    }
}
