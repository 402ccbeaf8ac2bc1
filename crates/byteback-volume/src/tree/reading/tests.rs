use std::io;
use std::sync::Arc;

use byteback_host::block::{BlockDevice, CountedDevice, SimBlockDevice};
use byteback_host::random::SplitMix64;
use parking_lot::Mutex;

use super::*;
use crate::create::{CreateOptions, create};
use crate::error::VolumeError;
use crate::format::VolumeId;
use crate::small::deltas::DeltaMode;
use crate::tree::file::Allocate;
use crate::tree::names::NewFile;
use crate::volume::{OpenOptions, Volume};

const LEN: usize = BLOCK_LEN_BYTES;

type Hook = Box<dyn FnOnce() + Send>;

/// A device that lets something happen before a long read.
#[derive(Clone)]
struct Interrupted {
    inner: SimBlockDevice,
    before_long_read: Arc<Mutex<Option<Hook>>>,
}

impl std::fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl BlockDevice for Interrupted {
    fn len_blocks(&self) -> u64 {
        self.inner.len_blocks()
    }

    fn read_blocks(&self, first: u64, blocks: &mut [u8]) -> io::Result<()> {
        let is_long = blocks.len() as u64 >= DIRECT_PAGES_MIN * PAGE;
        let hook = self.before_long_read.lock().take_if(|_| is_long);
        if let Some(hook) = hook {
            hook();
        }
        self.inner.read_blocks(first, blocks)
    }

    fn write_blocks(&self, first: u64, blocks: &[u8]) -> io::Result<()> {
        self.inner.write_blocks(first, blocks)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        self.inner.discard(first, count)
    }
}

fn options(delta_mode: DeltaMode) -> OpenOptions {
    OpenOptions {
        delta_mode,
        cache_len_bytes: 100 * LEN,
        hotness_window_operations: 40,
        ..OpenOptions::default()
    }
}

fn file(volume: &Volume, name: &[u8]) -> u32 {
    let new = NewFile {
        mode: 0o100_644,
        ..NewFile::default()
    };
    volume.make(volume.root(), name, &new).unwrap().ino
}

fn made(device: &Arc<dyn BlockDevice>) -> Volume {
    made_in(device, false)
}

fn made_in(device: &Arc<dyn BlockDevice>, is_compressed: bool) -> Volume {
    let made = CreateOptions {
        is_compressed,
        ..CreateOptions::new(VolumeId([7; 16]), 1)
    };
    create(device, &made).unwrap();
    Volume::open(Arc::clone(device), &options(DeltaMode::Both)).unwrap()
}

