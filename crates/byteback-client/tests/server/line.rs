//! Calls on a line: as those of requests, whatever becomes of the line.

use byteback_api::FolderName;
use byteback_api::line::{AnswerHead, HEADERS_MAX, Line, LineAnswer, LineCall};
use byteback_backup::SnapshotSpec;
use byteback_client::{ClientOptions, Connection, Network, ServerClient, ServerErrorKind, ServerNews, TreePlace};
use byteback_host::clock::{Clock, RealClock};
use byteback_host::random::SplitMix64;
use byteback_model::{FileId, NodeId};
use byteback_store::StoreLimits;
use byteback_testkit::clients::{impatient, patient};
use byteback_testkit::proxy::{Way, forward};
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_server::scripted_server_with;
use byteback_testkit::seed::seed;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn rig_with_line(seed: u64) -> Rig {
    let rig = Rig::new(seed);
    rig.client.keep_line();
    rig
}

/// A rig whose clock can be set forward, so that a line that failed is soon tried again.
fn rig_with_line_and_clock(seed: u64) -> (Rig, Arc<SkippingClock>) {
    let clock = Arc::new(SkippingClock::default());
    let options = ClientOptions {
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        ..patient()
    };
    let rig = Rig::with(seed, options);
    rig.client.keep_line();
    (rig, clock)
}

#[test]
fn short_calls_on_a_line_cost_few_bytes_each() {
    let rig = Rig::new(1);
    let by_request = rig.client.folder(&rig.folder).unwrap();
    rig.client.keep_line();
    rig.client.folder(&rig.folder).unwrap();
    let (before, connections) = (rig.client.wire_bytes(), rig.server_connections());
    for _ in 0..50 {
        assert_eq!(rig.client.folder(&rig.folder).unwrap(), by_request);
    }
    let wire = rig.client.wire_bytes().since(before);
    assert!(wire.total() <= 50 * 50, "{wire:?}");
    assert_eq!(rig.server_connections(), connections, "one line for all");
}

#[test]
fn refusals_on_a_line_are_those_of_requests() {
    let rig = rig_with_line(2);
    let missing: FolderName = "elsewhere".parse().unwrap();
    rig.client.folder(&rig.folder).unwrap();
    let on_line = rig.client.folder(&missing).unwrap_err();
    let plain = Rig::new(2);
    let by_request = plain.client.folder(&missing).unwrap_err();
    assert_eq!(on_line.kind, ServerErrorKind::NotFound);
    let code = |error: &byteback_client::ServerError| error.problem.as_ref().map(|problem| problem.code);
    assert_eq!(
        (on_line.kind, code(&on_line), on_line.message),
        (by_request.kind, code(&by_request), by_request.message)
    );
}

#[test]
fn long_contents_pass_in_pieces_and_free_the_line() {
    let rig = rig_with_line(3);
    rig.with_file(&SplitMix64::new(3).bytes(3 << 20));
    let place = TreePlace::Path(b"image");
    let id = rig.client.tree_node(&rig.folder, rig.seq(), place).unwrap().node.id;
    let read = |from| {
        let mut reader = rig.client.content(&rig.folder, id, rig.seq(), from, &|_| true).unwrap();
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    };
    let whole = read(0);
    assert!(whole.len() > 3 << 20);
    rig.client.folder(&rig.folder).unwrap();
    let connections = rig.server_connections();
    assert_eq!(read(0), whole);
    rig.client.folder(&rig.folder).unwrap();
    assert_eq!(rig.server_connections(), connections, "the line was freed each time");
    // While an answer is read, other calls are requests; an answer that nobody reads to its end
    // costs its line, and nothing else.
    let mut half = rig.client.content(&rig.folder, id, rig.seq(), 0, &|_| true).unwrap();
    half.read_exact(&mut [0; 1000]).unwrap();
    rig.client.folder(&rig.folder).unwrap();
    drop(half);
    assert_eq!(read(0), whole);
}

