//! More consumers than a log takes: a program that makes up names must not fill the log with marks
//! that nobody moves.

use super::tree::ROOT;
use super::world::{History, World};
use super::*;
use crate::CONSUMER_BYTES_MAX;

fn log_for(disk: &SimDisk, clock: &Arc<SimClock>, consumers_max: u32) -> Log {
    let dir: Arc<dyn DurableDir> = Arc::new(disk.clone());
    let options = LogOptions {
        intent_half_sectors: 4,
        consumers_max,
        ..LogOptions::default()
    };
    Log::open_with(
        &dir,
        Arc::clone(clock) as Arc<dyn Clock>,
        &SimRandomness::new(7),
        options,
    )
    .unwrap()
}

fn scene() -> (SimDisk, Arc<SimClock>) {
    (SimDisk::new(1), Arc::new(SimClock::new(START_NS)))
}

fn names(log: &Log) -> Vec<String> {
    log.consumers().unwrap().into_iter().map(|(name, _)| name).collect()
}

/// As a program that saves everything.
fn save(log: &Log, name: &str) -> Result<()> {
    let cut = log.cut(name, || {})?;
    log.advance(name, Some(cut.epoch()), b"")
}

fn assert_refused(log: &Log, name: &str, most: u64) {
    let before = (log.consumers().unwrap(), log.epoch());
    let cut = log.cut(name, || panic!("a moment was taken for nobody"));
    let error = cut.err().unwrap();
    assert!(
        matches!(error, LogError::TooManyConsumers { limit } if limit == most),
        "{error}"
    );
    assert!(error.to_string().contains("byteback consumers drop"));
    assert_eq!((log.consumers().unwrap(), log.epoch()), before);
}

#[test]
fn one_too_many_is_refused_and_those_that_are_known_go_on() {
    let (disk, clock) = scene();
    let log = log_for(&disk, &clock, 4);
    for name in ["a", "b", "c", "d"] {
        save(&log, name).unwrap();
    }
    assert_refused(&log, "e", 4);
    save(&log, "a").unwrap();

    // A dropped consumer makes room, and is remembered until its place is needed.
    assert!(log.drop_consumer("b").unwrap());
    assert_eq!(names(&log), ["a", "b", "c", "d"]);
    save(&log, "e").unwrap();
    assert_eq!(names(&log), ["a", "c", "d", "e"]);
    assert_refused(&log, "b", 4);

    // The eldest goes first.
    for name in ["d", "a"] {
        clock.advance(std::time::Duration::from_secs(1));
        assert!(log.drop_consumer(name).unwrap());
    }
    save(&log, "f").unwrap();
    assert_eq!(names(&log), ["a", "c", "e", "f"]);
    // One that returns takes its own place.
    save(&log, "a").unwrap();
    assert_eq!(names(&log), ["a", "c", "e", "f"]);
    drop(log);

    // With a lower limit all that are known go on, and with a higher one others may come.
    let log = log_for(&disk, &clock, 2);
    for name in ["a", "c", "e", "f"] {
        save(&log, name).unwrap();
    }
    assert_refused(&log, "g", 2);
    for name in ["a", "c"] {
        assert!(log.drop_consumer(name).unwrap());
    }
    assert_refused(&log, "g", 2);
    assert!(log.drop_consumer("e").unwrap());
    save(&log, "g").unwrap();
    assert_eq!(names(&log), ["f", "g"]);
    drop(log);
    let log = log_for(&disk, &clock, 3);
    save(&log, "h").unwrap();
    assert_refused(&log, "i", 3);
}

#[test]
fn names_that_nobody_uses_leave_nothing_behind() {
    let (disk, clock) = scene();
    let log = log_for(&disk, &clock, 4);
    for number in 0..100 {
        let name = number.to_string();
        log.abandon(&name, None).unwrap();
        log.advance(&name, None, b"note").unwrap();
        log.note_batch(&name, log.epoch(), 1).unwrap();
        log.reset_mark(&name).unwrap();
        assert!(!log.drop_consumer(&name).unwrap());
    }
    assert!(names(&log).is_empty());
    for number in 0..100 {
        let name = number.to_string();
        save(&log, &name).unwrap();
        assert!(log.drop_consumer(&name).unwrap());
        assert!(names(&log).len() <= 4);
    }
    for name in ["", &"n".repeat(CONSUMER_BYTES_MAX + 1)] {
        let error = log.cut(name, || {}).err().unwrap();
        assert!(matches!(error, LogError::ConsumerName { .. }), "{error}");
    }
    save(&log, &"n".repeat(CONSUMER_BYTES_MAX)).unwrap();
}

#[test]
fn programs_that_save_single_files_leave_room_for_backups() {
    let mut world = World::new(1, History::default());
    let log = world.log();
    let file = world.create(Some(&log), ROOT, "a", false);
    let node = world.ids[&file];
    let most = log.options().consumers_max / 2;
    let mark = |uid: u32| log.set_file_mark(&format!("file:{uid}:x"), node, log.epoch());
    for uid in 0..most {
        assert!(mark(uid).unwrap());
    }
    let error = mark(most).unwrap_err();
    assert!(
        matches!(error, LogError::TooManyConsumers { limit } if limit == u64::from(most)),
        "{error}"
    );
    assert!(mark(0).unwrap());
    save(&log, "backup").unwrap();
    assert!(mark(most - 1).unwrap());
}
