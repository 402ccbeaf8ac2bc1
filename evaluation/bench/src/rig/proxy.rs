//! Bytes on the wire, counted the same way for all contenders.
//!
//! A proxy on loopback stands between a client and its server, and counts the bytes that it passes
//! on in each direction: the payload of TCP, without TCP's own headers. Everything that a protocol
//! does (headers, keep-alive, retries, handshakes) is in the sum.
//!
//! On request the proxy simulates a slow link: in each direction, over all connections, a byte is
//! passed on only when the link would have carried it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::SuiteError;

#[cfg(test)]
mod tests;

const BUFFER_BYTES: usize = 128 * 1024;
/// The unit in which a slow link passes bytes on; short enough that its progress stays invisible.
const SLICE_BYTES: usize = 8 * 1024;
/// The time that a connection may take to close after its client has ended.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Silence after which nothing is on its way any more.
const QUIET: Duration = Duration::from_millis(20);

/// Bytes that were passed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wire {
    pub(crate) to_server: u64,
    pub(crate) to_client: u64,
}

impl Wire {
    /// Both directions.
    pub(crate) fn total(self) -> u64 {
        self.to_server + self.to_client
    }

    /// The traffic since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            to_server: self.to_server - earlier.to_server,
            to_client: self.to_client - earlier.to_client,
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    to_server: AtomicU64,
    to_client: AtomicU64,
    open_connections: AtomicU64,
    stopped: AtomicBool,
    /// Bits per second; 0 for no limit.
    bits_per_s: AtomicU64,
    /// The time at which the link will have carried its bytes, to the server and to the client.
    free_at: [Mutex<Option<Instant>>; 2],
}

impl Counters {
    /// Waits until the link has carried `len` more bytes.
    fn carry(&self, len: usize, is_to_server: bool) {
        let bits_per_s = self.bits_per_s.load(Ordering::SeqCst);
        if bits_per_s == 0 {
            return;
        }
        let time = Duration::from_secs_f64(len as f64 * 8.0 / bits_per_s as f64);
        let free_at = {
            let mut free_at = self.free_at[usize::from(is_to_server)]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let begin = free_at.filter(|free_at| *free_at > now).unwrap_or(now);
            *free_at.insert(begin + time)
        };
        thread::sleep(free_at.saturating_duration_since(Instant::now()));
    }
}

/// A proxy to one server. It ends when dropped; connections end with their peers.
#[derive(Debug)]
pub(crate) struct CountingProxy {
    address: SocketAddr,
    counters: Arc<Counters>,
    acceptor: Option<JoinHandle<()>>,
}

impl CountingProxy {
    /// Listens on a free port of loopback for clients of `server`.
    pub(crate) fn start(server: SocketAddr) -> Result<Self, SuiteError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let counters = Arc::new(Counters::default());
        let acceptor = thread::Builder::new().name("proxy".to_owned()).spawn({
            let counters = Arc::clone(&counters);
            move || {
                for client in listener.incoming() {
                    if counters.stopped.load(Ordering::SeqCst) {
                        return;
                    }
                    // A connection that fails is left to the client, which sees it closed.
                    if let Ok(client) = client {
                        let _ = pass_on(&client, server, &counters);
                    }
                }
            }
        })?;
        Ok(Self {
            address,
            counters,
            acceptor: Some(acceptor),
        })
    }

    /// The address that clients connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Limits the link to this rate in each direction; `None` for no limit.
    pub(crate) fn limit(&self, bits_per_s: Option<u64>) {
        self.counters
            .bits_per_s
            .store(bits_per_s.unwrap_or(0), Ordering::SeqCst);
    }

    /// The total traffic, once all clients have ended: waits until their connections are closed.
    pub(crate) fn settled(&self) -> Result<Wire, SuiteError> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        while self.counters.open_connections.load(Ordering::SeqCst) > 0 {
            if Instant::now() > deadline {
                return Err("a connection through the proxy stays open after its client has ended".into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(self.so_far())
    }

    /// The total traffic, once nothing has passed for a while: of clients that have ended, while
    /// connections of their daemons stand.
    pub(crate) fn quiet(&self) -> Result<Wire, SuiteError> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        let mut before = self.so_far();
        loop {
            thread::sleep(QUIET);
            let now = self.so_far();
            if now == before {
                return Ok(now);
            }
            if Instant::now() > deadline {
                return Err("the traffic through the proxy goes on after its client has ended".into());
            }
            before = now;
        }
    }

    /// The traffic so far, while clients may still be active.
    pub(crate) fn so_far(&self) -> Wire {
        Wire {
            to_server: self.counters.to_server.load(Ordering::SeqCst),
            to_client: self.counters.to_client.load(Ordering::SeqCst),
        }
    }
}

impl Drop for CountingProxy {
    fn drop(&mut self) {
        self.counters.stopped.store(true, Ordering::SeqCst);
        // The acceptor checks the flag at the next connection.
        let woken = TcpStream::connect(self.address).is_ok();
        if let (true, Some(acceptor)) = (woken, self.acceptor.take()) {
            // The thread does not panic.
            let _ = acceptor.join();
        }
    }
}

/// Connects to the server and starts two threads, one for each direction; the last one to end
/// removes the connection from the count.
fn pass_on(client: &TcpStream, server: SocketAddr, counters: &Arc<Counters>) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    for stream in [client, &server] {
        stream.set_nodelay(true)?;
    }
    let connection = Arc::new(Connection::new(Arc::clone(counters)));
    let directions = [
        (client.try_clone()?, server.try_clone()?, true),
        (server.try_clone()?, client.try_clone()?, false),
    ];
    for (from, to, is_to_server) in directions {
        let connection = Arc::clone(&connection);
        thread::Builder::new().name("proxy-copy".to_owned()).spawn(move || {
            copy(&from, &to, &connection.counters, is_to_server);
        })?;
    }
    Ok(())
}

struct Connection {
    counters: Arc<Counters>,
}

impl Connection {
    fn new(counters: Arc<Counters>) -> Self {
        counters.open_connections.fetch_add(1, Ordering::SeqCst);
        Self { counters }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counters.open_connections.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Passes bytes on until either side ends, and forwards the end.
fn copy(mut from: &TcpStream, to: &TcpStream, counters: &Counters, is_to_server: bool) {
    let counter = match is_to_server {
        true => &counters.to_server,
        false => &counters.to_client,
    };
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(len) if len > 0 => {
                if hand_on(&buffer[..len], to, counters, is_to_server).is_err() {
                    // The receiver is gone: the sender must notice.
                    let _ = from.shutdown(Shutdown::Both);
                    return;
                }
                // No buffer is longer than 2^64.
                counter.fetch_add(len as u64, Ordering::SeqCst);
            }
            Ok(_) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Err(_) => {
                let _ = to.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}

/// Writes at the rate of the link.
fn hand_on(bytes: &[u8], mut to: &TcpStream, counters: &Counters, is_to_server: bool) -> io::Result<()> {
    let slice_bytes = match counters.bits_per_s.load(Ordering::SeqCst) {
        0 => BUFFER_BYTES,
        _ => SLICE_BYTES,
    };
    bytes.chunks(slice_bytes).try_for_each(|slice| {
        counters.carry(slice.len(), is_to_server);
        to.write_all(slice)
    })
}
