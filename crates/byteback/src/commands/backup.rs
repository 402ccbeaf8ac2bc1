//! `byteback backup`: saves what changed since the last backup, through the folder's daemon or, if
//! the folder is not mounted, by comparing each file's size, times and identity.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use byteback_backup::{BackupError, BackupOptions, BackupReport, DeltaChoice, backup};
use byteback_client::ClientOptions;
use byteback_control::ErrorKind;
use byteback_host::durable::{DirLock, DurableDir, RealDir};
use byteback_model::ByteString;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::commands::explain;
use crate::consumer_notes;
use crate::daemon_line::DaemonLine;
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::held_back;
use crate::output::Output;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::signals::Interrupt;
use crate::tracked_folder::{self, BoundFolder, Owner};
use crate::wording::{counted, counts, duration, listed, nodes, size, size_exact};

/// Flags of `backup`.
#[derive(Args, Debug)]
#[command(
    after_help = "Files that cannot be read are reported, and everything else is saved; the exit code is then 3, and \
the next backup tries them again. Ctrl-C stops at the next safe point: no snapshot is made, and nothing is lost."
)]
pub(crate) struct BackupArguments {
    /// Folder to back up (default: the bound folder you are in)
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Tag the snapshot; may be given several times
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Record this host name in the snapshot (default: this machine's)
    #[arg(long, value_name = "HOST")]
    host: Option<OsString>,
    /// Only report what would be saved
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Find changes inside files by this method; auto takes the cheapest one for each file
    #[arg(long, value_name = "WAY", default_value = "auto")]
    delta: Delta,
    /// Save everything, as in a first backup
    #[arg(long)]
    full: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Delta {
    /// The cheapest method for each file; 'byteback explain FILE' shows which one that was
    Auto,
    /// Match files against the server's version by rolling checksums
    Rsync,
    /// Match files against the server's version by hashes of blocks at the same offsets
    Hash,
    /// Let the server search its version for the blocks of files: least work here
    Webr,
    /// Compare content-defined chunks with those of the server's version
    Cdc,
    /// Compare the checksums that the file system or an earlier backup has; search the rest for
    /// blocks that the server has
    SkyF,
    /// Like sky-f, but cut the rest into content-defined chunks and compare those
    SkyC,
    /// Send changed files whole
    Full,
}

impl From<Delta> for DeltaChoice {
    fn from(delta: Delta) -> Self {
        match delta {
            Delta::Auto => Self::Auto,
            Delta::Rsync => Self::Rsync,
            Delta::Hash => Self::Hash,
            Delta::Webr => Self::Webr,
            Delta::Cdc => Self::Cdc,
            Delta::SkyF => Self::SkyF,
            Delta::SkyC => Self::SkyC,
            Delta::Full => Self::Full,
        }
    }
}

#[derive(Serialize)]
struct Summary<'a> {
    directory: String,
    repository: String,
    mounted: bool,
    #[serde(flatten)]
    report: &'a BackupReport,
}

/// Opens a directory of the state folder for this run alone, and locks it. `None`, with a warning,
/// if that fails: the run can go on without `what`.
pub(super) fn own_directory(path: &Path, what: &str, settings: &Settings) -> Option<(Arc<dyn DurableDir>, DirLock)> {
    let locked = RealDir::create(path).and_then(|dir| dir.lock().map(|lock| (dir, lock)));
    match locked {
        Ok((dir, lock)) => Some((Arc::new(dir) as Arc<dyn DurableDir>, lock)),
        Err(error) => {
            settings.output.warn(&format!(
                "cannot use {what} in {}: {error}; continuing without",
                path.display()
            ));
            None
        }
    }
}

pub(crate) fn run(arguments: BackupArguments, settings: &Settings) -> Result<()> {
    let BoundFolder { folder, binding } = tracked_folder::bound_folder(arguments.dir.as_deref(), settings)?;
    let (server, credentials) = settings.connect_with(&binding.repository.server, Some(&binding), |options| {
        let relay = (!settings.names_issuers()).then(|| DaemonLine::of(&folder));
        ClientOptions { relay, ..options }
    })?;
    server.keep_line();
    let interrupt = Interrupt::watch()?;
    let progress = Progress::new(settings, "backup", Some(interrupt));
    let mut owner = Owner::of(&folder, settings, &progress)?;
    let path = Path::new(folder.path()).join("checksums");
    let checksums = binding
        .block_checksums
        .then(|| own_directory(&path, "the block checksums", settings));
    let (block_checksums, _checksums_lock) = checksums.flatten().unzip();
    let decisions = own_directory(
        &explain::decisions_path(&folder),
        "the record of how files were saved",
        settings,
    );
    let (decisions, _decisions_lock) = decisions.unzip();
    let unfinished = own_directory(
        &Path::new(folder.path()).join("unfinished"),
        "the record of an unfinished backup",
        settings,
    );
    let (unfinished, _unfinished_lock) = unfinished.unzip();
    let options = BackupOptions {
        block_checksums,
        decisions,
        unfinished,
        delta: arguments.delta.into(),
        tags: arguments.tag,
        host: settings.host(arguments.host.as_ref()),
        path: ByteString::from(folder.directory().as_os_str().as_bytes()),
        dry_run: arguments.dry_run,
        force_full: arguments.full,
        processor_share: byteback_host::load::thread_share().unwrap_or(1.0),
        ..BackupOptions::new(tracked_folder::consumer(&binding), credentials.device)
    };
    tracked_folder::warn_of_other_file_systems(&folder, settings.output);
    if let Some(held) = byteback_daemon::presence::held_back(&folder)?.filter(|_| owner.is_mounted()) {
        held_back::warn(&folder, held.doubt, settings.output);
    }
    let saved = |owner: &Owner| {
        consumer_notes::warn(&owner.service().status()?.consumers, &folder, settings.output);
        backup(
            owner.service(),
            &server,
            &binding.repository.folder,
            &options,
            &progress,
        )
    };
    let mut report = saved(&owner);
    let is_daemon_gone = |report: &Result<_, _>| owner.is_mounted() && report.as_ref().is_err_and(is_gone);
    if is_daemon_gone(&report) && !progress.is_transferring() {
        // It was about to end when the connection to it was made.
        owner = Owner::of(&folder, settings, &progress)?;
        report = saved(&owner);
    } else if is_daemon_gone(&report) {
        progress.finish();
        return Err(
            CommandError::new("the folder's daemon ended while its folder was being backed up").next(
                "Run the backup again: it does not send again what has arrived. For as long as the folder is not \
                 mounted, it reads changed files whole.",
            ),
        );
    }
    progress.finish();
    let report = report?;
    let output = settings.output;
    let printed = if output.json {
        let summary = Summary {
            directory: folder.directory().display().to_string(),
            repository: binding.repository.to_string(),
            mounted: owner.is_mounted(),
            report: &report,
        };
        output.object("summary", &summary)
    } else {
        let said = HumanSummary {
            output,
            report: &report,
            folder: &folder,
            repository: binding.repository.to_string(),
            is_mounted: owner.is_mounted(),
        };
        said.print()
    };
    // The backup is made even if printing failed; but the exit code must report that it is
    // incomplete.
    if report.is_complete() {
        printed
    } else {
        Err(CommandError::Reported(Exit::SourceUnreadable))
    }
}

/// Whether the connection to the folder's daemon ended: it was unmounted, or killed.
fn is_gone(error: &BackupError) -> bool {
    matches!(error, BackupError::Tree(error) if error.kind == ErrorKind::Gone)
}

struct HumanSummary<'a> {
    output: Output,
    report: &'a BackupReport,
    folder: &'a byteback_daemon::StateFolder,
    repository: String,
    is_mounted: bool,
}

