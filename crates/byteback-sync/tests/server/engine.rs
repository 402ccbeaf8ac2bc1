//! A real mount that programs change at random, kept in sync with a real server by the engine. The
//! server dies and comes back, connections are cut, the engine and the mount are ended and begun
//! again, in good order and not. At the end the server has the tree.

use byteback_api::FolderName;
use byteback_backup::{DifferenceKind, Silent, SnapshotSpec, VerifyOptions};
use byteback_client::ServerNews;
use byteback_client::{ClientOptions, ServerClient, TreePlace};
use byteback_control::{
    ChangesCursor, ChangesPage, CutId, CutInfo, CutRequest, DirEntry, ErrorKind, FinishReport, LandingTree, LiveTree,
    NodeNames, Outcome, Piece, SYNC_CONSUMER, ServiceError, SyncStatus, TreeService, TreeStatus,
};
use byteback_daemon::{Daemon, DaemonError, DaemonOptions, LiveOptions, Service};
use byteback_delta::{DeltaReader, EmptyBase, apply_to_new};
use byteback_host::random::{RealRandomness, SplitMix64};
use byteback_model::{Attributes, ByteString, NodeId, SnapshotLabel};
use byteback_mount::MountOptions;
use byteback_oplog::Epoch;
use byteback_queue::{ClientId, GroupId};
use byteback_store::StoreLimits;
use byteback_sync::engine::{Engine, EngineError, EngineHandle, EngineParts, PauseOptions, StopSign};
use byteback_sync::standing::{Standing, StandingError};
use byteback_sync::upload::batch_counter;
use byteback_testkit::clients::impatient;
use byteback_testkit::mounted::{Mounted, PATIENCE, Place, live_options};
use byteback_testkit::programs::change;
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::seed;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) fn parts(
    place: &Place,
    live: Arc<dyn LiveTree>,
    tree: Arc<dyn TreeService>,
    landing: Arc<dyn LandingTree>,
) -> EngineParts {
    let stop = StopSign::default();
    let asked = stop.clone();
    let options = ClientOptions {
        is_cancelled: Arc::new(move || asked.is_raised()),
        idle_timeout: Duration::from_secs(2),
        ..impatient()
    };
    EngineParts {
        live,
        tree,
        landing,
        is_listening: true,
        server: Arc::new(ServerClient::new(&place.url, &place.token, options).unwrap()),
        folder: place.folder.clone(),
        device: place.device,
        renew: None,
        dir: place.dir(),
        host: place.base.file_name().unwrap().as_bytes().into(),
        east_of_utc_s: 0,
        path: "/p".into(),
        part_len_bytes: 16 * 1024,
        examined_from_bytes: EngineParts::EXAMINED_FROM_BYTES,
        pauses: PauseOptions {
            first: Duration::from_millis(5),
            longest: Duration::from_millis(100),
        },
        randomness: Arc::new(RealRandomness),
        stop,
    }
}

/// The engine's thread.
pub(super) type Sending = (EngineHandle, JoinHandle<Result<(), EngineError>>);

/// A mounted folder as continuous sync uses it.
pub(super) trait Syncing {
    fn engine(&self, place: &Place) -> Result<Engine, EngineError>;
    fn send(&self, place: &Place) -> Sending;
}

impl Syncing for Mounted {
    fn engine(&self, place: &Place) -> Result<Engine, EngineError> {
        Engine::open(parts(
            place,
            Arc::clone(&self.live),
            Arc::clone(&self.tree),
            Arc::clone(&self.landing),
        ))
    }

    fn send(&self, place: &Place) -> Sending {
        let mut engine = self.engine(place).unwrap();
        (engine.handle(), std::thread::spawn(move || engine.run()))
    }
}

pub(super) fn stop((handle, running): Sending) {
    handle.stop();
    running.join().unwrap().unwrap();
    assert!(handle.status().has_ended);
}

pub(super) fn is_settled(status: &SyncStatus) -> bool {
    status.is_connected && status.waiting_nodes == 0 && status.groups_in_flight == 0 && !status.is_folded
}

