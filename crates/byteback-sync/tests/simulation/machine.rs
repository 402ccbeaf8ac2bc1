//! A machine with a folder that is kept in sync: real files that programs change through the real
//! gate, with log, queue and all that the engine remembers on a simulated disk, and the real
//! engine.
//!
//! After a power cut the files stay as they are, and of everything else only what was durable: the
//! strictest of what a real machine may do to the order of both.

use super::full_disk::{FullDir, Fullness};
use super::network::SimNetwork;
use super::state::State;
use super::views::{Canary, Ear, SteppedLanding, WaitingTree};
use super::witness::Witness;
use super::world::{News, World};
use byteback_api::FolderName;
use byteback_client::{ClientOptions, ServerClient};
use byteback_control::SyncStatus;
use byteback_daemon::daemon::Rhythm;
use byteback_daemon::embedded::Embedded;
use byteback_daemon::tree::TreeHost;
use byteback_daemon::{LiveOptions, StateFolder, TrackedTree};
use byteback_host::durable::DurableDir;
use byteback_host::random::{SimRandomness, SplitMix64};
use byteback_host::sim::SimDisk;
use byteback_model::Seq;
use byteback_queue::ClientId;
use byteback_queue::queue::QueueOptions;
use byteback_sync::engine::{
    Engine, EngineError, EngineHandle, EngineParts, PauseOptions, Renew, StopSign, Transition, request_start_over,
};
use byteback_sync::standing::{Counterpart, Standing, StandingError};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time within which a running engine is to come to a poll.
const HELD_WITHIN_STEPS: u32 = 30;
const HELD_STEP_NS: u64 = 100_000_000;

/// The server's address: unused, as the network is brought.
pub(crate) const URL: &str = "http://127.0.0.1:9";

/// Whether the disk was full: by an error of the system, or of the tree.
fn is_for_want_of_room(error: &EngineError) -> bool {
    let reported = format!("{error:?}");
    reported.contains("StorageFull") || reported.contains("no storage space")
}

/// Whether the server does not accept the token.
fn is_token_refused(error: &EngineError) -> bool {
    format!("{error:?}").contains("WrongToken")
}

/// Looks into the token file, like the program.
fn renewal(credentials: &Arc<Mutex<(String, u64)>>, shown: String) -> Renew {
    let (credentials, shown) = (Arc::clone(credentials), Mutex::new(shown));
    Arc::new(move || {
        let mut shown = shown.lock().unwrap();
        let now = credentials.lock().unwrap().clone();
        if *shown == now.0 {
            return None;
        }
        shown.clone_from(&now.0);
        Some(now)
    })
}

/// Requests that sync starts over if the directory remembers another device.
fn start_over_as(dir: &Arc<dyn DurableDir>, device: u64) -> Result<(), StandingError> {
    let is_other = |noted: Standing| noted.counterpart.device != device;
    match Standing::read(&**dir)?.is_some_and(is_other) {
        true => request_start_over(&**dir),
        false => Ok(()),
    }
}

struct Running {
    task: u64,
    listener: u64,
    ear: Arc<Ear>,
    handle: EngineHandle,
    ended: Arc<Mutex<Option<std::result::Result<(), EngineError>>>>,
}

/// A machine with a synced folder: see the module.
pub(crate) struct Machine {
    world: Arc<World>,
    number: usize,
    name: &'static str,
    base: PathBuf,
    disk: SimDisk,
    /// Whether the disk has room for what the engine remembers.
    pub(crate) fullness: Fullness,
    /// Whether it has room for the tree's log and journal.
    pub(crate) state_fullness: Fullness,
    pub(crate) network: SimNetwork,
    /// Its token file: the token, and the device that it stands for.
    credentials: Arc<Mutex<(String, u64)>>,
    /// The token that the server accepts from it, as soon as it is in the file.
    issued: (String, u64),
    /// The token by which the store knows the device.
    known: String,
    folder: FolderName,
    random: SplitMix64,
    canary: Canary,
    /// Error of its clock, in nanoseconds.
    wrong_by_ns: Arc<AtomicI64>,
    asleep_until_ns: u64,
    /// Whether any number of changes may wait.
    pub(crate) is_roomy: bool,
    up: Option<Embedded>,
    running: Option<Running>,
    /// Transitions that its engines went through, without the running one.
    transitions: BTreeSet<Transition>,
    /// Directory that others leave alone, if they use the folder, too.
    pub(crate) own: Option<PathBuf>,
    pub(crate) witness: Witness,
    /// State of the folder before the last change by a program.
    before: State,
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
    /// Directory that others leave alone, if they use the folder, too.
    pub(crate) own: Option<PathBuf>,
}

