//! Records of the operation log: layers, nodes, consumers, marks, the ledger, mlogs.
#![no_main]

byteback_fuzz::target!(byteback_oplog::fuzzing::record, byteback_oplog::fuzzing::record_seeds);
