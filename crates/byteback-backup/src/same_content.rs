//! Checks whether a local file equals the server's content, without fetching it.
//!
//! The server is asked for a signature of long blocks, which it keys with a random number of its
//! own; the file is read once and summed block by block, with whole checksums. Contents that are
//! longer than servers sum are compared with the bytes themselves, as they come: that costs the
//! file's data, and nothing for its holes. A server too old to know the requested checksum length
//! cuts the checksums to some 60 bits, which is enough against chance, as nobody could know the key
//! when the contents were made.

use crate::error::{BackupError, Result};
use crate::monitor::{Event, Monitor, check_cancelled};
use byteback_api::FolderName;
use byteback_client::ServerClient;
use byteback_control::{ErrorKind, Piece, ServiceError};
use byteback_delta::signature::{Signature, SignatureRequest};
use byteback_delta::{ApplyError, DeltaReader, EmptyBase, Target, apply_to_new};
use byteback_extents::ByteRange;
use byteback_model::{FileId, Seq};
use std::io;

/// Length of a block in bytes; also the memory that a comparison takes.
pub(crate) const BLOCK_LEN: u32 = 1 << 20;

/// Servers do not sum longer contents (`hashed_len_max` of the store).
const SUMMED_LEN_MAX: u64 = 1 << 40;

/// Length of a block's checksum, in bytes.
const STRONG_LEN: u8 = 32;

/// The parameters of a signature that proves a content.
pub(crate) fn proving() -> SignatureRequest {
    SignatureRequest {
        block_len_bytes: Some(BLOCK_LEN),
        strong_len_bytes: Some(STRONG_LEN),
        ..SignatureRequest::default()
    }
}

/// Receives the pieces of a content.
pub type PieceSink<'a> = dyn FnMut(Piece<'_>) -> Result<(), ServiceError> + 'a;

/// Compares a file's content with the server's of the same length; `read` reads it by offsets and
/// lengths. The inner error concerns the file.
pub fn is_same_content(
    (server, folder, at): (&ServerClient, &FolderName, Seq),
    id: FileId,
    read: impl Fn(&[(u64, u64)], &mut PieceSink<'_>) -> Result<(), ServiceError>,
    len_bytes: u64,
    monitor: &dyn Monitor,
) -> Result<Result<bool, ServiceError>> {
    if len_bytes > SUMMED_LEN_MAX {
        return is_same_as_it_comes((server, folder, at), id, &read, len_bytes, monitor);
    }
    let blocks_max = len_bytes.div_ceil(u64::from(BLOCK_LEN));
    let signature = server.signature(folder, id, at, &proving(), blocks_max)?;
    if signature.content_len_bytes() != len_bytes {
        return Err(BackupError::hostile(format!(
            "the signature of node {id} does not cover the {len_bytes} bytes that were announced"
        )));
    }
    let mut beside = Beside::new(&signature);
    let mut cancelled = Ok(());
    let read = read(&[(0, len_bytes)], &mut |piece| {
        if let Err(error) = check_cancelled(monitor) {
            cancelled = Err(error);
            return Err(ServiceError::new(ErrorKind::Protocol, "stopped"));
        }
        match piece {
            Piece::Data { bytes, .. } => {
                monitor.event(Event::BytesRead(u64::try_from(bytes.len()).unwrap_or(u64::MAX)));
                beside.push(bytes);
            }
            Piece::Hole(range) => beside.push_zeros(range.len_bytes()),
        }
        match beside.is_same {
            true => Ok(()),
            // The rest need not be read.
            false => Err(ServiceError::new(ErrorKind::Protocol, "it differs")),
        }
    });
    cancelled?;
    if !beside.is_same {
        return Ok(Ok(false));
    }
    Ok(read.map(|()| beside.finish()))
}

/// Compares a content with the server's by fetching the server's data.
fn is_same_as_it_comes(
    (server, folder, at): (&ServerClient, &FolderName, Seq),
    id: FileId,
    read: &Reading<'_>,
    len_bytes: u64,
    monitor: &dyn Monitor,
) -> Result<Result<bool, ServiceError>> {
    let mut here = LocalComparison {
        read,
        monitor,
        same_to: 0,
        ended: None,
    };
    let mut pauses = server.stream_pauses();
    loop {
        // The last byte is asked for again rather than nothing.
        let from = here.same_to.min(len_bytes.saturating_sub(1));
        let content = server.content(folder, id, at, from, &|_| !monitor.is_cancelled())?;
        let applied = DeltaReader::new(content)
            .map_err(ApplyError::from)
            .and_then(|mut delta| {
                let header = *delta.header();
                if header.base_len_bytes != 0 || header.has_copies || header.new_len_bytes != len_bytes {
                    return Ok(false);
                }
                apply_to_new(&EmptyBase, &mut delta, &mut here).map(|_| true)
            });
        check_cancelled(monitor)?;
        if let Ok(false) = applied {
            return Err(BackupError::hostile(format!(
                "the contents of node {id} do not have the {len_bytes} bytes that were announced"
            )));
        }
        if applied.is_ok() && here.ended.is_none() {
            // The zeros behind the last data.
            let _ = here.expect_zeros(len_bytes);
        }
        return match (here.ended.take(), applied) {
            (Some(Ended::Differs), _) => Ok(Ok(false)),
            (Some(Ended::Unreadable(error)), _) => Ok(Err(error)),
            (None, Ok(_)) => Ok(Ok(true)),
            (None, Err(error)) => {
                if here.same_to > from {
                    pauses = server.stream_pauses();
                }
                if !pauses.rest() {
                    return Err(BackupError::delta(id, error));
                }
                continue;
            }
        };
    }
}

/// Reads ranges of a local content.
type Reading<'a> = dyn Fn(&[(u64, u64)], &mut PieceSink<'_>) -> Result<(), ServiceError> + 'a;

