//! Mounts within a tree: other file systems mounted over a directory or a file of it.
//!
//! When the kernel is told to forget a name, it silently unmounts everything mounted below that
//! name. So code that takes a name away from inside asks here first. The table of mounts is read
//! once and again whenever the kernel says that it changed, so that asking costs one system call.
//!
//! Only mounts of the namespace that this process is in are known. Another mount may appear between
//! the answer and the step that follows; that cannot be excluded from here.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::mount_table::unescape;

const TABLE: &str = "/proc/self/mountinfo";

/// The table, open, and the mount points in it.
struct Table {
    file: File,
    points: Vec<PathBuf>,
}

impl Table {
    fn open() -> Option<Self> {
        let mut table = Self {
            file: File::open(TABLE).ok()?,
            points: Vec::new(),
        };
        table.read()?;
        Some(table)
    }

    fn read(&mut self) -> Option<()> {
        let mut text = Vec::new();
        self.file.rewind().ok()?;
        self.file.read_to_end(&mut text).ok()?;
        let lines = text.split(|byte| *byte == b'\n');
        let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
        self.points = points.map(|point| OsString::from_vec(unescape(point)).into()).collect();
        Some(())
    }

    /// Whether the table changed since it was asked last.
    #[allow(unsafe_code)]
    fn has_changed(&self) -> bool {
        let mut asked = libc::pollfd {
            fd: self.file.as_raw_fd(),
            events: libc::POLLPRI,
            revents: 0,
        };
        // SAFETY: it is given one entry, whose descriptor is open, and writes to it alone.
        let answered = unsafe { libc::poll(&raw mut asked, 1, 0) };
        answered != 0
    }
}

/// See the module.
pub(crate) struct MountedWithin {
    /// Where the tree is seen.
    places: Vec<PathBuf>,
    table: Mutex<Option<Table>>,
}

impl MountedWithin {
    pub(crate) fn new(places: Vec<PathBuf>) -> Self {
        Self {
            places,
            table: Mutex::new(None),
        }
    }

    /// The first mount found at the path of these names in the tree, or below it. `None` if the
    /// table cannot be read.
    pub(crate) fn find(&self, names: &[OsString], name: &OsStr) -> Option<PathBuf> {
        if self.places.is_empty() {
            return None;
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = match table.as_mut() {
            Some(table) => !table.has_changed() || table.read().is_some(),
            None => false,
        };
        if !is_current {
            *table = Table::open();
        }
        let points = &table.as_ref()?.points;
        self.places.iter().find_map(|place| {
            let mut path = place.clone();
            path.extend(names);
            path.push(name);
            points.iter().find(|point| is_within(point, &path)).cloned()
        })
    }
}

/// By their bytes: a path component at a time, without looking at any file.
fn is_within(point: &Path, path: &Path) -> bool {
    let rest = point.as_os_str().as_bytes().strip_prefix(path.as_os_str().as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
