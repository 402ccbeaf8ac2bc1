//! The catalog's blobs: staged records, pages of layers, attributes, tags; frames of segments.
#![no_main]

byteback_fuzz::target!(byteback_store::fuzzing::blob, byteback_store::fuzzing::blob_seeds);
