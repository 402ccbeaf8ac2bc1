//! The undo as a witness: it keeps old bytes before they change, and names as they change.
//!
//! Nothing here can fail a program's call: old bytes that cannot be read are reported as such, and
//! then count as not kept.

use std::io;

use byteback_extents::ByteRange;
use byteback_host::tree::Inode;
use byteback_model::{NodeId, NodeKind};
use byteback_undo::{BeforeChange, ContentHow, NameHow, Rights, Undo};
use rustix::io::Errno;

use crate::live::open_for_reading;
use crate::tracked::change::{Change, Outcome, Part};
use crate::tracked::observer::{NamedAt, NamesChanged};
use crate::tracked::witness::Witness;
use crate::tracked::{Place, Victim};

impl Witness for Undo {
    fn before(&self, change: &Change<'_>) {
        match change {
            Change::Content(content) if !content.ranges.is_empty() => {
                before_content(self, content.node, content.fd, content.how, &content.ranges);
            }
            Change::Names(names) => {
                for renamed in names.nodes() {
                    if let Part::Loses(place, _, state) = renamed.part {
                        before_removal(self, renamed.node, place, state);
                    }
                }
            }
            Change::Content(_) | Change::ContentOfUnknown { .. } | Change::Attributes { .. } => {}
        }
    }

    fn after(&self, _change: &Change<'_>, outcome: &Outcome<'_>) {
        let note = |at: NamedAt<'_>, how, before, after| self.name_changed(at.parent, at.name, how, before, after);
        match outcome.names() {
            None => {}
            Some(NamesChanged::Created { at, node }) => note(at, NameHow::Created, None, Some(node.node)),
            Some(NamesChanged::Linked { at, node }) => note(at, NameHow::MovedHere, None, Some(node.node)),
            Some(NamesChanged::Unlinked { at, lost }) => note(at, NameHow::Removed, Some(lost.node.node), None),
            Some(NamesChanged::Renamed {
                from,
                to,
                node,
                replaced,
            }) => {
                note(from, NameHow::MovedAway, Some(node.node), None);
                let replaced = replaced.map(|lost| lost.node.node);
                note(to, NameHow::MovedHere, replaced, Some(node.node));
            }
            Some(NamesChanged::Exchanged {
                one,
                one_node,
                other,
                other_node,
            }) => {
                note(one, NameHow::Exchanged, Some(one_node.node), Some(other_node.node));
                note(other, NameHow::Exchanged, Some(other_node.node), Some(one_node.node));
            }
        }
    }
}

/// The content of `node` is about to change through `fd`, which need not be readable.
fn before_content(undo: &Undo, node: NodeId, fd: &Inode, how: ContentHow, ranges: &[ByteRange]) {
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
fn before_removal(undo: &Undo, node: NodeId, place: &Place<'_>, victim: &Victim) {
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
