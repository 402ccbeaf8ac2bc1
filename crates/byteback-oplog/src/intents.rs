//! The write intents: which clean nodes may be written from now on, made durable before the first byte is.
//!
//! Every node that the record calls clean gets an intent before its first write; whoever starts after an unclean stop
//! reads the intents back and takes exactly these nodes as open. It is what makes losing power cheap: without it, any
//! file might be new while its times and size are old (measured on ext4, XFS and F2FS).
//!
//! **File.** A head sector (magic, version, sectors per half), then two halves. An intent is 32 bytes: node, generation,
//! magic, CRC-32C. The file is written full of zeros once, so that syncing an intent writes data only, no metadata.
//! A group of intents starts in a sector of its own: a sector that was synced is never written again in its generation.
//!
//! **Generations.** Intents of generation g live in half g mod 2. The database says which generation counts from; records
//! of that one *and of younger ones* are alive. Closing nodes is [`IntentFile::rotate`]: the intents that stay open are
//! written as generation g + 1 into the other half, then the caller commits g + 1 to the database together with the
//! fences of the closed nodes. A crash before the commit leaves both halves alive, after it only the younger.
//! While that commit is outstanding there must not be another rotation: it would overwrite a half that counts.
//!
//! **Group commit.** Threads that arrive during a sync share the next one.
//!
//! After a failed sync nothing is known about the file, so the first failure is final: every later intent is refused,
//! and with it the write that wanted it. What this does not do: ranges (an intent opens a whole node), and deciding
//! when a node may be closed.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use byteback_host::durable::{DurableDir, DurableFile, OpenMode};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::error::{LogError, Result};
use crate::ids::NodeId;

pub(crate) const FILE_NAME: &str = "intents";

const SECTOR_BYTES: usize = 512;
const INTENT_BYTES: usize = 32;
const HEAD_MAGIC: &[u8; 8] = b"BBINTENT";
const RECORD_MAGIC: u32 = 0x544e_4942; // "BINT"
const VERSION: u32 = 1;
/// 2,048 groups, or 32,768 nodes in full groups, between two rotations: 1 MiB a half.
const HALF_SECTORS: u64 = 2048;

/// Stands for every node, where there are more open ones than a half can hold.
const EVERY_NODE: NodeId = NodeId(u64::MAX);

/// The intents found when the file was opened.
#[derive(Debug, Default)]
pub(crate) struct OpenIntents {
    pub(crate) nodes: HashSet<NodeId>,
    /// There were too many to name: any node may have been open.
    pub(crate) every_node: bool,
}

/// A generation of intents, as the database names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Generation(pub(crate) u64);

#[derive(Debug)]
pub(crate) struct IntentFile {
    file: Arc<dyn DurableFile>,
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
    failed: Option<String>,
}

/// What became of the wish for an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    /// Durable, and alive as long as this generation is.
    Durable(Generation),
    /// The half is full: rotate, then ask again.
    Full,
}

