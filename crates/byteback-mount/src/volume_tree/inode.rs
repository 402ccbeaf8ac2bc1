//! An inode of a volume as the mount uses it: the answers and error numbers of the system's own
//! file systems.

use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

use byteback_host::tree::{
    Creator, Entry, FallocateFlags, Inode, InodeFlags, LibraryInode, NewInode, SetXattr, Stat, clamped_ns,
};
use byteback_model::NodeKind;
use byteback_volume::{Allocate, Attributes, NewFile, Rename, SetAttribute, SetAttributes, VolumeError};
use rustix::fs::{FileType, RenameFlags, StatVfs, StatVfsMountFlags, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

use super::Shared;

/// Names that are asked for at once.
const LIST_COUNT: usize = 128;

/// Positions in a listing before the first name: the beginning, and behind `.`; behind `..` names
/// begin.
const BEHIND_DOT: u64 = 1;
const BEHIND_DOTS: u64 = 2;

const BLOCK_LEN_BYTES: u32 = 4096;
const NAME_LEN_BYTES_MAX: u64 = 255;

/// Attributes in this room are ACLs and the like, which the volume does not keep.
const SYSTEM_ROOM: &[u8] = b"system.";

/// Held from its making to its dropping.
#[derive(Debug)]
pub(super) struct VolumeInode {
    shared: Arc<Shared>,
    ino: u32,
    /// Each write is to be durable before it is answered.
    is_synchronous: bool,
}

impl Drop for VolumeInode {
    fn drop(&mut self) {
        // An inode that cannot be removed now is removed when the volume is opened the next time.
        let _ = self.shared.volume.release_hold(self.ino, 1);
    }
}

/// The number that the system answers for it.
pub(super) fn failed(error: VolumeError) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

fn kind_of(mode: u32) -> io::Result<NodeKind> {
    Ok(match mode & libc::S_IFMT {
        libc::S_IFREG => NodeKind::File,
        libc::S_IFDIR => NodeKind::Directory,
        libc::S_IFLNK => NodeKind::Symlink,
        libc::S_IFIFO => NodeKind::Fifo,
        libc::S_IFSOCK => NodeKind::Socket,
        libc::S_IFCHR => NodeKind::CharDevice,
        libc::S_IFBLK => NodeKind::BlockDevice,
        _ => return Err(Errno::IO.into()),
    })
}

fn nanoseconds(time: byteback_volume::format::Time) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

pub(super) fn stat_of(attributes: &Attributes) -> io::Result<Stat> {
    Ok(Stat {
        kind: kind_of(attributes.mode)?,
        mode: attributes.mode & 0o7777,
        nlink: attributes.links.into(),
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.device.into(),
        size: attributes.len_bytes,
        blocks: attributes.blocks.saturating_mul(u64::from(BLOCK_LEN_BYTES) / 512),
        block_size: BLOCK_LEN_BYTES,
        // The kernel knows of no such file system.
        dev: 0,
        ino: attributes.ino.into(),
        mount_id: None,
        btime_ns: Some(clamped_ns(nanoseconds(attributes.born))),
        atime_ns: nanoseconds(attributes.accessed),
        mtime_ns: nanoseconds(attributes.modified),
        ctime_ns: clamped_ns(nanoseconds(attributes.changed)),
        inode_flags: InodeFlags::NONE,
    })
}

impl VolumeInode {
    fn held(shared: &Arc<Shared>, ino: u32) -> Box<dyn LibraryInode> {
        shared.volume.hold(ino);
        Box::new(Self {
            shared: Arc::clone(shared),
            ino,
            is_synchronous: false,
        })
    }

    pub(super) fn hold(shared: &Arc<Shared>, ino: u32) -> Inode {
        Inode::Library(Self::held(shared, ino))
    }

    /// The same volume's, or none of its.
    fn ours<'a>(&self, other: &'a dyn LibraryInode) -> io::Result<&'a Self> {
        let other: Option<&Self> = other.as_any().downcast_ref();
        other
            .filter(|other| Arc::ptr_eq(&other.shared, &self.shared))
            .ok_or_else(|| Errno::XDEV.into())
    }

    fn attributes(&self) -> io::Result<Attributes> {
        self.shared.volume.attributes(self.ino).map_err(failed)
    }

    fn set(&self, set: &SetAttributes) -> io::Result<()> {
        self.shared
            .volume
            .set_attributes(self.ino, set)
            .map(drop)
            .map_err(failed)
    }

    fn now(&self) -> byteback_volume::format::Time {
        byteback_volume::format::Time::of_ns(self.shared.clock.now_ns())
    }

    fn time(&self, of: rustix::fs::Timespec) -> io::Result<Option<byteback_volume::format::Time>> {
        match of.tv_nsec {
            UTIME_OMIT => Ok(None),
            UTIME_NOW => Ok(Some(self.now())),
            nanoseconds => {
                let nanoseconds = u32::try_from(nanoseconds).ok().filter(|count| *count < 1_000_000_000);
                Ok(Some(byteback_volume::format::Time {
                    seconds: of.tv_sec,
                    nanoseconds: nanoseconds.ok_or(Errno::INVAL)?,
                }))
            }
        }
    }

    /// The owner, group and mode bits of a new inode in this directory.
    fn new_file(&self, type_bits: u32, mode: u32, device: u64, creator: Creator) -> io::Result<NewFile> {
        let dir = self.attributes()?;
        let gives_group = dir.mode & libc::S_ISGID != 0;
        let is_directory = type_bits == libc::S_IFDIR;
        let mut mode = match type_bits {
            libc::S_IFLNK => 0o777,
            // mkdir(2) gives no set-id bits.
            libc::S_IFDIR => mode & 0o1777 & !(creator.umask & 0o777),
            _ => mode & 0o7777 & !(creator.umask & 0o777),
        };
        if gives_group && is_directory {
            mode |= libc::S_ISGID;
        } else if !creator.keeps_set_group_id && !is_directory && mode & libc::S_IXGRP != 0 {
            mode &= !libc::S_ISGID;
        }
        Ok(NewFile {
            mode: type_bits | mode,
            uid: creator.uid,
            gid: if gives_group { dir.gid } else { creator.gid },
            device: u32::try_from(device).map_err(|_| Errno::INVAL)?,
        })
    }
}

