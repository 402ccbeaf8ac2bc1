use super::*;
use byteback_delta::{DeltaWriter, WriterOptions};
use byteback_extents::ByteRange;
use byteback_host::random::SplitMix64;
use byteback_host::sim::{CrashPhase, SimDisk};
use std::collections::BTreeMap;

/// A file of the folder, on the simulated disk.
struct Simulated(Arc<dyn DurableFile>);

impl Base for Simulated {
    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(offset, buffer)
    }
}

impl Target for Simulated {
    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn write_range(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(offset, bytes)
    }

    fn punch_hole(&mut self, range: ByteRange) -> io::Result<()> {
        self.0.write_all_at(range.start(), &vec![0; range.len_bytes() as usize])
    }

    fn set_len_bytes(&mut self, len_bytes: u64) -> io::Result<()> {
        self.0.set_len(len_bytes)
    }
}

fn held(file: &Simulated) -> Vec<u8> {
    let mut bytes = vec![0; file.0.len().unwrap() as usize];
    file.0.read_exact_at(0, &mut bytes).unwrap();
    bytes
}

/// Contents of files, by number.
type Files = BTreeMap<u64, Vec<u8>>;

fn noise(random: &mut SplitMix64, len: usize) -> Vec<u8> {
    // Few different bytes, so that sectors now and then get their old content.
    (0..len).map(|_| (random.below(3) as u8) * 85).collect()
}

fn random_delta(random: &mut SplitMix64, base: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let new_len = match random.below(4) {
        0 => random.below(base.len() as u64 + 1) as usize,
        1 => base.len() + random.below(3000) as usize,
        _ => base.len(),
    };
    let mut new = base.to_vec();
    new.resize(new_len, 0);
    let options = WriterOptions {
        copies: false,
        compress: random.coin(),
    };
    let mut writer = DeltaWriter::new(Vec::new(), base.len() as u64, new_len as u64, options).unwrap();
    let mut at = 0;
    for _ in 0..random.below(6) {
        at += random.below(1 + new_len as u64 / 3) as usize;
        if at >= new_len {
            break;
        }
        let len = (1 + random.below(2000) as usize).min(new_len - at);
        let range = ByteRange::from_offset_len(at as u64, len as u64).unwrap();
        if random.below(3) == 0 {
            writer.zero(range).unwrap();
            new[at..at + len].fill(0);
        } else {
            let bytes = noise(random, len);
            writer.literal(range, &bytes[..]).unwrap();
            new[at..at + len].copy_from_slice(&bytes);
        }
        at += len;
    }
    (writer.finish().unwrap().0, new)
}

/// A folder and its patches on one disk.
struct World {
    disk: SimDisk,
}

impl World {
    fn folder(&self) -> io::Result<Arc<dyn DurableDir>> {
        self.disk.subdir("folder")
    }

    fn patches(&self) -> io::Result<Patches> {
        Ok(Patches::new(self.disk.subdir("patches")?))
    }

    fn file(&self, node: u64) -> io::Result<Simulated> {
        let file = self.folder()?.open(&node.to_string(), OpenMode::Existing)?;
        Ok(Simulated(file))
    }

    fn holds(&self, node: u64) -> Vec<u8> {
        let file = self.file(node).unwrap();
        let mut bytes = vec![0; file.0.len().unwrap() as usize];
        file.0.read_exact_at(0, &mut bytes).unwrap();
        bytes
    }

    fn assert_holds(&self, files: &Files, what: &str) {
        for (node, bytes) in files {
            assert!(self.holds(*node) == *bytes, "{what}: file {node}");
        }
    }

    /// A folder with these durable files.
    fn with(seed: u64, files: &Files) -> Self {
        let world = Self {
            disk: SimDisk::new(seed),
        };
        let folder = world.folder().unwrap();
        for (node, bytes) in files {
            let file = folder.open(&node.to_string(), OpenMode::CreateNew).unwrap();
            file.write_all_at(0, bytes).unwrap();
            file.sync_data().unwrap();
        }
        folder.sync().unwrap();
        world.patches().unwrap();
        world.disk.sync().unwrap();
        world
    }

    fn gather(&self, label: u64, deltas: &BTreeMap<u64, Vec<u8>>) -> Result<Committed, Box<dyn std::error::Error>> {
        let mut gathering = self.patches()?.begin(label)?;
        for (node, delta) in deltas {
            gathering.add(*node, &self.file(*node)?, &mut &delta[..])?;
        }
        Ok(gathering.commit()?)
    }

