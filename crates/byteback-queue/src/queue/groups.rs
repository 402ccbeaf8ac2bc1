//! Groups: the next changes to be sent, and the server's answers to them.

use crate::ids::{GroupId, Position, Version};
use crate::queue::{Change, EncodeOrder, Fold, FoldScope, Group, GroupState, Load, Queue, QueueError, count_down};
use byteback_model::NodeId;

/// The next step of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Nothing, until this time at the earliest (`None`: until something happens).
    Idle {
        /// In the caller's monotonic nanoseconds.
        wake_ns: Option<u64>,
    },
    /// Two contents are to be compared: answer by [`Queue::encoded`].
    Encode(EncodeOrder),
    /// The group is to be made durable, then sent: [`Queue::applied`], [`Queue::refused`] or
    /// [`Queue::unanswered`].
    Send(GroupId),
    /// The server is to be asked what became of the group: [`Queue::applied`] or
    /// [`Queue::never_arrived`].
    Ask(GroupId),
    /// The operation log is to be cut, with [`Queue::cut`] in the same moment.
    Cut,
    /// The server refused the group: [`Queue::resolve`].
    Decide(GroupId),
}

/// The resolution of a group that the server refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The group is sent again, and the server makes conflict versions of all its files.
    AsConflict,
    /// The group is sent again with these base versions.
    Rebase(Vec<(NodeId, Version)>),
    /// The group is folded, with all that waits behind it.
    Fold,
}

/// How far a group reaches.
enum Due {
    /// Up to this node.
    UpTo(Position),
    /// Further, once these contents are compared.
    Compared(EncodeOrder),
}

impl Queue {
    /// The next step at `now_ns`. It counts as begun when it is returned.
    pub fn poll(&mut self, now_ns: u64) -> Poll {
        let poll = self.next(now_ns);
        self.settle();
        poll
    }

    fn next(&mut self, now_ns: u64) -> Poll {
        for group in &mut self.groups {
            match group.state {
                GroupState::InFlight => {}
                GroupState::Refused => return Poll::Decide(group.id),
                GroupState::Unknown => return Poll::Ask(group.id),
                GroupState::Retry { at_ns } if at_ns > now_ns => return Poll::Idle { wake_ns: Some(at_ns) },
                GroupState::Retry { .. } => {
                    group.state = GroupState::InFlight;
                    return Poll::Send(group.id);
                }
            }
        }
        let idle = Poll::Idle { wake_ns: None };
        if let Some(fold) = &self.fold {
            let due_ns = fold.due_ns(&self.options);
            return match (self.groups.is_empty(), due_ns > now_ns) {
                (false, _) => idle,
                (true, true) => Poll::Idle { wake_ns: Some(due_ns) },
                (true, false) => Poll::Cut,
            };
        }
        // Which versions a fold makes is known when it is applied.
        let is_fold_in_flight = self.groups.front().is_some_and(|group| group.fold.is_some());
        if is_fold_in_flight || self.groups.len() >= self.options.groups_in_flight_max {
            return idle;
        }
        let Some(first) = self.nodes.range(self.first_waiting()..).next().map(|(at, _)| *at) else {
            return idle;
        };
        let up_to = self.spans.end_of(first);
        let due_ns = self.due_ns(first, up_to);
        if due_ns > now_ns {
            return Poll::Idle { wake_ns: Some(due_ns) };
        }
        if let Some(wait) = self.comparison_before(first, up_to, true) {
            return wait;
        }
        match self.with_what_is_due(first, up_to, now_ns) {
            Due::UpTo(up_to) => Poll::Send(self.freeze(first, up_to)),
            Due::Compared(order) => Poll::Encode(order),
        }
    }

