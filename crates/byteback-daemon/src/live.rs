//! Continuous sync at the origin: the queue that the gate feeds, and everything that the queue
//! refers to.
//!
//! [`byteback_queue`] decides. This module has what the queue must not know: the bytes that were
//! put aside ([`spool`]), removed files that are held open, deltas, numbers that outlive the
//! process ([`journal`]), the clock, and the locks. Programs come in through [`gate`], as the
//! observer of the tree's gate; the sender comes in through [`handout`], as
//! [`byteback_control::LiveTree`].
//!
//! **Locks**, in this order: the tree's `Order` (see `byteback_mount::tracked::observer`), then one
//! of `saving`, then `state`. The queue is in `state`, which is held for single calls and never
//! during I/O. `saving` is held while bytes are put aside, so that two changes of one file do not
//! put the same bytes aside, the second of them what the first has written. Code that freezes
//! something, or forgets what was put aside, holds `Order` exclusively, so that no change is half
//! way.
//!
//! **Reading what was frozen.** Bytes of a group are read from the file as it is, and bytes that
//! were put aside meanwhile are taken from the spool instead. They are put aside before they are
//! overwritten, so a read that comes too late is noticed. The same holds for attributes, of which a
//! *capture* is kept when they change while the queue refers to the node.
//!
//! **Removed files** are held open as long as they may be read; they have no second name, and their
//! space comes back when they are closed. Their descriptors do not outlive the process.
//!
//! **Giving up.** If something cannot be kept (no room, too many files, something unreadable), that
//! costs the fine order, never a program's call, and no change: [`Live::abandon`] folds everything
//! that waits into what the log knows since its mark, and [`LiveStatus::abandoned_because`] says
//! why. The same happens after a stop that was not clean. After a clean one the queue goes on, if
//! nothing changed in between.
//!
//! **From elsewhere.** Changes of others come in through [`landing`], as
//! [`byteback_control::LandingTree`]; the queue does not hear of them.
//!
//! Out of scope: talking to servers; deciding what is compared, what is sent together, and in which
//! order.

mod encode;
mod gate;
mod handout;
mod journal;
mod landing;
mod read;
mod rewrites;
mod spool;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use byteback_control::{LiveGroup, LiveStatus, SYNC_CONSUMER};
use byteback_host::clock::Clock;
use byteback_host::durable::DurableDir;
use byteback_host::tree::{Identity, Inode};
use byteback_model::{Attributes, NodeId};
use byteback_mount::integrity::Integrity;
use byteback_mount::live::LiveTree as Files;
use byteback_mount::tracked::observer::Order;
use byteback_oplog::{ChangesCursor, ContentChange, Epoch, Log, LogError, WholeReason};
use byteback_queue::queue::{Effect, Event, GroupState, Queue, QueueOptions};
use byteback_queue::relation::{Decision, RelationOptions, RelationTable};
use byteback_queue::{ClientId, GroupId, Position};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::DaemonError;
use crate::service::PAGE_LIMITS;
use crate::tree::TrackedTree;
pub use handout::LiveService;
use journal::{Found, JOURNAL_VERSION, Journal, JournalError, SKIPPED, Stopped};
use landing::Undurable;
use landing::watch::Watches;
use rewrites::{REWRITES_MAX, Rewrite};
use spool::Spool;

/// The folder of continuous sync in the tree's state folder.
pub(crate) const LIVE_NAME: &str = "live";
const SPOOL_NAME: &str = "spool";
const DELTA_NAME: &str = "delta";
const REWRITTEN_NAME: &str = "rewritten";

/// Number of locks among which the files are divided while bytes are put aside.
const SAVING_LOCKS: usize = 16;

/// Options of continuous sync.
#[derive(Clone, Copy, Debug)]
pub struct LiveOptions {
    /// The client whose versions these are.
    pub client: ClientId,
    /// When changes are sent, and how many may wait.
    pub queue: QueueOptions,
    /// How saves are recognised.
    pub relations: RelationOptions,
    /// Most bytes that are put aside.
    pub saved_bytes_max: u64,
    /// Most removed files that are held open: each costs a descriptor.
    pub kept_files_max: usize,
    /// Longer contents are not compared.
    pub compared_bytes_max: u64,
    /// Shortest file that is compared with its previous content when it is rewritten in place.
    pub rewritten_bytes_min: u64,
    /// Longest file that is compared like that.
    pub rewritten_bytes_max: u64,
    /// How often the log is cut for the mark, once the previous cut was reached.
    pub mark_every: Duration,
}

