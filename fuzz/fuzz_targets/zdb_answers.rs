//! What zdb says of a file on ZFS, and the list of mounts.
#![no_main]

byteback_fuzz::target!(byteback_sources::fuzzing::zfs, byteback_sources::fuzzing::zfs_seeds);
