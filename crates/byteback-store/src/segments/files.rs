//! Segments as files of a [`DurableDir`], named `NUMBER.seg` (16 hexadecimal digits).
//!
//! Appends take one lock; syncs happen outside it, so that writers wait for the disk side by side.

use super::format::{check_frame, check_segment_header, put_frame, segment_header};
use super::{FRAME_HEADER_LEN, FrameRef, SEGMENT_HEADER_LEN, SEGMENT_LEN_MAX, SegmentInfo, SegmentWriter, Segments};
use crate::error::StoreError;
use crate::numbers::SegmentNumber;
use byteback_delta::Codec;
use byteback_host::durable::{DurableDir, DurableFile, OpenMode};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most segment files that are kept open for reading.
const OPEN_FILES_MAX: usize = 64;

/// Segments in a directory.
#[derive(Debug)]
pub struct SegmentFiles {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    dir: Arc<dyn DurableDir>,
    len_max: u64,
    writing: Mutex<Writing>,
    readers: Mutex<HashMap<SegmentNumber, Arc<dyn DurableFile>>>,
}

/// Segments that are being written: the active one and the pinned ones.
#[derive(Debug)]
struct Writing {
    next_id: SegmentNumber,
    active: Option<SegmentNumber>,
    open: BTreeMap<SegmentNumber, OpenSegment>,
}

#[derive(Debug)]
struct OpenSegment {
    file: Arc<dyn DurableFile>,
    len: u64,
    synced_len: u64,
    abandoned: bool,
    pins: u64,
    /// Times that its end was moved back: bytes that an earlier sync made durable may have been
    /// rewritten since.
    times_cut: u64,
}

impl SegmentFiles {
    /// Opens the segments in `dir`. `used_id_max` is the highest number that the catalog has ever
    /// known: numbers above both it and every file's are free.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(dir: Arc<dyn DurableDir>, used_id_max: SegmentNumber) -> Result<Self, StoreError> {
        Self::with_len_max(dir, used_id_max, SEGMENT_LEN_MAX)
    }

    /// Like [`Self::open`], with another length at which a segment is full.
    ///
    /// # Errors
    /// The system's error.
    pub fn with_len_max(
        dir: Arc<dyn DurableDir>,
        used_id_max: SegmentNumber,
        len_max: u64,
    ) -> Result<Self, StoreError> {
        let highest = list_ids(&*dir)?
            .into_iter()
            .max()
            .unwrap_or(SegmentNumber::NONE)
            .max(used_id_max);
        Ok(Self {
            shared: Arc::new(Shared {
                dir,
                len_max,
                writing: Mutex::new(Writing {
                    next_id: highest.next(),
                    active: None,
                    open: BTreeMap::new(),
                }),
                readers: Mutex::new(HashMap::new()),
            }),
        })
    }
}

fn name_of(segment: SegmentNumber) -> String {
    format!("{:016x}.seg", segment.0)
}

fn list_ids(dir: &dyn DurableDir) -> Result<Vec<SegmentNumber>, StoreError> {
    let names = dir.list().map_err(|e| StoreError::io("list the segments", e))?;
    // A file without a segment's name is not ours and is left alone.
    let ids = names.iter().filter_map(|name| {
        let digits = name.strip_suffix(".seg").filter(|digits| digits.len() == 16)?;
        let id = SegmentNumber(u64::from_str_radix(digits, 16).ok()?);
        Some(id).filter(|id| name_of(*id) == *name)
    });
    Ok(ids.collect())
}

impl Shared {
    fn writing(&self) -> MutexGuard<'_, Writing> {
        // A panic leaves a consistent state: fields are only set after the file operations.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The active segment, created if there is none.
    fn active(&self, writing: &mut Writing) -> Result<SegmentNumber, StoreError> {
        if let Some(id) = writing.active
            && let Some(open) = writing.open.get(&id)
        {
            if !open.abandoned && open.len < self.len_max {
                return Ok(id);
            }
            if open.pins == 0 {
                writing.open.remove(&id);
            }
            writing.active = None;
        }
        let id = writing.next_id;
        // A number is used up even if its file could not be created: it may exist after a crash.
        writing.next_id = id.next();
        let failed = |what| move |e| StoreError::segment(id, what, e);
        let file = self
            .dir
            .open(&name_of(id), OpenMode::CreateNew)
            .map_err(failed("create the file"))?;
        let begun = file
            .write_all_at(0, &segment_header(id))
            .and_then(|()| self.dir.sync())
            .map_err(failed("write the header"));
        if let Err(error) = begun {
            // Best effort: a leftover is an unreferenced file, removed at the next start.
            let _ = self.dir.remove(&name_of(id));
            return Err(error);
        }
        let open = OpenSegment {
            file,
            len: SEGMENT_HEADER_LEN,
            synced_len: 0,
            abandoned: false,
            pins: 0,
            times_cut: 0,
        };
        writing.open.insert(id, open);
        writing.active = Some(id);
        Ok(id)
    }

