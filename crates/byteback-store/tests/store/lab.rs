//! A store over a simulated disk for segments, a simulated clock, and a catalog in a real SQLite
//! file or in memory; and short builders for batches.
//!
//! A catalog in memory loses its power with the disk, so that a cut takes both.

use crate::memory::MemoryCatalog;
use byteback_delta::{DeltaWriter, WriterOptions};
use byteback_extents::ByteRange;
use byteback_host::clock::SimClock;
use byteback_host::random::SimRandomness;
use byteback_host::sim::SimDisk;
use byteback_model::{
    Attributes, BatchApplied, ContentBase, ContentChange, FileId, Manifest, NameChange, NodeKind, NodeRecord, Totals,
};
use byteback_store::catalog::{Catalog, CatalogRead, CatalogWork, CatalogWrite, SqliteCatalog};
use byteback_store::model::Proof;
use byteback_store::numbers::SegmentNumber;
use byteback_store::segments::{FrameRef, SegmentFiles, SegmentInfo, SegmentWriter, Segments};
use byteback_store::stage::PartWriter;
use byteback_store::{Store, StoreError, StoreLimits, StoreParts};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

pub(crate) const ROOT: FileId = FileId(1);

pub(crate) struct Lab {
    pub(crate) dir: Arc<tempfile::TempDir>,
    pub(crate) disk: SimDisk,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) catalog: LabCatalog,
    pub(crate) frames: Arc<CountedSegments>,
    pub(crate) store: Store,
    pub(crate) device: u64,
    segment_len: u64,
    limits: StoreLimits,
}

/// A catalog of either kind. Calls for the other kind panic.
#[derive(Clone, Debug)]
pub(crate) enum LabCatalog {
    Sqlite(Arc<SqliteCatalog>),
    Memory(Arc<MemoryCatalog>),
}

impl LabCatalog {
    fn in_file(path: &Path) -> Self {
        let catalog = SqliteCatalog::open(path.join("catalog.sqlite")).unwrap();
        Self::Sqlite(Arc::new(catalog))
    }

    fn in_memory(disk: &SimDisk) -> Self {
        Self::Memory(Arc::new(MemoryCatalog::new(disk.clone())))
    }

    fn sqlite(&self) -> &SqliteCatalog {
        match self {
            Self::Sqlite(catalog) => catalog,
            Self::Memory(_) => panic!("this test needs the catalog in a file"),
        }
    }

    pub(crate) fn memory(&self) -> &MemoryCatalog {
        match self {
            Self::Sqlite(_) => panic!("this test needs the catalog in memory"),
            Self::Memory(catalog) => catalog,
        }
    }

    pub(crate) fn work(&self) -> CatalogWork {
        self.sqlite().work()
    }

    pub(crate) fn limit_len(&self, len_bytes: u64) -> Result<(), StoreError> {
        self.sqlite().limit_len(len_bytes)
    }
}

impl Catalog for LabCatalog {
    fn read(&self) -> Result<Box<dyn CatalogRead + '_>, StoreError> {
        match self {
            Self::Sqlite(catalog) => catalog.read(),
            Self::Memory(catalog) => catalog.read(),
        }
    }

    fn write(&self) -> Result<Box<dyn CatalogWrite + '_>, StoreError> {
        match self {
            Self::Sqlite(catalog) => catalog.write(),
            Self::Memory(catalog) => catalog.write(),
        }
    }
}

/// Segments that count how often each of their frames is read.
#[derive(Debug)]
pub(crate) struct CountedSegments {
    inner: SegmentFiles,
    reads: Mutex<Vec<FrameRef>>,
}

impl CountedSegments {
    /// The frames that were read since the last call, and how often.
    pub(crate) fn take(&self) -> BTreeMap<FrameRef, u32> {
        let mut counts = BTreeMap::new();
        for frame in self.take_in_order() {
            *counts.entry(frame).or_default() += 1;
        }
        counts
    }

    /// The frames that were read since the last call, in this order.
    pub(crate) fn take_in_order(&self) -> Vec<FrameRef> {
        std::mem::take(&mut self.reads.lock().unwrap())
    }
}

impl Segments for CountedSegments {
    fn writer(&self) -> Box<dyn SegmentWriter> {
        self.inner.writer()
    }

