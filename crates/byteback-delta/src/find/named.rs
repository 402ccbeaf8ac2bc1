//! SkySync on chunks that storage has cut and named (SkySync, section 3.1: deduplication systems):
//! both ends know their content as a list of chunks with strong checksums, and the delta follows
//! from the lists. Only bytes that the base does not have are read.
//!
//! The end with the new content has its store's list. The end with the base has one of its own, if
//! its store cuts by the same rule; if not, it sums its bytes where the new content's chunks would
//! lie ([`NamedChunks::lens`]), which finds chunks that stayed in place.
//!
//! *Requirements*: names must be strong checksums of one kind (no two contents with one name can be
//! made), each of its chunk's current bytes, as proven by the owner of the list. Lists of different
//! kinds have nothing in common, and chunks of different lengths are different.
//!
//! *Memory*: a name and 8 bytes per chunk, and 8 to 16 bytes per chunk of the base for the table.

use std::io;

use byteback_extents::ByteRange;

use super::extents::Extents;
use super::{ExtentSink, FindStats};
use crate::apply::Base;

/// The number of literal bytes read at once.
const READ_LEN: u64 = 256 * 1024;

/// The most slots that a lookup examines: names are evenly distributed, unless they are crafted.
const PROBES_MAX: usize = 64;

/// A slot without a chunk.
const EMPTY: u32 = u32::MAX;

/// The search failed.
#[derive(Debug, thiserror::Error)]
pub enum NamedError<E> {
    /// The new content cannot be read.
    #[error("cannot read the new content at byte {offset}")]
    Read {
        /// The offset of the failed read.
        offset: u64,
        /// The error of the content.
        #[source]
        source: io::Error,
    },
    /// The new content does not have the length of its list: it changed since, or the list belongs
    /// to another content.
    #[error(
        "the new content has {len_bytes} bytes, but its list of chunks covers {listed_bytes}; list its chunks again"
    )]
    OtherLength {
        /// The length of the content.
        len_bytes: u64,
        /// The length of all listed chunks.
        listed_bytes: u64,
    },
    /// The sink failed.
    #[error("cannot write the extents found")]
    Sink(#[source] E),
}

/// The kind of strong checksum that names chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameKind {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
    /// SHA-512/256.
    Sha512Of256,
    /// BLAKE2b of 256 bits, without a key.
    Blake2b256,
    /// BLAKE3 of 256 bits, without a key.
    Blake3,
}

impl NameKind {
    /// The length of a name, in bytes.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::Sha512 => 64,
            Self::Sha256 | Self::Sha512Of256 | Self::Blake2b256 | Self::Blake3 => 32,
        }
    }
}

/// A content as a list of chunks with names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedChunks {
    kind: NameKind,
    /// The end of each chunk.
    ends: Vec<u64>,
    names: Vec<u8>,
}

impl NamedChunks {
    /// An empty list.
    #[must_use]
    pub const fn new(kind: NameKind) -> Self {
        Self {
            kind,
            ends: Vec::new(),
            names: Vec::new(),
        }
    }

    /// Adds the next chunk. Returns false and adds nothing if the chunk is empty, its name has the
    /// wrong length for the kind, or the list would be too long.
    #[must_use]
    pub fn push(&mut self, len_bytes: u64, name: &[u8]) -> bool {
        let end = self.content_len_bytes().checked_add(len_bytes);
        let has_room = self.ends.len() < EMPTY as usize;
        let Some(end) = end.filter(|_| len_bytes > 0 && name.len() == self.kind.len_bytes() && has_room) else {
            return false;
        };
        self.ends.push(end);
        self.names.extend_from_slice(name);
        true
    }

    /// The kind of the chunks' names.
    #[must_use]
    pub const fn kind(&self) -> NameKind {
        self.kind
    }

    /// The length of all chunks together.
    #[must_use]
    pub fn content_len_bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or_default()
    }

    /// The lengths of the chunks, in order.
    pub fn lens(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.ends.len()).filter_map(|number| self.range(number).map(ByteRange::len_bytes))
    }

    fn range(&self, number: usize) -> Option<ByteRange> {
        let before = number.checked_sub(1).and_then(|before| self.ends.get(before));
        ByteRange::new(before.copied().unwrap_or_default(), *self.ends.get(number)?)
    }

    fn name(&self, number: usize) -> &[u8] {
        let len = self.kind.len_bytes();
        self.names.get(number * len..(number + 1) * len).unwrap_or_default()
    }

    /// Whether chunk `number` exists and equals this chunk of another list of the same kind.
    fn has(&self, number: usize, range: ByteRange, name: &[u8]) -> bool {
        let is_as_long = |own: ByteRange| own.len_bytes() == range.len_bytes();
        self.range(number).is_some_and(is_as_long) && self.name(number) == name
    }
}

