//! The undo of one tree: what the gate tells it, and files read as of a time.
//!
//! Starts and stops are in `session`, reading is in `reading`.
//!
//! **Locks**, in this order: the map of nodes, a node's history, the names, the journal. Old bytes
//! are read under the node's lock alone.
//!
//! **Time** is the wall clock, made not to go back while this runs. Where it is set back by more
//! than [`SET_BACK_NS`], what was recorded cannot be told any more from what is to come by its
//! time: all of it is given up ([`Undo::watch_clock`]).

pub(crate) mod reading;
pub(crate) mod session;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::clock::Clock;
use byteback_model::NodeId;
use parking_lot::Mutex;

use self::session::LastSession;
use crate::error::{NotKept, UndoError};
use crate::journal::{Journal, Placed};
use crate::name_history::{NameEvent, NameHistory, NameHow};
use crate::node_history::{NodeHistory, Old};
use crate::record::{ContentHow, DATA_LEN_BYTES_MAX, Record, Rights};

/// Of one change, and of one removed file, at most so much is copied.
const CHANGE_LEN_BYTES_MAX: u64 = 64 << 20;
/// And at most this share of the budget.
const CHANGES_PER_BUDGET: u64 = 8;
/// A quantum is this share of the window, within these bounds.
const QUANTA_PER_WINDOW: i64 = 600;
const QUANTUM_NS_MIN: i64 = 1_000_000_000;
const QUANTUM_NS_MAX: i64 = 10_000_000_000;
/// A clock that goes back by no more than this is waited for: times are wrong by no more than a
/// quantum may be.
const SET_BACK_NS: i64 = QUANTUM_NS_MAX;

/// The limits of what is kept.
#[derive(Clone, Copy, Debug)]
pub struct UndoOptions {
    /// For how long, in nanoseconds.
    pub window_ns: i64,
    /// How much at most, in bytes on the disk; each piece counts as at least 512.
    pub budget_bytes: u64,
    /// Changes of a file that begin within this time share a moment, in nanoseconds; at most ten
    /// seconds.
    pub quantum_ns: i64,
}

impl UndoOptions {
    /// For `window_ns`, at most `budget_bytes`; the quantum is a 600th of the window, at least one
    /// and at most ten seconds.
    #[must_use]
    pub fn new(window_ns: i64, budget_bytes: u64) -> Self {
        let quantum_ns = (window_ns / QUANTA_PER_WINDOW).clamp(QUANTUM_NS_MIN, QUANTUM_NS_MAX);
        Self {
            window_ns,
            budget_bytes,
            quantum_ns,
        }
    }
}

/// A change of content that is about to happen.
pub struct BeforeChange<'a> {
    /// The bytes that are about to change; any beyond the end are ignored.
    pub ranges: &'a [ByteRange],
    /// The kind of change.
    pub how: ContentHow,
    /// The file's length before the change.
    pub size_bytes: u64,
    /// Fills the front of a buffer with the bytes at an offset; answers how many, 0 at the end.
    pub read: &'a mut dyn FnMut(u64, &mut [u8]) -> io::Result<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Horizon {
    at_ns: i64,
    why: NotKept,
}

/// See the module. All methods may be called from any thread.
pub struct Undo {
    clock: Arc<dyn Clock>,
    options: UndoOptions,
    last_ns: AtomicI64,
    /// Held while everything is given up because the clock was set back.
    setting_back: Mutex<()>,
    nodes: Mutex<HashMap<NodeId, Arc<Mutex<NodeHistory>>>>,
    names: Mutex<NameHistory>,
    journal: Mutex<Journal>,
    horizon: Mutex<Horizon>,
    replayed: Mutex<Option<LastSession>>,
}

