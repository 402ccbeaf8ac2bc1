//! Deltas that are applied in place, and survive crashes: others' changes are written into the
//! files here without making them anew (DeltaCFS section III-D). After a crash at any moment each
//! file is as it was, or as it is to be, or it is known that another writer changed it, too.
//!
//! Words: a *patch* is the delta of one file, without copies; a *set* is all patches that count
//! only together, because they were one group on the machine that made them. One set at a time is
//! on its way.
//!
//! **Order of the durable steps.**
//! 1. [`Patches::begin`], [`Gathering::add`]: the deltas are written aside, and for each sector
//!    that they change a checksum of its old and of its new content. Nothing in the folder changes;
//!    after a crash the next `begin` starts over.
//! 2. [`Gathering::commit`]: both are synced; then the head that refers to them is written, synced
//!    and named. From here on the set will be applied.
//! 3. [`Committed::apply`] for each file, and the caller makes the files durable.
//! 4. [`Committed::finish`]: the head is removed, durably. Only then may programs write to these
//!    files again: an earlier write might be undone by a repair.
//!
//! **After a crash** [`Patches::pending`] returns the set that was committed and not finished.
//! [`Committed::check`] compares each sector that it changes: a sector with neither its old nor its
//! new content was changed by a writer that did not know of the set ([`Found::Impossible`],
//! DeltaCFS section III-E); a person decides what becomes of that file. Otherwise
//! [`Committed::apply`] does the same once more, with the same result, however much of it was done
//! before.
//!
//! A sector has 512 bytes, because a disk writes that completely or not at all, and each is written
//! once; beyond a file's end it counts as filled up with zeros. So a torn write is never taken for
//! another writer's change. If a file is to grow, the sector in which it ended is kept as it is to
//! be, because after a crash the file may end anywhere in it; if it is to be cut off, the sector of
//! the new end is also known as it is before the cut. Not compared: the part that was cut off, and
//! where beyond its old end a growing file was interrupted.
//!
//! Memory: one head (60 bytes a file), one block of a delta, some buffers.
//!
//! Out of scope: opening files, taking locks, keeping programs away, setting attributes, names.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod head;
mod sectors;
#[cfg(test)]
mod tests;
mod whole_sectors;

use std::io::{self, Read};
use std::sync::Arc;

use byteback_delta::{ApplyError, Base, DeltaReader, ReadError, Target, apply_in_place};
use byteback_host::durable::{DurableDir, DurableFile, OpenMode, replace};

use head::Head;
pub use head::PatchInfo;
use sectors::{SECTOR_LEN, Sector, SectorSums, SumReader, read_padded};
use whole_sectors::WholeSectors;

/// Head of the committed set.
const HEAD: &str = "head";

/// The delta streams, one behind the other.
const DELTAS: &str = "deltas";

/// The checksums of the sectors that they change.
const SUMS: &str = "sums";

/// Most patches of a set.
pub const PATCHES_MAX: usize = 1 << 20;

