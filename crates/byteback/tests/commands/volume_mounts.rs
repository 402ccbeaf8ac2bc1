//! A folder in a volume: mounted, backed up, unmounted, killed and moved elsewhere, like a folder
//! in a directory.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use byteback_host::random::noise;
use byteback_testkit::command::Ran;
use byteback_testkit::local_tree::{differences, seen};
use byteback_testkit::mounts::{is_mounted, unmount};
use byteback_testkit::processes::is_alive;
use byteback_testkit::tools::run;
use byteback_testkit::waiting::eventually;
use rustix::process::{Pid, Signal, kill_process};

use crate::handles::{handle_of, open};
use crate::joining::{Machine, invite};
use crate::syncing::wait_until_holds;
use crate::world::{DeviceForAll, USER, World};

pub(crate) const IMAGE: &str = "card.img";

pub(crate) fn with_volume() -> World {
    let world = World::new();
    let image = world.path(IMAGE);
    world
        .run(&["volume", "create", image.to_str().unwrap(), "--size", "256M"])
        .ends_with(0);
    world
}

fn mount_at(world: &World, image: &str, point: &Path) -> Ran {
    let image = world.path(image);
    world.run(&[
        "mount",
        "--json",
        "--volume",
        image.to_str().unwrap(),
        point.to_str().unwrap(),
    ])
}

pub(crate) fn mount(world: &World) -> Ran {
    mount_at(world, IMAGE, &world.tree())
}

/// Asserts that the volume is sound and was closed cleanly.
pub(crate) fn check(world: &World, image: &str) {
    let image = world.path(image);
    let checked = world.run(&["volume", "check", "--json", image.to_str().unwrap()]);
    let summary = checked.ends_with(0).line("summary");
    assert_eq!(
        (&summary["sound"], &summary["closed"]),
        (&true.into(), &true.into()),
        "{summary}"
    );
}

fn fill(tree: &Path) {
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/small"), "small").unwrap();
    fs::write(tree.join("a/b/large"), noise(1, 6 << 20)).unwrap();
    fs::write(tree.join("many names"), noise(2, 10_000)).unwrap();
    fs::hard_link(tree.join("many names"), tree.join("a/another name")).unwrap();
    symlink("a/small", tree.join("link")).unwrap();
    fs::set_permissions(tree.join("a/small"), fs::Permissions::from_mode(0o640)).unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.write_all_at(b"far", 50 << 20).unwrap();
}

#[test]
fn volume_is_tracked_backed_up_and_unmounted_as_a_directory() {
    let mut world = with_volume();
    let tree = world.tree();
    let summary = mount(&world).fine().line("summary");
    assert!(is_mounted(&tree));
    assert_eq!(summary["first_time"], true, "{summary}");
    fill(&tree);
    world.serve();
    world.init().fine();
    world.backup();
    world.assert_restores("latest");

    // A few bytes of a large file: only these are listed, and the backup is right.
    let large = fs::File::options().write(true).open(tree.join("a/b/large")).unwrap();
    large.write_all_at(b"five!", 3_000_000).unwrap();
    drop(large);
    fs::rename(tree.join("a/small"), tree.join("a/moved")).unwrap();
    fs::remove_file(tree.join("many names")).unwrap();
    let reported = world.on_tree("changes", &["--json"]).fine();
    assert!(reported.stdout.contains("3000000"), "{}", reported.stdout);
    world.backup();
    world.assert_restores("latest");

    let before = seen(&tree);
    let pid = world.daemon_pid();
    world.on_tree("umount", &[]).fine();
    assert!(!is_alive(pid) && !is_mounted(&tree));
    assert_eq!(
        fs::read_dir(&tree).unwrap().count(),
        0,
        "nothing of it is in the directory"
    );
    check(&world, IMAGE);
    // While unmounted, the volume is read, not the empty directory.
    let idle = world.backup();
    assert_eq!(
        (&idle["mounted"], &idle["names_removed"]),
        (&false.into(), &0.into()),
        "{idle}"
    );
    assert_eq!(
        (&idle["files_changed"], &idle["read_bytes"]),
        (&0.into(), &0.into()),
        "{idle}"
    );

    let summary = mount(&world).fine().line("summary");
    let found = (
        &summary["first_time"],
        &summary["changed_files"],
        &summary["changed_names"],
    );
    assert_eq!(found, (&false.into(), &0.into(), &0.into()), "{summary}");
    let differing = differences(&before, &seen(&tree), true);
    assert!(differing.is_empty(), "{differing:#?}");
    world.on_tree("umount", &[]).fine();
    // The volume's path is remembered.
    world.on_tree("mount", &[]).fine();
    assert_eq!(fs::read(tree.join("a/moved")).unwrap(), b"small");
    world.on_tree("umount", &[]).fine();
}

