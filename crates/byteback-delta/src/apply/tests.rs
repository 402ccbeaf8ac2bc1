//! Application to real files, and its failures. The writer's tests check that the resulting bytes
//! are right.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::model::noise;
use crate::write::{DeltaWriter, WriterOptions};

fn r(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

/// An unnamed file in the folder for temporary files.
fn temporary() -> File {
    tempfile::tempfile().unwrap()
}

fn bytes_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Whether the file system of the temporary files keeps holes; where it does not, only bytes can be
/// compared.
fn keeps_holes() -> bool {
    let file = temporary();
    file.set_len(1 << 20).unwrap();
    file.metadata().unwrap().blocks() == 0
}

fn stream(base_len: u64, new_len: u64, write: impl FnOnce(&mut DeltaWriter<Vec<u8>>)) -> Vec<u8> {
    let mut writer = DeltaWriter::new(Vec::new(), base_len, new_len, WriterOptions::default()).unwrap();
    write(&mut writer);
    writer.finish().unwrap().0
}

#[test]
fn holes_of_the_base_and_of_the_delta_are_holes_in_a_new_file() {
    const MIB: u64 = 1 << 20;
    let mut base = temporary();
    base.set_len(64 * MIB).unwrap();
    base.write_range(0, &noise(1, 1000)).unwrap();
    base.write_range(40 * MIB, &noise(2, MIB as usize)).unwrap();
    base.write_range(50 * MIB, &noise(3, MIB as usize)).unwrap();
    let stream = stream(64 * MIB, 80 * MIB, |writer| {
        writer.literal_bytes(20 * MIB, b"new").unwrap();
        writer.zero(r(50 * MIB, 52 * MIB)).unwrap();
    });
    let mut expected = bytes_of(&base);
    expected.resize(80 * MIB as usize, 0);
    expected[20 * MIB as usize..][..3].copy_from_slice(b"new");
    expected[50 * MIB as usize..52 * MIB as usize].fill(0);

    let mut target = temporary();
    let stats = apply_to_new(&base, &mut DeltaReader::new(&stream[..]).unwrap(), &mut target).unwrap();
    assert!(bytes_of(&target) == expected);
    assert_eq!(stats.literal_bytes, 3);
    if keeps_holes() {
        assert!(
            target.metadata().unwrap().blocks() * 512 < 2 * MIB,
            "the holes were filled"
        );
        assert!(stats.copied_bytes < 2 * MIB);
    }

    // In place: data becomes a hole.
    let stats = apply_in_place(&mut DeltaReader::new(&stream[..]).unwrap(), &mut base).unwrap();
    assert!(bytes_of(&base) == expected);
    assert_eq!(
        stats,
        ApplyStats {
            literal_bytes: 3,
            copied_bytes: 0
        }
    );
    if keeps_holes() {
        assert!(
            base.metadata().unwrap().blocks() * 512 < 2 * MIB,
            "the hole was not made"
        );
    }
}

#[test]
fn zeros_are_written_where_holes_cannot_be_made() {
    let mut file = temporary();
    let bytes = noise(1, 300_000);
    file.set_len(300_000).unwrap();
    file.write_range(0, &bytes).unwrap();
    write_zeros(&file, r(10, 200_001)).unwrap();
    let mut expected = bytes;
    expected[10..200_001].fill(0);
    assert!(bytes_of(&file) == expected);
}

#[test]
fn the_wrong_base_or_target_is_refused_untouched() {
    let stream = stream(10, 12, |writer| writer.literal_bytes(11, b"x").unwrap());
    let reader = || DeltaReader::new(&stream[..]).unwrap();
    let mut target = Vec::new();
    let result = apply_to_new(&[1; 9][..], &mut reader(), &mut target);
    assert!(matches!(result, Err(ApplyError::BaseLen { expected: 10, found: 9 })));
    assert!(target.is_empty());
    let mut target = vec![5];
    let result = apply_to_new(&[1; 10][..], &mut reader(), &mut target);
    assert!(matches!(result, Err(ApplyError::TargetNotEmpty { found: 1 })));
    assert_eq!(target, [5]);
    let mut target = vec![5; 11];
    let result = apply_in_place(&mut reader(), &mut target);
    assert!(matches!(
        result,
        Err(ApplyError::BaseLen {
            expected: 10,
            found: 11
        })
    ));
    assert_eq!(target, [5; 11]);
}

#[test]
fn an_application_in_place_that_failed_is_repeated() {
    let base = noise(1, 700_000);
    for new_len in [600_000_u64, 700_000, 800_000] {
        let stream = stream(700_000, new_len, |writer| {
            writer.literal_bytes(100, &noise(2, 300_000)).unwrap();
            writer.zero(r(400_000, 450_000)).unwrap();
            writer.literal_bytes(new_len - 5, b"last!").unwrap();
        });
        let mut expected = base.clone();
        apply_in_place(&mut DeltaReader::new(&stream[..]).unwrap(), &mut expected).unwrap();
        assert_eq!(expected.len() as u64, new_len);
        // A connection that breaks anywhere: nothing is cut off, and a second run completes the
        // content.
        for len in (32..stream.len()).step_by(10_000) {
            let mut target = base.clone();
            let result = apply_in_place(&mut DeltaReader::new(&stream[..len]).unwrap(), &mut target);
            assert!(matches!(result, Err(ApplyError::Delta(ReadError::CutOff { .. }))));
            assert!(target.len() >= base.len());
            apply_in_place(&mut DeltaReader::new(&stream[..]).unwrap(), &mut target).unwrap();
            assert!(target == expected);
        }
    }
}

/// A base and a target whose medium fails at some byte.
struct Failing<T> {
    inner: T,
    at: u64,
}

impl Base for Failing<Vec<u8>> {
    fn len_bytes(&self) -> io::Result<u64> {
        Base::len_bytes(&self.inner[..])
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if (offset..offset + buffer.len() as u64).contains(&self.at) {
            return Err(Errno::IO.into());
        }
        self.inner[..].read_range(offset, buffer)
    }
}

impl Target for Failing<Vec<u8>> {
    fn len_bytes(&self) -> io::Result<u64> {
        Target::len_bytes(&self.inner)
    }

    fn write_range(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if (offset..offset + bytes.len() as u64).contains(&self.at) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.inner.write_range(offset, bytes)
    }

    fn punch_hole(&mut self, range: ByteRange) -> io::Result<()> {
        self.inner.punch_hole(range)
    }

    fn set_len_bytes(&mut self, len_bytes: u64) -> io::Result<()> {
        self.inner.set_len_bytes(len_bytes)
    }
}

/// A large base of ones that refuses large reads.
struct Large;

impl Base for Large {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(3_000_000)
    }

    fn read_range(&self, _offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        assert!(buffer.len() as u64 <= COPY_BUFFER_LEN, "{} bytes at once", buffer.len());
        buffer.fill(1);
        Ok(())
    }
}

