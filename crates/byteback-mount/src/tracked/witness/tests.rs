//! Two further witnesses, one before and one behind all others, hear of each change what the log
//! keeps of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;

use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::clock::{Clock, RealClock};
use byteback_host::durable::DurableDir;
use byteback_host::random::{SimRandomness, SplitMix64};
use byteback_host::sim::SimDisk;
use byteback_host::tree::{Identity, Inode, SetXattr};
use byteback_model::NodeId;
use byteback_oplog::{ContentChange, Cut, Log};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, RenameFlags};

use super::*;
use crate::credentials::Caller;
use crate::inodes::InodeNumber;
use crate::live::LiveTree;
use crate::tracked::landing::Arbiter;
use crate::tracked::observer::{NamedAt, NamesChanged, Observer, Order, Removal};
use crate::tracked::passage::Gate;
use crate::tracked::{Place, Tracked};
use crate::tree::Tree;
use crate::tree::attributes::SetAttributes;
use crate::tree::names::Creation;

const OPERATIONS: u64 = 3000;
const NAMES: u64 = 6;
const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
const HOW: Creation = Creation {
    caller: CALLER,
    umask: 0,
    mode: 0o755,
};

/// All that was heard, in order: by whom, before or after, and what.
#[derive(Default)]
struct Heard {
    order: Order,
    steps: Mutex<Vec<(&'static str, &'static str, String)>>,
}

impl Heard {
    fn note(&self, who: &'static str, when: &'static str, what: impl std::fmt::Debug) {
        self.steps.lock().push((who, when, format!("{what:?}")));
    }
}

/// A further witness. It draws up its own account.
struct Recorder {
    who: &'static str,
    heard: Arc<Heard>,
    account: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    names: BTreeMap<(NodeId, OsString), NodeId>,
    written: BTreeMap<NodeId, ExtentSet>,
    kinds: BTreeSet<&'static str>,
}

impl Recorded {
    fn set(&mut self, at: NamedAt<'_>, node: Option<NodeId>) {
        let key = (at.parent, at.name.to_owned());
        match node {
            Some(node) => self.names.insert(key, node),
            None => self.names.remove(&key),
        };
    }

    fn named(&mut self, names: &NamesChanged<'_>) -> &'static str {
        match *names {
            NamesChanged::Created { at, node } => {
                self.set(at, Some(node.node));
                "created"
            }
            NamesChanged::Linked { at, node } => {
                self.set(at, Some(node.node));
                "linked"
            }
            NamesChanged::Unlinked { at, .. } => {
                self.set(at, None);
                "unlinked"
            }
            NamesChanged::Renamed { from, to, node, .. } => {
                self.set(from, None);
                self.set(to, Some(node.node));
                "renamed"
            }
            NamesChanged::Exchanged {
                one,
                one_node,
                other,
                other_node,
            } => {
                self.set(one, Some(other_node.node));
                self.set(other, Some(one_node.node));
                "exchanged"
            }
        }
    }
}

impl Witness for Recorder {
    fn before(&self, change: &Change<'_>) {
        let mut account = self.account.lock();
        let kind = match change {
            Change::Content(content) => {
                let written = account.written.entry(content.node).or_default();
                for range in &*content.ranges {
                    written.insert(*range);
                }
                "content"
            }
            Change::ContentOfUnknown { .. } => "unknown",
            Change::Attributes { .. } => "attributes",
            Change::Names(_) => "names",
        };
        assert!(kind == "unknown" || self.heard.order.is_held(), "{change:?}");
        account.kinds.insert(kind);
        self.heard.note(self.who, "before", change);
    }

    fn after(&self, change: &Change<'_>, outcome: &Outcome<'_>) {
        let mut account = self.account.lock();
        let kind = match outcome {
            Outcome::Failed => "failed",
            Outcome::Done => "done",
            Outcome::CrossedBorder => "crossed",
            Outcome::Appeared(_) => "appeared",
            Outcome::Named(names) => account.named(names),
        };
        account.kinds.insert(kind);
        self.heard.note(self.who, "after", (change, outcome));
    }
}

impl Observer for Heard {
    fn order(&self) -> &Order {
        &self.order
    }

    fn wants_trimmed(&self, _node: NodeId, _range: ByteRange) -> bool {
        true
    }

    fn before_content(&self, node: NodeId, _fd: &Inode, _ranges: &[ByteRange], _len: Option<u64>) {
        self.note("observer", "before", node);
    }

    fn after_content(&self, node: NodeId, _fd: &Inode) {
        self.note("observer", "after", node);
    }

    fn before_content_of_unknown(&self, _identity: &Identity, _fd: &Inode, ranges: &[ByteRange]) {
        self.note("observer", "before", ranges);
    }

    fn times_changed(&self, node: NodeId) {
        self.note("observer", "before", node);
    }

