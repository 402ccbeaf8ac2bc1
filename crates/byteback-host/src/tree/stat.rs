//! Metadata of a file, and its identity.
//!
//! All queries use `statx`, because only it reports the birth time. Times are nanoseconds since
//! 1970. Those that a program can set are kept in 128 bits, because file systems exceed the range
//! of 64 bits (1677 to 2262; ext4 reaches 2446, XFS 2486). Those set by the clock are i64, clamped
//! to the nearest end.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;

use byteback_model::NodeKind;
use rustix::fs::{AtFlags, FileType, IFlags, Statx, StatxAttributes, StatxFlags, StatxTimestamp, makedev, statx};

use super::{check_component, uninterrupted};

/// The kind that the type bits of a mode or of a directory entry tell, if they tell one.
pub(super) fn kind_of_type(file_type: FileType) -> Option<NodeKind> {
    match file_type {
        FileType::RegularFile => Some(NodeKind::File),
        FileType::Directory => Some(NodeKind::Directory),
        FileType::Symlink => Some(NodeKind::Symlink),
        FileType::Fifo => Some(NodeKind::Fifo),
        FileType::Socket => Some(NodeKind::Socket),
        FileType::CharacterDevice => Some(NodeKind::CharDevice),
        FileType::BlockDevice => Some(NodeKind::BlockDevice),
        FileType::Unknown => None,
    }
}

/// The identity of a file, independent of its name. File systems reuse inode numbers once a file is
/// gone (ext4 at once), so the number alone would mistake a new file for the old one; their birth
/// times differ. File systems without birth times leave only the number, and users of this type
/// must then expect reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The device number of the file system. It can change from one mount of it to the next.
    pub dev: u64,
    /// The inode number.
    pub ino: u64,
    /// When the inode was made, in nanoseconds since 1970, where the file system keeps that.
    pub birth_ns: Option<i64>,
}

/// The flags that forbid changes, numbered as `FS_IOC_GETFLAGS` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeFlags(u32);

impl InodeFlags {
    /// Nothing is forbidden.
    pub const NONE: Self = Self(0);

    /// `chattr +i`: nothing of the file can be changed, nor can it be renamed, linked or removed;
    /// in a directory, no name.
    pub const IMMUTABLE: Self = Self(IFlags::IMMUTABLE.bits());

    /// `chattr +a`: bytes can be added at the end, in a directory names; nothing else.
    pub const APPEND_ONLY: Self = Self(IFlags::APPEND.bits());

    /// The bits of `FS_IOC_GETFLAGS`; all other flags are left out.
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        Self(bits & (Self::IMMUTABLE.0 | Self::APPEND_ONLY.0))
    }

    /// The bits, as [`Self::from_bits`] takes them.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether nothing is forbidden.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn from_statx(attributes: StatxAttributes) -> Self {
        let reported = [
            (StatxAttributes::IMMUTABLE, Self::IMMUTABLE),
            (StatxAttributes::APPEND, Self::APPEND_ONLY),
        ];
        let bits = reported
            .into_iter()
            .filter(|(reported, _)| attributes.contains(*reported));
        Self(bits.fold(0, |bits, (_, flag)| bits | flag.0))
    }
}

/// The result of `statx` for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The kind of file.
    pub kind: NodeKind,
    /// The permission bits with set-id and sticky bits, `0o7777` at most.
    pub mode: u32,
    /// The number of names of the inode.
    pub nlink: u64,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device number that a device node stands for.
    pub rdev: u64,
    /// The length in bytes.
    pub size: u64,
    /// The space taken, in units of 512 bytes whatever the file system's block size.
    pub blocks: u64,
    /// The size in bytes of a good read or write.
    pub block_size: u32,
    /// The device number of the file system.
    pub dev: u64,
    /// The inode number.
    pub ino: u64,
    /// The mount that the file was reached through, if the kernel reports it (5.8 and later). It
    /// changes at a bind mount, where `dev` does not. Since 6.8 the number is never reused until
    /// the next boot; before, the next mount may get it.
    pub mount_id: Option<u64>,
    /// When the inode was made, where the file system keeps that.
    pub btime_ns: Option<i64>,
    /// When it was last read.
    pub atime_ns: i128,
    /// When its bytes last changed.
    pub mtime_ns: i128,
    /// When its bytes or metadata last changed.
    pub ctime_ns: i64,
    /// The flags that forbid changes (`chattr +i`, `+a`), if the file system reports them; FUSE
    /// reports none.
    pub inode_flags: InodeFlags,
}

impl Stat {
    /// The identity of the file.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity {
            dev: self.dev,
            ino: self.ino,
            birth_ns: self.btime_ns,
        }
    }

    /// The time when its bytes last changed, as part of a stamp that tells states of a file apart:
    /// clamped to what 64 bits hold. Two times that far away look the same; the change time of the
    /// inode tells them apart.
    #[must_use]
    pub fn mtime_stamp_ns(&self) -> i64 {
        clamped_ns(self.mtime_ns)
    }

    fn from_statx(raw: &Statx) -> io::Result<Self> {
        let mode = u32::from(raw.stx_mode);
        let reported = StatxFlags::from_bits_retain(raw.stx_mask);
        let kind = kind_of_type(FileType::from_raw_mode(mode))
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("unknown file type: mode {mode:o}")))?;
        Ok(Self {
            kind,
            mode: mode & 0o7777,
            nlink: raw.stx_nlink.into(),
            uid: raw.stx_uid,
            gid: raw.stx_gid,
            rdev: makedev(raw.stx_rdev_major, raw.stx_rdev_minor),
            size: raw.stx_size,
            blocks: raw.stx_blocks,
            block_size: raw.stx_blksize,
            dev: makedev(raw.stx_dev_major, raw.stx_dev_minor),
            ino: raw.stx_ino,
            mount_id: reported
                .intersects(StatxFlags::MNT_ID | MNT_ID_UNIQUE)
                .then_some(raw.stx_mnt_id),
            btime_ns: reported
                .contains(StatxFlags::BTIME)
                .then(|| clamped_ns(nanoseconds(&raw.stx_btime))),
            atime_ns: nanoseconds(&raw.stx_atime),
            mtime_ns: nanoseconds(&raw.stx_mtime),
            ctime_ns: clamped_ns(nanoseconds(&raw.stx_ctime)),
            inode_flags: InodeFlags::from_statx(raw.stx_attributes),
        })
    }
}

/// The metadata of `name` in `dir`; of a symlink its own.
///
/// # Errors
/// `NotFound`, or what the system answered.
pub fn stat_at(dir: impl AsFd, name: &OsStr) -> io::Result<Stat> {
    let name = check_component(name)?;
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    Stat::from_statx(&uninterrupted(|| statx(dir.as_fd(), name, flags, wanted()))?)
}

/// The metadata of the file that `fd` names; an `O_PATH` descriptor will do.
///
/// # Errors
/// The system's error.
pub fn stat_fd(fd: impl AsFd) -> io::Result<Stat> {
    Stat::from_statx(&uninterrupted(|| {
        statx(fd.as_fd(), c"", AtFlags::EMPTY_PATH, wanted())
    })?)
}

/// `STATX_MNT_ID_UNIQUE`: a unique number in the field of `MNT_ID`. Kernels without it report the
/// ordinary one.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

fn wanted() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID | MNT_ID_UNIQUE
}

fn nanoseconds(time: &StatxTimestamp) -> i128 {
    // Before 1970 the nanoseconds still count forward.
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// The nearest time that fits into 64 bits.
#[must_use]
pub fn clamped_ns(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}
