//! Power cuts, at any flush and at any call: recovery gives a state that was promised.
//!
//! The tree after each step is kept. The tree after a crash must be the one after a step since
//! everything was last synced, but for files that were synced by themselves after that step: these
//! are as they were when they were synced, or as they were being synced.

use std::collections::BTreeSet;

use super::model::{Model, Node, Step, differs};
use super::*;
use byteback_host::sim::CrashPhase;

/// History of a volume before the power cut.
struct Life {
    /// The tree before the first step, and after each one that was answered.
    trees: Vec<Model>,
    /// Files that were synced, by the tree that they are of.
    synced: Vec<(usize, u32)>,
    /// Directories that were synced: after a crash their names are as they were then, or as they
    /// became.
    synced_directories: Vec<(usize, u32)>,
    /// The last tree that was synced as a whole.
    whole: usize,
    /// The step in progress.
    last: Option<Step>,
    deltas: DeltaCounts,
}

/// So much of a call is written at once, on a volume with the shortest segments.
const WRITE_STEP_LEN_BYTES: usize = 16 * BLOCK_LEN_BYTES;

/// The next step.
type Draw = fn(&mut SplitMix64, &Model) -> Step;

/// Anything, and often the sync of a file.
fn anything(random: &mut SplitMix64, model: &Model) -> Step {
    match random.below(8) {
        0 | 1 => model
            .of(|node| node.mode >> 12 == 8)
            .last()
            .map_or(Step::Sync, |file| Step::SyncFile(*file)),
        2 if random.coin() => {
            let directories = model.of(|node| node.is_directory() && node.links > 0);
            Step::SyncFile(directories[random.below(directories.len() as u64) as usize])
        }
        _ => Step::draw(random, model),
    }
}

/// A database that makes its journal anew for each transaction, and syncs the directory for its
/// name; beside it other names come and go.
fn journals(random: &mut SplitMix64, model: &Model) -> Step {
    let root = &model.nodes[&1];
    let [Some(dir), Some(database)] = [&b"dir"[..], b"database"].map(|name| root.entries.get(name).copied()) else {
        return match root.entries.contains_key(&b"dir"[..]) {
            true => Step::Make(1, b"database".to_vec(), 0o100_644),
            false => Step::Make(1, b"dir".to_vec(), 0o040_755),
        };
    };
    let name = match random.below(8) {
        0 => b"other".to_vec(),
        1 => b"third".to_vec(),
        _ => b"journal".to_vec(),
    };
    let is_directory = |ino: u32| model.nodes[&ino].is_directory();
    let entry = model.nodes[&dir].entries.get(&name).copied();
    match (random.below(80), entry) {
        (0, _) => Step::Sync,
        (1..=12, _) => Step::SyncFile(dir),
        (13..=18, _) => Step::Write(database, random.below(100_000), random.bytes(300)),
        (19..=24, _) => Step::SyncFile(database),
        (25, Some(_)) => Step::Rename((dir, name), (dir, b"renamed".to_vec()), Rename::Replace),
        (26, Some(ino)) => Step::Link(ino, dir, b"linked".to_vec()),
        (27, _) => Step::Chmod(dir, 0o700 + random.below(8) as u32),
        (28, _) => Step::SetXattr(dir, b"user.name".to_vec(), random.bytes(9)),
        (29, None) => Step::Make(dir, name, 0o040_755),
        (_, None) => Step::Make(dir, name, 0o100_644),
        (30..=49, Some(ino)) if !is_directory(ino) => Step::Write(ino, random.below(9_000), random.bytes(600)),
        (30..=69, Some(ino)) => Step::SyncFile(ino),
        (_, Some(ino)) if is_directory(ino) => Step::RemoveDirectory(dir, name),
        (_, Some(_)) => Step::Unlink(dir, name, random.below(4) == 0),
    }
}

/// A database's changes of one file: small ones here and there, with a sync after every few. They
/// are so numerous that deltas have to make room for each other, and for addresses.
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

