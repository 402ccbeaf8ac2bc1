//! Undo of local edits: what was overwritten, cut off, replaced or removed is kept for a while, so
//! that a file can be read as it was some minutes ago without any backup having run.
//!
//! Words. A *moment* is the state of one file just before a change. Changes of a file that begin
//! within one *quantum* of each other share the first one's moment: only the bytes before the first
//! are kept, and what was there for a shorter time cannot be brought back. The *window* is how long
//! bytes are kept, the *budget* how much of them; if either is exceeded, the oldest go. A
//! *barrier* is a time before which nothing is known of a file, or of a name, with the reason. The
//! *horizon* is the barrier of the whole tree: what was given up for age or room.
//!
//! | room | what is in it |
//! |---|---|
//! | [`undo`] | [`Undo`]: what the gate tells it, and reading as of a time |
//! | `journal` | the segment files: appending, syncing, dropping the oldest, replaying at start |
//! | `record` | one record, byte by byte (`docs/formats/undo.md`) |
//! | `node_history`, `name_history` | what is known of one file, and of the names; plain data |
//!
//! **The invariant.** For each time at or after all barriers: a byte of the file as of then is in
//! the oldest later moment that holds it, and if none does, it is unchanged. The gate keeps the
//! old bytes before the change is performed, under the file's lock; a reader takes kept and present
//! bytes under the same lock.
//!
//! **Crashes.** Nothing here is synced before a change is performed: that would cost a disk write
//! for each. Instead the operation log reports, after each stop, which files and names may have
//! changed since it last was sure of them (its intents and fences serve this), and these get a
//! barrier ([`Undo::ready`]). The records of all others were synced before ([`Undo::sync`] precedes
//! each checkpoint). A stop between the two steps of a start, damage, and another log make the
//! whole journal worthless; it is then dropped.
//!
//! **It never stands in the way.** Nothing here fails a program's call. Bytes that cannot be kept
//! are reported as not kept, with the reason; if the journal cannot be written, all of it is given
//! up, because a missing record would bring back wrong bytes.
//!
//! Out of scope: attributes, but for owner and mode of a file that is removed;
//! directories, symlinks; files without a name.

mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod journal;
mod name_history;
mod node_history;
mod record;
pub mod undo;

pub use error::{NotKept, UndoError};
pub use name_history::{NameEvent, NameHow};
pub use node_history::Moment;
pub use record::{ContentHow, Rights};
pub use undo::reading::{AsOf, Piece};
pub use undo::session::Gap;
pub use undo::{BeforeChange, Undo, UndoOptions};
