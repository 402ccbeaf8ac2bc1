//! Trimming: which bytes of a write really change.
//!
//! A program that rewrites a whole file with mostly the same bytes, a page of a shared mapping of
//! which one byte was stored to, whatever mode `fast` hands on: in all of them most bytes that
//! reach the gate are there already. They are compared with the old ones, and equal bytes are
//! neither logged nor saved for a picture. A write that changes nothing leaves changed attributes
//! only.
//!
//! **It never costs a disk read.** The kernel is asked first whether it holds the old bytes in
//! memory (see [`crate::page_cache`]); bytes that it does not hold count as changed. Beyond the end
//! there are no old bytes.
//!
//! **Why taking a byte as unchanged is safe.** Between an operation's begin and its end there is no
//! cut, so operations that overlap in time belong to one epoch. Say a byte differs at the end of an
//! epoch from what it was at its beginning. Of all the modifications of that byte in this epoch, in
//! the order in which the backing file performed them, take the first that gave it another value.
//! If that was a truncation, an allocation or a copy, its range was logged as it was announced,
//! untrimmed. If it was a write, then this write looked at the byte after the epoch began and
//! before it wrote, thus while the byte still had the value of the beginning, saw the difference,
//! and logged it. The other writes may have seen anything. Bytes that a gap behind the old end
//! gained are zeros, never logged, and known as such to readers of the log. Changes made below the
//! mount are not seen, trimmed or not. A crash does not come into it: the old bytes on the *disk*
//! do not matter, because a file that is open for change is taken as changed then.
//!
//! **Cost.** Two system calls and a comparison, about 1.5 us for 4 KiB. Not paid for files that are
//! new in this epoch, nor for bytes that were logged since the last checkpoint
//! ([`byteback_oplog::Operation::is_logged`]). An open file whose last writes were new throughout
//! is only looked at again once in a while (`trimming`); not so for single pages of the kernel's,
//! whose share of new bytes is unknown. Long writes, and those of which the first
//! [`EDGE_LEN_BYTES`] are mostly new, are compared from both ends inwards until something differs
//! in a piece; the bytes between count as changed.
//!
//! Out of scope: looking into copies between files, allocations and truncations.

use std::cell::RefCell;

use byteback_extents::ByteRange;

use crate::handles::OpenFile;
use crate::page_cache::read_cached;
use crate::tracked::Origin;
use crate::tracked::ranges::Ranges;

/// Writes up to this length are compared in full, whatever differs.
const SHORT_LEN_BYTES_MAX: usize = 16 << 10;
/// Up to this length they are compared in full unless they begin with something new.
const COMPARED_LEN_BYTES_MAX: usize = 128 << 10;
/// Others are compared in pieces: the first at each end is short, so that a write that is new
/// throughout is soon known.
const EDGE_LEN_BYTES: usize = 4 << 10;
const PIECE_LEN_BYTES: usize = 64 << 10;
/// Equal bytes between changed ones count as changed up to this many: naming the gap would cost
/// more than they do.
const GAP_LEN_BYTES_MAX: u64 = 16;
/// A comparison was of use if it trimmed more than one byte in this many.
const FRUIT_OF_BYTES: usize = 16;
/// Shorter ones do not show that it pays: the header of a frame is much like the last one, whatever
/// the frame holds.
const TELLING_LEN_BYTES_MIN: usize = 512;
/// The smallest piece that the kernel hands on.
const PAGE_LEN_BYTES: usize = 4 << 10;

