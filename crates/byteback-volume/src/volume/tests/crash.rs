//! Power cuts, at any flush and at any call: what came back is a state that was promised.
//!
//! The tree after each step is kept. What is found after a crash must be the tree after one of the steps since everything was synced
//! last, but for files that were synced by themselves after that step: these are as they were when they were synced, or as they were being synced.

use super::model::{Model, Step, differs};
use super::*;
use byteback_host::sim::CrashPhase;

/// What was done before the power went.
struct Life {
    /// The tree before the first step, and after each one that was answered.
    trees: Vec<Model>,
    /// Files that were synced, by the tree that they are of.
    synced: Vec<(usize, u32)>,
    /// The last tree that was synced as a whole.
    whole: usize,
    /// What the step in progress would have made.
    last: Option<Step>,
    deltas: DeltaCounts,
}

/// The next step.
type Draw = fn(&mut SplitMix64, &Model) -> Step;

/// Anything, and often the sync of a file.
fn anything(random: &mut SplitMix64, model: &Model) -> Step {
    match random.below(8) {
        0 | 1 => model
            .of(|node| node.mode >> 12 == 8)
            .last()
            .map_or(Step::Sync, |file| Step::SyncFile(*file)),
        _ => Step::draw(random, model),
    }
}

/// What a database does to one file: small changes here and there, each few of them synced. So many that deltas have to make room for each other, and for
/// addresses.
fn records(random: &mut SplitMix64, model: &Model) -> Step {
    let Some(file) = model.of(|node| node.mode >> 12 == 8).last().copied() else {
        return Step::Make(1, b"database".to_vec(), 0o100_644);
    };
    let len = model.nodes[&file].content.len;
    if len == 0 {
        return Step::Write(file, 0, random.bytes(90 * 4096));
    }
    match random.below(16) {
        0..=3 => Step::SyncFile(file),
        4 if random.below(4) == 0 => Step::Sync,
        // Slots that deltas have taken.
        5 if random.below(3) == 0 => Step::Write(file, random.below(860) * 4096, random.bytes(10)),
        6 if random.below(3) == 0 => Step::SetLen(file, len / 2 + random.below(len)),
        7 => {
            let how = if random.coin() { Allocate::Punch } else { Allocate::Zero };
            Step::Allocate(file, how, random.below(len), 1 + random.below(6_000))
        }
        _ => {
            let longest = [4, 60, 240][random.below(3) as usize];
            let count = 1 + random.below(longest) as usize;
            Step::Write(file, random.below(len.min(90 * 4096)), random.bytes(count))
        }
    }
}

fn live(device: &SimBlockDevice, seed: u64, steps: u64, draw: Draw) -> Life {
    let mut random = SplitMix64::new(seed);
    let mut model = Model::new();
    let mut life = Life {
        trees: vec![model.clone()],
        synced: Vec::new(),
        whole: 0,
        last: None,
        deltas: DeltaCounts::default(),
    };
    let Ok(volume) = Volume::open(Arc::new(device.clone()), &options()) else {
        return life;
    };
    for _ in 0..steps {
        let step = draw(&mut random, &model);
        // What is read before it is known whether the power is cut does not matter.
        let answer = model.on_volume(&volume, &step, "before the crash");
        if device.is_cut() {
            life.last = Some(step);
            break;
        }
        if let Ok(made) = answer {
            model.here(&step, made);
            match step {
                Step::Sync => life.whole = life.trees.len(),
                Step::SyncFile(ino) => life.synced.push((life.trees.len(), ino)),
                _ => {}
            }
        }
        life.trees.push(model.clone());
    }
    life.deltas = volume.delta_counts();
    // Not closed: it is as if the program were killed.
    std::mem::forget(volume);
    life
}

/// Why what is there is not the tree after step `at` with what was synced later.
fn wrong(volume: &Volume, life: &Life, at: usize) -> Option<String> {
    let mut synced: BTreeMap<u32, usize> = BTreeMap::new();
    for (step, ino) in life.synced.iter().filter(|(step, _)| *step > at) {
        synced.insert(*ino, *step);
    }
    let without = wrong_in(volume, life, at, &synced)?;
    let Some(Step::SyncFile(ino)) = life.last else {
        return Some(without);
    };
    // What was being synced may be there.
    synced.insert(ino, life.trees.len() - 1);
    let with = wrong_in(volume, life, at, &synced)?;
    Some(format!("{without}; or {with}"))
}

