//! Random contents, known in random ways, against a look at their bytes.

use byteback_checksums::source::{Extraction, Result as SourceResult, Stamp, Unknown};
use byteback_host::random::{SplitMix64, noise};
use byteback_host::tree::Identity;

use super::*;

/// What is known of a stretch, as a source would tell it.
enum Stretch {
    Sums(u64, u64, Vec<u8>),
    Chunks(u64, u64, Vec<u64>, Vec<u8>),
    Zeros(u64, u64),
    Unknown(u64, u64),
}

/// A source of stretches.
struct Told {
    layout: Layout,
    len_bytes: u64,
    stretches: std::vec::IntoIter<Stretch>,
    now: Option<Stretch>,
}

impl Extraction for Told {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn next_run(&mut self) -> SourceResult<Option<Run<'_>>> {
        self.now = self.stretches.next();
        let range = |start: &u64, end: &u64| ByteRange::new(*start, *end).unwrap();
        Ok(self.now.as_ref().map(|now| match now {
            Stretch::Zeros(start, end) => Run::Zeros {
                range: range(start, end),
            },
            Stretch::Unknown(start, end) => Run::Unknown {
                range: range(start, end),
                why: Unknown::NotSummed,
            },
            Stretch::Sums(start, end, sums) => Run::Sums {
                range: range(start, end),
                sums,
            },
            Stretch::Chunks(start, end, ends, sums) => Run::Chunks {
                range: range(start, end),
                ends,
                sums,
            },
        }))
    }

    fn finish(self) -> SourceResult<Stamp> {
        Ok(Stamp {
            identity: Identity {
                dev: 0,
                ino: 0,
                birth_ns: None,
            },
            len_bytes: self.len_bytes,
            mtime_ns: 0,
            ctime_ns: 0,
            witness: [0; 32],
        })
    }
}

fn told(layout: &Layout, content: &[u8], stretches: Vec<Stretch>) -> FileChecksums {
    let mut stretches = Some(stretches);
    let begin = || {
        Ok(Told {
            layout: layout.clone(),
            len_bytes: content.len() as u64,
            stretches: stretches.take().unwrap().into_iter(),
            now: None,
        })
    };
    FileChecksums::collect(1, begin).unwrap()
}

fn summed(layout: &Layout, block: &[u8], sums: &mut Vec<u8>) {
    layout.append_sum(block, sums);
}

/// All blocks of `content` with their checksums; some are not known, and zeros are sometimes told as such.
fn in_blocks(layout: &Layout, content: &[u8], random: &mut SplitMix64) -> FileChecksums {
    let block_len = layout.block_len as usize;
    let mut stretches: Vec<Stretch> = Vec::new();
    for (block, start) in content.chunks(block_len).zip((0_u64..).step_by(block_len)) {
        let end = start + block.len() as u64;
        let is_zero = block.iter().all(|byte| *byte == 0);
        match (stretches.last_mut(), random.below(8)) {
            (Some(Stretch::Zeros(_, last)), 0..6) if is_zero => *last = end,
            (_, 0..6) if is_zero => stretches.push(Stretch::Zeros(start, end)),
            (Some(Stretch::Unknown(_, last)), 0) => *last = end,
            (_, 0) => stretches.push(Stretch::Unknown(start, end)),
            (Some(Stretch::Sums(_, last, sums)), _) => {
                *last = end;
                summed(layout, block, sums);
            }
            _ => {
                let mut sums = Vec::new();
                summed(layout, block, &mut sums);
                stretches.push(Stretch::Sums(start, end, sums));
            }
        }
    }
    told(layout, content, stretches)
}

/// Chunks that end where `is_end` says; those of zeros are told as zeros sometimes.
fn in_chunks(
    layout: &Layout,
    content: &[u8],
    random: &mut SplitMix64,
    is_end: impl Fn(usize) -> bool,
) -> FileChecksums {
    let mut stretches: Vec<Stretch> = Vec::new();
    let mut start = 0;
    for end in 1..=content.len() {
        if end != content.len() && !is_end(end) {
            continue;
        }
        let chunk = &content[start..end];
        let (from, to) = (start as u64, end as u64);
        start = end;
        let is_zero = chunk.iter().all(|byte| *byte == 0);
        match stretches.last_mut() {
            _ if is_zero && random.below(2) == 0 => stretches.push(Stretch::Zeros(from, to)),
            _ if random.below(12) == 0 => stretches.push(Stretch::Unknown(from, to)),
            Some(Stretch::Chunks(_, last, ends, sums)) => {
                *last = to;
                ends.push(to);
                summed(layout, chunk, sums);
            }
            _ => {
                let mut sums = Vec::new();
                summed(layout, chunk, &mut sums);
                stretches.push(Stretch::Chunks(from, to, vec![to], sums));
            }
        }
    }
    told(layout, content, stretches)
}

