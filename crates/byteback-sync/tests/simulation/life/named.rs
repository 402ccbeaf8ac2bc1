//! Situations that random lives have found, and those that they meet too seldom: each as a life of
//! its own, in which the fault occurs at just that moment.

use super::{Faults, Life, LifeOptions, SECOND_NS, SETTLED_WITHIN_NS, State};
use std::path::Path;

/// Seeds of each life: they vary how long each machine waits before it sends, and which undurable
/// parts are lost.
pub(super) const SEEDS: std::ops::Range<u64> = 0..6;

pub(super) const BEGUN: (&str, &str) = ("begun", "so that there is a folder");

impl Life {
    pub(super) fn of_two(seed: u64) -> Self {
        let options = LifeOptions {
            machines: 2,
            ..LifeOptions::default()
        };
        let mut life = Self::new(seed, options);
        for machine in &mut life.machines {
            machine.is_roomy = true;
        }
        life
    }

    /// Two machines that have met.
    pub(super) fn after_handshake(seed: u64) -> Self {
        let mut life = Self::of_two(seed);
        life.put(0, BEGUN.0, BEGUN.1);
        life.begin(0);
        life.settle().unwrap();
        life
    }

    pub(super) fn begin(&mut self, at: usize) {
        self.machines[at].begin_sync();
        self.rest(at);
    }

    /// Lets a program on a machine write a file, new or over an existing one.
    pub(super) fn put(&mut self, at: usize, name: &str, content: &str) {
        self.machines[at].start();
        self.machines[at].before();
        let programs = self.machines[at].up().unwrap().programs();
        if let Some(directory) = Path::new(name).parent().filter(|it| !it.as_os_str().is_empty()) {
            let _ = programs.make_directory(directory, 0o755);
        }
        let name = Path::new(name);
        let file = programs.open(name).or_else(|_| programs.create(name, 0o644)).unwrap();
        programs.write(&file, 0, content.as_bytes()).unwrap();
        programs.close(file);
        programs.truncate(name, content.len() as u64).unwrap();
        self.machines[at].after();
    }

    pub(super) fn remove(&mut self, at: usize, name: &str) {
        self.machines[at].before();
        let programs = self.machines[at].up().unwrap().programs();
        programs.remove(Path::new(name)).unwrap();
        self.machines[at].after();
    }

    pub(super) fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let until_ns = self.world.now_ns() + SETTLED_WITHIN_NS;
        while !is_so(self) {
            let now_ns = self.world.now_ns();
            if now_ns >= until_ns {
                let status: Vec<String> = self.machines.iter().map(super::Machine::status).collect();
                panic!("{what}: {status:#?}");
            }
            self.world.run_until(now_ns + 10_000_000);
        }
    }

    /// Waits until a machine has sent and received everything.
    pub(super) fn rest(&mut self, at: usize) {
        self.until("it does not come to rest", |life| {
            life.machines[at].is_settled(life.head())
        });
    }

    fn crash(&mut self, at: usize) {
        self.machines[at].crash();
        self.programs[at].forget();
    }

    /// Checks that, once nothing fails any more, all machines have exactly these files.
    pub(super) fn ends_with(mut self, files: &[(&str, &str)], what: &str) {
        self.comes_to_hold(files, what);
        self.end();
    }

    pub(super) fn comes_to_hold(&mut self, files: &[(&str, &str)], what: &str) {
        self.settle().unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
        let expected = State::of_files(files);
        for machine in &self.machines {
            let mut state = machine.state();
            // Directories are those of the files.
            state.0.retain(|_, entry| entry.content.is_some());
            let different = state.differences(&expected);
            assert!(different.is_empty(), "{what}: {}: {different:#?}", machine.name());
        }
        self.check().unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
    }
}

#[test]
fn what_is_sent_once_more_after_a_crash_is_no_change_by_others() {
    for seed in SEEDS {
        for removes in [false, true] {
            let what = format!("seed {seed}, removes: {removes}");
            let mut life = Life::after_handshake(seed);
            life.put(0, "file", "as one made it");
            life.settle().unwrap();
            life.machines[0].network.cut(true);
            match removes {
                true => life.remove(0, "file"),
                false => life.put(0, "file", "as one changed it"),
            }
            // It landed since the log's mark, so it is sent again.
            let before = life.head();
            life.crash(1);
            life.begin(1);
            assert!(life.head() > before, "{what}: nothing was sent once more");
            let changed = ("file", "as one changed it");
            match removes {
                true => life.ends_with(&[BEGUN], &what),
                false => life.ends_with(&[BEGUN, changed], &what),
            }
        }
    }
}

#[test]
fn what_landed_before_a_crash_and_was_removed_by_others_goes() {
    for seed in SEEDS {
        let mut life = Life::after_handshake(seed);
        life.put(0, "file", "as one made it");
        life.settle().unwrap();
        life.crash(1);
        life.remove(0, "file");
        life.rest(0);
        life.ends_with(&[BEGUN], &format!("seed {seed}"));
    }
}

#[test]
fn a_first_contact_that_failed_is_made_again() {
    for seed in SEEDS {
        let mut life = Life::of_two(seed);
        life.put(0, BEGUN.0, BEGUN.1);
        life.begin(0);
        life.put(1, "own", "of the other");
        // Each request takes its time: the network fails between the one by which it meets the
        // server and the one that follows the cut.
        life.machines[1].network.set(Faults::default(), SECOND_NS);
        life.machines[1].begin_sync();
        life.until("it does not meet the server", |life| life.machines[1].is_connected());
        life.machines[1].network.cut(true);
        life.until("nothing fails", |life| !life.machines[1].is_connected());
        life.ends_with(&[BEGUN, ("own", "of the other")], &format!("seed {seed}"));
    }
}

