//! Private readers of outside input, for the fuzz targets (`fuzz/`) and the tests that run their
//! seeds.

pub use crate::durable::fuzzing::{versioned_json, versioned_json_seeds};
