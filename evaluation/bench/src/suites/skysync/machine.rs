//! The constants of the planner of `byteback-sync` (`backup/plan/cost`, `backup/plan/effort`): CPU
//! for a byte of each kind of work, and the ratio of compression. Measured on the content of the
//! other parts, a piece at a time, as backups work.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read;

use byteback_delta::chunks::{ChunkLister, ChunkParams};
use byteback_delta::crc::CrcKind;
use byteback_delta::find::{BlockIndex, ExtentSink, RollingFinder};
use byteback_delta::leaves::{LeafDigest, LeafKind};
use byteback_delta::signature::{Signature, SignatureParams};
use byteback_delta::{Codec, ContentDigest, Effort, FRAME_RAW_LEN_MAX, FrameDecoder, FrameEncoder};
use byteback_extents::ByteRange;

use super::content::real_bytes;
use super::finders::cpu_ms;
use super::{Findings, tell};
use crate::alternate::{Contender, Measures, alternate};
use crate::figure::{Cell, Figure, Panel};
use crate::rig::scratch::Scratch;
use crate::{Options, SuiteError};

const LEN: usize = 100_000_000;
const LEN_QUICK: usize = 10_000_000;

/// The bytes that are processed at a time.
const PIECE_LEN: usize = 256 * 1024;

const NS: &str = "ns";
const LEFT: &str = "left";

/// A sink that discards everything.
struct Nothing;

impl ExtentSink for Nothing {
    type Error = Infallible;

    fn literal(&mut self, _: u64, bytes: &[u8]) -> Result<(), Infallible> {
        black_box(bytes);
        Ok(())
    }

    fn copy(&mut self, range: ByteRange, _: u64) -> Result<(), Infallible> {
        black_box(range);
        Ok(())
    }

    fn zero(&mut self, _: ByteRange) -> Result<(), Infallible> {
        Ok(())
    }
}

/// The CPU time of `work` for each of `len` bytes, and the share of them that is left if `work`
/// returns a length.
fn measured(len: usize, work: impl FnOnce() -> Result<Option<usize>, SuiteError>) -> Result<Measures, SuiteError> {
    let began_ms = cpu_ms();
    let left = work()?;
    let ns = (cpu_ms() - began_ms) * 1e6 / len as f64;
    let share = left.map_or(0.0, |left| left as f64 / len as f64);
    Ok(Measures::from([(NS, ns), (LEFT, share)]))
}

fn search(content: &[u8], index: &BlockIndex) -> Result<Option<usize>, SuiteError> {
    let mut finder = RollingFinder::new(index, Nothing);
    for piece in content.chunks(PIECE_LEN) {
        let Ok(()) = finder.push(piece);
    }
    let Ok(_) = finder.finish();
    Ok(None)
}

/// Runs the part.
///
/// # Errors
/// If there is no room, or not enough content.
pub(crate) fn run(options: Options) -> Result<Findings, SuiteError> {
    let len = if options.quick { LEN_QUICK } else { LEN };
    let content = real_bytes(len)?;
    let turned: Vec<u8> = content.iter().map(|byte| !byte).collect();
    let scratch = Scratch::create(&Scratch::default_parent()?, 2 * len as u64)?;
    let path = scratch.path().join("file");
    fs::write(&path, &content)?;
    let index = BlockIndex::new(Signature::of(&content, SignatureParams::for_content(len as u64, 5)));
    let frames: RefCell<Vec<(Codec, Vec<u8>, u32)>> = RefCell::default();
    tell("machine");
    let (content, turned, index) = (&content, &turned, &index);
    let mut contenders = vec![
        Contender::new("read from the page cache (READ)", || {
            measured(len, || {
                let (mut file, mut piece) = (File::open(&path)?, vec![0; PIECE_LEN]);
                while file.read(&mut piece)? > 0 {
                    black_box(&piece);
                }
                Ok(None)
            })
        }),
        Contender::new("digest of the whole (HASH)", || {
            measured(len, || {
                let mut digest = ContentDigest::new(len as u64);
                content.chunks(PIECE_LEN).for_each(|piece| digest.push(piece));
                black_box(digest.finish());
                Ok(None)
            })
        }),
        Contender::new("leaves of 4 KiB, BLAKE3 (LEAVES)", || {
            measured(len, || {
                let mut digest = LeafDigest::new(LeafKind::Blake3, len as u64);
                content.chunks(PIECE_LEN).for_each(|piece| digest.push(piece));
                black_box(digest.finish());
                Ok(None)
            })
        }),
        Contender::new("blocks where they are expected (MATCH)", || {
            measured(len, || search(content, index))
        }),
        Contender::new("a window over what is not found (ROLL)", || {
            measured(len, || search(turned, index))
        }),
        Contender::new("chunks and their weak checksums (CUT)", || {
            measured(len, || {
                let mut lister = ChunkLister::new(ChunkParams::for_content(len as u64), CrcKind::Crc32c);
                content.chunks(PIECE_LEN).for_each(|piece| lister.push(piece));
                black_box(lister.finish());
                Ok(None)
            })
        }),
    ];
    for (name, effort) in [
        ("compression: fast", Effort::Fast),
        ("compression: standard", Effort::Standard),
        ("compression: thorough", Effort::Thorough),
    ] {
        let frames = &frames;
        contenders.push(Contender::new(name, move || {
            let mut all = Vec::new();
            let compressed = measured(len, || {
                let (mut encoder, mut left) = (FrameEncoder::with_effort(effort)?, 0);
                for piece in content.chunks(FRAME_RAW_LEN_MAX as usize) {
                    let mut stored = Vec::new();
                    let codec = encoder.encode(piece, &mut stored);
                    if codec == Codec::Raw {
                        stored = piece.to_vec();
                    }
                    left += stored.len();
                    // A frame's length fits.
                    all.push((codec, stored, piece.len() as u32));
                }
                Ok(Some(left))
            });
            *frames.borrow_mut() = all;
            compressed
        }));
    }
    let frames = &frames;
    contenders.push(Contender::new("decompression", move || {
        if frames.borrow().is_empty() {
            let mut encoder = FrameEncoder::new()?;
            for piece in content.chunks(FRAME_RAW_LEN_MAX as usize) {
                let mut stored = Vec::new();
                let codec = encoder.encode(piece, &mut stored);
                let stored = if codec == Codec::Raw { piece.to_vec() } else { stored };
                frames.borrow_mut().push((codec, stored, piece.len() as u32));
            }
        }
        measured(len, || {
            let (mut decoder, mut raw) = (FrameDecoder::new()?, Vec::new());
            for (codec, stored, raw_len) in frames.borrow().iter() {
                decoder.decode(*codec, stored, *raw_len, &mut raw)?;
            }
            Ok(None)
        })
    }));
    let results = alternate(options.runs, &mut contenders)?;
    let names: Vec<_> = contenders.iter().map(|contender| contender.name).collect();
    drop(contenders);
    let mut panel = Panel::new(
        "CPU",
        "work",
        "",
        &["CPU for a byte (ns)", "left of a byte (compression)"],
    );
    for name in names {
        let cell = |metric| Some(Cell::from(results.get(name)?.get(metric)?));
        panel.push(name, vec![cell(NS), cell(LEFT)]);
    }
    Ok(Findings {
        figures: vec![Figure {
            id: "machine",
            title: "What the planner counts with".to_owned(),
            about: format!("{len} bytes of real files in pieces of 256 KiB, in one thread."),
            panels: vec![panel],
        }],
        goals: Vec::new(),
    })
}
