//! Pages that are compressed, several in a block or in the inode: written, read, written over, cut
//! off, moved, lost.

use super::*;
use crate::check::{CheckOptions, Trouble, check};
use crate::create::{CreateOptions, create};
use crate::format::VolumeId;
use crate::small::deltas::DeltaMode;
use crate::tree::attributes::SetAttributes;
use crate::tree::file::Allocate;
use crate::tree::names::NewFile;
use crate::volume::{OpenOptions, Volume};
use byteback_host::block::{BlockDevice, SimBlockDevice};
use byteback_host::random::SplitMix64;

const PAGE: usize = BLOCK_LEN_BYTES;

fn made(is_compressed: bool) -> SimBlockDevice {
    let device = SimBlockDevice::new(20_000);
    let options = CreateOptions {
        is_compressed,
        ..CreateOptions::new(VolumeId([4; 16]), 5)
    };
    create(&(Arc::new(device.clone()) as Arc<dyn BlockDevice>), &options).unwrap();
    device
}

fn open_in(device: &SimBlockDevice, delta_mode: DeltaMode) -> Volume {
    let options = OpenOptions {
        delta_mode,
        cache_len_bytes: 64 * PAGE,
        ..OpenOptions::default()
    };
    Volume::open(Arc::new(device.clone()), &options).unwrap()
}

fn open(device: &SimBlockDevice) -> Volume {
    open_in(device, DeltaMode::Both)
}

fn file(volume: &Volume, name: &[u8]) -> u32 {
    let new = NewFile {
        mode: 0o100_644,
        ..NewFile::default()
    };
    volume.make(1, name, &new).unwrap().ino
}

/// Bytes that compress to about a quarter.
fn text(random: &mut SplitMix64, len: usize) -> Vec<u8> {
    let mut bytes = random.bytes(len);
    bytes.iter_mut().for_each(|byte| *byte &= 3);
    bytes
}

