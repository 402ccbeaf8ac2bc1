//! Files in a deduplicating store: a list of chunks, cut by content, each with a fingerprint, and a
//! folder with the chunks (SkySync, Table 1: deduplication systems; casync has the role here that
//! MeGA has in section 3.1).
//!
//! Two kinds of lists are read: the index of a blob or archive that casync made (`casync`), and
//! recipes in a format of ours, into which any store's list can be written (`recipe`,
//! docs/formats/recipe.md).
//!
//! ## When a checksum counts
//!
//! The file *is* the list: its bytes are those of the chunks in this order. A chunk is found by its
//! fingerprint, and its bytes are checked against it ([`SourceError::Chunk`] on a mismatch), so
//! every byte from here is the described one. The list is read twice, and is of one moment if both
//! are the same; afterwards it is identified by a digest of all of it. Times do not count.
//!
//! A list whose chunks were deleted from the store still describes the file, but its bytes cannot
//! be read.
//!
//! ## What it does not do
//!
//! It neither cuts nor stores. Of casync's stores, local folders are read, with chunks uncompressed
//! or compressed by zstd, casync's default.

pub(crate) mod casync;
pub(crate) mod recipe;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use byteback_extents::ByteRange;
use parking_lot::Mutex;

use byteback_checksums::source::{
    Description, Extraction, FileChecksums, Kind, Layout, Result, Run, Source, SourceError, Stamp, Summer, Tail,
};

/// The description of the casync source.
pub const CASYNC: Description = Description {
    name: "casync",
    coverage: "every chunk of a file in a casync store",
    cost: "reading the index twice: 40 bytes for each chunk, of 64 KiB on average",
    permissions: "read access to the index; for the bytes, to the store",
};

/// The description of the recipe source.
pub const RECIPE: Description = Description {
    name: "recipe",
    coverage: "every chunk of a file that a recipe describes",
    cost: "reading the recipe twice",
    permissions: "read access to the recipe; for the bytes, to its folder of chunks",
};

/// Limit of a chunk, in bytes: casync's own. One chunk is held in memory.
pub(crate) const CHUNK_LEN_MAX: u64 = 128 << 20;

/// Limit of a list, in bytes: enough for a file of some 1.5 TiB in casync's chunks.
const LIST_LEN_MAX: u64 = 1 << 30;

/// The number of attempts for a list that is replaced meanwhile.
const ATTEMPTS: u32 = 3;

/// The chunks of a file, from its list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) kind: Kind,
    /// The end of each chunk; ascending, none longer than [`CHUNK_LEN_MAX`].
    pub(crate) ends: Vec<u64>,
    /// Concatenated fingerprints, as many as there are ends.
    pub(crate) sums: Vec<u8>,
}

impl Table {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            ends: Vec::new(),
            sums: Vec::new(),
        }
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or_default()
    }

    /// Adds the next chunk, which ends at `end`.
    pub(crate) fn push(&mut self, end: u64, sum: &[u8]) -> std::result::Result<(), &'static str> {
        let len = end.checked_sub(self.len_bytes()).filter(|len| *len > 0);
        if len.ok_or("chunks that are not in order")? > CHUNK_LEN_MAX {
            return Err("a chunk that is too long");
        }
        if sum.len() != self.kind.len_bytes() {
            return Err("a fingerprint of the wrong length for its kind");
        }
        self.ends.push(end);
        self.sums.extend_from_slice(sum);
        Ok(())
    }

    /// The range of a chunk.
    fn range(&self, number: usize) -> Option<ByteRange> {
        let before = number.checked_sub(1).and_then(|before| self.ends.get(before));
        ByteRange::new(before.copied().unwrap_or_default(), *self.ends.get(number)?)
    }

    fn sum(&self, number: usize) -> &[u8] {
        let len = self.kind.len_bytes();
        self.sums.get(number * len..(number + 1) * len).unwrap_or_default()
    }

    fn layout(&self) -> Layout {
        let lens = (0..self.ends.len()).filter_map(|number| self.range(number));
        let longest = lens.map(ByteRange::len_bytes).max().unwrap_or_default();
        Layout {
            kind: self.kind,
            salt: Vec::new(),
            // At most CHUNK_LEN_MAX.
            block_len: u32::try_from(longest.max(1)).unwrap_or(u32::MAX),
            tail: Tail::AsIs,
        }
    }
}

/// The contents of a list, and the place of the chunks.
struct Listed {
    table: Table,
    store: Option<Store>,
    /// The digest of the whole list.
    digest: [u8; 32],
}

