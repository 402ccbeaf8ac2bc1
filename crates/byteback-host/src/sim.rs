//! A disk that is as unreliable as the contract of durable files allows, reproducibly from a seed.
//!
//! [`SimDisk`] is a [`DurableDir`] in memory. It keeps what a program sees (*live*) apart from what
//! has been promised to last (*durable*) and the operations in between (*pending*). When the power
//! is cut, what comes back is drawn from everything that [`crate::durable`] allows:
//!
//! - a 512-byte sector holds its durable bytes or those after any pending write to it, each sector
//!   by itself: writes are lost, torn and reordered;
//! - the length is the durable one or that after any pending operation, also in the middle of a
//!   growing write; what was never written reads as zeros; bytes cut off do not come back under a
//!   length that knows of the cut;
//! - pending names are lost or kept, each by itself, except that operations that share a name keep
//!   their order (kept only if the earlier ones are); a rename happens wholly or not at all;
//! - a file whose name was not made durable is gone, even if its bytes were; a directory likewise.
//!
//! That is stricter than ext4, XFS or btrfs on purpose. Code that survives it relies on the
//! contract alone.
//!
//! Use: run the work once, read [`SimDisk::counters`]; then for each sync n run it again on a fresh
//! disk with [`SimDisk::crash_at_sync`], take some survivors with [`SimDisk::recover`], and check
//! what was acknowledged. Further faults: a disk that fills up, an operation that fails, reads
//! shorter than asked. A failed file sync behaves as on Linux: the pending writes are torn for
//! good, and the next sync reports success without them.
//!
//! Out of scope: bit rot, latency, locks, permissions.

mod survive;
mod world;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::durable::{DurableDir, DurableFile, OpenMode, check_name};
use crate::error::context;
use world::{DirId, FileId, World};

/// The point in a sync at which the power is cut. The caller gets an error each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPhase {
    /// Before the sync does anything.
    Before,
    /// During the sync: each piece that it was to make durable has arrived or not.
    Middle,
    /// After all of it became durable, but before the caller could learn of it.
    After,
}

/// Operations on a disk since it was made or recovered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations of any kind, failed ones included.
    pub ops: u64,
    /// Syncs of files and of directories, failed ones included.
    pub syncs: u64,
    /// Reads.
    pub reads: u64,
    /// Writes, allocations included.
    pub writes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written, allocations included.
    pub bytes_written: u64,
}

/// The power is cut: the error of every operation until [`SimDisk::recover`].
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("simulated power cut")]
pub struct PowerCut;

/// Whether `error` says that the simulated power is cut, wrapped or not.
#[must_use]
pub fn is_power_cut(error: &io::Error) -> bool {
    let mut inner = error.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static));
    while let Some(current) = inner {
        if current.is::<PowerCut>() || current.downcast_ref::<io::Error>().is_some_and(is_power_cut) {
            return true;
        }
        inner = current.source();
    }
    false
}

/// A simulated disk, and the root directory on it. Clones are the same disk.
///
/// ```
/// use byteback_host::durable::{DurableDir, OpenMode};
/// use byteback_host::sim::{CrashPhase, SimDisk};
///
/// fn work(disk: &SimDisk) -> std::io::Result<()> {
///     let file = disk.open("new", OpenMode::CreateIfMissing)?;
///     file.write_all_at(0, b"whole")?;
///     file.sync_data()?;
///     disk.rename("new", "current")?;
///     disk.sync()
/// }
///
/// let trial = SimDisk::new(0);
/// work(&trial)?;
/// for nth in 1..=trial.counters().syncs {
///     for phase in [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After] {
///         let disk = SimDisk::new(0);
///         disk.crash_at_sync(nth, phase);
///         assert!(work(&disk).is_err());
///         for seed in 0..100 {
///             let survivor = disk.recover(seed);
///             if let Ok(file) = survivor.open("current", OpenMode::Existing) {
///                 let mut bytes = [0; 5];
///                 file.read_exact_at(0, &mut bytes)?;
///                 assert_eq!(&bytes, b"whole", "crash {nth} {phase:?}, survivor {seed}");
///             }
///         }
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SimDisk {
    root: SimDir,
}

