use std::collections::BTreeMap;

use byteback_host::block::BLOCK_LEN_BYTES;
use byteback_host::random::SplitMix64;

use super::*;

/// Expected state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expected {
    byte: u8,
    is_dirty: bool,
    is_pinned: bool,
    is_passing: bool,
}

/// Changed and pinned pages are kept, as they were left; any other page in memory is right, and
/// there are no more than the limit.
#[test]
fn pages_are_kept_as_long_as_they_must_be() {
    let seed: u64 = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    for seed in seed..seed + 8 {
        println!("BYTEBACK_SEED={seed}");
        let mut random = SplitMix64::new(seed);
        let clean_max = 64;
        let mut pages = Pages::new(clean_max, 1_000);
        let mut model: BTreeMap<PageKey, Expected> = BTreeMap::new();
        for step in 0..1_500 {
            let nid = Nid(1 + random.below(3) as u32);
            let page = match random.below(6) {
                0 => random.below(1 << 40),
                _ => random.below(200),
            };
            let key = (nid, page);
            let byte = random.below(250) as u8;
            match random.below(12) {
                0..=2 => {
                    // Only a page that is not there is read.
                    if pages.get(key).is_none() {
                        pages.keep(key, Box::new([byte; BLOCK_LEN_BYTES]));
                        let (is_dirty, is_pinned, is_passing) = (false, false, false);
                        model.insert(
                            key,
                            Expected {
                                byte,
                                is_dirty,
                                is_pinned,
                                is_passing,
                            },
                        );
                    }
                }
                3 => {
                    let count = 1 + random.below(80);
                    let blocks = vec![[byte; BLOCK_LEN_BYTES]; count as usize];
                    for page in page..page + count {
                        let was = model
                            .get(&(nid, page))
                            .copied()
                            .filter(|_| pages.get((nid, page)).is_some());
                        let is_pinned = was.is_some_and(|was| was.is_pinned);
                        let (is_dirty, is_passing) = (true, true);
                        model.insert(
                            (nid, page),
                            Expected {
                                byte,
                                is_dirty,
                                is_pinned,
                                is_passing,
                            },
                        );
                    }
                    pages.put_passing(nid, page, &blocks);
                }
                4 | 5 => {
                    if let Some(block) = pages.get_mut(key) {
                        block.fill(byte);
                        pages.mark_dirty(key);
                        let expected = model.get_mut(&key).unwrap();
                        (expected.byte, expected.is_dirty) = (byte, true);
                    }
                }
                6 => {
                    let dirty = pages.dirty_of(nid);
                    let from = random.below(dirty.len() as u64 + 1) as usize;
                    let end = from + random.below((dirty.len() - from) as u64 + 1) as usize;
                    let some = &dirty[from..end];
                    let is_passing = |page: &u64| model[&(nid, *page)].is_passing && !model[&(nid, *page)].is_pinned;
                    match pages.take_passing(nid, some) {
                        Some(taken) => {
                            assert!(some.iter().all(is_passing), "seed {seed}, step {step}");
                            assert_eq!(taken.len(), some.len());
                            for (page, block) in some.iter().zip(&taken) {
                                let expected = model.remove(&(nid, *page)).unwrap();
                                assert!(**block == [expected.byte; BLOCK_LEN_BYTES]);
                            }
                            pages.add_spare(taken);
                        }
                        None => assert!(!some.iter().all(is_passing), "seed {seed}, step {step}"),
                    }
                }
                7 => {
                    for page in pages.dirty_of(nid) {
                        if random.below(3) > 0 {
                            pages.mark_clean((nid, page));
                            let expected = model.get_mut(&(nid, page)).unwrap();
                            expected.is_dirty = false;
                            if expected.is_passing && !expected.is_pinned {
                                assert!(pages.get((nid, page)).is_none(), "seed {seed}, step {step}: it is kept");
                                model.remove(&(nid, page));
                            }
                        }
                    }
                }
                8 => {
                    if pages.get(key).is_some() {
                        pages.pin(key);
                        model.get_mut(&key).unwrap().is_pinned = true;
                    }
                }
                9 => {
                    pages.unpin(key);
                    if let Some(expected) = model.get_mut(&key) {
                        expected.is_pinned = false;
                    }
                }
                _ => {
                    let end = page + random.below(60);
                    pages.forget(nid, page, end);
                    model.retain(|(of, page_of), _| *of != nid || !(page..end).contains(page_of));
                }
            }
            let mut dirty: BTreeMap<Nid, Vec<u64>> = BTreeMap::new();
            let (mut kept, mut bound) = (0, clean_max);
            for (key, expected) in &model {
                let there = pages.get(*key);
                let note = format!("seed {seed}, step {step}: {key:?}, {expected:?}");
                assert!(there.is_some() || !expected.is_dirty && !expected.is_pinned, "{note}");
                assert!(
                    there.is_none_or(|block| *block == [expected.byte; BLOCK_LEN_BYTES]),
                    "{note}"
                );
                let checksum = there.map(|block| crc32c::crc32c(block));
                assert_eq!(pages.checksum_of(*key), checksum, "{note}");
                assert_eq!(pages.is_dirty(*key), expected.is_dirty, "{note}");
                kept += usize::from(there.is_some());
                bound += usize::from(expected.is_dirty) + usize::from(expected.is_pinned);
                if expected.is_dirty {
                    dirty.entry(key.0).or_default().push(key.1);
                }
            }
            assert_eq!(pages.count, kept, "seed {seed}, step {step}");
            // A long call is let in as a whole.
            assert!(
                kept + pages.spare.len() <= bound + GROUP_PAGES as usize,
                "seed {seed}, step {step}: {kept} of {bound}"
            );
            assert_eq!(pages.dirty_files(), dirty.keys().copied().collect::<Vec<_>>());
            assert_eq!(
                pages.dirty_count() as usize,
                dirty.values().map(Vec::len).sum::<usize>()
            );
            for nid in (1..4).map(Nid) {
                assert_eq!(pages.dirty_of(nid), dirty.get(&nid).cloned().unwrap_or_default());
                assert_eq!(pages.has_dirty(nid), dirty.contains_key(&nid));
            }
            let (first, end) = (random.below(100), 100 + random.below(100));
            let are_kept: Vec<bool> = (first..end).map(|page| pages.get((nid, page)).is_some()).collect();
            assert_eq!(pages.are_kept(nid, first, end), are_kept);
        }
    }
}
