//! The bytes of the decisions file: docs/formats/decisions.md.
//!
//! A frame is `length | payload | CRC-32C | length`: the second length lets a writer find out,
//! without reading the file, whether its end is whole. All of it is treated as hostile: a frame
//! that is not whole ends the reading.

use std::io;

use byteback_host::durable::DurableFile;
use byteback_model::NodeId;
use byteback_oplog::{TreeId, WholeReason};

use super::{Cause, Compression, CompressionEffort, Decision, DeltaMethod, Fallback};

/// The first bytes of the file: name and version.
pub(super) const HEAD: [u8; 8] = *b"BBDECID\x01";

/// The longest payload.
pub(super) const FRAME_LEN_MAX: usize = 8 << 10;

/// Length, CRC, length.
const AROUND_LEN: usize = 12;

const KIND_BEGIN: u8 = 1;
const KIND_END: u8 = 3;
const KIND_COMPRESSION: u8 = 4;
const KIND_DECISIONS: u8 = 5;

/// A frame that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// A backup begins.
    Begin { batch: u64, tree: TreeId, at_ns: i64 },
    /// Some of its decisions.
    Decisions { batch: u64, bytes: &'a [u8] },
    /// The backup was applied.
    End { batch: u64, seq: u64 },
    /// The compression of the backup.
    Compression { batch: u64, compression: Compression },
}

impl<'a> Frame<'a> {
    pub(super) fn begin(batch: u64, tree: TreeId, at_ns: i64) -> Vec<u8> {
        let numbers = [batch.to_le_bytes(), tree.0.to_le_bytes(), at_ns.to_le_bytes()];
        framed(KIND_BEGIN, numbers.as_flattened())
    }

    pub(super) fn decisions(batch: u64, bytes: &[u8]) -> Vec<u8> {
        framed(KIND_DECISIONS, &[&batch.to_le_bytes()[..], bytes].concat())
    }

    pub(super) fn end(batch: u64, seq: u64) -> Vec<u8> {
        framed(KIND_END, [batch.to_le_bytes(), seq.to_le_bytes()].as_flattened())
    }

    /// A link of 0 bytes per second stands for an unknown one.
    pub(super) fn compression(batch: u64, compression: Compression) -> Vec<u8> {
        let effort = match compression.effort {
            CompressionEffort::Fast => 1,
            CompressionEffort::Standard => 2,
            CompressionEffort::Thorough => 3,
        };
        let link = compression.link_bytes_per_s.unwrap_or(0);
        framed(
            KIND_COMPRESSION,
            &[&batch.to_le_bytes()[..], &[effort], &link.to_le_bytes()].concat(),
        )
    }

    fn parse(payload: &'a [u8]) -> Option<Self> {
        let (&kind, rest) = payload.split_first()?;
        let (batch, rest) = number(rest)?;
        match kind {
            KIND_BEGIN => {
                let (tree, rest) = number(rest)?;
                let (at_ns, rest) = number(rest)?;
                rest.is_empty().then_some(Self::Begin {
                    batch,
                    tree: TreeId(tree),
                    at_ns: at_ns.cast_signed(),
                })
            }
            KIND_DECISIONS => Some(Self::Decisions { batch, bytes: rest }),
            KIND_END => {
                let (seq, rest) = number(rest)?;
                rest.is_empty().then_some(Self::End { batch, seq })
            }
            KIND_COMPRESSION => {
                let (effort, rest) = rest.split_first()?;
                let effort = match effort {
                    1 => CompressionEffort::Fast,
                    2 => CompressionEffort::Standard,
                    3 => CompressionEffort::Thorough,
                    _ => return None,
                };
                let (link, rest) = number(rest)?;
                let link_bytes_per_s = Some(link).filter(|link| *link > 0);
                let compression = Compression {
                    effort,
                    link_bytes_per_s,
                };
                rest.is_empty().then_some(Self::Compression { batch, compression })
            }
            _ => None,
        }
    }
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}

fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(1 + body.len()).unwrap_or(u32::MAX).to_le_bytes();
    let mut frame = Vec::with_capacity(AROUND_LEN + 1 + body.len());
    frame.extend_from_slice(&len);
    frame.push(kind);
    frame.extend_from_slice(body);
    let crc = crc32c::crc32c(&frame);
    frame.extend_from_slice(&crc.to_le_bytes());
    frame.extend_from_slice(&len);
    frame
}

