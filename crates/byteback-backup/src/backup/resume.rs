//! The record of a backup's batch until it is applied, so that the next run need not send again
//! what the server has.
//!
//! A batch that was interrupted and a batch of the same changes are the same bytes, part by part,
//! as far as the folder has not changed: the log reports changes in the order of their nodes. So
//! the next run takes the same number, and the server is asked which parts it has staged, each with
//! its digest. A part that comes out with that digest is not sent. The server knows its parts, so
//! the record cannot be out of date; it holds only what makes the bytes come out the same: the
//! number, the time, and the compression with the first delta that it holds for.
//!
//! The commit carries the digest of all parts. If the server has others in the end (one was on its
//! way for long, and replaced the one that was meant), it applies nothing, and the batch is sent
//! anew under another number.
//!
//! Order: the record is durable before the first part leaves. It goes when the batch is applied or
//! refused. A record that is lost, damaged, of another folder, or another version counts for
//! nothing: the backup begins anew, and staged parts are given back, or expire.

use super::part_stream::{Digest, PartMemory};
use super::{BackupOptions, BackupReport, Job};
use crate::error::{BackupError, Result};
use byteback_client::{ServerClient, of_hex};
use byteback_delta::Effort;
use byteback_host::durable::DurableDir;
use byteback_host::durable::VersionedJson;
use byteback_model::DeviceId;
use byteback_oplog::TreeId;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// docs/formats/push.md describes it.
const FILE: VersionedJson = VersionedJson {
    name: "batch",
    version: 1,
    len_max_bytes: 64 << 10,
};

/// The batch that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Begun {
    server: String,
    folder: String,
    device: DeviceId,
    consumer: String,
    tree: u64,
    counter: u64,
    created_ns: i64,
    /// The first delta with a compression other than the default, and that compression.
    effort: Option<(u64, u8)>,
}

impl Begun {
    fn is_of(&self, job: &Job<'_>, tree: TreeId) -> bool {
        self.server == job.server.base_url()
            && self.folder == job.folder.as_str()
            && self.device == job.options.device
            && self.consumer == job.options.consumer
            && self.tree == tree.0
    }
}

/// The number of the last begun batch, as far as is known.
pub(super) fn noted_counter(options: &BackupOptions) -> Option<u64> {
    read(options).map(|begun| begun.counter)
}

fn read(options: &BackupOptions) -> Option<Begun> {
    // An unreadable record counts for nothing.
    FILE.read(options.unfinished.as_deref()?).ok().flatten()
}

/// A batch with its number.
pub(super) struct Numbered {
    counter: u64,
    created_ns: i64,
    /// Directory of the record.
    dir: Option<Arc<dyn DurableDir>>,
    note: Mutex<BatchNote>,
    /// Parts that the server has.
    staged: HashMap<u32, Digest>,
    reused: Mutex<Reused>,
}

/// The record of the batch, written or not: a batch of one part, which is applied or not, is not
/// worth two writes.
#[derive(Default)]
struct BatchNote {
    begun: Option<Begun>,
    is_durable: bool,
}

/// Parts that need not be sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reused {
    parts: u32,
    bytes: u64,
}

impl Reused {
    pub(super) fn add_to(self, report: &mut BackupReport) {
        report.parts_reused += self.parts;
        report.reused_bytes += self.bytes;
    }
}

impl Numbered {
    /// A batch that is not remembered.
    pub(super) fn of(counter: u64, created_ns: i64) -> Self {
        Self {
            counter,
            created_ns,
            dir: None,
            note: Mutex::default(),
            staged: HashMap::new(),
            reused: Mutex::default(),
        }
    }

    /// A new batch.
    pub(super) fn begin(job: &Job<'_>, tree: TreeId, counter: u64) -> Self {
        let created_ns = job.server.clock().now_ns();
        Self {
            dir: job.options.unfinished.clone(),
            note: Mutex::new(BatchNote {
                begun: Some(Begun {
                    server: job.server.base_url().to_owned(),
                    folder: job.folder.to_string(),
                    device: job.options.device,
                    consumer: job.options.consumer.clone(),
                    tree: tree.0,
                    counter,
                    created_ns,
                    effort: None,
                }),
                is_durable: false,
            }),
            ..Self::of(counter, created_ns)
        }
    }

