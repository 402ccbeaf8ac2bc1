//! One mount from its beginning to its end.
//!
//! Words: the *backing directory* is what is tracked; the *mount point* is where the tree appears,
//! by default over the backing directory itself. That is reached through a descriptor opened before
//! mounting over it.
//!
//! **Beginning.** A dead leftover of an earlier daemon is removed; the backing directory is opened;
//! the [`watcher`] process is forked; the kernel mounts; the caller looks at the tree once more,
//! while programs that come by its path wait; the threads start; one request through the mount
//! proves that it lives.
//!
//! **End.** The session ends when the kernel lets go of the mount: by [`Mount::unmount`], by a
//! foreign `umount` or `fusermount3 -u`, or because we are killed. In each case the descriptor of
//! `/dev/fuse` is closed or answers `ENODEV`, the threads return, and [`Mount::wait`] with them.
//! Copies of the mount in other mount namespaces, bind mounts and open files keep the session alive
//! after the mount is gone from its place; [`holders`] finds them. If we are killed the connection
//! is aborted by the kernel and the watcher removes the dead mount, so that the plain directory is
//! visible again. A thread that had just been given a request when the kernel let go (the release
//! of the last file, say) gets `ECONNABORTED` instead, which is the same end.
//!
//! Out of scope: signals (the binary turns them into [`Mount::unmount`]), reading the
//! environment.

mod below;
mod holders;
mod mounting;
pub(crate) mod place;
mod watcher;

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use byteback_host::tree::{self as host, Inode};
use fuser::{Config, Session, SessionACL};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use self::below::ProgramBelow;
pub use self::holders::Holder;
use self::mounting::{Mounted, NotUnmounted};
use self::place::{Place, Watch};
use self::watcher::Watcher;
use crate::adapter::Adapter;
use crate::cuts::{CutSetup, Cuts, Report};
use crate::deltas::Deltas;
use crate::hidden::{HIDDEN_NAME, Hidden, Job};
use crate::kernel_cache::{CacheMode, CachePolicy};
use crate::landing::Landing;
use crate::live::LiveTree;
use crate::mounted_within::MountedWithin;
use crate::stores::{FlushError, Flushed, Flusher, LateAnswers, Stores};
use crate::tracked::Tracked;
use crate::tree::Tree;

/// Two answer what the two processors of a small machine can ask; more help while some wait for the
/// disk.
const THREAD_COUNT: usize = 4;

/// How long an unmount waits for the end of the session, which follows at once unless something
/// else holds the file system.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// How to mount: directory, place, mode, threads, and where notes for people go.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The backing directory.
    pub directory: PathBuf,
    /// The mount point, if not over the backing directory itself.
    pub at: Option<PathBuf>,
    /// The root of the tree, if that is not the backing directory but something that no path leads
    /// to (a volume): then the directory is only the place where it is mounted.
    pub root: Option<Arc<Inode>>,
    /// How writes travel.
    pub mode: CacheMode,
    /// How many threads serve; 4 if not said.
    pub threads: Option<usize>,
    /// Where a line goes that people should find later: nowhere, if not said.
    pub report: Report,
}

impl MountOptions {
    /// Mounts over `directory` itself, in mode `exact`.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            at: None,
            root: None,
            mode: CacheMode::default(),
            threads: None,
            report: Report::default(),
        }
    }
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Only if nothing in the tree is open or anybody's working directory.
    IfIdle,
    /// At once for new accesses; what is open goes on to be served until it is closed.
    Detach,
}

/// Why there is no mount, or still one.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The directory cannot be used.
    #[error("cannot use the directory {path}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The directory is already mounted by Byteback.
    #[error("{path} is already mounted by Byteback; unmount it first with `byteback umount {path}`")]
    AlreadyMounted {
        /// Where.
        path: PathBuf,
    },
    /// `/dev/fuse` does not exist.
    #[error("/dev/fuse is missing; load the kernel module with `modprobe fuse` (in a container: pass the device in)")]
    NoFuse,
    /// An ordinary user needs the set-user-id helper.
    #[error("fusermount3 is missing, and ordinary users need it to mount; install the package fuse3")]
    NoHelper,
    /// The kernel or the helper refused.
    #[error("cannot mount over {path}: {reason}")]
    Refused {
        /// Where.
        path: PathBuf,
        /// The message of the kernel or the helper.
        reason: String,
    },
    /// The protocol could not be started, or the threads could not.
    #[error("cannot serve the mount on {path}: {source}")]
    Session {
        /// Where.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The mount is in use.
    #[error("{path} is in use; close what is open in it (`fuser -m {path}` lists it), or unmount lazily")]
    Busy {
        /// Where.
        path: PathBuf,
    },
    /// Something else was mounted over it.
    #[error("something else is mounted over {path}; unmount that first")]
    Covered {
        /// Where.
        path: PathBuf,
    },
    /// Unmounting failed otherwise.
    #[error("cannot unmount {path}: {reason}")]
    NotUnmounted {
        /// Where.
        path: PathBuf,
        /// The message of the kernel or the helper.
        reason: String,
    },
}

