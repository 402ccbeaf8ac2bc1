//! Rounds of work, each ended by a blow.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use byteback_host::random::SplitMix64;
use byteback_testkit::command::Ran;
use byteback_testkit::local_tree::{Tree, differences, digest, seen};
use byteback_testkit::processes::kill;
use byteback_testkit::seed::{Draw, fresh_seed, rounds};

use crate::meddling::meddle;
use crate::rig::hand::Hand;
use crate::rig::lane::{History, Lane, Moment, Plan, Window, part_of};
use crate::rig::operation::{Choice, Operation};
use crate::rig::{Mode, Rig};

const LANES: [&str; 2] = ["one", "two"];

/// The process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Daemon,
    Server,
    Command,
}

/// A snapshot that a backup reported as saved, and the digest of a restored copy of it.
struct Acknowledged {
    snapshot: u64,
    digest: u64,
}

/// A backup during a round.
struct Attempt {
    ran: Ran,
    windows: Vec<Window>,
}

/// How a lane ended: its history, and the operation that failed.
type Ended = (History, Option<(Operation, std::io::Error)>);

impl Attempt {
    fn is_of_the_mount(&self) -> bool {
        let summary = self.ran.summary();
        summary.is_some_and(|summary| summary["mounted"] == true)
    }

    /// Whether the mounted folder was saved, including data that the kernel had not written yet.
    fn has_flushed(&self) -> bool {
        self.ran.status.success() && self.is_of_the_mount()
    }
}

struct World {
    rig: Rig,
    mode: Mode,
    random: SplitMix64,
    url: String,
    address: String,
    acknowledged: Vec<Acknowledged>,
    /// The number of the last operation of each lane.
    last: BTreeMap<&'static str, u64>,
    operations: u64,
    failed_backups: u64,
}

impl World {
    fn new(mode: Mode, seed: u64) -> Self {
        let mut rig = Rig::new(mode);
        let url = rig.start_server("127.0.0.1:0");
        let address = rig.server_address();
        rig.init(&rig.tree(), &url, "folder");
        for lane in LANES {
            std::fs::create_dir(rig.tree().join(lane)).unwrap();
        }
        Self {
            rig,
            mode,
            random: SplitMix64::new(seed),
            url,
            address,
            acknowledged: Vec::new(),
            last: LANES.into_iter().map(|lane| (lane, 0)).collect(),
            operations: 0,
            failed_backups: 0,
        }
    }

    fn start_lanes(&mut self, tree: &Tree) -> Vec<Lane> {
        let mut lanes = Vec::new();
        for name in LANES {
            let directory = self.rig.tree().join(name);
            let history = History::adopt(&part_of(tree, name), self.last[name]);
            let plan = Plan {
                seed: self.random.next_u64(),
                choice: Choice {
                    stores: true,
                    unsynced_stores: self.mode == Mode::Fast,
                },
                pace: Duration::from_micros(200),
            };
            // Never this process: a store into a mapping of a dead mount kills.
            let hands = vec![Hand::process(&directory), Hand::process(&directory)];
            lanes.push(Lane::start(name, history, hands, plan));
        }
        lanes
    }

    fn victims(&mut self) -> Vec<Victim> {
        let all = [(Victim::Daemon, 60), (Victim::Server, 35), (Victim::Command, 30)];
        let mut victims: Vec<Victim> = all
            .into_iter()
            .filter(|(_, percent)| self.random.chance(*percent))
            .map(|(victim, _)| victim)
            .collect();
        if victims.is_empty() {
            victims.push(Victim::Daemon);
        }
        if self.random.chance(50) {
            victims.reverse();
        }
        victims
    }

