//! Calls on the line of another process.

use byteback_backup::SnapshotSpec;
use byteback_client::{
    ClientOptions, Connection, LineRelay, Network, ServerClient, ServerErrorKind, UnixConnection, WireBytes,
};
use byteback_host::random::SplitMix64;
use byteback_store::StoreLimits;
use byteback_testkit::clients::{impatient, patient};
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::seed;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A process that lends its line, as long as it has one.
#[derive(Debug, Default)]
struct Daemon {
    relay: Mutex<Option<Arc<LineRelay>>>,
    /// Bytes until the next connection breaks; below 0: it does not.
    until_cut: Arc<AtomicI64>,
    connections: AtomicUsize,
}

impl Daemon {
    fn lending(client: ServerClient) -> Arc<Self> {
        let daemon = Self::default();
        daemon.until_cut.store(-1, Ordering::SeqCst);
        daemon.lend(client);
        Arc::new(daemon)
    }

    fn lend(&self, client: ServerClient) {
        *self.relay.lock().unwrap() = Some(Arc::new(LineRelay::new(client)));
    }
}

impl Network for Daemon {
    fn connect(&self) -> io::Result<Box<dyn Connection>> {
        let relay = self.relay.lock().unwrap().clone();
        let relay = relay.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        self.connections.fetch_add(1, Ordering::SeqCst);
        let (here, there) = UnixStream::pair()?;
        let cut = CutStream {
            stream: there,
            left: Arc::clone(&self.until_cut),
        };
        std::thread::spawn(move || drop(relay.serve(cut, || ())));
        Ok(Box::new(UnixConnection::new(here)))
    }
}

/// A stream that breaks after a number of bytes in both directions.
struct CutStream {
    stream: UnixStream,
    left: Arc<AtomicI64>,
}

impl CutStream {
    fn passed(&self, len: usize) -> io::Result<usize> {
        let len_i64 = i64::try_from(len).unwrap();
        let left = self.left.load(Ordering::SeqCst);
        if left >= 0 && self.left.fetch_sub(len_i64, Ordering::SeqCst) <= len_i64 {
            self.left.store(-1, Ordering::SeqCst);
            self.stream.shutdown(Shutdown::Both)?;
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(len)
    }
}

impl Read for CutStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let came = self.stream.read(buffer)?;
        self.passed(came)
    }
}

impl Write for CutStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = self.stream.write(bytes)?;
        self.passed(gone)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn with_token(rig: &Rig, token: &str, options: ClientOptions) -> ServerClient {
    ServerClient::new(&rig.url, token, options).unwrap()
}

/// The client of a command, which may use the daemon's line.
fn command(rig: &Rig, daemon: &Arc<Daemon>) -> ServerClient {
    let options = ClientOptions {
        relay: Some(Arc::clone(daemon) as Arc<dyn Network>),
        ..patient()
    };
    let client = with_token(rig, &rig.token, options);
    client.keep_line();
    client
}

fn daemon_of(rig: &Rig) -> Arc<Daemon> {
    Daemon::lending(with_token(rig, &rig.token, patient()))
}

#[test]
fn commands_share_a_line_and_know_what_they_cost() {
    let rig = Rig::new(1);
    let daemon = daemon_of(&rig);
    let expected = rig.client.folder(&rig.folder).unwrap();
    command(&rig, &daemon).folders().unwrap();
    let (connections, counted) = (rig.server_connections(), rig.server_bytes());
    let mut told = WireBytes::default();
    for _ in 0..20 {
        let client = command(&rig, &daemon);
        for _ in 0..3 {
            assert_eq!(client.folder(&rig.folder).unwrap(), expected);
        }
        let wire = client.wire_bytes();
        assert!(wire.total() < 3 * 60, "{wire:?}");
        (told.sent, told.received) = (told.sent + wire.sent, told.received + wire.received);
    }
    assert_eq!(rig.server_connections(), connections, "one connection for all");
    rig.assert_server_bytes(counted, told);
    assert_eq!(daemon.connections.load(Ordering::SeqCst), 21);
}

#[test]
fn refusals_and_long_answers_pass_a_relay_as_they_are() {
    let rig = Rig::new(2);
    rig.with_file(&SplitMix64::new(2).bytes(3 << 20));
    let (client, daemon) = {
        let daemon = daemon_of(&rig);
        (command(&rig, &daemon), daemon)
    };
    let missing = "elsewhere".parse().unwrap();
    let (relayed, plain) = (
        client.folder(&missing).unwrap_err(),
        rig.client.folder(&missing).unwrap_err(),
    );
    assert_eq!(
        (relayed.kind, relayed.message),
        (ServerErrorKind::NotFound, plain.message)
    );
    let place = byteback_client::TreePlace::Path(b"image");
    let id = client.tree_node(&rig.folder, rig.seq(), place).unwrap().node.id;
    let read = |client: &ServerClient| {
        let mut reader = client.content(&rig.folder, id, rig.seq(), 0, &|_| true).unwrap();
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    };
    assert_eq!(read(&client), read(&rig.client));
    // An answer that nobody reads to its end costs the line, and nothing else.
    let mut half = client.content(&rig.folder, id, rig.seq(), 0, &|_| true).unwrap();
    half.read_exact(&mut [0; 1000]).unwrap();
    drop(half);
    assert_eq!(read(&client), read(&rig.client));
    assert_eq!(daemon.connections.load(Ordering::SeqCst), 2);
}

