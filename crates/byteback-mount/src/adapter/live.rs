//! Requests about the tree itself, translated.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use byteback_extents::ByteRange;
use byteback_host::tree::{FallocateFlags, SetXattr, Stat};
use byteback_model::NodeKind;
use fuser::{
    Errno, FileAttr, Generation, INodeNo, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyWrite,
};
use rustix::fs::{FileType, OFlags, RenameFlags};

use super::answer::{Answer, Attributes, Entry, Opened, Owed, Refusal};
use super::target::{At, Control, Target, Write};
use super::values::{MISSING, attributes_of, file_type};
use super::{deltas, inode_flags};
use crate::credentials::Caller;
use crate::handles::OpenFile;
use crate::hidden::Hidden;
use crate::inodes::InodeNumber;
use crate::kernel_cache::CachePolicy;
use crate::stores::LateAnswers;
use crate::stores::holes::{self, Wanted};
use crate::tree::attributes::SetAttributes;
use crate::tree::names::Creation;
use crate::tree::{Found, Tree};

/// A program calls again for the rest. While a copy is under way there is no cut, so it must not
/// take long; and the answer has only 32 bits.
const COPY_RANGE_LEN_BYTES_MAX: usize = 16 << 20;

/// The tree, as the kernel sees it.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) tree: Arc<Tree>,
    /// The folder `.byteback`, if this mount has one; there before the first request.
    pub(super) hidden: Arc<OnceLock<Arc<Hidden>>>,
    /// Threads for answers that must wait for the kernel; there before the first request.
    pub(super) late: Arc<OnceLock<LateAnswers>>,
    pub(super) policy: CachePolicy,
}

impl Live {
    /// Attributes of a node for the kernel, and for how long it may believe them.
    fn attributes_of(&self, node: InodeNumber, stat: &Stat) -> Attributes {
        let mut attributes = attributes_of(self.tree.visible_ino(node, stat), stat);
        let ttl = match self.may_hold_stores(node, stat) {
            true => self.policy.of_held(&mut attributes),
            false => self.policy.ttl,
        };
        if let Some(len_bytes) = self.tree.len_before(stat) {
            attributes.size = len_bytes;
            return (attributes, Duration::ZERO);
        }
        (attributes, ttl)
    }

    fn may_hold_stores(&self, node: InodeNumber, stat: &Stat) -> bool {
        let holds = |file: &OpenFile| self.policy.holds_stores(file);
        stat.kind == NodeKind::File && self.tree.handles.is_open(node, holds)
    }

    fn entry(&self, found: &Found) -> Entry {
        let (mut attributes, mut attributes_ttl) = self.attributes_of(found.interned.node, &found.stat);
        if found.interned.node == InodeNumber::ROOT {
            // The library names the node by the number that programs are shown. They are to be
            // shown another one.
            (attributes.ino, attributes_ttl) = (INodeNo(InodeNumber::ROOT.get()), Duration::ZERO);
        }
        Entry {
            attributes,
            generation: found.interned.generation,
            attributes_ttl,
            name_ttl: self.policy.ttl,
        }
    }

    fn found(&self, found: io::Result<Found>) -> Answer<Entry> {
        Ok(self.entry(&found?))
    }

    /// Makes the kernel ask again for the attributes of a file without blocks. It may hold some of
    /// the file from now on, and programs take a file without blocks for one hole.
    fn forget_absent_blocks(&self, file: &OpenFile) {
        if self.policy.holds_stores(file) && file.stat().is_ok_and(|stat| stat.blocks == 0) {
            self.tree.attributes_changed(file.node());
        }
    }

    /// Whether no listing shows `name` in `parent`: it is the hidden folder's, or of what is on its
    /// way from elsewhere.
    fn is_unlisted(&self, parent: InodeNumber, name: &OsStr) -> bool {
        let is_shadowed = Hidden::is_hidden_name(name) && self.hidden.get().is_some();
        parent == InodeNumber::ROOT && (is_shadowed || Hidden::is_on_its_way(name))
    }
}

impl Target for Live {
    fn lookup(&self, (parent, name): At<'_>) -> Answer<Entry> {
        // By the number that a handle holds.
        match name.as_bytes() {
            b"." => return self.found(self.tree.lookup_node(parent)),
            b".." => return self.found(self.tree.lookup_parent(parent)),
            _ => {}
        }
        match self.tree.lookup(parent, name)? {
            Some(found) => Ok(self.entry(&found)),
            // Node 0 lets the kernel remember that the name is missing.
            None if self.policy.exclusive => Ok(Entry {
                attributes: MISSING,
                generation: 0,
                attributes_ttl: self.policy.ttl,
                name_ttl: self.policy.ttl,
            }),
            None => Err(Errno::ENOENT.into()),
        }
    }

