//! Groups as they are handed out to the sender: with all that belongs to them, as it was at their
//! turn.

use byteback_model::{Attributes, ByteString, NameChange, NodeId, NodeKind, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use byteback_control::{
    CutInfo, CutRequest, ErrorKind, LiveContent, LiveFold, LiveGroup, LiveNode, LiveScope, LiveSource, LiveStatus,
    LiveTree, Piece, Result, SYNC_CONSUMER, ServiceError, Work,
};
use byteback_extents::ByteRange;
use byteback_host::tree::Inode;
use byteback_mount::landing::Landing;
use byteback_mount::picture::NodeAttributes;
use byteback_queue::queue::{
    Change, ContentSource, FoldScope, Group, GroupState, Poll, QueueError, QueueNode, Resolution,
};
use byteback_queue::{GroupId, NameOperation, Position, Version};

use super::read::{PIECE_LEN, given_up};
use super::rewrites::stamps_of;
use super::spool::open_for_reading;
use super::{Live, SKIPPED, State, Wake};
use crate::attributes::attributes_to_api;
use crate::service::Service;

/// How often a name is followed, which may be moved meanwhile.
const ATTEMPTS: u32 = 3;

/// A tree as it is served to the sync engine, which sends what happens in it and lands what others
/// did.
pub struct LiveService {
    pub(super) live: Arc<Live>,
    service: Arc<Service>,
    pub(super) landing: Landing,
}

impl LiveService {
    /// Serves a mounted tree.
    pub(crate) fn new(live: Arc<Live>, service: Arc<Service>, landing: Landing) -> Self {
        Self { live, service, landing }
    }
}

/// The nodes of a group, and the state of their names.
struct Gathered {
    names: BTreeMap<Place<NodeId>, NameState>,
    /// Nodes that are reported, with whether they are new.
    touched: BTreeMap<NodeId, bool>,
    gone: BTreeSet<NodeId>,
    contents: Vec<LiveContent>,
    /// Directories in which names came or went.
    times: BTreeSet<NodeId>,
    /// The length of each file with a content, after its last one.
    lens: BTreeMap<NodeId, u64>,
}

struct NameState {
    /// Whether the name stood for anything before.
    was_there: bool,
    now: Option<NodeId>,
}

impl Gathered {
    fn of<'a>(nodes: impl Iterator<Item = (Position, &'a QueueNode)>) -> Self {
        let mut gathered = Self {
            names: BTreeMap::new(),
            touched: BTreeMap::new(),
            gone: BTreeSet::new(),
            times: BTreeSet::new(),
            contents: Vec::new(),
            lens: BTreeMap::new(),
        };
        for (at, node) in nodes {
            gathered.times.extend(node.change.parents());
            match &node.change {
                Change::Times { .. } => {}
                Change::Name(operation) => gathered.name(operation),
                Change::Attributes { node, .. } => {
                    gathered.touched.entry(*node).or_insert(false);
                }
                Change::Content(content) => {
                    gathered.touched.entry(content.node).or_insert(false);
                    gathered.lens.insert(content.node, content.size_bytes);
                    gathered.contents.push(LiveContent {
                        at,
                        node: content.node,
                        version: node.version,
                        base: content.base,
                        len_bytes: content.size_bytes,
                        is_gone: false,
                        source: source_of(&content.source, content.size_bytes),
                    });
                }
            }
        }
        for content in &mut gathered.contents {
            content.is_gone = gathered.gone.contains(&NodeId(content.node.0));
        }
        gathered
    }

    fn set(&mut self, at: &Place<NodeId>, was_there: bool, now: Option<NodeId>) {
        let state = self.names.entry(at.clone());
        state.or_insert(NameState { was_there, now }).now = now;
    }

    fn name(&mut self, operation: &NameOperation) {
        match operation {
            NameOperation::Created { at, node } => {
                self.set(at, false, Some(node.node));
                self.touched.insert(node.node, true);
            }
            NameOperation::Linked { at, node } => self.set(at, false, Some(node.node)),
            NameOperation::Unlinked { at, victim } => {
                self.set(at, true, None);
                if victim.is_last {
                    self.gone.insert(victim.node);
                }
            }
            NameOperation::Renamed {
                from,
                to,
                node,
                replaced,
            } => {
                self.set(from, true, None);
                self.set(to, replaced.is_some(), Some(node.node));
                self.gone
                    .extend(replaced.filter(|victim| victim.is_last).map(|victim| victim.node));
            }
            NameOperation::Exchanged {
                one,
                one_node,
                other,
                other_node,
            } => {
                self.set(one, true, Some(other_node.node));
                self.set(other, true, Some(one_node.node));
            }
        }
    }

    fn names(&self) -> Vec<NameChange<NodeId>> {
        let reported = self
            .names
            .iter()
            .filter(|(_, state)| state.was_there || state.now.is_some());
        let reported = reported.map(|(place, state)| NameChange {
            parent: place.parent,
            name: place.name.clone(),
            child: state.now,
        });
        reported.collect()
    }
}

