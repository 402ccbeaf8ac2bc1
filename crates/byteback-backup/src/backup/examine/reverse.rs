//! The search on the server (WebR2sync+; SolFS, section 5): no window moves here, only blocks at
//! multiples of their length are hashed.
//!
//! The content is read once for its signature and its digest. The server answers which blocks it
//! has and where; blocks that it lacks are read once more and sent. Memory: the signature, whose
//! blocks grow with the content, and the list of matches.

use super::super::part_stream::PartStream;
use super::super::trim::BlockSums;
use super::found::{FoundFile, Proof};
use super::reading::{Hold, read_ranges, read_whole};
use super::{Call, Examined, Finding, Place, Stop, disorder};
use crate::decisions::Fallback;
use crate::error::BackupError;
use byteback_control::Piece;
use byteback_delta::find::{MatchedContent, MatchedError};
use byteback_delta::signature::{SignatureParams, SignatureWriter};
use byteback_host::random::{Randomness, RealRandomness};

pub(super) fn find(
    place: Place<'_>,
    file: &Examined<'_>,
    stream: &mut PartStream<'_, '_>,
    sums: &mut BlockSums<'_>,
) -> Finding {
    let job = place.job;
    let len = file.attributes.size;
    let seed = RealRandomness
        .next_u64()
        .map_err(|error| BackupError::local("draw", "a checksum seed", error))?;
    let params = SignatureParams::for_content(len, seed);
    let mut writer = SignatureWriter::new(Vec::new(), params, len).map_err(|error| disorder(&error.to_string()))?;
    let content = read_whole(place, file, Hold::Still, sums, &mut |piece| {
        let written = match piece {
            Piece::Hole(range) => writer.push_zeros(range.len_bytes()),
            Piece::Data { bytes, .. } => writer.push(bytes),
        };
        written.map_err(|error| disorder(&error.to_string()))
    })?;
    let signature = writer.finish().map_err(|error| disorder(&error.to_string()))?;
    let list = job.server.matches(
        job.folder,
        file.at_server,
        place.base_seq,
        &signature,
        len,
        params.block_len_bytes,
    );
    let list = place.answered(Call::Matches, list)?;
    drop(signature);
    if list.base_len_bytes() == 0 {
        return Err(Stop::Fallback(Fallback::NoSignature));
    }
    let mut matched = MatchedContent::new(&list, FoundFile::new(place, file, list.base_len_bytes(), stream));
    let hold = Hold::for_last_look(len, params.block_len_bytes.into(), place.job.options.limits.extents_max);
    read_ranges(place, file.node, hold, list.missing(), &mut |piece| {
        let reported = match piece {
            Piece::Hole(range) => matched.push_hole(range),
            Piece::Data { offset, bytes } => matched.push(offset, bytes),
        };
        reported.map_err(into_stop)
    })?;
    let (found_file, mut found) = matched.finish().map_err(into_stop)?;
    found.examined_bytes = content.data_bytes;
    // Even without copies: the bytes sent are those of the second reading.
    let stats = found_file.finish(Proof::bytes(content.digest), true, &content.holes)?;
    content.end(sums);
    Ok((stats, found))
}

fn into_stop(error: MatchedError<Stop>) -> Stop {
    match error {
        MatchedError::Sink(stop) => stop,
        error => disorder(&error.to_string()),
    }
}
