//! Blocks that rot, or cannot be read any more, while the volume is used: they cost what was in
//! them, whatever is done with it, and nothing else.

use std::collections::BTreeSet;

use super::model::Content;
use super::*;
use crate::tree::PAGE;

/// Files of which some block is damaged.
#[derive(Debug, Default)]
struct Losses {
    /// Files that return right bytes wherever they can be read.
    damaged: BTreeSet<u32>,
    /// Files with unknown content, after an operation on them failed.
    unknown: BTreeSet<u32>,
}

impl Losses {
    /// Whether something was lost of one of these.
    fn has(&self, files: &[u32]) -> bool {
        files.iter().any(|ino| self.damaged.contains(ino))
    }
}

/// Forgets everything in memory that equals the device, so that it is read again.
fn forget_unchanged(volume: &Volume) {
    let forget = |state: &mut State| {
        state.tree.nodes.forget_unchanged();
        state.tree.pages.forget_unchanged();
        state.small.main.forget_all_unchanged();
        Ok(())
    };
    volume.with_state(forget).unwrap();
}

/// A block of a regular file that is in use, at random, and the file.
fn some_block(volume: &Volume, random: &mut SplitMix64) -> Option<(Address, u32)> {
    let drawn = random.next_u64();
    volume
        .with_state(|state| {
            let areas = state.media.areas;
            let (first, count) = (areas.main_first, areas.main_segments * areas.segment_blocks);
            let start = (drawn % u64::from(count)) as u32;
            let around = (start..count).chain(0..start).map(|at| Address(first + at));
            for address in around.take(500) {
                if !state.space.segments.is_valid(address) {
                    continue;
                }
                let owner = state.space.summary_at(&state.media, address)?.nid;
                let ino = state.space.table.get(&state.media, owner)?.ino;
                let is_regular = state.inode(ino).is_ok_and(|inode| inode.mode() >> 12 == 8);
                if is_regular {
                    return Ok(Some((address, ino.0)));
                }
            }
            Ok(None)
        })
        .unwrap()
}

/// Whether a file, as far as it can be read, is what it should be.
fn is_right_or_lost(volume: &Volume, ino: u32, content: &Content) -> bool {
    let mut page = vec![0; BLOCK_LEN_BYTES];
    (0..content.len.min(1 << 20))
        .step_by(BLOCK_LEN_BYTES)
        .all(|at| match volume.read(ino, at, &mut page) {
            Ok(count) => page[..count] == content.read(at, BLOCK_LEN_BYTES)[..],
            Err(error) => error.is_loss(),
        })
}

fn compare(volume: &Volume, model: &Model, losses: &Losses, note: &str) {
    for (ino, node) in model.nodes.iter().filter(|(_, node)| node.links > 0) {
        if losses.unknown.contains(ino) {
            continue;
        }
        // A lookup of a child reads the child's attributes.
        let has_damaged = node.entries.values().any(|child| losses.damaged.contains(child));
        match losses.damaged.contains(ino) {
            _ if has_damaged => assert_eq!(model::differs_in_entries(volume, *ino, node), None, "{note}: {ino}"),
            true => assert!(is_right_or_lost(volume, *ino, &node.content), "{note}: file {ino}"),
            false => assert_eq!(model::differs(volume, *ino, node), None, "{note}: file {ino}"),
        }
    }
}

/// Performs a step on both. A step that fails due to a loss concerns a file that lost something.
fn perform(volume: &Volume, model: &mut Model, losses: &mut Losses, step: &Step, note: &str) {
    let files = model.files_of(step);
    if !losses.has(&files) {
        model.perform(volume, step, note);
        return;
    }
    // The result of a read is unknown beforehand.
    let done = match step {
        Step::Read(..) => return,
        _ => model.on_volume(volume, step, note),
    };
    match done {
        Ok(answer) => model.here(step, answer),
        Err(error @ (VolumeError::Stopped(_) | VolumeError::ReadOnly | VolumeError::Device(_))) => {
            panic!("{note}: {error}")
        }
        Err(_) => {}
    }
    if !matches!(step, Step::SyncFile(_) | Step::Sync | Step::LetGo) {
        losses
            .unknown
            .extend(files.iter().filter(|ino| losses.damaged.contains(ino)));
    }
}

