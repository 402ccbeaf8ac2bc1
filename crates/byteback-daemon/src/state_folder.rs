//! Where a tree's log lives: one folder per tracked directory, below the state root.
//!
//! The folder's name is made of the directory's last name, for people, and a hash of its whole
//! path, for uniqueness; the file `path` inside holds the path itself, so that a collision is
//! noticed and a person can see what the folder belongs to.
//!
//! | file | what |
//! |---|---|
//! | `lock` | held by the process that owns the tree |
//! | `path` | the tracked directory |
//! | `mark.json`, `held-back.json` | how the directory is recognized, and why sync does not begin; see `presence` |
//! | `log.redb`, `intents` | the operation log, see `byteback-oplog`; `log.redb.damaged`, `log.damaged`: the remains of a damaged one |
//! | `live` | continuous sync: the journal of groups, the queue after a clean stop, saved bytes, deltas; see `live` |
//! | `written.redb` | checksums of what programs wrote, if they are kept; see `integrity` |
//! | `undo` | the journal of `byteback-undo`, if old bytes are kept |
//! | `control.sock` | the socket of the daemon |
//! | `volume` | the file or device of the volume that the tree lies in, if it does; the log and what belongs to it are then in there, not here |
//! | `bare` | how the directory below that volume is protected, see `bare_directory` |
//! | `lost-writes` | whether that volume lost writes, see [`lost_writes`](crate::lost_writes) |
//! | `binding.json` | where the tree is backed up to; written and read by the command |

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use byteback_host::durable::{DirLock, RealDir};

use crate::error::DaemonError;

const NAME_BYTES_MAX: usize = 40;
/// The folder with the undo journal.
pub(crate) const UNDO_NAME: &str = "undo";
/// The checksums of files that this process summed.
pub(crate) const KEPT_NAME: &str = "kept.redb";
/// The file with the path of the tracked directory.
const PATH_NAME: &str = "path";

/// The file that names the volume that the tree lies in.
const VOLUME_NAME: &str = "volume";
/// The log, which is here if the tree was tracked as a directory.
const LOG_NAME: &str = "log.redb";

/// The state folder of one tracked directory.
#[derive(Clone, Debug)]
pub struct StateFolder {
    directory: PathBuf,
    folder: PathBuf,
}

impl StateFolder {
    /// The state folder of `directory` below `state_root`, which need not exist.
    ///
    /// # Errors
    /// If `directory` does not exist, or the state root lies inside it.
    pub fn of(directory: &Path, state_root: &Path) -> Result<Self, DaemonError> {
        let failed = |source| DaemonError::Folder {
            path: directory.to_owned(),
            source,
        };
        let directory = fs::canonicalize(directory).map_err(failed)?;
        let state_root = std::path::absolute(state_root).map_err(failed)?;
        // The part of the state root that exists may hide a symlink into the tree.
        let existing = state_root.ancestors().find_map(|path| fs::canonicalize(path).ok());
        if existing.is_some_and(|existing| existing.starts_with(&directory)) || state_root.starts_with(&directory) {
            return Err(DaemonError::StateInside {
                state: state_root,
                path: directory,
            });
        }
        let folder = state_root.join("trees").join(folder_name(&directory));
        Ok(Self { directory, folder })
    }

    /// All state folders below `state_root`.
    ///
    /// # Errors
    /// If the state root cannot be read.
    pub fn all(state_root: &Path) -> io::Result<Vec<Self>> {
        let mut folders = Vec::new();
        let entries = match fs::read_dir(state_root.join("trees")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(folders),
            entries => entries?,
        };
        for entry in entries {
            let folder = entry?.path();
            if let Ok(path) = fs::read(folder.join(PATH_NAME)) {
                folders.push(Self {
                    directory: PathBuf::from(std::ffi::OsString::from_vec(path)),
                    folder,
                });
            }
        }
        folders.sort_by(|one, other| one.directory.cmp(&other.directory));
        Ok(folders)
    }

    /// The tracked directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// The folder of the old bytes that undo keeps.
    #[must_use]
    pub fn undo_dir(&self) -> PathBuf {
        self.folder.join(UNDO_NAME)
    }

