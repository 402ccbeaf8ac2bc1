//! Kinds, times, device numbers and attributes, in the form that the FUSE library wants them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use byteback_host::tree::Stat;
use byteback_model::NodeKind;
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use rustix::fs::{Timespec, UTIME_NOW, UTIME_OMIT, makedev};

pub(super) fn file_type(kind: NodeKind) -> FileType {
    match kind {
        NodeKind::File => FileType::RegularFile,
        NodeKind::Directory => FileType::Directory,
        NodeKind::Symlink => FileType::Symlink,
        NodeKind::Fifo => FileType::NamedPipe,
        NodeKind::Socket => FileType::Socket,
        NodeKind::CharDevice => FileType::CharDevice,
        NodeKind::BlockDevice => FileType::BlockDevice,
    }
}

/// A time in nanoseconds since 1970. File systems' seconds are 64 bits, and so are the library's.
pub(super) fn system_time(ns: i128) -> SystemTime {
    let distance = ns.unsigned_abs();
    let seconds = u64::try_from(distance / 1_000_000_000).unwrap_or(u64::MAX);
    let distance = Duration::new(seconds, (distance % 1_000_000_000) as u32);
    let time = match ns >= 0 {
        true => UNIX_EPOCH.checked_add(distance),
        false => UNIX_EPOCH.checked_sub(distance),
    };
    time.unwrap_or(UNIX_EPOCH)
}

/// The time that the program gave. The library turns `(seconds, nanoseconds)` with negative seconds
/// into "that many seconds *and* nanoseconds before 1970", although the nanoseconds count forward;
/// this is its exact inverse.
pub(super) fn timespec_of(time: SystemTime) -> Timespec {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: after.subsec_nanos().into(),
        },
        Err(error) => {
            let before = error.duration();
            Timespec {
                tv_sec: 0i64.saturating_sub_unsigned(before.as_secs()),
                tv_nsec: before.subsec_nanos().into(),
            }
        }
    }
}

pub(super) fn set_time(time: Option<TimeOrNow>) -> Timespec {
    match time {
        None => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        Some(TimeOrNow::Now) => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        },
        Some(TimeOrNow::SpecificTime(time)) => timespec_of(time),
    }
}

/// A device number as the protocol has it: the kernel's 32-bit form, major number in bits 8 to 19.
pub(super) fn encode_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

pub(super) fn decode_device(device: u32) -> u64 {
    makedev((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xf_ff00))
}

pub(super) fn attributes_of(ino: u64, stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: stat.size,
        blocks: stat.blocks,
        atime: system_time(stat.atime_ns),
        mtime: system_time(stat.mtime_ns),
        ctime: system_time(stat.ctime_ns.into()),
        crtime: UNIX_EPOCH,
        kind: file_type(stat.kind),
        // Masked to 12 bits by `Stat`.
        perm: u16::try_from(stat.mode & 0o7777).unwrap_or(0),
        nlink: u32::try_from(stat.nlink).unwrap_or(u32::MAX),
        uid: stat.uid,
        gid: stat.gid,
        rdev: encode_device(stat.rdev),
        blksize: stat.block_size,
        flags: 0,
    }
}

/// Node 0: no such name.
pub(super) const MISSING: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};
