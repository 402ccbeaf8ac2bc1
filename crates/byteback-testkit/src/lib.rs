//! The kit that tests of several crates share: the program and a server, a wire that breaks, trees
//! that change at random, and the comparison of two trees.
//!
//! | room | what is in it |
//! |---|---|
//! | [`command`] | the `byteback` program as a process: commands, what they said, its server |
//! | [`processes`] | handles of processes, and their ends |
//! | [`mounts`] | the mount table |
//! | [`tools`] | programs of the system that must succeed |
//! | [`waiting`] | waiting with an end |
//! | [`rig`] | a server in this process with a folder and a device, which can be stopped, filled and damaged |
//! | [`proxy`] | between client and server: cuts connections at a chosen byte, or hears every request |
//! | [`wire`] | between client and server: is cut, mended, and held at a commit |
//! | [`scripted_server`] | a server that answers by script |
//! | [`clients`] | clients with short pauses |
//! | [`listener`] | a monitor that remembers what it was told |
//! | [`scripted_tree`] | a tree in memory with a log as simple as can be, and what it must look like when restored |
//! | [`local_tree`] | real directories with some of everything, changed and compared |
//! | [`programs`] | programs at work in a real directory |
//! | [`mounted`] | a folder that a daemon of this process has mounted |
//! | [`seed`] | the seed of a random test, its length, and what is drawn |
//!
//! Only tests depend on it.
#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a kit for tests: a failure is to end the test, and names say what they are"
)]

pub mod clients;
pub mod command;
pub mod listener;
pub mod local_tree;
pub mod mounted;
pub mod mounts;
pub mod processes;
pub mod programs;
pub mod proxy;
pub mod rig;
pub mod scripted_server;
pub mod scripted_tree;
pub mod seed;
pub mod tools;
pub mod waiting;
pub mod wire;
