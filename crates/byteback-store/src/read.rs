//! Reads trees, nodes, extents and differences at any sequence number.
//!
//! Lists come in pages whose cursors are plain positions: the last name, the next offset, the last
//! changed name or node. History never changes, so that a list continues consistently in another
//! transaction.

use crate::catalog::{AttributeRow, CatalogRead, EntryRow, FolderRow};
use crate::error::StoreError;
use crate::layer::Literal;
use crate::numbers::{LayerNumber, NodeNumber};
use crate::paths::{path_in, path_of};
use crate::resolve::{Resolver, layer_rows};
use crate::store::{Store, existing_seq, folder_row};
use byteback_delta::Source;
use byteback_extents::ByteRange;
use byteback_model::{Attributes, ContentVersion, DeviceId, FileId, NAMES_COUNTED_MAX, NodeInfo, NodeKind, Seq};
use std::collections::HashMap;

/// Most pieces that a difference looks at per file before it reports the rest as changed. This
/// bounds the work, not the truth: the report is then a superset of the changes.
const DIFF_PIECES_MAX: u32 = 1_000_000;

/// Batches whose devices a page of differences remembers.
const DEVICES_MAX: usize = 10_000;

/// Most names of a node that are returned.
const PLACES_MAX: u32 = NAMES_COUNTED_MAX;

/// The node of a tree that is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeTarget {
    /// The root.
    Root,
    /// A node by its identity.
    Node(FileId),
    /// A path from the root; `/` separates. Leading, trailing and double slashes do not matter.
    /// Symlinks are not followed.
    Path(Vec<u8>),
}

/// A node and a page of its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreePage {
    /// The moment that was read.
    pub at: Seq,
    /// The node.
    pub node: NodeInfo,
    /// Names with their nodes; none unless the node is a directory.
    pub entries: Vec<(Vec<u8>, NodeInfo)>,
    /// Whether more entries follow the last one.
    pub more: bool,
}

/// A range of contents: stored bytes, or zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentExtent {
    /// Range in the contents.
    pub range: ByteRange,
    /// Whether the bytes are stored; otherwise they are zeros.
    pub is_data: bool,
}

/// A page of extents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentsPage {
    /// Length of the contents in bytes.
    pub size: u64,
    /// Ascending, without gaps.
    pub extents: Vec<ContentExtent>,
    /// Offset at which the next page begins.
    pub next_offset: Option<u64>,
}

/// A page of changed ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesPage {
    /// Length at the older moment in bytes; 0 when the node did not exist.
    pub size_from: u64,
    /// Length at the newer moment in bytes.
    pub size_to: u64,
    /// Ascending, not touching each other.
    pub ranges: Vec<ByteRange>,
    /// Offset at which the next page begins.
    pub next_offset: Option<u64>,
}

/// A difference between two sequence numbers; see `byteback-api`'s `DiffItem`, which it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in byteback-api")]
pub enum DiffItem {
    EntryAdded {
        parent: FileId,
        name: Vec<u8>,
        child: FileId,
        path: Option<Vec<u8>>,
    },
    EntryRemoved {
        parent: FileId,
        name: Vec<u8>,
        child: FileId,
        path: Option<Vec<u8>>,
    },
    NodeChanged {
        id: FileId,
        path: Option<Vec<u8>>,
        since: Seq,
        before: Option<Box<Attributes>>,
        after: Box<Attributes>,
        changed_bytes: u64,
        content_changed: bool,
    },
}

/// Position at which a difference continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiffCursor {
    /// After this name in this directory.
    Name(NodeNumber, Vec<u8>),
    /// After this node.
    Node(NodeNumber),
}

/// A page of differences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffPage {
    /// The newer sequence number.
    pub to: Seq,
    /// Names first, then nodes.
    pub changes: Vec<DiffItem>,
    /// Position at which the next page begins.
    pub next: Option<DiffCursor>,
}

