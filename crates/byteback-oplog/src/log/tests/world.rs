//! One simulated machine: a tree, a log's disk, a process with a log, consumers; and what must hold
//! at all times.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use byteback_extents::ByteRange;
use byteback_host::clock::{Clock, SimClock};
use byteback_host::durable::DurableDir;
use byteback_host::random::{SimRandomness, SplitMix64};
use byteback_host::sim::{CrashPhase, SimDisk};
use parking_lot::Mutex;

use super::holders::Holders;
use super::process::{Life, MortalDir};
use super::tree::{FakeTree, ROOT, Uid};
use crate::changes::tests::all;
use crate::keeper::tests::{MemoryKeeper, as_keeper, keeper};
use crate::{
    Close, ContentChange, Cut, Epoch, Fence, Granularity, Log, LogError, LogOptions, Operation, RemainingLinks, Settler,
};
use byteback_model::{NodeId, NodeKind};

/// The state that a consumer has saved, or would save now.
#[derive(Clone, Debug, Default)]
pub(super) struct Picture {
    pub(super) nodes: BTreeMap<NodeId, (bool, Vec<u8>, u32)>,
    names: BTreeMap<(NodeId, String), NodeId>,
}

#[derive(Debug, Default)]
pub(super) struct Consumer {
    pictures: BTreeMap<Epoch, Picture>,
    /// The possible marks: more than one after an advance whose outcome is unknown.
    marks: BTreeSet<Option<Epoch>>,
    pending: Option<Epoch>,
}

pub(super) struct World {
    pub(super) random: SplitMix64,
    pub(super) tree: FakeTree,
    pub(super) disk: SimDisk,
    pub(super) clock: Arc<SimClock>,
    pub(super) half_sectors: u64,
    pub(super) scan_portion_entries: u64,
    life: Life,
    pub(super) log: Option<Arc<Log>>,
    pub(super) ids: HashMap<Uid, NodeId>,
    /// Files without a name that a program holds open.
    held: Vec<Uid>,
    consumers: BTreeMap<&'static str, Consumer>,
    newest_mark: Epoch,
    /// Whether the tree is changed between the scans of a start.
    pub(super) is_busy_at_starts: bool,
    /// So many errors are the disk's fault.
    tolerated: u32,
    /// Which of the things that a power loss may leave is left; does not change what happens
    /// before.
    survivor: u64,
    /// Where the power is lost once more, during the next starts.
    blows_at_starts: Vec<(u64, CrashPhase)>,
    /// Times that the power was lost.
    pub(super) power_losses: u32,
    /// Times that the power was lost in the first start after a power loss.
    pub(super) losses_in_recovery: u32,
    /// Syncs of the log's disk in the start that took most, of those that succeeded.
    pub(super) start_syncs_max: u64,
    /// Somebody damaged the log's files: marks may be forgotten, never wrong.
    pub(super) may_forget: bool,
    pub(super) holders: Holders,
    options: LogOptions,
    /// The keeper of layers beside the files, if any; then nothing of the tree is lost with the
    /// power.
    keeper: Option<Arc<MemoryKeeper>>,
    history: History,
}

/// The events so far, to find out why a check failed.
#[derive(Clone, Debug, Default)]
pub(super) struct History(Arc<Mutex<Vec<String>>>);

