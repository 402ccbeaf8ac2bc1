use super::*;
use byteback_host::sim::{CrashPhase, SimDisk};

fn counterpart() -> Counterpart {
    Counterpart {
        server: "https://h:1".to_owned(),
        folder: "mail".parse().unwrap(),
        device: 3,
    }
}

fn standing(cursor: Seq) -> Standing {
    Standing {
        counterpart: counterpart(),
        tree: TreeId(5),
        names: TreeId(if cursor == 1 { 17 } else { 5 }),
        root: FileId(6),
        cursor,
        newest: Some(OwnBatch { counter: 8, seq: 9 }),
        landing: None,
        takes_own: cursor == 1,
    }
}

#[test]
fn standing_is_the_old_or_the_new_after_a_power_cut() {
    let work = |disk: &SimDisk| {
        let dir: Arc<dyn DurableDir> = Arc::new(disk.clone());
        standing(1).write(&dir)?;
        standing(2).write(&dir)
    };
    let trial = SimDisk::new(0);
    work(&trial).unwrap();
    for nth in 1..=trial.counters().syncs {
        for phase in [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After] {
            let disk = SimDisk::new(0);
            disk.crash_at_sync(nth, phase);
            assert!(work(&disk).is_err());
            for survivor in 0..50 {
                let disk = disk.recover(survivor);
                let read = Standing::read(&disk).unwrap();
                let first_is_done = nth > trial.counters().syncs / 2;
                let noted = read.as_ref().map(|standing| standing.cursor);
                assert!(noted >= Some(1) || !first_is_done, "{nth} {phase:?}: {read:?}");
                work(&disk).unwrap();
                assert_eq!(Standing::read(&disk).unwrap(), Some(standing(2)));
            }
        }
    }
}

#[test]
fn what_is_of_another_server_folder_or_device_is_refused() {
    let disk = SimDisk::new(0);
    assert_eq!(Standing::read_of(&disk, &counterpart()).unwrap(), None);
    let dir: Arc<dyn DurableDir> = Arc::new(disk.clone());
    standing(1).write(&dir).unwrap();
    assert_eq!(Standing::read_of(&disk, &counterpart()).unwrap(), Some(standing(1)));
    let others = [
        Counterpart {
            server: "https://other:1".to_owned(),
            ..counterpart()
        },
        Counterpart {
            folder: "other".parse().unwrap(),
            ..counterpart()
        },
        Counterpart {
            device: 4,
            ..counterpart()
        },
    ];
    for other in others {
        let refused = Standing::read_of(&disk, &other);
        assert!(matches!(refused, Err(StandingError::Other { .. })), "{refused:?}");
    }
}

#[test]
fn golden_bytes_of_version_1_and_any_flipped_bit() {
    let expected = br#"{"version":1,"server":"https://h:1","folder":"mail","device":3,"tree":5,"root":"00000000000000000000000000000006","cursor":7,"newest":{"counter":8,"seq":9},"crc32c":"23cb5686"}"#;
    let bytes = FILE.bytes_of(&standing(7).body()).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(expected));
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(FILE.body_of::<Body>(&bytes).is_err(), "bit {bit}");
    }
}

#[test]
fn standing_follows_a_server_to_its_new_address() {
    let dir: Arc<dyn DurableDir> = Arc::new(SimDisk::new(0));
    assert!(!Standing::follow(&dir, "https://h:1", "https://h:2").unwrap());
    standing(1).write(&dir).unwrap();
    assert!(!Standing::follow(&dir, "https://other:1", "https://h:2").unwrap());
    assert_eq!(Standing::read(&*dir).unwrap(), Some(standing(1)));
    assert!(Standing::follow(&dir, "https://h:1", "https://h:2").unwrap());
    let moved = Standing::read(&*dir).unwrap().unwrap();
    assert_eq!(moved.counterpart.server, "https://h:2");
    assert_eq!((moved.names, moved.takes_own, moved.cursor), (TreeId(17), true, 1));
    // Once more, as after a crash.
    assert!(!Standing::follow(&dir, "https://h:1", "https://h:2").unwrap());
}
