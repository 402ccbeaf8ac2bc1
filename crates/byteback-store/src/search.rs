//! Searches in a stored content: a client sends checksums of its content, and gets back which of it
//! is here.
//!
//! Two kinds, for the two finders of `byteback-delta` in which the side that has the base works:
//! - [`SoughtBlocks`], the signature of a new content (WebR2sync+): [`Store::find_blocks`] moves
//!   the window over the stored content. Blocks that are leaves are looked up among the stored
//!   content's leaves instead, which are kept ([`crate::sums`]) or made.
//! - [`SoughtChunks`], the list of its chunks (dsync, `SkySync`): [`Store::find_chunks`] cuts the
//!   stored content in the same way, and reads once more, from front to back, what the pairs need
//!   as proof.
//!
//! *The cost of a hostile list.* Lists are read with limits before anything is searched:
//! [`BLOCKS_MAX`] blocks, none shorter than [`BLOCK_LEN_MIN`]; [`CHUNKS_MAX`] chunks, and as many
//! of the stored content. Memory follows these alone, some 100 bytes for each, never a length that
//! a list claims. Work is a constant number of passes over the stored content, whatever the
//! checksums: the finders account for what they hash in vain. A search whose client went away stops
//! at the next piece of the content.
//!
//! Nothing is kept, and the result is no promise: a client that uses copies sends a proof
//! (`prove`).

use crate::content::ContentReader;
use crate::error::StoreError;
use crate::store::Store;
use crate::sums::reader::Leaves;
use byteback_delta::Base;
use byteback_delta::chunks::{ChunkList, ChunkLister, MatchAnswer, MatchParams};
use byteback_delta::find::{BlockIndex, LeafLookup, ReverseFinder, match_chunks, prove_matches};
use byteback_delta::leaves::LeafKind;
use byteback_delta::matches::MatchList;
use byteback_delta::signature::Signature;
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;
use byteback_extents::ByteRange;
use byteback_model::{FileId, Seq};
use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};

/// The most blocks of a new content that are looked for.
pub const BLOCKS_MAX: u64 = byteback_delta::signature::BLOCKS_MAX;

/// The shortest blocks that are looked for, in bytes: hashing shorter ones costs more than the
/// bytes are worth.
pub const BLOCK_LEN_MIN: u32 = 256;

/// The most chunks of a new content that are looked for, and of a stored one that they are compared
/// with.
pub const CHUNKS_MAX: u64 = 1 << 21;

/// Longest stream of a list within these limits, in bytes: a header, and for each entry numbers and
/// checksums.
pub const STREAM_LEN_MAX: u64 = 4096
    + (if BLOCKS_MAX > CHUNKS_MAX {
        BLOCKS_MAX
    } else {
        CHUNKS_MAX
    }) * 40;

/// Bytes of a stored content that one read takes.
const READ_LEN: usize = 256 * 1024;

/// Longest gap that is read through rather than skipped by a new lookup, in bytes.
const PASSED_LEN_MAX: u64 = 1024 * 1024;

/// Whether the result of a search is still wanted.
pub type IsWanted<'a> = &'a dyn Fn() -> bool;

/// The blocks of a new content.
#[derive(Debug)]
pub struct SoughtBlocks {
    index: BlockIndex,
    /// The kind of leaves, if the blocks are leaves.
    leaves: Option<LeafKind>,
}

/// The chunks of a new content.
#[derive(Debug)]
pub struct SoughtChunks(ChunkList);

/// Result of a search for blocks.
#[derive(Debug)]
pub struct FoundBlocks {
    list: MatchList,
    /// Bytes of the stored content that were searched.
    pub searched_bytes: u64,
}

/// Result of a search for chunks.
#[derive(Debug)]
pub struct FoundChunks {
    list: ChunkList,
    answer: MatchAnswer,
    /// Bytes of the stored content that were searched, plus those that were read once more.
    pub searched_bytes: u64,
}

