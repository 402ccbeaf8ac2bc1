//! A server to which strangers hold thousands of connections.

use crate::world::World;
use byteback_testkit::tools::run;
use byteback_testkit::waiting::eventually;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Connections that send half a request head each.
const STRANGERS: usize = 5000;

/// Further descriptors of this process, for the tests that run at the same time.
const OTHERS: u64 = 1000;

/// This process needs one descriptor for each stranger; the server keeps only a few hundred of
/// them.
fn allow_descriptors(count: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return;
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(count));
    let wanted = Rlimit {
        current: Some(count),
        maximum,
    };
    setrlimit(Resource::Nofile, wanted).unwrap();
}

/// Opens a connection from an address of this machine and sends half a request head; the server may
/// close it before or after.
fn stranger(from: [u8; 4], to: SocketAddr) -> Option<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from((from, 0))).unwrap();
    connect(&socket, &to).ok()?;
    let mut stream = TcpStream::from(socket);
    let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: ");
    stream.set_nonblocking(true).unwrap();
    Some(stream)
}

fn is_open(stream: &mut TcpStream) -> bool {
    let read = stream.read(&mut [0; 64]);
    read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_backup_runs_while_strangers_hold_5000_connections() {
    allow_descriptors(STRANGERS as u64 + OTHERS);
    let world = World::mounted();
    fs::write(world.tree().join("first"), vec![7; 3_000_000]).unwrap();
    world.backup();
    let address: SocketAddr = world.url().trim_start_matches("https://").parse().unwrap();
    let healthz = format!("{}/healthz", world.url());
    let is_done = AtomicBool::new(false);
    let opened = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // Half of them come from the device's own address. Each one that the server closes is
        // opened again, from the other address.
        for from in [[127, 0, 0, 1], [127, 0, 0, 2]] {
            let (is_done, opened) = (&is_done, &opened);
            scope.spawn(move || {
                let mut held: Vec<Option<TcpStream>> = Vec::new();
                while held.len() < STRANGERS / 2 && !is_done.load(Ordering::Relaxed) {
                    held.push(stranger(from, address));
                    opened.fetch_add(1, Ordering::Relaxed);
                }
                while !is_done.load(Ordering::Relaxed) {
                    for stream in &mut held {
                        if is_done.load(Ordering::Relaxed) {
                            break;
                        }
                        if !stream.as_mut().is_some_and(is_open) {
                            *stream = stranger([127, 0, 0, 2], address);
                            std::thread::sleep(Duration::from_millis(3));
                        }
                    }
                }
            });
        }
        // Also after a failure: the threads are waited for.
        let _stop = Stop(&is_done);
        eventually("all have come", || {
            (opened.load(Ordering::Relaxed) == STRANGERS).then_some(())
        });
        run("curl", &["-sfk", "--max-time", "20", &healthz]);
        fs::write(world.tree().join("second"), vec![8; 3_000_000]).unwrap();
        world.backup();
        run("curl", &["-sfk", "--max-time", "20", &healthz]);
        world.assert_restores("latest");
    });
}
