//! Damage of all sorts, and what a repair leaves of it.

use super::*;
use crate::create::{CreateOptions, create};
use crate::format::{Block, VolumeId};
use byteback_host::block::{BLOCK_LEN_BYTES, SimBlockDevice};
use byteback_host::random::SplitMix64;
use std::collections::BTreeMap;

const ID: VolumeId = VolumeId([7; 16]);

fn file(volume: &Volume, dir: u32, name: &[u8], content: &[u8]) -> u32 {
    let new = NewFile {
        mode: 0o100_644,
        ..NewFile::default()
    };
    let ino = volume.make(dir, name, &new).unwrap().ino;
    assert_eq!(volume.write(ino, 0, content).unwrap(), content.len());
    ino
}

fn directory(volume: &Volume, dir: u32, name: &[u8]) -> u32 {
    let new = NewFile {
        mode: 0o040_755,
        ..NewFile::default()
    };
    volume.make(dir, name, &new).unwrap().ino
}

/// A volume with a bit of everything, closed.
fn made(seed: u64, is_compressed: bool) -> SimBlockDevice {
    let mut random = SplitMix64::new(seed);
    let content = |random: &mut SplitMix64, len: usize| {
        let mut bytes = random.bytes(len);
        if is_compressed {
            bytes.iter_mut().for_each(|byte| *byte &= 3);
        }
        bytes
    };
    let device = SimBlockDevice::new(2_600);
    let shared: Arc<dyn BlockDevice> = Arc::new(device.clone());
    let options_of_new = CreateOptions {
        is_compressed,
        ..CreateOptions::new(ID, seed)
    };
    create(&shared, &options_of_new).unwrap();
    // So little that indexes have leaves.
    let options = OpenOptions {
        delta_index_len_bytes_max: 256,
        ..OpenOptions::default()
    };
    let volume = Volume::open(shared, &options).unwrap();
    let mut dirs = vec![1];
    for number in 0..6 {
        let above = dirs[random.below(dirs.len() as u64) as usize];
        dirs.push(directory(&volume, above, format!("dir {number}").as_bytes()));
    }
    let wide = dirs[1];
    for number in 0..260 {
        file(&volume, wide, format!("small {number}").as_bytes(), &random.bytes(20));
    }
    for number in 0..40 {
        let dir = dirs[random.below(dirs.len() as u64) as usize];
        let len = random.below(60_000) as usize;
        let ino = file(
            &volume,
            dir,
            format!("file {number}").as_bytes(),
            &content(&mut random, len),
        );
        match random.below(5) {
            0 => volume
                .set_xattr(
                    ino,
                    b"user.long",
                    &random.bytes(1_000),
                    crate::tree::xattr::SetAttribute::Any,
                )
                .unwrap(),
            1 => drop(volume.link(ino, 1, format!("link {number}").as_bytes()).unwrap()),
            2 => drop(
                volume
                    .write(ino, 5_000_000 + random.below(4_000_000), b"far away")
                    .unwrap(),
            ),
            _ => {}
        }
    }
    volume.sync().unwrap();
    // Deltas, and segments that are partly in use.
    let some: Vec<u32> = volume
        .list(dirs[2], 0, 100)
        .unwrap()
        .into_iter()
        .map(|entry| entry.ino)
        .collect();
    for ino in some
        .into_iter()
        .filter(|ino| volume.attributes(*ino).unwrap().mode >> 12 == 8)
    {
        volume.write(ino, 100, b"a small change").unwrap();
    }
    // Deltas in the main area, of two files: some of them are over.
    for name in [b"records 1", b"records 2"] {
        let records = file(&volume, 1, name, &random.bytes(30 * BLOCK_LEN_BYTES));
        volume.sync().unwrap();
        for round in 0..2 {
            for page in round * 7..20 {
                let at = page * BLOCK_LEN_BYTES as u64 + random.below(3_000);
                volume.write(records, at, &random.bytes(400)).unwrap();
            }
            volume.sync().unwrap();
        }
        volume.write(records, 0, &random.bytes(BLOCK_LEN_BYTES)).unwrap();
    }
    let counts = volume.delta_counts();
    assert!(counts.packed > 20 && counts.index_leaves > 2, "{counts:?}");
    volume.close().unwrap();
    device
}

