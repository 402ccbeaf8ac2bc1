use std::cell::Cell;

use byteback_host::random::SplitMix64;
use byteback_host::tree::Identity;

use super::*;
use crate::source::{Description, Extraction, Kind, Layout, Result, Stamp, Tail, Unknown};

/// A file in memory, with a source that returns given answers.
struct ScriptedSource {
    content: Vec<u8>,
    layout: Layout,
    runs: Vec<(ByteRange, What)>,
    is_changed: Cell<bool>,
    reads: Cell<u64>,
}

#[derive(Clone)]
enum What {
    Sums(Vec<u8>),
    Chunks(Vec<u64>, Vec<u8>),
    Zeros,
    Unknown,
}

struct Telling<'a>(&'a ScriptedSource, usize);

impl Extraction for Telling<'_> {
    fn layout(&self) -> &Layout {
        &self.0.layout
    }

    fn len_bytes(&self) -> u64 {
        self.0.content.len() as u64
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        let run = self.0.runs.get(self.1).map(|(range, what)| match what {
            What::Sums(sums) => Run::Sums { range: *range, sums },
            What::Chunks(ends, sums) => Run::Chunks {
                range: *range,
                ends,
                sums,
            },
            What::Zeros => Run::Zeros { range: *range },
            What::Unknown => Run::Unknown {
                range: *range,
                why: Unknown::NotSummed,
            },
        });
        self.1 += 1;
        Ok(run)
    }

    fn finish(self) -> Result<Stamp> {
        Ok(Stamp {
            identity: Identity {
                dev: 1,
                ino: 2,
                birth_ns: None,
            },
            len_bytes: self.len_bytes(),
            mtime_ns: 0,
            ctime_ns: 0,
            witness: [0; 32],
        })
    }
}

impl Source for ScriptedSource {
    fn description(&self) -> Description {
        crate::btrfs::DESCRIPTION
    }

