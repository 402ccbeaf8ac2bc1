//! Traces of real applications: speed, memory and storage (Fig. 14).
//!
//! In each round every variant gets the initial trees of all traces, each in a folder of its own,
//! and the traces are replayed in all variants by turns, at full speed. A replay that does not end
//! in the recorded tree fails the suite.

use std::collections::BTreeMap;
use std::fs;

use super::log_memory::{LogMemory, Seen};
use super::test_bed::{self, Variant};
use super::{Findings, Setting, tell};
use crate::SuiteError;
use crate::alternate::Samples;
use crate::figure::{Cell, Chart, Figure, GoalRow, Limit, Panel};
use crate::rig::interrupt;
use crate::rig::scratch::{self, Scratch};
use crate::traces::{self, Pace, Trace, Unmasked};

const VARIANTS: [Variant; 3] = [Variant::Native, Variant::Untracked, Variant::Tracked];

/// Mean over nine traces, section 5.2.2.
const PAPER_SPEED: f64 = 0.992;
/// After nine traces, with nothing freed, section 5.2.2.
const PAPER_MEMORY_KB: f64 = 470.0;

/// Loads all traces.
pub(crate) fn load(setting: &Setting<'_>) -> Result<Option<Vec<Trace>>, SuiteError> {
    let Some(folder) = setting.traces else {
        tell(
            "no traces: name their folder with --traces DIR or BYTEBACK_BENCH_TRACES; parts that need them are skipped",
        );
        return Ok(None);
    };
    let mut loaded = Vec::new();
    for path in traces::find(folder)? {
        interrupt::check()?;
        loaded.push(Trace::load(&path)?);
    }
    Ok(Some(loaded))
}

