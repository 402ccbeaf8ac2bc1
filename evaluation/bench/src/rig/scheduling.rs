//! The placement of threads on processors.
//!
//! A request to a mount wakes another thread. Whether that thread is on the caller's processor or
//! on another one matters more than all the rest of a small write (here 4 against 49 microseconds),
//! and an ordinary scheduler decides it anew each time. *Pinned* puts both on the same processor,
//! in real-time classes, so that other programs neither move nor interrupt them: it shows the cost
//! of the code. *Free* is what users have.

use std::fmt;
use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::SuiteError;

/// The priority of the measuring thread; above the daemons', so that it continues as soon as it is
/// answered.
pub(crate) const CLIENT_PRIORITY: u32 = 5;

/// The placement of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// The scheduler's choice.
    Free,
    /// This processor, with a real-time priority.
    Pinned { cpu: u32 },
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => f.write_str("placed by the scheduler"),
            Self::Pinned { cpu } => write!(f, "all on processor {cpu}, in real-time classes"),
        }
    }
}

impl Placement {
    /// Places the calling thread and all threads that it starts from now on.
    ///
    /// # Errors
    /// If the system refuses: real-time priorities need root.
    pub(crate) fn apply(self, priority: u32) -> Result<(), SuiteError> {
        let Self::Pinned { cpu } = self else { return Ok(()) };
        let mut cpus = CpuSet::new();
        cpus.set(cpu as usize);
        sched_setaffinity(None, &cpus).map_err(|error| format!("cannot bind to processor {cpu}: {error}"))?;
        let parameters = libc::sched_param {
            sched_priority: i32::try_from(priority)?,
        };
        // SAFETY: the pointer is to a live value; 0 is the calling thread.
        if unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) } != 0 {
            let error = io::Error::last_os_error();
            return Err(format!("cannot set a real-time priority (this needs root): {error}").into());
        }
        Ok(())
    }

    /// Runs `work` in a thread of its own with this placement, and waits for it.
    ///
    /// # Errors
    /// The error of `work`, or the failure to place the thread.
    pub(crate) fn run<T: Send>(self, work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, SuiteError> {
        let result = std::thread::scope(|scope| {
            let worker = scope.spawn(move || {
                self.apply(CLIENT_PRIORITY).map_err(|error| error.to_string())?;
                work()
            });
            worker.join()
        });
        match result {
            Ok(result) => Ok(result?),
            Err(_) => Err("a measuring thread panicked".into()),
        }
    }
}
