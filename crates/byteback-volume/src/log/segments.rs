//! Segments of the main area: which blocks something refers to, which segments are free, and the
//! six logs that are written.
//!
//! A log writes its segment from the first block to the last, and then takes a free one. Nothing is
//! written twice between two checkpoints, and no block that the last checkpoint knows: a segment is
//! *free* only if nothing refers to it now, nothing did at the last checkpoint, and nothing was
//! written to it since. So whatever happens, the last checkpoint and what was synced after it are
//! whole.
//!
//! Out of scope: I/O; choosing what to clean.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::{Result, VolumeError};
use crate::format::{Address, Areas, LOGS, LogHead, SegmentEntry, Summary};

/// The six logs: blocks that are likely to change at the same time lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LogKind {
    /// Inodes and direct nodes of directories.
    HotNode = 0,
    /// Inodes and direct nodes of files, and all nodes of a file's sync.
    WarmNode = 1,
    /// Indirect nodes.
    ColdNode = 2,
    /// Entries of directories.
    HotData = 3,
    /// Contents of files.
    WarmData = 4,
    /// Blocks moved by cleaning, and others that are not expected to change.
    ColdData = 5,
}

impl LogKind {
    pub(crate) const ALL: [Self; LOGS] = [
        Self::HotNode,
        Self::WarmNode,
        Self::ColdNode,
        Self::HotData,
        Self::WarmData,
        Self::ColdData,
    ];
}

/// Free segments from which each log begins one at once after a crash: as many stay free.
const FREE_TO_BEGIN_ALL: usize = 2 * LOGS;

/// A segment.
#[derive(Clone, Debug)]
struct Segment {
    entry: SegmentEntry,
    valid_blocks: u32,
    /// How many blocks the last checkpoint refers to.
    checkpointed_blocks: u32,
    /// Something was written to it since the last checkpoint, or a log has it open.
    is_touched: bool,
}

impl Segment {
    fn is_free(&self) -> bool {
        self.valid_blocks == 0 && self.checkpointed_blocks == 0 && !self.is_touched
    }
}

/// A log, and the summaries of its segment.
#[derive(Clone, Debug)]
struct Log {
    head: LogHead,
    summaries: Vec<Summary>,
}

impl Log {
    fn upcoming(&self) -> Option<u32> {
        Some(self.head.upcoming).filter(|upcoming| *upcoming != LogHead::UNDECIDED)
    }

    fn has(&self, segment: u32) -> bool {
        self.head.segment == segment || self.upcoming() == Some(segment)
    }

    /// Whether the log can write nothing more to its segment, and has no other one yet.
    fn waits(&self) -> bool {
        usize::try_from(self.head.next).is_ok_and(|next| next >= self.summaries.len()) && self.upcoming().is_none()
    }
}

/// A segment that was filled, with its summaries, which belong to the summary area.
pub(crate) struct Filled {
    pub(crate) segment: u32,
    pub(crate) summaries: Arc<[Summary]>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Segments {
    areas: Areas,
    segments: Vec<Segment>,
    free: BTreeSet<u32>,
    /// Where the search for the next free segment begins: all of the device is used in turn.
    turn: u32,
    logs: Vec<Log>,
    /// Changed since the tables were written.
    dirty: BTreeSet<u32>,
    /// Summaries of filled segments, as far as they were needed.
    summaries: BTreeMap<u32, Arc<[Summary]>>,
    filled: Vec<u32>,
}

impl Segments {
    /// Segments as a checkpoint has them, before a log is open.
    pub(crate) fn new(areas: Areas, entries: Vec<SegmentEntry>) -> Self {
        let segments = entries.into_iter().map(|entry| {
            let valid_blocks = entry.valid_blocks();
            Segment {
                entry,
                valid_blocks,
                checkpointed_blocks: valid_blocks,
                is_touched: false,
            }
        });
        let segments: Vec<_> = segments.collect();
        let mut all = Self {
            areas,
            segments,
            free: BTreeSet::new(),
            turn: 0,
            logs: Vec::new(),
            dirty: BTreeSet::new(),
            summaries: BTreeMap::new(),
            filled: Vec::new(),
        };
        all.find_free();
        all
    }

