//! Checksums of a file's leaves as of a cut (SkySync, section 3.1): from a source that has them,
//! and by reading for the rest.
//!
//! The sources, in this order: btrfs, if its checksums are strong; this process, if it summed the
//! file before and the file has not changed since ([`byteback_checksums::kept`]); none. The
//! CRC-32Cs of btrfs do not prove content equal and are not passed on: such a file is read.
//!
//! **Freshness.** A source reports what the backing file holds at some moment while it is asked, or
//! that the file changed meanwhile. The report counts if the picture says *afterwards* that nothing
//! of the file was written since the cut ([`Picture::is_unwritten`]): then that moment's content is
//! the cut's. Where no mount holds files still, it counts if the file looks, again afterwards, as
//! it did when its attributes were read, as for everything that is read there. Otherwise the report
//! begins anew, and what was written since the cut is read from the picture, which is always
//! possible. So an answer may cost reading, but is always about the cut.
//!
//! **Keeping.** A file whose BLAKE3 checksums no source has is read from the picture and summed. If
//! it was not changed for some seconds and is not short, it is first summed into the kept store and
//! answered from there: the next request reads nothing, unless the file changes or the machine
//! restarts before. The store is bounded by the number of its blocks, forgets the oldest, and is
//! left alone where it would take the space that the log needs.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use byteback_checksums::btrfs;
use byteback_checksums::kept::{KeptChecksums, KeptExtraction};
use byteback_checksums::source::{Extraction, Kind, Layout, Run, SourceError, Stamp, Tail};
use byteback_control::{
    ErrorKind, LEAF_LEN_BYTES, LEAF_SUM_LEN, LeafKind, LeafOffer, LeafPiece, LeafRequest, LeafSource, LeavesSummary,
    Result, ServiceError,
};
use byteback_extents::ByteRange;
use byteback_host::tree::Inode;
use byteback_model::{NodeId, NodeKind};
use byteback_mount::picture::{Content, FrozenFile, Picture, PictureError};
use rustix::fs::OFlags;

use super::Service;
use super::open_cut::OpenCut;
use crate::tree::TrackedTree;

/// How often a source is asked before the file is read.
const ATTEMPTS: u32 = 2;

/// Nothing is kept of shorter files: reading them costs less than keeping.
const KEPT_LEN_MIN: u64 = 1 << 20;

/// Nothing is kept where less than this would stay free for the log, beside what it takes.
const KEPT_LEAVES_FREE_BYTES: u64 = 256 << 20;

/// Space that keeping a block takes in the meantime, while old and new pages of the database stand
/// side by side.
const KEPT_BLOCK_COST_BYTES: u64 = 128;

/// Leaves that are passed on at once.
const LEAVES_PER_PIECE: usize = 4096;

fn kind_of(kind: LeafKind) -> Kind {
    match kind {
        LeafKind::Sha256 => Kind::Sha256,
        LeafKind::Blake2b256 => Kind::Blake2b256,
        LeafKind::Blake3 => Kind::Blake3,
    }
}

/// The kind of the leaves that this layout describes, if it describes leaves.
fn leaf_kind_of(layout: &Layout) -> Option<LeafKind> {
    let is_plain = u64::from(layout.block_len) == LEAF_LEN_BYTES && layout.salt.is_empty();
    match layout.kind {
        Kind::Sha256 if is_plain => Some(LeafKind::Sha256),
        Kind::Blake2b256 if is_plain => Some(LeafKind::Blake2b256),
        Kind::Blake3 if is_plain => Some(LeafKind::Blake3),
        _ => None,
    }
}