impl std::fmt::Debug for Undo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Undo")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Undo {
    /// Makes all kept bytes durable. Call this before each checkpoint of the log. If that fails,
    /// they are given up.
    pub fn sync(&self) {
        let synced = self.journal.lock().sync();
        if synced.is_err() {
            self.give_up(NotKept::NotWritten);
        }
    }

    /// Gives up what is older than the window, and frees the memory of what was given up.
    pub fn maintain(&self) {
        self.watch_clock();
        let now_ns = self.now_ns();
        let before_ns = now_ns.saturating_sub(self.options.window_ns);
        let (dropped, first) = {
            let mut journal = self.journal.lock();
            let dropped = journal.drop_older(before_ns);
            (dropped, journal.first())
        };
        match dropped {
            Ok(Some(up_to_ns)) => self.raise_horizon(up_to_ns, NotKept::TooOld),
            Ok(None) => {}
            Err(_) => self.give_up(NotKept::NotWritten),
        }
        let Horizon { at_ns: horizon_ns, why } = *self.horizon.lock();
        let all: Vec<(NodeId, Arc<Mutex<NodeHistory>>)> = self
            .nodes
            .lock()
            .iter()
            .map(|(node, history)| (*node, Arc::clone(history)))
            .collect();
        for (node, history) in all {
            {
                let mut history = history.lock();
                history.drop_below(first, why);
                history.barrier = history.barrier.filter(|(at_ns, _)| *at_ns > horizon_ns);
                history.born_ns = history
                    .born_ns
                    .filter(|born_ns| now_ns.saturating_sub(*born_ns) <= self.options.quantum_ns);
            }
            self.forget_if_empty(node, &history);
        }
        self.names.lock().drop_up_to(horizon_ns);
    }

    /// Removes a node without any history from the map. The history is looked at here, while no
    /// thread can get it from the map: after an earlier look another thread may have added to it
    /// and released it.
    fn forget_if_empty(&self, node: NodeId, history: &Arc<Mutex<NodeHistory>>) {
        let mut nodes = self.nodes.lock();
        // Any holder besides the map and the caller is about to add to it.
        if nodes.get(&node).is_some_and(|other| Arc::ptr_eq(other, history))
            && Arc::strong_count(history) <= 2
            && history.lock().is_empty()
        {
            nodes.remove(&node);
        }
    }

    /// The bytes that count against the budget now.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.journal.lock().charged_bytes()
    }

    /// The limits that were asked for.
    #[must_use]
    pub fn options(&self) -> UndoOptions {
        self.options
    }

    /// The time before which nothing is known of the whole tree, with the reason; `None` if nothing
    /// was given up.
    #[must_use]
    pub fn horizon(&self) -> Option<(i64, NotKept)> {
        let horizon = *self.horizon.lock();
        (horizon.at_ns != i64::MIN).then_some((horizon.at_ns, horizon.why))
    }

    /// Content of `node` is about to change.
    pub fn before_content(&self, node: NodeId, change: BeforeChange<'_>) {
        self.watch_clock();
        let shared = self.history_of(node);
        let mut history = shared.lock();
        let now_ns = self.now_ns();
        if let Err(why) = self.keep(node, &mut history, now_ns, change) {
            self.lose(node, &mut history, now_ns, why);
        }
    }

    /// Content of `node` is about to change, or it is about to be removed, and its old bytes cannot
    /// be had.
    pub fn not_kept(&self, node: NodeId) {
        self.watch_clock();
        let shared = self.history_of(node);
        let now_ns = self.now_ns();
        self.lose(node, &mut shared.lock(), now_ns, NotKept::Unreadable);
    }

    /// Content of `node` was changed while not watched: the old content is not known.
    pub fn changed_unseen(&self, node: NodeId) {
        self.watch_clock();
        let shared = self.history_of(node);
        let mut history = shared.lock();
        let now_ns = self.now_ns();
        self.lose(node, &mut history, now_ns, NotKept::Gap);
    }

    /// Whether a file that is about to be removed is worth opening: false for one that has just
    /// been created, which is only noted as not kept.
    #[must_use]
    pub fn wants_removed(&self, node: NodeId) -> bool {
        self.watch_clock();
        let shared = self.history_of(node);
        let mut history = shared.lock();
        let now_ns = self.now_ns();
        let is_short_lived = history.lived_shortly(now_ns, self.options.quantum_ns);
        if is_short_lived {
            self.lose(node, &mut history, now_ns, NotKept::ShortLived);
        }
        !is_short_lived
    }

    /// The file `node`, `size_bytes` long and with these rights, is about to lose its last name.
    pub fn before_removal(
        &self,
        node: NodeId,
        size_bytes: u64,
        rights: Rights,
        read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<usize>,
    ) {
        self.watch_clock();
        let shared = self.history_of(node);
        let mut history = shared.lock();
        let now_ns = self.now_ns();
        if history.lived_shortly(now_ns, self.options.quantum_ns) {
            self.lose(node, &mut history, now_ns, NotKept::ShortLived);
            return;
        }
        // A moment of its own: it says that the file was removed then.
        history.close();
        let all: Vec<ByteRange> = ByteRange::new(0, size_bytes).into_iter().collect();
        let change = BeforeChange {
            ranges: &all,
            how: ContentHow::Removed,
            size_bytes,
            read,
        };
        match self.keep(node, &mut history, now_ns, change) {
            Ok(()) => {
                let record = Record::Rights { node: node.0, rights };
                if self.append(now_ns, &record, &[]).is_some() {
                    history.had_rights(rights);
                }
            }
            Err(why) => self.lose(node, &mut history, now_ns, why),
        }
        history.close();
    }

    /// `name` in `parent` changed. A file that is new is told as [`NameHow::Created`].
    pub fn name_changed(
        &self,
        parent: NodeId,
        name: &OsStr,
        how: NameHow,
        before: Option<NodeId>,
        after: Option<NodeId>,
    ) {
        self.watch_clock();
        let now_ns = self.now_ns();
        if let (NameHow::Created, Some(node)) = (how, after) {
            // Numbers of files that a crash made forgotten are given away again.
            let mut history = NodeHistory {
                born_ns: Some(now_ns),
                ..NodeHistory::default()
            };
            history.barrier = Some((now_ns, NotKept::Born));
            self.nodes.lock().insert(node, Arc::new(Mutex::new(history)));
            let record = Record::NodeBarrier {
                node: node.0,
                why: NotKept::Born.code(),
            };
            self.append(now_ns, &record, &[]);
        } else if let Some(node) = after {
            self.history_of(node).lock().close_at(now_ns);
        }
        let number = |node: Option<NodeId>| node.map_or(0, |node| node.0);
        let record = Record::Name {
            parent: parent.0,
            before: number(before),
            after: number(after),
            how: how.code(),
            name: name.as_bytes().to_vec(),
        };
        let gone = before.and_then(|node| self.nodes.lock().get(&node).cloned());
        let mut gone = gone.as_ref().map(|history| history.lock());
        let at_ns = {
            let mut names = self.names.lock();
            // Under the lock: not a time of before the clock was set back among those of after.
            let at_ns = self.now_ns();
            let event = NameEvent {
                at_ns,
                how,
                before,
                after,
            };
            names.add(parent, name, event);
            if let Some(history) = &mut gone {
                history.extend_removal_to(at_ns);
            }
            at_ns
        };
        drop(gone);
        self.append(at_ns, &record, &[]);
    }

    /// Drops what the journal has given up.
    fn drop_given_up(&self, history: &mut NodeHistory) {
        let first = self.journal.lock().first();
        let why = self.horizon.lock().why;
        history.drop_below(first, why);
    }

    /// The time, never before a time that was answered.
    fn now_ns(&self) -> i64 {
        let now_ns = self.clock.now_ns();
        self.last_ns.fetch_max(now_ns, Ordering::Relaxed).max(now_ns)
    }

    /// Looks whether the clock was set back, and if so gives everything up. Called without any
    /// lock, before the time is used.
    ///
    /// A thread that took a time just before that either holds the lock of a history, and is waited
    /// for, or has its record in the journal alone: a start that finds it there finds the clock set
    /// back, too. Readers under way notice, because the numbers of moments go on.
    fn watch_clock(&self) {
        let is_set_back = || self.clock.now_ns() < self.last_ns.load(Ordering::Relaxed).saturating_sub(SET_BACK_NS);
        if !is_set_back() {
            return;
        }
        let _one = self.setting_back.lock();
        if !is_set_back() {
            return;
        }
        let why = NotKept::ClockSetBack;
        // Nothing is answered until all is forgotten.
        *self.horizon.lock() = Horizon { at_ns: i64::MAX, why };
        self.last_ns.store(self.clock.now_ns(), Ordering::Relaxed);
        let all: Vec<_> = self.nodes.lock().values().cloned().collect();
        for history in all {
            history.lock().reset();
        }
        self.names.lock().clear();
        // As in `give_up`.
        let _ = self.journal.lock().drop_all();
        // Records added meanwhile may be forgotten as well.
        let at_ns = self.now_ns().saturating_add(QUANTUM_NS_MAX);
        *self.horizon.lock() = Horizon { at_ns, why };
    }

    fn history_of(&self, node: NodeId) -> Arc<Mutex<NodeHistory>> {
        Arc::clone(self.nodes.lock().entry(node).or_default())
    }

    fn check(&self, at_ns: i64, barrier: Option<(i64, NotKept)>) -> Result<(), UndoError> {
        let known_since = barrier
            .into_iter()
            .chain(self.horizon())
            .max_by_key(|(since_ns, _)| *since_ns);
        match known_since {
            Some((since_ns, why)) if at_ns < since_ns => Err(UndoError::NotKept { why, since_ns }),
            _ => Ok(()),
        }
    }

    fn keep(
        &self,
        node: NodeId,
        history: &mut NodeHistory,
        now_ns: i64,
        change: BeforeChange<'_>,
    ) -> Result<(), NotKept> {
        let quantum_ns = self.options.quantum_ns;
        let size = match history.current(now_ns) {
            Some(moment) => moment.size,
            None => {
                let (size, how) = (change.size_bytes, change.how);
                let record = Record::Moment {
                    node: node.0,
                    size,
                    how,
                    quantum_ns: quantum_ns.unsigned_abs(),
                };
                let placed = self.append(now_ns, &record, &[]).ok_or(NotKept::NotWritten)?;
                history.begin((now_ns, now_ns.saturating_add(quantum_ns)), size, how, placed.segment);
                change.size_bytes
            }
        };
        let Some(moment) = history.moments.back_mut() else {
            return Err(NotKept::Damaged);
        };
        let mut missing = ExtentSet::new();
        // Bytes that were beyond the end at the moment are not part of it; bytes that are beyond
        // the end now were cut off since, and kept then.
        for range in change
            .ranges
            .iter()
            .filter_map(|range| range.split_at(size.min(change.size_bytes)).0)
        {
            moment.old.gaps(range).for_each(|gap| missing.insert(gap));
        }
        let limit = CHANGE_LEN_BYTES_MAX.min(self.options.budget_bytes / CHANGES_PER_BUDGET);
        if missing.total_len_bytes() > limit {
            return Err(NotKept::TooLarge);
        }
        for range in missing.iter() {
            let mut at = range.start();
            while let Some(piece) = ByteRange::new(at, range.end().min(at.saturating_add(DATA_LEN_BYTES_MAX))) {
                at = piece.end();
                let bytes = read_exactly(piece, &mut *change.read).map_err(|_| NotKept::Unreadable)?;
                let is_zeros = bytes.iter().all(|byte| *byte == 0);
                let record = Record::Old {
                    node: node.0,
                    offset: piece.start(),
                    len: piece.len_bytes(),
                    is_zeros,
                };
                let data = if is_zeros { &[][..] } else { &bytes };
                let placed = self.append(now_ns, &record, data).ok_or(NotKept::NotWritten)?;
                moment.old.insert(piece, Old::of_record(is_zeros, placed));
            }
        }
        Ok(())
    }

    /// A change of `node` was not kept.
    fn lose(&self, node: NodeId, history: &mut NodeHistory, now_ns: i64, why: NotKept) {
        // From the end of this instant on: the change itself comes now.
        history.forget(now_ns.saturating_add(1), why);
        self.append(
            now_ns,
            &Record::NodeBarrier {
                node: node.0,
                why: why.code(),
            },
            &[],
        );
    }

    fn forget_name(&self, parent: NodeId, name: &OsStr, now_ns: i64) {
        self.names.lock().forget(parent, name, now_ns, NotKept::Gap);
        let record = Record::NameBarrier {
            parent: parent.0,
            why: NotKept::Gap.code(),
            name: name.as_bytes().to_vec(),
        };
        self.append(now_ns, &record, &[]);
    }

    /// Appends a record. If that cannot be done, everything is given up, and nothing answered.
    fn append(&self, now_ns: i64, record: &Record, data: &[u8]) -> Option<Placed> {
        let appended = self.journal.lock().append(now_ns, record, data);
        match appended {
            Ok((placed, dropped)) => {
                if let Some(up_to_ns) = dropped {
                    self.raise_horizon(up_to_ns, NotKept::OverBudget);
                }
                Some(placed)
            }
            Err(_) => {
                self.give_up(NotKept::NotWritten);
                None
            }
        }
    }

    fn raise_horizon(&self, at_ns: i64, why: NotKept) {
        let mut horizon = self.horizon.lock();
        if at_ns > horizon.at_ns {
            *horizon = Horizon { at_ns, why };
        }
    }

    /// Gives up all that is in the journal; histories are found to be without their bytes by their
    /// segments.
    fn give_up(&self, why: NotKept) {
        let now_ns = self.now_ns();
        let mut journal = self.journal.lock();
        // If even that fails, the log on the same disk fails, too, and lets no change through.
        let _ = journal.drop_all();
        self.raise_horizon(now_ns.saturating_add(1), why);
    }

    fn given_up(&self) -> UndoError {
        let horizon = *self.horizon.lock();
        UndoError::NotKept {
            why: horizon.why,
            since_ns: horizon.at_ns,
        }
    }
}

fn read_exactly(range: ByteRange, read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<usize>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(range.len_bytes()).map_err(io::Error::other)?];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match read(range.start().saturating_add(filled as u64), rest)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
