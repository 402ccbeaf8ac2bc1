//! The process behind one tracked tree.
