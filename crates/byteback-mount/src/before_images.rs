//! Before-images: what programs overwrite is kept in memory until the next backup, which then need
//! not send what only moved.
//!
//! A database moves rows within its pages, a mailbox closes the gap of a mail that was removed, a
//! program writes a file over. The log knows the ranges, the server has their old bytes, and the
//! gate has both in its hands when the change is made. A backup compares what it sends of a file
//! with what was there at the consumer's mark, as far as that is still known.
//!
//! **The invariant.** For each byte of a file and each epoch since `known_from`: the oldest layer
//! of a later or equal epoch that has the byte says what it was at the beginning of that epoch, or
//! that this is not known. If no layer has it, it has not changed since. The bytes are read before
//! the change is performed, under the lock that the note of every other change needs, too: so
//! whoever is first in an epoch reads what was there when it began, as operations of one epoch end
//! before the next one begins.
//!
//! **Bounds.** Only bytes that the kernel holds in memory are kept; files of a volume, which reads
//! what is overwritten anyway, are read. Each note takes room, too. When all room is taken, what
//! was kept in earlier epochs goes; after that, further bytes are not known; and when not even that
//! can be noted, nothing is known of this epoch. One file takes at most half of the room in an
//! epoch.
//!
//! **Locks.** Nodes are divided among shards, so that programs that write different files seldom
//! wait for each other. `known_from` is raised before anything is forgotten, and is looked at after
//! layers were read: so nobody takes a gap that was forgotten for bytes that did not change.
//!
//! **Nothing rests on it.** Bytes that were changed past the gate are not noticed here; the log
//! reports such files as a whole. A backup that sends copies of what was here proves the result to
//! the server. Nothing outlives the process.
//!
//! Out of scope: contents of removed files.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use byteback_extents::{ByteRange, ExtentMap, ExtentValue};
use byteback_host::tree::Inode;
use byteback_model::NodeId;
use byteback_oplog::{Epoch, Log};
use parking_lot::Mutex;

use crate::page_cache::{CachedBytes, read_at_once};

/// The usual room for kept bytes.
pub const ROOM_BYTES_DEFAULT: u64 = 16 << 20;

/// The room that an extent takes beside its bytes, and a file in an epoch.
const EXTENT_ROOM_BYTES: u64 = 128;
const LAYER_ROOM_BYTES: u64 = 512;

/// The share of the room that only notes without bytes take, as a divisor.
const NOTES_SHARE: u64 = 8;

/// The number of locks among which the nodes are divided.
const SHARDS: usize = 16;

/// The old bytes of a tree's files, see the module.
pub struct BeforeImages {
    log: Arc<Log>,
    room_bytes: u64,
    taken_bytes: AtomicU64,
    /// The first epoch since which every change was noted; `u64::MAX` before anything is.
    known_from: AtomicU64,
    shards: [Mutex<Layers>; SHARDS],
}

/// The layers of files, oldest first.
type Layers = HashMap<NodeId, Vec<Layer>>;

/// A file as it was at a moment, as far as that is known.
#[derive(Debug)]
pub struct BeforeImage {
    /// The length of the file.
    pub len_bytes: u64,
    /// Its bytes where it changed since, by their offsets, ascending.
    pub pieces: Vec<(u64, OldBytes)>,
}

/// Bytes that were overwritten.
#[derive(Clone, Debug)]
pub struct OldBytes {
    all: Arc<[u8]>,
    start: usize,
    end: usize,
}

impl OldBytes {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.all.get(self.start..self.end).unwrap_or_default()
    }
}

/// The first state, in an epoch, of the bytes that changed in it.
#[derive(Debug)]
struct Layer {
    epoch: Epoch,
    /// The length of the file when the epoch began.
    len_bytes: u64,
    taken_bytes: u64,
    old: ExtentMap<Old>,
}

/// The content of a range before it changed.
#[derive(Clone, Debug)]
enum Old {
    Unknown,
    /// The bytes from this one on.
    At(Arc<[u8]>, usize),
}

