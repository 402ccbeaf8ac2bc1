//! Three machines on which people work, while processes are killed and stopped and links are cut.
//!
//! The choices come from the seed: which programs run where, and which blow hits what, and when.
//! The following must hold:
//!
//! - programs notice nothing, except on a machine whose own process was killed while they ran;
//! - the server's content is at any moment a state that the folder had: databases are sound,
//!   without half a transaction, and repositories complete;
//! - at rest all machines and the server have the same names, contents, modes, times of files,
//!   links and extended attributes;
//! - where each part of the folder has one writer there is no conflict, whatever is killed,
//!   stopped, cut or restarted;
//! - where several machines append to the same files and rewrite them, each line whose writing
//!   succeeded is in the file, in a conflict copy of it or in a version at the server, and conflict
//!   copies exist only of files that two machines wrote to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use byteback_host::random::SplitMix64;
use byteback_testkit::local_tree::{Tree, differences};
use byteback_testkit::seed::{Draw, fresh_seed, lives, mix, rounds};
use rustix::process::Signal;

use crate::machines::Lab;
use crate::network::End;
use crate::programs::{Program, check, copy, installed, restock};

const MACHINES: usize = 3;

/// Longest pause of a worker or between two blows. The blows should fall into every part of the
/// work.
const PAUSE_MAX_MS: u64 = 1500;

const DELAYS: [&str; 3] = ["0", "50ms", "1s"];

/// A blow to a machine or the server.
#[derive(Clone, Copy, Debug)]
enum Blow {
    KillMachine(usize),
    KillServer,
    Cut(usize, End),
    Suspend(usize),
    Restart(usize),
    Pause(usize),
}

impl Blow {
    fn draw(random: &mut SplitMix64, kills_machines: bool) -> Self {
        let machine = random.index(MACHINES);
        match random.below(10) {
            0..=2 if kills_machines => Self::KillMachine(machine),
            0 => Self::KillServer,
            1 => Self::Suspend(machine),
            2 => Self::Restart(machine),
            3 | 4 => Self::KillServer,
            5 => Self::Cut(machine, End::Machine),
            6 => Self::Cut(machine, End::Bridge),
            7 => Self::Suspend(machine),
            8 => Self::Restart(machine),
            _ => Self::Pause(machine),
        }
    }
}

/// The variant of a life.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// Whether all machines also write to the same files.
    shares_files: bool,
    /// Whether the processes of machines are killed, too.
    kills_machines: bool,
}

/// A folder on three machines in the course of time.
struct Life {
    lab: Lab,
    kind: Kind,
    random: SplitMix64,
    seed: u64,
    programs: Vec<Program>,
    /// Held while a program runs on a machine, and while its folder is being mounted: a program
    /// with an open file of the plain directory writes past a mount made over it, as
    /// docs/semantics.md says.
    desks: [Mutex<()>; MACHINES],
    /// How often the process of a machine was killed and started again: odd while the folder has no
    /// process.
    kills: [AtomicU64; MACHINES],
    /// Lines that were appended to common files, with the file and the machine.
    appended: Mutex<BTreeMap<String, (String, usize)>>,
    lines: AtomicU64,
    /// Common files that were rewritten, with the machine.
    rewritten: Mutex<BTreeSet<(String, usize)>>,
}

/// Reports the end of the work when it is dropped, even by a panic: the thread that waits for it
/// must not wait for ever.
struct Finished<'a>(&'a AtomicBool);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Life {
    fn new(seed: u64, kind: Kind) -> Self {
        let lab = Lab::new(MACHINES);
        let mut random = SplitMix64::new(seed);
        for machine in 0..MACHINES {
            fs::create_dir(lab.world.path(&format!("stock-{machine}"))).unwrap();
            if machine == 0 {
                for part in 0..MACHINES {
                    fs::create_dir(lab.machines[0].dir.join(part.to_string())).unwrap();
                }
                fs::create_dir(lab.machines[0].dir.join("common")).unwrap();
            }
            lab.sync(machine, DELAYS[random.index(DELAYS.len())]);
        }
        lab.wait_until_equal();
        Self {
            lab,
            kind,
            random,
            seed,
            programs: match std::env::var("BYTEBACK_ONLY") {
                Ok(only) => installed()
                    .into_iter()
                    .filter(|program| program.name.contains(&only))
                    .collect(),
                Err(_) => installed(),
            },
            desks: Default::default(),
            kills: Default::default(),
            appended: Mutex::default(),
            lines: AtomicU64::new(0),
            rewritten: Mutex::default(),
        }
    }

