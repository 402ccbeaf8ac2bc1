//! A small process that removes the mount when the daemon dies without doing so.
//!
//! When the daemon dies, however, the kernel closes its connection and the mount answers everything with "Transport
//! endpoint is not connected", hiding the plain directory below it. Somebody who is still alive has to unmount it.
//! FUSE's own answer (`auto_unmount`) needs `allow_other`, which ordinary users normally may not use.
//!
//! The watcher is a forked copy of the daemon that does nothing but read a pipe. The daemon holds the other end:
//! first it writes the mount's id, at an orderly end one byte more. If the pipe ends without that byte, the daemon is
//! dead: the watcher unmounts lazily what has the id it was told *and* no daemon any more; nothing else.
//!
//! Between `fork` and `_exit` only calls that are safe after a fork in a process with threads: no allocation, no
//! locks; all strings were made before. The copy closes every descriptor but the pipe (a copy of `/dev/fuse` would
//! keep the dead connection alive), leaves the daemon's process group and ignores the signals that a terminal or a
//! service manager sends to all of a group. It is forked twice, so that the daemon needs not reap it.
//!
//! If it is killed together with the daemon (a whole control group killed at once), the dead mount stays until the
//! next start, which removes it (see `mounting`).

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::mounting::{MountId, helper};

/// Written at an orderly end.
const QUIT: u8 = b'q';

/// The daemon's end.
#[derive(Debug)]
pub(super) struct Watcher {
    /// `None` after the orderly end.
    pipe: Mutex<Option<OwnedFd>>,
}

/// What the copy needs, made before the fork.
struct Orders {
    point: CString,
    is_root: bool,
    helper: CString,
    pipe: libc::c_int,
}

impl Watcher {
    /// Forks the process that watches over a mount that will be at `point`.
    pub(super) fn fork(point: &Path) -> io::Result<Self> {
        let helper = helper().map_or(&b""[..], |path| path.as_os_str().as_bytes());
        let (theirs, ours) = io::pipe()?;
        let orders = Orders {
            point: CString::new(point.as_os_str().as_bytes())?,
            is_root: rustix::process::geteuid().is_root(),
            helper: CString::new(helper)?,
            pipe: theirs.as_raw_fd(),
        };
        // SAFETY: the child calls nothing but `watch`, which keeps to what is allowed after a fork, and never returns.
        let child = unsafe { libc::fork() };
        match child {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: we are the forked copy.
            0 => unsafe { watch(&orders) },
            _ => {}
        }
        // The first copy ends at once; the second one, its child, belongs to init.
        let mut status = 0;
        // SAFETY: `child` is our child and `status` is a place for one int.
        while unsafe { libc::waitpid(child, &raw mut status, 0) } == -1 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                break;
            }
        }
        Ok(Self {
            pipe: Mutex::new(Some(ours.into())),
        })
    }

    /// Tells which mount to remove.
    pub(super) fn arm(&self, id: MountId) {
        self.send(&id.0.to_ne_bytes(), false);
    }

    /// There is nothing to watch any more.
    pub(super) fn disarm(&self) {
        self.send(&[QUIT], true);
    }

    fn send(&self, bytes: &[u8], last: bool) {
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fd) = &*pipe {
            // A watcher that was killed is no reason to stop serving. A pipe without readers raises SIGPIPE, which
            // Rust programs ignore; for others the write would be fatal, so it is not attempted in vain.
            let _ = rustix::io::write(fd, bytes);
        }
        if last {
            *pipe = None;
        }
    }
}

