//! The functions against published values, and collecting.

use byteback_host::random::SplitMix64;

use super::*;

fn layout(kind: Kind, tail: Tail) -> Layout {
    Layout {
        kind,
        salt: Vec::new(),
        block_len: 16,
        tail,
    }
}

fn sum(layout: &Layout, block: &[u8]) -> Vec<u8> {
    let mut sums = Vec::new();
    layout.append_sum(block, &mut sums);
    assert_eq!(sums.len(), layout.kind.len_bytes());
    sums
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digit).collect()
}

#[test]
fn checksums_are_those_of_the_standards() {
    let known = |kind| sum(&layout(kind, Tail::AsIs), b"abc");
    assert_eq!(
        sum(&layout(Kind::Crc32c, Tail::AsIs), b"123456789"),
        0xe306_9283_u32.to_le_bytes()
    );
    assert_eq!(known(Kind::Xxh64), 0x44bc_2cf5_ad77_0999_u64.to_le_bytes());
    assert_eq!(
        known(Kind::Sha256),
        bytes("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    );
    assert_eq!(
        known(Kind::Blake2b256),
        bytes("bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319")
    );
    assert_eq!(known(Kind::Sha512)[..4], bytes("ddaf35a1"));
    assert_eq!(
        known(Kind::Sha512Of256),
        bytes("53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23")
    );
    assert_eq!(
        known(Kind::Blake3),
        bytes("6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85")
    );
    assert_eq!(
        sum(&layout(Kind::Crc32, Tail::AsIs), b"123456789"),
        0xcbf4_3926_u32.to_le_bytes()
    );
    assert_eq!(
        sum(&layout(Kind::Crc64Nvme, Tail::AsIs), b"123456789"),
        0xae8b_1486_0a79_9888_u64.to_le_bytes()
    );
    assert_eq!(known(Kind::Sha1), bytes("a9993e364706816aba3e25717850c26c9cd0d89d"));
}

/// Computed by definition, for 32 words at once, and in pieces that end anywhere.
#[test]
fn fletcher4_is_that_of_its_words() {
    let mut random = SplitMix64::new(7);
    for len in [0, 1, 3, 4, 5, 127, 128, 4099] {
        let content = random.bytes(len);
        let mut padded = content.clone();
        padded.resize(len.next_multiple_of(4), 0);
        let words: Vec<u64> = padded
            .chunks(4)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()).into())
            .collect();
        // Each sum of those so far is a sum of products: the word at distance k counts once, k,
        // k(k+1)/2, ... times.
        let count = words.len() as u128;
        let mut expected = [0_u64; 4];
        for (index, word) in words.iter().enumerate() {
            let k = count - index as u128;
            let times = [1, k, k * (k + 1) / 2, k * (k + 1) * (k + 2) / 6];
            for (sum, times) in expected.iter_mut().zip(times) {
                *sum = sum.wrapping_add(word.wrapping_mul(times as u64));
            }
        }
        let expected: Vec<u8> = expected.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let layout = layout(Kind::Fletcher4, Tail::AsIs);
        assert_eq!(sum(&layout, &content), expected, "{len}");
        let mut summer = Summer::new(&layout);
        let mut rest = &content[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(1 + random.below(9) as usize));
            summer.push(now);
            rest = later;
        }
        let mut made = Vec::new();
        summer.end_block(&mut made);
        assert_eq!(made, expected, "{len}, in pieces");
    }
}

#[test]
fn a_short_block_is_padded_where_the_source_pads() {
    for kind in [
        Kind::Crc32c,
        Kind::Crc32,
        Kind::Crc64Nvme,
        Kind::Xxh64,
        Kind::Sha1,
        Kind::Sha256,
        Kind::Sha512,
        Kind::Sha512Of256,
        Kind::Blake2b256,
        Kind::Blake3,
        Kind::Fletcher4,
    ] {
        let (padded, plain) = (layout(kind, Tail::ZeroPadded), layout(kind, Tail::AsIs));
        assert_eq!(sum(&padded, b"abc"), sum(&plain, b"abc\0\0\0\0\0\0\0\0\0\0\0\0\0"));
        assert_ne!(sum(&padded, b"abc"), sum(&plain, b"abc"));
        assert_eq!(sum(&padded, &[7; 16]), sum(&plain, &[7; 16]));
        let salted = Layout {
            salt: b"salt".to_vec(),
            ..plain.clone()
        };
        assert_eq!(sum(&salted, b"abc"), sum(&plain, b"saltabc"));
    }
}

/// An extraction whose end fails a given number of times.
struct Told<'a> {
    layout: Layout,
    len_bytes: u64,
    runs: Vec<Run<'a>>,
    stamped_len: u64,
    is_void: bool,
}

impl Extraction for Told<'_> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        Ok((!self.runs.is_empty()).then(|| self.runs.remove(0)))
    }

    fn finish(self) -> Result<Stamp> {
        let identity = Identity {
            dev: 1,
            ino: 2,
            birth_ns: None,
        };
        match self.is_void {
            true => Err(SourceError::ChangedMeanwhile),
            false => Ok(Stamp {
                identity,
                len_bytes: self.stamped_len,
                mtime_ns: 3,
                ctime_ns: 4,
                witness: [5; 32],
            }),
        }
    }
}

