//! The events of a life with a seed, and what must hold then.
//!
//! Once nothing fails any more, all machines have sent and received everything within an hour, and
//! then:
//! - all machines hold the same, with modes and times of files, and so does the server's head;
//! - nothing that a program made is lost ([`Witness`](super::witness::Witness));
//! - files that only one machine uses (with one machine: all) appear at the server after each
//!   batch, and on others whenever nothing is half done there, as they were at one moment after the
//!   one that appeared before: nothing appears out of order, in part or twice. Sync on the machine
//!   itself never changes them.
//!
//! Not proven: which of two conflicting files keeps the name; the order of changes to files that
//! several machines use, beyond that nothing of them is lost.

pub(crate) mod directed;
mod named;

use super::machine::{Machine, MachineParts, URL};
use super::network::{Faults, SimNetwork, SimServer};
use super::programs::Programs;
use super::state::{Reader, State};
use super::views::Canary;
use super::witness::Follower;
use super::world::World;
use byteback_api::FolderName;
use byteback_api::messages::{JoinRequest, JoinResponse};
use byteback_client::{ClientOptions, ServerClient, join};
use byteback_host::random::SplitMix64;
use byteback_store::Store;
use byteback_sync::engine::Transition;
use std::collections::BTreeSet;
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
    /// Machines, at most 5.
    pub(crate) machines: usize,
    /// Whether the disk of what an engine remembers is full now and then.
    pub(crate) fills_disks: bool,
    /// Whether machines join again as other devices, or sync starts over on them.
    pub(crate) joins_again: bool,
    /// Whether programs change what is ignored.
    pub(crate) changes_rules: bool,
}

impl Default for LifeOptions {
    fn default() -> Self {
        Self {
            canary: Canary::None,
            steps: 120,
            machines: 1,
            fills_disks: true,
            joins_again: false,
            changes_rules: false,
        }
    }
}

/// Result of a life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lived {
    /// Hash of all events.
    pub(crate) trace: u64,
    /// Number of batches at the server.
    pub(crate) batches: u64,
    /// Transitions that the engines went through.
    pub(crate) transitions: BTreeSet<Transition>,
}

/// Directory for the files of a simulation: in memory, if possible.
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

const NAMES: [&str; 5] = ["one", "two", "three", "four", "five"];

fn client_options(world: &Arc<World>, network: &SimNetwork) -> ClientOptions {
    ClientOptions {
        clock: world.clock(),
        network: Some(Arc::new(network.clone())),
        ..ClientOptions::default()
    }
}

/// A new device of the server.
fn joined(world: &Arc<World>, store: &Store, network: &SimNetwork, name: &str) -> JoinResponse {
    let request = JoinRequest {
        join_token: store.create_join_token(i64::MAX / 4).unwrap(),
        name: name.to_owned(),
        device_token: None,
    };
    join(URL, &request, client_options(world, network)).unwrap()
}

struct Life {
    world: Arc<World>,
    server: Arc<SimServer>,
    /// Network without faults.
    quiet: SimNetwork,
    /// Reads the server's folder, without faults.
    reading: ServerClient,
    folder: FolderName,
    machines: Vec<Machine>,
    programs: Vec<Programs>,
    /// Each machine's observers of the others.
    seen: Vec<Vec<Follower>>,
    random: SplitMix64,
    options: LifeOptions,
    _place: tempfile::TempDir,
}

impl Life {
    fn new(seed: u64, options: LifeOptions) -> Self {
        let place = place();
        let world = World::new(seed);
        let server = SimServer::new(&world, &place.path().join("data"));
        let quiet = SimNetwork::new(&world, &server, "reader", 0);
        let folder: FolderName = "f".parse().unwrap();
        let mut machines = Vec::new();
        for (number, name) in NAMES.into_iter().enumerate().take(options.machines) {
            let joined = joined(&world, &server.store(), &quiet, name);
            let mix = seed ^ ((number as u64) << 48);
            machines.push(Machine::new(MachineParts {
                world: Arc::clone(&world),
                number,
                name,
                base: place.path().join(name),
                network: SimNetwork::new(&world, &server, name, mix ^ 0x6e65_7477),
                token: joined.token,
                device: joined.device_id,
                folder: folder.clone(),
                seed: mix ^ 0x6d61_6368,
                canary: options.canary,
                own: (options.machines > 1).then(|| format!("m{number}").into()),
            }));
        }
        let reader = joined(&world, &server.store(), &quiet, "reader");
        let reading = ServerClient::new(URL, &reader.token, client_options(&world, &quiet)).unwrap();
        reading.create_folder(&folder).unwrap();
        let several = options.machines;
        for machine in &mut machines {
            machine.witness.keeps_own = !options.joins_again && !options.changes_rules;
        }
        Self {
            world,
            server,
            quiet,
            reading,
            folder,
            machines,
            programs: (0..several).map(|_| Programs::new(options.changes_rules)).collect(),
            seen: vec![vec![Follower::default(); several]; several],
            random: SplitMix64::new(seed ^ 0x6c69_6665),
            options,
            _place: place,
        }
    }