/// The place and the names of chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Store {
    folder: PathBuf,
    /// The number of the fingerprint's digits that name a chunk's subfolder; several are tried, 0
    /// means none.
    fan_outs: &'static [usize],
    /// File name endings behind the fingerprint, in the order in which they are tried; a file that
    /// ends in `.cacnk` is compressed.
    endings: &'static [&'static str],
}

/// The kind of list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    /// An index of casync, with its folder of chunks.
    Casync(PathBuf),
    /// A recipe of ours.
    Recipe,
}

/// A file stored as a list of chunks, as a source.
pub struct DeduplicatedFile {
    list: PathBuf,
    form: Form,
    /// The list described last; only its bytes are read.
    described: Mutex<Option<Arc<Listed>>>,
    last_read: Mutex<Option<LastRead>>,
}

/// The chunk read last.
struct LastRead {
    /// The digest of the list.
    digest: [u8; 32],
    /// The chunk's number in the list.
    number: usize,
    bytes: Arc<Vec<u8>>,
}

impl DeduplicatedFile {
    /// The source for an index made by casync (`.caibx`, `.caidx`). Its chunks are in `store`;
    /// without one, in `default.castr` beside the index, where casync puts them. Nothing is read
    /// yet.
    #[must_use]
    pub fn casync(index: PathBuf, store: Option<PathBuf>) -> Self {
        let store = store.unwrap_or_else(|| index.with_file_name("default.castr"));
        Self::new(index, Form::Casync(store))
    }

    /// The source for a recipe (docs/formats/recipe.md). Nothing is read yet.
    #[must_use]
    pub fn recipe(recipe: PathBuf) -> Self {
        Self::new(recipe, Form::Recipe)
    }

    fn new(list: PathBuf, form: Form) -> Self {
        Self {
            list,
            form,
            described: Mutex::default(),
            last_read: Mutex::default(),
        }
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        match read_regular(&self.list, LIST_LEN_MAX) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(SourceError::NotHere(
                "the list of chunks is not a regular file, or is longer than 1 GiB",
            )),
            Err(error) => Err(SourceError::io("read the list of chunks")(error)),
        }
    }

    fn listed(&self) -> Result<Listed> {
        let bytes = self.bytes()?;
        let digest = *blake3::hash(&bytes).as_bytes();
        let (table, store) = match &self.form {
            Form::Casync(folder) => {
                let store = Store {
                    folder: folder.clone(),
                    fan_outs: &[4],
                    endings: &[casync::COMPRESSED, ""],
                };
                (casync::parse(&bytes).map_err(SourceError::Malformed)?, Some(store))
            }
            Form::Recipe => {
                let recipe = recipe::parse(&bytes).map_err(SourceError::Malformed)?;
                let beside = self.list.parent().unwrap_or(Path::new(""));
                let store = recipe.chunks.map(|folder| Store {
                    folder: beside.join(folder),
                    fan_outs: &[0, 2],
                    endings: &[""],
                });
                (recipe.table, store)
            }
        };
        Ok(Listed { table, store, digest })
    }

    fn described(&self) -> Result<Arc<Listed>> {
        let described = self.described.lock().clone();
        match described {
            Some(listed) => Ok(listed),
            None => Ok(self.described.lock().insert(Arc::new(self.listed()?)).clone()),
        }
    }

    /// The bytes of a chunk, checked against its fingerprint.
    fn chunk(&self, listed: &Listed, number: usize) -> Result<Arc<Vec<u8>>> {
        if let Some(last) = &*self.last_read.lock()
            && (last.digest, last.number) == (listed.digest, number)
        {
            return Ok(last.bytes.clone());
        }
        let store = listed.store.as_ref().ok_or(SourceError::NotHere(
            "the recipe names no folder of chunks (a line 'chunks FOLDER'), so the file's bytes are not available",
        ))?;
        let len = listed.table.range(number).map_or(0, ByteRange::len_bytes);
        let sum = listed.table.sum(number);
        let bytes = Arc::new(store.read(listed.table.kind, sum, len)?);
        *self.last_read.lock() = Some(LastRead {
            digest: listed.digest,
            number,
            bytes: bytes.clone(),
        });
        Ok(bytes)
    }

    fn stamp(listed: &Listed) -> Stamp {
        Stamp::elsewhere(listed.table.len_bytes(), listed.digest)
    }
}

