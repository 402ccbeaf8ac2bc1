//! Several machines keep one folder: each a real mount with its engine, with a server between them.
//! Changes on one come to the others; concurrent changes on two are lost nowhere; at the end all
//! trees are the same.

mod atomic;
mod blocked;
mod comparing;
mod in_use;
mod pairs;
mod removing;

use super::engine::{Sending, Syncing, assert_server_has, is_settled, rig, stop};
use byteback_control::{SYNC_CONSUMER, SyncStatus};
use byteback_host::random::SplitMix64;
use byteback_host::tree::{self, SetTime};
use byteback_testkit::mounted::{Mounted, PATIENCE, Place, live_options};
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::seed;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A machine.
pub(super) struct Machine {
    place: Place,
    mounted: Option<Mounted>,
    sending: Option<Sending>,
}

impl Machine {
    pub(super) fn new(rig: &Rig, name: &str) -> Self {
        let mut place = Place::of(rig, name);
        (place.token, place.device) = rig.another_token();
        Self {
            place,
            mounted: None,
            sending: None,
        }
    }

    pub(super) fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    pub(super) fn mount(&mut self, random: &mut SplitMix64) {
        self.mounted = Some(Mounted::new(&self.place, live_options(random)));
    }

    pub(super) fn mount_at_once(&mut self) {
        let mut options = live_options(&mut SplitMix64::new(1));
        options.queue.delay_ns = 0;
        self.mounted = Some(Mounted::new(&self.place, options));
    }

    pub(super) fn begin(&mut self) {
        self.sending = Some(self.mounted.as_ref().unwrap().send(&self.place));
    }

    pub(super) fn started(rig: &Rig, name: &str) -> Self {
        let mut machine = Self::new(rig, name);
        machine.mount_at_once();
        machine.begin();
        machine
    }

    pub(super) fn stop(&mut self) {
        stop(self.sending.take().unwrap());
    }