    fn apply(&self, set: Committed) -> Result<(), Box<dyn std::error::Error>> {
        for patch in set.patches() {
            let mut file = self.file(patch.node)?;
            set.apply(patch, &mut file)?;
            file.0.sync_data()?;
        }
        Ok(set.finish()?)
    }

    /// Repairs after a crash. Returns whether a set was pending.
    fn repair(&self, label: u64) -> Result<bool, Box<dyn std::error::Error>> {
        let Some(set) = self.patches()?.pending()? else {
            return Ok(false);
        };
        assert_eq!(set.label(), label);
        for patch in set.patches() {
            let found = set.check(patch, &self.file(patch.node)?)?;
            let len = self.holds(patch.node).len();
            assert!(
                !matches!(found, Found::Impossible(_)),
                "{found:?} of {len} bytes, {patch:?}"
            );
        }
        self.apply(set)?;
        Ok(true)
    }
}

fn random_set(random: &mut SplitMix64) -> (Files, BTreeMap<u64, Vec<u8>>, Files) {
    let (mut old, mut deltas, mut new) = (Files::new(), BTreeMap::new(), Files::new());
    for node in 0..1 + random.below(3) {
        let len = random.below(6000) as usize;
        let bytes = noise(random, len);
        let (delta, expected) = random_delta(random, &bytes);
        old.insert(node, bytes);
        deltas.insert(node, delta);
        new.insert(node, expected);
    }
    (old, deltas, new)
}

#[test]
fn patches_leave_files_all_old_or_make_all_new_after_power_cut() {
    let (mut old_after, mut mended) = (0, 0);
    for seed in 0..60 {
        let mut random = SplitMix64::new(seed);
        let (old, deltas, new) = random_set(&mut random);
        let all_ops = {
            let world = World::with(seed, &old);
            let before = world.disk.counters();
            world.apply(world.gather(7, &deltas).unwrap()).unwrap();
            world.assert_holds(&new, "without a crash");
            let after = world.disk.counters();
            (after.ops - before.ops, after.syncs - before.syncs)
        };
        let phases = [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After];
        let syncs = (1..=all_ops.1).flat_map(|nth| phases.map(|phase| (Some((nth, phase)), 0)));
        let ops = (0..12).map(|_| (None, 1 + random.below(all_ops.0))).collect::<Vec<_>>();
        for (crash_at_sync, crash_at_op) in syncs.chain(ops) {
            let what = format!("seed {seed}, sync {crash_at_sync:?}, operation {crash_at_op}");
            let world = World::with(seed, &old);
            match crash_at_sync {
                Some((nth, phase)) => world.disk.crash_at_sync(world.disk.counters().syncs + nth, phase),
                None => world.disk.crash_at_op(world.disk.counters().ops + crash_at_op),
            }
            let done = world.gather(7, &deltas).and_then(|set| world.apply(set));
            for survivor in 0..3 {
                let world = World {
                    disk: world.disk.recover(survivor),
                };
                // The repair is cut as well, once in the middle.
                world
                    .disk
                    .crash_at_sync(world.disk.counters().syncs + 1 + survivor, CrashPhase::Middle);
                let world = match world.repair(7) {
                    Ok(_) if !world.disk.is_cut() => world,
                    _ => World {
                        disk: world.disk.recover(survivor + 10),
                    },
                };
                let was_pending = world.repair(7).unwrap_or_else(|error| panic!("{what}: {error}"));
                let is_new = new.iter().all(|(node, bytes)| world.holds(*node) == *bytes);
                mended += u32::from(was_pending);
                if was_pending || done.is_ok() || is_new {
                    world.assert_holds(&new, &what);
                } else {
                    old_after += 1;
                    world.assert_holds(&old, &what);
                }
                // The next set works as usual.
                let mut next = BTreeMap::new();
                let mut expected = Files::new();
                for node in old.keys() {
                    let (delta, bytes) = random_delta(&mut random, &world.holds(*node));
                    next.insert(*node, delta);
                    expected.insert(*node, bytes);
                }
                world.disk.crash_at_sync(u64::MAX, CrashPhase::Before);
                world.apply(world.gather(8, &next).unwrap()).unwrap();
                world.assert_holds(&expected, &what);
            }
        }
    }
    assert!(old_after > 1000 && mended > 1000, "{old_after} old, {mended} mended");
}

