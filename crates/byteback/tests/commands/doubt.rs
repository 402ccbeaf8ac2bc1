//! A directory that is perhaps not the folder any more, and ways back: what sync must never send,
//! and how to bring back what it sent.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use byteback_testkit::command::Ran;
use byteback_testkit::mounts::is_mounted;
use byteback_testkit::tools::run;
use byteback_testkit::waiting::eventually;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use serde_json::Value;

use crate::joining::{Machine, invite, served};
use crate::world::{USER, World};

const FILES: usize = 20;

impl World {
    fn write_files(&self) {
        fs::create_dir_all(self.tree().join("dir")).unwrap();
        for number in 0..FILES {
            let path = self.tree().join(if number % 2 == 0 { "dir" } else { "" });
            fs::write(path.join(number.to_string()), format!("file {number}")).unwrap();
        }
    }

    /// Syncs until everything is sent, then unmounts.
    fn sync_once(&self, arguments: &[&str]) {
        self.sync(arguments).ends_with(0);
        self.wait_until_sent();
        self.assert_at_server();
        self.on_tree("umount", &[]).fine();
    }

    fn held_back(&self) -> Value {
        self.on_tree("status", &["--json"]).reports_health().line("folder")["held_back"].clone()
    }

    /// Number of files at the server.
    fn files_at_server(&self) -> usize {
        let target: PathBuf = (0..)
            .map(|number| self.path(&format!("looked-{number}")))
            .find(|path| !path.exists())
            .unwrap();
        self.run(&["pull", &self.repository(), target.to_str().unwrap()]).fine();
        files_in(&target)
    }
}

fn files_in(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).unwrap();
    let count = |path: PathBuf| if path.is_dir() { files_in(&path) } else { 1 };
    entries.map(|entry| count(entry.unwrap().path())).sum()
}

fn conflicts(world: &World) -> Value {
    let status = world.on_tree("status", &["--json"]).reports_health();
    status.line("folder")["sync"]["conflicts"].clone()
}

/// A disk of its own for the folder.
struct Disk {
    place: PathBuf,
    tree: PathBuf,
}

impl Disk {
    fn new(world: &World) -> Self {
        let disk = Self {
            place: world.path("disk"),
            tree: world.tree(),
        };
        fs::create_dir(&disk.place).unwrap();
        disk.mount();
        disk
    }

    fn mount(&self) {
        mount_bind(&self.place, &self.tree).unwrap();
    }

    fn unmount(&self) {
        unmount(&self.tree, UnmountFlags::empty()).unwrap();
    }
}

fn is_held_back(ran: Ran) -> Ran {
    ran.ends_with(1)
        .says("it is a different directory than before")
        .says("Nothing was sent")
        .says("byteback sync --start-over")
        .says("byteback sync --accept-removals")
}

#[test]
fn sync_of_an_empty_mount_point_removes_nothing() {
    let world = World::served();
    let disk = Disk::new(&world);
    world.write_files();
    world.sync_once(&["--delay", "0"]);
    assert_eq!(world.held_back(), Value::Null);

    disk.unmount();
    assert_eq!(files_in(&world.tree()), 0);
    for arguments in [&[][..], &["--foreground"]] {
        is_held_back(world.sync(arguments));
        assert_eq!(world.files_at_server(), FILES);
    }
    assert_eq!(world.held_back()["recorded"], false);
    world
        .on_tree("status", &[])
        .ends_with(4)
        .says("SYNC IS HELD BACK")
        .says("--accept-removals");

    // The disk is back: all is as before, and nothing has to be compared or sent.
    disk.mount();
    let began = world.sync(&["--json", "--delay", "0"]).fine().line("summary");
    assert_eq!(
        (&began["changed_files"], &began["changed_names"]),
        (&0.into(), &0.into()),
        "{began}"
    );
    world.wait_until_sent();
    assert_eq!(world.held_back(), Value::Null);
    world.on_tree("umount", &[]).fine();
    assert_eq!(world.files_at_server(), FILES);
}

#[test]
fn backup_of_an_empty_mount_point_warns_and_holds_sync_back() {
    let world = World::served();
    let disk = Disk::new(&world);
    world.write_files();
    world.sync_once(&["--delay", "0"]);
    let before = world.files_at_server();

    disk.unmount();
    // Like every command that looks at the folder, `changes` lets the record follow what is there.
    world
        .on_tree("changes", &[])
        .ends_with(0)
        .says("may not be the folder that was saved before");
    is_held_back(world.sync(&[]));
    disk.mount();
    // The return of the disk is not enough: the record no longer knows any of its files.
    world.sync(&[]).ends_with(1).says("--start-over");
    assert_eq!(world.held_back()["recorded"], true);
    assert_eq!(world.files_at_server(), before);

    world.sync_once(&["--start-over", "--delay", "0"]);
    assert_eq!(world.held_back(), Value::Null);
    assert_eq!((world.files_at_server(), files_in(&world.tree())), (FILES, FILES));
}

