//! A process on a simulated disk that can be killed: what it wrote stays, whatever it tries
//! afterwards fails.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use byteback_host::durable::{DurableDir, DurableFile, OpenMode};
use byteback_host::sim::SimDisk;

#[derive(Clone, Debug, Default)]
pub(super) struct Life(Arc<AtomicBool>);

impl Life {
    pub(super) fn kill(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::SeqCst) {
            Err(io::Error::other("the process is dead"))
        } else {
            Ok(())
        }
    }
}

#[derive(Debug)]
pub(super) struct MortalDir {
    pub(super) disk: SimDisk,
    pub(super) life: Life,
}

#[derive(Debug)]
struct MortalFile {
    file: Arc<dyn DurableFile>,
    life: Life,
}

impl DurableDir for MortalDir {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DurableFile>> {
        self.life.check()?;
        Ok(Arc::new(MortalFile {
            file: self.disk.open(name, mode)?,
            life: self.life.clone(),
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.life.check()?;
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.life.check()?;
        self.disk.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.life.check()?;
        self.disk.list()
    }

    fn sync(&self) -> io::Result<()> {
        self.life.check()?;
        DurableDir::sync(&self.disk)
    }

    fn subdir(&self, name: &str) -> io::Result<Arc<dyn DurableDir>> {
        self.life.check()?;
        self.disk.subdir(name)
    }
}

impl DurableFile for MortalFile {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.life.check()?;
        self.file.read_exact_at(offset, buf)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.life.check()?;
        self.file.read_at(offset, buf)
    }

    fn write_all_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.life.check()?;
        self.file.write_all_at(offset, data)
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        self.life.check()?;
        self.file.set_len(len_bytes)
    }

    fn len(&self) -> io::Result<u64> {
        self.life.check()?;
        self.file.len()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.life.check()?;
        self.file.sync_data()
    }

    fn allocate(&self, len_bytes: u64) -> io::Result<()> {
        self.life.check()?;
        self.file.allocate(len_bytes)
    }
}
