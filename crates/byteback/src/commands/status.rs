//! `byteback status`: whether folders are tracked, since when, and with which gaps; when they were
//! last backed up; what is not known about them, and what it costs to find out.
//!
//! This file collects the facts; `health` judges them, `text` prints them for people, `lines` for
//! programs.

mod health;
mod lines;
mod text;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use byteback_control::{
    ChangesCursor, ConsumerStatus, ContentChange, CutRequest, ErrorKind, NamedCut, Outcome, ServiceError, TreeService,
    TreeStatus,
};
use byteback_daemon::{DaemonError, HeldBack, StateFolder, presence};
use byteback_host::clock::RealClock;
use byteback_host::durable::DurableDir;
use byteback_host::random::RealRandomness;
use byteback_oplog::{self as oplog, Epoch, Log, PageLimits, WholeReason};
use clap::Args;
use serde::Serialize;

use crate::binding::Binding;
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::last_backup::LastBackup;
use crate::settings::Settings;
use crate::timestamp;
use crate::tracked_folder;
use crate::volume_losses;
use health::Health;

/// Changes read per page.
const PAGE_ITEMS: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Flags of `status`.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit code 4 if a folder needs attention: sync that failed or ended, conflicts, damaged files,
a daemon that died. With --check, exit code 5 if a folder is only behind: changes on their way in
either direction, a server that does not answer, a pause."
)]
pub(crate) struct StatusArguments {
    /// The folder (default: all known folders)
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print only what is wrong or behind, one line each, and fail if anything is behind, too (for
    /// scripts)
    #[arg(long)]
    check: bool,
}

/// The state from a log and its daemon.
struct Logged {
    status: TreeStatus,
    unknown: UnknownFiles,
    /// The open cuts.
    cuts: Vec<NamedCut>,
    /// Resident memory of the daemon, in bytes.
    resident_bytes: Option<u64>,
}

/// Files that will be read whole because their changes were not seen, by reason, since the oldest
/// mark.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct UnknownFiles {
    /// Files changed while the folder was not mounted.
    untracked: u64,
    /// Files being changed when tracking ended.
    interrupted: u64,
    /// Files that could not be saved.
    unsaved: u64,
    /// Files whose log was lost.
    log_lost: u64,
}

impl UnknownFiles {
    fn count(&mut self, reason: WholeReason) {
        match reason {
            WholeReason::Untracked => self.untracked += 1,
            WholeReason::Interrupted => self.interrupted += 1,
            WholeReason::Unsaved => self.unsaved += 1,
            WholeReason::LogLost => self.log_lost += 1,
            // These files are known to be new to a consumer.
            WholeReason::Created | WholeReason::NoMark | WholeReason::Dropped => {}
        }
    }

