//! Segments: order, room, damage.

use byteback_host::sim::SimDisk;

use super::*;

fn old(node: u64, len: u64) -> Record {
    Record::Old {
        node,
        offset: 0,
        len,
        is_zeros: false,
    }
}

fn dir(disk: &SimDisk) -> Arc<dyn DurableDir> {
    Arc::new(disk.clone())
}

fn nodes(replayed: &Replayed) -> Vec<u64> {
    let node = |framed: &Framed| match framed.record {
        Record::Old { node, .. } => node,
        _ => 0,
    };
    replayed.records.iter().map(|(_, framed)| node(framed)).collect()
}

fn filled(disk: &SimDisk, count: u64) -> Journal {
    let (mut journal, _) = Journal::open(dir(disk), 1 << 20).unwrap();
    for node in 1..=count {
        journal
            .append(1000 + node.cast_signed(), &old(node, 60_000), &vec![1; 60_000])
            .unwrap();
    }
    journal
}

#[test]
fn the_eldest_go_when_the_budget_is_used_up() {
    let disk = SimDisk::new(1);
    let mut journal = filled(&disk, 100);
    assert!(journal.charged_bytes() <= 1 << 20);
    journal.sync().unwrap();
    let (mut again, replayed) = Journal::open(dir(&disk), 1 << 20).unwrap();
    let kept = nodes(&replayed);
    assert!(kept.len() > 8 && kept.len() < 18, "{kept:?}");
    assert_eq!(kept, (101 - kept.len() as u64..=100).collect::<Vec<_>>());
    assert_eq!(again.charged_bytes(), journal.charged_bytes());
    let dropped = again.drop_older(i64::MAX).unwrap();
    assert!(dropped.is_some_and(|time| time < 1100));
    assert!(!Journal::open(dir(&disk), 1 << 20).unwrap().1.is_damaged);
}

#[test]
fn journal_damage_costs_older_records_a_torn_end_only_itself() {
    for (damaged_segment, at, torn, damaged) in [(1, 200, false, true), (2, 70_000, false, true), (3, 300, true, true)]
    {
        let disk = SimDisk::new(1);
        let mut journal = filled(&disk, 11);
        journal.sync().unwrap();
        let numbers: Vec<u64> = journal.segments.keys().copied().collect();
        assert_eq!(numbers, [1, 2, 3]);
        let file = disk.open(&name_of(damaged_segment), OpenMode::Existing).unwrap();
        // A header: in the data it would only be noticed by whoever reads that.
        let at = (at - 64_u64) / 60_064 * 60_064 + 64 + 8;
        file.write_all_at(at, &[0xEE]).unwrap();
        if torn {
            // The last record: nothing readable follows.
            file.write_all_at(file.len().unwrap() - 60_064 + 8, &[0xEE]).unwrap();
        }
        let (_, replayed) = Journal::open(dir(&disk), 1 << 20).unwrap();
        assert_eq!(replayed.is_damaged, damaged, "segment {damaged_segment}");
        let first_left = damaged_segment * 4 + 1;
        assert!(
            nodes(&replayed).iter().all(|node| *node >= first_left),
            "{:?}",
            nodes(&replayed)
        );
        drop(file);
        let (_, replayed) = Journal::open(dir(&disk), 1 << 20).unwrap();
        assert!(!replayed.is_damaged, "what was damaged is gone");
    }
    let disk = SimDisk::new(1);
    let mut journal = filled(&disk, 11);
    journal.sync().unwrap();
    let file = disk.open(&name_of(3), OpenMode::Existing).unwrap();
    file.set_len(file.len().unwrap() - 30_000).unwrap();
    let (_, replayed) = Journal::open(dir(&disk), 1 << 20).unwrap();
    assert!(replayed.is_torn && !replayed.is_damaged);
    assert_eq!(nodes(&replayed), (1..=10).collect::<Vec<_>>());
}

#[test]
fn journal_on_a_full_disk_keeps_records_or_knows_its_damage() {
    for nth in 1..12 {
        let disk = SimDisk::new(1);
        let mut journal = filled(&disk, 8);
        let mut appended: Vec<u64> = (1..=8).collect();
        disk.fail_op(disk.counters().ops + nth, 28);
        // The ninth begins a segment.
        for node in 9..=11_u64 {
            match journal.append(1000 + node.cast_signed(), &old(node, 60_000), &vec![1; 60_000]) {
                Ok(_) => appended.push(node),
                Err(_) => {
                    let _ = journal.drop_all();
                    appended.clear();
                }
            }
        }
        if journal.sync().is_err() {
            let _ = journal.drop_all();
            appended.clear();
        }
        let first = journal.first();
        // It may be this that fails; then another start comes.
        let opened = Journal::open(dir(&disk), 1 << 20).or_else(|_| Journal::open(dir(&disk), 1 << 20));
        let replayed = opened.unwrap().1;
        let kept = nodes(&replayed);
        let newest = &appended[appended.len() - kept.len().min(appended.len())..];
        assert!(
            replayed.is_damaged || (kept == newest && !replayed.is_torn),
            "operation {nth}: {kept:?} of {appended:?}, from segment {first}"
        );
    }
}
