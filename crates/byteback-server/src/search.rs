//! Searches in stored contents: a client sends checksums of what it has, and learns what of that is here.
//!
//! Two calls, `matches` (blocks, found at any offset of the stored content) and `chunks` (content-defined). Both go three steps:
//! 1. The list is read from the body while that arrives, into memory, with the limits of `byteback_store::search`. Who sends or takes slowly
//!    keeps one of a few places (`ServerConfig::searches_max`), so bodies have a lowest speed both ways.
//! 2. The stored content is read through and hashed, which takes turns with signatures (`ServerConfig::signatures_max`). It ends
//!    early when the client goes away.
//! 3. The answer is streamed. It says itself how long it is and has checksums of its own.
//!
//! Nothing is kept, and nothing is changed.

use crate::body::{BodyLimits, IncomingBytes, Pace, incoming, outgoing_paced, pump};
use crate::dispatch::{Answer, Call, Shared, blocking, search_permit, signature_permit};
use crate::problem::{of_store, parameter, refuse};
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use byteback_api::problem::{Code, Problem};
use byteback_api::{MEDIA_CHUNK_ANSWER, MEDIA_CHUNKS, MEDIA_MATCHES, MEDIA_SIGNATURE, Seq};
use byteback_store::StoreError;
use byteback_store::search::{STREAM_LEN_MAX, SoughtBlocks, SoughtChunks};
use std::io::{self, BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::OwnedSemaphorePermit;

/// A list that arrives more slowly than this on average is refused, an answer that is taken more slowly is broken off, in bytes per second.
pub(crate) const BYTES_PER_S_MIN: u32 = 4096;

pub(crate) async fn matches(mut call: Call) -> Answer {
    let (folder, file) = (call.folder()?, call.node()?);
    let at = call.query::<Seq>("at")?;
    call.finish_query()?;
    let place = search_permit(&call.shared).await?;
    let sought = take_list(&mut call, MEDIA_SIGNATURE, SoughtBlocks::read).await?;
    let found = searched(&call.shared, move |store, is_wanted| {
        store.find_blocks(&folder, file, at, &sought, is_wanted)
    })
    .await?;
    count(&call.shared, found.searched_bytes);
    Ok(answer(&call.shared, MEDIA_MATCHES, place, move |out| found.write(out)))
}

pub(crate) async fn chunks(mut call: Call) -> Answer {
    let (folder, file) = (call.folder()?, call.node()?);
    let (at, unproven) = (call.query::<Seq>("at")?, call.query::<u8>("unproven")?);
    call.finish_query()?;
    let has_unproven = match unproven {
        None | Some(0) => false,
        Some(1) => true,
        Some(_) => return Err(parameter("'unproven' is 0 or 1")),
    };
    let place = search_permit(&call.shared).await?;
    let sought = take_list(&mut call, MEDIA_CHUNKS, SoughtChunks::read).await?;
    let found = searched(&call.shared, move |store, is_wanted| {
        store.find_chunks(&folder, file, at, sought, has_unproven, is_wanted)
    })
    .await?;
    count(&call.shared, found.searched_bytes);
    Ok(answer(&call.shared, MEDIA_CHUNK_ANSWER, place, move |out| {
        found.write(out)
    }))
}

/// Reads what is looked for from the body, while that arrives.
async fn take_list<T: Send + 'static>(
    call: &mut Call,
    media: &str,
    read: impl FnOnce(BufReader<IncomingBytes>) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Box<Problem>> {
    let told = call.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if told.is_some_and(|told| told != media.as_bytes()) {
        return Err(parameter(format!("the Content-Type of this list is {media}")));
    }
    let limits = BodyLimits {
        len_max: STREAM_LEN_MAX,
        idle_timeout: call.shared.config.idle_timeout,
        bytes_per_s_min: Some(BYTES_PER_S_MIN),
    };
    let (sender, bytes) = incoming();
    let worker = tokio::task::spawn_blocking(move || read(BufReader::new(bytes)).map_err(|error| of_store(&error)));
    let pumped = pump(std::mem::take(&mut call.body), sender, limits).await;
    let taken = worker
        .await
        .unwrap_or_else(|_| Err(refuse(Code::Internal, "the call panicked")));
    // A body that is refused as such is no list, whatever came of it.
    pumped.and(taken)
}

/// Set when nobody waits for an answer any more: the call is dropped with its connection.
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a search on a blocking thread, one of a few at once.
async fn searched<T: Send + 'static>(
    shared: &Shared,
    search: impl FnOnce(&byteback_store::Store, &dyn Fn() -> bool) -> Result<Option<T>, StoreError> + Send + 'static,
) -> Result<T, Box<Problem>> {
    let turn = signature_permit(shared).await?;
    let store = shared.store.clone();
    let is_gone = Arc::new(AtomicBool::new(false));
    let _waiting = Waiting(Arc::clone(&is_gone));
    let found = blocking(move || {
        let found = search(&store, &|| !is_gone.load(Ordering::Relaxed));
        drop(turn);
        found
    });
    // Nobody will read this.
    found
        .await?
        .ok_or_else(|| refuse(Code::Unavailable, "the search was given up"))
}

fn count(shared: &Shared, searched_bytes: u64) {
    let counter = &shared.metrics.searched_bytes;
    counter.fetch_add(searched_bytes, Ordering::Relaxed);
}

/// Streams what was found.
fn answer(
    shared: &Shared,
    media: &'static str,
    place: OwnedSemaphorePermit,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
) -> Response<Body> {
    let pace = Pace {
        idle_timeout: shared.config.idle_timeout,
        bytes_per_s_min: BYTES_PER_S_MIN,
    };
    let (mut out, body) = outgoing_paced(None, pace);
    tokio::task::spawn_blocking(move || {
        // What the destination says is that the client went away, or is too slow.
        if write(&mut out).is_err() {
            out.fail();
        }
        drop(place);
    });
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}
