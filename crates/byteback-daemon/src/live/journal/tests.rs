//! Numbers are given once, whatever is lost.

use byteback_host::sim::SimDisk;

use super::*;

fn numbers(group: u64) -> Numbers {
    Numbers {
        group: GroupId(group),
        counter: group * 10,
        position: Position(group * 100),
    }
}

fn hand_out(journal: &mut Journal, group: u64) -> io::Result<()> {
    journal.handed(numbers(group), Position(group * 100), std::iter::empty(), Vec::new())
}

fn place(parent: u64, name: &[u8]) -> Place {
    Place::new(NodeId(parent), name)
}

fn dir() -> Arc<dyn DurableDir> {
    Arc::new(SimDisk::new(3))
}

#[test]
fn what_was_handed_out_is_known_and_what_was_answered_is_not_asked_for() {
    let dir = dir();
    let mut journal = Journal::open(Arc::clone(&dir)).unwrap();
    assert_eq!(
        (journal.numbers(), journal.unanswered()),
        (Numbers::default(), Vec::new())
    );
    for group in 1..=4 {
        hand_out(&mut journal, group).unwrap();
    }
    journal.answered(GroupId(1));
    journal.answered(GroupId(3));
    for _ in 0..2 {
        let journal = Journal::open(Arc::clone(&dir)).unwrap();
        assert_eq!(journal.numbers(), numbers(4));
        assert_eq!(journal.unanswered(), [GroupId(2), GroupId(4)]);
    }
}

#[test]
fn a_number_that_was_handed_out_survives_any_crash() {
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        disk.crash_at_sync(seed % 9, byteback_host::sim::CrashPhase::Middle);
        let dir: Arc<dyn DurableDir> = Arc::new(disk.clone());
        let mut handed = 0;
        if let Ok(mut journal) = Journal::open(dir) {
            while handed < 20 && hand_out(&mut journal, handed + 1).is_ok() {
                handed += 1;
            }
        }
        let survivor = disk.recover(seed);
        let dir: Arc<dyn DurableDir> = Arc::new(survivor);
        let journal = Journal::open(dir).unwrap();
        assert!(journal.numbers().group >= GroupId(handed), "seed {seed}");
        assert_eq!(
            journal.unanswered().len() as u64,
            journal.numbers().group.0,
            "seed {seed}"
        );
    }
}

#[test]
fn a_torn_or_damaged_end_is_no_answer() {
    let dir = dir();
    let mut journal = Journal::open(Arc::clone(&dir)).unwrap();
    hand_out(&mut journal, 1).unwrap();
    hand_out(&mut journal, 2).unwrap();
    let file = dir.open(JOURNAL_NAME, OpenMode::Existing).unwrap();
    let len = file.len().unwrap();
    file.write_all_at(len - 3, b"x").unwrap();
    let journal = Journal::open(Arc::clone(&dir)).unwrap();
    assert_eq!(journal.unanswered(), [GroupId(1)]);
    let _ = journal;
    file.set_len(5).unwrap();
}

#[test]
fn the_queue_of_a_clean_stop_is_read_once() {
    let dir = dir();
    let options = QueueOptions::default();
    let queue = Queue::starting_after(byteback_queue::ClientId(3), options, numbers(7));
    let stopped = Stopped {
        tree: TreeId(5),
        epoch: Epoch(9),
        lens_before: [(NodeId(4), vec![(Position(5), 6), (Position(7), 8)])].into(),
        queue,
    };
    stopped.write(&*dir).unwrap();
    let read = Stopped::consume(&*dir, options).unwrap().unwrap();
    assert_eq!(
        (read.tree, read.epoch, read.queue.numbers()),
        (TreeId(5), Epoch(9), numbers(7))
    );
    assert_eq!(read.lens_before, stopped.lens_before);
    assert!(Stopped::consume(&*dir, options).unwrap().is_none());
    stopped.write(&*dir).unwrap();
    let file = dir.open(QUEUE_NAME, OpenMode::Existing).unwrap();
    file.write_all_at(20, b"damage").unwrap();
    assert!(Stopped::consume(&*dir, options).unwrap().is_none());
}

#[test]
fn names_are_known_until_the_mark_has_passed_their_last_change() {
    let dir = dir();
    let mut journal = Journal::open(Arc::clone(&dir)).unwrap();
    let (one, two, three) = (place(1, b"one"), place(1, b""), place(7, &[0xff; 255]));
    let mut handed = |group: u64, names: &[&Place]| {
        let names = names.iter().map(|place| (*place).clone());
        journal
            .handed(numbers(group), Position(group * 100), names, Vec::new())
            .unwrap();
        journal.answered(GroupId(group));
    };
    handed(1, &[&one, &two]);
    handed(2, &[&one, &three]);
    assert_eq!(journal.names().collect::<Vec<_>>(), [&two, &one, &three]);
    // In the middle of the second group.
    journal.marked(Position(150));
    assert_eq!(journal.names().collect::<Vec<_>>(), [&one, &three]);
    // What was forgotten only here is told once more, at worst.
    let journal = Journal::open(Arc::clone(&dir)).unwrap();
    assert_eq!(journal.names().collect::<Vec<_>>(), [&two, &one, &three]);
    assert!(journal.unanswered().is_empty());
    let mut journal = Journal::open(Arc::clone(&dir)).unwrap();
    journal.marked(Position(200));
    assert_eq!(journal.names().count(), 0);
}

