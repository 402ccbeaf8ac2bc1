//! Whether a local file holds what the server has, without fetching it.
//!
//! The server is asked for a signature of long blocks, which it keys with a random number of its own; the file is read once and summed block
//! by block, with whole checksums. A server that is older than this wish cuts them to some 60 bits, which is enough against chance, as
//! nobody could know the key when the contents were made.

use crate::error::{Result, SyncError};
use crate::monitor::{Event, Monitor, check_cancelled};
use crate::server_client::ServerClient;
use byteback_api::{FileId, FolderName, Seq};
use byteback_control::{ErrorKind, Piece, ServiceError};
use byteback_delta::signature::{Signature, SignatureRequest};

/// Length of a block, in bytes; that is also the memory that it takes.
pub(crate) const BLOCK_LEN: u32 = 1 << 20;

/// Length of its checksum, in bytes.
const STRONG_LEN: u8 = 32;

/// What signature proves a content.
pub(crate) fn proving() -> SignatureRequest {
    SignatureRequest {
        block_len_bytes: Some(BLOCK_LEN),
        strong_len_bytes: Some(STRONG_LEN),
        ..SignatureRequest::default()
    }
}

/// What a content's pieces are handed to.
pub(crate) type PieceSink<'a> = dyn FnMut(Piece<'_>) -> Result<(), ServiceError> + 'a;

/// Compares a file's content, which `read` reads by offsets and lengths, with the server's of the same length. The inner error is of the file.
pub(crate) fn is_same_content(
    (server, folder, at): (&ServerClient, &FolderName, Seq),
    id: FileId,
    read: impl FnOnce(&[(u64, u64)], &mut PieceSink<'_>) -> Result<(), ServiceError>,
    len_bytes: u64,
    monitor: &dyn Monitor,
) -> Result<Result<bool, ServiceError>> {
    let blocks_max = len_bytes.div_ceil(u64::from(BLOCK_LEN));
    let signature = server.signature(folder, id, at, &proving(), blocks_max)?;
    if signature.content_len_bytes() != len_bytes {
        return Err(SyncError::hostile(format!(
            "the signature of node {id} is not of the {len_bytes} bytes that were announced"
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
        Ok(())
    });
    cancelled?;
    Ok(read.map(|()| beside.finish()))
}

/// A content that comes piece by piece, beside a signature.
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

    /// Whether all of it was as the signature says.
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
