//! Bytes that were put aside because they were overwritten before they were sent: one sparse file
//! for each position, with the bytes at their own offsets.
//!
//! Nothing of it is durable before [`Spool::sync`], and nothing needs to be: a stop that was not
//! clean gives all of it up.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use byteback_extents::ByteRange;
use byteback_host::durable::{DurableDir, DurableFile, OpenMode};
use byteback_host::errno_of;
use byteback_host::tree::Inode;
use byteback_queue::Position;
use parking_lot::Mutex;
use rustix::fs::OFlags;

/// Bytes that are copied at a time.
const PIECE_LEN: usize = 256 << 10;

/// Most files that are open at once; the others are opened again.
const OPEN_FILES_MAX: usize = 64;

/// Files of bytes that were put aside, see the module.
pub(super) struct Spool {
    dir: Arc<dyn DurableDir>,
    bytes_max: u64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    open: BTreeMap<Position, Arc<dyn DurableFile>>,
    /// Bytes of each file, holes aside.
    bytes: BTreeMap<Position, u64>,
    total_bytes: u64,
}

impl Spool {
    /// Opens the spool in this directory, with what is there.
    pub(super) fn open(dir: Arc<dyn DurableDir>, bytes_max: u64) -> io::Result<Self> {
        let mut inner = Inner::default();
        for name in dir.list()? {
            if let Ok(number) = name.parse() {
                let len_bytes = dir.open(&name, OpenMode::Existing)?.len()?;
                inner.bytes.insert(Position(number), len_bytes);
                inner.total_bytes = inner.total_bytes.saturating_add(len_bytes);
            }
        }
        Ok(Self {
            dir,
            bytes_max,
            inner: Mutex::new(inner),
        })
    }

    /// The number of bytes in the spool.
    pub(super) fn total_bytes(&self) -> u64 {
        self.inner.lock().total_bytes
    }

    fn file(&self, position: Position) -> io::Result<Arc<dyn DurableFile>> {
        if let Some(file) = self.inner.lock().open.get(&position) {
            return Ok(Arc::clone(file));
        }
        let file = self.dir.open(&position.to_string(), OpenMode::CreateIfMissing)?;
        let mut inner = self.inner.lock();
        if inner.open.len() >= OPEN_FILES_MAX {
            inner.open.clear();
        }
        inner.bytes.entry(position).or_default();
        inner.open.insert(position, Arc::clone(&file));
        Ok(file)
    }

    /// Puts `range` of the file `from` aside for `position`. Bytes beyond the file's end are zeros.
    pub(super) fn put(&self, position: Position, range: ByteRange, from: &Inode) -> io::Result<()> {
        let file = self.file(position)?;
        let mut from = Source::of(from);
        let mut buffer = vec![0; PIECE_LEN.min(usize::try_from(range.len_bytes()).unwrap_or(PIECE_LEN))];
        let mut at = range.start();
        while let Some(start) = from.next_data(at, range.end())? {
            let len = usize::try_from(range.end() - start).map_or(buffer.len(), |left| left.min(buffer.len()));
            let window = buffer.get_mut(..len).unwrap_or_default();
            let count = from.read_at(start, window)?;
            if count == 0 {
                break;
            }
            self.take_room(position, count as u64)?;
            file.write_all_at(start, window.get(..count).unwrap_or_default())?;
            at = start + count as u64;
        }
        if file.len()? < range.end() {
            file.set_len(range.end())?;
        }
        Ok(())
    }

    /// Puts bytes aside for `position`, which were at `offset`.
    pub(super) fn put_bytes(&self, position: Position, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.file(position)?;
        self.take_room(position, bytes.len() as u64)?;
        file.write_all_at(offset, bytes)
    }

