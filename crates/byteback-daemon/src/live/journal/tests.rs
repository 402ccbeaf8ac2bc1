//! Numbers are given once, whatever is lost.

use byteback_host::durable::OpenMode;
use byteback_host::sim::{CrashPhase, SimDisk};

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

fn place(parent: u64, name: &[u8]) -> Place<NodeId> {
    Place::new(NodeId(parent), name)
}

fn opened(dir: Arc<dyn DurableDir>) -> Result<Journal, JournalError> {
    let found = Found::read(&*dir)?;
    Ok(Journal::begin(dir, found)?)
}

fn dir() -> Arc<dyn DurableDir> {
    Arc::new(SimDisk::new(3))
}

fn bytes_of(dir: &dyn DurableDir) -> Vec<u8> {
    read_whole(dir, JOURNAL_NAME, u64::MAX).unwrap().unwrap()
}

/// Reads a journal with these bytes.
fn found_in(bytes: &[u8]) -> Result<Found, JournalError> {
    let dir = dir();
    replace(&*dir, JOURNAL_NAME, bytes).unwrap();
    Found::read(&*dir)
}

/// Length of the head, and of each record of a number with its frame.
const HEAD_LEN: usize = 24;
const NUMBER_LEN: usize = 20 + 25;

#[test]
fn journal_knows_handed_out_numbers_and_unanswered_groups() {
    let dir = dir();
    let mut journal = opened(Arc::clone(&dir)).unwrap();
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
        let journal = opened(Arc::clone(&dir)).unwrap();
        assert_eq!(journal.numbers(), numbers(4));
        assert_eq!(journal.unanswered(), [GroupId(2), GroupId(4)]);
    }
}

/// A name that fills a third of a sector, so that records cross sectors.
fn long_place(group: u64, at: u64) -> Place<NodeId> {
    place(group, format!("{at:0>170}").as_bytes())
}

fn set_of(group: u64) -> FileSet {
    [NodeId(group), NodeId(group + 1)].into_iter().collect()
}

const LAST_GROUP: u64 = 11;

/// Hands out groups with names and sets, up to the last, and answers none. The journal is written
/// anew before every fourth, and not at the end. Returns the last group that was handed out.
fn hand_out_from(journal: &mut Journal, first: u64) -> u64 {
    for group in first..=LAST_GROUP {
        if group % 4 == 0 && journal.log.rewrite(&[], journal.noted.records()).is_err() {
            return group - 1;
        }
        let names = (0..group % 5).map(|at| long_place(group, at));
        let handed = journal.handed(numbers(group), Position(group * 100), names, vec![set_of(group)]);
        if handed.is_err() {
            return group - 1;
        }
    }
    LAST_GROUP
}

/// Checks that a journal found after a crash has all that was handed out, and whether it is whole.
fn check_handed(disk: &SimDisk, handed: u64, note: &str) -> bool {
    let found = Found::read(disk).unwrap();
    let noted = &found.noted;
    assert!(noted.numbers.group >= GroupId(handed), "{note}");
    assert!(noted.unanswered.len() as u64 <= handed + 1, "{note}");
    for group in 1..=handed {
        assert!(noted.unanswered.contains(&GroupId(group)), "{note}: group {group}");
        assert!(
            noted.together.iter().any(|(_, set)| *set == set_of(group)),
            "{note}: set {group}"
        );
        for at in 0..group % 5 {
            assert!(
                noted.names.contains_key(&long_place(group, at)),
                "{note}: name {group} {at}"
            );
        }
    }
    found.is_missing || !found.is_damaged
}

#[test]
fn journal_has_all_that_was_handed_out_after_any_crash() {
    let trial = SimDisk::new(1);
    hand_out_from(&mut opened(Arc::new(trial.clone())).unwrap(), 1);
    let (mut torn, mut whole) = (0, 0);
    for nth in 1..=trial.counters().syncs {
        for phase in [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After] {
            let disk = SimDisk::new(nth);
            disk.crash_at_sync(nth, phase);
            let handed = opened(Arc::new(disk.clone())).map_or(0, |mut journal| hand_out_from(&mut journal, 1));
            assert!(disk.is_cut());
            for seed in 0..8 {
                let survivor = disk.recover(seed);
                let note = format!("sync {nth}, {phase:?}, seed {seed}");
                match check_handed(&survivor, handed, &note) {
                    true => whole += 1,
                    false => torn += 1,
                }
                // The next process goes on with it.
                let mut journal = opened(Arc::new(survivor)).unwrap();
                assert_eq!(hand_out_from(&mut journal, handed + 1), LAST_GROUP);
            }
        }
    }
    // A tear with whole records behind it counts as damage: everything is sent, nothing is lost.
    assert!(torn > 0 && whole > 4 * torn, "{torn} torn, {whole} whole");
}

