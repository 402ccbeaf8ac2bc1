//! The descriptor of a file that is sealed by fs-verity, and the nodes of its tree.
#![no_main]

byteback_fuzz::target!(
    byteback_checksums::fuzzing::fsverity,
    byteback_checksums::fuzzing::fsverity_seeds
);
