//! One owner per state directory.
//!
//! The lock is `flock` on the file `lock` inside the directory: the kernel drops it when the last descriptor
//! closes, hence a killed owner leaves nothing to clean up, and a restarted machine has no stale lock. The
//! file holds the owner's process id in decimal, only to name it in messages; it is never removed, because
//! removing it while another process waits for it would give two owners of two different files.
//!
//! A killed owner with several threads may keep it for a moment: its first thread is gone, and another one still waits for the
//! disk. Such an owner is waited for; one that lives is not.
//!
//! Such a lock belongs to the open file, and a child has that from `fork` until it execs, as the descriptor is
//! close-on-exec. So who gives it up unlocks it, and does not only close it: another thread may be starting a program
//! just then, and the directory could not be taken again at once.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;

use crate::clock::{Clock, RealClock};
use crate::error::context;

/// How often, and how long each time, an owner that is ending is waited for.
const ENDING_OWNER_WAITS: u32 = 100;
const ENDING_OWNER_WAIT: Duration = Duration::from_millis(50);

/// The name of the lock file in its directory; it shows in [`list`](super::DurableDir::list).
pub const LOCK_NAME: &str = "lock";

/// The exclusive ownership of a directory, given up when dropped.
#[derive(Debug)]
pub struct DirLock {
    file: File,
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // If it fails, closing does it, sooner or later.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// The directory belongs to somebody else.
#[derive(Debug, thiserror::Error)]
#[error(
    "{directory:?} is in use by {}; stop it first, or use another directory",
    .holder_pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
)]
pub struct DirInUse {
    /// The directory, as the caller named it.
    pub directory: String,
    /// The owner's process id, if it could be read.
    pub holder_pid: Option<u32>,
}

impl DirLock {
    pub(super) fn take(dir: &OwnedFd, label: &str) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file =
            openat(dir, LOCK_NAME, flags, Mode::RUSR | Mode::WUSR).map_err(|e| context("lock", label, e.into()))?;
        let file = File::from(file);
        let mut waits_left = ENDING_OWNER_WAITS;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    let holder_pid = holder(&file);
                    if waits_left > 0 && holder_pid.is_some_and(is_ending) {
                        waits_left -= 1;
                        RealClock.sleep(ENDING_OWNER_WAIT);
                        continue;
                    }
                    let in_use = DirInUse {
                        directory: label.to_owned(),
                        holder_pid,
                    };
                    return Err(io::Error::new(io::ErrorKind::WouldBlock, in_use));
                }
                Err(e) => return Err(context("lock", label, e.into())),
            }
        }
        let pid = format!("{}\n", std::process::id());
        // First the number, then the cut: a reader in between sees the new number and digits of the old
        // only after the line end, where it does not look.
        file.write_all_at(pid.as_bytes(), 0)
            .and_then(|()| file.set_len(pid.len() as u64))
            .map_err(|e| context("lock", label, e))?;
        Ok(Self { file })
    }
}

/// Whether the first thread of a process is gone, and the rest must follow.
fn is_ending(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // The name before the state is in parentheses and may hold anything.
        Ok(stat) => stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Reads who holds the lock; `None` if that is not to be had (the owner may be between locking and writing).
fn holder(file: &File) -> Option<u32> {
    let mut text = [0; 16];
    let n = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(text.get(..n)?).ok()?.lines().next()?.parse().ok()
}
