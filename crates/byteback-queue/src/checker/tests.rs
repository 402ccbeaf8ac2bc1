//! Random lives of an origin with queue and relation table, a network that loses, and a server; the
//! checker compares every state.

use byteback_extents::ByteRange;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::ids::{ClientId, GroupId, Position, Version};
use crate::persist::{self, Input};
use crate::queue::{
    Change, ContentSource, Effect, EncodeOrder, EncodedDelta, Event, FoldScope, Poll, Queue, QueueOptions, Resolution,
    Save,
};
use crate::relation::{Decision, RelationOptions, RelationTable};

const ROOT: NodeId = NodeId(1);

/// The load of a group on the network.
#[derive(Clone, Debug, PartialEq)]
enum Delivery {
    Change(Operation),
    Content {
        node: NodeId,
        base: Option<Version>,
        version: Version,
        size: usize,
        pieces: Vec<(usize, Vec<u8>)>,
    },
    Delta {
        node: NodeId,
        base: Option<Version>,
        version: Version,
        from: NodeId,
        from_version: Option<Version>,
        old: Vec<u8>,
        new: Vec<u8>,
    },
    Picture {
        scope: FoldScope,
        version: Version,
        picture: Tree,
        /// The versions that the client knows.
        known: BTreeMap<NodeId, Version>,
    },
}

#[derive(Clone, Debug, PartialEq)]
struct Sent {
    moment: usize,
    deliveries: Vec<Delivery>,
}

struct Server {
    tree: Tree,
    /// When names in each directory last came or went, as far as groups said so.
    times: BTreeMap<NodeId, u64>,
    versions: BTreeMap<NodeId, Version>,
    applied: BTreeSet<GroupId>,
}

impl Server {
    fn apply(&mut self, sent: &Sent) -> Result<(), String> {
        for delivery in &sent.deliveries {
            match delivery {
                Delivery::Change(operation) => self.tree.perform(operation)?,
                Delivery::Content {
                    node,
                    base,
                    version,
                    size,
                    pieces,
                } => {
                    self.new_version(*node, *base, *version)?;
                    let content = self.tree.content(*node)?;
                    content.resize(*size, 0);
                    for (offset, bytes) in pieces {
                        content[*offset..offset + bytes.len()].copy_from_slice(bytes);
                    }
                }
                Delivery::Delta {
                    node,
                    base,
                    version,
                    from,
                    from_version,
                    old,
                    new,
                } => {
                    if self.versions.get(from).copied() != *from_version {
                        return Err(format!("{node} is to be made of another version of {from}"));
                    }
                    if self.tree.content(*from)? != old {
                        return Err(format!("{node} is to be made of another content of {from}"));
                    }
                    self.new_version(*node, *base, *version)?;
                    self.tree.content(*node)?.clone_from(new);
                }
                Delivery::Picture {
                    scope,
                    version,
                    picture,
                    known,
                } => self.fold(scope, *version, picture, known)?,
            }
        }
        self.tree.forget_nameless(ROOT);
        Ok(())
    }

    fn new_version(&mut self, node: NodeId, base: Option<Version>, version: Version) -> Result<(), String> {
        let current = self.versions.insert(node, version);
        match current == base {
            true => Ok(()),
            false => Err(format!("{node} is of version {current:?}, not {base:?}")),
        }
    }

    fn fold(
        &mut self,
        scope: &FoldScope,
        version: Version,
        picture: &Tree,
        known: &BTreeMap<NodeId, Version>,
    ) -> Result<(), String> {
        let FoldScope::Items {
            contents,
            attributes,
            names,
            times: _,
        } = scope
        else {
            self.tree = picture.clone();
            self.versions
                .extend(picture.contents.keys().map(|node| (*node, version)));
            return Ok(());
        };
        for place in names.keys() {
            match picture.names.get(place) {
                Some(node) => {
                    let kind = picture.kinds[node];
                    self.tree.names.insert(place.clone(), *node);
                    self.tree.kinds.insert(*node, kind);
                    if kind == NodeKind::File {
                        self.tree.contents.entry(*node).or_default();
                    }
                }
                None => {
                    self.tree.names.remove(place);
                }
            }
        }
        for node in attributes.iter().filter(|node| picture.links(**node) > 0) {
            if let Some(stamp) = picture.attributes.get(node) {
                self.tree.attributes.insert(*node, *stamp);
            }
        }
        for (node, base) in contents.iter().filter(|(node, _)| picture.links(**node) > 0) {
            self.new_version(*node, base.or(known.get(node).copied()), version)?;
            self.tree.contents.insert(*node, picture.contents[node].clone());
        }
        Ok(())
    }
}

/// How a life is to be.
#[derive(Clone, Copy)]
struct Way {
    options: QueueOptions,
    crashes: bool,
    ignores_backindex: bool,
}

/// The state that survives a crash.
#[derive(Clone)]
struct Durable {
    snapshot: Vec<u8>,
    known: BTreeMap<NodeId, Version>,
}