    fn before_attributes(&self, node: NodeId, _fd: &Inode) {
        self.note("observer", "before", node);
    }

    fn after_attributes(&self, node: NodeId) {
        self.note("observer", "after", node);
    }

    fn before_removal(&self, removal: &Removal<'_>) {
        self.note("observer", "before", removal);
    }

    fn removal_failed(&self) {
        self.note("observer", "after", "failed");
    }

    fn names_changed(&self, change: &NamesChanged<'_>) {
        self.note("observer", "after", change);
    }

    fn closed(&self, _node: NodeId) {}

    fn lost_track(&self) {
        self.note("observer", "after", "lost track");
    }
}

struct Machine {
    tree: Tree,
    tracked: Arc<Tracked>,
    log: Arc<Log>,
    heard: Arc<Heard>,
    recorders: [Arc<Recorder>; 2],
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::write(dir.path().join("0"), [7; 3000]).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let disk: Arc<dyn DurableDir> = Arc::new(SimDisk::new(1));
        let log = Arc::new(Log::open(&disk, Arc::clone(&clock), &SimRandomness::new(1)).unwrap());
        let root = Arc::new(Inode::from(fs::File::open(dir.path()).unwrap()));
        log.scan(&LiveTree::new(root, Arc::clone(&log), clock), &mut |_| {})
            .unwrap();
        log.begin_tracking().unwrap();
        let heard = Arc::<Heard>::default();
        let recorders = ["first", "last"].map(|who| {
            Arc::new(Recorder {
                who,
                heard: Arc::clone(&heard),
                account: Mutex::default(),
            })
        });
        let account = Account {
            integrity: None,
            log: Arc::clone(&log),
            pictures: Arc::default(),
            before_images: None,
            undo: None,
            observer: Some(Arc::clone(&heard) as Arc<dyn Observer>),
        };
        let [first, last] = recorders.clone();
        let tracked = Arc::new(Tracked::with_gate(Gate::with_witnesses(account, first, last)));
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let root = rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap();
        let tree = Tree::new(root.into(), Arc::clone(&tracked)).unwrap();
        Self {
            tree,
            tracked,
            log,
            heard,
            recorders,
            dir,
        }
    }

    /// A name in the root, or in the directory that is called as another name says.
    fn place(&self, random: &mut SplitMix64) -> (InodeNumber, OsString) {
        let name = |random: &mut SplitMix64| OsString::from(random.below(NAMES).to_string());
        let parent = match random.below(3) {
            0 => self.tree.lookup(InodeNumber::ROOT, &name(random)).ok().flatten(),
            _ => None,
        };
        let parent = parent.map_or(InodeNumber::ROOT, |found| found.interned.node);
        (parent, name(random))
    }

    fn node(&self, (parent, name): &(InodeNumber, OsString)) -> Option<InodeNumber> {
        let found = self.tree.lookup(*parent, name).ok().flatten();
        found.map(|found| found.interned.node)
    }

    /// Does something; whether it fails does not matter.
    fn step(&self, random: &mut SplitMix64, open: &mut Vec<u64>) {
        let (tree, at) = (&self.tree, self.place(random));
        let other = self.place(random);
        let node = self.node(&at);
        let handle = open.get(random.below(4) as usize).copied();
        let (offset, byte) = (random.below(5000), random.below(3) as u8);
        match random.below(14) {
            0 | 1 => {
                if let Ok((_, handle, _)) = tree.create(at.0, &at.1, HOW, OFlags::RDWR) {
                    open.push(handle);
                }
            }
            2 => {
                if let Some(Ok((handle, _))) = node.map(|node| tree.open(node, CALLER, OFlags::RDWR)) {
                    open.push(handle);
                }
            }
            3 | 4 => {
                let bytes = vec![byte; 1 + random.below(300) as usize];
                if let Some(handle) = handle {
                    tree.write(handle, offset, &bytes, Origin::Program, false).unwrap();
                }
            }
            5 if open.len() > 6 => tree.release(open.remove(0)),
            5 | 6 => {
                let new = SetAttributes {
                    mode: Some(0o700 + u32::from(byte)),
                    len_bytes: handle.and(Some(offset)),
                    ..SetAttributes::default()
                };
                let found = handle.and_then(|handle| Some(tree.open_file(handle).ok()?.node()));
                let _ = found
                    .or(node)
                    .map(|node| tree.set_attributes(node, handle, CALLER, &new));
            }
            7 => {
                let set = |node| tree.set_xattr(node, CALLER, OsStr::new("user.a"), &[byte], SetXattr::Any);
                let _ = node.map(set);
            }
            8 => {
                let _ = node.map(|node| tree.link(node, other.0, &other.1));
            }
            9 => {
                let _ = tree.unlink(at.0, &at.1);
            }
            10 => {
                let _ = tree.mkdir(at.0, &at.1, HOW);
            }
            11 => {
                let _ = tree.rmdir(at.0, &at.1);
            }
            _ => {
                let flags = [
                    RenameFlags::empty(),
                    RenameFlags::EXCHANGE,
                    RenameFlags::NOREPLACE,
                    RenameFlags::WHITEOUT,
                ];
                let flags = flags[random.below(4) as usize];
                let _ = tree.rename(at.0, &at.1, other.0, &other.1, flags);
            }
        }
    }

