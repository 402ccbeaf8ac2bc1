//! A mounted tree, from the mount to the last checkpoint.
//!
//! Order of the start: the tree is compared with its record; tracking is noted as begun, durably;
//! the kernel mounts; the tree is compared again for what happened meanwhile, quickly and with
//! nobody at work on it; then the gate opens. For a volume, the directory that it is mounted over
//! is protected before, and released at the end if the volume was closed (`bare_directory`); a
//! write that its device refuses is noted as soon as that is noticed (`lost_writes`).
//!
//! Order of the end: the mount is gone; the end is announced in the tree's lock, so that the next
//! owner waits; the control socket is removed; what was still open is settled and fenced; the end
//! of tracking is noted; the volume, if there is one, is closed; the lock is released. A process
//! that is killed in between leaves "tracking" noted, and the next start takes the files with open
//! intents as changed.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use byteback_control::{LandingTree, LiveTree, Server, TreeService};
use byteback_host::clock::Clock;
use byteback_host::durable::DirLock;
use byteback_model::ByteString;
use byteback_mount::cuts::CutSetup;
use byteback_mount::tracked::observer::Observer;
use byteback_mount::tracked::{Account, Tracked};
use byteback_mount::volume_tree::{VolumeTree, VolumeWatch};
use byteback_mount::{CacheMode, Mount, MountOptions, Unmount};
use byteback_oplog::{Close, PageLimits, TIME_TICK_NS};

use crate::bare_directory::{self, BareDirectory};
use crate::error::DaemonError;
use crate::integrity::{self, ChecksumOptions, scrub};
use crate::live::{Live, LiveOptions, LiveService};
use crate::lost_writes::{self, LostWrites};
use crate::memory;
use crate::service::{LineCarrier, PAGE_LIMITS, Repair, Service, SyncReporter, SyncWishesReader};
use crate::state_folder::StateFolder;
use crate::tree::TrackedTree;

/// Steps of the compaction after each checkpoint.
const COMPACT_STEPS: usize = 16;

/// How to mount a tree.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// Mount point, cache mode, threads; the directory is the tree's.
    pub mount: MountOptions,
    /// When the log is tidied up.
    pub rhythm: Rhythm,
    /// How much of a cut's changes is reported, and held in memory, at a time. Tests want little.
    pub page_limits: PageLimits,
    /// Options of continuous sync, if it is served; only a mount in mode `exact` serves it.
    pub live: Option<LiveOptions>,
    /// Options of the checksums of what programs write, if they are kept.
    pub checksums: Option<ChecksumOptions>,
}

/// The work in the background, and how often it is done. Only cost depends on it; tests let it
/// happen all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rhythm {
    /// How often the state in memory goes to the database.
    pub checkpoint_every: Duration,
    /// A node is closed after this long without a change.
    pub close_after: Duration,
    /// Layers that one step of the compaction looks at, while cuts and checkpoints wait.
    pub compact_layers: usize,
}

impl Default for Rhythm {
    fn default() -> Self {
        Self {
            checkpoint_every: Duration::from_secs(5),
            // By then the kernel has written its pages by itself (30 s by default), and syncing it
            // costs next to nothing.
            close_after: Duration::from_secs(35),
            compact_layers: 2048,
        }
    }
}

impl DaemonOptions {
    /// The usual rhythm and pages, without continuous sync and without checksums.
    #[must_use]
    pub fn new(mount: MountOptions) -> Self {
        Self {
            mount,
            rhythm: Rhythm::default(),
            page_limits: PAGE_LIMITS,
            live: None,
            checksums: None,
        }
    }
}

/// The thread that looks through the disk: first at the files that were being changed when the last
/// process ended.
struct Scrub {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
    /// `None` if the thread ends after those files.
    state: Option<Arc<scrub::ScrubState>>,
}

