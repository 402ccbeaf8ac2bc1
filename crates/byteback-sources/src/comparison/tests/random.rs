//! Random contents, known in random ways, against a judge that looks at their bytes, byte after
//! byte: everything that follows from the knowledge is reported, and nothing else.

use byteback_host::random::SplitMix64;

use super::*;

/// The knowledge about a part of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// The checksum of a block of this many bytes, those behind its end zeros.
    Block(u64),
    Chunk,
    Zeros,
    Unknown,
}

/// A part that must not be cut, unless it is zeros or unknown.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: usize,
    end: usize,
    known: Known,
}

impl Part {
    fn may_end_at(&self, at: usize) -> bool {
        let is_inside = self.start < at && at < self.end;
        self.end == at || is_inside && matches!(self.known, Known::Zeros | Known::Unknown)
    }

    fn is_summed(&self) -> bool {
        matches!(self.known, Known::Block(_) | Known::Chunk)
    }
}

/// A content and the knowledge about it.
struct Side {
    content: Vec<u8>,
    layout: Layout,
    parts: Vec<Part>,
}

impl Side {
    fn drawn(content: Vec<u8>, kind: Kind, salt: &[u8], random: &mut SplitMix64) -> Self {
        let mut layout = Layout {
            salt: salt.to_vec(),
            ..layout(kind, [16, 24, 32, 64, 192][random.below(5) as usize], Tail::AsIs)
        };
        let mut parts = Vec::new();
        if random.below(3) > 0 {
            layout.tail = [Tail::AsIs, Tail::ZeroPadded][random.below(2) as usize];
            let block_len = layout.block_len as usize;
            for start in (0..content.len()).step_by(block_len) {
                let end = content.len().min(start + block_len);
                let summed_len = match layout.tail {
                    Tail::AsIs => end - start,
                    Tail::ZeroPadded => block_len,
                };
                let known = Self::known(&content[start..end], Known::Block(summed_len as u64), random);
                parts.push(Part { start, end, known });
            }
        } else {
            let every = 16 * (1 + random.below(5)) as usize;
            layout.block_len = every as u32;
            let mut start = 0;
            for end in 1..=content.len() {
                if end == content.len() || end.is_multiple_of(every) || end.is_multiple_of(112) {
                    let known = Self::known(&content[start..end], Known::Chunk, random);
                    parts.push(Part { start, end, known });
                    start = end;
                }
            }
        }
        let mut side = Self { content, layout, parts };
        side.join_some(random);
        side
    }

    fn known(bytes: &[u8], summed: Known, random: &mut SplitMix64) -> Known {
        match random.below(10) {
            0 => Known::Unknown,
            1..8 if bytes.iter().all(|byte| *byte == 0) => Known::Zeros,
            _ => summed,
        }
    }

    /// Sources mostly report neighbours of the same kind as one.
    fn join_some(&mut self, random: &mut SplitMix64) {
        let mut joined: Vec<Part> = Vec::new();
        for part in self.parts.drain(..) {
            match joined.last_mut() {
                Some(last) if last.known == part.known && !part.is_summed() && random.below(4) > 0 => {
                    last.end = part.end;
                }
                _ => joined.push(part),
            }
        }
        self.parts = joined;
    }

    /// The knowledge as a source reports it, in runs that end anywhere.
    fn reported(&self, random: &mut SplitMix64) -> FileChecksums {
        let mut stretches: Vec<Stretch> = Vec::new();
        for part in &self.parts {
            let (start, end) = (part.start as u64, part.end as u64);
            let mut sum = Vec::new();
            summed(&self.layout, &self.content[part.start..part.end], &mut sum);
            let goes_on = random.below(8) > 0;
            match (part.known, stretches.last_mut()) {
                (Known::Zeros, _) => stretches.push(Stretch::Zeros(start, end)),
                (Known::Unknown, _) => stretches.push(Stretch::Unknown(start, end)),
                (Known::Block(_), Some(Stretch::Sums(_, last, sums))) if goes_on => {
                    *last = end;
                    sums.extend(sum);
                }
                (Known::Chunk, Some(Stretch::Chunks(_, last, ends, sums))) if goes_on => {
                    *last = end;
                    ends.push(end);
                    sums.extend(sum);
                }
                (Known::Block(_), _) => stretches.push(Stretch::Sums(start, end, sum)),
                (Known::Chunk, _) => stretches.push(Stretch::Chunks(start, end, vec![end], sum)),
            }
        }
        reported(&self.layout, &self.content, stretches)
    }

