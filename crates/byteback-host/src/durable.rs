//! Files whose contents must outlive a crash, as two small traits.
//!
//! A [`DurableDir`] is a flat directory of our own state (log, journal, segments), a
//! [`DurableFile`] a file in it. The traits promise exactly what POSIX lets a careful program rely
//! on, and no more:
//!
//! - bytes and length of a file are durable after [`DurableFile::sync_data`] returned `Ok`;
//! - a name that was created, renamed or removed is so durably after [`DurableDir::sync`] returned
//!   `Ok` (a durable name of a file that was never synced may show any mixture of old bytes, new
//!   bytes and zeros);
//! - a rename is atomic: after a crash the target is the old file or the new one;
//! - everything else may be kept, lost, torn at 512-byte sectors or reordered by a crash.
//!
//! After a failed sync nothing is known about the bytes written since the last good one: the kernel
//! may have dropped them and will report success next time. The caller must not retry the sync and
//! go on, but treat the file as damaged and reopen it.
//!
//! [`RealDir`] is the machine's file system, [`TreeDir`] any tree's, [`crate::sim::SimDisk`] the
//! adversary. Three ways of keeping something in a file are made of them: [`replace`] for bytes
//! that change as a whole, [`VersionedJson`] for a small record, [`RecordLog`] for what grows by
//! small steps. Out of scope: caching, buffering, atomicity of writes, nested paths in one name.

mod lock;
mod real;
mod record_log;
mod replace;
mod tree_dir;
mod versioned_json;

/// Entry points of the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    pub use super::record_log::fuzzing::{record_log, record_log_seeds};
    pub use super::versioned_json::fuzzing::{versioned_json, versioned_json_seeds};
}

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

pub use lock::{DirInUse, DirLock, LOCK_NAME};
pub use real::{RealDir, RealFile};
pub use record_log::{RecordLog, RecordLogContents, RecordLogError, RecordLogFormat};
pub use replace::{read_whole, replace};
pub use tree_dir::TreeDir;
pub use versioned_json::{VersionedJson, VersionedJsonError};

/// The behaviour of [`DurableDir::open`] for existing and missing names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Opens the file; `NotFound` if it does not exist.
    Existing,
    /// Opens the file, or creates an empty one.
    CreateIfMissing,
    /// Creates an empty file; `AlreadyExists` if the name is taken.
    CreateNew,
}

/// A directory of durable files. Names are single components: not empty, no `/`, no NUL, not `.` or
/// `..`; any other is refused with `InvalidInput`.
pub trait DurableDir: Send + Sync + Debug {
    /// Opens `name` for reading and writing at any offset.
    ///
    /// # Errors
    /// `NotFound` or `AlreadyExists` as `mode` says; otherwise what the system answered.
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DurableFile>>;

    /// Renames `from` to `to`, atomically replacing a file of that name. Files stay open.
    ///
    /// # Errors
    /// `NotFound` if `from` does not exist; otherwise what the system answered.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes the file `name`. Open files stay usable.
    ///
    /// # Errors
    /// `NotFound` if it does not exist; otherwise what the system answered.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The names of all entries, files and subdirectories, sorted. Names that are not UTF-8 are not
    /// ours and are left out.
    ///
    /// # Errors
    /// The system's error.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes all names created, renamed and removed so far durable. Says nothing about file
    /// contents.
    ///
    /// # Errors
    /// The system's error; see the module on failed syncs.
    fn sync(&self) -> io::Result<()>;

    /// Opens the directory `name` inside this one, creating it if missing; the new name is durable
    /// after this directory's [`sync`](Self::sync).
    ///
    /// # Errors
    /// `NotADirectory` if `name` is a file; otherwise what the system answered.
    fn subdir(&self, name: &str) -> io::Result<Arc<dyn DurableDir>>;
}

/// A file that is read and written at explicit offsets (bytes from its start), from any thread.
#[expect(
    clippy::len_without_is_empty,
    reason = "a file's length is a fallible question, not a container's size"
)]
pub trait DurableFile: Send + Sync + Debug {
    /// Fills all of `buf` from `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before; `buf` is then partly overwritten.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Reads at most `buf.len()` bytes from `offset` and returns how many; fewer is always legal, 0
    /// only at or after the end of the file or for an empty `buf`.
    ///
    /// # Errors
    /// The system's error.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `data` at `offset`; a gap after the old end reads as zeros.
    ///
    /// # Errors
    /// The system's error (`StorageFull` for a full disk); any part of `data` may have been
    /// written.
    fn write_all_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Cuts the file, or lengthens it with zeros, to `len_bytes`.
    ///
    /// # Errors
    /// The system's error.
    fn set_len(&self, len_bytes: u64) -> io::Result<()>;

    /// The length in bytes.
    ///
    /// # Errors
    /// The system's error.
    fn len(&self) -> io::Result<u64>;

    /// Makes the file's bytes and its length durable.
    ///
    /// # Errors
    /// The system's error; see the module on failed syncs.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes the file at least `len_bytes` long by writing zeros after its end, so that, once
    /// [`sync_data`](Self::sync_data) has returned, later writes below `len_bytes` neither run out
    /// of space on an overwriting file system nor need the file system to commit metadata with
    /// their sync. Written zeros and not `fallocate`, whose unwritten extents are converted, and
    /// journalled, at the first sync that follows a write. Existing bytes stay; a longer file is
    /// left alone.
    ///
    /// # Errors
    /// `StorageFull`, or what the system answered; the file may then have any length up to
    /// `len_bytes`.
    fn allocate(&self, len_bytes: u64) -> io::Result<()>;
}

/// Refuses anything but a single name.
pub(crate) fn check_name(name: &str) -> io::Result<&str> {
    if name.is_empty() || name == "." || name == ".." || name.bytes().any(|byte| byte == b'/' || byte == 0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("not a single file name: {name:?}"),
        ));
    }
    Ok(name)
}

#[cfg(test)]
pub(crate) mod conformance;
#[cfg(test)]
mod tests;
