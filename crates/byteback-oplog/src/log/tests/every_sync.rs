//! Recovery at every sync point, none left out: small histories that are first run to count the
//! syncs of the log's disk, and then run again for each of them, with the power lost before, in the
//! middle of and after that sync, for several draws of what the disk and the tracked tree are like
//! afterwards; and once more with the power lost again at each sync of the recovery itself.
//!
//! After each loss the log must open, no consumer's change may be missing (the checks of
//! [`World`]), no epoch may come again, and the history must go on to a good end.
//!
//! `BYTEBACK_SURVIVORS` asks for more draws at each point; a failure says which point and draw to
//! look at.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use byteback_host::sim::CrashPhase;

use super::tree::{ROOT, Uid};
use super::world::{Doom, History, World};
use crate::{Close, LogError};

const PHASES: [CrashPhase; 3] = [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After];

type Script = fn(&mut World) -> Result<(), LogError>;

/// A history, the size of its intent file, and the seed of whatever it leaves to chance.
struct Story {
    name: &'static str,
    half_sectors: u64,
    seed: u64,
    script: Script,
}

const STORIES: [Story; 5] = [
    Story {
        name: "two files, saved, written again",
        half_sectors: 2048,
        seed: 1,
        script: saved_and_written_again,
    },
    Story {
        name: "a save by rename, twice",
        half_sectors: 2048,
        seed: 2,
        script: saved_by_rename,
    },
    Story {
        name: "an intent file that fills up",
        half_sectors: 2,
        seed: 3,
        script: more_files_than_intents,
    },
    Story {
        name: "two consumers, one stands still",
        half_sectors: 4,
        seed: 4,
        script: two_consumers,
    },
    Story {
        name: "stopped, changed by others, started",
        half_sectors: 2048,
        seed: 5,
        script: changed_while_stopped,
    },
];

fn save(world: &mut World, consumer: &'static str) -> Result<(), LogError> {
    world.cut(consumer)?;
    world.advance(consumer)
}

/// Closes what can be closed, after a time in which nothing happens.
fn close(world: &mut World) -> Result<(), LogError> {
    world.pass(Duration::from_millis(50));
    world.checkpoint(Close::All, false)
}

fn create(world: &mut World, name: &str) -> Uid {
    let log = world.log();
    world.create(Some(&log), ROOT, name, false)
}

fn write(world: &mut World, file: Uid, at: usize, byte: u8) -> Result<(), LogError> {
    let log = world.log();
    world.write(Some(&log), file, at, &[byte; 24])
}

fn saved_and_written_again(world: &mut World) -> Result<(), LogError> {
    let (one, two) = (create(world, "a"), create(world, "b"));
    write(world, one, 0, 1)?;
    write(world, two, 30, 2)?;
    save(world, "ann")?;
    close(world)?;
    // Clean files: each of these takes an intent.
    write(world, one, 8, 3)?;
    world.cut("ann")?;
    write(world, one, 50, 4)?;
    write(world, two, 0, 5)?;
    world.advance("ann")?;
    // A file that is changed while it is being closed stays open.
    world.pass(Duration::from_millis(50));
    world.checkpoint(Close::All, true)?;
    write(world, two, 60, 6)?;
    save(world, "ann")?;
    close(world)
}

fn saved_by_rename(world: &mut World) -> Result<(), LogError> {
    let file = create(world, "a");
    write(world, file, 0, 1)?;
    save(world, "ann")?;
    close(world)?;
    for byte in [2, 3] {
        let new = create(world, "b");
        write(world, new, 0, byte)?;
        world.tree.settle(new);
        let log = world.log();
        world.rename(Some(&log), (ROOT, "b"), (ROOT, "a"));
        world.cut("bob")?;
        write(world, new, 20, byte)?;
        world.advance("bob")?;
        close(world)?;
    }
    save(world, "ann")
}

fn more_files_than_intents(world: &mut World) -> Result<(), LogError> {
    let files: Vec<Uid> = ["a", "b", "c", "d"].map(|name| create(world, name)).to_vec();
    save(world, "ann")?;
    close(world)?;
    for (byte, file) in (1..).zip(&files) {
        write(world, *file, 0, byte)?;
        write(world, *file, 40, byte)?;
    }
    save(world, "ann")?;
    close(world)?;
    for (byte, file) in (9..).zip(files.iter().rev()) {
        write(world, *file, 10, byte)?;
    }
    Ok(())
}

fn two_consumers(world: &mut World) -> Result<(), LogError> {
    let file = create(world, "a");
    save(world, "ann")?;
    for byte in [1, 2] {
        write(world, file, usize::from(byte) * 20, byte)?;
        save(world, "bob")?;
        close(world)?;
    }
    let log = world.log();
    world.chmod(Some(&log), file, 0o600);
    world.cut("ann")?;
    world.abandon("ann")?;
    world.truncate(Some(&log), file, 30)?;
    save(world, "bob")?;
    world.reset("bob")?;
    save(world, "ann")?;
    close(world)
}

