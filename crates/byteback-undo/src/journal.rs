//! The journal: segment files with records in the order in which they were appended.
//!
//! A segment is named `undo-NUMBER`, the number in 16 hexadecimal digits, begins with a header of
//! 64 bytes and is never written to again once the next has begun; it is synced before that. Each
//! start begins a new one. The oldest are removed as a whole.
//!
//! **Replay.** An unreadable place at the end of the newest segment is the trace of a stop in the
//! middle of a write. Anywhere else it is damage: then that segment and all older ones are removed,
//! since a missing record would bring back wrong bytes. A gap in the numbers is damage too.
//!
//! **The budget** is charged the length of each record, and at least [`CHARGED_BYTES_MIN`]: this
//! bounds the memory of the index, too.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use byteback_host::durable::{DurableDir, DurableFile, OpenMode};

use crate::record::{self, Framed, HEADER_LEN_BYTES, Record};

const PREFIX: &str = "undo-";
const MAGIC: &[u8; 8] = b"BBUNDO\0\x01";
/// The minimum charge of a record.
const CHARGED_BYTES_MIN: u64 = 512;
/// The number of segments in the budget: a segment, at most this share of it, is given up at once.
const SEGMENTS_PER_BUDGET: u64 = 16;
const SEGMENT_LEN_BYTES_MIN: u64 = 256 << 10;
const SEGMENT_LEN_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug)]
struct Segment {
    file: Arc<dyn DurableFile>,
    len: u64,
    charged: u64,
    last_ns: i64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Journal {
    dir: Arc<dyn DurableDir>,
    segments: BTreeMap<u64, Segment>,
    /// The number of the next segment.
    next: u64,
    budget_bytes: u64,
    charged: u64,
    is_dirty: bool,
}

/// Where a record went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) segment: u64,
    pub(crate) at: u64,
}

/// The result of a replay.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) records: Records,
    /// The newest segment ends in something unreadable.
    pub(crate) is_torn: bool,
    /// Older records were removed as damaged.
    pub(crate) is_damaged: bool,
}

fn name_of(number: u64) -> String {
    format!("{PREFIX}{number:016x}")
}

fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok())?
}

fn segment_header(number: u64) -> Vec<u8> {
    let mut header = vec![0; 4];
    header.extend_from_slice(&[0; 4]);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&number.to_le_bytes());
    header.resize(HEADER_LEN_BYTES, 0);
    let crc = crc32c::crc32c(header.get(4..).unwrap_or_default());
    if let Some(place) = header.first_chunk_mut::<4>() {
        *place = crc.to_le_bytes();
    }
    header
}

impl Journal {
    /// Opens what is in `dir`.
    pub(crate) fn open(dir: Arc<dyn DurableDir>, budget_bytes: u64) -> io::Result<(Self, Replayed)> {
        let mut replayed = Replayed::default();
        let mut numbers: Vec<u64> = dir.list()?.iter().filter_map(|name| number_of(name)).collect();
        numbers.sort_unstable();
        let mut journal = Self {
            dir,
            segments: BTreeMap::new(),
            next: numbers.last().map_or(1, |last| last.saturating_add(1)),
            budget_bytes,
            charged: 0,
            is_dirty: false,
        };
        let newest = numbers.last().copied();
        let mut before: Option<u64> = None;
        for number in numbers {
            if before.is_some_and(|before| before + 1 != number) {
                journal.give_up(&mut replayed);
            }
            before = Some(number);
            let file = journal.dir.open(&name_of(number), OpenMode::Existing)?;
            let (segment, records, end) = replay_segment(number, file)?;
            let is_whole = end.is_whole();
            journal.charged += segment.charged;
            journal.segments.insert(number, segment);
            replayed.records.extend(records);
            if !is_whole && Some(number) == newest && end == End::Torn {
                replayed.is_torn = true;
                journal.cut_off_torn(number)?;
            } else if !is_whole {
                journal.give_up(&mut replayed);
            }
        }
        Ok((journal, replayed))
    }

    /// Takes what is unreadable off the end of a segment, so that it ends well from now on.
    fn cut_off_torn(&mut self, number: u64) -> io::Result<()> {
        match self.segments.get(&number) {
            Some(segment) if segment.len > 0 => {
                segment.file.set_len(segment.len)?;
                segment.file.sync_data()
            }
            _ => {
                self.segments.remove(&number);
                self.dir.remove(&name_of(number))?;
                self.dir.sync()
            }
        }
    }

