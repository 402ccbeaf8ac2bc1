//! `byteback umount`: ends the tracking of a folder, and waits until its daemon has ended in good order.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use byteback_control::{Client, ErrorKind, TreeService};
use byteback_daemon::StateFolder;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::Serialize;

use crate::error::{CommandError, Result};
use crate::mount_table;
use crate::settings::Settings;
use crate::tracked_folder;

/// How long the daemon may take to settle its log. It only has files to stat, but there may be many.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// How long is waited after a lazy unmount, before the rest is left to whoever still uses the folder.
const LAZY_TIMEOUT: Duration = Duration::from_secs(3);

/// Flags of `umount`.
#[derive(Args, Debug)]
pub(crate) struct UmountArguments {
    /// The tracked folder, or where it is mounted
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Detach at once also while programs use it; what they have open is tracked until they close it
    #[arg(long)]
    lazy: bool,
}

#[derive(Serialize)]
struct Summary {
    directory: String,
    /// Whether the daemon has ended.
    ended: bool,
    /// It was dead already; only its mount was removed.
    leftover: bool,
}

pub(crate) fn run(arguments: &UmountArguments, settings: &Settings) -> Result<()> {
    let point = tracked_folder::canonical(&arguments.dir)?;
    let folder = match tracked_folder::state_folder(&point, settings) {
        Ok(folder) => Some(folder),
        // A mount whose state folder is not known here can still be dead.
        Err(_) if mount_table::at(&point).is_some() => None,
        Err(error) => return Err(error),
    };
    if let Some(folder) = &folder
        && let Some(daemon) = tracked_folder::daemon(folder)?
    {
        return end_daemon(arguments, settings, folder, &daemon);
    }
    if mount_table::at(&point).is_none() {
        return Err(CommandError::new(format!("{} is not mounted", point.display()))
            .next("'byteback status' lists the folders that are."));
    }
    byteback_mount::remove_leftover(&point).map_err(|error| CommandError::new(error.to_string()))?;
    if mount_table::at(&point).is_some() {
        return Err(CommandError::new(format!(
            "{} is mounted, but its daemon cannot be asked",
            point.display()
        ))
        .next("Was it mounted by another user, or with another --state-dir? Unmount it in the same way."));
    }
    let output = settings.output;
    if output.json {
        let directory = point.display().to_string();
        return output.object(
            "summary",
            &Summary {
                directory,
                ended: true,
                leftover: true,
            },
        );
    }
    output.say(format!(
        "{} is free again: its daemon had died, and what it left is removed.",
        point.display()
    ))?;
    output.say("  Files that were being changed then will be read whole by the next backup.")
}

fn end_daemon(arguments: &UmountArguments, settings: &Settings, folder: &StateFolder, daemon: &Client) -> Result<()> {
    let status = daemon.status()?;
    let pid = i32::try_from(status.pid).ok().and_then(Pid::from_raw);
    // Opened before anything is asked of it: the number cannot come to mean another process.
    let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    match (arguments.lazy, pid) {
        (true, Some(pid)) => {
            kill_process(pid, Signal::TERM).map_err(|errno| {
                CommandError::new(format!("cannot signal the daemon (process {}): {errno}", status.pid))
            })?;
        }
        _ => match daemon.unmount() {
            // The daemon may be gone before its answer is.
            Err(error) if error.kind == ErrorKind::Gone && !is_still_there(folder) => {}
            Err(error) => {
                return Err(CommandError::from(error).next(
                    "Or detach it now, and let it end when the last program closes its files: byteback umount --lazy",
                ));
            }
            Ok(()) => {}
        },
    }
    let timeout = if arguments.lazy { LAZY_TIMEOUT } else { END_TIMEOUT };
    let ended = match &process {
        Some(process) => wait_for_end(process, timeout),
        None => !is_still_there(folder),
    };
    if !ended && !arguments.lazy {
        return Err(CommandError::new(format!(
            "{} is unmounted, but its daemon (process {}) has not ended after {} s",
            folder.directory().display(),
            status.pid,
            timeout.as_secs()
        ))
        .next("It is still writing its log; look again in a while with 'byteback status'."));
    }
    let output = settings.output;
    let directory = folder.directory().display().to_string();
    if output.json {
        return output.object(
            "summary",
            &Summary {
                directory,
                ended,
                leftover: false,
            },
        );
    }
    output.say(format!("{directory} is not tracked any more."))?;
    if ended {
        return Ok(());
    }
    output.say(format!(
        "  Programs still have files of it open; the daemon (process {}) tracks these and ends with the last of them.",
        status.pid
    ))
}

fn is_still_there(folder: &StateFolder) -> bool {
    Client::connect(&folder.socket()).is_ok()
}

fn wait_for_end(process: &rustix::fd::OwnedFd, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(count) => return count > 0,
            Err(_) => return false,
        }
    }
}
