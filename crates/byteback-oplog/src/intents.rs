//! The write intents: the clean nodes that may be written from now on, made durable before
//! the first byte is.
//!
//! Every node that the record calls clean gets an intent before its first write; a start after an
//! unclean stop reads the intents back and takes exactly these nodes as open. This is what makes
//! power loss cheap: without intents, any file might be new while its times and size are old
//! (measured on ext4, XFS and F2FS).
//!
//! **File.** A head sector (magic, version, sectors per half), then two halves. An intent is 32
//! bytes: node, generation, magic, CRC-32C. The file is written full of zeros once, so that syncing
//! an intent writes data only, no metadata. A group of intents starts in a sector of its own: a
//! sector that was synced is never written again in its generation.
//!
//! **Generations.** Intents of generation g live in half g mod 2. The database says which
//! generation counts from; records of that one *and of newer ones* are alive. Nodes are closed by
//! [`IntentFile::rotate`]: the intents that stay open are written as generation g + 1 into the
//! other half, then the caller commits g + 1 to the database together with the fences of the closed
//! nodes. A crash before the commit leaves both halves alive, after it only the newer. While that
//! commit is outstanding there must not be another rotation: it would overwrite a half that counts.
//!
//! **Group commit.** Threads that arrive during a sync share the next one.
//!
//! **Failure.** After a failed sync nothing is known about the sectors of that group, so nothing is
//! ever added to that half again: the next caller is told to rotate, which writes everything that
//! is open into the other half from its start. Until a rotation succeeds the generation stays the
//! same, its earlier groups stay durable, and every write that needs an intent fails. A sector that
//! reached the disk despite a failed sync only names a node too many.
//!
//! **Loss.** Intents are accepted only by a file that was durable in full before. If the database
//! has seen a generation and the file is missing, short or headless, it was taken away, and any
//! node may have been open. The same holds where a record is neither zeros nor whole: no crash
//! leaves one (sectors are written wholly or not at all), so it has rotted.
//!
//! Out of scope: ranges (an intent opens a whole node), and deciding when a node may be closed.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use byteback_host::durable::{DurableDir, DurableFile, OpenMode};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::error::{LogError, Result};
use byteback_model::NodeId;

pub(crate) const FILE_NAME: &str = "intents";

pub(crate) const SECTOR_BYTES: usize = 512;
const INTENT_BYTES: usize = 32;
const HEAD_MAGIC: &[u8; 8] = b"BBINTENT";
const RECORD_MAGIC: u32 = 0x544e_4942; // "BINT"
const VERSION: u32 = 1;
/// 2,048 groups, or 32,768 nodes in full groups, between two rotations: 1 MiB a half.
pub(crate) const HALF_SECTORS: u64 = 2048;

/// Stands for every node, if more are open than a half can hold.
const EVERY_NODE: NodeId = NodeId(u64::MAX);

/// The intents found when the file was opened.
#[derive(Debug, Default)]
pub(crate) struct OpenIntents {
    pub(crate) nodes: HashSet<NodeId>,
    /// There were too many to name, or the file was lost or damaged: any node may have been open.
    pub(crate) every_node: bool,
}

/// A generation of intents, as the database names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Generation(pub(crate) u64);

#[derive(Debug)]
pub(crate) struct IntentFile {
    file: Arc<dyn DurableFile>,
    half_sectors: u64,
    /// Held shared while an intent is made durable, exclusively while the generation changes.
    generation: RwLock<Generation>,
    group: Mutex<Group>,
    group_done: Condvar,
}

#[derive(Debug, Default)]
struct Group {
    /// Ticket and node of each thread that no group has served yet.
    waiting: Vec<(u64, NodeId)>,
    next_ticket: u64,
    /// Every ticket below is durable.
    durable_tickets: u64,
    syncing: bool,
    /// Sectors of the current half already used.
    sectors_used: u64,
    /// A sync failed: nothing may be added to this half any more.
    must_rotate: bool,
}

/// The outcome of a request for an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    /// Durable, and alive as long as this generation is.
    Durable(Generation),
    /// The half of this generation is full, or failed: rotate, then request again.
    Full(Generation),
}

