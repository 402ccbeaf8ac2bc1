//! Mounts: in the background and in the foreground, elsewhere, by other users, in use, and dead.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use byteback_host::random::noise;
use byteback_testkit::command::{ended, finish};
use byteback_testkit::mounts::{is_mounted, unmount};
use byteback_testkit::processes::{is_alive, signal};
use byteback_testkit::tools::run;
use byteback_testkit::waiting::{PATIENCE, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::world::{DeviceForAll, LET_GO, USER, World};

#[test]
fn mount_in_background_is_live_at_command_end_holding_no_pipe() {
    let world = World::served();
    let tree = world.tree();
    fs::write(tree.join("a"), "a").unwrap();
    // `run` reads both pipes to their end: a daemon that kept one open would make this hang.
    let mounted = world.on_tree("mount", &["--json"]).fine().line("summary");
    assert!(is_mounted(&tree));
    assert_eq!(mounted["mode"], "exact");
    let pid = mounted["pid"].as_i64().unwrap();
    let daemon = world.daemon_pid();
    assert_eq!(i64::from(daemon), pid);
    // The daemon has its own session and is not in our directory: neither a closed terminal nor an
    // unmount of that place affects it.
    let session = run("ps", &["-o", "sid=", "-p", &pid.to_string()]);
    assert_eq!(session.trim(), pid.to_string());
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap().to_str(), Some("/"));

    world
        .on_tree("mount", &[])
        .ends_with(11)
        .says("is already mounted")
        .says("byteback umount");
    world.on_tree("umount", &[]).fine();
    assert!(!is_alive(daemon), "umount waits for the daemon's end");
    world.on_tree("umount", &[]).ends_with(1).says("is not mounted");
}

