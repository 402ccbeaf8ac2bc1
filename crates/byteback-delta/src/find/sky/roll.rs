//! The rolling CRC of a window, and the table in which it is looked up.
//!
//! With W a window of n bytes, a its first byte and c the entering byte: crc(W c) follows from
//! crc(W) by one table lookup, and crc((W c) without a) = crc(W c) ^ shift(crc(a), n) by another
//! one, from a table made for n. Each step waits for the previous one, for two memory accesses. So
//! several windows, some hundred bytes apart, move in parallel, and their steps overlap: on a busy
//! machine, 2.1 ns per window with its lookup instead of 3.2 (and 5.7 with rsync's sums in
//! `rolling`). The alternative, each window's CRC combined from those of its parts, takes 36 ns.
//!
//! Almost every lookup answers "none". A bitmap with sixteen bits or more per block comes before
//! the table, two bits of one word for each block: it stays in the processor's cache, and takes one
//! load instead of two. CRCs are evenly distributed, so that their own bits are the bitmap's index.

use crate::crc::{Combiner, CrcKind};
use crate::cuckoo::CuckooTable;
use crate::signature::Signature;

/// The number of windows that move in parallel.
const LANES: usize = 4;

/// The number of steps that they take before hits are examined.
const STEPS: usize = 256;

const ALL_STEPS: usize = LANES * STEPS;

/// The whole blocks of a signature by their CRCs, and the tables that roll a window's CRC.
pub(super) struct BlockSearch {
    kind: CrcKind,
    block_len: usize,
    whole_blocks: usize,
    table: CuckooTable<u32, u32>,
    /// The bitmap; its number of words is a power of two.
    filter: Vec<u64>,
    /// The contribution of an entering byte, indexed by its exclusive or with the CRC's lowest
    /// byte: the CRC of that one byte.
    coming: [u32; 256],
    /// The contribution of a leaving byte.
    leaving: [u32; 256],
    of_block: Combiner,
    of_steps: Combiner,
}

/// A window: its start in the buffer, and its CRC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rolled {
    pub(super) from: usize,
    pub(super) crc: u32,
}

impl BlockSearch {
    /// A search for the whole blocks of this signature, whose weak checksums are CRCs of this kind,
    /// which has 32 bits.
    pub(super) fn new(signature: &Signature, kind: CrcKind) -> Self {
        let block_len = signature.params().block_len_bytes as usize;
        let whole = signature.content_len_bytes() / block_len as u64;
        let whole_blocks = usize::try_from(whole).map_or(signature.blocks(), |whole| whole.min(signature.blocks()));
        let weak = &signature.weak()[..whole_blocks];
        let filter_bits = (whole_blocks.max(64) * 16).next_power_of_two();
        let mut filter = vec![0; filter_bits / 64];
        for &weak in weak {
            filter[(weak as usize >> 6) & (filter_bits / 64 - 1)] |= filter_bits_of(weak);
        }
        // Of adjacent equal blocks, mostly zeros, the first is kept: the others are found where
        // they are expected.
        let distinct = weak.iter().zip(0_u32..).filter(|&(weak, block)| {
            let block = block as usize;
            block.checked_sub(1).is_none_or(|before| {
                signature.weak().get(before) != Some(weak) || signature.strong(before) != signature.strong(block)
            })
        });
        let of_block = Combiner::new(kind, block_len as u64);
        let byte = |byte: usize| kind.of(&[byte as u8]);
        Self {
            kind,
            block_len,
            whole_blocks,
            table: CuckooTable::build(whole_blocks, distinct.map(|(&weak, block)| (weak, block))),
            filter,
            coming: std::array::from_fn(|at| byte(at) as u32),
            leaving: std::array::from_fn(|at| of_block.shift(byte(at)) as u32),
            of_block,
            of_steps: Combiner::new(kind, STEPS as u64),
        }
    }

    /// The number of blocks of full length.
    pub(super) fn whole_blocks(&self) -> usize {
        self.whole_blocks
    }

