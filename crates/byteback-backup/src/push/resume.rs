//! The record of a push until it is applied, so that the next run need not send again what the
//! server has.
//!
//! The same push makes the same batch: its number, base, time and the number from which new
//! identities follow are recorded before the first part leaves; then, for each part that the server
//! has, the digest of its bytes. A part is left out by the next run if the server says that it
//! still has one of this number, and the bytes that this run made have the recorded digest.
//! docs/formats/push.md describes every byte.
//!
//! Order: before a part whose digest is known is replaced by another content, "unknown" is recorded
//! durably; the new digest is recorded after the server's answer. So a recorded digest is that of
//! the server's part, whenever the machine stops. If the state folder itself was restored from an
//! older copy, it might not be: therefore contents that went with left-out parts are proven as a
//! whole ([`super::compare::Comparison::prove_resumed`]).
//!
//! A record that is damaged, of another version or of another push counts for nothing. Without a
//! state folder, or if it cannot be written, a push works the same and cannot be resumed.

use super::Job;
use crate::backup::{PartMemory, draw_counter};
use crate::error::{BackupError, Result};
use crate::monitor::{Event, Monitor};
use byteback_api::FolderName;
use byteback_delta::{ContentDigest, Effort};
use byteback_host::durable::{DurableDir, RecordLog, RecordLogError, RecordLogFormat};
use byteback_host::random::{Randomness, RealRandomness};
use byteback_model::{ByteString, DeviceId, FileId, Seq};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The head is the JSON of the beginning; each record is the number of a part and a digest. It is
/// written anew only after a tear.
const FORMAT: RecordLogFormat = RecordLogFormat {
    name: "push",
    magic: *b"BBPUSH\0",
    version: 1,
    len_max_bytes: 64 << 10,
    rewrite_from_bytes: u64::MAX,
};

type Digest = [u8; 32];

/// Stands for "not known".
const UNKNOWN: Digest = [0; 32];

/// The number of no part: its entry holds the first delta with another compression, and that
/// compression (u64, u8), instead of a digest.
const EFFORT_ENTRY: u32 = 0;

