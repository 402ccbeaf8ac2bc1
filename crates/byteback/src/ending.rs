//! Waiting for a daemon that is ending, and saying what keeps it.
//!
//! The mount of a folder disappears from its place at once. Its daemon lives on as long as
//! something holds the mounted file system (a copy of the mount in another mount namespace, an open
//! file), and then until its log is settled. No other process may use the folder before that.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use byteback_control::{Client, ErrorKind, Holder, TreeService};
use byteback_daemon::StateFolder;
use byteback_model::ByteString;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;

use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::output::Output;
use crate::tracked_folder;
use crate::wording::{counted, listed};

/// Wait after which the user is told the reason.
const SILENT_FOR: Duration = Duration::from_secs(2);
/// The same, if no holder of the mount is found.
const UNEXPLAINED_FOR: Duration = Duration::from_secs(6);
/// How long a mount waits for a folder that is still held.
const HELD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a daemon may take to settle its log. It only has to stat files, but there may be many.
pub(crate) const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval for polling a daemon whose process cannot be watched.
const PAUSE: Duration = Duration::from_millis(50);
/// Lost answers after which a daemon that accepts requests is not asked again.
const LOST_ANSWERS_MAX: u32 = 200;
/// Holders named in a message; the rest are only counted.
const NAMED_MAX: usize = 4;

/// A holder of a mount, as a JSON line.
#[derive(Debug, Serialize)]
pub(crate) struct HolderLine {
    pid: Option<u32>,
    name: String,
    mounted_at: Option<ByteString>,
    works_there: bool,
    open_files: u64,
}

impl HolderLine {
    pub(crate) fn all(holders: &[Holder]) -> Vec<Self> {
        let line = |holder: &Holder| Self {
            pid: holder.pid,
            name: holder.name.clone(),
            mounted_at: holder.point.clone(),
            works_there: holder.works_there,
            open_files: holder.open_files,
        };
        holders.iter().map(line).collect()
    }
}

/// A process whose end is awaited.
pub(crate) struct Ending {
    pid: u32,
    process: Option<OwnedFd>,
    since: Instant,
}

impl Ending {
    /// Watches the process from now on: its number cannot come to mean another process.
    pub(crate) fn of(pid: u32) -> Self {
        let watched = i32::try_from(pid).ok().and_then(Pid::from_raw);
        Self {
            pid,
            process: watched.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
            since: Instant::now(),
        }
    }

    /// Waits until the process has ended, at most until `timeout` after the creation of `self`;
    /// returns whether it has ended.
    pub(crate) fn ends_within(&self, timeout: Duration) -> bool {
        let deadline = self.since + timeout;
        let Some(process) = &self.process else {
            // Most likely the process had ended before it could be watched.
            let is_there = || Path::new(&format!("/proc/{}", self.pid)).exists();
            while is_there() && Instant::now() < deadline {
                std::thread::sleep(PAUSE);
            }
            return !is_there();
        };
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
}

/// State of a folder's daemon after its mount is gone.
pub(crate) enum Waited {
    /// The daemon has ended.
    Ended,
    /// Something still holds the mount.
    Held(Vec<Holder>),
    /// The daemon is still settling its log.
    Settling,
}

/// Waits for the end of a daemon whose mount is gone, and says what the wait is for. `patience`
/// limits the wait while something still holds the mount.
pub(crate) fn wait(folder: &StateFolder, ending: &Ending, patience: Duration, output: Output) -> Waited {
    if ending.ends_within(SILENT_FOR) {
        return Waited::Ended;
    }
    let mut held_by = holders(folder);
    if held_by.as_ref().is_some_and(Vec::is_empty) {
        // A busy machine may just be slow to end a daemon whose mount has no holder.
        if ending.ends_within(UNEXPLAINED_FOR) {
            return Waited::Ended;
        }
        held_by = holders(folder);
    }
    if let Some(held_by) = held_by {
        let (directory, reason) = (folder.directory().display(), held_words(&held_by));
        output.warn(&format!(
            "{directory} is unmounted, but {reason}; waiting up to {} s",
            patience.as_secs()
        ));
        if ending.ends_within(patience) {
            return Waited::Ended;
        }
        if let Some(held_by) = holders(folder) {
            return Waited::Held(held_by);
        }
    }
    match ending.ends_within(SETTLE_TIMEOUT) {
        true => Waited::Ended,
        false => Waited::Settling,
    }
}

/// The holders of a daemon's mount; `None` if there are none, so that the daemon is ending.
pub(crate) fn holders(folder: &StateFolder) -> Option<Vec<Holder>> {
    let client = Client::connect(&folder.socket()).ok()?;
    let detached = client.status().ok()?.detached?;
    (!detached.has_ended).then_some(detached.held_by)
}

/// The holders of a mount, as the second half of a sentence.
pub(crate) fn held_words(holders: &[Holder]) -> String {
    let mut named: Vec<String> = holders.iter().take(NAMED_MAX).map(words).collect();
    match holders.len() {
        0 => {
            return "something still holds it: another mount namespace, or a program of another user (root sees more)"
                .to_owned();
        }
        count if count > NAMED_MAX => named.push(format!("{} more hold it", count - NAMED_MAX)),
        _ => {}
    }
    listed(&named)
}

fn words(holder: &Holder) -> String {
    let name = &holder.name;
    match (holder.pid, &holder.point) {
        (None, Some(point)) => format!("it is still mounted at {point}"),
        (None, None) => "it is still mounted elsewhere".to_owned(),
        (Some(pid), Some(point)) => {
            format!("{name} (process {pid}) is in another mount namespace, where it is still mounted at {point}")
        }
        (Some(pid), None) if holder.open_files > 0 => {
            let files = counted(holder.open_files, "file", "files");
            format!("{name} (process {pid}) has {files} of it open")
        }
        (Some(pid), None) => format!("{name} (process {pid}) has its working directory in it"),
    }
}

/// Waits for a daemon of the folder that is ending, if there is one. If the folder is mounted,
/// `is_mounted` makes the error.
pub(crate) fn wait_for_place(
    folder: &StateFolder,
    output: Output,
    is_mounted: impl Fn(&Client) -> CommandError,
) -> Result<()> {
    let directory = folder.directory().display();
    let mut lost_answers = 0;
    loop {
        let pid = match tracked_folder::daemon(folder)? {
            Some(daemon) => match daemon.status() {
                Ok(status) if status.detached.is_none() => return Err(is_mounted(&daemon)),
                Ok(status) => status.pid,
                // The daemon has ended meanwhile, or is just ending.
                Err(error) if error.kind == ErrorKind::Gone && lost_answers < LOST_ANSWERS_MAX => {
                    lost_answers += 1;
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(error) => return Err(error.into()),
            },
            None => match folder.ending_owner() {
                Some(pid) => pid,
                None => return Ok(()),
            },
        };
        match wait(folder, &Ending::of(pid), HELD_TIMEOUT, output) {
            Waited::Ended => {}
            Waited::Held(held_by) => {
                let message = format!("cannot mount {directory} again yet: {}", held_words(&held_by));
                return Err(CommandError::with_exit(Exit::Locked, message)
                    .next("Stop what holds it, then try again. Until then, changes made there are still tracked."));
            }
            Waited::Settling => {
                let message =
                    format!("cannot use {directory} yet: its previous daemon (process {pid}) is still writing its log");
                return Err(CommandError::with_exit(Exit::Locked, message).next("Try again in a minute."));
            }
        }
    }
}
