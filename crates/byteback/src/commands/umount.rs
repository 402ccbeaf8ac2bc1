//! `byteback umount`: ends the tracking of a folder, and waits until its daemon has ended in good
//! order.
//!
//! The mount is gone from its place at once. If something still holds it (another mount namespace
//! has a copy), the command says so after two seconds, and after half a minute leaves the rest to
//! the daemon, as `--lazy` does.

use std::path::PathBuf;
use std::time::Duration;

use byteback_control::{Client, ErrorKind, TreeService};
use byteback_daemon::StateFolder;
use byteback_mount::mount_table;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::ending::{self, Ending, HolderLine, Waited};
use crate::error::{CommandError, Result};
use crate::settings::Settings;
use crate::tracked_folder;
use crate::volume_losses;
use crate::when;

/// How long to wait after a lazy unmount, before the rest is left to the programs that still use
/// the folder.
const LAZY_TIMEOUT: Duration = Duration::from_secs(3);

/// Flags of `umount`.
#[derive(Args, Debug)]
pub(crate) struct UmountArguments {
    /// The tracked folder, or where it is mounted
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Detach at once, even while programs use it; files that they have open are tracked until they
    /// close them
    #[arg(long)]
    lazy: bool,
    /// Wait at most this long while something still holds the mount, such as another mount
    /// namespace; then leave the rest to the daemon, as with --lazy
    #[arg(long, value_name = "DURATION", default_value = "30s", conflicts_with = "lazy")]
    wait: String,
}

#[derive(Serialize)]
struct Summary {
    directory: String,
    /// Whether the daemon has ended.
    ended: bool,
    /// Whether the daemon was already dead, and only its mount was removed.
    leftover: bool,
    /// The holders that keep the daemon alive, if it has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_by: Option<Vec<HolderLine>>,
}

pub(crate) fn run(arguments: &UmountArguments, settings: &Settings) -> Result<()> {
    let wait_ns = when::duration(&arguments.wait).map_err(CommandError::new)?;
    let patience = Duration::from_nanos(wait_ns.unsigned_abs());
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
        return end_daemon(arguments.lazy, patience, settings, folder, &daemon);
    }
    if let Some(folder) = &folder
        && mount_table::at(&point).is_none()
        && let Some(pid) = folder.ending_owner()
    {
        // The system unmounted it a moment ago.
        return finish(
            ending::wait(folder, &Ending::of(pid), patience, settings.output),
            folder,
            pid,
            settings,
        );
    }
    let is_mounted = mount_table::at(&point).is_some();
    let is_protected = folder
        .as_ref()
        .is_some_and(|folder| folder.protected_directory().is_some());
    if !is_mounted && !is_protected {
        return Err(CommandError::new(format!("{} is not mounted", point.display()))
            .next("'byteback status' lists the folders that are."));
    }
    byteback_mount::remove_leftover(&point).map_err(|error| CommandError::new(error.to_string()))?;
    if mount_table::at(&point).is_some() {
        return Err(CommandError::new(format!(
            "{} is mounted, but its daemon cannot be reached",
            point.display()
        ))
        .next("If it was mounted by another user or with another --state-dir, unmount it in the same way."));
    }
    if let Some(folder) = &folder {
        // The volume is not coming back at once, so its directory may be written to.
        folder.release_directory()?;
        if let Some(reason) = volume_losses::reason(folder, None) {
            return Err(volume_losses::unmounted(folder, &reason));
        }
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
                held_by: None,
            },
        );
    }
    output.say(format!(
        "{} is unmounted: its daemon had died, and what it left behind is removed.",
        point.display()
    ))?;
    output.say("  Files that were being changed then will be read whole by the next backup.")
}

fn end_daemon(
    is_lazy: bool,
    patience: Duration,
    settings: &Settings,
    folder: &StateFolder,
    daemon: &Client,
) -> Result<()> {
    let status = daemon.status()?;
    let pid = i32::try_from(status.pid).ok().and_then(Pid::from_raw);
    // Watched before any request: the number cannot come to mean another process.
    let ending = Ending::of(status.pid);
    match (is_lazy, pid) {
        (true, Some(pid)) => {
            kill_process(pid, Signal::TERM).map_err(|errno| {
                CommandError::new(format!("cannot signal the daemon (process {}): {errno}", status.pid))
            })?;
        }
        _ => match daemon.unmount() {
            // The daemon may have ended before its answer arrived.
            Err(error) if error.kind == ErrorKind::Gone && !is_still_there(folder) => {}
            Err(error) => {
                return Err(CommandError::from(error).next(
                    "To detach it now and let it end when the last program closes its files: byteback umount --lazy",
                ));
            }
            Ok(()) => {}
        },
    }
    let waited = match is_lazy {
        false => ending::wait(folder, &ending, patience, settings.output),
        true if ending.ends_within(LAZY_TIMEOUT) => Waited::Ended,
        true => match ending::holders(folder) {
            Some(held_by) => Waited::Held(held_by),
            None if ending.ends_within(ending::SETTLE_TIMEOUT) => Waited::Ended,
            None => Waited::Settling,
        },
    };
    finish(waited, folder, status.pid, settings)
}

/// Reports how the daemon ended.
fn finish(waited: Waited, folder: &StateFolder, pid: u32, settings: &Settings) -> Result<()> {
    if let Waited::Settling = waited {
        return Err(CommandError::new(format!(
            "{} is unmounted, but its daemon (process {pid}) has not ended after {} s",
            folder.directory().display(),
            ending::SETTLE_TIMEOUT.as_secs()
        ))
        .next("It is still writing its log; check again later with 'byteback status'."));
    }
    if let (Waited::Ended, Some(reason)) = (&waited, volume_losses::reason(folder, None)) {
        return Err(volume_losses::unmounted(folder, &reason));
    }
    let output = settings.output;
    let directory = folder.directory().display().to_string();
    let held_by = match &waited {
        Waited::Held(held_by) => Some(held_by),
        Waited::Ended | Waited::Settling => None,
    };
    if output.json {
        return output.object(
            "summary",
            &Summary {
                directory,
                ended: held_by.is_none(),
                leftover: false,
                held_by: held_by.map(|held_by| HolderLine::all(held_by)),
            },
        );
    }
    output.say(format!("{directory} is no longer tracked."))?;
    let Some(held_by) = held_by else {
        return Ok(());
    };
    output.say(format!("  Still, {}.", ending::held_words(held_by)))?;
    output.say(format!(
        "  The daemon (process {pid}) tracks changes made through that, and ends when nothing holds it any more."
    ))
}

fn is_still_there(folder: &StateFolder) -> bool {
    Client::connect(&folder.socket()).is_ok()
}
