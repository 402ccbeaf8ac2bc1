//! Named histories: each was once found by the random lives, by another test, or on paper.

use std::time::Duration;

use byteback_extents::ByteRange;

use super::tree::{ROOT, Uid};
use super::world::{History, World};
use crate::changes::tests::all;
use crate::{Close, ContentChange, Fence, LedgerEvent, Log, LogError, WholeReason};
use byteback_model::{NodeId, NodeKind};

/// A world with a file of 60 bytes that everybody knows of.
fn world_with_a_file() -> (World, Uid) {
    let mut world = World::new(1, History::default());
    let log = world.log();
    let file = world.create(Some(&log), ROOT, "a", false);
    world.write(Some(&log), file, 0, &[1; 60]).unwrap();
    (world, file)
}

fn save(world: &mut World) {
    world.cut("ann").unwrap();
    world.advance("ann").unwrap();
}

/// The content change of `node` that would be reported to ann now.
fn reported(world: &World, node: NodeId) -> Result<Option<ContentChange>, LogError> {
    let log = world.log();
    let mark = log.consumer("ann")?.mark;
    let changes = all(&log.look()?.changes(mark)?)?;
    Ok(changes
        .nodes
        .into_iter()
        .find(|change| change.node == node)
        .map(|change| change.content))
}

/// A checkpoint of everything after a time in which nothing happens.
fn checkpoint(world: &mut World) {
    world.pass(Duration::from_millis(50));
    world.checkpoint(Close::All, false).unwrap();
}

/// A party that was told of a new file by its number finds it by that number after a crash; for a
/// number that was not passed on nothing is promised.
#[test]
fn a_number_that_was_kept_is_the_files_after_a_crash() {
    for loses_power in [false, true] {
        let (mut world, _) = world_with_a_file();
        checkpoint(&mut world);
        let log = world.log();
        // The second was renamed meanwhile, the third is gone before anything is durable.
        let uids = ["b", "c", "d"].map(|name| world.create(Some(&log), ROOT, name, false));
        let nodes = uids.map(|uid| world.ids[&uid]);
        world.rename(Some(&log), (ROOT, "c"), (ROOT, "e"));
        world.remove(Some(&log), ROOT, "d");
        log.keep_numbers(&nodes).unwrap();
        let untold = world.create(Some(&log), ROOT, "f", false);
        let untold = world.ids[&untold];
        drop(log);
        world.sync_tree();
        match loses_power {
            true => world.power_loss(),
            false => world.kill(),
        }
        world.restart();
        let log = world.log();
        let child = |name: &str| log.child(NodeId::ROOT, name.as_ref()).unwrap();
        assert_eq!((child("b"), child("e")), (Some(nodes[0]), Some(nodes[1])));
        let found = child("f").unwrap();
        assert!(
            nodes.iter().all(|node| *node != found),
            "{found} was somebody else's, {untold} was its own"
        );
    }
}

#[test]
fn change_past_the_gate_is_reported_while_the_file_is_open() {
    let (mut world, file) = world_with_a_file();
    let node = world.ids[&file];
    save(&mut world);
    world.pass(Duration::from_millis(50));
    world.write(None, file, 10, b"from behind").unwrap();
    assert_eq!(reported(&world, node).unwrap(), None, "nobody can know yet");
    checkpoint(&mut world);
    assert_eq!(
        reported(&world, node).unwrap(),
        Some(ContentChange::Whole(WholeReason::Untracked))
    );
    save(&mut world);

    // Explained now: the next checkpoint closes it, and the start after that finds nothing.
    checkpoint(&mut world);
    assert_eq!(reported(&world, node).unwrap(), None);
    world.clean_stop();
    world.sync_tree();
    world.restart();
    assert_eq!(reported(&world, node).unwrap(), None);
}

#[test]
fn change_past_the_gate_is_reported_after_the_last_checkpoint() {
    let (mut world, file) = world_with_a_file();
    let node = world.ids[&file];
    checkpoint(&mut world);
    save(&mut world);
    world.pass(Duration::from_millis(50));
    world.write(None, file, 10, b"from behind").unwrap();
    world.clean_stop();
    world.restart();
    assert_eq!(
        reported(&world, node).unwrap(),
        Some(ContentChange::Whole(WholeReason::Untracked))
    );
}

