//! Peers that follow no rules, and daemons that follow none: each gets or gives a typed error, and
//! other connections notice nothing.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use byteback_model::NodeId;
use proptest::prelude::*;

use super::memory_tree::PANICKING;
use super::peer::{Peer, Served, json_frame, soon};
use crate::ChangesCursor;
use crate::Client;
use crate::frame;
use crate::messages::Answer;
use crate::server::Limits;
use crate::service::{CutId, CutRequest, ErrorKind, Piece, TreeService};

const CUT: &str = r#"{"cut":{"cut":{"consumer":"c"}}}"#;

/// The cut of a connection is released when it ends, without an outcome.
fn is_released(served: &Served) {
    soon("the cut is released", || served.tree.open_cuts() == 0);
    let finished = std::mem::take(&mut served.tree.state().finished);
    assert!(
        finished.iter().all(|(_, outcome)| *outcome == crate::Outcome::Unknown),
        "{finished:?}"
    );
}

#[test]
fn frames_that_are_none_end_the_connection_with_an_error() {
    let served = Served::new();
    let too_long = (frame::REQUEST_LEN_MAX + 1).to_le_bytes();
    for bytes in [
        &[&too_long[..], b"\x01"].concat()[..],
        b"\xff\xff\xff\xff\x01",
        b"\0\0\0\0",
        b"\x01\0\0\0\x09",
        b"\x02\0\0\0\x04x",
        b"\x03\0\0\0\x02ab",
        b"\x11\0\0\0\x03\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0",
        // A second hello.
        b"\x12\0\0\0\0byteback-control\x01",
    ] {
        let mut peer = served.peer();
        peer.send_json(CUT);
        assert!(matches!(peer.answer(), Answer::Cut(_)));
        peer.send(bytes);
        assert_eq!(peer.error().kind, ErrorKind::Protocol, "{bytes:?}");
        peer.ended();
        is_released(&served);
    }
    served.serves_others();
}

