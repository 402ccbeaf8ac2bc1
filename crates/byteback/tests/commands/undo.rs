//! Files restored without a backup: `mount --undo-window`, `history`, `restore --at`.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use byteback_host::random::noise;
use byteback_testkit::command::Ran;
use byteback_testkit::mounts::is_mounted;
use byteback_testkit::processes::is_alive;
use byteback_testkit::waiting::eventually;
use rustix::process::{Pid, Signal, kill_process};

use crate::volume_mounts;
use crate::world::{USER, World};

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
    let original = two_files(&world.tree());
    they_come_back(&world, &original);
}

#[test]
fn a_file_of_a_volume_comes_back_as_it_was_without_any_backup() {
    let world = volume_mounts::with_volume();
    volume_mounts::mount(&world).ends_with(0);
    let original = two_files(&world.tree());
    world.on_tree("umount", &[]).fine();
    they_come_back(&world, &original);
    volume_mounts::check(&world, volume_mounts::IMAGE);
}

/// Makes two files of the same content, and returns it.
fn two_files(tree: &Path) -> Vec<u8> {
    let (file, gone) = (tree.join("file"), tree.join("gone"));
    let original = noise(1, 300_000);
    fs::write(&file, &original).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    fs::write(&gone, &original).unwrap();
    original
}

/// Damages [`two_files`] in the mount, and restores them.
fn they_come_back(world: &World, original: &[u8]) {
    let tree = world.tree();
    let (file, gone) = (tree.join("file"), tree.join("gone"));
    mounted(world);
    std::thread::sleep(A_QUANTUM);
    let open = fs::File::options().write(true).open(&file).unwrap();
    open.write_all_at(b"an accident", 1000).unwrap();
    drop(open);
    fs::remove_file(&gone).unwrap();
    std::thread::sleep(A_QUANTUM);
    let damaged = fs::read(&file).unwrap();
    fs::write(&file, b"a worse one").unwrap();

    let reported = moments(world, &file);
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert_eq!(
        (&reported[0]["what"], &reported[0]["kept_bytes"]),
        (&"written".into(), &11.into())
    );
    assert_eq!(
        (&reported[1]["what"], &reported[1]["size_before"]),
        (&"truncated".into(), &300_000.into())
    );
    world
        .run(&["history", file.to_str().unwrap()])
        .fine()
        .says("11 B in 1 range")
        .says("Kept for 10 min 0 s, at most 64.0 MiB");

    // Beside it, by the time of the second change: the content before that change.
    let beside = world.path("beside");
    let second = reported[1]["time"].as_str().unwrap();
    let to = ["-o", beside.to_str().unwrap()];
    restore(world, second, &file, &to).fine();
    assert!(fs::read(&beside).unwrap() == damaged);
    restore(world, second, &file, &to).ends_with(1).says("already exists");
    assert!(fs::read(&file).unwrap() == b"a worse one");

    // In its place, twice: the first restore is undone by the second.
    let first = reported[0]["time"].as_str().unwrap();
    restore(world, first, &file, &[]).fine().says("restored to");
    assert!(fs::read(&file).unwrap() == original);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
    std::thread::sleep(A_QUANTUM);
    let reported = moments(world, &file);
    let last = reported.last().unwrap();
    assert_eq!(last["what"], "replaced", "{reported:?}");
    restore(world, last["time"].as_str().unwrap(), &file, &[]).fine();
    assert!(fs::read(&file).unwrap() == b"a worse one");

    // A removed file, and times in words.
    assert_eq!(moments(world, &gone)[0]["what"], "removed");
    restore(world, moments(world, &gone)[0]["time"].as_str().unwrap(), &gone, &[]).fine();
    assert!(fs::read(&gone).unwrap() == original);
    restore(world, "20 minutes ago", &file, &[])
        .ends_with(1)
        .says("cannot restore that moment")
        .says("byteback history");
    restore(world, "soon", &file, &[]).ends_with(1).says("20 minutes ago");
    restore(world, "1m ago", &tree.join("never"), &[]).ends_with(1);

    // The kept bytes survive an unmount.
    std::thread::sleep(Duration::from_millis(100));
    world.on_tree("umount", &[]).fine();
    world
        .run(&["history", file.to_str().unwrap()])
        .ends_with(1)
        .says("is not mounted");
    mounted(world);
    restore(world, first, &file, &["--overwrite", "-o", beside.to_str().unwrap()]).fine();
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
        .says("is not a duration");
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
    chown(&removed, Some(USER), Some(USER)).unwrap();
    fs::set_permissions(&removed, fs::Permissions::from_mode(0o4754)).unwrap();
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
    // No daemon tracks this write.
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
    let found = fs::metadata(&removed).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (USER, USER, 0o754));
    world.on_tree("umount", &[]).fine();
}

