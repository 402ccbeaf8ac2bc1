//! The clients that wait for the batches of folders, until `events` tells them.

use byteback_model::Seq;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::watch;

/// The clients' subscriptions to the batches of folders.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    folders: Mutex<HashMap<String, watch::Sender<Seq>>>,
}

impl Subscriptions {
    /// Wakes the streams that wait for a batch of this folder.
    pub(crate) fn applied(&self, folder: &str, seq: Seq) {
        let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = folders.get(folder) {
            if sender.receiver_count() == 0 {
                folders.remove(folder);
            } else {
                sender.send_replace(seq);
            }
        }
    }

    /// The newest batch of this folder from now on.
    pub(crate) fn subscribe_to(&self, folder: &str) -> watch::Receiver<Seq> {
        let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = folders.entry(folder.to_owned()).or_insert_with(|| watch::channel(0).0);
        sender.subscribe()
    }
}