impl LiveOptions {
    /// The usual options, for a device of a server: a file is sent once it was left alone for
    /// `delay`, and one that changes all the time after ten times that.
    #[must_use]
    pub fn of_device(device: u64, delay: Duration) -> Self {
        let mut options = Self::new(ClientId(device));
        options.queue.delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        options.queue.delay_max_ns = options.queue.delay_ns.saturating_mul(10);
        options
    }

    /// The usual options.
    #[must_use]
    pub fn new(client: ClientId) -> Self {
        Self {
            client,
            queue: QueueOptions::default(),
            relations: RelationOptions::default(),
            saved_bytes_max: 4 << 30,
            kept_files_max: 1024,
            compared_bytes_max: 4 << 30,
            rewritten_bytes_min: 64 << 10,
            rewritten_bytes_max: 256 << 20,
            mark_every: Duration::from_secs(30),
        }
    }
}

/// A removed file that is held open.
#[derive(Clone, Debug)]
struct RemovedFile {
    fd: Arc<Inode>,
    identity: Identity,
    /// Whether it was written after its removal: nothing is compared with it then.
    is_spoiled: bool,
}

/// The lengths of files before the contents that begin at some positions.
type LensBefore = BTreeMap<NodeId, Vec<(Position, u64)>>;

/// Things that are not needed any more, until `Live::clean` removes them.
#[derive(Default)]
struct Trash {
    files: Vec<RemovedFile>,
    saved: Vec<Position>,
    deltas: Vec<u64>,
    /// Keys of what was kept of rewritten files.
    rewritten: Vec<Position>,
    is_everything: bool,
}

struct State {
    queue: Queue,
    table: RelationTable,
    kept: BTreeMap<NodeId, RemovedFile>,
    kept_nodes: HashMap<Identity, NodeId>,
    /// The file that is about to lose its last name.
    pending: Option<(NodeId, RemovedFile)>,
    /// The attributes that a node had up to a position.
    captures: BTreeMap<NodeId, Vec<(Position, Arc<Attributes>)>>,
    /// The length of a file before the content that begins at a position.
    lens_before: LensBefore,
    /// Groups as they were handed out, until they are answered.
    handed: BTreeMap<GroupId, Arc<LiveGroup>>,
    /// The bytes that contents overwrote, by the positions of the contents in the queue.
    rewrites: BTreeMap<Position, Rewrite>,
    /// The last key that was given to one of these.
    last_rewrite: u64,
    /// Number of them at which those of contents that are gone are swept out.
    rewrites_max: usize,
    trash: Trash,
    marks_reached: Option<Epoch>,
    wake: Wake,
    /// Whether the sender was called for a reason outside the queue: it holds until the sender has
    /// noticed, whatever is polled meanwhile.
    is_called: bool,
    abandoned: u64,
    abandoned_because: Option<String>,
}

/// The event that the sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    /// A time.
    Timed,
    /// Anything that happens.
    Wanted,
    /// Something has happened.
    Happened,
}

/// The cuts of the log for the mark.
#[derive(Default)]
struct Marking {
    /// The epoch that is not reached yet, and the position of the queue when it began.
    pending: Option<(Epoch, Position)>,
    cut_at_ns: u64,
    /// Nodes that could not be read when they were to be sent, so that the log has to go on
    /// reporting them. Those of an earlier process, too.
    unsaved: BTreeSet<NodeId>,
}

