//! The only module that sees the FUSE library: it translates requests and replies, and decides
//! nothing.
//!
//! `docs/semantics.md` lists the library's limits. Two of its habits are corrected here:
//! - Times before 1970 with a fraction arrive mirrored (see `values`).
//! - `ENOSYS` from the backing file system would make the kernel never ask again; it becomes
//!   `EOPNOTSUPP`.
//!
//! `FLUSH` and `OPENDIR` are answered with `ENOSYS` on purpose: the kernel then stops asking. We
//! have nothing to flush (each write is in the backing file before it is answered; on close the
//! kernel still writes back dirty mapped pages by itself), and listings need no open directory.
//! `ACCESS` never comes with `default_permissions`, locks never come because they were not
//! negotiated: the kernel keeps them itself.

mod deltas;
mod hidden;
mod inode_flags;
mod values;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use byteback_extents::ByteRange;
use byteback_host::errno_of;
use byteback_host::tree::{FallocateFlags, SetXattr, Stat};
use byteback_model::NodeKind;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{OFlags, Timestamps};

use self::values::{MISSING, attributes_of, decode_device, file_type, set_time};
use crate::credentials::Caller;
use crate::handles::OpenFile;
use crate::hidden::Hidden;
use crate::inodes::InodeNumber;
use crate::kernel_cache::{CacheMode, CachePolicy};
use crate::stores::LateAnswers;
use crate::stores::holes::{self, Wanted};
use crate::tracked::Origin;
use crate::tree::attributes::SetAttributes;
use crate::tree::names::Creation;
use crate::tree::{Found, Tree};

/// The largest write and read request. Larger ones would need more pages than the kernel gives by
/// default.
const WRITE_LEN_BYTES_MAX: u32 = 1 << 20;

/// The kernel's limit of read-ahead, write-back and asynchronous direct I/O under way at once. It
/// is above [`LateAnswers::HELD_MAX`], and low enough that other requests do not wait long behind
/// them.
const BACKGROUND_REQUESTS_MAX: u16 = 64;

/// A program calls again for the rest. While a copy is under way there is no cut, so it must not
/// take long; and the answer has only 32 bits.
const COPY_RANGE_BYTES_MAX: u64 = 16 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) tree: Arc<Tree>,
    /// The folder `.byteback`, if this mount has one; there before the first request.
    pub(crate) hidden: Arc<OnceLock<Arc<Hidden>>>,
    /// Threads for answers that must wait for the kernel; there before the first request.
    pub(crate) late: Arc<OnceLock<LateAnswers>>,
    pub(crate) policy: CachePolicy,
}

/// The number for the kernel. An error of our own without a number is an I/O error to a program.
fn errno(error: &io::Error) -> Errno {
    match errno_of(error) {
        Some(libc::ENOSYS) => Errno::EOPNOTSUPP,
        Some(number) => Errno::from_i32(number),
        None if error.kind() == io::ErrorKind::InvalidInput => Errno::EINVAL,
        None if error.kind() == io::ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        None => Errno::EIO,
    }
}

fn caller(req: &Request) -> Caller {
    Caller {
        uid: req.uid(),
        gid: req.gid(),
        pid: req.pid(),
    }
}

/// Whether a read or a write goes through the kernel's page cache. Only direct ones name their lock
/// owner.
fn is_through_page_cache(lock_owner: Option<LockOwner>) -> bool {
    lock_owner.is_none()
}

fn node(ino: INodeNo) -> InodeNumber {
    InodeNumber::new(ino.0)
}

fn open_flags(raw: i32) -> OFlags {
    OFlags::from_bits_retain(raw.cast_unsigned())
}

