//! Data and holes of a file of which the kernel may hold stores that the file below does not have
//! yet.
//!
//! A range that is a hole below is data if a program has stored into it through a mapping, or, in
//! mode `fast`, has written into it or beyond the end. So before a hole is believed the kernel
//! hands on what it holds of it, and the file below is asked again. Of a hole the kernel can hold
//! nothing else but zeros, so little is lost by dropping its pages; those of the data stay. A store
//! that comes after the question may be missed, as it may without a mount.

use std::io;

use byteback_extents::ByteRange;
use byteback_host::tree::Inode;
use rustix::io::Errno;

/// The two things that can be looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Data,
    /// The end of the file counts as one.
    Hole,
}

/// Where a file below has data and holes.
pub(crate) trait Map {
    /// The first byte of data at `from` or behind it.
    fn data(&self, from: u64) -> io::Result<Option<u64>>;
    /// The first byte at `from` or behind it that is in no data; nothing from the end on.
    fn hole(&self, from: u64) -> io::Result<Option<u64>>;
}

impl Map for Inode {
    fn data(&self, from: u64) -> io::Result<Option<u64>> {
        self.seek_data(from)
    }

    fn hole(&self, from: u64) -> io::Result<Option<u64>> {
        self.seek_hole(from)
    }
}

/// No file is longer.
const END: u64 = i64::MAX.cast_unsigned();

/// Finds what is wanted at `from` or behind it; `ENXIO` if there is none. `hand_on` makes the
/// kernel hand on what it holds of a range.
pub(crate) fn find(map: &impl Map, wanted: Wanted, from: u64, hand_on: impl FnMut(ByteRange)) -> io::Result<u64> {
    look(map, wanted, from, hand_on)?.ok_or_else(|| Errno::NXIO.into())
}

fn look(map: &impl Map, wanted: Wanted, from: u64, mut hand_on: impl FnMut(ByteRange)) -> io::Result<Option<u64>> {
    let mut hand_on = |start, end| {
        if let Some(range) = ByteRange::new(start, end) {
            hand_on(range);
        }
    };
    match wanted {
        Wanted::Data => match map.data(from)? {
            Some(found) if found == from => Ok(Some(found)),
            found => {
                hand_on(from, found.unwrap_or(END));
                map.data(from)
            }
        },
        Wanted::Hole => {
            // Up to here nothing is held any more.
            let mut forwarded_to = from;
            loop {
                let found = map.hole(from)?;
                if forwarded_to >= END || found.is_some_and(|hole| hole < forwarded_to) {
                    return Ok(found);
                }
                // Beyond the end below there may be data above. Each turn begins behind the last
                // one's end.
                let hole = found.unwrap_or(from).max(forwarded_to);
                let end = map.data(hole)?.unwrap_or(END);
                hand_on(hole, end);
                forwarded_to = end.max(hole.saturating_add(1));
            }
        }
    }
}

#[cfg(test)]
mod tests;
