//! The planner: the method by which the change of a file's content is found.
//!
//! A plain function of what is known, without reading or asking. Its order, with
//! [`DeltaChoice::Auto`]:
//!
//! 1. *The log* knows the ranges. Finding them costs nothing. They are compared with what programs
//!    overwrote, if that is at hand ([`super::examine`], `overwritten`). Otherwise, or where little
//!    of them is found so, they are sent, unless searching them is expected to cost less: long ones
//!    in what the server has there, whole blocks anywhere in the server's version.
//! 2. *Checksums that exist already*, where anything may have changed and strong checksums of the
//!    file exist: blocks that they prove equal are not read (SkySync-F).
//! 3. *Block checksums* of our own know most of the file: it is read, and blocks that they do not
//!    know are sent. No question to the server.
//! 4. *A finder* looks for the file in the server's content, if the file is worth a question: the
//!    one expected to cost least ([`cost`]) of rsync, WebR2sync+, dsync and SkySync-F, which sums
//!    the file first, and for which the server reads nothing that it has summed before.
//! 5. *Whole*, also where no finder is expected to cost less.
//!
//! [`Fallback`]s say why a plan could not be carried out, and everything is remembered in
//! [`crate::decisions`].

pub(super) mod cost;
pub(super) mod effort;
pub(super) mod second_look;

use super::examine::overwritten::COMPARED_LEN_MAX;
use crate::decisions::{Cause, DeltaMethod, Fallback, Searches};
use byteback_delta::signature::BLOCKS_MAX;
use byteback_oplog::WholeReason;
use cost::{Conditions, FileFacts, cheapest};
use serde::Serialize;

/// Files shorter than this are not looked for: an answer of the server costs about their bytes even
/// if it is near.
pub(super) const EXAMINED_LEN_MIN: u64 = 4 * 1024;

/// Longer files are sent as they are: servers do not prove longer contents (`hashed_len_max` of the
/// store).
const EXAMINED_LEN_MAX: u64 = 1 << 40;

/// Files from this length on may be summed where they lie, even if no checksums of them exist yet:
/// servers keep the sums of their versions, so that they need not read them.
const SUMMED_LEN_MIN: u64 = 256 << 10;

/// Ranges are searched from this number of bytes on, or from the file's length divided by the
/// second number on.
const SEARCHED_LEN_MIN: u64 = 1 << 20;
const SEARCHED_SHARE_MIN: u64 = 4;

/// Blocks are looked up from this number of bytes on.
pub(super) const LOOKED_UP_LEN_MIN: u64 = 64 * 1024;

/// From this number of changed bytes on they are compared with those that were overwritten.
const COMPARED_LEN_MIN: u64 = 128;

/// At least one in this many bytes must be known as it was.
const COMPARED_SHARE_MIN: u64 = 4;

/// A signature has at most one block per this number of bytes of the new content: it then costs at
/// most a quarter of it.
const BYTES_PER_BLOCK_MIN: u64 = 64;

/// How changes are to be found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeltaChoice {
    /// The method that costs least, file by file.
    #[default]
    Auto,
    /// By rsync's rolling checksums, whatever the log knows.
    Rsync,
    /// By hashes of blocks at multiples of their length, whatever the log knows.
    Hash,
    /// By the server, which looks for hashes of the file's blocks in its content (WebR2sync+),
    /// whatever the log knows.
    Webr,
    /// By content-defined chunks (dsync), whatever the log knows.
    Cdc,
    /// By existing checksums, and a window over the rest (SkySync-F), whatever the log knows.
    SkyF,
    /// By checksums that exist already, and chunks of the rest (SkySync-C), whatever the log knows.
    SkyC,
    /// Not at all: files that changed are sent whole.
    Full,
}

/// The log's knowledge of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogKnowledge {
    /// The content did not change.
    Unchanged,
    /// Some of it may have changed.
    Ranges,
    /// All of it was written.
    Rewritten,
    /// All of it may have changed.
    Whole(WholeReason),
}

