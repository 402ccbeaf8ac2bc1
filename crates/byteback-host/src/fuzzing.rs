//! Private readers of outside input, for the fuzz targets (`fuzz/`) and the tests that run their
//! seeds.

pub use crate::durable::fuzzing::{record_log, record_log_seeds, versioned_json, versioned_json_seeds};