impl LibraryInode for VolumeInode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn again(&self) -> io::Result<Box<dyn LibraryInode>> {
        let mut again = Self::held(&self.shared, self.ino);
        if self.is_synchronous {
            again.write_through();
        }
        Ok(again)
    }

    fn write_through(&mut self) {
        self.is_synchronous = true;
    }

    fn stat(&self) -> io::Result<Stat> {
        stat_of(&self.attributes()?)
    }

    fn stat_at(&self, name: &OsStr) -> io::Result<Stat> {
        let found = self.shared.volume.look_up(self.ino, bytes_of(name)?);
        stat_of(&found.map_err(failed)?)
    }

    fn look_up(&self, name: &OsStr) -> io::Result<(Box<dyn LibraryInode>, Stat)> {
        let volume = &self.shared.volume;
        loop {
            let found = volume.look_up(self.ino, bytes_of(name)?).map_err(failed)?;
            let held = Self::held(&self.shared, found.ino);
            // It may have lost the name, and its number, in between.
            let now = volume.look_up(self.ino, bytes_of(name)?).map_err(failed)?;
            if (now.ino, now.generation, now.born) == (found.ino, found.generation, found.born) {
                return Ok((held, stat_of(&now)?));
            }
        }
    }

    fn make(&self, name: &OsStr, new: NewInode<'_>, creator: Creator) -> io::Result<Box<dyn LibraryInode>> {
        let volume = &self.shared.volume;
        let bytes = bytes_of(name)?;
        let (type_bits, mode, device) = match new {
            NewInode::File(mode) => (libc::S_IFREG, mode, 0),
            NewInode::Directory(mode) => (libc::S_IFDIR, mode, 0),
            NewInode::Symlink(_) => (libc::S_IFLNK, 0o777, 0),
            NewInode::Special(kind, mode, device) => match kind {
                FileType::RegularFile => (libc::S_IFREG, mode, 0),
                FileType::Fifo => (libc::S_IFIFO, mode, 0),
                FileType::Socket => (libc::S_IFSOCK, mode, 0),
                FileType::CharacterDevice => (libc::S_IFCHR, mode, device),
                FileType::BlockDevice => (libc::S_IFBLK, mode, device),
                _ => return Err(Errno::INVAL.into()),
            },
        };
        let file = self.new_file(type_bits, mode, device, creator)?;
        let made = match new {
            NewInode::Symlink(target) => volume.make_symlink(self.ino, bytes, target.as_bytes(), &file),
            _ => volume.make(self.ino, bytes, &file),
        };
        let made = made.map_err(failed)?;
        // Its name cannot be taken away: other changes of this directory wait for us.
        Ok(Self::held(&self.shared, made.ino))
    }

    fn link(&self, name: &OsStr, inode: &dyn LibraryInode) -> io::Result<()> {
        let inode = self.ours(inode)?;
        let attributes = inode.attributes()?;
        // An inode that has lost its last name gets no other, and a directory never has a second
        // name, not even for root.
        let refused = match (attributes.mode & libc::S_IFMT, attributes.links) {
            (_, 0) => Errno::NOENT,
            (libc::S_IFDIR, _) => Errno::PERM,
            _ => {
                let linked = self.shared.volume.link(inode.ino, self.ino, bytes_of(name)?);
                return linked.map(drop).map_err(failed);
            }
        };
        // An error of the name comes first.
        Err(match self.stat_at(name) {
            Ok(_) => Errno::EXIST.into(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => refused.into(),
            Err(error) => error,
        })
    }

    fn unlink(&self, name: &OsStr, is_directory: bool) -> io::Result<()> {
        let volume = &self.shared.volume;
        let done = match is_directory {
            true => volume.remove_directory(self.ino, bytes_of(name)?),
            false => volume.unlink(self.ino, bytes_of(name)?),
        };
        done.map_err(failed)
    }

    fn rename(&self, name: &OsStr, to: &dyn LibraryInode, to_name: &OsStr, flags: RenameFlags) -> io::Result<()> {
        let to = self.ours(to)?;
        let how = if flags.is_empty() {
            Rename::Replace
        } else if flags == RenameFlags::NOREPLACE {
            Rename::NoReplace
        } else if flags == RenameFlags::EXCHANGE {
            Rename::Exchange
        } else {
            return Err(Errno::INVAL.into());
        };
        let from_bytes = bytes_of(name)?;
        let to_bytes = match bytes_of(to_name) {
            Ok(bytes) => bytes,
            // That there is nothing to be moved is said first.
            Err(error) => return Err(self.stat_at(name).map_or_else(|missing| missing, |_| error)),
        };
        let volume = &self.shared.volume;
        let renamed = volume.rename((self.ino, from_bytes), (to.ino, to_bytes), how);
        renamed.map_err(failed)
    }

    fn list(&self, cookie: u64, with_dots: bool) -> io::Result<Vec<Entry>> {
        let volume = &self.shared.volume;
        let mut entries = Vec::new();
        if with_dots && cookie < BEHIND_DOTS {
            let dots = [
                (".", self.ino, BEHIND_DOT),
                ("..", volume.parent(self.ino).map_err(failed)?, BEHIND_DOTS),
            ];
            entries.extend(
                dots.into_iter()
                    .filter(|dot| dot.2 > cookie)
                    .map(|(name, ino, cookie)| Entry {
                        name: OsString::from(name),
                        kind_hint: Some(NodeKind::Directory),
                        ino: ino.into(),
                        cookie,
                    }),
            );
        }
        let from = cookie.saturating_sub(BEHIND_DOTS);
        let listed = volume.list(self.ino, from, LIST_COUNT).map_err(failed)?;
        entries.extend(listed.into_iter().map(|entry| Entry {
            name: OsString::from_vec(entry.name),
            kind_hint: kind_of(u32::from(entry.kind) << 12).ok(),
            ino: entry.ino.into(),
            cookie: entry.next.saturating_add(BEHIND_DOTS),
        }));
        Ok(entries)
    }

    fn read_link(&self) -> io::Result<OsString> {
        let target = self.shared.volume.read_symlink(self.ino).map_err(|error| match error {
            // So says the kernel for an empty name.
            VolumeError::Invalid(_) => Errno::NOENT.into(),
            error => failed(error),
        })?;
        Ok(OsString::from_vec(target))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.shared.volume.read(self.ino, offset, buffer).map_err(failed)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        let written = self.shared.volume.write(self.ino, offset, data).map_err(failed)?;
        if self.is_synchronous && written > 0 {
            self.sync()?;
        }
        Ok(written)
    }

    fn truncate(&self, len_bytes: u64) -> io::Result<()> {
        self.set(&SetAttributes {
            len_bytes: Some(len_bytes),
            // As ftruncate(2), also where the length stays.
            modified: Some(self.now()),
            ..SetAttributes::default()
        })
    }

    fn allocate(&self, mode: FallocateFlags, offset: u64, len_bytes: u64) -> io::Result<()> {
        const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;
        let how = if mode.is_empty() {
            Allocate::Room
        } else if mode == KEEP {
            Allocate::RoomKeepingLength
        } else if mode == FallocateFlags::PUNCH_HOLE | KEEP {
            Allocate::Punch
        } else if mode == FallocateFlags::ZERO_RANGE {
            Allocate::Zero
        } else if mode == FallocateFlags::ZERO_RANGE | KEEP {
            Allocate::ZeroKeepingLength
        } else {
            return Err(Errno::OPNOTSUPP.into());
        };
        if len_bytes == 0 {
            return Err(Errno::INVAL.into());
        }
        self.shared
            .volume
            .allocate(self.ino, how, offset, len_bytes)
            .map_err(failed)
    }

    fn seek(&self, offset: u64, to_data: bool) -> io::Result<Option<u64>> {
        self.shared.volume.seek(self.ino, offset, to_data).map_err(failed)
    }

    fn sync(&self) -> io::Result<()> {
        self.shared.volume.sync_file(self.ino).map_err(failed)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.shared.volume.sync().map_err(failed)
    }

    fn space(&self) -> io::Result<StatVfs> {
        let usage = self.shared.volume.usage();
        Ok(StatVfs {
            f_bsize: BLOCK_LEN_BYTES.into(),
            f_frsize: BLOCK_LEN_BYTES.into(),
            f_blocks: usage.blocks,
            f_bfree: usage.free_blocks,
            f_bavail: usage.available_blocks,
            f_files: usage.files,
            f_ffree: usage.free_files,
            f_favail: usage.free_files,
            f_fsid: 0,
            f_flag: StatVfsMountFlags::empty(),
            f_namemax: NAME_LEN_BYTES_MAX,
        })
    }

    fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let now = self.attributes()?;
        let mut mode = None;
        if now.mode & libc::S_IFMT != libc::S_IFDIR {
            let mut doomed = libc::S_ISUID;
            if now.mode & libc::S_IXGRP != 0 {
                doomed |= libc::S_ISGID;
            }
            mode = Some(now.mode & 0o7777 & !doomed);
        }
        self.set(&SetAttributes {
            mode,
            uid,
            gid,
            ..SetAttributes::default()
        })
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        if self.attributes()?.mode & libc::S_IFMT == libc::S_IFLNK {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.set(&SetAttributes {
            mode: Some(mode),
            ..SetAttributes::default()
        })
    }

    fn set_times(&self, times: &Timestamps) -> io::Result<()> {
        let (accessed, modified) = (self.time(times.last_access)?, self.time(times.last_modification)?);
        if accessed.is_none() && modified.is_none() {
            return Ok(());
        }
        self.set(&SetAttributes {
            accessed,
            modified,
            ..SetAttributes::default()
        })
    }

    fn list_xattrs(&self) -> io::Result<Vec<OsString>> {
        let names = self.shared.volume.xattr_names(self.ino).map_err(failed)?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    fn get_xattr(&self, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
        if is_of_system(name) {
            // The kernel asks for ACLs wherever it looks at permissions, and takes any other answer
            // for an error.
            return Ok(None);
        }
        match self.shared.volume.xattr(self.ino, name.as_bytes()) {
            Ok(value) => Ok(Some(value)),
            Err(VolumeError::NoAttribute) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    fn set_xattr(&self, name: &OsStr, value: &[u8], how: SetXattr) -> io::Result<()> {
        refuse_system(name)?;
        let how = match how {
            SetXattr::Any => SetAttribute::Any,
            SetXattr::Create => SetAttribute::Create,
            SetXattr::Replace => SetAttribute::Replace,
        };
        let set = self.shared.volume.set_xattr(self.ino, name.as_bytes(), value, how);
        set.map_err(failed)
    }

    fn remove_xattr(&self, name: &OsStr) -> io::Result<()> {
        refuse_system(name)?;
        self.shared
            .volume
            .remove_xattr(self.ino, name.as_bytes())
            .map_err(failed)
    }
}

/// A name as the volume takes it: whatever is asked of one that is too long, this is the answer.
fn bytes_of(name: &OsStr) -> io::Result<&[u8]> {
    match name.len() as u64 > NAME_LEN_BYTES_MAX {
        true => Err(Errno::NAMETOOLONG.into()),
        false => Ok(name.as_bytes()),
    }
}

fn is_of_system(name: &OsStr) -> bool {
    name.as_bytes().starts_with(SYSTEM_ROOM)
}

fn refuse_system(name: &OsStr) -> io::Result<()> {
    match is_of_system(name) {
        true => Err(Errno::OPNOTSUPP.into()),
        false => Ok(()),
    }
}
