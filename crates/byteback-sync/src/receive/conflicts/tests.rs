use super::*;
use byteback_host::sim::{CrashPhase, SimDisk};

fn conflict(node: u64) -> Conflict {
    Conflict {
        node,
        name: "a.txt".into(),
        copy: ByteString::from(vec![b'a', 0xff, b'"']),
        at_ns: 5,
        set: None,
    }
}

#[test]
fn whenever_the_power_is_cut_all_that_was_noted_is_there() {
    let work = |disk: &SimDisk| {
        let mut conflicts = Conflicts::open(Arc::new(disk.clone()))?;
        conflicts.add(conflict(1))?;
        conflicts.add(conflict(1))?;
        conflicts.add(conflict(2))?;
        conflicts.retain(|conflict| conflict.node != 1)
    };
    let trial = SimDisk::new(0);
    work(&trial).unwrap();
    let syncs = trial.counters().syncs;
    assert_eq!(Conflicts::open(Arc::new(trial)).unwrap().noted(), [conflict(2)]);
    for nth in 1..=syncs {
        for phase in [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After] {
            let disk = SimDisk::new(0);
            disk.crash_at_sync(nth, phase);
            assert!(work(&disk).is_err());
            for survivor in 0..30 {
                let disk = disk.recover(survivor);
                let noted = Conflicts::open(Arc::new(disk.clone())).unwrap().noted().to_vec();
                // Each note has two syncs: an acknowledged note is there.
                let least = [0, 1, 1, 1][((nth - 1) / 2) as usize];
                assert!(noted.len() >= least && noted.len() <= 2, "{nth} {phase:?}: {noted:?}");
                work(&disk).unwrap();
            }
        }
    }
}

#[test]
fn golden_bytes_of_version_1_and_any_flipped_bit() {
    let conflicts = vec![conflict(7)];
    let bytes = FILE.bytes_of(&Body { conflicts }).unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(
        text.starts_with(r#"{"version":1,"conflicts":[{"node":7,"name":"a.txt","copy":"#),
        "{text}"
    );
    assert_eq!(FILE.body_of::<Body>(&bytes).unwrap().conflicts, [conflict(7)]);
    let together = Conflict {
        set: Some(3),
        ..conflict(7)
    };
    let conflicts = vec![together.clone()];
    let in_a_set = FILE.bytes_of(&Body { conflicts }).unwrap();
    let text = String::from_utf8_lossy(&in_a_set).into_owned();
    assert!(text.contains(r#""at_ns":5,"set":3}"#), "{text}");
    assert_eq!(FILE.body_of::<Body>(&in_a_set).unwrap().conflicts, [together]);
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(FILE.body_of::<Body>(&bytes).is_err(), "bit {bit}");
    }
}
