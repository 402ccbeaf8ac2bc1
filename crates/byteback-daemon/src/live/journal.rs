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
//! The journal is a [`RecordLog`]. Its records are appended and synced before a group is handed
//! out, and it is written anew, with what still counts, when it has become long.
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

use byteback_host::durable::{DurableDir, RecordLog, RecordLogError, RecordLogFormat, read_whole, replace};
use byteback_oplog::{Epoch, TreeId};
use byteback_queue::persist::{decode_snapshot, encode_snapshot};
use byteback_queue::queue::{FileSet, Numbers, Queue, QueueOptions};
use byteback_queue::{GroupId, Position};

use super::LensBefore;
pub(super) use found::{Found, JournalError, SKIPPED};

/// The longest record is that of a thousand files that were changed together, which is as many as
/// the queue keeps. A low bound keeps the search for records in a damaged journal short.
const FORMAT: RecordLogFormat = RecordLogFormat {
    name: "journal",
    magic: *b"BYLIVEJ",
    version: JOURNAL_VERSION,
    len_max_bytes: 16 << 10,
    rewrite_from_bytes: 1 << 20,
};
pub(super) const JOURNAL_NAME: &str = FORMAT.name;
pub(super) const JOURNAL_VERSION: u8 = 1;
const QUEUE_NAME: &str = "queue";
const QUEUE_USED_NAME: &str = "queue.used";
const QUEUE_MAGIC: [u8; 8] = *b"BYLIVEQ\x01";

const TAG_HANDED: u8 = 1;
const TAG_ANSWERED: u8 = 2;
const TAG_NAME: u8 = 3;
const TAG_TOGETHER: u8 = 4;

/// Most files in all sets that are kept; the oldest sets go first.
const SET_FILES_MAX: usize = 10_000;

/// The groups that were handed out.
pub(super) struct Journal {
    log: RecordLog,
    noted: Noted,
    /// Records of names that something landed on, to be written.
    landed: Vec<Vec<u8>>,
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

fn record(tag: u8, numbers: Numbers) -> Vec<u8> {
    let mut out = vec![tag];
    for field in [numbers.group.0, numbers.counter, numbers.position.0] {
        out.extend(field.to_le_bytes());
    }
    out
}

fn name_record(place: &Place<NodeId>, up_to: Position) -> Vec<u8> {
    let mut out = vec![TAG_NAME];
    out.extend(up_to.0.to_le_bytes());
    out.extend(place.parent.0.to_le_bytes());
    out.extend(place.name.as_bytes());
    out
}

fn set_record(set: &FileSet, up_to: Position) -> Vec<u8> {
    let mut out = vec![TAG_TOGETHER];
    out.extend(up_to.0.to_le_bytes());
    // A set has at most a thousand files.
    for file in set {
        out.extend(file.0.to_le_bytes());
    }
    out
}

impl Noted {
    /// Takes in a record; `None` if it makes no sense.
    fn take(&mut self, record: &[u8]) -> Option<()> {
        let (tag, fields) = record.split_first()?;
        let (first, rest) = fields.split_first_chunk::<8>()?;
        let first = u64::from_le_bytes(*first);
        match *tag {
            TAG_NAME => {
                let (parent, name) = rest.split_first_chunk::<8>()?;
                let place = Place::new(NodeId(u64::from_le_bytes(*parent)), name);
                self.names.insert(place, Position(first));
            }
            TAG_TOGETHER => {
                let (files, more) = rest.as_chunks::<8>();
                let set = files.iter().map(|file| NodeId(u64::from_le_bytes(*file))).collect();
                more.is_empty().then_some(())?;
                self.add_together(Position(first), [set]);
            }
            TAG_HANDED | TAG_ANSWERED => {
                let (counter, position) = rest.split_first_chunk::<8>()?;
                let position = Position(u64::from_le_bytes(position.try_into().ok()?));
                let group = GroupId(first);
                match *tag {
                    TAG_HANDED => self.unanswered.insert(group),
                    _ => self.unanswered.remove(&group),
                };
                let numbers = &mut self.numbers;
                numbers.group = numbers.group.max(group);
                numbers.counter = numbers.counter.max(u64::from_le_bytes(*counter));
                numbers.position = numbers.position.max(position);
            }
            _ => return None,
        }
        Some(())
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

    fn records(&self) -> Vec<Vec<u8>> {
        // The last number first, as one that was answered.
        let mut records = vec![record(TAG_HANDED, self.numbers), record(TAG_ANSWERED, self.numbers)];
        let of_group = |group: &GroupId| {
            let group = *group;
            record(TAG_HANDED, Numbers { group, ..self.numbers })
        };
        records.extend(self.unanswered.iter().map(of_group));
        records.extend(self.names.iter().map(|(place, up_to)| name_record(place, *up_to)));
        records.extend(self.together.iter().map(|(up_to, set)| set_record(set, *up_to)));
        records
    }
}

impl Journal {
    /// Writes the journal in `dir` anew, with what was found of it. From then on damage of the old
    /// one is not known any more.
    pub(super) fn begin(dir: Arc<dyn DurableDir>, found: Found) -> io::Result<Self> {
        let noted = found.noted;
        let log = FORMAT.create(&dir, &[], noted.records());
        Ok(Self {
            log: log.map_err(RecordLogError::into_io)?,
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

    fn append(&mut self, records: &[Vec<u8>]) -> Result<(), RecordLogError> {
        if self.log.needs_rewrite() {
            self.log.rewrite(&[], self.noted.records())?;
        }
        self.log.append(records)
    }

    fn append_durably(&mut self, records: &[Vec<u8>]) -> io::Result<()> {
        let appended = self.append(records).and_then(|()| self.log.sync());
        appended.map_err(RecordLogError::into_io)
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
        let mut records = vec![record(TAG_HANDED, numbers)];
        records.extend(names.iter().map(|(place, up_to)| name_record(place, *up_to)));
        records.extend(sets.iter().map(|set| set_record(set, up_to)));
        self.append_durably(&records)?;
        self.noted.numbers = numbers;
        self.noted.unanswered.insert(numbers.group);
        self.noted.names.extend(names);
        self.noted.add_together(up_to, sets);
        Ok(())
    }

    /// Notes that something landed on a name after `position`; durable with
    /// [`sync_landed`](Self::sync_landed).
    pub(super) fn landed(&mut self, place: Place<NodeId>, position: Position) {
        self.landed.push(name_record(&place, position));
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
            let _ = self.append(&[record(TAG_ANSWERED, numbers)]);
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
        replace(dir, QUEUE_NAME, &bytes).map(|_| ())
    }

    /// Reads the snapshot and leaves it where it is.
    pub(super) fn read(dir: &dyn DurableDir, options: QueueOptions) -> io::Result<Option<Self>> {
        let bytes = read_whole(dir, QUEUE_NAME, u64::MAX)?;
        Ok(bytes.and_then(|bytes| Self::parse(&bytes, options)))
    }

    /// Takes the snapshot away, durably, and reads it; `None` if there is none that can be read.
    pub(super) fn consume(dir: &dyn DurableDir, options: QueueOptions) -> io::Result<Option<Self>> {
        match dir.rename(QUEUE_NAME, QUEUE_USED_NAME) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            renamed => renamed?,
        }
        dir.sync()?;
        let bytes = read_whole(dir, QUEUE_USED_NAME, u64::MAX)?.unwrap_or_default();
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
