//! What zdb says of a file on ZFS, and the list of mounts.
#![no_main]

byteback_fuzz::target!(byteback_checksums::fuzzing::zfs, byteback_checksums::fuzzing::zfs_seeds);
