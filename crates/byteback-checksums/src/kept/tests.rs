//! Random lives of files that are written in every way, and of a database that crashes, checked
//! against the files' contents.

use std::cell::RefCell;
use std::rc::Rc;

use byteback_host::clock::{RealClock, SimClock};
use byteback_host::durable::OpenMode;
use byteback_host::random::SplitMix64;
use byteback_host::sim::{CrashPhase, SimDisk};
use byteback_model::NodeKind;

use super::*;
use crate::source::FileChecksums;

const NAME: &str = "kept.redb";
const TICK_NS: i64 = 10_000_000;

/// A file whose times advance by ticks, with mapped pages: a store moves the times only if its page
/// was clean.
struct File {
    clock: Rc<SimClock>,
    content: Vec<u8>,
    dirty: std::collections::BTreeSet<usize>,
    stat: Stat,
    /// A change that happens during the next read, or before the next look at the times.
    meanwhile: Option<u64>,
    short_reads: bool,
    /// A write that moved the times when it began, and has not come to this byte yet.
    at_work: Option<u64>,
}

struct Shared(RefCell<File>);

impl std::ops::Deref for Shared {
    type Target = RefCell<File>;
    fn deref(&self) -> &RefCell<File> {
        &self.0
    }
}

impl File {
    fn make(clock: &Rc<SimClock>, ino: u64, content: Vec<u8>) -> Shared {
        let now_ns = clock.now_ns();
        let stat = Stat {
            kind: NodeKind::File,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            block_size: 4096,
            dev: 1,
            ino,
            mount_id: Some(30),
            btime_ns: Some(now_ns),
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            inode_flags: byteback_host::tree::InodeFlags::NONE,
        };
        let mut file = Self {
            clock: clock.clone(),
            content,
            dirty: Default::default(),
            stat,
            meanwhile: None,
            short_reads: true,
            at_work: None,
        };
        file.stamp();
        Shared(RefCell::new(file))
    }

    fn stamp(&mut self) {
        self.stat.ctime_ns = self.clock.now_ns() / TICK_NS * TICK_NS;
        self.stat.mtime_ns = self.stat.ctime_ns.into();
        self.stat.size = self.content.len() as u64;
    }

    /// Ends the running write; its times are those of its beginning.
    fn end_write(&mut self) {
        if let Some(byte) = self.at_work.take().and_then(|at| self.content.get_mut(at as usize)) {
            *byte ^= 0x55;
        }
    }

    fn store(&mut self, at: u64, value: u8) {
        if let Some(byte) = self.content.get_mut(at as usize) {
            *byte = byte.wrapping_add(value | 1);
            if self.dirty.insert(at as usize / 4096) {
                self.stamp();
            }
        }
    }
}

