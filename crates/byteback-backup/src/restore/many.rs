//! Many small files: their contents come in one stream for each batch of them, as a request for
//! each would take longer than its bytes.
//!
//! The walk gathers small files, in the order in which it meets them, into batches of limited
//! number and size ([`Gathered`]); larger files go alone. Each thread takes a batch, looks what of
//! it is here already, asks the server for the rest at once, and writes files as their contents
//! arrive ([`restore_many`]). So as many answers are under way as there are threads, and a round
//! trip is waited for once in some hundred files.
//!
//! Files cannot disappear between the listing and the request: both are of one sequence number, and
//! the past does not change. A file whose content the server leaves out nonetheless (unreadable,
//! scattered, or newly too long for the call) is fetched alone, which tells why it fails. So are
//! all files of a server that lacks the call, and those that are left when an answer breaks off
//! again and again or is not what was asked for. A content of another length than announced ends
//! the restore, as it does for one file.
//!
//! Memory: one batch of names and attributes, and one frame of the stream, for each thread; some
//! batches that wait for one. The number of files does not matter.
//!
//! Out of scope: giving files their names (`publish`).

use super::file::{FileError, FileJob, Filled, Looked, create_whole_file, finish_file, look, restore_file, tell_made};
use super::pull::NEAR_LEN_MIN;
use super::{OpenDirectory, Restore};
use crate::error::{BackupError, Result};
use crate::monitor::{Change, Event, check_cancelled};
use byteback_client::{ServerError, ServerErrorKind};
use byteback_delta::bundle::ShortContent;
use byteback_delta::contents::{CONTENT_LEN_MAX, CONTENTS_MAX, ContentsError};
use byteback_model::FileId;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

/// Most files of a batch.
const BATCH_FILES_MAX: usize = 512;

/// Bytes of contents after which a batch is full.
const BATCH_LEN: u64 = 2 << 20;

// Everything that is asked for at once fits into an answer.
const _: () = assert!(BATCH_FILES_MAX <= CONTENTS_MAX as usize);

/// Work for one thread.
pub(super) enum Work {
    /// A file that is fetched alone.
    One(Box<FileJob>),
    /// Small files that are fetched together.
    Many(Vec<FileJob>),
}

/// Small files that wait for more of them.
#[derive(Default)]
pub(super) struct Gathered {
    jobs: Vec<FileJob>,
    len_bytes: u64,
}

impl Gathered {
    /// Takes a file; returns work that is ready now.
    pub(super) fn add(&mut self, restore: &Restore<'_>, job: FileJob) -> Option<Work> {
        let len_bytes = job.node.attributes.size;
        // A pull looks for the bytes of larger files on this machine first.
        let is_near = restore.pull.is_some() && len_bytes >= NEAR_LEN_MIN;
        if len_bytes > CONTENT_LEN_MAX || is_near || restore.server.lacks_contents() {
            return Some(Work::One(Box::new(job)));
        }
        self.len_bytes = self.len_bytes.saturating_add(len_bytes);
        self.jobs.push(job);
        match self.jobs.len() >= BATCH_FILES_MAX || self.len_bytes >= BATCH_LEN {
            true => self.take(),
            false => None,
        }
    }

    /// The files that wait, if there are any.
    pub(super) fn take(&mut self) -> Option<Work> {
        self.len_bytes = 0;
        let jobs = std::mem::take(&mut self.jobs);
        (!jobs.is_empty()).then_some(Work::Many(jobs))
    }
}

/// A file that has to be made. Its directory is opened again then: descriptors of as many
/// directories as a batch may have are more than a process has.
struct Wanted<'j> {
    job: &'j FileJob,
    change: Option<Change>,
}

/// Restores a batch of small files. A failure that concerns only one of them is counted; `is_over`
/// says whether another thread met an error that ends everything.
///
/// # Errors
/// As [`restore_file`].
pub(super) fn restore_many(restore: &Restore<'_>, jobs: &[FileJob], is_over: &dyn Fn() -> bool) -> Result<()> {
    let mut wanted = Vec::new();
    let mut opened = OpenDirectory::default();
    for job in jobs {
        check_cancelled(restore.monitor)?;
        let dir = opened.get(restore, &job.place.dir).map_err(FileError::Local);
        match dir.and_then(|dir| look(restore, job, &dir)) {
            Ok(Looked::Make(change)) => {
                let file = Wanted { job, change };
                match job.node.attributes.size {
                    0 => make(restore, &file, &ShortContent::zeros(0), &mut opened)?,
                    _ => wanted.push(file),
                }
            }
            Ok(Looked::Kept) => finish_file(restore, job, Ok(None))?,
            Err(error) => finish_file(restore, job, Err(error))?,
        }
    }
    for job in fetch(restore, &wanted, is_over)? {
        if is_over() {
            return Ok(());
        }
        check_cancelled(restore.monitor)?;
        restore_file(restore, job)?;
    }
    Ok(())
}