/// An ACL in the kernel's format: for each entry its tag, its rights and, for a named user, the
/// number.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn nobody_gets_rights_by_a_file_that_is_brought_back() {
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    const NOBODY: u32 = 65_534;
    const ANY: u32 = u32::MAX;
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    let get = |path: &Path, name: &str| {
        let mut value = vec![0; 256];
        let len = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
        value.truncate(len);
        Some(value)
    };
    let world = World::new();
    let tree = world.tree();
    let names = ["listed", "plain", "gone", "listed and gone", "rights"];
    let [listed, plain, gone, listed_gone, rights] = names.map(|name| tree.join(name));
    for file in [&listed, &plain, &gone, &listed_gone, &rights] {
        fs::write(file, b"of then").unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    // The group has no rights: the bits shown in its place are the mask for named users.
    let list = acl(&[(1, 6, ANY), (2, 7, NOBODY), (4, 0, ANY), (0x10, 7, ANY), (0x20, 0, ANY)]);
    set(&listed, ACCESS, &list);
    set(&listed_gone, ACCESS, &list);
    set(&listed, "user.note", b"kept");
    assert_eq!(fs::metadata(&listed).unwrap().mode() & 0o7777, 0o670);
    // A named user can read files made in the directory from now on, but not the existing ones.
    set(
        &tree,
        DEFAULT,
        &acl(&[(1, 7, ANY), (2, 4, NOBODY), (4, 5, ANY), (0x10, 5, ANY), (0x20, 0, ANY)]),
    );
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o640)).unwrap();
    mounted(&world);
    std::thread::sleep(A_QUANTUM);
    for file in [&listed, &plain, &rights] {
        fs::write(file, b"of now").unwrap();
    }
    fs::set_permissions(&rights, fs::Permissions::from_mode(0o6755)).unwrap();
    fs::remove_file(&gone).unwrap();
    fs::remove_file(&listed_gone).unwrap();
    let beside = tree.join("beside");
    for file in [&listed, &plain, &gone, &listed_gone, &rights] {
        let then = moments(&world, file)[0]["time"].as_str().unwrap().to_owned();
        restore(&world, &then, file, &[]).fine();
        assert_eq!(fs::read(file).unwrap(), b"of then");
        if *file == plain {
            restore(&world, &then, file, &["-o", beside.to_str().unwrap()]).fine();
        }
    }
    assert_eq!(get(&listed, ACCESS).as_deref(), Some(&list[..]));
    assert_eq!(get(&listed, "user.note").as_deref(), Some(&b"kept"[..]));
    assert_eq!(get(&plain, ACCESS), None);
    assert_eq!(fs::metadata(&plain).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(fs::metadata(&rights).unwrap().mode() & 0o7777, 0o755);
    for (file, mode) in [(&gone, 0o600), (&listed_gone, 0o600), (&beside, 0o640)] {
        assert_eq!(fs::metadata(file).unwrap().mode() & 0o7777, mode, "{}", file.display());
        assert_eq!(get(file, ACCESS), None, "{}", file.display());
    }
    world.on_tree("umount", &[]).fine();
}

#[test]
fn what_is_brought_back_does_not_pass_the_mount_by() {
    let world = World::new();
    let tree = world.tree();
    let file = tree.join("file");
    let changed = |world: &World| {
        world
            .on_tree("changes", &["--consumer", "other", "--format", "files"])
            .fine()
            .stdout
    };
    let saved = |world: &World| {
        let epoch = world
            .run(&["consumers", "begin", "other", tree.to_str().unwrap()])
            .fine()
            .stdout;
        let done = ["consumers", "done", "other", epoch.trim(), tree.to_str().unwrap()];
        world.run(&done).fine();
        assert_eq!(changed(world), "");
    };
    // Mounted elsewhere, and named by its own path.
    fs::write(&file, b"of then").unwrap();
    let elsewhere = world.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let at = elsewhere.to_str().unwrap();
    world.on_tree("mount", &["--at", at, "--undo-window", "10m"]).fine();
    std::thread::sleep(A_QUANTUM);
    fs::write(elsewhere.join("file"), b"of now").unwrap();
    let then = moments(&world, &file)[0]["time"].as_str().unwrap().to_owned();
    saved(&world);
    restore(&world, &then, &file, &[]).fine();
    assert_eq!(fs::read(&file).unwrap(), b"of then");
    assert_eq!(changed(&world), "./file\n");
    saved(&world);
    let beside = tree.join("beside");
    restore(&world, &then, &file, &["-o", beside.to_str().unwrap()]).fine();
    assert_eq!(changed(&world), "./beside\n");
    world.on_tree("umount", &[]).fine();

    // By a process whose directory was entered before the folder was mounted over itself.
    let here = fs::File::open(&tree).unwrap();
    mounted(&world);
    std::thread::sleep(A_QUANTUM);
    fs::write(&file, b"of later").unwrap();
    let then = moments(&world, &file)[0]["time"].as_str().unwrap().to_owned();
    saved(&world);
    let from_below = format!("/proc/{}/fd/{}", std::process::id(), here.as_raw_fd());
    let mut restoring = world.command(&["restore", "--at", &then, "file"]);
    assert!(restoring.current_dir(from_below).status().unwrap().success());
    assert_eq!(fs::read(&file).unwrap(), b"of then");
    assert_eq!(changed(&world), "./file\n");
    drop(here);
    world.on_tree("umount", &[]).fine();
}

#[test]
fn a_file_comes_back_of_a_directory_that_is_gone() {
    let world = World::new();
    let tree = world.tree();
    let above = tree.join("above");
    let file = above.join("dir/file");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, b"of then").unwrap();
    mounted(&world);
    std::thread::sleep(A_QUANTUM);
    let then = jiff::Timestamp::now().to_string();
    std::thread::sleep(A_QUANTUM);
    fs::remove_dir_all(&above).unwrap();
    let beside = world.path("beside");
    restore(&world, &then, &file, &["-o", beside.to_str().unwrap()]).fine();
    assert_eq!(fs::read(&beside).unwrap(), b"of then");
    restore(&world, &then, &file, &[])
        .ends_with(1)
        .says("Create that directory first");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    restore(&world, &then, &file, &[]).fine();
    assert_eq!(fs::read(&file).unwrap(), b"of then");
    let no = world.path("no");
    restore(&world, &then, &tree.join("never/was"), &["-o", no.to_str().unwrap()])
        .ends_with(1)
        .says("no such file");
    world.on_tree("umount", &[]).fine();
}
