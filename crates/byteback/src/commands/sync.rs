//! `byteback sync`: mounts a folder over itself, sends the changes of programs to the server within
//! seconds, and applies the changes of other machines here.
//!
//! The mount is that of `byteback mount` in mode `exact`; the engine that sends and receives runs
//! in a thread of the same process. The order of the start: signals are watched; the folder is
//! mounted; the server is contacted, and an incompatible state is reported before success is. A
//! server that is away is no reason not to start. The order of the end: the mount goes, the engine
//! ends, unsent changes are kept for the next start.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use byteback_backup::BackupError;
use byteback_client::ClientOptions;
use byteback_client::throttle::RateLimits;
use byteback_control::TreeService;
use byteback_daemon::{Daemon, LiveOptions, OnDoubt, StateFolder};
use byteback_host::durable::RealDir;
use byteback_mount::beneath;
use byteback_sync::engine::{EngineError, StopSign, request_start_over};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::mount::{self, ChecksumArguments, Ready};
use crate::background::{self, StartMessage, Started, Starter};
use crate::ending;
use crate::error::{CommandError, Failure, Result};
use crate::exit_code::Exit;
use crate::notify;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::sync_runtime::{RuntimeError, SyncRuntime, SyncSpec};
use crate::throttling;
use crate::tracked_folder::{self, BoundFolder};
use crate::volume_losses;
use crate::when;

/// Longest silence of the server within an exchange; after that the engine tries again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Checksums of the programs' writes are kept by default. Older content without checksums is not
/// reported as damaged; the scrub learns its checksums.
const HAS_CHECKSUMS_USUALLY: bool = true;

/// Flags of `sync`.
#[derive(Args, Debug)]
#[command(
    after_help = "The folder is mounted over itself, as by 'byteback mount', and changes are sent in the order
in which they were made: the server always has the folder as it was at one moment. Changes from
other machines come in as soon as the server has them, also into files that programs have open.
While the server is unreachable, changes wait; they survive the end of this program and a crash.
If two machines change a file at once, both versions are kept: 'byteback conflicts'. Bytes that
changed although no program wrote them are not sent (unless --no-checksums): 'byteback repair'.
'byteback status DIR' shows the state, 'byteback umount DIR' ends sync."
)]
pub(crate) struct SyncArguments {
    /// The folder (default: the bound folder you are in)
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Send a file once it has not changed for this long (0: at once), or after ten times that if
    /// it keeps changing
    #[arg(long, value_name = "DURATION", default_value = "3s")]
    delay: String,
    /// Limit the traffic per second, both directions together: 1MiB; by time of day:
    /// 08:00-18:00=200KiB, also =pause and =unlimited; may be given several times, the last match
    /// counts. Remembered; also changes a sync that is running
    #[arg(long, value_name = "RATE")]
    limit_rate: Vec<String>,
    /// Compare the folder with the server from scratch: where they differ, both versions are kept,
    /// and nothing is removed. For a server or folder that was restored, replaced or moved, and for
    /// a machine that joined again
    #[arg(long, conflicts_with = "accept_removals")]
    start_over: bool,
    /// Remove everywhere what is missing in the folder, as it was removed on purpose
    #[arg(long)]
    accept_removals: bool,
    /// Do not start without an answer if more than this percentage of the folder's files went
    /// missing while it was not in sync
    #[arg(long, value_name = "PERCENT", default_value_t = OnDoubt::GONE_PERCENT_MAX, value_parser = clap::value_parser!(u8).range(0..=100))]
    removals_max: u8,
    #[command(flatten)]
    checksums: ChecksumArguments,
    /// Stay in the foreground, for service managers
    #[arg(long)]
    foreground: bool,
    /// We are the process that was started to stay in the background.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    detached: bool,
}

impl SyncArguments {
    /// The folder, as given.
    pub(super) fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// The limits, which are recorded with the folder.
    pub(super) fn limit_rate(&self) -> &[String] {
        &self.limit_rate
    }

    /// The same flags for another process, without the folder and the recorded limits.
    pub(super) fn passed_on(&self) -> Vec<OsString> {
        let mut passed_on: Vec<OsString> = vec!["--delay".into(), self.delay.clone().into()];
        passed_on.extend(["--removals-max".into(), self.removals_max.to_string().into()]);
        passed_on.extend(self.checksums.passed_on());
        passed_on
    }