    fn find_free(&mut self) -> Vec<u32> {
        let mut found = Vec::new();
        for (number, segment) in (0..).zip(&self.segments) {
            if segment.is_free() && self.free.insert(number) {
                found.push(number);
            }
        }
        found
    }

    fn get(&mut self, number: u32) -> Option<&mut Segment> {
        self.segments.get_mut(usize::try_from(number).ok()?)
    }

    fn see(&self, number: u32) -> Option<&Segment> {
        self.segments.get(usize::try_from(number).ok()?)
    }

    fn take_free(&mut self) -> Result<u32> {
        let next = self.free.range(self.turn..).next().or_else(|| self.free.iter().next());
        let number = *next.ok_or(VolumeError::Full)?;
        self.free.remove(&number);
        self.turn = number.saturating_add(1);
        if let Some(segment) = self.get(number) {
            segment.is_touched = true;
        }
        Ok(number)
    }

    /// Lets each log begin a free segment.
    ///
    /// # Errors
    /// [`VolumeError::Full`].
    pub(crate) fn open_logs(&mut self) -> Result<()> {
        self.logs.clear();
        for _ in LogKind::ALL {
            let log = self.new_log()?;
            self.logs.push(log);
        }
        Ok(())
    }

    /// Lets the logs go on after a crash; `heads` are those of the checkpoint, of which the
    /// segments were closed. Each begins a segment, unless few are free:
    /// - what is found again of files that were synced lies in other logs than those of directories
    ///   and of indirect nodes: these go on where the checkpoint left them, as if nothing had been
    ///   written since;
    /// - those of pages take a segment when they have something to write, and have until then the
    ///   one that they had, as if it were full;
    /// - that of files' nodes begins one in any case, as the next checkpoint must say where nodes
    ///   will be found.
    ///
    /// # Errors
    /// [`VolumeError::Full`].
    pub(crate) fn reopen_logs(&mut self, heads: &[LogHead; LOGS]) -> Result<()> {
        if self.free.len() >= FREE_TO_BEGIN_ALL {
            return self.open_logs();
        }
        self.logs.clear();
        let mut taken = BTreeSet::new();
        let mut kept = [None; LOGS];
        for (kind, kept) in LogKind::ALL.into_iter().zip(&mut kept) {
            let head = heads.get(kind as usize).copied().unwrap_or_default();
            let goes_on = matches!(kind, LogKind::HotNode | LogKind::ColdNode | LogKind::HotData);
            let is_own =
                |taken: &BTreeSet<u32>, number: u32| number < self.areas.main_segments && !taken.contains(&number);
            let upcoming = Some(head.upcoming).filter(|upcoming| *upcoming != LogHead::UNDECIDED);
            let can_go_on = goes_on
                && is_own(&taken, head.segment)
                && self.is_unused_from(head.segment, head.next)
                && upcoming.is_none_or(|upcoming| is_own(&taken, upcoming) && self.is_unused_from(upcoming, 0));
            if can_go_on {
                taken.extend([head.segment]);
                taken.extend(upcoming);
                *kept = Some(head);
            } else if kind != LogKind::WarmNode && is_own(&taken, head.segment) && !self.is_unused_from(head.segment, 0)
            {
                taken.insert(head.segment);
                *kept = Some(LogHead {
                    next: self.areas.segment_blocks,
                    upcoming: LogHead::UNDECIDED,
                    ..head
                });
            }
        }
        // All before any takes one that is free.
        for number in taken {
            self.free.remove(&number);
            if let Some(segment) = self.get(number) {
                segment.is_touched = true;
            }
        }
        for head in kept {
            let log = match head {
                Some(head) => self.log_with(head),
                None => self.new_log()?,
            };
            self.logs.push(log);
        }
        Ok(())
    }

    /// Whether nothing refers to the blocks of a segment from one on.
    fn is_unused_from(&self, number: u32, index: u32) -> bool {
        let used = self.see(number).map(|segment| &segment.entry);
        used.is_some_and(|entry| !(index..self.areas.segment_blocks).any(|index| entry.is_valid(index)))
    }

    /// A log with this head, and the summaries that are known of its segment.
    fn log_with(&self, head: LogHead) -> Log {
        let mut summaries = self.no_summaries();
        let written = usize::try_from(head.next).unwrap_or(usize::MAX);
        let known = self
            .summaries
            .get(&head.segment)
            .into_iter()
            .flat_map(|known| known.iter());
        (summaries.iter_mut().zip(known).take(written)).for_each(|(to, from)| *to = *from);
        Log { head, summaries }
    }