/// Why a stream of contents ended before its last content.
enum Ended {
    /// Its connection broke: worth another try.
    Broken,
    /// The server cannot, or must not, be asked for many contents.
    Refused,
}

/// Makes the files whose contents arrive; returns those that are to be fetched alone.
fn fetch<'j>(restore: &Restore<'_>, wanted: &[Wanted<'j>], is_over: &dyn Fn() -> bool) -> Result<Vec<&'j FileJob>> {
    let mut alone = Vec::new();
    let mut rest = wanted;
    let mut pauses = restore.server.stream_pauses();
    while !rest.is_empty() && !is_over() {
        let (made, ended) = fetch_some(restore, rest, &mut alone, is_over)?;
        rest = rest.get(made..).unwrap_or_default();
        check_cancelled(restore.monitor)?;
        if made > 0 {
            pauses = restore.server.stream_pauses();
        }
        match ended {
            None => break,
            Some(Ended::Broken) if pauses.rest() => {}
            Some(_) => {
                alone.extend(rest.iter().map(|file| file.job));
                break;
            }
        }
    }
    Ok(alone)
}

/// Asks once for the contents of `wanted`, and makes files as they arrive, in this order. Returns
/// the number of files that were made or added to `alone`.
fn fetch_some<'j>(
    restore: &Restore<'_>,
    wanted: &[Wanted<'j>],
    alone: &mut Vec<&'j FileJob>,
    is_over: &dyn Fn() -> bool,
) -> Result<(usize, Option<Ended>)> {
    let ids: Vec<FileId> = wanted.iter().map(|file| file.job.node.id).collect();
    let go_on = |_: &ServerError| !restore.monitor.is_cancelled() && !is_over();
    let mut stream = match restore.server.contents(restore.folder, restore.at, &ids, &go_on) {
        Ok(Some(stream)) => {
            restore.counts_names.store(true, Ordering::Relaxed);
            stream
        }
        Ok(None) => return Ok((0, Some(Ended::Refused))),
        Err(error) if ends_all(error.kind) => return Err(error.into()),
        Err(_) => return Ok((0, Some(Ended::Refused))),
    };
    let mut opened = OpenDirectory::default();
    for (made, file) in (0..).zip(wanted) {
        check_cancelled(restore.monitor)?;
        if is_over() {
            return Ok((made, None));
        }
        match stream.next_of(file.job.node.id) {
            Ok(Some(content)) => make(restore, file, &content, &mut opened)?,
            Ok(None) => alone.push(file.job),
            Err(ContentsError::Io(_)) => return Ok((made, Some(Ended::Broken))),
            Err(error @ ContentsError::Impossible(_)) => return Err(BackupError::hostile(error.to_string())),
            // Damaged on the way, or another program's answer: files that come alone are checked
            // alone.
            Err(_) => return Ok((made, Some(Ended::Refused))),
        }
    }
    stream.finish();
    Ok((wanted.len(), None))
}

/// Whether the next file would fail in the same way.
fn ends_all(kind: ServerErrorKind) -> bool {
    use ServerErrorKind::{Forbidden, Tls, WrongToken};
    kind.is_transient() || matches!(kind, WrongToken | Forbidden | Tls)
}

/// Makes a file of its content.
fn make(restore: &Restore<'_>, wanted: &Wanted<'_>, content: &ShortContent, opened: &mut OpenDirectory) -> Result<()> {
    let Wanted { job, change } = wanted;
    let dir = opened.get(restore, &job.place.dir).map_err(FileError::Local);
    let made = dir.and_then(|dir| create_whole_file(restore, job, &dir, |file| fill(restore, job, file, content)));
    if made.is_ok() {
        tell_made(restore, job, *change);
    }
    finish_file(restore, job, made.map(Some))
}

/// Writes a content into an empty file.
fn fill(restore: &Restore<'_>, job: &FileJob, file: &File, content: &ShortContent) -> Result<Filled, FileError> {
    let size = job.node.attributes.size;
    if content.len_bytes() != size {
        return Err(FileError::All(BackupError::hostile(format!(
            "the contents of file {} were announced with {size} bytes, but came with {}",
            job.node.id,
            content.len_bytes()
        ))));
    }
    let (mut written_bytes, mut end) = (0, 0);
    for (offset, bytes) in content.data() {
        file.write_all_at(bytes, offset)?;
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        written_bytes += len;
        end = offset.saturating_add(len);
    }
    // A hole at the end.
    if end < size {
        file.set_len(size)?;
    }
    if written_bytes > 0 {
        restore.monitor.event(Event::BytesRead(written_bytes));
    }
    Ok((written_bytes, Vec::new()))
}
