//! Connections cut anywhere, servers that restart, are full or forget, clients that die, files that
//! cannot be read: nothing acknowledged is lost, nothing is saved twice, and the next backup
//! completes.

use byteback_api::messages::{BatchStatus, FolderInfo, PartStaged};
use byteback_api::{Code, Problem};
use byteback_backup::{BackupError, Event, Silent, SnapshotSpec};
use byteback_client::ServerErrorKind;
use byteback_control::{
    ChangesCursor, ChangesPage, CutId, CutInfo, CutRequest, ErrorKind, FinishReport, Outcome, Piece, ServiceError,
    TreeService, TreeStatus,
};
use byteback_host::durable::RealDir;
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{Attributes, ByteString, NodeId, NodeKind};
use byteback_store::StoreLimits;
use byteback_testkit::clients::impatient;
use byteback_testkit::listener::RecordingMonitor;
use byteback_testkit::proxy::hearing;
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_server::scripted_server;
use byteback_testkit::scripted_tree::{Picture, ScriptedTree};
use byteback_testkit::seed::seed;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Snapshots that were acknowledged, and the pictures that they must show forever.
type Acknowledged = Vec<(u64, Picture)>;

fn assert_all(rig: &Rig, acknowledged: &Acknowledged) {
    for (id, picture) in acknowledged {
        rig.assert_snapshot(SnapshotSpec::Id(*id), picture);
    }
}

/// A file whose contents do not compress.
fn noisy_file(rig: &Rig, name: &[u8], len: usize) -> NodeId {
    let mut random = SplitMix64::new(len as u64);
    let bytes: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
    let mut state = rig.tree.lock();
    let file = state.create(NodeId::ROOT, name, NodeKind::File);
    state.write(file, 0, &bytes);
    file
}

#[test]
fn backup_completes_over_a_connection_cut_once_anywhere() {
    let seed = seed(21);
    let mut random = SplitMix64::new(seed);
    let rig = Rig::new(seed);
    let mut acknowledged = Acknowledged::new();
    let mut cuts = 0;
    for round in 0..30 {
        rig.change(&mut random, 25);
        rig.cutter.cut_after(random.below(30_000) as i64, false);
        let reported = RecordingMonitor::new(|_, _| {});
        let report = rig
            .backup_with_monitor(&reported)
            .unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        cuts += u32::from(reported.warned("trying again"));
        rig.cutter.heal();
        assert_eq!(
            report.everything_because.is_some(),
            round == 0,
            "round {round}: {report:?}"
        );
        assert_eq!(rig.seq(), round + 1, "one batch for each backup");
        acknowledged.push((report.snapshot_id.unwrap(), rig.tree.picture()));
    }
    assert!(cuts > 3, "only {cuts} transfers were cut: the test tests too little");
    assert_all(&rig, &acknowledged);
}

#[test]
fn a_server_that_stays_gone_costs_the_backup_and_nothing_else() {
    let seed = seed(22);
    let mut random = SplitMix64::new(seed);
    let rig = Rig::with(seed, impatient());
    let mut acknowledged = Acknowledged::new();
    let (mut failed, mut unknown) = (0, 0);
    for round in 0..24 {
        rig.change(&mut random, 20);
        rig.cutter.cut_after(random.below(20_000) as i64, true);
        match rig.backup() {
            Ok(report) => acknowledged.push((report.snapshot_id.unwrap(), rig.tree.picture())),
            Err(BackupError::Server(error)) => {
                assert_eq!(error.kind, ServerErrorKind::Unreachable, "round {round}: {error}");
                assert!(!error.next.is_empty());
                failed += 1;
            }
            Err(BackupError::OutcomeUnknown { .. }) => unknown += 1,
            Err(error) => panic!("round {round}: {error:?}"),
        }
        rig.cutter.heal();
        // More changes before the next try.
        rig.change(&mut random, 5);
        let report = rig.backup().unwrap();
        assert!(report.is_complete());
        let is_first = acknowledged.is_empty();
        assert_eq!(
            report.everything_because.is_some(),
            is_first && round == 0,
            "round {round}"
        );
        acknowledged.push((report.snapshot_id.unwrap(), rig.tree.picture()));
    }
    assert!(failed > 2 && unknown > 0, "{failed} failed, {unknown} unknown");
    assert_all(&rig, &acknowledged);
}

