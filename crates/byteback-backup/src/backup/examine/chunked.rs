//! Content-defined chunks (dsync; SkySync, section 2.2.2): borders move with the bytes, and the
//! server compares lists.
//!
//! The content is read once for the list of its chunks and its digest. The server answers which of
//! them it has, and where. As the content is proven as a whole, long runs of chunks need no strong
//! checksums, and are not read again; the others are, and chunks that the server lacks are sent.
//! Memory: the list, whose chunks grow with the content.

use super::super::content::len_u64;
use super::super::part_stream::PartStream;
use super::super::trim::BlockSums;
use super::found::{FoundFile, Proof};
use super::reading::{Hold, read_ranges, read_whole};
use super::{Call, Examined, Finding, Place, Stop, disorder};
use crate::decisions::Fallback;
use byteback_control::Piece;
use byteback_delta::chunks::{ChunkLister, ChunkParams};
use byteback_delta::crc::CrcKind;
use byteback_delta::find::{ChunkFinder, ExtentSink};

pub(super) fn find(
    place: Place<'_>,
    file: &Examined<'_>,
    stream: &mut PartStream<'_, '_>,
    sums: &mut BlockSums<'_>,
) -> Finding {
    let job = place.job;
    let len = file.attributes.size;
    let params = ChunkParams::for_content(len);
    let mut lister = ChunkLister::new(params, CrcKind::Crc32c);
    let content = read_whole(place, file, Hold::Still, sums, &mut |piece| {
        match piece {
            Piece::Hole(range) => lister.push_hole(range.len_bytes()),
            Piece::Data { bytes, .. } => lister.push(bytes),
        }
        Ok(())
    })?;
    let (list, _) = lister.finish();
    let answer = job
        .server
        .chunks(job.folder, file.at_server, place.base_seq, &list, true);
    let answer = place.answered(Call::Chunks, answer)?;
    if answer.base_len_bytes() == 0 {
        return Err(Stop::Fallback(Fallback::NoSignature));
    }
    let mut finder = ChunkFinder::new(
        &list,
        &answer,
        FoundFile::new(place, file, answer.base_len_bytes(), stream),
    );
    let hold = Hold::for_last_look(len, params.min_len().into(), place.job.options.limits.extents_max);
    read_ranges(place, file.node, hold, answer.needed(&list), &mut |piece| match piece {
        Piece::Hole(range) => {
            pass_to(&mut finder, range.start())?;
            finder.push_hole(range.len_bytes())
        }
        Piece::Data { offset, bytes } => {
            pass_to(&mut finder, offset)?;
            debug_assert!(len_u64(bytes.len()) <= len - offset, "ranges lie in the file");
            finder.push(bytes)
        }
    })?;
    pass_to(&mut finder, len)?;
    let (found_file, mut found) = finder.finish()?;
    found.examined_bytes = content.data_bytes;
    // Even without copies: the bytes sent are those of the second reading.
    let stats = found_file.finish(Proof::bytes(content.digest), true, &content.holes)?;
    content.end(sums);
    Ok((stats, found))
}

/// Passes chunks that need no bytes, up to the next ones that do.
fn pass_to<S: ExtentSink<Error = Stop>>(finder: &mut ChunkFinder<'_, S>, offset: u64) -> Result<(), Stop> {
    while finder.position() < offset {
        if finder.pass_unproven()? == 0 {
            return Err(disorder(&format!(
                "bytes at {offset}, expected at {}",
                finder.position()
            )));
        }
    }
    Ok(())
}
