//! Compares bitmaps, counters and logs of the checkpoint with what was found.

use super::{Files, Image, Names, Problems, Trouble};
use crate::format::{Address, LogHead, Nid};

pub(super) fn compare(image: &Image<'_>, files: &Files, _names: &Names, problems: &mut Problems) {
    bitmaps(image, files, problems);
    logs(image, problems);
    let pack = &image.pack;
    let counters = [
        ("blocks in use", files.used_blocks(), pack.used_blocks),
        ("nodes", files.nodes, pack.nodes),
        (
            "files",
            u32::try_from(files.known.len()).unwrap_or(u32::MAX),
            pack.inodes,
        ),
    ];
    for (what, found, said) in counters {
        if found != said {
            problems.add(Trouble::Counter { what, found, said });
        }
    }
    if !is_delta_list_right(pack.delta_list, files) {
        problems.add(Trouble::DeltaList);
    }
}

/// Whether the list holds exactly the files with deltas in the main area, each with its
/// predecessor.
fn is_delta_list_right(first: Nid, files: &Files) -> bool {
    let mut visited = std::collections::BTreeSet::new();
    let (mut previous, mut at) = (Nid::NONE, first);
    while at != Nid::NONE {
        match files.known.get(&at) {
            Some(known) if known.delta_previous == previous && visited.insert(at) => {
                (previous, at) = (at, known.delta_next);
            }
            _ => return false,
        }
    }
    files.known.iter().all(|(ino, known)| {
        (known.has_delta_index, known.flags.has_main_deltas) == (visited.contains(ino), visited.contains(ino))
    })
}

fn bitmaps(image: &Image<'_>, files: &Files, problems: &mut Problems) {
    let areas = image.areas();
    for (segment, entry) in (0..).zip(&image.segments) {
        // Its damage was reported.
        let Some(entry) = entry else { continue };
        let mut marked = 0;
        for index in 0..areas.segment_blocks {
            let is_owned = files.owned.is_set(segment * areas.segment_blocks + index);
            match (entry.is_valid(index), is_owned) {
                (true, false) => marked += 1,
                (false, true) => problems.add(Trouble::Unmarked(Address(areas.segment_first(segment).0 + index))),
                _ => {}
            }
        }
        if marked > 0 {
            let blocks = marked;
            problems.add(Trouble::Marked { segment, blocks });
        }
    }
}

/// Checks that each log has a segment of its own, and that nothing is in use where it goes on.
fn logs(image: &Image<'_>, problems: &mut Problems) {
    let areas = image.areas();
    let is_unused = |segment: u32, from: u32| {
        let entry = image.segments.get(segment as usize);
        let is_valid = |index| {
            entry
                .and_then(Option::as_ref)
                .is_some_and(|entry| entry.is_valid(index))
        };
        !(from..areas.segment_blocks).any(is_valid)
    };
    let mut taken = std::collections::BTreeSet::new();
    for (index, log) in image.pack.logs.iter().enumerate() {
        let has_upcoming = log.upcoming != LogHead::UNDECIDED;
        let is_sound = log.segment < areas.main_segments
            && log.next <= areas.segment_blocks
            && taken.insert(log.segment)
            && is_unused(log.segment, log.next)
            && (!has_upcoming
                || log.upcoming < areas.main_segments && taken.insert(log.upcoming) && is_unused(log.upcoming, 0));
        if !is_sound {
            problems.add(Trouble::Log(index));
        }
    }
}
