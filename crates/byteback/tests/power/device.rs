//! A disk that distinguishes flushed writes from others, as a file of a FUSE file system under a
//! loop device.
//!
//! Every write of the file system above arrives here, and every flush as an `fsync`.
//! [`Device::moment`] is one moment between two writes; [`Moment::survivor`] draws what a disk may
//! hold after losing its power in that moment: everything that a completed flush confirmed, and of
//! each block of 4 KiB written since, the old or any newer state, since a disk may keep, drop and
//! reorder unflushed writes. (It does not tear blocks: file systems rely on that, and their
//! robustness is not under test.)

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use byteback_host::random::SplitMix64;
use byteback_testkit::seed::Draw;
use byteback_testkit::tools::run;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};

const BLOCK_BYTES: usize = 4096;
const FILE: INodeNo = INodeNo(2);
const NAME: &str = "disk";

type Block = Arc<[u8; BLOCK_BYTES]>;

/// Blocks that were ever written, by number.
#[derive(Clone, Default)]
struct Blocks(HashMap<u64, Block>);

impl Blocks {
    fn read(&self, at: u64, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let position = at + done as u64;
            let within = (position % BLOCK_BYTES as u64) as usize;
            let len = (BLOCK_BYTES - within).min(into.len() - done);
            let piece = &mut into[done..done + len];
            match self.0.get(&(position / BLOCK_BYTES as u64)) {
                Some(block) => piece.copy_from_slice(&block[within..within + len]),
                None => piece.fill(0),
            }
            done += len;
        }
    }
}

/// The state of the disk.
#[derive(Default)]
struct Platter {
    /// The blocks with all writes.
    live: Blocks,
    flushed: Blocks,
    /// Whole blocks written since the last flush, in the order of arrival.
    since: Vec<(u64, Block)>,
    flushes: u64,
}

impl Platter {
    fn write(&mut self, at: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let position = at + done as u64;
            let (number, within) = (position / BLOCK_BYTES as u64, (position % BLOCK_BYTES as u64) as usize);
            let len = (BLOCK_BYTES - within).min(data.len() - done);
            let mut block = self.live.0.get(&number).map_or([0; BLOCK_BYTES], |block| **block);
            block[within..within + len].copy_from_slice(&data[done..done + len]);
            let block = Arc::new(block);
            self.live.0.insert(number, Arc::clone(&block));
            self.since.push((number, block));
            done += len;
        }
    }

    fn flush(&mut self) {
        for (number, block) in self.since.drain(..) {
            self.flushed.0.insert(number, block);
        }
        self.flushes += 1;
    }
}

/// The state of a disk at one moment.
pub(crate) struct Moment {
    flushed: Blocks,
    since: Vec<(u64, Block)>,
    pub(crate) flushes: u64,
}

impl Moment {
    /// Number of block writes that were not flushed.
    pub(crate) fn unflushed(&self) -> usize {
        self.since.len()
    }

    /// Possible content of the disk when its power comes back.
    fn survivor(&self, random: &mut SplitMix64) -> Blocks {
        let mut blocks = self.flushed.clone();
        // Extremes are the cases that protocols forget.
        let percent = match random.below(8) {
            0 => 0,
            1..=3 => 100,
            4 => 5,
            5 => 95,
            _ => random.below(101),
        };
        let upto = if random.chance(30) {
            random.index(self.since.len() + 1)
        } else {
            self.since.len()
        };
        for (number, block) in &self.since[..upto] {
            if random.chance(percent) {
                blocks.0.insert(*number, Arc::clone(block));
            }
        }
        blocks
    }
}

struct OneFile {
    platter: Arc<Mutex<Platter>>,
    size: u64,
}

impl OneFile {
    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let is_file = ino == FILE;
        FileAttr {
            ino,
            size: if is_file { self.size } else { 0 },
            blocks: 0,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: if is_file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

const TTL: Duration = Duration::from_secs(3600);

impl Filesystem for OneFile {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&TTL, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = u64::from(size).min(self.size.saturating_sub(offset));
        let mut bytes = vec![0; usize::try_from(len).unwrap()];
        self.platter.lock().unwrap().live.read(offset, &mut bytes);
        reply.data(&bytes);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.platter.lock().unwrap().write(offset, data);
        reply.written(u32::try_from(data.len()).unwrap());
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.platter.lock().unwrap().flush();
        reply.ok();
    }
}

/// A disk that is served by a FUSE session.
struct Served {
    platter: Arc<Mutex<Platter>>,
    point: PathBuf,
    session: Option<BackgroundSession>,
}

impl Served {
    fn start(point: &Path, size: u64, blocks: Blocks) -> Self {
        std::fs::create_dir(point).unwrap();
        let platter = Arc::new(Mutex::new(Platter {
            live: blocks.clone(),
            flushed: blocks,
            ..Platter::default()
        }));
        let file = OneFile {
            platter: Arc::clone(&platter),
            size,
        };
        let session = fuser::spawn_mount(file, point, &Config::default()).unwrap();
        Self {
            platter,
            point: point.to_owned(),
            session: Some(session),
        }
    }

