//! The store as a whole: its parts, how it is opened, and its folders and snapshots.
//!
//! Data directory: `catalog.sqlite` (with SQLite's `-wal` and `-shm`), `segments/`, `lock`. Opening
//! takes the lock, opens the catalog, begins a new segment for new frames and removes unreferenced
//! segments.

use crate::catalog::{Catalog, CatalogRead, FolderRow, SqliteCatalog};
use crate::error::StoreError;
use crate::model::Folder;
use crate::segments::{SegmentFiles, Segments};
use crate::sums::{SumsCost, SumsWork};
use byteback_host::clock::{Clock, RealClock};
use byteback_host::durable::{DirLock, DurableDir, RealDir};
use byteback_host::random::{Randomness, RealRandomness};
use byteback_model::{Seq, Snapshot, SnapshotLabel};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Limits of the store, so that no client can exhaust it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// Parts of one batch.
    pub parts_max: u32,
    /// Records of one batch.
    pub records_max: u64,
    /// Bytes of one xattr's value.
    pub xattr_value_len_max: usize,
    /// Bytes of all names and values of one node's xattrs.
    pub xattrs_len_max: usize,
    /// Time for which staged parts wait for the next part of their batch or its commit, in ns: an
    /// upload may take days as long as it continues.
    pub staged_expiry_ns: i64,
    /// Longest content that is read and hashed as a whole, for its signature or for a proof, in
    /// bytes.
    pub hashed_len_max: u64,
    /// Most pieces of contents that are defragmented; contents of more are left as they are.
    pub defragmented_pieces_max: u64,
    /// Bytes of the catalog for kept checksums, which save reading contents for signatures and
    /// proofs; about a hundredth of the contents. 0 keeps none.
    pub sums_len_max: u64,
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self {
            // At 16 MiB each: 16 TiB.
            parts_max: 1 << 20,
            records_max: 20_000_000,
            xattr_value_len_max: 64 * 1024,
            xattrs_len_max: 1024 * 1024,
            staged_expiry_ns: 24 * 3600 * 1_000_000_000,
            hashed_len_max: 1 << 40,
            // 4 GiB, if every page lies elsewhere.
            defragmented_pieces_max: 1 << 20,
            sums_len_max: 1 << 30,
        }
    }
}

/// The parts of a store; tests use others.
#[derive(Clone)]
pub struct StoreParts {
    /// Storage of rows.
    pub catalog: Arc<dyn Catalog>,
    /// Storage of literals.
    pub segments: Arc<dyn Segments>,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
    /// Source of tokens and signature keys.
    pub randomness: Arc<dyn Randomness>,
    /// The store's limits.
    pub limits: StoreLimits,
}

impl std::fmt::Debug for StoreParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreParts")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// A store. Clones share its state.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) parts: Arc<StoreParts>,
    pub(crate) sums_work: Arc<SumsWork>,
    /// Held while files are defragmented.
    pub(crate) defragmenting: Arc<Mutex<()>>,
    // Held while any clone lives.
    _lock: Option<Arc<DirLock>>,
}

