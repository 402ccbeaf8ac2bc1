//! What can be measured: one module per suite.

pub(crate) mod deltacfs;
pub(crate) mod deltafs;
pub(crate) mod extents;
pub(crate) mod image;
pub(crate) mod skysync;
pub(crate) mod solfs;
