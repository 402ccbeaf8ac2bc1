//! The state of a sync queue and the journal behind it, as a start finds them: read, written again,
//! gone on with.
#![no_main]

use byteback_extents::ByteRange;
use byteback_model::{NodeId, NodeKind, Place};
use byteback_queue::persist::{
    Input, SNAPSHOT_MAGIC, SNAPSHOT_VERSION, decode_snapshot, encode_snapshot, read_journal,
};
use byteback_queue::queue::{Event, Poll, Queue, QueueOptions};
use byteback_queue::{ClientId, Moved, NameOperation};

byteback_fuzz::target!(check, seeds);

/// So many groups are handed out of what was read; a hostile state may have no end of them.
const GROUPS_MAX: usize = 64;

/// Two bytes say how long the fields of the state are; the journal follows them.
fn check(data: &[u8]) {
    let Some((len, rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
    let (fields, journal) = rest.split_at(len);
    let Ok(mut queue) = decode_snapshot(&sealed(fields), QueueOptions::default()) else {
        return;
    };
    let written = encode_snapshot(&queue);
    let again = decode_snapshot(&written, QueueOptions::default()).map(|again| encode_snapshot(&again));
    assert_eq!(again.as_ref(), Ok(&written), "another state comes back");

    let (inputs, whole) = read_journal(journal);
    let mut rewritten = Vec::new();
    inputs.iter().for_each(|input| input.encode(&mut rewritten));
    assert_eq!(read_journal(&rewritten).0, inputs, "other inputs come back");
    assert!(whole <= journal.len());
    for input in &inputs {
        if input.apply(&mut queue).is_err() {
            break;
        }
    }
    queue.abandon(u64::MAX);
    for _ in 0..GROUPS_MAX {
        let Poll::Send(group) = queue.poll(u64::MAX) else { break };
        let _ = queue.applied(group);
    }
}

fn sealed(fields: &[u8]) -> Vec<u8> {
    let mut bytes = SNAPSHOT_MAGIC.to_vec();
    bytes.push(SNAPSHOT_VERSION);
    bytes.extend(fields);
    let check = crc32c::crc32c(&bytes);
    bytes.extend(check.to_le_bytes());
    bytes
}

fn seed(queue: &Queue, inputs: &[Input]) -> Vec<u8> {
    let snapshot = encode_snapshot(queue);
    let fields = &snapshot[SNAPSHOT_MAGIC.len() + 1..snapshot.len() - 4];
    let mut seed = (fields.len() as u16).to_le_bytes().to_vec();
    seed.extend(fields);
    inputs.iter().for_each(|input| input.encode(&mut seed));
    seed
}

fn seeds() -> Vec<Vec<u8>> {
    let mut queue = Queue::new(ClientId(7), QueueOptions::default());
    let empty = seed(&queue, &[]);
    let (first, second) = (Place::new(NodeId(1), b"a"), Place::new(NodeId(1), b"b"));
    let wrote = |node, start, end| Event::Wrote {
        node: NodeId(node),
        range: ByteRange::new(start, end).expect("a range"),
        size_bytes: end,
        base: None,
    };
    let events = [
        Event::Name(NameOperation::Created {
            at: first,
            node: Moved {
                node: NodeId(2),
                kind: NodeKind::File,
            },
        }),
        wrote(2, 0, 5000),
        Event::Name(NameOperation::Created {
            at: second,
            node: Moved {
                node: NodeId(3),
                kind: NodeKind::File,
            },
        }),
        wrote(3, 4096, 4100),
        wrote(2, 100, 200),
    ];
    let inputs: Vec<Input> = (1_u64..)
        .zip(&events)
        .map(|(now_ns, event)| Input::Event {
            now_ns,
            event: event.clone(),
        })
        .collect();
    let all: Vec<Input> = inputs
        .iter()
        .cloned()
        .chain([Input::Poll { now_ns: u64::MAX / 2 }, Input::Unanswered { retry_ns: 9 }])
        .collect();
    let of_journal = seed(&queue, &all);
    for input in &all {
        let _ = input.apply(&mut queue);
    }
    vec![empty, of_journal, seed(&queue, &inputs)]
}
