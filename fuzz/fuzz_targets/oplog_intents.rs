//! The file of write intents.
#![no_main]

byteback_fuzz::target!(byteback_oplog::fuzzing::intents, byteback_oplog::fuzzing::intents_seeds);
