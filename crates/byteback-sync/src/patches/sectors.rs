//! Contents of the sectors that a delta changes, before and after it.
//!
//! A sector is numbered by its offset over [`SECTOR_LEN`]; beyond the end of the file it counts as
//! zeros. A sector that stays as it is has no record. Records are ascending: sector u64, CRC-32C
//! before u32, CRC-32C after u32, all little-endian.

use std::io::{self, Read};

use byteback_delta::{Base, Block, DeltaReader, FrameDecoder, Source};
use byteback_extents::ByteRange;
use byteback_host::durable::DurableFile;

use super::{PatchError, PatchInfo, failed};

pub(super) const SECTOR_LEN: u64 = 512;

const RECORD_LEN: usize = 16;

/// Number of records that are written or read at once.
const RECORDS_AT_ONCE: usize = 4096;

/// A sector's bytes.
pub(super) type Sector = [u8; SECTOR_LEN as usize];

/// Checksums of one sector, before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SectorSum {
    pub(super) sector: u64,
    pub(super) old: u32,
    pub(super) new: u32,
}

impl SectorSum {
    pub(super) fn offset(self) -> u64 {
        self.sector.saturating_mul(SECTOR_LEN)
    }
}

/// The bytes of a sector of a file of `len` bytes.
pub(super) fn read_padded(file: &dyn Base, len: u64, sector: u64) -> io::Result<Sector> {
    let mut bytes = [0; SECTOR_LEN as usize];
    let start = sector.saturating_mul(SECTOR_LEN);
    let held = usize::try_from(len.saturating_sub(start).min(SECTOR_LEN)).unwrap_or_default();
    if let Some(held) = bytes.get_mut(..held).filter(|held| !held.is_empty()) {
        file.read_range(start, held)?;
    }
    Ok(bytes)
}

/// Finds the sectors that a delta changes, and writes their records.
pub(super) struct SectorSums<'a> {
    base: &'a dyn Base,
    base_len: u64,
    new_len: u64,
    file: &'a dyn DurableFile,
    /// The next record's number.
    next: u64,
    pending: Vec<u8>,
    crc: u32,
    /// The sector that is being changed: its old content, and its new content so far.
    current: Option<(u64, Sector, Sector)>,
    /// New content of the sector in which the base ends, once it was changed.
    end_sector: Option<Sector>,
    /// If the sector that is being changed will be cut off: its content without that.
    uncut: Option<Sector>,
    uncut_crc: u32,
    cut_crc: u32,
}

/// Records written for a delta.
pub(super) struct Written {
    /// The number after the last record.
    pub(super) next: u64,
    /// CRC-32C of all records.
    pub(super) crc: u32,
    /// If the file grows: the new content of the sector in which it ended.
    pub(super) end_sector: Option<Sector>,
    /// If the file is cut off: CRC-32C of the sector in which it is to end, before that.
    pub(super) uncut_crc: u32,
    /// CRC-32C of that sector if the file is only cut off.
    pub(super) cut_crc: u32,
}

impl<'a> SectorSums<'a> {
    pub(super) fn new(base: &'a dyn Base, base_len: u64, file: &'a dyn DurableFile, next: u64) -> Self {
        Self {
            base,
            base_len,
            new_len: 0,
            file,
            next,
            pending: Vec::new(),
            crc: 0,
            current: None,
            end_sector: None,
            uncut: None,
            uncut_crc: 0,
            cut_crc: 0,
        }
    }