fn source_of(source: &ContentSource, len_bytes: u64) -> LiveSource {
    match source {
        ContentSource::Ranges { ranges, .. } => {
            let below = ByteRange::new(0, len_bytes);
            let ranges = below.into_iter().flat_map(|below| ranges.iter_within(below));
            LiveSource::Ranges(ranges.map(|range| (range.start(), range.len_bytes())).collect())
        }
        ContentSource::Delta {
            base,
            base_version,
            stamp,
            len_bytes,
        } => LiveSource::Delta {
            base: *base,
            base_version: *base_version,
            stamp: *stamp,
            len_bytes: *len_bytes,
        },
    }
}

/// A name, as the log knows it.
fn name_of(place: &Place<NodeId>) -> (byteback_model::NodeId, ByteString) {
    (place.parent, place.name.clone())
}

fn refused(error: QueueError) -> ServiceError {
    ServiceError::new(ErrorKind::Refused, error.to_string())
}

impl State {
    /// The attributes that a node had at `up_to`, if they changed since.
    fn captured(&self, node: NodeId, up_to: Position) -> Option<Arc<Attributes>> {
        let mut captures = self.captures.get(&node)?.iter();
        captures
            .find(|(at, _)| *at >= up_to)
            .map(|(_, attributes)| Arc::clone(attributes))
    }

    /// A group, if it was not given up.
    fn in_flight(&self, id: GroupId) -> Option<&Group> {
        let mut groups = self.queue.groups();
        groups.find(|group| group.id == id && group.state != GroupState::Unknown)
    }

    /// The length that a file had at `up_to`, if it got another content since.
    fn len_at(&self, node: NodeId, up_to: Position) -> Option<u64> {
        let mut lens = self.lens_before.get(&node)?.iter();
        lens.find(|(at, _)| *at > up_to).map(|(_, len_bytes)| *len_bytes)
    }
}

/// Step of the queue's clock, the kernel's coarse one, in most cases. After a shorter wait a poll
/// would find the same moment again, over and over until the step is done.
const CLOCK_STEP: Duration = Duration::from_millis(4);

impl Live {
    /// An `O_PATH` or readable descriptor of a node, wherever it is; `None` if it is nowhere.
    fn any_fd(&self, node: NodeId) -> io::Result<Option<Arc<Inode>>> {
        for _ in 0..ATTEMPTS {
            if let Some(kept) = self.state.lock().kept.get(&node) {
                return Ok(Some(Arc::clone(&kept.fd)));
            }
            if let Some((fd, _)) = self.files.find(node)? {
                return Ok(Some(Arc::new(fd)));
            }
            // The node lost its name in between, and is among the kept ones in a moment.
            drop(self.order.exclusive());
        }
        Ok(None)
    }

    /// A file, opened for reading; `None` if it is nowhere.
    pub(super) fn open_file(&self, node: NodeId) -> io::Result<Option<Inode>> {
        match self.any_fd(node)? {
            Some(fd) => open_for_reading(&fd).map(Some),
            None => Ok(None),
        }
    }

