//! What S3 answers about an object and its parts.
#![no_main]

byteback_fuzz::target!(byteback_sources::fuzzing::s3, byteback_sources::fuzzing::s3_seeds);
