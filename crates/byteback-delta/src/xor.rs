//! The difference of two pages of the same length: their exclusive or, of which only the non-zero
//! parts are kept (DeltaFS, section 2.3).
//!
//! ```text
//! delta = (skip varint, len varint, len bytes of base XOR new)*
//!       | page length varint, the whole of base XOR new as a zstd frame without its magic number
//! ```
//! In the first form `skip` bytes are equal, then `len` bytes differ; a page that changed in a few
//! places takes a few bytes more than its changes. Where much changed, the second form is shorter,
//! but takes longer to make; it is not tried where a sample of the pages shows no hope. It begins
//! as a run that starts at the page's end would, and there is no such run. `docs/benchmarks.md` has
//! the measurements behind the choice of these two forms. A delta is its own inverse: it also leads
//! from the new page back to the base.
//!
//! Out of scope: telling whether a delta belongs to a base. The caller that keeps the delta has to
//! know.

use std::cell::RefCell;

use crate::varint;

/// Deltas of runs up to this length are good enough: packing takes several times as long and hardly
/// makes them shorter.
const RUNS_LEN_BYTES: usize = 128;
/// zstd's cheapest positive level; higher ones gain nothing on so few bytes.
const LEVEL: i32 = 1;
/// The magic number at the start of each zstd frame.
const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

thread_local! {
    /// The zstd contexts and buffers: setting them up takes much longer than packing a page.
    static PACKER: RefCell<Option<Packer>> = const { RefCell::new(None) };
}

/// The stride of the sample that estimates whether packing could pay, in eight-byte words.
const SAMPLED_WORDS: usize = 4;
/// The fewest sampled bytes that allow an estimate.
const SAMPLED_LEN_BYTES_MIN: u64 = 256;
/// The base-2 logarithm of the number of remembered words.
const MET_BITS: u32 = 6;
/// Packing counts as hopeless if the estimate is longer than this many times the limit plus
/// [`SPARED_LEN_BYTES`]: the margin is for the repetitions that zstd finds as well. On pages
/// overwritten by recorded programs, hardly one that could be packed was judged hopeless, and most
/// that could not were.
const HOPELESS_TIMES: u64 = 2;
const SPARED_LEN_BYTES: u64 = 128;

/// Up to this many equal bytes between two runs are included in one run: skipping them would take
/// as many bytes.
const JOINED_LEN_BYTES: usize = 2;

/// A delta that describes an impossible change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a page delta is malformed")]
pub struct MalformedPageDelta;

/// Appends the delta between two pages of the same length to `out`; false if it would have more
/// than `len_bytes_max` bytes, and `out` is then as before. The delta of equal pages is empty.
pub fn put_page_delta(base: &[u8], new: &[u8], len_bytes_max: usize, out: &mut Vec<u8>) -> bool {
    let before = out.len();
    let end = before.saturating_add(len_bytes_max);
    let mut reported = 0;
    let mut at = 0;
    while let Some(start) = next_difference(base, new, at) {
        let stop = end_of_difference(base, new, start);
        varint::put(out, (start - reported) as u64);
        varint::put(out, (stop - start) as u64);
        if out.len().saturating_add(stop - start) > end {
            out.truncate(before);
            return false;
        }
        let both = base.iter().zip(new).skip(start).take(stop - start);
        out.extend(both.map(|(base, new)| base ^ new));
        (reported, at) = (stop, stop);
    }
    true
}

/// As [`put_page_delta`], in the shorter of the two forms; short deltas of runs are not packed.
pub fn put_packed_page_delta(base: &[u8], new: &[u8], len_bytes_max: usize, out: &mut Vec<u8>) -> bool {
    let before = out.len();
    let has_runs = put_page_delta(base, new, len_bytes_max, out);
    let runs_len_bytes = out.len() - before;
    if has_runs && runs_len_bytes <= RUNS_LEN_BYTES {
        return true;
    }
    let limit = if has_runs { runs_len_bytes - 1 } else { len_bytes_max };
    if is_hopeless(base, new, limit) {
        return has_runs;
    }
    let mut head = Vec::new();
    varint::put(&mut head, base.len() as u64);
    let packed = with_packer(|packer| {
        let frame = packer.pack(base, new)?;
        let rest = frame.strip_prefix(&MAGIC)?;
        (head.len() + rest.len() <= limit).then(|| {
            out.truncate(before);
            out.extend(&head);
            out.extend(rest);
        })
    });
    packed.is_some() || has_runs
}

/// Whether zstd is unlikely to pack the exclusive or into `len_bytes_max` bytes, estimated from a
/// sample in a tenth of the time. The estimate counts how often each byte value occurs in the
/// sampled words: the fewer bytes are alike, the more bits each needs (their collision entropy,
/// which Shannon's is never below). Words that are equal in both pages, or repeat a recent one,
/// cost nothing.
fn is_hopeless(base: &[u8], new: &[u8], len_bytes_max: usize) -> bool {
    const WORD: usize = size_of::<u64>();
    let mut counts = [0u16; 256];
    let mut met = [0u64; 1 << MET_BITS];
    let (mut words, mut new_words) = (0u64, 0u64);
    let (base_words, _) = base.as_chunks::<WORD>();
    let (other_words, _) = new.as_chunks::<WORD>();
    for (base, new) in base_words.iter().zip(other_words).step_by(SAMPLED_WORDS) {
        words += 1;
        let xor = u64::from_le_bytes(*base) ^ u64::from_le_bytes(*new);
        let place = xor.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - MET_BITS);
        // Zero is remembered from the beginning.
        let Some(before) = usize::try_from(place).ok().and_then(|place| met.get_mut(place)) else {
            continue;
        };
        if *before == xor {
            continue;
        }
        *before = xor;
        new_words += 1;
        for byte in xor.to_le_bytes() {
            if let Some(count) = counts.get_mut(usize::from(byte)) {
                *count = count.saturating_add(1);
            }
        }
    }
    let sampled = new_words * WORD as u64;
    // Among few bytes hardly any are alike, whatever they are.
    if sampled < SAMPLED_LEN_BYTES_MIN {
        return false;
    }
    let alike = |count: &u16| u64::from(*count) * u64::from(count.saturating_sub(1));
    let alike: u64 = counts.iter().map(alike).sum();
    let pairs = sampled * (sampled - 1);
    let bits_per_byte = u64::from((pairs / alike.max(1)).max(1).ilog2());
    let len_bytes = base.len() as u64 * new_words / words * bits_per_byte / 8;
    len_bytes > HOPELESS_TIMES.saturating_mul((len_bytes_max as u64).saturating_add(SPARED_LEN_BYTES))
}

