//! What mfsfileinfo says of a file on MooseFS, and the beginning of a chunk's file.
#![no_main]

byteback_fuzz::target!(
    byteback_sources::fuzzing::moosefs,
    byteback_sources::fuzzing::moosefs_seeds
);
