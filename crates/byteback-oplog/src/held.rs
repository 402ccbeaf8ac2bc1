//! Borders that exist only in memory: cuts that are read without a consumer.
//!
//! A named cut, an export, a `delta_open`: each needs the layers up to its moment kept apart from
//! those after it, for as long as it is open and not longer. A process that dies takes its held
//! borders with it, and with them every reader that could have asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::ids::Epoch;

/// The held epochs, with the number of holds of each.
#[derive(Debug, Default)]
pub(crate) struct HeldBorders(Mutex<BTreeMap<Epoch, usize>>);

/// Holds one border until it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    epoch: Epoch,
    borders: Arc<HeldBorders>,
}

impl HeldBorders {
    pub(crate) fn hold(self: &Arc<Self>, epoch: Epoch) -> Hold {
        *self.0.lock().entry(epoch).or_default() += 1;
        Hold {
            epoch,
            borders: Arc::clone(self),
        }
    }

    /// Each held epoch once, ascending.
    pub(crate) fn epochs(&self) -> Vec<Epoch> {
        self.0.lock().keys().copied().collect()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.borders.0.lock();
        if let Some(count) = held.get_mut(&self.epoch) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.epoch);
            }
        }
    }
}