impl Machine {
    pub(crate) fn new(parts: MachineParts) -> Self {
        fs::create_dir_all(parts.base.join("tree")).unwrap();
        let disk = SimDisk::new(parts.seed);
        parts.network.of_disk(&disk);
        let own = parts.own.as_ref().map(|own| own.as_os_str().as_bytes().to_vec());
        Self {
            world: parts.world,
            number: parts.number,
            name: parts.name,
            base: parts.base,
            disk,
            fullness: Fullness::new(parts.seed ^ 0x6675_6c6c),
            state_fullness: Fullness::new(0),
            network: parts.network,
            credentials: Arc::new(Mutex::new((parts.token.clone(), parts.device))),
            issued: (parts.token.clone(), parts.device),
            known: parts.token,
            folder: parts.folder,
            random: SplitMix64::new(parts.seed),
            canary: parts.canary,
            wrong_by_ns: Arc::default(),
            asleep_until_ns: 0,
            is_roomy: false,
            up: None,
            running: None,
            transitions: BTreeSet::new(),
            own: parts.own,
            witness: Witness::new(own),
            before: State::default(),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The files.
    pub(crate) fn tree(&self) -> PathBuf {
        self.base.join("tree")
    }

    fn dir(&self, name: &str, fullness: &Fullness) -> Arc<dyn DurableDir> {
        let inner = self.disk.subdir(name).unwrap();
        self.disk.sync().unwrap();
        let fullness = fullness.clone();
        Arc::new(FullDir { inner, fullness })
    }

    /// The device that it is for the server, as far as it knows.
    fn device(&self) -> u64 {
        self.credentials.lock().unwrap().1
    }

    fn live_options(&mut self) -> LiveOptions {
        let mut options = LiveOptions::new(ClientId(self.device()));
        let random = &mut self.random;
        options.queue.delay_ns = [0, 50_000_000, 3_000_000_000][random.below(3) as usize];
        options.queue.delay_max_ns = options.queue.delay_ns * 4;
        options.queue.delta_bytes_min = 64;
        options.relations.free_bytes_min = 0;
        options.mark_every = Duration::from_millis(500);
        // Now and then more changes wait than allowed.
        if random.below(4) == 0 {
            options.queue.nodes_max = 6;
            options.queue.fold_items_max = [3, 40][random.below(2) as usize];
        }
        if self.is_roomy {
            let usual = QueueOptions::default();
            options.queue.nodes_max = usual.nodes_max;
            options.queue.fold_items_max = usual.fold_items_max;
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
            dir: self.dir("state", &self.state_fullness),
            clock: self.world.wrong_clock(&self.wrong_by_ns),
            randomness: &randomness,
        };
        let tree = TrackedTree::open_simulated(folder, host, &mut |_| {}).unwrap();
        let options = self.live_options();
        self.up = Some(Embedded::start(tree, options).unwrap());
        self.world.note(&format!("{} is up", self.name));
    }

    /// Starts the engine, if it does not run yet.
    pub(crate) fn begin_sync(&mut self) {
        self.start();
        self.bury();
        if self.running.is_some() {
            return;
        }
        let up = self.up.as_ref().unwrap();
        let stop = StopSign::default();
        let asked = stop.clone();
        // The options of `byteback sync`.
        let options = ClientOptions {
            attempts_max: 2,
            transfer_attempts_max: 3,
            idle_timeout: Duration::from_secs(20),
            commit_timeout: Duration::from_secs(60),
            clock: self.world.wrong_clock(&self.wrong_by_ns),
            network: Some(Arc::new(self.network.clone())),
            is_cancelled: Arc::new(move || asked.is_raised()),
            ..ClientOptions::default()
        };
        let ear = Ear::new(&self.world, self.number, self.canary, self.random.next_u64());
        let live = WaitingTree {
            inner: up.live(),
            ear: Arc::clone(&ear),
            in_flight: Mutex::default(),
        };
        let landing = SteppedLanding {
            inner: up.landing(),
            ear: Arc::clone(&ear),
        };
        let (token, device) = self.credentials.lock().unwrap().clone();
        let dir = self.dir("sync", &self.fullness);
        if let Err(error) = start_over_as(&dir, device) {
            return self.world.note(&format!("{} has no room: {error}", self.name));
        }
        let parts = EngineParts {
            live: Arc::new(live),
            tree: up.service(),
            landing: Arc::new(landing),
            is_listening: false,
            server: Arc::new(ServerClient::new(URL, &token, options).unwrap()),
            folder: self.folder.clone(),
            device,
            renew: Some(renewal(&self.credentials, token)),
            dir,
            host: self.name.into(),
            east_of_utc_s: 0,
            path: "/p".into(),
            part_len_bytes: 16 * 1024,
            examined_from_bytes: match self.number % 2 {
                0 => 4 * 1024,
                _ => EngineParts::EXAMINED_FROM_BYTES,
            },
            pauses: PauseOptions::default(),
            randomness: Arc::new(SimRandomness::new(self.random.next_u64())),
            stop,
        };
        let mut engine = match Engine::open(parts) {
            Ok(engine) => engine,
            Err(error) if is_for_want_of_room(&error) => {
                return self.world.note(&format!("{} has no room: {error}", self.name));
            }
            Err(error) => panic!("{}: the engine does not begin: {error}", self.name),
        };
        let handle = engine.handle();
        let listener = engine.listener();
        let ended = Arc::new(Mutex::new(None));
        let reported = Arc::clone(&ended);
        let task = self.world.spawn(self.name, move || {
            let result = engine.run();
            *reported.lock().unwrap() = Some(result);
        });
        let listener = self.world.spawn("listener", move || listener.run());
        self.running = Some(Running {
            task,
            listener,
            ear,
            handle,
            ended,
        });
    }

    /// Takes the disk's room for what the engine remembers, or gives some again.
    pub(crate) fn fill_disk(&self, is_full: bool) {
        self.world.note(&format!("{}: its disk is full: {is_full}", self.name));
        self.fullness.set(is_full);
    }

    /// Removes an engine that could not begin for lack of room.
    fn bury(&mut self) {
        if let Some(running) = self.running.take_if(|running| running.ended.lock().unwrap().is_some()) {
            self.look_why(&running);
            self.world.kill(running.listener);
        }
    }

    /// Transitions that its engines went through.
    pub(crate) fn transitions(&self) -> BTreeSet<Transition> {
        let mut transitions = self.transitions.clone();
        transitions.extend(self.running.iter().flat_map(|running| running.handle.transitions()));
        transitions
    }

    /// Checks that only a full disk or a refused token ended the engine.
    fn look_why(&mut self, running: &Running) {
        self.transitions.extend(running.handle.transitions());
        match running.ended.lock().unwrap().take() {
            Some(Err(error)) if is_for_want_of_room(&error) || is_token_refused(&error) => {
                self.world
                    .note(&format!("{} had no room or no token: {error}", self.name));
            }
            Some(Err(error)) => panic!("{}: the engine gave up: {error:?}", self.name),
            Some(Ok(())) | None => {}
        }
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
        self.world.kill(running.listener);
        self.look_why(&running);
        self.world.note(&format!("{} has ended sync", self.name));
    }

    /// Holds the engine before it next asks the tree what is to be sent. Returns whether it got
    /// there; then [`release`](Self::release) lets it go on.
    pub(crate) fn hold_at_poll(&mut self) -> bool {
        let Some(running) = &self.running else { return false };
        let ear = Arc::clone(&running.ear);
        ear.holds_poll.store(true, Ordering::SeqCst);
        self.world.tell(News::Machine(self.number));
        for _ in 0..HELD_WITHIN_STEPS {
            if ear.is_at_poll.load(Ordering::SeqCst) {
                return true;
            }
            self.world.run_until(self.world.now_ns() + HELD_STEP_NS);
        }
        self.release();
        false
    }

    /// Lets an engine go on that was held before a poll.
    pub(crate) fn release(&self) {
        if let Some(running) = &self.running {
            running.ear.holds_poll.store(false, Ordering::SeqCst);
            self.world.tell(News::Machine(self.number));
        }
    }

    /// Ends the tree in good order below a running engine, which learns of it when it next asks the
    /// tree what is to be sent.
    pub(crate) fn end_tree(&mut self) {
        if self.up.is_none() || !self.hold_at_poll() {
            return;
        }
        if let Some(up) = self.up.take() {
            up.end().unwrap();
            self.world.note(&format!("{} is down, and its engine runs", self.name));
        }
        self.release();
        let Some(running) = self.running.take() else { return };
        while self.world.lives(running.task) {
            self.world.run_until(self.world.now_ns() + HELD_STEP_NS);
        }
        self.world.kill(running.listener);
        self.look_why(&running);
    }

    /// Restarts the engine, and has sync start over.
    pub(crate) fn start_over(&mut self) {
        self.end_sync();
        self.world.note(&format!("{} starts sync over", self.name));
        let _ = request_start_over(&*self.dir("sync", &self.fullness));
        self.begin_sync();
    }

    /// Has the server accept another token in place of the present one. The machine shows it once
    /// it [takes](Self::take_token) it.
    pub(crate) fn renew_token(&mut self) {
        let (known, device) = (self.known.clone(), self.issued.1);
        let digits = known.bytes().map(|_| char::from(b'a' + (self.random.below(26) as u8)));
        let token: String = digits.collect();
        self.world.note(&format!("{} is to show another token", self.name));
        self.network.exchange_tokens(Some((token.clone(), known)));
        self.issued = (token, device);
    }

    /// Makes it another device for the server. The machine knows it once it
    /// [takes](Self::take_token) the token.
    pub(crate) fn join_as(&mut self, token: String, device: u64) {
        self.world.note(&format!("{} joins again as {device}", self.name));
        self.network.exchange_tokens(None);
        self.known.clone_from(&token);
        self.issued = (token, device);
    }

    /// The device that the server takes it for.
    pub(crate) fn issued_device(&self) -> u64 {
        self.issued.1
    }

    /// Whether the server accepts another token than that in its token file.
    pub(crate) fn has_token_to_take(&self) -> bool {
        *self.credentials.lock().unwrap() != self.issued
    }

    /// Writes the token that the server accepts into its token file.
    pub(crate) fn take_token(&mut self) {
        if self.has_token_to_take() {
            self.world.note(&format!("{} has the new token", self.name));
            self.credentials.lock().unwrap().clone_from(&self.issued);
        }
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
            self.world.kill(running.listener);
            self.transitions.extend(running.handle.transitions());
        }
        drop(self.up.take());
        self.disk = self.disk.recover(self.random.next_u64());
        self.network.of_disk(&self.disk);
        self.asleep_until_ns = 0;
        if self.canary == Canary::CursorBeforeSteps {
            self.forget_landing();
        }
    }

    /// Makes the state as if the cursor had been made durable first.
    fn forget_landing(&mut self) {
        let counterpart = Counterpart {
            server: URL.to_owned(),
            folder: self.folder.clone(),
            device: self.device(),
        };
        let dir = self.dir("sync", &self.fullness);
        if let Some(mut standing) = Standing::read_of(&*dir, &counterpart).unwrap()
            && let Some(head) = standing.landing.take()
        {
            standing.cursor = head;
            standing.write(&dir).unwrap();
        }
    }

    /// Cuts the power in the middle of one of the next disk operations.
    pub(crate) fn crash_at(&self, operations: u64) {
        let done = self.disk.counters().ops;
        self.disk.crash_at_op(done + operations);
    }

    /// Sets the error of its clock.
    pub(crate) fn set_clock(&self, wrong_by_ns: i64) {
        self.world
            .note(&format!("{}: its clock is wrong by {wrong_by_ns}", self.name));
        self.wrong_by_ns.store(wrong_by_ns, Ordering::SeqCst);
    }

    /// Lets it sleep until then.
    pub(crate) fn suspend(&mut self, until_ns: u64) {
        self.world.note(&format!("{} sleeps until {until_ns}", self.name));
        self.asleep_until_ns = until_ns;
        if let Some(running) = &self.running {
            self.world.suspend(running.task, until_ns);
            self.world.suspend(running.listener, until_ns);
        }
    }

    /// Whether it sleeps now.
    pub(crate) fn sleeps(&self) -> bool {
        self.world.now_ns() < self.asleep_until_ns
    }

    /// Does a daemon's periodic work.
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

    /// Gives up the order of changes.
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

    /// State of the folder.
    pub(crate) fn state(&self) -> State {
        State::of_directory(&self.tree())
    }

    /// Notes that a program is about to change something.
    pub(crate) fn before(&mut self) {
        let now = self.state();
        self.witness.before(&now);
        self.before = now;
    }

    /// Notes that a program has changed something.
    pub(crate) fn after(&mut self) {
        let now = self.state();
        if self.world.is_reported() {
            for changed in self.before.differences(&now) {
                self.world.note(&format!("{}: {changed}", self.name));
            }
        }
        let running = self.running.as_ref();
        let is_mixed = running.is_some_and(|running| running.ear.mixed.load(Ordering::SeqCst) > 0);
        self.witness.after(&now, is_mixed);
        self.world.tell(News::Machine(self.number));
    }

    /// From now on the engine waits for a power cut before the `nth` step whose name begins with
    /// `step`.
    pub(crate) fn hold_at(&self, step: &str, nth: u64) {
        let running = self.running.as_ref().unwrap();
        *running.ear.hold.lock().unwrap() = Some((step.to_owned(), nth));
    }

    /// Whether the engine waits for that power cut.
    pub(crate) fn is_held(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.ear.is_held.load(Ordering::SeqCst))
    }