fn layout(kind: Kind, block_len: u32, tail: Tail) -> Layout {
    Layout {
        kind,
        salt: Vec::new(),
        block_len,
        tail,
    }
}

/// A content of stretches of noise and of zeros, and another one that differs from it in places, and in length.
fn drawn(random: &mut SplitMix64) -> (Vec<u8>, Vec<u8>) {
    let mut base = Vec::new();
    for _ in 0..random.below(6) {
        let len = random.below(700) as usize;
        match random.below(3) {
            0 => base.resize(base.len() + len, 0),
            _ => base.extend(noise(random.next_u64(), len)),
        }
    }
    let mut new = base.clone();
    for _ in 0..random.below(5) {
        if let Some(place) = random.below(new.len() as u64 + 1).checked_sub(1) {
            new[place as usize] ^= 1 + random.below(255) as u8;
        }
    }
    match random.below(4) {
        0 => new.truncate(random.below(new.len() as u64 + 1) as usize),
        1 => new.extend(noise(random.next_u64(), random.below(500) as usize)),
        2 => new.resize(new.len() + random.below(500) as usize, 0),
        _ => {}
    }
    (base, new)
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("BYTEBACK_SEED") {
        Ok(seed) => seed.parse().map(|seed| seed..seed + 1).unwrap(),
        Err(_) => 0..4000,
    }
}

#[test]
fn what_checksums_say_is_true_of_the_bytes() {
    let mut seen = std::collections::BTreeMap::<(bool, Likeness), u64>::new();
    for seed in seeds() {
        let mut random = SplitMix64::new(seed);
        let (base, new) = drawn(&mut random);
        let kinds = [
            Kind::Crc32c,
            Kind::Crc32,
            Kind::Crc64Nvme,
            Kind::Xxh64,
            Kind::Sha256,
            Kind::Sha512Of256,
        ];
        let kind = kinds[random.below(6) as usize];
        let tails = [Tail::AsIs, Tail::ZeroPadded];
        let mut side = |content: &[u8]| {
            let layout = layout(kind, 16 << random.below(3), tails[random.below(2) as usize]);
            if random.below(3) > 0 {
                return in_blocks(&layout, content, &mut random);
            }
            let layout = Layout {
                tail: Tail::AsIs,
                ..layout
            };
            let every = 16 * (1 + random.below(5)) as usize;
            in_chunks(&layout, content, &mut random, |end| {
                end.is_multiple_of(every) || end.is_multiple_of(112)
            })
        };
        let (told_base, told_new) = (side(&base), side(&new));
        let comparison = compare_checksums(&told_base, &told_new).unwrap();
        let mut at = 0;
        for &(range, likeness) in &comparison.ranges {
            assert_eq!(range.start(), at, "BYTEBACK_SEED={seed}");
            at = range.end();
            let (start, end) = (range.start() as usize, range.end() as usize);
            let are_equal = base.get(start..end) == Some(&new[start..end]);
            match likeness {
                Likeness::Equal => assert!(are_equal, "BYTEBACK_SEED={seed}: {range:?} of {kind:?} is not equal"),
                // Nobody makes them collide here, and 4000 runs are too few for chance.
                Likeness::Likely => assert!(are_equal, "BYTEBACK_SEED={seed}: {range:?} of {kind:?} is not equal"),
                Likeness::Differs => assert!(!are_equal, "BYTEBACK_SEED={seed}: {range:?} of {kind:?} is equal"),
                Likeness::Moved => {
                    let moved = &new[start..end];
                    // Neighbours may have come from two places.
                    assert!(moved.len() > 80 || base.windows(moved.len()).any(|window| window == moved));
                }
                Likeness::Unknown => {}
            }
            *seen.entry((kind.is_strong(), likeness)).or_default() += range.len_bytes();
        }
        assert_eq!(at, new.len() as u64, "BYTEBACK_SEED={seed}");
    }
    if std::env::var_os("BYTEBACK_SEED").is_none() {
        for expected in [
            (true, Likeness::Equal),
            (false, Likeness::Equal),
            (false, Likeness::Likely),
            (true, Likeness::Moved),
            (true, Likeness::Differs),
            (false, Likeness::Differs),
            (true, Likeness::Unknown),
        ] {
            assert!(seen.contains_key(&expected), "{expected:?} was never met: {seen:?}");
        }
        assert!(!seen.contains_key(&(true, Likeness::Likely)) && !seen.contains_key(&(false, Likeness::Moved)));
    }
}

