//! The names in a directory, resumable after any of them.
//!
//! Each entry carries a *cookie*, the file system's own position after it (`d_off`). A reader that
//! stopped there can go on from it later, with another descriptor, and after names were added or
//! removed in between: names that were there all the time appear exactly once. Cookies are opaque
//! (on ext4 a hash); only 0 has a meaning, the beginning. One call to the kernel fills a buffer of
//! 32 KiB, so memory does not grow with the directory.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, openat, seek};
use rustix::io::Errno;

use super::library_inode::{Entry, LibraryInode};
use super::stat::kind_of_type;
use super::{reopen, uninterrupted};

const BUFFER_LEN_BYTES: usize = 32 * 1024;

/// The names in a directory, as the kernel lists them; stops after the first error.
#[derive(Debug)]
pub struct ReadDir {
    fd: OwnedFd,
    buffer: Vec<MaybeUninit<u8>>,
    ready: VecDeque<Entry>,
    dots: bool,
    done: bool,
}

/// Lists `dir` from the position `cookie` on: 0 for all, or the cookie of the last entry seen.
/// `dir` may be an `O_PATH` descriptor; its own position is neither used nor moved.
///
/// # Errors
/// `NotADirectory`, `PermissionDenied`, or what the system answered.
pub fn read_dir(dir: impl AsFd, cookie: u64) -> io::Result<ReadDir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = match uninterrupted(|| openat(dir.as_fd(), c".", flags, Mode::empty())) {
        // A directory may be readable but not searchable; then "." cannot be looked up in it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => reopen(&dir, flags)?,
        done => done?,
    };
    if cookie != 0 {
        uninterrupted(|| seek(&fd, SeekFrom::Start(cookie)))?;
    }
    let buffer = vec![MaybeUninit::uninit(); BUFFER_LEN_BYTES];
    Ok(ReadDir {
        fd,
        buffer,
        ready: VecDeque::new(),
        dots: false,
        done: false,
    })
}

impl ReadDir {
    /// Lists `.` and `..` too, which are left out otherwise.
    #[must_use]
    pub fn with_dots(mut self) -> Self {
        self.dots = true;
        self
    }

    /// Calls the kernel once; afterwards entries are ready, or the end is reached.
    fn refill(&mut self) -> io::Result<()> {
        while self.ready.is_empty() && !self.done {
            let mut raw = RawDir::new(&self.fd, &mut self.buffer);
            loop {
                match raw.next() {
                    None => self.done = true,
                    Some(Err(Errno::INTR)) => continue,
                    Some(Err(errno)) => return Err(errno.into()),
                    Some(Ok(entry)) => {
                        let name = entry.file_name().to_bytes();
                        if self.dots || !matches!(name, b"." | b"..") {
                            self.ready.push_back(Entry {
                                name: OsStr::from_bytes(name).to_owned(),
                                kind_hint: kind_of_type(entry.file_type()),
                                ino: entry.ino(),
                                cookie: entry.next_entry_cookie(),
                            });
                        }
                    }
                }
                if self.done || raw.is_buffer_empty() {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = io::Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.refill() {
            self.done = true;
            return Some(Err(error));
        }
        self.ready.pop_front().map(Ok)
    }
}

/// The names in a directory of either kind; stops after the first error.
#[derive(Debug)]
pub enum Entries {
    /// Of the system's file systems.
    System(ReadDir),
    /// Of a library.
    Library(LibraryEntries),
}

/// The names in a directory of a library.
#[derive(Debug)]
pub struct LibraryEntries {
    dir: Box<dyn LibraryInode>,
    cookie: u64,
    ready: VecDeque<Entry>,
    dots: bool,
    done: bool,
}

impl Entries {
    pub(super) fn of_library(dir: Box<dyn LibraryInode>, cookie: u64) -> Self {
        Self::Library(LibraryEntries {
            dir,
            cookie,
            ready: VecDeque::new(),
            dots: false,
            done: false,
        })
    }

    /// Lists `.` and `..` too, which are left out otherwise.
    #[must_use]
    pub fn with_dots(self) -> Self {
        match self {
            Self::System(entries) => Self::System(entries.with_dots()),
            Self::Library(entries) => Self::Library(LibraryEntries { dots: true, ..entries }),
        }
    }
}

impl Iterator for Entries {
    type Item = io::Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::System(entries) => entries.next(),
            Self::Library(entries) => entries.next(),
        }
    }
}

impl Iterator for LibraryEntries {
    type Item = io::Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.is_empty() && !self.done {
            match self.dir.list(self.cookie, self.dots) {
                Ok(entries) => self.ready = entries.into(),
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
        let entry = self.ready.pop_front();
        match &entry {
            Some(entry) => self.cookie = entry.cookie,
            None => self.done = true,
        }
        entry.map(Ok)
    }
}
