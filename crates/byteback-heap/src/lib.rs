//! The system's allocator with a count of what is allocated, for tests and measurements of how much
//! memory something takes.
//!
//! A test binary or a program of its own makes [`CountingHeap`] its allocator; then [`used_by`]
//! tells what some work took. Counting is off outside of it, so that times are measured with an
//! allocator that costs one branch more than the system's. What is counted are the bytes that were
//! asked for, of all threads, without what the allocator adds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
static PEAK_BYTES: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, counted: `#[global_allocator] static HEAP: CountingHeap = CountingHeap;`
#[derive(Debug)]
pub struct CountingHeap;

/// What some work took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapUse {
    /// Bytes that were allocated and not freed meanwhile; negative if more was freed that was there
    /// before.
    pub live_bytes: i64,
    /// The most that this ever was.
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
        // Where it has to move, both are there for a moment.
        allocated(new_size);
        freed(layout.size());
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Runs `work` and tells what it gives, with what it took. Not to be nested or called by two
/// threads at the same time: what any thread allocates meanwhile is counted.
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