    fn run_until(&mut self, until_ns: u64) {
        self.world.run_until(until_ns);
        self.look_around();
    }

    /// Checks on each machine the files that only another one uses.
    fn look_around(&mut self) {
        for at in 0..self.machines.len() {
            if self.machines.len() == 1 || !self.machines[at].is_idle() {
                continue;
            }
            let state = self.machines[at].state();
            for of in (0..self.machines.len()).filter(|of| *of != at) {
                let witness = &self.machines[of].witness;
                if let Err(wrong) = self.seen[at][of].look(witness, &state) {
                    let witness = &mut self.machines[at].witness;
                    witness
                        .wrong
                        .get_or_insert(format!("of {} it shows {wrong}", NAMES[of]));
                }
            }
        }
    }

    fn pass(&mut self) {
        let most_ns = [1_000_000, 100_000_000, SECOND_NS, 10 * SECOND_NS, 100 * SECOND_NS];
        let most_ns = most_ns[self.random.below(5) as usize];
        let until_ns = self.world.now_ns() + self.random.below(most_ns);
        self.run_until(until_ns);
    }

    /// Does something, and cuts the power in the middle, if it lasts that long.
    fn crash_within(&mut self, at: usize) {
        let many = 4 << self.random.below(7);
        let operations = 1 + self.random.below(many);
        self.machines[at].crash_at(operations);
        for _ in 0..self.random.below(5) {
            self.programs[at].act(&mut self.machines[at], &mut self.random);
        }
        let until_ns = self.world.now_ns() + (1_000_000 << self.random.below(14));
        self.world.run_until(until_ns);
        self.machines[at].crash();
        self.programs[at].forget();
        self.look_around();
    }

    fn step(&mut self) {
        let at = self.random.below(self.machines.len() as u64) as usize;
        let (machine, programs) = (&mut self.machines[at], &mut self.programs[at]);
        if machine.sleeps() {
            return self.pass();
        }
        if machine.has_token_to_take() && self.random.below(3) == 0 {
            machine.take_token();
        }
        if self.options.joins_again {
            match self.random.below(32) {
                0 => return machine.start_over(),
                1..4 => return self.join_again(at),
                4 | 5 => return machine.renew_token(),
                6 => return machine.fill_disk(self.options.fills_disks),
                7 => return machine.fill_disk(false),
                _ => {}
            }
        }
        let kinds = if self.options.joins_again { 106 } else { 104 };
        match self.random.below(kinds) {
            0..60 => {
                for _ in 0..self.random.below(6) {
                    programs.act(machine, &mut self.random);
                }
            }
            60..78 => self.pass(),
            78..80 => machine.tidy(),
            80..84 => {
                let (faults, latency_ns_max) = faults(&mut self.random);
                machine.network.set(faults, latency_ns_max);
            }
            84 => machine.network.cut(true),
            85..87 => machine.network.cut(false),
            87 => self.server.crash(),
            88..90 => self.server.start(),
            90..93 => machine.begin_sync(),
            93 => {
                machine.crash();
                programs.forget();
                if self.random.coin() {
                    machine.begin_sync();
                }
            }
            94 => machine.end_sync(),
            95 => {
                programs.close(machine);
                machine.end();
            }
            96 => machine.give_up(),
            97 => machine.start(),
            98 if self.options.fills_disks => machine.fill_disk(true),
            99 if self.options.fills_disks => machine.fill_disk(false),
            100..102 => self.crash_within(at),
            102 => {
                const YEAR_S: i64 = 365 * 24 * 3600;
                let wrong_s = [0, -3600, 3600, -YEAR_S, 20 * YEAR_S, -25 * YEAR_S][self.random.below(6) as usize];
                machine.set_clock(wrong_s * 1_000_000_000);
            }
            103 => {
                let until_ns = self.world.now_ns() + self.random.below(300 * SECOND_NS);
                machine.suspend(until_ns);
            }
            104 => machine.renew_token(),
            105 => {
                programs.close(machine);
                machine.end_tree();
            }
            _ => {
                self.server.start();
                machine.begin_sync();
            }
        }
    }

    /// Makes a machine another device, if the server runs; the server forgets the former one.
    fn join_again(&mut self, at: usize) {
        let Some(store) = self.server.store_if_up() else { return };
        let machine = &mut self.machines[at];
        store.roster().revoke(machine.issued_device()).unwrap();
        let joined = joined(&self.world, &store, &self.quiet, machine.name());
        machine.join_as(joined.token, joined.device_id);
    }

    /// The server's newest batch, asked of its store: loops ask for it thousands of times.
    pub(crate) fn head(&self) -> u64 {
        self.server.store().folder(self.folder.as_str()).unwrap().seq
    }