impl Content for Shared {
    fn stat(&self) -> io::Result<Stat> {
        Ok(self.borrow().stat)
    }
    fn sync(&self) -> io::Result<()> {
        self.borrow_mut().dirty.clear();
        Ok(())
    }
    fn wait_for_writers(&self) {
        self.borrow_mut().end_write();
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut file = self.borrow_mut();
        if let Some(at) = file.meanwhile.take() {
            file.store(at, 7);
        }
        let rest = file.content.get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(buffer.len());
        let len = if file.short_reads { len.min(100_003) } else { len };
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
    fn times_track_changes(&self) -> io::Result<bool> {
        Ok(true)
    }
}

fn open(disk: &SimDisk, boot: u8, blocks_max: u64) -> crate::error::Result<KeptChecksums> {
    KeptChecksums::open(disk, NAME, [boot; 16], blocks_max)
}

/// Checks that returned checksums are of the file's content. Returns the number of unknown bytes,
/// or `None` if no checksums were returned.
fn check(kept: &KeptChecksums, file: &Shared, kind: Kind, seed: u64) -> Option<u64> {
    let reported = FileChecksums::collect(1, || kept.begin_content(file, kind)).ok()?;
    let file = file.borrow();
    let mut at = 0;
    for run in reported.runs() {
        assert_eq!(run.range().start(), at);
        at = run.range().end();
        if let Run::Sums { range, sums } = run {
            let mut expected = Vec::new();
            for block in file.content[range.start() as usize..range.end() as usize].chunks(BLOCK_LEN) {
                reported.layout().append_sum(block, &mut expected);
            }
            assert!(sums == expected, "seed {seed}: stale checksums in {range}");
        }
    }
    assert_eq!(at, file.content.len() as u64, "seed {seed}");
    Some(reported.unknown_bytes())
}

fn bytes(random: &mut SplitMix64) -> Vec<u8> {
    let len_max = [10, 5000, 100_000, 2_500_000][random.below(4) as usize];
    let mut bytes = vec![random.next_u64() as u8; random.below(len_max) as usize];
    for byte in bytes.iter_mut().step_by(997) {
        *byte = random.next_u64() as u8;
    }
    bytes
}

#[test]
fn kept_sums_are_never_stale_in_random_runs_with_crashes() {
    let first = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let (mut reported, mut not_told) = (0, 0);
    for seed in first..first + 25 {
        let mut random = SplitMix64::new(seed);
        let clock = Rc::new(SimClock::new(1_000_000_000_000));
        let mut disk = SimDisk::new(seed);
        let mut boot = 1;
        let mut files: Vec<Shared> = (0..4).map(|ino| File::make(&clock, ino, bytes(&mut random))).collect();
        for _ in 0..30 {
            if random.below(4) == 0 {
                disk.crash_at_sync(
                    1 + random.below(6),
                    [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After][random.below(3) as usize],
                );
            }
            let kept = open(&disk, boot, 900).ok();
            for _ in 0..random.below(12) {
                let ino = random.below(4) as usize;
                let file = &files[ino];
                match random.below(12) {
                    0 => {
                        let content = bytes(&mut random);
                        file.borrow_mut().at_work = None;
                        file.borrow_mut().content = content;
                        file.borrow_mut().stamp();
                    }
                    1 | 2 => {
                        let at = random.below(file.borrow().content.len() as u64 + 1);
                        for _ in 0..1 + random.below(3) {
                            file.borrow_mut().store(at, 3);
                        }
                    }
                    // A new file with the old number.
                    3 => {
                        let content = bytes(&mut random);
                        files[ino] = File::make(&clock, ino as u64, content);
                    }
                    // One write at a time: the next begins when the one before has ended.
                    10 => {
                        let at = random.below(file.borrow().content.len() as u64 + 1);
                        file.borrow_mut().end_write();
                        file.borrow_mut().stamp();
                        file.borrow_mut().at_work = Some(at);
                    }
                    11 => file.borrow_mut().end_write(),
                    4 | 5 => clock.advance(Duration::from_millis(random.below(4000))),
                    _ => {
                        if let Some(kept) = &kept {
                            if random.below(4) == 0 {
                                let at = random.below(file.borrow().content.len() as u64 + 1);
                                file.borrow_mut().meanwhile = Some(at);
                            }
                            let _ = kept.keep_content(file, &*clock);
                            file.borrow_mut().meanwhile = None;
                        }
                    }
                }
                if let Some(kept) = &kept {
                    let kind = [Kind::Crc32c, Kind::Blake3][random.below(2) as usize];
                    for file in &files {
                        match check(kept, file, kind, seed) {
                            Some(unknown) => {
                                assert_eq!(unknown, 0, "seed {seed}");
                                reported += 1;
                            }
                            None => not_told += 1,
                        }
                    }
                    let txn = kept.database.begin_read().unwrap();
                    let order = txn.open_table(ORDER).unwrap();
                    let blocks: u64 = order.iter().unwrap().map(|entry| entry.unwrap().1.value().2).sum();
                    assert!(blocks <= 900, "seed {seed}: {blocks} blocks");
                }
            }
            drop(kept);
            disk = disk.recover(random.next_u64());
            if random.below(4) == 0 {
                // The machine crashes: data may be new, and all times old.
                boot += 1;
                let file = &files[random.below(4) as usize];
                if let Some(byte) = file.borrow_mut().content.first_mut() {
                    *byte ^= 1;
                }
            }
        }
    }
    assert!(reported > 1000 && not_told > 1000, "{reported} {not_told}");
}

#[test]
fn kept_sums_exclude_recent_and_concurrent_changes() {
    let clock = Rc::new(SimClock::new(1_000_000_000_000));
    let disk = SimDisk::new(1);
    let kept = open(&disk, 1, 1000).unwrap();
    let file = File::make(&clock, 5, vec![1; 10_000]);
    assert!(matches!(kept.keep_content(&file, &*clock), Err(SourceError::Busy)));
    clock.advance(QUIET);
    assert!(matches!(kept.keep_content(&file, &*clock), Err(SourceError::Busy)));
    clock.advance(Duration::from_millis(20));
    kept.keep_content(&file, &*clock).unwrap();
    assert_eq!(check(&kept, &file, Kind::Crc32c, 0), Some(0));
    // The page was synced when its checksum was kept, so this store moves the times.
    file.borrow_mut().store(5000, 1);
    assert_eq!(check(&kept, &file, Kind::Crc32c, 0), None);
    clock.advance(QUIET * 2);
    file.borrow_mut().meanwhile = Some(1);
    assert!(matches!(
        kept.keep_content(&file, &*clock),
        Err(SourceError::ChangedMeanwhile)
    ));
    clock.advance(QUIET * 2);
    kept.keep_content(&file, &*clock).unwrap();
    assert_eq!(check(&kept, &file, Kind::Blake3, 0), Some(0));
    assert_eq!(check(&kept, &file, Kind::Sha256, 0), None);
    // Another mount, another boot, and a file that is too long.
    file.borrow_mut().stat.mount_id = Some(31);
    assert_eq!(check(&kept, &file, Kind::Crc32c, 0), None);
    file.borrow_mut().stat.mount_id = Some(30);
    drop(kept);
    let kept = open(&disk, 2, 2).unwrap();
    assert_eq!(check(&kept, &file, Kind::Crc32c, 0), None);
    assert!(matches!(
        kept.keep_content(&file, &*clock),
        Err(SourceError::NotHere(_))
    ));
    drop(kept);
    let kept = open(&disk, 1, 2).unwrap();
    assert_eq!(check(&kept, &file, Kind::Crc32c, 0), Some(0));
    // A damaged value is unknown, and a damaged record counts as missing.
    let damage = |table: TableDefinition<'_, (u64, u64), &[u8]>| {
        let txn = kept.database.begin_write().unwrap();
        {
            let mut table = txn.open_table(table).unwrap();
            let (key, mut value) = {
                let (key, value) = table.first().unwrap().unwrap();
                (key.value(), value.value().to_vec())
            };
            value[9] ^= 1;
            table.insert(key, value.as_slice()).unwrap();
        }
        txn.commit().unwrap();
    };
    damage(SUMS);
    assert_eq!(check(&kept, &file, Kind::Crc32c, 0), Some(10_000));
    damage(FILES);
    assert_eq!(check(&kept, &file, Kind::Crc32c, 0), None);
}

