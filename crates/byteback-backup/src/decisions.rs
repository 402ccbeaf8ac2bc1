//! How each file was saved, and why: the planner's decisions, kept so that they can be looked up
//! later (`byteback explain`).
//!
//! A file `decisions` of *frames*, appended to by each backup: a head (which batch, when), some
//! [`Decision`]s, an end (it was applied). A batch without an end did not happen.
//! docs/formats/decisions.md describes every byte.
//!
//! Bounded: a file that would pass [`FILE_LEN_MAX`] becomes `decisions.old`, replacing the one
//! before. So the newest decisions are kept, some hundred thousand at least.
//!
//! *Nothing depends on it.* Decisions are written without waiting for the disk, and unreadable ones
//! are treated as unknown; a backup that cannot write them goes on. After a tear (the machine
//! stopped), the torn file is set aside as the old one and a new one begins.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod wire;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use byteback_host::durable::{DurableDir, DurableFile, OpenMode};
use byteback_model::NodeId;
use byteback_oplog::{TreeId, WholeReason};
use serde::Serialize;

use wire::{FRAME_LEN_MAX, Frame};

/// The new file, the old one.
const FILE_NAMES: [&str; 2] = ["decisions", "decisions.old"];

/// Longest file, in bytes.
const FILE_LEN_MAX: u64 = if cfg!(test) { 16 << 10 } else { 16 << 20 };

/// Most files in the result of [`former`].
const FORMER_MAX: usize = if cfg!(test) { 64 } else { 1 << 16 };

/// How the bytes to send of a file were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeltaMethod {
    /// The log knew the ranges.
    Log,
    /// The client's own block checksums told which blocks differ.
    Sums,
    /// rsync's rolling checksums found the file in the server's content.
    Rsync,
    /// Hashes of blocks at multiples of their length found it.
    Hash,
    /// The server searched its content for hashes of the file's blocks.
    Webr,
    /// Content-defined chunks were compared with those of the server's content.
    Cdc,
    /// Existing checksums told which blocks are equal in place; the rest was searched by a rolling
    /// window.
    SkyF,
    /// Existing checksums told which blocks are equal in place; the rest was cut into chunks.
    SkyC,
    /// The log knew the ranges, and long ones were searched in the server's content by rsync's
    /// rolling checksums.
    LogSearched,
    /// The log knew the ranges, and the blocks in them were looked up among those of the server's
    /// content, wherever they lie there.
    LogLookedUp,
    /// The log knew the ranges, and they were compared with what programs overwrote.
    LogCompared,
    /// The file was sent whole.
    Full,
}

/// Why that method was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The log knew which bytes had been written.
    LogKnew,
    /// The server had no version of the file.
    New,
    /// The user asked for it.
    Asked,
    /// A program had rewritten the file, from the first byte to the last.
    Rewritten,
    /// The log knew only that any byte may have changed.
    Whole(WholeReason),
    /// Everything had to be sent anew, as the log and the server did not know each other, and the
    /// server had a file at the same path.
    SamePath,
    /// Likewise, and the server had a similar file elsewhere: of the same length and time, or one
    /// of this name that is gone here.
    Moved,
    /// The file replaced another one, which the server has: a program saved it under a new name and
    /// renamed it, or removed the old one first.
    Replaced,
    /// The server had the content in another file: a program copied that inside the folder, or the
    /// content came from elsewhere once more.
    Copied,
}

/// Why a file was sent as it is although it was to be looked for in the server's content, or why
/// that cost more than planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// Asking costs more than sending.
    TooShort,
    /// Servers do not prove contents of this length.
    TooLong,
    /// The server gave no signature of its content: it is older, busy, or has an empty file.
    NoSignature,
    /// The file consists of too many pieces.
    TooScattered,
    /// The server found that the matches are not of its content, and everything was sent once more.
    ProofRefused,
    /// Sending the file was expected to take no longer than looking for it: a fast link, a busy
    /// machine, or a file that changes as a whole.
    CostsLess,
    /// There were no checksums of the file, or it was written meanwhile: it was read and summed,
    /// and then looked for as planned.
    NotSummed,
    /// The server's version ends before the long ranges that the log reported.
    Appended,
    /// The server's version has none of the blocks that were looked up. (Older records have it with
    /// the method by which the file was sent then.)
    FoundNothing,
}

