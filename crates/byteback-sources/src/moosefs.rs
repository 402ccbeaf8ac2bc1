//! The CRCs that MooseFS's chunk servers keep of each block of a file (SkySync, Table 1:
//! distributed systems).
//!
//! ## Where they come from
//!
//! `mfsfileinfo` lists the chunks of a file and, for each copy, a digest of its CRCs. No program
//! reports the CRCs themselves: they are in the chunks' files, in front of the content, on the
//! disks of the chunk servers. So this source needs a machine with both the file in a mount and the
//! folders of a chunk server. One copy of each chunk is enough; chunks without a copy here are
//! unknown. It reads 4 KiB for 64 MiB of content.
//!
//! ## When a checksum counts
//!
//! Written data waits in `mfsmount`. `fsync` by a process that did not write it does not send it,
//! but a direct read does ([`System::flush`]). Data that waits in the mounts of other machines does
//! not belong to the file system's content yet.
//!
//! The chunk server keeps the CRCs in memory, too, and writes those in the file some milliseconds
//! later, after it answered. It computes the digest from those in memory: CRCs from the file count
//! only if they have that digest. The digest also shows where in the file they are, which changed
//! between releases.
//!
//! Neither the number nor the version of a chunk changes when it is written to, and times are whole
//! seconds. So at the end all digests are requested again, and must be the same. That is as strong
//! as CRCs are: an author of contents can make them collide. They count as a hint that content is
//! equal, never as a proof.
//!
//! Data that was written and written back meanwhile has the same digests as before. The time of the
//! last write reveals that, if it is in another second, so it counts, too: this mount knows it at
//! once, even before the master does. The inode's change time (`ctime`) does not count. It adds
//! nothing about the content to the digests and the write time, and the master sets it up to a
//! second after the write, when the mount reports the write's time: a file that is no longer
//! written to would look changed. Writes through other mounts have late times, too, by up to a
//! second; such a file looks changed once more.
//!
//! ## Which blocks
//!
//! 64 KiB, the last one padded with zeros. A chunk that was never written to is zeros, and so is
//! the space behind the blocks of a chunk.

pub(crate) mod answers;
mod system;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use byteback_extents::ByteRange;
use byteback_host::tree::Stat;

use self::answers::{BLOCK_LEN, CHUNK_LEN, Chunks, Parser, Wrong, table};
use self::system::{RealSystem, System};
use crate::programs::Programs;
use byteback_checksums::source::{
    Description, Extraction, FileChecksums, Kind, Layout, Result, Run, Source, SourceError, Stamp, Tail, Unknown,
    read_file_at, regular_file,
};

/// The description of the MooseFS source.
pub const DESCRIPTION: Description = Description {
    name: "moosefs",
    coverage: "each block of 64 KiB in chunks of which a chunk server of this machine has a copy",
    cost: "asking master and chunk servers for the file's chunks, twice, and reading 8 KiB of each chunk's file",
    permissions: "read access to the file and to the files in the chunk server's folders: usually root",
};

/// The number of attempts for a file that is written to meanwhile. A server that has not written
/// its CRCs out yet is ready within milliseconds.
const ATTEMPTS: u32 = 5;

/// A file on MooseFS, as a source.
pub struct MooseFsSource<'a> {
    file: BorrowedFd<'a>,
    programs: &'a Programs,
    folders: &'a [PathBuf],
}

impl<'a> MooseFsSource<'a> {
    /// The source for `file`, which is open for reading in a mount of MooseFS. `mfsfileinfo` is
    /// among `programs`; `folders` are those of chunk servers (`mfshdd.cfg`).
    ///
    /// # Errors
    /// [`SourceError::NotHere`] if it is not a regular file.
    pub fn new(file: &'a impl AsFd, programs: &'a Programs, folders: &'a [PathBuf]) -> Result<Self> {
        let source = Self {
            file: file.as_fd(),
            programs,
            folders,
        };
        regular_file(source.system().stat())?;
        Ok(source)
    }

    fn system(&self) -> RealSystem<'a> {
        RealSystem::new(self.file, self.programs, self.folders)
    }
}

impl Source for MooseFsSource<'_> {
    fn description(&self) -> Description {
        DESCRIPTION
    }

    fn collect(&self) -> Result<FileChecksums> {
        collect(ATTEMPTS, || self.system())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        read_file_at(self.file, offset, buffer)
    }

    fn is_unchanged(&self, stamp: &Stamp) -> Result<bool> {
        stamp.is_that_of(State::of(&self.system()).map(|state| state.stamp()))
    }
}

/// Like [`FileChecksums::collect`], but a mismatch that stays the same is not reported as a file
/// that changes.
fn collect<S: System>(attempts: u32, mut system: impl FnMut() -> S) -> Result<FileChecksums> {
    let mut stamps = Vec::new();
    let collected = FileChecksums::collect(attempts, || {
        let passage = Passage::begin(system())?;
        stamps.push(passage.state.stamp());
        Ok(passage)
    });
    let is_same = stamps.len() == attempts as usize && stamps.windows(2).all(|pair| pair.first() == pair.last());
    match collected {
        Err(SourceError::Busy) if is_same => Err(SourceError::Missing(
            "the chunk server's files do not have the CRCs that MooseFS reports for this file: name the folders of the \
             chunk servers to which the file's mount belongs (mfshdd.cfg), or try again if it was written to just now",
        )),
        done => done,
    }
}

/// The state of a file as reported in one request.
struct State {
    stat: Stat,
    chunks: Chunks,
}

