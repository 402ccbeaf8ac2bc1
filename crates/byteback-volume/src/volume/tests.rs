//! A volume against a tree in memory: random operations, crashes, a device that is full.

mod crash;
mod damage;
mod model;
mod room;
mod scale;

use super::*;
use crate::create::{CreateOptions, create};
use crate::format::VolumeId;
use byteback_host::block::{CountedDevice, SimBlockDevice};
use byteback_host::clock::SimClock;
use byteback_host::random::SplitMix64;
use model::{Model, Step};

const BLOCKS: u64 = 2_600;

fn clock() -> Arc<SimClock> {
    Arc::new(SimClock::new(1_700_000_000_000_000_000))
}

fn made(blocks: u64, seed: u64) -> SimBlockDevice {
    let device = SimBlockDevice::new(blocks);
    let options = CreateOptions {
        clock: clock(),
        is_compressed: is_compressed(seed),
        ..CreateOptions::new(VolumeId([9; 16]), seed)
    };
    create(&(Arc::new(device.clone()) as Arc<dyn BlockDevice>), &options).unwrap();
    device
}

/// In the order of seeds from 1 on.
const MODES: [DeltaMode; 4] = [DeltaMode::Off, DeltaMode::Both, DeltaMode::Main, DeltaMode::Inode];

fn mode_of(seed: u64) -> DeltaMode {
    MODES[(seed % 4) as usize]
}

/// Whether the volume of a seed compresses pages; what is written to it can be, then.
fn is_compressed(seed: u64) -> bool {
    seed % 3 == 2
}

fn options() -> OpenOptions {
    options_in(DeltaMode::Both)
}

fn options_in(delta_mode: DeltaMode) -> OpenOptions {
    OpenOptions {
        delta_mode,
        // Comparing everything reads everything.
        hotness_window_operations: 40,
        // So little that few deltas are enough for leaves; each mode finds what the other one left.
        delta_index_len_bytes_max: if delta_mode == DeltaMode::Main { 256 } else { 700 },
        packed_min: if delta_mode == DeltaMode::Main { 3 } else { 5 },
        // Short files, too.
        moved_slots_min: 40,
        // So little that pages are read again.
        cache_len_bytes: 100 * BLOCK_LEN_BYTES,
        clock: clock(),
        ..OpenOptions::default()
    }
}

fn open(device: &SimBlockDevice) -> Volume {
    open_in(device, DeltaMode::Both)
}

fn open_in(device: &SimBlockDevice, mode: DeltaMode) -> Volume {
    Volume::open(Arc::new(device.clone()), &options_in(mode)).unwrap()
}

/// Asserts that a check of the device finds no problem.
fn assert_sound(device: &SimBlockDevice, note: &str) {
    let report = crate::check::check(device, crate::check::CheckOptions::default()).unwrap();
    let problems: Vec<_> = report.problems.iter().take(20).map(ToString::to_string).collect();
    assert!(report.is_sound(), "{note}: {problems:#?}");
}

fn first_seed() -> u64 {
    std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap())
}

/// So many, or as many as `BYTEBACK_SEEDS` says, from `BYTEBACK_SEED` on.
fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let first = first_seed();
    let count = std::env::var("BYTEBACK_SEEDS").map_or(count, |count| count.parse().unwrap());
    (first..first + count).inspect(|seed| println!("BYTEBACK_SEED={seed}"))
}

#[test]
fn an_empty_volume_is_empty_and_stays() {
    let device = made(BLOCKS, 1);
    let volume = open(&device);
    let root = volume.attributes(volume.root()).unwrap();
    assert_eq!((root.mode, root.links, root.ino), (0o040_755, 2, 1));
    assert_eq!(volume.list(1, 0, 10).unwrap(), []);
    let free = volume.usage().free_blocks;
    volume.close().unwrap();
    assert_sound(&device, "empty");
    let again = open(&device);
    assert_eq!((again.usage().free_blocks, again.attributes(1).unwrap()), (free, root));
}

#[test]
fn random_operations_are_those_of_a_tree_in_memory() {
    for seed in seeds(8) {
        let device = made(BLOCKS, seed);
        let mut volume = open_in(&device, mode_of(seed));
        let mut model = Model::new();
        let mut random = SplitMix64::new(seed);
        for number in 0..1_500 {
            let step = Step::draw(&mut random, &model).compressible(is_compressed(seed));
            model.perform(&volume, &step, &format!("seed {seed}, step {number}: {step:?}"));
            match random.below(300) {
                0 => {
                    model.release_all_holds(&volume).unwrap();
                    volume.close().unwrap();
                    assert_sound(&device, &format!("seed {seed}, step {number}: closed"));
                    // Pages kept in one mode are read and overwritten in any other.
                    volume = open_in(&device, mode_of(random.below(4)));
                    model.compare(&volume, &format!("seed {seed}, step {number}: reopened"));
                }
                1 | 2 => model.compare(&volume, &format!("seed {seed}, step {number}")),
                3 => {
                    volume.tidy().unwrap();
                    model.compare(&volume, &format!("seed {seed}, step {number}: tidied"));
                }
                _ => {}
            }
        }
        model.compare(&volume, &format!("seed {seed}, at the end"));
        let counts = volume.delta_counts();
        println!("seed {seed}: {counts:?}");
        model.remove_all(&volume);
        let free = volume.usage().free_blocks;
        volume.sync().unwrap();
        assert_sound(&device, &format!("seed {seed}, all removed"));
        let untouched = open(&made(BLOCKS, seed)).usage().free_blocks;
        // The root directory may have grown out of its inode.
        assert!(untouched - free < 200, "seed {seed}: {free} of {untouched}");
    }
}