#[derive(Debug, Default)]
struct End {
    /// `None` while the session lasts.
    result: Mutex<Option<Result<(), String>>>,
    ended: Condvar,
}

/// Whether this answer of `/dev/fuse` says no more than that the kernel has let go of the mount, as
/// `ENODEV` does.
fn is_orderly_end(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::CONNABORTED.raw_os_error())
}

/// Removes what a daemon that died left at `path`, if there is such a mount; a living one stays.
///
/// # Errors
/// [`MountError::Refused`] if the dead mount is not Byteback's, [`MountError::NotUnmounted`] if it
/// cannot be removed.
pub fn remove_leftover(path: &Path) -> Result<(), MountError> {
    mounting::remove_leftover(path)
}

/// A live mount. Dropping it unmounts, lazily if it is in use.
#[derive(Debug)]
pub struct Mount {
    mounted: Mounted,
    place: Arc<Place>,
    tree: Arc<Tree>,
    stores: Arc<Stores>,
    cuts: Option<Arc<Cuts>>,
    end: Arc<End>,
    watcher: Arc<Watcher>,
}

impl Mount {
    /// Mounts and serves, with each modification through `tracked`. `before_serving` runs when the
    /// mount is there and nothing passes it yet: what it sees below is what the mount begins with,
    /// apart from what is changed through descriptors that are older.
    ///
    /// Raises the process's soft limit of open files to the hard one: each open file of the mount
    /// is one of ours.
    ///
    /// # Errors
    /// See [`MountError`]; the error of `before_serving` is a [`MountError::Session`].
    pub fn start(
        options: &MountOptions,
        tracked: Arc<Tracked>,
        before_serving: impl FnOnce() -> io::Result<()>,
    ) -> Result<Self, MountError> {
        Self::start_with_cuts(options, tracked, None, before_serving)
    }

