//! How continuous sync of a tree stands, as the tree's status reports it, also across the socket.
//!
//! The sync engine fills it in; this module decides nothing.

use byteback_model::ByteString;
use serde::{Deserialize, Serialize};

/// A file that was changed here and, before that was sent, by another machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncConflict {
    /// The path that it had, which stands for the other machine's version since.
    pub path: ByteString,
    /// Where what was changed here is.
    pub copy: ByteString,
    /// When that was found out, nanoseconds since 1970.
    pub at_ns: i64,
    /// Files with the same number were changed here in one atomic operation: they became copies
    /// together, and are best decided together.
    pub set: Option<u64>,
}

/// A name of the server that this file system cannot hold, or a file that others changed and that
/// cannot be changed here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncLeftOut {
    /// The path that it would have.
    pub path: ByteString,
    /// The file system cannot distinguish it from another name that is there: it appears when that
    /// is gone. Otherwise it cannot be here at all.
    pub collides: bool,
    /// The reason why the object there cannot be changed: others changed it, and that is tried
    /// again.
    pub blocked: Option<String>,
}

/// A line in a file of ignore rules that has no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncUnusableRule {
    /// The file.
    pub path: ByteString,
    /// The line, from 1 on.
    pub line: u64,
    /// The fault in it.
    pub why: String,
}

/// How continuous sync of a tree with its server stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncStatus {
    /// The server's address.
    pub server: String,
    /// The folder there.
    pub folder: String,
    /// The server answered when it was asked last.
    pub is_connected: bool,
    /// Since when that is so, nanoseconds since 1970.
    pub since_ns: i64,
    /// The last failure, until it works again, or until something else is wrong.
    pub error: Option<String>,
    /// The failure will not pass by itself.
    pub needs_attention: bool,
    /// Sync has ended, though the mount may go on.
    pub has_ended: bool,
    /// Groups of changes that the server applied since this process began to sync.
    pub sent_groups: u64,
    /// Bytes that were sent since this process began to sync.
    pub sent_bytes: u64,
    /// When the server last applied one, nanoseconds since 1970.
    pub sent_at_ns: Option<i64>,
    /// The sequence number of the server's folder up to which others' changes are here.
    pub cursor: u64,
    /// When the last change of others came in, nanoseconds since 1970.
    pub received_at_ns: Option<i64>,
    /// Names of the server that this file system cannot hold.
    pub left_out_names: u64,
    /// The first of them.
    pub left_out: Vec<SyncLeftOut>,
    /// Names of the server that are ignored here, each with all that is below it.
    pub ignored_names: u64,
    /// Files, directories and the like here that are ignored, as of the last sent group.
    pub ignored_here: u64,
    /// Files with rules for what is ignored: `.bytebackignore` and `CACHEDIR.TAG`.
    pub ignore_files: u64,
    /// The first of them.
    pub ignored_by: Vec<ByteString>,
    /// The first lines of files with rules for that which say nothing.
    pub unusable_rules: Vec<SyncUnusableRule>,
    /// Conflict copies that are still undecided, oldest first.
    pub conflicts: Vec<SyncConflict>,
    /// Files that could not be read.
    pub unsaved_files: u64,
    /// Files, directories and the like whose changes are not sent until what others changed of them
    /// can be made here.
    pub held_nodes: u64,
    /// Changes that wait.
    pub waiting_nodes: u64,
    /// Bytes of content that wait.
    pub waiting_bytes: u64,
    /// Groups that are on their way.
    pub groups_in_flight: u64,
    /// The waiting changes are so large, or so poorly known, that they are taken from a moment of
    /// the whole tree.
    pub is_folded: bool,
    /// Since when the user wants nothing sent or received, nanoseconds since 1970.
    pub paused_since_ns: Option<i64>,
    /// The limits that the user wants, one after the other as people write them.
    pub limits: Vec<String>,
    /// Bytes per second that may move now; 0: none; `None`: as fast as it goes.
    pub bytes_per_second_max: Option<u64>,
    /// When the server was last heard of, nanoseconds since 1970: by an answer, or by the sign of
    /// life that it sends to listeners every [`SIGN_OF_LIFE_S`] seconds.
    pub heard_at_ns: Option<i64>,
    /// Changes of others are coming in. This is not all of them: more may follow.
    pub receiving: Option<SyncReceiving>,
}

/// How far what others did has come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncReceiving {
    /// Changes that are still to be made here; `None`: the server is being asked for them.
    pub changes_to_come: Option<u64>,
    /// Files that were compared with the server's, and those that are to be: both sides have them,
    /// and nothing is known about which is newer.
    pub compared: Option<(u64, u64)>,
}

/// A listener hears a sign of life from the server this often, in seconds.
pub const SIGN_OF_LIFE_S: u64 = 15;