#[test]
fn random_backups_over_relays_cut_anywhere_arrive_once() {
    let seed = seed(64);
    let mut random = SplitMix64::new(seed);
    let rig = Rig::new(seed);
    let daemon = daemon_of(&rig);
    let mut cut = 0;
    for round in 0..60 {
        rig.change(&mut random, 3);
        match random.below(4) {
            0 => daemon.until_cut.store(random.below(6_000) as i64, Ordering::SeqCst),
            1 => rig.cutter.cut_after(random.below(3_000) as i64, false),
            // A daemon that is new has no line yet; one that has ended lends none.
            2 => daemon.lend(with_token(&rig, &rig.token, patient())),
            _ if random.below(4) == 0 => *daemon.relay.lock().unwrap() = None,
            _ => {}
        }
        if round % 20 == 13 {
            rig.restart_server(StoreLimits::default());
        }
        let client = command(&rig, &daemon);
        let before = daemon.connections.load(Ordering::SeqCst);
        byteback_backup::backup(&rig.tree, &client, &rig.folder, &rig.options, &byteback_backup::Silent).unwrap();
        cut += usize::from(daemon.connections.load(Ordering::SeqCst) > before + 1);
        daemon.until_cut.store(-1, Ordering::SeqCst);
        rig.cutter.heal();
        if daemon.relay.lock().unwrap().is_none() {
            daemon.lend(with_token(&rig, &rig.token, patient()));
        }
    }
    assert!(cut > 5, "the daemon was hardly ever connected to again: {cut}");
    rig.assert_snapshot(SnapshotSpec::Latest(0), &rig.tree.picture());
}

#[test]
fn stranger_is_not_served_by_a_relay() {
    let rig = Rig::new(3);
    let (token, device) = rig.another_token();
    // The line belongs to another device.
    let daemon = Daemon::lending(with_token(&rig, &token, patient()));
    let client = command(&rig, &daemon);
    rig.client.revoke_device(device).unwrap();
    client.folders().unwrap();
    assert_eq!(daemon.connections.load(Ordering::SeqCst), 1);
    // It leads to another server.
    let elsewhere = Rig::new(4);
    let daemon = Daemon::lending(with_token(&elsewhere, &rig.token, patient()));
    let (_, before) = elsewhere.server_bytes();
    command(&rig, &daemon).folders().unwrap();
    assert_eq!(elsewhere.server_bytes().1, before);
}

#[test]
fn second_command_at_a_time_connects_by_itself() {
    let rig = Rig::new(5);
    let daemon = daemon_of(&rig);
    let (first, second) = (command(&rig, &daemon), command(&rig, &daemon));
    first.folders().unwrap();
    let connections = rig.server_connections();
    second.folders().unwrap();
    assert_eq!(rig.server_connections(), connections + 1);
    // It has a line of its own.
    second.folders().unwrap();
    assert_eq!(rig.server_connections(), connections + 1);
    first.folders().unwrap();
    // The first one's line is free once it has gone.
    drop(first);
    let mut third = command(&rig, &daemon);
    for _ in 0..100 {
        let before = rig.server_connections();
        third.folders().unwrap();
        if rig.server_connections() == before {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
        third = command(&rig, &daemon);
    }
    panic!("the line was never free again");
}

#[test]
fn daemon_that_cannot_reach_the_server_costs_no_answer() {
    let rig = Rig::new(6);
    // Nothing listens there.
    let lost = ServerClient::new("http://127.0.0.1:9", &rig.token, impatient()).unwrap();
    let options = |daemon: Arc<Daemon>| ClientOptions {
        relay: Some(daemon as Arc<dyn Network>),
        ..impatient()
    };
    let client = ServerClient::new("http://127.0.0.1:9", &rig.token, options(Daemon::lending(lost))).unwrap();
    client.keep_line();
    assert_eq!(client.folders().unwrap_err().kind, ServerErrorKind::Unreachable);
    // A daemon whose server has gone while its line was open.
    let daemon = daemon_of(&rig);
    let client = command(&rig, &daemon);
    client.folders().unwrap();
    rig.restart_server(StoreLimits::default());
    client.folders().unwrap();
}

#[test]
fn relay_says_nothing_to_those_who_speak_otherwise() {
    let rig = Rig::new(7);
    let daemon = daemon_of(&rig);
    let relay = daemon.relay.lock().unwrap().clone().unwrap();
    let host = rig.url.strip_prefix("http://").unwrap();
    let open = |path: &str, host: &str, token: &str, protocol: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: Upgrade\r\nUpgrade: \
             websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
        )
    };
    let answer = |head: &str| {
        let (mut here, there) = UnixStream::pair().unwrap();
        let relay = Arc::clone(&relay);
        let served = std::thread::spawn(move || drop(relay.serve(there, || ())));
        here.write_all(head.as_bytes()).unwrap();
        here.shutdown(Shutdown::Write).unwrap();
        let mut said = Vec::new();
        // A reset is an end as well.
        let _ = here.read_to_end(&mut said);
        served.join().unwrap();
        let said = String::from_utf8_lossy(&said).into_owned();
        said.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let protocol = byteback_api::line::PROTOCOL;
    assert_eq!(answer(&open("/v1/line", host, &rig.token, protocol)), "101");
    assert_eq!(answer(&open("/v1/lines", host, &rig.token, protocol)), "421");
    assert_eq!(answer(&open("/v1/line", "elsewhere", &rig.token, protocol)), "421");
    assert_eq!(answer(&open("/v1/line", host, "other", protocol)), "401");
    assert_eq!(answer(&open("/v1/line", host, &rig.token, "byteback.line.2")), "400");
    assert_eq!(answer("\u{1}\u{2}\u{3}\r\n\r\n"), "");
    assert_eq!(answer("GET /v1/folders HTTP/1.1\r\n\r\n"), "");
}