    fn may_end_at(&self, at: usize) -> bool {
        self.parts.iter().any(|part| part.may_end_at(at))
    }

    fn parts_of(&self, start: usize, end: usize) -> Vec<Part> {
        let overlaps = |part: &&Part| part.start < end && start < part.end;
        self.parts.iter().filter(overlaps).copied().collect()
    }

    fn chunks(&self) -> impl Iterator<Item = Part> {
        self.parts.iter().filter(|part| part.known == Known::Chunk).copied()
    }
}

/// The judge's knowledge about each byte of the new content.
fn judged(base: &Side, new: &Side) -> Vec<Likeness> {
    let mut judged = Vec::new();
    let mut start = 0;
    for end in 1..=new.content.len() {
        let base_may_end = end >= base.content.len() || base.may_end_at(end);
        if end == new.content.len() || new.may_end_at(end) && base_may_end {
            let likeness = likeness(base, new, start, end);
            judged.resize(end, likeness);
            start = end;
        }
    }
    if !new.layout.kind.is_strong() {
        return judged;
    }
    for chunk in new.chunks() {
        let own = &new.content[chunk.start..chunk.end];
        let mut named = base.chunks().map(|part| &base.content[part.start..part.end]);
        let is_at_its_place = matches!(judged[chunk.start], Likeness::Equal | Likeness::Likely);
        if !is_at_its_place && named.any(|base| base == own) {
            judged[chunk.start..chunk.end].fill(Likeness::Moved);
        }
    }
    judged
}

/// For a range at whose ends both may end; no smaller one is like that, except in zeros.
fn likeness(base: &Side, new: &Side, start: usize, end: usize) -> Likeness {
    let kind = new.layout.kind;
    if start >= base.content.len() {
        return Likeness::Differs;
    }
    let sides = [base.parts_of(start, end), new.parts_of(start, end)];
    let is_unknown = sides.iter().flatten().any(|part| part.known == Known::Unknown);
    if is_unknown || !base.may_end_at(end) {
        return Likeness::Unknown;
    }
    let are_zeros = |parts: &[Part]| parts.iter().all(|part| part.known == Known::Zeros);
    if sides.iter().all(|parts| are_zeros(parts)) {
        return Likeness::Equal;
    }
    let summed_len = |part: Part| match part.known {
        Known::Block(summed_len) => summed_len,
        _ => (part.end - part.start) as u64,
    };
    let can_be_compared = match [sides[0].as_slice(), sides[1].as_slice()] {
        _ if new.layout.salt.is_empty() && matches!(kind, Kind::Crc32 | Kind::Crc32c | Kind::Crc64Nvme) => true,
        [zeros, [_]] | [[_], zeros] if are_zeros(zeros) => true,
        [[base], [new]] => summed_len(*base) == summed_len(*new),
        _ => false,
    };
    match (can_be_compared, base.content[start..end] == new.content[start..end]) {
        (false, _) => Likeness::Unknown,
        (true, false) => Likeness::Differs,
        (true, true) if kind.is_strong() => Likeness::Equal,
        (true, true) => Likeness::Likely,
    }
}

