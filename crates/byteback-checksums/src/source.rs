//! The interface and the types that all sources of existing checksums share (SkySync section 3.1).
//!
//! Words: a *source* is storage or a program that already keeps checksums of a file's blocks. A
//! [`Layout`] gives the kind of checksum and the blocks. A [`Run`] is a stretch of the file about
//! which one thing is known: its checksums, that it is zeros, or nothing. An *extraction* goes
//! through one open file once, its runs ascending, without gaps, from byte 0 to the end. A
//! [`Stamp`] identifies the state of the file that the checksums describe.
//!
//! Invariant: the runs of an extraction count only after [`Extraction::finish`]. Then all of them
//! describe the file as it was at one moment after the extraction began. If anything changed
//! meanwhile, `finish` reports it and all returned runs are void: a checksum of bytes that the file
//! no longer holds would keep a change from being sent.
//!
//! [`FileChecksums::collect`] runs an extraction for callers that can hold the checksums of a whole
//! file in memory (0.1 % of it for CRC-32C), and retries it a few times.
//!
//! [`Source`] is one file together with the storage that has checksums of it, local or not. It
//! gives its description, all known checksums, and the bytes, so that [`verify`] can compare
//! checksums and bytes.

mod stretches;
mod sum;
mod verify;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use byteback_extents::ByteRange;
use byteback_host::tree::{Identity, Stat};
use byteback_model::NodeKind;

pub use stretches::{Known, Stretches};
pub use sum::Summer;
pub use verify::{Verified, VerifyError, verify};

/// The function that computes a checksum. Checksums are bytes, in the order that is given here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// CRC-32C (Castagnoli) as in iSCSI, all ones before and inverted after; little-endian.
    Crc32c,
    /// CRC-32 as in zlib; little-endian.
    Crc32,
    /// CRC-64/NVME; little-endian.
    Crc64Nvme,
    /// XXH64 with seed 0; little-endian.
    Xxh64,
    /// SHA-1. Broken: an author of both contents can make them collide.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
    /// SHA-512/256, which is not the beginning of SHA-512.
    Sha512Of256,
    /// BLAKE2b with 32 bytes, without a key.
    Blake2b256,
    /// The four sums of ZFS's fletcher4 over little-endian words of 4 bytes, the last of which is
    /// filled up with zeros; each little-endian. Not cryptographic: an author of contents can find
    /// two with the same sums.
    Fletcher4,
    /// BLAKE3 with 32 bytes, without a key.
    Blake3,
}

impl Kind {
    /// Bytes of one checksum.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::Crc32c | Self::Crc32 => 4,
            Self::Crc64Nvme | Self::Xxh64 => 8,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Sha512Of256 | Self::Blake2b256 | Self::Blake3 | Self::Fletcher4 => 32,
            Self::Sha512 => 64,
        }
    }

    /// The function's name in messages and JSON lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Crc32 => "crc32",
            Self::Crc64Nvme => "crc64nvme",
            Self::Xxh64 => "xxh64",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
            Self::Sha512Of256 => "sha512_256",
            Self::Blake2b256 => "blake2b256",
            Self::Fletcher4 => "fletcher4",
            Self::Blake3 => "blake3",
        }
    }

    /// All functions.
    pub const ALL: [Self; 11] = [
        Self::Crc32c,
        Self::Crc32,
        Self::Crc64Nvme,
        Self::Xxh64,
        Self::Sha1,
        Self::Sha256,
        Self::Sha512,
        Self::Sha512Of256,
        Self::Blake2b256,
        Self::Fletcher4,
        Self::Blake3,
    ];

    /// Whether two blocks with the same checksum are taken for equal without comparing them,
    /// because two such blocks cannot be constructed.
    #[must_use]
    pub const fn is_strong(self) -> bool {
        matches!(
            self,
            Self::Sha256 | Self::Sha512 | Self::Sha512Of256 | Self::Blake2b256 | Self::Blake3
        )
    }
}

/// How the checksum of a shorter last block is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tail {
    /// Over the existing bytes only.
    AsIs,
    /// Over the existing bytes, and zeros up to the length of a block.
    ZeroPadded,
}