impl History {
    fn push(&self, line: String) {
        self.0.lock().push(line);
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

pub(super) const CONSUMERS: [&str; 3] = ["ann", "bob", "cyd"];
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const FULL_BYTES: u64 = 1 << 30;

/// When the power is lost, and what is left then.
#[derive(Clone, Debug, Default)]
pub(super) struct Doom {
    /// At which sync of the log's disk, from 1, the very first start included.
    pub(super) first: Option<(u64, CrashPhase)>,
    /// At which sync of each start after that.
    pub(super) at_starts: Vec<(u64, CrashPhase)>,
    pub(super) survivor: u64,
}

impl World {
    pub(super) fn new(seed: u64, history: History) -> Self {
        let half_sectors = [2, 4, 2048][SplitMix64::new(seed).below(3) as usize];
        Self::doomed(seed, half_sectors, history, &Doom::default())
    }

    /// A world in which the power is lost as planned.
    pub(super) fn doomed(seed: u64, half_sectors: u64, history: History, doom: &Doom) -> Self {
        let mut random = SplitMix64::new(seed);
        random.next_u64();
        let clock = Arc::new(SimClock::new(super::START_NS));
        let mut world = Self {
            tree: FakeTree::new(random.coin(), super::START_NS - 1_000_000_000),
            disk: SimDisk::new(random.next_u64()),
            random,
            clock,
            half_sectors,
            scan_portion_entries: [1, 3, 20_000][SplitMix64::new(seed ^ 0x5ca7).below(3) as usize],
            life: Life::default(),
            log: None,
            ids: HashMap::new(),
            held: Vec::new(),
            consumers: CONSUMERS
                .iter()
                .map(|name| {
                    (
                        *name,
                        Consumer {
                            marks: [None].into(),
                            ..Consumer::default()
                        },
                    )
                })
                .collect(),
            newest_mark: Epoch(0),
            is_busy_at_starts: false,
            tolerated: 0,
            survivor: doom.survivor,
            blows_at_starts: doom.at_starts.clone(),
            power_losses: 0,
            losses_in_recovery: 0,
            start_syncs_max: 0,
            may_forget: false,
            holders: Holders::default(),
            options: LogOptions::default(),
            keeper: keeper(),
            history,
        };
        // The folder is older than the log; from here on the kernel stamps files with the common
        // clock.
        world.tree.now_ns = super::START_NS;
        world.disk.set_short_reads(false);
        if let Some((nth, phase)) = doom.first {
            world.disk.crash_at_sync(nth, phase);
        }
        world.restart();
        world
    }

    pub(super) fn log(&self) -> Arc<Log> {
        Arc::clone(self.log.as_ref().unwrap())
    }

    pub(super) fn note(&self, what: String) {
        self.history.push(what);
    }

    /// Handles an error: bears it, or loses the power. Panics if nothing explains it.
    pub(super) fn tolerate(&mut self, error: &LogError) {
        self.note(format!("error: {error}"));
        if self.disk.is_cut() {
            self.power_loss();
        } else {
            assert!(self.tolerated > 0, "an error without a cause: {error:?}");
            self.tolerated -= 1;
        }
    }

    pub(super) fn kill(&mut self) {
        self.note("kill".to_owned());
        self.drop_volatile_state();
        self.tell_looks();
        if let Some(keeper) = &self.keeper {
            keeper.flush_waiting();
        }
        self.life.kill();
        self.log = None;
        self.held.clear();
        self.tree.drop_unnamed(&[]);
    }

    /// Lets the keeper of layers see what files look like.
    fn tell_looks(&self) {
        if let Some(keeper) = &self.keeper {
            let files = self.tree.inodes.iter().filter(|(_, inode)| !inode.is_dir);
            keeper.look(
                files
                    .map(|(uid, inode)| (inode.number, Fence::of(&self.tree.stat(*uid))))
                    .collect(),
            );
        }
    }

    pub(super) fn power_loss(&mut self) {
        self.kill();
        self.note("power loss".to_owned());
        self.come_back();
        self.disk.set_capacity(FULL_BYTES);
        self.tolerated = 0;
        self.restart();
    }

    /// Brings tree and disk back as the loss of power left them.
    fn come_back(&mut self) {
        self.power_losses += 1;
        let mut random = SplitMix64::new(self.random.next_u64() ^ SplitMix64::new(self.survivor).next_u64());
        // A volume may have been synced the moment before.
        if self.keeper.is_none() {
            self.tree.crash(&mut random);
        }
        self.disk = self.disk.recover(random.next_u64());
        self.disk.set_short_reads(false);
        if !self.blows_at_starts.is_empty() {
            let (nth, phase) = self.blows_at_starts.remove(0);
            self.disk.crash_at_sync(nth, phase);
        }
    }

    pub(super) fn clean_stop(&mut self) {
        self.note("clean stop".to_owned());
        let log = self.log();
        self.pass(Duration::from_millis(50));
        if let Err(error) = self.checkpoint(Close::All, false) {
            return self.tolerate(&error);
        }
        if let Err(error) = log.end_tracking() {
            return self.tolerate(&error);
        }
        drop(log);
        self.drop_volatile_state();
        self.log = None;
        if self.disk.is_cut() {
            // Closing the log was too much; it had nothing left to say.
            self.power_loss();
        }
    }

    /// Everything reaches the disk. Writes by others while the tree is not tracked are beyond the
    /// log if their times are lost.
    pub(super) fn sync_tree(&mut self) {
        for uid in self.tree.inodes.keys().copied().collect::<Vec<_>>() {
            self.tree.settle(uid);
        }
        self.tree.sync_names();
    }

    pub(super) fn restart(&mut self) {
        self.note("restart".to_owned());
        self.held.clear();
        self.tree.drop_unnamed(&[]);
        for _ in 0..20 {
            let syncs_before = self.disk.counters().syncs;
            match self.try_start() {
                Ok(()) => {
                    let syncs = self.disk.counters().syncs - syncs_before;
                    self.start_syncs_max = self.start_syncs_max.max(syncs);
                    return self.check_all("after a restart");
                }
                Err(error) => {
                    self.life.kill();
                    self.log = None;
                    self.note(format!("start failed: {error}"));
                    if self.disk.is_cut() {
                        // The counters of a disk begin at zero when the power comes back.
                        let is_recovery = self.power_losses > 0 && syncs_before == 0;
                        self.losses_in_recovery += u32::from(is_recovery);
                        self.come_back();
                    } else {
                        assert!(self.tolerated > 0, "a start failed without a cause: {error:?}");
                        self.tolerated -= 1;
                    }
                }
            }
        }
        panic!("no start succeeds");
    }

    /// Starts once, and checks everything if it succeeds.
    pub(super) fn start_once(&mut self) -> Result<(), LogError> {
        self.note("start".to_owned());
        self.held.clear();
        self.tree.drop_unnamed(&[]);
        let started = self.try_start();
        if started.is_ok() {
            self.check_all("after the start");
        } else {
            self.life.kill();
            self.log = None;
        }
        started
    }

    fn try_start(&mut self) -> Result<(), LogError> {
        self.life = Life::default();
        let dir: Arc<dyn DurableDir> = Arc::new(MortalDir {
            disk: self.disk.clone(),
            life: self.life.clone(),
        });
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let options = LogOptions {
            intent_half_sectors: self.half_sectors,
            scan_portion_entries: self.scan_portion_entries,
            ..self.options
        };
        self.tell_looks();
        let log = Log::open_kept(&dir, as_keeper(&self.keeper), clock, &SimRandomness::new(1), options)?;
        let log = self.log.insert(Arc::new(log));
        assert!(log.epoch() > self.newest_mark, "epoch {} came again", log.epoch());
        let log = Arc::clone(log);
        log.scan(&self.tree, &mut |_| {})?;
        if self.is_busy_at_starts && self.random.coin() {
            // Programs go on until the mount is there, which looks once more.
            for _ in 0..self.random.below(4) {
                self.change(None)?;
            }
            self.sync_tree();
            self.tree.drop_unnamed(&[]);
            self.held.clear();
            log.scan(&self.tree, &mut |_| {})?;
        }
        log.begin_tracking()?;
        self.ids.clear();
        for uid in self.tree.names.values().copied().chain([ROOT]) {
            let node = log.node_of(&self.tree.identity(uid))?;
            self.ids
                .insert(uid, node.unwrap_or_else(|| panic!("the scan did not find {uid}")));
        }
        let distinct: BTreeSet<NodeId> = self.ids.values().copied().collect();
        assert_eq!(distinct.len(), self.ids.len(), "two files are one node: {:?}", self.ids);
        Ok(())
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.clock.advance(time);
        self.tree.now_ns = self.clock.now_ns();
    }

    /// Somebody sets the clock of the machine, by hours or by less than anything here takes.
    pub(super) fn set_clock(&mut self) {
        let span_ns = [5_000_000, 50_000_000, 3_600_000_000_000, 100_000_000_000_000][self.random.below(4) as usize];
        let jump_ns = self.random.below(span_ns) as i64;
        let now_ns = self.clock.now_ns() + if self.random.coin() { jump_ns } else { -jump_ns };
        self.note(format!("clock set to {now_ns}"));
        self.clock.set_wall_ns(now_ns);
        self.tree.now_ns = now_ns;
    }

    fn any_of(&mut self, choices: &[Uid]) -> Option<Uid> {
        let count = choices.len() as u64;
        (count > 0).then(|| choices[self.random.below(count) as usize])
    }

    fn any_name(&mut self) -> &'static str {
        NAMES[self.random.below(NAMES.len() as u64) as usize]
    }

    fn dirs(&self) -> Vec<Uid> {
        self.tree
            .inodes
            .iter()
            .filter(|(_, inode)| inode.is_dir)
            .map(|(uid, _)| *uid)
            .collect()
    }

    fn any_place(&mut self) -> (Uid, &'static str) {
        let dirs = self.dirs();
        (self.any_of(&dirs).unwrap(), self.any_name())
    }

    fn any_used_place(&mut self) -> Option<(Uid, String)> {
        let count = self.tree.names.len() as u64;
        let index = self.random.below(count) as usize;
        self.tree.names.keys().nth(index).cloned()
    }

    /// Makes one change of the tree, through the gate if `log` is given.
    pub(super) fn change(&mut self, log: Option<&Log>) -> Result<(), LogError> {
        match self.random.below(12) {
            0 | 1 => {
                let (dir, name) = self.any_place();
                if self.tree.child(dir, name).is_none() {
                    let is_dir = self.random.below(4) == 0 && self.dirs().len() < 5;
                    self.create(log, dir, name, is_dir);
                }
            }
            2..=4 => {
                let files: Vec<Uid> = self
                    .tree
                    .inodes
                    .iter()
                    .filter(|(_, inode)| !inode.is_dir)
                    .map(|(uid, _)| *uid)
                    .collect();
                if let Some(uid) = self.any_of(&files) {
                    let at = self.random.below(100) as usize;
                    let data: Vec<u8> = (0..=self.random.below(20))
                        .map(|_| self.random.next_u64() as u8)
                        .collect();
                    self.write(log, uid, at, &data)?;
                }
            }
            5 => {
                let files: Vec<Uid> = self
                    .tree
                    .inodes
                    .iter()
                    .filter(|(_, inode)| !inode.is_dir)
                    .map(|(uid, _)| *uid)
                    .collect();
                if let Some(uid) = self.any_of(&files) {
                    let len = self.random.below(120) as usize;
                    self.truncate(log, uid, len)?;
                }
            }
            6 => {
                let all: Vec<Uid> = self.tree.inodes.keys().copied().collect();
                let uid = self.any_of(&all).unwrap();
                let mode = self.random.below(0o1000) as u32;
                self.chmod(log, uid, mode);
            }
            7 => {
                if let Some(from) = self.any_used_place() {
                    let uid = self.tree.names[&from];
                    let (dir, name) = self.any_place();
                    if !self.tree.inodes[&uid].is_dir && self.tree.child(dir, name).is_none() {
                        let operation = log.map(Log::begin);
                        self.tree.link(dir, name, uid);
                        if let Some(operation) = operation {
                            operation.linked(self.ids[&dir], OsStr::new(name), self.ids[&uid]);
                        }
                        self.note(format!("link {dir}/{name} -> {uid}"));
                    }
                }
            }
            8 => {
                if let Some((dir, name)) = self.any_used_place() {
                    self.remove(log, dir, &name);
                }
            }
            9 | 10 => {
                if let Some(from) = self.any_used_place() {
                    let to = self.any_place();
                    self.rename(log, (from.0, &from.1), to);
                }
            }
            _ => {
                if let (Some(one), Some(other)) = (self.any_used_place(), self.any_used_place()) {
                    self.exchange(log, (one.0, &one.1), (other.0, &other.1));
                }
            }
        }
        Ok(())
    }

    pub(super) fn create(&mut self, log: Option<&Log>, dir: Uid, name: &str, is_dir: bool) -> Uid {
        let operation = log.map(Log::begin);
        let uid = self.tree.create(dir, name, is_dir);
        if let Some(operation) = operation {
            let kind = if is_dir { NodeKind::Directory } else { NodeKind::File };
            let node = operation.created(self.ids[&dir], OsStr::new(name), &self.tree.identity(uid), kind);
            self.ids.insert(uid, node);
        }
        self.note(format!("create {dir}/{name} = {uid} (dir: {is_dir})"));
        uid
    }

    pub(super) fn write(&mut self, log: Option<&Log>, uid: Uid, at: usize, data: &[u8]) -> Result<(), LogError> {
        self.note(format!("write {uid} at {at}, {} bytes", data.len()));
        let from = at.min(self.tree.inodes[&uid].bytes.len());
        let range = ByteRange::new(from as u64, (at + data.len()) as u64);
        let begun = log.map(|log| self.begin_content(log, uid, range)).transpose()?;
        self.tree.write(uid, at, data);
        if let (Some((operation, node)), Some(range)) = (begun.flatten(), range)
            && !operation.is_logged()
        {
            operation.wrote(node, range);
        }
        Ok(())
    }

    fn begin_content<'a>(
        &self,
        log: &'a Log,
        uid: Uid,
        range: Option<ByteRange>,
    ) -> Result<Option<(Operation<'a>, NodeId)>, LogError> {
        let begun = log.begin_content(&self.tree.identity(uid), range, self.look(uid))?;
        let node = begun.as_ref().map(|(_, node)| *node);
        assert_eq!(node, self.is_named(uid).then_some(self.ids[&uid]), "inode {uid}");
        Ok(begun)
    }

