//! The parser for a sealed file's descriptor: bytes in, values out, nothing trusted.
//!
//! `struct fsverity_descriptor` of Linux, little-endian; its last fields, a signature and its
//! length, are not part of what is hashed here.

use crate::merkle::Shape;
use byteback_checksums::source::{Kind, Layout, Tail};

/// Bytes of a descriptor without a signature.
pub(crate) const DESCRIPTOR_LEN: usize = 256;

/// The offsets of the signature's length, which is not part of the descriptor's hash.
const SIGNATURE_LEN_AT: std::ops::Range<usize> = 4..8;

const VERSION: u8 = 1;

/// The tree of a sealed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) kind: Kind,
    /// The kernel's number of the function.
    algorithm: u16,
    /// The length of a block of the file and of a node of the tree.
    block_len: u32,
    pub(crate) content_len: u64,
    pub(crate) root: Vec<u8>,
    salt: Vec<u8>,
}

impl Descriptor {
    /// # Errors
    /// The defect, in words.
    pub(crate) fn parse(bytes: &[u8; DESCRIPTOR_LEN]) -> Result<Self, &'static str> {
        let [version, algorithm, block_bits, salt_len, ..] = *bytes;
        if version != VERSION {
            return Err("unsupported version of an fs-verity descriptor");
        }
        let kind = match algorithm {
            1 => Kind::Sha256,
            2 => Kind::Sha512,
            _ => return Err("unsupported hash function of an fs-verity descriptor"),
        };
        // From 1 KiB, the kernel's minimum, to the longest page of any machine.
        if !(10..=16).contains(&block_bits) {
            return Err("wrong block length in an fs-verity descriptor");
        }
        let (fields, _) = bytes.split_at(112);
        let (numbers, salt) = fields.split_at(80);
        let (numbers, root) = numbers.split_at(16);
        let salt = salt
            .get(..usize::from(salt_len))
            .ok_or("wrong length of an fs-verity salt")?;
        let content_len = numbers.get(8..).and_then(|len| len.first_chunk());
        Ok(Self {
            kind,
            algorithm: u16::from(algorithm),
            block_len: 1 << block_bits,
            content_len: content_len.map_or(0, |len| u64::from_le_bytes(*len)),
            root: root.get(..kind.len_bytes()).unwrap_or_default().to_vec(),
            salt: salt.to_vec(),
        })
    }

    /// Whether the kernel's measurement is of this descriptor.
    pub(crate) fn is_measured(&self, bytes: &[u8; DESCRIPTOR_LEN], algorithm: u16, digest: &[u8]) -> bool {
        let mut unsigned = *bytes;
        if let Some(len) = unsigned.get_mut(SIGNATURE_LEN_AT) {
            len.fill(0);
        }
        let layout = Layout {
            kind: self.kind,
            salt: Vec::new(),
            block_len: 1,
            tail: Tail::AsIs,
        };
        let mut own = Vec::new();
        layout.append_sum(&unsigned, &mut own);
        algorithm == self.algorithm && own == digest
    }

    /// The shape of the tree; `None` if there is no such tree.
    pub(crate) fn shape(&self) -> Option<Shape> {
        let mut salt = self.salt.clone();
        if !salt.is_empty() {
            // Padded to a block of the function: the kernel keeps the state of the function behind
            // the salt.
            salt.resize(
                match self.kind {
                    Kind::Sha512 => 128,
                    _ => 64,
                },
                0,
            );
        }
        let layout = Layout {
            kind: self.kind,
            salt,
            block_len: self.block_len,
            tail: Tail::ZeroPadded,
        };
        Shape::new(layout, self.content_len, self.block_len, self.kind.len_bytes())
    }
}