impl IntentFile {
    /// Opens the file, creating it if missing, and returns the intents of generation `counted_from` and younger.
    /// New intents go to a generation that is younger than all of them.
    pub(crate) fn open(dir: &dyn DurableDir, counted_from: Generation) -> Result<(Self, OpenIntents, Generation)> {
        let failed = |source| LogError::File { file: FILE_NAME, source };
        let file = dir.open(FILE_NAME, OpenMode::CreateIfMissing).map_err(failed)?;
        let len_bytes = (1 + 2 * HALF_SECTORS) * SECTOR_BYTES as u64;
        let mut head = [0; SECTOR_BYTES];
        if file.len().map_err(failed)? < len_bytes {
            // Never finished being made: intents are only accepted by a file that was synced at its full length.
            file.set_len(0).map_err(failed)?;
            file.allocate(len_bytes).map_err(failed)?;
            head = encode_head();
            file.write_all_at(0, &head).map_err(failed)?;
            file.sync_data().map_err(failed)?;
            dir.sync().map_err(failed)?;
        } else {
            file.read_exact_at(0, &mut head).map_err(failed)?;
            check_head(&head)?;
        }
        let mut bytes = vec![0; (2 * HALF_SECTORS) as usize * SECTOR_BYTES];
        file.read_exact_at(SECTOR_BYTES as u64, &mut bytes).map_err(failed)?;
        let mut found = OpenIntents::default();
        let mut youngest = counted_from;
        for record in bytes.chunks_exact(INTENT_BYTES) {
            if let Some((node, generation)) = decode(record) {
                youngest = youngest.max(generation);
                if generation < counted_from {
                    continue;
                }
                if node == EVERY_NODE {
                    found.every_node = true;
                } else {
                    found.nodes.insert(node);
                }
            }
        }
        let group = Group { sectors_used: HALF_SECTORS, ..Group::default() };
        let this = Self { file, generation: RwLock::new(youngest), group: Mutex::new(group), group_done: Condvar::new() };
        Ok((this, found, youngest))
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
            if let Some(failure) = &group.failed {
                return Err(LogError::Failed(failure.clone()));
            }
            if group.durable_tickets > ticket {
                return Ok(Appended::Durable(*generation));
            }
            if group.syncing {
                self.group_done.wait(&mut group);
                continue;
            }
            let sectors = sectors_for(group.waiting.len());
            if group.sectors_used + sectors > HALF_SECTORS {
                // Nobody of this group is durable; each of the others finds itself unserved and asks in its turn.
                group.waiting.retain(|(other, _)| *other != ticket);
                self.group_done.notify_all();
                return Ok(Appended::Full);
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
                    group.failed = Some(source.to_string());
                    return Err(LogError::File { file: FILE_NAME, source });
                }
            }
        }
    }

    /// Begins the next generation with the intents that stay open, and returns it. They are durable on return.
    /// `still_open` is asked while no intent can be added.
    ///
    /// The caller commits the returned generation to the database before it rotates again.
    pub(crate) fn rotate(&self, still_open: impl FnOnce(Generation) -> Vec<NodeId>) -> Result<Generation> {
        let mut generation = self.generation.write();
        let next = Generation(generation.0 + 1);
        let mut nodes = still_open(next);
        if sectors_for(nodes.len()) > HALF_SECTORS / 2 {
            nodes = vec![EVERY_NODE];
        }
        {
            let mut group = self.group.lock();
            if let Some(failure) = &group.failed {
                return Err(LogError::Failed(failure.clone()));
            }
            group.sectors_used = sectors_for(nodes.len());
        }
        // From here on new intents go to the new half even if writing fails: the old half stays as it is.
        *generation = next;
        if nodes.is_empty() {
            return Ok(next);
        }
        self.write(next, 0, &nodes).map_err(|source| {
            self.group.lock().failed = Some(source.to_string());
            LogError::File { file: FILE_NAME, source }
        })?;
        Ok(next)
    }

    fn write(&self, generation: Generation, first_sector: u64, nodes: &[NodeId]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(sectors_for(nodes.len()) as usize * SECTOR_BYTES);
        for node in nodes {
            bytes.extend_from_slice(&encode(*node, generation));
        }
        bytes.resize(bytes.len().next_multiple_of(SECTOR_BYTES), 0);
        let sector = 1 + (generation.0 % 2) * HALF_SECTORS + first_sector;
        self.file.write_all_at(sector * SECTOR_BYTES as u64, &bytes)?;
        self.file.sync_data()
    }
}

fn sectors_for(intents: usize) -> u64 {
    (intents * INTENT_BYTES).div_ceil(SECTOR_BYTES) as u64
}

fn encode_head() -> [u8; SECTOR_BYTES] {
    let mut head = [0; SECTOR_BYTES];
    head[..8].copy_from_slice(HEAD_MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..20].copy_from_slice(&HALF_SECTORS.to_le_bytes());
    let check = crc32c::crc32c(&head[..20]);
    head[20..24].copy_from_slice(&check.to_le_bytes());
    head
}

fn check_head(head: &[u8; SECTOR_BYTES]) -> Result<()> {
    let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    if &head[..8] == HEAD_MAGIC && version != VERSION {
        return Err(LogError::Version { found: u64::from(version), known: u64::from(VERSION) });
    }
    if head[..24] == encode_head()[..24] { Ok(()) } else { Err(LogError::Damaged { what: "intent file" }) }
}

fn encode(node: NodeId, generation: Generation) -> [u8; INTENT_BYTES] {
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
    let good = small(16)? == RECORD_MAGIC && small(20)? == crc32c::crc32c(record.get(..20)?);
    good.then_some((NodeId(number(0)?), Generation(number(8)?)))
}

#[cfg(test)]
mod tests;
