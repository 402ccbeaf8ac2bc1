//! What happens with a seed, and what must hold then.

use super::machine::{Canary, Machine, MachineParts, URL};
use super::network::{Faults, SimNetwork, SimServer};
use super::programs::Programs;
use super::state::{Reader, State};
use super::world::World;
use byteback_api::FolderName;
use byteback_api::messages::JoinRequest;
use byteback_host::random::SplitMix64;
use byteback_sync::{ClientOptions, ServerClient, join};
use std::path::Path;
use std::sync::Arc;

const SECOND_NS: u64 = 1_000_000_000;

/// All is sent within this time once nothing fails any more; the longest pause is a minute.
const SETTLED_WITHIN_NS: u64 = 3600 * SECOND_NS;

/// How a life goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LifeOptions {
    pub(crate) canary: Canary,
    pub(crate) steps: u64,
}

impl Default for LifeOptions {
    fn default() -> Self {
        Self {
            canary: Canary::None,
            steps: 120,
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lived {
    /// What happened, as a number.
    pub(crate) trace: u64,
    /// Batches at the server.
    pub(crate) batches: u64,
}

/// Where the files of a simulation are: in memory, if that can be had.
fn place() -> tempfile::TempDir {
    match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm").unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

fn faults(random: &mut SplitMix64) -> (Faults, u64) {
    let mut some = || [0, 0, 20, 100, 300][random.below(5) as usize];
    let faults = Faults {
        lost: some(),
        late: some(),
        twice: some(),
        request_cut: some() / 2,
        answer_lost: some(),
        answer_cut: some() / 2,
        refused: some(),
    };
    let latency_ns_max = [0, 2_000_000, 100_000_000, 3 * SECOND_NS][random.below(4) as usize];
    (faults, latency_ns_max)
}

struct Life {
    world: Arc<World>,
    server: Arc<SimServer>,
    /// Reads what the server has, without faults.
    reading: ServerClient,
    folder: FolderName,
    machine: Machine,
    programs: Programs,
    random: SplitMix64,
    _place: tempfile::TempDir,
}

impl Life {
    fn new(seed: u64, options: LifeOptions) -> Self {
        let place = place();
        let world = World::new(seed);
        let server = SimServer::new(&world, &place.path().join("data"));
        let quiet = SimNetwork::new(&world, &server, "reader", 0);
        let client_options = || ClientOptions {
            clock: world.clock(),
            network: Some(Arc::new(quiet.clone())),
            ..ClientOptions::default()
        };
        let join_token = server.store().create_join_token(i64::MAX / 4).unwrap();
        let request = JoinRequest {
            join_token,
            name: "here".to_owned(),
            device_token: None,
        };
        let joined = join(URL, &request, client_options()).unwrap();
        let reading = ServerClient::new(URL, &joined.token, client_options()).unwrap();
        let folder: FolderName = "f".parse().unwrap();
        reading.create_folder(&folder).unwrap();
        let machine = Machine::new(MachineParts {
            world: Arc::clone(&world),
            number: 0,
            name: "here",
            base: place.path().join("here"),
            network: SimNetwork::new(&world, &server, "here", seed ^ 0x6e65_7477),
            token: joined.token,
            device: joined.device_id,
            folder: folder.clone(),
            seed: seed ^ 0x6d61_6368,
            canary: options.canary,
        });
        Self {
            world,
            server,
            reading,
            folder,
            machine,
            programs: Programs::default(),
            random: SplitMix64::new(seed ^ 0x6c69_6665),
            _place: place,
        }
    }

    fn pass(&mut self) {
        let most_ns = [1_000_000, 100_000_000, SECOND_NS, 10 * SECOND_NS, 100 * SECOND_NS];
        let most_ns = most_ns[self.random.below(5) as usize];
        let until_ns = self.world.now_ns() + self.random.below(most_ns);
        self.world.run_until(until_ns);
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..60 => {
                for _ in 0..self.random.below(6) {
                    self.programs.act(&mut self.machine, &mut self.random);
                }
            }
            60..78 => self.pass(),
            78..80 => self.machine.tidy(),
            80..84 => {
                let (faults, latency_ns_max) = faults(&mut self.random);
                self.machine.network.set(faults, latency_ns_max);
            }
            84 => self.machine.network.cut(true),
            85..87 => self.machine.network.cut(false),
            87 => self.server.crash(),
            88..90 => self.server.start(),
            90..93 => self.machine.begin_sync(),
            93 => {
                self.machine.crash();
                self.programs.forget();
                if self.random.coin() {
                    self.machine.begin_sync();
                }
            }
            94 => self.machine.end_sync(),
            95 => {
                self.programs.close(&mut self.machine);
                self.machine.end();
            }
            96 => self.machine.give_up(),
            97 => self.machine.start(),
            _ => {
                self.server.start();
                self.machine.begin_sync();
            }
        }
    }

    /// Nothing fails any more.
    fn settle(&mut self) -> Result<(), String> {
        self.world.note("nothing fails any more");
        self.server.start();
        self.machine.network.cut(false);
        self.machine.network.set(Faults::default(), 1_000_000);
        self.programs.close(&mut self.machine);
        self.machine.begin_sync();
        let until_ns = self.world.now_ns() + SETTLED_WITHIN_NS;
        while !self.machine.is_settled() {
            let now_ns = self.world.now_ns();
            if now_ns >= until_ns {
                return Err(format!("not sent: {}", self.machine.status()));
            }
            self.world.run_until(now_ns + SECOND_NS);
        }
        Ok(())
    }

    /// Ends everything, and answers what happened.
    fn end(&mut self) -> u64 {
        self.programs.close(&mut self.machine);
        self.machine.end();
        self.world.end();
        self.world.trace()
    }

    /// What the server had after each batch is what the folder was, in its order; at the end it is what it is.
    fn check(&mut self) -> Result<u64, String> {
        let head = self.reading.folder(&self.folder).unwrap().seq;
        let mut reader = Reader::new(&self.reading, &self.folder);
        let history = &self.machine.history;
        let mut at = 0;
        for seq in 1..=head {
            let state = reader.at(seq);
            let found = history[at..].iter().position(|then| *then == state);
            let Some(found) = found else {
                let nearest = history[at..].iter().min_by_key(|then| then.differences(&state).len());
                let different = nearest.map(|then| then.differences(&state));
                return Err(format!(
                    "batch {seq} of {head} is no moment of the folder after the one before; nearest: {different:#?}"
                ));
            };
            at += found;
        }
        let now = State::of_directory(&self.machine.tree());
        let state = match head {
            0 => State::default(),
            head => reader.at(head),
        };
        match state.differences(&now) {
            none if none.is_empty() => Ok(head),
            some => Err(format!("at the end, server and folder: {some:#?}")),
        }
    }
}

/// The engine is asked for an end while it meets its server, again and again; then it goes on.
///
/// # Errors
/// Says what does not hold.
pub(crate) fn end_while_meeting(seed: u64) -> Result<u64, String> {
    let mut life = Life::new(seed, LifeOptions::default());
    life.settle()?;
    for _ in 0..3 {
        for _ in 0..5 {
            life.programs.act(&mut life.machine, &mut life.random);
        }
        life.programs.close(&mut life.machine);
        life.world.run_until(life.world.now_ns() + 100 * SECOND_NS);
        life.machine.end_sync();
        for _ in 0..5 {
            life.programs.act(&mut life.machine, &mut life.random);
        }
        life.programs.close(&mut life.machine);
        life.world.run_until(life.world.now_ns() + 100 * SECOND_NS);
        life.machine.network.set(Faults::default(), SECOND_NS);
        life.machine.begin_sync();
        life.world.run_until(life.world.now_ns() + 1_000_000);
        life.machine.end_sync();
        life.settle()?;
    }
    let batches = life.check();
    life.end();
    batches
}

/// Lives once.
///
/// # Errors
/// Says what does not hold.
pub(crate) fn live(seed: u64, options: LifeOptions) -> Result<Lived, String> {
    let mut life = Life::new(seed, options);
    if life.random.coin() {
        life.machine.begin_sync();
    }
    for _ in 0..options.steps {
        life.step();
    }
    let settled = life.settle().and_then(|()| life.check());
    let trace = life.end();
    settled.map(|batches| Lived { trace, batches })
}
