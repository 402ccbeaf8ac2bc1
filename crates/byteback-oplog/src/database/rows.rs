//! The rows of the packed tables, each told as its difference from the row before: who the nodes
//! are, and where.
//!
//! Neighbours are alike. Files that were made together have numbers, inodes and times close to each
//! other, the same owner and mode, and names that begin alike; so most fields take a byte or two.
//!
//! Differences wrap, so that any two values have one. The first row of a pack differs from a row of
//! zeros.

use std::cmp::Ordering;

use byteback_model::NodeId;

use crate::codec::{Malformed, Reader, put_bytes, put_flagged, put_signed, put_varint, unzigzag, zigzag};
use crate::ids::Epoch;
use crate::packed::{Row, RowKey};
use crate::record::{DiskKey, Fence, NodeRecord, kind_code, kind_from_code};

/// A row of `nodes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeRow {
    pub(crate) node: NodeId,
    pub(crate) record: NodeRecord,
}

/// A row of `keys`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRow {
    pub(crate) key: DiskKey,
    pub(crate) node: NodeId,
}

/// A row of `names`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NameRow {
    pub(crate) parent: NodeId,
    pub(crate) name: Vec<u8>,
    pub(crate) child: NodeId,
}

/// A row of `places`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlaceRow {
    pub(crate) node: NodeId,
    pub(crate) parent: NodeId,
    pub(crate) name: Vec<u8>,
}

/// Bits of the byte in a row of `nodes` that has the kind in its lowest three bits.
mod bit {
    pub(super) const FENCED: u8 = 8;
    /// Mode, owner and group are those of the row before, which is fenced too.
    pub(super) const SAME_OWNER: u8 = 16;
    pub(super) const OTHER_DEVICE: u8 = 32;
    pub(super) const ALL: u8 = 7 | FENCED | SAME_OWNER | OTHER_DEVICE;
}

fn put_difference(out: &mut Vec<u8>, value: u64, from: u64) {
    put_signed(out, value.wrapping_sub(from).cast_signed());
}

fn take_difference(reader: &mut Reader<'_>, from: u64) -> Result<u64, Malformed> {
    Ok(from.wrapping_add(reader.signed()?.cast_unsigned()))
}

fn put_time(out: &mut Vec<u8>, time_ns: i64, from_ns: i64) {
    put_signed(out, time_ns.wrapping_sub(from_ns));
}

fn take_time(reader: &mut Reader<'_>, from_ns: i64) -> Result<i64, Malformed> {
    Ok(from_ns.wrapping_add(reader.signed()?))
}

fn take_small(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    u32::try_from(reader.varint()?).map_err(|_| Malformed)
}

/// The time from which that of a fence is told: the birth of its node, or that of the row before
/// where nodes have none.
fn base_of_ctime(key: &DiskKey, before: Option<&Fence>) -> i64 {
    match key.birth_ns {
        0 => before.map_or(0, |before| before.ctime_ns),
        birth_ns => birth_ns,
    }
}

impl Row for NodeRow {
    type Key = u64;

    const WHAT: &'static str = "node record";

    fn key(&self) -> u64 {
        self.node.0
    }

    fn cmp_key(&self, key: &u64) -> Ordering {
        self.node.0.cmp(key)
    }