#[test]
fn what_was_on_its_way_when_the_power_went_is_nobodys_file() {
    // Before its number is kept, and at later steps.
    let steps = ["make", "keep numbers", "content", "sync", "attributes", "rename"];
    for seed in SEEDS {
        for step in steps {
            let what = format!("seed {seed}, at '{step}'");
            let mut life = Life::after_handshake(seed);
            life.machines[1].hold_at(step, 1);
            life.put(0, "file", "as one made it");
            life.rest(0);
            life.until(&what, |life| life.machines[1].is_held());
            life.crash(1);
            life.ends_with(&[BEGUN, ("file", "as one made it")], &what);
        }
    }
}

const TOGETHER: [(&str, &str); 2] = [("d/data", "the data at first"), ("d/log", "the log at first")];

/// Two machines that have a database of two files; the second one changes it in one operation,
/// creates a third file, and can send nothing of that.
fn database(seed: u64) -> Life {
    let mut life = Life::after_handshake(seed);
    for (name, content) in TOGETHER {
        life.put(0, name, content);
    }
    life.put(0, "e/other", "somewhere else");
    life.settle().unwrap();
    life.machines[1].network.cut(true);
    life.machines[1].before();
    let programs = life.machines[1].up().unwrap().programs();
    let open = |name: &str| programs.open(Path::new(name)).unwrap();
    let (data, log, other) = (open("d/data"), open("d/log"), open("e/other"));
    programs.write(&log, 0, b"THE LOG OF TWO").unwrap();
    programs.write(&data, 0, b"THE DATA OF TWO").unwrap();
    let new = programs.create(Path::new("d/new"), 0o644).unwrap();
    programs.write(&new, 0, b"made by two").unwrap();
    programs.write(&other, 0, b"SOMEWHERE").unwrap();
    programs.write(&log, 0, b"THE LOG OF TWO").unwrap();
    for file in [data, log, other, new] {
        programs.close(file);
    }
    life.machines[1].after();
    life.until("it is not handed out", |life| life.machines[1].has_in_flight());
    life
}

impl Life {
    /// The first machine changes one file of the database, and the second one is in conflict with
    /// all of it.
    fn ends_with_copies(mut self, is_changed: bool, what: &str) {
        self.settle().unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
        let state = self.machines[1].state();
        let reported = || {
            state
                .0
                .keys()
                .map(|name| String::from_utf8_lossy(name))
                .collect::<Vec<_>>()
        };
        let content = |name: &str| {
            let entry = state.0.get(name.as_bytes());
            entry
                .and_then(|entry| entry.content.clone())
                .map(|content| String::from_utf8_lossy(&content).into_owned())
        };
        let copy = |stem: &str| {
            let is_copy = |name: &&Vec<u8>| name.starts_with(format!("{stem} (conflict ").as_bytes());
            let mut copies = state.0.keys().filter(is_copy);
            let found = copies.next().and_then(|name| content(&String::from_utf8_lossy(name)));
            assert!(copies.next().is_none(), "{what}: {:?}", reported());
            found
        };
        let data_of_one = if is_changed {
            "one was here too!"
        } else {
            "the data at first"
        };
        let found = [
            content("d/data"),
            content("d/log"),
            content("d/new"),
            copy("d/data"),
            copy("d/log"),
            copy("d/new"),
        ];
        let all = |names: [Option<&str>; 6]| names.map(|content| content.map(str::to_owned));
        let expected = match is_changed {
            true => all([
                Some(data_of_one),
                Some("the log at first"),
                None,
                Some("THE DATA OF TWOst"),
                Some("THE LOG OF TWOst"),
                Some("made by two"),
            ]),
            false => all([
                Some("THE DATA OF TWOst"),
                Some("THE LOG OF TWOst"),
                Some("made by two"),
                None,
                None,
                None,
            ]),
        };
        assert_eq!(found, expected, "{what}: {:?}", reported());
        assert_eq!(content("e/other").as_deref(), Some("SOMEWHERE else"), "{what}");
        assert_eq!(copy("e/other"), None, "{what}");
        self.check().unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
        self.end();
    }
}

#[test]
fn conflict_is_shared_by_files_changed_at_once_whatever_ends() {
    for seed in SEEDS {
        for ending in ["none", "the engine's", "a clean one", "a power cut"] {
            for is_changed in [false, true] {
                let what = format!("seed {seed}, ending: {ending}, changed: {is_changed}");
                let mut life = database(seed);
                match ending {
                    "none" => {}
                    "the engine's" => life.machines[1].end_sync(),
                    "a clean one" => life.machines[1].end(),
                    _ => life.crash(1),
                }
                if is_changed {
                    life.put(0, "d/data", "one was here too!");
                    life.rest(0);
                }
                life.ends_with_copies(is_changed, &what);
            }
        }
    }
}

#[test]
fn conflict_is_shared_by_files_changed_at_once_if_landing_ends() {
    let steps = ["displace", "make", "content", "rename", "keep numbers", "sync"];
    for seed in SEEDS {
        for (step, nth) in steps.iter().flat_map(|step| [(step, 1), (step, 2), (step, 3)]) {
            let what = format!("seed {seed}, power cut at the {nth}. '{step}'");
            let mut life = database(seed);
            life.put(0, "d/data", "one was here too!");
            life.rest(0);
            life.machines[1].hold_at(step, nth);
            life.machines[1].network.cut(false);
            life.machines[1].network.set(Faults::default(), 1_000_000);
            life.until(&what, |life| {
                life.machines[1].is_held() || life.machines[1].is_settled(life.head())
            });
            life.crash(1);
            life.ends_with_copies(true, &what);
        }
    }
}
