//! Files of records that grow by small steps.
#![no_main]

byteback_fuzz::target!(
    byteback_host::fuzzing::record_log,
    byteback_host::fuzzing::record_log_seeds
);
