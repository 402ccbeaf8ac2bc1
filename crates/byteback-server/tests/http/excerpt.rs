//! The signature of some ranges of a stored content, and their bytes.

use super::signature::blocks;
use super::{FILE, World};
use crate::client::{Answer, connect, head, read_answer, request};
use byteback_api::MEDIA_EXCERPT;
use byteback_delta::excerpt::{Excerpt, ExcerptAnswer, ExcerptBytes};
use byteback_delta::signature::{Signature, SignatureParams};
use byteback_extents::ByteRange;
use byteback_host::random::noise;
use std::io::Write as _;
use std::time::{Duration, Instant};

const LEN: usize = 300_000;

fn target(query: &str) -> String {
    format!("/v1/folders/f/nodes/{FILE}/excerpt{query}")
}

fn excerpt(ranges: &[(u64, u64)]) -> Excerpt {
    let ranges = ranges.iter().filter_map(|(start, end)| ByteRange::new(*start, *end));
    Excerpt::new(&ranges.collect())
}

fn post(world: &World, target: &str, media: &str, body: &[u8]) -> Answer {
    let (address, token) = (world.server.address(), &world.token);
    request(address, "POST", target, Some(token), body, &[("content-type", media)])
}

#[test]
fn excerpt_is_answered_by_its_signature_at_each_moment() {
    let world = World::new();
    let mut bytes = noise(1, LEN);
    world.commit(1, &world.first(1, &bytes)).expect(200);
    let old = bytes.clone();
    bytes[100_000..100_500].fill(7);
    world
        .commit(2, &world.patch(2, 1, bytes.len(), 100_000, &[7; 500]))
        .expect(200);
    for (ranges, query, content) in [
        (&[(0, 1000)][..], "?block=64&at=1", &old),
        (
            &[(0, 1000), (99_000, 101_000), (299_000, 300_000)],
            "?block=32&at=1",
            &old,
        ),
        (
            &[(0, 1000), (99_000, 101_000), (299_000, 300_000)],
            "?block=100",
            &bytes,
        ),
        (&[(0, 300_000)], "?block=4096&at=2", &bytes),
        // Behind the end, in part and altogether.
        (&[(299_500, 400_000)], "?block=64", &bytes),
        (&[(300_000, 400_000)], "?block=64", &bytes),
        (&[], "?block=64", &bytes),
    ] {
        let sought = excerpt(ranges);
        let answer = post(&world, &target(query), MEDIA_EXCERPT, &sought.encode()).expect(200);
        assert_eq!(answer.header("content-type"), "application/vnd.byteback.excerpt-answer");
        assert!(answer.complete);
        let read = ExcerptAnswer::read(&answer.body[..], &sought, 10_000).unwrap();
        assert_eq!(read.base_len_bytes, LEN as u64);
        let parts = read.excerpt.ranges().iter();
        let here: Vec<u8> = parts
            .flat_map(|part| &content[part.start() as usize..part.end() as usize])
            .copied()
            .collect();
        let params = *read.signature.params();
        let block = query.split(['?', '&']).find_map(|field| field.strip_prefix("block="));
        assert_eq!(params.block_len_bytes.to_string(), block.unwrap());
        let expected = SignatureParams::for_excerpt(params.block_len_bytes, params.seed);
        assert_eq!(params, expected);
        assert_eq!(
            blocks(&read.signature),
            blocks(&Signature::of(&here, params)),
            "{ranges:?} {query}"
        );
        let moment = query.split(['?', '&']).find(|field| field.starts_with("at="));
        let bytes = target(&format!("/bytes?{}", moment.unwrap_or_default()));
        let answer = post(&world, &bytes, MEDIA_EXCERPT, &sought.encode()).expect(200);
        assert_eq!(answer.header("content-type"), "application/vnd.byteback.delta");
        let read = ExcerptBytes::read(&answer.body[..], &sought).unwrap();
        assert!(answer.complete && read.bytes == here, "{ranges:?} {query}");
        assert_eq!(read.base_len_bytes, LEN as u64);
    }
}

