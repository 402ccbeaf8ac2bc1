//! POSIX behaviour over a backing directory, with every modification through one gate.
//!
//! A request of the kernel passes these rooms:
//!
//! | room | knows | must not know |
//! |---|---|---|
//! | `adapter`, `kernel_cache` | the FUSE library | what an answer means |
//! | `tree` | POSIX: names, attributes, data, listings | FUSE |
//! | `hidden`, [`cuts`] | the folder `.byteback`: moments of the tree that are read like directories | FUSE |
//! | `deltas` | one file frozen for a program that has it open, with the changes in it | FUSE |
//! | `inodes`, `handles`, `credentials` | which node is which inode; what is open; on whose behalf | each other's |
//! | [`landing`] | what others changed, made here while programs use the tree | where it comes from |
//! | [`tracked`] | that something is about to change, and performs it | who asked |
//! | [`before_images`] | what was overwritten since the last backup | who asked |
//! | [`page_cache`] | bytes that the kernel holds in memory | who asked |
//! | [`integrity`] | sums of what was written, and the log | who asked |
//! | [`volume_tree`] | a volume in place of the backing directory | requests |
//! | [`beneath`] | the tree without what is mounted over parts of it | requests |
//! | [`session`] | mounting, unmounting, what happens when we die | requests |
//! | `direct` | programs of this process, without a kernel: for simulations | FUSE |
//!
//! `docs/semantics.md` lists what the mount promises to programs, with the test of each promise.

mod adapter;
pub mod before_images;
pub mod beneath;
mod credentials;
pub mod cuts;
mod deltas;
#[cfg(any(test, feature = "simulation"))]
pub mod direct;
mod handles;
mod hidden;
mod inodes;
pub mod integrity;
mod kernel_cache;
pub mod landing;
pub mod live;
pub mod mount_table;
mod mounted_within;
pub mod page_cache;
pub mod picture;
pub mod session;
mod stores;
pub mod tracked;
mod tree;
mod trimming;
pub mod volume_tree;

pub use credentials::Caller;
pub use handles::OpenFile;
pub use inodes::InodeNumber;
pub use kernel_cache::CacheMode;
pub use session::{Holder, Mount, MountError, MountOptions, ProgramBelow, Unmount, remove_leftover};
pub use stores::{FlushError, Flushed};
