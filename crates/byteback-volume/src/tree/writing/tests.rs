use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use byteback_host::block::{BlockDevice, CountedDevice, QueuedDevice, SimBlockDevice};
use byteback_host::random::SplitMix64;

use super::*;
use crate::create::{CreateOptions, create};
use crate::format::VolumeId;
use crate::tree::names::NewFile;
use crate::volume::{OpenOptions, Volume};

const LEN: usize = BLOCK_LEN_BYTES;

fn made(blocks: u64) -> (Arc<CountedDevice<SimBlockDevice>>, Volume) {
    let counted = Arc::new(CountedDevice::new(SimBlockDevice::new(blocks)));
    let device: Arc<dyn BlockDevice> = Arc::clone(&counted) as Arc<dyn BlockDevice>;
    create(&device, &CreateOptions::new(VolumeId([7; 16]), 1)).unwrap();
    let volume = open(&counted);
    (counted, volume)
}

fn open(counted: &Arc<CountedDevice<SimBlockDevice>>) -> Volume {
    let options = OpenOptions {
        cache_len_bytes: 64 * LEN,
        ..OpenOptions::default()
    };
    Volume::open(Arc::clone(counted) as Arc<dyn BlockDevice>, &options).unwrap()
}

fn file(volume: &Volume, name: &[u8]) -> u32 {
    let new = NewFile {
        mode: 0o100_644,
        ..NewFile::default()
    };
    volume.make(volume.root(), name, &new).unwrap().ino
}

fn whole(volume: &Volume, ino: u32) -> Vec<u8> {
    let len = volume.attributes(ino).unwrap().len_bytes;
    let mut bytes = vec![0; len as usize];
    volume.read(ino, 0, &mut bytes).unwrap();
    bytes
}

fn is_sound(counted: &CountedDevice<SimBlockDevice>) {
    let report = crate::check::check(counted, crate::check::CheckOptions::default()).unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
}

/// As many bytes as there is room for, and no room is lost: also where a hole is filled beside
/// pages that have some.
#[test]
fn a_long_write_to_a_full_volume_writes_what_has_room() {
    let (counted, volume) = made(2_600);
    let ino = file(&volume, b"file");
    let content = SplitMix64::new(1).bytes(300 * LEN);
    // Each second page has room.
    for page in (0..300).step_by(2) {
        let bytes = &content[page * LEN..(page + 1) * LEN];
        volume.write(ino, (page * LEN) as u64, bytes).unwrap();
    }
    let other = file(&volume, b"other");
    let fill = SplitMix64::new(2).bytes(16 * LEN);
    let mut at = 0;
    while volume.usage().free_blocks > 60 {
        at += volume.write(other, at, &fill).unwrap() as u64;
    }
    let free = volume.usage().free_blocks;
    let written = volume.write(ino, 0, &content).unwrap();
    assert_eq!(volume.usage().free_blocks, 0);
    // Each block that was free filled a hole; behind the last one the page had room.
    assert_eq!(written, (2 * free as usize + 1) * LEN);
    assert!(volume.write(ino, written as u64, &content[written..]).is_err());
    let expected: Vec<u8> = (content.chunks(LEN).enumerate())
        .take(299)
        .flat_map(|(page, bytes)| match page % 2 == 0 || page * LEN < written {
            true => bytes.to_vec(),
            false => vec![0; LEN],
        })
        .collect();
    assert!(whole(&volume, ino) == expected);
    volume.close().unwrap();
    is_sound(&counted);
    let volume = open(&counted);
    assert!(whole(&volume, ino) == expected);
    for name in [&b"file"[..], b"other"] {
        volume.unlink(volume.root(), name).unwrap();
    }
    volume.sync().unwrap();
    let (_, untouched) = made(2_600);
    assert_eq!(volume.usage().free_blocks, untouched.usage().free_blocks);
}

/// A file that is written again: as it was, it is read once, and nothing of it is written; with
/// other bytes, hardly anything of it is read.
#[test]
fn what_is_written_again_costs_what_changes() {
    const PAGES: usize = 512;
    let (counted, volume) = made(6_000);
    let ino = file(&volume, b"file");
    let first = SplitMix64::new(1).bytes(PAGES * LEN);
    let second = SplitMix64::new(2).bytes(PAGES * LEN);
    volume.write(ino, 0, &first).unwrap();
    volume.sync().unwrap();
    let cost = |content: &[u8]| {
        let before = counted.counters();
        for (number, piece) in content.chunks(128 * LEN).enumerate() {
            let at = number * 128 * LEN;
            assert_eq!(volume.write(ino, at as u64, piece).unwrap(), piece.len());
        }
        volume.sync().unwrap();
        let after = counted.counters();
        let blocks = |bytes: u64| bytes / LEN as u64;
        (
            blocks(after.read_bytes - before.read_bytes),
            blocks(after.written_bytes - before.written_bytes),
        )
    };
    let (read, written) = cost(&first);
    assert!((512..560).contains(&read) && written < 12, "{read} {written}");
    let (read, written) = cost(&second);
    assert!(read < 128 && (512..540).contains(&written), "{read} {written}");
    assert!(whole(&volume, ino) == second);
    volume.close().unwrap();
    is_sound(&counted);
    assert!(whole(&open(&counted), ino) == second);
}

