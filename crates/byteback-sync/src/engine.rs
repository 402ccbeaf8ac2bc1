//! Continuous sync's engine: one thread that sends what a mounted tree hands out and lets in
//! others' changes, beside the mount in the same process.
//!
//! It works in rounds:
//!
//! 1. *Meet the server*, at the start and whenever it is unclear what the folder there has: the
//!    engine hears of its batches since the cursor. Those of this device tell what became of the
//!    groups in flight; those of others are news. Only then is anything sent.
//! 2. *Receive* ([`receiving`]) others' changes, when there is nothing to send, or else after each
//!    batch that was sent, so that neither waits for the other. A second thread listens to the
//!    server and wakes this one.
//! 3. *Send* what [`LiveTree::poll`] hands out, one batch at a time on one connection, each
//!    following the one before ([`ground`]). Changes that the tree has folded are taken from its
//!    cut through a backup's transfer ([`fold`]).
//! 4. *Repair* ([`repair`]) damaged files, when a caller asks for it, and nothing is on its way in
//!    either direction.
//! 5. *Wait* for changes ([`LiveTree::wait`]) or, after a failure, for a while ([`pause`]).
//!
//! | what the server, or the tree, says | what follows |
//! |---|---|
//! | applied | the tree is told; the cursor moves over it if nothing of others lies between |
//! | refused | the tree is told; the server is met again; the refused changes are folded, others' changes are let in, and the fold goes on top of them |
//! | no answer | the same again, after a pause |
//! | cannot be sent as it is | its order is given up: all since the log's mark is taken from a cut |
//! | a lasting failure (token, full disk) | the same again after the longest pause; the status says that a person must act |
//!
//! **Durable**: a group's number before it is handed out (the tree's journal), and the
//! [`Standing`], which may be late. After a crash the engine hears again of its own batches behind
//! the cursor, so nothing else has to be durable.
//!
//! **A batch that arrives late**, after it was given up, does no harm: it follows a batch that is
//! not the device's newest any more. The very first replaces an empty folder and nothing else.
//!
//! Out of scope: deciding what is sent or when; printing; knowing whether the tree is mounted over
//! itself.

mod anew;
mod blocked;
mod failure;
mod fold;
mod folding;
mod ground;
mod ignoring;
mod pause;
mod receiving;
mod repair;
mod shared;

use byteback_model::{BatchApplied, ByteString, DeviceId, FileId, NameChange, NodeId, Seq};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use byteback_api::FolderName;
use byteback_control::{
    CutId, LandingTree, LiveGroup, LiveScope, LiveTree, SYNC_CONSUMER, ServiceError, TreeService, Work,
};
use byteback_host::clock::Clock;
use byteback_host::durable::DurableDir;
use byteback_host::random::Randomness;
use byteback_oplog::TreeId;
use byteback_queue::GroupId;
use byteback_queue::queue::Resolution;

use crate::identities::Identities;
use crate::patches::Patches;
use crate::receive::ReceiveError;
use crate::receive::conflicts::Conflicts;
use crate::receive::left_out::LeftOutNames;
use crate::standing::{Standing, StandingError};
use crate::upload::{Sent, Upload, batch_counter};
pub use anew::request_start_over;
use blocked::Held;
use byteback_backup::BackupError;
use byteback_backup::{BackupOptions, PART_LEN_BYTES_DEFAULT, file_id};
use byteback_client::{ServerClient, ServerNews};
use byteback_model::OwnBatch;
pub use failure::EngineError;
use ground::Ground;
use ignoring::{Ignoring, Sifted};
pub use pause::PauseOptions;
use pause::{Failures, is_passing};
use receiving::CONTACT;
pub use receiving::Listener;
use shared::Shared;
pub use shared::{EngineHandle, StopSign};

/// The standing is noted after this number of batches, and at the end.
const NOTED_EVERY: u64 = 64;

/// Subdirectory in which deltas wait for the files that they change.
const PATCHES_NAME: &str = "patches";

