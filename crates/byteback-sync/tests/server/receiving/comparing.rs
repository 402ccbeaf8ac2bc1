//! Machines that join with files of their own.

use super::{Machine, assert_same, conflicts, settle};
use byteback_host::random::noise;
use byteback_testkit::clients::impatient;
use byteback_testkit::proxy::hearing;
use byteback_testkit::rig::Rig;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Short files that both machines have.
const EQUAL: u64 = 600;

/// Short files of the same length and other bytes.
const OTHER: u64 = 30;

/// Makes the files of a machine. Those called `other` hold different bytes on each.
fn make(machine: &Machine, which: u64) {
    for number in 0..EQUAL {
        let bytes = noise(number, (number * 7 % 900) as usize);
        let dir = machine.path(&format!("equal/{}/dir", number % 3));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("equal{number}")), bytes).unwrap();
    }
    for number in 0..OTHER {
        let bytes = noise(1000 * which + number, 500);
        fs::write(machine.path(&format!("other{number}")), bytes).unwrap();
        let bytes = noise(number, 500 + which as usize);
        fs::write(machine.path(&format!("longer{number}")), bytes).unwrap();
    }
    for (name, len) in [("short", 60_000), ("long", 200_000)] {
        // Zeros that one wrote are a hole of the other's.
        let file = File::create(machine.path(&format!("equal-zeros-{name}"))).unwrap();
        match which {
            1 => file.set_len(len as u64).unwrap(),
            _ => file.write_all_at(&vec![0; len], 0).unwrap(),
        }
        file.write_all_at(b"the end", len as u64 - 7).unwrap();
        fs::write(machine.path(&format!("equal-{name}")), noise(7, len)).unwrap();
        let mut bytes = noise(8, len);
        bytes[len - 1] = which as u8;
        fs::write(machine.path(&format!("other-{name}")), bytes).unwrap();
    }
}

#[test]
fn joining_machine_asks_for_many_short_files_at_once() {
    let digests = Arc::new(AtomicU64::new(0));
    let signatures = Arc::new(AtomicU64::new(0));
    let (digests_heard, signatures_heard) = (Arc::clone(&digests), Arc::clone(&signatures));
    let hear = move |head: &str, _: &[u8]| {
        let path = head.split([' ', '?']).nth(1).unwrap_or_default();
        digests_heard.fetch_add(u64::from(path.ends_with("/digests")), Ordering::SeqCst);
        signatures_heard.fetch_add(u64::from(path.ends_with("/signature")), Ordering::SeqCst);
        None
    };
    let rig = Rig::through(161, impatient(), |to, _| hearing(to, hear));
    let mut one = Machine::new(&rig, "one");
    fs::create_dir_all(one.place.tree()).unwrap();
    make(&one, 1);
    one.mount_at_once();
    one.begin();
    settle(&rig, &[&one], "one");
    let mut two = Machine::new(&rig, "two");
    fs::create_dir_all(two.place.tree()).unwrap();
    make(&two, 2);
    two.mount_at_once();
    two.begin();
    settle(&rig, &[&one, &two], "two has joined");
    assert_same(&[&one, &two], "two has joined");
    let conflicts = conflicts(&two.place.tree());
    // Those of another length, or with other bytes.
    assert_eq!(conflicts.len() as u64, 2 * OTHER + 2, "{conflicts:?}");
    let is_equal = |copy: &std::path::PathBuf| copy.to_str().unwrap().starts_with("equal");
    assert!(!conflicts.iter().any(is_equal), "{conflicts:?}");
    let (digests, signatures) = (digests.load(Ordering::SeqCst), signatures.load(Ordering::SeqCst));
    assert!((1..=20).contains(&digests), "{digests} requests for digests");
    assert!(signatures <= 10, "{signatures} requests for signatures");
    one.end();
    two.end();
}