    /// Whether the folder was created already.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.folder.join(PATH_NAME).exists()
    }

    /// The socket of the tree's daemon.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("control.sock")
    }

    /// Makes the folder if it is missing.
    ///
    /// # Errors
    /// If the folder cannot be made, or belongs to another directory.
    pub fn create(&self) -> Result<(), DaemonError> {
        let failed = |source| DaemonError::State {
            path: self.folder.clone(),
            source,
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .map_err(failed)?;
        let path = self.folder.join(PATH_NAME);
        match fs::read(&path) {
            Ok(owner) if owner == self.directory.as_os_str().as_bytes() => Ok(()),
            Ok(owner) => {
                let owner = String::from_utf8_lossy(&owner).into_owned();
                let path = path.display();
                Err(failed(io::Error::other(format!(
                    "it is recorded as the state of {owner}; if that is wrong, remove {path} and try again"
                ))))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.write_path(&path).map_err(failed),
            Err(error) => Err(failed(error)),
        }
    }

    /// The file or device of the volume that the tree lies in; `None`: the directory is the tree.
    ///
    /// # Errors
    /// If that cannot be read.
    pub fn volume(&self) -> Result<Option<PathBuf>, DaemonError> {
        let path = self.folder.join(VOLUME_NAME);
        match fs::read(&path) {
            Ok(volume) => Ok(Some(PathBuf::from(std::ffi::OsString::from_vec(volume)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(DaemonError::State { path, source }),
        }
    }

    /// Makes this volume, an absolute path, the place of the tree from now on; the directory
    /// becomes its mount point. The folder exists.
    ///
    /// # Errors
    /// [`DaemonError::TrackedAlready`], or the system's error.
    pub fn set_volume(&self, volume: &Path) -> Result<(), DaemonError> {
        if self.volume()?.is_none() && self.folder.join(LOG_NAME).exists() {
            return Err(DaemonError::TrackedAlready {
                path: self.directory.clone(),
            });
        }
        let path = self.folder.join(VOLUME_NAME);
        let written = self.write_whole(&path, volume.as_os_str().as_bytes());
        written.map_err(|source| DaemonError::State { path, source })
    }

    /// Writes the path of the tracked directory, whole or not at all. The lock is not held yet:
    /// other processes may be doing the same.
    fn write_path(&self, path: &Path) -> io::Result<()> {
        self.write_whole(path, self.directory.as_os_str().as_bytes())
    }

    pub(crate) fn write_whole(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let new = path.with_extension(format!("{}.new", std::process::id()));
        let mut file = fs::File::create(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        fs::File::open(&self.folder)?.sync_all()
    }

    /// The process that owns the tree and is about to give it up.
    #[must_use]
    pub fn ending_owner(&self) -> Option<u32> {
        DirLock::ending_owner(&self.folder)
    }

    /// Takes the tree for this process, creating its folder if it is missing. Waits for an owner
    /// that is ending.
    ///
    /// # Errors
    /// [`DaemonError::InUse`] if another process owns it.
    pub fn take(&self) -> Result<(RealDir, DirLock), DaemonError> {
        self.create()?;
        let dir = RealDir::open(&self.folder).map_err(|source| DaemonError::State {
            path: self.folder.clone(),
            source,
        })?;
        let lock = dir.lock().map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => DaemonError::InUse {
                path: self.directory.clone(),
                reason: source.to_string(),
            },
            _ => DaemonError::State {
                path: self.folder.clone(),
                source,
            },
        })?;
        Ok((dir, lock))
    }
}

fn folder_name(directory: &Path) -> String {
    let last = directory.file_name().unwrap_or(OsStr::new("root"));
    let mut name: String = last
        .as_bytes()
        .iter()
        .take(NAME_BYTES_MAX)
        .map(|byte| {
            if byte.is_ascii_alphanumeric() || *byte == b'-' {
                char::from(*byte)
            } else {
                '_'
            }
        })
        .collect();
    name.push_str(&format!("-{:016x}", fnv1a(directory.as_os_str().as_bytes())));
    name
}

/// FNV-1a, which stays the same across all versions; the standard library's hash does not.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
