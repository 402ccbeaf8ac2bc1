//! A tracked tree that this process owns: opened, locked, and compared with its record.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use byteback_checksums::kept::KeptChecksums;
use byteback_control::SYNC_CONSUMER;
use byteback_host::boot::boot_id;
use byteback_host::clock::{Clock, RealClock};
use byteback_host::durable::{DirLock, DurableDir};
use byteback_host::random::{Randomness, RealRandomness};
use byteback_host::tree::Inode;
use byteback_mount::before_images::{BeforeImages, ROOM_BYTES_DEFAULT};
use byteback_mount::beneath;
use byteback_mount::integrity::Integrity;
use byteback_mount::live::LiveTree;
use byteback_mount::picture::Pictures;
use byteback_mount::volume_tree::VolumeTree;
use byteback_oplog::{
    ChangesCursor, ConsumerState, ContentChange, LayerKeeper, LedgerEvent, Log, LogOptions, PageLimits, ScanReport,
    TreeView,
};
use byteback_undo::{Gap, Undo, UndoError, UndoOptions};
use parking_lot::Mutex;

use crate::doubt::Doubt;
use crate::error::DaemonError;
use crate::presence::{Guard, OnDoubt};
use crate::state_folder::{KEPT_NAME, StateFolder, UNDO_NAME};

/// Most changes that the undo is passed one by one.
const GAP_LEN_MAX: NonZeroUsize = NonZeroUsize::new(20_000).unwrap();

/// Most blocks of 4 KiB whose checksums are kept: those of 16 GiB, which take some 170 MB.
const KEPT_BLOCKS_MAX: u64 = 1 << 22;

/// A tree that this process owns. Other processes are refused until it is dropped.
pub struct TrackedTree {
    folder: StateFolder,
    live: LiveTree,
    pictures: Arc<Pictures>,
    before_images: Arc<BeforeImages>,
    clock: Arc<dyn Clock>,
    scan: ScanReport,
    undo: Option<Arc<Undo>>,
    was_interrupted: bool,
    dir: Arc<dyn DurableDir>,
    /// Opened at the first use, which fills the outer `Option`; the inner one is `None` if it
    /// cannot be used.
    kept: Mutex<Option<Option<Arc<KeptChecksums>>>>,
    /// Checksums of what programs write, if they are kept.
    integrity: Option<Arc<Integrity>>,
    /// The volume that the tree lies in, if it is in one. Declared after everything that has some
    /// of it open, so that it is dropped after that.
    volume: Option<VolumeTree>,
    /// The directory at its own path, if the tree is reached beneath what is mounted in it, see
    /// [`beneath::Root`].
    place: Option<OwnedFd>,
    /// Why the directory is perhaps not the folder that was tracked.
    doubt: Option<Doubt>,
    lock: Option<DirLock>,
}

/// The environment of a tree.
pub struct TreeHost<'a> {
    /// The directory with its state.
    pub dir: Arc<dyn DurableDir>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Numbers a new log.
    pub randomness: &'a dyn Randomness,
}

/// Opens the log and compares the record with what is on the disk. An error comes with whether the
/// log is damaged.
fn compare(
    dir: &Arc<dyn DurableDir>,
    root: &Arc<Inode>,
    layers: Option<&Arc<dyn LayerKeeper>>,
    (clock, randomness): (&Arc<dyn Clock>, &dyn Randomness),
    options: LogOptions,
    guard: &mut Option<Guard<'_>>,
    progress: &mut dyn FnMut(u64),
) -> Result<(LiveTree, ScanReport), (DaemonError, bool)> {
    let log = Log::open_kept(dir, layers.cloned(), Arc::clone(clock), randomness, options)
        .map_err(|error| (error.into(), false))?;
    let log = Arc::new(log);
    let live = LiveTree::new(Arc::clone(root), Arc::clone(&log), Arc::clone(clock));
    let failed = |error: DaemonError| (error, log.damage().is_some());
    if let Some(guard) = guard {
        let consumers = log.consumers().map_err(|error| failed(error.into()))?;
        let is_in_sync = consumers.iter().any(|(name, _)| name == SYNC_CONSUMER);
        let missing = |percent| Ok(log.missing(&live, percent)?);
        guard
            .before(root, live.keeps_births(), is_in_sync, missing)
            .map_err(failed)?;
    }
    match log.scan(&live, progress) {
        Ok(scan) => Ok((live, scan)),
        Err(error) => Err((error.into(), log.damage().is_some())),
    }
}

