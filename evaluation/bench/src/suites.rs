//! The suites: one module each.

pub(crate) mod deltacfs;
pub(crate) mod deltafs;
pub(crate) mod extents;
pub(crate) mod history;
pub(crate) mod image;
pub(crate) mod saves;
pub(crate) mod skysync;
pub(crate) mod small_files;
pub(crate) mod solfs;