    fn read(&self, frame: &FrameRef, stored: &mut Vec<u8>) -> Result<(), StoreError> {
        self.reads.lock().unwrap().push(*frame);
        self.inner.read(frame, stored)
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

fn open(
    catalog: &LabCatalog,
    disk: &SimDisk,
    clock: &Arc<SimClock>,
    segment_len: u64,
    limits: StoreLimits,
) -> Result<(Arc<CountedSegments>, Store), StoreError> {
    let used = catalog.read()?.segment_id_max()?;
    let segments = Arc::new(CountedSegments {
        inner: SegmentFiles::with_len_max(Arc::new(disk.clone()), used, segment_len)?,
        reads: Mutex::default(),
    });
    let store = Store::from_parts(StoreParts {
        catalog: Arc::new(catalog.clone()),
        segments: segments.clone(),
        clock: clock.clone(),
        randomness: Arc::new(SimRandomness::new(7)),
        limits,
    })?;
    Ok((segments, store))
}

impl Lab {
    pub(crate) fn new(segment_len: u64) -> Self {
        Self::on(SimDisk::new(1), segment_len)
    }

    pub(crate) fn on(disk: SimDisk, segment_len: u64) -> Self {
        Self::with(disk, segment_len, StoreLimits::default())
    }

    pub(crate) fn with(disk: SimDisk, segment_len: u64, limits: StoreLimits) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let catalog = LabCatalog::in_file(dir.path());
        Self::begin(dir, disk, catalog, segment_len, limits)
    }

    /// A lab whose catalog is in memory and shares the power of `disk`.
    pub(crate) fn in_memory(disk: SimDisk, segment_len: u64) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let catalog = LabCatalog::in_memory(&disk);
        Self::begin(dir, disk, catalog, segment_len, StoreLimits::default())
    }

    fn begin(
        dir: Arc<tempfile::TempDir>,
        disk: SimDisk,
        catalog: LabCatalog,
        segment_len: u64,
        limits: StoreLimits,
    ) -> Self {
        let clock = Arc::new(SimClock::new(1_000_000));
        let (frames, store) = open(&catalog, &disk, &clock, segment_len, limits).unwrap();
        store.create_folder("f").unwrap();
        let token = store.create_join_token(i64::MAX / 2).unwrap();
        let device = store.roster().join(&token, "lab", None).unwrap().device;
        Self {
            dir,
            disk,
            clock,
            catalog,
            frames,
            store,
            device,
            segment_len,
            limits,
        }
    }

    /// Closes the store and opens it on `disk`.
    pub(crate) fn reopen(self, disk: SimDisk) -> Self {
        let Self {
            dir,
            clock,
            catalog,
            frames,
            store,
            device,
            segment_len,
            limits,
            ..
        } = self;
        drop((store, frames));
        let catalog = match catalog {
            LabCatalog::Sqlite(catalog) => {
                drop(catalog);
                LabCatalog::in_file(dir.path())
            }
            LabCatalog::Memory(catalog) => LabCatalog::Memory(Arc::new(catalog.restart(disk.clone()))),
        };
        let (frames, store) = open(&catalog, &disk, &clock, segment_len, limits).unwrap();
        Self {
            dir,
            disk,
            clock,
            catalog,
            frames,
            store,
            device,
            segment_len,
            limits,
        }
    }

    /// The machine after a power cut: one of the disks that it may find, and the catalog as it was
    /// committed. The store is opened on them.
    pub(crate) fn survivor(&self, disk: SimDisk) -> Self {
        let catalog = LabCatalog::Memory(Arc::new(self.catalog.memory().restart(disk.clone())));
        let (frames, store) = open(&catalog, &disk, &self.clock, self.segment_len, self.limits).unwrap();
        Self {
            dir: self.dir.clone(),
            disk,
            clock: self.clock.clone(),
            catalog,
            frames,
            store,
            ..*self
        }
    }

    pub(crate) fn part(&self, counter: u64) -> PartWriter {
        self.store.begin_part("f", self.device, counter).unwrap()
    }

    pub(crate) fn manifest(&self, counter: u64, base_seq: Option<u64>) -> Manifest {
        Manifest {
            device: self.device,
            counter,
            base_seq,
            replaces: None,
            follows: None,
            root: ROOT,
            created_ns: 0,
            host: vec![].into(),
            path: vec![].into(),
            snapshot: None,
        }
    }

    pub(crate) fn send(&self, counter: u64, base_seq: Option<u64>, batch: &Batch) -> Result<BatchApplied, StoreError> {
        let mut part = self.part(counter);
        part.manifest(self.manifest(counter, base_seq))?;
        batch.feed(&mut part)?;
        self.store.commit(part, 0)
    }

    /// Sends a batch that holds the whole tree and replaces the folder as of a sequence number.
    pub(crate) fn replace(&self, counter: u64, replaces: u64, batch: &Batch) -> Result<BatchApplied, StoreError> {
        let mut part = self.part(counter);
        part.manifest(Manifest {
            replaces: Some(replaces),
            ..self.manifest(counter, None)
        })?;
        batch.feed(&mut part)?;
        self.store.commit(part, 0)
    }

    /// The first batch: a root with these files.
    pub(crate) fn first(&self, files: &[(u128, &[u8])]) -> BatchApplied {
        let mut batch = Batch::default().node(ROOT, NodeKind::Directory, 0, None);
        for (id, bytes) in files {
            batch = batch.new_file(*id, format!("file{id}").as_bytes(), bytes);
        }
        self.send(1, None, &batch).unwrap()
    }

    pub(crate) fn read(&self, id: u128, seq: u64) -> Result<Vec<u8>, StoreError> {
        self.read_range(id, seq, None)
    }

