//! A wire between clients and the server that can be cut at a chosen point.
//!
//! It passes bytes through, with a thread for each direction of each connection. While it is
//! *armed*, it holds back the first request that commits a batch, or the answer to it; in the
//! latter case the server has committed, and the client does not know. In that moment the test may
//! do what it wants (such as kill a process); afterwards the connection is dropped along with the
//! held bytes, and the proxy is no longer armed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, RwLock};

/// The wire; see the module.
pub(crate) struct Proxy {
    url: String,
    shared: Arc<Shared>,
}

struct Shared {
    /// Locked for reading while bytes are passed on, so that nothing passes after the wire was cut.
    is_cut: RwLock<bool>,
    server: Mutex<String>,
    armed: Mutex<Option<Trap>>,
    stop: AtomicBool,
}

/// The kind of message that is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Request,
    Answer,
}

/// Signals that the message has arrived, then waits for the test.
struct Trap {
    held: Held,
    sprung: Sender<()>,
    go_on: Receiver<()>,
}

/// The test's end of an armed proxy.
pub(crate) struct Armed {
    sprung: Receiver<()>,
    _go_on: Sender<()>,
}

impl Armed {
    /// Waits until a message is held back; false if `within` passes first.
    pub(crate) fn wait_for_it(&self, within: std::time::Duration) -> bool {
        self.sprung.recv_timeout(within).is_ok()
    }
}

impl Proxy {
    /// Listens, and forwards to `server`, a host and port.
    pub(crate) fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            is_cut: RwLock::new(false),
            server: Mutex::new(server.to_owned()),
            armed: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                for client in listener.incoming().map_while(Result::ok) {
                    if shared.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let shared = Arc::clone(&shared);
                    std::thread::spawn(move || shared.serve(&client));
                }
            }
        });
        Self { url, shared }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Forwards to another server from now on.
    pub(crate) fn pass_on_to(&self, server: &str) {
        server.clone_into(&mut self.shared.server.lock().unwrap());
    }

    /// Cuts the wire: once this returns, no byte passes in either direction, on any connection,
    /// until [`Self::mend`].
    pub(crate) fn cut(&self) {
        *self.shared.is_cut.write().unwrap() = true;
    }

    /// Lets new connections pass again.
    pub(crate) fn mend(&self) {
        *self.shared.is_cut.write().unwrap() = false;
    }

    /// Holds back the next request to commit, or the answer to it, until the returned value is
    /// dropped.
    pub(crate) fn arm(&self, held: Held) -> Armed {
        let (sprung, heard) = channel();
        let (tell, go_on) = channel();
        *self.shared.armed.lock().unwrap() = Some(Trap { held, sprung, go_on });
        Armed {
            sprung: heard,
            _go_on: tell,
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.url.trim_start_matches("http://"));
    }
}

impl Shared {
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

    fn serve(&self, client: &TcpStream) {
        if *self.is_cut.read().unwrap() {
            return;
        }
        let address = self.server.lock().unwrap().clone();
        let Ok(server) = TcpStream::connect(address) else {
            return;
        };
        // As client and server do it: otherwise each answer of two packets waits for the
        // confirmation of its first one.
        let _ = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
        // Whether the client's last message commits a batch.
        let is_commit = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pass(&self.is_cut, client, &server, |bytes| {
                    let Some(request) = request_line(bytes) else {
                        return true;
                    };
                    is_commit.store(commits(&request), Ordering::SeqCst);
                    !commits(&request) || self.may_pass(Held::Request)
                });
            });
            scope.spawn(|| {
                pass(&self.is_cut, &server, client, |bytes| {
                    // An interim answer (100 Continue) means nothing yet.
                    let is_final = bytes.starts_with(b"HTTP/1.1 2");
                    !is_final || !is_commit.load(Ordering::SeqCst) || self.may_pass(Held::Answer)
                });
            });
        });
    }
}

/// The first line of an HTTP request, if these bytes begin one.
fn request_line(bytes: &[u8]) -> Option<String> {
    let line = bytes.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line.get(..line.len().min(512))?).ok()?;
    line.ends_with("HTTP/1.1").then(|| line.to_owned())
}

/// Whether a request asks the server to apply a batch.
fn commits(request: &str) -> bool {
    let path = request.split(' ').nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    request.starts_with("POST ") && path.contains("/batches/")
}

fn pass(is_cut: &RwLock<bool>, mut from: &TcpStream, mut to: &TcpStream, mut may_pass: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut buffer) {
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        if !may_pass(bytes) {
            break;
        }
        let is_cut = is_cut.read().unwrap();
        if *is_cut || to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
