//! One test per promise of `docs/semantics.md`.

mod data;
mod direct;
mod holes;
mod listings;
mod metadata;
mod names;
mod owners;
pub(crate) mod stores;