    /// The step before these nodes can be sent, if a content among them is worth comparing, which
    /// is begun if it may be, or is being compared.
    fn comparison_before(&mut self, first: Position, up_to: Position, may_begin: bool) -> Option<Poll> {
        let contents = self
            .nodes
            .range(first..=up_to)
            .filter_map(|(_, node)| node.change.content());
        let files = contents.map(|content| content.node).collect::<Vec<_>>();
        for file in files {
            match self.relations.get(&file).map(|relation| relation.order.is_some()) {
                None => {}
                Some(false) if may_begin => {
                    if let Some(order) = self.order(file) {
                        return Some(Poll::Encode(order));
                    }
                }
                Some(_) => return Some(Poll::Idle { wake_ns: None }),
            }
        }
        None
    }

    /// How far a group that begins with the span from `first` to `up_to` may reach: over later
    /// nodes that could be sent at once, too. A content among them that is worth comparing is
    /// compared first, or each file of a tree that is written again would be a group of its own.
    fn with_what_is_due(&mut self, first: Position, mut up_to: Position, now_ns: u64) -> Due {
        let mut load = self.load_of(first, up_to);
        while let Some(next) = self.nodes.range(Position(up_to.0 + 1)..).next().map(|(at, _)| *at) {
            let end = self.spans.end_of(next);
            if self.due_ns(next, end) > now_ns {
                break;
            }
            let more = self.load_of(next, end);
            load.nodes += more.nodes;
            load.bytes = load.bytes.saturating_add(more.bytes);
            if load.nodes > self.options.group_nodes_max || load.bytes > self.options.group_bytes_max {
                break;
            }
            let may_compare = self.compared_ahead_bytes < self.options.group_bytes_max;
            match self.comparison_before(next, end, may_compare) {
                None => up_to = end,
                Some(Poll::Encode(order)) => {
                    self.compared_ahead_bytes = self.compared_ahead_bytes.saturating_add(more.bytes);
                    return Due::Compared(order);
                }
                Some(_) => break,
            }
        }
        Due::UpTo(up_to)
    }

    fn load_of(&self, first: Position, up_to: Position) -> Load {
        let mut load = Load::default();
        for (_, node) in self.nodes.range(first..=up_to) {
            load.add(&node.change);
        }
        load
    }

    /// When these nodes have waited long enough: as long as the delay after the last change, or as
    /// long as at most.
    fn due_ns(&self, first: Position, up_to: Position) -> u64 {
        let nodes = || self.nodes.range(first..=up_to).map(|(_, node)| node);
        let touched_ns = nodes().map(|node| node.touched_ns).max().unwrap_or(0);
        let enqueued_ns = nodes().map(|node| node.enqueued_ns).min().unwrap_or(0);
        let quiet_ns = touched_ns.saturating_add(self.options.delay_ns);
        quiet_ns.min(enqueued_ns.saturating_add(self.options.delay_max_ns))
    }

    /// Makes a group of these nodes; nothing of it changes from now on.
    fn freeze(&mut self, first: Position, up_to: Position) -> GroupId {
        let positions = self.nodes.range(first..=up_to).map(|(at, _)| *at).collect::<Vec<_>>();
        for position in positions {
            let Some(change) = self.change_at(position) else {
                continue;
            };
            let removed = change.last_removal();
            match change {
                Change::Content(content) => {
                    let node = content.node;
                    if self.open.get(&node) == Some(&position) {
                        self.pack(node);
                    }
                    self.end_relation(node);
                }
                Change::Attributes { node, .. } => {
                    let node = *node;
                    if self.attributes.get(&node) == Some(&position) {
                        self.attributes.remove(&node);
                    }
                }
                Change::Name(_) | Change::Times { .. } => {}
            }
            if let Some(removed) = removed {
                self.end_relations_if(|relation, _| relation.base == removed);
            }
            if let Some(node) = self.nodes.get(&position) {
                self.waiting.subtract(&node.change);
                for directory in node.change.times() {
                    count_down(&mut self.timed, directory);
                }
            }
        }
        // Nodes taken out before the first one belong to the group, too: no mark in between is
        // reached before it is applied.
        let first = self.first_waiting();
        self.compared_ahead_bytes = 0;
        self.frozen = up_to;
        self.spans.forget_to(up_to);
        self.last_group += 1;
        let id = GroupId(self.last_group);
        self.groups.push_back(Group {
            id,
            first,
            up_to,
            state: GroupState::InFlight,
            is_conflict: false,
            fold: None,
        });
        id
    }

