//! The queue's behaviour, case by case; its consequences for the states that are seen are tested by
//! the checker (`checker/tests.rs`).

use byteback_extents::{ByteRange, ExtentSet};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::operation::{Moved, NameOperation, Victim};
use byteback_model::{NodeKind, Place};

const ROOT: NodeId = NodeId(1);
const SECOND: u64 = 1_000_000_000;

fn queue() -> Queue {
    Queue::new(
        ClientId(7),
        QueueOptions {
            delta_bytes_min: 10,
            group_nodes_max: 1,
            ..QueueOptions::default()
        },
    )
}

fn place(name: &str) -> Place<NodeId> {
    Place::new(ROOT, name.as_bytes())
}

fn file(node: u64) -> Moved {
    Moved {
        node: NodeId(node),
        kind: NodeKind::File,
    }
}

fn victim(node: u64) -> Victim {
    Victim {
        node: NodeId(node),
        kind: NodeKind::File,
        is_last: true,
        is_kept: true,
        len_bytes: 0,
    }
}

fn create(name: &str, node: u64) -> Event {
    Event::Name(NameOperation::Created {
        at: place(name),
        node: file(node),
    })
}

fn unlink(name: &str, node: u64) -> Event {
    Event::Name(NameOperation::Unlinked {
        at: place(name),
        victim: victim(node),
    })
}

fn rename(from: &str, to: &str, node: u64, over: Option<u64>) -> Event {
    Event::Name(NameOperation::Renamed {
        from: place(from),
        to: place(to),
        node: file(node),
        replaced: over.map(victim),
    })
}

fn write(node: u64, start: u64, end: u64) -> Event {
    Event::Wrote {
        node: NodeId(node),
        range: ByteRange::new(start, end).unwrap(),
        size_bytes: end,
        base: Some(version(1000 + node)),
    }
}

fn version(counter: u64) -> Version {
    Version {
        client: ClientId(7),
        counter,
    }
}

fn feed(queue: &mut Queue, events: &[Event]) {
    for event in events {
        queue.event(event, 0);
        queue.check().unwrap();
    }
}

/// The nodes of the next group in short, but for the times of directories.
fn next_group(queue: &mut Queue) -> (GroupId, Vec<String>) {
    let (id, mut nodes) = next_group_whole(queue);
    nodes.retain(|node| !node.starts_with("times "));
    (id, nodes)
}

/// The nodes of the next group in short, all delays aside.
fn next_group_whole(queue: &mut Queue) -> (GroupId, Vec<String>) {
    let Poll::Send(id) = queue.poll(u64::MAX) else {
        panic!("nothing is to be sent")
    };
    queue.check().unwrap();
    let group = queue.groups().find(|group| group.id == id).unwrap().clone();
    let nodes = queue.nodes_of(&group).map(|(_, node)| short(&node.change));
    (id, nodes.collect())
}

fn all_groups(queue: &mut Queue) -> Vec<Vec<String>> {
    let mut groups = Vec::new();
    while !queue.is_empty() {
        let (id, nodes) = next_group(queue);
        if !nodes.is_empty() {
            groups.push(nodes);
        }
        queue.applied(id).unwrap();
        queue.check().unwrap();
    }
    groups
}

fn short(change: &Change) -> String {
    let name = |place: &Place<NodeId>| String::from_utf8_lossy(&place.name).into_owned();
    match change {
        Change::Attributes { node, stamp } => format!("attributes {node} {stamp}"),
        Change::Times { directories } => format!("times {directories:?}"),
        Change::Content(content) => match &content.source {
            ContentSource::Ranges { ranges, .. } => format!("write {} {ranges:?}", content.node),
            ContentSource::Delta { base, .. } => format!("delta {} from {base}", content.node),
        },
        Change::Name(operation) => match operation {
            NameOperation::Created { at, node } => format!("create {} {}", name(at), node.node),
            NameOperation::Linked { at, node } => format!("link {} {}", name(at), node.node),
            NameOperation::Unlinked { at, victim } => format!("unlink {} {}", name(at), victim.node),
            NameOperation::Renamed { from, to, replaced, .. } => {
                let over = replaced.map(|victim| format!(" over {}", victim.node));
                format!("rename {} {}{}", name(from), name(to), over.unwrap_or_default())
            }
            NameOperation::Exchanged { one, other, .. } => format!("exchange {} {}", name(one), name(other)),
        },
    }
}

#[test]
fn operations_in_order_are_groups_of_their_own() {
    let mut queue = queue();
    feed(
        &mut queue,
        &[create("a", 2), create("b", 3), write(3, 0, 4), create("c", 4)],
    );
    let groups = all_groups(&mut queue);
    assert_eq!(
        groups,
        [["create a 2"], ["create b 3"], ["write 3 {0..4}"], ["create c 4"]]
    );
}

/// The example of section III-E: create a, create b, create c, delete a.
#[test]
fn queue_groups_what_lies_between_cancelled_changes() {
    let mut queue = queue();
    feed(
        &mut queue,
        &[
            create("a", 2),
            create("b", 3),
            create("c", 4),
            unlink("a", 2),
            create("d", 5),
        ],
    );
    assert_eq!(
        all_groups(&mut queue),
        [vec!["create b 3", "create c 4"], vec!["create d 5"]]
    );
}

#[test]
fn writes_to_one_file_are_one_node_and_group_what_is_between() {
    let mut queue = queue();
    feed(
        &mut queue,
        &[write(2, 0, 4), create("b", 3), write(2, 8, 9), create("c", 4)],
    );
    assert_eq!(
        all_groups(&mut queue),
        [vec!["write 2 {0..4, 8..9}", "create b 3"], vec!["create c 4"]]
    );
}

#[test]
fn spans_that_overlap_are_one_and_those_that_do_not_are_two() {
    let mut queue = queue();
    feed(
        &mut queue,
        &[write(2, 0, 1), write(3, 0, 1), write(2, 1, 2), write(3, 1, 2)],
    );
    feed(&mut queue, &[write(4, 0, 1), create("a", 5), write(4, 1, 2)]);
    assert_eq!(
        all_groups(&mut queue),
        [
            vec!["write 2 {0..2}", "write 3 {0..2}"],
            vec!["write 4 {0..2}", "create a 5"]
        ]
    );
}

#[test]
fn a_closed_renamed_or_exchanged_file_takes_no_more_writes() {
    let closed = Event::Closed { node: NodeId(2) };
    let exchanged = Event::Name(NameOperation::Exchanged {
        one: place("a"),
        one_node: file(2),
        other: place("b"),
        other_node: file(3),
    });
    for packs in [closed, rename("a", "b", 2, None), exchanged] {
        let mut queue = queue();
        feed(&mut queue, &[write(2, 0, 1), packs, write(2, 1, 2)]);
        let groups = all_groups(&mut queue);
        assert_eq!(groups.first().unwrap(), &["write 2 {0..1}"]);
        assert_eq!(groups.last().unwrap(), &["write 2 {1..2}"]);
    }
}

