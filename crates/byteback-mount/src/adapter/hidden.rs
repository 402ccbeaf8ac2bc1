//! Requests about the folder `.byteback`, translated.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use byteback_host::tree::Stat;
use fuser::{
    Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEntry, ReplyOpen,
};
use rustix::fs::OFlags;

use super::values::{MISSING, attributes_of, file_type};
use super::{Adapter, errno, node};
use crate::handles::writes;
use crate::hidden::{Hidden, HiddenFound, Lasting};
use crate::inodes::InodeNumber;

/// A cut never changes; what the kernel remembers of it goes with its node numbers.
const ALWAYS: Duration = Duration::from_secs(24 * 60 * 60);

thread_local! {
    /// Each serving thread reads into one buffer, grown to the largest read so far.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn ttl(lasting: Lasting) -> Duration {
    match lasting {
        Lasting::Always => ALWAYS,
        Lasting::No => Duration::ZERO,
    }
}

fn attributes(node: InodeNumber, stat: &Stat) -> FileAttr {
    attributes_of(node.get(), stat)
}

pub(super) fn reply_entry(reply: ReplyEntry, found: io::Result<HiddenFound>) {
    match found {
        Ok(found) => {
            let attributes = attributes(found.node, &found.stat);
            reply.entry_with_ttls(&ttl(found.attributes), &ttl(found.name), &attributes, Generation(0));
        }
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn lookup(hidden: &Hidden, parent: InodeNumber, name: &OsStr, reply: ReplyEntry) {
    match hidden.lookup(parent, name) {
        Ok(Ok(found)) => reply_entry(reply, Ok(found)),
        Ok(Err(Lasting::Always)) => reply.entry(&ALWAYS, &MISSING, Generation(0)),
        Ok(Err(Lasting::No)) => reply.error(Errno::ENOENT),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn getattr(hidden: &Hidden, node: InodeNumber, reply: ReplyAttr) {
    match hidden.stat(node) {
        Ok(found) => reply.attr(&ttl(found.attributes), &attributes(found.node, &found.stat)),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn readlink(hidden: &Hidden, node: InodeNumber, reply: ReplyData) {
    match hidden.read_link(node) {
        Ok(target) => reply.data(target.as_bytes()),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn open(hidden: &Hidden, node: InodeNumber, flags: OFlags, reply: ReplyOpen) {
    if writes(flags) || flags.contains(OFlags::TRUNC) {
        return reply.error(Errno::EROFS);
    }
    match hidden.open(node) {
        Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn read(hidden: &Hidden, handle: u64, offset: u64, size: u32, reply: ReplyData) {
    let len_bytes = usize::try_from(size).unwrap_or(usize::MAX);
    READ_BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < len_bytes {
            buffer.resize(len_bytes, 0);
        }
        let window = buffer.get_mut(..len_bytes).unwrap_or_default();
        match hidden.read(handle, offset, window) {
            Ok(filled) => reply.data(window.get(..filled).unwrap_or_default()),
            Err(error) => reply.error(errno(&error)),
        }
    });
}

pub(super) fn readdir(hidden: &Hidden, node: InodeNumber, offset: u64, mut reply: ReplyDirectory) {
    let listed = hidden.list(node, offset, |entry, _| {
        reply.add(
            INodeNo(entry.node.get()),
            entry.cookie,
            file_type(entry.kind),
            &entry.name,
        )
    });
    match listed {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn readdirplus(hidden: &Arc<Hidden>, node: InodeNumber, offset: u64, mut reply: ReplyDirectoryPlus) {
    let listed = hidden.list(node, offset, |entry, found| {
        let (attributes, name) = match &found {
            Some(found) => (attributes(found.node, &found.stat), found.name),
            // Of `.` and `..` only the kind is taken; of what cannot be read nothing is remembered,
            // so that whoever wants it asks.
            None => (
                FileAttr {
                    ino: INodeNo(entry.node.get()),
                    kind: file_type(entry.kind),
                    ..MISSING
                },
                Lasting::No,
            ),
        };
        reply.add(
            INodeNo(entry.node.get()),
            entry.cookie,
            &entry.name,
            &ttl(name),
            &attributes,
            Generation(0),
        )
    });
    match listed {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

/// Recognises names and nodes that are not part of the tree.
impl Adapter {
    /// The hidden folder, if `ino` is in it.
    pub(super) fn hidden_of(&self, ino: INodeNo) -> Option<&Arc<Hidden>> {
        if node(ino).hidden_number().is_some() {
            self.hidden.get()
        } else {
            None
        }
    }

    /// The hidden folder, if `name` in `parent` is its name.
    pub(super) fn hidden_at(&self, parent: INodeNo, name: &OsStr) -> Option<&Arc<Hidden>> {
        if node(parent) == InodeNumber::ROOT && Hidden::is_hidden_name(name) {
            self.hidden.get()
        } else {
            None
        }
    }

    /// Whether no listing shows `name` in `parent`: it is the hidden folder's, or of what is on its
    /// way from elsewhere.
    pub(super) fn is_unlisted(&self, parent: INodeNo, name: &OsStr) -> bool {
        self.hidden_at(parent, name).is_some() || (node(parent) == InodeNumber::ROOT && Hidden::is_on_its_way(name))
    }

    /// Whether a change of `name` in `parent` is none of the tree's.
    pub(super) fn is_reserved(&self, parent: INodeNo, name: &OsStr) -> bool {
        self.hidden_of(parent).is_some() || self.hidden_at(parent, name).is_some()
    }
}