fn whole(volume: &Volume, ino: u32, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    let count = volume.read(ino, 0, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Bytes that compress to about a quarter.
fn text(random: &mut SplitMix64, len: usize) -> Vec<u8> {
    let mut bytes = random.bytes(len);
    bytes.iter_mut().for_each(|byte| *byte &= 3);
    bytes
}

/// Holes, room that was set aside, pages that were not written yet, deltas of all sorts, nodes of
/// all sorts, pages in clusters and in the inode: wherever a long read begins and ends.
#[test]
fn long_reads_are_what_was_written() {
    let seed: u64 = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let seeds: u64 = std::env::var("BYTEBACK_SEEDS").map_or(4, |count| count.parse().unwrap());
    for (seed, is_compressed) in (seed..seed + seeds).flat_map(|seed| [(seed, false), (seed, true)]) {
        println!("BYTEBACK_SEED={seed}, compressed: {is_compressed}");
        let mut random = SplitMix64::new(seed);
        let device: Arc<dyn BlockDevice> = Arc::new(SimBlockDevice::new(6_000));
        let mut volume = made_in(&device, is_compressed);
        let mut compressed = 0;
        let ino = file(&volume, b"file");
        // Behind the inode's addresses there is a node, and behind that the next one.
        let mut model: Vec<u8> = Vec::new();
        for step in 0..400 {
            let at = match random.below(3) {
                0 => random.below(2_000 * PAGE),
                1 => random.below(60) * PAGE,
                _ => random.below(model.len() as u64 + 1),
            };
            let start = at as usize;
            match random.below(12) {
                0..=2 => {
                    let len = [10, 300, 9_000, 200_000][random.below(4) as usize];
                    let bytes = match is_compressed && random.below(4) > 0 {
                        true => text(&mut random, len),
                        false => random.bytes(len),
                    };
                    let end = start + bytes.len();
                    model.resize(model.len().max(end), 0);
                    model[start..end].copy_from_slice(&bytes);
                    assert_eq!(volume.write(ino, at, &bytes).unwrap(), bytes.len());
                }
                // So that there are deltas, also some that are packed.
                3 | 4 if model.len() > 60 * LEN => {
                    for _ in 0..12 {
                        let at = random.below(60 * PAGE - 10) as usize;
                        let bytes = random.bytes(9);
                        model[at..at + 9].copy_from_slice(&bytes);
                        assert_eq!(volume.write(ino, at as u64, &bytes).unwrap(), 9);
                    }
                }
                5 => {
                    let len = 1 + random.below(100_000);
                    volume.allocate(ino, Allocate::Room, at, len).unwrap();
                    model.resize(model.len().max(start + len as usize), 0);
                }
                6 => {
                    let len = 1 + random.below(100_000);
                    volume.allocate(ino, Allocate::Punch, at, len).unwrap();
                    let end = model.len();
                    model[start.min(end)..(start + len as usize).min(end)].fill(0);
                }
                7 => volume.sync_file(ino).unwrap(),
                8 => volume.sync().unwrap(),
                9 if random.below(4) == 0 => {
                    compressed += volume.delta_counts().compressed_pages;
                    volume.close().unwrap();
                    let mode = [DeltaMode::Both, DeltaMode::Main][random.below(2) as usize];
                    volume = Volume::open(Arc::clone(&device), &options(mode)).unwrap();
                }
                _ => {
                    let at = at & if random.coin() { !(PAGE - 1) } else { !0 };
                    let mut bytes = vec![0xee; random.below(200 * PAGE) as usize];
                    let count = volume.read(ino, at, &mut bytes).unwrap();
                    let end = model.len().min(at as usize + bytes.len());
                    let expected = model.get(at as usize..end).unwrap_or_default();
                    assert!(bytes[..count] == *expected, "seed {seed}, step {step}: {count} at {at}");
                }
            }
        }
        assert!(whole(&volume, ino, model.len() + 10).unwrap() == model, "seed {seed}");
        compressed += volume.delta_counts().compressed_pages;
        assert_eq!(compressed > 0, is_compressed, "{compressed}");
    }
}

/// Once, and straight into the buffer: what was read is not in memory afterwards.
#[test]
fn a_long_read_asks_the_device_for_as_much_as_is_wanted() {
    let counted = Arc::new(CountedDevice::new(SimBlockDevice::new(6_000)));
    let device: Arc<dyn BlockDevice> = Arc::clone(&counted) as Arc<dyn BlockDevice>;
    let volume = made(&device);
    let ino = file(&volume, b"file");
    let content = SplitMix64::new(1).bytes(64 * LEN);
    volume.write(ino, 0, &content).unwrap();
    volume.close().unwrap();
    let volume = Volume::open(device, &options(DeltaMode::Both)).unwrap();
    // The nodes and summaries.
    assert!(whole(&volume, ino, content.len()).unwrap() == content);
    for _ in 0..2 {
        let before = counted.counters().read_bytes;
        assert!(whole(&volume, ino, content.len()).unwrap() == content);
        assert_eq!(counted.counters().read_bytes - before, content.len() as u64);
    }
}

/// Pages in clusters are found as such: each cluster is read once, and what is no cluster is read
/// as always.
#[test]
fn a_long_read_reads_each_cluster_once() {
    let counted = Arc::new(CountedDevice::new(SimBlockDevice::new(6_000)));
    let device: Arc<dyn BlockDevice> = Arc::clone(&counted) as Arc<dyn BlockDevice>;
    let volume = made_in(&device, true);
    let ino = file(&volume, b"file");
    let mut random = SplitMix64::new(1);
    let mut content = text(&mut random, 64 * LEN);
    content.extend(random.bytes(64 * LEN));
    volume.write(ino, 0, &content).unwrap();
    volume.sync().unwrap();
    let counts = volume.delta_counts();
    let (clusters, compressed) = (counts.clusters, counts.compressed_pages);
    assert!(compressed >= 62 && clusters <= compressed / 2, "{counts:?}");
    volume.close().unwrap();
    let volume = Volume::open(device, &options(DeltaMode::Both)).unwrap();
    // A page that is no cluster; its inode and summaries.
    volume.read(ino, 100 * PAGE, &mut [0; 1]).unwrap();
    let before = counted.counters().read_bytes;
    assert!(whole(&volume, ino, content.len()).unwrap() == content);
    let read = (counted.counters().read_bytes - before) / PAGE;
    assert_eq!(read, clusters + 128 - compressed - 1);
}

/// Between finding blocks and reading them, the file is written anew, its blocks are freed and
/// become another file's.
#[test]
fn what_is_freed_and_used_again_meanwhile_is_not_what_is_read() {
    let inner = SimBlockDevice::new(2_600);
    let before_long_read: Arc<Mutex<Option<Hook>>> = Arc::default();
    let device: Arc<dyn BlockDevice> = Arc::new(Interrupted {
        inner: inner.clone(),
        before_long_read: Arc::clone(&before_long_read),
    });
    // With nothing of it in memory.
    let opened = || Arc::new(Volume::open(Arc::clone(&device), &options(DeltaMode::Off)).unwrap());
    let volume = made(&device);
    let ino = file(&volume, b"file");
    let old = SplitMix64::new(1).bytes(32 * LEN);
    let new = SplitMix64::new(2).bytes(32 * LEN);
    volume.write(ino, 0, &old).unwrap();
    volume.close().unwrap();
    // Without a checkpoint what is found stays as it was: the read is as if it had come before the
    // write.
    let volume = opened();
    let (other, written) = (Arc::clone(&volume), new.clone());
    *before_long_read.lock() = Some(Box::new(move || {
        other.write(ino, 0, &written).unwrap();
        other.sync_file(ino).unwrap();
    }));
    assert!(whole(&volume, ino, old.len()).unwrap() == old);
    assert!(before_long_read.lock().is_none(), "nothing was read from the device");
    assert!(whole(&volume, ino, old.len()).unwrap() == new);
    volume.sync().unwrap();
    drop(volume);
    // With checkpoints all of the device is written again, of which nothing may be seen; what is
    // there then is.
    let volume = opened();
    let (other, written) = (Arc::clone(&volume), old.clone());
    *before_long_read.lock() = Some(Box::new(move || {
        other.write(ino, 0, &written).unwrap();
        let noise = file(&other, b"noise");
        for round in 0..40 {
            let bytes = SplitMix64::new(100 + round).bytes(200 * LEN);
            other.write(noise, 0, &bytes).unwrap();
            other.sync().unwrap();
        }
    }));
    assert!(whole(&volume, ino, old.len()).unwrap() == old);
    assert!(before_long_read.lock().is_none(), "nothing was read from the device");
    drop(volume);
    // A file removed meanwhile is not found.
    let volume = opened();
    let other = Arc::clone(&volume);
    *before_long_read.lock() = Some(Box::new(move || {
        other.unlink(other.root(), b"file").unwrap();
        other.sync().unwrap();
    }));
    let gone = whole(&volume, ino, old.len());
    assert!(
        matches!(gone, Err(VolumeError::NotFound | VolumeError::Missing { .. })),
        "{gone:?}"
    );
}

/// A checksum that fits is no proof: what was found counts as long as there was no checkpoint.
#[test]
fn what_was_found_before_a_checkpoint_is_found_anew() {
    let device: Arc<dyn BlockDevice> = Arc::new(SimBlockDevice::new(2_600));
    let volume = made(&device);
    let ino = file(&volume, b"file");
    volume.write(ino, 0, &[1; 32 * LEN]).unwrap();
    volume.close().unwrap();
    let volume = Volume::open(Arc::clone(&device), &options(DeltaMode::Both)).unwrap();
    let mut buffer = vec![0; 32 * LEN];
    let (_, direct) = volume
        .with_state(|state| state.begin_read(Nid(ino), 0, &mut buffer))
        .unwrap();
    assert!(!direct.is_empty());
    assert!(volume.with_state(|state| Ok(direct.is_current(state))).unwrap());
    volume.sync().unwrap();
    assert!(!volume.with_state(|state| Ok(direct.is_current(state))).unwrap());
}

#[test]
fn a_page_that_rots_is_noticed_wherever_it_lies_in_a_long_read() {
    let sim = SimBlockDevice::new(2_600);
    let device: Arc<dyn BlockDevice> = Arc::new(sim.clone());
    let volume = made(&device);
    let ino = file(&volume, b"file");
    let content = SplitMix64::new(1).bytes(24 * LEN);
    volume.write(ino, 0, &content).unwrap();
    volume.sync().unwrap();
    drop(volume);
    for page in 0..24 {
        let volume = Volume::open(Arc::clone(&device), &options(DeltaMode::Both)).unwrap();
        assert!(whole(&volume, ino, content.len()).unwrap() == content);
        let address = volume.with_state(|state| state.address_of(Nid(ino), page)).unwrap();
        let mut block = [0; LEN];
        device.read_blocks(address.0.into(), &mut block).unwrap();
        let bit = 1 << (page % 8);
        block[page as usize * 170] ^= bit;
        device.write_blocks(address.0.into(), &block).unwrap();
        for _ in 0..2 {
            match whole(&volume, ino, content.len()) {
                Err(VolumeError::Damaged { address: reported, .. }) => assert_eq!(reported, address),
                answer => panic!("page {page}: {answer:?}"),
            }
        }
        block[page as usize * 170] ^= bit;
        device.write_blocks(address.0.into(), &block).unwrap();
    }
}
