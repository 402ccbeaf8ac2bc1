//! A file system that does not tell some names from others, as ext4 with `casefold`, and the usual
//! ones of Windows and macOS: cases, and the two spellings of an accented letter. It keeps the
//! spelling by which a name was made. Everything else is handed on to the directory that it is
//! mounted over, as a file system in user space, because few kernels have one that folds.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};

/// Nothing is cached.
const TTL: Duration = Duration::ZERO;

/// The common form of all spellings of a name.
fn folded(name: &OsStr) -> Vec<u8> {
    match name.to_str() {
        Some(text) => text.replace("e\u{301}", "\u{e9}").to_lowercase().into_bytes(),
        None => name.as_bytes().to_vec(),
    }
}

/// A mounted folding file system, until it is dropped; then nothing may use it any more.
pub(super) struct FoldingDisk {
    _session: BackgroundSession,
    device_minor: u32,
}

impl Drop for FoldingDisk {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Processes that have it open would wait for an answer for ever when this process is
            // gone.
            let _ = fs::write(format!("/sys/fs/fuse/connections/{}/abort", self.device_minor), "1");
        }
    }
}

impl FoldingDisk {
    /// Mounts it over a directory.
    pub(super) fn over(directory: &Path) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let root = rustix::fs::open(directory, flags, Mode::empty()).unwrap();
        let folding = Folding {
            nodes: Mutex::new(HashMap::from([(1, root)])),
            files: Mutex::default(),
        };
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("folding".to_owned()),
            MountOption::DefaultPermissions,
        ];
        let session = fuser::spawn_mount(folding, directory, &config).unwrap();
        let device = fs::metadata(directory).unwrap().dev();
        Self {
            _session: session,
            device_minor: rustix::fs::minor(device),
        }
    }
}

struct Folding {
    /// Nodes that the kernel may refer to, for ever.
    nodes: Mutex<HashMap<u64, OwnedFd>>,
    files: Mutex<(u64, HashMap<u64, File>)>,
}

