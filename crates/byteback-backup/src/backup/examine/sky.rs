//! SkySync (sections 3.2 and 3.3): uses checksums that exist already, so that unchanged parts need
//! not be read.
//!
//! 1. The tree says which strong checksums of the file's leaves it has
//!    ([`byteback_control::TreeService::leaf_offer`]).
//! 2. One pass over the tree's leaves makes the sums of groups of them, and the digest that proves
//!    the whole ([`super::leaves`]).
//! 3. The server compares the groups with its own ([`byteback_delta::groups`]) and answers which
//!    are equal in place, and a signature of the rest, in blocks of a leaf, with CRC-32Cs as weak
//!    checksums. A server that is older than this call gives a signature of all, in longer blocks.
//! 4. The leaves of the rest become checksums like those of the signature. Blocks that are equal in
//!    place are copies. *SkySync-F* reads the rest and moves a window over it ([`find_gathered`]).
//!    *SkySync-C* reads the rest and its surroundings, cuts them into chunks, and lets the server
//!    look for these among its own.
//!
//! So where strong checksums exist at both ends, an unmodified file is not read at all and costs 32
//! bytes for each MiB, and a modified one costs its differences. Where there are none, the tree's
//! process reads the file once and sums it; still no window moves over parts that are equal in
//! place, and no byte of them passes the socket.
//!
//! *Proof.* By the digest of leaves: the tree's report is trusted, like the bytes that it reads;
//! whether the server has the same is compared before the batch counts. The client's own block
//! checksums of the file are given up, as not all of it was read.

use super::super::content::len_u64;
use super::super::part_stream::PartStream;
use super::super::plan::DeltaChoice;
use super::super::trim::BlockSums;
use super::found::{FoundFile, Proof};
use super::leaves::{CutContent, KnownContent, Offer, know, offer};
use super::reading::{Hold, read_ranges};
use super::{Call, Examined, Finding, Place, Stop, blocks_max, disorder};
use crate::decisions::Fallback;
use byteback_control::{LeafSource, Piece};
use byteback_delta::chunks::{ChunkList, ChunkParams, MatchAnswer, list_chunks, list_chunks_with_crcs, with_slack};
use byteback_delta::crc::{CrcKind, CrcList, RangeCrcs};
use byteback_delta::find::{
    Aligned, ChunkFinder, ExtentSink, FindStats, Known, SkyError, StrongOf, SumList, Verdict, find_gathered,
};
use byteback_delta::groups::GroupAnswer;
use byteback_delta::signature::{Signature, SignatureRequest};
use byteback_delta::strong::StrongKind;
use byteback_delta::weak::WeakKind;
use byteback_extents::{ByteRange, ExtentSet};

/// How the parts that are not equal in place are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By a window that moves over it.
    Fixed,
    /// By its chunks.
    Chunked,
}

/// `note`: a remark about the search.
pub(super) fn find(
    place: Place<'_>,
    file: &Examined<'_>,
    way: Way,
    note: &mut Option<Fallback>,
    stream: &mut PartStream<'_, '_>,
    sums: &mut BlockSums<'_>,
) -> Finding {
    let len = file.attributes.size;
    let offer = offer(place, file)?;
    let with_list = way == Way::Chunked;
    let (answer, known) = if offer.can_tell_twice(len) {
        let known = know(place, file, offer, with_list, None)?;
        let answer = compare_groups(place, file, &known, offer)?;
        let known = known.beside(place, file, offer, &answer)?;
        (answer, known)
    } else {
        let answer = GroupAnswer::of_all(signature(place, file, offer)?, len);
        let known = know(place, file, offer, with_list, Some(&answer))?;
        (answer, known)
    };
    let expects_sums = offer.has_sums() || place.job.options.delta != DeltaChoice::Auto;
    if known.reported.source == LeafSource::Read && expects_sums {
        *note = Some(Fallback::NotSummed);
    }
    sums.forget(file.node);
    let content = CutContent::new(place, file, &known.holes);
    let sink = FoundFile::new(place, file, answer.base_len_bytes(), stream).with_blocks_elsewhere();
    let beside = known.sums.ok_or_else(|| disorder("its leaves are not known"))?;
    let (found_file, mut found) = match way {
        Way::Fixed => {
            let found = find_gathered(&answer, beside.finish(), &content, sink);
            found.map_err(|error| into_stop(error, &content))?
        }
        Way::Chunked => find_chunks(place, file, &answer, beside.finish(), known.crcs, &content, sink)?,
    };
    found.examined_bytes += known.reported.read_bytes;
    let proof = Proof::leaves(known.digest, offer.kind());
    // Even without copies: the bytes sent were not read when the digest was made.
    let stats = found_file.finish(proof, true, &known.holes)?;
    Ok((stats, found))
}