struct World {
    random: StdRng,
    way: Way,
    now_ns: u64,
    nodes: u64,
    stamps: u64,
    live: Tree,
    /// When names in each directory came or went last, in names that ever changed.
    times: BTreeMap<NodeId, u64>,
    names_changed: u64,
    /// Files whose bytes can no longer be read.
    gone: BTreeSet<NodeId>,
    kept_by_table: BTreeSet<NodeId>,
    kept_by_queue: BTreeSet<NodeId>,
    table: RelationTable,
    queue: Queue,
    checker: Checker,
    /// The moments of positions.
    moments: BTreeMap<Position, usize>,
    spool: BTreeMap<(Position, u64), u8>,
    deltas: BTreeMap<u64, (Vec<u8>, Vec<u8>)>,
    orders: Vec<(EncodeOrder, u64)>,
    known: BTreeMap<NodeId, Version>,
    sent: BTreeMap<GroupId, Sent>,
    times_sent: BTreeMap<GroupId, BTreeMap<NodeId, u64>>,
    pictures: BTreeMap<Position, Tree>,
    network: Vec<GroupId>,
    server: Server,
    durable: Durable,
    base_snapshot: Vec<u8>,
    journal: Vec<u8>,
    counts: BTreeMap<&'static str, usize>,
    /// The first problem found where no result can be returned.
    problem: Option<String>,
}

