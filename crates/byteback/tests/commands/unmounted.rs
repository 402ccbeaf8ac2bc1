//! Backups of a folder that is not tracked: changes found by size, times and inode, files sent
//! whole, and what mounting would have saved.

use std::fs;
use std::os::unix::fs::FileExt;

use byteback_host::random::noise;
use byteback_testkit::waiting::settle;
use serde_json::Value;

use crate::world::World;

#[test]
fn an_unmounted_folder_is_saved_by_looking_at_every_file() {
    let world = World::served();
    let tree = world.tree();
    fs::write(tree.join("large"), noise(1, 2 << 20)).unwrap();
    fs::write(tree.join("same"), "same").unwrap();
    fs::write(tree.join("renamed"), noise(2, 1 << 20)).unwrap();
    settle();
    let first = world.on_tree("backup", &["--json"]).fine().line("summary");
    assert_eq!(
        (&first["mounted"], &first["files_new"]),
        (&Value::Bool(false), &Value::from(3))
    );

    fs::OpenOptions::new()
        .write(true)
        .open(tree.join("large"))
        .unwrap()
        .write_all_at(b"changed", 1 << 20)
        .unwrap();
    fs::rename(tree.join("renamed"), tree.join("moved")).unwrap();
    settle();
    let dry = world.on_tree("backup", &["-n"]).fine();
    dry.says("Nothing was saved").says("whole");
    let said = world.on_tree("backup", &[]).fine();
    let said = said.says("it is unknown which bytes of").says("byteback mount");
    // The message gives numbers for the cost: the whole file, for seven bytes.
    assert!(said.stdout.contains("MiB were read"), "{}", said.stdout);
    world.assert_restores("latest");

    let idle = world.on_tree("backup", &["--json"]).fine().line("summary");
    assert_eq!(
        (&idle["read_bytes"], &idle["files_changed"]),
        (&Value::from(0), &Value::from(0)),
        "{idle}"
    );
    assert_eq!(idle["whole"]["untracked"], 0);
}

#[test]
fn another_file_system_below_the_folder_is_said_to_be_left_out() {
    let mut world = World::served();
    let below = world.small_disk("tree/below", "1m");
    fs::write(below.join("unsaved"), "unsaved").unwrap();
    fs::write(world.tree().join("saved"), "saved").unwrap();
    for _ in 0..2 {
        let ran = world.on_tree("backup", &[]).ends_with(0);
        assert!(
            ran.stderr
                .contains(&format!("{} is a separate file system", below.display())),
            "{}",
            ran.stderr
        );
        // The mount point is part of the folder, and the file system mounted there is not.
        assert_eq!(world.about_tree("ls", &[]).fine().stdout, "below/\nsaved\n");
        assert_eq!(world.about_tree("ls", &["latest:below"]).fine().stdout, "");
        let mounted = world.on_tree("mount", &[]).ends_with(0);
        assert!(mounted.stderr.contains("a separate file system"), "{}", mounted.stderr);
        world.on_tree("umount", &[]).fine();
    }
}

#[test]
fn what_changed_between_two_mounts_is_found_and_said() {
    let world = World::mounted();
    let tree = world.tree();
    fs::write(tree.join("a"), noise(1, 300_000)).unwrap();
    fs::write(tree.join("b"), "b").unwrap();
    world.backup();
    settle();
    world.on_tree("umount", &[]).fine();
    settle();
    fs::write(tree.join("a"), noise(2, 300_000)).unwrap();
    fs::remove_file(tree.join("b")).unwrap();
    let mounted = world.on_tree("mount", &["--json"]).fine().line("summary");
    assert_eq!(
        (&mounted["changed_files"], &mounted["first_time"]),
        (&Value::from(1), &Value::Bool(false)),
        "{mounted}"
    );
    world
        .on_tree("changes", &[])
        .fine()
        .says("a: the whole file, changed while the folder was not mounted");
    let report = world.backup();
    assert_eq!(report["whole"]["untracked"], 1, "{report}");
    world.assert_restores("latest");
    let status = world.on_tree("status", &["--json"]).fine().line("folder");
    let gaps = status["gaps"].as_array().unwrap();
    assert_eq!(gaps.len(), 1, "{status}");
    assert_eq!(
        (&gaps[0]["cause"], &gaps[0]["changed_files"]),
        (&Value::from("not_mounted"), &Value::from(1))
    );
}
