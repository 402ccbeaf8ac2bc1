//! The whole state of a queue as bytes.
//!
//! Derived state is not written: the indexes and the waiting totals are rebuilt by the same
//! function that keeps them while the queue runs.

use std::collections::{BTreeMap, VecDeque};

use super::PersistError;
use super::wire::{Malformed, Taken, Wire};
use crate::ids::{ClientId, Position};
use crate::queue::{EncodeOrder, Fold, Group, Queue, QueueNode, QueueOptions, Spans, Together};
use byteback_model::NodeId;

/// The first bytes of a snapshot; the version follows.
pub const SNAPSHOT_MAGIC: [u8; 7] = *b"BYQUEUE";

/// The version that this program writes and reads. On any other version the caller begins with an
/// empty queue, and abandons the stored one.
pub const SNAPSHOT_VERSION: u8 = 1;

/// The state as bytes.
#[must_use]
pub fn encode_snapshot(queue: &Queue) -> Vec<u8> {
    let mut out = SNAPSHOT_MAGIC.to_vec();
    out.push(SNAPSHOT_VERSION);
    queue.client.put(&mut out);
    queue.counter.put(&mut out);
    queue.last_group.put(&mut out);
    queue.position.put(&mut out);
    queue.frozen.put(&mut out);
    queue.nodes.put(&mut out);
    queue.spans.iter().collect::<Vec<_>>().put(&mut out);
    queue.groups.put(&mut out);
    let fold = queue.fold.clone();
    fold.map(|fold| ((fold.first, fold.enqueued_ns), fold.scope))
        .put(&mut out);
    queue.marks.put(&mut out);
    queue.nameless.put(&mut out);
    queue.outdated.put(&mut out);
    queue.relations_to_keep().put(&mut out);
    queue.open_attributes().put(&mut out);
    queue.now_ns.put(&mut out);
    queue.together.spans.put(&mut out);
    queue.together.folded.put(&mut out);
    queue.together.in_flight.put(&mut out);
    let check = crc32c::crc32c(&out);
    out.extend_from_slice(&check.to_le_bytes());
    out
}

/// The state that [`encode_snapshot`] wrote. A queue that is larger than the options allow folds at
/// its next event.
///
/// # Errors
/// If the bytes are not such a state, or not whole.
pub fn decode_snapshot(bytes: &[u8], options: QueueOptions) -> Result<Queue, PersistError> {
    let rest = bytes.strip_prefix(&SNAPSHOT_MAGIC).ok_or(PersistError::NotAQueue)?;
    let (version, _) = rest.split_first().ok_or(PersistError::NotAQueue)?;
    if *version != SNAPSHOT_VERSION {
        return Err(PersistError::Version(*version));
    }
    let (sealed, check) = bytes.split_last_chunk::<4>().ok_or(PersistError::Damaged)?;
    if crc32c::crc32c(sealed) != u32::from_le_bytes(*check) {
        return Err(PersistError::Damaged);
    }
    let fields = sealed.get(SNAPSHOT_MAGIC.len() + 1..).ok_or(PersistError::Damaged)?;
    take_queue(fields, options).map_err(|Malformed| PersistError::Damaged)
}

fn take_queue(mut bytes: &[u8], options: QueueOptions) -> Taken<Queue> {
    let bytes = &mut bytes;
    let mut queue = Queue::new(ClientId::take(bytes)?, options);
    queue.counter = u64::take(bytes)?;
    queue.last_group = u64::take(bytes)?;
    queue.position = Position::take(bytes)?;
    queue.frozen = Position::take(bytes)?;
    // No honest counter comes near this bound; it leaves room for later additions.
    let numbers = [queue.counter, queue.last_group, queue.position.0];
    if queue.frozen > queue.position || numbers.into_iter().any(|number| number > u64::MAX / 2) {
        return Err(Malformed);
    }
    for (position, node) in BTreeMap::<Position, QueueNode>::take(bytes)? {
        if position > queue.position {
            return Err(Malformed);
        }
        queue.insert(position, node);
    }
    let mut spans = Spans::default();
    for (first, last) in Vec::<(Position, Position)>::take(bytes)? {
        spans.join(first, last);
    }
    queue.spans = spans;
    queue.groups = VecDeque::<Group>::take(bytes)?;
    let fold: Option<((Position, u64), _)> = Wire::take(bytes)?;
    queue.fold = fold.map(|((first, enqueued_ns), scope)| Fold {
        first,
        enqueued_ns,
        touched_ns: enqueued_ns,
        scope,
    });
    queue.marks = Wire::take(bytes)?;
    queue.nameless = Wire::take(bytes)?;
    queue.outdated = Wire::take(bytes)?;
    let relations = BTreeMap::<NodeId, (NodeId, Option<EncodeOrder>)>::take(bytes)?;
    let attributes = BTreeMap::<NodeId, Position>::take(bytes)?;
    queue.reopen(relations, attributes);
    queue.now_ns = u64::take(bytes)?;
    queue.together = Together {
        spans: Wire::take(bytes)?,
        folded: Wire::take(bytes)?,
        in_flight: Wire::take(bytes)?,
    };
    if !bytes.is_empty() || queue.check_structure().is_err() {
        return Err(Malformed);
    }
    Ok(queue)
}