#[test]
fn mount_in_foreground_says_when_it_is_live_and_ends_in_order() {
    let world = World::served();
    let tree = world.tree();
    let mut child = world
        .command(&["mount", "--foreground", tree.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.contains("is tracked from now on"), "{line}");
    assert!(is_mounted(&tree));
    fs::write(tree.join("a"), "a").unwrap();
    signal(&child, Signal::TERM);
    ended("mount --foreground", child).ends_with(0);
    assert!(!is_mounted(&tree));
    // In good order: no interruption requires a comparison.
    let status = world.on_tree("status", &["--json"]).fine().line("folder");
    assert_eq!(status["gaps"][0]["cause"], "not_mounted", "{status}");
}

#[test]
fn services_tell_their_supervisor_when_they_are_ready_and_end() {
    let world = World::served();
    let socket = world.path("notify");
    let listener = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut buffer = [0; 256];
        let len = listener.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    let tree = world.tree();
    let other = world.path("other-data");
    let mount = ["mount", "--foreground", tree.to_str().unwrap()];
    let serve = ["serve", "--data", other.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    for arguments in [&mount[..], &serve[..]] {
        let child = world
            .command(arguments)
            .env("NOTIFY_SOCKET", &socket)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        assert!(heard().contains("READY=1"), "{arguments:?}");
        assert_eq!(is_mounted(&tree), arguments[0] == "mount");
        signal(&child, Signal::TERM);
        assert!(heard().contains("STOPPING=1"), "{arguments:?}");
        ended(arguments[0], child).ends_with(0);
    }
}

#[test]
fn a_folder_can_be_seen_elsewhere_but_not_in_itself() {
    let world = World::served();
    let tree = world.tree();
    let elsewhere = world.path("elsewhere");
    let at = elsewhere.to_str().unwrap();
    world.on_tree("mount", &["--at", at]).ends_with(1).says("it must exist");
    fs::create_dir(&elsewhere).unwrap();
    fs::create_dir(tree.join("within")).unwrap();
    for overlapping in [tree.join("within"), tree.parent().unwrap().to_owned()] {
        let at = overlapping.to_str().unwrap();
        world
            .on_tree("mount", &["--at", at])
            .ends_with(1)
            .says("one is inside the other");
        assert!(!is_mounted(&overlapping));
    }
    world.on_tree("mount", &["--at", at]).fine().says("(mounted at ");
    assert!(is_mounted(&elsewhere) && !is_mounted(&tree));
    fs::write(elsewhere.join("a"), "through the mount").unwrap();
    assert_eq!(fs::read_to_string(tree.join("a")).unwrap(), "through the mount");
    // Both paths name the folder.
    let report = world.run(&["backup", "--json", at]).fine().line("summary");
    assert_eq!(
        (&report["mounted"], &report["files_new"]),
        (&Value::Bool(true), &Value::from(1))
    );
    world.on_tree("status", &[]).fine().says(at);
    world.run(&["umount", at]).fine();
    assert!(!is_mounted(&elsewhere));
}

#[test]
fn a_folder_in_use_stays_mounted_unless_it_is_detached() {
    let world = World::mounted();
    let tree = world.tree();
    fs::write(tree.join("a"), "a").unwrap();
    world.backup();
    let open = fs::OpenOptions::new().append(true).open(tree.join("a")).unwrap();
    world
        .on_tree("umount", &[])
        .ends_with(1)
        .says("is in use")
        .says("--lazy");
    assert!(is_mounted(&tree));
    let pid = world.daemon_pid();
    let detached = world.on_tree("umount", &["--lazy", "--json"]).fine().line("summary");
    assert_eq!(detached["ended"], false);
    assert!(!is_mounted(&tree));
    world.on_tree("status", &[]).fine().says("has 1 file of it open");
    std::io::Write::write_all(&mut &open, b"late").unwrap();
    drop(open);
    eventually("the daemon ends with the last file", || (!is_alive(pid)).then_some(()));
    // The late write is known, if only as a change of the whole file.
    world.on_tree("changes", &[]).fine().says("a: ");
    world.on_tree("backup", &[]).fine();
    world.assert_restores("latest");
}

/// A process in a mount namespace of its own, which has a copy of the mount at `tree`.
struct Elsewhere(Child);

impl Elsewhere {
    fn new(tree: &Path) -> Self {
        let mut child = Command::new("unshare")
            .args(["-m", "sh", "-c", &format!("{LET_GO}\necho there; exec sleep 600")])
            .env("TREE", tree)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "there\n");
        Self(child)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn umount_names_who_holds_a_copy_and_ends_as_lazy_does() {
    let world = World::mounted();
    let tree = world.tree();
    fs::write(tree.join("a"), "a").unwrap();
    world.backup();
    let daemon = world.daemon_pid();
    let other = Elsewhere::new(&tree);
    let pid = other.0.id();
    let held_by = format!("sleep (process {pid})");

    let unmounted = world.on_tree("umount", &["--wait", "3s", "--json"]).ends_with(0);
    let summary = unmounted.line("summary");
    assert_eq!(summary["ended"], false);
    let holder = &summary["held_by"][0];
    assert_eq!(
        (&holder["pid"], &holder["mounted_at"]),
        (&Value::from(pid), &Value::from(tree.to_str().unwrap())),
        "{summary}"
    );
    unmounted.says(&held_by).says("another mount namespace");
    assert!(!is_mounted(&tree) && is_alive(daemon));
    world
        .on_tree("status", &[])
        .ends_with(0)
        .says("UNMOUNTED")
        .says(&held_by);
    // No daemon tracks this write; the file was changed through the mount a moment ago.
    fs::write(tree.join("a"), "b").unwrap();

    // The next mount waits for the end of the daemon.
    let mut mount = world
        .command(&["mount", "--json", tree.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(mount.stderr.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    assert!(said.contains(&held_by) && said.contains("waiting"), "{said}");
    drop(other);
    ended("mount", mount).ends_with(0);
    assert!(is_mounted(&tree) && !is_alive(daemon));
    world.on_tree("changes", &[]).fine().says("a: the whole file");
    world.on_tree("umount", &[]).fine();
}

#[test]
fn mount_and_backup_wait_for_a_daemon_that_is_ending() {
    let world = World::mounted();
    let tree = world.tree();
    for round in 0..6 {
        fs::write(tree.join("a"), noise(round, 100_000)).unwrap();
        unmount(&tree);
        match round {
            // A long wait is reported, hence not `fine`.
            0..4 => drop(world.on_tree("mount", &[]).ends_with(0)),
            4 => drop(world.on_tree("backup", &[]).ends_with(0)),
            _ => drop(world.on_tree("status", &[]).ends_with(0)),
        }
        if round == 4 {
            world.on_tree("mount", &[]).ends_with(0);
        }
    }
}

#[test]
fn backups_of_a_mounted_folder_share_the_daemons_connection() {
    let world = World::mounted();
    let file = world.tree().join("a");
    fs::write(&file, noise(1, 100_000)).unwrap();
    let backup = |round: u64| {
        let file = fs::OpenOptions::new().write(true).open(&file).unwrap();
        file.write_all_at(&noise(round, 100), round * 1000).unwrap();
        let report = world.backup();
        let wire = |way: &str| report["wire"][way].as_u64().unwrap();
        (wire("sent"), wire("received"))
    };
    let first = backup(2);
    for round in 3..6 {
        let (sent, received) = backup(round);
        // The content, and no handshake.
        assert!((100..700).contains(&sent), "{sent}, at first {first:?}");
        assert!((1..500).contains(&received), "{received}, at first {first:?}");
    }
    // Where the user says whom to trust, the daemon's connection is not used.
    let issuers = world.path("issuers");
    fs::write(&issuers, "").unwrap();
    world
        .on_tree("backup", &["--cacert", issuers.to_str().unwrap()])
        .ends_with(1)
        .says("no certificate");
    let mut command = world.command(&["backup", world.tree().to_str().unwrap()]);
    command.env("BYTEBACK_CACERT", &issuers);
    finish("backup", command).ends_with(1).says("no certificate");
    world.assert_restores("latest");
}

#[test]
fn a_further_mount_of_the_tree_is_named_by_umount() {
    let world = World::mounted();
    let (tree, copy) = (world.tree(), world.path("copy"));
    fs::create_dir(&copy).unwrap();
    rustix::mount::mount_bind(&tree, &copy).unwrap();
    world
        .on_tree("umount", &["--wait", "3s"])
        .ends_with(0)
        .says(&format!("it is still mounted at {}", copy.display()));
    unmount(&copy);
    world.on_tree("mount", &[]).ends_with(0);
    world.on_tree("umount", &[]).ends_with(0);
}

#[test]
fn daemon_killed_leaves_a_plain_folder_and_misses_no_change() {
    let world = World::mounted();
    let tree = world.tree();
    fs::write(tree.join("file"), noise(1, 1 << 20)).unwrap();
    fs::write(tree.join("other"), noise(2, 1 << 20)).unwrap();
    // A write within a tick of the kernel's clock cannot be told from the next one; the file would
    // be read whole to be safe.
    thread::sleep(Duration::from_millis(100));
    world.backup();
    // All is settled then: no file is open for writing.
    world.on_tree("umount", &[]).fine();
    world.on_tree("mount", &[]).fine();
    let file = fs::OpenOptions::new().write(true).open(tree.join("file")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"before", 4096).unwrap();
    let pid = world.daemon_pid();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    eventually("the folder is free", || (!is_mounted(&tree)).then_some(()));
    drop(file);
    fs::write(tree.join("new"), "while nobody looked").unwrap();

    world.on_tree("status", &[]).fine().says("not mounted");
    let mounted = world.on_tree("mount", &["--json"]).fine().line("summary");
    assert_eq!(mounted["first_time"], false);
    let status = world.on_tree("status", &["--json"]).fine().line("folder");
    assert_eq!(status["gaps"][1]["cause"], "interrupted", "{status}");
    let report = world.backup();
    // Only the file that was being changed is read whole.
    assert_eq!(
        (&report["whole"]["interrupted"], &report["files_new"]),
        (&Value::from(1), &Value::from(1)),
        "{report}"
    );
    world.assert_restores("latest");
}

#[test]
fn an_ordinary_user_mounts_and_saves_a_folder_of_their_own() {
    let _device = DeviceForAll::new();
    let world = World::served();
    let token = world.run(&["invite", "--admin", "--data", "data"]).ends_with(0).stdout;
    let folder = world.path("theirs");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a"), "a").unwrap();
    for path in [&folder, &folder.join("a")] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let theirs = folder.to_str().unwrap();
    let repository = format!("{}/theirs", world.url());
    world
        .run_as_user(&["init", theirs, "-r", &repository, "--join-token", token.trim()])
        .fine();
    // Only its owner can read it.
    let tokens = world.path("user/config/byteback/tokens");
    for path in fs::read_dir(&tokens).unwrap() {
        let mode = path.unwrap().metadata().unwrap().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
    }
    world.run_as_user(&["mount", theirs]).fine();
    assert!(is_mounted(&folder));
    let report = world.run_as_user(&["backup", "--json", theirs]).fine().line("summary");
    assert_eq!(
        (&report["mounted"], &report["files_new"]),
        (&Value::Bool(true), &Value::from(1))
    );
    // Root may not look into it, and programs that go through the mount table pass it by.
    let image = world.path("image");
    fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
    run("/sbin/mkfs.btrfs", &["-q", image.to_str().unwrap()]);
    world.run_as_user(&["umount", theirs]).fine();
    assert!(!is_mounted(&folder));
    // A token is used up when a machine has joined with it.
    fs::create_dir(world.path("again")).unwrap();
    let again = world.path("again");
    world
        .run(&[
            "--token-file",
            "new-token",
            "init",
            again.to_str().unwrap(),
            "-r",
            &repository,
            "--join-token",
            token.trim(),
        ])
        .ends_with(12)
        .says("byteback invite");
}

#[test]
fn daemon_of_another_version_is_reported_with_how_to_end_it() {
    let world = World::served();
    let trees = fs::read_dir(world.path("home/state/trees")).unwrap();
    let state = trees
        .map(|tree| tree.unwrap().path())
        .find(|path| path.is_dir())
        .unwrap();
    let listener = std::os::unix::net::UnixListener::bind(state.join("control.sock")).unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let _ = std::io::Write::write_all(&mut connection.unwrap(), &[0x7f; 64]);
        }
    });
    for command in ["umount", "mount", "backup", "changes"] {
        world
            .on_tree(command, &[])
            .ends_with(1)
            .says("another version of Byteback")
            .says("fusermount3 -u");
    }
    world.run(&["status"]).ends_with(4).says("another version of Byteback");
}

#[test]
fn mode_fast_saves_what_programs_wrote() {
    let world = World::served();
    let tree = world.tree();
    fs::write(tree.join("file"), noise(1, 4 << 20)).unwrap();
    world.on_tree("mount", &["--mode", "fast"]).fine().says("mode fast");
    world.backup();
    let file = fs::OpenOptions::new().write(true).open(tree.join("file")).unwrap();
    for at in 0..200_u64 {
        std::os::unix::fs::FileExt::write_all_at(&file, b"changed", at * 16_000).unwrap();
    }
    let report = world.backup();
    assert!(report["read_bytes"].as_u64().unwrap() < 2 << 20, "{report}");
    world.assert_restores("latest");
}

/// ext4 ends in 2446, XFS in 2486, tmpfs and btrfs go beyond the calendar; 64 bits of nanoseconds
/// cover 1677 to 2262.
#[test]
fn times_that_64_bits_do_not_hold_are_kept() {
    let world = World::mounted();
    let touch = |path: &Path, time: &str| run("touch", &["-m", "-d", time, path.to_str().unwrap()]);
    let time_of = |path: &Path| run("stat", &["-c", "%y", path.to_str().unwrap()]);
    let (file, directory) = (world.tree().join("file"), world.tree().join("directory"));
    fs::write(&file, "of the future").unwrap();
    fs::create_dir(&directory).unwrap();
    let far = [
        "2300-01-02 03:04:05.123456789 +0000",
        "2440-01-02 03:04:05.987654321 +0000",
    ];
    touch(&file, far[0]);
    touch(&directory, far[1]);
    assert_eq!(
        [time_of(&file).trim(), time_of(&directory).trim()],
        far,
        "through the mount"
    );
    world.backup();
    world.assert_restores("latest");
    world.on_tree("verify", &["--deep"]).fine().says("equal");
    world
        .about_tree("ls", &["--json", "--long"])
        .fine()
        .says("2300-01-02T03:04:05.123456789Z");
    // Only the time changes, from one that 64 bits cannot hold to another.
    touch(&file, "2301-01-01 00:00:00 +0000");
    world.backup();
    world.assert_restores("latest");
    // Without a mount, and long before 1677.
    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let (from, to) = (shared.path().join("from"), shared.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("old"), "of long ago").unwrap();
    touch(&from.join("old"), "1500-01-02 03:04:05.123456789 +0000");
    let elsewhere = format!("{}/elsewhere", world.url());
    world.run(&["push", from.to_str().unwrap(), &elsewhere]).fine();
    world.run(&["pull", &elsewhere, to.to_str().unwrap()]).fine();
    assert_eq!(time_of(&to.join("old")).trim(), "1500-01-02 03:04:05.123456789 +0000");
}