/// The way databases use their files, in each mode: many small changes, so that deltas are packed,
/// replaced, moved by cleaning and restored.
#[test]
fn records_are_those_of_a_tree_in_memory_in_each_mode() {
    for seed in seeds(4) {
        let mode = mode_of(seed);
        let device = made(BLOCKS, seed);
        let mut volume = open_in(&device, mode);
        let mut model = Model::new();
        let mut random = SplitMix64::new(seed);
        let mut counts = DeltaCounts::default();
        let mut count = |volume: &Volume| {
            let stats = volume.stats();
            counts.packed += stats.deltas.packed;
            counts.index_leaves += stats.deltas.index_leaves;
            counts.unpacked += stats.deltas.unpacked;
            counts.kept += stats.deltas.kept;
            counts.restored += stats.deltas.restored;
            counts.moved_to_main += stats.deltas.moved_to_main;
            counts
        };
        for number in 0..3_000 {
            let step = match random.below(12) {
                0 => Step::draw(&mut random, &model),
                _ => Step::record(&mut random, &model),
            };
            let step = step.compressible(is_compressed(seed));
            let note = format!("seed {seed}, {mode:?}, step {number}");
            model.perform(&volume, &step, &format!("{note}: {step:?}"));
            match random.below(400) {
                0 => {
                    count(&volume);
                    model.release_all_holds(&volume).unwrap();
                    volume.close().unwrap();
                    assert_sound(&device, &format!("{note}: closed"));
                    volume = open_in(&device, mode);
                    model.compare(&volume, &format!("{note}: reopened"));
                }
                1 => model.compare(&volume, &note),
                2..=5 => {
                    volume.tidy().unwrap();
                    if random.coin() {
                        model.compare(&volume, &format!("{note}: tidied"));
                    }
                }
                6 | 7 => {
                    volume.sync().unwrap();
                    assert_sound(&device, &format!("{note}: synced"));
                }
                _ => {}
            }
        }
        model.compare(&volume, &format!("seed {seed}, at the end"));
        let counts = count(&volume);
        println!("seed {seed}, {mode:?}: {counts:?}");
        assert_eq!(
            counts.packed > 100,
            mode.uses_main(),
            "seed {seed}, {mode:?}: {counts:?}"
        );
        assert_eq!(
            counts.index_leaves > 20,
            mode.uses_main(),
            "seed {seed}, {mode:?}: {counts:?}"
        );
        assert_eq!(
            counts.kept > 100,
            mode != DeltaMode::Off,
            "seed {seed}, {mode:?}: {counts:?}"
        );
        model.remove_all(&volume);
        let free = volume.usage().free_blocks;
        volume.close().unwrap();
        assert_sound(&device, &format!("seed {seed}, all removed"));
        let untouched = open(&made(BLOCKS, seed)).usage().free_blocks;
        assert!(untouched - free < 200, "seed {seed}: {free} of {untouched}");
    }
}

#[test]
fn a_full_volume_says_so_and_loses_nothing() {
    for seed in seeds(2) {
        let device = made(BLOCKS, seed);
        // Both, and the main area alone.
        let volume = open_in(&device, mode_of(seed));
        let mut model = Model::new();
        let mut random = SplitMix64::new(seed);
        let mut full = 0;
        for number in 0..20_000 {
            // With some seeds, overwriting and removing delays the moment when the volume is full.
            if number >= 2_500 && full > 20 {
                break;
            }
            let step = if random.below(3) > 0 {
                Step::fill(&mut random, &model)
            } else if random.coin() {
                Step::record(&mut random, &model)
            } else {
                Step::draw(&mut random, &model)
            };
            let step = step.compressible(is_compressed(seed));
            let note = format!("seed {seed}, step {number}: {step:?}");
            full += u32::from(model.perform(&volume, &step, &note));
        }
        model.compare(&volume, &format!("seed {seed}"));
        model.release_all_holds(&volume).unwrap();
        volume.close().unwrap();
        assert_sound(&device, &format!("seed {seed}, full and closed"));
        model.compare(&open(&device), &format!("seed {seed}, reopened"));
        assert!(full > 20, "seed {seed}: {full}");
    }
}