/// The server's answer to the sums of groups; from a server without that call, its signature of
/// everything.
fn compare_groups(
    place: Place<'_>,
    file: &Examined<'_>,
    known: &KnownContent,
    offer: Offer,
) -> Result<GroupAnswer, Stop> {
    let (job, len) = (place.job, file.attributes.size);
    if job.answers.get().has(Call::Groups) {
        let answer = job.server.groups(
            job.folder,
            file.at_server,
            place.base_seq,
            &known.groups,
            blocks_max(len),
        );
        match place.answered(Call::Groups, answer) {
            Ok(answer) if answer.base_len_bytes() > 0 => return Ok(answer),
            Ok(_) => return Err(Stop::Fallback(Fallback::NoSignature)),
            Err(stop) => {
                let answers = job.answers.get();
                if answers.has(Call::Groups) || !answers.has(Call::Signature) {
                    return Err(stop);
                }
            }
        }
    }
    Ok(GroupAnswer::of_all(signature(place, file, offer)?, len))
}

/// The server's signature of its whole content, with leaves of the offered kind as checksums.
fn signature(place: Place<'_>, file: &Examined<'_>, offer: Offer) -> Result<Signature, Stop> {
    let (job, len) = (place.job, file.attributes.size);
    let strong = StrongKind::Tree(offer.kind());
    let request = SignatureRequest {
        weak: vec![WeakKind::Crc32c],
        strong: vec![strong],
        ..SignatureRequest::default()
    };
    let signature = job
        .server
        .signature(job.folder, file.at_server, place.base_seq, &request, blocks_max(len));
    let signature = place.answered(Call::Signature, signature)?;
    let params = signature.params();
    let fits = params.weak == WeakKind::Crc32c && params.strong == strong;
    match fits && signature.content_len_bytes() > 0 {
        true => Ok(signature),
        false => Err(Stop::Fallback(Fallback::NoSignature)),
    }
}

fn into_stop(error: SkyError<Stop>, content: &CutContent<'_>) -> Stop {
    match error {
        SkyError::Sink(stop) => stop,
        SkyError::Read { .. } => content
            .stop()
            .unwrap_or_else(|| disorder("more was read than it holds")),
        SkyError::WeakKind => Stop::Fallback(Fallback::NoSignature),
    }
}

/// The ranges that are equal in the same place of the base, as strong checksums prove.
fn equal_in_place(answer: &GroupAnswer, strong: Option<SumList>) -> ExtentSet {
    let compared = StrongOf::new(answer.signature()).zip(strong);
    let compared = compared.and_then(|(base, new)| Aligned::new(base, new).ok());
    let proven = compared.into_iter().flatten();
    let proven = proven.filter(|(_, verdict)| *verdict == Verdict::Equal);
    let gathering = answer.gathering();
    let proven = proven.flat_map(|(range, _)| gathering.in_content(range));
    gathering.equal().iter().copied().chain(proven).collect()
}