impl Scrub {
    fn start(tree: &Arc<TrackedTree>, options: Option<scrub::ScrubOptions>) -> io::Result<Option<Self>> {
        let Some(integrity) = tree.integrity().cloned() else {
            return Ok(None);
        };
        if options.is_none() && integrity.unchecked().is_empty() {
            return Ok(None);
        }
        let (stop, stopped) = mpsc::channel();
        let state = options.map(|_| Arc::new(scrub::ScrubState::default()));
        let (tree, seen) = (Arc::clone(tree), state.clone());
        let look = move || {
            integrity::check_interrupted(&tree, &integrity, &stopped);
            if let (Some(options), Some(seen)) = (options, seen) {
                scrub::run(&tree, &integrity, options, &seen, &stopped);
            }
        };
        let thread = std::thread::Builder::new().name("scrub".to_owned()).spawn(look)?;
        Ok(Some(Self { stop, thread, state }))
    }

    fn end(self) {
        drop(self.stop);
        let _ = self.thread.join();
    }
}

/// A mounted tree that is being served.
pub struct Daemon {
    tree: Arc<TrackedTree>,
    mount: Arc<Mount>,
    server: Option<Server>,
    service: Arc<Service>,
    live: Option<Arc<Live>>,
    scrub: Option<Scrub>,
    stop_checkpoints: Option<mpsc::Sender<()>>,
    checkpoints: Option<JoinHandle<()>>,
    /// The volume that the tree lies in, if it is in one; dropped after all that uses it.
    volume: Option<VolumeTree>,
    /// The directory that the volume is mounted over.
    bare: Option<BareDirectory>,
    /// Dropped last: nobody else may have tree or volume before everything of ours is closed.
    lock: Option<DirLock>,
}

