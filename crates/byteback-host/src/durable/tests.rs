//! The contract of durable files, on the machine's file system.
