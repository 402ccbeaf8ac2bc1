//! What every source of existing checksums has in common (SkySync section 3.1).
//!
//! Words: a *source* is whoever keeps checksums of a file's blocks already. A [`Layout`] says which
//! checksums, of which blocks. A [`Run`] is a stretch of the file about which one thing is known:
//! its checksums, that it is zeros, or nothing. An *extraction* goes through one open file once,
//! its runs ascending, without gaps, from byte 0 to the end. A [`Stamp`] says which state of the
//! file they are of.
//!
//! Invariant: what an extraction told counts only after [`Extraction::finish`]. Then all of it
//! describes the file as it was at one moment after the extraction began. If anything changed
//! meanwhile, `finish` says so and everything that was told is void: a checksum of what the file no
//! longer holds would keep a change from being sent.
//!
//! [`FileChecksums::collect`] does that for whoever can hold the checksums of a whole file in
//! memory (0.1 % of it for CRC-32C), and tries again a few times.
//!
//! [`Source`] is one file with whoever has checksums of it, local or not: what it says of itself,
//! all that it knows, and the bytes, so that [`verify`] can tell whether the one is true of the
//! other.

mod stretches;
mod sum;
mod verify;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use byteback_extents::ByteRange;
use byteback_host::tree::{Identity, Stat};
use byteback_model::NodeKind;

pub(crate) use stretches::{Known, Stretches};
pub use sum::Summer;
pub use verify::{Verified, VerifyError, verify};

/// Which function a checksum is. Checksums are bytes, in the order that is given here.
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
    /// SHA-1. Broken: whoever makes both contents makes them collide.
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
    /// filled up with zeros; each little-endian. Not cryptographic: whoever makes contents finds
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

    /// Its name in messages and JSON lines.
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

    /// All of them.
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

    /// Whether two blocks with the same checksum are taken for equal without comparing them: nobody
    /// can make two such blocks.
    #[must_use]
    pub const fn is_strong(self) -> bool {
        matches!(
            self,
            Self::Sha256 | Self::Sha512 | Self::Sha512Of256 | Self::Blake2b256 | Self::Blake3
        )
    }
}

/// What the checksum of a last block that is shorter than others covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tail {
    /// The bytes that there are.
    AsIs,
    /// Those, and zeros up to the length of a block.
    ZeroPadded,
}

/// Which checksums a source has of a file, and of which blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The function.
    pub kind: Kind,
    /// What is fed to it before each block; mostly nothing.
    pub salt: Vec<u8>,
    /// Bytes of a block. Those of [`Run::Sums`] begin at multiples of it; those of [`Run::Chunks`]
    /// are no longer. Never 0.
    pub block_len: u32,
    /// What becomes of a shorter last block of [`Run::Sums`]; chunks are never padded.
    pub tail: Tail,
}

impl Layout {
    /// How many blocks of [`Run::Sums`] a range has that begins at a block's start.
    #[must_use]
    pub fn block_count(&self, range: ByteRange) -> u64 {
        range.len_bytes().div_ceil(u64::from(self.block_len))
    }

    /// The checksum that the source would have of `block`, which is as long as a block, or shorter
    /// as the file's last one, appended to `sums`: what is unknown can be filled in by reading.
    pub fn append_sum(&self, block: &[u8], sums: &mut Vec<u8>) {
        let mut summer = Summer::new(self);
        summer.push(block);
        summer.end_block(sums);
    }
}

/// What a source says of itself, whichever file it is asked about. Sentences without a full stop,
/// for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Description {
    /// Its name, in messages and JSON lines.
    pub name: &'static str,
    /// Which stretches of a file have checksums, and which have not.
    pub coverage: &'static str,
    /// What is read or asked to get them.
    pub cost: &'static str,
    /// Who may ask.
    pub permissions: &'static str,
}

/// One file with whoever has checksums of it.
pub trait Source {
    /// What is true of all files of this source.
    fn description(&self) -> Description;

    /// All that is known of the file as it is at one moment from now on.
    ///
    /// # Errors
    /// See [`SourceError`]. No checksums at all are [`SourceError::NotHere`].
    fn collect(&self) -> Result<FileChecksums>;

    /// Reads bytes of the file from `offset` on, as many as there are and `buffer` has room for;
    /// less only at the end.
    ///
    /// # Errors
    /// [`SourceError::ChangedMeanwhile`] if the source notices that what [`Self::collect`]
    /// described is gone; whatever else prevents reading.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;

