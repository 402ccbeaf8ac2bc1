//! The planner: which way the change of a file's content is found.
//!
//! A plain function of what is known, without reading or asking anybody. Its order, with [`DeltaChoice::Auto`]:
//!
//! 1. *The log* knows the ranges: they are sent. It costs nothing to find them, and nothing can cost less to send.
//! 2. *Block checksums* of our own know most of the file: it is read, and what they do not know is sent. No question to the server.
//! 3. *A finder* (rsync's) looks for the file in what the server has, if the file is worth a question.
//! 4. *Whole*.
//!
//! What the plan turned out to be impossible for is told by [`Fallback`]s, and everything is remembered in [`crate::decisions`].

use crate::decisions::{Cause, DeltaMethod, Fallback};
use byteback_delta::signature::BLOCKS_MAX;
use byteback_oplog::WholeReason;
use serde::Serialize;

/// Files shorter than this are sent as they are: an answer of the server takes longer than their bytes.
const EXAMINED_LEN_MIN: u64 = 64 * 1024;

/// Longer ones are sent as they are: servers prove no more than so much (`hashed_len_max` of the store).
const EXAMINED_LEN_MAX: u64 = 1 << 40;

/// A signature is taken with at most one block for so many bytes of the new content: it then costs at most a quarter of it.
const BYTES_PER_BLOCK_MIN: u64 = 64;

/// How changes are to be found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeltaChoice {
    /// What costs least, file by file.
    #[default]
    Auto,
    /// By rsync's rolling checksums, whatever the log knows.
    Rsync,
    /// By hashes of blocks at multiples of their length, whatever the log knows.
    Hash,
    /// Not at all: files that changed are sent whole.
    Full,
}

/// What the log says of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogSays {
    /// It did not change.
    Unchanged,
    /// Some of it may have changed.
    Ranges,
    /// All of it was written.
    Rewritten,
    /// All of it may have changed.
    Whole(WholeReason),
}

/// What is known of a file that the cut reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) choice: DeltaChoice,
    pub(super) log: LogSays,
    pub(super) size_bytes: u64,
    /// The server has a version that a change can follow.
    pub(super) server_has: bool,
    /// The server can be asked for a signature.
    pub(super) server_answers: bool,
    /// The server refused what was found in this backup.
    pub(super) proof_refused: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) method: DeltaMethod,
    pub(super) cause: Cause,
    pub(super) fallback: Option<Fallback>,
}

impl Plan {
    fn new(method: DeltaMethod, cause: Cause) -> Self {
        Self {
            method,
            cause,
            fallback: None,
        }
    }

    /// The same file, sent whole because the plan cannot be carried out.
    pub(super) fn fall_back(self, fallback: Fallback) -> Self {
        Self {
            method: DeltaMethod::Full,
            fallback: Some(fallback),
            ..self
        }
    }
}

/// Decides; `None` if there is no content to send. `sums_know_most` is asked only if the answer matters.
pub(super) fn plan(known: &Known, sums_know_most: impl FnOnce() -> bool) -> Option<Plan> {
    if !known.server_has {
        return Some(Plan::new(DeltaMethod::Full, Cause::New));
    }
    let forced = match known.choice {
        DeltaChoice::Auto => None,
        DeltaChoice::Rsync => Some(DeltaMethod::Rsync),
        DeltaChoice::Hash => Some(DeltaMethod::Hash),
        DeltaChoice::Full => Some(DeltaMethod::Full),
    };
    let cause = match (known.log, forced) {
        (LogSays::Unchanged, _) => return None,
        (_, Some(DeltaMethod::Full)) => return Some(Plan::new(DeltaMethod::Full, Cause::Asked)),
        (_, Some(_)) => Cause::Asked,
        (LogSays::Ranges, None) => return Some(Plan::new(DeltaMethod::Log, Cause::LogKnew)),
        (LogSays::Rewritten, None) => Cause::Rewritten,
        (LogSays::Whole(reason), None) if sums_know_most() => {
            return Some(Plan::new(DeltaMethod::Sums, Cause::Whole(reason)));
        }
        (LogSays::Whole(reason), None) => Cause::Whole(reason),
    };
    let plan = Plan::new(forced.unwrap_or(DeltaMethod::Rsync), cause);
    let fallback = if known.size_bytes < EXAMINED_LEN_MIN {
        Fallback::TooShort
    } else if known.size_bytes > EXAMINED_LEN_MAX {
        Fallback::TooLong
    } else if known.proof_refused {
        Fallback::ProofRefused
    } else if !known.server_answers {
        Fallback::NoSignature
    } else {
        return Some(plan);
    };
    Some(plan.fall_back(fallback))
}

/// How many blocks a signature may have for a content of so many bytes.
pub(super) fn blocks_max(len_bytes: u64) -> u64 {
    (len_bytes / BYTES_PER_BLOCK_MIN).min(BLOCKS_MAX)
}

#[cfg(test)]
mod tests;
