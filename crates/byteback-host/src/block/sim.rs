//! A block device that is as unreliable as the contract allows, reproducibly from a seed.
//!
//! It keeps what a program sees (*live*) apart from what lasts (*durable*) and the writes in
//! between (*pending*). When the power is cut, each sector of 512 bytes is the durable one or one
//! that a pending write made it; a discarded block is what it was, zeros, or noise. Uniform choice
//! would hardly ever leave an extreme, which is what file systems forget: so a crash first draws a
//! mood, see [`Mood`].
//!
//! Use, as with [`crate::sim::SimDisk`]: run the work once, read [`SimBlockDevice::flushes`], then
//! for each of them run it again with [`SimBlockDevice::crash_at_flush`], take some survivors with
//! [`SimBlockDevice::recover`] and check what was acknowledged. Further faults: blocks that cannot
//! be read, bits that rot, a call that fails.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{BLOCK_LEN_BYTES, BlockDevice, check_place};
use crate::random::SplitMix64;
use crate::sim::{CrashPhase, PowerCut};

/// The unit that devices write atomically.
const SECTOR_LEN_BYTES: usize = 512;

/// Makes the survivors of a cut in the middle of a flush differ from those of a cut before it.
const MIDDLE_SEED: u64 = 0x6d69_6464_6c65;

type Block = [u8; BLOCK_LEN_BYTES];

/// The blocks that were ever written; all others are zeros.
type Blocks = BTreeMap<u64, Arc<Block>>;

/// An operation that is not durable yet.
#[derive(Clone, Debug)]
enum Pending {
    Written { block: u64, data: Arc<Block> },
    Discarded { first: u64, count: u64 },
}

#[derive(Debug)]
struct World {
    len_blocks: u64,
    durable: Blocks,
    live: Blocks,
    pending: Vec<Pending>,
    flushes: u64,
    calls: u64,
    crash_at_flush: Option<(u64, CrashPhase)>,
    /// The phase of the flush at which the power was cut, as a part of the seed of survivors.
    phase_seed: u64,
    crash_at_call: Option<u64>,
    failing_calls: BTreeMap<u64, i32>,
    unreadable: BTreeSet<u64>,
    is_cut: bool,
}

/// See the module. Clones are the same device.
#[derive(Clone, Debug)]
pub struct SimBlockDevice {
    world: Arc<Mutex<World>>,
}

/// The effect of a crash on pending writes.
#[derive(Clone, Copy, Debug)]
enum Mood {
    /// Either all writes survive or none.
    Uniform(bool),
    /// Writes before a random one survive.
    Prefix(u64),
    /// All writes but one survive.
    AllBut(u64),
    /// Each write survives by itself, with this probability in eighths.
    Each(u64),
    /// Each sector survives by itself.
    Torn(u64),
}

impl Mood {
    fn draw(random: &mut SplitMix64, count: u64) -> Self {
        match random.below(8) {
            0 => Self::Uniform(random.coin()),
            1 | 2 => Self::Prefix(random.below(count + 1)),
            3 => Self::AllBut(random.below(count)),
            4 | 5 => Self::Each(1 + random.below(7)),
            _ => Self::Torn(1 + random.below(7)),
        }
    }

    fn keeps(self, index: u64, random: &mut SplitMix64) -> bool {
        match self {
            Self::Uniform(keeps) => keeps,
            Self::Prefix(end) => index < end,
            Self::AllBut(lost) => index != lost,
            Self::Each(of_8) | Self::Torn(of_8) => random.below(8) < of_8,
        }
    }
}

impl World {
    /// Counts a call, and returns the error that was planned for it.
    fn call(&mut self) -> io::Result<()> {
        self.calls += 1;
        if self.crash_at_call == Some(self.calls) {
            self.is_cut = true;
        }
        if self.is_cut {
            return Err(io::Error::other(PowerCut));
        }
        match self.failing_calls.remove(&self.calls) {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        }
    }

