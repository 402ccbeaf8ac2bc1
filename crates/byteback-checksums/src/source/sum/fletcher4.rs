//! ZFS's fletcher4: the sum of all words of 4 bytes, the sum of all those sums, and so on, four
//! deep, each modulo 2^64.

/// The sums of the bytes pushed so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Fletcher4 {
    sums: [u64; 4],
    /// The bytes of an incomplete word, the first one lowest, and their number.
    rest: u32,
    rest_len: u32,
}

impl Fletcher4 {
    fn word(&mut self, word: u32) {
        let [a, b, c, d] = &mut self.sums;
        *a = a.wrapping_add(u64::from(word));
        *b = b.wrapping_add(*a);
        *c = c.wrapping_add(*b);
        *d = d.wrapping_add(*c);
    }

    fn byte(&mut self, byte: u8) {
        self.rest |= u32::from(byte) << (8 * self.rest_len);
        self.rest_len += 1;
        if self.rest_len == 4 {
            self.word(self.rest);
            (self.rest, self.rest_len) = (0, 0);
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let missing = match self.rest_len {
            0 => 0,
            len => 4 - len as usize,
        };
        let (first, bytes) = bytes.split_at(missing.min(bytes.len()));
        first.iter().for_each(|byte| self.byte(*byte));
        let (words, rest) = bytes.as_chunks::<4>();
        words.iter().for_each(|word| self.word(u32::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.byte(*byte));
    }

    pub(super) fn end(mut self) -> [u8; 32] {
        if self.rest_len > 0 {
            self.word(self.rest);
        }
        let mut bytes = [0; 32];
        for (place, sum) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.sums) {
            *place = sum.to_le_bytes();
        }
        bytes
    }
}