fn path_of(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn answered<T>(done: io::Result<T>) -> Result<T, Errno> {
    done.map_err(Errno::from)
}

impl Folding {
    fn node(&self, ino: INodeNo) -> io::Result<OwnedFd> {
        let nodes = self.nodes.lock().unwrap();
        let found = nodes.get(&ino.0).ok_or(rustix::io::Errno::NOENT)?;
        found.try_clone()
    }

    /// The existing spelling of a name, if there is one.
    fn spelled(&self, dir: &OwnedFd, name: &OsStr) -> io::Result<Option<OsString>> {
        let wanted = folded(name);
        for entry in fs::read_dir(path_of(dir))? {
            let found = entry?.file_name();
            if folded(&found) == wanted {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn existing(&self, dir: &OwnedFd, name: &OsStr) -> io::Result<OsString> {
        self.spelled(dir, name)?.ok_or(rustix::io::Errno::NOENT.into())
    }

    /// A directory without this name in any spelling.
    fn free(&self, parent: INodeNo, name: &OsStr) -> io::Result<OwnedFd> {
        let dir = self.node(parent)?;
        match self.spelled(&dir, name)? {
            Some(_) => Err(rustix::io::Errno::EXIST.into()),
            None => Ok(dir),
        }
    }

    fn attributes(&self, fd: &OwnedFd, ino: Option<INodeNo>) -> io::Result<FileAttr> {
        let found = rustix::fs::statat(fd, "", AtFlags::EMPTY_PATH)?;
        let time = |s: i64, ns: u64| match u64::try_from(s) {
            Ok(s) => UNIX_EPOCH + Duration::new(s, ns as u32),
            Err(_) => UNIX_EPOCH,
        };
        Ok(FileAttr {
            ino: ino.unwrap_or(INodeNo(found.st_ino)),
            size: found.st_size as u64,
            blocks: found.st_blocks as u64,
            atime: time(found.st_atime, found.st_atime_nsec),
            mtime: time(found.st_mtime, found.st_mtime_nsec),
            ctime: time(found.st_ctime, found.st_ctime_nsec),
            crtime: UNIX_EPOCH,
            kind: match rustix::fs::FileType::from_raw_mode(found.st_mode) {
                rustix::fs::FileType::Directory => FileType::Directory,
                rustix::fs::FileType::Symlink => FileType::Symlink,
                rustix::fs::FileType::Fifo => FileType::NamedPipe,
                rustix::fs::FileType::Socket => FileType::Socket,
                rustix::fs::FileType::CharacterDevice => FileType::CharDevice,
                rustix::fs::FileType::BlockDevice => FileType::BlockDevice,
                _ => FileType::RegularFile,
            },
            perm: (found.st_mode & 0o7777) as u16,
            nlink: found.st_nlink as u32,
            uid: found.st_uid,
            gid: found.st_gid,
            rdev: found.st_rdev as u32,
            blksize: 4096,
            flags: 0,
        })
    }

    fn found(&self, dir: &OwnedFd, spelled: &OsStr) -> io::Result<FileAttr> {
        let fd = rustix::fs::openat(dir, spelled, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
        let found = self.attributes(&fd, None)?;
        self.nodes.lock().unwrap().entry(found.ino.0).or_insert(fd);
        Ok(found)
    }

    fn lookup_at(&self, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let dir = self.node(parent)?;
        self.found(&dir, &self.existing(&dir, name)?)
    }

    fn make(
        &self,
        (parent, name): (INodeNo, &OsStr),
        req: &Request,
        make: impl FnOnce(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<FileAttr> {
        let dir = self.free(parent, name)?;
        make(&dir)?;
        let owner = (Some(Uid::from_raw(req.uid())), Some(Gid::from_raw(req.gid())));
        rustix::fs::chownat(&dir, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)?;
        self.found(&dir, name)
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, flags: AtFlags) -> io::Result<()> {
        let dir = self.node(parent)?;
        Ok(rustix::fs::unlinkat(&dir, &self.existing(&dir, name)?, flags)?)
    }

    fn rename_at(
        &self,
        (parent, name): (INodeNo, &OsStr),
        (new_parent, new_name): (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> io::Result<()> {
        let (dir, new_dir) = (self.node(parent)?, self.node(new_parent)?);
        let from = self.existing(&dir, name)?;
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        // An existing name keeps its spelling, whatever it stands for.
        let to = self.spelled(&new_dir, new_name)?;
        let is_itself = to.as_deref() == Some(&*from) && parent == new_parent;
        match is_itself && flags.is_empty() {
            true => Ok(()),
            false => Ok(rustix::fs::renameat_with(
                &dir,
                &from,
                &new_dir,
                to.as_deref().unwrap_or(new_name),
                flags,
            )?),
        }
    }

    fn opened(&self, ino: INodeNo, flags: i32) -> io::Result<FileHandle> {
        let flags = OFlags::from_bits_retain(flags as u32) - (OFlags::NOFOLLOW | OFlags::CREATE | OFlags::EXCL);
        let file = File::from(rustix::fs::open(path_of(&self.node(ino)?), flags, Mode::empty())?);
        let mut files = self.files.lock().unwrap();
        files.0 += 1;
        let handle = files.0;
        files.1.insert(handle, file);
        Ok(FileHandle(handle))
    }

    fn file(&self, handle: FileHandle) -> io::Result<File> {
        let files = self.files.lock().unwrap();
        files.1.get(&handle.0).ok_or(rustix::io::Errno::NOENT)?.try_clone()
    }
}

fn reply_entry(found: io::Result<FileAttr>, reply: ReplyEntry) {
    match answered(found) {
        Ok(found) => reply.entry(&TTL, &found, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

fn reply_empty(done: io::Result<()>, reply: ReplyEmpty) {
    match answered(done) {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let (tv_sec, tv_nsec) = match time {
        None => (0, UTIME_OMIT),
        Some(TimeOrNow::Now) => (0, UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            (since.as_secs() as i64, since.subsec_nanos().into())
        }
    };
    Timespec { tv_sec, tv_nsec }
}

impl Filesystem for Folding {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply_entry(self.lookup_at(parent, name), reply);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match answered(self.node(ino).and_then(|fd| self.attributes(&fd, Some(ino)))) {
            Ok(found) => reply.attr(&TTL, &found),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = || {
            let fd = self.node(ino)?;
            if let Some(mode) = mode {
                rustix::fs::chmodat(CWD, path_of(&fd), Mode::from_raw_mode(mode), AtFlags::empty())?;
            }
            if uid.is_some() || gid.is_some() {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                rustix::fs::chownat(&fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
            }
            if let Some(size) = size {
                File::options().write(true).open(path_of(&fd))?.set_len(size)?;
            }
            if atime.is_some() || mtime.is_some() {
                let times = Timestamps {
                    last_access: timespec(atime),
                    last_modification: timespec(mtime),
                };
                rustix::fs::utimensat(&fd, "", &times, AtFlags::EMPTY_PATH)?;
            }
            self.attributes(&fd, Some(ino))
        };
        match answered(set()) {
            Ok(found) => reply.attr(&TTL, &found),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let read = |fd: OwnedFd| Ok(rustix::fs::readlinkat(&fd, "", Vec::new())?);
        match answered(self.node(ino).and_then(read)) {
            Ok(target) => reply.data(target.as_bytes()),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        let bits = Mode::from_raw_mode(mode & 0o7777 & !umask);
        let make = |dir: &OwnedFd| Ok(rustix::fs::mknodat(dir, name, kind, bits, rdev.into())?);
        reply_entry(self.make((parent, name), req, make), reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let bits = Mode::from_raw_mode(mode & 0o7777 & !umask);
        let make = |dir: &OwnedFd| Ok(rustix::fs::mkdirat(dir, name, bits)?);
        reply_entry(self.make((parent, name), req, make), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let make = |dir: &OwnedFd| Ok(rustix::fs::symlinkat(target, dir, name)?);
        reply_entry(self.make((parent, name), req, make), reply);
    }

    fn link(&self, _req: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let link = || {
            let (fd, dir) = (self.node(ino)?, self.free(parent, name)?);
            rustix::fs::linkat(CWD, path_of(&fd), &dir, name, AtFlags::SYMLINK_FOLLOW)?;
            self.found(&dir, name)
        };
        reply_entry(link(), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.remove(parent, name, AtFlags::empty()), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.remove(parent, name, AtFlags::REMOVEDIR), reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply_empty(self.rename_at((parent, name), (new_parent, new_name), flags), reply);
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match answered(self.opened(ino, flags.0)) {
            Ok(handle) => reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut buffer = vec![0; size as usize];
        let mut len = 0;
        let read = self.file(fh).and_then(|file| {
            while len < buffer.len() {
                match file.read_at(&mut buffer[len..], offset + len as u64)? {
                    0 => break,
                    count => len += count,
                }
            }
            Ok(())
        });
        match answered(read) {
            Ok(()) => reply.data(&buffer[..len]),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match answered(self.file(fh).and_then(|file| file.write_all_at(data, offset))) {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.files.lock().unwrap().1.remove(&fh.0);
        reply.ok();
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply_empty(self.file(fh).and_then(|file| file.sync_all()), reply);
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let list = || {
            let mut entries = Vec::new();
            for entry in fs::read_dir(path_of(&self.node(ino)?))? {
                let entry = entry?;
                let kind = FileType::from_std(entry.file_type()?).unwrap_or(FileType::RegularFile);
                entries.push((entry.file_name(), INodeNo(entry.metadata()?.ino()), kind));
            }
            // The order that a listing in several pieces relies on.
            entries.sort_by(|one, other| one.0.cmp(&other.0));
            Ok(entries)
        };
        match answered(list()) {
            Ok(entries) => {
                for (at, (name, ino, kind)) in entries.into_iter().enumerate().skip(offset as usize) {
                    if reply.add(ino, at as u64 + 1, kind, &name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match answered(self.node(ino).and_then(|fd| Ok(rustix::fs::fstatvfs(fd.as_fd())?))) {
            Ok(found) => reply.statfs(
                found.f_blocks,
                found.f_bfree,
                found.f_bavail,
                found.f_files,
                found.f_ffree,
                found.f_bsize as u32,
                255,
                found.f_frsize as u32,
            ),
            Err(errno) => reply.error(errno),
        }
    }
}