/// Why a comparison ended before its end.
enum Ended {
    Differs,
    Unreadable(ServiceError),
}

/// A "target" that compares the bytes written to it with the local file; gaps must be zero.
struct LocalComparison<'a> {
    read: &'a Reading<'a>,
    monitor: &'a dyn Monitor,
    same_to: u64,
    ended: Option<Ended>,
}

impl LocalComparison<'_> {
    /// Compares the local bytes from the last compared place on with these bytes, or with zeros.
    fn compare(&mut self, end: u64, wanted: Option<&[u8]>) -> io::Result<()> {
        let from = self.same_to;
        let mut is_same = true;
        let read = (self.read)(&[(from, end.saturating_sub(from))], &mut |piece| {
            let (offset, len) = match piece {
                Piece::Hole(range) => (range.start(), range.len_bytes()),
                Piece::Data { offset, bytes } => (offset, u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
            };
            let wanted = wanted.map(|wanted| {
                let at = usize::try_from(offset.saturating_sub(from)).unwrap_or(usize::MAX);
                let end = at.saturating_add(usize::try_from(len).unwrap_or(usize::MAX));
                wanted.get(at..end)
            });
            let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
            is_same &= match (piece, wanted) {
                (_, Some(None)) => false,
                (Piece::Hole(_), Some(Some(wanted))) => is_zero(wanted),
                (Piece::Hole(_), None) => true,
                (Piece::Data { bytes, .. }, Some(Some(wanted))) => bytes == wanted,
                (Piece::Data { bytes, .. }, None) => is_zero(bytes),
            };
            match is_same {
                true => Ok(()),
                false => Err(ServiceError::new(ErrorKind::Protocol, "it differs")),
            }
        });
        match read {
            _ if !is_same => self.ended = Some(Ended::Differs),
            Err(error) => self.ended = Some(Ended::Unreadable(error)),
            Ok(()) => {
                self.same_to = end;
                return Ok(());
            }
        }
        Err(io::Error::other("the comparison ended"))
    }

    fn expect_zeros(&mut self, end: u64) -> io::Result<()> {
        match self.same_to < end {
            true => self.compare(end, None),
            false => Ok(()),
        }
    }
}

impl Target for LocalComparison<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn write_range(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.monitor.is_cancelled() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.expect_zeros(offset)?;
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.compare(offset.saturating_add(len), Some(bytes))?;
        self.monitor.event(Event::BytesRead(len));
        Ok(())
    }

    fn punch_hole(&mut self, _range: ByteRange) -> io::Result<()> {
        Ok(())
    }

    fn set_len_bytes(&mut self, _len_bytes: u64) -> io::Result<()> {
        Ok(())
    }
}

/// A content compared piece by piece with a signature.
pub(crate) struct Beside<'s> {
    signature: &'s Signature,
    block_len: usize,
    block: Vec<u8>,
    next: usize,
    is_same: bool,
}

impl<'s> Beside<'s> {
    pub(crate) fn new(signature: &'s Signature) -> Self {
        Self {
            signature,
            block_len: usize::try_from(signature.params().block_len_bytes).unwrap_or(usize::MAX),
            block: Vec::new(),
            next: 0,
            is_same: true,
        }
    }

    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.is_same {
            let room = self.block_len - self.block.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == self.block_len {
                self.end_block();
            }
        }
    }

    pub(crate) fn push_zeros(&mut self, len_bytes: u64) {
        let zeros = [0; 4096];
        let mut left = len_bytes;
        while left > 0 && self.is_same {
            let now = usize::try_from(left).unwrap_or(usize::MAX).min(zeros.len());
            self.push(zeros.get(..now).unwrap_or_default());
            left -= u64::try_from(now).unwrap_or(left);
        }
    }

    /// Whether all of it matched the signature.
    pub(crate) fn finish(mut self) -> bool {
        if !self.block.is_empty() {
            self.end_block();
        }
        self.is_same && self.next == self.signature.blocks()
    }

    fn end_block(&mut self) {
        let sum = self.signature.hasher().of(&self.block);
        let strong = self.signature.strong(self.next);
        self.is_same = strong.is_some_and(|strong| !strong.is_empty() && sum.get(..strong.len()) == Some(strong));
        self.block.clear();
        self.next += 1;
    }
}
