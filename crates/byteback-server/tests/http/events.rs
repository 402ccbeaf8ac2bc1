//! Clients that listen.

use crate::client::{connect, head};
use crate::{Answer, World};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A client that listens: the received lines, without the framing of the chunks.
struct Listener {
    reader: BufReader<TcpStream>,
}

impl Listener {
    fn new(world: &World, after: &str, extra: &[(&str, &str)]) -> Self {
        Self::try_new(world, after, extra).unwrap_or_else(|head| panic!("{head:?}"))
    }

    /// Connects; the error is the head of an answer that is no stream.
    fn try_new(world: &World, after: &str, extra: &[(&str, &str)]) -> Result<Self, Vec<String>> {
        let mut stream = connect(world.server.address());
        let target = format!("/v1/folders/f/events{after}");
        stream
            .write_all(head("GET", &target, Some(&world.token), 0, extra).as_bytes())
            .unwrap();
        let mut listener = Self {
            reader: BufReader::new(stream),
        };
        let mut head = Vec::new();
        while let Some(line) = listener.line().filter(|line| !line.is_empty()) {
            head.push(line.to_lowercase());
        }
        if !head[0].contains("200") {
            return Err(head);
        }
        assert!(head.contains(&"content-type: text/event-stream".to_owned()), "{head:?}");
        Ok(listener)
    }

    /// The next line; `None` at the end.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line.trim_end().to_owned()),
        }
    }

    /// The next chunk; empty at the end.
    fn chunk(&mut self) -> String {
        let len = self.line().map_or(0, |line| usize::from_str_radix(&line, 16).unwrap());
        let mut bytes = vec![0; len + 2];
        match self.reader.read_exact(&mut bytes) {
            Ok(()) if len > 0 => String::from_utf8(bytes[..len].to_vec()).unwrap(),
            _ => String::new(),
        }
    }

    /// The next events, past comments: id and data of each.
    fn events(&mut self) -> Vec<(u64, Value)> {
        loop {
            let chunk = self.chunk();
            assert!(!chunk.is_empty(), "the stream ended");
            let events: Vec<_> = chunk
                .split("\n\n")
                .filter(|event| event.starts_with("id: "))
                .map(|event| {
                    let mut lines = event.lines();
                    let id = lines.next().unwrap().strip_prefix("id: ").unwrap().parse().unwrap();
                    assert_eq!(lines.next(), Some("event: batch"));
                    let data = lines.next().unwrap().strip_prefix("data: ").unwrap();
                    (id, serde_json::from_str(data).unwrap())
                })
                .collect();
            if !events.is_empty() {
                return events;
            }
        }
    }
}

fn ok(answer: Answer) {
    answer.expect(200);
}

#[test]
fn events_name_every_batch_once_and_in_order() {
    let world = World::new();
    let mut from_the_start = Listener::new(&world, "", &[]);
    ok(world.commit(1, &world.first(1, &[0; 1000])));
    let heard = from_the_start.events();
    assert_eq!(heard.len(), 1);
    assert_eq!(heard[0].0, 1);
    assert_eq!(heard[0].1["device"], world.device);
    assert_eq!(heard[0].1["counter"], 1);
    assert_eq!(heard[0].1["host"], "h");
    for counter in 2..=700 {
        ok(world.commit(counter, &world.patch(counter, counter - 1, 1000, counter, b"x")));
    }
    // A repeated batch is not applied again.
    ok(world.commit(700, &world.patch(700, 699, 1000, 700, b"x")));
    let mut late = Listener::new(&world, "?after=5", &[]);
    let mut later = Listener::new(&world, "?after=1", &[("last-event-id", "690")]);
    for (listener, first) in [(&mut from_the_start, 2), (&mut late, 6), (&mut later, 691)] {
        let mut heard = Vec::new();
        while heard.last() != Some(&700) {
            heard.extend(listener.events().into_iter().map(|(id, _)| id));
        }
        assert_eq!(heard, (first..=700).collect::<Vec<u64>>());
    }
    ok(world.commit(701, &world.patch(701, 700, 1000, 3, b"y")));
    for listener in [&mut from_the_start, &mut late, &mut later] {
        assert_eq!(listener.events()[0].0, 701);
    }
}

#[test]
fn events_refuse_a_listener_with_the_reason() {
    let world = World::with(|config| config.events_max = 2);
    ok(world.commit(1, &world.first(1, &[0; 1000])));
    world.get("/v1/folders/g/events").problem(404, "folder_not_found");
    // A server that was restored to an older state.
    world
        .get("/v1/folders/f/events?after=2")
        .problem(400, "invalid_parameter");
    world
        .get("/v1/folders/f/events?since=2")
        .problem(400, "invalid_parameter");
    let listeners = [Listener::new(&world, "", &[]), Listener::new(&world, "", &[])];
    world.get("/v1/folders/f/events").problem(503, "unavailable");
    drop(listeners);
    // The places are free again once the server has seen that the clients are gone.
    let started = std::time::Instant::now();
    while Listener::try_new(&world, "?after=1", &[]).is_err() {
        assert!(started.elapsed() < Duration::from_secs(20), "a place stays taken");
    }
}

#[test]
fn a_listener_hears_that_the_server_is_there_and_when_it_stops() {
    let world = World::with(|config| {
        config.events_pause = Duration::from_millis(20);
        config.shutdown_timeout = Duration::from_secs(3600);
    });
    let mut listener = Listener::new(&world, "", &[]);
    for _ in 0..5 {
        assert_eq!(listener.chunk(), ":\n\n");
    }
    // Without its end the server would wait an hour for this request.
    world.server.shutdown().unwrap();
    while !listener.chunk().is_empty() {}
}
