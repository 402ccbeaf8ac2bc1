//! One regular file: fetched under a temporary name, given its attributes, and handed to `publish`,
//! which gives it its own name.

use super::Restore;
use super::attributes::apply_attributes;
use super::near::{fetch_near, open_old, open_partial};
use super::place::Place;
use super::publish::WholeFile;
use super::pull::{NEAR_LEN_MIN, Verdict};
use crate::damage::{between, damaged_ranges, named};
use crate::error::{BackupError, Result, with_causes};
use crate::monitor::{Change, Event, check_cancelled};
use byteback_client::{ServerError, ServerErrorKind};
use byteback_delta::{ApplyError, DeltaReader, EmptyBase, Target, apply_in_place, apply_to_new};
use byteback_extents::ByteRange;
use byteback_host::tree::{self};
use byteback_model::{Attributes, NodeInfo, NodeKind};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

/// Attempts to fetch a damaged file when more and more of it turns out to be damaged.
const SALVAGE_TRIES_MAX: u32 = 4;

/// A file to restore.
pub(super) struct FileJob {
    pub(super) place: Place,
    pub(super) node: NodeInfo,
    /// Whether its place is needed later: for further names, or for flags.
    pub(super) is_remembered: bool,
}

impl FileJob {
    /// Remembers the place of a file that is there now, if it is needed later.
    fn remember(&self, restore: &Restore<'_>) {
        if self.is_remembered {
            restore.tally.remember(self.node.id, &self.place);
        }
    }
}

/// Restores one file. A failure that concerns only this file is counted.
///
/// # Errors
/// Those that end the whole restore: a server that is gone or not to be trusted, a full disk.
pub(super) fn restore_file(restore: &Restore<'_>, job: &FileJob) -> Result<()> {
    let restored = restore
        .open_dir(&job.place.dir)
        .map_err(FileError::Local)
        .and_then(|dir| match look(restore, job, &dir)? {
            Looked::Kept => Ok(None),
            Looked::Make(change) => make(restore, job, &dir, change).map(Some),
        });
    finish_file(restore, job, restored)
}

/// Counts a file that was made, kept or failed, and hands a made one on to `publish`.
///
/// # Errors
/// As [`restore_file`].
pub(super) fn finish_file(
    restore: &Restore<'_>,
    job: &FileJob,
    restored: Result<Option<WholeFile>, FileError>,
) -> Result<()> {
    let read_bytes = match &restored {
        // Bytes that a pull finds here already are not counted separately.
        Ok(Some(whole)) if restore.pull.is_none() => whole.written_bytes,
        _ => 0,
    };
    let skipped_bytes = job.node.attributes.size.saturating_sub(read_bytes);
    restore.monitor.event(Event::BytesSkipped(skipped_bytes));
    match restored {
        Ok(Some(whole)) => restore.publish(whole),
        Ok(None) => Ok(()),
        Err(FileError::All(error)) => Err(error),
        Err(FileError::Local(error)) => restore.file_failed(&job.place.path(), error),
        Err(FileError::Damaged(ranges)) => {
            let message = format!(
                "{} are damaged at the server; 'byteback restore --salvage' restores the rest, and a backup \
                 from a machine that still has the file intact heals it",
                named(&ranges)
            );
            restore.file_failed(&job.place.path(), io::Error::other(message))
        }
    }
}

pub(super) enum FileError {
    /// This file only.
    Local(io::Error),
    /// This file only: the server cannot read these ranges of it.
    Damaged(Vec<ByteRange>),
    /// The whole restore.
    All(BackupError),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::Local(error)
    }
}

/// The result of a look at the file's place.
pub(super) enum Looked {
    /// The file is there, and has its attributes now.
    Kept,
    /// The file has to be made; a pull reports the change.
    Make(Option<Change>),
}

/// Looks whether the file is there already, and if so gives it its attributes.
pub(super) fn look(restore: &Restore<'_>, job: &FileJob, dir: &OwnedFd) -> Result<Looked, FileError> {
    let attributes = &job.node.attributes;
    let place = &job.place;
    if let Some(rules) = &restore.pull {
        match rules.judge(Some(dir), place, &job.node).map_err(FileError::All)?? {
            Verdict::Keep => {
                job.remember(restore);
                restore.tally.file_kept(&place.path());
                return Ok(Looked::Kept);
            }
            Verdict::Attributes => {
                keep(restore, job, dir)?;
                rules.tell(&place.path(), Change::Attributes);
                restore.tally.file_kept(&place.path());
                return Ok(Looked::Kept);
            }
            Verdict::Blocked(why) => return Err(io::Error::other(why).into()),
            Verdict::Make(change) => return Ok(Looked::Make(Some(change))),
        }
    }
    if restore.options.overwrite
        && !restore.options.verify
        && let Ok(there) = tree::stat_at(dir, &place.name)
        && there.kind == NodeKind::File
        && there.nlink == 1
        && there.size == attributes.size
        && there.mtime_ns == attributes.mtime_ns
    {
        keep(restore, job, dir)?;
        restore.tally.file_kept(&place.path());
        return Ok(Looked::Kept);
    }
    Ok(Looked::Make(None))
}

