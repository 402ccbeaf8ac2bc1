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
        journal.handed(numbers(group)).unwrap();
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
            while handed < 20 && journal.handed(numbers(handed + 1)).is_ok() {
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
    journal.handed(numbers(1)).unwrap();
    journal.handed(numbers(2)).unwrap();
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

/// The bytes of version 1; see docs/format-queue.md.
#[test]
fn the_bytes_of_a_journal_are_those_of_version_1() {
    let dir = dir();
    let mut journal = Journal::open(Arc::clone(&dir)).unwrap();
    journal
        .handed(Numbers {
            group: GroupId(0x0102),
            counter: 3,
            position: Position(4),
        })
        .unwrap();
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
    assert_eq!(last.get(25..).unwrap(), crc32c::crc32c(&body).to_le_bytes());
}
