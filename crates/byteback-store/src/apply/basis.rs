//! The state that a batch is based on, and whether another device changed it first.
//!
//! A batch that *follows* another one of its device ([`Manifest::follows`]) is based on the state
//! that the earlier one left: the device's own changes since `base_seq` are no conflict. Because no
//! other device changed the nodes of this batch, that state is still there, even below newer
//! batches of others (except for the time of a directory, on which nothing is based). So the basis
//! of a batch is one moment of the past ([`Basis`]), which `prove` can read before the transaction.

use crate::catalog::{AttributeRow, BatchCondition, BatchKey, BatchRow, CatalogRead, FolderRow, OPEN};
use crate::error::StoreError;
use crate::model::Conflict;
use crate::numbers::{FolderNumber, NodeNumber};
use crate::paths::path_of;
use byteback_model::{FileId, Manifest, NodeKind, Seq};

use super::invalid;

/// The conflict over a node that another device changed first.
pub(crate) fn conflict(
    catalog: &dyn CatalogRead,
    folder: &FolderRow,
    node: NodeNumber,
    changed: Seq,
) -> Result<Conflict, StoreError> {
    let path = match folder.root {
        Some(root) => path_of(catalog, root, node, folder.seq)?,
        None => None,
    };
    Ok(Conflict {
        id: catalog.file_id(node)?,
        path,
        seq: changed,
    })
}

/// The state that a batch is based on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Basis {
    /// The moment whose contents its deltas are laid over; `None`: it is based on nothing.
    pub(crate) seq: Option<Seq>,
    /// The device and the batch's `base_seq`, if the device's own changes since then do not
    /// conflict with the batch.
    own: Option<(u64, Seq)>,
}

impl Basis {
    /// Whether the change at a sequence number was made by the device itself and so does not
    /// conflict with the batch.
    pub(super) fn is_own(
        &self,
        catalog: &dyn CatalogRead,
        folder: FolderNumber,
        changed: Seq,
    ) -> Result<bool, StoreError> {
        let Some((own, _)) = self.own else { return Ok(false) };
        let batch = catalog.batch_by_seq(folder, changed)?;
        Ok(batch.is_some_and(|batch| batch.device == own))
    }

    /// Whether another device changed contents between `base_seq` and the moment that the batch is
    /// based on, so that they are not the contents that its sender means.
    ///
    /// # Errors
    /// The catalog fails.
    pub(crate) fn is_overtaken(
        &self,
        catalog: &dyn CatalogRead,
        folder: FolderNumber,
        contents: &AttributeRow,
    ) -> Result<bool, StoreError> {
        let is_later = self.own.is_some_and(|(_, base_seq)| contents.content_seq > base_seq);
        Ok(is_later && !self.is_own(catalog, folder, contents.content_seq)?)
    }

    /// Derives the basis of a batch from its manifest.
    ///
    /// # Errors
    /// The manifest contradicts itself; the batch comes out of order; the catalog fails.
    pub(crate) fn of(catalog: &dyn CatalogRead, folder: FolderNumber, manifest: &Manifest) -> Result<Self, StoreError> {
        let (base_seq, follows) = match (manifest.base_seq, manifest.replaces, manifest.follows) {
            (Some(base_seq), None, Some(follows)) => (base_seq, follows),
            (Some(_), Some(_), _) => return invalid("a batch can follow a sequence number or replace one, not both"),
            (None, _, Some(_)) => return invalid("a batch that follows another one needs a base_seq"),
            (seq @ Some(_), None, None) | (None, seq, None) => return Ok(Self { seq, own: None }),
        };
        let key = BatchKey {
            folder,
            device: manifest.device,
            counter: follows,
        };
        let followed = catalog.batch_by_key(key)?;
        match followed {
            Some(row) if is_newest(catalog, folder, &row)? => Ok(Self {
                seq: Some(row.seq.max(base_seq)),
                own: Some((manifest.device, base_seq)),
            }),
            followed => Err(StoreError::OutOfOrder {
                follows,
                is_applied: followed.is_some(),
            }),
        }
    }
}

/// Whether no newer batch is of the same device.
fn is_newest(catalog: &dyn CatalogRead, folder: FolderNumber, batch: &BatchRow) -> Result<bool, StoreError> {
    let newer = batch.seq.saturating_add(1)..=OPEN;
    let of_device = BatchCondition::OfDevice(batch.device);
    Ok(catalog.newest_batch(folder, newer, of_device)?.is_none())
}

/// The node of a file whose contents are to be shared, and its attributes at that moment.
pub(crate) fn file_with_contents(
    catalog: &dyn CatalogRead,
    folder: FolderNumber,
    file: FileId,
    at: Option<Seq>,
) -> Result<(NodeNumber, AttributeRow), StoreError> {
    let Some(at) = at else {
        return invalid("contents can be shared with another file only at a sequence number of the folder");
    };
    let node = catalog.node_number(folder, file)?;
    let row = match node {
        Some(node) => catalog.attributes(node, at)?,
        None => None,
    };
    match node.zip(row) {
        Some((node, row)) if row.attributes.kind == NodeKind::File => Ok((node, row)),
        _ => invalid(&format!(
            "contents are based on those of file {file}, which the folder does not have at {at}"
        )),
    }
}
