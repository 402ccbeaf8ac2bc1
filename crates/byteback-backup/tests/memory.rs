//! The memory of a backup, a restore and a verification, client and server together, must not
//! depend on the length of a file, nor that of a restore on the number of files. The allocator
//! counts it; a test binary of its own, so that nothing else is counted.

#![allow(clippy::unwrap_used, reason = "a test")]

use byteback_api::FolderName;
use byteback_api::messages::JoinRequest;
use byteback_backup::{
    BackupOptions, DeltaChoice, PushOptions, RestoreOptions, Silent, SnapshotSpec, VerifyOptions, backup, push,
    restore, verify,
};
use byteback_client::{ClientOptions, ServerClient, join};
use byteback_control::{
    ChangesCursor, ChangesPage, ConsumerStatus, ContentChange, CutId, CutInfo, CutRequest, FinishReport, NodeChange,
    Outcome, Piece, Result, ServiceError, TreeService, TreeStatus,
};
use byteback_heap::{CountingHeap, used_by};
use byteback_model::{Attributes, ByteString, NameChange, NodeId, NodeKind};
use byteback_oplog::{Epoch, TreeId, WholeReason};
use byteback_server::{Server, ServerConfig, ServerHandle};
use byteback_store::{Store, StoreLimits};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Mutex;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

/// Held while memory is counted: the tests share one heap.
static ALONE: Mutex<()> = Mutex::new(());

/// Peak memory during `work`, beyond that in use before, in bytes.
fn peak_of(work: impl FnOnce()) -> usize {
    usize::try_from(used_by(work).1.peak_bytes).unwrap()
}

/// A tree of one file whose bytes are generated while they are read. After each saved backup, bytes
/// are inserted in its middle.
struct GeneratedTree {
    len: u64,
    /// The note of the last backup, and the number of backups.
    saved: Mutex<(Vec<u8>, u64)>,
}

/// Number of bytes inserted each time.
const INSERTED: u64 = 1001;

/// Incompressible bytes.
fn byte_at(offset: u64) -> u8 {
    let mut state = (offset / 8).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state ^= state >> 29;
    state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (state >> (offset % 8 * 7)) as u8
}

impl GeneratedTree {
    /// Number of bytes inserted so far.
    fn inserted(&self) -> u64 {
        self.saved.lock().unwrap().1 * INSERTED
    }

    fn is_saved(&self) -> bool {
        self.inserted() > 0
    }

    fn now_len(&self) -> u64 {
        self.len + self.inserted()
    }
}

const FILE: NodeId = NodeId(2);

fn unused<T>() -> Result<T> {
    unreachable!("a backup of everything does not call this")
}

impl TreeService for GeneratedTree {
    fn status(&self) -> Result<TreeStatus> {
        Ok(TreeStatus {
            path: "/generated".into(),
            mounted_at: None,
            mode: None,
            tree: TreeId(7),
            epoch: Epoch(1),
            nodes: 2,
            open_nodes: 0,
            pid: 0,
            consumers: vec![ConsumerStatus {
                name: "consumer".to_owned(),
                mark: self.is_saved().then_some(Epoch(1)),
                note: self.saved.lock().unwrap().0.clone(),
                ..ConsumerStatus::default()
            }],
            ledger: Vec::new(),
            usage: byteback_oplog::Usage::default(),
            sync: None,
            damaged: Vec::new(),
            detached: None,
            volume_failure: None,
        })
    }

    fn resolve_pending(&self, _: &str, _: Option<Vec<u8>>) -> Result<()> {
        unused()
    }

    fn drop_consumer(&self, _: &str) -> Result<bool> {
        Ok(false)
    }

    fn cut(&self, _: &CutRequest) -> Result<CutInfo> {
        Ok(CutInfo {
            cut: CutId(1),
            tree: TreeId(7),
            epoch: Epoch(2),
            since: self.is_saved().then_some(Epoch(1)),
            nodes: 2,
            names: 1,
            content_bytes: self.now_len(),
            tree_nodes: 2,
            unreadable: Vec::new(),
        })
    }

