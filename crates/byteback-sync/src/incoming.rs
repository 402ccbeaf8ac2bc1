//! Others' changes on their way into the tree here: fetched ([`fetch`]), and planned as steps that
//! bring this tree to the state of the server ([`plan`]).
//!
//! | room | what is in it |
//! |---|---|
//! | [`fetch`] | others' changes between two moments, and contents as deltas over what is here |
//! | [`plan`] | which steps are to be done, in which order, and what becomes of nodes that were changed here, too |
//!
//! The caller fetches `others`, makes the plan, asks for what the plan needs and makes it again,
//! and does the steps. If a program overtakes a step, the plan is made again, for the same head.
//! The steps carry identities of the server; `identities` maps them to the nodes here.
//!
//! Out of scope: changing the tree.

pub mod fetch;
pub mod plan;
