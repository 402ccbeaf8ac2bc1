//! Continuous sync in a deterministic simulation: the real engine, queue, gate, log, client and server, in virtual time, on files, disks and a network
//! that fail as a seed says.
//!
//! | room | what is in it |
//! |---|---|
//! | `world` | virtual time, and whose turn it is |
//! | `network` | the server in this process, and what becomes of requests on their way |
//! | `machine` | a folder with its gate and engine, that can crash |
//! | `programs` | what is done in a folder |
//! | `state` | what a folder holds, here and at the server |
//! | `life` | what happens with a seed, and what must hold then |
//!
//! What is not simulated: the kernel before the gate, which the tests with a mount are for; a power cut of the server, for which the store has tests of its own.
//!
//! `BYTEBACK_SEED=N` repeats one life, `BYTEBACK_LIVES=N` tries so many, `BYTEBACK_SIMULATION_TRACE=1` tells what happens.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

mod life;
mod machine;
mod network;
mod programs;
mod state;
mod world;

use life::{LifeOptions, end_while_meeting, live};
use machine::Canary;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Lives in each run of the tests.
const LIVES: u64 = 200;

/// The seeds to be tried.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    match number("BYTEBACK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BYTEBACK_LIVES").unwrap_or(usual),
    }
}

#[test]
fn what_one_machine_does_is_at_the_server_whatever_fails_and_in_its_order() {
    let mut sent = 0;
    for seed in seeds(LIVES) {
        let lived = live(seed, LifeOptions::default());
        sent += lived
            .unwrap_or_else(|wrong| panic!("BYTEBACK_SEED={seed}: {wrong}"))
            .batches;
    }
    if number("BYTEBACK_SEED").is_none() {
        assert!(sent > 3, "{sent} batches");
    }
}

#[test]
fn an_engine_that_is_ended_before_it_sends_leaves_nothing_on_its_way() {
    let batches: u64 = (0..6)
        .map(|seed| end_while_meeting(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}")))
        .sum();
    assert!(batches > 6, "{batches} batches");
}

/// Lives of which a few must show what is wrong.
const LIVES_OF_CANARIES: u64 = 10;

#[test]
fn the_same_seed_is_the_same_life() {
    for seed in 0..6 {
        let lives = [(); 2].map(|()| live(seed, LifeOptions::default()));
        assert_eq!(lives[0], lives[1], "seed {seed}");
        assert!(lives[0].is_ok());
    }
}

#[test]
fn a_canary_is_found() {
    for canary in [Canary::UnansweredIsApplied, Canary::NameForgotten] {
        let found = (0..LIVES_OF_CANARIES).filter(|seed| {
            let options = LifeOptions {
                canary,
                ..LifeOptions::default()
            };
            live(*seed, options).is_err()
        });
        let found = found.count();
        assert!(found > 0, "{canary:?}");
    }
}