    /// The log's names, and its ranges of the file that was there from the beginning.
    fn logged(cut: &Cut, parent: NodeId, names: &mut BTreeMap<(NodeId, OsString), NodeId>) {
        for (name, node) in cut.entries(parent).unwrap() {
            names.insert((parent, name), node);
            Self::logged(cut, node, names);
        }
    }
}

/// Each step is heard by the first, then by the observer, then by the last.
fn check_order(steps: &[(&str, &str, String)]) {
    let mut pending: Option<(&str, &String)> = None;
    for (who, when, what) in steps {
        match (*who, pending) {
            ("first", None) => pending = Some((when, what)),
            ("last", Some(begun)) => {
                assert_eq!(begun, (*when, what));
                pending = None;
            }
            // The content of an inode that appears is told to the observer alone.
            ("observer", Some((begun, about))) => assert!(begun == *when || about.contains("Appeared"), "{what}"),
            (who, pending) => panic!("{who} hears {what} within {pending:?}"),
        }
    }
    assert_eq!(pending, None);
}

#[test]
fn witnesses_hear_in_order_what_the_log_keeps() {
    let machine = Machine::new();
    let mark = machine.log.cut("test", || ()).unwrap();
    machine.log.advance("test", Some(mark.epoch()), b"").unwrap();
    let file = mark.child(NodeId::ROOT, OsStr::new("0")).unwrap().unwrap();
    let [first, last] = &machine.recorders;
    for recorder in [first, last] {
        let known = NamedAt {
            parent: NodeId::ROOT,
            name: OsStr::new("0"),
        };
        recorder.account.lock().set(known, Some(file));
    }
    let random = &mut SplitMix64::new(7);
    let mut open = Vec::new();
    for _ in 0..OPERATIONS {
        machine.step(random, &mut open);
        check_order(&std::mem::take(&mut *machine.heard.steps.lock()));
    }
    let cut = machine.log.cut("test", || ()).unwrap();
    let mut names = BTreeMap::new();
    Machine::logged(&cut, NodeId::ROOT, &mut names);
    let (first, last) = (first.account.lock(), last.account.lock());
    assert_eq!(first.names, names);
    assert_eq!(last.names, names);
    assert_eq!(first.written, last.written);
    for (node, written) in &first.written {
        if let Some(change) = cut.change_of(*node, Some(mark.epoch())).unwrap()
            && let ContentChange::Ranges(ranges) = &change.content
            && !change.is_new
        {
            assert_eq!(ranges, written, "{node}");
        }
    }
    let heard: Vec<_> = first.kinds.iter().copied().collect();
    let all = [
        "attributes",
        "content",
        "created",
        "done",
        "exchanged",
        "failed",
        "linked",
        "names",
        "renamed",
        "unknown",
        "unlinked",
    ];
    assert_eq!(heard, all);
    drop(machine.dir);
}

struct Yes;

impl Arbiter for Yes {
    fn ask(&self) -> Result<(), String> {
        Ok(())
    }

    fn mark_landed(&self) {}
}

#[test]
fn landing_is_heard_by_all_witnesses_but_the_observer() {
    let machine = Machine::new();
    let dir = Inode::from(fs::File::open(machine.dir.path()).unwrap());
    let place = Place {
        parent: InodeNumber::ROOT,
        dir: &dir,
        identity: dir.stat().unwrap().identity(),
        name: OsStr::new("new"),
    };
    let make = || {
        fs::write(machine.dir.path().join("new"), b"abc")?;
        dir.stat_at(place.name)
    };
    let (made, node) = machine.tracked.land_new(place, &Yes, make).unwrap();
    let fd = dir.open_path_at(place.name).unwrap();
    let landed = machine.tracked.land_attributes(&made.identity(), &fd, &Yes, || ());
    landed.unwrap();
    let steps = std::mem::take(&mut *machine.heard.steps.lock());
    check_order(&steps);
    let heard: Vec<_> = steps.iter().map(|(who, when, _)| (*who, *when)).collect();
    let each = [
        ("first", "before"),
        ("last", "before"),
        ("first", "after"),
        ("last", "after"),
    ];
    assert_eq!(heard, [each, each].concat());
    assert!(steps[2].2.contains("Created"), "{}", steps[2].2);
    let places = machine.log.places_of(node).unwrap();
    assert_eq!(places, [(NodeId::ROOT, OsString::from("new"))]);
}