/// zstd's contexts, and buffers.
struct Packer {
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: zstd::bulk::Decompressor<'static>,
    xor: Vec<u8>,
    frame: Vec<u8>,
}

impl Packer {
    fn new() -> Option<Self> {
        let mut compressor = zstd::bulk::Compressor::new(LEVEL).ok()?;
        // Both sides know the length.
        compressor.include_contentsize(false).ok()?;
        Some(Self {
            compressor,
            decompressor: zstd::bulk::Decompressor::new().ok()?,
            xor: Vec::new(),
            frame: Vec::new(),
        })
    }

    fn pack(&mut self, base: &[u8], new: &[u8]) -> Option<&[u8]> {
        self.xor.clear();
        self.xor.extend(base.iter().zip(new).map(|(base, new)| base ^ new));
        self.frame.clear();
        self.frame.reserve(zstd::zstd_safe::compress_bound(self.xor.len()));
        self.compressor.compress_to_buffer(&self.xor, &mut self.frame).ok()?;
        Some(&self.frame)
    }

    /// The exclusive or; `None` if the frame is invalid or has another length.
    fn unpack(&mut self, rest: &[u8], len_bytes: usize) -> Option<&[u8]> {
        self.frame.clear();
        self.frame.extend(MAGIC);
        self.frame.extend(rest);
        self.xor.clear();
        self.xor.reserve(len_bytes);
        self.decompressor
            .decompress_to_buffer(&self.frame, &mut self.xor)
            .ok()?;
        (self.xor.len() == len_bytes).then_some(&self.xor)
    }
}

/// Calls `work` with this thread's packer; `None` if that cannot be set up, or `work` returns it.
fn with_packer<T>(work: impl FnOnce(&mut Packer) -> Option<T>) -> Option<T> {
    PACKER.with_borrow_mut(|packer| {
        if packer.is_none() {
            *packer = Packer::new();
        }
        work(packer.as_mut()?)
    })
}

/// The index of the next byte in which the pages differ.
fn next_difference(base: &[u8], new: &[u8], from: usize) -> Option<usize> {
    const STEP: usize = 32;
    let mut at = from;
    let (base_rest, new_rest) = (base.get(from..)?, new.get(from..)?);
    // Most bytes are equal: take long steps first.
    for (base, new) in base_rest.chunks_exact(STEP).zip(new_rest.chunks_exact(STEP)) {
        if base != new {
            break;
        }
        at += STEP;
    }
    let mut rest = base.iter().zip(new).skip(at);
    rest.position(|(base, new)| base != new).map(|index| at + index)
}

/// The end of the differing run that begins at `start`, short equal pieces included.
fn end_of_difference(base: &[u8], new: &[u8], start: usize) -> usize {
    let mut stop = start;
    for (index, (base, new)) in base.iter().zip(new).enumerate().skip(start) {
        if base != new {
            stop = index + 1;
        } else if index + 1 > stop + JOINED_LEN_BYTES {
            break;
        }
    }
    stop
}

/// The zstd frame of a delta in the second form, without its magic number; `None` for the first
/// form.
fn packed(page_len_bytes: usize, delta: &[u8]) -> Option<&[u8]> {
    let mut rest = delta;
    let skip = varint::take(&mut rest)?;
    (skip == page_len_bytes as u64).then_some(rest)
}

/// Turns the base into the new page, or the new page back into the base.
///
/// # Errors
/// If the delta ends too early, reaches beyond the page, or is not in its shortest form; a part of
/// it may be applied already.
pub fn apply_page_delta(page: &mut [u8], delta: &[u8]) -> Result<(), MalformedPageDelta> {
    if let Some(rest) = packed(page.len(), delta) {
        return with_packer(|packer| {
            let xor = packer.unpack(rest, page.len())?;
            page.iter_mut().zip(xor).for_each(|(byte, xor)| *byte ^= xor);
            Some(())
        })
        .ok_or(MalformedPageDelta);
    }
    let mut rest = delta;
    let mut page = page;
    while !rest.is_empty() {
        let skip = varint::take(&mut rest).and_then(|skip| usize::try_from(skip).ok());
        let len = varint::take(&mut rest).and_then(|len| usize::try_from(len).ok());
        let (skip, len) = skip.zip(len).ok_or(MalformedPageDelta)?;
        let (reported, later) = rest
            .split_at_checked(len)
            .filter(|_| len > 0)
            .ok_or(MalformedPageDelta)?;
        let (_, behind) = page.split_at_mut_checked(skip).ok_or(MalformedPageDelta)?;
        let (changed, behind) = behind.split_at_mut_checked(len).ok_or(MalformedPageDelta)?;
        changed
            .iter_mut()
            .zip(reported)
            .for_each(|(byte, reported)| *byte ^= reported);
        (page, rest) = (behind, later);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
