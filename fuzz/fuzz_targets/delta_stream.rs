//! The delta stream as anybody may send it: checked, applied in both ways, written again.
#![no_main]

use byteback_delta::{
    Block, DeltaReader, DeltaWriter, Frame, FrameDecoder, Source, WriterOptions, apply_in_place, apply_to_new,
    validate, verify,
};
use byteback_extents::ByteRange;
use xxhash_rust::xxh3::Xxh3;

byteback_fuzz::target!(check, seeds);

/// Longer contents are only checked, not made.
const LEN_MAX: u64 = 1 << 20;

fn check(data: &[u8]) {
    let as_it_came = verify(data);
    if as_it_came.is_ok() {
        assert!(validate(data).is_ok(), "what is whole is not valid");
    }
    // Mutated streams mostly end in totals that are wrong.
    let Some(stream) = with_trailer(data) else { return };
    let Ok((header, stats)) = validate(&stream[..]) else {
        return;
    };
    assert_eq!(stats.wire_bytes, stream.len() as u64);
    if header.base_len_bytes > LEN_MAX || header.new_len_bytes > LEN_MAX {
        return;
    }
    let base: Vec<u8> = (0..header.base_len_bytes).map(|at| (at * 31 % 251) as u8).collect();
    let mut new = Vec::new();
    let reader = || DeltaReader::new(&stream[..]).expect("it was valid");
    let applied = apply_to_new(&base[..], &mut reader(), &mut new);
    assert_eq!(
        applied.is_ok(),
        verify(&stream[..]).is_ok(),
        "whole, but not applied, or the other way round"
    );
    if applied.is_err() {
        return;
    }
    assert_eq!(new.len() as u64, header.new_len_bytes);
    if !header.has_copies {
        let mut in_place = base.clone();
        apply_in_place(&mut reader(), &mut in_place).expect("it has no copies");
        assert!(in_place == new, "in place, another content is made");
    }
    assert!(
        written_again(&stream, &base) == new,
        "written again, it makes another content"
    );
}

/// The blocks of a stream that can be read, with a trailer that is right.
fn with_trailer(data: &[u8]) -> Option<Vec<u8>> {
    let mut reader = DeltaReader::new(data).ok()?;
    let mut stream = data.get(..usize::try_from(reader.position_bytes()).ok()?)?.to_vec();
    let mut digest = Xxh3::new();
    digest.update(&stream);
    let (mut totals, mut block) = ([0_u64; 4], Block::default());
    while let Ok(true) = reader.read_block(&mut block) {
        let end = usize::try_from(reader.position_bytes()).ok()?;
        let bytes = data.get(stream.len()..end)?;
        // All but the frame, whose checksum stands for it.
        let frame_at = bytes.len() - 4 - block.frame.stored.len();
        digest.update(&bytes[..frame_at]);
        digest.update(&bytes[bytes.len() - 4..]);
        stream.extend_from_slice(bytes);
        totals[0] += block.extents.len() as u64;
        totals[1] += u64::from(block.frame.raw_len);
        totals[2] += block.frame.stored.len() as u64;
        totals[3] += 1;
    }
    let mut trailer = vec![2];
    trailer.extend_from_slice(totals.map(u64::to_le_bytes).as_flattened());
    digest.update(&trailer);
    trailer.extend_from_slice(&digest.digest().to_le_bytes());
    stream.extend(trailer);
    Some(stream)
}

/// What a stream makes of the base after our writer wrote it once more.
fn written_again(stream: &[u8], base: &[u8]) -> Vec<u8> {
    let mut reader = DeltaReader::new(stream).expect("it was valid");
    let header = *reader.header();
    let options = WriterOptions {
        copies: header.has_copies,
        compress: true,
    };
    let mut writer =
        DeltaWriter::new(Vec::new(), header.base_len_bytes, header.new_len_bytes, options).expect("as before");
    let (mut block, mut decoder, mut raw) = (Block::default(), FrameDecoder::new().expect("zstd"), Vec::new());
    while reader.read_block(&mut block).expect("it was valid") {
        decode(&block.frame, &mut decoder, &mut raw);
        for extent in &block.extents {
            match extent.source {
                Source::Literal(slice) => {
                    let bytes = &raw[slice.skip_bytes as usize..][..extent.range.len_bytes() as usize];
                    writer.literal(extent.range, bytes)
                }
                Source::Copy { base_offset } => writer.copy(extent.range, base_offset),
                Source::Zero => writer.zero(extent.range),
            }
            .expect("it was valid");
        }
    }
    let (again, _) = writer.finish().expect("it was valid");
    let mut new = Vec::new();
    apply_to_new(base, &mut DeltaReader::new(&again[..]).expect("ours"), &mut new).expect("ours");
    new
}

fn decode(frame: &Frame, decoder: &mut FrameDecoder, raw: &mut Vec<u8>) {
    frame.decode(decoder, raw).expect("it was whole");
    assert_eq!(raw.len(), frame.raw_len as usize);
}

fn seeds() -> Vec<Vec<u8>> {
    let range = |start, end| ByteRange::new(start, end).expect("it is not empty");
    let mut seeds = Vec::new();
    for (copies, compress) in [(false, true), (true, true), (true, false)] {
        let mut writer =
            DeltaWriter::new(Vec::new(), 5000, 6000, WriterOptions { copies, compress }).expect("lengths of files");
        let some = |writer: &mut DeltaWriter<Vec<u8>>| {
            writer.literal_bytes(10, &[7; 300])?;
            writer.zero(range(400, 500))?;
            if copies {
                writer.copy(range(1000, 2000), 3000)?;
            }
            writer.literal_bytes(5500, b"literal")
        };
        some(&mut writer).expect("a delta");
        seeds.push(writer.finish().expect("a delta").0);
    }
    // Nothing but a header and a trailer.
    let empty = DeltaWriter::new(Vec::new(), 0, 0, WriterOptions::default()).expect("lengths of files");
    seeds.push(empty.finish().expect("a delta").0);
    assert!(
        seeds
            .iter()
            .all(|seed| verify(&seed[..]).is_ok() && with_trailer(seed).as_ref() == Some(seed))
    );
    seeds
}
