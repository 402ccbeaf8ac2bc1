//! The undo of one tree: what the gate tells it, and files read as of a time.
//!
//! **Order at a start.** [`Undo::open`] replays the journal and notes, durably, that a start is under way; then the log is opened and the
//! tree compared with its record; [`Undo::ready`] is told what may have changed unwatched, and notes durably that this is
//! done. A journal of which the last start was not ready is dropped. At a stop in good order, [`Undo::end`].
//!
//! **Locks**, in this order: the map of nodes, a node's history, the names, the journal. Old bytes are read under the node's lock alone.
//!
//! **Time** is the wall clock, made not to go back while this runs.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::clock::Clock;
use byteback_host::durable::DurableDir;
use byteback_oplog::{NodeId, TreeId};
use parking_lot::Mutex;

use crate::error::{NotKept, UndoError, failed};
use crate::journal::{Journal, Placed, Replayed};
use crate::name_history::{NameEvent, NameHistory, NameHow};
use crate::node_history::{Kept, Moment, NodeHistory, Old};
use crate::record::{self, ContentHow, DATA_LEN_BYTES_MAX, Framed, Record, Step};

/// Of one change, and of one removed file, at most so much is copied.
const CHANGE_LEN_BYTES_MAX: u64 = 64 << 20;
/// And at most this share of the budget.
const CHANGES_PER_BUDGET: u64 = 8;
/// A removed file that lived no longer than this is not kept: temporary files, journals of databases.
const SHORT_LIFE_NS: i64 = 10_000_000_000;
/// A quantum is this share of the window, within these bounds.
const QUANTA_PER_WINDOW: i64 = 600;
const QUANTUM_NS_MIN: i64 = 1_000_000_000;
const QUANTUM_NS_MAX: i64 = 10_000_000_000;

/// If more than so many files and names may have changed unwatched, all are taken to have.
const GAP_LEN_MAX: usize = 10_000;

/// What is kept.
#[derive(Clone, Copy, Debug)]
pub struct UndoOptions {
    /// For how long, in nanoseconds.
    pub window_ns: i64,
    /// How much at most, in bytes on the disk; each piece counts as at least 512.
    pub budget_bytes: u64,
    /// Changes of a file that begin within this time share a moment, in nanoseconds; at most ten seconds.
    pub quantum_ns: i64,
}

impl UndoOptions {
    /// For `window_ns`, at most `budget_bytes`; the quantum is a 600th of the window, at least one and at most ten seconds.
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
    /// Which bytes are about to change. What lies beyond the end is ignored.
    pub ranges: &'a [ByteRange],
    /// What is done to them.
    pub how: ContentHow,
    /// How long the file is before.
    pub size_bytes: u64,
    /// Fills the front of a buffer with the bytes at an offset; answers how many, 0 at the end.
    pub read: &'a mut dyn FnMut(u64, &mut [u8]) -> io::Result<usize>,
}

/// What may have changed while nobody watched.
#[derive(Clone, Debug, Default)]
pub struct Gap {
    /// Files whose content may have, or that were not known.
    pub nodes: Vec<NodeId>,
    /// Names.
    pub names: Vec<(NodeId, OsString)>,
    /// It is not known what: everything may have.
    pub everything: bool,
    /// The last stop was not in good order.
    pub was_interrupted: bool,
}

/// A piece of content as of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes at an offset.
    Data(u64, &'a [u8]),
    /// Zeros.
    Zeros(ByteRange),
}

/// A file as of a time, see [`Undo::as_of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsOf {
    /// The file.
    pub node: NodeId,
    /// The moment whose content it is, in nanoseconds since 1970; `None`: as it is now.
    pub moment_ns: Option<i64>,
    number: u64,
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
    nodes: Mutex<HashMap<NodeId, Arc<Mutex<NodeHistory>>>>,
    names: Mutex<NameHistory>,
    journal: Mutex<Journal>,
    horizon: Mutex<Horizon>,
    replayed: Mutex<Option<LastSession>>,
}

#[derive(Clone, Copy, Debug)]
struct LastSession {
    tree: Option<u64>,
    has_ended: bool,
    is_torn: bool,
}

