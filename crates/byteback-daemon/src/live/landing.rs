//! The changes of others, made in the mounted tree: [`byteback_control::LandingTree`] over the
//! mount's own entrance.
//!
//! [`byteback_mount::landing`] performs a step and keeps the kernel's view right. This module
//! answers what it asks before ([`Question`]): whether the queue refers to what the step is about,
//! and whether a watch was overtaken. `Order` is held exclusively from there to the end of the
//! step, so no program comes in between. The queue does not hear of what lands. The relation table
//! does: a name that something landed on stands for no save, and a file that was removed by a
//! landing can be the old content of nothing.
//!
//! Watches are in [`watch`], landing in a file is in [`file`], mending damage in [`repair`].
//! **Locks**, after `Order`, in this order: `State`, that of all watches, that of one.

mod attributes;
mod file;
mod repair;
pub(super) mod watch;

use byteback_model::{Attributes, ByteString, NodeId, NodeKind, Place};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use byteback_control::{
    Damage, DirEntry, ErrorKind, Expected, Landed, LandingNode, LandingTree, MissedAttribute, Overtaken, Result,
    ServiceError, UnsentNode, WatchedFile, WatchedNode,
};
use byteback_host::tree::Inode;
use byteback_mount::landing::{Arbiter, LandingError, NewKind};
use byteback_mount::picture::NodeAttributes;
use byteback_queue::queue::Presence;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use self::file::LandedFile;
use self::watch::{NodeWatch, Watched};
use super::{Live, LiveService};
use crate::attributes::attributes_to_api;

/// Entries in one page.
const PAGE_ENTRIES: usize = 10_000;

/// Number of files and directories from which on the file system is synced as a whole.
const SYNC_ALL_FROM: usize = 64;

/// Changes that landed and are not durable yet.
#[derive(Default)]
pub(super) struct Undurable {
    nodes: BTreeSet<NodeId>,
    /// Whether the file system is to be synced as a whole.
    is_everything: bool,
}

impl Undurable {
    fn add(&mut self, node: NodeId) {
        if self.nodes.len() >= SYNC_ALL_FROM {
            self.is_everything = true;
        } else {
            self.nodes.insert(node);
        }
    }
}

/// The nodes and names that a step is about.
#[derive(Default)]
struct Subjects<'a> {
    nodes: Vec<NodeId>,
    places: Vec<&'a Place<NodeId>>,
    /// The node that loses a name; if it is a directory, with all that is in it.
    loses_name: Option<NodeId>,
}

/// Whether a step may be made, answered under `Order`.
struct Question<'a> {
    live: &'a Live,
    expected: Expected<'a>,
    about: Subjects<'a>,
}

impl Live {
    /// Checks that nothing stands in the way of landing.
    fn may_land(&self, expected: Expected<'_>, about: &Subjects<'_>) -> Result<(), String> {
        if let Expected::Folded(watches) = expected
            && let Some(overtaken) = watches.iter().find_map(|watch| watch.overtaken())
        {
            return Err(overtaken.0);
        }
        let allowed = match expected {
            Expected::Unqueued => Presence::Absent,
            Expected::Folded(_) => Presence::Folded,
        };
        let state = self.state.lock();
        let nodes = about.nodes.iter().map(|node| state.queue.presence_of(*node));
        let within = about.loses_name.map(|node| state.queue.presence_within(node));
        if nodes.chain(within).any(|presence| presence > allowed) {
            return Err("a local change of it must be sent first".to_owned());
        }
        let mut places = about.places.iter();
        match places.find(|place| state.queue.presence_of_name(place) > allowed) {
            Some(place) => Err(format!("a local change of the name {place} must be sent first")),
            None => Ok(()),
        }
    }
}

impl Arbiter for Question<'_> {
    fn ask(&self) -> Result<(), String> {
        self.live.may_land(self.expected, &self.about)
    }

    fn mark_landed(&self) {
        let lost = self.about.loses_name;
        // If the log cannot tell, the node counts as gone: that costs a comparison at most.
        let is_gone = |node: &NodeId| self.live.log.places_of(*node).map_or(true, |places| places.is_empty());
        let gone = lost.filter(is_gone);
        let places = self
            .about
            .places
            .iter()
            .map(|place| (*place).clone())
            .collect::<Vec<_>>();
        if places.is_empty() {
            return;
        }
        let mut state = self.live.state.lock();
        let decisions = state.table.landed(&places, gone);
        state.decide(&decisions);
        state.settle();
        let position = state.queue.pass();
        drop(state);
        // The server has these names; the log need not report that they came and went.
        let mut journal = self.live.journal.lock();
        for place in places {
            journal.landed(place, position);
        }
    }
}

