//! Files that programs look at for the first time in the moment in which they land. The kernel
//! drops what it is told to forget, but it cannot drop a reply that is still on its way: that was
//! right when it was given, arrives later, and would be believed for a day.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Barrier;

use byteback_control::Expected;
use byteback_model::{NodeId, NodeKind};

use super::*;

const FILES: usize = 120;

const ROUNDS: usize = 15;

/// Length, nanoseconds of the time, and number of names.
type Seen = (u64, i64, u64);

/// The name of each file, with what is seen of it; `None` where it was removed meanwhile.
fn look(dir: &Path) -> Vec<(String, Option<Seen>)> {
    let mut seen: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let stat = entry.metadata().ok();
            let reported = stat.map(|stat| (stat.len(), stat.mtime_nsec(), stat.nlink()));
            (entry.file_name().into_string().unwrap(), reported)
        })
        .collect();
    seen.sort();
    seen
}

fn rounds(rig: &Rig, land: impl Fn(&dyn LandingTree, usize, NodeId, NodeId), expected: impl Fn(usize) -> Seen) {
    let (tree, landing) = (rig.fixture.tree(), rig.landing());
    for round in 0..ROUNDS {
        let name = format!("dir {round}");
        // No program has looked there, so the kernel knows nothing of it.
        let (dir, _) = done(landing.make(
            &name_in(NodeId::ROOT, &name),
            &attributes(NodeKind::Directory),
            Expected::Unqueued,
        ));
        let file = |number: usize| name_in(dir, &format!("file {number:03}"));
        let make = |number| done(landing.make(&file(number), &attributes(NodeKind::File), Expected::Unqueued)).0;
        let nodes: Vec<NodeId> = (0..FILES).map(make).collect();
        let begin = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                look(&tree.join(&name))
            });
            begin.wait();
            for (number, node) in nodes.iter().enumerate() {
                land(&*landing, number, dir, *node);
            }
        });
        for (number, (name, seen)) in look(&tree.join(&name))
            .into_iter()
            .filter(|(name, _)| name.starts_with("file"))
            .enumerate()
        {
            assert_eq!(seen, Some(expected(number)), "round {round}, {name}");
        }
    }
}

#[test]
fn landed_attributes_are_seen_at_the_first_look_at_a_file() {
    let rig = Rig::new(|_| {});
    let later = |number: usize| 1_700_000_000_000_000_000 + number as i64;
    rounds(
        &rig,
        |landing, number, _, node| {
            let mut wanted = attributes(NodeKind::File);
            wanted.mtime_ns = later(number).into();
            let missed = done(landing.set_attributes(node, &wanted, Expected::Unqueued));
            assert_eq!(missed, Vec::new());
        },
        |number| (0, later(number) % 1_000_000_000, 1),
    );
    rig.end();
}

#[test]
fn landed_length_is_seen_at_the_first_look_at_a_file() {
    let rig = Rig::new(|_| {});
    rounds(
        &rig,
        |landing, number, _, node| {
            let mut file = done(landing.watch_file(node, Expected::Unqueued));
            file.write_range(0, &vec![1; 1 + number]).unwrap();
            drop(file);
            done(landing.set_attributes(node, &attributes(NodeKind::File), Expected::Unqueued));
        },
        |number| (1 + number as u64, 123_456_789, 1),
    );
    rig.end();
}

#[test]
fn landed_names_elsewhere_count_at_the_first_look_at_a_file() {
    let rig = Rig::new(|_| {});
    let elsewhere = done(rig.landing().make(
        &name_in(NodeId::ROOT, "elsewhere"),
        &attributes(NodeKind::Directory),
        Expected::Unqueued,
    ))
    .0;
    rounds(
        &rig,
        |landing, number, dir, node| {
            let name = format!("link {number} of {dir:?}");
            done(landing.link(node, &name_in(elsewhere, &name), Expected::Unqueued));
        },
        |_| (0, 123_456_789, 2),
    );
    rig.end();
}
