//! The layers of a volume's log, as versioned inodes beside the files (SolFS, sections 3.2.2 and
//! 4.2).
//!
//! In the root of the volume the directory [`LAYERS`] has a file for each layer: of one node and
//! one epoch. Its content is the layer, which nearly always lies in its inode; its extended
//! attributes are the paper's, little-endian:
//!
//! | name | value |
//! |---|---|
//! | `ino_ver` | u64: the epoch that the layer begins with |
//! | `ver_link` | u32: how many marks and pending cuts begin with it, as of when the database wrote it last |
//! | `ino_flag` | u8: 1 where its ranges are counted in pages |
//! | `next_ino` | u32: the inode of the node's next older layer; 0 if there is none |
//! | `state` | what the file looked like when what was logged was added last, and what the time before: see below |
//!
//! Its name is `NODE.EPOCH`, both of 16 hexadecimal digits. The directory has the attribute `log`,
//! the number of the log that the layers are of.
//!
//! **In step with the files.** This is a [`Companion`] of the volume: before a checkpoint it adds
//! what is logged of each file and not in the database yet, and notes what the file looks like;
//! before a file is synced by itself it does so for this file. So a checkpoint holds data and log
//! of one moment. A file that is found after a crash with other times than its layer notes was not
//! added to completely (the volume was full, or is damaged), and nothing is claimed of it: the
//! paper's all-or-nothing, with the state of the file itself in place of its dirty flag. Of two
//! states that are noted the older one counts too: a file that was being synced when the power went
//! is as before, and its layer says more.
//!
//! Out of scope: deciding which layers there are (the log does), reading them.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use byteback_model::NodeId;
use byteback_oplog::{Epoch, Fence, FoundLayer, KeptLayer, LayerKeeper, TreeId, Unit, WaitingLayer, WaitingLayers};
use byteback_volume::{Companion, Inside, NewFile, Volume, VolumeError};
use parking_lot::Mutex;

use super::Shared;
use super::inode::{failed, stat_of};

/// The directory of the layers, in the root of the volume.
pub const LAYERS: &str = "layers";

const VERSION: &[u8] = b"ino_ver";
const LINKS: &[u8] = b"ver_link";
const FLAG: &[u8] = b"ino_flag";
const NEXT: &[u8] = b"next_ino";
const STATE: &[u8] = b"state";
const LOG: &[u8] = b"log";

/// In `ino_flag`.
const PAGES: u8 = 1;

/// A layer of the most extents is far shorter.
const LAYER_LEN_BYTES_MAX: u64 = 16 << 20;

/// A state of a file: inode, length, times, mode and owners.
const STATE_LEN_BYTES: usize = 40;

/// Blocks that may have to be written for one file: the inode of its layer, a page or two of a long
/// one, and the directory.
const BLOCKS_PER_FILE: u32 = 8;

/// Names that are listed at once.
const LIST_COUNT: usize = 1024;

type Result<T> = byteback_volume::Result<T>;

/// The inode of each layer.
#[derive(Debug)]
struct Index {
    dir: u32,
    inodes: Mutex<BTreeMap<(NodeId, Epoch), u32>>,
}

/// The keeper of the layers; see the module.
#[derive(Debug)]
pub(super) struct LayerInodes {
    shared: Arc<Shared>,
    index: Arc<Index>,
}

/// The volume's companion. It must not hold the volume itself.
struct Step {
    index: Arc<Index>,
    waiting: Arc<dyn WaitingLayers>,
}

fn name_of(node: NodeId, epoch: Epoch) -> Vec<u8> {
    format!("{:016x}.{:016x}", node.0, epoch.0).into_bytes()
}

fn place_of(name: &[u8]) -> Option<(NodeId, Epoch)> {
    let (node, epoch) = std::str::from_utf8(name).ok()?.split_once('.')?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let place = (NodeId(number(node)?), Epoch(number(epoch)?));
    (name_of(place.0, place.1) == name).then_some(place)
}

/// The state of a file, as it is noted.
fn state_of(inside: &mut Inside<'_>, ino: u32) -> Result<([u8; STATE_LEN_BYTES], Fence)> {
    let attributes = inside.attributes(ino)?;
    let stat = stat_of(&attributes).map_err(|_| VolumeError::Invalid("unknown file type"))?;
    let fence = Fence::of(&stat);
    let mut state = [0; STATE_LEN_BYTES];
    let numbers = [
        &ino.to_le_bytes()[..],
        &fence.size_bytes.to_le_bytes(),
        &fence.mtime_ns.to_le_bytes(),
        &fence.ctime_ns.to_le_bytes(),
        &fence.mode.to_le_bytes(),
        &fence.uid.to_le_bytes(),
        &fence.gid.to_le_bytes(),
    ];
    for (to, from) in state.iter_mut().zip(numbers.concat()) {
        *to = from;
    }
    Ok((state, fence))
}