/// The way in which the changes of a file were found so far, as far as the records reach.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Former {
    /// The share of the file that was sent when it was last saved, if it was sent or looked for as
    /// a whole then.
    pub(crate) sent: Option<f64>,
    searched: Option<Searches>,
    looked_up: Option<Searches>,
}

/// The searches of one kind in the ranges that the log reported of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Searches {
    /// The share of the ranges that was sent after the last one.
    pub(crate) sent: f64,
    /// Number of searches that found next to nothing, since one that found something.
    in_vain: u32,
    /// Number of times that the file was saved since the last one.
    saves_since: u32,
}

/// A search is in vain if more than this share was sent.
const SENT_IN_VAIN: f64 = 0.9;

impl Former {
    /// The searches by a method that searches reported ranges.
    pub(crate) fn searches(&self, method: DeltaMethod) -> Option<Searches> {
        match method {
            DeltaMethod::LogSearched => self.searched,
            DeltaMethod::LogLookedUp => self.looked_up,
            _ => None,
        }
    }

    /// Notes the next decision about the file.
    fn note(&mut self, decision: &Decision) {
        let method = match decision.fallback {
            Some(Fallback::FoundNothing) => DeltaMethod::LogLookedUp,
            _ => decision.method,
        };
        let sent_of = |bytes: u64| (decision.literal_bytes as f64 / bytes.max(1) as f64).min(1.0);
        for searches in [&mut self.searched, &mut self.looked_up].into_iter().flatten() {
            searches.saves_since = searches.saves_since.saturating_add(1);
        }
        let searches = match method {
            DeltaMethod::LogSearched => &mut self.searched,
            DeltaMethod::LogLookedUp => &mut self.looked_up,
            _ => {
                self.sent = Some(sent_of(decision.size_bytes));
                return;
            }
        };
        self.sent = None;
        let sent = sent_of(decision.changed_bytes);
        let in_vain = match sent > SENT_IN_VAIN {
            true => searches.map_or(0, |before| before.in_vain).saturating_add(1),
            false => 0,
        };
        *searches = Some(Searches {
            sent,
            in_vain,
            saves_since: 0,
        });
    }
}

impl Searches {
    /// A single one, after which this share was sent.
    #[cfg(test)]
    pub(crate) fn after(sent: f64) -> Self {
        Self {
            sent,
            in_vain: u32::from(sent > SENT_IN_VAIN),
            saves_since: 0,
        }
    }

    /// Whether a search is left out: after each one in vain, twice as many saves pass without one,
    /// so that a file in which nothing is ever found costs little.
    pub(crate) fn is_paused(&self) -> bool {
        let paused_saves = (1_u32 << self.in_vain.min(6)) - 1;
        self.saves_since < paused_saves
    }

    /// The share that is likely to be sent after the next one; `None` after one in vain.
    pub(crate) fn expected_share(&self) -> Option<f64> {
        (self.in_vain == 0).then_some(self.sent)
    }
}

/// How one file was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The file.
    pub node: NodeId,
    /// The method.
    pub method: DeltaMethod,
    /// The reason for it.
    pub cause: Cause,
    /// Why the plan was not followed, if so.
    pub fallback: Option<Fallback>,
    /// Length of the file.
    pub size_bytes: u64,
    /// Bytes that may have changed, as the log said.
    pub changed_bytes: u64,
    /// Bytes that were hashed to find the change.
    pub hashed_bytes: u64,
    /// The hashed bytes that the server had.
    pub found_bytes: u64,
    /// Bytes that were sent, before compression.
    pub literal_bytes: u64,
}

/// How hard the bytes of a backup were compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CompressionEffort {
    /// Little: the link took bytes faster than more work would have saved them.
    Fast,
    /// The default.
    Standard,
    /// Much: the link was slow.
    Thorough,
}

