//! Whether the directory at a path is still the folder that was tracked there.
//!
//! A path alone does not tell. If the disk of a folder is not mounted, its mount point is an empty
//! directory, and a comparison with the record would find that everything was removed. So the
//! folder is known by a *mark* in its state folder (`mark.json`: inode, time of birth, file
//! system), and by what the record says lies in it. Both are checked before anything is noted:
//!
//! | what is found | [`Doubt`] |
//! |---|---|
//! | another directory: another inode, birth or file system than the mark's | [`Doubt::OtherDirectory`] |
//! | the same, and more than a given share of its files is gone, and not moved within it | [`Doubt::FilesGone`] |
//!
//! Continuous sync, which acts on removals, does not open a folder in doubt: [`OnDoubt::Refuse`].
//! The record stays as it is, so everything is as before once the right directory is there again.
//! Other commands open it ([`OnDoubt::Note`]) and the record follows what is there. If the folder
//! is also kept in sync, that is noted durably *before* the record changes (`held-back.json`), and
//! sync refuses until its user has decided ([`OnDoubt::Accept`]).
//!
//! Out of scope: doubting the root of a tree in a volume, which is always the volume's; its files
//! are counted all the same.

use std::io;
use std::path::PathBuf;

use byteback_host::durable::{DurableDir, RealDir, VersionedJson, VersionedJsonError};
use byteback_host::tree::Inode;
use byteback_oplog::Presence;
use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::doubt::{Doubt, HeldBack};
use crate::error::DaemonError;
use crate::state_folder::StateFolder;

const MARK: VersionedJson = VersionedJson {
    name: "mark.json",
    version: 1,
    len_max_bytes: 64 * 1024,
};
const HELD_BACK: VersionedJson = VersionedJson {
    name: "held-back.json",
    ..MARK
};

/// Fewest missing files that raise a doubt, whatever share of the folder they are.
const GONE_FILES_MIN: u64 = 10;

/// Treatment of a folder in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDoubt {
    /// The folder is not opened.
    Refuse {
        /// Percentage of its files that may be gone without a doubt, at most 100.
        gone_percent_max: u8,
    },
    /// The folder is opened, see the module.
    Note,
    /// The folder is opened and accepted as it is: its user has decided.
    Accept,
}

impl OnDoubt {
    /// Percentage of a folder's files that may be gone, unless the user says otherwise.
    pub const GONE_PERCENT_MAX: u8 = 50;

    fn gone_percent_max(self) -> u8 {
        match self {
            Self::Refuse { gone_percent_max } => gone_percent_max,
            Self::Note => Self::GONE_PERCENT_MAX,
            Self::Accept => 100,
        }
    }
}

/// Features by which a directory is recognized.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    inode: u64,
    birth_ns: Option<i64>,
    file_system: Option<String>,
}

impl Mark {
    /// The mark of a directory, as an `O_PATH` descriptor.
    pub(crate) fn of(root: &Inode, keeps_births: bool) -> io::Result<Self> {
        let identity = root.stat()?.identity();
        let readable = root.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Self {
            inode: identity.ino,
            birth_ns: identity.birth_ns.filter(|_| keeps_births),
            file_system: readable.file_system()?,
        })
    }

    /// A feature that is unknown on one side is no difference: a newer kernel reports more.
    fn doubt(&self, now: &Self) -> Option<Doubt> {
        let is_other_file_system = matches!((&self.file_system, &now.file_system), (Some(was), Some(is)) if was != is);
        let is_other_birth = matches!((self.birth_ns, now.birth_ns), (Some(was), Some(is)) if was != is);
        let is_other = is_other_file_system || is_other_birth || self.inode != now.inode;
        is_other.then_some(Doubt::OtherDirectory { is_other_file_system })
    }
}

/// The check of a folder: what was noted of it, and what is found.
pub(crate) struct Guard<'a> {
    folder: &'a StateFolder,
    dir: RealDir,
    on_doubt: OnDoubt,
    now_ns: i64,
    is_volume: bool,
    /// The mark of the directory now; `None` for a volume.
    mark: Option<Mark>,
    is_in_sync: bool,
    doubt: Option<Doubt>,
}

impl<'a> Guard<'a> {
    /// A check of `folder`. Both files lie in the state folder, also for a tree in a volume.
    ///
    /// # Errors
    /// If the state folder cannot be opened.
    pub(crate) fn new(
        folder: &'a StateFolder,
        on_doubt: OnDoubt,
        is_volume: bool,
        now_ns: i64,
    ) -> Result<Self, DaemonError> {
        let dir = RealDir::open(folder.path()).map_err(|source| DaemonError::State {
            path: folder.path().to_owned(),
            source,
        })?;
        Ok(Self {
            folder,
            dir,
            on_doubt,
            now_ns,
            is_volume,
            mark: None,
            is_in_sync: false,
            doubt: None,
        })
    }