impl Daemon {
    /// Mounts `tree` and serves it.
    ///
    /// # Errors
    /// If it cannot be mounted or the control socket cannot be made; nothing is mounted then.
    pub fn start(mut tree: TrackedTree, options: &DaemonOptions) -> Result<Self, DaemonError> {
        let lock = tree.take_lock();
        let volume = tree.take_volume();
        // If the start fails, the tree is dropped before the volume that it lies in, and both
        // before the lock.
        let mut tree = tree;
        let log = Arc::clone(tree.log());
        let root = Arc::clone(tree.live().root());
        let mount_options = MountOptions {
            root: volume.as_ref().map(|_| root),
            ..options.mount.clone()
        };
        if tree.undo().is_none() {
            tree.forget_undo().map_err(|source| DaemonError::State {
                path: tree.folder().undo_dir(),
                source,
            })?;
        }
        if let Some(checksums) = options.checksums {
            let integrity = integrity::open(&tree, checksums)?;
            tree.keep_sums(integrity);
        }
        let live = match options.live {
            Some(live) if options.mount.mode == CacheMode::Exact => Some(Arc::new(Live::open(&tree, live)?)),
            _ => None,
        };
        log.begin_tracking()?;
        let account = Account {
            log,
            pictures: Arc::clone(tree.pictures()),
            before_images: Some(Arc::clone(tree.before_images())),
            undo: tree.undo().cloned(),
            observer: live.clone().map(|live| live as Arc<dyn Observer>),
            integrity: tree.integrity().cloned(),
        };
        let tracked = Arc::new(Tracked::with_account(account));
        let cuts = CutSetup {
            live: tree.live().clone(),
            pictures: Arc::clone(tree.pictures()),
            keep_in: tree.folder().path().to_owned(),
            clock: Arc::clone(tree.clock()),
            report: options.mount.report.clone(),
        };
        let point = options
            .mount
            .at
            .clone()
            .unwrap_or_else(|| options.mount.directory.clone());
        let bare = volume
            .as_ref()
            .map(|_| prepare_for_volume(tree.folder(), &point))
            .transpose();
        let folder = tree.folder().clone();
        let mut has_started = false;
        let compare_again = || {
            tree.compare_again().map_err(io::Error::other)?;
            tree.begin_before_images().map_err(io::Error::other)?;
            tree.begin_undo().map_err(io::Error::other)?;
            if let Some(live) = &live {
                live.begin()?;
                let watching = Arc::downgrade(live);
                tree.log().set_on_untracked(move |_| {
                    if let Some(live) = watching.upgrade() {
                        live.abandon("a file was changed, bypassing the mount");
                    }
                });
            }
            has_started = true;
            Ok(())
        };
        let mounted = bare.and_then(|bare| {
            let mount = Mount::start_with_cuts(&mount_options, tracked, Some(cuts), compare_again);
            if mount.is_err() {
                let _ = bare_directory::release(&folder);
            }
            Ok((Arc::new(mount?), bare))
        });
        let (mount, bare) = match mounted {
            Ok(mounted) => mounted,
            Err(error) => {
                if !has_started {
                    tree.begin_undo()?;
                }
                tree.end_undo()?;
                tree.log().end_tracking()?;
                return Err(error);
            }
        };
        if let Some(bare) = &bare {
            // If that fails, the directory is as unprotected as any other.
            let _ = bare.covered();
            // Earlier losses were reported by the command that started this daemon.
            lost_writes::reset(tree.folder()).map_err(|source| DaemonError::State {
                path: tree.folder().path().to_owned(),
                source,
            })?;
        }
        let tree = Arc::new(tree);
        if tree.scan_report().nodes >= memory::LARGE {
            memory::give_back();
        }
        let mode = match options.mount.mode {
            CacheMode::Exact => "exact",
            CacheMode::Fast => "fast",
        };
        let service = Service::mounted(Arc::clone(&tree), Arc::clone(&mount), mode).with_pages(options.page_limits);
        let watch = volume.as_ref().map(VolumeTree::watch);
        let service = Arc::new(match watch.clone() {
            Some(watch) => service.watching(watch),
            None => service,
        });
        let served: Arc<dyn TreeService> = Arc::clone(&service) as Arc<dyn TreeService>;
        let path = tree.folder().socket();
        let server = Server::start(&path, served).map_err(|source| DaemonError::Socket { path, source })?;
        let scrub = Scrub::start(&tree, options.checksums.and_then(|checksums| checksums.scrub));
        let scrub = scrub.map_err(|source| DaemonError::Folder {
            path: tree.folder().directory().to_owned(),
            source,
        })?;
        let (stop_checkpoints, stopped) = mpsc::channel();
        let checkpoints = std::thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn({
                let tree = Arc::clone(&tree);
                let rhythm = options.rhythm;
                let live = live.clone();
                let also = move |tree: &TrackedTree| {
                    if let Some(failure) = watch.as_ref().and_then(VolumeWatch::failure) {
                        note_lost_writes(tree.folder(), failure, tree.clock().now_ns());
                    }
                };
                move || keep_checkpoints(&tree, live.as_deref(), rhythm, &stopped, also)
            })
            .map_err(|source| DaemonError::Folder {
                path: tree.folder().directory().to_owned(),
                source,
            })?;
        Ok(Self {
            tree,
            mount,
            server: Some(server),
            service,
            live,
            scrub,
            stop_checkpoints: Some(stop_checkpoints),
            checkpoints: Some(checkpoints),
            volume,
            bare,
            lock,
        })
    }

    /// The mount, to be unmounted by a signal or asked for its state.
    #[must_use]
    pub fn mount(&self) -> &Arc<Mount> {
        &self.mount
    }

    /// The service of the tree, for callers in this process.
    #[must_use]
    pub fn service(&self) -> Arc<dyn TreeService> {
        Arc::clone(&self.service) as Arc<dyn TreeService>
    }

    /// The changes of the tree to send, if continuous sync is served.
    #[must_use]
    pub fn live(&self) -> Option<Arc<dyn LiveTree>> {
        Some(Arc::new(self.live_service()?))
    }

