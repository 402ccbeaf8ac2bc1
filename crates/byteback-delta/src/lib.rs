//! The delta: its map, wire format, composition and application.