    /// Makes a segment durable up to `end`.
    fn sync(&self, id: SegmentNumber, end: u64) -> Result<(), StoreError> {
        loop {
            let (file, len, times_cut) = {
                let writing = self.writing();
                let Some(open) = writing.open.get(&id).filter(|open| !open.abandoned) else {
                    return Err(StoreError::SegmentAbandoned(id));
                };
                if open.synced_len >= end {
                    return Ok(());
                }
                (Arc::clone(&open.file), open.len, open.times_cut)
            };
            let result = file.sync_data();
            let mut writing = self.writing();
            let Some(open) = writing.open.get_mut(&id) else {
                return Err(StoreError::SegmentAbandoned(id));
            };
            match result {
                // Cut meanwhile, and perhaps rewritten: only another sync can tell.
                Ok(()) if open.times_cut != times_cut => continue,
                Ok(()) => open.synced_len = open.synced_len.max(len),
                Err(e) => {
                    open.abandoned = true;
                    return Err(StoreError::segment(id, "sync the file", e));
                }
            }
            // A failed sync of another writer in the meantime may have taken our bytes with it.
            if open.abandoned {
                return Err(StoreError::SegmentAbandoned(id));
            }
            return Ok(());
        }
    }

    fn reader(&self, segment: SegmentNumber) -> Result<Arc<dyn DurableFile>, StoreError> {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = readers.get(&segment) {
            return Ok(Arc::clone(file));
        }
        let file = match self.dir.open(&name_of(segment), OpenMode::Existing) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(damaged(segment, 0, "the file is missing"));
            }
            Err(e) => return Err(StoreError::segment(segment, "open the file", e)),
        };
        let mut header = [0; 20];
        match file.read_exact_at(0, &mut header) {
            Ok(()) => check_segment_header(&header, segment).map_err(|what| damaged(segment, 0, what))?,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(damaged(segment, 0, "the file ends inside its header"));
            }
            Err(e) => return Err(StoreError::segment(segment, "read the header", e)),
        }
        if readers.len() >= OPEN_FILES_MAX {
            readers.clear();
        }
        readers.insert(segment, Arc::clone(&file));
        Ok(file)
    }
}

fn damaged(segment: SegmentNumber, offset: u64, what: &str) -> StoreError {
    StoreError::Damaged {
        segment,
        offset,
        what: what.to_owned(),
    }
}

impl Segments for SegmentFiles {
    fn writer(&self) -> Box<dyn SegmentWriter> {
        Box::new(FileWriter {
            shared: Arc::clone(&self.shared),
            ends: BTreeMap::new(),
            runs: BTreeMap::new(),
            record: Vec::new(),
        })
    }

