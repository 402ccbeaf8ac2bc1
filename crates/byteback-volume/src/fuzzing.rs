//! Entry point of the fuzz target (`fuzz/`): a volume in which some blocks are edited and sealed
//! again, so that the code behind the checksums is reached. Compiled for tests, which call it with
//! noise, and with the feature `fuzzing`.
//!
//! Input: `kind of image, edits (mod 64), (block u16, offset u16, how u8, value u8)*, (operation,
//! which, offset, length)*`, bytes and little-endian numbers; missing input is zero.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use byteback_host::block::{BLOCK_LEN_BYTES, BlockDevice, SimBlockDevice};
use byteback_host::clock::SimClock;
use byteback_host::random::SplitMix64;

use crate::format::{Address, Block, Kind, VolumeId, zeros};
use crate::{
    Allocate, CheckOptions, CreateOptions, NewFile, OpenOptions, Rename, RepairOptions, SetAttribute, SetAttributes,
    Volume, VolumeError, check, create, repair,
};

const ID: VolumeId = VolumeId([7; 16]);

/// Blocks of an image: little more than the least that a volume needs.
const BLOCKS: u64 = 2_600;

/// Most directory entries looked at in all.
const ENTRIES_MAX: usize = 600;

/// Bytes read of each file.
const READ_LEN_BYTES: usize = 16 << 10;

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }
}

fn options(is_writable: bool) -> OpenOptions {
    OpenOptions {
        is_writable,
        cache_len_bytes: 0,
        unwritten_len_bytes: 0,
        // So little that an index has leaves.
        delta_index_len_bytes_max: 192,
        clock: Arc::new(SimClock::new(1_700_000_000_000_000_000)),
        ..OpenOptions::default()
    }
}

fn file(mode: u32) -> NewFile {
    NewFile {
        mode,
        ..NewFile::default()
    }
}

/// Kind of an image.
#[derive(Clone, Copy)]
struct Sort {
    /// Closed, or as a crash leaves it.
    is_closed: bool,
    /// Pages are compressed.
    is_compressed: bool,
}

impl Sort {
    fn content(self, random: &mut SplitMix64, len: usize) -> Vec<u8> {
        let mut bytes = random.bytes(len);
        if self.is_compressed {
            bytes.iter_mut().for_each(|byte| *byte &= 3);
        }
        bytes
    }
}

/// A volume with a bit of everything.
fn fill(device: &Arc<dyn BlockDevice>, sort: Sort) -> Result<(), VolumeError> {
    let options_of_new = CreateOptions {
        is_compressed: sort.is_compressed,
        clock: Arc::new(SimClock::new(1_700_000_000_000_000_000)),
        ..CreateOptions::new(ID, 5)
    };
    create(device, &options_of_new)?;
    let volume = Volume::open(Arc::clone(device), &options(true))?;
    let mut random = SplitMix64::new(1);
    let dir = volume.make(1, b"dir", &file(0o040_755))?.ino;
    let wide = volume.make(dir, b"wide", &file(0o040_755))?.ino;
    for number in 0..110 {
        let small = volume
            .make(wide, format!("small {number}").as_bytes(), &file(0o100_644))?
            .ino;
        if number % 20 == 0 {
            volume.write(small, 0, &random.bytes(30))?;
        }
    }
    let large = volume.make(1, b"large", &file(0o100_644))?.ino;
    volume.write(large, 0, &sort.content(&mut random, 20 * BLOCK_LEN_BYTES))?;
    for offset in [4_000_000, 9_000_000, 20_000_000_000] {
        volume.write(large, offset, b"far away")?;
    }
    volume.link(large, dir, b"its other name")?;
    volume.set_xattr(large, b"user.long", &random.bytes(900), SetAttribute::Any)?;
    volume.set_xattr(dir, b"user.short", b"value", SetAttribute::Any)?;
    volume.make_symlink(dir, b"link", b"../large", &file(0o120_777))?;
    volume.make(dir, b"device", &file(0o020_600))?;
    volume.allocate(large, Allocate::RoomKeepingLength, 200_000, 50_000)?;
    volume.sync()?;
    for page in 0..19 {
        volume.write(large, page * BLOCK_LEN_BYTES as u64 + 9, &random.bytes(300))?;
    }
    volume.sync()?;
    volume.write(large, 300, b"a delta")?;
    let log = volume.make(dir, b"log", &file(0o100_644))?.ino;
    for _ in 0..7 {
        let len = volume.attributes(log)?.len_bytes;
        volume.write(log, len, &sort.content(&mut random, 4_120))?;
        volume.sync_file(log)?;
    }
    if sort.is_closed {
        return volume.close();
    }
    volume.make_unnamed(&file(0o100_600))?;
    volume.sync()?;
    volume.write(large, 9_000_000, &sort.content(&mut random, 5_000))?;
    for page in 5..19 {
        volume.write(large, page * BLOCK_LEN_BYTES as u64 + 500, &random.bytes(400))?;
    }
    volume.sync_file(large)?;
    let new = volume.make(dir, b"new", &file(0o100_644))?.ino;
    volume.write(new, 0, &sort.content(&mut random, 30_000))?;
    volume.sync_file(new)?;
    std::mem::forget(volume);
    Ok(())
}

