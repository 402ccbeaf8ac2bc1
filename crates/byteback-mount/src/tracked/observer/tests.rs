//! The reports of each operation, their order, and the lock held for each.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use byteback_host::clock::{Clock, RealClock};
use byteback_host::durable::DurableDir;
use byteback_host::random::SimRandomness;
use byteback_host::sim::SimDisk;
use byteback_host::tree::{Inode, SetXattr};
use byteback_oplog::Log;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, RenameFlags};

use super::*;
use crate::credentials::Caller;
use crate::inodes::InodeNumber;
use crate::live::LiveTree;
use crate::tracked::{Account, Origin, Tracked};
use crate::tree::Tree;
use crate::tree::attributes::SetAttributes;
use crate::tree::names::Creation;

#[derive(Default)]
struct Recorder {
    order: Order,
    /// Several threads are at work: who holds the lock shared may see that another one wants it for
    /// itself.
    is_crowded: AtomicBool,
    told: Mutex<Vec<String>>,
}

impl Recorder {
    fn note(&self, is_exclusive: bool, what: String) {
        assert!(self.order.0.is_locked(), "{what}");
        if is_exclusive || !self.is_crowded.load(Ordering::Relaxed) {
            assert_eq!(self.order.0.is_locked_exclusive(), is_exclusive, "{what}");
        }
        self.told.lock().push(what);
    }

    fn told(&self) -> Vec<String> {
        assert!(!self.order.0.is_locked());
        std::mem::take(&mut self.told.lock())
    }
}

fn lost(lost: &LostName) -> String {
    let last = if lost.is_last { " last" } else { "" };
    format!("{}{last} of {}", lost.node.node, lost.len_bytes)
}

fn at(at: &NamedAt<'_>) -> String {
    format!("{}/{}", at.parent, at.name.display())
}

impl Observer for Recorder {
    fn order(&self) -> &Order {
        &self.order
    }

    fn wants_trimmed(&self, _node: NodeId, _range: ByteRange) -> bool {
        true
    }

    fn before_content(&self, node: NodeId, fd: &Inode, ranges: &[ByteRange], len: Option<u64>) {
        let now = fd.stat().unwrap().size;
        let len = len.map(|len| format!(" to {len}")).unwrap_or_default();
        let what = format!("{node} of {now}: {ranges:?}{len}");
        // Of an inode that appears under a name, the lock of names is held.
        let is_exclusive = self.order.0.is_locked_exclusive() && !self.is_crowded.load(Ordering::Relaxed);
        self.note(is_exclusive, what);
    }

    fn after_content(&self, node: NodeId, fd: &Inode) {
        let now = fd.stat().unwrap().size;
        let is_exclusive = self.order.0.is_locked_exclusive() && !self.is_crowded.load(Ordering::Relaxed);
        self.note(is_exclusive, format!("{node} has {now}"));
    }

    fn before_content_of_unknown(&self, _identity: &Identity, _fd: &Inode, ranges: &[ByteRange]) {
        self.told.lock().push(format!("unknown: {ranges:?}"));
    }

    fn times_changed(&self, node: NodeId) {
        self.note(false, format!("{node} times"));
    }

    fn before_attributes(&self, node: NodeId, fd: &Inode) {
        let mode = fd.stat().unwrap().mode & 0o777;
        self.note(true, format!("{node} had {mode:o}"));
    }

    fn after_attributes(&self, node: NodeId) {
        self.note(true, format!("{node} attributes"));
    }

    fn before_removal(&self, removal: &Removal<'_>) {
        let seen = removal.dir.stat_at(removal.name).unwrap();
        assert_eq!(seen.identity(), removal.identity);
        let elsewhere = if removal.has_other_names { " here" } else { "" };
        self.note(true, format!("loses {}{elsewhere}", lost(&removal.lost)));
    }

    fn removal_failed(&self) {
        self.note(true, "failed".to_owned());
    }

    fn names_changed(&self, change: &NamesChanged<'_>) {
        let what = match change {
            NamesChanged::Created { at: place, node } => format!("{} is new {} {:?}", at(place), node.node, node.kind),
            NamesChanged::Linked { at: place, node } => format!("{} is also {}", at(place), node.node),
            NamesChanged::Unlinked { at: place, lost: gone } => format!("{} is gone: {}", at(place), lost(gone)),
            NamesChanged::Renamed {
                from,
                to,
                node,
                replaced,
            } => {
                let over = replaced.as_ref().map(|gone| format!(" over {}", lost(gone)));
                format!("{} to {}: {}{}", at(from), at(to), node.node, over.unwrap_or_default())
            }
            NamesChanged::Exchanged {
                one,
                one_node,
                other,
                other_node,
            } => format!("{} {} with {} {}", at(one), one_node.node, at(other), other_node.node),
        };
        self.note(true, what);
    }

