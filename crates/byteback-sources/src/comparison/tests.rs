//! Comparisons of two lists: named cases here, random ones in `random`.

mod random;

use byteback_checksums::source::{Extraction, Result as SourceResult, Stamp, Unknown};
use byteback_host::random::noise;
use byteback_host::tree::Identity;

use super::*;

/// The checksums of a stretch, as a source would report them.
enum Stretch {
    Sums(u64, u64, Vec<u8>),
    Chunks(u64, u64, Vec<u64>, Vec<u8>),
    Zeros(u64, u64),
    Unknown(u64, u64),
}

/// A source of stretches.
struct ScriptedSource {
    layout: Layout,
    len_bytes: u64,
    stretches: std::vec::IntoIter<Stretch>,
    now: Option<Stretch>,
}

impl Extraction for ScriptedSource {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn next_run(&mut self) -> SourceResult<Option<Run<'_>>> {
        self.now = self.stretches.next();
        Ok(self.now.as_ref().map(|now| match *now {
            Stretch::Zeros(start, end) => Run::Zeros {
                range: range(start, end),
            },
            Stretch::Unknown(start, end) => Run::Unknown {
                range: range(start, end),
                why: Unknown::NotSummed,
            },
            Stretch::Sums(start, end, ref sums) => Run::Sums {
                range: range(start, end),
                sums,
            },
            Stretch::Chunks(start, end, ref ends, ref sums) => Run::Chunks {
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

fn reported(layout: &Layout, content: &[u8], stretches: Vec<Stretch>) -> FileChecksums {
    let mut stretches = Some(stretches);
    let begin = || {
        Ok(ScriptedSource {
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

fn layout(kind: Kind, block_len: u32, tail: Tail) -> Layout {
    Layout {
        kind,
        salt: Vec::new(),
        block_len,
        tail,
    }
}

/// All blocks of `content`, in one run.
fn fully(layout: &Layout, content: &[u8]) -> FileChecksums {
    let mut sums = Vec::new();
    for block in content.chunks(layout.block_len as usize) {
        summed(layout, block, &mut sums);
    }
    reported(layout, content, vec![Stretch::Sums(0, content.len() as u64, sums)])
}

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

/// Section 3.3.1: sectors of a file system against parts of an object store; nothing is unknown
/// although no block lies on another one.
#[test]
fn crcs_of_sectors_are_compared_with_those_of_parts() {
    let base = noise(1, 64 * 1000 + 17);
    let mut new = base.clone();
    new[64 * 500] ^= 1;
    let sectors = fully(&layout(Kind::Crc32c, 64, Tail::ZeroPadded), &new);
    let parts = fully(&layout(Kind::Crc32c, 6400, Tail::AsIs), &base);
    let differing = range(64 * 500, 64 * 600);
    for (one, other) in [(&sectors, &parts), (&parts, &sectors)] {
        let comparison = compare_checksums(one, other).unwrap();
        let unlike: Vec<_> = comparison
            .ranges
            .iter()
            .filter(|(_, own)| *own != Likeness::Likely)
            .collect();
        assert_eq!(unlike, [&(differing, Likeness::Differs)]);
    }
}

/// An object that was sent at once has one CRC, which is still compared with those of sectors,
/// though the new copy has no more pieces when the base is at its first.
#[test]
fn comparison_compare_one_crc_with_those_of_its_sectors() {
    let content = noise(1, 64 * 7 + 5);
    let at_once = fully(&layout(Kind::Crc32c, 1 << 20, Tail::AsIs), &content);
    let sectors = fully(&layout(Kind::Crc32c, 64, Tail::ZeroPadded), &content);
    let all = range(0, content.len() as u64);
    for (base, new) in [(&sectors, &at_once), (&at_once, &sectors)] {
        let comparison = compare_checksums(base, new).unwrap();
        assert_eq!(comparison.ranges, [(all, Likeness::Likely)]);
    }
}

/// Zeros are summed piece by piece: a block may be longer than a piece, and than the one before.
#[test]
fn blocks_of_zeros_of_any_length_are_compared_with_holes() {
    let zeros = vec![0; 20_000];
    let layout = layout(Kind::Sha256, 8192, Tail::AsIs);
    let hole = reported(&layout, &zeros, vec![Stretch::Zeros(0, 20_000)]);
    let mut content = zeros.clone();
    content[8191] = 1;
    for (content, differing) in [(&zeros, None), (&content, Some(range(0, 8192)))] {
        let written = fully(&layout, content);
        for (base, new) in [(&hole, &written), (&written, &hole)] {
            let comparison = compare_checksums(base, new).unwrap();
            let unlike = comparison.ranges.iter().find(|(_, own)| *own != Likeness::Equal);
            assert_eq!(unlike, differing.map(|range| (range, Likeness::Differs)).as_ref());
        }
    }
}

#[test]
fn comparison_find_moves_and_refuse_other_functions() {
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
        reported(&layout, &content, vec![all])
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
    let other = reported(&layout(Kind::Crc32c, 16, Tail::AsIs), &[], Vec::new());
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
        reported(&layout, &[], Vec::new())
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
fn comparison_finds_all_that_differs_in_two_trees() {
    let mut differing = ExtentSet::new();
    differing.insert(ByteRange::new(10, 20).unwrap());
    differing.insert(ByteRange::new(30, 50).unwrap());
    let comparison = Comparison::all_but(&differing, 40);
    assert_eq!(
        comparison.ranges,
        [
            (range(0, 10), Likeness::Equal),
            (range(10, 20), Likeness::Differs),
            (range(20, 30), Likeness::Equal),
            (range(30, 40), Likeness::Differs)
        ]
    );
    // Differences behind the end do not count.
    let comparison = Comparison::all_but(&differing, 25);
    assert_eq!(comparison.ranges.last(), Some(&(range(20, 25), Likeness::Equal)));
    assert!(Comparison::all_but(&ExtentSet::new(), 0).ranges.is_empty());
}
