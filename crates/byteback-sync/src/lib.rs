//! The client engine: backup, transfer, restore, verification.
