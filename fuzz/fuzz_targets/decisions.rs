//! The file of decisions.
#![no_main]

byteback_fuzz::target!(
    byteback_backup::fuzzing::decisions,
    byteback_backup::fuzzing::decisions_seeds
);
