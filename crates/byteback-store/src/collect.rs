//! Throws away what nothing refers to: expired staged parts, those of batches that were given up,
//! and segments without references.
//!
//! Order: the catalog forgets a segment, then its file is removed. A crash in between leaves a file
//! that the catalog does not know; the next start removes it. Frames of expired parts inside
//! segments that others keep alive stay.

use crate::catalog::BatchKey;
use crate::error::StoreError;
use crate::store::{Store, folder_row};

/// What a collection removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Staged parts that had expired.
    pub expired_parts: u64,
    /// Segment files that nothing referred to.
    pub segments: u64,
}

impl Store {
    /// Forgets the staged parts of a batch that will not be committed as it is, and gives back the
    /// room that nothing else needs. The sender may begin the batch anew.
    ///
    /// # Errors
    /// The catalog or the segments fail; then the parts expire like others.
    pub fn abandon(&self, folder: &str, device: u64, counter: u64) -> Result<Collected, StoreError> {
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

    /// Removes expired parts and unreferenced segments. Call it now and then.
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
            // In this order: a writer pins only what is active, and a reference appears only under
            // this transaction.
            if !self.parts.segments.is_in_use(segment.id) && !catalog.is_segment_referenced(segment.id)? {
                catalog.forget_segment(segment.id)?;
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