#[test]
fn batches_over_lines_cut_anywhere_arrive_once() {
    let seed = seed(62);
    let mut random = SplitMix64::new(seed);
    let (rig, clock) = rig_with_line_and_clock(seed);
    let mut cut = 0;
    for round in 0..60 {
        clock.skip(Duration::from_secs(11));
        rig.change(&mut random, 3);
        if round > 0 {
            rig.cutter.cut_after(random.below(3_000) as i64, false);
        }
        if round % 20 == 13 {
            rig.restart_server(StoreLimits::default());
        }
        let before = rig.server_connections();
        rig.backup().unwrap();
        cut += u64::from(rig.server_connections() > before);
        rig.cutter.heal();
    }
    assert!(cut > 10, "the line was hardly ever cut: {cut}");
    rig.assert_snapshot(SnapshotSpec::Latest(0), &rig.tree.picture());
}

#[test]
fn listener_on_a_line_hears_each_batch_once_over_cuts() {
    let seed = seed(63);
    let mut random = SplitMix64::new(seed);
    let (rig, clock) = rig_with_line_and_clock(seed);
    let batches = 30;
    let mut heard = Vec::new();
    std::thread::scope(|scope| {
        let listener = scope.spawn(|| {
            let mut listening = rig.client.listen(&rig.folder, 0);
            while listening.after() < batches {
                if let ServerNews::Batch(batch) = listening.hear().unwrap() {
                    heard.push(batch.seq);
                }
            }
        });
        for batch in 0..batches {
            clock.skip(Duration::from_secs(11));
            let name = format!("batch {batch}");
            let mut tree = rig.tree.lock();
            tree.create(NodeId::ROOT, name.as_bytes(), byteback_model::NodeKind::File);
            drop(tree);
            rig.cutter.cut_after(random.below(6_000) as i64, false);
            if batch % 12 == 5 {
                rig.restart_server(StoreLimits::default());
            }
            rig.backup().unwrap();
        }
        rig.cutter.heal();
        listener.join().unwrap();
    });
    assert_eq!(heard, (1..=batches).collect::<Vec<_>>());
}

#[test]
fn refused_lines_become_requests_and_are_not_asked_for_again() {
    for refusal in [400, 404, 426, 500, 502, 200] {
        let (lines, calls) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (of_lines, of_calls) = (Arc::clone(&lines), Arc::clone(&calls));
        let server = scripted_server_with(impatient(), move |_, path| {
            if path == "/v1/line" {
                of_lines.fetch_add(1, Ordering::SeqCst);
                return (refusal, "text/html", b"<html>".to_vec());
            }
            of_calls.fetch_add(1, Ordering::SeqCst);
            (200, "application/json", br#"{"folders":[]}"#.to_vec())
        });
        server.keep_line();
        for _ in 0..5 {
            server.folders().unwrap();
        }
        assert_eq!(
            (lines.load(Ordering::SeqCst), calls.load(Ordering::SeqCst)),
            (1, 5),
            "{refusal}"
        );
    }
}

/// A network that leads nowhere.
#[derive(Debug, Default)]
struct Nowhere(AtomicUsize);

impl Network for Nowhere {
    fn connect(&self) -> io::Result<Box<dyn Connection>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Err(io::ErrorKind::TimedOut.into())
    }
}

#[test]
fn unreachable_server_is_tried_once_for_each_attempt() {
    let nowhere = Arc::new(Nowhere::default());
    let options = ClientOptions {
        network: Some(Arc::clone(&nowhere) as Arc<dyn Network>),
        attempts_max: 4,
        ..patient()
    };
    let client = ServerClient::new("http://127.0.0.1:9", "bbd_x", options).unwrap();
    client.keep_line();
    assert_eq!(client.folders().unwrap_err().kind, ServerErrorKind::Unreachable);
    assert_eq!(nowhere.0.load(Ordering::SeqCst), 4);
}

#[test]
fn line_ends_with_its_token() {
    let rig = Rig::new(4);
    let (client, device) = rig.another_device();
    client.keep_line();
    client.folders().unwrap();
    rig.client.revoke_device(device).unwrap();
    for _ in 0..2 {
        assert_eq!(client.folders().unwrap_err().kind, ServerErrorKind::WrongToken);
    }
    rig.client.folders().unwrap();
}

