//! The expected cost of each method to find a change, so that the planner can choose.
//!
//! A model in one line: requests wait for a round trip, the client's processor works (slower where
//! other programs want it, too), the server's works, bytes cross the link, and literals are written
//! and kept. These times are added, although some of them overlap: only their order matters. Costs
//! of a byte are figures of `byteback-bench skysync` on the machine of docs/benchmarks.md;
//! processors differ less in the ratios of these than links do, which are measured.
//!
//! *The share of the file that changed* is unknown before it is found. The share that the last
//! backup of the file sent is the best guess ([`FileFacts::changed_share`]).
//!
//! *Up and down.* A byte from the server costs a part of a byte to it ([`DOWN_SHARE`]), so a
//! signature that comes down is cheaper than as many checksums that go up. Only the speed
//! upwards is measured.
//!
//! *How scattered the change is* is unknown, too. It is taken to come in pieces of a page, at least
//! one, each of which costs one block or chunk more, as these are found whole or not at all; or a
//! short block, for a second look ([`super::second_look`]), whichever is cheaper.
//!
//! Out of scope: compression.

use crate::decisions::DeltaMethod;
use byteback_delta::DIGEST_LEN;
use byteback_delta::leaves::{GROUP_LEN_BYTES, LEAF_LEN_BYTES, LeafKind};
use byteback_delta::signature::SignatureParams;

/// Assumed speed of a link before anything was sent over it, in bytes per second: 100 Mbit/s.
pub(in crate::backup) const LINK_DEFAULT: u64 = 12_500_000;

/// Speed from which on a link does not count as faster, in bytes per second: 1 Gbit/s. Bytes
/// are worth a little of a processor's work on any link.
const LINK_MAX: u64 = 125_000_000;

/// The cost of a byte from the server, as a share of that of a byte to it: links of homes, offices
/// and phones are several times slower upwards.
const DOWN_SHARE: f64 = 0.25;

/// Assumed round trip, in nanoseconds.
pub(in crate::backup) const ROUND_TRIP_DEFAULT_NS: u64 = 10_000_000;

/// The share of a file that is assumed to have changed if nothing is known.
pub(in crate::backup) const CHANGED_SHARE_DEFAULT: f64 = 0.25;

/// The share of long reported ranges that is assumed to be new.
pub(in crate::backup) const SEARCHED_SHARE_DEFAULT: f64 = 0.5;

/// Bounds of that share: if the cheapest method is the same for both, the share is not looked up.
pub(in crate::backup) const CHANGED_SHARES: [f64; 2] = [0.02, 0.9];

/// Processor time of a request and its answer at both ends, in nanoseconds.
const REQUEST_NS: f64 = 200_000.0;

/// Bytes of a file in a list of those whose digests are asked for.
const WANTED_DIGEST_LEN: f64 = 36.0;

/// The share of short files that is assumed to be equal where anything may have changed.
const EQUAL_SHARE: f64 = 0.25;

/// Nanoseconds for each byte.
mod per_byte {
    /// Reading from memory or a fast disk, with the copies on the way.
    pub(super) const READ: f64 = 0.25;
    /// The digest of the whole, or strong checksums of all blocks.
    pub(super) const HASH: f64 = 0.45;
    /// A block that is found where it is expected.
    pub(super) const MATCH: f64 = 0.45;
    /// Moving the window on by one byte.
    pub(super) const ROLL: f64 = 2.0;
    /// Borders of chunks and their weak checksums.
    pub(super) const CUT: f64 = 0.25;
    /// The leaves that the server keeps of its version, gone through.
    pub(super) const LEAVES: f64 = 0.1;
    /// A literal that is written at the server and kept as long as the version: it counts for more
    /// time than writing takes, so that a fast link is no reason to store a file again.
    pub(super) const STORE: f64 = 40.0;
}

/// Bytes of a leaf.
const LEAF_LEN: f64 = LEAF_LEN_BYTES as f64;

/// Bytes of a block in a signature.
const SIGNATURE_ENTRY_LEN: f64 = 12.0;

/// Bytes of a block in the signature of an excerpt, and of a whole version.
pub(super) const EXCERPT_ENTRY_LEN: u64 = 10;

/// Bytes of a block in a second look, mostly.
const SHORT_BLOCK_LEN: f64 = 128.0;