/// Longest wait when nothing is to be done; it then ends by itself.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// A pause notices within this time that it is to end.
const NAP: Duration = Duration::from_millis(50);

/// How often to look for another token of this machine while the server refuses the current one.
const RENEW_EVERY: Duration = Duration::from_secs(1);

/// Files that could not be read are tried again after this time.
const UNSAVED_AGAIN_AFTER: Duration = Duration::from_secs(600);

/// See [`Engine::is_known_twice`].
const TWICE: &str = "the server knows another group by this number: the records here were put back to an older state";

/// The token that this machine has now, and the device it stands for; `None` if it has no token
/// that was not shown before.
pub type Renew = Arc<dyn Fn() -> Option<(String, DeviceId)> + Send + Sync>;

/// The engine's surroundings: tree, server, folder and options.
pub struct EngineParts {
    /// The tree whose changes are sent.
    pub live: Arc<dyn LiveTree>,
    /// The same tree, for cuts.
    pub tree: Arc<dyn TreeService>,
    /// The same tree, for others' changes.
    pub landing: Arc<dyn LandingTree>,
    /// Server client. Configure few retries and let it poll `stop`: the engine does the long-term
    /// retrying.
    pub server: Arc<ServerClient>,
    /// Whether the engine has a thread that listens to the server and wakes it when others sent
    /// something. If not, the caller runs its [`Listener`] beside it; otherwise the engine hears of
    /// others only when it meets the server.
    pub is_listening: bool,
    /// The folder at the server.
    pub folder: FolderName,
    /// This device.
    pub device: DeviceId,
    /// Gives the token to show when the server does not accept the current one any more; `None`:
    /// always the same.
    pub renew: Option<Renew>,
    /// Directory in which the engine remembers how the folder stands; nothing else uses it.
    pub dir: Arc<dyn DurableDir>,
    /// The host, for people; conflict copies are named after it.
    pub host: ByteString,
    /// How far clocks for people are east of UTC now, in seconds.
    pub east_of_utc_s: i64,
    /// The directory on the host, for people.
    pub path: ByteString,
    /// Length of a part of a batch, in bytes.
    pub part_len_bytes: usize,
    /// How long to wait after failures.
    pub pauses: PauseOptions,
    /// Spreads the pauses.
    pub randomness: Arc<dyn Randomness>,
    /// Ends everything when raised.
    pub stop: StopSign,
}

impl EngineParts {
    /// Usual length of a part, in bytes.
    pub const PART_LEN_BYTES: usize = PART_LEN_BYTES_DEFAULT;
}

