//! Round trips; detection of every change of a stream; hostile streams, which cost nothing.

use proptest::prelude::*;

use super::*;

fn stream(list: &MatchList) -> Vec<u8> {
    let mut stream = Vec::new();
    list.write(&mut stream).unwrap();
    stream
}

fn read(stream: &[u8], like: &MatchList) -> Result<MatchList, MatchesError> {
    MatchList::read(stream, like.new_len_bytes, like.block_len_bytes)
}

/// Runs by their gaps and lengths in blocks, and their places in the base.
fn list(block_len: u32, runs: &[(u64, u64, u64)], tail: u64) -> MatchList {
    let len = u64::from(block_len);
    let blocks: u64 = runs.iter().map(|(gap, blocks, _)| gap + blocks).sum();
    // The last block may be shorter.
    let new_len = (blocks * len).saturating_sub(tail % len);
    let mut list = MatchList::new(block_len, new_len, 1 << 40);
    let mut at = 0;
    for &(gap, blocks, place) in runs {
        at += gap * len;
        let end = (at + blocks * len).min(new_len);
        list.push(ByteRange::new(at, end).unwrap(), place);
        at = end;
    }
    list
}

fn small() -> MatchList {
    list(100, &[(0, 2, 0), (1, 3, 300), (0, 1, 5), (7, 2, 1700)], 30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(
        block_len in prop_oneof![Just(1_u32), Just(700), Just(BLOCK_LEN_MAX)],
        runs in prop::collection::vec((0..5_u64, 1..40_u64, 0..(1_u64 << 39)), 0..40),
        tail in any::<u64>(),
    ) {
        let list = list(block_len, &runs, tail);
        let bytes = stream(&list);
        prop_assert_eq!(&read(&bytes, &list).unwrap(), &list);
        let matched: u64 = list.runs().iter().map(|run| run.range.len_bytes()).sum();
        let missing: u64 = list.missing().map(ByteRange::len_bytes).sum();
        prop_assert_eq!(matched + missing, list.new_len_bytes());
    }

    #[test]
    fn bytes_of_anybody_do_no_harm(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        runs in 0..20_u32,
    ) {
        // With a valid header and a valid group checksum, only the rules are left to break.
        let list = MatchList::new(100, 100_000, 50_000);
        let mut head = stream(&list);
        head[32..36].copy_from_slice(&runs.to_le_bytes());
        let crc = crc32c::crc32c(&head[..36]);
        head[36..40].copy_from_slice(&crc.to_le_bytes());
        let mut hostile = head;
        hostile.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        hostile.extend_from_slice(&bytes);
        hostile.extend_from_slice(&group_crc(crc, 0, &bytes).to_le_bytes());
        if let Ok(read) = read(&hostile, &list) {
            let mut at = 0;
            for run in read.runs() {
                prop_assert!(run.range.start() >= at && run.range.end() <= 100_000);
                prop_assert!(run.base_offset + run.range.len_bytes() <= 50_000);
                at = run.range.end();
            }
            if runs > 0 {
                prop_assert_eq!(stream(&read), hostile, "one list has one stream");
            }
        }
        bytes.truncate(40);
        prop_assert!(read(&bytes, &list).is_err());
    }
}

#[test]
fn golden_bytes_of_version_1() {
    let hex: Vec<String> = stream(&small()).iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = "89 42 42 4d 41 54 0d 0a 01 00 00 00 64 00 00 00 22 06 00 00 00 00 00 00 00 00 00 00 00 01 00 00 04 00 00 00 \
                    93 c5 de 67 0e 00 00 00 00 01 00 01 02 00 00 00 a5 09 07 01 fe 0d 93 92 bf 18";
    assert_eq!(hex.join(" "), expected);
}

#[test]
fn more_than_a_group() {
    for count in [1023, 1024, 1025, 3000] {
        let runs: Vec<_> = (0..count).map(|run| (1, 1, run * 977)).collect();
        let list = list(64, &runs, 0);
        assert_eq!(list.runs().len() as u64, count);
        let mut bytes = stream(&list);
        bytes.extend_from_slice(b"next");
        let mut rest = &bytes[..];
        let read = MatchList::read(&mut rest, list.new_len_bytes, 64).unwrap();
        assert_eq!((read, rest), (list, &b"next"[..]), "nothing is read beyond the end");
    }
}

#[test]
fn every_flipped_bit_and_every_truncation_is_noticed() {
    let list = small();
    let bytes = stream(&list);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            assert!(read(&damaged, &list).is_err(), "bit {bit} of byte {at}");
        }
        let cut = read(&bytes[..at], &list);
        assert!(matches!(cut, Err(MatchesError::Truncated { .. })), "{at}: {cut:?}");
    }
}

