//! Chunk borders of a content that arrives in pieces.
//!
//! State: the length of the current chunk, and its last 31 bytes, for windows that lie across two
//! pieces. Only these bytes are copied.
//!
//! A chunk never ends below the minimum length. Up to the average length, one window in `avg_len`
//! ends it; from there on, one in a quarter of `avg_len`; the maximum length always ends it. In
//! content without patterns, two fifths of the chunks end before the average, 8 in 100 at the
//! maximum length, and their mean length is 1.0 times the average (with a minimum of half and a
//! maximum of one and a half times the average).

use super::ChunkParams;
use super::scan::{Rule, WINDOW_LEN, first_candidate};

/// The length of a window, less one byte.
const TAIL_LEN: usize = WINDOW_LEN - 1;

/// Finds the ends of chunks; see the module's header.
#[derive(Clone, Debug)]
pub struct Chunker {
    params: ChunkParams,
    /// The rule for lengths up to the average.
    seldom: Rule,
    /// The rule for lengths from the average on.
    frequent: Rule,
    /// The number of bytes of the current chunk so far.
    len: usize,
    /// The last bytes of the current chunk, if it has that many.
    tail: [u8; TAIL_LEN],
}

impl Chunker {
    /// Begins a chunk.
    #[must_use]
    pub fn new(params: ChunkParams) -> Self {
        Self {
            params,
            seldom: Rule::one_in(params.avg_len()),
            frequent: Rule::one_in(params.avg_len() / 4),
            len: 0,
            tail: [0; TAIL_LEN],
        }
    }

    /// Takes the next bytes of the content, up to the current chunk's end. Returns how many belong
    /// to the chunk if it ends within them, and has then taken only these; `None` if all of them
    /// belong to it and it goes on.
    ///
    /// ```
    /// # use byteback_delta::chunks::{Chunker, ChunkParams};
    /// # let content = [1; 100_000];
    /// let mut chunker = Chunker::new(ChunkParams::for_content(content.len() as u64));
    /// let mut piece = &content[..];
    /// while let Some(len) = chunker.next_cut(piece) {
    ///     piece = &piece[len..];
    /// }
    /// assert_eq!(chunker.len_bytes(), piece.len());
    /// ```
    pub fn next_cut(&mut self, bytes: &[u8]) -> Option<usize> {
        let (min, avg, max) = (
            self.params.min_len() as usize,
            self.params.avg_len() as usize,
            self.params.max_len() as usize,
        );
        let end = max.min(self.len + bytes.len());
        // Lengths at which the chunk may end, from the first to before the last.
        let first = min.max(self.len + 1);
        let found = self
            .first_end(bytes, first, avg.min(end + 1), self.seldom)
            .or_else(|| self.first_end(bytes, first.max(avg), end + 1, self.frequent))
            .or((end == max).then_some(max));
        match found {
            Some(len) => {
                let taken = len - self.len;
                self.len = 0;
                Some(taken)
            }
            None => {
                self.keep_tail(bytes);
                self.len += bytes.len();
                None
            }
        }
    }

    /// The number of bytes of the current chunk so far.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// Ends the current chunk here.
    pub fn restart(&mut self) {
        self.len = 0;
    }

    /// The first length in `first..last` at which a candidate window ends the chunk.
    fn first_end(&self, bytes: &[u8], first: usize, last: usize, rule: Rule) -> Option<usize> {
        if first >= last {
            return None;
        }
        // Windows across the piece's beginning: those that end less than a window after it.
        let across_last = last.min(self.len + WINDOW_LEN);
        if first < across_last {
            let mut joined = [0; 2 * TAIL_LEN];
            let coming = bytes.len().min(TAIL_LEN);
            joined[..TAIL_LEN].copy_from_slice(&self.tail);
            joined[TAIL_LEN..TAIL_LEN + coming].copy_from_slice(&bytes[..coming]);
            // The window that ends with the first byte of the piece begins at 0.
            let skip = first - self.len - 1;
            let windows = across_last - first;
            if let Some(at) = first_candidate(&joined[skip..skip + windows + TAIL_LEN], windows, rule) {
                return Some(first + at);
            }
        }
        let first = first.max(self.len + WINDOW_LEN);
        if first >= last {
            return None;
        }
        let skip = first - self.len - WINDOW_LEN;
        let windows = last - first;
        first_candidate(&bytes[skip..skip + windows + TAIL_LEN], windows, rule).map(|at| first + at)
    }

    fn keep_tail(&mut self, bytes: &[u8]) {
        match bytes.last_chunk() {
            Some(tail) => self.tail = *tail,
            None => {
                self.tail.copy_within(bytes.len().., 0);
                self.tail[TAIL_LEN - bytes.len()..].copy_from_slice(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests;
