//! Promised writes have room in the logs, however the volume's room is scattered.

use super::*;
use crate::log::segments::LogKind;

const PAGE: usize = BLOCK_LEN_BYTES;

/// A device that keeps discarded blocks: the plain one fills them with noise, which is slow on a
/// large device.
#[derive(Clone, Debug)]
struct Kept(SimBlockDevice);

impl BlockDevice for Kept {
    fn len_blocks(&self) -> u64 {
        self.0.len_blocks()
    }

    fn read_blocks(&self, first: u64, blocks: &mut [u8]) -> std::io::Result<()> {
        self.0.read_blocks(first, blocks)
    }

    fn write_blocks(&self, first: u64, blocks: &[u8]) -> std::io::Result<()> {
        self.0.write_blocks(first, blocks)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.0.flush()
    }

    fn discard(&self, _: u64, _: u64) -> std::io::Result<()> {
        Ok(())
    }
}

/// A volume on which nearly every segment has one page in use and nothing else: `free_segments` are
/// free, and cleaning is needed for more. The pages are those of the file `scattered`.
fn scattered(blocks: u64, free_segments: u32, options: &OpenOptions) -> (SimBlockDevice, Volume, u32) {
    let device = SimBlockDevice::new(blocks);
    let kept = Arc::new(Kept(device.clone())) as Arc<dyn BlockDevice>;
    create(&kept, &CreateOptions::new(VolumeId([9; 16]), 1)).unwrap();
    let volume = Volume::open(kept, options).unwrap();
    let ino = file(&volume, b"scattered");
    let free = || {
        volume
            .with_state(|state| Ok(state.space.segments.free_segments()))
            .unwrap()
    };
    let mut page = 0;
    while free() > free_segments {
        for _ in 0..(free() - free_segments).min(200) {
            volume.write(ino, page * PAGE as u64, &content_of(page)).unwrap();
            volume
                .with_state(|state| {
                    state.write_back()?;
                    state.space.segments.pass_over_rest(LogKind::WarmData);
                    Ok(())
                })
                .unwrap();
            page += 1;
        }
        volume.sync().unwrap();
    }
    (device, volume, ino)
}

fn content_of(page: u64) -> Vec<u8> {
    SplitMix64::new(page).bytes(PAGE)
}

fn has_scattered(volume: &Volume, ino: u32) {
    let pages = volume.attributes(ino).unwrap().len_bytes / PAGE as u64;
    let mut bytes = vec![0; PAGE];
    for page in 0..pages {
        assert_eq!(volume.read(ino, page * PAGE as u64, &mut bytes).unwrap(), PAGE);
        assert!(bytes == content_of(page), "page {page}");
    }
}

/// The nodes of a range are more than there are free segments for: they are written on the way, and
/// room is made for them.
#[test]
fn volume_sets_room_aside_though_its_nodes_exceed_what_is_free() {
    let (device, volume, ino) = scattered(7_600_000, 10, &options_in(DeltaMode::Off));
    let other = file(&volume, b"large");
    let free_blocks = volume.usage().free_blocks;
    let len_bytes = (free_blocks - free_blocks / 1_000) * PAGE as u64;
    volume.allocate(other, Allocate::Room, 0, len_bytes).unwrap();
    volume.sync().unwrap();
    let there = volume.attributes(other).unwrap();
    let pages = len_bytes / PAGE as u64;
    assert!(there.len_bytes == len_bytes && there.blocks > pages && there.blocks < pages + pages / 1_000);
    // More than was free: it was made.
    assert!(there.blocks - pages > 13 * 512);
    has_scattered(&volume, ino);
    volume.unlink(1, b"large").unwrap();
    volume.close().unwrap();
    assert_sound(&device, "closed");
}

