//! A real server over TCP with one folder and one device, a proxy in front of it, and a tree to
//! back up.

use crate::clients::{join_request, patient};
use crate::proxy::{Cutter, proxy};
use crate::scripted_tree::{Picture, ScriptedTree, assert_restored};
use byteback_api::FolderName;
use byteback_backup::{
    BackupError, BackupOptions, BackupReport, Monitor, RestoreOptions, RestoreReport, SearchLimits, Silent,
    SnapshotSpec,
};
use byteback_client::{ClientOptions, ServerClient, WireBytes};
use byteback_delta::Codec;
use byteback_host::clock::RealClock;
use byteback_host::durable::{DurableDir, RealDir};
use byteback_host::random::{RealRandomness, SplitMix64};
use byteback_model::{NodeId, NodeKind};
use byteback_server::{Server, ServerConfig, ServerHandle};
use byteback_store::catalog::{Catalog, SqliteCatalog};
use byteback_store::numbers::SegmentNumber;
use byteback_store::segments::{FrameRef, SegmentFiles, SegmentInfo, SegmentWriter, Segments};
use byteback_store::{Store, StoreError, StoreLimits, StoreParts};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// Segments on a disk with room for this many frames more; below 0: any number.
#[derive(Debug)]
struct FillableSegments {
    inner: SegmentFiles,
    room: Arc<AtomicI64>,
    read_bytes: Arc<AtomicU64>,
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
        self.inner.read(frame, stored)?;
        self.read_bytes.fetch_add(stored.len() as u64, Ordering::SeqCst);
        Ok(())
    }

    fn rewrite(&self, frame: &FrameRef, stored: &[u8]) -> Result<bool, StoreError> {
        self.inner.rewrite(frame, stored)
    }

    fn list(&self) -> Result<Vec<SegmentInfo>, StoreError> {
        self.inner.list()
    }

    fn is_in_use(&self, segment: SegmentNumber) -> bool {
        self.inner.is_in_use(segment)
    }

    fn remove(&self, segment: SegmentNumber) -> Result<(), StoreError> {
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

    fn segments(&self) -> BTreeSet<SegmentNumber> {
        self.inner.segments()
    }
}

/// Limits that small files reach.
pub fn small_limits() -> SearchLimits {
    SearchLimits {
        looked_for_len_min_bytes: 64 * 1024,
        moved_len_min_bytes: 256 << 10,
        listing_pages_max: 16,
        listing_files_max: 64,
        extents_max: 1 << 10,
        leaves_kept_len_max_bytes: 1 << 21,
        summed_len_min_bytes: 1,
    }
}

/// A server with one folder and one device, a tree, and the options of its backups.
pub struct Rig {
    pub tree: ScriptedTree,
    pub folder: FolderName,
    pub client: ServerClient,
    pub options: BackupOptions,
    pub cutter: Arc<Cutter>,
    /// Number of frames that still fit onto the server's disk; below 0: any number.
    pub room: Arc<AtomicI64>,
    /// Stored bytes of contents that the server has read, for whatever reason.
    pub read_bytes: Arc<AtomicU64>,
    serving: Mutex<Option<(Store, ServerHandle)>>,
    serving_at: Arc<Mutex<SocketAddr>>,
    pub temp: TempDir,
    /// Of the proxy.
    pub url: String,
    /// Of the device.
    pub token: String,
}