impl Adapter {
    /// Attributes of a node for the kernel, and for how long it may believe them.
    fn attributes(&self, node: InodeNumber, stat: &Stat) -> (FileAttr, Duration) {
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

    fn reply_entry(&self, reply: ReplyEntry, found: io::Result<Found>) {
        match found {
            Ok(found) => {
                let (mut attributes, mut ttl) = self.attributes(found.interned.node, &found.stat);
                if found.interned.node == InodeNumber::ROOT {
                    // The library names the node by the number that programs are shown. They are to
                    // be shown another one.
                    (attributes.ino, ttl) = (INodeNo(InodeNumber::ROOT.get()), Duration::ZERO);
                }
                let generation = Generation(found.interned.generation);
                reply.entry_with_ttls(&ttl, &self.policy.ttl, &attributes, generation);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Makes the kernel ask again for the attributes of a file without blocks. It may hold some of
    /// the file from now on, and programs take a file without blocks for one hole.
    fn forget_absent_blocks(&self, file: &OpenFile) {
        if self.policy.holds_stores(file) && file.stat().is_ok_and(|stat| stat.blocks == 0) {
            self.tree.attributes_changed(file.node());
        }
    }

    fn reply_attributes(&self, reply: ReplyAttr, node: InodeNumber, found: io::Result<Stat>) {
        match found {
            Ok(stat) => {
                let (attributes, ttl) = self.attributes(node, &stat);
                reply.attr(&ttl, &attributes);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }
}

fn reply_empty(reply: ReplyEmpty, done: io::Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

fn reply_xattr(reply: ReplyXattr, size: u32, value: io::Result<Vec<u8>>) {
    match value {
        Err(error) => reply.error(errno(&error)),
        Ok(value) => match u32::try_from(value.len()) {
            Ok(len_bytes) if size == 0 => reply.size(len_bytes),
            Ok(len_bytes) if len_bytes <= size => reply.data(&value),
            _ => reply.error(Errno::ERANGE),
        },
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Not FUSE_ATOMIC_O_TRUNC, although it would save a request: `open(O_RDONLY | O_TRUNC)` of
        // a program that runs would empty it, because the kernel finds out that it is busy only
        // after we were asked to open it.
        let required = InitFlags::FUSE_DONT_MASK;
        config.add_capabilities(required).map_err(|missing| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                format!("this kernel's FUSE lacks {missing:?}; Linux 4.20 or later is needed"),
            )
        })?;
        if self.policy.mode == CacheMode::Fast {
            config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE).map_err(|_| {
                io::Error::new(
                    io::ErrorKind::Unsupported,
                    "this kernel has no write-back cache for FUSE",
                )
            })?;
        }
        let mut welcome = vec![
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_EXPORT_SUPPORT,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
        ];
        if self.policy.exclusive {
            welcome.push(InitFlags::FUSE_CACHE_SYMLINKS);
        } else {
            welcome.push(InitFlags::FUSE_AUTO_INVAL_DATA);
        }
        for flag in welcome {
            // An older kernel does without: slower, or it does the duty itself.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(WRITE_LEN_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if let Some(hidden) = self.hidden_of(parent) {
            return hidden::lookup(hidden, node(parent), name, reply);
        }
        if let Some(hidden) = self.hidden_at(parent, name) {
            return hidden::reply_entry(reply, hidden.top());
        }
        // By the number that a handle holds.
        match name.as_bytes() {
            b"." => return self.reply_entry(reply, self.tree.lookup_node(node(parent))),
            b".." => return self.reply_entry(reply, self.tree.lookup_parent(node(parent))),
            _ => {}
        }
        match self.tree.lookup(node(parent), name) {
            Ok(Some(found)) => self.reply_entry(reply, Ok(found)),
            // Node 0 lets the kernel remember that the name is missing.
            Ok(None) if self.policy.exclusive => reply.entry(&self.policy.ttl, &MISSING, Generation(0)),
            Ok(None) => reply.error(Errno::ENOENT),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.tree.forget(node(ino), nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        if let Some(hidden) = self.hidden_of(ino) {
            return hidden::getattr(hidden, node(ino), reply);
        }
        let found = self.tree.stat(node(ino), fh.map(|fh| fh.0));
        self.reply_attributes(reply, node(ino), found);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if self.hidden_of(ino).is_some() {
            return reply.error(Errno::EROFS);
        }
        let times = (atime.is_some() || mtime.is_some()).then(|| Timestamps {
            last_access: set_time(atime),
            last_modification: set_time(mtime),
        });
        let new = SetAttributes {
            mode,
            uid,
            gid,
            len_bytes: size,
            times,
        };
        let set = self
            .tree
            .set_attributes(node(ino), fh.map(|fh| fh.0), caller(req), &new);
        self.reply_attributes(reply, node(ino), set);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        if let Some(hidden) = self.hidden_of(ino) {
            return hidden::readlink(hidden, node(ino), reply);
        }
        match self.tree.read_link(node(ino)) {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        if self.is_reserved(parent, name) {
            return reply.error(Errno::EROFS);
        }
        let how = Creation {
            caller: caller(req),
            umask,
            mode,
        };
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        let made = self.tree.mknod(node(parent), name, how, kind, decode_device(rdev));
        self.reply_entry(reply, made);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        if let Some(hidden) = self.hidden_of(parent) {
            return hidden.make_directory(node(parent), name, move |made| hidden::reply_entry(reply, made));
        }
        if self.is_reserved(parent, name) {
            return reply.error(Errno::EEXIST);
        }
        let how = Creation {
            caller: caller(req),
            umask,
            mode,
        };
        self.reply_entry(reply, self.tree.mkdir(node(parent), name, how));
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if self.is_reserved(parent, name) {
            return reply.error(Errno::EROFS);
        }
        reply_empty(reply, self.tree.unlink(node(parent), name));
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if let Some(hidden) = self.hidden_of(parent) {
            return reply_empty(reply, hidden.remove_directory(node(parent), name));
        }
        if self.is_reserved(parent, name) {
            return reply.error(Errno::EROFS);
        }
        reply_empty(reply, self.tree.rmdir(node(parent), name));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        if self.is_reserved(parent, name) {
            return reply.error(Errno::EROFS);
        }
        let made = self.tree.symlink(node(parent), name, caller(req), target.as_os_str());
        self.reply_entry(reply, made);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let reserved = [self.is_reserved(parent, name), self.is_reserved(newparent, newname)];
        match reserved {
            [false, false] => {}
            [true, true] => return reply.error(Errno::EROFS),
            _ => return reply.error(Errno::EXDEV),
        }
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let done = self.tree.rename(node(parent), name, node(newparent), newname, flags);
        reply_empty(reply, done);
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        match [self.hidden_of(ino).is_some(), self.is_reserved(newparent, newname)] {
            [false, false] => {}
            [true, true] => return reply.error(Errno::EROFS),
            _ => return reply.error(Errno::EXDEV),
        }
        self.reply_entry(reply, self.tree.link(node(ino), node(newparent), newname));
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if let Some(hidden) = self.hidden_of(ino) {
            return hidden::open(hidden, node(ino), open_flags(flags.0), reply);
        }
        match self.tree.open(node(ino), caller(req), open_flags(flags.0)) {
            Ok((handle, file)) => {
                self.forget_absent_blocks(&file);
                reply.opened(FileHandle(handle), self.policy.of_open(&file));
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        if self.is_reserved(parent, name) {
            return reply.error(Errno::EROFS);
        }
        let how = Creation {
            caller: caller(req),
            umask,
            mode,
        };
        match self.tree.create(node(parent), name, how, open_flags(flags)) {
            Ok((found, handle, file)) => {
                let (attributes, ttl) = self.attributes(found.interned.node, &found.stat);
                reply.created(
                    &ttl,
                    &attributes,
                    Generation(found.interned.generation),
                    FileHandle(handle),
                    self.policy.of_open(&file),
                );
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if let Some(hidden) = self.hidden_of(ino) {
            return hidden::read(hidden, fh.0, offset, size, reply);
        }
        let is_into_pages = is_through_page_cache(lock_owner);
        if is_into_pages {
            self.tree.note_pages(fh.0);
        }
        let len_bytes = usize::try_from(size).unwrap_or(usize::MAX);
        self.tree
            .read(fh.0, (offset, len_bytes), is_into_pages, |read| match read {
                Ok(data) => reply.data(data),
                Err(error) => reply.error(errno(&error)),
            });
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let clear_set_id = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let is_direct = !is_through_page_cache(lock_owner);
        let origin = match open_flags(flags.0) {
            _ if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) => Origin::PageCache,
            // The parts of a long direct append come in any order, each with its own place: to aim
            // each at the end would mix them up.
            flags if flags.contains(OFlags::APPEND) && !is_direct => Origin::Append,
            _ => Origin::Program,
        };
        if !is_direct {
            self.tree.note_pages(fh.0);
        }
        let written = match self.tree.write(fh.0, offset, data, origin, clear_set_id) {
            Ok(written) => written,
            Err(error) => return reply.error(errno(&error)),
        };
        let answer = move || reply.written(u32::try_from(written.len_bytes).unwrap_or(u32::MAX));
        let range = ByteRange::from_offset_len(written.offset, written.len_bytes as u64);
        match (range, self.late.get()) {
            (Some(range), Some(late)) if is_direct && self.tree.may_have_pages(node(ino)) => {
                late.after_direct_write(node(ino), range, answer);
            }
            _ => answer(),
        }
        if let Some(late) = self.late.get().filter(|_| written.offset != offset) {
            late.after_stray_append(node(ino));
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        // See the module.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(hidden) = self.hidden_of(ino) {
            hidden.release(fh.0);
            return reply.ok();
        }
        self.tree.release(fh.0);
        if let Some(hidden) = self.hidden.get() {
            hidden.deltas().release(fh.0);
        }
        reply.ok();
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        if self.hidden_of(ino).is_some() {
            return reply.ok();
        }
        reply_empty(reply, self.tree.sync(fh.0, datasync));
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // See the module.
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if let Some(hidden) = self.hidden_of(ino) {
            return hidden::readdir(hidden, node(ino), offset, reply);
        }
        let listed = self.tree.list(node(ino), offset, false, |entry| {
            if self.is_unlisted(ino, entry.name) {
                // Shadowed, or not whole.
                return false;
            }
            reply.add(INodeNo(entry.ino), entry.cookie, file_type(entry.kind), entry.name)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        if let Some(hidden) = self.hidden_of(ino) {
            return hidden::readdirplus(hidden, node(ino), offset, reply);
        }
        let listed = self.tree.list(node(ino), offset, true, |entry| {
            if self.is_unlisted(ino, entry.name) {
                if let Some(found) = &entry.found {
                    self.tree.forget(found.interned.node, 1);
                }
                return false;
            }
            let ((attributes, ttl), generation) = match &entry.found {
                Some(found) => (
                    self.attributes(found.interned.node, &found.stat),
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
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        if self.hidden_of(ino).is_some() {
            return reply.ok();
        }
        reply_empty(reply, self.tree.sync_directory(node(ino), datasync));
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let ino = if self.hidden_of(ino).is_some() {
            INodeNo(InodeNumber::ROOT.get())
        } else {
            ino
        };
        match self.tree.statvfs(node(ino)) {
            Ok(space) => reply.statfs(
                space.f_blocks,
                space.f_bfree,
                space.f_bavail,
                space.f_files,
                space.f_ffree,
                u32::try_from(space.f_bsize).unwrap_or(u32::MAX),
                u32::try_from(space.f_namemax).unwrap_or(u32::MAX),
                u32::try_from(space.f_frsize).unwrap_or(u32::MAX),
            ),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if self.hidden_of(ino).is_some() {
            return reply.error(Errno::EROFS);
        }
        let how = match flags {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        reply_empty(reply, self.tree.set_xattr(node(ino), caller(req), name, value, how));
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let found = match self.hidden_of(ino) {
            Some(hidden) => hidden.get_xattr(node(ino), name),
            None => self.tree.get_xattr(node(ino), name),
        };
        match found {
            Ok(None) => reply.error(Errno::ENODATA),
            Ok(Some(value)) => reply_xattr(reply, size, Ok(value)),
            Err(error) => reply_xattr(reply, size, Err(error)),
        }
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        // Their values the kernel refuses by itself; that they are there only we can hide.
        let is_hidden = |name: &OsStr| req.uid() != 0 && name.as_bytes().starts_with(b"trusted.");
        let names = match self.hidden_of(ino) {
            Some(hidden) => hidden.list_xattrs(node(ino)),
            None => self.tree.list_xattrs(node(ino)),
        };
        let list = names.map(|names| {
            let mut list = Vec::new();
            for name in names.iter().filter(|name| !is_hidden(name)) {
                list.extend_from_slice(name.as_bytes());
                list.push(0);
            }
            list
        });
        reply_xattr(reply, size, list);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if self.hidden_of(ino).is_some() {
            return reply.error(Errno::EROFS);
        }
        reply_empty(reply, self.tree.remove_xattr(node(ino), name));
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        if self.hidden_of(ino).is_some() {
            return reply.error(Errno::ENOTTY);
        }
        let handle = (!flags.contains(IoctlFlags::FUSE_IOCTL_DIR)).then_some(fh.0);
        if let (Some(hidden), Some(handle)) = (self.hidden.get(), handle)
            && deltas::is_ours(cmd)
        {
            return deltas::ioctl(hidden, handle, req.uid(), cmd, in_data, reply);
        }
        match inode_flags::ioctl(&self.tree, (node(ino), handle), cmd, in_data) {
            Ok(mut data) => {
                // FS_IOC_GETFLAGS is declared with a long but carries an int.
                data.resize(usize::try_from(out_size).unwrap_or(0).min(64), 0);
                reply.ioctl(0, &data);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        reply_empty(reply, self.tree.allocate(fh.0, caller(req), mode, offset, length));
    }

    fn lseek(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let Ok(from) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        let wanted = match whence {
            libc::SEEK_DATA => Wanted::Data,
            libc::SEEK_HOLE => Wanted::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let answer = move |found: io::Result<u64>| match found {
            Ok(found) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
            Err(error) => reply.error(errno(&error)),
        };
        if let Some(hidden) = self.hidden_of(ino) {
            return answer(hidden.seek(fh.0, from, wanted == Wanted::Data));
        }
        let file = match self.tree.open_file(fh.0) {
            Ok(file) => file,
            Err(error) => return answer(Err(error)),
        };
        let holds = |file: &OpenFile| self.policy.holds_stores(file);
        match self.late.get() {
            Some(late) if self.tree.handles.is_open(node(ino), holds) => {
                late.seek(node(ino), file, wanted, from, answer);
            }
            _ => answer(holes::find(&**file, wanted, from, |_| ())),
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if self.hidden_of(ino_in).is_some() || self.hidden_of(ino_out).is_some() {
            // The kernel copies through the page cache then.
            return reply.error(Errno::EXDEV);
        }
        let len_bytes = usize::try_from(len.min(COPY_RANGE_BYTES_MAX)).unwrap_or(usize::MAX);
        match self
            .tree
            .copy_range(caller(req), (fh_in.0, offset_in), (fh_out.0, offset_out), len_bytes)
        {
            Ok(copied) => reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
            Err(error) => reply.error(errno(&error)),
        }
    }
}

#[cfg(test)]
mod tests;