/// The payload of the frame that `bytes` begins with, and the length of the whole frame.
fn unframed(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (len_bytes, _) = bytes.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_le_bytes(*len_bytes))
        .ok()
        .filter(|len| *len <= FRAME_LEN_MAX)?;
    let end = 4 + len;
    let (covered, rest) = bytes.split_at_checked(end)?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let again = rest.first_chunk::<4>()?;
    let is_whole = again == len_bytes && u32::from_le_bytes(*crc) == crc32c::crc32c(covered);
    is_whole.then(|| (covered.get(4..).unwrap_or_default(), len + AROUND_LEN))
}

/// Whether a file of `len` bytes begins with our head, and ends with a whole frame or right after
/// the head.
pub(super) fn ends_whole(file: &dyn DurableFile, len: u64) -> io::Result<bool> {
    let head_len = HEAD.len() as u64;
    if len < head_len {
        return Ok(false);
    }
    let mut head = HEAD;
    file.read_exact_at(0, &mut head)?;
    if head != HEAD || len == head_len {
        return Ok(head == HEAD);
    }
    let mut last = [0; 4];
    if len < head_len + AROUND_LEN as u64 {
        return Ok(false);
    }
    file.read_exact_at(len - 4, &mut last)?;
    let frame_len = AROUND_LEN + u32::from_le_bytes(last) as usize;
    if frame_len > AROUND_LEN + FRAME_LEN_MAX || frame_len as u64 > len - head_len {
        return Ok(false);
    }
    let mut frame = vec![0; frame_len];
    file.read_exact_at(len - frame_len as u64, &mut frame)?;
    Ok(unframed(&frame).is_some_and(|(_, whole_len)| whole_len == frame_len))
}