/// A call by which a server helps to find a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Signature,
    /// Saves most of a signature; without an answer, a signature is asked for.
    Groups,
    Matches,
    Chunks,
    /// Compares short contents as a whole.
    Digests,
    /// Finds files by their length and beginning.
    Alike,
    /// Looks blocks up; a kind of [`Call::Matches`].
    Lookup,
    /// Gives a signature of parts in short blocks; without an answer, what is left is sent.
    Excerpt,
    /// Gives the bytes of parts; without an answer, they are looked for in shorter blocks.
    ExcerptBytes,
}

impl Call {
    /// The calls that a method needs.
    pub(super) fn of(method: DeltaMethod) -> &'static [Self] {
        match method {
            DeltaMethod::Rsync | DeltaMethod::Hash | DeltaMethod::SkyF | DeltaMethod::LogSearched => &[Self::Signature],
            DeltaMethod::Webr => &[Self::Matches],
            DeltaMethod::LogLookedUp => &[Self::Lookup],
            DeltaMethod::Cdc => &[Self::Chunks],
            DeltaMethod::SkyC => &[Self::Signature, Self::Chunks],
            DeltaMethod::Log | DeltaMethod::Sums | DeltaMethod::LogCompared | DeltaMethod::Full => &[],
        }
    }
}

/// The calls that are worth making, as far as this backup knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answers {
    signature: bool,
    groups: bool,
    matches: bool,
    chunks: bool,
    digests: bool,
    alike: bool,
    lookup: bool,
    excerpt: bool,
    excerpt_bytes: bool,
}

impl Answers {
    /// All calls, until a failure says otherwise.
    pub(super) const ALL: Self = Self {
        signature: true,
        groups: true,
        matches: true,
        chunks: true,
        digests: true,
        alike: true,
        lookup: true,
        excerpt: true,
        excerpt_bytes: true,
    };

    /// Drops all calls: the server is busy, or gone.
    pub(super) fn end(&mut self) {
        *self = Self {
            signature: false,
            groups: false,
            matches: false,
            chunks: false,
            digests: false,
            alike: false,
            lookup: false,
            excerpt: false,
            excerpt_bytes: false,
        };
    }

    /// Drops a call that the server does not have.
    pub(super) fn end_of(&mut self, call: Call) {
        match call {
            Call::Signature => self.signature = false,
            Call::Groups => self.groups = false,
            Call::Matches => self.matches = false,
            Call::Chunks => self.chunks = false,
            Call::Digests => self.digests = false,
            Call::Alike => self.alike = false,
            Call::Lookup => self.lookup = false,
            Call::Excerpt => self.excerpt = false,
            Call::ExcerptBytes => self.excerpt_bytes = false,
        }
    }

    /// Whether all calls that a method needs are worth making.
    pub(super) fn suffice_for(self, method: DeltaMethod) -> bool {
        Call::of(method).iter().all(|call| self.has(*call))
    }

    /// Whether this call is worth making.
    pub(super) fn has(self, call: Call) -> bool {
        match call {
            Call::Signature => self.signature,
            Call::Groups => self.groups,
            Call::Matches => self.matches,
            Call::Chunks => self.chunks,
            Call::Digests => self.digests,
            Call::Alike => self.alike,
            Call::Lookup => self.lookup,
            Call::Excerpt => self.excerpt,
            Call::ExcerptBytes => self.excerpt_bytes,
        }
    }
}

/// The facts about a file that the cut reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) choice: DeltaChoice,
    pub(super) log: LogKnowledge,
    pub(super) size_bytes: u64,
    /// Bytes of reported ranges.
    pub(super) changed_bytes: u64,
    /// Bytes of reported ranges that may be searched.
    pub(super) searchable_bytes: u64,
    /// Bytes of whole blocks in reported ranges.
    pub(super) block_bytes: u64,
    /// The server has a version that a change can follow.
    pub(super) server_has: bool,
    /// The calls that the server can be asked.
    pub(super) answers: Answers,
    /// The server refused a proof in this backup.
    pub(super) proof_refused: bool,
    /// The current cost of sending and searching.
    pub(super) conditions: Conditions,
}

/// Facts about the file that are asked for only if they matter: the answers are not free.
pub(super) trait Hints {
    /// How many bytes of what was overwritten are at hand.
    fn overwritten_bytes(&mut self) -> u64;

