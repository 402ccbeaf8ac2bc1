use super::*;
use crate::check::{CheckOptions, Report, check};
use crate::create::{CreateOptions, create};
use crate::format::VolumeId;
use crate::small::deltas::DeltaMode;
use crate::tree::names::NewFile;
use crate::volume::{OpenOptions, Volume};
use byteback_host::block::{BLOCK_LEN_BYTES, BlockDevice, CountedDevice, SimBlockDevice};
use byteback_host::random::SplitMix64;

const ID: VolumeId = VolumeId([4; 16]);

type Device = Arc<CountedDevice<SimBlockDevice>>;

fn made() -> Device {
    let device = Arc::new(CountedDevice::new(SimBlockDevice::new(20_000)));
    let dynamic = Arc::clone(&device) as Arc<dyn BlockDevice>;
    create(&dynamic, &CreateOptions::new(ID, 5)).unwrap();
    device
}

fn open(device: &Device, delta_mode: DeltaMode) -> Volume {
    open_with(device, delta_mode, crate::format::INDEX_LEN_BYTES)
}

fn open_with(device: &Device, delta_mode: DeltaMode, delta_index_len_bytes_max: usize) -> Volume {
    let options = OpenOptions {
        delta_mode,
        delta_index_len_bytes_max,
        cache_len_bytes: 80 * BLOCK_LEN_BYTES,
        hotness_window_operations: 200,
        ..OpenOptions::default()
    };
    Volume::open(Arc::clone(device) as Arc<dyn BlockDevice>, &options).unwrap()
}

fn file(volume: &Volume, name: &[u8], content: &[u8]) -> u32 {
    let new = NewFile {
        mode: 0o100_644,
        ..NewFile::default()
    };
    let ino = volume.make(1, name, &new).unwrap().ino;
    assert_eq!(volume.write(ino, 0, content).unwrap(), content.len());
    ino
}

fn read(volume: &Volume, ino: u32) -> Result<Vec<u8>> {
    let len = volume.attributes(ino)?.len_bytes;
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    assert_eq!(volume.read(ino, 0, &mut bytes)?, bytes.len());
    Ok(bytes)
}

fn sound(device: &Device) -> Report {
    let report = check(&**device, CheckOptions::default()).unwrap();
    assert!(report.is_sound(), "{:#?}", report.problems);
    report
}

/// Changes a piece of each of these pages.
fn change(
    volume: &Volume,
    ino: u32,
    content: &mut [u8],
    pages: impl Iterator<Item = usize>,
    len: usize,
    random: &mut SplitMix64,
) {
    for page in pages {
        let at = page * BLOCK_LEN_BYTES + random.below((BLOCK_LEN_BYTES - len) as u64) as usize;
        let bytes = random.bytes(len);
        content[at..at + len].copy_from_slice(&bytes);
        volume.write(ino, at as u64, &bytes).unwrap();
    }
}

