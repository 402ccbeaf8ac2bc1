//! The durable record of one node: what it is, who it is on the disk, and the fence that proves it
//! clean.
//!
//! *Fence*: size, times, owner and mode of a node at a moment when all its content was durable and
//! every change of it was in the log. A node whose fence still holds at the next start was not
//! changed behind our back. A node without a fence is *open*: nothing is promised about its
//! content, and after an unclean stop it is reported whole.

use byteback_host::tree::{Identity, Stat};

use crate::codec::Malformed;
use crate::ids::Epoch;
use byteback_model::NodeKind;

/// Two changes of a file within this time may leave it with the same times: kernels stamp with the
/// tick of their clock, 10 ms at worst. A fence whose change time is more recent than that at the
/// moment of its stat would not notice a later change (some file systems keep coarser times still:
/// [`Fence::proves_at`] knows).
pub const TIME_TICK_NS: i64 = 20_000_000;

/// The state of a node that any change to it would change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Size in bytes; 0 for whatever is not a regular file (a directory's size follows its
    /// entries).
    pub size_bytes: u64,
    /// Time of the last change of content, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Time of the last change of anything, nanoseconds since 1970.
    pub ctime_ns: i64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Fence {
    /// The fence that `stat` describes.
    #[must_use]
    pub fn of(stat: &Stat) -> Self {
        let is_file = stat.kind == NodeKind::File;
        Self {
            size_bytes: if is_file { stat.size } else { 0 },
            mtime_ns: stat.mtime_stamp_ns(),
            ctime_ns: stat.ctime_ns,
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
        }
    }

    /// Whether a change after `now_ns` (nanoseconds since 1970), when the fence was taken, would
    /// show in it. Two changes within one step of the clock that stamps files leave the same times.
    #[must_use]
    pub fn proves_at(&self, now_ns: i64) -> bool {
        // Whole seconds: ext3, ext4 with inodes of 128 bytes, HFS+; FAT keeps every other one.
        // Elsewhere a stamp is whole once in 250 million times at best, and waiting longer for it
        // costs nothing.
        let keeps_seconds = self.ctime_ns % 1_000_000_000 == 0;
        let step_ns = if keeps_seconds { 2_000_000_000 } else { 0 };
        now_ns.saturating_sub(self.ctime_ns) > TIME_TICK_NS + step_ns
    }
}

/// The identity of a node on the disk, in a form that survives a reboot: device numbers are drawn
/// anew at each boot, so the device that holds the root counts as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DiskKey {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Birth time; 0 where the file system has none, and then a reused inode number is told only by
    /// its fence.
    pub(crate) birth_ns: i64,
}

impl DiskKey {
    /// A key of zeros, which no node has.
    pub(crate) const NONE: Self = Self {
        device: 0,
        inode: 0,
        birth_ns: 0,
    };

    /// `keeps_births`: see [`crate::TreeView::keeps_births`].
    pub(crate) fn new(identity: &Identity, root_device: u64, keeps_births: bool) -> Self {
        Self {
            device: if identity.dev == root_device { 0 } else { identity.dev },
            inode: identity.ino,
            birth_ns: identity.birth_ns.filter(|_| keeps_births).unwrap_or(0),
        }
    }

    pub(crate) fn tuple(self) -> (u64, u64, i64) {
        (self.device, self.inode, self.birth_ns)
    }
}

/// The record of a node; its stored form is in [`crate::database::rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeRecord {
    pub(crate) kind: NodeKind,
    pub(crate) key: DiskKey,
    /// The epoch in which the node came into being: a consumer whose mark is not newer has never
    /// seen it.
    pub(crate) born: Epoch,
    pub(crate) fence: Option<Fence>,
}

const KINDS: [NodeKind; 7] = [
    NodeKind::File,
    NodeKind::Directory,
    NodeKind::Symlink,
    NodeKind::Fifo,
    NodeKind::Socket,
    NodeKind::CharDevice,
    NodeKind::BlockDevice,
];

pub(crate) fn kind_code(kind: NodeKind) -> u8 {
    match kind {
        NodeKind::File => 0,
        NodeKind::Directory => 1,
        NodeKind::Symlink => 2,
        NodeKind::Fifo => 3,
        NodeKind::Socket => 4,
        NodeKind::CharDevice => 5,
        NodeKind::BlockDevice => 6,
    }
}

pub(crate) fn kind_from_code(code: u8) -> Result<NodeKind, Malformed> {
    KINDS.get(usize::from(code)).copied().ok_or(Malformed)
}