fn changed_while_stopped(world: &mut World) -> Result<(), LogError> {
    let (one, two) = (create(world, "a"), create(world, "b"));
    write(world, one, 0, 1)?;
    write(world, two, 0, 1)?;
    save(world, "ann")?;
    world.clean_stop();
    if world.log.is_none() {
        world.pass(Duration::from_millis(30));
        world.write(None, one, 5, b"by somebody else")?;
        world.rename(None, (ROOT, "b"), (ROOT, "c"));
        world.pass(Duration::from_millis(30));
        world.sync_tree();
        world.restart();
    }
    if world.power_losses == 0 {
        write(world, two, 40, 2)?;
    }
    save(world, "ann")
}

/// The rest works on as if nothing had happened.
fn afterlife(world: &mut World) -> Result<(), LogError> {
    let files: Vec<Uid> = world
        .tree
        .inodes
        .iter()
        .filter(|(_, inode)| !inode.is_dir)
        .map(|(uid, _)| *uid)
        .collect();
    for file in files {
        write(world, file, 3, 0xee)?;
    }
    world.check_all("after the last words");
    for consumer in ["ann", "bob"] {
        save(world, consumer)?;
    }
    close(world)?;
    world.check_all("in the end");
    world.kill();
    world.restart();
    Ok(())
}

/// The counts of one run.
struct Ran {
    /// Syncs of the log's disk until the story was over, or since the last loss.
    syncs: u64,
    /// See [`World::start_syncs_max`].
    start_syncs_max: u64,
    /// See [`World::losses_in_recovery`].
    losses_in_recovery: u32,
}

/// One run. Where the planned loss comes later than the end of the story (it was counted with what
/// closes the log), it comes in the afterlife.
fn run(story: &Story, doom: &Doom) -> Ran {
    let history = History::default();
    let reported = history.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::doomed(story.seed, story.half_sectors, reported, doom);
        // One that lost the power at its birth lives through the whole story afterwards.
        if let Err(error) = (story.script)(&mut world) {
            world.tolerate(&error);
        }
        let syncs = world.disk.counters().syncs;
        let mut lives = 0;
        while let Err(error) = afterlife(&mut world) {
            world.tolerate(&error);
            lives += 1;
            assert!(lives < 4, "{error}");
        }
        assert!(
            world.power_losses > 0 || doom.first.is_none(),
            "the power was to be lost, and was not"
        );
        Ran {
            syncs,
            start_syncs_max: world.start_syncs_max,
            losses_in_recovery: world.losses_in_recovery,
        }
    }));
    outcome.unwrap_or_else(|failure| {
        for line in history.lines() {
            eprintln!("  {line}");
        }
        eprintln!("the story '{}', {doom:?}", story.name);
        std::panic::resume_unwind(failure);
    })
}

fn survivors(default: u64) -> u64 {
    let asked = std::env::var("BYTEBACK_SURVIVORS").ok();
    asked.and_then(|number| number.parse().ok()).unwrap_or(default)
}

#[test]
fn log_misses_no_change_if_power_is_lost_at_any_sync() {
    let mut runs = 0;
    for story in &STORIES {
        let syncs = run(story, &Doom::default()).syncs;
        assert!(syncs > 20, "the story '{}' has {syncs} syncs only", story.name);
        for nth in 1..=syncs {
            for phase in PHASES {
                for survivor in 0..survivors(2) {
                    let doom = Doom {
                        first: Some((nth, phase)),
                        at_starts: Vec::new(),
                        survivor,
                    };
                    run(story, &doom);
                    runs += 1;
                }
            }
        }
    }
    assert!(runs > 800, "{runs}");
}

#[test]
fn recovery_misses_no_change_if_power_fails_at_any_of_its_syncs() {
    let story = &STORIES[0];
    let syncs = run(story, &Doom::default()).syncs;
    // The syncs of an opening, a scan and the note that tracking begins: of the start after each
    // loss, and of the last one, after a kill.
    let losses = (1..=syncs).flat_map(|nth| PHASES.map(|phase| (nth, phase)));
    let starts = losses.map(|first| {
        let doom = Doom {
            first: Some(first),
            ..Doom::default()
        };
        run(story, &doom).start_syncs_max
    });
    let start_syncs = starts.max().unwrap_or(0);
    assert!(start_syncs > 1, "a start takes {start_syncs} syncs");
    let mut losses_in_recovery = 0;
    for nth in 1..=syncs {
        // The last number lies beyond the start.
        for again in 1..=start_syncs + 1 {
            let draw = nth * (start_syncs + 1) + again;
            let phase = |of: u64| PHASES[(of % 3) as usize];
            for survivor in 0..survivors(1) {
                let doom = Doom {
                    first: Some((nth, phase(draw))),
                    at_starts: vec![(again, phase(draw / 3)), (again / 2 + 1, phase(draw / 9))],
                    survivor,
                };
                losses_in_recovery += u64::from(run(story, &doom).losses_in_recovery);
            }
        }
    }
    assert!(
        losses_in_recovery > syncs,
        "{losses_in_recovery} losses were within a recovery, after {syncs} syncs"
    );
}