#[test]
fn backup_of_another_directory_warns() {
    let world = World::served();
    world.write_files();
    world.backup();
    fs::rename(world.tree(), world.path("away")).unwrap();
    fs::create_dir(world.tree()).unwrap();
    world
        .on_tree("backup", &[])
        .ends_with(0)
        .says("may not be the folder that was saved before: it is a different directory");
    // One warning is enough where nothing follows from it.
    world.on_tree("backup", &[]).fine();
}

#[test]
fn removals_while_not_in_sync_are_asked_about() {
    let world = World::served();
    world.write_files();
    world.sync_once(&["--delay", "0"]);
    for number in 0..FILES {
        if number % 4 != 0 {
            let path = world.tree().join(if number % 2 == 0 { "dir" } else { "" });
            fs::remove_file(path.join(number.to_string())).unwrap();
        }
    }
    let left = FILES / 4;
    world
        .sync(&[])
        .ends_with(1)
        .says("15 of its 20 files were removed while Byteback was not watching");
    assert_eq!(world.files_at_server(), FILES);
    // The removals are intended.
    world.sync_once(&["--accept-removals", "--delay", "0"]);
    assert_eq!((world.files_at_server(), files_in(&world.tree())), (left, left));
    assert_eq!(world.held_back(), Value::Null);
}

#[test]
fn folder_on_a_new_disk_starts_over_and_loses_nothing() {
    let world = World::served();
    world.write_files();
    world.sync_once(&["--delay", "0"]);
    // An old copy is restored: one file is older than at the server, and one is missing.
    let old = world.path("old");
    run("cp", &["-a", world.tree().to_str().unwrap(), old.to_str().unwrap()]);
    fs::write(world.tree().join("1"), "edited after the copy was made").unwrap();
    world.sync_once(&["--delay", "0"]);
    fs::rename(world.tree(), world.path("broken")).unwrap();
    fs::rename(&old, world.tree()).unwrap();
    fs::remove_file(world.tree().join("3")).unwrap();

    is_held_back(world.sync(&[]));
    world.sync(&["--start-over", "--delay", "0"]).ends_with(0);
    eventually("what is missing is here again", || {
        world.tree().join("3").exists().then_some(())
    });
    world.wait_until_sent();
    world.assert_at_server();
    let now = fs::read_to_string(world.tree().join("1")).unwrap();
    assert_eq!(now, "edited after the copy was made");
    // The older version is kept beside it.
    assert_eq!(files_in(&world.tree()), FILES + 1);
    assert_eq!(conflicts(&world), 1);
    world.on_tree("umount", &[]).fine();
}