#[test]
fn volume_remounts_and_tells_changes_after_its_daemon_is_killed() {
    let mut world = with_volume();
    let tree = world.tree();
    mount(&world).fine();
    fill(&tree);
    world.serve();
    world.init().fine();
    world.backup();
    let file = fs::File::options().write(true).open(tree.join("a/b/large")).unwrap();
    for round in 0..50 {
        file.write_all_at(&noise(round, 5000), round * 100_000).unwrap();
    }
    fs::write(tree.join("new"), "new").unwrap();
    let new = fs::File::open(tree.join("new")).unwrap();
    new.sync_all().unwrap();
    file.sync_all().unwrap();
    // Not synced: present or absent, but never different from the backup.
    fs::write(tree.join("newer"), noise(9, 100_000)).unwrap();
    drop((file, new));

    let pid = world.daemon_pid();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    eventually("the dead mount is gone", || {
        (!is_alive(pid) && !is_mounted(&tree)).then_some(())
    });
    // The daemon may need a moment to end.
    let summary = eventually("it mounts again", || {
        let ran = mount(&world);
        (ran.code() == Some(0)).then(|| ran.line("summary"))
    });
    assert_eq!(summary["first_time"], false, "{summary}");
    let large = fs::read(tree.join("a/b/large")).unwrap();
    let mut expected = noise(1, 6 << 20);
    for round in 0..50 {
        let at = usize::try_from(round * 100_000).unwrap();
        expected[at..at + 5000].copy_from_slice(&noise(round, 5000));
    }
    assert!(large == expected, "what was synced is there");
    assert_eq!(fs::read(tree.join("new")).unwrap(), b"new");
    let reported = world.on_tree("changes", &["--json"]).ends_with(0);
    assert!(
        reported.stdout.contains("large") && reported.stdout.contains("\"new\""),
        "{}",
        reported.stdout
    );
    world.on_tree("backup", &["--json"]).ends_with(0);
    world.assert_restores("latest");
    world.on_tree("umount", &[]).fine();
    check(&world, IMAGE);
}

#[test]
fn the_log_goes_where_the_image_goes() {
    let world = with_volume();
    mount(&world).fine();
    fill(&world.tree());
    let before = seen(&world.tree());
    world.on_tree("umount", &[]).fine();
    fs::rename(world.path(IMAGE), world.path("carried.img")).unwrap();
    let elsewhere = world.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let summary = mount_at(&world, "carried.img", &elsewhere).fine().line("summary");
    let found = (
        &summary["first_time"],
        &summary["changed_files"],
        &summary["changed_names"],
    );
    assert_eq!(found, (&false.into(), &0.into(), &0.into()), "{summary}");
    let differing = differences(&before, &seen(&elsewhere), true);
    assert!(differing.is_empty(), "{differing:#?}");
    // At its old path the volume is missing, and nothing is taken for removed.
    world.on_tree("mount", &[]).ends_with(1).says("card.img");
    world.run(&["umount", elsewhere.to_str().unwrap()]).fine();
}

#[test]
fn volume_mount_refuses_unfit_places_and_unfit_images() {
    let world = with_volume();
    let tree = world.tree();
    fs::write(tree.join("f"), "f").unwrap();
    mount(&world).ends_with(1).says("not empty");
    fs::remove_file(tree.join("f")).unwrap();
    mount(&world).fine();
    // One image, one mount.
    let other = world.path("other");
    fs::create_dir(&other).unwrap();
    mount_at(&world, IMAGE, &other).ends_with(1).says("in use");
    world.on_tree("umount", &[]).fine();
    // A remembered volume is not mounted over existing files either.
    fs::write(tree.join("f"), "f").unwrap();
    world.on_tree("mount", &[]).ends_with(1).says("not empty");
    assert_eq!(fs::read(tree.join("f")).unwrap(), b"f");
    fs::remove_file(tree.join("f")).unwrap();
    world.on_tree("mount", &[]).fine();
    world.on_tree("umount", &[]).fine();

    fs::write(world.path("no volume"), noise(1, 1 << 20)).unwrap();
    mount_at(&world, "no volume", &other)
        .ends_with(1)
        .says("not a Byteback volume");
    let tracked = world.path("tracked");
    fs::create_dir(&tracked).unwrap();
    world.run(&["mount", tracked.to_str().unwrap()]).fine();
    world.run(&["umount", tracked.to_str().unwrap()]).fine();
    mount_at(&world, IMAGE, &tracked)
        .ends_with(1)
        .says("already a tracked folder");
}

