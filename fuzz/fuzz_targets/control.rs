//! Frames and messages of the control socket, as both ends read them.
#![no_main]

byteback_fuzz::target!(
    byteback_control::fuzzing::socket,
    byteback_control::fuzzing::socket_seeds
);
