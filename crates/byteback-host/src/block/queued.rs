//! A device that does its long writes in a thread of its own, so that the caller can continue
//! meanwhile.
//!
//! **Queued** are blocks passed by ownership ([`BlockDevice::write_owned_blocks`]); every other
//! call acts at once. A call that reads, writes or discards blocks first waits until none of these
//! is queued, so that it sees their new contents. A flush waits for the whole queue, so that
//! everything queued before is durable when it returns. Disjoint blocks may reach the device in any
//! order, as the trait allows until a flush.
//!
//! **A failure** in the thread is reported by every later write and flush, forever: the queued
//! blocks exist nowhere else, so no later flush may claim to cover them. Reads still work.
//!
//! At most [`QUEUED_BLOCKS_MAX`] blocks are queued; a caller with more waits. Written blocks are
//! returned for reuse to the next caller of `write_owned_blocks`. Dropping the device waits for the
//! queue.

use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::{BLOCK_LEN_BYTES, BlockDevice, OwnedBlock, check_place};
use crate::error::errno_of;

/// Maximum number of queued blocks, 16 MiB; a single call may have more. A volume can hand over
/// this much at once and continue.
const QUEUED_BLOCKS_MAX: u64 = 4096;

/// Adjacent blocks to be written.
struct Job {
    first: u64,
    blocks: Vec<OwnedBlock>,
}

/// A range of blocks.
#[derive(Clone, Copy, Debug)]
struct Place {
    first: u64,
    count: u64,
}

impl Place {
    fn overlaps(self, other: Self) -> bool {
        self.first < other.first.saturating_add(other.count) && other.first < self.first.saturating_add(self.count)
    }
}

impl Job {
    fn place(&self) -> Place {
        Place {
            first: self.first,
            count: self.blocks.len() as u64,
        }
    }
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    /// The range that the thread is writing.
    in_progress: Option<Place>,
    /// Number of blocks waiting or being written.
    queued_blocks: u64,
    /// The first failure.
    failed: Option<Failure>,
    /// Written blocks, for reuse.
    spare: Vec<OwnedBlock>,
    is_closed: bool,
}

impl Queue {
    fn has(&self, place: Place) -> bool {
        let in_progress = self.in_progress.into_iter();
        (in_progress.chain(self.waiting.iter().map(Job::place))).any(|queued| queued.overlaps(place))
    }

    fn check(&self) -> io::Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(failure) => Err(failure.again()),
        }
    }
}

/// The error of a write in the thread.
#[derive(Debug)]
struct Failure {
    kind: io::ErrorKind,
    errno: Option<i32>,
    message: String,
}

/// The same error as later calls report it.
#[derive(Debug, thiserror::Error)]
#[error("an earlier queued write failed: {message}")]
struct Earlier {
    message: String,
    source: io::Error,
}

impl Failure {
    fn of(error: &io::Error) -> Self {
        Self {
            kind: error.kind(),
            errno: errno_of(error),
            message: error.to_string(),
        }
    }

    fn again(&self) -> io::Error {
        let source = self
            .errno
            .map_or_else(|| self.kind.into(), io::Error::from_raw_os_error);
        let message = self.message.clone();
        io::Error::new(self.kind, Earlier { message, source })
    }
}

struct Shared<D> {
    device: D,
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl<D> Shared<D> {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while<'a>(&self, queue: MutexGuard<'a, Queue>, is_so: impl Fn(&Queue) -> bool) -> MutexGuard<'a, Queue> {
        let waited = self.changed.wait_while(queue, |queue| is_so(queue));
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: BlockDevice> Shared<D> {
    /// Writes queued blocks until the device is dropped.
    fn serve(&self) {
        let mut queue = self.queue();
        loop {
            queue = self.wait_while(queue, |queue| queue.waiting.is_empty() && !queue.is_closed);
            let Some(job) = queue.waiting.pop_front() else { return };
            queue.in_progress = Some(job.place());
            drop(queue);
            let slices: Vec<&[u8]> = job.blocks.iter().map(|block| &block[..]).collect();
            let written = self.device.write_blocks_vectored(job.first, &slices);
            queue = self.queue();
            queue.in_progress = None;
            queue.queued_blocks -= job.blocks.len() as u64;
            if let Err(error) = written {
                queue.failed.get_or_insert(Failure::of(&error));
            }
            if (queue.spare.len() as u64) < QUEUED_BLOCKS_MAX {
                queue.spare.extend(job.blocks);
            }
            self.changed.notify_all();
        }
    }
}

/// See the module.
pub struct QueuedDevice<D> {
    shared: Arc<Shared<D>>,
    thread: Option<JoinHandle<()>>,
}

impl<D: Debug> Debug for QueuedDevice<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueuedDevice").field(&self.shared.device).finish()
    }
}

impl<D: BlockDevice + 'static> QueuedDevice<D> {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn new(device: D) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            device,
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("device".to_owned())
            .spawn(move || served.serve())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }
}

impl<D> QueuedDevice<D> {
    /// Waits until none of these blocks is queued.
    fn settle(&self, first: u64, len_bytes: usize) -> MutexGuard<'_, Queue> {
        let count = (len_bytes as u64).div_ceil(BLOCK_LEN_BYTES as u64);
        let place = Place { first, count };
        let queue = self.shared.queue();
        self.shared.wait_while(queue, |queue| queue.has(place))
    }
}

impl<D> Drop for QueuedDevice<D> {
    fn drop(&mut self) {
        self.shared.queue().is_closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<D: BlockDevice> BlockDevice for QueuedDevice<D> {
    fn len_blocks(&self) -> u64 {
        self.shared.device.len_blocks()
    }

    fn read_blocks(&self, first: u64, blocks: &mut [u8]) -> io::Result<()> {
        drop(self.settle(first, blocks.len()));
        self.shared.device.read_blocks(first, blocks)
    }

    fn write_blocks(&self, first: u64, blocks: &[u8]) -> io::Result<()> {
        self.settle(first, blocks.len()).check()?;
        self.shared.device.write_blocks(first, blocks)
    }

    fn write_blocks_vectored(&self, first: u64, blocks: &[&[u8]]) -> io::Result<()> {
        let len_bytes = blocks.iter().map(|blocks| blocks.len()).sum();
        self.settle(first, len_bytes).check()?;
        self.shared.device.write_blocks_vectored(first, blocks)
    }

    fn write_owned_blocks(&self, first: u64, blocks: Vec<OwnedBlock>) -> io::Result<Vec<OwnedBlock>> {
        let count = blocks.len() as u64;
        check_place(self.len_blocks(), first, blocks.len() * BLOCK_LEN_BYTES)?;
        let place = Place { first, count };
        let queue = self.shared.queue();
        let is_full = |queue: &Queue| queue.queued_blocks > 0 && queue.queued_blocks + count > QUEUED_BLOCKS_MAX;
        let mut queue = self
            .shared
            .wait_while(queue, |queue| queue.has(place) || is_full(queue));
        queue.check()?;
        let spare = std::mem::take(&mut queue.spare);
        if count > 0 {
            queue.waiting.push_back(Job { first, blocks });
            queue.queued_blocks += count;
            self.shared.changed.notify_all();
        }
        Ok(spare)
    }

    fn flush(&self) -> io::Result<()> {
        let queue = self.shared.queue();
        let queue = self.shared.wait_while(queue, |queue| queue.queued_blocks > 0);
        queue.check()?;
        drop(queue);
        self.shared.device.flush()
    }

    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        let queue = self.shared.queue();
        drop(self.shared.wait_while(queue, |queue| queue.has(Place { first, count })));
        self.shared.device.discard(first, count)
    }
}