/// A content of stretches of noise and of zeros, and another one that differs from it in places,
/// and in length.
fn drawn_contents(random: &mut SplitMix64) -> (Vec<u8>, Vec<u8>) {
    let mut base = Vec::new();
    for _ in 0..random.below(6) {
        let len = random.below(700) as usize;
        match random.below(5) {
            0 | 1 => base.resize(base.len() + len, 0),
            _ => base.extend(noise(random.next_u64(), len)),
        }
    }
    let mut new = base.clone();
    for _ in 0..random.below(5) {
        if let Some(place) = random.below(new.len() as u64 + 1).checked_sub(1) {
            new[place as usize] ^= 1 + random.below(255) as u8;
        }
    }
    match random.below(5) {
        0 => new.truncate(random.below(new.len() as u64 + 1) as usize),
        1 => new.extend(noise(random.next_u64(), random.below(500) as usize)),
        2 => new.resize(new.len() + random.below(500) as usize, 0),
        3 => {
            let inserted = noise(random.next_u64(), 112 * random.below(4) as usize);
            let place = new.len() / 2;
            new.splice(place..place, inserted);
        }
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
fn comparison_states_all_that_checksums_prove() {
    let mut seen = std::collections::BTreeMap::<(bool, Likeness), u64>::new();
    for seed in seeds() {
        let mut random = SplitMix64::new(seed);
        let (base, new) = drawn_contents(&mut random);
        let kind = Kind::ALL[random.below(Kind::ALL.len() as u64) as usize];
        let salt: &[u8] = [b"".as_slice(), b"", b"", b"salt"][random.below(4) as usize];
        let base = Side::drawn(base, kind, salt, &mut random);
        let new = Side::drawn(new, kind, salt, &mut random);
        let comparison = compare_checksums(&base.reported(&mut random), &new.reported(&mut random)).unwrap();
        let mut reported = Vec::new();
        let mut before = None;
        for &(range, likeness) in &comparison.ranges {
            assert_eq!(range.start(), reported.len() as u64, "BYTEBACK_SEED={seed}");
            assert_ne!(
                before,
                Some(likeness),
                "BYTEBACK_SEED={seed}: {range:?} could be one with the one before"
            );
            before = Some(likeness);
            reported.resize(range.end() as usize, likeness);
            let bytes = range.start() as usize..range.end() as usize;
            let are_equal = base.content.get(bytes.clone()) == Some(&new.content[bytes]);
            // Nothing makes checksums collide here, and 4000 runs are too few for chance.
            match likeness {
                Likeness::Equal | Likeness::Likely => assert!(are_equal, "BYTEBACK_SEED={seed}: {range:?} of {kind:?}"),
                Likeness::Differs => assert!(!are_equal, "BYTEBACK_SEED={seed}: {range:?} of {kind:?}"),
                Likeness::Moved | Likeness::Unknown => {}
            }
            *seen.entry((kind.is_strong(), likeness)).or_default() += range.len_bytes();
        }
        let judged = judged(&base, &new);
        let first = (0..reported.len().max(judged.len())).find(|at| reported.get(*at) != judged.get(*at));
        if let Some(at) = first {
            let around = |side: &Side| side.parts_of(at.saturating_sub(100), at + 100);
            panic!(
                "BYTEBACK_SEED={seed}: byte {at} of {kind:?} is told as {:?}, not {:?}; base {:?} of {}, new {:?} of {}",
                reported.get(at),
                judged.get(at),
                around(&base),
                base.content.len(),
                around(&new),
                new.content.len(),
            );
        }
    }
    if std::env::var_os("BYTEBACK_SEED").is_none() {
        for is_strong in [true, false] {
            for likeness in [Likeness::Equal, Likeness::Differs, Likeness::Unknown] {
                assert!(
                    seen.contains_key(&(is_strong, likeness)),
                    "{is_strong} {likeness:?}: {seen:?}"
                );
            }
            assert_eq!(seen.contains_key(&(is_strong, Likeness::Moved)), is_strong);
            assert_eq!(seen.contains_key(&(is_strong, Likeness::Likely)), !is_strong);
        }
    }
}
