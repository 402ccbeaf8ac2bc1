//! The engine's views of its machine: it waits in virtual time, others have their turn between the
//! steps of a landing, and bugs can be let in.

use super::world::{News, World};
use byteback_control::{
    DirEntry, Expected, Landed, LandingNode, LandingTree, LiveContent, LiveGroup, LiveStatus, LiveTree,
    MissedAttribute, Overtaken, Piece, Result, UnsentNode, WatchedFile, WatchedNode, Work,
};
use byteback_delta::{Base, Target};
use byteback_extents::ByteRange;
use byteback_host::random::SplitMix64;
use byteback_model::{Attributes, ByteString, NodeId, Place};
use byteback_queue::GroupId;
use byteback_queue::queue::Resolution;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A bug that is let in, to see that it is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Canary {
    /// None.
    #[default]
    None,
    /// An unanswered group counts as applied.
    UnansweredIsApplied,
    /// The first name of a group is forgotten.
    NameForgotten,
    /// A node in the way of a landing is removed and not kept under another name.
    ConflictWithoutCopy,
    /// Now and then a name that lands is left out.
    StepLeftOut,
    /// The cursor is durable before its changes are in the folder.
    CursorBeforeSteps,
    /// Unsent changes are not looked at.
    UnsentOverlooked,
}

/// State that the views of a machine share.
pub(crate) struct Ear {
    pub(crate) world: Arc<World>,
    pub(crate) machine: usize,
    pub(crate) canary: Canary,
    /// Whether the engine waits for something to do: nothing is half done.
    pub(crate) is_idle: AtomicBool,
    /// Name of a landing's step, and its repetition, before which the engine waits until the power
    /// is cut.
    pub(crate) hold: Mutex<Option<(String, u64)>>,
    /// Whether it waits for that.
    pub(crate) is_held: AtomicBool,
    /// Whether the engine is to wait before it asks the tree what is to be sent.
    pub(crate) holds_poll: AtomicBool,
    /// Whether it waits there.
    pub(crate) is_at_poll: AtomicBool,
    /// Number of files in which something lands.
    pub(crate) mixed: AtomicUsize,
    random: Mutex<SplitMix64>,
}

impl Ear {
    pub(crate) fn new(world: &Arc<World>, machine: usize, canary: Canary, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            world: Arc::clone(world),
            machine,
            canary,
            is_idle: AtomicBool::new(false),
            hold: Mutex::default(),
            is_held: AtomicBool::new(false),
            holds_poll: AtomicBool::new(false),
            is_at_poll: AtomicBool::new(false),
            mixed: AtomicUsize::new(0),
            random: Mutex::new(SplitMix64::new(seed)),
        })
    }

    /// Waits as long as the engine is held before a poll: anything may happen to the tree there.
    fn wait_at_poll(&self) {
        while self.holds_poll.load(Ordering::SeqCst) {
            self.is_at_poll.store(true, Ordering::SeqCst);
            self.world
                .pause(Duration::from_secs(1 << 30), News::Machine(self.machine));
        }
        self.is_at_poll.store(false, Ordering::SeqCst);
    }

    /// Now and then lets others have their turn: programs here, or a power cut.
    fn between_steps(&self) {
        let pause_ns = {
            let mut random = self.random.lock().unwrap();
            (random.below(3) == 0).then(|| 1_000 << random.below(24))
        };
        if let Some(pause_ns) = pause_ns {
            self.world.pause(Duration::from_nanos(pause_ns), News::None);
        }
    }
}

/// View of the tree whose changes are sent.
pub(crate) struct WaitingTree {
    pub(crate) inner: Arc<dyn LiveTree>,
    pub(crate) ear: Arc<Ear>,
    pub(crate) in_flight: Mutex<Option<GroupId>>,
}

impl WaitingTree {
    fn hand_out(&self, group: Arc<LiveGroup>) -> Arc<LiveGroup> {
        *self.in_flight.lock().unwrap() = Some(group.id);
        match self.ear.canary {
            Canary::NameForgotten if group.names.len() > 1 => {
                let mut group = (*group).clone();
                group.names.remove(0);
                Arc::new(group)
            }
            _ => group,
        }
    }
}

impl LiveTree for WaitingTree {
    fn poll(&self) -> Result<Work> {
        self.ear.wait_at_poll();
        Ok(match self.inner.poll()? {
            Work::Send(group) => Work::Send(self.hand_out(group)),
            work => work,
        })
    }

    fn wait(&self, at_most: Duration) {
        self.ear.is_idle.store(true, Ordering::SeqCst);
        self.ear.world.pause(at_most, News::Machine(self.ear.machine));
        self.ear.is_idle.store(false, Ordering::SeqCst);
    }

    fn wake(&self) {
        self.inner.wake();
        self.ear.world.tell(News::Machine(self.ear.machine));
    }

