//! Queries for the changes of one file, by a program that has it open (SolFS sections 3.3 and 4.3:
//! `delta_open`, `delta_getdiff`, `delta_close`).
//!
//! A program that saves single files, such as an editor or an app with a cloud of its own, needs
//! neither the tree nor the control socket, only a descriptor. [`DeltaFile::open`] freezes the file
//! as it is now, without blocking its writers, and reports the ranges that changed since the
//! program's own mark of this file; the frozen bytes can be read later; [`DeltaFile::commit`] moves
//! the mark.
//!
//! | module | contents |
//! |---|---|
//! | [`abi`] | numbers and layouts, shared by both sides of the kernel and by `byteback.h` |
//! | `client` | the calls for Rust programs |
//!
//! Out of scope: mounts and logs.
//!
//! ```no_run
//! # fn main() -> Result<(), byteback_ioctl::DeltaError> {
//! let file = std::fs::File::open("mail.db").unwrap();
//! let delta = byteback_ioctl::DeltaFile::open(&file, "my-cloud", None)?;
//! // The copy gets the new length first: bytes past the old one and outside ranges are zeros.
//! let mut buffer = vec![0; 1 << 20];
//! for range in delta.ranges() {
//!     let range = range?;
//!     let mut at = range.offset;
//!     while at < range.end() {
//!         let wanted = usize::try_from(range.end() - at).unwrap_or(usize::MAX).min(buffer.len());
//!         let got = delta.read_at(at, &mut buffer[..wanted])?;
//!         // ... send buffer[..got] for offset `at` ...
//!         at += got as u64;
//!     }
//! }
//! delta.commit()
//! # }
//! ```

pub mod abi;
mod client;

pub use client::{DeltaError, DeltaFile, Info, Range, Ranges, State};
