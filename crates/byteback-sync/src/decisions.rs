//! How each file was saved, and why so: what the planner decided, kept so that it can be asked
//! later (`byteback explain`).
//!
//! A file `decisions` of *frames*, appended to by each backup: a head (which batch, when), some
//! [`Decision`]s, an end (it was applied). What has no end did not happen. docs/format-decisions.md
//! describes every byte.
//!
//! Bounded: a file that would pass [`FILE_LEN_MAX`] becomes `decisions.old`, replacing the one
//! before. So the youngest decisions are kept, some hundred thousand at least.
//!
//! *Nothing depends on it.* It is written without waiting for the disk, and whatever cannot be read
//! is not known; a backup that cannot write it goes on. After a tear (the machine stopped), the
//! torn file is set aside as the old one and a new one begins.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod wire;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use crate::backup::Compressed;
use byteback_delta::Effort;
use byteback_host::durable::{DurableDir, DurableFile, OpenMode};
use byteback_model::NodeId;
use byteback_oplog::{TreeId, WholeReason};
use serde::Serialize;

use wire::{FRAME_LEN_MAX, Frame};

/// The young file, the old one.
const FILE_NAMES: [&str; 2] = ["decisions", "decisions.old"];

/// A file does not become longer, in bytes.
const FILE_LEN_MAX: u64 = if cfg!(test) { 16 << 10 } else { 16 << 20 };

/// Of how many files [`sent_shares`] tells.
const SHARES_MAX: usize = if cfg!(test) { 64 } else { 1 << 16 };

/// How the bytes of a file were found that had to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeltaMethod {
    /// The log knew the ranges.
    Log,
    /// The client's own block checksums told what differs.
    Sums,
    /// rsync's rolling checksums found it in what the server had.
    Rsync,
    /// Hashes of blocks at multiples of their length found it.
    Hash,
    /// The server looked for hashes of its blocks in what it had.
    Webr,
    /// Chunks that the content itself delimits were compared with those of what the server had.
    Cdc,
    /// Checksums that existed already told what was equal in place; the rest was searched by a
    /// window.
    SkyF,
    /// Checksums that existed already told what was equal in place; the rest was cut into chunks.
    SkyC,
    /// It was sent as it is.
    Full,
}

/// Why that way was gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The log knew which bytes had been written.
    LogKnew,
    /// The server had no version of it.
    New,
    /// It was asked for.
    Asked,
    /// A program had written it anew, from the first byte to the last.
    Rewritten,
    /// All that the log knew is that any byte may have changed.
    Whole(WholeReason),
    /// Everything had to be sent anew, as the log and the server did not know each other, and the
    /// server had a file at the same path.
    SamePath,
    /// The same, and the server had a file like it elsewhere: of the same length and time, or one
    /// of this name that is gone here.
    Moved,
}

/// Why a file was sent as it is although it was to be looked for in what the server had, or why
/// that cost more than it was to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// Asking costs more than sending.
    TooShort,
    /// Servers do not prove contents as long as this.
    TooLong,
    /// The server told nothing of what it had: it is older, busy, or has an empty file.
    NoSignature,
    /// It consists of too many pieces.
    TooScattered,
    /// The server found that what was found is not what it has, and everything was sent once more.
    ProofRefused,
    /// Sending it was expected to take no longer than looking for it: a fast link, a busy machine,
    /// or a file that changes as a whole.
    CostsLess,
    /// Nobody had checksums of it, or it was written meanwhile: it was read and summed, and then
    /// looked for as planned.
    NotSummed,
}

/// How one file was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The file.
    pub node: NodeId,
    /// How.
    pub method: DeltaMethod,
    /// Why.
    pub cause: Cause,
    /// Why not as it was planned.
    pub fallback: Option<Fallback>,
    /// How long it was.
    pub size_bytes: u64,
    /// Bytes that may have changed, as the log said.
    pub changed_bytes: u64,
    /// Bytes that were hashed to find the change.
    pub hashed_bytes: u64,
    /// Of them, bytes that the server had.
    pub found_bytes: u64,
    /// Bytes that were sent, before compression.
    pub literal_bytes: u64,
}

/// How hard the bytes of a backup were compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CompressionEffort {
    /// Little: the link took bytes faster than more work would have spared them.
    Fast,
    /// As by default.
    Standard,
    /// Much: the link was slow.
    Thorough,
}

/// How a backup was compressed in the end, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Compression {
    /// How hard.
    pub effort: CompressionEffort,
    /// What the link was taken for in bytes per second; `None`: nothing was known of it.
    pub link_bytes_per_s: Option<u64>,
}

