//! On whose behalf a file is created.
//!
//! A daemon that runs as root serves all users, but a new file must belong to the caller, with the
//! caller's umask, and where the parent has a default ACL the backing file system must apply that
//! instead of the umask. Creating as root and changing the owner afterwards gets none of this right
//! (a moment with the wrong owner, the wrong quota, the wrong ACL), so the creating thread
//! *becomes* the caller for the one system call:
//!
//! - `setfsuid` and `setfsgid` change only the calling thread. They drop the capabilities that
//!   bypass file permissions; these are raised again at once, because the kernel has already
//!   checked the caller's permissions (`default_permissions`), with the supplementary groups and
//!   ACLs that this thread does not have.
//! - `CAP_FSETID` is not raised unless the caller is in the directory's group: the backing file
//!   system then strips the set-group-id bit of a new file exactly as it would for the caller.
//! - The umask belongs to the process, so each thread first gets one of its own
//!   (`unshare(CLONE_FS)`).
//!
//! An ordinary user's daemon only serves that user: only the umask is set.

use std::cell::Cell;
use std::io;

use rustix::fs::Mode;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// The caller of a request, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The file system user id.
    pub uid: u32,
    /// The file system group id.
    pub gid: u32,
    /// The thread, in the daemon's pid namespace; 0 if it is not visible there.
    pub pid: u32,
}

impl Caller {
    /// Whether the caller belongs to `gid`, by its own group or a supplementary one. A caller that
    /// has ended, or that cannot be seen from here, only has its own group.
    pub(crate) fn is_in_group(&self, gid: u32) -> bool {
        if self.gid == gid {
            return true;
        }
        let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", self.pid)) else {
            return false;
        };
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        groups
            .unwrap_or("")
            .split_whitespace()
            .any(|group| group.parse() == Ok(gid))
    }
}

thread_local! {
    /// The umask that this thread has set on its own file system state; `None` while it shares the
    /// process's.
    static UMASK: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The thread creates as the caller until this is dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct Assumed {
    restore: Option<CapabilitySets>,
}

/// Lets this thread create as `caller` with `umask`. `keep_set_group_id` says that a set-group-id
/// bit asked for is the caller's right. `switch_user` is false in an ordinary user's daemon.
///
/// # Errors
/// The system's error: a sandbox may forbid `unshare`.
pub(crate) fn assume(caller: Caller, umask: u32, keep_set_group_id: bool, switch_user: bool) -> io::Result<Assumed> {
    set_thread_umask(umask)?;
    if !switch_user || (caller.uid == 0 && caller.gid == 0) {
        return Ok(Assumed { restore: None });
    }
    let before = capabilities(None)?;
    // From here on the drop puts everything back, whatever fails.
    let assumed = Assumed { restore: Some(before) };
    set_fs_ids(caller.uid, caller.gid);
    let mut effective = before.effective;
    if caller.uid != 0 && !keep_set_group_id {
        effective.remove(CapabilitySet::FSETID);
    }
    set_capabilities(None, CapabilitySets { effective, ..before })?;
    Ok(assumed)
}

impl Drop for Assumed {
    fn drop(&mut self) {
        if let Some(before) = self.restore {
            set_fs_ids(0, 0);
            // Giving back what this thread had a moment ago cannot be refused; if it were, the next
            // call that needs the capability would fail with EPERM rather than do something wrong.
            let _ = set_capabilities(None, before);
        }
    }
}

fn set_fs_ids(uid: u32, gid: u32) {
    // SAFETY: plain system calls without pointers; they change the file system ids of this thread
    // only (glibc's wrappers are not broadcast to other threads, unlike those of setuid). They
    // report no errors.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
}

fn set_thread_umask(umask: u32) -> io::Result<()> {
    let umask = umask & 0o777;
    UMASK.with(|current| {
        if current.get() == Some(umask) {
            return Ok(());
        }
        if current.get().is_none() {
            // SAFETY: CLONE_FS only separates root directory, working directory and umask of this
            // thread; no descriptor is affected.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS)? };
        }
        rustix::process::umask(Mode::from_raw_mode(umask));
        current.set(Some(umask));
        Ok(())
    })
}
