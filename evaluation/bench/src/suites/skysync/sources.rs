//! The sources of the client's checksums: a btrfs with SHA-256, one with CRC-32C, and checksums
//! that we summed ourselves.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use byteback_checksums::btrfs;
use byteback_checksums::kept::KeptChecksums;
use byteback_checksums::source::{Extraction, Kind, Run};
use byteback_delta::crc::{BlockLayout, CrcKind, CrcList, LastBlock};
use byteback_delta::find::{CrcSums, Known, SumList};
use byteback_delta::groups::{GroupAnswer, GroupList};
use byteback_delta::leaves::{LEAF_LEN_BYTES, Leaf, LeafDigest, LeafKind, TreeSums, leaf_count};
use byteback_extents::ByteRange;
use byteback_host::boot::boot_id;
use byteback_host::clock::{Clock, RealClock};
use byteback_host::durable::RealDir;

use crate::SuiteError;
use crate::rig::btrfs::mount;
use crate::rig::scratch::Scratch;

/// The number of blocks that are kept, at most.
const BLOCKS_MAX: u64 = 1 << 20;

/// The keeper of checksums.
pub(crate) enum Keeper {
    /// A btrfs with this kind.
    Btrfs(Kind),
    /// Our own, in a file.
    Kept(Box<KeptChecksums>),
}

/// A place for the new content, with a keeper of its checksums.
pub(crate) struct Source {
    path: PathBuf,
    keeper: Keeper,
}

/// The checksums that a source returned for a content.
pub(crate) struct SourceLeaves {
    len_bytes: u64,
    leaves: Vec<Leaf>,
    /// The CRCs of the same blocks, as far as they are known.
    crcs: Vec<Option<u32>>,
    /// The sums of groups of them.
    pub(crate) groups: GroupList,
    /// The digest of all leaves.
    pub(crate) digest: [u8; 32],
    /// Bytes that had to be read.
    pub(crate) read_bytes: u64,
}

impl SourceLeaves {
    /// The known checksums of the parts of it that are left, as
    /// [`byteback_delta::find::find_gathered`] takes them.
    pub(crate) fn known_of(&self, answer: &GroupAnswer) -> Result<Known<CrcSums<CrcList>, SumList>, SuiteError> {
        let sums = TreeSums::new(answer.signature().params(), answer.left_len_bytes());
        let mut sums = sums.ok_or("the signature is not of a kind of tree")?;
        if let Some(left) = ByteRange::new(0, answer.left_len_bytes()) {
            let leaf_of = |at: u64| at.div_ceil(u64::from(LEAF_LEN_BYTES)) as usize;
            for range in answer.gathering().in_content(left) {
                let leaves = leaf_of(range.start())..leaf_of(range.end());
                for (crc, leaf) in self.crcs[leaves.clone()].iter().zip(&self.leaves[leaves]) {
                    sums.push(*crc, Some(leaf));
                }
            }
        }
        Ok(sums.finish())
    }

    /// The CRCs of leaves.
    pub(crate) fn leaf_crcs(&self) -> CrcList {
        let mut list = CrcList::new(BlockLayout {
            kind: CrcKind::Crc32c,
            block_len_bytes: LEAF_LEN_BYTES,
            content_len_bytes: self.len_bytes,
            last: LastBlock::AsItIs,
        });
        self.crcs.iter().for_each(|crc| list.push(crc.map(u64::from)));
        list
    }
}

/// A clock that is ahead, so that a file that was just written counts as left alone for long
/// enough.
#[derive(Debug)]
struct Ahead;

impl Clock for Ahead {
    fn now_ns(&self) -> i64 {
        RealClock.now_ns() + 60_000_000_000
    }

    fn monotonic_ns(&self) -> u64 {
        RealClock.monotonic_ns()
    }

    fn sleep(&self, duration: Duration) {
        RealClock.sleep(duration);
    }
}