#[test]
fn a_journal_of_a_database_is_never_sent() {
    let mut queue = queue();
    feed(
        &mut queue,
        &[
            create("db-journal", 3),
            write(3, 0, 512),
            write(2, 0, 4096),
            Event::Closed { node: NodeId(3) },
            unlink("db-journal", 3),
        ],
    );
    assert_eq!(all_groups(&mut queue), [["write 2 {0..4096}"]]);
}

#[test]
fn queue_keeps_what_a_vanished_file_did_to_others() {
    let mut queue = queue();
    feed(
        &mut queue,
        &[create("t", 3), rename("t", "f", 3, Some(2)), unlink("f", 3)],
    );
    assert_eq!(all_groups(&mut queue), [["unlink f 2"]]);

    let exchange = Event::Name(NameOperation::Exchanged {
        one: place("t"),
        one_node: file(3),
        other: place("f"),
        other_node: file(2),
    });
    feed(&mut queue, &[create("t", 3), exchange, unlink("f", 3)]);
    assert_eq!(all_groups(&mut queue), [["rename f t"]]);

    // A file that was linked twice, and renamed over by one that vanishes.
    feed(
        &mut queue,
        &[create("t", 4), rename("t", "f", 4, Some(2)), create("u", 5)],
    );
    feed(&mut queue, &[rename("u", "f", 5, Some(4))]);
    assert_eq!(all_groups(&mut queue), [["unlink f 2", "create u 5", "rename u f"]]);
}

#[test]
fn a_directory_goes_only_when_nothing_in_it_is_to_be_sent() {
    let directory = Moved {
        node: NodeId(2),
        kind: NodeKind::Directory,
    };
    let made = Event::Name(NameOperation::Created {
        at: place("d"),
        node: directory,
    });
    let removed = Event::Name(NameOperation::Unlinked {
        at: place("d"),
        victim: Victim {
            kind: NodeKind::Directory,
            ..victim(2)
        },
    });
    let inside = |node| {
        Event::Name(NameOperation::Created {
            at: Place::new(NodeId(2), b"f"),
            node: file(node),
        })
    };
    let gone = Event::Name(NameOperation::Unlinked {
        at: Place::new(NodeId(2), b"f"),
        victim: victim(3),
    });
    let mut queue = queue();
    feed(&mut queue, &[made.clone(), inside(3), gone, removed.clone()]);
    assert_eq!(next_group_whole(&mut queue).1, ["times {NodeId(1)}"]);
    queue.applied(GroupId(1)).unwrap();
    assert!(queue.is_empty());

    let moved_out = Event::Name(NameOperation::Renamed {
        from: Place::new(NodeId(2), b"f"),
        to: place("g"),
        node: file(3),
        replaced: None,
    });
    feed(&mut queue, &[made, inside(3), moved_out, removed]);
    assert_eq!(
        all_groups(&mut queue),
        [["create d 2"], ["create f 3"], ["rename f g"], ["unlink d 2"]]
    );
}

#[test]
fn the_delay_counts_from_the_last_change_and_has_an_end() {
    let mut queue = queue();
    queue.event(&write(2, 0, 1), SECOND);
    assert_eq!(
        queue.poll(2 * SECOND),
        Poll::Idle {
            wake_ns: Some(4 * SECOND)
        }
    );
    for second in 2..31 {
        queue.event(&write(2, second, second + 1), second * SECOND);
        let wake_ns = Some((second + 3).min(31) * SECOND);
        assert_eq!(queue.poll(second * SECOND), Poll::Idle { wake_ns });
    }
    assert_eq!(queue.poll(31 * SECOND), Poll::Send(GroupId(1)));

    let options = QueueOptions {
        delay_ns: 0,
        ..QueueOptions::default()
    };
    let mut at_once = Queue::new(ClientId(7), options);
    at_once.event(&write(2, 0, 1), SECOND);
    assert_eq!(at_once.poll(SECOND), Poll::Send(GroupId(1)));
}

#[test]
fn versions_stand_on_each_other() {
    let mut queue = queue();
    let closed = Event::Closed { node: NodeId(2) };
    feed(
        &mut queue,
        &[write(2, 0, 1), closed.clone(), write(2, 1, 2), closed, write(2, 2, 3)],
    );
    let (first, _) = next_group(&mut queue);
    let contents = queue.nodes.values().map(|node| {
        let base = node.change.content().unwrap().base;
        (base.unwrap().counter, node.version.counter)
    });
    assert_eq!(contents.collect::<Vec<_>>(), [(1002, 1), (1, 2), (2, 3)]);
    queue.applied(first).unwrap();
}

/// Word, gedit and delete-then-create (Fig. 3 and 7): the delta stands where the writes stood.
#[test]
fn a_delta_takes_the_place_of_the_writes() {
    let delta = EncodedDelta {
        stamp: 5,
        len_bytes: 8,
        base_version: Some(version(1002)),
    };
    // Word: nothing is out of order, so nothing needs a span.
    let mut word = queue();
    feed(
        &mut word,
        &[rename("f", "t0", 2, None), create("t1", 3), write(3, 0, 100)],
    );
    word.relate(NodeId(3), NodeId(2), false);
    feed(&mut word, &[rename("t1", "f", 3, None), unlink("t0", 2)]);
    assert_eq!(next_group(&mut word).1, ["rename f t0"]);
    assert_eq!(next_group(&mut word).1, ["create t1 3"]);
    let Poll::Encode(order) = word.poll(u64::MAX) else {
        panic!("nothing to encode")
    };
    assert_eq!(
        (order.new, order.base, order.base_version),
        (NodeId(3), NodeId(2), None)
    );
    assert_eq!(
        word.poll(u64::MAX),
        Poll::Idle { wake_ns: None },
        "it waits for the delta"
    );
    assert!(word.encoded(&order, Some(delta)));
    assert!(!word.encoded(&order, Some(delta)), "an order is answered once");
    assert_eq!(next_group(&mut word).1, ["delta 3 from 2"]);
    assert_eq!(next_group(&mut word).1, ["rename t1 f"]);
    assert!(word.take_effects().contains(&Effect::Unrelated(NodeId(3))));

    // Delete, then create: the base is needed longer than it exists, so that all is one group.
    let mut deleted = queue();
    feed(&mut deleted, &[unlink("f", 2)]);
    deleted.relate(NodeId(3), NodeId(2), true);
    feed(&mut deleted, &[create("f", 3), write(3, 0, 100)]);
    let Poll::Encode(order) = deleted.poll(u64::MAX) else {
        panic!("nothing to encode")
    };
    assert!(deleted.encoded(&order, Some(delta)));
    assert_eq!(
        next_group(&mut deleted).1,
        ["unlink f 2", "create f 3", "delta 3 from 2"]
    );
}

