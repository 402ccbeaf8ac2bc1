//! Real data: files of the machine that a measurement runs on.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::SuiteError;
use crate::rig::interrupt;

#[cfg(test)]
mod tests;

/// A regular file of this machine.
#[derive(Clone, Debug)]
pub(crate) struct RealFile {
    pub(crate) path: PathBuf,
    pub(crate) len_bytes: u64,
    pub(crate) modified_s: i64,
}

/// Readable regular files below `roots`, in the order of their names, up to limits.
pub(crate) fn readable_files(
    roots: &[impl AsRef<Path>],
    bytes_max: u64,
    count_max: usize,
) -> Result<Vec<RealFile>, SuiteError> {
    let mut files = Vec::new();
    let mut bytes = 0;
    for root in roots {
        let mut pending = vec![root.as_ref().to_owned()];
        while let Some(path) = pending.pop() {
            interrupt::check()?;
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                continue;
            };
            if metadata.is_dir() {
                let Ok(entries) = fs::read_dir(&path) else { continue };
                let mut names: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
                names.sort_unstable_by(|one, other| other.cmp(one));
                pending.extend(names);
            } else if metadata.is_file() && bytes + metadata.len() <= bytes_max && File::open(&path).is_ok() {
                bytes += metadata.len();
                files.push(RealFile {
                    path,
                    len_bytes: metadata.len(),
                    modified_s: metadata.mtime(),
                });
                if files.len() == count_max {
                    return Ok(files);
                }
            }
        }
    }
    Ok(files)
}