#[test]
fn blocks_that_rot_in_use_cost_their_files_and_nothing_else() {
    for seed in seeds(8) {
        let device = made(BLOCKS, seed);
        let mut volume = open_in(&device, mode_of(seed));
        let mut model = Model::new();
        let mut random = SplitMix64::new(seed);
        let mut losses = Losses::default();
        let mut damages = 0;
        for number in 0..1_200 {
            let step = match random.coin() {
                true => Step::draw(&mut random, &model),
                false => Step::record(&mut random, &model),
            };
            let step = step.compressible(is_compressed(seed));
            let note = format!("seed {seed}, step {number}: {step:?}");
            perform(&volume, &mut model, &mut losses, &step, &note);
            // Numbers are given to others.
            losses.damaged.retain(|ino| model.nodes.contains_key(ino));
            losses.unknown.retain(|ino| model.nodes.contains_key(ino));
            if number > 200 && random.below(40) == 0 {
                // Else what waits in memory is to be written to where that leads.
                if random.coin() {
                    volume.sync().unwrap();
                }
                if let Some((address, ino)) = some_block(&volume, &mut random) {
                    match random.coin() {
                        true => device.make_unreadable(u64::from(address.0)),
                        false => device.rot(u64::from(address.0), random.below(4_000) as usize, 0x10),
                    }
                    losses.damaged.insert(ino);
                    damages += 1;
                    forget_unchanged(&volume);
                }
            }
            match random.below(150) {
                0..=20 => forget_unchanged(&volume),
                21 => compare(&volume, &model, &losses, &note),
                22 => drop(volume.tidy().unwrap()),
                23 => {
                    volume.sync().unwrap();
                    drop(volume);
                    // As after a crash: not closed.
                    volume = open_in(&device, mode_of(random.below(4)));
                    model.forget_held();
                    compare(&volume, &model, &losses, &format!("{note}, reopened"));
                }
                _ => {}
            }
        }
        assert!(damages > 8, "seed {seed}: {damages}");
        compare(&volume, &model, &losses, &format!("seed {seed}, at the end"));
        volume.close().unwrap();
        let shared = Arc::new(device.clone()) as Arc<dyn BlockDevice>;
        let repaired = crate::repair::repair(&shared, &crate::repair::RepairOptions::default()).unwrap();
        let left = repaired
            .after
            .problems
            .iter()
            .filter(|problem| !problem.trouble.is_loss());
        assert_eq!(
            left.collect::<Vec<_>>(),
            Vec::<&crate::check::Problem>::new(),
            "seed {seed}"
        );
        let volume = open(&device);
        // A file of which the inode is lost has no name any more.
        let is_gone = |ino: &u32| losses.damaged.contains(ino) && volume.attributes(*ino).is_err();
        let gone: BTreeSet<u32> = model.nodes.keys().copied().filter(is_gone).collect();
        model.nodes.retain(|ino, _| !gone.contains(ino));
        for node in model.nodes.values_mut() {
            node.entries.retain(|_, child| !gone.contains(child));
        }
        compare(&volume, &model, &losses, &format!("seed {seed}, repaired"));
    }
}

/// A block cannot be read any more, and is not in memory.
fn lose(device: &SimBlockDevice, volume: &Volume, find: impl FnOnce(&mut State) -> Result<Address>) {
    let address = volume.with_state(find).unwrap();
    device.make_unreadable(u64::from(address.0));
    forget_unchanged(volume);
}

fn file(volume: &Volume, name: &[u8]) -> u32 {
    let new = NewFile {
        mode: 0o100_644,
        ..NewFile::default()
    };
    volume.make(1, name, &new).unwrap().ino
}

