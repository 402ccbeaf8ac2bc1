//! CPU of the whole system while applications are replayed at their recorded pace (Fig. 14, section
//! 5.2.2).
//!
//! All traces run at the same time, each in a thread of its own, at their recorded pace, except
//! that no pause is longer than a limit that the report names: only idle time is left out. The
//! system's CPU time is all non-idle time of its processors, whatever used it, so the machine must
//! be quiet. Beside it is the time charged to the replaying threads and the daemon, which other
//! programs do not disturb. The recorded programs' own computing is not part of a replay: a mount's
//! overhead is compared with system calls alone, the strictest measure there is.
//!
//! Nothing is removed between the rounds: for half a minute ext4 does not reuse a deleted inode,
//! and checks all of them whenever a file is created, which was more than half of a round's CPU and
//! hid the comparison.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::applications;
use super::test_bed::{self, Variant};
use super::{Findings, Setting, tell};
use crate::SuiteError;
use crate::alternate::Samples;
use crate::figure::{Cell, Figure, GoalRow, Limit, Panel};
use crate::rig::scratch::Scratch;
use crate::traces::{self, Pace, Trace, Unmasked};

const GAP_MAX: Duration = Duration::from_millis(250);
const GAP_MAX_QUICK: Duration = Duration::from_millis(20);
/// Rounds are long, and CPU time varies less than elapsed time.
const ROUNDS: usize = 3;
const ROUNDS_QUICK: usize = 7;
/// The time for which ext4 keeps deleted inodes before it reuses them (35 s, if they were not yet
/// written back).
const INODES_REST: Duration = Duration::from_secs(40);
/// The space that each replay keeps on the disk until the end.
const REPLAY_LEN_BYTES: u64 = 1 << 30;

/// Ticks of `/proc/stat` in a second.
fn ticks_per_s() -> f64 {
    // SAFETY: it only reads a constant of the system.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if ticks > 0 { ticks as f64 } else { 100.0 }
}

/// Non-idle CPU time of all processors since the start of the system, seconds.
fn busy_s() -> Result<f64, SuiteError> {
    let text = fs::read_to_string("/proc/stat")?;
    busy_ticks(&text)
        .map(|ticks| ticks as f64 / ticks_per_s())
        .ok_or_else(|| "cannot parse /proc/stat".into())
}

/// User, nice, system, interrupts and soft interrupts; without idle, waiting and stolen time.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let numbers: Vec<u64> = line
        .split_whitespace()
        .map_while(|number| number.parse().ok())
        .collect();
    [0, 1, 2, 5, 6].into_iter().map(|column| numbers.get(column)).sum()
}

/// The cost of a round in one variant, CPU seconds.
#[derive(Clone, Copy, Default)]
struct Spent {
    system_s: f64,
    processes_s: f64,
    wall_s: f64,
}

