use super::*;
use crate::model::noise;
use proptest::prelude::*;

/// Identity, and the content if it is not left out.
type Sent = ([u8; 16], Option<ShortContent>);

fn id(number: usize) -> [u8; 16] {
    (number as u128 + 77).to_be_bytes()
}

fn written(contents: &[Sent]) -> Vec<u8> {
    let mut writer = ContentsWriter::new(Vec::new(), contents.len() as u32).unwrap();
    for (id, content) in contents {
        writer.push(*id, content.as_ref()).unwrap();
    }
    writer.finish().unwrap()
}

fn read_all(stream: &[u8], ids: &[[u8; 16]]) -> Result<Vec<Option<ShortContent>>, ContentsError> {
    let mut reader = ContentsReader::new(stream, ids.len() as u32)?;
    ids.iter().map(|id| reader.next_of(*id)).collect()
}

fn of_bytes(bytes: &[u8]) -> ShortContent {
    let mut content = ShortContent::zeros(bytes.len() as u64);
    content.push(0, bytes);
    content
}

/// A stream of one frame with these raw bytes, whatever they are.
fn framed(count: u32, raw: &[u8], raw_len: u32) -> Vec<u8> {
    let mut encoder = Encoder::new(ZSTD_LEVEL).unwrap();
    encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG)).unwrap();
    let mut stored = vec![0; raw.len() + 1000];
    let mut output = OutBuffer::around(stored.as_mut_slice());
    let mut input = InBuffer::around(raw);
    while input.pos() < raw.len() {
        encoder.run(&mut input, &mut output).unwrap();
    }
    encoder.flush(&mut output).unwrap();
    let stored_len = output.pos();
    stored.truncate(stored_len);
    of_stored(count, &stored, raw_len)
}

fn of_stored(count: u32, stored: &[u8], raw_len: u32) -> Vec<u8> {
    let mut stream = ContentsWriter::new(Vec::new(), count).unwrap().out;
    let mut frame = raw_len.to_le_bytes().to_vec();
    frame.extend_from_slice(&(stored.len() as u32).to_le_bytes());
    frame.extend_from_slice(stored);
    let crc = crc32c::crc32c(&frame);
    frame.extend_from_slice(&crc.to_le_bytes());
    stream.extend_from_slice(&frame);
    stream
}

/// A frame of records with right checksums, for the identities 0, 1, ...
fn of_records(records: &[&[u8]]) -> Vec<u8> {
    let mut raw = Vec::new();
    for (number, record) in records.iter().enumerate() {
        raw.extend_from_slice(record);
        raw.extend_from_slice(&record_crc(id(number), record).to_le_bytes());
    }
    let raw_len = raw.len() as u32;
    framed(records.len() as u32, &raw, raw_len)
}

/// Contents with scattered data; some are left out.
fn contents() -> impl Strategy<Value = Vec<Sent>> {
    let len = prop_oneof![12 => 0..2000_u64, 1 => Just(CONTENT_LEN_MAX)];
    let pieces = proptest::collection::vec((0..100_u64, 1..300_usize), 0..8);
    let content = (len, pieces, any::<u64>()).prop_map(|(len, pieces, seed)| {
        let mut content = ShortContent::zeros(len);
        let mut at = 0;
        for (gap, count) in pieces {
            // Some runs touch.
            at += gap.saturating_sub(50);
            content.push(at, &noise(seed ^ at, count));
            at += count as u64;
        }
        content
    });
    let contents = proptest::collection::vec(proptest::option::weighted(0.8, content), 0..60);
    contents.prop_map(|contents| contents.into_iter().enumerate().map(|(n, c)| (id(n), c)).collect())
}

proptest! {
    #[test]
    fn contents_come_back_from_their_stream(sent in contents(), at in any::<prop::sample::Index>(), bit in 0..8_u32) {
        let stream = written(&sent);
        let ids: Vec<[u8; 16]> = sent.iter().map(|(id, _)| *id).collect();
        let found = read_all(&stream, &ids).unwrap();
        for (found, (_, content)) in found.iter().zip(&sent) {
            prop_assert_eq!(found, content);
        }
        // Neither a prefix nor a stream with a changed bit is accepted.
        let cut = at.index(stream.len());
        prop_assert!(matches!(read_all(&stream[..cut], &ids), Err(ContentsError::Io(_))), "cut at {}", cut);
        let mut changed = stream.clone();
        changed[cut] ^= 1 << bit;
        prop_assert!(read_all(&changed, &ids).is_err(), "changed at {}", cut);
        // Another order is noticed where contents differ.
        let mut turned = ids.clone();
        turned.reverse();
        if ids.len() > 1 {
            prop_assert!(matches!(read_all(&stream, &turned), Err(ContentsError::OtherFile)));
        }
    }

    #[test]
    fn contents_reader_survives_any_records(raw in proptest::collection::vec(any::<u8>(), 1..200), count in 1..5_u32) {
        let stream = framed(count, &raw, raw.len() as u32);
        let ids: Vec<[u8; 16]> = (0..count as usize).map(id).collect();
        prop_assert!(read_all(&stream, &ids).is_err());
    }
}