impl IntentFile {
    /// Opens the file, creating it if missing, and returns the intents of generation `counted_from`
    /// and newer. New intents go to a generation newer than all of them; the caller rotates first.
    /// `half_sectors`: [`HALF_SECTORS`], or less in tests.
    pub(crate) fn open(
        dir: &dyn DurableDir,
        counted_from: Generation,
        half_sectors: u64,
    ) -> Result<(Self, OpenIntents)> {
        let failed = |source| LogError::File {
            file: FILE_NAME,
            source,
        };
        let file = dir.open(FILE_NAME, OpenMode::CreateIfMissing).map_err(failed)?;
        let halves_bytes = 2 * half_sectors * SECTOR_BYTES as u64;
        let mut found = OpenIntents::default();
        let mut newest = counted_from;
        if is_complete(file.as_ref(), halves_bytes, half_sectors)? {
            // 2 MiB at most: `half_sectors` comes from us, not from the file.
            let mut halves = vec![0; usize::try_from(halves_bytes).unwrap_or(usize::MAX)];
            file.read_exact_at(SECTOR_BYTES as u64, &mut halves).map_err(failed)?;
            for record in halves.chunks_exact(INTENT_BYTES) {
                let Some((node, generation)) = decode(record) else {
                    // A sector is written wholly or not at all, and over zeros: anything else is
                    // damage.
                    found.every_node |= record.iter().any(|byte| *byte != 0);
                    continue;
                };
                newest = newest.max(generation);
                if generation < counted_from {
                    continue;
                }
                if node == EVERY_NODE {
                    found.every_node = true;
                } else {
                    found.nodes.insert(node);
                }
            }
        } else {
            found.every_node = counted_from > Generation(0);
            file.set_len(0).map_err(failed)?;
            file.allocate(SECTOR_BYTES as u64 + halves_bytes).map_err(failed)?;
            if found.every_node {
                // Until the caller has committed a newer generation, a start after a crash must
                // find this out too.
                let sector = 1 + (counted_from.0 % 2) * half_sectors;
                file.write_all_at(sector * SECTOR_BYTES as u64, &encode(EVERY_NODE, counted_from))
                    .map_err(failed)?;
            }
            file.sync_data().map_err(failed)?;
            // The head comes last: a file with a head is complete.
            file.write_all_at(0, &encode_head(half_sectors)).map_err(failed)?;
            file.sync_data().map_err(failed)?;
            dir.sync().map_err(failed)?;
        }
        let group = Group {
            sectors_used: half_sectors,
            ..Group::default()
        };
        let this = Self {
            file,
            half_sectors,
            generation: RwLock::new(newest),
            group: Mutex::new(group),
            group_done: Condvar::new(),
        };
        Ok((this, found))
    }

    /// The length of the file.
    pub(crate) fn len_bytes(&self) -> Result<u64> {
        self.file.len().map_err(|source| LogError::File {
            file: FILE_NAME,
            source,
        })
    }

    /// The generation that new intents belong to.
    pub(crate) fn current(&self) -> Generation {
        *self.generation.read()
    }

    /// Makes the intent to write `node` durable.
    pub(crate) fn append(&self, node: NodeId) -> Result<Appended> {
        let generation = self.generation.read();
        let mut group = self.group.lock();
        let ticket = group.next_ticket;
        group.next_ticket += 1;
        group.waiting.push((ticket, node));
        loop {
            if group.durable_tickets > ticket {
                return Ok(Appended::Durable(*generation));
            }
            if group.syncing {
                self.group_done.wait(&mut group);
                continue;
            }
            let sectors = sectors_for(group.waiting.len());
            if group.must_rotate || group.sectors_used + sectors > self.half_sectors {
                // No intent of this group is durable; each of the other threads finds itself
                // unserved and retries in its turn.
                group.waiting.retain(|(other, _)| *other != ticket);
                self.group_done.notify_all();
                return Ok(Appended::Full(*generation));
            }
            let nodes: Vec<NodeId> = group.waiting.drain(..).map(|(_, node)| node).collect();
            let up_to = group.next_ticket;
            let first_sector = group.sectors_used;
            group.sectors_used += sectors;
            group.syncing = true;
            drop(group);
            let outcome = self.write(*generation, first_sector, &nodes);
            group = self.group.lock();
            group.syncing = false;
            self.group_done.notify_all();
            match outcome {
                Ok(()) => group.durable_tickets = up_to,
                Err(source) => {
                    // The other threads of the group request a rotation; this one reports the
                    // cause.
                    group.must_rotate = true;
                    return Err(LogError::File {
                        file: FILE_NAME,
                        source,
                    });
                }
            }
        }
    }

