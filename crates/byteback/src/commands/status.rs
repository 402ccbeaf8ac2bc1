//! `byteback status`: whether folders are tracked, since when, with every gap, and when they were last backed up.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use byteback_control::{ConsumerStatus, TreeService, TreeStatus};
use byteback_daemon::{DaemonError, StateFolder};
use byteback_host::clock::RealClock;
use byteback_host::durable::DurableDir;
use byteback_host::random::RealRandomness;
use byteback_oplog::Log;
use clap::Args;
use serde::Serialize;

use crate::binding::Binding;
use crate::coverage::{Cause, Coverage, Gap};
use crate::error::{CommandError, Result};
use crate::last_backup::LastBackup;
use crate::mount_table;
use crate::settings::Settings;
use crate::timestamp;
use crate::tracked_folder;
use crate::wording::{age, counted};

/// Gaps that are shown without `-v`.
const GAPS_SHOWN: usize = 5;

/// Flags of `status`.
#[derive(Args, Debug)]
pub(crate) struct StatusArguments {
    /// The folder; without it, all that are known
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// What is known of one folder.
struct Known {
    folder: StateFolder,
    binding: Option<Binding>,
    state: State,
}

enum State {
    /// It is bound, but nothing was tracked or saved yet.
    New,
    /// What its log says.
    Logged(Box<TreeStatus>),
    /// Its log is in the hands of another process that cannot be asked.
    Busy,
    /// Its log cannot be read.
    Unreadable(String),
}

#[derive(Serialize)]
struct Line {
    directory: String,
    repository: Option<String>,
    mounted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(flatten)]
    log: Option<LogLine>,
}

#[derive(Serialize)]
struct LogLine {
    mounted_at: Option<byteback_api::ByteString>,
    mode: Option<String>,
    pid: Option<u32>,
    tracked_since: Option<String>,
    gaps: Vec<GapLine>,
    epoch: u64,
    nodes: u64,
    open_nodes: u64,
    last_backup: Option<String>,
    last_snapshot: Option<u64>,
    backup_pending: bool,
}

#[derive(Serialize)]
struct GapLine {
    from: String,
    to: Option<String>,
    #[serde(flatten)]
    cause: Cause,
    changed_files: u64,
    changed_names: u64,
}

pub(crate) fn run(arguments: &StatusArguments, settings: &Settings) -> Result<()> {
    let folders = match &arguments.dir {
        Some(dir) => vec![tracked_folder::state_folder(dir, settings)?],
        None => tracked_folder::known_folders(settings)?,
    };
    let output = settings.output;
    if folders.is_empty() && !output.json {
        return output.say("No folder is known yet. Begin with: byteback init DIR -r http://HOST:PORT/FOLDER");
    }
    for (index, folder) in folders.into_iter().enumerate() {
        let known = look(folder, settings)?;
        if output.json {
            output.object("folder", &line(&known))?;
        } else {
            if index > 0 {
                output.line("")?;
            }
            print(&known, settings)?;
        }
    }
    Ok(())
}

fn look(folder: StateFolder, settings: &Settings) -> Result<Known> {
    let binding = if folder.exists() { Binding::read(&folder)? } else { None };
    // One folder that cannot be asked does not hide the others.
    let asked = tracked_folder::daemon(&folder).and_then(|daemon| match daemon {
        Some(daemon) => Ok(State::Logged(Box::new(daemon.status()?))),
        None => Ok(read_log(&folder)),
    });
    let state = match asked {
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
                    None => "Begin with: byteback init DIR -r http://HOST:PORT/FOLDER".to_owned(),
                },
            ),
        );
    }
    Ok(Known { folder, binding, state })
}

/// Reads the log of a folder that is not mounted. The folder itself is not looked at.
fn read_log(folder: &StateFolder) -> State {
    if !folder.path().join("log.redb").exists() {
        return State::New;
    }
    let (dir, _lock) = match folder.take() {
        Ok(taken) => taken,
        Err(DaemonError::InUse { .. }) => return State::Busy,
        Err(error) => return State::Unreadable(crate::error::chain(&error)),
    };
    let dir: Arc<dyn DurableDir> = Arc::new(dir);
    let read = Log::open(&dir, Arc::new(RealClock), &RealRandomness).and_then(|log| {
        let counts = log.counts()?;
        let consumers = log.consumers()?.into_iter().map(|(name, state)| {
            let expires_at_ns = log.expires_at_ns(&state);
            ConsumerStatus::of(name, state, expires_at_ns)
        });
        Ok(TreeStatus {
            path: byteback_api::ByteString::from(folder.directory().as_os_str().as_encoded_bytes()),
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
        })
    });
    match read {
        Ok(status) => State::Logged(Box::new(status)),
        Err(error) => State::Unreadable(match tracked_folder::way_out_of_damage(folder, &error) {
            Some(way_out) => format!("it is damaged. {way_out}"),
            None => crate::error::chain(&error),
        }),
    }
}

fn is_gone(directory: &Path) -> bool {
    std::fs::symlink_metadata(directory).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// The consumer that counts: the bound repository's.
fn last_backup<'a>(known: &Known, status: &'a TreeStatus) -> Option<LastBackup<'a>> {
    LastBackup::find(status, &tracked_folder::consumer(known.binding.as_ref()?))
}