/// After a failed sync nothing is known of the bytes since the last good one, and the next sync
/// reports success without them.
#[test]
fn journal_goes_on_after_a_failed_operation_and_is_whole() {
    let trial = SimDisk::new(1);
    hand_out_from(&mut opened(Arc::new(trial.clone())).unwrap(), 1);
    let mut failed = 0;
    for nth in 1..=trial.counters().ops {
        let disk = SimDisk::new(nth);
        let Ok(mut journal) = opened(Arc::new(disk.clone())) else {
            continue;
        };
        disk.fail_op(nth, rustix::io::Errno::IO.raw_os_error());
        let handed = hand_out_from(&mut journal, 1);
        if handed < LAST_GROUP {
            failed += 1;
            assert_eq!(
                hand_out_from(&mut journal, handed + 1),
                LAST_GROUP,
                "operation {nth} fails once"
            );
        }
        for seed in 0..8 {
            let note = format!("operation {nth}, seed {seed}");
            assert!(check_handed(&disk.recover(seed), LAST_GROUP, &note), "{note}: damaged");
        }
    }
    assert!(failed > 10, "{failed} faults were injected");
}

#[test]
fn journal_cut_at_any_byte_knows_all_before_the_tear() {
    let dir = dir();
    let mut journal = opened(Arc::clone(&dir)).unwrap();
    let mut ends = vec![journal.log.len_bytes()];
    for group in 1..=6 {
        let names = (0..group % 3).map(|at| long_place(group, at));
        journal
            .handed(numbers(group), Position(group * 100), names, vec![set_of(group)])
            .unwrap();
        ends.push(journal.log.len_bytes());
    }
    let bytes = bytes_of(&*dir);
    let begin = usize::try_from(ends[0]).unwrap();
    for len in begin..=bytes.len() {
        let found = found_in(&bytes[..len]).unwrap();
        assert!(!found.is_damaged, "cut at {len}");
        let whole = ends.iter().filter(|end| **end <= len as u64).count() as u64 - 1;
        let unanswered = &found.noted.unanswered;
        assert!(
            (1..=whole).all(|group| unanswered.contains(&GroupId(group))),
            "cut at {len}"
        );
        // A number whose record was torn off is not given again, in case that it was handed out.
        let is_torn = !ends.contains(&(len as u64));
        let last = found.noted.numbers.group.0;
        assert!(last > whole || (last == whole && !is_torn), "cut at {len}: {last}");
    }
}

#[test]
fn journal_with_a_damaged_last_record_lacks_only_that() {
    let dir = dir();
    let mut journal = opened(Arc::clone(&dir)).unwrap();
    hand_out(&mut journal, 1).unwrap();
    hand_out(&mut journal, 2).unwrap();
    let file = dir.open(JOURNAL_NAME, OpenMode::Existing).unwrap();
    let len = file.len().unwrap();
    file.write_all_at(len - 3, b"x").unwrap();
    let journal = opened(Arc::clone(&dir)).unwrap();
    assert_eq!(journal.unanswered(), [GroupId(1)]);
    assert!(journal.numbers().group > GroupId(1), "the number is not given again");
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
    let mut journal = opened(Arc::clone(&dir)).unwrap();
    let (one, two, three) = (place(1, b"one"), place(1, b""), place(7, &[0xff; 255]));
    let mut handed = |group: u64, names: &[&Place<NodeId>]| {
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
    // Names that were forgotten only in memory are reported once more, at worst.
    let journal = opened(Arc::clone(&dir)).unwrap();
    assert_eq!(journal.names().collect::<Vec<_>>(), [&two, &one, &three]);
    assert!(journal.unanswered().is_empty());
    let mut journal = opened(Arc::clone(&dir)).unwrap();
    journal.marked(Position(200));
    assert_eq!(journal.names().count(), 0);
}

#[test]
fn journal_is_rewritten_when_long_and_keeps_all_that_counts() {
    let dir = dir();
    let mut journal = opened(Arc::clone(&dir)).unwrap();
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
        len_most_bytes = len_most_bytes.max(journal.log.len_bytes());
    }
    assert!(len_most_bytes < 2 * FORMAT.rewrite_from_bytes, "{len_most_bytes}");
    let after = opened(dir).unwrap();
    assert_eq!(after.numbers(), numbers(2_000));
    assert_eq!(after.unanswered(), [GroupId(1998), GroupId(1999), GroupId(2000)]);
    let names = after.names().collect::<BTreeSet<_>>();
    assert!(journal.names().all(|name| names.contains(name)));
    assert_eq!(journal.names().count(), 500);
}