    fn cut_fold(&self, also: &[NodeId]) -> Result<Arc<LiveGroup>> {
        self.inner.cut_fold(also).map(|group| self.hand_out(group))
    }

    fn fold(&self) {
        self.inner.fold();
    }

    fn read(&self, content: &LiveContent, sink: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<()> {
        self.inner.read(content, sink)
    }

    fn read_delta(&self, stamp: u64, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.inner.read_delta(stamp, sink)
    }

    fn applied(&self, group: GroupId) -> Result<()> {
        self.inner.applied(group)
    }

    fn refused(&self, group: GroupId) -> Result<()> {
        self.inner.refused(group)
    }

    fn resolve(&self, group: GroupId, resolution: &Resolution) -> Result<()> {
        self.inner.resolve(group, resolution)
    }

    fn unanswered(&self, retry_after: Duration) {
        let group = *self.in_flight.lock().unwrap();
        match (self.ear.canary, group) {
            (Canary::UnansweredIsApplied, Some(group)) if self.inner.applied(group).is_ok() => {}
            _ => self.inner.unanswered(retry_after),
        }
    }

    fn never_arrived(&self, group: GroupId) -> Result<()> {
        self.inner.never_arrived(group)
    }

    fn unanswered_before(&self) -> Vec<GroupId> {
        self.inner.unanswered_before()
    }

    fn settled(&self, group: GroupId) {
        self.inner.settled(group);
    }

    fn known_up_to(&self, group: GroupId) -> Result<bool> {
        self.inner.known_up_to(group)
    }

    fn give_up(&self, why: &str) {
        self.inner.give_up(why);
    }

    fn unsaved(&self, nodes: &[NodeId]) {
        self.inner.unsaved(nodes);
    }

    fn status(&self) -> LiveStatus {
        self.inner.status()
    }
}

/// View of the tree for a landing.
pub(crate) struct SteppedLanding {
    pub(crate) inner: Arc<dyn LandingTree>,
    pub(crate) ear: Arc<Ear>,
}

impl SteppedLanding {
    fn reported(&self, what: impl FnOnce() -> String) {
        self.ear.between_steps();
        let what = what();
        self.ear
            .world
            .note(&format!("machine {} lands: {what}", self.ear.machine));
        let is_held = {
            let mut hold = self.ear.hold.lock().unwrap();
            let counted = hold.as_mut().filter(|(step, _)| what.starts_with(step.as_str()));
            counted.is_some_and(|(_, count)| {
                *count = count.saturating_sub(1);
                *count == 0
            })
        };
        if is_held {
            self.ear.is_held.store(true, Ordering::SeqCst);
            self.ear.world.pause(Duration::from_secs(1 << 30), News::None);
        }
    }
}

impl LandingTree for SteppedLanding {
    fn child(&self, place: &Place<NodeId>) -> Result<Option<NodeId>> {
        self.inner.child(place)
    }

    fn is_taken_by_another(&self, place: &Place<NodeId>) -> Result<bool> {
        self.inner.is_taken_by_another(place)
    }

    fn look(&self, node: NodeId) -> Result<Option<LandingNode>> {
        self.inner.look(node)
    }

    fn entries(&self, directory: NodeId, after: Option<&ByteString>) -> Result<Vec<DirEntry>> {
        self.inner.entries(directory, after)
    }

    fn is_node_queued(&self, node: NodeId) -> bool {
        self.ear.canary != Canary::UnsentOverlooked && self.inner.is_node_queued(node)
    }

    fn is_open_for_writing(&self, node: NodeId) -> Result<bool> {
        self.inner.is_open_for_writing(node)
    }

    fn unsent_of(&self, node: NodeId) -> UnsentNode {
        match self.ear.canary {
            Canary::UnsentOverlooked => UnsentNode::default(),
            _ => self.inner.unsent_of(node),
        }
    }

    fn is_name_queued(&self, place: &Place<NodeId>) -> bool {
        self.ear.canary != Canary::UnsentOverlooked && self.inner.is_name_queued(place)
    }

    fn together(&self) -> Vec<Vec<NodeId>> {
        self.inner.together()
    }

    fn make(
        &self,
        at: &Place<NodeId>,
        attributes: &Attributes,
        expected: Expected<'_>,
    ) -> Result<Landed<(NodeId, Vec<MissedAttribute>)>> {
        self.reported(|| format!("make {at}"));
        self.inner.make(at, attributes, expected)
    }

    fn link(&self, node: NodeId, at: &Place<NodeId>, expected: Expected<'_>) -> Result<Landed<()>> {
        self.reported(|| format!("link {node} {at}"));
        self.inner.link(node, at, expected)
    }

