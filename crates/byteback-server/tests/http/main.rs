//! The real server over a real socket.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod alike;
mod bundle;
mod client;
mod contents;
mod devices;
mod directories;
mod events;
mod excerpt;
mod guide;
mod line;
mod search;
mod signature;
mod strangers;

use byteback_api::batch::BatchWriter;
use byteback_api::problem::Code;
use byteback_api::query;
use byteback_api::routes::{Access, Route};
use byteback_delta::{DeltaWriter, WriterOptions};
use byteback_extents::ByteRange;
use byteback_host::random::noise;
use byteback_model::{
    Attributes, ContentBase, ContentChange, FileId, Manifest, NameChange, NodeKind, NodeRecord, SnapshotLabel, Totals,
};
use byteback_server::{Server, ServerConfig, ServerHandle};
use byteback_store::{Store, StoreLimits};
use client::{Answer, connect, head, read_answer, request};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ROOT: FileId = FileId(1);
const FILE: FileId = FileId(2);

struct World {
    dir: tempfile::TempDir,
    server: ServerHandle,
    store: Store,
    token: String,
    device: u64,
    reports: Arc<Mutex<Vec<String>>>,
}

fn start(dir: &Path, change: impl FnOnce(&mut ServerConfig)) -> (ServerHandle, Store, Arc<Mutex<Vec<String>>>) {
    let store = Store::open(dir, StoreLimits::default()).unwrap();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&reports);
    let mut config = ServerConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        shutdown_timeout: Duration::from_secs(5),
        report: Some(Arc::new(move |message| heard.lock().unwrap().push(message.to_owned()))),
        ..ServerConfig::default()
    };
    change(&mut config);
    (Server::start(config, store.clone()).unwrap(), store, reports)
}

impl World {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (server, store, reports) = start(dir.path(), change);
        let join = store.create_join_token(i64::MAX / 2).unwrap();
        let body = format!("{{\"join_token\":\"{join}\",\"name\":\"test\"}}");
        let joined = request(server.address(), "POST", "/v1/devices", None, body.as_bytes(), &[])
            .expect(201)
            .json();
        let again = request(server.address(), "POST", "/v1/devices", None, body.as_bytes(), &[]);
        again.problem(403, "join_token_used");
        let token = joined["token"].as_str().unwrap().to_owned();
        let device = joined["device_id"].as_u64().unwrap();
        let world = Self {
            dir,
            server,
            store,
            token,
            device,
            reports,
        };
        world.send("PUT", "/v1/folders/f", b"").expect(201);
        world
    }

    fn restart(self) -> Self {
        let Self {
            dir,
            server,
            store,
            token,
            device,
            ..
        } = self;
        server.shutdown().unwrap();
        drop(store);
        let (server, store, reports) = start(dir.path(), |_| ());
        Self {
            dir,
            server,
            store,
            token,
            device,
            reports,
        }
    }

    fn send(&self, method: &str, target: &str, body: &[u8]) -> Answer {
        request(self.server.address(), method, target, Some(&self.token), body, &[])
    }

    fn get(&self, target: &str) -> Answer {
        self.send("GET", target, b"")
    }

    fn content(&self, seq: u64, extra: &[(&str, &str)]) -> Answer {
        let target = format!("/v1/folders/f/nodes/{FILE}/content?at={seq}");
        request(self.server.address(), "GET", &target, Some(&self.token), b"", extra)
    }

    fn manifest(&self, counter: u64, base_seq: Option<u64>) -> Manifest {
        Manifest {
            device: self.device,
            counter,
            base_seq,
            replaces: None,
            follows: None,
            root: ROOT,
            created_ns: 1,
            host: "h".into(),
            path: "/data".into(),
            snapshot: Some(SnapshotLabel {
                tags: vec!["t".into()],
                ..SnapshotLabel::default()
            }),
        }
    }

    /// The first batch: a file with these bytes.
    fn first(&self, counter: u64, bytes: &[u8]) -> Vec<u8> {
        let mut writer = BatchWriter::new(Vec::new()).unwrap();
        writer.manifest(&self.manifest(counter, None)).unwrap();
        writer.node(&node(ROOT, NodeKind::Directory, 0, None)).unwrap();
        writer.node(&file(bytes.len(), 1, ContentBase::Empty)).unwrap();
        writer
            .entry(&NameChange {
                parent: ROOT,
                name: "a b".into(),
                child: Some(FILE),
            })
            .unwrap();
        writer.delta(FILE, &delta(0, bytes.len(), 0, bytes)).unwrap();
        writer.end().unwrap()
    }

    /// Overwrites a few bytes.
    fn patch(&self, counter: u64, base_seq: u64, len: usize, at: u64, bytes: &[u8]) -> Vec<u8> {
        let mut writer = BatchWriter::new(Vec::new()).unwrap();
        writer.manifest(&self.manifest(counter, Some(base_seq))).unwrap();
        writer.node(&file(len, 1, ContentBase::Previous)).unwrap();
        writer.delta(FILE, &delta(len, len, at, bytes)).unwrap();
        writer.end().unwrap()
    }

    fn commit(&self, counter: u64, body: &[u8]) -> Answer {
        self.send("POST", &format!("/v1/folders/f/batches/{counter}"), body)
    }
}