/// A batch that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedBatch {
    /// Its sequence number.
    pub seq: Seq,
    /// The device that sent it.
    pub device: DeviceId,
    /// The device's number for it.
    pub counter: u64,
    /// Time of its creation, ns since the Unix epoch.
    pub created_ns: i64,
    /// The host that sent it.
    pub host: Vec<u8>,
}

impl Store {
    /// The first `limit` batches after a sequence number, in order.
    ///
    /// # Errors
    /// The folder or the sequence number does not exist; the catalog fails.
    pub fn batches(&self, folder: &str, after: Seq, limit: u32) -> Result<Vec<AppliedBatch>, StoreError> {
        let catalog = self.catalog().read()?;
        let folder = folder_row(&*catalog, folder)?;
        if after > folder.seq {
            return Err(StoreError::InvalidParameter(format!(
                "sequence number {after} is after the folder's newest, {}",
                folder.seq
            )));
        }
        let rows = catalog.batches_after(folder.id, after, limit)?;
        Ok(rows.into_iter().map(AppliedBatch::from).collect())
    }

    /// A node at a moment and a page of its entries after the name `after`.
    ///
    /// # Errors
    /// The folder, the moment or the node does not exist; the catalog fails.
    pub fn tree(
        &self,
        folder: &str,
        at: Option<Seq>,
        target: &TreeTarget,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<TreePage, StoreError> {
        let catalog = self.catalog().read()?;
        let catalog = &*catalog;
        let folder = folder_row(catalog, folder)?;
        let at = existing_seq(&folder, at)?;
        let node = match target {
            TreeTarget::Root => root_at(catalog, &folder, at)?,
            TreeTarget::Node(file) => node_number(catalog, &folder, *file)?,
            TreeTarget::Path(path) => walk(catalog, root_at(catalog, &folder, at)?, path, at)?,
        };
        let described = describe(catalog, &folder, node, at)?;
        let mut entries = Vec::new();
        let mut more = false;
        if described.attributes.kind == NodeKind::Directory {
            let mut rows = catalog.entries(node, at, after, limit.saturating_add(1))?;
            more = rows.len() > usize::try_from(limit).unwrap_or(usize::MAX);
            if more {
                rows.pop();
            }
            for row in rows {
                let child = describe(catalog, &folder, row.child, at)?;
                entries.push((row.name, child));
            }
        }
        Ok(TreePage {
            at,
            node: described,
            entries,
            more,
        })
    }

    /// A node at a moment.
    ///
    /// # Errors
    /// The folder, the moment or the node does not exist; the catalog fails.
    pub fn node(&self, folder: &str, file: FileId, at: Option<Seq>) -> Result<NodeInfo, StoreError> {
        let catalog = self.catalog().read()?;
        let folder = folder_row(&*catalog, folder)?;
        let at = existing_seq(&folder, at)?;
        let node = node_number(&*catalog, &folder, file)?;
        describe(&*catalog, &folder, node, at)
    }

    /// The names that a node has at a moment, with their directories, including directories that
    /// the root does not reach; only some if there are very many.
    ///
    /// # Errors
    /// The folder, the moment or the node does not exist; the catalog fails.
    pub fn places(&self, folder: &str, file: FileId, at: Option<Seq>) -> Result<Vec<(FileId, Vec<u8>)>, StoreError> {
        let catalog = self.catalog().read()?;
        let folder = folder_row(&*catalog, folder)?;
        let at = existing_seq(&folder, at)?;
        let node = node_number(&*catalog, &folder, file)?;
        let rows = catalog.parents(node, at, PLACES_MAX)?;
        let place = |row: EntryRow| Ok((catalog.file_id(row.parent)?, row.name));
        rows.into_iter().map(place).collect()
    }

    /// Data and holes of a file at a moment, from `offset` on.
    ///
    /// # Errors
    /// The folder, the moment or the file does not exist; the catalog fails.
    pub fn extents(
        &self,
        folder: &str,
        file: FileId,
        at: Option<Seq>,
        offset: u64,
        limit: u32,
    ) -> Result<ExtentsPage, StoreError> {
        let catalog = self.catalog().read()?;
        let catalog = &*catalog;
        let folder = folder_row(catalog, folder)?;
        let at = existing_seq(&folder, at)?;
        let (node, row) = file_at(catalog, &folder, file, at)?;
        let size = row.attributes.size;
        let rows = layer_rows(catalog, node, row.layer, LayerNumber::NONE)?;
        let mut resolver = Resolver::to_bottom(rows, ByteRange::new(offset, size));
        let mut page = Paged::new(limit);
        while let Some((range, source)) = resolver.next_piece(catalog)? {
            if page.push(range, matches!(source, Source::Literal(_))) {
                break;
            }
        }
        let (pieces, next_offset) = page.finish();
        let extents = pieces
            .into_iter()
            .map(|(range, is_data)| ContentExtent { range, is_data })
            .collect();
        Ok(ExtentsPage {
            size,
            extents,
            next_offset,
        })
    }

    /// Ranges of a file that were written in `(from, to]`, from `offset` on. `from` 0 is before the
    /// first batch.
    ///
    /// # Errors
    /// The folder, the moments or the file do not exist; the catalog fails.
    pub fn changes(
        &self,
        folder: &str,
        file: FileId,
        (from, to): (Seq, Option<Seq>),
        offset: u64,
        limit: u32,
    ) -> Result<ChangesPage, StoreError> {
        let catalog = self.catalog().read()?;
        let catalog = &*catalog;
        let folder = folder_row(catalog, folder)?;
        let to = existing_seq(&folder, to)?;
        check_order(from, to)?;
        let (node, newer) = file_at(catalog, &folder, file, to)?;
        let older = catalog.attributes(node, from)?;
        let size_to = newer.attributes.size;
        let after = older.as_ref().map_or(LayerNumber::NONE, |row| row.layer);
        let size_from = older.map_or(0, |row| row.attributes.size);
        let rows = layer_rows(catalog, node, newer.layer, after)?;
        let mut page = Paged::new(limit);
        // Without a layer between them the contents are the same.
        if newer.layer != after {
            let mut resolver = Resolver::to_base(rows, ByteRange::new(offset, size_to));
            let mut pieces = 0u32;
            while let Some((range, source)) = resolver.next_piece(catalog)? {
                pieces += 1;
                if !is_unchanged(range, &source) {
                    if page.push(range, true) {
                        break;
                    }
                } else if pieces > DIFF_PIECES_MAX {
                    // Enough work for one answer: the next page continues here.
                    page.stop_at(range.end(), size_to);
                    break;
                }
            }
        }
        let (pieces, next_offset) = page.finish();
        let ranges = pieces.into_iter().map(|(range, _)| range).collect();
        Ok(ChangesPage {
            size_from,
            size_to,
            ranges,
            next_offset,
        })
    }

    /// Differences of the tree in `(from, to]`. With `own`, only those that other devices made: the
    /// device's own changes count as known to it. So each name and each node is compared with its
    /// state after the device's newest change of it, if there is one in `(from, to]`.
    ///
    /// # Errors
    /// The folder or the moments do not exist; the catalog fails.
    pub fn diff(
        &self,
        folder: &str,
        (from, to): (Seq, Option<Seq>),
        own: Option<DeviceId>,
        cursor: Option<DiffCursor>,
        limit: u32,
    ) -> Result<DiffPage, StoreError> {
        let catalog = self.catalog().read()?;
        let catalog = &*catalog;
        let folder = folder_row(catalog, folder)?;
        let to = existing_seq(&folder, to)?;
        check_order(from, to)?;
        let mut diff = Diff {
            catalog,
            folder: &folder,
            from,
            to,
            own,
            devices: HashMap::new(),
            changes: Vec::new(),
        };
        let after_node = match cursor {
            Some(DiffCursor::Node(after)) => after,
            names => {
                let after = match &names {
                    Some(DiffCursor::Name(parent, name)) => Some((*parent, name.as_slice())),
                    _ => None,
                };
                let changed = catalog.changed_names(folder.id, from, to, after, limit)?;
                let full = changed.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
                let last = changed.last().cloned();
                for (parent, name) in changed {
                    diff.name(parent, &name)?;
                }
                if full && let Some((parent, name)) = last {
                    let changes = diff.changes;
                    return Ok(DiffPage {
                        to,
                        changes,
                        next: Some(DiffCursor::Name(parent, name)),
                    });
                }
                NodeNumber::START
            }
        };
        let changed = catalog.changed_nodes(folder.id, from, to, after_node, limit)?;
        let full = changed.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        let last = changed.last().copied();
        for node in changed {
            diff.node(node)?;
        }
        let next = last.filter(|_| full).map(DiffCursor::Node);
        Ok(DiffPage {
            to,
            changes: diff.changes,
            next,
        })
    }
}

struct Diff<'a> {
    catalog: &'a dyn CatalogRead,
    folder: &'a FolderRow,
    from: Seq,
    to: Seq,
    /// Device whose changes count as known.
    own: Option<DeviceId>,
    /// Devices of the batches looked up so far.
    devices: HashMap<Seq, DeviceId>,
    changes: Vec<DiffItem>,
}

