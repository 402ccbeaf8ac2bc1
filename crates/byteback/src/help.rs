//! The list of commands in `--help`, in groups, and the verbs that users of other programs try
//! first.
//!
//! A test checks the groups against the parser: each command is in exactly one of them.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::arguments::Arguments;

/// The commands by purpose, in the order in which a new user meets them.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Keep a folder safe",
        &["join", "init", "mount", "umount", "backup", "restore", "verify"],
    ),
    (
        "Keep a folder in sync",
        &["sync", "pause", "resume", "conflicts", "repair"],
    ),
    ("Without a mount", &["push", "pull"]),
    (
        "Inspect",
        &[
            "status",
            "snapshots",
            "ls",
            "diff",
            "versions",
            "history",
            "explain",
            "checksums",
        ],
    ),
    ("With other programs", &["changes", "consumers", "cut", "export-delta"]),
    ("Server", &["serve", "invite", "devices", "server", "service"]),
    ("Everything else", &["volume", "completions", "help"]),
];

const SNAPSHOTS_STAY: &str = "Snapshots never change; 'byteback snapshots DIR' lists them.";
const SNAPSHOTS_LIST: &str = "'byteback snapshots DIR' lists the snapshots of a folder.";
const REPOSITORY: &str = "'byteback serve' starts a server; 'byteback invite NAME' creates a folder on it.";
const FORMATS_FOLLOW: &str = "A format is upgraded by the program that opens it; there is nothing to do.";

/// Verbs that users of restic, Borg, rsync and Syncthing know, and the command that does the same
/// here.
const FOREIGN_VERBS: &[(&str, &str)] = &[
    (
        "create",
        "'byteback backup DIR' saves a folder; 'byteback volume create' creates a volume.",
    ),
    ("save", "'byteback backup DIR' saves a folder."),
    (
        "extract",
        "'byteback restore SNAPSHOT:PATH DIR --target NEW_DIR' restores files.",
    ),
    (
        "dump",
        "'byteback restore SNAPSHOT:PATH DIR --target NEW_DIR' restores one file.",
    ),
    (
        "recover",
        "'byteback restore SNAPSHOT DIR --target NEW_DIR' restores files.",
    ),
    (
        "list",
        "'byteback snapshots DIR' lists snapshots, 'byteback ls SNAPSHOT DIR' the files in one.",
    ),
    (
        "find",
        "'byteback ls SNAPSHOT DIR' lists all files of a snapshot, for grep.",
    ),
    (
        "info",
        "'byteback status DIR' shows how a folder is tracked and saved, 'byteback snapshots DIR' lists its snapshots.",
    ),
    (
        "stats",
        "'byteback status DIR' shows how a folder is tracked and saved.",
    ),
    (
        "forget",
        "Snapshots cannot be deleted yet; each one takes only the space of its changes.",
    ),
    (
        "prune",
        "Snapshots cannot be deleted yet, so there is nothing to prune.",
    ),
    (
        "compact",
        "The server compacts its store by itself; there is nothing to do.",
    ),
    (
        "delete",
        "Snapshots cannot be deleted yet; each one takes only the space of its changes.",
    ),
    (
        "unlock",
        "A lock ends with the process that holds it; 'byteback status' shows which one that is.",
    ),
    (
        "break-lock",
        "A lock ends with the process that holds it; 'byteback status' shows which one that is.",
    ),
    (
        "key",
        "Each machine has a token: 'byteback devices' lists and revokes machines, 'byteback invite' admits new ones.",
    ),
    (
        "rebuild-index",
        "The server has no index to rebuild; 'byteback verify DIR' checks that a snapshot can be read in full.",
    ),
    ("export-tar", "'byteback cut create NAME DIR' freezes a folder for tar."),
    (
        "import-tar",
        "Unpack the archive into a folder; 'byteback backup DIR' saves it.",
    ),
    (
        "cat",
        "'byteback restore SNAPSHOT:PATH DIR --target NEW_DIR' restores one file.",
    ),
    ("rewrite", SNAPSHOTS_STAY),
    ("recreate", SNAPSHOTS_STAY),
    ("rename", SNAPSHOTS_STAY),
    (
        "tag",
        "'byteback backup --tag TAG DIR' tags the new snapshot; the tags of older ones never change.",
    ),
    ("repo-create", REPOSITORY),
    ("rcreate", REPOSITORY),
    ("repo-list", SNAPSHOTS_LIST),
    ("rlist", SNAPSHOTS_LIST),
    ("repo-info", SNAPSHOTS_LIST),
    ("rinfo", SNAPSHOTS_LIST),
    (
        "transfer",
        "'byteback push' and 'byteback pull' copy to and from a server, without a mount.",
    ),
    ("migrate", FORMATS_FOLLOW),
    ("upgrade", FORMATS_FOLLOW),
    (
        "cache",
        "There is no cache to clean; 'byteback status' shows how much space the log takes.",
    ),
    (
        "config",
        "'byteback --help' lists flags and variables; 'byteback status' shows how a folder is set up.",
    ),
    (
        "with-lock",
        "No lock is needed: 'byteback cut create NAME DIR' freezes a folder for other programs.",
    ),
    (
        "generate",
        "'byteback completions SHELL' prints completions, 'byteback man-pages DIR' writes manual pages.",
    ),
    ("version", "'byteback --version' prints it."),
    (
        "self-update",
        "Update Byteback the way it was installed; 'byteback --version' prints its version.",
    ),
    ("watch", "'byteback sync DIR' keeps a folder in sync from now on."),
    (
        "start",
        "'byteback sync DIR' keeps a folder in sync, 'byteback mount DIR' tracks it for backups.",
    ),
    ("stop", "'byteback umount DIR' ends sync and tracking of a folder."),
    (
        "log",
        "'byteback changes DIR' shows what changed, 'byteback snapshots DIR' what was saved.",
    ),
    (
        "undo",
        "'byteback history FILE' lists what can be undone, 'byteback restore --at TIME FILE' undoes it.",
    ),
    ("connect", "'byteback join CODE DIR' joins a server."),
    ("login", "'byteback join CODE DIR' joins a server."),
    (
        "copy",
        "'byteback push' and 'byteback pull' copy to and from a server, without a mount.",
    ),
];

/// The template of the help that lists all commands.
pub(crate) fn template(command: &Command) -> String {
    let mut text = "{before-help}{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in GROUPS {
        text.push_str(&format!("\n{heading}:\n"));
        for name in *names {
            let about = match command.find_subcommand(name).and_then(Command::get_about) {
                Some(about) => about.to_string(),
                None => "Print this help, or the help of a command".to_owned(),
            };
            text.push_str(&format!("  {name:<13} {about}\n"));
        }
    }
    text.push_str("\nGlobal options:\n{options}{after-help}");
    text
}

/// An error of the parser; for a verb of another program, with the name of our command.
pub(crate) fn with_our_verb(error: clap::Error) -> clap::Error {
    let (ErrorKind::InvalidSubcommand, Some(ContextValue::String(verb))) =
        (error.kind(), error.get(ContextKind::InvalidSubcommand))
    else {
        return error;
    };
    match FOREIGN_VERBS.iter().find(|(foreign, _)| foreign == verb) {
        Some((_, ours)) => {
            let message = format!("there is no command '{verb}'. {ours}");
            Arguments::described().error(ErrorKind::InvalidSubcommand, message)
        }
        None => error,
    }
}

#[cfg(test)]
mod tests;
