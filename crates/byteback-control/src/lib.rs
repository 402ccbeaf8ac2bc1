//! The protocol between a mounted tree's daemon and the commands.
