//! Events: batches of a folder, reported as they are applied (DeltaCFS section III-D: the server
//! forwards to the other clients).
//!
//! The answer is a stream of server-sent events, one for each batch after the sequence number that
//! the client names, in order and without a gap. It ends when the client goes, loses its right, or
//! the server stops. Events only announce changes: names and contents are fetched by `diff`,
//! `changes` and `content`, as of the sequence number that an event has. So an event is small, and
//! a client that is late or breaks off misses nothing: it continues after the number of its last
//! event.
//!
//! Each stream is a task of its own, without a thread: it sleeps until its folder gets a batch. A
//! comment is sent now and then, so that either end notices when the other one is gone. The token
//! is checked again whenever the stream wakes.
//!
//! Out of scope: keeping events. They are the rows of the batches.

use crate::admission::authenticate;
use crate::body::async_outgoing;
use crate::call::{Call, Shared, blocking};
use crate::convert;
use crate::problem::{Answer, parameter, refuse};
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, Response, header};
use byteback_api::MEDIA_EVENTS;
use byteback_api::problem::{Code, Problem};
use byteback_model::Seq;
use byteback_store::read::AppliedBatch;
use std::io;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Batches that one query reads from the catalog.
const BATCHES_AT_ONCE: u32 = 500;

pub(crate) async fn events(mut call: Call) -> Answer {
    let folder = call.folder()?;
    let after = call.query::<Seq>("after")?;
    call.finish_query()?;
    // Browsers and other readers of event streams send this header when they connect again.
    let after = match (after, call.headers.get("last-event-id")) {
        (_, Some(last)) => {
            let last = last.to_str().ok().and_then(|text| text.parse().ok());
            last.ok_or_else(|| parameter("header Last-Event-ID is not a sequence number"))?
        }
        (after, None) => after.unwrap_or(0),
    };
    let permit = Arc::clone(&call.shared.events)
        .try_acquire_owned()
        .map_err(|_| refuse(Code::Unavailable, "too many clients are waiting for events"))?;
    // Subscribed before the first query, so that no batch in between is missed.
    let woken = call.shared.subscriptions.subscribe_to(&folder);
    let first = batches(&call.shared, &folder, after).await?;
    let (sender, body) = async_outgoing();
    let stream = Stream {
        shared: call.shared,
        headers: call.headers,
        folder,
        after,
        sender,
    };
    tokio::spawn(async move {
        stream.run(first, woken).await;
        drop(permit);
    });
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_EVENTS));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

async fn batches(shared: &Shared, folder: &str, after: Seq) -> Result<Vec<AppliedBatch>, Box<Problem>> {
    let (store, folder) = (shared.store.clone(), folder.to_owned());
    blocking(move || store.batches(&folder, after, BATCHES_AT_ONCE)).await
}

/// The stream of one listening client.
struct Stream {
    shared: Arc<Shared>,
    headers: HeaderMap,
    folder: String,
    after: Seq,
    sender: mpsc::Sender<io::Result<Bytes>>,
}

impl Stream {
    async fn run(mut self, first: Vec<AppliedBatch>, mut woken: watch::Receiver<Seq>) {
        let mut stopping = self.shared.stopping.clone();
        // Sent at once, so that the client sees that its request was accepted.
        let mut text = String::from(":\n\n");
        let mut found = first;
        loop {
            for batch in &found {
                self.after = batch.seq;
                text.push_str(&convert::event(batch));
            }
            if !text.is_empty() && self.sender.send(Ok(std::mem::take(&mut text).into())).await.is_err() {
                return;
            }
            if found.is_empty() {
                tokio::select! {
                    // The sender is kept while there are receivers; if it were not, the query after
                    // the pause would find the batches.
                    _ = woken.changed() => {}
                    () = tokio::time::sleep(self.shared.config.events_pause) => text.push_str(":\n\n"),
                    _ = stopping.wait_for(|is_stopping| *is_stopping) => return,
                    () = self.sender.closed() => return,
                }
            }
            if authenticate(&self.shared, &self.headers, None).await.is_err() {
                return;
            }
            let Ok(next) = batches(&self.shared, &self.folder, self.after).await else {
                return;
            };
            found = next;
        }
    }
}