#[test]
fn a_journal_is_written_anew_when_it_is_long_and_forgets_nothing_that_counts() {
    let dir = dir();
    let mut journal = Journal::open(Arc::clone(&dir)).unwrap();
    let mut len_most_bytes = 0;
    for group in 1..=2_000 {
        let names = (0..10).map(|number| place(group, format!("{number:0>200}").as_bytes()));
        journal
            .handed(numbers(group), Position(group * 100), names, Vec::new())
            .unwrap();
        if group > 3 {
            journal.answered(GroupId(group - 3));
        }
        journal.marked(Position(group.saturating_sub(50) * 100));
        len_most_bytes = len_most_bytes.max(journal.len_bytes);
    }
    assert!(len_most_bytes < 2 * JOURNAL_LEN_MAX, "{len_most_bytes}");
    let after = Journal::open(dir).unwrap();
    assert_eq!(after.numbers(), numbers(2_000));
    assert_eq!(after.unanswered(), [GroupId(1998), GroupId(1999), GroupId(2000)]);
    let names = after.names().collect::<BTreeSet<_>>();
    assert!(journal.names().all(|name| names.contains(name)));
    assert_eq!(journal.names().count(), 500);
}

/// The bytes of version 1; see docs/format-queue.md.
#[test]
fn the_bytes_of_a_journal_are_those_of_version_1() {
    let dir = dir();
    let mut journal = Journal::open(Arc::clone(&dir)).unwrap();
    let numbers = Numbers {
        group: GroupId(0x0102),
        counter: 3,
        position: Position(4),
    };
    let names = std::iter::once(place(5, b"name"));
    let set = [NodeId(6), NodeId(7)].into_iter().collect();
    journal.handed(numbers, Position(0x0304), names, vec![set]).unwrap();
    let bytes = read_all(&*dir, JOURNAL_NAME).unwrap().unwrap();
    assert_eq!(bytes.get(..8).unwrap(), b"BYLIVEJ\x01");
    let last = bytes.get(8 + 2 * RECORD_LEN..).unwrap();
    let body = [
        &[1][..],
        &[2, 1, 0, 0, 0, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0],
        &[4, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(last.get(..25).unwrap(), body);
    assert_eq!(last.get(25..29).unwrap(), crc32c::crc32c(&body).to_le_bytes());
    let body = [
        &[3][..],
        &[4, 3, 0, 0, 0, 0, 0, 0],
        &[5, 0, 0, 0, 0, 0, 0, 0],
        &[4, 0],
        b"name",
    ]
    .concat();
    let check = crc32c::crc32c(&body).to_le_bytes();
    let name = [body, check.to_vec()].concat();
    let body = [
        &[4][..],
        &[4, 3, 0, 0, 0, 0, 0, 0],
        &[2, 0],
        &[6, 0, 0, 0, 0, 0, 0, 0],
        &[7, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    let check = crc32c::crc32c(&body).to_le_bytes();
    assert_eq!(last.get(29..).unwrap(), [name, body, check.to_vec()].concat());
}

#[test]
fn names_that_something_landed_on_are_told_until_the_mark_has_passed_them() {
    let disk = SimDisk::new(0);
    let dir: Arc<dyn DurableDir> = Arc::new(disk.clone());
    let place = |name: &str| Place::new(NodeId(1), name.as_bytes());
    let mut journal = Journal::open(Arc::clone(&dir)).unwrap();
    journal.landed(place("a"), Position(5));
    journal.landed(place("b"), Position(7));
    assert_eq!(journal.names().count(), 2);
    journal.sync_landed().unwrap();
    journal.landed(place("c"), Position(8));
    drop(journal);
    // What was not made durable is not promised.
    let mut journal = Journal::open(Arc::new(disk.recover(1))).unwrap();
    let told = journal.names().cloned().collect::<Vec<_>>();
    assert!(told.starts_with(&[place("a"), place("b")]), "{told:?}");
    journal.marked(Position(5));
    assert!(!journal.names().any(|name| *name == place("a")));
    assert!(journal.names().any(|name| *name == place("b")));
}

#[test]
fn what_was_changed_together_is_known_until_the_mark_has_passed_it() {
    let dir = dir();
    let mut journal = Journal::open(Arc::clone(&dir)).unwrap();
    let set = |files: std::ops::Range<u64>| files.map(NodeId).collect::<FileSet>();
    let mut handed = |group: u64, sets: Vec<FileSet>| {
        let up_to = Position(group * 100);
        journal.handed(numbers(group), up_to, std::iter::empty(), sets).unwrap();
        // It is needed most when it was refused.
        journal.answered(GroupId(group));
    };
    handed(1, vec![set(1..3)]);
    handed(2, vec![set(3..5), set(5..1005)]);
    for _ in 0..2 {
        let journal = Journal::open(Arc::clone(&dir)).unwrap();
        assert_eq!(journal.together(), [set(1..3), set(3..5), set(5..1005)]);
    }
    let mut journal = Journal::open(Arc::clone(&dir)).unwrap();
    journal.marked(Position(150));
    assert_eq!(journal.together(), [set(3..5), set(5..1005)]);
    // Past the bound the eldest are forgotten.
    for group in 3..13 {
        let sets = vec![set(group..group + 1000)];
        let up_to = Position(group * 100);
        journal.handed(numbers(group), up_to, std::iter::empty(), sets).unwrap();
    }
    assert_eq!(
        journal.together(),
        (3..13).map(|at| set(at..at + 1000)).collect::<Vec<_>>()
    );
    journal.marked(Position(1300));
    assert!(journal.together().is_empty());
}