impl ExtentValue for Old {
    fn advance(&self, by_bytes: u64) -> Self {
        match self {
            Self::Unknown => Self::Unknown,
            Self::At(bytes, start) => {
                let by = usize::try_from(by_bytes).unwrap_or(usize::MAX);
                Self::At(Arc::clone(bytes), start.saturating_add(by))
            }
        }
    }

    fn continues(&self, len_bytes: u64, next: &Self) -> bool {
        match (self, next) {
            (Self::Unknown, Self::Unknown) => true,
            (Self::At(bytes, start), Self::At(next_bytes, next_start)) => {
                Arc::ptr_eq(bytes, next_bytes) && *start as u64 + len_bytes == *next_start as u64
            }
            _ => false,
        }
    }
}

/// There is no room for something that is to be noted.
struct Full;

impl BeforeImages {
    /// Keeps nothing so far.
    #[must_use]
    pub fn new(log: Arc<Log>, room_bytes: u64) -> Self {
        Self {
            log,
            room_bytes,
            taken_bytes: AtomicU64::new(0),
            known_from: AtomicU64::new(u64::MAX),
            shards: Default::default(),
        }
    }

    /// Begins to keep bytes with this epoch, which must not have begun, or of which no change has
    /// passed the gate so far; unless that has begun already.
    pub fn begin(&self, first: Epoch) {
        let _ = self
            .known_from
            .compare_exchange(u64::MAX, first.0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Forgets what nobody needs whose mark is this epoch or a later one.
    pub fn forget_before(&self, epoch: Epoch) {
        if self.known_from.load(Ordering::SeqCst) == u64::MAX {
            return;
        }
        self.known_from.fetch_max(epoch.0, Ordering::SeqCst);
        for shard in &self.shards {
            let mut freed_bytes = 0;
            shard.lock().retain(|_, layers| {
                let gone = layers.extract_if(.., |layer| layer.epoch < epoch);
                freed_bytes += gone.map(|layer| layer.taken_bytes).sum::<u64>();
                !layers.is_empty()
            });
            self.taken_bytes.fetch_sub(freed_bytes, Ordering::SeqCst);
        }
    }

    /// Bytes of `node` are about to change through `fd`, in these ranges.
    pub(crate) fn before_content(&self, node: NodeId, fd: &Inode, ranges: &[ByteRange]) {
        if self.known_from.load(Ordering::Relaxed) == u64::MAX || ranges.is_empty() {
            return;
        }
        // It stays the same as long as the change is under way.
        let epoch = self.log.epoch();
        let at_once = read_at_once(ranges);
        let ranges = at_once.as_ref().map_or(ranges, std::slice::from_ref);
        let has_earlier = || self.known_from.load(Ordering::SeqCst) < epoch.0;
        if self.note(node, epoch, fd, ranges, has_earlier()).is_ok() {
            return;
        }
        self.forget_before(epoch);
        if self.note(node, epoch, fd, ranges, false).is_err() {
            // Nothing more can be noted of this epoch, and what was noted is of no use without.
            self.forget_before(epoch.next());
        }
    }

    /// Notes the first state of these ranges. If bytes find no room they are unknown, unless
    /// earlier epochs have room to give.
    fn note(
        &self,
        node: NodeId,
        epoch: Epoch,
        fd: &Inode,
        ranges: &[ByteRange],
        has_earlier: bool,
    ) -> Result<(), Full> {
        let mut layers = self.shard_of(node).lock();
        if epoch.0 < self.known_from.load(Ordering::SeqCst) {
            return Ok(());
        }
        let layers = layers.entry(node).or_default();
        if layers.last().is_none_or(|last| last.epoch < epoch) {
            self.take_for_notes(LAYER_ROOM_BYTES)?;
            layers.push(Layer::new(epoch, fd));
        }
        let Some(layer) = layers.last_mut().filter(|layer| layer.epoch == epoch) else {
            return Ok(());
        };
        let all = ByteRange::new(0, layer.len_bytes);
        let within = ranges.iter().filter_map(|range| range.intersect(all?));
        let gaps: Vec<ByteRange> = within.flat_map(|range| layer.old.gaps(range)).collect();
        let mut cached = CachedBytes::of(fd);
        for gap in gaps {
            let wanted_bytes = gap.len_bytes().saturating_add(EXTENT_ROOM_BYTES);
            let is_fit = layer.taken_bytes.saturating_add(wanted_bytes) <= self.room_bytes / 2;
            let has_room = self.has_room(wanted_bytes);
            let bytes = match is_fit && (has_room || has_earlier) {
                true => cached.read(gap.start(), gap.len_bytes()),
                false => None,
            };
            match bytes {
                Some(_) if !has_room => return Err(Full),
                Some(bytes) => {
                    self.taken_bytes.fetch_add(wanted_bytes, Ordering::SeqCst);
                    layer.taken_bytes += wanted_bytes;
                    layer.old.insert(gap, Old::At(bytes.into(), 0));
                }
                None => {
                    self.take_for_notes(EXTENT_ROOM_BYTES)?;
                    layer.taken_bytes += EXTENT_ROOM_BYTES;
                    layer.old.insert(gap, Old::Unknown);
                }
            }
        }
        Ok(())
    }

    fn shard_of(&self, node: NodeId) -> &Mutex<Layers> {
        let [first, ..] = &self.shards;
        let number = usize::try_from(node.0).unwrap_or(0) % SHARDS;
        self.shards.get(number).unwrap_or(first)
    }

    fn has_room(&self, more_bytes: u64) -> bool {
        let taken_bytes = self.taken_bytes.load(Ordering::SeqCst);
        taken_bytes.saturating_add(more_bytes) <= self.room_bytes - self.room_bytes / NOTES_SHARE
    }

    /// Takes room for something that has to be noted.
    fn take_for_notes(&self, more_bytes: u64) -> Result<(), Full> {
        if self.taken_bytes.load(Ordering::SeqCst).saturating_add(more_bytes) > self.room_bytes {
            return Err(Full);
        }
        self.taken_bytes.fetch_add(more_bytes, Ordering::SeqCst);
        Ok(())
    }

    /// `node` as it was when the epoch `since` began, where it changed before `until` began. `None`
    /// if that is not known.
    #[must_use]
    pub fn image(&self, node: NodeId, since: Epoch, until: Epoch) -> Option<BeforeImage> {
        let mut old = ExtentMap::new();
        let mut len_bytes = None;
        let layers = self.shard_of(node).lock();
        let of_node = layers.get(&node)?.iter();
        for layer in of_node
            .filter(|layer| since <= layer.epoch && layer.epoch < until)
            .rev()
        {
            old.overlay(&layer.old);
            len_bytes = Some(layer.len_bytes);
        }
        drop(layers);
        let len_bytes = len_bytes?;
        if since.0 < self.known_from.load(Ordering::SeqCst) {
            return None;
        }
        // A later layer may have what the file gained in between.
        old.truncate(len_bytes);
        let pieces = old.iter().filter_map(|(range, old)| match old {
            Old::Unknown => None,
            Old::At(all, start) => {
                let end = start.saturating_add(usize::try_from(range.len_bytes()).ok()?);
                let old = OldBytes {
                    all: Arc::clone(all),
                    start: *start,
                    end,
                };
                Some((range.start(), old))
            }
        });
        Some(BeforeImage {
            len_bytes,
            pieces: pieces.collect(),
        })
    }
}

impl Layer {
    /// Nothing noted so far of a file in an epoch; of one that cannot be looked at, nothing is
    /// known.
    fn new(epoch: Epoch, fd: &Inode) -> Self {
        let mut old = ExtentMap::new();
        let len_bytes = fd.stat().map(|stat| stat.size);
        if let (Err(_), Some(all)) = (&len_bytes, ByteRange::new(0, u64::MAX)) {
            old.insert(all, Old::Unknown);
        }
        Self {
            epoch,
            len_bytes: len_bytes.unwrap_or(0),
            taken_bytes: LAYER_ROOM_BYTES,
            old,
        }
    }
}

#[cfg(test)]
mod tests;
