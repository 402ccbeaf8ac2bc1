//! The signature of a stored content.

use super::{FILE, World, delta, file};
use crate::client::{connect, head};
use byteback_api::Digest;
use byteback_api::batch::{BatchWriter, ProofRecord};
use byteback_delta::find::{BlockIndex, FoundExtents, RollingFinder};
use byteback_delta::leaves::{LeafDigest, LeafKind};
use byteback_delta::signature::{Signature, SignatureParams};
use byteback_host::random::noise;
use byteback_model::ContentBase;
use std::io::Write as _;
use std::time::Duration;

fn target(query: &str) -> String {
    format!("/v1/folders/f/nodes/{FILE}/signature{query}")
}

pub(crate) fn blocks(signature: &Signature) -> Vec<(u32, Vec<u8>)> {
    let strong = |block| signature.strong(block).unwrap().to_vec();
    let weak = signature.weak().iter().enumerate();
    weak.map(|(block, weak)| (*weak, strong(block))).collect()
}

#[test]
fn signature_is_that_of_the_content_at_each_moment() {
    let world = World::new();
    let mut bytes = noise(1, 300_000);
    world.commit(1, &world.first(1, &bytes)).expect(200);
    let old = bytes.clone();
    bytes[100_000..100_500].fill(7);
    world
        .commit(2, &world.patch(2, 1, bytes.len(), 100_000, &[7; 500]))
        .expect(200);
    for (query, content) in [
        ("?at=1", &old),
        ("?at=2", &bytes),
        ("", &bytes),
        ("?block=4096", &bytes),
        ("?at=1&block=256", &old),
    ] {
        let answer = world.get(&target(query)).expect(200);
        assert_eq!(answer.header("content-type"), "application/vnd.byteback.signature");
        assert!(answer.complete);
        let signature = Signature::read(&answer.body[..], 10_000).unwrap();
        let params = *signature.params();
        assert_eq!(params.stream_len_bytes(300_000), answer.body.len() as u64);
        assert_eq!(signature.content_len_bytes(), 300_000);
        assert_eq!(blocks(&signature), blocks(&Signature::of(content, params)), "{query}");
        let block = query.split_once("block=").map_or(
            SignatureParams::for_content(300_000, 0).block_len_bytes,
            |(_, block)| block.parse().unwrap(),
        );
        assert_eq!(params.block_len_bytes, block);
        assert_ne!(params.seed, 0);
        // And it serves its purpose.
        let index = BlockIndex::new(signature);
        let mut finder = RollingFinder::new(&index, FoundExtents::default());
        finder.push(b"some bytes in front").unwrap();
        finder.push(content).unwrap();
        let (_, stats) = finder.finish().unwrap();
        assert!(stats.literal_bytes < 19 + 2 * u64::from(block), "{query}: {stats:?}");
    }
    let seed = || {
        Signature::read(&world.get(&target("")).body[..], 10_000)
            .unwrap()
            .params()
            .seed
    };
    assert_ne!(seed(), seed(), "each has a seed of its own");
}

