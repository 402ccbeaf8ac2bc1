//! Files that are found by their length and beginning.

use crate::{FILE, World};
use byteback_api::messages::ALIKE_MAX;
use byteback_host::random::noise;
use byteback_store::alike::head_digest;
use serde_json::json;

/// Asks about contents of these lengths that begin like these bytes.
fn alike(world: &World, at: u64, lens_bytes: &[u64], bytes: &[u8]) -> crate::Answer {
    let head = u64::from_be_bytes(head_digest(&bytes[..bytes.len().min(4096)]));
    let content = |len_bytes: &u64| json!({"len_bytes": len_bytes, "head": format!("{head:016x}")});
    let contents: Vec<_> = lens_bytes.iter().map(content).collect();
    let body = json!({"at": at, "contents": contents});
    world.send("POST", "/v1/folders/f/alike", body.to_string().as_bytes())
}

#[test]
fn files_are_found_by_their_length_at_each_moment() {
    let world = World::new();
    let first = noise(1, 100_000);
    world.commit(7, &world.first(7, &first)).expect(200);
    world.commit(8, &world.patch(8, 1, 100_000, 5, b"changed")).expect(200);
    let mut second = first.clone();
    second[5..12].copy_from_slice(b"changed");
    let files_of = |at, lens: &[u64], bytes: &[u8]| alike(&world, at, lens, bytes).expect(200).json()["files"].clone();
    let files = |at: u64, lens: &[u64]| files_of(at, lens, if at == 1 { &first } else { &second });
    assert_eq!(files_of(2, &[100_000], &first), json!([[]]), "it begins otherwise now");
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
    alike(&world, 1, &[1], b"").problem(404, "node_not_found");
    world.commit(7, &world.first(7, &noise(1, 100_000))).expect(200);
    alike(&world, 2, &[1], b"").problem(400, "invalid_parameter");
    alike(&world, 1, &vec![1; ALIKE_MAX + 1], b"").problem(400, "invalid_parameter");
    for head in ["", "0", "0123456789abcdefg", "+123456789abcdef", "0123456789abcdeg"] {
        let body = json!({"at": 1, "contents": [{"len_bytes": 1, "head": head}]});
        let answer = world.send("POST", "/v1/folders/f/alike", body.to_string().as_bytes());
        answer.problem(400, "invalid_parameter");
    }
    for body in [
        &b"{}"[..],
        b"{\"at\":1,\"contents\":[{\"len_bytes\":-1,\"head\":\"\"}]}",
        b"[",
    ] {
        world
            .send("POST", "/v1/folders/f/alike", body)
            .problem(400, "invalid_body");
    }
    let long = vec![b' '; 70_000];
    let answer = world.send("POST", "/v1/folders/f/alike", &long);
    assert!(answer.status >= 400);
}