impl Diff<'_> {
    /// Whether the change at this moment was made by the device that asks.
    fn is_own(&mut self, seq: Seq) -> Result<bool, StoreError> {
        let Some(own) = self.own else { return Ok(false) };
        if let Some(device) = self.devices.get(&seq) {
            return Ok(*device == own);
        }
        let batch = self.catalog.batch_by_seq(self.folder.id, seq)?;
        let batch = batch.ok_or_else(|| StoreError::CatalogDamaged(format!("batch {seq} is missing")))?;
        if self.devices.len() < DEVICES_MAX {
            self.devices.insert(seq, batch.device);
        }
        Ok(batch.device == own)
    }

    /// The moment whose state a name is compared with.
    fn name_since(&mut self, parent: NodeNumber, name: &[u8]) -> Result<Seq, StoreError> {
        let mut at = self.to;
        while self.own.is_some()
            && let Some(row) = self.catalog.newest_entry_at(parent, name, at)?
        {
            let changed = if row.to_seq <= at { row.to_seq } else { row.from_seq };
            if changed <= self.from {
                break;
            }
            if self.is_own(changed)? {
                return Ok(changed);
            }
            at = changed.saturating_sub(1);
        }
        Ok(self.from)
    }

    /// The moment whose state a node is compared with.
    fn node_since(&mut self, node: NodeNumber) -> Result<Seq, StoreError> {
        let mut at = self.to;
        while self.own.is_some()
            && let Some(row) = self.catalog.attributes(node, at)?
            && row.seq > self.from
        {
            if self.is_own(row.seq)? {
                return Ok(row.seq);
            }
            at = row.seq.saturating_sub(1);
        }
        Ok(self.from)
    }

    fn name(&mut self, parent: NodeNumber, name: &[u8]) -> Result<(), StoreError> {
        let since = self.name_since(parent, name)?;
        let before = self.catalog.entry(parent, name, since)?.map(|row| row.child);
        let after = self.catalog.entry(parent, name, self.to)?.map(|row| row.child);
        if before == after {
            return Ok(());
        }
        let directory = self.catalog.file_id(parent)?;
        if let Some(child) = before {
            let path = match self.root(since)? {
                Some(root) => path_in(self.catalog, root, parent, name, since)?,
                None => None,
            };
            let child = self.catalog.file_id(child)?;
            self.changes.push(DiffItem::EntryRemoved {
                parent: directory,
                name: name.to_vec(),
                child,
                path,
            });
        }
        if let Some(child) = after {
            let path = match self.root(self.to)? {
                Some(root) => path_in(self.catalog, root, parent, name, self.to)?,
                None => None,
            };
            let child = self.catalog.file_id(child)?;
            self.changes.push(DiffItem::EntryAdded {
                parent: directory,
                name: name.to_vec(),
                child,
                path,
            });
        }
        Ok(())
    }

    fn node(&mut self, node: NodeNumber) -> Result<(), StoreError> {
        let Some(after) = self.catalog.attributes(node, self.to)? else {
            return Ok(());
        };
        let since = self.node_since(node)?;
        let before = self.catalog.attributes(node, since)?;
        let before_layer = before.as_ref().map_or(LayerNumber::NONE, |row| row.layer);
        let content_changed = after.layer != before_layer;
        if !content_changed
            && before
                .as_ref()
                .is_some_and(|before| before.attributes == after.attributes)
        {
            return Ok(());
        }
        let changed_bytes = if content_changed {
            changed_bytes(self.catalog, node, &after, before_layer)?
        } else {
            0
        };
        let path = match self.root(self.to)? {
            Some(root) => path_of(self.catalog, root, node, self.to)?,
            None => None,
        };
        self.changes.push(DiffItem::NodeChanged {
            id: self.catalog.file_id(node)?,
            path,
            since,
            before: before.map(|row| Box::new(row.attributes)),
            after: Box::new(after.attributes),
            changed_bytes,
            content_changed,
        });
        Ok(())
    }

    fn root(&self, at: Seq) -> Result<Option<NodeNumber>, StoreError> {
        Ok(self.catalog.batch_by_seq(self.folder.id, at)?.map(|batch| batch.root))
    }
}