/// Bytes of a range in the list of an excerpt, and of the request around it.
const EXCERPT_RANGE_LEN: f64 = 5.0;
const EXCERPT_REQUEST_LEN: f64 = 300.0;

/// The share of what a finder left that a second look is assumed to find, beside the blocks in
/// which something changed.
const FOUND_AGAIN_SHARE: f64 = 0.5;

/// Bytes of a group of leaves, and of its sum in a list.
const GROUP_LEN: f64 = GROUP_LEN_BYTES as f64;
const GROUP_ENTRY_LEN: f64 = 16.0;

/// Bytes of a chunk in a list, and the average length of chunks.
const CHUNK_ENTRY_LEN: f64 = 6.0;
const CHUNK_LEN: f64 = 8192.0;

/// Bytes that are assumed to change together.
const PIECE_LEN: f64 = 4096.0;

/// The conditions of a backup.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::backup) struct Conditions {
    /// Speed of the link to the server.
    pub(in crate::backup) link_bytes_per_s: u64,
    /// Time from a request to its answer.
    pub(in crate::backup) round_trip_ns: u64,
    /// The share of a processor that one thread gets, above 0, at most 1.
    pub(in crate::backup) processor_share: f64,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            link_bytes_per_s: LINK_DEFAULT,
            round_trip_ns: ROUND_TRIP_DEFAULT_NS,
            processor_share: 1.0,
        }
    }
}

/// Known or estimated facts about a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::backup) struct FileFacts {
    pub(in crate::backup) size_bytes: u64,
    /// The share of it that the server lacks.
    pub(in crate::backup) changed_share: f64,
    /// Bytes of the server's version, as far as is known.
    pub(in crate::backup) base_bytes: u64,
}

/// The expected cost of a method.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::backup) struct Estimate {
    /// Processor time of the client, on a processor of its own.
    client_ns: f64,
    server_ns: f64,
    up_bytes: f64,
    down_bytes: f64,
    round_trips: f64,
}

impl Estimate {
    /// The expected time of `method`, in nanoseconds; with a second look, if that takes less.
    fn least_ns(method: DeltaMethod, file: &FileFacts, conditions: &Conditions) -> f64 {
        let [once, twice] = [false, true].map(|is_twice| Self::of(method, file, is_twice).time_ns(conditions));
        match twice < once {
            true => twice,
            false => once,
        }
    }