#[test]
fn a_delta_that_does_not_pay_or_comes_too_late_is_not_taken() {
    let related = || {
        let mut queue = queue();
        queue.relate(NodeId(3), NodeId(2), false);
        feed(&mut queue, &[write(3, 0, 100)]);
        let Poll::Encode(order) = queue.poll(u64::MAX) else {
            panic!("nothing to encode")
        };
        (queue, order)
    };
    let delta = |len_bytes| {
        Some(EncodedDelta {
            stamp: 5,
            len_bytes,
            base_version: None,
        })
    };
    let (mut queue, order) = related();
    assert!(!queue.encoded(&order, delta(100)), "it is as long as the content");
    assert_eq!(next_group(&mut queue).1, ["write 3 {0..100}"]);

    let (mut queue, order) = related();
    assert!(!queue.encoded(&order, None), "it could not be encoded");
    assert_eq!(next_group(&mut queue).1, ["write 3 {0..100}"]);

    for changed in [2, 3] {
        let (mut queue, order) = related();
        feed(&mut queue, &[write(changed, 0, 1)]);
        assert!(!queue.encoded(&order, delta(1)), "{changed} was written meanwhile");
    }

    // Removed again: nothing is left, and the answer is not waited for.
    let (mut queue, order) = related();
    feed(&mut queue, &[unlink("t", 3)]);
    assert!(!queue.encoded(&order, delta(1)));
    assert_eq!(all_groups(&mut queue), [["unlink t 3"]]);
}

#[test]
fn a_small_content_is_not_compared() {
    let mut queue = queue();
    queue.relate(NodeId(3), NodeId(2), false);
    feed(&mut queue, &[write(3, 0, 9)]);
    assert_eq!(next_group(&mut queue).1, ["write 3 {0..9}"]);
    assert_eq!(queue.take_effects(), [Effect::Unrelated(NodeId(3))]);
}

#[test]
fn bytes_of_what_takes_no_more_writes_are_saved_once() {
    let mut queue = queue();
    let range = |start, end| ByteRange::new(start, end).unwrap();
    feed(&mut queue, &[write(2, 0, 10)]);
    assert!(
        queue.saves_before(NodeId(2), range(0, 10)).is_empty(),
        "it takes writes still"
    );
    let (id, _) = next_group(&mut queue);
    let saves = queue.saves_before(NodeId(2), range(5, 20));
    let save = Save {
        position: Position(1),
        range: range(5, 10),
    };
    assert_eq!(saves, [save]);
    queue.saved(save);
    assert!(queue.saves_before(NodeId(2), range(5, 20)).is_empty());
    let rest = Save {
        range: range(0, 5),
        ..save
    };
    assert_eq!(queue.saves_before_removal(NodeId(2)), [rest]);
    assert!(queue.needs_file(NodeId(2)));
    feed(&mut queue, &[unlink("f", 2)]);
    assert!(queue.take_effects().is_empty(), "it is still read");
    queue.applied(id).unwrap();
    assert_eq!(
        queue.take_effects(),
        [Effect::DropSaved(Position(1)), Effect::Free(NodeId(2))]
    );
}

#[test]
fn past_its_bound_the_queue_folds_and_takes_in_what_follows() {
    let options = QueueOptions {
        nodes_max: 2,
        fold_items_max: 9,
        delay_ns: 0,
        ..QueueOptions::default()
    };
    let mut queue = Queue::new(ClientId(7), options);
    feed(&mut queue, &[create("a", 2)]);
    let (first, _) = next_group(&mut queue);
    feed(
        &mut queue,
        &[write(2, 0, 1), create("b", 3), Event::Mark { epoch: 9 }, create("c", 4)],
    );
    feed(&mut queue, &[write(5, 0, 1)]);
    assert_eq!((queue.waiting_nodes(), queue.waiting_bytes()), (0, 0));
    assert_eq!(
        queue.poll(0),
        Poll::Idle { wake_ns: None },
        "what is before comes first"
    );
    assert_eq!(queue.cut(), Err(QueueError::NoFold));
    queue.applied(first).unwrap();
    assert_eq!(queue.poll(0), Poll::Cut);
    let id = queue.cut().unwrap();
    let group = queue.groups().next().unwrap().clone();
    assert_eq!((group.up_to, group.first), (Position(6), Position(2)));
    let (scope, _) = group.fold.unwrap();
    let contents = [(NodeId(2), Some(version(1002))), (NodeId(5), Some(version(1005)))];
    let items = FoldScope::Items {
        contents: contents.into(),
        attributes: [NodeId(3), NodeId(4)].into(),
        names: [(place("b"), None), (place("c"), None)].into(),
        times: [place("b").parent].into(),
    };
    assert_eq!(scope, items);
    // Later changes are fine again, and wait for the versions that the fold makes.
    feed(&mut queue, &[write(2, 1, 2)]);
    assert_eq!(queue.poll(0), Poll::Idle { wake_ns: None });
    queue.applied(id).unwrap();
    assert_eq!(queue.take_effects(), [Effect::Mark(9)]);
    assert_eq!(next_group(&mut queue).1, ["write 2 {1..2}"]);
}

#[test]
fn a_fold_waits_for_quiet_but_not_for_ever() {
    let options = QueueOptions {
        delay_ns: 3 * SECOND,
        ..QueueOptions::default()
    };
    let mut queue = Queue::new(ClientId(7), options);
    queue.event(&write(2, 0, 1), 0);
    queue.fold(0);
    // A program keeps a temporary file, which is not to be sent in between.
    queue.event(&create("tmp", 3), 2 * SECOND);
    assert_eq!(
        queue.poll(3 * SECOND),
        Poll::Idle {
            wake_ns: Some(5 * SECOND)
        }
    );
    queue.event(&unlink("tmp", 3), 4 * SECOND);
    // A mark is no change.
    queue.event(&Event::Mark { epoch: 1 }, 6 * SECOND);
    assert_eq!(
        queue.poll(6 * SECOND),
        Poll::Idle {
            wake_ns: Some(7 * SECOND)
        }
    );
    for second in 7..20 {
        queue.event(&write(2, 0, 1), second * SECOND - 1);
        if second < 9 {
            let wake_ns = Some((second * SECOND - 1 + 3 * SECOND).min(9 * SECOND));
            assert_eq!(queue.poll(second * SECOND), Poll::Idle { wake_ns });
        }
    }
    assert_eq!(queue.poll(9 * SECOND), Poll::Cut);
    // Changes that were left alone before they were folded wait no longer.
    let mut quiet = Queue::new(ClientId(7), options);
    quiet.event(&write(2, 0, 1), 0);
    quiet.fold(3 * SECOND);
    assert_eq!(quiet.poll(3 * SECOND), Poll::Cut);
}

