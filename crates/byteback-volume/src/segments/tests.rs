use super::*;
use byteback_host::random::SplitMix64;
use std::collections::BTreeSet;

fn areas() -> Areas {
    crate::geometry::divide(4_096).unwrap()
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