    /// As whom the log knows the inode: as nobody once it lost its last name.
    fn node_of(&self, log: &Log, uid: Uid) -> Result<NodeId, LogError> {
        let node = self.ids[&uid];
        let known = log.node_of(&self.tree.identity(uid))?;
        assert_eq!(known, self.is_named(uid).then_some(node), "inode {uid}");
        Ok(node)
    }

    fn is_named(&self, uid: Uid) -> bool {
        uid == ROOT || self.tree.links(uid) > 0
    }

    fn look(&self, uid: Uid) -> impl FnOnce() -> Option<Fence> {
        let fence = Fence::of(&self.tree.stat(uid));
        move || Some(fence)
    }

    pub(super) fn truncate(&mut self, log: Option<&Log>, uid: Uid, len: usize) -> Result<(), LogError> {
        self.note(format!("truncate {uid} to {len}"));
        let operation = log
            .map(|log| log.begin_write(self.node_of(log, uid)?, self.look(uid)))
            .transpose()?;
        let before = self.tree.inodes[&uid].bytes.len();
        self.tree.truncate(uid, len);
        if let Some(operation) = operation {
            match ByteRange::new(before.min(len) as u64, before.max(len) as u64) {
                Some(range) => operation.wrote(self.ids[&uid], range),
                None => operation.attributes_changed(self.ids[&uid]),
            }
        }
        Ok(())
    }