    fn new_log(&mut self) -> Result<Log> {
        let head = LogHead {
            segment: self.take_free()?,
            next: 0,
            upcoming: LogHead::UNDECIDED,
        };
        let summaries = self.no_summaries();
        Ok(Log { head, summaries })
    }

    /// Lets the logs go on where they were, if nothing was written since. `summaries` are those of
    /// all, one behind the other.
    pub(crate) fn resume_logs(&mut self, heads: &[LogHead; LOGS], summaries: &[Summary]) {
        let mut rest = summaries;
        for head in heads {
            let written = usize::try_from(head.next).unwrap_or(usize::MAX).min(rest.len());
            let (own, later) = rest.split_at(written);
            let mut summaries = self.no_summaries();
            summaries.iter_mut().zip(own).for_each(|(to, from)| *to = *from);
            self.logs.push(Log { head: *head, summaries });
            for number in [head.segment, head.upcoming] {
                self.free.remove(&number);
                if let Some(segment) = self.get(number) {
                    segment.is_touched = true;
                }
            }
            rest = later;
        }
    }

    /// Closes the segments that were open at a checkpoint: their summaries, one behind the other,
    /// belong to the summary area.
    pub(crate) fn close_logs(&mut self, heads: &[LogHead; LOGS], summaries: &[Summary]) {
        let mut rest = summaries;
        for head in heads {
            let written = usize::try_from(head.next).unwrap_or(usize::MAX).min(rest.len());
            let (own, later) = rest.split_at(written);
            let first = self.areas.segment_first(head.segment);
            for (address, summary) in (first.0..).map(Address).zip(own) {
                self.amend_summary(address, *summary);
            }
            rest = later;
        }
    }

    fn no_summaries(&self) -> Vec<Summary> {
        let count = usize::try_from(self.areas.segment_blocks).unwrap_or(0);
        vec![Summary::default(); count]
    }

    fn log(&mut self, kind: LogKind) -> Result<&mut Log> {
        let stopped = || VolumeError::Stopped("no log is open".to_owned());
        self.logs.get_mut(kind as usize).ok_or_else(stopped)
    }

    /// Takes the next block of a log, to which `summary` will refer, and counts it as valid.
    /// Answers, too, where the block after it will be.
    ///
    /// # Errors
    /// [`VolumeError::Full`].
    pub(crate) fn allocate(&mut self, kind: LogKind, summary: Summary, now_s: u64) -> Result<(Address, Address)> {
        let (address, _, after) = self.allocate_run(kind, &[summary], now_s)?;
        Ok((address, after))
    }

    /// Number of adjacent blocks that can be taken next.
    pub(crate) fn left_in_segment(&self, kind: LogKind) -> u32 {
        let segment_blocks = self.areas.segment_blocks;
        let next = self.logs.get(kind as usize).map_or(0, |log| log.head.next);
        match segment_blocks.saturating_sub(next) {
            0 => segment_blocks,
            left => left,
        }
    }

    /// Takes the next blocks of a log that lie beside each other: at least one, and at most as many
    /// as there are summaries. Answers the first one, how many they are, and where the block after
    /// them will be.
    ///
    /// # Errors
    /// [`VolumeError::Full`].
    pub(crate) fn allocate_run(
        &mut self,
        kind: LogKind,
        summaries: &[Summary],
        now_s: u64,
    ) -> Result<(Address, u32, Address)> {
        let segment_blocks = self.areas.segment_blocks;
        let head = self.log(kind)?.head;
        if head.next >= segment_blocks {
            self.next_segment(kind)?;
        }
        let LogHead { segment, next, .. } = self.log(kind)?.head;
        let wanted = u32::try_from(summaries.len()).unwrap_or(u32::MAX).max(1);
        let count = wanted.min(segment_blocks - next);
        // Chosen first: a block is only taken if it can be said where the next one will be.
        let after = match (next + count < segment_blocks, self.log(kind)?.upcoming()) {
            (true, _) => Address(self.areas.segment_first(segment).0 + next + count),
            (false, Some(upcoming)) => self.areas.segment_first(upcoming),
            (false, None) => {
                let upcoming = self.take_free()?;
                self.log(kind)?.head.upcoming = upcoming;
                self.areas.segment_first(upcoming)
            }
        };
        let log = self.log(kind)?;
        let places = log
            .summaries
            .iter_mut()
            .skip(usize::try_from(next).unwrap_or(usize::MAX));
        (places.zip(summaries).take(usize::try_from(count).unwrap_or(0)))
            .for_each(|(place, summary)| *place = *summary);
        log.head.next += count;
        if let Some(of) = self.get(segment) {
            of.entry.log = kind as u8;
            of.entry.modified_s = now_s;
        }
        let address = Address(self.areas.segment_first(segment).0 + next);
        self.set_valid(address, count, true);
        Ok((address, count, after))
    }