#[test]
fn groups_that_were_exchanged_are_noticed() {
    let runs: Vec<_> = (0..2048).map(|run| (1, 1, 1000 + run * 64)).collect();
    let list = list(64, &runs, 0);
    let bytes = stream(&list);
    let len = |at: usize| 8 + u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let (first, second) = (HEADER_LEN, HEADER_LEN + len(HEADER_LEN));
    let mut exchanged = bytes[..first].to_vec();
    exchanged.extend_from_slice(&bytes[second..]);
    exchanged.extend_from_slice(&bytes[first..second]);
    assert!(matches!(
        read(&exchanged, &list),
        Err(MatchesError::Checksum { run: 0 })
    ));
}

#[test]
fn a_list_about_another_content_is_refused() {
    let list = small();
    let bytes = stream(&list);
    for (len, block_len) in [(list.new_len_bytes + 1, 100), (list.new_len_bytes, 99)] {
        let error = MatchList::read(&bytes[..], len, block_len);
        assert!(matches!(error, Err(MatchesError::OtherContent { .. })), "{error:?}");
    }
    assert!(matches!(
        read(b"GET / HTTP/1.1 GET / HTTP/1.1 GET / HTTP/1.1", &list),
        Err(MatchesError::NotMatches)
    ));
}

#[test]
fn impossible_headers_are_refused_before_anything_is_reserved() {
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = stream(&MatchList::new(100, 1000, 1000));
        change(&mut bytes);
        let crc = crc32c::crc32c(&bytes[..36]);
        bytes[36..40].copy_from_slice(&crc.to_le_bytes());
        bytes
    };
    let list = MatchList::new(100, 1000, 1000);
    let bytes = with(&|bytes| bytes[8] = 2);
    assert!(matches!(read(&bytes, &list), Err(MatchesError::Version(2))));
    for change in [10, 11] {
        let bytes = with(&|bytes| bytes[change] = 1);
        assert!(matches!(read(&bytes, &list), Err(MatchesError::Impossible { .. })));
    }
    let bytes = with(&|bytes| bytes[24..32].fill(0xff));
    assert!(matches!(read(&bytes, &list), Err(MatchesError::Impossible { .. })));
    // Four thousand million announced runs, none of which comes; and a group of 4 GiB.
    let mut bytes = with(&|bytes| bytes[32..36].fill(0xff));
    assert!(matches!(read(&bytes, &list), Err(MatchesError::Truncated { runs: 0 })));
    bytes.extend_from_slice(&[0xff; 4]);
    assert!(matches!(read(&bytes, &list), Err(MatchesError::Impossible { .. })));
    let zero_blocks = MatchList {
        block_len_bytes: 0,
        ..list
    };
    let bytes = with(&|bytes| bytes[12..16].fill(0));
    assert!(matches!(
        read(&bytes, &zero_blocks),
        Err(MatchesError::Impossible { .. })
    ));
}

#[test]
fn a_source_that_fails_is_named() {
    struct Fails;
    impl Read for Fails {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
    assert!(matches!(MatchList::read(Fails, 0, 100), Err(MatchesError::Io(_))));
}

#[test]
fn runs_that_cannot_be_are_refused() {
    let with = |runs: &[(u64, u64, u64)]| {
        let runs = runs.iter().map(|&(start, end, base_offset)| MatchRun {
            range: ByteRange::new(start, end).unwrap(),
            base_offset,
        });
        let list = MatchList {
            runs: runs.collect(),
            ..MatchList::new(100, 1000, 500)
        };
        read(&stream(&list), &list).map(|read| read.runs)
    };
    let reason = |runs: &[(u64, u64, u64)]| match with(runs) {
        Err(MatchesError::Impossible { run, reason }) => (run, reason),
        other => panic!("{other:?}"),
    };
    assert_eq!(with(&[(0, 500, 0), (900, 1000, 400)]).unwrap().len(), 2);
    assert_eq!(reason(&[(0, 100, 401)]), (0, "it is outside the base"));
    assert_eq!(reason(&[(0, 100, FILE_LEN_MAX)]), (0, "it is outside the base"));
    assert_eq!(
        reason(&[(0, 100, 0), (500, 1100, 0)]),
        (1, "it is outside the new content")
    );
    assert_eq!(reason(&[(1000, 1100, 0)]), (0, "it is outside the new content"));
    let continued = (1, "it continues the previous run and should be part of it");
    assert_eq!(reason(&[(0, 100, 7), (100, 200, 107)]), continued);
}
