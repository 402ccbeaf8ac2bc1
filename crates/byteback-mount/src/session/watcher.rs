//! A small process that removes the mount when the daemon dies without doing so.
//!
//! When the daemon dies, the kernel closes its connection and the mount answers everything with
//! "Transport endpoint is not connected", hiding the plain directory below it. A process that is
//! still alive has to unmount it. FUSE's own answer (`auto_unmount`) needs `allow_other`, which
//! ordinary users normally may not use.
//!
//! The watcher is a forked copy of the daemon that does nothing but wait and read a pipe. The
//! daemon holds the other end: first it writes the mount's id, at an orderly end one byte more. If
//! the pipe ends without that byte, the daemon is dead: the watcher lazily unmounts the mount with
//! that id if it has no daemon any more, and nothing else.
//!
//! *A daemon that cannot die.* One of its threads may wait for its own mount when it is killed (for
//! the kernel to write pages back, say). Then nothing answers it any more, and it keeps the
//! connection and the pipe open, so that all programs that use the mount hang, too. The watcher
//! learns by the [`lifeline`] that the daemon is dying. If the pipe has not ended [`DYING_MS`]
//! later, it aborts the connection of the mount with the id that it received. All waiting calls
//! fail then, the daemon dies, the pipe ends, and all goes on as above; so the plain directory
//! never shows while a thread of the daemon could still write to it. Root aborts by
//! `umount2(MNT_FORCE)`, an ordinary user through the file system fusectl, whose file for a
//! connection belongs to the user who mounted. Where that is not mounted (systemd mounts it), or
//! where the mount cannot be reached by its path any more (unmounted lazily, or covered by
//! another), root has to help (`umount -f`, fusectl).
//!
//! Between `fork` and `_exit` only calls that are safe after a fork in a process with threads: no
//! allocation, no locks; all strings were made before. The copy closes every descriptor but the
//! pipe (a copy of `/dev/fuse` would keep the dead connection alive), leaves the daemon's process
//! group and ignores the signals that a terminal or a service manager sends to all of a group. It
//! is forked twice, so that the daemon needs not reap it.
//!
//! If it is killed together with the daemon (a whole control group killed at once), the dead mount
//! stays until the next start, which removes it (see `mounting`).

mod lifeline;

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use self::lifeline::{Lifeline, Sight};
use super::mounting::{MountId, helper};

/// Written at an orderly end.
const QUIT: u8 = b'q';

/// In the copy: what it reads.
const PIPE: RawFd = 3;

/// In the copy: the mount that is looked at.
const MOUNT: RawFd = 9;
const MOUNT_PATH: &CStr = c"/proc/self/fd/9";

/// How long the pipe may outlive the lifeline, in milliseconds. The kernel frees the daemon's
/// memory in between.
const DYING_MS: libc::c_int = 1000;

/// The daemon's side.
#[derive(Debug)]
pub(super) struct Watcher {
    /// `None` after the orderly end.
    ends: Mutex<Option<Ends>>,
}

/// The daemon's ends. The order to end comes before the lifeline's end, or the watcher would take
/// that for a death.
#[derive(Debug)]
struct Ends {
    pipe: OwnedFd,
    _lifeline: Option<Lifeline>,
}

/// The copy's instructions, made before the fork.
struct Orders {
    point: CString,
    is_root: bool,
    helper: CString,
    pipe: RawFd,
    lifeline: Option<Sight>,
}

impl Watcher {
    /// Forks the process that watches over a mount that will be at `point`.
    pub(super) fn fork(point: &Path) -> io::Result<Self> {
        let helper = helper().map_or(&b""[..], |path| path.as_os_str().as_bytes());
        let (theirs, ours) = io::pipe()?;
        // Without it (an emulator may have no robust futexes) nobody helps a daemon that cannot
        // die; all else is the same.
        let lifeline = Lifeline::start().ok();
        let orders = Orders {
            point: CString::new(point.as_os_str().as_bytes())?,
            is_root: rustix::process::geteuid().is_root(),
            helper: CString::new(helper)?,
            pipe: theirs.as_raw_fd(),
            lifeline: lifeline.as_ref().map(Lifeline::sight),
        };
        // SAFETY: the child calls nothing but `watch`, which keeps to what is allowed after a fork,
        // and never returns.
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
            ends: Mutex::new(Some(Ends {
                pipe: ours.into(),
                _lifeline: lifeline,
            })),
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
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ends) = &*ends {
            // A watcher that was killed is no reason to stop serving. A pipe without readers raises
            // SIGPIPE, which Rust programs ignore; for others the write would be fatal, so it is
            // not attempted in vain.
            let _ = rustix::io::write(&ends.pipe, bytes);
        }
        if last {
            *ends = None;
        }
    }
}

