//! Rows of the client's store of block checksums.
#![no_main]

byteback_fuzz::target!(byteback_checksums::fuzzing::row, byteback_checksums::fuzzing::row_seeds);
