//! The queue's state, and the calls that change it, as bytes: a snapshot, and a journal of the
//! calls after it.
//!
//! The state is a function of the calls. To make it outlive the process, the caller writes an
//! [`Input`] for each call in their order ([`Input::encode`]), from time to time a whole state
//! ([`encode_snapshot`]) instead of all inputs before it, and after a restart applies the stored
//! bytes ([`decode_snapshot`], [`read_journal`], [`Input::apply`]). Both forms are described byte
//! by byte in docs/formats/queue.md.
//!
//! **Must be durable:** before a group is sent, the input that made it ([`Input::Poll`],
//! [`Input::Cut`]); at a clean stop, all inputs, and the data they refer to: bytes that were put
//! aside, deltas, files without a name. Anything else may come later or be lost.
//!
//! **After a crash.** A journal that is cut off, or whose last record is damaged, is read up to
//! there; later records are lost, and whether there were any is unknown. So after a stop that was
//! not clean, [`crate::queue::Queue::abandon`] comes next. After a clean one the journal is whole,
//! and [`crate::queue::Queue::resume`] goes on.
//!
//! Out of scope: files, syncing; the relation table, whose loss costs bytes only; options,
//! which may be others next time.

mod snapshot;
#[cfg(test)]
mod tests;
mod wire;

use crate::ids::GroupId;
use crate::queue::{EncodeOrder, EncodedDelta, Event, Poll, Queue, QueueError, Resolution, Save};
use byteback_model::NodeId;
pub use snapshot::{SNAPSHOT_MAGIC, SNAPSHOT_VERSION, decode_snapshot, encode_snapshot};
use wire::{Malformed, Taken, Wire, wire_enum};

/// The longest record of a journal that is read, in bytes: a name has 255, a rebase some of a
/// group's files.
pub const RECORD_LEN_MAX: usize = 1 << 24;

/// The reason why stored bytes cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PersistError {
    /// The bytes are not the state of a queue.
    #[error("not the state of a sync queue; start with an empty one and abandon what it held")]
    NotAQueue,
    /// A version that this program does not read.
    #[error(
        "the state of the sync queue has version {0}, but this program reads {SNAPSHOT_VERSION}: update the program"
    )]
    Version(u8),
    /// The bytes differ from what was written.
    #[error("the state of the sync queue is damaged; start with an empty one and abandon what it held")]
    Damaged,
}

/// A call that changes a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// [`Queue::event`].
    Event {
        /// When.
        now_ns: u64,
        /// The event.
        event: Event,
    },
    /// [`Queue::relate`].
    Relate {
        /// The file with the new content.
        new: NodeId,
        /// The file with the old content.
        base: NodeId,
        /// The base has no name any more.
        is_base_removed: bool,
    },
    /// [`Queue::unrelate`].
    Unrelate {
        /// The file with the new content.
        new: NodeId,
    },
    /// [`Queue::encoded`].
    Encoded {
        /// The request.
        order: EncodeOrder,
        /// The result.
        delta: Option<EncodedDelta>,
    },
    /// [`Queue::saved`].
    Saved(Save),
    /// [`Queue::poll`]; only where it answered [`Poll::Encode`] or [`Poll::Send`] it changes
    /// something that must be kept.
    Poll {
        /// When.
        now_ns: u64,
    },
    /// [`Queue::cut`].
    Cut,
    /// [`Queue::applied`].
    Applied(GroupId),
    /// [`Queue::refused`].
    Refused {
        /// The group.
        group: GroupId,
        /// When.
        now_ns: u64,
    },
    /// [`Queue::resolve`].
    Resolve {
        /// The group.
        group: GroupId,
        /// The resolution of the refusal.
        resolution: Resolution,
        /// When.
        now_ns: u64,
    },
    /// [`Queue::unanswered`].
    Unanswered {
        /// When to try again.
        retry_ns: u64,
    },
    /// [`Queue::never_arrived`].
    NeverArrived {
        /// The group.
        group: GroupId,
        /// When.
        now_ns: u64,
    },
    /// [`Queue::abandon`].
    Abandon {
        /// When.
        now_ns: u64,
    },
    /// [`Queue::resume`].
    Resume {
        /// When, by the new clock.
        now_ns: u64,
    },
}

