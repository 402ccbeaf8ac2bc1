//! Starts on a damaged log, or on the rest of one.

use std::ffi::OsStr;

use byteback_host::clock::{Clock, SimClock};
use byteback_host::random::SimRandomness;
use byteback_host::sim::SimDisk;
use byteback_host::tree::Identity;

use super::*;
use crate::{ContentChange, LedgerEvent, Log, WholeReason};
use byteback_model::{NodeId, NodeKind};

struct Rig {
    disk: SimDisk,
    clock: Arc<SimClock>,
}

impl Rig {
    fn new() -> Self {
        Self {
            disk: SimDisk::new(5),
            clock: Arc::new(SimClock::new(1_700_000_000_000_000_000)),
        }
    }

    fn open(&self) -> Result<Log> {
        let dir: Arc<dyn DurableDir> = Arc::new(self.disk.clone());
        // One start is never at the time of another.
        self.clock.advance(std::time::Duration::from_secs(1));
        Log::open(
            &dir,
            Arc::clone(&self.clock) as Arc<dyn Clock>,
            &SimRandomness::new(u64::try_from(self.clock.now_ns()).unwrap()),
        )
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.disk.list().unwrap();
        names.sort();
        names
    }
}

/// A file in the log, saved by a consumer; returns the file and since when.
fn live(log: &Log, inode: u64) -> (NodeId, crate::Epoch) {
    let identity = Identity {
        dev: 0,
        ino: inode,
        birth_ns: Some(5),
    };
    let operation = log.begin();
    let node = operation.created(NodeId::ROOT, OsStr::new("a"), &identity, NodeKind::File);
    drop(operation);
    let cut = log.cut("ann", || ()).unwrap();
    log.advance("ann", Some(cut.epoch()), b"").unwrap();
    (node, cut.epoch())
}

fn losses(log: &Log) -> Vec<(String, String)> {
    let reported = |event| match event {
        LedgerEvent::LogLost { reason, set_aside } => Some((reason, set_aside)),
        _ => None,
    };
    let ledger = log.ledger().unwrap();
    ledger.into_iter().filter_map(|entry| reported(entry.event)).collect()
}

#[test]
fn a_damaged_log_is_set_aside_and_a_new_one_begins() {
    let rig = Rig::new();
    let log = rig.open().unwrap();
    let (_, since) = live(&log, 2);
    let tree = log.tree();
    drop(log);
    let file = rig.disk.open("log.redb", OpenMode::Existing).unwrap();
    let len = file.len().unwrap();
    // All but the header, so that nothing can be repaired.
    file.write_all_at(4096, &vec![0xa5; usize::try_from(len).unwrap() - 4096])
        .unwrap();
    drop(file);
    let log = rig.open().unwrap();
    assert_ne!(log.tree(), tree);
    assert_eq!(rig.names(), ["intents", "log.redb", "log.redb.damaged"]);
    let [(reason, set_aside)] = &losses(&log)[..] else {
        panic!("{:?}", losses(&log))
    };
    assert!(!reason.is_empty());
    assert_eq!(set_aside, "log.redb.damaged");
    // Nobody has a mark, and everybody is told why.
    let nobody = log.consumer("ann").unwrap();
    assert_eq!(nobody.mark, None);
    assert_eq!(log.full_changes_reason(&nobody).unwrap(), WholeReason::LogLost);
    // An epoch of the lost log is none of this one.
    let (node, _) = live(&log, 2);
    let cut = log.cut_held(|| ()).unwrap();
    assert!(cut.changes(Some(since)).unwrap().is_everything());
    let change = cut.change_of(node, Some(since)).unwrap().unwrap();
    assert_eq!(change.content, ContentChange::Whole(WholeReason::NoMark));
    drop((cut, log));
    // It is a log like any other from now on.
    let log = rig.open().unwrap();
    assert_eq!(losses(&log).len(), 1);
    assert!(log.consumer("ann").unwrap().mark.is_some());
}

#[test]
fn a_log_that_is_missing_beside_its_intents_was_lost() {
    let rig = Rig::new();
    live(&rig.open().unwrap(), 2);
    rig.disk.remove("log.redb").unwrap();
    let log = rig.open().unwrap();
    assert_eq!(losses(&log), [("log.redb is missing".to_owned(), String::new())]);
    // Without anything left it is simply new.
    drop(log);
    for name in rig.names() {
        rig.disk.remove(&name).unwrap();
    }
    let log = rig.open().unwrap();
    assert_eq!(losses(&log), []);
    assert_eq!(
        log.full_changes_reason(&log.consumer("ann").unwrap()).unwrap(),
        WholeReason::NoMark
    );
}

#[test]
fn log_remembers_a_damaged_record_until_the_next_start() {
    let rig = Rig::new();
    let log = rig.open().unwrap();
    let (_, since) = live(&log, 2);
    // A record that was written wrong, which no page checksum reveals.
    log.database
        .write(|txn| {
            txn.open_table(database::NODES)?.insert(77, &b"nonsense"[..])?;
            Ok(())
        })
        .unwrap();
    assert_eq!(log.damage(), None);
    let refused = log.begin_write(NodeId(77), || None).map(drop).unwrap_err();
    assert!(matches!(refused, LogError::Damaged { .. }), "{refused:?}");
    assert_eq!(log.damage(), Some("the log's node record is damaged"));
    assert_eq!(log.usage().unwrap().damage.as_deref(), log.damage());
    assert!(
        log.look().unwrap().changes(Some(since)).is_ok(),
        "nothing else is in doubt"
    );
    assert!(rig.names().contains(&"log.damaged".to_owned()));
    drop(log);
    let log = rig.open().unwrap();
    let expected = (
        "the log's node record is damaged".to_owned(),
        "log.redb.damaged".to_owned(),
    );
    assert_eq!(losses(&log), [expected]);
    assert_eq!(rig.names(), ["intents", "log.redb", "log.redb.damaged"]);
    assert_eq!(log.damage(), None);
}

#[test]
fn a_start_that_stops_half_way_is_taken_up_again() {
    use byteback_host::sim::CrashPhase;
    for nth in 1..30 {
        for phase in [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After] {
            let mut rig = Rig::new();
            let log = rig.open().unwrap();
            live(&log, 2);
            drop(log);
            mark(&rig.disk, "for a test").unwrap();
            let syncs = rig.disk.counters().syncs;
            rig.disk.crash_at_sync(syncs + nth, phase);
            drop(rig.open());
            rig.disk = rig.disk.recover(nth);
            let log = rig.open().unwrap();
            let losses = losses(&log);
            assert!(
                matches!(losses.len(), 1 | 2) && losses.iter().all(|(_, set_aside)| set_aside == "log.redb.damaged"),
                "sync {nth} {phase:?}: {losses:?}"
            );
            assert!(!rig.names().contains(&MARKER_NAME.to_owned()));
            assert_eq!(log.consumer("ann").unwrap().mark, None);
        }
    }
}

#[test]
fn a_log_of_another_version_is_not_set_aside() {
    let rig = Rig::new();
    let log = rig.open().unwrap();
    log.database
        .write(|txn| database::set_number(txn, "format", 99))
        .unwrap();
    drop(log);
    assert!(matches!(rig.open().map(drop), Err(LogError::Version { .. })));
    assert_eq!(rig.names(), ["intents", "log.redb"]);
}
