//! Random lives of backups with crashes at every step, against the server that they talk to.

use super::*;
use byteback_host::durable::OpenMode;
use byteback_host::random::{SimRandomness, SplitMix64};
use byteback_host::sim::{CrashPhase, SimDisk};
use std::collections::BTreeMap;

const NAME: &str = "blocks.redb";

fn open(disk: &SimDisk) -> Result<ChecksumStore> {
    ChecksumStore::open(disk, NAME, &SimRandomness::new(7))
}

/// Sends a file through the store as a backup does. Returns the content that the server makes of
/// `base`, in which only blocks not known to be equal are replaced.
fn send(
    session: &mut Session,
    file: u64,
    base: Option<&[u8]>,
    new: &[u8],
    changed: &[(usize, usize)],
) -> Result<Vec<u8>> {
    if base.is_none() {
        session.forget_file(file)?;
    }
    let block_len = BLOCK_LEN as usize;
    let mut made = base.unwrap_or_default().to_vec();
    made.resize(new.len(), 0);
    let mut has_last = false;
    for (index, block) in new.chunks(block_len).enumerate() {
        let start = index * block_len;
        let is_touched = |(from, to): &(usize, usize)| *from < start + block.len() && *to > start;
        if base.is_some() && !changed.iter().any(is_touched) {
            continue;
        }
        has_last |= block.len() < block_len;
        if !session.exchange(file, index as u64, session.sum(block))? {
            made[start..start + block.len()].copy_from_slice(block);
        }
    }
    session.end_file(file, new.len() as u64, has_last)?;
    Ok(made)
}

fn bytes(random: &mut SplitMix64, len: usize) -> Vec<u8> {
    // Few values, so that blocks return to earlier contents.
    let kinds = [1, 1, random.next_u64() as u8];
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let run = (1 + random.below(40_000) as usize).min(len - bytes.len());
        bytes.resize(bytes.len() + run, kinds[random.below(3) as usize]);
    }
    bytes
}

#[derive(Default)]
struct World {
    tree: BTreeMap<u64, Vec<u8>>,
    /// The changes of each file since the last applied batch; `None` for a file that changed as a
    /// whole.
    changed: BTreeMap<u64, Option<Vec<(usize, usize)>>>,
    server: BTreeMap<u64, Vec<u8>>,
    applied: Option<u64>,
}

impl World {
    fn change(&mut self, random: &mut SplitMix64) {
        let file = random.below(4);
        let old = self.tree.get(&file).cloned();
        let Some(mut content) = old.filter(|_| random.below(12) > 0) else {
            let share = 1 + random.below(200);
            let len = random.below(3_000_000 / share) as usize;
            self.tree.insert(file, bytes(random, len));
            self.changed.insert(file, None);
            return;
        };
        let old_len = content.len();
        let mut ranges = Vec::new();
        match random.below(4) {
            0 => content.truncate(random.below(old_len as u64 + 1) as usize),
            1 => {
                content.resize(old_len + random.below(20_000) as usize, 0);
                ranges.push((old_len, content.len()));
            }
            _ => {
                let start = random.below(old_len as u64 + 1) as usize;
                let len_max = [3000, 30_000, 2_000_000][random.below(3) as usize];
                let written = random.below(len_max) as usize;
                let written = bytes(random, written);
                let end = start + written.len();
                content.resize(old_len.max(end), 0);
                content[start..end].copy_from_slice(&written);
                ranges.push((start, end));
            }
        }
        self.tree.insert(file, content);
        let changed = self.changed.entry(file).or_insert_with(|| Some(Vec::new()));
        if let Some(changed) = changed {
            changed.extend(ranges);
        }
    }

