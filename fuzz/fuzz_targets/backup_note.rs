//! The note of the last backup, and names of snapshots.
#![no_main]

byteback_fuzz::target!(byteback_backup::fuzzing::note, byteback_backup::fuzzing::note_seeds);