    /// Whether there is a block with this CRC.
    #[inline(always)]
    pub(super) fn contains(&self, crc: u32) -> bool {
        self.may_contain(crc) && self.table.contains(crc)
    }

    /// The kept blocks with this CRC.
    pub(super) fn candidates(&self, crc: u32) -> impl Iterator<Item = usize> + '_ {
        self.table.get(crc).map(|block| block as usize)
    }

    #[inline(always)]
    fn may_contain(&self, crc: u32) -> bool {
        // The mask shows the compiler that the word exists.
        let word = (crc as usize >> 6) & (self.filter.len() - 1);
        let bits = filter_bits_of(crc);
        self.filter[word] & bits == bits
    }

    /// Moves `window` on by some steps, at least one, but not beyond `upto`, where the last window
    /// of `buffer` begins. All windows reached whose CRC some block has are added to `hits`,
    /// ascending.
    pub(super) fn roll(&self, buffer: &[u8], window: &mut Rolled, upto: usize, hits: &mut Vec<(usize, u32)>) {
        if upto - window.from >= ALL_STEPS {
            self.roll_lanes(buffer, window, hits);
            return;
        }
        let steps = (upto - window.from).min(STEPS);
        let (leaving, coming) = self.around(buffer, window.from, steps);
        let mut crc = window.crc;
        for (step, (&leaving, &coming)) in leaving.iter().zip(coming).enumerate() {
            crc = self.step(crc, leaving, coming);
            if self.may_contain(crc) && self.table.contains(crc) {
                hits.push((window.from + step + 1, crc));
            }
        }
        *window = Rolled {
            from: window.from + steps,
            crc,
        };
    }

    fn roll_lanes(&self, buffer: &[u8], window: &mut Rolled, hits: &mut Vec<(usize, u32)>) {
        let start = window.from;
        let (leaving, coming) = self.around(buffer, start, ALL_STEPS);
        // As arrays, whose lengths the compiler knows; `around` returns that many bytes.
        let (Some(leaving), Some(coming)) = (leaving.first_chunk::<ALL_STEPS>(), coming.first_chunk::<ALL_STEPS>())
        else {
            return;
        };
        let mut crcs = [window.crc; LANES];
        for lane in 1..LANES {
            let passed = (lane - 1) * STEPS..lane * STEPS;
            let coming = self.kind.of(&coming[passed.clone()]);
            let longer = self.of_steps.combine(u64::from(crcs[lane - 1]), coming);
            crcs[lane] = self.of_block.without_prefix(longer, self.kind.of(&leaving[passed])) as u32;
        }
        let mut of_lane: [Vec<(usize, u32)>; LANES] = Default::default();
        for step in 0..STEPS {
            let mut may = false;
            for (lane, crc) in crcs.iter_mut().enumerate() {
                let at = lane * STEPS + step;
                *crc = self.step(*crc, leaving[at], coming[at]);
                may |= self.may_contain(*crc);
            }
            if may {
                for lane in 0..LANES {
                    if self.contains(crcs[lane]) {
                        of_lane[lane].push((start + lane * STEPS + step + 1, crcs[lane]));
                    }
                }
            }
        }
        for lane in &of_lane {
            hits.extend_from_slice(lane);
        }
        *window = Rolled {
            from: start + ALL_STEPS,
            crc: crcs[LANES - 1],
        };
    }

    /// The bytes that leave and those that enter while a window moves from `from` by `steps`.
    fn around<'b>(&self, buffer: &'b [u8], from: usize, steps: usize) -> (&'b [u8], &'b [u8]) {
        let coming = from + self.block_len;
        (&buffer[from..from + steps], &buffer[coming..coming + steps])
    }

    #[inline(always)]
    fn step(&self, crc: u32, leaving: u8, coming: u8) -> u32 {
        let longer = (crc >> 8) ^ self.coming[usize::from(crc as u8 ^ coming)];
        longer ^ self.leaving[usize::from(leaving)]
    }
}

/// The two bits of a CRC in its word of the filter.
#[inline(always)]
fn filter_bits_of(crc: u32) -> u64 {
    (1 << (crc & 63)) | (1 << (crc >> 26))
}