/// The life of the copy.
///
/// # Safety
/// Only in a forked copy; never returns to code that the daemon runs.
unsafe fn watch(orders: &Orders) -> ! {
    // SAFETY: plain system calls with pointers to memory that outlives them; all are
    // async-signal-safe.
    unsafe {
        libc::setsid();
        if libc::fork() != 0 {
            libc::_exit(0);
        }
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        // Everything but the pipe is closed, 0 to 2 lead nowhere.
        if libc::dup2(orders.pipe, PIPE) < 0 {
            libc::_exit(1);
        }
        libc::syscall(
            libc::SYS_close_range,
            PIPE.cast_unsigned() + 1,
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
        if !read_exactly(&mut id) {
            // Never mounted.
            libc::_exit(0);
        }
        let id = u64::from_ne_bytes(id);
        if let Some(lifeline) = orders.lifeline {
            lifeline.wait();
            if !has_news(DYING_MS) && open_if_ours(&orders.point, id) {
                abort(orders.is_root);
                libc::close(MOUNT);
            }
        }
        if read_exactly(&mut byte) {
            // An orderly end.
            libc::_exit(0);
        }
        if is_our_dead_mount(&orders.point, id) {
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

/// Waits until there is something to read from the pipe, or its end; false if the time is over
/// before.
unsafe fn has_news(timeout_ms: libc::c_int) -> bool {
    let mut event = libc::pollfd {
        fd: PIPE,
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        // SAFETY: one place, as is told; errno is this thread's own.
        match unsafe { (libc::poll(&raw mut event, 1, timeout_ms), *libc::__errno_location()) } {
            (-1, libc::EINTR) => {}
            (count, _) => return count != 0,
        }
    }
}

/// Aborts the connection of the mount whose root is open as [`MOUNT`]: all requests fail, and
/// whoever waits for one is woken up. That descriptor makes it certain which mount that is; it
/// keeps the mount, too, which is in the way of unmounting alone.
unsafe fn abort(is_root: bool) {
    const FORCE: libc::c_int = libc::MNT_FORCE;
    // SAFETY: constant strings, a place for the answer, and a path that is ended by a zero.
    unsafe {
        // "Busy" is said after the connection is aborted. Root of a container may not, but may do
        // the other.
        let forced =
            is_root && (libc::umount2(MOUNT_PATH.as_ptr(), FORCE) == 0 || *libc::__errno_location() == libc::EBUSY);
        if forced {
            return;
        }
        let mut told: libc::statx = std::mem::zeroed();
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        // Nothing is asked for but the device, which the kernel knows: no request is made, which
        // nobody would answer.
        if libc::syscall(libc::SYS_statx, MOUNT, c"".as_ptr(), flags, 0, &raw mut told) != 0 {
            return;
        }
        let path = abort_path(told.stx_dev_minor);
        let order = libc::open(path.as_ptr().cast(), libc::O_WRONLY | libc::O_CLOEXEC);
        libc::write(order, c"1".as_ptr().cast(), 1);
        libc::close(order);
    }
}

/// The file of fusectl that aborts a connection, which is named by the minor number of the mount's
/// device; ended by a zero.
fn abort_path(connection: u32) -> [u8; 48] {
    let mut digits = [0u8; 10];
    let mut count = 0;
    let mut rest = connection;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        count += 1;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let digits = digits.iter().skip(10 - count);
    let bytes = b"/sys/fs/fuse/connections/".iter().chain(digits).chain(b"/abort");
    let mut path = [0u8; 48];
    for (place, byte) in path.iter_mut().zip(bytes) {
        *place = *byte;
    }
    path
}

/// Fills `buffer` from the pipe; false if it ends before.
unsafe fn read_exactly(buffer: &mut [u8]) -> bool {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        // SAFETY: `rest` is writable for its length.
        let count = unsafe { libc::read(PIPE, rest.as_mut_ptr().cast(), rest.len()) };
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

/// Whether the topmost mount at `point` is the one with this id, and dead. The id alone would not
/// do: the kernel gives it to the next mount as soon as ours is gone.
///
/// Asking for the space is a request to the daemon: it fails once the connection is aborted, and
/// waits until then.
unsafe fn is_our_dead_mount(point: &CStr, id: u64) -> bool {
    // SAFETY: as for this function, and a place for the answer.
    unsafe {
        if !open_if_ours(point, id) {
            return false;
        }
        let mut space: libc::statfs = std::mem::zeroed();
        let answered = libc::fstatfs(MOUNT, &raw mut space);
        let is_dead = answered != 0 && matches!(*libc::__errno_location(), libc::ENOTCONN | libc::ECONNABORTED);
        // The helper's unmount is refused while a descriptor is open.
        libc::close(MOUNT);
        is_dead
    }
}

/// Opens the root of the topmost mount at `point` as [`MOUNT`], which is not asked anything. If it
/// has another id, nothing stays open.
unsafe fn open_if_ours(point: &CStr, id: u64) -> bool {
    let mut text = [0u8; 512];
    // SAFETY: constant or caller's strings, and a buffer that is writable for the length given.
    let count = unsafe {
        let fd = libc::open(point.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
        // The descriptor must have a known number, so that its path is a constant.
        if fd < 0 || libc::dup2(fd, MOUNT) < 0 {
            return false;
        }
        libc::close(fd);
        let info = libc::open(c"/proc/self/fdinfo/9".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let count = libc::read(info, text.as_mut_ptr().cast(), text.len());
        libc::close(info);
        count
    };
    let told = usize::try_from(count).ok().and_then(|count| text.get(..count));
    let is_ours = told.and_then(parse_mount_id) == Some(id);
    if !is_ours {
        // SAFETY: opened above.
        unsafe { libc::close(MOUNT) };
    }
    is_ours
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
