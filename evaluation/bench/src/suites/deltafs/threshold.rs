//! The minimum number of deltas in a page of the main area (Fig. 13): with a lower minimum, more
//! pages are kept as deltas, also longer ones, and a read of a page reads more of the device.
//!
//! The paper shows the bytes written, and the hit rate of its page cache. Above this volume is the
//! kernel's page cache, which keeps whole pages in any case. The cost of deltas for a reader is the
//! blocks read beside the page's own, so those are shown: for each page that the program wrote to,
//! in random order, after mounting.
//!
//! Both are the same in each round, so there is one round.

use byteback_host::block::BLOCK_LEN_BYTES;
use byteback_volume::{DeltaMode, OpenOptions};

use super::applications::{self, OVERWRITING, Program, Seen};
use super::tell;
use crate::SuiteError;
use crate::figure::{Cell, Chart, Figure, Panel};
use crate::findings::Findings;
use crate::rig::interrupt;
use crate::rig::scratch::Scratch;
use crate::traces::{Trace, Unmasked};

const THRESHOLDS: [usize; 7] = [2, 3, 4, 5, 6, 8, 10];

/// The places of deltas: the main area only, or the main area if the inode has no room.
const MODES: [(&str, DeltaMode); 2] = [("main area", DeltaMode::Main), ("both", DeltaMode::Both)];

/// Replays the programs that overwrite much.
///
/// # Errors
/// If anything fails, or a replay ends in another tree than the recorded one.
pub(super) fn run(traces: &[Trace]) -> Result<Findings, SuiteError> {
    let scratch = Scratch::create(&Scratch::default_parent()?, 4 << 30)?;
    let unmasked = Unmasked::begin();
    let columns: Vec<String> = THRESHOLDS.iter().map(usize::to_string).collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut panels = Vec::new();
    for (name, delta_mode) in MODES {
        let titles = [format!("saved, {name}"), format!("blocks read for a page, {name}")];
        for (title, unit) in titles.into_iter().zip(["% of what is written without", "blocks"]) {
            panels.push((
                delta_mode,
                Panel::new(title, "program", unit, &columns).drawn_as(Chart::Bars { logarithmic: false }),
            ));
        }
    }
    for trace in traces.iter().filter(|trace| OVERWRITING.contains(&trace.name.as_str())) {
        let program = applications::prepare(&scratch, trace, &unmasked)?;
        let without = replay(&scratch, &program, DeltaMode::Off, 5)?;
        for panels in panels.chunks_mut(2) {
            let [(delta_mode, saved), (_, read)] = panels else {
                continue;
            };
            let mut cells = [Vec::new(), Vec::new()];
            for packed_min in THRESHOLDS {
                tell(&format!(
                    "threshold: {}, {}, at least {packed_min}",
                    program.trace.name, saved.title
                ));
                let seen = replay(&scratch, &program, *delta_mode, packed_min)?;
                let [saved, read] = &mut cells;
                saved.push(Some(Cell::from(
                    100.0 * (1.0 - seen.written_bytes as f64 / without.written_bytes as f64),
                )));
                read.push(Some(Cell::from(blocks_of_each(&seen, &program))));
            }
            let [of_saved, of_read] = cells;
            saved.push(&program.trace.name, of_saved);
            read.push(&program.trace.name, of_read);
        }
    }
    drop(unmasked);
    scratch.remove()?;
    Ok(Findings {
        figures: vec![Figure {
            id: "threshold",
            title: "Deltas in one page of the main area, at least (Fig. 13)".to_owned(),
            about: "Bytes that reach the device, of those of the same volume without deltas; and blocks that are read from the device for each page that the program wrote to, in random order, after mounting."
                .to_owned(),
            panels: panels.into_iter().map(|(_, panel)| panel).collect(),
        }],
        goals: Vec::new(),
    })
}

fn replay(
    scratch: &Scratch,
    program: &Program<'_>,
    delta_mode: DeltaMode,
    packed_min: usize,
) -> Result<Seen, SuiteError> {
    interrupt::check()?;
    let options = OpenOptions {
        delta_mode,
        packed_min,
        ..OpenOptions::default()
    };
    applications::on_volume(scratch, &options, false, program)
}

/// Blocks read for each page.
fn blocks_of_each(seen: &Seen, program: &Program<'_>) -> f64 {
    seen.cold_read_bytes as f64 / BLOCK_LEN_BYTES as f64 / program.reads.len().max(1) as f64
}
