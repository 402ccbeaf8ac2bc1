//! Sums of the blocks that programs wrote, kept by the gate, and the faults found with them
//! (DeltaCFS, section III-E).
//! [`byteback_checksums::written`] keeps the sums and compares; here it meets the log, which knows
//! whether something changed a file without passing the gate. A block that does not match its sum
//! raises an alarm only if the log can explain the file's times: otherwise a program wrote it past
//! the mount, and that is no fault of a disk. Bytes that the kernel has in memory are read from
//! there, so a fault below them is found when they are read from the disk again, or by the scrub.
//!
//! Out of scope: deciding what becomes of a damaged file. A reader gets the fault beside the bytes,
//! and a fault stays noted until its blocks are written anew.

mod heal;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use byteback_checksums::written::{
    BLOCK_LEN, Backing, Change, Flagged, Mismatch, Read, Reason, Stamp, WrittenSums, stamp_of,
};
use byteback_extents::ByteRange;
use byteback_host::clock::Clock;
use byteback_host::tree::{Identity, Inode};
use byteback_model::NodeId;
use byteback_oplog::{Fence, Log};

/// How many times the log is asked whether a change that is under way explains a file's times.
const ATTEMPTS: u32 = 8;

/// Content is compared in pieces of this length.
const PIECE_LEN_BYTES: u64 = 1 << 20;

/// Bytes of a file that differ from the written ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} changed although no program wrote them{}; they are not sent. 'byteback repair' restores a good version, or \
     keeps this one",
    ranges_text(ranges),
    match reason { Reason::Changed => "", Reason::Crash => " (the machine stopped while the file was being written)" }
)]
pub struct Fault {
    /// The bytes, in whole blocks.
    pub ranges: Vec<ByteRange>,
    /// The kind of fault.
    pub reason: Reason,
}

impl Fault {
    /// The fault of blocks that do not match their sums.
    #[must_use]
    pub fn of(mismatch: &Mismatch) -> Self {
        Self {
            ranges: mismatch.ranges(),
            reason: mismatch.reason(),
        }
    }
}

/// The verdict on blocks that do not match their sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The blocks changed although nothing wrote them. The fault is noted.
    Fault(Fault),
    /// A program wrote the blocks without passing the gate: their content is valid.
    WrittenElsewhere,
    /// The blocks were written anew since they were read: the bytes read do not count, and have to
    /// be read again.
    Overtaken,
}

fn ranges_text(ranges: &[ByteRange]) -> String {
    let text = |range: &ByteRange| format!("{} to {}", range.start(), range.end());
    let named: Vec<_> = ranges.iter().take(3).map(text).collect();
    let more = if ranges.len() > named.len() { " and more" } else { "" };
    format!("bytes {}{more}", named.join(", "))
}

/// See the module.
pub struct Integrity {
    sums: WrittenSums,
    log: Arc<Log>,
    clock: Arc<dyn Clock>,
    verify_reads: bool,
    /// Files that were open for change when the last process, or the machine, ended uncleanly, and
    /// that have not been looked at since.
    unchecked: Mutex<BTreeSet<NodeId>>,
}

impl Integrity {
    /// Of the tree that `log` tracks. `verify_reads`: whether what programs read is compared.
    /// `interrupted`: files that were open for change when the last process, or the machine, ended
    /// without saying so: each is compared as a whole before anything of it is sent (DeltaCFS,
    /// section III-E).
    #[must_use]
    pub fn new(
        sums: WrittenSums,
        log: Arc<Log>,
        clock: Arc<dyn Clock>,
        verify_reads: bool,
        interrupted: impl IntoIterator<Item = NodeId>,
    ) -> Self {
        Self {
            sums,
            log,
            clock,
            verify_reads,
            unchecked: Mutex::new(interrupted.into_iter().collect()),
        }
    }