impl SimDisk {
    /// An empty disk of 1 GiB. `seed` decides which reads are short and which writes a failed sync
    /// tears; the outcome of a crash has a seed of its own.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::from_world(World::new(seed))
    }

    fn from_world(world: World) -> Self {
        Self {
            root: SimDir {
                world: Arc::new(Mutex::new(world)),
                id: World::ROOT,
                label: "sim:".to_owned(),
            },
        }
    }

    /// The operations since the disk was made or recovered.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.world().counters
    }

    /// Cuts the power at the `nth` sync (of files and directories together, from 1, counted since
    /// the disk was made or recovered).
    pub fn crash_at_sync(&self, nth: u64, phase: CrashPhase) {
        self.world().crash_at_sync = Some((nth, phase));
    }

    /// Cuts the power instead of doing the `nth` operation of any kind, counted like syncs.
    pub fn crash_at_op(&self, nth: u64) {
        self.world().crash_at_op = Some(nth);
    }

    /// Lets the `nth` operation of any kind, counted like syncs, fail with the system error
    /// `errno`. Nothing of it is done; only a file sync that fails leaves its pending writes torn
    /// for good.
    pub fn fail_op(&self, nth: u64, errno: i32) {
        self.world().failing_ops.insert(nth, errno);
    }

    /// Sets the capacity of all files together in bytes (1 GiB at first). A write that does not fit
    /// is done as far as it fits and fails with `StorageFull`.
    pub fn set_capacity(&self, len_bytes: u64) {
        self.world().capacity_len_bytes = len_bytes;
    }

    /// Whether `read_at` may return less than it could (it may, at first).
    pub fn set_short_reads(&self, on: bool) {
        self.world().short_reads = on;
    }

    /// Cuts the power now. Every later operation on this disk and its files fails.
    pub fn cut_power(&self) {
        self.world().power_cut = true;
    }

    /// Whether the power is cut.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.world().power_cut
    }

    /// Cuts the power if it is still on, and returns what came back: a new disk, drawn by `seed`
    /// from all that the contract allows, with its counters at zero and no faults planned. May be
    /// called again for other survivors of the same crash.
    #[must_use]
    pub fn recover(&self, seed: u64) -> Self {
        let mut world = self.world();
        world.power_cut = true;
        Self::from_world(survive::survivor(&world, seed))
    }

    /// Cuts the power now and returns what came back, as [`recover`](Self::recover).
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        self.recover(seed)
    }

    fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.root.world)
    }
}

impl DurableDir for SimDisk {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DurableFile>> {
        self.root.open(name, mode)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.root.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.root.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.root.list()
    }

    fn sync(&self) -> io::Result<()> {
        self.root.sync()
    }

    fn subdir(&self, name: &str) -> io::Result<Arc<dyn DurableDir>> {
        self.root.subdir(name)
    }
}

/// A test that panicked while it held the lock has failed anyway; the others may go on.
fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Debug)]
struct SimDir {
    world: Arc<Mutex<World>>,
    id: DirId,
    label: String,
}

impl SimDir {
    fn named(&self, name: &str) -> String {
        format!("{}/{name}", self.label)
    }
}

impl DurableDir for SimDir {
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DurableFile>> {
        let name = check_name(name)?;
        let label = self.named(name);
        let operation = if mode == OpenMode::CreateNew { "create" } else { "open" };
        let id = lock(&self.world)
            .open(self.id, name, mode)
            .map_err(|e| context(operation, &label, e))?;
        Ok(Arc::new(SimFile {
            world: Arc::clone(&self.world),
            id,
            label,
        }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (check_name(from)?, check_name(to)?);
        lock(&self.world)
            .rename(self.id, from, to)
            .map_err(|e| context("rename", &self.named(from), e))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let name = check_name(name)?;
        lock(&self.world)
            .remove(self.id, name)
            .map_err(|e| context("remove", &self.named(name), e))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        lock(&self.world)
            .list(self.id)
            .map_err(|e| context("list", &self.label, e))
    }

    fn sync(&self) -> io::Result<()> {
        lock(&self.world)
            .sync_dir(self.id)
            .map_err(|e| context("sync directory", &self.label, e))
    }

    fn subdir(&self, name: &str) -> io::Result<Arc<dyn DurableDir>> {
        let name = check_name(name)?;
        let label = self.named(name);
        let id = lock(&self.world)
            .subdir(self.id, name)
            .map_err(|e| context("open directory", &label, e))?;
        Ok(Arc::new(Self {
            world: Arc::clone(&self.world),
            id,
            label,
        }))
    }
}

#[derive(Debug)]
struct SimFile {
    world: Arc<Mutex<World>>,
    id: FileId,
    label: String,
}

impl SimFile {
    fn on<T>(&self, operation: &'static str, act: impl FnOnce(&mut World) -> io::Result<T>) -> io::Result<T> {
        act(&mut lock(&self.world)).map_err(|source| context(operation, &self.label, source))
    }
}

impl DurableFile for SimFile {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.on("read", |world| {
            if world.read(self.id, offset, buf, false)? < buf.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(())
        })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.on("read", |world| world.read(self.id, offset, buf, true))
    }

    fn write_all_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.on("write", |world| world.write(self.id, offset, data))
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        self.on("set the length of", |world| world.set_len(self.id, len_bytes))
    }

    fn len(&self) -> io::Result<u64> {
        self.on("stat", |world| world.len(self.id))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.on("sync", |world| world.sync_file(self.id))
    }

    fn allocate(&self, len_bytes: u64) -> io::Result<()> {
        self.on("allocate", |world| world.allocate(self.id, len_bytes))
    }
}

#[cfg(test)]
mod tests;