fn name_of(place: &Place<NodeId>) -> &OsStr {
    OsStr::from_bytes(place.name.as_bytes())
}

fn logged(place: &Place<NodeId>) -> (NodeId, &OsStr) {
    (place.parent, name_of(place))
}

/// The outcome of a step, for its caller.
fn answered<T>(done: Result<T, LandingError>, what: impl FnOnce() -> String) -> Result<Landed<T>> {
    match done {
        Ok(done) => Ok(Landed::Done(done)),
        Err(LandingError::Overtaken(why)) => Ok(Landed::Overtaken(Overtaken(why))),
        Err(error @ LandingError::Collides) => {
            Err(ServiceError::new(ErrorKind::Impossible, format!("{}: {error}", what())))
        }
        Err(LandingError::Failed(error)) => {
            let kind = match (is_blocked(&error), is_impossible(&error)) {
                (true, _) => ErrorKind::Blocked,
                (false, true) => ErrorKind::Impossible,
                (false, false) => ErrorKind::Node,
            };
            Err(ServiceError::new(kind, format!("{}: {error}", what())))
        }
    }
}

/// Whether the file, or its directory, refuses to be changed.
fn is_blocked(error: &io::Error) -> bool {
    let blocked = [libc::EPERM, libc::EACCES, libc::ETXTBSY, libc::EBUSY];
    let has_number = byteback_host::errno_of(error).is_some_and(|number| blocked.contains(&number));
    // A file system is mounted there.
    has_number || error.kind() == io::ErrorKind::ResourceBusy
}

/// Whether this file system will never have such a name or such a node.
fn is_impossible(error: &io::Error) -> bool {
    let impossible = [
        Errno::NAMETOOLONG,
        Errno::ILSEQ,
        Errno::INVAL,
        Errno::OPNOTSUPP,
        Errno::MLINK,
    ];
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| impossible.contains(&errno))
}

fn node_failed(node: NodeId, error: &io::Error) -> ServiceError {
    ServiceError::new(ErrorKind::Node, format!("cannot read node {node}: {error}"))
}

fn log_failed(error: &byteback_oplog::LogError) -> ServiceError {
    ServiceError::new(ErrorKind::Log, error.to_string())
}

impl LiveService {
    fn note_undurable(&self, nodes: impl IntoIterator<Item = NodeId>) {
        let mut undurable = self.live.undurable.lock();
        nodes.into_iter().for_each(|node| undurable.add(node));
    }

    fn question<'a>(&'a self, expected: Expected<'a>, about: Subjects<'a>) -> Question<'a> {
        Question {
            live: &self.live,
            expected,
            about,
        }
    }

    fn sync_each(&self, nodes: &BTreeSet<NodeId>) -> io::Result<()> {
        for node in nodes {
            // A node that lost its name has nothing to be made durable but that, which is in its
            // directory.
            let Some((fd, stat)) = self.live.files.find(*node)? else {
                continue;
            };
            let flags = match stat.kind {
                NodeKind::File => OFlags::RDONLY | OFlags::NONBLOCK,
                NodeKind::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
                _ => return Err(io::ErrorKind::Unsupported.into()),
            };
            fd.reopen(flags)?.sync(false)?;
        }
        Ok(())
    }
}

impl LandingTree for LiveService {
    fn child(&self, place: &Place<NodeId>) -> Result<Option<NodeId>> {
        let child = self.live.log.child(place.parent, name_of(place));
        child.map_err(|error| log_failed(&error))
    }

    fn is_taken_by_another(&self, place: &Place<NodeId>) -> Result<bool> {
        match self.landing.is_taken_by_another(logged(place)) {
            Ok(is_taken) => Ok(is_taken),
            // Its directory is gone, and with it anything that was in the way.
            Err(LandingError::Overtaken(_)) => Ok(false),
            Err(error) => Err(ServiceError::new(
                ErrorKind::Node,
                format!("cannot tell whether {place} is free: {error}"),
            )),
        }
    }

