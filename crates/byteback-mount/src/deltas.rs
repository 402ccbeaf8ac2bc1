//! One file, frozen for a program that has it open, with the changes in it: the far side of
//! `byteback-ioctl`.
//!
//! A *context* is a cut of which only one file is needed. It belongs to the open file (the handle)
//! through which it was made: no other handle can use it, and it ends with the handle, however its
//! program ends. It also appears as `.byteback/delta/NUMBER`, readable by the user who made it.
//!
//! **Permission.** A program that has the file open for reading may ask: it learns nothing that it
//! could not read. Consumers are named per user (`file:UID:NAME` in the log), so that no program
//! moves the mark of another user's program. The contexts of a handle, a user and the mount are
//! limited, and so are the consumers of a user.
//!
//! **Guests** are users other than root and the user who mounted: their kept bytes lie on a disk
//! that is not theirs. Guests together leave some contexts to the others, and a file that a guest
//! froze is lost before its kept bytes leave less than a quarter of that disk free.
//!
//! [`Deltas::open`] waits for what the kernel still holds, and [`Deltas::close`] for the log's
//! disk: neither may be called from a thread that serves requests.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use byteback_extents::{ByteRange, ExtentSet};
use byteback_ioctl::abi::{
    CLOSE_SAVED, DeltaClose, DeltaGetdiff, DeltaOpen, DeltaRead, NO_MORE, RANGES_MAX, READ_BYTES_MAX, REASON_CREATED,
    REASON_INTERRUPTED, REASON_NO_MARK, REASON_NONE, REASON_OTHER, REASON_UNSAVED, REASON_UNTRACKED, STATE_RANGES,
    STATE_WHOLE,
};
use byteback_model::{NodeId, NodeKind};
use byteback_oplog::{ContentChange, Epoch, LogError, WholeReason};
use parking_lot::Mutex;

use crate::cuts::{Cuts, FrozenTree, RESERVE_BYTES};
use crate::handles::OpenFile;
use crate::picture::{FrozenFile, Needed};
use crate::tree::Tree;

/// Contexts of one open file.
const OF_A_HANDLE_MAX: usize = 16;
/// Contexts of one user.
const OF_A_USER_MAX: usize = 64;
/// Contexts of one guest.
const OF_A_GUEST_MAX: usize = 24;
/// Contexts of the mount: each is one more picture that every write looks at.
const IN_ALL_MAX: usize = 128;
/// Contexts that guests do not get.
const NOT_FOR_GUESTS: usize = 32;
/// Bytes kept for guests leave one part in this many of the state folder's disk free.
const GUEST_FREE_SHARE: u64 = 4;
/// Consumers of one user.
const CONSUMERS_MAX: usize = 64;

/// A frozen file.
pub(crate) struct Context {
    number: u64,
    handle: u64,
    pub(crate) uid: u32,
    pub(crate) node: NodeId,
    pub(crate) tree: Arc<FrozenTree>,
    file: FrozenFile,
    consumer: String,
    ranges: Vec<ByteRange>,
}

impl fmt::Debug for Context {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Context")
            .field("number", &self.number)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// The contexts of one mount.
#[derive(Debug)]
pub(crate) struct Deltas {
    cuts: Arc<Cuts>,
    live: Arc<Tree>,
    contexts: Mutex<HashMap<u64, Arc<Context>>>,
    next: AtomicU64,
    /// The user who mounted.
    owner_uid: u32,
}

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn reason_code(reason: WholeReason) -> u32 {
    match reason {
        WholeReason::Created => REASON_CREATED,
        WholeReason::NoMark => REASON_NO_MARK,
        WholeReason::Untracked => REASON_UNTRACKED,
        WholeReason::Interrupted => REASON_INTERRUPTED,
        WholeReason::Unsaved => REASON_UNSAVED,
        #[allow(unreachable_patterns, reason = "a log of a later version may know more")]
        _ => REASON_OTHER,
    }
}

fn check_version(is_of_this_version: bool, version: u32) -> io::Result<()> {
    match (is_of_this_version, version == byteback_ioctl::abi::VERSION) {
        (true, _) => Ok(()),
        (false, true) => Err(errno(libc::EINVAL)),
        (false, false) => Err(errno(libc::EPROTONOSUPPORT)),
    }
}

impl Deltas {
    pub(crate) fn new(cuts: Arc<Cuts>, live: Arc<Tree>) -> Self {
        Self {
            cuts,
            live,
            contexts: Mutex::default(),
            next: AtomicU64::new(1),
            owner_uid: rustix::process::geteuid().as_raw(),
        }
    }

    fn is_guest(&self, uid: u32) -> bool {
        uid != 0 && uid != self.owner_uid
    }