    /// The server applied a group, or made conflict versions of it.
    ///
    /// # Errors
    /// If it is not the oldest in flight; nothing is changed then.
    pub fn applied(&mut self, group: GroupId) -> Result<(), QueueError> {
        let is_open = |state| state != GroupState::Refused;
        let group = self.oldest(group, is_open)?;
        self.groups.pop_front();
        self.forget(&group);
        self.together.forget_to(group.up_to);
        if group.fold.is_some() {
            self.together.in_flight.clear();
        }
        self.settle();
        Ok(())
    }

    /// The server refused a group, and did not look at those behind it.
    ///
    /// # Errors
    /// If it is not the oldest in flight; nothing is changed then.
    pub fn refused(&mut self, group: GroupId, now_ns: u64) -> Result<(), QueueError> {
        let group = self.oldest(group, |state| state != GroupState::Refused)?;
        let behind = self.groups.split_off(1);
        if let Some(front) = self.groups.front_mut() {
            front.state = GroupState::Refused;
        }
        self.frozen = group.up_to;
        for group in behind {
            self.thaw(&group);
        }
        match self.fold.is_some() {
            true => self.fold_waiting(now_ns),
            false => self.keep_within(now_ns),
        }
        self.settle();
        Ok(())
    }

    /// Decides what becomes of a group that was refused.
    ///
    /// # Errors
    /// If it was not.
    pub fn resolve(&mut self, group: GroupId, resolution: &Resolution, now_ns: u64) -> Result<(), QueueError> {
        let group = self.oldest(group, |state| state == GroupState::Refused)?;
        if *resolution == Resolution::Fold {
            self.groups.pop_front();
            self.frozen = Position(group.first.0.saturating_sub(1));
            if group.fold.is_none() {
                self.thaw(&group);
            }
            self.fold_waiting(now_ns);
            if let Some((scope, _)) = group.fold {
                self.unfold(group.first, scope, now_ns);
                self.refold_together();
            }
            self.settle();
            return Ok(());
        }
        self.last_group += 1;
        let id = GroupId(self.last_group);
        if let Some(front) = self.groups.front_mut() {
            front.id = id;
            front.state = GroupState::Retry { at_ns: now_ns };
            match resolution {
                Resolution::AsConflict => front.is_conflict = true,
                Resolution::Rebase(bases) => self.rebase(&group, bases),
                Resolution::Fold => {}
            }
        }
        Ok(())
    }

    fn rebase(&mut self, group: &Group, bases: &[(NodeId, Version)]) {
        if let Some((FoldScope::Items { contents, .. }, _)) =
            self.groups.front_mut().and_then(|front| front.fold.as_mut())
        {
            for (node, version) in bases {
                contents.entry(*node).and_modify(|base| *base = Some(*version));
            }
            return;
        }
        for (node, version) in bases {
            let about = self.about(*node, group.first);
            let first = about.into_iter().find(|at| self.content_at(*at).is_some());
            if let Some(position) = first.filter(|at| *at <= group.up_to) {
                self.with_content(position, |content| content.base = Some(*version));
            }
        }
    }

    /// No answer came: the groups in flight are sent again, exactly as they were, from `retry_ns`
    /// on (backing off is the caller's task).
    pub fn unanswered(&mut self, retry_ns: u64) {
        for group in &mut self.groups {
            if group.state == GroupState::InFlight {
                group.state = GroupState::Retry { at_ns: retry_ns };
            }
        }
    }

