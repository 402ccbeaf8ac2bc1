//! Random lives of a [`World`]. `BYTEBACK_SEED` replays one, `BYTEBACK_RUNS` asks for more of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::world::{CONSUMERS, History, World};
use crate::keeper::tests::beside;
use crate::{Close, LogError};

fn step(world: &mut World) -> Result<(), LogError> {
    let consumer = CONSUMERS[world.random.below(3) as usize];
    match world.random.below(46) {
        0..=1 => world.cut(consumer)?,
        2..=3 => {
            world.cut(consumer)?;
            if world.random.coin() {
                let log = world.log();
                world.change(Some(&log))?;
            }
            world.advance(consumer)?;
        }
        4 => world.advance(consumer)?,
        5 => world.abandon(consumer)?,
        6 if world.random.below(4) == 0 => world.reset(consumer)?,
        7 => {
            world.kill();
            world.restart();
        }
        8 if world.random.coin() => world.power_loss(),
        9..=10 => world.plan_power_loss(),
        11 => {
            world.clean_stop();
            if world.log.is_none() {
                if world.random.below(4) == 0 {
                    world.set_clock();
                }
                for _ in 0..world.random.below(6) {
                    world.pass(Duration::from_millis(3));
                    world.change(None)?;
                }
                world.pass(Duration::from_millis(30));
                world.sync_tree();
                world.restart();
            }
        }
        12..=14 => {
            let disturbed = world.random.coin();
            let ns = world.random.below(100) * 1_000_000;
            world.checkpoint(Close::QuietFor { ns }, disturbed)?;
        }
        15 => world.checkpoint(Close::All, true)?,
        16 => world.plan_fault(),
        17 if world.random.coin() => {
            world.fill_disk();
            for _ in 0..world.random.below(8) {
                let log = world.log();
                if let Err(error) = world.change(Some(&log)) {
                    world.tolerate(&error);
                }
                if world.random.below(3) == 0
                    && let Err(error) = world.checkpoint(Close::All, false)
                {
                    world.tolerate(&error);
                }
            }
            world.empty_disk();
        }
        18..=20 => {
            let ms = [1, 5, 40, 200, 3000][world.random.below(5) as usize];
            world.pass(Duration::from_millis(ms));
        }
        21 if world.random.coin() => world.set_clock(),
        22..=26 => world.step_of_holders()?,
        _ => {
            let log = world.log();
            world.change(Some(&log))?;
        }
    }
    Ok(())
}

/// `holders_percent`: how many of the steps are about those who hold something, beyond the few that
/// are in any case.
fn live(seed: u64, steps: u64, holders_percent: u64) {
    let history = History::default();
    let reported = history.clone();
    let life = catch_unwind(AssertUnwindSafe(move || {
        let mut world = World::new(seed, reported);
        world.is_busy_at_starts = true;
        // Some file systems keep whole seconds only, or every other one.
        if let 0 | 1 = seed % 5 {
            world.tree.tick_ns = (1 + i64::try_from(seed % 5).unwrap()) * 1_000_000_000;
        }
        // Counts from the next start on.
        world.keep_few_extents();
        for _ in 0..steps {
            let done = if world.random.below(100) < holders_percent {
                world.step_of_holders()
            } else {
                step(&mut world)
            };
            if let Err(error) = done {
                world.tolerate(&error);
            }
            if holders_percent > 0 && world.random.below(10) == 0 {
                world.check_all("on the way");
            }
        }
        world.check_all("in the end");
        world.kill();
        world.restart();
    }));
    if let Err(failure) = life {
        let lines = history.lines();
        let is_replay = std::env::var_os("BYTEBACK_SEED").is_some();
        let first = if is_replay { 0 } else { lines.len().saturating_sub(80) };
        for line in &lines[first..] {
            eprintln!("  {line}");
        }
        eprintln!("seed {seed}: replay with BYTEBACK_SEED={seed}");
        std::panic::resume_unwind(failure);
    }
}

#[test]
fn log_misses_no_change_in_random_runs() {
    lives(120, 120, 0);
}

#[test]
fn log_misses_no_change_with_layers_beside_the_files() {
    beside(|| lives(80, 120, 0));
    beside(|| lives(30, 200, 50));
}

#[test]
fn log_misses_no_change_for_held_cuts_and_file_marks() {
    lives(60, 200, 50);
}

fn lives(default_runs: u64, steps: u64, holders_percent: u64) {
    if let Some(seed) = std::env::var("BYTEBACK_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return live(seed, steps, holders_percent);
    }
    let runs = std::env::var("BYTEBACK_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok())
        .unwrap_or(default_runs);
    for seed in 0..runs {
        live(seed, steps, holders_percent);
    }
}