/// Fills the volume, and goes on then.
fn filling(random: &mut SplitMix64, model: &Model) -> Step {
    let files = model.of(|node| node.mode >> 12 == 8);
    let len_bytes: u64 = files
        .iter()
        .map(|file| model.nodes[file].content.len.min(1 << 20))
        .sum();
    match (random.below(4), files.len()) {
        (_, 0..6) => Step::Make(1, format!("file {}", random.below(1_000)).into_bytes(), 0o100_644),
        _ if random.below(30) == 0 => Step::Sync,
        (0..=2, _) if len_bytes < 6_900_000 => {
            let file = files[random.below(6) as usize];
            let len = model.nodes[&file].content.len;
            match len < 1 << 20 {
                true => Step::Write(file, len, random.bytes(120_000)),
                false => Step::Write(file, random.below(1 << 20), random.bytes(9_000)),
            }
        }
        (0, _) => Step::fill(random, model),
        (1, _) if random.below(3) == 0 => Step::Sync,
        (1, _) => Step::SyncFile(files[random.below(files.len() as u64) as usize]),
        (2, _) if random.below(3) > 0 => {
            let (at, len) = (random.below(1 << 20), 1 + random.below(20_000) as usize);
            Step::Write(files[random.below(6) as usize], at, random.bytes(len))
        }
        _ => anything(random, model),
    }
}

fn live(device: &SimBlockDevice, mode: DeltaMode, seed: u64, steps: u64, draw: Draw) -> Life {
    let mut random = SplitMix64::new(seed);
    let mut model = Model::new();
    let mut life = Life {
        trees: vec![model.clone()],
        synced: Vec::new(),
        synced_directories: Vec::new(),
        whole: 0,
        last: None,
        deltas: DeltaCounts::default(),
    };
    let Ok(volume) = Volume::open(Arc::new(device.clone()), &options_in(mode)) else {
        return life;
    };
    for _ in 0..steps {
        let step = draw(&mut random, &model).compressible(is_compressed(seed));
        // The result of a read is ignored, as the power may be cut meanwhile.
        let answer = model.on_volume(&volume, &step, "before the crash");
        if let Step::Write(file, offset, bytes) = &step {
            // A long write is several ones, one after the other.
            let written = match &answer {
                _ if device.is_cut() => bytes.len(),
                Ok(written) => *written as usize,
                Err(_) => 0,
            };
            for count in (WRITE_STEP_LEN_BYTES..written).step_by(WRITE_STEP_LEN_BYTES) {
                let mut between = model.clone();
                between.here(&Step::Write(*file, *offset, bytes.clone()), count as u64);
                life.trees.push(between);
            }
        }
        if device.is_cut() {
            life.last = Some(step);
            break;
        }
        if let Ok(made) = answer {
            model.here(&step, made);
            match step {
                Step::Sync => life.whole = life.trees.len(),
                Step::SyncFile(ino) if model.nodes[&ino].is_directory() => {
                    life.synced_directories.push((life.trees.len(), ino));
                }
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
    if life.trees[life.trees.len() - 1].nodes[&ino].is_directory() {
        return Some(without);
    }
    // The change of the sync in progress may be there.
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
                // The file that the name stood for had lost it.
                if let Some(before) = dir.entries.insert(name.clone(), *ino)
                    && let Some(before) = expected.get_mut(&before)
                {
                    before.links -= 1;
                }
            }
        }
    }
    for (step, dir) in life.synced_directories.iter().filter(|(step, _)| *step > at) {
        let entry = |tree: &BTreeMap<u32, Node>, name: &Vec<u8>| tree.get(dir)?.entries.get(name).copied();
        let since = || life.trees[*step..].iter().map(|tree| &tree.nodes);
        let names = since().chain([&expected]).filter_map(|tree| tree.get(dir));
        let names: BTreeSet<Vec<u8>> = names.flat_map(|dir| dir.entries.keys().cloned()).collect();
        let is_lost = |name: &&Vec<u8>| since().all(|tree| entry(tree, name) != entry(&expected, name));
        let is_there_still = since().all(|tree| tree.get(dir).is_some_and(|dir| dir.links > 0));
        if let Some(name) = names.iter().find(is_lost) {
            return Some(format!(
                "directory {dir} was synced after step {step}, without {name:?}"
            ));
        }
        let is_same = |tree: &Node| {
            expected
                .get(dir)
                .is_some_and(|dir| (dir.mode, &dir.xattrs) == (tree.mode, &tree.xattrs))
        };
        if is_there_still && !since().filter_map(|tree| tree.get(dir)).any(is_same) {
            return Some(format!(
                "directory {dir} was synced after step {step}, with other attributes"
            ));
        }
    }
    let named = expected.iter().filter(|(_, node)| node.links > 0);
    let mut wrong = named.filter_map(|(ino, node)| Some(format!("file {ino}: {}", differs(volume, *ino, node)?)));
    wrong.next()
}

