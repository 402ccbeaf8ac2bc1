//! The devices that have requests at work, so that these can be stopped when their device is
//! revoked.
//!
//! Every request of a device holds a [`ActiveRequest`] from its authentication to the last byte of
//! its answer. A revocation through this server turns the device out at once. For revocations in
//! the catalog by another process (`byteback devices revoke --data`), [`watch`] looks every
//! [`LOOK_EVERY`] while any device is present. Between requests nothing is needed: each is
//! authenticated again. The store ensures that nothing is applied in the moments between, in the
//! transaction that applies.

use byteback_model::DeviceId;
use byteback_store::Store;
use byteback_store::devices::SEEN_WITHIN_NS;
use std::collections::HashMap;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch::{Receiver, Sender, channel};

/// Time between two looks for devices that another process revoked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The devices that have requests at work.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    at_work: Mutex<HashMap<DeviceId, Sender<bool>>>,
    /// Time of the last attempt to note that a device was seen. At most one entry per device.
    noted: Mutex<HashMap<DeviceId, Instant>>,
}

/// A request of a device that is at work.
#[derive(Debug)]
pub(crate) struct ActiveRequest {
    device: DeviceId,
    is_revoked: Receiver<bool>,
    presence: Arc<Presence>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Presence {
    /// Begins a request.
    pub(crate) fn enter(self: &Arc<Self>, device: DeviceId) -> ActiveRequest {
        let mut at_work = locked(&self.at_work);
        let sender = at_work.entry(device).or_insert_with(|| channel(false).0);
        ActiveRequest {
            device,
            is_revoked: sender.subscribe(),
            presence: Arc::clone(self),
        }
    }

    /// Stops what a device has at work.
    pub(crate) fn turn_out(&self, device: DeviceId) {
        if let Some(sender) = locked(&self.at_work).get(&device) {
            sender.send_replace(true);
        }
    }

    /// Whether it is time to note that a device was seen; then the attempt counts as made.
    pub(crate) fn is_to_be_noted(&self, device: DeviceId) -> bool {
        let mut noted = locked(&self.noted);
        let is_recent = noted
            .get(&device)
            .is_some_and(|at| at.elapsed() < Duration::from_nanos(SEEN_WITHIN_NS.unsigned_abs()));
        if !is_recent {
            noted.insert(device, Instant::now());
        }
        !is_recent
    }

    fn devices(&self) -> Vec<DeviceId> {
        locked(&self.at_work).keys().copied().collect()
    }
}

impl ActiveRequest {
    /// Ends when the device is revoked.
    pub(crate) fn revoked(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut is_revoked = self.is_revoked.clone();
        async move {
            if is_revoked.wait_for(|is_revoked| *is_revoked).await.is_err() {
                pending::<()>().await;
            }
        }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut at_work = locked(&self.presence.at_work);
        // This stay is the device's last.
        if at_work
            .get(&self.device)
            .is_some_and(|sender| sender.receiver_count() <= 1)
        {
            at_work.remove(&self.device);
        }
    }
}

/// Turns out devices that another process revoked. Never ends.
pub(crate) async fn watch(presence: Arc<Presence>, store: Store) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let devices = presence.devices();
        if devices.is_empty() {
            continue;
        }
        let store = store.clone();
        let looked = tokio::task::spawn_blocking(move || store.roster().revoked_among(&devices)).await;
        // After a failure the next look follows in a moment; requests that begin are refused for
        // the same reason.
        for device in looked.into_iter().flatten().flatten() {
            presence.turn_out(device);
        }
    }
}

#[cfg(test)]
mod tests;