#[test]
fn version_that_sync_replaced_or_removed_comes_back() {
    let world = World::served();
    world.write_files();
    world.sync(&["--delay", "0"]).fine();
    // The first version of the folder has no report.
    world.wait_until_sent();
    let file = world.tree().join("report.txt");
    for text in ["first", "second, longer", "third"] {
        fs::write(&file, text).unwrap();
        world.wait_until_sent();
    }
    fs::remove_file(&file).unwrap();
    fs::remove_dir_all(world.tree().join("dir")).unwrap();
    world.wait_until_sent();
    let name = file.to_str().unwrap();

    let versions = world.run(&["versions", "--json", name]).fine();
    let versions: Vec<Value> = versions.json();
    let of_size = |size: u64| {
        let found = versions.iter().find(|version| version["size"] == size);
        found.unwrap_or_else(|| panic!("{versions:#?}"))["version"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(versions[0]["removed"], true, "{versions:#?}");
    assert_eq!(versions[0]["size"], 5);
    world
        .run(&["versions", name])
        .fine()
        .says("removed")
        .says("byteback restore --at @");

    // In its place, seen and sent like any other change.
    let second = format!("@{}", of_size(14));
    world
        .run(&["restore", "--at", &second, name])
        .fine()
        .says("as it was at");
    assert_eq!(fs::read_to_string(&file).unwrap(), "second, longer");
    world.wait_until_sent();
    world.assert_at_server();
    // Beside it.
    let other = world.path("other.txt");
    let third = format!("@{}", versions[0]["version"]);
    world
        .run(&["restore", "--at", &third, name, "-o", other.to_str().unwrap()])
        .fine();
    assert_eq!(fs::read_to_string(&other).unwrap(), "third");
    // A directory, by a time at which it existed.
    let dir = world.tree().join("dir");
    world.run(&["restore", "--at", &third, dir.to_str().unwrap()]).fine();
    assert_eq!(files_in(&dir), FILES / 2);
    world.wait_until_sent();
    world.assert_at_server();
    // The whole folder, into another place; an unknown version is reported.
    let all = world.path("all");
    let tree = world.tree();
    world
        .run(&[
            "restore",
            "--at",
            &third,
            tree.to_str().unwrap(),
            "--target",
            all.to_str().unwrap(),
        ])
        .fine();
    assert_eq!(fs::read_to_string(all.join("report.txt")).unwrap(), "third");
    world
        .run(&["restore", "--at", "@1", name])
        .ends_with(1)
        .says("byteback versions");
    let never = world.run(&["restore", "--at", "@99999", name]).ends_with(1);
    assert!(
        never.stderr.starts_with("byteback: folder ")
            && never.stderr.contains("has no sequence number 99999, only 1 to "),
        "{}",
        never.stderr
    );
    // By the time at which the directory came back, later than the file; with the folder unmounted.
    let of_dir = world.run(&["versions", "--json", dir.to_str().unwrap()]).fine().json();
    world.on_tree("umount", &[]).fine();
    fs::remove_file(&file).unwrap();
    world
        .run(&["restore", "--at", of_dir[0]["time"].as_str().unwrap(), name])
        .ends_with(0);
    assert_eq!(fs::read_to_string(&file).unwrap(), "second, longer");
}

/// A machine with a disk of its own, which can be set back as a whole.
struct Image<'a> {
    world: &'a World,
    machine: Machine<'a>,
    place: PathBuf,
}

impl<'a> Image<'a> {
    fn new(world: &'a World) -> Self {
        let (image, place) = (world.path("image"), world.path("m"));
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        run("mkfs.ext4", &["-q", image.to_str().unwrap()]);
        fs::create_dir(&place).unwrap();
        run(
            "mount",
            &["-o", "loop", image.to_str().unwrap(), place.to_str().unwrap()],
        );
        Self {
            world,
            machine: Machine::new(world, "m/a"),
            place,
        }
    }

    fn mount(&self) {
        let image = self.world.path("image");
        run(
            "mount",
            &["-o", "loop", image.to_str().unwrap(), self.place.to_str().unwrap()],
        );
    }

    fn unmount(&self) {
        run("umount", &[self.place.to_str().unwrap()]);
    }

    fn copy(&self, from: &str, to: &str) {
        self.unmount();
        fs::copy(self.world.path(from), self.world.path(to)).unwrap();
        self.mount();
    }
}

impl Drop for Image<'_> {
    fn drop(&mut self) {
        // After a failure, too: the daemon goes first, or the disk stays busy.
        self.machine.run(&["umount", "--lazy", &self.machine.dir("tree")]);
        let _ = unmount(&self.place, UnmountFlags::DETACH);
    }
}

fn sync_of(machine: &Machine<'_>, dir: &str) -> Value {
    machine.run(&["status", "--json", dir]).reports_health().line("folder")["sync"].clone()
}

/// Waits until nothing is left to send or receive on a machine.
pub(crate) fn settled(machine: &Machine<'_>, dir: &str) {
    eventually("it is settled", || {
        let sync = sync_of(machine, dir);
        let is_sent = sync["connected"] == true
            && sync["waiting_changes"] == 0
            && sync["groups_in_flight"] == 0
            && sync["folded"] == false;
        is_sent.then_some(())
    });
}

fn content(dir: &str, name: &str) -> Option<String> {
    fs::read_to_string(Path::new(dir).join(name)).ok()
}

fn names(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != ".byteback")
        .collect();
    names.sort();
    names
}

