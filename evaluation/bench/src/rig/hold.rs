//! A mount with or without tracking, held by its own process: this program, started once more.
//!
//! The product has no switch that turns tracking off, and should not have one. To measure the cost
//! of tracking, both kinds of mount are served by the same program and the same code. Only the gate
//! differs: one keeps account, the other passes through.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use byteback_control::{LiveGroup, LiveSource, LiveTree, Outcome, TreeService, Work};
use byteback_daemon::{ChecksumOptions, Daemon, DaemonOptions, LiveOptions, StateFolder, TrackedTree};
use byteback_mount::tracked::Tracked;
use byteback_mount::{CacheMode, Mount, MountOptions};
use clap::Args;

use super::process::{Background, Cost, program, run, wait_for};
use super::scheduling::Placement;
use crate::SuiteError;

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The delay after the last change before data is sent.
const SYNC_DELAY: Duration = Duration::from_secs(1);
const READY: &str = "ready\n";

/// The arguments of the started process.
#[derive(Args, Debug)]
pub(crate) struct HoldArguments {
    /// Folder to mount over itself.
    directory: PathBuf,
    /// Track changes below this state root; without it nothing is tracked.
    #[arg(long)]
    state: Option<PathBuf>,
    /// Use mode `fast` instead of `exact`.
    #[arg(long)]
    fast: bool,
    /// Queue changes as continuous sync does; data to be sent is read and dropped.
    #[arg(long, requires = "state")]
    sync: bool,
    /// Keep checksums of written data.
    #[arg(long, requires = "state")]
    checksums: bool,
    /// Serve with this number of threads; by default as many as the product uses.
    #[arg(long)]
    threads: Option<usize>,
    /// Run on this processor only, with this real-time priority.
    #[arg(long, num_args = 2, value_names = ["CPU", "PRIORITY"])]
    pin: Option<Vec<u32>>,
}

/// Serves the mount until it is unmounted.
///
/// # Errors
/// If the folder cannot be mounted.
pub(crate) fn serve(arguments: &HoldArguments) -> Result<(), SuiteError> {
    if let Some([cpu, priority]) = arguments.pin.as_deref() {
        // Before any thread is started, because all inherit it.
        Placement::Pinned { cpu: *cpu }.apply(*priority)?;
    }
    let mount = MountOptions {
        mode: if arguments.fast {
            CacheMode::Fast
        } else {
            CacheMode::Exact
        },
        threads: arguments.threads,
        ..MountOptions::new(&arguments.directory)
    };
    match &arguments.state {
        None => {
            let mount = Mount::start(&mount, Arc::new(Tracked::new()), || Ok(()))?;
            tell_ready()?;
            mount.wait()?;
        }
        Some(state) => {
            let folder = StateFolder::of(&arguments.directory, state)?;
            folder.create()?;
            let tree = TrackedTree::open(folder, &mut |_| {})?;
            let options = DaemonOptions {
                live: arguments.sync.then(|| LiveOptions::of_device(1, SYNC_DELAY)),
                checksums: arguments.checksums.then_some(ChecksumOptions {
                    verify_reads: false,
                    scrub: None,
                }),
                ..DaemonOptions::new(mount)
            };
            let daemon = Daemon::start(tree, &options)?;
            let drain = daemon.live().map(|live| {
                let service = daemon.service();
                std::thread::spawn(move || drain(&*live, &*service).map_err(|error| error.to_string()))
            });
            tell_ready()?;
            daemon.run()?;
            if let Some(drain) = drain {
                drain
                    .join()
                    .map_err(|_| "the thread that drops the data to be sent panicked")??;
            }
        }
    }
    Ok(())
}

/// Reads all data to be sent and confirms it as sent, until the mount is gone.
fn drain(live: &dyn LiveTree, service: &dyn TreeService) -> Result<(), SuiteError> {
    loop {
        match live.poll()? {
            Work::Idle(wait) => live.wait(wait.unwrap_or(SYNC_DELAY)),
            Work::Send(group) => take(live, service, &group)?,
            Work::Cut => take(live, service, live.cut_fold(&[])?.as_ref())?,
            Work::Ask(group) => live.never_arrived(group)?,
            Work::Decide(_) => return Err("a group needs a decision, although none was refused".into()),
            Work::Ended => return Ok(()),
        }
    }
}

