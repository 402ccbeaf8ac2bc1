//! Blocks that are not what was written, put right in place, or accepted as they are (DeltaCFS,
//! section III-E).
//!
//! A block is put right with the server's bytes of it, and only if the result has the checksum of
//! what was written ([`Integrity::healed_block`]): so what programs wrote since stays, and the
//! bytes that the server has of another version are not taken. The check and the write are one
//! moment, as for everything that lands. This is no change for the queue, as nothing changes that
//! was ever written; so the modification time stays, too.
//!
//! Accepting is a change: the blocks count as written by a program, and are sent.

use std::io;

use byteback_checksums::written::{BLOCK_LEN, Change, Reason};
use byteback_control::{Damage, Landed, Result};
use byteback_extents::ByteRange;
use byteback_host::tree::{Inode, SetTime};
use byteback_model::NodeId;
use byteback_mount::integrity::Integrity;
use byteback_mount::landing::{ContentHow, LandingContent, LandingError, LandingFile};

use super::super::LiveService;
use super::answered;
use super::file::write_all;

/// Good bytes for some blocks of a file.
struct Heal<'a> {
    integrity: &'a Integrity,
    node: NodeId,
    file: &'a LandingFile,
    /// The offset of these bytes, a multiple of a block.
    offset: u64,
    good: &'a [u8],
    mtime_ns: i128,
    /// The bytes to write, with their ranges.
    blocks: Vec<(ByteRange, Vec<u8>)>,
}

impl LandingContent for Heal<'_> {
    fn decide(&mut self) -> io::Result<std::result::Result<Vec<ByteRange>, String>> {
        let Some(damaged) = self.integrity.fault_of(self.node) else {
            return Ok(Ok(Vec::new()));
        };
        let stat = self.file.stat()?;
        self.mtime_ns = stat.mtime_ns;
        let fd: &Inode = self.file;
        let first = self.offset / BLOCK_LEN;
        for (block, good) in (first..).zip(self.good.chunks(BLOCK_LEN as usize)) {
            let start = block.saturating_mul(BLOCK_LEN);
            if !damaged.blocks.contains(block) || start >= stat.size {
                continue;
            }
            let healed = self.integrity.healed_block(self.node, fd, block, good)?;
            let healed = healed.and_then(|bytes| Some((ByteRange::from_offset_len(start, bytes.len() as u64)?, bytes)));
            self.blocks.extend(healed);
        }
        Ok(Ok(self.blocks.iter().map(|(range, _)| *range).collect()))
    }

    fn parts(&self) -> Vec<Change<'_>> {
        self.blocks.iter().map(|(range, _)| Change::Healed(*range)).collect()
    }

    fn perform(&self, part: &Change<'_>) -> io::Result<()> {
        let Change::Healed(of) = *part else { return Ok(()) };
        if let Some((range, bytes)) = self.blocks.iter().find(|(range, _)| *range == of) {
            write_all(self.file, range.start(), bytes)?;
            self.file.set_times(SetTime::Keep, SetTime::To(self.mtime_ns))?;
        }
        Ok(())
    }

    fn mark_landed(&mut self) {}
}

impl LiveService {
    fn no_sums<T>() -> std::result::Result<T, LandingError> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "no checksums are kept for this folder").into())
    }

    /// The damage of a file.
    pub(super) fn damage(&self, node: NodeId) -> Option<Damage> {
        let flagged = self.live.integrity.as_ref()?.fault_of(node)?;
        let ranges = flagged.ranges().into_iter();
        Some(Damage {
            ranges: ranges.map(|range| (range.start(), range.len_bytes())).collect(),
            after_crash: flagged.reason == Reason::Crash,
        })
    }

    pub(super) fn put_right(&self, node: NodeId, offset: u64, good: &[u8]) -> Result<Landed<u64>> {
        let heal = || {
            let Some(integrity) = &self.live.integrity else {
                return Self::no_sums();
            };
            let file = self.landing.open(node)?;
            let mut heal = Heal {
                integrity,
                node,
                file: &file,
                offset,
                good,
                mtime_ns: 0,
                blocks: Vec::new(),
            };
            let done = self.landing.content(&file, ContentHow::Written, &mut heal);
            let healed = heal.blocks.iter().map(|(range, _)| range.len_bytes()).sum();
            let range = ByteRange::from_offset_len(offset, good.len() as u64);
            self.landing.forget_content(&file, range);
            done.map(|()| healed)
        };
        let healed = heal();
        self.note_undurable([node]);
        answered(healed, || format!("cannot repair node {node}"))
    }

    pub(super) fn accept_damage(&self, node: NodeId) -> Result<Landed<u64>> {
        let accept = || {
            let Some(integrity) = &self.live.integrity else {
                return Self::no_sums();
            };
            let file = self.landing.open(node)?;
            self.landing.flush_file(&file)?;
            let mut accepted = 0;
            while let Some(flagged) = integrity.fault_of(node) {
                let Some(range) = flagged.ranges().first().copied() else {
                    break;
                };
                let size = file.stat()?.size;
                let Some(there) = range.split_at(size).0 else {
                    // The file ends before that: what was to be there is gone.
                    integrity.sums().forget(node.0);
                    break;
                };
                self.landing.accept(&file, there)?;
                accepted += there.len_bytes();
                if integrity
                    .fault_of(node)
                    .is_some_and(|left| left.blocks == flagged.blocks)
                {
                    return Err(io::Error::other("it keeps changing").into());
                }
            }
            Ok(accepted)
        };
        let accepted = accept();
        self.note_undurable([node]);
        answered(accepted, || format!("cannot accept node {node} as it is"))
    }
}
