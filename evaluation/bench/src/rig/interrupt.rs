//! Ctrl-C as an error.
//!
//! SIGINT, SIGTERM and SIGHUP are blocked in all threads and received by a dedicated one. It
//! records the request to stop, and ends the program that is being waited for. The waiting thread
//! then gets [`Interrupted`], and the stack unwinds past every guard. A second signal, or some
//! seconds without the program's end, kill it. The programs run in process groups of their own, so
//! that the terminal's Ctrl-C reaches only us: otherwise servers would die before their mounts.

use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use crate::SuiteError;

/// The time that the awaited program may take to end when asked, in seconds.
const END_TIMEOUT_S: libc::time_t = 10;

/// The user asked to stop.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

struct State {
    interrupted: bool,
    /// Programs that a thread waits for. A program is not reaped while it is listed, so its number
    /// cannot mean another process.
    awaited: Vec<Pid>,
}

static STATE: Mutex<State> = Mutex::new(State {
    interrupted: false,
    awaited: Vec::new(),
});

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts receiving signals. Call it once, before any other thread exists.
pub(crate) fn install() -> Result<(), SuiteError> {
    // SAFETY: the set is initialised by sigemptyset before it is used; blocking signals has no
    // other precondition.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        let error = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error).into());
        }
        set
    };
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut hard = false;
        loop {
            let signal = if hard {
                wait_for_signal(&set, Some(END_TIMEOUT_S))
            } else {
                wait_for_signal(&set, None)
            };
            if signal.is_err() {
                return;
            }
            let mut state = state();
            state.interrupted = true;
            for pid in &state.awaited {
                // It may have ended by itself meanwhile.
                let _ = kill_process(*pid, if hard { Signal::KILL } else { Signal::TERM });
            }
            hard = true;
        }
    })?;
    Ok(())
}

/// Returns when one of the blocked signals arrives, or at the timeout.
fn wait_for_signal(set: &libc::sigset_t, timeout_s: Option<libc::time_t>) -> io::Result<()> {
    let time = timeout_s.map(|tv_sec| libc::timespec { tv_sec, tv_nsec: 0 });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    loop {
        // SAFETY: the set and the time, if there is one, are live values of the right types; the
        // signal's details are not requested.
        if unsafe { libc::sigtimedwait(set, std::ptr::null_mut(), time) } >= 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => {}
            // Timeout.
            error if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            error => return Err(error),
        }
    }
}

/// Returns an error once the user has asked to stop.
pub(crate) fn check() -> Result<(), Interrupted> {
    if state().interrupted { Err(Interrupted) } else { Ok(()) }
}

/// Lets a program receive signals again: it inherits the blocked signals, and could not even be
/// asked to end.
pub(super) fn unblock_signals(command: &mut Command) {
    // SAFETY: what runs between fork and exec is two calls that are allowed there, on memory of its
    // own.
    unsafe {
        command.pre_exec(|| {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            match libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        });
    }
}

/// Starts a program that must end when the user asks to stop. [`forget`] must be called before it
/// is reaped.
pub(super) fn spawn_awaited(command: &mut Command) -> Result<io::Result<Child>, Interrupted> {
    // Under the lock, so that a signal comes either before the start or after the program is
    // listed.
    let mut state = state();
    if state.interrupted {
        return Err(Interrupted);
    }
    unblock_signals(command);
    let child = command.spawn();
    if let Ok(child) = &child {
        state.awaited.push(Pid::from_child(child));
    }
    Ok(child)
}

/// Removes a program that has ended and will be reaped.
pub(super) fn forget(pid: Pid) {
    state().awaited.retain(|awaited| *awaited != pid);
}
