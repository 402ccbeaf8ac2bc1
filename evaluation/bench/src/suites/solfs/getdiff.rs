//! The calls of a backup program to the mount: freezing a file (`delta_open`), all pages of its
//! changes (`delta_getdiff`), and moving its mark (`delta_close`), by number of versions (section
//! 4.3).
//!
//! The product's own daemon serves the calls; the changes come from a program that writes through
//! the mount.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use byteback_extents::{ByteRange, ExtentSet};
use byteback_ioctl::DeltaFile;

use super::{Findings, Setting, tell};
use crate::SuiteError;
use crate::alternate::Samples;
use crate::figure::{Cell, Figure, GoalRow, Limit, Panel};
use crate::random::Random;
use crate::rig::byteback::Byteback;
use crate::rig::interrupt;
use crate::rig::scratch::Scratch;

const FILE_BYTES: u64 = 10 << 20;
const CHANGED_BYTES: u64 = 2 << 20;
const WRITE_BYTES: u64 = 1024;
const DEPTHS: [u64; 3] = [1, 10, 50];
const DEPTH_OF_THE_GOAL: u64 = 10;
const CALLS_IN_ROUND: usize = 20;
const READER: &str = "reader";

/// Runs the part.
///
/// # Errors
/// If a program fails, or the reported ranges are not the written ones.
pub(crate) fn run(setting: &Setting<'_>) -> Result<Findings, SuiteError> {
    let scratch = Scratch::create(&Scratch::default_parent()?, 1 << 30)?;
    let byteback = Byteback::locate(scratch.folder("home")?)?;
    let folder = scratch.folder("data")?;
    let mount = byteback.mount(&folder, None)?;
    let calls = ["delta_open", "delta_getdiff, all pages", "delta_close"];
    let mut panel = Panel::new("The calls of one backup of a file", "versions", "ms", &calls);
    let mut goals = Vec::new();
    for depth in DEPTHS {
        tell(&format!("delta_getdiff over {depth} versions"));
        let mut spent = [(); 3].map(|()| Samples::default());
        for round in 0..setting.options.runs {
            interrupt::check()?;
            let path = folder.join(format!("file {depth} {round}"));
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
            let mut random = Random::new(depth * 100 + round as u64);
            let written = write_versions(&file, depth, &mut random)?;
            for _ in 0..CALLS_IN_ROUND {
                let started = Instant::now();
                let frozen = DeltaFile::open(&file, READER, None)?;
                let open_ms = started.elapsed().as_secs_f64() * 1e3;
                let started = Instant::now();
                let ranges = frozen.ranges().collect::<Result<Vec<_>, _>>()?;
                let getdiff_ms = started.elapsed().as_secs_f64() * 1e3;
                let told = ranges.iter().map(|range| ByteRange::new(range.offset, range.end()));
                if !told.eq(written.iter().map(Some)) {
                    return Err(
                        format!("{}: the reported ranges differ from the written ranges", path.display()).into(),
                    );
                }
                let started = Instant::now();
                frozen.close()?;
                let close_ms = started.elapsed().as_secs_f64() * 1e3;
                for (samples, ms) in spent.iter_mut().zip([open_ms, getdiff_ms, close_ms]) {
                    samples.push(ms);
                }
            }
        }
        let [_, getdiff, _] = &spent;
        if depth == DEPTH_OF_THE_GOAL {
            let name = "delta_getdiff over 10 versions, through the mount";
            goals.push(GoalRow::new(name, "ms", Limit::AtMost(1.7), getdiff));
        }
        panel.push(
            depth.to_string(),
            spent.iter().map(|samples| Some(Cell::from(samples))).collect(),
        );
    }
    mount.unmount()?;
    scratch.remove()?;
    Ok(Findings {
        figures: vec![Figure {
            id: "getdiff",
            title: "The calls of a backup program (section 4.3)".to_owned(),
            about: "As above, but through the mount of the running daemon: 2 MiB of 1 KiB writes in the given number \
                    of versions, each kept by another consumer's mark. `delta_open` ends the epoch, commits the log \
                    and freezes the file; a page of `delta_getdiff` has up to 1,000 ranges."
                .to_owned(),
            panels: vec![panel],
        }],
        goals,
    })
}

/// Writes the versions, each behind the mark of another consumer. Returns the ranges that were
/// written.
fn write_versions(file: &File, depth: u64, random: &mut Random) -> Result<ExtentSet, SuiteError> {
    let mut bytes = vec![0; usize::try_from(FILE_BYTES)?];
    random.fill(&mut bytes);
    file.write_all_at(&bytes, 0)?;
    DeltaFile::open(file, READER, None)?.commit()?;
    let mut written = ExtentSet::new();
    let mut piece = vec![0; usize::try_from(WRITE_BYTES)?];
    for version in 0..depth {
        for _ in 0..CHANGED_BYTES / WRITE_BYTES / depth {
            let at = random.below(FILE_BYTES - WRITE_BYTES);
            // Data that differs in each byte, so that trimming keeps all of it.
            file.read_exact_at(&mut piece, at)?;
            piece.iter_mut().for_each(|byte| *byte ^= 0x5a);
            file.write_all_at(&piece, at)?;
            ByteRange::new(at, at + WRITE_BYTES)
                .into_iter()
                .for_each(|range| written.insert(range));
        }
        if version + 1 < depth {
            DeltaFile::open(file, &format!("other {version}"), None)?.commit()?;
        }
    }
    Ok(written)
}