    /// The flag that answers a question of one start.
    pub(super) fn flag_for_once(&self) -> Option<&'static str> {
        match (self.start_over, self.accept_removals) {
            (true, _) => Some("--start-over"),
            (false, true) => Some("--accept-removals"),
            (false, false) => None,
        }
    }

    /// Whether the flags make sense.
    pub(super) fn check(&self) -> Result<()> {
        delay(&self.delay)?;
        throttling::limits(&self.limit_rate).map(drop)
    }
}

/// Findings of the start.
#[derive(Debug, Serialize, Deserialize)]
struct SyncReady {
    #[serde(flatten)]
    mount: Ready,
    repository: String,
    connected: bool,
    /// Why the server is not connected.
    problem: Option<String>,
}

impl SyncArguments {
    /// The decision about a directory that is perhaps not the folder.
    fn on_doubt(&self) -> OnDoubt {
        match self.accept_removals || self.start_over {
            true => OnDoubt::Accept,
            false => OnDoubt::Refuse {
                gone_percent_max: self.removals_max,
            },
        }
    }
}

fn delay(text: &str) -> Result<Duration> {
    let is_none = matches!(text.trim(), "0" | "0s" | "0ms");
    let ns = match is_none {
        true => 0,
        false => when::duration(text).map_err(CommandError::new)?,
    };
    Ok(Duration::from_nanos(ns.unsigned_abs()))
}

pub(crate) fn run(arguments: &SyncArguments, settings: &Settings) -> Result<()> {
    if arguments.detached {
        return run_detached(arguments, settings);
    }
    delay(&arguments.delay)?;
    let limits = throttling::limits(&arguments.limit_rate)?;
    let BoundFolder { folder, binding } = tracked_folder::bound_folder(arguments.dir.as_deref(), settings)?;
    if !arguments.limit_rate.is_empty()
        && let Some(daemon) = tracked_folder::daemon(&folder)?
        && daemon
            .status()
            .is_ok_and(|status| status.detached.is_none() && status.sync.is_some())
    {
        return limit_running(&folder, limits, settings);
    }
    ending::wait_for_place(&folder, settings.output, |daemon| {
        mount::already_mounted(&folder, daemon)
    })?;
    // That this machine has joined is better checked here than in the background.
    settings.connect(&binding.repository.server, Some(&binding))?;
    tracked_folder::remove_leftover(&folder)?;
    mount::refuse_what_a_volume_hides(&folder, None)?;
    refuse_bind_mounts(&folder)?;
    let lost = folder.lost_writes();
    if !arguments.limit_rate.is_empty() {
        throttling::change(&folder, |wish| wish.limits = limits)?;
    }
    if arguments.foreground {
        volume_losses::warn(lost.as_ref(), settings.output);
        return run_foreground(arguments, settings, &folder);
    }
    let mut child: Vec<OsString> = vec!["--state-dir".into(), settings.state_root()?.into()];
    child.extend(["-r".into(), binding.repository.to_string().into()]);
    child.extend(settings.passed_on());
    child.extend(["sync".into(), "--detached".into()]);
    child.extend(arguments.passed_on());
    child.extend(arguments.start_over.then(|| "--start-over".into()));
    child.extend(arguments.accept_removals.then(|| "--accept-removals".into()));
    child.extend(["--".into(), folder.directory().into()]);
    let progress = Progress::new(settings, "sync", None);
    let log = background::log_path(folder.path());
    let started = background::start::<SyncReady>(&child, &log, |nodes| progress.compared(nodes))?;
    progress.finish();
    match started {
        Started::Ready(ready) => {
            volume_losses::warn(lost.as_ref(), settings.output);
            print_ready(&ready, &folder, settings)
        }
        Started::Failed { code, message, next } => {
            let exits = [Exit::Locked, Exit::NoRepository, Exit::WrongCredentials];
            let exit = exits.into_iter().find(|exit| exit.code() == code);
            let exit = exit.unwrap_or(Exit::Failed);
            Err(CommandError::Failed(Failure { exit, message, next }))
        }
    }
}

