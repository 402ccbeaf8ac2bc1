//! Checksums of leaves, reported like a tree that has them from some source.

use super::content::Content;
use byteback_control::{
    ErrorKind, LEAF_LEN_BYTES, LeafKind, LeafOffer, LeafPiece, LeafRequest, LeafSource, LeavesSummary, Result,
    ServiceError,
};
use byteback_delta::crc::CrcKind;
use byteback_delta::leaves::LeafKind as DeltaKind;
use byteback_extents::ByteRange;

/// The source of the leaves, and events meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Leaves {
    pub kind: LeafKind,
    pub source: LeafSource,
    pub has_crcs: bool,
    /// The file changes while its leaves are reported for the first time.
    pub restarts: bool,
    /// The tree cannot report any.
    pub is_silent: bool,
    /// Leaves beyond the end of each file are reported.
    pub goes_on: bool,
}

impl Default for Leaves {
    fn default() -> Self {
        Self {
            kind: LeafKind::Blake3,
            source: LeafSource::Read,
            has_crcs: true,
            restarts: false,
            is_silent: false,
            goes_on: false,
        }
    }
}

impl Leaves {
    pub fn offer(self) -> Result<LeafOffer> {
        if self.is_silent {
            let message = "this tree does not answer that question";
            return Err(ServiceError::new(ErrorKind::Protocol, message));
        }
        Ok(LeafOffer {
            kind: self.kind,
            source: self.source,
            has_crcs: self.has_crcs,
        })
    }

    pub fn tell(
        self,
        content: &Content,
        request: LeafRequest,
        sink: &mut dyn FnMut(LeafPiece<'_>) -> Result<()>,
    ) -> Result<LeavesSummary> {
        if self.restarts && content.len() > 0 {
            let leaves = 2.min(content.len().div_ceil(LEAF_LEN_BYTES)) as usize;
            let entries = vec![7; leaves * request.entry_len()];
            sink(LeafPiece::Sums {
                offset: 0,
                entries: &entries,
            })?;
        }
        let (mut at, mut read_bytes) = (0, 0);
        for hole in leaves_of_holes(content).into_iter().map(Some).chain([None]) {
            let end = hole.map_or(content.len(), ByteRange::start);
            while at < end {
                // Some at a time.
                let some = end.min(at + 5 * LEAF_LEN_BYTES);
                let mut bytes = vec![0; (some - at) as usize];
                content.read(at, &mut bytes);
                let mut entries = Vec::new();
                for leaf in bytes.chunks(LEAF_LEN_BYTES as usize) {
                    if request.with_crcs {
                        entries.extend((CrcKind::Crc32c.of(leaf) as u32).to_le_bytes());
                    }
                    entries.extend(delta_kind(request.kind).leaf(leaf));
                }
                sink(LeafPiece::Sums {
                    offset: at,
                    entries: &entries,
                })?;
                read_bytes += some - at;
                at = some;
            }
            if let Some(hole) = hole {
                sink(LeafPiece::Zeros(hole))?;
                at = hole.end();
            }
        }
        if self.goes_on {
            sink(LeafPiece::Sums {
                offset: at.next_multiple_of(LEAF_LEN_BYTES),
                entries: &vec![7; request.entry_len()],
            })?;
        }
        Ok(LeavesSummary {
            source: self.source,
            read_bytes: match self.source {
                LeafSource::Read => read_bytes,
                LeafSource::Btrfs | LeafSource::Kept => 0,
            },
        })
    }
}

/// The whole leaves inside of holes.
fn leaves_of_holes(content: &Content) -> Vec<ByteRange> {
    let all = ByteRange::new(0, content.len()).map_or(Vec::new(), |all| content.pieces(all).into_iter().collect());
    let holes = all.into_iter().filter(|(_, is_hole)| *is_hole);
    let whole = holes.filter_map(|(hole, _)| {
        let end = match hole.end() {
            end if end == content.len() => end,
            end => end - end % LEAF_LEN_BYTES,
        };
        ByteRange::new(hole.start().next_multiple_of(LEAF_LEN_BYTES), end)
    });
    whole.collect()
}

fn delta_kind(kind: LeafKind) -> DeltaKind {
    match kind {
        LeafKind::Sha256 => DeltaKind::Sha256,
        LeafKind::Blake2b256 => DeltaKind::Blake2b256,
        LeafKind::Blake3 => DeltaKind::Blake3,
    }
}

pub(super) fn no_file() -> ServiceError {
    ServiceError::new(ErrorKind::Node, "the disk is broken here")
}