/// Continuous sync of one tree, see the module.
pub struct Live {
    options: LiveOptions,
    order: Order,
    state: Mutex<State>,
    happened: Condvar,
    saving: [Mutex<()>; SAVING_LOCKS],
    /// The number of entries in `State::kept`, for threads that only need to know whether there are
    /// any.
    kept_count: AtomicUsize,
    files: Files,
    log: Arc<Log>,
    clock: Arc<dyn Clock>,
    dir: Arc<dyn DurableDir>,
    spool: Spool,
    /// The previous bytes of rewritten files.
    rewritten: Spool,
    /// The checksums with which contents are compared before they are sent, if they are kept.
    integrity: Option<Arc<Integrity>>,
    deltas: encode::Deltas,
    journal: Mutex<Journal>,
    unanswered_before: Vec<GroupId>,
    marking: Mutex<Marking>,
    watches: Watches,
    undurable: Mutex<Undurable>,
    has_ended: AtomicBool,
}

impl State {
    /// Does what follows from the last calls of the queue.
    fn settle(&mut self) {
        loop {
            let effects = self.queue.take_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Unrelated(new) => {
                        let decisions = self.table.finish(new);
                        self.decide(&decisions);
                    }
                    Effect::Rebased { new, base } => {
                        let decisions = self.table.rebase(new, base);
                        self.decide(&decisions);
                    }
                    Effect::DropSaved(position) => self.trash.saved.push(position),
                    Effect::DropDelta(stamp) => self.trash.deltas.push(stamp),
                    Effect::Free(node) => {
                        if !self.table.kept().any(|kept| kept == node) {
                            self.release(node);
                        }
                    }
                    Effect::Mark(epoch) => self.marks_reached = Some(Epoch(epoch)),
                }
            }
        }
    }

    fn decide(&mut self, decisions: &[Decision]) {
        for decision in decisions {
            match *decision {
                Decision::Relate {
                    new,
                    base,
                    is_base_removed,
                } => {
                    if self.kept.get(&base).is_some_and(|kept| kept.is_spoiled) {
                        let decisions = self.table.finish(new);
                        self.decide(&decisions);
                    } else {
                        self.queue.relate(new, base, is_base_removed);
                    }
                }
                Decision::Unrelate { new, .. } => self.queue.unrelate(new),
                Decision::Drop(node) => {
                    if !self.queue.needs_file(node) {
                        self.release(node);
                    }
                }
            }
        }
    }

    fn release(&mut self, node: NodeId) {
        if let Some(kept) = self.kept.remove(&node) {
            self.kept_nodes.remove(&kept.identity);
            self.trash.files.push(kept);
        }
    }

    fn keep(&mut self, node: NodeId, kept: RemovedFile) {
        self.kept_nodes.insert(kept.identity, node);
        self.kept.insert(node, kept);
    }

    fn abandon(&mut self, why: String, now_ns: u64) {
        self.queue.abandon(now_ns);
        self.settle();
        self.captures.clear();
        self.lens_before.clear();
        self.handed.clear();
        self.forget_rewritings(|_, _| true);
        self.trash.is_everything = true;
        self.abandoned += 1;
        self.abandoned_because = Some(why);
    }

    /// Forgets what is only of use for groups that are answered by now.
    fn forget_up_to(&mut self, position: Position) {
        for captures in self.captures.values_mut() {
            captures.retain(|(at, _)| *at > position);
        }
        self.captures.retain(|_, captures| !captures.is_empty());
        for lens in self.lens_before.values_mut() {
            lens.retain(|(at, _)| *at > position);
        }
        self.lens_before.retain(|_, lens| !lens.is_empty());
    }
}