    fn total(self) -> u64 {
        [self.untracked, self.interrupted, self.unsaved, self.log_lost]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// A daemon that ends takes no connections any more after this.
const ENDING_NOTICED_WITHIN: Duration = Duration::from_millis(100);

/// The facts about one folder.
struct Known {
    folder: StateFolder,
    binding: Option<Binding>,
    state: State,
    /// Why writes of programs to the volume are lost.
    lost_writes: Option<String>,
    /// Why sync is held back.
    held_back: Option<HeldBack>,
}

enum State {
    /// The folder is bound, but nothing was tracked or saved yet.
    New,
    /// The folder is in this volume, which is not mounted.
    InVolume(PathBuf),
    /// The state from the log.
    Logged(Box<Logged>),
    /// The folder is unmounted, and this process is about to release it.
    Ending(u32),
    /// Another process that cannot be asked has the log.
    Busy,
    /// The log cannot be read.
    Unreadable(String),
}

pub(crate) fn run(arguments: &StatusArguments, settings: &Settings) -> Result<()> {
    let folders = match &arguments.dir {
        Some(dir) => vec![tracked_folder::state_folder(dir, settings)?],
        None => tracked_folder::known_folders(settings)?,
    };
    let output = settings.output;
    if folders.is_empty() && !output.json {
        return output.say("No folder is known yet. Begin with: byteback join CODE DIR");
    }
    let mut worst = Health::Fine;
    for (index, folder) in folders.into_iter().enumerate() {
        let known = look(folder, settings)?;
        let (health, reasons) = health::of(&known, timestamp::now_ns());
        worst = worst.max(health);
        if arguments.check && !output.json {
            for why in reasons {
                output.line(format!("{}: {why}", known.folder.directory().display()))?;
            }
        } else if output.json {
            output.object("folder", &lines::line(&known, health, reasons))?;
        } else {
            if index > 0 {
                output.line("")?;
            }
            text::print(&known, settings)?;
        }
    }
    match worst {
        Health::Attention => Err(CommandError::Reported(Exit::NeedsAttention)),
        Health::Behind if arguments.check => Err(CommandError::Reported(Exit::Behind)),
        Health::Behind | Health::Fine => Ok(()),
    }
}

fn look(folder: StateFolder, settings: &Settings) -> Result<Known> {
    let binding = if folder.exists() { Binding::read(&folder)? } else { None };
    // A folder that cannot be asked does not hide the others.
    let state = match state_of(&folder, settings) {
        Err(CommandError::Failed(failure)) => State::Unreadable(match failure.next {
            Some(next) => format!("{}. {next}", failure.message),
            None => failure.message,
        }),
        asked => asked?,
    };
    if !folder.exists() {
        return Err(
            CommandError::new(format!("{} is neither bound nor tracked", folder.directory().display())).next(
                match settings.repository() {
                    Some(repository) => format!("Begin with: byteback init DIR -r {repository}"),
                    None => "Begin with: byteback join CODE DIR".to_owned(),
                },
            ),
        );
    }
    let status = match &state {
        State::Logged(logged) => Some(&logged.status),
        _ => None,
    };
    let held_back = presence::held_back(&folder)?;
    Ok(Known {
        lost_writes: volume_losses::reason(&folder, status),
        folder,
        binding,
        state,
        held_back,
    })
}

/// The state of a folder: its daemon is asked, if there is one.
fn state_of(folder: &StateFolder, settings: &Settings) -> Result<State> {
    let without_daemon = || match folder.ending_owner() {
        Some(pid) => State::Ending(pid),
        None => read_log(folder, settings),
    };
    let Some(daemon) = tracked_folder::daemon(folder)? else {
        return Ok(without_daemon());
    };
    match ask(&daemon) {
        Ok(logged) => Ok(State::Logged(Box::new(logged))),
        // The daemon was about to end, unless it goes on to take connections.
        Err(error) if error.kind == ErrorKind::Gone => {
            std::thread::sleep(ENDING_NOTICED_WITHIN);
            let is_ending = folder.ending_owner().is_some() || tracked_folder::daemon(folder)?.is_none();
            match is_ending {
                true => Ok(without_daemon()),
                false => Err(error.into()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Asks the daemon of a folder.
fn ask(daemon: &dyn TreeService) -> std::result::Result<Logged, ServiceError> {
    let status = daemon.status()?;
    let mut unknown = UnknownFiles::default();
    if let Some(since) = oldest_mark(&status).filter(|_| status.usage.unknown_files > 0) {
        let look = daemon.cut(&CutRequest {
            look_only: true,
            since: Some(since),
            ..CutRequest::of("")
        })?;
        let mut cursor = Some(ChangesCursor::default());
        while let Some(at) = cursor {
            let page = daemon.changes(look.cut, &at)?;
            for change in page.nodes {
                if let ContentChange::Whole(reason) = change.content {
                    unknown.count(reason);
                }
            }
            cursor = page.next.filter(|next| *next != at);
        }
        daemon.finish(look.cut, &Outcome::Abandoned)?;
    }
    Ok(Logged {
        unknown,
        cuts: daemon.list_cuts().unwrap_or_default(),
        resident_bytes: resident_bytes(status.pid),
        status,
    })
}

fn oldest_mark(status: &TreeStatus) -> Option<Epoch> {
    status.consumers.iter().filter_map(|consumer| consumer.mark).min()
}

/// The resident memory of a process, in bytes, as counted by the kernel.
fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Reads the log of a folder that is not mounted. The folder itself is not accessed.
fn read_log(folder: &StateFolder, settings: &Settings) -> State {
    if let Ok(Some(volume)) = folder.volume() {
        return State::InVolume(volume);
    }
    if !folder.path().join("log.redb").exists() {
        return State::New;
    }
    let (dir, _lock) = match folder.take() {
        Ok(taken) => taken,
        Err(DaemonError::InUse { .. }) => return State::Busy,
        Err(error) => return State::Unreadable(crate::error::chain(&error)),
    };
    let dir: Arc<dyn DurableDir> = Arc::new(dir);
    let options = settings.log.options();
    let read = Log::open_with(&dir, Arc::new(RealClock), &RealRandomness, options).and_then(|log| {
        let counts = log.counts()?;
        let consumers = log.consumers()?.into_iter().map(|(name, state)| {
            let expires_at_ns = log.expires_at_ns(&state);
            ConsumerStatus::of(name, state, expires_at_ns)
        });
        let status = TreeStatus {
            path: byteback_model::ByteString::from(folder.directory().as_os_str().as_encoded_bytes()),
            mounted_at: None,
            mode: None,
            tree: log.tree(),
            epoch: log.epoch(),
            nodes: counts.nodes,
            open_nodes: counts.open_nodes,
            pid: std::process::id(),
            consumers: consumers.collect(),
            ledger: log.ledger()?,
            usage: log.usage()?,
            sync: None,
            damaged: Vec::new(),
            detached: None,
            volume_failure: None,
        };
        let mut unknown = UnknownFiles::default();
        if let Some(since) = oldest_mark(&status).filter(|_| status.usage.unknown_files > 0) {
            let list = log.look()?.changes(Some(since))?;
            let limits = PageLimits {
                items: PAGE_ITEMS,
                ranges: NonZeroUsize::MAX,
            };
            let mut cursor = Some(oplog::ChangesCursor::default());
            while let Some(at) = cursor {
                let page = list.page(&at, limits)?;
                for change in page.nodes {
                    if let ContentChange::Whole(reason) = change.content {
                        unknown.count(reason);
                    }
                }
                // Nodes come before names.
                cursor = page.next.filter(|next| next.name.is_none());
            }
        }
        Ok(Logged {
            status,
            unknown,
            cuts: Vec::new(),
            resident_bytes: None,
        })
    });
    match read {
        Ok(logged) => State::Logged(Box::new(logged)),
        Err(error) => State::Unreadable(match tracked_folder::way_out_of_damage(folder, &error) {
            Some(next_step) => format!("it is damaged. {next_step}"),
            None => crate::error::chain(&error),
        }),
    }
}

/// The last backup to the bound repository.
fn last_backup<'a>(known: &Known, status: &'a TreeStatus) -> Option<LastBackup<'a>> {
    LastBackup::find(status, &tracked_folder::consumer(known.binding.as_ref()?))
}
