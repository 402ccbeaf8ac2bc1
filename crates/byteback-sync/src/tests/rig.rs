//! A real server, a proxy in front of it that cuts connections at a chosen byte, and a server that
//! gives scripted answers.

use super::scripted_tree::{Picture, ScriptedTree, assert_restored};
use crate::{
    BackupOptions, BackupReport, ClientOptions, Event, Monitor, RestoreOptions, RestoreReport, ServerClient, Silent,
    SnapshotSpec, SyncError,
};
use byteback_api::FolderName;
use byteback_delta::Codec;
use byteback_host::clock::RealClock;
use byteback_host::durable::{DurableDir, RealDir};
use byteback_host::random::{RealRandomness, SplitMix64};
use byteback_model::{NodeId, NodeKind};
use byteback_server::{Server, ServerConfig, ServerHandle};
use byteback_store::catalog::{Catalog, SqliteCatalog};
use byteback_store::segments::{FrameRef, SegmentFiles, SegmentInfo, SegmentWriter, Segments};
use byteback_store::{Store, StoreError, StoreLimits, StoreParts};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// The seed of a test: from the environment to repeat a run, otherwise a fixed one for each name.
pub(super) fn seed(default: u64) -> u64 {
    let seed = std::env::var("BYTEBACK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(default);
    eprintln!("BYTEBACK_SEED={seed}");
    seed
}

/// Segments on a disk with room for this many frames more; below 0: any number.
#[derive(Debug)]
struct FillableSegments {
    inner: SegmentFiles,
    room: Arc<AtomicI64>,
}

#[derive(Debug)]
struct FillableWriter {
    inner: Box<dyn SegmentWriter>,
    room: Arc<AtomicI64>,
}

impl Segments for FillableSegments {
    fn writer(&self) -> Box<dyn SegmentWriter> {
        Box::new(FillableWriter {
            inner: self.inner.writer(),
            room: Arc::clone(&self.room),
        })
    }

    fn read(&self, frame: &FrameRef, stored: &mut Vec<u8>) -> Result<(), StoreError> {
        self.inner.read(frame, stored)
    }

    fn rewrite(&self, frame: &FrameRef, stored: &[u8]) -> Result<bool, StoreError> {
        self.inner.rewrite(frame, stored)
    }

    fn list(&self) -> Result<Vec<SegmentInfo>, StoreError> {
        self.inner.list()
    }

    fn is_in_use(&self, segment: u64) -> bool {
        self.inner.is_in_use(segment)
    }

    fn remove(&self, segment: u64) -> Result<(), StoreError> {
        self.inner.remove(segment)
    }
}

impl SegmentWriter for FillableWriter {
    fn append(&mut self, codec: Codec, raw_len: u32, stored: &[u8]) -> Result<FrameRef, StoreError> {
        let taken = self
            .room
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |room| match room {
                0 => None,
                room => Some(if room < 0 { room } else { room - 1 }),
            });
        if taken.is_err() {
            return Err(StoreError::Full {
                what: "append to a segment".to_owned(),
                source: Box::new(std::io::Error::from(std::io::ErrorKind::StorageFull)),
            });
        }
        self.inner.append(codec, raw_len, stored)
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.inner.sync()
    }

    fn segments(&self) -> BTreeSet<u64> {
        self.inner.segments()
    }
}

/// The place where a connection through the proxy is cut.
#[derive(Default)]
pub(super) struct Cutter {
    /// Bytes that may still pass, both ways together; negative: no limit.
    left: AtomicI64,
    /// Whether it was cut: everything is refused.
    is_dead: AtomicBool,
    stays_dead: AtomicBool,
}

impl Cutter {
    /// Cuts when `bytes` more have passed; with `stays_dead` nothing passes after that either.
    pub(super) fn cut_after(&self, bytes: i64, stays_dead: bool) {
        self.stays_dead.store(stays_dead, Ordering::SeqCst);
        self.is_dead.store(false, Ordering::SeqCst);
        self.left.store(bytes, Ordering::SeqCst);
    }

