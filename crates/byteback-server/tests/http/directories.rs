//! Digests of directories.

use super::{FILE, World};
use byteback_api::directory_digests::{DigestedDirectory, DirectoryDigests, DirectoryEntries, PathKey, combine};
use byteback_api::messages::TreePage;
use byteback_host::random::noise;

const ROOT: &str = "00000000000000000000000000000001";

fn target(node: &str, query: &str) -> String {
    format!("/v1/folders/f/nodes/{node}/directory-digests{query}")
}

/// The digest of the root, which has no directories in it, from its listing.
fn of_listing(world: &World, at: u64) -> [u8; 32] {
    let page = world.get(&format!("/v1/folders/f/tree?at={at}")).expect(200);
    let page: TreePage = serde_json::from_slice(&page.body).unwrap();
    let mut entries = DirectoryEntries::default();
    for entry in &page.entries {
        entries.push(entry.name.as_bytes(), &entry.node.attributes);
    }
    let root = DigestedDirectory {
        above: None,
        entries: entries.finish(),
    };
    combine(&[root])[0].unwrap()
}

#[test]
fn directory_digests_are_those_of_each_moment() {
    let world = World::new();
    let bytes = noise(1, 1000);
    world.commit(1, &world.first(1, &bytes)).expect(200);
    world
        .commit(2, &world.patch(2, 1, bytes.len() + 5, 1000, &[7; 5]))
        .expect(200);
    let mut seen = Vec::new();
    for (query, at) in [("?at=1", 1), ("?at=2", 2), ("", 2)] {
        let answer = world.get(&target(ROOT, query)).expect(200);
        assert_eq!(
            answer.header("content-type"),
            "application/vnd.byteback.directory-digests"
        );
        let digests = DirectoryDigests::decode(&answer.body).unwrap();
        assert_eq!(digests.len(), 1);
        assert!(digests.agree(PathKey::of(b""), &of_listing(&world, at)), "{query}");
        seen.push(answer.body);
    }
    assert_ne!(seen[0], seen[1], "the length changed");
    assert_eq!(seen[1], seen[2]);
}

#[test]
fn directory_digests_of_more_names_than_wanted_are_none() {
    let world = World::new();
    world.commit(1, &world.first(1, &noise(1, 1000))).expect(200);
    for (names_max, directories) in [(0, 0), (1, 1)] {
        let answer = world.get(&target(ROOT, &format!("?names_max={names_max}"))).expect(200);
        assert_eq!(DirectoryDigests::decode(&answer.body).unwrap().len(), directories);
    }
}

#[test]
fn directory_digests_that_cannot_be_are_refused() {
    let world = World::new();
    world.commit(1, &world.first(1, &noise(1, 1000))).expect(200);
    for query in ["?at=2", "?at=0", "?at=x", "?more=1"] {
        world.get(&target(ROOT, query)).problem(400, "invalid_parameter");
    }
    let unknown = "000000000000000000000000000000ff";
    world.get(&target(unknown, "")).problem(404, "node_not_found");
    // A file.
    world
        .get(&target(&FILE.to_string(), ""))
        .problem(400, "invalid_parameter");
}