/// An image, and its blocks that are sealed or hold content, each with its kind.
struct Image {
    device: SimBlockDevice,
    blocks: Vec<(u64, Option<Kind>)>,
}

const KINDS: [Kind; 16] = [
    Kind::Cluster,
    Kind::DeltaMeta,
    Kind::DeltaCompact,
    Kind::DeltaLeaf,
    Kind::Node,
    Kind::Directory,
    Kind::PackHeader,
    Kind::PackFooter,
    Kind::PackBitmaps,
    Kind::PackJournal,
    Kind::PackOrphans,
    Kind::PackSummaries,
    Kind::Summary,
    Kind::NodeTable,
    Kind::SegmentTable,
    Kind::Superblock,
];

fn block_at(device: &SimBlockDevice, at: u64) -> Box<Block> {
    let mut block = zeros();
    let read = device.read_blocks(at, &mut block[..]);
    assert!(read.is_ok(), "the simulated device failed");
    block
}

fn image(sort: Sort) -> Image {
    let device = SimBlockDevice::new(BLOCKS);
    let filled = fill(&(Arc::new(device.clone()) as Arc<dyn BlockDevice>), sort);
    assert!(filled.is_ok(), "{filled:?}");
    let device = device.copy();
    let found = (0..BLOCKS).filter_map(|at| {
        let block = block_at(&device, at);
        let address = Address(u32::try_from(at).ok()?);
        let is_something = block.iter().any(|byte| *byte != 0);
        is_something.then(|| (at, KINDS.into_iter().find(|kind| ID.is_sealed(&block, *kind, address))))
    });
    let blocks = found.collect();
    Image { device, blocks }
}

/// Images are made on first use: their memory counts as that input's.
fn image_of(number: u8) -> &'static Image {
    static IMAGES: [OnceLock<Image>; 4] = [const { OnceLock::new() }; 4];
    let sort = Sort {
        is_closed: number.is_multiple_of(2),
        is_compressed: number & 2 != 0,
    };
    let [closed, crashed, closed_compressed, crashed_compressed] = &IMAGES;
    let place = match (sort.is_compressed, sort.is_closed) {
        (false, true) => closed,
        (false, false) => crashed,
        (true, true) => closed_compressed,
        (true, false) => crashed_compressed,
    };
    place.get_or_init(|| image(sort))
}

/// Opens a damaged image, walks through it, writes to it, checks it and repairs it.
pub fn volume(data: &[u8]) {
    let mut input = Input(data);
    let image = image_of(input.byte());
    let device = image.device.copy();
    for _ in 0..input.byte() % 64 {
        edit(&device, image, &mut input);
    }
    let shared: Arc<dyn BlockDevice> = Arc::new(device.clone());
    let _ = check(&device, CheckOptions::default());
    if let Ok(volume) = Volume::open(Arc::new(device.copy()), &options(false)) {
        walk(&volume);
        let _ = volume.close();
    }
    let trial: Arc<dyn BlockDevice> = Arc::new(device.copy());
    if let Ok(volume) = Volume::open(Arc::clone(&trial), &options(true)) {
        let inos = walk(&volume);
        for _ in 0..40 {
            if input.0.is_empty() {
                break;
            }
            operate(&volume, &inos, &mut input);
        }
        let _ = volume.close();
    }
    let options = RepairOptions {
        open: options(true),
        ..RepairOptions::default()
    };
    // A volume that was written to while it was damaged, and one that was not.
    for device in [trial, shared] {
        if let Ok(repaired) = repair(&device, &options) {
            let left = repaired
                .after
                .problems
                .iter()
                .find(|problem| !problem.trouble.is_loss());
            assert!(left.is_none(), "a repair leaves {left:?}");
        }
    }
}

fn edit(device: &SimBlockDevice, image: &Image, input: &mut Input<'_>) {
    let which = usize::from(input.number()).checked_rem(image.blocks.len()).unwrap_or(0);
    let offset = usize::from(input.number()) % (BLOCK_LEN_BYTES - 4);
    let (how, value) = (input.byte(), input.byte());
    let Some((at, kind)) = image.blocks.get(which).copied() else {
        return;
    };
    let mut block = block_at(device, at);
    let Some(place) = block.get_mut(offset..offset + 4) else {
        return;
    };
    match how % 5 {
        0 => place.iter_mut().take(1).for_each(|byte| *byte ^= value),
        1 => place.copy_from_slice(&u32::from(value).to_le_bytes()),
        2 => place.fill(0xff),
        3 => place.fill(0),
        _ => place.reverse(),
    }
    if let (Some(kind), Ok(address)) = (kind, u32::try_from(at)) {
        ID.seal(&mut block, kind, Address(address));
    }
    let written = device.write_blocks(at, &block[..]);
    assert!(written.is_ok(), "the simulated device failed");
}