    pub(super) fn chmod(&mut self, log: Option<&Log>, uid: Uid, mode: u32) {
        self.note(format!("chmod {uid} {mode:o}"));
        let operation = log.map(Log::begin);
        let compared = operation
            .as_ref()
            .map(|operation| operation.compare(self.ids[&uid], self.look(uid)));
        if let Some(Err(error)) = compared {
            drop(operation);
            return self.tolerate(&error);
        }
        self.tree.chmod(uid, mode);
        if let Some(operation) = operation {
            operation.attributes_changed(self.ids[&uid]);
        }
    }

    fn remains(&self, uid: Uid) -> RemainingLinks {
        if self.tree.inodes[&uid].is_dir || self.tree.links(uid) <= 1 {
            RemainingLinks::Gone
        } else {
            RemainingLinks::Linked
        }
    }

    /// After a name was taken away.
    fn maybe_hold(&mut self, uid: Uid) {
        if self.tree.links(uid) == 0 {
            if !self.tree.inodes[&uid].is_dir && self.held.len() < 3 && self.random.coin() {
                self.held.push(uid);
            }
            self.tree.drop_unnamed(&self.held.clone());
        }
    }

    pub(super) fn remove(&mut self, log: Option<&Log>, dir: Uid, name: &str) {
        let uid = self.tree.child(dir, name).unwrap();
        if self.tree.inodes[&uid].is_dir && !self.tree.is_empty_dir(uid) {
            return;
        }
        self.note(format!("unlink {dir}/{name} -> {uid}"));
        let remains = self.remains(uid);
        let operation = log.map(Log::begin);
        self.tree.unlink(dir, name);
        if let Some(operation) = operation {
            operation.unlinked(self.ids[&dir], OsStr::new(name), self.ids[&uid], remains);
        }
        self.maybe_hold(uid);
    }