#[test]
fn change_past_the_gate_is_not_hidden_by_a_change_through_it() {
    for chmod in [false, true] {
        let (mut world, file) = world_with_a_file();
        let node = world.ids[&file];
        checkpoint(&mut world);
        save(&mut world);
        world.pass(Duration::from_millis(50));
        world.write(None, file, 10, b"from behind").unwrap();
        world.pass(Duration::from_millis(50));
        let log = world.log();
        if chmod {
            world.chmod(Some(&log), file, 0o600);
        } else {
            world.write(Some(&log), file, 0, b"through").unwrap();
        }
        assert_eq!(
            reported(&world, node).unwrap(),
            Some(ContentChange::Whole(WholeReason::Untracked))
        );
    }
}

#[test]
fn log_explains_the_time_of_a_change_however_long_it_took() {
    let (mut world, file) = world_with_a_file();
    let node = world.ids[&file];
    checkpoint(&mut world);
    save(&mut world);
    let log = world.log();
    let range = byteback_extents::ByteRange::new(5, 9).unwrap();
    let operation = log.begin_write(node, || None).unwrap();
    operation.wrote(node, range);
    // A slow disk: the change is stamped long after it was announced.
    world.pass(Duration::from_secs(30));
    world.tree.write(file, 5, b"slow");
    drop(operation);
    checkpoint(&mut world);
    let Some(ContentChange::Ranges(ranges)) = reported(&world, node).unwrap() else {
        panic!("taken for a change from behind");
    };
    assert_eq!(ranges.iter().collect::<Vec<_>>(), [range]);
}

#[test]
fn names_and_attributes_through_the_gate_explain_the_time_too() {
    let (mut world, file) = world_with_a_file();
    let node = world.ids[&file];
    checkpoint(&mut world);
    save(&mut world);
    let log = world.log();
    world.chmod(Some(&log), file, 0o600);
    world.pass(Duration::from_millis(100));
    world.rename(Some(&log), (ROOT, "a"), (ROOT, "b"));
    checkpoint(&mut world);
    assert_eq!(reported(&world, node).unwrap(), Some(ContentChange::Unchanged));
}

#[test]
fn a_write_is_refused_while_its_intent_cannot_be_made_durable() {
    let (mut world, file) = world_with_a_file();
    checkpoint(&mut world);
    save(&mut world);
    let before = world.tree.inodes[&file].clone();
    world.disk.fail_op(world.disk.counters().ops + 1, 5);
    let log = world.log();
    let error = world.write(Some(&log), file, 0, b"never").unwrap_err();
    assert!(matches!(error, LogError::File { .. }), "{error:?}");
    assert_eq!(world.tree.inodes[&file], before);
    // The disk works again, and so does the log.
    world.write(Some(&log), file, 0, b"again").unwrap();
    assert!(matches!(
        reported(&world, world.ids[&file]).unwrap(),
        Some(ContentChange::Ranges(_))
    ));
}

#[test]
fn the_ledger_tells_clean_stops_from_unclean_ones() {
    let (mut world, file) = world_with_a_file();
    checkpoint(&mut world);
    world.clean_stop();
    world.restart();
    let log = world.log();
    world.write(Some(&log), file, 0, b"open").unwrap();
    world.kill();
    world.restart();
    let events: Vec<LedgerEvent> = world
        .log()
        .ledger()
        .unwrap()
        .into_iter()
        .map(|entry| entry.event)
        .collect();
    let interrupted: Vec<_> = events
        .iter()
        .filter(|event| matches!(event, LedgerEvent::Interrupted { .. }))
        .collect();
    assert_eq!(interrupted, [&LedgerEvent::Interrupted { open_files: 1 }]);
    assert_eq!(
        events
            .iter()
            .filter(|event| **event == LedgerEvent::TrackingEnded)
            .count(),
        1
    );
}