    /// The expected cost of `method`, with a second look or without.
    fn of(method: DeltaMethod, file: &FileFacts, is_twice: bool) -> Self {
        use per_byte::{CUT, HASH, LEAVES, MATCH, READ, ROLL, STORE};
        let size = file.size_bytes as f64;
        let changed = size * file.changed_share.clamp(0.0, 1.0);
        let same = size - changed;
        let block_len = f64::from(SignatureParams::for_content(file.size_bytes, 0).block_len_bytes);
        let signature = (size / block_len).ceil() * SIGNATURE_ENTRY_LEN;
        // Bytes sent where groups are compared first: their sums, and a signature of those in which
        // some piece changed.
        let groups = (size / GROUP_LEN).ceil();
        let group_sums = groups * GROUP_ENTRY_LEN;
        let differing = groups.min((changed / PIECE_LEN).ceil()) * GROUP_LEN;
        // Less than a file's length.
        let leaf_block = SignatureParams::for_groups(LeafKind::Blake3, differing as u64, file.size_bytes, 0);
        let leaf_block_len = f64::from(leaf_block.block_len_bytes);
        let of_differing = differing / leaf_block_len * SIGNATURE_ENTRY_LEN;
        let chunks = (size / CHUNK_LEN).ceil() * CHUNK_ENTRY_LEN;
        let search = same * MATCH + changed * ROLL;
        let asked = |client_ns, server_ns, [up, down]: [f64; 2], granule_len: f64| {
            let pieces = (changed / PIECE_LEN).ceil().max(1.0);
            let left = (changed + pieces * granule_len).min(size);
            let granule_len = if is_twice { SHORT_BLOCK_LEN } else { granule_len };
            let literals = (changed + pieces * granule_len).min(left);
            let (again, short_blocks) = match is_twice {
                true => (left, left / SHORT_BLOCK_LEN),
                false => (0.0, 0.0),
            };
            Self {
                client_ns: client_ns + again * ROLL,
                server_ns: server_ns + again * (READ + HASH) + literals * STORE,
                up_bytes: up + literals,
                down_bytes: down + short_blocks * EXCERPT_ENTRY_LEN as f64,
                round_trips: 1.0 + f64::from(u8::from(is_twice)),
            }
        };
        match method {
            // This answers without any of it, or not at all.
            DeltaMethod::Sums => Self::default(),
            // The size is that of the reported ranges, if there are any. How much of them a
            // comparison finds is not known.
            DeltaMethod::Log | DeltaMethod::LogCompared | DeltaMethod::Full => Self {
                client_ns: size * READ,
                server_ns: size * STORE,
                up_bytes: size,
                ..Self::default()
            },
            DeltaMethod::Hash => asked(
                size * (READ + 2.0 * HASH),
                size * 2.0 * (READ + HASH),
                [0.0, signature],
                block_len,
            ),
            DeltaMethod::Rsync => asked(
                size * (READ + HASH) + search,
                size * 2.0 * (READ + HASH),
                [0.0, signature],
                block_len,
            ),
            // The part that is searched has about the length of the ranges on both sides as well.
            // The new bytes lie together: a program that inserts writes all that follows.
            DeltaMethod::LogSearched => {
                let literals = (changed + 2.0 * block_len).min(size);
                Self {
                    client_ns: size * (READ + HASH) + search,
                    server_ns: size * 4.0 * (READ + HASH) + literals * STORE,
                    up_bytes: literals,
                    down_bytes: signature * 3.0,
                    round_trips: 2.0,
                }
            }
            // The blocks are read and summed, and read once more. Those that are found are read for
            // the proof.
            DeltaMethod::LogLookedUp => Self {
                client_ns: size * 2.0 * (READ + HASH),
                server_ns: file.base_bytes as f64 * LEAVES + same * (READ + HASH) + changed * STORE,
                up_bytes: changed + size / LEAF_LEN * SIGNATURE_ENTRY_LEN,
                down_bytes: 0.0,
                round_trips: 1.0,
            },
            DeltaMethod::Webr => asked(
                size * (READ + 2.0 * HASH) + changed * READ,
                size * (2.0 * READ + HASH) + search,
                [signature, 0.0],
                block_len,
            ),
            // The tree's process reads and sums. The server goes through the sums that it keeps,
            // for the answer and for the proof, and sums what is new.
            DeltaMethod::SkyF => asked(
                size * (READ + HASH) + changed * (READ + ROLL),
                size * 2.0 * LEAVES + changed * (READ + HASH),
                [group_sums, of_differing],
                leaf_block_len,
            ),
            DeltaMethod::SkyC => asked(
                size * (READ + HASH) + 2.0 * changed * (READ + CUT),
                size * (2.0 * READ + CUT + HASH),
                [group_sums + chunks * file.changed_share.clamp(0.0, 1.0), of_differing],
                CHUNK_LEN,
            ),
            DeltaMethod::Cdc => asked(
                size * (READ + CUT + HASH) + changed * READ,
                size * (2.0 * READ + CUT + 2.0 * HASH),
                [chunks, 0.0],
                CHUNK_LEN,
            ),
        }
    }

    /// The total time, in nanoseconds.
    fn time_ns(&self, conditions: &Conditions) -> f64 {
        let share = conditions.processor_share.clamp(0.01, 1.0);
        let link = conditions.link_bytes_per_s.clamp(1, LINK_MAX) as f64;
        self.round_trips * (conditions.round_trip_ns as f64 + REQUEST_NS)
            + self.client_ns / share
            + self.server_ns
            + (self.up_bytes + self.down_bytes * DOWN_SHARE) * 1e9 / link
    }
}

/// Whether to ask for the digests of as many contents as there are files here, with
/// `total_bytes` together: whether that is expected to take less time than sending equal ones.
pub(in crate::backup) fn is_comparing_worth(files: usize, total_bytes: u64, conditions: &Conditions) -> bool {
    use per_byte::{HASH, READ, STORE};
    let total = total_bytes as f64;
    let digested_ns = total * (READ + HASH);
    let asked = Estimate {
        client_ns: digested_ns,
        server_ns: digested_ns,
        up_bytes: files as f64 * WANTED_DIGEST_LEN,
        down_bytes: files as f64 * DIGEST_LEN as f64 * 2.0,
        round_trips: 1.0,
    };
    let sent = Estimate {
        server_ns: total * STORE,
        up_bytes: total,
        ..Estimate::default()
    };
    asked.time_ns(conditions) < sent.time_ns(conditions) * EQUAL_SHARE
}