/// SkySync-C: searches the parts that are not equal in place by their chunks.
fn find_chunks<S: ExtentSink<Error = Stop>, C>(
    place: Place<'_>,
    file: &Examined<'_>,
    groups: &GroupAnswer,
    known: Known<C, SumList>,
    crcs: Option<CrcList>,
    content: &CutContent<'_>,
    mut sink: S,
) -> Result<(S, FindStats), Stop> {
    let (job, len) = (place.job, file.attributes.size);
    let Some(all) = ByteRange::new(0, len) else {
        return Ok((sink, FindStats::default()));
    };
    let equal = equal_in_place(groups, known.strong);
    let mut differs: ExtentSet = [all].into_iter().collect();
    differs.subtract(&equal);
    if differs.is_empty() {
        sink.copy(all, 0)?;
        let found = FindStats {
            copied_bytes: len,
            unread_bytes: len,
            ..FindStats::default()
        };
        return Ok((sink, found));
    }
    let params = ChunkParams::for_content(len);
    let look_at = with_slack(&differs, params, len);
    let listed = match crcs {
        Some(crcs) => list_chunks_with_crcs(content, Some(&look_at), params, &mut RangeCrcs::new(crcs)),
        None => list_chunks(content, Some(&look_at), params, CrcKind::Crc32c),
    };
    let (list, _) = listed.map_err(|_| content.stop().unwrap_or(Stop::Fallback(Fallback::TooScattered)))?;
    let answer = job
        .server
        .chunks(job.folder, file.at_server, place.base_seq, &list, true);
    let answer = place.answered(Call::Chunks, answer)?;
    if answer.base_len_bytes() != groups.base_len_bytes() {
        return Err(Stop::Fallback(Fallback::NoSignature));
    }
    // Around a difference, chunks decide, which may reach into equal parts; bytes that are in no
    // found chunk are still equal in place.
    let mut known = equal;
    found_ranges(&list, &answer).for_each(|range| known.remove(range));
    let mut needed: ExtentSet = answer.needed(&list).collect();
    needed.subtract(&known);
    let mut walk = Walk {
        known: &known,
        finder: ChunkFinder::new(&list, &answer, sink),
    };
    let mut read_bytes = 0;
    read_ranges(place, file.node, Hold::Still, needed.iter(), &mut |piece| match piece {
        Piece::Hole(range) => {
            walk.pass_to(range.start())?;
            walk.finder.push_hole(range.len_bytes())
        }
        Piece::Data { offset, bytes } => {
            walk.pass_to(offset)?;
            read_bytes += len_u64(bytes.len());
            walk.finder.push(bytes)
        }
    })?;
    walk.pass_to(len)?;
    let (sink, mut found) = walk.finder.finish()?;
    found.examined_bytes = content.read_bytes() + read_bytes;
    found.read_bytes = found.examined_bytes;
    Ok((sink, found))
}

/// The ranges of the content whose chunks the server has.
fn found_ranges<'a>(list: &'a ChunkList, answer: &'a MatchAnswer) -> impl Iterator<Item = ByteRange> + 'a {
    answer.segments().iter().filter_map(|segment| {
        let first = list.get(segment.first_chunk)?;
        let last = list.get(segment.first_chunk.checked_add(segment.chunks)?.checked_sub(1)?)?;
        ByteRange::new(first.range.start(), last.range.end())
    })
}

/// The content beside the answer to its list, with the parts that are equal in place between.
struct Walk<'a, S> {
    known: &'a ExtentSet,
    finder: ChunkFinder<'a, S>,
}

impl<S: ExtentSink<Error = Stop>> Walk<'_, S> {
    /// Passes ranges that need no bytes, up to the next ones that do.
    fn pass_to(&mut self, offset: u64) -> Result<(), Stop> {
        while let Some(left) = ByteRange::new(self.finder.position(), offset) {
            let known = self.known.iter_within(left).next();
            match known.filter(|known| known.start() == left.start()) {
                Some(known) => self.finder.push_known(known.len_bytes(), known.start())?,
                None if self.finder.pass_unproven()? > 0 => {}
                None => {
                    let expected = left.start();
                    return Err(disorder(&format!("bytes at {offset}, expected at {expected}")));
                }
            }
        }
        Ok(())
    }
}
