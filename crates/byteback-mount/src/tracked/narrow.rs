//! Which bytes of a page really change.
//!
//! What programs store into shared mappings, and in mode `fast` whatever they write, reaches the gate as whole pages, of which a single
//! byte may be new. The bytes that the backing file has there tell which: reading them is cheap, for they were read to fill the page.
//! Taking a byte as unchanged is safe only while there is no cut, and before the page is written: if another write changes it
//! in between, that one logs it.
//!
//! Long runs of pages are those of programs that write long runs: of these only the edges are compared.

use byteback_extents::{ByteRange, ExtentSet};

use crate::handles::OpenFile;

/// Runs up to this length are compared in full.
const COMPARED_LEN_BYTES_MAX: usize = 128 << 10;
/// Of longer ones, so much at each end.
const EDGE_LEN_BYTES: usize = 4 << 10;
/// Equal bytes between changed ones count as changed up to this many: naming the gap would cost more than they do.
const GAP_LEN_BYTES_MAX: u64 = 16;

/// The bytes that change when `data` is written at `offset`. What cannot be read counts as changed.
pub(super) fn changed_bytes(file: &OpenFile, offset: u64, data: &[u8]) -> ExtentSet {
    let mut changed = ExtentSet::new();
    if !file.readable() {
        insert(&mut changed, offset, data.len());
        return changed;
    }
    if data.len() <= COMPARED_LEN_BYTES_MAX {
        compare(file, offset, data, &mut changed);
        return changed;
    }
    let (head, rest) = data.split_at(EDGE_LEN_BYTES);
    let (middle, tail) = rest.split_at(rest.len().saturating_sub(EDGE_LEN_BYTES));
    let middle_at = offset.saturating_add(head.len() as u64);
    let tail_at = middle_at.saturating_add(middle.len() as u64);
    compare(file, offset, head, &mut changed);
    insert(&mut changed, middle_at, middle.len());
    compare(file, tail_at, tail, &mut changed);
    changed
}

fn insert(changed: &mut ExtentSet, offset: u64, len_bytes: usize) {
    if let Some(range) = ByteRange::new(offset, offset.saturating_add(len_bytes as u64)) {
        changed.insert(range);
    }
}

fn compare(file: &OpenFile, offset: u64, new: &[u8], changed: &mut ExtentSet) {
    let mut old = vec![0; new.len()];
    let known = read_up_to(file, offset, &mut old);
    let old = old.get(..known).unwrap_or_default();
    differences(old, new, offset, changed);
}

/// How much of `buffer` could be filled; what is missing lies beyond the end, or could not be read.
fn read_up_to(file: &OpenFile, offset: u64, buffer: &mut [u8]) -> usize {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(count) => filled = filled.saturating_add(count),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    filled
}

/// Where `new` differs from `old`, which may be shorter; both begin at `offset`.
fn differences(old: &[u8], new: &[u8], offset: u64, changed: &mut ExtentSet) {
    let mut open: Option<(u64, u64)> = None;
    let mut note = |at: usize| {
        let at = offset.saturating_add(at as u64);
        match &mut open {
            Some((_, end)) if at.saturating_sub(*end) <= GAP_LEN_BYTES_MAX => *end = at.saturating_add(1),
            _ => {
                if let Some(range) = open.and_then(|(start, end)| ByteRange::new(start, end)) {
                    changed.insert(range);
                }
                open = Some((at, at.saturating_add(1)));
            }
        }
    };
    // Eight bytes at a time: most of a page is equal.
    let mut at = 0;
    for (old, new) in old.chunks_exact(8).zip(new.chunks_exact(8)) {
        if old != new {
            let differing = old.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new);
            differing.for_each(|(index, _)| note(at + index));
        }
        at += 8;
    }
    for index in at..new.len().min(old.len()) {
        if old.get(index) != new.get(index) {
            note(index);
        }
    }
    if let Some(range) = open.and_then(|(start, end)| ByteRange::new(start, end)) {
        changed.insert(range);
    }
    let beyond = old.len().min(new.len());
    insert(changed, offset.saturating_add(beyond as u64), new.len() - beyond);
}

#[cfg(test)]
mod tests;
