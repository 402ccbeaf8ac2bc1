//! Extended attributes: in the inode while they fit there, otherwise all of them in a node of their
//! own.
//!
//! ```text
//! attributes = (name_len u8, value_len u16, name, value)* and a zero, if there is room for one
//! ```

use crate::error::{Result, VolumeError};
use crate::format::{Footer, INDIRECT_NODES, Nid, NodeBlock, XATTR_INLINE_LEN_BYTES};
use crate::state::State;

/// Room in a node for them.
const NODE_LEN_BYTES: usize = 4 * (crate::format::DIRECT_SLOTS as usize);

const _: () = assert!(INDIRECT_NODES == 5);

const WHAT: &str = "extended attributes";

/// Condition of `setxattr` on the existence of the attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetAttribute {
    /// No condition.
    Any,
    /// The attribute must not exist.
    Create,
    /// The attribute must exist.
    Replace,
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn parse(bytes: &[u8]) -> Pairs {
    let mut pairs = Vec::new();
    let mut rest = bytes;
    while let Some(([name_len, low, high], behind)) = rest.split_first_chunk() {
        let (name_len, value_len) = (usize::from(*name_len), usize::from(u16::from_le_bytes([*low, *high])));
        let Some((name, behind)) = behind.split_at_checked(name_len).filter(|_| name_len > 0) else {
            break;
        };
        let Some((value, behind)) = behind.split_at_checked(value_len) else {
            break;
        };
        pairs.push((name.to_vec(), value.to_vec()));
        rest = behind;
    }
    pairs
}

fn compose(pairs: &Pairs) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in pairs {
        bytes.push(u8::try_from(name.len()).unwrap_or(0));
        bytes.extend_from_slice(&u16::try_from(value.len()).unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
    }
    bytes
}

impl State {
    fn pairs(&mut self, ino: Nid) -> Result<Pairs> {
        let inode = self.inode(ino)?;
        match inode.xattr_node() {
            Nid::NONE => Ok(parse(inode.xattrs())),
            node => Ok(parse(NodeBlock::body(self.node_of(ino, node, Footer::XATTRS, WHAT)?))),
        }
    }

    fn set_pairs(&mut self, ino: Nid, pairs: &Pairs) -> Result<()> {
        self.durability.since.attributes_of.insert(ino);
        let bytes = compose(pairs);
        let mut node = self.inode(ino)?.xattr_node();
        if bytes.len() > NODE_LEN_BYTES {
            return Err(VolumeError::AttributesTooLarge(NODE_LEN_BYTES));
        }
        let (inline, outside) = match bytes.len() <= XATTR_INLINE_LEN_BYTES {
            true => (&bytes[..], None),
            false => (&[][..], Some(&bytes[..])),
        };
        let mut blocks = 0i64;
        match (outside, node) {
            (Some(_), Nid::NONE) => {
                node = self.new_node(Some(ino), Footer::XATTRS)?;
                blocks = 1;
            }
            (None, Nid::NONE) | (Some(_), _) => {}
            (None, unused) => {
                self.free_node_of(ino, unused)?;
                node = Nid::NONE;
                blocks = -1;
            }
        }
        if let Some(outside) = outside {
            self.node_of(ino, node, Footer::XATTRS, WHAT)?;
            put(NodeBlock::body_mut(self.node_mut(node, WHAT)?), outside);
        }
        let now = self.now();
        self.change_inode(ino, |inode| {
            put(inode.xattrs_mut(), inline);
            inode.set_xattr_node(node);
            inode.set_blocks(inode.blocks().saturating_add_signed(blocks));
            inode.set_changed(now);
        })
    }

    pub(crate) fn xattr(&mut self, ino: Nid, name: &[u8]) -> Result<Vec<u8>> {
        let pairs = self.pairs(ino)?;
        let found = pairs.into_iter().find(|(there, _)| there == name);
        found.map(|(_, value)| value).ok_or(VolumeError::NoAttribute)
    }

    pub(crate) fn xattr_names(&mut self, ino: Nid) -> Result<Vec<Vec<u8>>> {
        Ok(self.pairs(ino)?.into_iter().map(|(name, _)| name).collect())
    }

    pub(crate) fn set_xattr(&mut self, ino: Nid, name: &[u8], value: &[u8], how: SetAttribute) -> Result<()> {
        if !(1..=255).contains(&name.len()) {
            return Err(VolumeError::BadName);
        }
        if value.len() > NODE_LEN_BYTES {
            return Err(VolumeError::AttributesTooLarge(NODE_LEN_BYTES));
        }
        let mut pairs = self.pairs(ino)?;
        match (pairs.iter_mut().find(|(there, _)| there == name), how) {
            (Some(_), SetAttribute::Create) => return Err(VolumeError::Exists),
            (None, SetAttribute::Replace) => return Err(VolumeError::NoAttribute),
            (Some((_, there)), _) => value.clone_into(there),
            (None, _) => pairs.push((name.to_vec(), value.to_vec())),
        }
        self.set_pairs(ino, &pairs)
    }

    pub(crate) fn remove_xattr(&mut self, ino: Nid, name: &[u8]) -> Result<()> {
        let mut pairs = self.pairs(ino)?;
        let before = pairs.len();
        pairs.retain(|(there, _)| there != name);
        if pairs.len() == before {
            return Err(VolumeError::NoAttribute);
        }
        self.set_pairs(ino, &pairs)
    }
}

/// Writes `bytes` to the beginning, and zeros behind.
fn put(place: &mut [u8], bytes: &[u8]) {
    place.fill(0);
    place.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
}