impl HumanSummary<'_> {
    fn print(&self) -> Result<()> {
        let (output, report) = (self.output, self.report);
        let exact = output.verbosity > 0;
        let sizes = |bytes: u64| size_exact(bytes, exact);
        let took = duration(report.durations.total_ns);
        if report.dry_run {
            output.say(format!(
                "Nothing was saved (dry run). A backup to {} would save:",
                self.repository
            ))?;
        } else {
            match report.snapshot_id {
                Some(id) => output.say(format!("Snapshot {id} saved to {} in {took}.", self.repository))?,
                None => output.say(format!("Saved to {} in {took}.", self.repository))?,
            }
        }
        output.say(format!("  {}", found(report)))?;
        if let Some(why) = &report.everything_because {
            output.say(format!("  everything was read: {why}"))?;
            if report.followed_files > 0 {
                let files = counted(report.followed_files, "file was", "files were");
                output.say(format!("  {files} compared with the server's version at the same path"))?;
            }
        }
        let whole = files_read_whole(report);
        if report.dry_run && whole > 0 {
            let known = match report.changed_bytes {
                0 => String::new(),
                bytes => format!("{} and ", sizes(bytes)),
            };
            output.say(format!(
                "  changed  {known}{}",
                counted(whole, "file that is read whole", "files that are read whole")
            ))?;
        } else if report.has_changes() || report.dry_run {
            output.say(format!("  changed  {}", sizes(report.changed_bytes)))?;
        }
        if report.has_changes() {
            output.say(format!(
                "  read     {} from the folder's files",
                sizes(report.read_bytes)
            ))?;
            output.say(format!(
                "  hashed   {}{}",
                sizes(report.hashed_bytes),
                match (report.hashed_bytes, report.found_bytes) {
                    (0, _) if whole == 0 => ": the log knows what changed".to_owned(),
                    (0, _) => String::new(),
                    (_, found) => format!(": {} of it need not be sent", sizes(found)),
                }
            ))?;
            output.say(format!("  sent     {} on the wire", sizes(report.wire.sent)))?;
            if report.reused_bytes > 0 {
                output.say(format!(
                    "  resumed  {} sent by an interrupted backup",
                    sizes(report.reused_bytes)
                ))?;
            }
            output.say(format!("  stored   {}", sizes(report.stored_bytes)))?;
        }
        if report.healed_frames > 0 {
            output.say(format!(
                "  healed   {} on the server with bytes from this folder",
                counted(report.healed_frames, "damaged place", "damaged places")
            ))?;
        }
        if report.damaged_files > 0 {
            output.say(format!(
                "  {} damaged on the server and could not be healed there: sent whole by this backup or the next",
                counted(report.damaged_files, "file is", "files are")
            ))?;
        }
        self.print_whole()?;
        if !report.is_complete() {
            output.say(format!(
                "  {} could not be saved; see the messages above. The next backup tries again.",
                nodes(report.unsaved.len() as u64)
            ))?;
        }
        Ok(())
    }

    /// Prints how many files were read whole, and what mounting would have saved.
    fn print_whole(&self) -> Result<()> {
        let whole = self.report.whole;
        let output = self.output;
        let directory = self.folder.directory().display();
        if !self.is_mounted {
            let read = match self.report.dry_run {
                true => "all of it is read".to_owned(),
                false => format!("{} were read", size(self.report.read_bytes)),
            };
            let unknown = whole.untracked.saturating_add(whole.interrupted);
            return match unknown {
                0 => output.say(format!(
                    "  The folder is not mounted: the next backup reads changed files whole.\n  \
                     To read only their changed ranges, mount it: byteback mount {directory}"
                )),
                files => output.say(format!(
                    "  The folder was not mounted, so it is unknown which bytes of {} changed: {read}.\n  \
                     To read only changed ranges, mount it: byteback mount {directory}",
                    counted(files, "file", "files")
                )),
            };
        }
        for (count, why) in [
            (whole.untracked, "changed while the folder was not mounted"),
            (whole.interrupted, "a change was under way when tracking last ended"),
            (whole.unsaved_before, "could not be saved last time"),
        ] {
            if count > 0 {
                output.say(format!(
                    "  {} read whole: {why}",
                    counted(count, "file was", "files were")
                ))?;
            }
        }
        Ok(())
    }
}

/// Number of changed files whose changed ranges were unknown.
fn files_read_whole(report: &BackupReport) -> u64 {
    let whole = report.whole;
    [
        whole.created,
        whole.no_mark,
        whole.untracked,
        whole.interrupted,
        whole.unsaved_before,
    ]
    .into_iter()
    .fold(0, u64::saturating_add)
}

/// The changes found, as a sentence.
fn found(report: &BackupReport) -> String {
    let parts = counts(&[
        (report.files_new, "new file", "new files"),
        (report.files_changed, "changed file", "changed files"),
        (report.dirs_new, "new directory", "new directories"),
        (report.dirs_changed, "changed directory", "changed directories"),
        (
            report.others,
            "new or changed link or special file",
            "new or changed links and special files",
        ),
        (report.names_removed, "removed name", "removed names"),
    ]);
    let all = nodes(report.tree_nodes);
    if parts.is_empty() {
        return format!("nothing had changed (of {all})");
    }
    format!("{} (of {all})", listed(&parts))
}
