//! The file of decisions.
#![no_main]

byteback_fuzz::target!(
    byteback_sync::fuzzing::decisions,
    byteback_sync::fuzzing::decisions_seeds
);