#[test]
fn a_long_write_heals_pages_that_rotted() {
    let (counted, volume) = made(2_600);
    let ino = file(&volume, b"file");
    volume.write(ino, 0, &SplitMix64::new(1).bytes(64 * LEN)).unwrap();
    volume.sync().unwrap();
    drop(volume);
    let volume = open(&counted);
    for page in 0..64 {
        let address = volume.with_state(|state| state.address_of(Nid(ino), page)).unwrap();
        counted.write_blocks(address.0.into(), &[0x55; LEN]).unwrap();
    }
    assert!(volume.read(ino, 0, &mut vec![0; 64 * LEN]).is_err());
    let content = SplitMix64::new(2).bytes(64 * LEN);
    assert_eq!(volume.write(ino, 0, &content).unwrap(), content.len());
    assert!(whole(&volume, ino) == content);
    volume.close().unwrap();
    is_sound(&counted);
    assert!(whole(&open(&counted), ino) == content);
}

/// The device takes long writes and does them later: if it cannot, the next sync says so, what is
/// read is the new content or an error, and what is found afterwards is what was synced.
#[test]
fn device_failure_after_a_write_is_told_and_never_misread() {
    let sim = SimBlockDevice::new(2_600);
    let queued = || Arc::new(QueuedDevice::new(sim.clone()).unwrap()) as Arc<dyn BlockDevice>;
    let device = queued();
    create(&device, &CreateOptions::new(VolumeId([7; 16]), 1)).unwrap();
    let volume = Volume::open(device, &OpenOptions::default()).unwrap();
    let ino = file(&volume, b"file");
    let (old, new) = (SplitMix64::new(1).bytes(64 * LEN), SplitMix64::new(2).bytes(64 * LEN));
    volume.write(ino, 0, &old).unwrap();
    volume.sync().unwrap();
    let failing = sim.calls() + 1..sim.calls() + 200;
    volume.write(ino, 0, &new).unwrap();
    failing.clone().for_each(|call| sim.fail_call(call, 5));
    let error = volume.sync().unwrap_err();
    assert_eq!(error.errno(), 5, "{error}");
    while sim.calls() < failing.end {
        let _ = sim.flush();
    }
    for page in 0..64 {
        let mut bytes = [0; LEN];
        if volume.read(ino, (page * LEN) as u64, &mut bytes).is_ok() {
            assert!(bytes == new[page * LEN..(page + 1) * LEN], "page {page}");
        }
    }
    assert!(volume.write(ino, 0, &new).is_err());
    assert!(volume.sync().is_err());
    drop(volume);
    let volume = Volume::open(queued(), &OpenOptions::default()).unwrap();
    assert!(whole(&volume, ino) == old);
}

/// The summaries of a segment are needed to compare a page with its previous content, not to
/// overwrite it.
#[test]
fn a_long_write_heals_pages_of_which_the_summaries_rotted() {
    let (counted, volume) = made(6_000);
    let ino = file(&volume, b"file");
    let mut content = SplitMix64::new(1).bytes(1_500 * LEN);
    volume.write(ino, 0, &content).unwrap();
    volume.close().unwrap();
    let volume = open(&counted);
    let (first, count) = volume
        .with_state(|state| {
            let address = state.address_of(Nid(ino), 0)?;
            let areas = state.media.areas;
            let (segment, _) = areas.segment_of(address).unwrap();
            Ok((areas.summary_of(segment), areas.summary_blocks()))
        })
        .unwrap();
    for block in 0..count {
        counted.write_blocks((first.0 + block).into(), &[0x55; LEN]).unwrap();
    }
    assert!(volume.read(ino, 0, &mut vec![0; 32 * LEN]).is_err());
    let new = SplitMix64::new(2).bytes(32 * LEN);
    assert_eq!(volume.write(ino, 0, &new).unwrap(), new.len());
    content[..new.len()].copy_from_slice(&new);
    let mut there = vec![0; new.len()];
    assert_eq!(volume.read(ino, 0, &mut there).unwrap(), there.len());
    assert!(there == new);
    volume.close().unwrap();
    let volume = open(&counted);
    assert_eq!(volume.read(ino, 0, &mut there).unwrap(), there.len());
    assert!(there == new);
}