impl Index {
    fn inode(&self, node: NodeId, epoch: Epoch) -> Option<u32> {
        self.inodes.lock().get(&(node, epoch)).copied()
    }

    /// The node's next older layer, and its next newer one.
    fn neighbours(&self, node: NodeId, epoch: Epoch) -> (Option<u32>, Option<u32>) {
        let inodes = self.inodes.lock();
        let older = inodes.range((node, Epoch(0))..(node, epoch)).next_back();
        let behind = (
            std::ops::Bound::Excluded((node, epoch)),
            std::ops::Bound::Included((node, Epoch(u64::MAX))),
        );
        let newer = inodes.range(behind).next();
        (older.map(|(_, ino)| *ino), newer.map(|(_, ino)| *ino))
    }

    /// Puts a layer, made if it is missing; answers its inode.
    fn put(&self, inside: &mut Inside<'_>, (node, epoch): (NodeId, Epoch), layer: &KeptLayer) -> Result<u32> {
        let ino = match self.inode(node, epoch) {
            Some(ino) => {
                // Damaged content is written anew.
                if inside.content(ino, LAYER_LEN_BYTES_MAX).ok().as_deref() != Some(&layer.bytes) {
                    inside.set_content(ino, &layer.bytes)?;
                }
                ino
            }
            None => self.make(inside, (node, epoch), &layer.bytes)?,
        };
        let flag = match layer.unit {
            Unit::Byte => 0,
            Unit::Page => PAGES,
        };
        inside.set_attribute(ino, FLAG, &[flag])?;
        if let Some(links) = layer.links {
            inside.set_attribute(ino, LINKS, &links.to_le_bytes())?;
        }
        Ok(ino)
    }

    fn make(&self, inside: &mut Inside<'_>, (node, epoch): (NodeId, Epoch), bytes: &[u8]) -> Result<u32> {
        let name = name_of(node, epoch);
        let new = NewFile {
            mode: libc::S_IFREG | 0o600,
            ..NewFile::default()
        };
        let ino = inside.make(self.dir, &name, &new)?;
        let (older, newer) = self.neighbours(node, epoch);
        let mut fill = || {
            inside.set_content(ino, bytes)?;
            inside.set_attribute(ino, VERSION, &epoch.0.to_le_bytes())?;
            inside.set_attribute(ino, LINKS, &0u32.to_le_bytes())?;
            inside.set_attribute(ino, NEXT, &older.unwrap_or(0).to_le_bytes())?;
            match newer {
                Some(newer) => inside.set_attribute(newer, NEXT, &ino.to_le_bytes()),
                None => Ok(()),
            }
        };
        if let Err(error) = fill() {
            inside.unlink(self.dir, &name)?;
            return Err(error);
        }
        self.inodes.lock().insert((node, epoch), ino);
        Ok(ino)
    }

    fn remove(&self, inside: &mut Inside<'_>, node: NodeId, epoch: Epoch) -> Result<()> {
        let Some(ino) = self.inode(node, epoch) else {
            return Ok(());
        };
        let next = inside.attribute(ino, NEXT)?;
        if let (_, Some(newer)) = self.neighbours(node, epoch) {
            inside.set_attribute(newer, NEXT, &next.unwrap_or_else(|| vec![0; 4]))?;
        }
        inside.unlink(self.dir, &name_of(node, epoch))?;
        self.inodes.lock().remove(&(node, epoch));
        Ok(())
    }

    /// Adds what waits of a file, and notes what the file looks like. Answers the inode of the
    /// layer, if there is one.
    fn add(&self, inside: &mut Inside<'_>, waiting: &WaitingLayer) -> Result<Option<u32>> {
        let file = u32::try_from(waiting.inode).map_err(|_| VolumeError::NotFound)?;
        let place = (waiting.node, waiting.epoch);
        let there = self.inode(place.0, place.1);
        let ino = match there {
            None if waiting.is_of_attributes() => return Ok(None),
            Some(ino) if waiting.is_of_attributes() => ino,
            _ => {
                let before = there.map(|ino| inside.content(ino, LAYER_LEN_BYTES_MAX)).transpose();
                // One that cannot be read is damaged, and says all of the file.
                let before = before.unwrap_or_else(|_| Some(Vec::new()));
                self.put(inside, place, &waiting.over(before.as_deref()))?
            }
        };
        let (now, _) = state_of(inside, file)?;
        let noted = inside.attribute(ino, STATE)?.unwrap_or_default();
        if !noted.starts_with(&now) {
            let before = noted.get(..STATE_LEN_BYTES).unwrap_or_default();
            inside.set_attribute(ino, STATE, &[&now[..], before].concat())?;
        }
        Ok(Some(ino))
    }