    pub(super) fn end(&mut self) {
        if self.sending.is_some() {
            self.stop();
        }
        if let Some(mounted) = self.mounted.take() {
            mounted.end();
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.place.tree().join(name)
    }

    /// Gives up the order of the waiting changes.
    pub(super) fn give_up(&self) {
        self.mounted.as_ref().unwrap().live.give_up("the test says so");
    }

    /// Loses the log's mark: the whole tree is sent in place of the server's.
    pub(super) fn lose_mark(&self) {
        let mounted = self.mounted.as_ref().unwrap();
        assert!(mounted.tree.drop_consumer(SYNC_CONSUMER).unwrap());
        mounted.live.give_up("the test says so");
    }

    pub(super) fn status(&self) -> SyncStatus {
        self.sending.as_ref().unwrap().0.status()
    }
}

/// Waits until no machine has anything to send or to receive.
pub(super) fn settle(rig: &Rig, machines: &[&Machine], what: &str) {
    let began = Instant::now();
    let mut quiet = 0;
    while quiet < 3 {
        let seq = rig.seq();
        let is_quiet = machines.iter().all(|machine| {
            let status = machine.status();
            is_settled(&status) && status.cursor == seq
        });
        quiet = if is_quiet && rig.seq() == seq { quiet + 1 } else { 0 };
        let reported = || machines.iter().map(|machine| machine.status()).collect::<Vec<_>>();
        assert!(began.elapsed() < PATIENCE, "{what}: at {seq}: {:#?}", reported());
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(super) type Looked = BTreeMap<PathBuf, (u32, Vec<u8>, i64)>;

pub(super) fn look(dir: &Path) -> Looked {
    try_look(dir).unwrap()
}

/// Like [`look`], for a tree that may be changing: fails where a node is gone before it is looked
/// at.
pub(super) fn try_look(dir: &Path) -> io::Result<Looked> {
    let mut looked = Looked::new();
    look_below(dir, dir, &mut looked)?;
    Ok(looked)
}

fn look_below(top: &Path, dir: &Path, looked: &mut Looked) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let found = path.symlink_metadata()?;
        let content = match found.file_type() {
            kind if kind.is_dir() => {
                look_below(top, &path, looked)?;
                Vec::new()
            }
            kind if kind.is_symlink() => fs::read_link(&path)?.as_os_str().as_bytes().to_vec(),
            _ => fs::read(&path)?,
        };
        let mtime = found.mtime() * 1_000_000_000 + found.mtime_nsec();
        looked.insert(
            path.strip_prefix(top).unwrap().to_owned(),
            (found.mode(), content, mtime),
        );
    }
    Ok(())
}

pub(super) fn assert_same(machines: &[&Machine], what: &str) {
    let first = look(&machines[0].place.tree());
    for other in &machines[1..] {
        let there = look(&other.place.tree());
        let differ = |one: &Looked, other: &Looked| {
            let lines = one.iter().filter(|(path, found)| other.get(*path) != Some(found));
            let lines = lines.map(|(path, (mode, content, mtime))| {
                format!("{}: {mode:o}, {} bytes, {mtime}", path.display(), content.len())
            });
            lines.collect::<Vec<_>>()
        };
        assert_eq!(differ(&first, &there), differ(&there, &first), "{what}");
    }
}

pub(super) fn conflicts(dir: &Path) -> Vec<PathBuf> {
    let is_conflict = |path: &&PathBuf| {
        path.as_os_str()
            .as_bytes()
            .windows(15)
            .any(|part| part == b"(conflict from ")
    };
    look(dir).keys().filter(is_conflict).cloned().collect()
}

#[test]
fn what_one_machine_does_comes_to_the_other() {
    let rig = rig(101);
    let mut one = Machine::started(&rig, "one");
    fs::create_dir_all(one.path("dir/sub")).unwrap();
    fs::write(one.path("dir/file"), b"first").unwrap();
    settle(&rig, &[&one], "one");
    let mut two = Machine::started(&rig, "two");
    settle(&rig, &[&one, &two], "two has joined");
    assert_same(&[&one, &two], "two has joined");
    let mut random = SplitMix64::new(7);
    let large = random.bytes(400_000);
    type Step = Box<dyn Fn(&Machine)>;
    let steps: Vec<(&str, Step)> = vec![
        ("a new file", Box::new(|m| fs::write(m.path("a"), b"a").unwrap())),
        (
            "a large file",
            Box::new(move |m| fs::write(m.path("large"), &large).unwrap()),
        ),
        (
            "in place",
            Box::new(|m| {
                let file = File::options().write(true).open(m.path("large")).unwrap();
                file.write_all_at(b"in the middle", 200_000).unwrap();
            }),
        ),
        (
            "longer",
            Box::new(|m| {
                let mut file = File::options().append(true).open(m.path("large")).unwrap();
                file.write_all(b"at the end").unwrap();
            }),
        ),
        (
            "shorter",
            Box::new(|m| {
                File::options()
                    .write(true)
                    .open(m.path("large"))
                    .unwrap()
                    .set_len(100_001)
                    .unwrap()
            }),
        ),
        (
            "renamed",
            Box::new(|m| fs::rename(m.path("a"), m.path("dir/b")).unwrap()),
        ),
        (
            "replaced",
            Box::new(|m| fs::rename(m.path("dir/b"), m.path("dir/file")).unwrap()),
        ),
        (
            "linked",
            Box::new(|m| fs::hard_link(m.path("large"), m.path("dir/large too")).unwrap()),
        ),
        ("a symlink", Box::new(|m| symlink("somewhere", m.path("link")).unwrap())),
        (
            "attributes",
            Box::new(|m| fs::set_permissions(m.path("dir/file"), fs::Permissions::from_mode(0o711)).unwrap()),
        ),
        (
            "a directory moves",
            Box::new(|m| fs::rename(m.path("dir/sub"), m.path("sub")).unwrap()),
        ),
        ("removed", Box::new(|m| fs::remove_dir_all(m.path("dir")).unwrap())),
        (
            "saved as editors do",
            Box::new(|m| {
                fs::write(m.path("new"), b"anew").unwrap();
                fs::rename(m.path("new"), m.path("large")).unwrap();
            }),
        ),
    ];
    for (what, step) in steps {
        for machine in [&one, &two] {
            // The other way round a copy from elsewhere undoes the change, so each is made once on
            // each side.
            if machine.place.base != one.place.base {
                continue;
            }
            step(machine);
            settle(&rig, &[&one, &two], what);
            assert_same(&[&one, &two], what);
        }
        let back = fs::read(two.path("large")).unwrap_or_default();
        fs::write(two.path("back"), [what.as_bytes(), &back].concat()).unwrap();
        settle(&rig, &[&one, &two], what);
        assert_same(&[&one, &two], what);
    }
    let (sent, cursors) = (
        (one.status().sent_groups, two.status().sent_groups),
        (one.status(), two.status()),
    );
    assert!(sent.0 >= 13 && sent.1 >= 13, "{cursors:?}");
    // Incoming changes are not sent again.
    assert!(rig.seq() <= 60, "{} batches", rig.seq());
    assert_eq!(conflicts(&one.place.tree()), Vec::<PathBuf>::new());
    one.end();
    two.end();
    assert_server_has(&rig, &rig.folder, &one.place.tree(), "at the end");
}

#[test]
fn who_was_away_catches_up_and_what_both_changed_is_there_twice() {
    let rig = rig(102);
    let mut one = Machine::started(&rig, "one");
    let mut random = SplitMix64::new(8);
    let document = random.bytes(100_000);
    fs::write(one.path("document.txt"), &document).unwrap();
    fs::write(one.path("other"), b"other").unwrap();
    settle(&rig, &[&one], "one");
    let mut two = Machine::started(&rig, "two");
    settle(&rig, &[&one, &two], "two has joined");
    // Two is away, and both write.
    two.stop();
    for number in 0..5 {
        let file = File::options().write(true).open(one.path("document.txt")).unwrap();
        file.write_all_at(b"by one", number * 1000).unwrap();
        fs::write(one.path("number"), number.to_string()).unwrap();
        settle(&rig, &[&one], "one goes on");
    }
    let file = File::options().write(true).open(two.path("document.txt")).unwrap();
    file.write_all_at(b"by two", 50_000).unwrap();
    drop(file);
    fs::write(two.path("of two"), b"of two").unwrap();
    two.begin();
    settle(&rig, &[&one, &two], "two is back");
    assert_same(&[&one, &two], "two is back");
    let found = conflicts(&one.place.tree());
    assert_eq!(found.len(), 1, "{found:?}");
    let name = found[0].to_str().unwrap();
    assert!(
        name.starts_with("document (conflict from two, ") && name.ends_with(").txt"),
        "{name}"
    );
    let mut by_two = document.clone();
    by_two[50_000..50_006].copy_from_slice(b"by two");
    assert_eq!(fs::read(one.path(name)).unwrap(), by_two);
    let mut by_one = document;
    for number in 0..5 {
        by_one[number * 1000..][..6].copy_from_slice(b"by one");
    }
    assert_eq!(fs::read(two.path("document.txt")).unwrap(), by_one);
    // The copy was sent as its difference.
    assert!(two.status().sent_bytes < 30_000, "{:?}", two.status());
    assert_eq!(two.status().conflicts.len(), 1, "{:?}", two.status());
    // Neither restart nor remount makes another one.
    for _ in 0..2 {
        for machine in [&mut one, &mut two] {
            machine.end();
            machine.mount_at_once();
            machine.begin();
        }
        settle(&rig, &[&one, &two], "after a restart");
    }
    assert_eq!(conflicts(&one.place.tree()).len(), 1);
    fs::remove_file(two.path(name)).unwrap();
    settle(&rig, &[&one, &two], "it is decided");
    assert_eq!(two.status().conflicts.len(), 0, "{:?}", two.status());
    assert_same(&[&one, &two], "it is decided");
    one.end();
    two.end();
    assert_server_has(&rig, &rig.folder, &two.place.tree(), "at the end");
}

/// Readers of mail look for new letters where the time of a directory has moved.
#[test]
fn names_from_before_the_last_time_move_it() {
    let rig = rig(104);
    let mut one = Machine::started(&rig, "one");
    fs::create_dir(one.path("mail")).unwrap();
    fs::write(one.path("mail/first"), b"first").unwrap();
    settle(&rig, &[&one], "one");
    let mut two = Machine::started(&rig, "two");
    settle(&rig, &[&one, &two], "two has joined");
    let time_of = |machine: &Machine| {
        let found = fs::metadata(machine.path("mail")).unwrap();
        (found.mtime(), found.mtime_nsec())
    };
    two.stop();
    fs::write(two.path("mail/of two"), b"of two").unwrap();
    fs::write(one.path("mail/of one"), b"of one").unwrap();
    settle(&rig, &[&one], "one goes on");
    let before = time_of(&one);
    assert!(before > time_of(&two));
    two.begin();
    settle(&rig, &[&one, &two], "two is back");
    assert!(one.path("mail/of two").exists());
    assert!(time_of(&one) > before, "who has seen the directory does not look again");
    assert_same(&[&one, &two], "two is back");
    // A program that changes a name and sets the time back, as rsync does, before it is sent.
    let before = time_of(&one);
    two.stop();
    let directory = File::open(two.path("mail")).unwrap();
    let time = fs::metadata(two.path("mail")).unwrap().modified().unwrap();
    fs::write(two.path("mail/.first.new"), b"changed").unwrap();
    fs::rename(two.path("mail/.first.new"), two.path("mail/first")).unwrap();
    directory.set_modified(time).unwrap();
    drop(directory);
    two.begin();
    settle(&rig, &[&one, &two], "the time was set back");
    assert_eq!(fs::read(one.path("mail/first")).unwrap(), b"changed");
    assert!(time_of(&one) > before);
    assert_same(&[&one, &two], "the time was set back");
    one.end();
    two.end();
    assert_server_has(&rig, &rig.folder, &two.place.tree(), "at the end");
}

/// ext4 keeps times up to the year 2446; 64 bits of nanoseconds end in 2262.
#[test]
fn times_that_64_bits_do_not_hold_come_to_the_other() {
    let (year_2300, year_2400): (i128, i128) = (10_413_792_000_123_456_789, 13_569_465_600_987_654_321);
    let set = |path: &Path, mtime_ns: i128| {
        tree::set_times(File::open(path).unwrap(), SetTime::Keep, SetTime::To(mtime_ns)).unwrap();
    };
    let times_at = |machine: &Machine| {
        ["dir", "dir/file"].map(|name| tree::stat_fd(File::open(machine.path(name)).unwrap()).unwrap().mtime_ns)
    };
    let rig = rig(107);
    let mut one = Machine::started(&rig, "one");
    fs::create_dir(one.path("dir")).unwrap();
    fs::write(one.path("dir/file"), b"of the future").unwrap();
    set(&one.path("dir/file"), year_2400);
    set(&one.path("dir"), year_2300);
    assert_eq!(times_at(&one), [year_2300, year_2400], "through the mount");
    settle(&rig, &[&one], "one");
    let mut two = Machine::started(&rig, "two");
    settle(&rig, &[&one, &two], "two has joined");
    assert_eq!(times_at(&two), [year_2300, year_2400], "two has joined");
    // Only the times change, from ones that 64 bits do not hold to others.
    set(&one.path("dir/file"), year_2300);
    set(&two.path("dir"), year_2400);
    settle(&rig, &[&one, &two], "both have set a time");
    for machine in [&one, &two] {
        assert_eq!(times_at(machine), [year_2400, year_2300], "both have set a time");
        let names = fs::read_dir(machine.path("dir")).unwrap().count();
        assert_eq!(names, 1, "a conflict");
    }
    one.end();
    two.end();
    assert_server_has(&rig, &rig.folder, &one.place.tree(), "at the end");
}

#[test]
fn two_folders_that_have_something_in_common_become_one() {
    let rig = rig(103);
    let mut one = Machine::new(&rig, "one");
    let mut two = Machine::new(&rig, "two");
    let mut random = SplitMix64::new(9);
    let common = random.bytes(300_000);
    for (machine, own) in [(&one, "one"), (&two, "two")] {
        fs::create_dir_all(machine.path("dir")).unwrap();
        fs::write(machine.path("dir/common"), &common).unwrap();
        fs::write(machine.path("dir/differs"), own).unwrap();
        fs::write(machine.path(own), own).unwrap();
        fs::create_dir_all(machine.path(&format!("only {own}"))).unwrap();
        fs::write(machine.path(&format!("only {own}/inside")), own).unwrap();
    }
    one.mount_at_once();
    one.begin();
    settle(&rig, &[&one], "one");
    two.mount_at_once();
    two.begin();
    settle(&rig, &[&one, &two], "two has come");
    assert_same(&[&one, &two], "two has come");
    assert!(two.status().sent_bytes < 50_000, "{:?}", two.status());
    let found = conflicts(&one.place.tree());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(fs::read(two.place.tree().join(&found[0])).unwrap(), b"two");
    assert_eq!(fs::read(two.path("dir/differs")).unwrap(), b"one");
    assert_eq!(
        look(&one.place.tree()).len(),
        10,
        "{:?}",
        look(&one.place.tree()).keys()
    );
    one.end();
    two.end();
    assert_server_has(&rig, &rig.folder, &one.place.tree(), "at the end");
}

/// One machine removes a directory and perhaps makes it anew while another puts a node into it: it
/// comes back for that, and nodes that were removed from it or moved out of it are gone everywhere
/// else as well.
#[test]
fn directory_removed_and_revived_is_the_same_everywhere() {
    for is_recreated in [false, true] {
        let rig = rig(104);
        let mut one = Machine::started(&rig, "one");
        fs::create_dir_all(one.path("dir/sub")).unwrap();
        for name in ["removed", "moved", "sub/removed", "sub/moved"] {
            fs::write(one.path("dir").join(name), name).unwrap();
        }
        let mut two = Machine::started(&rig, "two");
        settle(&rig, &[&one, &two], "both have it");
        two.stop();
        fs::rename(two.path("dir/moved"), two.path("moved")).unwrap();
        fs::rename(two.path("dir/sub/moved"), two.path("moved from sub")).unwrap();
        fs::remove_dir_all(two.path("dir")).unwrap();
        if is_recreated {
            fs::create_dir_all(two.path("dir/sub")).unwrap();
        }
        fs::write(one.path("dir/new"), b"by one").unwrap();
        fs::write(one.path("dir/sub/new"), b"by one").unwrap();
        settle(&rig, &[&one], "one went on");
        two.begin();
        let what = format!("two is back, made anew: {is_recreated}");
        settle(&rig, &[&one, &two], &what);
        assert_same(&[&one, &two], &what);
        let expected = ["dir", "dir/new", "dir/sub", "dir/sub/new", "moved", "moved from sub"];
        let found = look(&one.place.tree());
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.map(Path::new), "{what}");
        one.end();
        two.end();
        assert_server_has(&rig, &rig.folder, &one.place.tree(), &what);
    }
}