/// Takes the leaves that are passed on.
type Sink<'a> = &'a mut dyn FnMut(LeafPiece<'_>) -> Result<()>;

/// Why one source did not get to its end.
enum Stop {
    /// There is nothing here, or it is void: another source may be tried.
    NotHere,
    /// The file changes: the same source may be tried again.
    Changed,
    /// The receiver stopped, or the cut cannot be read.
    Failed(ServiceError),
}

impl From<SourceError> for Stop {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::ChangedMeanwhile => Self::Changed,
            // None of these is the file's fault. The file is read, and a failure of that is
            // reported.
            SourceError::NotHere(_)
            | SourceError::NeedsRoot
            | SourceError::Denied(_)
            | SourceError::Missing(_)
            | SourceError::Server { .. }
            | SourceError::Busy
            | SourceError::Malformed(_)
            | SourceError::Chunk { .. }
            | SourceError::NoProgram { .. }
            | SourceError::ProgramDenied { .. }
            | SourceError::Program { .. }
            | SourceError::Elsewhere { .. }
            | SourceError::Io { .. } => Self::NotHere,
        }
    }
}

/// A file of a cut, with the request about its leaves.
struct File<'a> {
    service: &'a Service,
    open: &'a OpenCut,
    picture: &'a Arc<Picture>,
    node: NodeId,
    /// Its length at the cut.
    len_bytes: u64,
    request: LeafRequest,
}

impl Service {
    pub(super) fn offer_leaves(&self, open: &OpenCut, node: NodeId) -> Result<LeafOffer> {
        let picture = open.picture()?;
        self.file_len(open, picture, node)?;
        let failed = |error| self.node_failed(&open.cut, node, &error);
        let backing = match picture.is_unwritten(node).map_err(failed)? {
            true => backing(&self.tree, node),
            false => None,
        };
        let known = backing.and_then(|file| match btrfs::layout(&file).ok().as_ref().and_then(leaf_kind_of) {
            Some(kind) => Some(LeafOffer {
                kind,
                source: LeafSource::Btrfs,
                has_crcs: false,
            }),
            None => {
                let kept = self.tree.kept_checksums()?;
                kept.begin(&file, Kind::Blake3).ok().map(|_| LeafOffer {
                    kind: LeafKind::Blake3,
                    source: LeafSource::Kept,
                    has_crcs: true,
                })
            }
        });
        Ok(known.unwrap_or(LeafOffer {
            kind: LeafKind::Blake3,
            source: LeafSource::Read,
            has_crcs: true,
        }))
    }

    pub(super) fn tell_leaves(
        &self,
        open: &OpenCut,
        node: NodeId,
        request: LeafRequest,
        sink: Sink<'_>,
    ) -> Result<LeavesSummary> {
        let picture = open.picture()?;
        let file = File {
            service: self,
            open,
            picture,
            node,
            len_bytes: self.file_len(open, picture, node)?,
            request,
        };
        file.tell(sink)
    }

    /// The length of a regular file at the cut.
    fn file_len(&self, open: &OpenCut, picture: &Picture, node: NodeId) -> Result<u64> {
        let failed = |error| self.node_failed(&open.cut, node, &error);
        let stat = picture.attributes(self.tree.live(), node).map_err(failed)?.stat;
        match stat.kind {
            NodeKind::File => Ok(stat.size),
            _ => Err(ServiceError {
                kind: ErrorKind::Node,
                message: "only regular files have checksums".to_owned(),
                path: self.path_text(&open.cut, node),
            }),
        }
    }
}

/// The current file of a node, open for reading; `None` if there is none, or if the kernel does not
/// know it: then no other source has checksums of it.
fn backing(tree: &TrackedTree, node: NodeId) -> Option<OwnedFd> {
    let (fd, stat) = tree.live().find(node).ok().flatten()?;
    if stat.kind != NodeKind::File {
        return None;
    }
    match fd.reopen(OFlags::RDONLY | OFlags::NONBLOCK).ok()? {
        Inode::System(fd) => Some(fd),
        Inode::Library(_) => None,
    }
}