/// A page that is written over changes the node that has its address, too; so does one of which the
/// delta waits to be packed and finds no room.
#[test]
fn pages_here_and_there_are_written_though_each_changes_a_node() {
    const PAGES: u64 = 12_000;
    let at = |page: u64| page * 1_017 * PAGE as u64;
    for mode in [DeltaMode::Off, DeltaMode::Main] {
        let options = OpenOptions {
            unwritten_len_bytes: 64 << 20,
            ..options_in(mode)
        };
        let (device, volume, ino) = scattered(800_000, 200, &options);
        let other = file(&volume, b"sparse");
        for page in 0..PAGES {
            assert_eq!(volume.write(other, at(page), &content_of(page)).unwrap(), PAGE);
        }
        volume.sync().unwrap();
        if mode == DeltaMode::Main {
            let rest = file(&volume, b"rest");
            let free_blocks = volume.usage().free_blocks;
            // Room for the scattered pages stays free.
            let taken = free_blocks - free_blocks / 1_000 - 300;
            volume.allocate(rest, Allocate::Room, 0, taken * PAGE as u64).unwrap();
        }
        let mut contents: Vec<Vec<u8>> = (0..PAGES).map(content_of).collect();
        let mut scattered_pages = volume.attributes(ino).unwrap().len_bytes / PAGE as u64;
        for free in [60, 40, 30, 20, 12] {
            let free_segments = || {
                volume
                    .with_state(|state| Ok(state.space.segments.free_segments()))
                    .unwrap()
            };
            while free_segments() > free {
                let bytes = content_of(scattered_pages);
                volume.write(ino, scattered_pages * PAGE as u64, &bytes).unwrap();
                volume.sync().unwrap();
                let pass_over = |state: &mut State| {
                    state.space.segments.pass_over_rest(LogKind::WarmData);
                    Ok(())
                };
                volume.with_state(pass_over).unwrap();
                scattered_pages += 1;
            }
            for (page, content) in (0..).zip(&mut contents) {
                let new = content_of(u64::from(free) << 32 | page);
                let count = if mode == DeltaMode::Off { PAGE } else { 50 };
                content[..count].copy_from_slice(&new[..count]);
                assert_eq!(volume.write(other, at(page), &new[..count]).unwrap(), count);
            }
            volume.sync().unwrap();
            let mut bytes = vec![0; PAGE];
            for (page, content) in (0..).zip(&contents) {
                assert_eq!(volume.read(other, at(page), &mut bytes).unwrap(), PAGE);
                assert!(bytes == *content, "{mode:?}, page {page}");
            }
        }
        let counts = volume.delta_counts();
        println!("{mode:?}: {counts:?}");
        assert_eq!(counts.unpacked > PAGES, mode == DeltaMode::Main, "{counts:?}");
        has_scattered(&volume, ino);
        volume.close().unwrap();
        assert_sound(&device, "closed");
    }
}

/// An operation without enough room is refused before anything is done, and takes none.
#[test]
fn a_range_without_room_is_refused_and_nothing_is_lost() {
    for seed in [1, 2] {
        let device = made(BLOCKS, seed);
        let volume = open(&device);
        let ino = file(&volume, b"file");
        let content = SplitMix64::new(seed).bytes(40 * PAGE);
        volume.write(ino, 0, &content).unwrap();
        volume.sync().unwrap();
        let before = (volume.usage(), volume.attributes(ino).unwrap());
        for how in [
            Allocate::Room,
            Allocate::RoomKeepingLength,
            Allocate::Zero,
            Allocate::ZeroKeepingLength,
        ] {
            for len_bytes in [(before.0.free_blocks + 41) * PAGE as u64, 1 << 40, 1 << 50] {
                let refused = volume.allocate(ino, how, 0, len_bytes);
                let refused = refused.map_err(|error| error.errno());
                let expected = match len_bytes > crate::tree::file::LEN_BYTES_MAX {
                    true => rustix::io::Errno::FBIG,
                    false => rustix::io::Errno::NOSPC,
                };
                assert_eq!(refused, Err(expected.raw_os_error()), "{how:?}, {len_bytes}");
                assert_eq!((volume.usage(), volume.attributes(ino).unwrap()), before);
            }
        }
        let mut there = vec![0; content.len()];
        volume.read(ino, 0, &mut there).unwrap();
        assert!(there == content);
        // All that there is can be had: one node is needed besides.
        let len_bytes = (before.0.free_blocks + 40 - 2) * PAGE as u64;
        volume.allocate(ino, Allocate::Room, 0, len_bytes).unwrap();
        assert!(volume.usage().free_blocks < 2);
        volume.close().unwrap();
        assert_sound(&device, "closed");
    }
}

/// xfstests generic/103: what is said to be available can be had by a new file, and hardly more.
#[test]
fn what_is_available_can_be_allocated() {
    for blocks in [BLOCKS, 5 * BLOCKS, 40 * BLOCKS] {
        for seed in [1, 2] {
            let device = made(blocks, seed);
            let volume = open(&device);
            let available = volume.usage().available_blocks;
            let ino = file(&volume, b"file");
            volume
                .allocate(ino, Allocate::Room, 0, available * PAGE as u64)
                .unwrap();
            let left = volume.usage();
            assert!(left.free_blocks <= 6, "{left:?} of {available}");
            assert_eq!(left.available_blocks, 0);
            volume.close().unwrap();
            assert_sound(&device, "closed");
        }
    }
}

