//! Lines, and clients that break their rules.

use crate::client::{connect, read_answer};
use crate::{FILE, World};
use byteback_api::line::{HEADERS_MAX, Line, LineAnswer, LineCall, LineError, PROTOCOL, limits};
use byteback_api::routes::Method;
use byteback_host::random::noise;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tungstenite::client::IntoClientRequest as _;
use tungstenite::{HandshakeError, Message, WebSocket};

const UPGRADE: [(&str, &str); 5] = [
    ("connection", "upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA=="),
    ("sec-websocket-protocol", PROTOCOL),
];

fn socket(world: &World, token: &str) -> WebSocket<TcpStream> {
    let mut request = "ws://test/v1/line".into_client_request().unwrap();
    let headers = request.headers_mut();
    headers.insert("authorization", format!("Bearer {token}").parse().unwrap());
    headers.insert("sec-websocket-protocol", PROTOCOL.parse().unwrap());
    let stream = connect(world.server.address());
    match tungstenite::client::client_with_config(request, stream, Some(limits())) {
        Ok((socket, _)) => socket,
        Err(HandshakeError::Failure(error)) => panic!("{error}"),
        Err(HandshakeError::Interrupted(_)) => panic!("the handshake stopped"),
    }
}

fn line(world: &World) -> Line<TcpStream> {
    Line::new(socket(world, &world.token)).unwrap()
}