    /// The side of the tree on which changes of others land, if continuous sync is served.
    #[must_use]
    pub fn landing(&self) -> Option<Arc<dyn LandingTree>> {
        Some(Arc::new(self.live_service()?))
    }

    fn live_service(&self) -> Option<LiveService> {
        let live = Arc::clone(self.live.as_ref()?);
        let landing = self
            .mount
            .landing(self.tree.live().clone(), self.tree.folder().directory());
        Some(LiveService::new(live, Arc::clone(&self.service), landing))
    }

    /// The progress of the scrub, and whether it may go on; `None` if no scrub was asked for.
    #[must_use]
    pub fn scrub(&self) -> Option<&Arc<scrub::ScrubState>> {
        self.scrub.as_ref()?.state.as_ref()
    }

    /// The tree.
    #[must_use]
    pub fn tree(&self) -> &Arc<TrackedTree> {
        &self.tree
    }

    /// Lets `tell` report the state of continuous sync whenever the state of the tree is requested.
    pub fn set_sync_reporter(&self, tell: SyncReporter) {
        self.service.set_sync_reporter(tell);
    }

    /// Lets `repair` mend damage when a client asks for that.
    pub fn repair_with(&self, repair: Repair) {
        self.service.repair_with(repair);
    }

    /// Lets `carry` serve those who want to make calls of the server on a line of this process.
    pub fn carry_lines_with(&self, carry: LineCarrier) {
        self.service.carry_lines_with(carry);
    }

    /// Lets `hear` read the wanted pace of continuous sync again after it was changed.
    pub fn set_sync_wishes_reader(&self, hear: SyncWishesReader) {
        self.service.set_sync_wishes_reader(hear);
    }

    /// Serves until the mount is gone, whoever removed it, and ends in good order.
    ///
    /// # Errors
    /// If serving ended by an error, or the last checkpoint failed: the next start then takes more
    /// files as changed.
    pub fn run(self) -> Result<(), DaemonError> {
        self.run_and(|| ())
    }

    /// As [`run`](Self::run), with `once_unmounted` called when the mount is gone and before what
    /// is left is settled. After that call nothing of the tree may be requested or sent.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_and(mut self, once_unmounted: impl FnOnce()) -> Result<(), DaemonError> {
        let ended = self.mount.wait();
        if let Some(lock) = &self.lock {
            // If that fails, a successor that comes too early is refused.
            let _ = lock.announce_end();
        }
        once_unmounted();
        // Clients that ask from now on learn more from the lock than from us.
        drop(self.server.take());
        let settled = self.settle();
        let (volume, bare, lock) = (self.volume.take(), self.bare.take(), self.lock.take());
        let (folder, clock) = (self.tree.folder().clone(), Arc::clone(self.tree.clock()));
        // This closes everything of the tree that we still have open.
        drop(self);
        let closed = volume.map_or(Ok(()), |volume| close(volume, &folder, &*clock));
        if bare.is_some() && settled.is_ok() && closed.is_ok() {
            // Otherwise it stays protected until the volume is mounted again, or 'byteback umount'
            // releases it.
            let _ = bare_directory::release(&folder);
        }
        drop(lock);
        // Losses of the volume are why the rest failed, too.
        closed?;
        settled?;
        Ok(ended?)
    }

    /// Stops the work in the background, and brings the log to an end.
    fn settle(&mut self) -> Result<(), DaemonError> {
        let ended_at_ns = self.tree.clock().now_ns();
        drop(self.stop_checkpoints.take());
        if let Some(scrub) = self.scrub.take() {
            scrub.end();
        }
        if let Some(checkpoints) = self.checkpoints.take() {
            let _ = checkpoints.join();
        }
        // Times of changes in the current tick prove nothing yet.
        self.tree
            .clock()
            .sleep(Duration::from_nanos(TIME_TICK_NS.unsigned_abs() + 5_000_000));
        integrity::commit(&self.tree, Some(ended_at_ns));
        let settler = self.tree.live().clone().settling_up_to(ended_at_ns);
        self.tree.log().checkpoint(&settler, Close::All)?;
        self.tree.end_undo()?;
        if let Some(live) = &self.live {
            // Changes that cannot be kept are sent at the next start, with everything else since
            // the mark.
            let _ = live.end();
        }
        self.tree.log().end_tracking()?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // After `run` there is nothing left to do; otherwise the owner gave the tree up.
        if !self.mount.has_ended() && self.mount.unmount(Unmount::IfIdle).is_err() {
            let _ = self.mount.unmount(Unmount::Detach);
        }
    }
}

