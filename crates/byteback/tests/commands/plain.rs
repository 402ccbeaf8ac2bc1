//! `push` and `pull`: without a mount, as people use rsync.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use byteback_host::random::noise;
use byteback_testkit::local_tree::{differences, seen};
use byteback_testkit::waiting::eventually;

use crate::world::World;

impl World {
    /// A place in a folder to which no directory is bound.
    fn place(&self, path: &str) -> String {
        format!("{}/plain{path}", self.url())
    }

    fn join_token(&self) -> String {
        self.path("data/join-token").to_str().unwrap().to_owned()
    }
}

/// A server, and a directory with some files.
fn world() -> World {
    let mut world = World::new();
    world.serve();
    let tree = world.tree();
    fs::create_dir(tree.join("dir")).unwrap();
    fs::write(tree.join("dir/file"), noise(1, 500_000)).unwrap();
    fs::write(tree.join("note.txt"), "a note").unwrap();
    fs::write(tree.join("skip.tmp"), "not wanted").unwrap();
    fs::hard_link(tree.join("note.txt"), tree.join("same note")).unwrap();
    std::os::unix::fs::symlink("note.txt", tree.join("link")).unwrap();
    world
}

#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    let differing = differences(&seen(one), &seen(other), true);
    assert!(differing.is_empty(), "{differing:#?}");
}

#[test]
fn what_is_pushed_is_pulled_and_only_changes_travel() {
    let world = world();
    let (tree, target) = (world.tree(), world.path("target"));
    let [source, to, at] = [tree.to_str().unwrap(), &world.place(""), target.to_str().unwrap()];
    world.run(&["push", source, to]).ends_with(12).says("--join-token-file");
    let token = world.join_token();
    let said = world.run(&["push", source, to, "--join-token-file", &token]).fine();
    let said = said
        .says("as snapshot 1.")
        .says("3 new files")
        .says("2 new directories");
    assert!(said.stdout.contains("2 new links"), "{}", said.stdout);
    world.run(&["pull", to, at]).fine().says("Pulled ");
    assert_same(&tree, &target);
    world.run(&["push", source, to]).fine().says("already");
    world.run(&["pull", to, at]).fine().says("already");

    let mut bytes = fs::read(tree.join("dir/file")).unwrap();
    bytes.splice(1000..1000, *b"inserted");
    fs::write(tree.join("dir/file"), &bytes).unwrap();
    fs::remove_file(tree.join("skip.tmp")).unwrap();
    fs::write(tree.join("new"), "new").unwrap();
    let would = world.run(&["push", "-n", "--delete", source, to]).fine();
    let wanted = ["a .", "+ new", "M dir/file", "- skip.tmp"];
    let reported: Vec<_> = would.stdout.lines().take(4).collect();
    assert_eq!(reported, wanted, "{}", would.stdout);
    would.says("Nothing was sent (dry run)");
    let pushed = world
        .run(&["push", "--json", "--delete", "--delta", "rsync", source, to])
        .fine()
        .line("summary");
    assert!(pushed["wire"]["sent"].as_u64().unwrap() < 30_000, "{pushed}");
    let pulled = world.run(&["pull", "--json", "-v", "--delete", to, at]).fine();
    assert!(pulled.line("summary")["wire"]["received"].as_u64().unwrap() < 40_000);
    assert_same(&tree, &target);
    // A path in it, and a single file.
    let file = world.place("/dir/file");
    let alone = world.path("alone");
    world.run(&["pull", &file, alone.to_str().unwrap()]).fine();
    assert_eq!(fs::read(alone.join("file")).unwrap(), bytes);
    world
        .run(&["push", tree.join("new").to_str().unwrap(), &world.place("/dir/")])
        .fine();
    world
        .run(&["ls", "-r", &world.place(""), "latest:dir"])
        .fine()
        .says("new");
}