    /// Whether the file is still, to the byte, what was described with this stamp. False if that
    /// cannot be proven.
    ///
    /// # Errors
    /// See [`SourceError`].
    fn is_unchanged(&self, stamp: &Stamp) -> Result<bool>;
}

/// Why a source has no checksums for a stretch of a file. It has to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unknown {
    /// The content lies in the metadata, which has checksums of its own.
    Inline,
    /// The checksums are of compressed bytes, and equal content may be compressed in many ways.
    Compressed,
    /// As before, with an encoding that this program does not know.
    Encoded,
    /// Nobody summed it: `chattr +C`, `nodatasum`, or a block that the source was never told of.
    NotSummed,
    /// The last block is not full, and its checksum may include bytes that the file does not have
    /// (any more).
    Tail,
    /// It was summed by another function than the rest, or by one that this program does not know.
    OtherFunction,
}

impl Unknown {
    /// Its name in JSON lines.
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

/// What is known of one stretch of a file. Stretches begin at multiples of a block's length, and
/// end there or at the end of the file; chunks, and what is beside them, end anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run<'a> {
    /// The checksums of its blocks.
    Sums {
        /// The stretch.
        range: ByteRange,
        /// One checksum after the other, as many as there are blocks.
        sums: &'a [u8],
    },
    /// The checksums of blocks of many lengths, as a deduplicating store cut them. Whoever needs
    /// blocks of one length has nothing here.
    Chunks {
        /// The stretch.
        range: ByteRange,
        /// Where each block ends in the file; ascending, the last one at the stretch's end.
        ends: &'a [u64],
        /// One checksum after the other, as many as there are ends.
        sums: &'a [u8],
    },
    /// It reads as zeros: a hole, or space that nothing was written to.
    Zeros {
        /// The stretch.
        range: ByteRange,
    },
    /// Nothing is known.
    Unknown {
        /// The stretch.
        range: ByteRange,
        /// Why.
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

/// Which state of which file was described. A source that made one tells whether the file is still
/// in that state.
///
/// Of what is no local file only length and witness are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Which file.
    pub identity: Identity,
    /// Its length.
    pub len_bytes: u64,
    /// When its bytes last changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// When its bytes or metadata last changed, in nanoseconds since 1970; 0 where the source does
    /// not go by that.
    pub ctime_ns: i64,
    /// What else the source goes by (btrfs: a digest of the extents).
    pub witness: [u8; 32],
}

impl Stamp {
    /// Of what is no local file.
    pub(crate) fn elsewhere(len_bytes: u64, witness: [u8; 32]) -> Self {
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

    /// Itself, if the file has it still; otherwise what was told meanwhile is void.
    pub(crate) fn if_it_is(self, now: &Self) -> Result<Self> {
        match self == *now {
            true => Ok(self),
            false => Err(SourceError::ChangedMeanwhile),
        }
    }

    /// Whether the file has it, that was asked for its stamp.
    pub(crate) fn is_that_of(&self, told: Result<Self>) -> Result<bool> {
        match told {
            Ok(now) => Ok(now == *self),
            Err(SourceError::ChangedMeanwhile) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What `stat` tells, without a witness.
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            identity: stat.identity(),
            len_bytes: stat.size,
            mtime_ns: stat.mtime_stamp_ns(),
            ctime_ns: stat.ctime_ns,
            witness: [0; 32],
        }
    }
}

/// Why there are no checksums, or none that count.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// This source is not for this file; another one may be, or the file is read.
    #[error("no checksums from here: {0}")]
    NotHere(&'static str),
    /// The kernel tells checksums to root only.
    #[error("the kernel tells a file system's checksums to root only; run as root, or let the file be read")]
    NeedsRoot,
    /// Whoever has the checksums does not tell them to us.
    #[error("{0}")]
    Denied(&'static str),
    /// What was asked about does not exist.
    #[error("{0}")]
    Missing(&'static str),
    /// A server did not do what it was asked.
    #[error("the server did not {what}: status {status} {code}")]
    Server {
        /// What it was asked.
        what: &'static str,
        /// The status of its answer.
        status: u16,
        /// The name that it has for that; may be empty.
        code: String,
    },
    /// A server that another one named did not tell what it has.
    #[error("{server} does not tell the checksums of {what}: {why}; see to it, or let the file be read")]
    Elsewhere {
        /// Which one, and where.
        server: String,
        /// What it was asked about.
        what: String,
        /// What is known of the reason.
        why: String,
        /// What the network answered.
        source: Option<io::Error>,
    },
    /// The file changed while its checksums were read: what was told is void. Trying again may
    /// help.
    #[error("the file changed while its checksums were read; try again")]
    ChangedMeanwhile,
    /// The file, or the file system under it, changed at every attempt.
    #[error(
        "the file is being changed all the time; save a moment of it that stands still (a cut or a snapshot), or let it be read"
    )]
    Busy,
    /// The source said what cannot be.
    #[error("what the source of checksums says makes no sense ({0}); let the file be read, and check the source")]
    Malformed(&'static str),
    /// A program that storage comes with is not there.
    #[error("{name} is not installed, or not in PATH; install it, or let the file be read")]
    NoProgram {
        /// Its name.
        name: &'static str,
    },
    /// A program that storage comes with may be there, but not for this user.
    #[error("{name} is not to be had: {} may not be {what} by this user; run as one who may, or let the file be read", path.display())]
    ProgramDenied {
        /// Its name.
        name: &'static str,
        /// The program, or the folder that may have it.
        path: PathBuf,
        /// What may not be done with that.
        what: &'static str,
    },
    /// A program did not do what it was asked.
    #[error("{name} says: {said}")]
    Program {
        /// Its name.
        name: &'static str,
        /// What it complained about.
        said: String,
    },
    /// A chunk of a deduplicating store cannot be had.
    #[error("the chunk {id} {what}; let the store be checked, or take the file from another copy")]
    Chunk {
        /// Its fingerprint, hexadecimal.
        id: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The system.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl SourceError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// What `stat` told of a file that has to be a regular one.
pub(crate) fn regular_file(told: io::Result<Stat>) -> Result<Stat> {
    let stat = told.map_err(SourceError::io("ask for the file's length and times"))?;
    match stat.kind {
        NodeKind::File => Ok(stat),
        _ => Err(SourceError::NotHere("not a regular file")),
    }
}

/// Reads from an open file as [`Source::read_at`] does.
pub(crate) fn read_file_at(file: BorrowedFd<'_>, offset: u64, buffer: &mut [u8]) -> Result<usize> {
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

/// What the functions of a source answer.
pub type Result<T> = std::result::Result<T, SourceError>;

/// One passage through one open file's checksums; see the module.
pub trait Extraction {
    /// Which checksums.
    fn layout(&self) -> &Layout;

    /// The file's length; the runs cover all of it.
    fn len_bytes(&self) -> u64;

    /// The next run; `None` behind the last one. What it tells is void until [`Self::finish`].
    ///
    /// # Errors
    /// See [`SourceError`]; the extraction is over then.
    fn next_run(&mut self) -> Result<Option<Run<'_>>>;

    /// Proves that all runs that were told describe the file at one moment, and still do. Runs that
    /// were not fetched are not described.
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
    /// Goes through an extraction that `begin` begins, and begins again, up to `attempts` times,
    /// while the file changes meanwhile.
    ///
    /// # Errors
    /// [`SourceError::Busy`] if it did each time; whatever else went wrong.
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
            return Err(SourceError::Malformed("blocks without bytes"));
        }
        while let Some(run) = extraction.next_run()? {
            stretches.take(run, len_bytes).map_err(SourceError::Malformed)?;
        }
        if stretches.end() != len_bytes {
            return Err(SourceError::Malformed("stretches that do not reach the file's end"));
        }
        let stamp = extraction.finish()?;
        match stamp.len_bytes == len_bytes {
            true => Ok(Self { stamp, stretches }),
            false => Err(SourceError::Malformed("a stamp of another length")),
        }
    }

    /// Which checksums.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.stretches.layout
    }

    /// Of which state of the file.
    #[must_use]
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// The runs, ascending, without gaps, from byte 0 to the end of the file.
    pub fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        (0..self.stretches.runs.len()).filter_map(|number| self.stretches.run(number))
    }

    /// How many bytes lie in runs of which nothing is known: those have to be read.
    #[must_use]
    pub fn unknown_bytes(&self) -> u64 {
        let unknown = self.runs().filter(|run| matches!(run, Run::Unknown { .. }));
        unknown.map(|run| run.range().len_bytes()).sum()
    }
}

#[cfg(test)]
mod tests;
