//! POSIX behaviour over a backing directory, with every modification through one gate.
