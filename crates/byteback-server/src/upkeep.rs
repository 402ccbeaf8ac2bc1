//! Work on the store that no request waits for: expired parts and unreferenced segments are
//! collected periodically, and after batches the files that they scattered over many frames are
//! defragmented.

use crate::call::Shared;
use byteback_store::StoreError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::spawn_blocking;

/// Time for which files that could not be defragmented are left alone.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(60);

/// Collects what nothing refers to, again and again.
pub(crate) async fn collect(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(shared.config.collect_interval).await;
        let store = shared.store.clone();
        if let Ok(Err(error)) = spawn_blocking(move || store.collect()).await {
            shared
                .config
                .report(&format!("cannot collect unreferenced data: {error}"));
        }
    }
}

/// Defragments files whenever batches were applied, and once what an earlier server left.
pub(crate) async fn defragment(shared: Arc<Shared>) {
    loop {
        let worker = Arc::clone(&shared);
        let done = spawn_blocking(move || {
            let done = worker.store.defragment(&|| !*worker.stopping.borrow())?;
            let counter = &worker.metrics.defragmented_bytes;
            counter.fetch_add(done.written_bytes, Ordering::Relaxed);
            Ok::<_, StoreError>(())
        });
        match done.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                shared
                    .config
                    .report(&format!("cannot write scattered contents together: {error}"));
                tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
            }
            // It panicked, and would again.
            Err(_) => {
                shared
                    .config
                    .report("scattered contents are not written together any more: the thread panicked");
                return;
            }
        }
        shared.batch_applied.notified().await;
    }
}