impl Live {
    /// Makes the observer of the gate, before that opens. [`Live::begin`] comes next.
    ///
    /// # Errors
    /// If its folder cannot be read or written, or was written by another version of this program.
    pub(crate) fn open(tree: &TrackedTree, options: LiveOptions) -> Result<Self, DaemonError> {
        let open = || -> Result<Self, JournalError> {
            let dir = tree.dir().subdir(LIVE_NAME)?;
            tree.dir().sync()?;
            let spool = Spool::open(dir.subdir(SPOOL_NAME)?, options.saved_bytes_max)?;
            let rewritten = Spool::open(dir.subdir(REWRITTEN_NAME)?, options.saved_bytes_max)?;
            rewritten.clear();
            let deltas = encode::Deltas::open(dir.subdir(DELTA_NAME)?)?;
            let journal = Journal::begin(Arc::clone(&dir), found(tree.log(), &*dir, options.queue)?)?;
            let state = State {
                queue: Queue::starting_after(options.client, options.queue, journal.numbers()),
                table: RelationTable::new(options.relations),
                kept: BTreeMap::new(),
                kept_nodes: HashMap::new(),
                pending: None,
                captures: BTreeMap::new(),
                lens_before: BTreeMap::new(),
                handed: BTreeMap::new(),
                rewrites: BTreeMap::new(),
                last_rewrite: 0,
                rewrites_max: REWRITES_MAX,
                trash: Trash::default(),
                marks_reached: None,
                wake: Wake::Timed,
                is_called: false,
                abandoned: 0,
                abandoned_because: None,
            };
            Ok(Self {
                options,
                order: Order::default(),
                state: Mutex::new(state),
                happened: Condvar::new(),
                saving: Default::default(),
                kept_count: AtomicUsize::new(0),
                files: tree.live().clone(),
                log: Arc::clone(tree.log()),
                clock: Arc::clone(tree.clock()),
                dir,
                spool,
                rewritten,
                integrity: tree.integrity().cloned(),
                deltas,
                unanswered_before: journal.unanswered(),
                journal: Mutex::new(journal),
                marking: Mutex::default(),
                watches: Watches::default(),
                undurable: Mutex::default(),
                has_ended: AtomicBool::new(false),
            })
        };
        let path = tree.folder().path().join(LIVE_NAME);
        open().map_err(|error| match error {
            JournalError::Io(source) => DaemonError::State { path, source },
            JournalError::Version(version) => DaemonError::Version {
                path: path.join(journal::JOURNAL_NAME),
                version,
                known: JOURNAL_VERSION,
            },
        })
    }

    /// Goes on where a clean stop left off, or with everything since the mark. Called before the
    /// gate opens, after the tree was compared with its record.
    ///
    /// # Errors
    /// If its folder cannot be read or written, or the log cannot be read.
    pub(crate) fn begin(&self) -> io::Result<()> {
        let now_ns = self.now_ns();
        let stopped = Stopped::consume(&*self.dir, self.options.queue)?;
        let resumed = match stopped {
            None => Err("continuous sync starts for the first time, or did not end cleanly"),
            Some(stopped) if self.is_untouched_since(&stopped)? => Ok(stopped),
            Some(_) => Err("the folder was changed while it was not being synced"),
        };
        self.marking.lock().unsaved = self.unsaved_before()?;
        let noted = self.journal.lock().together();
        let mut state = self.state.lock();
        match resumed {
            Ok(stopped) => {
                self.marking.lock().pending = Some((stopped.epoch, stopped.queue.position()));
                state.queue = stopped.queue;
                state.lens_before = stopped.lens_before;
                state.queue.resume(now_ns);
                state.settle();
            }
            Err(why) => {
                state.abandon(why.to_owned(), now_ns);
                // Sync begins like this, and this process gave nothing up.
                state.abandoned = 0;
                state.queue.note_together(noted);
            }
        }
        drop(state);
        self.clean();
        Ok(())
    }

    /// Nodes that an earlier process could not read, as the log reports them since the mark.
    fn unsaved_before(&self) -> io::Result<BTreeSet<NodeId>> {
        let unsaved = || -> std::result::Result<BTreeSet<NodeId>, LogError> {
            let mark = self.log.consumer(SYNC_CONSUMER)?.mark;
            let list = self.log.look()?.changes(mark)?;
            let mut unsaved = BTreeSet::new();
            let mut cursor = Some(ChangesCursor::default()).filter(|_| mark.is_some() && !list.is_everything());
            while let Some(at) = cursor {
                let page = list.page(&at, PAGE_LIMITS)?;
                let is_unsaved =
                    |content: &ContentChange| matches!(content, ContentChange::Whole(WholeReason::Unsaved));
                let nodes = page.nodes.iter().filter(|change| is_unsaved(&change.content));
                unsaved.extend(nodes.map(|change| change.node));
                // Nodes come before names.
                cursor = page.next.filter(|next| next.name.is_none());
            }
            Ok(unsaved)
        };
        unsaved().map_err(io::Error::other)
    }

    /// Whether a node was handed out in a fold and stayed unsaved.
    fn is_unsaved(&self, node: NodeId) -> bool {
        self.marking.lock().unsaved.contains(&node)
    }

