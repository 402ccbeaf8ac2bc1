//! Small records that are each a file of JSON with a version and a checksum.
#![no_main]

byteback_fuzz::target!(
    byteback_host::fuzzing::versioned_json,
    byteback_host::fuzzing::versioned_json_seeds
);
