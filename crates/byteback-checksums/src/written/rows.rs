//! The database's rows of each file; docs/formats/checksums.md describes every byte.

use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::tree::Identity;

use super::blocks::{CHUNK_BLOCKS, Chunk, zero_sum};
use super::{Flagged, Reason};
use crate::kept::Boot;
use crate::source::Stamp;

/// Ranges of zeros that a record names at most.
const ZEROS_MAX: usize = 1024;

/// The bitmap of a row.
const BITMAP_LEN: usize = CHUNK_BLOCKS as usize / 8;

/// The record of a file, beside its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// The file's stamp when the database held all that was known of it; `None` if it did not.
    pub(super) stamp: Option<Seen>,
    /// Chunks without a row that are zeros.
    pub(super) zeros: ExtentSet,
}

/// A file's stamp, and the boot in which it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    inode: u64,
    birth_ns: Option<i64>,
    pub(super) len_bytes: u64,
    mtime_ns: i64,
    pub(super) ctime_ns: i64,
    pub(super) boot: Boot,
}

impl Seen {
    /// The stamp without its device number, which may differ after the next start of the machine.
    pub(super) fn of(stamp: &Stamp, boot: Boot) -> Self {
        Self {
            inode: stamp.identity.ino,
            birth_ns: stamp.identity.birth_ns,
            len_bytes: stamp.len_bytes,
            mtime_ns: stamp.mtime_ns,
            ctime_ns: stamp.ctime_ns,
            boot,
        }
    }

    /// Whether the inode is the same, whatever became of it.
    pub(super) fn is_of(&self, identity: &Identity) -> bool {
        self.inode == identity.ino && self.birth_ns == identity.birth_ns
    }

    /// Whether the stamps are the same, apart from the boot.
    pub(super) fn is_like(&self, now: &Self) -> bool {
        *self
            == Self {
                boot: self.boot,
                ..*now
            }
    }
}

fn crc((first, second): (u64, u64), body: &[u8]) -> [u8; 4] {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&first.to_le_bytes()), &second.to_le_bytes());
    crc32c::crc32c_append(crc, body).to_le_bytes()
}

fn sealed(key: (u64, u64), mut body: Vec<u8>) -> Vec<u8> {
    let seal = crc(key, &body);
    body.extend(seal);
    body
}

fn unsealed(key: (u64, u64), bytes: &[u8]) -> Option<Reader<'_>> {
    let (body, seal) = bytes.split_last_chunk::<4>()?;
    (*seal == crc(key, body)).then_some(Reader(body))
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        let (array, rest) = self.0.split_first_chunk::<LEN>()?;
        self.0 = rest;
        Some(*array)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn time(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// Decodes the rest as ascending ranges that do not touch.
    fn ranges(&mut self) -> Option<ExtentSet> {
        let mut set = ExtentSet::new();
        let mut least = 0;
        while !self.0.is_empty() {
            let range = ByteRange::new(self.number()?, self.number()?)?;
            if range.start() < least {
                return None;
            }
            least = range.end().saturating_add(1);
            set.insert(range);
        }
        Some(set)
    }
}

fn put_ranges(out: &mut Vec<u8>, ranges: impl Iterator<Item = ByteRange>) {
    for range in ranges {
        out.extend(range.start().to_le_bytes());
        out.extend(range.end().to_le_bytes());
    }
}

impl Record {
    pub(super) fn encode(&self, file: u64) -> Vec<u8> {
        let mut out = vec![u8::from(self.stamp.is_some())];
        if let Some(seen) = &self.stamp {
            out.extend(seen.inode.to_le_bytes());
            out.push(u8::from(seen.birth_ns.is_some()));
            out.extend(seen.birth_ns.unwrap_or(0).to_le_bytes());
            out.extend(seen.len_bytes.to_le_bytes());
            out.extend(seen.mtime_ns.to_le_bytes());
            out.extend(seen.ctime_ns.to_le_bytes());
            out.extend(seen.boot);
        }
        // The last ranges matter most: they include the space behind the file's end.
        let skipped = self.zeros.len().saturating_sub(ZEROS_MAX);
        put_ranges(&mut out, self.zeros.iter().skip(skipped));
        sealed((file, 0), out)
    }

    pub(super) fn decode(file: u64, bytes: &[u8]) -> Option<Self> {
        let mut reader = unsealed((file, 0), bytes)?;
        let stamp = match reader.byte()? {
            0 => None,
            1 => Some(Seen {
                inode: reader.number()?,
                birth_ns: match (reader.byte()?, reader.time()?) {
                    (0, 0) => None,
                    (1, birth_ns) => Some(birth_ns),
                    _ => return None,
                },
                len_bytes: reader.number()?,
                mtime_ns: reader.time()?,
                ctime_ns: reader.time()?,
                boot: reader.array()?,
            }),
            _ => return None,
        };
        let zeros = reader.ranges()?;
        Some(Self { stamp, zeros })
    }
}