#[test]
fn a_write_that_is_at_work_for_long_is_waited_for() {
    let clock = Rc::new(SimClock::new(1_000_000_000_000));
    let disk = SimDisk::new(1);
    let kept = open(&disk, 1, 1000).unwrap();
    let file = File::make(&clock, 5, vec![1; 10_000]);
    file.borrow_mut().at_work = Some(5000);
    clock.advance(QUIET * 2);
    kept.keep_content(&file, &*clock).unwrap();
    file.borrow_mut().end_write();
    assert_eq!(check(&kept, &file, Kind::Blake3, 0), Some(0));
}

#[test]
fn real_files_are_kept_and_memory_is_refused() {
    let disk = SimDisk::new(1);
    let kept = open(&disk, 1, 1000).unwrap();
    let memory = tempfile::tempfile_in("/dev/shm").unwrap();
    assert!(matches!(kept.keep(&memory, &RealClock), Err(SourceError::NotHere(_))));
    let file = tempfile::tempfile_in("/var/tmp").unwrap();
    if !Content::times_track_changes(&file).unwrap() {
        println!("skipped: /var/tmp lies on a file system that is refused");
        return;
    }
    std::os::unix::fs::FileExt::write_all_at(&file, &[5; 9000], 0).unwrap();
    assert!(matches!(kept.keep(&file, &RealClock), Err(SourceError::Busy)));
    RealClock.sleep(QUIET + Duration::from_millis(50));
    kept.keep(&file, &RealClock).unwrap();
    let reported = FileChecksums::collect(1, || kept.begin(&file, Kind::Crc32c)).unwrap();
    assert_eq!(reported.unknown_bytes(), 0);
    std::os::unix::fs::FileExt::write_all_at(&file, &[5; 1], 0).unwrap();
    assert!(matches!(kept.begin(&file, Kind::Crc32c), Err(SourceError::NotHere(_))));
}