#[test]
fn machine_that_was_set_back_undoes_nothing() {
    let world = served();
    let image = Image::new(&world);
    let (a, b) = (&image.machine, Machine::new(&world, "b"));
    let (in_a, in_b) = (a.dir("tree"), b.dir("tree"));
    for (machine, dir) in [(a, &in_a), (&b, &in_b)] {
        let code = invite(&world, &["mail"]);
        machine.run(&["join", &code, dir]).fine();
    }
    for name in ["edited", "removed", "same"] {
        fs::write(Path::new(&in_a).join(name), format!("{name} at first")).unwrap();
    }
    a.run(&["sync", "--delay", "0", &in_a]).fine();
    b.run(&["sync", "--delay", "0", &in_b]).fine();
    eventually("B has it", || (names(&in_b).len() == 3).then_some(()));
    settled(a, &in_a);
    a.run(&["umount", &in_a]).fine();
    image.copy("image", "image.old");

    a.run(&["sync", "--delay", "0", &in_a]).fine();
    fs::write(Path::new(&in_a).join("edited"), "edited since").unwrap();
    fs::write(Path::new(&in_a).join("made"), "made since").unwrap();
    fs::remove_file(Path::new(&in_a).join("removed")).unwrap();
    eventually("B has that, too", || {
        let is_there = content(&in_b, "edited").as_deref() == Some("edited since") && content(&in_b, "made").is_some();
        (is_there && content(&in_b, "removed").is_none()).then_some(())
    });
    settled(a, &in_a);
    a.run(&["umount", &in_a]).fine();

    image.copy("image.old", "image");
    assert_eq!(names(&in_a), ["edited", "removed", "same"]);
    fs::write(Path::new(&in_a).join("new"), "made after it was set back").unwrap();
    a.run(&["sync", "--delay", "0", &in_a]).fine();
    eventually("both are the same", || {
        let (in_a, in_b) = (names(&in_a), names(&in_b));
        (in_a == in_b && in_a.iter().any(|name| name == "made") && in_b.iter().any(|name| name == "new")).then_some(())
    });
    settled(a, &in_a);
    for dir in [&in_a, &in_b] {
        assert_eq!(content(dir, "edited").as_deref(), Some("edited since"));
        assert_eq!(content(dir, "made").as_deref(), Some("made since"));
        assert_eq!(content(dir, "same").as_deref(), Some("same at first"));
        assert_eq!(content(dir, "new").as_deref(), Some("made after it was set back"));
        let copies: Vec<_> = names(dir)
            .into_iter()
            .filter(|name| name.contains("(conflict from "))
            .collect();
        assert!(copies.len() == 1 && copies[0].starts_with("edited"), "{copies:?}");
        assert_eq!(content(dir, &copies[0]).as_deref(), Some("edited at first"));
    }
    // Sync continues from there, in both directions, across a restart.
    a.run(&["umount", &in_a]).fine();
    a.run(&["sync", "--delay", "0", &in_a]).fine();
    fs::write(Path::new(&in_a).join("edited"), "from A").unwrap();
    fs::write(Path::new(&in_b).join("same"), "from B").unwrap();
    eventually("both go on", || {
        let is_same = content(&in_b, "edited").as_deref() == Some("from A")
            && content(&in_a, "same").as_deref() == Some("from B");
        is_same.then_some(())
    });
    assert_eq!(names(&in_a), names(&in_b));
    for (machine, dir) in [(a, &in_a), (&b, &in_b)] {
        machine.run(&["umount", dir]).fine();
    }
}

#[test]
fn server_that_was_replaced_is_started_over_with() {
    let mut world = World::served();
    world.write_files();
    world.sync_once(&["--delay", "0"]);
    // The server's disk is lost, and a new server starts at its address.
    world.stop_server();
    fs::rename(world.path("data"), world.path("lost")).unwrap();
    world.serve();
    let token = world.path("data/join-token");
    world.sync(&[]).ends_with(1).says("join it again");
    let (tree, repository) = (world.tree(), world.repository());
    let joined = world.run(&[
        "init",
        tree.to_str().unwrap(),
        "-r",
        &repository,
        "--join-token-file",
        token.to_str().unwrap(),
    ]);
    joined.ends_with(0);
    world.sync(&[]).ends_with(1).says("byteback sync --start-over");
    world.sync_once(&["--start-over", "--delay", "0"]);
    assert_eq!((world.files_at_server(), files_in(&world.tree())), (FILES, FILES));
    // One start with the flag is enough.
    fs::write(world.tree().join("more"), "more").unwrap();
    world.sync_once(&["--delay", "0"]);
    assert_eq!(world.files_at_server(), FILES + 1);
}

/// The command that `join` names as the next step, word by word.
fn next_command(joined: &Ran) -> Vec<&str> {
    let mut lines = joined.stdout.lines();
    let next = lines.find_map(|line| line.strip_prefix("Next: byteback "));
    let (command, _) = next.and_then(|next| next.split_once("    (")).unwrap();
    command.split(' ').collect()
}

