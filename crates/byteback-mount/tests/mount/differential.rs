//! The same random operations on a mount and on a plain directory of the same file system: each
//! must have the same result, and the trees must be equal afterwards, as programs see them and
//! below the mount.
//!
//! The plain directory is the model: whatever Linux does with a directory without us is right.

use std::time::{Duration, Instant};

use byteback_mount::CacheMode;
use rustix::fs::Mode;

use crate::harness::Fixture;
use crate::operations::{Outcome, Random, SLOTS, Side, compare, generate, seed};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Below {
    Directory,
    Volume,
}

fn run(below: Below, mode: CacheMode, seed: u64, duration: Duration) {
    // A umask belongs to the process: this test changes it, so it runs in a thread of its own with
    // a copy. SAFETY: CLONE_FS separates only root, working directory and umask.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }.unwrap();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let mut random = Random::new(seed);
    let mut fixture = match below {
        Below::Directory => Fixture::with_mode(mode),
        Below::Volume => Fixture::in_volume(mode),
    };
    let plain = tempfile::Builder::new()
        .prefix("byteback-plain-")
        .tempdir_in("/var/tmp")
        .unwrap();
    crate::harness::set_mode(plain.path(), 0o777);
    let mut sides = [Side::new(fixture.tree()), Side::new(plain.path().to_owned())];
    let started = Instant::now();
    let mut history: Vec<String> = Vec::new();
    let (mut count, mut succeeded) = (0u64, 0u64);
    while started.elapsed() < duration {
        let op = generate(&mut random);
        let outcomes = sides.each_mut().map(|side| side.apply(&op));
        count += 1;
        succeeded += u64::from(outcomes[0].is_ok());
        history.push(format!("{op:?}"));
        let context = || {
            let last = history.len().saturating_sub(40);
            format!(
                "seed {seed}, operation {count}, {mode:?}; the last ones:\n{}",
                history[last..].join("\n")
            )
        };
        let short = |outcome: &Outcome| {
            outcome
                .as_ref()
                .map(|bytes| bytes.iter().take(40).copied().collect::<Vec<_>>())
                .map_err(|errno| *errno)
        };
        assert!(
            outcomes[0] == outcomes[1],
            "mount {:?}, plain {:?}\n{}",
            short(&outcomes[0]),
            short(&outcomes[1]),
            context()
        );
        if count.is_multiple_of(25) {
            compare(&fixture.tree(), mode, plain.path(), &format!("as seen; {}", context()));
            if mode == CacheMode::Exact && below == Below::Directory {
                compare(&fixture.below(""), mode, plain.path(), &format!("below; {}", context()));
            }
        }
    }
    fixture.mount().flush_stores().unwrap();
    for slot in 0..SLOTS {
        for side in &mut sides {
            side.open[slot] = None;
        }
    }
    let seen = match below {
        Below::Directory => fixture.below(""),
        Below::Volume => {
            fixture.mount_volume(mode);
            fixture.tree()
        }
    };
    compare(
        &seen,
        mode,
        plain.path(),
        &format!("below at the end, seed {seed}, {mode:?}"),
    );
    println!("{count} operations, {succeeded} succeeded");
    assert!(succeeded > 50, "a test of refusals only proves little");
}

#[test]
fn random_operations_are_those_of_a_plain_directory_exact() {
    let seed = seed();
    std::thread::spawn(move || run(Below::Directory, CacheMode::Exact, seed, Duration::from_secs(4)))
        .join()
        .unwrap();
}

#[test]
fn random_operations_are_those_of_a_plain_directory_fast() {
    let seed = seed();
    std::thread::spawn(move || run(Below::Directory, CacheMode::Fast, seed, Duration::from_secs(4)))
        .join()
        .unwrap();
}

#[test]
fn volume_operations_at_random_match_a_plain_directory_exact() {
    let seed = seed();
    std::thread::spawn(move || run(Below::Volume, CacheMode::Exact, seed, Duration::from_secs(4)))
        .join()
        .unwrap();
}

#[test]
fn volume_operations_at_random_match_a_plain_directory_fast() {
    let seed = seed();
    std::thread::spawn(move || run(Below::Volume, CacheMode::Fast, seed, Duration::from_secs(4)))
        .join()
        .unwrap();
}
