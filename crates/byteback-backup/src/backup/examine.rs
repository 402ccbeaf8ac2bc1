//! Selective hashing (SolFS, section 4.3): a file that would have to be sent whole is looked for in
//! the server's version of it.
//!
//! The log knows what was written. For some files all it knows is "all of it, perhaps": the machine
//! stopped while they were open, they changed while nothing tracked them, or a program rewrote them
//! from the first byte to the last. If the server has a version of such a file, the two are
//! compared by checksums, and only what the server lacks is sent, with copies for the rest. So an
//! insertion into a file that was rewritten costs about the insertion.
//!
//! | room | how it is found |
//! |---|---|
//! | `rolling` | the server's signature is fetched, the content at the cut rolled over it (rsync) or cut into blocks (fixed-size hashing) |
//! | `reverse` | the content's signature is sent, the server rolls over what it has (WebR2sync+) |
//! | `chunked` | the list of the content's chunks is sent, the server compares it with its own (dsync) |
//! | `ranges` | only long ranges that the log reports are rolled over, in the signature of the part of the server's version around them |
//! | `overwritten` | what the log reports is compared with what programs overwrote, where the tree still has that |
//! | `lookup` | whole blocks in the ranges that the log reports are looked up among the blocks of the server's version |
//! | `sky` | checksums that exist already tell which blocks are equal in place; the rest is searched as in rsync or dsync (SkySync-F, -C) |
//! | `blocks` | whole blocks that are looked up, in ranges of the content |
//! | `leaves` | those checksums, and what follows from them |
//! | `reading` | reads the file at the cut: all of it once, or some ranges |
//! | `found` | makes delta records of what a finder finds |
//!
//! The version compared is the file's own; or, when everything is sent because the log is gone,
//! that of the file at the same path ([`super::followed`]).
//!
//! *Not examined* are files that the planner leaves out ([`super::plan`]): small ones above all,
//! and all when the server has no such call, or when it once refused a proof in this backup.
//!
//! *Proof.* The checksums come from outside this process. Every file that takes copies, or is read
//! twice, is sent with the digest of its whole content at the cut (`ranges` and `lookup`: of the
//! reported ranges; of very many, of those searched or found), and the server compares before the
//! batch counts. If they differ, nothing was applied, and everything is sent once more without
//! looking for anything. A content is read twice where the server searches; the proof also shows
//! that both readings saw the same.
//!
//! *A second look* in short blocks follows for what a finder left (`found`), unless a certain
//! finder was asked for.
//!
//! *Failing.* Until a finder reports its first extent, nothing of the file is in the batch, so that
//! a server that does not answer costs one reading. Later failures take back the file's records.

pub(super) mod blocks;
mod chunked;
mod found;
mod leaves;
mod lookup;
pub(super) mod overwritten;
pub(super) mod ranges;
mod reading;
mod reverse;
mod rolling;
mod sky;

use super::Job;
use super::content::{Failure, FileStats};
use super::part_stream::PartStream;
use super::plan::cost::Conditions;
use super::plan::{Call, blocks_max};
use super::trim::BlockSums;
use crate::decisions::{DeltaMethod, Fallback};
use crate::error::{BackupError, Result};
use byteback_api::{Code, Problem};
use byteback_client::ServerError;
use byteback_control::{CutId, ErrorKind, ServiceError};
use byteback_delta::find::FindStats;
use byteback_extents::ExtentSet;
use byteback_model::{Attributes, ContentBase, FileId, NodeId, Seq};
use overwritten::Overwritten;

/// The context in which files are examined.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) cut: CutId,
    /// The moment of the server's versions: the one that the batch follows, or replaces.
    pub(super) base_seq: Seq,
    /// The cost of sending and searching now.
    pub(super) conditions: Conditions,
}

/// A file to be sent as its difference from the server's version.
pub(super) struct Examined<'a> {
    pub(super) node: NodeId,
    pub(super) id: FileId,
    /// The file at the server that it is compared with: its own, or in a batch that replaces
    /// everything any file.
    pub(super) at_server: FileId,
    /// Whether the delta has to name the file that it is based on.
    pub(super) is_followed: bool,
    pub(super) attributes: &'a Attributes,
    /// The ranges that may have changed, if the log knows them.
    pub(super) ranges: Option<&'a ExtentSet>,
    /// The bytes that were overwritten in these ranges, if the tree knows them.
    pub(super) overwritten: Option<&'a Overwritten>,
}

impl Examined<'_> {
    /// The content that the first delta applies to.
    fn base(&self) -> ContentBase {
        match self.is_followed {
            true => ContentBase::Of(self.at_server),
            false => ContentBase::Previous,
        }
    }
}