/// Segments of which the summaries rotted cannot be cleaned: what there is no room for then is
/// refused, and the volume goes on.
#[test]
fn a_volume_that_cannot_be_cleaned_is_full_and_goes_on() {
    for seed in seeds(4) {
        let (device, volume, ino) = scattered(2_600, 14, &options_in(mode_of(seed)));
        volume.close().unwrap();
        let volume = open_in(&device, mode_of(seed));
        let (first, count) = volume
            .with_state(|state| {
                let areas = state.media.areas;
                Ok((areas.summaries_first, areas.main_first))
            })
            .unwrap();
        (first..count).for_each(|block| device.rot(block.into(), 100, 1));
        let mut random = SplitMix64::new(seed);
        let mut full = 0;
        let mut inos = Vec::new();
        for number in 0..600u32 {
            let name = format!("file {number}").into_bytes();
            let new = NewFile {
                mode: 0o100_644,
                ..NewFile::default()
            };
            let made = volume.make(1, &name, &new);
            let answer = made.and_then(|made| {
                inos.push((name, made.ino));
                volume.write(made.ino, random.below(100_000), &random.bytes(40_000))
            });
            match answer {
                Ok(_) => {}
                Err(VolumeError::Full) => full += 1,
                Err(error) => panic!("seed {seed}, {number}: {error}"),
            }
            match random.below(20) {
                0 => volume.sync().unwrap(),
                1 => drop(volume.sync_file(ino)),
                2 if full > 10 => {
                    // Pages that are not scattered are found in the summaries in memory.
                    let (name, _) = inos.swap_remove(random.below(inos.len() as u64) as usize);
                    let _ = volume.unlink(1, &name);
                }
                _ => {}
            }
        }
        assert!(full > 20, "seed {seed}: {full}");
        volume.sync().unwrap();
        println!("seed {seed}: {full} times full, {:?}", volume.usage());
        volume.close().unwrap();
    }
}

/// Fills a volume, so that something is in use in the segment of each log: entries, and nodes that
/// lead to nodes; and writes some of the file `file`, of which this is the content, over.
fn fill(volume: &Volume, round: u64, content: &mut Vec<u8>, random: &mut SplitMix64) -> u32 {
    let found = |name: &[u8]| {
        volume
            .look_up(1, name)
            .map_or_else(|_| file(volume, name), |found| found.ino)
    };
    let (ino, far) = (found(b"file"), found(b"far"));
    let mut there = vec![0; content.len()];
    volume.read(ino, 0, &mut there).unwrap();
    assert!(there == *content, "round {round}");
    for number in 0..random.below(if round == 0 { 300 } else { 4 }) {
        let new = NewFile {
            mode: 0o100_600,
            ..NewFile::default()
        };
        let _ = volume.make(1, format!("entry {round} {number}").as_bytes(), &new);
    }
    let _ = volume.write(far, (3_000 + 1_017 * random.below(9)) * PAGE as u64, &[7; PAGE]);
    let longest = 1 + random.below(40) * 4096;
    loop {
        let bytes = random.bytes(longest as usize);
        let Ok(count) = volume.write(ino, content.len() as u64, &bytes) else {
            break;
        };
        content.extend(&bytes[..count]);
    }
    for _ in 0..random.below(200) {
        let at = random.below(content.len() as u64 - 5_000) as usize;
        let count = 1 + random.below(5_000) as usize;
        let bytes = random.bytes(count);
        assert_eq!(volume.write(ino, at as u64, &bytes).unwrap(), count);
        content[at..at + count].copy_from_slice(&bytes);
        if random.below(8) == 0 {
            volume.sync_file(ino).unwrap();
        }
    }
    ino
}

/// Each log begins a segment when a volume is opened after a crash: on one that is full there are
/// fewer.
#[test]
fn a_full_volume_is_opened_again_after_a_power_cut() {
    for seed in seeds(6) {
        let mut random = SplitMix64::new(seed);
        let mut device = made(BLOCKS, seed);
        let mut content = Vec::new();
        for round in 0..6 {
            let volume = open_in(&device, mode_of(seed));
            let ino = fill(&volume, round, &mut content, &mut random);
            match random.coin() {
                true => volume.sync().unwrap(),
                false => volume.sync_file(ino).unwrap(),
            }
            std::mem::forget(volume);
            device = device.recover(random.next_u64());
        }
        let volume = open_in(&device, mode_of(seed));
        volume.close().unwrap();
        assert_sound(&device, &format!("seed {seed}"));
    }
}

/// A repair writes a checkpoint of its own, with logs that go on.
#[test]
fn a_full_volume_is_repaired() {
    for seed in seeds(6) {
        let mut random = SplitMix64::new(seed);
        let device = made(BLOCKS, seed);
        let shared = Arc::new(device.clone()) as Arc<dyn BlockDevice>;
        let mut content = Vec::new();
        for round in 0..4 {
            let volume = open_in(&device, mode_of(seed));
            let ino = fill(&volume, round, &mut content, &mut random);
            if round == 3 {
                // As if it had been counted wrong.
                let count_wrong = |state: &mut State| {
                    state.space.counts.used_blocks -= 3;
                    Ok(())
                };
                volume.with_state(count_wrong).unwrap();
            }
            volume.close().unwrap();
            if round == 3 {
                let options = crate::repair::RepairOptions::default();
                let repaired = crate::repair::repair(&shared, &options).unwrap();
                assert!(!repaired.before.is_sound() && repaired.after.is_sound(), "{repaired:?}");
            }
            let volume = open_in(&device, mode_of(seed));
            let mut there = vec![0; content.len()];
            volume.read(ino, 0, &mut there).unwrap();
            assert!(there == content, "seed {seed}");
        }
        let volume = open_in(&device, mode_of(seed));
        fill(&volume, 4, &mut content, &mut random);
        volume.close().unwrap();
        assert_sound(&device, &format!("seed {seed}"));
    }
}
