//! Processes by their handles and numbers: whether they live, and their ends.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use std::fs;
use std::os::fd::OwnedFd;
use std::process::Child;

/// A handle of a process, also for another thread. Unlike the number, it never means another
/// process.
pub fn handle(pid: u32) -> OwnedFd {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

/// Kills the process of a handle with SIGKILL; a process that has ended is left alone.
pub fn kill(process: &OwnedFd) {
    let _ = pidfd_send_signal(process, Signal::KILL);
}

/// Whether the last thread of a process is gone, and with it the locks that the process held.
pub fn has_ended(process: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)).unwrap() > 0
}

/// Whether a process lives; a zombie does not.
pub fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .is_some_and(|state| !state.is_empty() && !state.starts_with(['Z', 'X']))
}

/// Sends a signal to a child process that was not waited for yet.
pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A stopped process. It continues when this is dropped, also after a failure.
pub struct Frozen(Pid);

impl Frozen {
    /// Stops a child process, like a machine that hangs.
    pub fn new(child: &Child) -> Self {
        signal(child, Signal::STOP);
        Self(Pid::from_child(child))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Where in the kernel the threads of a process wait, for the message about one that hangs.
pub fn kernel_stacks(pid: u32) -> String {
    let mut text = String::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        text.push_str(&format!("{} {}\n", read("comm").trim(), read("wchan").trim()));
    }
    text
}
