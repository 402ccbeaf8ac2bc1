//! Starts and stops: how much of an older journal still counts.
//!
//! **Order at a start.** [`Undo::open`] replays the journal and notes, durably, that a start is
//! under way; then the log is opened and the tree compared with its record; [`Undo::ready`] is told
//! what may have changed unwatched, and notes durably that this is done. A journal of which the
//! last start was not ready is dropped. At a stop in good order, [`Undo::end`].

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use byteback_extents::ByteRange;
use byteback_host::clock::Clock;
use byteback_host::durable::DurableDir;
use byteback_model::NodeId;
use byteback_oplog::TreeId;
use parking_lot::Mutex;

use super::{Horizon, QUANTUM_NS_MAX, Undo, UndoOptions};
use crate::error::{NotKept, UndoError, failed};
use crate::journal::{Journal, Replayed};
use crate::name_history::{NameEvent, NameHow};
use crate::node_history::Old;
use crate::record::{Framed, Record, Step};

/// If more files and names than this may have changed unwatched, all are taken to have.
const GAP_LEN_MAX: usize = 10_000;

/// The changes that may have happened while the tree was not watched.
#[derive(Clone, Debug, Default)]
pub struct Gap {
    /// Files whose content may have changed, or that were not known.
    pub nodes: Vec<NodeId>,
    /// Names.
    pub names: Vec<(NodeId, OsString)>,
    /// The changes are unknown: everything may have changed.
    pub everything: bool,
    /// The last stop was not in good order.
    pub was_interrupted: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LastSession {
    tree: Option<u64>,
    has_ended: bool,
    is_torn: bool,
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
            setting_back: Mutex::default(),
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
        undo.watch_clock();
        undo.note(0, Step::Opened)?;
        Ok(undo)
    }

    /// Says of which log this is, and what may have changed while not watched. Only now may
    /// changes be told.
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

    /// Lays the records over each other. Answers what the last session was, and whether its records
    /// are complete.
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
                Record::Rights { node, rights } => history(node).lock().had_rights(rights),
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
                        moment.old.insert(range, Old::of_record(is_zeros, placed));
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
                        if how != NameHow::Created && after != 0 {
                            history(after).lock().close_at(framed.time_ns);
                        }
                        if before != 0 {
                            history(before).lock().extend_removal_to(framed.time_ns);
                        }
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
        // Before the first record nothing is known. If older segments were dropped, a moment may
        // have begun in them and gone on in the rest, but not beyond a start.
        match first {
            Some((started_ns, false)) => self.raise_horizon(started_ns.saturating_add(QUANTUM_NS_MAX), NotKept::TooOld),
            first => self.raise_horizon(
                first.map_or_else(|| self.now_ns(), |(started_ns, _)| started_ns),
                NotKept::Gap,
            ),
        }
        (last, step != Some(Step::Opened))
    }
}
