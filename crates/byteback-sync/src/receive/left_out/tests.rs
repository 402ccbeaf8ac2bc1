use super::*;
use byteback_host::sim::{CrashPhase, SimDisk};

fn left_out(node: u128) -> LeftOut {
    LeftOut {
        parent: FileId(5),
        name: ByteString::from(vec![b'A', 0xff, b'"']),
        node: FileId(node),
        collides: true,
        is_ignored: false,
        is_directory: false,
        is_due: false,
    }
}

#[test]
fn left_out_list_is_the_old_or_the_new_after_a_power_cut() {
    let lists = [vec![], vec![left_out(1)], vec![left_out(2), left_out(3)], vec![]];
    let work = |disk: &SimDisk| {
        let mut names = LeftOutNames::open(Arc::new(disk.clone()))?;
        lists.iter().skip(1).try_for_each(|list| names.note(list.clone()))
    };
    let trial = SimDisk::new(0);
    work(&trial).unwrap();
    let syncs = trial.counters().syncs;
    for nth in 1..=syncs {
        for phase in [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After] {
            let disk = SimDisk::new(0);
            disk.crash_at_sync(nth, phase);
            assert!(work(&disk).is_err());
            for survivor in 0..30 {
                let disk = disk.recover(survivor);
                let noted = LeftOutNames::open(Arc::new(disk.clone())).unwrap().noted().to_vec();
                // Each note has two syncs.
                let answered = ((nth - 1) / 2) as usize;
                let may_be = &lists[answered..=answered + 1];
                assert!(may_be.contains(&noted), "{nth} {phase:?}: {noted:?}");
                work(&disk).unwrap();
            }
        }
    }
}

#[test]
fn golden_bytes_of_version_1_and_any_flipped_bit() {
    let names = vec![left_out(7)];
    let bytes = FILE
        .bytes_of(&Body {
            names,
            blocked: Vec::new(),
        })
        .unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(
        text.starts_with(r#"{"version":1,"names":[{"parent":"00000000000000000000000000000005","name":"#)
            && text.contains(r#""node":"00000000000000000000000000000007","collides":true}],"crc32c":""#),
        "{text}"
    );
    assert_eq!(FILE.body_of::<Body>(&bytes).unwrap().names, [left_out(7)]);
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(FILE.body_of::<Body>(&bytes).is_err(), "bit {bit}");
    }
}
