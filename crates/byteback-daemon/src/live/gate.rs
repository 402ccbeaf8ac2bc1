//! The reports of the gate as events of the queue, and what is put aside before a change happens.

use byteback_model::{NodeId, NodeKind, Place};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use byteback_extents::ByteRange;
use byteback_host::tree::{Identity, Inode};
use byteback_mount::picture::NodeAttributes;
use byteback_mount::tracked::observer::{KnownNode, LostName, NamedAt, NamesChanged, Observer, Order, Removal};
use byteback_queue::queue::{Event, Save};
use byteback_queue::{Moved, NameOperation, Victim};

use super::spool::open_for_reading;
use super::{Live, RemovedFile, SAVING_LOCKS, State};
use crate::attributes::attributes_to_api;

fn moved(node: KnownNode) -> Moved {
    Moved {
        node: node.node,
        kind: node.kind,
    }
}

fn place(at: NamedAt<'_>) -> Place<NodeId> {
    Place::new(at.parent, at.name.as_encoded_bytes())
}

fn victim(lost: &LostName, is_kept: bool) -> Victim {
    Victim {
        node: lost.node.node,
        kind: lost.node.kind,
        is_last: lost.is_last,
        is_kept: is_kept && lost.is_last,
        len_bytes: lost.len_bytes,
    }
}

/// The nodes whose names changed, and the directories of these names.
fn nodes_of(operation: &NameOperation) -> Vec<NodeId> {
    match operation {
        NameOperation::Created { at, node } | NameOperation::Linked { at, node } => vec![at.parent, node.node],
        NameOperation::Unlinked { at, victim } => vec![at.parent, victim.node],
        NameOperation::Renamed {
            from,
            to,
            node,
            replaced,
        } => {
            let replaced = replaced.iter().map(|victim| victim.node);
            [from.parent, to.parent, node.node]
                .into_iter()
                .chain(replaced)
                .collect()
        }
        NameOperation::Exchanged {
            one,
            one_node,
            other,
            other_node,
        } => vec![one.parent, other.parent, one_node.node, other_node.node],
    }
}

impl State {
    /// Whether bytes have to be put aside before these ranges change.
    fn needs_saved(&self, node: NodeId, ranges: &[ByteRange]) -> bool {
        ranges
            .iter()
            .any(|range| !self.queue.saves_before(node, *range).is_empty())
    }
}

impl Live {
    /// Puts aside what the queue still needs of `ranges` of a file that is about to change. If that
    /// fails, the order is given up.
    fn put_aside(&self, node: NodeId, fd: &Inode, ranges: &[ByteRange]) {
        let lock = usize::try_from(node.0).unwrap_or(0) % SAVING_LOCKS;
        let _saving = self.saving.get(lock).map(|lock| lock.lock());
        for range in ranges {
            // Asked anew: another thread may have put them aside while this one waited.
            let saves = self.state.lock().queue.saves_before(node, *range);
            for save in saves {
                if let Err(error) = self.save(node, save, fd) {
                    return self.abandon(format!("cannot save old bytes before they are overwritten: {error}"));
                }
            }
        }
    }

    fn save(&self, node: NodeId, save: Save, fd: &Inode) -> std::io::Result<()> {
        if let Some(integrity) = &self.integrity {
            let file = open_for_reading(fd)?;
            integrity.check_before_change(node, &file, save.range)?;
        }
        self.spool.put(save.position, save.range, fd)?;
        self.state.lock().queue.saved(save);
        Ok(())
    }

    /// Keeps the attributes that a node has now, if the queue refers to it: they are about to
    /// change.
    fn capture(&self, node: NodeId, read: impl FnOnce() -> std::io::Result<NodeAttributes>) {
        let is_needed = |state: &State| {
            let position = state.queue.position();
            let last = state.captures.get(&node).and_then(|captures| captures.last());
            state.queue.is_about(node) && last.is_none_or(|(at, _)| *at < position)
        };
        if !is_needed(&self.state.lock()) {
            return;
        }
        match read() {
            Ok(read) => {
                let attributes = Arc::new(attributes_to_api(read));
                let mut state = self.state.lock();
                let position = state.queue.position();
                state.captures.entry(node).or_default().push((position, attributes));
            }
            Err(error) => self.abandon(format!("cannot save attributes before they change: {error}")),
        }
    }

    /// Opens the file that is about to lose its last name.
    fn hold(&self, removal: &Removal<'_>) -> std::io::Result<RemovedFile> {
        let fd = removal.dir.open_path_at(removal.name)?;
        if fd.stat()?.identity() != removal.identity {
            return Err(std::io::Error::other("another file now has its name"));
        }
        Ok(RemovedFile {
            fd: Arc::new(open_for_reading(&fd)?),
            identity: removal.identity,
            is_spoiled: false,
        })
    }