#[test]
fn line_forgotten_on_the_way_is_replaced_before_a_call() {
    // A router that has forgotten a connection drops what comes on it, and says nothing.
    let is_deaf = Arc::new(AtomicBool::new(false));
    let deaf = Arc::clone(&is_deaf);
    let clock = Arc::new(SkippingClock::default());
    let options = ClientOptions {
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        connect_timeout: Duration::from_millis(300),
        ..patient()
    };
    let rig = Rig::through(5, options, move |to, _| {
        forward(
            move || TcpStream::connect(*to.lock().unwrap()).ok(),
            move |is_forgotten: &AtomicBool, way, bytes, mut stream| {
                is_forgotten.fetch_or(
                    way == Way::ToServer && deaf.swap(false, Ordering::SeqCst),
                    Ordering::SeqCst,
                );
                is_forgotten.load(Ordering::SeqCst) || stream.write_all(bytes).is_ok()
            },
        )
    });
    rig.client.keep_line();
    rig.client.folders().unwrap();
    clock.skip(Duration::from_secs(3600));
    is_deaf.store(true, Ordering::SeqCst);
    let started = std::time::Instant::now();
    rig.client.folders().unwrap();
    assert!(!is_deaf.load(Ordering::SeqCst), "nothing came on the old line");
    assert!(started.elapsed() < patient().idle_timeout, "the call itself was lost");
    // A silence of seconds is no reason to ask.
    let before = rig.client.wire_bytes();
    clock.skip(Duration::from_secs(20));
    rig.client.folders().unwrap();
    let with_line = rig.client.wire_bytes().since(before);
    assert!(with_line.total() < 100, "{with_line:?}");
}

#[test]
fn silence_in_place_of_a_line_is_waited_for_once() {
    // A proxy that swallows what it does not understand.
    let opened = Arc::new(AtomicUsize::new(0));
    let swallowed = Arc::clone(&opened);
    let options = ClientOptions {
        connect_timeout: Duration::from_millis(200),
        ..patient()
    };
    let rig = Rig::through(6, options, move |to, _| {
        forward(
            move || TcpStream::connect(*to.lock().unwrap()).ok(),
            move |_: &(), _, bytes, mut stream| {
                if bytes.starts_with(b"GET /v1/line ") {
                    swallowed.fetch_add(1, Ordering::SeqCst);
                    return true;
                }
                stream.write_all(bytes).is_ok()
            },
        )
    });
    rig.client.keep_line();
    for _ in 0..5 {
        rig.client.folders().unwrap();
    }
    assert_eq!(opened.load(Ordering::SeqCst), 1);
}

#[test]
fn line_that_opens_and_carries_nothing_becomes_requests() {
    // Something on the way lets the upgrade pass, and then no message.
    let opened = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&opened);
    let options = ClientOptions {
        idle_timeout: Duration::from_millis(300),
        ..patient()
    };
    let rig = Rig::through(8, options, move |to, _| {
        forward(
            move || TcpStream::connect(*to.lock().unwrap()).ok(),
            move |is_line: &AtomicBool, way, bytes, mut stream| {
                if way == Way::ToServer && is_line.load(Ordering::SeqCst) {
                    return true;
                }
                let opens = bytes.starts_with(b"GET /v1/line ");
                is_line.fetch_or(opens, Ordering::SeqCst);
                counted.fetch_add(usize::from(opens), Ordering::SeqCst);
                stream.write_all(bytes).is_ok()
            },
        )
    });
    rig.client.keep_line();
    for _ in 0..3 {
        rig.client.folders().unwrap();
    }
    let mut listening = rig.client.listen(&rig.folder, 0);
    assert_eq!(listening.hear().unwrap(), ServerNews::Nothing);
    assert_eq!(opened.load(Ordering::SeqCst), 1);
}

/// The machine's clock, set forward.
#[derive(Debug, Default)]
struct SkippingClock(Mutex<Duration>);

impl SkippingClock {
    fn skip(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

impl Clock for SkippingClock {
    fn now_ns(&self) -> i64 {
        RealClock.now_ns()
    }

    fn monotonic_ns(&self) -> u64 {
        let skipped = self.0.lock().unwrap().as_nanos();
        RealClock.monotonic_ns() + u64::try_from(skipped).unwrap()
    }

    fn sleep(&self, time: Duration) {
        RealClock.sleep(time);
    }
}

/// A client of a server that opens a line, and says on it what no honest server says.
#[allow(clippy::result_large_err, reason = "the library's type")]
fn with_dishonest_line(say: impl Fn(&mut Line<TcpStream>) + Send + Sync + 'static) -> ServerClient {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let agree = |_: &tungstenite::handshake::server::Request,
                         mut response: tungstenite::handshake::server::Response| {
                let protocol = byteback_api::line::PROTOCOL.parse().unwrap();
                response.headers_mut().insert("sec-websocket-protocol", protocol);
                Ok(response)
            };
            let limits = byteback_api::line::limits();
            let Ok(socket) = tungstenite::accept_hdr_with_config(stream, agree, Some(limits)) else {
                continue;
            };
            let mut line = Line::new(socket).unwrap();
            let call = line.receive().unwrap().unwrap();
            assert_eq!(LineCall::decode(&call).unwrap().target, "/v1/folders");
            say(&mut line);
        }
    });
    let client = ServerClient::new(&format!("http://{address}"), "bbd_x", impatient()).unwrap();
    client.keep_line();
    client
}