    fn changes(&self, _: CutId, _: &ChangesCursor) -> Result<ChangesPage> {
        use byteback_model::NodeKind;
        let node = |node, kind, content| NodeChange {
            node,
            kind,
            content,
            is_new: !self.is_saved(),
        };
        Ok(ChangesPage {
            nodes: vec![
                node(NodeId::ROOT, NodeKind::Directory, ContentChange::Unchanged),
                node(FILE, NodeKind::File, ContentChange::Whole(WholeReason::NoMark)),
            ],
            names: vec![NameChange {
                parent: NodeId::ROOT,
                name: "file".into(),
                child: Some(FILE),
            }],
            next: None,
        })
    }

    fn attributes(&self, _: CutId, nodes: &[NodeId]) -> Result<Vec<Result<Attributes>>> {
        let of = |node: &NodeId| Attributes {
            kind: if *node == FILE {
                NodeKind::File
            } else {
                NodeKind::Directory
            },
            mode: 0o700,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            size: if *node == FILE { self.now_len() } else { 0 },
            mtime_ns: 0,
            rdev: 0,
            inode_flags: 0,
            target: None,
            xattrs: Vec::new(),
            user: None,
            group: None,
        };
        Ok(nodes.iter().map(|node| Ok(of(node))).collect())
    }

    fn peek(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        self.read(cut, node, ranges, sink)
    }

    fn read(
        &self,
        _: CutId,
        _: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        let inserted = self.inserted();
        for (offset, len) in ranges {
            let mut at = *offset;
            while at < offset + len {
                let now = usize::try_from(offset + len - at).unwrap().min(buffer.len());
                for (at, byte) in (at..).zip(&mut buffer[..now]) {
                    *byte = match at.checked_sub(self.len / 2) {
                        Some(behind) if behind < inserted => byte_at(!at),
                        Some(_) => byte_at(at - inserted),
                        _ => byte_at(at),
                    };
                }
                sink(Piece::Data {
                    offset: at,
                    bytes: &buffer[..now],
                })?;
                at += now as u64;
            }
        }
        Ok(())
    }

    fn path(&self, _: CutId, _: NodeId) -> Result<Option<ByteString>> {
        unused()
    }

    fn note_batch(&self, _: CutId, _: u64) -> Result<()> {
        Ok(())
    }

    fn finish(&self, _: CutId, outcome: &Outcome) -> Result<FinishReport> {
        if let Outcome::Saved { note, .. } = outcome {
            let mut saved = self.saved.lock().unwrap();
            *saved = (note.clone(), saved.1 + 1);
        }
        Ok(FinishReport::default())
    }

    fn unmount(&self) -> Result<()> {
        Err(ServiceError::new(
            byteback_control::ErrorKind::Protocol,
            "it is not mounted",
        ))
    }
}

/// A server in a directory, and a device of it with a folder.
fn served(dir: &Path) -> (ServerHandle, ServerClient, FolderName, u64) {
    let store = Store::open(dir.join("data"), StoreLimits::default()).unwrap();
    let config = ServerConfig {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        ..ServerConfig::default()
    };
    let server = Server::start(config, store.clone()).unwrap();
    let url = format!("http://{}", server.address());
    let token = store.create_join_token(60_000_000_000).unwrap();
    let joined = join(
        &url,
        &JoinRequest {
            join_token: token,
            name: "test".to_owned(),
            device_token: None,
        },
        ClientOptions::default(),
    )
    .unwrap();
    let client = ServerClient::new(&url, &joined.token, ClientOptions::default()).unwrap();
    let folder: FolderName = "home".parse().unwrap();
    client.create_folder(&folder).unwrap();
    (server, client, folder, joined.device_id)
}