#[test]
fn excerpt_that_cannot_be_is_refused() {
    let world = World::new();
    world.commit(1, &world.first(1, &noise(1, LEN))).expect(200);
    let body = excerpt(&[(0, 1000), (5000, 9000)]).encode();
    let good = target("?block=64");
    post(&world, &good, MEDIA_EXCERPT, &body).expect(200);
    for query in [
        "",
        "?block=31",
        "?block=0",
        "?block=16777217",
        "?block=x",
        "?block=64&at=2",
        "?block=64&at=0",
        "?block=64&more=1",
    ] {
        post(&world, &target(query), MEDIA_EXCERPT, &body).problem(400, "invalid_parameter");
    }
    post(&world, &good, "text/plain", &body).problem(400, "invalid_parameter");
    let unknown = good.replace(&FILE.to_string(), "000000000000000000000000000000ff");
    post(&world, &unknown, MEDIA_EXCERPT, &body).problem(404, "node_not_found");
    let root = good.replace(&FILE.to_string(), "00000000000000000000000000000001");
    post(&world, &root, MEDIA_EXCERPT, &body).problem(400, "invalid_parameter");
    world.get(&good).problem(405, "method_not_allowed");
    request(world.server.address(), "POST", &good, None, &body, &[]).problem(401, "unauthorized");
    for at in 0..body.len() {
        post(&world, &good, MEDIA_EXCERPT, &body[..at]).problem(400, "invalid_body");
        let mut damaged = body.clone();
        damaged[at] ^= 4;
        post(&world, &good, MEDIA_EXCERPT, &damaged).problem(400, "invalid_body");
    }
    post(&world, &good, MEDIA_EXCERPT, &[0; 100_000]).problem(400, "invalid_body");
    let bytes = target("/bytes");
    post(&world, &bytes, MEDIA_EXCERPT, &body).expect(200);
    for query in ["?block=64", "?at=2", "?at=0", "?more=1"] {
        post(&world, &format!("{bytes}{query}"), MEDIA_EXCERPT, &body).problem(400, "invalid_parameter");
    }
    post(&world, &bytes, "text/plain", &body).problem(400, "invalid_parameter");
    post(&world, &bytes, MEDIA_EXCERPT, &body[1..]).problem(400, "invalid_body");
    let unknown = bytes.replace(&FILE.to_string(), "000000000000000000000000000000ff");
    post(&world, &unknown, MEDIA_EXCERPT, &body).problem(404, "node_not_found");
    assert_eq!(*world.reports.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn excerpt_of_too_many_bytes_is_refused() {
    let world = World::new();
    world.commit(1, &world.first(1, &vec![7; (64 << 20) + 1])).expect(200);
    let target = target("?block=16777216");
    let of = |len: u64| excerpt(&[(0, len)]).encode();
    post(&world, &target, MEDIA_EXCERPT, &of(64 << 20)).expect(200);
    post(&world, &target, MEDIA_EXCERPT, &of((64 << 20) + 1)).problem(400, "invalid_parameter");
    let bytes = self::target("/bytes");
    post(&world, &bytes, MEDIA_EXCERPT, &of(16 << 20)).expect(200);
    post(&world, &bytes, MEDIA_EXCERPT, &of((16 << 20) + 1)).problem(400, "invalid_parameter");
}

#[test]
fn endless_and_slow_excerpts_are_refused() {
    let world = World::with(|config| {
        config.signatures_max = 1;
        config.idle_timeout = Duration::from_secs(1);
    });
    world.commit(1, &world.first(1, &noise(1, LEN))).expect(200);
    let ranges: Vec<(u64, u64)> = (0..2000).map(|number| (number * 100, number * 100 + 50)).collect();
    let body = excerpt(&ranges).encode();
    let (good, extra) = (target("?block=64"), [("content-type", MEDIA_EXCERPT)]);
    let mut stream = connect(world.server.address());
    let announced = head("POST", &good, Some(&world.token), 1 << 40, &extra);
    stream.write_all(announced.as_bytes()).unwrap();
    let _ = stream.write_all(&vec![0; 2 << 20]);
    read_answer(stream).problem(413, "body_too_large");
    // It stops in the middle.
    let mut stream = connect(world.server.address());
    let announced = head("POST", &good, Some(&world.token), body.len(), &extra);
    stream.write_all(announced.as_bytes()).unwrap();
    stream.write_all(&body[..10]).unwrap();
    read_answer(stream).problem(408, "request_timeout");
    // It comes byte by byte.
    let mut stream = connect(world.server.address());
    stream.write_all(announced.as_bytes()).unwrap();
    let started = Instant::now();
    for byte in &body {
        if stream.write_all(&[*byte]).is_err() || started.elapsed() > Duration::from_secs(3) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    read_answer(stream).problem(408, "request_timeout");
    // None of them keeps the place.
    post(&world, &good, MEDIA_EXCERPT, &body).expect(200);
}