/// Gives a file that is there its attributes.
fn keep(restore: &Restore<'_>, job: &FileJob, dir: &OwnedFd) -> io::Result<()> {
    restore.force().unprotect(dir, &job.place.name)?;
    let file = tree::open_path_at(dir, &job.place.name)?;
    apply_attributes(&file, &job.node.attributes, &job.place.path(), restore.tally)?;
    job.remember(restore);
    Ok(())
}

/// Makes the file under a temporary name, of bytes that are fetched for it alone.
fn make(restore: &Restore<'_>, job: &FileJob, dir: &OwnedFd, change: Option<Change>) -> Result<WholeFile, FileError> {
    let Some(rules) = &restore.pull else {
        return create_whole_file(restore, job, dir, |file| fetch(restore, job, file));
    };
    let attributes = &job.node.attributes;
    let partial = match attributes.size {
        NEAR_LEN_MIN.. => open_partial(dir, job)?,
        _ => None,
    };
    let whole = match partial {
        Some((temporary, file)) => {
            let old = open_old(dir, job);
            let written_bytes = fetch_near(restore, rules, job, &file, old.as_ref())?;
            apply_attributes(&file, attributes, &job.place.path(), restore.tally)?;
            WholeFile {
                place: job.place.clone(),
                temporary,
                id: job.node.id,
                is_remembered: job.is_remembered,
                written_bytes,
                lock: Some(file),
            }
        }
        None => create_whole_file(restore, job, dir, |file| fetch(restore, job, file))?,
    };
    tell_made(restore, job, change);
    Ok(whole)
}

/// Reports a file that a pull has made.
pub(super) fn tell_made(restore: &Restore<'_>, job: &FileJob, change: Option<Change>) {
    if let (Some(rules), Some(change)) = (&restore.pull, change) {
        rules.tell(&job.place.path(), change);
    }
}

/// The number of bytes written into a file, and the ranges of it that are lost.
pub(super) type Filled = (u64, Vec<ByteRange>);

/// Fetches the contents of one file, or the part of them that the server can read, if that is asked
/// for.
fn fetch(restore: &Restore<'_>, job: &FileJob, file: &File) -> Result<Filled, FileError> {
    let all = ByteRange::new(0, job.node.attributes.size);
    match fetch_range(restore, job, file, all) {
        Err(FileError::Damaged(ranges)) if restore.options.salvage => salvage(restore, job, file, ranges),
        fetched => fetched.map(|written_bytes| (written_bytes, Vec::new())),
    }
}

/// Makes the file under an unused name; `fill` writes its contents.
pub(super) fn create_whole_file(
    restore: &Restore<'_>,
    job: &FileJob,
    dir: &OwnedFd,
    fill: impl FnOnce(&File) -> Result<Filled, FileError>,
) -> Result<WholeFile, FileError> {
    let attributes = &job.node.attributes;
    let path = job.place.path();
    let temporary = restore.temporary_names.next();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file = File::from(tree::open_at(dir, &temporary, flags, Mode::RUSR | Mode::WUSR)?);
    let written = fill(&file).and_then(|(written_bytes, lost)| {
        if lost.is_empty() {
            apply_attributes(&file, attributes, &path, restore.tally)?;
        } else {
            // Not its own time: the next restore into this directory must not take it for whole.
            let attributes = Attributes {
                mtime_ns: restore.server.clock().now_ns().into(),
                ..attributes.clone()
            };
            apply_attributes(&file, &attributes, &path, restore.tally)?;
            restore.tally.salvaged(&path, attributes.size, &lost);
        }
        Ok(written_bytes)
    });
    match written {
        Ok(written_bytes) => Ok(WholeFile {
            place: job.place.clone(),
            temporary,
            id: job.node.id,
            is_remembered: job.is_remembered,
            written_bytes,
            lock: None,
        }),
        Err(error) => {
            let _ = rustix::fs::unlinkat(dir, temporary.as_os_str(), AtFlags::empty());
            Err(error)
        }
    }
}

