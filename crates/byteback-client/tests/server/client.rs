//! The client's handling of answers: what it repeats, what it never repeats, and what it counts.

use byteback_api::messages::{BatchStatus, FolderList, JoinResponse};
use byteback_api::{Code, FolderName, MEDIA_BUNDLE, MEDIA_CONTENTS, Problem};
use byteback_client::{ServerErrorKind, TreePlace, join};
use byteback_delta::bundle::{self, ShortContent};
use byteback_delta::chunks::{ChunkParams, list_chunks};
use byteback_delta::contents::{ContentsError, ContentsWriter};
use byteback_delta::crc::CrcKind;
use byteback_delta::excerpt::Excerpt;
use byteback_delta::leaves::{LeafDigest, LeafKind};
use byteback_delta::signature::{SignatureParams, SignatureRequest, SignatureWriter};
use byteback_host::random::noise;
use byteback_model::{BatchApplied, FileId, NodeId, NodeKind};
use byteback_store::ByteRange;
use byteback_testkit::clients::{impatient, join_request, patient};
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_server::{Answer, scripted_server_with};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

fn json(value: &impl serde::Serialize) -> Answer {
    (200, "application/json", serde_json::to_vec(value).unwrap())
}

fn problem(code: Code) -> Answer {
    let problem = Problem::new(code, "as the test wants it");
    let body = serde_json::to_vec(&problem).unwrap();
    (code.status(), "application/problem+json", body)
}

fn folder() -> FolderName {
    "home".parse().unwrap()
}

fn applied() -> BatchApplied {
    BatchApplied {
        seq: 7,
        snapshot_id: None,
        repeated: false,
        stored_bytes: 0,
    }
}

fn status(applied: Option<BatchApplied>) -> Answer {
    json(&BatchStatus {
        digests: Vec::new(),
        applied,
        staged_parts: Vec::new(),
    })
}

#[test]
fn a_server_that_trickles_does_not_hold_a_client() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
            .unwrap();
        let mut sent = 0;
        while stream.write_all(b" ").is_ok() {
            sent += 1;
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        sent
    });
    let options = byteback_client::ClientOptions {
        idle_timeout: std::time::Duration::from_millis(500),
        ..impatient()
    };
    let client = byteback_client::ServerClient::new(&format!("http://{address}"), "token", options).unwrap();
    let error = client.folders().unwrap_err();
    assert_eq!(error.kind, ServerErrorKind::Unreachable);
    assert!(
        error.message.contains("bytes of the answer came in"),
        "{}",
        error.message
    );
    assert!(error.next.contains("too slow"), "{}", error.next);
    drop(client);
    let sent = server.join().unwrap();
    assert!((10..200).contains(&sent), "{sent}");
}

#[test]
fn client_retries_passing_errors_and_no_refusals() {
    let options = patient();
    for (code, tries) in [
        (Code::Unavailable, u64::from(options.attempts_max)),
        (Code::RequestTimeout, u64::from(options.attempts_max)),
        (Code::Unauthorized, 1),
        (Code::FolderNotFound, 1),
        (Code::StorageFull, 1),
        (Code::Internal, 1),
    ] {
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        let server = scripted_server_with(options.clone(), move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
            problem(code)
        });
        let error = server.folders().unwrap_err();
        assert_eq!(asked.load(Ordering::SeqCst), tries, "{code:?}");
        assert_eq!(error.problem.unwrap().code, code);
    }
    let asked = AtomicU64::new(0);
    let server = scripted_server_with(options, move |_, _| match asked.fetch_add(1, Ordering::SeqCst) {
        0..3 => problem(Code::Unavailable),
        _ => json(&FolderList { folders: Vec::new() }),
    });
    assert!(server.folders().unwrap().folders.is_empty());
}

