use super::*;
use crate::model;

fn text(len: usize) -> Vec<u8> {
    b"INSERT INTO packages VALUES ('libfoo', 42);\n"
        .iter()
        .copied()
        .cycle()
        .take(len)
        .collect()
}

#[test]
fn frames_of_all_lengths_round_trip() {
    let mut encoder = FrameEncoder::new().unwrap();
    let mut decoder = FrameDecoder::new().unwrap();
    let (mut stored, mut raw) = (Vec::new(), Vec::new());
    for len in [
        0,
        1,
        19,
        20,
        21,
        31,
        32,
        100,
        4096,
        32 * 1024,
        100_000,
        FRAME_RAW_LEN_MAX as usize,
    ] {
        for bytes in [model::noise(7, len), text(len), vec![0; len]] {
            let codec = encoder.encode(&bytes, &mut stored);
            let frame = if codec == Codec::Raw { &bytes } else { &stored };
            if codec == Codec::Zstd {
                assert!(
                    frame.len() <= bytes.len() * 19 / 20,
                    "{} of {len} bytes saves too little",
                    frame.len()
                );
            }
            decoder.decode(codec, frame, len as u32, &mut raw).unwrap();
            assert_eq!(raw, bytes);
        }
    }
}

#[test]
fn frame_compresses_only_what_becomes_shorter() {
    let mut encoder = FrameEncoder::new().unwrap();
    let mut stored = Vec::new();
    assert_eq!(encoder.encode(&text(200_000), &mut stored), Codec::Zstd);
    assert!(stored.len() < 2000);
    assert_eq!(encoder.encode(&model::noise(7, 200_000), &mut stored), Codec::Raw);
    // Only the middle compresses: one of the samples finds it.
    let mut mixed = model::noise(7, 200_000);
    mixed[80_000..120_000].fill(0);
    assert_eq!(encoder.encode(&mixed, &mut stored), Codec::Zstd);
}

#[test]
fn impossible_lengths_are_refused_before_memory_is_reserved() {
    let mut decoder = FrameDecoder::new().unwrap();
    for (codec, stored_len, raw_len) in [
        (Codec::Raw, 5, 4),
        (Codec::Raw, 0, u32::MAX),
        (Codec::Zstd, 10, FRAME_RAW_LEN_MAX + 1),
        (Codec::Zstd, 10, 10),
        (Codec::Zstd, 0, 10),
        (Codec::Raw, FRAME_RAW_LEN_MAX as usize + 1, FRAME_RAW_LEN_MAX + 1),
    ] {
        let mut raw = Vec::new();
        let error = decoder
            .decode(codec, &vec![0; stored_len], raw_len, &mut raw)
            .unwrap_err();
        assert!(matches!(error, FrameError::Length { .. }), "{error}");
        assert_eq!(raw.capacity(), 0);
    }
}

#[test]
fn a_frame_that_decompresses_to_another_length_is_refused() {
    let mut encoder = FrameEncoder::new().unwrap();
    let mut decoder = FrameDecoder::new().unwrap();
    let (mut stored, mut raw) = (Vec::new(), Vec::new());
    let bytes = text(5000);
    assert_eq!(encoder.encode(&bytes, &mut stored), Codec::Zstd);
    let error = decoder.decode(Codec::Zstd, &stored, 5001, &mut raw).unwrap_err();
    assert!(
        matches!(
            error,
            FrameError::RawLength {
                raw_len: 5001,
                found: 5000
            }
        ),
        "{error}"
    );
    // Too small a buffer is zstd's own error.
    let error = decoder.decode(Codec::Zstd, &stored, 4999, &mut raw).unwrap_err();
    assert!(matches!(error, FrameError::Zstd(_)), "{error}");
    let error = decoder.decode(Codec::Zstd, &stored[1..], 5000, &mut raw).unwrap_err();
    assert!(matches!(error, FrameError::Zstd(_)), "{error}");
    // The decoder is as good as new afterwards.
    decoder.decode(Codec::Zstd, &stored, 5000, &mut raw).unwrap();
    assert_eq!(raw, bytes);
}

#[test]
fn codecs_have_stable_numbers() {
    for (codec, code) in [(Codec::Raw, 0), (Codec::Zstd, 1)] {
        assert_eq!(codec.code(), code);
        assert_eq!(Codec::from_code(code), Some(codec));
    }
    assert_eq!(Codec::from_code(2), None);
}

#[test]
fn frames_get_shorter_with_effort_and_every_decoder_reads_them() {
    // Text with some variety, so that levels differ.
    let mut random = pseudo_random(7);
    let words: Vec<String> = (0..2000).map(|_| format!("{:x} ", random() % 100_000)).collect();
    let raw: Vec<u8> = std::iter::repeat_with(|| words[(random() % 2000) as usize].bytes())
        .flatten()
        .take(200_000)
        .collect();
    let (mut stored, mut back) = (Vec::new(), Vec::new());
    let mut lens = Vec::new();
    for effort in Effort::ALL {
        let codec = FrameEncoder::with_effort(effort).unwrap().encode(&raw, &mut stored);
        assert_eq!(codec, Codec::Zstd);
        let len = u32::try_from(raw.len()).unwrap();
        FrameDecoder::new()
            .unwrap()
            .decode(codec, &stored, len, &mut back)
            .unwrap();
        assert!(back == raw, "{effort:?}");
        lens.push(stored.len());
    }
    assert!(lens[0] > lens[1] && lens[1] > lens[2], "{lens:?}");
    assert_eq!(Effort::default(), Effort::Standard);
}

/// Numbers that look random, without another crate.
fn pseudo_random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

/// Encoders and decoders of one thread use the contexts of those before them, at any level, and
/// leave nothing behind in them.
#[test]
fn contexts_are_used_again_without_a_trace() {
    let raw: Vec<Vec<u8>> = (0..20_usize)
        .map(|number| b"some text that repeats, ".repeat(10 + number * number * 20))
        .collect();
    let encode = |effort: Effort, raw: &[u8]| {
        let mut stored = Vec::new();
        let codec = FrameEncoder::with_effort(effort).unwrap().encode(raw, &mut stored);
        assert_eq!(codec, Codec::Zstd);
        stored
    };
    for effort in Effort::ALL {
        let fresh: Vec<Vec<u8>> = raw
            .iter()
            .map(|raw| std::thread::scope(|scope| scope.spawn(|| encode(effort, raw)).join().unwrap()))
            .collect();
        for round in 0..3 {
            // Several at a time, too.
            let _others = [Effort::Fast, effort, effort].map(|effort| FrameEncoder::with_effort(effort).unwrap());
            for (raw, fresh) in raw.iter().zip(&fresh) {
                assert!(encode(effort, raw) == *fresh, "round {round}");
                let mut decoder = FrameDecoder::new().unwrap();
                let mut decoded = Vec::new();
                let damaged = [0x28, 0xb5, 0x2f, 0xfd, 9, 9, 9];
                assert!(
                    decoder
                        .decode(Codec::Zstd, &damaged, raw.len() as u32, &mut decoded)
                        .is_err()
                );
                decoder
                    .decode(Codec::Zstd, fresh, raw.len() as u32, &mut decoded)
                    .unwrap();
                assert!(decoded == *raw);
            }
        }
    }
}