impl Source {
    /// A btrfs with these checksums.
    ///
    /// # Errors
    /// If this machine cannot mount one.
    pub(crate) fn btrfs(scratch: &Scratch, kind: Kind, len_bytes: u64) -> Result<Self, SuiteError> {
        let name = match kind {
            Kind::Sha256 => "sha256",
            _ => "crc32c",
        };
        // Old and new content, and btrfs's own needs.
        let point = mount(scratch, name, 4 * len_bytes + (512 << 20))?;
        Ok(Self {
            path: point.join("new"),
            keeper: Keeper::Btrfs(kind),
        })
    }

    /// Our own source, for any file system.
    ///
    /// # Errors
    /// If its file cannot be created.
    pub(crate) fn kept(scratch: &Scratch) -> Result<Self, SuiteError> {
        let folder = scratch.folder("kept")?;
        let dir = RealDir::create(&folder)?;
        let kept = KeptChecksums::open(&dir, "kept-checksums", boot_id()?, BLOCKS_MAX)?;
        Ok(Self {
            path: folder.join("new"),
            keeper: Keeper::Kept(Box::new(kept)),
        })
    }

    /// The path of the new content.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The kind of leaves that the server must keep for it.
    pub(crate) fn leaf_kind(&self) -> LeafKind {
        match self.keeper {
            Keeper::Btrfs(Kind::Sha256) => LeafKind::Sha256,
            _ => LeafKind::Blake3,
        }
    }

    /// Stores the new content there.
    ///
    /// # Errors
    /// If it cannot be written or summed.
    pub(crate) fn put(&self, content: &[u8]) -> Result<(), SuiteError> {
        fs::write(&self.path, content).map_err(|error| format!("cannot write {}: {error}", self.path.display()))?;
        let file = File::open(&self.path)?;
        file.sync_all()?;
        if let Keeper::Kept(kept) = &self.keeper {
            kept.keep(&file, &Ahead)?;
        }
        Ok(())
    }
}

/// Fetches all existing checksums and drops them. Returns their length in bytes.
///
/// # Errors
/// If there are none of the file in its present state.
pub(crate) fn extract(source: &Source, file: &File) -> Result<u64, SuiteError> {
    fn all(mut extraction: impl Extraction) -> Result<u64, SuiteError> {
        let mut len_bytes = 0;
        while let Some(run) = extraction.next_run()? {
            if let Run::Sums { sums, .. } = run {
                len_bytes += sums.len() as u64;
            }
        }
        extraction.finish()?;
        Ok(len_bytes)
    }
    match &source.keeper {
        Keeper::Btrfs(_) => all(btrfs::begin(file, &RealClock)?),
        Keeper::Kept(kept) => all(kept.begin(file, Kind::Blake3)?),
    }
}

/// Computes the same checksums by reading the file.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn sum(source: &Source, file: &File) -> Result<u64, SuiteError> {
    let mut buffer = vec![0; 256 * 1024];
    let (mut at, mut len_bytes) = (0, 0);
    loop {
        let read = file.read_at(&mut buffer, at)?;
        if read == 0 {
            return Ok(len_bytes);
        }
        at += read as u64;
        for block in buffer[..read].chunks(LEAF_LEN_BYTES as usize) {
            len_bytes += match source.keeper {
                Keeper::Btrfs(Kind::Crc32c) => {
                    std::hint::black_box(CrcKind::Crc32c.of(block));
                    4
                }
                _ => std::hint::black_box(source.leaf_kind().leaf(block)).len() as u64,
            };
        }
    }
}