/// The power goes again while a volume is recovered, perhaps more than once.
fn crashed_again(device: &SimBlockDevice, random: &mut SplitMix64) -> SimBlockDevice {
    let mut device = device.copy();
    for _ in 0..random.below(3) {
        let open = |device: &SimBlockDevice| Volume::open(Arc::new(device.clone()), &options());
        let trial = device.copy();
        drop(open(&trial));
        let calls = trial.calls();
        device.crash_at_call(1 + random.below(calls));
        drop(open(&device));
        device = device.recover(random.next_u64());
    }
    device
}

fn check(device: &SimBlockDevice, life: &Life, note: &str) {
    let device = &crashed_again(device, &mut SplitMix64::new(life.trees.len() as u64));
    // The checkpoint is whole whatever was written after it.
    assert_sound(device, &format!("{note}: before it was recovered"));
    let open = || Volume::open(Arc::new(device.clone()), &options()).unwrap_or_else(|error| panic!("{note}: {error}"));
    let mut volume = open();
    if life.trees.len().is_multiple_of(2) {
        // Recovered by a program that changed nothing.
        volume.close().unwrap();
        assert_sound(device, &format!("{note}: recovered and closed"));
        volume = open();
    }
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
        life.last
            .as_ref()
            .map(|step| format!("{step:?}").chars().take(200).collect::<String>()),
        short.join("\n")
    );
}