    /// Whether the client's own block checksums know most of it.
    fn sums_know_most(&mut self) -> bool;

    /// Whether strong checksums of it exist, so that it need not be read for them.
    fn leaves_exist(&mut self) -> bool;

    /// The share of it that was sent when it was last saved.
    fn sent_share(&mut self) -> Option<f64>;

    /// How searches of its reported ranges by this method went, if there were any.
    fn former_searches(&mut self, method: DeltaMethod) -> Option<Searches>;
}

impl Known {
    /// Why the file must not be looked for at the server by any method, if so.
    fn limit(&self) -> Option<Fallback> {
        if self.size_bytes < EXAMINED_LEN_MIN {
            Some(Fallback::TooShort)
        } else if self.size_bytes > EXAMINED_LEN_MAX {
            Some(Fallback::TooLong)
        } else if self.proof_refused {
            Some(Fallback::ProofRefused)
        } else {
            None
        }
    }
}

/// The decision for one file.
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

    /// The same file, sent as it is because the plan cannot be carried out.
    pub(super) fn fall_back(self, fallback: Fallback) -> Self {
        Self {
            method: match self.method {
                DeltaMethod::LogSearched | DeltaMethod::LogLookedUp | DeltaMethod::LogCompared => DeltaMethod::Log,
                _ => DeltaMethod::Full,
            },
            fallback: Some(fallback),
            ..self
        }
    }
}

/// Decides; `None` if there is no content to send.
pub(super) fn plan(known: &Known, hints: &mut impl Hints) -> Option<Plan> {
    if !known.server_has {
        return Some(Plan::new(DeltaMethod::Full, Cause::New));
    }
    let forced = match known.choice {
        DeltaChoice::Auto => None,
        DeltaChoice::Rsync => Some(DeltaMethod::Rsync),
        DeltaChoice::Hash => Some(DeltaMethod::Hash),
        DeltaChoice::Webr => Some(DeltaMethod::Webr),
        DeltaChoice::Cdc => Some(DeltaMethod::Cdc),
        DeltaChoice::SkyF => Some(DeltaMethod::SkyF),
        DeltaChoice::SkyC => Some(DeltaMethod::SkyC),
        DeltaChoice::Full => Some(DeltaMethod::Full),
    };
    let cause = match (known.log, forced) {
        (LogKnowledge::Unchanged, _) => return None,
        (LogKnowledge::Ranges, None) if is_compared(known, hints) => {
            return Some(Plan::new(DeltaMethod::LogCompared, Cause::LogKnew));
        }
        (LogKnowledge::Rewritten, None) if is_compared(known, hints) => {
            return Some(Plan::new(DeltaMethod::LogCompared, Cause::Rewritten));
        }
        (_, Some(DeltaMethod::Full)) => return Some(Plan::new(DeltaMethod::Full, Cause::Asked)),
        (_, Some(_)) => Cause::Asked,
        (LogKnowledge::Ranges, None) => {
            return Some(Plan::new(method_of_ranges(known, hints), Cause::LogKnew));
        }
        (LogKnowledge::Rewritten, None) => Cause::Rewritten,
        (LogKnowledge::Whole(reason), None) => {
            let cause = Cause::Whole(reason);
            let can_compare = known.limit().is_none() && known.answers.suffice_for(DeltaMethod::SkyF);
            if can_compare && hints.leaves_exist() {
                return Some(Plan::new(DeltaMethod::SkyF, cause));
            }
            if hints.sums_know_most() {
                return Some(Plan::new(DeltaMethod::Sums, cause));
            }
            cause
        }
    };
    if let Some(fallback) = known.limit() {
        return Some(Plan::new(DeltaMethod::Full, cause).fall_back(fallback));
    }
    let plan = Plan::new(forced.unwrap_or_else(|| cheapest_finder(known, hints)), cause);
    Some(match plan.method {
        DeltaMethod::Full => plan.fall_back(Fallback::CostsLess),
        method if known.answers.suffice_for(method) => plan,
        _ => plan.fall_back(Fallback::NoSignature),
    })
}