/// A name for the directory that keeps the state of a push from `source` to `to`
/// ([`super::PushOptions::state`]).
#[must_use]
pub fn push_state_name(server: &str, folder: &FolderName, to: &[u8], source: &Path) -> String {
    let source = std::path::absolute(source).unwrap_or_else(|_| source.to_owned());
    let to = crate::listing::trim_slashes(to);
    let parts = [
        server.as_bytes(),
        folder.as_str().as_bytes(),
        to,
        source.as_os_str().as_bytes(),
    ];
    let way = parts.join(&0);
    digest(&way).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The parameters of a push at its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begun {
    server: String,
    folder: String,
    device: DeviceId,
    to: ByteString,
    source: ByteString,
    /// The batch's number.
    pub(super) counter: u64,
    /// The sequence number that the batch builds on.
    pub(super) base_seq: Seq,
    /// When it was made, ns since 1970.
    pub(super) created_ns: i64,
    /// The seed of new identities.
    seed: FileId,
}

impl Begun {
    fn new(job: &Job<'_>, base_seq: Seq) -> Result<Self> {
        let drawn = || RealRandomness.next_u64();
        let seed = drawn()
            .and_then(|high| Ok((u128::from(high) << 64) | u128::from(drawn()?)))
            .map_err(|error| BackupError::local("draw", "an identity", error))?;
        let source = std::path::absolute(job.source).unwrap_or_else(|_| job.source.to_owned());
        Ok(Self {
            server: job.server.base_url().to_owned(),
            folder: job.folder.to_string(),
            device: job.options.device,
            to: ByteString::from(job.to),
            source: ByteString::from(source.as_os_str().as_bytes()),
            counter: draw_counter(job.server, 0)?,
            base_seq,
            created_ns: job.server.clock().now_ns(),
            seed: FileId(seed),
        })
    }

    /// Whether both are pushes from the same source to the same place.
    fn is_same_way(&self, other: &Self) -> bool {
        let way = |begun: &Self| {
            let Self { server, folder, .. } = begun.clone();
            (server, folder, begun.device, begun.to.clone(), begun.source.clone())
        };
        way(self) == way(other)
    }

    /// The identity of a node that this push makes at a path of the folder: the same whenever the
    /// batch is made.
    pub(super) fn node_id(&self, path: &[u8]) -> FileId {
        let seed = self.seed.to_bytes();
        let len = u64::try_from(seed.len().saturating_add(path.len())).unwrap_or(u64::MAX);
        let mut digest = ContentDigest::new(len);
        digest.push(&seed);
        digest.push(path);
        let digest = digest.finish().unwrap_or_default();
        let id = FileId::from_bytes(*digest.first_chunk().unwrap_or(&[0; 16]));
        match crate::backup::is_root_of_tree(id) {
            // That number is for the roots of tracked trees.
            true => FileId(id.0 ^ 2),
            false => id,
        }
    }
}

/// The record of one push.
pub(super) struct Record {
    dir: Option<Arc<dyn DurableDir>>,
    begun: Begun,
    is_resumed: bool,
    parts: Mutex<Parts>,
}

#[derive(Default)]
struct Parts {
    log: Option<RecordLog>,
    known: HashMap<u32, Digest>,
    /// Parts that the server reported as staged.
    at_server: HashSet<u32>,
    reused: u32,
    reused_bytes: u64,
    /// The first delta with another compression, and that compression.
    effort: Option<(u64, Effort)>,
}

impl Record {
    /// The record of a new push.
    pub(super) fn begin(job: &Job<'_>, base_seq: Seq) -> Result<Self> {
        Ok(Self {
            dir: job.options.state.clone().filter(|_| !job.options.dry_run),
            begun: Begun::new(job, base_seq)?,
            is_resumed: false,
            parts: Mutex::default(),
        })
    }

    /// The record of an interrupted push from the same source to the same place.
    pub(super) fn left(job: &Job<'_>) -> Option<(Self, Begun)> {
        let dir = job.options.state.clone()?;
        let (begun, parts) = read(&dir).ok().flatten()?;
        if !begun.is_same_way(&Begun::new(job, 0).ok()?) {
            return None;
        }
        let record = Self {
            dir: Some(dir),
            begun: begun.clone(),
            is_resumed: true,
            parts: Mutex::new(parts),
        };
        Some((record, begun))
    }

    /// Notes the parts that are still there.
    pub(super) fn at_server(&mut self, staged: Vec<u32>) {
        self.lock().at_server = staged.into_iter().collect();
    }

    pub(super) fn begun(&self) -> &Begun {
        &self.begun
    }

    /// Whether an earlier run began it.
    pub(super) fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// The number of parts left out in this run, and their bytes.
    pub(super) fn reused(&self) -> (u32, u64) {
        let parts = self.lock();
        (parts.reused, parts.reused_bytes)
    }

    /// Drops the staged parts: all of them will be sent again.
    pub(super) fn forget_parts(&self) {
        self.lock().at_server.clear();
    }

    /// Makes the beginning durable, if it is not; on failure warns that the push cannot be resumed.
    pub(super) fn keep(&self, monitor: &dyn Monitor) {
        let Some(dir) = &self.dir else { return };
        let mut parts = self.lock();
        if parts.log.is_some() {
            return;
        }
        match create(dir, &self.begun) {
            Ok(log) => parts.log = Some(log),
            Err(error) => monitor.event(Event::Warning(&format!(
                "cannot record the progress of this push ({error}); if it is interrupted, it starts from the beginning"
            ))),
        }
    }

    /// Forgets the push.
    pub(super) fn remove(&self) {
        self.lock().log = None;
        if let Some(dir) = &self.dir {
            // A record that stays counts for nothing: its batch is applied, or refused once more.
            let _ = dir.remove(FORMAT.name).and_then(|()| dir.sync());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartMemory for Record {
    fn stage(&self, part: u32, (bytes, _): (&[u8], &[u8; 32]), put: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let digest = digest(bytes);
        {
            let mut parts = self.lock();
            if parts.known.get(&part) == Some(&digest) && parts.at_server.contains(&part) {
                parts.reused += 1;
                parts.reused_bytes += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                return Ok(());
            }
            if parts.known.contains_key(&part) {
                parts
                    .append(part, &UNKNOWN)
                    .map_err(|error| BackupError::local("update", "the record of the interrupted push", error))?;
            }
        }
        put()?;
        // A part that cannot be recorded is sent again.
        let mut parts = self.lock();
        if parts.append(part, &digest).is_ok() {
            parts.at_server.insert(part);
        }
        Ok(())
    }

    fn effort(&self) -> Option<(u64, Effort)> {
        self.lock().effort
    }

    fn note_effort(&self, from_delta: u64, effort: Effort) -> bool {
        let mut parts = self.lock();
        parts.effort = Some((from_delta, effort));
        let entry = effort_entry(from_delta, effort);
        parts.append(EFFORT_ENTRY, &entry).is_ok()
    }
}

fn effort_entry(from_delta: u64, effort: Effort) -> Digest {
    let mut entry = UNKNOWN;
    let [number @ .., _] = &mut entry;
    number[..8].copy_from_slice(&from_delta.to_le_bytes());
    number[8] = match effort {
        Effort::Fast => 1,
        Effort::Standard => 2,
        Effort::Thorough => 3,
    };
    entry
}

fn effort_of(entry: &Digest) -> Option<(u64, Effort)> {
    let (from_delta, rest) = entry.split_first_chunk()?;
    let effort = match rest.first()? {
        1 => Effort::Fast,
        2 => Effort::Standard,
        3 => Effort::Thorough,
        _ => return None,
    };
    Some((u64::from_le_bytes(*from_delta), effort))
}

impl Parts {
    /// Records durably which bytes the server has as this part.
    fn append(&mut self, part: u32, digest: &Digest) -> io::Result<()> {
        self.known.remove(&part);
        let Some(log) = &mut self.log else {
            return Ok(());
        };
        let entry = [&part.to_le_bytes()[..], digest].concat();
        let appended = log.append([entry]).and_then(|()| log.sync());
        appended.map_err(RecordLogError::into_io)?;
        if *digest != UNKNOWN && part != EFFORT_ENTRY {
            self.known.insert(part, *digest);
        }
        Ok(())
    }
}

fn digest(bytes: &[u8]) -> Digest {
    let mut digest = ContentDigest::new(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    digest.push(bytes);
    digest.finish().unwrap_or(UNKNOWN)
}

fn create(dir: &Arc<dyn DurableDir>, begun: &Begun) -> io::Result<RecordLog> {
    let json = serde_json::to_vec(begun)?;
    let none: [&[u8]; 0] = [];
    FORMAT.create(dir, &json, none).map_err(RecordLogError::into_io)
}

/// Reads the record; `None` if there is no valid one.
fn read(dir: &Arc<dyn DurableDir>) -> io::Result<Option<(Begun, Parts)>> {
    let (mut log, contents) = match FORMAT.open(dir) {
        Ok(Some(found)) => found,
        Ok(None) | Err(RecordLogError::Damaged { .. } | RecordLogError::Version { .. }) => return Ok(None),
        Err(error) => return Err(error.into_io()),
    };
    let Ok(begun) = serde_json::from_slice::<Begun>(&contents.head) else {
        return Ok(None);
    };
    if log.needs_rewrite() {
        let rewritten = log.rewrite(&contents.head, &contents.records);
        rewritten.map_err(RecordLogError::into_io)?;
    }
    let mut parts = Parts::default();
    for record in &contents.records {
        let Some((part, digest)) = record.split_first_chunk() else {
            continue;
        };
        let part = u32::from_le_bytes(*part);
        match Digest::try_from(digest) {
            Ok(entry) if part == EFFORT_ENTRY => {
                parts.effort = effort_of(&entry);
                None
            }
            Ok(UNKNOWN) | Err(_) => parts.known.remove(&part),
            Ok(digest) => parts.known.insert(part, digest),
        };
    }
    parts.log = Some(log);
    Ok(Some((begun, parts)))
}

#[cfg(test)]
mod tests;