/// The life of the copy.
///
/// # Safety
/// Only in a forked copy; never returns to code that the daemon runs.
unsafe fn watch(orders: &Orders) -> ! {
    // SAFETY: plain system calls with pointers to memory that outlives them; all are async-signal-safe.
    unsafe {
        libc::setsid();
        if libc::fork() != 0 {
            libc::_exit(0);
        }
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        // The pipe becomes descriptor 3, everything else is closed, 0 to 2 lead nowhere.
        if libc::dup2(orders.pipe, 3) < 0 {
            libc::_exit(1);
        }
        libc::syscall(
            libc::SYS_close_range,
            4 as libc::c_uint,
            libc::c_uint::MAX,
            0 as libc::c_uint,
        );
        let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for standard in 0..3 {
            libc::dup2(nowhere, standard);
        }
        libc::close(nowhere);
        libc::prctl(libc::PR_SET_NAME, c"byteback-watch".as_ptr());
        libc::chdir(c"/".as_ptr());

        let mut id = [0u8; 8];
        let mut byte = [0u8; 1];
        let armed = read_exactly(&mut id);
        if !armed || read_exactly(&mut byte) {
            // Never mounted, or an orderly end.
            libc::_exit(0);
        }
        if is_our_dead_mount(&orders.point, u64::from_ne_bytes(id)) {
            if orders.is_root {
                libc::umount2(orders.point.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW);
            } else {
                let arguments = [
                    orders.helper.as_ptr(),
                    c"-u".as_ptr(),
                    c"-q".as_ptr(),
                    c"-z".as_ptr(),
                    c"--".as_ptr(),
                    orders.point.as_ptr(),
                    std::ptr::null(),
                ];
                let environment = [std::ptr::null()];
                libc::execve(orders.helper.as_ptr(), arguments.as_ptr(), environment.as_ptr());
            }
        }
        libc::_exit(0)
    }
}

/// Fills `buffer` from descriptor 3; false if the pipe ends before.
unsafe fn read_exactly(buffer: &mut [u8]) -> bool {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        // SAFETY: `rest` is writable for its length.
        let count = unsafe { libc::read(3, rest.as_mut_ptr().cast(), rest.len()) };
        match usize::try_from(count) {
            Ok(0) => return false,
            Ok(count) => filled += count,
            // SAFETY: errno is this thread's own.
            Err(_) if unsafe { *libc::__errno_location() } == libc::EINTR => {}
            Err(_) => return false,
        }
    }
    true
}

/// Whether the topmost mount at `point` is the one with this id, and dead. The id alone would not do: the kernel gives
/// it to the next mount as soon as ours is gone.
///
/// Asking for the space is a request to the daemon: it fails once the connection is aborted, and waits until then.
unsafe fn is_our_dead_mount(point: &CStr, id: u64) -> bool {
    let mut text = [0u8; 512];
    // SAFETY: constant or caller's strings, and buffers that are writable for the length given.
    let (count, is_dead) = unsafe {
        let fd = libc::open(point.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
        // The descriptor must have a known number, so that its path is a constant.
        if fd < 0 || libc::dup2(fd, 9) < 0 {
            return false;
        }
        let info = libc::open(c"/proc/self/fdinfo/9".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let count = libc::read(info, text.as_mut_ptr().cast(), text.len());
        let mut space: libc::statfs = std::mem::zeroed();
        let answered = libc::fstatfs(9, &raw mut space);
        let is_dead = answered != 0 && matches!(*libc::__errno_location(), libc::ENOTCONN | libc::ECONNABORTED);
        // The helper's unmount is refused while a descriptor is open.
        libc::close(info);
        libc::close(9);
        libc::close(fd);
        (count, is_dead)
    };
    let told = usize::try_from(count).ok().and_then(|count| text.get(..count));
    is_dead && told.and_then(parse_mount_id) == Some(id)
}

fn parse_mount_id(text: &[u8]) -> Option<u64> {
    const KEY: &[u8] = b"mnt_id:";
    let at = text.windows(KEY.len()).position(|window| window == KEY)?;
    let digits = text.get(at + KEY.len()..)?.trim_ascii_start();
    let mut number: u64 = 0;
    for digit in digits.iter().take_while(|byte| byte.is_ascii_digit()) {
        number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    digits.first().is_some_and(u8::is_ascii_digit).then_some(number)
}

#[cfg(test)]
mod tests;