wire_enum!(Input {
    1 => Event { now_ns, event },
    2 => Relate { new, base, is_base_removed },
    3 => Unrelate { new },
    4 => Encoded { order, delta },
    5 => Saved(save),
    6 => Poll { now_ns },
    7 => Cut,
    8 => Applied(group),
    9 => Refused { group, now_ns },
    10 => Resolve { group, resolution, now_ns },
    11 => Unanswered { retry_ns },
    12 => NeverArrived { group, now_ns },
    13 => Abandon { now_ns },
    14 => Resume { now_ns },
});

impl Input {
    /// Makes the call. Its result is of no interest when it is made again.
    ///
    /// # Errors
    /// The error that the call returned: the input is not of this queue.
    pub fn apply(&self, queue: &mut Queue) -> Result<Option<Poll>, QueueError> {
        match self {
            Self::Event { now_ns, event } => {
                queue.event(event, *now_ns);
            }
            Self::Relate {
                new,
                base,
                is_base_removed,
            } => queue.relate(*new, *base, *is_base_removed),
            Self::Unrelate { new } => queue.unrelate(*new),
            Self::Encoded { order, delta } => {
                queue.encoded(order, *delta);
            }
            Self::Saved(save) => queue.saved(*save),
            Self::Poll { now_ns } => return Ok(Some(queue.poll(*now_ns))),
            Self::Cut => {
                queue.cut()?;
            }
            Self::Applied(group) => queue.applied(*group)?,
            Self::Refused { group, now_ns } => queue.refused(*group, *now_ns)?,
            Self::Resolve {
                group,
                resolution,
                now_ns,
            } => queue.resolve(*group, resolution, *now_ns)?,
            Self::Unanswered { retry_ns } => queue.unanswered(*retry_ns),
            Self::NeverArrived { group, now_ns } => queue.never_arrived(*group, *now_ns)?,
            Self::Abandon { now_ns } => queue.abandon(*now_ns),
            Self::Resume { now_ns } => queue.resume(*now_ns),
        }
        Ok(None)
    }

    /// Appends the record of this input to a journal.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut record = Vec::new();
        self.put(&mut record);
        (record.len() as u64).put(out);
        let check = crc32c::crc32c(&record);
        out.append(&mut record);
        out.extend_from_slice(&check.to_le_bytes());
    }
}

/// The inputs of a journal, in their order, and how many of its bytes are whole records: the rest
/// was torn off or damaged, and is dropped.
#[must_use]
pub fn read_journal(journal: &[u8]) -> (Vec<Input>, usize) {
    let mut inputs = Vec::new();
    let mut rest = journal;
    loop {
        let mut ahead = rest;
        match take_record(&mut ahead) {
            Ok(input) => inputs.push(input),
            Err(Malformed) => return (inputs, journal.len() - rest.len()),
        }
        rest = ahead;
    }
}

fn take_record(bytes: &mut &[u8]) -> Taken<Input> {
    let len = usize::try_from(u64::take(bytes)?).map_err(|_| Malformed)?;
    if len > RECORD_LEN_MAX {
        return Err(Malformed);
    }
    let (mut record, rest) = bytes.split_at_checked(len).ok_or(Malformed)?;
    let (check, rest) = rest.split_first_chunk::<4>().ok_or(Malformed)?;
    if crc32c::crc32c(record) != u32::from_le_bytes(*check) {
        return Err(Malformed);
    }
    let input = Input::take(&mut record)?;
    *bytes = rest;
    match record.is_empty() {
        true => Ok(input),
        false => Err(Malformed),
    }
}