    pub(super) fn rename(&mut self, log: Option<&Log>, from: (Uid, &str), to: (Uid, &str)) {
        let uid = self.tree.child(from.0, from.1).unwrap();
        let over = self.tree.child(to.0, to.1);
        let is_dir = self.tree.inodes[&uid].is_dir;
        let impossible = over == Some(uid)
            || (is_dir && self.tree.is_below(to.0, uid))
            || over.is_some_and(|over| {
                self.tree.inodes[&over].is_dir != is_dir || (is_dir && !self.tree.is_empty_dir(over))
            });
        if impossible {
            return;
        }
        self.note(format!("rename {from:?} = {uid} to {to:?} over {over:?}"));
        let replaced = over.map(|over| (self.ids.get(&over).copied(), self.remains(over)));
        let operation = log.map(Log::begin);
        self.tree.rename(from, to);
        if let Some(operation) = operation {
            let (from, to) = (
                (self.ids[&from.0], OsStr::new(from.1)),
                (self.ids[&to.0], OsStr::new(to.1)),
            );
            let replaced = replaced.map(|(node, remains)| (node.unwrap(), remains));
            operation.renamed(from, to, self.ids[&uid], replaced);
        }
        if let Some(over) = over {
            self.maybe_hold(over);
        }
    }

    pub(super) fn exchange(&mut self, log: Option<&Log>, one: (Uid, &str), other: (Uid, &str)) {
        let (first, second) = (
            self.tree.child(one.0, one.1).unwrap(),
            self.tree.child(other.0, other.1).unwrap(),
        );
        let into_itself = |uid: Uid, dir: Uid| self.tree.inodes[&uid].is_dir && self.tree.is_below(dir, uid);
        if first == second || into_itself(first, other.0) || into_itself(second, one.0) {
            return;
        }
        self.note(format!("exchange {one:?} = {first} and {other:?} = {second}"));
        let operation = log.map(Log::begin);
        self.tree.exchange(one, other);
        if let Some(operation) = operation {
            let ids = &self.ids;
            operation.exchanged(
                (ids[&one.0], OsStr::new(one.1), ids[&first]),
                (ids[&other.0], OsStr::new(other.1), ids[&second]),
            );
        }
    }

