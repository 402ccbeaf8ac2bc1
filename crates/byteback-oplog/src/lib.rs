//! The operation log: layers, epochs, marks, write intents, recovery.