#[test]
fn commit_with_a_lost_answer_is_found_applied_and_not_repeated() {
    let rig = Rig::with(23, impatient());
    let file = noisy_file(&rig, b"f", 3000);
    rig.backup().unwrap();
    rig.tree.lock().write(file, 0, &[1; 100]);
    let usual = rig.backup().unwrap().wire.total();
    let mut unknown = 0;
    for round in 0..12 {
        let seq = rig.seq();
        rig.tree.lock().write(file, 1000, &[round as u8; 100]);
        // Somewhere in the last answer, which is the commit's.
        rig.cutter.cut_after(usual as i64 - 5 - i64::from(round) * 12, true);
        let result = rig.backup();
        rig.cutter.heal();
        let picture = rig.tree.picture();
        let Err(BackupError::OutcomeUnknown { counter, .. }) = result else {
            continue;
        };
        assert!(counter > 0);
        if rig.seq() == seq {
            // The cut met the request after all.
            continue;
        }
        unknown += 1;
        assert_eq!(rig.seq(), seq + 1);
        let next = rig.backup().unwrap();
        assert!(!next.has_changes(), "what was applied is not sent again");
        assert_eq!((next.everything_because, rig.seq()), (None, seq + 1));
        rig.assert_snapshot(SnapshotSpec::default(), &picture);
    }
    assert!(unknown > 5, "only {unknown} answers were lost");
}

#[test]
fn a_full_server_is_told_as_such_and_the_next_backup_completes() {
    let rig = Rig::new(24);
    noisy_file(&rig, b"first", 20_000);
    rig.backup().unwrap();
    let first = rig.tree.picture();
    noisy_file(&rig, b"second", 60_000);
    for room in [0, 1, 5, 12] {
        rig.room.store(room, Ordering::SeqCst);
        let error = rig.backup().unwrap_err();
        assert_eq!(error.server_kind(), Some(ServerErrorKind::Full), "{error:?}");
        assert!(error.next_step().unwrap().contains("Free space"), "{error:?}");
        assert_eq!(rig.seq(), 1);
    }
    rig.room.store(-1, Ordering::SeqCst);
    let report = rig.backup().unwrap();
    assert_eq!((report.everything_because, rig.seq()), (None, 2));
    rig.assert_snapshot(SnapshotSpec::Latest(1), &first);
    rig.assert_snapshot(SnapshotSpec::Latest(0), &rig.tree.picture());
}

/// Restarts the server when the `at`-th part has arrived.
fn restart_at(rig: &Rig, at: u64, limits: StoreLimits) -> RecordingMonitor<'_> {
    let sent = AtomicU64::new(0);
    RecordingMonitor::new(move |event, _| {
        if let Event::BytesSent(_) = event
            && sent.fetch_add(1, Ordering::SeqCst) + 1 == at
        {
            rig.restart_server(limits);
        }
    })
}