/// Engine of one tree: see the module.
pub struct Engine {
    parts: EngineParts,
    options: BackupOptions,
    /// See [`Standing::names`].
    names: TreeId,
    identities: Identities,
    /// The standing as last noted.
    noted: Option<Standing>,
    ground: Ground,
    patches: Patches,
    conflicts: Conflicts,
    /// Others' changes up to this moment are on their way into the tree.
    landing: Option<Seq>,
    /// Files whose contents of that moment were written.
    landed: BTreeSet<FileId>,
    /// Root of the folder there, if another machine began it and it is not bound to this one.
    contact: Option<FileId>,
    /// The remembered standing is of another log of this directory.
    had_other_log: bool,
    /// See [`Standing::takes_own`].
    takes_own: bool,
    /// The server knows that this device was further; it says so once, and this stays true until
    /// sync has started over.
    has_to_start_over: bool,
    /// Something was sent since others' changes were let in.
    is_turn_of_others: bool,
    /// Batches since the standing was noted.
    unnoted: u64,
    has_met: bool,
    /// Set after the first successful meeting; before it we cannot tell which batches are ours.
    has_started: bool,
    /// The group that was sent last, completely or in part: the server may know it.
    attempted: Option<GroupId>,
    shared: Arc<Shared>,
    failures: Failures,
    /// Groups in a row that were refused or could not be sent.
    setbacks: u32,
    /// The cut of the fold in flight.
    open_cut: Option<CutId>,
    /// The next fold must not trust what checksums find.
    is_in_full: bool,
    /// Nodes that could not be read when they were to be sent.
    unsaved: Vec<NodeId>,
    /// Names of the server that this tree does not hold.
    left_out: LeftOutNames,
    ignoring: Ignoring,
    /// Nothing was remembered of this directory when the engine began.
    is_new_locally: bool,
    /// When unreadable nodes are tried again, by the monotonic clock.
    unsaved_again_ns: Option<u64>,
    /// Nodes that the last fold left out because they were held.
    held_back: HashSet<NodeId>,
    /// The held nodes and names when the fold in flight was first sent: the same fold, sent again,
    /// leaves out the same ones.
    held_of_fold: Option<(GroupId, Arc<Held>)>,
    /// When blocked changes are tried again, by the monotonic clock.
    blocked_again_ns: Option<u64>,
    /// When they were last tried.
    blocked_tried_ns: u64,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("folder", &self.parts.folder)
            .field("ground", &self.ground)
            .field("has_met", &self.has_met)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Reads the remembered state. Nothing is asked of the server yet.
    ///
    /// # Errors
    /// The remembered state cannot be used, or is of another server, folder or device.
    pub fn open(parts: EngineParts) -> Result<Self, EngineError> {
        let tree = parts.tree.status()?.tree;
        let (noted, had_other_log) = anew::noted(&parts, tree)?;
        if noted.is_none() {
            // The map holds nodes of another log.
            Identities::remove(&*parts.dir)?;
        }
        let names = noted.as_ref().map_or(tree, |noted| noted.names);
        let takes_own = noted.as_ref().is_some_and(|noted| noted.takes_own);
        let identities = anew::identities(&parts, noted.as_ref(), names)?;
        let mut options = BackupOptions::new(SYNC_CONSUMER, parts.device);
        options.host.clone_from(&parts.host);
        options.path.clone_from(&parts.path);
        options.part_len_bytes = parts.part_len_bytes;
        let ground = noted.as_ref().map_or_else(Ground::default, |noted| Ground {
            cursor: noted.cursor,
            newest: noted.newest,
            others: 0,
        });
        let shared = Shared::new(&parts);
        let patches = parts.dir.subdir(PATCHES_NAME).map_err(|source| StandingError::Io {
            what: "create the patches folder beside",
            source,
        })?;
        let landing = noted.as_ref().and_then(|noted| noted.landing);
        let is_new_locally = noted.as_ref().is_none_or(|noted| noted.takes_own && landing.is_none());
        let mut left_out = LeftOutNames::open(Arc::clone(&parts.dir)).map_err(ReceiveError::from)?;
        if is_new_locally {
            left_out.note(Vec::new()).map_err(ReceiveError::from)?;
        }
        let engine = Self {
            patches: Patches::new(patches),
            conflicts: Conflicts::open(Arc::clone(&parts.dir)).map_err(ReceiveError::from)?,
            landing,
            landed: BTreeSet::new(),
            contact: None,
            had_other_log,
            takes_own,
            has_to_start_over: false,
            is_turn_of_others: false,
            options,
            names,
            identities,
            noted,
            ground,
            unnoted: 0,
            has_met: false,
            has_started: false,
            attempted: None,
            shared: Arc::new(shared),
            failures: Failures::default(),
            setbacks: 0,
            open_cut: None,
            is_in_full: false,
            unsaved: Vec::new(),
            left_out,
            ignoring: Ignoring::default(),
            is_new_locally,
            // An earlier engine may have ended before it reported the nodes that had become free.
            unsaved_again_ns: (parts.live.status().unsaved_nodes > 0).then_some(0),
            held_back: HashSet::new(),
            held_of_fold: None,
            blocked_again_ns: None,
            blocked_tried_ns: 0,
            parts,
        };
        engine.tell_left_out();
        Ok(engine)
    }