/// How a backup was compressed in the end, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Compression {
    /// The effort.
    pub effort: CompressionEffort,
    /// The estimated speed of the link in bytes per second; `None`: unknown.
    pub link_bytes_per_s: Option<u64>,
}

/// A decision, and the backup that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Decided {
    /// When the backup began, in nanoseconds since 1970.
    pub at_ns: i64,
    /// Its batch.
    pub batch: u64,
    /// The sequence number that the server gave it.
    pub seq: u64,
    /// The decision.
    pub decision: Decision,
    /// The compression of that backup, if it was recorded.
    pub compression: Option<Compression>,
}

/// Writes the decisions of a backup. An error ends the writing, and nothing else.
#[derive(Debug)]
pub(crate) struct DecisionWriter {
    dir: Arc<dyn DurableDir>,
    /// The file with its length; `None` after an error.
    file: Option<(Arc<dyn DurableFile>, u64)>,
    batch: u64,
    /// The frame that begins the backup, repeated in each file that it comes to.
    begin: Vec<u8>,
    pending: Vec<u8>,
}

impl DecisionWriter {
    /// Begins the decisions of the batch `batch` of a tree, at wall-clock time `at_ns`.
    pub(crate) fn begin(dir: &Arc<dyn DurableDir>, tree: TreeId, batch: u64, at_ns: i64) -> Self {
        let mut writer = Self {
            dir: Arc::clone(dir),
            file: open_whole(dir.as_ref()).ok(),
            batch,
            begin: Frame::begin(batch, tree, at_ns),
            pending: Vec::new(),
        };
        writer.append(&[]);
        writer
    }

    /// Adds one.
    pub(crate) fn decided(&mut self, decision: &Decision) {
        if self.file.is_none() {
            return;
        }
        wire::put_decision(&mut self.pending, decision);
        if self.pending.len() >= FRAME_LEN_MAX / 2 {
            self.flush();
        }
    }

    /// Notes that the batch was applied, compressed like this.
    pub(crate) fn end(mut self, seq: u64, compression: Option<Compression>) {
        self.flush();
        if let Some(compression) = compression {
            self.append(&Frame::compression(self.batch, compression));
        }
        self.append(&Frame::end(self.batch, seq));
    }

    fn flush(&mut self) {
        if !self.pending.is_empty() {
            let frame = Frame::decisions(self.batch, &self.pending);
            self.pending.clear();
            self.append(&frame);
        }
    }

    fn append(&mut self, frame: &[u8]) {
        if let Some((file, at)) = self.file.take() {
            self.file = self.appended(file, at, frame).ok();
        }
    }

    fn appended(
        &self,
        mut file: Arc<dyn DurableFile>,
        mut at: u64,
        frame: &[u8],
    ) -> io::Result<(Arc<dyn DurableFile>, u64)> {
        let mut frame = frame.to_vec();
        let is_full = at.saturating_add(frame.len().max(self.begin.len()) as u64) > FILE_LEN_MAX;
        if is_full {
            (file, at) = start_new_file(self.dir.as_ref())?;
        }
        if is_full || frame.is_empty() {
            frame.splice(..0, self.begin.iter().copied());
        }
        file.write_all_at(at, &frame)?;
        Ok((file, at.saturating_add(frame.len() as u64)))
    }
}

/// Opens the new file, and makes sure that its last frame is whole; returns its length.
fn open_whole(dir: &dyn DurableDir) -> io::Result<(Arc<dyn DurableFile>, u64)> {
    let file = dir.open(FILE_NAMES[0], OpenMode::CreateIfMissing)?;
    let len = file.len()?;
    if len == 0 {
        file.write_all_at(0, &wire::HEAD)?;
        return Ok((file, wire::HEAD.len() as u64));
    }
    if wire::ends_whole(file.as_ref(), len)? {
        return Ok((file, len));
    }
    start_new_file(dir)
}

fn start_new_file(dir: &dyn DurableDir) -> io::Result<(Arc<dyn DurableFile>, u64)> {
    dir.rename(FILE_NAMES[0], FILE_NAMES[1])?;
    let file = dir.open(FILE_NAMES[0], OpenMode::CreateIfMissing)?;
    file.write_all_at(0, &wire::HEAD)?;
    Ok((file, wire::HEAD.len() as u64))
}