    fn free_bytes(&self) -> u64 {
        let space = self.files.root().space();
        space.map_or(0, |space| space.f_bavail.saturating_mul(space.f_frsize))
    }

    /// Passes an event to the queue and does what follows.
    fn tell(&self, mut state: parking_lot::MutexGuard<'_, State>, event: &Event) {
        let now_ns = self.now_ns();
        state.queue.event(event, now_ns);
        state.settle();
        self.wake(state);
    }
}

impl Observer for Live {
    fn order(&self) -> &Order {
        &self.order
    }

    fn wants_trimmed(&self, node: NodeId, range: ByteRange) -> bool {
        let covered = self.state.lock().queue.open_content(node, range);
        covered.is_none_or(|(len_bytes, is_covered)| !is_covered && range.start() < len_bytes)
    }

    fn is_landing(&self, node: NodeId) -> bool {
        self.watches.is_landing(node)
    }

    fn merge_page(&self, node: NodeId, offset: u64, page: &[u8]) -> std::io::Result<Vec<ByteRange>> {
        self.watches.merge_page(node, offset, page)
    }

    fn may_stray(&self, node: NodeId) -> bool {
        self.watches.has_landed_in(node)
    }

    fn append_at(&self, node: NodeId, fd: &Inode, offset: u64) -> std::io::Result<u64> {
        // The kernel makes the second of two appends wait.
        match self.may_stray(node) {
            true => fd.stat().map(|stat| stat.size),
            false => Ok(offset),
        }
    }

    fn is_anything_landing(&self) -> bool {
        self.watches.is_anything_landing()
    }

    fn cut_off(&self, node: NodeId, offset: u64, buffer: &mut [u8]) -> usize {
        self.watches.cut_off(node, offset, buffer)
    }

    fn len_before(&self, node: NodeId) -> Option<u64> {
        self.watches.len_before(node)
    }

    fn before_content(&self, node: NodeId, fd: &Inode, ranges: &[ByteRange], len_after_bytes: Option<u64>) {
        self.watches.content(node, ranges, len_after_bytes);
        let Some(hull) = ranges.iter().copied().reduce(ByteRange::hull) else {
            return;
        };
        let mut state = self.state.lock();
        if state.needs_saved(node, ranges) {
            drop(state);
            self.put_aside(node, fd, ranges);
            state = self.state.lock();
        }
        let (mut state, aside) = self.keep_rewritten(node, fd, ranges, state);
        let now_ns = self.now_ns();
        let open_at = state.queue.open_ranges(node).map(|(position, _)| position);
        let open = state.queue.open_content(node, hull);
        // The length is taken as it is: another change of the same file may have reported another
        // one already, and corrects that afterwards.
        let len_bytes = open.map_or_else(|| fd.stat().map_or(0, |stat| stat.size), |(len, _)| len);
        let is_new = open.is_none() && !state.queue.is_folded() && state.queue.is_about(node);
        for range in ranges {
            let event = Event::Wrote {
                node,
                range: *range,
                size_bytes: len_after_bytes.unwrap_or_else(|| len_bytes.max(hull.end())),
                base: None,
            };
            let position = state.queue.event(&event, now_ns);
            if is_new && range.start() == hull.start() {
                state.lens_before.entry(node).or_default().push((position, len_bytes));
            }
        }
        let is_long = len_bytes >= self.options.rewritten_bytes_min;
        if open_at.is_none() && is_long || aside.is_some() {
            let is_landing = self.watches.is_landing(node);
            state.noted_rewriting(node, (open_at, len_bytes), aside, is_landing);
        }
        state.settle();
        self.wake(state);
    }

    fn after_content(&self, node: NodeId, fd: &Inode) {
        let Some(all) = ByteRange::from_start(0) else { return };
        let mut state = self.state.lock();
        let Some((reported_bytes, _)) = state.queue.open_content(node, all) else {
            return;
        };
        // Under the lock: of two changes the one that looks last sees what both have done.
        let Ok(stat) = fd.stat() else { return };
        if let Some(event) = Event::resized(node, reported_bytes, stat.size, None) {
            let now_ns = self.now_ns();
            state.queue.event(&event, now_ns);
            state.settle();
            self.wake(state);
        }
    }

    fn before_content_of_unknown(&self, identity: &Identity, fd: &Inode, ranges: &[ByteRange]) {
        if self.kept_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let node = {
            let mut state = self.state.lock();
            let Some(node) = state.kept_nodes.get(identity).copied() else {
                return;
            };
            let kept = state.kept.get_mut(&node);
            if kept.is_some_and(|kept| !std::mem::replace(&mut kept.is_spoiled, true)) {
                state.queue.not_compared(node);
                state.settle();
            }
            if !state.needs_saved(node, ranges) {
                return;
            }
            node
        };
        self.put_aside(node, fd, ranges);
    }