impl SoughtBlocks {
    /// Reads a signature stream, which ends with its blocks.
    ///
    /// # Errors
    /// [`StoreError::InvalidSearch`].
    pub fn read(mut stream: impl Read) -> Result<Self, StoreError> {
        let signature = Signature::read(&mut stream, BLOCKS_MAX).map_err(refused)?;
        let params = signature.params();
        let leaves = LeafLookup::kind_of(params);
        if leaves.is_none() && (params.weak, params.strong) != (WeakKind::Rsync, StrongKind::Blake3) {
            return Err(refused(
                "the search for blocks needs rolling checksums and keyed BLAKE3, or CRC-32C and leaves in blocks of 4096 \
                 bytes",
            ));
        }
        if params.block_len_bytes < BLOCK_LEN_MIN {
            return Err(refused(format!("blocks must have at least {BLOCK_LEN_MIN} bytes")));
        }
        end(stream)?;
        Ok(Self {
            index: BlockIndex::new(signature),
            leaves,
        })
    }
}

impl SoughtChunks {
    /// Reads the stream of a chunk list, which ends with its chunks.
    ///
    /// # Errors
    /// [`StoreError::InvalidSearch`].
    pub fn read(mut stream: impl Read) -> Result<Self, StoreError> {
        let list = ChunkList::read(&mut stream, CHUNKS_MAX).map_err(refused)?;
        end(stream)?;
        Ok(Self(list))
    }
}

impl FoundBlocks {
    /// Writes the list of matches.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        self.list.write(out)
    }
}

impl FoundChunks {
    /// Writes the answer.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        self.answer.write_to(&self.list, out)
    }
}

impl Store {
    /// Looks for blocks in a file's contents at a moment; `None` when the result is no longer
    /// wanted.
    ///
    /// # Errors
    /// The folder, the moment or the file does not exist; the contents are longer than the store
    /// hashes; the store fails.
    pub fn find_blocks(
        &self,
        folder: &str,
        file: FileId,
        at: Option<Seq>,
        sought: &SoughtBlocks,
        is_wanted: IsWanted<'_>,
    ) -> Result<Option<FoundBlocks>, StoreError> {
        if let Some(kind) = sought.leaves {
            return self.find_leaves(folder, file, at, (sought, kind), is_wanted);
        }
        let mut content = self.searched(folder, file, at)?;
        let mut finder = ReverseFinder::new(&sought.index);
        while let Some((range, bytes)) = content.next_part()? {
            if !is_wanted() {
                return Ok(None);
            }
            match bytes {
                Some(bytes) => finder.push(bytes),
                None => finder.push_hole(range.len_bytes()),
            }
        }
        let (list, stats) = finder.finish();
        Ok(Some(FoundBlocks {
            list,
            searched_bytes: stats.examined_bytes,
        }))
    }

    /// Looks for blocks among the leaves of a file's contents.
    fn find_leaves(
        &self,
        folder: &str,
        file: FileId,
        at: Option<Seq>,
        (sought, kind): (&SoughtBlocks, LeafKind),
        is_wanted: IsWanted<'_>,
    ) -> Result<Option<FoundBlocks>, StoreError> {
        let content = self.hashed_content(folder, file, at)?;
        let mut leaves = self.leaves_of(&content, kind)?;
        let mut lookup = LeafLookup::new(&sought.index, content.len);
        while let Some(next) = leaves.next()? {
            if !is_wanted() {
                return Ok(None);
            }
            match next {
                Leaves::Zeros(len) => lookup.push_zeros(len),
                Leaves::Sums(sums) => sums.iter().for_each(|sum| lookup.push(sum.crc, &sum.leaf)),
            }
        }
        if let Some(keeper) = leaves.finish() {
            keeper.finish();
        }
        Ok(Some(FoundBlocks {
            list: lookup.finish(),
            searched_bytes: content.len,
        }))
    }