    /// A round: all machines work, and are hit; then they rest, and everything is equal.
    fn round(&mut self, number: u64) -> Tree {
        let mut randoms: Vec<SplitMix64> = (0..MACHINES).map(|_| SplitMix64::new(self.random.next_u64())).collect();
        let mut random = SplitMix64::new(self.random.next_u64());
        let done = AtomicBool::new(false);
        let life = &*self;
        std::thread::scope(|scope| {
            let working: Vec<_> = randoms
                .iter_mut()
                .enumerate()
                .map(|(machine, random)| scope.spawn(move || life.work(machine, random)))
                .collect();
            let auditing = scope.spawn(|| life.look_at_the_server_until(&done));
            let until_here = Finished(&done);
            life.hit(&mut random);
            let ended: Vec<_> = working.into_iter().map(|worker| worker.join()).collect();
            drop(until_here);
            let audited = auditing.join();
            for result in ended.into_iter().chain([audited]) {
                if let Err(panic) = result {
                    std::panic::resume_unwind(panic);
                }
            }
        });
        let tree = self.lab.wait_until_equal();
        for machine in 0..MACHINES {
            for part in (0..MACHINES).filter(|part| *part != machine) {
                let from = self.lab.machines[machine].dir.join(part.to_string());
                let copied = copy(&from, &self.lab.world.path("copied"));
                check(&copied).unwrap_or_else(|error| panic!("round {number}, on machine {machine}: {error}"));
            }
        }
        tree
    }

    /// Runs programs on a machine for a while.
    fn work(&self, machine: usize, random: &mut SplitMix64) {
        let place = &self.lab.machines[machine];
        let stock = self.lab.world.path(&format!("stock-{machine}"));
        let part = place.dir.join(machine.to_string());
        for _ in 0..4 {
            let program = self.programs[random.index(self.programs.len())];
            let number = random.below(1 << 40);
            restock(&stock, random);
            let desk = self.desks[machine].lock().unwrap();
            let kills = self.kills[machine].load(Ordering::SeqCst);
            let began = crate::machines::now();
            let ran = program.run(&part, number, &stock);
            println!(
                "  {began} to {}: {} on machine {machine}, {number}{}",
                crate::machines::now(),
                program.name,
                if ran.is_ok() { "" } else { ": FAILED" }
            );
            // Odd: the folder has no process yet.
            let is_undisturbed = kills.is_multiple_of(2) && kills == self.kills[machine].load(Ordering::SeqCst);
            if let (Err(error), true) = (ran, is_undisturbed) {
                panic!(
                    "{} on machine {machine}, where nothing was killed: {error}",
                    program.name
                );
            }
            if self.kind.shares_files {
                self.append(machine, random);
            }
            drop(desk);
            std::thread::sleep(Duration::from_millis(random.below(PAUSE_MAX_MS)));
        }
    }

    /// Appends lines to files that all machines append to, and rewrites some of them.
    fn append(&self, machine: usize, random: &mut SplitMix64) {
        for _ in 0..4 {
            let name = format!("list {}.txt", random.below(3));
            let path = self.lab.machines[machine].dir.join("common").join(&name);
            if random.below(4) == 0 {
                self.rewrite(machine, (&name, &path), random.below(2) == 0);
            }
            let line = format!(
                "line {} of machine {machine}: {:x}",
                self.lines.fetch_add(1, Ordering::SeqCst),
                random.next_u64()
            );
            let written = fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(&path)
                .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
            if written.is_ok() {
                self.appended.lock().unwrap().insert(line, (name, machine));
            }
            std::thread::sleep(Duration::from_millis(random.below(200)));
        }
    }

    /// Rewrites a file with all its present lines, in place or beside it.
    fn rewrite(&self, machine: usize, (name, path): (&str, &Path), in_place: bool) {
        let Ok(content) = fs::read(path) else { return };
        let beside = path.with_extension(format!("{machine}.new"));
        self.rewritten.lock().unwrap().insert((name.to_owned(), machine));
        let written = match in_place {
            true => fs::write(path, &content),
            false => fs::write(&beside, &content).and_then(|()| fs::rename(&beside, path)),
        };
        if written.is_err() {
            // The file may have been emptied; lines not sent by then are lost, as on any file
            // system.
            let mut appended = self.appended.lock().unwrap();
            appended.retain(|_, (of, by)| (of.as_str(), *by) != (name, machine));
        }
    }