impl State {
    fn of(system: &impl System) -> Result<Self> {
        let before = regular_file(system.stat())?;
        system.flush()?;
        let mut parser = Parser::default();
        system.describe(&mut |line| parser.line(line).map_err(refused))?;
        let chunks = parser.end().map_err(SourceError::Malformed)?;
        let stat = regular_file(system.stat())?;
        let is_same = stamp_without_witness(&before) == stamp_without_witness(&stat);
        match is_same && chunks.is_agreed {
            true => Ok(Self { stat, chunks }),
            false => Err(SourceError::ChangedMeanwhile),
        }
    }

    fn stamp(&self) -> Stamp {
        let mut witness = blake3::Hasher::new();
        for chunk in &self.chunks.chunks {
            let (id, version) = chunk.map_or((0, 0), |chunk| (chunk.id, chunk.version));
            witness.update(&id.to_le_bytes()).update(&version.to_le_bytes());
            let held = chunk.and_then(|chunk| chunk.held);
            let (blocks, digest) = held.map_or((u64::MAX, [0; 16]), |held| (held.blocks, held.digest));
            witness.update(&blocks.to_le_bytes()).update(&digest);
        }
        Stamp {
            witness: *witness.finalize().as_bytes(),
            ..stamp_without_witness(&self.stat)
        }
    }
}

/// Converts the reason why the output is not a list of chunks.
fn refused(wrong: Wrong) -> SourceError {
    match wrong {
        Wrong::NotMooseFs => SourceError::NotHere(
            "the file is not in a mount of MooseFS; name it by its path below the folder where mfsmount mounted it",
        ),
        Wrong::Complaint(said) => SourceError::Program {
            name: "mfsfileinfo",
            said,
        },
        Wrong::Shape(what) => SourceError::Malformed(what),
    }
}

/// The parts of `stat` that count; see the module.
fn stamp_without_witness(stat: &Stat) -> Stamp {
    Stamp {
        ctime_ns: 0,
        ..Stamp::of(stat)
    }
}

/// A single pass over a file's chunks.
struct Passage<S> {
    system: S,
    state: State,
    layout: Layout,
    /// Where the next run begins.
    at: u64,
    /// The CRCs of the current chunk.
    sums: Vec<u8>,
}

impl<S: System> Passage<S> {
    fn begin(system: S) -> Result<Self> {
        Ok(Self {
            state: State::of(&system)?,
            system,
            layout: Layout {
                kind: Kind::Crc32,
                salt: Vec::new(),
                block_len: BLOCK_LEN as u32,
                tail: Tail::ZeroPadded,
            },
            at: 0,
            sums: Vec::new(),
        })
    }

    /// The end of the CRCs of the chunk that begins at `start`, which `sums` has then, or the
    /// reason why there are none.
    fn sums_of(&mut self, start: u64) -> Result<std::result::Result<u64, Unknown>> {
        let number = usize::try_from(start / CHUNK_LEN).unwrap_or(usize::MAX);
        self.sums.clear();
        // A chunk that was never written to.
        let Some(chunk) = self.state.chunks.chunks.get(number).copied().flatten() else {
            return Ok(Ok(start));
        };
        let Some(held) = chunk.held else {
            return Err(SourceError::Missing(
                "the chunk servers have no valid copy of a part of the file; start those that are missing",
            ));
        };
        let headers = self.system.headers(&chunk)?;
        let mut has_some = false;
        for header in &headers {
            has_some = true;
            if let Some(table) = table(header, &chunk, &held).map_err(SourceError::Malformed)? {
                let (crcs, _) = table.as_chunks::<4>();
                self.sums
                    .extend(crcs.iter().flat_map(|crc| u32::from_be_bytes(*crc).to_le_bytes()));
                return Ok(Ok(start.saturating_add(held.blocks * BLOCK_LEN)));
            }
        }
        match has_some {
            // The newest CRCs are in the server's memory, not in its file yet.
            true => Err(SourceError::ChangedMeanwhile),
            false => Ok(Err(Unknown::NotSummed)),
        }
    }
}

impl<S: System> Extraction for Passage<S> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn len_bytes(&self) -> u64 {
        self.state.stat.size
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        let (at, len) = (self.at, self.state.stat.size);
        let end = (at - at % CHUNK_LEN).saturating_add(CHUNK_LEN).min(len);
        let Some(rest) = ByteRange::new(at, end) else {
            return Ok(None);
        };
        if !at.is_multiple_of(CHUNK_LEN) {
            // The CRCs of this chunk were returned already.
            self.at = end;
            return Ok(Some(Run::Zeros { range: rest }));
        }
        let summed = match self.sums_of(at)? {
            Ok(summed) => summed.min(end),
            Err(why) => {
                self.at = end;
                return Ok(Some(Run::Unknown { range: rest, why }));
            }
        };
        match ByteRange::new(at, summed) {
            Some(range) => {
                self.at = summed;
                // Blocks behind the end do not belong to the file.
                let wanted = self.layout.block_count(range) as usize * self.layout.kind.len_bytes();
                let sums = self.sums.get(..wanted).ok_or(SourceError::Malformed("too few CRCs"))?;
                Ok(Some(Run::Sums { range, sums }))
            }
            None => {
                self.at = end;
                Ok(Some(Run::Zeros { range: rest }))
            }
        }
    }

    fn finish(self) -> Result<Stamp> {
        self.state.stamp().if_it_is(&State::of(&self.system)?.stamp())
    }
}

#[cfg(test)]
mod tests;