    /// Runs backups beside the lanes until the victims are killed one after the other. The lanes
    /// have stopped then.
    fn work_until_the_blow(&mut self, lanes: &[Lane], victims: &[Victim]) -> Vec<Attempt> {
        let is_over = AtomicBool::new(false);
        let command: Mutex<Option<OwnedFd>> = Mutex::new(None);
        let daemon = self.rig.daemon_handle();
        let before = Duration::from_micros(self.random.below(500_000));
        let gaps: Vec<Duration> = victims
            .iter()
            .map(|_| Duration::from_micros(self.random.below(20_000)))
            .collect();
        let server_rests = Duration::from_micros(self.random.below(50_000));
        let attempts = Mutex::new(Vec::new());
        // This thread restarts the server, so the server is taken out of the rig that the other
        // thread uses.
        let server = victims.contains(&Victim::Server).then(|| self.rig.take_server());
        let server = std::thread::scope(|scope| {
            let rig = &self.rig;
            // Also after a failure: the scope waits for the loop.
            scopeguard::defer! { is_over.store(true, Ordering::SeqCst) }
            let loops = scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let moments: Vec<Moment> = lanes.iter().map(Lane::moment).collect();
                    let arguments = rig.backup_arguments(None);
                    let running = rig.spawn(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
                    *command.lock().unwrap() = Some(running.handle());
                    let ran = running.wait();
                    let windows = lanes.iter().zip(&moments);
                    let windows = windows.map(|(lane, moment)| lane.since(moment)).collect();
                    attempts.lock().unwrap().push(Attempt { ran, windows });
                }
            });
            std::thread::sleep(before);
            let mut server = server;
            for (victim, gap) in victims.iter().zip(gaps) {
                match victim {
                    Victim::Daemon => {
                        kill(&daemon);
                        // From now on they would work on the plain directory.
                        lanes.iter().for_each(Lane::stop_starting);
                    }
                    Victim::Server => server.take().unwrap().kill(),
                    Victim::Command => {
                        if let Some(command) = &*command.lock().unwrap() {
                            kill(command);
                        }
                    }
                }
                std::thread::sleep(gap);
            }
            is_over.store(true, Ordering::SeqCst);
            if victims.contains(&Victim::Server) {
                std::thread::sleep(server_rests);
                let restarted = rig.launch_server(&self.address);
                loops.join().unwrap();
                server = Some(restarted);
            } else {
                loops.join().unwrap();
            }
            server
        });
        if let Some(server) = server {
            self.rig.put_server(server);
        }
        if victims.contains(&Victim::Daemon) {
            self.rig.forget_daemon();
        }
        attempts.into_inner().unwrap()
    }

    /// Checks that the directory below the mount holds the writes that the programs were told
    /// succeeded. Returns the states that it may be in.
    fn check_below(
        &mut self,
        ended: Vec<Ended>,
        attempts: &[Attempt],
        beginnings: &[Moment],
        killed: bool,
        context: &str,
    ) -> Vec<Window> {
        let mut windows = Vec::new();
        let tree = seen(&self.rig.tree());
        for (number, (history, failed)) in ended.into_iter().enumerate() {
            let name = LANES[number];
            if let Some((operation, error)) = &failed {
                assert!(killed, "lane {name}: {operation:?}: {error}");
            }
            // Where the kernel collects writes, those after the last backup may be lost with the
            // daemon.
            let last_saved = attempts.iter().rev().find(|attempt| attempt.has_flushed());
            let from = match (self.mode, last_saved) {
                (Mode::Exact, _) => history.moment(),
                (Mode::Fast, Some(attempt)) => attempt.windows[number].beginning().clone(),
                (Mode::Fast, None) => beginnings[number].clone(),
            };
            let window = history.since(&from);
            if let Err(why) = window.is_blend(&part_of(&tree, name)) {
                let recent = history.recent_of(&why);
                panic!("{context}: below the mount, lane {name}, after {failed:?}: {why}\n{recent}");
            }
            self.operations += history.done - self.last[name];
            self.last.insert(name, history.done + 1);
            windows.push(window);
        }
        windows
    }

    /// Checks that each acknowledged snapshot can be restored, to a moment of the tree during the
    /// backup.
    fn check_acknowledged(&mut self, attempts: Vec<Attempt>, below: &[Window]) {
        for attempt in attempts {
            let said = format!("{}{}", attempt.ran.stderr, attempt.ran.stdout);
            // After the daemon's death, a backup reads the directory below, and promises no moment.
            let is_mounted = attempt.is_of_the_mount();
            if !attempt.ran.status.success() {
                // Code 3 says that a file was left out: not here, where every file can be read.
                assert!(attempt.ran.status.code() != Some(3) || !is_mounted, "{said}");
                self.failed_backups += 1;
                continue;
            }
            let windows = match self.mode {
                Mode::Fast if !is_mounted => below,
                _ => &attempt.windows,
            };
            let snapshot = attempt.ran.summary().unwrap()["snapshot_id"].as_u64().unwrap();
            let restored = self.rig.restore(snapshot, None);
            let tree = seen(restored.path());
            for (name, window) in LANES.iter().zip(windows) {
                let part = part_of(&tree, name);
                let answer = match self.mode {
                    Mode::Exact if is_mounted => window.moment_of(&part).map(|_| ()),
                    _ => window.is_blend(&part),
                };
                if let Err(why) = answer {
                    let states = window.len();
                    panic!("snapshot {snapshot}, lane {name}, of {states} possible states: {why}\n{said}");
                }
            }
            let digest = digest(&tree, true);
            self.acknowledged.push(Acknowledged { snapshot, digest });
        }
    }

    /// With no writers: a backup restores to exactly the present tree, and the next backup has
    /// nothing to do.
    fn quiet(&mut self, context: &str) {
        let ran = self.rig.backup(None);
        let said = format!("{}{}", ran.stderr, ran.stdout);
        let summary = ran.succeeds(&format!("the quiet backup, {context}"));
        let snapshot = summary["snapshot_id"].as_u64().unwrap();
        let restored = self.rig.restore(snapshot, None);
        let there = seen(&self.rig.tree());
        let copy = seen(restored.path());
        // A kernel that collects writes keeps the time to itself until it writes the inode.
        let found = differences(&there, &copy, self.mode == Mode::Exact);
        assert!(
            found.is_empty(),
            "{context}: snapshot {snapshot}:\n{}\n{said}",
            found.join("\n")
        );
        self.acknowledged.push(Acknowledged {
            snapshot,
            digest: digest(&copy, true),
        });
        self.rig
            .assert_nothing_changed(&format!("{context}: the backup after the quiet one"));
    }

    /// Every acknowledged snapshot is listed once, and a sample of them restores to what it was.
    fn check_all_acknowledged(&mut self) {
        let listed = self.rig.snapshot_ids(&format!("{}/folder", self.url));
        for Acknowledged { snapshot, .. } in &self.acknowledged {
            let times = listed.iter().filter(|id| *id == snapshot).count();
            assert_eq!(times, 1, "snapshot {snapshot} in {listed:?}");
        }
        for _ in 0..8 {
            let Acknowledged {
                snapshot,
                digest: as_it_was,
            } = &self.acknowledged[self.random.index(self.acknowledged.len())];
            let restored = self.rig.restore(*snapshot, None);
            let now = digest(&seen(restored.path()), true);
            assert_eq!(
                now, *as_it_was,
                "snapshot {snapshot} restores to something else than before"
            );
        }
    }

    /// Kills the daemon at some point between the order to unmount and its own end.
    fn die_during_the_unmount(&mut self) {
        let tree = self.rig.tree();
        let umount = self.rig.spawn(&["--json", "umount", tree.to_str().unwrap()]);
        std::thread::sleep(Duration::from_micros(self.random.below(60_000)));
        self.rig.kill_daemon();
        // It may have been faster, or have met a dead daemon: all that counts is that it ends.
        umount.wait();
        self.rig.wait_until_free();
    }

    fn round(&mut self, number: u64) {
        if !self.rig.has_daemon() {
            self.rig.mount();
        }
        let before = seen(&self.rig.tree());
        let lanes = self.start_lanes(&before);
        let beginnings: Vec<Moment> = lanes.iter().map(Lane::moment).collect();
        let victims = self.victims();
        let mut context = format!("round {number}, killed {victims:?}");
        let attempts = self.work_until_the_blow(&lanes, &victims);
        let killed = victims.contains(&Victim::Daemon);
        if killed {
            self.rig.wait_until_free();
        }
        // Undisturbed lanes end now; after this nothing changes.
        let ended = lanes.into_iter().map(Lane::stop).collect();
        let below = self.check_below(ended, &attempts, &beginnings, killed, &context);
        self.check_acknowledged(attempts, &below);
        if !killed && self.random.chance(40) {
            if self.random.chance(50) {
                self.rig.umount();
            } else {
                context.push_str(", killed during the unmount");
                self.die_during_the_unmount();
            }
        }
        if !self.rig.has_daemon() && self.random.chance(70) {
            let tree = seen(&self.rig.tree());
            let done = meddle(&self.rig.tree(), &tree, &mut self.random);
            context.push_str(&format!(", meddled {done:#?}"));
        }
        // Sometimes the next backup is made without a mount.
        if !self.rig.has_daemon() && self.random.chance(70) {
            self.rig.mount();
        } else if !self.rig.has_daemon() {
            // Without a mount, a file that was changed within a tick of the kernel's clock is read
            // again next time.
            std::thread::sleep(Duration::from_millis(60));
        }
        self.quiet(&context);
    }
}

fn survive(mode: Mode, default_rounds: u64) {
    let mut world = World::new(mode, fresh_seed());
    for number in 0..rounds(default_rounds) {
        world.round(number);
    }
    world.check_all_acknowledged();
    let acknowledged = world.acknowledged.len();
    println!(
        "{mode:?}: {} operations, {acknowledged} acknowledged backups, {} that failed",
        world.operations, world.failed_backups
    );
    if world.rig.has_daemon() {
        world.rig.umount();
    }
    assert!(Path::new(&world.rig.tree()).exists());
}

#[test]
fn nothing_is_lost_when_anybody_is_killed_exact() {
    survive(Mode::Exact, 10);
}

#[test]
fn nothing_is_lost_when_anybody_is_killed_fast() {
    survive(Mode::Fast, 8);
}
