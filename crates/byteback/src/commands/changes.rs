//! `byteback changes`: the changes since a mark, for people and for other programs. It only looks:
//! no mark moves.
//!
//! | room | what is in it |
//! |---|---|
//! | `text` | the changed ranges of each file, as sentences or JSON lines |
//! | `paths` | lists of names, for restic, rsync and tar |
//! | `borg_map` | the range map of one file, for Borg 2 |

pub(super) mod borg_map;
mod paths;
mod text;

pub(super) use text::why;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use byteback_backup::SnapshotSpec;
use byteback_control::{CutInfo, CutRequest, Outcome, TreeService};
use byteback_model::ByteString;
use clap::{Args, ValueEnum};

use crate::commands::consumers::EpochArgument;
use crate::error::{CommandError, Result};
use crate::last_backup::LastBackup;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::tracked_folder::{self, KnownFolder, Owner};

/// Flags of `changes`.
#[derive(Args, Debug)]
#[command(after_help = "Formats:
  text      the changed ranges of each file (with --json: one object for each)
  files     what exists and has changed, except directories: one ./NAME per line, below the folder
            restic backup --files-from-raw LIST     (in the folder, with -0)
  paths     like files, plus the changed directories themselves
            rsync -aHI --from0 --files-from=LIST DIR/ COPY/    (with -0)
            tar -C DIR --null --no-recursion -T LIST -cf ...   (with -0)
  removed   what is gone, or may be in the way of what exists now: remove it from a copy first
            xargs -0 -r rm -rf -- < LIST       (in the copy, with -0)
  borg-map  the range map of one file, named instead of the folder
            borg create --map LIST --reuse-from ARCHIVE NAME FILE     (Borg 2)

See 'byteback consumers --help' for programs with a mark of their own.")]
pub(crate) struct ChangesArguments {
    /// Folder, or with borg-map the file (default: the folder you are in)
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Start of the changes: mark (the consumer's last save), an epoch (@17), or the last backup's
    /// snapshot
    #[arg(long, value_name = "MOMENT", default_value = "mark")]
    since: Since,
    /// Start at the mark of this consumer (default: 'byteback backup')
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Stop at this cut, with names as they were then, instead of now (see 'byteback cut')
    #[arg(long, value_name = "NAME")]
    cut: Option<OsString>,
    /// Print the changes in this format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// End each name with a zero byte instead of a newline, for names that contain newlines
    #[arg(short = '0', long)]
    null: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Files,
    Paths,
    Removed,
    BorgMap,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Since {
    Mark,
    Epoch(EpochArgument),
    Snapshot(SnapshotSpec),
}

impl std::str::FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "mark" => Ok(Self::Mark),
            text if text.starts_with('@') => text.parse().map(Self::Epoch),
            text => text
                .parse()
                .map(Self::Snapshot)
                .map_err(|error: byteback_backup::ParseSnapshotSpecError| error.to_string()),
        }
    }
}

/// The requested changes: of which consumer, and since when.
struct Asked<'a> {
    tree: &'a dyn TreeService,
    request: CutRequest,
    /// The cut whose changes are listed; `None` for the present moment.
    cut: Option<ByteString>,
    /// Whether the mark is that of 'byteback backup'.
    is_own: bool,
}

impl Asked<'_> {
    /// Takes the moment to list and calls `list` with it. Entries that could not be compared with
    /// the record, and may have changed as well, are reported first.
    fn look<T>(&self, settings: &Settings, list: impl FnOnce(&CutInfo) -> Result<T>) -> Result<T> {
        let info = match &self.cut {
            Some(name) => self.tree.look_at(name, &self.request)?,
            None => self.tree.cut(&self.request)?,
        };
        for error in &info.unreadable {
            settings
                .output
                .item_error("changes", error.path.as_ref(), &error.message);
        }
        let listed = list(&info);
        // If both fail, the error of the listing is returned.
        let finished = self.tree.finish(info.cut, &Outcome::Abandoned);
        let listed = listed?;
        finished?;
        Ok(listed)
    }
}