    /// The state of the file that this is a layer of, if it is as noted.
    fn explained(&self, inside: &mut Inside<'_>, ino: u32) -> Option<Fence> {
        let noted = inside.attribute(ino, STATE).ok()??;
        let states = noted.as_chunks::<STATE_LEN_BYTES>().0;
        let file = u32::from_le_bytes(*states.first()?.first_chunk()?);
        let (now, fence) = state_of(inside, file).ok()?;
        states.contains(&now).then_some(fence)
    }
}

impl LayerInodes {
    pub(super) fn new(shared: &Arc<Shared>, dir: u32) -> Self {
        let inodes = Mutex::default();
        Self {
            shared: Arc::clone(shared),
            index: Arc::new(Index { dir, inodes }),
        }
    }

    fn volume(&self) -> &Volume {
        &self.shared.volume
    }

    fn listed(&self) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut from = 0;
        loop {
            let listed = self.volume().list(self.index.dir, from, LIST_COUNT)?;
            let Some(last) = listed.last() else {
                return Ok(names);
            };
            from = last.next;
            let mut inodes = self.index.inodes.lock();
            for entry in listed {
                if let Some(place) = place_of(&entry.name) {
                    inodes.insert(place, entry.ino);
                }
                names.push(entry.name);
            }
        }
    }

    fn find(&self, tree: TreeId) -> Result<Vec<FoundLayer>> {
        let volume = self.volume();
        let dir = self.index.dir;
        self.index.inodes.lock().clear();
        let names = self.listed()?;
        let log = tree.0.to_le_bytes();
        let is_ours = volume.look_at_once(|inside| inside.attribute(dir, LOG))? == Some(log.to_vec());
        if !is_ours {
            // Of a log that was lost or taken away: to this one, all files are new.
            for name in &names {
                volume.unlink(dir, name)?;
            }
            self.index.inodes.lock().clear();
            volume.at_once(|inside| inside.set_attribute(dir, LOG, &log))?;
            volume.sync()?;
        }
        let inodes = self.index.inodes.lock().clone();
        let found = inodes.into_iter().map(|((node, epoch), ino)| {
            let explained = volume.look_at_once(|inside| Ok(self.index.explained(inside, ino)))?;
            Ok(FoundLayer { node, epoch, explained })
        });
        found.collect()
    }
}

impl LayerKeeper for LayerInodes {
    fn found(&self, tree: TreeId) -> io::Result<Vec<FoundLayer>> {
        self.find(tree).map_err(failed)
    }

    fn begin(&self, waiting: Arc<dyn WaitingLayers>) {
        let index = Arc::clone(&self.index);
        self.volume().set_companion(Arc::new(Step { index, waiting }));
    }

    fn get(&self, node: NodeId, epoch: Epoch) -> io::Result<Option<Vec<u8>>> {
        let got = self
            .volume()
            .look_at_once(|inside| match self.index.inode(node, epoch) {
                Some(ino) => inside.content(ino, LAYER_LEN_BYTES_MAX).map(Some),
                None => Ok(None),
            });
        match got {
            // As if it were gone: all of the file is reported.
            Err(VolumeError::Damaged { .. }) => Ok(None),
            got => got.map_err(failed),
        }
    }

    fn put(&self, node: NodeId, epoch: Epoch, layer: &KeptLayer) -> io::Result<()> {
        let put = self
            .volume()
            .at_once(|inside| self.index.put(inside, (node, epoch), layer));
        put.map(drop).map_err(failed)
    }

    fn remove(&self, node: NodeId, epoch: Epoch) -> io::Result<()> {
        let removed = self.volume().at_once(|inside| self.index.remove(inside, node, epoch));
        removed.map_err(failed)
    }

    fn sync(&self) -> io::Result<()> {
        self.volume().sync().map_err(failed)
    }
}

impl Companion for Step {
    fn before_checkpoint(&self, inside: &mut Inside<'_>) {
        for waiting in self.waiting.all() {
            // Of what there is no room for the layer does not note what the file looks like now:
            // nothing is claimed of it.
            let _ = self.index.add(inside, &waiting);
        }
    }

    fn before_sync(&self, inside: &mut Inside<'_>, ino: u32) -> Vec<u32> {
        let waiting = self.waiting.of(ino.into());
        let added = waiting
            .iter()
            .filter_map(|waiting| self.index.add(inside, waiting).ok().flatten());
        added.collect()
    }

    fn waiting_blocks(&self) -> u32 {
        let count = u32::try_from(self.waiting.count()).unwrap_or(u32::MAX);
        count.saturating_mul(BLOCKS_PER_FILE)
    }
}