fn changed_bytes(
    catalog: &dyn CatalogRead,
    node: NodeNumber,
    newer: &AttributeRow,
    after_layer: LayerNumber,
) -> Result<u64, StoreError> {
    let size = newer.attributes.size;
    let rows = layer_rows(catalog, node, newer.layer, after_layer)?;
    let mut resolver = Resolver::to_base(rows, ByteRange::new(0, size));
    let mut changed = 0u64;
    let mut pieces = 0u32;
    while let Some((range, source)) = resolver.next_piece(catalog)? {
        if !is_unchanged(range, &source) {
            changed = changed.saturating_add(range.len_bytes());
        }
        pieces += 1;
        if pieces > DIFF_PIECES_MAX {
            return Ok(changed.saturating_add(size.saturating_sub(range.end())));
        }
    }
    Ok(changed)
}

fn is_unchanged(range: ByteRange, source: &Source<Literal>) -> bool {
    matches!(source, Source::Copy { base_offset } if *base_offset == range.start())
}

fn check_order(from: Seq, to: Seq) -> Result<(), StoreError> {
    if from > to {
        return Err(StoreError::InvalidParameter(format!(
            "'from' ({from}) must not be after 'to' ({to})"
        )));
    }
    Ok(())
}

/// Joins adjacent ranges of one kind and stops when there are enough.
struct Paged {
    limit: usize,
    pieces: Vec<(ByteRange, bool)>,
    next_offset: Option<u64>,
}