#[test]
fn a_fold_knows_what_its_names_stood_for_before() {
    let mut queue = queue();
    feed(
        &mut queue,
        &[
            // Two saves by rename, one before the fold and one in it, and a file that moved.
            create("tmp", 3),
            rename("tmp", "f", 3, Some(2)),
            rename("g", "h", 4, None),
        ],
    );
    queue.fold(0);
    feed(&mut queue, &[create("tmp", 5), rename("tmp", "f", 5, Some(3))]);
    feed(&mut queue, &[unlink("h", 4)]);
    let id = queue.cut().unwrap();
    let cut = queue.groups().next().unwrap().clone();
    let before = |queue: &Queue| match &queue.groups().next().unwrap().fold {
        Some((FoldScope::Items { names, .. }, _)) => names.clone(),
        _ => panic!("not a fold of items"),
    };
    let expected: BTreeMap<Place<NodeId>, Option<NodeId>> = [
        (place("f"), Some(NodeId(2))),
        (place("g"), Some(NodeId(4))),
        (place("h"), None),
        (place("tmp"), None),
    ]
    .into();
    assert_eq!(before(&queue), expected, "{cut:?}");
    // Folded again with what came later, it keeps what it knew.
    queue.refused(id, 0).unwrap();
    feed(&mut queue, &[create("g", 6)]);
    queue.resolve(id, &Resolution::Fold, 0).unwrap();
    queue.cut().unwrap();
    assert_eq!(before(&queue), expected);
}

#[test]
fn a_fold_of_too_many_items_is_of_everything() {
    let options = QueueOptions {
        nodes_max: 0,
        fold_items_max: 3,
        ..QueueOptions::default()
    };
    let mut queue = Queue::new(ClientId(7), options);
    feed(&mut queue, &[create("a", 2)]);
    assert!(matches!(queue.fold.as_ref().unwrap().scope, FoldScope::Items { .. }));
    feed(&mut queue, &[create("b", 3)]);
    assert_eq!(queue.fold.as_ref().unwrap().scope, FoldScope::Everything);
}

#[test]
fn queue_resends_groups_in_flight_as_they_were() {
    let mut queue = queue();
    feed(&mut queue, &[create("a", 2), create("b", 3)]);
    let (first, nodes) = next_group(&mut queue);
    let (second, _) = next_group(&mut queue);
    // Nothing takes it out any more.
    feed(&mut queue, &[unlink("a", 2)]);
    queue.unanswered(70 * SECOND);
    let wake_ns = Some(70 * SECOND);
    assert_eq!(queue.poll(60 * SECOND), Poll::Idle { wake_ns });
    assert_eq!(queue.poll(70 * SECOND), Poll::Send(first));
    let group = queue.groups().next().unwrap().clone();
    assert_eq!(
        queue
            .nodes_of(&group)
            .map(|(_, node)| short(&node.change))
            .collect::<Vec<_>>(),
        nodes
    );
    assert_eq!(queue.poll(70 * SECOND), Poll::Send(second));
    assert_eq!(queue.applied(second), Err(QueueError::NotOldest(second)));
    queue.applied(first).unwrap();
    assert_eq!(
        queue.applied(first),
        Err(QueueError::NotOldest(first)),
        "answered twice"
    );
    queue.applied(second).unwrap();
    assert_eq!(next_group(&mut queue).1, ["unlink a 2"]);
}

#[test]
fn queue_holds_changes_behind_a_refused_group() {
    let mut queue = queue();
    feed(&mut queue, &[write(2, 0, 1), create("a", 3), create("b", 4)]);
    let (first, _) = next_group(&mut queue);
    let (second, _) = next_group(&mut queue);
    queue.refused(first, 0).unwrap();
    queue.check().unwrap();
    assert_eq!(queue.poll(0), Poll::Decide(first));
    feed(&mut queue, &[unlink("a", 3)]);
    queue
        .resolve(first, &Resolution::Rebase(vec![(NodeId(2), version(77))]), 5)
        .unwrap();
    let (again, nodes) = next_group(&mut queue);
    assert!(again > second, "the number stands for another content now");
    assert_eq!(nodes, ["write 2 {0..1}"]);
    let content = queue.nodes.values().next().unwrap().change.content().unwrap().clone();
    assert_eq!(content.base, Some(version(77)));
    queue.refused(again, 0).unwrap();
    queue.resolve(again, &Resolution::AsConflict, 5).unwrap();
    let (conflict, _) = next_group(&mut queue);
    assert!(queue.groups().next().unwrap().is_conflict);
    queue.applied(conflict).unwrap();
    assert_eq!(all_groups(&mut queue), [["create b 4"]]);
}

#[test]
fn queue_after_a_crash_folds_all_and_asks_for_groups_in_flight() {
    for has_arrived in [true, false] {
        let mut queue = queue();
        feed(&mut queue, &[create("a", 2), create("b", 3)]);
        let (id, _) = next_group(&mut queue);
        queue.abandon(0);
        queue.check().unwrap();
        assert_eq!(queue.poll(u64::MAX), Poll::Ask(id));
        match has_arrived {
            true => queue.applied(id).unwrap(),
            false => queue.never_arrived(id, 0).unwrap(),
        }
        queue.check().unwrap();
        assert_eq!(queue.poll(u64::MAX), Poll::Cut);
        let id = queue.cut().unwrap();
        let scope = queue.groups().next().unwrap().fold.clone().unwrap().0;
        assert_eq!(scope, FoldScope::Everything);
        queue.applied(id).unwrap();
        assert!(queue.is_empty() && queue.nodes.is_empty());
    }
}

/// After a restart of the machine its monotonic clock begins again.
#[test]
fn after_a_clean_stop_the_queue_goes_on_by_another_clock() {
    let mut queue = queue();
    queue.event(&create("a", 2), 900 * SECOND);
    assert_eq!(queue.poll(903 * SECOND), Poll::Send(GroupId(1)));
    queue.relate(NodeId(3), NodeId(4), false);
    queue.event(&write(3, 0, 50), 904 * SECOND);
    queue.resume(SECOND);
    assert_eq!(queue.take_effects(), [Effect::Unrelated(NodeId(3))]);
    assert_eq!(queue.poll(SECOND), Poll::Send(GroupId(1)), "it may not have arrived");
    assert_eq!(
        queue.poll(SECOND),
        Poll::Idle {
            wake_ns: Some(4 * SECOND)
        }
    );
    assert_eq!(queue.poll(4 * SECOND), Poll::Send(GroupId(2)));
}