/// A change by a program; much of it fails where another machine was faster.
fn act(dir: &Path, random: &mut SplitMix64, who: &str) {
    let name = |random: &mut SplitMix64| match random.below(3) {
        0 => format!("d{}/n{}", random.below(3), random.below(6)),
        _ => format!("n{}", random.below(12)),
    };
    let (path, other) = (dir.join(name(random)), dir.join(name(random)));
    let bytes = [who.as_bytes(), &random.bytes(random.clone().below(9000) as usize)].concat();
    let _ = match random.below(12) {
        0 | 1 => fs::write(&path, bytes),
        2 | 3 => File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.write_all_at(who.as_bytes(), random.below(9000))),
        4 => fs::create_dir(dir.join(format!("d{}", random.below(3)))),
        5 | 6 => fs::rename(&path, &other),
        7 => fs::remove_file(&path),
        8 => fs::hard_link(&path, &other),
        9 => fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + random.below(64) as u32)),
        10 => fs::rename(
            dir.join(format!("d{}", random.below(3))),
            dir.join(format!("d{}", random.below(3))),
        ),
        _ => match random.below(4) {
            0 => fs::remove_dir_all(dir.join(format!("d{}", random.below(3)))),
            _ => fs::write(dir.join("new"), bytes).and_then(|()| fs::rename(dir.join("new"), &path)),
        },
    };
}

