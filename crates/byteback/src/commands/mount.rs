//! `byteback mount`: tracks a folder from now on, by a daemon of its own.
//!
//! The order of the start, in the daemon: signals are watched; the folder is compared with its
//! record; it is mounted and served; then the waiting process is told. SIGTERM and SIGINT unmount,
//! lazily if the folder is in use.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use byteback_control::TreeService;
use byteback_daemon::integrity::scrub::ScrubOptions;
use byteback_daemon::{ChecksumOptions, Daemon, DaemonOptions, Doubt, LiveOptions, OnDoubt, StateFolder};
use byteback_mount::cuts::Report;
use byteback_mount::{CacheMode, Mount, MountOptions, Unmount};
use byteback_oplog::{LogOptions, ScanReport};
use byteback_undo::UndoOptions;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::background::{self, StartMessage, Started, Starter};
use crate::binding::Binding;
use crate::configuration::GranularityName;
use crate::consumer_notes;
use crate::daemon_line;
use crate::ending;
use crate::error::{CommandError, Failure, Result};
use crate::exit_code::Exit;
use crate::held_back;
use crate::notify;
use crate::output::Output;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::signals;
use crate::timestamp;
use crate::tracked_folder;
use crate::volume_losses;
use crate::wording::{counted, listed};

/// Flags of `mount`.
#[derive(Args, Debug)]
#[command(
    after_help = "The folder is mounted over itself: its path stays the same, and programs notice nothing.
Modes:
  exact  each write is recorded as it is made (default)
  fast   the kernel gathers small writes, at near-native speed; changed ranges are found by
         comparing pages, and writes that were not synced are lost if the daemon dies"
)]
pub(crate) struct MountArguments {
    /// The folder to track
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Show the tracked folder here instead of over itself
    #[arg(long, value_name = "DIR")]
    at: Option<PathBuf>,
    /// Mount this volume at DIR, which must be empty ('byteback volume create' makes one);
    /// remembered for later mounts
    #[arg(long, value_name = "FILE_OR_DEVICE", conflicts_with = "at")]
    volume: Option<PathBuf>,
    /// How writes pass through the mount
    #[arg(long, value_name = "MODE", default_value = "exact")]
    mode: Mode,
    /// Record changed ranges in this unit (default: from the configuration, else byte)
    #[arg(long, value_name = "UNIT")]
    granularity: Option<GranularityName>,
    /// Record at most this many separate ranges per file (default: from the configuration, else
    /// 131072)
    #[arg(long, value_name = "COUNT")]
    extents_per_file: Option<NonZeroU32>,
    /// Keep what programs overwrite for this long (30m, 2h), so that 'byteback restore --at' can
    /// bring it back; 'off' keeps nothing
    #[arg(long, value_name = "DURATION")]
    undo_window: Option<String>,
    /// Keep at most this much overwritten data in the state folder (default: 1G)
    #[arg(long, value_name = "SIZE")]
    undo_budget: Option<String>,
    #[command(flatten)]
    checksums: ChecksumArguments,
    /// Stay in the foreground, for service managers
    #[arg(long)]
    foreground: bool,
    /// We are the process that was started to stay in the background.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    detached: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Mode {
    Exact,
    Fast,
}

impl MountArguments {
    /// The folder, the place where it is shown, and its volume, as given.
    pub(super) fn places(&self) -> (&Path, Option<&Path>, Option<&Path>) {
        (&self.dir, self.at.as_deref(), self.volume.as_deref())
    }

    /// The same flags for another process, without those that name places.
    pub(super) fn passed_on(&self) -> Vec<OsString> {
        let mut passed_on: Vec<OsString> = vec!["--mode".into(), self.mode.name().into()];
        if let Some(granularity) = self.granularity.and_then(|name| name.to_possible_value()) {
            passed_on.extend(["--granularity".into(), granularity.get_name().into()]);
        }
        if let Some(extents) = self.extents_per_file {
            passed_on.extend(["--extents-per-file".into(), extents.to_string().into()]);
        }
        let undo = [
            ("--undo-window", &self.undo_window),
            ("--undo-budget", &self.undo_budget),
        ];
        for (flag, value) in undo {
            if let Some(value) = value {
                passed_on.extend([flag.into(), value.into()]);
            }
        }
        passed_on.extend(self.checksums.passed_on());
        passed_on
    }

