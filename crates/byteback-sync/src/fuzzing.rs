//! Private readers of what continuous sync keeps, for the fuzz targets (`fuzz/`) and the tests that
//! run their seeds.

use crate::identities::fuzzing::{identities, identities_seed};
use crate::patches::fuzzing::{head, head_seed};

/// Reads any bytes as the map of identities and as the head of a set of patches; what is understood
/// is written as the same again.
///
/// # Panics
/// If something else comes back.
pub fn sync_state(data: &[u8]) {
    head(data);
    identities(data);
}

/// A head and a map.
#[must_use]
pub fn sync_state_seeds() -> Vec<Vec<u8>> {
    vec![head_seed(), identities_seed()]
}

#[cfg(test)]
mod tests;
