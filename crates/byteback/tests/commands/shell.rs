//! The command line itself: completions, help, wrong usage, and readers that go away.

use std::fs;
use std::io::Read;
use std::process::Stdio;

use byteback_testkit::command::{ended, finish};
use byteback_testkit::tools::run;

use crate::world::World;

#[test]
fn completions_are_what_the_shells_accept() {
    let world = World::new();
    let script = world.run(&["completions", "bash"]).fine().stdout;
    assert!(script.contains("--join-token-file"));
    let path = world.path("byteback.bash");
    fs::write(&path, script).unwrap();
    run("bash", &["-n", path.to_str().unwrap()]);
    // They do complete: a verb from its first letters.
    let completed = "source \"$0\"; COMP_WORDS=(byteback umo); COMP_CWORD=1; _byteback byteback umo byteback; echo \"${COMPREPLY[@]}\"";
    assert_eq!(run("bash", &["-c", completed, path.to_str().unwrap()]).trim(), "umount");
    for shell in ["zsh", "fish"] {
        assert!(
            world.run(&["completions", shell]).fine().stdout.contains("umount"),
            "{shell}"
        );
    }
}

#[test]
fn every_command_has_a_manual_page_that_is_well_formed() {
    let world = World::new();
    let dir = world.path("man");
    world.run(&["man-pages", dir.to_str().unwrap()]).fine();
    for name in [
        "serve", "join", "mount", "umount", "sync", "backup", "restore", "status", "service", "volume",
    ] {
        let page = dir.join(format!("byteback-{name}.1"));
        let text = fs::read_to_string(&page).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(
            text.contains(".SH OPTIONS") && text.contains("byteback"),
            "{name}:\n{text}"
        );
    }
    for name in ["byteback.1", "byteback-service-install.1", "byteback-volume-check.1"] {
        assert!(dir.join(name).exists(), "{name}");
    }
    let page = fs::read_to_string(dir.join("byteback-umount.1")).unwrap();
    assert!(page.contains("\n.TH ") && page.contains("\\-\\-lazy"), "{page}");
}

#[test]
fn wrong_usage_ends_with_2_and_help_with_0() {
    let world = World::new();
    world
        .run(&["--help"])
        .fine()
        .says("Exit codes")
        .says("BYTEBACK_STATE_DIR");
    for arguments in [
        &["backup", "--no-such-flag"][..],
        &["restore", "latest"],
        &["mount"],
        &["-r", "not an address", "snapshots"],
        &["-q", "-v", "snapshots"],
        &[],
    ] {
        world.run(arguments).ends_with(2);
    }
    for command in [
        "serve",
        "invite",
        "join",
        "devices",
        "init",
        "mount",
        "umount",
        "backup",
        "snapshots",
        "ls",
        "diff",
        "restore",
        "changes",
        "consumers",
        "export-delta",
        "status",
        "verify",
        "volume",
        "service",
        "completions",
    ] {
        world.run(&[command, "--help"]).fine().says("Usage: byteback");
    }
}

