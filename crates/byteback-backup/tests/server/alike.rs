//! New files whose content the server has: copied by reading and writing, moved in, moved out and
//! in again.

use super::examining::scripted_proxy;
use byteback_api::Problem;
use byteback_api::batch::BatchWriter;
use byteback_api::messages::ALIKE_LEN_MIN;
use byteback_backup::decisions::{Cause, last_decision};
use byteback_backup::{DeltaChoice, SnapshotSpec};
use byteback_client::TreePlace;
use byteback_control::TreeService;
use byteback_delta::{DeltaReader, DeltaWriter, EmptyBase, WriterOptions, apply_to_new};
use byteback_extents::ByteRange;
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{ContentBase, ContentChange, Manifest, NodeId, NodeKind, NodeRecord};
use byteback_testkit::clients::patient;
use byteback_testkit::proxy::hearing;
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::seed;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const MIB: usize = 1 << 20;

fn file(rig: &Rig, name: &str, bytes: &[u8]) -> NodeId {
    let mut state = rig.tree.lock();
    let file = state.create(NodeId::ROOT, name.as_bytes(), NodeKind::File);
    state.write(file, 0, bytes);
    file
}

/// Saves, and returns the literals and the bytes to the server.
fn saved(rig: &Rig) -> (u64, u64) {
    let before = rig.client.wire_bytes();
    let report = rig.backup().unwrap();
    let sent = rig.client.wire_bytes().since(before).sent;
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    (report.literal_bytes, sent)
}

#[test]
fn copies_of_what_the_server_has_cost_no_content() {
    let mut rig = Rig::new(1);
    let decisions = rig.keep_decisions();
    let (document, archive) = (noise(1, 3 * MIB + 77), noise(2, 200_000));
    file(&rig, "document", &document);
    let archived = file(&rig, "archive", &archive);
    file(&rig, "of the least length", &noise(3, ALIKE_LEN_MIN as usize));
    saved(&rig);

    // All at once, beside files that are new in truth.
    let copy = file(&rig, "document (copy)", &document);
    file(&rig, "another copy", &document);
    file(&rig, "of the least length too", &noise(3, ALIKE_LEN_MIN as usize));
    file(&rig, "new", &noise(4, 70_000));
    rig.tree.lock().unlink(NodeId::ROOT, b"archive");
    let (literals, sent) = saved(&rig);
    assert_eq!(literals, 70_000);
    assert!(sent < 77_000, "{sent}");
    let tree = rig.tree.status().unwrap().tree;
    let decided = last_decision(decisions.as_ref(), tree, copy).unwrap().unwrap();
    assert_eq!(decided.decision.cause, Cause::Copied);

    // It was moved out, and comes back as another file.
    assert_ne!(file(&rig, "archive", &archive), archived);
    let (literals, sent) = saved(&rig);
    assert!((literals, sent < 2000) == (0, true), "{literals}, {sent}");

    // Copies follow nobody: both are changed from now on.
    rig.tree.lock().write(copy, 5, b"changed");
    assert_eq!(saved(&rig).0, 7);
}

#[test]
fn files_of_equal_length_and_other_content_are_sent() {
    let rig = Rig::new(2);
    let content = noise(1, 300_000);
    file(&rig, "first", &content);
    // A hole has its length, too.
    let mut sparse = content.clone();
    sparse[100_000..200_000].fill(0);
    let holed = file(&rig, "sparse", &content);
    rig.tree.lock().punch(holed, ByteRange::new(100_000, 200_000).unwrap());
    saved(&rig);
    let mut other = content.clone();
    other[299_999] ^= 1;
    file(&rig, "other", &other);
    let (literals, _) = saved(&rig);
    assert_eq!(literals, 300_000);
    file(&rig, "equal to the sparse one", &sparse);
    file(&rig, "equal to the other one", &other);
    assert_eq!(saved(&rig).0, 0);
}

#[test]
fn very_long_copies_are_compared_by_signature() {
    let mut rig = Rig::new(3);
    rig.options.part_len_bytes = MIB;
    // Longer than what is digested; mostly a hole.
    let long = |name: &str, byte: u8| {
        let node = file(&rig, name, &[]);
        let mut state = rig.tree.lock();
        state.truncate(node, 70 << 20);
        state.write(node, 69 << 20, &[byte; 5000]);
        state.write(node, 1000, &noise(9, 80_000));
        node
    };
    long("image", 1);
    saved(&rig);
    long("copy", 1);
    long("same length", 2);
    let (literals, sent) = saved(&rig);
    assert!((80_000..86_000).contains(&literals), "{literals}");
    assert!(sent < 90_000, "{sent}");
}

#[test]
fn only_the_file_with_the_content_counts_among_equal_lengths() {
    let seed = seed(64);
    let mut random = SplitMix64::new(seed);
    let rig = Rig::new(seed);
    // Random files of three lengths and three contents each, copied, changed and removed.
    let lens = [ALIKE_LEN_MIN as usize - 1, ALIKE_LEN_MIN as usize, 100_000];
    let mut names: Vec<String> = Vec::new();
    let mut found = 0;
    for round in 0..40 {
        for _ in 0..1 + random.below(3) {
            let (which, len) = (random.below(3), lens[random.below(3) as usize]);
            let name = format!("{round} {}", names.len());
            file(&rig, &name, &noise(which, len));
            names.push(name);
        }
        if random.below(3) == 0 {
            let gone = names.swap_remove(random.below(names.len() as u64) as usize);
            rig.tree.lock().unlink(NodeId::ROOT, gone.as_bytes());
        }
        if random.below(3) == 0 {
            rig.change(&mut random, 2);
        }
        found += u64::from(saved(&rig).0 == 0);
    }
    // Three contents of each length, so that not all of them are among those compared.
    assert!(found > 5, "{found} backups found all");
}

