//! What ceph-objectstore-tool says of an object, and a line of its list.
#![no_main]

byteback_fuzz::target!(
    byteback_checksums::fuzzing::ceph,
    byteback_checksums::fuzzing::ceph_seeds
);