impl TrackedTree {
    /// Takes the tree, opens its log and compares the record with what is on the disk. `progress`
    /// is passed the number of nodes seen.
    ///
    /// # Errors
    /// If another process owns the tree, or if folder or log cannot be read.
    pub fn open(folder: StateFolder, progress: &mut dyn FnMut(u64)) -> Result<Self, DaemonError> {
        Self::open_with(folder, LogOptions::default(), progress)
    }

    /// As [`TrackedTree::open`], with other log options than the default ones.
    ///
    /// # Errors
    /// As [`TrackedTree::open`].
    pub fn open_with(
        folder: StateFolder,
        options: LogOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, DaemonError> {
        let opened = Self::open_journal_too(folder, options, None, OnDoubt::Note, progress)?;
        if let Some(undo) = &opened.undo {
            // The journal of earlier mounts: it is passed what this start found, and is left alone.
            opened.settle_undo(undo)?;
        }
        Ok(Self { undo: None, ..opened })
    }

    /// As [`TrackedTree::open_with`], to be mounted, with old bytes kept if `undo` says so.
    /// `on_doubt` decides about a folder in doubt.
    ///
    /// # Errors
    /// As [`TrackedTree::open`], and [`DaemonError::HeldBack`]; also if the undo journal cannot be
    /// read or written.
    pub fn open_to_mount(
        folder: StateFolder,
        options: LogOptions,
        undo: Option<UndoOptions>,
        on_doubt: OnDoubt,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, DaemonError> {
        let is_kept = undo.is_some();
        let opened = Self::open_journal_too(folder, options, undo, on_doubt, progress)?;
        match &opened.undo {
            Some(undo) if !is_kept => opened.settle_undo(undo)?,
            _ => return Ok(opened),
        }
        Ok(Self { undo: None, ..opened })
    }

    fn open_journal_too(
        folder: StateFolder,
        options: LogOptions,
        undo: Option<UndoOptions>,
        on_doubt: OnDoubt,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, DaemonError> {
        let (dir, lock) = folder.take()?;
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let volume = match folder.volume()? {
            Some(path) => Some(VolumeTree::open(&path, Arc::clone(&clock))?),
            None => None,
        };
        let host = TreeHost {
            dir: volume
                .as_ref()
                .map_or_else(|| Arc::new(dir) as Arc<dyn DurableDir>, VolumeTree::state),
            clock,
            randomness: &RealRandomness,
        };
        let inside = volume.as_ref().map(|volume| (volume.root(), volume.layers()));
        let opened = Self::open_on(
            (folder, Some(on_doubt)),
            inside,
            host,
            Some(lock),
            (options, undo),
            progress,
        )?;
        Ok(Self { volume, ..opened })
    }

    /// As [`TrackedTree::open`], with the state on another disk than the folder's, and another
    /// clock. Nobody else is refused: the caller ensures that there is no other owner.
    ///
    /// # Errors
    /// As [`TrackedTree::open`].
    #[cfg(feature = "simulation")]
    pub fn open_simulated(
        folder: StateFolder,
        host: TreeHost<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, DaemonError> {
        folder.create()?;
        Self::open_on(
            (folder, None),
            None,
            host,
            None,
            (LogOptions::default(), None),
            progress,
        )
    }

    fn open_on(
        (folder, on_doubt): (StateFolder, Option<OnDoubt>),
        inside: Option<(Inode, Arc<dyn LayerKeeper>)>,
        host: TreeHost<'_>,
        lock: Option<DirLock>,
        (options, undo): (LogOptions, Option<UndoOptions>),
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, DaemonError> {
        let TreeHost { dir, clock, randomness } = host;
        let (root, place, layers) = match inside {
            Some((root, layers)) => (root, None, Some(layers)),
            None => {
                let root = open_directory(&folder)?;
                (root.inode, root.place, None)
            }
        };
        // Before the log: a start that gets no further must be noticed by the next one.
        let undo = open_undo(&folder, &dir, &clock, undo)?;
        let opened_at_ns = clock.now_ns();
        let root = Arc::new(root);
        let layers = layers.as_ref();
        let is_volume = layers.is_some();
        let guard = on_doubt.map(|on_doubt| Guard::new(&folder, on_doubt, is_volume, opened_at_ns));
        let mut guard = guard.transpose()?;
        let host = (&clock, randomness);
        let (live, scan) = match compare(&dir, &root, layers, host, options, &mut guard, progress) {
            // The log is damaged in a way that opening it does not notice. The damage is noted by
            // now, so the next opening begins a new log.
            Err((_, true)) => compare(&dir, &root, layers, host, options, &mut guard, progress),
            compared => compared,
        }
        .map_err(|(error, _)| error)?;
        let doubt = guard.map(Guard::after).transpose()?.flatten();
        let was_interrupted = live
            .log()
            .ledger()?
            .iter()
            .rev()
            .any(|entry| entry.at_ns >= opened_at_ns && matches!(entry.event, LedgerEvent::Interrupted { .. }));
        let before_images = BeforeImages::new(Arc::clone(live.log()), ROOM_BYTES_DEFAULT);
        Ok(Self {
            folder,
            live,
            pictures: Arc::default(),
            before_images: Arc::new(before_images),
            clock,
            scan,
            undo: undo.map(Arc::new),
            was_interrupted,
            dir,
            kept: Mutex::default(),
            integrity: None,
            volume: None,
            place,
            doubt,
            lock,
        })
    }

    /// Compares the disk with the record once more, for what changed since the tree was opened.
    ///
    /// # Errors
    /// If folder or log cannot be read, or if a folder inside this one was mounted since, in a way
    /// that its changes bypass this one.
    pub fn compare_again(&mut self) -> Result<(), DaemonError> {
        if self.place.is_some()
            && let Some(inner) = beneath::folder_of_ours_in(self.folder.directory())
        {
            return Err(DaemonError::FolderInside { inner });
        }
        let again = self.live.log().scan(&self.live, &mut |_| {})?;
        self.scan.nodes = again.nodes;
        self.scan.changed_files += again.changed_files;
        self.scan.changed_names += again.changed_names;
        self.scan.unreadable = again.unreadable;
        Ok(())
    }

    /// Keeps from now on what programs overwrite, if there was a backup before: the next one is of
    /// the difference. Called before the gate opens, after the tree was compared with its record.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn begin_before_images(&self) -> Result<(), DaemonError> {
        let is_backed_up = |(name, state): &(String, ConsumerState)| name != SYNC_CONSUMER && state.mark.is_some();
        if self.log().consumers()?.iter().any(is_backed_up) {
            self.before_images.begin(self.log().first_unused_epoch());
        }
        Ok(())
    }

    /// The bytes that programs overwrote since the last backup.
    #[must_use]
    pub fn before_images(&self) -> &Arc<BeforeImages> {
        &self.before_images
    }

    /// Passes to the undo what may have changed unwatched, as the log found it. From then on it may
    /// be notified of changes.
    ///
    /// # Errors
    /// If the log or the undo journal cannot be read or written.
    pub fn begin_undo(&self) -> Result<(), DaemonError> {
        let Some(undo) = &self.undo else { return Ok(()) };
        let log = self.log();
        let list = log.look()?.changes(Some(log.epoch()))?;
        let limits = PageLimits {
            items: GAP_LEN_MAX,
            ranges: NonZeroUsize::MAX,
        };
        let page = list.page(&ChangesCursor::default(), limits)?;
        let changed = page.nodes.iter();
        let changed = changed.filter(|change| change.is_new || change.content != ContentChange::Unchanged);
        let gap = Gap {
            // A log that knew no node before has none that a journal can be of, and the findings of
            // its first scan have no layers. If more is new than fits, the journal begins anew too.
            everything: self.scan.is_first || list.is_everything() || page.next.is_some(),
            nodes: changed.map(|change| change.node).collect(),
            names: page
                .names
                .into_iter()
                .map(|change| (change.parent, OsString::from_vec(change.name.into_bytes())))
                .collect(),
            was_interrupted: self.was_interrupted,
        };
        undo.ready(log.tree(), &gap)
            .map_err(|error| undo_failed(&self.folder, error))?;
        let beside = Arc::clone(undo);
        log.set_before_commit(move || beside.sync());
        let beside = Arc::clone(undo);
        log.set_on_untracked(move |node| beside.changed_unseen(node));
        Ok(())
    }

    /// Notes that the undo was notified of every change, in good order.
    ///
    /// # Errors
    /// If the undo journal cannot be written: the next start drops it.
    pub fn end_undo(&self) -> Result<(), DaemonError> {
        match &self.undo {
            Some(undo) => undo
                .end(self.log().tree())
                .map_err(|error| undo_failed(&self.folder, error)),
            None => Ok(()),
        }
    }

    fn settle_undo(&self, undo: &Undo) -> Result<(), DaemonError> {
        self.begin_undo()?;
        undo.end(self.log().tree())
            .map_err(|error| undo_failed(&self.folder, error))
    }

    /// The undo, if old bytes are kept.
    #[must_use]
    pub fn undo(&self) -> Option<&Arc<Undo>> {
        self.undo.as_ref()
    }

    /// The checksums of files that this process summed and keeps; `None` if that is not possible
    /// here.
    pub(crate) fn kept_checksums(&self) -> Option<Arc<KeptChecksums>> {
        let mut kept = self.kept.lock();
        // They only save work: on any error files are read instead.
        let open = || KeptChecksums::open(&*self.dir, KEPT_NAME, boot_id().ok()?, KEPT_BLOCKS_MAX).ok();
        kept.get_or_insert_with(|| open().map(Arc::new)).clone()
    }

    /// Keeps checksums of what programs write from now on.
    pub(crate) fn keep_sums(&mut self, integrity: Arc<Integrity>) {
        self.pictures.compare_with(Arc::clone(&integrity));
        self.integrity = Some(integrity);
    }

    /// The checksums of what programs write, if they are kept.
    #[must_use]
    pub fn integrity(&self) -> Option<&Arc<Integrity>> {
        self.integrity.as_ref()
    }

    /// Removes the undo journal that earlier mounts kept: it would miss the changes from now on,
    /// and so become wrong.
    pub(crate) fn forget_undo(&self) -> std::io::Result<()> {
        let names = undo_files(&*self.dir)?;
        if names.is_empty() {
            return Ok(());
        }
        let journal = self.dir.subdir(UNDO_NAME)?;
        names.iter().try_for_each(|name| journal.remove(name))?;
        journal.sync()
    }

    /// The volume that the tree lies in. The caller closes it once nothing of the tree is open any
    /// more.
    pub(crate) fn take_volume(&mut self) -> Option<VolumeTree> {
        self.volume.take()
    }

    /// The lock of the tree. The caller releases it after everything else.
    pub(crate) fn take_lock(&mut self) -> Option<DirLock> {
        self.lock.take()
    }

    /// The directory that the tree's state is in.
    pub(crate) fn dir(&self) -> &Arc<dyn DurableDir> {
        &self.dir
    }

    /// Why the directory is perhaps not the folder that was tracked; it was opened all the same.
    #[must_use]
    pub fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }

    /// The state folder of the tree.
    #[must_use]
    pub fn folder(&self) -> &StateFolder {
        &self.folder
    }

    /// The files as they are now.
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

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The result of the comparison with the record.
    #[must_use]
    pub fn scan_report(&self) -> &ScanReport {
        &self.scan
    }
}

fn open_directory(folder: &StateFolder) -> Result<beneath::Root, DaemonError> {
    beneath::open_root(folder.directory()).map_err(|source| DaemonError::Folder {
        path: folder.directory().to_owned(),
        source,
    })
}

/// The names of the files of the undo journal; empty if there is no journal.
fn undo_files(dir: &dyn DurableDir) -> std::io::Result<Vec<String>> {
    match dir.list()?.iter().any(|name| name == UNDO_NAME) {
        true => dir.subdir(UNDO_NAME)?.list(),
        false => Ok(Vec::new()),
    }
}

/// Opens the undo journal: with `options`, or, without options, only if there is one.
fn open_undo(
    folder: &StateFolder,
    dir: &Arc<dyn DurableDir>,
    clock: &Arc<dyn Clock>,
    options: Option<UndoOptions>,
) -> Result<Option<Undo>, DaemonError> {
    let failed = |source| DaemonError::State {
        path: folder.undo_dir(),
        source,
    };
    if options.is_none() && undo_files(&**dir).map_err(failed)?.is_empty() {
        return Ok(None);
    }
    let all = UndoOptions::new(i64::MAX, u64::MAX);
    let journal = dir.subdir(UNDO_NAME).and_then(|journal| dir.sync().map(|()| journal));
    let journal = journal.map_err(failed)?;
    let opened = Undo::open(journal, Arc::clone(clock), options.unwrap_or(all));
    opened.map(Some).map_err(|error| undo_failed(folder, error))
}

fn undo_failed(folder: &StateFolder, error: UndoError) -> DaemonError {
    DaemonError::State {
        path: folder.undo_dir(),
        source: std::io::Error::other(format!(
            "{error}; this folder can be removed: only the old versions kept for undo are lost"
        )),
    }
}
