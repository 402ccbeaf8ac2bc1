//! Failures: their messages, their exit codes, and that the next run completes.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Child, Command, Stdio};

use byteback_host::random::noise;
use byteback_testkit::command::{Ran, ended, finish, run_by};
use byteback_testkit::mounts::is_mounted;
use byteback_testkit::processes::signal;
use byteback_testkit::tools::run;
use byteback_testkit::waiting::{eventually, settle};
use rustix::process::Signal;
use serde_json::Value;

use crate::world::{DeviceForAll, USER, World};

/// Long enough to interfere in the middle.
const LONG_BYTES: usize = 96 << 20;

/// Starts a backup and returns when the server has received a part of it.
fn start_long_backup(world: &World) -> Child {
    backup_that_has_sent(world, 8 << 20)
}

/// Starts a backup and returns when the server has received more than `bytes` of it.
fn backup_that_has_sent(world: &World, bytes: u64) -> Child {
    let stored = || -> u64 {
        let segments = fs::read_dir(world.path("data/segments")).unwrap();
        segments.map(|segment| segment.unwrap().metadata().unwrap().len()).sum()
    };
    let before = stored();
    let tree = world.tree();
    let child = world
        .command(&["backup", "--json", tree.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("a part has arrived", || (stored() > before + bytes).then_some(()));
    child
}

#[test]
fn backup_waits_for_a_server_that_dies_and_comes_back() {
    let mut world = World::mounted();
    fs::write(world.tree().join("long"), noise(1, LONG_BYTES)).unwrap();
    let child = start_long_backup(&world);
    world.kill_server();
    world.serve();
    let ran = ended("backup", child).ends_with(0);
    assert_eq!(ran.line("summary")["snapshot_id"], 1);
    let reported: Vec<Value> = ran.json_errors();
    assert!(
        reported.iter().all(|line| line["message_type"] == "verbose_status"),
        "{reported:?}"
    );
    world.about_tree("verify", &["--deep"]).fine();
}

#[test]
fn backup_awaiting_a_lost_server_ends_when_asked_without_loss() {
    let mut world = World::mounted();
    fs::write(world.tree().join("before"), "before").unwrap();
    world.backup();
    fs::write(world.tree().join("long"), noise(1, LONG_BYTES)).unwrap();
    let mut child = start_long_backup(&world);
    world.kill_server();
    // Asked to stop once it reports that it waits.
    let mut said = String::new();
    let mut stderr = child.stderr.take().unwrap();
    let mut byte = [0];
    while !said.contains("trying again") {
        stderr.read_exact(&mut byte).expect("it ended instead of waiting");
        said.push(char::from(byte[0]));
    }
    signal(&child, Signal::INT);
    ended("backup", child).ends_with(130);
    world.serve();
    // Nothing of the backup counts, and the store is intact.
    assert_eq!(world.about_tree("snapshots", &["--json"]).fine().json().len(), 1);
    world.about_tree("verify", &[]).fine();
    let report = world.backup();
    assert_eq!(
        (&report["files_new"], &report["everything_because"]),
        (&Value::from(1), &Value::Null),
        "{report}"
    );
    world.assert_restores("latest");
}

#[test]
fn a_server_that_is_not_there_is_said_to_be() {
    let mut world = World::mounted();
    world.kill_server();
    world
        .on_tree("backup", &[])
        .ends_with(1)
        .says("cannot reach https://127.0.0.1:")
        .says(": connection refused")
        .says("Check that the server is running");
    let reported = world.on_tree("backup", &["--json"]).ends_with(1).json_errors();
    let last = reported.last().unwrap();
    assert_eq!(
        (&last["message_type"], &last["code"]),
        (&Value::from("exit_error"), &Value::from(1))
    );
    // Commands that need no server continue to work.
    world.on_tree("changes", &[]).fine();
    world.on_tree("status", &[]).fine();
}

#[test]
fn ctrl_c_in_the_middle_saves_nothing_and_loses_nothing() {
    let world = World::mounted();
    fs::write(world.tree().join("long"), noise(1, LONG_BYTES)).unwrap();
    let child = start_long_backup(&world);
    signal(&child, Signal::INT);
    let ran = ended("backup", child);
    // The backup may have been past the point of no return; its exit code says so.
    let is_saved = match ran.code() {
        Some(0) => 1,
        Some(130) => 0,
        _ => panic!("{ran:?}"),
    };
    assert_eq!(world.about_tree("snapshots", &["--json"]).fine().json().len(), is_saved);
    world.backup();
    world.assert_restores("latest");
}

/// Kills a backup in the middle of a new file, and checks how much of it the next one sends.
fn assert_resumes_after_kill(world: &World) {
    // Eight parts of a batch; at the kill two are at the server, and the third is on its way.
    const LONG: usize = 128 << 20;
    const STAGED: u64 = 24 << 20;
    fs::write(world.tree().join("before"), "before").unwrap();
    world.backup();
    fs::write(world.tree().join("long"), noise(4, LONG)).unwrap();
    settle();
    let mut child = backup_that_has_sent(world, 40 << 20);
    child.kill().unwrap();
    let ended = child.wait().unwrap();
    assert_eq!(ended.code(), None, "it ended before it was killed");
    assert_eq!(
        world.about_tree("snapshots", &["--json"]).fine().json().len(),
        1,
        "nothing was applied"
    );
    let report = world.backup();
    let (reused, sent) = (&report["reused_bytes"], &report["wire"]["sent"]);
    let (reused, sent) = (reused.as_u64().unwrap(), sent.as_u64().unwrap());
    assert!(reused > STAGED, "{report}");
    assert!(sent + reused < LONG as u64 + (1 << 20), "{report}");
    assert_eq!(report["snapshot_id"], 2, "{report}");
    world.assert_restores("latest");
    // The interrupted batch is finished: a later change is sent by itself.
    fs::write(world.tree().join("after"), "after").unwrap();
    settle();
    assert_eq!(world.backup()["reused_bytes"], 0);
}

#[test]
fn a_backup_that_is_killed_goes_on_where_it_stopped() {
    assert_resumes_after_kill(&World::mounted());
}

#[test]
fn an_unmounted_backup_that_is_killed_goes_on_where_it_stopped() {
    assert_resumes_after_kill(&World::served());
}

#[test]
fn a_folder_that_a_backup_is_using_is_locked_until_it_ends() {
    let world = World::served();
    fs::write(world.tree().join("long"), noise(1, LONG_BYTES)).unwrap();
    let first = start_long_backup(&world);
    for command in ["backup", "mount", "changes"] {
        world.on_tree(command, &[]).ends_with(11).says("already in use");
    }
    world.on_tree("status", &[]).fine().says("in use by another command");
    ended("backup", first).ends_with(0);
    world.backup();
    world.assert_restores("latest");
}

#[test]
fn a_folder_that_is_gone_is_said_to_be_and_can_be_brought_back() {
    let world = World::served();
    fs::write(world.tree().join("a"), "a").unwrap();
    world.backup();
    fs::rename(world.tree(), world.path("away")).unwrap();
    world.run(&["status"]).fine().says("is gone").says("byteback restore");
    let tree = world.tree();
    world
        .run(&[
            "restore",
            "latest",
            "-r",
            &world.repository(),
            "--target",
            tree.to_str().unwrap(),
        ])
        .fine();
    assert_eq!(fs::read_to_string(tree.join("a")).unwrap(), "a");
    // The warning about another directory is given once.
    world.on_tree("backup", &[]).ends_with(0).says("may not be the folder");
    world.backup();
    world.assert_restores("latest");
}

#[test]
fn a_state_folder_inside_the_folder_is_refused() {
    let world = World::served();
    fs::create_dir(world.path("home/state/below")).unwrap();
    let home = world.path("home");
    world
        .run(&["mount", home.to_str().unwrap()])
        .ends_with(1)
        .says("--state-dir");
    assert!(!is_mounted(&home));
}

#[test]
fn a_second_folder_in_the_same_place_of_the_server_is_warned_of() {
    let world = World::served();
    fs::write(world.tree().join("a"), "a").unwrap();
    world.backup();
    world.init().fine();
    fs::create_dir(world.path("second")).unwrap();
    world
        .run(&["init", "second", "-r", &world.repository()])
        .ends_with(0)
        .says("holds backups of")
        .says("choose another name");
}

#[test]
fn a_join_token_can_be_piped_and_is_used_up() {
    let world = World::served();
    fs::create_dir(world.path("piped")).unwrap();
    let token = world.run(&["invite", "--admin", "--data", "data"]).ends_with(0).stdout;
    let repository = format!("{}/piped", world.url());
    for code in [0, 12] {
        fs::write(world.path("token"), &token).unwrap();
        let mut command = world.command(&["init", "piped", "-r", &repository, "--join-token", "-"]);
        command
            .env("XDG_CONFIG_HOME", world.path(&format!("config-{code}")))
            .stdin(fs::File::open(world.path("token")).unwrap());
        finish("init", command).ends_with(code);
    }
}

#[test]
fn wrong_missing_and_foreign_tokens_end_with_12() {
    let mut world = World::served();
    let tokens = world.path("home/config/byteback/tokens");
    let path = fs::read_dir(&tokens).unwrap().next().unwrap().unwrap().path();
    let token = fs::read_to_string(&path).unwrap();
    let at = token.rfind("bbd_").unwrap() + 8;
    let wrong = format!(
        "{}{}{}",
        &token[..at],
        if &token[at..=at] == "A" { "B" } else { "A" },
        &token[at + 1..]
    );
    let given = world.path("wrong");
    let file = given.to_str().unwrap().to_owned();
    let try_it = |world: &World| world.on_tree("backup", &["--token-file", &file]).ends_with(12);
    try_it(&world).says("has no token");
    fs::write(&given, &wrong).unwrap();
    let refused = try_it(&world).says("does not accept the token").says("--token-file");
    assert!(
        !refused.stderr.contains(&wrong[at..]),
        "a token is a secret: {}",
        refused.stderr
    );
    fs::write(&given, "something else").unwrap();
    try_it(&world).says("not a token file");
    // A token is never presented to another server.
    fs::write(&given, token.replace("https://127", "https://126")).unwrap();
    try_it(&world).says("not for");
    world.on_tree("backup", &[]).fine();

    // A machine that never joined is told how to join.
    fs::remove_file(&path).unwrap();
    world.on_tree("backup", &[]).ends_with(12).says("byteback invite");
    world.init().ends_with(12).says("already used");
    world.kill_server();
}

#[test]
fn what_is_not_bound_or_not_there_is_said_to_be() {
    let world = World::served();
    let nowhere = world.run(&["backup", "nowhere"]).ends_with(1);
    assert_eq!(
        nowhere.stderr,
        "byteback: cannot find nowhere: No such file or directory\n  Check the path: it must exist.\n"
    );
    fs::create_dir(world.path("unbound")).unwrap();
    world.run(&["backup", "unbound"]).ends_with(10).says("byteback init");
    fs::create_dir(world.tree().join("below")).unwrap();
    world
        .run(&["backup", "tree/below"])
        .ends_with(10)
        .says("A folder above it is");
    world.run(&["snapshots"]).ends_with(10).says("Name a folder");
    let missing = format!("{}/nobody", world.url());
    world
        .run(&["snapshots", "-r", &missing])
        .ends_with(10)
        .says("nobody")
        .says("byteback init");
    let elsewhere = format!("{}/elsewhere", world.url());
    world
        .on_tree("init", &["-r", &elsewhere])
        .ends_with(1)
        .says("already bound");
    fs::write(world.path("file"), "").unwrap();
    world.run(&["mount", "file"]).ends_with(1).says("is a file");
    world.run(&["invite", "--admin", "--data", "nowhere"]).ends_with(10);
    world
        .run(&["serve", "--data", "data", "--listen", "127.0.0.1:0"])
        .ends_with(11)
        .says("in use");
    // Found from within, without being named.
    let mut command = world.command(&["snapshots"]);
    command.current_dir(world.tree().join("below"));
    finish("snapshots", command).fine().says("No snapshots");
}

#[test]
fn server_with_a_full_disk_refuses_a_backup_and_keeps_old_ones() {
    let mut world = World::new();
    let disk = world.small_disk("data", "24m");
    world.serve();
    world.init().fine();
    world.on_tree("mount", &[]).fine();
    fs::write(world.tree().join("fits"), noise(1, 5 << 20)).unwrap();
    world.backup();
    fs::write(world.tree().join("does not fit"), noise(2, 40 << 20)).unwrap();
    world
        .on_tree("backup", &[])
        .ends_with(1)
        .says("disk is full")
        .says("Free space on the server");
    assert_eq!(world.about_tree("snapshots", &["--json"]).fine().json().len(), 1);
    world.about_tree("verify", &[]).fine();
    run("mount", &["-o", "remount,size=100m", disk.to_str().unwrap()]);
    let report = world.backup();
    assert_eq!(
        (&report["files_new"], &report["everything_because"]),
        (&Value::from(1), &Value::Null),
        "{report}"
    );
    world.assert_restores("latest");
}

#[test]
fn restore_reports_a_full_disk_and_the_next_one_completes_it() {
    let mut world = World::served();
    fs::write(world.tree().join("a"), noise(1, 3 << 20)).unwrap();
    fs::write(world.tree().join("b"), noise(2, 12 << 20)).unwrap();
    world.backup();
    let disk = world.small_disk("small", "8m");
    let target = disk.join("restored");
    let target = target.to_str().unwrap();
    let failed = world.about_tree("restore", &["latest", "--target", target]);
    assert_eq!(failed.code(), Some(1), "{failed:?}");
    let failed = failed.says("No space left");
    assert!(failed.stderr.contains("overwrit"), "{}", failed.stderr);
    run("mount", &["-o", "remount,size=64m", disk.to_str().unwrap()]);
    world
        .about_tree("restore", &["latest", "--target", target, "--overwrite"])
        .fine();
    for name in ["a", "b"] {
        assert!(fs::read(world.tree().join(name)).unwrap() == fs::read(format!("{target}/{name}")).unwrap());
    }
}

#[test]
fn folder_on_a_full_disk_fails_programs_but_not_the_backup() {
    let mut world = World::new();
    world.small_disk("tree", "8m");
    world.serve();
    world.init().fine();
    world.on_tree("mount", &[]).fine();
    let full = fs::write(world.tree().join("too large"), noise(1, 12 << 20)).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    world.backup();
    world.assert_restores("latest");
}

#[test]
fn a_truncated_segment_is_found_named_and_mended_by_a_backup() {
    let mut world = World::mounted();
    fs::write(world.tree().join("spared"), noise(1, 1 << 20)).unwrap();
    world.backup();
    fs::write(world.tree().join("hit"), noise(2, 4 << 20)).unwrap();
    world.backup();
    world.stop_server();
    let segments = fs::read_dir(world.path("data/segments")).unwrap();
    let segment = segments.map(|segment| segment.unwrap().path()).max().unwrap();
    let len = segment.metadata().unwrap().len();
    fs::OpenOptions::new()
        .write(true)
        .open(&segment)
        .unwrap()
        .set_len(len - 1_000_000)
        .unwrap();
    world.serve();

    world.about_tree("verify", &["1"]).fine();
    world
        .about_tree("verify", &[])
        .ends_with(1)
        .says("hit")
        .says("is damaged at offset")
        .says("can be healed");
    let summary = world.about_tree("verify", &["--json"]).ends_with(1).line("summary");
    assert_eq!(
        (&summary["clean"], &summary["damaged"][0]["path"]),
        (&Value::Bool(false), &Value::from("hit"))
    );

    // Damage does not keep other files from being compared.
    fs::write(world.tree().join("spared"), "differs").unwrap();
    let deep = world.about_tree("verify", &["--deep"]).ends_with(1);
    deep.says("spared: has").says("hit");
    fs::write(world.tree().join("spared"), noise(1, 1 << 20)).unwrap();

    // Intact files are restored, damaged ones are named.
    let target = world.path("rescued");
    let restored = world.about_tree("restore", &["latest", "--target", target.to_str().unwrap()]);
    assert_eq!(restored.code(), Some(1), "{restored:?}");
    restored.says("hit");
    assert!(fs::read(target.join("spared")).unwrap() == noise(1, 1 << 20));
    assert!(!target.join("hit").exists(), "a name stands for whole content");

    // The end of a segment has no headers that could prove its content, so the file is sent anew
    // although it has not changed.
    world.on_tree("backup", &[]).fine().says("could not be healed there");
    world.about_tree("verify", &["--deep"]).fine();
    world.assert_restores("latest");
}

#[test]
fn a_damaged_log_is_set_aside_and_stops_nobody() {
    let world = World::mounted();
    fs::write(world.tree().join("a"), "a").unwrap();
    world.backup();
    world.on_tree("umount", &[]).fine();
    let trees = fs::read_dir(world.path("home/state/trees")).unwrap();
    let state = trees
        .map(|tree| tree.unwrap().path())
        .find(|path| path.is_dir())
        .unwrap();
    let log = state.join("log.redb");
    let mut bytes = fs::read(&log).unwrap();
    for byte in bytes.iter_mut().skip(4096) {
        *byte ^= 0x55;
    }
    fs::write(&log, bytes).unwrap();
    // The damaged log is set aside, and a new one begins.
    world.on_tree("mount", &[]).fine();
    assert!(state.join("log.redb.damaged").exists());
    world.run(&["status"]).fine();
    let backup = world.on_tree("backup", &["--json"]).ends_with(0).says("log was lost");
    let report = backup.line("summary");
    assert!(report["everything_because"].is_string(), "{report}");
    world.assert_restores("latest");
}

#[test]
fn restore_by_a_user_gives_contents_and_names_what_is_missing() {
    let world = World::served();
    let tree = world.tree();
    for (name, mode) in [("theirs", 0o644), ("set-id", 0o4755)] {
        fs::write(tree.join(name), name).unwrap();
        chown(tree.join(name), Some(1000), Some(1000)).unwrap();
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    run("mknod", &[tree.join("null").to_str().unwrap(), "c", "1", "3"]);
    world.backup();
    // A device of the user's own, since tokens are not shared.
    let token = world.run(&["invite", "--admin", "--data", "data"]).ends_with(0).stdout;
    world.run_as_user(&["--help"]).fine();
    let own = world.path("user/own");
    fs::create_dir(&own).unwrap();
    let repository = format!("{}/own", world.url());
    world
        .run_as_user(&[
            "init",
            own.to_str().unwrap(),
            "-r",
            &repository,
            "--join-token",
            token.trim(),
        ])
        .fine();
    let target = world.path("user/restored");
    let ran = world.run_as_user(&[
        "restore",
        "latest",
        "-r",
        &world.repository(),
        "--target",
        target.to_str().unwrap(),
    ]);
    ran.ends_with(1)
        .says("3 owners")
        .says("1 set-id bit")
        .says("1 device")
        .says("as root");
    for name in ["theirs", "set-id"] {
        assert_eq!(fs::read_to_string(target.join(name)).unwrap(), name);
    }
    // A program must never run as a user other than its maker.
    assert_eq!(
        fs::metadata(target.join("set-id")).unwrap().permissions().mode() & 0o7000,
        0
    );
}

fn unreadable(mounted: bool) {
    let _device = DeviceForAll::new();
    let world = World::served();
    let folder = world.path("theirs");
    fs::create_dir_all(folder.join("closed")).unwrap();
    for (name, mode) in [("open", 0o600), ("secret", 0o600), ("closed/inside", 0o600)] {
        let path = folder.join(name);
        fs::write(&path, name).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        chown(&path, Some(USER), Some(USER)).unwrap();
    }
    for path in [&folder, &folder.join("closed")] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    // Files of another user in this user's folder.
    let close = |uid: u32| {
        for path in [folder.join("secret"), folder.join("closed")] {
            let mode = if path.is_dir() { 0o700 } else { 0o600 };
            chown(&path, Some(uid), Some(uid)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    close(0);
    let theirs = folder.to_str().unwrap();
    let repository = format!("{}/theirs", world.url());
    let token = world.run(&["invite", "--admin", "--data", "data"]).ends_with(0).stdout;
    world
        .run_as_user(&["init", theirs, "-r", &repository, "--join-token", token.trim()])
        .fine();
    if mounted {
        world.run_as_user(&["mount", theirs]).ends_with(0).says("closed");
    }
    let backup = || -> Ran { world.run_as_user(&["backup", "--json", theirs]) };
    for _ in 0..2 {
        let ran = backup().ends_with(3);
        let summary = ran.line("summary");
        let mut unsaved: Vec<_> = summary["unsaved"]
            .as_array()
            .unwrap()
            .iter()
            .map(|file| &file["path"])
            .collect();
        unsaved.sort_by_key(|path| path.to_string());
        assert_eq!(unsaved, ["closed", "secret"], "{summary}");
        let reported = ran.json_errors();
        assert!(
            reported
                .iter()
                .any(|line| line["message_type"] == "error" && line["item"] == "secret"),
            "{reported:?}"
        );
        assert!(summary["snapshot_id"].is_u64(), "the rest is saved: {summary}");
    }
    world
        .run_as_user(&["backup", theirs])
        .ends_with(3)
        .says("secret")
        .says("Permission denied")
        .says("tries again");
    world.run_as_user(&["changes", theirs]).ends_with(0).says("closed: ");
    if mounted {
        world.run_as_user(&["umount", theirs]).fine();
    }
    close(USER);
    if mounted {
        world.run_as_user(&["mount", theirs]).fine();
    }
    let summary = backup().fine().line("summary");
    assert_eq!(summary["unsaved"], serde_json::json!([]), "{summary}");
    let target = world.path("user/restored");
    world
        .run_as_user(&[
            "restore",
            "latest",
            "--dir",
            theirs,
            "--target",
            target.to_str().unwrap(),
        ])
        .fine();
    for name in ["open", "secret", "closed/inside"] {
        assert_eq!(fs::read_to_string(target.join(name)).unwrap(), name);
    }
}

#[test]
fn backup_reports_unreadable_files_and_saves_the_rest_unmounted() {
    unreadable(false);
}

#[test]
fn backup_reports_unreadable_files_and_saves_the_rest_mounted() {
    unreadable(true);
}

/// One small file in each directory: a batch of them has more directories than a process may have
/// open files.
#[test]
fn restore_of_many_directories_needs_few_open_files() {
    let world = World::served();
    for number in 0..1500 {
        let directory = world.tree().join(format!("d{number}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("file"), noise(number, 100)).unwrap();
    }
    world.backup();
    let target = world.path("restored");
    let (tree, target_text) = (world.tree(), target.to_str().unwrap());
    let restore = world.command(&[
        "restore",
        "latest",
        "--target",
        target_text,
        "--dir",
        tree.to_str().unwrap(),
    ]);
    let mut few_files = Command::new("prlimit");
    few_files.arg("--nofile=200");
    finish("restore with few open files", run_by(few_files, &restore)).fine();
    let file = |number: u64| fs::read(target.join(format!("d{number}/file"))).unwrap();
    assert!((0..1500).all(|number| file(number) == noise(number, 100)));
}
