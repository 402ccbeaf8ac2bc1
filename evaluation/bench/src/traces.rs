//! Traces of real applications, and their replay.
//!
//! A *trace* is a folder made by recording a real program at work on a mounted folder: `trace.json`
//! (its description, and the hash of the tree that it ends in), `ops.jsonl.zst` (one operation a
//! line, in the order in which the tree changed), and `data.zst` (the initial tree as a tar, then
//! all written bytes, in the order of the operations). Some traces omit parts of the tar that a
//! script of the trace set generates again (`init.map.zst`, `tools/gentext.py`).
//!
//! | module | contents |
//! |---|---|
//! | [`load`] | a trace in memory: nothing is unpacked or parsed while the clock runs |
//! | [`operation`] | one operation, and its format in the file |
//! | [`replay`] | performing the operations, at full speed or at the recorded pace |
//! | [`tree_hash`] | the hash of a tree: a replay that ends in another one is invalid |

pub(crate) mod load;
pub(crate) mod operation;
pub(crate) mod replay;
pub(crate) mod tree_hash;

pub(crate) use load::{Trace, find};
pub(crate) use replay::{Pace, Replayer, Unmasked, replay};
pub(crate) use tree_hash::tree_hash;
