//! The baseline: dsync made of nothing but the crates `fastcdc` and `sha1` (SkySync, section
//! 2.2.2).
//!
//! Each end cuts its content into chunks of 4, 8 and 12 KiB (minimum, average, maximum). The hash
//! used for cutting serves as the weak checksum, which costs nothing more (dsync's FastFP does the
//! same). Chunks of equal length and weak checksum get a SHA-1 at both ends; where these agree, a
//! chunk is copied. Unlike ours, the baseline has neither a proof of the whole nor compression.
//! Both would only add to its cost.

use std::collections::HashMap;

use fastcdc::v2020::FastCDC;
use sha1::{Digest, Sha1};

const MIN_LEN: usize = 4096;
const AVG_LEN: usize = 8192;
const MAX_LEN: usize = 12_288;

/// Bytes on the wire: length and weak checksum of a chunk.
const LISTED_LEN: u64 = 4 + 4;
/// Bytes on the wire: number of the chunk, offset in the base, SHA-1.
const TOKEN_LEN: u64 = 4 + 8 + 20;

/// A chunk with its weak checksum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    offset: usize,
    len: usize,
    weak: u32,
}

/// A pair of chunks with equal weak checksums, and the SHA-1 of the one in the base.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    chunk: usize,
    base_offset: usize,
    strong: [u8; 20],
}

/// A part of the new content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Copy { base_offset: usize, len: usize },
    Literal { offset: usize, len: usize },
}

/// The chunks of a content.
pub(crate) fn list(content: &[u8]) -> Vec<Chunk> {
    FastCDC::new(content, MIN_LEN, AVG_LEN, MAX_LEN)
        .map(|chunk| Chunk {
            offset: chunk.offset,
            len: chunk.length,
            // The half that depends on the latest bytes.
            weak: (chunk.hash >> 32) as u32,
        })
        .collect()
}

/// The server's search for chunks of the list that the base may have.
pub(crate) fn search(list: &[Chunk], base: &[u8], of_base: &[Chunk]) -> Vec<Token> {
    let mut table = HashMap::with_capacity(of_base.len());
    for chunk in of_base {
        table.entry((chunk.weak, chunk.len)).or_insert(chunk.offset);
    }
    let mut tokens = Vec::new();
    for (number, chunk) in list.iter().enumerate() {
        if let Some(&base_offset) = table.get(&(chunk.weak, chunk.len)) {
            let strong = Sha1::digest(&base[base_offset..base_offset + chunk.len]).into();
            tokens.push(Token {
                chunk: number,
                base_offset,
                strong,
            });
        }
    }
    tokens
}

/// The client's last step: the new content as copies and literals.
pub(crate) fn find(list: &[Chunk], tokens: &[Token], new: &[u8]) -> Vec<Extent> {
    let mut extents = Vec::new();
    let mut tokens = tokens.iter().peekable();
    for (number, chunk) in list.iter().enumerate() {
        let bytes = &new[chunk.offset..chunk.offset + chunk.len];
        let token = tokens.next_if(|token| token.chunk == number);
        let is_equal = token.filter(|token| <[u8; 20]>::from(Sha1::digest(bytes)) == token.strong);
        let extent = match is_equal {
            Some(token) => Extent::Copy {
                base_offset: token.base_offset,
                len: chunk.len,
            },
            None => Extent::Literal {
                offset: chunk.offset,
                len: chunk.len,
            },
        };
        match (extents.last_mut(), extent) {
            (
                Some(Extent::Copy { base_offset, len }),
                Extent::Copy {
                    base_offset: next,
                    len: more,
                },
            ) if *base_offset + *len == next => {
                *len += more;
            }
            (Some(Extent::Literal { len, .. }), Extent::Literal { len: more, .. }) => *len += more,
            _ => extents.push(extent),
        }
    }
    extents
}

/// Encodes the extents, literals with their bytes: the client's final message.
pub(crate) fn encode(extents: &[Extent], new: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for extent in extents {
        let (kind, start, len) = match *extent {
            Extent::Copy { base_offset, len } => (0, base_offset, len),
            Extent::Literal { offset, len } => (1 << 63, offset, len),
        };
        bytes.extend_from_slice(&(start as u64 | kind).to_le_bytes());
        bytes.extend_from_slice(&(len as u64).to_le_bytes());
        if kind != 0 {
            bytes.extend_from_slice(&new[start..start + len]);
        }
    }
    bytes
}

/// Bytes that travel in addition to [`encode`]: the list to the server, tokens to the client.
pub(crate) fn wire(list: &[Chunk], tokens: &[Token]) -> (u64, u64) {
    (list.len() as u64 * LISTED_LEN, tokens.len() as u64 * TOKEN_LEN)
}

/// Builds the new content from base and extents.
pub(crate) fn apply(base: &[u8], new: &[u8], extents: &[Extent]) -> Vec<u8> {
    let mut made = Vec::with_capacity(new.len());
    for extent in extents {
        made.extend_from_slice(match *extent {
            Extent::Copy { base_offset, len } => &base[base_offset..base_offset + len],
            Extent::Literal { offset, len } => &new[offset..offset + len],
        });
    }
    made
}

#[cfg(test)]
mod tests;