    fn attributes(&self, node: InodeNumber, handle: Option<u64>) -> Answer<Attributes> {
        Ok(self.attributes_of(node, &self.tree.stat(node, handle)?))
    }

    fn set_attributes(
        &self,
        node: InodeNumber,
        handle: Option<u64>,
        caller: Caller,
        new: &SetAttributes,
    ) -> Answer<Attributes> {
        let stat = self.tree.set_attributes(node, handle, caller, new)?;
        Ok(self.attributes_of(node, &stat))
    }

    fn read_link(&self, node: InodeNumber) -> Answer<OsString> {
        Ok(self.tree.read_link(node)?)
    }

    fn make_node(&self, (parent, name): At<'_>, how: Creation, kind: FileType, device: u64) -> Answer<Entry> {
        self.found(self.tree.mknod(parent, name, how, kind, device))
    }

    fn make_directory(&self, (parent, name): At<'_>, how: Creation, owed: Owed<'_, ReplyEntry>) {
        owed.entry(self.found(self.tree.mkdir(parent, name, how)));
    }

    fn unlink(&self, (parent, name): At<'_>) -> Answer<()> {
        Ok(self.tree.unlink(parent, name)?)
    }

    fn remove_directory(&self, (parent, name): At<'_>) -> Answer<()> {
        Ok(self.tree.rmdir(parent, name)?)
    }

    fn symlink(&self, (parent, name): At<'_>, caller: Caller, target: &OsStr) -> Answer<Entry> {
        self.found(self.tree.symlink(parent, name, caller, target))
    }

    fn rename(&self, from: At<'_>, to: At<'_>, flags: RenameFlags) -> Answer<()> {
        Ok(self.tree.rename(from.0, from.1, to.0, to.1, flags)?)
    }

    fn link(&self, node: InodeNumber, (parent, name): At<'_>) -> Answer<Entry> {
        self.found(self.tree.link(node, parent, name))
    }

    fn open(&self, node: InodeNumber, caller: Caller, flags: OFlags) -> Answer<Opened> {
        let (handle, file) = self.tree.open(node, caller, flags)?;
        self.forget_absent_blocks(&file);
        Ok((handle, self.policy.of_open(&file)))
    }

    fn create(&self, (parent, name): At<'_>, how: Creation, flags: OFlags) -> Answer<(Entry, Opened)> {
        let (found, handle, file) = self.tree.create(parent, name, how, flags)?;
        Ok((self.entry(&found), (handle, self.policy.of_open(&file))))
    }

    fn read(&self, handle: u64, range: (u64, usize), is_into_pages: bool, owed: Owed<'_, ReplyData>) {
        if is_into_pages {
            self.tree.note_pages(handle);
        }
        self.tree.read(handle, range, is_into_pages, |read| owed.data(read));
    }

    fn write(&self, write: &Write<'_>, owed: Owed<'_, ReplyWrite>) {
        let Write { node, offset, .. } = *write;
        if !write.is_direct {
            self.tree.note_pages(write.handle);
        }
        let written = match self
            .tree
            .write(write.handle, offset, write.data, write.origin, write.clear_set_id)
        {
            Ok(written) => written,
            Err(error) => return owed.refuse(&Refusal::Failed(error)),
        };
        let len_bytes = written.len_bytes;
        let range = ByteRange::from_offset_len(written.offset, len_bytes as u64);
        match (range, self.late.get()) {
            (Some(range), Some(late)) if write.is_direct && self.tree.may_have_pages(node) => {
                let owed = owed.late();
                late.after_direct_write(node, range, move || owed.written(Ok(len_bytes)));
            }
            _ => owed.written(Ok(len_bytes)),
        }
        if let Some(late) = self.late.get().filter(|_| written.offset != offset) {
            late.after_stray_append(node);
        }
    }

    fn release(&self, handle: u64) {
        self.tree.release(handle);
        if let Some(hidden) = self.hidden.get() {
            hidden.deltas().release(handle);
        }
    }

    fn sync(&self, handle: u64, datasync: bool) -> Answer<()> {
        Ok(self.tree.sync(handle, datasync)?)
    }

