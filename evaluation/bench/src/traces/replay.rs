//! Replay of a trace in a folder.
//!
//! Everything is done relative to one descriptor of the folder, by one thread, without looking
//! anything up first: the time of a replay is the time of its system calls. Like the recording, a
//! replay skips `fsync` unless it is asked to perform it.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::load::Trace;
use super::operation::{Handle, Operation, Owner};
use crate::SuiteError;
use crate::rig::interrupt;

#[cfg(test)]
mod tests;

/// The pace of a replay.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Each operation directly after the previous one.
    FullSpeed,
    /// Each operation at its recorded time, but without pauses longer than `gap_max`.
    Recorded { gap_max: Duration },
}

/// The result of a replay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) wall_s: f64,
    /// CPU time of the replaying thread.
    pub(crate) cpu_s: f64,
    /// Operations without effect: on files that had lost their names.
    pub(crate) skipped: u64,
}

/// Performs all operations of `trace` in `target`, which holds its initial tree.
///
/// # Errors
/// If an operation fails: each succeeded when it was recorded.
pub(crate) fn replay(
    trace: &Trace,
    target: &Path,
    pace: Pace,
    with_fsync: bool,
    _unmasked: &Unmasked,
) -> Result<Replayed, SuiteError> {
    Replayer::begin(trace, target, with_fsync)?.run(pace)
}

/// While this lives, nodes that the process creates get exactly the requested mode: recorded modes
/// are those after the umask. The umask belongs to the whole process, so concurrent replays share
/// one of these.
#[derive(Debug)]
pub(crate) struct Unmasked(Mode);

impl Unmasked {
    pub(crate) fn begin() -> Self {
        Self(rustix::process::umask(Mode::empty()))
    }
}

impl Drop for Unmasked {
    fn drop(&mut self) {
        rustix::process::umask(self.0);
    }
}

/// A replay that can stop at the trace's marks. [`replay`] runs through at once.
pub(crate) struct Replayer<'a> {
    trace: &'a Trace,
    target: &'a Path,
    root: OwnedFd,
    handles: HashMap<Handle, OwnedFd>,
    is_root: bool,
    with_fsync: bool,
    skipped: u64,
    /// The index of the next operation.
    next: usize,
}