/// Contents by number and name of the file.
type Contents = BTreeMap<(u32, Vec<u8>), Vec<u8>>;

/// All files by their contents and last names, as far as they can be read; with how many cannot.
fn tree(volume: &Volume) -> (Contents, usize) {
    let (mut files, mut unreadable) = (BTreeMap::new(), 0);
    let mut dirs = vec![1];
    let mut visited = BTreeSet::new();
    while let Some(dir) = dirs.pop() {
        assert!(visited.insert(dir), "directories go in circles");
        let Ok(entries) = volume.list(dir, 0, 10_000) else {
            unreadable += 1;
            continue;
        };
        for entry in entries {
            let Ok(there) = volume.attributes(entry.ino) else {
                unreadable += 1;
                continue;
            };
            if there.mode >> 12 == 4 {
                dirs.push(entry.ino);
                continue;
            }
            let mut content = vec![0; usize::try_from(there.len_bytes).unwrap().min(20_000_000)];
            match volume.read(entry.ino, 0, &mut content) {
                Ok(_) => drop(files.insert((entry.ino, entry.name), content)),
                Err(_) => unreadable += 1,
            }
        }
    }
    (files, unreadable)
}

fn open(device: &SimBlockDevice) -> Volume {
    Volume::open(Arc::new(device.clone()), &OpenOptions::default()).unwrap()
}

fn block_at(device: &SimBlockDevice, at: u64) -> Box<Block> {
    let mut block = zeros();
    device.read_blocks(at, &mut block[..]).unwrap();
    block
}

/// Kind of a block, if it is sealed.
fn kind_of(block: &Block, at: u64) -> Option<Kind> {
    let kinds = [
        Kind::Superblock,
        Kind::PackHeader,
        Kind::PackFooter,
        Kind::PackBitmaps,
        Kind::PackJournal,
        Kind::PackOrphans,
        Kind::PackSummaries,
        Kind::Summary,
        Kind::NodeTable,
        Kind::SegmentTable,
        Kind::Node,
        Kind::Directory,
        Kind::DeltaMeta,
        Kind::DeltaCompact,
        Kind::DeltaLeaf,
        Kind::Cluster,
    ];
    let address = Address(u32::try_from(at).unwrap());
    kinds.into_iter().find(|kind| ID.is_sealed(block, *kind, address))
}

/// Only lost contents may remain after a repair, and the volume can be used.
fn assert_repaired(device: &SimBlockDevice, note: &str) -> Option<Repaired> {
    let shared: Arc<dyn BlockDevice> = Arc::new(device.clone());
    let repaired = match repair(&shared, &RepairOptions::default()) {
        Ok(repaired) => repaired,
        Err(VolumeError::Damaged { .. } | VolumeError::NotAVolume | VolumeError::UnknownFeatures(_)) => return None,
        Err(error) => panic!("{note}: {error}"),
    };
    let left: Vec<_> = repaired
        .after
        .problems
        .iter()
        .filter(|problem| !problem.trouble.is_loss())
        .collect();
    assert!(left.is_empty(), "{note}: {left:#?}\nof {:#?}", repaired.before.problems);
    let volume = open(device);
    let ino = file(&volume, 1, b"after the repair", &[3; 50_000]);
    let (files, _) = tree(&volume);
    assert_eq!(files[&(ino, b"after the repair".to_vec())], [3; 50_000]);
    volume.close().unwrap();
    Some(repaired)
}

