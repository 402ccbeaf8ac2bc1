//! redb's storage over a durable file.
//!
//! **Closed is closed.** After an I/O error the database is reopened on the same file while
//! snapshots of the old one still exist. The new one knows nothing of them and reuses their pages,
//! so they must not read the file any more: they get an error, never reused pages.
//!
//! **A full disk.** Space is taken when the file grows, so that a full disk fails this one call,
//! and not a write in the middle of a transaction, or the repair after it. Otherwise not even
//! reading would go on, and the gate would refuse the very `unlink` that makes room.
//!
//! **A failed sync.** Writes since the last good sync may never reach the disk, although they can
//! still be read, and the next sync will not report it. Hence the ranges that no sync has confirmed
//! are remembered beyond the backend. They are written again, as they read now: at once (so that a
//! later process does not trust what is only in memory) and, if that fails too, when the file is
//! opened again. redb gets the error in any case.

use std::io;
use std::sync::Arc;

use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::durable::DurableFile;
use parking_lot::{Mutex, RwLock};

/// The ranges of one file that were written but not confirmed by a sync.
pub(crate) type Unconfirmed = Arc<Mutex<ExtentSet>>;

/// A [`redb::StorageBackend`] on a file of `byteback-host`. The state folder is locked as a whole
/// by its owner, so range locks are left to the default (unsupported).
#[derive(Debug)]
pub(crate) struct Backend {
    /// `None` once closed. Held shared during an operation, so that closing waits for those under
    /// way.
    file: RwLock<Option<Arc<dyn DurableFile>>>,
    unconfirmed: Unconfirmed,
}

impl Backend {
    /// A backend on `file`, in which the ranges `unconfirmed` are written again.
    pub(crate) fn open(file: Arc<dyn DurableFile>, unconfirmed: Unconfirmed) -> io::Result<Self> {
        write_again(file.as_ref(), &unconfirmed.lock())?;
        Ok(Self {
            file: RwLock::new(Some(file)),
            unconfirmed,
        })
    }

    fn on<T>(&self, act: impl FnOnce(&dyn DurableFile) -> io::Result<T>) -> io::Result<T> {
        match self.file.read().as_deref() {
            Some(file) => act(file),
            None => Err(io::Error::other(
                "the log's database was reopened after an error; start the backup again",
            )),
        }
    }
}

/// Writes `ranges` as they read now.
fn write_again(file: &dyn DurableFile, ranges: &ExtentSet) -> io::Result<()> {
    let len_bytes = file.len()?;
    // The last byte stands for the length.
    let Some(last) = len_bytes
        .checked_sub(1)
        .and_then(|last| ByteRange::new(last, len_bytes))
    else {
        return Ok(());
    };
    if ranges.is_empty() {
        return Ok(());
    }
    let mut ranges = ranges.clone();
    ranges.truncate(len_bytes);
    ranges.insert(last);
    let mut buffer = [0; 16 << 10];
    for range in ranges.iter() {
        let mut at = range.start();
        while at < range.end() {
            // At most the buffer's length, so the cast loses nothing.
            let len = (range.end() - at).min(buffer.len() as u64) as usize;
            let piece = &mut buffer[..len];
            file.read_exact_at(at, piece)?;
            file.write_all_at(at, piece)?;
            at += len as u64;
        }
    }
    Ok(())
}

/// Allocates the space from `at` to `end`, which reads as zeros already.
fn write_zeros(file: &dyn DurableFile, mut at: u64, end: u64) -> io::Result<()> {
    let zeros = [0; 16 << 10];
    while at < end {
        // At most the buffer's length, so the cast loses nothing.
        let len = (end - at).min(zeros.len() as u64) as usize;
        file.write_all_at(at, &zeros[..len])?;
        at += len as u64;
    }
    Ok(())
}

impl redb::StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.on(|file| file.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.on(|file| file.read_exact_at(offset, out))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.on(|file| {
            let before = file.len()?;
            // First the length, at once: redb knows no file of a length in between.
            file.set_len(len)?;
            write_zeros(file, before, len).inspect_err(|_| {
                // If this fails too, the file is merely too long.
                let _ = file.set_len(before);
            })
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.on(|file| {
            // redb writes and syncs from one thread at a time.
            let mut unconfirmed = self.unconfirmed.lock();
            let outcome = file.sync_data();
            let is_durable = outcome.is_ok() || write_again(file, &unconfirmed).and_then(|()| file.sync_data()).is_ok();
            if is_durable {
                unconfirmed.clear();
            }
            outcome
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.on(|file| {
            if let Some(range) = ByteRange::new(offset, offset.saturating_add(data.len() as u64)) {
                self.unconfirmed.lock().insert(range);
            }
            file.write_all_at(offset, data)
        })
    }

    fn close(&self) -> io::Result<()> {
        *self.file.write() = None;
        Ok(())
    }
}