#[test]
fn a_full_volume_says_so_and_goes_on_once_there_is_room() {
    let world = World::new();
    let image = world.path(IMAGE);
    world
        .run(&["volume", "create", image.to_str().unwrap(), "--size", "128M"])
        .ends_with(0);
    mount(&world).fine();
    let tree = world.tree();
    let mut written = 0;
    let full = loop {
        match fs::write(tree.join(format!("f{written}")), noise(written, 1 << 20)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 128, "it holds more than it is large");
    };
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    assert!(written > 40, "{written} MiB");
    for number in 0..written / 2 {
        assert!(fs::read(tree.join(format!("f{number}"))).unwrap() == noise(number, 1 << 20));
        fs::remove_file(tree.join(format!("f{number}"))).unwrap();
    }
    fs::write(tree.join("after"), noise(99, 1 << 20)).unwrap();
    assert_eq!(fs::metadata(tree.join("after")).unwrap().size(), 1 << 20);
    world.on_tree("umount", &[]).fine();
    check(&world, IMAGE);
}

/// Kills the daemon of the tree, and waits until the dead mount is gone.
fn kill(world: &World) {
    let pid = world.daemon_pid();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    eventually("the dead mount is gone", || {
        (!is_alive(pid) && !is_mounted(&world.tree())).then_some(())
    });
}

#[test]
fn the_directory_below_a_volume_takes_nothing_after_a_crash() {
    let world = with_volume();
    let tree = world.tree();
    mount(&world).fine();
    fs::write(tree.join("a"), "a").unwrap();
    kill(&world);
    // Root has more rights than other users, but not this one.
    let refused = fs::write(tree.join("beside"), "beside").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    world
        .on_tree("status", &[])
        .ends_with(0)
        .says("is protected")
        .says("byteback umount");
    mount(&world).fine();
    fs::write(tree.join("b"), "b").unwrap();
    world.on_tree("umount", &[]).fine();
    // Unmounted in good order, it is a directory like any other.
    fs::write(tree.join("beside"), "beside").unwrap();
    fs::remove_file(tree.join("beside")).unwrap();

    world.on_tree("mount", &[]).fine();
    kill(&world);
    world
        .on_tree("umount", &[])
        .ends_with(0)
        .says("what it left behind is removed");
    fs::write(tree.join("beside"), "beside").unwrap();
    let refused = world.on_tree("mount", &[]).ends_with(1).says("is not empty");
    // The advised commands work as printed.
    let script = refused
        .stderr
        .lines()
        .find_map(|line| line.split_once(": mv "))
        .unwrap()
        .1;
    let script = format!("mv {}", script.replace("byteback mount", "true"));
    assert!(Command::new("sh").args(["-ec", &script]).status().unwrap().success());
    world.on_tree("mount", &[]).fine();
    assert_eq!(fs::read(tree.join("b")).unwrap(), b"b");
    world.on_tree("umount", &[]).fine();
    check(&world, IMAGE);
}

#[test]
fn writes_that_the_device_of_a_volume_refused_are_told() {
    let mut world = World::new();
    let disk = world.small_disk("small", "30m");
    let image = world.path("small/card.img");
    world
        .run(&["volume", "create", image.to_str().unwrap(), "--size", "256M"])
        .ends_with(0);
    mount_at(&world, "small/card.img", &world.tree()).fine();
    let tree = world.tree();
    let synced = fs::File::create(tree.join("synced")).unwrap();
    synced.write_all_at(b"synced", 0).unwrap();
    synced.sync_all().unwrap();
    drop(synced);
    let full = (0..256).find_map(|number| fs::write(tree.join(format!("f{number}")), noise(number, 1 << 20)).err());
    assert!(full.is_some(), "the disk holds more than it is large");
    let status = world.on_tree("status", &[]).ends_with(4).says("WRITES WERE LOST");
    assert!(status.stdout.contains("No space left"), "{}", status.stdout);
    world
        .on_tree("umount", &[])
        .ends_with(1)
        .says("is unmounted, but writes were lost")
        .says("byteback mount");
    assert!(!is_mounted(&tree));
    world.run(&["status", "--json"]).ends_with(4).says("lost_writes");
    // There may be enough room to open it; then the loss is reported as well.
    let again = world.on_tree("mount", &[]);
    let again = match again.code() {
        Some(0) => again,
        _ => {
            again.ends_with(1).says("is full. Free some space");
            let remount = ["-o", "remount,size=300m", disk.to_str().unwrap()];
            run("mount", &remount);
            world.on_tree("mount", &[]).ends_with(0)
        }
    };
    again.says("writes were lost from");
    assert_eq!(fs::read(tree.join("synced")).unwrap(), b"synced");
    world.on_tree("status", &[]).fine();
    fs::write(tree.join("new"), "new").unwrap();
    world.on_tree("umount", &[]).fine();
    check(&world, "small/card.img");
}

