//! What changed in one file, asked by whoever has it open (SolFS sections 3.3 and 4.3:
//! `delta_open`, `delta_getdiff`, `delta_close`).
//!
//! A program that saves single files, an editor or an app with a cloud of its own, needs neither
//! the tree nor the control socket: it has a descriptor. [`DeltaFile::open`] freezes the file as it
//! is now, without blocking who writes it, and tells which ranges changed since the program's own
//! mark of this file; the frozen bytes are read at leisure; [`DeltaFile::commit`] moves the mark.
//!
//! | room | what is in it |
//! |---|---|
//! | [`abi`] | numbers and layouts, shared by the kernel's two sides and by `byteback.h` |
//! | `client` | the calls for Rust programs |
//!
//! It knows nothing of mounts and logs.
//!
//! ```no_run
//! # fn main() -> Result<(), byteback_ioctl::DeltaError> {
//! let file = std::fs::File::open("mail.db").unwrap();
//! let delta = byteback_ioctl::DeltaFile::open(&file, "my-cloud", None)?;
//! // The copy gets the new length first: what lies beyond the old one and in no range is zeros.
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