/// Replays all traces at their recorded pace in all variants.
///
/// # Errors
/// If anything fails.
pub(crate) fn run(setting: &Setting<'_>) -> Result<Findings, SuiteError> {
    let Some(traces) = applications::load(setting)? else {
        return Ok(Findings::default());
    };
    let variants = [Variant::Native, Variant::Untracked, Variant::Tracked];
    let (gap_max, rounds) = if setting.options.quick {
        (GAP_MAX_QUICK, ROUNDS_QUICK)
    } else {
        (GAP_MAX, ROUNDS)
    };
    let replays = (rounds * variants.len()) as u64;
    let scratch = Scratch::create(&Scratch::default_parent()?, replays * REPLAY_LEN_BYTES)?;
    tell("recorded pace: waiting until the file system has finished its removals");
    thread::sleep(INODES_REST);
    let mut spent: BTreeMap<Variant, Vec<Spent>> = BTreeMap::new();
    for round in 0..rounds {
        tell(&format!("recorded pace: round {} of {rounds}", round + 1));
        for turn in 0..variants.len() {
            let variant = variants[(turn + round) % variants.len()];
            // One at a time, because a second daemon would add to the system's CPU.
            let place = scratch.folder(&format!("{round}-{turn}"))?;
            let cost = one(&traces, variant, &place, gap_max, setting)?;
            spent.entry(variant).or_default().push(cost);
        }
    }
    scratch.remove()?;
    let of = |variant: Variant, value: fn(&Spent) -> f64| spent[&variant].iter().map(value).collect::<Samples>();
    let names = variants.map(Variant::name);
    let mut panel = Panel::new("CPU time at recorded pace", "what", "", &names);
    let row = |value: fn(&Spent) -> f64| variants.map(|variant| Some(Cell::from(&of(variant, value)))).to_vec();
    panel.push("the whole system (s)", row(|spent| spent.system_s));
    panel.push("replaying threads and daemon (s)", row(|spent| spent.processes_s));
    panel.push("elapsed (s)", row(|spent| spent.wall_s));
    let processors = thread::available_parallelism()?.get() as f64;
    let load: Vec<Samples> = variants
        .iter()
        .map(|&variant| {
            let (system, wall) = (of(variant, |spent| spent.system_s), of(variant, |spent| spent.wall_s));
            system.over(&wall).map(|share| share / processors * 100.0)
        })
        .collect();
    panel.push(
        "load of the system (%); paper: 8.3 and 8.5",
        load.iter().map(|load| Some(Cell::from(load))).collect(),
    );
    let ratio = |base: Variant, value: fn(&Spent) -> f64| of(Variant::Tracked, value).over(&of(base, value));
    let goal = |name: &str, samples: Samples| GoalRow::new(name, "", Limit::AtMost(1.05), &samples);
    Ok(Findings {
        figures: vec![Figure {
            id: "figure-14-cpu",
            title: "CPU at recorded pace (Fig. 14, text)".to_owned(),
            about: format!(
                "All traces at the same time, no pause longer than {} ms. The recorded programs' own computing is not part of it.",
                gap_max.as_millis()
            ),
            panels: vec![panel],
        }],
        goals: vec![
            goal(
                "CPU of the whole system at recorded pace, exact / native",
                ratio(Variant::Native, |spent| spent.system_s),
            ),
            goal(
                "CPU of the whole system at recorded pace, tracking on / off",
                ratio(Variant::Untracked, |spent| spent.system_s),
            ),
            goal(
                "CPU of replay and daemon at recorded pace, tracking on / off",
                ratio(Variant::Untracked, |spent| spent.processes_s),
            ),
        ],
    })
}

fn one(
    traces: &[Trace],
    variant: Variant,
    place: &std::path::Path,
    gap_max: Duration,
    setting: &Setting<'_>,
) -> Result<Spent, SuiteError> {
    let mut ready = test_bed::make(place, &[variant], setting.placement, |backing| {
        traces.iter().try_for_each(|trace| {
            let folder = backing.join(&trace.name);
            fs::create_dir(&folder)?;
            trace.unpack_initial(&folder)
        })
    })?;
    let ready = &mut ready[0];
    let unmasked = Unmasked::begin();
    let (daemon_before_s, busy_before_s, started) = (ready.cost()?.cpu_s, busy_s()?, Instant::now());
    let replayed: Result<Vec<f64>, String> = thread::scope(|scope| {
        let workers: Vec<_> = traces
            .iter()
            .map(|trace| {
                let (target, unmasked) = (ready.root().join(&trace.name), &unmasked);
                scope.spawn(move || {
                    let replayed = traces::replay(trace, &target, Pace::Recorded { gap_max }, false, unmasked);
                    replayed
                        .map(|replayed| replayed.cpu_s)
                        .map_err(|error| error.to_string())
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err("a replay panicked".to_owned())))
            .collect()
    });
    // Pending work of a tracked mount for the replay belongs to its cost.
    thread::sleep(Duration::from_secs(6));
    let wall_s = started.elapsed().as_secs_f64();
    let spent = Spent {
        system_s: busy_s()? - busy_before_s,
        processes_s: replayed?.iter().sum::<f64>() + ready.cost()?.cpu_s - daemon_before_s,
        wall_s,
    };
    drop(unmasked);
    ready.unmount()?;
    Ok(spent)
}

#[cfg(test)]
mod tests {
    #[test]
    fn busy_is_what_is_neither_idle_nor_waiting() {
        let stat = "cpu  10 1 20 5000 300 4 5 60 7 0\ncpu0 1 1 1 1\n";
        assert_eq!(super::busy_ticks(stat), Some(10 + 1 + 20 + 4 + 5));
        assert_eq!(super::busy_ticks("cpu  10 1\n"), None);
    }
}