    /// Makes all pending operations durable.
    fn settle(&mut self) {
        for pending in self.pending.drain(..) {
            let (first, count) = match pending {
                Pending::Written { block, .. } => (block, 1),
                Pending::Discarded { first, count } => (first, count),
            };
            for block in first..first.saturating_add(count) {
                match self.live.get(&block) {
                    Some(data) => self.durable.insert(block, Arc::clone(data)),
                    None => self.durable.remove(&block),
                };
            }
        }
    }

    fn survivor(&self, seed: u64) -> Blocks {
        let random = &mut SplitMix64::new(seed);
        let mood = Mood::draw(random, self.pending.len() as u64);
        let mut blocks = self.durable.clone();
        for (index, pending) in self.pending.iter().enumerate() {
            match pending {
                Pending::Written { block, data } => {
                    let place = place_of(&mut blocks, *block);
                    let sectors = place.chunks_mut(SECTOR_LEN_BYTES).zip(data.chunks(SECTOR_LEN_BYTES));
                    let is_kept = mood.keeps(index as u64, random);
                    for (to, from) in sectors {
                        let is_kept = match mood {
                            Mood::Torn(_) => mood.keeps(index as u64, random),
                            _ => is_kept,
                        };
                        if is_kept {
                            to.copy_from_slice(from);
                        }
                    }
                }
                Pending::Discarded { first, count } => {
                    for block in *first..first.saturating_add(*count) {
                        forget(&mut blocks, block, random);
                    }
                }
            }
        }
        blocks
    }
}

fn place_of(blocks: &mut Blocks, block: u64) -> &mut Block {
    Arc::make_mut(blocks.entry(block).or_insert_with(|| Arc::new([0; BLOCK_LEN_BYTES])))
}

/// The contents of a block after a discard.
fn forget(blocks: &mut Blocks, block: u64, random: &mut SplitMix64) {
    match random.below(3) {
        0 => {}
        1 => {
            blocks.remove(&block);
        }
        _ => {
            let place = place_of(blocks, block);
            for word in place.chunks_mut(8) {
                let noise = random.next_u64().to_le_bytes();
                word.copy_from_slice(noise.get(..word.len()).unwrap_or_default());
            }
        }
    }
}

impl SimBlockDevice {
    /// A device of zeros.
    #[must_use]
    pub fn new(len_blocks: u64) -> Self {
        Self::holding(len_blocks, BTreeMap::new())
    }

    fn holding(len_blocks: u64, blocks: Blocks) -> Self {
        Self {
            world: Arc::new(Mutex::new(World {
                len_blocks,
                durable: blocks.clone(),
                live: blocks,
                pending: Vec::new(),
                flushes: 0,
                calls: 0,
                crash_at_flush: None,
                phase_seed: 0,
                crash_at_call: None,
                failing_calls: BTreeMap::new(),
                unreadable: BTreeSet::new(),
                is_cut: false,
            })),
        }
    }

