//! Contents and their changes as in the paper (section 4.2): real data, changed in pieces of 256
//! bytes at random places.

use std::fs;

use crate::SuiteError;
use crate::random::Random;
use crate::real_files::readable_files;

/// Bytes of a piece.
pub(crate) const PIECE_LEN: usize = 256;

/// Places with real files, texts first.
const ROOTS: [&str; 4] = ["/usr/share/doc", "/usr/include", "/usr/share", "/usr/lib"];

/// The way in which a content is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Pieces are added.
    Insert,
    /// Pieces are removed.
    Cut,
    /// The bits of pieces are inverted.
    Inverse,
}

impl Edit {
    pub(crate) const ALL: [Self; 3] = [Self::Insert, Self::Cut, Self::Inverse];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Cut => "cut",
            Self::Inverse => "inverse",
        }
    }
}

/// `len` bytes of real files of this machine, concatenated.
///
/// # Errors
/// If there are fewer.
pub(crate) fn real_bytes(len: usize) -> Result<Vec<u8>, SuiteError> {
    let mut bytes = Vec::with_capacity(len);
    // More than needed, because some files may shrink meanwhile.
    for file in readable_files(&ROOTS, 2 * len as u64, usize::MAX)? {
        let Ok(content) = fs::read(&file.path) else { continue };
        bytes.extend_from_slice(&content[..content.len().min(len - bytes.len())]);
        if bytes.len() == len {
            return Ok(bytes);
        }
    }
    Err(format!(
        "this machine has only {} bytes of files in {}",
        bytes.len(),
        ROOTS.join(", ")
    )
    .into())
}

/// The content with `edit_len` bytes of pieces changed, at places that depend on `seed` alone.
pub(crate) fn edited(content: &[u8], edit: Edit, edit_len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let pieces = edit_len / PIECE_LEN;
    let places = random.clone().scattered(pieces, PIECE_LEN as u64, content.len() as u64);
    let mut new = Vec::with_capacity(content.len() + edit_len);
    let mut done = 0;
    for place in places {
        // Within the content, whose length is a usize.
        let place = place as usize;
        new.extend_from_slice(&content[done..place]);
        let piece = &content[place..place + PIECE_LEN];
        done = match edit {
            Edit::Insert => {
                let end = new.len() + PIECE_LEN;
                new.resize(end, 0);
                random.fill(&mut new[end - PIECE_LEN..]);
                place
            }
            Edit::Cut => place + PIECE_LEN,
            Edit::Inverse => {
                new.extend(piece.iter().map(|byte| !byte));
                place + PIECE_LEN
            }
        };
    }
    new.extend_from_slice(&content[done..]);
    new
}

#[cfg(test)]
mod tests;
