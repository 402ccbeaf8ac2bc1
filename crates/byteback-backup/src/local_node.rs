//! A node of a directory on this machine: its attributes in the API's words, and its content read
//! once or not at all.
//!
//! Nothing holds such a node still. So a file that is read has a *stamp* (its identity, its length,
//! the times of its content and of its inode) that is taken before and compared after each reading:
//! bytes of two moments are never taken for those of one. A change in the very clock tick of the
//! stamp would not show, hence [`LocalNode::settle`] first waits until that tick is over. Writes
//! through a shared mapping show when the kernel writes them back, not before; only a tracked
//! folder knows better.
//!
//! Out of scope: walking directories, following symlinks.

mod leaves;

use byteback_control::{
    ChangesCursor, ChangesPage, CutId, CutInfo, CutRequest, ErrorKind, FinishReport, LeafOffer, LeafPiece, LeafRequest,
    LeavesSummary, Outcome, Piece, ServiceError, TreeService, TreeStatus,
};
use byteback_delta::{ContentDigest, DIGEST_LEN};
use byteback_extents::ByteRange;
use byteback_host::clock::Clock;
use byteback_host::tree::{self, Identity, InodeFlags, Stat};
use byteback_model::{Attributes, ByteString, NodeId, NodeKind, Xattr};
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes read at once.
const BUFFER_LEN: usize = 256 * 1024;

/// No file system's clock ticks more slowly, except those that keep whole seconds.
const TICK: Duration = Duration::from_millis(20);

/// Attempts to wait for a file that is being written.
const SETTLE_TRIES: usize = 3;

/// The attributes that must stay as they are while a content is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    identity: Identity,
    size: u64,
    mtime_ns: i128,
    ctime_ns: i64,
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        Self {
            identity: stat.identity(),
            size: stat.size,
            mtime_ns: stat.mtime_ns,
            ctime_ns: stat.ctime_ns,
        }
    }
}

/// A node, named by a descriptor.
#[derive(Debug)]
pub(crate) struct LocalNode {
    fd: OwnedFd,
    pub(crate) stat: Stat,
}

impl LocalNode {
    /// The node `name` of a directory; a symlink is not followed.
    pub(crate) fn open(dir: impl AsFd, name: &OsStr) -> io::Result<Self> {
        Self::of(tree::open_path_at(dir, name)?)
    }

    /// Flags that forbid changes, as [`tree::inode_flags`] finds them.
    pub(crate) fn inode_flags(&self) -> io::Result<InodeFlags> {
        tree::inode_flags(&self.fd)
    }

    /// The node of a descriptor.
    pub(crate) fn of(fd: OwnedFd) -> io::Result<Self> {
        let stat = tree::stat_fd(&fd)?;
        Ok(Self { fd, stat })
    }

    pub(crate) fn kind(&self) -> NodeKind {
        self.stat.kind
    }

