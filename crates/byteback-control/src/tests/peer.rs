//! A server in a temporary folder, and a peer that sends whatever bytes a test wants.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::memory_tree::MemoryTree;
use crate::frame::{self, Frame};
use crate::messages::Answer;
use crate::server::{Limits, socket_address};
use crate::service::{ServiceError, TreeService, TreeStatus};
use crate::{Client, Server};

/// A server, its tree, and the folder where its socket lies.
pub(super) struct Served {
    pub(super) server: Option<Server>,
    pub(super) tree: Arc<MemoryTree>,
    pub(super) folder: TempDir,
}

impl Served {
    pub(super) fn new() -> Self {
        Self::with(Limits::DEFAULT)
    }

    pub(super) fn with(limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tree = Arc::new(MemoryTree::default());
        let service: Arc<dyn TreeService> = tree.clone();
        let server = Server::start_with(&folder.path().join("control.sock"), service, limits).unwrap();
        Self {
            server: Some(server),
            tree,
            folder,
        }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    pub(super) fn client(&self) -> Client {
        Client::connect(&self.socket()).unwrap()
    }

    /// A peer that has said hello.
    pub(super) fn peer(&self) -> Peer {
        let mut peer = Peer::connect(&self.socket());
        let mut hello = Vec::new();
        frame::write_hello(&mut hello).unwrap();
        peer.send(&hello);
        frame::read_hello(&mut peer.stream).unwrap();
        peer
    }

    /// Checks that others are served as if nothing had happened.
    pub(super) fn serves_others(&self) {
        let status: TreeStatus = self.client().status().unwrap();
        assert_eq!(status.pid, 4242);
    }
}

/// A client that follows no rules.
pub(super) struct Peer {
    pub(super) stream: UnixStream,
}

impl Peer {
    pub(super) fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket_address(socket).unwrap().path()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { stream }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(super) fn send_json(&mut self, json: &str) {
        self.send(&json_frame(json));
    }

    /// The answer to a request, after any content.
    pub(super) fn answer(&mut self) -> Answer {
        let mut buffer = Vec::new();
        loop {
            match frame::read(&mut self.stream, &mut buffer, frame::ANSWER_LEN_MAX).unwrap() {
                Some(Frame::Json(json)) => return frame::parse(json).unwrap(),
                Some(_) => {}
                None => panic!("the connection ended without an answer"),
            }
        }
    }

    pub(super) fn error(&mut self) -> ServiceError {
        match self.answer() {
            Answer::Error(error) => error,
            other => panic!("{other:?} is no error"),
        }
    }

    /// Checks that the server ends the connection.
    pub(super) fn ended(&mut self) {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(0) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("the connection goes on: {other:?}"),
        }
    }
}

pub(super) fn json_frame(json: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(json.len() + 1).unwrap().to_le_bytes().to_vec();
    bytes.push(1);
    bytes.extend_from_slice(json.as_bytes());
    bytes
}

/// Waits for something that another thread does soon.
pub(super) fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(20), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