#[test]
fn messages_that_are_no_requests_cost_only_an_error() {
    let served = Served::new();
    let mut peer = served.peer();
    for json in [
        "",
        "{",
        "\"unknown\"",
        "{\"cut\":{}}",
        "{\"changes\":{\"cut\":-1}}",
        "\u{0}",
        "[[[[[[",
    ] {
        peer.send_json(json);
        assert_eq!(peer.error().kind, ErrorKind::Protocol, "{json:?}");
    }
    peer.send_json(&"[".repeat(1 << 20));
    assert_eq!(peer.error().kind, ErrorKind::Protocol);
    // Content where a request was expected, whole frames though.
    peer.send(b"\x0a\0\0\0\x02\0\0\0\0\0\0\0\0x");
    assert_eq!(peer.error().kind, ErrorKind::Protocol);
    peer.send(b"\x11\0\0\0\x03\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
    assert_eq!(peer.error().kind, ErrorKind::Protocol);
    // A stop that comes when nothing is being sent is no request.
    peer.send(b"\x01\0\0\0\x04");
    peer.send_json("\"status\"");
    assert!(matches!(peer.answer(), Answer::Status(_)));
}

#[test]
fn a_wrong_hello_gets_nothing() {
    let served = Served::new();
    for hello in [
        &b"\x12\0\0\0\0byteback-control\x02"[..],
        b"GET / HTTP/1.1\r\n\r\n",
        &json_frame("\"status\""),
        b"\xff\xff\xff\xff\0",
    ] {
        let mut peer = Peer::connect(&served.socket());
        frame::read_hello(&mut peer.stream).unwrap();
        peer.send(hello);
        peer.ended();
    }
    served.serves_others();
}

#[test]
fn server_does_not_wait_for_a_client_without_hello() {
    let served = Served::with(Limits {
        hello_timeout: Duration::from_millis(100),
        ..Limits::DEFAULT
    });
    let mut silent = Peer::connect(&served.socket());
    let mut slow = Peer::connect(&served.socket());
    slow.send(b"\x12\0\0");
    for peer in [&mut silent, &mut slow] {
        frame::read_hello(&mut peer.stream).unwrap();
        peer.ended();
    }
    // After the hello a client may take its time.
    let mut patient = served.peer();
    std::thread::sleep(Duration::from_millis(300));
    patient.send_json("\"status\"");
    assert!(matches!(patient.answer(), Answer::Status(_)));
}

#[test]
fn a_request_that_trickles_in_is_answered_and_holds_up_nobody() {
    let served = Served::new();
    let mut peer = served.peer();
    for byte in json_frame("\"status\"") {
        peer.send(&[byte]);
        std::thread::sleep(Duration::from_millis(3));
        served.serves_others();
    }
    assert!(matches!(peer.answer(), Answer::Status(_)));
}

#[test]
fn a_peer_that_goes_away_anywhere_in_a_request_releases_its_cut() {
    let served = Served::new();
    let whole = json_frame(r#"{"read":{"cut":1,"node":2,"ranges":[[0,5]]}}"#);
    for keep in 0..=whole.len() {
        let mut peer = served.peer();
        peer.send_json(CUT);
        assert!(matches!(peer.answer(), Answer::Cut(_)));
        peer.send(&whole[..keep]);
        drop(peer);
        is_released(&served);
    }
    served.serves_others();
}

#[test]
fn a_peer_that_goes_away_while_content_is_sent_releases_its_cut() {
    let served = Served::new();
    served.tree.write(2, b"big", vec![Ok(vec![1; 50 << 20])]);
    for _ in 0..5 {
        let mut peer = served.peer();
        peer.send_json(CUT);
        let Answer::Cut(info) = peer.answer() else {
            panic!("no cut")
        };
        let cut = info.cut.0;
        peer.send_json(&format!(
            r#"{{"read":{{"cut":{cut},"node":2,"ranges":[[0,100000000]]}}}}"#
        ));
        soon("content is being sent", || served.tree.state().pieces_sent > 0);
        drop(peer);
        is_released(&served);
        served.tree.state().pieces_sent = 0;
    }
}

#[test]
fn a_peer_that_reads_nothing_stops_only_itself() {
    let served = Served::new();
    served.tree.write(2, b"big", vec![Ok(vec![1; 50 << 20])]);
    let mut peer = served.peer();
    peer.send_json(CUT);
    assert!(matches!(peer.answer(), Answer::Cut(_)));
    peer.send_json(r#"{"read":{"cut":1,"node":2,"ranges":[[0,100000000]]}}"#);
    soon("its buffers are full", || {
        let before = served.tree.state().pieces_sent;
        std::thread::sleep(Duration::from_millis(50));
        before > 0 && served.tree.state().pieces_sent == before
    });
    for _ in 0..10 {
        served.serves_others();
    }
    drop(peer);
    is_released(&served);
}

#[test]
fn a_service_that_panics_costs_one_connection_and_keeps_no_cut() {
    let served = Served::new();
    let client = served.client();
    let request = CutRequest::of("c");
    let cut = client.cut(&request).unwrap().cut;
    let error = client.read(cut, PANICKING, &[(0, 1)], &mut |_| Ok(())).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Gone);
    assert_eq!(client.status().unwrap_err().kind, ErrorKind::Gone);
    is_released(&served);
    served.serves_others();
}

#[test]
fn server_closes_excess_connections_with_the_reason() {
    let served = Served::with(Limits {
        peers_max: 3,
        ..Limits::DEFAULT
    });
    let mut clients: Vec<Client> = (0..3).map(|_| served.client()).collect();
    let error = Client::connect(&served.socket()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Gone);
    assert!(error.message.contains("too many connections"), "{error}");
    assert!(clients.iter().all(|client| client.status().is_ok()));
    clients.pop();
    soon("there is room again", || Client::connect(&served.socket()).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn garbage_harms_nobody(garbage in prop::collection::vec(prop_oneof![
        prop::collection::vec(any::<u8>(), 0..60),
        // Frames that are well formed as such.
        (0_u8..6, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(kind, payload)| {
            let mut bytes = (payload.len() as u32 + 1).to_le_bytes().to_vec();
            bytes.push(kind);
            bytes.extend(payload);
            bytes
        }),
        Just(json_frame(CUT)),
        Just(json_frame(r#"{"read":{"cut":1,"node":2,"ranges":[[0,18446744073709551615],[3,2]]}}"#)),
        Just(json_frame(r#"{"changes":{"cut":1,"cursor":{"node":18446744073709551615,"name":[18446744073709551615,"x"]}}}"#)),
    ], 0..12)) {
        thread_local! {
            static SERVED: Served = Served::new();
        }
        SERVED.with(|served| {
            served.tree.write(2, b"x", vec![Ok(b"content".to_vec())]);
            let mut peer = served.peer();
            for bytes in &garbage {
                // It may have been cut off by now.
                let _ = peer.stream.write_all(bytes);
            }
            drop(peer);
            is_released(served);
            served.serves_others();
        });
    }
}

/// A daemon that sends `script` to its client, then waits for the client to hang up; the connection
/// is closed at once if `closes`.
fn scripted(script: Vec<u8>, closes: bool) -> (tempfile::TempDir, std::thread::JoinHandle<()>) {
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("control.sock")).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(&script);
        if !closes {
            let mut all = Vec::new();
            let _ = std::io::Read::read_to_end(&mut stream, &mut all);
        }
    });
    (folder, thread)
}

#[test]
fn a_daemon_that_answers_nonsense_gets_a_typed_error() {
    let mut hello = Vec::new();
    frame::write_hello(&mut hello).unwrap();
    for (answer, kind) in [
        (&b""[..], ErrorKind::Gone),
        (b"\x05\0", ErrorKind::Gone),
        (b"\x05\0\0\0\x01\"do", ErrorKind::Gone),
        (b"\0\0\0\0", ErrorKind::Protocol),
        (b"\xff\xff\xff\xff\x01", ErrorKind::Protocol),
        (b"\x01\0\0\0\x04", ErrorKind::Protocol),
        (b"\x01\0\0\0\x01", ErrorKind::Protocol),
        (&json_frame("{\"status\":{}}"), ErrorKind::Protocol),
        (&json_frame("\"what\""), ErrorKind::Protocol),
        // Well formed, but not what was asked for.
        (&json_frame("\"done\""), ErrorKind::Protocol),
        (&json_frame("{\"path\":null}"), ErrorKind::Protocol),
        (
            &[&b"\x0a\0\0\0\x02\0\0\0\0\0\0\0\0x"[..], &json_frame("\"done\"")].concat(),
            ErrorKind::Protocol,
        ),
    ] {
        let (folder, daemon) = scripted([&hello, answer].concat(), true);
        let client = Client::connect(&folder.path().join("control.sock"));
        // Where the daemon has closed already, even the hello may fail.
        let error = match client.and_then(|client| client.status()) {
            Ok(status) => panic!("{status:?}"),
            Err(error) => error,
        };
        assert!(
            error.kind == kind || error.message.contains("roken pipe"),
            "{answer:?}: {error:?}"
        );
        daemon.join().unwrap();
    }
}

#[test]
fn an_order_that_is_answered_by_something_else_was_not_done() {
    let mut hello = Vec::new();
    frame::write_hello(&mut hello).unwrap();
    let script = [
        &hello[..],
        &json_frame("{\"path\":null}"),
        &json_frame("{\"attributes\":[]}"),
    ]
    .concat();
    let (folder, daemon) = scripted(script, false);
    let client = Client::connect(&folder.path().join("control.sock")).unwrap();
    assert_eq!(client.note_batch(CutId(1), 5).unwrap_err().kind, ErrorKind::Protocol);
    // Fewer attributes than nodes.
    assert_eq!(
        client.attributes(CutId(1), &[NodeId(1)]).unwrap_err().kind,
        ErrorKind::Protocol
    );
    drop(client);
    daemon.join().unwrap();
}

#[test]
fn after_an_error_in_the_stream_no_answer_is_taken_for_another() {
    let mut hello = Vec::new();
    frame::write_hello(&mut hello).unwrap();
    // Nonsense, and behind it bytes that look like the answer to the next request.
    let script = [&hello[..], b"\x01\0\0\0\x09", &json_frame("\"done\"")].concat();
    let (folder, daemon) = scripted(script, false);
    let client = Client::connect(&folder.path().join("control.sock")).unwrap();
    let cursor = ChangesCursor::default();
    assert_eq!(client.changes(CutId(1), &cursor).unwrap_err().kind, ErrorKind::Protocol);
    let error = client.note_batch(CutId(1), 1).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Gone);
    assert!(error.message.contains("connect again"), "{error}");
    drop(client);
    daemon.join().unwrap();
}

#[test]
fn a_daemon_that_is_stopped_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    // The kernel connects on behalf of a process that never accepts.
    let _listener = UnixListener::bind(&socket).unwrap();
    let started = Instant::now();
    let error = Client::connect_with(&socket, Duration::from_millis(100)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Gone);
    assert!(error.message.contains("does not answer"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn client_reports_missing_daemon_socket_and_folder() {
    let folder = tempfile::tempdir().unwrap();
    let dead = folder.path().join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    for path in [
        &dead,
        &file,
        &folder.path().join("missing"),
        &folder.path().join("no/folder"),
    ] {
        let error = Client::connect(path).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Gone, "{error}");
        assert!(error.message.contains(&path.display().to_string()), "{error}");
    }
    assert_eq!(
        Client::connect(std::path::Path::new("/")).unwrap_err().kind,
        ErrorKind::Gone
    );
}

#[test]
fn a_sink_that_panics_leaves_the_client_refusing() {
    let served = Served::new();
    served.tree.write(2, b"x", vec![Ok(vec![1; 10])]);
    let client = Arc::new(served.client());
    let request = CutRequest::of("c");
    let cut = client.cut(&request).unwrap().cut;
    let same = Arc::clone(&client);
    let panicked = std::thread::spawn(move || {
        let _ = same.read(cut, NodeId(2), &[(0, 10)], &mut |piece| match piece {
            Piece::Data { .. } => panic!("asked to"),
            Piece::Hole(_) => Ok(()),
        });
    });
    assert!(panicked.join().is_err());
    let error = client.status().unwrap_err();
    assert!(error.message.contains("connect again"), "{error}");
    drop(client);
    is_released(&served);
}
