//! What the end does that has the base: pairs chunks, and makes the strong checksums of what it paired.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;

use crate::apply::Base;
use crate::chunks::{Chunk, ChunkList, MatchAnswer, MatchParams, SEGMENT_LEN, Segment};
use crate::strong::STRONG_LEN_MAX;

/// Slots that a lookup looks at.
const PROBES_MAX: usize = 64;

/// For one list, so many times the bytes of the base are read and hashed at most. A new content that has the base several times is
/// no reason to read it as often; one that takes it to pieces of all kinds is crafted.
pub const READS_PER_BASE: u64 = 4;

/// A slot without a chunk.
const EMPTY: u32 = u32::MAX;

/// 2^64 divided by the golden ratio, odd.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Chunks of the new content that follow each other, and may be found in the base one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRun {
    /// Number of the first chunk.
    pub first_chunk: usize,
    /// How many there are, at least one.
    pub chunks: usize,
    /// Where the base may have their bytes.
    pub base_offset: u64,
}

/// Pairs the chunks of a new content with those of a base that have the same length and weak checksum, in the order of the new one.
/// Lists that were cut or summed by different rules have nothing in common.
#[must_use]
pub fn match_chunks(new: &ChunkList, base: &ChunkList) -> Vec<ChunkRun> {
    if (new.params(), new.kind()) != (base.params(), base.kind()) {
        return Vec::new();
    }
    let table = Table::new(base);
    let mut runs: Vec<ChunkRun> = Vec::new();
    // The chunk of the base that was paired last, if it was with the chunk before.
    let mut last: Option<usize> = None;
    // The first chunk of the base that does not begin before the present one.
    let mut in_place = 0;
    let mut end = 0;
    for (number, chunk) in new.iter().enumerate() {
        while base
            .get(in_place)
            .is_some_and(|other| other.range.start() < chunk.range.start())
        {
            in_place += 1;
        }
        let next = last
            .filter(|_| chunk.range.start() == end)
            .map(|last| last + 1)
            .filter(|&next| follows(base, next) && is_like(base, next, chunk));
        let found = next
            .or_else(|| {
                let is_here = |other: Chunk| other.range.start() == chunk.range.start();
                (base.get(in_place).is_some_and(is_here) && is_like(base, in_place, chunk)).then_some(in_place)
            })
            .or_else(|| table.find(base, chunk));
        end = chunk.range.end();
        last = found;
        let Some(other) = found.and_then(|index| base.get(index)) else {
            continue;
        };
        match runs.last_mut() {
            Some(run) if next.is_some() => run.chunks += 1,
            _ => runs.push(ChunkRun {
                first_chunk: number,
                chunks: 1,
                base_offset: other.range.start(),
            }),
        }
    }
    runs
}

/// Whether no gap lies before a chunk that is not the first.
fn follows(list: &ChunkList, index: usize) -> bool {
    match (list.get(index - 1), list.get(index)) {
        (Some(before), Some(chunk)) => before.range.end() == chunk.range.start(),
        _ => false,
    }
}

fn is_like(list: &ChunkList, index: usize, chunk: Chunk) -> bool {
    list.get(index)
        .is_some_and(|other| other.weak == chunk.weak && other.range.len_bytes() == chunk.range.len_bytes())
}

/// Makes the strong checksums of what was paired, from the bytes of the base; answers the number of bytes that it read, too. These
/// are at most [`READS_PER_BASE`] times those of the base: what is paired beyond is left out. With parameters that take long runs
/// unproven, nothing is read for these.
///
/// # Errors
/// If the base cannot be read.
pub fn prove_matches(
    new: &ChunkList,
    runs: &[ChunkRun],
    base: &(impl Base + ?Sized),
    params: MatchParams,
) -> io::Result<(MatchAnswer, u64)> {
    let hasher = params.hasher();
    let mut answer = MatchAnswer::new(params, new.len(), base.len_bytes()?);
    let mut buffer: Vec<u8> = Vec::new();
    let mut known: BTreeMap<(u64, u64), [u8; STRONG_LEN_MAX]> = BTreeMap::new();
    let mut read_bytes = 0;
    let read_bytes_max = answer.base_len_bytes().saturating_mul(READS_PER_BASE);
    for run in runs {
        let mut base_offset = run.base_offset;
        let mut first_chunk = run.first_chunk;
        let last = run.first_chunk + run.chunks;
        if params.is_taken_unproven(run.chunks, new.kind()) {
            answer.push(Segment {
                first_chunk,
                chunks: run.chunks,
                base_offset,
                strong: None,
            });
            continue;
        }
        while first_chunk < last {
            let mut len_bytes = 0;
            let mut chunks = 0;
            while let Some(chunk) = new.get(first_chunk + chunks)
                && first_chunk + chunks < last
                && len_bytes < SEGMENT_LEN
            {
                len_bytes += chunk.range.len_bytes();
                chunks += 1;
            }
            if chunks == 0 {
                break;
            }
            let strong = match known.entry((base_offset, len_bytes)) {
                Entry::Occupied(known) => Some(*known.get()),
                Entry::Vacant(unknown) if read_bytes + len_bytes <= read_bytes_max => {
                    // Less than a segment and a chunk.
                    let len = len_bytes as usize;
                    if buffer.len() < len {
                        buffer.resize(len, 0);
                    }
                    let bytes = &mut buffer[..len];
                    base.read_range(base_offset, bytes)?;
                    read_bytes += len_bytes;
                    Some(*unknown.insert(hasher.of(bytes)))
                }
                Entry::Vacant(_) => None,
            };
            if let Some(strong) = strong {
                answer.push(Segment {
                    first_chunk,
                    chunks,
                    base_offset,
                    strong: Some(strong),
                });
            }
            base_offset += len_bytes;
            first_chunk += chunks;
        }
    }
    Ok((answer, read_bytes))
}

/// The chunks of a list by length and weak checksum: flat, linear probing, at most half full. Of equal ones, the first.
struct Table {
    /// A power of two of numbers of chunks.
    slots: Vec<u32>,
    shift: u32,
}

impl Table {
    fn new(list: &ChunkList) -> Self {
        let bits = (list.len().max(4) * 2).next_power_of_two().trailing_zeros();
        let mut table = Self {
            slots: vec![EMPTY; 1 << bits],
            shift: u64::BITS - bits,
        };
        for (number, chunk) in list.iter().enumerate() {
            // Lists have fewer than 2^32 - 1 chunks.
            let Ok(number) = u32::try_from(number) else { break };
            table.insert(list, number, chunk);
        }
        table
    }

    fn find(&self, list: &ChunkList, chunk: Chunk) -> Option<usize> {
        self.probe(chunk)
            .map(|at| self.slots[at])
            .take_while(|&slot| slot != EMPTY)
            .map(|slot| slot as usize)
            .find(|&slot| is_like(list, slot, chunk))
    }

    fn insert(&mut self, list: &ChunkList, number: u32, chunk: Chunk) {
        for at in self.probe(chunk) {
            if self.slots[at] == EMPTY {
                self.slots[at] = number;
                return;
            }
            if is_like(list, self.slots[at] as usize, chunk) {
                return;
            }
        }
    }

    fn probe(&self, chunk: Chunk) -> impl Iterator<Item = usize> + use<> {
        let mask = self.slots.len() - 1;
        let key = chunk.weak.wrapping_add(chunk.range.len_bytes() << 40);
        let start = (key.wrapping_mul(MIX) >> self.shift) as usize;
        (0..PROBES_MAX).map(move |step| (start + step) & mask)
    }
}