    /// The lines that are in no version of the common files at the server.
    fn in_no_version<'l>(&self, mut lines: BTreeSet<&'l str>) -> BTreeSet<&'l str> {
        let head = self.lab.status(0)["cursor"].as_u64().unwrap();
        let target = self.lab.world.path("common-of-then");
        let common = self.lab.machines[0].dir.join("common");
        for seq in (1..=head).rev() {
            if lines.is_empty() {
                break;
            }
            let _ = fs::remove_dir_all(&target);
            let (at, [common, to]) = (format!("@{seq}"), [&common, &target].map(|path| path.to_str().unwrap()));
            self.lab.run(0, &["restore", "--at", &at, common, "--target", to]);
            for entry in crate::machines::look(&target).unwrap_or_default().values() {
                let content = String::from_utf8_lossy(&entry.content);
                let there: BTreeSet<&str> = content.lines().collect();
                lines.retain(|line| !there.contains(line));
            }
        }
        lines
    }

    /// The first versions of the common files with zeros, which no program writes, and their
    /// previous versions.
    fn first_with_zeros(&self) -> Vec<String> {
        let head = self.lab.status(0)["cursor"].as_u64().unwrap();
        let target = self.lab.world.path("common-of-then");
        let common = self.lab.machines[0].dir.join("common");
        let mut before: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
        let mut found = Vec::new();
        for seq in 1..=head {
            let _ = fs::remove_dir_all(&target);
            let (at, [common, to]) = (format!("@{seq}"), [&common, &target].map(|path| path.to_str().unwrap()));
            self.lab.run(0, &["restore", "--at", &at, common, "--target", to]);
            let now = crate::machines::look(&target).unwrap_or_default();
            for (path, entry) in &now {
                let was = before.insert(path.clone(), entry.content.to_vec()).unwrap_or_default();
                if entry.content.contains(&0) && !was.contains(&0) {
                    let [was, is] =
                        [&was, &*entry.content].map(|content| String::from_utf8_lossy(content).into_owned());
                    found.push(format!("batch {seq}, {}:\n{was}became\n{is}", path.display()));
                }
            }
        }
        found
    }

    /// Fetches and checks the server's content until `done` is set.
    fn look_at_the_server_until(&self, done: &AtomicBool) {
        while !done.load(Ordering::SeqCst) {
            // The server may be killed at any time; then nothing was fetched.
            let Some(dir) = self.lab.try_audit() else { continue };
            for part in 0..MACHINES {
                let copied = copy(&dir.join(part.to_string()), &self.lab.world.path("audited-copy"));
                check(&copied).unwrap_or_else(|error| panic!("seed {}: at the server: {error}", self.seed));
            }
        }
    }

    fn hit(&self, random: &mut SplitMix64) {
        for _ in 0..1 + random.below(3) {
            nap(random);
            let blow = Blow::draw(random, self.kind.kills_machines);
            println!("  {} {blow:?}", crate::machines::now());
            match blow {
                Blow::KillMachine(machine) => {
                    self.kills[machine].fetch_add(1, Ordering::SeqCst);
                    self.lab.kill(machine);
                    nap(random);
                    let _desk = self.desks[machine].lock().unwrap();
                    self.lab.sync(machine, DELAYS[random.index(DELAYS.len())]);
                    self.kills[machine].fetch_add(1, Ordering::SeqCst);
                }
                Blow::KillServer => {
                    self.lab.kill_server();
                    nap(random);
                    self.lab.start_server();
                }
                Blow::Cut(machine, end) => {
                    if self.lab.set_link(machine, end, false) {
                        nap(random);
                        nap(random);
                        self.lab.set_link(machine, end, true);
                    }
                }
                Blow::Suspend(machine) => {
                    self.lab.signal(machine, Signal::STOP);
                    nap(random);
                    nap(random);
                    self.lab.signal(machine, Signal::CONT);
                }
                Blow::Restart(machine) => {
                    let _desk = self.desks[machine].lock().unwrap();
                    self.lab.unmount(machine);
                    nap(random);
                    self.lab.sync(machine, DELAYS[random.index(DELAYS.len())]);
                }
                Blow::Pause(machine) => {
                    self.lab.on(machine, "pause", &[]).ends_with(0);
                    nap(random);
                    self.lab.on(machine, "resume", &[]).ends_with(0);
                }
            }
        }
    }

    /// Asserts that no line is lost, and that no file of a single writer is in conflict.
    fn assert_all_lines_are_there(&self, tree: &Tree) {
        let (appended, rewritten) = (self.appended.lock().unwrap(), self.rewritten.lock().unwrap());
        let mut there: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        let mut copies = 0;
        for (path, entry) in tree
            .iter()
            .filter(|(path, _)| path.starts_with("common") && *path != Path::new("common"))
        {
            let name = path.file_name().unwrap().to_str().unwrap();
            let original = original_of(name);
            if let Some(original) = &original {
                copies += 1;
                let writers: BTreeSet<usize> = appended
                    .values()
                    .chain(&*rewritten)
                    .filter(|(name, _)| name == original)
                    .map(|(_, machine)| *machine)
                    .collect();
                assert!(
                    writers.len() > 1,
                    "{name} is in conflict, and only {writers:?} wrote to it"
                );
            }
            let lines = std::str::from_utf8(&entry.content).unwrap().lines();
            there
                .entry(original.unwrap_or_else(|| name.to_owned()))
                .or_default()
                .extend(lines);
        }
        println!(
            "  {} lines were appended, {copies} conflict copies are there",
            appended.len()
        );
        let lost = appended
            .iter()
            .filter(|(line, (name, _))| !there.get(name).is_some_and(|lines| lines.contains(line.as_str())));
        let lost: BTreeSet<&str> = lost.map(|(line, _)| line.as_str()).collect();
        println!("  {} of them are no more in a file", lost.len());
        let lost = self.in_no_version(lost);
        if !lost.is_empty() {
            for found in self.first_with_zeros() {
                println!("{found}");
            }
            panic!(
                "lost, of {} lines: {lost:#?}\n{there:#?}\n{}",
                appended.len(),
                self.lab.logs()
            );
        }
    }

    fn live(mut self, rounds: u64) {
        for number in 0..rounds {
            println!("round {number}");
            let tree = self.round(number);
            let copies: Vec<&PathBuf> = tree
                .keys()
                .filter(|path| path.to_string_lossy().contains("(conflict from"))
                .filter(|path| !path.starts_with("common"))
                .collect();
            println!(
                "  {} conflict copies in the parts that have one writer each",
                copies.len()
            );
            if !self.kind.shares_files {
                assert!(copies.is_empty(), "each part has one writer, and yet: {copies:#?}");
            }
            if self.kind.shares_files {
                self.assert_all_lines_are_there(&tree);
            } else {
                for machine in 0..MACHINES {
                    assert_eq!(self.lab.status(machine)["conflicts"], 0);
                }
            }
        }
        // The directories below the mounts, after all machines have unmounted, are equal as well.
        let mut before = None;
        for machine in 0..MACHINES {
            self.lab.unmount(machine);
            let tree = crate::machines::look(&self.lab.machines[machine].dir).unwrap();
            let first = before.get_or_insert_with(|| tree.clone());
            let differing = differences(first, &tree, true);
            assert!(
                differing.is_empty(),
                "below the mount of machine {machine}: {differing:#?}"
            );
        }
    }
}