/// Any file can be removed, whatever is lost of it; blocks of its damaged nodes are found by one
/// more repair.
fn assert_all_can_go(device: &SimBlockDevice, note: &str) {
    let volume = open(device);
    let mut dirs = vec![(1, None)];
    let mut emptied = Vec::new();
    while let Some((dir, place)) = dirs.pop() {
        for entry in volume.list(dir, 0, 10_000).unwrap() {
            match entry.kind {
                4 => dirs.push((entry.ino, Some((dir, entry.name)))),
                _ => volume
                    .unlink(dir, &entry.name)
                    .unwrap_or_else(|error| panic!("{note}: {error}")),
            }
        }
        emptied.extend(place);
    }
    for (dir, name) in emptied.into_iter().rev() {
        volume
            .remove_directory(dir, &name)
            .unwrap_or_else(|error| panic!("{note}: {error}"));
    }
    volume.close().unwrap();
    let repaired = assert_repaired(device, note).unwrap();
    assert!(repaired.after.is_sound(), "{note}: {:#?}", repaired.after.problems);
    assert_eq!((repaired.after.files, repaired.after.directories), (1, 1), "{note}");
}

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let first = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let count = std::env::var("BYTEBACK_SEEDS").map_or(count, |count| count.parse().unwrap());
    (first..first + count).inspect(|seed| println!("BYTEBACK_SEED={seed}"))
}

/// Any one block that rots is noticed if it is in use, and costs what was in it and nothing else.
#[test]
fn a_block_that_rots_costs_what_was_in_it() {
    for (seed, is_compressed) in seeds(1).flat_map(|seed| [(seed, false), (seed, true)]) {
        let device = made(seed, is_compressed);
        let (before, none) = tree(&open(&device.copy()));
        assert_eq!(none, 0);
        let mut random = SplitMix64::new(seed);
        let (mut trials, mut noticed, mut given_up) = (0, 0, 0);
        for at in 0..device.len_blocks() {
            let block = block_at(&device, at);
            let kind = kind_of(&block, at);
            let is_page = kind.is_none() && block.iter().any(|byte| *byte != 0);
            if kind.is_none() && !is_page
                || random.below(16) > 0
                    && !matches!(
                        kind,
                        Some(
                            Kind::Superblock
                                | Kind::PackHeader
                                | Kind::NodeTable
                                | Kind::DeltaMeta
                                | Kind::DeltaCompact
                                | Kind::DeltaLeaf
                                | Kind::Cluster
                        )
                    )
            {
                continue;
            }
            trials += 1;
            let trial = device.copy();
            let noise = random.bytes(BLOCK_LEN_BYTES);
            trial.write_blocks(at, &noise).unwrap();
            let note = format!("seed {seed}, block {at}, which is {kind:?}");
            let Some(repaired) = assert_repaired(&trial, &note) else {
                given_up += 1;
                continue;
            };
            noticed += u32::from(!repaired.before.is_sound());
            let (after, unreadable) = tree(&open(&trial));
            // By number and content: what lost its name has another one.
            let gone = before.iter().filter(|((ino, name), content)| {
                let by_name = after.get(&(*ino, name.clone()));
                let any = after
                    .iter()
                    .any(|((other, _), found)| other == ino && found == *content);
                by_name != Some(*content) && !any
            });
            let gone = gone.map(|((ino, name), _)| (*ino, name.clone())).collect::<Vec<_>>();
            let inos: BTreeSet<u32> = gone.iter().map(|(ino, _)| *ino).collect();
            assert!(
                inos.len() <= 1 && unreadable <= 2,
                "{note}: {gone:?}, {unreadable} unreadable: {:#?}",
                repaired.before.problems
            );
            assert_all_can_go(&trial, &note);
            if !inos.is_empty() {
                assert!(
                    repaired.before.problems.iter().any(|problem| problem.trouble.is_loss()),
                    "{note}: {gone:?}"
                );
            }
        }
        println!("seed {seed}: {trials} blocks, {noticed} noticed, {given_up} given up");
        assert!(
            noticed * 3 > trials && given_up == 0,
            "{noticed} of {trials}, {given_up} given up"
        );
    }
}

