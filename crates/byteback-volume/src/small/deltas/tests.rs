use super::*;
use crate::create::{CreateOptions, create};
use crate::format::{INODE_SLOTS, VolumeId};
use crate::small::hotness::Heat;
use crate::tree::names::NewFile;
use crate::volume::{OpenOptions, Volume};
use byteback_host::block::{BLOCK_LEN_BYTES, BlockDevice, CountedDevice, SimBlockDevice};
use byteback_host::random::SplitMix64;
use std::sync::Arc;

/// The example of the paper: what is spared must be more than 80 bytes.
#[test]
fn a_delta_is_replaced_if_that_is_worth_more_than_it_costs() {
    let costs = Costs {
        delta_len_bytes: 72.0,
        keep_ns: 25_300.0,
        write_ns: 954_000.0,
        restore_ns: 6_900.0,
        hit_rate: 0.741,
        hit_ns: 9_200.0,
        miss_ns: 250_000.0,
    };
    assert!(costs.is_worth(81));
    assert!(!costs.is_worth(80));
    // Where writing a page costs no more than a delta nothing is worth it.
    let cheap = Costs {
        write_ns: 20_000.0,
        ..costs
    };
    assert!(!cheap.is_worth(250));
}

fn volume(delta_mode: DeltaMode) -> (Arc<CountedDevice<SimBlockDevice>>, Volume) {
    let device = Arc::new(CountedDevice::new(SimBlockDevice::new(20_000)));
    let dynamic = Arc::clone(&device) as Arc<dyn BlockDevice>;
    create(&dynamic, &CreateOptions::new(VolumeId([4; 16]), 5)).unwrap();
    (device, open(dynamic, delta_mode))
}

fn open(device: Arc<dyn BlockDevice>, delta_mode: DeltaMode) -> Volume {
    let options = OpenOptions {
        delta_mode,
        cache_len_bytes: 80 * BLOCK_LEN_BYTES,
        ..OpenOptions::default()
    };
    Volume::open(device, &options).unwrap()
}

fn file(volume: &Volume, name: &[u8]) -> u32 {
    let new = NewFile {
        mode: 0o100_644,
        ..NewFile::default()
    };
    volume.make(1, name, &new).unwrap().ino
}