    fn give_up(&mut self, replayed: &mut Replayed) {
        replayed.is_damaged = true;
        replayed.records.clear();
        // Segments that cannot be removed now stay unused: the records are forgotten, and the next
        // start finds the damage again.
        let _ = self.drop_all();
    }

    /// The number of the oldest segment; the next one's if there is none.
    pub(crate) fn first(&self) -> u64 {
        self.segments.keys().next().copied().unwrap_or(self.next)
    }

    /// Appends a record. The places of earlier records stay the same. Old segments may have been
    /// dropped for room: then the time of the newest record in them is returned too.
    pub(crate) fn append(&mut self, time_ns: i64, record: &Record, data: &[u8]) -> io::Result<(Placed, Option<i64>)> {
        let bytes = record.encode(time_ns, data);
        let charge = (bytes.len() as u64).max(CHARGED_BYTES_MIN);
        let mut dropped = self.make_room(charge)?;
        let placed = match self.write(time_ns, &bytes, charge) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                let given_up = self.drop_oldest()?;
                if given_up.is_none() {
                    return Err(error);
                }
                dropped = dropped.max(given_up);
                self.write(time_ns, &bytes, charge)?
            }
            placed => placed?,
        };
        Ok((placed, dropped))
    }

    fn make_room(&mut self, charge: u64) -> io::Result<Option<i64>> {
        let mut dropped = None;
        while self.charged.saturating_add(charge) > self.budget_bytes {
            match self.drop_oldest()? {
                None => break,
                some => dropped = dropped.max(some),
            }
        }
        Ok(dropped)
    }

    fn write(&mut self, time_ns: i64, bytes: &[u8], charge: u64) -> io::Result<Placed> {
        let limit = (self.budget_bytes / SEGMENTS_PER_BUDGET).clamp(SEGMENT_LEN_BYTES_MIN, SEGMENT_LEN_BYTES_MAX);
        let is_full = |segment: &Segment| segment.charged.saturating_add(charge) > limit && segment.charged > 0;
        let number = match self.segments.last_key_value() {
            Some((number, segment)) if number + 1 == self.next && !is_full(segment) => *number,
            _ => self.roll()?,
        };
        let Some(segment) = self.segments.get_mut(&number) else {
            return Err(io::Error::other("the newest segment is missing"));
        };
        let at = segment.len;
        self.is_dirty = true;
        segment.file.write_all_at(at, bytes)?;
        segment.len += bytes.len() as u64;
        segment.charged += charge;
        segment.last_ns = segment.last_ns.max(time_ns);
        self.charged += charge;
        Ok(Placed { segment: number, at })
    }

    /// Begins a new segment, after the last is durable.
    pub(crate) fn roll(&mut self) -> io::Result<u64> {
        self.sync()?;
        let number = self.next;
        let file = self.dir.open(&name_of(number), OpenMode::CreateNew)?;
        self.next += 1;
        let header = segment_header(number);
        // Before anything can be appended: records without a header before them would be ignored by
        // the next start. If this fails, the number stays unused, and the gap makes the next start
        // distrust everything older.
        let begun = file.write_all_at(0, &header).and_then(|()| file.sync_data());
        if let Err(error) = begun {
            let _ = self.dir.remove(&name_of(number));
            return Err(error);
        }
        let segment = Segment {
            file,
            len: header.len() as u64,
            charged: 0,
            last_ns: i64::MIN,
        };
        self.segments.insert(number, segment);
        self.dir.sync()?;
        Ok(number)
    }

    /// Makes all that was appended durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.is_dirty) {
            return Ok(());
        }
        match self.segments.last_key_value() {
            Some((_, segment)) => segment.file.sync_data(),
            None => Ok(()),
        }
    }

    /// Removes the oldest segment unless it is the only one. Returns the time of its newest record.
    fn drop_oldest(&mut self) -> io::Result<Option<i64>> {
        if self.segments.len() < 2 {
            return Ok(None);
        }
        let Some(number) = self.segments.keys().next().copied() else {
            return Ok(None);
        };
        self.dir.remove(&name_of(number))?;
        let Some(segment) = self.segments.remove(&number) else {
            return Ok(None);
        };
        self.charged = self.charged.saturating_sub(segment.charged);
        Ok(Some(segment.last_ns))
    }

    /// Removes segments that are older than `before_ns` as a whole. Returns the time of the newest
    /// record in them.
    pub(crate) fn drop_older(&mut self, before_ns: i64) -> io::Result<Option<i64>> {
        let mut dropped = None;
        while self.segments.len() > 1
            && self
                .segments
                .values()
                .next()
                .is_some_and(|oldest| oldest.last_ns < before_ns)
        {
            dropped = dropped.max(self.drop_oldest()?);
        }
        Ok(dropped)
    }

    /// Removes everything.
    pub(crate) fn drop_all(&mut self) -> io::Result<()> {
        let mut failed = None;
        for number in std::mem::take(&mut self.segments).into_keys() {
            match self.dir.remove(&name_of(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => failed = Some(error),
                _ => {}
            }
        }
        self.charged = 0;
        self.is_dirty = false;
        // A durable absence is what matters: what came back after a crash would be taken for
        // complete.
        let dropped = failed.map_or(self.dir.sync(), Err);
        if dropped.is_err() {
            // A gap in the numbers tells the next start not to believe what is left.
            self.next = self.next.saturating_add(1);
        }
        dropped
    }

    /// The bytes that count against the budget.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.charged
    }

    /// The file of a segment, to be read without holding the journal.
    pub(crate) fn file(&self, segment: u64) -> Option<Arc<dyn DurableFile>> {
        self.segments.get(&segment).map(|segment| Arc::clone(&segment.file))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Whole,
    /// Nothing readable follows.
    Torn,
    Damaged,
}

