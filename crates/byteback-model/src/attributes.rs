//! The metadata of a node beside its names and contents.
//!
//! Access time is not kept. ACLs are the xattrs `system.posix_acl_access` and
//! `system.posix_acl_default`. Times are nanoseconds since the Unix epoch and may be negative; some
//! file systems keep times that do not fit into 64 bits.

use crate::ByteString;
use serde::{Deserialize, Serialize};

/// The type of an inode. It never changes during the life of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// A regular file, the only kind with contents.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix-domain socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Xattr {
    /// Full name with its namespace, for example `user.comment`.
    pub name: ByteString,
    /// The value.
    pub value: ByteString,
}

impl Xattr {
    /// The attribute `name` with this value.
    pub fn new(name: impl Into<ByteString>, value: impl Into<ByteString>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
        }
    }
}

/// The attributes of a node at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// The type of the inode.
    pub kind: NodeKind,
    /// Permission, set-id and sticky bits (`st_mode & 07777`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length of a regular file's contents in bytes; 0 for every other kind.
    #[serde(default)]
    pub size: u64,
    /// Time of the last modification of the contents, ns since the Unix epoch.
    #[serde(with = "crate::wide_ns")]
    pub mtime_ns: i128,
    /// Device number (`st_rdev`) of a device node, otherwise 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rdev: u64,
    /// Flags of a file or directory that forbid changes, as `FS_IOC_GETFLAGS` numbers them:
    /// immutable (16) and append-only (32). Other bits are ignored.
    #[serde(default, skip_serializing_if = "is_none")]
    pub inode_flags: u32,
    /// The path that a symlink points to; present exactly for symlinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<ByteString>,
    /// Extended attributes, sorted by name, each name once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xattrs: Vec<Xattr>,
    /// The owner's name on the client, for restoring on a machine with other numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<ByteString>,
    /// The group's name on the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<ByteString>,
}

// `skip_serializing_if` calls its function with a reference.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_none(flags: &u32) -> bool {
    *flags == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}