impl From<Compressed> for Compression {
    fn from(compressed: Compressed) -> Self {
        Self {
            effort: match compressed.effort {
                Effort::Fast => CompressionEffort::Fast,
                Effort::Standard => CompressionEffort::Standard,
                Effort::Thorough => CompressionEffort::Thorough,
            },
            link_bytes_per_s: compressed.link_bytes_per_s,
        }
    }
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
    /// How the file was saved.
    pub decision: Decision,
    /// How that backup was compressed, if it says so.
    pub compression: Option<Compression>,
}

/// A backup's decisions on their way into the file. An error ends the writing, and nothing else.
#[derive(Debug)]
pub(crate) struct DecisionWriter {
    dir: Arc<dyn DurableDir>,
    /// With its length; `None` after an error.
    file: Option<(Arc<dyn DurableFile>, u64)>,
    batch: u64,
    /// The frame with which the backup begins, in each file that it comes to.
    begin: Vec<u8>,
    pending: Vec<u8>,
}

impl DecisionWriter {
    /// Begins those of the batch `batch` of a tree, `at_ns` on the wall clock.
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

    /// The batch was applied, compressed like this.
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
            (file, at) = begin_anew(self.dir.as_ref())?;
        }
        if is_full || frame.is_empty() {
            frame.splice(..0, self.begin.iter().copied());
        }
        file.write_all_at(at, &frame)?;
        Ok((file, at.saturating_add(frame.len() as u64)))
    }
}

/// Opens the young file, whose last frame is whole; answers its length.
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
    begin_anew(dir)
}

fn begin_anew(dir: &dyn DurableDir) -> io::Result<(Arc<dyn DurableFile>, u64)> {
    dir.rename(FILE_NAMES[0], FILE_NAMES[1])?;
    let file = dir.open(FILE_NAMES[0], OpenMode::CreateIfMissing)?;
    file.write_all_at(0, &wire::HEAD)?;
    Ok((file, wire::HEAD.len() as u64))
}

/// How a file was saved last, as far as is known.
///
/// # Errors
/// The files cannot be read. What is damaged in them is not known.
pub fn last_decision(dir: &dyn DurableDir, tree: TreeId, node: NodeId) -> io::Result<Option<Decided>> {
    let mut last = None;
    let mut section = Section::default();
    // The elder file first: a backup may have begun in it and ended in the younger.
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

/// Which share of each file was sent when it was saved last: the best guess for the next time. At
/// most [`SHARES_MAX`] files are told; what cannot be read is not known.
pub(crate) fn sent_shares(dir: &dyn DurableDir, tree: TreeId) -> HashMap<NodeId, f64> {
    let mut shares = HashMap::new();
    let mut section = Sections::default();
    for name in FILE_NAMES.iter().rev() {
        let Ok(file) = dir.open(name, OpenMode::Existing) else {
            continue;
        };
        // What comes before the damage counts.
        let _ = wire::for_each_frame(file.as_ref(), |frame| section.take(&frame, tree, &mut shares));
    }
    shares
}

/// Backups whose frames are being read, of which all files matter.
#[derive(Default)]
struct Sections {
    batch: u64,
    is_of_tree: bool,
    pending: Vec<(NodeId, f64)>,
}

impl Sections {
    fn take(&mut self, frame: &Frame<'_>, asked: TreeId, shares: &mut HashMap<NodeId, f64>) {
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
                let shares = wire::decisions(bytes)
                    .filter(|decision| decision.size_bytes > 0 && decision.cause != Cause::New)
                    .map(|decision| {
                        let share = decision.literal_bytes as f64 / decision.size_bytes as f64;
                        (decision.node, share.min(1.0))
                    });
                self.pending.extend(shares);
                self.pending.truncate(SHARES_MAX);
            }
            Frame::Decisions { .. } | Frame::Compression { .. } => {}
            Frame::End { batch, .. } => {
                for (node, share) in self.pending.drain(..) {
                    if batch == self.batch && (shares.len() < SHARES_MAX || shares.contains_key(&node)) {
                        shares.insert(node, share);
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
    /// The last one about the file that is asked for.
    decision: Option<Decision>,
    compression: Option<Compression>,
}

impl Section {
    fn take(&mut self, frame: &Frame<'_>, asked: TreeId, node: NodeId) -> Option<Decided> {
        match *frame {
            // Told again where the backup came to another file.
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
