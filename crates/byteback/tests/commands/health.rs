//! The exit code of `status`, for scripts: whether a folder needs its owner, or is behind.

use std::fs;

use byteback_testkit::mounts::is_mounted;
use byteback_testkit::waiting::eventually;
use rustix::process::{Pid, Signal, kill_process};

use crate::volume_mounts::{mount, with_volume};
use crate::world::World;

#[test]
fn synced_folder_that_nobody_serves_is_behind() {
    let mut world = World::served();
    let tree = world.tree();
    world.sync(&["--delay", "0"]).fine();
    fs::write(tree.join("a"), "sent").unwrap();
    world.wait_until_sent();
    eventually("nothing is behind", || {
        (world.on_tree("status", &["--check"]).code() == Some(0)).then_some(())
    });
    let is_behind = || {
        let checked = world.on_tree("status", &["--check"]).ends_with(5);
        assert!(checked.stdout.contains("sync is not running"), "{}", checked.stdout);
        let reported = world.on_tree("status", &[]).ends_with(0).stdout;
        assert!(reported.contains("not kept in sync with "), "{reported}");
    };

    // A backup made before says nothing about the time after the daemon's death.
    world.backup();
    // The plain directory that a killed daemon leaves looks like any other.
    kill_process(Pid::from_raw(world.daemon_pid()).unwrap(), Signal::KILL).unwrap();
    eventually("the mount is gone", || (!is_mounted(&tree)).then_some(()));
    is_behind();

    world.sync(&["--delay", "0"]).ends_with(0);
    world.wait_until_sent();
    world.on_tree("umount", &[]).fine();
    is_behind();

    // Sync that was given up, for backups or for good, is not missed.
    world.on_tree("backup", &[]).ends_with(0);
    world.on_tree("status", &["--check"]).fine();
    world.sync(&["--delay", "0"]).fine();
    fs::write(tree.join("a"), "sent again").unwrap();
    world.wait_until_sent();
    world.on_tree("umount", &[]).fine();
    is_behind();
    let tree = tree.to_str().unwrap();
    world.run(&["consumers", "drop", "sync", tree]).fine();
    world.on_tree("status", &["--check"]).fine();
    world.stop_server();
}

#[test]
fn folder_that_is_backed_up_and_unmounted_is_not_behind() {
    let mut world = World::mounted();
    fs::write(world.tree().join("a"), "saved").unwrap();
    world.backup();
    world.on_tree("umount", &[]).fine();
    let checked = world.on_tree("status", &["--check"]).fine();
    assert_eq!(checked.stdout, "");
    world.stop_server();
}

#[test]
fn volume_in_sync_that_is_not_mounted_is_behind() {
    let mut world = with_volume();
    world.serve();
    world.init().fine();
    mount(&world).fine();
    world.on_tree("umount", &[]).fine();
    // Nothing is demanded of a folder that is only backed up.
    world.on_tree("status", &["--check"]).fine();
    world.sync(&["--delay", "0"]).fine();
    eventually("nothing is behind", || {
        (world.on_tree("status", &["--check"]).code() == Some(0)).then_some(())
    });
    world.on_tree("umount", &[]).fine();
    let checked = world.on_tree("status", &["--check"]).ends_with(5);
    assert!(
        checked
            .stdout
            .contains("its volume is neither mounted nor kept in sync"),
        "{}",
        checked.stdout
    );
    world.stop_server();
}