    pub(crate) fn read_range(&self, id: u128, seq: u64, range: Option<ByteRange>) -> Result<Vec<u8>, StoreError> {
        let mut reader = self.store.content("f", FileId(id), Some(seq), range)?;
        let mut all = Vec::new();
        let mut chunk = Vec::new();
        loop {
            reader.next_chunk(&mut chunk, 70_000)?;
            if chunk.is_empty() {
                return Ok(all);
            }
            all.extend_from_slice(&chunk);
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Batch {
    pub(crate) nodes: Vec<NodeRecord>,
    pub(crate) entries: Vec<NameChange<FileId>>,
    pub(crate) deltas: Vec<(FileId, Vec<u8>)>,
    pub(crate) proofs: Vec<(FileId, Proof)>,
    /// Times of directories, ns.
    pub(crate) times: Vec<(FileId, i128)>,
    pub(crate) totals: Option<Totals>,
}

/// Attributes of an ordinary node.
pub(crate) fn attributes(kind: NodeKind, size: u64) -> Attributes {
    Attributes {
        kind,
        mode: 0o600,
        uid: 0,
        gid: 0,
        size,
        mtime_ns: 0,
        rdev: 0,
        inode_flags: 0,
        target: None,
        xattrs: vec![],
        user: None,
        group: None,
    }
}

impl Batch {
    pub(crate) fn node(mut self, id: FileId, kind: NodeKind, size: u64, content: Option<ContentChange>) -> Self {
        let attributes = attributes(kind, size);
        self.nodes.push(NodeRecord {
            id,
            attributes,
            content,
        });
        self
    }

    pub(crate) fn file(self, id: u128, size: u64, deltas: u32, base: ContentBase) -> Self {
        self.node(FileId(id), NodeKind::File, size, Some(ContentChange { deltas, base }))
    }

    pub(crate) fn entry(mut self, parent: FileId, name: &[u8], child: Option<u128>) -> Self {
        self.entries.push(NameChange {
            parent,
            name: name.to_vec().into(),
            child: child.map(FileId),
        });
        self
    }

    pub(crate) fn delta(mut self, id: u128, stream: Vec<u8>) -> Self {
        self.deltas.push((FileId(id), stream));
        self
    }

    pub(crate) fn time(mut self, id: FileId, mtime_ns: i128) -> Self {
        self.times.push((id, mtime_ns));
        self
    }

    pub(crate) fn proof(mut self, id: u128, proof: Proof) -> Self {
        self.proofs.push((FileId(id), proof));
        self
    }

    pub(crate) fn new_file(self, id: u128, name: &[u8], bytes: &[u8]) -> Self {
        let len = bytes.len() as u64;
        self.file(id, len, 1, ContentBase::Empty)
            .entry(ROOT, name, Some(id))
            .delta(id, patch(0, len, &[(0, bytes)]))
    }

    /// Overwrites places of a file of `len` bytes.
    pub(crate) fn patch(self, id: u128, len: u64, places: &[(u64, &[u8])]) -> Self {
        self.file(id, len, 1, ContentBase::Previous)
            .delta(id, patch(len, len, places))
    }

    /// A new file with the contents of another one, overwritten in places; `len` bytes before and
    /// after.
    pub(crate) fn following(self, id: u128, name: &[u8], of: u128, len: u64, places: &[(u64, &[u8])]) -> Self {
        let batch = self
            .file(id, len, u32::from(!places.is_empty()), ContentBase::Of(FileId(of)))
            .entry(ROOT, name, Some(id));
        match places {
            [] => batch,
            _ => batch.delta(id, patch(len, len, places)),
        }
    }

    pub(crate) fn feed(&self, part: &mut PartWriter) -> Result<(), StoreError> {
        for node in &self.nodes {
            part.node(node.clone())?;
        }
        for entry in &self.entries {
            part.entry(entry.clone())?;
        }
        for (file, stream) in &self.deltas {
            part.delta(*file, &stream[..])?;
        }
        for (file, proof) in &self.proofs {
            part.proof(*file, proof.clone())?;
        }
        for (directory, mtime_ns) in &self.times {
            part.directory_time(*directory, *mtime_ns)?;
        }
        part.end(self.totals.unwrap_or(Totals {
            nodes: self.nodes.len() as u64,
            entries: self.entries.len() as u64,
            deltas: self.deltas.len() as u64,
            proofs: self.proofs.len() as u64,
            directory_times: self.times.len() as u64,
        }))
    }
}

/// A delta stream of literals; it is compressed, so tests of sizes use noise.
pub(crate) fn patch(base_len: u64, new_len: u64, places: &[(u64, &[u8])]) -> Vec<u8> {
    let mut writer = DeltaWriter::new(Vec::new(), base_len, new_len, WriterOptions::default()).unwrap();
    for (at, bytes) in places {
        if let Some(range) = ByteRange::from_offset_len(*at, bytes.len() as u64) {
            writer.literal(range, *bytes).unwrap();
        }
    }
    writer.finish().unwrap().0
}
