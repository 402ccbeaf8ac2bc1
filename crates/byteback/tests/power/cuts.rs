//! Rounds of work, each ended by a power cut.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use byteback_host::random::SplitMix64;
use byteback_testkit::local_tree::{differences, digest, seen};
use byteback_testkit::processes::kill;
use byteback_testkit::seed::{Draw, fresh_seed, mix, rounds};
use byteback_testkit::wire::Wire;
use rustix::fs::{CWD, Mode as Permissions, OFlags};

use crate::device::Device;
use crate::rig::hand::Hand;
use crate::rig::lane::{History, Lane, Plan, part_of};
use crate::rig::operation::Choice;
use crate::rig::{Mode, Rig};

/// A file system, and its mount options.
struct Kind {
    mib: u64,
    maker: &'static [&'static str],
    options: &'static [&'static str],
}

const EXT4: Kind = Kind {
    mib: 96,
    maker: &["mkfs.ext4", "-q", "-F", "-E", "nodiscard"],
    // The second may hold new data under old times and sizes for long; the third keeps times in
    // memory.
    options: &["", ",data=writeback,noauto_da_alloc,commit=300", ",lazytime"],
};
const BTRFS: Kind = Kind {
    mib: 256,
    maker: &["mkfs.btrfs", "-q", "-K"],
    options: &["", ",nodatacow", ",commit=300"],
};
const XFS: Kind = Kind {
    mib: 320,
    maker: &["mkfs.xfs", "-q", "-K"],
    options: &["", ",lazytime"],
};

const RECORD_BYTES: u64 = 64;
const OLD_FILES: u64 = 12;
/// Long enough to be searched for in the server's content when it is sent whole.
const OLD_FILE_BYTES: u64 = 90_000;

struct World {
    /// Dropped before the rig, in whose directory it lies.
    device: Device,
    rig: Rig,
    wire: Wire,
    kind: &'static Kind,
    random: SplitMix64,
    /// Snapshots that were acknowledged, with the digests of what they restore to.
    acknowledged: Vec<(u64, u64)>,
    last: u64,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    backups_under_load: u64,
    interrupted_files: u64,
    unflushed_blocks: usize,
    synced_records: u64,
}

impl World {
    fn new(kind: &'static Kind, mode: Mode, seed: u64) -> Self {
        let mut rig = Rig::new(mode);
        let device = Device::new(rig.directory(), kind.mib, kind.maker, kind.options[0]);
        rig.move_client(&device.point);
        rig.start_server("127.0.0.1:0");
        let wire = Wire::start(&rig.server_address());
        rig.init(&rig.tree(), wire.url(), "folder");
        fs::create_dir(rig.tree().join("lane")).unwrap();
        fs::create_dir(rig.tree().join("old")).unwrap();
        for number in 0..OLD_FILES {
            let bytes = vec![b'0'; usize::try_from(OLD_FILE_BYTES).unwrap()];
            fs::write(rig.tree().join(format!("old/{number}")), bytes).unwrap();
        }
        fs::write(rig.tree().join("records"), b"").unwrap();
        Self {
            rig,
            wire,
            device,
            kind,
            random: SplitMix64::new(seed),
            acknowledged: Vec::new(),
            last: 0,
            counts: Counts::default(),
        }
    }

    fn save(&mut self, when: &str) -> serde_json::Value {
        let ran = self.rig.backup(None);
        let said = format!("{}{}", ran.stderr, ran.stdout);
        let summary = ran.succeeds(when);
        let snapshot = summary["snapshot_id"].as_u64().unwrap();
        let restored = self.rig.restore(snapshot, None);
        let copy = seen(restored.path());
        let found = differences(&seen(&self.rig.tree()), &copy, self.rig.is_exact());
        assert!(found.is_empty(), "{when}:\n{}\n{said}", found.join("\n"));
        self.acknowledged.push((snapshot, digest(&copy, true)));
        summary
    }

