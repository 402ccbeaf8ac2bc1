//! An update across a wire, in rsync's way: one end describes the old content by a signature, the
//! other end finds in it what the new content needs and makes a delta, and the first end applies
//! that. Prints the bytes that each message took.
//!
//! `cargo run -p byteback-delta --example signature_to_delta`

#![allow(clippy::print_stdout, reason = "an example")]

use std::error::Error;

use byteback_delta::find::{BlockIndex, IntoDelta, RollingFinder};
use byteback_delta::signature::{Signature, SignatureParams, SignatureWriter};
use byteback_delta::{ContentDigest, DIGEST_LEN, DeltaReader, DeltaWriter, WriterOptions, apply_to_new};

/// The most blocks that the reader of a signature accepts.
const BLOCKS_MAX: u64 = 1 << 20;

/// The end with the old content: describes it.
fn signature_of(old: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    // The seed must be drawn at random, so that no sender can construct blocks with equal sums.
    let seed = 0x5eed;
    let params = SignatureParams::for_content(old.len() as u64, seed);
    let mut writer = SignatureWriter::new(Vec::new(), params, old.len() as u64)?;
    writer.push(old)?;
    Ok(writer.finish()?)
}

/// The end with the new content: finds the blocks of the old one in it.
fn delta_from(signature: &[u8], new: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let index = BlockIndex::new(Signature::read(signature, BLOCKS_MAX)?);
    let base_len_bytes = index.signature().content_len_bytes();
    let options = WriterOptions {
        copies: true,
        ..WriterOptions::default()
    };
    let mut writer = DeltaWriter::new(Vec::new(), base_len_bytes, new.len() as u64, options)?;
    let mut finder = RollingFinder::new(&index, IntoDelta(&mut writer));
    finder.push(new)?;
    let (_, found) = finder.finish()?;
    println!(
        "found: {} bytes, to be sent: {}",
        found.copied_bytes, found.literal_bytes
    );
    let (delta, _) = writer.finish()?;
    Ok(delta)
}

fn digest_of(content: &[u8]) -> Option<[u8; DIGEST_LEN]> {
    let mut digest = ContentDigest::new(content.len() as u64);
    digest.push(content);
    digest.finish()
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let old: Vec<u8> = (0..200_000_u32)
        .flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    // Two edits: a line is inserted, which moves all that follows, and some bytes are overwritten.
    let mut new = old.clone();
    new.splice(1_000..1_000, *b"a line that was not there before\n");
    new[500_000..500_004].copy_from_slice(b"edit");

    let signature = signature_of(&old)?;
    let delta = delta_from(&signature, &new)?;

    let mut made = Vec::new();
    apply_to_new(&*old, &mut DeltaReader::new(&*delta)?, &mut made)?;
    // Copies were found by checksums: the ends compare a digest of the whole.
    assert_eq!(digest_of(&made), digest_of(&new));
    assert_eq!(made, new);
    println!(
        "content {} bytes, signature {}, delta {}",
        new.len(),
        signature.len(),
        delta.len()
    );
    assert!(signature.len() + delta.len() < new.len() / 50);
    Ok(())
}
