//! What a filer of SeaweedFS answers about a file.
#![no_main]

byteback_fuzz::target!(
    byteback_checksums::fuzzing::seaweedfs,
    byteback_checksums::fuzzing::seaweedfs_seeds
);
