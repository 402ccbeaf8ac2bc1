//! The vocabulary that all parts of Byteback share. Each idea is declared here once.
//!
//! - *node*: a file, directory, symlink or special file. A machine numbers the nodes of its own
//!   tree ([`NodeId`]); a server knows them by an identity that the client chose ([`FileId`]).
//! - *attributes*: the metadata of a node beside its names and content ([`Attributes`]).
//! - *place*: a name in a directory ([`Place`]), with either of the two numbers.
//! - *name change*: a new meaning of a name, or its removal ([`NameChange`]).
//! - *sequence number*: a moment of a folder on its server ([`Seq`]).
//!
//! Out of scope: logic, I/O and stored formats; only types and their JSON forms are here.

pub mod attributes;
mod batch;
pub mod byte_string;
pub mod file_id;
mod moment;
mod name;
mod node_id;
mod origin;
mod snapshot;
pub mod wide_ns;

pub use attributes::{Attributes, NodeKind, Xattr};
pub use batch::{BatchApplied, ContentBase, ContentChange, Manifest, NodeRecord, Totals};
pub use byte_string::ByteString;
pub use file_id::FileId;
pub use moment::{ContentVersion, NAMES_COUNTED_MAX, NodeInfo};
pub use name::{NameChange, Place};
pub use node_id::NodeId;
pub use origin::{Origin, OwnBatch};
pub use snapshot::{Snapshot, SnapshotLabel};

/// A folder's sequence number: 1 for its first applied batch, then without gaps; 0 before that.
pub type Seq = u64;

/// A device as its server numbers it; the "client id" of a version (DeltaCFS section III-C).
pub type DeviceId = u64;