fn read(volume: &Volume, ino: u32) -> Vec<u8> {
    let len = volume.attributes(ino).unwrap().len_bytes;
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    assert_eq!(volume.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

#[test]
fn what_changes_little_is_not_written() {
    let mut written = Vec::new();
    for delta_mode in [DeltaMode::Off, DeltaMode::Inode] {
        let mut random = SplitMix64::new(1);
        let (device, volume) = volume(delta_mode);
        let ino = file(&volume, b"database");
        let mut content = random.bytes(60 * BLOCK_LEN_BYTES);
        volume.write(ino, 0, &content).unwrap();
        volume.sync().unwrap();
        let before = device.counters().written_bytes;
        let counted_before = volume.stats().written;
        for _ in 0..50 {
            let at = random.below(content.len() as u64 - 20) as usize;
            let bytes = random.bytes(20);
            content[at..at + 20].copy_from_slice(&bytes);
            volume.write(ino, at as u64, &bytes).unwrap();
            volume.sync_file(ino).unwrap();
        }
        written.push(device.counters().written_bytes - before);
        let counted = volume.stats().written;
        let blocks = counted.all() - counted_before.all();
        assert_eq!(
            blocks * BLOCK_LEN_BYTES as u64,
            device.counters().written_bytes - before
        );
        assert_eq!(counted.nodes - counted_before.nodes, 50);
        let hot = Heat {
            is_read_hot: false,
            is_write_hot: true,
        };
        assert_eq!((volume.heat(ino), volume.stats().write_hot_files), (hot, 1));
        assert!(read(&volume, ino) == content);
        let in_inodes = volume.stats().deltas.more_in_inodes;
        volume.close().unwrap();
        let report = crate::check::check(&*device, crate::check::CheckOptions::default()).unwrap();
        assert_eq!(i64::try_from(report.deltas).unwrap(), in_inodes);
        // A volume opened without deltas reads those that exist.
        let again = open(device, DeltaMode::Off);
        assert!(read(&again, ino) == content);
        again.write(ino, 0, &[1; 4]).unwrap();
        content[..4].fill(1);
        assert!(read(&again, ino) == content);
    }
    // A page and an inode each time, or the inode alone.
    assert!(written[1] * 10 < written[0] * 6, "{written:?}");
}

#[test]
fn addresses_and_longer_deltas_make_their_way() {
    let mut random = SplitMix64::new(2);
    let (device, volume) = volume(DeltaMode::Inode);
    let ino = file(&volume, b"file");
    let mut content = random.bytes(300 * BLOCK_LEN_BYTES);
    volume.write(ino, 0, &content).unwrap();
    volume.sync().unwrap();
    for page in 0..200 {
        let at = page * BLOCK_LEN_BYTES + random.below(4_000) as usize;
        let len = 1 + random.below(90) as usize;
        let bytes = random.bytes(len);
        content[at..at + len].copy_from_slice(&bytes);
        volume.write(ino, at as u64, &bytes).unwrap();
    }
    assert!(volume.delta_counts().kept > 30, "{:?}", volume.delta_counts());
    assert!(read(&volume, ino) == content);
    volume.sync().unwrap();
    // Page after page, until all slots are taken.
    for page in 300..usize::try_from(INODE_SLOTS).unwrap() + 20 {
        let bytes = random.bytes(BLOCK_LEN_BYTES);
        volume.write(ino, (page * BLOCK_LEN_BYTES) as u64, &bytes).unwrap();
        content.extend(bytes);
    }
    assert!(volume.delta_counts().pushed_out > 30, "{:?}", volume.delta_counts());
    assert!(read(&volume, ino) == content);
    volume.close().unwrap();
    assert!(read(&open(device, DeltaMode::Inode), ino) == content);
}

/// A file that has no room left in its inode gets some, and a sync of a small change is the inode
/// alone, as in a short file.
#[test]
fn a_large_file_has_room_for_deltas_in_its_inode_too() {
    let mut written = Vec::new();
    for delta_mode in [DeltaMode::Off, DeltaMode::Inode] {
        let mut random = SplitMix64::new(3);
        let (device, volume) = volume(delta_mode);
        let ino = file(&volume, b"database");
        let mut content = random.bytes(2_000 * BLOCK_LEN_BYTES);
        volume.write(ino, 0, &content).unwrap();
        volume.sync().unwrap();
        let blocks = volume.attributes(ino).unwrap().blocks;
        let before = device.counters().written_bytes;
        for step in 0..200 {
            // Of thirty pages, of which some are in the slots that are moved.
            let page = [3, 700, 1_500][step % 3] + random.below(10) as usize;
            let at = page * BLOCK_LEN_BYTES + random.below(8) as usize * 9;
            let bytes = random.bytes(6);
            content[at..at + 6].copy_from_slice(&bytes);
            volume.write(ino, at as u64, &bytes).unwrap();
            volume.sync_file(ino).unwrap();
        }
        written.push(device.counters().written_bytes - before);
        let counts = volume.delta_counts();
        assert_eq!(counts.moved_slots, u64::from(delta_mode == DeltaMode::Inode));
        assert_eq!(volume.attributes(ino).unwrap().blocks, blocks + counts.moved_slots);
        assert!(read(&volume, ino) == content);
        // Large changes of these pages, which get new addresses.
        for page in [4, 701, 1_501] {
            let bytes = random.bytes(BLOCK_LEN_BYTES);
            content[page * BLOCK_LEN_BYTES..][..BLOCK_LEN_BYTES].copy_from_slice(&bytes);
            volume.write(ino, (page * BLOCK_LEN_BYTES) as u64, &bytes).unwrap();
        }
        volume.sync_file(ino).unwrap();
        volume.close().unwrap();
        let dynamic = Arc::clone(&device) as Arc<dyn BlockDevice>;
        let report = crate::check::check(&*dynamic, crate::check::CheckOptions::default()).unwrap();
        assert!(report.is_sound(), "{:?}", report.problems);
        let again = open(dynamic, DeltaMode::Off);
        assert!(read(&again, ino) == content);
        // Shorter than the slots in the inode, then nothing, then as long as before.
        for len in [500 * BLOCK_LEN_BYTES, 0, 900 * BLOCK_LEN_BYTES] {
            let set = crate::SetAttributes {
                len_bytes: Some(len as u64),
                ..Default::default()
            };
            content.resize(len, 0);
            again.set_attributes(ino, &set).unwrap();
            assert!(read(&again, ino) == content);
            again.sync_file(ino).unwrap();
        }
        again.close().unwrap();
        let report = crate::check::check(&*device, crate::check::CheckOptions::default()).unwrap();
        assert!(report.is_sound(), "{:?}", report.problems);
    }
    assert!(written[1] * 2 < written[0], "{written:?}");
}

/// A file that is written anew from its beginning to its end: only some of its pages are compared
/// with what they were, until one is kept again.
#[test]
fn what_is_written_anew_is_compared_in_few_places() {
    const PAGES: usize = 600;
    let mut random = SplitMix64::new(6);
    let (_, volume) = volume(DeltaMode::Both);
    let ino = file(&volume, b"image");
    volume.write(ino, 0, &random.bytes(PAGES * BLOCK_LEN_BYTES)).unwrap();
    volume.sync().unwrap();
    let mut content = random.bytes(PAGES * BLOCK_LEN_BYTES);
    for (number, piece) in content.chunks(32 * BLOCK_LEN_BYTES).enumerate() {
        volume
            .write(ino, (number * 32 * BLOCK_LEN_BYTES) as u64, piece)
            .unwrap();
    }
    let counts = volume.delta_counts();
    assert_eq!((counts.overwritten, counts.kept), (PAGES as u64, 0));
    assert!(counts.compared < PAGES as u64 / 8, "{counts:?}");
    volume.sync().unwrap();
    // Small changes are calls of their own.
    for page in 0..PAGES {
        let at = page * BLOCK_LEN_BYTES + 100;
        content[at] ^= 1;
        volume.write(ino, at as u64, &content[at..=at]).unwrap();
    }
    let later = volume.delta_counts();
    assert_eq!(later.overwritten - counts.overwritten, PAGES as u64);
    assert_eq!(later.compared - counts.compared, PAGES as u64);
    assert!(read(&volume, ino) == content);
}

/// Addresses leave the inode, and the file is synced: that is no checkpoint, and comes back after a
/// crash.
#[test]
fn slots_that_moved_survive_a_power_cut_without_a_checkpoint() {
    for (seed, len_pages) in [(1, 700), (2, 900), (3, 2_500)] {
        let mut random = SplitMix64::new(seed);
        let below = SimBlockDevice::new(20_000);
        let dynamic = Arc::new(below.clone()) as Arc<dyn BlockDevice>;
        create(&dynamic, &CreateOptions::new(VolumeId([4; 16]), 5)).unwrap();
        let volume = open(dynamic, DeltaMode::Inode);
        let ino = file(&volume, b"database");
        let mut content = random.bytes(len_pages * BLOCK_LEN_BYTES);
        volume.write(ino, 0, &content).unwrap();
        volume.sync().unwrap();
        let checkpoints = || volume.with_state(|state| Ok(state.durability.version)).unwrap();
        let before = checkpoints();
        for step in 0..60 {
            // Also pages that get another address, and ones that become holes or were.
            let len = if step % 7 == 0 { 3_000 } else { 30 };
            let at = random.below((len_pages * BLOCK_LEN_BYTES - len) as u64) as usize;
            let bytes = random.bytes(len);
            content[at..at + len].copy_from_slice(&bytes);
            volume.write(ino, at as u64, &bytes).unwrap();
            if step % 20 == 5 {
                let page = random.below(len_pages as u64) as usize * BLOCK_LEN_BYTES;
                content[page..page + BLOCK_LEN_BYTES].fill(0);
                let len = BLOCK_LEN_BYTES as u64;
                volume.allocate(ino, crate::Allocate::Punch, page as u64, len).unwrap();
            }
            if step % 5 == 0 {
                volume.sync_file(ino).unwrap();
            }
        }
        volume.sync_file(ino).unwrap();
        assert_eq!((volume.delta_counts().moved_slots, checkpoints()), (1, before));
        std::mem::forget(volume);
        let survivor = Arc::new(below.recover(seed));
        let again = open(survivor.clone(), DeltaMode::Off);
        assert!(read(&again, ino) == content, "{len_pages}");
        again.close().unwrap();
        let report = crate::check::check(&*survivor, crate::check::CheckOptions::default()).unwrap();
        assert!(report.is_sound(), "{:?}", report.problems);
    }
}

/// An inode with impossible deltas: none of them is believed, and nothing panics.
#[test]
fn damaged_deltas_are_errors() {
    let mut inode = Inode::default();
    assert!(inode.put_delta(3, &[0, 1, 0xff]) && inode.put_delta(4, &[9; 200]));
    assert_eq!(inode.delta_of(3), Some(&[0, 1, 0xff][..]));
    assert_eq!(inode.delta_of(4), Some(&[9; 200][..]));
    assert_eq!(inode.delta_of(5), None);
    inode.remove_deltas(|page| page == 4);
    assert_eq!((inode.deltas(), inode.delta_of(3)), (1, Some(&[0, 1, 0xff][..])));
    let mut random = SplitMix64::new(3);
    for _ in 0..2_000 {
        let noise = random.bytes(BLOCK_LEN_BYTES);
        let mut inode = Inode(Arc::new(noise[..].try_into().unwrap()));
        let _ = (
            inode.delta_of(1),
            inode.delta_room(),
            inode.used_slots(),
            inode.deltas_of().count(),
        );
        inode.remove_deltas(|page| page % 2 == 0);
        let _ = inode.put_delta(1, &[1, 2, 3]);
    }
}

/// The paper's formulas use real measurements: whether the previous content of a page had to be
/// read, by a short call or a long one, and the time it took.
#[test]
fn whether_what_a_page_was_is_in_memory_is_measured() {
    let (device, first) = volume(DeltaMode::Inode);
    let ino = file(&first, b"file");
    let mut content = SplitMix64::new(1).bytes(48 * BLOCK_LEN_BYTES);
    first.write(ino, 0, &content).unwrap();
    first.close().unwrap();
    let volume = open(device, DeltaMode::Inode);
    let looked = || {
        let counts = volume.delta_counts();
        (counts.looked_for, counts.found_in_memory)
    };
    let hit_rate = || volume.with_state(|state| Ok(state.small.costs.hit_rate)).unwrap();
    let before = hit_rate();
    volume.write(ino, 10, b"read before").unwrap();
    assert_eq!(looked(), (1, 0));
    assert!(hit_rate() < before);
    let before = hit_rate();
    volume.write(ino, 30, b"there now").unwrap();
    assert_eq!(looked(), (2, 1));
    assert!(hit_rate() > before);
    // The first one is there, and the second one is read with those behind it.
    content = read(&volume, ino);
    (content.chunks_mut(BLOCK_LEN_BYTES)).for_each(|page| page[0] ^= 1);
    volume
        .with_state(|state| {
            state.tree.pages.forget(Nid(ino), 1, 48);
            Ok(())
        })
        .unwrap();
    volume.write(ino, 0, &content).unwrap();
    // Of each 16 pages, as many as are written at once, the first one that is missing brings the
    // others.
    assert_eq!(looked(), (2 + 48, 1 + 45));
}