fn call(line: &mut Line<TcpStream>, method: Method, target: &str, headers: &[(&'static str, &str)], body: &[u8]) {
    let mut told = [None; HEADERS_MAX];
    for (slot, header) in told.iter_mut().zip(headers) {
        *slot = Some(*header);
    }
    let call = LineCall {
        method,
        target,
        headers: told,
        body,
        is_unsummed: false,
    };
    line.send(&call.encode()).unwrap();
}

/// The whole answer to the call that was made: its status, its media type, its body.
fn answer(line: &mut Line<TcpStream>) -> Result<(u16, String, Vec<u8>), LineError> {
    let (mut head, mut body) = (None, Vec::new());
    loop {
        let message = line.receive()?.expect("the stream blocks");
        let answer = LineAnswer::decode(&message, head.is_none())?;
        if let Some(told) = answer.head {
            let mut headers = told.headers.iter().flatten();
            let media = headers.find(|(name, _)| *name == "content-type");
            head = Some((
                told.status,
                media.map_or(String::new(), |(_, media)| (*media).to_owned()),
            ));
        }
        body.extend_from_slice(answer.piece);
        if answer.is_last {
            let (status, media) = head.unwrap();
            return Ok((status, media, body));
        }
    }
}

/// Whether the server ends the connection, within a few seconds.
fn ends(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut rest = [0; 4096];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn calls_on_a_line_have_the_answers_of_requests() {
    let world = World::new();
    let bytes = noise(8, 300_000);
    world.commit(7, &world.first(7, &bytes)).expect(200);
    let mut line = line(&world);
    let content = format!("/v1/folders/f/nodes/{FILE}/content?at=1");
    let range = ("range", "bytes=1000-200999");
    let octets = ("accept", "application/octet-stream");
    for (method, target, headers, body) in [
        (Method::Get, "/v1/folders/f", &[][..], &b""[..]),
        (Method::Get, &content, &[octets], b""),
        (Method::Get, &content, &[octets, range], b""),
        (Method::Get, "/v1/folders/f?what=1", &[], b""),
        (Method::Get, "/v1/folders/none", &[], b""),
        (Method::Get, "/v1/nothing/of/this", &[], b""),
        (Method::Delete, "/v1/folders", &[], b""),
        (Method::Post, "/v1/folders/f/batches/9", &[], b"no batch"),
        (Method::Get, "/v1/line", &UPGRADE, b""),
        (Method::Get, "/guide/", &[], b""),
        (Method::Get, "/healthz", &[], b""),
    ] {
        call(&mut line, method, target, headers, body);
        let on_line = answer(&mut line).unwrap();
        if target == "/v1/line" || target == "/guide/" {
            // A line carries calls, and neither lines nor pages.
            assert_eq!(on_line.0, 404, "{target}");
            continue;
        }
        let address = world.server.address();
        let token = Some(&*world.token);
        let plain = crate::client::request(address, method.as_str(), target, token, body, headers);
        let media = plain.header("content-type").to_owned();
        assert_eq!(on_line, (plain.status, media, plain.body), "{target} {headers:?}");
    }
    // And a call that changes something.
    let patch = world.patch(8, 1, bytes.len(), 5, b"here");
    call(&mut line, Method::Post, "/v1/folders/f/batches/8", &[], &patch);
    assert_eq!(answer(&mut line).unwrap().0, 200);
    assert_eq!(
        &world.content(2, &[]).expect(200).body[4..10],
        [bytes[4], b'h', b'e', b'r', b'e', bytes[9]]
    );
}

#[test]
fn line_that_is_none_is_refused_with_a_reason() {
    let world = World::new();
    let open = |token: Option<&str>, headers: &[(&str, &str)]| {
        let mut head = "GET /v1/line HTTP/1.1\r\nhost: test\r\n".to_owned();
        if let Some(token) = token {
            head.push_str(&format!("authorization: Bearer {token}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut stream = connect(world.server.address());
        stream.write_all((head + "\r\n").as_bytes()).unwrap();
        read_answer(stream)
    };
    let good = Some(&*world.token);
    let mut refused = UPGRADE;
    refused[0].1 = "close, upgrade";
    open(None, &refused).problem(401, "unauthorized");
    open(Some("bbd_wrong"), &refused).problem(401, "unauthorized");
    for wrong in 0..refused.len() {
        let mut headers = refused;
        headers[wrong].1 = "close";
        open(good, &headers).problem(400, "invalid_parameter");
    }
    let mut other = refused;
    other[4].1 = "byteback.line.2";
    open(good, &other).problem(400, "invalid_parameter");
    world.get("/v1/line").problem(400, "invalid_parameter");
}

type BreakRule = fn(&mut WebSocket<TcpStream>);

#[test]
fn clients_that_break_the_rules_of_a_line_lose_it() {
    let world = World::new();
    let breaks: [(&str, BreakRule); 7] = [
        ("text", |socket| socket.send(Message::text("GET /healthz")).unwrap()),
        ("not packed", |socket| {
            socket.send(Message::binary(vec![0, 1, 2])).unwrap()
        }),
        ("too long", |socket| {
            // The head alone.
            socket
                .get_mut()
                .write_all(&[0x82, 0xff, 0, 0, 0, 9, 0, 0, 0, 0, 1, 2, 3, 4])
                .unwrap();
        }),
        ("not masked", |socket| {
            socket.get_mut().write_all(&[0x82, 0x01, 0x00]).unwrap();
        }),
        ("HTTP", |socket| {
            socket
                .get_mut()
                .write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
                .unwrap();
        }),
        ("closed", |socket| socket.close(None).unwrap()),
        ("half a message", |socket| {
            socket.get_mut().write_all(&[0x82, 0xfe, 0x10]).unwrap();
            socket.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
        }),
    ];
    for (what, break_rule) in breaks {
        let mut socket = socket(&world, &world.token);
        break_rule(&mut socket);
        assert!(ends(socket.get_mut()), "{what}");
    }
    for (what, message) in [
        ("an empty message", vec![]),
        ("an unknown method", vec![9, 0, 0]),
        ("no address", b"\x00\x03a b\x00".to_vec()),
        ("too many headers", b"\x00\x01/\x7f".to_vec()),
        ("a header that is none", b"\x00\x01/\x01\x03a\nb\x01c".to_vec()),
    ] {
        let mut line = line(&world);
        line.send(&message).unwrap();
        assert!(ends(line.stream()), "{what}");
    }
    let damaged = LineCall {
        method: Method::Post,
        target: "/v1/folders/f/batches/9",
        headers: [None; HEADERS_MAX],
        body: b"BYBATCH\x01 and no records",
        is_unsummed: true,
    };
    let mut line_of_damage = line(&world);
    line_of_damage.send(&damaged.encode()).unwrap();
    assert!(ends(line_of_damage.stream()), "damaged");
    // Calls that do not wait for answers, without an end.
    let mut line = line(&world);
    let events = LineCall {
        method: Method::Get,
        target: "/v1/folders/f/events",
        headers: [None; HEADERS_MAX],
        body: &[],
        is_unsummed: false,
    };
    let body = noise(1, 200_000);
    let long = LineCall { body: &body, ..events };
    line.send(&events.encode()).unwrap();
    for _ in 0..10 {
        let _ = line.send(&long.encode());
    }
    assert!(ends(line.stream()));
    assert!(world.reports.lock().unwrap().is_empty());
    crate::client::request(world.server.address(), "GET", "/healthz", None, b"", &[]).expect(200);
}

#[test]
fn line_of_a_token_that_counts_no_more_ends() {
    let world = World::new();
    let invited = world
        .send("POST", "/v1/invitations", b"{\"valid_ns\":60000000000}")
        .expect(201)
        .json();
    let body = format!("{{\"join_token\":{},\"name\":\"guest\"}}", invited["join_token"]);
    let address = world.server.address();
    let joined = crate::client::request(address, "POST", "/v1/devices", None, body.as_bytes(), &[]);
    let joined = joined.expect(201).json();
    let mut guest = Line::new(socket(&world, joined["token"].as_str().unwrap())).unwrap();
    call(&mut guest, Method::Get, "/v1/folders", &[], b"");
    assert_eq!(answer(&mut guest).unwrap().0, 200);
    world
        .send("DELETE", &format!("/v1/devices/{}", joined["device_id"]), b"")
        .expect(204);
    // At once: it need not make a call.
    assert!(ends(guest.stream()));
}

#[test]
fn line_without_calls_ends_in_time_and_one_with_events_stays() {
    let world = World::with(|config| {
        config.line_timeout = Duration::from_millis(300);
        config.head_timeout = Duration::from_millis(100);
        config.keep_timeout = Duration::from_millis(100);
        config.events_pause = Duration::from_millis(200);
    });
    let (mut idle, mut listening) = (line(&world), line(&world));
    call(&mut listening, Method::Get, "/v1/folders/f/events", &[], b"");
    let began = Instant::now();
    call(&mut idle, Method::Get, "/v1/folders", &[], b"");
    assert_eq!(answer(&mut idle).unwrap().0, 200);
    assert!(ends(idle.stream()));
    assert!(
        began.elapsed() >= Duration::from_millis(300),
        "the timeouts of heads do not count"
    );
    // A comment says that the server is there.
    let mut is_first = true;
    while began.elapsed() < Duration::from_millis(1200) {
        let message = listening.receive().unwrap().unwrap();
        let heard = LineAnswer::decode(&message, is_first).unwrap();
        assert!(heard.piece.is_empty() && is_first || heard.piece == b":\n\n");
        assert!(!heard.is_last);
        is_first = false;
    }
    world.commit(3, &world.first(3, b"x")).expect(200);
    loop {
        let message = listening.receive().unwrap().unwrap();
        let heard = LineAnswer::decode(&message, false).unwrap();
        if heard.piece.starts_with(b"id: 1\n") {
            break;
        }
    }
}

#[test]
fn stopping_server_answers_the_call_at_work_and_ends_idle_lines() {
    let world = World::with(|config| config.shutdown_timeout = Duration::from_secs(20));
    let bytes = noise(8, 12 << 20);
    world.commit(7, &world.first(7, &bytes)).expect(200);
    let (mut idle, mut busy, mut listening) = (line(&world), line(&world), line(&world));
    call(&mut idle, Method::Get, "/v1/folders", &[], b"");
    assert_eq!(answer(&mut idle).unwrap().0, 200);
    call(&mut listening, Method::Get, "/v1/folders/f/events", &[], b"");
    listening.receive().unwrap().unwrap();
    // Too long for the buffers on the way, so it is at work until it is read.
    let content = format!("/v1/folders/f/nodes/{FILE}/content?at=1");
    call(
        &mut busy,
        Method::Get,
        &content,
        &[("accept", "application/octet-stream")],
        b"",
    );
    std::thread::sleep(Duration::from_millis(100));
    let World { server, dir, store, .. } = world;
    let stopping = std::thread::spawn(move || server.shutdown().map(|()| Instant::now()));
    assert!(ends(idle.stream()) && ends(listening.stream()));
    std::thread::sleep(Duration::from_millis(200));
    assert!(!stopping.is_finished(), "a call is at work");
    let (status, _, body) = answer(&mut busy).unwrap();
    assert!(status == 200 && body == bytes);
    assert!(ends(busy.stream()));
    stopping.join().unwrap().unwrap();
    drop((dir, store));
}

#[test]
fn signs_of_life_are_answered_while_an_answer_goes_on() {
    let world = World::with(|config| config.events_pause = Duration::from_secs(600));
    let mut line = line(&world);
    call(&mut line, Method::Get, "/v1/folders/f/events", &[], b"");
    let head = line.receive().unwrap().unwrap();
    assert!(!LineAnswer::decode(&head, true).unwrap().is_last);
    for _ in 0..2000 {
        line.ping().unwrap();
    }
    // One call may come early; its answer waits for the end of this one, which has none.
    call(&mut line, Method::Get, "/v1/folders", &[], b"");
    line.ping().unwrap();
    call(&mut line, Method::Get, "/v1/folders", &[], b"");
    assert!(ends(line.stream()));
}

#[test]
fn call_that_comes_early_is_answered_in_its_turn() {
    let world = World::new();
    let bytes = noise(8, 3 << 20);
    world.commit(7, &world.first(7, &bytes)).expect(200);
    let mut line = line(&world);
    let content = format!("/v1/folders/f/nodes/{FILE}/content?at=1");
    call(
        &mut line,
        Method::Get,
        &content,
        &[("accept", "application/octet-stream")],
        b"",
    );
    call(&mut line, Method::Get, "/v1/folders/none", &[], b"");
    let (status, _, body) = answer(&mut line).unwrap();
    assert!(status == 200 && body == bytes);
    assert_eq!(answer(&mut line).unwrap().0, 404);
}

#[test]
fn device_cannot_take_all_places_with_its_lines() {
    let world = World::new();
    let lines: Vec<_> = (0..32).map(|_| line(&world)).collect();
    let open = || {
        let mut request = "ws://test/v1/line".into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert("authorization", format!("Bearer {}", world.token).parse().unwrap());
        headers.insert("sec-websocket-protocol", PROTOCOL.parse().unwrap());
        match tungstenite::client::client(request, connect(world.server.address())) {
            Ok(_) => 101,
            Err(HandshakeError::Failure(tungstenite::Error::Http(answer))) => answer.status().as_u16(),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(open(), 503);
    // Requests are answered, and a line that is closed leaves its place.
    world.get("/v1/folders").expect(200);
    drop(lines);
    let began = Instant::now();
    while open() != 101 {
        assert!(began.elapsed() < Duration::from_secs(10), "no place is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}