    /// The server does not know a group that was asked for: neither those behind it. They are
    /// folded.
    ///
    /// # Errors
    /// If it was not to be asked for.
    pub fn never_arrived(&mut self, group: GroupId, now_ns: u64) -> Result<(), QueueError> {
        self.oldest(group, |state| state == GroupState::Unknown)?;
        let groups = std::mem::take(&mut self.groups);
        if let Some(front) = groups.front() {
            let first = front.first;
            self.unfold(first, FoldScope::Everything, now_ns);
        }
        for group in &groups {
            self.forget(group);
        }
        self.settle();
        Ok(())
    }

    /// Events may have been missed, or bytes that were to be sent are lost: all that waits is
    /// everything that changed since the log's mark, and what is in flight cannot be sent again. To
    /// be called first after a stop that was not clean.
    pub fn abandon(&mut self, now_ns: u64) {
        self.position.0 += 1;
        if self
            .groups
            .front()
            .is_some_and(|front| front.state == GroupState::Refused)
            && let Some(group) = self.groups.pop_front()
        {
            self.forget(&group);
            // It was not applied: the fold begins where it began.
            self.frozen = Position(group.first.0.saturating_sub(1));
        }
        for group in &mut self.groups {
            group.state = GroupState::Unknown;
        }
        self.freed.extend(self.nameless.iter().copied());
        self.together.give_up();
        self.fold_waiting(now_ns);
        let first = self.fold.as_ref().map_or(self.position, |fold| fold.first);
        self.fold = Some(Fold::everything(first, now_ns));
        self.settle();
    }

    /// Goes on after a clean stop, with another clock: no answer comes any more for the groups in
    /// flight, and contents that were being compared are sent as they are, because the relation
    /// table is empty.
    pub fn resume(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.together.resume(now_ns);
        for node in self.nodes.values_mut() {
            node.enqueued_ns = now_ns;
            node.touched_ns = now_ns;
        }
        for group in &mut self.groups {
            if matches!(group.state, GroupState::InFlight | GroupState::Retry { .. }) {
                group.state = GroupState::Retry { at_ns: now_ns };
            }
        }
        if let Some(fold) = &mut self.fold {
            (fold.enqueued_ns, fold.touched_ns) = (now_ns, now_ns);
        }
        self.end_relations();
        self.settle();
    }

    fn oldest(&self, id: GroupId, is_right: impl Fn(GroupState) -> bool) -> Result<Group, QueueError> {
        let front = self.groups.front();
        let front = front.filter(|group| group.id == id && is_right(group.state));
        front.cloned().ok_or(QueueError::NotOldest(id))
    }

    /// Forgets the nodes of a group.
    fn forget(&mut self, group: &Group) {
        let positions = self.nodes.range(group.first..=group.up_to).map(|(at, _)| *at);
        for position in positions.collect::<Vec<_>>() {
            self.remove(position);
        }
    }

    /// The nodes of a group wait again; they are behind all that is frozen.
    fn thaw(&mut self, group: &Group) {
        let load = self.load_of(group.first, group.up_to);
        self.waiting.nodes += load.nodes;
        self.waiting.extents += load.extents;
        self.waiting.bytes = self.waiting.bytes.saturating_add(load.bytes);
        self.spans.join(group.first, group.up_to);
        for (_, node) in self.nodes.range(group.first..=group.up_to) {
            for directory in node.change.times() {
                *self.timed.entry(directory).or_default() += 1;
            }
        }
    }

    /// Folds an earlier scope again, in front of all that is folded now.
    fn unfold(&mut self, first: Position, scope: FoldScope, now_ns: u64) {
        let fold = self.fold.get_or_insert(Fold {
            first,
            enqueued_ns: now_ns,
            touched_ns: 0,
            scope: FoldScope::Items {
                contents: Default::default(),
                attributes: Default::default(),
                names: Default::default(),
                times: Default::default(),
            },
        });
        fold.first = fold.first.min(first);
        fold.scope.lay_over(scope);
    }
}
