//! Searches in stored contents over the API: reported matches are there; bodies of every kind are
//! refused in time.

use super::{FILE, World, file};
use crate::client::{Answer, connect, head, read_answer, request};
use byteback_api::batch::BatchWriter;
use byteback_delta::chunks::{ChunkList, ChunkLister, ChunkParams, MatchAnswer};
use byteback_delta::crc::CrcKind;
use byteback_delta::find::{ChunkFinder, FoundExtents, MatchedContent};
use byteback_delta::groups::{GroupAnswer, GroupList};
use byteback_delta::leaves::{LeafDigest, LeafKind};
use byteback_delta::matches::MatchList;
use byteback_delta::signature::{Signature, SignatureParams, SignatureWriter};
use byteback_delta::{DeltaWriter, WriterOptions};
use byteback_extents::ByteRange;
use byteback_host::random::noise;
use byteback_model::ContentBase;
use std::io::Write as _;
use std::time::{Duration, Instant};

const MEDIA_OF: [(&str, &str, &str); 3] = [
    (
        "matches",
        "application/vnd.byteback.signature",
        "application/vnd.byteback.matches",
    ),
    (
        "chunks",
        "application/vnd.byteback.chunks",
        "application/vnd.byteback.chunk-answer",
    ),
    (
        "groups",
        "application/vnd.byteback.groups",
        "application/vnd.byteback.group-answer",
    ),
];

fn target(call: &str, query: &str) -> String {
    format!("/v1/folders/f/nodes/{FILE}/{call}{query}")
}

fn params(content: &[u8]) -> SignatureParams {
    SignatureParams::for_content(content.len() as u64, 9)
}

fn signature(content: &[u8]) -> Vec<u8> {
    let mut writer = SignatureWriter::new(Vec::new(), params(content), content.len() as u64).unwrap();
    writer.push(content).unwrap();
    writer.finish().unwrap()
}

fn chunks(content: &[u8]) -> (ChunkList, Vec<u8>) {
    let mut lister = ChunkLister::new(ChunkParams::new(64, 256, 400).unwrap(), CrcKind::Crc32c);
    lister.push(content);
    let (list, _) = lister.finish();
    let mut bytes = Vec::new();
    list.write_to(&mut bytes).unwrap();
    (list, bytes)
}

fn groups(content: &[u8]) -> (GroupList, Vec<u8>) {
    let mut digest = LeafDigest::with_groups(LeafKind::Sha256, content.len() as u64);
    digest.push(content);
    let (_, list) = digest.finish_with_groups().unwrap();
    let mut bytes = Vec::new();
    list.write(&mut bytes).unwrap();
    (list, bytes)
}

/// Sums of a content of 100 MiB that is nowhere.
fn many_groups() -> Vec<u8> {
    let mut list = GroupList::new(LeafKind::Sha256, 100 << 20);
    (0..100).for_each(|group| list.push(&[group; 32]));
    let mut bytes = Vec::new();
    list.write(&mut bytes).unwrap();
    bytes
}

fn bodies(content: &[u8]) -> [Vec<u8>; 3] {
    [signature(content), chunks(content).1, many_groups()]
}

fn post(world: &World, target: &str, media: &str, body: &[u8]) -> Answer {
    let extra = [("content-type", media)];
    request(world.server.address(), "POST", target, Some(&world.token), body, &extra)
}

