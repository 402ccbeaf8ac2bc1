//! Files that are found by their length.

use crate::{FILE, World};
use byteback_api::messages::ALIKE_MAX;
use byteback_host::random::noise;
use serde_json::json;

fn alike(world: &World, at: u64, lens_bytes: &[u64]) -> crate::Answer {
    let body = json!({"at": at, "lens_bytes": lens_bytes});
    world.send("POST", "/v1/folders/f/alike", body.to_string().as_bytes())
}

#[test]
fn files_are_found_by_their_length_at_each_moment() {
    let world = World::new();
    world.commit(7, &world.first(7, &noise(1, 100_000))).expect(200);
    world.commit(8, &world.patch(8, 1, 100_000, 5, b"changed")).expect(200);
    let files = |at, lens: &[u64]| alike(&world, at, lens).expect(200).json()["files"].clone();
    for at in [1, 2] {
        let found = files(at, &[100_000, 99_999, 0, 100_000, u64::MAX]);
        let file = FILE.to_string();
        assert_eq!(found, json!([[file], [], [], [file], []]), "{at}");
    }
    assert_eq!(files(1, &[]), json!([]));
    // Of short files nothing is said.
    world.commit(9, &world.patch(9, 2, 65_535, 0, b"short")).expect(200);
    assert_eq!(files(3, &[65_535, 100_000]), json!([[], []]));
    assert_eq!(files(2, &[100_000]), json!([[FILE.to_string()]]));
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    let world = World::new();
    alike(&world, 1, &[1]).problem(404, "node_not_found");
    world.commit(7, &world.first(7, &noise(1, 100_000))).expect(200);
    alike(&world, 2, &[1]).problem(400, "invalid_parameter");
    alike(&world, 1, &vec![1; ALIKE_MAX + 1]).problem(400, "invalid_parameter");
    for body in [&b"{}"[..], b"{\"at\":0,\"lens_bytes\":[-1]}", b"["] {
        world
            .send("POST", "/v1/folders/f/alike", body)
            .problem(400, "invalid_body");
    }
    let long = vec![b' '; 70_000];
    let answer = world.send("POST", "/v1/folders/f/alike", &long);
    assert!(answer.status >= 400);
}
