//! The staged parts that a commit refers to: checks that they are all there and the right ones.

use crate::catalog::{BatchKey, CatalogRead};
use crate::error::StoreError;
use crate::numbers::StagedPartRowNumber;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;

/// Most missing parts that one error reports.
pub(super) const MISSING_MAX: usize = 64;

/// The row numbers of the staged parts 1 to `staged_parts`, in this order.
pub(crate) fn staged_part_ids(
    catalog: &dyn CatalogRead,
    key: BatchKey,
    staged_parts: u32,
) -> Result<Vec<StagedPartRowNumber>, StoreError> {
    let staged = catalog.staged_parts(key)?;
    let numbers: HashMap<u32, StagedPartRowNumber> = staged.iter().map(|row| (row.part, row.id)).collect();
    let missing: Vec<u32> = (1..=staged_parts)
        .filter(|part| !numbers.contains_key(part))
        .take(MISSING_MAX)
        .collect();
    if !missing.is_empty() {
        return Err(StoreError::PartsMissing { missing });
    }
    Ok((1..=staged_parts)
        .filter_map(|part| numbers.get(&part).copied())
        .collect())
}

/// Refuses parts other than those that the sender means: a delayed part may have arrived after its
/// own replacement.
pub(super) fn check_parts(
    catalog: &dyn CatalogRead,
    key: BatchKey,
    staged_parts: u32,
    wanted: [u8; 32],
) -> Result<(), StoreError> {
    let mut all = Sha256::new();
    let staged = catalog.staged_parts(key)?;
    for part in staged.iter().filter(|part| (1..=staged_parts).contains(&part.part)) {
        all.update(part.digest.unwrap_or_default());
    }
    if <[u8; 32]>::from(all.finalize()) == wanted {
        return Ok(());
    }
    Err(StoreError::PartsMissing {
        missing: (1..=staged_parts).take(MISSING_MAX).collect(),
    })
}