    fn put(&self, before: Option<&Self>, out: &mut Vec<u8>) {
        let (key, fence) = (&self.record.key, self.record.fence);
        let last = before.map_or(DiskKey::NONE, |before| before.record.key);
        let last_fence = before.and_then(|before| before.record.fence);
        let owner = |fence: Fence| (fence.mode, fence.uid, fence.gid);
        let is_same_owner = fence.is_some() && fence.map(owner) == last_fence.map(owner);
        put_varint(out, self.node.0.wrapping_sub(before.map_or(0, |before| before.node.0)));
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        out.push(
            kind_code(self.record.kind)
                | flag(fence.is_some(), bit::FENCED)
                | flag(is_same_owner, bit::SAME_OWNER)
                | flag(key.device != last.device, bit::OTHER_DEVICE),
        );
        if key.device != last.device {
            put_varint(out, key.device);
        }
        put_difference(out, key.inode, last.inode);
        put_time(out, key.birth_ns, last.birth_ns);
        put_difference(out, self.record.born.0, before.map_or(0, |before| before.record.born.0));
        if let Some(fence) = fence {
            put_varint(out, fence.size_bytes);
            put_time(out, fence.ctime_ns, base_of_ctime(key, last_fence.as_ref()));
            put_time(out, fence.mtime_ns, fence.ctime_ns);
            if !is_same_owner {
                put_varint(out, u64::from(fence.mode));
                put_varint(out, u64::from(fence.uid));
                put_varint(out, u64::from(fence.gid));
            }
        }
    }

    fn take(reader: &mut Reader<'_>, before: Option<&Self>) -> Result<Self, Malformed> {
        let last = before.map_or(DiskKey::NONE, |before| before.record.key);
        let last_fence = before.and_then(|before| before.record.fence);
        let node = reader.varint()?.wrapping_add(before.map_or(0, |before| before.node.0));
        let flags = reader.byte()?;
        if flags & !bit::ALL != 0 {
            return Err(Malformed);
        }
        let has = |bit| flags & bit != 0;
        let kind = kind_from_code(flags & 7)?;
        let key = DiskKey {
            device: if has(bit::OTHER_DEVICE) {
                reader.varint()?
            } else {
                last.device
            },
            inode: take_difference(reader, last.inode)?,
            birth_ns: take_time(reader, last.birth_ns)?,
        };
        let born = Epoch(take_difference(
            reader,
            before.map_or(0, |before| before.record.born.0),
        )?);
        let fence = if has(bit::FENCED) {
            let size_bytes = reader.varint()?;
            let ctime_ns = take_time(reader, base_of_ctime(&key, last_fence.as_ref()))?;
            let mtime_ns = take_time(reader, ctime_ns)?;
            let (mode, uid, gid) = match last_fence {
                Some(last) if has(bit::SAME_OWNER) => (last.mode, last.uid, last.gid),
                None if has(bit::SAME_OWNER) => return Err(Malformed),
                _ => (take_small(reader)?, take_small(reader)?, take_small(reader)?),
            };
            Some(Fence {
                size_bytes,
                mtime_ns,
                ctime_ns,
                mode,
                uid,
                gid,
            })
        } else {
            None
        };
        let record = NodeRecord { kind, key, born, fence };
        Ok(Self {
            node: NodeId(node),
            record,
        })
    }
}

impl Row for KeyRow {
    type Key = (u64, u64, i64);

    const WHAT: &'static str = "key of a node";

    fn key(&self) -> (u64, u64, i64) {
        self.key.tuple()
    }

    fn cmp_key(&self, key: &(u64, u64, i64)) -> Ordering {
        self.key.tuple().cmp(key)
    }

    fn put(&self, before: Option<&Self>, out: &mut Vec<u8>) {
        let last = before.map_or(DiskKey::NONE, |before| before.key);
        let is_other_device = self.key.device != last.device;
        let inode_difference = self.key.inode.wrapping_sub(last.inode).cast_signed();
        put_flagged(out, is_other_device, zigzag(inode_difference));
        if is_other_device {
            put_varint(out, self.key.device);
        }
        put_time(out, self.key.birth_ns, last.birth_ns);
        put_difference(out, self.node.0, before.map_or(0, |before| before.node.0));
    }

    fn take(reader: &mut Reader<'_>, before: Option<&Self>) -> Result<Self, Malformed> {
        let last = before.map_or(DiskKey::NONE, |before| before.key);
        let (is_other_device, inode_difference) = reader.flagged()?;
        let key = DiskKey {
            device: if is_other_device { reader.varint()? } else { last.device },
            inode: last.inode.wrapping_add(unzigzag(inode_difference).cast_unsigned()),
            birth_ns: take_time(reader, last.birth_ns)?,
        };
        let node = NodeId(take_difference(reader, before.map_or(0, |before| before.node.0))?);
        Ok(Self { key, node })
    }
}

