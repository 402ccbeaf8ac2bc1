//! A tracked tree in the hands of this process: opened, locked, and compared with its record.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use byteback_host::clock::{Clock, RealClock};
use byteback_host::durable::{DirLock, DurableDir};
use byteback_host::random::RealRandomness;
use byteback_mount::live::LiveTree;
use byteback_mount::picture::Pictures;
use byteback_oplog::{Log, LogOptions, ScanReport};
use rustix::fs::{CWD, Mode, OFlags};

use crate::error::DaemonError;
use crate::state_folder::StateFolder;

/// A tree that this process owns. Everybody else is refused until it is dropped.
pub struct TrackedTree {
    folder: StateFolder,
    live: LiveTree,
    pictures: Arc<Pictures>,
    clock: Arc<dyn Clock>,
    scan: ScanReport,
    _lock: DirLock,
}

/// Opens the log and compares the record with what is on the disk. With an error: whether the log is damaged.
fn compare(
    dir: &Arc<dyn DurableDir>,
    root: &Arc<OwnedFd>,
    clock: &Arc<dyn Clock>,
    options: LogOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<(LiveTree, ScanReport), (DaemonError, bool)> {
    let log =
        Log::open_with(dir, Arc::clone(clock), &RealRandomness, options).map_err(|error| (error.into(), false))?;
    let log = Arc::new(log);
    let live = LiveTree::new(Arc::clone(root), Arc::clone(&log), Arc::clone(clock));
    match log.scan(&live, progress) {
        Ok(scan) => Ok((live, scan)),
        Err(error) => Err((error.into(), log.damage().is_some())),
    }
}

impl TrackedTree {
    /// Takes the tree, opens its log and compares the record with what is on the disk. `progress` is told the number of
    /// nodes seen.
    ///
    /// # Errors
    /// If another process owns the tree, or folder or log cannot be read.
    pub fn open(folder: StateFolder, progress: &mut dyn FnMut(u64)) -> Result<Self, DaemonError> {
        Self::open_with(folder, LogOptions::default(), progress)
    }

    /// As [`TrackedTree::open`], with a log of other than the default options.
    ///
    /// # Errors
    /// As [`TrackedTree::open`].
    pub fn open_with(
        folder: StateFolder,
        options: LogOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, DaemonError> {
        let (dir, lock) = folder.take()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root =
            rustix::fs::openat(CWD, folder.directory(), flags, Mode::empty()).map_err(|errno| DaemonError::Folder {
                path: folder.directory().to_owned(),
                source: errno.into(),
            })?;
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let dir: Arc<dyn DurableDir> = Arc::new(dir);
        let root = Arc::new(root);
        let (live, scan) = match compare(&dir, &root, &clock, options, progress) {
            // Damaged beyond what its opening notices. That is noted now, so that the next opening begins a new one.
            Err((_, true)) => compare(&dir, &root, &clock, options, progress),
            compared => compared,
        }
        .map_err(|(error, _)| error)?;
        Ok(Self {
            folder,
            live,
            pictures: Arc::default(),
            clock,
            scan,
            _lock: lock,
        })
    }

    /// Compares once more what is on the disk with the record: what changed since the tree was opened.
    ///
    /// # Errors
    /// If folder or log cannot be read.
    pub fn compare_again(&mut self) -> Result<(), DaemonError> {
        let again = self.live.log().scan(&self.live, &mut |_| {})?;
        self.scan.nodes = again.nodes;
        self.scan.changed_files += again.changed_files;
        self.scan.changed_names += again.changed_names;
        self.scan.unreadable = again.unreadable;
        Ok(())
    }

    /// Where its state is.
    #[must_use]
    pub fn folder(&self) -> &StateFolder {
        &self.folder
    }

    /// The files.
    #[must_use]
    pub fn live(&self) -> &LiveTree {
        &self.live
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> &Arc<Log> {
        self.live.log()
    }

    /// The open pictures.
    #[must_use]
    pub fn pictures(&self) -> &Arc<Pictures> {
        &self.pictures
    }

    /// The time.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// What the comparison with the record found.
    #[must_use]
    pub fn scan_report(&self) -> &ScanReport {
        &self.scan
    }
}