    fn closed(&self, node: NodeId) {
        self.note(true, format!("{node} closed"));
    }

    fn lost_track(&self) {
        self.note(true, "lost track".to_owned());
    }
}

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0 };

const HOW: Creation = Creation {
    caller: CALLER,
    umask: 0,
    mode: 0o644,
};

struct Watching {
    tree: Tree,
    recorder: Arc<Recorder>,
    dir: tempfile::TempDir,
}

impl Watching {
    fn new(prepare: impl FnOnce(&std::path::Path)) -> Self {
        // Not a tmpfs: holes and exchanges are wanted.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        prepare(dir.path());
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let disk: Arc<dyn DurableDir> = Arc::new(SimDisk::new(1));
        let log = Arc::new(Log::open(&disk, Arc::clone(&clock), &SimRandomness::new(1)).unwrap());
        let root = Arc::new(Inode::from(fs::File::open(dir.path()).unwrap()));
        let live = LiveTree::new(root, Arc::clone(&log), clock);
        log.scan(&live, &mut |_| {}).unwrap();
        log.begin_tracking().unwrap();
        let recorder = Arc::new(Recorder::default());
        let tracked = Tracked::with_account(Account {
            integrity: None,
            log,
            pictures: Arc::default(),
            before_images: None,
            undo: None,
            observer: Some(Arc::clone(&recorder) as Arc<dyn Observer>),
        });
        let root = rustix::fs::open(dir.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let tree = Tree::new(root.into(), Arc::new(tracked)).unwrap();
        Self { tree, recorder, dir }
    }

    fn root() -> InodeNumber {
        InodeNumber::ROOT
    }

    fn node(&self, name: &str) -> InodeNumber {
        let found = self.tree.lookup(Self::root(), OsStr::new(name)).unwrap().unwrap();
        found.interned.node
    }

    fn create(&self, name: &str) -> u64 {
        let created = self.tree.create(Self::root(), OsStr::new(name), HOW, OFlags::RDWR);
        created.unwrap().1
    }

    fn open(&self, name: &str, flags: OFlags) -> u64 {
        self.tree.open(self.node(name), CALLER, flags).unwrap().0
    }

    fn write(&self, handle: u64, offset: u64, bytes: &[u8]) {
        let written = self.tree.write(handle, offset, bytes, Origin::Program, false);
        assert_eq!(written.unwrap().len_bytes, bytes.len());
    }

    fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> std::io::Result<()> {
        let root = Self::root();
        self.tree.rename(root, OsStr::new(from), root, OsStr::new(to), flags)
    }

    fn tells(&self, expected: &[&str]) {
        assert_eq!(self.recorder.told(), expected);
    }
}

#[test]
fn contents_are_told_before_they_change_and_trimmed() {
    let watching = Watching::new(|dir| fs::write(dir.join("f"), [b'a'; 100]).unwrap());
    let handle = watching.open("f", OFlags::RDWR);
    watching.tells(&[]);
    watching.write(handle, 40, b"aaaaaaaaaabb");
    watching.tells(&["2 of 100: [50..52]", "2 has 100"]);
    watching.write(handle, 0, b"aaaa");
    watching.tells(&["2 times"]);
    watching.write(handle, 200, b"c");
    watching.tells(&["2 of 100: [200..201]", "2 has 201"]);
    let shorter = SetAttributes {
        len_bytes: Some(60),
        ..SetAttributes::default()
    };
    let node = watching.node("f");
    watching
        .tree
        .set_attributes(node, Some(handle), CALLER, &shorter)
        .unwrap();
    watching.tells(&["2 of 201: [60..201] to 60", "2 has 60"]);
    watching
        .tree
        .allocate(handle, CALLER, FallocateFlags::empty(), 0, 80)
        .unwrap();
    watching.tells(&["2 of 60: [60..80]", "2 has 80"]);
    watching
        .tree
        .allocate(handle, CALLER, FallocateFlags::KEEP_SIZE, 0, 4096)
        .unwrap();
    watching.tells(&["2 times"]);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    watching.tree.allocate(handle, CALLER, hole, 8, 8).unwrap();
    watching.tells(&["2 of 80: [8..16]", "2 has 80"]);
    let other = watching.create("g");
    watching.tells(&["1/g is new 3 File"]);
    watching
        .tree
        .copy_range(CALLER, (handle, 10), (other, 5), 1000)
        .unwrap();
    watching.tells(&["3 of 0: [5..75]", "3 has 75"]);
    watching.tree.release(other);
    watching.tells(&["3 closed"]);
    let emptied = watching.open("f", OFlags::WRONLY);
    let empty = SetAttributes {
        len_bytes: Some(0),
        ..SetAttributes::default()
    };
    watching
        .tree
        .set_attributes(node, Some(emptied), CALLER, &empty)
        .unwrap();
    watching.tells(&["2 of 80: [0..80] to 0", "2 has 0"]);
    watching.tree.release(emptied);
    watching.tells(&[]);
    watching.tree.release(handle);
    watching.tells(&["2 closed"]);
    let reader = watching.open("f", OFlags::RDONLY);
    watching.tree.release(reader);
    watching.tells(&[]);
}

#[test]
fn a_write_that_fails_was_told_and_is_told_to_be_over() {
    let watching = Watching::new(|dir| fs::write(dir.join("f"), b"abc").unwrap());
    let handle = watching.open("f", OFlags::RDWR);
    // Beyond what any file may have.
    let refused = watching
        .tree
        .write(handle, (1 << 63) - 5, b"0123456789", Origin::Program, false);
    assert!(refused.is_err() || refused.is_ok_and(|written| written.len_bytes < 10));
    let told = watching.recorder.told();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[1].starts_with("2 has "), "{told:?}");
}

