//! From a write to the server's answer that it has it, with no delay: what another client would at least wait for.
//!
//! A program writes 4 KiB somewhere into a file, once, and waits until it is sent; the time is that from the end of the write call to the last
//! byte of the server's answer that passes the counting proxy. The server answers when the change is durable.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::keepers::Ours;
use super::tell;
use crate::alternate::Samples;
use crate::figure::{Cell, Figure, GoalRow, Limit, Panel};
use crate::findings::Findings;
use crate::random::Random;
use crate::rig::process::wait_for;
use crate::rig::scratch::Scratch;
use crate::{Options, SuiteError};

const WRITES: usize = 200;
const WRITES_QUICK: usize = 50;
const WRITE_BYTES: usize = 4096;
const FILE_BYTES: u64 = 16 << 20;
const TIMEOUT: Duration = Duration::from_secs(60);
/// How closely the proxy is watched.
const PAUSE: Duration = Duration::from_micros(100);
const GOAL_MS: f64 = 25.0;

/// Measures it.
///
/// # Errors
/// If anything fails.
pub(super) fn run(options: Options) -> Result<Findings, SuiteError> {
    let scratch = Scratch::create(&Scratch::default_parent()?, 1 << 30)?;
    let folder = scratch.folder("folder")?;
    let path = folder.join("file");
    let mut random = Random::new(9);
    let mut bytes = vec![0; usize::try_from(FILE_BYTES)?];
    random.fill(&mut bytes);
    fs::write(&path, &bytes)?;
    let ours = Ours::begin_with(0, &folder, scratch.path())?;
    let file = OpenOptions::new().write(true).open(&path)?;
    let writes = if options.quick { WRITES_QUICK } else { WRITES };
    tell(&format!("latency: {writes} writes"));
    let mut piece = vec![0; WRITE_BYTES];
    let mut times = Samples::default();
    for _ in 0..writes {
        random.fill(&mut piece);
        let wire = ours.wire();
        file.write_all_at(&piece, random.below(FILE_BYTES - WRITE_BYTES as u64))?;
        let written_at = Instant::now();
        let answered_at = wait_for("the server's answer", TIMEOUT, || {
            let answered_at = ours.wait_for_quiet(wire, PAUSE)?;
            Ok(ours.is_settled()?.then_some(answered_at))
        })?;
        let answered_at = answered_at.ok_or("a write was sent unseen")?;
        times.push(answered_at.saturating_duration_since(written_at).as_secs_f64() * 1e3);
    }
    drop(file);
    drop(ours);
    scratch.remove()?;
    let mut panel = Panel::new(
        "From the end of a write to the server's answer",
        "what",
        "ms",
        &["byteback"],
    );
    panel.push("4 KiB, no delay", vec![Some(Cell::from(&times))]);
    let goal = GoalRow::new(
        "a write to the server's answer, no delay",
        "ms",
        Limit::AtMost(GOAL_MS),
        &times,
    );
    Ok(Findings {
        figures: vec![Figure {
            id: "latency",
            title: "How long a change takes".to_owned(),
            about: format!(
                "{writes} writes of 4 KiB, one at a time, on loopback with TLS; the answer says that the change is durable."
            ),
            panels: vec![panel],
        }],
        goals: vec![goal],
    })
}