#[test]
fn a_damaged_file_is_made_anew_and_a_newer_one_is_refused() {
    let disk = SimDisk::new(1);
    drop(open(&disk, 1, 10).unwrap());
    let file = disk.open(NAME, OpenMode::Existing).unwrap();
    file.write_all_at(0, &[0xff; 300]).unwrap();
    let kept = open(&disk, 1, 10).unwrap();
    let txn = kept.database.begin_write().unwrap();
    txn.open_table(META)
        .unwrap()
        .insert(META_VERSION, &2_u64.to_le_bytes()[..])
        .unwrap();
    txn.commit().unwrap();
    drop(kept);
    assert!(matches!(
        open(&disk, 1, 10),
        Err(ChecksumError::Version {
            found: 2,
            known: VERSION
        })
    ));
}

#[test]
fn golden_values_of_version_1() {
    let clock = Rc::new(SimClock::new(1_000_000_000_000));
    let file = File::make(&clock, 0x0507, vec![b'x'; 5000]);
    clock.advance(QUIET * 2);
    let disk = SimDisk::new(1);
    let kept = open(&disk, 0xbb, 10).unwrap();
    kept.keep_content(&file, &*clock).unwrap();
    let txn = kept.database.begin_read().unwrap();
    let files = txn.open_table(FILES).unwrap();
    let record = files.get((1, 0x0507)).unwrap().unwrap().value().to_vec();
    let mut expected = vec![0; 8];
    for (flag, number) in [(1, 1_000_000_000_000_u64), (1, 30)] {
        expected.push(flag);
        expected.extend(number.to_le_bytes());
    }
    for number in [5000_u64, 1_000_000_000_000, 1_000_000_000_000] {
        expected.extend(number.to_le_bytes());
    }
    expected.extend([0xbb; 16]);
    let key = [1_u64.to_le_bytes(), 0x0507_u64.to_le_bytes()].concat();
    expected.extend(crc32c::crc32c(&[&key[..], &expected].concat()).to_le_bytes());
    assert_eq!(record, expected);
    let sums = txn.open_table(SUMS).unwrap();
    let value = sums.get((0, 0)).unwrap().unwrap().value().to_vec();
    let mut expected = Vec::new();
    for block in [&[b'x'; 4096][..], &[b'x'; 904]] {
        expected.extend(crc32c::crc32c(block).to_le_bytes());
        expected.extend(blake3::hash(block).as_bytes());
    }
    expected.extend(crc32c::crc32c(&[&[0; 16][..], &expected].concat()).to_le_bytes());
    assert_eq!(value, expected);
    let mut extraction = kept.begin_content(&file, Kind::Blake3).unwrap();
    extraction.next_run().unwrap();
    let crcs = [&[b'x'; 4096][..], &[b'x'; 904]].map(|block| crc32c::crc32c(block).to_le_bytes());
    assert_eq!(extraction.crcs, crcs.concat());
    let order = txn.open_table(ORDER).unwrap();
    assert_eq!(order.get(0).unwrap().unwrap().value(), (1, 0x0507, 2));
}
