//! The engine's state as other threads see it, and how they end it.

use byteback_model::{ByteString, DeviceId, NodeId, Place, Seq};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use byteback_control::{
    LandingTree, LiveTree, RepairReport, RepairRequest, ServiceError, SyncConflict, SyncLeftOut, SyncReceiving,
    SyncStatus, SyncUnusableRule, not_synced,
};

use super::EngineParts;
use super::failure::{EngineError, reported};
use super::phase::Transition;
use crate::ignore_rules::{CACHE_TAG_NAME, RULES_NAME, UnusablePattern};
use crate::ignored::joined;
use crate::receive::conflicts::Conflict;
use byteback_backup::{Event, Monitor};

/// Flag that tells everything to end; clones share it.
#[derive(Clone, Debug, Default)]
pub struct StopSign(Arc<AtomicBool>);

impl StopSign {
    /// Tells everything to end.
    pub fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether everything is to end.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// A repair that a caller asked for, and waits for.
pub(super) struct RequestedRepair {
    pub(super) request: RepairRequest,
    answer: Sender<Result<RepairReport, ServiceError>>,
}

impl RequestedRepair {
    /// Answers the caller, which may have gone.
    pub(super) fn answer(self, answer: Result<RepairReport, ServiceError>) {
        let _ = self.answer.send(answer);
    }
}

/// A name that is left out; whether it collides with another one; and, if its change is blocked,
/// why.
pub(super) type LeftOutName = (Place<NodeId>, bool, Option<String>);

/// State that the engine's thread publishes.
pub(super) struct Shared {
    stop: StopSign,
    sent_bytes: AtomicU64,
    /// The newest batch of others that the listening thread heard of.
    newest_announced: AtomicU64,
    /// The listening thread's last failure, as the status shows it, until it hears of the server
    /// again.
    deaf_because: Mutex<Option<String>>,
    has_ended: AtomicBool,
    /// The server refused the token.
    is_token_refused: AtomicBool,
    /// This device.
    device: AtomicU64,
    reported: Mutex<SyncStatus>,
    conflicts: Mutex<Vec<Conflict>>,
    left_out: Mutex<Vec<LeftOutName>>,
    /// Transitions that the engine went through.
    passed: Mutex<BTreeSet<Transition>>,
    /// Repairs asked for; nothing is added once the engine has ended.
    repairs: Mutex<VecDeque<RequestedRepair>>,
}

impl Shared {
    pub(super) fn new(parts: &EngineParts) -> Self {
        let reported = SyncStatus {
            server: parts.server.base_url().to_owned(),
            folder: parts.folder.to_string(),
            since_ns: parts.server.clock().now_ns(),
            ..SyncStatus::default()
        };
        Self {
            stop: parts.stop.clone(),
            sent_bytes: AtomicU64::new(0),
            newest_announced: AtomicU64::new(0),
            deaf_because: Mutex::default(),
            has_ended: AtomicBool::new(false),
            is_token_refused: AtomicBool::new(false),
            device: AtomicU64::new(parts.device),
            reported: Mutex::new(reported),
            conflicts: Mutex::default(),
            left_out: Mutex::default(),
            passed: Mutex::default(),
            repairs: Mutex::default(),
        }
    }

    fn reported(&self) -> MutexGuard<'_, SyncStatus> {
        // Each change is whole by itself.
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_connected(reported: &mut SyncStatus, is_connected: bool, now_ns: i64) {
        if reported.is_connected != is_connected {
            reported.is_connected = is_connected;
            reported.since_ns = now_ns;
        }
    }

    pub(super) fn token_refused(&self) {
        self.is_token_refused.store(true, Ordering::SeqCst);
    }

    /// Whether the server refuses the token.
    pub(super) fn is_token_refused(&self) -> bool {
        self.is_token_refused.load(Ordering::SeqCst)
    }

    pub(super) fn token_is_new(&self) {
        self.is_token_refused.store(false, Ordering::SeqCst);
    }

    pub(super) fn device(&self) -> DeviceId {
        self.device.load(Ordering::SeqCst)
    }

    pub(super) fn set_device(&self, device: DeviceId) {
        self.device.store(device, Ordering::SeqCst);
    }

    /// Notes that the server answered.
    pub(super) fn connected(&self, now_ns: i64) {
        self.token_is_new();
        let mut reported = self.reported();
        Self::set_connected(&mut reported, true, now_ns);
        reported.heard_at_ns = Some(now_ns);
        reported.error = None;
        reported.needs_attention = false;
    }

    /// Notes that the listening thread heard of the server: a batch, or a sign of life. The
    /// engine's own failure stays in the status.
    pub(super) fn heard(&self, now_ns: i64) {
        let deaf_because = self.deaf_because().take();
        let mut reported = self.reported();
        reported.heard_at_ns = Some(now_ns);
        if deaf_because.is_some() && reported.error == deaf_because {
            Self::set_connected(&mut reported, true, now_ns);
            reported.error = None;
            reported.needs_attention = false;
        }
    }