#[test]
fn a_mark_waits_for_all_before_it() {
    let mut queue = queue();
    feed(&mut queue, &[Event::Mark { epoch: 1 }]);
    assert_eq!(queue.take_effects(), [Effect::Mark(1)]);
    feed(
        &mut queue,
        &[create("a", 2), Event::Mark { epoch: 2 }, create("b", 3), unlink("a", 2)],
    );
    assert_eq!(queue.take_effects(), [Effect::Free(NodeId(2))]);
    let (id, _) = next_group(&mut queue);
    assert!(queue.take_effects().is_empty());
    queue.applied(id).unwrap();
    assert_eq!(queue.take_effects(), [Effect::Mark(2)]);
}

#[test]
fn lengths_are_changes_of_what_is_gained_or_lost() {
    let node = NodeId(2);
    assert_eq!(Event::resized(node, 5, 5, None), None);
    let shorter = Event::resized(node, 9, 5, None).unwrap();
    let mut queue = queue();
    feed(&mut queue, &[write(2, 0, 9), shorter]);
    let content = queue.nodes.values().next().unwrap().change.content().unwrap();
    assert_eq!((content.size_bytes, content.len_bytes()), (5, 5));
    let ContentSource::Ranges { ranges, .. } = &content.source else {
        panic!()
    };
    assert_eq!(
        ranges,
        &[ByteRange::new(0, 9).unwrap()].into_iter().collect::<ExtentSet>()
    );
}

#[test]
fn marks_do_not_pile_up_where_nothing_lies_between_them() {
    let mut queue = queue();
    feed(&mut queue, &[create("a", 2)]);
    for epoch in 1..100 {
        feed(&mut queue, &[Event::Mark { epoch }]);
    }
    feed(&mut queue, &[create("b", 3), Event::Mark { epoch: 100 }]);
    assert_eq!(queue.marks.values().collect::<Vec<_>>(), [&99, &100]);
}

/// Found by the checker: the group began at its first node, and the mark lay between that and nodes
/// that had been taken out before.
#[test]
fn a_mark_behind_what_was_taken_out_waits_for_the_whole_group() {
    let mut queue = queue();
    let attributes = Event::Attributes {
        node: NodeId(2),
        stamp: 1,
    };
    feed(&mut queue, &[attributes, Event::Mark { epoch: 3 }, unlink("a", 2)]);
    let (id, nodes) = next_group(&mut queue);
    assert_eq!(nodes, ["unlink a 2"]);
    assert_eq!(queue.take_effects(), [Effect::Free(NodeId(2))]);
    queue.applied(id).unwrap();
    assert_eq!(queue.take_effects(), [Effect::Mark(3)]);
}

/// Found by the checker: it was compared with a file of which the server never heard.
#[test]
fn queue_uses_no_base_that_vanished_unsent() {
    let mut queue = queue();
    feed(&mut queue, &[create("a", 2), write(2, 0, 50), unlink("a", 2)]);
    queue.relate(NodeId(3), NodeId(2), true);
    feed(&mut queue, &[create("a", 3), write(3, 0, 50)]);
    assert_eq!(all_groups(&mut queue), [["create a 3"], ["write 3 {0..50}"]]);
}

/// Found by the checker: the content of the removed file differed from the server's.
#[test]
fn a_removed_file_whose_last_content_was_not_sent_is_no_base() {
    let mut queue = queue();
    feed(&mut queue, &[write(2, 0, 50), unlink("a", 2)]);
    queue.relate(NodeId(3), NodeId(2), true);
    feed(&mut queue, &[create("a", 3), write(3, 0, 50)]);
    assert_eq!(
        all_groups(&mut queue),
        [["unlink a 2"], ["create a 3"], ["write 3 {0..50}"]]
    );
}

/// Found by the checker: a delta was to be made of a version that another delta had replaced.
#[test]
fn a_version_that_a_delta_copies_from_stays() {
    let mut queue = queue();
    let delta = |stamp| {
        Some(EncodedDelta {
            stamp,
            len_bytes: 1,
            base_version: None,
        })
    };
    // 3 stands behind the first content of 2, and has a delta that copies from it.
    queue.relate(NodeId(3), NodeId(2), false);
    feed(
        &mut queue,
        &[
            create("x", 9),
            write(2, 0, 50),
            create("t", 3),
            write(3, 0, 50),
            unlink("x", 9),
        ],
    );
    let Poll::Encode(of_3) = queue.poll(u64::MAX) else {
        panic!("nothing to encode")
    };
    assert_eq!((of_3.new, of_3.base_at), (NodeId(3), Some(Position(2))));
    assert!(queue.encoded(&of_3, delta(1)));
    // 2 gets a second content, and is itself to be made of 4.
    queue.relate(NodeId(2), NodeId(4), false);
    feed(&mut queue, &[write(2, 0, 60)]);
    let Poll::Encode(of_2) = queue.poll(u64::MAX) else {
        panic!("nothing to encode")
    };
    assert_eq!((of_2.new, of_2.up_to), (NodeId(2), Position(6)));
    assert!(!queue.encoded(&of_2, delta(2)), "it would replace what 3 copies from");
    assert_eq!(
        all_groups(&mut queue),
        [
            vec!["write 2 {0..50}", "create t 3", "delta 3 from 2"],
            vec!["write 2 {0..60}"]
        ]
    );
}

/// Found by the checker: the version that a refused fold would have made was taken for the base of
/// later changes.
#[test]
fn a_refused_fold_that_is_folded_again_keeps_the_older_base() {
    let options = QueueOptions {
        nodes_max: 1,
        delay_ns: 0,
        ..QueueOptions::default()
    };
    let mut queue = Queue::new(ClientId(7), options);
    feed(&mut queue, &[write(2, 0, 1), create("a", 3)]);
    assert_eq!(queue.poll(0), Poll::Cut);
    let id = queue.cut().unwrap();
    feed(&mut queue, &[write(2, 1, 2)]);
    queue.refused(id, 0).unwrap();
    queue.resolve(id, &Resolution::Fold, 0).unwrap();
    let FoldScope::Items { contents, .. } = &queue.fold.as_ref().unwrap().scope else {
        panic!()
    };
    assert_eq!(contents, &[(NodeId(2), Some(version(1002)))].into());
}

/// Found by the checker: a refused group was lost in a crash, and a mark within it was reported as
/// reached.
#[test]
fn a_mark_in_a_refused_group_waits_for_the_fold_after_a_crash() {
    let mut queue = queue();
    feed(&mut queue, &[write(2, 0, 1), Event::Mark { epoch: 4 }, write(2, 1, 2)]);
    let (id, _) = next_group(&mut queue);
    queue.refused(id, 0).unwrap();
    queue.abandon(0);
    queue.check().unwrap();
    assert!(queue.take_effects().is_empty());
    let id = queue.cut().unwrap();
    queue.applied(id).unwrap();
    assert_eq!(queue.take_effects(), [Effect::Mark(4)]);
}