/// Error while keeping, reading or applying patches.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// File system error.
    #[error("cannot {what} in the patches folder: {source}")]
    Io {
        /// Attempted operation.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file that is to be patched cannot be read.
    #[error("cannot read file {node}, which is to be patched: {source}")]
    Base {
        /// The file.
        node: u64,
        /// Error of reading it.
        source: io::Error,
    },
    /// A delta is malformed, or is of another version of the file.
    #[error("cannot use the delta of file {node}: {source}")]
    Delta {
        /// The file.
        node: u64,
        /// Fault in the delta.
        source: ReadError,
    },
    /// A delta is for a file of another length, or contains copies.
    #[error("the delta does not fit file {node}: {what}")]
    Unfit {
        /// The file.
        node: u64,
        /// Reason.
        what: String,
    },
    /// Another set is on its way.
    #[error("an earlier set of patches is not finished; look at `pending` first")]
    Pending,
    /// More patches than a set has at most.
    #[error("a set has at most {PATCHES_MAX} patches; send fewer files at once")]
    TooMany,
    /// The bytes written aside have changed.
    #[error(
        "the patches to be applied are damaged ({0}): the files that they change may be half old and half new; compare \
         them with the server's"
    )]
    Damaged(&'static str),
    /// A patch cannot be applied to its file.
    #[error("cannot patch file {node}: {source}")]
    Apply {
        /// The file.
        node: u64,
        /// Reason.
        source: ApplyError,
    },
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> PatchError {
    move |source| PatchError::Io { what, source }
}

/// The folder in which patches are kept.
#[derive(Clone, Debug)]
pub struct Patches {
    dir: Arc<dyn DurableDir>,
}

impl Patches {
    /// The patches in `dir`, which nothing else may use.
    #[must_use]
    pub fn new(dir: Arc<dyn DurableDir>) -> Self {
        Self { dir }
    }

    /// The set that was committed and not finished, if there is one.
    ///
    /// # Errors
    /// The set cannot be read, or is damaged.
    pub fn pending(&self) -> Result<Option<Committed>, PatchError> {
        let file = match self.dir.open(HEAD, OpenMode::Existing) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(failed("open the head")(source)),
        };
        let len = file.len().map_err(failed("read the head"))?;
        let len = usize::try_from(len).ok().filter(|len| *len <= head::LEN_MAX);
        let mut bytes = vec![0; len.ok_or(PatchError::Damaged("the head is too long"))?];
        file.read_exact_at(0, &mut bytes).map_err(failed("read the head"))?;
        let head = Head::from_bytes(&bytes).ok_or(PatchError::Damaged("the head does not decode"))?;
        let open = |name| {
            self.dir
                .open(name, OpenMode::Existing)
                .map_err(failed("open the files of the head"))
        };
        Ok(Some(Committed {
            dir: Arc::clone(&self.dir),
            deltas: open(DELTAS)?,
            sums: open(SUMS)?,
            head,
        }))
    }

    /// Begins a set, which the caller will recognize by `label`.
    ///
    /// # Errors
    /// Another set is pending; the files cannot be made.
    pub fn begin(&self, label: u64) -> Result<Gathering, PatchError> {
        // Should the last head have been removed, but not durably, it must not come back to other
        // deltas.
        self.dir.sync().map_err(failed("sync the names"))?;
        let names = self.dir.list().map_err(failed("list names"))?;
        if names.iter().any(|name| name == HEAD) {
            return Err(PatchError::Pending);
        }
        let open = |name| {
            let file = self.dir.open(name, OpenMode::CreateIfMissing)?;
            file.set_len(0)?;
            Ok(file)
        };
        Ok(Gathering {
            dir: Arc::clone(&self.dir),
            deltas: open(DELTAS).map_err(failed("create a file"))?,
            sums: open(SUMS).map_err(failed("create a file"))?,
            deltas_end: 0,
            sums_end: 0,
            head: Head {
                label,
                patches: Vec::new(),
            },
        })
    }
}

/// A set that is being put together. Dropped, it has no effect.
#[derive(Debug)]
pub struct Gathering {
    dir: Arc<dyn DurableDir>,
    deltas: Arc<dyn DurableFile>,
    sums: Arc<dyn DurableFile>,
    deltas_end: u64,
    /// In records.
    sums_end: u64,
    head: Head,
}

impl Gathering {
    /// Adds the delta of a file that holds `base`, which must stay so until the set is finished.
    /// The stream is read to its end.
    ///
    /// # Errors
    /// The delta is malformed, has copies or is for another base; the base cannot be read; the disk
    /// is full. The set is useless then.
    pub fn add(&mut self, node: u64, base: &dyn Base, stream: &mut dyn Read) -> Result<(), PatchError> {
        if self.head.patches.len() >= PATCHES_MAX {
            return Err(PatchError::TooMany);
        }
        let unfit = |what: String| PatchError::Unfit { node, what };
        let mut copy = Copy {
            input: stream,
            file: &*self.deltas,
            at: self.deltas_end,
            crc: 0,
            failed: None,
        };
        let of_delta = |source| PatchError::Delta { node, source };
        let base_len = base.len_bytes().map_err(|source| PatchError::Base { node, source })?;
        let mut sums = SectorSums::new(base, base_len, &*self.sums, self.sums_end);
        let mut new_len = 0;
        let gathered = DeltaReader::new(&mut copy).map_err(of_delta).and_then(|mut delta| {
            let header = *delta.header();
            if header.has_copies {
                return Err(unfit("it contains copies".to_owned()));
            }
            if header.base_len_bytes != base_len {
                let expected = header.base_len_bytes;
                return Err(unfit(format!(
                    "its base has {expected} bytes, and the file has {base_len}"
                )));
            }
            new_len = header.new_len_bytes;
            sums.delta(node, new_len, &mut delta)
        });
        if let Some(source) = copy.failed.take() {
            return Err(failed("write a delta")(source));
        }
        gathered?;
        let sums = sums.finish(node)?;
        let stream_end = copy.at;
        if let Some(sector) = sums.end_sector {
            copy.put(&sector).map_err(failed("write a delta"))?;
        }
        self.head.patches.push(PatchInfo {
            node,
            base_len_bytes: base_len,
            new_len_bytes: new_len,
            stream_at: self.deltas_end,
            stream_end,
            stream_crc: copy.crc,
            sums_from: self.sums_end,
            sums_to: sums.next,
            sums_crc: sums.crc,
            uncut_crc: sums.uncut_crc,
            cut_crc: sums.cut_crc,
        });
        self.deltas_end = copy.at;
        self.sums_end = sums.next;
        Ok(())
    }