    /// The attributes of a node as they were at `up_to`, but for the length of a file. `None` if
    /// they are unknown.
    fn attributes_at(&self, node: NodeId, up_to: Position) -> io::Result<Option<Attributes>> {
        if let Some(captured) = self.state.lock().captured(node, up_to) {
            return Ok(Some((*captured).clone()));
        }
        let read = match self.any_fd(node) {
            Ok(Some(fd)) => NodeAttributes::read(&fd).map(|read| Some(attributes_to_api(read))),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        // They may have changed meanwhile, and were captured before that.
        match self.state.lock().captured(node, up_to) {
            Some(captured) => Ok(Some((*captured).clone())),
            None => read,
        }
    }

    /// Turns a group into what is handed out, and notes its number.
    fn hand_out(&self, id: GroupId) -> Result<Option<Arc<LiveGroup>>> {
        let (group, gathered, numbers) = {
            let state = self.state.lock();
            if let Some(handed) = state.handed.get(&id).cloned() {
                let numbers = state.queue.numbers();
                drop(state);
                self.note(&handed, numbers)?;
                return Ok(Some(handed));
            }
            let Some(group) = state.in_flight(id).cloned() else {
                return Ok(None);
            };
            let gathered = Gathered::of(state.queue.nodes_of(&group));
            (group, gathered, state.queue.numbers())
        };
        let mut gathered = gathered;
        let stamps = self.compare_rewritten(&mut gathered.contents);
        let handed = self.hand_out_as(&group, gathered, numbers);
        if !matches!(handed, Ok(Some(_))) {
            self.state.lock().trash.deltas.extend(stamps);
        }
        handed
    }

    fn hand_out_as(
        &self,
        group: &Group,
        gathered: Gathered,
        numbers: byteback_queue::queue::Numbers,
    ) -> Result<Option<Arc<LiveGroup>>> {
        let id = group.id;
        let new = gathered.touched.iter().filter(|(_, is_new)| **is_new);
        let new: Vec<_> = new.map(|(node, _)| *node).collect();
        // The server learns of new nodes by their numbers.
        self.log.keep_numbers(&new).map_err(|error| {
            let message = format!("cannot write the log: {error}; free space in the state folder");
            ServiceError::new(ErrorKind::Log, message)
        })?;
        let reported = self.nodes_of(group, &gathered).zip(self.directory_times(&gathered));
        let Some((nodes, directory_times)) = reported else {
            if self.state.lock().in_flight(id).is_some() {
                self.abandon("a file to be sent is no longer where it was");
            }
            return Ok(None);
        };
        let handed = Arc::new(LiveGroup {
            id,
            up_to: group.up_to,
            is_conflict: group.is_conflict,
            names: gathered.names(),
            nodes,
            contents: gathered.contents,
            directory_times,
            fold: None,
        });
        self.note(&handed, numbers)?;
        let mut state = self.state.lock();
        if state.in_flight(id).is_none() {
            return Ok(None);
        }
        state.handed.insert(id, Arc::clone(&handed));
        Ok(Some(handed))
    }

    /// Makes durable that a group is handed out.
    fn note(&self, group: &LiveGroup, numbers: byteback_queue::queue::Numbers) -> Result<()> {
        let numbers = byteback_queue::queue::Numbers {
            group: group.id,
            ..numbers
        };
        // For a fold of everything, the log reports the names, and the journal knows the others.
        let names = match &group.fold {
            Some(LiveFold {
                scope: LiveScope::Items { names, .. },
                ..
            }) => names.as_slice(),
            Some(_) => &[],
            None => group.names.as_slice(),
        };
        let places = names.iter().map(NameChange::place);
        let sets = {
            let state = self.state.lock();
            let noted = state.queue.groups().find(|noted| noted.id == group.id);
            noted.map(|noted| state.queue.together_in(noted)).unwrap_or_default()
        };
        let mut journal = self.journal.lock();
        journal.handed(numbers, group.up_to, places, sets).map_err(|error| {
            let message = format!("cannot save the number of a group: {error}; free space in the state folder");
            ServiceError::new(ErrorKind::Log, message)
        })
    }

    fn nodes_of(&self, group: &Group, gathered: &Gathered) -> Option<Vec<LiveNode>> {
        let mut nodes = Vec::new();
        for (node, is_new) in &gathered.touched {
            if gathered.gone.contains(node) {
                continue;
            }
            let mut attributes = self.attributes_at(*node, group.up_to).ok().flatten()?;
            let kind = attributes.kind;
            if kind == NodeKind::File {
                let later = self.state.lock().len_at(*node, group.up_to);
                attributes.size = match (gathered.lens.get(node), is_new) {
                    (Some(len_bytes), _) => *len_bytes,
                    (None, true) => 0,
                    (None, false) => later.unwrap_or(attributes.size),
                };
            }
            nodes.push(LiveNode {
                node: *node,
                kind,
                is_new: *is_new,
                attributes,
            });
        }
        Some(nodes)
    }

    /// The times of the directories in which names came or went, unless the group reports these
    /// directories' attributes. Later changes of a time are sent later; a directory that has no
    /// name any more is left out. `None` if one of them could not be looked at.
    fn directory_times(&self, gathered: &Gathered) -> Option<Vec<(byteback_model::NodeId, i128)>> {
        let is_reported = |node: &NodeId| gathered.touched.contains_key(node) || gathered.gone.contains(node);
        let mut found = Vec::new();
        for node in gathered.times.iter().filter(|node| !is_reported(node)) {
            if let Some((directory, _)) = self.files.find(*node).ok()? {
                found.push((*node, directory));
            }
        }
        if found.is_empty() {
            return Some(Vec::new());
        }
        // A landing puts the time back before it releases the order.
        let _order = self.order.exclusive();
        let times = found.into_iter();
        times
            .map(|(node, directory)| Some((node, directory.stat().ok()?.mtime_ns)))
            .collect()
    }

    /// Decides what to do next, without handing anything out.
    fn next(&self) -> (Poll, u64) {
        let _order = self.order.exclusive();
        let mut state = self.state.lock();
        let now_ns = self.now_ns();
        let decisions = state.table.expire(now_ns);
        state.decide(&decisions);
        let poll = state.queue.poll(now_ns);
        state.settle();
        let poll = match poll {
            Poll::Idle { wake_ns } => {
                // With a time to wait for, an event only puts it off; but without a delay its time
                // may come at once.
                state.wake = match wake_ns.is_none() || self.options.queue.delay_ns == 0 {
                    true => Wake::Wanted,
                    false => Wake::Timed,
                };
                let expiry_ns = state.table.deadline_ns();
                Poll::Idle {
                    wake_ns: [wake_ns, expiry_ns].into_iter().flatten().min(),
                }
            }
            poll => poll,
        };
        (poll, now_ns)
    }

    pub(super) fn poll_now(&self) -> Result<Work> {
        loop {
            if self.has_ended.load(Ordering::Relaxed) {
                return Ok(Work::Ended);
            }
            let (poll, now_ns) = self.next();
            self.clean();
            match poll {
                Poll::Idle { wake_ns } => {
                    let wait =
                        wake_ns.map(|wake_ns| Duration::from_nanos(wake_ns.saturating_sub(now_ns)).max(CLOCK_STEP));
                    return Ok(Work::Idle(wait));
                }
                Poll::Encode(order) => self.encode(&order),
                Poll::Send(id) => {
                    let handed = self.hand_out(id);
                    if handed.is_err() {
                        self.with_queue(|queue| queue.unanswered(now_ns));
                    }
                    // Otherwise the group was given up meanwhile.
                    if let Some(group) = handed? {
                        return Ok(Work::Send(group));
                    }
                }
                Poll::Ask(id) => return Ok(Work::Ask(id)),
                Poll::Cut => return Ok(Work::Cut),
                Poll::Decide(id) => return Ok(Work::Decide(id)),
            }
        }
    }

    /// Changes the queue while no change is under way.
    pub(super) fn with_queue<T>(&self, with: impl FnOnce(&mut byteback_queue::queue::Queue) -> T) -> T {
        let done = {
            let _order = self.order.exclusive();
            let mut state = self.state.lock();
            let done = with(&mut state.queue);
            state.settle();
            done
        };
        self.clean();
        done
    }

    /// Forgets what was kept for a group that is answered now.
    fn answered(&self, id: GroupId) {
        let mut state = self.state.lock();
        if let Some(group) = state.handed.remove(&id) {
            state.forget_up_to(group.up_to);
            state.forget_rewritten(&group);
        }
        drop(state);
        self.journal.lock().answered(id);
    }
}

impl LiveService {
    fn fold_of(&self, cut: CutInfo, (scope, version): &(FoldScope, Version)) -> Result<LiveFold> {
        let scope = match scope {
            FoldScope::Everything => {
                let journal = self.live.journal.lock();
                let names = journal.names().map(name_of).collect::<Vec<_>>();
                drop(journal);
                LiveScope::Everything {
                    names: self.service.resolve_names(cut.cut, names.into_iter())?,
                }
            }
            FoldScope::Items {
                contents,
                attributes,
                names,
                times,
            } => LiveScope::Items {
                contents: contents.iter().map(|(node, base)| (*node, *base)).collect(),
                attributes: attributes.iter().copied().collect(),
                times: times.iter().copied().collect(),
                names: self.service.resolve_names(cut.cut, names.keys().map(name_of))?,
                stood_for: names.clone(),
            },
        };
        Ok(LiveFold {
            version: *version,
            cut,
            scope,
        })
    }
}

impl LiveTree for LiveService {
    fn poll(&self) -> Result<Work> {
        self.live.poll_now()
    }

