//! The outcome of a power cut: one draw from everything that the contract allows.
//!
//! Uniform choice alone would hardly ever leave an extreme ("all of this file, nothing of that
//! one"), and extremes are what protocols forget. So each file and each directory first draws a
//! mood: nothing pending survives, all of it, a prefix, or each piece by itself with a bias. Each
//! object draws from a generator of its own, made of seed and identifier, so that one more write to
//! a file does not change what happens to the others.

use std::collections::BTreeMap;

use super::world::{Change, DirState, FileState, NameChange, Node, World};
use crate::random::SplitMix64;

/// The unit that disks write atomically.
const SECTOR_LEN_BYTES: usize = 512;

/// The state of `world` after a power cut.
pub(super) fn survivor(world: &World, seed: u64) -> World {
    let mut files = BTreeMap::new();
    let mut dirs = BTreeMap::new();
    let mut to_visit = vec![World::ROOT];
    while let Some(id) = to_visit.pop() {
        let Some(dir) = world.dirs.get(&id) else { continue };
        let names = surviving_names(dir, &mut generator(seed, id));
        for node in names.values() {
            match node {
                Node::Dir(below) => to_visit.push(*below),
                Node::File(id) => {
                    let Some(file) = world.files.get(id) else { continue };
                    let in_sync = world.in_sync == Some(*node);
                    let bytes = surviving_bytes(file, in_sync, &mut generator(seed, *id));
                    files.insert(
                        *id,
                        FileState {
                            live: bytes.clone(),
                            durable: bytes,
                            pending: Vec::new(),
                        },
                    );
                }
            }
        }
        dirs.insert(
            id,
            DirState {
                live: names.clone(),
                durable: names,
                pending: Vec::new(),
            },
        );
    }
    World::restored(world, seed, files, dirs)
}

fn generator(seed: u64, id: u64) -> SplitMix64 {
    let mut mixer = SplitMix64::new(id);
    SplitMix64::new(seed ^ mixer.next_u64())
}

/// The names that came back: durable ones with a legal choice of the pending changes.
fn surviving_names(dir: &DirState, random: &mut SplitMix64) -> BTreeMap<String, Node> {
    let pending = &dir.pending;
    let prefix = match random.below(6) {
        0 => Some(0),
        1 => Some(pending.len() as u64),
        2 => Some(random.below(pending.len() as u64 + 1)),
        _ => None,
    };
    let mut names = dir.durable.clone();
    let mut lost: Vec<&NameChange> = Vec::new();
    for (i, change) in pending.iter().enumerate() {
        let kept = match prefix {
            Some(prefix) => (i as u64) < prefix,
            None => random.coin(),
        };
        // Operations that share a name keep their order: one that builds on a lost one is lost,
        // too.
        let builds_on_lost = lost
            .iter()
            .any(|earlier| earlier.names().any(|name| change.names().any(|n| n == name)));
        if kept && !builds_on_lost {
            change.apply(&mut names);
        } else {
            lost.push(change);
        }
    }
    names
}

/// The bytes that came back: durable ones with a legal choice of the pending changes. With
/// `in_sync`, the power was cut while this file was synced: each sector is either old or what the
/// sync was to make it.
pub(super) fn surviving_bytes(file: &FileState, in_sync: bool, random: &mut SplitMix64) -> Vec<u8> {
    let pending = &file.pending;
    let all = pending.len();
    let mood = if in_sync {
        Mood::OldOrNew
    } else {
        Mood::draw(random, all)
    };
    if let Mood::Prefix(prefix) = mood {
        let mut bytes = file.durable.clone();
        pending.iter().take(prefix).for_each(|change| change.apply(&mut bytes));
        return bytes;
    }

    // The lengths before each change and after the last, and which change has the last word about
    // the length.
    let mut lengths = vec![file.durable.len()];
    for change in pending {
        let before = *lengths.last().unwrap_or(&0);
        lengths.push(match change {
            Change::Write { at, data } => before.max(at + data.len()),
            Change::SetLen(len) => *len,
        });
    }
    let lengths = lengths;
    let cut = match mood {
        Mood::OldOrNew => all * usize::from(random.coin()),
        _ => below(random, all + 1),
    };
    let mut len = lengths.get(cut).copied().unwrap_or(0);
    if let (Some(Change::Write { .. }), Some(next)) = (pending.get(cut), lengths.get(cut + 1)) {
        // A growing write grows the file piece by piece.
        if *next > len && random.coin() {
            let step = (len + below(random, *next - len)) / SECTOR_LEN_BYTES * SECTOR_LEN_BYTES;
            len = len.max(step);
        }
    }

    let mut bytes = file.durable.clone();
    bytes.resize(len, 0);
    for (sector, touching) in touching_changes(pending, &lengths) {
        let start = sector * SECTOR_LEN_BYTES;
        if start >= len {
            continue;
        }
        let upto = draw_moment(pending, &touching, cut, mood, random);
        let content = sector_after(&file.durable, pending, &touching, upto, start);
        for (to, from) in bytes.iter_mut().skip(start).zip(content) {
            *to = from;
        }
    }
    bytes
}

