//! Durable states of the volume, and the way back to one after a crash.
//!
//! | room | what it is for |
//! |---|---|
//! | [`checkpoint`] | the moment that a crash returns to |
//! | `sync` | one file, durable without a checkpoint |
//! | [`name_changes`] | names that such a file depends on |
//! | [`recovery`] | what a start makes of checkpoint and later blocks |
//! | [`written_pages`] | pages that a sync without a checkpoint vouches for |
//! | [`lost_writes`] | changed pages that cannot be written, as nodes that lead to them are lost |

pub(crate) mod checkpoint;
pub(crate) mod lost_writes;
pub(crate) mod name_changes;
pub(crate) mod recovery;
pub(crate) mod sync;
pub(crate) mod written_pages;