    /// A checkpoint; if `disturbed`, files are changed through the gate while the settler is at
    /// work.
    pub(super) fn checkpoint(&mut self, close: Close, disturbed: bool) -> Result<(), LogError> {
        self.note(format!("checkpoint {close:?}, disturbed: {disturbed}"));
        let log = self.log();
        // A full intent file would wait for the checkpoint, in one and the same thread.
        let disturbed = disturbed && self.half_sectors > 1000;
        let settler = FakeSettler {
            world: RefCell::new(self),
            log: &log,
            disturbed,
        };
        log.checkpoint(&settler, close).map(|_| ())
    }

    pub(super) fn picture(&self) -> Picture {
        let mut picture = Picture::default();
        for ((dir, name), uid) in &self.tree.names {
            picture.names.insert((self.ids[dir], name.clone()), self.ids[uid]);
        }
        for uid in self.tree.names.values().chain([&ROOT]) {
            let inode = &self.tree.inodes[uid];
            picture
                .nodes
                .insert(self.ids[uid], (inode.is_dir, inode.bytes.clone(), inode.mode));
        }
        picture
    }

    pub(super) fn cut(&mut self, name: &'static str) -> Result<(), LogError> {
        self.note(format!("cut for {name}"));
        let log = self.log();
        self.consumers.get_mut(name).unwrap().pending = None;
        let mut ran = false;
        let cut = log.cut(name, || ran = true)?;
        assert!(ran);
        let now = self.picture();
        self.check_cut(&log, name, &cut, &now)?;
        let consumer = self.consumers.get_mut(name).unwrap();
        consumer.pending = Some(cut.epoch());
        consumer.pictures.insert(cut.epoch(), now);
        if consumer.pictures.len() > 12 {
            let kept: BTreeSet<Epoch> = consumer
                .marks
                .iter()
                .flatten()
                .copied()
                .chain(consumer.pending)
                .collect();
            let oldest = consumer
                .pictures
                .keys()
                .find(|epoch| !kept.contains(epoch))
                .copied()
                .unwrap();
            consumer.pictures.remove(&oldest);
        }
        self.newest_mark = self.newest_mark.max(cut.epoch());
        Ok(())
    }

    pub(super) fn advance(&mut self, name: &'static str) -> Result<(), LogError> {
        let log = self.log();
        let consumer = self.consumers.get_mut(name).unwrap();
        let Some(saved) = consumer.pending.take() else {
            return Ok(());
        };
        consumer.marks.insert(Some(saved));
        self.history.push(format!("advance {name} to {saved}"));
        log.advance(name, Some(saved), b"note")?;
        self.consumers.get_mut(name).unwrap().marks = [Some(saved)].into();
        Ok(())
    }

    pub(super) fn abandon(&mut self, name: &'static str) -> Result<(), LogError> {
        self.note(format!("abandon {name}"));
        self.consumers.get_mut(name).unwrap().pending = None;
        self.log().abandon(name, None)
    }

    pub(super) fn reset(&mut self, name: &'static str) -> Result<(), LogError> {
        self.note(format!("reset {name}"));
        self.consumers.get_mut(name).unwrap().marks.insert(None);
        self.log().reset_mark(name)?;
        self.consumers.get_mut(name).unwrap().marks = [None].into();
        Ok(())
    }

    /// The expected state of a dropped consumer: before the drop is certain, and after.
    pub(super) fn forget_consumer(&mut self, name: &str, is_certain: bool) {
        let Some(consumer) = self.consumers.get_mut(name) else {
            return;
        };
        consumer.pending = None;
        consumer.marks.insert(None);
        if is_certain {
            consumer.marks = [None].into();
        }
    }

    /// Extents are few, and in any unit.
    pub(super) fn keep_few_extents(&mut self) {
        self.options.extents_per_file_max = [1, 2, 3, 5000][self.random.below(4) as usize];
        self.options.extents_memory_bytes = [64, 200, 1_000, 16 << 20][self.random.below(4) as usize];
        let all = [Granularity::Byte, Granularity::Page, Granularity::Adaptive];
        self.options.granularity = all[self.random.below(3) as usize];
    }

    pub(super) fn plan_fault(&mut self) {
        let nth = self.disk.counters().ops + 1 + self.random.below(30);
        let errno = if self.random.coin() { 5 } else { 28 };
        self.note(format!("operation {nth} of the disk will fail with {errno}"));
        self.disk.fail_op(nth, errno);
        // redb refuses once more, in the next transaction of whoever comes.
        self.tolerated += 4;
    }

    pub(super) fn fill_disk(&mut self) {
        self.note("disk full".to_owned());
        self.disk.set_capacity(1);
        self.tolerated += 1000;
    }