    fn wait(&self, at_most: Duration) {
        let live = &self.live;
        let mut state = live.state.lock();
        let is_called = std::mem::take(&mut state.is_called);
        if !is_called && state.wake != Wake::Happened && !live.has_ended.load(Ordering::Relaxed) {
            let _ = live.happened.wait_for(&mut state, at_most);
            state.is_called = false;
        }
    }

    fn wake(&self) {
        self.live.state.lock().is_called = true;
        self.live.happened.notify_all();
    }

    fn cut_fold(&self, also: &[byteback_model::NodeId]) -> Result<Arc<LiveGroup>> {
        let live = &self.live;
        // From here to the cut no mark is made that would pass over what is to be reported.
        let mut marking = live.marking.lock();
        if !also.is_empty() {
            let reported = live.log.report_again(also);
            reported.map_err(|error| ServiceError::new(ErrorKind::Log, error.to_string()))?;
        }
        let mut made = Err(QueueError::NoFold);
        let at_the_cut = || {
            let mut state = live.state.lock();
            made = state.queue.cut().map(|id| {
                let group = state.queue.groups().find(|group| group.id == id).cloned();
                (group, state.queue.numbers())
            });
            state.settle();
        };
        let cut = self.service.cut_also(&CutRequest::of(SYNC_CONSUMER), at_the_cut);
        marking.pending = None;
        drop(marking);
        live.clean();
        let (group, numbers) = match (&cut, made) {
            (_, Ok((Some(group), numbers))) => (group, numbers),
            (_, Ok((None, _))) => return Err(given_up()),
            (_, Err(error)) => {
                if let Ok(cut) = &cut {
                    self.service.give_up(cut.cut);
                }
                return Err(refused(error));
            }
        };
        let cut = match cut {
            Ok(cut) => cut,
            Err(error) => {
                // The queue was cut and the log was not: everything since the mark, once more.
                live.abandon(format!("cannot cut the log: {error}"));
                return Err(error);
            }
        };
        let of_cut = cut.cut;
        let fold = group.fold.as_ref().map(|fold| self.fold_of(cut, fold));
        let fold = match fold.transpose() {
            Ok(fold) => fold,
            Err(error) => {
                // Only this call knows of the cut: what the cut holds on to would be held for good.
                self.service.give_up(of_cut);
                live.abandon(format!("cannot read the log: {error}"));
                return Err(error);
            }
        };
        let handed = Arc::new(LiveGroup {
            id: group.id,
            up_to: group.up_to,
            is_conflict: group.is_conflict,
            names: Vec::new(),
            nodes: Vec::new(),
            contents: Vec::new(),
            directory_times: Vec::new(),
            fold,
        });
        live.state.lock().handed.insert(group.id, Arc::clone(&handed));
        if let Err(error) = live.note(&handed, numbers) {
            let now_ns = live.now_ns();
            live.with_queue(|queue| queue.unanswered(now_ns));
            return Err(error);
        }
        Ok(handed)
    }

