//! What all fuzz targets share.
//!
//! A target is a function that takes any bytes and panics if something that should hold does not,
//! and *seeds*, inputs from which the fuzzer begins. [`target!`] makes the program of it. Seeds are
//! written by the formats' own writers, so that they follow the formats: with
//! `BYTEBACK_FUZZ_SEEDS=DIR` in its environment a target writes them there and ends. A target may
//! also have *costly inputs*, from which the fuzzer would make nothing but more of their kind, few
//! in a second: they are checked once, before seeds are written.
//!
//! Beside what a target asserts, every input must not take more memory than a fixed amount and a
//! multiple of its length.

pub mod contents;

use std::path::Path;

use byteback_heap::CountingHeap;

#[doc(hidden)]
pub use libfuzzer_sys;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

/// Bytes of memory that any input may take. Of all targets `finders` takes most for short inputs:
/// 5.8 MB for contents of 64 KiB in blocks of one byte.
pub const HEAP_MAX: i64 = 8 << 20;

/// Bytes of memory that an input may take for each of its own.
pub const HEAP_PER_BYTE_MAX: i64 = 256;

/// The program of a target: `target!(check, seeds)` or `target!(check, seeds, costly)`. `check` is
/// called with every input, `seeds` answers those to begin with, `costly` those that are checked
/// once.
#[macro_export]
macro_rules! target {
    ($check:path, $seeds:path) => {
        $crate::target!($check, $seeds, Vec::new);
    };
    ($check:path, $seeds:path, $costly:path) => {
        use $crate::libfuzzer_sys;
        libfuzzer_sys::fuzz_target!(init: $crate::write_seeds($check, $seeds, $costly), |data: &[u8]| $crate::within_bounds(data, $check));
    };
}

/// Calls `check`, and panics if it took too much memory.
pub fn within_bounds(data: &[u8], check: fn(&[u8])) {
    let ((), used) = byteback_heap::used_by(|| check(data));
    let allowed = HEAP_MAX + HEAP_PER_BYTE_MAX * data.len() as i64;
    assert!(
        used.peak_bytes <= allowed,
        "an input of {} bytes took {} bytes of memory",
        data.len(),
        used.peak_bytes
    );
}

/// Checks the costly inputs, writes the seeds and ends the process, if that is asked for.
pub fn write_seeds(check: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>, costly: fn() -> Vec<Vec<u8>>) {
    let Some(folder) = std::env::var_os("BYTEBACK_FUZZ_SEEDS") else {
        return;
    };
    for input in costly() {
        within_bounds(&input, check);
    }
    for (number, seed) in seeds().iter().enumerate() {
        let path = Path::new(&folder).join(format!("seed-{number}"));
        std::fs::write(&path, seed).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }
    std::process::exit(0);
}
