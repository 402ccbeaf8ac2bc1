//! A tree that lies in a volume (`byteback-volume`) rather than in a directory, so that the mount
//! and its gate stand on the one as on the other.
//!
//! A volume that is mounted has three directories in its root: [`FILES`] is the root of the tree,
//! [`STATE`] holds the daemon's durable state (the log's database and its companions), and
//! [`LAYERS`] the layers of the log (`layers`). No name of the tree leads there, and image and log
//! move together.
//!
//! Writes that programs did not make durable themselves are made durable now and then
//! ([`SYNC_EVERY`]), as the kernel does with its own file systems, and a few segments are freed
//! each time.
//!
//! Invariant: one inode of the tree is held once by each [`Inode`] of it, so that an inode without
//! a name stays as long as any program has it open. A volume that was not closed is recovered when
//! it is opened again.
//!
//! Out of scope: permissions (the kernel checks them), times of reading (nobody gets any),
//! POSIX ACLs.

mod inode;
mod layers;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use byteback_host::block::{Access, BlockDevice, QueuedDevice, RealBlockDevice};
use byteback_host::clock::Clock;
use byteback_host::durable::{DurableDir, TreeDir};
use byteback_host::tree::Inode;
use byteback_oplog::LayerKeeper;
use byteback_volume::{NewFile, OpenOptions, Volume, VolumeError};

use self::inode::VolumeInode;
pub use self::layers::LAYERS;
use self::layers::LayerInodes;

/// The root of the tree, in the root of the volume.
pub const FILES: &str = "files";

/// The daemon's state, in the root of the volume.
pub const STATE: &str = "state";

/// Time between two syncs of everything that programs wrote.
const SYNC_EVERY: Duration = Duration::from_secs(30);

/// Segments that are freed in a row, before programs that write are let in for a while.
const TIDY_STEPS: usize = 4;

/// Why there is no tree in a volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeTreeError {
    /// The file or device cannot be had.
    #[error("cannot open the volume {path}: {source}")]
    Device {
        /// The path of the volume.
        path: PathBuf,
        /// The system's error, or who has it.
        source: io::Error,
    },
    /// The content of the file or device cannot be used.
    #[error("cannot use the volume {path}: {source}")]
    Volume {
        /// The path of the volume.
        path: PathBuf,
        /// The volume's error.
        source: VolumeError,
    },
    /// The thread that keeps it in order could not be started, or the root could not be read.
    #[error("cannot use the volume {path}: {source}")]
    System {
        /// The path of the volume.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The part that all inodes of a volume share.
struct Shared {
    volume: Volume,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.volume.fmt(f)
    }
}

/// A volume that is open, with a tree in it.
#[derive(Debug)]
pub struct VolumeTree {
    shared: Arc<Shared>,
    path: PathBuf,
    files: u32,
    state: u32,
    layers: u32,
    is_closed: bool,
    stop: Option<mpsc::Sender<()>>,
    housekeeper: Option<JoinHandle<()>>,
}

/// Tells whether a volume can still be written to; see [`VolumeTree::failure`].
#[derive(Clone, Debug)]
pub struct VolumeWatch(Weak<Shared>);

impl VolumeWatch {
    /// As [`VolumeTree::failure`]; `None` once the volume is closed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.0.upgrade()?.volume.failure()
    }
}

impl VolumeTree {
    /// Opens the volume on a file or device; no other process may have it open. State that was
    /// synced before a crash is recovered.
    ///
    /// # Errors
    /// [`VolumeTreeError`].
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, VolumeTreeError> {
        // Programs that write much go on while it is written.
        let device = RealBlockDevice::open(path, Access::ReadWrite).and_then(QueuedDevice::new);
        let device = device.map_err(|source| VolumeTreeError::Device {
            path: path.to_owned(),
            source,
        })?;
        Self::on(Arc::new(device), path, clock)
    }