/// The chunks of a list, by their names.
struct Table<'a> {
    list: &'a NamedChunks,
    /// Numbers of chunks; the number of slots is a power of two.
    slots: Vec<u32>,
}

impl<'a> Table<'a> {
    fn new(list: &'a NamedChunks) -> Self {
        let mut table = Self {
            list,
            slots: vec![EMPTY; (list.ends.len() * 2).next_power_of_two()],
        };
        for (number, _) in (0_u32..).zip(&list.ends) {
            let free = table
                .probes(list.name(number as usize))
                .find(|slot| table.slots.get(*slot) == Some(&EMPTY));
            // Of equal chunks, the first is found first. A chunk without a slot is not found, which
            // only costs bytes.
            if let Some(slot) = free.and_then(|slot| table.slots.get_mut(slot)) {
                *slot = number;
            }
        }
        table
    }

    fn probes(&self, name: &[u8]) -> impl Iterator<Item = usize> + use<> {
        let first = name.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)) as usize;
        let mask = self.slots.len() - 1;
        (0..PROBES_MAX).map(move |probe| first.wrapping_add(probe) & mask)
    }

    fn find(&self, range: ByteRange, name: &[u8]) -> Option<usize> {
        let numbers = self
            .probes(name)
            .map_while(|slot| self.slots.get(slot).filter(|number| **number != EMPTY));
        numbers
            .map(|number| *number as usize)
            .find(|number| self.list.has(*number, range, name))
    }
}

/// Pushes the sources of the bytes of `content`, whose list is `new`: copies from the base, whose
/// list is `base`, or literals read from `content`.
///
/// A chunk that the base has several times is taken from its own place, or from the place after the
/// previous copy, so that copies are few.
///
/// # Errors
/// See [`NamedError`].
pub fn find_named<S: ExtentSink, N: Base + ?Sized>(
    base: &NamedChunks,
    new: &NamedChunks,
    content: &N,
    sink: S,
) -> Result<(S, FindStats), NamedError<S::Error>> {
    let unreadable = |offset| move |source| NamedError::Read { offset, source };
    let listed_bytes = new.content_len_bytes();
    let len_bytes = content.len_bytes().map_err(unreadable(0))?;
    if len_bytes != listed_bytes {
        return Err(NamedError::OtherLength {
            len_bytes,
            listed_bytes,
        });
    }
    let mut extents = Extents::new(sink);
    let mut read_bytes = 0;
    let nothing = NamedChunks::new(new.kind);
    // Names of different kinds say nothing about each other.
    let base = if base.kind == new.kind { base } else { &nothing };
    let table = Table::new(base);
    let mut buffer = Vec::new();
    // The chunk of the base after the last one copied, and the first one that does not begin before
    // the current chunk.
    let (mut next, mut in_place) = (None, 0);
    for number in 0..new.ends.len() {
        let (Some(range), name) = (new.range(number), new.name(number)) else {
            break;
        };
        let starts_before = |own: ByteRange| own.start() < range.start();
        while base.range(in_place).is_some_and(starts_before) {
            in_place += 1;
        }
        let is_here = base.range(in_place).is_some_and(|own| own.start() == range.start());
        let found = Some(in_place)
            .filter(|own| is_here && base.has(*own, range, name))
            .or(next.filter(|own| base.has(*own, range, name)))
            .or_else(|| table.find(range, name));
        next = found.map(|own| own + 1);
        match found.and_then(|own| base.range(own)) {
            Some(from) => extents
                .copy(range.len_bytes(), from.start())
                .map_err(NamedError::Sink)?,
            None => {
                while extents.end() < range.end() {
                    let offset = extents.end();
                    buffer.resize(READ_LEN.min(range.end() - offset) as usize, 0);
                    content.read_range(offset, &mut buffer).map_err(unreadable(offset))?;
                    extents.literal(&buffer).map_err(NamedError::Sink)?;
                }
                read_bytes += range.len_bytes();
            }
        }
    }
    let (sink, stats) = extents.finish().map_err(NamedError::Sink)?;
    let stats = FindStats {
        examined_bytes: read_bytes,
        read_bytes,
        unread_bytes: stats.copied_bytes,
        ..stats
    };
    Ok((sink, stats))
}

#[cfg(test)]
mod tests;
