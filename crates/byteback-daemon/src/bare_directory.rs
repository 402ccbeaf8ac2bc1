//! The directory over which a volume is mounted, protected from programs that would write into it
//! while the volume is not there.
//!
//! When a daemon is killed, the empty directory below its mount shows again. Files that programs
//! write into it then are in no backup, and are hidden as soon as the volume is mounted again. So
//! the directory is made immutable before the mount (`chattr +i`). Where the file system or a lack
//! of rights forbids that, its mode becomes 0 once it is covered, which stops everybody but root. A
//! daemon that ends in good order undoes that, as does `byteback umount` after a crash.
//!
//! **Order.** The protection is noted durably (file `bare` in the state folder) before it is
//! applied. A crash in between leaves a note of something that was not done, and undoing that
//! changes nothing. A flag or a mode that the directory had before is not touched.
//!
//! The note is one JSON object: `{"version":1,"point":...,"how":"immutable"}` or
//! `"how":{"mode":493}`.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use byteback_model::ByteString;
use rustix::fs::{IFlags, OFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::DaemonError;
use crate::state_folder::StateFolder;

/// The file of the note in the state folder.
pub(crate) const BARE_NAME: &str = "bare";
const VERSION: u32 = 1;

/// `FUSE_SUPER_MAGIC`.
const FUSE_TYPE: rustix::fs::FsWord = 0x6573_5546;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum How {
    Immutable,
    /// The mode that the directory had.
    Mode(u32),
}

#[derive(Debug, Serialize, Deserialize)]
struct Note {
    version: u32,
    point: ByteString,
    how: How,
}

impl Note {
    fn point(&self) -> PathBuf {
        PathBuf::from(std::ffi::OsStr::from_bytes(self.point.as_bytes()))
    }
}

/// A directory that is about to be covered.
pub(crate) struct BareDirectory {
    folder: StateFolder,
    point: PathBuf,
    /// Opened before the mount covers it.
    dir: File,
    is_immutable: bool,
}

impl BareDirectory {
    /// Protects the directory at `point` as far as that is possible before it is covered.
    pub(crate) fn protect(folder: &StateFolder, point: &Path) -> io::Result<Self> {
        let point = fs::canonicalize(point)?;
        let is_kept = read(folder)?.is_some_and(|note| note.point() == point && note.how == How::Immutable);
        if !is_kept {
            release(folder)?;
        }
        let mut bare = Self {
            folder: folder.clone(),
            dir: open(&point)?,
            point,
            is_immutable: false,
        };
        bare.is_immutable = bare.make_immutable()?;
        Ok(bare)
    }

    /// Sets the immutable flag, if that is possible; returns whether it is set now.
    fn make_immutable(&self) -> io::Result<bool> {
        // A mount of ours may be there already, which is refused later; its root must not be
        // changed.
        if rustix::fs::fstatfs(&self.dir)?.f_type == FUSE_TYPE {
            return Ok(false);
        }
        let Ok(flags) = ioctl_getflags(&self.dir) else {
            return Ok(false);
        };
        if flags.contains(IFlags::IMMUTABLE) {
            return Ok(true);
        }
        self.note(How::Immutable)?;
        if ioctl_setflags(&self.dir, flags | IFlags::IMMUTABLE).is_ok() {
            return Ok(true);
        }
        forget(&self.folder)?;
        Ok(false)
    }

    /// Whether the directory has no entries.
    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        Ok(fs::read_dir(&self.point)?.next().is_none())
    }

    /// Protects the directory further, now that it is covered: an ordinary user can only mount over
    /// a directory that they may write to.
    pub(crate) fn covered(&self) -> io::Result<()> {
        if self.is_immutable {
            return Ok(());
        }
        let metadata = self.dir.metadata()?;
        if rustix::fs::fstatfs(&self.dir)?.f_type == FUSE_TYPE {
            return Ok(());
        }
        let is_ours = metadata.uid() == rustix::process::geteuid().as_raw() || rustix::process::geteuid().is_root();
        let mode = metadata.mode() & 0o7777;
        if !is_ours || mode == 0 {
            return Ok(());
        }
        self.note(How::Mode(mode))?;
        self.dir.set_permissions(fs::Permissions::from_mode(0o0))
    }

    fn note(&self, how: How) -> io::Result<()> {
        let note = Note {
            version: VERSION,
            point: ByteString::from(self.point.as_os_str().as_bytes()),
            how,
        };
        self.folder
            .write_whole(&self.folder.path().join(BARE_NAME), &serde_json::to_vec(&note)?)
    }
}

impl StateFolder {
    /// The directory over which the volume is mounted, if it is protected from being written to
    /// while the volume is not there.
    #[must_use]
    pub fn protected_directory(&self) -> Option<PathBuf> {
        protected(self)
    }

    /// Lets programs write into that directory again. The volume must not be mounted.
    ///
    /// # Errors
    /// The system's error.
    pub fn release_directory(&self) -> Result<(), DaemonError> {
        release(self).map_err(|source| DaemonError::Folder {
            path: self
                .protected_directory()
                .unwrap_or_else(|| self.directory().to_owned()),
            source,
        })
    }
}

fn open(point: &Path) -> io::Result<File> {
    let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC).bits();
    File::options()
        .read(true)
        .custom_flags(i32::try_from(flags).unwrap_or_default())
        .open(point)
}

fn read(folder: &StateFolder) -> io::Result<Option<Note>> {
    let text = match fs::read(folder.path().join(BARE_NAME)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let note: Note = serde_json::from_slice(&text)?;
    Ok(Some(note).filter(|note| note.version == VERSION))
}

fn forget(folder: &StateFolder) -> io::Result<()> {
    match fs::remove_file(folder.path().join(BARE_NAME)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// The directory that is protected on behalf of the folder; `None` if there is none.
fn protected(folder: &StateFolder) -> Option<PathBuf> {
    Some(read(folder).ok()??.point())
}

/// Undoes the protection. Nothing may be mounted over the directory: what shows at its path is what
/// is changed.
pub(crate) fn release(folder: &StateFolder) -> io::Result<()> {
    let Some(note) = read(folder)? else { return Ok(()) };
    let released = match note.how {
        How::Immutable => open(&note.point()).and_then(|dir| {
            let flags = ioctl_getflags(&dir)?;
            Ok(ioctl_setflags(&dir, flags - IFlags::IMMUTABLE)?)
        }),
        // A directory of mode 0 cannot be opened.
        How::Mode(mode) => fs::symlink_metadata(note.point()).and_then(|metadata| match metadata.mode() & 0o7777 {
            0 if metadata.is_dir() => fs::set_permissions(note.point(), fs::Permissions::from_mode(mode)),
            _ => Ok(()),
        }),
    };
    match released {
        // The directory is gone, and its protection with it, or something else is in its place.
        Err(error)
            if matches!(
                Errno::from_io_error(&error),
                Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
            ) => {}
        released => released?,
    }
    forget(folder)
}

#[cfg(test)]
mod tests;