impl Store {
    /// Opens the store in the directory `path`, or creates it.
    ///
    /// # Errors
    /// `InUse` when another process has it open; the catalog is of a newer program; the system
    /// failed.
    pub fn open(path: impl AsRef<Path>, limits: StoreLimits) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let dir = RealDir::create(path).map_err(|e| StoreError::io("create the data directory", e))?;
        let lock = dir.lock().map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => StoreError::InUse(e),
            _ => StoreError::io("lock the data directory", e),
        })?;
        let segments_dir = dir
            .subdir("segments")
            .map_err(|e| StoreError::io("create the segments directory", e))?;
        let catalog = SqliteCatalog::open(path.join("catalog.sqlite"))?;
        // The names of the catalog, of `segments` and of the directory itself must survive before
        // anything is acknowledged; SQLite syncs the directory for its log, not for everything.
        dir.sync().map_err(|e| StoreError::io("sync the data directory", e))?;
        let used = catalog.read()?.segment_id_max()?;
        let parts = StoreParts {
            catalog: Arc::new(catalog),
            segments: Arc::new(SegmentFiles::open(segments_dir, used)?),
            clock: Arc::new(RealClock),
            randomness: Arc::new(RealRandomness),
            limits,
        };
        let mut store = Self::from_parts(parts)?;
        store._lock = Some(Arc::new(lock));
        Ok(store)
    }

    /// Builds a store from these parts; removes what nothing refers to.
    ///
    /// # Errors
    /// The catalog or the segments fail.
    pub fn from_parts(parts: StoreParts) -> Result<Self, StoreError> {
        let store = Self {
            parts: Arc::new(parts),
            sums_work: Arc::default(),
            defragmenting: Arc::default(),
            _lock: None,
        };
        store.collect()?;
        Ok(store)
    }

    /// Cost of signatures and proofs since the store was opened.
    #[must_use]
    pub fn sums_cost(&self) -> SumsCost {
        self.sums_work.cost()
    }

    pub(crate) fn catalog(&self) -> &dyn Catalog {
        &*self.parts.catalog
    }

    /// All folders, by name.
    ///
    /// # Errors
    /// The catalog fails.
    pub fn folders(&self) -> Result<Vec<Folder>, StoreError> {
        let catalog = self.catalog().read()?;
        let folders = catalog.folders()?;
        folders.into_iter().map(|row| describe(&*catalog, row)).collect()
    }

    /// A folder.
    ///
    /// # Errors
    /// There is no folder of this name; the catalog fails.
    pub fn folder(&self, name: &str) -> Result<Folder, StoreError> {
        let catalog = self.catalog().read()?;
        let row = folder_row(&*catalog, name)?;
        describe(&*catalog, row)
    }

    /// Creates a folder unless it exists; returns it and whether it is new. The caller has checked
    /// the name.
    ///
    /// # Errors
    /// The catalog fails.
    pub fn create_folder(&self, name: &str) -> Result<(Folder, bool), StoreError> {
        let catalog = self.catalog().write()?;
        if let Some(row) = catalog.folder(name)? {
            return Ok((describe(&*catalog, row)?, false));
        }
        let folder = catalog
            .insert_folder(name, self.parts.clock.now_ns())?
            .into_folder(None);
        catalog.commit()?;
        Ok((folder, true))
    }

    /// A page of snapshots, by number, after `after`.
    ///
    /// # Errors
    /// There is no such folder; the catalog fails.
    pub fn snapshots(&self, folder: &str, after: u64, limit: u32) -> Result<Vec<Snapshot>, StoreError> {
        let catalog = self.catalog().read()?;
        let row = folder_row(&*catalog, folder)?;
        catalog.snapshots(row.id, after, limit)
    }

    /// Names a sequence number, by default the newest.
    ///
    /// # Errors
    /// There is no such folder or sequence number; the catalog fails.
    pub fn create_snapshot(
        &self,
        folder: &str,
        seq: Option<Seq>,
        label: SnapshotLabel,
    ) -> Result<Snapshot, StoreError> {
        let catalog = self.catalog().write()?;
        let mut row = folder_row(&*catalog, folder)?;
        let seq = existing_seq(&row, seq)?;
        let id = catalog.insert_snapshot(row.id, seq, &label)?;
        row.snapshots = row.snapshots.saturating_add(1);
        catalog.update_folder(&row)?;
        catalog.commit()?;
        Ok(Snapshot { id, seq, label })
    }

    /// Removes a snapshot. The moment that it named stays readable by its sequence number until it
    /// is pruned.
    ///
    /// # Errors
    /// There is no such folder or snapshot; the catalog fails.
    pub fn delete_snapshot(&self, folder: &str, id: u64) -> Result<(), StoreError> {
        let catalog = self.catalog().write()?;
        let mut row = folder_row(&*catalog, folder)?;
        if !catalog.delete_snapshot(row.id, id)? {
            return Err(StoreError::SnapshotNotFound {
                folder: folder.to_owned(),
                id,
            });
        }
        row.snapshots = row.snapshots.saturating_sub(1);
        catalog.update_folder(&row)?;
        catalog.commit()
    }
}

fn describe(catalog: &dyn CatalogRead, row: FolderRow) -> Result<Folder, StoreError> {
    let root = row.root.map(|root| catalog.file_id(root)).transpose()?;
    Ok(row.into_folder(root))
}

pub(crate) fn folder_row(catalog: &dyn CatalogRead, name: &str) -> Result<FolderRow, StoreError> {
    catalog
        .folder(name)?
        .ok_or_else(|| StoreError::FolderNotFound(name.to_owned()))
}

/// The given sequence number, or the newest; there must be one.
pub(crate) fn existing_seq(folder: &FolderRow, seq: Option<Seq>) -> Result<Seq, StoreError> {
    let seq = seq.unwrap_or(folder.seq);
    if folder.seq == 0 {
        return Err(StoreError::NodeNotFound(format!("folder {:?} is empty", folder.name)));
    }
    if seq == 0 || seq > folder.seq {
        let message = format!(
            "folder {:?} has no sequence number {seq}, only 1 to {}",
            folder.name, folder.seq
        );
        return Err(StoreError::InvalidParameter(message));
    }
    Ok(seq)
}
