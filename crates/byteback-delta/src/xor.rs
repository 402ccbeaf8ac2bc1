//! The difference of two pages of the same length: their exclusive or, of which only what is not
//! zero is kept (DeltaFS, section 2.3).
//!
//! ```text
//! delta = (skip varint, len varint, len bytes of base XOR new)*
//!       | page length varint, the whole of base XOR new as a zstd frame without its magic number
//! ```
//! In the first form `skip` bytes are equal, then `len` bytes are told; a page that changed in a
//! few places takes a few bytes more than these. Where much changed the second one is shorter, and
//! takes longer to make; it is not tried where a look at a part of the pages shows no hope. It
//! begins as a run would that lies behind the page, which there is not. `docs/benchmarks.md` shows
//! by which measurements these two were chosen. A delta is its own inverse: the same one leads from
//! the new page back to the base.
//!
//! Out of scope: tell whether a delta belongs to a base. Whoever keeps it has to know.

use std::cell::RefCell;

use crate::varint;

/// Runs up to this length are good enough: packing takes several times as long, and hardly makes
/// them shorter.
const RUNS_LEN_BYTES: usize = 128;
/// zstd's cheapest positive level; higher ones find no more in so little.
const LEVEL: i32 = 1;
/// What each zstd frame begins with.
const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

thread_local! {
    /// What zstd works in: to make that takes much longer than a page does.
    static PACKER: RefCell<Option<Packer>> = const { RefCell::new(None) };
}

/// Of this many words of eight bytes one is looked at, where it is to be seen whether packing could
/// pay.
const SAMPLED_WORDS: usize = 4;
/// From so many bytes on they tell something.
const SAMPLED_LEN_BYTES_MIN: u64 = 256;
/// So many words that were met are remembered, as a power of two.
const MET_BITS: u32 = 6;
/// What that shows is taken as hopeless if it is so many times longer than what is allowed, and a
/// little: zstd also finds what repeats. Of pages that recorded programs overwrote hardly one was
/// taken as hopeless that could be packed, and most that could not were.
const HOPELESS_TIMES: u64 = 2;
const SPARED_LEN_BYTES: u64 = 128;

/// Equal bytes between others are told with them up to so many: to skip them would take as many.
const JOINED_LEN_BYTES: usize = 2;

/// A delta that says something impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a page delta is malformed")]
pub struct MalformedPageDelta;

/// Appends the delta between two pages of one length to `out`; false if it would have more than
/// `len_bytes_max` bytes, and `out` is then as before. Of equal pages it has none.
pub fn put_page_delta(base: &[u8], new: &[u8], len_bytes_max: usize, out: &mut Vec<u8>) -> bool {
    let before = out.len();
    let end = before.saturating_add(len_bytes_max);
    let mut told = 0;
    let mut at = 0;
    while let Some(start) = next_difference(base, new, at) {
        let stop = end_of_difference(base, new, start);
        varint::put(out, (start - told) as u64);
        varint::put(out, (stop - start) as u64);
        if out.len().saturating_add(stop - start) > end {
            out.truncate(before);
            return false;
        }
        let both = base.iter().zip(new).skip(start).take(stop - start);
        out.extend(both.map(|(base, new)| base ^ new));
        (told, at) = (stop, stop);
    }
    true
}

/// As [`put_page_delta`], by whichever form is the shorter one; short runs are not packed.
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

/// Whether zstd will hardly make so few bytes of the exclusive or: a look at a part of it that
/// takes a tenth of the time. Of the bytes of some words it is counted how often each is there; the
/// fewer are alike, the more bits each needs (their collision entropy, of which Shannon's is never
/// less). Words that are equal, or were met a moment ago, need nothing.
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
        // Zero is there from the beginning.
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
    // Of few bytes none are alike, whatever they are.
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

/// A place for zstd to work in, and buffers.
struct Packer {
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: zstd::bulk::Decompressor<'static>,
    xor: Vec<u8>,
    frame: Vec<u8>,
}

impl Packer {
    fn new() -> Option<Self> {
        let mut compressor = zstd::bulk::Compressor::new(LEVEL).ok()?;
        // Both sides know it.
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

    /// The exclusive or; `None` if that is not what the frame holds.
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

/// `None` if there is no memory for one.
fn with_packer<T>(work: impl FnOnce(&mut Packer) -> Option<T>) -> Option<T> {
    PACKER.with_borrow_mut(|packer| {
        if packer.is_none() {
            *packer = Packer::new();
        }
        work(packer.as_mut()?)
    })
}

/// Where the pages differ next.
fn next_difference(base: &[u8], new: &[u8], from: usize) -> Option<usize> {
    const STEP: usize = 32;
    let mut at = from;
    let (base_rest, new_rest) = (base.get(from..)?, new.get(from..)?);
    // Mostly all is equal: by long steps first.
    for (base, new) in base_rest.chunks_exact(STEP).zip(new_rest.chunks_exact(STEP)) {
        if base != new {
            break;
        }
        at += STEP;
    }
    let mut rest = base.iter().zip(new).skip(at);
    rest.position(|(base, new)| base != new).map(|index| at + index)
}

/// Behind the last byte of what differs from `start` on, short equal pieces included.
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

/// What is behind the head of a delta in the second form.
fn packed(page_len_bytes: usize, delta: &[u8]) -> Option<&[u8]> {
    let mut rest = delta;
    let skip = varint::take(&mut rest)?;
    (skip == page_len_bytes as u64).then_some(rest)
}

/// Makes the new page of the base, or the base of the new page.
///
/// # Errors
/// A delta that ends too early, goes beyond the page, or is not in its shortest form; a part of it
/// may be done.
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
        let (told, later) = rest
            .split_at_checked(len)
            .filter(|_| len > 0)
            .ok_or(MalformedPageDelta)?;
        let (_, behind) = page.split_at_mut_checked(skip).ok_or(MalformedPageDelta)?;
        let (changed, behind) = behind.split_at_mut_checked(len).ok_or(MalformedPageDelta)?;
        changed.iter_mut().zip(told).for_each(|(byte, told)| *byte ^= told);
        (page, rest) = (behind, later);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