#[test]
fn names_of_all_forms_are_told_when_they_changed() {
    let watching = Watching::new(|dir| fs::write(dir.join("f"), b"abc").unwrap());
    let (tree, root) = (&watching.tree, Watching::root());
    let name = OsStr::new;
    tree.mkdir(root, name("d"), HOW).unwrap();
    tree.symlink(root, name("s"), CALLER, name("f")).unwrap();
    tree.mknod(root, name("p"), HOW, FileType::Fifo, 0).unwrap();
    tree.link(watching.node("f"), root, name("g")).unwrap();
    watching.tells(&[
        "1/d is new 3 Directory",
        "1/s is new 4 Symlink",
        "1/p is new 5 Fifo",
        "1/g is also 2",
    ]);
    assert!(tree.mkdir(root, name("d"), HOW).is_err());
    watching.tells(&[]);
    tree.unlink(root, name("f")).unwrap();
    watching.tells(&["loses 2 of 3", "1/f is gone: 2 of 3"]);
    let handle = watching.create("h");
    watching.rename("h", "g", RenameFlags::empty()).unwrap();
    watching.tells(&[
        "1/h is new 6 File",
        "loses 2 last of 3",
        "1/h to 1/g: 6 over 2 last of 3",
    ]);
    watching.rename("g", "i", RenameFlags::NOREPLACE).unwrap();
    watching.tells(&["1/g to 1/i: 6"]);
    watching.rename("i", "d", RenameFlags::EXCHANGE).unwrap();
    watching.tells(&["1/i 6 with 1/d 3"]);
    // Now the directory is called i.
    tree.mkdir(watching.node("i"), name("inner"), HOW).unwrap();
    watching.tells(&["3/inner is new 7 Directory"]);
    assert!(tree.rmdir(root, name("i")).is_err());
    watching.tells(&["loses 3 last of 0", "failed"]);
    tree.rmdir(watching.node("i"), name("inner")).unwrap();
    watching.tells(&["loses 7 last of 0", "3/inner is gone: 7 last of 0"]);
    watching.rename("d", "w", RenameFlags::WHITEOUT).unwrap();
    watching.tells(&["1/d to 1/w: 6", "1/d is new 8 CharDevice"]);
    tree.unlink(root, name("w")).unwrap();
    watching.tells(&["loses 6 last of 0", "1/w is gone: 6 last of 0"]);
    // It has no name and no number any more.
    watching.write(handle, 0, b"xyz");
    watching.tells(&["unknown: [0..3]"]);
    tree.release(handle);
    watching.tells(&[]);
}