#[test]
fn what_was_synced_survives_a_power_cut_at_any_flush() {
    for seed in seeds(4) {
        let made = made(BLOCKS, seed);
        let trial = made.copy();
        live(&trial, mode_of(seed), seed, 120, anything);
        let flushes = trial.flushes();
        for flush in 1..=flushes {
            for phase in [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After] {
                let device = made.copy();
                device.crash_at_flush(flush, phase);
                let life = live(&device, mode_of(seed), seed, 120, anything);
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
        live(&trial, mode_of(seed), seed, 150, anything);
        let calls = trial.calls();
        let mut random = SplitMix64::new(seed);
        for _ in 0..60 {
            let call = 1 + random.below(calls);
            let device = made.copy();
            device.crash_at_call(call);
            let life = live(&device, mode_of(seed), seed, 150, anything);
            for survivor in 0..2 {
                let note = format!("seed {seed}, call {call} of {calls}, survivor {survivor}");
                check(&device.recover(seed * 1_000 + call * 10 + survivor), &life, &note);
            }
        }
    }
}

/// Few segments are free, and after the power cut all logs are to go on.
#[test]
fn what_was_synced_on_a_full_volume_survives_a_power_cut() {
    for seed in seeds(2) {
        let made = made(BLOCKS, seed);
        let trial = made.copy();
        live(&trial, mode_of(seed), seed, 260, filling);
        let calls = trial.calls();
        let filled = Volume::open(Arc::new(trial.recover(seed)), &options()).unwrap();
        println!("seed {seed}: {calls} calls, {:?}", filled.usage());
        let mut random = SplitMix64::new(seed);
        for _ in 0..5 {
            let call = calls / 2 + random.below(calls / 2);
            let device = made.copy();
            device.crash_at_call(call);
            let life = live(&device, mode_of(seed), seed, 260, filling);
            let note = format!("seed {seed}, call {call} of {calls}");
            check(&device.recover(seed * 1_000 + call), &life, &note);
        }
    }
}

/// Directories are synced without a checkpoint where that will do.
#[test]
fn names_in_a_directory_that_was_synced_survive_a_power_cut() {
    for seed in seeds(4) {
        let made = made(BLOCKS, seed);
        let trial = made.copy();
        let whole = live(&trial, mode_of(seed), seed, 400, journals);
        let calls = trial.calls();
        println!(
            "seed {seed}: {} syncs of directories, {calls} calls",
            whole.synced_directories.len()
        );
        let mut random = SplitMix64::new(seed);
        for _ in 0..60 {
            let call = 1 + random.below(calls);
            let device = made.copy();
            device.crash_at_call(call);
            let life = live(&device, mode_of(seed), seed, 400, journals);
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
        let whole = live(&trial, DeltaMode::Inode, seed, 400, records);
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
            let life = live(&device, DeltaMode::Inode, seed, 400, records);
            for survivor in 0..2 {
                let note = format!("seed {seed}, call {call} of {calls}, survivor {survivor}");
                check(&device.recover(seed * 1_000 + call * 10 + survivor), &life, &note);
            }
        }
    }
}

#[test]
fn deltas_in_the_main_area_survive_a_power_cut() {
    for seed in seeds(2) {
        let mode = [DeltaMode::Main, DeltaMode::Both][(seed % 2) as usize];
        let made = made(BLOCKS, seed);
        let trial = made.copy();
        let whole = live(&trial, mode, seed, 800, Step::record);
        println!("seed {seed}: {:?}", whole.deltas);
        assert!(whole.deltas.packed > 40, "{:?}", whole.deltas);
        let calls = trial.calls();
        let mut random = SplitMix64::new(seed);
        for _ in 0..20 {
            let call = 1 + random.below(calls);
            let device = made.copy();
            device.crash_at_call(call);
            let life = live(&device, mode, seed, 800, Step::record);
            for survivor in 0..2 {
                let note = format!("seed {seed}, {mode:?}, call {call} of {calls}, survivor {survivor}");
                check(&device.recover(seed * 1_000 + call * 10 + survivor), &life, &note);
            }
        }
    }
}

/// A node that the checkpoint has changes and is synced, and then is given up, by an end before it,
/// and that is synced: the second one was not found again.
#[test]
fn what_is_cut_off_after_it_was_synced_stays_so() {
    // In a direct node; below an indirect one that stays; and below one that goes.
    for (pages, cut) in [([1_000, 1_001], 10), ([3_000, 4_100], 3_500), ([3_000, 4_100], 10)] {
        for is_cut in [false, true] {
            let device = made(BLOCKS, 1);
            let volume = open_in(&device, DeltaMode::Off);
            let mut model = Model::new();
            let perform = |model: &mut Model, step: Step| assert!(!model.perform(&volume, &step, "before"));
            perform(&mut model, Step::Make(1, b"file".to_vec(), 0o100_644));
            let ino = model.nodes[&1].entries[&b"file"[..]];
            for page in pages {
                perform(&mut model, Step::Write(ino, page * 4096, vec![7; 4096]));
            }
            perform(&mut model, Step::Sync);
            for page in pages {
                perform(&mut model, Step::Write(ino, page * 4096, vec![page as u8; 4096]));
                perform(&mut model, Step::SyncFile(ino));
            }
            if is_cut {
                perform(&mut model, Step::SetLen(ino, cut * 4096));
                perform(&mut model, Step::SyncFile(ino));
                perform(&mut model, Step::Write(ino, 0, vec![5; 9_000]));
                perform(&mut model, Step::SyncFile(ino));
            }
            std::mem::forget(volume);
            let survivor = device.recover(3);
            let volume = open(&survivor);
            model.compare(&volume, &format!("{pages:?}, {cut}, {is_cut}"));
            volume.close().unwrap();
            assert_sound(&survivor, "recovered and closed");
        }
    }
}

/// So many syncs that segments of the log of nodes hold nothing any more that counts, but lead to
/// what does. The power goes again while that is recovered.
#[test]
fn syncs_are_found_again_however_often_recovery_is_interrupted() {
    for seed in seeds(4) {
        let device = made(BLOCKS, seed);
        let volume = open_in(&device, mode_of(seed));
        let mut model = Model::new();
        let mut random = SplitMix64::new(seed);
        let name = |number: u64| format!("file {number}").into_bytes();
        for number in 0..230 {
            let (which, count) = (random.below(number / 50 + 1), 1 + random.below(900) as usize);
            let known = model.nodes[&1].entries.get(&name(which)).copied();
            let file = known.unwrap_or_else(|| {
                model.perform(&volume, &Step::Make(1, name(which), 0o100_644), "before");
                model.nodes[&1].entries[&name(which)]
            });
            model.perform(
                &volume,
                &Step::Write(file, random.below(9_000), random.bytes(count)),
                "before",
            );
            model.perform(&volume, &Step::SyncFile(file), "before");
        }
        let checkpoints = volume.with_state(|state| Ok(state.durability.version)).unwrap();
        std::mem::forget(volume);
        let crashed = device.recover(seed);
        let trial = crashed.copy();
        let volume = open(&trial);
        assert_eq!(
            volume.with_state(|state| Ok(state.durability.version)).unwrap(),
            checkpoints + 1
        );
        let calls = trial.calls();
        for call in 1..=calls {
            let device = crashed.copy();
            device.crash_at_call(call);
            drop(Volume::open(Arc::new(device.clone()), &options()));
            let survivor = device.recover(seed * 1_000 + call);
            let volume = open(&survivor);
            model.compare(&volume, &format!("seed {seed}, call {call} of {calls}"));
            volume.close().unwrap();
            assert_sound(&survivor, &format!("seed {seed}, call {call} of {calls}"));
        }
    }
}

/// A file is taken away from the list of those with deltas in the main area, and its neighbours are
/// synced: after the crash it is there again, and they tell it.
#[test]
fn neighbours_of_a_removed_file_know_it_after_a_power_cut() {
    for removed in 0..3 {
        let device = made(BLOCKS, 1);
        let volume = open_in(&device, DeltaMode::Main);
        let mut random = SplitMix64::new(removed);
        let mut inos = Vec::new();
        let change = |ino: u32, random: &mut SplitMix64| {
            for page in 0..30 {
                assert_eq!(volume.write(ino, page * 4096, &random.bytes(400)).unwrap(), 400);
            }
        };
        for name in [b"0", b"1", b"2"] {
            let new = NewFile {
                mode: 0o100_644,
                ..NewFile::default()
            };
            let ino = volume.make(1, name, &new).unwrap().ino;
            volume.write(ino, 0, &random.bytes(40 * 4096)).unwrap();
            volume.sync().unwrap();
            change(ino, &mut random);
            volume.sync().unwrap();
            inos.push(ino);
        }
        assert!(volume.stats().deltas_in_main > 60);
        volume.unlink(1, format!("{removed}").as_bytes()).unwrap();
        for (number, ino) in (0..).zip(&inos) {
            if number != removed {
                change(*ino, &mut random);
                volume.sync_file(*ino).unwrap();
            }
        }
        std::mem::forget(volume);
        let survivor = device.recover(7);
        let volume = open(&survivor);
        let in_list = volume.stats().deltas_in_main;
        volume.close().unwrap();
        let report = crate::check::check(&survivor, crate::check::CheckOptions::default()).unwrap();
        assert_eq!(in_list, report.main_deltas, "{removed}");
        assert_sound(&survivor, &format!("{removed}"));
    }
}
