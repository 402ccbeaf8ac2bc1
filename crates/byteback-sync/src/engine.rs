//! Continuous sync's engine: one thread that sends what a mounted tree hands out and lets in
//! others' changes, beside the mount in the same process.
//!
//! It works in rounds:
//!
//! 1. *Meet the server* ([`meeting`]), at the start and whenever it is unclear what the folder
//!    there has: the engine hears of its batches since the cursor. Those of this device tell what
//!    became of the groups in flight; those of others are news. Only then is anything sent.
//! 2. *Receive* ([`receiving`]) others' changes, when there is nothing to send, or else after each
//!    batch that was sent, so that neither waits for the other. A second thread listens to the
//!    server and wakes this one.
//! 3. *Send* ([`sending`]) what [`LiveTree::poll`] hands out, one batch at a time on one
//!    connection, each following the one before ([`ground`]). Changes that the tree has folded are
//!    taken from its cut through a backup's transfer ([`fold`]); so are groups of much new content,
//!    of which the server may have most.
//! 4. *Repair* ([`repair`]) damaged files, when a caller asks for it, and nothing is on its way in
//!    either direction.
//! 5. *Wait* for changes ([`LiveTree::wait`]) or, after a failure, for a while ([`pause`]).
//!
//! **The state is a [`Phase`]**, which holds what is known only in it. [`phase::next`] is the table
//! of what follows when the server or the tree says something: the engine performs an [`Action`],
//! reports the [`Event`] that answers it, and decides nothing else. Facts that outlive a phase are
//! in parts with an owner each: [`remembered`] (the directory's record), [`ground`], [`receiving`]
//! (`Arrivals`), [`sending`], [`folding`] (`Fold`, `Unsaved`), [`blocked`] and [`ignoring`], which
//! has a table of its own.
//!
//! **Durable**: a group's number before it is handed out (the tree's journal), and the
//! [`Standing`](crate::standing::Standing), which may be late. After a crash the engine hears again
//! of its own batches behind the cursor, so nothing else has to be durable.
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
mod meeting;
mod pause;
mod phase;
mod receiving;
mod remembered;
mod repair;
mod sending;
mod shared;

use byteback_model::{ByteString, DeviceId};
use std::sync::Arc;
use std::time::Duration;

use byteback_api::FolderName;
use byteback_control::{LandingTree, LiveTree, SYNC_CONSUMER, TreeService, Work};
use byteback_host::durable::DurableDir;
use byteback_host::random::Randomness;
use byteback_queue::GroupId;
use byteback_queue::queue::Resolution;

use crate::identities::Identities;
pub use anew::request_start_over;
use blocked::Blocked;
use byteback_backup::{BackupOptions, PART_LEN_BYTES_DEFAULT};
use byteback_client::ServerClient;
pub use failure::EngineError;
use folding::{Fold, Unsaved};
use ground::Ground;
use ignoring::{Ignoring, LocalTree};
use pause::Failures;
pub use pause::PauseOptions;
use phase::{Action, Event, Failure, Phase, ServerNews, Waiting, next};
pub use phase::{Transition, possible_transitions};
use receiving::Arrivals;
pub use receiving::Listener;
use remembered::{Noted, Remembered};
use sending::Sending;
use shared::Shared;
pub use shared::{EngineHandle, StopSign};

/// Longest wait when nothing is to be done; it then ends by itself.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// A pause notices within this time that it is to end.
const NAP: Duration = Duration::from_millis(50);

/// How often to look for another token of this machine while the server refuses the current one.
const RENEW_EVERY: Duration = Duration::from_secs(1);

/// Files that could not be read are tried again after this time.
const UNSAVED_AGAIN_AFTER: Duration = Duration::from_secs(600);

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
    /// A group with at least this number of bytes of new content is taken from a cut, where they
    /// are looked for in what the server has.
    pub examined_from_bytes: u64,
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

    /// Usual size, in bytes, from which groups are taken from a cut. Smaller ones cost less than
    /// the questions about them.
    pub const EXAMINED_FROM_BYTES: u64 = 64 * 1024;
}