    /// Notes that the listening thread cannot listen. An idle engine would not notice.
    pub(super) fn cannot_hear(&self, error: &EngineError, now_ns: i64) {
        self.failed(error, now_ns);
        *self.deaf_because() = self.reported().error.clone();
    }

    fn deaf_because(&self) -> MutexGuard<'_, Option<String>> {
        self.deaf_because.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that others' changes begin to come in.
    pub(super) fn receives(&self) {
        self.reported().receiving = Some(SyncReceiving::default());
    }

    /// Notes a failure.
    pub(super) fn failed(&self, error: &EngineError, now_ns: i64) {
        let mut status = self.reported();
        if error.is_away() {
            Self::set_connected(&mut status, false, now_ns);
        }
        status.error = Some(reported(error));
        status.needs_attention = !error.is_passing();
        drop(status);
        if error.is_token_refused() {
            self.token_refused();
        }
    }

    /// Notes a transition that the engine goes through.
    pub(super) fn passed(&self, transition: Transition) {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        passed.insert(transition);
    }

    pub(super) fn applied(&self, now_ns: i64) {
        let mut reported = self.reported();
        reported.sent_groups = reported.sent_groups.saturating_add(1);
        reported.sent_at_ns = Some(now_ns);
    }

    pub(super) fn stands(&self, cursor: Seq) {
        self.reported().cursor = cursor;
    }

    /// Notes that `files` could not be read, and that `held` nodes are not reported to the server
    /// as they are [held](super::blocked).
    pub(super) fn unsaved(&self, files: u64, held: u64) {
        let mut reported = self.reported();
        (reported.unsaved_files, reported.held_nodes) = (files, held);
    }

    /// Notes that others sent a batch.
    pub(super) fn announce(&self, seq: Seq) {
        self.newest_announced.fetch_max(seq, Ordering::SeqCst);
    }

    pub(super) fn newest_announced(&self) -> Seq {
        self.newest_announced.load(Ordering::SeqCst)
    }

    /// Notes that others' changes came in.
    pub(super) fn received(&self, now_ns: i64) {
        let mut reported = self.reported();
        reported.received_at_ns = Some(now_ns);
        reported.receiving = None;
    }

    /// Notes the names that are left out, and the number of ignored ones.
    pub(super) fn left_out(&self, names: Vec<LeftOutName>, ignored: u64) {
        let mut reported = self.reported();
        reported.ignored_names = ignored;
        drop(reported);
        *self.left_out.lock().unwrap_or_else(PoisonError::into_inner) = names;
    }

    /// Notes the sources of ignore rules (the directories of rule files and those of caches),
    /// unusable lines, and the number of ignored nodes here.
    pub(super) fn ignored(
        &self,
        (files, caches): (Vec<Vec<u8>>, Vec<Vec<u8>>),
        unusable: Vec<UnusablePattern>,
        withheld: u64,
    ) {
        let reported = unusable
            .into_iter()
            .take(LEFT_OUT_REPORTED_MAX)
            .map(|unusable| SyncUnusableRule {
                path: ByteString(joined(&unusable.directory, RULES_NAME)),
                line: unusable.line as u64,
                why: unusable.why,
            });
        let files = files.iter().map(|directory| joined(directory, RULES_NAME));
        let tags = caches.iter().map(|directory| joined(directory, CACHE_TAG_NAME));
        let mut status = self.reported();
        status.unusable_rules = reported.collect();
        status.ignored_here = withheld;
        status.ignore_files = files.len().saturating_add(tags.len()) as u64;
        status.ignored_by = files.chain(tags).take(LEFT_OUT_REPORTED_MAX).map(ByteString).collect();
    }

    /// Notes the conflicts.
    pub(super) fn conflicts(&self, noted: &[Conflict]) {
        *self.conflicts.lock().unwrap_or_else(PoisonError::into_inner) = noted.to_vec();
    }

    pub(super) fn cannot_listen(&self) {
        let mut reported = self.reported();
        reported.error = Some("cannot start a thread to listen to the server; restart the sync".to_owned());
    }

    /// Whether no thread needs to go on.
    pub(super) fn is_over(&self) -> bool {
        self.stop.is_raised() || self.has_ended.load(Ordering::SeqCst)
    }

    fn repairs(&self) -> MutexGuard<'_, VecDeque<RequestedRepair>> {
        self.repairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a repair is asked for.
    pub(super) fn has_repairs(&self) -> bool {
        !self.repairs().is_empty()
    }

    /// Takes the first repair of this kind that is asked for.
    pub(super) fn next_repair(&self, is_meant: impl Fn(&RepairRequest) -> bool) -> Option<RequestedRepair> {
        let mut repairs = self.repairs();
        let at = repairs.iter().position(|asked| is_meant(&asked.request))?;
        repairs.remove(at)
    }