#[test]
fn contents_of_many_frames_arrive_one_after_the_other() {
    let sent: Vec<Sent> = (0..300)
        .map(|n| (id(n), Some(of_bytes(&noise(n as u64, 40 * n)))))
        .chain([(id(300), Some(of_bytes(&noise(5, CONTENT_LEN_MAX as usize))))])
        .collect();
    let stream = written(&sent);
    let ids: Vec<[u8; 16]> = sent.iter().map(|(id, _)| *id).collect();
    let found = read_all(&stream, &ids).unwrap();
    assert!(found.iter().zip(&sent).all(|(found, (_, sent))| found == sent));
    // Each frame is complete: the first contents can be read without the rest.
    let mut reader = ContentsReader::new(&stream[..stream.len() / 2], ids.len() as u32).unwrap();
    let whole = ids.iter().take_while(|id| reader.next_of(**id).is_ok()).count();
    assert!((50..300).contains(&whole), "{whole} came before the cut");
}

#[test]
fn contents_are_compressed_with_those_before_them() {
    let text: Vec<u8> = noise(1, 1000).iter().map(|byte| b'a' + byte % 16).collect();
    let one = written(&[(id(0), Some(of_bytes(&text)))]).len();
    let sent: Vec<Sent> = (0..1000).map(|n| (id(n), Some(of_bytes(&text)))).collect();
    let all = written(&sent).len();
    assert!(all < one + 1000 * 30, "{all} bytes for 1000 equal files, {one} for one");
    // Bytes that do not compress cost little more than themselves.
    let sent: Vec<Sent> = (0..1000)
        .map(|n| (id(n), Some(of_bytes(&noise(n as u64, 1000)))))
        .collect();
    let all = written(&sent).len();
    assert!(all < 1_000_000 + 1000 * 9, "{all} bytes for 1,000,000");
}

#[test]
fn golden_bytes_of_a_stream_of_contents_of_version_1() {
    let mut two = ShortContent::zeros(5);
    two.push(1, b"ab");
    let sent = [
        (id(0), Some(two)),
        (id(1), None),
        (id(2), Some(of_bytes(b"xyz"))),
        (id(3), Some(ShortContent::zeros(0))),
    ];
    let stream = written(&sent);
    let head = [0x89, b'B', b'B', b'C', b'N', b'T', b'\r', b'\n', 1, 0, 4, 0, 0, 0];
    assert_eq!(stream[..14], head);
    assert_eq!(stream[14..18], crc32c::crc32c(&head).to_le_bytes());
    let mut raw = Vec::new();
    let records: [&[u8]; 4] = [&[2, 5, 1, 1, 2, b'a', b'b'], &[0], &[1, 3, b'x', b'y', b'z'], &[1, 0]];
    for (number, record) in records.into_iter().enumerate() {
        raw.extend_from_slice(record);
        let bound = [&id(number)[..], record].concat();
        raw.extend_from_slice(&crc32c::crc32c(&bound).to_le_bytes());
    }
    assert_eq!(stream[18..22], (raw.len() as u32).to_le_bytes());
    let stored_len = u32::from_le_bytes(stream[22..26].try_into().unwrap()) as usize;
    let stored = &stream[26..26 + stored_len];
    let mut decoder = Decoder::new().unwrap();
    let mut found = vec![0; 100];
    let status = decoder.run_on_buffers(stored, &mut found).unwrap();
    assert_eq!(found[..status.bytes_written], raw);
    let frame = &stream[18..26 + stored_len];
    assert_eq!(stream[26 + stored_len..], crc32c::crc32c(frame).to_le_bytes());
}

#[test]
fn contents_that_do_not_fit_are_left_out() {
    let long = ShortContent::zeros(CONTENT_LEN_MAX + 1);
    let scattered = |runs: u64| {
        let mut content = ShortContent::zeros(3 * runs);
        (0..runs).for_each(|run| content.push(3 * run, b"a"));
        content
    };
    let most = scattered(RUNS_MAX as u64);
    let sent = [
        (id(0), Some(long)),
        (id(1), Some(scattered(RUNS_MAX as u64 + 1))),
        (id(2), Some(most.clone())),
    ];
    let found = read_all(&written(&sent), &[id(0), id(1), id(2)]).unwrap();
    assert_eq!(found, [None, None, Some(most)]);
}

#[test]
fn contents_writer_refuses_another_number() {
    let invalid = |error: io::Error| error.kind() == ErrorKind::InvalidInput;
    assert!(ContentsWriter::new(io::sink(), CONTENTS_MAX + 1).is_err_and(invalid));
    let mut writer = ContentsWriter::new(io::sink(), 1).unwrap();
    writer.push(id(0), None).unwrap();
    assert!(writer.push(id(1), None).is_err_and(invalid));
    assert!(ContentsWriter::new(io::sink(), 1).unwrap().finish().is_err_and(invalid));
}

