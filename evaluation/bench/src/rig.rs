//! The equipment of measurements with real processes.
//!
//! - [`interrupt`]: Ctrl-C and SIGTERM end a measurement like an error, so that everything is
//!   cleaned up on the way out.
//! - [`scratch`]: a temporary folder that removes its mounts, its processes and itself.
//! - [`process`]: running a program and measuring its cost: CPU time, bytes read, peak memory.
//! - [`proxy`]: bytes on the wire, counted between client and server, for all contenders alike.
//! - [`scheduling`]: the placement of threads, so that the scheduler is not what is measured.
//! - [`hold`]: a mount with or without tracking, held by its own process.
//! - [`byteback`], [`rsync`], [`rdiff`], [`syncthing`], [`unison`], [`xdelta`]: the contenders,
//!   each as its users run it.
//! - [`btrfs`]: file systems with their own checksums.
//!
//! Every value is taken from outside the measured program (the kernel's accounts and our own
//! proxy), except where a field is documented as reported by the program itself.

pub(crate) mod btrfs;
pub(crate) mod byteback;
pub(crate) mod hold;
pub(crate) mod interrupt;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod rdiff;
pub(crate) mod restic;
pub(crate) mod rsync;
pub(crate) mod scheduling;
pub(crate) mod scratch;
pub(crate) mod syncthing;
pub(crate) mod unison;
pub(crate) mod xdelta;
