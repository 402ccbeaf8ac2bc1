//! Deltas of our writer read back; limits; hostile deltas. Deltas of `rdiff` are applied in
//! `signature`'s tests.

use proptest::prelude::*;

use super::*;
use crate::find::FoundExtents;
use crate::find::edits::compose;
use crate::librsync::LibrsyncWriter;
use crate::map::DeltaMap;
use crate::model::{LEN_MAX, Lit, build, content, noise, op};

fn encode(map: &DeltaMap<Lit>) -> Vec<u8> {
    let mut writer = LibrsyncWriter::new(Vec::new(), map.base_len_bytes(), map.new_len_bytes()).unwrap();
    let read = |lit: &Lit, buffer: &mut [u8]| {
        lit.fill(buffer);
        Ok(())
    };
    writer.map(map, read).unwrap();
    writer.finish().unwrap().0
}

fn extents(
    delta: &[u8],
    base_len: u64,
    most: u64,
) -> Result<(FoundExtents, u64), LibrsyncError<std::convert::Infallible>> {
    read_librsync_delta(delta, base_len, most, FoundExtents::default())
}

fn commands(bytes: &[u8]) -> Vec<u8> {
    [&LIBRSYNC_MAGIC[..], bytes].concat()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn librsync_delta_reads_back_and_applies(
        base in content(),
        new_len in 0..LEN_MAX,
        ops in prop::collection::vec(op(true), 0..12),
    ) {
        let (map, new) = build(&base, new_len, &ops);
        let delta = encode(&map);
        let (found, len) = extents(&delta, base.len() as u64, new.len() as u64).unwrap();
        prop_assert_eq!(len, new.len() as u64);
        prop_assert_eq!(compose(&base, &found.extents), new.clone());
        let mut made = Vec::new();
        apply_librsync(&base[..], &delta[..], &mut made, u64::MAX).unwrap();
        prop_assert_eq!(&made, &new);
        // Cut off anywhere, it is not accepted.
        for at in 0..delta.len() {
            prop_assert!(extents(&delta[..at], base.len() as u64, u64::MAX).is_err());
        }
        if !new.is_empty() {
            let short = extents(&delta, base.len() as u64, new.len() as u64 - 1);
            prop_assert!(matches!(short, Err(LibrsyncError::TooLong { .. })), "{:?}", short);
        }
    }

    #[test]
    fn bytes_of_anybody_do_no_harm(bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0x41..0x56_u8, 0..3_u8], 0..60)) {
        let base = noise(1, 300);
        let mut made = Vec::new();
        let delta = commands(&bytes);
        let applied = apply_librsync(&base[..], &delta[..], &mut made, 10_000);
        prop_assert!(made.len() <= 10_000);
        let read = extents(&delta, 300, 10_000);
        prop_assert_eq!(applied.is_ok(), read.is_ok());
        if let Ok((found, len)) = read {
            prop_assert_eq!(len, made.len() as u64);
            prop_assert_eq!(compose(&base, &found.extents), made);
        }
    }
}

#[test]
fn hostile_deltas_are_refused() {
    let error = |bytes: &[u8]| extents(bytes, 1000, 1 << 40).unwrap_err();
    assert!(matches!(error(b""), LibrsyncError::NotADelta));
    assert!(matches!(error(b"rs"), LibrsyncError::NotADelta));
    assert!(matches!(error(b"rs\x01\x36"), LibrsyncError::NotADelta));
    assert!(matches!(error(&commands(&[])), LibrsyncError::CutOff { position: 4 }));
    for command in [0x55, 0x56, 0xff] {
        let expected = command;
        assert!(matches!(
            error(&commands(&[1, b'x', command])),
            LibrsyncError::Command { position: 6, command } if command == expected
        ));
    }
    // Copies of no bytes, past the end, and beyond the range of numbers.
    for copy in [
        &[0x45, 0, 0][..],
        &[0x46, 0, 3, 0xe9],
        &[0x49, 3, 0xe8, 1],
        &[
            0x54, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        ],
        &[
            0x54, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        ],
    ] {
        assert!(matches!(
            error(&commands(copy)),
            LibrsyncError::Copy { position: 4, .. }
        ));
    }
    // A literal of 2^63 bytes, none of which comes.
    let huge = commands(&[0x44, 0x80, 0, 0, 0, 0, 0, 0, 0]);
    assert!(matches!(error(&huge), LibrsyncError::TooLong { .. }));
    let long = commands(&[0x43, 0, 0xff, 0xff, 0xff, 1]);
    assert!(matches!(error(&long), LibrsyncError::CutOff { .. }));
    // A few bytes that copy again and again.
    let mut bomb = Vec::new();
    for _ in 0..100_000 {
        bomb.extend_from_slice(&[0x46, 0, 3, 0xe8]);
    }
    let mut made = Vec::new();
    let base = noise(1, 1000);
    let bombed = apply_librsync(&base[..], &commands(&bomb)[..], &mut made, 50_000);
    assert!(matches!(bombed, Err(LibrsyncError::TooLong { new_len_max: 50_000 })));
    assert!(made.len() <= 50_000);
}

#[test]
fn librsync_reader_stops_at_the_end_and_locates_errors() {
    let bytes = commands(&[2, b'a', b'b', 0, b'n', b'e', b'x', b't']);
    let mut rest = &bytes[..];
    let (_, len) = read_librsync_delta(&mut rest, 0, 10, FoundExtents::default()).unwrap();
    assert_eq!((len, rest), (2, &b"next"[..]));
    struct Fails;
    impl Read for Fails {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(ErrorKind::ConnectionReset.into())
        }
    }
    let failed = read_librsync_delta(commands(&[5, b'a']).chain(Fails), 0, 10, FoundExtents::default());
    assert!(matches!(failed, Err(LibrsyncError::Read { position: 5, .. })));
    let mut target = vec![1];
    let applied = apply_librsync(&[][..], &bytes[..], &mut target, 10);
    assert!(matches!(
        applied,
        Err(LibrsyncError::Sink(ApplyError::TargetNotEmpty { found: 1 }))
    ));
}

#[test]
fn holes_of_the_base_stay_holes() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let mut options = std::fs::File::options();
        options.create(true).truncate(true).read(true).write(true);
        options.open(dir.path().join(name)).unwrap()
    };
    let base = file("base");
    base.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&base, b"data", 1 << 20).unwrap();
    let delta = LibrsyncWriter::new(Vec::new(), 64 << 20, 64 << 20)
        .unwrap()
        .finish()
        .unwrap()
        .0;
    let mut made = file("made");
    apply_librsync(&base, &delta[..], &mut made, 64 << 20).unwrap();
    let metadata = made.metadata().unwrap();
    assert_eq!(metadata.len(), 64 << 20);
    assert!(metadata.blocks() < 1000, "{} blocks", metadata.blocks());
}