#[test]
fn what_is_packed_is_few_blocks_and_is_read_in_any_mode() {
    let mut random = SplitMix64::new(1);
    let device = made();
    let volume = open(&device, DeltaMode::Main);
    let mut content = random.bytes(60 * BLOCK_LEN_BYTES);
    let ino = file(&volume, b"records", &content);
    volume.sync().unwrap();
    let before = volume.stats().written;
    // 40 deltas of some 300 bytes: three compact pages, and the index, in which the last one lies.
    change(&volume, ino, &mut content, 0..40, 300, &mut random);
    volume.sync_file(ino).unwrap();
    let after = volume.stats();
    assert_eq!(after.written.data, before.data);
    assert_eq!(after.written.delta_indexes - before.delta_indexes, 1);
    assert!(
        (3..=4).contains(&(after.written.compact_pages - before.compact_pages)),
        "{after:?}"
    );
    assert_eq!((after.deltas.packed, after.deltas.unpacked), (40, 0));
    // Nobody reads it: it would be read-hot. Others of the same pages, and new ones: what is over
    // is left out.
    change(&volume, ino, &mut content, 20..50, 300, &mut random);
    volume.sync_file(ino).unwrap();
    let before = volume.stats();
    // Two lie in the index.
    change(&volume, ino, &mut content, 1..3, 300, &mut random);
    volume.sync_file(ino).unwrap();
    let after = volume.stats();
    assert_eq!(after.written.data, before.written.data);
    assert_eq!(after.written.compact_pages, before.written.compact_pages);
    assert_eq!(after.written.delta_indexes - before.written.delta_indexes, 1);
    assert_eq!(after.deltas.packed - before.deltas.packed, 2);
    // A page is one block, too, and is read in one: and a mark.
    let before = after;
    change(&volume, ino, &mut content, 7..8, 300, &mut random);
    volume.sync_file(ino).unwrap();
    let after = volume.stats();
    assert_eq!(after.written.data - before.written.data, 1);
    assert_eq!(after.written.delta_indexes, before.written.delta_indexes);
    assert_eq!(after.deltas.unpacked - before.deltas.unpacked, 1);
    volume.sync().unwrap();
    let stats = volume.stats();
    volume.close().unwrap();
    let report = sound(&device);
    assert_eq!(
        (stats.deltas_in_main, stats.compact_pages, stats.deltas.more_in_inodes),
        (report.main_deltas, report.compact_pages, 0)
    );
    assert_eq!(report.main_deltas, 49);
    assert!(report.compact_pages <= 6, "{report:?}");
    for mode in [DeltaMode::Off, DeltaMode::Inode, DeltaMode::Both, DeltaMode::Main] {
        let volume = open(&device, mode);
        assert!(read(&volume, ino).unwrap() == content, "{mode:?}");
        change(&volume, ino, &mut content, 5..8, 200, &mut random);
        assert!(read(&volume, ino).unwrap() == content, "{mode:?}");
        volume.close().unwrap();
        sound(&device);
    }
    let volume = open(&device, DeltaMode::Off);
    volume.unlink(1, b"records").unwrap();
    volume.close().unwrap();
    let report = sound(&device);
    assert_eq!(
        (report.main_deltas, report.compact_pages, report.used_blocks),
        (0, 0, 1)
    );
}

/// Any writes, and any number of syncs: with deltas less is written, and never more.
#[test]
fn no_mode_writes_more_than_none() {
    for (seed, sync_each, len) in [
        (1, 1, 60),
        (2, 3, 300),
        (3, 8, 300),
        (4, 30, 700),
        (5, 4, 900),
        (6, 100, 100),
    ] {
        let mut written = Vec::new();
        for mode in [DeltaMode::Off, DeltaMode::Inode, DeltaMode::Main, DeltaMode::Both] {
            let mut random = SplitMix64::new(seed);
            let device = made();
            let volume = open(&device, mode);
            let mut content = random.bytes(400 * BLOCK_LEN_BYTES);
            let ino = file(&volume, b"records", &content);
            volume.sync().unwrap();
            let before = device.counters().written_bytes;
            for number in 0..1_000 {
                let among = if random.coin() { 20 } else { 400 };
                let page = random.below(among) as usize;
                let len = 1 + random.below(len) as usize;
                change(&volume, ino, &mut content, page..page + 1, len, &mut random);
                if number % sync_each == 0 {
                    volume.sync_file(ino).unwrap();
                }
            }
            volume.sync().unwrap();
            written.push(device.counters().written_bytes - before);
            assert!(read(&volume, ino).unwrap() == content);
            volume.close().unwrap();
            sound(&device);
        }
        println!("a sync each {sync_each} changes of up to {len} bytes: {written:?}");
        let off = written[0];
        assert!(
            written.iter().all(|bytes| *bytes <= off),
            "{sync_each}, {len}: {written:?}"
        );
        assert!(
            written[3] <= written[1].max(written[2]),
            "{sync_each}, {len}: {written:?}"
        );
    }
}

/// An editor: a few changes in a large file beside the text, which is synced; texts and their
/// copies come and go, and are gone before anybody had to write them.
#[test]
fn no_mode_writes_more_than_none_for_an_editor() {
    for seed in 1..5 {
        let mut written = Vec::new();
        for mode in [DeltaMode::Off, DeltaMode::Inode, DeltaMode::Main, DeltaMode::Both] {
            let mut random = SplitMix64::new(seed);
            let device = made();
            let volume = open(&device, mode);
            let mut swap = random.bytes(700 * BLOCK_LEN_BYTES);
            let swap_ino = file(&volume, b".swap", &swap);
            let mut text = random.bytes(30_000);
            file(&volume, b"text", &text);
            volume.sync().unwrap();
            let before = device.counters().written_bytes;
            // More than deltas of so few changes save: a checkpoint too many is seen.
            for _ in 0..2 {
                let scratch = random.bytes(100 * BLOCK_LEN_BYTES);
                file(&volume, b"scratch", &scratch);
                for number in 0..25 {
                    let page = random.below(700) as usize;
                    change(&volume, swap_ino, &mut swap, page..page + 1, 40, &mut random);
                    if number % 10 == 0 {
                        volume.sync_file(swap_ino).unwrap();
                    }
                }
                volume.unlink(1, b"scratch").unwrap();
                // The text is written anew, beside its old version.
                let replace = crate::Rename::Replace;
                volume.rename((1, b"text"), (1, b"text~"), replace).unwrap();
                text.splice(100..100, random.bytes(50));
                let ino = file(&volume, b"text", &text);
                volume.sync_file(ino).unwrap();
                volume.unlink(1, b"text~").unwrap();
            }
            volume.sync().unwrap();
            written.push(device.counters().written_bytes - before);
            assert!(read(&volume, swap_ino).unwrap() == swap);
            volume.close().unwrap();
            sound(&device);
        }
        println!("{seed}: {written:?}");
        assert!(written.iter().all(|bytes| *bytes <= written[0]), "{seed}: {written:?}");
    }
}