/// The checksums of a file: known ones without reading, and the others by reading.
pub(crate) fn tell(source: &Source, file: &File, kind: LeafKind) -> Result<SourceLeaves, SuiteError> {
    let gathering = Gathering::new(kind, file.metadata()?.len());
    match &source.keeper {
        Keeper::Btrfs(sums) => {
            let extraction = btrfs::begin(file, &RealClock)?;
            gathering.gather(extraction, *sums, |_| &[], file)
        }
        Keeper::Kept(kept) => {
            let extraction = kept.begin(file, Kind::Blake3)?;
            gathering.gather(extraction, Kind::Blake3, |extraction| extraction.crcs(), file)
        }
    }
}

struct Gathering {
    kind: LeafKind,
    len_bytes: u64,
    leaves: Vec<Leaf>,
    crcs: Vec<Option<u32>>,
    digest: LeafDigest,
    read_bytes: u64,
    buffer: Vec<u8>,
}

impl Gathering {
    fn new(kind: LeafKind, len_bytes: u64) -> Self {
        let leaves = leaf_count(len_bytes) as usize;
        Self {
            kind,
            len_bytes,
            leaves: Vec::with_capacity(leaves),
            crcs: Vec::with_capacity(leaves),
            digest: LeafDigest::with_groups(kind, len_bytes),
            read_bytes: 0,
            buffer: Vec::new(),
        }
    }

    fn push(&mut self, crc: Option<u32>, leaf: &Leaf) {
        self.digest.push_leaf(leaf);
        self.leaves.push(*leaf);
        self.crcs.push(crc);
    }

    fn gather<E: Extraction>(
        mut self,
        mut extraction: E,
        kind: Kind,
        crcs_of: impl Fn(&E) -> &[u8],
        file: &File,
    ) -> Result<SourceLeaves, SuiteError> {
        while let Some(run) = extraction.next_run()? {
            match run {
                Run::Sums { sums, .. } if kind == Kind::Sha256 || kind == Kind::Blake3 => {
                    let sums = sums.as_chunks::<32>().0;
                    self.digest.push_leaves(sums);
                    self.leaves.extend_from_slice(sums);
                    let crcs = crcs_of(&extraction).as_chunks::<4>().0;
                    self.crcs.extend(crcs.iter().map(|crc| Some(u32::from_le_bytes(*crc))));
                    self.crcs.resize(self.leaves.len(), None);
                }
                // CRCs alone: the bytes are summed once, and equal ones are not rolled.
                Run::Sums { range, sums } => {
                    let crcs = sums.as_chunks::<4>().0.to_vec();
                    self.read(file, range, &crcs)?;
                }
                Run::Chunks { range, .. } | Run::Zeros { range } | Run::Unknown { range, .. } => {
                    self.read(file, range, &[])?;
                }
            }
        }
        extraction.finish()?;
        let proof = self.digest.finish_with_groups();
        let (digest, groups) = proof.ok_or("the leaves are not those of the whole content")?;
        Ok(SourceLeaves {
            len_bytes: self.len_bytes,
            leaves: self.leaves,
            crcs: self.crcs,
            groups,
            digest,
            read_bytes: self.read_bytes,
        })
    }

    /// Reads a range, which begins with a leaf, and sums it, except for known CRCs.
    fn read(&mut self, file: &File, range: ByteRange, crcs: &[[u8; 4]]) -> Result<(), SuiteError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(256 * 1024, 0);
        let (mut at, mut number) = (range.start(), 0);
        while at < range.end() {
            // At most the buffer.
            let piece = &mut buffer[..(range.end() - at).min(256 * 1024) as usize];
            file.read_exact_at(piece, at)?;
            for block in piece.chunks(LEAF_LEN_BYTES as usize) {
                // CRCs of 32 bits.
                let crc = crcs
                    .get(number)
                    .map_or_else(|| CrcKind::Crc32c.of(block) as u32, |crc| u32::from_le_bytes(*crc));
                let leaf = self.kind.leaf(block);
                self.push(Some(crc), &leaf);
                number += 1;
            }
            at += piece.len() as u64;
        }
        self.read_bytes += range.len_bytes();
        self.buffer = buffer;
        Ok(())
    }
}