    /// Performs one backup. If the store fails, the backup goes on without it.
    fn backup(&mut self, store: Option<&ChecksumStore>, batch: u64, random: &mut SplitMix64) {
        let mut session = store.and_then(|store| store.begin(self.applied).ok());
        let mut after = self.server.clone();
        for (file, changed) in &self.changed {
            let new = &self.tree[file];
            let base = match changed {
                Some(_) => Some(self.server[file].as_slice()),
                // "Whole": over nothing, or over the server's content.
                None if random.coin() => self.server.get(file).map(Vec::as_slice),
                None => None,
            };
            let all = [(0, new.len())];
            let changed = changed.as_deref().unwrap_or(&all);
            if let Some(at_work) = &mut session {
                if random.below(10) == 0 {
                    // The file fails midway, is given up, and is sent by other means.
                    let gave_up = send(at_work, *file, base, new, changed).and_then(|_| at_work.give_up_file(*file));
                    if gave_up.is_err() {
                        session = None;
                    }
                } else {
                    match send(at_work, *file, base, new, changed) {
                        Ok(made) => {
                            assert!(made == *new, "file {file} in batch {batch}: a change was not sent");
                            after.insert(*file, made);
                            continue;
                        }
                        Err(_) => session = None,
                    }
                }
                if let Some(at_work) = &mut session {
                    // Then nothing is known of it any more.
                    if at_work
                        .forget_file(*file)
                        .and_then(|()| at_work.end_file(*file, 0, false))
                        .is_err()
                    {
                        session = None;
                    }
                }
            }
            after.insert(*file, new.clone());
        }
        // In vain now and then: nothing is applied.
        if let Some(session) = session {
            let _ = session.prepare(batch);
        }
        if random.below(5) == 0 {
            return;
        }
        self.server = after;
        self.changed.clear();
        self.applied = Some(batch);
        if random.coin()
            && let Some(store) = store
        {
            let _ = store.settle(self.applied);
        }
    }
}

#[test]
fn checksum_store_takes_no_change_for_known_in_random_crashes() {
    let seed = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    for seed in seed..seed + 25 {
        let mut random = SplitMix64::new(seed);
        let mut disk = SimDisk::new(seed);
        let mut world = World::default();
        for batch in 1..40 {
            for _ in 0..random.below(4) {
                world.change(&mut random);
            }
            if random.below(3) == 0 {
                disk.crash_at_sync(
                    1 + random.below(12),
                    [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After][random.below(3) as usize],
                );
            }
            // Now and then by a program without the store, or one that cannot open it.
            let store = match random.below(8) {
                0 => None,
                _ => open(&disk).ok(),
            };
            world.backup(store.as_ref(), batch, &mut random);
            drop(store);
            disk = disk.recover(random.next_u64());
        }
        assert_eq!(
            world.server.keys().count(),
            world.tree.keys().count().min(world.server.len())
        );
    }
}

#[test]
fn store_knows_unchanged_sums_and_forgets_discarded_ones() {
    let disk = SimDisk::new(1);
    let store = open(&disk).unwrap();
    let mut random = SplitMix64::new(1);
    let old: Vec<u8> = (0..2_000_001).map(|_| random.next_u64() as u8).collect();
    let mut session = store.begin(None).unwrap();
    send(&mut session, 5, None, &old, &[]).unwrap();
    session.prepare(10).unwrap();
    // The batch was never applied.
    assert_eq!(store.begin(Some(9)).unwrap().known_blocks(5).unwrap(), 0);
    let mut session = store.begin(Some(9)).unwrap();
    send(&mut session, 5, None, &old, &[]).unwrap();
    session.prepare(11).unwrap();
    let mut session = store.begin(Some(11)).unwrap();
    assert_eq!(session.known_blocks(5).unwrap(), 489);
    for (index, block) in old.chunks(BLOCK_LEN as usize).enumerate() {
        let sum = session.sum(block);
        assert!(session.exchange(5, index as u64, sum).unwrap());
    }
    // A session dropped without an end leaves everything as it was, and so does one in which the
    // file was given up.
    session.exchange(5, 7, [0; 16]).unwrap();
    drop(session);
    let mut session = store.begin(Some(11)).unwrap();
    session.exchange(5, 7, [0; 16]).unwrap();
    session.exchange(5, 300, [0; 16]).unwrap();
    session.give_up_file(5).unwrap();
    session.prepare(12).unwrap();
    drop(store);
    let disk = disk.recover(3);
    let store = open(&disk).unwrap();
    let mut session = store.begin(Some(12)).unwrap();
    for (index, block) in old.chunks(BLOCK_LEN as usize).enumerate() {
        let sum = session.sum(block);
        assert!(session.exchange(5, index as u64, sum).unwrap(), "{index}");
    }
    // Cut to five bytes of the second block: only the first one stays known.
    session.end_file(5, BLOCK_LEN + 5, false).unwrap();
    session.prepare(13).unwrap();
    assert_eq!(store.begin(Some(13)).unwrap().known_blocks(5).unwrap(), 1);
    // A backup without the store.
    assert_eq!(store.begin(Some(99)).unwrap().known_blocks(5).unwrap(), 0);
    assert_eq!(store.begin(Some(13)).unwrap().known_blocks(5).unwrap(), 0);
}