#[test]
fn a_file_that_is_read_much_is_restored_in_idle_time() {
    let mut random = SplitMix64::new(2);
    let device = made();
    let volume = open(&device, DeltaMode::Both);
    let mut contents = Vec::new();
    for number in 0..4u8 {
        let mut content = random.bytes(40 * BLOCK_LEN_BYTES);
        let ino = file(&volume, &[b'a' + number], &content);
        volume.sync().unwrap();
        change(&volume, ino, &mut content, 0..30, 400, &mut random);
        contents.push((ino, content));
        volume.sync().unwrap();
    }
    assert_eq!((sound(&device).main_deltas, volume.stats().deltas.restored), (120, 0));
    // One in the middle of the list is read, again and again; the others are written.
    for _ in 0..120 {
        assert!(read(&volume, contents[1].0).unwrap() == contents[1].1);
        for index in [0, 2, 3] {
            let (ino, content) = &mut contents[index];
            let page = random.below(10) as usize;
            change(&volume, *ino, content, page..page + 1, 400, &mut random);
        }
    }
    assert!(volume.heat(contents[1].0).is_read_hot && !volume.heat(contents[0].0).is_read_hot);
    for _ in 0..10 {
        volume.tidy().unwrap();
    }
    let stats = volume.stats();
    assert_eq!(stats.deltas.restored, 30, "{stats:?}");
    volume.sync().unwrap();
    sound(&device);
    let in_list = |volume: &Volume| volume.with_state(|state| Ok(state.delta_files())).unwrap();
    assert_eq!(in_list(&volume).len(), 3);
    assert!(!in_list(&volume).contains(&Nid(contents[1].0)));
    // And one of which few are left, as the others were written anew.
    for page in 0..27 {
        let (ino, content) = &mut contents[2];
        let bytes = random.bytes(BLOCK_LEN_BYTES);
        let at = page * BLOCK_LEN_BYTES;
        content[at..at + BLOCK_LEN_BYTES].copy_from_slice(&bytes);
        volume.write(*ino, at as u64, &bytes).unwrap();
    }
    volume.sync().unwrap();
    for _ in 0..10 {
        volume.tidy().unwrap();
    }
    assert!(volume.stats().deltas.restored >= 30);
    for (ino, content) in &contents {
        assert!(read(&volume, *ino).unwrap() == *content);
    }
    volume.unlink(1, b"a").unwrap();
    volume.sync().unwrap();
    assert_eq!(in_list(&volume), [Nid(contents[3].0)]);
    volume.close().unwrap();
    sound(&device);
}

/// Segments in which deltas lie are cleaned like all others.
#[test]
fn deltas_move_when_their_segments_are_cleaned() {
    let mut random = SplitMix64::new(3);
    let device = made();
    // So little room that there are leaves.
    let volume = open_with(&device, DeltaMode::Main, 256);
    let mut content = random.bytes(200 * BLOCK_LEN_BYTES);
    let ino = file(&volume, b"records", &content);
    volume.sync().unwrap();
    change(&volume, ino, &mut content, 0..150, 200, &mut random);
    volume.sync().unwrap();
    let blocks = |volume: &Volume| {
        volume
            .with_state(|state| {
                let index = state.inode(Nid(ino))?.delta_meta();
                let file = state.main_file(Nid(ino))?.unwrap();
                let mut of_file: Vec<Address> = file.compacts.keys().copied().collect();
                assert!(file.leaves.len() > 1, "{:?}", file.leaves);
                of_file.extend(file.leaf_addresses());
                of_file.push(index);
                Ok(of_file)
            })
            .unwrap()
    };
    let before = blocks(&volume);
    volume
        .with_state(|state| {
            for address in &before {
                let (segment, _) = state.media.areas.segment_of(*address).unwrap();
                // It is one that logs go on in: as if they did not.
                let summary = state.space.segments.summary_of(*address).unwrap();
                assert!(matches!(summary.slot, INDEX_SLOT | COMPACT_SLOT), "segment {segment}");
                assert!(state.move_delta_block(Nid(ino), *address)?);
            }
            state.checkpoint(false)
        })
        .unwrap();
    let after = blocks(&volume);
    assert!(
        before.iter().all(|address| !after.contains(address)),
        "{before:?}, {after:?}"
    );
    assert!(read(&volume, ino).unwrap() == content);
    volume.close().unwrap();
    sound(&device);
}