/// Found by the checker: after a crash bytes were to be saved that the file no longer had, for a
/// group that is never sent again.
#[test]
fn nothing_is_saved_for_what_is_only_asked_for() {
    let mut queue = queue();
    feed(&mut queue, &[write(2, 0, 10)]);
    let (id, _) = next_group(&mut queue);
    assert!(!queue.saves_before_removal(NodeId(2)).is_empty());
    queue.abandon(0);
    assert!(queue.saves_before_removal(NodeId(2)).is_empty() && !queue.needs_file(NodeId(2)));
    queue.never_arrived(id, 0).unwrap();
}

/// A transaction for each change would cost more than the changes.
#[test]
fn queue_joins_due_changes_up_to_a_bound() {
    let options = QueueOptions {
        delay_ns: 3 * SECOND,
        delay_max_ns: 30 * SECOND,
        group_nodes_max: 4,
        group_bytes_max: 100,
        ..QueueOptions::default()
    };
    let mut queue = Queue::new(ClientId(7), options);
    for node in 2..5 {
        queue.event(&create(&format!("f{node}"), node), 0);
        queue.event(&write(node, 0, 5), 0);
    }
    // Not due with the others.
    queue.event(&create("g", 9), SECOND);
    let nodes = |queue: &Queue, id: GroupId| {
        let group = queue.groups().find(|group| group.id == id).unwrap();
        queue.nodes_of(group).count()
    };
    let sent = |queue: &mut Queue, now_ns| match queue.poll(now_ns) {
        Poll::Send(id) => Some(nodes(queue, id)),
        Poll::Idle { .. } => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(sent(&mut queue, 3 * SECOND), Some(4));
    assert_eq!(sent(&mut queue, 3 * SECOND), Some(2));
    assert_eq!(sent(&mut queue, 3 * SECOND), None);
    assert_eq!(sent(&mut queue, 4 * SECOND), Some(1));
    // Of large contents each is one, and may be larger than the bound.
    for node in 2..5 {
        queue.event(&write(node, 0, 60 * (node - 1)), 5 * SECOND);
        queue.event(&Event::Closed { node: NodeId(node) }, 5 * SECOND);
    }
    for _ in 0..3 {
        assert_eq!(sent(&mut queue, 8 * SECOND), Some(1));
    }
    // A span, which only counts as a whole, is not taken apart.
    for node in 20..26 {
        queue.event(&create(&format!("f{node}"), node), 9 * SECOND);
    }
    // It is taken out, so that those behind it are seen only together.
    queue.event(&unlink("f20", 20), 9 * SECOND);
    queue.event(&create("i", 30), 9 * SECOND);
    // Five files, and the time of their directory.
    assert_eq!(sent(&mut queue, 12 * SECOND), Some(6));
    assert_eq!(sent(&mut queue, 12 * SECOND), Some(1));
    queue.check().unwrap();
}

#[test]
fn queue_compares_due_contents_before_it_joins_them() {
    let options = QueueOptions {
        delay_ns: 3 * SECOND,
        delta_bytes_min: 1,
        ..QueueOptions::default()
    };
    let mut queue = Queue::new(ClientId(7), options);
    // An archive extracted over the files that were extracted from it before.
    for (node, before) in [(10, 2), (11, 3), (12, 4)] {
        let name = format!("f{before}");
        queue.event(&unlink(&name, before), 0);
        queue.relate(NodeId(node), NodeId(before), true);
        queue.event(&create(&name, node), 0);
        queue.event(&write(node, 0, 100), 0);
    }
    // Not due with the others, so that it is compared later.
    queue.event(&unlink("g", 5), SECOND);
    queue.relate(NodeId(13), NodeId(5), true);
    queue.event(&create("g", 13), SECOND);
    queue.event(&write(13, 0, 100), SECOND);
    let compared = |queue: &mut Queue, now_ns, delta| match queue.poll(now_ns) {
        Poll::Encode(order) => {
            assert_eq!(queue.encoded(&order, delta), delta.is_some());
            order.new.0
        }
        other => panic!("{other:?}"),
    };
    let delta = EncodedDelta {
        stamp: 5,
        len_bytes: 8,
        base_version: None,
    };
    assert_eq!(compared(&mut queue, 3 * SECOND, Some(delta)), 10);
    assert_eq!(compared(&mut queue, 3 * SECOND, None), 11);
    let Poll::Encode(order) = queue.poll(3 * SECOND) else {
        panic!("nothing to compare")
    };
    // While one of them is being compared, those before it need not wait.
    let Poll::Send(id) = queue.poll(3 * SECOND) else {
        panic!("nothing to send")
    };
    let group = queue.groups().find(|group| group.id == id).unwrap();
    let sent = queue.nodes_of(group).map(|(_, node)| short(&node.change));
    let sent = sent.filter(|change| !change.starts_with("times")).collect::<Vec<_>>();
    assert_eq!(
        sent,
        [
            "unlink f2 2",
            "create f2 10",
            "delta 10 from 2",
            "unlink f3 3",
            "create f3 11",
            "write 11 {0..100}"
        ]
    );
    assert!(queue.encoded(&order, Some(delta)));
    let Poll::Send(_) = queue.poll(3 * SECOND) else {
        panic!("nothing to send")
    };
    assert_eq!(
        queue.poll(3 * SECOND),
        Poll::Idle {
            wake_ns: Some(4 * SECOND)
        }
    );
    assert_eq!(compared(&mut queue, 4 * SECOND, None), 13);
    queue.check().unwrap();
}

#[test]
fn locks_of_several_directories_are_told_seldom() {
    let options = QueueOptions {
        delay_ns: 3 * SECOND,
        delay_max_ns: 30 * SECOND,
        ..QueueOptions::default()
    };
    let mut queue = Queue::new(ClientId(7), options);
    let mut times_sent = Vec::new();
    let mut file_sent = None;
    for now_s in 0..100 {
        let now_ns = now_s * SECOND;
        // Of two directories in turn.
        let lock = |mut event: Event| {
            if let Event::Name(NameOperation::Created { at, .. } | NameOperation::Unlinked { at, .. }) = &mut event {
                at.parent = [ROOT, NodeId(50)][now_s as usize % 2];
            }
            event
        };
        queue.event(&lock(create("lock", 100 + now_s)), now_ns);
        queue.event(&lock(unlink("lock", 100 + now_s)), now_ns);
        if now_s == 70 {
            queue.event(&create("file", 2), now_ns);
        }
        while let Poll::Send(id) = queue.poll(now_ns) {
            let group = queue.groups().find(|group| group.id == id).unwrap();
            let changes: Vec<String> = queue.nodes_of(group).map(|(_, node)| short(&node.change)).collect();
            match changes.iter().any(|change| change.starts_with("times")) {
                true => times_sent.push(now_s),
                false => file_sent = Some(now_s),
            }
            queue.applied(id).unwrap();
        }
        queue.check().unwrap();
    }
    assert!(times_sent.len() <= 5, "{times_sent:?}");
    assert!(
        times_sent.contains(&30),
        "no later than the longest delay: {times_sent:?}"
    );
    let file_sent = file_sent
        .into_iter()
        .chain(times_sent.into_iter().filter(|at_s| *at_s >= 70))
        .min();
    assert!(file_sent.is_some_and(|at_s| at_s <= 74), "{file_sent:?}");
}

#[test]
fn file_made_under_a_lock_does_not_wait_with_locks() {
    let options = QueueOptions {
        delay_ns: 3 * SECOND,
        delay_max_ns: 30 * SECOND,
        ..QueueOptions::default()
    };
    let mut queue = Queue::new(ClientId(7), options);
    queue.event(&create("lock", 100), 0);
    queue.event(&create("file", 2), 0);
    queue.event(&unlink("lock", 100), 0);
    let mut file_sent = None;
    for now_s in 1..20 {
        queue.event(&create("lock", 100 + now_s), now_s * SECOND);
        queue.event(&unlink("lock", 100 + now_s), now_s * SECOND);
        while let Poll::Send(id) = queue.poll(now_s * SECOND) {
            let group = queue.groups().find(|group| group.id == id).unwrap();
            let changes: Vec<String> = queue.nodes_of(group).map(|(_, node)| short(&node.change)).collect();
            if changes.iter().any(|change| !change.starts_with("times")) {
                file_sent.get_or_insert(now_s);
            }
            queue.applied(id).unwrap();
        }
    }
    assert!(file_sent.is_some_and(|at_s| at_s <= 4), "{file_sent:?}");
}

/// The cost of 100,000 events follows the events, not the length of the queue.
#[test]
fn a_full_queue_is_as_fast_as_an_empty_one() {
    let options = QueueOptions {
        nodes_max: 100_000,
        ..QueueOptions::default()
    };
    let mut queue = Queue::new(ClientId(7), options);
    for node in 2..40_000 {
        queue.event(&create(&format!("f{node}"), node), 0);
        queue.event(&write(node, 0, 5), 0);
    }
    for node in 2..20_000 {
        queue.event(&unlink(&format!("f{node}"), node), 0);
    }
    queue.check().unwrap();
    // And the time of their directory.
    assert_eq!(queue.waiting_nodes(), 2 * 20_000 + 1);
}

#[test]
fn queue_folds_what_waits_when_asked_and_cuts_even_nothing() {
    let mut queue = queue();
    for _ in 0..3 {
        queue.fold(0);
        assert!(queue.is_folded());
        let group = queue.cut().unwrap();
        queue.check().unwrap();
        queue.applied(group).unwrap();
        assert!(queue.is_empty());
    }
    queue.event(&create("a", 2), 0);
    queue.event(&write(2, 0, 100), 0);
    assert_eq!(
        (queue.unsent_of(NodeId(2)).content, queue.unsent_of(NodeId(2)).other),
        (true, true)
    );
    assert_eq!(queue.unsent_of(NodeId(3)), Unsent::default());
    queue.fold(0);
    queue.event(&write(3, 0, 100), 0);
    queue.check().unwrap();
    assert_eq!(
        (queue.presence_of(NodeId(2)), queue.presence_of(NodeId(3))),
        (Presence::Folded, Presence::Folded)
    );
    assert_eq!(
        (queue.unsent_of(NodeId(3)).content, queue.unsent_of(NodeId(3)).other),
        (true, false)
    );
    queue.abandon(0);
    assert!(queue.unsent_of(NodeId(9)).is_everything);
}

fn sets(sets: &[&[u64]]) -> Vec<FileSet> {
    let set = |files: &&[u64]| files.iter().copied().map(NodeId).collect();
    sets.iter().map(set).collect()
}

#[test]
fn queue_keeps_files_of_one_span_together_when_it_is_folded() {
    let mut queue = queue();
    // A database of two files, open all the time, and beside it unrelated files.
    let events = [
        create("alone", 9),
        write(2, 0, 4),
        write(3, 0, 4),
        write(2, 4, 8),
        Event::Closed { node: NodeId(2) },
        write(8, 0, 1),
    ];
    feed(&mut queue, &events);
    assert_eq!(queue.together(), sets(&[]), "nothing is folded");
    queue.fold(0);
    assert_eq!(queue.together(), sets(&[&[2, 3]]));
    // It is so until the fold is applied, however often that is refused.
    for _ in 0..2 {
        let id = queue.cut().unwrap();
        assert_eq!(queue.together(), sets(&[]));
        let group = queue.groups().next().unwrap().clone();
        assert_eq!(queue.together_in(&group), sets(&[&[2, 3]]));
        queue.refused(id, 0).unwrap();
        queue.resolve(id, &Resolution::Fold, 0).unwrap();
        assert_eq!(queue.together(), sets(&[&[2, 3]]));
    }
    let id = queue.cut().unwrap();
    queue.applied(id).unwrap();
    queue.fold(0);
    assert_eq!(queue.together(), sets(&[]));
}

#[test]
fn queue_does_not_join_files_only_sent_or_refused_together() {
    let mut queue = Queue::new(ClientId(7), QueueOptions::default());
    let events = [
        write(2, 0, 4),
        write(3, 0, 4),
        write(2, 4, 8),
        Event::Closed { node: NodeId(2) },
        Event::Closed { node: NodeId(3) },
        write(4, 0, 4),
        Event::Closed { node: NodeId(4) },
        write(5, 0, 4),
        write(6, 0, 4),
        write(5, 0, 4),
    ];
    feed(&mut queue, &events);
    let (id, nodes) = next_group(&mut queue);
    assert_eq!(nodes.len(), 5, "all of it is one transaction");
    let group = queue.groups().next().unwrap().clone();
    assert_eq!(queue.together_in(&group), sets(&[&[2, 3], &[5, 6]]));
    queue.event(&write(7, 0, 4), 0);
    queue.refused(id, 0).unwrap();
    queue.resolve(id, &Resolution::Fold, 0).unwrap();
    queue.check().unwrap();
    assert_eq!(queue.together(), sets(&[&[2, 3], &[5, 6]]));
}

#[test]
fn queue_keeps_groups_together_behind_a_refused_one() {
    let mut queue = queue();
    feed(
        &mut queue,
        &[create("a", 2), write(3, 0, 4), create("b", 4), write(3, 4, 8)],
    );
    let (first, _) = next_group(&mut queue);
    let (_, nodes) = next_group(&mut queue);
    assert_eq!(nodes.len(), 2);
    queue.refused(first, 0).unwrap();
    queue.resolve(first, &Resolution::Fold, 0).unwrap();
    assert_eq!(queue.together(), sets(&[&[3, 4]]));
}

#[test]
fn an_applied_group_belongs_to_nothing_that_comes_later() {
    let mut queue = queue();
    feed(&mut queue, &[write(2, 0, 4), write(3, 0, 4), write(2, 4, 8)]);
    let (id, _) = next_group(&mut queue);
    feed(&mut queue, &[write(2, 0, 4), write(4, 0, 4), write(2, 4, 8)]);
    queue.applied(id).unwrap();
    queue.fold(0);
    assert_eq!(queue.together(), sets(&[&[2, 4]]));
}

#[test]
fn queue_splits_operations_that_are_long_or_too_large() {
    // A log that is written all the time while no server is there: an atomic operation of a program
    // meanwhile is reported, changes beside it are not.
    let mut queue = queue();
    queue.event(&write(2, 0, 4), 0);
    queue.event(&write(3, 0, 4), 100 * SECOND);
    queue.event(&write(4, 0, 4), 101 * SECOND);
    queue.event(&write(3, 4, 8), 102 * SECOND);
    queue.event(&write(2, 4, 8), 103 * SECOND);
    queue.fold(103 * SECOND);
    assert_eq!(queue.together(), sets(&[&[3, 4]]));

    let many = |files: u64, options: QueueOptions| {
        let mut queue = Queue::new(ClientId(7), options);
        queue.event(&write(2, 0, 4), 0);
        for file in 3..2 + files {
            queue.event(&write(file, 0, 4), 0);
        }
        queue.event(&write(2, 4, 8), 0);
        queue.fold(0);
        queue.together().iter().map(FileSet::len).collect::<Vec<_>>()
    };
    let usual = QueueOptions::default();
    assert_eq!(many(1000, usual), [1000]);
    assert_eq!(many(1001, usual), []);
    // The queue, or its fold, is full.
    let (nodes_max, fold_items_max) = (10, 10);
    assert_eq!(many(5, QueueOptions { nodes_max, ..usual }), [5]);
    assert_eq!(many(50, QueueOptions { nodes_max, ..usual }), []);
    assert_eq!(
        many(
            50,
            QueueOptions {
                fold_items_max,
                ..usual
            }
        ),
        []
    );
}

#[test]
fn queue_that_gave_up_its_order_joins_only_noted_files() {
    let mut queue = queue();
    feed(&mut queue, &[write(2, 0, 4), write(3, 0, 4), write(2, 4, 8)]);
    queue.abandon(0);
    assert_eq!(queue.together(), sets(&[]));
    queue.note_together(sets(&[&[2, 3], &[4]]));
    // One file alone is no set; and a later change does not end a set.
    feed(&mut queue, &[write(2, 0, 4), create("a", 5)]);
    assert_eq!(queue.together(), sets(&[&[2, 3]]));
}

/// Without bounds, the sets are the files that the queue sends together.
#[test]
fn queue_sets_are_the_spans_in_random_runs() {
    let mut seen = 0;
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut queue = queue();
        let mut there: BTreeMap<u64, String> = (2..6).map(|node| (node, node.to_string())).collect();
        let mut next = 6;
        for _ in 0..random.random_range(0..20) {
            let nodes: Vec<u64> = there.keys().copied().collect();
            let any = nodes[random.random_range(0..nodes.len())];
            let event = match random.random_range(0..8) {
                0..4 => write(any, 0, 4),
                4 => Event::Closed { node: NodeId(any) },
                5 if nodes.len() > 2 => unlink(&there.remove(&any).unwrap(), any),
                _ => {
                    next += 1;
                    there.insert(next, next.to_string());
                    create(&next.to_string(), next)
                }
            };
            queue.event(&event, 0);
            queue.check().unwrap();
        }
        let mut expected = Vec::new();
        for (first, last) in queue.spans.iter() {
            let mut files = FileSet::new();
            for (_, node) in queue.nodes.range(first..=last) {
                match &node.change {
                    Change::Content(content) => files.insert(content.node),
                    Change::Name(NameOperation::Created { node, .. }) => files.insert(node.node),
                    _ => false,
                };
            }
            if files.len() > 1 && !expected.contains(&files) {
                expected.push(files);
            }
        }
        queue.fold(0);
        assert_eq!(queue.together(), expected, "seed {seed}");
        seen += expected.len();
    }
    assert!(seen > 50, "only {seen}");
}