fn said(body: &[u8], status: u16, is_last: bool) -> Vec<u8> {
    said_as("application/json", body, status, is_last)
}

fn said_as(media: &str, body: &[u8], status: u16, is_last: bool) -> Vec<u8> {
    let mut headers = [None; HEADERS_MAX];
    headers[0] = Some(("content-type", media));
    LineAnswer {
        head: Some(AnswerHead { status, headers }),
        piece: body,
        is_last,
    }
    .encode()
}

#[test]
fn answers_that_break_the_rules_are_refused() {
    let client = with_dishonest_line(|line| line.send(&said(br#"{"folders":[]}"#, 200, true)).unwrap());
    assert!(client.folders().unwrap().folders.is_empty());
    for (what, message) in [
        ("empty", Vec::new()),
        ("unknown marks", vec![77, 200, 0, 0]),
        ("cut off", vec![1, 200]),
        ("no status of HTTP", said(b"{}", 7, true)),
        ("a header that is none", b"\x01\xc8\x00\x01\x03a\nb\x01c{}".to_vec()),
    ] {
        let client = with_dishonest_line(move |line| line.send(&message).unwrap());
        let error = client.folders().unwrap_err();
        assert_eq!(error.kind, ServerErrorKind::Protocol, "{what}: {error}");
    }
    // An answer that is cut off is no shorter answer.
    let client = with_dishonest_line(|line| {
        line.send(&said(br#"{"folders":[]}"#, 200, false)).unwrap();
        let _ = line.stream().shutdown(std::net::Shutdown::Both);
    });
    let error = client.folders().unwrap_err();
    assert_eq!(error.kind, ServerErrorKind::Unreachable, "{error}");
}

#[test]
fn line_is_kept_if_the_end_of_an_answer_comes_behind_it() {
    let opened = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&opened);
    let client = with_dishonest_line(move |line| {
        counted.fetch_add(1, Ordering::SeqCst);
        line.send(&said(br#"{"folders":[]}"#, 200, true)).unwrap();
        while let Ok(Some(_)) = line.receive() {
            line.send(&said_as(byteback_api::MEDIA_DELTA, b"content", 200, false))
                .unwrap();
            std::thread::sleep(Duration::from_millis(20));
            let end = LineAnswer {
                head: None,
                piece: b"",
                is_last: true,
            };
            line.send(&end.encode()).unwrap();
        }
    });
    client.folders().unwrap();
    for _ in 0..3 {
        let mut reader = client
            .content(&"home".parse().unwrap(), FileId(1), 1, 0, &|_| true)
            .unwrap();
        reader.read_exact(&mut [0; 7]).unwrap();
    }
    assert_eq!(opened.load(Ordering::SeqCst), 1);
}

#[test]
fn signs_of_life_do_not_hold_a_call_for_ever() {
    let client = with_dishonest_line(|line| while line.ping().is_ok() {});
    // Each ping is answered within moments, so that no silence ends the wait.
    let options = ClientOptions {
        idle_timeout: Duration::from_millis(300),
        ..impatient()
    };
    let client = ServerClient::new(client.base_url(), "bbd_x", options).unwrap();
    client.keep_line();
    let error = client.folders().unwrap_err();
    assert_eq!(error.kind, ServerErrorKind::Unreachable, "{error}");
}

#[test]
fn answer_that_breaks_later_is_no_failure_of_tls() {
    let client = with_dishonest_line(|line| {
        line.send(&said(br#"{"folders":"#, 200, false)).unwrap();
        line.send(&[77]).unwrap();
    });
    let error = client.folders().unwrap_err();
    assert_eq!(error.kind, ServerErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("unknown marks"), "{error}");
}