    /// Options of the log: from the flags, else from the configuration.
    fn log_options(&self, settings: &Settings) -> LogOptions {
        let mut log = settings.log;
        log.granularity = self.granularity.or(log.granularity);
        log.extents_per_file = self.extents_per_file.or(log.extents_per_file);
        log.options()
    }
}

/// How sums of what programs write are kept.
#[derive(Args, Clone, Debug)]
pub(super) struct ChecksumArguments {
    /// Keep a checksum of each 4 KiB that programs write, so that silently changed bytes are
    /// noticed and never sent (default of 'sync')
    #[arg(long, overrides_with = "no_checksums")]
    checksums: bool,
    /// Keep no checksums (default of 'mount')
    #[arg(long, overrides_with = "checksums", conflicts_with_all = ["verify_reads", "scrub_rate"])]
    no_checksums: bool,
    /// Also check what programs read: reading damaged bytes fails (implies --checksums)
    #[arg(long)]
    verify_reads: bool,
    /// Check the disk in the background at this many MiB per second; 0 turns it off (implies
    /// --checksums; default: 8)
    #[arg(long, value_name = "MIB")]
    scrub_rate: Option<u32>,
}

impl ChecksumArguments {
    /// The chosen options; `None` if no checksums are kept. `is_usual` is the default without
    /// flags.
    pub(super) fn options(&self, is_usual: bool) -> Option<ChecksumOptions> {
        let is_said = self.checksums || self.verify_reads || self.scrub_rate.is_some();
        let is_wanted = is_said || (is_usual && !self.no_checksums);
        let scrub = match self.scrub_rate {
            Some(0) => None,
            Some(mib_per_s) => Some(ScrubOptions {
                bytes_per_s: u64::from(mib_per_s) << 20,
                ..ScrubOptions::default()
            }),
            None => Some(ScrubOptions::default()),
        };
        is_wanted.then_some(ChecksumOptions {
            verify_reads: self.verify_reads,
            scrub,
        })
    }

    /// The same flags, for the process in the background.
    pub(super) fn passed_on(&self) -> Vec<OsString> {
        let flags = [
            (self.checksums, "--checksums"),
            (self.no_checksums, "--no-checksums"),
            (self.verify_reads, "--verify-reads"),
        ];
        let said = flags.into_iter().filter(|(is_said, _)| *is_said);
        let mut passed_on: Vec<OsString> = said.map(|(_, flag)| flag.into()).collect();
        if let Some(rate) = self.scrub_rate {
            passed_on.extend(["--scrub-rate".into(), rate.to_string().into()]);
        }
        passed_on
    }
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Fast => "fast",
        }
    }
}

/// Findings of the start.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) directory: String,
    mounted_at: String,
    mode: String,
    pid: u32,
    tracked_since: String,
    entries: u64,
    first_time: bool,
    changed_files: u64,
    changed_names: u64,
    unreadable_directories: Vec<String>,
    programs_below: Vec<Below>,
    /// Whether the folder has a `.byteback` of its own, which is hidden while it is mounted.
    shadows_an_entry: bool,
    /// Why this is perhaps not the folder that was tracked before.
    doubt: Option<Doubt>,
}

/// A program that was in the folder before it was mounted, so that its changes bypass the mount.
#[derive(Debug, Serialize, Deserialize)]
struct Below {
    pid: u32,
    name: String,
    works_there: bool,
    open_files: u64,
}

pub(crate) fn run(arguments: &MountArguments, settings: &Settings) -> Result<()> {
    if arguments.detached {
        return run_detached(arguments, settings);
    }
    // Errors in these options are better reported now than by the detached process.
    settings.undo(arguments.undo_window.as_deref(), arguments.undo_budget.as_deref())?;
    let folder = tracked_folder::state_folder(&arguments.dir, settings)?;
    let at = arguments.at.as_deref().map(tracked_folder::canonical).transpose()?;
    if let Some(at) = at.as_ref().filter(|at| !at.is_dir()) {
        return Err(
            CommandError::new(format!("cannot mount at {}: not a directory", at.display()))
                .next("Name an existing directory with --at, or leave it out to mount the folder over itself."),
        );
    }
    if let Some(at) = at.as_ref().filter(|at| *at != folder.directory()) {
        refuse_overlap(folder.directory(), at)?;
    }
    ending::wait_for_place(&folder, settings.output, |daemon| already_mounted(&folder, daemon))?;
    tracked_folder::remove_leftover(&folder)?;
    folder.create()?;
    if let Some(volume) = &arguments.volume {
        refuse_unless_empty(&folder, folder.directory())?;
        folder.set_volume(&tracked_folder::canonical(volume)?)?;
    }
    refuse_what_a_volume_hides(&folder, at.as_deref())?;
    let lost = folder.lost_writes();
    if arguments.foreground {
        return run_foreground(arguments, settings, folder, at);
    }

    let mut child: Vec<OsString> = vec!["--state-dir".into(), settings.state_root()?.into()];
    child.extend(["mount".into(), "--detached".into()]);
    child.extend(arguments.passed_on());
    if let Some(at) = &at {
        child.extend(["--at".into(), at.into()]);
    }
    child.extend(["--".into(), folder.directory().into()]);
    let progress = Progress::new(settings, "mount", None);
    let log = background::log_path(folder.path());
    let started = background::start::<Ready>(&child, &log, |nodes| progress.compared(nodes))?;
    progress.finish();
    match started {
        Started::Ready(ready) => {
            volume_losses::warn(lost.as_ref(), settings.output);
            print_ready(&ready, &folder, settings)
        }
        Started::Failed { code, message, next } => {
            let exit = if code == Exit::Locked.code() {
                Exit::Locked
            } else {
                Exit::Failed
            };
            Err(CommandError::Failed(Failure { exit, message, next }))
        }
    }
}