#[derive(Clone, Copy)]
enum Mood {
    /// This many changes, the first ones, survive whole.
    Prefix(usize),
    /// Each sector shows any moment, all alike.
    Any,
    /// Nearly all sectors are as old as possible.
    MostlyOld,
    /// Nearly all sectors are as new as possible.
    MostlyNew,
    /// Each sector shows the first moment or the last.
    OldOrNew,
}

impl Mood {
    fn draw(random: &mut SplitMix64, all: usize) -> Self {
        match random.below(8) {
            0 => Self::Prefix(0),
            1 => Self::Prefix(all),
            2 => Self::Prefix(below(random, all + 1)),
            3 => Self::MostlyOld,
            4 => Self::MostlyNew,
            5 => Self::OldOrNew,
            _ => Self::Any,
        }
    }
}

fn below(random: &mut SplitMix64, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).unwrap_or(0)
}

/// For each sector that a change touches: the indices of those changes, in order.
fn touching_changes(pending: &[Change], lengths: &[usize]) -> BTreeMap<usize, Vec<usize>> {
    let mut touching: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, (change, before)) in pending.iter().zip(lengths).enumerate() {
        let (start, end) = match change {
            Change::Write { at, data } => (*at, at + data.len()),
            Change::SetLen(len) => (*len, *before),
        };
        if start < end {
            for sector in start / SECTOR_LEN_BYTES..=(end - 1) / SECTOR_LEN_BYTES {
                touching.entry(sector).or_default().push(i);
            }
        }
    }
    touching
}

/// Draws how many of the `touching` changes a sector shows, if the length is the one before change
/// `cut`. A cut of the file that came before that moment has taken its bytes away for good; one
/// that comes after has not yet, and what was written after it went to space that the file does not
/// own yet.
fn draw_moment(pending: &[Change], touching: &[usize], cut: usize, mood: Mood, random: &mut SplitMix64) -> usize {
    let mut first = 0;
    let mut last = touching.len();
    for (nth, i) in touching.iter().enumerate() {
        if matches!(pending.get(*i), Some(Change::SetLen(_))) {
            if *i < cut {
                first = nth + 1;
            } else {
                last = nth;
                break;
            }
        }
    }
    match mood {
        Mood::OldOrNew => {
            if random.coin() {
                first
            } else {
                last
            }
        }
        Mood::MostlyOld if random.below(8) > 0 => first,
        Mood::MostlyNew if random.below(8) > 0 => last,
        _ => first + below(random, last - first + 1),
    }
}

/// The sector at `start` after the first `upto` of the changes that touch it.
fn sector_after(
    durable: &[u8],
    pending: &[Change],
    touching: &[usize],
    upto: usize,
    start: usize,
) -> [u8; SECTOR_LEN_BYTES] {
    let mut sector = [0; SECTOR_LEN_BYTES];
    for (to, from) in sector.iter_mut().zip(durable.iter().skip(start)) {
        *to = *from;
    }
    for change in touching.iter().take(upto).filter_map(|i| pending.get(*i)) {
        match change {
            Change::Write { at, data } => {
                let (skip_sector, skip_data) = (at.saturating_sub(start), start.saturating_sub(*at));
                for (to, from) in sector.iter_mut().skip(skip_sector).zip(data.iter().skip(skip_data)) {
                    *to = *from;
                }
            }
            Change::SetLen(len) => sector
                .iter_mut()
                .skip(len.saturating_sub(start))
                .for_each(|byte| *byte = 0),
        }
    }
    sector
}
