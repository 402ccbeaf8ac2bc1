//! The reliability tests of DeltaCFS (section IV-E, table IV) with real processes: a folder on a
//! file system in an image whose blocks are changed behind its back, and a machine that seems to
//! have rebooted.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use byteback_host::random::noise;
use byteback_testkit::command::{Ran, finish, run_by};
use byteback_testkit::mounts::is_mounted;
use byteback_testkit::tools::run;
use byteback_testkit::waiting::{eventually, settle};
use rustix::fs::{Advice, CWD, Mode, OFlags, fadvise, openat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::json::Check;
use crate::world::World;

const BLOCK: u64 = 4096;

/// A served world whose folder is an ext4 of its own, the directory below its mount, and the image.
struct Disk {
    world: World,
    below: OwnedFd,
    image: PathBuf,
}

impl Disk {
    fn new() -> Self {
        let world = World::served();
        let (image, tree) = (world.path("image"), world.tree());
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let (image_text, tree_text) = (image.to_str().unwrap(), tree.to_str().unwrap());
        run("mkfs.ext4", &["-q", "-b", "4096", "-I", "256", image_text]);
        run("mount", &["-o", "loop", image_text, tree_text]);
        // Mounts made over it in other namespaces are seen here, too.
        run("mount", &["--make-shared", tree_text]);
        fs::remove_dir(tree.join("lost+found")).unwrap();
        let below = openat(CWD, &tree, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        Self { world, below, image }
    }

    fn tree(&self, name: &str) -> PathBuf {
        self.world.tree().join(name)
    }

    /// Starts sync of the folder, on a machine that has been booted `boots` times.
    fn sync_after_boot(&self, boots: u8, arguments: &[&str]) -> Ran {
        let boot = self.world.path("boot-id");
        fs::write(&boot, format!("00000000-0000-4000-8000-0000000000{boots:02x}\n")).unwrap();
        let tree = self.world.tree();
        let mut all = vec!["sync", "--delay", "0"];
        all.extend(arguments);
        all.push(tree.to_str().unwrap());
        let plain = self.world.command(&all);
        let script =
            "mount --make-rprivate /proc && mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "unchanged", "sh", "-c", script]);
        command.arg(&boot);
        finish(&all.join(" "), run_by(command, &plain))
    }

    fn sync(&self) {
        // Without the scrub: damage is found only because the bytes are to be sent.
        self.sync_after_boot(1, &["--scrub-rate", "0"]).fine();
    }

    fn umount(&self) {
        // Checksums of the last changes before the end are not kept.
        settle();
        settle();
        self.world.on_tree("umount", &[]).fine();
    }

    /// Changes the bytes at an offset of a file on the disk, past the file system, and drops the
    /// cached pages.
    fn overwrite(&self, name: &str, at: u64, change: impl FnOnce(&mut [u8])) {
        let flags = OFlags::RDONLY | OFlags::NOATIME;
        let file = File::from(openat(&self.below, name, flags, Mode::empty()).unwrap());
        file.sync_all().unwrap();
        let mut block = i32::try_from(at / BLOCK).unwrap();
        const FIBMAP: libc::c_ulong = 1;
        // SAFETY: the call reads and writes one int, which lives for the duration of the call.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), FIBMAP, std::ptr::from_mut(&mut block)) };
        assert!(done == 0 && block > 0, "byte {at} of {name} has no place on the disk");
        let image = File::options().read(true).write(true).open(&self.image).unwrap();
        let place = u64::try_from(block).unwrap() * BLOCK;
        let mut bytes = [0; BLOCK as usize];
        image.read_exact_at(&mut bytes, place).unwrap();
        change(&mut bytes[(at % BLOCK) as usize..]);
        image.write_all_at(&bytes, place).unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    }

    fn flip(&self, name: &str, at: u64) {
        self.overwrite(name, at, |bytes| bytes[0] ^= 0x10);
    }

    fn status(&self) -> Value {
        self.world
            .on_tree("status", &["--json"])
            .reports_health()
            .line("folder")
    }

    /// Waits until nothing is unsent but `unsaved` damaged files.
    #[track_caller]
    fn wait_until_sent_but(&self, unsaved: u64) {
        eventually(&format!("everything is sent but {unsaved} files"), || {
            let sync = &self.status()["sync"];
            let is_sent = sync["connected"] == true
                && sync["waiting_changes"] == 0
                && sync["groups_in_flight"] == 0
                && sync["folded"] == false
                && sync["unsaved_files"] == unsaved;
            is_sent.then_some(())
        });
    }

    /// The server's version of the folder, fetched into a directory of its own.
    fn pulled(&self) -> PathBuf {
        let target: PathBuf = (0..)
            .map(|number| self.world.path(&format!("pulled-{number}")))
            .find(|path| !path.exists())
            .unwrap();
        self.world
            .run(&["pull", &self.world.repository(), target.to_str().unwrap()])
            .fine();
        target
    }

    /// The server's version of a file.
    fn at_server(&self, name: &str) -> Vec<u8> {
        fs::read(self.pulled().join(name)).unwrap()
    }

    fn repair(&self, arguments: &[&str]) -> Ran {
        let tree = self.world.tree();
        let mut all = vec!["repair", "--folder", tree.to_str().unwrap()];
        all.extend(arguments);
        self.world.run(&all)
    }

    fn kill_daemon(&self) {
        let daemon = self.world.daemon_pid();
        kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
        eventually("the mount is gone", || {
            (fuse_mounts(&self.world.tree()) == 0).then_some(())
        });
    }
}

/// The number of FUSE file systems mounted at a path.
fn fuse_mounts(path: &Path) -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = path.to_str().unwrap();
    let is_of = |line: &&str| line.split(' ').nth(4) == Some(point) && line.contains(" - fuse");
    table.lines().filter(is_of).count()
}

fn write_at(path: &Path, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// "We inject corrupted data by flipping a bit in a file. After sync clients are restarted, we
/// write 1 byte to that file to see whether the corrupted data is also uploaded."
#[test]
fn rot_is_not_sent_and_repair_from_the_server_keeps_writes() {
    let disk = Disk::new();
    disk.sync();
    let content = noise(1, 5 * BLOCK as usize + 100);
    for name in ["same", "other", "mine", "good"] {
        fs::write(disk.tree(name), &content).unwrap();
    }
    disk.wait_until_sent_but(0);
    disk.umount();
    for name in ["same", "other", "mine"] {
        disk.flip(name, BLOCK + 100);
    }
    disk.sync();
    // In the damaged block, and in another one; and in a file without damage.
    write_at(&disk.tree("same"), BLOCK + 7, b"x");
    write_at(&disk.tree("other"), 5 * BLOCK + 50, b"y");
    write_at(&disk.tree("mine"), 7, b"z");
    // Makes sync look at these files.
    write_at(&disk.tree("other"), BLOCK + 200, b"y");
    write_at(&disk.tree("mine"), BLOCK + 200, b"z");
    fs::write(disk.tree("good"), "better").unwrap();
    disk.wait_until_sent_but(3);
    let mut rotten = content.clone();
    rotten[BLOCK as usize + 100] ^= 0x10;
    let pulled = disk.pulled();
    assert_eq!(fs::read(pulled.join("good")).unwrap(), b"better");
    for name in ["same", "other", "mine"] {
        let there = fs::read(pulled.join(name)).unwrap();
        assert_eq!(
            there[BLOCK as usize + 100],
            content[BLOCK as usize + 100],
            "{name}: the flipped bit was sent"
        );
    }

    let listed = disk.repair(&["--json"]).fine();
    Check::new().of("repair", &listed);
    let reported = listed.json();
    assert_eq!(reported.len(), 3, "{reported:?}");
    let same = reported.iter().find(|line| line["path"] == "same").unwrap();
    assert_eq!(same["message_type"], "damaged");
    assert_eq!(
        (&same["ranges"], &same["after_crash"]),
        (&json!([[BLOCK, BLOCK]]), &Value::Bool(false))
    );
    assert_eq!(
        (&same["here"]["size"], &same["server"]["size"]),
        (&json!(content.len()), &json!(content.len()))
    );
    disk.repair(&[])
        .fine()
        .says("bytes 4096 to 8192 changed although no program wrote them; they are not sent")
        .says("3 damaged files");
    disk.repair(&["good"])
        .ends_with(1)
        .says("good is not known to be damaged");

    // The server's bytes, with those written here since.
    for (name, at, byte) in [("same", BLOCK + 7, b'x'), ("other", BLOCK + 200, b'y')] {
        let said = disk.repair(&["--keep", "server", name]).fine();
        said.says(&format!("{name}: 4,096 bytes repaired"));
        let mut wanted = content.clone();
        wanted[at as usize] = byte;
        if name == "other" {
            wanted[5 * BLOCK as usize + 50] = b'y';
        }
        assert_eq!(fs::read(disk.tree(name)).unwrap(), wanted, "{name}");
        eventually("the rest of it is sent", || {
            (disk.at_server(name) == wanted).then_some(())
        });
    }
    // Kept as it is: the flipped bit is now a user's choice.
    let kept = disk.repair(&["--keep", "mine", "mine", "--json"]).fine();
    Check::new().of("repair", &kept);
    let kept = kept.line("damaged");
    assert_eq!((&kept["kept"], &kept["bytes"]), (&json!("mine"), &json!(4096)));
    rotten[7] = b'z';
    rotten[BLOCK as usize + 200] = b'z';
    assert_eq!(fs::read(disk.tree("mine")).unwrap(), rotten);
    eventually("it is sent", || (disk.at_server("mine") == rotten).then_some(()));
    assert_eq!(disk.status()["damaged"], json!([]));
    disk.repair(&[]).fine().says("No damaged files are known");
    disk.wait_until_sent_but(0);
    disk.umount();
}

/// A block that was written here, is not at the server, and rots: its bytes exist nowhere any more.
/// The file stays as it is until the user decides, whatever becomes of the server.
#[test]
fn rot_beyond_repair_stays_as_it_is_until_a_user_decides() {
    let mut disk = Disk::new();
    disk.sync();
    let content = noise(2, 5 * BLOCK as usize);
    fs::write(disk.tree("file.txt"), &content).unwrap();
    disk.wait_until_sent_but(0);
    disk.world.kill_server();
    let mut local = content.clone();
    let fresh = noise(3, 2 * BLOCK as usize);
    local[BLOCK as usize..3 * BLOCK as usize].copy_from_slice(&fresh);
    write_at(&disk.tree("file.txt"), BLOCK, &fresh);
    // Bytes read for sending before the damage are in no memory after this.
    disk.umount();
    disk.flip("file.txt", 2 * BLOCK + 5);
    local[2 * BLOCK as usize + 5] ^= 0x10;
    disk.world.serve();
    disk.sync();
    disk.wait_until_sent_but(1);
    assert_eq!(disk.at_server("file.txt"), content, "nothing of it is sent");
    disk.world.on_tree("pause", &[]).fine();
    disk.repair(&["--keep", "server"])
        .ends_with(1)
        .says("cannot ask the server: sync is paused");
    disk.repair(&[]).fine().says("server: not known: sync is paused");
    disk.world.on_tree("resume", &[]).fine();

    disk.repair(&["--keep", "server", "file.txt"])
        .ends_with(1)
        .says("nothing proves that the server's version is what was written here")
        .says("1 file was not repaired, and left unchanged");
    assert_eq!(fs::read(disk.tree("file.txt")).unwrap(), local);
    disk.wait_until_sent_but(1);
    assert_eq!(disk.at_server("file.txt"), content);
    // This decision needs no server.
    disk.world.kill_server();
    disk.repair(&["--keep", "mine"]).fine();
    disk.world.serve();
    eventually("it is sent", || (disk.at_server("file.txt") == local).then_some(()));
    disk.wait_until_sent_but(0);
    assert_eq!(disk.status()["damaged"], json!([]));
    disk.umount();
}

/// "We cut off the power of the machine during a file in the sync folder is being written. After
/// the machine is powered on, we first inject inconsistent data to simulate crash inconsistency by
/// writing data to the file bypassing the file system."
#[test]
fn crash_inconsistency_is_held_back_and_shows_both_versions() {
    for keep in ["server", "mine"] {
        let disk = Disk::new();
        disk.sync();
        let content = noise(4, 6 * BLOCK as usize);
        for name in ["bad", "sound"] {
            fs::write(disk.tree(name), &content).unwrap();
        }
        disk.wait_until_sent_but(0);
        // Both files are being written when the machine stops.
        let open = ["bad", "sound"].map(|name| File::options().write(true).open(disk.tree(name)).unwrap());
        let mut written = content.clone();
        for file in &open {
            file.write_all_at(b"being written", 100).unwrap();
            file.sync_all().unwrap();
        }
        written[100..113].copy_from_slice(b"being written");
        eventually("the server has it", || (disk.at_server("bad") == written).then_some(()));
        wait_for_sums(&disk);
        disk.kill_daemon();
        drop(open);
        // The data changes but the metadata does not.
        disk.overwrite("bad", 3 * BLOCK, |bytes| bytes.fill(0xee));
        let mut inconsistent = written.clone();
        inconsistent[3 * BLOCK as usize..4 * BLOCK as usize].fill(0xee);
        // A later write to the damaged file must not be sent either; other files are.
        disk.sync_after_boot(2, &["--scrub-rate", "0"]).ends_with(0);
        fs::write(disk.tree("new"), "new").unwrap();
        write_at(&disk.tree("bad"), 5 * BLOCK, b"after the crash");
        inconsistent[5 * BLOCK as usize..5 * BLOCK as usize + 15].copy_from_slice(b"after the crash");
        disk.wait_until_sent_but(1);
        assert_eq!(disk.at_server("bad"), written, "nothing of it is sent");
        let pulled = disk.pulled();
        assert_eq!(fs::read(pulled.join("sound")).unwrap(), written);
        assert_eq!(fs::read(pulled.join("new")).unwrap(), b"new");
        let status = disk.status();
        assert_eq!(status["damaged"].as_array().unwrap().len(), 1, "{status}");
        assert_eq!(
            (&status["damaged"][0]["path"], &status["damaged"][0]["after_crash"]),
            (&json!("bad"), &json!(true))
        );
        let reported = disk.repair(&["--json"]).fine().line("damaged");
        assert_eq!(
            (&reported["ranges"], &reported["server"]["size"]),
            (&json!([[3 * BLOCK, BLOCK]]), &json!(written.len()))
        );
        disk.repair(&[])
            .fine()
            .says("bytes 12288 to 16384 are not what was written before the crash; the file is not sent")
            .says("  here:   24,576 bytes")
            .says("  server: 24,576 bytes");

        let mut wanted = inconsistent;
        if keep == "server" {
            wanted[3 * BLOCK as usize..4 * BLOCK as usize]
                .copy_from_slice(&written[3 * BLOCK as usize..4 * BLOCK as usize]);
        }
        disk.repair(&["--keep", keep, "bad"]).fine();
        assert_eq!(fs::read(disk.tree("bad")).unwrap(), wanted, "{keep}");
        eventually("it is sent", || (disk.at_server("bad") == wanted).then_some(()));
        assert_eq!(disk.status()["damaged"], json!([]));
        disk.wait_until_sent_but(0);
        disk.umount();
        assert!(!is_mounted_by_fuse(&disk));
    }
}

/// By default checksums are kept and the disk is scrubbed.
#[test]
fn sync_keeps_checksums_by_default_and_begins_without_an_alarm() {
    let disk = Disk::new();
    let damaged = || disk.status()["damaged"].clone();
    let has_sums = || {
        let mut found = Vec::new();
        find(&disk.world.path("home/state"), "written.redb", &mut found);
        !found.is_empty()
    };
    // At first without checksums.
    disk.sync_after_boot(1, &["--no-checksums"]).fine();
    let content = noise(5, 4 * BLOCK as usize);
    fs::write(disk.tree("elder"), &content).unwrap();
    disk.wait_until_sent_but(0);
    disk.umount();
    assert!(!has_sums());
    // Earlier damage cannot be detected.
    disk.flip("elder", BLOCK + 9);
    disk.sync_after_boot(1, &[]).fine();
    assert!(has_sums());
    fs::write(disk.tree("younger"), &content).unwrap();
    write_at(&disk.tree("elder"), 3 * BLOCK, b"changed");
    disk.wait_until_sent_but(0);
    assert_eq!(damaged(), json!([]));
    disk.umount();

    disk.flip("younger", 2 * BLOCK);
    disk.sync_after_boot(1, &[]).fine();
    eventually("the disk is looked through", || {
        let damaged = damaged();
        (damaged.as_array().unwrap().len() == 1 && damaged[0]["path"] == "younger").then_some(())
    });
    disk.umount();

    // Both files change without checksums, and then checksums are kept again: the earlier ones no
    // longer count.
    disk.sync_after_boot(1, &["--no-checksums"]).fine();
    assert_eq!(damaged(), json!([]));
    let fresh = noise(6, 4 * BLOCK as usize);
    for name in ["younger", "elder"] {
        write_at(&disk.tree(name), 0, &fresh);
    }
    disk.wait_until_sent_but(0);
    disk.umount();
    disk.sync_after_boot(1, &[]).fine();
    eventually("it is seen to be sound", || (damaged() == json!([])).then_some(()));
    for name in ["younger", "elder"] {
        write_at(&disk.tree(name), BLOCK + 3, b"changed");
        let mut wanted = fresh.clone();
        wanted[BLOCK as usize + 3..][..7].copy_from_slice(b"changed");
        eventually("it is sent", || (disk.at_server(name) == wanted).then_some(()));
    }
    disk.wait_until_sent_but(0);
    assert_eq!(damaged(), json!([]));
    disk.umount();
}

fn is_mounted_by_fuse(disk: &Disk) -> bool {
    is_mounted(&disk.world.tree()) && fuse_mounts(&disk.world.tree()) > 0
}

/// Waits until the checksums of everything written are durable, along with the files' times: the
/// database is committed every few seconds.
fn wait_for_sums(disk: &Disk) {
    settle();
    settle();
    let state = disk.world.path("home/state");
    let newest = || {
        let mut found = Vec::new();
        find(&state, "written.redb", &mut found);
        assert_eq!(found.len(), 1, "{found:?}");
        fs::metadata(&found[0]).unwrap().modified().unwrap()
    };
    // The first commit seen may have begun before.
    for round in 0..2 {
        let before = newest();
        // Without any change nothing is committed.
        fs::write(disk.tree("scratch"), [round]).unwrap();
        eventually("the sums are made durable", || (newest() > before).then_some(()));
    }
}

fn find(dir: &Path, name: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, name, found);
        } else if path.file_name().is_some_and(|file| file == name) {
            found.push(path);
        }
    }
}

