//! What a batch stands on, and whether somebody else came first.
//!
//! A batch that *follows* another one of its device ([`Manifest::follows`]) stands on what that one
//! left: what the device did itself since `base_seq` is no conflict. Because nobody else changed
//! what this batch is about, what that one left is still there, be there newer batches of others
//! (the time of a directory aside, on which nothing stands). So what a batch stands on is one
//! moment of the past ([`Basis`]), which `prove` can look at before the transaction.

use crate::catalog::{AttributeRow, BatchKey, CatalogRead, FolderRow};
use crate::error::StoreError;
use crate::model::Conflict;
use crate::paths::path_of;
use byteback_model::{FileId, Manifest, NodeKind, Seq};

use super::invalid;

/// A node that somebody else changed first.
pub(crate) fn conflict(
    catalog: &dyn CatalogRead,
    folder: &FolderRow,
    node: i64,
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

/// What a batch stands on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Basis {
    /// The moment whose contents its deltas are laid over; `None`: it stands on nothing.
    pub(crate) seq: Option<Seq>,
    /// The device and the batch's `base_seq`, if what the device did since then is in no conflict
    /// with the batch.
    own: Option<(u64, Seq)>,
}

impl Basis {
    /// Whether what happened at a sequence number was the device's own doing, and is in no conflict
    /// with the batch.
    pub(super) fn is_own(&self, catalog: &dyn CatalogRead, folder: i64, changed: Seq) -> Result<bool, StoreError> {
        let Some((own, _)) = self.own else { return Ok(false) };
        let batch = catalog.batch_by_seq(folder, changed)?;
        Ok(batch.is_some_and(|batch| batch.device == own))
    }

    /// Whether somebody else changed contents between `base_seq` and the moment that the batch
    /// stands on, so that these are not the ones that its sender means.
    ///
    /// # Errors
    /// The catalog fails.
    pub(crate) fn is_overtaken(
        &self,
        catalog: &dyn CatalogRead,
        folder: i64,
        contents: &AttributeRow,
    ) -> Result<bool, StoreError> {
        let is_later = self.own.is_some_and(|(_, base_seq)| contents.content_seq > base_seq);
        Ok(is_later && !self.is_own(catalog, folder, contents.content_seq)?)
    }

    /// # Errors
    /// The manifest contradicts itself; the batch comes out of order; the catalog fails.
    pub(crate) fn of(catalog: &dyn CatalogRead, folder: i64, manifest: &Manifest) -> Result<Self, StoreError> {
        let (base_seq, follows) = match (manifest.base_seq, manifest.replaces, manifest.follows) {
            (Some(base_seq), None, Some(follows)) => (base_seq, follows),
            (Some(_), Some(_), _) => return invalid("a batch follows a sequence number or replaces one, not both"),
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
            Some(row) if !catalog.has_batch_after(folder, manifest.device, row.seq)? => Ok(Self {
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

/// The node of a file whose contents are to be shared, and what it was at that moment.
pub(crate) fn file_with_contents(
    catalog: &dyn CatalogRead,
    folder: i64,
    file: FileId,
    at: Option<Seq>,
) -> Result<(i64, AttributeRow), StoreError> {
    let Some(at) = at else {
        return invalid("contents can only be those of another file at a moment that the folder has");
    };
    let node = catalog.node_number(folder, file)?;
    let row = match node {
        Some(node) => catalog.attributes(node, at)?,
        None => None,
    };
    match node.zip(row) {
        Some((node, row)) if row.attributes.kind == NodeKind::File => Ok((node, row)),
        _ => invalid(&format!(
            "contents are to follow those of file {file}, which the folder does not have at {at}"
        )),
    }
}