impl std::fmt::Debug for Undo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Undo")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Undo {
    /// Opens the journal in `dir`, and notes that a start is under way.
    ///
    /// # Errors
    /// A directory that cannot be read or written.
    pub fn open(dir: Arc<dyn DurableDir>, clock: Arc<dyn Clock>, options: UndoOptions) -> Result<Self, UndoError> {
        let (journal, replayed) = Journal::open(dir, options.budget_bytes).map_err(failed("read the undo journal"))?;
        let undo = Self {
            last_ns: AtomicI64::new(i64::MIN),
            clock,
            options: UndoOptions {
                quantum_ns: options.quantum_ns.clamp(1, QUANTUM_NS_MAX),
                ..options
            },
            nodes: Mutex::default(),
            names: Mutex::default(),
            journal: Mutex::new(journal),
            horizon: Mutex::new(Horizon {
                at_ns: i64::MIN,
                why: NotKept::TooOld,
            }),
            replayed: Mutex::new(None),
        };
        let is_damaged = replayed.is_damaged;
        let (last, is_usable) = undo.replay(replayed);
        if !is_usable {
            undo.forget_everything(NotKept::Gap)
                .map_err(failed("remove the undo journal"))?;
        } else if is_damaged {
            undo.raise_horizon(undo.now_ns(), NotKept::Damaged);
        }
        *undo.replayed.lock() = Some(last);
        undo.note(0, Step::Opened)?;
        Ok(undo)
    }

    /// Says of which log this is, and what may have changed while nobody watched. Only now may changes be told.
    ///
    /// # Errors
    /// A journal that cannot be written.
    pub fn ready(&self, tree: TreeId, gap: &Gap) -> Result<(), UndoError> {
        let last = self.replayed.lock().take();
        let is_foreign = last.is_some_and(|last| last.tree.is_some_and(|other| other != tree.0));
        // A stop that only one of the two saw as such: there are records missing, or too many.
        let is_odd =
            last.is_some_and(|last| (!last.has_ended || last.is_torn) && last.tree.is_some() && !gap.was_interrupted);
        let is_vast = gap.nodes.len() + gap.names.len() > GAP_LEN_MAX;
        if gap.everything || is_foreign || is_odd || is_vast {
            let why = if is_odd { NotKept::Damaged } else { NotKept::Gap };
            self.forget_everything(why).map_err(failed("remove the undo journal"))?;
        } else {
            let now_ns = self.now_ns();
            for node in &gap.nodes {
                // Also where nothing is known of it: no record means unchanged.
                self.history_of(*node).lock().forget(now_ns, NotKept::Gap);
                let why = NotKept::Gap.code();
                self.append(now_ns, &Record::NodeBarrier { node: node.0, why }, &[]);
            }
            for (parent, name) in &gap.names {
                self.forget_name(*parent, name, now_ns);
            }
        }
        self.note(tree.0, Step::Ready)
    }

    /// Notes the end in good order: every change was told.
    ///
    /// # Errors
    /// A journal that cannot be written: the next start then drops it.
    pub fn end(&self, tree: TreeId) -> Result<(), UndoError> {
        self.note(tree.0, Step::Ended)
    }

    /// Makes all that was kept durable. To be called before each checkpoint of the log. What cannot be made durable is given up.
    pub fn sync(&self) {
        let synced = self.journal.lock().sync();
        if synced.is_err() {
            self.give_up(NotKept::NotWritten);
        }
    }

    /// Gives up what is older than the window, and frees the memory of what was given up.
    pub fn maintain(&self) {
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
            let is_empty = {
                let mut history = history.lock();
                history.drop_below(first, why);
                history.barrier = history.barrier.filter(|(at_ns, _)| *at_ns > horizon_ns);
                history.born_ns = history
                    .born_ns
                    .filter(|born_ns| now_ns.saturating_sub(*born_ns) <= SHORT_LIFE_NS);
                history.moments.is_empty() && history.barrier.is_none() && history.born_ns.is_none()
            };
            if is_empty {
                // Whoever holds it besides the map and this is about to add to it.
                let mut nodes = self.nodes.lock();
                if nodes.get(&node).is_some_and(|other| Arc::strong_count(other) <= 2) {
                    nodes.remove(&node);
                }
            }
        }
        self.names.lock().drop_up_to(horizon_ns);
    }

    /// The bytes that count against the budget now.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.journal.lock().charged_bytes()
    }

    /// What is kept, as asked for.
    #[must_use]
    pub fn options(&self) -> UndoOptions {
        self.options
    }

    /// The time before which nothing is known of the whole tree, with the reason; `None` if nothing was given up.
    #[must_use]
    pub fn horizon(&self) -> Option<(i64, NotKept)> {
        let horizon = *self.horizon.lock();
        (horizon.at_ns != i64::MIN).then_some((horizon.at_ns, horizon.why))
    }

    /// Content of `node` is about to change.
    pub fn before_content(&self, node: NodeId, change: BeforeChange<'_>) {
        let shared = self.history_of(node);
        let mut history = shared.lock();
        let now_ns = self.now_ns();
        if let Err(why) = self.keep(node, &mut history, now_ns, change) {
            self.lose(node, &mut history, now_ns, why);
        }
    }

    /// The file `node`, `size_bytes` long, is about to lose its last name.
    pub fn before_removal(
        &self,
        node: NodeId,
        size_bytes: u64,
        read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<usize>,
    ) {
        let shared = self.history_of(node);
        let mut history = shared.lock();
        let now_ns = self.now_ns();
        if history
            .born_ns
            .is_some_and(|born_ns| now_ns.saturating_sub(born_ns) <= SHORT_LIFE_NS)
        {
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
        if let Err(why) = self.keep(node, &mut history, now_ns, change) {
            self.lose(node, &mut history, now_ns, why);
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
        }
        let number = |node: Option<NodeId>| node.map_or(0, |node| node.0);
        let record = Record::Name {
            parent: parent.0,
            before: number(before),
            after: number(after),
            how: how.code(),
            name: name.as_bytes().to_vec(),
        };
        self.names.lock().add(
            parent,
            name,
            NameEvent {
                at_ns: now_ns,
                how,
                before,
                after,
            },
        );
        self.append(now_ns, &record, &[]);
    }

    /// What happened to a name, eldest first.
    #[must_use]
    pub fn name_events(&self, parent: NodeId, name: &OsStr) -> Vec<NameEvent> {
        self.names.lock().events(parent, name).to_vec()
    }

    /// What `name` in `parent` stood for at `at_ns`; `now` answers what it stands for now.
    ///
    /// # Errors
    /// [`UndoError::NotKept`] if that is not known.
    pub fn child_at(
        &self,
        parent: NodeId,
        name: &OsStr,
        at_ns: i64,
        now: impl FnOnce() -> Result<Option<NodeId>, UndoError>,
    ) -> Result<Option<NodeId>, UndoError> {
        self.check(at_ns, None)?;
        // Before the names are looked at: a change in between is then among them.
        let present = now()?;
        let names = self.names.lock();
        let barrier = names.barrier(parent, name);
        let found = names
            .events(parent, name)
            .iter()
            .find(|event| event.at_ns > at_ns)
            .map(|event| event.before);
        drop(names);
        self.check(at_ns, barrier)?;
        Ok(found.unwrap_or(present))
    }

    /// The moments of a file, eldest first.
    #[must_use]
    pub fn moments(&self, node: NodeId) -> Vec<Moment> {
        let Some(shared) = self.nodes.lock().get(&node).cloned() else {
            return Vec::new();
        };
        let mut history = shared.lock();
        self.drop_given_up(&mut history);
        history.moments.iter().map(|kept| self.moment(&history, kept)).collect()
    }

    fn moment(&self, history: &NodeHistory, kept: &Kept) -> Moment {
        let not_kept = match self.check(kept.start_ns, history.barrier) {
            Err(UndoError::NotKept { why, .. }) => Some(why),
            _ => None,
        };
        Moment {
            at_ns: kept.start_ns,
            size_before_bytes: kept.size,
            how: kept.how,
            kept_bytes: kept.old.covered_bytes(),
            kept_ranges: kept.old.len() as u64,
            not_kept,
        }
    }

    /// Since when, and why not longer, nothing is known of a file, if there is such a time.
    #[must_use]
    pub fn barrier(&self, node: NodeId) -> Option<(i64, NotKept)> {
        let shared = self.nodes.lock().get(&node).cloned();
        let own = shared.and_then(|shared| shared.lock().barrier);
        own.into_iter().chain(self.horizon()).max_by_key(|(at_ns, _)| *at_ns)
    }

    /// The file `node` as of `at_ns`: as it was at some instant in the quantum before that.
    ///
    /// # Errors
    /// [`UndoError::NotKept`] with the reason.
    pub fn as_of(&self, node: NodeId, at_ns: i64) -> Result<AsOf, UndoError> {
        let shared = self.history_of(node);
        let mut history = shared.lock();
        self.drop_given_up(&mut history);
        self.check(at_ns, history.barrier)?;
        // Later changes must not join a moment that lies before this border.
        history.close();
        let number = history.border(at_ns);
        let moment_ns = history.from(number).next().map(|kept| kept.start_ns);
        Ok(AsOf {
            node,
            moment_ns,
            number,
        })
    }

    /// How long it was. `present` answers how long the file is now; it is asked under the file's lock.
    ///
    /// # Errors
    /// What `present` answers.
    pub fn size(&self, as_of: AsOf, present: impl FnOnce() -> io::Result<u64>) -> Result<u64, UndoError> {
        let shared = self.history_of(as_of.node);
        let history = shared.lock();
        let size = history.from(as_of.number).next().map(|kept| kept.size);
        match size {
            Some(size) => Ok(size),
            None => present().map_err(failed("look at the file")),
        }
    }

    /// Reads `range`, which lies within [`Undo::size`], and hands it to `sink` in order. `present` reads the file as it is now.
    ///
    /// # Errors
    /// [`UndoError::NotKept`] if it was given up meanwhile; [`UndoError::Damaged`]; what `present` or `sink` answers.
    pub fn read(
        &self,
        as_of: AsOf,
        range: ByteRange,
        mut present: impl FnMut(u64, &mut [u8]) -> io::Result<usize>,
        sink: &mut dyn FnMut(Piece<'_>) -> io::Result<()>,
    ) -> Result<(), UndoError> {
        let mut at = range.start();
        while let Some(piece) = ByteRange::new(at, range.end().min(at.saturating_add(DATA_LEN_BYTES_MAX))) {
            at = piece.end();
            let shared = self.history_of(as_of.node);
            let mut parts: Vec<(ByteRange, Option<Vec<u8>>)> = Vec::new();
            {
                let mut history = shared.lock();
                self.drop_given_up(&mut history);
                let eldest = history
                    .moments
                    .front()
                    .map_or(history.next_number, |moment| moment.number);
                // Either its own moment is gone, or a change came that was not kept.
                if eldest > as_of.number {
                    return Err(self.given_up());
                }
                for (range, old) in history.tiles(as_of.number, piece) {
                    let bytes = match old {
                        Some(Old::Zeros) => None,
                        Some(Old::At {
                            segment,
                            record_at,
                            within,
                        }) => Some(self.kept_at(segment, record_at, within, range)?),
                        None => Some(read_exactly(range, &mut present).map_err(failed("read the file"))?),
                    };
                    parts.push((range, bytes));
                }
            }
            for (range, bytes) in &parts {
                let piece = match bytes {
                    None => Piece::Zeros(*range),
                    Some(bytes) => Piece::Data(range.start(), bytes),
                };
                sink(piece).map_err(failed("hand on what was kept"))?;
            }
        }
        Ok(())
    }

    fn kept_at(&self, segment: u64, record_at: u64, within: u64, range: ByteRange) -> Result<Vec<u8>, UndoError> {
        let Some(file) = self.journal.lock().file(segment) else {
            return Err(self.given_up());
        };
        let failed = || failed("read the undo journal");
        let mut head = [0; record::HEADER_LEN_BYTES];
        file.read_exact_at(record_at, &mut head).map_err(failed())?;
        let framed = record::decode(&head).ok_or(UndoError::Damaged)?;
        let mut data = vec![0; usize::try_from(framed.data_len).unwrap_or_default()];
        file.read_exact_at(record_at + framed.data_at, &mut data)
            .map_err(failed())?;
        if crc32c::crc32c(&data) != framed.data_crc {
            return Err(UndoError::Damaged);
        }
        let start = usize::try_from(within).unwrap_or(usize::MAX);
        let len = usize::try_from(range.len_bytes()).unwrap_or(usize::MAX);
        let wanted = data.get(start..start.saturating_add(len)).ok_or(UndoError::Damaged)?;
        Ok(wanted.to_vec())
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

    fn history_of(&self, node: NodeId) -> Arc<Mutex<NodeHistory>> {
        Arc::clone(self.nodes.lock().entry(node).or_default())
    }

    fn given_up(&self) -> UndoError {
        let horizon = *self.horizon.lock();
        UndoError::NotKept {
            why: horizon.why,
            since_ns: horizon.at_ns,
        }
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
        // What was beyond the end at the moment is not part of it; what is beyond the end now was cut off since, and kept then.
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
                let old = if is_zeros {
                    Old::Zeros
                } else {
                    Old::At {
                        segment: placed.segment,
                        record_at: placed.at,
                        within: 0,
                    }
                };
                moment.old.insert(piece, old);
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

    /// Gives up all that is in the journal; histories are found to be without their bytes by their segments.
    fn give_up(&self, why: NotKept) {
        let mut journal = self.journal.lock();
        // If even that fails, the log on the same disk fails, too, and lets no change through.
        let _ = journal.drop_all();
        self.raise_horizon(self.now_ns().saturating_add(1), why);
    }

    fn forget_everything(&self, why: NotKept) -> io::Result<()> {
        self.nodes.lock().clear();
        self.names.lock().clear();
        self.raise_horizon(self.now_ns(), why);
        self.journal.lock().drop_all()
    }

    fn note(&self, tree: u64, step: Step) -> Result<(), UndoError> {
        let now_ns = self.now_ns();
        let mut journal = self.journal.lock();
        let noted = (|| {
            if step == Step::Opened {
                journal.roll()?;
            }
            journal.append(now_ns, &Record::Session { tree, step }, &[])?;
            journal.sync()
        })();
        noted.map_err(failed("write the undo journal"))
    }

    /// Lays the records over each other. Answers what the last session was, and whether its records are complete.
    fn replay(&self, replayed: Replayed) -> (LastSession, bool) {
        let mut last = LastSession {
            tree: None,
            has_ended: false,
            is_torn: replayed.is_torn,
        };
        let mut step = None;
        let is_start = |framed: &Framed| matches!(framed.record, Record::Session { .. });
        let first = replayed
            .records
            .first()
            .map(|(_, framed)| (framed.time_ns, is_start(framed)));
        let mut nodes = self.nodes.lock();
        let mut names = self.names.lock();
        for (placed, framed) in replayed.records {
            self.last_ns.fetch_max(framed.time_ns, Ordering::Relaxed);
            let mut history = |node: u64| Arc::clone(nodes.entry(NodeId(node)).or_default());
            let some = |node: u64| (node != 0).then_some(NodeId(node));
            match framed.record {
                Record::Moment {
                    node,
                    size,
                    how,
                    quantum_ns,
                } => {
                    let end_ns = framed.time_ns.saturating_add_unsigned(quantum_ns);
                    history(node)
                        .lock()
                        .begin((framed.time_ns, end_ns), size, how, placed.segment);
                }
                Record::Old {
                    node,
                    offset,
                    len,
                    is_zeros,
                } => {
                    if let (Some(moment), Some(range)) = (
                        history(node).lock().moments.back_mut(),
                        ByteRange::new(offset, offset.saturating_add(len)),
                    ) {
                        let old = if is_zeros {
                            Old::Zeros
                        } else {
                            Old::At {
                                segment: placed.segment,
                                record_at: placed.at,
                                within: 0,
                            }
                        };
                        moment.old.insert(range, old);
                    }
                }
                Record::Name {
                    parent,
                    before,
                    after,
                    how,
                    name,
                } => {
                    if let Some(how) = NameHow::from_code(how) {
                        let event = NameEvent {
                            at_ns: framed.time_ns,
                            how,
                            before: some(before),
                            after: some(after),
                        };
                        names.add(NodeId(parent), &OsString::from_vec(name), event);
                    }
                }
                Record::NodeBarrier { node, why } => {
                    let why = NotKept::from_code(why).unwrap_or(NotKept::Gap);
                    history(node).lock().forget(framed.time_ns.saturating_add(1), why);
                }
                Record::NameBarrier { parent, why, name } => {
                    let why = NotKept::from_code(why).unwrap_or(NotKept::Gap);
                    names.forget(NodeId(parent), &OsString::from_vec(name), framed.time_ns, why);
                }
                Record::Session { tree, step: noted } => {
                    step = Some(noted);
                    last.has_ended = noted == Step::Ended;
                    if noted != Step::Opened {
                        last.tree = Some(tree);
                    }
                }
            }
        }
        for history in nodes.values() {
            history.lock().close();
        }
        drop((nodes, names));
        // Before the first record nothing is known. If elder segments were dropped, a moment may have begun in them and gone on in what is left,
        // but not beyond a start.
        match first {
            Some((began_ns, false)) => self.raise_horizon(began_ns.saturating_add(QUANTUM_NS_MAX), NotKept::TooOld),
            first => self.raise_horizon(
                first.map_or_else(|| self.now_ns(), |(began_ns, _)| began_ns),
                NotKept::Gap,
            ),
        }
        (last, step != Some(Step::Opened))
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