fn read(volume: &Volume, ino: u32) -> Vec<u8> {
    let len = volume.attributes(ino).unwrap().len_bytes;
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    assert_eq!(volume.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn assert_sound(device: &SimBlockDevice, note: &str) -> u64 {
    let report = check(device, CheckOptions::default()).unwrap();
    let problems: Vec<_> = report.problems.iter().map(ToString::to_string).collect();
    assert!(report.is_sound(), "{note}: {problems:#?}");
    report.compressed_pages
}

fn clusters(device: &SimBlockDevice) -> Vec<u64> {
    let id = VolumeId([4; 16]);
    let is_cluster = |at: &u64| {
        let mut block = zeros();
        device.read_blocks(*at, &mut block[..]).unwrap();
        id.is_sealed(&block, Kind::Cluster, Address(u32::try_from(*at).unwrap()))
    };
    (0..device.len_blocks()).filter(is_cluster).collect()
}

#[test]
fn clusters_write_pages_as_fewer_blocks_and_keep_their_bytes() {
    let mut random = SplitMix64::new(1);
    let content = text(&mut random, 300 * PAGE + 77);
    let mut written = Vec::new();
    for is_compressed in [false, true] {
        let device = made(is_compressed);
        let volume = open(&device);
        let ino = file(&volume, b"file");
        volume.write(ino, 0, &content).unwrap();
        volume.sync().unwrap();
        written.push(volume.stats().written.data);
        let used = volume.attributes(ino).unwrap();
        let free = volume.usage().free_blocks;
        assert!(read(&volume, ino) == content);
        volume.close().unwrap();
        let compressed = assert_sound(&device, "closed");
        assert_eq!(compressed > 290, is_compressed, "{compressed}");
        assert_eq!(!clusters(&device).is_empty(), is_compressed);
        let volume = open(&device);
        assert!(read(&volume, ino) == content);
        // No room is gained, and none is lost.
        assert_eq!(
            (volume.attributes(ino).unwrap().blocks, volume.usage().free_blocks),
            (used.blocks, free)
        );
        assert_eq!(used.blocks, 302);
    }
    assert!(written[0] == 301 && written[1] < 120, "{written:?}");
}

#[test]
fn what_cannot_be_compressed_is_written_as_it_is() {
    let mut random = SplitMix64::new(2);
    let device = made(true);
    let volume = open(&device);
    let ino = file(&volume, b"file");
    let content = random.bytes(200 * PAGE);
    volume.write(ino, 0, &content).unwrap();
    volume.sync().unwrap();
    assert_eq!(volume.stats().written.data, 200);
    assert!(read(&volume, ino) == content);
    volume.close().unwrap();
    assert_eq!(assert_sound(&device, "closed"), 0);
}

/// One page in a cluster is written over, cut off, punched or gets a delta; the others stay, and
/// the block goes with the last.
#[test]
fn pages_leave_a_cluster_one_by_one() {
    let mut random = SplitMix64::new(3);
    let device = made(true);
    let mut volume = open(&device);
    let ino = file(&volume, b"file");
    let mut content = text(&mut random, 24 * PAGE);
    volume.write(ino, 0, &content).unwrap();
    volume.sync().unwrap();
    assert!(volume.delta_counts().clusters >= 4, "{:?}", volume.delta_counts());
    let noise = random.bytes(PAGE);
    for (step, page) in [1usize, 2, 9, 8, 0, 17, 16, 15, 23].into_iter().enumerate() {
        let at = page * PAGE;
        match step % 4 {
            0 => {
                content[at..at + PAGE].copy_from_slice(&noise);
                volume.write(ino, at as u64, &noise).unwrap();
            }
            1 => {
                content[at..at + PAGE].fill(0);
                volume.allocate(ino, Allocate::Punch, at as u64, PAGE as u64).unwrap();
            }
            2 => {
                content[at + 9..at + 20].copy_from_slice(&noise[..11]);
                volume.write(ino, at as u64 + 9, &noise[..11]).unwrap();
            }
            _ => {
                content.truncate(content.len() - PAGE - 50);
                let set = SetAttributes {
                    len_bytes: Some(content.len() as u64),
                    ..SetAttributes::default()
                };
                volume.set_attributes(ino, &set).unwrap();
                content.resize(24 * PAGE, 0);
                volume
                    .set_attributes(
                        ino,
                        &SetAttributes {
                            len_bytes: Some(content.len() as u64),
                            ..set
                        },
                    )
                    .unwrap();
            }
        }
        assert!(read(&volume, ino) == content, "{page}");
        volume.close().unwrap();
        assert_sound(&device, &format!("page {page}"));
        volume = open(&device);
        assert!(read(&volume, ino) == content, "{page}, opened again");
    }
    let set = SetAttributes {
        len_bytes: Some(0),
        ..SetAttributes::default()
    };
    volume.set_attributes(ino, &set).unwrap();
    volume.close().unwrap();
    assert_eq!(assert_sound(&device, "cut off"), 0);
}

/// A log that grows by a page with each sync: most syncs are the inode alone, and what leaves it is
/// one block.
#[test]
fn a_sync_of_a_page_is_the_inode_alone() {
    let mut random = SplitMix64::new(5);
    let device = made(true);
    let volume = open(&device);
    let ino = file(&volume, b"log");
    volume.write(ino, 0, &text(&mut random, 3 * PAGE)).unwrap();
    volume.sync().unwrap();
    let before = volume.stats().written;
    let mut expected = read(&volume, ino);
    const SYNCS: u64 = 60;
    for _ in 0..SYNCS {
        let more = text(&mut random, PAGE);
        volume.write(ino, expected.len() as u64, &more).unwrap();
        expected.extend(more);
        volume.sync_file(ino).unwrap();
    }
    let after = volume.stats().written;
    assert_eq!(after.nodes - before.nodes, SYNCS, "one inode for each");
    let data = after.data - before.data;
    assert!(data <= SYNCS / 2, "{data} blocks for {SYNCS} pages");
    assert!(
        volume.delta_counts().pages_in_inodes >= SYNCS / 2,
        "{:?}",
        volume.delta_counts()
    );
    assert!(read(&volume, ino) == expected);
    // As after a crash.
    std::mem::forget(volume);
    let survivor = device.recover(1);
    let volume = open(&survivor);
    assert!(read(&volume, ino) == expected);
    volume.close().unwrap();
    assert_sound(&survivor, "recovered");
}

/// Data that lies in the inode is data for who looks for holes, and goes when it is punched.
#[test]
fn what_lies_in_the_inode_is_no_hole() {
    let mut random = SplitMix64::new(6);
    let device = made(true);
    let volume = open(&device);
    let ino = file(&volume, b"file");
    let page = text(&mut random, PAGE);
    volume.write(ino, 5 * PAGE as u64, &page).unwrap();
    volume.sync_file(ino).unwrap();
    assert_eq!(
        (volume.delta_counts().pages_in_inodes, volume.stats().written.data),
        (1, 0)
    );
    volume.close().unwrap();
    let volume = open(&device);
    let five = 5 * PAGE as u64;
    assert_eq!(volume.seek(ino, 0, true).unwrap(), Some(five));
    assert_eq!(volume.seek(ino, five, false).unwrap(), Some(five + PAGE as u64));
    assert_eq!(read(&volume, ino)[5 * PAGE..], page);
    volume.allocate(ino, Allocate::Punch, five, PAGE as u64).unwrap();
    assert!(read(&volume, ino).iter().all(|byte| *byte == 0));
    volume.close().unwrap();
    assert_eq!(assert_sound(&device, "punched"), 0);
    assert_eq!(open(&device).seek(ino, 0, true).unwrap(), None);
}

/// Cleaning moves a cluster with all that is in it, and with deltas of its pages.
#[test]
fn clusters_are_moved_by_cleaning() {
    let mut random = SplitMix64::new(7);
    let device = made(true);
    let volume = open_in(&device, DeltaMode::Inode);
    let (stays, goes) = (file(&volume, b"stays"), file(&volume, b"goes"));
    let mut expected = Vec::new();
    for _ in 0..40 {
        let more = text(&mut random, 8 * PAGE);
        volume.write(stays, expected.len() as u64, &more).unwrap();
        expected.extend(more);
        volume
            .write(
                goes,
                volume.attributes(goes).unwrap().len_bytes,
                &random.bytes(30 * PAGE),
            )
            .unwrap();
        volume.sync().unwrap();
    }
    for page in [3usize, 77, 200] {
        let at = page * PAGE + 100;
        expected[at..at + 7].copy_from_slice(b"a delta");
        volume.write(stays, at as u64, b"a delta").unwrap();
    }
    volume.unlink(1, b"goes").unwrap();
    volume.sync().unwrap();
    let before = clusters(&device);
    let clean_all = |state: &mut State| {
        let segments: Vec<u32> = state.space.segments.candidates().map(|(number, ..)| number).collect();
        segments.into_iter().try_for_each(|segment| state.clean(segment))
    };
    volume.with_state(clean_all).unwrap();
    volume.sync().unwrap();
    assert!(volume.stats().written.moved > 20, "{:?}", volume.stats().written);
    assert!(clusters(&device).iter().any(|at| !before.contains(at)));
    assert!(read(&volume, stays) == expected);
    volume.close().unwrap();
    assert_sound(&device, "cleaned");
    assert!(read(&open(&device), stays) == expected);
}

/// A cluster that rots is an error for each of its pages and for no other one; who writes over all
/// of them heals that.
#[test]
fn a_cluster_that_rots_costs_its_pages() {
    let mut random = SplitMix64::new(8);
    let device = made(true);
    let volume = open(&device);
    let ino = file(&volume, b"file");
    let content = text(&mut random, 40 * PAGE);
    volume.write(ino, 0, &content).unwrap();
    volume.close().unwrap();
    let at = clusters(&device)[2];
    let mut block = zeros();
    device.read_blocks(at, &mut block[..]).unwrap();
    let lost = Cluster::read(&block).unwrap().pages;
    block[300] ^= 1;
    device.write_blocks(at, &block[..]).unwrap();
    let report = check(&device, CheckOptions::default()).unwrap();
    assert_eq!(report.problem_count, lost.len() as u64, "{:#?}", report.problems);
    assert!(
        report
            .problems
            .iter()
            .all(|problem| matches!(problem.trouble, Trouble::Page { .. }))
    );
    let volume = open(&device);
    for page in 0..40u32 {
        let start = page as usize * PAGE;
        let mut bytes = vec![0; PAGE];
        let answer = volume.read(ino, start as u64, &mut bytes);
        match lost.contains(&page) {
            true => assert!(matches!(answer, Err(VolumeError::Damaged { .. })), "{page}: {answer:?}"),
            false => assert_eq!(bytes, content[start..start + PAGE], "{page}"),
        }
    }
    for page in &lost {
        let start = *page as usize * PAGE;
        volume.write(ino, start as u64, &content[start..start + PAGE]).unwrap();
    }
    assert!(read(&volume, ino) == content);
    volume.close().unwrap();
}

/// A block of which neither summary nor seal says whether it is a cluster: it is given up with the
/// last page that leads there, and not before.
#[test]
fn cluster_without_any_record_is_given_up_with_its_last_page() {
    let mut random = SplitMix64::new(9);
    let device = made(true);
    let volume = open_in(&device, DeltaMode::Off);
    let ino = file(&volume, b"file");
    let content = text(&mut random, 40 * PAGE);
    volume.write(ino, 0, &content).unwrap();
    volume.sync().unwrap();
    // Until the segment of these is full, so that nothing but the summary area says what is in it.
    let rest = file(&volume, b"rest");
    volume.write(rest, 0, &random.bytes(200 * PAGE)).unwrap();
    volume.close().unwrap();
    let volume = open_in(&device, DeltaMode::Off);
    let at = Address(u32::try_from(clusters(&device)[2]).unwrap());
    let mut block = zeros();
    device.read_blocks(u64::from(at.0), &mut block[..]).unwrap();
    let pages = Cluster::read(&block).unwrap().pages;
    assert!(pages.len() > 2);
    let (summaries, alone) = volume
        .with_state(|state| {
            let (segment, _) = state.media.areas.segment_of(at).unwrap();
            Ok((
                state.media.areas.summary_of(segment),
                state.media.areas.segment_first(segment),
            ))
        })
        .unwrap();
    drop(volume);
    device.rot(u64::from(at.0), 300, 1);
    device.make_unreadable(u64::from(summaries.0));
    let volume = open_in(&device, DeltaMode::Off);
    let is_used = |address| {
        volume
            .with_state(|state| Ok(state.space.segments.is_valid(address)))
            .unwrap()
    };
    assert!(is_used(at) && is_used(alone));
    let (last, before) = pages.split_last().unwrap();
    for page in before {
        let start = *page as usize * PAGE;
        volume.write(ino, start as u64, &random.bytes(PAGE)).unwrap();
        volume.sync().unwrap();
        assert!(is_used(at), "{page} of {pages:?}");
    }
    let free = volume.usage().free_blocks;
    volume
        .write(ino, u64::from(*last) * PAGE as u64, &random.bytes(PAGE))
        .unwrap();
    volume.sync().unwrap();
    assert!(!is_used(at) && volume.usage().free_blocks == free);
    volume.unlink(1, b"file").unwrap();
    volume.sync().unwrap();
    assert!(!is_used(alone));
    volume.unlink(1, b"rest").unwrap();
    volume.close().unwrap();
    let report = check(&device, CheckOptions::default()).unwrap();
    assert!(report.is_sound(), "{:#?}", report.problems);
}