impl File<'_> {
    fn tell(&self, sink: Sink<'_>) -> Result<LeavesSummary> {
        let mut read_bytes = 0;
        for _ in 0..ATTEMPTS {
            match self.tell_known(&mut read_bytes, sink) {
                Ok(source) => return Ok(LeavesSummary { source, read_bytes }),
                Err(Stop::Changed) => {}
                Err(Stop::NotHere) => break,
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
        let frozen = self.frozen()?;
        if let Some(all) = ByteRange::new(0, self.len_bytes) {
            self.send_read_leaves(&frozen, all, &mut read_bytes, sink)?;
        }
        let source = LeafSource::Read;
        Ok(LeavesSummary { source, read_bytes })
    }

    fn failed(&self, error: &PictureError) -> ServiceError {
        self.service.node_failed(&self.open.cut, self.node, error)
    }

    fn frozen(&self) -> Result<FrozenFile> {
        let opened = self.picture.open_file(self.service.tree.live(), self.node);
        opened.map_err(|error| self.failed(&error))
    }

    /// Checks that findings about the backing file are true of the cut.
    fn check_unwritten(&self) -> Result<(), Stop> {
        match self.picture.is_unwritten(self.node) {
            Ok(true) => Ok(()),
            // No second attempt: what was written stays written.
            Ok(false) => Err(Stop::NotHere),
            Err(error) => Err(Stop::Failed(self.failed(&error))),
        }
    }

    /// Passes on the checksums that a source has.
    fn tell_known(&self, read_bytes: &mut u64, sink: Sink<'_>) -> Result<LeafSource, Stop> {
        self.check_unwritten()?;
        let tree = &self.service.tree;
        let file = backing(tree, self.node).ok_or(Stop::NotHere)?;
        let of_disk = btrfs::layout(&file).ok().as_ref().and_then(leaf_kind_of);
        if of_disk == Some(self.request.kind) && !self.request.with_crcs {
            let extraction = btrfs::begin(&file, &**tree.clock())?;
            self.tell_extraction(FromDisk(extraction), read_bytes, sink)?;
            return Ok(LeafSource::Btrfs);
        }
        if self.request.kind != LeafKind::Blake3 {
            return Err(Stop::NotHere);
        }
        let kept = tree.kept_checksums().ok_or(Stop::NotHere)?;
        let (extraction, source) = match kept.begin(&file, Kind::Blake3) {
            Ok(extraction) => (extraction, LeafSource::Kept),
            Err(SourceError::NotHere(_)) => {
                self.keep(&kept, &file, read_bytes)?;
                (kept.begin(&file, Kind::Blake3)?, LeafSource::Read)
            }
            Err(error) => return Err(error.into()),
        };
        self.tell_extraction(extraction, read_bytes, sink)?;
        Ok(source)
    }

    /// Sums the backing file into the kept store, if that is worth it.
    fn keep(&self, kept: &KeptChecksums, file: &OwnedFd, read_bytes: &mut u64) -> Result<(), Stop> {
        if self.len_bytes < KEPT_LEN_MIN {
            return Err(Stop::NotHere);
        }
        let tree = &self.service.tree;
        let space = rustix::fs::statvfs(tree.folder().path()).map_err(|_| Stop::NotHere)?;
        let taken = (self.len_bytes / LEAF_LEN_BYTES).saturating_mul(KEPT_BLOCK_COST_BYTES);
        if space.f_bavail.saturating_mul(space.f_frsize) < taken.saturating_add(KEPT_LEAVES_FREE_BYTES) {
            return Err(Stop::NotHere);
        }
        let done = kept.keep(file, &**tree.clock());
        if matches!(done, Ok(()) | Err(SourceError::ChangedMeanwhile)) {
            *read_bytes += self.len_bytes;
            self.picture.count_read_bytes(self.len_bytes);
        }
        // A file that is being written to is read from the picture.
        done.map_err(|_| Stop::NotHere)
    }

    /// Passes on what an extraction of the backing file knows, and reads the rest.
    fn tell_extraction(&self, mut extraction: impl WithCrcs, read_bytes: &mut u64, sink: Sink<'_>) -> Result<(), Stop> {
        if extraction.len_bytes() != self.len_bytes {
            return Err(Stop::NotHere);
        }
        let frozen = self.frozen().map_err(Stop::Failed)?;
        let mut entries = Vec::new();
        let mut position = 0;
        // Unknown ranges between known ones are read in one go.
        let mut unknown: Option<ByteRange> = None;
        loop {
            entries.clear();
            let known = match extraction.next_run()? {
                Some(Run::Unknown { range, .. }) => {
                    follow(&mut position, range)?;
                    unknown = Some(unknown.map_or(range, |before| before.hull(range)));
                    continue;
                }
                Some(Run::Sums { range, sums }) => {
                    let leaves = range.len_bytes().div_ceil(LEAF_LEN_BYTES);
                    if sums.len() as u64 != leaves * LEAF_SUM_LEN as u64 {
                        return Err(Stop::NotHere);
                    }
                    entries.extend_from_slice(sums);
                    Some((range, true))
                }
                Some(Run::Zeros { range }) => Some((range, false)),
                // Chunks are not leaves.
                Some(Run::Chunks { .. }) => return Err(Stop::NotHere),
                None => None,
            };
            if let Some(range) = unknown.take() {
                self.send_read_leaves(&frozen, range, read_bytes, sink)
                    .map_err(Stop::Failed)?;
            }
            let Some((range, is_summed)) = known else { break };
            follow(&mut position, range)?;
            if is_summed && self.request.with_crcs {
                entries = interleaved(extraction.crcs(), &entries);
            }
            let piece = match is_summed {
                false => LeafPiece::Zeros(range),
                true => LeafPiece::Sums {
                    offset: range.start(),
                    entries: &entries,
                },
            };
            sink(piece).map_err(Stop::Failed)?;
        }
        if position != self.len_bytes {
            return Err(Stop::NotHere);
        }
        extraction.finish()?;
        self.check_unwritten()
    }

    /// Reads a range of the cut that begins with a leaf, and passes on its checksums.
    fn send_read_leaves(
        &self,
        frozen: &FrozenFile,
        range: ByteRange,
        read_bytes: &mut u64,
        sink: Sink<'_>,
    ) -> Result<()> {
        let mut leaves = LeafMaker::new(self.request, range.start(), sink);
        let mut stopped = None;
        let mut position = range.start();
        let read = frozen.peek(range, &mut |content| {
            let taken = match content {
                Content::Hole(hole) => {
                    position = hole.end();
                    leaves.zeros(hole.len_bytes())
                }
                Content::Data(offset, bytes) => {
                    *read_bytes += bytes.len() as u64;
                    position = offset + bytes.len() as u64;
                    leaves.data(bytes)
                }
            };
            taken.map_err(|error| {
                stopped = Some(error);
                PictureError::Stopped
            })
        });
        if let Some(error) = stopped {
            return Err(error);
        }
        read.map_err(|error| self.failed(&error))?;
        if position != range.end() {
            let source = io::Error::new(io::ErrorKind::UnexpectedEof, "it was truncated while it was being read");
            return Err(self.failed(&PictureError::Node { source }));
        }
        leaves.finish()
    }
}

/// Goes on from `position` to the end of `range`, which must begin there, with a leaf.
fn follow(position: &mut u64, range: ByteRange) -> Result<(), Stop> {
    if range.start() != *position || !range.start().is_multiple_of(LEAF_LEN_BYTES) {
        return Err(Stop::NotHere);
    }
    *position = range.end();
    Ok(())
}

/// An extraction that may know CRCs beside its checksums.
trait WithCrcs: Extraction {
    /// The CRCs of the last run.
    fn crcs(&self) -> &[u8];
}

impl WithCrcs for KeptExtraction<'_, OwnedFd> {
    fn crcs(&self) -> &[u8] {
        Self::crcs(self)
    }
}