    /// The bytes that a file frozen by `uid` must leave free.
    fn reserve_bytes(&self, uid: u32) -> io::Result<u64> {
        if !self.is_guest(uid) {
            return Ok(RESERVE_BYTES);
        }
        let space = rustix::fs::statvfs(&self.cuts.setup().keep_in)?;
        let disk_bytes = space.f_blocks.saturating_mul(space.f_frsize);
        Ok(RESERVE_BYTES.max(disk_bytes / GUEST_FREE_SHARE))
    }

    /// Refuses what can be refused at once.
    pub(crate) fn check_open(&self, handle: u64, uid: u32, request: &DeltaOpen) -> io::Result<Arc<OpenFile>> {
        check_version(request.is_of_this_version(), request.version)?;
        if request.flags != 0
            || request.reserved0 != 0
            || request.reserved != [0; 4]
            || request.consumer_name().is_none()
        {
            return Err(errno(libc::EINVAL));
        }
        self.cuts.check_attached()?;
        let file = self.live.handles.get(handle).ok_or_else(|| errno(libc::EBADF))?;
        if !file.for_reading() {
            return Err(errno(libc::EBADF));
        }
        self.check_room(&self.contexts.lock(), handle, uid)?;
        Ok(file)
    }

    fn check_room(&self, contexts: &HashMap<u64, Arc<Context>>, handle: u64, uid: u32) -> io::Result<()> {
        let of_handle = contexts.values().filter(|context| context.handle == handle).count();
        let of_user = contexts.values().filter(|context| context.uid == uid).count();
        let (of_user_max, in_all_max) = if self.is_guest(uid) {
            (OF_A_GUEST_MAX, IN_ALL_MAX - NOT_FOR_GUESTS)
        } else {
            (OF_A_USER_MAX, IN_ALL_MAX)
        };
        if of_handle >= OF_A_HANDLE_MAX || of_user >= of_user_max {
            return Err(errno(libc::EMFILE));
        }
        if contexts.len() >= in_all_max {
            return Err(errno(libc::ENFILE));
        }
        Ok(())
    }

    /// Freezes the open file `file`. See the module about threads.
    pub(crate) fn open(
        &self,
        handle: u64,
        uid: u32,
        file: &Arc<OpenFile>,
        request: &DeltaOpen,
    ) -> io::Result<DeltaOpen> {
        let setup = self.cuts.setup();
        let log = setup.live.log();
        let failed = |what: &str, error: &dyn fmt::Display| {
            setup.report.say(&format!("cannot freeze a file: {what}: {error}"));
            errno(libc::EIO)
        };
        let name = request.consumer_name().unwrap_or_default();
        let consumer = format!("file:{uid}:{name}");
        let unknown = || errno(libc::ENOENT);
        let node = log
            .node_of(&file.identity())
            .map_err(|error| failed("the log", &error))?
            .ok_or_else(unknown)?;
        self.cuts.flush().map_err(|error| failed("stores", &error))?;
        let reserve_bytes = self
            .reserve_bytes(uid)
            .map_err(|error| failed("the state folder", &error))?;
        let tree = FrozenTree::make(setup, format!("delta of {name}").into(), 0, reserve_bytes)
            .map_err(|error| failed("the log", &error))?;
        tree.picture.restrict(HashMap::from([(node, Needed::All)]));
        let since = match request.since {
            0 => log
                .file_mark(&consumer, node)
                .map_err(|error| failed("the log", &error))?,
            version => Some(Epoch(version)),
        };
        let change = tree
            .cut
            .change_of(node, since)
            .map_err(|error| failed("the log", &error))?
            .filter(|change| change.kind == NodeKind::File)
            .ok_or_else(unknown)?;
        let frozen = tree.open(node)?;
        let size_bytes = frozen.size_bytes().map_err(|error| tree.failed(&error))?;
        self.cuts.check_attached()?;
        let whole = ByteRange::new(0, size_bytes);
        let (state, reason, ranges) = match change.content {
            ContentChange::Unchanged => (STATE_RANGES, REASON_NONE, ExtentSet::new()),
            ContentChange::Ranges(ranges) => (STATE_RANGES, REASON_NONE, ranges),
            ContentChange::Whole(reason) => (STATE_WHOLE, reason_code(reason), whole.into_iter().collect()),
        };
        let ranges: Vec<ByteRange> = whole.map_or_else(Vec::new, |whole| ranges.iter_within(whole).collect());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let answer = DeltaOpen {
            context: number,
            tree: log.tree().0,
            node: node.0,
            version_since: match state {
                STATE_RANGES => since.map_or(0, |since| since.0),
                _ => 0,
            },
            version_now: tree.cut.epoch().0,
            size_bytes,
            range_count: ranges.len() as u64,
            changed_bytes: ranges.iter().map(|range| range.len_bytes()).sum(),
            state,
            reason,
            ..*request
        };
        let context = Context {
            number,
            handle,
            uid,
            node,
            tree: Arc::new(tree),
            file: frozen,
            consumer,
            ranges,
        };
        let mut contexts = self.contexts.lock();
        // A program that was killed while it waited has closed the file already, and nothing would
        // end this context.
        let is_open = self
            .live
            .handles
            .get(handle)
            .is_some_and(|known| Arc::ptr_eq(&known, file));
        if !is_open {
            return Err(errno(libc::EBADF));
        }
        self.check_room(&contexts, handle, uid)?;
        contexts.insert(number, Arc::new(context));
        Ok(answer)
    }