    /// Ends all faults.
    fn settle(&mut self) -> Result<(), String> {
        self.world.note("nothing fails any more");
        self.server.start();
        for (machine, programs) in self.machines.iter_mut().zip(&mut self.programs) {
            machine.network.cut(false);
            machine.network.set(Faults::default(), 1_000_000);
            machine.fill_disk(false);
            machine.take_token();
            programs.close(machine);
            machine.begin_sync();
        }
        let until_ns = self.world.now_ns() + SETTLED_WITHIN_NS;
        loop {
            let head = self.head();
            let is_settled = |machine: &Machine| machine.is_settled(head);
            if self.machines.iter().all(is_settled) && !self.has_removed_rules() {
                return Ok(());
            }
            let now_ns = self.world.now_ns();
            if now_ns >= until_ns {
                let status: Vec<String> = self.machines.iter().map(Machine::status).collect();
                return Err(format!("it does not come to rest at {head}: {status:#?}"));
            }
            self.run_until(now_ns + SECOND_NS);
            for machine in &mut self.machines {
                // An engine that had not met the server ends if its token is refused.
                machine.begin_sync();
            }
        }
    }

    /// Without rules, all machines are to hold the same. Returns whether there were any, or what
    /// was ignored is still on its way.
    fn has_removed_rules(&mut self) -> bool {
        if !self.options.changes_rules {
            return false;
        }
        let mut has_removed = false;
        for machine in &mut self.machines {
            has_removed |= Programs::remove_rules(machine);
        }
        has_removed || !self.machines.iter().all(Machine::has_all)
    }

    /// Ends everything, and returns the hash of all events.
    fn end(&mut self) -> u64 {
        for (machine, programs) in self.machines.iter_mut().zip(&mut self.programs) {
            programs.close(machine);
            machine.end();
        }
        self.world.end();
        self.world.trace()
    }

    /// Checks what must hold in the end: see the module.
    fn check(&mut self) -> Result<u64, String> {
        for machine in &mut self.machines {
            machine.before();
            if let Some(wrong) = &machine.witness.wrong {
                return Err(format!("{}: {wrong}", machine.name()));
            }
        }
        let head = self.head();
        let mut reader = Reader::new(&self.reading, &self.folder);
        let mut followers = vec![Follower::default(); self.machines.len()];
        let mut held = BTreeSet::new();
        let mut state = State::default();
        for seq in 1..=head {
            state = reader.at(seq);
            for (machine, follower) in self.machines.iter().zip(&mut followers) {
                let looked = follower.look(&machine.witness, &state);
                looked.map_err(|wrong| format!("batch {seq} of {head} shows of {}: {wrong}", machine.name()))?;
            }
            held.extend(state.0.values().filter_map(|entry| entry.content.clone()));
        }
        // The head is among the versions, and all machines hold that.
        let lines: BTreeSet<&[u8]> = held
            .iter()
            .flat_map(|content| content.split(|byte| *byte == b'\n'))
            .collect();
        let first = State::of_directory_with_times(&self.machines[0].tree());
        for machine in &self.machines {
            match state.differences(&machine.state()) {
                none if none.is_empty() => {}
                some => return Err(format!("at the end, server and {}: {some:#?}", machine.name())),
            }
            match first.differences(&State::of_directory_with_times(&machine.tree())) {
                none if none.is_empty() => {}
                some => return Err(format!("at the end, the first and {}: {some:#?}", machine.name())),
            }
            let is_lost = |line: &&Vec<u8>| !lines.contains(line.as_slice());
            if let Some(lost) = machine.witness.lines.iter().find(is_lost) {
                let lost = String::from_utf8_lossy(lost);
                return Err(format!("{}: '{lost}' is nowhere", machine.name()));
            }
            if let Some(lost) = machine.witness.owed().iter().find(|content| !held.contains(*content)) {
                return Err(format!(
                    "{}: {} bytes that a program wrote are nowhere",
                    machine.name(),
                    lost.len()
                ));
            }
        }
        Ok(head)
    }
}

/// Stops the engine while it meets its server, again and again; then it goes on.
///
/// # Errors
/// Says what does not hold.
pub(crate) fn end_while_meeting(seed: u64) -> Result<u64, String> {
    let mut life = Life::new(seed, LifeOptions::default());
    life.settle()?;
    for _ in 0..3 {
        for round in 0..2 {
            for _ in 0..5 {
                life.programs[0].act(&mut life.machines[0], &mut life.random);
            }
            life.programs[0].close(&mut life.machines[0]);
            life.world.run_until(life.world.now_ns() + 100 * SECOND_NS);
            if round == 0 {
                life.machines[0].end_sync();
            }
        }
        life.machines[0].network.set(Faults::default(), SECOND_NS);
        life.machines[0].begin_sync();
        life.world.run_until(life.world.now_ns() + 1_000_000);
        life.machines[0].end_sync();
        life.settle()?;
    }
    let batches = life.check();
    life.end();
    batches
}

/// Lives one life.
///
/// # Errors
/// Says what does not hold.
pub(crate) fn live(seed: u64, options: LifeOptions) -> Result<Lived, String> {
    let mut life = Life::new(seed, options);
    for machine in &mut life.machines {
        if life.random.coin() {
            machine.begin_sync();
        }
    }
    for _ in 0..options.steps {
        life.step();
    }
    let settled = life.settle().and_then(|()| life.check());
    let trace = life.end();
    let transitions = life.machines.iter().flat_map(Machine::transitions).collect();
    settled.map(|batches| Lived {
        trace,
        batches,
        transitions,
    })
}