/// "We tested the uploading order by generating files of different sizes. DeltaCFS always follows
/// the update order."
#[test]
fn sync_delivers_files_of_all_sizes_in_the_order_of_writing() {
    let world = World::served();
    world.on_tree("sync", &["--delay", "0", "--limit-rate", "3MiB"]).fine();
    let lens = [2_000_000, 10, 900_000, 1, 0, 4_000_000, 70_000, 3, 1_500_000, 20];
    let contents: Vec<Vec<u8>> = (0..).zip(lens).map(|(seed, len)| noise(seed, len)).collect();
    let name = |number: usize| format!("file-{number}");
    for (number, content) in contents.iter().enumerate() {
        fs::write(world.tree().join(name(number)), content).unwrap();
    }
    let (mut seen, mut rounds) = (0, 0);
    eventually("all are there", || {
        let target = world.path(&format!("pulled-{rounds}"));
        rounds += 1;
        world
            .run(&["pull", &world.repository(), target.to_str().unwrap()])
            .fine();
        let there: Vec<Option<Vec<u8>>> = (0..lens.len())
            .map(|number| fs::read(target.join(name(number))).ok())
            .collect();
        let count = there.iter().take_while(|content| content.is_some()).count();
        assert!(
            there.iter().skip(count).all(Option::is_none),
            "a younger file is there without an elder one"
        );
        for (number, content) in there.iter().take(count).enumerate() {
            let content = content.as_ref().unwrap();
            // The last file may not have been written completely at that moment.
            match number + 1 == count {
                true => assert!(contents[number].starts_with(content), "{}", name(number)),
                false => assert!(*content == contents[number], "{}", name(number)),
            }
        }
        assert!(count >= seen, "what was there is gone");
        seen = count;
        let last = there.last().unwrap();
        fs::remove_dir_all(&target).unwrap();
        last.as_ref().is_some_and(|content| content.len() == 20).then_some(())
    });
    world.on_tree("umount", &[]).fine();
}