    /// As if the rest of a log's segment had been written, and nothing of that were used any more.
    #[cfg(test)]
    pub(crate) fn pass_over_rest(&mut self, kind: LogKind) {
        let segment_blocks = self.areas.segment_blocks;
        let upcoming = self.take_free().unwrap();
        let log = self.log(kind).unwrap();
        if log.head.next < segment_blocks {
            assert_eq!(log.upcoming(), None);
            log.head.next = segment_blocks;
            log.head.upcoming = upcoming;
        } else {
            self.free.insert(upcoming);
            self.get(upcoming).unwrap().is_touched = false;
        }
    }

    /// The blocks that a log has just given out, from `first` on, hold something else than was
    /// said.
    pub(crate) fn correct_checksums(&mut self, first: Address, checksums: &[u32]) {
        let Some((number, index)) = self.areas.segment_of(first) else {
            return;
        };
        let log = self.logs.iter_mut().find(|log| log.head.segment == number);
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let summaries = log.and_then(|log| log.summaries.get_mut(index..)).unwrap_or_default();
        (summaries.iter_mut().zip(checksums)).for_each(|(summary, checksum)| summary.checksum = *checksum);
    }

    fn next_segment(&mut self, kind: LogKind) -> Result<()> {
        let upcoming = match self.log(kind)?.upcoming() {
            Some(upcoming) => upcoming,
            None => self.take_free()?,
        };
        let fresh = self.no_summaries();
        let log = self.log(kind)?;
        let full = std::mem::replace(&mut log.summaries, fresh);
        let segment = log.head.segment;
        log.head = LogHead {
            segment: upcoming,
            next: 0,
            upcoming: LogHead::UNDECIDED,
        };
        self.summaries.insert(segment, full.into());
        self.filled.push(segment);
        Ok(())
    }

    /// Segments that were filled since this was asked last.
    pub(crate) fn take_filled(&mut self) -> Vec<Filled> {
        let filled = std::mem::take(&mut self.filled);
        let of = |segment| {
            let summaries = self.summaries.get(&segment).map(Arc::clone)?;
            Some(Filled { segment, summaries })
        };
        filled.into_iter().filter_map(of).collect()
    }

    /// Where the logs go on, and the summaries of what they have written to their segments.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (LogHead, &[Summary])> {
        self.logs.iter().map(|log| (log.head, &log.summaries[..]))
    }

    /// Nothing is written to the segment of a block before the next checkpoint, whether anything in
    /// it counts or not.
    pub(crate) fn keep_until_checkpoint(&mut self, address: Address) {
        let Some((number, _)) = self.areas.segment_of(address) else {
            return;
        };
        if let Some(segment) = self.get(number) {
            segment.is_touched = true;
            self.free.remove(&number);
        }
    }

    /// Something refers to a block, which nothing did before.
    pub(crate) fn acquire(&mut self, address: Address) {
        self.set_valid(address, 1, true);
    }

    /// Nothing refers to a block any more.
    pub(crate) fn release(&mut self, address: Address) {
        self.set_valid(address, 1, false);
    }

    /// Nothing refers to blocks beside each other any more.
    pub(crate) fn release_run(&mut self, first: Address, count: u32) {
        let (mut first, mut left) = (first.0, count);
        while left > 0 {
            let in_segment = match self.areas.segment_of(Address(first)) {
                Some((_, index)) => left.min(self.areas.segment_blocks.saturating_sub(index)).max(1),
                None => 1,
            };
            self.set_valid(Address(first), in_segment, false);
            first = first.saturating_add(in_segment);
            left -= in_segment;
        }
    }

