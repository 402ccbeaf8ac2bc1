//! Reads a content as of its turn: from the file, and from what was put aside since; compared with
//! the checksums, if they are kept.

use std::io;

use byteback_checksums::written::BLOCK_LEN;
use byteback_control::{ErrorKind, LiveContent, Piece, Result, ServiceError};
use byteback_extents::{ByteRange, ExtentSet};
use byteback_host::tree::Inode;
use byteback_model::{ByteString, NodeId};
use byteback_mount::integrity::Fault;
use byteback_queue::Position;
use byteback_queue::queue::{Group, GroupState};

use super::Live;
use super::spool::Source;

/// Length of the pieces in which content is handed on.
pub(super) const PIECE_LEN: usize = 1 << 20;

/// The error for content that is gone: its group was given up.
pub(super) fn given_up() -> ServiceError {
    let message = "the content to be sent can no longer be read; it is sent again with the changes that follow";
    ServiceError::new(ErrorKind::PictureLost, message)
}

fn fault_in(error: &io::Error) -> Option<&Fault> {
    error.get_ref()?.downcast_ref()
}

impl Live {
    pub(super) fn read_ranges(
        &self,
        content: &LiveContent,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let node = NodeId(content.node.0);
        let unread = |error: io::Error| match fault_in(&error) {
            Some(fault) => self.faulty(content.node, fault),
            None => self.unread("a file", &error),
        };
        // `None` if all of it was put aside.
        let file = self.open_file(node).map_err(unread)?;
        if let Some(integrity) = &self.integrity {
            if let Some(file) = &file {
                integrity.check_interrupted(content.node, file).map_err(unread)?;
            }
            if let Some(fault) = integrity.held_back(content.node) {
                return Err(self.faulty(content.node, &fault));
            }
        }
        let mut buffer = Vec::new();
        for (start, len_bytes) in ranges {
            let end = start.saturating_add(*len_bytes);
            let mut at = *start;
            while at < end {
                let piece = self.read_piece(content.at, (content.node, file.as_ref()), (at, end), &mut buffer);
                match piece.map_err(unread)? {
                    Some(Read::Hole(range)) => {
                        sink(Piece::Hole(range))?;
                        at = range.end();
                    }
                    Some(Read::Data(count)) => {
                        let bytes = buffer.get(..count).unwrap_or_default();
                        sink(Piece::Data { offset: at, bytes })?;
                        at += count as u64;
                    }
                    None => return Err(given_up()),
                }
            }
        }
        Ok(())
    }

    /// The error for content that is not what was written. The order is given up, so that
    /// everything else is sent without it.
    fn faulty(&self, node: NodeId, fault: &Fault) -> ServiceError {
        let names = self.log.locate(node).ok().flatten();
        let path = names.map(|names| {
            let names: Vec<_> = names.iter().map(|name| name.as_encoded_bytes()).collect();
            ByteString::from(names.join(&b'/'))
        });
        let name = path
            .clone()
            .unwrap_or_else(|| ByteString::from("a file without a name"));
        let message = format!("cannot send {name}: {fault}");
        self.abandon(message.clone());
        ServiceError {
            kind: ErrorKind::Node,
            message,
            path,
        }
    }

    /// The error for content that cannot be read. The order is given up, if it was not already.
    fn unread(&self, what: &str, error: &io::Error) -> ServiceError {
        let is_given_up = |group: &Group| group.state == GroupState::Unknown;
        let is_new = !self.state.lock().queue.groups().any(is_given_up);
        if is_new {
            self.abandon(format!("cannot read {what} to be sent: {error}"));
        }
        given_up()
    }

    /// The ranges that were put aside for a position, within a range; `None` if the position is not
    /// in the queue any more.
    fn saved_within(&self, position: Position, range: ByteRange) -> Option<ExtentSet> {
        let state = self.state.lock();
        // Of a group that was given up nothing is put aside any more.
        let is_of =
            |group: &Group| group.first <= position && position <= group.up_to && group.state != GroupState::Unknown;
        if !state.queue.groups().any(is_of) {
            return None;
        }
        let saved = state.queue.saved_of(position)?;
        Some(saved.iter_within(range).collect())
    }