    fn context(&self, handle: u64, number: u64) -> io::Result<Arc<Context>> {
        let contexts = self.contexts.lock();
        let context = contexts.get(&number).filter(|context| context.handle == handle);
        context.cloned().ok_or_else(|| errno(libc::ENOENT))
    }

    /// The context with this number, for its path.
    pub(crate) fn numbered(&self, number: u64) -> Option<Arc<Context>> {
        self.contexts.lock().get(&number).cloned()
    }

    pub(crate) fn getdiff(&self, handle: u64, request: &DeltaGetdiff) -> io::Result<DeltaGetdiff> {
        check_version(request.is_of_this_version(), request.version)?;
        if request.reserved != 0 {
            return Err(errno(libc::EINVAL));
        }
        let context = self.context(handle, request.context)?;
        let mut answer = DeltaGetdiff {
            next: NO_MORE,
            count: 0,
            ranges: [[0; 2]; RANGES_MAX],
            ..*request
        };
        let first = context.ranges.partition_point(|range| range.end() <= request.position);
        let left = context.ranges.get(first..).unwrap_or_default();
        for (slot, range) in answer.ranges.iter_mut().zip(left) {
            let start = range.start().max(request.position);
            *slot = [start, range.end() - start];
            answer.count += 1;
        }
        if let Some(following) = left.get(RANGES_MAX) {
            answer.next = following.start();
        }
        Ok(answer)
    }

    pub(crate) fn read(&self, handle: u64, request: &DeltaRead) -> io::Result<DeltaRead> {
        check_version(request.is_of_this_version(), request.version)?;
        if request.reserved != 0 {
            return Err(errno(libc::EINVAL));
        }
        let context = self.context(handle, request.context)?;
        let wanted = usize::try_from(request.len_bytes)
            .unwrap_or(usize::MAX)
            .min(READ_BYTES_MAX);
        let mut answer = DeltaRead {
            data: [0; READ_BYTES_MAX],
            ..*request
        };
        let buffer = answer.data.get_mut(..wanted).unwrap_or_default();
        let got = context
            .file
            .read_at(request.offset, buffer)
            .map_err(|error| context.tree.failed(&error))?;
        self.cuts.check_attached()?;
        answer.len_bytes = u32::try_from(got).unwrap_or(0);
        Ok(answer)
    }

    /// Ends a context; if it is saved, the mark moves first. See the module about threads.
    pub(crate) fn close(&self, handle: u64, request: &DeltaClose) -> io::Result<()> {
        check_version(request.is_of_this_version(), request.version)?;
        if request.reserved != 0 || request.flags & !CLOSE_SAVED != 0 {
            return Err(errno(libc::EINVAL));
        }
        let context = self.context(handle, request.context)?;
        if request.flags & CLOSE_SAVED != 0 {
            self.save(&context)?;
        }
        let ended = self.contexts.lock().remove(&request.context);
        drop(ended);
        Ok(())
    }

    fn save(&self, context: &Context) -> io::Result<()> {
        let setup = self.cuts.setup();
        let log = setup.live.log();
        let failed = |error: &dyn fmt::Display| {
            let consumer = &context.consumer;
            setup
                .report
                .say(&format!("cannot move the mark of {consumer}: {error}"));
            errno(libc::EIO)
        };
        // Bytes that were read after the picture, or its protection, was lost may be of any time.
        self.cuts.check_attached()?;
        if let Some(why) = context.tree.picture.lost() {
            return Err(failed(&why));
        }
        let consumers = log.consumers().map_err(|error| failed(&error))?;
        let of_user = format!("file:{}:", context.uid);
        let mut of_user = consumers.iter().filter(|(name, _)| name.starts_with(&of_user));
        let (count, is_known) = (
            of_user.clone().count(),
            of_user.any(|(name, _)| *name == context.consumer),
        );
        if !is_known && count >= CONSUMERS_MAX {
            return Err(errno(libc::EDQUOT));
        }
        match log.set_file_mark(&context.consumer, context.node, context.tree.cut.epoch()) {
            Ok(_) => Ok(()),
            Err(LogError::TooManyConsumers { .. }) => Err(errno(libc::EDQUOT)),
            Err(error) => Err(failed(&error)),
        }
    }

    /// The handle is closed, and with it what belongs to it. Called after it has left the table of
    /// handles.
    pub(crate) fn release(&self, handle: u64) {
        let mut ended = Vec::new();
        self.contexts.lock().retain(|_, context| {
            let stays = context.handle != handle;
            if !stays {
                ended.push(Arc::clone(context));
            }
            stays
        });
        // The kept bytes are freed without the lock.
        drop(ended);
    }
}