#[test]
fn search_finds_the_content_of_that_moment() {
    let world = World::new();
    let mut bytes = noise(1, 300_000);
    world.commit(1, &world.first(1, &bytes)).expect(200);
    let old = bytes.clone();
    bytes[100_000..150_000].copy_from_slice(&noise(2, 50_000));
    world
        .commit(2, &world.patch(2, 1, bytes.len(), 100_000, &bytes[100_000..150_000]))
        .expect(200);
    let mut new = bytes.clone();
    new.splice(7..7, *b"some bytes");
    for (at, base, literal) in [("?at=1", &old, 50_000), ("?at=2", &bytes, 0), ("", &bytes, 0)] {
        let literals = literal + 10..literal + 10 + 4 * 1000;
        let answer = post(&world, &target("matches", at), MEDIA_OF[0].1, &signature(&new)).expect(200);
        assert_eq!(answer.header("content-type"), MEDIA_OF[0].2);
        assert!(answer.complete);
        let list = MatchList::read(&answer.body[..], new.len() as u64, params(&new).block_len_bytes).unwrap();
        for run in list.runs() {
            let range = |from: u64| from as usize..(from + run.range.len_bytes()) as usize;
            assert_eq!(new[range(run.range.start())], base[range(run.base_offset)]);
        }
        let mut content = MatchedContent::new(&list, FoundExtents::default());
        content.push(0, &new).unwrap();
        let (_, stats) = content.finish().unwrap();
        assert!(literals.contains(&stats.literal_bytes), "{at}: {stats:?}");
        for unproven in ["unproven=0", "unproven=1"] {
            let query = if at.is_empty() { "?" } else { &format!("{at}&") };
            let (list, body) = chunks(&new);
            let target = target("chunks", &format!("{query}{unproven}"));
            let answer = post(&world, &target, MEDIA_OF[1].1, &body).expect(200);
            assert_eq!(answer.header("content-type"), MEDIA_OF[1].2);
            assert!(answer.complete);
            let answer = MatchAnswer::read(&answer.body[..], &list).unwrap();
            let has_unproven = answer.segments().iter().any(|segment| !segment.is_proven());
            assert_eq!(has_unproven, unproven.ends_with('1'));
            let mut finder = ChunkFinder::new(&list, &answer, FoundExtents::default());
            finder.push(&new).unwrap();
            let (_, stats) = finder.finish().unwrap();
            assert!(literals.contains(&stats.literal_bytes), "{at}: {stats:?}");
        }
    }
    let metrics = world.get("/metrics").expect(200);
    let metrics = String::from_utf8(metrics.body).unwrap();
    let searched = metrics
        .lines()
        .find_map(|line| line.strip_prefix("byteback_server_searched_bytes_total "));
    let searched: u64 = searched.unwrap().parse().unwrap();
    // Three times by blocks, six times by chunks, some of them read again.
    assert!((9 * 300_000..13 * 300_000).contains(&searched), "{searched}");
}