#[test]
fn a_volume_can_be_mounted_as_soon_as_it_is_unmounted() {
    let world = with_volume();
    let tree = world.tree();
    mount(&world).fine();
    for round in 0..4 {
        fs::write(tree.join("a"), noise(round, 3 << 20)).unwrap();
        unmount(&tree);
        world.on_tree("mount", &[]).ends_with(0);
    }
    world.on_tree("umount", &[]).ends_with(0);
    check(&world, IMAGE);
}

#[test]
fn moments_sums_and_both_modes_are_to_be_had_on_a_volume() {
    let world = with_volume();
    let tree = world.tree();
    let image = world.path(IMAGE);
    let volume = ["--volume", image.to_str().unwrap()];
    world
        .on_tree("mount", &[&volume[..], &["--checksums", "--verify-reads"]].concat())
        .fine();
    let (old, new) = (noise(1, 300_000), noise(2, 300_000));
    fs::write(tree.join("f"), &old).unwrap();
    let cut = tree.join(".byteback/cut/one");
    fs::create_dir(&cut).unwrap();
    let file = fs::File::options().read(true).write(true).open(tree.join("f")).unwrap();
    file.write_all_at(&new, 0).unwrap();
    file.sync_all().unwrap();
    assert!(fs::read(cut.join("f")).unwrap() == old);
    assert!(fs::read(tree.join("f")).unwrap() == new);
    fs::remove_dir(&cut).unwrap();
    drop(file);
    world.on_tree("umount", &[]).fine();
    // The kernel collects small writes: they are written and reported as well.
    world.on_tree("mount", &["--mode", "fast"]).fine();
    let file = fs::File::options().write(true).open(tree.join("f")).unwrap();
    for at in 0..100 {
        file.write_all_at(b"small", at * 1000).unwrap();
    }
    drop(file);
    world.on_tree("umount", &[]).fine();
    check(&world, IMAGE);
    world.on_tree("mount", &[]).fine();
    let mut expected = new;
    for at in 0..100 {
        expected[at * 1000..at * 1000 + 5].copy_from_slice(b"small");
    }
    assert!(fs::read(tree.join("f")).unwrap() == expected);
    world.on_tree("umount", &[]).fine();
}

#[test]
fn an_ordinary_user_mounts_a_volume_of_their_own() {
    let _device = DeviceForAll::new();
    let world = World::new();
    world.run_as_user(&["--version"]).fine();
    let (image, folder) = (world.path("user/card.img"), world.path("theirs"));
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(USER), Some(USER)).unwrap();
    let (image, theirs) = (image.to_str().unwrap(), folder.to_str().unwrap());
    // Other users, including root, cannot look into it.
    let as_user = |script: &str| {
        let mut shell = Command::new("sh");
        let ran = shell.args(["-ec", script]).current_dir("/").uid(USER).gid(USER);
        assert!(ran.env("TREE", theirs).status().unwrap().success(), "{script}");
    };
    world
        .run_as_user(&["volume", "create", image, "--size", "64M"])
        .ends_with(0);
    world.run_as_user(&["mount", "--volume", image, theirs]).fine();
    as_user("cd $TREE; echo theirs > f; chmod 600 f; mkdir d; ln f d/g; ! chown 0 f 2> /dev/null");
    world.run_as_user(&["umount", theirs]).fine();
    let check = || world.run_as_user(&["volume", "check", "--json", image]).ends_with(0);
    assert_eq!(check().line("summary")["closed"], true);
    world.run_as_user(&["mount", theirs]).fine();
    as_user("cd $TREE; test \"$(cat d/g)\" = theirs; test $(stat -c %h-%a-%u f) = 2-600-$(id -u)");
    world.run_as_user(&["umount", theirs]).fine();

    // After a kill, the directory is closed to the user; the next mount opens it, and unmounting
    // restores its mode.
    world.run_as_user(&["mount", theirs]).fine();
    let status = world.run_as_user(&["status", "--json", theirs]).fine().line("folder");
    let pid = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    eventually("the dead mount is gone", || {
        (!is_alive(pid) && !is_mounted(&folder)).then_some(())
    });
    as_user("! touch $TREE/beside 2> /dev/null");
    world.run_as_user(&["mount", theirs]).fine();
    as_user("cd $TREE; test \"$(cat d/g)\" = theirs");
    world.run_as_user(&["umount", theirs]).fine();
    as_user("test $(stat -c %a $TREE) = 755; touch $TREE/beside; rm $TREE/beside");

    // A failed mount leaves the volume as it was.
    chown(&folder, Some(0), Some(0)).unwrap();
    world.run_as_user(&["mount", theirs]).ends_with(1).says("cannot mount");
    assert_eq!(check().line("summary")["closed"], true);
}