    /// Makes the set durable: from now on it will be applied.
    ///
    /// # Errors
    /// The disk is full, or a sync failed. [`Patches::pending`] then says whether the set counts.
    pub fn commit(self) -> Result<Committed, PatchError> {
        self.deltas.sync_data().map_err(failed("sync the deltas"))?;
        self.sums.sync_data().map_err(failed("sync the checksums"))?;
        let bytes = self.head.to_bytes();
        let write = || {
            // The names of the files that the head refers to must be durable before its own.
            self.dir.sync()?;
            replace(&*self.dir, HEAD, &bytes)
        };
        write().map_err(failed("write the head"))?;
        Ok(Committed {
            dir: self.dir,
            deltas: self.deltas,
            sums: self.sums,
            head: self.head,
        })
    }
}

/// A set that will be applied, whatever happens.
#[derive(Debug)]
pub struct Committed {
    dir: Arc<dyn DurableDir>,
    deltas: Arc<dyn DurableFile>,
    sums: Arc<dyn DurableFile>,
    head: Head,
}

/// How far a file is, after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// As before the set.
    Old,
    /// As after it.
    New,
    /// Partly the one, partly the other.
    Between,
    /// The file has, at this offset, neither the old nor the new content: another writer changed
    /// it. `None`: its length is neither of theirs.
    Impossible(Option<u64>),
}

impl Committed {
    /// The label by which the caller recognizes the set.
    #[must_use]
    pub fn label(&self) -> u64 {
        self.head.label
    }

    /// The patches of the set, in the order in which they were added.
    #[must_use]
    pub fn patches(&self) -> &[PatchInfo] {
        &self.head.patches
    }

    /// Compares a file with its old content, and with what `patch` makes of it. Reads the sectors
    /// that the patch changes.
    ///
    /// # Errors
    /// The file or the checksums cannot be read, or the checksums are damaged.
    pub fn check(&self, patch: &PatchInfo, file: &dyn Base) -> Result<Found, PatchError> {
        let of_base = |source| PatchError::Base {
            node: patch.node,
            source,
        };
        let len = file.len_bytes().map_err(of_base)?;
        if !patch.can_have_len(len) {
            return Ok(Found::Impossible(None));
        }
        let (mut has_old, mut has_new) = (len != patch.new_len_bytes, len != patch.base_len_bytes);
        let mut impossible = None;
        // The sector where it ended, and where it ends in the middle of growing.
        let grew_in = patch.is_growing().then_some(patch.base_len_bytes / SECTOR_LEN);
        let torn_in = (len < patch.new_len_bytes).then_some(len / SECTOR_LEN);
        let mut grown_from = None;
        let mut sums = SumReader::new(&*self.sums, patch);
        while let Some(sum) = sums.next()? {
            if grew_in == Some(sum.sector) {
                grown_from = Some(sum.old);
                continue;
            }
            if impossible.is_some() || torn_in == Some(sum.sector) {
                // The rest is read for the checksum of the checksums.
                continue;
            }
            let found = read_padded(file, len, sum.sector).map_err(of_base)?;
            match crc32c::crc32c(&found) {
                crc if crc == sum.old => has_old = true,
                crc if crc == sum.new => has_new = true,
                crc if patch.is_cut_in(sum.sector) && [patch.uncut_crc, patch.cut_crc].contains(&crc) => {
                    (has_old, has_new) = (true, true);
                }
                _ => impossible = Some(sum.offset()),
            }
        }
        if let Some(sector) = grew_in {
            let found = read_padded(file, len, sector).map_err(of_base)?;
            let new = self.end_sector(patch)?;
            // As far as it was written when the file ended somewhere in it; bytes gained since then
            // are zeros.
            let same = new.iter().zip(&found).take_while(|(new, found)| new == found).count();
            let is_padded = found.get(same..).unwrap_or_default().iter().all(|byte| *byte == 0);
            if grown_from == Some(crc32c::crc32c(&found)) {
                has_old = true;
            } else if is_padded && same as u64 >= patch.base_len_bytes % SECTOR_LEN {
                has_new |= grown_from.is_some();
                has_old |= found != new;
            } else {
                impossible = impossible.or(Some(sector.saturating_mul(SECTOR_LEN)));
            }
        }
        Ok(match (impossible, has_old, has_new) {
            (Some(offset), ..) => Found::Impossible(Some(offset)),
            (None, true, true) => Found::Between,
            (None, true, false) => Found::Old,
            (None, false, _) => Found::New,
        })
    }