#[test]
fn a_large_base_is_copied_through_a_small_buffer() {
    let stream = stream(3_000_000, 3_000_001, |_| {});
    let mut target = Vec::new();
    let stats = apply_to_new(&Large, &mut DeltaReader::new(&stream[..]).unwrap(), &mut target).unwrap();
    assert_eq!(stats.copied_bytes, 3_000_000);
    assert!(target[..3_000_000].iter().all(|&byte| byte == 1) && target[3_000_000..] == [0]);
}

#[test]
fn failing_media_are_told_with_the_place() {
    let stream = stream(1000, 1000, |writer| writer.literal_bytes(500, b"12345").unwrap());
    let base = Failing {
        inner: noise(1, 1000),
        at: 700,
    };
    let result = apply_to_new(&base, &mut DeltaReader::new(&stream[..]).unwrap(), &mut Vec::new());
    let Err(ApplyError::ReadBase { range, .. }) = result else {
        panic!("{result:?}")
    };
    assert!(range.contains(700));
    for at in [700, 502] {
        let mut target = Failing { inner: Vec::new(), at };
        let result = apply_to_new(
            &base.inner[..],
            &mut DeltaReader::new(&stream[..]).unwrap(),
            &mut target,
        );
        let Err(ApplyError::WriteTarget { range, source }) = result else {
            panic!("{result:?}")
        };
        assert!(range.contains(at));
        assert_eq!(source.kind(), io::ErrorKind::StorageFull);
    }
}
