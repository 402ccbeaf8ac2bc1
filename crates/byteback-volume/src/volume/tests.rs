//! A volume against a tree in memory: random operations, crashes, a device that is full.

mod crash;

mod model;
mod scale;

use super::*;
use crate::create::{CreateOptions, create};
use crate::format::VolumeId;
use byteback_host::block::SimBlockDevice;
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
        ..CreateOptions::new(VolumeId([9; 16]), seed)
    };
    create(&(Arc::new(device.clone()) as Arc<dyn BlockDevice>), &options).unwrap();
    device
}

fn options() -> OpenOptions {
    OpenOptions {
        // So little that pages are read again.
        cache_len_bytes: 100 * BLOCK_LEN_BYTES,
        clock: clock(),
        ..OpenOptions::default()
    }
}

fn open(device: &SimBlockDevice) -> Volume {
    Volume::open(Arc::new(device.clone()), &options()).unwrap()
}

/// What lies on a device fits together.
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
        let mut volume = open(&device);
        let mut model = Model::new();
        let mut random = SplitMix64::new(seed);
        for number in 0..1_500 {
            let step = Step::draw(&mut random, &model);
            model.perform(&volume, &step, &format!("seed {seed}, step {number}: {step:?}"));
            match random.below(300) {
                0 => {
                    model.let_all_go(&volume).unwrap();
                    volume.close().unwrap();
                    assert_sound(&device, &format!("seed {seed}, step {number}: closed"));
                    volume = open(&device);
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

#[test]
fn a_full_volume_says_so_and_loses_nothing() {
    for seed in seeds(2) {
        let device = made(BLOCKS, seed);
        let volume = open(&device);
        let mut model = Model::new();
        let mut random = SplitMix64::new(seed);
        let mut full = 0;
        for number in 0..2_500 {
            let step = if random.below(3) > 0 {
                Step::fill(&mut random, &model)
            } else {
                Step::draw(&mut random, &model)
            };
            let note = format!("seed {seed}, step {number}: {step:?}");
            full += u32::from(model.perform(&volume, &step, &note));
        }
        model.compare(&volume, &format!("seed {seed}"));
        model.let_all_go(&volume).unwrap();
        volume.close().unwrap();
        assert_sound(&device, &format!("seed {seed}, full and closed"));
        model.compare(&open(&device), &format!("seed {seed}, reopened"));
        assert!(full > 20, "seed {seed}: {full}");
    }
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