fn node(id: FileId, kind: NodeKind, size: usize, content: Option<ContentChange>) -> NodeRecord {
    let attributes = Attributes {
        kind,
        mode: 0o640,
        uid: 7,
        gid: 8,
        size: size as u64,
        mtime_ns: 9,
        rdev: 0,
        inode_flags: 0,
        target: None,
        xattrs: vec![],
        user: None,
        group: None,
    };
    NodeRecord {
        id,
        attributes,
        content,
    }
}

fn file(size: usize, deltas: u32, base: ContentBase) -> NodeRecord {
    node(FILE, NodeKind::File, size, Some(ContentChange { deltas, base }))
}

fn delta(base: usize, new: usize, at: u64, bytes: &[u8]) -> Vec<u8> {
    let mut writer = DeltaWriter::new(Vec::new(), base as u64, new as u64, WriterOptions::default()).unwrap();
    if let Some(range) = ByteRange::from_offset_len(at, bytes.len() as u64) {
        writer.literal(range, bytes).unwrap();
    }
    writer.finish().unwrap().0
}

#[test]
fn a_backup_comes_back_by_every_call() {
    let world = World::new();
    let mut bytes = noise(1, 300_000);
    let first = world.first(1, &bytes);
    let applied = world.commit(1, &first).expect(200).json();
    assert_eq!((&applied["seq"], &applied["repeated"]), (&1.into(), &false.into()));
    let old = bytes.clone();
    bytes[1000..1003].copy_from_slice(b"new");
    world
        .commit(2, &world.patch(2, 1, bytes.len(), 1000, b"new"))
        .expect(200);
    // A repeated batch gets the same answer and is applied once.
    let again = world
        .commit(2, &world.patch(2, 1, bytes.len(), 1000, b"new"))
        .expect(200)
        .json();
    assert_eq!(
        (&again["seq"], &again["repeated"], &again["snapshot_id"]),
        (&2.into(), &true.into(), &2.into())
    );

    let world = world.restart();
    assert_eq!(world.content(1, &[]).expect(200).body, old);
    let whole = world.content(2, &[]).expect(200);
    assert!(whole.body == bytes && whole.header("accept-ranges") == "bytes");
    let part = world.content(2, &[("range", "bytes=999-1004")]).expect(206);
    assert_eq!(part.body, &bytes[999..1005]);
    assert_eq!(part.header("content-range"), "bytes 999-1004/300000");
    let outside = world.content(2, &[("range", "bytes=300000-")]);
    assert_eq!(outside.header("content-range"), "bytes */300000");
    outside.problem(416, "range_not_satisfiable");
    let stream = world
        .content(2, &[("accept", "application/vnd.byteback.delta")])
        .expect(200);
    assert!(stream.complete);
    let (header, stats) = byteback_delta::verify(&stream.body[..]).unwrap();
    assert_eq!(
        (header.base_len_bytes, header.new_len_bytes, stats.literal_bytes),
        (0, 300_000, 300_000)
    );
    // The rest of a transfer that broke off.
    let rest = [("accept", "application/vnd.byteback.delta"), ("range", "bytes=299000-")];
    let rest = world.content(2, &rest).expect(206);
    assert_eq!(rest.header("content-range"), "bytes 299000-299999/300000");
    let (header, stats) = byteback_delta::verify(&rest.body[..]).unwrap();
    assert_eq!(
        (header.base_len_bytes, header.new_len_bytes, stats.literal_bytes),
        (0, 300_000, 1000)
    );

    let tree = world.get("/v1/folders/f/tree").expect(200).json();
    assert_eq!(tree["entries"][0]["name"], "a b");
    assert_eq!(tree["entries"][0]["node"]["content"]["counter"], 2);
    let path = query::encode(b"a b");
    let found = world
        .get(&format!("/v1/folders/f/tree?at=1&path=/{path}"))
        .expect(200)
        .json();
    assert_eq!(found["node"]["id"], FILE.to_string());
    world
        .get("/v1/folders/f/tree?path=missing")
        .problem(404, "node_not_found");
    world.get("/v1/folders/f/tree?at=3").problem(400, "invalid_parameter");
    let node = world
        .get(&format!("/v1/folders/f/nodes/{FILE}?at=1"))
        .expect(200)
        .json();
    assert_eq!(
        (&node["attributes"]["size"], &node["seq"]),
        (&300_000.into(), &1.into())
    );
    let changes = world
        .get(&format!("/v1/folders/f/nodes/{FILE}/changes?from=1&to=2"))
        .expect(200)
        .json();
    assert_eq!(changes["ranges"], serde_json::json!([{"offset": 1000, "len": 3}]));
    let extents = world
        .get(&format!("/v1/folders/f/nodes/{FILE}/extents"))
        .expect(200)
        .json();
    assert_eq!(
        extents["extents"],
        serde_json::json!([{"offset": 0, "len": 300_000, "kind": "data"}])
    );
    let diff = world.get("/v1/folders/f/diff?from=1").expect(200).json();
    assert_eq!(
        (&diff["changes"][0]["path"], &diff["changes"][0]["changed_bytes"]),
        (&"a b".into(), &3.into())
    );
    let paged = world.get("/v1/folders/f/diff?from=0&limit=1").expect(200).json();
    let cursor = paged["next_cursor"].as_str().unwrap();
    let rest = world
        .get(&format!("/v1/folders/f/diff?from=0&cursor={cursor}"))
        .expect(200)
        .json();
    assert_eq!(rest["changes"].as_array().unwrap().len(), 2);

    let verify = world.send("POST", "/v1/folders/f/verify", b"").expect(200);
    assert!(verify.complete);
    let last: serde_json::Value =
        serde_json::from_slice(verify.body.trim_ascii_end().rsplit(|b| *b == b'\n').next().unwrap()).unwrap();
    assert_eq!(
        (&last["event"], &last["files"], &last["damaged_files"]),
        (&"summary".into(), &1.into(), &0.into())
    );

    let snapshots = world.get("/v1/folders/f/snapshots?limit=1").expect(200).json();
    assert_eq!(snapshots["next_cursor"], "1");
    let label = br#"{"time_ns":5,"host":"x","path":"/y","tags":[]}"#;
    let made = world.send("POST", "/v1/folders/f/snapshots", label).expect(201).json();
    assert_eq!((&made["seq"], &made["id"]), (&2.into(), &3.into()));
    world.send("DELETE", "/v1/folders/f/snapshots/3", b"").expect(204);
    world
        .send("DELETE", "/v1/folders/f/snapshots/3", b"")
        .problem(404, "snapshot_not_found");
    let folder = world.get("/v1/folders/f").expect(200).json();
    assert_eq!(
        (&folder["seq"], &folder["entries"], &folder["snapshots"]),
        (&2.into(), &1.into(), &2.into())
    );
    let metrics = String::from_utf8(world.get("/metrics").expect(200).body).unwrap();
    assert!(
        metrics.contains("byteback_server_received_bytes_total")
            && metrics.contains("path=\"/v1/folders/{folder}/diff\"")
    );
    assert!(world.server.received_bytes() > 0 && world.server.sent_bytes() > 600_000);
    assert_eq!(*world.reports.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn every_route_but_the_open_ones_wants_a_token() {
    let world = World::new();
    let address = world.server.address();
    for route in Route::ALL {
        let target = route
            .path()
            .replace("{folder}", "f")
            .replace("{counter}", "1")
            .replace("{part}", "1");
        let target = target.replace("{snapshot}", "1").replace("{node}", &FILE.to_string());
        let target = target.replace("{device}", "99").replace("{invitation}", "99");
        let method = route.method().as_str();
        for token in [None, Some(""), Some("bbd_wrong"), Some(&world.token[..20])] {
            let answer = request(address, method, &target, token, b"", &[]);
            match route.access() {
                Access::Open => assert_ne!(answer.status, 401, "{route:?}"),
                _ => {
                    assert_eq!(answer.header("www-authenticate"), "Bearer", "{route:?}");
                    answer.problem(401, "unauthorized");
                }
            }
        }
        let basic = [("authorization", "Basic abc")];
        let answer = request(address, method, &target, None, b"", &basic);
        assert_eq!(answer.status == 401, route.access() != Access::Open, "{route:?}");
        // And each is really routed: whatever the answer to these parameters, it is not "no such
        // route". (Events would be answered without an end.)
        let listened = target.replace("/events", "/events?after=77");
        let known = world.send(method, &listened, b"");
        let lost =
            known.header("content-type") == "application/problem+json" && known.json()["code"] == "route_not_found";
        assert!(known.status != 405 && !lost, "{route:?}");
    }
    // A large body with a wrong token: the sender can read the answer.
    request(
        address,
        "POST",
        "/v1/folders/f/batches/1",
        Some("bbd_x"),
        &vec![0; 200_000],
        &[],
    )
    .problem(401, "unauthorized");
    world.get("/v1/nothing").problem(404, "route_not_found");
    world
        .send("DELETE", "/v1/folders/f", b"")
        .problem(405, "method_not_allowed");
}

#[test]
fn malformed_requests_are_refused_and_change_nothing() {
    let world = World::with(|config| config.part_len_max = 100_000);
    let good = world.first(1, b"hello");
    for cut in 0..good.len() {
        assert!(
            matches!(world.commit(1, &good[..cut]).status, 400 | 422),
            "cut at {cut}"
        );
    }
    let mut flipped = good.clone();
    flipped[40] ^= 1;
    world.commit(1, &flipped).problem(400, "invalid_body");
    world.commit(1, b"GET / HTTP/1.1").problem(400, "invalid_body");
    world.commit(2, &good).problem(422, "invalid_batch");
    world.commit(1, &vec![0; 100_001]).problem(413, "body_too_large");
    let chunked = [("transfer-encoding", "chunked")];
    let mut stream = connect(world.server.address());
    let head =
        head("POST", "/v1/folders/f/batches/1", Some(&world.token), 0, &chunked).replace("content-length: 0\r\n", "");
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..30 {
        if stream
            .write_all(b"1000\r\n")
            .and_then(|()| stream.write_all(&[0; 4096]))
            .and_then(|()| stream.write_all(b"\r\n"))
            .is_err()
        {
            break;
        }
    }
    read_answer(stream).problem(413, "body_too_large");
    let typed = [("content-type", "text/plain")];
    let target = "/v1/folders/f/batches/1";
    request(
        world.server.address(),
        "POST",
        target,
        Some(&world.token),
        &good,
        &typed,
    )
    .problem(400, "invalid_parameter");
    let parts = [("byteback-parts", "-1")];
    request(
        world.server.address(),
        "POST",
        target,
        Some(&world.token),
        &good,
        &parts,
    )
    .problem(400, "invalid_parameter");
    let parts = [("byteback-parts", "2")];
    let missing = request(
        world.server.address(),
        "POST",
        target,
        Some(&world.token),
        &good,
        &parts,
    )
    .problem(409, "parts_missing");
    assert_eq!(missing["missing_parts"], serde_json::json!([1, 2]));
    for target in [
        "/v1/folders/.x",
        "/v1/folders/f?x=1",
        "/v1/folders/f/tree?at=x",
        "/v1/folders/f/tree?at=1&at=1",
        "/v1/folders/f/nodes/zz",
        "/v1/folders/f/tree?limit=0",
        "/v1/folders/f/diff",
        "/v1/folders/f/batches/x",
    ] {
        world.get(target).problem(400, "invalid_parameter");
    }
    world.get("/v1/folders/f/tree").problem(404, "node_not_found");
    world.get("/v1/folders/none/tree").problem(404, "folder_not_found");
    world
        .send("POST", "/v1/folders/f/snapshots", b"{")
        .problem(400, "invalid_body");
    world
        .send("POST", "/v1/folders/f/snapshots", &vec![b' '; 70_000])
        .problem(413, "body_too_large");
    assert_eq!(world.get("/v1/folders/f").json()["seq"], 0);
    world.commit(1, &good).expect(200);
    assert_eq!(world.content(1, &[]).body, b"hello");
}

#[test]
fn parts_are_staged_replaced_and_committed_together() {
    let world = World::new();
    let bytes = noise(1, 200_000);
    let piece = |at: usize, end: usize| {
        let mut writer = BatchWriter::resume(Vec::new(), Totals::default()).unwrap();
        writer.delta(FILE, &delta(at, end, at as u64, &bytes[at..end])).unwrap();
        writer.into_parts().unwrap().0
    };
    let mut first = BatchWriter::new(Vec::new()).unwrap();
    first.manifest(&world.manifest(1, None)).unwrap();
    first.node(&node(ROOT, NodeKind::Directory, 0, None)).unwrap();
    first.node(&file(bytes.len(), 2, ContentBase::Empty)).unwrap();
    first
        .entry(&NameChange {
            parent: ROOT,
            name: "x".into(),
            child: Some(FILE),
        })
        .unwrap();
    let first = first.into_parts().unwrap().0;
    let part = |n: u32, body: &[u8]| world.send("PUT", &format!("/v1/folders/f/batches/1/parts/{n}"), body);
    part(2, &piece(0, 90_000)).expect(200);
    part(1, &first).expect(200);
    part(2, &piece(0, 100_000)).expect(200);
    part(2, &piece(0, 100_000)).expect(200);
    part(0, &first).problem(413, "batch_too_large");
    let status = world.get("/v1/folders/f/batches/1").json();
    assert_eq!(
        (&status["applied"], &status["staged_parts"]),
        (&serde_json::Value::Null, &serde_json::json!([1, 2]))
    );

    let world = world.restart();
    let mut last = BatchWriter::resume(
        Vec::new(),
        Totals {
            nodes: 2,
            entries: 1,
            deltas: 1,
            ..Totals::default()
        },
    )
    .unwrap();
    last.delta(FILE, &delta(100_000, 200_000, 100_000, &bytes[100_000..]))
        .unwrap();
    let last = last.end().unwrap();
    let parts = [
        ("byteback-parts", "2"),
        ("content-type", "application/vnd.byteback.batch"),
    ];
    let commit = || {
        request(
            world.server.address(),
            "POST",
            "/v1/folders/f/batches/1",
            Some(&world.token),
            &last,
            &parts,
        )
    };
    assert_eq!(commit().expect(200).json()["repeated"], false);
    assert_eq!(commit().expect(200).json()["repeated"], true);
    assert!(world.content(1, &[]).body == bytes);
    let status = world.get("/v1/folders/f/batches/1").json();
    assert_eq!(
        (&status["applied"]["seq"], &status["staged_parts"]),
        (&1.into(), &serde_json::json!([]))
    );
}

#[test]
fn batch_that_comes_second_gets_a_conflict_with_its_place() {
    let world = World::new();
    world.commit(1, &world.first(1, b"0123456789")).expect(200);
    world.commit(2, &world.patch(2, 1, 10, 0, b"a")).expect(200);
    let conflict = world
        .commit(3, &world.patch(3, 1, 10, 5, b"b"))
        .problem(409, "conflict");
    assert_eq!(
        conflict["conflicts"],
        serde_json::json!([{"id": FILE.to_string(), "path": "a b", "seq": 2}])
    );
    assert_eq!(world.content(2, &[]).body, b"a123456789");
    world.commit(3, &world.patch(3, 2, 10, 5, b"b")).expect(200);
    assert_eq!(world.content(3, &[]).body, b"a1234b6789");
}

#[test]
fn connection_killed_in_mid_part_leaves_nothing_and_retry_works() {
    let world = World::new();
    let bytes = noise(1, 2_000_000);
    let body = world.first(1, &bytes);
    for cut in [10, 100_000, body.len() - 1] {
        let mut stream = connect(world.server.address());
        let head = head("POST", "/v1/folders/f/batches/1", Some(&world.token), body.len(), &[]);
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&body[..cut]).unwrap();
        drop(stream);
    }
    assert_eq!(world.get("/v1/folders/f").json()["seq"], 0);
    world.commit(1, &body).expect(200);
    assert!(world.content(1, &[]).body == bytes);
}

#[test]
fn slow_clients_are_cut_off_and_others_are_served() {
    let world = World::with(|config| {
        config.head_timeout = Duration::from_millis(300);
        config.idle_timeout = Duration::from_millis(300);
        config.streams_max = 1;
    });
    let mut slow_head = connect(world.server.address());
    slow_head.write_all(b"GET /healthz HTTP/1.1\r\nho").unwrap();
    let started = Instant::now();
    let mut slow_body = connect(world.server.address());
    slow_body
        .write_all(head("POST", "/v1/folders/f/batches/1", Some(&world.token), 1000, &[]).as_bytes())
        .unwrap();
    slow_body.write_all(b"BYBATCH").unwrap();
    request(world.server.address(), "GET", "/healthz", None, b"", &[]).expect(200);
    read_answer(slow_body).problem(408, "request_timeout");
    let mut rest = Vec::new();
    let _ = std::io::Read::read_to_end(&mut slow_head, &mut rest);
    assert!(started.elapsed() < Duration::from_secs(5));
    world.commit(1, &world.first(1, b"x")).expect(200);
}

#[test]
fn shutdown_lets_a_request_at_work_finish() {
    let world = World::new();
    let bytes = noise(1, 500_000);
    let body = world.first(1, &bytes);
    let mut stream = connect(world.server.address());
    stream
        .write_all(head("POST", "/v1/folders/f/batches/1", Some(&world.token), body.len(), &[]).as_bytes())
        .unwrap();
    stream.write_all(&body[..100_000]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let address = world.server.address();
    let World { server, store, .. } = world;
    let stopping = std::thread::spawn(move || server.shutdown());
    std::thread::sleep(Duration::from_millis(200));
    assert!(std::net::TcpStream::connect(address).is_err(), "no new connections");
    stream.write_all(&body[100_000..]).unwrap();
    read_answer(stream).expect(200);
    stopping.join().unwrap().unwrap();
    assert_eq!(store.folder("f").unwrap().seq, 1);
}

#[test]
fn damage_breaks_a_stream_off_and_is_reported() {
    let world = World::new();
    world.commit(1, &world.first(1, &noise(1, 600_000))).expect(200);
    let segments = world.dir.path().join("segments");
    let segment = std::fs::read_dir(segments).unwrap().next().unwrap().unwrap().path();
    let mut raw = std::fs::read(&segment).unwrap();
    let at = raw.len() - 1000;
    raw[at] ^= 1;
    std::fs::write(&segment, raw).unwrap();
    assert!(!world.content(1, &[]).complete);
    assert_eq!(world.content(1, &[("range", "bytes=0-9")]).expect(206).body.len(), 10);
    assert!(
        !world
            .content(1, &[("accept", "application/vnd.byteback.delta")])
            .complete
    );
    assert!(world.reports.lock().unwrap()[0].contains("damaged at offset"));
    let verify = String::from_utf8(world.send("POST", "/v1/folders/f/verify", b"").expect(200).body).unwrap();
    assert!(
        verify.contains("\"event\":\"damage\"")
            && verify.contains("\"path\":\"a b\"")
            && verify.contains("\"damaged_files\":1")
    );
}

#[test]
fn every_problem_code_has_an_error_status() {
    assert!(Code::ALL.iter().all(|code| (400..600).contains(&code.status())));
}