/// The bytes of version 1; see docs/formats/queue.md.
#[test]
fn the_bytes_of_a_journal_are_those_of_version_1() {
    let dir = dir();
    let mut journal = opened(Arc::clone(&dir)).unwrap();
    let numbers = Numbers {
        group: GroupId(0x0102),
        counter: 3,
        position: Position(4),
    };
    let names = std::iter::once(place(5, b"name"));
    let set = [NodeId(6), NodeId(7)].into_iter().collect();
    journal.handed(numbers, Position(0x0304), names, vec![set]).unwrap();
    let contents = FORMAT.read(&*dir).unwrap().unwrap();
    assert!(contents.head.is_empty());
    let handed = [
        &[1][..],
        &[2, 1, 0, 0, 0, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0],
        &[4, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    let name = [&[3][..], &[4, 3, 0, 0, 0, 0, 0, 0], &[5, 0, 0, 0, 0, 0, 0, 0], b"name"].concat();
    let set = [
        &[4][..],
        &[4, 3, 0, 0, 0, 0, 0, 0],
        &[6, 0, 0, 0, 0, 0, 0, 0],
        &[7, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    // A journal begins with the last number, as one that was answered.
    let [zero, answered] = [1, 2].map(|tag| [&[tag][..], &[0; 24]].concat());
    assert_eq!(contents.records, [zero, answered, handed, name, set]);
    assert!(bytes_of(&*dir).starts_with(b"BYLIVEJ\x01"));
}

#[test]
fn journal_tells_landed_names_until_the_mark_passes_them() {
    let disk = SimDisk::new(0);
    let dir: Arc<dyn DurableDir> = Arc::new(disk.clone());
    let place = |name: &str| Place::new(NodeId(1), name.as_bytes());
    let mut journal = opened(Arc::clone(&dir)).unwrap();
    journal.landed(place("a"), Position(5));
    journal.landed(place("b"), Position(7));
    assert_eq!(journal.names().count(), 2);
    journal.sync_landed().unwrap();
    journal.landed(place("c"), Position(8));
    drop(journal);
    // Notes that were not made durable are not promised.
    let mut journal = opened(Arc::new(disk.recover(1))).unwrap();
    let reported = journal.names().cloned().collect::<Vec<_>>();
    assert!(reported.starts_with(&[place("a"), place("b")]), "{reported:?}");
    journal.marked(Position(5));
    assert!(!journal.names().any(|name| *name == place("a")));
    assert!(journal.names().any(|name| *name == place("b")));
}

#[test]
fn journal_knows_joint_changes_until_the_mark_passes_them() {
    let dir = dir();
    let mut journal = opened(Arc::clone(&dir)).unwrap();
    let set = |files: std::ops::Range<u64>| files.map(NodeId).collect::<FileSet>();
    let mut handed = |group: u64, sets: Vec<FileSet>| {
        let up_to = Position(group * 100);
        journal.handed(numbers(group), up_to, std::iter::empty(), sets).unwrap();
        // The set is needed most when its group was refused.
        journal.answered(GroupId(group));
    };
    handed(1, vec![set(1..3)]);
    handed(2, vec![set(3..5), set(5..1005)]);
    for _ in 0..2 {
        let journal = opened(Arc::clone(&dir)).unwrap();
        assert_eq!(journal.together(), [set(1..3), set(3..5), set(5..1005)]);
    }
    let mut journal = opened(Arc::clone(&dir)).unwrap();
    journal.marked(Position(150));
    assert_eq!(journal.together(), [set(3..5), set(5..1005)]);
    // Past the bound the oldest are forgotten.
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

/// `body` and its checksum.
#[test]
fn a_journal_of_an_unknown_version_is_refused_and_left_alone() {
    for version in [0, 2, 255] {
        let format = RecordLogFormat { version, ..FORMAT };
        let bytes = [format.bytes_of(&[], [b"other"]).unwrap(), b"whatever".to_vec()].concat();
        let dir = dir();
        let file = dir.open(JOURNAL_NAME, OpenMode::CreateIfMissing).unwrap();
        file.write_all_at(0, &bytes).unwrap();
        let refused = opened(Arc::clone(&dir)).err();
        assert!(
            matches!(refused, Some(JournalError::Version(is)) if is == version),
            "{refused:?}"
        );
        assert_eq!(bytes_of(&*dir), bytes);
    }
}

/// A journal with several groups, names and sets, and what it says.
fn full(seed: u64) -> (Vec<u8>, Journal) {
    let dir = dir();
    let mut journal = opened(Arc::clone(&dir)).unwrap();
    let groups = 3 + seed % 7;
    for group in 1..=groups {
        let names = (0..group % 3).map(|at| place(group, format!("name{at}").as_bytes()));
        let sets = match group % 4 {
            0 => vec![[NodeId(1), NodeId(2)].into_iter().collect()],
            _ => Vec::new(),
        };
        journal
            .handed(numbers(group), Position(group * 100), names, sets)
            .unwrap();
        if group % 2 == seed % 2 {
            journal.answered(GroupId(group));
        }
    }
    (bytes_of(&*dir), journal)
}

/// Checks that what is found of a journal gives no number twice, and reports what is lost.
fn check_found(bytes: &[u8], journal: &Journal, note: &str) -> bool {
    let mut found = match found_in(bytes) {
        Ok(found) => found,
        // No process goes on with it.
        Err(JournalError::Version(_)) => return true,
        Err(error) => panic!("{note}: {error}"),
    };
    let is_damaged = found.is_damaged;
    if is_damaged {
        found.skip(Numbers::default());
    }
    let (last, after) = (journal.numbers(), found.noted.numbers);
    assert!(after.group >= last.group, "{note}: {after:?} after {last:?}");
    // Only of the record at the very end it is unknown whether it was torn off.
    if !is_damaged {
        let before = journal.unanswered().into_iter().filter(|group| *group < last.group);
        for group in before {
            assert!(found.noted.unanswered.contains(&group), "{note}: {group}");
        }
    } else {
        assert!(after.group.0 > last.group.0 && after.counter > last.counter && after.position > last.position);
    }
    is_damaged
}

#[test]
fn damage_at_any_byte_gives_no_number_twice_and_is_noticed() {
    for seed in 0..6 {
        let (bytes, journal) = full(seed);
        assert!(!check_found(&bytes, &journal, "unharmed"));
        // Damage of the last record looks like a torn end.
        let records = bytes.len() - NUMBER_LEN;
        for at in 0..bytes.len() {
            for value in [0, 1, 2, 3, 4, 0xff, bytes[at] ^ 1, bytes[at] ^ 0x80] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                let note = format!("seed {seed}, byte {at} becomes {value}");
                let is_noticed = check_found(&damaged, &journal, &note);
                assert!(is_noticed || value == bytes[at] || at >= records, "{note}");
            }
        }
        // Whole sectors, and a beginning that is gone.
        for at in 0..records {
            let mut zeros = bytes.clone();
            zeros[..at + 1].fill(0);
            assert!(check_found(&zeros, &journal, &format!("seed {seed}, zeros up to {at}")));
            let rest = bytes.get(at + 1..).unwrap();
            assert!(check_found(rest, &journal, &format!("seed {seed}, from {at} on")));
        }
    }
    // Nothing but its name is left.
    let head = FORMAT.bytes_of(&[], [[0; 0]; 0]).unwrap();
    for len in 0..=HEAD_LEN {
        let found = found_in(head.get(..len).unwrap()).unwrap();
        assert!(found.is_damaged, "{len}");
    }
    assert!(Found::read(&*dir()).unwrap().is_missing);
}

/// Names are whatever programs like: none of them passes for a record, however a journal is
/// damaged.
#[test]
fn a_name_that_looks_like_a_record_is_none() {
    let fake = record(
        TAG_HANDED,
        Numbers {
            group: GroupId(u64::MAX / 255),
            ..numbers(3)
        },
    );
    // A whole record as its bytes are in the file, but for the zeros, which no name has.
    let bytes = FORMAT.bytes_of(&[], [&fake]).unwrap();
    let framed = bytes.get(HEAD_LEN..).unwrap();
    let (sealed, _) = framed.split_last_chunk::<4>().unwrap();
    let sealed: Vec<u8> = sealed.iter().map(|byte| if *byte == 0 { 1 } else { *byte }).collect();
    let name = [&sealed[..], &crc32c::crc32c(&sealed).to_le_bytes()].concat();
    let dir = dir();
    let mut journal = opened(Arc::clone(&dir)).unwrap();
    let names = std::iter::once(place(5, &name));
    journal.handed(numbers(3), Position(300), names, Vec::new()).unwrap();
    hand_out(&mut journal, 4).unwrap();
    let mut bytes = bytes_of(&*dir);
    // The length of the name's record is changed, so the bytes of the name are looked at.
    let at = bytes.len() - NUMBER_LEN - 4 - name.len() - 17 - 16;
    bytes[at] ^= 1;
    let found = found_in(&bytes).unwrap();
    assert!(found.is_damaged);
    assert_eq!(found.noted.numbers.group, GroupId(4));
}
