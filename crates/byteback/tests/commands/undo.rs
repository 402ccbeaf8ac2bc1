//! Files brought back without a backup: `mount --undo-window`, `history`, `restore --at`.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use byteback_host::random::noise;
use rustix::process::{Pid, Signal, kill_process};

use crate::world::{Ran, World, eventually, is_alive, is_mounted};

/// Longer than the quantum of a window of ten minutes.
const A_QUANTUM: Duration = Duration::from_millis(1200);

fn mounted(world: &World) {
    world
        .on_tree("mount", &["--undo-window", "10m", "--undo-budget", "64M"])
        .fine();
}

fn restore(world: &World, at: &str, file: &Path, more: &[&str]) -> Ran {
    let mut arguments = vec!["restore", "--at", at, file.to_str().unwrap()];
    arguments.extend(more);
    world.run(&arguments)
}

fn moments(world: &World, file: &Path) -> Vec<serde_json::Value> {
    let ran = world.run(&["history", "--json", file.to_str().unwrap()]).fine();
    let lines = ran.json().into_iter();
    lines.filter(|line| line["message_type"] == "moment").collect()
}

#[test]
fn a_file_comes_back_as_it_was_without_any_backup() {
    let world = World::new();
    let tree = world.tree();
    let (file, gone) = (tree.join("file"), tree.join("gone"));
    let original = noise(1, 300_000);
    fs::write(&file, &original).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    fs::write(&gone, &original).unwrap();
    mounted(&world);
    std::thread::sleep(A_QUANTUM);
    let open = fs::File::options().write(true).open(&file).unwrap();
    open.write_all_at(b"an accident", 1000).unwrap();
    drop(open);
    fs::remove_file(&gone).unwrap();
    std::thread::sleep(A_QUANTUM);
    let damaged = fs::read(&file).unwrap();
    fs::write(&file, b"a worse one").unwrap();

    let told = moments(&world, &file);
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(
        (&told[0]["what"], &told[0]["kept_bytes"]),
        (&"written".into(), &11.into())
    );
    assert_eq!(
        (&told[1]["what"], &told[1]["size_before"]),
        (&"truncated".into(), &300_000.into())
    );
    world
        .run(&["history", file.to_str().unwrap()])
        .fine()
        .says("11 B in 1 range")
        .says("Kept for 10 min 0 s, at most 64.0 MiB");

    // Beside it, by the time of the second change: what was before that.
    let beside = world.path("beside");
    let second = told[1]["time"].as_str().unwrap();
    let to = ["-o", beside.to_str().unwrap()];
    restore(&world, second, &file, &to).fine();
    assert!(fs::read(&beside).unwrap() == damaged);
    restore(&world, second, &file, &to)
        .ends_with(1)
        .says("is there already");
    assert!(fs::read(&file).unwrap() == b"a worse one");

    // In its place, twice: the first restore is undone by the second.
    let first = told[0]["time"].as_str().unwrap();
    restore(&world, first, &file, &[]).fine().says("restored to");
    assert!(fs::read(&file).unwrap() == original);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
    std::thread::sleep(A_QUANTUM);
    let told = moments(&world, &file);
    let last = told.last().unwrap();
    assert_eq!(last["what"], "replaced", "{told:?}");
    restore(&world, last["time"].as_str().unwrap(), &file, &[]).fine();
    assert!(fs::read(&file).unwrap() == b"a worse one");

    // A file that is gone, and times in words.
    assert_eq!(moments(&world, &gone)[0]["what"], "removed");
    restore(&world, moments(&world, &gone)[0]["time"].as_str().unwrap(), &gone, &[]).fine();
    assert!(fs::read(&gone).unwrap() == original);
    restore(&world, "20 minutes ago", &file, &[])
        .ends_with(1)
        .says("cannot be brought back as of then")
        .says("byteback history");
    restore(&world, "soon", &file, &[]).ends_with(1).says("20 minutes ago");
    restore(&world, "1m ago", &tree.join("never"), &[]).ends_with(1);

    // It outlives an unmount.
    std::thread::sleep(Duration::from_millis(100));
    world.on_tree("umount", &[]).fine();
    world
        .run(&["history", file.to_str().unwrap()])
        .ends_with(1)
        .says("is not mounted");
    mounted(&world);
    restore(&world, first, &file, &["--overwrite", "-o", beside.to_str().unwrap()]).fine();
    assert!(fs::read(&beside).unwrap() == original);
    world.on_tree("umount", &[]).fine();
    world.on_tree("mount", &[]).fine();
    world
        .run(&["history", file.to_str().unwrap()])
        .ends_with(1)
        .says("--undo-window");
    world.on_tree("umount", &[]).fine();
    world
        .on_tree("mount", &["--undo-window", "soon"])
        .ends_with(1)
        .says("is no duration");
}

#[test]
fn after_a_kill_nothing_wrong_comes_back() {
    let world = World::new();
    let tree = world.tree();
    let original = noise(2, 200_000);
    for name in ["written", "removed", "untouched"] {
        fs::write(tree.join(name), &original).unwrap();
    }
    mounted(&world);
    std::thread::sleep(A_QUANTUM);
    let removed = tree.join("removed");
    fs::remove_file(&removed).unwrap();
    let before_removal = moments(&world, &removed)[0]["time"].as_str().unwrap().to_owned();
    // Until a checkpoint has made it certain.
    std::thread::sleep(Duration::from_secs(7));
    let written = tree.join("written");
    let open = fs::File::options().write(true).open(&written).unwrap();
    open.write_all_at(&noise(3, 100_000), 50_000).unwrap();
    let before_write = moments(&world, &written)[0]["time"].as_str().unwrap().to_owned();
    let daemon = world.daemon_pid();
    kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
    drop(open);
    eventually("the dead mount is gone", || {
        (!is_alive(daemon) && !is_mounted(&tree)).then_some(())
    });
    // Nobody watches.
    fs::write(tree.join("untouched"), b"touched all the same").unwrap();
    mounted(&world);
    let beside = world.path("beside");
    let to = ["-o", beside.to_str().unwrap()];
    for file in [&written, &tree.join("untouched")] {
        restore(&world, &before_write, file, &to)
            .ends_with(1)
            .says("was not watched all the time");
        assert!(!beside.exists());
    }
    restore(&world, &before_removal, &removed, &[]).fine();
    assert!(fs::read(&removed).unwrap() == original);
    world.on_tree("umount", &[]).fine();
}
