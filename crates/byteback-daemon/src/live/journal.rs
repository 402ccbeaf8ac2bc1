//! The part of continuous sync that must outlive the process: the numbers that were given away, and
//! the queue after a clean stop.
//!
//! `journal`: each group is noted, durably, before it is handed out, and when it was answered. So
//! no number is given twice, and the next process knows the groups whose outcome is unknown. With
//! each group go the *names* that it changes, until the log's mark has passed them: the server may
//! have what came after the mark, and the log does not report a name that came and went between two
//! checkpoints, or before a crash. The same goes for names that something landed on, which the
//! server has, too. When everything since the mark is sent, these names are reported as well. The
//! files that each group changed in one atomic operation are kept as long: if the server refuses
//! it, and a crash follows, they still share their fate.
//!
//! `queue`: a snapshot of the queue after a clean stop. It is consumed by the next start, before
//! the gate opens: a crash after that cannot resume from it again.
//!
//! A journal that is damaged, or of another version, does not count as empty: see [`found`].
//!
//! Both are written down byte by byte in docs/formats/queue.md.

mod found;

use byteback_model::{NodeId, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use byteback_host::durable::{DurableDir, DurableFile, OpenMode};
use byteback_oplog::{Epoch, TreeId};
use byteback_queue::persist::{decode_snapshot, encode_snapshot};
use byteback_queue::queue::{FileSet, Numbers, Queue, QueueOptions};
use byteback_queue::{GroupId, Position};

use super::LensBefore;
pub(super) use found::{Found, JournalError, SKIPPED};

pub(super) const JOURNAL_NAME: &str = "journal";
const JOURNAL_NEW_NAME: &str = "journal.new";
const JOURNAL_MAGIC: [u8; 7] = *b"BYLIVEJ";
pub(crate) const JOURNAL_VERSION: u8 = 1;
const HEADER_LEN: usize = JOURNAL_MAGIC.len() + 1 + 4;
const QUEUE_NAME: &str = "queue";
const QUEUE_USED_NAME: &str = "queue.used";
const QUEUE_MAGIC: [u8; 8] = *b"BYLIVEQ\x01";

const RECORD_LEN: usize = 1 + 3 * 8 + 4;
/// Length of a record of a name, without the name.
const NAME_RECORD_LEN: usize = 1 + 2 * 8 + 2 + 4;
const TAG_HANDED: u8 = 1;
const TAG_ANSWERED: u8 = 2;
const TAG_NAME: u8 = 3;
const TAG_TOGETHER: u8 = 4;

/// Length of a record of files that were changed together, without the files.
const SET_RECORD_LEN: usize = 1 + 8 + 2 + 4;

/// Most files in all sets that are kept; the oldest sets go first.
const SET_FILES_MAX: usize = 10_000;

/// A journal is written anew, with what still counts, once it has both this length and twice the
/// one that it had after it was last written anew.
const JOURNAL_LEN_MAX: u64 = 1 << 20;

/// The groups that were handed out.
pub(super) struct Journal {
    dir: Arc<dyn DurableDir>,
    file: Arc<dyn DurableFile>,
    len_bytes: u64,
    /// The length at which it is written anew.
    len_max_bytes: u64,
    /// A write or a sync failed, so that it is unknown which bytes the file has. It is written anew
    /// before anything is appended.
    is_in_doubt: bool,
    noted: Noted,
    /// Records of names that something landed on, to be written.
    landed: Vec<u8>,
}

/// The contents of a journal.
#[derive(Default)]
struct Noted {
    numbers: Numbers,
    unanswered: BTreeSet<GroupId>,
    /// Names that the server may have heard of since the mark, each with the end of the last group
    /// that changed it.
    names: BTreeMap<Place<NodeId>, Position>,
    /// Files that groups changed in one atomic operation each, with the end of the group; oldest
    /// first.
    together: Vec<(Position, FileSet)>,
}

fn record(tag: u8, numbers: Numbers) -> [u8; RECORD_LEN] {
    let mut out = [0; RECORD_LEN];
    let fields = [numbers.group.0, numbers.counter, numbers.position.0];
    let (body, check) = out.split_at_mut(RECORD_LEN - 4);
    if let Some((first, rest)) = body.split_first_mut() {
        *first = tag;
        for (place, field) in rest.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
    }
    check.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    out
}

fn name_record(place: &Place<NodeId>, up_to: Position) -> Vec<u8> {
    let mut out = vec![TAG_NAME];
    out.extend(up_to.0.to_le_bytes());
    out.extend(place.parent.0.to_le_bytes());
    // A name has at most 255 bytes.
    out.extend(u16::try_from(place.name.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend(place.name.as_bytes());
    let check = crc32c::crc32c(&out);
    out.extend(check.to_le_bytes());
    out
}

fn set_record(set: &FileSet, up_to: Position) -> Vec<u8> {
    let mut out = vec![TAG_TOGETHER];
    out.extend(up_to.0.to_le_bytes());
    // A set has at most a thousand files.
    let count = u16::try_from(set.len()).unwrap_or(u16::MAX);
    out.extend(count.to_le_bytes());
    for file in set.iter().take(usize::from(count)) {
        out.extend(file.0.to_le_bytes());
    }
    let check = crc32c::crc32c(&out);
    out.extend(check.to_le_bytes());
    out
}

/// The length of the record that `bytes` begin with.
fn record_len(bytes: &[u8]) -> Option<usize> {
    match *bytes.first()? {
        TAG_NAME => {
            let name_len = bytes.get(1 + 2 * 8..)?.first_chunk::<2>()?;
            Some(NAME_RECORD_LEN + usize::from(u16::from_le_bytes(*name_len)))
        }
        TAG_TOGETHER => {
            let count = bytes.get(1 + 8..)?.first_chunk::<2>()?;
            Some(SET_RECORD_LEN + 8 * usize::from(u16::from_le_bytes(*count)))
        }
        _ => Some(RECORD_LEN),
    }
}

impl Noted {
    /// Takes in the first record of `bytes`, and returns what follows it; `None` where the journal
    /// ends.
    fn read<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (record, rest) = bytes.split_at_checked(record_len(bytes)?)?;
        let (body, check) = record.split_last_chunk::<4>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*check) {
            return None;
        }
        let (tag, fields) = body.split_first()?;
        if *tag == TAG_NAME {
            let (up_to, fields) = fields.split_first_chunk::<8>()?;
            let (parent, fields) = fields.split_first_chunk::<8>()?;
            let place = Place::new(NodeId(u64::from_le_bytes(*parent)), fields.get(2..)?);
            self.names.insert(place, Position(u64::from_le_bytes(*up_to)));
            return Some(rest);
        }
        if *tag == TAG_TOGETHER {
            let (up_to, fields) = fields.split_first_chunk::<8>()?;
            let (files, _) = fields.get(2..)?.as_chunks::<8>();
            let set = files.iter().map(|file| NodeId(u64::from_le_bytes(*file))).collect();
            self.add_together(Position(u64::from_le_bytes(*up_to)), [set]);
            return Some(rest);
        }
        let (fields, _) = fields.as_chunks::<8>();
        let [group, counter, position] = fields else {
            return None;
        };
        let group = GroupId(u64::from_le_bytes(*group));
        match *tag {
            TAG_HANDED => self.unanswered.insert(group),
            TAG_ANSWERED => self.unanswered.remove(&group),
            _ => return None,
        };
        let numbers = &mut self.numbers;
        numbers.group = numbers.group.max(group);
        numbers.counter = numbers.counter.max(u64::from_le_bytes(*counter));
        numbers.position = numbers.position.max(Position(u64::from_le_bytes(*position)));
        Some(rest)
    }

    fn add_together(&mut self, up_to: Position, sets: impl IntoIterator<Item = FileSet>) {
        for set in sets {
            // The same set may be on its way once more.
            self.together.retain(|(_, kept)| *kept != set);
            self.together.push((up_to, set));
        }
        let mut files: usize = self.together.iter().map(|(_, set)| set.len()).sum();
        self.together.retain(|(_, set)| {
            let is_kept = files <= SET_FILES_MAX;
            files = files.saturating_sub(if is_kept { 0 } else { set.len() });
            is_kept
        });
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = found::header().to_vec();
        // The last number first, as one that was answered.
        bytes.extend(record(TAG_HANDED, self.numbers));
        bytes.extend(record(TAG_ANSWERED, self.numbers));
        for group in &self.unanswered {
            let group = *group;
            bytes.extend(record(TAG_HANDED, Numbers { group, ..self.numbers }));
        }
        for (place, up_to) in &self.names {
            bytes.extend(name_record(place, *up_to));
        }
        for (up_to, set) in &self.together {
            bytes.extend(set_record(set, *up_to));
        }
        bytes
    }
}

impl Journal {
    /// Writes the journal in `dir` anew, with what was found of it. From then on damage of the old
    /// one is not known any more.
    pub(super) fn begin(dir: Arc<dyn DurableDir>, found: Found) -> io::Result<Self> {
        let noted = found.noted;
        let (file, len_bytes) = write_anew(&*dir, &noted)?;
        Ok(Self {
            dir,
            file,
            len_bytes,
            len_max_bytes: len_max_bytes(len_bytes),
            is_in_doubt: false,
            noted,
            landed: Vec::new(),
        })
    }

    /// The last numbers that were handed out.
    pub(super) fn numbers(&self) -> Numbers {
        self.noted.numbers
    }

    /// The groups that were handed out and not answered.
    pub(super) fn unanswered(&self) -> Vec<GroupId> {
        self.noted.unanswered.iter().copied().collect()
    }

    /// The names that groups or landings changed since the mark.
    pub(super) fn names(&self) -> impl Iterator<Item = &Place<NodeId>> {
        self.noted.names.keys()
    }

    /// The files that groups changed in one atomic operation each, since the mark.
    pub(super) fn together(&self) -> Vec<FileSet> {
        self.noted.together.iter().map(|(_, set)| set.clone()).collect()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_in_doubt || self.len_bytes >= self.len_max_bytes {
            (self.file, self.len_bytes) = write_anew(&*self.dir, &self.noted)?;
            self.len_max_bytes = len_max_bytes(self.len_bytes);
        }
        self.is_in_doubt = true;
        self.file.write_all_at(self.len_bytes, bytes)?;
        self.is_in_doubt = false;
        self.len_bytes += bytes.len() as u64;
        Ok(())
    }

    fn append_durably(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.append(bytes)?;
        self.is_in_doubt = true;
        self.file.sync_data()?;
        self.is_in_doubt = false;
        Ok(())
    }

    /// Notes durably that a group is handed out, with the last numbers that were given. The group
    /// ends at `up_to` and changes these names and, in one atomic operation each, these files.
    pub(super) fn handed(
        &mut self,
        numbers: Numbers,
        up_to: Position,
        names: impl Iterator<Item = Place<NodeId>>,
        sets: Vec<FileSet>,
    ) -> io::Result<()> {
        if self.noted.unanswered.contains(&numbers.group) {
            return Ok(());
        }
        let names = names.map(|place| (place, up_to)).collect::<Vec<_>>();
        let mut bytes = record(TAG_HANDED, numbers).to_vec();
        for (place, up_to) in &names {
            bytes.extend(name_record(place, *up_to));
        }
        for set in &sets {
            bytes.extend(set_record(set, up_to));
        }
        self.append_durably(&bytes)?;
        self.noted.numbers = numbers;
        self.noted.unanswered.insert(numbers.group);
        self.noted.names.extend(names);
        self.noted.add_together(up_to, sets);
        Ok(())
    }

    /// Notes that something landed on a name after `position`; durable with
    /// [`sync_landed`](Self::sync_landed).
    pub(super) fn landed(&mut self, place: Place<NodeId>, position: Position) {
        self.landed.extend(name_record(&place, position));
        self.noted.names.insert(place, position);
    }

    /// Makes the names durable that something landed on. After an error the next call tries the
    /// same again.
    pub(super) fn sync_landed(&mut self) -> io::Result<()> {
        if self.landed.is_empty() {
            return Ok(());
        }
        let landed = std::mem::take(&mut self.landed);
        let written = self.append_durably(&landed);
        if written.is_err() {
            self.landed = landed;
        }
        written
    }

    /// Notes that the outcome of a group is known. If that is lost, the server is asked once more.
    pub(super) fn answered(&mut self, group: GroupId) {
        if self.noted.unanswered.remove(&group) {
            let numbers = Numbers {
                group,
                ..self.noted.numbers
            };
            let _ = self.append(&record(TAG_ANSWERED, numbers));
        }
    }

    /// Takes the position at which the log's mark is now; what was sent up to there was applied.
    /// From now on the log reports each change of these names, and what was changed together is
    /// settled. Both are forgotten here at once, and in the file when it is written anew.
    pub(super) fn marked(&mut self, position: Position) {
        self.noted.names.retain(|_, up_to| *up_to > position);
        self.noted.together.retain(|(up_to, _)| *up_to > position);
    }
}

fn len_max_bytes(len_bytes: u64) -> u64 {
    JOURNAL_LEN_MAX.max(len_bytes.saturating_mul(2))
}

fn write_anew(dir: &dyn DurableDir, noted: &Noted) -> io::Result<(Arc<dyn DurableFile>, u64)> {
    let bytes = noted.to_bytes();
    let file = write_whole(dir, JOURNAL_NEW_NAME, JOURNAL_NAME, &bytes)?;
    Ok((file, bytes.len() as u64))
}

fn write_whole(dir: &dyn DurableDir, new: &str, name: &str, bytes: &[u8]) -> io::Result<Arc<dyn DurableFile>> {
    let file = dir.open(new, OpenMode::CreateIfMissing)?;
    file.set_len(0)?;
    file.write_all_at(0, bytes)?;
    file.sync_data()?;
    dir.rename(new, name)?;
    dir.sync()?;
    Ok(file)
}

fn read_all(dir: &dyn DurableDir, name: &str) -> io::Result<Option<Vec<u8>>> {
    let file = match dir.open(name, OpenMode::Existing) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = vec![0; usize::try_from(file.len()?).map_err(io::Error::other)?];
    file.read_exact_at(0, &mut bytes)?;
    Ok(Some(bytes))
}

/// The queue after a clean stop, and the epoch of the log that began then.
pub(super) struct Stopped {
    pub(super) tree: TreeId,
    pub(super) epoch: Epoch,
    pub(super) lens_before: LensBefore,
    pub(super) queue: Queue,
}

impl Stopped {
    /// Writes the snapshot durably.
    pub(super) fn write(&self, dir: &dyn DurableDir) -> io::Result<()> {
        let mut bytes = QUEUE_MAGIC.to_vec();
        bytes.extend(self.tree.0.to_le_bytes());
        bytes.extend(self.epoch.0.to_le_bytes());
        let lens = || {
            let of_node = |(node, lens): (&NodeId, &Vec<(Position, u64)>)| {
                let node = node.0;
                lens.clone()
                    .into_iter()
                    .map(move |(at, len_bytes)| [node, at.0, len_bytes])
            };
            self.lens_before.iter().flat_map(of_node)
        };
        bytes.extend((lens().count() as u64).to_le_bytes());
        for number in lens().flatten() {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(encode_snapshot(&self.queue));
        let check = crc32c::crc32c(&bytes);
        bytes.extend(check.to_le_bytes());
        write_whole(dir, "queue.new", QUEUE_NAME, &bytes).map(|_| ())
    }

    /// Reads the snapshot and leaves it where it is.
    pub(super) fn read(dir: &dyn DurableDir, options: QueueOptions) -> io::Result<Option<Self>> {
        let bytes = read_all(dir, QUEUE_NAME)?;
        Ok(bytes.and_then(|bytes| Self::parse(&bytes, options)))
    }

    /// Takes the snapshot away, durably, and reads it; `None` if there is none that can be read.
    pub(super) fn consume(dir: &dyn DurableDir, options: QueueOptions) -> io::Result<Option<Self>> {
        match dir.rename(QUEUE_NAME, QUEUE_USED_NAME) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            renamed => renamed?,
        }
        dir.sync()?;
        let bytes = read_all(dir, QUEUE_USED_NAME)?.unwrap_or_default();
        dir.remove(QUEUE_USED_NAME)?;
        Ok(Self::parse(&bytes, options))
    }

    fn parse(bytes: &[u8], options: QueueOptions) -> Option<Self> {
        let (sealed, check) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(sealed) != u32::from_le_bytes(*check) {
            return None;
        }
        let rest = sealed.strip_prefix(&QUEUE_MAGIC)?;
        let (tree, rest) = rest.split_first_chunk::<8>()?;
        let (epoch, rest) = rest.split_first_chunk::<8>()?;
        let (count, rest) = rest.split_first_chunk::<8>()?;
        let lens_len = usize::try_from(u64::from_le_bytes(*count)).ok()?.checked_mul(3 * 8)?;
        let (lens, snapshot) = rest.split_at_checked(lens_len)?;
        let mut lens_before = LensBefore::new();
        let (numbers, _) = lens.as_chunks::<8>();
        for numbers in numbers.chunks_exact(3) {
            let [node, at, len_bytes] = numbers else { return None };
            let lens = lens_before.entry(NodeId(u64::from_le_bytes(*node))).or_default();
            lens.push((Position(u64::from_le_bytes(*at)), u64::from_le_bytes(*len_bytes)));
        }
        Some(Self {
            lens_before,
            tree: TreeId(u64::from_le_bytes(*tree)),
            epoch: Epoch(u64::from_le_bytes(*epoch)),
            queue: decode_snapshot(snapshot, options).ok()?,
        })
    }
}

#[cfg(test)]
mod tests;