    /// The batch that an interrupted backup has left, if it is of any use and may be used;
    /// otherwise it is given back.
    pub(super) fn left(job: &Job<'_>, tree: TreeId, may_resume: bool) -> Result<Option<Self>> {
        let Some(begun) = read(job.options).filter(|begun| begun.is_of(job, tree)) else {
            return Ok(None);
        };
        let status = job.server.staged_parts(job.folder, begun.counter)?;
        if status.applied.is_some() || status.staged_parts.is_empty() {
            return Ok(None);
        }
        if !may_resume {
            // If it cannot be given back, it expires.
            let _ = job.server.abandon(job.folder, begun.counter);
            return Ok(None);
        }
        let digests = status
            .digests
            .into_iter()
            .map(|digest| digest.and_then(|text| of_hex(&text)));
        let staged = status.staged_parts.into_iter().zip(digests);
        Ok(Some(Self {
            dir: job.options.unfinished.clone(),
            note: Mutex::new(BatchNote {
                begun: Some(begun.clone()),
                is_durable: true,
            }),
            staged: staged.filter_map(|(part, digest)| Some((part, digest?))).collect(),
            ..Self::of(begun.counter, begun.created_ns)
        }))
    }

    pub(super) fn counter(&self) -> u64 {
        self.counter
    }

    pub(super) fn created_ns(&self) -> i64 {
        self.created_ns
    }

    pub(super) fn memory(&self) -> Option<&dyn PartMemory> {
        self.dir.is_some().then_some(self as &dyn PartMemory)
    }

    pub(super) fn reused(&self) -> Reused {
        *lock(&self.reused)
    }

    /// Makes the record durable, if it is not. If that fails, this backup goes on, and begins anew
    /// if it is interrupted.
    fn keep(&self) {
        let Some(dir) = &self.dir else { return };
        let mut note = lock(&self.note);
        if note.is_durable {
            return;
        }
        if let Some(begun) = &note.begun {
            note.is_durable = FILE.write(dir.as_ref(), begun).is_ok();
        }
    }

    /// Forgets the batch if it came to its end, and gives back the staged parts of one that was
    /// refused.
    pub(super) fn ended<T>(&self, job: &Job<'_>, sent: Result<T>) -> Result<T> {
        let is_refused = |error: &BackupError| match error {
            BackupError::Server(error) => {
                !error.kind.is_transient() && ServerClient::commit_outcome_is_known(error.kind)
            }
            _ => false,
        };
        let is_over = match &sent {
            Ok(_) => true,
            Err(error) if is_refused(error) => {
                if self.dir.is_some() {
                    // If it cannot be given back, it expires.
                    let _ = job.server.abandon(job.folder, self.counter);
                }
                true
            }
            Err(_) => false,
        };
        if is_over
            && lock(&self.note).is_durable
            && let Some(dir) = &self.dir
        {
            // A record that stays counts for nothing: its batch is applied, or has no parts.
            let _ = dir.remove(FILE.name).and_then(|()| dir.sync());
        }
        sent
    }
}

impl PartMemory for Numbered {
    fn stage(&self, part: u32, (bytes, digest): (&[u8], &Digest), put: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.keep();
        if self.staged.get(&part) != Some(digest) {
            return put();
        }
        let mut reused = lock(&self.reused);
        reused.parts += 1;
        reused.bytes = reused
            .bytes
            .saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        Ok(())
    }

    fn effort(&self) -> Option<(u64, Effort)> {
        let (from, code) = lock(&self.note).begun.as_ref()?.effort?;
        let index = usize::from(code).checked_sub(1)?;
        Some((from, *Effort::ALL.get(index)?))
    }

    fn note_effort(&self, from_delta: u64, effort: Effort) -> bool {
        let Some(dir) = &self.dir else { return false };
        let mut note = lock(&self.note);
        let Some(begun) = &note.begun else { return false };
        let code = match effort {
            Effort::Fast => 1,
            Effort::Standard => 2,
            Effort::Thorough => 3,
        };
        let with_effort = Begun {
            effort: Some((from_delta, code)),
            ..begun.clone()
        };
        // A record that is not durable yet becomes so with the first part.
        if note.is_durable && FILE.write(dir.as_ref(), &with_effort).is_err() {
            return false;
        }
        note.begun = Some(with_effort);
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