#[test]
fn what_somebody_else_changed_before_the_repair_is_found() {
    for seed in 0..300 {
        let mut random = SplitMix64::new(seed);
        let (old, deltas, _) = random_set(&mut random);
        let world = World::with(seed, &old);
        let set = world.gather(7, &deltas).unwrap();
        let Some(patch) = set.patches().iter().find(|patch| patch.sums_from < patch.sums_to) else {
            continue;
        };
        let mut file = world.file(patch.node).unwrap();
        if random.coin() {
            set.apply(patch, &mut file).unwrap();
        }
        let mut sums = SumReader::new(&*set.sums, patch);
        let mut changed = Vec::new();
        while let Some(sum) = sums.next().unwrap() {
            changed.push(sum.offset());
        }
        let sector = changed[random.below(changed.len() as u64) as usize];
        let len = Base::len_bytes(&file).unwrap();
        if sector >= len {
            continue;
        }
        let at = sector + random.below((len - sector).min(512));
        file.0.write_all_at(at, &[17]).unwrap();
        let found = set.check(patch, &file).unwrap();
        assert_eq!(found, Found::Impossible(Some(sector)), "seed {seed}");
        // Sectors outside the set may be written freely.
        let (other, len) = (changed.last().unwrap() + 512, Base::len_bytes(&file).unwrap());
        file.0.set_len(len.max(other + 1)).unwrap();
        let found = set.check(patch, &file).unwrap();
        let expected = patch.can_have_len(len.max(other + 1)).then_some(sector);
        assert_eq!(found, Found::Impossible(expected), "seed {seed}");
    }
}

#[test]
fn damage_is_noticed_before_a_byte_is_written() {
    let mut random = SplitMix64::new(5);
    let (old, deltas, _) = loop {
        let set = random_set(&mut random);
        if set.1.values().map(Vec::len).sum::<usize>() > 500 {
            break set;
        }
    };
    for name in [HEAD, DELTAS, SUMS] {
        let len = {
            let world = World::with(1, &old);
            world.gather(7, &deltas).unwrap();
            let file = world.patches().unwrap().dir.open(name, OpenMode::Existing).unwrap();
            file.len().unwrap()
        };
        for at in (0..len).step_by(if name == HEAD { 1 } else { 7 }) {
            let world = World::with(1, &old);
            drop(world.gather(7, &deltas).unwrap());
            let patches = world.patches().unwrap();
            let file = patches.dir.open(name, OpenMode::Existing).unwrap();
            let mut byte = [0];
            file.read_exact_at(at, &mut byte).unwrap();
            file.write_all_at(at, &[byte[0] ^ (1 << random.below(8))]).unwrap();
            let result = patches.pending().and_then(|set| {
                let set = set.unwrap();
                for patch in set.patches() {
                    set.check(patch, &world.file(patch.node).unwrap())?;
                }
                for patch in set.patches() {
                    set.apply(patch, &mut world.file(patch.node).unwrap())?;
                }
                Ok(())
            });
            assert!(
                matches!(result, Err(PatchError::Damaged(_))),
                "{name} at {at}: {result:?}"
            );
            if name != DELTAS {
                world.assert_holds(&old, name);
            }
            assert!(matches!(patches.begin(8), Err(PatchError::Pending)));
        }
        let world = World::with(1, &old);
        drop(world.gather(7, &deltas).unwrap());
        let patches = world.patches().unwrap();
        let file = patches.dir.open(name, OpenMode::Existing).unwrap();
        file.set_len(len - 1).unwrap();
        if name == HEAD {
            assert!(matches!(patches.pending(), Err(PatchError::Damaged(_))));
        }
    }
}

