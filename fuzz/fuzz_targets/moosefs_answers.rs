//! What mfsfileinfo says of a file on MooseFS, and the beginning of a chunk's file.
#![no_main]

byteback_fuzz::target!(
    byteback_checksums::fuzzing::moosefs,
    byteback_checksums::fuzzing::moosefs_seeds
);