    /// All attributes; those of the inode as of opening or the last [`Self::settle`].
    pub(crate) fn attributes(&self) -> io::Result<Attributes> {
        let stat = &self.stat;
        let target = match stat.kind {
            NodeKind::Symlink => Some(ByteString::from(tree::read_link_fd(&self.fd)?.into_vec())),
            _ => None,
        };
        let names = match tree::list_xattrs(&self.fd) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Vec::new(),
            names => names?,
        };
        let mut xattrs = Vec::new();
        for name in names {
            // Removed since it was listed, or hidden from us: not ours to send.
            if let Ok(Some(value)) = tree::get_xattr(&self.fd, &name) {
                xattrs.push(Xattr {
                    name: ByteString::from(name.into_vec()),
                    value: ByteString::from(value),
                });
            }
        }
        xattrs.sort_unstable();
        let is_device = matches!(stat.kind, NodeKind::CharDevice | NodeKind::BlockDevice);
        Ok(Attributes {
            kind: self.kind(),
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            size: if stat.kind == NodeKind::File { stat.size } else { 0 },
            mtime_ns: stat.mtime_ns,
            rdev: if is_device { stat.rdev } else { 0 },
            inode_flags: stat.inode_flags.bits(),
            target,
            xattrs,
            user: None,
            group: None,
        })
    }

    /// Waits until a later change would show in the stamp, and takes the stamp anew.
    pub(crate) fn settle(&mut self, clock: &dyn Clock) -> io::Result<()> {
        let tick_ns = u64::try_from(TICK.as_nanos()).unwrap_or(u64::MAX);
        for _ in 0..SETTLE_TRIES {
            let age_ns = clock.now_ns().saturating_sub(self.stat.ctime_ns).unsigned_abs();
            if age_ns >= tick_ns {
                break;
            }
            clock.sleep(TICK);
            self.stat = tree::stat_fd(&self.fd)?;
        }
        Ok(())
    }

    /// Opens the content of a regular file, as of the stamp: a write whose times the stamp has is
    /// waited for, so that it is read as a whole.
    pub(crate) fn content(&self) -> io::Result<LocalContent> {
        tree::wait_for_writers(&self.fd);
        Ok(LocalContent {
            file: File::from(tree::reopen(&self.fd, OFlags::RDONLY)?),
            stamp: Stamp::of(&self.stat),
            read_bytes: AtomicU64::new(0),
            digests: None,
            is_only_read: false,
        })
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}

/// The content of a file at its stamp.
#[derive(Debug)]
pub(crate) struct LocalContent {
    file: File,
    stamp: Stamp,
    read_bytes: AtomicU64,
    /// The digest of the whole content, once that was read, if it is wanted.
    digests: Option<OnceLock<[u8; DIGEST_LEN]>>,
    /// Checksums that the file system keeps are not asked for.
    is_only_read: bool,
}

impl LocalContent {
    /// Ignores checksums that the file system keeps: the bytes are read.
    pub(crate) fn only_read(self) -> Self {
        Self {
            is_only_read: true,
            ..self
        }
    }

    /// Digests the content while it is read as a whole.
    pub(crate) fn with_digest(self) -> Self {
        Self {
            digests: Some(OnceLock::new()),
            ..self
        }
    }

    /// The digest of the whole content, if it was wanted and all was read.
    pub(crate) fn digest(&self) -> Option<[u8; DIGEST_LEN]> {
        self.digests.as_ref()?.get().copied()
    }

    /// Bytes read from the file.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Like [`Self::read_ranges`]; a wanted digest is made when the whole content is read.
    pub(crate) fn read(
        &self,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        let len = self.stamp.size;
        let wanted = self.digests.as_ref().filter(|_| ranges == [(0, len)]);
        let Some(wanted) = wanted else {
            return self.read_ranges(ranges, sink);
        };
        let mut digest = ContentDigest::new(len);
        self.read_ranges(ranges, &mut |piece| {
            match piece {
                Piece::Data { bytes, .. } => digest.push(bytes),
                Piece::Hole(range) => digest.push_zeros(range.len_bytes()),
            }
            sink(piece)
        })?;
        if let Some(digest) = digest.finish() {
            let _ = wanted.set(digest);
        }
        Ok(())
    }

    /// Hands ranges to `sink`, ascending: data and holes. Returns an error of `sink` as it is.
    ///
    /// # Errors
    /// [`ErrorKind::Node`] if the file cannot be read, or has changed since the stamp.
    fn read_ranges(
        &self,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        let mut buffer = vec![0; BUFFER_LEN];
        for &(offset, len) in ranges {
            let mut at = offset;
            let end = offset.saturating_add(len).min(self.stamp.size);
            for range in tree::data_ranges(&self.file, offset, end) {
                let range = range.map_err(|error| unreadable(&error))?;
                hole(at, range.start, sink)?;
                at = range.start;
                while at < range.end {
                    let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
                    let some = buffer.get_mut(..left.min(BUFFER_LEN)).unwrap_or_default();
                    self.file.read_exact_at(some, at).map_err(|error| match error.kind() {
                        io::ErrorKind::UnexpectedEof => changed(),
                        _ => unreadable(&error),
                    })?;
                    let some_len = u64::try_from(some.len()).unwrap_or(u64::MAX);
                    self.read_bytes.fetch_add(some_len, Ordering::Relaxed);
                    sink(Piece::Data {
                        offset: at,
                        bytes: some,
                    })?;
                    at = at.saturating_add(some_len);
                }
            }
            hole(at, end, sink)?;
        }
        self.check()
    }

