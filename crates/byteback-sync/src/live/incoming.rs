//! What others did, on its way into the tree here: fetched ([`fetch`]), and planned as steps that
//! bring this tree to the state of the server ([`plan`]).
//!
//! | room | what is in it |
//! |---|---|
//! | [`fetch`] | what others did between two moments, and contents as deltas over what is here |
//! | [`plan`] | what is to be done, in which order, and what becomes of what was changed here, too |
//!
//! Who uses it: fetches `others`, makes the plan, asks for what that needs and makes it again, does
//! the steps; if one is overtaken by a program, the plan is made again, for the same head. The
//! steps carry identities of the server; which node that is here `identities` knows.
//!
//! Out of scope: change the tree.

pub mod fetch;
pub mod plan;