/// The row of a chunk. The zeros at its end, which all blocks behind the end of a file are, take no
/// room: most files are shorter than a chunk.
pub(super) fn encode_chunk(file: u64, number: u64, chunk: &Chunk) -> Vec<u8> {
    let blocks = 0..CHUNK_BLOCKS as usize;
    let is_zero = |index: &usize| chunk.get(*index) == Some(zero_sum());
    let zeros_from = blocks.end - blocks.clone().rev().take_while(is_zero).count();
    let (mut bitmap, mut sums) = ([0_u8; BITMAP_LEN], Vec::new());
    for index in blocks.take(zeros_from) {
        if let Some(sum) = chunk.get(index) {
            if let Some(byte) = bitmap.get_mut(index / 8) {
                *byte |= 1 << (index % 8);
            }
            sums.extend(sum.to_le_bytes());
        }
    }
    let bitmap_len = bitmap.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    // Both numbers are 256 at most, the second one 32.
    let mut out = (zeros_from as u16).to_le_bytes().to_vec();
    out.push(bitmap_len as u8);
    out.extend(bitmap.iter().take(bitmap_len));
    out.extend(sums);
    sealed((file, number), out)
}

/// A damaged row decodes to a chunk with no known blocks.
pub(super) fn decode_chunk(file: u64, number: u64, bytes: &[u8]) -> Chunk {
    read_chunk(file, number, bytes).unwrap_or_else(Chunk::unknown)
}

fn read_chunk(file: u64, number: u64, bytes: &[u8]) -> Option<Chunk> {
    let mut reader = unsealed((file, number), bytes)?;
    let zeros_from = usize::from(u16::from_le_bytes(reader.array()?));
    let bitmap_len = usize::from(reader.byte()?);
    let (bitmap, sums) = reader.0.split_at_checked(bitmap_len)?;
    reader.0 = sums;
    if zeros_from > CHUNK_BLOCKS as usize || bitmap_len > BITMAP_LEN {
        return None;
    }
    let mut chunk = Chunk::unknown();
    for (at, byte) in bitmap.iter().enumerate() {
        for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
            chunk.put(at * 8 + bit, Some(u32::from_le_bytes(reader.array()?)));
        }
    }
    for index in zeros_from..CHUNK_BLOCKS as usize {
        chunk.put(index, Some(zero_sum()));
    }
    reader.0.is_empty().then_some(chunk)
}

pub(super) fn encode_flagged(file: u64, flagged: &Flagged) -> Vec<u8> {
    let mut out = vec![match flagged.reason {
        Reason::Changed => 1,
        Reason::Crash => 2,
    }];
    out.extend(flagged.found_at_ns.to_le_bytes());
    put_ranges(&mut out, flagged.blocks.iter());
    sealed((file, 1), out)
}

pub(super) fn decode_flagged(file: u64, bytes: &[u8]) -> Option<Flagged> {
    let mut reader = unsealed((file, 1), bytes)?;
    let reason = match reader.byte()? {
        1 => Reason::Changed,
        2 => Reason::Crash,
        _ => return None,
    };
    Some(Flagged {
        reason,
        found_at_ns: reader.time()?,
        blocks: reader.ranges()?,
    })
}

#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod fuzzing {
    use super::*;

    /// Decodes rows of each kind, given valid checksums, and checks that they survive a round trip.
    pub(crate) fn read_rows(data: &[u8]) {
        let chunk = decode_chunk(3, 4, &sealed((3, 4), data.to_vec()));
        assert_eq!(
            decode_chunk(3, 4, &encode_chunk(3, 4, &chunk)),
            chunk,
            "other sums come back"
        );
        if let Some(record) = Record::decode(3, &sealed((3, 0), data.to_vec()))
            && record.zeros.len() <= ZEROS_MAX
        {
            assert_eq!(
                Record::decode(3, &record.encode(3)),
                Some(record),
                "another record comes back"
            );
        }
        if let Some(flagged) = decode_flagged(3, &sealed((3, 1), data.to_vec())) {
            let again = decode_flagged(3, &encode_flagged(3, &flagged));
            assert_eq!(again, Some(flagged), "other flags come back");
        }
    }

    /// Rows of each kind, without their checksums.
    pub(crate) fn row_seeds() -> Vec<Vec<u8>> {
        let body = |row: Vec<u8>| row.get(..row.len().saturating_sub(4)).unwrap_or_default().to_vec();
        let blocks: ExtentSet = ByteRange::new(3, 5).into_iter().collect();
        let mut chunk = Chunk::unknown();
        chunk.put(9, Some(7));
        let flagged = Flagged {
            reason: Reason::Crash,
            found_at_ns: 7,
            blocks: blocks.clone(),
        };
        let record = Record {
            stamp: None,
            zeros: blocks,
        };
        vec![
            body(encode_chunk(3, 4, &chunk)),
            body(record.encode(3)),
            body(encode_flagged(3, &flagged)),
        ]
    }
}

#[cfg(test)]
mod tests;