    /// As [`Mount::start`]; with `cuts`, moments of the tree can be opened and are shown in the
    /// hidden folder `.byteback`.
    ///
    /// # Errors
    /// As [`Mount::start`].
    pub fn start_with_cuts(
        options: &MountOptions,
        tracked: Arc<Tracked>,
        cuts: Option<CutSetup>,
        before_serving: impl FnOnce() -> io::Result<()>,
    ) -> Result<Self, MountError> {
        raise_open_file_limit();
        let over_itself = options.at.is_none();
        let point = options.at.as_deref().unwrap_or(&options.directory);
        mounting::remove_leftover(point)?;
        let directory = canonical(&options.directory)?;
        let point = canonical(point)?;
        if mounting::is_live(&point) {
            return Err(MountError::AlreadyMounted { path: point });
        }
        let unusable = |source| MountError::Directory {
            path: directory.clone(),
            source,
        };
        let backing = match &options.root {
            Some(root) => root.try_clone().map_err(unusable)?,
            None => open_directory(&directory)?.into(),
        };
        let tree = Tree::new(backing, tracked).map_err(unusable)?;
        let tree = Arc::new(tree);

        // Before anything that a forked process would hold open: the connection must die with us.
        let watcher = Watcher::fork(&point).map_err(|source| MountError::Session {
            path: point.clone(),
            source,
        })?;
        let covered = open_directory(&point)?;
        let (device, mounted) = mounting::mount(&directory, &point)?;
        watcher.arm(mounted.id);
        let watcher = Arc::new(watcher);
        let session_error = |source| MountError::Session {
            path: point.clone(),
            source,
        };

        let hidden = Arc::new(OnceLock::new());
        let late = Arc::new(OnceLock::new());
        let adapter = Adapter::new(
            Arc::clone(&tree),
            Arc::clone(&hidden),
            Arc::clone(&late),
            CachePolicy::new(options.mode, over_itself),
            options.report.clone(),
        );
        let mut config = Config::default();
        config.n_threads = Some(options.threads.unwrap_or(THREAD_COUNT).max(1));
        config.clone_fd = mounting::can_open_device();
        // Whom the kernel lets in is decided by the mount; this only keeps the library from
        // refusing the kernel's own requests, which come as root.
        config.acl = SessionACL::All;
        let session = before_serving().and_then(|()| Session::from_fd(adapter, device, SessionACL::All, config));
        let started = session.and_then(|session| {
            let of_flusher = mounted.clone();
            let flusher = Flusher::start(move || of_flusher.open_root())?;
            let stores = Arc::new(Stores::new(Arc::clone(&tree), session.notifier(), flusher));
            let remembering = Arc::downgrade(&stores);
            tree.tell_of_changed_attributes(move |node| {
                if let Some(stores) = remembering.upgrade() {
                    stores.forget_attributes(node);
                }
            });
            let _ = late.set(LateAnswers::start(Arc::clone(&stores))?);
            let place = Arc::new(Place::new(mounted.clone(), covered)?);
            let cuts = cuts.map(|setup| {
                let place = Arc::clone(&place);
                Arc::new(Cuts::new(setup, Arc::clone(&stores), move || place.is_attached()))
            });
            let watch = match &cuts {
                Some(cuts) => {
                    let cuts = Arc::clone(cuts);
                    Some(Watch::start(move || cuts.look_attached().unwrap_or(true))?)
                }
                None => None,
            };
            if let Some(cuts) = &cuts {
                // The thread ends when the session drops the other end.
                let (jobs, to_do) = mpsc::channel::<Job>();
                std::thread::Builder::new()
                    .name("byteback-cuts".into())
                    .spawn(move || to_do.into_iter().for_each(|job| job()))?;
                let deltas = Deltas::new(Arc::clone(cuts), Arc::clone(&tree));
                let _ = hidden.set(Arc::new(Hidden::new(Arc::clone(cuts), deltas, jobs)));
            }
            let end = Arc::new(End::default());
            let (at_end, quit) = (Arc::clone(&end), Arc::clone(&watcher));
            let ending = cuts.clone();
            std::thread::Builder::new()
                .name("byteback-mount".into())
                .spawn(move || {
                    let result = match session.run() {
                        Err(error) if !is_orderly_end(&error) => Err(error.to_string()),
                        _ => Ok(()),
                    };
                    quit.disarm();
                    drop(watch);
                    if let Some(cuts) = ending {
                        cuts.end();
                    }
                    *at_end.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                    at_end.ended.notify_all();
                })?;
            Ok((place, stores, cuts, end))
        });
        let (place, stores, cuts, end) = match started {
            Ok(started) => started,
            Err(source) => {
                // The device is closed, so the mount is dead; take it away.
                let _ = mounted.unmount(Unmount::Detach);
                watcher.disarm();
                return Err(session_error(source));
            }
        };
        let mount = Self {
            mounted,
            place,
            tree,
            stores,
            cuts,
            end,
            watcher,
        };
        mount.prove_alive().map_err(session_error)?;
        Ok(mount)
    }

    /// Proves by a request through the mount that it shows the backing directory.
    fn prove_alive(&self) -> io::Result<()> {
        let root = self.mounted.open_root()?;
        let (seen, expected) = (host::stat_fd(&root)?, self.tree.root_stat());
        if (seen.ino, seen.mode, seen.uid) != (expected.ino, expected.mode, expected.uid) {
            return Err(io::Error::other("the mounted root is not the backing directory"));
        }
        Ok(())
    }

    /// Where the tree is mounted.
    #[must_use]
    pub fn point(&self) -> &Path {
        &self.mounted.point
    }