#[test]
fn backup_continues_when_the_server_restarts_between_parts() {
    let rig = Rig::new(25);
    noisy_file(&rig, b"f", 50_000);
    for at in 1..=6 {
        noisy_file(&rig, format!("f{at}").as_bytes(), 50_000);
        let reported = restart_at(&rig, at, StoreLimits::default());
        let report = rig.backup_with_monitor(&reported).unwrap();
        assert!(u64::from(report.parts) >= at, "{} parts", report.parts);
        assert_eq!(rig.seq(), at);
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

#[test]
fn parts_that_the_server_lost_are_sent_again_once() {
    let rig = Rig::new(26);
    noisy_file(&rig, b"f", 50_000);
    let forgets = StoreLimits {
        staged_expiry_ns: -1,
        ..StoreLimits::default()
    };
    let reported = restart_at(&rig, 3, forgets);
    let report = rig.backup_with_monitor(&reported).unwrap();
    assert!(reported.warned("sending it again"), "{:?}", reported.warnings);
    assert_eq!((rig.seq(), report.files_new), (1, 1), "counted once");
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_sends_everything_loudly_to_a_server_from_an_old_copy() {
    let rig = Rig::new(27);
    let file = noisy_file(&rig, b"f", 20_000);
    rig.backup().unwrap();
    let copy = rig.temp.path().join("copy");
    rig.change_data(|data| copy_dir(data, &copy));
    rig.tree.lock().write(file, 0, b"new");
    rig.backup().unwrap();
    rig.change_data(|data| {
        std::fs::remove_dir_all(data).unwrap();
        copy_dir(&copy, data);
    });
    assert_eq!(rig.seq(), 1);
    // Files that the server lost are not among the changes since the last backup, and must come
    // nevertheless.
    noisy_file(&rig, b"g", 10);
    let reported = RecordingMonitor::new(|_, _| {});
    let report = rig.backup_with_monitor(&reported).unwrap();
    assert!(
        reported.warned("the server has lost batches"),
        "{:?}",
        reported.warnings
    );
    assert!(report.everything_because.unwrap().contains("older copy"));
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    // Restored once more, and brought to the same number by others: the number alone proves
    // nothing.
    rig.backup().unwrap();
    rig.change_data(|data| {
        std::fs::remove_dir_all(data).unwrap();
        copy_dir(&copy, data);
    });
    let other = ScriptedTree::new(1);
    let options = byteback_backup::BackupOptions::new("other", rig.options.device);
    for round in 0..4 {
        other.lock().create(NodeId::ROOT, &[b'a' + round], NodeKind::File);
        byteback_backup::backup(&other, &rig.client, &rig.folder, &options, &Silent).unwrap();
    }
    let reported = RecordingMonitor::new(|_, _| {});
    rig.backup_with_monitor(&reported).unwrap();
    assert!(reported.warned("sending everything"), "{:?}", reported.warnings);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &to.join(entry.file_name()));
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn backup_ends_at_a_refused_token_and_keeps_the_mark() {
    let requests = AtomicU64::new(0);
    let client = scripted_server(move |method, path| match (method, path) {
        ("GET", "/v1/folders/home") => json(&FolderInfo {
            knows_damage: false,
            name: "home".parse().unwrap(),
            seq: 0,
            root: None,
            entries: 0,
            snapshots: 0,
            stored_bytes: 0,
            created_ns: 0,
        }),
        ("GET", _) => json(&BatchStatus {
            digests: Vec::new(),
            applied: None,
            staged_parts: Vec::new(),
        }),
        ("PUT", _) if requests.fetch_add(1, Ordering::SeqCst) < 2 => json(&PartStaged { part: 1, expires_ns: 0 }),
        _ => (401, "text/plain", b"no".to_vec()),
    });
    let rig = Rig::new(28);
    noisy_file(&rig, b"f", 60_000);
    let result = byteback_backup::backup(&rig.tree, &client, &rig.folder, &rig.options, &Silent);
    assert_eq!(result.unwrap_err().server_kind(), Some(ServerErrorKind::WrongToken));
    let consumer = rig.tree.status().unwrap().consumers.remove(0);
    assert_eq!((consumer.mark, consumer.pending), (None, None));
    // At a server that takes it, all is there.
    rig.backup().unwrap();
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

fn json(value: &impl serde::Serialize) -> byteback_testkit::scripted_server::Answer {
    (200, "application/json", serde_json::to_vec(value).unwrap())
}

#[test]
fn a_backup_that_is_stopped_saves_nothing_and_loses_nothing() {
    let rig = Rig::new(29);
    noisy_file(&rig, b"f", 60_000);
    for at in [0, 1, 3] {
        let sent = AtomicU64::new(0);
        let reported = RecordingMonitor::new(|event, is_cancelled| {
            let at_part = matches!(event, Event::BytesSent(_)) && sent.fetch_add(1, Ordering::SeqCst) + 1 == at;
            let at_cut = at == 0 && matches!(event, Event::Phase(byteback_backup::Phase::Committing));
            if at_part || at_cut {
                is_cancelled.store(true, Ordering::SeqCst);
            }
        });
        let error = rig.backup_with_monitor(&reported).unwrap_err();
        assert!(matches!(error, BackupError::Cancelled), "{error:?}");
        assert_eq!(rig.seq(), 0);
    }
    rig.backup().unwrap();
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// More files than attributes are asked for at once: one thread looks ahead of the other, and both
/// end, whichever fails first.
#[test]
fn backup_of_many_files_ends_wherever_it_fails() {
    let rig = Rig::new(33);
    for number in 0..1500_u64 {
        let mut state = rig.tree.lock();
        let file = state.create(NodeId::ROOT, format!("f{number:04}").as_bytes(), NodeKind::File);
        state.write(file, 0, &noise(number, 50));
    }
    for stops_at in [1, 600, 1400] {
        let done = AtomicU64::new(0);
        let reported = RecordingMonitor::new(|event, is_cancelled| {
            let is_done = matches!(event, Event::FileDone { .. });
            if is_done && done.fetch_add(1, Ordering::SeqCst) + 1 == stops_at {
                is_cancelled.store(true, Ordering::SeqCst);
            }
        });
        let error = rig.backup_with_monitor(&reported).unwrap_err();
        assert!(matches!(error, BackupError::Cancelled), "{error:?}");
    }
    for dies_at in [8, 400, 1000] {
        let tree = DyingTree {
            tree: &rig.tree,
            calls: AtomicU64::new(0),
            dies_at,
            dies_at_finish: false,
        };
        let error = byteback_backup::backup(&tree, &rig.client, &rig.folder, &rig.options, &Silent).unwrap_err();
        let is_gone = matches!(&error, BackupError::Tree(error) if error.kind == ErrorKind::Gone);
        assert!(is_gone, "{error:?}");
    }
    assert_eq!(rig.seq(), 0);
    assert_eq!(rig.backup().unwrap().files_new, 1500);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_reports_unreadable_files_saves_the_rest_and_retries() {
    let rig = Rig::new(30);
    let good = noisy_file(&rig, b"good", 5000);
    let known = noisy_file(&rig, b"known", 5000);
    rig.backup().unwrap();
    let before = rig.tree.picture();
    // One that the server has, one that is new and has two names, one whose first parts are staged
    // when it fails, and a directory with an entry.
    rig.tree.lock().write(known, 100, b"changed");
    let new = noisy_file(&rig, b"new", 5000);
    let long = noisy_file(&rig, b"long", 100_000);
    let dir = {
        let mut state = rig.tree.lock();
        state.link(new, NodeId::ROOT, b"new too");
        let dir = state.create(NodeId::ROOT, b"dir", NodeKind::Directory);
        let inside = state.create(dir, b"inside", NodeKind::File);
        state.write(inside, 0, b"inside");
        state.write(good, 0, b"saved");
        state.failing.extend([(known, 3), (new, 1000), (long, 60_000)]);
        state.nameless.insert(dir);
        dir
    };
    let reported = RecordingMonitor::new(|_, _| {});
    let report = rig.backup_with_monitor(&reported).unwrap();
    assert!(!report.is_complete());
    let unsaved: Vec<String> = report.unsaved.iter().map(|file| file.path.to_string()).collect();
    assert_eq!(unsaved, ["known", "new", "long", "dir"]);
    assert_eq!(reported.failures.lock().unwrap().len(), 4);
    assert!(report.unsaved[0].reason.contains("the disk is broken here"));
    let mut expected = rig.tree.picture().without(|node| [new, long, dir].contains(&node));
    expected.nodes.insert(known, before.nodes[&known].clone());
    rig.assert_snapshot(SnapshotSpec::default(), &expected);
    // Nothing else changes, and all can be read.
    {
        let mut state = rig.tree.lock();
        state.failing.clear();
        state.nameless.clear();
    }
    let report = rig.backup().unwrap();
    assert!(report.is_complete());
    assert_eq!(report.everything_because, None);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    assert!(!rig.backup().unwrap().has_changes());
}

#[test]
fn backup_forgets_unreadable_files_once_removed() {
    let rig = Rig::new(31);
    noisy_file(&rig, b"good", 5000);
    let bad = noisy_file(&rig, b"bad", 5000);
    rig.tree.lock().failing.insert(bad, 1000);
    assert!(!rig.backup().unwrap().is_complete());
    let missing = || {
        let consumer = rig.tree.status().unwrap().consumers.remove(0);
        let note: serde_json::Value = serde_json::from_slice(&consumer.note).unwrap();
        let number_of = |node: &serde_json::Value| NodeId(node.as_u64().unwrap());
        let nodes: Vec<NodeId> = note["missing"].as_array().unwrap().iter().map(number_of).collect();
        (nodes, note["left_out"].as_array().unwrap().len())
    };
    assert_eq!(missing(), (vec![bad], 1));
    rig.tree.lock().unlink(NodeId::ROOT, b"bad");
    assert!(rig.backup().unwrap().is_complete());
    assert_eq!(missing(), (vec![], 0));
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// A tree whose process dies before its `dies_at`-th call, so that cuts stay as they are.
struct DyingTree<'a> {
    tree: &'a ScriptedTree,
    calls: AtomicU64,
    dies_at: u64,
    /// Whether it dies at its last call instead.
    dies_at_finish: bool,
}

impl DyingTree<'_> {
    fn live(&self) -> Result<&ScriptedTree, ServiceError> {
        if self.calls.fetch_add(1, Ordering::SeqCst) >= self.dies_at {
            return Err(ServiceError::new(ErrorKind::Gone, "it died"));
        }
        Ok(self.tree)
    }
}

impl TreeService for DyingTree<'_> {
    fn status(&self) -> Result<TreeStatus, ServiceError> {
        self.live()?.status()
    }

    fn resolve_pending(&self, consumer: &str, saved: Option<Vec<u8>>) -> Result<(), ServiceError> {
        self.live()?.resolve_pending(consumer, saved)
    }

    fn drop_consumer(&self, consumer: &str) -> Result<bool, ServiceError> {
        self.live()?.drop_consumer(consumer)
    }

    fn cut(&self, request: &CutRequest) -> Result<CutInfo, ServiceError> {
        self.live()?.cut(request)
    }

    fn changes(&self, cut: CutId, cursor: &ChangesCursor) -> Result<ChangesPage, ServiceError> {
        self.live()?.changes(cut, cursor)
    }

    fn attributes(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<Result<Attributes, ServiceError>>, ServiceError> {
        self.live()?.attributes(cut, nodes)
    }

    fn read(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        self.live()?.read(cut, node, ranges, sink)
    }

    fn peek(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        self.live()?.peek(cut, node, ranges, sink)
    }

    fn path(&self, cut: CutId, node: NodeId) -> Result<Option<ByteString>, ServiceError> {
        self.live()?.path(cut, node)
    }

    fn note_batch(&self, cut: CutId, batch: u64) -> Result<(), ServiceError> {
        self.live()?.note_batch(cut, batch)
    }

    fn finish(&self, cut: CutId, outcome: &Outcome) -> Result<FinishReport, ServiceError> {
        let tree = self.live()?;
        if self.dies_at_finish {
            return Err(ServiceError::new(ErrorKind::Gone, "it died"));
        }
        tree.finish(cut, outcome)
    }

    fn unmount(&self) -> Result<(), ServiceError> {
        self.live()?.unmount()
    }
}

/// Files and directories that cannot be read fail and heal while clients die at any of their calls.
#[test]
fn backup_saves_all_in_the_end_whatever_dies_or_is_unreadable() {
    let seed = seed(32);
    let mut random = SplitMix64::new(seed);
    let rig = Rig::new(seed);
    let mut acknowledged = Acknowledged::new();
    let (mut died, mut incomplete, mut not_noted) = (0, 0, 0);
    for round in 0..30 {
        rig.change(&mut random, 15);
        {
            let mut state = rig.tree.lock();
            let nodes: Vec<NodeId> = state
                .now
                .nodes
                .keys()
                .copied()
                .filter(|node| *node != NodeId::ROOT)
                .collect();
            for node in nodes {
                if random.below(15) == 0 {
                    state.failing.insert(node, random.below(6000) as usize);
                }
                if random.below(30) == 0 {
                    state.nameless.insert(node);
                }
            }
        }
        for _ in 0..random.below(3) {
            let dying = DyingTree {
                tree: &rig.tree,
                calls: AtomicU64::new(0),
                dies_at: random.below(80),
                dies_at_finish: random.below(4) == 0,
            };
            match byteback_backup::backup(&dying, &rig.client, &rig.folder, &rig.options, &Silent) {
                Ok(report) => incomplete += u32::from(!report.is_complete()),
                Err(BackupError::SavedNotNoted(_)) => not_noted += 1,
                Err(BackupError::Tree(error)) if error.kind == ErrorKind::Gone => died += 1,
                Err(error) => panic!("round {round}: {error:?}"),
            }
            rig.tree.forget_cuts();
            rig.change(&mut random, 3);
        }
        if random.coin() {
            {
                let mut state = rig.tree.lock();
                state.failing.clear();
                state.nameless.clear();
            }
            let report = rig.backup().unwrap();
            assert!(report.is_complete(), "round {round}: {:?}", report.unsaved);
            acknowledged.push((report.snapshot_id.unwrap(), rig.tree.picture()));
            rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        }
    }
    assert!(
        died > 2 && incomplete > 0 && not_noted > 0,
        "{died} died, {incomplete} incomplete, {not_noted} not noted"
    );
    assert_all(&rig, &acknowledged);
}

/// A rig that remembers the begun batch from one backup to the next.
fn remembering(seed: u64) -> Rig {
    with_memory(Rig::with(seed, impatient()))
}

fn with_memory(mut rig: Rig) -> Rig {
    let dir = RealDir::create(rig.temp.path().join("unfinished")).unwrap();
    rig.options.unfinished = Some(Arc::new(dir));
    rig
}

/// Twenty files of 400 kB.
fn noisy_files(rig: &Rig) -> Vec<NodeId> {
    let files = (0..20).map(|index| noisy_file(rig, format!("f{index}").as_bytes(), 20_000 + index));
    files.collect()
}

/// Half of twenty files get to the server.
fn interrupted(rig: &Rig) -> Vec<NodeId> {
    let files = noisy_files(rig);
    rig.cutter.cut_after(220_000, true);
    rig.backup().unwrap_err();
    rig.cutter.heal();
    files
}

#[test]
fn an_interrupted_backup_goes_on_where_it_stopped() {
    let rig = remembering(31);
    interrupted(&rig);
    let report = rig.backup().unwrap();
    assert!(
        report.parts_reused > 15 && report.parts > report.parts_reused,
        "{report:?}"
    );
    assert!(report.reused_bytes > 100_000, "{report:?}");
    assert!(report.wire.sent < 300_000, "{report:?}");
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    // That batch is over.
    noisy_file(&rig, b"another", 50_000);
    let report = rig.backup().unwrap();
    assert_eq!((report.parts_reused, report.files_new), (0, 1));
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_after_an_interruption_saves_files_as_they_are_now() {
    for (round, changed) in [0, 5, 9, 15, 19].into_iter().enumerate() {
        let rig = remembering(40 + round as u64);
        let files = interrupted(&rig);
        rig.tree.lock().write(files[changed], 7000, &noise(9, 5000));
        // Interrupted once more, somewhere else.
        rig.cutter.cut_after(90_000, true);
        let _ = rig.backup();
        rig.cutter.heal();
        rig.tree.lock().write(files[changed], 100, b"and again");
        let report = rig.backup().unwrap();
        assert!(changed == 0 || report.parts_reused > 0, "{changed}: {report:?}");
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        assert_eq!(rig.seq(), 1);
    }
}

#[test]
fn a_record_that_cannot_be_understood_only_costs_the_resumption() {
    let rig = remembering(50);
    interrupted(&rig);
    let record = rig.temp.path().join("unfinished/batch");
    let mut bytes = std::fs::read(&record).unwrap();
    bytes[10] ^= 1;
    std::fs::write(&record, bytes).unwrap();
    let report = rig.backup().unwrap();
    assert_eq!(report.parts_reused, 0);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// Parts that the server keeps for the commit of a batch.
fn staged(rig: &Rig, counter: u64) -> Vec<u32> {
    let status = rig.client.batch_status(&rig.folder, counter).unwrap();
    assert_eq!(status.applied, None);
    status.staged_parts
}

#[test]
fn backup_releases_what_a_killed_one_staged() {
    let rig = Rig::with(51, impatient());
    noisy_files(&rig);
    let dying = DyingTree {
        tree: &rig.tree,
        calls: AtomicU64::new(0),
        // Three quarters of the files were read.
        dies_at: 24,
        dies_at_finish: false,
    };
    let error = byteback_backup::backup(&dying, &rig.client, &rig.folder, &rig.options, &Silent).unwrap_err();
    assert!(
        matches!(&error, BackupError::Tree(error) if error.kind == ErrorKind::Gone),
        "{error:?}"
    );
    rig.tree.forget_cuts();
    let (_, counter) = rig.tree.status().unwrap().consumers.remove(0).pending.unwrap();
    let before = staged(&rig, counter);
    assert!(before.len() > 5, "{before:?}");
    // Its contents are not remembered, so it cannot be resumed.
    let report = rig.backup().unwrap();
    assert_ne!(report.counter, counter);
    assert_eq!(staged(&rig, counter), Vec::<u32>::new());
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_releases_a_staged_batch_it_cannot_continue() {
    let (is_away, refuses) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    // The batches that parts were sent of.
    let counters: Arc<Mutex<Vec<u64>>> = Arc::default();
    let (away, refusing, sent) = (Arc::clone(&is_away), Arc::clone(&refuses), Arc::clone(&counters));
    let hear = move |head: &str, _: &[u8]| {
        let mut words = head.split(' ');
        let (method, path) = (words.next()?, words.next()?);
        // /v1/folders/home/batches/COUNTER
        let mut steps = path.split(['/', '?']).skip(4);
        steps.next().filter(|step| *step == "batches")?;
        let counter: u64 = steps.next()?.parse().ok()?;
        match method {
            "PUT" => {
                let mut sent = sent.lock().unwrap();
                sent.push(counter);
                let is_refused = away.load(Ordering::SeqCst) && sent.len() > 10;
                is_refused.then(|| Problem::new(Code::Unavailable, "it is stopping"))
            }
            "POST" if refusing.swap(false, Ordering::SeqCst) => {
                Some(Problem::new(Code::ContentMismatch, "it would be something else"))
            }
            _ => None,
        }
    };
    let rig = with_memory(Rig::through(52, impatient(), |to, _| hearing(to, hear)));
    noisy_files(&rig);
    let error = rig.backup().unwrap_err();
    assert_eq!(error.server_kind(), Some(ServerErrorKind::Busy), "{error:?}");
    let counter = counters.lock().unwrap()[0];
    let before = staged(&rig, counter);
    assert!(before.len() > 5, "{before:?}");
    // The next run goes on with it, and it is refused as a whole.
    is_away.store(false, Ordering::SeqCst);
    refuses.store(true, Ordering::SeqCst);
    let reported = RecordingMonitor::new(|_, _| {});
    let report = rig.backup_with_monitor(&reported).unwrap();
    assert!(reported.warned("sending such files in full"), "{:?}", reported.warnings);
    assert!(!refuses.load(Ordering::SeqCst));
    assert_ne!(report.counter, counter);
    assert_eq!(staged(&rig, counter), Vec::<u32>::new());
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}
