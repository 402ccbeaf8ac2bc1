//! Continuous sync, the part that decides: which saves are transactional, which changes are sent,
//! in which order, and which belong together.
//!
//! Source: DeltaCFS (ICDCS'17), sections III-A (relation table), III-B (sync queue), III-C
//! (versions), III-E (causal order). Everything here is a state machine without I/O, clock or
//! threads: time comes in as a number, bytes stay where they are, and what happened before can be
//! replayed. The gate of the daemon feeds it, the client engine drains it; neither needs to know
//! the other.
//!
//! Words:
//! - *node*: a file, directory or other inode of the origin's tree, by its number ([`NodeId`]),
//!   whatever it is called at the moment.
//! - *place*: a name in a directory ([`byteback_model::Place`]).
//! - *origin*: the machine whose operations these are; its *order* is the one in which its gate saw
//!   them.
//! - *kept aside*: a removed file whose last name is gone, and which the gate holds on to by a link
//!   of its own.
//!
//! | room | what is in it |
//! |---|---|
//! | [`relation`] | recognises transactional saves: which new content is to be compared with which old one |
//! | [`queue`] | what is to be sent, in which order, and what belongs together |
//! | [`persist`] | the queue's state and the calls that change it, as bytes |
//! | `checker` | for tests: proves of a recorded history that each state that was delivered is one that the origin had |
//!
//! How the gate calls, for an operation on names: before it, if a file is to lose its last name,
//! [`relation::RelationTable::is_worth_keeping`] and [`queue::Queue::needs_file`], and the file is
//! linked aside if either says so; then the operation; then [`relation::RelationTable::observe`],
//! whose decisions go to [`queue::Queue::relate`] and [`queue::Queue::unrelate`]; then
//! [`queue::Queue::event`]; then [`queue::Queue::take_effects`], of which
//! [`queue::Effect::Unrelated`] goes to [`relation::RelationTable::finish`] and
//! [`queue::Effect::Rebased`] to [`relation::RelationTable::rebase`], in their order. For content:
//! [`queue::Queue::saves_before`], the bytes are put aside, [`queue::Queue::saved`]; then the
//! change; then the event. All of it in one order, under one lock.
//!
//! Out of scope: read, store or send bytes; encode deltas; know paths, servers or other
//! clients.

#[cfg(test)]
mod checker;
mod ids;
mod operation;
pub mod persist;
pub mod queue;
pub mod relation;

pub use ids::{ClientId, GroupId, Position, Version};
pub use operation::{Moved, NameOperation, Victim};

#[cfg(test)]
mod tests;