    fn look(&self, node: NodeId) -> Result<Option<LandingNode>> {
        let failed = |error: io::Error| node_failed(node, &error);
        let Some((fd, stat)) = self.live.files.find(node).map_err(failed)? else {
            return Ok(None);
        };
        let attributes = attributes_to_api(NodeAttributes::read(&fd).map_err(failed)?);
        let places = self.live.log.places_of(node).map_err(|error| log_failed(&error))?;
        let names = places.into_iter().map(|(parent, name)| Place {
            parent,
            name: ByteString::from(name.into_vec()),
        });
        Ok(Some(LandingNode {
            kind: stat.kind,
            attributes,
            names: names.collect(),
        }))
    }

    fn entries(&self, directory: NodeId, after: Option<&ByteString>) -> Result<Vec<DirEntry>> {
        let failed = |error: io::Error| node_failed(directory, &error);
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let found = self.live.files.find(directory).map_err(failed)?;
        let (fd, _) = found.ok_or_else(|| failed(gone()))?;
        let readable = fd.reopen(OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
        let mut names = Vec::<OsString>::new();
        for entry in readable.read_dir(0).map_err(failed)? {
            let name = entry.map_err(failed)?.name;
            if after.is_none_or(|after| name.as_bytes() > after.as_bytes()) {
                names.push(name);
            }
        }
        names.sort_unstable();
        let mut page = Vec::new();
        for name in names {
            if page.len() == PAGE_ENTRIES {
                break;
            }
            // A name that the log does not know came in without passing the mount; the next start
            // finds it.
            let child = self
                .live
                .log
                .child(directory, &name)
                .map_err(|error| log_failed(&error))?;
            if let (Some(node), Ok(stat)) = (child, fd.stat_at(&name)) {
                page.push(DirEntry {
                    name: ByteString::from(name.into_vec()),
                    node,
                    kind: stat.kind,
                });
            }
        }
        Ok(page)
    }

    fn is_node_queued(&self, node: NodeId) -> bool {
        if self.live.is_unsaved(node) {
            return true;
        }
        self.live.state.lock().queue.presence_of(node) != Presence::Absent
    }

    fn is_open_for_writing(&self, node: NodeId) -> Result<bool> {
        let is_open = self.landing.is_open_for_writing(node);
        is_open.map_err(|error| node_failed(node, &error))
    }

    fn unsent_of(&self, node: NodeId) -> UnsentNode {
        // The queue has handed it out, and it was not sent: only the log knows what changed.
        let is_unsaved = self.live.is_unsaved(node);
        let unsent = self.live.state.lock().queue.unsent_of(node);
        UnsentNode {
            content: unsent.content,
            other: unsent.other,
            is_everything: unsent.is_everything || is_unsaved,
            was_left_out: is_unsaved,
        }
    }

    fn is_name_queued(&self, place: &Place<NodeId>) -> bool {
        self.live.state.lock().queue.presence_of_name(place) != Presence::Absent
    }

    fn together(&self) -> Vec<Vec<NodeId>> {
        let state = self.live.state.lock();
        let sets = state.queue.together().iter();
        sets.map(|set| set.iter().copied().collect()).collect()
    }

    fn make(
        &self,
        at: &Place<NodeId>,
        attributes: &Attributes,
        expected: Expected<'_>,
    ) -> Result<Landed<(NodeId, Vec<MissedAttribute>)>> {
        let target = attributes
            .target
            .as_ref()
            .map(|target| OsStr::from_bytes(target.as_bytes()));
        let kind = match attributes.kind {
            NodeKind::File => NewKind::File,
            NodeKind::Directory => NewKind::Directory,
            NodeKind::Symlink => NewKind::Symlink(target.unwrap_or_default()),
            NodeKind::Fifo => NewKind::Special(FileType::Fifo, 0),
            NodeKind::Socket => NewKind::Special(FileType::Socket, 0),
            NodeKind::CharDevice => NewKind::Special(FileType::CharacterDevice, attributes.rdev),
            NodeKind::BlockDevice => NewKind::Special(FileType::BlockDevice, attributes.rdev),
        };
        let about = Subjects {
            places: vec![at],
            ..Subjects::default()
        };
        let mut missed = Vec::new();
        let mut finish = |fd: &Inode| missed = attributes::give(fd, attributes);
        let made = self
            .landing
            .make(logged(at), kind, &mut finish, &self.question(expected, about));
        if let Ok(node) = &made {
            let own = [NodeKind::File, NodeKind::Directory].contains(&attributes.kind);
            self.note_undurable([at.parent].into_iter().chain(own.then_some(*node)));
        }
        answered(made.map(|node| (node, missed)), || format!("cannot create {at}"))
    }

    fn link(&self, node: NodeId, at: &Place<NodeId>, expected: Expected<'_>) -> Result<Landed<()>> {
        let about = Subjects {
            nodes: vec![node],
            places: vec![at],
            loses_name: None,
        };
        let done = self.landing.link(node, logged(at), &self.question(expected, about));
        self.note_undurable([at.parent]);
        answered(done, || format!("cannot link node {node} at {at}"))
    }

    fn rename(
        &self,
        node: NodeId,
        from: &Place<NodeId>,
        to: &Place<NodeId>,
        replaced: Option<NodeId>,
        expected: Expected<'_>,
    ) -> Result<Landed<()>> {
        let about = Subjects {
            nodes: [node].into_iter().chain(replaced).collect(),
            places: vec![from, to],
            loses_name: replaced,
        };
        let ends = ((node, logged(from)), (replaced, logged(to)));
        let done = self.landing.rename(ends.0, ends.1, &self.question(expected, about));
        // A directory that moves names the one that it is in.
        self.note_undurable([from.parent, to.parent, node]);
        answered(done, || format!("cannot move {from} to {to}"))
    }

    fn exchange(
        &self,
        one: (&Place<NodeId>, NodeId),
        other: (&Place<NodeId>, NodeId),
        expected: Expected<'_>,
    ) -> Result<Landed<()>> {
        let about = Subjects {
            nodes: vec![one.1, other.1],
            places: vec![one.0, other.0],
            loses_name: None,
        };
        let ends = ((one.1, logged(one.0)), (other.1, logged(other.0)));
        let done = self.landing.exchange(ends.0, ends.1, &self.question(expected, about));
        self.note_undurable([one.0.parent, other.0.parent, one.1, other.1]);
        answered(done, || format!("cannot exchange {} and {}", one.0, other.0))
    }

    fn check_removable(&self, node: NodeId, at: &Place<NodeId>) -> Result<Landed<()>> {
        let checked = self.landing.check_removable(node, logged(at));
        answered(checked, || format!("cannot move {at} out of the way"))
    }

    fn displace(&self, node: NodeId, from: &Place<NodeId>, to: &Place<NodeId>, leaves_old: bool) -> Result<Landed<()>> {
        let done = self.landing.displace(node, logged(from), logged(to), leaves_old);
        self.note_undurable([from.parent, to.parent, node]);
        answered(done, || format!("cannot move {from} out of the way to {to}"))
    }

    fn remove(&self, at: &Place<NodeId>, node: NodeId, expected: Expected<'_>) -> Result<Landed<()>> {
        let about = Subjects {
            nodes: vec![node],
            places: vec![at],
            loses_name: Some(node),
        };
        let done = self.landing.remove(logged(at), node, &self.question(expected, about));
        self.note_undurable([at.parent]);
        answered(done, || format!("cannot remove {at}"))
    }

    fn set_attributes(
        &self,
        node: NodeId,
        attributes: &Attributes,
        expected: Expected<'_>,
    ) -> Result<Landed<Vec<MissedAttribute>>> {
        let about = Subjects {
            nodes: vec![node],
            ..Subjects::default()
        };
        let mut missed = Vec::new();
        let mut set = |fd: &Inode| {
            let mut attributes = Cow::Borrowed(attributes);
            if let Some(mtime_ns) = self.live.later_time(node, fd, &attributes) {
                attributes.to_mut().mtime_ns = mtime_ns;
            }
            missed = attributes::give(fd, &attributes);
        };
        let done = self
            .landing
            .set_attributes(node, &mut set, &self.question(expected, about));
        self.note_undurable([node]);
        answered(done.map(|()| missed), || {
            format!("cannot set the attributes of node {node}")
        })
    }

    fn watch(&self, node: NodeId) -> Result<Landed<Box<dyn WatchedNode + '_>>> {
        let flushed = self.landing.flush(node);
        let watched = flushed.map(|()| {
            let _order = self.live.order.exclusive();
            let watched = Watched::new(&self.live, NodeWatch::of_node(node));
            Box::new(watched) as Box<dyn WatchedNode + '_>
        });
        answered(watched, || format!("cannot watch node {node}"))
    }

