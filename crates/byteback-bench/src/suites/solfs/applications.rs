//! Traces of real applications: speed, memory and storage (Fig. 14).
//!
//! In each round every variant gets all traces' initial trees, in a folder each, and the traces are replayed in all variants by turns,
//! at full speed. A replay that does not end in the recorded tree fails the suite.

use std::collections::BTreeMap;
use std::fs;

use super::stand::{self, Variant};
use super::{Findings, Setting, tell};
use crate::SuiteError;
use crate::alternate::Samples;
use crate::figure::{Cell, Figure, GoalRow, Limit, Panel};
use crate::rig::interrupt;
use crate::rig::scratch::{self, Scratch};
use crate::traces::{self, Pace, Trace, Unmasked};

const VARIANTS: [Variant; 3] = [Variant::Native, Variant::Untracked, Variant::Tracked];

/// Loads all traces.
pub(crate) fn load(setting: &Setting<'_>) -> Result<Option<Vec<Trace>>, SuiteError> {
    let Some(folder) = setting.traces else {
        tell("no traces: name their folder with --traces DIR or BYTEBACK_BENCH_TRACES; what needs them is left out");
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
    let mut log_files = Samples::default();
    let unmasked = Unmasked::begin();
    for round in 0..=setting.options.runs {
        tell(&format!("traces: round {round} of {}", setting.options.runs));
        let place = scratch.folder("round")?;
        let mut variants = stand::make(&place, &VARIANTS, setting.placement, |backing| {
            for trace in &traces {
                let folder = backing.join(&trace.name);
                fs::create_dir(&folder)?;
                trace.unpack_initial(&folder)?;
            }
            Ok(())
        })?;
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
                *sums.entry(ready.variant).or_default() += replayed.wall_s;
                if round > 0 {
                    times
                        .entry((index, ready.variant))
                        .or_default()
                        .push(replayed.wall_s * 1e3);
                }
                // What was written must not disturb whoever comes next.
                stand::sync_file_system(&place)?;
            }
        }
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
    let mut panel = Panel::new(
        "Time of a replay at full speed",
        "trace",
        "ms",
        &[names[0], names[1], names[2], "on / off", "on / native"],
    );
    let row = |of: &dyn Fn(Variant) -> Samples| {
        let [native, off, on] = VARIANTS.map(of);
        vec![
            Some(Cell::from(&native)),
            Some(Cell::from(&off)),
            Some(Cell::from(&on)),
            Some(Cell::from(&off.over(&on))),
            Some(Cell::from(&native.over(&on))),
        ]
    };
    for (index, trace) in traces.iter().enumerate() {
        panel.push(trace.name.clone(), row(&|variant| times[&(index, variant)].clone()));
    }
    panel.push("all", row(&|variant| totals[&variant].clone()));
    let on_off = totals[&Variant::Untracked].over(&totals[&Variant::Tracked]);

    let mut costs = Panel::new("The daemon, over all traces", "what", "", &[names[1], names[2]]);
    let two = |of: &BTreeMap<Variant, Samples>| {
        [Variant::Untracked, Variant::Tracked]
            .map(|variant| of.get(&variant).map(Cell::from))
            .to_vec()
    };
    costs.push("CPU time (ms)", two(&daemon_cpu));
    costs.push("growth of resident memory (KiB)", two(&resident));
    costs.push("files of the log (KiB)", vec![None, Some(Cell::from(&log_files))]);
    scratch.remove()?;
    Ok(Findings {
        figures: vec![Figure {
            id: "figure-14",
            title: "Traces of real applications (Fig. 14)".to_owned(),
            about: format!(
                "All traces replayed at full speed, without fsync; threads: {:?}.",
                setting.placement
            ),
            panels: vec![panel, costs],
        }],
        goals: vec![GoalRow::new(
            "tracking on / off: application traces",
            "",
            Limit::AtLeast(0.985),
            &on_off,
        )],
    })
}

fn verify(traces: &[Trace], ready: &stand::Ready) -> Result<(), SuiteError> {
    for trace in traces {
        let hash = traces::tree_hash(&ready.root().join(&trace.name))?;
        if hash != trace.final_hash {
            let name = ready.variant.name();
            return Err(format!(
                "{}: the replay ({name}) ends in the tree {hash}, recorded was {}",
                trace.name, trace.final_hash
            )
            .into());
        }
    }
    Ok(())
}
