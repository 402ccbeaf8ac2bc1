//! The note of the last backup, and names of snapshots.
#![no_main]

byteback_fuzz::target!(byteback_sync::fuzzing::note, byteback_sync::fuzzing::note_seeds);