/// A write into a hole that found no room left something behind, as if there was a page; so zeroing
/// a range that ends there found no room in the middle of its work.
#[test]
fn a_range_is_zeroed_on_a_full_volume_as_holes_need_no_room() {
    let device = made(BLOCKS, 1);
    let volume = open_in(&device, DeltaMode::Off);
    let new = NewFile {
        mode: 0o100_644,
        ..NewFile::default()
    };
    let ino = volume.make(1, b"file", &new).unwrap().ino;
    volume.write(ino, 0, &[7; 4096]).unwrap();
    let other = volume.make(1, b"other", &new).unwrap().ino;
    let mut len_bytes = 0;
    while let Ok(count) = volume.write(other, len_bytes, &[1; 4096]) {
        len_bytes += count as u64;
    }
    assert!(volume.write(ino, 2 * 4096, &[8; 10]).is_err(), "there is room");
    volume.allocate(ino, Allocate::Punch, 100, 2 * 4096).unwrap();
    let mut content = [9; 4096];
    assert_eq!(volume.read(ino, 0, &mut content).unwrap(), 4096);
    assert!(content[..100] == [7; 100] && content[100..] == [0; 3_996]);
}

/// The last bytes of a directory's page are its seal; those of a symlink's are its own.
#[test]
fn the_longest_symlink_keeps_its_end() {
    let device = made(BLOCKS, 1);
    let volume = open(&device);
    let target: Vec<u8> = (0..4_095).map(|at| b'a' + (at % 26) as u8).collect();
    let link = volume
        .make_symlink(1, b"link", &target, &NewFile::default())
        .unwrap_err();
    assert!(matches!(link, VolumeError::Invalid(_)), "what it is must be said");
    let new = NewFile {
        mode: 0o120_777,
        ..NewFile::default()
    };
    let ino = volume.make_symlink(1, b"link", &target, &new).unwrap().ino;
    volume.close().unwrap();
    assert_eq!(open(&device).read_symlink(ino).unwrap(), target);
}

fn file(volume: &Volume, name: &[u8]) -> u32 {
    let new = NewFile {
        mode: 0o100_644,
        ..NewFile::default()
    };
    volume.make(1, name, &new).unwrap().ino
}

/// Any write wears the device: an unused volume writes nothing, however often it is synced and
/// tidied.
#[test]
fn a_volume_that_nobody_uses_is_not_written_to() {
    let counted = Arc::new(CountedDevice::new(made(20_000, 1)));
    let volume = Volume::open(Arc::clone(&counted) as Arc<dyn BlockDevice>, &options()).unwrap();
    let mut random = SplitMix64::new(1);
    // Segments in which little is in use: removed files, and pages that were written over.
    for round in 0..40_u64 {
        let ino = file(&volume, format!("file{round}").as_bytes());
        volume.write(ino, 0, &random.bytes(100_000)).unwrap();
        volume.sync().unwrap();
        if round % 3 > 0 {
            volume.unlink(1, format!("file{round}").as_bytes()).unwrap();
        }
    }
    let written = || counted.counters().written_bytes;
    let idle = || {
        volume.sync().unwrap();
        volume.tidy().unwrap()
    };
    // There is room enough to write to.
    assert!(!idle());
    let before = written();
    for _ in 0..20 {
        assert!(!idle());
        assert!(volume.attributes(1).is_ok() && !volume.list(1, 0, 100).unwrap().is_empty());
    }
    assert_eq!(written(), before);
    // Changes are written, of course: a name, an attribute, the last close of a file without a
    // name.
    let ino = file(&volume, b"one more");
    volume.sync().unwrap();
    let made = written();
    assert!(made > before);
    volume.hold(ino);
    volume.unlink(1, b"one more").unwrap();
    volume.sync().unwrap();
    let unlinked = written();
    volume.release_hold(ino, 1).unwrap();
    volume.sync().unwrap();
    assert!(unlinked > made && written() > unlinked);
}

/// Room that is scattered over segments in use is gathered in idle time, as far as is worth it, and
/// then it is left alone.
#[test]
fn scattered_room_is_gathered_in_idle_time_and_then_left_alone() {
    let device = made(20_000, 1);
    let volume = open(&device);
    let mut random = SplitMix64::new(1);
    let mut contents = Vec::new();
    while volume.usage().free_blocks > 2_000 {
        let name = format!("file{}", contents.len());
        let ino = file(&volume, name.as_bytes());
        let content = random.bytes(30_000);
        volume.write(ino, 0, &content).unwrap();
        contents.push((name, ino, content));
    }
    volume.sync().unwrap();
    contents.retain(|(name, ..)| random.below(3) == 0 || volume.unlink(1, name.as_bytes()).is_err());
    volume.sync().unwrap();
    let free = || {
        volume
            .with_state(|state| Ok(state.space.segments.free_segments()))
            .unwrap()
    };
    let before = free();
    let mut rounds = 0;
    while volume.tidy().unwrap() {
        volume.sync().unwrap();
        rounds += 1;
        assert!(rounds < 1_000, "it does not end");
    }
    println!("{rounds} rounds; {before} segments were free, now {}", free());
    assert!(rounds > 5 && free() > before + rounds / 2);
    for (_, ino, content) in &contents {
        let mut read = vec![0; content.len()];
        assert_eq!(volume.read(*ino, 0, &mut read).unwrap(), content.len());
        assert!(read == *content);
    }
    volume.close().unwrap();
    assert_sound(&device, "tidied");
}
