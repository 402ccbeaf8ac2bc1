//! Memory that was freed, back to the system.
//!
//! A first look at a large tree, the closing of its files afterwards, and a large backup need many
//! small blocks for a while. The C library keeps them when they are freed, in an arena for each
//! thread; a daemon that then hardly allocates would hold them for the rest of its life. Measured
//! with a million files: see docs/benchmarks.md.

/// From so many nodes or names on it is worth the while.
pub(crate) const LARGE: u64 = 10_000;

/// Gives back what is free. Takes some milliseconds for each hundred megabytes, in which other
/// threads may have to wait for memory.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it only touches the allocator's own free blocks, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
