//! Lists of chunks that other programs wrote: casync's indexes, and recipes.
#![no_main]

byteback_fuzz::target!(
    byteback_sources::fuzzing::chunk_lists,
    byteback_sources::fuzzing::chunk_list_seeds
);