#[test]
fn inode_is_known_while_it_has_a_name_then_as_its_next_node() {
    let (mut world, file) = world_with_a_file();
    let log = world.log();
    let identity = world.tree.identity(file);
    let node = world.ids[&file];
    checkpoint(&mut world);
    for _ in 0..2 {
        assert_eq!(
            log.node_of(&identity).unwrap(),
            Some(node),
            "from the database, then from memory"
        );
    }
    // A program that has it open goes on writing, under the node that the file is then.
    let bytes = ByteRange::new(0, 10);
    let look = || -> Option<Fence> { None };
    let written_as = |log: &Log| {
        let begun = log.begin_content(&identity, bytes, look).unwrap();
        begun.map(|(operation, node)| {
            operation.wrote(node, bytes.unwrap());
            node
        })
    };
    assert_eq!(written_as(&log), Some(node), "a first time, and then as an open one");
    assert_eq!(written_as(&log), Some(node));
    world.remove(Some(&log), ROOT, "a");
    assert_eq!(log.node_of(&identity).unwrap(), None, "while its end waits in memory");
    assert_eq!(written_as(&log), None);
    checkpoint(&mut world);
    assert_eq!(log.node_of(&identity).unwrap(), None, "and afterwards");
    assert_eq!(written_as(&log), None);

    // Linked again through a descriptor, or the inode number is given to another file: the same
    // inode, another node.
    let again = log
        .begin()
        .created(world.ids[&ROOT], "b".as_ref(), &identity, NodeKind::File);
    assert_ne!(again, node);
    assert_eq!(log.node_of(&identity).unwrap(), Some(again));
    assert_eq!(written_as(&log), Some(again));
    checkpoint(&mut world);
    for _ in 0..2 {
        assert_eq!(log.node_of(&identity).unwrap(), Some(again));
        assert_eq!(written_as(&log), Some(again));
    }
}

/// A file is removed without passing the gate, and its inode number given to a file created through
/// it: as long as the older one is remembered, writes to the newer would be logged for it.
#[test]
fn an_inode_that_became_another_file_unseen_is_the_other_file() {
    let (mut world, file) = world_with_a_file();
    let log = world.log();
    let identity = world.tree.identity(file);
    let node = world.ids[&file];
    checkpoint(&mut world);
    for _ in 0..2 {
        assert_eq!(log.node_of(&identity).unwrap(), Some(node));
    }
    let other = log
        .begin()
        .created(world.ids[&ROOT], "b".as_ref(), &identity, NodeKind::File);
    assert_eq!(log.node_of(&identity).unwrap(), Some(other));
    checkpoint(&mut world);
    for _ in 0..2 {
        assert_eq!(log.node_of(&identity).unwrap(), Some(other));
    }
}

#[test]
fn a_file_that_goes_while_its_birth_is_made_durable_is_nobody() {
    let (mut world, file) = world_with_a_file();
    let log = world.log();
    let identity = world.tree.identity(file);
    let flushing = log.take_pending();
    assert_eq!(log.node_of(&identity).unwrap(), Some(world.ids[&file]));
    world.remove(Some(&log), ROOT, "a");
    assert_eq!(log.node_of(&identity).unwrap(), None);
    log.commit_pending(flushing, |_| Ok(())).unwrap();
    assert_eq!(log.node_of(&identity).unwrap(), None);
    checkpoint(&mut world);
    assert_eq!(log.node_of(&identity).unwrap(), None);
}

#[test]
fn log_does_not_remember_an_outdated_database_answer() {
    let (mut world, file) = world_with_a_file();
    let log = world.log();
    let (node, key) = (world.ids[&file], log.key(&world.tree.identity(file)));
    checkpoint(&mut world);
    // Asked before the file's end, answered after it; then asked before a checkpoint, answered
    // after it.
    let asked_at = log.state.lock().flushes;
    world.remove(Some(&log), ROOT, "a");
    log.state.lock().learn(key, node, asked_at);
    assert_eq!(log.node_of(&world.tree.identity(file)).unwrap(), None);
    checkpoint(&mut world);
    log.state.lock().learn(key, node, asked_at);
    assert_eq!(log.node_of(&world.tree.identity(file)).unwrap(), None);
}

#[test]
fn log_knows_nothing_of_a_node_number_that_was_never_given() {
    let (mut world, _) = world_with_a_file();
    world.cut("ann").unwrap();
    let look = world.log().look().unwrap();
    for node in [NodeId(0), NodeId(u64::MAX)] {
        assert_eq!(look.entries(node).unwrap(), []);
        assert_eq!(look.places_of(node).unwrap(), []);
        assert_eq!(look.locate(node).unwrap(), None);
        assert!(look.change_of(node, None).unwrap().is_none());
    }
}