    pub(super) fn heal(&self) {
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

fn proxy(to: Arc<Mutex<SocketAddr>>, cutter: Arc<Cutter>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            if cutter.is_dead.load(Ordering::SeqCst) {
                continue;
            }
            let to = *to.lock().unwrap();
            let Ok(server) = TcpStream::connect(to) else { continue };
            // As the ends do it: otherwise each answer of two packets takes as long as its first
            // one is not confirmed.
            for stream in [&client, &server] {
                let _ = stream.set_nodelay(true);
            }
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let cutter = Arc::clone(&cutter);
                std::thread::spawn(move || {
                    let mut buffer = vec![0; 16 * 1024];
                    while let Ok(len @ 1..) = from.read(&mut buffer) {
                        let pass = cutter.pass(len);
                        if to.write_all(&buffer[..pass]).is_err() || pass < len {
                            break;
                        }
                    }
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

/// A server with one folder and one device, a tree, and the options of its backups.
pub(super) struct Rig {
    pub(super) tree: ScriptedTree,
    pub(super) folder: FolderName,
    pub(super) client: ServerClient,
    pub(super) options: BackupOptions,
    pub(super) cutter: Arc<Cutter>,
    /// Number of frames that still fit onto the server's disk; below 0: any number.
    pub(super) room: Arc<AtomicI64>,
    serving: Mutex<Option<(Store, ServerHandle)>>,
    serving_at: Arc<Mutex<SocketAddr>>,
    pub(super) temp: TempDir,
    /// Of the proxy.
    pub(super) url: String,
    /// Of the device.
    pub(super) token: String,
}

fn open_store(data: &Path, room: &Arc<AtomicI64>, limits: StoreLimits) -> Store {
    let dir = RealDir::create(data).unwrap();
    let catalog = SqliteCatalog::open(data.join("catalog.sqlite")).unwrap();
    let used = catalog.read().unwrap().segment_id_max().unwrap();
    let inner = SegmentFiles::open(dir.subdir("segments").unwrap(), used).unwrap();
    Store::from_parts(StoreParts {
        catalog: Arc::new(catalog),
        segments: Arc::new(FillableSegments {
            inner,
            room: Arc::clone(room),
        }),
        clock: Arc::new(RealClock),
        randomness: Arc::new(RealRandomness),
        limits,
    })
    .unwrap()
}

fn serve(store: &Store) -> ServerHandle {
    let config = ServerConfig {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        shutdown_timeout: Duration::from_millis(200),
        ..ServerConfig::default()
    };
    Server::start(config, store.clone()).unwrap()
}

pub(super) fn patient() -> ClientOptions {
    ClientOptions {
        first_pause: Duration::from_millis(2),
        idle_timeout: Duration::from_secs(10),
        ..ClientOptions::default()
    }
}

/// Tries everything once.
pub(super) fn impatient() -> ClientOptions {
    ClientOptions {
        attempts_max: 1,
        transfer_attempts_max: 1,
        ..patient()
    }
}

impl Rig {
    pub(super) fn new(seed: u64) -> Self {
        Self::with(seed, patient())
    }

    pub(super) fn with(seed: u64, client_options: ClientOptions) -> Self {
        Self::through(seed, client_options, proxy)
    }

    /// With another proxy between client and server.
    pub(super) fn through(
        seed: u64,
        client_options: ClientOptions,
        proxy: impl FnOnce(Arc<Mutex<SocketAddr>>, Arc<Cutter>) -> SocketAddr,
    ) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let room = Arc::new(AtomicI64::new(-1));
        let store = open_store(&temp.path().join("data"), &room, StoreLimits::default());
        let server = serve(&store);
        let cutter = Arc::new(Cutter::default());
        cutter.heal();
        let serving_at = Arc::new(Mutex::new(server.address()));
        let address = proxy(Arc::clone(&serving_at), Arc::clone(&cutter));
        let url = format!("http://{address}");
        let join_token = store.create_join_token(60_000_000_000).unwrap();
        let joined = crate::join(&url, &join_request(&join_token), patient()).unwrap();
        let client = ServerClient::new(&url, &joined.token, client_options).unwrap();
        let folder: FolderName = "home".parse().unwrap();
        client.create_folder(&folder).unwrap();
        let mut options = BackupOptions::new("backup:home", joined.device_id);
        options.part_len_bytes = 8 * 1024;
        Self {
            tree: ScriptedTree::new(seed),
            folder,
            client,
            options,
            cutter,
            room,
            serving: Mutex::new(Some((store, server))),
            serving_at,
            temp,
            url,
            token: joined.token,
        }
    }

    /// A client of another device, and its number.
    pub(super) fn another_device(&self) -> (ServerClient, u64) {
        let (token, device) = self.another_token();
        (ServerClient::new(&self.url, &token, patient()).unwrap(), device)
    }

    /// A further device that has joined: its token and number.
    pub(super) fn another_token(&self) -> (String, u64) {
        let join_token = {
            let serving = self.serving.lock().unwrap();
            serving.as_ref().unwrap().0.create_join_token(60_000_000_000).unwrap()
        };
        let joined = crate::join(&self.url, &join_request(&join_token), patient()).unwrap();
        (joined.token, joined.device_id)
    }

    /// Keeps block checksums from now on.
    pub(super) fn keep_checksums(&mut self) {
        let dir = RealDir::create(self.temp.path().join("checksums")).unwrap();
        self.options.block_checksums = Some(Arc::new(dir));
    }

    /// Keeps decisions from now on; returns their directory.
    pub(super) fn keep_decisions(&mut self) -> Arc<dyn DurableDir> {
        let dir: Arc<dyn DurableDir> = Arc::new(RealDir::create(self.temp.path().join("decisions")).unwrap());
        self.options.decisions = Some(Arc::clone(&dir));
        dir
    }

    /// Stops the server and starts it on the same data, elsewhere but behind the same proxy.
    pub(super) fn restart_server(&self, limits: StoreLimits) {
        let mut serving = self.serving.lock().unwrap();
        if let Some((store, server)) = serving.take() {
            server.shutdown().unwrap();
            drop(store);
        }
        let store = open_store(&self.data(), &self.room, limits);
        let server = serve(&store);
        *self.serving_at.lock().unwrap() = server.address();
        *serving = Some((store, server));
    }

    /// Stops the server, lets `change` do something to its data, and starts it again.
    pub(super) fn change_data(&self, change: impl FnOnce(&Path)) {
        let (store, server) = self.serving.lock().unwrap().take().unwrap();
        server.shutdown().unwrap();
        drop(store);
        change(&self.data());
        self.restart_server(StoreLimits::default());
    }

    /// Takes a snapshot's name away at the server; the batch that it named stays.
    pub(super) fn forget_snapshot(&self, id: u64) {
        let serving = self.serving.lock().unwrap();
        serving.as_ref().unwrap().0.delete_snapshot("home", id).unwrap();
    }

    /// The bytes that the server received and sent, as it counts them.
    pub(super) fn server_bytes(&self) -> (u64, u64) {
        let serving = self.serving.lock().unwrap();
        let server = &serving.as_ref().unwrap().1;
        (server.received_bytes(), server.sent_bytes())
    }

    /// Connections that were made to the server so far.
    pub(super) fn server_connections(&self) -> u64 {
        self.serving.lock().unwrap().as_ref().unwrap().1.connections()
    }

    pub(super) fn data(&self) -> PathBuf {
        self.temp.path().join("data")
    }

    pub(super) fn backup(&self) -> Result<BackupReport, SyncError> {
        crate::backup(&self.tree, &self.client, &self.folder, &self.options, &Silent)
    }

    /// Makes a file and saves it.
    pub(super) fn with_file(&self, bytes: &[u8]) -> NodeId {
        let file = self.tree.lock().create(NodeId::ROOT, b"image", NodeKind::File);
        self.tree.lock().write(file, 0, bytes);
        self.backup().unwrap();
        file
    }

    pub(super) fn seq(&self) -> u64 {
        self.serving
            .lock()
            .unwrap()
            .as_ref()
            .unwrap()
            .0
            .folder("home")
            .unwrap()
            .seq
    }

    pub(super) fn backup_told(&self, monitor: &dyn Monitor) -> Result<BackupReport, SyncError> {
        crate::backup(&self.tree, &self.client, &self.folder, &self.options, monitor)
    }

    pub(super) fn restore(
        &self,
        spec: SnapshotSpec,
        target: &Path,
        options: &RestoreOptions,
        monitor: &dyn Monitor,
    ) -> Result<RestoreReport, SyncError> {
        crate::restore(&self.client, &self.folder, spec, b"", target, options, monitor)
    }

    /// Bytes of contents that the server read for signatures.
    pub(super) fn signature_read_bytes(&self) -> u64 {
        let serving = self.serving.lock().unwrap();
        serving.as_ref().unwrap().0.sums_cost().signature_read_bytes
    }

    /// Restores a snapshot into a fresh directory and compares it.
    pub(super) fn assert_snapshot(&self, spec: SnapshotSpec, picture: &Picture) {
        let target = tempfile::tempdir_in(self.temp.path()).unwrap();
        let report = self
            .restore(spec, target.path(), &RestoreOptions::default(), &Silent)
            .unwrap();
        assert!(report.is_complete(), "{:?}", report.not_restored);
        assert_restored(picture, target.path());
    }

    pub(super) fn change(&self, random: &mut SplitMix64, times: u64) {
        let mut state = self.tree.lock();
        for _ in 0..times {
            state.change(random);
        }
    }
}

/// Hears of events and may stop the operation.
type Listener<'a> = Box<dyn Fn(&Event<'_>, &AtomicBool) + Send + Sync + 'a>;

/// Remembers warnings and failures, calls `on` for each event, and stops the operation when told
/// so.
pub(super) struct Told<'a> {
    pub(super) warnings: Mutex<Vec<String>>,
    pub(super) failures: Mutex<Vec<(String, String)>>,
    pub(super) is_cancelled: AtomicBool,
    on: Listener<'a>,
}

impl<'a> Told<'a> {
    pub(super) fn new(on: impl Fn(&Event<'_>, &AtomicBool) + Send + Sync + 'a) -> Self {
        Self {
            warnings: Mutex::default(),
            failures: Mutex::default(),
            is_cancelled: AtomicBool::new(false),
            on: Box::new(on),
        }
    }

    pub(super) fn warned(&self, of: &str) -> bool {
        self.warnings.lock().unwrap().iter().any(|warning| warning.contains(of))
    }
}

impl Monitor for Told<'_> {
    fn event(&self, event: Event<'_>) {
        match event {
            Event::Warning(warning) => self.warnings.lock().unwrap().push(warning.to_owned()),
            Event::FileFailed { path, reason } => {
                let failure = (path.to_string(), reason.to_owned());
                self.failures.lock().unwrap().push(failure);
            }
            _ => {}
        }
        (self.on)(&event, &self.is_cancelled);
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::SeqCst)
    }
}

/// Precedes the content type of a body whose last line repeats for ever.
pub(super) const ENDLESS: &str = "endless ";

/// An answer of the scripted server: status, content type, body.
pub(super) type Answer = (u16, &'static str, Vec<u8>);

/// A server that answers each request (method, path with query) by script.
pub(super) fn scripted_server(script: impl Fn(&str, &str) -> Answer + Send + Sync + 'static) -> ServerClient {
    scripted_server_with(impatient(), script)
}

pub(super) fn scripted_server_with(
    options: ClientOptions,
    script: impl Fn(&str, &str) -> Answer + Send + Sync + 'static,
) -> ServerClient {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.set_write_timeout(Some(Duration::from_secs(5)));
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|len| len == 1) {
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let mut words = head.split(' ');
            let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let (status, media, body) = script(method, path);
            let (media, is_endless) = match media.strip_prefix(ENDLESS) {
                Some(media) => (media, true),
                None => (media, false),
            };
            let length = if is_endless {
                "x-length: none".to_owned()
            } else {
                format!("content-length: {}", body.len())
            };
            let head = format!("HTTP/1.1 {status} X\r\ncontent-type: {media}\r\n{length}\r\nconnection: close\r\n\r\n");
            let mut sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
            // The end of such a body comes again and again.
            let again = body.rsplit(|byte| *byte == b'\n').nth(1).unwrap_or(b" ");
            let again = [again, b"\n"].concat().repeat(1 + 4096 / (again.len() + 1));
            while is_endless && sent.is_ok() {
                sent = stream.write_all(&again);
            }
        }
    });
    ServerClient::new(&format!("http://{address}"), "bbd_x", options).unwrap()
}

/// A request to join by a device that lets the server draw its token.
pub(super) fn join_request(join_token: &str) -> byteback_api::messages::JoinRequest {
    byteback_api::messages::JoinRequest {
        join_token: join_token.to_owned(),
        name: "test".to_owned(),
        device_token: None,
    }
}
