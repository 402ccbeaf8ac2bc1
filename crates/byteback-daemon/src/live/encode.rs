//! Deltas of new contents against old ones, and the files that they are kept in, one each.
//!
//! Both contents are here, and only here as they are now: so the daemon encodes, and keeps the
//! result. If either of them changes while they are compared, the queue hears of that first, and
//! does not take the delta.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use byteback_delta::find::{IntoDelta, find_local};
use byteback_delta::{Base, DeltaWriter, WriterOptions};
use byteback_extents::ByteRange;
use byteback_host::durable::{DurableDir, DurableFile, OpenMode};
use byteback_host::tree::Inode;
use byteback_model::NodeId;
use byteback_queue::queue::{EncodeOrder, EncodedDelta};

use super::Live;
use super::spool::{next_data, read_up_to};

/// Bytes of a delta that are written at a time.
const WRITE_LEN: usize = 64 << 10;

/// Length of the pieces in which a file is compared with its checksums.
const COMPARED_LEN_BYTES: u64 = 1 << 20;

/// The deltas that are kept.
pub(super) struct Deltas {
    dir: Arc<dyn DurableDir>,
    last_stamp: AtomicU64,
}

impl Deltas {
    /// Opens the deltas in this directory.
    pub(super) fn open(dir: Arc<dyn DurableDir>) -> io::Result<Self> {
        let stamps = dir.list()?.into_iter().filter_map(|name| name.parse::<u64>().ok());
        let last_stamp = AtomicU64::new(stamps.max().unwrap_or(0));
        Ok(Self { dir, last_stamp })
    }

    /// The delta with this stamp.
    pub(super) fn file(&self, stamp: u64) -> io::Result<Arc<dyn DurableFile>> {
        self.dir.open(&stamp.to_string(), OpenMode::Existing)
    }

    /// Removes a delta that is not needed any more.
    pub(super) fn remove(&self, stamp: u64) {
        // A file that stays is removed when all are.
        let _ = self.dir.remove(&stamp.to_string());
    }

    /// Removes all deltas.
    pub(super) fn clear(&self) {
        for name in self.dir.list().unwrap_or_default() {
            let _ = self.dir.remove(&name);
        }
    }

    /// Makes all of them durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        for name in self.dir.list()? {
            self.dir.open(&name, OpenMode::Existing)?.sync_data()?;
        }
        self.dir.sync()
    }

    /// Encodes a delta that is shorter than the content; `None` if there is none.
    fn encode(&self, new: Inode, base: Inode, len_bytes_max: u64) -> io::Result<Option<EncodedDelta>> {
        let (new, base) = (Content(new), Content(base));
        let (new_len, base_len) = (new.len_bytes()?, base.len_bytes()?);
        if new_len.max(base_len) > len_bytes_max {
            return Ok(None);
        }
        let written = self.write(new_len, |out| {
            let options = WriterOptions {
                copies: true,
                compress: true,
            };
            let mut writer = DeltaWriter::new(out, base_len, new_len, options).map_err(io::Error::other)?;
            find_local(&base, &new, IntoDelta(&mut writer)).map_err(io::Error::other)?;
            let (_, stats) = writer.finish().map_err(io::Error::other)?;
            Ok(stats.wire_bytes)
        })?;
        Ok(written.map(|(stamp, len_bytes)| EncodedDelta {
            stamp,
            len_bytes,
            base_version: None,
        }))
    }

    /// Writes a delta of at most `len_bytes_max`; returns its stamp and length. `None` if it would
    /// be longer, or there is no room for it.
    pub(super) fn write(
        &self,
        len_bytes_max: u64,
        write: impl FnOnce(BufWriter<Limited>) -> io::Result<u64>,
    ) -> io::Result<Option<(u64, u64)>> {
        let stamp = self.last_stamp.fetch_add(1, Ordering::Relaxed) + 1;
        let file = self.dir.open(&stamp.to_string(), OpenMode::CreateIfMissing)?;
        file.set_len(0)?;
        let out = Limited {
            file,
            at: 0,
            len_max: len_bytes_max,
        };
        match write(BufWriter::with_capacity(WRITE_LEN, out)) {
            Ok(len_bytes) => Ok(Some((stamp, len_bytes))),
            Err(_) => {
                self.remove(stamp);
                Ok(None)
            }
        }
    }
}

/// Writes a file up to a length.
pub(super) struct Limited {
    file: Arc<dyn DurableFile>,
    at: u64,
    len_max: u64,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.at.saturating_add(bytes.len() as u64) > self.len_max {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write_all_at(self.at, bytes)?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The current content of a file.
struct Content(Inode);

impl Base for Content {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.stat()?.size)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        match read_up_to(&self.0, offset, buffer)? {
            count if count == buffer.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn next_data(&self, range: ByteRange) -> io::Result<Option<ByteRange>> {
        next_data(&self.0, range)
    }
}

impl Live {
    /// Whether all of a file is what was written, as far as that is known.
    fn is_sound(&self, node: NodeId, file: &Inode) -> io::Result<bool> {
        let Some(integrity) = &self.integrity else {
            return Ok(true);
        };
        let mut buffer = Vec::new();
        let mut at = 0;
        while let Some(range) = ByteRange::from_offset_len(at, COMPARED_LEN_BYTES) {
            let (read, fault) = integrity.check(node, file, range, &mut buffer)?;
            if fault.is_some() {
                return Ok(false);
            }
            if (read.len_bytes as u64) < range.len_bytes() {
                break;
            }
            at = range.end();
        }
        Ok(true)
    }

    /// Encodes the delta that the queue ordered.
    pub(super) fn encode(&self, order: &EncodeOrder) {
        let delta = || -> io::Result<Option<EncodedDelta>> {
            let new = self.open_file(order.new)?;
            let base = self.open_file(order.base)?;
            match (new, base) {
                // A delta against a base that is not what the server has would make another content
                // of it.
                (Some(new), Some(base)) if !self.is_sound(order.new, &new)? || !self.is_sound(order.base, &base)? => {
                    Ok(None)
                }
                (Some(new), Some(base)) => self.deltas.encode(new, base, self.options.compared_bytes_max),
                _ => Ok(None),
            }
        };
        // A content that cannot be compared is sent as it is.
        let delta = delta().unwrap_or(None);
        let is_taken = {
            let _order = self.order.exclusive();
            let mut state = self.state.lock();
            let is_taken = state.queue.encoded(order, delta);
            state.settle();
            is_taken
        };
        if let Some(delta) = delta.filter(|_| !is_taken) {
            self.deltas.remove(delta.stamp);
        }
    }
}
