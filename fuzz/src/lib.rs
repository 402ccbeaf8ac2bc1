//! What all fuzz targets share.
//!
//! A target is a function that takes any bytes and panics if something that should hold does not, and *seeds*, inputs from which the
//! fuzzer begins. [`target!`] makes the program of it. Seeds are written by the formats' own writers, so that they follow
//! the formats: with `BYTEBACK_FUZZ_SEEDS=DIR` in its environment a target writes them there and ends.
//!
//! Beside what a target asserts, every input must not take more memory than a fixed amount and a multiple of its length.

pub mod contents;

use std::path::Path;

use byteback_heap::CountingHeap;

#[doc(hidden)]
pub use libfuzzer_sys;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

/// Bytes of memory that any input may take. The target `finders`, which runs all of them on contents of up to 64 KiB, was seen to take 9 MB;
/// which finder that is, and whether it need, is still to be found out.
pub const HEAP_MAX: i64 = 16 << 20;

/// Bytes of memory that an input may take for each of its own.
pub const HEAP_PER_BYTE_MAX: i64 = 256;

/// The program of a target: `target!(check, seeds)`. `check` is called with every input, `seeds` answers those to begin with.
#[macro_export]
macro_rules! target {
    ($check:path, $seeds:path) => {
        use $crate::libfuzzer_sys;
        libfuzzer_sys::fuzz_target!(init: $crate::write_seeds($seeds), |data: &[u8]| $crate::within_bounds(data, $check));
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

/// Writes the seeds and ends the process, if that is asked for.
pub fn write_seeds(seeds: fn() -> Vec<Vec<u8>>) {
    let Some(folder) = std::env::var_os("BYTEBACK_FUZZ_SEEDS") else {
        return;
    };
    for (number, seed) in seeds().iter().enumerate() {
        let path = Path::new(&folder).join(format!("seed-{number}"));
        std::fs::write(&path, seed).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }
    std::process::exit(0);
}
