//! One owner per state directory.
//!
//! The lock is `flock` on the file `lock` inside the directory: the kernel drops it when the last
//! descriptor closes, hence a killed owner leaves nothing to clean up, and a restarted machine has
//! no stale lock. The file holds the owner's process id in decimal, only to name it in messages; it
//! is never removed, because removing it while another process waits for it would give two owners
//! of two different files.
//!
//! A killed owner with several threads may hold the lock for a moment: its first thread is gone,
//! while another still waits for the disk. We wait for such an owner, and for one that
//! [announced](DirLock::announce_end) its end, but for no other.
//!
//! A `flock` belongs to the open file, which a child shares from `fork` until it execs (the
//! descriptor is close-on-exec). So releasing the lock unlocks it explicitly instead of only
//! closing it: another thread may be starting a program just then, and the directory could not be
//! locked again at once.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;

use crate::clock::{Clock, RealClock};
use crate::error::context;

/// Number of waits for a dying owner, each of [`OWNER_WAIT`].
const DYING_OWNER_WAITS: u32 = 100;
/// Number of waits for an owner that announced its end: it may have a large log to settle.
const ENDING_OWNER_WAITS: u32 = 1200;
const OWNER_WAIT: Duration = Duration::from_millis(50);

/// Follows the process id in the lock file once the owner has begun to end.
const ENDING: &str = "ending";

/// The name of the lock file in its directory; it shows in [`list`](super::DurableDir::list).
pub const LOCK_NAME: &str = "lock";

/// The exclusive ownership of a directory, given up when dropped.
#[derive(Debug)]
pub struct DirLock {
    file: File,
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // If this fails, closing the descriptor releases the lock sooner or later.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Another owner holds the directory.
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
        let mut waits = 0;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    let (holder_pid, has_announced_end) = holder(&file);
                    let waits_max = match has_announced_end {
                        true => ENDING_OWNER_WAITS,
                        false => DYING_OWNER_WAITS,
                    };
                    if waits < waits_max && (has_announced_end || holder_pid.is_some_and(is_dying)) {
                        waits += 1;
                        RealClock.sleep(OWNER_WAIT);
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
        // First the number, then the truncation: a reader in between sees the new number, and
        // digits of the old one only after the line end, where it does not look.
        file.write_all_at(pid.as_bytes(), 0)
            .and_then(|()| file.set_len(pid.len() as u64))
            .map_err(|e| context("lock", label, e))?;
        Ok(Self { file })
    }

    /// Announces that the directory will be free soon: the next owners wait instead of being
    /// refused.
    ///
    /// # Errors
    /// The system's error. The next owners are then refused until the lock is released.
    pub fn announce_end(&self) -> io::Result<()> {
        let text = format!("{}\n{ENDING}\n", std::process::id());
        self.file.write_all_at(text.as_bytes(), 0)
    }

    /// The owner of the directory at `path`, if it has announced its end and is still there.
    #[must_use]
    pub fn ending_owner(path: &Path) -> Option<u32> {
        let file = File::open(path.join(LOCK_NAME)).ok()?;
        let (pid, has_announced_end) = holder(&file);
        if !has_announced_end {
            return None;
        }
        // The announcement outlives its owner, so test the lock itself. Others who try meanwhile
        // read the same announcement, and wait.
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                let _ = flock(&file, FlockOperation::Unlock);
                None
            }
            Err(_) => pid,
        }
    }
}

/// Whether the first thread of a process is gone and the others must follow.
fn is_dying(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // The name before the state is in parentheses and may hold anything.
        Ok(stat) => stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Reads the lock holder's process id, and whether it announced its end; `None` if the id is not
/// readable (the owner may be between locking and writing).
fn holder(file: &File) -> (Option<u32>, bool) {
    let mut text = [0; 32];
    let read = file.read_at(&mut text, 0).ok().and_then(|n| text.get(..n));
    let mut lines = read
        .and_then(|text| std::str::from_utf8(text).ok())
        .unwrap_or_default()
        .lines();
    let pid = lines.next().and_then(|line| line.parse().ok());
    (pid, lines.next() == Some(ENDING))
}