#[test]
fn device_that_joined_again_follows_the_words_of_join() {
    let world = served();
    let (a, b, data) = (Machine::new(&world, "a"), Machine::new(&world, "b"), world.path("data"));
    let (in_a, in_b) = (a.dir("tree"), b.dir("tree"));
    for (machine, dir) in [(&a, &in_a), (&b, &in_b)] {
        machine.run(&["join", &invite(&world, &["mail"]), dir]).fine();
    }
    for name in ["edited", "same"] {
        fs::write(Path::new(&in_a).join(name), format!("{name} at first")).unwrap();
    }
    a.run(&["sync", "--delay", "0", &in_a]).fine();
    b.run(&["sync", "--delay", "0", &in_b]).fine();
    eventually("B has it", || (names(&in_b) == ["edited", "same"]).then_some(()));
    settled(&a, &in_a);
    a.run(&["umount", &in_a]).fine();
    world
        .run(&["devices", "revoke", "a", "--data", data.to_str().unwrap()])
        .ends_with(0);
    // Both machines work on while A's token is revoked.
    fs::write(Path::new(&in_a).join("edited"), "from A").unwrap();
    fs::write(Path::new(&in_b).join("edited"), "from B").unwrap();
    settled(&b, &in_b);

    let joined = a.run(&["join", &invite(&world, &["mail"]), &in_a]).ends_with(0);
    a.run(&["sync", &in_a]).ends_with(1).says("byteback sync --start-over");
    let next = next_command(&joined);
    assert_eq!(next, ["sync", "--start-over", in_a.as_str()]);
    a.run(&next).ends_with(0);
    eventually("both have both versions", || {
        let (in_a, in_b) = (names(&in_a), names(&in_b));
        (in_a == in_b && in_a.len() == 3).then_some(())
    });
    settled(&a, &in_a);
    for dir in [&in_a, &in_b] {
        let names = names(dir);
        assert!(names[1].starts_with("edited (conflict from a, "), "{names:?}");
        let contents = names.iter().map(|name| content(dir, name).unwrap());
        let contents: Vec<_> = contents.collect();
        assert_eq!(contents, ["from B", "from A", "same at first"], "{names:?}");
    }
    // Both are in sync again, in both directions.
    fs::write(Path::new(&in_a).join("same"), "later").unwrap();
    fs::write(Path::new(&in_b).join("new"), "new").unwrap();
    eventually("both go on", || {
        let is_same = content(&in_b, "same").as_deref() == Some("later");
        (is_same && content(&in_a, "new").as_deref() == Some("new")).then_some(())
    });
    for (machine, dir) in [(&a, &in_a), (&b, &in_b)] {
        machine.run(&["umount", dir]).fine();
    }
}

/// A new server numbers its devices from the beginning: this machine has the same number, at the
/// same address and folder, and everything that it knows is wrong.
#[test]
fn join_of_a_replaced_server_names_the_way_on() {
    let mut world = World::served();
    world.write_files();
    world.sync_once(&["--delay", "0"]);
    world.stop_server();
    fs::rename(world.path("data"), world.path("lost")).unwrap();
    world.serve();
    let (code, tree) = (invite(&world, &["mail"]), world.tree());
    let dir = tree.to_str().unwrap();
    let joined = world.run(&["join", &code, dir]).ends_with(0);
    let next = next_command(&joined);
    assert_eq!(next, ["sync", "--start-over", dir]);
    world.run(&next).ends_with(0);
    world.wait_until_sent();
    world.assert_at_server();
    assert_eq!((world.files_at_server(), files_in(&tree)), (FILES, FILES));
    world.on_tree("umount", &[]).fine();
}

