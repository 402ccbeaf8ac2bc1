//! A segment of the undo journal, replayed at a start.
#![no_main]

byteback_fuzz::target!(byteback_undo::fuzzing::segment, byteback_undo::fuzzing::segment_seeds);
