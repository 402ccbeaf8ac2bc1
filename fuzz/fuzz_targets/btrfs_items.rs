//! What btrfs's tree search and its description of itself answer.
#![no_main]

byteback_fuzz::target!(
    byteback_checksums::fuzzing::btrfs,
    byteback_checksums::fuzzing::btrfs_seeds
);