fn damage(device: &Device, address: Address) {
    device
        .write_blocks(u64::from(address.0), &[0x55; BLOCK_LEN_BYTES])
        .unwrap();
}

/// Deltas make room for others, also where the base of the eldest one cannot be read any more.
#[test]
fn a_base_that_rots_does_not_make_other_pages_unwritable() {
    let mut random = SplitMix64::new(6);
    let device = made();
    let volume = open(&device, DeltaMode::Both);
    let mut content = random.bytes(80 * BLOCK_LEN_BYTES);
    let ino = file(&volume, b"records", &content);
    volume.sync().unwrap();
    change(&volume, ino, &mut content, 0..12, 200, &mut random);
    volume.sync().unwrap();
    let base = volume
        .with_state(|state| {
            assert!(state.inode(Nid(ino))?.delta_of(0).is_some(), "its delta is elsewhere");
            state.address_of(Nid(ino), 0)
        })
        .unwrap();
    volume.close().unwrap();
    damage(&device, base);
    let volume = open(&device, DeltaMode::Both);
    for _ in 0..4 {
        change(&volume, ino, &mut content, 1..80, 200, &mut random);
        volume.sync_file(ino).unwrap();
    }
    let counts = volume.delta_counts();
    assert!(counts.moved_to_main > 0, "{counts:?}");
    let mut there = vec![0; content.len() - BLOCK_LEN_BYTES];
    volume.read(ino, BLOCK_LEN_BYTES as u64, &mut there).unwrap();
    assert!(there == content[BLOCK_LEN_BYTES..]);
    assert!(matches!(
        volume.read(ino, 0, &mut there[..10]),
        Err(VolumeError::Damaged { .. })
    ));
}

#[test]
fn what_is_damaged_is_told_and_can_be_written_over() {
    for damages_index in [false, true] {
        let mut random = SplitMix64::new(4);
        let device = made();
        let volume = open(&device, DeltaMode::Main);
        let mut content = random.bytes(40 * BLOCK_LEN_BYTES);
        let ino = file(&volume, b"records", &content);
        volume.sync().unwrap();
        change(&volume, ino, &mut content, 0..30, 400, &mut random);
        volume.sync().unwrap();
        let (index, compact) = volume
            .with_state(|state| {
                let index = state.inode(Nid(ino))?.delta_meta();
                let places = state.main_file(Nid(ino))?.unwrap().places();
                Ok((index, places[&3].0))
            })
            .unwrap();
        volume.close().unwrap();
        damage(&device, if damages_index { index } else { compact });
        let report = check(&*device, CheckOptions::default()).unwrap();
        assert!(
            report.problems.iter().any(|problem| problem.trouble.is_loss()),
            "{report:?}"
        );
        let volume = open(&device, DeltaMode::Both);
        let mut page = vec![0; BLOCK_LEN_BYTES];
        assert!(matches!(
            volume.read(ino, 3 * 4096, &mut page),
            Err(VolumeError::Damaged { .. })
        ));
        // A page without a delta can be read if it is known to have none.
        assert_eq!(volume.read(ino, 35 * 4096, &mut page).is_ok(), !damages_index);
        // A part of it cannot be written over, all of it can.
        assert!(volume.write(ino, 3 * 4096 + 5, b"part").is_err());
        for page in [3usize, 35] {
            let bytes = random.bytes(BLOCK_LEN_BYTES);
            content[page * BLOCK_LEN_BYTES..(page + 1) * BLOCK_LEN_BYTES].copy_from_slice(&bytes);
            volume.write(ino, (page * BLOCK_LEN_BYTES) as u64, &bytes).unwrap();
        }
        volume.sync_file(ino).unwrap();
        volume.close().unwrap();
        let volume = open(&device, DeltaMode::Both);
        for at in [3usize, 35] {
            assert_eq!(
                volume.read(ino, (at * BLOCK_LEN_BYTES) as u64, &mut page).unwrap(),
                page.len()
            );
            assert!(page == content[at * BLOCK_LEN_BYTES..][..BLOCK_LEN_BYTES]);
        }
        volume.close().unwrap();
        let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
        let repaired = crate::repair::repair(&shared, &crate::repair::RepairOptions::default()).unwrap();
        assert!(
            repaired.after.problems.iter().all(|problem| problem.trouble.is_loss()),
            "{repaired:#?}"
        );
        let volume = open(&device, DeltaMode::Both);
        assert!(volume.read(ino, 4 * 4096, &mut page).is_err());
        assert_eq!(volume.read(ino, 3 * 4096, &mut page).unwrap(), page.len());
        assert!(page == content[3 * BLOCK_LEN_BYTES..][..BLOCK_LEN_BYTES]);
        let set = crate::tree::attributes::SetAttributes {
            len_bytes: Some(0),
            ..crate::tree::attributes::SetAttributes::default()
        };
        volume.set_attributes(ino, &set).unwrap();
        volume.write(ino, 0, &content).unwrap();
        assert!(read(&volume, ino).unwrap() == content);
        volume.close().unwrap();
        let repaired = crate::repair::repair(&shared, &crate::repair::RepairOptions::default()).unwrap();
        assert!(repaired.after.is_sound(), "{repaired:#?}");
    }
}