    fn fold(&self) {
        let now_ns = self.live.now_ns();
        self.live.with_queue(|queue| queue.fold(now_ns));
    }

    fn read(&self, content: &LiveContent, sink: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<()> {
        match &content.source {
            LiveSource::Ranges(ranges) => self.live.read_ranges(content, ranges, sink),
            LiveSource::Delta { .. } => {
                let message = "this content is a delta; read the delta instead";
                Err(ServiceError::new(ErrorKind::Protocol, message))
            }
        }
    }

    fn read_delta(&self, stamp: u64, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let unread = |error: io::Error| {
            self.live.abandon(format!("cannot read a delta to be sent: {error}"));
            given_up()
        };
        let file = self.live.deltas.file(stamp).map_err(unread)?;
        let mut buffer = vec![0; PIECE_LEN];
        let mut at = 0;
        loop {
            match file.read_at(at, &mut buffer).map_err(unread)? {
                0 => return Ok(()),
                count => {
                    sink(buffer.get(..count).unwrap_or_default())?;
                    at += count as u64;
                }
            }
        }
    }

    fn applied(&self, group: GroupId) -> Result<()> {
        self.live.with_queue(|queue| queue.applied(group)).map_err(refused)?;
        let handed = self.live.state.lock().handed.get(&group).cloned();
        self.live.answered(group);
        // The cut of a fold was finished, so the mark is there now.
        if let Some(fold) = handed.filter(|handed| handed.fold.is_some()) {
            self.live.journal.lock().marked(fold.up_to);
        }
        Ok(())
    }

    fn refused(&self, group: GroupId) -> Result<()> {
        let now_ns = self.live.now_ns();
        self.live
            .with_queue(|queue| queue.refused(group, now_ns))
            .map_err(refused)?;
        // The groups behind it were not applied and get other numbers.
        let behind = {
            let mut state = self.live.state.lock();
            let behind = state.handed.split_off(&GroupId(group.0.saturating_add(1)));
            let stamps = behind.values().flat_map(|group| stamps_of(group));
            state.trash.deltas.extend(stamps);
            behind
        };
        let mut journal = self.live.journal.lock();
        for behind in behind.into_keys() {
            journal.answered(behind);
        }
        Ok(())
    }

    fn resolve(&self, group: GroupId, resolution: &Resolution) -> Result<()> {
        let now_ns = self.live.now_ns();
        self.live
            .with_queue(|queue| queue.resolve(group, resolution, now_ns))
            .map_err(refused)?;
        // This group is settled; its successor has another number. A fold keeps its cut.
        let new = self.live.with_queue(|queue| queue.groups().next().cloned());
        let handed = {
            let mut state = self.live.state.lock();
            let handed = state.handed.remove(&group);
            // Its base may be something else from now on.
            if let Some(handed) = &handed {
                state.forget_rewritten(handed);
            }
            handed
        };
        self.live.journal.lock().answered(group);
        if let (Some(new), Some(handed)) = (new, handed)
            && let (Some(of_new), Some(fold)) = (&new.fold, &handed.fold)
        {
            let fold = self.fold_of(fold.cut.clone(), of_new)?;
            let again = LiveGroup {
                id: new.id,
                is_conflict: new.is_conflict,
                fold: Some(fold),
                ..(*handed).clone()
            };
            let numbers = self.live.state.lock().queue.numbers();
            self.live.note(&again, numbers)?;
            self.live.state.lock().handed.insert(new.id, Arc::new(again));
        }
        Ok(())
    }

    fn unanswered(&self, retry_after: Duration) {
        let retry_ns = u64::try_from(retry_after.as_nanos()).unwrap_or(u64::MAX);
        let retry_ns = self.live.now_ns().saturating_add(retry_ns);
        self.live.with_queue(|queue| queue.unanswered(retry_ns));
    }

    fn never_arrived(&self, group: GroupId) -> Result<()> {
        let now_ns = self.live.now_ns();
        let groups = self
            .live
            .with_queue(|queue| {
                let groups = queue.groups().map(|group| group.id).collect::<Vec<_>>();
                queue.never_arrived(group, now_ns).map(|()| groups)
            })
            .map_err(refused)?;
        for group in groups {
            self.live.answered(group);
        }
        Ok(())
    }

    fn unanswered_before(&self) -> Vec<GroupId> {
        self.live.unanswered_before.clone()
    }

    fn settled(&self, group: GroupId) {
        let is_before = self.live.unanswered_before.contains(&group);
        if is_before && self.live.state.lock().in_flight(group).is_none() {
            self.live.journal.lock().answered(group);
        }
    }

    fn known_up_to(&self, group: GroupId) -> Result<bool> {
        let live = &self.live;
        // No mark is made or reached meanwhile.
        let marking = live.marking.lock();
        if group <= live.state.lock().queue.numbers().group {
            return Ok(false);
        }
        let forgotten = live.log.abandon(SYNC_CONSUMER, None);
        let forgotten = forgotten.and_then(|()| live.log.reset_mark(SYNC_CONSUMER));
        forgotten.map_err(|error| ServiceError::new(ErrorKind::Log, error.to_string()))?;
        let up_to = GroupId(group.0.saturating_add(SKIPPED));
        live.state.lock().queue.skip_groups(up_to);
        drop(marking);
        live.abandon("the server has later changes from this machine than this machine remembers");
        Ok(true)
    }

    fn give_up(&self, why: &str) {
        self.live.abandon(why);
    }

    fn unsaved(&self, nodes: &[byteback_model::NodeId]) {
        self.live.marking.lock().unsaved = nodes.iter().copied().collect();
    }

    fn status(&self) -> LiveStatus {
        self.live.status_now()
    }
}
