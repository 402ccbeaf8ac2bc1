//! Randomness behind a trait, so that runs that draw from it can be replayed.
//!
//! Identifiers and tokens need bits that nobody can guess: [`RealRandomness`] asks the kernel.
//! Tests and simulations need bits that come again: [`SimRandomness`] is `SplitMix64`, kept here in
//! five lines rather than taken from a library so that a seed printed today still reproduces its
//! run after an upgrade.

use std::io;
use std::sync::Mutex;
use std::sync::PoisonError;

use rustix::rand::{GetRandomFlags, getrandom};

/// A source of random bytes.
pub trait Randomness: Send + Sync {
    /// Fills all of `bytes`.
    ///
    /// # Errors
    /// When the system has no source of randomness; `bytes` must then not be used.
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()>;

    /// Draws 64 bits.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    fn next_u64(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// The kernel's cryptographic generator.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealRandomness;

impl Randomness for RealRandomness {
    fn fill(&self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match getrandom(&mut *bytes, GetRandomFlags::empty()) {
                Ok(filled) => bytes = bytes.get_mut(filled..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// The `SplitMix64` generator: the same seed gives the same draws on every machine, forever. Not
/// secret.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that starts from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws a number below `bound`, or 0 if `bound` is 0. The bias (under 2^-32 for bounds below
    /// 2^32) does not matter to a simulation.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// Tosses a fair coin.
    pub fn coin(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }

    /// Draws bytes, which do not compress.
    pub fn bytes(&mut self, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        let mut words = bytes.chunks_exact_mut(8);
        for word in words.by_ref() {
            word.copy_from_slice(&self.next_u64().to_le_bytes());
        }
        let rest = words.into_remainder();
        if !rest.is_empty() {
            for (to, from) in rest.iter_mut().zip(self.next_u64().to_le_bytes()) {
                *to = from;
            }
        }
        bytes
    }
}

/// Bytes that do not compress, others for each `seed`.
#[must_use]
pub fn noise(seed: u64, len_bytes: usize) -> Vec<u8> {
    SplitMix64::new(seed).bytes(len_bytes)
}

/// Reproducible randomness for tests and simulations. Never for tokens.
#[derive(Debug)]
pub struct SimRandomness(Mutex<SplitMix64>);

impl SimRandomness {
    /// A source that starts from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(SplitMix64::new(seed)))
    }
}

impl Randomness for SimRandomness {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut generator = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for chunk in bytes.chunks_mut(8) {
            let drawn = generator.next_u64().to_le_bytes();
            for (to, from) in chunk.iter_mut().zip(drawn) {
                *to = from;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
