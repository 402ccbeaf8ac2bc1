//! Silent consumers, the messages about them, and what `status` reports about everything that is
//! kept for a consumer.

use std::fs;
use std::os::unix::fs::FileExt;

use byteback_host::random::noise;
use byteback_testkit::waiting::{eventually, settle};

use crate::world::World;

fn configure(world: &World, text: &str) {
    let config = world.path("home/config/byteback");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.toml"), text).unwrap();
}

fn begun_and_done(world: &World, name: &str) {
    let tree = world.tree();
    let dir = tree.to_str().unwrap();
    let epoch = world.run(&["consumers", "begin", name, dir]).ends_with(0).stdout;
    world.run(&["consumers", "done", name, epoch.trim(), dir]).ends_with(0);
}

#[test]
fn consumer_silence_warns_before_the_drop_and_is_told_after() {
    let world = World::served();
    // Warnings begin with the first moment of silence; the consumer is kept for a day.
    configure(&world, "[log]\nwarn_after_days = 0\ndrop_after_days = 1\n");
    world.on_tree("mount", &[]).fine();
    fs::write(world.tree().join("file"), "x").unwrap();
    begun_and_done(&world, "old");
    let warning = "the consumer 'old' has not been seen";
    for command in ["status", "backup", "consumers"] {
        world
            .on_tree(command, &[])
            .ends_with(0)
            .says(warning)
            .says("byteback consumers drop 'old'");
    }
    let shown = world.on_tree("consumers", &["--json"]).ends_with(0);
    let old = shown.json().into_iter().find(|line| line["name"] == "old").unwrap();
    assert!(old["expires"].is_string() && old["dropped"].is_null(), "{old}");
    world.on_tree("umount", &[]).fine();
    world.on_tree("mount", &[]).ends_with(0).says(warning);
    world.on_tree("umount", &[]).fine();

    // Now it is too late.
    configure(&world, "[log]\nwarn_after_days = 0\ndrop_after_days = 0\n");
    world.on_tree("mount", &[]).ends_with(0);
    let reported = eventually("the consumer is dropped", || {
        let status = world.on_tree("status", &["--json"]).ends_with(0).line("folder");
        let consumers = status["consumers"].as_array().unwrap().clone();
        let old = consumers.into_iter().find(|consumer| consumer["name"] == "old")?;
        old["dropped"].is_string().then_some(old)
    });
    assert!(reported["mark"].is_null(), "{reported}");
    for command in ["status", "consumers"] {
        world
            .on_tree(command, &[])
            .ends_with(0)
            .says("the consumer 'old' was dropped on");
    }
    let changes = world.on_tree("changes", &["--consumer", "old"]).fine();
    changes
        .says("everything counts as changed")
        .says("because this consumer had been dropped");
    // The consumer exists again once it saves. A policy that drops at once would drop it again.
    world.on_tree("umount", &[]).fine();
    configure(&world, "");
    world.on_tree("mount", &[]).ends_with(0);
    begun_and_done(&world, "old");
    let tree = world.tree();
    world
        .run(&["consumers", "drop", "old", tree.to_str().unwrap()])
        .fine()
        .says("is no longer a consumer");
    let listed = || {
        // The consumer of 'backup' was dropped as well, which causes a warning.
        let shown = world.on_tree("consumers", &[]).ends_with(0).stdout;
        shown
            .lines()
            .find(|line| line.starts_with("old "))
            .map(ToOwned::to_owned)
    };
    assert!(listed().unwrap().contains("dropped"));
    // A drop by order needs no warning; a second order erases even the memory of it.
    world.run(&["consumers", "drop", "old", tree.to_str().unwrap()]).fine();
    assert_eq!(listed(), None);
    world
        .run(&["consumers", "drop", "old", tree.to_str().unwrap()])
        .ends_with(1)
        .says("no consumer 'old'");
}

#[test]
fn status_tells_what_is_unknown_and_what_is_held() {
    let world = World::served();
    let tree = world.tree();
    world
        .on_tree("mount", &["--granularity", "page", "--extents-per-file", "3"])
        .fine();
    fs::write(tree.join("file"), noise(1, 1 << 20)).unwrap();
    world.backup();
    let file = fs::OpenOptions::new().write(true).open(tree.join("file")).unwrap();
    for at in 0..20 {
        file.write_all_at(b"x", at * 40_000).unwrap();
    }
    // The flags take effect: pages, and no more than three ranges.
    let changes = world.on_tree("changes", &["--json"]).fine();
    let changed = changes.json().into_iter().find(|line| line["path"] == "file").unwrap();
    let ranges = changed["content"]["ranges"].as_array().unwrap();
    assert_eq!(ranges.len(), 3, "{changed}");
    assert!(
        ranges.iter().all(|range| range[0].as_u64().unwrap() % 4096 == 0),
        "{changed}"
    );
    drop(file);

    begun_and_done(&world, "nightly");
    world.run(&["cut", "create", "moment", tree.to_str().unwrap()]).fine();
    let status = world.on_tree("status", &["--json"]).fine().line("folder");
    assert!(status["resident_bytes"].as_u64().unwrap() > 1 << 20, "{status}");
    assert!(status["log_bytes"].as_u64().unwrap() > 4096, "{status}");
    assert_eq!(status["cuts"][0]["name"], "moment", "{status}");
    assert_eq!(status["consumers"].as_array().unwrap().len(), 2, "{status}");
    assert_eq!(status["unknown_files"]["untracked"], 0, "{status}");
    world
        .on_tree("status", &[])
        .fine()
        .says("cut moment, open for")
        .says("consumer nightly: saved")
        .says("memory of the daemon")
        .says("on disk");
    world.run(&["cut", "rm", "moment", tree.to_str().unwrap()]).fine();

    world.backup();
    settle();
    world.on_tree("umount", &[]).fine();
    settle();
    fs::write(tree.join("file"), "changed while nobody looked").unwrap();
    world.on_tree("mount", &[]).fine();
    let status = world.on_tree("status", &["--json"]).fine().line("folder");
    assert_eq!(status["unknown_files"]["untracked"], 1, "{status}");
    world
        .on_tree("status", &[])
        .fine()
        .says("1 file is to be read whole: 1 changed while the folder was not mounted");
    world.backup();
    begun_and_done(&world, "nightly");
    let status = world.on_tree("status", &["--json"]).fine().line("folder");
    assert_eq!(status["unknown_files"]["untracked"], 0, "{status}");
    world.on_tree("umount", &[]).fine();
    world.on_tree("status", &[]).fine().says("on disk");
}