#[test]
fn groups_are_compared_with_the_content_at_that_moment() {
    let world = World::new();
    let mut bytes = noise(1, 3 << 20);
    world.commit(1, &world.first(1, &bytes)).expect(200);
    let old = bytes.clone();
    bytes[1_500_000..1_500_100].copy_from_slice(&noise(2, 100));
    world
        .commit(
            2,
            &world.patch(2, 1, bytes.len(), 1_500_000, &bytes[1_500_000..1_500_100]),
        )
        .expect(200);
    for (at, base) in [("?at=1", &old), ("?at=2", &bytes), ("", &bytes)] {
        let (list, body) = groups(&bytes);
        let answer = post(&world, &target("groups", at), MEDIA_OF[2].1, &body).expect(200);
        assert_eq!(answer.header("content-type"), MEDIA_OF[2].2);
        assert_eq!(answer.header("content-length"), answer.body.len().to_string());
        let reported = GroupAnswer::read(&answer.body[..], list.kind(), bytes.len() as u64, 1000).unwrap();
        if base == &bytes {
            assert_eq!((reported.left_len_bytes(), reported.signature().blocks()), (0, 0));
            assert!(answer.body.len() < 100, "{}", answer.body.len());
            continue;
        }
        assert_eq!(
            (reported.left_len_bytes(), reported.signature().blocks()),
            (1 << 20, 256)
        );
        let expected = Signature::of(&base[1 << 20..2 << 20], *reported.signature().params());
        let differing = (0..256).filter(|&block| reported.signature().strong(block) != expected.strong(block));
        assert_eq!(differing.count(), 0);
    }
    // A list of another length, longer than anything here: it is answered, at no more cost than the
    // content's.
    let answer = post(&world, &target("groups", ""), MEDIA_OF[2].1, &many_groups()).expect(200);
    let reported = GroupAnswer::read(&answer.body[..], LeafKind::Sha256, 100 << 20, 1000).unwrap();
    assert_eq!(
        (reported.signature().blocks(), reported.base_len_bytes()),
        (768, 3 << 20)
    );
    assert_eq!(*world.reports.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn groups_call_for_unmodified_100_mb_costs_little_unread() {
    const LEN: usize = 100_000_000;
    let world = World::new();
    let piece = noise(1, 1_000_000);
    world.commit(1, &world.first(1, &piece)).expect(200);
    let options = WriterOptions {
        copies: true,
        ..WriterOptions::default()
    };
    let mut writer = DeltaWriter::new(Vec::new(), piece.len() as u64, LEN as u64, options).unwrap();
    for at in (piece.len()..LEN).step_by(piece.len()) {
        let range = ByteRange::from_offset_len(at as u64, piece.len() as u64).unwrap();
        writer.copy(range, 0).unwrap();
    }
    let copies = writer.finish().unwrap().0;
    let mut writer = BatchWriter::new(Vec::new()).unwrap();
    writer.manifest(&world.manifest(2, Some(1))).unwrap();
    writer.node(&file(LEN, 1, ContentBase::Previous)).unwrap();
    writer.delta(FILE, &copies).unwrap();
    world.commit(2, &writer.end().unwrap()).expect(200);
    let (_, body) = groups(&piece.repeat(100));
    let read = || world.store.sums_cost().signature_read_bytes;
    for read_len in [LEN as u64, 0] {
        let before = read();
        let answer = post(&world, &target("groups", ""), MEDIA_OF[2].1, &body).expect(200);
        assert_eq!((body.len(), answer.body.len()), (24 + 96 * 16 + 4, 36 + 12 + 40));
        assert_eq!(read() - before, read_len);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let world = World::new();
    let content = noise(1, 20_000);
    world.commit(1, &world.first(1, &content)).expect(200);
    for ((call, media, _), body) in MEDIA_OF.into_iter().zip(bodies(&content)) {
        post(&world, &target(call, ""), media, &body).expect(200);
        for query in ["?at=2", "?at=0", "?more=1", "?at=x"] {
            post(&world, &target(call, query), media, &body).problem(400, "invalid_parameter");
        }
        post(&world, &target(call, ""), "text/plain", &body).problem(400, "invalid_parameter");
        let unknown = format!("/v1/folders/f/nodes/000000000000000000000000000000ff/{call}");
        post(&world, &unknown, media, &body).problem(404, "node_not_found");
        let root = format!("/v1/folders/f/nodes/00000000000000000000000000000001/{call}");
        post(&world, &root, media, &body).problem(400, "invalid_parameter");
        world.get(&target(call, "")).problem(405, "method_not_allowed");
        request(world.server.address(), "POST", &target(call, ""), None, &body, &[]).problem(401, "unauthorized");
        // Cut short, damaged, too long, nothing, something else.
        for at in [0, 7, 30, body.len() / 2, body.len() - 1] {
            post(&world, &target(call, ""), media, &body[..at]).problem(400, "invalid_body");
            let mut damaged = body.clone();
            damaged[at] ^= 4;
            post(&world, &target(call, ""), media, &damaged).problem(400, "invalid_body");
        }
        let more = [&body[..], b"?"].concat();
        post(&world, &target(call, ""), media, &more).problem(400, "invalid_body");
        post(&world, &target(call, ""), media, &[0; 100_000]).problem(400, "invalid_body");
    }
    post(
        &world,
        &target("chunks", "?unproven=2"),
        MEDIA_OF[1].1,
        &chunks(&content).1,
    )
    .problem(400, "invalid_parameter");
    assert_eq!(*world.reports.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn endless_and_slow_bodies_are_refused_and_keep_nobody_out() {
    let world = World::with(|config| {
        config.searches_max = 1;
        config.idle_timeout = Duration::from_secs(1);
    });
    let content = noise(1, 20_000);
    world.commit(1, &world.first(1, &content)).expect(200);
    for ((call, media, _), body) in MEDIA_OF.into_iter().zip(bodies(&content)) {
        // The body announces more than any list has.
        let mut stream = connect(world.server.address());
        let extra = [("content-type", media)];
        let request = head("POST", &target(call, ""), Some(&world.token), 1 << 40, &extra);
        stream.write_all(request.as_bytes()).unwrap();
        read_answer(stream).problem(413, "body_too_large");
        // The body never ends, and does not say so.
        let mut stream = connect(world.server.address());
        let request = head("POST", &target(call, ""), Some(&world.token), 0, &extra);
        let request = request.replace("content-length: 0", "transfer-encoding: chunked");
        stream.write_all(request.as_bytes()).unwrap();
        let chunk = [b"10000\r\n".to_vec(), noise(1, 0x10000), b"\r\n".to_vec()].concat();
        let mut sent = 0_u64;
        while stream.write_all(&chunk).is_ok() && sent < 1 << 30 {
            sent += 0x10000;
        }
        assert!((1 << 20..200 << 20).contains(&sent), "{sent}");
        // The body comes byte by byte, each in time, and too slowly as a whole.
        let mut stream = connect(world.server.address());
        let request = head("POST", &target(call, ""), Some(&world.token), body.len(), &extra);
        stream.write_all(request.as_bytes()).unwrap();
        let started = Instant::now();
        for byte in &body {
            if stream.write_all(&[*byte]).is_err() || started.elapsed() > Duration::from_secs(3) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let problem = read_answer(stream).problem(408, "request_timeout");
        assert!(problem["detail"].as_str().unwrap().starts_with("only "), "{problem}");
        // The body stops in the middle.
        let mut stream = connect(world.server.address());
        stream.write_all(request.as_bytes()).unwrap();
        stream.write_all(&body[..body.len() / 2]).unwrap();
        read_answer(stream).problem(408, "request_timeout");
        // None of these bodies keeps its place.
        post(&world, &target(call, ""), media, &body).expect(200);
    }
}

#[test]
fn fifty_slow_lists_and_long_ones_keep_no_search_waiting() {
    let world = World::with(|config| {
        config.searches_max = 2;
        config.idle_timeout = Duration::from_secs(20);
    });
    let content = noise(1, 20_000);
    world.commit(1, &world.first(1, &content)).expect(200);
    let body = chunks(&content).1;
    let media = MEDIA_OF[1].1;
    let begin = |len: usize, sent: &[u8]| {
        let mut stream = connect(world.server.address());
        let request = head(
            "POST",
            &target("chunks", ""),
            Some(&world.token),
            len,
            &[("content-type", media)],
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream.write_all(sent).unwrap();
        stream
    };
    let slow: Vec<_> = (0..50).map(|_| begin(body.len(), &body[..body.len() - 1])).collect();
    // A list of very many chunks, longer than is waited for, that stops in the middle.
    let (_, long) = chunks(&noise(2, 24 << 20));
    assert!(long.len() > 600_000, "{}", long.len());
    let long: Vec<_> = (0..5).map(|_| begin(long.len(), &long[..long.len() - 1])).collect();
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..3 {
        let started = Instant::now();
        post(&world, &target("chunks", ""), media, &body).expect(200);
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
    // Slow clients are served in the end.
    for mut stream in slow {
        stream.write_all(&body[body.len() - 1..]).unwrap();
        read_answer(stream).expect(200);
    }
    drop(long);
}

#[test]
fn a_search_that_nobody_waits_for_ends() {
    const LONG_LEN: usize = 512 << 20;
    let world = World::with(|config| {
        config.searches_max = 1;
        config.signatures_max = 1;
    });
    let piece = noise(1, 1 << 20);
    world.commit(1, &world.first(1, &piece)).expect(200);
    // A long content of copies, and behind it a short one.
    let copies = |from: usize, to: usize| {
        let options = WriterOptions {
            copies: true,
            ..WriterOptions::default()
        };
        let mut writer = DeltaWriter::new(Vec::new(), from as u64, to as u64, options).unwrap();
        for at in (from..to).step_by(1 << 20) {
            let range = ByteRange::from_offset_len(at as u64, 1 << 20).unwrap();
            writer.copy(range, 0).unwrap();
        }
        writer.finish().unwrap().0
    };
    for (counter, from, to) in [(2, 1 << 20, LONG_LEN), (3, LONG_LEN, 1 << 20)] {
        let mut writer = BatchWriter::new(Vec::new()).unwrap();
        writer.manifest(&world.manifest(counter, Some(counter - 1))).unwrap();
        writer.node(&file(to, 1, ContentBase::Previous)).unwrap();
        writer.delta(FILE, &copies(from, to)).unwrap();
        world.commit(counter, &writer.end().unwrap()).expect(200);
    }
    let body = signature(&noise(2, 1 << 20));
    let search = |at: u64| {
        let started = Instant::now();
        post(&world, &target("matches", &format!("?at={at}")), MEDIA_OF[0].1, &body).expect(200);
        started.elapsed()
    };
    let (long, short) = (search(2), search(3));
    assert!(short < long / 8, "{short:?} {long:?}");
    // Given up as soon as it is at work: the next search need not wait until it would have ended.
    let started = Instant::now();
    let mut stream = connect(world.server.address());
    let extra = [("content-type", MEDIA_OF[0].1)];
    let request = head(
        "POST",
        &target("matches", "?at=2"),
        Some(&world.token),
        body.len(),
        &extra,
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    std::thread::sleep(long / 16);
    drop(stream);
    search(3);
    assert!(started.elapsed() < long / 2, "{:?} {long:?}", started.elapsed());
}

#[test]
fn a_server_can_refuse_to_search() {
    for searches_max in [0, 1] {
        let world = World::with(|config| {
            config.searches_max = searches_max;
            config.signatures_max = 1 - searches_max;
            config.idle_timeout = Duration::from_millis(200);
        });
        let content = noise(1, 20_000);
        world.commit(1, &world.first(1, &content)).expect(200);
        for ((call, media, _), body) in MEDIA_OF.into_iter().zip(bodies(&content)) {
            post(&world, &target(call, ""), media, &body).problem(503, "unavailable");
        }
    }
}
