//! The map of identities and the head of a set of patches, as a start of continuous sync finds
//! them.
#![no_main]

byteback_fuzz::target!(
    byteback_sync::fuzzing::sync_state,
    byteback_sync::fuzzing::sync_state_seeds
);
