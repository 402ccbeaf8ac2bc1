//! The command line: the verbs, and the flags that several of them share. Each command's own flags are in its file.

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands;
use crate::environment::{VARIABLES, Variable};
use crate::exit_code::MEANINGS;
use crate::output::Output;
use crate::repository::Repository;

/// Backs up folders by remembering what was written instead of searching for it.
#[derive(Debug, Parser)]
#[command(name = "byteback", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: GlobalArguments,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const FIRST_STEPS: &str = "\
First steps:
  byteback serve --data /srv/backup --listen 0.0.0.0:7117     on the server
  byteback invite NAME --data /srv/backup               there, prints a code
  byteback join CODE DIR                                on the machine with the folder
  byteback mount DIR                                    from now on every change is known
  byteback backup DIR                                   reads and sends what changed
  byteback restore latest --dir DIR --target NEW_DIR

'byteback COMMAND --help' explains each command.";

impl Arguments {
    /// The command line as the parser sees it, with the texts that are made from other tables.
    pub(crate) fn described() -> clap::Command {
        let mut text = format!("{FIRST_STEPS}\n\nEnvironment:\n");
        for Variable { name, meaning } in VARIABLES {
            text.push_str(&format!("  {name}\n      {}\n", meaning.replace('`', "")));
        }
        text.push_str("\nExit codes:\n");
        for (code, meaning) in MEANINGS {
            text.push_str(&format!("  {code:>3}  {meaning}\n"));
        }
        Self::command().after_help(FIRST_STEPS).after_long_help(text)
    }

    /// Parses the command line; ends the process with the help or a message if it is none.
    pub(crate) fn read() -> Self {
        let matches = Self::described().get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Flags of every command.
#[derive(Args, Clone, Debug)]
pub(crate) struct GlobalArguments {
    /// Where backups are kept: https://HOST:PORT/FOLDER
    #[arg(
        short = 'r',
        long,
        global = true,
        value_name = "URL",
        help_heading = "Global options"
    )]
    pub(crate) repo: Option<Repository>,
    /// File with the device token, instead of the one saved when this machine joined the server
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificates (PEM) that may sign the server's
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) cacert: Option<PathBuf>,
    /// Where operation logs are kept
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Tell more: exact bytes, every range, each restored file
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Global options")]
    pub(crate) verbose: u8,
    /// Tell nothing but errors and what was asked for
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        help_heading = "Global options"
    )]
    pub(crate) quiet: bool,
    /// Print JSON lines for programs, each with a message_type
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
}

impl GlobalArguments {
    /// How to print.
    pub(crate) fn output(&self) -> Output {
        Output {
            json: self.json,
            quiet: self.quiet,
            verbosity: self.verbose,
        }
    }
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a server that keeps backups
    Serve(commands::serve::ServeArguments),
    /// Make a code with which one more machine can join a server
    Invite(commands::invite::InviteArguments),
    /// Join a server with a code, and bind a directory to its folder
    Join(commands::join::JoinArguments),
    /// List, rename and revoke the machines that have joined a server
    Devices(commands::devices::DevicesArguments),
    /// Bind a folder to a server, joining the server if this machine has not yet
    Init(commands::init::InitArguments),
    /// Track a folder: mount it over itself, so that every change is known
    Mount(commands::mount::MountArguments),
    /// End the tracking of a folder
    Umount(commands::umount::UmountArguments),
    /// Keep a folder the same on several machines: mount it, send each change within seconds, and let in what the others did
    Sync(commands::sync::SyncArguments),
    /// Send and receive nothing for a folder that is kept in sync, until 'resume'; the folder works on
    Pause(commands::pause::PauseArguments),
    /// End a pause
    Resume(commands::pause::PauseArguments),
    /// Files that two machines changed at once, and what to keep of them
    Conflicts(commands::conflicts::ConflictsArguments),
    /// Files with bytes that nobody wrote, and a good version of them from the server
    Repair(commands::repair::RepairArguments),
    /// Save what changed since the last backup
    Backup(commands::backup::BackupArguments),
    /// List the snapshots of a repository
    Snapshots(commands::snapshots::SnapshotsArguments),
    /// List what is in a snapshot
    Ls(commands::ls::LsArguments),
    /// Show what differs between two snapshots
    Diff(commands::diff::DiffArguments),
    /// Bring a snapshot, or a part of one, back into a directory; or a file as it was some minutes ago
    Restore(commands::restore::RestoreArguments),
    /// Make a place at a server what a local file or directory is, without a mount
    Push(commands::push::PushArguments),
    /// Make a local directory what a server has at a place, without a mount
    Pull(commands::pull::PullArguments),
    /// Show what happened to a file of a mounted folder, and how much of it can be brought back
    History(commands::history::HistoryArguments),
    /// Show what changed since the last backup: ranges for people, lists and maps for other programs
    Changes(commands::changes::ChangesArguments),
    /// Write what changed in one file as a delta for 'rdiff patch'
    ExportDelta(commands::export_delta::ExportDeltaArguments),
    /// Show how the last backup of a file found what had changed in it, and why that way
    Explain(commands::explain::ExplainArguments),
    /// Show which checksums storage keeps of a file already, and with --verify whether they are those of its bytes
    Checksums(commands::checksums::ChecksumsArguments),
    /// List the programs that have a mark in a folder, and set their marks from scripts
    Consumers(commands::consumers::ConsumersArguments),
    /// Open, list and end moments of a mounted folder that any program can read
    Cut(commands::cut::CutArguments),
    /// Show since when folders are tracked, with every gap, and when they were last backed up
    Status(commands::status::StatusArguments),
    /// Check that a snapshot can be read in full, and with --deep that it equals the folder
    Verify(commands::verify::VerifyArguments),
    /// Make volumes, which are file systems that write less, and check them
    Volume(commands::volume::VolumeArguments),
    /// Print completions for a shell
    Completions(commands::completions::CompletionsArguments),
}

/// Of which repository.
#[derive(Args, Clone, Debug)]
pub(crate) struct SourceArguments {
    /// A bound folder whose repository is meant; without it and -r, the folder you are in
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}