/// Kills the daemon of the tree, and mounts it for sync again.
fn kill_and_sync_again(world: &World) {
    let pid = world.daemon_pid();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    eventually("the dead mount is gone", || {
        (!is_alive(pid) && !is_mounted(&world.tree())).then_some(())
    });
    eventually("it is in sync again", || {
        let ran = world.sync(&["--delay", "0"]);
        (ran.code() == Some(0)).then_some(())
    });
}

#[test]
fn a_volume_is_kept_in_sync_with_a_directory_whatever_is_killed() {
    let mut world = with_volume();
    let tree = world.tree();
    mount(&world).fine();
    fill(&tree);
    world.serve();
    world.init().fine();
    world.on_tree("umount", &[]).fine();
    world.sync(&["--delay", "0"]).fine();
    world.wait_until_sent();
    world.assert_at_server();

    let other = Machine::new(&world, "study");
    let dir = other.dir("home");
    let folder = world.repository();
    let folder = folder.rsplit('/').next().unwrap().to_owned();
    other.run(&["join", &invite(&world, &[&folder]), &dir]).fine();
    other.run(&["sync", "--delay", "0", &dir]).fine();
    let there = Path::new(&dir);
    wait_until_holds(&there.join("a/small"), "small");

    for round in 0..3u64 {
        // The program syncs some of these writes and not others; some are at the server when the
        // power goes, some are not.
        let file = fs::File::options().write(true).open(tree.join("a/b/large")).unwrap();
        file.write_all_at(&noise(round, 5_000), round * 1_000_000).unwrap();
        if round == 1 {
            file.sync_all().unwrap();
        }
        drop(file);
        fs::write(tree.join("here"), format!("here {round}")).unwrap();
        fs::rename(tree.join("here"), tree.join(format!("here {round}"))).unwrap();
        if round < 2 {
            world.wait_until_sent();
            wait_until_holds(&there.join(format!("here {round}")), &format!("here {round}"));
        }
        kill_and_sync_again(&world);
        // Changes of other machines arrive in the volume, too.
        fs::write(there.join("there"), format!("there {round}")).unwrap();
        wait_until_holds(&tree.join("there"), &format!("there {round}"));
        world.wait_until_sent();
        world.assert_at_server();
    }
    // Landed changes stay as well.
    kill_and_sync_again(&world);
    assert_eq!(fs::read_to_string(tree.join("there")).unwrap(), "there 2");
    world.wait_until_sent();
    world.assert_at_server();
    assert_eq!(fs::read_to_string(tree.join("here 1")).unwrap(), "here 1");
    eventually("both are the same", || {
        let mut trees = [seen(&tree), seen(there)];
        for tree in &mut trees {
            for entry in tree.values_mut().filter(|entry| entry.is_dir()) {
                entry.mtime = (0, 0);
            }
        }
        differences(&trees[0], &trees[1], true).is_empty().then_some(())
    });
    other.run(&["umount", &dir]).fine();
    world.on_tree("umount", &[]).fine();
    check(&world, IMAGE);
}

#[test]
fn handles_of_a_volume_open_what_the_kernel_forgot() {
    let world = with_volume();
    let tree = world.tree();
    mount(&world).ends_with(0);
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/f"), b"content").unwrap();
    let (file, directory) = (handle_of(&tree.join("a/b/f")), handle_of(&tree.join("a/b")));
    let look = || {
        let content = std::io::read_to_string(open(&tree, &file).unwrap()).unwrap();
        assert_eq!(content, "content");
        assert!(open(&tree, &directory).unwrap().metadata().unwrap().is_dir());
    };
    look();
    // A new mount has no record of earlier lookups.
    world.on_tree("umount", &[]).fine();
    mount(&world).ends_with(0);
    look();
    // The next file that gets this inode number is another one.
    fs::remove_file(tree.join("a/b/f")).unwrap();
    for number in 0..50 {
        fs::write(tree.join(format!("new{number}")), b"other").unwrap();
    }
    assert_eq!(open(&tree, &file).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    world.on_tree("umount", &[]).fine();
    check(&world, IMAGE);
}