    /// Begins the next generation with the intents that stay open, and returns it. They are durable
    /// on return. `still_open` is called while no intent can be added. On failure the generation
    /// stays the same, and its intents still count; but no intent can be added before a rotation
    /// succeeds.
    ///
    /// The caller commits the returned generation to the database before it rotates again.
    pub(crate) fn rotate(&self, still_open: impl FnOnce(Generation) -> Vec<NodeId>) -> Result<Generation> {
        let mut generation = self.generation.write();
        let next = Generation(generation.0 + 1);
        let mut nodes = still_open(next);
        if sectors_for(nodes.len()) > self.half_sectors / 2 {
            nodes = vec![EVERY_NODE];
        }
        let sectors_used = sectors_for(nodes.len());
        if !nodes.is_empty()
            && let Err(source) = self.write(next, 0, &nodes)
        {
            self.group.lock().must_rotate = true;
            return Err(LogError::File {
                file: FILE_NAME,
                source,
            });
        }
        let mut group = self.group.lock();
        group.sectors_used = sectors_used;
        group.must_rotate = false;
        *generation = next;
        Ok(next)
    }

    fn write(&self, generation: Generation, first_sector: u64, nodes: &[NodeId]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(sectors_for(nodes.len()) as usize * SECTOR_BYTES);
        for node in nodes {
            bytes.extend_from_slice(&encode(*node, generation));
        }
        bytes.resize(bytes.len().next_multiple_of(SECTOR_BYTES), 0);
        let sector = 1 + (generation.0 % 2) * self.half_sectors + first_sector;
        self.file.write_all_at(sector * SECTOR_BYTES as u64, &bytes)?;
        self.file.sync_data()
    }
}

fn sectors_for(intents: usize) -> u64 {
    (intents * INTENT_BYTES).div_ceil(SECTOR_BYTES) as u64
}

/// Whether the file is complete.
fn is_complete(file: &dyn DurableFile, halves_bytes: u64, half_sectors: u64) -> Result<bool> {
    let failed = |source| LogError::File {
        file: FILE_NAME,
        source,
    };
    if file.len().map_err(failed)? < SECTOR_BYTES as u64 {
        return Ok(false);
    }
    let mut head = [0; SECTOR_BYTES];
    file.read_exact_at(0, &mut head).map_err(failed)?;
    let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    // Every later version begins its head like this too; a head that does not match its checksum
    // has no version.
    let is_sealed = head[20..24] == crc32c::crc32c(&head[..20]).to_le_bytes();
    if &head[..8] == HEAD_MAGIC && is_sealed && version != VERSION {
        return Err(LogError::Version {
            found: u64::from(version),
            known: u64::from(VERSION),
        });
    }
    let is_ours = head == encode_head(half_sectors);
    Ok(is_ours && file.len().map_err(failed)? >= SECTOR_BYTES as u64 + halves_bytes)
}

fn encode_head(half_sectors: u64) -> [u8; SECTOR_BYTES] {
    let mut head = [0; SECTOR_BYTES];
    head[..8].copy_from_slice(HEAD_MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..20].copy_from_slice(&half_sectors.to_le_bytes());
    let check = crc32c::crc32c(&head[..20]);
    head[20..24].copy_from_slice(&check.to_le_bytes());
    head
}

pub(crate) fn encode(node: NodeId, generation: Generation) -> [u8; INTENT_BYTES] {
    let mut record = [0; INTENT_BYTES];
    record[..8].copy_from_slice(&node.0.to_le_bytes());
    record[8..16].copy_from_slice(&generation.0.to_le_bytes());
    record[16..20].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
    let check = crc32c::crc32c(&record[..20]);
    record[20..24].copy_from_slice(&check.to_le_bytes());
    record
}

fn decode(record: &[u8]) -> Option<(NodeId, Generation)> {
    let number = |at: usize| Some(u64::from_le_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let small = |at: usize| Some(u32::from_le_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let good = small(16)? == RECORD_MAGIC && small(20)? == crc32c::crc32c(record.get(..20)?) && number(24)? == 0;
    good.then_some((NodeId(number(0)?), Generation(number(8)?)))
}

#[cfg(test)]
mod tests;