    /// Reports the engine's status and ends it, from other threads.
    #[must_use]
    pub fn handle(&self) -> EngineHandle {
        EngineHandle::new(&self.shared, &self.parts)
    }

    fn clock(&self) -> &dyn Clock {
        self.parts.server.clock()
    }

    fn root(&self) -> FileId {
        let own = file_id(self.names, NodeId::ROOT);
        self.identities.file_of(NodeId::ROOT).unwrap_or(own)
    }

    /// Meets the server for the first time, so that the caller hears at once of a setup that cannot
    /// work.
    ///
    /// # Errors
    /// The server cannot be reached ([`EngineError::is_passing`]: the engine may be run, and
    /// waits), or the folder there is not one for this directory.
    pub fn greet(&mut self) -> Result<(), EngineError> {
        match self.meet() {
            Ok(()) => {
                self.shared.connected(self.clock().now_ns());
                Ok(())
            }
            Err(error) => {
                self.failed(&error);
                Err(error)
            }
        }
    }

    /// Finds out what the server has.
    fn meet(&mut self) -> Result<(), EngineError> {
        let folder = self.parts.folder.clone();
        let info = self.parts.server.folder(&folder)?;
        self.check_known(info.seq)?;
        let mut ground = self.ground;
        let server = Arc::clone(&self.parts.server);
        let mut listening = server.listen(&folder, ground.cursor);
        let mut sent = Vec::new();
        while listening.after() < info.seq {
            match listening.hear()? {
                ServerNews::Batch(batch) => {
                    ground.heard(&batch, self.parts.device);
                    sent.extend((batch.device == self.parts.device).then_some(batch.counter));
                }
                ServerNews::Nothing => {}
                ServerNews::Away(why) => return Err(EngineError::Away(why)),
                ServerNews::Cancelled => return Err(BackupError::Cancelled.into()),
            }
        }
        self.has_to_start_over |= self.was_further(&sent)?;
        if self.has_to_start_over {
            self.ground = ground;
            self.start_over()?;
            ground = self.ground;
        }
        let other_root = info.root.filter(|root| *root != self.root());
        self.contact = match (other_root, ground.newest) {
            (root, _) if self.is_contact_due() => root,
            (Some(_), Some(_)) if self.noted.is_some() => {
                let folder = folder.to_string();
                return Err(EngineError::Exchanged { folder });
            }
            // All batches there are of this directory, whose log was made anew: everything is sent.
            (Some(_), Some(_)) if self.had_other_log && ground.others == 0 => None,
            // Others sent batches, too: it is not known which of them are here.
            (root @ Some(_), Some(_)) if self.had_other_log => {
                self.takes_own = true;
                root
            }
            (Some(_), Some(_)) => {
                let folder = folder.to_string();
                return Err(EngineError::SameDevice { folder });
            }
            (contact, _) => contact,
        };
        self.ground = ground;
        // There are no own changes to take in.
        self.takes_own &= self.contact.is_some() || self.landing.is_some();
        self.note()?;
        self.load_rules()?;
        for group in self.parts.live.unanswered_before() {
            // The group's outcome is known now: it is among the batches that were heard of, or will
            // never count.
            self.parts.live.settled(group);
        }
        if self.identities.has_unsent() {
            self.parts.live.fold();
        }
        self.shared.conflicts(self.conflicts.noted());
        self.has_met = true;
        self.has_started = true;
        Ok(())
    }

    /// Notes durably how the folder stands, if that has changed.
    fn note(&mut self) -> Result<(), EngineError> {
        let tree = match &self.noted {
            Some(noted) => noted.tree,
            None => self.parts.tree.status()?.tree,
        };
        let standing = Standing {
            counterpart: anew::counterpart(&self.parts),
            tree,
            names: self.names,
            root: self.root(),
            cursor: self.ground.cursor,
            newest: self.ground.newest,
            landing: self.landing,
            takes_own: self.takes_own,
        };
        self.shared.stands(self.ground.cursor);
        if self.noted.as_ref() != Some(&standing) {
            standing.write(&self.parts.dir)?;
            self.noted = Some(standing);
        }
        self.unnoted = 0;
        Ok(())
    }

