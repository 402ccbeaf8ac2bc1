use super::*;
use crate::durable::OpenMode;
use crate::random::{SplitMix64, noise};
use crate::sim::{CrashPhase, SimDisk};

const FORMAT: RecordLogFormat = RecordLogFormat {
    name: "log",
    magic: *b"TESTLOG",
    version: 1,
    len_max_bytes: 4096,
    rewrite_from_bytes: 6000,
};

fn dir() -> Arc<dyn DurableDir> {
    Arc::new(SimDisk::new(1))
}

/// A log whose records were appended with one sync.
fn log_of(records: &[&[u8]]) -> (Arc<dyn DurableDir>, RecordLog) {
    let dir = dir();
    let mut log = FORMAT.create(&dir, b"owner", [[0; 0]; 0]).unwrap();
    log.append(records).unwrap();
    log.sync().unwrap();
    (dir, log)
}

/// A log whose records were appended with a sync each.
fn log_of_single(records: &[&[u8]]) -> (Arc<dyn DurableDir>, RecordLog) {
    let (dir, mut log) = log_of(&[]);
    for record in records {
        log.append([record]).unwrap();
        log.sync().unwrap();
    }
    (dir, log)
}

fn bytes_of(dir: &dyn DurableDir) -> Vec<u8> {
    read_whole(dir, FORMAT.name, u64::MAX).unwrap().unwrap()
}

fn dir_with(bytes: &[u8]) -> Arc<dyn DurableDir> {
    let dir = dir();
    replace(&*dir, FORMAT.name, bytes).unwrap();
    dir
}

fn records_in(bytes: &[u8]) -> RecordLogContents {
    FORMAT.read(&*dir_with(bytes)).unwrap().unwrap()
}

#[test]
fn record_log_golden_bytes() {
    let (dir, _) = log_of(&[b"one", b""]);
    let head = [
        &b"TESTLOG\x01"[..],
        &1_u64.to_le_bytes(),
        &5_u32.to_le_bytes(),
        b"owner",
    ]
    .concat();
    let tag = crc32c::crc32c(&head).to_le_bytes();
    let sealed = |body: Vec<u8>| [body.clone(), crc32c::crc32c(&body).to_le_bytes().to_vec()].concat();
    // Both were written when the head was synced.
    let synced = (head.len() as u64 + 4).to_le_bytes();
    let one = sealed([&3_u32.to_le_bytes()[..], &tag, &synced, b"one"].concat());
    let empty = sealed([&0_u32.to_le_bytes()[..], &tag, &synced].concat());
    assert_eq!(bytes_of(&*dir), [head, tag.to_vec(), one, empty].concat());
}

#[test]
fn record_log_reads_what_was_written() {
    let (dir, mut log) = log_of(&[b"one"]);
    log.append([b"two"]).unwrap();
    let (again, contents) = FORMAT.open(&dir).unwrap().unwrap();
    assert_eq!(contents.head, b"owner");
    assert_eq!(contents.records, [b"one", b"two"]);
    assert!(!again.needs_rewrite() && !contents.is_damaged && contents.tail_len_bytes == 0);
    assert!(FORMAT.open(&self::dir()).unwrap().is_none());
}

#[test]
fn record_log_needs_a_rewrite_when_long() {
    let (dir, mut log) = log_of(&[]);
    let mut count = 0;
    while !log.needs_rewrite() {
        log.append([[7; 100]]).unwrap();
        count += 1;
    }
    assert!((50..60).contains(&count), "{count}");
    log.rewrite(b"new owner", [b"kept"]).unwrap();
    assert!(!log.needs_rewrite());
    log.append([b"next"]).unwrap();
    let contents = FORMAT.read(&*dir).unwrap().unwrap();
    assert_eq!(
        (contents.head, contents.records),
        (b"new owner".to_vec(), vec![b"kept".to_vec(), b"next".to_vec()])
    );
}