fn open_store(data: &Path, (room, read_bytes): (&Arc<AtomicI64>, &Arc<AtomicU64>), limits: StoreLimits) -> Store {
    let dir = RealDir::create(data).unwrap();
    let catalog = SqliteCatalog::open(data.join("catalog.sqlite")).unwrap();
    let used = catalog.read().unwrap().segment_id_max().unwrap();
    let inner = SegmentFiles::open(dir.subdir("segments").unwrap(), used).unwrap();
    Store::from_parts(StoreParts {
        catalog: Arc::new(catalog),
        segments: Arc::new(FillableSegments {
            inner,
            room: Arc::clone(room),
            read_bytes: Arc::clone(read_bytes),
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

impl Rig {
    pub fn new(seed: u64) -> Self {
        Self::with(seed, patient())
    }

    pub fn with(seed: u64, client_options: ClientOptions) -> Self {
        Self::through(seed, client_options, proxy)
    }

    /// With another proxy between client and server.
    pub fn through(
        seed: u64,
        client_options: ClientOptions,
        proxy: impl FnOnce(Arc<Mutex<SocketAddr>>, Arc<Cutter>) -> SocketAddr,
    ) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let room = Arc::new(AtomicI64::new(-1));
        let read_bytes = Arc::default();
        let store = open_store(&temp.path().join("data"), (&room, &read_bytes), StoreLimits::default());
        let server = serve(&store);
        let cutter = Arc::new(Cutter::default());
        cutter.heal();
        let serving_at = Arc::new(Mutex::new(server.address()));
        let address = proxy(Arc::clone(&serving_at), Arc::clone(&cutter));
        let url = format!("http://{address}");
        let join_token = store.create_join_token(60_000_000_000).unwrap();
        let joined = byteback_client::join(&url, &join_request(&join_token), patient()).unwrap();
        let client = ServerClient::new(&url, &joined.token, client_options).unwrap();
        let folder: FolderName = "home".parse().unwrap();
        client.create_folder(&folder).unwrap();
        let mut options = BackupOptions::new("backup:home", joined.device_id);
        options.part_len_bytes = 8 * 1024;
        options.limits = small_limits();
        Self {
            tree: ScriptedTree::new(seed),
            folder,
            client,
            options,
            cutter,
            room,
            read_bytes,
            serving: Mutex::new(Some((store, server))),
            serving_at,
            temp,
            url,
            token: joined.token,
        }
    }

    /// A client of another device, and its number.
    pub fn another_device(&self) -> (ServerClient, u64) {
        let (token, device) = self.another_token();
        (ServerClient::new(&self.url, &token, patient()).unwrap(), device)
    }

    /// A further device that has joined: its token and number.
    pub fn another_token(&self) -> (String, u64) {
        let join_token = {
            let serving = self.serving.lock().unwrap();
            serving.as_ref().unwrap().0.create_join_token(60_000_000_000).unwrap()
        };
        let joined = byteback_client::join(&self.url, &join_request(&join_token), patient()).unwrap();
        (joined.token, joined.device_id)
    }

    /// Keeps block checksums from now on.
    pub fn keep_checksums(&mut self) {
        let dir = RealDir::create(self.temp.path().join("checksums")).unwrap();
        self.options.block_checksums = Some(Arc::new(dir));
    }

    /// Keeps decisions from now on; returns their directory.
    pub fn keep_decisions(&mut self) -> Arc<dyn DurableDir> {
        let dir: Arc<dyn DurableDir> = Arc::new(RealDir::create(self.temp.path().join("decisions")).unwrap());
        self.options.decisions = Some(Arc::clone(&dir));
        dir
    }

    /// Stops the server and starts it on the same data, elsewhere but behind the same proxy.
    pub fn restart_server(&self, limits: StoreLimits) {
        let mut serving = self.serving.lock().unwrap();
        if let Some((store, server)) = serving.take() {
            server.shutdown().unwrap();
            drop(store);
        }
        let store = open_store(&self.data(), (&self.room, &self.read_bytes), limits);
        let server = serve(&store);
        *self.serving_at.lock().unwrap() = server.address();
        *serving = Some((store, server));
    }

    /// Stops the server, lets `change` do something to its data, and starts it again.
    pub fn change_data(&self, change: impl FnOnce(&Path)) {
        let (store, server) = self.serving.lock().unwrap().take().unwrap();
        server.shutdown().unwrap();
        drop(store);
        change(&self.data());
        self.restart_server(StoreLimits::default());
    }

    /// Takes a snapshot's name away at the server; the batch that it named stays.
    pub fn forget_snapshot(&self, id: u64) {
        let serving = self.serving.lock().unwrap();
        serving.as_ref().unwrap().0.delete_snapshot("home", id).unwrap();
    }

    fn counted_bytes(&self) -> (u64, u64) {
        let serving = self.serving.lock().unwrap();
        let server = &serving.as_ref().unwrap().1;
        (server.received_bytes(), server.sent_bytes())
    }

    /// The bytes that the server received and sent, as it counts them. It counts bytes after it
    /// sent them, so they may be here before: waits until the counts rest.
    pub fn server_bytes(&self) -> (u64, u64) {
        let mut last = self.counted_bytes();
        loop {
            std::thread::sleep(Duration::from_millis(300));
            let now = self.counted_bytes();
            if now == last {
                return now;
            }
            last = now;
        }
    }

    /// Waits until the server has counted what its clients did since `before`.
    ///
    /// # Panics
    /// If it counts something else for a minute.
    pub fn assert_server_bytes(&self, before: (u64, u64), clients: WireBytes) {
        let started = std::time::Instant::now();
        loop {
            let (received, sent) = self.counted_bytes();
            let counted = (received - before.0, sent - before.1);
            if counted == (clients.sent, clients.received) {
                return;
            }
            assert!(started.elapsed().as_secs() < 60, "{counted:?} of {clients:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Connections that were made to the server so far.
    pub fn server_connections(&self) -> u64 {
        self.serving.lock().unwrap().as_ref().unwrap().1.connections()
    }

    pub fn data(&self) -> PathBuf {
        self.temp.path().join("data")
    }

    pub fn backup(&self) -> Result<BackupReport, BackupError> {
        byteback_backup::backup(&self.tree, &self.client, &self.folder, &self.options, &Silent)
    }

    /// Makes a file and saves it.
    pub fn with_file(&self, bytes: &[u8]) -> NodeId {
        let file = self.tree.lock().create(NodeId::ROOT, b"image", NodeKind::File);
        self.tree.lock().write(file, 0, bytes);
        self.backup().unwrap();
        file
    }

    pub fn seq(&self) -> u64 {
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

    pub fn backup_with_monitor(&self, monitor: &dyn Monitor) -> Result<BackupReport, BackupError> {
        byteback_backup::backup(&self.tree, &self.client, &self.folder, &self.options, monitor)
    }

    pub fn restore(
        &self,
        spec: SnapshotSpec,
        target: &Path,
        options: &RestoreOptions,
        monitor: &dyn Monitor,
    ) -> Result<RestoreReport, BackupError> {
        byteback_backup::restore(&self.client, &self.folder, spec, b"", target, options, monitor)
    }

    /// Bytes of contents that the server read for signatures.
    pub fn signature_read_bytes(&self) -> u64 {
        let serving = self.serving.lock().unwrap();
        serving.as_ref().unwrap().0.sums_cost().signature_read_bytes
    }

    /// Restores a snapshot into a fresh directory and compares it.
    pub fn assert_snapshot(&self, spec: SnapshotSpec, picture: &Picture) {
        let target = tempfile::tempdir_in(self.temp.path()).unwrap();
        let report = self
            .restore(spec, target.path(), &RestoreOptions::default(), &Silent)
            .unwrap();
        assert!(report.is_complete(), "{:?}", report.not_restored);
        assert_restored(picture, target.path());
    }

    pub fn change(&self, random: &mut SplitMix64, times: u64) {
        let mut state = self.tree.lock();
        for _ in 0..times {
            state.change(random);
        }
    }
}