    fn times_changed(&self, node: NodeId) {
        self.watches.attributes(node);
        self.tell(self.state.lock(), &Event::Attributes { node, stamp: 0 });
    }

    fn before_attributes(&self, node: NodeId, fd: &Inode) {
        self.capture(node, || NodeAttributes::read(fd));
    }

    fn after_attributes(&self, node: NodeId) {
        self.times_changed(node);
    }

    fn before_removal(&self, removal: &Removal<'_>) {
        let LostName {
            node,
            is_last,
            len_bytes,
        } = removal.lost;
        if !is_last {
            return;
        }
        let (node, kind) = (node.node, node.kind);
        self.capture(node, || NodeAttributes::read(&removal.dir.open_path_at(removal.name)?));
        if kind != NodeKind::File {
            return;
        }
        let free_bytes = self.free_bytes();
        let (is_worth_it, needs) = {
            let state = self.state.lock();
            let is_worth_it = state.table.is_worth_keeping(kind, len_bytes, free_bytes);
            let has_room = state.kept.len() < self.options.kept_files_max && !removal.has_other_names;
            (
                is_worth_it && has_room,
                state.queue.needs_file(node).then_some(has_room),
            )
        };
        let kept = match (is_worth_it, needs) {
            (true, _) | (_, Some(true)) => self.hold(removal).ok(),
            _ => None,
        };
        match kept {
            Some(kept) => self.state.lock().pending = Some((node, kept)),
            None if needs.is_some() => self.put_all_aside(node, removal),
            None => {}
        }
    }

    fn removal_failed(&self) {
        self.state.lock().pending = None;
    }

    fn names_changed(&self, change: &NamesChanged<'_>) {
        let mut state = self.state.lock();
        let mut pending = state.pending.take();
        let mut keep = |state: &mut State, lost: &LostName| {
            let node = lost.node.node;
            let kept = pending.take().filter(|(pending, _)| *pending == node && lost.is_last);
            let is_kept = kept.is_some();
            if let Some((node, kept)) = kept {
                state.keep(node, kept);
                self.kept_count.store(state.kept.len(), Ordering::Relaxed);
            }
            victim(lost, is_kept)
        };
        let operation = match *change {
            NamesChanged::Created { at, node } => NameOperation::Created {
                at: place(at),
                node: moved(node),
            },
            NamesChanged::Linked { at, node } => NameOperation::Linked {
                at: place(at),
                node: moved(node),
            },
            NamesChanged::Unlinked { at, lost } => NameOperation::Unlinked {
                at: place(at),
                victim: keep(&mut state, &lost),
            },
            NamesChanged::Renamed {
                from,
                to,
                node,
                replaced,
            } => NameOperation::Renamed {
                from: place(from),
                to: place(to),
                node: moved(node),
                replaced: replaced.map(|lost| keep(&mut state, &lost)),
            },
            NamesChanged::Exchanged {
                one,
                one_node,
                other,
                other_node,
            } => NameOperation::Exchanged {
                one: place(one),
                one_node: moved(one_node),
                other: place(other),
                other_node: moved(other_node),
            },
        };
        self.watches.name(nodes_of(&operation));
        let now_ns = self.now_ns();
        let State { queue, table, .. } = &mut *state;
        let decisions = table.observe(&operation, now_ns, |node| queue.has_unsent_content(node));
        state.decide(&decisions);
        self.tell(state, &Event::Name(operation));
    }

    fn closed(&self, node: NodeId) {
        let mut state = self.state.lock();
        let now_ns = self.now_ns();
        state.queue.event(&Event::Closed { node }, now_ns);
        state.settle();
    }

    fn lost_track(&self) {
        self.removal_failed();
        self.abandon("names were moved between tracked and untracked directories");
    }
}

impl Live {
    /// Puts aside all that the queue needs of a file that cannot be held open.
    fn put_all_aside(&self, node: NodeId, removal: &Removal<'_>) {
        let put = || {
            let kept = self.hold(removal)?;
            let saves = self.state.lock().queue.saves_before_removal(node);
            for save in saves {
                self.save(node, save, &kept.fd)?;
            }
            // The file can no longer serve as the old content of another one.
            let mut state = self.state.lock();
            state.queue.not_compared(node);
            state.settle();
            Ok::<_, std::io::Error>(())
        };
        if let Err(error) = put() {
            self.abandon(format!("cannot keep a removed file until it is sent: {error}"));
        }
    }
}