    /// Whether everything read since the stamp is of one moment.
    fn check(&self) -> Result<(), ServiceError> {
        let stat = tree::stat_fd(&self.file).map_err(|error| unreadable(&error))?;
        match Stamp::of(&stat) == self.stamp {
            true => Ok(()),
            false => Err(changed()),
        }
    }
}

fn hole(from: u64, to: u64, sink: &mut dyn FnMut(Piece<'_>) -> Result<(), ServiceError>) -> Result<(), ServiceError> {
    ByteRange::new(from, to).map_or(Ok(()), |range| sink(Piece::Hole(range)))
}

fn changed() -> ServiceError {
    ServiceError::new(ErrorKind::Node, "it changed while it was read")
}

fn unreadable(error: &io::Error) -> ServiceError {
    ServiceError::new(ErrorKind::Node, error.to_string())
}

fn no_log<T>() -> Result<T, ServiceError> {
    Err(ServiceError::new(
        ErrorKind::Protocol,
        "a file in a folder that is not tracked has no log",
    ))
}

/// A file that no log knows, as a tree that can only be read: the code that sends contents sends it
/// like any other.
impl TreeService for LocalContent {
    fn status(&self) -> Result<TreeStatus, ServiceError> {
        no_log()
    }

    fn resolve_pending(&self, _consumer: &str, _saved: Option<Vec<u8>>) -> Result<(), ServiceError> {
        no_log()
    }

    fn drop_consumer(&self, _consumer: &str) -> Result<bool, ServiceError> {
        no_log()
    }

    fn cut(&self, _request: &CutRequest) -> Result<CutInfo, ServiceError> {
        no_log()
    }

    fn changes(&self, _cut: CutId, _cursor: &ChangesCursor) -> Result<ChangesPage, ServiceError> {
        no_log()
    }

    fn attributes(
        &self,
        _cut: CutId,
        _nodes: &[NodeId],
    ) -> Result<Vec<Result<Attributes, ServiceError>>, ServiceError> {
        no_log()
    }

    fn read(
        &self,
        _cut: CutId,
        _node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        Self::read(self, ranges, sink)
    }

    /// Nothing holds a plain file's bytes still; callers notice by the file's stamp.
    fn peek(
        &self,
        _cut: CutId,
        _node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        Self::read(self, ranges, sink)
    }

    fn path(&self, _cut: CutId, _node: NodeId) -> Result<Option<ByteString>, ServiceError> {
        Ok(None)
    }

    fn leaf_offer(&self, _cut: CutId, _node: NodeId) -> Result<LeafOffer, ServiceError> {
        leaves::offer(self)
    }

    fn leaf_sums(
        &self,
        _cut: CutId,
        _node: NodeId,
        request: LeafRequest,
        sink: &mut dyn FnMut(LeafPiece<'_>) -> Result<(), ServiceError>,
    ) -> Result<LeavesSummary, ServiceError> {
        leaves::tell(self, request, sink)
    }

    fn note_batch(&self, _cut: CutId, _batch: u64) -> Result<(), ServiceError> {
        no_log()
    }

    fn finish(&self, _cut: CutId, _outcome: &Outcome) -> Result<FinishReport, ServiceError> {
        no_log()
    }

    fn unmount(&self) -> Result<(), ServiceError> {
        no_log()
    }
}

#[cfg(test)]
mod tests;
