//! Changes of others, made in the tree while programs use it.

mod concurrent;
mod contents;
mod first_looks;
mod steps;

use byteback_model::{Attributes, ByteString, NodeId, NodeKind, Place};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use byteback_control::{Expected, Landed, LandingTree, TreeService, Work};
use byteback_mount::CacheMode;

use crate::fixture::{Fixture, Served};
use crate::live::drain::{Drain, Trouble};

pub(crate) use concurrent::land_at_random;

/// A mounted tree of which everything has been sent, and its sender.
struct Rig {
    fixture: Fixture,
    drain: Drain,
}

impl Rig {
    /// `prepare` makes the initial files.
    fn new(prepare: impl FnOnce(&Path)) -> Self {
        Self::of(Fixture::new(CacheMode::Exact), prepare)
    }

    fn of(mut fixture: Fixture, prepare: impl FnOnce(&Path)) -> Self {
        prepare(&fixture.tree());
        fixture.live = Some(crate::live::options(Duration::ZERO));
        // A landing is no write of a program here, and no alarm.
        fixture.checksums = Some(crate::integrity::watchful());
        fixture.mount();
        let mut drain = Drain::new(fixture.served(), 1, Trouble::default());
        drain.finish();
        Self { fixture, drain }
    }

    fn served(&self) -> Served {
        self.fixture.served()
    }

    fn landing(&self) -> std::sync::Arc<dyn LandingTree> {
        self.served().landing
    }

    fn node(&self, path: &str) -> NodeId {
        node_at(&*self.landing(), path).unwrap_or_else(|| panic!("{path} is not there"))
    }

    fn place(&self, path: &str) -> Place<NodeId> {
        place_at(&*self.landing(), path)
    }

    /// Checks that nothing is to be sent.
    fn assert_silent(&self) {
        let served = self.served();
        assert!(matches!(served.live.poll().unwrap(), Work::Idle(_)));
        let status = served.live.status();
        assert_eq!((status.waiting_nodes, status.groups_in_flight), (0, 0), "{status:?}");
        assert!(!status.is_folded, "{status:?}");
    }

    fn end(mut self) {
        let damaged = self.fixture.client().status().unwrap().damaged;
        assert_eq!(damaged, [], "what landed is an alarm");
        self.drain.leave();
        self.fixture.umount();
    }
}

fn node_at(landing: &dyn LandingTree, path: &str) -> Option<NodeId> {
    let mut node = NodeId::ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        node = landing.child(&name_in(node, name)).unwrap()?;
    }
    Some(node)
}

fn place_at(landing: &dyn LandingTree, path: &str) -> Place<NodeId> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    name_in(node_at(landing, parent).unwrap(), name)
}

fn name_in(parent: NodeId, name: &str) -> Place<NodeId> {
    Place {
        parent,
        name: ByteString::from(Path::new(name).as_os_str().as_bytes().to_vec()),
    }
}

/// Attributes of this kind, as another machine had them.
fn attributes(kind: NodeKind) -> Attributes {
    Attributes {
        kind,
        mode: 0o640,
        uid: 1234,
        gid: 2345,
        size: 0,
        mtime_ns: 1_600_000_000_123_456_789,
        rdev: 0,
        inode_flags: 0,
        target: None,
        xattrs: Vec::new(),
        user: None,
        group: None,
    }
}

/// The result of a step that is expected to be made.
#[track_caller]
fn done<T>(landed: byteback_control::Result<Landed<T>>) -> T {
    match landed.unwrap() {
        Landed::Done(done) => done,
        Landed::Overtaken(why) => panic!("{why}"),
    }
}

#[track_caller]
fn overtaken<T>(landed: byteback_control::Result<Landed<T>>) -> String {
    match landed.unwrap() {
        Landed::Done(_) => panic!("it was done"),
        Landed::Overtaken(why) => why.0,
    }
}

/// Makes a file with a content.
fn land_file(landing: &dyn LandingTree, at: &Place<NodeId>, content: &[u8]) -> NodeId {
    let (node, missed) = done(landing.make(at, &attributes(NodeKind::File), Expected::Unqueued));
    assert_eq!(missed, Vec::new());
    let mut file = done(landing.watch_file(node, Expected::Unqueued));
    let target: &mut dyn byteback_delta::Target = &mut file;
    target.set_len_bytes(content.len() as u64).unwrap();
    target.write_range(0, content).unwrap();
    node
}
