//! The engine against a server and a scripted tree.