fn content(volume: &Volume, ino: u32, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let count = volume.read(ino, offset, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// The node that leads to a page of a file by way of another one.
fn upper_node(state: &mut State, ino: u32, page: u64) -> Result<Address> {
    let way = crate::tree::place::way(page).unwrap();
    assert!(!way.steps.is_empty());
    let node = state.inode(Nid(ino))?.node(way.node.unwrap());
    Ok(state.space.table.get(&state.media, node)?.address)
}

/// The node that leads to a waiting page is lost: so is the page, the file's sync reports it, once,
/// and all else goes on.
#[test]
fn what_cannot_be_written_back_is_told_and_costs_its_pages() {
    const FAR: u64 = 20_000_000;
    for is_compressed in [false, true] {
        let device = SimBlockDevice::new(BLOCKS);
        let options = CreateOptions {
            is_compressed,
            ..CreateOptions::new(VolumeId([9; 16]), 1)
        };
        create(&(Arc::new(device.clone()) as Arc<dyn BlockDevice>), &options).unwrap();
        let volume = open_in(&device, DeltaMode::Off);
        let (lost, whole) = (file(&volume, b"lost"), file(&volume, b"whole"));
        for at in [0, FAR] {
            volume.write(lost, at, &[1; 9_000]).unwrap();
        }
        volume.sync().unwrap();
        for at in [0, FAR] {
            volume.write(lost, at, &[2; 9_000]).unwrap();
        }
        volume.write(whole, 0, &[3; 9_000]).unwrap();
        lose(&device, &volume, |state| upper_node(state, lost, FAR / PAGE));
        volume.sync().unwrap();
        assert!(volume.sync_file(lost).unwrap_err().is_loss());
        volume.sync_file(lost).unwrap();
        assert!(content(&volume, lost, FAR, 9_000).unwrap_err().is_loss());
        // In its inode's slots.
        assert!(content(&volume, lost, 0, 9_000).unwrap() == [2; 9_000]);
        volume.write(whole, 9_000, &[4; 9_000]).unwrap();
        volume.sync_file(whole).unwrap();
        drop(volume);
        let volume = open(&device);
        assert!(content(&volume, whole, 0, 20_000).unwrap() == [[3; 9_000], [4; 9_000]].concat());
        assert!(content(&volume, lost, 0, 9_000).unwrap() == [2; 9_000]);
        volume.unlink(1, b"lost").unwrap();
        volume.close().unwrap();
    }
}

/// Deltas that wait to be packed are written as pages if they are few: also then what leads to them
/// may be lost.
#[test]
fn a_delta_that_waits_and_whose_page_cannot_be_written_is_told() {
    let device = made(BLOCKS, 1);
    let volume = open_in(&device, DeltaMode::Main);
    let (lost, whole) = (file(&volume, b"lost"), file(&volume, b"whole"));
    let far = 4_000 * PAGE;
    let pages = SplitMix64::new(1).bytes(8 * BLOCK_LEN_BYTES);
    for round in 0..4 {
        // Written much.
        volume.write(lost, far, &pages).unwrap();
        volume.write(lost, far + round, &[round as u8; 10]).unwrap();
        volume.sync().unwrap();
    }
    volume.write(lost, far + 100, b"little").unwrap();
    assert!(
        volume
            .with_state(|state| Ok(state.small.is_waiting(Nid(lost), far / PAGE)))
            .unwrap()
    );
    volume.write(whole, 0, &[3; 9_000]).unwrap();
    lose(&device, &volume, |state| upper_node(state, lost, far / PAGE));
    volume.sync().unwrap();
    assert!(volume.sync_file(lost).unwrap_err().is_loss());
    assert!(content(&volume, lost, far, 10).unwrap_err().is_loss());
    assert!(content(&volume, whole, 0, 9_000).unwrap() == [3; 9_000]);
}

/// Overwriting all of a page heals it, be it damaged or unreadable, with a short call or a long
/// one.
#[test]
fn a_page_that_cannot_be_read_is_healed_by_who_writes_all_of_it() {
    for (mode, pages) in [DeltaMode::Off, DeltaMode::Both]
        .into_iter()
        .flat_map(|mode| [(mode, 1), (mode, 40)])
    {
        let device = made(BLOCKS, 1);
        let volume = open_in(&device, mode);
        let ino = file(&volume, b"file");
        let mut expected = SplitMix64::new(1).bytes(60 * BLOCK_LEN_BYTES);
        volume.write(ino, 0, &expected).unwrap();
        volume.sync().unwrap();
        lose(&device, &volume, |state| state.address_of(Nid(ino), 7));
        assert!(content(&volume, ino, 0, expected.len()).unwrap_err().is_loss());
        assert!(volume.write(ino, 7 * PAGE + 3, b"a part").unwrap_err().is_loss());
        let new = SplitMix64::new(2).bytes(pages * BLOCK_LEN_BYTES);
        expected[7 * BLOCK_LEN_BYTES..][..new.len()].copy_from_slice(&new);
        assert_eq!(volume.write(ino, 7 * PAGE, &new).unwrap(), new.len());
        assert!(content(&volume, ino, 0, expected.len()).unwrap() == expected);
        volume.sync_file(ino).unwrap();
        volume.close().unwrap();
        assert!(content(&open(&device), ino, 0, expected.len()).unwrap() == expected);
        assert_sound(&device, "healed");
    }
}

/// A block of the node table is lost: its files are, and there are new ones all the same, which do
/// not take their numbers.
#[test]
fn files_are_made_though_a_block_of_the_node_table_is_lost() {
    let device = made(8_000, 1);
    let volume = open_in(&device, DeltaMode::Off);
    let old: Vec<u32> = (0..300)
        .map(|number| file(&volume, format!("{number}").as_bytes()))
        .collect();
    let dir = volume
        .make(
            1,
            b"dir",
            &NewFile {
                mode: 0o040_755,
                ..NewFile::default()
            },
        )
        .unwrap()
        .ino;
    for number in 300..1_000 {
        volume
            .make(
                dir,
                format!("{number}").as_bytes(),
                &NewFile {
                    mode: 0o100_644,
                    ..NewFile::default()
                },
            )
            .unwrap();
    }
    for number in 600..1_000 {
        volume.unlink(dir, format!("{number}").as_bytes()).unwrap();
    }
    volume
        .with_state(|state| state.space.table.write(&state.media))
        .unwrap();
    volume.close().unwrap();
    // The second block: numbers from 454 on.
    let volume = open_in(&device, DeltaMode::Off);
    let second = volume
        .with_state(|state| {
            Ok(crate::log::node_table::NodeTable::address(
                &state.media,
                1,
                state.space.table.copies()[1],
            ))
        })
        .unwrap();
    drop(volume);
    device.make_unreadable(u64::from(second.0));
    let volume = open_in(&device, DeltaMode::Off);
    assert!(old.iter().all(|ino| volume.attributes(*ino).is_ok()));
    let lost: Vec<u32> = volume
        .list(dir, 0, 1_000)
        .unwrap()
        .iter()
        .map(|entry| entry.ino)
        .collect();
    let lost: Vec<u32> = lost
        .into_iter()
        .filter(|ino| volume.attributes(*ino).is_err())
        .collect();
    assert!(
        lost.len() > 100 && lost.iter().all(|ino| (454..908).contains(ino)),
        "{lost:?}"
    );
    // As when all numbers were given away once.
    volume
        .with_state(|state| {
            state.space.table.last = Nid(400);
            Ok(())
        })
        .unwrap();
    let new: Vec<u32> = (0..600)
        .map(|number| file(&volume, format!("new {number}").as_bytes()))
        .collect();
    assert!(new.iter().all(|ino| !(454..908).contains(ino)));
    volume.sync().unwrap();
    volume.close().unwrap();
    let volume = open(&device);
    assert!(new.iter().all(|ino| volume.attributes(*ino).is_ok()));
}

/// Everything outside the main area is lost: a reader has all files, or a few fewer, also those
/// that were synced last.
#[test]
fn who_only_reads_needs_no_segment_table() {
    for is_closed in [true, false] {
        let device = made(BLOCKS, 1);
        let volume = open_in(&device, DeltaMode::Both);
        let ino = file(&volume, b"file");
        let expected = SplitMix64::new(1).bytes(60 * BLOCK_LEN_BYTES);
        volume.write(ino, 0, &expected).unwrap();
        volume.sync().unwrap();
        let synced = file(&volume, b"synced");
        volume.write(synced, 0, &expected).unwrap();
        volume.sync_file(synced).unwrap();
        let areas = volume.with_state(|state| Ok(state.media.areas)).unwrap();
        match is_closed {
            true => volume.close().unwrap(),
            false => drop(volume),
        }
        for block in 0..2 * areas.segment_table_blocks {
            device.make_unreadable(u64::from(areas.segment_table_first + block));
        }
        let open = |is_writable| {
            let options = OpenOptions {
                is_writable,
                ..options()
            };
            Volume::open(Arc::new(device.clone()), &options)
        };
        assert!(open(true).unwrap_err().is_loss());
        let flushes = device.flushes();
        let volume = open(false).unwrap();
        for name in [&b"file"[..], b"synced"] {
            let ino = volume.look_up(1, name).unwrap().ino;
            assert!(content(&volume, ino, 0, expected.len()).unwrap() == expected);
        }
        assert!(matches!(volume.write(ino, 0, b"x"), Err(VolumeError::ReadOnly)));
        drop(volume);
        assert_eq!(device.flushes(), flushes);
    }
}

/// A file was made and synced, then the power was cut, and its directory rots: it is found again
/// without a name, and nothing that others synced is given up for it.
#[test]
fn a_synced_file_whose_directory_is_lost_is_found_by_a_repair() {
    let device = made(BLOCKS, 1);
    let volume = open_in(&device, DeltaMode::Off);
    let new = |mode| NewFile {
        mode,
        ..NewFile::default()
    };
    let dir = volume.make(1, b"dir", &new(0o040_755)).unwrap().ino;
    for number in 0..300 {
        volume
            .make(dir, format!("{number}").as_bytes(), &new(0o100_644))
            .unwrap();
    }
    volume.sync().unwrap();
    let nameless = volume.make(dir, b"new", &new(0o100_644)).unwrap().ino;
    let named = file(&volume, b"named");
    for ino in [nameless, named] {
        volume.write(ino, 0, &[7; 9_000]).unwrap();
        volume.sync_file(ino).unwrap();
    }
    let pages = volume.with_state(|state| state.addresses_of(Nid(dir), 0, 64)).unwrap();
    drop(volume);
    for page in pages.into_iter().filter(|page| page.is_block()) {
        device.make_unreadable(u64::from(page.0));
    }
    let volume = open(&device);
    assert!(content(&volume, named, 0, 9_000).unwrap() == [7; 9_000]);
    assert_eq!(volume.look_up(1, b"named").unwrap().ino, named);
    volume.close().unwrap();
    let shared = Arc::new(device.clone()) as Arc<dyn BlockDevice>;
    let repaired = crate::repair::repair(&shared, &crate::repair::RepairOptions::default()).unwrap();
    assert!(repaired.named > 0 && !repaired.gave_up_synced, "{repaired:?}");
    let volume = open(&device);
    assert!(content(&volume, nameless, 0, 9_000).unwrap() == [7; 9_000]);
    assert_eq!(volume.attributes(nameless).unwrap().links, 1);
}

/// Whether a sync was done before the power was cut cannot be seen, as the device does not give a
/// block back: nobody goes on from before it, but who only reads has what there is.
#[test]
fn what_may_have_been_synced_is_not_given_up_in_silence() {
    let device = made(BLOCKS, 1);
    let volume = open_in(&device, DeltaMode::Off);
    let (before, after) = (file(&volume, b"before"), file(&volume, b"after"));
    volume.sync().unwrap();
    for (ino, fill) in [(before, 1), (after, 2)] {
        volume.write(ino, 0, &[fill; 9_000]).unwrap();
        volume.sync_file(ino).unwrap();
    }
    let inode = |state: &mut State| Ok(state.space.table.get(&state.media, Nid(before))?.address);
    lose(&device, &volume, inode);
    drop(volume);
    let open = |is_writable| {
        let options = OpenOptions {
            is_writable,
            ..options()
        };
        Volume::open(Arc::new(device.clone()), &options)
    };
    assert!(matches!(open(true), Err(VolumeError::Unreadable { .. })));
    let volume = open(false).unwrap();
    assert!(content(&volume, after, 0, 9_000).unwrap().is_empty());
    drop(volume);
    let shared = Arc::new(device.clone()) as Arc<dyn BlockDevice>;
    let repaired = crate::repair::repair(&shared, &crate::repair::RepairOptions::default()).unwrap();
    assert!(repaired.gave_up_synced && repaired.after.is_sound(), "{repaired:?}");
    assert!(content(&open(true).unwrap(), after, 0, 9_000).unwrap().is_empty());
}