    pub(super) fn ended(&self) {
        {
            let mut repairs = self.repairs();
            self.has_ended.store(true, Ordering::SeqCst);
            // Waiting callers hear that no answer will come.
            repairs.clear();
        }
        let mut reported = self.reported();
        reported.has_ended = true;
        reported.is_connected = false;
    }
}

impl Monitor for Shared {
    fn event(&self, event: Event<'_>) {
        match event {
            Event::BytesSent(bytes) => {
                self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Event::ChangesToCome(changes) => {
                if let Some(receiving) = &mut self.reported().receiving {
                    receiving.changes_to_come = Some(changes);
                    receiving.compared = None;
                }
            }
            Event::Comparing { done, total } => {
                if let Some(receiving) = &mut self.reported().receiving {
                    receiving.compared = Some((done, total));
                }
            }
            _ => {}
        }
    }

    fn is_cancelled(&self) -> bool {
        self.stop.is_raised()
    }
}

/// An engine, as other threads see it.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    live: Arc<dyn LiveTree>,
    landing: Arc<dyn LandingTree>,
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
            landing: Arc::clone(&parts.landing),
        }
    }

    /// Lets the engine end soon.
    pub fn stop(&self) {
        self.shared.stop.raise();
        self.live.wake();
    }

    /// Reports the server's version of a damaged file, or has the file repaired: waits until that
    /// is done.
    ///
    /// # Errors
    /// Why it was not done; nothing is lost then.
    pub fn repair(&self, request: &RepairRequest) -> Result<RepairReport, ServiceError> {
        let (answer, answered) = channel();
        {
            let mut repairs = self.shared.repairs();
            if self.shared.has_ended.load(Ordering::SeqCst) {
                return Err(not_synced());
            }
            let request = *request;
            repairs.push_back(RequestedRepair { request, answer });
        }
        self.live.wake();
        answered.recv().unwrap_or_else(|_| Err(not_synced()))
    }

    /// Phases of the engine since it began, with the events that came in them.
    #[must_use]
    pub fn transitions(&self) -> BTreeSet<Transition> {
        let passed = &self.shared.passed;
        passed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Conflicts that are not decided: copies that were removed or renamed since are not among
    /// them.
    fn conflicts(&self) -> Vec<SyncConflict> {
        let noted = self
            .shared
            .conflicts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let open = noted.iter().filter_map(|conflict| {
            let place = conflict.place_in(&*self.landing).ok()??;
            let directory = directory_path(&*self.landing, place.parent)?;
            let path = |name: &ByteString| ByteString([&directory, name.as_bytes()].concat());
            Some(SyncConflict {
                path: path(&conflict.name),
                copy: path(&conflict.copy),
                at_ns: conflict.at_ns,
                set: conflict.set,
            })
        });
        open.collect()
    }

    /// The first left-out names, and the number of all.
    fn left_out(&self) -> (Vec<SyncLeftOut>, u64) {
        let noted = self.shared.left_out.lock().unwrap_or_else(PoisonError::into_inner);
        let count = noted.len() as u64;
        let first: Vec<_> = noted.iter().take(LEFT_OUT_REPORTED_MAX).cloned().collect();
        // Looking for the paths takes a while, and the engine must not wait for it.
        drop(noted);
        let reported = first.into_iter().filter_map(|(place, collides, blocked)| {
            let directory = directory_path(&*self.landing, place.parent)?;
            let path = ByteString([&directory, place.name.as_bytes()].concat());
            Some(SyncLeftOut {
                path,
                collides,
                blocked,
            })
        });
        (reported.collect(), count)
    }

    /// Status of the engine and its tree.
    #[must_use]
    pub fn status(&self) -> SyncStatus {
        // First: the engine moves the cursor last, so all the rest is at least as new.
        let reported = self.shared.reported().clone();
        let live = self.live.status();
        let (left_out, left_out_names) = self.left_out();
        // Others' changes count from when they were heard of, not from when the engine turns to
        // them.
        let is_to_come = self.shared.newest_announced() > reported.cursor;
        let receiving = reported.receiving.or_else(|| is_to_come.then(SyncReceiving::default));
        SyncStatus {
            receiving,
            sent_bytes: self.shared.sent_bytes.load(Ordering::Relaxed),
            waiting_nodes: live.waiting_nodes,
            waiting_bytes: live.waiting_bytes,
            groups_in_flight: live.groups_in_flight,
            is_folded: live.is_folded,
            conflicts: self.conflicts(),
            left_out,
            left_out_names,
            ..reported
        }
    }
}

/// Path of a directory below the root, with a slash behind each name; `None` if it is nowhere.
fn directory_path(landing: &dyn LandingTree, directory: NodeId) -> Option<Vec<u8>> {
    let (mut names, mut current) = (Vec::new(), directory);
    while current != NodeId::ROOT {
        // A tree that moves meanwhile is reported next time.
        if names.len() > DEPTH_MAX {
            return None;
        }
        let place = landing.look(current).ok()??.names.into_iter().next()?;
        names.push(place.name);
        current = place.parent;
    }
    let names = names.into_iter().rev();
    Some(names.flat_map(|name| [name.as_bytes(), b"/"].concat()).collect())
}

/// Number of left-out names that are listed; the rest is only counted.
const LEFT_OUT_REPORTED_MAX: usize = 100;

/// Deepest path that is followed.
const DEPTH_MAX: usize = 4096;