/// Lets a commit meet these answers, one after the other; returns its result and the methods of the
/// requests.
fn commit(posts: Vec<Answer>, gets: Vec<Answer>) -> (Result<BatchApplied, byteback_client::ServerError>, String) {
    let asked = Arc::new(Mutex::new(String::new()));
    let log = Arc::clone(&asked);
    let (posts, gets) = (Mutex::new(posts.into_iter()), Mutex::new(gets.into_iter()));
    let server = scripted_server_with(patient(), move |method, _| {
        log.lock().unwrap().push_str(&method[..1]);
        let answers = if method == "POST" { &posts } else { &gets };
        answers
            .lock()
            .unwrap()
            .next()
            .unwrap_or_else(|| problem(Code::RouteNotFound))
    });
    let result = server.commit(&folder(), 2, (0, None), &byteback_api::batch::MAGIC, &|_| true);
    let asked = asked.lock().unwrap().clone();
    (result, asked)
}

#[test]
fn a_commit_is_asked_about_before_it_is_sent_again() {
    // Applied although its answer was lost: not sent again.
    let (result, asked) = commit(vec![problem(Code::Unavailable)], vec![status(Some(applied()))]);
    assert_eq!((result.unwrap().seq, asked.as_str()), (7, "PG"));
    // Not applied: sent again.
    let (result, asked) = commit(vec![problem(Code::Unavailable), json(&applied())], vec![status(None)]);
    assert_eq!((result.unwrap().seq, asked.as_str()), (7, "PGP"));
    // Failed inside: asked about, but not repeated; it may still be at work.
    let (result, asked) = commit(vec![problem(Code::Internal)], vec![status(None)]);
    let error = result.unwrap_err();
    assert_eq!((error.kind, asked.as_str()), (ServerErrorKind::Internal, "PG"));
    assert!(!byteback_client::ServerClient::commit_outcome_is_known(error.kind));
    // An answer that cannot be understood may have been a yes.
    let garbage = (200, "text/html", b"<html>".to_vec());
    let (result, asked) = commit(vec![garbage], vec![status(Some(applied()))]);
    assert_eq!((result.unwrap().seq, asked.as_str()), (7, "PG"));
    // A refusal is final.
    for code in [
        Code::Conflict,
        Code::PartsMissing,
        Code::InvalidBatch,
        Code::StorageFull,
        Code::Unauthorized,
    ] {
        let (result, asked) = commit(vec![problem(code)], vec![]);
        let kind = result.unwrap_err().kind;
        assert!(byteback_client::ServerClient::commit_outcome_is_known(kind), "{code:?}");
        assert_eq!(asked, "P", "{code:?}");
    }
}