/// The expected bytes of a second look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SecondLookBytes {
    /// Bytes to and from the server, in bytes to it.
    pub(super) asked: f64,
    /// Literals that need not be sent.
    pub(super) saved: f64,
}

/// The expected bytes of a look for literals, by their number and that of the gaps that they lie
/// in, in blocks of this length of an excerpt, by its length in bytes and the number of its ranges.
pub(super) fn second_look_bytes(
    (literal_bytes, gaps): (u64, usize),
    (excerpt_bytes, ranges): (u64, usize),
    block_len_bytes: u64,
) -> SecondLookBytes {
    let (literals, gaps, block_len) = (literal_bytes as f64, gaps as f64, block_len_bytes.max(1) as f64);
    let signature = excerpt_bytes as f64 / block_len * EXCERPT_ENTRY_LEN as f64;
    SecondLookBytes {
        asked: EXCERPT_REQUEST_LEN + ranges as f64 * EXCERPT_RANGE_LEN + signature * DOWN_SHARE,
        saved: (literals - gaps * block_len) * FOUND_AGAIN_SHARE,
    }
}

/// The expected bytes of a look for `literal_bytes` in the bytes themselves of an excerpt of
/// `excerpt_bytes` in this number of ranges. `found_share` of them is expected there. Both sides
/// are compressed alike.
pub(super) fn comparison_bytes(literal_bytes: u64, found_share: f64, excerpt: (u64, usize)) -> SecondLookBytes {
    let (excerpt_bytes, ranges) = excerpt;
    SecondLookBytes {
        asked: EXCERPT_REQUEST_LEN + ranges as f64 * EXCERPT_RANGE_LEN + excerpt_bytes as f64 * DOWN_SHARE,
        saved: literal_bytes as f64 * found_share.clamp(0.0, FOUND_AGAIN_SHARE),
    }
}

/// The expected bytes of a look for `literal_bytes` in the sums of a whole version in blocks of
/// this length.
pub(super) fn whole_version_bytes(literal_bytes: u64, base_len_bytes: u64, block_len_bytes: u32) -> SecondLookBytes {
    let signature = base_len_bytes as f64 / f64::from(block_len_bytes.max(1)) * EXCERPT_ENTRY_LEN as f64;
    SecondLookBytes {
        asked: EXCERPT_REQUEST_LEN + signature * DOWN_SHARE,
        saved: literal_bytes as f64 * FOUND_AGAIN_SHARE,
    }
}

/// Whether such a look is expected to take less time than sending what it saves.
pub(super) fn is_second_look_fast(literal_bytes: u64, bytes: &SecondLookBytes, conditions: &Conditions) -> bool {
    use per_byte::{HASH, READ, ROLL, STORE};
    let literals = literal_bytes as f64;
    let asked = Estimate {
        client_ns: literals * ROLL,
        server_ns: literals * (READ + HASH),
        up_bytes: bytes.asked,
        down_bytes: 0.0,
        round_trips: 1.0,
    };
    let saved = Estimate {
        server_ns: bytes.saved * STORE,
        up_bytes: bytes.saved,
        ..Estimate::default()
    };
    asked.time_ns(conditions) < saved.time_ns(conditions)
}

/// The time for which such a look waits, in nanoseconds.
pub(super) fn second_look_wait_ns(conditions: &Conditions) -> u64 {
    // Whole nanoseconds.
    conditions.round_trip_ns.saturating_add(REQUEST_NS as u64)
}

/// The method that takes the shortest time; of equal ones the first. `None` if none is given.
pub(in crate::backup) fn cheapest(
    methods: impl IntoIterator<Item = DeltaMethod>,
    file: &FileFacts,
    conditions: &Conditions,
) -> Option<DeltaMethod> {
    let mut best: Option<(DeltaMethod, f64)> = None;
    for method in methods {
        let time_ns = Estimate::least_ns(method, file, conditions);
        if best.is_none_or(|(_, least)| time_ns < least) {
            best = Some((method, time_ns));
        }
    }
    best.map(|(method, _)| method)
}

#[cfg(test)]
mod tests;