#[test]
fn the_time_of_a_directory_outlives_names_that_came_and_went() {
    let mut queue = queue();
    feed(&mut queue, &[create("a", 2), write(2, 0, 5), unlink("a", 2)]);
    feed(&mut queue, &[create("a", 3), unlink("a", 3)]);
    let (first, nodes) = next_group_whole(&mut queue);
    assert_eq!(nodes, ["times {NodeId(1)}"], "once is enough");
    // That is on its way with the time that it was then.
    feed(&mut queue, &[create("a", 4), unlink("a", 4)]);
    let (second, nodes) = next_group_whole(&mut queue);
    assert_eq!(nodes, ["times {NodeId(1)}"]);
    queue.applied(first).unwrap();
    queue.applied(second).unwrap();
    assert!(queue.is_empty());
}

#[test]
fn the_time_of_a_directory_is_told_where_a_new_file_left_it() {
    let directory = |node, name: &str| {
        Event::Name(NameOperation::Created {
            at: place(name),
            node: Moved {
                node: NodeId(node),
                kind: NodeKind::Directory,
            },
        })
    };
    let inside = |parent, name: &str| Place::new(NodeId(parent), name.as_bytes());
    let mut queue = queue();
    feed(
        &mut queue,
        &[directory(2, "tmp"), directory(3, "new"), create("old", 4)],
    );
    assert_eq!(all_groups(&mut queue).len(), 3);
    // Made in one directory, moved into another, and replaced there.
    let made = Event::Name(NameOperation::Created {
        at: inside(2, "f"),
        node: file(5),
    });
    let moved = Event::Name(NameOperation::Renamed {
        from: inside(2, "f"),
        to: inside(3, "f"),
        node: file(5),
        replaced: None,
    });
    let over = Event::Name(NameOperation::Renamed {
        from: place("old"),
        to: inside(3, "f"),
        node: file(4),
        replaced: Some(victim(5)),
    });
    feed(&mut queue, &[made, moved, over]);
    let (_, nodes) = next_group_whole(&mut queue);
    assert_eq!(nodes, ["rename old f", "times {NodeId(2), NodeId(3)}"]);
}