/// Refuses a directory with files over which a remembered volume would be mounted: new files there
/// would be neither seen nor saved.
pub(super) fn refuse_what_a_volume_hides(folder: &StateFolder, at: Option<&Path>) -> Result<()> {
    match folder.volume()? {
        Some(_) => refuse_unless_empty(folder, at.unwrap_or(folder.directory())),
        None => Ok(()),
    }
}

/// Refuses a directory with files: a volume must not hide any.
fn refuse_unless_empty(folder: &StateFolder, directory: &Path) -> Result<()> {
    let is_empty = || -> std::io::Result<bool> { Ok(std::fs::read_dir(directory)?.next().is_none()) };
    let seen = is_empty().or_else(|error| match error.kind() {
        // A daemon that died has left the directory protected, by a mode that keeps us out as well.
        // The next daemon protects it again.
        std::io::ErrorKind::PermissionDenied if folder.release_directory().is_ok() => is_empty(),
        _ => Err(error),
    });
    if seen.map_err(|error| CommandError::file("read", directory, &error))? {
        return Ok(());
    }
    // The user has to move the directory, which its protection would prevent.
    folder.release_directory()?;
    Err(not_empty(directory))
}

pub(crate) fn not_empty(directory: &Path) -> CommandError {
    let directory = directory.display();
    CommandError::new(format!(
        "{directory} is not empty; its files would be hidden while the volume is mounted there"
    ))
    .next(format!(
        "Move it aside, mount, and copy what is missing into the volume: mv {directory} {directory}.aside && \
         mkdir {directory} && byteback mount {directory}"
    ))
}

/// Refuses overlapping places: a mount that shows itself, or hides the folder below it, would wait
/// for itself.
fn refuse_overlap(directory: &Path, at: &Path) -> Result<()> {
    if !at.starts_with(directory) && !directory.starts_with(at) {
        return Ok(());
    }
    let message = format!(
        "cannot mount {} at {}: one is inside the other",
        directory.display(),
        at.display()
    );
    Err(CommandError::new(message)
        .next("Choose a directory elsewhere, or leave out --at to mount the folder over itself."))
}

pub(super) fn already_mounted(folder: &StateFolder, daemon: &dyn byteback_control::TreeService) -> CommandError {
    let directory = folder.directory().display();
    let at = daemon.status().ok().and_then(|status| status.mounted_at);
    let place = match at.filter(|at| at.as_bytes() != folder.directory().as_os_str().as_encoded_bytes()) {
        Some(at) => format!(", at {at}"),
        None => String::new(),
    };
    CommandError::with_exit(Exit::Locked, format!("{directory} is already mounted{place}")).next(format!(
        "'byteback status {directory}' shows it; 'byteback umount {directory}' ends it."
    ))
}

/// The mount that the signals act upon; `None` before it exists.
pub(super) type Slot = Arc<Mutex<Option<Arc<Mount>>>>;

pub(super) fn watch_signals() -> Result<Slot> {
    let slot = Slot::default();
    let acted_upon = Arc::clone(&slot);
    signals::on_stop_signals(move || {
        let mount = acted_upon.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match mount {
            // Nothing is mounted and nothing tracked yet.
            None => std::process::exit(i32::from(Exit::Interrupted.code())),
            Some(mount) => {
                if mount.unmount(Unmount::IfIdle).is_err() {
                    let _ = mount.unmount(Unmount::Detach);
                }
                if !mount.has_ended() {
                    background::log(
                        "unmounted, but the mount is still in use; waiting for that to end ('byteback status' shows \
                         what uses it)",
                    );
                }
            }
        }
    })?;
    Ok(slot)
}