impl Paged {
    fn new(limit: u32) -> Self {
        Self {
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            pieces: Vec::new(),
            next_offset: None,
        }
    }

    /// Adds a range. Returns true when the page is full and the range belongs to the next one.
    fn push(&mut self, range: ByteRange, kind: bool) -> bool {
        if let Some((last, last_kind)) = self.pieces.last_mut()
            && *last_kind == kind
            && last.end() == range.start()
        {
            *last = last.hull(range);
            return false;
        }
        if self.pieces.len() >= self.limit {
            self.next_offset = Some(range.start());
            return true;
        }
        self.pieces.push((range, kind));
        false
    }

    fn stop_at(&mut self, offset: u64, size: u64) {
        self.next_offset = Some(offset).filter(|offset| *offset < size);
    }

    fn finish(self) -> (Vec<(ByteRange, bool)>, Option<u64>) {
        (self.pieces, self.next_offset)
    }
}

pub(crate) fn root_at(catalog: &dyn CatalogRead, folder: &FolderRow, at: Seq) -> Result<NodeNumber, StoreError> {
    let batch = catalog.batch_by_seq(folder.id, at)?;
    batch
        .map(|batch| batch.root)
        .ok_or_else(|| StoreError::CatalogDamaged(format!("batch {at} is missing")))
}