#[test]
fn client_sends_join_token_once_unless_device_has_its_own_token() {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let server = scripted_server_with(impatient(), move |_, _| match count.fetch_add(1, Ordering::SeqCst) {
        0 => problem(Code::Unavailable),
        _ => json(&JoinResponse {
            device_id: 1,
            token: "bbd_x".to_owned(),
            name: "test".to_owned(),
            folder: None,
            read_only: false,
        }),
    });
    let mut request = join_request("bbj_x");
    let error = join(server.base_url(), &request, patient()).unwrap_err();
    assert_eq!((error.kind, asked.load(Ordering::SeqCst)), (ServerErrorKind::Busy, 1));
    // A device with a token of its own is known again.
    asked.store(0, Ordering::SeqCst);
    request.device_token = Some("bbd_x".to_owned());
    assert_eq!(join(server.base_url(), &request, patient()).unwrap().device_id, 1);
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[test]
fn bytes_on_the_wire_are_those_that_the_server_counts() {
    let rig = Rig::new(70);
    let counted_before = rig.server_bytes();
    let before = rig.client.wire_bytes();
    {
        let mut state = rig.tree.lock();
        let file = state.create(NodeId::ROOT, b"f", NodeKind::File);
        state.write(file, 0, &[5; 100_000]);
    }
    let report = rig.backup().unwrap();
    rig.assert_snapshot(byteback_backup::SnapshotSpec::default(), &rig.tree.picture());
    let wire = rig.client.wire_bytes().since(before);
    rig.assert_server_bytes(counted_before, wire);
    assert!(report.wire.sent > 0 && report.wire.sent < wire.sent);
}

/// An answer that marks its own end is read to the end of the message all the same.
#[test]
fn calls_answered_by_streams_share_a_connection() {
    let rig = Rig::new(71);
    let base = noise(1, 3 << 20);
    rig.with_file(&base);
    let (client, folder, at) = (&rig.client, &rig.folder, rig.seq());
    let page = client.tree_page(folder, at, TreePlace::Path(b""), None).unwrap();
    let id = page.entries[0].node.id;
    let opened = rig.server_connections();
    for _ in 0..3 {
        let request = SignatureRequest::default();
        client.signature(folder, id, at, &request, 1 << 20).unwrap();
        let excerpt = Excerpt::new(&ByteRange::new(1000, 50_000).into_iter().collect());
        client.excerpt(folder, id, at, &excerpt, 128).unwrap();
        let mut digest = LeafDigest::with_groups(LeafKind::Blake3, base.len() as u64);
        digest.push(&base);
        let (_, groups) = digest.finish_with_groups().unwrap();
        client.groups(folder, id, at, &groups, 1 << 20).unwrap();
        let mut writer = SignatureWriter::new(Vec::new(), SignatureParams::for_content(5000, 1), 5000).unwrap();
        writer.push(&base[..5000]).unwrap();
        let sought = writer.finish().unwrap();
        client.matches(folder, id, at, &sought, 5000, 700).unwrap();
        let (chunks, _) = list_chunks(&base[..], None, ChunkParams::for_content(3 << 20), CrcKind::Crc32c).unwrap();
        client.chunks(folder, id, at, &chunks, true).unwrap();
        client.short_contents(folder, at, &[id]).unwrap();
    }
    assert_eq!(rig.server_connections(), opened);
}

/// The piece of a batch that continuous sync might send.
fn small_piece() -> Vec<u8> {
    let mut writer = byteback_api::batch::BatchWriter::new(Vec::new()).unwrap();
    for number in 1..4 {
        let entry = byteback_model::NameChange {
            parent: byteback_model::FileId(number),
            name: "letters".into(),
            child: None,
        };
        writer.entry(&entry).unwrap();
    }
    writer.end().unwrap()
}

#[test]
fn a_server_from_before_packed_pieces_is_sent_plain_ones() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let mut pieces = Vec::new();
        let mut bytes = Vec::new();
        let (mut stream, _) = listener.accept().unwrap();
        while pieces.len() < 3 {
            let head_len = bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4);
            let head = head_len.map(|len| String::from_utf8(bytes[..len].to_vec()).unwrap());
            let body_len = head.as_ref().map(|head| {
                let (_, rest) = head.split_once("content-length: ").unwrap();
                rest.split_once('\r').unwrap().0.parse::<usize>().unwrap()
            });
            let total = head_len.zip(body_len).map(|(head, body)| head + body);
            let Some(total) = total.filter(|total| *total <= bytes.len()) else {
                let mut more = [0; 4096];
                let len = stream.read(&mut more).unwrap();
                assert!(len > 0, "one connection serves all");
                bytes.extend_from_slice(&more[..len]);
                continue;
            };
            let head = head.unwrap();
            for needless in ["user-agent", "accept", "content-type"] {
                assert!(!head.contains(needless), "{head}");
            }
            let piece = bytes[head_len.unwrap()..total].to_vec();
            bytes.drain(..total);
            let (status, media, body) = match piece[7] {
                1 => json(&applied()),
                _ => problem(Code::InvalidBody),
            };
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-type: {media}\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&body).unwrap();
            pieces.push(piece);
        }
        pieces
    });
    let client = byteback_client::ServerClient::new(&format!("http://{address}"), "token", impatient()).unwrap();
    let piece = small_piece();
    for counter in [2, 3] {
        assert_eq!(
            client.commit(&folder(), counter, (0, None), &piece, &|_| true).unwrap(),
            applied()
        );
    }
    drop(client);
    let packed = byteback_api::batch::packed(&piece).unwrap();
    assert!(packed.len() < piece.len());
    assert_eq!(server.join().unwrap(), [packed, piece.clone(), piece]);
}

