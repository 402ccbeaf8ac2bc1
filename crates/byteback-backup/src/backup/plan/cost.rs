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
//! *How scattered the change is* is unknown, too. It is taken to come in pieces of a page, each of
//! which costs one block or chunk more, as these are found whole or not at all.
//!
//! Out of scope: compression.

use crate::decisions::DeltaMethod;
use byteback_delta::leaves::{GROUP_LEN_BYTES, LeafKind};
use byteback_delta::signature::SignatureParams;

/// Assumed speed of a link before anything was sent over it, in bytes per second: 100 Mbit/s.
pub(in crate::backup) const LINK_DEFAULT: u64 = 12_500_000;

/// Assumed round trip, in nanoseconds.
pub(in crate::backup) const ROUND_TRIP_DEFAULT_NS: u64 = 10_000_000;

/// The share of a file that is assumed to have changed if nothing is known.
pub(in crate::backup) const CHANGED_SHARE_DEFAULT: f64 = 0.25;

/// The share of long reported ranges that is assumed to be new.
pub(in crate::backup) const SEARCHED_SHARE_DEFAULT: f64 = 0.5;

/// Bounds of that share: if the cheapest method is the same for both, the share is not looked up.
pub(in crate::backup) const CHANGED_SHARES: [f64; 2] = [0.02, 0.9];

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
    /// A literal that is written at the server and kept as long as the version: it counts for more
    /// time than writing takes, so that a fast link is no reason to store a file again.
    pub(super) const STORE: f64 = 40.0;
}

/// Bytes of a block in a signature.
const SIGNATURE_ENTRY_LEN: f64 = 12.0;

/// Bytes of a group of leaves, and of its sum in a list.
const GROUP_LEN: f64 = GROUP_LEN_BYTES as f64;
const GROUP_ENTRY_LEN: f64 = 32.0;

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
}

/// The expected cost of a method.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::backup) struct Estimate {
    /// Processor time of the client, on a processor of its own.
    client_ns: f64,
    server_ns: f64,
    wire_bytes: f64,
    round_trips: f64,
}

impl Estimate {
    /// The expected cost of `method`.
    fn of(method: DeltaMethod, file: &FileFacts) -> Self {
        use per_byte::{CUT, HASH, MATCH, READ, ROLL, STORE};
        let size = file.size_bytes as f64;
        let changed = size * file.changed_share.clamp(0.0, 1.0);
        let same = size - changed;
        let block_len = f64::from(SignatureParams::for_content(file.size_bytes, 0).block_len_bytes);
        let signature = (size / block_len).ceil() * SIGNATURE_ENTRY_LEN;
        // Bytes sent where groups are compared first: their sums, and a signature of those in which
        // some piece changed.
        let groups = (size / GROUP_LEN).ceil();
        let differing = groups.min((changed / PIECE_LEN).ceil()) * GROUP_LEN;
        // Less than a file's length.
        let leaf_block = SignatureParams::for_groups(LeafKind::Blake3, differing as u64, file.size_bytes, 0);
        let leaf_block_len = f64::from(leaf_block.block_len_bytes);
        let compared = groups * GROUP_ENTRY_LEN + differing / leaf_block_len * SIGNATURE_ENTRY_LEN;
        let chunks = (size / CHUNK_LEN).ceil() * CHUNK_ENTRY_LEN;
        let search = same * MATCH + changed * ROLL;
        let asked = |client_ns, server_ns, sent, granule_len: f64| {
            let literals = (changed + changed / PIECE_LEN * granule_len).min(size);
            Self {
                client_ns,
                server_ns: server_ns + literals * STORE,
                wire_bytes: sent + literals,
                round_trips: 1.0,
            }
        };
        match method {
            // This answers without any of it, or not at all.
            DeltaMethod::Sums => Self::default(),
            // The size is that of the reported ranges.
            DeltaMethod::Log | DeltaMethod::Full => Self {
                client_ns: size * READ,
                server_ns: size * STORE,
                wire_bytes: size,
                round_trips: 0.0,
            },
            DeltaMethod::Hash => asked(
                size * (READ + 2.0 * HASH),
                size * 2.0 * (READ + HASH),
                signature,
                block_len,
            ),
            DeltaMethod::Rsync => asked(
                size * (READ + HASH) + search,
                size * 2.0 * (READ + HASH),
                signature,
                block_len,
            ),
            // The part that is searched has about the length of the ranges on both sides as well.
            // The new bytes lie together: a program that inserts writes all that follows.
            DeltaMethod::LogSearched => {
                let literals = (changed + 2.0 * block_len).min(size);
                Self {
                    client_ns: size * (READ + HASH) + search,
                    server_ns: size * 4.0 * (READ + HASH) + literals * STORE,
                    wire_bytes: signature * 3.0 + literals,
                    round_trips: 2.0,
                }
            }
            DeltaMethod::Webr => asked(
                size * (READ + 2.0 * HASH) + changed * READ,
                size * (2.0 * READ + HASH) + search,
                signature,
                block_len,
            ),
            // The tree's process reads and sums; the server sums for the signature, from which the
            // proof follows.
            DeltaMethod::SkyF => asked(
                size * (READ + HASH) + changed * (READ + ROLL),
                size * (READ + HASH),
                compared,
                leaf_block_len,
            ),
            DeltaMethod::SkyC => asked(
                size * (READ + HASH) + 2.0 * changed * (READ + CUT),
                size * (2.0 * READ + CUT + HASH),
                compared + chunks * file.changed_share.clamp(0.0, 1.0),
                CHUNK_LEN,
            ),
            DeltaMethod::Cdc => asked(
                size * (READ + CUT + HASH) + changed * READ,
                size * (2.0 * READ + CUT + 2.0 * HASH),
                chunks,
                CHUNK_LEN,
            ),
        }
    }

    /// The total time, in nanoseconds.
    fn time_ns(&self, conditions: &Conditions) -> f64 {
        let share = conditions.processor_share.clamp(0.01, 1.0);
        let link = conditions.link_bytes_per_s.max(1) as f64;
        self.round_trips * conditions.round_trip_ns as f64
            + self.client_ns / share
            + self.server_ns
            + self.wire_bytes * 1e9 / link
    }
}

/// The method that takes the shortest time; of equal ones the first. `None` if none is given.
pub(in crate::backup) fn cheapest(
    methods: impl IntoIterator<Item = DeltaMethod>,
    file: &FileFacts,
    conditions: &Conditions,
) -> Option<DeltaMethod> {
    let mut best: Option<(DeltaMethod, f64)> = None;
    for method in methods {
        let time_ns = Estimate::of(method, file).time_ns(conditions);
        if best.is_none_or(|(_, least)| time_ns < least) {
            best = Some((method, time_ns));
        }
    }
    best.map(|(method, _)| method)
}

#[cfg(test)]
mod tests;
