//! What a filer of SeaweedFS answers about a file.
#![no_main]

byteback_fuzz::target!(
    byteback_sources::fuzzing::seaweedfs,
    byteback_sources::fuzzing::seaweedfs_seeds
);
