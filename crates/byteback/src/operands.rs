//! Operands that are told apart by their form.
//!
//! The folder is an operand of every command, without a flag before it. Where other operands are
//! optional, the form decides: `latest`, `latest~2:etc` and `17` are snapshots, everything else is
//! the folder. A directory whose name reads like a snapshot is written as `./17`. The flags `--dir`
//! and `--folder` mean the same as the operand.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::error::ErrorKind;
use rustix::io::Errno;

use crate::arguments::Arguments;
use crate::error::Result;
use crate::settings::Settings;
use crate::snapshot_path::SnapshotPath;
use crate::tracked_folder;

/// The folder of a listing command, whose repository is meant.
#[derive(Args, Clone, Debug)]
pub(crate) struct SourceArguments {
    /// Use the snapshots of this folder [default without -r: the current folder]
    #[arg(value_name = "DIR")]
    operand: Option<OsString>,
    /// The same as DIR
    #[arg(long, visible_alias = "folder", value_name = "DIR", conflicts_with = "operand")]
    dir: Option<PathBuf>,
}

/// Snapshots, and the folder that they belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// The snapshots, in the order in which they were named.
    pub(crate) snapshots: Vec<SnapshotPath>,
    /// The folder, if one was named.
    pub(crate) dir: Option<PathBuf>,
}

impl Chosen {
    /// The snapshot at `index`, or the newest one if fewer were named.
    pub(crate) fn snapshot(&self, index: usize) -> SnapshotPath {
        self.snapshots.get(index).cloned().unwrap_or_else(SnapshotPath::latest)
    }
}

impl SourceArguments {
    /// The folder, for a command without other operands.
    pub(crate) fn dir(&self) -> Option<PathBuf> {
        self.dir.clone().or_else(|| self.operand.as_ref().map(PathBuf::from))
    }

    /// Tells the snapshots (at most `snapshots_max`) and the folder apart. Ends the process with a
    /// message if an operand is neither.
    pub(crate) fn choose<'a>(
        &'a self,
        operands: impl IntoIterator<Item = &'a OsString>,
        snapshots_max: usize,
    ) -> Chosen {
        let all = operands.into_iter().chain(&self.operand);
        choose(all, self.dir.clone(), snapshots_max)
            .unwrap_or_else(|message| Arguments::described().error(ErrorKind::ValueValidation, message).exit())
    }
}

fn choose<'a>(
    operands: impl Iterator<Item = &'a OsString>,
    dir: Option<PathBuf>,
    snapshots_max: usize,
) -> Result<Chosen, String> {
    let mut chosen = Chosen {
        snapshots: Vec::new(),
        dir,
    };
    for operand in operands {
        let path = Path::new(operand);
        match SnapshotPath::parse(operand) {
            Ok(snapshot) if chosen.snapshots.len() < snapshots_max => chosen.snapshots.push(snapshot),
            Ok(_) => return Err(format!("too many snapshots: '{}'", path.display())),
            Err(_) if is_directory(path) && chosen.dir.is_none() => chosen.dir = Some(path.to_owned()),
            Err(_) if is_directory(path) => return Err(format!("too many folders: '{}'", path.display())),
            Err(_) => {
                return Err(format!(
                    "'{}' is neither a snapshot (latest, latest~1 for the one before, or a number from 'snapshots') nor a directory",
                    path.display()
                ));
            }
        }
    }
    Ok(chosen)
}

/// Whether a path is a directory, or a dead mount that hides one.
fn is_directory(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(found) => found.is_dir(),
        Err(error) => error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()),
    }
}

/// The folder and the files in it that a command is about.
#[derive(Args, Clone, Debug)]
pub(crate) struct FilesArguments {
    /// Folder [default: that of the files, or the current one], and files to select in it [default:
    /// all]
    #[arg(value_name = "DIR|FILE")]
    operands: Vec<PathBuf>,
    /// The same as DIR
    #[arg(long, visible_alias = "dir", value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl FilesArguments {
    /// The folder, if one was named, and the files.
    ///
    /// The first operand is the folder if it is the root of a known folder, or a directory outside
    /// of all known folders (which the caller then reports). Otherwise the first file decides which
    /// folder is meant.
    pub(crate) fn split(&self, settings: &Settings) -> Result<(Option<PathBuf>, &[PathBuf])> {
        if let Some(folder) = &self.folder {
            return Ok((Some(folder.clone()), &self.operands));
        }
        let Some((first, others)) = self.operands.split_first() else {
            return Ok((None, &[]));
        };
        if is_directory(first) && tracked_folder::is_root_or_unknown(first, settings)? {
            return Ok((Some(first.clone()), others));
        }
        let folder = tracked_folder::folder_of_file(first, settings).ok();
        let folder = folder.map(|(known, _)| known.folder.directory().to_owned());
        Ok((folder, &self.operands))
    }
}

#[cfg(test)]
mod tests;