    /// The same on a device that is open.
    ///
    /// # Errors
    /// [`VolumeTreeError`].
    pub fn on(device: Arc<dyn BlockDevice>, path: &Path, clock: Arc<dyn Clock>) -> Result<Self, VolumeTreeError> {
        let failed = |source| VolumeTreeError::Volume {
            path: path.to_owned(),
            source,
        };
        let options = OpenOptions {
            clock: Arc::clone(&clock),
            ..OpenOptions::default()
        };
        let volume = Volume::open(device, &options).map_err(failed)?;
        // The tree's root is whose the volume's is, and as open.
        let files = directory(&volume, FILES, None).map_err(failed)?;
        let state = directory(&volume, STATE, Some((0, 0, 0o700))).map_err(failed)?;
        let layers = directory(&volume, LAYERS, Some((0, 0, 0o700))).map_err(failed)?;
        let mut tree = Self {
            shared: Arc::new(Shared { volume, clock }),
            path: path.to_owned(),
            files,
            state,
            layers,
            is_closed: false,
            stop: None,
            housekeeper: None,
        };
        let (stop, stopped) = mpsc::channel();
        let shared = Arc::downgrade(&tree.shared);
        let housekeeper = std::thread::Builder::new()
            .name("volume".to_owned())
            .spawn(move || keep_house(&shared, &stopped));
        tree.housekeeper = Some(housekeeper.map_err(|source| VolumeTreeError::System {
            path: path.to_owned(),
            source,
        })?);
        tree.stop = Some(stop);
        Ok(tree)
    }

    /// Why nothing is written to it any more, if its device refused a write: what was not synced
    /// before is lost.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.shared.volume.failure()
    }

    /// Asks the same for as long as the volume is open, without keeping it open.
    #[must_use]
    pub fn watch(&self) -> VolumeWatch {
        VolumeWatch(Arc::downgrade(&self.shared))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The root of the tree.
    #[must_use]
    pub fn root(&self) -> Inode {
        VolumeInode::hold(&self.shared, self.files)
    }

    /// The directory of the daemon's durable state.
    #[must_use]
    pub fn state(&self) -> Arc<dyn DurableDir> {
        let label = format!("{}:{STATE}", self.path.display());
        Arc::new(TreeDir::new(VolumeInode::hold(&self.shared, self.state), label))
    }

    /// The keeper of the log's layers beside the files. There is one log at a time.
    #[must_use]
    pub fn layers(&self) -> Arc<dyn LayerKeeper> {
        Arc::new(LayerInodes::new(&self.shared, self.layers))
    }

    /// Makes everything durable, and closes the volume clean. Inodes that are still open can then
    /// be read, but not changed.
    ///
    /// # Errors
    /// The error of the write that failed: the volume is then recovered when it is opened the next
    /// time.
    pub fn close(mut self) -> Result<(), VolumeTreeError> {
        self.end_housekeeping();
        self.is_closed = true;
        self.shared.volume.finish().map_err(|source| VolumeTreeError::Volume {
            path: self.path.clone(),
            source,
        })
    }

    fn end_housekeeping(&mut self) {
        drop(self.stop.take());
        if let Some(housekeeper) = self.housekeeper.take() {
            let _ = housekeeper.join();
        }
    }
}

impl Drop for VolumeTree {
    fn drop(&mut self) {
        self.end_housekeeping();
        if !self.is_closed {
            // The tree was given up, as when it cannot be mounted: written data is kept as far as
            // possible.
            let _ = self.shared.volume.finish();
        }
    }
}

/// A directory in the root of the volume, made if it is missing: as the root is, or owned and open
/// as `own` says.
fn directory(volume: &Volume, name: &str, own: Option<(u32, u32, u32)>) -> byteback_volume::Result<u32> {
    let root = volume.root();
    match volume.look_up(root, name.as_bytes()) {
        Ok(found) => return Ok(found.ino),
        Err(VolumeError::NotFound) => {}
        Err(error) => return Err(error),
    }
    let like = volume.attributes(root)?;
    let (uid, gid, mode) = own.unwrap_or((like.uid, like.gid, like.mode & 0o7777));
    let new = NewFile {
        mode: libc::S_IFDIR | mode,
        uid,
        gid,
        device: 0,
    };
    let made = volume.make(root, name.as_bytes(), &new)?;
    volume.sync()?;
    Ok(made.ino)
}

fn keep_house(shared: &Weak<Shared>, stopped: &mpsc::Receiver<()>) {
    while stopped.recv_timeout(SYNC_EVERY) == Err(RecvTimeoutError::Timeout) {
        let Some(shared) = shared.upgrade() else { return };
        // A failure to write is reported to the next caller that writes.
        let _ = shared.volume.sync();
        for _ in 0..TIDY_STEPS {
            if !matches!(shared.volume.tidy(), Ok(true)) {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests;