fn take(live: &dyn LiveTree, service: &dyn TreeService, group: &LiveGroup) -> Result<(), SuiteError> {
    for content in group.contents.iter().filter(|content| !content.is_gone) {
        let read = match content.source {
            LiveSource::Ranges(_) => live.read(content, &mut |_| Ok(())),
            LiveSource::Delta { stamp, .. } => live.read_delta(stamp, &mut |_| Ok(())),
        };
        if read.is_err() {
            // The order was dropped; `poll` reports what follows.
            return Ok(());
        }
    }
    if let Some(fold) = &group.fold {
        let outcome = Outcome::Saved {
            note: Vec::new(),
            unsaved: Vec::new(),
        };
        service.finish(fold.cut.cut, &outcome)?;
    }
    Ok(live.applied(group.id)?)
}

fn tell_ready() -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(READY.as_bytes())?;
    stdout.flush()
}

/// The mount to be held.
#[derive(Clone, Debug)]
pub(crate) struct Held<'a> {
    pub(crate) directory: &'a Path,
    /// The state root of a tracked mount.
    pub(crate) state: Option<&'a Path>,
    pub(crate) mode: CacheMode,
    pub(crate) placement: Placement,
    /// The continuous sync of a tracked mount, if any.
    pub(crate) sync: Option<Sync>,
}

/// Continuous sync without the server and the network: contents to be sent are read and dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sync {
    /// Keep checksums of written data.
    pub(crate) with_checksums: bool,
}

/// A mount that another process holds. Unmounted when dropped.
#[derive(Debug)]
pub(crate) struct HeldMount {
    point: PathBuf,
    process: Option<Background>,
}

/// The priority of the daemon, below that of the measuring thread.
const DAEMON_PRIORITY: u32 = 4;

impl HeldMount {
    /// Mounts; `log` is a file for the output of the process.
    pub(crate) fn start(held: &Held<'_>, log: &Path) -> Result<Self, SuiteError> {
        let output = File::create(log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        let mut command = program(std::env::current_exe()?);
        command.arg("hold").arg(held.directory);
        if let Some(state) = held.state {
            command.arg("--state").arg(state);
        }
        if let Some(sync) = held.sync {
            command.arg("--sync");
            if sync.with_checksums {
                command.arg("--checksums");
            }
        }
        if held.mode == CacheMode::Fast {
            command.arg("--fast");
        }
        if let Placement::Pinned { cpu } = held.placement {
            command.args(["--pin", &cpu.to_string(), &DAEMON_PRIORITY.to_string()]);
        }
        command.stdout(output.try_clone()?).stderr(output);
        let mut mount = Self {
            point: held.directory.to_owned(),
            process: Some(Background::start("a held mount", &mut command)?),
        };
        wait_for("the start of a held mount", START_TIMEOUT, || {
            let said = fs::read_to_string(log)?;
            if said == READY {
                return Ok(Some(()));
            }
            if mount.process.as_ref().is_none_or(Background::has_ended) {
                mount.process = None;
                return Err(format!("a held mount did not start; its output:\n{said}").into());
            }
            Ok(None)
        })?;
        Ok(mount)
    }

    /// The cost of the process so far.
    pub(crate) fn cost(&self) -> Result<Cost, SuiteError> {
        self.process.as_ref().ok_or("the mount has ended")?.cost()
    }

    /// Resident memory of the process now, bytes.
    pub(crate) fn resident_bytes(&self) -> Result<u64, SuiteError> {
        self.process.as_ref().ok_or("the mount has ended")?.resident_bytes()
    }

    /// Unmounts and waits for the process to end. Returns its total cost.
    pub(crate) fn end(mut self) -> Result<Cost, SuiteError> {
        run(program("umount").arg(&self.point))?;
        let mut process = self.process.take().ok_or("the mount has ended")?;
        process.end()
    }
}

impl Drop for HeldMount {
    fn drop(&mut self) {
        if self.process.is_none() {
            return;
        }
        // The scratch folder clears any leftovers. The process ends when its mount is gone.
        let mut command = program("umount");
        command
            .arg("-l")
            .arg(&self.point)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let _ = command.status();
    }
}
