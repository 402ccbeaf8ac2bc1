//! The time from a write to the server's acknowledgement, and to the same bytes on another machine,
//! with no delay.
//!
//! A program writes 4 KiB somewhere into a file, once, and waits until it is sent. The time is that
//! from the end of the write call to the last byte of the server's answer that passes the counting
//! proxy. The server answers when the change is durable.
//!
//! Then another machine joins, and the time is that from the end of the write call to a read on
//! that machine's mounted folder that returns the written bytes. A reader polls with short pauses.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::keepers::Ours;
use super::tell;
use crate::alternate::Samples;
use crate::figure::{Cell, Figure, GoalRow, Limit, Panel};
use crate::findings::Findings;
use crate::random::Random;
use crate::rig::interrupt;
use crate::rig::process::wait_for;
use crate::rig::scratch::Scratch;
use crate::{Options, SuiteError};

const WRITES: usize = 200;
const WRITES_QUICK: usize = 50;
const WRITE_BYTES: usize = 4096;
const FILE_BYTES: u64 = 16 << 20;
const TIMEOUT: Duration = Duration::from_secs(60);
/// The interval at which the proxy is watched.
const PAUSE: Duration = Duration::from_micros(100);
const GOAL_MS: f64 = 25.0;

/// Runs the part.
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
        let answered_at = answered_at.ok_or("a write was sent, but not seen on the wire")?;
        times.push(answered_at.saturating_duration_since(written_at).as_secs_f64() * 1e3);
    }
    let there = scratch.folder("there")?;
    let joined = ours.join(&there, scratch.path())?;
    let path = there.join("file");
    wait_for("the file on the second machine", TIMEOUT, || {
        let is_there = fs::metadata(&path).is_ok_and(|file| file.len() == FILE_BYTES);
        Ok((is_there && ours.is_settled()?).then_some(()))
    })?;
    tell(&format!("latency: {writes} writes, to a second machine"));
    let mut elsewhere = Samples::default();
    for _ in 0..writes {
        random.fill(&mut piece);
        let at = random.below(FILE_BYTES - WRITE_BYTES as u64);
        file.write_all_at(&piece, at)?;
        let written_at = Instant::now();
        elsewhere.push(until_there(&path, at, &piece, written_at)?.as_secs_f64() * 1e3);
        // So that the next write does not meet unfinished work of the previous one.
        thread::sleep(Duration::from_millis(random.below(60)));
    }
    drop(file);
    drop(joined);
    drop(ours);
    scratch.remove()?;
    let mut panel = Panel::new("From the end of a write of 4 KiB, no delay", "to", "ms", &["byteback"]);
    panel.push("the server's answer", vec![Some(Cell::from(&times))]);
    panel.push("the same bytes on a second machine", vec![Some(Cell::from(&elsewhere))]);
    let goal = GoalRow::new(
        "a write to the same bytes on a second machine, no delay",
        "ms",
        Limit::AtMost(GOAL_MS),
        &elsewhere,
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

/// The time from `since` until a read at `at` first returns `piece`.
fn until_there(path: &Path, at: u64, piece: &[u8], since: Instant) -> Result<Duration, SuiteError> {
    let file = File::open(path)?;
    let mut read = vec![0; piece.len()];
    loop {
        interrupt::check()?;
        if file.read_exact_at(&mut read, at).is_ok() && read == piece {
            return Ok(since.elapsed());
        }
        if since.elapsed() > TIMEOUT {
            return Err(format!("a write did not arrive at {}", path.display()).into());
        }
        thread::sleep(PAUSE);
    }
}