/// How many bytes `name` has in common with the name before it, and the others.
fn split_name<'n>(name: &'n [u8], before: Option<&[u8]>) -> (u64, &'n [u8]) {
    let pairs = name.iter().zip(before.unwrap_or_default());
    let shared = pairs.take_while(|(here, there)| here == there).count();
    (shared as u64, name.get(shared..).unwrap_or_default())
}

fn join_name(shared: u64, before: Option<&[u8]>, rest: &[u8]) -> Result<Vec<u8>, Malformed> {
    let shared = usize::try_from(shared).map_err(|_| Malformed)?;
    let shared = before.unwrap_or_default().get(..shared).ok_or(Malformed)?;
    Ok([shared, rest].concat())
}

impl Row for NameRow {
    type Key = (u64, &'static [u8]);

    const WHAT: &'static str = "name of a node";

    fn key(&self) -> RowKey<'_, Self> {
        (self.parent.0, &self.name)
    }

    fn cmp_key(&self, key: &RowKey<'_, Self>) -> Ordering {
        self.key().cmp(key)
    }

    fn put(&self, before: Option<&Self>, out: &mut Vec<u8>) {
        let last = before.map_or((0, 0), |before| (before.parent.0, before.child.0));
        let (shared, rest) = split_name(&self.name, before.map(|before| before.name.as_slice()));
        let is_other_parent = self.parent.0 != last.0;
        put_flagged(out, is_other_parent, shared);
        if is_other_parent {
            put_varint(out, self.parent.0.wrapping_sub(last.0));
        }
        put_bytes(out, rest);
        put_difference(out, self.child.0, last.1);
    }

    fn take(reader: &mut Reader<'_>, before: Option<&Self>) -> Result<Self, Malformed> {
        let last = before.map_or((0, 0), |before| (before.parent.0, before.child.0));
        let (is_other_parent, shared) = reader.flagged()?;
        let parent = if is_other_parent {
            last.0.wrapping_add(reader.varint()?)
        } else {
            last.0
        };
        let name = join_name(shared, before.map(|before| before.name.as_slice()), reader.bytes()?)?;
        Ok(Self {
            parent: NodeId(parent),
            name,
            child: NodeId(take_difference(reader, last.1)?),
        })
    }
}

impl Row for PlaceRow {
    type Key = (u64, u64, &'static [u8]);

    const WHAT: &'static str = "place of a node";

    fn key(&self) -> RowKey<'_, Self> {
        (self.node.0, self.parent.0, &self.name)
    }

    fn cmp_key(&self, key: &RowKey<'_, Self>) -> Ordering {
        self.key().cmp(key)
    }

    fn put(&self, before: Option<&Self>, out: &mut Vec<u8>) {
        let last = before.map_or((0, 0), |before| (before.node.0, before.parent.0));
        let (shared, rest) = split_name(&self.name, before.map(|before| before.name.as_slice()));
        let is_other_parent = self.parent.0 != last.1;
        put_varint(out, self.node.0.wrapping_sub(last.0));
        put_flagged(out, is_other_parent, shared);
        if is_other_parent {
            put_difference(out, self.parent.0, last.1);
        }
        put_bytes(out, rest);
    }

    fn take(reader: &mut Reader<'_>, before: Option<&Self>) -> Result<Self, Malformed> {
        let last = before.map_or((0, 0), |before| (before.node.0, before.parent.0));
        let node = last.0.wrapping_add(reader.varint()?);
        let (is_other_parent, shared) = reader.flagged()?;
        let parent = if is_other_parent {
            take_difference(reader, last.1)?
        } else {
            last.1
        };
        let name = join_name(shared, before.map(|before| before.name.as_slice()), reader.bytes()?)?;
        Ok(Self {
            node: NodeId(node),
            parent: NodeId(parent),
            name,
        })
    }
}

#[cfg(test)]
mod tests;
