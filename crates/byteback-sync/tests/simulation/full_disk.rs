//! A disk that has no room for what the engine remembers, now and then, or on which one sync fails.

use byteback_host::durable::{DurableDir, DurableFile, OpenMode};
use byteback_host::random::SplitMix64;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Whether a disk is full; its owner sets it.
#[derive(Clone, Debug)]
pub(crate) struct Fullness {
    is_full: Arc<AtomicBool>,
    /// Whether a full disk takes nothing at all.
    is_solid: Arc<AtomicBool>,
    random: Arc<Mutex<SplitMix64>>,
    /// Beginning of a file's name: the sync of that file after this number of others fails.
    failing: Arc<Mutex<Option<(&'static str, u64)>>>,
}

impl Fullness {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            is_full: Arc::default(),
            is_solid: Arc::default(),
            random: Arc::new(Mutex::new(SplitMix64::new(seed))),
            failing: Arc::default(),
        }
    }

    pub(crate) fn set(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
        self.is_solid.store(false, Ordering::SeqCst);
    }

    /// From now on the disk takes nothing at all.
    pub(crate) fn set_solid(&self) {
        self.set(true);
        self.is_solid.store(true, Ordering::SeqCst);
    }

    /// Lets the `nth` sync of a file fail whose name begins with `name`. The written bytes stay
    /// readable: a restart without a power cut finds them.
    pub(crate) fn fail_sync(&self, name: &'static str, nth: u64) {
        *self.failing.lock().unwrap() = Some((name, nth));
    }

    /// Whether the sync that is to fail has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failing.lock().unwrap().is_none()
    }

    fn check_sync(&self, name: &str) -> io::Result<()> {
        let mut failing = self.failing.lock().unwrap();
        if let Some((_, left)) = failing.as_mut().filter(|(failing, _)| name.starts_with(*failing)) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                *failing = None;
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        Ok(())
    }

    /// A full disk still takes some: others free a little all the time.
    fn check(&self) -> io::Result<()> {
        let is_full = self.is_full.load(Ordering::SeqCst);
        match is_full && (self.is_solid.load(Ordering::SeqCst) || self.random.lock().unwrap().coin()) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

/// A directory on such a disk.
#[derive(Debug)]
pub(crate) struct FullDir {
    pub(crate) inner: Arc<dyn DurableDir>,
    pub(crate) fullness: Fullness,
}

impl DurableDir for FullDir {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DurableFile>> {
        if mode != OpenMode::Existing {
            self.fullness.check()?;
        }
        let inner = self.inner.open(name, mode)?;
        let (name, fullness) = (name.to_owned(), self.fullness.clone());
        Ok(Arc::new(FullFile { name, inner, fullness }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.fullness.check()?;
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn subdir(&self, name: &str) -> io::Result<Arc<dyn DurableDir>> {
        let inner = self.inner.subdir(name)?;
        let fullness = self.fullness.clone();
        Ok(Arc::new(Self { inner, fullness }))
    }
}

#[derive(Debug)]
struct FullFile {
    name: String,
    inner: Arc<dyn DurableFile>,
    fullness: Fullness,
}

impl DurableFile for FullFile {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact_at(offset, buf)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(offset, buf)
    }

    fn write_all_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Err(error) = self.fullness.check() {
            // As much as there is room for.
            let fitting = data.get(..data.len() / 2).unwrap_or_default();
            self.inner.write_all_at(offset, fitting)?;
            return Err(error);
        }
        self.inner.write_all_at(offset, data)
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        if len_bytes > self.inner.len()? {
            self.fullness.check()?;
        }
        self.inner.set_len(len_bytes)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn sync_data(&self) -> io::Result<()> {
        // Room may be missing only when bytes must reach the disk.
        self.fullness.check()?;
        self.fullness.check_sync(&self.name)?;
        self.inner.sync_data()
    }

    fn allocate(&self, len_bytes: u64) -> io::Result<()> {
        self.fullness.check()?;
        self.inner.allocate(len_bytes)
    }
}