thread_local! {
    /// Each serving thread compares in one buffer, grown to the longest piece so far.
    static OLD_BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The bytes that change when `data` is written at `offset`, ascending. Bytes that are not known
/// without a disk read count as changed.
pub(super) fn changed_ranges(file: &OpenFile, offset: u64, data: &[u8], origin: Origin) -> Ranges {
    let is_single_page = origin == Origin::PageCache && data.len() <= PAGE_LEN_BYTES;
    if !file.readable() || !(is_single_page || file.trimming().is_worth_a_look()) {
        return range_at(offset, data.len()).into();
    }
    let changed = compare_all(offset, data, |at, old| read_cached(file, at, old, is_single_page));
    let trimmed_bytes = (data.len() as u64).saturating_sub(sum_bytes(&changed));
    let was_of_use = trimmed_bytes > (data.len() / FRUIT_OF_BYTES) as u64;
    if !was_of_use || data.len() >= TELLING_LEN_BYTES_MIN {
        file.trimming().learn(was_of_use);
    }
    changed.into()
}

fn range_at(offset: u64, len_bytes: usize) -> Option<ByteRange> {
    ByteRange::new(offset, offset.saturating_add(len_bytes as u64))
}

fn sum_bytes(ranges: &[ByteRange]) -> u64 {
    ranges.iter().map(|range| range.len_bytes()).sum()
}

/// `read` fills the front of a buffer with the old bytes at an offset and answers how much it
/// could.
fn compare_all(offset: u64, data: &[u8], mut read: impl FnMut(u64, &mut [u8]) -> usize) -> Vec<ByteRange> {
    let mut changed = Vec::new();
    let mut compare = |from: usize, to: usize, changed: &mut Vec<ByteRange>| {
        let new = data.get(from..to).unwrap_or_default();
        let at = offset.saturating_add(from as u64);
        OLD_BYTES.with_borrow_mut(|buffer| {
            if buffer.len() < new.len() {
                buffer.resize(new.len(), 0);
            }
            let window = buffer.get_mut(..new.len()).unwrap_or_default();
            let known = read(at, window);
            differences(window.get(..known).unwrap_or_default(), new, at, changed);
        });
    };
    if data.len() <= SHORT_LEN_BYTES_MAX {
        compare(0, data.len(), &mut changed);
        return changed;
    }
    let (mut head, mut tail) = (EDGE_LEN_BYTES, data.len());
    compare(0, head, &mut changed);
    let begins_new = sum_bytes(&changed) > EDGE_LEN_BYTES as u64 / 2;
    if data.len() <= COMPARED_LEN_BYTES_MAX && !begins_new {
        compare(head, tail, &mut changed);
        return changed;
    }
    while head < tail && changed.is_empty() {
        let end = tail.min(head + PIECE_LEN_BYTES);
        compare(head, end, &mut changed);
        head = end;
    }
    let mut pieces: Vec<Vec<ByteRange>> = Vec::new();
    let mut step = EDGE_LEN_BYTES;
    while head < tail && pieces.last().is_none_or(Vec::is_empty) {
        let start = head.max(tail.saturating_sub(step));
        let mut piece = Vec::new();
        compare(start, tail, &mut piece);
        tail = start;
        step = PIECE_LEN_BYTES;
        pieces.push(piece);
    }
    changed.extend(range_at(offset.saturating_add(head as u64), tail - head));
    changed.extend(pieces.into_iter().rev().flatten());
    changed
}

/// Where `new` differs from `old`, which may be shorter; both begin at `offset`. Ascending, after
/// what is in `changed`.
fn differences(old: &[u8], new: &[u8], offset: u64, changed: &mut Vec<ByteRange>) {
    let mut open: Option<ByteRange> = None;
    let mut note = |from: usize, to: usize| {
        let Some(next) = ByteRange::new(offset.saturating_add(from as u64), offset.saturating_add(to as u64)) else {
            return;
        };
        match open {
            Some(before) if next.start() - before.end() <= GAP_LEN_BYTES_MAX => open = Some(before.hull(next)),
            before => {
                changed.extend(before);
                open = Some(next);
            }
        }
    };
    let common = old.len().min(new.len());
    let (old, rest) = (&old[..common], new.get(common..).unwrap_or_default());
    // Mostly all is equal, or all is not.
    let mut at = if new.starts_with(old) { common } else { 0 };
    // Equal stretches by the longest steps that there are, differing ones a word at a time.
    while at < common {
        let end = common.min(at + 256);
        let (old, new) = (
            old.get(at..end).unwrap_or_default(),
            new.get(at..end).unwrap_or_default(),
        );
        if old != new {
            differing_words(old, new, |from, to| note(at + from, at + to));
        }
        at = end;
    }
    if !rest.is_empty() {
        note(common, new.len());
    }
    changed.extend(open);
}

/// Tells, word by word, from which to behind which byte two slices of one length differ.
fn differing_words(old: &[u8], new: &[u8], mut note: impl FnMut(usize, usize)) {
    let (old_words, old_rest) = old.as_chunks::<8>();
    let (new_words, new_rest) = new.as_chunks::<8>();
    for (index, (old, new)) in old_words.iter().zip(new_words).enumerate() {
        let differing = u64::from_le_bytes(*old) ^ u64::from_le_bytes(*new);
        if differing != 0 {
            let first = differing.trailing_zeros() as usize / 8;
            let behind = 8 - differing.leading_zeros() as usize / 8;
            note(index * 8 + first, index * 8 + behind);
        }
    }
    let rest_at = old.len() - old_rest.len();
    for (index, (old, new)) in old_rest.iter().zip(new_rest).enumerate() {
        if old != new {
            note(rest_at + index, rest_at + index + 1);
        }
    }
}

#[cfg(test)]
mod tests;