impl Store {
    /// Reads the chunk with this fingerprint, which has `len` bytes.
    fn read(&self, kind: Kind, sum: &[u8], len: u64) -> Result<Vec<u8>> {
        let id: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        let wrong = |what| {
            let id = id.clone();
            SourceError::Chunk { id, what }
        };
        let stored = self.find(&id, len).map_err(wrong)?;
        let bytes = match stored {
            (bytes, casync::COMPRESSED) => casync::decompressed(&bytes, len).map_err(wrong)?,
            (bytes, _) => bytes,
        };
        let layout = Layout {
            kind,
            salt: Vec::new(),
            block_len: u32::MAX,
            tail: Tail::AsIs,
        };
        let mut made = Vec::new();
        let mut summer = Summer::new(&layout);
        summer.push(&bytes);
        summer.end_block(&mut made);
        match bytes.len() as u64 == len && made == sum {
            true => Ok(bytes),
            false => Err(wrong("does not match its fingerprint")),
        }
    }

    /// The file of a chunk as stored, and the ending of its name.
    fn find(&self, id: &str, len: u64) -> std::result::Result<(Vec<u8>, &'static str), &'static str> {
        for &fan_out in self.fan_outs {
            let mut folder = self.folder.clone();
            if fan_out > 0 {
                folder.push(id.get(..fan_out).unwrap_or_default());
            }
            for &ending in self.endings {
                // Incompressible data gets a little longer by compression.
                match read_regular(&folder.join(format!("{id}{ending}")), len + len / 8 + 4096) {
                    Ok(Some(bytes)) => return Ok((bytes, ending)),
                    Ok(None) => return Err("is not a regular file in the store, or is too long"),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        return Err("may not be read; run as the owner of the store");
                    }
                    Err(_) => return Err("cannot be read from the store"),
                }
            }
        }
        Err("is not in the store")
    }
}

/// All bytes of a file; `None` if it is not a regular file, or longer than `len_max`.
fn read_regular(path: &Path, len_max: u64) -> io::Result<Option<Vec<u8>>> {
    // Opening a pipe without O_NONBLOCK waits for its other end.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > len_max {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(len_max + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= len_max).then_some(bytes))
}

/// A single pass over a list.
struct Passage<'a> {
    source: &'a DeduplicatedFile,
    listed: Listed,
    layout: Layout,
    is_reported: bool,
}

impl Extraction for Passage<'_> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn len_bytes(&self) -> u64 {
        self.listed.table.len_bytes()
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        let table = &self.listed.table;
        let range = ByteRange::new(0, table.len_bytes()).filter(|_| !self.is_reported);
        self.is_reported = true;
        Ok(range.map(|range| Run::Chunks {
            range,
            ends: &table.ends,
            sums: &table.sums,
        }))
    }

    fn finish(self) -> Result<Stamp> {
        if *blake3::hash(&self.source.bytes()?).as_bytes() != self.listed.digest {
            return Err(SourceError::ChangedMeanwhile);
        }
        let stamp = DeduplicatedFile::stamp(&self.listed);
        *self.source.described.lock() = Some(Arc::new(self.listed));
        Ok(stamp)
    }
}

impl Source for DeduplicatedFile {
    fn description(&self) -> Description {
        match self.form {
            Form::Casync(_) => CASYNC,
            Form::Recipe => RECIPE,
        }
    }

    fn collect(&self) -> Result<FileChecksums> {
        FileChecksums::collect(ATTEMPTS, || {
            let listed = self.listed()?;
            Ok(Passage {
                source: self,
                layout: listed.table.layout(),
                listed,
                is_reported: false,
            })
        })
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let listed = self.described()?;
        let mut number = listed.table.ends.partition_point(|end| *end <= offset);
        let mut len = 0;
        while let (Some(range), Some(rest)) = (listed.table.range(number), buffer.get_mut(len..))
            && !rest.is_empty()
        {
            let chunk = self.chunk(&listed, number)?;
            let skipped = (offset + len as u64).saturating_sub(range.start()) as usize;
            let bytes = chunk.get(skipped..).unwrap_or_default();
            let now = bytes.len().min(rest.len());
            if let (Some(to), Some(from)) = (rest.get_mut(..now), bytes.get(..now)) {
                to.copy_from_slice(from);
            }
            len += now;
            number += 1;
        }
        Ok(len)
    }

    fn is_unchanged(&self, stamp: &Stamp) -> Result<bool> {
        match self.bytes() {
            Ok(bytes) => Ok(*blake3::hash(&bytes).as_bytes() == stamp.witness),
            Err(SourceError::NotHere(_)) => Ok(false),
            Err(SourceError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