/// Protects the directory that a volume will be mounted over, and reserves room to note what the
/// volume loses.
fn prepare_for_volume(folder: &StateFolder, point: &Path) -> Result<BareDirectory, DaemonError> {
    let state = |source| DaemonError::State {
        path: folder.path().to_owned(),
        source,
    };
    byteback_mount::remove_leftover(point)?;
    lost_writes::reserve(folder).map_err(state)?;
    let unusable = |source| DaemonError::Folder {
        path: point.to_owned(),
        source,
    };
    let bare = BareDirectory::protect(folder, point).map_err(unusable)?;
    match bare.is_empty().map_err(unusable) {
        Ok(true) => Ok(bare),
        seen => {
            // Released, so that it can be emptied.
            bare_directory::release(folder).map_err(unusable)?;
            let path = point.to_owned();
            seen.and(Err(DaemonError::NotEmpty { path }))
        }
    }
}

/// Closes a volume, and notes what it could not write.
fn close(volume: VolumeTree, folder: &StateFolder, clock: &dyn Clock) -> Result<(), DaemonError> {
    let failure = volume.failure();
    let closed = volume.close();
    if let Some(failure) = failure.or_else(|| closed.as_ref().err().map(ToString::to_string)) {
        note_lost_writes(folder, failure, clock.now_ns());
    }
    Ok(closed?)
}

fn note_lost_writes(folder: &StateFolder, reason: String, at_ns: i64) {
    let volume = folder.volume().ok().flatten().unwrap_or_default();
    let lost = LostWrites {
        at_ns,
        volume: ByteString::from(volume.as_os_str().as_bytes()),
        reason,
    };
    // If that fails too, the end of the process still reports the loss.
    let _ = lost_writes::note(folder, lost);
}

fn keep_checkpoints(
    tree: &TrackedTree,
    live: Option<&Live>,
    rhythm: Rhythm,
    stopped: &mpsc::Receiver<()>,
    also: impl Fn(&TrackedTree),
) {
    while stopped.recv_timeout(rhythm.checkpoint_every) == Err(RecvTimeoutError::Timeout) {
        tidy(tree, live, rhythm);
        also(tree);
    }
}

/// Does one round of the work in the background.
pub(crate) fn tidy(tree: &TrackedTree, live: Option<&Live>, rhythm: Rhythm) {
    let close_after_ns = u64::try_from(rhythm.close_after.as_nanos()).unwrap_or(u64::MAX);
    // A failed checkpoint has lost nothing; the next one tries again, and a backup in between
    // reports the cause.
    let log = tree.log();
    let checkpoint = log.checkpoint(tree.live(), Close::QuietFor { ns: close_after_ns });
    if checkpoint.is_ok_and(|done| done.closed >= memory::LARGE) {
        memory::give_back();
    }
    integrity::commit(tree, None);
    if let Some(live) = live {
        live.mark();
    }
    // Nothing depends on these either; both go on where they stopped.
    if let Some(undo) = tree.undo() {
        undo.maintain();
    }
    let _ = log.expire_consumers(log.options().expiry.drop_after);
    for _ in 0..COMPACT_STEPS {
        match log.compact(rhythm.compact_layers) {
            Ok(step) if !step.is_done => {}
            _ => break,
        }
    }
}