    fn watch_file(&self, node: NodeId, expected: Expected<'_>) -> Result<Landed<Box<dyn WatchedFile + '_>>> {
        let open = || -> Result<Box<dyn WatchedFile + '_>, LandingError> {
            let file = Arc::new(self.landing.open(node)?);
            self.landing.flush_file(&file)?;
            let about = Subjects {
                nodes: vec![node],
                ..Subjects::default()
            };
            let _order = self.live.order.exclusive();
            self.live.may_land(expected, &about).map_err(LandingError::Overtaken)?;
            if self.live.watches.is_landing(node) {
                return Err(io::Error::other("another change is already being written to this file").into());
            }
            self.live.state.lock().spoil_rewriting(node);
            let watched = Watched::new(&self.live, NodeWatch::of_file(node, Arc::clone(&file)));
            Ok(Box::new(LandedFile::new(self.landing.clone(), file, watched)))
        };
        let watched = open();
        self.note_undurable([node]);
        answered(watched, || format!("cannot open node {node}"))
    }

    fn damage_of(&self, node: NodeId) -> Result<Option<Damage>> {
        Ok(self.damage(node))
    }

    fn heal(&self, node: NodeId, offset: u64, good: &[u8]) -> Result<Landed<u64>> {
        self.put_right(node, offset, good)
    }

