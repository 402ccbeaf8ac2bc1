//! Random operations of every kind on a directory, and looking at the result: shared by the
//! harnesses that compare a mount with a plain directory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use byteback_host::random::SplitMix64;
use byteback_mount::CacheMode;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// The random choices of a run, drawn from its seed.
pub(crate) struct Random(SplitMix64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()].clone()
    }
}

pub(crate) const SLOTS: usize = 6;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Open {
        slot: usize,
        path: String,
        flags: OFlags,
        mode: u32,
    },
    Close {
        slot: usize,
    },
    Write {
        slot: usize,
        at: u64,
        byte: u8,
        len: usize,
    },
    Append {
        slot: usize,
        byte: u8,
        len: usize,
    },
    Read {
        slot: usize,
        at: u64,
        len: usize,
    },
    SetLen {
        slot: usize,
        len: u64,
    },
    Allocate {
        slot: usize,
        mode: FallocateFlags,
        at: u64,
        len: u64,
    },
    Copy {
        from: usize,
        to: usize,
        read_at: u64,
        write_at: u64,
        len: usize,
    },
    Sync {
        slot: usize,
    },
    SlotMode {
        slot: usize,
        mode: u32,
    },
    Store {
        path: String,
        at: u64,
        byte: u8,
        len: usize,
        sync: bool,
    },
    Truncate {
        path: String,
        len: u64,
    },
    Mkdir {
        path: String,
        mode: u32,
    },
    Rmdir {
        path: String,
    },
    Unlink {
        path: String,
    },
    Rename {
        from: String,
        to: String,
        flags: RenameFlags,
    },
    Link {
        from: String,
        to: String,
    },
    Symlink {
        target: String,
        path: String,
    },
    Fifo {
        path: String,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Chown {
        path: String,
        uid: u32,
        gid: u32,
    },
    Times {
        path: String,
        at: i64,
    },
    SetXattr {
        path: String,
        name: String,
        len: usize,
    },
    GetXattr {
        path: String,
        name: String,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    ReadLink {
        path: String,
    },
    List {
        path: String,
    },
    Umask {
        mask: u32,
    },
}

pub(crate) fn generate(random: &mut Random) -> Op {
    let path = |random: &mut Random| {
        let depth = 1 + random.below(3);
        let parts: Vec<&str> = (0..depth).map(|_| random.pick(&["a", "b", "c", "d"])).collect();
        parts.join("/")
    };
    let slot = |random: &mut Random| usize::try_from(random.below(SLOTS as u64)).unwrap();
    let at = |random: &mut Random| match random.below(4) {
        0 => random.below(200),
        1 => random.below(20) * 4096,
        2 => (random.below(20) * 4096).saturating_sub(random.below(9)),
        _ => random.below(200_000),
    };
    let len = |random: &mut Random| {
        usize::try_from(match random.below(4) {
            0 => 1 + random.below(20),
            1 => 4096,
            2 => random.below(10_000),
            _ => random.below(150_000),
        })
        .unwrap()
    };
    let byte = |random: &mut Random| u8::try_from(1 + random.below(255)).unwrap();
    let mode = |random: &mut Random| random.pick(&[0o644, 0o600, 0o4755, 0o2770, 0o777, 0o200, 0o1777]);
    let xattr = |random: &mut Random| random.pick(&["user.a", "user.b", "trusted.t"]).to_owned();
    match random.below(34) {
        0..=4 => Op::Open {
            slot: slot(random),
            path: path(random),
            flags: random.pick(&[
                OFlags::RDONLY,
                OFlags::WRONLY,
                OFlags::RDWR,
                OFlags::RDWR | OFlags::APPEND,
            ]) | random.pick(&[
                OFlags::CREATE,
                OFlags::CREATE,
                OFlags::empty(),
                OFlags::CREATE | OFlags::EXCL,
                OFlags::TRUNC,
                OFlags::CREATE | OFlags::TRUNC,
                OFlags::NOFOLLOW,
                OFlags::DIRECTORY,
            ]),
            mode: mode(random),
        },
        5 => Op::Close { slot: slot(random) },
        6..=9 => Op::Write {
            slot: slot(random),
            at: at(random),
            byte: byte(random),
            len: len(random),
        },
        10 => Op::Append {
            slot: slot(random),
            byte: byte(random),
            len: len(random),
        },
        11 => Op::Read {
            slot: slot(random),
            at: at(random),
            len: len(random),
        },
        12 => Op::SetLen {
            slot: slot(random),
            len: at(random),
        },
        13 => Op::Allocate {
            slot: slot(random),
            mode: random.pick(&[
                FallocateFlags::empty(),
                FallocateFlags::KEEP_SIZE,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                FallocateFlags::ZERO_RANGE,
                FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            ]),
            at: at(random),
            len: len(random) as u64,
        },
        14 => Op::Copy {
            from: slot(random),
            to: slot(random),
            read_at: at(random),
            write_at: at(random),
            len: len(random),
        },
        15 => Op::Sync { slot: slot(random) },
        16 => Op::SlotMode {
            slot: slot(random),
            mode: mode(random),
        },
        17 | 18 => Op::Store {
            path: path(random),
            at: at(random),
            byte: byte(random),
            len: len(random),
            sync: random.below(2) == 0,
        },
        19 => Op::Truncate {
            path: path(random),
            len: at(random),
        },
        20 => Op::Mkdir {
            path: path(random),
            mode: mode(random) | 0o700,
        },
        21 => Op::Rmdir { path: path(random) },
        22 => Op::Unlink { path: path(random) },
        23 | 24 => Op::Rename {
            from: path(random),
            to: path(random),
            flags: random.pick(&[
                RenameFlags::empty(),
                RenameFlags::empty(),
                RenameFlags::EXCHANGE,
                RenameFlags::NOREPLACE,
            ]),
        },
        25 => Op::Link {
            from: path(random),
            to: path(random),
        },
        26 => Op::Symlink {
            target: path(random),
            path: path(random),
        },
        27 => Op::Fifo { path: path(random) },
        28 => match random.below(2) {
            0 => Op::Chmod {
                path: path(random),
                mode: mode(random),
            },
            _ => Op::Chown {
                path: path(random),
                uid: u32::try_from(random.below(3)).unwrap(),
                gid: u32::try_from(random.below(3)).unwrap(),
            },
        },
        29 => Op::Times {
            path: path(random),
            at: random.pick(&[-5, 0, 77, 1_700_000_000, 4_200_000_000]),
        },
        30 => Op::SetXattr {
            path: path(random),
            name: xattr(random),
            len: random.pick(&[0, 1, 100, 2000]),
        },
        31 => match random.below(2) {
            0 => Op::GetXattr {
                path: path(random),
                name: xattr(random),
            },
            _ => Op::RemoveXattr {
                path: path(random),
                name: xattr(random),
            },
        },
        32 => match random.below(2) {
            0 => Op::ReadLink { path: path(random) },
            _ => Op::Umask {
                mask: random.pick(&[0, 0o022, 0o077]),
            },
        },
        _ => Op::List { path: path(random) },
    }
}

/// A side of the comparison: a directory and what is open in it.
pub(crate) struct Side {
    root: PathBuf,
    pub(crate) open: [Option<OwnedFd>; SLOTS],
}

pub(crate) type Outcome = Result<Vec<u8>, Errno>;

impl Side {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self {
            root,
            open: [const { None }; SLOTS],
        }
    }

    pub(crate) fn close_all(&mut self) {
        self.open = [const { None }; SLOTS];
    }

    pub(crate) fn apply(&mut self, op: &Op) -> Outcome {
        let at = |path: &str| self.root.join(path);
        let nothing = |()| Vec::new();
        let fd = |slot: usize| self.open[slot].as_ref().ok_or(Errno::BADF);
        match op {
            Op::Open {
                slot,
                path,
                flags,
                mode,
            } => {
                let opened = rustix::fs::open(
                    at(path),
                    *flags | OFlags::NONBLOCK | OFlags::CLOEXEC,
                    Mode::from_raw_mode(*mode),
                )?;
                self.open[*slot] = Some(opened);
                Ok(Vec::new())
            }
            Op::Close { slot } => {
                self.open[*slot] = None;
                Ok(Vec::new())
            }
            Op::Write { slot, at, byte, len } => {
                rustix::io::pwrite(fd(*slot)?, &vec![*byte; *len], *at).map(|count| count.to_le_bytes().to_vec())
            }
            Op::Append { slot, byte, len } => {
                rustix::fs::seek(fd(*slot)?, rustix::fs::SeekFrom::End(0))?;
                rustix::io::write(fd(*slot)?, &vec![*byte; *len]).map(|count| count.to_le_bytes().to_vec())
            }
            Op::Read { slot, at, len } => {
                let mut buffer = vec![0; *len];
                let count = rustix::io::pread(fd(*slot)?, &mut buffer, *at)?;
                buffer.truncate(count);
                Ok(buffer)
            }
            Op::SetLen { slot, len } => rustix::fs::ftruncate(fd(*slot)?, *len).map(nothing),
            Op::Allocate { slot, mode, at, len } => rustix::fs::fallocate(fd(*slot)?, *mode, *at, *len).map(nothing),
            Op::Copy {
                from,
                to,
                read_at,
                write_at,
                len,
            } => {
                let (mut read_at, mut write_at) = (*read_at, *write_at);
                rustix::fs::copy_file_range(fd(*from)?, Some(&mut read_at), fd(*to)?, Some(&mut write_at), *len)
                    .map(|count| count.to_le_bytes().to_vec())
            }
            Op::Sync { slot } => rustix::fs::fsync(fd(*slot)?).map(nothing),
            Op::SlotMode { slot, mode } => rustix::fs::fchmod(fd(*slot)?, Mode::from_raw_mode(*mode)).map(nothing),
            Op::Store {
                path,
                at: offset,
                byte,
                len,
                sync,
            } => store(&at(path), *offset, *byte, *len, *sync),
            Op::Truncate { path, len } => {
                let path = std::ffi::CString::new(at(path).as_os_str().as_bytes()).unwrap();
                // SAFETY: a C string that outlives the call.
                match unsafe { libc::truncate(path.as_ptr(), i64::try_from(*len).unwrap()) } {
                    0 => Ok(Vec::new()),
                    _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
                }
            }
            Op::Mkdir { path, mode } => rustix::fs::mkdir(at(path), Mode::from_raw_mode(*mode)).map(nothing),
            Op::Rmdir { path } => rustix::fs::rmdir(at(path)).map(nothing),
            Op::Unlink { path } => rustix::fs::unlink(at(path)).map(nothing),
            Op::Rename { from, to, flags } => {
                rustix::fs::renameat_with(CWD, at(from), CWD, at(to), *flags).map(nothing)
            }
            Op::Link { from, to } => rustix::fs::link(at(from), at(to)).map(nothing),
            Op::Symlink { target, path } => rustix::fs::symlink(target.as_str(), at(path)).map(nothing),
            Op::Fifo { path } => {
                rustix::fs::mknodat(CWD, at(path), FileType::Fifo, Mode::from_raw_mode(0o666), 0).map(nothing)
            }
            Op::Chmod { path, mode } => rustix::fs::chmod(at(path), Mode::from_raw_mode(*mode)).map(nothing),
            Op::Chown { path, uid, gid } => {
                let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
                rustix::fs::chownat(CWD, at(path), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map(nothing)
            }
            Op::Times { path, at: seconds } => {
                let time = Timespec {
                    tv_sec: *seconds,
                    tv_nsec: 123_456_789,
                };
                let times = Timestamps {
                    last_access: time,
                    last_modification: time,
                };
                rustix::fs::utimensat(CWD, at(path), &times, AtFlags::SYMLINK_NOFOLLOW).map(nothing)
            }
            Op::SetXattr { path, name, len } => {
                rustix::fs::lsetxattr(at(path), name.as_str(), &vec![b'v'; *len], XattrFlags::empty()).map(nothing)
            }
            Op::GetXattr { path, name } => {
                let mut value = vec![0; 4096];
                let count = rustix::fs::lgetxattr(at(path), name.as_str(), &mut value)?;
                value.truncate(count);
                Ok(value)
            }
            Op::RemoveXattr { path, name } => rustix::fs::lremovexattr(at(path), name.as_str()).map(nothing),
            Op::ReadLink { path } => rustix::fs::readlink(at(path), Vec::new()).map(std::ffi::CString::into_bytes),
            Op::List { path } => {
                let list = fs::read_dir(at(path)).map_err(|error| Errno::from_io_error(&error).unwrap())?;
                let mut names: Vec<OsString> = list.map(|entry| entry.unwrap().file_name()).collect();
                names.sort();
                Ok(names.join(std::ffi::OsStr::new("/")).as_bytes().to_vec())
            }
            Op::Umask { mask } => {
                rustix::process::umask(Mode::from_raw_mode(*mask));
                Ok(Vec::new())
            }
        }
    }
}

/// Stores into a shared mapping, as far as the file reaches.
fn store(path: &Path, at: u64, byte: u8, len: usize, sync: bool) -> Outcome {
    let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size == 0 {
        return Ok(Vec::new());
    }
    let size = usize::try_from(stat.st_size).unwrap();
    let start = usize::try_from(at).unwrap().min(size);
    let end = (start + len).min(size);
    // SAFETY: a new mapping of its own, stored into only below the size that the file has, and
    // unmapped at the end.
    unsafe {
        let map = rustix::mm::mmap(
            std::ptr::null_mut(),
            size,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &fd,
            0,
        )?;
        std::slice::from_raw_parts_mut(map.cast::<u8>(), size)[start..end].fill(byte);
        if sync {
            rustix::mm::msync(map, size, MsyncFlags::SYNC)?;
        } else {
            // The kernel writes dirty pages back while it unmaps them, with the mappings of this
            // process locked; the mount is served by this very process, and stands still if one of
            // its threads needs memory just then.
            rustix::fs::fdatasync(&fd)?;
        }
        rustix::mm::munmap(map, size)?;
    }
    Ok(Vec::new())
}

/// Everything about one file that has to be equal.
#[derive(PartialEq, Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) ino: u64,
    pub(crate) nlink: u64,
    pub(crate) size: u64,
    /// Of this file in particular; only times that a program set are the same on both sides.
    pub(crate) mtime_ns: i64,
    pub(crate) mtime: Option<(i64, i64)>,
    pub(crate) content: Vec<u8>,
    pub(crate) xattrs: BTreeMap<OsString, Vec<u8>>,
}