/// Refuses bind mounts in the folder. Mounts hide files that an ordinary user cannot reach. Another
/// file system is recognised by its device number; below a mount of the same one (a bind mount),
/// other files seem to be in the folder, and its own seem to be removed.
fn refuse_bind_mounts(folder: &StateFolder) -> Result<()> {
    let device_of = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    let device = device_of(folder.directory());
    let points = beneath::hidden_in(folder.directory());
    match points
        .into_iter()
        .find(|point| device.is_some() && device_of(point) == device)
    {
        None => Ok(()),
        Some(point) => {
            let message = format!(
                "cannot sync {}: a bind mount at {} hides part of the folder",
                folder.directory().display(),
                point.display()
            );
            Err(CommandError::new(message).next(
                "Files below it would be taken as removed. Unmount it first, and mount it again once sync is running.",
            ))
        }
    }
}

/// The result of a change of limits of a running sync.
#[derive(Serialize)]
struct Limited {
    directory: String,
    limits: Vec<String>,
}

/// Changes the rate limits of a folder that is already kept in sync.
fn limit_running(folder: &StateFolder, limits: RateLimits, settings: &Settings) -> Result<()> {
    let (wish, is_heard) = throttling::change(folder, |wish| wish.limits = limits)?;
    let directory = folder.directory().display().to_string();
    let limits = throttling::reported(&wish.limits);
    if settings.output.json {
        return settings.output.object("summary", &Limited { directory, limits });
    }
    let when = if is_heard { "" } else { " (in a moment)" };
    settings.output.say(match limits.is_empty() {
        true => format!("Limit removed{when}."),
        false => format!("Limit set{when}: {}", throttling::in_words(&wish.limits)),
    })
}

/// Mounts the folder and begins to send.
fn start(
    arguments: &SyncArguments,
    settings: &Settings,
    slot: &mount::Slot,
    compared: &mut dyn FnMut(u64),
) -> Result<(Daemon, SyncRuntime, SyncReady)> {
    let BoundFolder { folder, binding } = tracked_folder::bound_folder(arguments.dir.as_deref(), settings)?;
    let repository = &binding.repository;
    let stop = StopSign::default();
    let asked = stop.clone();
    let wish = throttling::noted(&folder)?;
    let (throttle, is_still) = throttling::for_the_start(&wish);
    let of_client = Arc::clone(&throttle);
    let (server, credentials) = settings.connect_with(&repository.server, Some(&binding), |options| ClientOptions {
        is_cancelled: Arc::new(move || asked.is_raised()),
        // The engine does the long-term retrying itself.
        attempts_max: 2,
        transfer_attempts_max: 3,
        idle_timeout: IDLE_TIMEOUT,
        throttle: Some(of_client),
        ..options
    })?;
    let path = folder.path().join(throttling::DIR_NAME);
    let dir = RealDir::create(&path).map_err(|error| CommandError::file("create the directory", &path, &error))?;
    if arguments.start_over {
        // Before the record follows the folder: after a crash in between, no missing file is taken
        // for a removal.
        request_start_over(&dir).map_err(|error| CommandError::new(error.to_string()))?;
    }
    let live = LiveOptions::of_device(credentials.device, delay(&arguments.delay)?);
    let checksums = arguments.checksums.options(HAS_CHECKSUMS_USUALLY);
    let options = (settings.log.options(), settings.undo(None, None)?, checksums);
    let (daemon, ready) = mount::start(
        folder.clone(),
        None,
        mount::Mode::Exact,
        options,
        (Some(live), arguments.on_doubt()),
        (settings, slot),
        compared,
    )?;
    let spec = SyncSpec {
        folder: folder.clone(),
        repository: repository.clone(),
        token_path: settings.token_path(&repository.server, Some(&binding))?,
        credentials,
        server: Arc::new(server),
        throttle,
        wish,
        is_still,
        dir,
        host: settings.host(None),
        stop,
    };
    let (daemon, runtime, problem) = match SyncRuntime::start(daemon, spec) {
        Ok(started) => started,
        Err(RuntimeError::Engine(error)) => return Err(explained(error, &folder)),
        Err(error) => return Err(CommandError::new(error.to_string())),
    };
    let ready = SyncReady {
        mount: ready,
        repository: repository.to_string(),
        connected: problem.is_none(),
        problem,
    };
    Ok((daemon, runtime, ready))
}