/// As `wrong`, if exactly these files are as they were after these steps.
fn wrong_in(volume: &Volume, life: &Life, at: usize, synced: &BTreeMap<u32, usize>) -> Option<String> {
    let mut expected = life.trees[at].nodes.clone();
    for (ino, step) in synced {
        let later = &life.trees[*step].nodes;
        let Some(node) = later.get(ino).filter(|node| node.links > 0) else {
            continue;
        };
        let is_new = expected.insert(*ino, node.clone()).is_none();
        for (dir, there) in later.iter().filter(|_| is_new) {
            for (name, _) in there.entries.iter().filter(|(_, child)| *child == ino) {
                let Some(dir) = expected.get_mut(dir) else { continue };
                // What the name stood for had lost it.
                if let Some(before) = dir.entries.insert(name.clone(), *ino)
                    && let Some(before) = expected.get_mut(&before)
                {
                    before.links -= 1;
                }
            }
        }
    }
    let named = expected.iter().filter(|(_, node)| node.links > 0);
    let mut wrong = named.filter_map(|(ino, node)| Some(format!("file {ino}: {}", differs(volume, *ino, node)?)));
    wrong.next()
}

fn check(device: &SimBlockDevice, life: &Life, note: &str) {
    // The checkpoint is whole whatever was written after it.
    assert_sound(device, &format!("{note}: before it was recovered"));
    let volume = Volume::open(Arc::new(device.clone()), &options()).unwrap_or_else(|error| panic!("{note}: {error}"));
    let mut reasons = Vec::new();
    for at in (life.whole..life.trees.len()).rev() {
        match wrong(&volume, life, at) {
            None => {
                // And it goes on.
                let mut model = Model::new();
                let made = Step::Make(1, b"after the crash".to_vec(), 0o100_644);
                let ino = model.on_volume(&volume, &made, note).unwrap();
                assert_eq!(volume.write(ino as u32, 0, &[1; 9_000]).unwrap(), 9_000, "{note}");
                volume.sync().unwrap();
                volume.close().unwrap();
                assert_sound(device, &format!("{note}: after it was recovered"));
                return;
            }
            Some(reason) => reasons.push(format!("as after step {at}: {reason}")),
        }
    }
    let mut short: Vec<String> = reasons
        .iter()
        .map(|reason| reason.chars().take(700).collect())
        .collect();
    short.dedup_by_key(|reason| reason.split_once(':').map(|(_, what)| what.to_owned()));
    short.truncate(6);
    panic!(
        "{note}: of {} steps, {} synced {:?}, in progress {:?}:\n{}",
        life.trees.len(),
        life.whole,
        life.synced,
        life.last,
        short.join("\n")
    );
}

#[test]
fn what_was_synced_survives_a_power_cut_at_any_flush() {
    for seed in seeds(4) {
        let made = made(BLOCKS, seed);
        let trial = made.copy();
        live(&trial, seed, 120, anything);
        let flushes = trial.flushes();
        for flush in 1..=flushes {
            for phase in [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After] {
                let device = made.copy();
                device.crash_at_flush(flush, phase);
                let life = live(&device, seed, 120, anything);
                for survivor in 0..2 {
                    let note = format!("seed {seed}, flush {flush} of {flushes}, {phase:?}, survivor {survivor}");
                    check(&device.recover(seed * 1_000 + flush * 10 + survivor), &life, &note);
                }
            }
        }
    }
}

#[test]
fn what_was_synced_survives_a_power_cut_at_any_call() {
    for seed in seeds(4) {
        let made = made(BLOCKS, seed);
        let trial = made.copy();
        live(&trial, seed, 150, anything);
        let calls = trial.calls();
        let mut random = SplitMix64::new(seed);
        for _ in 0..60 {
            let call = 1 + random.below(calls);
            let device = made.copy();
            device.crash_at_call(call);
            let life = live(&device, seed, 150, anything);
            for survivor in 0..2 {
                let note = format!("seed {seed}, call {call} of {calls}, survivor {survivor}");
                check(&device.recover(seed * 1_000 + call * 10 + survivor), &life, &note);
            }
        }
    }
}

#[test]
fn deltas_that_make_room_for_each_other_survive_a_power_cut() {
    for seed in seeds(2) {
        let made = made(BLOCKS, seed);
        let trial = made.copy();
        let whole = live(&trial, seed, 400, records);
        println!("seed {seed}: {:?}", whole.deltas);
        assert!(
            whole.deltas.kept > 60 && whole.deltas.pushed_out > 5,
            "{:?}",
            whole.deltas
        );
        let calls = trial.calls();
        let mut random = SplitMix64::new(seed);
        for _ in 0..20 {
            let call = 1 + random.below(calls);
            let device = made.copy();
            device.crash_at_call(call);
            let life = live(&device, seed, 400, records);
            for survivor in 0..2 {
                let note = format!("seed {seed}, call {call} of {calls}, survivor {survivor}");
                check(&device.recover(seed * 1_000 + call * 10 + survivor), &life, &note);
            }
        }
    }
}