#[test]
fn two_names_of_one_file_are_no_rename() {
    let watching = Watching::new(|dir| {
        fs::write(dir.join("f"), b"abc").unwrap();
        fs::hard_link(dir.join("f"), dir.join("g")).unwrap();
    });
    watching.rename("f", "g", RenameFlags::empty()).unwrap();
    watching.tells(&[]);
}

#[test]
fn last_name_in_the_tree_is_the_last_despite_one_outside() {
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let watching = Watching::new(|dir| {
        fs::write(dir.join("f"), b"abc").unwrap();
        fs::hard_link(dir.join("f"), outside.path().join("f")).unwrap();
    });
    watching.tree.unlink(Watching::root(), OsStr::new("f")).unwrap();
    watching.tells(&["loses 2 last of 3 here", "1/f is gone: 2 last of 3"]);
}

#[test]
fn attributes_are_told_before_and_after() {
    let watching = Watching::new(|dir| fs::write(dir.join("f"), b"abc").unwrap());
    let private = SetAttributes {
        mode: Some(0o600),
        ..SetAttributes::default()
    };
    let node = watching.node("f");
    watching.tree.set_attributes(node, None, CALLER, &private).unwrap();
    watching.tells(&["2 had 644", "2 attributes"]);
    let how = SetXattr::Any;
    watching
        .tree
        .set_xattr(node, CALLER, OsStr::new("user.a"), b"b", how)
        .unwrap();
    watching.tells(&["2 had 600", "2 attributes"]);
}

#[test]
fn a_file_that_gets_a_name_again_is_told_with_its_content() {
    let watching = Watching::new(|dir| fs::write(dir.join("f"), b"abc").unwrap());
    let node = watching.node("f");
    let handle = watching.open("f", OFlags::RDWR);
    let (tree, root) = (&watching.tree, Watching::root());
    tree.unlink(root, OsStr::new("f")).unwrap();
    watching.recorder.told();
    if tree.link(node, root, OsStr::new("again")).is_ok() {
        watching.tells(&[
            "unknown: [0..3]",
            "1/again is new 3 File",
            "3 of 3: [0..3] to 3",
            "3 has 3",
        ]);
    }
    tree.release(handle);
}

#[test]
fn observer_says_it_lost_track_of_a_file_moved_somewhere_unseen() {
    let watching = Watching::new(|dir| fs::write(dir.join("f"), b"abc").unwrap());
    fs::create_dir(watching.dir.path().join("unseen")).unwrap();
    let unseen = watching.node("unseen");
    let (tree, root) = (&watching.tree, Watching::root());
    let out = tree.rename(root, OsStr::new("f"), unseen, OsStr::new("f"), RenameFlags::empty());
    out.unwrap();
    watching.tells(&["lost track", "1/f is gone: 2 last of 3"]);
}

/// The kernel lets no program write a file while another one removes it, but what lands from
/// elsewhere does not pass the kernel.
#[test]
fn observer_tells_nothing_of_a_file_after_its_last_name_is_gone() {
    let watching = Watching::new(|_| ());
    let (tree, root) = (&watching.tree, Watching::root());
    watching.recorder.is_crowded.store(true, Ordering::Relaxed);
    for round in 0..500_u64 {
        let handle = watching.create("f");
        let inode = watching.node("f");
        let created = watching.recorder.told().concat();
        let node = created.split(' ').nth(3).unwrap().to_owned();
        let begin = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                for number in 0..20 {
                    watching.write(handle, 0, &(number + round * 20).to_le_bytes());
                }
            });
            scope.spawn(|| {
                let mode = |mode| SetAttributes {
                    mode: Some(mode),
                    ..SetAttributes::default()
                };
                for number in 0..20 {
                    // By the handle: the name may be gone.
                    let changed = tree.set_attributes(inode, Some(handle), CALLER, &mode(0o600 + number % 8));
                    changed.unwrap();
                }
            });
            begin.wait();
            (0..round % 50 * 200).for_each(std::hint::black_box(drop));
            tree.unlink(root, OsStr::new("f")).unwrap();
        });
        tree.release(handle);
        let told = watching.recorder.told();
        let gone = told.iter().position(|what| what.starts_with("1/f is gone")).unwrap();
        let late = told[gone + 1..]
            .iter()
            .find(|what| what.starts_with(&format!("{node} ")) && !what.ends_with("closed"));
        assert_eq!(late, None, "round {round}: {told:?}");
    }
}
