//! Continuous sync (DeltaCFS), the client engine's side: how local changes reach the server, and
//! how others' changes arrive here.
//!
//! | room | what is in it |
//! |---|---|
//! | [`engine`] | the loop that sends what the tree hands out, and lets in what others did |
//! | [`identities`] | which node here is which file at the server |
//! | [`ignore_rules`] | which paths are ignored, by the rules in the folder |
//! | `ignored` | which nodes of the tree here those rules ignore |
//! | [`standing`] | with which server the folder is in sync, and up to which of its batches |
//! | [`incoming`] | others' changes: fetched, and planned as steps that bring the tree here to the state of the server |
//! | [`receive`] | the steps of that plan, done in the tree while programs use it; conflicts |
//! | [`upload`] | a group of changes as one batch on top of what its sender has seen and sent |
//! | [`patches`] | others' deltas on their way into the files they change, so that a crash in between is noticed and repaired |
//!
//! The crate `byteback-queue` decides which changes are sent, and in which order. This crate must
//! not know how folders are mounted or how the server stores.

pub mod engine;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod identities;
pub mod ignore_rules;
mod ignored;
pub mod incoming;
pub mod patches;
pub mod receive;
pub mod standing;
pub mod upload;