    /// Works until the cut. Returns the number of the last record that was synced before it.
    fn work_until_the_cut(&mut self) -> (u64, crate::device::Moment) {
        let tree = self.rig.tree();
        let below = {
            // The path below the mount, for the kernel's flusher, whose part this test plays.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(CWD, tree.join("old"), flags, Permissions::empty()).unwrap()
        };
        self.rig.mount();
        let history = History::adopt(&part_of(&seen(&tree), "lane"), self.last);
        let plan = Plan {
            seed: self.random.next_u64(),
            choice: Choice {
                stores: true,
                unsynced_stores: false,
            },
            pace: Duration::from_micros(500),
        };
        // The lane syncs a lot, and with that the whole disk: sometimes the others are left alone.
        let has_lane = self.random.chance(50);
        let has_records = self.random.chance(50);
        let lane = Lane::start("lane", history, vec![Hand::process(&tree.join("lane"))], plan);
        if !has_lane {
            lane.stop_starting();
        }
        let is_over = AtomicBool::new(false);
        let synced = AtomicU64::new(fs::metadata(tree.join("records")).unwrap().len() / RECORD_BYTES);
        let before = Duration::from_micros(self.random.below(700_000));
        let with_backups = self.random.chance(40);
        let writers = [self.random.next_u64(), self.random.next_u64(), self.random.next_u64()];
        let command: Mutex<Option<OwnedFd>> = Mutex::new(None);
        let daemon = self.rig.daemon_handle();
        let rig = &self.rig;
        let (device, wire) = (&self.device, &self.wire);
        let mut backups = 0;
        let (durable, moment) = std::thread::scope(|scope| {
            let (is_over, synced, tree, below, command) = (&is_over, &synced, &tree, &below, &command);
            // Also after a failure: the scope waits for all of them.
            scopeguard::defer! { is_over.store(true, Ordering::SeqCst) }
            scope.spawn(move || overwrite_old_files(&tree.join("old"), writers[0], is_over));
            scope.spawn(move || flush_some(below, writers[1], is_over));
            if has_records {
                scope.spawn(move || append_records(&tree.join("records"), synced, writers[2], is_over));
            }
            let saving = with_backups.then(|| {
                scope.spawn(move || {
                    let mut done = 0;
                    while !is_over.load(Ordering::SeqCst) {
                        let arguments = rig.backup_arguments(None);
                        let running = rig.spawn(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
                        *command.lock().unwrap() = Some(running.handle());
                        done += u64::from(running.wait().status.success());
                    }
                    done
                })
            });
            std::thread::sleep(before);
            let durable = synced.load(Ordering::SeqCst);
            // First the wire, then the disk: no other machine hears of anything later than this
            // moment.
            wire.cut();
            let moment = device.moment();
            kill(&daemon);
            is_over.store(true, Ordering::SeqCst);
            lane.stop_starting();
            // The command dies with the machine, even one that was just being started.
            while saving.as_ref().is_some_and(|saving| !saving.is_finished()) {
                if let Some(command) = &*command.lock().unwrap() {
                    kill(command);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            if let Some(saving) = saving {
                backups = saving.join().unwrap();
            }
            (durable, moment)
        });
        self.rig.forget_daemon();
        self.rig.wait_until_free();
        let (history, _) = lane.stop();
        self.last = history.done + 1_000_000;
        self.counts.backups_under_load += backups;
        self.counts.unflushed_blocks += moment.unflushed();
        assert!(moment.flushes > 0, "nothing ever was flushed");
        (durable, moment)
    }

    fn round(&mut self, number: u64) {
        // Everything is clean: each write of the round needs an intent.
        self.rig.mount();
        self.save("the backup before the work");
        self.rig.umount();
        let (durable, moment) = self.work_until_the_cut();
        let options = self.kind.options[self.random.index(self.kind.options.len())];
        self.device.come_back(&moment, &mut self.random, options);
        let context = format!("round {number}, mounted{options}");

        let records = fs::read(self.rig.tree().join("records")).unwrap();
        let there = records
            .chunks_exact(RECORD_BYTES as usize)
            .zip(1..)
            .take_while(|(bytes, number)| **bytes == record(*number))
            .count() as u64;
        assert!(
            there >= durable,
            "{context}: {durable} records were synced, {there} are there"
        );
        self.counts.synced_records += durable;

        // A leftover of a store at the last moment is in both the file and its copy; a new store
        // would make them differ.
        self.wire.mend();
        if self.random.chance(70) {
            self.rig.mount();
        }
        let summary = self.save(&format!("{context}: the backup after the cut"));
        let whole = &summary["whole"];
        let reasons: u64 = ["created", "no_mark", "untracked", "interrupted", "unsaved_before"]
            .iter()
            .map(|reason| whole[*reason].as_u64().unwrap())
            .sum();
        self.counts.interrupted_files += whole["interrupted"].as_u64().unwrap();
        let files = summary["files_changed"].as_u64().unwrap() + summary["files_new"].as_u64().unwrap();
        assert!(reasons <= files, "{context}: {summary}");
        if self.rig.has_daemon() {
            self.rig
                .assert_nothing_changed(&format!("{context}: the backup after it"));
            self.rig.umount();
        }
    }

    fn check_all_acknowledged(&self) {
        for (snapshot, as_it_was) in &self.acknowledged {
            let restored = self.rig.restore(*snapshot, None);
            let now = digest(&seen(restored.path()), true);
            assert_eq!(
                now, *as_it_was,
                "snapshot {snapshot} restores to something else than before"
            );
        }
    }
}

fn record(number: u64) -> Vec<u8> {
    (0..RECORD_BYTES / 8)
        .flat_map(|piece| mix(number * 100 + piece).to_le_bytes())
        .collect()
}

/// Appends one record after the other, each synced before the next.
fn append_records(path: &Path, synced: &AtomicU64, seed: u64, is_over: &AtomicBool) {
    let mut random = SplitMix64::new(seed);
    let Ok(file) = fs::File::options().write(true).open(path) else {
        return;
    };
    while !is_over.load(Ordering::SeqCst) {
        let number = synced.load(Ordering::SeqCst) + 1;
        let done = file
            .write_all_at(&record(number), (number - 1) * RECORD_BYTES)
            .and_then(|()| file.sync_data());
        if done.is_err() {
            return;
        }
        synced.store(number, Ordering::SeqCst);
        // Each sync flushes the whole disk: between two of them there must be something to lose.
        std::thread::sleep(Duration::from_millis(random.below(150)));
    }
}

/// Writes in place into files that were clean, and syncs nothing.
fn overwrite_old_files(directory: &Path, seed: u64, is_over: &AtomicBool) {
    let mut random = SplitMix64::new(seed);
    while !is_over.load(Ordering::SeqCst) {
        let path = directory.join(random.below(OLD_FILES).to_string());
        let bytes = random.next_u64().to_le_bytes().repeat(1 + random.index(300));
        let at = random.below(OLD_FILE_BYTES - bytes.len() as u64);
        let done = fs::File::options()
            .write(true)
            .open(path)
            .and_then(|file| file.write_all_at(&bytes, at));
        if done.is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(random.below(8)));
    }
}

/// Sends dirty pages to the disk without times and sizes, as the kernel does after half a minute.
fn flush_some(below: &OwnedFd, seed: u64, is_over: &AtomicBool) {
    let mut random = SplitMix64::new(seed);
    while !is_over.load(Ordering::SeqCst) {
        let name = random.below(OLD_FILES).to_string();
        if let Ok(file) = rustix::fs::openat(below, name, OFlags::RDONLY, Permissions::empty()) {
            write_back(&file);
        }
        std::thread::sleep(Duration::from_millis(random.below(5)));
    }
}

fn write_back(file: &OwnedFd) {
    use std::os::fd::AsRawFd;
    let flags = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: a descriptor that lives until the call returns; no memory is passed.
    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
}

fn survive(kind: &'static Kind, mode: Mode, default_rounds: u64) {
    let mut world = World::new(kind, mode, fresh_seed());
    let asked = rounds(default_rounds);
    // A cut may come before the first write, or right after a flush. Then it shows nothing, and a
    // few more are made until one does.
    let shows_nothing =
        |counts: &Counts| asked >= default_rounds && (counts.unflushed_blocks == 0 || counts.interrupted_files == 0);
    let mut cuts = 0;
    while cuts < asked || (cuts < 4 * asked && shows_nothing(&world.counts)) {
        world.round(cuts);
        cuts += 1;
    }
    world.check_all_acknowledged();
    println!("{}: {:?}", kind.maker[0], world.counts);
    assert!(
        !shows_nothing(&world.counts),
        "no cut came while blocks were not flushed, or while a file was being changed: {:?}",
        world.counts
    );
}

#[test]
fn no_change_is_missed_after_power_cuts_on_ext4() {
    survive(&EXT4, Mode::Exact, 6);
}

#[test]
fn no_change_is_missed_after_power_cuts_on_ext4_in_mode_fast() {
    survive(&EXT4, Mode::Fast, 4);
}

#[test]
fn no_change_is_missed_after_power_cuts_on_btrfs() {
    survive(&BTRFS, Mode::Exact, 4);
}

#[test]
fn no_change_is_missed_after_power_cuts_on_xfs() {
    survive(&XFS, Mode::Exact, 4);
}