pub(super) fn start(
    folder: StateFolder,
    at: Option<PathBuf>,
    mode: Mode,
    (log_options, undo, checksums): (LogOptions, Option<UndoOptions>, Option<ChecksumOptions>),
    (live, on_doubt): (Option<LiveOptions>, OnDoubt),
    (settings, slot): (&Settings, &Slot),
    compared: &mut dyn FnMut(u64),
) -> Result<(Daemon, Ready)> {
    let mut options = DaemonOptions::new(MountOptions {
        at,
        report: Report::new(background::log),
        mode: match mode {
            Mode::Exact => CacheMode::Exact,
            Mode::Fast => CacheMode::Fast,
        },
        ..MountOptions::new(folder.directory())
    });
    options.checksums = checksums;
    options.live = live;
    let tree = tracked_folder::open_to_mount(&folder, log_options, undo, on_doubt, compared)?;
    let daemon = Daemon::start(tree, &options)?;
    daemon_line::lend(&daemon, &folder, settings);
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(daemon.mount()));
    let scan: &ScanReport = daemon.tree().scan_report();
    let unreadable = scan.unreadable.iter().map(|(names, error)| {
        let path: PathBuf = names.iter().collect();
        format!("{}: {error}", path.display())
    });
    let below = daemon.mount().programs_below().into_iter().map(|program| Below {
        pid: program.pid,
        name: program.name,
        works_there: program.works_there,
        open_files: program.open_files as u64,
    });
    let ready = Ready {
        directory: daemon.tree().folder().directory().display().to_string(),
        mounted_at: daemon.mount().point().display().to_string(),
        mode: mode.name().to_owned(),
        pid: std::process::id(),
        tracked_since: timestamp::rfc3339(timestamp::now_ns()),
        entries: scan.nodes,
        first_time: scan.is_first,
        changed_files: scan.changed_files,
        changed_names: scan.changed_names,
        unreadable_directories: unreadable.collect(),
        programs_below: below.collect(),
        shadows_an_entry: daemon.mount().shadows_an_entry(),
        doubt: daemon.tree().doubt(),
    };
    Ok((daemon, ready))
}

fn run_foreground(
    arguments: &MountArguments,
    settings: &Settings,
    folder: StateFolder,
    at: Option<PathBuf>,
) -> Result<()> {
    let undo = settings.undo(arguments.undo_window.as_deref(), arguments.undo_budget.as_deref())?;
    let slot = watch_signals()?;
    let progress = Progress::new(settings, "mount", None);
    let known = folder.clone();
    let lost = folder.lost_writes();
    let options = (
        arguments.log_options(settings),
        undo,
        arguments.checksums.options(false),
    );
    let (daemon, ready) = start(
        folder,
        at,
        arguments.mode,
        options,
        (None, OnDoubt::Note),
        (settings, &slot),
        &mut |nodes| progress.compared(nodes),
    )?;
    progress.finish();
    volume_losses::warn(lost.as_ref(), settings.output);
    // A reader that went away does not end the mount.
    let _ = print_ready(&ready, &known, settings);
    notify::ready(settings.notify_socket.as_deref());
    let ended = daemon.run();
    notify::stopping(settings.notify_socket.as_deref());
    Ok(ended?)
}

fn run_detached(arguments: &MountArguments, settings: &Settings) -> Result<()> {
    let mut starter = Starter::detach();
    let began = (|| {
        let folder = tracked_folder::state_folder(&arguments.dir, settings)?;
        let slot = watch_signals()?;
        let mut compared = |nodes: u64| {
            if nodes.is_multiple_of(1024) && !starter.tell(&StartMessage::<Ready>::Compared { nodes }) {
                // The process that started this one is gone.
                std::process::exit(i32::from(Exit::Interrupted.code()));
            }
        };
        let undo = settings.undo(arguments.undo_window.as_deref(), arguments.undo_budget.as_deref())?;
        let options = (
            arguments.log_options(settings),
            undo,
            arguments.checksums.options(false),
        );
        start(
            folder,
            arguments.at.clone(),
            arguments.mode,
            options,
            (None, OnDoubt::Note),
            (settings, &slot),
            &mut compared,
        )
    })();
    match began {
        Ok((daemon, ready)) => {
            background::log(&format!(
                "{} is mounted at {}, mode {}",
                ready.directory, ready.mounted_at, ready.mode
            ));
            if !starter.tell(&StartMessage::Ready(ready)) {
                return Err(CommandError::new(
                    "the command that started the mount has ended; so does the mount",
                ));
            }
            starter.let_go();
            let ended = daemon.run();
            background::log(match &ended {
                Ok(()) => "unmounted cleanly",
                Err(_) => "ended with an error",
            });
            Ok(ended?)
        }
        Err(CommandError::Failed(failure)) => {
            background::log(&failure.message);
            let Failure { exit, message, next } = failure;
            starter.tell(&StartMessage::<Ready>::Failed {
                code: exit.code(),
                message,
                next,
            });
            Err(CommandError::Reported(exit))
        }
        Err(other) => Err(other),
    }
}