/// How examining one file ended.
pub(super) enum Examination {
    /// The file is in the batch; with a remark about the way there, if any.
    Sent(FileStats, FindStats, Option<Fallback>),
    /// The file cannot be read; the batch is as if it had not been tried.
    Unreadable(ServiceError),
    /// The file is to be sent as it is; the batch is as if it had not been tried.
    Whole(Fallback),
}

/// Why a file is given up.
enum Stop {
    Failure(Failure),
    Fallback(Fallback),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<BackupError> for Stop {
    fn from(error: BackupError) -> Self {
        Self::Failure(Failure::All(error))
    }
}

/// Result of finding a file's content at the server.
type Finding = Result<(FileStats, FindStats), Stop>;

/// Whether a file is examined if its change is to be found by this method.
pub(super) fn is_examined_by(method: DeltaMethod) -> bool {
    method == DeltaMethod::LogCompared || !Call::of(method).is_empty()
}

/// Reads a whole file at the cut and adds what the server lacks of it to the batch.
pub(super) fn send_examined(
    place: Place<'_>,
    file: &Examined<'_>,
    method: DeltaMethod,
    stream: &mut PartStream<'_, '_>,
    sums: &mut BlockSums<'_>,
) -> Result<Examination> {
    // A full part leaves while the file is being read, and the reader cannot ask the tree for
    // anything else meanwhile.
    stream.note_once()?;
    let mut note = None;
    let found = match method {
        DeltaMethod::Rsync => rolling::find(place, file, rolling::Way::Rolling, stream, sums),
        DeltaMethod::Hash => rolling::find(place, file, rolling::Way::Fixed, stream, sums),
        DeltaMethod::Webr => reverse::find(place, file, stream, sums),
        DeltaMethod::Cdc => chunked::find(place, file, stream, sums),
        DeltaMethod::SkyF => sky::find(place, file, sky::Way::Fixed, &mut note, stream, sums),
        DeltaMethod::SkyC => sky::find(place, file, sky::Way::Chunked, &mut note, stream, sums),
        DeltaMethod::LogCompared => match (file.ranges, file.overwritten) {
            (Some(ranges), Some(old)) => overwritten::find(place, file, ranges, old, stream, sums),
            _ => Err(Stop::Fallback(Fallback::NoSignature)),
        },
        DeltaMethod::LogSearched | DeltaMethod::LogLookedUp => match (method, file.ranges) {
            (DeltaMethod::LogLookedUp, Some(ranges)) => lookup::find(place, file, ranges, &mut note, stream, sums),
            (_, Some(ranges)) => ranges::find(place, file, ranges, stream, sums),
            (_, None) => Err(Stop::Fallback(Fallback::NoSignature)),
        },
        DeltaMethod::Log | DeltaMethod::Sums | DeltaMethod::Full => Err(Stop::Fallback(Fallback::NoSignature)),
    };
    let ended = match found {
        Ok((stats, found)) => return Ok(Examination::Sent(stats, found, note)),
        Err(Stop::Failure(Failure::All(error))) => return Err(error),
        Err(Stop::Failure(Failure::File(error))) => Examination::Unreadable(error),
        Err(Stop::Fallback(fallback)) => Examination::Whole(fallback),
    };
    sums.give_up(file.node);
    stream.take_back()?;
    Ok(ended)
}

impl Place<'_> {
    /// The server's answer to a call. On any error, sending the file whole is right.
    fn answered<T>(&self, call: Call, answer: Result<T, ServerError>) -> Result<T, Stop> {
        answer.map_err(|error| {
            self.job.note_unanswered(call, &error);
            Stop::Fallback(Fallback::NoSignature)
        })
    }
}

impl Job<'_> {
    /// Notes a call that got no answer. A server that is older than this call, or is busy or gone,
    /// need not be asked for each of the other files.
    pub(super) fn note_unanswered(&self, call: Call, error: &ServerError) {
        // Older servers have the call of which a lookup is a kind, and do not read its list.
        let is_refused = |problem: &Problem| call == Call::Lookup && problem.code == Code::InvalidBody;
        let is_unknown = error.is_unknown_call() || error.problem.as_deref().is_some_and(is_refused);
        let mut answers = self.answers.get();
        // Without a second look files are still found.
        if is_unknown || matches!(call, Call::Excerpt | Call::ExcerptBytes) {
            answers.end_of(call);
        } else if error.kind.is_transient() {
            answers.end();
        }
        self.answers.set(answers);
    }
}

fn disorder(what: &str) -> Stop {
    let error = ServiceError::new(ErrorKind::Node, format!("its content was read inconsistently: {what}"));
    Stop::Failure(Failure::File(error))
}
