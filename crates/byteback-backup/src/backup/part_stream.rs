//! The batch on its way: records go into a part in memory, full parts to the server while the next
//! one fills.
//!
//! Each part is kept in memory until the server has it, so that it can be sent again. Memory: the
//! part that fills, one that is set aside, one that waits and one that is on its way, whatever the
//! size of the backup. A batch that fits into one part is sent by its commit alone.
//!
//! *Setting aside*: a file's node record stands before its deltas and holds their number, which is
//! known only when the file was read, as holes make no deltas. When a file fills a part before its
//! end, the part that its record belongs in waits, while the deltas go into the parts after it
//! ([`PartStream::set_aside`], [`PartStream::put_down`]). Parts count by their numbers, not by the
//! order in which they arrive.
//!
//! *Taking back*: a file may turn out to be unreadable when much of it is already staged. Staged
//! parts count only with the commit, and staging a number again replaces it, so the batch goes on
//! from the part that was set aside ([`PartStream::take_back`]) as if the file had never been.
//!
//! The counter of the batch is made durable in the folder's log before the first part leaves, so
//! that the next run can ask the server after a crash what became of the batch.

use super::plan::cost::Conditions;
use super::plan::effort::effort;
use crate::decisions::{Compression, CompressionEffort};
use crate::error::{BackupError, Result};
use crate::monitor::{Event, Monitor, check_cancelled};
use byteback_api::FolderName;
use byteback_api::batch::{BatchError, BatchWriter, DirectoryTimeRecord, ProofRecord};
use byteback_client::ServerClient;
use byteback_client::ServerError;
use byteback_delta::Effort;
use byteback_model::{BatchApplied, FileId, Manifest, NameChange, NodeRecord, Totals};
use sha2::{Digest as _, Sha256};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;

/// Where a batch goes.
#[derive(Clone, Copy)]
pub struct Destination<'env> {
    /// The server.
    pub server: &'env ServerClient,
    /// The folder there.
    pub folder: &'env FolderName,
    /// The device's number of the batch.
    pub counter: u64,
    /// Hears of progress, and may stop it.
    pub monitor: &'env dyn Monitor,
    /// Knows which parts an earlier run has staged.
    pub memory: Option<&'env dyn PartMemory>,
    /// The speed of the link in an earlier run, if known, in bytes per second.
    pub link_before_bytes_per_s: Option<u64>,
    /// The share of a processor that one thread gets.
    pub processor_share: f64,
}

/// Remembers from one run to the next which parts of a batch the server has.
pub trait PartMemory: Sync {
    /// Lets `put` send a part, unless the server has it already with exactly these bytes.
    ///
    /// # Errors
    /// Those of `put`, and if it cannot be remembered that another content of this part is being
    /// replaced.
    fn stage(&self, part: u32, bytes: (&[u8], &Digest), put: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    /// The first delta with a compression other than the default, and that compression, if it was
    /// decided before.
    fn effort(&self) -> Option<(u64, Effort)>;

    /// Remembers a compression from this delta on; false if that failed.
    fn note_effort(&self, from_delta: u64, effort: Effort) -> bool;
}

/// The compression of a batch's literals in the end, and the link speed that it was based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compressed {
    pub(crate) effort: Effort,
    pub(crate) link_bytes_per_s: Option<u64>,
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

/// A part's bytes, shared with the writer that fills them so that they can be cut back.
#[derive(Clone, Default)]
struct PartBytes(Rc<RefCell<Vec<u8>>>);

impl Write for PartBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A part that waits for a file's record.
struct Aside {
    part: u32,
    bytes: Vec<u8>,
    /// The totals when the part was set aside.
    totals: Totals,
}

/// The thread that sends parts.
struct Sender {
    parts: SyncSender<(u32, Vec<u8>)>,
    answers: Receiver<Result<()>>,
    in_flight: u32,
}

/// A batch that is being written and sent; see the module's header.
pub struct PartStream<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    to: Destination<'env>,
    part_len_bytes: usize,
    /// Makes the counter durable in the folder's log.
    note_counter: &'env dyn Fn() -> Result<()>,
    noted: bool,
    writer: BatchWriter<PartBytes>,
    bytes: PartBytes,
    /// Number of the part that fills.
    part: u32,
    totals: Totals,
    aside: Option<Aside>,
    sender: Option<Sender>,
    /// Number of deltas begun, to tell from which one on a compression holds.
    deltas_begun: u64,
    /// The compression and the first delta that it holds for, once decided for good.
    effort_from: Option<(u64, Effort)>,
    compressed: Compressed,
    /// The digests of the parts that were sent.
    digests: Arc<Mutex<BTreeMap<u32, Digest>>>,
}