    /// Number of flushes since it was made or recovered, failed ones included.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.world().flushes
    }

    /// Number of calls of any kind.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.world().calls
    }

    /// Cuts the power at the `nth` flush, from 1. Before it and in the middle of it, any choice of
    /// the pending operations survives; the two phases draw different survivors from the same seed.
    /// After it, all of them survive.
    pub fn crash_at_flush(&self, nth: u64, phase: CrashPhase) {
        self.world().crash_at_flush = Some((nth, phase));
    }

    /// Cuts the power instead of the `nth` call of any kind, from 1.
    pub fn crash_at_call(&self, nth: u64) {
        self.world().crash_at_call = Some(nth);
    }

    /// Lets the `nth` call of any kind fail with the system error `errno`. Nothing of it is done; a
    /// flush that fails loses what was pending, as Linux does, though it reads as written until it
    /// is read anew.
    pub fn fail_call(&self, nth: u64, errno: i32) {
        self.world().failing_calls.insert(nth, errno);
    }

    /// Lets reads of a block fail until it is written.
    pub fn make_unreadable(&self, block: u64) {
        self.world().unreadable.insert(block);
    }

    /// Flips bits of a byte of a block, durably, though nobody wrote it.
    pub fn rot(&self, block: u64, at: usize, bits: u8) {
        let mut world = self.world();
        let World { live, durable, .. } = &mut *world;
        for blocks in [live, durable] {
            let place = place_of(blocks, block);
            if let Some(byte) = place.get_mut(at) {
                *byte ^= bits;
            }
        }
    }

    /// Cuts the power now. Every later call fails.
    pub fn cut_power(&self) {
        self.world().is_cut = true;
    }

    /// Whether the power is cut.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.world().is_cut
    }

    /// Cuts the power if it is still on, and returns what came back: a new device, drawn by `seed`
    /// and the phase of the flush that was cut, from all that the contract allows, without faults
    /// planned. May be called again for other survivors of the same crash.
    #[must_use]
    pub fn recover(&self, seed: u64) -> Self {
        let mut world = self.world();
        world.is_cut = true;
        Self::holding(world.len_blocks, world.survivor(seed ^ world.phase_seed))
    }

    /// A device that holds what this one shows now, all of it durable.
    #[must_use]
    pub fn copy(&self) -> Self {
        let world = self.world();
        Self::holding(world.len_blocks, world.live.clone())
    }

    /// A test that panicked while it held the lock has failed anyway; the others may go on.
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockDevice for SimBlockDevice {
    fn len_blocks(&self) -> u64 {
        self.world().len_blocks
    }

    fn read_blocks(&self, first: u64, blocks: &mut [u8]) -> io::Result<()> {
        let mut world = self.world();
        check_place(world.len_blocks, first, blocks.len())?;
        world.call()?;
        for (block, buffer) in (first..).zip(blocks.chunks_mut(BLOCK_LEN_BYTES)) {
            if world.unreadable.contains(&block) {
                return Err(io::Error::other(format!(
                    "simulated fault: block {block} cannot be read"
                )));
            }
            match world.live.get(&block) {
                Some(data) => buffer.copy_from_slice(&**data),
                None => buffer.fill(0),
            }
        }
        Ok(())
    }

    fn write_blocks(&self, first: u64, blocks: &[u8]) -> io::Result<()> {
        let mut world = self.world();
        check_place(world.len_blocks, first, blocks.len())?;
        world.call()?;
        for (block, buffer) in (first..).zip(blocks.as_chunks::<BLOCK_LEN_BYTES>().0) {
            world.unreadable.remove(&block);
            let data = Arc::new(*buffer);
            world.live.insert(block, Arc::clone(&data));
            world.pending.push(Pending::Written { block, data });
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut world = self.world();
        world.flushes += 1;
        let planned = world.crash_at_flush.filter(|(nth, _)| *nth == world.flushes);
        if let Some((_, phase)) = planned {
            world.is_cut = true;
            match phase {
                CrashPhase::Before => {}
                CrashPhase::Middle => world.phase_seed = MIDDLE_SEED,
                CrashPhase::After => world.settle(),
            }
        }
        match world.call() {
            Ok(()) => {
                world.settle();
                Ok(())
            }
            Err(error) => {
                if !world.is_cut {
                    // The kernel drops pages that it could not write, and the next sync reports
                    // success.
                    world.pending.clear();
                }
                Err(error)
            }
        }
    }

    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        let mut world = self.world();
        let end = first.checked_add(count).filter(|end| *end <= world.len_blocks);
        if end.is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        world.call()?;
        let seed = world.calls;
        let random = &mut SplitMix64::new(seed);
        for block in first..first + count {
            forget(&mut world.live, block, random);
        }
        world.pending.push(Pending::Discarded { first, count });
        Ok(())
    }
}