/// Writes the parts of the contents that the server can read, and leaves holes for the rest;
/// returns the number of bytes written, and the lost ranges.
fn salvage(restore: &Restore<'_>, job: &FileJob, file: &File, mut lost: Vec<ByteRange>) -> Result<Filled, FileError> {
    let size = job.node.attributes.size;
    // A disk may lose more while it is read.
    for _ in 0..SALVAGE_TRIES_MAX {
        file.set_len(0)?;
        file.set_len(size)?;
        let mut written_bytes = 0;
        let mut found = None;
        for range in between(&lost, size) {
            match fetch_range(restore, job, file, Some(range)) {
                Ok(written) => written_bytes += written,
                Err(FileError::Damaged(ranges)) => {
                    found = Some(ranges);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        match found {
            None => return Ok((written_bytes, lost)),
            Some(ranges) => lost = ranges,
        }
    }
    Err(FileError::Damaged(lost))
}

/// Writes a range of the contents into the file, or all of them into an empty one. A connection
/// that breaks in the middle is made anew and goes on where it broke, as long as it makes progress.
/// A failure that persists is an error of this file: if the server is gone, the next file shows it.
pub(super) fn fetch_range(
    restore: &Restore<'_>,
    job: &FileJob,
    file: &File,
    range: Option<ByteRange>,
) -> Result<u64, FileError> {
    let Some(range) = range else { return Ok(0) };
    let mut target = Watched {
        file,
        restore,
        written_bytes: 0,
        written_to: range.start(),
    };
    let mut pauses = restore.server.stream_pauses();
    loop {
        // The last byte is asked for again rather than nothing.
        let from = target.written_to.min(range.end() - 1);
        let error = match fetch_from(restore, job, (from, range.end()), &mut target) {
            Ok(()) => return Ok(target.written_bytes),
            Err(FetchError::Broken(error)) => error,
            Err(FetchError::File(error)) => {
                check_cancelled(restore.monitor).map_err(FileError::All)?;
                return Err(error);
            }
        };
        check_cancelled(restore.monitor).map_err(FileError::All)?;
        if target.written_to > from {
            pauses = restore.server.stream_pauses();
        }
        if !pauses.rest() {
            return Err(broken_off(restore, job, &with_causes(&error)));
        }
    }
}

/// The error of a file that did not arrive whole, as the server reports when asked.
fn broken_off(restore: &Restore<'_>, job: &FileJob, cause: &str) -> FileError {
    let file = (job.node.id, restore.at, job.node.attributes.size);
    match damaged_ranges(restore.server, restore.folder, file, restore.monitor) {
        Ok(ranges) if !ranges.is_empty() => FileError::Damaged(ranges),
        Err(error @ (BackupError::Cancelled | BackupError::Hostile { .. })) => FileError::All(error),
        _ => FileError::Local(io::Error::other(format!(
            "its contents arrived incomplete ('byteback verify' shows whether they are damaged at the server): {cause}"
        ))),
    }
}

enum FetchError {
    /// The stream broke off: worth another try.
    Broken(ApplyError),
    File(FileError),
}

fn fetch_from(
    restore: &Restore<'_>,
    job: &FileJob,
    (from, to): (u64, u64),
    target: &mut Watched<'_>,
) -> Result<(), FetchError> {
    let all = |error| FetchError::File(FileError::All(error));
    let local = |error| FetchError::File(FileError::Local(error));
    let to = (to < job.node.attributes.size).then_some(to);
    let go_on = |_: &ServerError| !restore.monitor.is_cancelled();
    let content = match restore
        .server
        .content_range(restore.folder, job.node.id, restore.at, from, to, &go_on)
    {
        Ok(content) => content,
        // A damaged file does not end the restore of the others.
        Err(error) if matches!(error.kind, ServerErrorKind::Damaged | ServerErrorKind::NotFound) => {
            return Err(local(io::Error::other(error.message)));
        }
        Err(error) => return Err(all(error.into())),
    };
    let mut delta = DeltaReader::new(content).map_err(|error| FetchError::Broken(error.into()))?;
    let header = *delta.header();
    let size = job.node.attributes.size;
    if header.base_len_bytes != 0 || header.has_copies || header.new_len_bytes != size {
        return Err(all(BackupError::hostile(format!(
            "the contents of file {} were announced with {size} bytes, but came with {} over a base of {}",
            job.node.id, header.new_len_bytes, header.base_len_bytes
        ))));
    }
    // The rest goes into the existing file, which has its full length since the first try.
    let applied = match target.len_bytes().map_err(local)? {
        0 => apply_to_new(&EmptyBase, &mut delta, target),
        _ => apply_in_place(&mut delta, target),
    };
    match applied {
        Ok(_) => {
            delta.into_inner().finish();
            Ok(())
        }
        Err(ApplyError::WriteTarget { source, .. } | ApplyError::SetLen { source, .. } | ApplyError::Len(source)) => {
            Err(local(source))
        }
        Err(error) => Err(FetchError::Broken(error)),
    }
}

/// The file, with its progress reported.
struct Watched<'a> {
    file: &'a File,
    restore: &'a Restore<'a>,
    written_bytes: u64,
    /// Bytes before this offset are final: streams ascend.
    written_to: u64,
}

impl Target for Watched<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn write_range(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.restore.monitor.is_cancelled() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        std::os::unix::fs::FileExt::write_all_at(self.file, bytes, offset)?;
        let bytes_len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.written_bytes = self.written_bytes.saturating_add(bytes_len);
        self.written_to = self.written_to.max(offset.saturating_add(bytes_len));
        self.restore.monitor.event(Event::BytesRead(bytes_len));
        Ok(())
    }

    fn punch_hole(&mut self, range: ByteRange) -> io::Result<()> {
        // Bytes further on were never written and are a hole.
        match ByteRange::new(range.start(), range.end().min(self.written_to)) {
            Some(written) => tree::punch_hole(self.file, written.start(), written.len_bytes()),
            None => Ok(()),
        }
    }

    fn set_len_bytes(&mut self, len_bytes: u64) -> io::Result<()> {
        self.file.set_len(len_bytes)
    }
}
