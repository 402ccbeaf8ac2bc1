//! What a NameNode and a DataNode of HDFS answer about a file.
#![no_main]

byteback_fuzz::target!(byteback_sources::fuzzing::hdfs, byteback_sources::fuzzing::hdfs_seeds);