    /// Of blocks beside each other, all of one segment.
    fn set_valid(&mut self, first: Address, count: u32, is_valid: bool) {
        let Some((number, index)) = self.areas.segment_of(first) else {
            return;
        };
        let Some(segment) = self.get(number) else { return };
        segment.is_touched |= is_valid;
        let mut changed = 0;
        for index in index..index.saturating_add(count) {
            changed += u32::from(segment.entry.set_valid(index, is_valid) != is_valid);
        }
        match is_valid {
            true => segment.valid_blocks += changed,
            false => segment.valid_blocks -= changed,
        }
        if changed > 0 {
            self.dirty.insert(number);
            self.free.remove(&number);
        }
    }

    /// Whether something refers to a block.
    pub(crate) fn is_valid(&self, address: Address) -> bool {
        let Some((number, index)) = self.areas.segment_of(address) else {
            return false;
        };
        self.see(number).is_some_and(|segment| segment.entry.is_valid(index))
    }

    /// Whether the last checkpoint can not know what is in a block: its segment was free then, or a
    /// log had not come so far.
    pub(crate) fn was_unwritten(&self, address: Address, heads: &[LogHead; LOGS]) -> bool {
        let Some((number, index)) = self.areas.segment_of(address) else {
            return false;
        };
        let is_free = self.see(number).is_some_and(|segment| segment.checkpointed_blocks == 0);
        match heads.iter().find(|head| head.segment == number) {
            Some(head) => index >= head.next,
            None => is_free,
        }
    }

    /// Number of free segments.
    pub(crate) fn free_segments(&self) -> u32 {
        u32::try_from(self.free.len()).unwrap_or(u32::MAX)
    }

    /// Most segments that the logs take to write this number of blocks, whichever logs write them.
    pub(crate) fn segments_needed(&self, blocks: u32) -> u32 {
        let segment_blocks = self.areas.segment_blocks;
        // Blocks that a log writes before it takes a segment: filling a segment chooses the next.
        let mut until: Vec<u32> = self
            .logs
            .iter()
            .map(
                |log| match (segment_blocks.saturating_sub(log.head.next), log.upcoming()) {
                    (0, None) => 1,
                    (0, Some(_)) => segment_blocks,
                    (left, _) => left,
                },
            )
            .collect();
        until.sort_unstable();
        let (mut taken, mut rest) = (0, blocks);
        for until in until {
            let Some(less) = rest.checked_sub(until) else { break };
            rest = less;
            taken += 1;
        }
        taken + rest / segment_blocks
    }

    /// Number of further segments that the next checkpoint frees.
    pub(crate) fn freed_by_checkpoint(&self) -> u32 {
        let freed = self.segments.iter().filter(|segment| segment.valid_blocks == 0);
        let freed = freed.count() - self.free.len();
        u32::try_from(freed.saturating_sub(LOGS)).unwrap_or(0)
    }

    /// Number of blocks that nothing refers to, wherever they are.
    pub(crate) fn unused_blocks(&self) -> u64 {
        let unused = |segment: &Segment| u64::from(self.areas.segment_blocks.saturating_sub(segment.valid_blocks));
        self.segments.iter().map(unused).sum()
    }

    /// Entries that changed since the tables were written.
    pub(crate) fn dirty(&self) -> impl Iterator<Item = (u32, &SegmentEntry)> {
        let entry = |number: &u32| Some((*number, &self.see(*number)?.entry));
        self.dirty.iter().filter_map(entry)
    }

    pub(crate) fn entry(&self, number: u32) -> Option<&SegmentEntry> {
        Some(&self.see(number)?.entry)
    }

    /// The table's blocks do not have what a segment is.
    pub(crate) fn mark_changed(&mut self, number: u32) {
        self.dirty.insert(number);
    }

    /// The tables have what these segments are now.
    pub(crate) fn written(&mut self) {
        self.dirty.clear();
    }

