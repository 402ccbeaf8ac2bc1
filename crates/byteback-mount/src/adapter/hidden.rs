//! Requests about the folder `.byteback`, translated. Its name in the root of the tree belongs to
//! it as well.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    Errno, FileAttr, FopenFlags, Generation, INodeNo, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEntry,
    ReplyLseek,
};
use rustix::fs::OFlags;

use super::answer::{Answer, Attributes, Entry, Opened, Owed, Refusal};
use super::target::{At, Target};
use super::values::{MISSING, attributes_of, file_type};
use crate::credentials::Caller;
use crate::handles::writes;
use crate::hidden::{Hidden, HiddenFound, Lasting};
use crate::inodes::InodeNumber;
use crate::stores::holes::Wanted;
use crate::tree::names::Creation;

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

fn attributes(found: &HiddenFound) -> Attributes {
    (attributes_of(found.node.get(), &found.stat), ttl(found.attributes))
}

fn entry(found: &HiddenFound) -> Entry {
    let (attributes, attributes_ttl) = attributes(found);
    Entry {
        attributes,
        generation: 0,
        attributes_ttl,
        name_ttl: ttl(found.name),
    }
}

/// A refusal to change something is an everyday answer here, while below the tree it is a fault.
fn answer<T>(done: io::Result<T>) -> Answer<T> {
    done.map_err(|error| match error.raw_os_error() {
        Some(libc::EROFS) => Errno::EROFS.into(),
        _ => Refusal::Failed(error),
    })
}

impl Target for Arc<Hidden> {
    fn lookup(&self, (parent, name): At<'_>) -> Answer<Entry> {
        if parent == InodeNumber::ROOT {
            return Ok(entry(&self.top()?));
        }
        match Hidden::lookup(self, parent, name)? {
            Ok(found) => Ok(entry(&found)),
            Err(Lasting::Always) => Ok(Entry {
                attributes: MISSING,
                generation: 0,
                attributes_ttl: ALWAYS,
                name_ttl: ALWAYS,
            }),
            Err(Lasting::No) => Err(Errno::ENOENT.into()),
        }
    }

    fn attributes(&self, node: InodeNumber, _handle: Option<u64>) -> Answer<Attributes> {
        Ok(attributes(&self.stat(node)?))
    }

    fn read_link(&self, node: InodeNumber) -> Answer<OsString> {
        Ok(Hidden::read_link(self, node)?)
    }

    fn make_directory(&self, (parent, name): At<'_>, _how: Creation, owed: Owed<'_, ReplyEntry>) {
        if parent == InodeNumber::ROOT {
            return owed.refuse(&Errno::EEXIST.into());
        }
        let owed = owed.late();
        Hidden::make_directory(self, parent, name, move |made| {
            owed.entry(answer(made.map(|made| entry(&made))));
        });
    }

    fn remove_directory(&self, (parent, name): At<'_>) -> Answer<()> {
        if parent == InodeNumber::ROOT {
            return Err(Errno::EROFS.into());
        }
        answer(Hidden::remove_directory(self, parent, name))
    }

    fn open(&self, node: InodeNumber, _caller: Caller, flags: OFlags) -> Answer<Opened> {
        if writes(flags) || flags.contains(OFlags::TRUNC) {
            return Err(Errno::EROFS.into());
        }
        Ok((Hidden::open(self, node)?, FopenFlags::FOPEN_KEEP_CACHE))
    }

    fn read(&self, handle: u64, (offset, len_bytes): (u64, usize), _into_pages: bool, owed: Owed<'_, ReplyData>) {
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < len_bytes {
                buffer.resize(len_bytes, 0);
            }
            let window = buffer.get_mut(..len_bytes).unwrap_or_default();
            let read = Hidden::read(self, handle, offset, window);
            owed.data(read.map(|filled| window.get(..filled).unwrap_or_default()));
        });
    }

    fn release(&self, handle: u64) {
        Hidden::release(self, handle);
    }

    fn list(&self, node: InodeNumber, cookie: u64, mut owed: Owed<'_, ReplyDirectory>) {
        let reply = owed.reply();
        let listed = Hidden::list(self, node, cookie, |entry, _| {
            reply.add(
                INodeNo(entry.node.get()),
                entry.cookie,
                file_type(entry.kind),
                &entry.name,
            )
        });
        owed.answer(listed.map_err(Refusal::from), |reply, ()| reply.ok());
    }

    fn list_plus(&self, node: InodeNumber, cookie: u64, mut owed: Owed<'_, ReplyDirectoryPlus>) {
        let reply = owed.reply();
        let listed = Hidden::list(self, node, cookie, |entry, found| {
            let (attributes, name) = match &found {
                Some(found) => (attributes_of(found.node.get(), &found.stat), found.name),
                // Of `.` and `..` only the kind is taken; of what cannot be read nothing is
                // remembered, so that whoever wants it asks.
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
        owed.answer(listed.map_err(Refusal::from), |reply, ()| reply.ok());
    }

    fn get_xattr(&self, node: InodeNumber, name: &OsStr) -> Answer<Option<Vec<u8>>> {
        Ok(Hidden::get_xattr(self, node, name)?)
    }

    fn list_xattrs(&self, node: InodeNumber) -> Answer<Vec<OsString>> {
        Ok(Hidden::list_xattrs(self, node)?)
    }

    fn seek(&self, _node: InodeNumber, handle: u64, wanted: Wanted, from: u64, owed: Owed<'_, ReplyLseek>) {
        owed.found(Hidden::seek(self, handle, from, wanted == Wanted::Data));
    }
}