impl End {
    fn is_whole(self) -> bool {
        self == Self::Whole
    }
}

type Records = Vec<(Placed, Framed)>;

/// The segment, its records, and how it ends.
fn replay_segment(number: u64, file: Arc<dyn DurableFile>) -> io::Result<(Segment, Records, End)> {
    let len = file.len()?;
    let mut segment = Segment {
        file,
        len: 0,
        charged: 0,
        last_ns: i64::MIN,
    };
    let mut records = Vec::new();
    let mut header = [0; HEADER_LEN_BYTES];
    if len < HEADER_LEN_BYTES as u64 {
        return Ok((segment, records, End::Torn));
    }
    segment.file.read_exact_at(0, &mut header)?;
    if header.as_slice() != segment_header(number) {
        return Ok((
            segment,
            records,
            if header.iter().all(|byte| *byte == 0) {
                End::Torn
            } else {
                End::Damaged
            },
        ));
    }
    let mut at = HEADER_LEN_BYTES as u64;
    while at < len {
        match read_record(&*segment.file, at, len)? {
            Some(framed) => {
                segment.charged += framed.len.max(CHARGED_BYTES_MIN);
                segment.last_ns = segment.last_ns.max(framed.time_ns);
                let next = at + framed.len;
                records.push((Placed { segment: number, at }, framed));
                at = next;
            }
            None => {
                segment.len = at;
                let end = if readable_follows(&*segment.file, at + 8, len)? {
                    End::Damaged
                } else {
                    End::Torn
                };
                return Ok((segment, records, end));
            }
        }
    }
    segment.len = at;
    Ok((segment, records, End::Whole))
}

fn read_record(file: &dyn DurableFile, at: u64, len: u64) -> io::Result<Option<Framed>> {
    let mut head = vec![0; HEADER_LEN_BYTES];
    if at + HEADER_LEN_BYTES as u64 > len {
        return Ok(None);
    }
    file.read_exact_at(at, &mut head)?;
    let Some(whole) = record::head_len(&head) else {
        return Ok(None);
    };
    if at + whole as u64 > len {
        return Ok(None);
    }
    head.resize(whole, 0);
    file.read_exact_at(at, &mut head)?;
    Ok(record::decode(&head).filter(|framed| at + framed.len <= len))
}

/// Whether any record can be read from `from` on.
fn readable_follows(file: &dyn DurableFile, from: u64, len: u64) -> io::Result<bool> {
    let mut rest = vec![0; usize::try_from(len.saturating_sub(from)).unwrap_or_default()];
    file.read_exact_at(from, &mut rest)?;
    Ok((0..rest.len())
        .step_by(8)
        .any(|at| rest.get(at..).is_some_and(|rest| record::decode(rest).is_some())))
}

#[cfg(test)]
mod tests;