/// The kind of checksums that a source has of a file, and the blocks that they cover.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The function.
    pub kind: Kind,
    /// Bytes fed to the function before each block; mostly none.
    pub salt: Vec<u8>,
    /// Bytes of a block. Those of [`Run::Sums`] begin at multiples of it; those of [`Run::Chunks`]
    /// are no longer. Never 0.
    pub block_len: u32,
    /// How a shorter last block of [`Run::Sums`] is summed; chunks are never padded.
    pub tail: Tail,
}

impl Layout {
    /// The number of [`Run::Sums`] blocks in a range that begins at a block's start.
    #[must_use]
    pub fn block_count(&self, range: ByteRange) -> u64 {
        range.len_bytes().div_ceil(u64::from(self.block_len))
    }

    /// Appends to `sums` the checksum that the source would have of `block`, so that unknown blocks
    /// can be filled in by reading. `block` has the length of a block, or is shorter if it is the
    /// file's last one.
    pub fn append_sum(&self, block: &[u8], sums: &mut Vec<u8>) {
        let mut summer = Summer::new(self);
        summer.push(block);
        summer.end_block(sums);
    }
}

/// A source's description of itself, the same for all of its files. Sentences without a full stop,
/// for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Description {
    /// The source's name, in messages and JSON lines.
    pub name: &'static str,
    /// The stretches of a file that have checksums, and those that have none.
    pub coverage: &'static str,
    /// The reads and requests that it takes to get the checksums.
    pub cost: &'static str,
    /// The permissions that it takes.
    pub permissions: &'static str,
}

/// A file together with the storage that has checksums of it.
pub trait Source {
    /// The description that holds for all files of this source.
    fn description(&self) -> Description;

    /// All that is known of the file as it is at one moment after the call.
    ///
    /// # Errors
    /// See [`SourceError`]. No checksums at all are [`SourceError::NotHere`].
    fn collect(&self) -> Result<FileChecksums>;

    /// Reads bytes of the file from `offset` on, as many as there are and `buffer` has room for;
    /// less only at the end.
    ///
    /// # Errors
    /// [`SourceError::ChangedMeanwhile`] if the source notices that the state described by
    /// [`Self::collect`] is gone; any other error that prevents reading.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;

    /// Whether the file still is, to the byte, in the state that this stamp describes. False if
    /// that cannot be proven.
    ///
    /// # Errors
    /// See [`SourceError`].
    fn is_unchanged(&self, stamp: &Stamp) -> Result<bool>;
}

/// The reason why a source has no checksums for a stretch of a file, which then has to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unknown {
    /// The content lies in the metadata, which has checksums of its own.
    Inline,
    /// The checksums are of compressed bytes, and equal content may be compressed in many ways.
    Compressed,
    /// As before, with an encoding that this program does not know.
    Encoded,
    /// Not summed: `chattr +C`, `nodatasum`, or a block that the source never received.
    NotSummed,
    /// The last block is not full, and its checksum may include bytes that the file does not have
    /// (any more).
    Tail,
    /// The stretch was summed by another function than the rest, or by one unknown to this program.
    OtherFunction,
}

impl Unknown {
    /// The reason's name in JSON lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Compressed => "compressed",
            Self::Encoded => "encoded",
            Self::NotSummed => "not_summed",
            Self::Tail => "tail",
            Self::OtherFunction => "other_function",
        }
    }
}

/// The knowledge about one stretch of a file. Stretches begin at multiples of a block's length, and
/// end there or at the end of the file; chunks, and the stretches beside them, end anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run<'a> {
    /// The checksums of the stretch's blocks.
    Sums {
        /// The stretch.
        range: ByteRange,
        /// The checksums, concatenated, as many as there are blocks.
        sums: &'a [u8],
    },
    /// The checksums of blocks of varying lengths, as a deduplicating store cut them. They are of
    /// no use to a caller that needs blocks of one length.
    Chunks {
        /// The stretch.
        range: ByteRange,
        /// Where each block ends in the file; ascending, the last one at the stretch's end.
        ends: &'a [u64],
        /// The checksums, concatenated, as many as there are ends.
        sums: &'a [u8],
    },
    /// The stretch reads as zeros: a hole, or space that was never written.
    Zeros {
        /// The stretch.
        range: ByteRange,
    },
    /// Nothing is known.
    Unknown {
        /// The stretch.
        range: ByteRange,
        /// The reason.
        why: Unknown,
    },
}