/// Deltas in a short inode have to leave it where the file grows. A delta that cannot be applied
/// stays there, and the file grows all the same.
#[test]
fn a_base_that_rots_does_not_keep_its_file_from_growing() {
    let mut random = SplitMix64::new(7);
    let device = made();
    let volume = open(&device, DeltaMode::Inode);
    let mut content = random.bytes(16 * BLOCK_LEN_BYTES);
    let ino = file(&volume, b"records", &content);
    volume.sync().unwrap();
    change(&volume, ino, &mut content, 0..14, 200, &mut random);
    let (base, deltas) = volume
        .with_state(|state| Ok((state.address_of(Nid(ino), 9)?, state.inode(Nid(ino))?.deltas())))
        .unwrap();
    assert_eq!(deltas, 14);
    volume.close().unwrap();
    damage(&device, base);
    let volume = open(&device, DeltaMode::Inode);
    let grow = |content: &mut Vec<u8>, to_pages: usize, random: &mut SplitMix64| {
        let more = random.bytes(to_pages * BLOCK_LEN_BYTES - content.len());
        for piece in more.chunks(BLOCK_LEN_BYTES) {
            volume.write(ino, content.len() as u64, piece)?;
            content.extend(piece);
        }
        volume.sync_file(ino)
    };
    grow(&mut content, 800, &mut random).unwrap();
    let counts = volume.delta_counts();
    assert_eq!((counts.moved_slots, counts.pushed_out > 9), (1, false), "{counts:?}");
    grow(&mut content, 867, &mut random).unwrap();
    let check_content = |volume: &Volume| {
        for (page, bytes) in content.chunks(BLOCK_LEN_BYTES).enumerate() {
            let mut there = vec![0; BLOCK_LEN_BYTES];
            let answer = volume.read(ino, (page * BLOCK_LEN_BYTES) as u64, &mut there);
            match page {
                9 => assert!(matches!(answer, Err(VolumeError::Damaged { .. }))),
                _ => assert!(answer.is_ok() && there == bytes, "{page}"),
            }
        }
    };
    check_content(&volume);
    volume.close().unwrap();
    let volume = open(&device, DeltaMode::Both);
    check_content(&volume);
    // All of it is written anew: then it is whole.
    let bytes = random.bytes(BLOCK_LEN_BYTES);
    volume.write(ino, 9 * BLOCK_LEN_BYTES as u64, &bytes).unwrap();
    volume.close().unwrap();
    sound(&device);
}