#[test]
fn source_discards_void_results_and_fetches_again() {
    let range = |start, end| ByteRange::new(start, end).unwrap();
    let runs = [
        Run::Sums {
            range: range(0, 32),
            sums: b"aaaabbbb",
        },
        Run::Zeros { range: range(32, 48) },
        Run::Unknown {
            range: range(48, 64),
            why: Unknown::Inline,
        },
        Run::Sums {
            range: range(64, 96),
            sums: b"ccccdddd",
        },
        Run::Chunks {
            range: range(96, 111),
            ends: &[98, 111],
            sums: b"ffffgggg",
        },
        Run::Chunks {
            range: range(111, 112),
            ends: &[112],
            sums: b"hhhh",
        },
        Run::Sums {
            range: range(112, 129),
            sums: b"iiiijjjj",
        },
    ];
    let mut tries = 0;
    let mut begin = |void: u32| {
        tries += 1;
        Ok(Told {
            layout: layout(Kind::Crc32c, Tail::ZeroPadded),
            len_bytes: 129,
            runs: runs.to_vec(),
            stamped_len: 129,
            is_void: tries <= void,
        })
    };
    let reported = FileChecksums::collect(3, || begin(2)).unwrap();
    assert_eq!(reported.runs().collect::<Vec<_>>(), runs);
    assert_eq!((reported.unknown_bytes(), reported.stamp().ctime_ns), (16, 4));
    assert_eq!(tries, 3);
    tries = 0;
    let mut begin = || {
        tries += 1;
        Ok(Told {
            layout: layout(Kind::Crc32c, Tail::ZeroPadded),
            len_bytes: 129,
            runs: runs.to_vec(),
            stamped_len: 129,
            is_void: true,
        })
    };
    assert!(matches!(FileChecksums::collect(3, &mut begin), Err(SourceError::Busy)));
    assert_eq!(tries, 3);
}

/// A checksum taken for another block's would make a wrong delta, whatever the source.
#[test]
fn source_refuses_runs_that_do_not_fit_the_file() {
    let range = |start, end| ByteRange::new(start, end).unwrap();
    let sums = |start, end, sums| Run::Sums {
        range: range(start, end),
        sums,
    };
    let chunks = |start, end, ends, sums| Run::Chunks {
        range: range(start, end),
        ends,
        sums,
    };
    let zeros = |start, end| Run::Zeros {
        range: range(start, end),
    };
    let reported = |runs: &[Run<'static>], stamped_len| {
        FileChecksums::collect(1, || {
            Ok(Told {
                layout: layout(Kind::Crc32c, Tail::ZeroPadded),
                len_bytes: 40,
                runs: runs.to_vec(),
                stamped_len,
                is_void: false,
            })
        })
    };
    let fitting = [
        vec![sums(0, 40, b"aaaabbbbcccc")],
        vec![zeros(0, 16), sums(16, 40, b"bbbbcccc")],
        vec![sums(0, 32, b"aaaabbbb"), zeros(32, 40)],
        vec![chunks(0, 20, &[4, 20], b"aaaabbbb"), zeros(20, 40)],
    ];
    for runs in fitting {
        assert_eq!(reported(&runs, 40).unwrap().runs().collect::<Vec<_>>(), runs);
        assert!(
            matches!(reported(&runs, 39), Err(SourceError::Malformed(_))),
            "{runs:?}"
        );
    }
    let without_bytes = FileChecksums::collect(1, || {
        Ok(Told {
            layout: Layout {
                block_len: 0,
                ..layout(Kind::Crc32c, Tail::AsIs)
            },
            len_bytes: 4,
            runs: vec![sums(0, 4, b"aaaa")],
            stamped_len: 4,
            is_void: false,
        })
    });
    assert!(matches!(without_bytes, Err(SourceError::Malformed(_))));
    let others = [
        // Not from the beginning, not to the end, and beyond it.
        vec![],
        vec![zeros(1, 40)],
        vec![zeros(0, 39)],
        vec![zeros(0, 41)],
        vec![sums(0, 41, b"aaaabbbbcccc")],
        // A gap, and two about the same bytes.
        vec![zeros(0, 16), zeros(32, 40)],
        vec![zeros(0, 32), zeros(16, 40)],
        // Too few checksums, too many, and a part of one.
        vec![sums(0, 40, b"aaaabbbb")],
        vec![sums(0, 40, b"aaaabbbbccccdddd")],
        vec![sums(0, 40, b"aaaabbbbccc")],
        vec![chunks(0, 16, &[4, 16], b"aaaa"), zeros(16, 40)],
        vec![chunks(0, 16, &[4, 16], b"aaaabbbbcccc"), zeros(16, 40)],
        // Blocks where none are.
        vec![zeros(0, 8), sums(8, 40, b"bbbbcccc")],
        vec![sums(0, 24, b"aaaabbbb"), zeros(24, 40)],
        // Chunks that do not make their stretch.
        vec![chunks(0, 16, &[], b""), zeros(16, 40)],
        vec![chunks(0, 16, &[4], b"aaaa"), zeros(16, 40)],
        vec![chunks(0, 16, &[4, 17], b"aaaabbbb"), zeros(16, 40)],
        vec![chunks(0, 16, &[4, 4, 16], b"aaaabbbbcccc"), zeros(16, 40)],
        vec![chunks(0, 16, &[8, 4, 16], b"aaaabbbbcccc"), zeros(16, 40)],
        vec![chunks(0, 16, &[0, 16], b"aaaabbbb"), zeros(16, 40)],
        vec![chunks(0, 20, &[3, 20], b"aaaabbbb"), zeros(20, 40)],
    ];
    for runs in others {
        assert!(
            matches!(reported(&runs, 40), Err(SourceError::Malformed(_))),
            "{runs:?}"
        );
    }
}