/// The last decision about a file, as far as is known.
///
/// # Errors
/// The files cannot be read. Damaged parts of them are skipped.
pub fn last_decision(dir: &dyn DurableDir, tree: TreeId, node: NodeId) -> io::Result<Option<Decided>> {
    let mut last = None;
    let mut section = Section::default();
    // The old file first: a backup may have begun in it and ended in the new one.
    for name in FILE_NAMES.iter().rev() {
        let file = match dir.open(name, OpenMode::Existing) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        wire::for_each_frame(file.as_ref(), |frame| {
            last = section.take(&frame, tree, node).or(last);
        })?;
    }
    Ok(last)
}

/// How each file was saved so far: the best guess for the next time. At most [`FORMER_MAX`] files;
/// unreadable ones are left out.
pub(crate) fn former(dir: &dyn DurableDir, tree: TreeId) -> HashMap<NodeId, Former> {
    let mut former = HashMap::new();
    let mut section = Sections::default();
    for name in FILE_NAMES.iter().rev() {
        let Ok(file) = dir.open(name, OpenMode::Existing) else {
            continue;
        };
        // Frames before the damage count.
        let _ = wire::for_each_frame(file.as_ref(), |frame| section.take(&frame, tree, &mut former));
    }
    former
}

/// Backups whose frames are being read for all files.
#[derive(Default)]
struct Sections {
    batch: u64,
    is_of_tree: bool,
    pending: Vec<Decision>,
}

impl Sections {
    fn take(&mut self, frame: &Frame<'_>, asked: TreeId, former: &mut HashMap<NodeId, Former>) {
        match *frame {
            Frame::Begin { batch, .. } if batch == self.batch => {}
            Frame::Begin { batch, tree, .. } => {
                *self = Self {
                    batch,
                    is_of_tree: tree == asked,
                    pending: Vec::new(),
                };
            }
            Frame::Decisions { batch, bytes } if batch == self.batch && self.is_of_tree => {
                let decisions = wire::decisions(bytes);
                let known = decisions.filter(|decision| decision.size_bytes > 0 && decision.cause != Cause::New);
                self.pending.extend(known);
                self.pending.truncate(FORMER_MAX);
            }
            Frame::Decisions { .. } | Frame::Compression { .. } => {}
            Frame::End { batch, .. } => {
                for decision in self.pending.drain(..) {
                    let node = decision.node;
                    if batch == self.batch && (former.len() < FORMER_MAX || former.contains_key(&node)) {
                        former.entry(node).or_default().note(&decision);
                    }
                }
            }
        }
    }
}

/// The backup whose frames are being read.
#[derive(Default)]
struct Section {
    batch: u64,
    at_ns: i64,
    is_of_tree: bool,
    /// The last decision about the file in question.
    decision: Option<Decision>,
    compression: Option<Compression>,
}

impl Section {
    fn take(&mut self, frame: &Frame<'_>, asked: TreeId, node: NodeId) -> Option<Decided> {
        match *frame {
            // Repeated where the backup came to another file.
            Frame::Begin { batch, .. } if batch == self.batch => None,
            Frame::Begin { batch, tree, at_ns } => {
                *self = Self {
                    batch,
                    at_ns,
                    is_of_tree: tree == asked,
                    decision: None,
                    compression: None,
                };
                None
            }
            Frame::Compression { batch, compression } => {
                if batch == self.batch {
                    self.compression = Some(compression);
                }
                None
            }
            Frame::Decisions { batch, bytes } => {
                if batch == self.batch && self.is_of_tree {
                    let of_node = wire::decisions(bytes).filter(|decision| decision.node == node);
                    self.decision = of_node.last().or(self.decision);
                }
                None
            }
            Frame::End { batch, seq } => {
                let decision = self.decision.take().filter(|_| batch == self.batch)?;
                Some(Decided {
                    at_ns: self.at_ns,
                    batch,
                    seq,
                    decision,
                    compression: self.compression,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;
