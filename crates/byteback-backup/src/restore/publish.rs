//! Gives whole files their names, many at a time.
//!
//! A name in the target promises the file's whole content, even after a power failure: a restore
//! that is run again takes a file of the right length and time as restored, and both may be on the
//! disk before the bytes are. Hence the order: (1) the file is written and has all its attributes,
//! under a temporary name; (2) one sync of the file system makes many such files durable;
//! (3) they get their names. A crash before (3) leaves temporary names, which the next restore into
//! the same directory removes.
//!
//! One sync for many files costs little more than writing them; one for each would cost a disk's
//! latency per file.

use super::place::{Place, rename_into_place, rename_to_free_name};
use super::{OpenDirectory, Restore};
use crate::error::{BackupError, Result};
use byteback_model::FileId;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io;

/// Most files that share a sync.
const FILES_MAX: usize = 2048;

/// Most files that share a sync and are kept open for their locks: a process may have 1024 open by
/// default.
const LOCKED_MAX: usize = 256;

/// Bytes that share a sync: a little more than a disk writes while the next ones are fetched.
const BYTES_MAX: u64 = 128 * 1024 * 1024;

/// A file that has everything but its name.
pub(super) struct WholeFile {
    pub(super) place: Place,
    pub(super) temporary: OsString,
    pub(super) id: FileId,
    /// Whether its place is needed later.
    pub(super) is_remembered: bool,
    pub(super) written_bytes: u64,
    /// The lock that keeps other runs from the temporary name until then.
    pub(super) lock: Option<File>,
}

/// Whole files that wait for their names.
#[derive(Default)]
pub(super) struct Unpublished {
    files: Vec<WholeFile>,
    bytes: u64,
    /// Number of those that hold a lock.
    locked: usize,
}

impl Restore<'_> {
    /// Takes a whole file; it gets its name now or a little later.
    ///
    /// # Errors
    /// A disk that failed or is full.
    pub(super) fn publish(&self, file: WholeFile) -> Result<()> {
        self.tally.file_written(&file.place.path());
        let full = {
            let mut unpublished = super::lock(&self.unpublished);
            unpublished.bytes = unpublished.bytes.saturating_add(file.written_bytes);
            unpublished.locked += usize::from(file.lock.is_some());
            unpublished.files.push(file);
            let is_full = unpublished.files.len() >= FILES_MAX
                || unpublished.bytes >= BYTES_MAX
                || unpublished.locked >= LOCKED_MAX;
            is_full.then(|| std::mem::take(&mut *unpublished))
        };
        full.map_or(Ok(()), |full| self.name(full))
    }

    /// Gives all waiting files their names.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub(super) fn publish_all(&self) -> Result<()> {
        let rest = std::mem::take(&mut *super::lock(&self.unpublished));
        self.name(rest)
    }

    fn name(&self, unpublished: Unpublished) -> Result<()> {
        if unpublished.files.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.sync() {
            // It is unknown what of them is on the disk.
            for file in &unpublished.files {
                self.remove_temporary(file);
            }
            return Err(error);
        }
        let mut first_error = None;
        let mut opened = OpenDirectory::default();
        for file in unpublished.files {
            match self.name_one(&file, &mut opened) {
                Ok(()) => {
                    if file.is_remembered {
                        self.tally.remember(file.id, &file.place);
                    }
                    self.tally.file_done(file.written_bytes);
                    drop(file.lock);
                }
                Err(error) => {
                    self.remove_temporary(&file);
                    if let Err(error) = self.file_failed(&file.place.path(), error) {
                        first_error.get_or_insert(error);
                    }
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn name_one(&self, file: &WholeFile, opened: &mut OpenDirectory) -> io::Result<()> {
        let dir = opened.get(self, &file.place.dir)?;
        if rename_to_free_name(&dir, &file.temporary, &file.place.name) {
            return Ok(());
        }
        self.clear_way(&dir, &file.place.name)?;
        rename_into_place(&dir, &file.temporary, &file.place.name)
    }

    fn remove_temporary(&self, file: &WholeFile) {
        // A name that cannot be removed now is removed by the next restore.
        let _ = self
            .open_dir(&file.place.dir)
            .map(|dir| rustix::fs::unlinkat(dir, file.temporary.as_os_str(), AtFlags::empty()));
    }

    /// Makes everything in the target durable.
    pub(super) fn sync(&self) -> Result<()> {
        rustix::fs::syncfs(self.target)
            .map_err(|error| BackupError::local("sync", self.target_path.display().to_string(), error.into()))
    }

    /// Counts a file that could not be restored.
    ///
    /// # Errors
    /// If the failure will repeat for all other files, too.
    pub(super) fn file_failed(&self, path: &[u8], error: io::Error) -> Result<()> {
        use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let is_out_of_files = matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE));
        if is_out_of_files || matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem) {
            return Err(BackupError::local("write", self.shown(path), error));
        }
        self.failed(path, error);
        Ok(())
    }
}
