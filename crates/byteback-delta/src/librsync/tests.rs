//! Deltas applied by a naive reader of the format and by the stock `rdiff`.

use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::*;
use crate::model::{LEN_MAX, Lit, Op, build, content, op};

fn r(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

fn encode(map: &DeltaMap<Lit>, zeros: Option<ByteRange>) -> (Vec<u8>, LibrsyncStats) {
    let mut writer = LibrsyncWriter::new(Vec::new(), map.base_len_bytes(), map.new_len_bytes()).unwrap();
    if let Some(zeros) = zeros {
        writer.zeros_in_base(zeros);
    }
    writer
        .map(map, |lit, buffer| {
            lit.fill(buffer);
            Ok(())
        })
        .unwrap();
    writer.finish().unwrap()
}

/// The reference: the content that a delta makes of a base, and the first bytes of its commands.
fn apply(base: &[u8], delta: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let number = |bytes: &[u8]| bytes.iter().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
    let (mut new, mut commands) = (Vec::new(), Vec::new());
    assert_eq!(delta[..4], [0x72, 0x73, 0x02, 0x36]);
    let mut at = 4;
    loop {
        let op = delta[at];
        commands.push(op);
        at += 1;
        let mut take = |len: usize| {
            at += len;
            &delta[at - len..at]
        };
        match op {
            0 => break,
            1..=0x40 => new.extend_from_slice(take(usize::from(op))),
            0x41..=0x44 => {
                let len = number(take(1 << (op - 0x41)));
                assert!(len > 64, "the length would fit into the command");
                new.extend_from_slice(take(len));
            }
            0x45..=0x54 => {
                let start = number(take(1 << ((op - 0x45) / 4)));
                let len = number(take(1 << ((op - 0x45) % 4)));
                assert!(len > 0);
                new.extend_from_slice(&base[start..start + len]);
            }
            _ => panic!("no such command: {op}"),
        }
    }
    assert_eq!(at, delta.len(), "nothing follows the end");
    (new, commands)
}

/// Starts the stock `rdiff patch` on a base and a delta.
fn rdiff(base: &std::path::Path, delta: &[u8]) -> std::process::Child {
    let path = base.with_extension("delta");
    std::fs::write(&path, delta).unwrap();
    Command::new("rdiff")
        .arg("patch")
        .args([base, &path])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("rdiff is needed: apt-get install rdiff")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn a_delta_makes_the_new_content(
        base in content(),
        new_len in 0..LEN_MAX,
        ops in prop::collection::vec(op(true), 0..12),
    ) {
        let (map, new) = build(&base, new_len, &ops);
        let (delta, stats) = encode(&map, None);
        prop_assert_eq!(stats.wire_bytes, delta.len() as u64);
        prop_assert_eq!(stats.literal_bytes + stats.copied_bytes, new.len() as u64);
        prop_assert_eq!(apply(&base, &delta).0, new);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn the_stock_rdiff_makes_the_new_content(
        base in content(),
        new_len in 0..LEN_MAX,
        ops in prop::collection::vec(op(true), 0..12),
        stretch in prop_oneof![Just(1_u64), Just(300), Just(70_000)],
    ) {
        // The same shapes, some of them too large for arguments of one or two bytes.
        let ops: Vec<Op> = ops.into_iter().map(|op| stretched(op, stretch)).collect();
        let base: Vec<u8> = base.iter().flat_map(|byte| std::iter::repeat_n(*byte, stretch as usize)).collect();
        let (map, new) = build(&base, new_len * stretch, &ops);
        let (delta, _) = encode(&map, None);
        prop_assert!(apply(&base, &delta).0 == new);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("base");
        std::fs::write(&path, &base).unwrap();
        let output = rdiff(&path, &delta).wait_with_output().unwrap();
        prop_assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        prop_assert!(output.stdout == new, "rdiff made another content");
    }
}

fn stretched(op: Op, by: u64) -> Op {
    match op {
        Op::Literal(start, len, lit) => Op::Literal(start * by, len * by, lit),
        Op::Copy(start, len, from) => Op::Copy(start * by, len * by, from * by),
        Op::Zero(start, len) => Op::Zero(start * by, len * by),
        Op::Keep(start, len) => Op::Keep(start * by, len * by),
        Op::SetLen(len) => Op::SetLen(len * by),
    }
}

#[test]
fn every_width_of_an_argument_is_used() {
    // Both ends of each width, as lengths of literals.
    for (len, command) in [
        (1, 1),
        (64, 64),
        (65, 0x41),
        (255, 0x41),
        (256, 0x42),
        (65_535, 0x42),
        (65_536, 0x43),
    ] {
        let mut map = DeltaMap::new(0, len);
        map.literal(r(0, len), Lit { stream: 0, at: 0 });
        let (delta, _) = encode(&map, None);
        let (new, commands) = apply(&[], &delta);
        assert_eq!((new.len() as u64, commands), (len, vec![command, 0]));
    }
    // The same for positions and lengths of copies.
    let base: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
    for (row, position) in [255, 256, 65_536].into_iter().enumerate() {
        for (column, len) in [255, 256, 65_536].into_iter().enumerate() {
            let mut map = DeltaMap::<Lit>::new(200_000, len);
            map.copy(r(0, len), position);
            let (delta, _) = encode(&map, None);
            let (new, commands) = apply(&base, &delta);
            assert_eq!(commands, [0x45 + 4 * row as u8 + column as u8, 0]);
            assert_eq!(new, base[position as usize..][..len as usize]);
        }
    }
    let mut writer = LibrsyncWriter::new(Vec::new(), 1 << 40, 10).unwrap();
    writer.copy(r(0, 10), 1 << 32).unwrap();
    let (delta, _) = writer.finish().unwrap();
    assert_eq!(delta[4..], [0x51, 0, 0, 0, 1, 0, 0, 0, 0, 10, 0]);
}

#[test]
fn librsync_commands_for_long_runs_are_cut_for_every_reader() {
    let len = (5 << 30) + 7;
    let mut writer = LibrsyncWriter::new(Vec::new(), len, len).unwrap();
    writer.literal(r(3 << 30, (3 << 30) + 1), &b"x"[..]).unwrap();
    let (delta, stats) = writer.finish().unwrap();
    assert_eq!((stats.literal_bytes, stats.copied_bytes), (1, len - 1));
    let copies = [
        &[0x47, 0, 0x40, 0, 0, 0][..],
        &[0x4f, 0x40, 0, 0, 0, 0x40, 0, 0, 0],
        &[0x4f, 0x80, 0, 0, 0, 0x40, 0, 0, 0],
        &[1, b'x'],
        &[0x4f, 0xc0, 0, 0, 1, 0x40, 0, 0, 0],
        &[0x53, 0, 0, 0, 1, 0, 0, 0, 1, 0x40, 0, 0, 0],
        &[0x51, 0, 0, 0, 1, 0x40, 0, 0, 1, 6],
        &[0],
    ];
    assert_eq!(delta[4..], copies.concat());
}

#[test]
fn rdiff_reads_beyond_4_gib() {
    use std::io::Read;
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("base");
    let base = std::fs::File::create(&path).unwrap();
    let far = (5 << 30) + 123;
    base.set_len(6 << 30).unwrap();
    base.write_all_at(b"far away", far).unwrap();
    // The new content is short: only its source lies far out.
    let mut writer = LibrsyncWriter::new(Vec::new(), 6 << 30, 100).unwrap();
    writer.copy(r(0, 8), far).unwrap();
    writer.literal(r(8, 10), &b"!\n"[..]).unwrap();
    writer.zero(r(10, 100)).unwrap();
    let (delta, stats) = writer.finish().unwrap();
    assert_eq!(stats.zero_bytes, 90);
    let mut made = Vec::new();
    let mut child = rdiff(&path, &delta);
    child.stdout.take().unwrap().read_to_end(&mut made).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(made, [&b"far away!\n"[..], &[0; 90]].concat());
}

#[test]
fn known_zeros_of_the_base_make_holes_cheap() {
    let mut base = vec![7_u8; 20_000];
    base[4096..12_288].fill(0);
    // A kept range, a hole, a literal, and growth past the base.
    let mut map = DeltaMap::new(20_000, 100_000);
    map.zero(r(13_000, 19_000));
    map.literal(r(50_000, 50_003), Lit { stream: 1, at: 0 });
    let (dear, _) = encode(&map, None);
    let (cheap, stats) = encode(&map, Some(r(4096, 12_288)));
    assert!(dear.len() > 80_000, "{}", dear.len());
    assert!(cheap.len() < 200, "{}", cheap.len());
    assert_eq!((stats.literal_bytes, stats.zero_bytes), (3, 0));
    let new = apply(&base, &dear).0;
    assert_eq!(new.len(), 100_000);
    assert!(apply(&base, &cheap).0 == new);
    // Written in pieces, the delta is the same.
    let mut writer = LibrsyncWriter::new(Vec::new(), 20_000, 100_000).unwrap();
    writer.zeros_in_base(r(4096, 12_288));
    for at in (50_000..100_000).step_by(10) {
        writer.zero(r(at, at + 10)).unwrap();
    }
    let (pieces, _) = writer.finish().unwrap();
    assert!(pieces.len() < 100, "{}", pieces.len());
    assert!(apply(&base, &pieces).0[..20_000] == base[..] && apply(&base, &pieces).0[20_000..] == vec![0; 80_000][..]);
    // A short range of zeros is not worth it, and a range past the base is not believed.
    assert_eq!(encode(&map, Some(r(4096, 5000))).0, dear);
    assert_eq!(encode(&map, Some(r(19_000, 90_000))).0, dear);
}

#[test]
fn librsync_writer_fails_for_good_after_an_impossible_delta() {
    let begun = || LibrsyncWriter::new(Vec::new(), 10, 20).unwrap();
    let mut writer = begun();
    writer.zero(r(5, 10)).unwrap();
    assert!(matches!(writer.zero(r(9, 11)), Err(WriteError::OutOfOrder { .. })));
    assert!(matches!(writer.zero(r(11, 12)), Err(WriteError::Incomplete)));
    assert!(matches!(writer.finish(), Err(WriteError::Incomplete)));
    assert!(matches!(begun().zero(r(15, 21)), Err(WriteError::PastNewLen { .. })));
    assert!(matches!(begun().copy(r(0, 5), 6), Err(WriteError::PastBaseLen { .. })));
    assert!(matches!(
        begun().copy(r(0, 5), u64::MAX - 1),
        Err(WriteError::PastBaseLen { .. })
    ));
    let mut writer = begun();
    assert!(matches!(
        writer.literal(r(0, 5), &b"1234"[..]),
        Err(WriteError::ReadLiteral { .. })
    ));
    assert!(writer.finish().is_err());
    assert!(matches!(
        LibrsyncWriter::new(Vec::new(), u64::MAX, 0),
        Err(WriteError::FileTooLong { .. })
    ));
    let mut full = [0_u8; 6];
    let mut writer = LibrsyncWriter::new(&mut full[..], 10, 20).unwrap();
    writer.zero(r(0, 10)).unwrap();
    assert!(matches!(writer.copy(r(10, 12), 3), Err(WriteError::Write(_))));
    assert!(matches!(writer.finish(), Err(WriteError::Incomplete)));
}

#[test]
fn an_unchanged_and_an_empty_file_cost_a_few_bytes() {
    let (delta, _) = LibrsyncWriter::new(Vec::new(), 1000, 1000).unwrap().finish().unwrap();
    assert_eq!(delta, [0x72, 0x73, 2, 0x36, 0x46, 0, 3, 0xe8, 0]);
    let (delta, _) = LibrsyncWriter::new(Vec::new(), 1000, 0).unwrap().finish().unwrap();
    assert_eq!(delta, [0x72, 0x73, 2, 0x36, 0]);
}