impl<'a> Replayer<'a> {
    /// A replay before its first operation. `target` holds the initial tree.
    ///
    /// # Errors
    /// If the folder cannot be opened.
    pub(crate) fn begin(trace: &'a Trace, target: &'a Path, with_fsync: bool) -> Result<Self, SuiteError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, target, flags, Mode::empty())
            .map_err(|error| format!("cannot open {}: {error}", target.display()))?;
        Ok(Self {
            trace,
            target,
            root,
            handles: HashMap::new(),
            is_root: rustix::process::geteuid().is_root(),
            with_fsync,
            skipped: 0,
            next: 0,
        })
    }

    /// Continues up to the next mark, or to the end if there is none.
    ///
    /// # Errors
    /// As [`replay`].
    pub(crate) fn go_to_next_mark(&mut self, pace: Pace) -> Result<(), SuiteError> {
        self.until(pace, |operation| matches!(operation, Operation::Mark))
    }

    fn run(&mut self, pace: Pace) -> Result<Replayed, SuiteError> {
        let (started, cpu_before_s) = (Instant::now(), thread_cpu_s());
        self.until(pace, |_| false)?;
        Ok(Replayed {
            wall_s: started.elapsed().as_secs_f64(),
            cpu_s: thread_cpu_s() - cpu_before_s,
            skipped: self.skipped,
        })
    }

    fn until(&mut self, pace: Pace, is_last: fn(&Operation) -> bool) -> Result<(), SuiteError> {
        let mut due = Instant::now();
        let mut previous_us = match self.next.checked_sub(1) {
            Some(previous) => self.trace.operations[previous].at_us,
            None => 0,
        };
        while let Some(timed) = self.trace.operations.get(self.next) {
            let index = self.next;
            self.next += 1;
            if let Pace::Recorded { gap_max } = pace {
                let gap = Duration::from_micros(timed.at_us.saturating_sub(previous_us)).min(gap_max);
                previous_us = timed.at_us;
                due += gap;
                if let Some(left) = due.checked_duration_since(Instant::now()) {
                    interrupt::check()?;
                    thread::sleep(left);
                }
            }
            self.carry_out(&timed.operation).map_err(|error| {
                format!(
                    "{}: operation {} ({:?}): {error}",
                    self.trace.name,
                    index + 1,
                    timed.operation
                )
            })?;
            if is_last(&timed.operation) {
                return Ok(());
            }
        }
        // Closing the open files is part of the work.
        self.handles.clear();
        Ok(())
    }

    /// Performs one operation, whichever would be next.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn carry_out(&mut self, operation: &Operation) -> Result<(), Errno> {
        let root = self.root.as_fd();
        match operation {
            Operation::Create {
                path,
                handle,
                mode,
                excl,
                owner,
            } => {
                let mut flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
                flags.set(OFlags::EXCL, *excl);
                let fd = rustix::fs::openat(root, path, flags, Mode::from_raw_mode(*mode))?;
                self.handles.insert(*handle, fd);
                self.own(path, *owner)
            }
            Operation::Open {
                path: Some(path),
                handle,
                trunc,
            } => {
                let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
                flags.set(OFlags::TRUNC, *trunc);
                self.handles
                    .insert(*handle, rustix::fs::openat(root, path, flags, Mode::empty())?);
                Ok(())
            }
            Operation::Write { handle, offset, data } => {
                let bytes = self.trace.bytes(*data);
                self.with_handle(*handle, |fd| write_all(fd, bytes, *offset))
            }
            Operation::Close { handle } => {
                drop(self.handles.remove(handle));
                Ok(())
            }
            Operation::Truncate {
                path,
                handle,
                len_bytes,
            } => {
                if let Some(fd) = handle.and_then(|handle| self.handles.get(&handle)) {
                    return rustix::fs::ftruncate(fd, *len_bytes);
                }
                self.with_path(path.as_deref(), |root, path| {
                    let fd = rustix::fs::openat(root, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
                    rustix::fs::ftruncate(fd, *len_bytes)
                })
            }
            Operation::Fallocate {
                handle,
                mode,
                offset,
                len_bytes,
            } => {
                let mode = FallocateFlags::from_bits_retain(*mode);
                self.with_handle(*handle, |fd| rustix::fs::fallocate(fd, mode, *offset, *len_bytes))
            }
            Operation::Fsync {
                path,
                handle,
                data_only,
            } if self.with_fsync => {
                if let Some(fd) = handle.and_then(|handle| self.handles.get(&handle)) {
                    return if *data_only {
                        rustix::fs::fdatasync(fd)
                    } else {
                        rustix::fs::fsync(fd)
                    };
                }
                self.with_path(path.as_deref(), sync_path)
            }
            Operation::FsyncDir { path } if self.with_fsync => self.with_path(path.as_deref(), sync_path),
            Operation::Rename { from, to, flags } => {
                let flags = RenameFlags::from_bits_retain(*flags);
                if flags.contains(RenameFlags::EXCHANGE) {
                    return rustix::fs::renameat_with(root, from, root, to, flags);
                }
                rustix::fs::renameat(root, from, root, to)
            }
            Operation::Link { from, to } => rustix::fs::linkat(root, from, root, to, AtFlags::empty()),
            Operation::Symlink { path, target, owner } => {
                rustix::fs::symlinkat(target, root, path)?;
                self.own(path, *owner)
            }
            Operation::Unlink { path } => rustix::fs::unlinkat(root, path, AtFlags::empty()),
            Operation::Rmdir { path } => rustix::fs::unlinkat(root, path, AtFlags::REMOVEDIR),
            Operation::Mkdir { path, mode, owner } => {
                rustix::fs::mkdirat(root, path, Mode::from_raw_mode(*mode))?;
                self.own(path, *owner)
            }
            Operation::Mknod { path, mode, owner } => {
                let (kind, mode) = (FileType::from_raw_mode(*mode), Mode::from_raw_mode(*mode));
                rustix::fs::mknodat(root, path, kind, mode, 0)?;
                self.own(path, *owner)
            }
            Operation::Chmod { path, mode } => self.with_path(path.as_deref(), |root, path| {
                rustix::fs::chmodat(root, path, Mode::from_raw_mode(*mode), AtFlags::empty())
            }),
            Operation::Chown {
                path: Some(path),
                owner,
            } => self.own(path, Some(*owner)),
            Operation::SetTimes {
                path,
                accessed_ns,
                modified_ns,
                now,
            } => {
                let time = |time_ns: Option<i64>| match (now, time_ns) {
                    (true, _) => Timespec {
                        tv_sec: 0,
                        tv_nsec: UTIME_NOW,
                    },
                    (false, None) => Timespec {
                        tv_sec: 0,
                        tv_nsec: UTIME_OMIT,
                    },
                    (false, Some(ns)) => Timespec {
                        tv_sec: ns.div_euclid(1_000_000_000),
                        tv_nsec: ns.rem_euclid(1_000_000_000),
                    },
                };
                let times = Timestamps {
                    last_access: time(*accessed_ns),
                    last_modification: time(*modified_ns),
                };
                self.with_path(path.as_deref(), |root, path| {
                    rustix::fs::utimensat(root, path, &times, AtFlags::SYMLINK_NOFOLLOW)
                })
            }
            Operation::SetXattr {
                path: Some(path),
                name,
                value,
            } => {
                let value = self.trace.bytes(*value);
                rustix::fs::setxattr(self.target.join(path), name.as_str(), value, XattrFlags::empty())
            }
            Operation::RemoveXattr { path: Some(path), name } => {
                rustix::fs::removexattr(self.target.join(path), name.as_str())
            }
            Operation::Open { path: None, .. }
            | Operation::Chown { path: None, .. }
            | Operation::SetXattr { path: None, .. }
            | Operation::RemoveXattr { path: None, .. } => {
                self.skipped += 1;
                Ok(())
            }
            Operation::Fsync { .. } | Operation::FsyncDir { .. } | Operation::Mark | Operation::Nothing => Ok(()),
        }
    }

    fn with_handle(
        &mut self,
        handle: Handle,
        act: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if let Some(fd) = self.handles.get(&handle) {
            return act(fd.as_fd());
        }
        self.skipped += 1;
        Ok(())
    }

    fn with_path(
        &mut self,
        path: Option<&Path>,
        act: impl FnOnce(BorrowedFd<'_>, &Path) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if let Some(path) = path {
            return act(self.root.as_fd(), path);
        }
        self.skipped += 1;
        Ok(())
    }

    /// Changes the owner, if we are root: only root may, as in the recording.
    fn own(&self, path: &Path, owner: Option<Owner>) -> Result<(), Errno> {
        match owner {
            Some(owner) if self.is_root => rustix::fs::chownat(
                &self.root,
                path,
                owner.uid.map(Uid::from_raw),
                owner.gid.map(Gid::from_raw),
                AtFlags::SYMLINK_NOFOLLOW,
            ),
            _ => Ok(()),
        }
    }
}

fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let count = rustix::io::pwrite(fd, bytes, offset)?;
        bytes = &bytes[count..];
        offset += count as u64;
    }
    Ok(())
}

fn sync_path(root: BorrowedFd<'_>, path: &Path) -> Result<(), Errno> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    rustix::fs::fsync(rustix::fs::openat(
        root,
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// CPU time of this thread so far, seconds.
pub(crate) fn thread_cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // Far below 2^52.
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