/// Visits everything that names lead to; returns the numbers met.
fn walk(volume: &Volume) -> Vec<u32> {
    let mut inos = vec![1];
    let mut visited = BTreeSet::from([1]);
    let mut dirs = vec![1];
    let mut entries = 0;
    while let Some(dir) = dirs.pop() {
        let mut from = 0;
        while let Ok(listed) = volume.list(dir, from, 50) {
            let Some(last) = listed.last().filter(|_| entries < ENTRIES_MAX) else {
                break;
            };
            assert!(last.next > from, "a listing goes back");
            from = last.next;
            entries += listed.len();
            for entry in listed {
                let _ = volume.look_up(dir, &entry.name);
                if !visited.insert(entry.ino) {
                    continue;
                }
                inos.push(entry.ino);
                if look(volume, entry.ino) {
                    dirs.push(entry.ino);
                }
            }
        }
    }
    inos
}

/// Reads what can be read of a file; true if it is a directory.
fn look(volume: &Volume, ino: u32) -> bool {
    let Ok(there) = volume.attributes(ino) else {
        return false;
    };
    let mut buffer = vec![0; READ_LEN_BYTES];
    for offset in [
        0,
        3_999_000,
        8_999_000,
        20_000_000_000,
        there.len_bytes.saturating_sub(100),
    ] {
        let _ = volume.read(ino, offset, &mut buffer);
    }
    let mut at = 0;
    for _ in 0..20 {
        let Ok(Some(data)) = volume.seek(ino, at, true) else {
            break;
        };
        let Ok(Some(hole)) = volume.seek(ino, data, false) else {
            break;
        };
        assert!(at <= data && data < hole, "a search for data goes back");
        at = hole;
    }
    for name in volume.xattr_names(ino).unwrap_or_default() {
        let _ = volume.xattr(ino, &name);
    }
    let _ = (volume.read_symlink(ino), volume.parent(ino));
    there.mode >> 12 == 4
}

fn operate(volume: &Volume, inos: &[u32], input: &mut Input<'_>) {
    let (how, which, offset, len) = (input.byte(), input.byte(), input.number(), input.number());
    let pick = |number: usize| inos.get(number % inos.len().max(1)).copied().unwrap_or(1);
    let (ino, other) = (pick(usize::from(which)), pick(usize::from(offset)));
    let offset = u64::from(offset) * 700;
    let name = format!("name {}", which % 8);
    let name_there = |dir: u32| {
        let listed = volume.list(dir, 0, 1 + usize::from(which % 16)).unwrap_or_default();
        listed
            .last()
            .map_or_else(|| name.clone().into_bytes(), |entry| entry.name.clone())
    };
    let content = vec![which; usize::from(len) % 20_000];
    let _ = match how % 16 {
        0 | 1 => volume.write(ino, offset, &content).map(drop),
        2 => volume.make(ino, name.as_bytes(), &file(0o100_644)).map(drop),
        3 => volume.make(ino, name.as_bytes(), &file(0o040_755)).map(drop),
        4 => volume.unlink(ino, &name_there(ino)),
        5 => volume.remove_directory(ino, &name_there(ino)),
        6 => volume.rename((ino, &name_there(ino)), (other, name.as_bytes()), Rename::Replace),
        7 => volume.rename((ino, &name_there(ino)), (other, &name_there(other)), Rename::Exchange),
        8 => volume.link(ino, other, name.as_bytes()).map(drop),
        9 => {
            let set = SetAttributes {
                len_bytes: Some(offset),
                ..SetAttributes::default()
            };
            volume.set_attributes(ino, &set).map(drop)
        }
        10 => volume.allocate(ino, Allocate::Punch, offset, u64::from(len) + 1),
        11 => volume.allocate(ino, Allocate::Zero, offset, u64::from(len) + 1),
        12 => volume.set_xattr(ino, name.as_bytes(), &content, SetAttribute::Any),
        13 => volume.sync_file(ino),
        14 => volume.sync(),
        _ => volume.tidy().map(drop),
    };
}

/// Seeds with no edits and some operations, and with edits of each kind.
#[must_use]
pub fn volume_seeds() -> Vec<Vec<u8>> {
    let mut random = SplitMix64::new(1);
    let mut seeds = vec![Vec::new(), vec![1], vec![2], vec![3]];
    for number in 0..12u8 {
        let mut seed = vec![number % 4, number / 2];
        seed.extend(random.bytes(6 * usize::from(number / 2) + 6 * 30));
        seeds.push(seed);
    }
    seeds
}

#[cfg(test)]
mod tests;