/// Engine of one tree: see the module.
pub struct Engine {
    parts: EngineParts,
    options: BackupOptions,
    shared: Arc<Shared>,
    /// State of the machine; [`next`] alone changes it.
    phase: Phase,
    remembered: Remembered,
    identities: Identities,
    ground: Ground,
    arrivals: Arrivals,
    sending: Sending,
    fold: Fold,
    unsaved: Unsaved,
    blocked: Blocked,
    ignoring: Ignoring,
    failures: Failures,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("folder", &self.parts.folder)
            .field("ground", &self.ground)
            .field("phase", &self.phase)
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
        let noted = anew::noted(&parts, tree)?;
        if !matches!(noted, Noted::OfThisLog(_)) {
            // The map holds nodes of another log.
            Identities::remove(&*parts.dir)?;
        }
        let ground = noted.standing().map_or_else(Ground::default, |noted| Ground {
            cursor: noted.cursor,
            newest: noted.newest,
            others: 0,
        });
        let remembered = Remembered::of(noted, tree);
        let identities = anew::identities(&parts, remembered.noted.standing(), remembered.names)?;
        let mut options = BackupOptions::new(SYNC_CONSUMER, parts.device);
        options.host.clone_from(&parts.host);
        options.path.clone_from(&parts.path);
        options.part_len_bytes = parts.part_len_bytes;
        let is_new_locally = remembered.is_new_locally();
        let engine = Self {
            options,
            shared: Arc::new(Shared::new(&parts)),
            phase: Phase::of_standing(remembered.landing()),
            remembered,
            identities,
            ground,
            arrivals: Arrivals::open(&parts.dir, is_new_locally)?,
            sending: Sending::default(),
            fold: Fold::default(),
            unsaved: Unsaved::of_earlier(parts.live.status().unsaved_nodes),
            blocked: Blocked::default(),
            ignoring: Ignoring::of(match is_new_locally {
                true => LocalTree::New,
                false => LocalTree::Known,
            }),
            failures: Failures::default(),
            parts,
        };
        engine.tell_left_out();
        // Its calls are short and come for as long as it runs.
        engine.parts.server.keep_line();
        Ok(engine)
    }

    /// Reports the engine's status and ends it, from other threads.
    #[must_use]
    pub fn handle(&self) -> EngineHandle {
        EngineHandle::new(&self.shared, &self.parts)
    }

    /// Meets the server for the first time, so that the caller hears at once of a setup that cannot
    /// work.
    ///
    /// # Errors
    /// The server cannot be reached ([`EngineError::is_passing`]: the engine may be run, and
    /// waits), or the folder there is not one for this directory.
    pub fn greet(&mut self) -> Result<(), EngineError> {
        let mut event = Some(Event::Turn);
        while let Some(reported) = event {
            let action = self.tell(reported);
            if !self.phase.is_unmet() {
                // The rest of the round is for the thread that runs the engine.
                break;
            }
            event = match self.perform(action) {
                Ok(event) => event,
                Err(error) => {
                    self.failed(&error);
                    return Err(error);
                }
            };
        }
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
            match self.round() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) if error.is_end() => {}
                Err(error) => {
                    self.failed(&error);
                    self.refuse_repairs(&error);
                    let action = self.tell(Event::Failed(Failure::of(error.is_passing())));
                    if matches!(action, Action::Leave) {
                        break Err(error);
                    }
                    if let Err(error) = self.perform(action) {
                        self.failed(&error);
                    }
                }
            }
        };
        self.leave();
        ended
    }

    /// Does one thing. Returns false when the engine is to end.
    fn round(&mut self) -> Result<bool, EngineError> {
        let mut event = Event::Stopped;
        if !self.parts.stop.is_raised() {
            self.accept_asked();
            if self.shared.is_token_refused() {
                self.renew()?;
            }
            event = Event::Turn;
        }
        loop {
            let action = self.tell(event);
            if matches!(action, Action::Leave) {
                return Ok(false);
            }
            match self.perform(action)? {
                Some(answer) => event = answer,
                None => return Ok(true),
            }
        }
    }

    /// Reports an event. Returns what follows, in the phase that follows.
    fn tell(&mut self, event: Event) -> Action {
        self.shared.passed((self.phase.name(), event.name()));
        let (phase, action) = next(self.phase, event);
        self.phase = phase;
        action
    }

    /// Reports an event, and does all that follows.
    fn follow(&mut self, event: Event) -> Result<(), EngineError> {
        let mut event = Some(event);
        while let Some(reported) = event {
            let action = self.tell(reported);
            event = self.perform(action)?;
        }
        Ok(())
    }

    /// Performs an action, and returns the event that answers it; `None`: the round is over.
    fn perform(&mut self, action: Action) -> Result<Option<Event>, EngineError> {
        let answer = match action {
            Action::Nothing | Action::Unexpected | Action::Leave => None,
            Action::Rest(failure) => {
                let pause = self.next_pause(failure);
                self.rest(pause)?;
                None
            }
            Action::Meet => Some(Event::ServerNews(self.meet()?)),
            Action::StartOver(heard) => Some(Event::StartedOver(self.start_over_as(heard)?)),
            Action::Recognize(heard) => Some(Event::Met(self.recognize(heard)?)),
            Action::Look => {
                self.take_unsaved_turn();
                self.ground.others = self.ground.others.max(self.shared.newest_announced());
                Some(self.look())
            }
            Action::LookAtLeftOut(asked) => Some(match self.is_left_out_over()? {
                true => Event::LeftOutDue,
                false => Event::LeftOutWaits(asked),
            }),
            Action::PrepareLanding => {
                self.prepare_landing()?;
                Some(Event::Prepared)
            }
            Action::AskHead => Some(Event::HeadKnown(self.ask_head()?)),
            Action::NoteHead => {
                self.note()?;
                Some(Event::HeadNoted)
            }
            Action::Land(head) => Some(Event::Landed(Box::new(self.land(head)?))),
            Action::NoteLanded(head, received) => {
                self.note_landed(head, *received)?;
                None
            }
            Action::Repair => {
                self.repair_asked()?;
                None
            }
            Action::Poll => Some(self.poll()?),
            Action::Wait(wait) => {
                self.wait(wait);
                None
            }
            Action::Send(group) => Some(self.send(&group)?),
            Action::Cut => {
                let reported = self.to_be_told()?;
                Some(Event::GroupOut(self.parts.live.cut_fold(&reported)?))
            }
            Action::Ask(group) => {
                self.ask(group)?;
                None
            }
            Action::Decide(group) => {
                self.fold_refused(group)?;
                Some(Event::Decided)
            }
            Action::FoldForContact => {
                self.fold_for_contact();
                None
            }
            Action::BeginContact => self.begin_contact()?,
            Action::EndContact(root, group) => {
                self.end_contact(root, group)?;
                Some(Event::Contacted)
            }
            Action::Defer(group) => {
                self.defer(group);
                None
            }
            Action::Confirm(group, applied) => {
                self.confirm(group, applied.as_ref())?;
                None
            }
            Action::Refuse(group, error) => {
                self.refuse(group, error)?;
                None
            }
            Action::Await(error, failure) => {
                self.send_again(error, failure);
                None
            }
            Action::GiveUp(why) => {
                self.give_up(why)?;
                None
            }
        };
        Ok(answer)
    }

    /// Starts over, on the ground that the server told of, if that was the reason.
    fn start_over_as(&mut self, heard: Option<ServerNews>) -> Result<Option<ServerNews>, EngineError> {
        if let Some(heard) = heard {
            self.ground = heard.ground;
        }
        self.start_over()?;
        let ground = self.ground;
        Ok(heard.map(|heard| ServerNews { ground, ..heard }))
    }

    /// Asks the tree what is to be sent.
    fn poll(&self) -> Result<Event, EngineError> {
        Ok(match self.parts.live.poll()? {
            Work::Idle(wait) => {
                let live = self.parts.live.status();
                let waiting = match live.is_folded {
                    true => Waiting::Folded,
                    false => Waiting::Unfolded,
                };
                Event::Idle(wait, self.outlook(&live), waiting)
            }
            Work::Send(group) => Event::GroupOut(group),
            Work::Cut => Event::CutDue,
            Work::Ask(group) => Event::AskDue(group),
            Work::Decide(group) => Event::DecideDue(group),
            Work::Ended => Event::TreeEnded,
        })
    }

    /// Has a refused group folded. The server was met since the refusal, so the fold that now
    /// replaces the group stands on all that is there.
    fn fold_refused(&mut self, group: GroupId) -> Result<(), EngineError> {
        self.drop_cut();
        self.parts.live.resolve(group, &Resolution::Fold)?;
        Ok(())
    }

    /// Has nodes that could not be read tried again, if it is time.
    fn take_unsaved_turn(&mut self) {
        let now_ns = self.clock().monotonic_ns();
        if self.unsaved.takes_turn(now_ns) {
            self.parts
                .live
                .give_up("files that could not be read are being tried again");
        }
    }

    /// Waits for changes, or until something is to be tried again.
    fn wait(&self, wait: Option<Duration>) {
        let now_ns = self.clock().monotonic_ns();
        let until = |at_ns: u64| Duration::from_nanos(at_ns.saturating_sub(now_ns));
        let unsaved = self.unsaved.again_ns().map(until);
        let blocked = self.blocked_again_ns().map(until);
        let renewed = self.shared.is_token_refused().then_some(RENEW_EVERY);
        let waits = [wait, unsaved, renewed, blocked, Some(WAIT_MAX)];
        let wait = waits.into_iter().flatten().min();
        self.parts.live.wait(wait.unwrap_or(WAIT_MAX));
    }

    /// Keeps unsent changes for the next start.
    fn leave(&mut self) {
        if self.fold.is_open() {
            // A cut does not outlive the process: the engine asks what became of the group in
            // flight from it, and takes the rest from another cut.
            self.parts.live.give_up("sending stopped in the middle of a cut");
            self.drop_cut();
        }
        // A group was perhaps in flight when the stop sign was raised: the next engine of this
        // mount would wait for its answer for ever.
        self.parts.live.unanswered(Duration::ZERO);
        if self.phase.has_met() {
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

    fn next_pause(&mut self, failure: Failure) -> Duration {
        // Without randomness all clients wait equally long.
        let random = self.parts.randomness.next_u64().unwrap_or(0);
        let is_passing = failure == Failure::Passing;
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