    pub(super) fn empty_disk(&mut self) {
        self.note("space again".to_owned());
        self.disk.set_capacity(FULL_BYTES);
        self.tolerated = 6;
    }

    pub(super) fn plan_power_loss(&mut self) {
        let nth = self.disk.counters().syncs + 1 + self.random.below(8);
        let phase = [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After][self.random.below(3) as usize];
        self.note(format!("power will be lost {phase:?} sync {nth}"));
        self.disk.crash_at_sync(nth, phase);
    }

    pub(super) fn check_all(&mut self, when: &str) {
        self.note(format!("check {when}"));
        let log = self.log();
        let now = self.picture();
        let cut = match log.look() {
            Ok(cut) => cut,
            Err(error) => return self.tolerate(&error),
        };
        for name in CONSUMERS {
            if let Err(error) = self.check_cut(&log, name, &cut, &now) {
                return self.tolerate(&error);
            }
        }
        if let Err(error) = check_everything(&cut, &now).and_then(|()| self.check_holders(&cut, &now)) {
            self.tolerate(&error);
        }
    }

    fn check_cut(&mut self, log: &Log, name: &'static str, cut: &Cut, now: &Picture) -> Result<(), LogError> {
        let mark = log.consumer(name)?.mark;
        let consumer = self.consumers.get_mut(name).unwrap();
        if self.may_forget && mark.is_none_or(|mark| consumer.pictures.contains_key(&mark)) {
            consumer.marks = [mark].into();
        }
        assert!(
            consumer.marks.contains(&mark),
            "{name} has mark {mark:?}, not one of {:?}",
            consumer.marks
        );
        consumer.marks = [mark].into();
        let pictures = consumer.pictures.clone();
        match mark {
            Some(mark) => {
                assert!(
                    self.may_forget || !cut.changes(Some(mark))?.is_everything(),
                    "the mark {mark} of {name} is forgotten"
                );
                check_since(cut, mark, &pictures[&mark], now)?;
                check_predecessors(cut, mark, &pictures[&mark])?;
            }
            None => check_everything(cut, now)?,
        }
        // Programs that keep a mark of their own, which the log does not know.
        for (since, saved) in pictures {
            check_since(cut, since, &saved, now)?;
        }
        Ok(())
    }
}

/// Every byte that differs is reported.
fn check_bytes(since: Epoch, node: NodeId, old: &[u8], new: &[u8], content: Option<&ContentChange>) {
    for offset in 0..new.len().max(old.len()) {
        if new.get(offset) == old.get(offset) {
            continue;
        }
        let is_covered = match content {
            Some(ContentChange::Whole(_)) => true,
            Some(ContentChange::Ranges(ranges)) => ranges.contains(offset as u64),
            Some(ContentChange::Unchanged) | None => false,
        };
        assert!(
            is_covered,
            "since {since}: byte {offset} of {node} is missing in {content:?}"
        );
    }
}

/// The same for one file, asked for alone.
pub(super) fn check_file_since(
    cut: &Cut,
    since: Epoch,
    node: NodeId,
    saved: &Picture,
    now: &Picture,
) -> Result<(), LogError> {
    let (is_dir, bytes, _) = &now.nodes[&node];
    let change = cut.change_of(node, Some(since))?.expect("it exists");
    match saved.nodes.get(&node) {
        Some((_, old, _)) => check_bytes(since, node, old, bytes, Some(&change.content)),
        None => assert!(
            *is_dir || matches!(change.content, ContentChange::Whole(_)),
            "since {since}: new {node} is reported as {:?}",
            change.content
        ),
    }
    Ok(())
}

/// The coverage invariant.
pub(super) fn check_since(cut: &Cut, since: Epoch, saved: &Picture, now: &Picture) -> Result<(), LogError> {
    let changes = all(&cut.changes(Some(since))?)?;
    if changes.is_everything {
        return check_everything(cut, now);
    }
    let reported: BTreeMap<NodeId, _> = changes.nodes.iter().map(|change| (change.node, change)).collect();
    for change in &changes.nodes {
        assert!(
            now.nodes.contains_key(&change.node),
            "since {since}: {} does not exist",
            change.node
        );
    }
    for (node, (is_dir, bytes, mode)) in &now.nodes {
        let change = reported.get(node);
        check_file_since(cut, since, *node, saved, now)?;
        let Some((_, old_bytes, old_mode)) = saved.nodes.get(node) else {
            let change = change.unwrap_or_else(|| panic!("since {since}: new {node} is missing"));
            let is_whole = matches!(change.content, ContentChange::Whole(_));
            assert!(
                *is_dir || is_whole,
                "since {since}: new {node} is reported as {:?}",
                change.content
            );
            continue;
        };
        assert!(
            change.is_some() || mode == old_mode,
            "since {since}: a changed mode of {node} is missing"
        );
        check_bytes(since, *node, old_bytes, bytes, change.map(|change| &change.content));
    }
    let names: BTreeMap<(NodeId, String), Option<NodeId>> = changes
        .names
        .iter()
        .map(|change| ((change.parent, change.name.to_string()), change.child))
        .collect();
    for (place, child) in &names {
        assert_eq!(
            *child,
            now.names.get(place).copied(),
            "since {since}: the name {place:?}"
        );
    }
    for place in saved.names.keys().chain(now.names.keys()) {
        let (was, is) = (saved.names.get(place), now.names.get(place));
        assert!(
            was == is || names.contains_key(place),
            "since {since}: the changed name {place:?} is missing"
        );
    }
    Ok(())
}