    /// Reads the first piece of the bytes from `at` to `end`.
    pub(super) fn read_piece(
        &self,
        position: Position,
        (node, file): (NodeId, Option<&Inode>),
        (at, end): (u64, u64),
        buffer: &mut Vec<u8>,
    ) -> io::Result<Option<Read>> {
        let data = match file {
            Some(file) => Source::of(file).next_data(at, end)?,
            None => Some(at),
        };
        let data = data.unwrap_or(end);
        let hole = ByteRange::new(at, data);
        let piece_end = match hole {
            Some(hole) => hole.end(),
            None => end.min(at.saturating_add(PIECE_LEN as u64)),
        };
        let Some(piece) = ByteRange::new(at, piece_end) else {
            return Ok(None);
        };
        if let Some(hole) = hole {
            let Some(saved) = self.saved_within(position, hole) else {
                return Ok(None);
            };
            // Overwritten since the file was looked at, or before: that is read from the spool.
            let first = saved.iter().next();
            match first {
                None => return Ok(Some(Read::Hole(hole))),
                Some(first) if first.start() > at => {
                    return Ok(ByteRange::new(at, first.start()).map(Read::Hole));
                }
                Some(first) => {
                    let count = usize::try_from(first.len_bytes()).map_or(PIECE_LEN, |len| len.min(PIECE_LEN));
                    buffer.resize(count, 0);
                    self.spool.read(position, at, buffer)?;
                    return Ok(Some(Read::Data(count)));
                }
            }
        }
        let count = usize::try_from(piece.len_bytes()).map_err(io::Error::other)?;
        buffer.resize(count, 0);
        // How far the file could be read.
        let mut filled: usize = 0;
        let mut fault = None;
        if let (Some(file), Some(integrity)) = (file, &self.integrity) {
            let mut whole = Vec::new();
            (_, fault) = integrity.check(node, file, piece, &mut whole)?;
            let skipped = usize::try_from(at % BLOCK_LEN).map_err(io::Error::other)?;
            let found = whole.get(skipped..).unwrap_or_default();
            filled = found.len().min(count);
            let (to, from) = (buffer.get_mut(..filled), found.get(..filled));
            if let (Some(to), Some(from)) = (to, from) {
                to.copy_from_slice(from);
            }
        } else if let Some(file) = file {
            let mut source = Source::of(file);
            while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                match source.read_at(at + filled as u64, rest)? {
                    0 => break,
                    count => filled += count,
                }
            }
        }
        // Bytes are put aside before they are overwritten or cut off: those that were read too late
        // are in there.
        let Some(saved) = self.saved_within(position, piece) else {
            return Ok(None);
        };
        for range in saved.iter() {
            let from = usize::try_from(range.start() - at).map_err(io::Error::other)?;
            let to = usize::try_from(range.end() - at).map_err(io::Error::other)?;
            let window = buffer.get_mut(from..to).unwrap_or_default();
            self.spool.read(position, range.start(), window)?;
        }
        // Bytes that were put aside were compared then.
        let is_faulty = |fault: &Fault| {
            let mut from_file = saved.gaps_within(piece);
            from_file.any(|part| fault.ranges.iter().any(|range| range.intersects(part)))
        };
        if let Some(fault) = fault.filter(is_faulty) {
            return Err(io::Error::other(fault));
        }
        let unread = ByteRange::new(at + filled as u64, piece.end());
        if unread.is_some_and(|unread| saved.gaps_within(unread).next().is_some()) {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file is shorter than it was",
            ));
        }
        Ok(Some(Read::Data(count)))
    }
}

/// The result of a read: a number of bytes in the buffer, or a hole.
pub(super) enum Read {
    Data(usize),
    Hole(ByteRange),
}
