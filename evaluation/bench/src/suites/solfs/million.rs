//! A million tracked files: the time to list the changes after 100 of them were written, and the
//! daemon's memory.
//!
//! The files are in a thousand folders; the product's own daemon tracks them, and its own command
//! lists the changes. The mount's first scan of the tree is reported, too.

use std::fs;
use std::path::Path;
use std::time::Instant;

use byteback_control::{ChangesCursor, Client, CutRequest, Outcome, TreeService};

use super::{Findings, Setting, tell};
use crate::SuiteError;
use crate::alternate::Samples;
use crate::figure::{Cell, Figure, GoalRow, Limit, Panel};
use crate::random::Random;
use crate::rig::byteback::Byteback;
use crate::rig::interrupt;
use crate::rig::process::run as run_program;
use crate::rig::scratch::Scratch;

const FOLDERS: usize = 1000;
const FILES_IN_FOLDER: usize = 1000;
const FILES_IN_FOLDER_QUICK: usize = 100;
const TOUCHED: usize = 100;
const CONSUMER: &str = "bench";

/// Runs the part.
///
/// # Errors
/// If a program fails, or the listed changes are not those that were made.
pub(crate) fn run(setting: &Setting<'_>) -> Result<Findings, SuiteError> {
    let in_folder = if setting.options.quick {
        FILES_IN_FOLDER_QUICK
    } else {
        FILES_IN_FOLDER
    };
    let files = FOLDERS * in_folder;
    let scratch = Scratch::create(&Scratch::default_parent()?, files as u64 * 5000)?;
    check_inodes(scratch.path(), files as u64)?;
    let byteback = Byteback::locate(scratch.folder("home")?)?;
    let folder = scratch.folder("data")?;
    tell(&format!("making {files} files"));
    for index in 0..FOLDERS {
        interrupt::check()?;
        let below = folder.join(format!("folder{index}"));
        fs::create_dir(&below)?;
        for file in 0..in_folder {
            fs::write(below.join(format!("file{file}")), b"some bytes")?;
        }
    }
    tell("mounting them");
    let (mount, mount_s) = {
        let started = Instant::now();
        (byteback.mount(&folder, None)?, started.elapsed().as_secs_f64())
    };
    let consumers = |verb: &str, epoch: Option<&str>| {
        let mut command = byteback.command();
        command.args(["consumers", verb, CONSUMER]).args(epoch).arg(&folder);
        run_program(&mut command)
    };
    let epoch = consumers("begin", None)?.text();
    consumers("done", Some(epoch.trim()))?;

    let client = Client::connect(&byteback.socket(&folder)?)?;
    let (mut command_ms, mut request_ms, mut resident) = (Samples::default(), Samples::default(), Samples::default());
    // The same files each time, so that each round lists equally many.
    let mut random = Random::new(files as u64);
    let touched: Vec<_> = (0..TOUCHED)
        .map(|_| {
            format!(
                "folder{}/file{}",
                random.below(FOLDERS as u64),
                random.below(in_folder as u64)
            )
        })
        .collect();
    for round in 0..=setting.options.runs * 2 {
        tell(&format!("round {round}"));
        for name in &touched {
            fs::write(folder.join(name), format!("round {round}"))?;
        }
        let mut command = byteback.command();
        command.args(["changes", "--json", "--consumer", CONSUMER]).arg(&folder);
        let finished = run_program(&mut command)?;
        let started = Instant::now();
        let listed = list(&client)?;
        let elapsed_ms = started.elapsed().as_secs_f64() * 1e3;
        if !(TOUCHED * 9 / 10..=TOUCHED).contains(&listed) {
            return Err(format!("{TOUCHED} files were written, but {listed} are listed").into());
        }
        if round > 0 {
            command_ms.push(finished.wall_s * 1e3);
            request_ms.push(elapsed_ms);
            resident.push(mount.resident_bytes()? as f64 / 1e6);
        }
    }
    let peak_mb = mount.cost()?.peak_bytes as f64 / 1e6;
    drop(client);
    tell("unmounting");
    mount.unmount()?;
    scratch.remove()?;

    let mut panel = Panel::new(format!("{files} tracked files"), "what", "", &["measured"]);
    let mut push = |name: &str, cell: Cell| panel.push(name, vec![Some(cell)]);
    push("the command `byteback changes` (ms)", Cell::from(&command_ms));
    push("the request alone (ms)", Cell::from(&request_ms));
    push("resident memory of the daemon (MB)", Cell::from(&resident));
    push(
        "its peak, the first look at the tree included (MB)",
        Cell::from(peak_mb),
    );
    push("first mount, with the first look (s)", Cell::from(mount_s));
    Ok(Findings {
        figures: vec![Figure {
            id: "million",
            title: "A million tracked files".to_owned(),
            about: format!(
                "{FOLDERS} folders; {TOUCHED} files are written through the mount, then the changes since a mark are listed."
            ),
            panels: vec![panel],
        }],
        goals: vec![
            GoalRow::new(
                format!("`changes` with {files} files, the command"),
                "ms",
                Limit::AtMost(20.0),
                &command_ms,
            ),
            GoalRow::new(
                format!("`changes` with {files} files, the request"),
                "ms",
                Limit::AtMost(20.0),
                &request_ms,
            ),
            GoalRow::new(
                format!("resident memory with {files} files"),
                "MB",
                Limit::AtMost(150.0),
                &resident,
            ),
        ],
    })
}

/// Requests the list as the command does. Returns the number of nodes listed.
fn list(client: &Client) -> Result<usize, SuiteError> {
    let request = CutRequest {
        look_only: true,
        ..CutRequest::of(CONSUMER)
    };
    let cut = client.cut(&request)?;
    let mut nodes = 0;
    let mut cursor = ChangesCursor::default();
    loop {
        let page = client.changes(cut.cut, &cursor)?;
        nodes += page.nodes.len();
        match page.next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    client.finish(cut.cut, &Outcome::Abandoned)?;
    Ok(nodes)
}

fn check_inodes(place: &Path, needed: u64) -> Result<(), SuiteError> {
    let space = rustix::fs::statvfs(place)?;
    // File systems without a fixed number report 0.
    if space.f_files > 0 && space.f_favail < needed + needed / 50 {
        return Err(format!(
            "{} has room for {} files, but {needed} are needed; set the environment variable TMPDIR to a larger place",
            place.display(),
            space.f_favail
        )
        .into());
    }
    Ok(())
}
