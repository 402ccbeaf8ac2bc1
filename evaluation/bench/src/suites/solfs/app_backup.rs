//! Backing up the changes that applications made: time, traffic and CPU after each trace (Fig. 13).
//!
//! For each trace its initial tree is backed up, the trace is replayed through the mount, and then
//! Byteback and rsync bring the change to their servers, over a link of 100 Mbit/s. Each round
//! begins anew; the two take turns in going first. Both copies are compared with the folder in the
//! end.

use std::collections::BTreeMap;
use std::fs;

use super::{Findings, Setting, applications, tell};
use crate::SuiteError;
use crate::alternate::Samples;
use crate::compare::compare;
use crate::figure::{Cell, Chart, Figure, Panel};
use crate::report::OURS;
use crate::rig::byteback::Byteback;
use crate::rig::rsync::Rsync;
use crate::rig::scratch::{self, Scratch};
use crate::traces::{self, Pace, Trace, Unmasked};

const LINK_BITS_PER_S: u64 = 100_000_000;
const RSYNC: &str = "rsync";
const CONTENDERS: [&str; 2] = [OURS, RSYNC];
const ROUNDS: usize = 3;

/// The cost of a transfer.
#[derive(Clone, Copy)]
struct Transfer {
    time_ms: f64,
    traffic_kib: f64,
    client_cpu_ms: f64,
    server_cpu_ms: f64,
}

/// Measures all traces.
///
/// # Errors
/// If a program fails, or a contender's copy on the server differs from the folder.
pub(crate) fn run(setting: &Setting<'_>) -> Result<Findings, SuiteError> {
    let Some(traces) = applications::load(setting)? else {
        return Ok(Findings::default());
    };
    let rounds = if setting.options.quick { 1 } else { ROUNDS };
    let mut all: BTreeMap<(usize, &'static str), Vec<Transfer>> = BTreeMap::new();
    for round in 0..rounds {
        for (index, trace) in traces.iter().enumerate() {
            tell(&format!("backup after {}, round {} of {rounds}", trace.name, round + 1));
            for (name, transfer) in one(trace, round)? {
                all.entry((index, name)).or_default().push(transfer);
            }
        }
    }
    let panel = |title: &str, unit: &str| {
        Panel::new(title, "trace", unit, &CONTENDERS).drawn_as(Chart::Bars { logarithmic: true })
    };
    let mut panels = [
        panel("Time of a backup", "ms"),
        panel("Traffic", "KiB"),
        panel("CPU of client and server", "ms"),
    ];
    let values: [fn(&Transfer) -> f64; 3] = [
        |transfer| transfer.time_ms,
        |transfer| transfer.traffic_kib,
        |transfer| transfer.client_cpu_ms + transfer.server_cpu_ms,
    ];
    let mut less = Panel::new(
        "Less than rsync, over all traces",
        "what",
        "%",
        &["byteback", "paper: SolFS against hash-based ones"],
    );
    let papers = [Some(71.0), None, Some(70.0)];
    for ((panel, value), paper) in panels.iter_mut().zip(values).zip(papers) {
        let mut sums = [0.0; 2];
        for (index, trace) in traces.iter().enumerate() {
            let cells = CONTENDERS.map(|name| all[&(index, name)].iter().map(value).collect::<Samples>());
            for (sum, samples) in sums.iter_mut().zip(&cells) {
                *sum += samples.median();
            }
            panel.push(
                trace.name.clone(),
                cells.iter().map(|samples| Some(Cell::from(samples))).collect(),
            );
        }
        panel.push("all", sums.map(|sum| Some(Cell::from(sum))).to_vec());
        less.push(
            panel.title.clone(),
            vec![
                Some(Cell::from((1.0 - sums[0] / sums[1]) * 100.0)),
                paper.map(Cell::from),
            ],
        );
    }
    let [time, traffic, cpu] = panels;
    Ok(Findings {
        figures: vec![Figure {
            id: "figure-13",
            title: "Backing up what applications changed (Fig. 13)".to_owned(),
            about: "A backup after each trace, over a link of 100 Mbit/s. rsync (-aH --delete) runs against its own daemon and reads the folder \
                    where it really lies."
                .to_owned(),
            panels: vec![time, traffic, cpu, less],
        }],
        goals: Vec::new(),
    })
}

fn one(trace: &Trace, round: usize) -> Result<[(&'static str, Transfer); 2], SuiteError> {
    let scratch = Scratch::create(&Scratch::default_parent()?, 2 << 30)?;
    let byteback = Byteback::locate(scratch.folder("home")?)?;
    let (folder, point, copy) = (
        scratch.folder("data")?,
        scratch.folder("mounted")?,
        scratch.folder("copy")?,
    );
    trace.unpack_initial(&folder)?;
    let rsync = |bits_per_s| Rsync::new(&copy, scratch.path()).over_link(bits_per_s);
    // Without this option rsync misses changes within one second.
    let options = ["-aH", "--delete", "--no-whole-file", "--modify-window=-1"];
    rsync(u64::MAX).transfer(&folder, &options)?;
    let server = byteback.serve(&scratch.folder("store")?)?;
    byteback.init(&server, &folder, "trace")?;
    let mount = byteback.mount(&folder, Some(&point))?;
    byteback.backup(&server, &mount, |_| ())?;
    traces::replay(trace, &point, Pace::FullSpeed, false, &Unmasked::begin())?;

    server.limit_link(Some(LINK_BITS_PER_S));
    let mut snapshot = None;
    let mut transfers = Vec::new();
    for turn in 0..2 {
        if (turn + round).is_multiple_of(2) {
            let backup = byteback.backup(&server, &mount, |_| ())?;
            snapshot = backup.summary.snapshot_id;
            let transfer = Transfer {
                time_ms: backup.wall_s * 1e3,
                traffic_kib: backup.wire.total() as f64 / 1024.0,
                client_cpu_ms: backup.client_cpu_s() * 1e3,
                server_cpu_ms: backup.server.cpu_s * 1e3,
            };
            transfers.push((OURS, transfer));
        } else {
            let done = rsync(LINK_BITS_PER_S).transfer(&folder, &options)?;
            let transfer = Transfer {
                time_ms: done.wall_s * 1e3,
                traffic_kib: done.wire.total() as f64 / 1024.0,
                client_cpu_ms: done.client.cpu_s * 1e3,
                server_cpu_ms: done.server.cpu_s * 1e3,
            };
            transfers.push((RSYNC, transfer));
        }
    }
    server.limit_link(None);
    let restored = scratch.path().join("restored");
    let snapshot = snapshot.ok_or("a backup made no snapshot")?;
    byteback.restore(&folder, snapshot, &restored, |_| ())?;
    let comparison = compare(&folder, &restored, |_| ())?;
    if !comparison.is_equal() {
        return Err(format!(
            "{}: the restored data differs: {}",
            trace.name,
            comparison.told.join("; ")
        )
        .into());
    }
    // rsync was not asked to keep extended attributes.
    if Some(traces::tree_hash(&copy)?) != trace.final_hash {
        return Err(format!(
            "{}: rsync's copy on its server differs from the recorded tree",
            trace.name
        )
        .into());
    }
    mount.unmount()?;
    drop(server);
    fs::remove_dir_all(&restored)?;
    scratch::remove(&copy)?;
    scratch.remove()?;
    transfers.try_into().map_err(|_| "not two transfers".into())
}