fn line(known: &Known) -> Line {
    let log = match &known.state {
        State::Logged(status) => Some(log_line(known, status)),
        _ => None,
    };
    Line {
        directory: known.folder.directory().display().to_string(),
        repository: known.binding.as_ref().map(|binding| binding.repository.to_string()),
        mounted: log.as_ref().is_some_and(|log| log.mounted_at.is_some()),
        problem: match &known.state {
            State::Busy => Some("another process is using the folder".to_owned()),
            State::Unreadable(why) => Some(why.clone()),
            State::New | State::Logged(_) => None,
        },
        log,
    }
}

fn log_line(known: &Known, status: &TreeStatus) -> LogLine {
    let coverage = Coverage::of(&status.ledger);
    let last = last_backup(known, status);
    let gaps = coverage.gaps.iter().map(|gap| GapLine {
        from: timestamp::rfc3339(gap.from_ns),
        to: gap.to_ns.map(timestamp::rfc3339),
        cause: gap.cause,
        changed_files: gap.changed_files,
        changed_names: gap.changed_names,
    });
    LogLine {
        mounted_at: status.mounted_at.clone(),
        mode: status.mode.clone(),
        pid: status.mounted_at.is_some().then_some(status.pid),
        tracked_since: coverage.tracked_since_ns.map(timestamp::rfc3339),
        gaps: gaps.collect(),
        epoch: status.epoch.0,
        nodes: status.nodes,
        open_nodes: status.open_nodes,
        last_backup: last.and_then(LastBackup::saved_at_ns).map(timestamp::rfc3339),
        last_snapshot: last.and_then(LastBackup::snapshot_id),
        backup_pending: last.is_some_and(LastBackup::has_pending),
    }
}

fn print(known: &Known, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let directory = known.folder.directory();
    output.line(directory.display())?;
    match &known.state {
        _ if is_gone(directory) => {
            output.line("  the folder is gone; what was saved of it is not")?;
            output.line(format!(
                "  to bring it back: byteback restore; to forget its log: rm -r {}",
                known.folder.path().display()
            ))?;
        }
        State::New => output.line("  not mounted, nothing tracked yet")?,
        State::Busy => output.line("  in use by another command (a backup, or a mount that is starting)")?,
        State::Unreadable(why) => output.line(format!("  its log cannot be read: {why}"))?,
        State::Logged(status) => print_tracking(status, known, settings)?,
    }
    let Some(binding) = &known.binding else {
        return output.line(format!(
            "  not backed up; bind it with: byteback init {} -r URL",
            directory.display()
        ));
    };
    output.line(format!("  backed up to {}", binding.repository))?;
    let last = match &known.state {
        State::Logged(status) => last_backup(known, status),
        _ => None,
    };
    match last.and_then(|last| Some((last.saved_at_ns()?, last.snapshot_id()))) {
        Some((saved_at_ns, snapshot)) => {
            let (ago, at) = (age(saved_at_ns, timestamp::now_ns()), timestamp::local(saved_at_ns));
            let snapshot = snapshot.map_or_else(String::new, |id| format!(", snapshot {id}"));
            output.line(format!("  last backup {ago} ago ({at}){snapshot}"))?;
        }
        None if matches!(known.state, State::Logged(_) | State::New) => output.line("  never backed up yet")?,
        None => {}
    }
    if last.is_some_and(LastBackup::has_pending) {
        output.line("  a later backup did not end; the next one asks the server what became of it")?;
    }
    Ok(())
}

fn print_tracking(status: &TreeStatus, known: &Known, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let coverage = Coverage::of(&status.ledger);
    match (&status.mounted_at, coverage.tracked_since_ns) {
        (Some(at), Some(since)) => {
            let elsewhere = at.as_bytes() != known.folder.directory().as_os_str().as_encoded_bytes();
            let place = if elsewhere { format!(" at {at}") } else { String::new() };
            let mode = status.mode.as_deref().unwrap_or("exact");
            let point = Path::new(std::ffi::OsStr::from_bytes(at.as_bytes()));
            if mount_table::at(point).is_none() {
                output.line(format!(
                    "  unmounted{place}, but programs still have files of it open; process {} tracks these",
                    status.pid
                ))?;
            } else {
                output.line(format!("  mounted{place}, mode {mode}, process {}", status.pid))?;
            }
            let (ago, at) = (age(since, timestamp::now_ns()), timestamp::local(since));
            output.line(format!("  tracked since {at} ({ago}) without a gap"))?;
        }
        _ => {
            let dead = mount_table::at(known.folder.directory()).is_some();
            output.line(if dead {
                "  NOT TRACKED: its daemon has died"
            } else {
                "  not mounted: changes are not tracked"
            })?;
        }
    }
    let nodes = counted(status.nodes, "file or directory", "files and directories");
    if output.verbosity > 0 {
        let open = counted(status.open_nodes, "open write intent", "open write intents");
        output.line(format!("  {nodes}, {open}, epoch {}", status.epoch))?;
    } else {
        output.line(format!("  {nodes}"))?;
    }
    let hidden = if output.verbosity > 0 {
        0
    } else {
        coverage.gaps.len().saturating_sub(GAPS_SHOWN)
    };
    if !coverage.gaps.is_empty() {
        output.line("  gaps:")?;
    }
    if hidden > 0 {
        output.line(format!(
            "    {}; -v shows all",
            counted(hidden as u64, "older gap", "older gaps")
        ))?;
    }
    for gap in coverage.gaps.iter().skip(hidden) {
        output.line(format!("    {}", Gap::words(gap)))?;
    }
    Ok(())
}
