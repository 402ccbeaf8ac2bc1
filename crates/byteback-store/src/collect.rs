//! Removes what nothing refers to: expired staged parts, those of abandoned batches, and segments
//! without references.
//!
//! Order: the catalog forgets a segment, then its file is removed. A crash in between leaves a file
//! that the catalog does not know; the next start removes it. Frames of expired parts inside
//! segments that others keep alive stay.

use crate::catalog::BatchKey;
use crate::error::StoreError;
use crate::store::{Store, folder_row};
use byteback_model::DeviceId;

/// Counts of what a collection removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Staged parts that had expired.
    pub expired_parts: u64,
    /// Segment files without references.
    pub segments: u64,
}

impl Store {
    /// Removes the staged parts of a batch that will not be committed as it is, and frees the space
    /// that nothing else needs. The sender may begin the batch anew.
    ///
    /// # Errors
    /// The catalog or the segments fail; then the parts expire like others.
    pub fn abandon(&self, folder: &str, device: DeviceId, counter: u64) -> Result<Collected, StoreError> {
        {
            let catalog = self.catalog().write()?;
            let folder = folder_row(&*catalog, folder)?.id;
            catalog.delete_staged_parts(BatchKey {
                folder,
                device,
                counter,
            })?;
            catalog.commit()?;
        }
        self.collect()
    }

    /// Removes expired parts and unreferenced segments. To be called periodically.
    ///
    /// # Errors
    /// The catalog or the segments fail; what is left is removed next time.
    pub fn collect(&self) -> Result<Collected, StoreError> {
        let now = self.parts.clock.now_ns();
        let segments = self.parts.segments.list()?;
        let catalog = self.catalog().write()?;
        let expired_parts = catalog.delete_expired_parts(now.saturating_sub(self.parts.limits.staged_expiry_ns))?;
        let mut unreferenced = Vec::new();
        for segment in segments {
            // In this order: a writer pins only the active segment, and references appear only in a
            // write transaction, of which there is one at a time: this one.
            if !self.parts.segments.is_in_use(segment.id) && catalog.forget_segment(segment.id)? {
                unreferenced.push(segment.id);
            }
        }
        catalog.commit()?;
        for id in &unreferenced {
            self.parts.segments.remove(*id)?;
        }
        Ok(Collected {
            expired_parts,
            segments: u64::try_from(unreferenced.len()).unwrap_or(u64::MAX),
        })
    }
}