    fn collect(&self) -> Result<FileChecksums> {
        FileChecksums::collect(1, || Ok(Telling(self, 0)))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.reads.set(self.reads.get() + 1);
        let rest = self.content.get(offset as usize..).unwrap_or_default();
        // A source may return less than was requested only at the end, so return all of it.
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn is_unchanged(&self, _: &Stamp) -> Result<bool> {
        Ok(!self.is_changed.get())
    }
}

fn made(random: &mut SplitMix64) -> ScriptedSource {
    let kinds = [
        Kind::Crc32c,
        Kind::Crc64Nvme,
        Kind::Sha256,
        Kind::Sha1,
        Kind::Blake2b256,
    ];
    let layout = Layout {
        kind: kinds[random.below(5) as usize],
        salt: vec![7; random.below(3) as usize],
        block_len: [512, 4096, 3 << 20][random.below(3) as usize],
        tail: [Tail::AsIs, Tail::ZeroPadded][random.below(2) as usize],
    };
    let block_len = u64::from(layout.block_len);
    let (mut content, mut runs) = (Vec::new(), Vec::new());
    let count = 1 + random.below(5);
    for index in 0..count {
        let start = content.len() as u64;
        let mut len = block_len * (1 + random.below(3));
        if index + 1 == count {
            len -= random.below(block_len);
        }
        let range = ByteRange::from_offset_len(start, len).unwrap();
        let what = random.below(4);
        let bytes: Vec<u8> = match what {
            0 => vec![0; len as usize],
            _ => (0..len).map(|at| (random.next_u64() | 1) as u8 ^ at as u8).collect(),
        };
        let known = match what {
            0 => What::Zeros,
            1 => What::Unknown,
            2 => {
                let (mut ends, mut sums, mut rest) = (Vec::new(), Vec::new(), &bytes[..]);
                let as_they_are = Layout {
                    tail: Tail::AsIs,
                    ..layout.clone()
                };
                while !rest.is_empty() {
                    let (chunk, later) = rest.split_at(1 + random.below((rest.len() as u64).min(block_len)) as usize);
                    as_they_are.append_sum(chunk, &mut sums);
                    rest = later;
                    ends.push(range.end() - rest.len() as u64);
                }
                What::Chunks(ends, sums)
            }
            _ => {
                let mut sums = Vec::new();
                for block in bytes.chunks(block_len as usize) {
                    layout.append_sum(block, &mut sums);
                }
                What::Sums(sums)
            }
        };
        content.extend(bytes);
        runs.push((range, known));
    }
    ScriptedSource {
        content,
        layout,
        runs,
        is_changed: Cell::new(false),
        reads: Cell::new(0),
    }
}

/// True checksums verify. Each differing byte in a known stretch is found at its place, and none is
/// reported in an unknown one.
#[test]
fn every_difference_in_what_is_known_is_found() {
    for seed in 1..60 {
        let mut random = SplitMix64::new(seed);
        let mut reported = made(&mut random);
        let sums = reported.collect().unwrap();
        let of = |wanted: fn(&What) -> bool, reported: &ScriptedSource| -> u64 {
            reported
                .runs
                .iter()
                .filter(|run| wanted(&run.1))
                .map(|run| run.0.len_bytes())
                .sum()
        };
        let verified = verify(&reported, &sums).unwrap();
        assert_eq!(
            verified.bytes,
            of(|what| matches!(what, What::Sums(_) | What::Chunks(..)), &reported),
            "seed {seed}"
        );
        assert_eq!(
            verified.zero_bytes,
            of(|what| matches!(what, What::Zeros), &reported),
            "seed {seed}"
        );
        let at = random.below(reported.content.len() as u64);
        reported.content[at as usize] ^= 1 << random.below(8);
        let hit = reported.runs.iter().find(|run| run.0.contains(at)).unwrap().1.clone();
        match (hit, verify(&reported, &sums)) {
            (What::Unknown, Ok(again)) => assert_eq!(again, verified, "seed {seed}"),
            (What::Zeros, Err(VerifyError::NotZero { offset })) => assert_eq!(offset, at, "seed {seed}"),
            (What::Sums(_) | What::Chunks(..), Err(VerifyError::Differs { offset, len_bytes })) => {
                assert!((offset..offset + len_bytes).contains(&at), "seed {seed}");
            }
            (_, other) => panic!("seed {seed}: {other:?}"),
        }
        // A file that changed is not damaged.
        reported.is_changed.set(true);
        assert!(matches!(
            verify(&reported, &sums),
            Err(VerifyError::Source(SourceError::ChangedMeanwhile))
        ));
    }
}

/// A read may cost three requests to a server (HDFS), so there must be few, even with short blocks;
/// and blocks may be longer than one read.
#[test]
fn blocks_are_read_many_at_once() {
    let content = byteback_host::random::noise(5, 2 * READ_LEN + 77);
    for block_len in [512, 4096, READ_LEN as u32 - 1, READ_LEN as u32 + 1] {
        let layout = Layout {
            kind: Kind::Crc32c,
            salt: Vec::new(),
            block_len,
            tail: Tail::AsIs,
        };
        let mut sums = Vec::new();
        for block in content.chunks(block_len as usize) {
            layout.append_sum(block, &mut sums);
        }
        let reported = ScriptedSource {
            runs: vec![(ByteRange::new(0, content.len() as u64).unwrap(), What::Sums(sums))],
            content: content.clone(),
            layout,
            is_changed: Cell::new(false),
            reads: Cell::new(0),
        };
        let verified = verify(&reported, &reported.collect().unwrap()).unwrap();
        assert_eq!(verified.blocks, content.len().div_ceil(block_len as usize) as u64);
        assert_eq!(reported.reads.get(), 3, "{block_len}");
    }
}

#[test]
fn a_file_that_became_shorter_is_told() {
    let mut random = SplitMix64::new(3);
    let mut reported = made(&mut random);
    while !reported.runs.iter().any(|run| matches!(run.1, What::Sums(_))) {
        reported = made(&mut random);
    }
    let sums = reported.collect().unwrap();
    reported.content.clear();
    assert!(matches!(
        verify(&reported, &sums),
        Err(VerifyError::Source(SourceError::ChangedMeanwhile))
    ));
}