#[test]
fn log_counts_known_ranges_as_logged_and_new_ones_once_told() {
    let (mut world, file) = world_with_a_file();
    let log = world.log();
    let identity = world.tree.identity(file);
    let node = world.ids[&file];
    let range = |start, end| ByteRange::new(start, end).unwrap();
    let is_logged = |range| {
        let begun = log.begin_content(&identity, Some(range), || None).unwrap();
        begun.unwrap().0.is_logged()
    };
    assert!(is_logged(range(0, 100)), "born in this epoch: whole anyway");
    save(&mut world);
    assert!(!is_logged(range(0, 10)));
    assert_eq!(reported(&world, node).unwrap(), None, "and nobody told");
    {
        let (operation, node) = log
            .begin_content(&identity, Some(range(0, 10)), || None)
            .unwrap()
            .unwrap();
        operation.wrote(node, range(2, 5));
    }
    assert!(!is_logged(range(0, 10)));
    assert!(!is_logged(range(4, 6)));
    assert!(is_logged(range(2, 4)));
    // Of another epoch now: what was logged is no answer any more.
    save(&mut world);
    assert!(!is_logged(range(2, 4)));
    log.begin_content(&identity, None, || None)
        .unwrap()
        .unwrap()
        .0
        .wrote(node, range(2, 3));
    let reported = reported(&world, node).unwrap();
    assert_eq!(
        reported,
        Some(ContentChange::Ranges([range(2, 3)].into_iter().collect()))
    );
}

/// First contact with a large tree makes it durable early, so that files which are found afterwards
/// are clean at once: what the disk would have lost without that would never be told.
#[test]
fn files_found_clean_lose_nothing_in_a_power_cut() {
    let mut clean = 0;
    for seed in 0..40 {
        let mut world = World::new(seed, History::default());
        world.scan_portion_entries = 1;
        world.clean_stop();
        for number in 0..6 {
            let dir = world.create(None, ROOT, &format!("new {number}"), true);
            let file = world.create(None, dir, "file", false);
            world.write(None, file, 0, &[number; 60]).unwrap();
        }
        // Long enough for the names, which a walk reports; the content only waits for a sync.
        world.tree.sync_names();
        world.pass(Duration::from_millis(50));
        world.restart();
        clean += world.log().counts().unwrap().nodes - world.log().counts().unwrap().open_nodes;
        save(&mut world);
        world.power_loss();
        save(&mut world);
        world.check_all("after the power was lost");
    }
    assert!(clean > 40 * 8, "{clean}: the files were left open");
}

/// Not those that were changed while it was made durable, or a moment before.
#[test]
fn a_file_that_changes_while_it_is_found_is_not_clean() {
    for seed in 0..10 {
        let mut world = World::new(seed, History::default());
        world.scan_portion_entries = 1;
        world.clean_stop();
        let mut files = Vec::new();
        for number in 0..6 {
            let dir = world.create(None, ROOT, &format!("new {number}"), true);
            let file = world.create(None, dir, "file", false);
            world.write(None, file, 0, &[number; 60]).unwrap();
            files.push(file);
        }
        world.sync_tree();
        world.restart();
        save(&mut world);
        // In the same tick: neither size nor times show it.
        for file in files {
            world.write(None, file, 0, &[99; 60]).unwrap();
        }
        world.sync_tree();
        world.kill();
        world.restart();
        world.check_all("after the restart");
    }
}

/// Continuous sync tells others of a file before a checkpoint knows of it.
#[test]
fn a_number_that_was_given_before_a_crash_is_not_given_again() {
    let (mut world, _) = world_with_a_file();
    checkpoint(&mut world);
    let mut given = std::collections::BTreeSet::new();
    for round in 0..4 {
        let log = world.log();
        let new = world.create(Some(&log), ROOT, &format!("of round {round}"), false);
        assert!(given.insert(world.ids[&new]), "round {round}: {given:?}");
        world.remove(Some(&log), ROOT, &format!("of round {round}"));
        drop(log);
        match round % 2 {
            0 => world.kill(),
            _ => world.clean_stop(),
        }
        world.restart();
    }
}