    /// Reads a delta without copies to its end.
    pub(super) fn delta<R: Read>(
        &mut self,
        node: u64,
        new_len: u64,
        delta: &mut DeltaReader<R>,
    ) -> Result<(), PatchError> {
        self.new_len = new_len;
        let of_delta = |source| PatchError::Delta { node, source };
        let unfit = |what: String| PatchError::Unfit { node, what };
        let mut decoder = FrameDecoder::new().map_err(failed("set up the decompressor"))?;
        let mut block = Block::default();
        let mut raw = Vec::new();
        while delta.read_block(&mut block).map_err(of_delta)? {
            let decoded = block.frame.decode(&mut decoder, &mut raw);
            decoded.map_err(|source| unfit(source.to_string()))?;
            for extent in &block.extents {
                match extent.source {
                    Source::Literal(slice) => {
                        let start = usize::try_from(slice.skip_bytes).unwrap_or(usize::MAX);
                        let len = usize::try_from(extent.range.len_bytes()).unwrap_or(usize::MAX);
                        let bytes = raw.get(start..start.saturating_add(len));
                        let bytes = bytes.ok_or_else(|| unfit("a literal is longer than its frame".to_owned()))?;
                        self.overlay(node, extent.range, Some(bytes))?;
                    }
                    Source::Zero => self.zero(node, extent.range)?,
                    Source::Copy { .. } => return Err(unfit("it contains copies".to_owned())),
                }
            }
        }
        if new_len < self.base_len && !new_len.is_multiple_of(SECTOR_LEN) {
            self.load(node, new_len / SECTOR_LEN)?;
        }
        Ok(())
    }

    /// Ends the records of this delta.
    pub(super) fn finish(mut self, node: u64) -> Result<Written, PatchError> {
        self.put_current();
        self.write().map_err(failed("write checksums"))?;
        let mut end_sector = None;
        if self.new_len > self.base_len {
            let of_base = |source| PatchError::Base { node, source };
            let unchanged = || read_padded(self.base, self.base_len, self.base_len / SECTOR_LEN).map_err(of_base);
            end_sector = Some(self.end_sector.map_or_else(unchanged, Ok)?);
        }
        Ok(Written {
            next: self.next,
            crc: self.crc,
            end_sector,
            uncut_crc: self.uncut_crc,
            cut_crc: self.cut_crc,
        })
    }

    /// Zeros: where the base has a hole, or has ended, nothing changes.
    fn zero(&mut self, node: u64, range: ByteRange) -> Result<(), PatchError> {
        let mut rest = ByteRange::new(range.start(), range.end().min(self.base_len));
        while let Some(range) = rest {
            let data = self.base.next_data(range);
            let data = data.map_err(|source| PatchError::Base { node, source })?;
            let Some(data) = data.and_then(|data| data.intersect(range)) else {
                return Ok(());
            };
            self.overlay(node, data, None)?;
            rest = ByteRange::new(data.end(), range.end());
        }
        Ok(())
    }

    /// Lays bytes, or zeros, over a range.
    fn overlay(&mut self, node: u64, range: ByteRange, bytes: Option<&[u8]>) -> Result<(), PatchError> {
        let mut at = range.start();
        while at < range.end() {
            let sector = at / SECTOR_LEN;
            let end = sector.saturating_add(1).saturating_mul(SECTOR_LEN).min(range.end());
            let within = usize::try_from(at % SECTOR_LEN).unwrap_or_default();
            let len = usize::try_from(end.saturating_sub(at)).unwrap_or_default();
            let skip = usize::try_from(at.saturating_sub(range.start())).unwrap_or(usize::MAX);
            let piece = bytes.map(|bytes| bytes.get(skip..skip.saturating_add(len)).unwrap_or_default());
            let new = self.load(node, sector)?;
            lay_over(new, within, len, piece);
            if let Some(uncut) = &mut self.uncut {
                lay_over(uncut, within, len, piece);
            }
            at = end;
        }
        Ok(())
    }

    /// New content of a sector, as far as is known.
    fn load(&mut self, node: u64, sector: u64) -> Result<&mut Sector, PatchError> {
        if self.current.as_ref().is_none_or(|(current, ..)| *current != sector) {
            self.put_current();
            if self.pending.len() >= RECORDS_AT_ONCE * RECORD_LEN {
                self.write().map_err(failed("write checksums"))?;
            }
            let of_base = |source| PatchError::Base { node, source };
            let old = read_padded(self.base, self.base_len, sector).map_err(of_base)?;
            let mut new = old;
            let kept = self.new_len.saturating_sub(sector.saturating_mul(SECTOR_LEN));
            let kept = usize::try_from(kept.min(SECTOR_LEN)).unwrap_or_default();
            if let Some(cut) = new.get_mut(kept..) {
                cut.fill(0);
            }
            let is_cut = self.new_len < self.base_len && self.new_len / SECTOR_LEN == sector;
            if is_cut {
                self.uncut = Some(old);
                self.cut_crc = crc32c::crc32c(&new);
            }
            self.current = Some((sector, old, new));
        }
        let (.., new) = self
            .current
            .get_or_insert((sector, [0; SECTOR_LEN as usize], [0; SECTOR_LEN as usize]));
        Ok(new)
    }