    /// Whether the server answered last.
    pub(crate) fn is_connected(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.handle.status().is_connected)
    }

    /// Whether a group was handed out, and not answered.
    pub(crate) fn has_in_flight(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.handle.status().groups_in_flight > 0)
    }

    /// Whether nothing is half done by the engine.
    pub(crate) fn is_idle(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.ear.is_idle.load(Ordering::SeqCst))
    }

    /// Whether all is sent and acknowledged.
    pub(crate) fn is_settled(&self, head: Seq) -> bool {
        let Some(running) = &self.running else { return false };
        let status: SyncStatus = running.handle.status();
        let has_come = self.own.is_none() || status.cursor == head;
        has_come
            && status.is_connected
            && status.waiting_nodes == 0
            && status.groups_in_flight == 0
            && !status.is_folded
    }

    /// Whether nothing is ignored on either side.
    pub(crate) fn has_all(&self) -> bool {
        let status = self.running.as_ref().map(|running| running.handle.status());
        status.is_some_and(|status| {
            status.ignored_names == 0
                && status.ignored_here == 0
                && status.left_out_names == 0
                && status.ignore_files == 0
        })
    }

    pub(crate) fn status(&self) -> String {
        match &self.running {
            Some(running) => format!("{:?} {:?}", running.handle.status(), running.ended.lock().unwrap()),
            None => "does not run".to_owned(),
        }
    }
}