impl World {
    fn new(seed: u64, way: Way) -> Self {
        let mut queue = Queue::new(ClientId(7), way.options);
        queue.ignores_backindex = way.ignores_backindex;
        let snapshot = persist::encode_snapshot(&queue);
        Self {
            random: StdRng::seed_from_u64(seed),
            way,
            now_ns: 0,
            nodes: ROOT.0,
            stamps: 0,
            live: Tree::new(ROOT),
            times: BTreeMap::new(),
            names_changed: 0,
            gone: BTreeSet::new(),
            kept_by_table: BTreeSet::new(),
            kept_by_queue: BTreeSet::new(),
            table: RelationTable::new(relation_options()),
            queue,
            checker: Checker::new(Tree::new(ROOT)),
            moments: BTreeMap::new(),
            spool: BTreeMap::new(),
            deltas: BTreeMap::new(),
            orders: Vec::new(),
            known: BTreeMap::new(),
            sent: BTreeMap::new(),
            times_sent: BTreeMap::new(),
            pictures: BTreeMap::new(),
            network: Vec::new(),
            server: Server {
                tree: Tree::new(ROOT),
                times: BTreeMap::new(),
                versions: BTreeMap::new(),
                applied: BTreeSet::new(),
            },
            durable: Durable {
                snapshot: snapshot.clone(),
                known: BTreeMap::new(),
            },
            base_snapshot: snapshot,
            journal: Vec::new(),
            counts: BTreeMap::new(),
            problem: None,
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn below(&mut self, end: usize) -> usize {
        self.random.random_range(0..end)
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.random.random_bool(probability)
    }

    fn input(&mut self, input: Input) -> Option<Poll> {
        input.encode(&mut self.journal);
        input.apply(&mut self.queue).unwrap()
    }

    fn event(&mut self, event: Event) {
        let now_ns = self.now_ns;
        self.input(Input::Event { now_ns, event });
        self.moments.insert(self.queue.position(), self.checker.now());
        self.effects();
        self.queue.check().unwrap();
    }

    fn effects(&mut self) {
        for effect in self.queue.take_effects() {
            match effect {
                Effect::Unrelated(new) => {
                    let decisions = self.table.finish(new);
                    self.decide(decisions);
                }
                Effect::Rebased { new, base } => {
                    self.count("rebased");
                    let decisions = self.table.rebase(new, base);
                    self.decide(decisions);
                }
                Effect::DropSaved(position) => self.spool.retain(|(at, _), _| *at != position),
                Effect::DropDelta(stamp) => {
                    self.deltas.remove(&stamp).unwrap();
                }
                Effect::Free(node) => {
                    self.kept_by_queue.remove(&node);
                    self.free(node);
                }
                Effect::Mark(epoch) => {
                    self.count("mark");
                    // All before the mark is at the server: it shows a moment that is not older.
                    let mut checker = self.checker.clone();
                    let moment = checker.reached.max(epoch as usize);
                    let seen = checker
                        .advance(moment)
                        .and_then(|()| checker.visible(&self.server.tree));
                    if let Err(problem) = seen {
                        self.problem.get_or_insert(format!("mark {epoch}: {problem}"));
                    }
                }
            }
        }
    }

    fn free(&mut self, node: NodeId) {
        if self.live.links(node) == 0 && !self.kept_by_table.contains(&node) && !self.kept_by_queue.contains(&node) {
            self.gone.insert(node);
        }
    }

    fn decide(&mut self, decisions: Vec<Decision>) {
        for decision in decisions {
            match decision {
                Decision::Relate {
                    new,
                    base,
                    is_base_removed,
                } => {
                    self.count("relation");
                    self.input(Input::Relate {
                        new,
                        base,
                        is_base_removed,
                    });
                }
                Decision::Unrelate { new, .. } => {
                    self.input(Input::Unrelate { new });
                }
                Decision::Drop(node) => {
                    self.kept_by_table.remove(&node);
                    self.free(node);
                }
            }
        }
    }

    fn bytes_of(&self, node: NodeId) -> &[u8] {
        assert!(!self.gone.contains(&node), "the bytes of {node} are lost");
        &self.live.contents[&node]
    }

    fn save(&mut self, node: NodeId, range: ByteRange) {
        let saves = self.queue.saves_before(node, range);
        self.put_aside(node, saves);
    }

    fn put_aside(&mut self, node: NodeId, saves: Vec<Save>) {
        for save in saves {
            self.count("save");
            let Save { position, range } = save;
            for offset in range.start()..range.end() {
                let byte = self.bytes_of(node).get(offset as usize).copied();
                self.spool
                    .insert((position, offset), byte.expect("a packed content ends earlier"));
            }
            self.input(Input::Saved(save));
        }
    }

    fn name(&mut self, operation: NameOperation) {
        let unsent = self
            .live
            .contents
            .keys()
            .filter(|node| self.queue.has_unsent_content(**node));
        let unsent = unsent.copied().collect::<BTreeSet<_>>();
        let decisions = self
            .table
            .observe(&operation, self.now_ns, |node| unsent.contains(&node));
        self.live.perform(&Operation::Name(operation.clone())).unwrap();
        self.checker.performed(Operation::Name(operation.clone()));
        self.names_changed += 1;
        for directory in Change::Name(operation.clone()).parents() {
            self.times.insert(directory, self.names_changed);
        }
        self.decide(decisions);
        self.table.check(self.now_ns).unwrap();
        self.event(Event::Name(operation));
    }

    fn moved(&self, node: NodeId) -> Moved {
        Moved {
            node,
            kind: self.live.kinds[&node],
        }
    }

    /// Prepares a node for losing this name; bytes that are needed are kept or saved.
    fn victim(&mut self, place: &Place<NodeId>) -> Victim {
        let node = self.live.names[place];
        let kind = self.live.kinds[&node];
        let is_last = self.live.links(node) == 1;
        let mut is_kept = false;
        if is_last && kind == NodeKind::File {
            is_kept = self.table.is_worth_keeping(kind, 1, u64::MAX) && self.chance(0.8);
            if is_kept {
                self.kept_by_table.insert(node);
            }
            if self.queue.needs_file(node) {
                if self.chance(0.5) {
                    self.kept_by_queue.insert(node);
                } else {
                    let saves = self.queue.saves_before_removal(node);
                    self.put_aside(node, saves);
                }
            }
            if !is_kept && !self.kept_by_queue.contains(&node) {
                self.gone.insert(node);
            }
        }
        Victim {
            node,
            kind,
            is_last,
            is_kept,
            len_bytes: 1,
        }
    }

    fn create(&mut self, at: Place<NodeId>, kind: NodeKind) -> NodeId {
        self.nodes += 1;
        let node = Moved {
            node: NodeId(self.nodes),
            kind,
        };
        self.name(NameOperation::Created { at, node });
        node.node
    }

    fn unlink(&mut self, at: Place<NodeId>) {
        let victim = self.victim(&at);
        self.name(NameOperation::Unlinked { at, victim });
    }

    fn rename(&mut self, from: Place<NodeId>, to: Place<NodeId>) {
        let node = self.moved(self.live.names[&from]);
        let replaced = self.live.names.contains_key(&to).then(|| self.victim(&to));
        self.name(NameOperation::Renamed {
            from,
            to,
            node,
            replaced,
        });
    }

    fn changed(&mut self, operation: Operation, range: Option<ByteRange>) {
        let (Operation::Write { node, .. } | Operation::Truncate { node, .. }) = operation else {
            unreachable!()
        };
        let Some(range) = range else { return };
        self.save(node, range);
        self.live.perform(&operation).unwrap();
        self.checker.performed(operation);
        let event = Event::Wrote {
            node,
            range,
            size_bytes: self.live.contents[&node].len() as u64,
            base: self.known.get(&node).copied(),
        };
        self.event(event);
    }

    fn write(&mut self, node: NodeId, offset: usize, bytes: Vec<u8>) {
        let range = ByteRange::from_offset_len(offset as u64, bytes.len() as u64);
        self.changed(Operation::Write { node, offset, bytes }, range);
    }

    fn truncate(&mut self, node: NodeId, size: usize) {
        let old = self.live.contents[&node].len();
        let range = ByteRange::new(old.min(size) as u64, old.max(size) as u64);
        self.changed(Operation::Truncate { node, size }, range);
    }

    fn places(&self) -> Vec<Place<NodeId>> {
        let directories =
            self.live.kinds.iter().filter(|(node, kind)| {
                **kind == NodeKind::Directory && (**node == ROOT || self.live.links(**node) > 0)
            });
        let names = directories.flat_map(|(parent, _)| (b'a'..b'e').map(|name| Place::new(*parent, &[name])));
        names.collect()
    }

    /// Whether `inner` is below the directory `outer`, or the same.
    fn is_within(&self, inner: NodeId, outer: NodeId) -> bool {
        let mut at = inner;
        while at != outer {
            match self.live.names.iter().find(|(_, node)| **node == at) {
                Some((place, _)) => at = place.parent,
                None => return false,
            }
        }
        true
    }

    fn is_empty_directory(&self, node: NodeId) -> bool {
        !self.live.names.keys().any(|place| place.parent == node)
    }

    /// A save as an editor does it.
    fn save_like_an_editor(&mut self, at: Place<NodeId>) {
        let Some(&old) = self.live.names.get(&at) else { return };
        if self.live.kinds[&old] != NodeKind::File {
            return;
        }
        let mut content = self.bytes_of(old).to_vec();
        content.push(self.random.random());
        let temporary = Place::new(at.parent, b"tmp");
        let backup = Place::new(at.parent, b"backup");
        for place in [&temporary, &backup] {
            if self.live.names.contains_key(place) {
                self.unlink(place.clone());
            }
        }
        match self.below(5) {
            0 => {
                let new = self.create(temporary.clone(), NodeKind::File);
                self.write(new, 0, content);
                self.event(Event::Closed { node: new });
                self.rename(temporary, at);
            }
            1 => {
                self.rename(at.clone(), backup.clone());
                let new = self.create(temporary.clone(), NodeKind::File);
                self.write(new, 0, content);
                self.rename(temporary, at);
                self.unlink(backup);
            }
            2 => {
                self.unlink(at.clone());
                let new = self.create(at, NodeKind::File);
                self.write(new, 0, content);
                self.event(Event::Closed { node: new });
            }
            3 => {
                let node = self.moved(old);
                self.name(NameOperation::Linked { at: backup, node });
                let new = self.create(temporary.clone(), NodeKind::File);
                self.write(new, 0, content);
                self.rename(temporary, at);
                self.write(new, 1, vec![0]);
            }
            _ => {
                let new = self.create(temporary.clone(), NodeKind::File);
                self.write(new, 0, content);
                let (one_node, other_node) = (self.moved(new), self.moved(old));
                self.name(NameOperation::Exchanged {
                    one: temporary.clone(),
                    one_node,
                    other: at,
                    other_node,
                });
                self.unlink(temporary);
            }
        }
    }

    /// Something happens at the origin.
    fn operate(&mut self) {
        let places = self.places();
        let at = places[self.below(places.len())].clone();
        let to = places[self.below(places.len())].clone();
        let here = self.live.names.get(&at).copied();
        let there = self.live.names.get(&to).copied();
        let is_file = here.is_some_and(|node| self.live.kinds[&node] == NodeKind::File);
        match (self.below(16), here) {
            (0 | 1, None) => {
                let kind = [NodeKind::File, NodeKind::File, NodeKind::Directory, NodeKind::Symlink][self.below(4)];
                let is_deep = self.live.kinds.len() > 12;
                self.create(at, if is_deep { NodeKind::File } else { kind });
            }
            (2..=5, Some(node)) if is_file => {
                let len = 1 + self.below(8);
                let bytes = (0..len).map(|_| self.random.random()).collect();
                let offset = self.below(24);
                self.write(node, offset, bytes);
            }
            (6, Some(node)) if is_file => {
                let size = self.below(24);
                self.truncate(node, size);
            }
            (7, Some(node)) if is_file => self.event(Event::Closed { node }),
            (8, Some(node)) => {
                self.stamps += 1;
                let stamp = self.stamps;
                self.live.attributes.insert(node, stamp);
                self.checker.performed(Operation::Attributes { node, stamp });
                self.event(Event::Attributes { node, stamp });
            }
            (9, Some(node)) if is_file && there.is_none() => {
                let node = self.moved(node);
                self.name(NameOperation::Linked { at: to, node });
            }
            (10 | 11, Some(node)) if is_file || self.is_empty_directory(node) => self.unlink(at),
            (12, Some(node)) if there != Some(node) => {
                let kind = |node: NodeId| self.live.kinds[&node] == NodeKind::Directory;
                let fits = there.is_none_or(|over| kind(over) == kind(node) && self.is_empty_directory(over));
                if fits && !(kind(node) && self.is_within(to.parent, node)) {
                    self.rename(at, to);
                }
            }
            (13, Some(node)) if there.is_some_and(|other| other != node) => {
                let (one_node, other_node) = (self.moved(node), self.moved(there.unwrap()));
                if !self.is_within(to.parent, node) && !self.is_within(at.parent, other_node.node) {
                    self.name(NameOperation::Exchanged {
                        one: at,
                        one_node,
                        other: to,
                        other_node,
                    });
                }
            }
            (14, _) => self.save_like_an_editor(at),
            (15, _) => {
                let epoch = self.checker.now() as u64;
                self.event(Event::Mark { epoch });
            }
            _ => {}
        }
    }

    /// Does or begins the work that the queue asks for.
    fn work(&mut self) {
        let now_ns = self.now_ns;
        let poll = self.input(Input::Poll { now_ns }).unwrap();
        self.effects();
        match poll {
            Poll::Idle { wake_ns } => {
                if let Some(wake_ns) = wake_ns {
                    assert!(wake_ns > now_ns, "it is already time");
                    if self.chance(0.3) {
                        self.now_ns = wake_ns;
                    }
                }
            }
            Poll::Encode(order) => {
                self.count("order");
                if self.gone.contains(&order.new) || self.gone.contains(&order.base) {
                    // Its bytes were put aside instead of the file.
                    self.input(Input::Encoded { order, delta: None });
                    self.effects();
                    return;
                }
                let old = self.bytes_of(order.base).to_vec();
                let new = self.bytes_of(order.new).to_vec();
                self.stamps += 1;
                self.deltas.insert(self.stamps, (old, new));
                self.orders.push((order, self.stamps));
            }
            Poll::Send(group) => self.send(group),
            Poll::Ask(group) => {
                self.count("asked");
                match self.server.applied.contains(&group) {
                    true => self.acknowledge(group),
                    false => {
                        self.input(Input::NeverArrived { group, now_ns });
                    }
                }
            }
            Poll::Cut => {
                self.input(Input::Cut);
                let group = self.queue.groups().next().unwrap();
                let (id, up_to) = (group.id, group.up_to);
                self.count(match group.fold {
                    Some((FoldScope::Everything, _)) => "fold of everything",
                    _ => "fold of items",
                });
                self.moments.insert(up_to, self.checker.now());
                let mut picture = self.live.clone();
                picture.forget_nameless(ROOT);
                self.pictures.insert(up_to, picture);
                self.send(id);
            }
            Poll::Decide(group) => {
                let resolution = match self.below(3) {
                    0 => Resolution::AsConflict,
                    1 => Resolution::Fold,
                    _ => Resolution::Rebase(self.server.versions.iter().map(|(node, at)| (*node, *at)).collect()),
                };
                self.count("resolved");
                self.input(Input::Resolve {
                    group,
                    resolution,
                    now_ns,
                });
            }
        }
        self.effects();
        self.queue.check().unwrap();
    }

    fn send(&mut self, id: GroupId) {
        self.count("send");
        self.make_durable();
        let group = self.queue.groups().find(|group| group.id == id).unwrap().clone();
        let (_, &moment) = self.moments.range(..=group.up_to).next_back().unwrap();
        let mut deliveries = Vec::new();
        if let Some((scope, version)) = group.fold {
            deliveries.push(Delivery::Picture {
                scope,
                version,
                picture: self.pictures[&group.up_to].clone(),
                known: self.known.clone(),
            });
        } else {
            let mut known = self.known.clone();
            for earlier in self.queue.groups().take_while(|earlier| earlier.id != id) {
                for (_, node) in self.queue.nodes_of(earlier) {
                    if let Change::Content(content) = &node.change {
                        known.insert(content.node, node.version);
                    }
                }
            }
            for (position, node) in self.queue.nodes_of(&group) {
                deliveries.extend(self.delivery(position, &node.change, node.version, &known));
                if let Change::Content(content) = &node.change {
                    known.insert(content.node, node.version);
                }
            }
        }
        let times = self.times_of(id);
        self.times_sent.entry(id).or_insert(times);
        let sent = Sent { moment, deliveries };
        if let Some(before) = self.sent.insert(id, sent.clone()) {
            assert_eq!(before, sent, "group {id} is sent again and differs");
            self.count("resend");
        }
        self.network.push(id);
    }

    /// The times that a group carries: of the directories that it names, and with their attributes
    /// of those that are new.
    fn times_of(&self, id: GroupId) -> BTreeMap<NodeId, u64> {
        let mut groups = self.queue.groups();
        let group = groups.find(|group| group.id == id).unwrap();
        let reported: BTreeSet<NodeId> = match &group.fold {
            Some((FoldScope::Everything, _)) => self.times.keys().copied().collect(),
            Some((FoldScope::Items { attributes, times, .. }, _)) => {
                let new = attributes
                    .iter()
                    .filter(|node| !self.server.tree.kinds.contains_key(node));
                times.iter().chain(new).copied().collect()
            }
            None => {
                let nodes = self.queue.nodes_of(group);
                let reported = nodes.flat_map(|(_, node)| {
                    let own = match &node.change {
                        Change::Name(NameOperation::Created { node, .. }) => Some(node.node),
                        Change::Attributes { node, .. } => Some(*node),
                        _ => None,
                    };
                    node.change.parents().into_iter().chain(own)
                });
                reported.collect()
            }
        };
        reported
            .into_iter()
            .filter_map(|node| Some((node, *self.times.get(&node)?)))
            .collect()
    }

    fn delivery(
        &self,
        position: Position,
        change: &Change,
        version: Version,
        known: &BTreeMap<NodeId, Version>,
    ) -> Option<Delivery> {
        let content = match change {
            Change::Name(operation) => return Some(Delivery::Change(Operation::Name(operation.clone()))),
            Change::Attributes { node, stamp } => {
                return Some(Delivery::Change(Operation::Attributes {
                    node: *node,
                    stamp: *stamp,
                }));
            }
            Change::Times { .. } => return None,
            Change::Content(content) => content,
        };
        let (node, size) = (content.node, content.size_bytes as usize);
        let base = content.base.or(known.get(&node).copied());
        Some(match &content.source {
            ContentSource::Ranges { ranges, saved } => {
                let within = ByteRange::new(0, content.size_bytes).into_iter();
                let byte = |offset: u64| match saved.contains(offset) {
                    true => self.spool[&(position, offset)],
                    false => self.bytes_of(node)[offset as usize],
                };
                let pieces = within.flat_map(|all| ranges.iter_within(all)).map(|range| {
                    let bytes = (range.start()..range.end()).map(byte).collect();
                    (range.start() as usize, bytes)
                });
                Delivery::Content {
                    node,
                    base,
                    version,
                    size,
                    pieces: pieces.collect(),
                }
            }
            ContentSource::Delta {
                base: from,
                base_version,
                stamp,
                ..
            } => {
                let (old, new) = self.deltas[stamp].clone();
                assert_eq!(new.len(), size);
                Delivery::Delta {
                    node,
                    base,
                    version,
                    from: *from,
                    from_version: base_version.or(known.get(from).copied()),
                    old,
                    new,
                }
            }
        })
    }

    /// The network delivers, loses, or the server refuses.
    fn deliver(&mut self) -> Result<(), String> {
        if self.network.is_empty() {
            return Ok(());
        }
        let fate = self.below(10);
        let now_ns = self.now_ns;
        let id = self.network[0];
        if fate == 0 {
            // The line breaks; some of the sent groups arrived.
            let arrived = self.below(self.network.len() + 1);
            for id in std::mem::take(&mut self.network).into_iter().take(arrived) {
                self.arrive(id)?;
            }
            self.count("unanswered");
            self.input(Input::Unanswered { retry_ns: now_ns + 100 });
        } else if fate == 1 && !self.server.applied.contains(&id) {
            self.count("refused");
            self.network.clear();
            self.input(Input::Refused { group: id, now_ns });
        } else {
            self.network.remove(0);
            self.arrive(id)?;
            self.acknowledge(id);
        }
        self.effects();
        self.queue.check().unwrap();
        Ok(())
    }

    fn arrive(&mut self, id: GroupId) -> Result<(), String> {
        if self.server.applied.insert(id) {
            let sent = &self.sent[&id];
            self.server.apply(sent)?;
            self.server.times.extend(&self.times_sent[&id]);
            self.checker.delivered(&self.server.tree, sent.moment)?;
        }
        Ok(())
    }

    fn acknowledge(&mut self, id: GroupId) {
        for delivery in self.sent[&id].deliveries.clone() {
            match delivery {
                Delivery::Content { node, version, .. } | Delivery::Delta { node, version, .. } => {
                    self.known.insert(node, version);
                }
                Delivery::Picture { .. } => self.known = self.server.versions.clone(),
                Delivery::Change(_) => {}
            }
        }
        self.input(Input::Applied(id));
    }

    fn answer_order(&mut self) {
        if self.orders.is_empty() {
            return;
        }
        let at = self.below(self.orders.len());
        let (order, stamp) = self.orders.swap_remove(at);
        let delta = self.chance(0.9).then_some(EncodedDelta {
            stamp,
            len_bytes: 0,
            base_version: self.known.get(&order.base).copied(),
        });
        let input = Input::Encoded { order, delta };
        input.encode(&mut self.journal);
        if self.queue.encoded(&order, delta) {
            self.count("delta");
        } else {
            self.deltas.remove(&stamp);
        }
        self.effects();
        self.queue.check().unwrap();
    }

    fn make_durable(&mut self) {
        self.durable = Durable {
            snapshot: persist::encode_snapshot(&self.queue),
            known: self.known.clone(),
        };
    }

    /// The process ends in good order and begins again, from a snapshot or from an older one with a
    /// journal.
    fn restart(&mut self) -> Result<(), String> {
        self.count("restart");
        let snapshot = persist::encode_snapshot(&self.queue);
        let mut replayed = persist::decode_snapshot(&self.base_snapshot, self.way.options).unwrap();
        replayed.ignores_backindex = self.way.ignores_backindex;
        let (inputs, len) = persist::read_journal(&self.journal);
        assert_eq!(len, self.journal.len());
        for input in inputs {
            input.apply(&mut replayed).unwrap();
        }
        assert_eq!(
            persist::encode_snapshot(&replayed),
            snapshot,
            "the journal tells something else"
        );
        self.queue = persist::decode_snapshot(&snapshot, self.way.options).unwrap();
        self.queue.ignores_backindex = self.way.ignores_backindex;
        assert_eq!(persist::encode_snapshot(&self.queue), snapshot);
        self.base_snapshot = snapshot;
        self.journal.clear();
        if self.chance(0.5) {
            return Ok(());
        }
        // The process was really away: no answer comes any more, the clock is another, the relation
        // table empty.
        let arrived = self.below(self.network.len() + 1);
        for id in std::mem::take(&mut self.network).into_iter().take(arrived) {
            self.arrive(id)?;
        }
        self.orders.clear();
        self.now_ns = [0, self.now_ns + 5000][self.below(2)];
        let now_ns = self.now_ns;
        self.table = RelationTable::new(relation_options());
        self.input(Input::Resume { now_ns });
        let kept = std::mem::take(&mut self.kept_by_table);
        let needed = self.queue.nameless_files().collect::<BTreeSet<_>>();
        assert!(
            needed
                .iter()
                .all(|node| self.kept_by_queue.contains(node) || self.is_saved(*node))
        );
        self.gone.extend(kept.difference(&self.kept_by_queue));
        self.effects();
        Ok(())
    }

    /// Whether all that the queue reads of a file was put aside.
    fn is_saved(&self, node: NodeId) -> bool {
        self.queue.saves_before_removal(node).is_empty()
    }

    /// The power fails. Groups that were sent may still arrive, or not; everything that was not
    /// durable is lost; the tree itself is not.
    fn crash(&mut self) -> Result<(), String> {
        self.count("crash");
        let arrived = self.below(self.network.len() + 1);
        for id in std::mem::take(&mut self.network).into_iter().take(arrived) {
            self.arrive(id)?;
        }
        self.queue = persist::decode_snapshot(&self.durable.snapshot, self.way.options).unwrap();
        self.queue.ignores_backindex = self.way.ignores_backindex;
        self.known = self.durable.known.clone();
        self.base_snapshot = self.durable.snapshot.clone();
        self.journal.clear();
        self.table = RelationTable::new(relation_options());
        let position = self.queue.position();
        self.moments.retain(|at, _| *at <= position);
        self.orders.clear();
        let now_ns = self.now_ns;
        self.input(Input::Abandon { now_ns });
        // Files kept for the table and the queue are of no use, and deltas may be missing.
        for effect in self.queue.take_effects() {
            assert!(!matches!(effect, Effect::Mark(_)), "nothing was applied by crashing");
        }
        let kept = std::mem::take(&mut self.kept_by_table);
        self.gone.extend(kept);
        let kept = std::mem::take(&mut self.kept_by_queue);
        self.gone.extend(kept);
        self.spool.clear();
        let groups = self.queue.groups().flat_map(|group| self.queue.nodes_of(group));
        let stamps = groups.filter_map(|(_, node)| match &node.change {
            Change::Content(content) => match &content.source {
                ContentSource::Delta { stamp, .. } => Some(*stamp),
                ContentSource::Ranges { .. } => None,
            },
            _ => None,
        });
        let stamps = stamps.collect::<BTreeSet<_>>();
        self.deltas = stamps.into_iter().map(|stamp| (stamp, Default::default())).collect();
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.now_ns += [0, 1, 50, 400][self.below(4)];
        let decisions = self.table.expire(self.now_ns);
        self.decide(decisions);
        match self.below(20) {
            0..=10 => self.operate(),
            11..=14 => self.work(),
            15..=16 => self.deliver()?,
            17..=18 => self.answer_order(),
            _ => match self.below(6) {
                0 => self.restart()?,
                1 if self.way.crashes => self.crash()?,
                2 => self.make_durable(),
                _ => {}
            },
        }
        Ok(())
    }

    /// Sends everything; then the server must have the origin's state.
    fn drain(&mut self) -> Result<(), String> {
        for _ in 0..10_000 {
            if self.queue.is_empty() {
                break;
            }
            self.work();
            self.answer_order();
            if self.chance(0.5) {
                self.deliver()?;
            }
            self.now_ns += 100;
        }
        assert!(self.queue.is_empty(), "the queue does not become empty");
        self.table.expire(u64::MAX);
        let is_there = |node: NodeId| node == ROOT || self.live.links(node) > 0;
        for (directory, time) in self.times.iter().filter(|(node, _)| is_there(**node)) {
            let reported = self.server.times.get(directory);
            if reported != Some(time) {
                return Err(format!(
                    "at the end, the time of {directory} is {reported:?}, not {time}"
                ));
            }
        }
        match self.server.tree.difference(&self.live) {
            None => Ok(()),
            Some(difference) => Err(format!("at the end, {difference}")),
        }
    }

    /// The counts of a whole life.
    fn live(mut self, steps: usize) -> Result<BTreeMap<&'static str, usize>, String> {
        for _ in 0..steps {
            self.step()?;
        }
        self.drain()?;
        self.problem.map_or(Ok(self.counts), Err)
    }
}

fn relation_options() -> RelationOptions {
    RelationOptions {
        timeout_ns: 2000,
        free_bytes_min: 0,
        ..RelationOptions::default()
    }
}

fn options(seed: u64) -> QueueOptions {
    let mut options = QueueOptions {
        delay_ns: [0, 500, 3000][seed as usize % 3],
        delay_max_ns: [0, 4000, 30_000][seed as usize % 3],
        groups_in_flight_max: [1, 4][seed as usize % 2],
        group_nodes_max: [1, 3, 4096][(seed / 3) as usize % 3],
        group_bytes_max: [40, 1 << 20][(seed / 7) as usize % 2],
        delta_bytes_min: 1,
        ..QueueOptions::default()
    };
    if seed % 5 == 4 {
        options.nodes_max = 8;
        options.fold_items_max = [4, 100][seed as usize / 5 % 2];
    }
    if seed % 5 == 3 {
        options.bytes_max = 60;
        options.extents_max = 12;
    }
    options
}

fn way(seed: u64) -> Way {
    Way {
        options: options(seed),
        crashes: seed % 4 < 2,
        ignores_backindex: false,
    }
}

fn write(offset: usize, byte: u8) -> Operation {
    Operation::Write {
        node: NodeId(2),
        offset,
        bytes: vec![byte],
    }
}

/// An origin with one file, which writes 1, 2 and 1 to its first byte.
fn three_writes() -> (Checker, Vec<Tree>) {
    let mut tree = Tree::new(ROOT);
    let node = Moved {
        node: NodeId(2),
        kind: NodeKind::File,
    };
    let at = Place::new(ROOT, b"f");
    let created = NameOperation::Created { at, node };
    tree.perform(&Operation::Name(created)).unwrap();
    let mut checker = Checker::new(tree.clone());
    let mut states = vec![tree.clone()];
    for byte in [1, 2, 1] {
        tree.perform(&write(0, byte)).unwrap();
        checker.performed(write(0, byte));
        states.push(tree.clone());
    }
    (checker, states)
}

#[test]
fn checker_detects_a_foreign_an_older_or_a_future_state() {
    let (mut checker, states) = three_writes();
    checker.delivered(&states[1], 1).unwrap();
    assert!(checker.clone().delivered(&states[1], 2).is_err(), "another");
    checker.delivered(&states[2], 2).unwrap();
    assert!(checker.clone().delivered(&states[1], 1).is_err(), "an older one");
    assert!(
        checker.clone().delivered(&states[3], 4).is_err(),
        "one that is still to come"
    );
    let mut never = states[3].clone();
    never.perform(&write(1, 9)).unwrap();
    assert!(checker.delivered(&never, 3).is_err(), "one that never was");
}

#[test]
fn checker_finds_a_shown_state_in_the_history_only_forwards() {
    let (mut checker, states) = three_writes();
    assert_eq!(checker.visible(&states[0]), Ok(0));
    assert_eq!(checker.visible(&states[2]), Ok(2));
    assert_eq!(checker.visible(&states[1]), Ok(3), "what it was before, it is again");
    assert!(checker.visible(&states[2]).is_err());
    assert_eq!(checker.reached(), 3);
}

#[test]
fn queue_delivers_only_states_of_the_origin_in_random_lives() {
    let mut counts = BTreeMap::<_, usize>::new();
    for seed in crate::tests::seeds() {
        println!("seed {seed}");
        let life = World::new(seed, way(seed)).live(600);
        let life = life.unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));
        for (what, count) in life {
            *counts.entry(what).or_default() += count;
        }
    }
    println!("{counts:?}");
    // A kind that never happened is not tested.
    for kind in [
        "delta",
        "fold of everything",
        "fold of items",
        "mark",
        "refused",
        "resend",
        "save",
    ] {
        assert!(
            crate::tests::seeds().count() < 100 || counts.contains_key(kind),
            "{kind}"
        );
    }
}

/// The canary: without the backindex, states are delivered that never were, and the checker says
/// so.
#[test]
fn a_queue_that_ignores_the_backindex_is_found_out() {
    let found = (0..20).filter(|&seed| {
        let way = Way {
            options: options(seed),
            crashes: false,
            ignores_backindex: true,
        };
        World::new(seed, way).live(600).is_err()
    });
    assert!(found.count() >= 10, "the checker finds nothing");
}