/// Blocks that say something else, sealed anew: nothing panics, and what is left can be used.
#[test]
fn blocks_that_lie_are_found_out_and_put_right() {
    for (seed, is_compressed) in seeds(1).flat_map(|seed| [(seed, false), (seed, true)]) {
        let device = made(seed, is_compressed);
        let mut random = SplitMix64::new(seed);
        let sealed: Vec<(u64, Kind)> = (0..device.len_blocks())
            .filter_map(|at| Some((at, kind_of(&block_at(&device, at), at)?)))
            .collect();
        let mut noticed = 0;
        const TRIALS: u32 = 120;
        for number in 0..TRIALS {
            let trial = device.copy();
            let mut changed = Vec::new();
            for _ in 0..1 + random.below(3) {
                let (at, kind) = sealed[random.below(sealed.len() as u64) as usize];
                let mut block = block_at(&trial, at);
                for _ in 0..1 + random.below(4) {
                    let end = [40, 200, 4_092][random.below(3) as usize];
                    let place = match kind {
                        Kind::Node => random.below(450) * 9 % 4_092,
                        Kind::DeltaMeta | Kind::DeltaLeaf | Kind::Cluster => random.below(300),
                        _ => random.below(end),
                    };
                    block[place as usize] ^= 1 << random.below(8);
                }
                ID.seal(&mut block, kind, Address(at as u32));
                trial.write_blocks(at, &block[..]).unwrap();
                changed.push((at, kind));
            }
            let note = format!("seed {seed}, trial {number}: {changed:?}");
            if let Some(repaired) = assert_repaired(&trial, &note) {
                noticed += u32::from(!repaired.before.is_sound());
            }
        }
        println!("seed {seed}: {noticed} of {TRIALS} noticed");
        assert!(noticed * 4 > TRIALS, "{noticed}");
    }
}

/// Changes that were synced, on a volume that was not closed, are recovered before anything is
/// repaired.
#[test]
fn what_was_synced_is_kept_by_a_repair() {
    let device = made(5, true);
    let volume = open(&device);
    let ino = file(&volume, 1, b"synced", &[9; 30_000]);
    volume.sync_file(ino).unwrap();
    std::mem::forget(volume);
    let survivor = device.recover(1);
    let damaged = survivor.len_blocks() - 1;
    survivor.write_blocks(damaged, &[0; BLOCK_LEN_BYTES]).unwrap();
    let repaired = assert_repaired(&survivor, "synced").unwrap();
    assert!(!repaired.gave_up_synced && repaired.after.is_sound(), "{repaired:#?}");
    let (files, _) = tree(&open(&survivor));
    assert_eq!(files[&(ino, b"synced".to_vec())], [9; 30_000]);
}

/// More files are wrong than their inodes have room for at once: a repair goes on in steps.
#[test]
fn more_is_put_right_than_is_free() {
    let device = SimBlockDevice::new(2_600);
    let shared: Arc<dyn BlockDevice> = Arc::new(device.clone());
    create(&shared, &CreateOptions::new(ID, 1)).unwrap();
    let volume = Volume::open(Arc::clone(&shared), &OpenOptions::default()).unwrap();
    let mut inos = Vec::new();
    while volume.usage().free_blocks > 20 {
        inos.push(file(&volume, 1, format!("file {}", inos.len()).as_bytes(), b"content"));
    }
    for ino in &inos {
        volume
            .with_state(|state| state.change_inode(Nid(*ino), |inode| inode.set_links(3)))
            .unwrap();
    }
    volume.close().unwrap();
    let repaired = repair(&shared, &RepairOptions::default()).unwrap();
    assert_eq!(repaired.before.problem_count, inos.len() as u64);
    assert!(repaired.after.is_sound(), "{:?}", repaired.after);
    let volume = Volume::open(shared, &OpenOptions::default()).unwrap();
    for ino in inos {
        assert_eq!(volume.attributes(ino).unwrap().links, 1);
    }
}
