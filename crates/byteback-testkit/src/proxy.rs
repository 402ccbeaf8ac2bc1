//! Proxies between a client and its server: one that cuts connections at a chosen byte, one that
//! hears every request. [`crate::wire`] has one that is cut and mended.
//!
//! All pass bytes on by [`forward`], with a thread for each direction of each connection.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToServer,
    ToClient,
}

/// Listens on a free port of loopback, and serves each connection in a thread of its own. Returns
/// the address.
fn listen(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            let serve = Arc::clone(&serve);
            std::thread::spawn(move || serve(client));
        }
    });
    address
}

/// A proxy. For each client `connect` connects to the server, or refuses with `None`. All bytes
/// that arrive go through `pass`, which writes them to the stream that it is given, or not; its
/// false ends the connection, in both directions. `C` is what is remembered of a connection.
pub fn forward<C: Default + Sync>(
    connect: impl Fn() -> Option<TcpStream> + Send + Sync + 'static,
    pass: impl Fn(&C, Way, &[u8], &TcpStream) -> bool + Send + Sync + 'static,
) -> SocketAddr {
    listen(move |client| {
        let Some(server) = connect() else { return };
        // As the ends do it: otherwise each answer of two packets waits for the confirmation of its
        // first one.
        let _ = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
        let connection = C::default();
        std::thread::scope(|scope| {
            for (mut from, to, way) in [(&client, &server, Way::ToServer), (&server, &client, Way::ToClient)] {
                let (connection, pass) = (&connection, &pass);
                scope.spawn(move || {
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(len @ 1..) = from.read(&mut buffer) {
                        if !pass(connection, way, &buffer[..len], to) {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Both);
                    let _ = from.shutdown(Shutdown::Both);
                });
            }
        });
    })
}

/// The head of an HTTP message, up to the empty line, or as much of it as arrives.
pub(crate) fn read_head(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|len| len == 1) {
        head.push(byte[0]);
    }
    head
}

/// The place where a connection through the proxy is cut.
#[derive(Default)]
pub struct Cutter {
    /// Bytes that may still pass, both ways together; negative: no limit.
    left: AtomicI64,
    /// Whether it was cut: everything is refused.
    is_dead: AtomicBool,
    stays_dead: AtomicBool,
}

impl Cutter {
    /// Cuts when `bytes` more have passed; with `stays_dead` nothing passes after that either.
    pub fn cut_after(&self, bytes: i64, stays_dead: bool) {
        self.stays_dead.store(stays_dead, Ordering::SeqCst);
        self.is_dead.store(false, Ordering::SeqCst);
        self.left.store(bytes, Ordering::SeqCst);
    }

    pub fn heal(&self) {
        self.left.store(-1, Ordering::SeqCst);
        self.is_dead.store(false, Ordering::SeqCst);
        self.stays_dead.store(false, Ordering::SeqCst);
    }

    /// The number of `len` bytes that pass.
    fn pass(&self, len: usize) -> usize {
        if self.is_dead.load(Ordering::SeqCst) {
            return 0;
        }
        let len = len as i64;
        let before = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            (left >= 0).then(|| (left - len).max(0))
        });
        match before {
            Err(_) => len as usize,
            Ok(left) if left > len => len as usize,
            Ok(left) => {
                if self.stays_dead.load(Ordering::SeqCst) {
                    self.is_dead.store(true, Ordering::SeqCst);
                } else {
                    self.left.store(-1, Ordering::SeqCst);
                }
                left as usize
            }
        }
    }
}

/// A proxy to the server that runs at `to` now, cut as `cutter` says.
pub fn proxy(to: Arc<Mutex<SocketAddr>>, cutter: Arc<Cutter>) -> SocketAddr {
    let passing = Arc::clone(&cutter);
    forward(
        move || {
            if cutter.is_dead.load(Ordering::SeqCst) {
                return None;
            }
            let to = *to.lock().unwrap();
            TcpStream::connect(to).ok()
        },
        move |_: &(), _, bytes, mut stream| {
            let pass = passing.pass(bytes.len());
            stream.write_all(&bytes[..pass]).is_ok() && pass == bytes.len()
        },
    )
}

/// A proxy that hears every request, head and body, and answers those for which `hear` has an
/// answer.
pub fn hearing(
    to: Arc<Mutex<SocketAddr>>,
    hear: impl Fn(&str, &[u8]) -> Option<byteback_api::Problem> + Send + Sync + 'static,
) -> SocketAddr {
    listen(move |mut client| {
        let head = String::from_utf8(read_head(&mut client)).unwrap();
        let len = head
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned))
            .map_or(0, |len| len.trim().parse().unwrap());
        let mut body = vec![0; len];
        client.read_exact(&mut body).unwrap();
        if let Some(problem) = hear(&head, &body) {
            let status = problem.status;
            let problem = serde_json::to_vec(&problem).unwrap();
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                problem.len()
            );
            let _ = client
                .write_all(head.as_bytes())
                .and_then(|()| client.write_all(&problem));
            return;
        }
        let to = *to.lock().unwrap();
        let Ok(mut server) = TcpStream::connect(to) else { return };
        let head = head.replacen("\r\n", "\r\nconnection: close\r\n", 1);
        let _ = server.write_all(head.as_bytes()).and_then(|()| server.write_all(&body));
        let _ = std::io::copy(&mut server, &mut client);
    })
}