#[test]
fn bundle_that_breaks_off_is_asked_for_again() {
    let mut content = ShortContent::zeros(3000);
    content.push(100, &byteback_host::random::noise(1, 2000));
    let contents = vec![Some(content), None];
    let mut whole = Vec::new();
    bundle::write(&contents, &mut whole).unwrap();
    let folder = folder();
    for cut in [0, 5, 18, 30, 70, 100, whole.len() / 2, whole.len() - 1] {
        let asked = Arc::new(AtomicU64::new(0));
        let (count, bytes) = (Arc::clone(&asked), whole.clone());
        let server = scripted_server_with(patient(), move |_, _| {
            let sent = match count.fetch_add(1, Ordering::SeqCst) {
                0 => bytes[..cut].to_vec(),
                _ => bytes.clone(),
            };
            (200, MEDIA_BUNDLE, sent)
        });
        let reported = server.short_contents(&folder, 1, &[FileId(1), FileId(2)]);
        assert_eq!(reported.unwrap(), contents, "cut at {cut}");
        assert_eq!(asked.load(Ordering::SeqCst), 2, "cut at {cut}");
    }
    // A whole answer to another question would be the same the next time.
    let server = scripted_server_with(patient(), move |_, _| (200, MEDIA_BUNDLE, whole.clone()));
    let error = server.short_contents(&folder, 1, &[FileId(1); 3]).unwrap_err();
    assert_eq!(error.kind, ServerErrorKind::Protocol, "{error}");
}

#[test]
fn contents_of_an_old_server_are_asked_for_once() {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let server = scripted_server_with(patient(), move |method, path| {
        assert_eq!((method, path), ("POST", "/v1/folders/home/contents"));
        count.fetch_add(1, Ordering::SeqCst);
        problem(Code::RouteNotFound)
    });
    for _ in 0..3 {
        assert!(
            server
                .contents(&folder(), 1, &[FileId(1)], &|_| true)
                .unwrap()
                .is_none()
        );
        assert!(server.lacks_contents());
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    // Other refusals say nothing about the call.
    for answer in [
        problem(Code::FolderNotFound),
        problem(Code::InvalidBody),
        (404, "text/html", Vec::new()),
        (200, MEDIA_BUNDLE, Vec::new()),
    ] {
        let server = scripted_server_with(patient(), move |_, _| answer.clone());
        server.contents(&folder(), 1, &[FileId(1)], &|_| true).unwrap_err();
        assert!(!server.lacks_contents());
    }
}

#[test]
fn contents_stream_that_breaks_off_shows_as_such() {
    let files: Vec<FileId> = (1..=3).map(FileId).collect();
    let mut content = ShortContent::zeros(300_000 - 50_000);
    content.push(0, &byteback_host::random::noise(1, 250_000));
    let mut writer = ContentsWriter::new(Vec::new(), 3).unwrap();
    for file in &files {
        writer.push(file.to_bytes(), Some(&content)).unwrap();
    }
    let whole = writer.finish().unwrap();
    let read = |cut: usize| {
        let sent = whole[..cut].to_vec();
        let server = scripted_server_with(patient(), move |_, _| (200, MEDIA_CONTENTS, sent.clone()));
        let mut stream = server.contents(&folder(), 1, &files, &|_| true).unwrap().unwrap();
        let came = files.iter().map(|file| stream.next_of(*file));
        let came: Vec<_> = came.take_while(|came| came.is_ok()).flatten().flatten().collect();
        let error = (came.len() < 3).then(|| stream.next_of(files[came.len()]).unwrap_err());
        stream.finish();
        (came, error)
    };
    let (came, error) = read(whole.len());
    assert!(error.is_none() && came.iter().all(|came| *came == content));
    for (cut, contents) in [(0, 0), (10, 0), (100, 0), (whole.len() - 1, 2)] {
        let (came, error) = read(cut);
        assert_eq!(came.len(), contents, "cut at {cut}");
        assert!(matches!(error, Some(ContentsError::Io(_))), "cut at {cut}: {error:?}");
    }
}