#[test]
fn record_log_cut_at_any_byte_has_all_records_before_the_cut() {
    let (dir, _) = log_of(&[b"one", b"", &[5; 700], b"four"]);
    let bytes = bytes_of(&*dir);
    let whole = records_in(&bytes).records;
    let ends: Vec<usize> = (0..=4)
        .map(|count| {
            let lens = whole[..count]
                .iter()
                .map(|record| record.len() + FRAME_LEN)
                .sum::<usize>();
            FIXED_HEAD_LEN + 5 + CRC_LEN + lens
        })
        .collect();
    assert_eq!(*ends.last().unwrap(), bytes.len());
    for len in 0..=bytes.len() {
        let dir = dir_with(&bytes[..len]);
        let Some(count) = ends.iter().rposition(|end| *end <= len) else {
            assert!(
                matches!(FORMAT.open(&dir), Err(RecordLogError::Damaged { .. })),
                "cut at {len}"
            );
            continue;
        };
        let (log, contents) = FORMAT.open(&dir).unwrap().unwrap();
        assert_eq!(contents.records, whole[..count], "cut at {len}");
        assert_eq!(contents.tail_len_bytes, (len - ends[count]) as u64);
        assert!(!contents.is_damaged);
        assert_eq!(log.needs_rewrite(), len != ends[count], "cut at {len}");
    }
}

#[test]
fn record_log_with_a_changed_byte_never_has_another_record() {
    let (dir, _) = log_of_single(&[b"one", b"two", &[5; 60], b"four"]);
    let bytes = bytes_of(&*dir);
    let whole = records_in(&bytes).records;
    let first_record = FIXED_HEAD_LEN + 5 + CRC_LEN;
    let last_record = bytes.len() - 4 - FRAME_LEN;
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let dir = dir_with(&damaged);
            match FORMAT.read(&*dir) {
                Ok(contents) => {
                    let contents = contents.unwrap();
                    assert!(at >= first_record, "byte {at}");
                    assert!(
                        whole.starts_with(&contents.records) && contents.records.len() < 4,
                        "byte {at}"
                    );
                    assert_eq!(contents.is_damaged, at < last_record, "byte {at}: it is no torn tail");
                }
                Err(RecordLogError::Damaged { .. }) => assert!(at < first_record, "byte {at}"),
                Err(error) => panic!("byte {at}: {error}"),
            }
            // The other records are found, also with a damaged head.
            let found = FORMAT.salvage(&*dir).unwrap();
            let of_whole = found.iter().filter(|record| whole.contains(record)).count();
            assert!(of_whole >= 3 && found.len() == of_whole, "byte {at}");
        }
    }
}

#[test]
fn record_log_of_another_version_or_kind_is_refused() {
    let (dir, _) = log_of(&[b"one"]);
    let newer = RecordLogFormat { version: 2, ..FORMAT };
    let error = newer.read(&*dir).unwrap_err();
    assert!(
        matches!(error, RecordLogError::Version { found: 1, known: 2, .. }),
        "{error}"
    );
    let other = RecordLogFormat {
        magic: *b"ANOTHER",
        ..FORMAT
    };
    assert!(matches!(other.open(&dir), Err(RecordLogError::Damaged { .. })));
    let short = RecordLogFormat {
        len_max_bytes: 2,
        ..FORMAT
    };
    assert!(matches!(short.open(&dir), Err(RecordLogError::Damaged { .. })));
    let (_, mut log) = log_of(&[]);
    assert!(log.append([[0; 4097]]).is_err());
    log.append([[0; 4096]]).unwrap();
}

/// Of records that one sync was to make durable a crash leaves any.
#[test]
fn record_log_tells_a_torn_append_from_damage() {
    let records: [&[u8]; 3] = [b"one", b"two", b"three"];
    let second = FIXED_HEAD_LEN + 5 + CRC_LEN + FRAME_LEN + 3;
    let damaged = |dir: &dyn DurableDir| {
        let mut bytes = bytes_of(dir);
        bytes[second] ^= 1;
        let contents = records_in(&bytes);
        assert_eq!(contents.records, [b"one"]);
        contents.is_damaged
    };
    assert!(!damaged(&*log_of(&records).0), "torn");
    assert!(damaged(&*log_of_single(&records).0), "synced");
    // A file has its name only when it is whole.
    let dir = dir();
    FORMAT.create(&dir, b"owner", records).unwrap();
    assert!(damaged(&*dir), "written as a whole");
}

/// After a crash a file system may show blocks of a former file behind the end.
#[test]
fn record_log_takes_no_record_of_a_former_file() {
    let (dir, mut log) = log_of(&[b"one", b"two", b"three"]);
    let former = bytes_of(&*dir);
    log.rewrite(b"owner", [b"uno"]).unwrap();
    let new = bytes_of(&*dir);
    assert_eq!(records_in(&[&new[..], &former[new.len()..]].concat()).records, [b"uno"]);
    // Nor if the owner begins anew over it, whatever the head of the former one has become.
    for damage in [0, 1] {
        let mut damaged = former.clone();
        damaged[FIXED_HEAD_LEN] ^= damage;
        let dir = dir_with(&damaged);
        FORMAT.create(&dir, b"owner", [b"uno"]).unwrap();
        let new = bytes_of(&*dir);
        let contents = records_in(&[&new[..], &former[new.len()..]].concat());
        assert_eq!(contents.records, [b"uno"]);
        assert!(!contents.is_damaged);
    }
}