    /// Waits until the mount is gone, whoever removed it.
    ///
    /// # Errors
    /// [`MountError::Session`] if serving ended by an error rather than by unmounting.
    pub fn wait(&self) -> Result<(), MountError> {
        let mut result = self.end.result.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match &*result {
                Some(Ok(())) => return Ok(()),
                Some(Err(reason)) => {
                    return Err(MountError::Session {
                        path: self.mounted.point.clone(),
                        source: io::Error::other(reason.clone()),
                    });
                }
                None => result = self.end.ended.wait(result).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Waits until the session has ended, but no longer than `timeout`; tells whether it has.
    fn ends_within(&self, timeout: Duration) -> bool {
        let result = self.end.result.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .end
            .ended
            .wait_timeout_while(result, timeout, |result| result.is_none());
        let (result, _) = waited.unwrap_or_else(PoisonError::into_inner);
        result.is_some()
    }

    /// Mounts and programs that keep the session alive after the mount has lost its place, as far
    /// as this user sees them. Empty while the mount is where it was made, and after the end.
    #[must_use]
    pub fn holders(&self) -> Vec<Holder> {
        if self.has_ended() || self.is_attached() {
            return Vec::new();
        }
        holders::holders(&self.place.device())
    }

    /// Whether the mount is gone.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.end.result.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether a program that comes by the path still meets the mount. After a lazy unmount that is
    /// no longer so while open files go on to be served: then changes pass the mount by. If yes, it
    /// was so at some moment of this call; if the system cannot tell, no.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        !self.has_ended() && self.place.is_attached().unwrap_or(false)
    }

    /// The programs that were in the directory before it was mounted over: what they change passes
    /// the mount by. Other users' programs are seen by root only.
    #[must_use]
    pub fn programs_below(&self) -> Vec<ProgramBelow> {
        if !self.tree.is_of_system() {
            // The only way into it is through the mount.
            return Vec::new();
        }
        below::programs_below(&self.mounted.point, self.tree.root_stat().dev)
    }

    /// Unmounts. With [`Unmount::IfIdle`] the session has ended when this returns, unless something
    /// outside of our mount namespace holds the file system ([`Self::holders`]): that is waited for
    /// two seconds. With [`Unmount::Detach`] the session ends when the last user closes, see
    /// [`Self::wait`].
    ///
    /// # Errors
    /// [`MountError::Busy`], [`MountError::Covered`] or [`MountError::NotUnmounted`]; the mount
    /// then goes on.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        if self.has_ended() {
            return Ok(());
        }
        let path = self.mounted.point.clone();
        match self.mounted.unmount(how) {
            Ok(()) => {
                let has_ended = how == Unmount::IfIdle && self.ends_within(END_TIMEOUT);
                if !has_ended && let Some(cuts) = &self.cuts {
                    cuts.detach();
                }
                Ok(())
            }
            // Another process was faster.
            Err(_) if self.has_ended() => Ok(()),
            Err(NotUnmounted::Busy) => Err(MountError::Busy { path }),
            Err(NotUnmounted::Covered) => Err(MountError::Covered { path }),
            Err(NotUnmounted::Gone) => Ok(()),
            Err(NotUnmounted::Refused(reason)) => Err(MountError::NotUnmounted { path, reason }),
        }
    }

    /// Waits until each store that a program made through a shared mapping (in mode `fast` also
    /// each write) before this call has passed the gate. Must not be called from a thread that
    /// serves requests. Does not force the disk.
    ///
    /// # Errors
    /// [`FlushError`] names the nodes of which the kernel could not write back everything.
    pub fn flush_stores(&self) -> Result<Flushed, FlushError> {
        self.stores.flush()
    }

    /// The entrance for what others changed. `live`: the tree that is mounted, as its log knows it;
    /// `directory`: the backing directory.
    #[must_use]
    pub fn landing(&self, live: LiveTree, directory: &Path) -> Landing {
        let places = vec![self.point().to_owned(), directory.to_owned()];
        let mounted = MountedWithin::new(places);
        Landing::new(Arc::clone(&self.tree), Arc::clone(&self.stores), live, mounted)
    }

    /// The named cuts; `None` where the mount was started without.
    #[must_use]
    pub fn cuts(&self) -> Option<&Arc<Cuts>> {
        self.cuts.as_ref()
    }

    /// Whether the backing directory has an entry of its own that the hidden folder shadows while
    /// it is mounted.
    #[must_use]
    pub fn shadows_an_entry(&self) -> bool {
        self.cuts.is_some() && self.tree.has_in_root(OsStr::new(HIDDEN_NAME))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.unmount(Unmount::IfIdle).is_err() {
            let _ = self.unmount(Unmount::Detach);
        }
        self.watcher.disarm();
    }
}

fn canonical(path: &Path) -> Result<PathBuf, MountError> {
    path.canonicalize().map_err(|source| MountError::Directory {
        path: path.to_owned(),
        source,
    })
}

fn open_directory(path: &Path) -> Result<OwnedFd, MountError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map_err(|errno| MountError::Directory {
        path: path.to_owned(),
        source: errno.into(),
    })
}

fn raise_open_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // If it is refused, files cannot be opened beyond the old limit, and programs see EMFILE.
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                maximum: limit.maximum,
            },
        );
    }
}