/// SHA-256.
pub(crate) type Digest = [u8; 32];

impl<'scope, 'env> PartStream<'scope, 'env> {
    /// Begins a batch. `note_counter` makes its number durable in the folder's log; it is called
    /// once, before the first part leaves.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn begin(
        scope: &'scope Scope<'scope, 'env>,
        to: Destination<'env>,
        part_len_bytes: usize,
        manifest: &Manifest,
        note_counter: &'env dyn Fn() -> Result<()>,
    ) -> Result<Self> {
        let bytes = PartBytes::default();
        let mut writer = BatchWriter::new(bytes.clone())?;
        writer.manifest(manifest)?;
        let effort_from = to.memory.and_then(PartMemory::effort);
        Ok(Self {
            scope,
            to,
            part_len_bytes,
            note_counter,
            noted: false,
            writer,
            bytes,
            part: 1,
            totals: Totals::default(),
            aside: None,
            sender: None,
            deltas_begun: 0,
            effort_from,
            compressed: Compressed {
                effort: Effort::default(),
                link_bytes_per_s: None,
            },
            digests: Arc::default(),
        })
    }

    /// How hard the literals of the next delta are compressed. The default as long as the speed of
    /// the link is unknown, which the first parts show. A batch that can be resumed changes only
    /// once, and remembers where: the next run has to make the same bytes.
    pub(crate) fn effort(&mut self) -> Effort {
        let delta = self.deltas_begun;
        self.deltas_begun += 1;
        let effort = match (self.effort_from, self.link_bytes_per_s()) {
            (Some((from, effort)), _) if delta >= from => effort,
            (Some(_), _) | (None, None) => Effort::default(),
            (None, Some(link_bytes_per_s)) => {
                let conditions = Conditions {
                    link_bytes_per_s,
                    processor_share: self.to.processor_share,
                    ..Conditions::default()
                };
                let mut effort = effort(&conditions);
                if let Some(memory) = self.to.memory {
                    if !memory.note_effort(delta, effort) {
                        effort = Effort::default();
                    }
                    self.effort_from = Some((delta, effort));
                }
                self.compressed.link_bytes_per_s = Some(link_bytes_per_s);
                effort
            }
        };
        self.compressed.effort = effort;
        effort
    }

    /// How the last delta was compressed.
    pub(crate) fn compressed(&self) -> Compressed {
        self.compressed
    }

    fn link_bytes_per_s(&self) -> Option<u64> {
        let seen = self.to.server.link_bytes_per_s().or(self.to.link_before_bytes_per_s)?;
        Some(seen.min(self.to.server.bytes_per_second_max().unwrap_or(u64::MAX)))
    }

    /// Length of a part, in bytes: a part that has reached it is sent.
    #[must_use]
    pub fn part_len_bytes(&self) -> usize {
        self.part_len_bytes
    }

    /// Number of parts staged so far.
    pub(crate) fn staged_parts(&self) -> u32 {
        self.part - 1
    }

    /// Totals of what was written so far.
    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// Adds a node's record. As every call below it may send a part and wait for another.
    ///
    /// # Errors
    /// A part cannot be sent.
    pub fn node(&mut self, node: &NodeRecord) -> Result<()> {
        self.writer.node(node)?;
        self.totals.nodes += 1;
        self.send_if_full()
    }

    /// Adds a change of a name.
    ///
    /// # Errors
    /// As [`node`](Self::node).
    pub fn entry(&mut self, entry: &NameChange<FileId>) -> Result<()> {
        self.writer.entry(entry)?;
        self.totals.entries += 1;
        self.send_if_full()
    }

    pub(crate) fn proof(&mut self, proof: &ProofRecord) -> Result<()> {
        self.writer.proof(proof)?;
        self.totals.proofs += 1;
        self.send_if_full()
    }

    /// Adds the time of a directory, of which nothing else is told.
    ///
    /// # Errors
    /// As [`node`](Self::node).
    pub fn directory_time(&mut self, time: &DirectoryTimeRecord) -> Result<()> {
        self.writer.directory_time(time)?;
        self.totals.directory_times += 1;
        self.send_if_full()
    }

    /// Adds a delta of `file`: a whole stream.
    ///
    /// # Errors
    /// As [`node`](Self::node).
    pub fn delta(&mut self, file: FileId, stream: &[u8]) -> Result<()> {
        self.writer.delta(file, stream)?;
        self.totals.deltas += 1;
        self.send_if_full()
    }

    /// Lets the part that fills wait for a record, which [`Self::put_down`] adds, and begins the
    /// next part.
    pub(crate) fn set_aside(&mut self) -> Result<()> {
        debug_assert!(self.aside.is_none(), "one file at a time");
        self.aside = Some(Aside {
            part: self.part,
            bytes: self.bytes.0.take(),
            totals: self.totals,
        });
        // The record is counted where it stands in the batch.
        self.totals.nodes += 1;
        self.next_part()
    }

    /// Ends the part that was set aside with the record that it waited for.
    pub(crate) fn put_down(&mut self, node: &NodeRecord) -> Result<()> {
        let Some(aside) = self.aside.take() else {
            return self.node(node);
        };
        let out = PartBytes::default();
        let mut writer = BatchWriter::resume(out.clone(), aside.totals)?;
        // A new writer writes a header, which the part already has.
        *out.0.borrow_mut() = aside.bytes;
        writer.node(node)?;
        self.send(aside.part, out.0.take())
    }

    /// Goes back to the part that was set aside, if there is one, as if nothing had been written
    /// since.
    pub(crate) fn take_back(&mut self) -> Result<()> {
        let Some(aside) = self.aside.take() else { return Ok(()) };
        // A part that is still on its way must not arrive after the one that replaces it.
        self.wait_for_answers()?;
        self.totals = aside.totals;
        self.part = aside.part;
        self.resume()?;
        *self.bytes.0.borrow_mut() = aside.bytes;
        Ok(())
    }

    /// Ends the batch and lets the server apply it.
    ///
    /// `before_commit` runs when all parts are staged: the last moment at which nothing is decided.
    pub fn commit(mut self, before_commit: impl FnOnce() -> Result<()>) -> Result<BatchApplied> {
        self.wait_for_answers()?;
        self.note_once()?;
        let parts = self.staged_parts();
        let (writer, bytes) = (self.writer, self.bytes);
        writer.end()?;
        let bytes = bytes.0.take();
        before_commit()?;
        let counter = self.to.counter;
        let digest = digest_of_parts(&lock(&self.digests), parts);
        let applied = self
            .to
            .server
            .commit(
                self.to.folder,
                counter,
                (parts, digest.as_deref()),
                &bytes,
                &patience(self.to.monitor),
            )
            .map_err(|error| {
                if ServerClient::commit_outcome_is_known(error.kind) {
                    BackupError::Server(error)
                } else {
                    let source = Box::new(error);
                    BackupError::OutcomeUnknown { counter, source }
                }
            })?;
        self.to.monitor.event(Event::BytesSent(len_u64(bytes.len())));
        Ok(applied)
    }

    fn send_if_full(&mut self) -> Result<()> {
        if self.bytes.0.borrow().len() < self.part_len_bytes {
            return Ok(());
        }
        let bytes = self.bytes.0.take();
        self.send(self.part, bytes)?;
        self.next_part()
    }

    fn next_part(&mut self) -> Result<()> {
        self.part = self
            .part
            .checked_add(1)
            .ok_or_else(|| BackupError::hostile("a batch would need more parts than can be counted"))?;
        Ok(self.resume()?)
    }

    fn send(&mut self, part: u32, bytes: Vec<u8>) -> Result<()> {
        self.note_once()?;
        let Destination {
            server,
            folder,
            counter,
            monitor,
            memory,
            ..
        } = self.to;
        let sender = match &mut self.sender {
            Some(sender) => sender,
            none => {
                // One part waits while one is on its way and the next one fills.
                let (parts, waiting) = sync_channel::<(u32, Vec<u8>)>(1);
                let (answer, answers) = channel();
                let digests = Arc::clone(&self.digests);
                self.scope.spawn(move || {
                    let stage = |part: u32, bytes: &[u8]| {
                        let digest = Sha256::digest(bytes).into();
                        lock(&digests).insert(part, digest);
                        let mut put = || {
                            server.put_part(folder, counter, part, bytes, &patience(monitor))?;
                            monitor.event(Event::BytesSent(len_u64(bytes.len())));
                            Ok(())
                        };
                        match memory {
                            Some(memory) => memory.stage(part, (bytes, &digest), &mut put),
                            None => put(),
                        }
                    };
                    for (part, bytes) in waiting {
                        let staged = match server.packed_part(&bytes) {
                            Some(packed) => match stage(part, &packed) {
                                Err(BackupError::Server(error)) if server.stop_packing_if_refused(&error) => {
                                    stage(part, &bytes)
                                }
                                staged => staged,
                            },
                            None => stage(part, &bytes),
                        };
                        if answer.send(staged).is_err() {
                            return;
                        }
                    }
                });
                none.insert(Sender {
                    parts,
                    answers,
                    in_flight: 0,
                })
            }
        };
        while let Ok(answer) = sender.answers.try_recv() {
            sender.in_flight -= 1;
            answered(self.to.monitor, answer)?;
        }
        sender.in_flight += 1;
        sender.parts.send((part, bytes)).map_err(|_| sender_ended())
    }

    /// Makes the tree remember the batch before its first byte leaves, so that its outcome can be
    /// asked for after a crash.
    pub(crate) fn note_once(&mut self) -> Result<()> {
        if !self.noted {
            (self.note_counter)()?;
            self.noted = true;
        }
        Ok(())
    }

    /// Begins an empty part.
    fn resume(&mut self) -> Result<(), BatchError> {
        self.bytes = PartBytes::default();
        self.writer = BatchWriter::resume(self.bytes.clone(), self.totals)?;
        Ok(())
    }

    fn wait_for_answers(&mut self) -> Result<()> {
        let Some(sender) = &mut self.sender else { return Ok(()) };
        while sender.in_flight > 0 {
            let answer = sender.answers.recv().map_err(|_| sender_ended())?;
            sender.in_flight -= 1;
            answered(self.to.monitor, answer)?;
        }
        Ok(())
    }
}