/// Section 3.3.1: sectors of a file system against parts of an object store; nothing is unknown although no block lies on another one.
#[test]
fn crcs_of_sectors_are_compared_with_those_of_parts() {
    let mut random = SplitMix64::new(7);
    let base = noise(1, 64 * 1000 + 17);
    let mut new = base.clone();
    new[64 * 500] ^= 1;
    let fully = |layout: &Layout, content: &[u8]| {
        let mut sums = Vec::new();
        for block in content.chunks(layout.block_len as usize) {
            summed(layout, block, &mut sums);
        }
        told(layout, content, vec![Stretch::Sums(0, content.len() as u64, sums)])
    };
    let sectors = fully(&layout(Kind::Crc32c, 64, Tail::ZeroPadded), &new);
    let parts = fully(&layout(Kind::Crc32c, 6400, Tail::AsIs), &base);
    let differing = ByteRange::new(64 * 500, 64 * 600);
    for (one, other) in [(&sectors, &parts), (&parts, &sectors)] {
        let comparison = compare_checksums(one, other).unwrap();
        let unlike: Vec<_> = comparison
            .ranges
            .iter()
            .filter(|(_, own)| *own != Likeness::Likely)
            .collect();
        assert_eq!(unlike, [&(differing.unwrap(), Likeness::Differs)]);
    }
    let chunks = in_chunks(&layout(Kind::Crc32c, 640, Tail::AsIs), &new, &mut random, |end| {
        end.is_multiple_of(640)
    });
    let comparison = compare_checksums(&chunks, &sectors).unwrap();
    assert_eq!(comparison.bytes(Likeness::Differs), 0);
    assert!(comparison.bytes(Likeness::Likely) > new.len() as u64 / 2);
}

#[test]
fn what_moved_between_stores_is_found_and_other_functions_are_refused() {
    let pieces: Vec<Vec<u8>> = (0..20).map(|piece| noise(piece, 100 + piece as usize)).collect();
    let store = |order: &[usize]| {
        let layout = layout(Kind::Sha256, 200, Tail::AsIs);
        let (mut content, mut ends, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        for piece in order {
            content.extend_from_slice(&pieces[*piece]);
            ends.push(content.len() as u64);
            summed(&layout, &pieces[*piece], &mut sums);
        }
        let all = Stretch::Chunks(0, content.len() as u64, ends, sums);
        told(&layout, &content, vec![all])
    };
    let base = store(&[0, 1, 2, 3, 4, 5]);
    let new = store(&[0, 19, 1, 2, 4, 5]);
    let comparison = compare_checksums(&base, &new).unwrap();
    assert_eq!(comparison.bytes(Likeness::Equal), 100);
    assert_eq!(comparison.bytes(Likeness::Moved), 101 + 102 + 104 + 105);
    assert_eq!(
        comparison.bytes(Likeness::Differs) + comparison.bytes(Likeness::Unknown),
        119
    );
    let other = told(&layout(Kind::Crc32c, 16, Tail::AsIs), &[], Vec::new());
    assert_eq!(
        compare_checksums(&other, &new),
        Err(Incomparable::Kinds {
            base: Kind::Crc32c,
            new: Kind::Sha256
        })
    );
    let salted = |salt: &[u8]| {
        let layout = Layout {
            salt: salt.to_vec(),
            ..layout(Kind::Sha256, 16, Tail::AsIs)
        };
        told(&layout, &[], Vec::new())
    };
    assert_eq!(
        compare_checksums(&salted(b"a"), &salted(b"b")),
        Err(Incomparable::Salts)
    );
    assert_eq!(
        compare_checksums(&salted(b"a"), &salted(b"a")),
        Ok(Comparison::default())
    );
}

#[test]
fn what_a_walk_of_two_trees_found_is_all_that_differs() {
    let mut differing = ExtentSet::new();
    differing.insert(ByteRange::new(10, 20).unwrap());
    differing.insert(ByteRange::new(30, 50).unwrap());
    let comparison = Comparison::all_but(&differing, 40);
    let range = |start, end| ByteRange::new(start, end).unwrap();
    assert_eq!(
        comparison.ranges,
        [
            (range(0, 10), Likeness::Equal),
            (range(10, 20), Likeness::Differs),
            (range(20, 30), Likeness::Equal),
            (range(30, 40), Likeness::Differs)
        ]
    );
    assert!(Comparison::all_but(&ExtentSet::new(), 0).ranges.is_empty());
}