/// A disk mounted in the folder stays mounted, whatever other machines remove.
#[test]
fn disk_in_the_folder_is_not_unmounted_by_what_lands() {
    let world = served();
    let machines = [Machine::new(&world, "a"), Machine::new(&world, "b")];
    let dirs = machines.each_ref().map(|machine| machine.dir("tree"));
    for (machine, dir) in machines.iter().zip(&dirs) {
        let code = invite(&world, &["mail"]);
        machine.run(&["join", &code, dir]).fine();
    }
    for name in ["gone", "moved", "kept"] {
        fs::create_dir_all(Path::new(&dirs[0]).join(name).join("disk")).unwrap();
    }
    for (machine, dir) in machines.iter().zip(&dirs) {
        machine.run(&["sync", "--delay", "0", dir]).fine();
    }
    eventually("B has it", || {
        Path::new(&dirs[1]).join("kept/disk").exists().then_some(())
    });
    settled(&machines[0], &dirs[0]);
    let disk = world.path("disk");
    fs::create_dir(&disk).unwrap();
    fs::write(disk.join("on the disk"), "it").unwrap();
    let points = ["gone/disk", "moved/disk"].map(|name| Path::new(&dirs[0]).join(name));
    for point in &points {
        mount_bind(&disk, point).unwrap();
    }
    fs::remove_dir_all(Path::new(&dirs[1]).join("gone")).unwrap();
    fs::rename(Path::new(&dirs[1]).join("moved"), Path::new(&dirs[1]).join("elsewhere")).unwrap();
    let reported = |path: &str| {
        let sync = sync_of(&machines[0], &dirs[0]);
        let left_out = sync["left_out"].as_array().cloned().unwrap_or_default();
        let of_path = left_out.into_iter().find(|left_out| left_out["path"] == path);
        of_path.is_some_and(|left_out| {
            left_out["blocked"]
                .as_str()
                .unwrap_or_default()
                .contains("is mounted at")
        })
    };
    eventually("A says so", || {
        (reported("gone/disk") && reported("elsewhere")).then_some(())
    });
    // Everything else continues.
    fs::write(Path::new(&dirs[1]).join("other"), "other").unwrap();
    eventually("A gets it", || Path::new(&dirs[0]).join("other").exists().then_some(()));
    for point in &points {
        assert!(is_mounted(point), "{} is not mounted any more", point.display());
        assert!(point.join("on the disk").exists());
    }
    // Once the disks are unmounted, the removal is made along with the next change.
    for point in &points {
        unmount(point, UnmountFlags::empty()).unwrap();
    }
    fs::write(Path::new(&dirs[1]).join("next"), "next").unwrap();
    eventually("A follows", || {
        let a = Path::new(&dirs[0]);
        (!a.join("gone").exists() && a.join("elsewhere/disk").exists() && !a.join("moved").exists()).then_some(())
    });
    assert!(disk.join("on the disk").exists());
    for (machine, dir) in machines.iter().zip(&dirs) {
        machine.run(&["umount", dir]).fine();
    }
}

/// A disk, or a bind mount, over a directory that sync knows: programs see the disk, and the hidden
/// files stay in sync.
#[test]
fn what_a_disk_hides_stays_in_sync() {
    let world = served();
    let machines = [Machine::new(&world, "a"), Machine::new(&world, "b")];
    let dirs = machines.each_ref().map(|machine| machine.dir("tree"));
    for (machine, dir) in machines.iter().zip(&dirs) {
        machine.run(&["join", &invite(&world, &["mail"]), dir]).fine();
    }
    let [a, b] = dirs.each_ref().map(|dir| Path::new(dir.as_str()));
    for name in ["disk", "bound"] {
        fs::create_dir_all(a.join(name).join("sub")).unwrap();
        fs::write(a.join(name).join("kept"), "kept").unwrap();
        fs::write(a.join(name).join("gone"), "gone").unwrap();
        fs::write(a.join(name).join(".bytebackignore"), "*.log\n").unwrap();
    }
    for (machine, dir) in machines.iter().zip(&dirs) {
        machine.run(&["sync", "--delay", "0", dir]).fine();
    }
    eventually("B has it", || b.join("disk/sub").exists().then_some(()));
    eventually("B has both", || b.join("bound/sub").exists().then_some(()));
    settled(&machines[0], &dirs[0]);
    machines[0].run(&["umount", &dirs[0]]).fine();
    // These files are not sent yet when the disk is mounted over them.
    for name in ["disk", "bound"] {
        fs::write(a.join(name).join("own"), "written before").unwrap();
        fs::write(a.join(name).join("own.log"), "ignored").unwrap();
    }
    let shown = world.path("shown");
    fs::create_dir(&shown).unwrap();
    let points = ["disk", "bound"].map(|name| a.join(name));
    run("mount", &["-t", "tmpfs", "none", points[0].to_str().unwrap()]);
    mount_bind(&shown, &points[1]).unwrap();
    for point in &points {
        fs::write(point.join("foreign"), "on the disk").unwrap();
    }

    let mut ran = machines[0].run(&["sync", "--delay", "0", &dirs[0]]).ends_with(0);
    for point in &points {
        ran = ran.says(&format!("{} is a separate file system", point.display()));
        assert_eq!(names(point.to_str().unwrap()), ["foreign"]);
        fs::write(point.join("later"), "on the disk, too").unwrap();
    }
    for name in ["disk", "bound"] {
        eventually("B has what was written before", || {
            b.join(name).join("own").exists().then_some(())
        });
        fs::write(b.join(name).join("kept"), "changed by B").unwrap();
        fs::write(b.join(name).join("sub/new"), "made by B").unwrap();
        fs::remove_file(b.join(name).join("gone")).unwrap();
    }
    fs::write(b.join("free"), "free").unwrap();
    eventually("A has it", || a.join("free").exists().then_some(()));
    settled(&machines[0], &dirs[0]);
    for point in &points {
        assert_eq!(names(point.to_str().unwrap()), ["foreign", "later"]);
    }
    machines[0].run(&["umount", &dirs[0]]).fine();
    for point in &points {
        assert_eq!(names(point.to_str().unwrap()), ["foreign", "later"]);
        // A program that another test starts holds what is open here for a moment.
        eventually("the disk is not in use", || unmount(point, UnmountFlags::empty()).ok());
        assert_eq!(fs::read_to_string(point.join("kept")).unwrap(), "changed by B");
        assert_eq!(fs::read_to_string(point.join("sub/new")).unwrap(), "made by B");
        let here = [".bytebackignore", "kept", "own", "own.log", "sub"];
        assert_eq!(names(point.to_str().unwrap()), here);
    }
    machines[0].run(&["sync", "--delay", "0", &dirs[0]]).fine();
    settled(&machines[0], &dirs[0]);
    for name in ["disk", "bound"] {
        let there = [".bytebackignore", "kept", "own", "sub"];
        assert_eq!(names(b.join(name).to_str().unwrap()), there);
    }
    for (machine, dir) in machines.iter().zip(&dirs) {
        machine.run(&["umount", dir]).fine();
    }
}