#[test]
fn patterns_keep_paths_out_and_limits_and_mistakes_are_told() {
    let world = world();
    let (tree, target) = (world.tree(), world.path("target"));
    let [source, to, at] = [tree.to_str().unwrap(), &world.place("/a"), target.to_str().unwrap()];
    let patterns = world.path("patterns");
    fs::write(&patterns, "# not these\n*.tmp\n").unwrap();
    let token = world.join_token();
    let exclude = ["--exclude-file", patterns.to_str().unwrap(), "--exclude", "/dir/"];
    let push = [
        &["push", source, to, "--join-token-file", &token, "--bwlimit", "50M"],
        &exclude[..],
    ]
    .concat();
    world.run(&push).fine();
    world.run(&["pull", to, at, "-c"]).fine();
    assert!(target.join("note.txt").exists() && !target.join("skip.tmp").exists() && !target.join("dir").exists());
    world
        .run(&["push", source, to, "--bwlimit", "1K"])
        .ends_with(1)
        .says("at least 8K");
    world
        .run(&["push", source, to, "--exclude", "[z-a]"])
        .ends_with(1)
        .says("pattern");
    world
        .run(&["push", source, "nowhere"])
        .ends_with(2)
        .says("https://HOST:PORT/FOLDER");
    world
        .run(&["push", "/nowhere/at/all", to])
        .ends_with(1)
        .says("cannot open");
    world
        .run(&["pull", &world.place("/nothing"), at])
        .ends_with(1)
        .says("the server has no \"");
    world
        .run(&["pull", &format!("{}/unknown", world.url()), at])
        .ends_with(10);
}

#[test]
fn a_folder_that_is_backed_up_is_not_pushed_into() {
    let world = World::served();
    let tree = world.tree();
    fs::write(tree.join("file"), "content").unwrap();
    world.backup();
    let source = tree.to_str().unwrap();
    world
        .run(&["push", source, &world.repository()])
        .ends_with(1)
        .says("holds the backups of a tracked folder")
        .says("push into another folder");
    world.assert_restores("latest");
    // The opposite direction is allowed.
    let target = world.path("target");
    world
        .run(&["pull", &world.repository(), target.to_str().unwrap()])
        .fine();
    assert_same(&tree, &target);
}

#[test]
fn a_push_that_is_killed_in_a_large_file_does_not_send_it_again() {
    const LARGE: usize = 160 << 20;
    let world = world();
    let tree = world.tree();
    fs::write(tree.join("large"), noise(2, LARGE)).unwrap();
    let (source, to, token) = (tree.to_str().unwrap().to_owned(), world.place(""), world.join_token());
    // The machine joins; nothing is pushed yet.
    world
        .run(&["push", "-n", &source, &to, "--join-token-file", &token])
        .fine();
    let mut child = world
        .command(&["push", &source, &to])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The state has 40 bytes for each part that the server has; this is the fourth.
    let state = world.path("home/state/push");
    eventually("parts are at the server", || {
        let dir = fs::read_dir(&state).ok()?.next()?.ok()?.path();
        let len = fs::metadata(dir.join("push")).ok()?.size();
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was killed");
        (len >= 450 + 4 * 40).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        world.run(&["snapshots", "-r", &to]).stdout.lines().count() <= 1,
        "nothing was applied"
    );
    let pushed = world.run(&["push", "--json", &source, &to]).fine().line("summary");
    assert_eq!(pushed["resumed"], true, "{pushed}");
    let reused = pushed["reused_bytes"].as_u64().unwrap();
    let sent = pushed["wire"]["sent"].as_u64().unwrap();
    assert!(reused >= 2 * (16 << 20), "{pushed}");
    let rest = LARGE as u64 + 600_000 - reused;
    assert!(
        sent < rest + (1 << 20),
        "{sent} sent, {reused} of {LARGE} reused: {pushed}"
    );
    let target = world.path("target");
    world.run(&["pull", &to, target.to_str().unwrap()]).fine();
    assert_same(&tree, &target);
    world.run(&["push", &source, &to]).fine().says("already");
}

#[test]
fn a_machine_whose_token_counts_no_more_joins_again() {
    let world = world();
    let tree = world.tree();
    let [source, to] = [tree.to_str().unwrap(), &world.place("")];
    let token = world.join_token();
    world.run(&["push", source, to, "--join-token-file", &token]).fine();
    // A used join token does no harm once the machine has joined.
    world.run(&["push", source, to, "--join-token-file", &token]).fine();
    let kept = fs::read_dir(world.path("home/config/byteback/tokens"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let text = fs::read_to_string(&kept).unwrap();
    let secret = text.split('"').nth(3).unwrap();
    fs::write(&kept, text.replace(secret, &secret.chars().rev().collect::<String>())).unwrap();
    world.run(&["push", source, to]).ends_with(12).says("new code");
    let invited = world
        .run(&["invite", "--admin", "--data", world.path("data").to_str().unwrap()])
        .ends_with(0);
    world
        .run(&["push", source, to, "--join-token", invited.stdout.trim()])
        .fine();
    world.run(&["push", source, to]).fine().says("already");
    let would = world.run(&["pull", "-n", to, source]).fine();
    would.says("nothing to change");
}
