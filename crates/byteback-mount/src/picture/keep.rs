//! The old bytes that a picture keeps, in one unnamed file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use byteback_extents::{ByteRange, ExtentMap, ExtentValue};
use byteback_host::tree::Inode;
use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags};

use super::read_exact_at;

const COPY_BYTES: u64 = 1 << 20;

/// Bytes to keep between two checks of the free space.
const CHECK_EVERY_BYTES: u64 = 1 << 20;

/// The content of a range at the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptBytes {
    /// A hole.
    Hole,
    /// The bytes from this offset of the file of kept bytes.
    At { offset: u64 },
}

impl ExtentValue for KeptBytes {
    fn advance(&self, by_bytes: u64) -> Self {
        match *self {
            Self::Hole => Self::Hole,
            Self::At { offset } => Self::At {
                offset: offset.saturating_add(by_bytes),
            },
        }
    }

    fn continues(&self, len_bytes: u64, next: &Self) -> bool {
        self.advance(len_bytes) == *next
    }
}

#[derive(Debug)]
enum KeptFile {
    None,
    /// With the length so far.
    Open(File, u64),
    /// Nothing is kept any more.
    Freed,
}

/// Why the old state of a node could not be saved.
#[derive(Debug)]
pub(super) enum NotSaved {
    /// The old state could not be read.
    Node(io::Error),
    /// There was no room to keep it.
    Kept(io::Error),
}

#[derive(Debug)]
pub(super) struct Kept {
    dir: PathBuf,
    /// Bytes that must stay free on the file system of `dir`.
    reserve_bytes: u64,
    file: Mutex<KeptFile>,
}

impl Kept {
    pub(super) fn new(dir: &Path, reserve_bytes: u64) -> Self {
        Self {
            dir: dir.to_owned(),
            reserve_bytes,
            file: Mutex::new(KeptFile::None),
        }
    }

    pub(super) fn len_bytes(&self) -> u64 {
        match &*self.file.lock() {
            KeptFile::Open(_, len) => *len,
            KeptFile::None | KeptFile::Freed => 0,
        }
    }

    /// Whether there is a file of kept bytes.
    #[cfg(test)]
    pub(super) fn was_begun(&self) -> bool {
        !matches!(*self.file.lock(), KeptFile::None)
    }

    /// Gives back the space of everything that was kept; nothing can be kept any more.
    pub(super) fn free(&self) {
        *self.file.lock() = KeptFile::Freed;
    }

    /// Copies `range` of `source`, which lies within it, and notes in `map` where it went. After an
    /// error `map` is of no use.
    pub(super) fn copy(
        &self,
        source: &Inode,
        range: ByteRange,
        map: &mut ExtentMap<KeptBytes>,
    ) -> Result<(), NotSaved> {
        map.insert(range, KeptBytes::Hole);
        for data in source.data_ranges(range.start(), range.end()) {
            let data = data.map_err(NotSaved::Node)?;
            let mut at = data.start;
            while at < data.end {
                let end = data.end.min(at + COPY_BYTES);
                let mut bytes = vec![0; usize::try_from(end - at).unwrap_or(usize::MAX)];
                read_exact_at(source, at, &mut bytes).map_err(NotSaved::Node)?;
                let offset = self.append(&bytes).map_err(NotSaved::Kept)?;
                if let Some(range) = ByteRange::new(at, end) {
                    map.insert(range, KeptBytes::At { offset });
                }
                at = end;
            }
        }
        Ok(())
    }

    fn append(&self, bytes: &[u8]) -> io::Result<u64> {
        let mut kept = self.file.lock();
        if matches!(*kept, KeptFile::None) {
            *kept = KeptFile::Open(create_unnamed(&self.dir)?, 0);
        }
        let KeptFile::Open(file, len) = &mut *kept else {
            return Err(io::Error::other("the picture was discarded"));
        };
        let offset = *len;
        if self.reserve_bytes > 0
            && (offset == 0 || offset / CHECK_EVERY_BYTES != (offset + bytes.len() as u64) / CHECK_EVERY_BYTES)
        {
            let space = rustix::fs::fstatvfs(&*file)?;
            if space.f_bavail.saturating_mul(space.f_frsize) < self.reserve_bytes {
                return Err(io::Error::new(
                    io::ErrorKind::StorageFull,
                    "the disk of the state folder is nearly full",
                ));
            }
        }
        file.write_all_at(bytes, offset)?;
        *len += bytes.len() as u64;
        Ok(offset)
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        match &*self.file.lock() {
            KeptFile::Open(file, _) => file.read_exact_at(buffer, offset),
            KeptFile::None | KeptFile::Freed => Err(io::Error::other("nothing was kept")),
        }
    }
}

/// A file without a name, also where the file system cannot make one by itself.
fn create_unnamed(dir: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::openat(CWD, dir, flags, mode) {
        Ok(fd) => Ok(File::from(fd)),
        Err(_) => create_and_unname(dir),
    }
}

/// A file that loses its name at once. A file found under that name is left from a crash: the
/// folder has one owner, which makes such files one at a time, so that two pictures never share a
/// file.
fn create_and_unname(dir: &Path) -> io::Result<File> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock();
    let path = dir.join("picture");
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR)?;
    std::fs::remove_file(&path)?;
    Ok(File::from(fd))
}

#[cfg(test)]
mod tests;
