//! A machine with a folder that is kept in sync: real files that programs change through the real gate, with log, queue and all that the engine
//! remembers on a simulated disk, and the real engine.
//!
//! When the power is cut, the files stay as they are, and of everything else what was durable: the strictest of what a real machine may do to the order of both.

use super::network::SimNetwork;
use super::state::State;
use super::world::{News, World};
use byteback_api::FolderName;
use byteback_control::{LiveContent, LiveGroup, LiveStatus, LiveTree, Piece, Work};
use byteback_daemon::daemon::Rhythm;
use byteback_daemon::embedded::Embedded;
use byteback_daemon::tree::TreeHost;
use byteback_daemon::{LiveOptions, StateFolder, TrackedTree};
use byteback_host::durable::DurableDir;
use byteback_host::random::{SimRandomness, SplitMix64};
use byteback_host::sim::SimDisk;
use byteback_oplog::NodeId;
use byteback_queue::queue::Resolution;
use byteback_queue::{ClientId, GroupId};
use byteback_sync::live::engine::{Engine, EngineError, EngineHandle, EngineParts, PauseOptions, StopSign};
use byteback_sync::{ClientOptions, ServerClient};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The server's address: of nobody, as the network is brought.
pub(crate) const URL: &str = "http://127.0.0.1:9";

/// A bug that is let in, to see that it is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Canary {
    /// None.
    #[default]
    None,
    /// What was not answered counts as applied.
    UnansweredIsApplied,
    /// The first name of a group is forgotten.
    NameForgotten,
}

/// The queue as the engine sees it: it waits in virtual time.
struct WaitingTree {
    inner: Arc<dyn LiveTree>,
    world: Arc<World>,
    machine: usize,
    canary: Canary,
    in_flight: Mutex<Option<GroupId>>,
}

type Result<T> = byteback_control::Result<T>;

