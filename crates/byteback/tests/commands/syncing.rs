//! `sync`: a folder whose changes reach its server within moments, whatever dies in between.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use byteback_host::random::noise;
use byteback_testkit::command::{Ran, ended};
use byteback_testkit::local_tree::{differences, seen};
use byteback_testkit::mounts::is_mounted;
use byteback_testkit::processes::{is_alive, signal};
use byteback_testkit::waiting::eventually;
use rustix::fs::{AtFlags, Timespec, Timestamps, utimensat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::doubt::settled;
use crate::joining::{Machine, invite, served};
use crate::world::World;

impl World {
    pub(crate) fn sync(&self, arguments: &[&str]) -> Ran {
        self.on_tree("sync", arguments)
    }

    /// The part of `status` about continuous sync.
    fn sync_status(&self) -> Value {
        self.on_tree("status", &["--json"]).reports_health().line("folder")["sync"].clone()
    }

    /// Waits until every change is at the server.
    #[track_caller]
    pub(crate) fn wait_until_sent(&self) -> Value {
        eventually("everything is sent", || {
            let sync = self.sync_status();
            let is_sent = sync["connected"] == true
                && sync["waiting_changes"] == 0
                && sync["groups_in_flight"] == 0
                && sync["folded"] == false;
            is_sent.then_some(sync)
        })
    }

    /// Asserts that a fetch by another machine would now equal the folder.
    #[track_caller]
    pub(crate) fn assert_at_server(&self) {
        let target: PathBuf = (0..)
            .map(|number| self.path(&format!("pulled-{number}")))
            .find(|path| !path.exists())
            .unwrap();
        self.run(&["pull", &self.repository(), target.to_str().unwrap()]).fine();
        let trees = [seen(&self.tree()), seen(&target)];
        let differing = differences(&trees[0], &trees[1], true);
        assert!(differing.is_empty(), "{differing:#?}");
    }
}

#[test]
fn sync_sends_what_programs_write_and_refuses_a_second_process() {
    let mut world = World::served();
    let tree = world.tree();
    fs::create_dir(tree.join("before")).unwrap();
    fs::write(tree.join("before/large"), noise(1, 3_000_000)).unwrap();
    let said = world.sync(&["--delay", "0"]).fine();
    said.says("is kept in sync with").says("byteback status");
    assert!(is_mounted(&tree));
    world.wait_until_sent();
    world.assert_at_server();

    fs::write(tree.join("new"), "written while it is in sync").unwrap();
    fs::rename(tree.join("before"), tree.join("after")).unwrap();
    std::os::unix::fs::symlink("new", tree.join("link")).unwrap();
    // As editors save: a new file takes the name.
    let mut edited = noise(1, 3_000_000);
    edited[1_000_000..1_000_010].copy_from_slice(b"0123456789");
    fs::write(tree.join("after/.large.tmp"), &edited).unwrap();
    fs::rename(tree.join("after/.large.tmp"), tree.join("after/large")).unwrap();
    let sync = world.wait_until_sent();
    assert!(sync["sent_groups"].as_u64() > Some(1), "{sync}");
    assert_eq!(
        (&sync["problem"], &sync["needs_attention"]),
        (&Value::Null, &Value::Bool(false))
    );
    world.assert_at_server();
    world
        .on_tree("status", &[])
        .fine()
        .says("synced with")
        .says("connected")
        .says("everything is sent");
    assert!(!world.on_tree("status", &[]).stdout.contains("never backed up"));
    eventually("nothing is behind", || {
        (world.on_tree("status", &["--check"]).code() == Some(0)).then_some(())
    });

    for command in ["sync", "mount"] {
        world
            .on_tree(command, &[])
            .ends_with(11)
            .says("is already mounted")
            .says("byteback umount");
    }
    // A backup makes a snapshot of the same folder, and sync continues.
    world.backup();
    fs::write(tree.join("new"), "after a backup").unwrap();
    world.wait_until_sent();
    world.assert_at_server();

    let daemon = world.daemon_pid();
    world.on_tree("umount", &[]).fine();
    assert!(!is_alive(daemon) && !is_mounted(&tree));
    assert_eq!(world.sync_status(), Value::Null);
    world.stop_server();
}

#[test]
fn a_server_that_is_away_is_waited_for_over_restarts_and_kills() {
    let mut world = World::served();
    let tree = world.tree();
    world.sync(&["--delay", "10ms"]).fine();
    fs::write(tree.join("a"), "first").unwrap();
    world.wait_until_sent();

    // The server dies; changes made meanwhile arrive when it is back.
    world.kill_server();
    fs::write(tree.join("a"), noise(2, 400_000)).unwrap();
    fs::write(tree.join("b"), "while it was away").unwrap();
    let sync = eventually("it waits", || {
        let sync = world.sync_status();
        (sync["connected"] == false).then_some(sync)
    });
    assert!(
        sync["problem"].is_string() && sync["needs_attention"] == false,
        "{sync}"
    );
    world.on_tree("status", &[]).ends_with(0).says("waiting for the server");
    let checked = world.on_tree("status", &["--check"]).ends_with(5);
    assert!(checked.stdout.contains("cannot be reached"), "{}", checked.stdout);
    assert!(
        checked.stdout.contains("changes are waiting to be sent"),
        "{}",
        checked.stdout
    );

    // Unmounted in good order and started again without the server, which is no reason not to
    // start.
    world.on_tree("umount", &[]).fine();
    fs::write(tree.join("c"), "while nobody watched").unwrap();
    world.sync(&[]).fine().says("Changes are kept");
    fs::write(tree.join("d"), "while it was away once more").unwrap();
    // Killed, and started again.
    let daemon = world.daemon_pid();
    kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
    eventually("the mount is gone", || (!is_mounted(&tree)).then_some(()));
    fs::write(tree.join("e"), "after the kill").unwrap();
    world.sync(&["--delay", "0"]).ends_with(0);
    world.serve();
    world.wait_until_sent();
    world.assert_at_server();
    world.on_tree("umount", &[]).fine();
}

#[test]
fn status_says_that_changes_are_kept_for_a_server_that_is_away() {
    let mut world = World::served();
    let tree = world.tree();
    world.sync(&["--delay", "0"]).fine();
    world.wait_until_sent();
    world.kill_server();
    fs::write(tree.join("a"), "while it is away").unwrap();
    let reported = format!(
        "the server at {} cannot be reached (connection refused). Changes are kept here and sent when it is back",
        world.url()
    );
    // Otherwise the existing connections break.
    eventually("the status says so", || {
        let said = world.on_tree("status", &[]).reports_health().stdout;
        said.contains(&reported).then_some(())
    });
    world.serve();
    world.wait_until_sent();
    world.assert_at_server();
    eventually("it is said no more", || {
        let said = world.on_tree("status", &[]).ends_with(0).stdout;
        (!said.contains("Changes are kept here")).then_some(())
    });
    world.on_tree("umount", &[]).fine();
}

/// A server that hangs breaks no connection: only its silence shows.
#[test]
fn a_server_that_freezes_is_told_of_until_it_goes_on() {
    let world = World::served();
    let tree = world.tree();
    world.sync(&["--delay", "0"]).fine();
    fs::write(tree.join("a"), "before").unwrap();
    world.wait_until_sent();
    world.on_tree("status", &[]).ends_with(0).says(": connected");
    let frozen = world.freeze_server();
    eventually("the silence is told", || {
        // It takes as long as a server may be silent.
        std::thread::sleep(Duration::from_millis(200));
        let said = world.on_tree("status", &[]).ends_with(0).stdout;
        let words = ["no answer from the server for ", "waiting for the server"];
        let is_reported = words.iter().any(|words| said.contains(words));
        (is_reported && !said.contains(": connected")).then_some(())
    });
    let checked = world.on_tree("status", &["--check"]).ends_with(5);
    assert!(checked.stdout.contains("the server "), "{}", checked.stdout);
    drop(frozen);
    eventually("it is heard of again", || {
        let said = world.on_tree("status", &[]).ends_with(0).stdout;
        said.contains(": connected").then_some(())
    });
    fs::write(tree.join("b"), "after").unwrap();
    world.wait_until_sent();
    world.assert_at_server();
    world.on_tree("umount", &[]).fine();
}

#[test]
fn a_device_that_is_revoked_while_idle_says_so() {
    let mut world = World::served();
    world.sync(&["--delay", "0"]).fine();
    world.wait_until_sent();
    let data = world.path("data");
    world
        .run(&["devices", "revoke", "1", "--data", data.to_str().unwrap()])
        .fine();
    eventually("the status says so", || {
        let ran = world.on_tree("status", &[]);
        (ran.code() == Some(4) && ran.stdout.contains("needs attention")).then_some(())
    });
    let checked = world.on_tree("status", &["--check"]).ends_with(4);
    assert!(!checked.stdout.is_empty());
    world.on_tree("umount", &[]).fine();
    world.stop_server();
}

#[test]
fn in_the_foreground_it_ends_in_order_when_asked() {
    let world = World::served();
    let tree = world.tree();
    fs::write(tree.join("a"), "first").unwrap();
    let mut child = world
        .command(&["sync", "--foreground", "--delay", "0", tree.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.contains("is kept in sync with"), "{line}");
    world.wait_until_sent();
    signal(&child, Signal::TERM);
    ended("sync --foreground", child).ends_with(0);
    assert!(!is_mounted(&tree));
    world.assert_at_server();
}

#[test]
fn sync_refuses_unbound_or_foreign_folders_before_sending() {
    let mut world = World::new();
    world.serve();
    world.sync(&[]).ends_with(10).says("is not bound");
    world.init().fine();
    world.sync(&["--delay", "soon"]).ends_with(1).says("is not a duration");
    // The server's folder has files of another directory that this machine pushed. They are not
    // fetched again, so the two cannot be merged.
    let other = world.path("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("theirs"), "theirs").unwrap();
    world
        .run(&["push", other.to_str().unwrap(), &world.repository()])
        .fine();
    world.sync(&[]).ends_with(1).says("has sent another directory");
    assert!(!is_mounted(&world.tree()));
    fs::write(world.tree().join("ours"), "ours").unwrap();
    world.sync(&[]).ends_with(1);
    let listed = world.about_tree("ls", &[]).fine();
    assert!(
        listed.stdout.contains("theirs") && !listed.stdout.contains("ours"),
        "{}",
        listed.stdout
    );
}

/// A pause stops all traffic at once, in both directions; changes made meanwhile are kept, across a
/// restart and a kill.
#[test]
fn a_pause_holds_over_restarts_and_nothing_is_lost_by_it() {
    let world = World::served();
    let tree = world.tree();
    world.sync(&["--delay", "0"]).fine();
    fs::write(tree.join("a"), "before").unwrap();
    world.wait_until_sent();

    world.on_tree("pause", &[]).fine().says("byteback resume");
    let paused = world.sync_status();
    assert!(paused["paused_since"].is_string(), "{paused}");
    fs::write(tree.join("a"), noise(5, 300_000)).unwrap();
    fs::create_dir(tree.join("dir")).unwrap();
    fs::write(tree.join("dir/b"), "while it is paused").unwrap();
    world
        .on_tree("status", &[])
        .ends_with(0)
        .says("PAUSED")
        .says("byteback resume");
    world.on_tree("pause", &[]).fine().says("has been paused since");
    // None of it reaches the server, however long the engine runs: it is in the middle of sending,
    // and can be ended there.
    let target = world.path("while-paused");
    eventually("the engine wants to send", || {
        let sync = world.sync_status();
        (sync["groups_in_flight"].as_u64() > Some(0)).then_some(())
    });
    world
        .run(&["pull", &world.repository(), target.to_str().unwrap()])
        .fine();
    assert_eq!(fs::read(target.join("a")).unwrap(), b"before");
    assert!(!target.join("dir").exists());
    assert_eq!(world.sync_status()["sent_groups"], paused["sent_groups"]);

    // It also starts paused, and at once.
    world.on_tree("umount", &[]).fine();
    fs::write(tree.join("c"), "while nobody watched").unwrap();
    world
        .sync(&["--delay", "0"])
        .fine()
        .says("Sync has been paused since")
        .says("byteback resume");
    fs::write(tree.join("d"), "after the restart").unwrap();
    let daemon = world.daemon_pid();
    kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
    eventually("the mount is gone", || (!is_mounted(&tree)).then_some(()));
    let said = world.sync(&["--delay", "0", "--json"]);
    assert_eq!(said.line("summary")["connected"], false, "{}", said.stdout);
    assert!(world.sync_status()["paused_since"].is_string());
    let resumed = world.on_tree("resume", &["--json"]).fine();
    let summary = resumed.line("summary");
    assert_eq!(
        (&summary["paused_since"], &summary["running"]),
        (&Value::Null, &Value::Bool(true))
    );
    world.wait_until_sent();
    world.assert_at_server();
    world.on_tree("umount", &[]).fine();
    // Without a process, the wish is recorded for the next one.
    world
        .on_tree("resume", &[])
        .fine()
        .says("was not paused")
        .says("byteback sync");
    world.on_tree("pause", &[]).fine();
    world.on_tree("resume", &[]).fine().says("is no longer paused");
}

#[test]
fn limits_are_noted_changed_while_it_runs_and_shown() {
    let world = World::served();
    let tree = world.tree();
    world
        .sync(&["--limit-rate", "fast"])
        .ends_with(1)
        .says("is not an amount");
    world
        .sync(&["--limit-rate", "pause"])
        .ends_with(1)
        .says("byteback pause");
    // This limit holds at any time of the day at which the test runs.
    let all_day = "00:00-24:00=64MiB";
    world
        .sync(&["--delay", "0", "--limit-rate", "8K", "--limit-rate", all_day])
        .fine();
    let sync = world.wait_until_sent();
    assert_eq!(sync["limits"], serde_json::json!(["8KiB/s", "00:00-24:00=64MiB/s"]));
    assert_eq!(sync["bytes_per_second_max"], 64 << 20);
    world
        .on_tree("status", &[])
        .ends_with(0)
        .says("limited to 8 KiB/s; 64 MiB/s from 00:00 to 24:00 (64.0 MiB/s now)");
    // Far too slow to finish; the limit is lifted in the middle of the transfer.
    world.sync(&["--limit-rate", "8KiB"]).fine().says("Limit set: 8 KiB/s");
    fs::write(tree.join("large"), noise(3, 20_000_000)).unwrap();
    eventually("it is on its way", || {
        (world.sync_status()["groups_in_flight"].as_u64() > Some(0)).then_some(())
    });
    world.on_tree("umount", &[]).fine();
    world.sync(&["--delay", "0"]).ends_with(0);
    assert_eq!(world.sync_status()["limits"], serde_json::json!(["8KiB/s"]));
    let limited = world.sync(&["--limit-rate", "unlimited", "--json"]).fine();
    assert_eq!(limited.line("summary")["limits"], serde_json::json!([]));
    let sync = world.wait_until_sent();
    assert_eq!(
        (&sync["limits"], &sync["bytes_per_second_max"]),
        (&serde_json::json!([]), &Value::Null)
    );
    world.assert_at_server();
    // With a pause for the whole day nothing moves; and sync can be started then.
    world.sync(&["--limit-rate", "00:00-24:00=pause"]).fine();
    fs::write(tree.join("late"), "not now").unwrap();
    world
        .on_tree("status", &[])
        .ends_with(0)
        .says("nothing is transferred now");
    world.on_tree("umount", &[]).fine();
    world.sync(&[]).fine().says("Nothing is sent at this time of day");
    world.sync(&["--limit-rate", "unlimited"]).fine();
    world.wait_until_sent();
    world.assert_at_server();
    world.on_tree("umount", &[]).fine();
}

/// Waits until a file has this content.
#[track_caller]
pub(crate) fn wait_until_holds(path: &std::path::Path, content: &str) {
    eventually(&format!("{} comes", path.display()), || {
        (fs::read_to_string(path).ok()? == content).then_some(())
    });
}

/// The part of `status` about continuous sync of a directory on a machine.
fn status_of(machine: &Machine<'_>, dir: &str) -> Value {
    machine.run(&["status", "--json", dir]).reports_health().line("folder")["sync"].clone()
}

#[test]
fn joined_machines_keep_a_folder_equal_and_decide_conflicts() {
    let world = served();
    let machines = ["kitchen", "study"].map(|name| Machine::new(&world, name));
    let [kitchen, study] = &machines;
    let dirs = [kitchen.dir("home"), study.dir("home")];
    let file = world.path("data/join-token");
    kitchen.run(&["join", file.to_str().unwrap(), &dirs[0]]).fine();
    fs::write(PathBuf::from(&dirs[0]).join("a.txt"), "from the kitchen").unwrap();
    kitchen.run(&["sync", "--delay", "0", &dirs[0]]).fine();
    study.run(&["join", &invite(&world, &["home"]), &dirs[1]]).fine();
    study.run(&["sync", "--delay", "0", &dirs[1]]).fine();
    let path = |at: usize, name: &str| PathBuf::from(&dirs[at]).join(name);
    wait_until_holds(&path(1, "a.txt"), "from the kitchen");
    fs::write(path(1, "b.txt"), "from the study").unwrap();
    wait_until_holds(&path(0, "b.txt"), "from the study");

    // Both machines change the same files, while the study receives nothing.
    study.run(&["pause", &dirs[1]]).fine();
    for name in ["a.txt", "b.txt", "c.txt"] {
        fs::write(path(0, name), "kitchen").unwrap();
    }
    eventually("the kitchen has sent", || {
        let sync = status_of(kitchen, &dirs[0]);
        (sync["waiting_changes"] == 0 && sync["groups_in_flight"] == 0).then_some(())
    });
    for name in ["a.txt", "b.txt", "c.txt"] {
        fs::write(path(1, name), "study").unwrap();
    }
    study.run(&["resume", &dirs[1]]).fine();
    eventually("the conflicts are found", || {
        (status_of(study, &dirs[1])["conflicts"] == 3).then_some(())
    });
    study
        .run(&["status", &dirs[1]])
        .ends_with(4)
        .says("3 conflicts")
        .says("byteback conflicts");
    let reported = study.run(&["conflicts", "--folder", &dirs[1]]).fine();
    reported
        .says("a.txt")
        .says("a (conflict from study, ")
        .says("3 conflicts");
    let decide = |keep: &str, file: &str| {
        study
            .run(&["conflicts", "--folder", &dirs[1], "--keep", keep, file])
            .fine()
            .says("1 conflict decided");
    };
    decide("mine", path(1, "a.txt").to_str().unwrap());
    decide("theirs", "b.txt");
    decide("both", "c.txt");
    study
        .run(&["conflicts", "--folder", &dirs[1], "--keep", "mine", "b.txt"])
        .ends_with(1)
        .says("is not in conflict");
    study
        .run(&["conflicts", "--folder", &dirs[1]])
        .fine()
        .says("no conflicts");
    for at in [0, 1] {
        wait_until_holds(&path(at, "a.txt"), "study");
        wait_until_holds(&path(at, "b.txt"), "kitchen");
        wait_until_holds(&path(at, "c.txt"), "kitchen");
        wait_until_holds(&path(at, "c (2).txt"), "study");
        eventually("nothing else is there", || {
            (fs::read_dir(&dirs[at]).unwrap().count() == 4).then_some(())
        });
    }
    for (machine, dir) in machines.iter().zip(&dirs) {
        machine.run(&["umount", dir]).fine();
    }
}

/// The middle of the line in `status` of a machine that begins with `begin` and ends with `end`.
fn text_between(machine: &Machine<'_>, dir: &str, begin: &str, end: &str) -> Option<String> {
    let said = machine.run(&["status", dir]).ends_with(0).stdout;
    let mut lines = said.lines();
    lines.find_map(|line| Some(line.trim().strip_prefix(begin)?.strip_suffix(end)?.to_owned()))
}

#[test]
fn status_tells_when_the_last_change_was_received() {
    let world = served();
    let machines = ["kitchen", "study"].map(|name| Machine::new(&world, name));
    let [kitchen, study] = &machines;
    let dirs = [kitchen.dir("home"), study.dir("home")];
    let file = world.path("data/join-token");
    kitchen.run(&["join", file.to_str().unwrap(), &dirs[0]]).fine();
    fs::write(Path::new(&dirs[0]).join("a.txt"), "from the kitchen").unwrap();
    kitchen.run(&["sync", "--delay", "0", &dirs[0]]).fine();
    settled(kitchen, &dirs[0]);
    // Its own changes do not count as received.
    let last_received = || text_between(kitchen, &dirs[0], "last change received ", " ago");
    assert_eq!(last_received(), None);
    study.run(&["join", &invite(&world, &["home"]), &dirs[1]]).fine();
    study.run(&["sync", "--delay", "0", &dirs[1]]).fine();
    fs::write(Path::new(&dirs[1]).join("b.txt"), "from the study").unwrap();
    wait_until_holds(&Path::new(&dirs[0]).join("b.txt"), "from the study");
    eventually("it is told in seconds", || {
        let seconds = last_received()?;
        seconds.strip_suffix(" seconds")?.parse::<u64>().ok()
    });
    for (machine, dir) in machines.iter().zip(&dirs) {
        machine.run(&["umount", dir]).fine();
    }
}

#[test]
fn status_tells_how_many_changes_of_others_are_to_come() {
    let world = served();
    let machines = ["kitchen", "study"].map(|name| Machine::new(&world, name));
    let [kitchen, study] = &machines;
    let dirs = [kitchen.dir("home"), study.dir("home")];
    let file = world.path("data/join-token");
    kitchen.run(&["join", file.to_str().unwrap(), &dirs[0]]).fine();
    let content = noise(6, 4_000_000);
    fs::write(Path::new(&dirs[0]).join("large"), &content).unwrap();
    kitchen.run(&["sync", "--delay", "0", &dirs[0]]).fine();
    settled(kitchen, &dirs[0]);
    study.run(&["join", &invite(&world, &["home"]), &dirs[1]]).fine();
    // Slow enough to be under way while the test looks at it.
    study
        .run(&["sync", "--delay", "0", "--limit-rate", "32K", &dirs[1]])
        .fine();
    eventually("what is to come is counted", || {
        let reported = text_between(study, &dirs[1], "", " from other machines to come")?;
        let count = reported
            .strip_suffix(" changes")
            .or_else(|| reported.strip_suffix(" change"))?;
        count.parse::<u64>().ok().filter(|count| *count > 0)
    });
    study
        .run(&["status", "--check", &dirs[1]])
        .ends_with(5)
        .says("changes from other machines are still to come");
    study.run(&["sync", "--limit-rate", "unlimited", &dirs[1]]).fine();
    eventually("it is here", || {
        fs::read(Path::new(&dirs[1]).join("large"))
            .is_ok_and(|bytes| bytes == content)
            .then_some(())
    });
    eventually("nothing is to come", || {
        let to_come = text_between(study, &dirs[1], "", "to come");
        to_come.is_none().then_some(())
    });
    for (machine, dir) in machines.iter().zip(&dirs) {
        machine.run(&["umount", dir]).fine();
    }
}

#[test]
fn status_tells_how_many_files_are_compared() {
    const FILES: usize = 200;
    let world = served();
    let machines = ["kitchen", "study"].map(|name| Machine::new(&world, name));
    let [kitchen, study] = &machines;
    let dirs = [kitchen.dir("home"), study.dir("home")];
    // Too long for digests of many files in one request: each file costs a request.
    let fill = |dir: &str| {
        for number in 0..FILES {
            fs::write(Path::new(dir).join(number.to_string()), noise(number as u64, 70_000)).unwrap();
        }
    };
    let file = world.path("data/join-token");
    kitchen.run(&["join", file.to_str().unwrap(), &dirs[0]]).fine();
    fill(&dirs[0]);
    kitchen.run(&["sync", "--delay", "0", &dirs[0]]).fine();
    settled(kitchen, &dirs[0]);
    study.run(&["join", &invite(&world, &["home"]), &dirs[1]]).fine();
    fill(&dirs[1]);
    // Slow enough to be observed.
    study
        .run(&["sync", "--delay", "0", "--limit-rate", "32K", &dirs[1]])
        .fine();
    let (done, total) = eventually("it is told how much is compared", || {
        let reported = text_between(study, &dirs[1], "comparing local files with the server: ", " files")?;
        let (done, total) = reported.split_once(" of ")?;
        Some((done.parse::<usize>().unwrap(), total.parse::<usize>().unwrap()))
    });
    assert!(done <= total && total == FILES, "{done} of {total}");
    study.run(&["sync", "--limit-rate", "unlimited", &dirs[1]]).fine();
    eventually("all is compared", || {
        let sync = status_of(study, &dirs[1]);
        (sync["receiving"] == false && sync["last_received"].is_string()).then_some(())
    });
    settled(study, &dirs[1]);
    // Equal files become one.
    for (machine, dir) in machines.iter().zip(&dirs) {
        assert_eq!(status_of(machine, dir)["conflicts"], 0);
        assert_eq!(fs::read_dir(dir).unwrap().count(), FILES);
        machine.run(&["umount", dir]).fine();
    }
}

#[test]
fn directories_have_the_time_of_their_last_name_on_all_machines() {
    let world = served();
    let machines = ["kitchen", "study"].map(|name| Machine::new(&world, name));
    let [kitchen, study] = &machines;
    let dirs = [kitchen.dir("home"), study.dir("home")];
    let path = |at: usize, name: &str| PathBuf::from(&dirs[at]).join(name);
    let file = world.path("data/join-token");
    kitchen.run(&["join", file.to_str().unwrap(), &dirs[0]]).fine();
    fs::create_dir_all(path(0, "letters/old")).unwrap();
    fs::write(path(0, "letters/one"), "one").unwrap();
    // All times in the folder when it is first sent are this old.
    for name in ["letters/old", "letters", ""] {
        set_time(&path(0, name), 1_000_000_000);
    }
    kitchen.run(&["sync", "--delay", "0", &dirs[0]]).fine();
    study.run(&["join", &invite(&world, &["home"]), &dirs[1]]).fine();
    study.run(&["sync", "--delay", "0", &dirs[1]]).fine();
    let time_of = |at: usize, name: &str| {
        // The entry may not have arrived yet.
        fs::metadata(path(at, name)).map_or((0, 0), |found| (found.mtime(), found.mtime_nsec()))
    };
    let wait_until_same = |name: &str, what: &str| {
        let mut last = None;
        eventually(&format!("{what}, both have the same time of '{name}'"), || {
            let quiet = machines.iter().zip(&dirs).all(|(machine, dir)| {
                let sync = status_of(machine, dir);
                sync["waiting_changes"] == 0 && sync["groups_in_flight"] == 0 && sync["folded"] == false
            });
            let times = [time_of(0, name), time_of(1, name)];
            let is_same = quiet && times[0] == times[1] && times[0] != (0, 0) && last == Some(times);
            last = Some(times);
            is_same.then_some(())
        });
        time_of(0, name)
    };
    assert_eq!(wait_until_same("letters", "at first").0, 1_000_000_000);
    // A new name in the study changes the directory's time in the kitchen.
    fs::write(path(1, "letters/two"), "two").unwrap();
    wait_until_holds(&path(0, "letters/two"), "two");
    let two = wait_until_same("letters", "with a new name");
    assert!(two.0 > 1_000_000_000);
    assert_eq!(time_of(0, "letters/old").0, 1_000_000_000);
    // A name that came and went before it was sent.
    fs::write(path(1, "letters/.swap"), "").unwrap();
    fs::remove_file(path(1, "letters/.swap")).unwrap();
    eventually("the time moves without a name", || {
        (time_of(0, "letters") > two).then_some(())
    });
    wait_until_same("letters", "without a new name");
    // Both at once: the later time wins, whichever arrives first, and there is no conflict.
    for round in 0..10 {
        for at in [0, 1] {
            fs::write(path(at, &format!("letters/of {at}, {round}")), "").unwrap();
        }
        for at in [0, 1] {
            fs::remove_file(path(at, &format!("letters/of {at}, {round}"))).unwrap();
            fs::write(path(at, &format!("letters/old/of {at}, {round}")), "").unwrap();
        }
    }
    for name in ["letters", "letters/old", ""] {
        wait_until_same(name, "after both worked");
    }
    // A time set by a program counts even if it is older.
    set_time(&path(0, "letters/old"), 900_000_000);
    eventually("the study has the old time", || {
        (time_of(1, "letters/old").0 == 900_000_000).then_some(())
    });
    for (at, (machine, dir)) in machines.iter().zip(&dirs).enumerate() {
        assert_eq!(status_of(machine, dir)["conflicts"], 0);
        machine.run(&["umount", dir]).fine();
        // Below the mount as well.
        assert_eq!(time_of(at, "letters/old").0, 900_000_000);
    }
}

fn set_time(path: &Path, seconds: i64) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    utimensat(rustix::fs::CWD, path, &times, AtFlags::empty()).unwrap();
}

#[test]
fn ignored_files_are_not_sent_or_changed_until_their_rule_goes() {
    let world = served();
    let machines = ["kitchen", "study"].map(|name| Machine::new(&world, name));
    let [kitchen, study] = &machines;
    let dirs = [kitchen.dir("home"), study.dir("home")];
    let path = |at: usize, name: &str| PathBuf::from(&dirs[at]).join(name);
    let is_sent = |at: usize| {
        let sync = status_of(&machines[at], &dirs[at]);
        sync["waiting_changes"] == 0 && sync["groups_in_flight"] == 0 && sync["folded"] == false
    };
    let file = world.path("data/join-token");
    kitchen.run(&["join", file.to_str().unwrap(), &dirs[0]]).fine();
    // Rules that exist when the folder is first sent apply from the beginning.
    fs::write(path(0, ".bytebackignore"), "*.log\na[b-a]\n").unwrap();
    fs::write(path(0, "a.log"), "of the kitchen").unwrap();
    fs::create_dir(path(0, "target")).unwrap();
    fs::write(
        path(0, "target/CACHEDIR.TAG"),
        "Signature: 8a477f597d28d172789f06886806bc55\n",
    )
    .unwrap();
    fs::write(path(0, "target/object"), "object").unwrap();
    fs::write(path(0, "shared"), "shared").unwrap();
    kitchen.run(&["sync", "--delay", "0", &dirs[0]]).fine();
    study.run(&["join", &invite(&world, &["home"]), &dirs[1]]).fine();
    study.run(&["sync", "--delay", "0", &dirs[1]]).fine();
    wait_until_holds(&path(1, "shared"), "shared");
    wait_until_holds(&path(1, ".bytebackignore"), "*.log\na[b-a]\n");
    eventually("the rules are in force in the study", || {
        (status_of(study, &dirs[1])["ignored_by"][0] == ".bytebackignore").then_some(())
    });
    fs::write(path(1, "b.log"), "of the study").unwrap();
    fs::write(path(1, "marker"), "marker").unwrap();
    wait_until_holds(&path(0, "marker"), "marker");
    for (at, names) in [(0, ["b.log"].as_slice()), (1, &["a.log", "target"])] {
        for name in names {
            assert!(!path(at, name).exists(), "{name}");
        }
    }
    let reported = status_of(kitchen, &dirs[0]);
    // The log, the cache, its tag and its content.
    assert_eq!(
        (&reported["ignored_here"], &reported["ignored_there"]),
        (&Value::from(4), &Value::from(0)),
        "{reported}"
    );
    assert_eq!(
        reported["ignored_by"],
        serde_json::json!([".bytebackignore", "target/CACHEDIR.TAG"])
    );
    assert_eq!(
        (&reported["ignore_files"], &reported["unusable_rules"][0]["line"]),
        (&Value::from(2), &Value::from(2)),
        "{reported}"
    );
    kitchen
        .run(&["status", &dirs[0]])
        .fine()
        .says("4 files and directories here are ignored")
        .says("by target/CACHEDIR.TAG")
        .says("line 2 of .bytebackignore has no effect");

    // A file on both machines becomes ignored: each keeps its copy, and changes of one stay on that
    // machine.
    fs::write(path(0, ".bytebackignore"), "*.log\nshared\n").unwrap();
    for at in [0, 1] {
        eventually("what both have is ignored", || {
            (status_of(&machines[at], &dirs[at])["ignored_there"] == 1 && is_sent(at)).then_some(())
        });
    }
    fs::remove_file(path(1, "shared")).unwrap();
    study.run(&["umount", &dirs[1]]).fine();
    study.run(&["sync", "--delay", "0", &dirs[1]]).fine();
    fs::write(path(1, "marker"), "again").unwrap();
    wait_until_holds(&path(0, "marker"), "again");
    assert_eq!(fs::read_to_string(path(0, "shared")).unwrap(), "shared");

    // The rules are removed; the former cache and the formerly ignored files are sent.
    fs::remove_file(path(0, "target/CACHEDIR.TAG")).unwrap();
    fs::remove_file(path(0, ".bytebackignore")).unwrap();
    wait_until_holds(&path(1, "a.log"), "of the kitchen");
    wait_until_holds(&path(0, "b.log"), "of the study");
    wait_until_holds(&path(1, "target/object"), "object");
    wait_until_holds(&path(1, "shared"), "shared");
    for at in [0, 1] {
        eventually("nothing is ignored", || {
            let sync = status_of(&machines[at], &dirs[at]);
            (sync["ignored_here"] == 0 && sync["ignored_there"] == 0 && sync["conflicts"] == 0).then_some(())
        });
        machines[at].run(&["umount", &dirs[at]]).fine();
    }
}
