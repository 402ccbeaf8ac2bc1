//! The search by the server's signature: rsync's rolling window, and hashes of blocks at multiples
//! of their length. The content is read once.

use super::super::part_stream::PartStream;
use super::super::trim::BlockSums;
use super::found::{FoundFile, Proof};
use super::reading::{Hold, read_whole};
use super::{Call, Examined, Finding, Place, Stop, blocks_max};
use crate::decisions::Fallback;
use byteback_control::Piece;
use byteback_delta::find::{BlockIndex, ExtentSink, FindStats, FixedFinder, RollingFinder};
use byteback_delta::signature::SignatureRequest;

/// The offsets at which blocks of the server's version are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// At any offset.
    Rolling,
    /// At multiples of their length.
    Fixed,
}

pub(super) fn find(
    place: Place<'_>,
    file: &Examined<'_>,
    way: Way,
    stream: &mut PartStream<'_, '_>,
    sums: &mut BlockSums<'_>,
) -> Finding {
    let job = place.job;
    let blocks_max = blocks_max(file.attributes.size);
    let request = SignatureRequest::default();
    let signature = job
        .server
        .signature(job.folder, file.at_server, place.base_seq, &request, blocks_max);
    let signature = place.answered(Call::Signature, signature)?;
    if signature.content_len_bytes() == 0 {
        return Err(Stop::Fallback(Fallback::NoSignature));
    }
    let base = BlockIndex::new(signature);
    let sink = FoundFile::new(place, file, base.signature().content_len_bytes(), stream);
    let mut finder = match way {
        Way::Rolling => Looking::Rolling(RollingFinder::new(&base, sink)),
        Way::Fixed => Looking::Fixed(FixedFinder::new(&base, sink)),
    };
    let block_len = base.signature().params().block_len_bytes;
    let hold = Hold::for_last_look(
        file.attributes.size,
        block_len.into(),
        place.job.options.limits.extents_max,
    );
    let content = read_whole(place, file, hold, sums, &mut |piece| match piece {
        Piece::Hole(range) => finder.push_hole(range.len_bytes()),
        Piece::Data { bytes, .. } => finder.push(bytes),
    })?;
    let (found_file, found) = finder.finish()?;
    let stats = found_file.finish(Proof::bytes(content.digest), found.copied_bytes > 0, &content.holes)?;
    content.end(sums);
    Ok((stats, found))
}

/// A running finder.
enum Looking<'i, S> {
    Rolling(RollingFinder<'i, S>),
    Fixed(FixedFinder<'i, S>),
}

impl<S: ExtentSink> Looking<'_, S> {
    fn push(&mut self, bytes: &[u8]) -> Result<(), S::Error> {
        match self {
            Self::Rolling(finder) => finder.push(bytes),
            Self::Fixed(finder) => finder.push(bytes),
        }
    }

    fn push_hole(&mut self, len_bytes: u64) -> Result<(), S::Error> {
        match self {
            Self::Rolling(finder) => finder.push_hole(len_bytes),
            Self::Fixed(finder) => finder.push_hole(len_bytes),
        }
    }

    fn finish(self) -> Result<(S, FindStats), S::Error> {
        match self {
            Self::Rolling(finder) => finder.finish(),
            Self::Fixed(finder) => finder.finish(),
        }
    }
}