/// A file of which nearly all pages have deltas at last, more than an index has room for.
#[test]
fn a_large_file_has_many_deltas_and_they_cost_little() {
    const PAGES: usize = 2_500;
    let mut written = Vec::new();
    for mode in [DeltaMode::Off, DeltaMode::Both, DeltaMode::Main] {
        let mut random = SplitMix64::new(8);
        let device = made();
        let volume = open(&device, mode);
        let mut content = random.bytes(PAGES * BLOCK_LEN_BYTES);
        let ino = file(&volume, b"database", &content);
        volume.sync().unwrap();
        let before = device.counters().written_bytes;
        for _ in 0..1_000 {
            let pages = (0..12).map(|_| random.below(PAGES as u64) as usize).collect::<Vec<_>>();
            change(&volume, ino, &mut content, pages.into_iter(), 60, &mut random);
            volume.sync_file(ino).unwrap();
        }
        written.push(device.counters().written_bytes - before);
        println!("{mode:?}: {:?}", volume.stats());
        let counts = volume.delta_counts();
        assert!(read(&volume, ino).unwrap() == content, "{mode:?}");
        volume.close().unwrap();
        let report = sound(&device);
        let volume = open(&device, mode);
        assert!(read(&volume, ino).unwrap() == content, "{mode:?}, opened again");
        if mode == DeltaMode::Off {
            continue;
        }
        assert!(report.main_deltas > PAGES as u64 * 9 / 10, "{report:?}");
        assert!((3..60).contains(&counts.index_leaves), "{counts:?}");
        let leaves: Vec<Address> = volume
            .with_state(|state| Ok(state.main_file(Nid(ino))?.unwrap().leaf_addresses().collect()))
            .unwrap();
        assert!(leaves.len() > 1);
        // A leaf that rots is told: what it said counts no less than what others say.
        for leaf in leaves {
            let mut block = zeros();
            device.read_blocks(u64::from(leaf.0), &mut block[..]).unwrap();
            damage(&device, leaf);
            let report = check(&*device, CheckOptions::default()).unwrap();
            let is_reported = report.problems.iter().any(|problem| {
                let lost = crate::check::Trouble::DeltaIndex {
                    ino: Nid(ino),
                    address: leaf,
                };
                problem.trouble == lost && lost.is_loss()
            });
            assert!(is_reported, "{leaf}: {report:?}");
            device.write_blocks(u64::from(leaf.0), &block[..]).unwrap();
        }
        // Half of it goes, and comes back as a hole.
        let set = crate::tree::attributes::SetAttributes {
            len_bytes: Some((PAGES / 2 * BLOCK_LEN_BYTES) as u64),
            ..crate::tree::attributes::SetAttributes::default()
        };
        volume.set_attributes(ino, &set).unwrap();
        volume.sync_file(ino).unwrap();
        content.truncate(PAGES / 2 * BLOCK_LEN_BYTES);
        content.resize((PAGES / 2 + 20) * BLOCK_LEN_BYTES, 0);
        volume.write(ino, content.len() as u64 - 1, &[0]).unwrap();
        volume
            .allocate(ino, crate::tree::file::Allocate::Punch, 4096 * 100, 4096 * 500)
            .unwrap();
        content[4096 * 100..4096 * 600].fill(0);
        volume.sync_file(ino).unwrap();
        assert!(read(&volume, ino).unwrap() == content, "{mode:?}, cut off");
        volume.close().unwrap();
        let less = sound(&device);
        assert!(
            less.main_deltas < report.main_deltas / 2 && less.main_deltas > 400,
            "{less:?}"
        );
        let volume = open(&device, mode);
        assert!(
            read(&volume, ino).unwrap() == content,
            "{mode:?}, cut off and opened again"
        );
        volume.unlink(1, b"database").unwrap();
        volume.close().unwrap();
        assert_eq!(sound(&device).used_blocks, 1);
    }
    println!("{written:?}");
    assert!(written[1] * 10 < written[0] * 4, "{written:?}");
    assert!(written[2] * 10 < written[0] * 6, "{written:?}");
}

