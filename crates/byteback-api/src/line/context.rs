//! The contexts of compression of a line: each message is compressed with the messages before it in
//! the same direction, and can be unpacked when it has come.
//!
//! One Zstandard frame for the life of the line, without a checksum; each message ends with a
//! flush. Both ends begin with the dictionary of batches, so that the first call is short, too.
//!
//! An observer of lengths who can choose a part of the contents learns whether that part was in a
//! message before. The token is in none.

use super::{LineError, MESSAGE_LEN_MAX, PACKED_LEN_MAX};
use crate::batch::DICTIONARY;
use std::io;
use zstd::stream::raw::{CParameter, DParameter, Decoder, Encoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe::Strategy;

/// The base-2 logarithm of the longest distance in bytes between equal bytes, which both ends keep
/// in memory: a server has some lines for each of its devices.
const WINDOW_LOG: u32 = 15;

/// The compression level, from which these parameters differ: a lazy search takes 5 bytes off a
/// small batch, and gives up as fast on contents, which come compressed; with tables this small it
/// needs less memory than the level itself.
const LEVEL: i32 = 1;
const TABLE_LOG: u32 = 12;

/// Bytes by which a buffer grows.
const STEP_LEN: usize = 16 * 1024;

/// Packs the messages of one direction.
pub struct Packer(Encoder<'static>);

/// Unpacks the messages of one direction.
pub struct Unpacker(Decoder<'static>);

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packer").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

impl Packer {
    /// A context without messages.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new() -> io::Result<Self> {
        let mut encoder = Encoder::with_dictionary(LEVEL, DICTIONARY)?;
        encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
        encoder.set_parameter(CParameter::Strategy(Strategy::ZSTD_lazy2))?;
        encoder.set_parameter(CParameter::HashLog(TABLE_LOG))?;
        encoder.set_parameter(CParameter::ChainLog(TABLE_LOG))?;
        encoder.set_parameter(CParameter::MinMatch(5))?;
        encoder.set_parameter(CParameter::ChecksumFlag(false))?;
        Ok(Self(encoder))
    }

    /// Packs the next message.
    ///
    /// # Errors
    /// A message of more than [`MESSAGE_LEN_MAX`] bytes; out of memory.
    pub fn pack(&mut self, message: &[u8]) -> io::Result<Vec<u8>> {
        if message.len() > MESSAGE_LEN_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
        }
        let mut packed = Vec::with_capacity(message.len() / 2 + 64);
        let mut input = InBuffer::around(message);
        while input.pos() < message.len() {
            make_room(&mut packed);
            let at = packed.len();
            self.0.run(&mut input, &mut OutBuffer::around_pos(&mut packed, at))?;
        }
        loop {
            make_room(&mut packed);
            let at = packed.len();
            if self.0.flush(&mut OutBuffer::around_pos(&mut packed, at))? == 0 {
                return Ok(packed);
            }
        }
    }
}

impl Unpacker {
    /// A context without messages.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new() -> io::Result<Self> {
        let mut decoder = Decoder::with_dictionary(DICTIONARY)?;
        decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG))?;
        Ok(Self(decoder))
    }

    /// Unpacks the next message.
    ///
    /// # Errors
    /// Bytes that no [`Packer`] makes, or more than [`MESSAGE_LEN_MAX`] unpacked.
    pub fn unpack(&mut self, packed: &[u8]) -> Result<Vec<u8>, LineError> {
        if packed.len() > PACKED_LEN_MAX {
            return Err(LineError::Broken("a message is too long".to_owned()));
        }
        let mut message = Vec::with_capacity(packed.len().saturating_mul(2).min(STEP_LEN));
        let mut input = InBuffer::around(packed);
        loop {
            make_room(&mut message);
            let at = message.len();
            let mut output = OutBuffer::around_pos(&mut message, at);
            self.0
                .run(&mut input, &mut output)
                .map_err(|error| LineError::Broken(error.to_string()))?;
            if message.len() > MESSAGE_LEN_MAX {
                return Err(LineError::Broken("a message is too long".to_owned()));
            }
            // Room that is left says that there is nothing more to come.
            if input.pos() == packed.len() && message.len() < message.capacity() {
                return Ok(message);
            }
        }
    }
}

/// Leaves room behind the bytes: the library fills a buffer up to its capacity.
fn make_room(bytes: &mut Vec<u8>) {
    if bytes.len() == bytes.capacity() {
        bytes.reserve(STEP_LEN);
    }
}

#[cfg(test)]
mod tests;