impl Run<'_> {
    /// The stretch.
    #[must_use]
    pub fn range(&self) -> ByteRange {
        match *self {
            Self::Sums { range, .. }
            | Self::Chunks { range, .. }
            | Self::Zeros { range }
            | Self::Unknown { range, .. } => range,
        }
    }
}

/// The file, and the state of it, that was described. The source that made a stamp can tell whether
/// the file is still in that state.
///
/// For anything but a local file, only the length and the witness are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The identity of the file.
    pub identity: Identity,
    /// The file's length.
    pub len_bytes: u64,
    /// When its bytes last changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// When its bytes or metadata last changed, in nanoseconds since 1970; 0 where the source does
    /// not go by that.
    pub ctime_ns: i64,
    /// Further evidence of the source (btrfs: a digest of the extents).
    pub witness: [u8; 32],
}

impl Stamp {
    /// The stamp of something that is not a local file.
    pub fn elsewhere(len_bytes: u64, witness: [u8; 32]) -> Self {
        Self {
            identity: Identity {
                dev: 0,
                ino: 0,
                birth_ns: None,
            },
            len_bytes,
            mtime_ns: 0,
            ctime_ns: 0,
            witness,
        }
    }

    /// Returns this stamp if the file still has it; otherwise the runs returned meanwhile are void.
    pub fn if_it_is(self, now: &Self) -> Result<Self> {
        match self == *now {
            true => Ok(self),
            false => Err(SourceError::ChangedMeanwhile),
        }
    }