    fn take_room(&self, position: Position, count: u64) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if inner.total_bytes.saturating_add(count) > self.bytes_max {
            let message = format!(
                "more than {} bytes of old content would have to be kept",
                self.bytes_max
            );
            return Err(io::Error::new(io::ErrorKind::StorageFull, message));
        }
        inner.total_bytes = inner.total_bytes.saturating_add(count);
        *inner.bytes.entry(position).or_default() += count;
        Ok(())
    }

    /// Reads what was put aside.
    pub(super) fn read(&self, position: Position, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file(position)?.read_exact_at(offset, buffer)
    }

    /// Removes what was put aside for this position.
    pub(super) fn remove(&self, position: Position) {
        let mut inner = self.inner.lock();
        inner.open.remove(&position);
        let bytes = inner.bytes.remove(&position).unwrap_or(0);
        inner.total_bytes = inner.total_bytes.saturating_sub(bytes);
        drop(inner);
        // A file that stays is removed at the next start.
        let _ = self.dir.remove(&position.to_string());
    }

    /// Removes everything that was put aside.
    pub(super) fn clear(&self) {
        let positions = self.inner.lock().bytes.keys().copied().collect::<Vec<_>>();
        for position in positions {
            self.remove(position);
        }
    }

    /// Makes all of it durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        let positions = self.inner.lock().bytes.keys().copied().collect::<Vec<_>>();
        for position in positions {
            self.file(position)?.sync_data()?;
        }
        self.dir.sync()
    }
}

/// A file that is read through a descriptor that need not be readable.
pub(super) struct Source<'a> {
    fd: &'a Inode,
    reopened: Option<Inode>,
}

impl<'a> Source<'a> {
    pub(super) fn of(fd: &'a Inode) -> Self {
        Self { fd, reopened: None }
    }

    /// Calls with the descriptor, and once more with a readable one if it is not readable.
    fn with<T>(&mut self, mut call: impl FnMut(&Inode) -> io::Result<T>) -> io::Result<T> {
        match call(self.reopened.as_ref().unwrap_or(self.fd)) {
            Err(error) if errno_of(&error) == Some(libc::EBADF) && self.reopened.is_none() => {
                call(self.reopened.insert(open_for_reading(self.fd)?))
            }
            done => done,
        }
    }

    /// The first data at or after `at`, before `end`; `None` if there are only holes.
    pub(super) fn next_data(&mut self, at: u64, end: u64) -> io::Result<Option<u64>> {
        if at >= end {
            return Ok(None);
        }
        Ok(self.with(|file| data_from(file, at))?.filter(|start| *start < end))
    }

    /// Reads at most as many bytes as the buffer takes; 0 at the end.
    pub(super) fn read_at(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.with(|file| file.read_at(at, buffer))
    }
}

/// The first data at or after `at`; where the file system does not report holes, all is data.
fn data_from(file: &Inode, at: u64) -> io::Result<Option<u64>> {
    match file.seek_data(at) {
        Err(error) if matches!(errno_of(&error), Some(libc::EINVAL | libc::EOPNOTSUPP)) => Ok(Some(at)),
        found => found,
    }
}

/// The first part of a range of a file that may be something other than a hole.
pub(super) fn next_data(file: &Inode, range: ByteRange) -> io::Result<Option<ByteRange>> {
    let Some(start) = data_from(file, range.start())?.filter(|start| *start < range.end()) else {
        return Ok(None);
    };
    let end = file.seek_hole(start).ok().flatten().unwrap_or(range.end());
    Ok(ByteRange::new(start, end.min(range.end())))
}

/// A descriptor that reads without moving the access time, where that is allowed.
pub(super) fn open_for_reading(fd: &Inode) -> io::Result<Inode> {
    match fd.reopen(OFlags::RDONLY | OFlags::NOATIME | OFlags::NONBLOCK) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => fd.reopen(OFlags::RDONLY | OFlags::NONBLOCK),
        done => done,
    }
}

/// Fills the buffer as far as the file goes.
pub(super) fn read_up_to(file: &Inode, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled: usize = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(offset.saturating_add(filled as u64), rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