fn explained(error: EngineError, folder: &StateFolder) -> CommandError {
    let directory = folder.directory().display();
    let start_over = format!("byteback sync --start-over {directory}");
    let next = match &error {
        EngineError::SameDevice { folder, .. } => Some(format!(
            "If it was {directory}, compare it with the server, without removing anything: {start_over}\nIf another \
             directory of this machine is in sync with '{folder}', this one needs a device of its own: \
             'byteback invite {folder}' on the server, and here 'byteback join CODE {directory} --token-file FILE'"
        )),
        error if error.is_over_by_starting_over() => Some(format!(
            "Compare the folder with the server, without removing anything; where they differ, both versions are kept: \
             {start_over}"
        )),
        _ => None,
    };
    let hidden = beneath::hidden_in(folder.directory()).into_iter().next();
    let failed = match (error, hidden) {
        // The files below the mount cannot be read.
        (EngineError::Sync(BackupError::Tree(error)), Some(point)) => {
            return CommandError::new(format!("cannot sync {directory}: {}", error.message)).next(format!(
                "The mount at {} hides files that were in sync. Unmount it first, and mount it again once sync is \
                 running.",
                point.display()
            ));
        }
        (EngineError::Sync(error), _) => return error.into(),
        (other, _) => CommandError::new(other.to_string()),
    };
    match next {
        Some(next) => failed.next(next),
        None => failed,
    }
}

fn run_foreground(arguments: &SyncArguments, settings: &Settings, folder: &StateFolder) -> Result<()> {
    let slot = mount::watch_signals()?;
    let progress = Progress::new(settings, "sync", None);
    let (daemon, runtime, ready) = start(arguments, settings, &slot, &mut |nodes| progress.compared(nodes))?;
    progress.finish();
    // A reader that went away does not end the mount.
    let _ = print_ready(&ready, folder, settings);
    notify::ready(settings.notify_socket.as_deref());
    let ended = daemon.run_and(|| runtime.end());
    notify::stopping(settings.notify_socket.as_deref());
    Ok(ended?)
}

fn run_detached(arguments: &SyncArguments, settings: &Settings) -> Result<()> {
    let mut starter = Starter::detach();
    let began = mount::watch_signals().and_then(|slot| {
        let mut compared = |nodes: u64| {
            if nodes.is_multiple_of(1024) && !starter.tell(&StartMessage::<SyncReady>::Compared { nodes }) {
                // The process that started this one is gone.
                std::process::exit(i32::from(Exit::Interrupted.code()));
            }
        };
        start(arguments, settings, &slot, &mut compared)
    });
    match began {
        Ok((daemon, runtime, ready)) => {
            background::log(&format!(
                "{} is kept in sync with {}",
                ready.mount.directory, ready.repository
            ));
            if !starter.tell(&StartMessage::Ready(ready)) {
                runtime.end();
                return Err(CommandError::new(
                    "the command that started sync has ended; so does sync",
                ));
            }
            starter.let_go();
            let ended = daemon.run_and(|| runtime.end());
            background::log(match &ended {
                Ok(()) => "unmounted cleanly",
                Err(_) => "ended with an error",
            });
            Ok(ended?)
        }
        Err(CommandError::Failed(failure)) => {
            background::log(&failure.message);
            let Failure { exit, message, next } = failure;
            starter.tell(&StartMessage::<SyncReady>::Failed {
                code: exit.code(),
                message,
                next,
            });
            Err(CommandError::Reported(exit))
        }
        Err(other) => Err(other),
    }
}

fn print_ready(ready: &SyncReady, folder: &StateFolder, settings: &Settings) -> Result<()> {
    let output = settings.output;
    tracked_folder::warn_of_other_file_systems(folder, output);
    if output.json {
        return output.object("summary", ready);
    }
    let directory = Path::new(&ready.mount.directory).display();
    output.say(format!(
        "{directory} is kept in sync with {} from now on.",
        ready.repository
    ))?;
    mount::print_found_below(&ready.mount, output);
    if let Some(problem) = &ready.problem {
        output.say(format!("  {problem}"))?;
        output.say("  Changes are kept, and sent as soon as possible.")?;
    }
    output.say(format!("  To see its state: byteback status {directory}"))
}