#[test]
fn deltas_of_another_file_or_with_copies_are_refused() {
    let old = Files::from([(1, vec![1; 1000])]);
    let world = World::with(1, &old);
    let delta = |base_len, copies| {
        let options = WriterOptions {
            copies,
            compress: false,
        };
        let mut writer = DeltaWriter::new(Vec::new(), base_len, 1000, options).unwrap();
        let range = |at| ByteRange::from_offset_len(at, 10).unwrap();
        writer.literal(range(0), &[2; 10][..]).unwrap();
        if copies {
            writer.copy(range(100), 500).unwrap();
        }
        writer.finish().unwrap().0
    };
    let add = |stream: &[u8]| {
        let mut gathering = world.patches().unwrap().begin(1).unwrap();
        gathering.add(1, &world.file(1).unwrap(), &mut &stream[..])
    };
    assert!(matches!(
        add(&delta(999, false)),
        Err(PatchError::Unfit { node: 1, .. })
    ));
    assert!(matches!(
        add(&delta(1000, true)),
        Err(PatchError::Unfit { node: 1, .. })
    ));
    let whole = delta(1000, false);
    for end in 0..whole.len() {
        let result = add(&whole[..end]);
        assert!(
            matches!(result, Err(PatchError::Delta { node: 1, .. })),
            "{end}: {result:?}"
        );
    }
    assert!(add(&whole).is_ok());
    assert!(world.patches().unwrap().pending().unwrap().is_none());
}

#[test]
fn a_full_disk_leaves_everything_as_it_was() {
    let mut random = SplitMix64::new(9);
    let (old, deltas, new) = random_set(&mut random);
    let world = World::with(1, &old);
    let before = world.disk.counters();
    world.gather(7, &deltas).unwrap();
    let ops = world.disk.counters().ops - before.ops;
    for nth in 1..=ops {
        let world = World::with(1, &old);
        world.disk.fail_op(world.disk.counters().ops + nth, 28);
        let gathered = world.gather(7, &deltas);
        world.assert_holds(&old, "full");
        if gathered.is_err() && world.patches().unwrap().pending().unwrap().is_none() {
            world.gather(7, &deltas).unwrap();
        }
        world.repair(7).unwrap();
        world.assert_holds(&new, "later");
    }
}

#[test]
fn golden_bytes_of_version_1() {
    let head = Head {
        label: 0x0102,
        patches: vec![PatchInfo {
            node: 3,
            base_len_bytes: 4,
            new_len_bytes: 5,
            stream_at: 6,
            stream_end: 7,
            stream_crc: 0x0a0b_0c0d,
            sums_from: 8,
            sums_to: 9,
            sums_crc: 0x0e0f_1011,
            uncut_crc: 0x1213_1415,
            cut_crc: 0x1617_1819,
        }],
    };
    let mut expected = b"BBPATCH\x01\x02\x01\0\0\0\0\0\0\x01\0\0\0".to_vec();
    for number in 3..=9u64 {
        expected.extend(number.to_le_bytes());
    }
    expected.extend(b"\x0d\x0c\x0b\x0a\x11\x10\x0f\x0e\x15\x14\x13\x12\x19\x18\x17\x16");
    expected.extend(crc32c::crc32c(&expected).to_le_bytes());
    assert_eq!(head.to_bytes(), expected);
    assert_eq!(Head::from_bytes(&expected), Some(head));
}

#[test]
fn patches_do_not_touch_a_file_of_a_foreign_length() {
    for (base_len, new_len, others) in [
        (1000, 2000, [999, 2001]),
        (2000, 1000, [1500, 2001]),
        (1000, 1000, [999, 1001]),
    ] {
        let disk = SimDisk::new(1);
        let dir: Arc<dyn DurableDir> = Arc::new(disk.clone());
        let mut file = Simulated(disk.open("file", OpenMode::CreateIfMissing).unwrap());
        file.write_range(0, &vec![1; base_len]).unwrap();
        let mut writer =
            DeltaWriter::new(Vec::new(), base_len as u64, new_len as u64, WriterOptions::default()).unwrap();
        writer.literal_bytes(0, &vec![2; new_len]).unwrap();
        let (delta, _) = writer.finish().unwrap();
        let mut gathering = Patches::new(dir).begin(1).unwrap();
        gathering.add(7, &file, &mut delta.as_slice()).unwrap();
        let committed = gathering.commit().unwrap();
        let patch = committed.patches()[0];
        for other in others {
            file.set_len_bytes(other).unwrap();
            let before = held(&file);
            assert_eq!(
                committed.check(&patch, &file).unwrap(),
                Found::Impossible(None),
                "{other}"
            );
            assert!(committed.apply(&patch, &mut file).is_err(), "{other}");
            assert_eq!(held(&file), before, "{other}");
        }
    }
}
