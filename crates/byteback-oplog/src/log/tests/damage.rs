//! Files of the log that were damaged while not in use: a byte flipped, a block lost, a file cut
//! off, emptied, taken away or put back from an older copy. In every case: no panic, no start that
//! is refused, and never a missed change; anything that is not known any more is reported whole.
//!
//! The damage is drawn from a seed; `BYTEBACK_RUNS` asks for more draws.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use byteback_host::durable::{DurableDir, OpenMode};
use byteback_host::random::SplitMix64;

use super::tree::{ROOT, Uid};
use super::world::{Doom, History, World};
use crate::Close;

const LOG: &str = "log.redb";
const INTENTS: &str = "intents";

/// How the last life ended before the damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Clean,
    Killed,
}

/// A life with something of everything in the log: saved and unsaved, open and clean, named and
/// removed. Every change has happened when it ends; `end` says how it ends.
fn live(end: End, history: History) -> (World, Vec<(String, Vec<u8>)>) {
    let mut world = World::doomed(7, 2048, history, &Doom::default());
    let log = world.log();
    let files: Vec<Uid> = ["a", "b", "c", "d"]
        .map(|name| world.create(Some(&log), ROOT, name, false))
        .to_vec();
    let write = |world: &mut World, file: Uid, at: usize| world.write(Some(&log), file, at, b"written").unwrap();
    for file in &files {
        write(&mut world, *file, 10);
    }
    for name in ["ann", "bob"] {
        world.cut(name).unwrap();
        world.advance(name).unwrap();
    }
    close(&mut world);
    let older = copy_of(&world);
    write(&mut world, files[0], 30);
    write(&mut world, files[1], 50);
    world.cut("bob").unwrap();
    world.advance("bob").unwrap();
    close(&mut world);
    write(&mut world, files[0], 70);
    write(&mut world, files[2], 0);
    world.rename(Some(&log), (ROOT, "d"), (ROOT, "e"));
    world.cut("bob").unwrap();
    write(&mut world, files[1], 90);
    drop(log);
    match end {
        End::Clean => world.clean_stop(),
        End::Killed => world.kill(),
    }
    world.sync_tree();
    world.pass(Duration::from_secs(1));
    world.may_forget = true;
    (world, older)
}

fn close(world: &mut World) {
    world.pass(Duration::from_millis(50));
    world.checkpoint(Close::All, false).unwrap();
}

fn read(world: &World, name: &str) -> Vec<u8> {
    let file = world.disk.open(name, OpenMode::Existing).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_exact_at(0, &mut bytes).unwrap();
    bytes
}

fn put(world: &World, name: &str, bytes: &[u8]) {
    let file = world.disk.open(name, OpenMode::CreateIfMissing).unwrap();
    file.set_len(0).unwrap();
    file.write_all_at(0, bytes).unwrap();
}

fn copy_of(world: &World) -> Vec<(String, Vec<u8>)> {
    let names = world.disk.list().unwrap();
    names
        .into_iter()
        .map(|name| (name.clone(), read(world, &name)))
        .collect()
}

/// Damages the log after a life, and starts.
fn start_after(end: End, what: &str, damage: impl FnOnce(&World, &[(String, Vec<u8>)])) {
    let history = History::default();
    let reported = history.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let (mut world, older) = live(end, reported);
        damage(&world, &older);
        // A log that cannot be trusted is set aside, and a new log begins.
        world.start_once().unwrap();
        go_on(&mut world);
    }));
    if let Err(failure) = outcome {
        for line in history.lines() {
            eprintln!("  {line}");
        }
        eprintln!("after an end {end:?}: {what}");
        std::panic::resume_unwind(failure);
    }
}

/// Asserts that the log can still be used, whatever is left of it.
fn go_on(world: &mut World) {
    let log = world.log();
    let file = world.tree.child(ROOT, "a").unwrap();
    world.write(Some(&log), file, 5, b"afterwards").unwrap();
    world.cut("ann").unwrap();
    world.advance("ann").unwrap();
    drop(log);
    close(world);
    world.check_all("in the end");
    world.kill();
    world.restart();
}

fn runs(default: u64) -> u64 {
    let asked = std::env::var("BYTEBACK_RUNS").ok();
    asked.and_then(|number| number.parse().ok()).unwrap_or(default)
}

#[test]
fn a_flipped_byte_anywhere_never_hides_a_change() {
    for end in [End::Clean, End::Killed] {
        for seed in 0..runs(250) {
            let mut random = SplitMix64::new(seed);
            start_after(end, &format!("flip, seed {seed}"), |world, _| {
                let name = if random.below(8) == 0 { INTENTS } else { LOG };
                let mut bytes = read(world, name);
                // Most of the files is zeros; what is not is where it hurts.
                let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
                let at = match random.below(8) {
                    0 => random.below(bytes.len() as u64) as usize,
                    // The head.
                    1 => random.below(512) as usize,
                    _ => used[random.below(used.len() as u64) as usize],
                };
                let flip = if random.coin() {
                    1 << random.below(8)
                } else {
                    1 + random.below(255) as u8
                };
                bytes[at] ^= flip;
                put(world, name, &bytes);
            });
        }
    }
}

#[test]
fn a_lost_block_or_a_cut_file_never_hides_a_change() {
    for end in [End::Clean, End::Killed] {
        for seed in 0..runs(120) {
            let mut random = SplitMix64::new(seed);
            start_after(end, &format!("block, seed {seed}"), |world, _| {
                let name = if random.below(4) == 0 { INTENTS } else { LOG };
                let mut bytes = read(world, name);
                let block_bytes = 512 << random.below(4);
                let block = random.below((bytes.len() / block_bytes) as u64) as usize * block_bytes;
                match random.below(3) {
                    0 => bytes[block..block + block_bytes].fill(0),
                    1 => bytes[block..block + block_bytes].fill_with(|| random.next_u64() as u8),
                    _ => bytes.truncate(block + random.below(2) as usize * random.below(block_bytes as u64) as usize),
                }
                put(world, name, &bytes);
            });
        }
    }
}

#[test]
fn a_log_that_was_emptied_or_taken_away_never_hides_a_change() {
    for end in [End::Clean, End::Killed] {
        for names in [&[LOG][..], &[INTENTS], &[LOG, INTENTS]] {
            start_after(end, &format!("emptied {names:?}"), |world, _| {
                names.iter().for_each(|name| put(world, name, &[]));
            });
            start_after(end, &format!("removed {names:?}"), |world, _| {
                names.iter().for_each(|name| world.disk.remove(name).unwrap());
            });
        }
    }
}

#[test]
fn an_elder_copy_of_the_log_never_hides_a_change() {
    for end in [End::Clean, End::Killed] {
        for names in [&[LOG][..], &[INTENTS], &[LOG, INTENTS]] {
            start_after(end, &format!("older {names:?}"), |world, older| {
                for (name, bytes) in older.iter().filter(|(name, _)| names.contains(&name.as_str())) {
                    put(world, name, bytes);
                }
            });
        }
    }
}