#[test]
fn holes_are_forgotten_without_being_counted_through() {
    let disk = SimDisk::new(1);
    let store = open(&disk).unwrap();
    let mut session = store.begin(None).unwrap();
    for block in [0, 255, 256, 1000, 5000] {
        session.exchange(1, block, [1; 16]).unwrap();
    }
    session.prepare(1).unwrap();
    let mut session = store.begin(Some(1)).unwrap();
    session.forget_blocks(1, 255, 1 << 50).unwrap();
    session.end_file(1, 1 << 62, false).unwrap();
    session.prepare(2).unwrap();
    let mut session = store.begin(Some(2)).unwrap();
    assert_eq!(session.known_blocks(1).unwrap(), 1);
    assert!(session.exchange(1, 0, [1; 16]).unwrap());
}

#[test]
fn a_damaged_file_is_made_anew_and_a_newer_one_is_refused() {
    let disk = SimDisk::new(1);
    drop(open(&disk).unwrap());
    let file = disk.open(NAME, OpenMode::Existing).unwrap();
    let len = file.len().unwrap();
    let mut whole = vec![0; len as usize];
    file.read_exact_at(0, &mut whole).unwrap();
    let mut random = SplitMix64::new(3);
    for _ in 0..60 {
        let mut damaged = whole.clone();
        match random.below(3) {
            0 => damaged.truncate(random.below(len) as usize),
            1 => {
                let at = random.below(len) as usize;
                damaged[at] ^= 1 << random.below(8);
            }
            _ => damaged[..random.below(len) as usize].fill(0xff),
        }
        file.set_len(0).unwrap();
        file.write_all_at(0, &damaged).unwrap();
        let store = open(&disk).unwrap();
        let mut session = store.begin(Some(1)).unwrap();
        assert!(!session.exchange(1, 1, [0; 16]).unwrap());
        drop(session);
        drop(store);
        let _ = disk.remove(NAME);
        disk.open(NAME, OpenMode::CreateIfMissing).unwrap();
        let file = disk.open(NAME, OpenMode::Existing).unwrap();
        file.set_len(0).unwrap();
    }
    let file = disk.open(NAME, OpenMode::Existing).unwrap();
    file.write_all_at(0, &whole).unwrap();
    let store = open(&disk).unwrap();
    let txn = store.database.begin_write().unwrap();
    txn.open_table(META)
        .unwrap()
        .insert(META_VERSION, &2_u64.to_le_bytes()[..])
        .unwrap();
    txn.commit().unwrap();
    drop(store);
    assert!(matches!(
        open(&disk),
        Err(ChecksumError::Version {
            found: 2,
            known: VERSION
        })
    ));
}

#[test]
fn golden_values_of_version_1() {
    assert_eq!((BLOCK_LEN, CHUNK_BLOCKS, ENTRY_LEN), (4096, 256, 17));
    let entries = vec![(0, [0x11; 16]), (255, [0x22; 16])];
    let bytes = encode((7, 3), &entries);
    let mut expected = vec![0];
    expected.extend([0x11; 16]);
    expected.push(255);
    expected.extend([0x22; 16]);
    // CRC-32C of the file and the chunk (8 bytes each) and the entries.
    expected
        .extend(crc32c::crc32c(&[&7_u64.to_le_bytes()[..], &3_u64.to_le_bytes(), &expected].concat()).to_le_bytes());
    assert_eq!(bytes, expected);
    assert_eq!(decode((7, 3), &bytes), entries);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        assert!(decode((7, 3), &damaged).is_empty());
    }
    assert!(decode((7, 4), &bytes).is_empty(), "of another place");
    let store = open(&SimDisk::new(1)).unwrap();
    let session = ChecksumStore { key: [9; 32], ..store };
    let sum = session.begin(None).unwrap().sum(b"hello");
    assert_eq!(sum, blake3::keyed_hash(&[9; 32], b"hello").as_bytes()[..16]);
}
