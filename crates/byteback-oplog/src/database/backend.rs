//! redb's storage over a durable file.

use std::io;
use std::sync::Arc;

use byteback_host::durable::DurableFile;

/// A [`redb::StorageBackend`] on whatever `byteback-host` provides. The state folder is locked as a whole by its owner,
/// so range locks are left to the default (unsupported).
#[derive(Debug)]
pub(crate) struct Backend {
    file: Arc<dyn DurableFile>,
}

impl Backend {
    pub(crate) fn new(file: Arc<dyn DurableFile>) -> Self {
        Self { file }
    }
}

impl redb::StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(offset, data)
    }
}
