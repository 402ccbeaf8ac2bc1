//! redb's storage over a durable file. The store may be lost at any time, so a failure is handed on and nothing else is done about it:
//! whoever opens the file next checks it as a whole.

use std::io;
use std::sync::Arc;

use byteback_host::durable::DurableFile;

/// A [`redb::StorageBackend`] on whatever `byteback-host` provides.
#[derive(Debug)]
pub(crate) struct Backend(pub(crate) Arc<dyn DurableFile>);

impl redb::StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(offset, data)
    }
}