    /// Writes a patch into its file, for the first time or once more. The caller makes the file
    /// durable.
    ///
    /// # Errors
    /// The delta is damaged, or the file has a length that only another writer can have given it:
    /// then nothing was written. The file cannot be written: then it holds a mixture, and this can
    /// be called again.
    pub fn apply<T: Target + Base>(&self, patch: &PatchInfo, target: &mut T) -> Result<(), PatchError> {
        let of_apply = |source| PatchError::Apply {
            node: patch.node,
            source,
        };
        self.end_sector(patch)?;
        let len = Base::len_bytes(target).map_err(|error| of_apply(ApplyError::Len(error)))?;
        let len_bytes = patch.base_len_bytes;
        if !patch.can_have_len(len) {
            return Err(PatchError::Unfit {
                node: patch.node,
                what: format!("another program changed its length to {len} bytes"),
            });
        }
        if len != len_bytes && len != patch.new_len_bytes {
            // It was interrupted while it grew. If the bytes beyond its old end stayed, but cut in
            // the middle of a sector, a second interruption could leave there a sector that is
            // neither old nor new.
            let cut = target.set_len_bytes(len_bytes);
            cut.map_err(|source| of_apply(ApplyError::SetLen { len_bytes, source }))?;
        }
        if len > patch.new_len_bytes {
            // First, as the patch is known to be whole: what programs append while the rest is
            // written goes behind the new end.
            let len_bytes = patch.new_len_bytes;
            let cut = target.set_len_bytes(len_bytes);
            cut.map_err(|source| of_apply(ApplyError::SetLen { len_bytes, source }))?;
        }
        let mut delta = DeltaReader::new(Stream::new(&*self.deltas, patch)).map_err(|source| PatchError::Delta {
            node: patch.node,
            source,
        })?;
        let mut sectors = WholeSectors::new(target);
        apply_in_place(&mut delta, &mut sectors).map_err(of_apply)?;
        // Nothing is left where the length was set last.
        let rest = sectors.flush();
        rest.map_err(|source| PatchError::Base {
            node: patch.node,
            source,
        })
    }

    /// For a file that grows: the new content of the sector in which it ended. Reads all stored
    /// bytes of the patch, and verifies them.
    fn end_sector(&self, patch: &PatchInfo) -> Result<Sector, PatchError> {
        let mut whole = Stream::new(&*self.deltas, patch);
        io::copy(&mut whole, &mut io::sink()).map_err(failed("read a delta"))?;
        let mut sector = [0; SECTOR_LEN as usize];
        let mut crc = whole.crc;
        if patch.is_growing() {
            let read = self.deltas.read_exact_at(patch.stream_end, &mut sector);
            read.map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => PatchError::Damaged("a delta is cut short"),
                _ => failed("read a delta")(error),
            })?;
            crc = crc32c::crc32c_append(crc, &sector);
        }
        match crc == patch.stream_crc {
            true => Ok(sector),
            false => Err(PatchError::Damaged("the checksum of a delta is wrong")),
        }
    }

    /// Forgets the set, durably: all its files are as they are to be, durably, or a person decided
    /// otherwise.
    ///
    /// # Errors
    /// The head cannot be removed; the set is then still pending.
    pub fn finish(self) -> Result<(), PatchError> {
        self.dir.remove(HEAD).map_err(failed("remove the head"))?;
        self.dir.sync().map_err(failed("remove the head"))?;
        // This only frees space; the next set begins with it anyway.
        let _ = self.deltas.set_len(0).and_then(|()| self.sums.set_len(0));
        Ok(())
    }
}

/// Reads a stream, and writes it aside as it is read.
struct Copy<'a> {
    input: &'a mut dyn Read,
    file: &'a dyn DurableFile,
    at: u64,
    crc: u32,
    failed: Option<io::Error>,
}

impl Copy<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(self.at, bytes)?;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.at = self.at.saturating_add(bytes.len() as u64);
        Ok(())
    }
}

impl Read for Copy<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.input.read(buffer)?;
        let bytes = buffer.get(..len).unwrap_or_default();
        if let Err(error) = self.put(bytes) {
            let kind = error.kind();
            self.failed = Some(error);
            return Err(kind.into());
        }
        Ok(len)
    }
}

/// Reads the delta of a patch.
struct Stream<'a> {
    file: &'a dyn DurableFile,
    at: u64,
    end: u64,
    crc: u32,
}

impl<'a> Stream<'a> {
    fn new(file: &'a dyn DurableFile, patch: &PatchInfo) -> Self {
        Self {
            file,
            at: patch.stream_at,
            end: patch.stream_end,
            crc: 0,
        }
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let len = buffer.len().min(left);
        let len = self.file.read_at(self.at, buffer.get_mut(..len).unwrap_or_default())?;
        self.crc = crc32c::crc32c_append(self.crc, buffer.get(..len).unwrap_or_default());
        self.at = self.at.saturating_add(len as u64);
        Ok(len)
    }
}
