//! The device as six logs of blocks: what is in use, where nodes are, and how room is made.
//!
//! | room | what it is for |
//! |---|---|
//! | `geometry` | division of a device |
//! | [`media`] | the device, by sealed blocks |
//! | [`segments`] | blocks in use, and the six logs |
//! | `node_table` | addresses of nodes |
//! | `clean` | making room |

pub(crate) mod clean;
pub(crate) mod geometry;
pub(crate) mod media;
pub(crate) mod node_table;
pub(crate) mod segments;