/// Replays all traces in all variants.
///
/// # Errors
/// If anything fails, or a replay ends in another tree than the recorded one.
pub(crate) fn run(setting: &Setting<'_>) -> Result<Findings, SuiteError> {
    let Some(traces) = load(setting)? else {
        return Ok(Findings::default());
    };
    let scratch = Scratch::create(&Scratch::default_parent()?, 4 << 30)?;
    let mut times: BTreeMap<(usize, Variant), Samples> = BTreeMap::new();
    let mut totals: BTreeMap<Variant, Samples> = BTreeMap::new();
    let mut daemon_cpu: BTreeMap<Variant, Samples> = BTreeMap::new();
    let mut resident: BTreeMap<Variant, Samples> = BTreeMap::new();
    let mut skipped = 0;
    let mut seen: Vec<Seen> = Vec::new();
    let mut log_files = Samples::default();
    let unmasked = Unmasked::begin();
    for round in 0..=setting.options.runs {
        tell(&format!("traces: round {round} of {}", setting.options.runs));
        let place = scratch.folder("round")?;
        let mut variants = test_bed::make(&place, &VARIANTS, setting.placement, |backing| {
            for trace in &traces {
                let folder = backing.join(&trace.name);
                fs::create_dir(&folder)?;
                trace.unpack_initial(&folder)?;
            }
            Ok(())
        })?;
        let tracked = variants.iter().find(|ready| ready.variant == Variant::Tracked);
        let mut memory = LogMemory::begin(tracked.ok_or("no tracked variant")?)?;
        let mut sums: BTreeMap<Variant, f64> = BTreeMap::new();
        let mut resident_before = BTreeMap::new();
        let mut cpu_before = BTreeMap::new();
        for ready in &variants {
            resident_before.insert(ready.variant, ready.resident_bytes()?);
            cpu_before.insert(ready.variant, ready.cost()?.cpu_s);
        }
        for (index, trace) in traces.iter().enumerate() {
            for turn in 0..variants.len() {
                let ready = &variants[(turn + round) % variants.len()];
                let target = ready.root().join(&trace.name);
                let replayed = setting.placement.run(|| {
                    traces::replay(trace, &target, Pace::FullSpeed, false, &unmasked).map_err(|error| error.to_string())
                })?;
                skipped = skipped.max(replayed.skipped);
                *sums.entry(ready.variant).or_default() += replayed.wall_s;
                if round > 0 {
                    times
                        .entry((index, ready.variant))
                        .or_default()
                        .push(replayed.wall_s * 1e3);
                }
                if ready.variant == Variant::Tracked {
                    memory.look()?;
                }
                // Pending writes must not disturb the next variant.
                test_bed::sync_file_system(&place)?;
            }
        }
        seen.push(memory.end()?);
        for ready in &mut variants {
            let (variant, before) = (ready.variant, resident_before[&ready.variant]);
            let grown = ready.resident_bytes()?.saturating_sub(before);
            let cpu_s = ready.cost()?.cpu_s - cpu_before[&variant];
            if round > 0 {
                totals.entry(variant).or_default().push(sums[&variant] * 1e3);
                resident.entry(variant).or_default().push(grown as f64 / 1024.0);
                daemon_cpu.entry(variant).or_default().push(cpu_s * 1e3);
                if variant == Variant::Tracked {
                    log_files.push(ready.log_file_bytes()? as f64 / 1024.0);
                }
            }
            if round == 0 {
                verify(&traces, ready)?;
            }
            ready.unmount()?;
        }
        scratch::remove(&place)?;
    }

    let names = VARIANTS.map(Variant::name);
    let bars = Chart::Bars { logarithmic: true };
    let mut panel = Panel::new("Time of a replay at full speed", "trace", "ms", &names).drawn_as(bars);
    let mut ratios = Panel::new(
        "Speed, as a ratio",
        "trace",
        "1 = as fast",
        &["tracking on / off", "tracking on / native", "paper: SolFS / F2FS"],
    );
    let mut push = |label: &str, of: &dyn Fn(Variant) -> Samples, paper: Option<f64>| {
        let times = VARIANTS.map(of);
        panel.push(label, times.iter().map(|times| Some(Cell::from(times))).collect());
        let [native, off, on] = &times;
        let cells = vec![
            Some(Cell::from(&off.over(on))),
            Some(Cell::from(&native.over(on))),
            paper.map(Cell::from),
        ];
        ratios.push(label, cells);
    };
    for (index, trace) in traces.iter().enumerate() {
        push(&trace.name, &|variant| times[&(index, variant)].clone(), None);
    }
    push("all", &|variant| totals[&variant].clone(), Some(PAPER_SPEED));
    let on_off = totals[&Variant::Untracked].over(&totals[&Variant::Tracked]);

    let mut costs = Panel::new(
        "The daemon, over all traces",
        "what",
        "",
        &[names[1], names[2], "paper"],
    );
    let two = |of: &BTreeMap<Variant, Samples>| {
        let cell = |variant| of.get(&variant).map(Cell::from);
        vec![cell(Variant::Untracked), cell(Variant::Tracked), None]
    };
    costs.push("CPU time (ms)", two(&daemon_cpu));
    costs.push("growth of resident memory (KiB)", two(&resident));
    let of_log = |value: fn(&Seen) -> u64| seen.iter().map(|seen| value(seen) as f64 / 1000.0).collect::<Samples>();
    let retained = of_log(|seen| seen.retained_bytes);
    let mut push = |name: &str, samples: &Samples, paper: Option<f64>| {
        costs.push(name, vec![None, Some(Cell::from(samples)), paper.map(Cell::from)]);
    };
    push(
        "extents in memory, the most at any look (KB)",
        &of_log(|seen| seen.peak_bytes),
        None,
    );
    push(
        "extents in memory if none were ever written to disk (KB)",
        &retained,
        Some(PAPER_MEMORY_KB),
    );
    push(
        "number of these extents (thousands)",
        &of_log(|seen| seen.extents),
        None,
    );
    push("length of the database (KB)", &of_log(|seen| seen.database_bytes), None);
    costs.push("files of the log (KiB)", vec![None, Some(Cell::from(&log_files)), None]);
    scratch.remove()?;
    Ok(Findings {
        figures: vec![Figure {
            id: "figure-14",
            title: "Traces of real applications (Fig. 14)".to_owned(),
            about: format!(
                "All traces replayed at full speed, without fsync; at most {skipped} operations of a trace concern files that had \
                 lost their names, and are left out. Threads: {}.",
                setting.placement
            ),
            panels: vec![panel, ratios, costs],
        }],
        goals: vec![
            GoalRow::new(
                "tracking on / off: application traces",
                "",
                Limit::AtLeast(0.985),
                &on_off,
            ),
            GoalRow::new(
                "log memory for all traces, nothing given back",
                "KB",
                Limit::AtMost(PAPER_MEMORY_KB),
                &retained,
            ),
        ],
    })
}

fn verify(traces: &[Trace], ready: &test_bed::Ready) -> Result<(), SuiteError> {
    for trace in traces {
        let hash = traces::tree_hash(&ready.root().join(&trace.name))?;
        if trace.final_hash.as_ref() != Some(&hash) {
            let name = ready.variant.name();
            return Err(format!(
                "{}: the replay ({name}) ends in the tree {hash}, not in the recorded tree",
                trace.name
            )
            .into());
        }
    }
    Ok(())
}
