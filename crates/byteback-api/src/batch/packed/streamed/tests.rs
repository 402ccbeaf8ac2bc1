use super::super::packed;
use super::super::tests::{noise, read_all, small_batch};
use super::*;
use crate::batch::BatchWriter;
use byteback_model::{FileId, NameChange};

/// A piece of names, and a delta with `content_len` bytes that do not compress behind every tenth.
fn piece(names: u64, content_len: usize) -> Vec<u8> {
    let mut writer = BatchWriter::new(Vec::new()).unwrap();
    let contents = noise(content_len * names.div_ceil(10) as usize);
    let mut contents = contents.chunks(content_len.max(1));
    for number in 0..names {
        let name = NameChange {
            parent: FileId(7 << 64),
            name: format!("file-{number:06}").as_str().into(),
            child: Some(FileId((7 << 64) + u128::from(number))),
        };
        writer.entry(&name).unwrap();
        if number % 10 == 0 {
            let content = contents.next().unwrap_or_default();
            writer.delta(FileId(u128::from(number)), content).unwrap();
        }
    }
    writer.into_parts().unwrap().0
}

#[test]
fn long_pieces_of_names_become_a_fraction() {
    for names in [200, 5_000, 100_000] {
        let plain = piece(names, 0);
        let packed = packed(&plain).unwrap();
        assert_eq!(packed[..8], *b"BYBATCH\x03");
        assert_eq!(read_all(&packed).unwrap(), read_all(&plain).unwrap());
        assert!(packed.len() * 5 < plain.len(), "{} of {}", packed.len(), plain.len());
    }
}

#[test]
fn contents_that_do_not_compress_are_left_alone() {
    assert!(packed(&piece(300, 30_000)).is_none());
    // Half of it is names.
    let plain = piece(3_000, 1_500);
    let packed = packed(&plain).unwrap();
    assert_eq!(read_all(&packed).unwrap(), read_all(&plain).unwrap());
    let contents = 300 * 1_500;
    assert!(
        packed.len() - contents < (plain.len() - contents) / 4,
        "{} of {}",
        packed.len(),
        plain.len()
    );
}

#[test]
fn streamed_piece_notices_flipped_bits_and_truncation() {
    let plain = piece(300, 100);
    let whole = read_all(&plain).unwrap();
    let packed = packed(&plain).unwrap();
    for at in 0..packed.len() {
        let mut damaged = packed.clone();
        damaged[at] ^= 1 << (at % 8);
        // A meaningless bit of the frame may leave the records as they are, but never yields
        // others.
        if let Ok(read) = read_all(&damaged) {
            assert_eq!(read, whole, "byte {at}");
        }
        assert!(read_all(&packed[..at]).is_err(), "cut at {at}");
    }
}

fn frame(raw: &[u8], window_log: u32) -> Vec<u8> {
    let mut compressor = zstd::bulk::Compressor::with_dictionary(19, DICTIONARY).unwrap();
    compressor.set_parameter(CParameter::WindowLog(window_log)).unwrap();
    compressor.set_parameter(CParameter::ContentSizeFlag(false)).unwrap();
    [b"BYBATCH\x03", compressor.compress(raw).unwrap().as_slice()].concat()
}

#[test]
fn a_streamed_piece_gives_no_more_than_it_may() {
    // One record that never ends.
    let mut endless = vec![4, 0xff, 0xff, 0xff, 0xff, 0x0f];
    endless.resize(STREAMED_LEN_MAX as usize + 1, 0);
    for len in [endless.len(), endless.len() - 1] {
        let error = read_all(&frame(&endless[..len], WINDOW_LOG)).unwrap_err();
        let is_too_long = error.to_string().contains("length limit");
        assert_eq!(is_too_long, len > STREAMED_LEN_MAX as usize, "{error}");
    }
    // A window that would take more memory.
    let wide = frame(&small_batch(&noise(3 << 20))[8..], WINDOW_LOG + 1);
    assert!(
        matches!(read_all(&wide), Err(BatchError::Packed(_))),
        "{:?}",
        read_all(&wide)
    );
    assert!(matches!(read_all(b"BYBATCH\x03"), Err(BatchError::Packed(_)) | Ok(_)));
}

/// An error of the connection stays one.
#[test]
fn errors_of_the_stream_are_no_errors_of_the_piece() {
    struct Failing<'a>(&'a [u8]);
    impl Read for Failing<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(io::Error::other("the wire was cut")),
                read => Ok(read),
            }
        }
    }
    let packed = packed(&piece(3_000, 100)).unwrap();
    let mut reader = crate::batch::BatchReader::new(Failing(&packed[..packed.len() / 2]));
    let error = loop {
        match reader.next_record() {
            Ok(Some(crate::batch::Record::Delta { .. })) => {
                let mut stream = Vec::new();
                if let Err(error) = reader.delta().read_to_end(&mut stream) {
                    break BatchError::from(error);
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ends well"),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&error, BatchError::Io(error) if error.to_string() == "the wire was cut"),
        "{error:?}"
    );
}

/// Frames made by other versions of the library stay readable forever.
#[test]
fn golden_bytes_of_a_streamed_piece() {
    let plain = piece(10, 0);
    let bytes = GOLDEN.as_bytes().chunks(2);
    let bytes: Vec<u8> = bytes
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    assert_eq!(read_all(&bytes).unwrap(), read_all(&plain).unwrap());
}

const GOLDEN: &str = "\
    425942415443480328b52ffd6094030d0500c405036d66696c652d7dfeef60c7040000004dad91183131227d6e1c31223232\
    227d2f7e2f083333227dbf8d7eed3434227dadba135c3535227d3d4942b93636227d7c2b5c933737227decd80d763838227d\
    a9336af43939227d39c03b111b0001240c240ba06b2059005d03c902e81a481640d740b200ba069205d035902c40d776902c\
    40d70c230bc6b51a51437000536c10d4d057f216afe519800cbe71020b";