    fn file(&self) -> PathBuf {
        self.point.join(NAME)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.session.take());
        let _ = Command::new("umount")
            .arg("-l")
            .arg(&self.point)
            .stderr(Stdio::null())
            .status();
        let _ = std::fs::remove_dir(&self.point);
    }
}

/// The disk; see the module. The file system on it is mounted as long as this lives.
pub(crate) struct Device {
    served: Option<Served>,
    directory: PathBuf,
    size: u64,
    /// Number of disks so far.
    number: u64,
    pub(crate) point: PathBuf,
}

impl Device {
    /// A disk of `mib` MiB below `directory`, made by `maker` (`mkfs.TYPE` with its arguments) and
    /// mounted with `options`.
    pub(crate) fn new(directory: &Path, mib: u64, maker: &[&str], options: &str) -> Self {
        let mut device = Self {
            served: None,
            directory: directory.to_owned(),
            size: mib << 20,
            number: 0,
            point: directory.join("disk"),
        };
        std::fs::create_dir(&device.point).unwrap();
        device.serve(Blocks::default());
        let file = device.served.as_ref().unwrap().file();
        run(maker[0], &[&maker[1..], &[file.to_str().unwrap()]].concat());
        device.mount(options);
        device
    }

    fn serve(&mut self, blocks: Blocks) {
        self.number += 1;
        let point = self.directory.join(format!("device{}", self.number));
        self.served = Some(Served::start(&point, self.size, blocks));
    }

    fn mount(&self, options: &str) {
        let file = self.served.as_ref().unwrap().file();
        let options = format!("loop{options}");
        let arguments = ["-o", &options, file.to_str().unwrap(), self.point.to_str().unwrap()];
        // The mount before, which a dying process held, may not be gone: XFS mounts no file system
        // twice.
        for _ in 0..200 {
            let done = Command::new("mount").args(arguments).stderr(Stdio::null()).status();
            if done.is_ok_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        run("mount", &arguments);
    }

    fn unmount(&self) {
        // A dying process may still be using it.
        for _ in 0..200 {
            let done = Command::new("umount").arg(&self.point).stderr(Stdio::null()).status();
            if done.is_ok_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        run("umount", &["-l", self.point.to_str().unwrap()]);
    }

    /// The present state of the disk, between two writes.
    pub(crate) fn moment(&self) -> Moment {
        let platter = self.served.as_ref().unwrap().platter.lock().unwrap();
        Moment {
            flushed: platter.flushed.clone(),
            since: platter.since.clone(),
            flushes: platter.flushes,
        }
    }

    /// Brings the disk back as one that lost its power in `moment`, mounted with `options`. No
    /// process may be using it any more.
    pub(crate) fn come_back(&mut self, moment: &Moment, random: &mut SplitMix64, options: &str) {
        self.unmount();
        self.served = None;
        self.serve(moment.survivor(random));
        self.mount(options);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.unmount();
        self.served = None;
    }
}

/// The disk loses what it may lose, keeps what it must keep, and mixes the rest.
#[test]
fn the_device_keeps_what_was_flushed_and_any_choice_of_the_rest() {
    let mut platter = Platter::default();
    platter.write(0, &[1; 3 * BLOCK_BYTES]);
    platter.flush();
    platter.write(100, &[2; 10]);
    platter.write(BLOCK_BYTES as u64, &[2; 2 * BLOCK_BYTES]);
    platter.write(BLOCK_BYTES as u64, &[3; BLOCK_BYTES]);
    let mut bytes = vec![0; 3 * BLOCK_BYTES];
    platter.live.read(0, &mut bytes);
    assert_eq!((bytes[99], bytes[100], bytes[110], bytes[BLOCK_BYTES]), (1, 2, 1, 3));
    let moment = Moment {
        flushed: platter.flushed.clone(),
        since: platter.since.clone(),
        flushes: platter.flushes,
    };
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..300 {
        moment.survivor(&mut SplitMix64::new(seed)).read(0, &mut bytes);
        seen.insert((bytes[100], bytes[BLOCK_BYTES], bytes[2 * BLOCK_BYTES]));
    }
    let all = [1, 2].map(|first| [1, 2, 3].map(|second| [1, 2].map(|third| (first, second, third))));
    assert_eq!(seen, all.as_flattened().as_flattened().iter().copied().collect());
}