fn print_ready(ready: &Ready, folder: &StateFolder, settings: &Settings) -> Result<()> {
    let output = settings.output;
    tracked_folder::warn_of_other_file_systems(folder, output);
    if let Some(doubt) = ready.doubt {
        held_back::warn(folder, doubt, output);
    }
    if let Ok(Some(daemon)) = tracked_folder::daemon(folder)
        && let Ok(status) = daemon.status()
    {
        consumer_notes::warn(&status.consumers, folder, output);
    }
    if output.json {
        return output.object("summary", ready);
    }
    let place = if ready.mounted_at == ready.directory {
        ready.directory.clone()
    } else {
        format!("{} (mounted at {})", ready.directory, ready.mounted_at)
    };
    let mode = if ready.mode == "exact" { "" } else { " (mode fast)" };
    output.say(format!("{place} is tracked from now on{mode}."))?;
    output.say(format!("  {}", found(ready)))?;
    print_found_below(ready, output);
    if Binding::read(folder)?.is_none() {
        output.say(format!(
            "  It is not backed up yet: byteback init {} -r https://HOST:PORT/FOLDER",
            ready.directory
        ))?;
    }
    Ok(())
}

/// Warns about changes that bypass the mount, and files that it hides.
pub(super) fn print_found_below(ready: &Ready, output: Output) {
    print_unreadable(ready, output);
    print_below(&ready.programs_below, output);
    if ready.shadows_an_entry {
        output.warn(
            "the folder has an entry named .byteback; it is saved like everything else, but hidden while the folder is \
             mounted",
        );
    }
}

fn print_unreadable(ready: &Ready, output: Output) {
    for directory in &ready.unreadable_directories {
        output.warn(&format!("cannot compare this directory with the record: {directory}"));
    }
}

/// Programs named in a warning; the rest are only counted.
const BELOW_MAX: usize = 8;

fn print_below(programs: &[Below], output: Output) {
    if programs.is_empty() {
        return;
    }
    let mut named: Vec<String> = programs
        .iter()
        .take(BELOW_MAX)
        .map(|program| match (program.works_there, program.open_files) {
            (true, 0) => format!("{} (pid {}, works in it)", program.name, program.pid),
            (_, files) => {
                let files = counted(files, "open file", "open files");
                format!("{} (pid {}, {files})", program.name, program.pid)
            }
        })
        .collect();
    if programs.len() > BELOW_MAX {
        named.push(format!("{} more", programs.len() - BELOW_MAX));
    }
    output.warn(&format!(
        "changes made by these programs are not seen, because they were in the folder before it was mounted: {}. \
         Restart them; in a shell: cd \"$PWD\"",
        listed(&named)
    ));
}

/// The result of the comparison with the record, as a sentence.
fn found(ready: &Ready) -> String {
    let entries = counted(ready.entries, "entry", "entries");
    if ready.first_time {
        return format!("Recorded {entries}; a first backup will read them all.");
    }
    let mut parts = Vec::new();
    if ready.changed_files > 0 {
        parts.push(counted(ready.changed_files, "file", "files"));
    }
    if ready.changed_names > 0 {
        parts.push(counted(ready.changed_names, "name", "names"));
    }
    if parts.is_empty() {
        return format!("Compared {entries} with the record: nothing had changed while it was not mounted.");
    }
    let verb = if ready.changed_files + ready.changed_names == 1 {
        "was"
    } else {
        "were"
    };
    format!(
        "Compared {entries} with the record: {} {verb} changed while it was not mounted; the next backup reads these \
         files whole.",
        listed(&parts)
    )
}
