//! An operation log on a real folder with one file, without a mount: writes are logged, not
//! performed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::clock::{Clock, RealClock};
use byteback_host::durable::{DurableDir, RealDir};
use byteback_host::random::RealRandomness;
use byteback_host::tree as host;
use byteback_model::NodeId;
use byteback_mount::live::LiveTree;
use byteback_oplog::{Close, ContentChange, Cut, Granularity, Log, LogOptions, TIME_TICK_NS};
use rustix::fs::{CWD, Mode, OFlags};

use crate::SuiteError;

/// The log, and the file's node.
pub(crate) struct LogTestBed {
    state: PathBuf,
    folder: PathBuf,
    pub(crate) log: Arc<Log>,
    live: LiveTree,
    pub(crate) node: NodeId,
    options: LogOptions,
}

impl LogTestBed {
    /// A new log in the empty folder `place`, of a folder whose one file has `file_bytes`.
    pub(crate) fn create(place: &Path, file_bytes: u64, options: LogOptions) -> Result<Self, SuiteError> {
        let (state, folder) = (place.join("state"), place.join("folder"));
        fs::create_dir_all(&folder)?;
        File::create(folder.join("file"))?.set_len(file_bytes)?;
        RealDir::create(&state)?;
        // A file that was changed in the clock's current tick cannot be known as clean.
        RealClock.sleep(Duration::from_nanos(TIME_TICK_NS.unsigned_abs() + 5_000_000));
        Self::open(state, folder, options)
    }

    fn open(state: PathBuf, folder: PathBuf, options: LogOptions) -> Result<Self, SuiteError> {
        let dir: Arc<dyn DurableDir> = Arc::new(RealDir::open(&state)?);
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let log = Arc::new(Log::open_with(&dir, Arc::clone(&clock), &RealRandomness, options)?);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, &folder, flags, Mode::empty())?;
        let live = LiveTree::new(Arc::new(root.into()), Arc::clone(&log), clock);
        log.scan(&live, &mut |_| {})?;
        let identity = host::stat_fd(File::open(folder.join("file"))?)?.identity();
        let node = log.node_of(&identity)?.ok_or("the log does not know the file")?;
        Ok(Self {
            state,
            folder,
            log,
            live,
            node,
            options,
        })
    }

    /// Closes the log and opens it again, with none of its files in the page cache.
    pub(crate) fn reopened_cold(self) -> Result<Self, SuiteError> {
        let Self {
            state,
            folder,
            log,
            live,
            options,
            ..
        } = self;
        // Closed cleanly: otherwise the whole file is reported, as possibly changed unnoticed.
        log.checkpoint(&live, Close::All)?;
        drop((log, live));
        for entry in fs::read_dir(&state)? {
            let file = File::open(entry?.path())?;
            rustix::fs::fsync(&file)?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        Self::open(state, folder, options)
    }

    /// Logs writes.
    pub(crate) fn write(&self, ranges: &[ByteRange]) -> Result<(), SuiteError> {
        for &range in ranges {
            self.log.begin_write(self.node, || None)?.wrote(self.node, range);
        }
        Ok(())
    }

    /// Sets the consumer's mark: the next writes are a version of their own.
    pub(crate) fn mark(&self, consumer: &str) -> Result<byteback_oplog::Epoch, SuiteError> {
        let cut = self.log.cut(consumer, || ())?;
        self.log.advance(consumer, Some(cut.epoch()), b"")?;
        Ok(cut.epoch())
    }

    /// The ranges of the file that `cut` reports since `since`.
    pub(crate) fn ranges_of(&self, cut: &Cut, since: byteback_oplog::Epoch) -> Result<ExtentSet, SuiteError> {
        match cut.change_of(self.node, Some(since))?.map(|change| change.content) {
            Some(ContentChange::Ranges(ranges)) => Ok(ranges),
            Some(ContentChange::Unchanged) => Ok(ExtentSet::new()),
            Some(ContentChange::Whole(reason)) => Err(format!("the whole file is reported: {reason:?}").into()),
            None => Err("the file is not reported".into()),
        }
    }
}

/// The default options except for these.
pub(crate) fn log_options(granularity: Granularity, extents_per_file_max: u32) -> LogOptions {
    let mut options = LogOptions::default();
    options.granularity = granularity;
    options.extents_per_file_max = extents_per_file_max;
    options
}