pub(crate) fn look(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut to_visit = vec![PathBuf::new()];
    while let Some(below) = to_visit.pop() {
        let path = root.join(&below);
        let metadata = fs::symlink_metadata(&path).unwrap();
        let content = if metadata.is_dir() {
            for entry in fs::read_dir(&path).unwrap() {
                to_visit.push(below.join(entry.unwrap().file_name()));
            }
            Vec::new()
        } else if metadata.is_symlink() {
            fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
        } else if metadata.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        let fd = rustix::fs::open(&path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let xattrs = byteback_host::tree::list_xattrs(&fd)
            .unwrap()
            .into_iter()
            .map(|name| {
                let value = byteback_host::tree::get_xattr(&fd, &name).unwrap().unwrap();
                (name, value)
            })
            .collect();
        // Only times that a program set are the same on both sides.
        let was_set = metadata.mtime_nsec() == 123_456_789;
        seen.insert(
            below,
            Seen {
                mode: metadata.mode(),
                owner: (metadata.uid(), metadata.gid()),
                ino: metadata.ino(),
                nlink: metadata.nlink(),
                size: if metadata.is_dir() { 0 } else { metadata.len() },
                mtime_ns: metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec(),
                mtime: was_set.then(|| (metadata.mtime(), metadata.mtime_nsec())),
                content,
                xattrs,
            },
        );
    }
    seen
}

/// Compares a mount, or the directory below it, with a plain one.
pub(crate) fn compare(mount: &Path, mode: CacheMode, plain: &Path, context: &str) {
    let (left, right) = (look(mount), look(plain));
    assert_eq!(
        left.keys().collect::<Vec<_>>(),
        right.keys().collect::<Vec<_>>(),
        "{context}"
    );
    for (path, seen) in &left {
        let other = &right[path];
        // A kernel that collects writes keeps the times to itself and does not move them for a
        // truncate by name.
        let compare_times = mode == CacheMode::Exact || other.mtime.is_some();
        let plain = |seen: &Seen| {
            (
                seen.mode,
                seen.owner,
                seen.nlink,
                seen.size,
                seen.mtime.filter(|_| compare_times),
                seen.xattrs.clone(),
            )
        };
        if plain(seen) != plain(other) || seen.content != other.content {
            let first = seen.content.iter().zip(&other.content).position(|(a, b)| a != b);
            panic!(
                "{context}: {path:?} differs, content first at {first:?}\n{:?}\n{:?}",
                plain(seen),
                plain(other)
            );
        }
    }
}

pub(crate) fn seed() -> u64 {
    let seed = std::env::var("BYTEBACK_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| {
            let since = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap();
            u64::from(since.subsec_nanos()) ^ since.as_secs()
        });
    println!("BYTEBACK_SEED={seed}");
    seed
}
