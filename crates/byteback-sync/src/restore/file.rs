//! One regular file: fetched under a temporary name, given its attributes, then its own name.

use super::Restore;
use super::attributes::apply_attributes;
use super::place::{Place, clear_way, rename_into_place, temporary_name};
use crate::error::{Result, ServerErrorKind, SyncError};
use crate::monitor::Event;
use byteback_api::messages::NodeInfo;
use byteback_delta::{ApplyError, DeltaReader, EmptyBase, Target, apply_to_new};
use byteback_extents::ByteRange;
use byteback_host::tree::{self, FileKind};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::fs::File;
use std::io;

/// A file to restore.
pub(super) struct FileJob {
    pub(super) place: Place,
    pub(super) node: NodeInfo,
}

/// Restores one file. What concerns only this file is counted.
///
/// # Errors
/// What ends the whole restore: a server that is gone or not to be trusted, a full disk.
pub(super) fn restore_file(restore: &Restore<'_>, job: &FileJob) -> Result<()> {
    let path = job.place.path();
    match try_restore(restore, job) {
        Ok(()) => {
            restore.tally.remember(job.node.id, &job.place);
            Ok(())
        }
        Err(FileError::All(error)) => Err(error),
        Err(FileError::Local(error)) if error.kind() == io::ErrorKind::StorageFull => {
            Err(SyncError::local("write", restore.shown(&path), error))
        }
        Err(FileError::Local(error)) => {
            restore.tally.failed(&path, &error);
            Ok(())
        }
    }
}

enum FileError {
    /// This file only.
    Local(io::Error),
    /// The whole restore.
    All(SyncError),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::Local(error)
    }
}

fn try_restore(restore: &Restore<'_>, job: &FileJob) -> Result<(), FileError> {
    let dir = restore.open_dir(&job.place.dir)?;
    let attributes = &job.node.attributes;
    let path = job.place.path();
    if restore.options.overwrite
        && !restore.options.verify
        && let Ok(there) = tree::stat_at(&dir, &job.place.name)
        && there.kind == FileKind::File
        && there.nlink == 1
        && there.size == attributes.size
        && there.mtime_ns == attributes.mtime_ns
    {
        let file = tree::open_path_at(&dir, &job.place.name)?;
        apply_attributes(&file, attributes, &path, restore.tally)?;
        restore.tally.file_kept(&path);
        return Ok(());
    }
    clear_way(&dir, &job.place.name, restore.options.overwrite)?;
    let temporary = temporary_name(job.node.id);
    let _ = rustix::fs::unlinkat(&dir, temporary.as_os_str(), AtFlags::empty());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file = File::from(tree::open_at(&dir, &temporary, flags, Mode::RUSR | Mode::WUSR)?);
    let written = fetch(restore, job, &file).and_then(|written_bytes| {
        apply_attributes(&file, attributes, &path, restore.tally)?;
        rename_into_place(&dir, &temporary, &job.place.name)?;
        Ok(written_bytes)
    });
    match written {
        Ok(written_bytes) => {
            restore.tally.file_done(&path, written_bytes);
            Ok(())
        }
        Err(error) => {
            let _ = rustix::fs::unlinkat(&dir, temporary.as_os_str(), AtFlags::empty());
            Err(error)
        }
    }
}

/// Writes the contents; a connection that breaks in the middle is tried again from the beginning.
fn fetch(restore: &Restore<'_>, job: &FileJob, file: &File) -> Result<u64, FileError> {
    if job.node.attributes.size == 0 {
        return Ok(0);
    }
    let mut pauses = restore.server.pauses();
    loop {
        file.set_len(0)?;
        let error = match fetch_once(restore, job, file) {
            Ok(written_bytes) => return Ok(written_bytes),
            Err(FetchError::Broken(error)) => error,
            Err(FetchError::File(error)) => return Err(error),
        };
        if restore.monitor.is_cancelled() {
            return Err(FileError::All(SyncError::Cancelled));
        }
        if !pauses.rest() {
            return Err(FileError::All(SyncError::delta(
                restore.shown(&job.place.path()),
                error,
            )));
        }
    }
}

enum FetchError {
    /// The stream broke off: worth another try.
    Broken(ApplyError),
    File(FileError),
}

fn fetch_once(restore: &Restore<'_>, job: &FileJob, file: &File) -> Result<u64, FetchError> {
    let all = |error| FetchError::File(FileError::All(error));
    let local = |error| FetchError::File(FileError::Local(error));
    let content = match restore.server.content(restore.folder, job.node.id, restore.at) {
        Ok(content) => content,
        // One damaged file does not take the others with it.
        Err(error) if matches!(error.kind, ServerErrorKind::Damaged | ServerErrorKind::NotFound) => {
            return Err(local(io::Error::other(error)));
        }
        Err(error) => return Err(all(error.into())),
    };
    let mut delta = DeltaReader::new(content).map_err(|error| FetchError::Broken(error.into()))?;
    let header = *delta.header();
    let size = job.node.attributes.size;
    if header.base_len_bytes != 0 || header.has_copies || header.new_len_bytes != size {
        return Err(all(SyncError::hostile(format!(
            "the contents of file {} were announced with {size} bytes and came with {} over a base of {}",
            job.node.id, header.new_len_bytes, header.base_len_bytes
        ))));
    }
    let mut target = Watched { file, restore };
    match apply_to_new(&EmptyBase, &mut delta, &mut target) {
        Ok(stats) => Ok(stats.literal_bytes),
        Err(ApplyError::WriteTarget { source, .. } | ApplyError::SetLen { source, .. } | ApplyError::Len(source)) => {
            Err(local(source))
        }
        Err(error) => Err(FetchError::Broken(error)),
    }
}

/// The file, with its progress told.
struct Watched<'a> {
    file: &'a File,
    restore: &'a Restore<'a>,
}

impl Target for Watched<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn write_range(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self.file, bytes, offset)?;
        let bytes_len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.restore.monitor.event(Event::BytesRead(bytes_len));
        Ok(())
    }

    fn punch_hole(&mut self, range: ByteRange) -> io::Result<()> {
        tree::punch_hole(self.file, range.start(), range.len_bytes())
    }

    fn set_len_bytes(&mut self, len_bytes: u64) -> io::Result<()> {
        self.file.set_len(len_bytes)
    }
}