/// Whether enough of what was overwritten is at hand: comparing asks nothing of anybody.
fn is_compared(known: &Known, hints: &mut impl Hints) -> bool {
    let can = known.limit().is_none() && (COMPARED_LEN_MIN..=COMPARED_LEN_MAX).contains(&known.changed_bytes);
    can && hints.overwritten_bytes().saturating_mul(COMPARED_SHARE_MIN) >= known.changed_bytes
        // Sums that trim blocks would be lost.
        && !hints.sums_know_most()
}

/// How reported ranges are sent: searched in the server's version, if no block checksums trim them
/// and that is expected to cost less than sending them.
///
/// Ranges that are a large part of the file look like an insertion or a removal, which moves bytes
/// by any distance a little away. Those that are a small part look like blocks, which come from
/// anywhere. A way that found next to nothing is paused, and gives way to the other one.
fn method_of_ranges(known: &Known, hints: &mut impl Hints) -> DeltaMethod {
    let part = known.size_bytes / SEARCHED_SHARE_MIN;
    let is_long = known.searchable_bytes >= SEARCHED_LEN_MIN.min(part).max(1);
    let has_blocks = known.block_bytes >= LOOKED_UP_LEN_MIN;
    let can = |(method, _): &(DeltaMethod, u64)| match method {
        DeltaMethod::LogSearched => is_long && known.answers.suffice_for(*method),
        _ => has_blocks && known.answers.suffice_for(*method),
    };
    let mut ways = [
        (DeltaMethod::LogSearched, known.searchable_bytes),
        (DeltaMethod::LogLookedUp, known.block_bytes),
    ];
    if known.searchable_bytes < part {
        ways.reverse();
    }
    if known.limit().is_some() || !ways.iter().any(can) {
        return DeltaMethod::Log;
    }
    // Bytes that were rewritten as they were cost nothing then, and no sums are lost.
    if hints.sums_know_most() {
        return DeltaMethod::Log;
    }
    let mut is_worth = |(method, bytes): &(DeltaMethod, u64)| {
        let former = hints.former_searches(*method);
        if former.is_some_and(|searches| searches.is_paused()) {
            return false;
        }
        let share = former.and_then(|searches| searches.expected_share());
        let file = FileFacts {
            size_bytes: *bytes,
            changed_share: share.unwrap_or(cost::SEARCHED_SHARE_DEFAULT),
            base_bytes: known.size_bytes,
        };
        cheapest([*method, DeltaMethod::Log], &file, &known.conditions) == Some(*method)
    };
    let chosen = ways.into_iter().filter(can).find(&mut is_worth);
    chosen.map_or(DeltaMethod::Log, |(method, _)| method)
}

/// The method that is expected to cost least, among those that the server can help with; or to send
/// the file as it is.
fn cheapest_finder(known: &Known, hints: &mut impl Hints) -> DeltaMethod {
    let finders = [
        DeltaMethod::Rsync,
        DeltaMethod::Webr,
        DeltaMethod::Cdc,
        DeltaMethod::SkyF,
    ];
    let is_summed = known.size_bytes >= SUMMED_LEN_MIN;
    let can = |method: &DeltaMethod| known.answers.suffice_for(*method) && (is_summed || *method != DeltaMethod::SkyF);
    let cheapest_at = |changed_share| {
        let file = FileFacts {
            size_bytes: known.size_bytes,
            changed_share,
            base_bytes: known.size_bytes,
        };
        let ways = finders.into_iter().filter(can).chain([DeltaMethod::Full]);
        cheapest(ways, &file, &known.conditions)
    };
    if !finders.iter().any(can) {
        // The method that the plan then falls back from.
        return DeltaMethod::Rsync;
    }
    // The record of former backups is read only if it decides.
    let [if_little, if_most] = cost::CHANGED_SHARES.map(cheapest_at);
    let method = match if_little == if_most {
        true => if_little,
        false => cheapest_at(hints.sent_share().unwrap_or(cost::CHANGED_SHARE_DEFAULT)),
    };
    method.unwrap_or(DeltaMethod::Rsync)
}

/// The most blocks of a signature for a content of this length.
pub(super) fn blocks_max(len_bytes: u64) -> u64 {
    (len_bytes / BYTES_PER_BLOCK_MIN).min(BLOCKS_MAX)
}

#[cfg(test)]
mod tests;
