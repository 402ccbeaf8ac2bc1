//! The interface of a tracked tree, and its transport across a Unix socket.
//!
//! One process owns a tree: its log, and while it is mounted the gate and the pictures. Everything
//! else (the backup, `changes`, `status`, later sync) sees the tree as a [`TreeService`]. The
//! daemon implements it; a folder that is not mounted is served by the same implementation inside
//! the command; and [`Client`] is the same trait at the other end of the socket, so that callers
//! need not know which of the three they talk to.
//!
//! | room | what is in it |
//! |---|---|
//! | `service` | the trait and its types |
//! | `live` | the trait of continuous sync: groups of changes in their order; not across the socket |
//! | `landing` | its counterpart: what others changed is made in the mounted tree; not across the socket |
//! | `sync_status` | how sync stands, as part of a tree's status |
//! | `leaves` | the types of the checksums of a file's leaves |
//! | `messages` | requests and answers as JSON |
//! | `frame` | lengths and kinds on the wire: JSON for control, raw bytes for content |
//! | `client`, `server` | the two ends |
//!
//! Out of scope: how trees are read, mounted or logged.

mod client;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod landing;
mod leaves;
mod live;
mod messages;
mod repair;
mod server;
mod service;
mod sync_status;

pub use byteback_oplog::{ChangesCursor, ChangesPage, ContentChange, NodeChange};
pub use client::Client;
pub use landing::{
    AttributeKind, Expected, Landed, LandingNode, LandingTree, MissedAttribute, Overtaken, UnsentNode, WatchedFile,
    WatchedNode, overtaken_in,
};
pub use leaves::{
    LEAF_CRC_LEN, LEAF_LEN_BYTES, LEAF_SUM_LEN, LeafKind, LeafOffer, LeafPiece, LeafRequest, LeafSource, LeavesSummary,
};
pub use live::{
    LiveContent, LiveFold, LiveGroup, LiveNode, LiveScope, LiveSource, LiveStatus, LiveTree, SYNC_CONSUMER, Work,
};
pub use repair::{Damage, RepairReport, RepairRequest, RepairWish, Repaired, ServerVersion};
pub use server::{Server, socket_address};
pub use service::{
    ConsumerStatus, CutId, CutInfo, CutRequest, DamagedFile, Detached, DirEntry, ErrorKind, FileHistory, FinishReport,
    HELD_BLOCK_BYTES, Holder, NamedCut, NodeNames, Outcome, PastEvent, PastFile, PastMoment, Piece, Result,
    ServiceError, TreeService, TreeStatus, no_line, not_synced,
};
pub use sync_status::{SIGN_OF_LIFE_S, SyncConflict, SyncLeftOut, SyncReceiving, SyncStatus, SyncUnusableRule};

#[cfg(test)]
mod tests;