/// Each page is one of its versions, wherever it is at the moment: the reader must not meet what a
/// block held before, or will hold later.
#[test]
fn volume_reader_beside_writes_meets_old_or_new_pages_only() {
    const PAGES: u64 = 700;
    const ROUNDS: u64 = 150;
    let first_seed = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    for seed in first_seed..first_seed + 2 {
        let sim = SimBlockDevice::new(4_200);
        let device = Arc::new(QueuedDevice::new(sim.clone()).unwrap()) as Arc<dyn BlockDevice>;
        create(&device, &CreateOptions::new(VolumeId([7; 16]), 1)).unwrap();
        let options = OpenOptions {
            cache_len_bytes: 80 * LEN,
            unwritten_len_bytes: 80 * LEN,
            ..OpenOptions::default()
        };
        let volume = Volume::open(device, &options).unwrap();
        let ino = file(&volume, b"file");
        // Of the number of the page and of its version, and nothing else.
        let page_of = |page: u64, version: u64| SplitMix64::new(page << 32 | version).bytes(LEN - 8);
        let make = |page: u64, version: u64| [&version.to_le_bytes()[..], &page_of(page, version)].concat();
        let version_of = |page: u64, bytes: &[u8]| {
            let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert!(
                bytes[8..] == page_of(page, version),
                "BYTEBACK_SEED={seed}: page {page} of {version}"
            );
            version
        };
        for page in 0..PAGES {
            volume.write(ino, page * LEN as u64, &make(page, 0)).unwrap();
        }
        // Versions that were written at least, and those that may be.
        let [done, begun] = [(); 2].map(|()| (0..PAGES).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (volume, done, begun, is_over) = (&volume, &done, &begun, &is_over);
            let over = OverWhenDropped(is_over);
            let reader = scope.spawn(move || {
                let mut random = SplitMix64::new(seed + 1_000);
                let mut reads = 0u64;
                while !is_over.load(Ordering::SeqCst) || reads == 0 {
                    let first = random.below(PAGES - 16);
                    let count = (16 + random.below(300)).min(PAGES - first);
                    let least: Vec<u64> = (first..first + count)
                        .map(|page| done[page as usize].load(Ordering::SeqCst))
                        .collect();
                    let mut bytes = vec![0xee; count as usize * LEN];
                    assert_eq!(volume.read(ino, first * LEN as u64, &mut bytes).unwrap(), bytes.len());
                    for ((page, bytes), least) in (first..).zip(bytes.chunks(LEN)).zip(least) {
                        let version = version_of(page, bytes);
                        let most = begun[page as usize].load(Ordering::SeqCst);
                        assert!((least..=most).contains(&version), "BYTEBACK_SEED={seed}: page {page}");
                    }
                    reads += 1;
                }
            });
            let mut random = SplitMix64::new(seed);
            for version in 1..=ROUNDS {
                let first = random.below(PAGES);
                let count = (1 + random.below(300)).min(PAGES - first);
                let pages = first..first + count;
                pages
                    .clone()
                    .for_each(|page| begun[page as usize].store(version, Ordering::SeqCst));
                let bytes: Vec<u8> = pages.clone().flat_map(|page| make(page, version)).collect();
                assert_eq!(volume.write(ino, first * LEN as u64, &bytes).unwrap(), bytes.len());
                pages.for_each(|page| done[page as usize].store(version, Ordering::SeqCst));
                match random.below(8) {
                    0 => volume.sync().unwrap(),
                    1 | 2 => volume.sync_file(ino).unwrap(),
                    3 => drop(volume.tidy().unwrap()),
                    _ => {}
                }
            }
            drop(over);
            reader.join().unwrap();
        });
        volume.close().unwrap();
        let volume = Volume::open(Arc::new(sim.clone()), &options).unwrap();
        let bytes = whole(&volume, ino);
        for (page, bytes) in (0..PAGES).zip(bytes.chunks(LEN)) {
            assert_eq!(
                version_of(page, bytes),
                done[page as usize].load(Ordering::SeqCst),
                "BYTEBACK_SEED={seed}"
            );
        }
        volume.close().unwrap();
        let report = crate::check::check(&sim, crate::check::CheckOptions::default()).unwrap();
        assert!(report.is_sound(), "BYTEBACK_SEED={seed}: {:?}", report.problems);
    }
}

/// Also if an assertion fails: the other thread must not go on for ever.
struct OverWhenDropped<'a>(&'a AtomicBool);

impl Drop for OverWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