/// The file that a conflict copy belongs to, by the copy's name.
fn original_of(name: &str) -> Option<String> {
    let (before, after) = name.split_once(" (conflict from ")?;
    let (_, end) = after.split_once(')')?;
    Some(format!("{before}{end}"))
}

fn nap(random: &mut SplitMix64) {
    std::thread::sleep(Duration::from_millis(random.below(PAUSE_MAX_MS)));
}

fn all_lives(kind: Kind, rounds_by_default: u64) {
    let seed = fresh_seed();
    for life in 0..lives(1) {
        let seed = if life == 0 { seed } else { mix(seed ^ life) };
        println!("life {life}: BYTEBACK_SEED={seed}");
        Life::new(seed, kind).live(rounds(rounds_by_default));
    }
}

#[test]
fn programs_on_three_machines_agree_without_conflict() {
    let kind = Kind {
        shares_files: false,
        kills_machines: false,
    };
    all_lives(kind, 2);
}

#[test]
fn programs_on_killed_machines_agree_without_conflict() {
    let kind = Kind {
        shares_files: false,
        kills_machines: true,
    };
    all_lives(kind, 2);
}

#[test]
fn lines_of_three_machines_are_kept_whatever_is_killed() {
    let kind = Kind {
        shares_files: true,
        kills_machines: true,
    };
    all_lives(kind, 1);
}
