//! The cost of getting checksums, compared with computing them from the same bytes and with a whole
//! sync: the table of docs/skysync.md (SkySync, Fig. 18).

use std::time::{Duration, Instant};

use byteback_checksums::source::{Run, Source, verify};

use crate::sky::{Synced, fixed, named};

/// How often each is measured; the shortest time counts, as the machine has other users.
const TRIES: u32 = 5;

fn shortest(mut what: impl FnMut()) -> Duration {
    let each = (0..TRIES).map(|_| {
        let started = Instant::now();
        what();
        started.elapsed()
    });
    each.min().unwrap()
}

/// Prints a row: extraction, reading and summing of the same file, and a sync of it with `base`,
/// which includes the extraction.
pub(crate) fn print_row(name: &str, base: &dyn Source, source: &dyn Source, block_len: u32, content: &[u8]) {
    let reported = source.collect().unwrap();
    let extraction = shortest(|| {
        source.collect().unwrap();
    });
    let summing = shortest(|| {
        verify(source, &reported).unwrap();
    });
    let mut synced: Option<Synced> = None;
    let is_cut = reported.runs().any(|run| matches!(run, Run::Chunks { .. }));
    let sync = shortest(|| {
        synced = Some(match is_cut {
            true => named(base, source, content),
            false => fixed(base, source, block_len, content),
        });
    });
    let read_bytes = synced.map_or(0, |synced| synced.new_read_bytes);
    println!(
        "| {name} | {} MiB | {:.1} ms | {:.1} ms | {:.1} ms | {:.1} % | {read_bytes} |",
        content.len() >> 20,
        extraction.as_secs_f64() * 1e3,
        summing.as_secs_f64() * 1e3,
        sync.as_secs_f64() * 1e3,
        extraction.as_secs_f64() / sync.as_secs_f64() * 100.0,
    );
}
