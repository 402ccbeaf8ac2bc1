//! The bytes of version 1, damage, and hostile bytes. That a state and a journal come back as
//! they were is tested with random lives, by `World::restart` of the checker's tests.

use byteback_extents::ByteRange;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::ids::ClientId;
use crate::operation::{Moved, NameOperation};
use crate::queue::QueueOptions;
use byteback_model::{NodeKind, Place};

fn options() -> QueueOptions {
    QueueOptions {
        delay_ns: 0,
        group_nodes_max: 1,
        ..QueueOptions::default()
    }
}

fn write() -> Event {
    Event::Wrote {
        node: NodeId(2),
        range: ByteRange::new(0, 3).unwrap(),
        size_bytes: 3,
        base: None,
    }
}

/// A file was created, which is in flight, and written.
fn queue() -> Queue {
    let mut queue = Queue::new(ClientId(7), options());
    let node = Moved {
        node: NodeId(2),
        kind: NodeKind::File,
    };
    let at = Place::new(NodeId(1), b"a");
    queue.event(&Event::Name(NameOperation::Created { at, node }), 5);
    queue.event(&write(), 5);
    assert_eq!(queue.poll(5), Poll::Send(GroupId(1)));
    queue
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let check = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&check.to_le_bytes());
    bytes
}

#[test]
fn the_bytes_of_a_snapshot_are_those_of_version_1() {
    let mut bytes = b"BYQUEUE\x01".to_vec();
    bytes.extend([7, 2, 1, 2, 1]); // client, last version, last group, last position, last position in a group
    bytes.push(2); // nodes
    bytes.extend([1, 7, 1, 5, 5, 1, 1, 1, 1, b'a', 2, 1]); // at 1: version 7.1, times 5 and 5, name, created, in 1, "a", file 2
    bytes.extend([2, 7, 2, 5, 5, 2, 2, 0, 3, 0]); // at 2: version 7.2, times, content of 2, no base, 3 bytes, not packed
    bytes.extend([1, 1, 0, 3, 0]); // ranges: one, no gap, 3 bytes; none saved
    bytes.push(0); // spans
    bytes.extend([1, 1, 1, 1, 1, 0, 0]); // one group: number 1, from 1 to 1, in flight, no conflict, no fold
    bytes.extend([0, 0, 0, 0, 0, 0]); // fold, marks, nameless, outdated, relations, open attributes
    bytes.extend([5, 0, 0, 0]); // time of the last event; spans of files; sets that are folded, and in flight
    assert_eq!(encode_snapshot(&queue()), sealed(bytes.clone()));
    let read = decode_snapshot(&sealed(bytes), options()).unwrap();
    assert_eq!(encode_snapshot(&read), encode_snapshot(&queue()));
}

#[test]
fn persisted_queue_keeps_what_belongs_together() {
    let mut queue = Queue::new(ClientId(7), options());
    for node in [2, 3] {
        let node = Moved {
            node: NodeId(node),
            kind: NodeKind::File,
        };
        let at = Place::new(NodeId(1), node.node.0.to_string().as_bytes());
        queue.event(&Event::Name(NameOperation::Created { at, node }), 5);
        queue.event(&write(), 6);
    }
    let check = |queue: &Queue| {
        let read = decode_snapshot(&encode_snapshot(queue), options()).unwrap();
        assert_eq!(encode_snapshot(&read), encode_snapshot(queue));
        assert_eq!(read.together(), queue.together());
    };
    check(&queue);
    queue.fold(7);
    assert_eq!(queue.together(), [[NodeId(2), NodeId(3)].into_iter().collect()]);
    check(&queue);
    queue.cut().unwrap();
    assert_eq!(queue.together(), []);
    check(&queue);
    queue.refused(GroupId(1), 8).unwrap();
    queue.resolve(GroupId(1), &Resolution::Fold, 8).unwrap();
    assert_eq!(queue.together().len(), 1);
    check(&queue);
}

#[test]
fn the_bytes_of_a_record_are_those_of_version_1() {
    let mut journal = Vec::new();
    let input = Input::Event {
        now_ns: 300,
        event: write(),
    };
    input.encode(&mut journal);
    // Length; event, at 300; written, file 2, from 0, 3 bytes, length 3, no base.
    let record = [1, 0xac, 2, 2, 2, 0, 3, 3, 0];
    assert_eq!(journal, [vec![9], sealed(record.to_vec())].concat());
}

#[test]
fn a_journal_is_read_up_to_where_it_is_torn_or_damaged() {
    let mut journal = Vec::new();
    let mut ends = Vec::new();
    for now_ns in 0..5 {
        Input::Poll { now_ns }.encode(&mut journal);
        ends.push(journal.len());
    }
    for len in 0..=journal.len() {
        let (inputs, whole) = read_journal(&journal[..len]);
        let expected = ends.iter().filter(|end| **end <= len).count();
        assert_eq!(
            (inputs.len(), whole),
            (expected, ends[..expected].last().copied().unwrap_or(0))
        );
    }
    for at in 0..journal.len() {
        for bit in 0..8 {
            let mut damaged = journal.clone();
            damaged[at] ^= 1 << bit;
            let (inputs, _) = read_journal(&damaged);
            let before = ends.iter().filter(|end| **end <= at).count();
            assert_eq!(inputs.len(), before, "bit {bit} of byte {at} was taken for nothing");
        }
    }
}

#[test]
fn each_damaged_or_short_snapshot_is_refused() {
    let bytes = encode_snapshot(&queue());
    for len in 0..bytes.len() {
        assert!(decode_snapshot(&bytes[..len], options()).is_err(), "cut off at {len}");
    }
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(decode_snapshot(&damaged, options()).is_err(), "byte {at} is damaged");
    }
    for version in [0, 2] {
        let mut other = bytes.clone();
        other[7] = version;
        let error = decode_snapshot(&other, options()).unwrap_err();
        assert_eq!(error, PersistError::Version(version));
    }
}

#[test]
fn hostile_bytes_with_right_checksums_are_refused_or_harmless() {
    let start = encode_snapshot(&queue());
    let (_, fields) = start.split_at(8);
    let fields = &fields[..fields.len() - 4];
    let mut accepted = 0;
    for seed in crate::tests::seeds() {
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..200 {
            let mut hostile = fields.to_vec();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..hostile.len());
                match random.random_range(0..3) {
                    0 => hostile[at] = random.random(),
                    1 => hostile.insert(at, random.random()),
                    _ => {
                        hostile.remove(at);
                    }
                }
            }
            let bytes = sealed([b"BYQUEUE\x01".to_vec(), hostile].concat());
            let Ok(mut queue) = decode_snapshot(&bytes, options()) else {
                continue;
            };
            accepted += 1;
            queue.event(&write(), 9);
            for _ in 0..4 {
                if let Poll::Send(group) = queue.poll(u64::MAX) {
                    let _ = queue.applied(group);
                }
            }
            queue.abandon(10);
        }
    }
    assert!(accepted > 0, "nothing was accepted, so nothing was tested");
}