#[test]
fn a_reader_that_had_enough_ends_a_listing_quietly() {
    let world = World::served();
    // More than a pipe holds.
    for number in 0..3000 {
        fs::write(world.tree().join(format!("{number}-{}", "x".repeat(60))), "").unwrap();
    }
    world.backup();
    let tree = world.tree();
    let mut child = world
        .command(&["ls", "latest", "--dir", tree.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let ran = ended("ls", child);
    assert_eq!((ran.code(), ran.stderr.as_str()), (Some(0), ""));
}

#[test]
fn quiet_commands_say_nothing_and_still_do_it() {
    let world = World::served();
    fs::write(world.tree().join("a"), "a").unwrap();
    for (command, arguments) in [("mount", vec!["-q"]), ("backup", vec!["-q"]), ("umount", vec!["-q"])] {
        let ran = world.on_tree(command, &arguments).fine();
        assert_eq!(ran.stdout, "", "{command}");
    }
    world.assert_restores("latest");
}

#[test]
fn settings_come_from_flag_environment_and_file_in_this_order() {
    let world = World::served();
    world.backup();
    let config = world.path("home/config/byteback/config.toml");
    fs::write(&config, format!("[defaults]\nrepo = \"{}\"\n", world.repository())).unwrap();
    assert_eq!(world.run(&["snapshots", "--json"]).fine().json().len(), 1);
    let other = format!("{}/other", world.url());
    let mut command = world.command(&["snapshots"]);
    command.env("BYTEBACK_REPOSITORY", &other);
    finish("snapshots", command).ends_with(10).says("other");
    let repository = world.repository();
    let mut command = world.command(&["snapshots", "-r", &repository]);
    command.env("BYTEBACK_REPOSITORY", &other);
    finish("snapshots -r", command).ends_with(0);
    // An empty variable counts as not set.
    let mut command = world.command(&["snapshots"]);
    command.env("BYTEBACK_REPOSITORY", "");
    finish("snapshots", command).ends_with(0);
    fs::write(&config, "[defaults]\nrepro = 1\n").unwrap();
    world.run(&["snapshots"]).ends_with(1).says("config.toml");
}

#[test]
fn the_folder_is_an_operand_of_every_command() {
    let world = World::mounted();
    let tree = world.tree();
    let dir = tree.to_str().unwrap();
    fs::write(tree.join("note"), "one").unwrap();
    world.backup();
    fs::write(tree.join("note"), "two").unwrap();
    world.backup();
    let targets = ["a", "b"].map(|name| world.path(name).to_str().unwrap().to_owned());
    let note = tree.join("note");
    for arguments in [
        &["snapshots", dir][..],
        &["ls", dir],
        &["ls", "latest", dir],
        &["ls", dir, "1"],
        &["diff", dir],
        &["diff", "1", "2", dir],
        &["diff", "1", dir],
        &["verify", dir],
        &["check", "1", dir],
        &["verify", "--deep", "latest", dir],
        &["restore", dir, "--target", &targets[0]],
        &["restore", "1:note", dir, "--target", &targets[1]],
        &["changes", dir],
        &["consumers", dir],
        &["status", dir],
        &["repair", dir],
        &["cut", "create", "moment", dir],
        &["cut", "ls", dir],
        &["cut", "rm", "moment", dir],
        &["versions", note.to_str().unwrap()],
        &["backup", dir],
    ] {
        world.run(arguments).fine();
    }
    assert_eq!(fs::read(world.path("a/note")).unwrap(), b"two");
    assert_eq!(fs::read(world.path("b/note")).unwrap(), b"one");
    for flag in ["--dir", "--folder"] {
        for command in ["snapshots", "ls", "diff", "verify", "repair"] {
            world.run(&[command, flag, dir]).fine();
        }
        world.run(&["ls", "1", flag, dir]).fine().says("note");
        world.run(&["conflicts", flag, dir]).ends_with(1).says(dir);
        // Given twice, it is a mistake.
        world.run(&["snapshots", dir, flag, dir]).ends_with(2);
    }
    world.run(&["conflicts", dir]).ends_with(1).says("is not being synced");
    for wrong in [&["ls", "lates"][..], &["ls", "1", "2"], &["verify", dir, dir]] {
        world.run(wrong).ends_with(2);
    }
    world.run(&["unmount", dir]).fine();
    fs::write(&note, "three").unwrap();
    world.run(&["pull", dir]).fine();
    assert_eq!(fs::read(&note).unwrap(), b"two");
}

#[test]
fn the_folder_is_an_operand_while_it_is_in_sync() {
    let world = World::served();
    let tree = world.tree();
    let dir = tree.to_str().unwrap();
    let nowhere = world.path("nowhere").to_str().unwrap().to_owned();
    fs::write(tree.join("note"), "one").unwrap();
    world.run(&["sync", "--delay", "0", dir]).fine();
    world.wait_until_sent();
    for (arguments, said) in [
        (&["conflicts", dir][..], "no conflicts"),
        (&["conflicts", "--dir", dir], "no conflicts"),
        (&["conflicts", "--folder", dir], "no conflicts"),
        (&["repair", dir], "damaged"),
        (&["pause", dir], "is paused"),
        (&["status", dir], "PAUSED"),
        (&["resume", dir], "is no longer paused"),
        (&["status", dir], "synced with"),
        (&["cut", "create", "moment", dir], "moment"),
        (&["cut", "ls", dir], "moment"),
        (&["cut", "rm", "moment", dir], "has ended"),
    ] {
        world.run(arguments).fine().says(said);
    }
    // The named folder is meant, not one that happens to be known.
    for command in ["pause", "resume", "pull"] {
        world.run(&[command, &nowhere]).ends_with(1).says(&nowhere);
    }
    world.wait_until_sent();
    world.run(&["umount", dir]).fine();
}

#[test]
fn verbs_of_other_programs_point_to_ours() {
    let world = World::new();
    for (foreign, ours) in [
        ("forget", "Snapshots cannot be deleted yet"),
        ("extract", "byteback restore"),
        ("list", "byteback snapshots"),
        ("create", "byteback backup"),
    ] {
        world.run(&[foreign, "x"]).ends_with(2).says(ours);
    }
}