    fn read(&self, frame: &FrameRef, stored: &mut Vec<u8>) -> Result<(), StoreError> {
        let &FrameRef {
            segment,
            offset,
            stored_len,
            ..
        } = frame;
        let file = self.shared.reader(segment)?;
        let header_len = usize::try_from(FRAME_HEADER_LEN).unwrap_or(24);
        let stored_len = usize::try_from(stored_len).unwrap_or(usize::MAX);
        // References come from the checked catalog, and a frame is at most 256 KiB: a greater
        // length is damage, not a reason to reserve memory.
        if frame.raw_len > byteback_delta::FRAME_RAW_LEN_MAX || frame.stored_len > frame.raw_len {
            return Err(damaged(
                segment,
                offset,
                "the catalog's reference to a frame is invalid",
            ));
        }
        stored.clear();
        stored.resize(header_len.saturating_add(stored_len), 0);
        match file.read_exact_at(offset, stored) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(damaged(segment, offset, "the file ends before or inside the frame"));
            }
            Err(e) => return Err(StoreError::segment(segment, "read a frame", e)),
        }
        check_frame(stored, frame).map_err(|what| damaged(segment, offset, what))?;
        stored.drain(..header_len);
        Ok(())
    }

    fn rewrite(&self, frame: &FrameRef, stored: &[u8]) -> Result<bool, StoreError> {
        let failed = |what| move |e| StoreError::segment(frame.segment, what, e);
        if crate::codec::len_u64(stored) != u64::from(frame.stored_len) {
            return Ok(false);
        }
        let file = match self.shared.dir.open(&name_of(frame.segment), OpenMode::Existing) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(failed("open the file")(e)),
        };
        let mut record = vec![0; usize::try_from(FRAME_HEADER_LEN).unwrap_or(24)];
        if file.read_exact_at(frame.offset, &mut record).is_err() {
            return Ok(false);
        }
        record.extend_from_slice(stored);
        if check_frame(&record, frame).is_err() {
            return Ok(false);
        }
        file.write_all_at(frame.offset.saturating_add(FRAME_HEADER_LEN), stored)
            .and_then(|()| file.sync_data())
            .map_err(failed("write a frame again"))?;
        Ok(true)
    }

    fn list(&self) -> Result<Vec<SegmentInfo>, StoreError> {
        let mut segments = Vec::new();
        for id in list_ids(&*self.shared.dir)? {
            let len = self
                .shared
                .dir
                .open(&name_of(id), OpenMode::Existing)
                .and_then(|file| file.len());
            match len {
                Ok(len_bytes) => segments.push(SegmentInfo { id, len_bytes }),
                // Removed after the listing.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(StoreError::segment(id, "read the length", e)),
            }
        }
        segments.sort_unstable_by_key(|segment| segment.id);
        Ok(segments)
    }

    fn is_in_use(&self, segment: SegmentNumber) -> bool {
        let writing = self.shared.writing();
        writing.active == Some(segment) || writing.open.contains_key(&segment)
    }

    fn remove(&self, segment: SegmentNumber) -> Result<(), StoreError> {
        self.shared
            .readers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&segment);
        match self.shared.dir.remove(&name_of(segment)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(StoreError::segment(segment, "remove the file", e)),
            _ => Ok(()),
        }
    }
}

/// Appends for one request. Dropping it releases its pins.
#[derive(Debug)]
struct FileWriter {
    shared: Arc<Shared>,
    /// For each segment that was appended to, the end of the last frame.
    ends: BTreeMap<SegmentNumber, u64>,
    /// For each of them, the start of the last run of adjacent frames.
    runs: BTreeMap<SegmentNumber, u64>,
    record: Vec<u8>,
}

impl SegmentWriter for FileWriter {
    fn append(&mut self, codec: Codec, raw_len: u32, stored: &[u8]) -> Result<FrameRef, StoreError> {
        let stored_len =
            u32::try_from(stored.len()).map_err(|_| StoreError::TooLarge("a frame is longer than 4 GiB".to_owned()))?;
        self.record.clear();
        put_frame(codec.code(), raw_len, stored_len, stored, &mut self.record);
        let mut writing = self.shared.writing();
        let id = self.shared.active(&mut writing)?;
        let Some(open) = writing.open.get_mut(&id) else {
            return Err(StoreError::SegmentAbandoned(id));
        };
        let offset = open.len;
        if let Err(e) = open.file.write_all_at(offset, &self.record) {
            // A full disk may have taken part of the record, and the catalog may need that space,
            // if only to forget something.
            let _ = open.file.set_len(offset);
            return Err(StoreError::segment(id, "append a frame", e));
        }
        open.len = offset.saturating_add(crate::codec::len_u64(&self.record));
        if !self.ends.contains_key(&id) {
            open.pins = open.pins.saturating_add(1);
        }
        if self.ends.insert(id, open.len) != Some(offset) {
            self.runs.insert(id, offset);
        }
        Ok(FrameRef {
            segment: id,
            offset,
            stored_len,
            raw_len,
            codec: codec.code(),
        })
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        for (&id, &end) in &self.ends {
            self.shared.sync(id, end)?;
        }
        Ok(())
    }

    fn discard(&mut self) {
        let mut writing = self.shared.writing();
        for (id, end) in &self.ends {
            let (Some(open), Some(&start)) = (writing.open.get_mut(id), self.runs.get(id)) else {
                continue;
            };
            if open.len == *end && !open.abandoned {
                open.len = start;
                open.synced_len = open.synced_len.min(start);
                open.times_cut += 1;
                // Best effort: bytes that stay are overwritten.
                let _ = open.file.set_len(start);
            }
        }
    }

    fn segments(&self) -> BTreeSet<SegmentNumber> {
        self.ends.keys().copied().collect()
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        let mut writing = self.shared.writing();
        for id in self.ends.keys() {
            let active = writing.active == Some(*id);
            let Some(open) = writing.open.get_mut(id) else { continue };
            open.pins = open.pins.saturating_sub(1);
            if open.pins == 0 && !active {
                writing.open.remove(id);
            }
        }
    }
}