    /// Whether `reported`, the result of asking for the file's stamp, is this stamp.
    pub fn is_that_of(&self, reported: Result<Self>) -> Result<bool> {
        match reported {
            Ok(now) => Ok(now == *self),
            Err(SourceError::ChangedMeanwhile) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The stamp of a `stat` result, without a witness.
    pub fn of(stat: &Stat) -> Self {
        Self {
            identity: stat.identity(),
            len_bytes: stat.size,
            mtime_ns: stat.mtime_stamp_ns(),
            ctime_ns: stat.ctime_ns,
            witness: [0; 32],
        }
    }
}

/// The reason why there are no checksums, or none that count.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// This source is not for this file; another one may be, or the file is read.
    #[error("no checksums found: {0}")]
    NotHere(&'static str),
    /// The kernel reports checksums to root only.
    #[error("the kernel reports a file system's checksums only to root; run as root, or read the file instead")]
    NeedsRoot,
    /// The storage refuses to give us its checksums.
    #[error("{0}")]
    Denied(&'static str),
    /// The requested file or object does not exist.
    #[error("{0}")]
    Missing(&'static str),
    /// A server did not do what it was asked.
    #[error("the server did not {what}: status {status} {code}")]
    Server {
        /// The request.
        what: &'static str,
        /// The status of its answer.
        status: u16,
        /// The server's name for the error; may be empty.
        code: String,
    },
    /// A server that another one referred to did not return the checksums.
    #[error("{server} does not report the checksums of {what}: {why}; fix that, or read the file instead")]
    Elsewhere {
        /// The server's name and address.
        server: String,
        /// The subject of the request.
        what: String,
        /// The reason, as far as known.
        why: String,
        /// The network's error.
        source: Option<io::Error>,
    },
    /// The file changed while its checksums were read: the returned runs are void. Trying again may
    /// help.
    #[error("the file changed while its checksums were read; try again")]
    ChangedMeanwhile,
    /// The file, or the file system under it, changed at every attempt.
    #[error("the file keeps changing; use a cut or a snapshot of it, which does not change, or read it instead")]
    Busy,
    /// The source returned something impossible.
    #[error("the source of checksums returned invalid data ({0}); check the source, and read the file instead")]
    Malformed(&'static str),
    /// A program that belongs to the storage is not installed.
    #[error("{name} is not installed, or not in PATH; install it, or read the file instead")]
    NoProgram {
        /// The program's name.
        name: &'static str,
    },
    /// A program that belongs to the storage may be installed, but not for this user.
    #[error(
        "cannot run {name}: this user may not {what} {}; run as a user who may, or read the file instead",
        path.display()
    )]
    ProgramDenied {
        /// The program's name.
        name: &'static str,
        /// The program, or the folder that may have it.
        path: PathBuf,
        /// The action on it that is not permitted.
        what: &'static str,
    },
    /// A program failed at its task.
    #[error("{name} failed: {said}")]
    Program {
        /// The program's name.
        name: &'static str,
        /// The program's complaint.
        said: String,
    },
    /// A chunk of a deduplicating store cannot be had.
    #[error("the chunk {id} {what}; check the store, or take the file from another copy")]
    Chunk {
        /// The chunk's fingerprint, hexadecimal.
        id: String,
        /// The defect.
        what: &'static str,
    },
    /// A system call failed.
    #[error("cannot {what}")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl SourceError {
    /// [`SourceError::Io`] of an attempt that `what` names, for `map_err`.
    pub fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// The `stat` of a file that has to be a regular one.
pub fn regular_file(reported: io::Result<Stat>) -> Result<Stat> {
    let stat = reported.map_err(SourceError::io("read the file's length and times"))?;
    match stat.kind {
        NodeKind::File => Ok(stat),
        _ => Err(SourceError::NotHere("not a regular file")),
    }
}

/// Reads from an open file as [`Source::read_at`] does.
pub fn read_file_at(file: BorrowedFd<'_>, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let mut len = 0;
    while let Some(rest) = buffer.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, offset + len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(SourceError::io("read the file")(errno.into())),
        }
    }
    Ok(len)
}

/// The result of a source's functions.
pub type Result<T> = std::result::Result<T, SourceError>;

/// A single pass over one open file's checksums; see the module.
pub trait Extraction {
    /// The kind of checksums, and their blocks.
    fn layout(&self) -> &Layout;

    /// The file's length; the runs cover all of it.
    fn len_bytes(&self) -> u64;

    /// The next run; `None` behind the last one. The run is void until [`Self::finish`].
    ///
    /// # Errors
    /// See [`SourceError`]; the extraction is over then.
    fn next_run(&mut self) -> Result<Option<Run<'_>>>;

    /// Proves that all returned runs describe the file at one moment, and still do. Runs that were
    /// not fetched are not described.
    ///
    /// # Errors
    /// [`SourceError::ChangedMeanwhile`]: all runs are void.
    fn finish(self) -> Result<Stamp>
    where
        Self: Sized;
}

/// All that is known of a file, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChecksums {
    stamp: Stamp,
    stretches: Stretches,
}

impl FileChecksums {
    /// Runs an extraction started by `begin`, and starts another one, up to `attempts` in all, if
    /// the file changed meanwhile.
    ///
    /// # Errors
    /// [`SourceError::Busy`] if it changed each time; any other error of the extraction.
    pub fn collect<E: Extraction>(attempts: u32, mut begin: impl FnMut() -> Result<E>) -> Result<Self> {
        for _ in 0..attempts {
            match begin().and_then(Self::collect_once) {
                Err(SourceError::ChangedMeanwhile) => {}
                done => return done,
            }
        }
        Err(SourceError::Busy)
    }

    fn collect_once(mut extraction: impl Extraction) -> Result<Self> {
        let len_bytes = extraction.len_bytes();
        let mut stretches = Stretches::new(extraction.layout().clone());
        if stretches.layout.block_len == 0 {
            return Err(SourceError::Malformed("empty blocks"));
        }
        while let Some(run) = extraction.next_run()? {
            stretches.take(run, len_bytes).map_err(SourceError::Malformed)?;
        }
        if stretches.end() != len_bytes {
            return Err(SourceError::Malformed("runs that do not reach the end of the file"));
        }
        let stamp = extraction.finish()?;
        match stamp.len_bytes == len_bytes {
            true => Ok(Self { stamp, stretches }),
            false => Err(SourceError::Malformed("a stamp of another length")),
        }
    }

    /// The kind of checksums, and their blocks.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.stretches.layout
    }

    /// The state of the file that the checksums describe.
    #[must_use]
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// The runs, ascending, without gaps, from byte 0 to the end of the file.
    pub fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        (0..self.stretches.runs.len()).filter_map(|number| self.stretches.run(number))
    }

    /// The number of bytes in runs of which nothing is known: those have to be read.
    #[must_use]
    pub fn unknown_bytes(&self) -> u64 {
        let unknown = self.runs().filter(|run| matches!(run, Run::Unknown { .. }));
        unknown.map(|run| run.range().len_bytes()).sum()
    }
}

#[cfg(test)]
mod tests;