fn random_lives(first: u64, lives: u64, rounds: u64) {
    for life in 0..lives {
        let seed = first + life;
        let mut random = SplitMix64::new(seed);
        let rig = rig(seed);
        let mut machines: Vec<Machine> = ["one", "two", "three"]
            .iter()
            .map(|name| Machine::new(&rig, name))
            .collect();
        for machine in &mut machines {
            for _ in 0..random.below(10) {
                act(&machine.place.tree(), &mut random, "before");
            }
            machine.mount(&mut random);
            machine.begin();
        }
        for round in 0..rounds {
            for machine in &machines {
                for _ in 0..random.below(5) {
                    act(
                        &machine.place.tree(),
                        &mut random,
                        machine.place.base.file_name().unwrap().to_str().unwrap(),
                    );
                }
            }
            let at = random.below(3) as usize;
            match random.below(10) {
                0 if machines[at].sending.is_some() => machines[at].stop(),
                0..3 if machines[at].sending.is_none() => machines[at].begin(),
                3 => {
                    machines[at].end();
                    machines[at].mount(&mut random);
                    machines[at].begin();
                }
                4 => {
                    for machine in &mut machines {
                        if machine.sending.is_none() {
                            machine.begin();
                        }
                    }
                    let all: Vec<&Machine> = machines.iter().collect();
                    let what = format!("BYTEBACK_SEED={seed}, round {round}");
                    settle(&rig, &all, &what);
                    assert_same(&all, &what);
                }
                _ => std::thread::sleep(Duration::from_millis(random.below(20))),
            }
        }
        for machine in &mut machines {
            if machine.sending.is_none() {
                machine.begin();
            }
        }
        let all: Vec<&Machine> = machines.iter().collect();
        let what = format!("BYTEBACK_SEED={seed}, at the end");
        settle(&rig, &all, &what);
        assert_same(&all, &what);
        machines.iter_mut().for_each(Machine::end);
        assert_server_has(&rig, &rig.folder, &machines[0].place.tree(), &what);
    }
}

#[test]
fn three_machines_that_do_random_things_agree_in_the_end() {
    random_lives(seed(110), 2, 30);
}
