//! The command line: the verbs and the flags that several of them share. The flags of a single
//! command are in that command's file.

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands;
use crate::environment::{VARIABLES, Variable};
use crate::exit_code::MEANINGS;
use crate::help;
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
  byteback serve --data /srv/backup --listen 0.0.0.0:7117   on the server
  byteback invite NAME --data /srv/backup                   there, too: prints a code
  byteback join CODE DIR                                    on the machine with the folder
  byteback mount DIR                                        tracks every change from now on
  byteback backup DIR                                       reads and sends what changed
  byteback restore latest DIR --target NEW_DIR              restores the newest snapshot

'byteback COMMAND --help' explains each command.";

impl Arguments {
    /// The command line as clap sees it, with the help texts that are generated from other tables.
    pub(crate) fn described() -> clap::Command {
        let mut text = format!("{FIRST_STEPS}\n\nEnvironment:\n");
        for Variable { name, meaning } in VARIABLES {
            text.push_str(&format!("  {name}\n      {}\n", meaning.replace('`', "")));
        }
        text.push_str("\nExit codes:\n");
        for (code, meaning) in MEANINGS {
            text.push_str(&format!("  {code:>3}  {meaning}\n"));
        }
        let command = Self::command();
        let template = help::template(&command);
        command
            .help_template(template)
            .after_help(FIRST_STEPS)
            .after_long_help(text)
    }

    /// Parses the command line. Prints the help or an error message and ends the process if there
    /// is no command to run.
    pub(crate) fn read() -> Self {
        let matches = Self::described()
            .try_get_matches()
            .unwrap_or_else(|error| help::with_our_verb(error).exit());
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Flags of every command.
#[derive(Args, Clone, Debug)]
pub(crate) struct GlobalArguments {
    /// Use this folder on a server: https://HOST:PORT/FOLDER
    #[arg(
        short = 'r',
        long,
        global = true,
        value_name = "URL",
        help_heading = "Global options"
    )]
    pub(crate) repo: Option<Repository>,
    /// Read the device token from this file instead of the one saved when this machine joined
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) token_file: Option<PathBuf>,
    /// Trust the certificates (PEM) in this file to sign the server's, instead of the public ones
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) cacert: Option<PathBuf>,
    /// Keep operation logs in this directory
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Print more: exact byte counts, all ranges, each restored file
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Global options")]
    pub(crate) verbose: u8,
    /// Print only errors and the requested output
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
    /// The output options.
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
    /// Create a code that lets another machine join the server
    Invite(commands::invite::InviteArguments),
    /// Join a server with a code and bind a directory to its folder
    Join(commands::join::JoinArguments),
    /// List, rename and revoke the machines that have joined
    Devices(commands::devices::DevicesArguments),
    /// Follow a server to another address, for all folders at once
    Server(commands::server::ServerArguments),
    /// Bind a folder to a server
    Init(commands::init::InitArguments),
    /// Track a folder: mount it over itself and log every write
    Mount(commands::mount::MountArguments),
    /// Stop tracking a folder
    #[command(visible_alias = "unmount")]
    Umount(commands::umount::UmountArguments),
    /// Keep a folder in sync on several machines, within seconds
    Sync(commands::sync::SyncArguments),
    /// Pause the syncing of a folder until 'resume'
    Pause(commands::pause::PauseArguments),
    /// Resume the syncing of a folder
    Resume(commands::pause::PauseArguments),
    /// List and settle files that two machines changed at once
    Conflicts(commands::conflicts::ConflictsArguments),
    /// List files with corrupt bytes, and restore good versions
    Repair(commands::repair::RepairArguments),
    /// Save what changed since the last backup
    Backup(commands::backup::BackupArguments),
    /// List the snapshots of a folder
    Snapshots(commands::snapshots::SnapshotsArguments),
    /// List the files in a snapshot
    Ls(commands::ls::LsArguments),
    /// Show what differs between two snapshots
    Diff(commands::diff::DiffArguments),
    /// Restore a snapshot, a part of it, or an older state of a file
    Restore(commands::restore::RestoreArguments),
    /// Make a path on a server equal to a local file or directory
    Push(commands::push::PushArguments),
    /// Make a local directory equal to a path on a server
    Pull(commands::pull::PullArguments),
    /// List the versions of a file on the server
    Versions(commands::versions::VersionsArguments),
    /// Show recent changes to a file, which can be undone
    History(commands::history::HistoryArguments),
    /// Show what changed since the last backup, for people or programs
    Changes(commands::changes::ChangesArguments),
    /// Write the changes of one file as a delta for 'rdiff patch'
    ExportDelta(commands::export_delta::ExportDeltaArguments),
    /// Show how the last backup found the changes in a file
    Explain(commands::explain::ExplainArguments),
    /// Show or verify the checksums that storage keeps for a file
    Checksums(commands::checksums::ChecksumsArguments),
    /// List programs that follow a folder's changes; set their marks
    Consumers(commands::consumers::ConsumersArguments),
    /// Freeze a mounted folder at one moment, for any program to read
    Cut(commands::cut::CutArguments),
    /// Show how folders are tracked, synced and backed up
    Status(commands::status::StatusArguments),
    /// Check that a snapshot can be read in full
    #[command(visible_alias = "check")]
    Verify(commands::verify::VerifyArguments),
    /// Create, check and rescue volumes, which write less to flash
    Volume(commands::volume::VolumeArguments),
    /// Have systemd serve, mount and sync at each boot or login
    Service(commands::service::ServiceArguments),
    /// Write a manual page for each command
    #[command(hide = true)]
    ManPages(commands::man_pages::ManPagesArguments),
    /// Print completions for a shell
    Completions(commands::completions::CompletionsArguments),
}