    /// Looks for chunks in a file's contents at a moment; `None` when the result is no longer
    /// wanted. With `has_unproven`, long runs of chunks are answered by their weak checksums alone,
    /// for clients that prove the new content as a whole.
    ///
    /// # Errors
    /// As [`Self::find_blocks`]; the contents have more than [`CHUNKS_MAX`] chunks of the asked
    /// lengths.
    pub fn find_chunks(
        &self,
        folder: &str,
        file: FileId,
        at: Option<Seq>,
        sought: SoughtChunks,
        has_unproven: bool,
        is_wanted: IsWanted<'_>,
    ) -> Result<Option<FoundChunks>, StoreError> {
        let SoughtChunks(list) = sought;
        // One moment for both readings.
        let at = Some(self.content_size(folder, file, at)?.1);
        let mut content = self.searched(folder, file, at)?;
        let mut lister = ChunkLister::new(list.params(), list.kind());
        while let Some((range, bytes)) = content.next_part()? {
            if !is_wanted() {
                return Ok(None);
            }
            match bytes {
                Some(bytes) => lister.push(bytes),
                None => lister.push_hole(range.len_bytes()),
            }
            if lister.chunks() as u64 > CHUNKS_MAX {
                return Err(StoreError::InvalidParameter(format!(
                    "node {file} has more than {CHUNKS_MAX} chunks of such lengths; ask for longer ones"
                )));
            }
        }
        let size = content.size();
        let (stored, stats) = lister.finish();
        let runs = match_chunks(&list, &stored);
        drop(stored);
        let seed = self.draw_seed()?;
        let params = match has_unproven {
            true => MatchParams::for_whole_proof(seed),
            false => MatchParams::new(seed),
        };
        let base = StoredBase {
            size,
            open: &|range| self.content(folder, file, at, Some(range)),
            is_wanted,
            window: RefCell::new(Window::default()),
        };
        match prove_matches(&list, &runs, &base, params) {
            Ok((answer, read_bytes)) => Ok(Some(FoundChunks {
                list,
                answer,
                searched_bytes: stats.examined_bytes + read_bytes,
            })),
            Err(_) if !is_wanted() => Ok(None),
            Err(error) => Err(match error.downcast::<StoreError>() {
                Ok(error) => error,
                Err(error) => StoreError::io("read the contents again", error),
            }),
        }
    }

    /// Opens a content that is short enough to be searched.
    fn searched(&self, folder: &str, file: FileId, at: Option<Seq>) -> Result<ContentReader, StoreError> {
        let content = self.content(folder, file, at, None)?;
        let (len, len_max) = (content.size(), self.parts.limits.hashed_len_max);
        if len > len_max {
            return Err(StoreError::InvalidParameter(format!(
                "node {file} has {len} bytes, but searches cover at most {len_max}"
            )));
        }
        Ok(content)
    }
}

pub(crate) fn refused(what: impl ToString) -> StoreError {
    StoreError::InvalidSearch(what.to_string())
}

/// Ensures that nothing follows a list, which also shows that the whole body has arrived.
pub(crate) fn end(mut stream: impl Read) -> Result<(), StoreError> {
    loop {
        match stream.read(&mut [0]) {
            Ok(0) => return Ok(()),
            Ok(_) => return Err(refused("bytes follow the list")),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(refused(error)),
        }
    }
}

/// A stored content that is read in ascending ranges, neighbours often sharing bytes.
struct StoredBase<'a> {
    size: u64,
    open: &'a dyn Fn(ByteRange) -> Result<ContentReader, StoreError>,
    is_wanted: IsWanted<'a>,
    window: RefCell<Window>,
}

/// Bytes already read, from `start` on, and the reader that continues behind them.
#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
    reader: Option<ContentReader>,
    chunk: Vec<u8>,
}

impl Window {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl Base for StoredBase<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_range(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if !(self.is_wanted)() {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        let mut window = self.window.borrow_mut();
        let window = &mut *window;
        let end = offset.saturating_add(buffer.len() as u64);
        if window.reader.is_none() || offset < window.start || offset > window.end() + PASSED_LEN_MAX {
            let rest = ByteRange::new(offset, self.size).ok_or(ErrorKind::UnexpectedEof)?;
            window.reader = Some((self.open)(rest).map_err(io::Error::other)?);
            window.start = offset;
            window.bytes.clear();
        }
        while window.end() < end {
            // Bytes before `offset` are not asked for again. They are dropped when they are many,
            // or all.
            let passed = usize::try_from(offset - window.start).unwrap_or(usize::MAX);
            if passed >= window.bytes.len() || passed > 2 * READ_LEN {
                let passed = passed.min(window.bytes.len());
                window.bytes.drain(..passed);
                window.start += passed as u64;
            }
            let Window {
                bytes, reader, chunk, ..
            } = window;
            let reader = reader.as_mut().ok_or(ErrorKind::UnexpectedEof)?;
            reader.next_chunk(chunk, READ_LEN).map_err(io::Error::other)?;
            if chunk.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            bytes.extend_from_slice(chunk);
        }
        let from = usize::try_from(offset - window.start).unwrap_or(usize::MAX);
        let bytes = window.bytes.get(from..).and_then(|bytes| bytes.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