    fn accept(&self, node: NodeId) -> Result<Landed<u64>> {
        self.accept_damage(node)
    }

    fn keep_numbers(&self, nodes: &[NodeId]) -> Result<()> {
        self.live.log.keep_numbers(nodes).map_err(|error| log_failed(&error))
    }

    fn advance_time(&self, directory: NodeId, mtime_ns: i128) -> Result<()> {
        match self.landing.advance_time(directory, mtime_ns) {
            Ok(()) => {
                self.note_undurable([directory]);
                Ok(())
            }
            // Gone again, or not ours to change: then no program has seen the earlier state, or
            // none can be helped.
            Err(LandingError::Overtaken(_)) => Ok(()),
            Err(LandingError::Failed(error)) if is_blocked(&error) => Ok(()),
            Err(error) => Err(ServiceError::new(
                ErrorKind::Node,
                format!("cannot set the time of node {directory}: {error}"),
            )),
        }
    }

    fn sync(&self) -> Result<()> {
        let undurable = std::mem::take(&mut *self.live.undurable.lock());
        self.live.journal.lock().sync_landed().map_err(|error| {
            let message = format!("cannot record changes of other machines: {error}; free space in the state folder");
            ServiceError::new(ErrorKind::Log, message)
        })?;
        let is_done = !undurable.is_everything && self.sync_each(&undurable.nodes).is_ok();
        if is_done {
            return Ok(());
        }
        self.live.files.sync().map_err(|error| {
            self.live.undurable.lock().is_everything = true;
            let message =
                format!("cannot make changes of other machines durable: {error}; free space, or check the disk");
            ServiceError::new(ErrorKind::Node, message)
        })
    }
}

impl Live {
    /// The later time that a directory keeps although it gets attributes: names in it came or went
    /// here after theirs. The server will be told that time, and takes the later of both, too. The
    /// caller holds `Order` exclusively.
    fn later_time(&self, node: NodeId, fd: &Inode, attributes: &Attributes) -> Option<i128> {
        if attributes.kind != NodeKind::Directory || !self.state.lock().queue.sends_time_of(node) {
            return None;
        }
        let here_ns = fd.stat().ok()?.mtime_ns;
        (here_ns > attributes.mtime_ns).then_some(here_ns)
    }

    /// Reports to the queue that a landing changed the length of a file that programs had changed:
    /// what is to be sent of it refers to the old length. The caller holds `Order` exclusively.
    fn landed_len(&self, node: NodeId, before_bytes: u64, after_bytes: u64) {
        let mut state = self.state.lock();
        if state.queue.is_folded() || !state.queue.has_unsent_content(node) {
            return;
        }
        let reported = byteback_extents::ByteRange::from_start(0).and_then(|all| state.queue.open_content(node, all));
        let event = match reported {
            Some((reported_bytes, _)) => byteback_queue::queue::Event::resized(node, reported_bytes, after_bytes, None),
            None => byteback_queue::queue::Event::resized(node, before_bytes, after_bytes, None),
        };
        let Some(event) = event else { return };
        let now_ns = self.now_ns();
        let position = state.queue.event(&event, now_ns);
        if reported.is_none() {
            state
                .lens_before
                .entry(node)
                .or_default()
                .push((position, before_bytes));
        }
        state.settle();
        self.wake(state);
    }
}