/// An owner as the module asks for: the records that it was told are durable, and those that may
/// be.
struct Owner {
    dir: Arc<dyn DurableDir>,
    log: Option<RecordLog>,
    durable: Vec<Vec<u8>>,
    /// Contents that may be found instead of `durable`, once a step has failed.
    possible: Vec<Vec<Vec<u8>>>,
    random: SplitMix64,
}

impl Owner {
    fn new(disk: &SimDisk, seed: u64) -> Self {
        Self {
            dir: Arc::new(disk.clone()),
            log: None,
            durable: Vec::new(),
            possible: Vec::new(),
            random: SplitMix64::new(seed),
        }
    }

    fn records(&mut self) -> Vec<Vec<u8>> {
        let count = 1 + self.random.below(3);
        (0..count)
            .map(|_| {
                let len = usize::try_from(self.random.below(700)).unwrap();
                noise(self.random.next_u64(), len)
            })
            .collect()
    }

    /// Takes one step: records are appended, now and then without a sync, or the log is written
    /// anew.
    fn step(&mut self) -> Result<(), RecordLogError> {
        let Some(log) = &mut self.log else {
            self.log = Some(FORMAT.create(&self.dir, b"owner", &self.durable)?);
            return Ok(());
        };
        if log.needs_rewrite() || self.random.below(6) == 0 {
            // Only the newest records count.
            let newest = self.durable.split_off(self.durable.len().saturating_sub(3));
            let former = std::mem::replace(&mut self.durable, newest);
            let former = [&former[..], &self.durable].concat();
            self.possible = vec![former.clone(), self.durable.clone()];
            if let Err(error) = log.rewrite(b"owner", &self.durable) {
                self.durable = former;
                return Err(error);
            }
            self.possible.clear();
            return Ok(());
        }
        let records = self.records();
        let log = self.log.as_mut().unwrap();
        let before = self.durable.clone();
        // Any number of them may have arrived.
        self.possible = (0..=records.len())
            .map(|count| [&before[..], &records[..count]].concat())
            .collect();
        log.append(&records)?;
        log.sync()?;
        self.durable.extend(records);
        self.possible.clear();
        Ok(())
    }

    fn check(&self, survivor: &SimDisk, note: &str) {
        let found = match FORMAT.read(survivor) {
            Ok(Some(contents)) => {
                assert!(!contents.is_damaged, "{note}: a crash is no damage");
                contents.records
            }
            Ok(None) => {
                assert!(self.durable.is_empty(), "{note}: the log is gone");
                return;
            }
            Err(error) => panic!("{note}: {error}"),
        };
        let is_known = found == self.durable || self.possible.contains(&found);
        assert!(is_known, "{note}: {} records of {}", found.len(), self.durable.len());
    }
}

#[test]
fn record_log_has_all_synced_records_after_any_crash() {
    const STEPS: u64 = 25;
    for seed in 0..4 {
        let trial = SimDisk::new(seed);
        let mut owner = Owner::new(&trial, seed);
        (0..STEPS).for_each(|_| owner.step().unwrap());
        for nth in 1..=trial.counters().syncs {
            for phase in [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After] {
                let disk = SimDisk::new(seed);
                disk.crash_at_sync(nth, phase);
                let mut owner = Owner::new(&disk, seed);
                while owner.step().is_ok() {}
                assert!(disk.is_cut());
                for draw in 0..6 {
                    let note = format!("seed {seed}, sync {nth}, {phase:?}, draw {draw}");
                    let survivor = disk.recover(draw);
                    owner.check(&survivor, &note);
                    // The next process goes on with what it finds, and nothing torn comes back.
                    let dir: Arc<dyn DurableDir> = Arc::new(survivor.clone());
                    let Some((mut log, contents)) = FORMAT.open(&dir).unwrap() else {
                        continue;
                    };
                    if log.needs_rewrite() {
                        log.rewrite(&contents.head, &contents.records).unwrap();
                    }
                    log.append([b"after"]).unwrap();
                    log.sync().unwrap();
                    let again = FORMAT.read(&survivor.recover(draw)).unwrap().unwrap();
                    assert_eq!(
                        again.records,
                        [&contents.records[..], &[b"after".to_vec()]].concat(),
                        "{note}"
                    );
                }
            }
        }
    }
}