/// Blocks of an index, written again and again with little room, always say what is in memory.
#[test]
fn an_index_and_its_leaves_say_what_was_meant() {
    let first = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let count = std::env::var("BYTEBACK_SEEDS").map_or(60, |count| count.parse().unwrap());
    let (mut with_leaves, mut most) = (0, 0);
    for seed in first..first + count {
        println!("BYTEBACK_SEED={seed}");
        let mut random = SplitMix64::new(seed);
        let areas = crate::log::geometry::divide(1 << 24).unwrap();
        let form = Form {
            ino: Nid(8),
            room_bytes: [192, 300, 1_000, 4_092][random.below(4) as usize],
        };
        let all = (form.room_bytes * 2) as u64;
        let mut file = MainFile::default();
        let mut blocks: BTreeMap<(Address, u8), Box<Block>> = BTreeMap::new();
        let (mut next, mut free) = (areas.main_first, Vec::new());
        // Free blocks are reused: an older leaf may still name them.
        let block_of = |bytes: &[u8], kind: Kind, free: &mut Vec<Address>, next: &mut u32| {
            let mut block = zeros();
            fill(&mut block, bytes);
            *next += 1;
            let address = match free.len() {
                0..10 => Address(*next),
                count => free.swap_remove(*next as usize % count),
            };
            (address, kind as u8, block)
        };
        let mut index_before = Address::NONE;
        for round in 0..120 {
            let add = |file: &mut MainFile, address: Address, pages: &[u32], random: &mut SplitMix64| {
                file.compacts.insert(address, Compact::default());
                let mut block = zeros();
                let deltas: Vec<(u32, Vec<u8>)> = (pages.iter())
                    .map(|page| {
                        let len = 1 + random.below(150) as usize;
                        (*page, random.bytes(len))
                    })
                    .collect();
                let of = deltas.iter().map(|(page, delta)| (*page, &delta[..]));
                for place in fill_compact_page(&mut block, Nid(8), of) {
                    file.put_place(address, place);
                }
            };
            for _ in 0..random.below(4) {
                let count = 1 + random.below(form.packed_max().min(24) as u64);
                let pages: BTreeSet<u32> = (0..count).map(|_| random.below(all) as u32).collect();
                let (address, ..) = block_of(&[], Kind::DeltaCompact, &mut free, &mut next);
                blocks.retain(|(at, _), _| *at != address);
                add(&mut file, address, &Vec::from_iter(pages), &mut random);
            }
            match random.below(12) {
                0 => {
                    let (from, len) = (random.below(all) as u32, random.below(all) as u32);
                    file.retain(|page| !(from..from + len).contains(&page));
                }
                1..=5 => (0..random.below(40)).for_each(|_| file.remove(random.below(all))),
                6 => file.leaves.iter_mut().for_each(|leaf| leaf.is_to_move = random.coin()),
                7 | 8 => {
                    let page = random.below(all) as u32;
                    file.put_own(page, random.bytes(20));
                }
                _ => {}
            }
            let unused = file.take_unused();
            let mut given_up = unused;
            let note = format!("seed {seed}, round {round}, {form:?}");
            let mut leaves_before = file.leaves.len();
            for to_leaves in [random.below(6) == 0, true] {
                let layout = file.lay_out(form, to_leaves);
                leaves_before -= layout.dissolved.len();
                given_up.extend(layout.dissolved);
                for leaf in layout.leaves {
                    assert!(leaf.bytes.len() <= form.room_bytes, "{note}");
                    let (address, kind, block) = block_of(&leaf.bytes, Kind::DeltaLeaf, &mut free, &mut next);
                    blocks.insert((address, kind), block);
                    file.add_leaf(address, leaf);
                    leaves_before += 1;
                }
                assert_eq!(leaves_before, file.leaves.len(), "{note}");
                if file.index_bytes(form).is_some() {
                    break;
                }
                assert!(!to_leaves || !file.own().is_empty(), "{note}");
                for (page, _) in file.take_own() {
                    let (address, ..) = block_of(&[], Kind::DeltaCompact, &mut free, &mut next);
                    blocks.retain(|(at, _), _| *at != address);
                    add(&mut file, address, &[page], &mut random);
                }
            }
            let bytes = file.index_bytes(form).unwrap_or_else(|| panic!("{note}"));
            let (address, kind, block) = block_of(&bytes, Kind::DeltaMeta, &mut free, &mut next);
            blocks.insert((address, kind), block);
            free.extend(given_up);
            free.extend(Some(std::mem::replace(&mut index_before, address)).filter(|before| before.is_block()));
            let read = |at: Address, kind: Kind| blocks.get(&(at, kind as u8)).cloned();
            let found = DeltaPlaces::read((Nid(8), address), &areas, read);
            let found = found.unwrap_or_else(|at| panic!("{note}: block {at} cannot be"));
            assert_eq!((&found.places, &found.own), (file.places(), file.own()), "{note}");
            let compacts: BTreeMap<Address, Option<Address>> = (file.compacts.iter())
                .map(|(address, compact)| (*address, compact.leaf))
                .collect();
            assert_eq!(found.compacts, compacts, "{note}");
            assert!(
                found
                    .leaves
                    .iter()
                    .map(|(address, _)| *address)
                    .eq(file.leaf_addresses()),
                "{note}"
            );
            with_leaves += u32::from(!file.leaves.is_empty());
            most = most.max(file.leaves.len());
            assert!(file.leaves.len() <= 20, "{note}: {} leaves", file.leaves.len());
            if random.below(4) == 0 {
                file = MainFile::of(found);
            }
        }
    }
    println!("{with_leaves} with leaves, {most} at most");
    assert!(u64::from(with_leaves) > 30 * count, "{with_leaves}");
}

