//! The only module that sees the FUSE library: it translates requests and replies, and decides
//! nothing.
//!
//! Each request is handed to its [`Target`], the tree or the folder `.byteback`, and answered
//! through [`Owed`], which turns an error into a reply and leaves a trace of it.
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

mod answer;
mod deltas;
mod hidden;
mod inode_flags;
mod live;
mod target;
mod trace;
mod values;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use byteback_host::tree::{FallocateFlags, SetXattr};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use rustix::fs::{OFlags, Timestamps};

use self::answer::{Answer, Owed, Refusal, Reply};
use self::live::Live;
use self::target::{Control, Target, Write};
use self::trace::{Call, Trace};
use self::values::{decode_device, set_time};
use crate::credentials::Caller;
use crate::cuts::Report;
use crate::hidden::Hidden;
use crate::inodes::InodeNumber;
use crate::kernel_cache::{CacheMode, CachePolicy};
use crate::stores::LateAnswers;
use crate::stores::holes::Wanted;
use crate::tracked::Origin;
use crate::tree::Tree;
use crate::tree::attributes::SetAttributes;
use crate::tree::names::Creation;

/// The largest write and read request. Larger ones would need more pages than the kernel gives by
/// default.
const WRITE_LEN_BYTES_MAX: u32 = 1 << 20;

