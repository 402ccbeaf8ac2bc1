//! redb's storage over a durable file.
//!
//! A backend that redb has closed answers nothing more. After an I/O error the database is opened anew on the same file
//! while snapshots of the old one still exist; the new one knows nothing of them and reuses their pages, so that they must
//! not read the file any more: they get an error, never the pages of somebody else.

use std::io;
use std::sync::Arc;

use byteback_host::durable::DurableFile;
use parking_lot::RwLock;

/// A [`redb::StorageBackend`] on whatever `byteback-host` provides. The state folder is locked as a whole by its owner,
/// so range locks are left to the default (unsupported).
#[derive(Debug)]
pub(crate) struct Backend {
    /// `None` once closed. Held shared during an operation, so that closing waits for those under way.
    file: RwLock<Option<Arc<dyn DurableFile>>>,
}

impl Backend {
    pub(crate) fn new(file: Arc<dyn DurableFile>) -> Self {
        Self {
            file: RwLock::new(Some(file)),
        }
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

impl redb::StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.on(|file| file.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.on(|file| file.read_exact_at(offset, out))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.on(|file| file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.on(|file| file.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.on(|file| file.write_all_at(offset, data))
    }

    fn close(&self) -> io::Result<()> {
        *self.file.write() = None;
        Ok(())
    }
}