/// An extraction from the disk, which keeps checksums of one kind only.
struct FromDisk<'file>(btrfs::BtrfsExtraction<'file>);

impl Extraction for FromDisk<'_> {
    fn layout(&self) -> &Layout {
        self.0.layout()
    }

    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn next_run(&mut self) -> byteback_checksums::source::Result<Option<Run<'_>>> {
        self.0.next_run()
    }

    fn finish(self) -> byteback_checksums::source::Result<Stamp> {
        self.0.finish()
    }
}

impl WithCrcs for FromDisk<'_> {
    fn crcs(&self) -> &[u8] {
        &[]
    }
}

/// Puts its CRC before each checksum.
fn interleaved(crcs: &[u8], sums: &[u8]) -> Vec<u8> {
    let mut entries = Vec::with_capacity(crcs.len() + sums.len());
    for (crc, sum) in crcs.as_chunks::<4>().0.iter().zip(sums.chunks(LEAF_SUM_LEN)) {
        entries.extend_from_slice(crc);
        entries.extend_from_slice(sum);
    }
    entries
}

/// Sums bytes that come in order, leaf by leaf.
struct LeafMaker<'a> {
    request: LeafRequest,
    sum: Layout,
    crc: Layout,
    /// Where the first of `entries` begins.
    start: u64,
    entries: Vec<u8>,
    /// The leaf that is not whole yet, behind `entries`.
    leaf: Vec<u8>,
    sink: Sink<'a>,
}