/// The kernel's limit of read-ahead, write-back and asynchronous direct I/O under way at once. It
/// is above [`LateAnswers::HELD_MAX`], and low enough that other requests do not wait long behind
/// them.
const BACKGROUND_REQUESTS_MAX: u16 = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Adapter {
    live: Live,
    trace: Arc<Trace>,
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

fn creation(req: &Request, mode: u32, umask: u32) -> Creation {
    Creation {
        caller: caller(req),
        umask,
        mode,
    }
}

fn open_flags(raw: i32) -> OFlags {
    OFlags::from_bits_retain(raw.cast_unsigned())
}

impl Adapter {
    /// `hidden` and `late` are there before the first request. Failures go to `report`.
    pub(crate) fn new(
        tree: Arc<Tree>,
        hidden: Arc<OnceLock<Arc<Hidden>>>,
        late: Arc<OnceLock<LateAnswers>>,
        policy: CachePolicy,
        report: Report,
    ) -> Self {
        let trace = Arc::new(Trace::new(Arc::clone(&tree), report));
        let live = Live {
            tree,
            hidden,
            late,
            policy,
        };
        Self { live, trace }
    }

    /// The hidden folder, if `ino` is in it.
    fn hidden_of(&self, ino: INodeNo) -> Option<&Arc<Hidden>> {
        node(ino).hidden_number().and_then(|_| self.live.hidden.get())
    }

    /// The hidden folder, if `name` in `parent` is in it or is its own name.
    fn hidden_at(&self, (parent, name): (INodeNo, &OsStr)) -> Option<&Arc<Hidden>> {
        if node(parent) == InodeNumber::ROOT && Hidden::is_hidden_name(name) {
            return self.live.hidden.get();
        }
        self.hidden_of(parent)
    }

    /// The target of a request about a node.
    fn target(&self, ino: INodeNo) -> &dyn Target {
        self.either(self.hidden_of(ino))
    }

    /// The target of a request about a name.
    fn target_at(&self, at: (INodeNo, &OsStr)) -> &dyn Target {
        self.either(self.hidden_at(at))
    }

    /// The target of a request about two things, of which each is in the hidden folder or not.
    fn common_target(&self, hidden: [Option<&'_ Arc<Hidden>>; 2]) -> Answer<&dyn Target> {
        match hidden {
            [None, None] => Ok(&self.live),
            [Some(_), Some(_)] => Ok(self.either(self.live.hidden.get())),
            _ => Err(Errno::EXDEV.into()),
        }
    }

    fn either<'a>(&'a self, hidden: Option<&'a Arc<Hidden>>) -> &'a dyn Target {
        match hidden {
            Some(hidden) => hidden,
            None => &self.live,
        }
    }

    fn owed<'a, R: Reply>(&'a self, operation: &'static str, ino: INodeNo, reply: R) -> Owed<'a, R> {
        self.owed_at(operation, ino, None, reply)
    }

    fn owed_at<'a, R: Reply>(
        &'a self,
        operation: &'static str,
        ino: INodeNo,
        name: Option<&'a OsStr>,
        reply: R,
    ) -> Owed<'a, R> {
        let call = Call {
            operation,
            node: node(ino),
            name,
        };
        Owed::new(reply, call, &self.trace)
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
        if self.live.policy.mode == CacheMode::Fast {
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
        if self.live.policy.exclusive {
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
        let owed = self.owed_at("look up", parent, Some(name), reply);
        owed.entry(self.target_at((parent, name)).lookup((node(parent), name)));
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.live.tree.forget(node(ino), nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let owed = self.owed("read the attributes of", ino, reply);
        owed.attributes(self.target(ino).attributes(node(ino), fh.map(|fh| fh.0)));
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
        let owed = self.owed("set the attributes of", ino, reply);
        let handle = fh.map(|fh| fh.0);
        owed.attributes(self.target(ino).set_attributes(node(ino), handle, caller(req), &new));
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let owed = self.owed("read the symlink", ino, reply);
        owed.link_target(self.target(ino).read_link(node(ino)));
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let how = creation(req, mode, umask);
        let (kind, device) = (rustix::fs::FileType::from_raw_mode(mode), decode_device(rdev));
        let owed = self.owed_at("make the node", parent, Some(name), reply);
        let target = self.target_at((parent, name));
        owed.entry(target.make_node((node(parent), name), how, kind, device));
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let how = creation(req, mode, umask);
        let owed = self.owed_at("make the directory", parent, Some(name), reply);
        let target = self.target_at((parent, name));
        target.make_directory((node(parent), name), how, owed);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let owed = self.owed_at("remove", parent, Some(name), reply);
        owed.done(self.target_at((parent, name)).unlink((node(parent), name)));
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let owed = self.owed_at("remove the directory", parent, Some(name), reply);
        let target = self.target_at((parent, name));
        owed.done(target.remove_directory((node(parent), name)));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let owed = self.owed_at("make the symlink", parent, Some(name), reply);
        let at = (node(parent), name);
        owed.entry(
            self.target_at((parent, name))
                .symlink(at, caller(req), target.as_os_str()),
        );
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
        let hidden = [self.hidden_at((parent, name)), self.hidden_at((newparent, newname))];
        let (from, to) = ((node(parent), name), (node(newparent), newname));
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let owed = self.owed_at("rename", parent, Some(name), reply);
        let target = self.common_target(hidden);
        owed.done(target.and_then(|target| target.rename(from, to, flags)));
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let hidden = [self.hidden_of(ino), self.hidden_at((newparent, newname))];
        let owed = self.owed_at("make the link", newparent, Some(newname), reply);
        let target = self.common_target(hidden);
        owed.entry(target.and_then(|target| target.link(node(ino), (node(newparent), newname))));
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let owed = self.owed("open", ino, reply);
        owed.opened(self.target(ino).open(node(ino), caller(req), open_flags(flags.0)));
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
        let how = creation(req, mode, umask);
        let owed = self.owed_at("create", parent, Some(name), reply);
        let target = self.target_at((parent, name));
        owed.created(target.create((node(parent), name), how, open_flags(flags)));
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
        let len_bytes = usize::try_from(size).unwrap_or(usize::MAX);
        let is_into_pages = is_through_page_cache(lock_owner);
        let owed = self.owed("read", ino, reply);
        self.target(ino).read(fh.0, (offset, len_bytes), is_into_pages, owed);
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
        let is_direct = !is_through_page_cache(lock_owner);
        let origin = match open_flags(flags.0) {
            _ if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) => Origin::PageCache,
            // The parts of a long direct append come in any order, each with its own place: to aim
            // each at the end would mix them up.
            flags if flags.contains(OFlags::APPEND) && !is_direct => Origin::Append,
            _ => Origin::Program,
        };
        let write = Write {
            node: node(ino),
            handle: fh.0,
            offset,
            data,
            origin,
            is_direct,
            clear_set_id: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        self.target(ino).write(&write, self.owed("write", ino, reply));
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
        self.target(ino).release(fh.0);
        reply.ok();
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let owed = self.owed("sync", ino, reply);
        owed.done(self.target(ino).sync(fh.0, datasync));
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // See the module.
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        let owed = self.owed("list", ino, reply);
        self.target(ino).list(node(ino), offset, owed);
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        let owed = self.owed("list", ino, reply);
        self.target(ino).list_plus(node(ino), offset, owed);
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let owed = self.owed("sync the directory", ino, reply);
        owed.done(self.target(ino).sync_directory(node(ino), datasync));
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        // The hidden folder has no space of its own.
        let of = match self.hidden_of(ino) {
            Some(_) => InodeNumber::ROOT,
            None => node(ino),
        };
        let space = self.live.tree.statvfs(of).map_err(Refusal::from);
        self.owed("read the free space of", ino, reply)
            .answer(space, |reply, space| {
                reply.statfs(
                    space.f_blocks,
                    space.f_bfree,
                    space.f_bavail,
                    space.f_files,
                    space.f_ffree,
                    u32::try_from(space.f_bsize).unwrap_or(u32::MAX),
                    u32::try_from(space.f_namemax).unwrap_or(u32::MAX),
                    u32::try_from(space.f_frsize).unwrap_or(u32::MAX),
                );
            });
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
        let how = match flags {
            0 => Ok(SetXattr::Any),
            libc::XATTR_CREATE => Ok(SetXattr::Create),
            libc::XATTR_REPLACE => Ok(SetXattr::Replace),
            _ => Err(Refusal::Never(Errno::EINVAL)),
        };
        let set = |how| self.target(ino).set_xattr(node(ino), caller(req), name, value, how);
        let owed = self.owed("set an extended attribute of", ino, reply);
        owed.done(how.and_then(set));
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let found = self.target(ino).get_xattr(node(ino), name);
        let value = found.and_then(|found| found.ok_or(Refusal::Never(Errno::ENODATA)));
        self.owed("read an extended attribute of", ino, reply)
            .value(size, value);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        // Their values the kernel refuses by itself; that they are there only we can hide.
        let is_hidden = |name: &OsStr| req.uid() != 0 && name.as_bytes().starts_with(b"trusted.");
        let list = self.target(ino).list_xattrs(node(ino)).map(|names| {
            let mut list = Vec::new();
            for name in names.iter().filter(|name| !is_hidden(name)) {
                list.extend_from_slice(name.as_bytes());
                list.push(0);
            }
            list
        });
        self.owed("list the extended attributes of", ino, reply)
            .value(size, list);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let owed = self.owed("remove an extended attribute of", ino, reply);
        owed.done(self.target(ino).remove_xattr(node(ino), name));
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
        let control = Control {
            node: node(ino),
            handle: (!flags.contains(IoctlFlags::FUSE_IOCTL_DIR)).then_some(fh.0),
            uid: req.uid(),
            number: cmd,
            bytes: in_data,
            answer_len_bytes: out_size,
        };
        let owed = self.owed("control", ino, reply);
        self.target(ino).control(&control, owed);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let owed = self.owed("allocate space in", ino, reply);
        owed.done(self.target(ino).allocate(fh.0, caller(req), mode, offset, length));
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
        let owed = self.owed("seek in", ino, reply);
        self.target(ino).seek(node(ino), fh.0, wanted, from, owed);
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
        let (from, to) = ((fh_in.0, offset_in), (fh_out.0, offset_out));
        let len_bytes = usize::try_from(len).unwrap_or(usize::MAX);
        let target = self.common_target([self.hidden_of(ino_in), self.hidden_of(ino_out)]);
        let copied = target.and_then(|target| target.copy_range(caller(req), from, to, len_bytes));
        self.owed("copy a range to", ino_out, reply).written(copied);
    }
}

#[cfg(test)]
mod tests;