#[test]
fn what_a_disk_hides_stays_in_backups() {
    let mut world = World::served();
    world.write_files();
    let disk = world.small_disk("tree/dir", "1m");
    fs::write(disk.join("foreign"), "on the disk").unwrap();
    let assert_whole = |what: &str| {
        let restored = world.restore("latest");
        assert_eq!(files_in(&restored), FILES, "{what}");
        assert!(!restored.join("dir/foreign").exists(), "{what}");
    };
    let backup = || world.on_tree("backup", &["--json"]).ends_with(0).line("summary");
    // A write within a tick of the kernel's clock cannot be told from the next one; the files would
    // be read whole to be safe.
    thread::sleep(Duration::from_millis(100));
    backup();
    assert_whole("not mounted");
    world.on_tree("mount", &[]).ends_with(0);
    fs::write(world.tree().join("1"), "changed").unwrap();
    fs::write(disk.join("foreign"), "changed on the disk").unwrap();
    let summary = backup();
    assert_eq!(summary["files_changed"], 1, "{summary}");
    assert_whole("mounted");
    world.on_tree("umount", &[]).fine();
    assert_eq!(fs::read_to_string(disk.join("foreign")).unwrap(), "changed on the disk");
}

/// Where sync cannot look beneath a mount, it does not begin, and nothing is removed: for an
/// ordinary user, and if the mount is a folder of ours.
#[test]
fn sync_removes_nothing_that_a_mount_hides() {
    let world = World::served();
    world.write_files();
    world.sync_once(&["--delay", "0"]);
    let inner = world.tree().join("dir");
    let inner = inner.to_str().unwrap();
    world.run(&["mount", inner]).fine();
    world.sync(&[]).ends_with(1).says("Unmount it first");
    assert!(!is_mounted(&world.tree()));
    assert_eq!(world.files_at_server(), FILES);
    world.run(&["umount", inner]).fine();

    world.sync_once(&["--delay", "0"]);
    assert_eq!((world.files_at_server(), files_in(&world.tree())), (FILES, FILES));
    let (user, tree) = (world.path("user"), world.path("user/tree"));
    world.run_as_user(&["version"]);
    run("cp", &["-a", world.tree().to_str().unwrap(), tree.to_str().unwrap()]);
    let owner = format!("{USER}:{USER}");
    run("chown", &["-R", &owner, user.to_str().unwrap()]);
    let (tree, disk) = (tree.to_str().unwrap(), world.path("disk"));
    fs::create_dir(&disk).unwrap();
    world.run_as_user(&["join", &invite(&world, &["other"]), tree]).fine();
    world.run_as_user(&["backup", tree]).fine();
    for (prepare, said) in [
        (
            format!("mount -t tmpfs none {tree}/dir"),
            "hides files that were in sync. Unmount it first",
        ),
        (
            format!("mount --bind {} {tree}/dir", disk.display()),
            "Files below it would be taken as removed. Unmount it first",
        ),
    ] {
        world
            .run_as_user_behind(&prepare, &["sync", tree])
            .ends_with(1)
            .says(said);
    }
}