    fn rename(
        &self,
        node: NodeId,
        from: &Place<NodeId>,
        to: &Place<NodeId>,
        replaced: Option<NodeId>,
        expected: Expected<'_>,
    ) -> Result<Landed<()>> {
        self.reported(|| format!("rename {node} {from} to {to}, which was {replaced:?}"));
        if self.ear.canary == Canary::StepLeftOut && self.ear.random.lock().unwrap().below(4) == 0 {
            return Ok(Landed::Done(()));
        }
        self.inner.rename(node, from, to, replaced, expected)
    }

    fn exchange(
        &self,
        one: (&Place<NodeId>, NodeId),
        other: (&Place<NodeId>, NodeId),
        expected: Expected<'_>,
    ) -> Result<Landed<()>> {
        self.reported(|| format!("exchange {} and {}", one.0, other.0));
        self.inner.exchange(one, other, expected)
    }

    fn check_removable(&self, node: NodeId, at: &Place<NodeId>) -> Result<Landed<()>> {
        self.inner.check_removable(node, at)
    }

    fn displace(&self, node: NodeId, from: &Place<NodeId>, to: &Place<NodeId>, leaves_old: bool) -> Result<Landed<()>> {
        self.reported(|| format!("displace {node} {from} to {to}"));
        match self.ear.canary {
            Canary::ConflictWithoutCopy => self.inner.remove(from, node, Expected::Folded(&[])),
            _ => self.inner.displace(node, from, to, leaves_old),
        }
    }

    fn remove(&self, at: &Place<NodeId>, node: NodeId, expected: Expected<'_>) -> Result<Landed<()>> {
        self.reported(|| format!("remove {node} {at}"));
        self.inner.remove(at, node, expected)
    }

    fn set_attributes(
        &self,
        node: NodeId,
        attributes: &Attributes,
        expected: Expected<'_>,
    ) -> Result<Landed<Vec<MissedAttribute>>> {
        self.reported(|| format!("attributes of {node}"));
        self.inner.set_attributes(node, attributes, expected)
    }

    fn advance_time(&self, directory: NodeId, mtime_ns: i128) -> Result<()> {
        self.reported(|| format!("time of {directory}"));
        self.inner.advance_time(directory, mtime_ns)
    }

    fn watch(&self, node: NodeId) -> Result<Landed<Box<dyn WatchedNode + '_>>> {
        self.inner.watch(node)
    }

    fn watch_file(&self, node: NodeId, expected: Expected<'_>) -> Result<Landed<Box<dyn WatchedFile + '_>>> {
        self.reported(|| format!("content of {node}"));
        let stepped = |file| -> Box<dyn WatchedFile + '_> {
            let ear = Arc::clone(&self.ear);
            ear.mixed.fetch_add(1, Ordering::SeqCst);
            Box::new(SteppedFile { inner: file, ear })
        };
        Ok(match self.inner.watch_file(node, expected)? {
            Landed::Done(file) => Landed::Done(stepped(file)),
            Landed::Overtaken(why) => Landed::Overtaken(why),
        })
    }

    fn keep_numbers(&self, nodes: &[NodeId]) -> Result<()> {
        self.reported(|| "keep numbers".to_owned());
        self.inner.keep_numbers(nodes)
    }

    fn sync(&self) -> Result<()> {
        self.reported(|| "sync".to_owned());
        self.inner.sync()
    }
}

/// A file into which a content lands: others have their turn between its pieces, too.
struct SteppedFile<'a> {
    inner: Box<dyn WatchedFile + 'a>,
    ear: Arc<Ear>,
}

impl Drop for SteppedFile<'_> {
    fn drop(&mut self) {
        self.ear.mixed.fetch_sub(1, Ordering::SeqCst);
    }
}

impl WatchedNode for SteppedFile<'_> {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    fn overtaken(&self) -> Option<Overtaken> {
        self.inner.overtaken()
    }
}

impl WatchedFile for SteppedFile<'_> {
    fn was_changed(&self) -> bool {
        self.inner.was_changed()
    }
}

impl Base for SteppedFile<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Base::len_bytes(&self.inner)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        Base::read_range(&self.inner, offset, buffer)
    }

    fn next_data(&self, range: ByteRange) -> io::Result<Option<ByteRange>> {
        Base::next_data(&self.inner, range)
    }
}

impl Target for SteppedFile<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Target::len_bytes(&self.inner)
    }

    fn write_range(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.ear.between_steps();
        self.inner.write_range(offset, bytes)
    }

    fn punch_hole(&mut self, range: ByteRange) -> io::Result<()> {
        self.ear.between_steps();
        self.inner.punch_hole(range)
    }

    fn set_len_bytes(&mut self, len_bytes: u64) -> io::Result<()> {
        self.ear.between_steps();
        self.inner.set_len_bytes(len_bytes)
    }
}