    /// The files that are still to be compared because they were being changed when the last
    /// process ended.
    #[must_use]
    pub fn unchecked(&self) -> BTreeSet<NodeId> {
        self.unchecked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A file that was open for change when the last process ended is compared as a whole, if that
    /// was not done: what is wrong with it is noted. As [`Integrity::judge`] about locks. Reads all
    /// of such a file.
    ///
    /// # Errors
    /// The system's error: it is still to be compared then.
    pub fn check_interrupted(&self, node: NodeId, backing: &Inode) -> io::Result<()> {
        let is_unchecked = |unchecked: &Mutex<BTreeSet<NodeId>>| {
            let unchecked = unchecked.lock().unwrap_or_else(PoisonError::into_inner);
            unchecked.contains(&node)
        };
        if !is_unchecked(&self.unchecked) {
            return Ok(());
        }
        let mut buffer = Vec::new();
        let mut at = 0;
        while let Some(range) = ByteRange::from_offset_len(at, PIECE_LEN_BYTES) {
            let (read, _) = self.check(node, backing, range, &mut buffer)?;
            if (read.len_bytes as u64) < range.len_bytes() {
                break;
            }
            at = range.end();
        }
        self.leave_unchecked(node);
        Ok(())
    }

    /// A file need not be compared any more: it was, or it is gone.
    pub fn leave_unchecked(&self, node: NodeId) {
        let mut unchecked = self.unchecked.lock().unwrap_or_else(PoisonError::into_inner);
        unchecked.remove(&node);
    }

    /// The sums.
    #[must_use]
    pub fn sums(&self) -> &WrittenSums {
        &self.sums
    }

    /// Whether what programs read is compared.
    #[must_use]
    pub fn verifies_reads(&self) -> bool {
        self.verify_reads
    }

    /// All files of which something is wrong.
    #[must_use]
    pub fn faults(&self) -> BTreeMap<NodeId, Flagged> {
        let flagged = self.sums.flagged().into_iter();
        flagged.map(|(node, flagged)| (NodeId(node), flagged)).collect()
    }

    /// Why no byte of a file is to be sent, if that is so: a crash left it as it never was.
    #[must_use]
    pub fn held_back(&self, node: NodeId) -> Option<Fault> {
        let flagged = self.sums.flagged_of(node.0)?;
        (flagged.reason == Reason::Crash).then(|| Fault {
            ranges: flagged.ranges(),
            reason: flagged.reason,
        })
    }

    /// The fault noted for a file, if any.
    #[must_use]
    pub fn fault_of(&self, node: NodeId) -> Option<Flagged> {
        self.sums.flagged_of(node.0)
    }

    /// The content of a damaged block as it was written, as far as `good` tells: `good` itself, or
    /// `good` with some of the bytes that lie there now. Only a combination that has the recorded
    /// sum is returned. The caller makes sure that nothing changes the file meanwhile.
    ///
    /// # Errors
    /// The system's error.
    pub fn healed_block(
        &self,
        node: NodeId,
        backing: &impl Backing,
        block: u64,
        good: &[u8],
    ) -> io::Result<Option<Vec<u8>>> {
        let Some(sum) = self.sums.sum_of(node.0, backing, block) else {
            return Ok(None);
        };
        let mut now = vec![0; BLOCK_LEN as usize];
        let len = read_whole(backing, block.saturating_mul(BLOCK_LEN), &mut now)?;
        now.truncate(len);
        Ok(heal::healed(sum, &now, good))
    }

    /// Performs a change of a file's content, and lets the sums follow.
    pub(crate) fn change<T, E>(
        &self,
        node: NodeId,
        fd: &Inode,
        change: Change<'_>,
        perform: impl FnOnce() -> Result<T, E>,
        is_whole: impl FnOnce(&T) -> bool,
    ) -> Result<T, E> {
        self.sums.change(node.0, fd, change, perform, is_whole)
    }

    /// Attributes of a file are about to change.
    pub(crate) fn before_attributes(&self, node: NodeId, fd: &Inode) {
        self.sums.look(node.0, || fd.stamp());
    }

    /// Names of a file are about to change, and with them its times.
    pub(crate) fn before_names(&self, node: NodeId, identity: Identity, fence: &Fence) {
        let stamp = stamp_of(identity, fence.size_bytes, fence.mtime_ns, fence.ctime_ns);
        self.sums.look(node.0, || Ok(stamp));
    }

    /// Reads whole blocks as [`WrittenSums::read`] does. With a fault, the bytes are those on the
    /// disk.
    ///
    /// # Errors
    /// The system's error.
    pub fn read(
        &self,
        node: NodeId,
        backing: &Inode,
        offset: u64,
        buffer: &mut [u8],
    ) -> io::Result<(Read, Option<Mismatch>)> {
        self.sums.read(node.0, backing, offset, buffer)
    }

    /// Looks whether what did not agree is a fault, and notes it. May wait for changes that are
    /// under way: not to be called from within one, nor holding a lock that one may want. `backing`
    /// reads the file that `fd` is.
    pub fn judge(&self, node: NodeId, fd: &Inode, backing: &impl Backing, mismatch: &Mismatch) -> Judgement {
        self.judge_with(node, (fd, backing), mismatch, ATTEMPTS)
    }

    /// The same, without waiting: what nothing explains now is no fault.
    fn judge_with(
        &self,
        node: NodeId,
        (fd, backing): (&Inode, &impl Backing),
        mismatch: &Mismatch,
        attempts: u32,
    ) -> Judgement {
        for attempt in 0..attempts {
            if attempt > 0 {
                self.log.wait_for_operations();
            }
            let Ok(stat) = fd.stat() else {
                return Judgement::Overtaken;
            };
            if self.log.explains(node, &Fence::of(&stat)).unwrap_or(false) {
                // If the blocks cannot be read once more, nothing is known of them: their reader
                // reports that error.
                let noted = self.sums.flag(node.0, backing, mismatch, self.clock.now_ns());
                return match noted.unwrap_or(None) {
                    Some(noted) => Judgement::Fault(Fault::of(&noted)),
                    None => Judgement::Overtaken,
                };
            }
        }
        Judgement::WrittenElsewhere
    }

    /// Reads `range` of a file, and what its first and last block hold beside, and compares it: the
    /// bytes, from the block in which `range` begins, into `buffer`, and a fault. As
    /// [`Integrity::judge`] about locks.
    ///
    /// # Errors
    /// The system's error.
    pub fn check(
        &self,
        node: NodeId,
        backing: &Inode,
        range: ByteRange,
        buffer: &mut Vec<u8>,
    ) -> io::Result<(Read, Option<Fault>)> {
        let start = range.start() / BLOCK_LEN * BLOCK_LEN;
        let len = range.end().next_multiple_of(BLOCK_LEN).saturating_sub(start);
        let len = usize::try_from(len).map_err(io::Error::other)?;
        for _ in 0..ATTEMPTS {
            buffer.resize(len, 0);
            let (read, mismatch) = self.sums.read(node.0, backing, start, buffer)?;
            buffer.truncate(read.len_bytes);
            let judgement = mismatch.map(|mismatch| self.judge(node, backing, backing, &mismatch));
            match judgement {
                None | Some(Judgement::WrittenElsewhere) => return Ok((read, None)),
                Some(Judgement::Fault(fault)) => return Ok((read, Some(fault))),
                Some(Judgement::Overtaken) => {}
            }
        }
        Err(overtaken())
    }

    /// Reads exactly `range` of a file, and compares the blocks that overlap it. A mismatch is left
    /// for the caller to judge.
    ///
    /// # Errors
    /// The system's error; `UnexpectedEof` if the file ends before.
    pub(crate) fn read_range(
        &self,
        node: NodeId,
        backing: &Inode,
        range: ByteRange,
    ) -> io::Result<(Vec<u8>, Option<Mismatch>)> {
        let start = range.start() / BLOCK_LEN * BLOCK_LEN;
        let len = range.end().next_multiple_of(BLOCK_LEN).saturating_sub(start);
        let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
        let (read, mismatch) = self.sums.read(node.0, backing, start, &mut bytes)?;
        let skipped = usize::try_from(range.start() - start).map_err(io::Error::other)?;
        let end = skipped.saturating_add(usize::try_from(range.len_bytes()).map_err(io::Error::other)?);
        if read.len_bytes < end {
            let message = "it was truncated while it was being read";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        bytes.truncate(end);
        bytes.drain(..skipped);
        Ok((bytes, mismatch))
    }

    /// Compares what is stored in `range` of a file, which is about to be kept because it is about
    /// to change. May be called from within the change.
    ///
    /// # Errors
    /// A [`Fault`], or the system's error.
    pub fn check_before_change(&self, node: NodeId, fd: &Inode, range: ByteRange) -> io::Result<()> {
        let mut buffer = Vec::new();
        for data in fd.data_ranges(range.start(), range.end()) {
            let data = data?;
            let mut at = data.start / BLOCK_LEN * BLOCK_LEN;
            while at < data.end {
                let end = data
                    .end
                    .next_multiple_of(BLOCK_LEN)
                    .min(at.saturating_add(PIECE_LEN_BYTES));
                buffer.resize(usize::try_from(end - at).map_err(io::Error::other)?, 0);
                let (_, mismatch) = self.sums.read(node.0, fd, at, &mut buffer)?;
                match mismatch.map(|mismatch| self.judge_with(node, (fd, fd), &mismatch, 1)) {
                    None | Some(Judgement::WrittenElsewhere) => at = end,
                    Some(Judgement::Fault(fault)) => return Err(io::Error::other(fault)),
                    Some(Judgement::Overtaken) => return Err(overtaken()),
                }
            }
        }
        Ok(())
    }

    /// Makes what is known durable. `look` answers what a file looks like, if its times prove that
    /// a later change has others.
    ///
    /// # Errors
    /// The disk or the database fails; nothing is lost in memory then.
    pub fn commit(&self, look: &dyn Fn(NodeId) -> Option<Stamp>) -> io::Result<()> {
        self.sums.commit(&|node| look(NodeId(node))).map_err(io::Error::other)
    }
}

/// Reads as much as there is.
fn read_whole(backing: &impl Backing, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled: usize = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match backing.read_at(offset.saturating_add(filled as u64), rest)? {
            0 => break,
            count => filled = filled.saturating_add(count),
        }
    }
    Ok(filled)
}

fn overtaken() -> io::Error {
    io::Error::other("its damaged blocks were rewritten each time they were read")
}

impl std::fmt::Debug for Integrity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Integrity").finish_non_exhaustive()
    }
}