/// Deltas are packed as one looks at them without looking back.
#[test]
fn packing_leaves_out_what_is_too_few_and_nothing_else() {
    let mut random = SplitMix64::new(6);
    for _ in 0..2_000 {
        let mut fresh: Vec<(u32, usize)> = (0..random.below(60) as u32)
            .map(|page| (page, 1 + random.below(1_500) as usize))
            .collect();
        fresh.sort_by_key(|(page, len)| (*len, *page));
        let first: Vec<(u32, usize)> = (0..random.below(8) as u32)
            .map(|page| (100 + page, 1 + random.below(500) as usize))
            .collect();
        let len_of: BTreeMap<u32, usize> = fresh.iter().chain(&first).copied().collect();
        let (min, max) = (2 + random.below(6) as usize, 8 + random.below(60) as usize);
        let (groups, left) = packing::pack(&first, &fresh, min..=max);
        let mut met = BTreeSet::new();
        for group in &groups {
            assert!(group.len() >= min && group.len() <= max);
            assert!(group.iter().map(|page| len_of[page]).sum::<usize>() <= COMPACT_LEN_BYTES);
            assert!(group.iter().all(|page| met.insert(*page)));
        }
        assert_eq!(met.len() + left.len(), len_of.len());
    }
}

/// Behind page 65535 the inode cannot mark an unknown delta as over: such a page cannot be
/// overwritten. An attempt must leave it, and the pages before it, either unchanged or as written.
#[test]
fn what_cannot_be_written_over_is_not_read_as_something_else() {
    const FIRST: usize = 65_525;
    for (is_long, mode) in [
        (false, DeltaMode::Both),
        (true, DeltaMode::Both),
        (true, DeltaMode::Off),
    ] {
        let mut random = SplitMix64::new(5);
        let device = made();
        let volume = open(&device, DeltaMode::Main);
        let mut content = random.bytes(32 * BLOCK_LEN_BYTES);
        let ino = file(&volume, b"records", b"");
        let at = |page: usize| ((FIRST + page) * BLOCK_LEN_BYTES) as u64;
        volume.write(ino, at(0), &content).unwrap();
        volume.sync().unwrap();
        for page in 0..32 {
            let bytes = random.bytes(300);
            content[page * BLOCK_LEN_BYTES + 7..][..300].copy_from_slice(&bytes);
            volume.write(ino, at(page) + 7, &bytes).unwrap();
        }
        volume.sync().unwrap();
        let index = volume
            .with_state(|state| Ok(state.inode(Nid(ino))?.delta_meta()))
            .unwrap();
        volume.close().unwrap();
        damage(&device, index);
        let volume = open(&device, mode);
        let mut page = vec![0; BLOCK_LEN_BYTES];
        assert!((0..32).all(|number| volume.read(ino, at(number), &mut page).is_err()));
        let new = random.bytes(32 * BLOCK_LEN_BYTES);
        let written = match is_long {
            true => volume.write(ino, at(0), &new).unwrap_or(0) / BLOCK_LEN_BYTES,
            false => {
                let of = |page: usize| &new[page * BLOCK_LEN_BYTES..(page + 1) * BLOCK_LEN_BYTES];
                (0..32)
                    .filter(|page| volume.write(ino, at(*page), of(*page)).is_ok())
                    .count()
            }
        };
        assert_eq!(written, 65_536 - FIRST, "{is_long}, {mode:?}");
        let are_right = |volume: &Volume| {
            let mut page = vec![0; BLOCK_LEN_BYTES];
            for number in 0..32 {
                let is_read = volume.read(ino, at(number), &mut page).is_ok();
                assert_eq!(is_read, number < written, "{is_long}, {mode:?}, page {number}");
                assert!(!is_read || page == new[number * BLOCK_LEN_BYTES..(number + 1) * BLOCK_LEN_BYTES]);
            }
        };
        are_right(&volume);
        volume.sync().unwrap();
        are_right(&volume);
        volume.close().unwrap();
        are_right(&open(&device, DeltaMode::Both));
    }
}
