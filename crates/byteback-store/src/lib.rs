//! Versions as layers of extents over immutable segments.
