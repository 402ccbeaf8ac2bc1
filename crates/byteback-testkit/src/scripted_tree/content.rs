//! Contents of a file in memory, as sparse as the file, so that offsets beyond 4 GiB cost nothing.

use byteback_extents::{ByteRange, ExtentSet};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const PAGE_LEN: u64 = 4096;

/// Bytes by page; a missing page is zero. Holes are known exactly, to the byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    len: u64,
    pages: BTreeMap<u64, Arc<Vec<u8>>>,
    holes: ExtentSet,
}

impl Content {
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Fills `buffer` with the bytes from `offset` on, which must be below the end.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) {
        assert!(offset + buffer.len() as u64 <= self.len);
        for (page, in_page, in_buffer) in by_page(offset, buffer.len()) {
            match self.pages.get(&page) {
                Some(page) => buffer[in_buffer].copy_from_slice(&page[in_page]),
                None => buffer[in_buffer].fill(0),
            }
        }
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        if end > self.len {
            self.set_len(end);
        }
        for (page, in_page, in_bytes) in by_page(offset, bytes.len()) {
            let page = self.pages.entry(page);
            let page = page.or_insert_with(|| Arc::new(vec![0; PAGE_LEN as usize]));
            Arc::make_mut(page)[in_page].copy_from_slice(&bytes[in_bytes]);
        }
        if let Some(written) = ByteRange::new(offset, end) {
            self.holes.remove(written);
        }
    }

    /// Growth is a hole.
    pub fn set_len(&mut self, len: u64) {
        if let Some(cut) = ByteRange::new(len, self.len) {
            self.zero(cut);
            self.holes.truncate(len);
        }
        if let Some(grown) = ByteRange::new(self.len, len) {
            self.holes.insert(grown);
        }
        self.len = len;
    }

    pub fn punch(&mut self, range: ByteRange) {
        if let Some(range) = range.split_at(self.len).0 {
            self.zero(range);
            self.holes.insert(range);
        }
    }

    fn zero(&mut self, range: ByteRange) {
        let touched = range.start() / PAGE_LEN..=(range.end() - 1) / PAGE_LEN;
        let touched: Vec<u64> = self.pages.range(touched).map(|(page, _)| *page).collect();
        for page in touched {
            let start = page * PAGE_LEN;
            let from = range.start().max(start) - start;
            let to = range.end().min(start + PAGE_LEN) - start;
            if (from, to) == (0, PAGE_LEN) {
                self.pages.remove(&page);
            } else {
                let bytes = Arc::make_mut(self.pages.get_mut(&page).unwrap());
                bytes[from as usize..to as usize].fill(0);
            }
        }
    }

    /// The pieces of `range`, ascending; true for a hole.
    pub fn pieces(&self, range: ByteRange) -> Vec<(ByteRange, bool)> {
        let mut pieces = Vec::new();
        let mut position = range.start();
        for hole in self.holes.iter_within(range) {
            pieces.extend(ByteRange::new(position, hole.start()).map(|data| (data, false)));
            pieces.push((hole, true));
            position = hole.end();
        }
        pieces.extend(ByteRange::new(position, range.end()).map(|data| (data, false)));
        pieces
    }

    /// All ranges outside of holes.
    pub fn data(&self) -> Vec<ByteRange> {
        let all = ByteRange::new(0, self.len).map_or_else(Vec::new, |all| self.pieces(all));
        all.into_iter().filter(|piece| !piece.1).map(|piece| piece.0).collect()
    }
}

/// The location of `len` bytes from `offset` on: the page, the place in it, and the place among the
/// bytes.
fn by_page(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let start = (at % PAGE_LEN) as usize;
        let now = (len - done).min(PAGE_LEN as usize - start);
        done += now;
        (now > 0).then(|| (at / PAGE_LEN, start..start + now, done - now..done))
    })
}

#[test]
fn contents_are_what_a_plain_vector_is() {
    use byteback_host::random::SplitMix64;
    let mut random = SplitMix64::new(crate::seed::seed(11));
    let (mut content, mut plain) = (Content::default(), Vec::new());
    for _ in 0..400 {
        let at = random.below(30_000) as usize;
        let len = random.below(9000) as usize;
        match random.below(3) {
            0 => {
                plain.resize(plain.len().max(at + len), 0);
                plain[at..at + len].fill(7);
                content.write(at as u64, &vec![7; len]);
            }
            1 => {
                plain.resize(at, 0);
                content.set_len(at as u64);
            }
            _ => {
                let end = plain.len().min(at + len);
                if at < end {
                    plain[at..end].fill(0);
                }
                if let Some(range) = ByteRange::new(at as u64, (at + len) as u64) {
                    content.punch(range);
                }
            }
        }
        let mut read = vec![1; plain.len()];
        assert_eq!(content.len(), plain.len() as u64);
        content.read(0, &mut read);
        assert!(read == plain);
        let data: u64 = content.data().iter().map(|range| range.len_bytes()).sum();
        assert!(data <= content.len());
    }
}