#[test]
fn contents_reader_refuses_other_heads() {
    let stream = written(&[(id(0), None)]);
    let head = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut changed = stream.clone();
        change(&mut changed);
        let crc = crc32c::crc32c(&changed[..14]);
        changed[14..18].copy_from_slice(&crc.to_le_bytes());
        read_all(&changed, &[id(0)]).unwrap_err()
    };
    assert!(matches!(head(&|head| head[0] = 0), ContentsError::NotContents));
    assert!(matches!(head(&|head| head[8] = 2), ContentsError::Version(2)));
    assert!(matches!(head(&|head| head[10] = 2), ContentsError::Impossible(_)));
    assert!(matches!(
        read_all(&noise(1, 100), &[id(0)]),
        Err(ContentsError::NotContents)
    ));
    // More are asked for than there are.
    let mut reader = ContentsReader::new(&stream[..], 1).unwrap();
    assert_eq!(reader.next_of(id(0)).unwrap(), None);
    assert!(matches!(reader.next_of(id(1)), Err(ContentsError::Impossible(_))));
}

#[test]
fn contents_of_impossible_lengths_are_refused() {
    let max = u64::MAX;
    let mut huge = vec![2, 5, 1];
    varint::put(&mut huge, max);
    varint::put(&mut huge, max);
    let mut long = vec![FORM_WHOLE];
    varint::put(&mut long, CONTENT_LEN_MAX + 1);
    long.resize(CONTENT_LEN_MAX as usize + 10, 7);
    let mut many = vec![FORM_WITH_HOLES, 100, RUNS_MAX as u8 + 1];
    many.resize(300, 1);
    let cases: [(&str, &[u8]); 9] = [
        ("form", &[3]),
        ("too long", &long),
        ("cut off", &[1, 5, b'a']),
        (
            "length that overflows",
            &[1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255],
        ),
        ("run past the end", &[2, 5, 1, 4, 2, b'a', b'b']),
        ("run that overflows", &huge),
        ("empty run", &[2, 5, 1, 1, 0]),
        ("too many runs", &many),
        ("run cut off", &[2, 5, 1, 1, 2, b'a']),
    ];
    for (what, record) in cases {
        let error = read_all(&of_records(&[record]), &[id(0)]).unwrap_err();
        assert!(matches!(error, ContentsError::Impossible(_)), "{what}: {error:?}");
    }
    // More records than contents, and bytes that are no record.
    let stream = framed(1, &[0, 1, 2, 3, 4, 0], 6);
    assert!(matches!(read_all(&stream, &[id(0)]), Err(ContentsError::OtherFile)));
    let mut raw = vec![0];
    raw.extend_from_slice(&record_crc(id(0), &[0]).to_le_bytes());
    raw.push(9);
    let raw_len = raw.len() as u32;
    let error = read_all(&framed(1, &raw, raw_len), &[id(0)]).unwrap_err();
    assert!(matches!(error, ContentsError::Impossible(_)), "{error:?}");
}

#[test]
fn frames_of_impossible_lengths_are_refused() {
    let raw = vec![7; 5000];
    for raw_len in [0, 1, 4999, 5001, FRAME_RAW_LEN_MAX as u32 + 1, u32::MAX] {
        let error = read_all(&framed(1, &raw, raw_len), &[id(0)]).unwrap_err();
        assert!(matches!(error, ContentsError::Impossible(_)), "{raw_len}: {error:?}");
    }
    let mut stream = of_stored(1, &[], 100);
    let place = 18 + 4;
    stream[place..place + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = read_all(&stream, &[id(0)]).unwrap_err();
    assert!(matches!(error, ContentsError::Impossible(_)), "{error:?}");
    // Bytes that are not zstd's, and a frame of nothing.
    assert!(matches!(
        read_all(&of_stored(1, &noise(1, 50), 100), &[id(0)]),
        Err(ContentsError::Zstd(_))
    ));
    assert!(matches!(
        read_all(&of_stored(1, &[], 100), &[id(0)]),
        Err(ContentsError::Impossible(_))
    ));
    // A window that needs more memory than the format allows.
    let mut encoder = Encoder::new(1).unwrap();
    encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG + 4)).unwrap();
    let (mut stored, input) = (vec![0; 9000], vec![7; 5000]);
    let mut output = OutBuffer::around(stored.as_mut_slice());
    encoder.run(&mut InBuffer::around(&input), &mut output).unwrap();
    encoder.flush(&mut output).unwrap();
    let stored_len = output.pos();
    stored.truncate(stored_len);
    assert!(matches!(
        read_all(&of_stored(1, &stored, 5000), &[id(0)]),
        Err(ContentsError::Zstd(_))
    ));
}
