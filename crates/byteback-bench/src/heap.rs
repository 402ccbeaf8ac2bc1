//! The heap, with a count of what is allocated while somebody asks for it.
//!
//! Counting is off outside of [`live_bytes_after`], so that times are measured with an allocator that costs one branch more than the
//! system's. The count is of the bytes asked for, without what the allocator adds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

static COUNTING: AtomicBool = AtomicBool::new(false);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, counted.
pub(crate) struct CountingHeap;

fn count(bytes: usize, sign: i64) {
    if COUNTING.load(Ordering::Relaxed) {
        // No allocation is larger than isize::MAX.
        LIVE_BYTES.fetch_add(sign * bytes as i64, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged; the counters allocate nothing.
unsafe impl GlobalAlloc for CountingHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size, 1);
        count(layout.size(), -1);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Runs `work` and tells what it gives, with the heap bytes that were allocated and not freed meanwhile. Not to be nested, and only
/// while no other thread allocates.
pub(crate) fn live_bytes_after<T>(work: impl FnOnce() -> T) -> (T, i64) {
    LIVE_BYTES.store(0, Ordering::Relaxed);
    COUNTING.store(true, Ordering::Relaxed);
    let result = work();
    COUNTING.store(false, Ordering::Relaxed);
    (result, LIVE_BYTES.load(Ordering::Relaxed))
}
