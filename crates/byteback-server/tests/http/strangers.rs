//! Connections that show no valid token, in numbers.

use crate::World;
use crate::client::{Answer, connect, read_answer, request};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

const HALF_A_HEAD: &[u8] = b"GET /healthz HTTP/1.1\r\nho";

fn stranger(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address);
    // The server may have closed it already.
    let _ = stream.write_all(HALF_A_HEAD);
    stream
}

/// Number of connections that are open at the server's end.
fn open(streams: &mut [TcpStream]) -> usize {
    let is_open = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0; 1024]);
        stream.set_nonblocking(false).unwrap();
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    streams.iter_mut().map(is_open).filter(|is_open| *is_open).count()
}

fn healthy(world: &World) -> Answer {
    request(world.server.address(), "GET", "/healthz", None, b"", &[]).expect(200)
}

/// Sends a request on a connection that stays open; returns status and body.
fn ask(stream: &mut TcpStream, token: &str, target: &str) -> (u16, String) {
    let head = format!("GET {target} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    let head = String::from_utf8(seen).unwrap().to_lowercase();
    let len = head
        .split("content-length: ")
        .nth(1)
        .and_then(|rest| rest.lines().next());
    let mut body = vec![0; len.unwrap().parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, String::from_utf8(body).unwrap())
}

fn on(stream: &mut TcpStream, token: &str) -> u16 {
    ask(stream, token, "/v1/folders/f").0
}

/// A metric, fetched on a connection of a device, which itself counts as a member's.
fn metric(device: &mut TcpStream, world: &World, name: &str) -> u64 {
    let (status, text) = ask(device, &world.token, "/metrics");
    assert_eq!(status, 200);
    let prefix = format!("byteback_server_{name} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&prefix));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

#[test]
fn strangers_make_room_for_newer_ones_and_devices_stay() {
    let world = World::with(|config| {
        config.connections_max = 40;
        config.strangers_max = 20;
        config.strangers_per_address_max = 10;
        // Strangers go because others come, not because of their age.
        config.head_timeout = Duration::from_secs(600);
    });
    let address = world.server.address();
    let mut device = connect(address);
    assert_eq!(on(&mut device, &world.token), 200);
    let mut strangers: Vec<TcpStream> = (0..200).map(|_| stranger(address)).collect();
    healthy(&world);
    world.get("/v1/folders/f").expect(200);
    assert_eq!(
        on(&mut device, &world.token),
        200,
        "the device's connection is the same"
    );
    assert!(metric(&mut device, &world, "stranger_connections") <= 10);
    assert!(metric(&mut device, &world, "member_connections") >= 1);
    assert!(metric(&mut device, &world, "strangers_turned_out_total") >= 190);
    // Those that were turned out are closed, and the newest are not.
    while open(&mut strangers) > 10 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(open(&mut strangers[..180]) == 0 && open(&mut strangers[195..]) > 0);
}

#[test]
fn a_device_whose_token_ended_has_no_place_of_a_device() {
    let world = World::with(|config| {
        config.strangers_max = 4;
        config.strangers_per_address_max = 2;
        config.head_timeout = Duration::from_secs(600);
    });
    let mut device = connect(world.server.address());
    assert_eq!(on(&mut device, &world.token), 200);
    assert_eq!(on(&mut device, "bbd_wrong"), 401);
    let _strangers: Vec<TcpStream> = (0..3).map(|_| stranger(world.server.address())).collect();
    let mut rest = Vec::new();
    let _ = device.read_to_end(&mut rest);
    assert_eq!(rest, b"", "it was closed");
}

#[test]
fn device_connections_beyond_the_limit_are_refused() {
    let world = World::with(|config| {
        config.connections_max = 12;
        config.strangers_max = 10;
    });
    let mut devices = [connect(world.server.address()), connect(world.server.address())];
    for device in &mut devices {
        // The connection by which the folder was made may still be about to close.
        while on(device, &world.token) != 200 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    world.get("/v1/folders/f").problem(503, "unavailable");
    let [first, mut second] = devices;
    assert!(metric(&mut second, &world, "members_refused_total") >= 1);
    drop(first);
    while metric(&mut second, &world, "member_connections") > 1 {
        std::thread::sleep(Duration::from_millis(5));
    }
    world.get("/v1/folders/f").expect(200);
    assert_eq!(on(&mut second, &world.token), 200);
}

#[test]
fn a_head_that_comes_byte_by_byte_gains_no_time() {
    let world = World::with(|config| config.head_timeout = Duration::from_millis(200));
    let mut slow = connect(world.server.address());
    let mut dripping = slow.try_clone().unwrap();
    let drip = std::thread::spawn(move || {
        let _ = dripping.write_all(HALF_A_HEAD);
        // Sent as fast as possible, the head would be too long before it is late.
        while dripping.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    drip.join().unwrap();
    let mut device = connect(world.server.address());
    assert_eq!(metric(&mut device, &world, "late_heads_total"), 1);
}

#[test]
fn strangers_of_one_address_leave_places_for_others() {
    let world = World::with(|config| {
        config.strangers_max = 6;
        config.strangers_per_address_max = 3;
        config.head_timeout = Duration::from_secs(600);
    });
    let mut listened = world.server.address();
    listened.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let mut early = connect(listened);
    early.write_all(HALF_A_HEAD).unwrap();
    healthy(&world);
    // A client that asks for health is a stranger of the other address, too, and gone again.
    let mut strangers: Vec<TcpStream> = (0..50).map(|_| stranger_from([127, 0, 0, 9], listened)).collect();
    healthy(&world);
    while open(&mut strangers) > 3 {
        std::thread::sleep(Duration::from_millis(5));
    }
    early.write_all(b"st: test\r\nconnection: close\r\n\r\n").unwrap();
    read_answer(early).expect(200);
}

fn stranger_from(ip: [u8; 4], to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from((ip, 0))).unwrap();
    connect(&socket, &to).unwrap();
    let mut stream = TcpStream::from(socket);
    let _ = stream.write_all(HALF_A_HEAD);
    stream
}
