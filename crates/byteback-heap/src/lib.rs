//! The system's allocator with a count of allocated bytes, for tests and measurements of memory
//! use.
//!
//! A test binary or a separate program makes [`CountingHeap`] its allocator; then [`used_by`]
//! reports the memory use of some work. Counting is off outside `used_by`, so that time
//! measurements see an allocator that costs only one branch more than the system's. The count
//! covers the bytes requested by all threads, without the allocator's overhead.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
static PEAK_BYTES: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, counted: `#[global_allocator] static HEAP: CountingHeap = CountingHeap;`
#[derive(Debug)]
pub struct CountingHeap;

/// The memory use of some work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapUse {
    /// Bytes allocated and not freed meanwhile; negative if more bytes from before were freed.
    pub live_bytes: i64,
    /// The highest value of `live_bytes` meanwhile, at least 0.
    pub peak_bytes: i64,
}

fn allocated(len_bytes: usize) {
    if IS_COUNTING.load(Ordering::Relaxed) {
        // No allocation is larger than isize::MAX.
        let len_bytes = len_bytes as i64;
        let live_bytes = LIVE_BYTES.fetch_add(len_bytes, Ordering::Relaxed) + len_bytes;
        PEAK_BYTES.fetch_max(live_bytes, Ordering::Relaxed);
    }
}

fn freed(len_bytes: usize) {
    if IS_COUNTING.load(Ordering::Relaxed) {
        LIVE_BYTES.fetch_sub(len_bytes as i64, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged; the counters allocate nothing.
unsafe impl GlobalAlloc for CountingHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        freed(layout.size());
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // If the block has to move, both copies exist for a moment.
        allocated(new_size);
        freed(layout.size());
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Runs `work`; returns its result and its memory use. Must not be nested or called by two threads
/// at the same time: allocations of all threads are counted.
pub fn used_by<T>(work: impl FnOnce() -> T) -> (T, HeapUse) {
    LIVE_BYTES.store(0, Ordering::Relaxed);
    PEAK_BYTES.store(0, Ordering::Relaxed);
    IS_COUNTING.store(true, Ordering::Relaxed);
    let result = work();
    IS_COUNTING.store(false, Ordering::Relaxed);
    let used = HeapUse {
        live_bytes: LIVE_BYTES.load(Ordering::Relaxed),
        peak_bytes: PEAK_BYTES.load(Ordering::Relaxed),
    };
    (result, used)
}

#[cfg(test)]
mod tests;