fn node_number(catalog: &dyn CatalogRead, folder: &FolderRow, file: FileId) -> Result<NodeNumber, StoreError> {
    let missing = || StoreError::NodeNotFound(format!("folder {:?} never had a node {file}", folder.name));
    catalog.node_number(folder.id, file)?.ok_or_else(missing)
}

/// A node and its attributes at a moment.
pub(crate) fn node_at(
    catalog: &dyn CatalogRead,
    folder: &FolderRow,
    file: FileId,
    at: Seq,
) -> Result<(NodeNumber, AttributeRow), StoreError> {
    let node = node_number(catalog, folder, file)?;
    let row = catalog
        .attributes(node, at)?
        .ok_or_else(|| StoreError::NodeNotFound(format!("node {file} did not exist at {at}")))?;
    Ok((node, row))
}

/// A regular file and its attributes at a moment.
pub(crate) fn file_at(
    catalog: &dyn CatalogRead,
    folder: &FolderRow,
    file: FileId,
    at: Seq,
) -> Result<(NodeNumber, AttributeRow), StoreError> {
    let (node, row) = node_at(catalog, folder, file, at)?;
    if row.attributes.kind != NodeKind::File {
        return Err(StoreError::InvalidParameter(format!(
            "node {file} is not a file and has no contents"
        )));
    }
    Ok((node, row))
}

fn walk(catalog: &dyn CatalogRead, root: NodeNumber, path: &[u8], at: Seq) -> Result<NodeNumber, StoreError> {
    let mut node = root;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        node = match catalog.entry(node, name, at)? {
            Some(entry) => entry.child,
            None => {
                let shown = String::from_utf8_lossy(path).into_owned();
                let name = String::from_utf8_lossy(name).into_owned();
                return Err(StoreError::NodeNotFound(format!(
                    "there is no {shown:?} at sequence number {at}: {name:?} does not exist there"
                )));
            }
        };
    }
    Ok(node)
}

pub(crate) fn describe(
    catalog: &dyn CatalogRead,
    folder: &FolderRow,
    node: NodeNumber,
    at: Seq,
) -> Result<NodeInfo, StoreError> {
    let id = catalog.file_id(node)?;
    let row = catalog
        .attributes(node, at)?
        .ok_or_else(|| StoreError::NodeNotFound(format!("node {id} did not exist at {at}")))?;
    let content = if row.layer == LayerNumber::NONE {
        None
    } else {
        let batch = catalog
            .batch_by_seq(folder.id, row.content_seq)?
            .ok_or_else(|| StoreError::CatalogDamaged(format!("batch {} is missing", row.content_seq)))?;
        Some(ContentVersion {
            seq: batch.seq,
            device: batch.device,
            counter: batch.counter,
        })
    };
    let names = match row.attributes.kind {
        // Nearly all files have one name, and looking for a second costs as much as finding the
        // first.
        NodeKind::File if catalog.parents(node, at, 2)?.len() > 1 => {
            let names = catalog.parents(node, at, NAMES_COUNTED_MAX)?.len();
            Some(u32::try_from(names).unwrap_or(NAMES_COUNTED_MAX))
        }
        _ => None,
    };
    Ok(NodeInfo {
        id,
        seq: row.seq,
        attributes: row.attributes,
        content,
        names,
        places: None,
    })
}