impl<'a> LeafMaker<'a> {
    fn new(request: LeafRequest, start: u64, sink: Sink<'a>) -> Self {
        let layout = |kind| Layout {
            kind,
            salt: Vec::new(),
            block_len: LEAF_LEN_BYTES as u32,
            tail: Tail::AsIs,
        };
        Self {
            request,
            sum: layout(kind_of(request.kind)),
            crc: layout(Kind::Crc32c),
            start,
            entries: Vec::new(),
            leaf: Vec::with_capacity(LEAF_LEN_BYTES as usize),
            sink,
        }
    }

    fn data(&mut self, mut bytes: &[u8]) -> Result<()> {
        let leaf_len = LEAF_LEN_BYTES as usize;
        if !self.leaf.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(leaf_len - self.leaf.len()));
            self.leaf.extend_from_slice(now);
            bytes = later;
            if self.leaf.len() < leaf_len {
                return Ok(());
            }
            let leaf = std::mem::take(&mut self.leaf);
            self.sum(&leaf)?;
            self.leaf = leaf;
            self.leaf.clear();
        }
        let mut leaves = bytes.chunks_exact(leaf_len);
        for leaf in &mut leaves {
            self.sum(leaf)?;
        }
        self.leaf.extend_from_slice(leaves.remainder());
        Ok(())
    }

    fn zeros(&mut self, mut len_bytes: u64) -> Result<()> {
        const ZEROS: [u8; LEAF_LEN_BYTES as usize] = [0; LEAF_LEN_BYTES as usize];
        if !self.leaf.is_empty() {
            let now = len_bytes.min(LEAF_LEN_BYTES - self.leaf.len() as u64);
            self.data(ZEROS.get(..now as usize).unwrap_or_default())?;
            len_bytes -= now;
        }
        let whole = len_bytes - len_bytes % LEAF_LEN_BYTES;
        if whole > 0 {
            self.flush()?;
            if let Some(range) = ByteRange::from_offset_len(self.start, whole) {
                (self.sink)(LeafPiece::Zeros(range))?;
                self.start = range.end();
            }
        }
        self.data(ZEROS.get(..(len_bytes - whole) as usize).unwrap_or_default())
    }

    fn sum(&mut self, leaf: &[u8]) -> Result<()> {
        if self.request.with_crcs {
            self.crc.append_sum(leaf, &mut self.entries);
        }
        self.sum.append_sum(leaf, &mut self.entries);
        match self.entries.len() >= LEAVES_PER_PIECE * self.request.entry_len() {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let leaves = (self.entries.len() / self.request.entry_len()) as u64;
        (self.sink)(LeafPiece::Sums {
            offset: self.start,
            entries: &self.entries,
        })?;
        self.entries.clear();
        self.start += leaves * LEAF_LEN_BYTES;
        Ok(())
    }

    /// Ends the last leaf, which may be short.
    fn finish(mut self) -> Result<()> {
        if !self.leaf.is_empty() {
            let leaf = std::mem::take(&mut self.leaf);
            self.sum(&leaf)?;
        }
        self.flush()
    }
}

#[cfg(test)]
mod tests;