    fn list(&self, node: InodeNumber, cookie: u64, mut owed: Owed<'_, ReplyDirectory>) {
        let reply = owed.reply();
        let listed = self.tree.list(node, cookie, false, |entry| {
            if self.is_unlisted(node, entry.name) {
                // Shadowed, or not whole.
                return false;
            }
            reply.add(INodeNo(entry.ino), entry.cookie, file_type(entry.kind), entry.name)
        });
        owed.answer(listed.map_err(Refusal::from), |reply, ()| reply.ok());
    }

    fn list_plus(&self, node: InodeNumber, cookie: u64, mut owed: Owed<'_, ReplyDirectoryPlus>) {
        let reply = owed.reply();
        let listed = self.tree.list(node, cookie, true, |entry| {
            if self.is_unlisted(node, entry.name) {
                if let Some(found) = &entry.found {
                    self.tree.forget(found.interned.node, 1);
                }
                return false;
            }
            let ((attributes, ttl), generation) = match &entry.found {
                Some(found) => (
                    self.attributes_of(found.interned.node, &found.stat),
                    found.interned.generation,
                ),
                // The kernel takes no attributes of `.` and `..`, only their kind.
                None => {
                    let attributes = FileAttr {
                        ino: INodeNo(entry.ino),
                        kind: file_type(entry.kind),
                        ..MISSING
                    };
                    ((attributes, self.policy.ttl), 0)
                }
            };
            reply.add(
                INodeNo(entry.ino),
                entry.cookie,
                entry.name,
                &ttl,
                &attributes,
                Generation(generation),
            )
        });
        owed.answer(listed.map_err(Refusal::from), |reply, ()| reply.ok());
    }

    fn sync_directory(&self, node: InodeNumber, datasync: bool) -> Answer<()> {
        Ok(self.tree.sync_directory(node, datasync)?)
    }

    fn set_xattr(&self, node: InodeNumber, caller: Caller, name: &OsStr, value: &[u8], how: SetXattr) -> Answer<()> {
        Ok(self.tree.set_xattr(node, caller, name, value, how)?)
    }

    fn get_xattr(&self, node: InodeNumber, name: &OsStr) -> Answer<Option<Vec<u8>>> {
        Ok(self.tree.get_xattr(node, name)?)
    }

    fn list_xattrs(&self, node: InodeNumber) -> Answer<Vec<OsString>> {
        Ok(self.tree.list_xattrs(node)?)
    }

    fn remove_xattr(&self, node: InodeNumber, name: &OsStr) -> Answer<()> {
        Ok(self.tree.remove_xattr(node, name)?)
    }

    fn control(&self, control: &Control<'_>, owed: Owed<'_, ReplyIoctl>) {
        if let (Some(hidden), Some(handle)) = (self.hidden.get(), control.handle)
            && deltas::is_ours(control.number)
        {
            return deltas::ioctl(hidden, handle, control, owed);
        }
        let by = (control.node, control.handle);
        let answered = inode_flags::ioctl(&self.tree, by, control.number, control.bytes);
        let len_bytes = usize::try_from(control.answer_len_bytes).unwrap_or(0).min(64);
        owed.bytes(answered.map_err(Refusal::from).map(|mut bytes| {
            // FS_IOC_GETFLAGS is declared with a long but carries an int.
            bytes.resize(len_bytes, 0);
            bytes
        }));
    }

    fn allocate(&self, handle: u64, caller: Caller, mode: FallocateFlags, offset: u64, len_bytes: u64) -> Answer<()> {
        Ok(self.tree.allocate(handle, caller, mode, offset, len_bytes)?)
    }

    fn seek(&self, node: InodeNumber, handle: u64, wanted: Wanted, from: u64, owed: Owed<'_, ReplyLseek>) {
        let file = match self.tree.open_file(handle) {
            Ok(file) => file,
            Err(error) => return owed.found(Err(error)),
        };
        let holds = |file: &OpenFile| self.policy.holds_stores(file);
        match self.late.get() {
            Some(late) if self.tree.handles.is_open(node, holds) => {
                let owed = owed.late();
                late.seek(node, file, wanted, from, move |found| owed.found(found));
            }
            _ => owed.found(holes::find(&**file, wanted, from, |_| ())),
        }
    }

    fn copy_range(&self, caller: Caller, from: (u64, u64), to: (u64, u64), len_bytes: usize) -> Answer<usize> {
        let len_bytes = len_bytes.min(COPY_RANGE_LEN_BYTES_MAX);
        Ok(self.tree.copy_range(caller, from, to, len_bytes)?)
    }
}