pub(crate) fn run(arguments: &ChangesArguments, settings: &Settings) -> Result<()> {
    if arguments.null && !matches!(arguments.format, Format::Files | Format::Paths | Format::Removed) {
        return Err(CommandError::new("-0 works only with lists of names")
            .next("Add --format files, paths or removed, or leave -0 out."));
    }
    if settings.output.json && arguments.format != Format::Text {
        return Err(CommandError::new("--json works only with --format text").next("Leave one of them out."));
    }
    let (known, file) = match (arguments.format, &arguments.path) {
        (Format::BorgMap, None) => {
            return Err(CommandError::new("a Borg map describes one file")
                .next("Name the file: byteback changes --format borg-map FILE"));
        }
        (Format::BorgMap, Some(file)) => {
            let (known, path) = tracked_folder::folder_of_file(file, settings)?;
            (known, Some((file, path)))
        }
        (_, path) => (tracked_folder::known_folder(path.as_deref(), settings)?, None),
    };
    // A file inside a cut is listed as of that cut.
    let mut cut = arguments.cut.as_ref().map(|name| ByteString::from(name.as_bytes()));
    let file = file.map(|(file, path)| match in_cut(&path) {
        Some((name, path)) => {
            cut = Some(name);
            (file, path)
        }
        None => (file, path),
    });
    let consumer = known.consumer(arguments.consumer.as_deref())?;
    let progress = Progress::new(settings, "changes", None);
    let owner = Owner::of(&known.folder, settings, &progress)?;
    let tree = owner.service();
    let since = match arguments.since {
        Since::Mark => None,
        Since::Epoch(EpochArgument(epoch)) => Some(epoch),
        Since::Snapshot(spec) => {
            check_snapshot(spec, &known, tree, &consumer, settings)?;
            None
        }
    };
    progress.finish();
    let asked = Asked {
        tree,
        is_own: arguments.consumer.is_none(),
        cut,
        request: CutRequest {
            look_only: true,
            since,
            ..CutRequest::of(&consumer)
        },
    };
    match (arguments.format, file) {
        (Format::BorgMap, Some((file, path))) => borg_map::print(&asked, file, &path, settings),
        (Format::Text | Format::BorgMap, _) => text::print(&asked, settings),
        (Format::Files, _) => paths::print(&asked, paths::Kind::Files, arguments.null, settings),
        (Format::Paths, _) => paths::print(&asked, paths::Kind::Paths, arguments.null, settings),
        (Format::Removed, _) => paths::print(&asked, paths::Kind::Removed, arguments.null, settings),
    }
}

/// The name of the cut that a path lies in, and the path within the cut.
pub(super) fn in_cut(path: &ByteString) -> Option<(ByteString, ByteString)> {
    let below = path.as_bytes().strip_prefix(b".byteback/cut/")?;
    let slash = below.iter().position(|byte| *byte == b'/')?;
    let (name, path) = below.split_at(slash);
    Some((ByteString::from(name), ByteString::from(path.get(1..)?)))
}

/// Refuses other snapshots than the last backup's: the log does not keep the changes since each.
fn check_snapshot(
    spec: SnapshotSpec,
    known: &KnownFolder,
    tree: &dyn TreeService,
    consumer: &str,
    settings: &Settings,
) -> Result<()> {
    let Some(binding) = &known.binding else {
        return Err(
            CommandError::new("the folder is not bound to a server, so it has no snapshots")
                .next("Leave out --since for the changes since the consumer's mark."),
        );
    };
    let (server, _) = settings.connect(&binding.repository.server, Some(binding))?;
    let snapshot = byteback_backup::resolve_snapshot(&server, &binding.repository.folder, spec)?;
    let status = tree.status()?;
    let last = LastBackup::find(&status, consumer).and_then(LastBackup::seq);
    if last == Some(snapshot.seq) {
        return Ok(());
    }
    let id = snapshot.id;
    Err(CommandError::new(format!(
        "the folder's log knows the changes since the last backup, not since snapshot {id}"
    ))
    .next(format!(
        "Leave out --since to list those; to see what was saved after snapshot {id}: byteback diff {id} latest"
    )))
}
