//! A wire between clients and the server that can be cut, mended, and held at a commit.
//!
//! While it is *armed*, it holds back the first request that commits a batch, or the answer to it;
//! in the latter case the server has committed, and the client does not know. In that moment the
//! test may do what it wants (such as kill a process); afterwards the connection is dropped along
//! with the held bytes, and the wire is no longer armed.
//!
//! It reads HTTP without TLS, and the calls on lines.

use crate::proxy::{Way, forward};
use byteback_api::line::{Line, LineCall, Memory};
use byteback_api::routes::Method;
use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

/// The wire; see the module.
pub struct Wire {
    url: String,
    shared: Arc<Shared>,
}

struct Shared {
    /// Locked for reading while bytes are passed on, so that nothing passes after the wire was cut.
    is_cut: RwLock<bool>,
    server: Mutex<String>,
    armed: Mutex<Option<Trap>>,
}

/// The kind of message that is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Request,
    Answer,
}

/// Signals that the message has arrived, then waits for the test.
struct Trap {
    held: Held,
    sprung: Sender<()>,
    go_on: Receiver<()>,
}

/// The test's end of an armed wire.
pub struct Armed {
    sprung: Receiver<()>,
    _go_on: Sender<()>,
}

impl Armed {
    /// Waits until a message is held back; false if `within` passes first.
    pub fn wait_for_it(&self, within: Duration) -> bool {
        self.sprung.recv_timeout(within).is_ok()
    }
}

impl Wire {
    /// Listens, and forwards to `server`, a host and port.
    pub fn start(server: &str) -> Self {
        let shared = Arc::new(Shared {
            is_cut: RwLock::new(false),
            server: Mutex::new(server.to_owned()),
            armed: Mutex::new(None),
        });
        let (connecting, passing) = (Arc::clone(&shared), Arc::clone(&shared));
        let address = forward(
            move || connecting.connect(),
            move |connection: &Connection, way, bytes, to| passing.pass(connection, way, bytes, to),
        );
        Self {
            url: format!("http://{address}"),
            shared,
        }
    }

    /// The address that clients connect to.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Forwards to another server from now on.
    pub fn pass_on_to(&self, server: &str) {
        server.clone_into(&mut self.shared.server.lock().unwrap());
    }

    /// Cuts the wire: once this returns, no byte passes in either direction, on any connection,
    /// until [`Self::mend`].
    pub fn cut(&self) {
        *self.shared.is_cut.write().unwrap() = true;
    }

    /// Lets new connections pass again.
    pub fn mend(&self) {
        *self.shared.is_cut.write().unwrap() = false;
    }

    /// Holds back the next request to commit, or the answer to it, until the returned value is
    /// dropped.
    pub fn arm(&self, held: Held) -> Armed {
        let (sprung, heard) = channel();
        let (tell, go_on) = channel();
        *self.shared.armed.lock().unwrap() = Some(Trap { held, sprung, go_on });
        Armed {
            sprung: heard,
            _go_on: tell,
        }
    }
}

impl Shared {
    fn connect(&self) -> Option<TcpStream> {
        if *self.is_cut.read().unwrap() {
            return None;
        }
        let address = self.server.lock().unwrap().clone();
        TcpStream::connect(address).ok()
    }

    /// Passes bytes on.
    fn pass(&self, connection: &Connection, way: Way, bytes: &[u8], mut to: &TcpStream) -> bool {
        let held = connection.heard().hear(way, bytes);
        let may_pass = held.is_none_or(|held| self.may_pass(held));
        if !may_pass {
            return false;
        }
        let is_cut = self.is_cut.read().unwrap();
        !*is_cut && to.write_all(bytes).is_ok()
    }

    /// Whether a message of this kind may pass. If a trap is set for it, waits until the test
    /// releases the trap.
    fn may_pass(&self, held: Held) -> bool {
        let trap = {
            let mut armed = self.armed.lock().unwrap();
            if armed.as_ref().is_none_or(|trap| trap.held != held) {
                return true;
            }
            armed.take()
        };
        if let Some(trap) = trap {
            let _ = trap.sprung.send(());
            // Returns when the test drops its end.
            let _ = trap.go_on.recv();
        }
        false
    }
}

/// The memory of a connection.
#[derive(Default)]
struct Connection(Mutex<Heard>);

impl Connection {
    fn heard(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.0.lock().unwrap()
    }
}

/// The state of the talk on a connection.
#[derive(Default)]
struct Heard {
    /// Whether the client's last message commits a batch.
    is_commit: bool,
    /// The server's end of a line, if the connection has become one.
    line: Option<Line<Memory>>,
}

impl Heard {
    /// The kind of message that begins with these bytes, if it is about a commit.
    fn hear(&mut self, way: Way, bytes: &[u8]) -> Option<Held> {
        match (way, &mut self.line) {
            (Way::ToServer, Some(line)) => {
                line.stream().feed(bytes);
                let mut calls = 0;
                while let Ok(Some(call)) = line.receive() {
                    let call = LineCall::decode(&call).unwrap();
                    self.is_commit = call.method == Method::Post && is_of_batch(call.target);
                    calls += 1;
                }
                (calls > 0 && self.is_commit).then_some(Held::Request)
            }
            (Way::ToServer, None) => {
                let request = request_line(bytes)?;
                let (method, target) = request.split_once(' ')?;
                let target = target.split(' ').next()?;
                if target == "/v1/line" {
                    self.line = Line::of_server(Memory::default()).ok();
                }
                self.is_commit = method == "POST" && is_of_batch(target);
                self.is_commit.then_some(Held::Request)
            }
            (Way::ToClient, Some(_)) => {
                if bytes.starts_with(b"HTTP/1.1 4") || bytes.starts_with(b"HTTP/1.1 5") {
                    self.line = None;
                }
                self.is_commit.then_some(Held::Answer)
            }
            // An interim answer (100 Continue) means nothing yet.
            (Way::ToClient, None) => (self.is_commit && bytes.starts_with(b"HTTP/1.1 2")).then_some(Held::Answer),
        }
    }
}

/// The first line of an HTTP request, if these bytes begin one.
fn request_line(bytes: &[u8]) -> Option<String> {
    let line = bytes.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line.get(..line.len().min(512))?).ok()?;
    line.ends_with("HTTP/1.1").then(|| line.to_owned())
}

/// Whether a target is that of a batch, which a `POST` asks the server to apply.
fn is_of_batch(target: &str) -> bool {
    target.split('?').next().unwrap_or_default().contains("/batches/")
}