    /// Checks the folder before anything is compared. `missing` finds out whether more than the
    /// given percentage of the files is gone.
    ///
    /// # Errors
    /// [`DaemonError::HeldBack`]; or if a note cannot be read or written.
    pub(crate) fn before(
        &mut self,
        root: &Inode,
        keeps_births: bool,
        is_in_sync: bool,
        missing: impl FnOnce(u8) -> Result<Option<Presence>, DaemonError>,
    ) -> Result<(), DaemonError> {
        if !self.is_volume {
            let mark = Mark::of(root, keeps_births).map_err(|source| DaemonError::Folder {
                path: self.folder.directory().to_owned(),
                source,
            })?;
            self.mark = Some(mark);
        }
        self.is_in_sync = is_in_sync;
        let known: Option<Mark> = self.read(MARK)?;
        let noted: Option<HeldBack> = self.read(HELD_BACK)?;
        if self.on_doubt == OnDoubt::Accept {
            return Ok(());
        }
        let is_other = known.zip(self.mark.as_ref()).and_then(|(known, now)| known.doubt(now));
        self.doubt = match is_other {
            Some(doubt) => Some(doubt),
            None => missing(self.on_doubt.gone_percent_max())?
                .filter(|found| found.gone >= GONE_FILES_MIN)
                .map(|Presence { known, gone }| Doubt::FilesGone { known, gone }),
        };
        let noted = noted.filter(|noted| noted.is_recorded);
        let is_noting = self.on_doubt == OnDoubt::Note;
        let held = match (self.doubt, noted) {
            (_, Some(noted)) => Some(noted),
            (Some(doubt), None) => Some(HeldBack {
                doubt,
                since_ns: self.now_ns,
                is_recorded: is_noting,
            }),
            (None, None) => None,
        };
        match held {
            Some(held) if !is_noting => {
                self.write(HELD_BACK, &held)?;
                let path = self.folder.directory().to_owned();
                Err(DaemonError::HeldBack { path, held })
            }
            Some(held) if self.is_in_sync => self.write(HELD_BACK, &held),
            _ => Ok(()),
        }
    }

    /// Notes the mark once the record says what is there. Returns the doubt, if there was one.
    ///
    /// # Errors
    /// If that cannot be noted.
    pub(crate) fn after(self) -> Result<Option<Doubt>, DaemonError> {
        let is_left_in_doubt = self.doubt.is_some() && self.is_in_sync;
        if let Some(mark) = self.mark.as_ref().filter(|_| !is_left_in_doubt)
            && self.read::<Mark>(MARK)?.as_ref() != Some(mark)
        {
            self.write(MARK, mark)?;
        }
        if self.on_doubt != OnDoubt::Note {
            self.remove(HELD_BACK.name)?;
        }
        Ok(self.doubt)
    }

    fn failed(&self, name: &str, source: io::Error) -> DaemonError {
        DaemonError::State {
            path: self.folder.path().join(name),
            source,
        }
    }

    fn read<T: Serialize + DeserializeOwned>(&self, file: VersionedJson) -> Result<Option<T>, DaemonError> {
        read(&self.dir, file).map_err(|error| self.failed(file.name, error))
    }

    fn write<T: Serialize>(&self, file: VersionedJson, body: &T) -> Result<(), DaemonError> {
        let written = file.write(&self.dir, body);
        written.map_err(|error| {
            let source = match error {
                VersionedJsonError::Io(_, error) => error,
                VersionedJsonError::Damaged(why) => io::Error::other(why),
            };
            self.failed(file.name, source)
        })
    }

    fn remove(&self, name: &str) -> Result<(), DaemonError> {
        let removed = self.dir.remove(name).and_then(|()| self.dir.sync());
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed(name, error)),
            _ => Ok(()),
        }
    }
}

/// Why sync of a folder does not begin, if it does not.
///
/// # Errors
/// If that cannot be read.
pub fn held_back(folder: &StateFolder) -> Result<Option<HeldBack>, DaemonError> {
    let failed = |path: PathBuf| move |source| DaemonError::State { path, source };
    let path = folder.path().to_owned();
    if !path.is_dir() {
        return Ok(None);
    }
    let dir = RealDir::open(&path).map_err(failed(path.clone()))?;
    read(&dir, HELD_BACK).map_err(failed(path.join(HELD_BACK.name)))
}

fn read<T: Serialize + DeserializeOwned>(dir: &dyn DurableDir, file: VersionedJson) -> io::Result<Option<T>> {
    file.read(dir).map_err(|error| match error {
        VersionedJsonError::Io(_, error) => error,
        VersionedJsonError::Damaged(why) => io::Error::other(format!(
            "{why}; if this file is removed, the folder is accepted as it is now"
        )),
    })
}

#[cfg(test)]
mod tests;