    /// Sends and receives until the mount is gone, or the stop sign is raised. The tree keeps all
    /// changes that were not sent.
    ///
    /// # Errors
    /// A failure that prevents the start and will not pass by itself. Once the engine has met its
    /// server, it waits after any failure.
    pub fn run(&mut self) -> Result<(), EngineError> {
        if self.parts.is_listening {
            self.listen();
        }
        let ended = loop {
            if self.parts.stop.is_raised() {
                break Ok(());
            }
            match self.round() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) if error.is_end() => {}
                Err(error) => {
                    self.failed(&error);
                    self.refuse_repairs(&error);
                    if !self.has_started && !error.is_passing() {
                        break Err(error);
                    }
                    let pause = self.next_pause(error.is_passing());
                    if let Err(error) = self.rest(pause) {
                        self.failed(&error);
                    }
                }
            }
        };
        self.leave();
        ended
    }

    /// Does one thing. Returns false when the mount is gone.
    fn round(&mut self) -> Result<bool, EngineError> {
        self.accept_asked();
        if self.shared.is_token_refused() {
            self.renew()?;
        }
        if !self.has_met {
            self.meet()?;
            self.worked();
        }
        if let Some(at_ns) = self.unsaved_again_ns
            && self.clock().monotonic_ns() >= at_ns
        {
            self.unsaved_again_ns = None;
            self.parts
                .live
                .give_up("files that could not be read are being tried again");
        }
        self.ground.others = self.ground.others.max(self.shared.newest_announced());
        if self.is_met_too_early() {
            self.has_met = false;
            return Ok(true);
        }
        let has_repairs = self.shared.has_repairs();
        let is_turn = self.landing.is_some() || self.is_turn_of_others || has_repairs;
        if (self.may_receive() && is_turn) || (self.may_land() && self.is_left_out_over()?) {
            self.receive()?;
            return Ok(true);
        }
        if has_repairs && self.may_land() && !self.ground.has_news() {
            self.repair_asked()?;
            return Ok(true);
        }
        match self.parts.live.poll()? {
            Work::Idle(_) if self.may_receive() => self.receive()?,
            Work::Idle(_) if self.is_contact_overdue() => {
                // The first contact was interrupted when nothing waited any more.
                self.parts.live.give_up(CONTACT);
            }
            Work::Idle(wait) => {
                let unsaved = self
                    .unsaved_again_ns
                    .map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(self.clock().monotonic_ns())));
                let renewed = self.shared.is_token_refused().then_some(RENEW_EVERY);
                let until = |at_ns: u64| Duration::from_nanos(at_ns.saturating_sub(self.clock().monotonic_ns()));
                let blocked = self.blocked_again_ns.map(until);
                let waits = [wait, unsaved, renewed, blocked, Some(WAIT_MAX)];
                let wait = waits.into_iter().flatten().min();
                self.parts.live.wait(wait.unwrap_or(WAIT_MAX));
            }
            Work::Send(_) if self.contact.is_some() => {
                self.parts.live.give_up(CONTACT);
            }
            Work::Send(group) => self.send(&group)?,
            Work::Cut if self.contact.is_some() => self.first_contact()?,
            Work::Cut => {
                let group = self.parts.live.cut_fold(&self.to_be_told()?)?;
                self.send(&group)?;
            }
            Work::Ask(group) => self.ask(group)?,
            Work::Decide(group) => {
                // The server was met since the refusal, so the fold that now replaces the group
                // stands on all that is there.
                self.drop_cut();
                self.parts.live.resolve(group, &Resolution::Fold)?;
                self.is_turn_of_others = true;
            }
            Work::Ended => return Ok(false),
        }
        Ok(true)
    }

    /// Asks what became of a group that cannot be sent again.
    fn ask(&mut self, group: GroupId) -> Result<(), EngineError> {
        self.drop_cut();
        let counter = batch_counter(self.names, group);
        let status = self.parts.server.batch_status(&self.parts.folder, counter)?;
        match status.applied {
            Some(applied) => {
                let seq = applied.seq;
                self.applied(OwnBatch { counter, seq });
                self.parts.live.applied(group)?;
            }
            None => self.parts.live.never_arrived(group)?,
        }
        Ok(())
    }

    /// Whether the server applied another group under this number. It says that it applied this
    /// group before; if that cannot be, the number was given twice, because the remembered state
    /// was put back to an older one.
    fn is_known_twice(&self, group: &LiveGroup, applied: &BatchApplied) -> bool {
        let may_be = self.attempted == Some(group.id) || self.parts.live.unanswered_before().contains(&group.id);
        applied.repeated && !may_be
    }

    fn send(&mut self, group: &LiveGroup) -> Result<(), EngineError> {
        self.is_turn_of_others = true;
        let sifted = match &group.fold {
            Some(fold) => {
                self.open_cut = Some(fold.cut.cut);
                let (LiveScope::Everything { names } | LiveScope::Items { names, .. }) = &fold.scope;
                let is_due = self.review(fold.cut.cut, Some(names));
                is_due.map(|is_due| if is_due { Sifted::Fold } else { Sifted::Whole })
            }
            None => self.sift(group),
        };
        let names = match &sifted {
            Ok(Sifted::Whole) => group.names.as_slice(),
            Ok(Sifted::Part(part)) => part.names.as_slice(),
            _ => &[],
        };
        let removes = |name: &NameChange<NodeId>| name.child.is_none() && self.is_left_out(name.parent, &name.name);
        let removes = names.iter().any(removes);
        let is_held = self.is_held(group)?;
        if self.is_left_out_over()? || removes || is_held || matches!(sifted, Ok(Sifted::Fold)) {
            // Left-out names come first: what is sent may have taken one of them. A removed name of
            // these stood for another node than the server has by that name, so the removal is left
            // to a fold, which leaves out such names.
            self.drop_cut();
            let _ = self.parts.live.refused(group.id);
            return Ok(());
        }
        let sent = match (sifted, &group.fold) {
            (Err(error), _) => Err(error),
            (Ok(Sifted::Nothing), _) => Ok(Sent::Nothing),
            (Ok(Sifted::Part(part)), _) => self.upload(&part),
            (Ok(_), Some(fold)) => self.send_fold(group, fold),
            (Ok(_), None) => self.upload(group),
        };
        let sent = match sent {
            Ok(Sent::Applied(applied)) if self.is_known_twice(group, &applied) => {
                Ok(Sent::Unsendable(TWICE.to_owned()))
            }
            sent => sent,
        };
        self.attempted = Some(group.id);
        match sent {
            Ok(Sent::Applied(applied)) => {
                let counter = batch_counter(self.names, group.id);
                let seq = applied.seq;
                self.applied(OwnBatch { counter, seq });
                self.done(group);
                self.note_if_due()
            }
            Ok(Sent::Nothing) => {
                self.worked();
                self.done(group);
                Ok(())
            }
            Ok(Sent::Refused(error)) => {
                // The folder does not have what we thought.
                self.has_met = false;
                // If it was given up meanwhile, the engine asks for its outcome.
                let _ = self.parts.live.refused(group.id);
                self.set_back(BackupError::from(error))
            }
            Ok(Sent::Unanswered(error)) => {
                let pause = self.next_pause(true);
                self.failed(&EngineError::Sync(error));
                self.parts.live.unanswered(pause);
                Ok(())
            }
            Ok(Sent::Unsendable(why)) => {
                self.parts.live.give_up(&why);
                let error = ServiceError::new(byteback_control::ErrorKind::Refused, why);
                self.set_back(error.into())
            }
            Err(BackupError::Cancelled) => Err(BackupError::Cancelled.into()),
            Err(error) => {
                let pause = self.next_pause(is_passing(&error));
                self.failed(&EngineError::Sync(error));
                self.parts.live.unanswered(pause);
                Ok(())
            }
        }
    }

    /// The first setback only leads to another way of sending; each further one in a row waits.
    fn set_back(&mut self, error: BackupError) -> Result<(), EngineError> {
        self.setbacks = self.setbacks.saturating_add(1);
        match self.setbacks {
            0 | 1 => Ok(()),
            _ => Err(error.into()),
        }
    }

    /// A batch of ours is at the server.
    fn applied(&mut self, own: OwnBatch) {
        self.ground.applied(own);
        self.unnoted = self.unnoted.saturating_add(1);
        self.shared.stands(self.ground.cursor);
        self.shared.applied(self.clock().now_ns());
        self.worked();
    }

    fn note_if_due(&mut self) -> Result<(), EngineError> {
        match self.unnoted >= NOTED_EVERY {
            true => self.note(),
            false => Ok(()),
        }
    }

    /// All of a group is at the server.
    fn done(&mut self, group: &LiveGroup) {
        self.setbacks = 0;
        // If it was given up meanwhile, the engine asks for its outcome; that costs one request.
        let _ = self.parts.live.applied(group.id);
    }

    fn upload(&self, group: &LiveGroup) -> Result<Sent, BackupError> {
        let file_id = |node| self.file_id(node);
        let upload = Upload {
            server: &self.parts.server,
            folder: &self.parts.folder,
            device: self.parts.device,
            live: &*self.parts.live,
            tree: self.names,
            file_id: &file_id,
            root: self.root(),
            host: self.parts.host.clone(),
            path: self.parts.path.clone(),
            part_len_bytes: self.parts.part_len_bytes,
            monitor: &*self.shared,
        };
        upload.send(group, self.ground.footing())
    }

    /// A node's file ID at the server. A node that is gone keeps the ID that it was born with.
    fn file_id(&self, node: NodeId) -> FileId {
        let own = file_id(self.names, node);
        self.identities.file_of(node).unwrap_or(own)
    }

    /// Keeps unsent changes for the next start.
    fn leave(&mut self) {
        if self.open_cut.is_some() {
            // A cut does not outlive the process: the engine asks what became of the group in
            // flight from it, and takes the rest from another cut.
            self.parts.live.give_up("sending stopped in the middle of a cut");
            self.drop_cut();
        }
        // A group was perhaps in flight when the stop sign was raised: the next engine of this
        // mount would wait for its answer for ever.
        self.parts.live.unanswered(Duration::ZERO);
        if self.has_started {
            // If that fails, some batches are heard of once more.
            let _ = self.note();
        }
        self.shared.ended();
    }

    fn worked(&mut self) {
        self.failures.end();
        self.shared.connected(self.clock().now_ns());
    }

    fn failed(&self, error: &EngineError) {
        self.shared.failed(error, self.clock().now_ns());
    }

    fn next_pause(&mut self, is_passing: bool) -> Duration {
        // Without randomness all clients wait equally long.
        let random = self.parts.randomness.next_u64().unwrap_or(0);
        self.failures.next(self.parts.pauses, is_passing, random)
    }

    /// Waits, unless the stop sign is raised, a repair is asked for, or there is a new token.
    fn rest(&mut self, pause: Duration) -> Result<(), EngineError> {
        let (mut left, mut until_renewal) = (pause, RENEW_EVERY);
        while !left.is_zero() && !self.parts.stop.is_raised() && !self.shared.has_repairs() {
            let nap = left.min(NAP);
            self.clock().sleep(nap);
            left = left.saturating_sub(nap);
            until_renewal = until_renewal.saturating_sub(nap);
            if until_renewal.is_zero() && self.shared.is_token_refused() {
                until_renewal = RENEW_EVERY;
                if self.renew()? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