    /// Before a checkpoint records the heads of the logs: a log that waits for a segment, and whose
    /// own has no references any more, begins that one anew. Blocks of the previous checkpoint in
    /// it are not overwritten before this one counts, as nothing is written in between.
    pub(crate) fn restart_empty_logs(&mut self) {
        for kind in LogKind::ALL {
            let Some(log) = self.logs.get(kind as usize) else {
                continue;
            };
            let number = log.head.segment;
            if !log.waits() || self.see(number).is_none_or(|segment| segment.valid_blocks > 0) {
                continue;
            }
            let summaries = self.no_summaries();
            if let Some(log) = self.logs.get_mut(kind as usize) {
                log.head.next = 0;
                log.summaries = summaries;
            }
        }
    }

    /// Records that a checkpoint is durable: segments that nothing refers to are free now. Returns
    /// those that became free.
    pub(crate) fn checkpointed(&mut self) -> Vec<u32> {
        let is_open = |logs: &[Log], number: u32| logs.iter().any(|log| log.has(number));
        for (number, segment) in (0..).zip(&mut self.segments) {
            segment.checkpointed_blocks = segment.valid_blocks;
            segment.is_touched = is_open(&self.logs, number);
        }
        let freed = self.find_free();
        for number in &freed {
            self.summaries.remove(number);
        }
        freed
    }

    /// Summaries of a segment that are at hand.
    pub(crate) fn summaries_of(&self, number: u32) -> Option<Arc<[Summary]>> {
        let open = self.logs.iter().find(|log| log.head.segment == number);
        match open {
            Some(log) => Some(log.summaries.clone().into()),
            None => self.summaries.get(&number).cloned(),
        }
    }

    /// The summary of a block, if it is at hand.
    pub(crate) fn summary_of(&self, address: Address) -> Option<Summary> {
        let (number, index) = self.areas.segment_of(address)?;
        let index = usize::try_from(index).ok()?;
        match self.logs.iter().find(|log| log.head.segment == number) {
            Some(log) => log.summaries.get(index).copied(),
            None => self.summaries.get(&number)?.get(index).copied(),
        }
    }

    /// The checksums of blocks from `first` on, as many of the first ones as are at hand and in its
    /// segment; answers how many.
    pub(crate) fn put_checksums(&self, first: Address, checksums: &mut [u32]) -> usize {
        let Some((number, index)) = self.areas.segment_of(first) else {
            return 0;
        };
        let open = self.logs.iter().find(|log| log.head.segment == number);
        let summaries = match open {
            Some(log) => Some(&log.summaries[..]),
            None => self.summaries.get(&number).map(|summaries| &summaries[..]),
        };
        let from = usize::try_from(index).unwrap_or(usize::MAX);
        let known = summaries
            .and_then(|summaries| summaries.get(from..))
            .unwrap_or_default();
        let both = checksums.iter_mut().zip(known);
        both.map(|(checksum, summary)| *checksum = summary.checksum).count()
    }

    /// Keeps summaries that were read; a bounded number of them.
    pub(crate) fn keep_summaries(&mut self, number: u32, summaries: Arc<[Summary]>) {
        const KEPT_MAX: usize = 1024;
        if self.summaries.len() >= KEPT_MAX {
            let filled = std::mem::take(&mut self.filled);
            self.summaries.retain(|number, _| filled.contains(number));
            self.filled = filled;
        }
        self.summaries.insert(number, summaries);
    }

    /// Changes the summary of a block of a segment that no log writes, to be written with those
    /// that were filled.
    pub(crate) fn amend_summary(&mut self, address: Address, summary: Summary) {
        let Some((number, index)) = self.areas.segment_of(address) else {
            return;
        };
        let mut summaries = match self.summaries.get(&number) {
            Some(summaries) => summaries.to_vec(),
            None => self.no_summaries(),
        };
        if let Some(place) = usize::try_from(index).ok().and_then(|index| summaries.get_mut(index)) {
            *place = summary;
        }
        self.summaries.insert(number, summaries.into());
        if !self.filled.contains(&number) {
            self.filled.push(number);
        }
    }

    /// Segments that may be cleaned, each with its entry and how many of its blocks are valid.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = (u32, &SegmentEntry, u32)> {
        let is_open = |number: u32| self.logs.iter().any(|log| log.has(number) && !log.waits());
        (0..).zip(&self.segments).filter_map(move |(number, segment)| {
            let is_candidate = segment.valid_blocks > 0 && !is_open(number);
            is_candidate.then_some((number, &segment.entry, segment.valid_blocks))
        })
    }
}

#[cfg(test)]
mod tests;