impl WaitingTree {
    fn hand_out(&self, group: Arc<LiveGroup>) -> Arc<LiveGroup> {
        *self.in_flight.lock().unwrap() = Some(group.id);
        match self.canary {
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
        Ok(match self.inner.poll()? {
            Work::Send(group) => Work::Send(self.hand_out(group)),
            work => work,
        })
    }

    fn wait(&self, at_most: Duration) {
        self.world.pause(at_most, News::Machine(self.machine));
    }

    fn wake(&self) {
        self.inner.wake();
        self.world.tell(News::Machine(self.machine));
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
        match (self.canary, group) {
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

    fn give_up(&self, why: &str) {
        self.inner.give_up(why);
    }

    fn status(&self) -> LiveStatus {
        self.inner.status()
    }
}

struct Running {
    task: u64,
    handle: EngineHandle,
    ended: Arc<Mutex<Option<std::result::Result<(), EngineError>>>>,
}

/// See the module.
pub(crate) struct Machine {
    world: Arc<World>,
    number: usize,
    name: &'static str,
    base: PathBuf,
    disk: SimDisk,
    pub(crate) network: SimNetwork,
    token: String,
    device: u64,
    folder: FolderName,
    random: SplitMix64,
    canary: Canary,
    up: Option<Embedded>,
    running: Option<Running>,
    /// What the tree was, after each change by a program.
    pub(crate) history: Vec<State>,
}

pub(crate) struct MachineParts {
    pub(crate) world: Arc<World>,
    pub(crate) number: usize,
    pub(crate) name: &'static str,
    pub(crate) base: PathBuf,
    pub(crate) network: SimNetwork,
    pub(crate) token: String,
    pub(crate) device: u64,
    pub(crate) folder: FolderName,
    pub(crate) seed: u64,
    pub(crate) canary: Canary,
}

impl Machine {
    pub(crate) fn new(parts: MachineParts) -> Self {
        fs::create_dir_all(parts.base.join("tree")).unwrap();
        let mut machine = Self {
            world: parts.world,
            number: parts.number,
            name: parts.name,
            base: parts.base,
            disk: SimDisk::new(parts.seed),
            network: parts.network,
            token: parts.token,
            device: parts.device,
            folder: parts.folder,
            random: SplitMix64::new(parts.seed),
            canary: parts.canary,
            up: None,
            running: None,
            history: Vec::new(),
        };
        machine.changed();
        machine
    }

    /// The files.
    pub(crate) fn tree(&self) -> PathBuf {
        self.base.join("tree")
    }

    fn dir(&self, name: &str) -> Arc<dyn DurableDir> {
        let dir = self.disk.subdir(name).unwrap();
        self.disk.sync().unwrap();
        dir
    }

    fn live_options(&mut self) -> LiveOptions {
        let random = &mut self.random;
        let mut options = LiveOptions::new(ClientId(self.device));
        options.queue.delay_ns = [0, 50_000_000, 3_000_000_000][random.below(3) as usize];
        options.queue.delay_max_ns = options.queue.delay_ns * 4;
        options.queue.delta_bytes_min = 64;
        options.relations.free_bytes_min = 0;
        options.mark_every = Duration::from_millis(500);
        // Now and then more waits than is allowed.
        if random.below(4) == 0 {
            options.queue.nodes_max = 6;
            options.queue.fold_items_max = [3, 40][random.below(2) as usize];
        }
        options
    }

    /// Lets programs use the folder, if they do not yet.
    pub(crate) fn start(&mut self) {
        if self.up.is_some() {
            return;
        }
        let folder = StateFolder::of(&self.tree(), &self.base.join("state")).unwrap();
        let randomness = SimRandomness::new(self.random.next_u64());
        let host = TreeHost {
            dir: self.dir("state"),
            clock: self.world.clock(),
            randomness: &randomness,
        };
        let tree = TrackedTree::open_simulated(folder, host, &mut |_| {}).unwrap();
        let options = self.live_options();
        self.up = Some(Embedded::start(tree, options).unwrap());
        self.world.note(&format!("{} is up", self.name));
    }

    /// Lets the engine run, if it does not yet.
    pub(crate) fn begin_sync(&mut self) {
        self.start();
        if self.running.is_some() {
            return;
        }
        let up = self.up.as_ref().unwrap();
        let stop = StopSign::default();
        let asked = stop.clone();
        // As `byteback sync` has them.
        let options = ClientOptions {
            attempts_max: 2,
            transfer_attempts_max: 3,
            idle_timeout: Duration::from_secs(20),
            commit_timeout: Duration::from_secs(60),
            clock: self.world.clock(),
            network: Some(Arc::new(self.network.clone())),
            is_cancelled: Arc::new(move || asked.is_raised()),
            ..ClientOptions::default()
        };
        let live = WaitingTree {
            inner: up.live(),
            world: Arc::clone(&self.world),
            machine: self.number,
            canary: self.canary,
            in_flight: Mutex::default(),
        };
        let parts = EngineParts {
            live: Arc::new(live),
            tree: up.service(),
            landing: up.landing(),
            is_listening: false,
            server: Arc::new(ServerClient::new(URL, &self.token, options).unwrap()),
            folder: self.folder.clone(),
            device: self.device,
            dir: self.dir("sync"),
            host: self.name.into(),
            east_of_utc_s: 0,
            path: "/p".into(),
            part_len_bytes: 16 * 1024,
            pauses: PauseOptions::default(),
            randomness: Arc::new(SimRandomness::new(self.random.next_u64())),
            stop,
        };
        let mut engine = Engine::open(parts).unwrap();
        let handle = engine.handle();
        let ended = Arc::new(Mutex::new(None));
        let told = Arc::clone(&ended);
        let task = self.world.spawn(self.name, move || {
            let result = engine.run();
            *told.lock().unwrap() = Some(result);
        });
        self.running = Some(Running { task, handle, ended });
    }

    /// Ends the engine in good order.
    pub(crate) fn end_sync(&mut self) {
        let Some(running) = self.running.take() else { return };
        running.handle.stop();
        // It may be in the middle of an exchange, and wait for it.
        let mut now_ns = self.world.now_ns();
        while self.world.lives(running.task) {
            now_ns += 1_000_000_000;
            self.world.run_until(now_ns);
        }
        if let Some(Err(error)) = running.ended.lock().unwrap().take() {
            panic!("{}: the engine gave up: {error}", self.name);
        }
        self.world.note(&format!("{} has ended sync", self.name));
    }

    /// Ends everything in good order.
    pub(crate) fn end(&mut self) {
        self.end_sync();
        if let Some(up) = self.up.take() {
            up.end().unwrap();
            self.world.note(&format!("{} is down", self.name));
        }
    }

    /// Cuts the power.
    pub(crate) fn crash(&mut self) {
        self.world.note(&format!("{} crashes", self.name));
        self.disk.cut_power();
        if let Some(running) = self.running.take() {
            self.world.kill(running.task);
        }
        drop(self.up.take());
        self.disk = self.disk.recover(self.random.next_u64());
    }

    /// What a daemon does once in a while.
    pub(crate) fn tidy(&mut self) {
        if let Some(up) = &self.up {
            let rhythm = Rhythm {
                close_after: Duration::from_secs(self.random.below(30)),
                ..Rhythm::default()
            };
            up.tidy(rhythm);
            self.world.tell(News::Machine(self.number));
        }
    }

    /// The order of changes is lost.
    pub(crate) fn give_up(&self) {
        if let Some(up) = &self.up {
            up.live().give_up("the simulation says so");
            self.world.tell(News::Machine(self.number));
        }
    }

    /// The gate, if programs can use the folder.
    pub(crate) fn up(&self) -> Option<&Embedded> {
        self.up.as_ref()
    }

    /// A program has changed something.
    pub(crate) fn changed(&mut self) {
        let now = State::of_directory(&self.tree());
        if self.history.last() != Some(&now) {
            self.history.push(now);
        }
        self.world.tell(News::Machine(self.number));
    }

    /// All is sent, and the server said so.
    pub(crate) fn is_settled(&self) -> bool {
        let Some(running) = &self.running else { return false };
        let status = running.handle.status();
        status.is_connected && status.waiting_nodes == 0 && status.groups_in_flight == 0 && !status.is_folded
    }

    pub(crate) fn status(&self) -> String {
        match &self.running {
            Some(running) => format!("{:?} {:?}", running.handle.status(), running.ended.lock().unwrap()),
            None => "does not run".to_owned(),
        }
    }
}