#[test]
fn record_log_opened_after_a_kill_keeps_what_it_read() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let dir: Arc<dyn DurableDir> = Arc::new(disk.clone());
        let mut log = FORMAT.create(&dir, b"owner", [[0; 0]; 0]).unwrap();
        // Killed before the sync: the kernel still has the bytes.
        log.append([noise(seed, 900)]).unwrap();
        drop(log);
        let (mut log, read) = FORMAT.open(&dir).unwrap().unwrap();
        assert_eq!(read.records.len(), 1);
        log.append([noise(seed + 1, 900)]).unwrap();
        disk.cut_power();
        let survivor = FORMAT.read(&disk.recover(seed)).unwrap().unwrap();
        assert!(!survivor.is_damaged, "seed {seed}: a power cut passes for damage");
        assert_eq!(survivor.records.first(), read.records.first(), "seed {seed}");
    }
}

#[test]
fn record_log_loses_nothing_to_failed_operations() {
    const STEPS: u64 = 25;
    let mut failed = 0;
    for seed in 0..4 {
        let trial = SimDisk::new(seed);
        let mut owner = Owner::new(&trial, seed);
        (0..STEPS).for_each(|_| owner.step().unwrap());
        for nth in 1..=trial.counters().ops {
            let disk = SimDisk::new(seed);
            disk.fail_op(nth, rustix::io::Errno::IO.raw_os_error());
            // The next step may fail as well, as it begins with mending.
            disk.fail_op(nth + 1 + seed, rustix::io::Errno::IO.raw_os_error());
            let mut owner = Owner::new(&disk, seed);
            for _ in 0..STEPS {
                failed += u64::from(owner.step().is_err());
            }
            while owner.step().is_err() {}
            for draw in 0..4 {
                owner.check(
                    &disk.recover(draw),
                    &format!("seed {seed}, operation {nth}, draw {draw}"),
                );
            }
        }
    }
    assert!(failed > 200, "{failed} steps failed");
}

#[test]
fn record_log_on_a_full_disk_goes_on_when_there_is_room() {
    let disk = SimDisk::new(1);
    let mut owner = Owner::new(&disk, 1);
    (0..5).for_each(|_| owner.step().unwrap());
    let len_bytes = owner.log.as_ref().unwrap().len_bytes();
    disk.set_capacity(len_bytes + 100);
    let failed = (0..20).filter(|_| owner.step().is_err()).count();
    assert!(failed > 5, "{failed}");
    disk.set_capacity(1 << 20);
    owner.step().unwrap();
    owner.check(&disk.recover(1), "with room again");
}

#[test]
fn replace_leaves_the_old_file_or_the_new_one() {
    let trial = SimDisk::new(1);
    let work = |disk: &SimDisk| {
        replace(disk, "f", &[1; 2000])?;
        replace(disk, "f", &[2; 3000])
    };
    work(&trial).unwrap();
    for nth in 1..=trial.counters().ops {
        for fails in [false, true] {
            let disk = SimDisk::new(nth);
            match fails {
                true => disk.fail_op(nth, rustix::io::Errno::IO.raw_os_error()),
                false => disk.crash_at_op(nth),
            }
            let is_done = work(&disk).is_ok();
            for seed in 0..10 {
                let found = read_whole(&disk.recover(seed), "f", 1 << 20).unwrap();
                let is_whole = match &found {
                    None => !is_done,
                    Some(bytes) => *bytes == [2; 3000] || (!is_done && *bytes == [1; 2000]),
                };
                assert!(is_whole, "operation {nth}, fails: {fails}, seed {seed}");
            }
        }
    }
}

#[test]
fn read_whole_refuses_a_file_that_is_too_long() {
    let dir = dir();
    let file = dir.open("f", OpenMode::CreateNew).unwrap();
    file.write_all_at(0, &[1; 11]).unwrap();
    assert_eq!(read_whole(&*dir, "f", 11).unwrap().unwrap().len(), 11);
    assert_eq!(
        read_whole(&*dir, "f", 10).unwrap_err().kind(),
        io::ErrorKind::FileTooLarge
    );
    assert!(read_whole(&*dir, "g", 10).unwrap().is_none());
}

#[test]
fn record_log_reads_its_fuzz_seeds() {
    for seed in fuzzing::record_log_seeds() {
        fuzzing::record_log(&seed);
        fuzzing::record_log(&seed[..seed.len() - 1]);
    }
}
