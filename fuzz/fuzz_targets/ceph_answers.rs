//! What ceph-objectstore-tool says of an object, and a line of its list.
#![no_main]

byteback_fuzz::target!(byteback_sources::fuzzing::ceph, byteback_sources::fuzzing::ceph_seeds);
