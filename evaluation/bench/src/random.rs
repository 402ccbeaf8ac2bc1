//! Pseudorandom numbers that are the same in every run, so that all contenders get the same work.

use byteback_host::random::SplitMix64;

/// The generator. Not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Random(SplitMix64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit)
    }

    /// Fills a buffer with bytes that do not compress.
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            let bytes = self.next().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }

    /// Offsets of `count` ranges of `len_bytes` in a file of `file_bytes`, at random offsets
    /// without touching each other, ascending.
    ///
    /// The file must be at least four times as long as all ranges together; otherwise the search
    /// for free places would take long.
    pub(crate) fn scattered(&mut self, count: usize, len_bytes: u64, file_bytes: u64) -> Vec<u64> {
        assert!(
            count as u64 * len_bytes * 4 <= file_bytes,
            "too many ranges for the file"
        );
        let mut offsets = std::collections::BTreeSet::new();
        while offsets.len() < count {
            let offset = self.below(file_bytes - len_bytes + 1);
            let near = offset.saturating_sub(len_bytes)..=offset + len_bytes;
            if offsets.range(near).next().is_none() {
                offsets.insert(offset);
            }
        }
        offsets.into_iter().collect()
    }
}

/// Bytes that do not compress.
pub(crate) fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

/// Words that compress like text, `len` bytes in all.
pub(crate) fn text(random: &mut Random, len: usize) -> String {
    const SYLLABLES: [&str; 24] = [
        "ba", "der", "ein", "ge", "hal", "in", "ka", "lor", "mi", "na", "or", "pe", "qui", "ra", "sen", "ta", "un",
        "ver", "wo", "xa", "ye", "zu", "the", "ing",
    ];
    let mut text = String::with_capacity(len + 16);
    while text.len() < len {
        for _ in 0..=random.below(3) {
            // Below the number of syllables.
            text.push_str(SYLLABLES[random.below(24) as usize]);
        }
        text.push(' ');
    }
    text.truncate(len);
    text
}

#[cfg(test)]
mod tests;