#[test]
fn answers_about_lengths_cost_bytes_alone_whatever_they_say() {
    let content = noise(1, 100_000);
    let nowhere = "\"000000000000000000000000000000ff\"";
    let lies = [
        ("no JSON", "{".to_owned()),
        ("too few", r#"{"files":[]}"#.to_owned()),
        ("a node that is not there", format!("{{\"files\":[[{nowhere}]]}}")),
        ("too many", format!("{{\"files\":[[{}]]}}", [nowhere; 500].join(","))),
    ];
    for (what, lie) in lies {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let script = move |call: &str| {
            (call == "alike").then(|| {
                counted.fetch_add(1, Ordering::SeqCst);
                (200, "application/json", lie.clone().into_bytes())
            })
        };
        let rig = Rig::through(4, patient(), scripted_proxy(script));
        file(&rig, "first", &content);
        saved(&rig);
        file(&rig, "copy", &content);
        assert_eq!(saved(&rig).0, 100_000, "{what}");
        assert!(asked.load(Ordering::SeqCst) > 0, "{what}");
    }
}

#[test]
fn older_servers_are_asked_once_about_lengths() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let rig = Rig::through(5, patient(), move |to, _| {
        hearing(to, move |head, _| {
            let is_about = head.contains("/alike ");
            counted.fetch_add(usize::from(is_about), Ordering::SeqCst);
            is_about.then(|| Problem::new(byteback_api::Code::RouteNotFound, "an older server"))
        })
    });
    let content = noise(1, 100_000);
    for name in ["first", "second", "third"] {
        file(&rig, name, &content);
        assert_eq!(saved(&rig).0, 100_000);
    }
    assert_eq!(
        asked.load(Ordering::SeqCst),
        2,
        "once in a backup; the first one follows nothing"
    );
}

#[test]
fn copies_are_sent_whole_if_the_user_says_so() {
    let mut rig = Rig::new(6);
    rig.options.delta = DeltaChoice::Full;
    let content = noise(1, 100_000);
    file(&rig, "first", &content);
    saved(&rig);
    file(&rig, "copy", &content);
    assert_eq!(saved(&rig).0, 100_000);
}

#[test]
fn files_that_begin_otherwise_are_not_compared() {
    let compared = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&compared);
    let rig = Rig::through(7, patient(), move |to, _| {
        hearing(to, move |head, _| {
            counted.fetch_add(usize::from(head.contains("/digests ")), Ordering::SeqCst);
            None
        })
    });
    // Segments of a log, and one that is copied in the end.
    for segment in 0..5 {
        file(&rig, &format!("segment {segment}"), &noise(segment, 100_000));
        assert_eq!(saved(&rig).0, 100_000);
    }
    assert_eq!(compared.load(Ordering::SeqCst), 0);
    file(&rig, "copy", &noise(2, 100_000));
    assert_eq!(saved(&rig).0, 0);
    assert_eq!(compared.load(Ordering::SeqCst), 1);
}

#[test]
fn copy_of_a_file_that_another_device_changed_is_no_conflict() {
    let rig = Rig::new(8);
    let content = noise(1, 100_000);
    file(&rig, "first", &content);
    saved(&rig);
    // Another device changes the file; nothing of it is here.
    let (other, device) = rig.another_device();
    let there = |path: &'static [u8]| {
        rig.client
            .tree_node(&rig.folder, 1, TreePlace::Path(path))
            .unwrap()
            .node
    };
    let (root, first) = (there(b""), there(b"first"));
    let mut delta = DeltaWriter::new(Vec::new(), 100_000, 100_000, WriterOptions::default()).unwrap();
    delta.literal_bytes(7, b"by another").unwrap();
    let mut batch = BatchWriter::new(Vec::new()).unwrap();
    let manifest = Manifest {
        device,
        counter: 1,
        base_seq: Some(1),
        replaces: None,
        follows: None,
        root: root.id,
        created_ns: 0,
        host: "other".into(),
        path: "/".into(),
        snapshot: None,
    };
    batch.manifest(&manifest).unwrap();
    let record = NodeRecord {
        id: first.id,
        attributes: first.attributes,
        content: Some(ContentChange {
            deltas: 1,
            base: ContentBase::Previous,
        }),
    };
    batch.node(&record).unwrap();
    batch.delta(first.id, &delta.finish().unwrap().0).unwrap();
    other
        .commit(&rig.folder, 1, (0, None), &batch.end().unwrap(), &|_| true)
        .unwrap();

    file(&rig, "copy", &content);
    let report = rig.backup().unwrap();
    assert_eq!((report.literal_bytes, report.everything_because), (0, None));
    let read = |path: &'static [u8]| {
        let node = rig
            .client
            .tree_node(&rig.folder, 3, TreePlace::Path(path))
            .unwrap()
            .node;
        let reader = rig.client.content(&rig.folder, node.id, 3, 0, &|_| true).unwrap();
        let mut bytes = Vec::new();
        apply_to_new(&EmptyBase, &mut DeltaReader::new(reader).unwrap(), &mut bytes).unwrap();
        bytes
    };
    assert_eq!(read(b"copy"), content);
    assert_eq!(&read(b"first")[7..17], b"by another");
}
