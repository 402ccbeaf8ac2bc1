//! One file per command: its flags, the calls that it makes, its output. Nothing is decided here.

pub(crate) mod backup;
pub(crate) mod changes;
pub(crate) mod checksums;
pub(crate) mod completions;
pub(crate) mod conflicts;
pub(crate) mod consumers;
pub(crate) mod cut;
mod desk;
pub(crate) mod devices;
pub(crate) mod diff;
pub(crate) mod explain;
pub(crate) mod export_delta;
pub(crate) mod history;
pub(crate) mod init;
pub(crate) mod invite;
pub(crate) mod join;
pub(crate) mod ls;
pub(crate) mod man_pages;
pub(crate) mod mount;
pub(crate) mod pause;
mod plain;
pub(crate) mod pull;
pub(crate) mod push;
pub(crate) mod repair;
pub(crate) mod restore;
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod service;
pub(crate) mod snapshots;
mod source;
pub(crate) mod status;
pub(crate) mod sync;
pub(crate) mod umount;
pub(crate) mod verify;
pub(crate) mod versions;
pub(crate) mod volume;

use crate::arguments::Command;
use crate::error::Result;
use crate::settings::Settings;

/// Runs a command.
pub(crate) fn run(command: Command, settings: &Settings) -> Result<()> {
    match command {
        Command::Serve(arguments) => serve::run(&arguments, settings),
        Command::Invite(arguments) => invite::run(&arguments, settings),
        Command::Join(arguments) => join::run(&arguments, settings),
        Command::Devices(arguments) => devices::run(&arguments, settings),
        Command::Server(arguments) => server::run(&arguments, settings),
        Command::Init(arguments) => init::run(&arguments, settings),
        Command::Mount(arguments) => mount::run(&arguments, settings),
        Command::Umount(arguments) => umount::run(&arguments, settings),
        Command::Sync(arguments) => sync::run(&arguments, settings),
        Command::Pause(arguments) => pause::pause(&arguments, settings),
        Command::Resume(arguments) => pause::resume(&arguments, settings),
        Command::Conflicts(arguments) => conflicts::run(&arguments, settings),
        Command::Repair(arguments) => repair::run(&arguments, settings),
        Command::Backup(arguments) => backup::run(arguments, settings),
        Command::Snapshots(arguments) => snapshots::run(&arguments, settings),
        Command::Ls(arguments) => ls::run(&arguments, settings),
        Command::Diff(arguments) => diff::run(&arguments, settings),
        Command::Restore(arguments) => restore::run(&arguments, settings),
        Command::Push(arguments) => push::run(&arguments, settings),
        Command::Pull(arguments) => pull::run(&arguments, settings),
        Command::Versions(arguments) => versions::run(&arguments, settings),
        Command::History(arguments) => history::run(&arguments, settings),
        Command::Changes(arguments) => changes::run(&arguments, settings),
        Command::Explain(arguments) => explain::run(&arguments, settings),
        Command::Checksums(arguments) => checksums::run(&arguments, settings),
        Command::ExportDelta(arguments) => export_delta::run(&arguments, settings),
        Command::Consumers(arguments) => consumers::run(&arguments, settings),
        Command::Cut(arguments) => cut::run(&arguments, settings),
        Command::Status(arguments) => status::run(&arguments, settings),
        Command::Verify(arguments) => verify::run(&arguments, settings),
        Command::Volume(arguments) => volume::run(&arguments, settings),
        Command::Service(arguments) => service::run(&arguments, settings),
        Command::ManPages(arguments) => man_pages::run(&arguments, settings),
        Command::Completions(arguments) => completions::run(&arguments, settings),
    }
}
