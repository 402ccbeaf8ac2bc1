//! The gate's reports to the undo: old bytes before they change, and names as they change.
//!
//! Nothing here can fail a program's call: old bytes that cannot be read are reported as such, and
//! then count as not kept.

use std::io;

use byteback_extents::ByteRange;
use byteback_host::tree::Inode;
use byteback_model::{NodeId, NodeKind};
use byteback_undo::{BeforeChange, ContentHow, Rights, Undo};
use rustix::io::Errno;

use super::{Place, Victim};
use crate::live::open_for_reading;

/// The content of `node` is about to change through `fd`, which need not be readable.
pub(super) fn before_content(undo: &Undo, node: NodeId, fd: &Inode, how: ContentHow, ranges: &[ByteRange]) {
    let Ok(stat) = fd.stat() else {
        return undo.not_kept(node);
    };
    let mut reopened: Option<Inode> = None;
    let mut read = |at: u64, buffer: &mut [u8]| {
        let file = reopened.as_ref().unwrap_or(fd);
        match file.read_at(at, buffer) {
            Err(error) if error.raw_os_error() == Some(Errno::BADF.raw_os_error()) && reopened.is_none() => {
                let file = reopened.insert(open_for_reading(fd)?);
                file.read_at(at, buffer)
            }
            read => read,
        }
    };
    undo.before_content(
        node,
        BeforeChange {
            ranges,
            how,
            size_bytes: stat.size,
            read: &mut read,
        },
    );
}

/// Whether anybody is named by a file's ACL; also where that cannot be told.
fn has_acl(file: &Inode) -> bool {
    match file.get_xattr("system.posix_acl_access".as_ref()) {
        Ok(acl) => acl.is_some(),
        Err(error) => error.kind() != io::ErrorKind::Unsupported,
    }
}

/// The file `node` is about to lose its last name, the one at `place`.
pub(super) fn before_removal(undo: &Undo, node: NodeId, place: Place<'_>, victim: Victim) {
    if victim.object.kind != NodeKind::File || !victim.is_last_link() || !undo.wants_removed(node) {
        return;
    }
    let opened = place.dir.open_path_at(place.name).and_then(|fd| {
        let stat = fd.stat()?;
        Ok((open_for_reading(&fd)?, stat))
    });
    match opened {
        Ok((file, stat)) if stat.identity() == victim.object.identity => {
            // An ACL is not kept. With it the group's bits are what anybody named by it may have at
            // most, and more than the group may.
            let group = match has_acl(&file) {
                true => 0o070,
                false => 0,
            };
            let rights = Rights {
                mode: stat.mode & !group,
                uid: stat.uid,
                gid: stat.gid,
            };
            undo.before_removal(node, stat.size, rights, &mut |at, buffer| file.read_at(at, buffer));
        }
        _ => undo.not_kept(node),
    }
}