/// Calls `each` with the frames of a file in order, up to the first that is torn or unknown.
pub(super) fn for_each_frame(file: &dyn DurableFile, mut each: impl FnMut(Frame<'_>)) -> io::Result<()> {
    // A writer keeps within this bound; a longer file is not ours.
    let len = file.len()?.min(super::FILE_LEN_MAX + FRAME_LEN_MAX as u64);
    let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
    file.read_exact_at(0, &mut bytes)?;
    let Some(mut rest) = bytes.strip_prefix(&HEAD) else {
        return Ok(());
    };
    while let Some((payload, frame_len)) = unframed(rest) {
        if let Some(frame) = Frame::parse(payload) {
            each(frame);
        }
        rest = rest.get(frame_len..).unwrap_or_default();
    }
    Ok(())
}

/// Numbers of a decision.
const NUMBERS: usize = 6;

/// Appends `numbers`: the length of each in bytes, two lengths to a byte, then their bytes without
/// leading zeros. Most are short, and a first backup of a million files has a million decisions.
fn put_numbers(out: &mut Vec<u8>, numbers: [u64; NUMBERS]) {
    let lens = numbers.map(|number| 8 - number.leading_zeros() / 8);
    for pair in lens.chunks(2) {
        let byte = pair.iter().rev().fold(0, |byte, len| byte << 4 | len);
        // Two lengths of at most 8.
        out.push(byte as u8);
    }
    for (number, len) in numbers.into_iter().zip(lens) {
        out.extend(number.to_le_bytes().iter().take(len as usize));
    }
}

fn numbers(bytes: &[u8]) -> Option<([u64; NUMBERS], &[u8])> {
    let (lens, mut rest) = bytes.split_first_chunk::<{ NUMBERS / 2 }>()?;
    let lens = lens.iter().flat_map(|pair| [pair & 15, pair >> 4]);
    let mut numbers = [0; NUMBERS];
    for (number, len) in numbers.iter_mut().zip(lens) {
        let mut padded = [0; 8];
        let (digits, behind) = rest.split_at_checked(usize::from(len))?;
        padded.get_mut(..digits.len())?.copy_from_slice(digits);
        (*number, rest) = (u64::from_le_bytes(padded), behind);
    }
    Some((numbers, rest))
}

/// Appends a decision.
pub(super) fn put_decision(out: &mut Vec<u8>, decision: &Decision) {
    let (cause, whole) = match decision.cause {
        Cause::LogKnew => (1, 0),
        Cause::New => (2, 0),
        Cause::Asked => (3, 0),
        Cause::Rewritten => (4, 0),
        Cause::Whole(reason) => (5, reason.code()),
        Cause::SamePath => (6, 0),
        Cause::Moved => (7, 0),
        Cause::Replaced => (8, 0),
        Cause::Copied => (9, 0),
    };
    let method = match decision.method {
        DeltaMethod::Log => 1,
        DeltaMethod::Sums => 2,
        DeltaMethod::Rsync => 3,
        DeltaMethod::Hash => 4,
        DeltaMethod::Full => 5,
        DeltaMethod::Webr => 6,
        DeltaMethod::Cdc => 7,
        DeltaMethod::SkyF => 8,
        DeltaMethod::SkyC => 9,
        DeltaMethod::LogSearched => 10,
        DeltaMethod::LogLookedUp => 11,
        DeltaMethod::LogCompared => 12,
    };
    let fallback = match decision.fallback {
        None => 0,
        Some(Fallback::TooShort) => 1,
        Some(Fallback::TooLong) => 2,
        Some(Fallback::NoSignature) => 3,
        Some(Fallback::TooScattered) => 4,
        Some(Fallback::ProofRefused) => 5,
        Some(Fallback::CostsLess) => 6,
        Some(Fallback::NotSummed) => 7,
        Some(Fallback::Appended) => 8,
        Some(Fallback::FoundNothing) => 9,
    };
    out.extend_from_slice(&[method, cause, whole, fallback]);
    // Of a file that is sent whole, size and the bytes that changed and are sent are the same.
    let numbers = [
        decision.node.0,
        decision.size_bytes,
        decision.changed_bytes ^ decision.size_bytes,
        decision.hashed_bytes,
        decision.found_bytes,
        decision.literal_bytes ^ decision.size_bytes,
    ];
    put_numbers(out, numbers);
}

/// The decisions of a frame, without those that this version does not know.
pub(super) fn decisions(mut bytes: &[u8]) -> impl Iterator<Item = Decision> {
    std::iter::from_fn(move || {
        let (decision, rest) = decision(bytes)?;
        bytes = rest;
        Some(decision)
    })
    .flatten()
}

/// The decision that `bytes` begins with, `None` if it is of an unknown kind, and the bytes behind.
fn decision(bytes: &[u8]) -> Option<(Option<Decision>, &[u8])> {
    let (kinds, rest) = bytes.split_first_chunk()?;
    let (numbers, rest) = numbers(rest)?;
    Some((known(*kinds, numbers), rest))
}

fn known([method, cause, whole, fallback]: [u8; 4], numbers: [u64; NUMBERS]) -> Option<Decision> {
    let [node, size_bytes, changed, hashed_bytes, found_bytes, literal] = numbers;
    Some(Decision {
        node: NodeId(node),
        method: match method {
            1 => DeltaMethod::Log,
            2 => DeltaMethod::Sums,
            3 => DeltaMethod::Rsync,
            4 => DeltaMethod::Hash,
            5 => DeltaMethod::Full,
            6 => DeltaMethod::Webr,
            7 => DeltaMethod::Cdc,
            8 => DeltaMethod::SkyF,
            9 => DeltaMethod::SkyC,
            10 => DeltaMethod::LogSearched,
            11 => DeltaMethod::LogLookedUp,
            12 => DeltaMethod::LogCompared,
            _ => return None,
        },
        cause: match cause {
            1 => Cause::LogKnew,
            2 => Cause::New,
            3 => Cause::Asked,
            4 => Cause::Rewritten,
            5 => Cause::Whole(WholeReason::from_code(whole)?),
            6 => Cause::SamePath,
            7 => Cause::Moved,
            8 => Cause::Replaced,
            9 => Cause::Copied,
            _ => return None,
        },
        fallback: match fallback {
            0 => None,
            1 => Some(Fallback::TooShort),
            2 => Some(Fallback::TooLong),
            3 => Some(Fallback::NoSignature),
            4 => Some(Fallback::TooScattered),
            5 => Some(Fallback::ProofRefused),
            6 => Some(Fallback::CostsLess),
            7 => Some(Fallback::NotSummed),
            8 => Some(Fallback::Appended),
            9 => Some(Fallback::FoundNothing),
            _ => return None,
        },
        size_bytes,
        changed_bytes: changed ^ size_bytes,
        hashed_bytes,
        found_bytes,
        literal_bytes: literal ^ size_bytes,
    })
}
