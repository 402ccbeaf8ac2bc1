//! Converts what the system reports about a node into the attributes of the API.

use std::os::unix::ffi::OsStringExt;

use byteback_model::{Attributes, ByteString, NodeKind, Xattr};
use byteback_mount::picture::NodeAttributes;

pub(crate) fn attributes_to_api(read: NodeAttributes) -> Attributes {
    let NodeAttributes { stat, target, xattrs } = read;
    let is_device = matches!(stat.kind, NodeKind::CharDevice | NodeKind::BlockDevice);
    let xattrs = xattrs.into_iter().map(|(name, value)| Xattr {
        name: ByteString::from(name.into_vec()),
        value: ByteString::from(value),
    });
    Attributes {
        kind: stat.kind,
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        size: if stat.kind == NodeKind::File { stat.size } else { 0 },
        mtime_ns: stat.mtime_ns,
        rdev: if is_device { stat.rdev } else { 0 },
        inode_flags: stat.inode_flags.bits(),
        target: target.map(|target| ByteString::from(target.into_vec())),
        xattrs: xattrs.collect(),
        user: None,
        group: None,
    }
}
