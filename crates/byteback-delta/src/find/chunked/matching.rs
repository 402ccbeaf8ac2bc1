//! The part of the end that has the base: it pairs chunks, and makes the strong checksums of the
//! paired ones.

use std::collections::BTreeMap;
use std::io;

use crate::apply::Base;
use crate::chunks::{Chunk, ChunkList, MatchAnswer, MatchParams, SEGMENT_LEN, Segment};
use crate::strong::STRONG_LEN_MAX;

/// The most slots that a lookup examines.
const PROBES_MAX: usize = 64;

/// The limit on bytes read and hashed for one list, as a multiple of the base's length. A new
/// content that repeats the base does not need to read it each time; one that takes it apart in
/// many different ways is crafted.
pub const READS_PER_BASE: u64 = 4;

/// A slot without a chunk.
const EMPTY: u32 = u32::MAX;

/// 2^64 divided by the golden ratio, odd.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// A run of adjacent chunks of the new content that may also be adjacent in the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRun {
    /// The number of the first chunk.
    pub first_chunk: usize,
    /// The number of chunks, at least one.
    pub chunks: usize,
    /// The offset in the base at which their bytes may be.
    pub base_offset: u64,
}

/// Pairs the chunks of a new content with those of a base that have the same length and weak
/// checksum, in the order of the new one. Lists that were cut or summed by different rules have
/// nothing in common.
#[must_use]
pub fn match_chunks(new: &ChunkList, base: &ChunkList) -> Vec<ChunkRun> {
    if (new.params(), new.kind()) != (base.params(), base.kind()) {
        return Vec::new();
    }
    let table = Table::new(base);
    let mut runs: Vec<ChunkRun> = Vec::new();
    // The chunk of the base that was paired with the previous chunk, if any.
    let mut last: Option<usize> = None;
    // The first chunk of the base that does not begin before the current one.
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

/// Makes the strong checksums of paired chunks from the bytes of the base; also returns the number
/// of bytes read. That is at most [`READS_PER_BASE`] times the base's length: further pairs are
/// left out. With parameters that take long runs unproven, nothing is read for these.
///
/// The base is read from front to back, whatever the order of the new content: a list cannot make a
/// base that is kept in compressed frames be decoded again and again.
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
    let mut strong_of: BTreeMap<(u64, u64), Option<[u8; STRONG_LEN_MAX]>> = BTreeMap::new();
    for stretch in runs.iter().flat_map(|run| Stretches::new(new, run, params)) {
        if stretch.is_proven {
            strong_of.insert((stretch.base_offset, stretch.len_bytes), None);
        }
    }
    let mut buffer: Vec<u8> = Vec::new();
    let mut read_bytes = 0;
    let read_bytes_max = answer.base_len_bytes().saturating_mul(READS_PER_BASE);
    for (&(base_offset, len_bytes), strong) in &mut strong_of {
        if read_bytes + len_bytes > read_bytes_max {
            break;
        }
        // Less than a segment plus a chunk.
        let len = len_bytes as usize;
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let bytes = &mut buffer[..len];
        base.read_range(base_offset, bytes)?;
        read_bytes += len_bytes;
        *strong = Some(hasher.of(bytes));
    }
    for stretch in runs.iter().flat_map(|run| Stretches::new(new, run, params)) {
        let strong = strong_of
            .get(&(stretch.base_offset, stretch.len_bytes))
            .copied()
            .flatten()
            .filter(|_| stretch.is_proven);
        if strong.is_some() || !stretch.is_proven {
            answer.push(Segment {
                first_chunk: stretch.first_chunk,
                chunks: stretch.chunks,
                base_offset: stretch.base_offset,
                strong,
            });
        }
    }
    Ok((answer, read_bytes))
}

/// Chunks of a run that become one segment.
struct Stretch {
    first_chunk: usize,
    chunks: usize,
    base_offset: u64,
    len_bytes: u64,
    is_proven: bool,
}

/// The stretches of a run: all of it if it needs no proof, otherwise each as long as a segment.
struct Stretches<'l> {
    list: &'l ChunkList,
    rest: ChunkRun,
    is_proven: bool,
}

impl<'l> Stretches<'l> {
    fn new(list: &'l ChunkList, run: &ChunkRun, params: MatchParams) -> Self {
        Self {
            list,
            rest: *run,
            is_proven: !params.is_taken_unproven(run.chunks, list.kind()),
        }
    }
}

impl Iterator for Stretches<'_> {
    type Item = Stretch;

    fn next(&mut self) -> Option<Stretch> {
        let ChunkRun {
            first_chunk,
            chunks: left,
            base_offset,
        } = self.rest;
        let (mut chunks, mut len_bytes) = (0, 0);
        while chunks < left
            && (len_bytes < SEGMENT_LEN || !self.is_proven)
            && let Some(chunk) = self.list.get(first_chunk + chunks)
        {
            len_bytes += chunk.range.len_bytes();
            chunks += 1;
        }
        if chunks == 0 {
            return None;
        }
        self.rest = ChunkRun {
            first_chunk: first_chunk + chunks,
            chunks: left - chunks,
            base_offset: base_offset + len_bytes,
        };
        Some(Stretch {
            first_chunk,
            chunks,
            base_offset,
            len_bytes,
            is_proven: self.is_proven,
        })
    }
}

/// The chunks of a list by length and weak checksum: flat, with linear probing, at most half full.
/// Of equal chunks, it has the first.
struct Table {
    /// Numbers of chunks; the number of slots is a power of two.
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