    /// Makes the log go on reporting what could not be read, from the epoch on that begins now.
    fn report_unsaved(&self, marking: &Marking) -> io::Result<()> {
        match marking.unsaved.is_empty() {
            true => Ok(()),
            false => {
                let unsaved: Vec<_> = marking.unsaved.iter().copied().collect();
                self.log.report_again(&unsaved).map_err(io::Error::other)
            }
        }
    }

    /// Whether the log knows of no change that the queue missed.
    fn is_untouched_since(&self, stopped: &Stopped) -> io::Result<bool> {
        let journal = self.journal.lock().numbers();
        let numbers = stopped.queue.numbers();
        let is_of_this_log = stopped.tree == self.log.tree() && numbers.group >= journal.group;
        let consumer = self.log.consumer(SYNC_CONSUMER).map_err(io::Error::other)?;
        let is_pending = consumer.pending.is_some_and(|pending| pending.epoch == stopped.epoch);
        let is_held = is_pending || consumer.mark == Some(stopped.epoch);
        if !is_of_this_log || !is_held {
            return Ok(false);
        }
        let look = self.log.look().map_err(io::Error::other)?;
        let changes = look.changes(Some(stopped.epoch)).map_err(io::Error::other)?;
        if changes.is_everything() {
            return Ok(false);
        }
        let totals = changes.totals().map_err(io::Error::other)?;
        Ok(totals.nodes == 0 && totals.names == 0)
    }

    /// Keeps the queue for the next start, if all that it refers to can be kept. The mount is gone,
    /// and the last checkpoint is made.
    ///
    /// # Errors
    /// If that cannot be written: the next start then begins with everything since the mark.
    pub(crate) fn end(&self) -> io::Result<()> {
        self.has_ended.store(true, Ordering::Relaxed);
        self.happened.notify_all();
        self.clean();
        let marking = self.marking.lock();
        let cut = self.log.cut(SYNC_CONSUMER, || {}).map_err(io::Error::other)?;
        self.report_unsaved(&marking)?;
        drop(marking);
        let (queue, lens_before) = {
            let mut state = self.state.lock();
            // Descriptors end with this process, and so do captured attributes.
            let is_bound = state.queue.nameless_files().next().is_some() || !state.captures.is_empty();
            if is_bound {
                return Ok(());
            }
            let epoch = cut.epoch().0;
            state.queue.event(&Event::Mark { epoch }, self.now_ns());
            state.settle();
            // The next process does not know of these groups.
            let handed = std::mem::take(&mut state.handed);
            handed.values().for_each(|group| state.forget_rewritten(group));
            (state.queue.clone(), state.lens_before.clone())
        };
        self.clean();
        self.spool.sync()?;
        self.deltas.sync()?;
        let stopped = Stopped {
            tree: self.log.tree(),
            epoch: cut.epoch(),
            lens_before,
            queue,
        };
        stopped.write(&*self.dir)
    }

    fn now_ns(&self) -> u64 {
        self.clock.coarse_monotonic_ns()
    }

    /// Gives the fine order up: everything that changed since the log's mark is to be sent, as it
    /// is when the log is cut for that.
    pub fn abandon(&self, why: impl Into<String>) {
        let now_ns = self.now_ns();
        let mut state = self.state.lock();
        state.abandon(why.into(), now_ns);
        self.wake(state);
    }

    /// Cuts the log for the mark, if it is time. Called once in a while by the thread that keeps
    /// the log tidy.
    pub(crate) fn mark(&self) {
        let mut marking = self.marking.lock();
        let now_ns = self.now_ns();
        let every_ns = u64::try_from(self.options.mark_every.as_nanos()).unwrap_or(u64::MAX);
        if marking.pending.is_some() || now_ns.saturating_sub(marking.cut_at_ns) < every_ns {
            return;
        }
        let is_folded = |state: &State| state.queue.groups().any(|group| group.fold.is_some());
        if is_folded(&self.state.lock()) {
            return;
        }
        marking.cut_at_ns = now_ns;
        let before = self.log.epoch();
        // A cut that fails has lost nothing; the mark stays where it is until the next.
        let mut position = Position::default();
        let at_the_cut = || position = self.state.lock().queue.position();
        let Ok(cut) = self.log.cut(SYNC_CONSUMER, at_the_cut) else {
            return;
        };
        if cut.epoch() == before || self.report_unsaved(&marking).is_err() {
            return;
        }
        // The event comes later than the cut: what came in between is sent, and counted, once more
        // at worst.
        let mut state = self.state.lock();
        marking.pending = Some((cut.epoch(), position));
        state.queue.event(&Event::Mark { epoch: cut.epoch().0 }, now_ns);
        state.settle();
        drop(state);
        drop(marking);
        self.clean();
    }

