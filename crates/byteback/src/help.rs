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
        "Look",
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

const SNAPSHOTS_STAY: &str = "Snapshots stay as they were made; 'byteback snapshots DIR' lists them.";
const SNAPSHOTS_LIST: &str = "'byteback snapshots DIR' lists what the server has of a folder.";
const REPOSITORY: &str = "'byteback serve' starts a server; its folders begin with 'byteback invite NAME'.";
const FORMATS_FOLLOW: &str = "Formats are brought up to date by the programs that open them; nothing is to be done.";

/// Verbs that users of restic, Borg, rsync and Syncthing know, and the command that does the same
/// here.
const FOREIGN_VERBS: &[(&str, &str)] = &[
    (
        "create",
        "'byteback backup DIR' saves a folder; 'byteback volume create' makes a volume.",
    ),
    ("save", "'byteback backup DIR' saves a folder."),
    (
        "extract",
        "'byteback restore SNAPSHOT:PATH DIR --target NEW_DIR' brings files back.",
    ),
    (
        "dump",
        "'byteback restore SNAPSHOT:PATH DIR --target NEW_DIR' brings one file back.",
    ),
    (
        "recover",
        "'byteback restore SNAPSHOT DIR --target NEW_DIR' brings files back.",
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
        "'byteback status DIR' shows how a folder is tracked and saved, 'byteback snapshots DIR' what there is of it.",
    ),
    (
        "stats",
        "'byteback status DIR' shows how a folder is tracked and saved.",
    ),
    (
        "forget",
        "Nothing is forgotten yet: snapshots stay, and each costs what it changed.",
    ),
    ("prune", "Nothing is forgotten yet, so there is nothing to prune."),
    (
        "compact",
        "The server merges what it stores by itself; there is nothing to compact.",
    ),
    (
        "delete",
        "Nothing is forgotten yet: snapshots stay, and each costs what it changed.",
    ),
    (
        "unlock",
        "Locks end with the process that holds them; 'byteback status' shows who it is.",
    ),
    (
        "break-lock",
        "Locks end with the process that holds them; 'byteback status' shows who it is.",
    ),
    (
        "key",
        "Machines have tokens: 'byteback devices' lists and revokes them, 'byteback invite' admits new ones.",
    ),
    (
        "rebuild-index",
        "The server has no index to rebuild; 'byteback verify DIR' reads all that is stored.",
    ),
    ("export-tar", "'byteback cut create NAME DIR' freezes a folder for tar."),
    (
        "import-tar",
        "Unpack the archive into a folder; 'byteback backup DIR' saves it.",
    ),
    (
        "cat",
        "'byteback restore SNAPSHOT:PATH DIR --target NEW_DIR' brings one file back.",
    ),
    ("rewrite", SNAPSHOTS_STAY),
    ("recreate", SNAPSHOTS_STAY),
    ("rename", SNAPSHOTS_STAY),
    (
        "tag",
        "Snapshots have numbers and times, no tags; 'byteback snapshots DIR' lists them.",
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
        "Nothing is cached that could need cleaning; 'byteback status' shows what the log takes.",
    ),
    (
        "config",
        "Flags and variables are in 'byteback --help'; 'byteback status' shows what holds for a folder.",
    ),
    (
        "with-lock",
        "Nothing needs to be locked: 'byteback cut create NAME DIR' freezes a folder for other programs.",
    ),
    (
        "generate",
        "'byteback completions SHELL' prints completions, 'byteback man-pages DIR' writes manual pages.",
    ),
    ("version", "'byteback --version' prints it."),
    (
        "self-update",
        "It is updated as it was installed; 'byteback --version' prints which one this is.",
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
        "'byteback history FILE' lists what can be undone, 'byteback restore --at TIME FILE' does it.",
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
                None => "Print this, or the help of a command".to_owned(),
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