/// Waits for a state of the engine.
pub(super) fn wait_until(what: &str, handle: &EngineHandle, is_so: impl Fn(&SyncStatus) -> bool) {
    let began = Instant::now();
    loop {
        let status = handle.status();
        if is_so(&status) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: {status:?}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Asserts that the newest state of the server's folder is the directory.
pub(super) fn assert_server_has(rig: &Rig, folder: &FolderName, dir: &Path, what: &str) {
    let label = SnapshotLabel::default();
    let snapshot = rig.client.create_snapshot(folder, None, &label).unwrap();
    let options = VerifyOptions {
        here: None,
        deep: Some(dir),
    };
    let verified =
        byteback_backup::verify(&rig.client, folder, SnapshotSpec::Id(snapshot.id), &options, &Silent).unwrap();
    assert!(verified.damaged.is_empty(), "{what}: {:?}", verified.damaged);
    // A directory's time moves with its names, and is sent when something else of it is.
    let is_time_of_dir = |path: &byteback_model::ByteString| {
        let path = dir.join(OsStr::from_bytes(path.as_bytes()));
        path.symlink_metadata().is_ok_and(|found| found.is_dir())
    };
    let differences = verified.differences.iter().filter(|difference| {
        let is_time = matches!(difference.kind, DifferenceKind::Attribute { which: "mtime" });
        !(is_time && is_time_of_dir(&difference.path))
    });
    let differences: Vec<_> = differences.collect();
    assert!(differences.is_empty(), "{what}: {differences:?}");
}

/// The content of the server's file at a path after a batch.
pub(super) fn content_at(rig: &Rig, path: &[u8], seq: u64) -> Vec<u8> {
    let place = TreePlace::Path(path);
    let page = rig.client.tree_page(&rig.folder, seq, place, None).unwrap();
    let reader = rig
        .client
        .content(&rig.folder, page.node.id, seq, 0, &|_| true)
        .unwrap();
    let mut held = Vec::new();
    apply_to_new(&EmptyBase, &mut DeltaReader::new(reader).unwrap(), &mut held).unwrap();
    held
}

/// A server with a folder of its own for continuous sync.
pub(super) fn rig(seed: u64) -> Rig {
    let rig = Rig::with(seed, impatient());
    rig.client.create_folder(&rig.folder).unwrap();
    rig
}

#[test]
fn engine_sends_random_operations_through_cuts_and_restarts() {
    let first = seed(83);
    let (mut groups, mut restarts) = (0, 0);
    for life in 0..3 {
        let seed = first + life;
        let mut random = SplitMix64::new(seed);
        let rig = rig(seed);
        let place = Place::of(&rig, "here");
        for _ in 0..random.below(20) {
            change(&place.tree(), &mut random);
        }
        let mut mounted = Mounted::new(&place, live_options(&mut random));
        let mut sending = mounted.send(&place);
        for round in 0..40 {
            for _ in 0..random.below(8) {
                change(&place.tree(), &mut random);
            }
            match random.below(12) {
                0 => {
                    rig.restart_server(StoreLimits::default());
                    restarts += 1;
                }
                1..3 => rig.cutter.cut_after(random.below(20_000) as i64, random.below(3) == 0),
                3..5 => rig.cutter.heal(),
                5 => {
                    // Changes go on while nothing is sent.
                    groups += sending.0.status().sent_groups;
                    stop(sending);
                    change(&place.tree(), &mut random);
                    sending = mounted.send(&place);
                }
                6 => {
                    groups += sending.0.status().sent_groups;
                    stop(sending);
                    mounted.end();
                    if random.coin() {
                        change(&place.tree(), &mut random);
                    }
                    mounted = Mounted::new(&place, live_options(&mut random));
                    sending = mounted.send(&place);
                }
                7 => mounted.live.give_up("the test says so"),
                8 => {
                    rig.cutter.heal();
                    let what = format!("seed {seed}, round {round}");
                    wait_until(&what, &sending.0, is_settled);
                    assert_server_has(&rig, &rig.folder, &place.tree(), &what);
                }
                _ => std::thread::sleep(Duration::from_millis(random.below(20))),
            }
        }
        rig.cutter.heal();
        let what = format!("seed {seed}, at the end");
        wait_until(&what, &sending.0, is_settled);
        let status = sending.0.status();
        assert_eq!((&status.error, status.unsaved_files), (&None, 0), "{what}");
        groups += status.sent_groups;
        stop(sending);
        mounted.end();
        assert_server_has(&rig, &rig.folder, &place.tree(), &what);
        let noted = Standing::read(&*place.dir()).unwrap().unwrap();
        assert_eq!(noted.cursor, rig.seq(), "{what}");
    }
    // The number of groups depends on the speed of the machine; each life sends at least one.
    assert!(groups >= 3 && restarts > 3, "{groups} groups, {restarts} restarts");
}

/// Set for a process that keeps a tree in sync until it is killed.
const SERVE: &str = "BYTEBACK_TEST_ENGINE";

#[test]
#[ignore = "only in a process of its own"]
fn serve_until_killed() {
    let Ok(reported) = std::env::var(SERVE) else { return };
    let reported: Vec<&str> = reported.split('\n').collect();
    let [base, url, token, device, folder, seed] = reported[..] else {
        panic!("{reported:?}")
    };
    let place = Place {
        base: base.into(),
        url: url.to_owned(),
        token: token.to_owned(),
        device: device.parse().unwrap(),
        folder: folder.parse().unwrap(),
    };
    let mut random = SplitMix64::new(seed.parse().unwrap());
    let mounted = Mounted::new(&place, live_options(&mut random));
    let (_handle, running) = mounted.send(&place);
    fs::write(place.base.join("ready"), b"").unwrap();
    running.join().unwrap().unwrap();
}

pub(super) fn start_mortal(place: &Place, seed: u64) -> Child {
    let ready = place.base.join("ready");
    let _ = fs::remove_file(&ready);
    let (base, device) = (place.base.display().to_string(), place.device.to_string());
    let reported = [
        &*base,
        &place.url,
        &place.token,
        &device,
        place.folder.as_str(),
        &seed.to_string(),
    ]
    .join("\n");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "engine::serve_until_killed", "--ignored", "--nocapture"])
        .env(SERVE, reported)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while !ready.exists() {
        assert_eq!(child.try_wait().unwrap(), None, "it ended at once");
        assert!(began.elapsed() < PATIENCE, "it does not start");
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

pub(super) fn kill(mut child: Child, place: &Place) {
    child.kill().unwrap();
    child.wait().unwrap();
    let began = Instant::now();
    let is_mounted = || {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let point = place.tree().display().to_string();
        table.lines().any(|line| line.split(' ').nth(4) == Some(&point))
    };
    while is_mounted() {
        assert!(began.elapsed() < PATIENCE, "still mounted");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn engine_killed_again_and_again_leaves_the_server_the_tree() {
    let seed = seed(84);
    let mut random = SplitMix64::new(seed);
    let rig = rig(seed);
    let place = Place::of(&rig, "here");
    for life in 0..7 {
        let child = start_mortal(&place, seed + life);
        for _ in 0..random.below(40) {
            change(&place.tree(), &mut random);
            if random.below(5) == 0 {
                std::thread::sleep(Duration::from_millis(random.below(30)));
            }
        }
        // In the middle of whatever it is doing.
        std::thread::sleep(Duration::from_millis(random.below(80)));
        kill(child, &place);
        if random.coin() {
            change(&place.tree(), &mut random);
        }
    }
    let mounted = Mounted::new(&place, live_options(&mut random));
    let sending = mounted.send(&place);
    wait_until("at the end", &sending.0, is_settled);
    stop(sending);
    mounted.end();
    assert_server_has(&rig, &rig.folder, &place.tree(), &format!("seed {seed}"));
}

#[test]
fn a_server_that_is_away_is_waited_for_and_told_of() {
    let rig = rig(85);
    let place = Place::of(&rig, "here");
    let mut random = SplitMix64::new(1);
    rig.cutter.cut_after(0, true);
    let mounted = Mounted::new(&place, live_options(&mut random));
    let mut engine = mounted.engine(&place).unwrap();
    let away = engine.greet().unwrap_err();
    assert!(away.is_passing(), "{away}");
    let handle = engine.handle();
    let running = std::thread::spawn(move || engine.run());
    fs::write(place.tree().join("a"), b"first").unwrap();
    wait_until("it says so", &handle, |status| {
        !status.is_connected && status.error.is_some() && !status.needs_attention
    });
    rig.cutter.heal();
    wait_until("it goes on", &handle, |status| {
        is_settled(status) && status.error.is_none()
    });
    assert_server_has(&rig, &rig.folder, &place.tree(), "after that");
    // The server's disk is full: the operator has to make room, and then it goes on.
    rig.room.store(0, std::sync::atomic::Ordering::SeqCst);
    let bytes = random.bytes(100_000);
    fs::write(place.tree().join("b"), bytes).unwrap();
    wait_until("it needs somebody", &handle, |status| {
        status.needs_attention && status.error.is_some()
    });
    rig.room.store(-1, std::sync::atomic::Ordering::SeqCst);
    wait_until("it goes on", &handle, |status| {
        is_settled(status) && !status.needs_attention
    });
    stop((handle, running));
    mounted.end();
    assert_server_has(&rig, &rig.folder, &place.tree(), "at the end");
}

/// A mount that has sent one file.
fn begun(rig: &Rig, place: &Place) -> Mounted {
    let mut options = live_options(&mut SplitMix64::new(1));
    options.queue.delay_ns = 0;
    let mounted = Mounted::new(place, options);
    fs::write(place.tree().join("a"), b"first").unwrap();
    let sending = mounted.send(place);
    wait_until("it begins", &sending.0, |status| {
        is_settled(status) && status.sent_groups > 0
    });
    stop(sending);
    assert_server_has(rig, &rig.folder, &place.tree(), "at the beginning");
    mounted
}

#[test]
fn what_is_another_folders_is_refused_and_not_touched() {
    let rig = rig(86);
    let place = Place::of(&rig, "here");
    let mounted = begun(&rig, &place);
    let seq = rig.seq();

    // A second folder of this machine.
    let other = Place::of(&rig, "other");
    fs::write(other.tree().join("b"), b"other").unwrap();
    let second = Mounted::new(&other, live_options(&mut SplitMix64::new(2)));
    let refused = second.engine(&other).unwrap().greet();
    assert!(matches!(refused, Err(EngineError::SameDevice { .. })), "{refused:?}");
    let refused = second.engine(&other).unwrap().run();
    assert!(matches!(refused, Err(EngineError::SameDevice { .. })), "{refused:?}");
    second.end();
    assert_eq!(rig.seq(), seq);

    // The remembered state is of another folder.
    let mut elsewhere = place.clone();
    elsewhere.folder = "elsewhere".parse().unwrap();
    let refused = mounted.engine(&elsewhere).err();
    assert!(
        matches!(
            refused,
            Some(EngineError::Standing(StandingError::Other { what: "folder", .. }))
        ),
        "{refused:?}"
    );
    mounted.end();
}

#[test]
fn a_server_that_lost_what_it_acknowledged_is_found_out() {
    let rig = rig(88);
    let copy = rig.temp.path().join("copy");
    let copy_all = |from: &Path, to: &Path| {
        let _ = fs::remove_dir_all(to);
        let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
        assert!(copied.success());
    };
    rig.change_data(|data| copy_all(data, &copy));
    let place = Place::of(&rig, "here");
    let mounted = begun(&rig, &place);
    rig.change_data(|data| copy_all(&copy, data));
    let refused = mounted.engine(&place).unwrap().greet();
    assert!(matches!(refused, Err(EngineError::Lost { head: 0, .. })), "{refused:?}");
    mounted.end();
}

#[test]
fn engine_continues_a_backed_up_folder_even_with_a_new_log() {
    let rig = rig(89);
    let place = Place::of(&rig, "here");
    let mut random = SplitMix64::new(3);
    fs::write(place.tree().join("large"), random.bytes(600_000)).unwrap();
    {
        let service = Service::unmounted(Arc::new(place.open()));
        byteback_backup::backup(&service, &rig.client, &rig.folder, &rig.options, &Silent).unwrap();
    }
    let mounted = begun(&rig, &place);
    assert_eq!(rig.seq(), 2);
    // A backup of the same tree in between is this device's own.
    let backed_up = byteback_backup::backup(&*mounted.tree, &rig.client, &rig.folder, &rig.options, &Silent).unwrap();
    assert!(backed_up.seq >= Some(2));
    fs::write(place.tree().join("b"), b"after that").unwrap();
    let sending = mounted.send(&place);
    wait_until("after a backup", &sending.0, is_settled);
    stop(sending);
    mounted.end();
    assert_server_has(&rig, &rig.folder, &place.tree(), "after a backup");
    // The log is lost: everything is sent anew, of a large file only the differences.
    fs::remove_dir_all(place.base.join("state")).unwrap();
    fs::write(place.tree().join("c"), b"with a new log").unwrap();
    let mounted = Mounted::new(&place, live_options(&mut random));
    let sending = mounted.send(&place);
    wait_until("with a new log", &sending.0, |status| {
        is_settled(status) && status.sent_groups > 0
    });
    let status = sending.0.status();
    assert!(status.sent_bytes < 300_000, "{status:?}");
    stop(sending);
    mounted.end();
    assert_server_has(&rig, &rig.folder, &place.tree(), "with a new log");
}

#[test]
fn a_state_that_was_put_back_to_an_older_one_loses_nothing() {
    let rig = rig(91);
    let place = Place::of(&rig, "here");
    begun(&rig, &place).end();
    let copied = |from: &str, to: &str| {
        for name in ["state", "sync"] {
            let (from, to) = (place.base.join(from).join(name), place.base.join(to).join(name));
            let _ = fs::remove_dir_all(&to);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            assert!(
                Command::new("cp")
                    .arg("-a")
                    .arg(from)
                    .arg(to)
                    .status()
                    .unwrap()
                    .success()
            );
        }
    };
    copied(".", "old");
    let mut options = live_options(&mut SplitMix64::new(1));
    options.queue.delay_ns = 0;
    for file in ["b", "c"] {
        let mounted = Mounted::new(&place, options);
        let sending = mounted.send(&place);
        for number in 0..3 {
            fs::write(place.tree().join(file), format!("{file} {number}")).unwrap();
            wait_until("it is sent", &sending.0, is_settled);
        }
        stop(sending);
        mounted.end();
        assert_server_has(&rig, &rig.folder, &place.tree(), file);
        // Numbers of groups are given once more, for other contents.
        copied("old", ".");
        let names = fs::read_dir(place.tree()).unwrap();
        let is_copy = |name: &str| name.contains("(conflict from ");
        let copies = names.filter(|entry| is_copy(&entry.as_ref().unwrap().file_name().to_string_lossy()));
        assert_eq!(copies.count(), 0, "nothing differs");
    }
}

/// The file `journal` of a tree.
fn journal(place: &Place) -> PathBuf {
    let mut found = Vec::new();
    let mut folders = vec![place.base.join("state")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.ends_with("live/journal") {
                found.push(path);
            }
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// The rest of the journal is lost with the numbers: names that the server has and that were gone
/// again before the log was asked.
#[test]
fn journal_damage_repeats_no_number_and_leaves_nothing_behind() {
    let rig = rig(94);
    let place = Place::of(&rig, "here");
    let mut options = live_options(&mut SplitMix64::new(1));
    options.queue.delay_ns = 0;
    options.mark_every = Duration::from_secs(3600);
    let newest = || {
        let mut listening = rig.client.listen(&rig.folder, rig.seq() - 1);
        loop {
            if let ServerNews::Batch(last) = listening.hear().unwrap() {
                return last.counter;
            }
        }
    };
    begun(&rig, &place).end();
    let older = fs::read(journal(&place)).unwrap();
    type Damage<'a> = (&'a str, &'a dyn Fn(&Path));
    let damages: [Damage<'_>; 5] = [
        ("gone", &|journal| fs::remove_file(journal).unwrap()),
        ("empty", &|journal| fs::write(journal, b"").unwrap()),
        ("put back", &|journal| fs::write(journal, &older).unwrap()),
        ("its header is damaged", &|journal| {
            let mut bytes = fs::read(journal).unwrap();
            bytes[3] ^= 1;
            fs::write(journal, bytes).unwrap();
        }),
        ("a record is damaged", &|journal| {
            let mut bytes = fs::read(journal).unwrap();
            bytes[30] ^= 1;
            fs::write(journal, bytes).unwrap();
        }),
    ];
    for (what, damage) in damages {
        let mounted = Mounted::new(&place, options);
        let sending = mounted.send(&place);
        for number in 0..3 {
            fs::write(place.tree().join(format!("{what} {number}")), what).unwrap();
            wait_until("it is sent", &sending.0, is_settled);
        }
        stop(sending);
        // The server has it, and the log knows nothing of it.
        fs::remove_file(place.tree().join(format!("{what} 1"))).unwrap();
        mounted.end();
        let before = newest();
        damage(&journal(&place));
        let mounted = Mounted::new(&place, options);
        let sending = mounted.send(&place);
        wait_until(what, &sending.0, is_settled);
        fs::write(place.tree().join(format!("{what} 2")), "after that").unwrap();
        wait_until(what, &sending.0, is_settled);
        stop(sending);
        mounted.end();
        match what {
            // The server knows that this device was further: all began anew, by other names. The
            // kept part of the queue may hold the numbers, too; then none need be passed over.
            "put back" => assert_ne!(newest(), before, "{what}"),
            _ => assert!(newest() > before + (1 << 20), "{what}"),
        }
        assert_server_has(&rig, &rig.folder, &place.tree(), what);
    }
    // Another version is reported, and left alone.
    let mut bytes = fs::read(journal(&place)).unwrap();
    bytes[7] = 2;
    let check = crc32c::crc32c(&bytes[..20]).to_le_bytes();
    bytes[20..24].copy_from_slice(&check);
    fs::write(journal(&place), &bytes).unwrap();
    let mut daemon = DaemonOptions::new(MountOptions::new(place.tree()));
    daemon.live = Some(options);
    let refused = Daemon::start(place.open(), &daemon).err().unwrap();
    assert!(matches!(refused, DaemonError::Version { version: 2, .. }), "{refused}");
    assert!(refused.to_string().contains("live/journal"), "{refused}");
    assert_eq!(fs::read(journal(&place)).unwrap(), bytes);
}

#[test]
fn engine_resends_an_unanswered_group_from_the_same_cut() {
    let rig = rig(90);
    let place = Place::of(&rig, "here");
    let mut random = SplitMix64::new(4);
    let mounted = begun(&rig, &place);
    for is_stopped in [false, true, false, false] {
        let (before, folded) = (rig.seq(), random.bytes(300_000));
        fs::write(place.tree().join("large"), &folded).unwrap();
        mounted.live.give_up("the test says so");
        rig.cutter.cut_after(100_000 + random.below(100_000) as i64, true);
        let sending = mounted.send(&place);
        wait_until("it is cut off", &sending.0, |status| status.error.is_some());
        // Bytes overwritten meanwhile were peeked at.
        fs::write(place.tree().join("large"), random.bytes(300_000)).unwrap();
        if is_stopped {
            stop(sending);
            continue;
        }
        rig.cutter.heal();
        wait_until("it goes on", &sending.0, is_settled);
        stop(sending);
        let held = (before + 1..=rig.seq()).map(|seq| content_at(&rig, b"large", seq));
        assert!(
            held.into_iter().any(|held| held == folded),
            "the moment of the cut was never there"
        );
    }
    rig.cutter.heal();
    let sending = mounted.send(&place);
    wait_until("at the end", &sending.0, is_settled);
    stop(sending);
    let consumers = mounted.tree.status().unwrap().consumers;
    assert!(
        consumers
            .iter()
            .any(|consumer| consumer.name == SYNC_CONSUMER && consumer.mark.is_some())
    );
    let counter = batch_counter(mounted.tree.status().unwrap().tree, GroupId(1));
    let asked = rig.client.batch_status(&rig.folder, counter).unwrap();
    assert!(asked.applied.is_some());
    mounted.end();
    assert_server_has(&rig, &rig.folder, &place.tree(), "at the end");
}

type Served<T> = byteback_control::Result<T>;

/// A tree in which contents cannot be read.
struct Unreadable(Arc<dyn TreeService>);

impl TreeService for Unreadable {
    fn peek(&self, _: CutId, _: NodeId, _: &[(u64, u64)], _: &mut dyn FnMut(Piece<'_>) -> Served<()>) -> Served<()> {
        Err(ServiceError::new(ErrorKind::Node, "the disk is broken here"))
    }

    fn read(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Served<()>,
    ) -> Served<()> {
        self.peek(cut, node, ranges, sink)
    }

    fn status(&self) -> Served<TreeStatus> {
        self.0.status()
    }

    fn resolve_pending(&self, consumer: &str, saved: Option<Vec<u8>>) -> Served<()> {
        self.0.resolve_pending(consumer, saved)
    }

    fn drop_consumer(&self, consumer: &str) -> Served<bool> {
        self.0.drop_consumer(consumer)
    }

    fn cut(&self, request: &CutRequest) -> Served<CutInfo> {
        self.0.cut(request)
    }

    fn changes(&self, cut: CutId, cursor: &ChangesCursor) -> Served<ChangesPage> {
        self.0.changes(cut, cursor)
    }

    fn attributes(&self, cut: CutId, nodes: &[NodeId]) -> Served<Vec<Served<Attributes>>> {
        self.0.attributes(cut, nodes)
    }

    fn path(&self, cut: CutId, node: NodeId) -> Served<Option<ByteString>> {
        self.0.path(cut, node)
    }

    fn names(&self, cut: CutId, nodes: &[NodeId]) -> Served<Vec<NodeNames>> {
        self.0.names(cut, nodes)
    }

    fn entries(&self, cut: CutId, directory: NodeId, after: Option<&ByteString>) -> Served<Vec<DirEntry>> {
        self.0.entries(cut, directory, after)
    }

    fn find(&self, cut: CutId, path: &ByteString) -> Served<Option<NodeId>> {
        self.0.find(cut, path)
    }

    fn advance(&self, consumer: &str, cut: Epoch) -> Served<bool> {
        self.0.advance(consumer, cut)
    }

    fn note_batch(&self, cut: CutId, batch: u64) -> Served<()> {
        self.0.note_batch(cut, batch)
    }

    fn finish(&self, cut: CutId, outcome: &Outcome) -> Served<FinishReport> {
        self.0.finish(cut, outcome)
    }

    fn unmount(&self) -> Served<()> {
        self.0.unmount()
    }
}

#[test]
fn engine_keeps_an_unreadable_file_at_the_server_once_sent() {
    unreadable_files_stay(false, false);
}

/// Everything is sent in place of the server's state.
#[test]
fn engine_keeps_an_unreadable_file_if_the_mark_is_lost() {
    unreadable_files_stay(true, false);
}

/// The next fold is about another node, and the process that sends it does not know what another
/// one could not read.
#[test]
fn engine_remembers_an_unreadable_file_past_the_next_fold() {
    unreadable_files_stay(false, true);
    unreadable_files_stay(true, true);
}

/// The log is cut for the mark once in a while, and the process ends: unreadable files are still
/// reported.
#[test]
fn engine_remembers_an_unreadable_file_past_marks_and_restarts() {
    let rig = rig(92);
    let place = Place::of(&rig, "here");
    let mut options = LiveOptions::new(ClientId(7));
    options.queue.delay_ns = 0;
    options.mark_every = Duration::ZERO;
    let mounted = Mounted::new(&place, options);
    let sending = mounted.send(&place);
    wait_until("at first", &sending.0, is_settled);
    stop(sending);
    let unreadable: Arc<dyn TreeService> = Arc::new(Unreadable(Arc::clone(&mounted.tree)));
    let send_unreadable = |mounted: &Mounted, unreadable: &Arc<dyn TreeService>| {
        let parts = parts(
            &place,
            Arc::clone(&mounted.live),
            Arc::clone(unreadable),
            Arc::clone(&mounted.landing),
        );
        let mut engine = Engine::open(parts).unwrap();
        (engine.handle(), std::thread::spawn(move || engine.run()))
    };
    let mark = |mounted: &Mounted| {
        let consumers = mounted.tree.status().unwrap().consumers;
        consumers
            .into_iter()
            .find(|consumer| consumer.name == SYNC_CONSUMER)
            .unwrap()
            .mark
    };
    fs::write(place.tree().join("new"), "cannot be read").unwrap();
    mounted.live.give_up("the test says so");
    let sending = send_unreadable(&mounted, &unreadable);
    wait_until("what cannot be read is told", &sending.0, |status| {
        status.unsaved_files == 1 && is_settled(status)
    });
    let before = mark(&mounted);
    // Something has to happen, or nothing is marked.
    fs::create_dir(place.tree().join("dir")).unwrap();
    wait_until("the mark moves", &sending.0, |_| mark(&mounted) > before);
    stop(sending);
    drop(unreadable);
    mounted.end();
    // Another process, which marks as well.
    let mounted = Mounted::new(&place, options);
    let sending = mounted.send(&place);
    wait_until("all is sent", &sending.0, |status| {
        status.sent_groups > 0 && is_settled(status)
    });
    stop(sending);
    mounted.end();
    assert_server_has(&rig, &rig.folder, &place.tree(), "at the end");
}

fn unreadable_files_stay(is_mark_lost: bool, is_other_folded: bool) {
    let rig = rig(91);
    let place = Place::of(&rig, "here");
    let mut options = LiveOptions::new(ClientId(7));
    options.queue.delay_ns = 0;
    // The log keeps reporting it as new.
    options.mark_every = Duration::from_secs(3600);
    let mounted = Mounted::new(&place, options);
    let sending = mounted.send(&place);
    wait_until("at first", &sending.0, is_settled);
    fs::write(place.tree().join("file"), "sent").unwrap();
    wait_until("it is sent", &sending.0, |status| {
        status.sent_groups > 0 && is_settled(status)
    });
    stop(sending);
    fs::write(place.tree().join("file"), "cannot be read").unwrap();
    fs::write(place.tree().join("new"), "nor can this one, of which nobody has heard").unwrap();
    if is_mark_lost {
        assert!(mounted.tree.drop_consumer(SYNC_CONSUMER).unwrap());
    }
    mounted.live.give_up("the test says so");
    let unreadable = Arc::new(Unreadable(Arc::clone(&mounted.tree)));
    let parts = parts(
        &place,
        Arc::clone(&mounted.live),
        unreadable,
        Arc::clone(&mounted.landing),
    );
    let mut engine = Engine::open(parts).unwrap();
    let sending = (engine.handle(), std::thread::spawn(move || engine.run()));
    wait_until("what cannot be read is told", &sending.0, |status| {
        status.unsaved_files == 2 && is_settled(status)
    });
    stop(sending);
    assert_eq!(content_at(&rig, b"file", rig.seq()), b"sent");
    let new = rig
        .client
        .tree_page(&rig.folder, rig.seq(), TreePlace::Path(b"new"), None);
    assert_eq!(new.unwrap_err().kind, byteback_client::ServerErrorKind::NotFound);
    // Once they can be read, they come.
    fs::write(place.tree().join("file"), "can be read").unwrap();
    if is_other_folded {
        mounted.live.fold();
        let sending = mounted.send(&place);
        wait_until("the other is sent", &sending.0, |status| {
            status.sent_groups > 0 && is_settled(status)
        });
        stop(sending);
    }
    let sending = mounted.send(&place);
    mounted.live.give_up("the test says so");
    wait_until("all is sent", &sending.0, |status| {
        status.unsaved_files == 0 && is_settled(status)
    });
    stop(sending);
    mounted.end();
    assert_server_has(&rig, &rig.folder, &place.tree(), "at the end");
}
