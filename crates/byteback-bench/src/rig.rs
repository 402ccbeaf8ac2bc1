//! What measurements with real processes stand on.
//!
//! - [`interrupt`]: Ctrl-C and SIGTERM end a measurement like an error does, so that everything is
//!   cleaned up on the way out.
//! - [`scratch`]: a temporary folder that takes its mounts, its processes and itself away.
//! - [`process`]: running a program, and knowing afterwards (or meanwhile) what it cost: CPU time,
//!   bytes read, peak memory.
//! - [`proxy`]: bytes on the wire, counted between client and server, for everybody alike.
//! - [`scheduling`]: where threads run, so that what is measured is not the scheduler.
//! - [`hold`]: a mount with or without tracking, held by a process of its own.
//! - [`byteback`], [`rsync`], [`rdiff`], [`syncthing`], [`unison`], [`xdelta`]: the contenders,
//!   each as its users run it.
//! - [`btrfs`]: file systems with the checksums that they keep.
//!
//! Every value is taken from outside the program that is measured (kernel accounts and our own
//! proxy), except where a field says that a program reports it about itself.

pub(crate) mod btrfs;
pub(crate) mod byteback;
pub(crate) mod hold;
pub(crate) mod interrupt;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod rdiff;
pub(crate) mod rsync;
pub(crate) mod scheduling;
pub(crate) mod scratch;
pub(crate) mod syncthing;
pub(crate) mod unison;
pub(crate) mod xdelta;
