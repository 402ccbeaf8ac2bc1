//! The difference of two pages of the same length: their exclusive or, of which only what is not zero is kept (DeltaFS, section 2.3).
//!
//! ```text
//! delta = (skip varint, len varint, len bytes of base XOR new)*
//! ```
//! `skip` bytes are equal, then `len` bytes are told. A page that changed in a few places takes a few bytes more than these. It is its own inverse:
//! the same delta leads from the new page back to the base.
//!
//! What this does not do: tell whether a delta belongs to a base. Whoever keeps it has to know.

use crate::varint;

/// Equal bytes between others are told with them up to so many: to skip them would take as many.
const JOINED_LEN_BYTES: usize = 2;

/// A delta that says something impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a page delta is malformed")]
pub struct MalformedPageDelta;

/// Appends the delta between two pages of one length to `out`; false if it would have more than `len_bytes_max` bytes, and `out` is then as before.
/// Of equal pages it has none.
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

/// Makes the new page of the base, or the base of the new page.
///
/// # Errors
/// A delta that ends too early, goes beyond the page, or is not in its shortest form; a part of it may be done.
pub fn apply_page_delta(page: &mut [u8], delta: &[u8]) -> Result<(), MalformedPageDelta> {
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