    /// Cleans away what is not needed any more, and moves the mark. Does not hold `state`
    /// meanwhile.
    fn clean(&self) {
        let (trash, epoch) = {
            let mut state = self.state.lock();
            self.kept_count.store(state.kept.len(), Ordering::Relaxed);
            state.sweep_rewritings();
            if state.queue.is_empty() && state.kept.is_empty() {
                state.trash.is_everything |= self.spool.total_bytes() > 0;
            }
            (std::mem::take(&mut state.trash), state.marks_reached.take())
        };
        if trash.is_everything {
            // Under the lock, so that nothing is put aside anew meanwhile.
            let _order = self.order.exclusive();
            if self.needs_nothing_saved() {
                self.spool.clear();
                self.deltas.clear();
            }
        }
        for position in trash.saved {
            self.spool.remove(position);
        }
        for stamp in trash.deltas {
            self.deltas.remove(stamp);
        }
        for key in trash.rewritten {
            self.rewritten.remove(key);
        }
        drop(trash.files);
        if let Some(epoch) = epoch {
            let mut marking = self.marking.lock();
            let reached = marking.pending.take_if(|(pending, _)| *pending <= epoch);
            let note = self.log.consumer(SYNC_CONSUMER).map(|state| state.note);
            let advanced = self.log.advance(SYNC_CONSUMER, Some(epoch), &note.unwrap_or_default());
            // If that failed the mark stays, and is reached again by the next.
            if let (Ok(()), Some((_, position))) = (advanced, reached) {
                self.journal.lock().marked(position);
            }
        }
    }

    /// Whether nothing that was put aside is needed: right after giving up, and when nothing waits.
    fn needs_nothing_saved(&self) -> bool {
        let state = self.state.lock();
        let mut groups = state.queue.groups();
        state.queue.waiting_nodes() == 0 && groups.all(|group| group.state == GroupState::Unknown)
    }

    /// Wakes the sender, if it may be waiting for what happened.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        if state.wake == Wake::Wanted {
            state.wake = Wake::Happened;
            drop(state);
            self.happened.notify_all();
        }
    }

    fn status_now(&self) -> LiveStatus {
        let unsaved_nodes = self.marking.lock().unsaved.len() as u64;
        let state = self.state.lock();
        LiveStatus {
            waiting_nodes: state.queue.waiting_nodes() as u64,
            waiting_bytes: state.queue.waiting_bytes(),
            groups_in_flight: state.queue.groups().count() as u64,
            saved_bytes: self.spool.total_bytes(),
            kept_files: state.kept.len() as u64,
            is_folded: state.queue.is_folded(),
            unsaved_nodes,
            abandoned: state.abandoned,
            abandoned_because: state.abandoned_because.clone(),
        }
    }
}

/// Reads what is left of the journal. If part of it is lost, or all of it, the server is not
/// believed to have anything, and that is durable before the damage is forgotten: what came and
/// went since the log's mark may be on the server without being known here.
fn found(log: &Log, dir: &dyn DurableDir, options: QueueOptions) -> Result<Found, JournalError> {
    let mut found = Found::read(dir)?;
    let consumer = log.consumer(SYNC_CONSUMER).map_err(io::Error::other)?;
    let has_started = consumer.mark.is_some() || consumer.pending.is_some();
    if found.is_damaged || (found.is_missing && has_started) {
        log.reset_mark(SYNC_CONSUMER).map_err(io::Error::other)?;
        let stopped = Stopped::read(dir, options)?;
        found.skip(stopped.map(|stopped| stopped.queue.numbers()).unwrap_or_default());
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