/// Peaks of backup, restore and verification of a file of `len` bytes, and of backups that look for
/// an insertion in all ways.
fn peaks(len: u64) -> [usize; 7] {
    let temp = tempfile::tempdir().unwrap();
    let (server, client, folder, device) = served(temp.path());
    let mut options = BackupOptions::new("consumer", device);
    options.part_len_bytes = 1 << 20;
    let tree = GeneratedTree {
        len,
        saved: Mutex::default(),
    };
    let target = temp.path().join("target");
    let spec = SnapshotSpec::default();
    let backed_up = peak_of(|| {
        let report = backup(&tree, &client, &folder, &options, &Silent).unwrap();
        assert_eq!(report.literal_bytes, len);
    });
    let restored = peak_of(|| {
        let options = RestoreOptions::default();
        let report = restore(&client, &folder, spec, b"", &target, &options, &Silent).unwrap();
        assert!(report.is_complete() && report.written_bytes == len, "{report:?}");
    });
    let verified = peak_of(|| {
        let options = VerifyOptions {
            here: None,
            deep: Some(&target),
        };
        let report = verify(&client, &folder, spec, &options, &Silent).unwrap();
        assert!(report.is_clean() && report.compared_bytes == len, "{report:?}");
    });
    let examined = [
        DeltaChoice::Rsync,
        DeltaChoice::Hash,
        DeltaChoice::Webr,
        DeltaChoice::Cdc,
    ]
    .map(|choice| {
        options.delta = choice;
        peak_of(|| {
            let report = backup(&tree, &client, &folder, &options, &Silent).unwrap();
            assert_eq!((report.examined_files, report.everything_because), (1, None));
            let found = report.found_bytes * 100 / len;
            assert!(
                found >= if choice == DeltaChoice::Hash { 49 } else { 99 },
                "{choice:?}: {found}"
            );
        })
    });
    server.shutdown().unwrap();
    let [rsync, hash, webr, cdc] = examined;
    [backed_up, restored, verified, rsync, hash, webr, cdc]
}

#[test]
fn memory_does_not_grow_with_a_file() {
    let _alone = ALONE.lock().unwrap();
    const MIB: usize = 1 << 20;
    let short = peaks(16 << 20);
    let long = peaks(96 << 20);
    eprintln!("peaks in bytes: {short:?} for 16 MiB, {long:?} for 96 MiB");
    for (what, (short, long)) in ["backup", "restore", "verify", "rsync", "hash", "webr", "cdc"]
        .iter()
        .zip(short.iter().zip(long))
    {
        assert!(long < short + 3 * MIB, "{what}: {short} bytes grew to {long}");
        assert!(long < 24 * MIB, "{what}: {long} bytes");
    }
}

/// Peak of a restore of `count` files of some bytes.
fn peak_of_many(count: u64) -> usize {
    let temp = tempfile::tempdir().unwrap();
    let (server, client, folder, device) = served(temp.path());
    let source = temp.path().join("source");
    for number in 0..count {
        let dir = source.join(format!("d{}", number / 1000));
        if number % 1000 == 0 {
            std::fs::create_dir_all(&dir).unwrap();
        }
        std::fs::write(dir.join(format!("f{number}")), number.to_string()).unwrap();
    }
    push(&client, &folder, b"", &source, &PushOptions::new(device), &Silent).unwrap();
    let target = temp.path().join("target");
    let peak = peak_of(|| {
        let (spec, options) = (SnapshotSpec::default(), RestoreOptions::default());
        let report = restore(&client, &folder, spec, b"", &target, &options, &Silent).unwrap();
        assert!(report.is_complete() && report.files == count, "{report:?}");
    });
    server.shutdown().unwrap();
    peak
}

#[test]
fn restore_memory_does_not_grow_with_the_number_of_files() {
    let _alone = ALONE.lock().unwrap();
    // Files that wait for threads differ from run to run by a MiB and more, hence the least of two.
    let [few, many] = [6_000, 24_000].map(|count| peak_of_many(count).min(peak_of_many(count)));
    eprintln!("peaks in bytes: {few} for 6,000 files, {many} for 24,000");
    // A place for each file would be 190 bytes.
    assert!(many < few + 18_000 * 110, "{few} bytes grew to {many}");
}
