//! The descriptor of a file that is sealed by fs-verity, and the nodes of its tree.
#![no_main]

byteback_fuzz::target!(
    byteback_sources::fuzzing::fsverity,
    byteback_sources::fuzzing::fsverity_seeds
);