/// Each changed name is reported with the node for which it stood at the mark.
fn check_predecessors(cut: &Cut, mark: Epoch, saved: &Picture) -> Result<(), LogError> {
    let list = cut.changes(Some(mark))?;
    if list.is_everything() {
        return Ok(());
    }
    for change in all(&list)?.names {
        let place = (change.parent, change.name.to_string());
        assert_eq!(
            list.stood_for(change.parent, change.name.as_bytes())?,
            saved.names.get(&place).copied(),
            "since {mark}: the node for which {place:?} stood"
        );
    }
    Ok(())
}

pub(super) fn check_everything(cut: &Cut, now: &Picture) -> Result<(), LogError> {
    let changes = all(&cut.changes(None)?)?;
    assert!(changes.is_everything);
    let nodes: BTreeSet<NodeId> = changes.nodes.iter().map(|change| change.node).collect();
    assert_eq!(nodes, now.nodes.keys().copied().collect(), "all nodes");
    assert!(changes.nodes.iter().all(|change| change.is_new));
    let names: BTreeMap<(NodeId, String), NodeId> = changes
        .names
        .into_iter()
        .map(|change| ((change.parent, change.name.to_string()), change.child.unwrap()))
        .collect();
    assert_eq!(names, now.names, "all names");
    for node in nodes {
        let path = cut.locate(node)?.unwrap_or_else(|| panic!("no way leads to {node}"));
        let mut at = NodeId::ROOT;
        for name in path {
            at = now.names[&(at, name.into_string().unwrap())];
        }
        assert_eq!(at, node);
    }
    Ok(())
}

struct FakeSettler<'a> {
    world: RefCell<&'a mut World>,
    log: &'a Log,
    disturbed: bool,
}

impl FakeSettler<'_> {
    fn disturb(&self, uid: Uid) {
        let world = &mut **self.world.borrow_mut();
        // After a failure an intent waits for a rotation, which would wait for this checkpoint, in
        // one and the same thread.
        let may_fail = world.tolerated > 0 || world.disk.is_cut();
        if !self.disturbed || may_fail || !world.tree.inodes.contains_key(&uid) || world.random.below(3) > 0 {
            return;
        }
        let mode = world.random.below(0o1000) as u32;
        match world.random.below(3) {
            0 => world.chmod(Some(self.log), uid, mode),
            1 if !world.tree.inodes[&uid].is_dir => {
                // The error is the writing program's.
                if world.write(Some(self.log), uid, 3, &[mode as u8; 30]).is_err() {
                    world.note("it failed".to_owned());
                }
            }
            _ => {
                let place = world
                    .tree
                    .names
                    .iter()
                    .find(|(_, child)| **child == uid)
                    .map(|(place, _)| place.clone());
                if let Some((dir, name)) = place {
                    world.remove(Some(self.log), dir, &name);
                }
            }
        }
    }
}

impl Settler for FakeSettler<'_> {
    fn settle(&self, nodes: &[NodeId]) -> Vec<Option<Fence>> {
        let settle_one = |node: &NodeId| {
            let uid = self
                .world
                .borrow()
                .ids
                .iter()
                .find(|(_, id)| *id == node)
                .map(|(uid, _)| *uid)?;
            self.disturb(uid);
            let fence = {
                let world = &mut **self.world.borrow_mut();
                if !world.tree.inodes.contains_key(&uid) || world.random.below(8) == 0 {
                    return None;
                }
                world.tree.settle(uid);
                let stat = world.tree.stat(uid);
                Some(Fence::of(&stat)).filter(|fence| fence.proves_at(world.clock.now_ns()))
            };
            self.disturb(uid);
            fence
        };
        let fences = nodes.iter().map(settle_one).collect();
        let world = &mut **self.world.borrow_mut();
        if world.random.coin() {
            world.tree.sync_names();
        }
        fences
    }
}