/// A device that was revoked and invited again is a new device. The sync that runs takes the new
/// token, and nothing is lost meanwhile.
#[test]
fn device_that_was_invited_again_goes_on_while_it_runs() {
    let world = served();
    let (a, data) = (Machine::new(&world, "a"), world.path("data"));
    let dir = a.dir("tree");
    a.run(&["join", &invite(&world, &["mail"]), &dir]).fine();
    fs::write(Path::new(&dir).join("first"), "first").unwrap();
    a.run(&["sync", "--delay", "0", &dir]).fine();
    settled(&a, &dir);
    world
        .run(&["devices", "revoke", "a", "--data", data.to_str().unwrap()])
        .ends_with(0);
    fs::write(Path::new(&dir).join("second"), "second").unwrap();
    eventually("it is refused", || {
        sync_of(&a, &dir)["needs_attention"].as_bool().filter(|needs| *needs)
    });
    a.run(&["join", &invite(&world, &["mail"]), &dir])
        .ends_with(0)
        .says("takes the new token");
    eventually("it goes on", || {
        let sync = sync_of(&a, &dir);
        (sync["problem"].is_null()
            && sync["connected"] == true
            && sync["folded"] == false
            && sync["waiting_changes"] == 0)
            .then_some(())
    });
    let b = Machine::new(&world, "b");
    let in_b = b.dir("tree");
    b.run(&["join", &invite(&world, &["mail"]), &in_b]).fine();
    b.run(&["sync", "--delay", "0", &in_b]).fine();
    eventually("B has both", || (names(&in_b) == ["first", "second"]).then_some(()));
    fs::write(Path::new(&in_b).join("first"), "from B").unwrap();
    eventually("A hears of B", || {
        (content(&dir, "first").as_deref() == Some("from B")).then_some(())
    });
    assert_eq!(names(&dir), ["first", "second"]);
    for (machine, dir) in [(&a, &dir), (&b, &in_b)] {
        machine.run(&["umount", dir]).fine();
    }
}

#[test]
fn server_at_another_address_is_followed_for_all_folders() {
    let mut world = served();
    let a = Machine::new(&world, "a");
    let dirs = ["one", "two"].map(|name| {
        let dir = a.dir(name);
        a.run(&["join", &invite(&world, &[name]), &dir]).fine();
        fs::write(Path::new(&dir).join("file"), name).unwrap();
        a.run(&["sync", "--delay", "0", &dir]).fine();
        settled(&a, &dir);
        a.run(&["umount", &dir]).fine();
        dir
    });
    let home = a.home.clone();
    let old = world.url().to_owned();
    world.stop_server();
    world.serve_at("127.0.0.1:0");
    let new = world.url().to_owned();
    assert_ne!(old, new);
    let a = Machine::new(&world, home.file_name().unwrap().to_str().unwrap());
    // No server answers there: nothing is changed.
    a.run(&["server", "set-address", &old, "https://127.0.0.1:1"])
        .ends_with(1);
    let moved = a.run(&["server", "set-address", &old, &new]).fine();
    moved.says(&dirs[0]).says(&dirs[1]);
    for dir in &dirs {
        a.run(&["sync", "--delay", "0", dir]).fine();
        fs::write(Path::new(dir).join("more"), "more").unwrap();
        settled(&a, dir);
    }
    // Refused while sync runs.
    a.run(&["server", "set-address", &new, &old])
        .ends_with(11)
        .says("byteback umount");
    for dir in &dirs {
        a.run(&["umount", dir]).fine();
    }
    // Joining again by a code with the new address has the same effect.
    world.stop_server();
    world.serve_at("127.0.0.1:0");
    let a = Machine::new(&world, home.file_name().unwrap().to_str().unwrap());
    a.run(&["join", &invite(&world, &["one"]), &dirs[0]]).ends_with(0);
    for dir in &dirs {
        a.run(&["sync", "--delay", "0", dir]).fine();
        a.run(&["umount", dir]).fine();
    }
}
