//! What the device mapper says of a device, and the extents of a file.
#![no_main]

byteback_fuzz::target!(
    byteback_sources::fuzzing::dmverity,
    byteback_sources::fuzzing::dmverity_seeds
);