    fn put_current(&mut self) {
        if let Some(uncut) = self.uncut.take() {
            self.uncut_crc = crc32c::crc32c(&uncut);
        }
        if let Some((sector, old, new)) = self.current.take().filter(|(_, old, new)| old != new) {
            if sector == self.base_len / SECTOR_LEN {
                self.end_sector = Some(new);
            }
            self.pending.extend(sector.to_le_bytes());
            self.pending.extend(crc32c::crc32c(&old).to_le_bytes());
            self.pending.extend(crc32c::crc32c(&new).to_le_bytes());
        }
    }

    fn write(&mut self) -> io::Result<()> {
        self.file
            .write_all_at(self.next.saturating_mul(RECORD_LEN as u64), &self.pending)?;
        self.crc = crc32c::crc32c_append(self.crc, &self.pending);
        self.next = self.next.saturating_add((self.pending.len() / RECORD_LEN) as u64);
        self.pending.clear();
        Ok(())
    }
}

/// Lays bytes, or zeros, over a part of a sector.
fn lay_over(sector: &mut Sector, within: usize, len: usize, bytes: Option<&[u8]>) {
    if let Some(target) = sector.get_mut(within..within.saturating_add(len)) {
        match bytes {
            Some(bytes) if bytes.len() == target.len() => target.copy_from_slice(bytes),
            _ => target.fill(0),
        }
    }
}

/// Reads the records of a patch. Only at the end are they known to be what was written.
pub(super) struct SumReader<'a> {
    file: &'a dyn DurableFile,
    next: u64,
    end: u64,
    crc: u32,
    expected_crc: u32,
    chunk: std::vec::IntoIter<SectorSum>,
}

impl<'a> SumReader<'a> {
    pub(super) fn new(file: &'a dyn DurableFile, patch: &PatchInfo) -> Self {
        Self {
            file,
            next: patch.sums_from,
            end: patch.sums_to,
            crc: 0,
            expected_crc: patch.sums_crc,
            chunk: Vec::new().into_iter(),
        }
    }

    /// # Errors
    /// The records cannot be read, or their checksum as a whole is wrong, which is noticed after
    /// the last.
    pub(super) fn next(&mut self) -> Result<Option<SectorSum>, PatchError> {
        if let Some(sum) = self.chunk.next() {
            return Ok(Some(sum));
        }
        let count = self.end.saturating_sub(self.next).min(RECORDS_AT_ONCE as u64);
        if count == 0 {
            return match self.crc == self.expected_crc {
                true => Ok(None),
                false => Err(PatchError::Damaged("the checksum of the checksums is wrong")),
            };
        }
        let mut bytes = vec![0; usize::try_from(count).unwrap_or_default() * RECORD_LEN];
        let at = self.next.saturating_mul(RECORD_LEN as u64);
        self.file
            .read_exact_at(at, &mut bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => PatchError::Damaged("checksums are missing"),
                _ => failed("read checksums")(error),
            })?;
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        self.next = self.next.saturating_add(count);
        let (records, _) = bytes.as_chunks::<RECORD_LEN>();
        let sums: Vec<_> = records.iter().map(record).collect();
        self.chunk = sums.into_iter();
        Ok(self.chunk.next())
    }
}

fn record(bytes: &[u8; RECORD_LEN]) -> SectorSum {
    let [s0, s1, s2, s3, s4, s5, s6, s7, o0, o1, o2, o3, n0, n1, n2, n3] = *bytes;
    SectorSum {
        sector: u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
        old: u32::from_le_bytes([o0, o1, o2, o3]),
        new: u32::from_le_bytes([n0, n1, n2, n3]),
    }
}
