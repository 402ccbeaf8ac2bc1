//! Whether a mount is still in its place, whoever may have taken it away.
//!
//! After a lazy unmount (`umount -l`) and after `mount --move`, open files go on to be served,
//! while programs that come by the path write into the plain directory, past the gate: no picture
//! holds anything still any more.
//!
//! **Invariant.** If [`Place::is_attached`] says yes, the mount was in its place at some moment of
//! that call; so what was read before it was protected. A reader asks *after* it has read, and then
//! nothing that was written past the mount can be in what it read.
//!
//! How: the kernel counts the changes of our table of mounts before a mount loses its place, and
//! polling an open `/proc/self/mountinfo` tells whether the count moved since that was last asked.
//! So asking costs one system call, and only after a change of the table, wherever in the system,
//! the table is read. No path is resolved, and no file system is asked: serving threads may do
//! this.
//!
//! Asking is for readers; [`Watch`] sleeps until the table changes, so that what pictures hold is
//! also given up when nobody reads.
//!
//! Not seen: another mount namespace in which the same directory is plain.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::mounting::Mounted;
use crate::mount_table::unescape;

const TABLE: &str = "/proc/self/mountinfo";

/// Time between two looks of [`Watch`] at a table that changes all the time.
const PAUSE: Duration = Duration::from_millis(200);

/// Reads at most, in one question, of a table that keeps changing while it is read.
const READS_MAX: usize = 32;

/// See the module.
#[derive(Debug)]
pub(crate) struct Place {
    mounted: Mounted,
    /// The directory below the mount: it tells where that is now, if a directory above it was
    /// renamed.
    covered: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    table: File,
    /// The table may have changed since the mount was found in it.
    is_suspect: bool,
    /// Once taken away is taken away: it could have been put back.
    is_gone: bool,
    /// The device number of the mounted file system, as the table has it: numbers of mounts are
    /// used again.
    device: Vec<u8>,
    text: Vec<u8>,
}

/// The line of one mount in the table.
struct Line<'a> {
    device: &'a [u8],
    point: &'a [u8],
}

fn find(table: &[u8], id: u64) -> Option<Line<'_>> {
    let id = id.to_string();
    table.split(|byte| *byte == b'\n').find_map(|line| {
        // ID PARENT MAJOR:MINOR ROOT POINT ...
        let mut fields = line.split(|byte| *byte == b' ');
        (fields.next() == Some(id.as_bytes())).then_some(())?;
        Some(Line {
            device: fields.nth(1)?,
            point: fields.nth(1)?,
        })
    })
}

impl State {
    /// Whether the table changed since this was last asked.
    fn has_changed(&self) -> io::Result<bool> {
        has_changed(&self.table, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }), None)
    }

    fn read(&mut self) -> io::Result<()> {
        self.text.clear();
        self.table.rewind()?;
        self.table.read_to_end(&mut self.text).map(drop)
    }
}

/// Waits until `table` changed since it was last asked, or the other end of `quit` is closed.
/// Returns whether the table changed and `quit` is still open.
fn has_changed(table: &File, timeout: Option<&Timespec>, quit: Option<&io::PipeReader>) -> io::Result<bool> {
    let asked = PollFlags::PRI | PollFlags::ERR;
    loop {
        let of_table = PollFd::new(table, asked);
        let polled = match quit {
            Some(quit) => {
                let mut both = [of_table, PollFd::new(quit, PollFlags::empty())];
                poll(&mut both, timeout).map(|_| both[0].revents().intersects(asked) && both[1].revents().is_empty())
            }
            None => {
                let mut one = [of_table];
                poll(&mut one, timeout).map(|_| one[0].revents().intersects(asked))
            }
        };
        match polled {
            Err(Errno::INTR) => {}
            polled => return Ok(polled?),
        }
    }
}

impl Place {
    /// The place of `mounted`, which lies over the directory `covered`.
    ///
    /// # Errors
    /// If the table cannot be read, or the mount is not in it.
    pub(super) fn new(mounted: Mounted, covered: OwnedFd) -> io::Result<Self> {
        let mut state = State {
            table: File::open(TABLE)?,
            is_suspect: true,
            is_gone: false,
            device: Vec::new(),
            text: Vec::new(),
        };
        state.read()?;
        let line =
            find(&state.text, mounted.id.0).ok_or_else(|| io::Error::other("the mount is not in the mount table"))?;
        state.device = line.device.to_owned();
        Ok(Self {
            mounted,
            covered,
            state: Mutex::new(state),
        })
    }

    /// Whether the mount is in its place, be it below another one; for what follows from that see
    /// the module.
    ///
    /// # Errors
    /// If the system cannot tell: then nothing is known, and the next may ask again.
    pub(crate) fn is_attached(&self) -> io::Result<bool> {
        // One at a time: a caller takes the kernel's answer away from the others.
        let state = &mut *self.state.lock();
        if state.is_gone {
            return Ok(false);
        }
        state.is_suspect |= state.has_changed()?;
        if !state.is_suspect {
            return Ok(true);
        }
        for _ in 0..READS_MAX {
            state.read()?;
            match find(&state.text, self.mounted.id.0) {
                Some(line) => {
                    state.is_gone = line.device != state.device || !self.is_here(line.point);
                    state.is_suspect = false;
                    return Ok(!state.is_gone);
                }
                // Old kernels may leave out a line when another goes while they list.
                None if state.has_changed()? => {}
                None => {
                    state.is_gone = true;
                    return Ok(false);
                }
            }
        }
        Err(io::Error::other("the mount table changes faster than it can be read"))
    }

    /// The device number of the mounted file system, `MAJOR:MINOR`.
    pub(super) fn device(&self) -> String {
        String::from_utf8_lossy(&self.state.lock().device).into_owned()
    }

    /// Whether `point`, as the table writes it, is where the mount was made.
    fn is_here(&self, point: &[u8]) -> bool {
        let point = unescape(point);
        Path::new(OsStr::from_bytes(&point)) == self.mounted.point || self.covered_at().is_ok_and(|at| at == point)
    }

    fn covered_at(&self) -> io::Result<Vec<u8>> {
        let link = PathBuf::from(format!("/proc/thread-self/fd/{}", self.covered.as_raw_fd()));
        Ok(std::fs::read_link(link)?.into_os_string().as_bytes().to_owned())
    }
}

/// A thread that sleeps until the table of mounts changes. Dropping this ends it.
#[derive(Debug)]
pub(super) struct Watch {
    quit: Option<io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Calls `look` once, and again after each change of the table, until it says `false`; several
    /// changes within [`PAUSE`] are one.
    ///
    /// # Errors
    /// If the table cannot be opened, or the thread not be started.
    pub(super) fn start(mut look: impl FnMut() -> bool + Send + 'static) -> io::Result<Self> {
        // Its own: what is told to one open file is not told to it again, but to every other.
        let table = File::open(TABLE)?;
        let (until, quit) = io::pipe()?;
        let pause = Timespec::try_from(PAUSE).map_err(io::Error::other)?;
        let thread = std::thread::Builder::new()
            .name("byteback-place".into())
            .spawn(move || {
                while look() && has_changed(&table, None, Some(&until)).unwrap_or(false) {
                    let mut quitting = [PollFd::new(&until, PollFlags::empty())];
                    if !matches!(poll(&mut quitting, Some(&pause)), Ok(0) | Err(Errno::INTR)) {
                        break;
                    }
                }
            })?;
        Ok(Self {
            quit: Some(quit),
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.quit.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