/// The digest of the digests of the parts 1 to `parts`, in hexadecimal; `None` if there are none.
fn digest_of_parts(digests: &BTreeMap<u32, Digest>, parts: u32) -> Option<String> {
    let mut all = Sha256::new();
    for digest in digests.range(..=parts).map(|(_, digest)| digest) {
        all.update(digest);
    }
    (parts > 0).then(|| all.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer to a part: an error after the user stopped the backup becomes the stop.
fn answered(monitor: &dyn Monitor, answer: Result<()>) -> Result<()> {
    answer.or_else(|error| {
        check_cancelled(monitor)?;
        Err(error)
    })
}

/// Reports the first transient failure of a transfer, and retries until the user stops it.
fn patience(monitor: &dyn Monitor) -> impl Fn(&ServerError) -> bool {
    let is_reported = Cell::new(false);
    move |error| {
        if !is_reported.replace(true) {
            let message = format!("{}; waiting and trying again", error.message);
            monitor.event(Event::Warning(&message));
        }
        !monitor.is_cancelled()
    }
}

/// Only a panic of the sending thread, which the scope reports, can lead here.
fn sender_ended() -> BackupError {
    BackupError::local(
        "send",
        "a part of the batch",
        io::Error::other("the sending thread has ended"),
    )
}

fn len_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