#[test]
fn signature_of_a_part_is_as_if_that_were_all() {
    let world = World::new();
    let bytes = noise(1, 300_000);
    world.commit(1, &world.first(1, &bytes)).expect(200);
    for (query, part) in [
        ("?from=100000&to=200000", 100_000..200_000),
        ("?from=299999", 299_999..300_000),
        ("?to=70000&block=4096", 0..70_000),
        ("?from=250000&to=18446744073709551615", 250_000..300_000),
        ("?from=300000", 300_000..300_000),
        ("?from=400000&to=500000", 300_000..300_000),
    ] {
        let answer = world.get(&target(query)).expect(200);
        assert!(answer.complete);
        let signature = Signature::read(&answer.body[..], 10_000).unwrap();
        assert_eq!(signature.content_len_bytes(), part.len() as u64, "{query}");
        let expected = Signature::of(&bytes[part], *signature.params());
        assert_eq!(blocks(&signature), blocks(&expected), "{query}");
    }
    for query in [
        "?from=1&to=1",
        "?from=2&to=1",
        "?to=0",
        "?from=-1",
        "?from=18446744073709551615",
    ] {
        world.get(&target(query)).expect(400);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let world = World::new();
    world.commit(1, &world.first(1, &noise(1, 1000))).expect(200);
    for query in [
        "?block=0",
        "?block=255",
        "?block=16777217",
        "?block=x",
        "?at=2",
        "?at=0",
        "?more=1",
        "?weak=crc128",
        "?weak=",
        "?strong=md4,tree-sha3",
        "?strong_len=5",
        "?strong_len=33",
        "?strong_len=300",
    ] {
        world.get(&target(query)).problem(400, "invalid_parameter");
    }
    let unknown = "/v1/folders/f/nodes/000000000000000000000000000000ff/signature";
    world.get(unknown).problem(404, "node_not_found");
    // A directory.
    let root = "/v1/folders/f/nodes/00000000000000000000000000000001/signature";
    world.get(root).problem(400, "invalid_parameter");
}

#[test]
fn one_that_nobody_takes_ends() {
    let world = World::with(|config| {
        config.signatures_max = 1;
        config.idle_timeout = Duration::from_secs(1);
    });
    let bytes = noise(1, 40 << 20);
    world.commit(1, &world.first(1, &bytes)).expect(200);
    let mut idle = connect(world.server.address());
    let request = head("GET", &target("?block=256"), Some(&world.token), 0, &[]);
    idle.write_all(request.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    // If the signature at work does not advance, because its client does not read, it is cut off.
    let answer = (0..10)
        .map(|_| world.get(&target("")))
        .find(|answer| answer.status == 200)
        .unwrap();
    assert!(Signature::read(&answer.body[..], 100_000).is_ok());
    drop(idle);
}

#[test]
fn a_server_can_refuse_to_make_them() {
    let world = World::with(|config| {
        config.signatures_max = 0;
        config.idle_timeout = Duration::from_millis(200);
    });
    world.commit(1, &world.first(1, &noise(1, 1000))).expect(200);
    world.get(&target("")).problem(503, "unavailable");
    world.content(1, &[]).expect(200);
}

#[test]
fn kinds_and_lengths_are_the_first_that_the_server_makes() {
    let world = World::new();
    let bytes = noise(1, 300_000);
    world.commit(1, &world.first(1, &bytes)).expect(200);
    for (query, block, weak, strong) in [
        (
            "?weak=crc128,crc32c,rolling&strong=tree-sha3,tree-sha256,blake3-keyed",
            4096,
            "crc32c",
            "tree-sha256",
        ),
        (
            "?weak=crc32c&strong=tree-blake3&block=5000",
            8192,
            "crc32c",
            "tree-blake3",
        ),
        ("?strong=tree-blake2b256&block=4096", 4096, "rolling", "tree-blake2b256"),
        (
            "?weak=crc32-padded&strong=sha256-padded&block=1000",
            1000,
            "crc32-padded",
            "sha256-padded",
        ),
    ] {
        for strong_len in [None, Some(6), Some(32)] {
            let mut query = query.to_owned();
            query.extend(strong_len.map(|len| format!("&strong_len={len}")));
            let answer = world.get(&target(&query)).expect(200);
            let signature = Signature::read(&answer.body[..], 10_000).unwrap();
            let params = *signature.params();
            assert_eq!(params.stream_len_bytes(300_000), answer.body.len() as u64);
            assert_eq!(
                (params.block_len_bytes, params.weak.name(), params.strong.name()),
                (block, Some(weak), Some(strong))
            );
            assert!(strong_len.is_none_or(|len| len == params.strong_len_bytes), "{query}");
            assert_eq!(blocks(&signature), blocks(&Signature::of(&bytes, params)), "{query}");
        }
    }
}

#[test]
fn the_metrics_tell_what_was_not_read() {
    let world = World::new();
    let bytes = noise(1, 3_000_000);
    world.commit(1, &world.first(1, &bytes)).expect(200);
    for _ in 0..2 {
        world.get(&target("?weak=crc32c&strong=tree-blake3")).expect(200);
    }
    let metrics = String::from_utf8(world.get("/metrics").expect(200).body).unwrap();
    for line in [
        "byteback_server_signature_read_bytes_total 3000000",
        "byteback_server_signature_unread_bytes_total 3000000",
        "byteback_server_proof_read_bytes_total 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
}

#[test]
fn a_proof_by_sums_costs_what_changed_and_counts() {
    let world = World::new();
    let mut bytes = noise(1, 3_000_000);
    world.commit(1, &world.first(1, &bytes)).expect(200);
    world.get(&target("?weak=crc32c&strong=tree-sha256")).expect(200);
    bytes[1_000_000..1_010_000].fill(7);
    let batch = |world: &World, content: &[u8]| {
        let mut digest = LeafDigest::new(LeafKind::Sha256, content.len() as u64);
        digest.push(content);
        let mut writer = BatchWriter::new(Vec::new()).unwrap();
        writer.manifest(&world.manifest(2, Some(1))).unwrap();
        writer.node(&file(3_000_000, 1, ContentBase::Previous)).unwrap();
        writer
            .delta(FILE, &delta(3_000_000, 3_000_000, 1_000_000, &[7; 10_000]))
            .unwrap();
        let proof = ProofRecord {
            id: FILE,
            digest: Digest(digest.finish().unwrap()),
            sums: Some(LeafKind::Sha256),
            ranges: Vec::new(),
        };
        writer.proof(&proof).unwrap();
        writer.end().unwrap()
    };
    world.commit(2, &batch(&world, &bytes)).expect(200);
    assert_eq!(world.content(1, &[]).expect(200).status, 200);
    let metrics = String::from_utf8(world.get("/metrics").expect(200).body).unwrap();
    // Three leaves, and the former parts of the first and the last one.
    let read = "byteback_server_proof_read_bytes_total 12288";
    assert!(metrics.lines().any(|line| line == read), "{metrics}");
    // The same batch with a proof of something else.
    let world = World::new();
    world.commit(1, &world.first(1, &noise(1, 3_000_000))).expect(200);
    bytes[0] ^= 1;
    world.commit(2, &batch(&world, &bytes)).problem(422, "content_mismatch");
}
