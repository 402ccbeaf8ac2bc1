//! The files that have another content in one state of a folder than in an earlier one.
//!
//! Only regular files and their bytes count, each path by itself: a renamed file is one that was
//! removed and one that was added.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::SuiteError;
use crate::rig::interrupt;

#[cfg(test)]
mod tests;

const BLOCK_BYTES: u64 = 1 << 20;

/// Paths from the root of the folder, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Files of both states with different bytes.
    pub(super) changed: Vec<PathBuf>,
    /// Files of the newer state alone.
    pub(super) added: Vec<PathBuf>,
    /// Files of the older state alone.
    pub(super) removed: Vec<PathBuf>,
}

impl Changed {
    /// The number of files whose bytes a transfer has to carry.
    pub(super) fn files(&self) -> u64 {
        (self.changed.len() + self.added.len()) as u64
    }

    /// Whether both states have the same files.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The files that differ between two folders.
///
/// # Errors
/// If either cannot be read as a whole.
pub(super) fn between(old: &Path, new: &Path) -> Result<Changed, SuiteError> {
    let (mut old_files, mut new_files) = (BTreeMap::new(), BTreeMap::new());
    files(old, Path::new(""), &mut old_files)?;
    files(new, Path::new(""), &mut new_files)?;
    let mut all = Changed::default();
    for (name, len) in &new_files {
        match old_files.get(name) {
            None => all.added.push(name.clone()),
            Some(old_len) if old_len == len && are_equal(&old.join(name), &new.join(name))? => {}
            Some(_) => all.changed.push(name.clone()),
        }
    }
    let is_gone = |name: &&PathBuf| !new_files.contains_key(*name);
    all.removed.extend(old_files.keys().filter(is_gone).cloned());
    Ok(all)
}

/// Finds all regular files below a directory of a folder, with their lengths.
fn files(folder: &Path, directory: &Path, found: &mut BTreeMap<PathBuf, u64>) -> Result<(), SuiteError> {
    let path = folder.join(directory);
    for entry in fs::read_dir(&path).map_err(|error| format!("cannot list {}: {error}", path.display()))? {
        let entry = entry?;
        let name = directory.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            files(folder, &name, found)?;
        } else if kind.is_file() {
            found.insert(name, entry.metadata()?.len());
        }
    }
    Ok(())
}

/// Whether two files of one length have the same bytes.
fn are_equal(one: &Path, other: &Path) -> Result<bool, SuiteError> {
    interrupt::check()?;
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    let (mut bytes, mut others) = (Vec::new(), Vec::new());
    loop {
        bytes.clear();
        others.clear();
        one.by_ref().take(BLOCK_BYTES).read_to_end(&mut bytes)?;
        other.by_ref().take(BLOCK_BYTES).read_to_end(&mut others)?;
        if bytes != others {
            return Ok(false);
        }
        if bytes.is_empty() {
            return Ok(true);
        }
    }
}
