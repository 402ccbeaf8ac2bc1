//! Returns freed memory to the system.
//!
//! The first scan of a large tree, the closing of its files afterwards and a large backup need many
//! small blocks for a while. The C library keeps freed blocks, in an arena for each thread; a
//! daemon that hardly allocates afterwards would hold them for the rest of its life. Measured with
//! a million files: see docs/benchmarks.md.

/// Nodes or names from which on giving memory back is worthwhile.
pub(crate) const LARGE: u64 = 10_000;

/// Gives free memory back. Takes some milliseconds for each hundred megabytes, during which other
/// threads may have to wait for memory.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` only touches the allocator's own free blocks, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
