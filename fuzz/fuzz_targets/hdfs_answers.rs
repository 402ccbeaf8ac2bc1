//! What a NameNode and a DataNode of HDFS answer about a file.
#![no_main]

byteback_fuzz::target!(
    byteback_checksums::fuzzing::hdfs,
    byteback_checksums::fuzzing::hdfs_seeds
);
