use super::*;
use byteback_host::random::SplitMix64;
use std::collections::BTreeSet;

fn areas() -> Areas {
    crate::log::geometry::divide(4_096).unwrap()
}

fn segments() -> Segments {
    let areas = areas();
    let valid = vec![0; usize::try_from(areas.segment_blocks / 8).unwrap()];
    let entry = SegmentEntry {
        valid,
        ..SegmentEntry::default()
    };
    let count = usize::try_from(areas.main_segments).unwrap();
    let mut segments = Segments::new(areas, vec![entry; count]);
    segments.open_logs().unwrap();
    segments
}

/// Against sets: what was given out, what is referred to, what the last checkpoint knows.
#[test]
fn nothing_is_written_over_that_a_checkpoint_or_anybody_knows() {
    for seed in 0..60 {
        let mut random = SplitMix64::new(seed);
        let mut segments = segments();
        let areas = segments.areas;
        let mut valid: Vec<Address> = Vec::new();
        let mut untouchable: BTreeSet<Address> = BTreeSet::new();
        let mut promised: [Option<Address>; LOGS] = [None; LOGS];
        let (mut full, mut freed) = (0, 0);
        for _ in 0..6_000 {
            match random.below(20) {
                0..=8 => {
                    let kind = LogKind::ALL[random.below(6) as usize];
                    let summary = Summary {
                        nid: crate::format::Nid(7),
                        ..Summary::default()
                    };
                    let wanted: Vec<Summary> = (0..1 + random.below(9) as u32)
                        .map(|checksum| Summary { checksum, ..summary })
                        .collect();
                    match segments.allocate_run(kind, &wanted, 1) {
                        Ok((first, count, after)) => {
                            assert!(count > 0 && count as usize <= wanted.len(), "seed {seed}: {count}");
                            let promise = promised[kind as usize].replace(after);
                            assert!(promise.is_none_or(|promise| promise == first), "seed {seed}");
                            for (address, summary) in (first.0..first.0 + count).map(Address).zip(&wanted) {
                                assert!(untouchable.insert(address), "seed {seed}: {address} is written twice");
                                valid.push(address);
                                assert_eq!(segments.summary_of(address), Some(*summary));
                            }
                            let mut checksums = vec![99; count as usize + 2];
                            let known = segments.put_checksums(first, &mut checksums);
                            assert!(known >= count as usize, "seed {seed}: {known}");
                            assert!(
                                checksums.iter().take(count as usize).copied().eq(0..count),
                                "seed {seed}"
                            );
                        }
                        Err(VolumeError::Full) => full += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                9..=18 if !valid.is_empty() => {
                    let first = valid[random.below(valid.len() as u64) as usize];
                    let count = 1 + random.below(8) as u32;
                    let run: BTreeSet<Address> = (first.0..first.0 + count).map(Address).collect();
                    valid.retain(|address| !run.contains(address));
                    segments.release_run(first, count);
                    assert!(run.iter().all(|address| !segments.is_valid(*address)), "seed {seed}");
                }
                _ => {
                    let free: Vec<u32> = segments.checkpointed();
                    freed += free.len();
                    let of = |address: &Address| areas.segment_of(*address).unwrap().0;
                    let open: BTreeSet<u32> = segments.heads().map(|(head, _)| head.segment).collect();
                    let known: BTreeSet<u32> = valid.iter().map(of).collect();
                    assert!(
                        free.iter()
                            .all(|number| !open.contains(number) && !known.contains(number))
                    );
                    untouchable.retain(|address| known.contains(&of(address)) || open.contains(&of(address)));
                    segments.take_filled();
                }
            }
            for address in valid.iter().take(20) {
                assert!(segments.is_valid(*address));
            }
        }
        assert!(freed > 10, "seed {seed}: {full} {freed}");
    }
}

/// For any state of the logs, and any division of the blocks among them.
#[test]
fn no_more_segments_are_taken_than_was_said() {
    let (mut exact, mut checked) = (0, 0);
    for seed in 0..400 {
        let mut random = SplitMix64::new(seed);
        let mut segments = segments();
        if random.coin() {
            let full = random.below(6) as usize;
            for log in &mut segments.logs[..full] {
                log.head.next = segments.areas.segment_blocks;
            }
        }
        for _ in 0..random.below(300) {
            let kind = LogKind::ALL[random.below(6) as usize];
            let _ = segments.allocate(kind, Summary::default(), 1);
        }
        let blocks = random.below(300) as u32;
        let needed = segments.segments_needed(blocks);
        if needed > segments.free_segments() {
            continue;
        }
        let free = segments.free_segments();
        // The one that needs a segment next, most of the time.
        for _ in 0..blocks {
            let until = |log: &Log| match (segments.areas.segment_blocks - log.head.next, log.upcoming()) {
                (0, None) => 1,
                (0, Some(_)) => segments.areas.segment_blocks,
                (left, _) => left,
            };
            let eager = (0..LOGS).min_by_key(|index| until(&segments.logs[*index])).unwrap();
            let index = if seed % 4 == 0 { random.below(6) as usize } else { eager };
            segments.allocate(LogKind::ALL[index], Summary::default(), 1).unwrap();
        }
        let taken = free - segments.free_segments();
        assert!(taken <= needed, "seed {seed}: {taken} of {needed} for {blocks}");
        checked += 1;
        exact += u32::from(taken == needed);
    }
    assert!(checked > 300 && exact > 200, "{checked} {exact}");
}

/// After a crash with few free segments the logs go on where nothing is in use, and what is in use
/// has its summary.
#[test]
fn logs_go_on_after_a_crash_where_nothing_is_in_use() {
    let mut scarce = 0;
    for seed in 0..200 {
        let mut random = SplitMix64::new(seed);
        let mut segments = segments();
        let areas = segments.areas;
        let mut written: Vec<(Address, Summary)> = Vec::new();
        let fill = 1_500 + random.below(2_500);
        for _ in 0..fill {
            let summary = Summary {
                nid: crate::format::Nid(7),
                checksum: random.next_u64() as u32,
                ..Summary::default()
            };
            let kind = LogKind::ALL[random.below(6) as usize];
            if let Ok((address, _)) = segments.allocate(kind, summary, 1) {
                written.push((address, summary));
            }
        }
        let heads: [LogHead; LOGS] = segments
            .heads()
            .map(|(head, _)| head)
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        let open: Vec<Summary> = segments
            .heads()
            .flat_map(|(head, summaries)| summaries[..head.next as usize].to_vec())
            .collect();
        let entries: Vec<SegmentEntry> = segments.segments.iter().map(|segment| segment.entry.clone()).collect();
        let known = written.clone();
        // Of what comes later only what files' logs got counts, unless the volume is damaged.
        let write = |segments: &mut Segments, kind: LogKind| segments.allocate(kind, Summary::default(), 1).ok();
        let mut adopted = Vec::new();
        for _ in 0..random.below(200) {
            let kind = LogKind::ALL[random.below(6) as usize];
            if let Some((address, _)) = write(&mut segments, kind)
                && (seed % 5 == 0 || matches!(kind, LogKind::WarmNode | LogKind::WarmData | LogKind::ColdData))
                && random.coin()
            {
                adopted.push(address);
            }
        }
        let mut after = Segments::new(areas, entries);
        after.close_logs(&heads, &open);
        for address in &adopted {
            assert!(after.was_unwritten(*address, &heads), "seed {seed}");
            after.acquire(*address);
            after.amend_summary(*address, Summary::default());
        }
        let free = after.free.clone();
        match after.reopen_logs(&heads) {
            Ok(()) => scarce += u32::from(free.len() < FREE_TO_BEGIN_ALL),
            Err(error) => {
                // All that are free are of other logs than that of nodes.
                let is_of_another = |number: &u32| {
                    let others = heads.iter().enumerate().filter(|(index, _)| *index != 1);
                    others
                        .map(|(_, head)| head)
                        .any(|head| head.segment == *number || head.upcoming == *number)
                };
                assert!(matches!(error, VolumeError::Full), "seed {seed}: {error}");
                assert!(free.iter().all(is_of_another), "seed {seed}: {free:?}");
                continue;
            }
        }
        // Segments of waiting logs can be cleaned.
        let candidates: BTreeSet<u32> = after.candidates().map(|(number, ..)| number).collect();
        let mut waiting = after.logs.iter().filter(|log| log.waits());
        assert!(waiting.all(|log| candidates.contains(&log.head.segment)), "seed {seed}");
        let distinct: BTreeSet<u32> = after.heads().map(|(head, _)| head.segment).collect();
        assert_eq!(distinct.len(), LOGS, "seed {seed}");
        assert!(
            after.heads().nth(1).is_some_and(|(head, _)| head.next == 0),
            "seed {seed}"
        );
        let in_use: BTreeSet<Address> = known
            .iter()
            .map(|(address, _)| *address)
            .chain(adopted.clone())
            .collect();
        let mut fresh = BTreeSet::new();
        for round in 0..3 {
            for _ in 0..random.below(500) {
                let kind = LogKind::ALL[random.below(6) as usize];
                if let Some((address, _)) = write(&mut after, kind) {
                    assert!(
                        !in_use.contains(&address) && fresh.insert(address),
                        "seed {seed}, round {round}"
                    );
                }
            }
            for (address, summary) in &known {
                let there = after.summary_of(*address);
                assert!(
                    there.is_none_or(|there| there == *summary),
                    "seed {seed}, round {round}"
                );
            }
            after.restart_empty_logs();
            after.checkpointed();
        }
    }
    println!("{scarce} times few segments were free");
    assert!(scarce > 50, "{scarce}");
}
